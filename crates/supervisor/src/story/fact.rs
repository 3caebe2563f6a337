//! Everything that changes stories and must survive a crash. Owns the closed list and nothing else.

use alloc::sync::Arc;

use super::event::{Edit, NewStory};
use super::names::{ProjectKey, Provider, Session, StageName, StepId, StoryRef};
use super::pipeline::Pipeline;
use super::state::{Hold, Leave, Progress, Tree, Used, Wait, Why, Work};

/// Something held true from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryFact {
    /// This is how a project's stories are worked on. Who waited for want of it does no more.
    PipelineSet {
        /// Whose.
        project: ProjectKey,
        /// All of it.
        pipeline: Arc<Pipeline>,
    },
    /// A story is there.
    Added {
        /// Which.
        story: StoryRef,
        /// What it is.
        new: NewStory,
        /// True if its stage ends it well.
        done: bool,
    },
    /// A story is different.
    Edited {
        /// Which.
        story: StoryRef,
        /// What is different.
        edit: Edit,
    },
    /// Somebody moved a story: what failed before is forgotten.
    Moved {
        /// Which.
        story: StoryRef,
        /// Where.
        to: StageName,
        /// True if it is done.
        done: bool,
    },
    /// A story has all its stage asks for, and is in the next one.
    Advanced {
        /// Which.
        story: StoryRef,
        /// Where.
        to: StageName,
        /// True if it is done.
        done: bool,
    },
    /// Nothing is done for a story.
    Held {
        /// Which.
        story: StoryRef,
        /// Why.
        hold: Hold,
    },
    /// A story goes on: what failed before is forgotten.
    Unheld(StoryRef),
    /// A story is to go.
    Leaving {
        /// Which.
        story: StoryRef,
        /// How.
        how: Leave,
    },
    /// It is gone.
    Left(StoryRef),
    /// A story has a step, which is to be started.
    StepBegun {
        /// Which.
        step: StepId,
        /// What it does.
        work: Work,
    },
    /// Its run lives.
    StepStarted(StepId),
    /// Its run is not to be.
    StepRefused {
        /// Which.
        step: StepId,
        /// Until when nothing is tried.
        wait: Wait,
    },
    /// Its run is to end.
    StepStopping(StepId),
    /// Its run is over, but for a lost one.
    StepEnded {
        /// Which.
        step: StepId,
        /// What it used, in all.
        used: Used,
        /// What its agent can go on in.
        session: Option<Session>,
        /// What is known of the worktree now.
        tree: Tree,
        /// What that means for the story.
        then: Then,
    },
    /// A run was seen alive that is no story's step.
    StrayFound(StepId),
    /// It is over.
    StrayEnded(StepId),
    /// A provider is not asked until then.
    Paused {
        /// Which.
        provider: Provider,
        /// Until when.
        until_ms: u64,
    },
    /// It is asked again.
    Unpaused(Provider),
}

/// What the end of a step means for its story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing: it is as far as it was.
    Same,
    /// It is this far.
    Went(Progress),
    /// A retry is used, and it is tried again from there.
    Again {
        /// From where.
        progress: Progress,
        /// After this.
        wait: Wait,
    },
    /// A retry is used, and it goes back.
    Back {
        /// Where.
        to: StageName,
        /// What the agent there is told.
        why: Why,
        /// After this.
        wait: Wait,
    },
    /// Nothing was started: it is started again.
    Misfired {
        /// After this.
        wait: Wait,
    },
    /// The base moved: it is merged again.
    BaseMoved,
    /// Nothing is done for it, and later it goes on from there.
    Held {
        /// Why.
        hold: Hold,
        /// From where.
        progress: Progress,
    },
    /// Its run is lost: the step stays, and it is blocked.
    Lost,
}

impl StoryFact {
    /// The story it is about, if it is about one.
    #[must_use]
    pub fn story(&self) -> Option<&StoryRef> {
        match self {
            Self::Added { story, .. }
            | Self::Edited { story, .. }
            | Self::Moved { story, .. }
            | Self::Advanced { story, .. }
            | Self::Held { story, .. }
            | Self::Unheld(story)
            | Self::Leaving { story, .. }
            | Self::Left(story) => Some(story),
            Self::StepBegun { step, .. }
            | Self::StepStarted(step)
            | Self::StepRefused { step, .. }
            | Self::StepStopping(step)
            | Self::StepEnded { step, .. }
            | Self::StrayFound(step)
            | Self::StrayEnded(step) => Some(&step.story),
            Self::PipelineSet { .. } | Self::Paused { .. } | Self::Unpaused(_) => None,
        }
    }
}
