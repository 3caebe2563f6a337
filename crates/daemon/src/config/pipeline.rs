//! From what a repository's file says to what the mind of stories goes by. Pure.
//!
//! Owns the one translation, and the words about a pipeline that cannot be used. Whatever `parse`
//! takes comes through here: `parse` has told of everything else with its line. Never decides who
//! works on what.

use kennel_supervisor::story::{
    AgentName, AgentRule, BackOff, Pipeline, PipelineFault, Role as MindRole, Stage as MindStage,
    StageKind as MindKind, StageName, WorkRule,
};

use super::{Agent, Project, Repository, Resume, Role, Stage, StageKind, Starts};

/// How many of an agent work on stories at once, if its profile does not say.
const USUAL_INSTANCES: u32 = 1;

/// The pipeline of a repository's file. `user_agents` are the user's, which stages may name too: of
/// two with the same name the repository's counts.
pub fn pipeline(said: &Repository, user_agents: &[Agent]) -> Result<Pipeline, PipelineFault> {
    let stages = said.stages.iter().map(stage).collect::<Result<Vec<_>, _>>()?;
    let mut agents: Vec<AgentRule> = Vec::new();
    for agent in said.agents.iter().chain(user_agents) {
        let is_named = said.stages.iter().any(|stage| stage.agents.contains(&agent.name));
        if is_named && !agents.iter().any(|known| known.name.as_str() == agent.name) {
            agents.push(rule(agent));
        }
    }
    let Project { max_retries, .. } = said.project;
    let pipeline = Pipeline { stages, agents, max_retries, back_off: back_off(&said.project) };
    pipeline.check()?;
    Ok(pipeline)
}

fn stage(stage: &Stage) -> Result<MindStage, PipelineFault> {
    let name = StageName::from(stage.name.as_str());
    let kind = match stage.kind {
        StageKind::Hold => MindKind::Hold,
        StageKind::Terminal { success } => MindKind::Terminal { success },
        StageKind::Work => MindKind::Work(work(stage, &name)?),
    };
    Ok(MindStage { name, kind })
}

fn work(stage: &Stage, name: &StageName) -> Result<WorkRule, PipelineFault> {
    let named = |name: &String| StageName::from(name.as_str());
    let mut agents: Vec<AgentName> = Vec::new();
    for agent in stage.agents.iter().map(|agent| AgentName::from(agent.as_str())) {
        if !agents.contains(&agent) {
            agents.push(agent);
        }
    }
    Ok(WorkRule {
        agents,
        gates: u32::try_from(stage.gates.len()).unwrap_or(u32::MAX),
        merge: stage.merge,
        next: stage
            .next
            .as_ref()
            .map(named)
            .ok_or_else(|| PipelineFault::NeverEnds(name.clone()))?,
        on_failure: stage.on_failure.as_ref().map(named),
        max_runs: stage.max_runs,
    })
}

fn rule(agent: &Agent) -> AgentRule {
    let model = match &agent.starts {
        Starts::Client { model, .. } => model.as_deref().unwrap_or_default(),
        Starts::Command { .. } => "",
    };
    AgentRule {
        name: agent.name.as_str().into(),
        role: mind_role(agent.role),
        max_instances: agent.max_instances.unwrap_or(USUAL_INSTANCES),
        provider: agent.provider.as_str().into(),
        model: model.into(),
        resumes: agent.resume == Resume::Session,
    }
}

fn mind_role(role: Role) -> MindRole {
    match role {
        Role::Coder => MindRole::Coder,
        Role::Qa => MindRole::Qa,
        Role::Merge => MindRole::Merge,
        Role::Other => MindRole::Other,
    }
}

fn back_off(project: &Project) -> BackOff {
    BackOff {
        first_ms: project.retry_wait.as_millis() as u64,
        most_ms: project.retry_wait_most.as_millis() as u64,
    }
}

