//! The mind of kennel: which run may have a slot, and what follows from what happened.
//!
//! An [`Event`] happened; a [`Fact`] is what is held true from then on; an [`Effect`] is what is
//! asked of the world. [`decide`] reads and changes nothing; [`State::apply`] is the only mutator,
//! and replaying stored facts goes through it too. The caller makes facts durable, then applies
//! them, then performs the effects; every outcome comes back as a later event.
//!
//! [`story`] is the second mind, of the same make: which step of which story is next. It knows of
//! runs only what it is told.
//!
//! Never names a clock, a file, a process, a signal or a format: without `std` it could not.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod apply;
mod decide;
mod effect;
mod event;
mod fact;
mod notice;
mod state;
pub mod story;

pub use decide::{Decision, Refusal, decide};
pub use effect::Effect;
pub use event::{Claim, Ending, Event, Stop, Unenforceable};
pub use fact::Fact;
pub use notice::{Doing, Kind, Match, Note, Notice};
pub use state::{Before, Leader, Phase, Run, RunId, Slot, State, Worktree};
pub use story::{
    Stories, StoryDecision, StoryEffect, StoryEvent, StoryFact, StoryKind, StoryNotice,
    StoryRefusal, decide_story,
};
