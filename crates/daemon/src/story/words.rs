//! What is said of stories to people and to agents. Pure; owns the sentences and the words that
//! programs rely on, in one place for the API, for notices and for lists. Names the thing, and the
//! fix where there is one.

use std::fmt::Display;

use kennel_supervisor::story::{
    Blocked, Cause, Ceiling, Hold, Leave, PipelineFault, Progress, Reason, StageName, StoryFact,
    StoryRefusal, Then, TurnedAway, Wait, WaitFor, Work,
};

use crate::time::Time;

/// Why a story has to be looked at.
pub(crate) fn blocked(why: &Blocked) -> String {
    match why {
        Blocked::ByUser => "somebody blocked it".to_owned(),
        Blocked::Retries { stage, max, cause: of } => {
            let often = times(*max);
            format!("stage {stage} was tried again {often} and failed again: {}", cause(of))
        }
        Blocked::Ceiling { of, used, max } => match of {
            Ceiling::Turns => format!("its runs used {used} of {max} tool turns"),
            Ceiling::Money => format!("its runs used {} of {}", dollars(*used), dollars(*max)),
            Ceiling::Retries => format!("it was tried again {used} times of {max}"),
        },
        Blocked::NeverStarts { tries } => {
            format!("its run could not be started, {} in a row", times(*tries))
        }
        Blocked::Lost => "nobody can say whether its run is over".to_owned(),
        Blocked::Drifted => "its run changed the main checkout".to_owned(),
        Blocked::BaseMoves { times: often } => {
            format!("its base had moved {} when it was to land", times(*often))
        }
        Blocked::Conflict => "it conflicts with its base, and no stage has a coder".to_owned(),
        Blocked::TreeStays => "its worktree could not be removed".to_owned(),
    }
}

/// What failed.
pub(crate) fn cause(of: &Cause) -> String {
    match of {
        Cause::Agent => "the agent failed".to_owned(),
        Cause::Limit => "a limit ended its run".to_owned(),
        Cause::Gate(n) => format!("{} failed", gate(*n)),
        Cause::Prepare => "its worktree could not be made".to_owned(),
        Cause::Merge => "the merge failed".to_owned(),
        Cause::Conflict => "it conflicts with its base".to_owned(),
        Cause::Land => "the landing failed".to_owned(),
    }
}

/// Why nothing is done for a story: in a word, in a sentence, and until when if that is known.
pub(crate) fn reason(why: &Reason) -> (&'static str, String, Option<u64>) {
    match why {
        Reason::Ended => ("ended", "it is in a stage that ends it".to_owned(), None),
        Reason::WaitsForMove => ("move", "somebody has to move it on".to_owned(), None),
        Reason::StageGone(stage) => {
            let text = format!("its stage {stage} is not in the pipeline any more: move it");
            ("stage_gone", text, None)
        }
        Reason::Held(hold) => ("held", held(hold), None),
        Reason::DependsOn(ids) => ("dependencies", format!("waits for {}", list(ids)), None),
        Reason::Stray(step) => ("stray", format!("its run {} has not ended", step.run()), None),
        Reason::Waits(wait) => {
            let (code, text) = waits(wait);
            (code, text, Some(wait.end_ms()))
        }
        Reason::StageFull { max } => {
            let text = format!("its stage has as many runs as it may: {max}");
            ("stage_full", text, None)
        }
        Reason::AgentsBusy => ("agents_busy", "all agents of its stage are busy".to_owned(), None),
        Reason::Paused { provider, until_ms } => {
            ("paused", paused(provider, *until_ms), Some(*until_ms))
        }
        Reason::Ready => ("ready", "nothing is against it any more".to_owned(), None),
    }
}

/// What is left of the work of a story that is gone.
pub(crate) fn left(branch: Option<&str>, saved: Option<&str>) -> Option<String> {
    let what = match (branch, saved) {
        (None, None) => return None,
        (Some(branch), None) => format!("on its branch {branch}"),
        (None, Some(saved)) => format!("under {saved}"),
        (Some(branch), Some(saved)) => format!("on its branch {branch} and under {saved}"),
    };
    Some(format!("what its base has not is kept {what}"))
}

/// What is done in a step, in a word.
pub(crate) fn work(of: &Work) -> String {
    match of {
        Work::Prepare { .. } => "prepare".to_owned(),
        Work::Agent { .. } => "agent".to_owned(),
        Work::Merge => "merge".to_owned(),
        Work::Gate { n } => gate(*n),
        Work::Land => "land".to_owned(),
        Work::Remove => "remove".to_owned(),
    }
}

