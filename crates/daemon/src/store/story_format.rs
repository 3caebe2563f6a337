//! The words of stories' facts on disk. Owns them and their conversions, both made from one list,
//! so that neither forgets a variant or a field; the mind's own types may change without changing
//! them. Never says what a fact means.

use std::collections::BTreeSet;
use std::sync::Arc;

use kennel_supervisor::story as mind;
use serde::{Deserialize, Deserializer, Serialize};

/// What stands on disk for something of the mind's, or the other way round.
trait Mirror<T> {
    fn mirror(&self) -> T;
}

/// Enums of the same shape as the mind's of the same name.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident {$(
        $variant:ident $({ $($field:ident: $ty:ty),* $(,)? })? $(( $($part:ident: $of:ty),* ))?,
    )*})*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($variant $({ $($field: $ty),* })? $(( $($of),* ))?,)*
        }

        impl Mirror<$name> for mind::$name {
            fn mirror(&self) -> $name {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        $name::$variant
                            $({ $($field: $field.mirror()),* })? $(( $($part.mirror()),* ))?
                    })*
                }
            }
        }

        impl Mirror<mind::$name> for $name {
            fn mirror(&self) -> mind::$name {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($part),* ))? => {
                        mind::$name::$variant
                            $({ $($field: $field.mirror()),* })? $(( $($part.mirror()),* ))?
                    })*
                }
            }
        }
    )*};
}

/// Structs of the same shape as the mind's of the same name.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$how:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) struct $name {
            $($(#[$how])* pub(crate) $field: $ty,)*
        }

        impl Mirror<$name> for mind::$name {
            fn mirror(&self) -> $name {
                let Self { $($field),* } = self;
                $name { $($field: $field.mirror()),* }
            }
        }

        impl Mirror<mind::$name> for $name {
            fn mirror(&self) -> mind::$name {
                let Self { $($field),* } = self;
                mind::$name { $($field: $field.mirror()),* }
            }
        }
    )*};
}

enums! {
    /// A fact of stories as it is written.
    StoryFact {
        PipelineSet { project: String, pipeline: Pipeline },
        Added { story: StoryRef, new: NewStory, done: bool },
        Edited { story: StoryRef, edit: Edit },
        Moved { story: StoryRef, to: String, done: bool },
        Advanced { story: StoryRef, to: String, done: bool },
        Held { story: StoryRef, hold: Hold },
        Unheld(story: StoryRef),
        Leaving { story: StoryRef, how: Leave },
        Left(story: StoryRef),
        StepBegun { step: StepId, work: Work },
        StepStarted(step: StepId),
        StepRefused { step: StepId, wait: Wait },
        StepStopping(step: StepId),
        StepEnded { step: StepId, used: Used, session: Option<String>, tree: Tree, then: Then },
        StrayFound(step: StepId),
        StrayEnded(step: StepId),
        Paused { provider: String, until_ms: u64 },
        Unpaused(provider: String),
    }
    Then {
        Same,
        Went(progress: Progress),
        Again { progress: Progress, wait: Wait },
        Back { to: String, why: Why, wait: Wait },
        Misfired { wait: Wait },
        BaseMoved,
        Held { hold: Hold, progress: Progress },
        Lost,
    }
    Progress {
        Fresh(why: Why),
        Worked,
        Gated(gates: u32),
        Landed,
    }
    Why {
        First,
        Retry(tail: Option<String>),
        Conflict(tail: Option<String>),
    }
    Hold {
        Blocked(why: Blocked),
        Frozen,
    }
    Blocked {
        ByUser,
        Retries { stage: String, max: u32, cause: Cause },
        Ceiling { of: Ceiling, used: u64, max: u64 },
        NeverStarts { tries: u32 },
        Lost,
        Drifted,
        BaseMoves { times: u32 },
        Conflict,
        TreeStays,
    }
    Cause {
        Agent,
        Limit,
        Gate(n: u32),
        Prepare,
        Merge,
        Conflict,
        Land,
    }
    Ceiling {
        Turns,
        Money,
        Retries,
    }
    Leave {
        Archive,
        Remove,
    }
    WaitFor {
        Retry(cause: Cause),
        TurnedAway(why: TurnedAway),
        Misfire,
    }
    TurnedAway {
        SlotTaken,
        WorktreeInUse,
        HostFull,
        ShuttingDown,
        Unconfigured,
    }
    Tree {
        None,
        Unsettled,
        Ready,
    }
    Work {
        Prepare { agent: Option<(String, u32)> },
        Agent {
            agent: String,
            instance: u32,
            model: String,
            session: Option<String>,
            why: Why,
        },
        Merge,
        Gate { n: u32 },
        Land,
        Remove,
    }
    StageKind {
        Work(rule: WorkRule),
        Hold,
        Terminal { success: bool },
    }
    Role {
        Coder,
        Qa,
        Merge,
        Other,
    }
}

