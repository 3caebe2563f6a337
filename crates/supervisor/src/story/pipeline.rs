//! What a project's configuration says about stories, as plain data. Owns what makes a pipeline
//! senseless and the length of a wait; who works on what is decided elsewhere.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::names::{AgentName, Model, Provider, StageName};

/// How stories of a project are worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// In the order in which stories pass them.
    pub stages: Vec<Stage>,
    /// All agents that stages name.
    pub agents: Vec<AgentRule>,
    /// So often a stage is tried again before its story is blocked.
    pub max_retries: u32,
    /// How long to wait before that.
    pub back_off: BackOff,
}

/// How far a story can come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name.
    pub name: StageName,
    /// What is done in it.
    pub kind: StageKind,
}

/// What is done in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Something, and then the story goes on.
    Work(WorkRule),
    /// Nothing, until somebody moves the story.
    Hold,
    /// Nothing any more.
    Terminal {
        /// True if who depends on a story may go on once it is here.
        success: bool,
    },
}

/// How a stage's work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkRule {
    /// Who may do it, the first free one first. Without any, gates and merge are all of it; without
    /// those too, stories wait here for somebody to move them.
    pub agents: Vec<AgentName>,
    /// How many commands have to succeed before a story leaves.
    pub gates: u32,
    /// True if the story is merged with its base before the gates, and lands on it after them.
    pub merge: bool,
    /// Where stories go from here.
    pub next: StageName,
    /// Where a story goes whose agent or gate failed; here again if not said.
    pub on_failure: Option<StageName>,
    /// So many stories have a step in it at once.
    pub max_runs: Option<u32>,
}

/// An agent, as far as it matters for who works on what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRule {
    /// Its name.
    pub name: AgentName,
    /// What it is for.
    pub role: Role,
    /// So many of it live at once.
    pub max_instances: u32,
    /// Who serves it.
    pub provider: Provider,
    /// Its model; a session is of one model.
    pub model: Model,
    /// True if it goes on in its session when it is started again for the same story.
    pub resumes: bool,
}

/// What an agent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Writes what a story asks for; also what conflicts go back to.
    Coder,
    /// Looks at it.
    Qa,
    /// Brings it home.
    Merge,
    /// Something else.
    Other,
}

/// Waits that double from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Before the first retry.
    pub first_ms: u64,
    /// Before any.
    pub most_ms: u64,
}

/// Why a pipeline is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelineFault {
    /// It has no stage.
    Empty,
    /// Two stages have the same name.
    StageTwice(StageName),
    /// Two agents have the same name.
    AgentTwice(AgentName),
    /// A stage names an agent that is not there.
    NoSuchAgent {
        /// Which stage.
        stage: StageName,
        /// Whom.
        agent: AgentName,
    },
    /// A stage leads to one that is not there.
    NoSuchStage {
        /// From.
        stage: StageName,
        /// To.
        to: StageName,
    },
    /// No instance of an agent could ever live.
    NoInstance(AgentName),
    /// No story could ever have a step in the stage.
    NoRun(StageName),
    /// Whoever succeeds from here on comes by here again, and never to an end.
    NeverEnds(StageName),
}

impl Pipeline {
    /// The first thing that makes it senseless.
    ///
    /// # Errors
    ///
    /// Names it.
    pub fn check(&self) -> Result<(), PipelineFault> {
        if self.stages.is_empty() {
            return Err(PipelineFault::Empty);
        }
        let mut stages = BTreeSet::new();
        for stage in &self.stages {
            if !stages.insert(&stage.name) {
                return Err(PipelineFault::StageTwice(stage.name.clone()));
            }
        }
        let mut agents = BTreeSet::new();
        for agent in &self.agents {
            if !agents.insert(&agent.name) {
                return Err(PipelineFault::AgentTwice(agent.name.clone()));
            }
            if agent.max_instances == 0 {
                return Err(PipelineFault::NoInstance(agent.name.clone()));
            }
        }
        self.stages.iter().try_for_each(|stage| match &stage.kind {
            StageKind::Work(rule) => rule.check(&stage.name, &stages, &agents),
            StageKind::Hold | StageKind::Terminal { .. } => Ok(()),
        })?;
        let endless = self.stages.iter().find(|stage| self.goes_round(&stage.name));
        endless.map_or(Ok(()), |stage| Err(PipelineFault::NeverEnds(stage.name.clone())))
    }

    /// True if success alone leads from a stage back to it.
    fn goes_round(&self, from: &StageName) -> bool {
        let mut at = from;
        for _ in &self.stages {
            let Some(rule) = self.work(at) else { return false };
            at = &rule.next;
            if at == from {
                return true;
            }
        }
        false
    }

