//! Everything that can happen to us. Owns the closed list; says nothing of what follows from it.

use crate::state::{RunId, Slot};

/// Something that happened: somebody asked for something, or something was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants a run in a slot.
    RunRequested {
        /// The id it would have.
        run: RunId,
        /// Where.
        slot: Slot,
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
    /// Somebody of a run is left after the bound of a stop, or the run cannot be looked at.
    Stuck(RunId),
    /// A run is over, and this is what is known of it.
    Ended {
        /// Which.
        run: RunId,
        /// What is known.
        ending: Ending,
    },
    /// The daemon is to leave. Runs go on without it.
    ShutdownRequested,
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
