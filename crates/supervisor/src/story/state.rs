//! Stories as they are believed to be. Owns the shapes; only `apply` changes them.
//!
//! ```text
//! a step:  Asked -> Alive -> (its end told with proof: forgotten)
//!            |        |  \
//!            +--------+---+--> Stopping -> (the same)
//!            +--------+-------> Lost (the story waits; a proof may come yet)
//!            +--> (refused: forgotten, tried again later)
//! ```
//!
//! Projects and stories are shared between copies: a copy of everything costs an entry for each
//! project, and a change of one story one for each of its project.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;

use super::decide::PAUSE_MOST_MS;
use super::event::TurnedAway;
use super::names::{
    AgentName, Model, ProjectKey, Provider, Session, StageName, StepId, StoryId, StoryRef, Tail,
    Words,
};
use super::notice::StoryKind;
use super::pipeline::Pipeline;

/// All that is believed of stories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stories {
    pub(super) projects: BTreeMap<ProjectKey, Arc<Project>>,
    /// Runs of steps that are no story's any more and were seen alive: each is being stopped.
    pub(super) strays: BTreeSet<StepId>,
    pub(super) pauses: BTreeMap<Provider, Pause>,
}

/// What was believed before facts, to go back to if they are not taken.
#[derive(Clone, Debug)]
pub struct Before(Stories);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Project {
    /// The last good one.
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) stories: BTreeMap<StoryId, Arc<Story>>,
    /// Ids that were somebody's and are nobody's again: runs are named by them.
    pub(super) gone: BTreeMap<StoryId, Gone>,
    /// How many stories were ever added: who is older has the lower number.
    pub(super) added: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pause {
    /// When it is over; none if somebody ended it.
    pub(super) until_ms: Option<u64>,
    pub(super) told: u32,
}

/// What became of a story that is no longer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Put away.
    Archived {
        /// True if it was done: who depends on it may go on.
        done: bool,
    },
    /// Thrown away.
    Removed,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// Its age: the lower, the older.
    pub added: u64,
    /// How far it has come.
    pub stage: StageName,
    /// How many stages it entered: a step of an earlier entry says nothing about this one.
    pub entry: u32,
    /// How far it has come in its stage.
    pub progress: Progress,
    /// True since it reached a stage that ends it well.
    pub done: bool,
    /// Why nothing is done for it until somebody says so.
    pub hold: Option<Hold>,
    /// It is to go, and how.
    pub leaving: Option<Leave>,
    /// Who works on it if it can.
    pub pinned: Option<AgentName>,
    /// What has to be done before.
    pub depends_on: BTreeSet<StoryId>,
    /// The higher, the sooner.
    pub priority: i32,
    /// What all its runs together may use.
    pub ceilings: Ceilings,
    /// Its title and text, if they are not the first ones.
    pub words: Option<Words>,
    /// What they have used.
    pub used: Used,
    /// Retries since somebody last looked at it, by stage. Going on does not clear them, so that
    /// two stages cannot send it to and fro for ever.
    pub retries: BTreeMap<StageName, u32>,
    /// Retries in all its life.
    pub retries_used: u32,
    /// Starts in a row that came to nothing.
    pub misfires: u32,
    /// Refusals in a row.
    pub turned_away: u32,
    /// How often its base had moved when it was to land, since it entered its stage.
    pub base_moved: u32,
    /// Until when nothing is tried.
    pub wait: Option<Wait>,
    /// What to go on in, by agent and model.
    pub sessions: BTreeMap<(AgentName, Model), Session>,
    /// What is known of its worktree.
    pub tree: Tree,
    /// What is being done for it.
    pub step: Option<Step>,
    /// How many steps it had.
    pub steps: u32,
    /// How many of each kind were told.
    pub(super) told: BTreeMap<StoryKind, u32>,
}

/// How far a story has come in its stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// An agent is to work on it.
    Fresh(Why),
    /// One has.
    Worked,
    /// It is merged, where that is done, and so many gates were passed.
    Gated(u32),
    /// It is on its base.
    Landed,
}

/// What an agent is to be told beside the story itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing: it is the first.
    First,
    /// What failed.
    Retry(Option<Tail>),
    /// That it does not fit its base any more, and where.
    Conflict(Option<Tail>),
}

