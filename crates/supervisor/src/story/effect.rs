//! Everything that stories ask of the world. Owns the closed list; an effect returns nothing, and
//! performing one twice must be harmless.

use super::names::{StageName, StepId};
use super::state::{Left, Work};

/// Something asked of the world, once the facts it follows from are durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryEffect {
    /// Have the run of a step. One that was started already is not started again: it is told how
    /// it stands. One that is not its story's step any more is not started at all.
    StartStep {
        /// Whose run.
        step: StepId,
        /// For which stage.
        stage: StageName,
        /// What it does.
        work: Work,
        /// What it may use before its story is at a ceiling.
        left: Left,
    },
    /// Have the run of a step ended. If it is over, or never was, that is told.
    StopStep(StepId),
    /// Tell how the run of a step stands: it was started, and was not seen.
    AskStep(StepId),
}