structs! {
    StoryRef {
        project: String,
        id: String,
    }
    StepId {
        story: StoryRef,
        number: u32,
    }
    NewStory {
        stage: String,
        pinned: Option<String>,
        depends_on: BTreeSet<String>,
        priority: i32,
        ceilings: Ceilings,
    }
    Edit {
        /// Left out: it stays; `null`: nobody in particular.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "said")]
        pinned: Option<Option<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        depends_on: Option<BTreeSet<String>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ceilings: Option<Ceilings>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words: Option<String>,
    }
    Ceilings {
        turns: Option<u64>,
        money_micros: Option<u64>,
        retries: Option<u32>,
    }
    Used {
        turns: u64,
        money_micros: u64,
    }
    Wait {
        since_ms: u64,
        for_ms: u64,
        why: WaitFor,
    }
    Pipeline {
        stages: Vec<Stage>,
        agents: Vec<AgentRule>,
        max_retries: u32,
        back_off: BackOff,
    }
    Stage {
        name: String,
        kind: StageKind,
    }
    WorkRule {
        agents: Vec<String>,
        gates: u32,
        merge: bool,
        next: String,
        on_failure: Option<String>,
        max_runs: Option<u32>,
    }
    AgentRule {
        name: String,
        role: Role,
        max_instances: u32,
        provider: String,
        model: String,
        resumes: bool,
    }
    BackOff {
        first_ms: u64,
        most_ms: u64,
    }
}

impl StoryFact {
    /// The fact as the mind of stories knows it.
    pub(crate) fn of(&self) -> mind::StoryFact {
        self.mirror()
    }
}

impl From<&mind::StoryFact> for StoryFact {
    fn from(fact: &mind::StoryFact) -> Self {
        fact.mirror()
    }
}

/// Whose a fact is: `PROJECT/ID` for one of a story, `PROJECT/` for a pipeline, `/` for a
/// provider's pause, which is no project's.
pub(crate) fn place(fact: &mind::StoryFact) -> String {
    match (fact, fact.story()) {
        (_, Some(story)) => story.to_string(),
        (mind::StoryFact::PipelineSet { project, .. }, None) => format!("{project}/"),
        (_, None) => "/".to_owned(),
    }
}

/// The step a fact is about, if it is about one.
pub(crate) fn step_of(fact: &mind::StoryFact) -> Option<&mind::StepId> {
    use mind::StoryFact as F;
    match fact {
        F::StepBegun { step, .. }
        | F::StepStarted(step)
        | F::StepRefused { step, .. }
        | F::StepStopping(step)
        | F::StepEnded { step, .. }
        | F::StrayFound(step)
        | F::StrayEnded(step) => Some(step),
        F::PipelineSet { .. }
        | F::Added { .. }
        | F::Edited { .. }
        | F::Moved { .. }
        | F::Advanced { .. }
        | F::Held { .. }
        | F::Unheld(_)
        | F::Leaving { .. }
        | F::Left(_)
        | F::Paused { .. }
        | F::Unpaused(_) => None,
    }
}

/// A `null` that is there is something said.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

macro_rules! plain {
    ($($ty:ty)*) => {$(
        impl Mirror<$ty> for $ty {
            fn mirror(&self) -> $ty {
                *self
            }
        }
    )*};
}