/// Why nothing is done for a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Something has to be looked at.
    Blocked(Blocked),
    /// Somebody wants it so, or stopped its run: a stop is not answered by a start.
    Frozen,
}

/// What has to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Somebody said so.
    ByUser,
    /// A stage failed too often.
    Retries {
        /// Which.
        stage: StageName,
        /// So often it was tried again.
        max: u32,
        /// What failed last.
        cause: Cause,
    },
    /// Its runs used all they may.
    Ceiling {
        /// Of what.
        of: Ceiling,
        /// So much.
        used: u64,
        /// Of so much.
        max: u64,
    },
    /// Its run could not be started, again and again.
    NeverStarts {
        /// So often.
        tries: u32,
    },
    /// Nobody can say whether its run is over.
    Lost,
    /// Its run changed the main checkout.
    Drifted,
    /// Its base moved whenever it was to land.
    BaseMoves {
        /// So often.
        times: u32,
    },
    /// It conflicts with its base, and no stage has somebody who writes.
    Conflict,
    /// Its worktree could not be removed.
    TreeStays,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The agent.
    Agent,
    /// A limit ended the run.
    Limit,
    /// The gate of this number, from 0 on.
    Gate(u32),
    /// The worktree.
    Prepare,
    /// The merge, without a conflict.
    Merge,
    /// It conflicts with its base.
    Conflict,
    /// The landing.
    Land,
}

/// What is bounded for all runs of a story together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// Turns that use a tool.
    Turns,
    /// Millionths of a dollar.
    Money,
    /// Retries.
    Retries,
}

/// What all runs of a story together may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Turns that use a tool.
    pub turns: Option<u64>,
    /// Millionths of a dollar.
    pub money_micros: Option<u64>,
    /// Retries.
    pub retries: Option<u32>,
}

/// What runs used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Turns that use a tool.
    pub turns: u64,
    /// Millionths of a dollar.
    pub money_micros: u64,
}

/// What a run may use before its story is at a ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Turns that use a tool.
    pub turns: Option<u64>,
    /// Millionths of a dollar.
    pub money_micros: Option<u64>,
}

/// How a story goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Put away, and remembered as done or not.
    Archive,
    /// Thrown away.
    Remove,
}

/// A time during which nothing is tried. If the clock is before its beginning, it was set back,
/// and the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// From when.
    pub since_ms: u64,
    /// How long.
    pub for_ms: u64,
    /// What for.
    pub why: WaitFor,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// To try again what failed.
    Retry(Cause),
    /// To ask again after a refusal.
    TurnedAway(TurnedAway),
    /// To begin again what came to nothing.
    Misfire,
}

/// What is known of a worktree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// There is none.
    None,
    /// It is being made or removed, or that failed: there may be some of it.
    Unsettled,
    /// It can be worked in.
    Ready,
}

/// Something done for a story: one owned run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The how many-th of its story.
    pub number: u32,
    /// The stage it is done for.
    pub stage: StageName,
    /// The story's entry into that stage.
    pub entry: u32,
    /// What is done.
    pub work: Work,
    /// Where its run stands, as far as we were told.
    pub phase: StepPhase,
    /// What was added to the story for it already.
    pub(super) counted: Used,
}

/// What is done in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// The worktree is made and set up, for an agent if one is to work in it.
    Prepare {
        /// Whom it is kept for meanwhile, and which of its instances.
        agent: Option<(AgentName, u32)>,
    },
    /// An agent works.
    Agent {
        /// Who.
        agent: AgentName,
        /// Which of its instances, from 1 on.
        instance: u32,
        /// With which model.
        model: Model,
        /// What it goes on in.
        session: Option<Session>,
        /// What it is told.
        why: Why,
    },
    /// The base is merged into the worktree.
    Merge,
    /// A command has to succeed.
    Gate {
        /// Which, from 0 on.
        n: u32,
    },
    /// The base is moved to the story's head, if it is where it was merged.
    Land,
    /// The worktree is removed; what is not merged is saved first.
    Remove,
}

/// Where a step's run stands, as far as we were told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// It is to be started.
    Asked,
    /// It was.
    Alive,
    /// It is to end, because we want it to.
    Stopping,
    /// Nobody can say whether it is over.
    Lost {
        /// True if it was to end, because we wanted it to.
        stopping: bool,
    },
}

impl Stories {
    /// What is believed now, before facts are applied that the store may not take.
    #[must_use]
    pub fn before(&self) -> Before {
        Before(self.clone())
    }

