//! Everything that can happen to stories. Owns the closed list; says nothing of what follows.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::names::{
    AgentName, ProjectKey, Provider, Session, StageName, StepId, StoryId, StoryRef, Tail, Words,
};
use super::pipeline::Pipeline;
use super::state::{Ceilings, Leave, Used};

/// Something that happened: somebody asked for something, or something was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryEvent {
    /// A project's configuration was read and may be used.
    PipelineRead {
        /// Whose.
        project: ProjectKey,
        /// All of it.
        pipeline: Arc<Pipeline>,
    },
    /// It could not be read. The last good one stays, and nobody is stopped.
    PipelineUnreadable(ProjectKey),
    /// Somebody wants a story.
    AddRequested {
        /// Which.
        story: StoryRef,
        /// What it is to be.
        new: NewStory,
    },
    /// Somebody wants a story to be different.
    EditRequested {
        /// Which.
        story: StoryRef,
        /// What is different.
        edit: Edit,
    },
    /// Somebody wants a story in another stage.
    MoveRequested {
        /// Which.
        story: StoryRef,
        /// Where.
        to: StageName,
    },
    /// Somebody wants nothing done for a story.
    FreezeRequested(StoryRef),
    /// Somebody wants a story looked at before anything is done for it.
    BlockRequested(StoryRef),
    /// Somebody wants a held story to go on.
    UnholdRequested(StoryRef),
    /// Somebody wants a story gone.
    LeaveRequested {
        /// Which.
        story: StoryRef,
        /// How.
        how: Leave,
    },
    /// A step's run lives.
    StepStarted(StepId),
    /// A step's run was not admitted, and will not be.
    StepRefused {
        /// Which.
        step: StepId,
        /// Why.
        why: TurnedAway,
    },
    /// A step's run is over.
    StepEnded {
        /// Which.
        step: StepId,
        /// How.
        outcome: Outcome,
        /// What it used.
        used: Used,
        /// What its agent can go on in.
        session: Option<Session>,
    },
    /// A provider takes no more for a while.
    RateLimited {
        /// Which.
        provider: Provider,
        /// Until when, if it said so.
        until_ms: Option<u64>,
    },
    /// Somebody wants a provider asked again.
    UnpauseRequested(Provider),
    /// Time has passed.
    Tick,
    /// What lives was looked at.
    Reconcile(Seen),
}

/// What a story is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewStory {
    /// Where it begins.
    pub stage: StageName,
    /// Who works on it if it can.
    pub pinned: Option<AgentName>,
    /// What has to be done before.
    pub depends_on: BTreeSet<StoryId>,
    /// The higher, the sooner.
    pub priority: i32,
    /// What all its runs together may use.
    pub ceilings: Ceilings,
}

/// What is to be different about a story; what is not said stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Who works on it if it can, or nobody in particular.
    pub pinned: Option<Option<AgentName>>,
    /// What has to be done before.
    pub depends_on: Option<BTreeSet<StoryId>>,
    /// The higher, the sooner.
    pub priority: Option<i32>,
    /// What all its runs together may use.
    pub ceilings: Option<Ceilings>,
    /// Its title and text.
    pub words: Option<Words>,
}

/// Why a run was not admitted: nothing that its story could help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    /// Its slot is not free.
    SlotTaken,
    /// Somebody works in its worktree.
    WorktreeInUse,
    /// The host holds as many runs as it can.
    HostFull,
    /// The daemon is leaving.
    ShuttingDown,
    /// What it would be started with cannot be used now: a file that is broken, or not trusted.
    Unconfigured,
}

/// How a step's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success,
    /// Not well.
    Failed {
        /// True if there are commits that the base has not.
        ahead: bool,
        /// Its last words.
        tail: Option<Tail>,
    },
    /// A limit ended it.
    Limit {
        /// True if there are commits that the base has not.
        ahead: bool,
        /// Its last words.
        tail: Option<Tail>,
    },
    /// Its provider took no more.
    RateLimited {
        /// Until when, if it said so.
        until_ms: Option<u64>,
    },
    /// A merge found conflicts.
    Conflict {
        /// Where they are told.
        tail: Option<Tail>,
    },
    /// A landing found the base elsewhere.
    BaseMoved,
    /// The main checkout is not as it was before: whatever else it did, this is looked at first.
    Drifted,
    /// Somebody stopped it.
    Stopped,
    /// Everything was stopped, and it with the rest: that says nothing about its story.
    Interrupted,
    /// No instruction of it ran, nor will.
    NeverStarted,
    /// It ended well as far as it goes, and nobody could look at what it left. That says nothing
    /// against it: it is settled neither way.
    Unseen,
    /// Nobody can say whether it is over.
    Lost,
}

/// What was seen when it was looked what lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It could not be seen.
    Unreadable,
    /// All runs of steps that are not over with proof.
    Steps(Vec<SeenStep>),
}

/// A step whose run is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenStep {
    /// Which.
    pub step: StepId,
    /// True if it is being stopped.
    pub stopping: bool,
}