/// What makes a pipeline senseless, in a sentence.
#[must_use]
pub fn fault_words(fault: &PipelineFault) -> String {
    match fault {
        PipelineFault::Empty => "the pipeline has no stage".to_owned(),
        PipelineFault::StageTwice(name) => format!("there are two stages {name}"),
        PipelineFault::AgentTwice(name) => format!("there are two agents {name}"),
        PipelineFault::NoSuchAgent { stage, agent } => {
            format!("stage {stage} names agent {agent}, and there is none")
        }
        PipelineFault::NoSuchStage { stage, to } => {
            format!("stage {stage} leads to stage {to}, and there is none")
        }
        PipelineFault::NoInstance(name) => format!("agent {name} may have no instance"),
        PipelineFault::NoRun(name) => format!("no story may have a run in stage {name}"),
        PipelineFault::NeverEnds(name) => {
            format!("a story that succeeds in stage {name} comes by there again, and never ends")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::init::REPOSITORY_TEXT;
    use super::super::{repository, user};
    use super::*;

    fn made(text: &str, of_user: &str) -> Pipeline {
        let agents = user("U", of_user.as_bytes()).expect("it reads").agents;
        let names: Vec<String> = agents.iter().map(|agent| agent.name.clone()).collect();
        let said = repository("F", text.as_bytes(), &names).expect("it reads");
        pipeline(&said, &agents).expect("what reads can be used")
    }

    fn work<'p>(pipeline: &'p Pipeline, name: &str) -> &'p WorkRule {
        match &pipeline.stage(&name.into()).expect("it is there").kind {
            MindKind::Work(rule) => rule,
            MindKind::Hold | MindKind::Terminal { .. } => panic!("{name} is no work"),
        }
    }

    #[test]
    fn the_usual_pipeline_merges_where_it_says_so_and_ends_well_in_done_alone() {
        for text in ["", REPOSITORY_TEXT] {
            let pipeline = made(text, "");
            let merging: Vec<&str> = pipeline
                .stages
                .iter()
                .filter(|stage| matches!(&stage.kind, MindKind::Work(rule) if rule.merge))
                .map(|stage| stage.name.as_str())
                .collect();
            assert_eq!(merging, ["merge"]);
            for (name, kind) in [
                ("done", MindKind::Terminal { success: true }),
                ("archived", MindKind::Terminal { success: false }),
                ("blocked", MindKind::Hold),
                ("frozen", MindKind::Hold),
            ] {
                assert_eq!(pipeline.stage(&name.into()).map(|s| &s.kind), Some(&kind), "{name}");
            }
            assert_eq!(work(&pipeline, "qa").on_failure, Some("current".into()));
            assert_eq!(pipeline.max_retries, 3);
            assert_eq!(pipeline.back_off, BackOff { first_ms: 10_000, most_ms: 900_000 });
        }
        assert_eq!(work(&made(REPOSITORY_TEXT, ""), "current").agents, ["coder".into()]);
    }

    #[test]
    fn agents_that_stages_name_are_there_once_and_the_repositorys_come_first() {
        let of_user = "[[agent]]\nname = \"both\"\nkind = \"codex\"\n\
                       [[agent]]\nname = \"mine\"\nkind = \"opencode\"\nmodel = \"p/m\"\n\
                       stage = \"qa\"\nmax_instances = 4\n\
                       [[agent]]\nname = \"unnamed\"\nkind = \"codex\"\n";
        let text = "[project]\nmax_retries = 0\nretry_wait = \"20ms\"\nretry_wait_most = \"1s\"\n\
                    [[agent]]\nname = \"both\"\ncommand = [\"x\"]\nstage = \"coder\"\n\
                    [[stage]]\nname = \"do\"\nagents = [\"mine\", \"both\", \"mine\"]\n\
                    gates = [[\"a\"], [\"b\"]]\nmerge = true\nmax_runs = 2\n\
                    [[stage]]\nname = \"end\"\nterminal = true\nsuccess = false\n";
        let pipeline = made(text, of_user);
        let rule = |name: &str, role, provider: &str, model: &str, resumes, max_instances| {
            let (name, provider, model) = (name.into(), provider.into(), model.into());
            AgentRule { name, role, max_instances, provider, model, resumes }
        };
        let both = rule("both", MindRole::Coder, "command:both", "", false, 1);
        let mine = rule("mine", MindRole::Qa, "p", "p/m", true, 4);
        assert_eq!(pipeline.agents, [both, mine]);
        let expected = WorkRule {
            agents: vec!["mine".into(), "both".into()],
            gates: 2,
            merge: true,
            next: "end".into(),
            on_failure: None,
            max_runs: Some(2),
        };
        assert_eq!(*work(&pipeline, "do"), expected);
        assert_eq!(pipeline.stages[1].kind, MindKind::Terminal { success: false });
        assert_eq!(pipeline.max_retries, 0);
        assert_eq!(pipeline.back_off, BackOff { first_ms: 20, most_ms: 1000 });
    }

    #[test]
    fn an_agent_that_is_gone_meanwhile_is_named() {
        let text = "[[stage]]\nname = \"do\"\nagents = [\"mine\"]\n\
                    [[stage]]\nname = \"end\"\nterminal = true\n";
        let said = repository("F", text.as_bytes(), &["mine".to_owned()]).expect("it reads");
        let fault = pipeline(&said, &[]).expect_err("nobody is there");
        assert_eq!(fault_words(&fault), "stage do names agent mine, and there is none");
    }

    /// Every small file of stages: what reads is what the mind takes.
    #[test]
    fn whatever_reads_passes_the_check_of_the_mind() {
        let targets = ["", "a", "b", "c", "h"];
        let line = |key: &str, target: &str| match target {
            "" => String::new(),
            target => format!("{key} = \"{target}\"\n"),
        };
        let mut good = 0;
        for n in 0..targets.len().pow(4) {
            let pick = |at: u32| targets[n / targets.len().pow(at) % targets.len()];
            let text = format!(
                "[[stage]]\nname = \"a\"\n{}{}[[stage]]\nname = \"b\"\n{}{}\
                 [[stage]]\nname = \"c\"\nterminal = true\n[[stage]]\nname = \"h\"\nhold = true\n",
                line("next", pick(0)),
                line("on_failure", pick(1)),
                line("next", pick(2)),
                line("on_failure", pick(3)),
            );
            if let Ok(said) = repository("F", text.as_bytes(), &[]) {
                good += 1;
                assert_eq!(pipeline(&said, &[]).map(|_| ()), Ok(()), "{text}");
            }
        }
        assert!((100..600).contains(&good), "{good} of 625 read");
    }
}