    /// Goes back to what was believed: the facts applied since were not taken.
    pub fn undo(&mut self, before: Before) {
        *self = before.0;
    }

    /// The story of this name, unless it is gone.
    #[must_use]
    pub fn story(&self, story: &StoryRef) -> Option<&Story> {
        Some(self.projects.get(&story.project)?.stories.get(&story.id)?)
    }

    /// Every story of a project, by its id.
    pub fn stories(&self, project: &ProjectKey) -> impl Iterator<Item = (&StoryId, &Story)> {
        let known = self.projects.get(project).into_iter();
        known.flat_map(|project| &project.stories).map(|(id, story)| (id, &**story))
    }

    /// Every project that has a pipeline.
    pub fn projects(&self) -> impl Iterator<Item = &ProjectKey> {
        self.projects.keys()
    }

    /// The last good pipeline of a project.
    #[must_use]
    pub fn pipeline(&self, project: &ProjectKey) -> Option<&Pipeline> {
        self.projects.get(project).map(|known| &*known.pipeline)
    }

    /// What became of a story that is gone.
    #[must_use]
    pub fn gone(&self, story: &StoryRef) -> Option<Gone> {
        self.projects.get(&story.project)?.gone.get(&story.id).copied()
    }

    /// Until when a provider is paused, if it is. A pause longer than any is one that the clock was
    /// set back from, and over.
    #[must_use]
    pub fn paused_until(&self, provider: &Provider, now_ms: u64) -> Option<u64> {
        let latest = now_ms.saturating_add(PAUSE_MOST_MS);
        self.pauses.get(provider)?.until_ms.filter(|until| now_ms < *until && *until <= latest)
    }

    /// Runs that are no story's step any more and are being stopped.
    pub fn strays(&self) -> impl Iterator<Item = &StepId> {
        self.strays.iter()
    }

    /// Runs of a story that are not its step and were seen alive, by their number.
    pub(super) fn strays_of(&self, story: &StoryRef) -> impl DoubleEndedIterator<Item = &StepId> {
        self.strays.range(story.step(0)..=story.step(u32::MAX))
    }

    /// The step of this id, if it is its story's current one.
    pub(super) fn step(&self, step: &StepId) -> Option<(&Story, &Step)> {
        let story = self.story(&step.story)?;
        let current = story.step.as_ref().filter(|current| current.number == step.number)?;
        Some((story, current))
    }
}

impl Story {
    /// The first ceiling it is at that is of what runs use, with what was used and may be.
    pub(super) fn at_ceiling(&self) -> Option<Blocked> {
        let Used { turns, money_micros } = self.used;
        let reached = |of, used, max: Option<u64>| {
            let max = max.filter(|max| used >= *max)?;
            Some(Blocked::Ceiling { of, used, max })
        };
        reached(Ceiling::Turns, turns, self.ceilings.turns)
            .or_else(|| reached(Ceiling::Money, money_micros, self.ceilings.money_micros))
    }

    /// True if it waits because its configuration could not be used.
    pub(super) fn wants_configuration(&self) -> bool {
        let why = self.wait.map(|wait| wait.why);
        why == Some(WaitFor::TurnedAway(TurnedAway::Unconfigured))
    }

    /// What its next run may use.
    pub(super) fn left(&self) -> Left {
        let rest = |max: Option<u64>, used: u64| max.map(|max| max.saturating_sub(used));
        Left {
            turns: rest(self.ceilings.turns, self.used.turns),
            money_micros: rest(self.ceilings.money_micros, self.used.money_micros),
        }
    }
}

impl Wait {
    /// True once it is over.
    #[must_use]
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms < self.since_ms || now_ms >= self.end_ms()
    }

    /// When it is over.
    #[must_use]
    pub fn end_ms(&self) -> u64 {
        self.since_ms.saturating_add(self.for_ms)
    }
}

impl Work {
    /// The agent it keeps busy, and which instance.
    #[must_use]
    pub fn agent(&self) -> Option<(&AgentName, u32)> {
        match self {
            Self::Prepare { agent } => agent.as_ref().map(|(agent, instance)| (agent, *instance)),
            Self::Agent { agent, instance, .. } => Some((agent, *instance)),
            Self::Merge | Self::Gate { .. } | Self::Land | Self::Remove => None,
        }
    }
}