/// How far a story has come in its stage, in a word.
pub(crate) fn progress(of: &Progress) -> String {
    match of {
        Progress::Fresh(_) => "fresh".to_owned(),
        Progress::Worked => "worked".to_owned(),
        Progress::Gated(n) => format!("gated {n}"),
        Progress::Landed => "landed".to_owned(),
    }
}

/// What happened to a story; none of what is not worth a line.
pub(crate) fn fact(of: &StoryFact) -> Option<String> {
    Some(match of {
        StoryFact::PipelineSet { .. } => "its pipeline is another one".to_owned(),
        StoryFact::Added { new, .. } => format!("added to {}", new.stage),
        StoryFact::Edited { .. } => "edited".to_owned(),
        StoryFact::Moved { to, done, .. } => {
            format!("somebody moved it to {to}{}", if_done(*done))
        }
        StoryFact::Advanced { to, done, .. } => format!("moved to {to}{}", if_done(*done)),
        StoryFact::Held { hold, .. } => held(hold),
        StoryFact::Unheld(_) => "goes on".to_owned(),
        StoryFact::Leaving { how, .. } => format!("to be {}", leaves(*how)),
        StoryFact::Left(_) => "is gone".to_owned(),
        StoryFact::StepBegun { work: of, .. } => {
            let who = match of {
                Work::Agent { agent, .. } => agent.to_string(),
                Work::Prepare { .. }
                | Work::Merge
                | Work::Gate { .. }
                | Work::Land
                | Work::Remove => work(of),
            };
            format!("{who} began")
        }
        StoryFact::StepStarted(_) => return None,
        StoryFact::StepRefused { wait, .. } => {
            let (_, why) = waits(wait);
            format!("{why}, {}", after(wait))
        }
        StoryFact::StepStopping(step) => format!("its run {} is being stopped", step.run()),
        StoryFact::StepEnded { then, .. } => return ended(then),
        StoryFact::StrayFound(step) => {
            format!("its run {} lives and is not its step: it is being stopped", step.run())
        }
        StoryFact::StrayEnded(step) => format!("its run {} has ended", step.run()),
        StoryFact::Paused { provider, until_ms } => paused(provider, *until_ms),
        StoryFact::Unpaused(provider) => format!("{provider} is asked again"),
    })
}

/// The stage that a fact is about: where the story goes, or what failed.
pub(crate) fn stage(of: &StoryFact) -> Option<&StageName> {
    match of {
        StoryFact::Added { new, .. } => Some(&new.stage),
        StoryFact::Moved { to, .. } | StoryFact::Advanced { to, .. } => Some(to),
        StoryFact::Held { hold, .. } => stage_held(hold),
        StoryFact::StepEnded { then, .. } => match then {
            Then::Back { to, .. } => Some(to),
            Then::Held { hold, .. } => stage_held(hold),
            Then::Same
            | Then::Went(_)
            | Then::Again { .. }
            | Then::Misfired { .. }
            | Then::BaseMoved
            | Then::Lost => None,
        },
        StoryFact::PipelineSet { .. }
        | StoryFact::Edited { .. }
        | StoryFact::Unheld(_)
        | StoryFact::Leaving { .. }
        | StoryFact::Left(_)
        | StoryFact::StepBegun { .. }
        | StoryFact::StepStarted(_)
        | StoryFact::StepRefused { .. }
        | StoryFact::StepStopping(_)
        | StoryFact::StrayFound(_)
        | StoryFact::StrayEnded(_)
        | StoryFact::Paused { .. }
        | StoryFact::Unpaused(_) => None,
    }
}

