//! Everything we ask of the world. Owns the closed list; an effect returns nothing, and performing
//! one twice must be harmless.

use crate::event::Stop;
use crate::state::RunId;

/// Something asked of the world, once the facts it follows from are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the run that was admitted.
    Start(RunId),
    /// Look at a run that was started by somebody else, and stay with it.
    Adopt(RunId),
    /// Have a run ended by its keeper.
    Stop {
        /// Which.
        run: RunId,
        /// How.
        stop: Stop,
    },
    /// End the daemon and leave every run alone.
    Leave,
}