plain! { bool u32 u64 i32 }

macro_rules! names {
    ($($name:ident)*) => {$(
        impl Mirror<String> for mind::$name {
            fn mirror(&self) -> String {
                self.as_str().to_owned()
            }
        }

        impl Mirror<mind::$name> for String {
            fn mirror(&self) -> mind::$name {
                self.as_str().into()
            }
        }
    )*};
}

names! { ProjectKey StoryId StageName AgentName Model Provider Session Tail Words }

impl<A: Mirror<B>, B> Mirror<Option<B>> for Option<A> {
    fn mirror(&self) -> Option<B> {
        self.as_ref().map(Mirror::mirror)
    }
}

impl<A: Mirror<B>, B> Mirror<Vec<B>> for Vec<A> {
    fn mirror(&self) -> Vec<B> {
        self.iter().map(Mirror::mirror).collect()
    }
}

impl<A: Mirror<B>, B: Ord> Mirror<BTreeSet<B>> for BTreeSet<A> {
    fn mirror(&self) -> BTreeSet<B> {
        self.iter().map(Mirror::mirror).collect()
    }
}

impl<A: Mirror<B>, B, C: Mirror<D>, D> Mirror<(B, D)> for (A, C) {
    fn mirror(&self) -> (B, D) {
        (self.0.mirror(), self.1.mirror())
    }
}

impl Mirror<Pipeline> for Arc<mind::Pipeline> {
    fn mirror(&self) -> Pipeline {
        (**self).mirror()
    }
}