/// Why a request was refused: a word, a sentence, and what to do about it.
pub(crate) fn refusal(why: &StoryRefusal) -> (&'static str, String, Option<String>) {
    match why {
        StoryRefusal::NoPipeline(project) => (
            "no_pipeline",
            format!("project {project} has no pipeline that could be read"),
            hint("give its kennel.toml stages, and trust it"),
        ),
        StoryRefusal::BadPipeline(fault) => {
            let (message, fix) = pipeline_fault(fault);
            ("bad_pipeline", message, hint(fix))
        }
        StoryRefusal::NoSuchStory(story) => (
            "story_not_found",
            format!("project {} has no story {}", story.project, story.id),
            hint("list the stories"),
        ),
        StoryRefusal::NoSuchStage { stage, known } => (
            "stage_not_found",
            format!("there is no stage {stage}"),
            Some(format!("use one of {}", list(known))),
        ),
        StoryRefusal::NoSuchAgent { agent, known } => (
            "agent_not_found",
            format!("no stage has an agent {agent}"),
            Some(format!("use one of {}", list(known))),
        ),
        StoryRefusal::IdTaken => (
            "id_taken",
            "the id is, or was, another story's".to_owned(),
            hint("use another id: none is used twice"),
        ),
        StoryRefusal::UnknownDependency(id) => (
            "dependency_not_found",
            format!("it would depend on {id}, which is no story"),
            hint("add that one first, or leave it out"),
        ),
        StoryRefusal::Cycle(ids) => (
            "dependency_cycle",
            format!("it would wait for itself: {}", joined(ids, " -> ")),
            hint("leave one of these dependencies out"),
        ),
        StoryRefusal::Held(hold) => (
            "story_held",
            format!("it is held already: {}", held(hold)),
            hint("let it go on first"),
        ),
        StoryRefusal::Ended(stage) => (
            "story_ended",
            format!("it is in {stage}, where nothing is done that could be held"),
            hint("move it to another stage first"),
        ),
        StoryRefusal::AtCeiling(reached) => (
            "story_at_ceiling",
            format!("it may use no more: {}", blocked(reached)),
            hint("raise the ceiling first"),
        ),
        StoryRefusal::Leaving(how) => (
            "story_leaving",
            format!("it is to be {}", leaves(*how)),
            hint("wait until it is gone"),
        ),
        StoryRefusal::NeededBy(ids) => (
            "story_needed",
            format!("{} would wait for it for ever", list(ids)),
            hint("change what they depend on, or archive it instead"),
        ),
    }
}

fn pipeline_fault(fault: &PipelineFault) -> (String, &'static str) {
    match fault {
        PipelineFault::Empty => ("there is no stage".to_owned(), "give it at least one stage"),
        PipelineFault::StageTwice(name) => {
            (format!("two stages are called {name}"), "give one of them another name")
        }
        PipelineFault::AgentTwice(name) => {
            (format!("two agents are called {name}"), "give one of them another name")
        }
        PipelineFault::NoSuchAgent { stage, agent } => {
            (format!("stage {stage} names the agent {agent}, which is not there"), "add that agent")
        }
        PipelineFault::NoSuchStage { stage, to } => {
            (format!("stage {stage} leads to {to}, which is not there"), "add that stage")
        }
        PipelineFault::NoInstance(agent) => {
            (format!("no instance of agent {agent} may live"), "allow at least one")
        }
        PipelineFault::NoRun(stage) => {
            (format!("no story may have a run in stage {stage}"), "allow at least one")
        }
        PipelineFault::NeverEnds(stage) => (
            format!("whoever succeeds in stage {stage} comes by it again, for ever"),
            "have one of the stages lead to one that ends stories",
        ),
    }
}

fn stage_held(hold: &Hold) -> Option<&StageName> {
    match hold {
        Hold::Blocked(Blocked::Retries { stage, .. }) => Some(stage),
        Hold::Blocked(_) | Hold::Frozen => None,
    }
}

fn held(hold: &Hold) -> String {
    match hold {
        Hold::Blocked(why) => format!("blocked: {}", blocked(why)),
        Hold::Frozen => "frozen".to_owned(),
    }
}

/// What the end of a step meant; none if it is the next step that is worth a line.
fn ended(then: &Then) -> Option<String> {
    Some(match then {
        Then::Same => return None,
        Then::Went(Progress::Fresh(_)) => return None,
        Then::Went(Progress::Worked) => "its agent has worked on it".to_owned(),
        Then::Went(Progress::Gated(0)) => "merged with its base".to_owned(),
        Then::Went(Progress::Gated(n)) => format!("gate {n} passed"),
        Then::Went(Progress::Landed) => "landed on its base".to_owned(),
        Then::Again { wait, .. } => format!("{}; tried again {}", failed(wait), after(wait)),
        Then::Back { to, wait, .. } => {
            format!("{}; sent back to {to}, tried again {}", failed(wait), after(wait))
        }
        Then::Misfired { wait } => format!("{}, {}", waits(wait).1, after(wait)),
        Then::BaseMoved => "its base moved; it is merged again".to_owned(),
        Then::Held { hold, .. } => held(hold),
        Then::Lost => held(&Hold::Blocked(Blocked::Lost)),
    })
}

fn failed(wait: &Wait) -> String {
    match &wait.why {
        WaitFor::Retry(of) => cause(of),
        WaitFor::TurnedAway(_) | WaitFor::Misfire => waits(wait).1,
    }
}

