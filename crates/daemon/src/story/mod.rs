//! The hands of stories: what the mind of stories decides is done with runs, and what became of
//! them is told to it.
//!
//! ```text
//! event loop --effect--> hands: a task for each step --> start | errand --> a run like any other
//!      ^                                                                        |
//!      `------------------- outcome: an end becomes an event <------------------'
//! clock: waits that are over, what lives, files that changed
//! ```
//!
//! Owns: how work becomes a run, and what an end means in the words of the mind. Decides nothing
//! and holds no truth: what is kept here beside the journal can be had again from it and from runs.

pub(crate) mod clock;
pub(crate) mod errand;
pub(crate) mod hands;
pub(crate) mod now;
mod outcome;
pub(crate) mod project;
mod prompt;
mod start;
pub(crate) mod view;
pub(crate) mod words;

/// Millionths in one: the mind counts money in whole ones.
pub(crate) const MICROS: f64 = 1_000_000.0;
