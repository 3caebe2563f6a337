//! Everything that changes state and must survive a crash. Owns the closed list and nothing else.

use alloc::boxed::Box;

use crate::event::{Claim, Ending, Stop};
use crate::notice::Note;
use crate::state::RunId;

/// Something held true from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A run has a slot, and a worktree if it wanted one.
    Admitted {
        /// Which run.
        run: RunId,
        /// What it holds.
        claim: Claim,
    },
    /// Its program runs.
    Started(RunId),
    /// It is to end, or to end sooner.
    Stopping {
        /// Which.
        run: RunId,
        /// How.
        stop: Stop,
    },
    /// Its leader ended.
    Exited(RunId),
    /// It came near a limit. Once for each.
    Warned {
        /// Which.
        run: RunId,
        /// The limit's name.
        limit: Box<str>,
    },
    /// Something about it deserved telling.
    Noted {
        /// Which.
        run: RunId,
        /// What.
        note: Note,
    },
    /// Somebody of it is left, or it cannot be looked at.
    Stuck(RunId),
    /// It is over.
    Ended {
        /// Which.
        run: RunId,
        /// What is known.
        ending: Ending,
    },
    /// No run is admitted any more until the next start of the daemon.
    ShuttingDown,
}

impl Fact {
    /// The run it is about, if it is about one.
    #[must_use]
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::Admitted { run, .. }
            | Self::Started(run)
            | Self::Stopping { run, .. }
            | Self::Warned { run, .. }
            | Self::Noted { run, .. }
            | Self::Exited(run)
            | Self::Stuck(run)
            | Self::Ended { run, .. } => Some(run),
            Self::ShuttingDown => None,
        }
    }
}