/// What is waited for: in a word, and in a sentence.
fn waits(wait: &Wait) -> (&'static str, String) {
    match &wait.why {
        WaitFor::Retry(of) => ("retry", format!("{}; it is tried again", cause(of))),
        // Nothing but a person helps that, unlike the others.
        WaitFor::TurnedAway(TurnedAway::Unconfigured) => {
            ("unconfigured", "its configuration cannot be used now".to_owned())
        }
        WaitFor::TurnedAway(why) => {
            let why = match why {
                TurnedAway::SlotTaken => "its slot is taken",
                TurnedAway::WorktreeInUse => "another run works in its worktree",
                TurnedAway::HostFull => "the host holds as many runs as it can",
                TurnedAway::ShuttingDown => "the daemon is leaving",
                TurnedAway::Unconfigured => "its configuration cannot be used now",
            };
            ("refused", format!("{why}; it is asked for again"))
        }
        WaitFor::Misfire => ("misfire", "it came to nothing; it is tried again".to_owned()),
    }
}

fn paused(provider: &impl Display, until_ms: u64) -> String {
    format!("{provider} takes no more until {}", Time(until_ms))
}

fn leaves(how: Leave) -> &'static str {
    match how {
        Leave::Archive => "archived",
        Leave::Remove => "removed",
    }
}

fn if_done(done: bool) -> &'static str {
    if done { ": it is done" } else { "" }
}

/// People count from 1 on.
fn gate(n: u32) -> String {
    format!("gate {}", n.saturating_add(1))
}

