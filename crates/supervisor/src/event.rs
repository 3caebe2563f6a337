//! Everything that can happen to us. Owns the closed list; says nothing of what follows from it.

use alloc::boxed::Box;

use crate::notice::Note;
use crate::state::{RunId, Slot, Worktree};

/// Something that happened: somebody asked for something, or something was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants a run in a slot.
    RunRequested {
        /// The id it would have. A request told again has the same one.
        run: RunId,
        /// What it would hold.
        claim: Claim,
        /// A limit that was asked for and that nobody could enforce.
        unenforceable: Option<Unenforceable>,
    },
    /// A run was found that nobody here knows of: what was known of it has been lost. It is not to
    /// be started, but to be looked at.
    Found {
        /// Which.
        run: RunId,
        /// What it holds from now on.
        claim: Claim,
    },
    /// A run's program is running, or was found running.
    Started(RunId),
    /// Somebody wants a run to end.
    StopRequested {
        /// Which.
        run: RunId,
        /// How.
        stop: Stop,
    },
    /// A run is being stopped, not by a request of ours: its keeper reached a limit, or died.
    Stopping(RunId),
    /// A run's leader ended. Its cohort may live on.
    Exited(RunId),
    /// A run comes near one of its limits.
    Warned {
        /// Which.
        run: RunId,
        /// The limit's name.
        limit: Box<str>,
    },
    /// Something about a run that lives deserves telling.
    Noted {
        /// Which.
        run: RunId,
        /// What.
        note: Note,
    },
    /// Somebody of a run is left after the bound of a stop, or the run cannot be looked at.
    Stuck(RunId),
    /// A run is over, and this is what is known of it.
    Ended {
        /// Which.
        run: RunId,
        /// What is known.
        ending: Ending,
    },
    /// No run is to be admitted any more; those that live are stopped if that is said, and go on
    /// otherwise.
    ShutdownRequested {
        /// How every run is to be ended.
        stop: Option<Stop>,
    },
    /// The daemon is to leave. What lives goes on without it.
    LeaveRequested,
}

impl Event {
    /// The run it is about, if it is about one.
    #[must_use]
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::RunRequested { run, .. }
            | Self::Found { run, .. }
            | Self::Started(run)
            | Self::StopRequested { run, .. }
            | Self::Stopping(run)
            | Self::Exited(run)
            | Self::Warned { run, .. }
            | Self::Noted { run, .. }
            | Self::Stuck(run)
            | Self::Ended { run, .. } => Some(run),
            Self::ShutdownRequested { .. } | Self::LeaveRequested => None,
        }
    }
}

/// What a run holds for as long as it is not proven dead, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The slot.
    pub slot: Slot,
    /// A directory nobody else may work in.
    pub worktree: Option<Worktree>,
    /// The run whose agent asked for it: if that one is stopped, so is this.
    pub parent: Option<RunId>,
}

/// A limit that nobody could enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unenforceable {
    /// Its name.
    pub limit: Box<str>,
    /// Why it would not bind.
    pub because: Box<str>,
}

/// How a run is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ask, then force after the grace.
    Ask {
        /// The grace in milliseconds; the run's own if not said.
        grace_ms: Option<u64>,
    },
    /// Force now.
    Force,
}

/// What is known of a run that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No instruction of its program ran, nor will.
    NeverStarted,
    /// Nothing of it is left, with proof.
    Dead,
    /// Proof can no longer be had. Its slot stays taken.
    Lost,
}