impl Mirror<Arc<mind::Pipeline>> for Pipeline {
    fn mirror(&self) -> Arc<mind::Pipeline> {
        Arc::new(self.mirror())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::format::Fact;
    use mind::StoryFact as F;

    fn story() -> mind::StoryRef {
        mind::StoryRef::new(&"shop".into(), &"7".into())
    }

    fn step() -> mind::StepId {
        mind::StepId { story: story(), number: 3 }
    }

    fn wait(why: mind::WaitFor) -> mind::Wait {
        mind::Wait { since_ms: 1_800_000_000_000, for_ms: 10_000, why }
    }

    fn pipeline() -> mind::Pipeline {
        use mind::{AgentRule, Role, Stage, StageKind, WorkRule};
        let agent = |role, name: &str| AgentRule {
            name: name.into(),
            role,
            max_instances: 2,
            provider: "anthropic".into(),
            model: "opus".into(),
            resumes: role == Role::Coder,
        };
        let rule = WorkRule {
            agents: vec!["coder".into()],
            gates: 2,
            merge: true,
            next: "shelf".into(),
            on_failure: Some("coding".into()),
            max_runs: Some(4),
        };
        let bare = WorkRule { on_failure: None, max_runs: None, ..rule.clone() };
        let stage = |name: &str, kind| Stage { name: name.into(), kind };
        mind::Pipeline {
            stages: vec![
                stage("coding", StageKind::Work(rule)),
                stage("qa", StageKind::Work(bare)),
                stage("shelf", StageKind::Hold),
                stage("done", StageKind::Terminal { success: true }),
            ],
            agents: vec![
                agent(Role::Coder, "coder"),
                agent(Role::Qa, "qa"),
                agent(Role::Merge, "merger"),
                agent(Role::Other, "other"),
            ],
            max_retries: 3,
            back_off: mind::BackOff { first_ms: 10_000, most_ms: 600_000 },
        }
    }

    fn edits() -> Vec<mind::Edit> {
        let ceilings = mind::Ceilings { turns: Some(9), money_micros: None, retries: Some(2) };
        vec![
            mind::Edit::default(),
            mind::Edit { pinned: Some(None), ..Default::default() },
            mind::Edit {
                pinned: Some(Some("coder".into())),
                depends_on: Some(["6".into()].into()),
                priority: Some(-1),
                ceilings: Some(ceilings),
                words: Some("w2".into()),
            },
        ]
    }

    fn causes() -> [mind::Cause; 7] {
        use mind::Cause::{Agent, Conflict, Gate, Land, Limit, Merge, Prepare};
        [Agent, Limit, Gate(0), Prepare, Merge, Conflict, Land]
    }

    fn holds() -> Vec<mind::Hold> {
        use mind::{Blocked, Ceiling};
        let stage = || "qa".into();
        let retries = causes().map(|cause| Blocked::Retries { stage: stage(), max: 3, cause });
        let ceilings = [Ceiling::Turns, Ceiling::Money, Ceiling::Retries];
        let ceilings = ceilings.map(|of| Blocked::Ceiling { of, used: 5, max: 4 });
        let others = [
            Blocked::ByUser,
            Blocked::NeverStarts { tries: 5 },
            Blocked::Lost,
            Blocked::Drifted,
            Blocked::BaseMoves { times: 5 },
            Blocked::Conflict,
            Blocked::TreeStays,
        ];
        let blocked = retries.into_iter().chain(ceilings).chain(others).map(mind::Hold::Blocked);
        blocked.chain([mind::Hold::Frozen]).collect()
    }

    fn waits() -> Vec<mind::Wait> {
        use mind::{TurnedAway, WaitFor};
        let away = [
            TurnedAway::SlotTaken,
            TurnedAway::WorktreeInUse,
            TurnedAway::HostFull,
            TurnedAway::ShuttingDown,
            TurnedAway::Unconfigured,
        ];
        let away = away.map(WaitFor::TurnedAway);
        let retries = causes().map(WaitFor::Retry);
        away.into_iter().chain(retries).chain([WaitFor::Misfire]).map(wait).collect()
    }

    fn whys() -> [mind::Why; 4] {
        use mind::Why::{Conflict, First, Retry};
        [First, Retry(None), Retry(Some("t1".into())), Conflict(Some("t2".into()))]
    }

    fn progresses() -> Vec<mind::Progress> {
        use mind::Progress::{Fresh, Gated, Landed, Worked};
        whys().map(Fresh).into_iter().chain([Worked, Gated(0), Gated(2), Landed]).collect()
    }

    fn works() -> Vec<mind::Work> {
        use mind::Work::{Agent, Gate, Land, Merge, Prepare, Remove};
        let agents = whys().map(|why| Agent {
            agent: "coder".into(),
            instance: 1,
            model: "opus".into(),
            session: (why == mind::Why::First).then(|| "s1".into()),
            why,
        });
        let prepares = [None, Some(("coder".into(), 1))].map(|agent| Prepare { agent });
        let others = [Merge, Gate { n: 0 }, Land, Remove];
        agents.into_iter().chain(prepares).chain(others).collect()
    }

    fn thens() -> Vec<mind::Then> {
        use mind::Then::{Again, Back, BaseMoved, Held, Lost, Misfired, Same, Went};
        let progress = || mind::Progress::Worked;
        let mut thens = vec![Same, BaseMoved, Lost];
        thens.extend(progresses().into_iter().map(Went));
        thens.extend(waits().into_iter().map(|wait| Again { progress: progress(), wait }));
        thens.extend(whys().map(|why| {
            let wait = wait(mind::WaitFor::Retry(mind::Cause::Gate(0)));
            Back { to: "coding".into(), why, wait }
        }));
        thens.push(Misfired { wait: wait(mind::WaitFor::Misfire) });
        thens.extend(holds().into_iter().map(|hold| Held { hold, progress: progress() }));
        thens
    }

    /// Facts that together have every variant of everything in them.
    pub(crate) fn every_fact() -> Vec<F> {
        let new = mind::NewStory {
            stage: "coding".into(),
            pinned: Some("coder".into()),
            depends_on: ["5".into(), "6".into()].into(),
            priority: 2,
            ceilings: mind::Ceilings { turns: None, money_micros: Some(5_000_000), retries: None },
        };
        let bare = mind::NewStory { pinned: None, depends_on: [].into(), ..new.clone() };
        let (project, provider) = (story().project, mind::Provider::from("anthropic"));
        let mut facts = vec![
            F::PipelineSet { project, pipeline: Arc::new(pipeline()) },
            F::Added { story: story(), new, done: false },
            F::Added { story: story(), new: bare, done: true },
            F::Moved { story: story(), to: "qa".into(), done: false },
            F::Advanced { story: story(), to: "done".into(), done: true },
            F::Unheld(story()),
            F::Leaving { story: story(), how: mind::Leave::Archive },
            F::Leaving { story: story(), how: mind::Leave::Remove },
            F::Left(story()),
            F::StepStarted(step()),
            F::StepStopping(step()),
            F::StrayFound(step()),
            F::StrayEnded(step()),
            F::Paused { provider: provider.clone(), until_ms: 1_800_000_000_000 },
            F::Unpaused(provider),
        ];
        facts.extend(edits().into_iter().map(|edit| F::Edited { story: story(), edit }));
        facts.extend(holds().into_iter().map(|hold| F::Held { story: story(), hold }));
        facts.extend(works().into_iter().map(|work| F::StepBegun { step: step(), work }));
        facts.extend(waits().into_iter().map(|wait| F::StepRefused { step: step(), wait }));
        let trees = [mind::Tree::None, mind::Tree::Unsettled, mind::Tree::Ready];
        facts.extend(thens().into_iter().zip(trees.into_iter().cycle()).map(|(then, tree)| {
            let used = mind::Used { turns: 4, money_micros: 120_000 };
            let session = (tree == mind::Tree::Ready).then(|| "s1".into());
            F::StepEnded { step: step(), used, session, tree, then }
        }));
        facts
    }

    #[test]
    fn every_fact_comes_back_as_it_was() {
        for fact in every_fact() {
            let text = serde_json::to_string(&Fact::Story(Box::new((&fact).into()))).unwrap();
            let Fact::Story(kept) = serde_json::from_str(&text).unwrap() else {
                panic!("{text} is no fact of stories")
            };
            assert_eq!(kept.of(), fact, "{text}");
        }
    }

    /// Every word for a variant; one that is missing here has no sample above.
    const WORDS: &str = "pipeline_set added edited moved advanced held unheld leaving left \
        step_begun step_started step_refused step_stopping step_ended stray_found stray_ended \
        paused unpaused same went again back misfired base_moved lost fresh worked gated landed \
        first retry conflict blocked frozen by_user retries ceiling never_starts drifted \
        base_moves tree_stays agent limit gate prepare merge land turns money archive remove \
        turned_away misfire slot_taken worktree_in_use host_full shutting_down unconfigured none \
        unsettled ready work hold terminal coder qa other";

    fn words_in(value: &serde_json::Value, words: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::String(word) => drop(words.insert(word.clone())),
            serde_json::Value::Array(all) => all.iter().for_each(|one| words_in(one, words)),
            serde_json::Value::Object(all) => all.iter().for_each(|(word, one)| {
                words.insert(word.clone());
                words_in(one, words);
            }),
            serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {
            }
        }
    }

    #[test]
    fn the_samples_have_every_variant() {
        let mut words = BTreeSet::new();
        for fact in every_fact() {
            words_in(&serde_json::to_value(StoryFact::from(&fact)).unwrap(), &mut words);
        }
        let missing: Vec<&str> =
            WORDS.split_whitespace().filter(|word| !words.contains(*word)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn a_fact_says_whose_it_is() {
        for fact in every_fact() {
            let of_project = matches!(fact, F::PipelineSet { .. });
            let place = match fact.story() {
                Some(_) => "shop/7",
                None if of_project => "shop/",
                None => "/",
            };
            assert_eq!(super::place(&fact), place, "{fact:?}");
            let run = step_of(&fact).map(|step| step.run().as_str().to_owned());
            assert!(run.is_none_or(|run| run == "shop_7_3"), "{fact:?}");
        }
    }

    /// The first version of the facts of stories, word for word. Never change these; add new ones.
    #[test]
    fn version_one_is_read_for_ever() {
        for text in include_str!("story_facts_1.jsonl").lines() {
            let fact = serde_json::from_str::<StoryFact>(text).unwrap().of();
            assert_eq!(serde_json::to_string(&StoryFact::from(&fact)).unwrap(), text);
        }
    }
}