fn times(n: u32) -> String {
    match n {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

fn dollars(micros: u64) -> String {
    format!("${}.{:02}", micros / 1_000_000, micros / 10_000 % 100)
}

/// How long a wait is, in the largest unit in which it is no less than 2.
fn after(wait: &Wait) -> String {
    match wait.for_ms {
        ms @ 0..2_000 => format!("in {ms} ms"),
        ms @ 2_000..120_000 => format!("in {} s", ms / 1000),
        ms @ 120_000..7_200_000 => format!("in {} min", ms / 60_000),
        ms => format!("in {} h", ms / 3_600_000),
    }
}

fn list(names: &[impl Display]) -> String {
    joined(names, ", ")
}

fn joined(names: &[impl Display], between: &str) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

fn hint(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::story_format::tests::every_fact;
    use kennel_supervisor::story::{StepId, StoryRef};

    fn wait(for_ms: u64, why: WaitFor) -> Wait {
        Wait { since_ms: 1000, for_ms, why }
    }

    #[test]
    fn every_reason_has_its_word() {
        let story = StoryRef::new(&"shop".into(), &"7".into());
        let until = 1_800_000_000_000;
        for (reason, code, sentence, until_ms) in [
            (Reason::Ended, "ended", "it is in a stage that ends it", None),
            (Reason::WaitsForMove, "move", "somebody has to move it on", None),
            (
                Reason::StageGone("qa".into()),
                "stage_gone",
                "its stage qa is not in the pipeline any more: move it",
                None,
            ),
            (Reason::Held(Hold::Frozen), "held", "frozen", None),
            (
                Reason::Held(Hold::Blocked(Blocked::Drifted)),
                "held",
                "blocked: its run changed the main checkout",
                None,
            ),
            (
                Reason::DependsOn(vec!["5".into(), "6".into()]),
                "dependencies",
                "waits for 5, 6",
                None,
            ),
            (
                Reason::Stray(StepId { story, number: 3 }),
                "stray",
                "its run shop_7_3 has not ended",
                None,
            ),
            (
                Reason::Waits(wait(10, WaitFor::Retry(Cause::Gate(0)))),
                "retry",
                "gate 1 failed; it is tried again",
                Some(1010),
            ),
            (
                Reason::Waits(wait(10, WaitFor::TurnedAway(TurnedAway::HostFull))),
                "refused",
                "the host holds as many runs as it can; it is asked for again",
                Some(1010),
            ),
            (
                Reason::Waits(wait(10, WaitFor::Misfire)),
                "misfire",
                "it came to nothing; it is tried again",
                Some(1010),
            ),
            (
                Reason::StageFull { max: 2 },
                "stage_full",
                "its stage has as many runs as it may: 2",
                None,
            ),
            (Reason::AgentsBusy, "agents_busy", "all agents of its stage are busy", None),
            (
                Reason::Paused { provider: "anthropic".into(), until_ms: until },
                "paused",
                "anthropic takes no more until 2027-01-15T08:00:00.000Z",
                Some(until),
            ),
            (Reason::Ready, "ready", "nothing is against it any more", None),
        ] {
            assert_eq!(super::reason(&reason), (code, sentence.to_owned(), until_ms));
        }
    }

    #[test]
    fn what_blocks_a_story_is_said_with_its_numbers() {
        let stage = || "qa".into();
        let ceiling = |of| Blocked::Ceiling { of, used: 5_040_000, max: 4 };
        for (why, text) in [
            (
                Blocked::Retries { stage: stage(), max: 1, cause: Cause::Gate(1) },
                "stage qa was tried again once and failed again: gate 2 failed",
            ),
            (
                Blocked::Retries { stage: stage(), max: 3, cause: Cause::Agent },
                "stage qa was tried again 3 times and failed again: the agent failed",
            ),
            (ceiling(Ceiling::Money), "its runs used $5.04 of $0.00"),
            (ceiling(Ceiling::Turns), "its runs used 5040000 of 4 tool turns"),
            (Blocked::NeverStarts { tries: 5 }, "its run could not be started, 5 times in a row"),
        ] {
            assert_eq!(blocked(&why), text);
        }
    }

    #[test]
    fn history_is_told_in_sentences() {
        let told: Vec<String> = every_fact().iter().filter_map(fact).collect();
        for wanted in [
            "added to coding",
            "somebody moved it to qa",
            "moved to done: it is done",
            "coder began",
            "prepare began",
            "gate 1 began",
            "gate 1 failed; tried again in 10 s",
            "gate 1 failed; sent back to coding, tried again in 10 s",
            "gate 2 passed",
            "its slot is taken; it is asked for again, in 10 s",
            "blocked: nobody can say whether its run is over",
            "frozen",
            "to be archived",
            "is gone",
        ] {
            assert!(told.iter().any(|text| text == wanted), "{wanted}: {told:#?}");
        }
        for text in told {
            let last = text.chars().last();
            assert!(last.is_some_and(|c| c.is_alphanumeric() || c == ')'), "{text}");
        }
    }

    #[test]
    fn a_wait_is_said_in_a_fitting_unit() {
        for (ms, text) in [
            (0, "in 0 ms"),
            (1_999, "in 1999 ms"),
            (10_000, "in 10 s"),
            (300_000, "in 5 min"),
            (7_200_000, "in 2 h"),
        ] {
            assert_eq!(after(&wait(ms, WaitFor::Misfire)), text);
        }
    }

    #[test]
    fn every_refusal_names_the_thing_and_the_fix() {
        let story = StoryRef::new(&"shop".into(), &"7".into());
        let stages = vec!["do".into(), "qa".into()];
        let fault = PipelineFault::NoSuchStage { stage: "do".into(), to: "up".into() };
        for (why, code, named) in [
            (StoryRefusal::NoPipeline("shop".into()), "no_pipeline", "shop"),
            (StoryRefusal::BadPipeline(fault), "bad_pipeline", "up"),
            (StoryRefusal::NoSuchStory(story), "story_not_found", "7"),
            (
                StoryRefusal::NoSuchStage { stage: "up".into(), known: stages },
                "stage_not_found",
                "do, qa",
            ),
            (
                StoryRefusal::NoSuchAgent { agent: "me".into(), known: vec![] },
                "agent_not_found",
                "me",
            ),
            (StoryRefusal::IdTaken, "id_taken", "id"),
            (StoryRefusal::UnknownDependency("5".into()), "dependency_not_found", "5"),
            (
                StoryRefusal::Cycle(vec!["1".into(), "2".into(), "1".into()]),
                "dependency_cycle",
                "1 -> 2 -> 1",
            ),
            (StoryRefusal::Held(Hold::Frozen), "story_held", "frozen"),
            (StoryRefusal::Ended("done".into()), "story_ended", "done"),
            (StoryRefusal::AtCeiling(Blocked::ByUser), "story_at_ceiling", "somebody"),
            (StoryRefusal::Leaving(Leave::Remove), "story_leaving", "removed"),
            (StoryRefusal::NeededBy(vec!["8".into()]), "story_needed", "8"),
        ] {
            let (said, message, fix) = refusal(&why);
            let fix = fix.unwrap_or_default();
            assert_eq!(said, code);
            assert!(message.contains(named) || fix.contains(named), "{message} ({fix})");
            assert!(!fix.is_empty(), "{code}");
        }
    }
}