    /// The stage of this name.
    #[must_use]
    pub fn stage(&self, name: &StageName) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.name == *name)
    }

    /// The agent of this name.
    #[must_use]
    pub fn agent(&self, name: &AgentName) -> Option<&AgentRule> {
        self.agents.iter().find(|agent| agent.name == *name)
    }

    /// The work of a stage, if it is there and any is done in it.
    pub(super) fn work(&self, name: &StageName) -> Option<&WorkRule> {
        match &self.stage(name)?.kind {
            StageKind::Work(rule) => Some(rule),
            StageKind::Hold | StageKind::Terminal { .. } => None,
        }
    }

    /// Where a conflict goes that a stage does not say anything of: to whoever writes.
    pub(super) fn coders_stage(&self) -> Option<&StageName> {
        let writes = |name: &AgentName| self.agent(name).is_some_and(|a| a.role == Role::Coder);
        let found = self.stages.iter().find(|stage| match &stage.kind {
            StageKind::Work(rule) => rule.agents.iter().any(writes),
            StageKind::Hold | StageKind::Terminal { .. } => false,
        });
        found.map(|stage| &stage.name)
    }
}

impl WorkRule {
    fn check(
        &self,
        stage: &StageName,
        stages: &BTreeSet<&StageName>,
        agents: &BTreeSet<&AgentName>,
    ) -> Result<(), PipelineFault> {
        if let Some(agent) = self.agents.iter().find(|agent| !agents.contains(agent)) {
            let (stage, agent) = (stage.clone(), agent.clone());
            return Err(PipelineFault::NoSuchAgent { stage, agent });
        }
        let leads_to = [Some(&self.next), self.on_failure.as_ref()];
        if let Some(to) = leads_to.into_iter().flatten().find(|to| !stages.contains(to)) {
            return Err(PipelineFault::NoSuchStage { stage: stage.clone(), to: to.clone() });
        }
        match self.max_runs {
            Some(0) => Err(PipelineFault::NoRun(stage.clone())),
            Some(_) | None => Ok(()),
        }
    }
}

impl BackOff {
    /// How long to wait before the retry of this number, from 1 on.
    #[must_use]
    pub fn wait_ms(self, retry: u32) -> u64 {
        let doubled = 1_u64.checked_shl(retry.saturating_sub(1)).unwrap_or(u64::MAX);
        self.first_ms.saturating_mul(doubled).min(self.most_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn pipeline() -> Pipeline {
        let work = WorkRule {
            agents: vec!["a".into()],
            gates: 0,
            merge: false,
            next: "end".into(),
            on_failure: None,
            max_runs: None,
        };
        let agent = AgentRule {
            name: "a".into(),
            role: Role::Coder,
            max_instances: 1,
            provider: "p".into(),
            model: "m".into(),
            resumes: true,
        };
        Pipeline {
            stages: vec![
                Stage { name: "do".into(), kind: StageKind::Work(work) },
                Stage { name: "end".into(), kind: StageKind::Terminal { success: true } },
            ],
            agents: vec![agent],
            max_retries: 1,
            back_off: BackOff { first_ms: 10, most_ms: 50 },
        }
    }

    fn work(pipeline: &mut Pipeline) -> &mut WorkRule {
        match &mut pipeline.stages[0].kind {
            StageKind::Work(rule) => rule,
            StageKind::Hold | StageKind::Terminal { .. } => unreachable!("it is work"),
        }
    }

    #[test]
    fn what_is_senseless_is_named() {
        assert_eq!(pipeline().check(), Ok(()));
        let wrong = |change: fn(&mut Pipeline)| {
            let mut pipeline = pipeline();
            change(&mut pipeline);
            pipeline.check().expect_err("it is wrong")
        };
        let (stage, to) = ("do".into(), "up".into());
        let up = PipelineFault::NoSuchStage { stage, to };
        assert_eq!(wrong(|p| p.stages.clear()), PipelineFault::Empty);
        assert_eq!(
            wrong(|p| p.stages[1].name = "do".into()),
            PipelineFault::StageTwice("do".into())
        );
        assert_eq!(
            wrong(|p| p.agents.push(p.agents[0].clone())),
            PipelineFault::AgentTwice("a".into())
        );
        assert_eq!(wrong(|p| work(p).next = "up".into()), up);
        assert_eq!(wrong(|p| work(p).next = "do".into()), PipelineFault::NeverEnds("do".into()));
        assert_eq!(wrong(|p| work(p).on_failure = Some("up".into())), up);
        assert_eq!(wrong(|p| work(p).max_runs = Some(0)), PipelineFault::NoRun("do".into()));
        assert_eq!(wrong(|p| p.agents[0].max_instances = 0), PipelineFault::NoInstance("a".into()));
        assert_eq!(
            wrong(|p| work(p).agents.push("b".into())),
            PipelineFault::NoSuchAgent { stage: "do".into(), agent: "b".into() }
        );
    }

    #[test]
    fn waits_double_up_to_the_longest_whatever_the_numbers() {
        let back_off = BackOff { first_ms: 10, most_ms: 50 };
        let waits: Vec<u64> = [1, 2, 3, 4, 64, 65, u32::MAX].map(|n| back_off.wait_ms(n)).into();
        assert_eq!(waits, [10, 20, 40, 50, 50, 50, 50]);
        let never = BackOff { first_ms: u64::MAX, most_ms: u64::MAX };
        assert_eq!(never.wait_ms(3), u64::MAX);
    }
}
