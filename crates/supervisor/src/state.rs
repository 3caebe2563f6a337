//! Slots and runs as they are believed to be. Owns the shapes; only `apply` changes them.
//!
//! ```text
//! Starting -> Running -> Stopping -> (dead: forgotten, slot free)
//!     |          |           |
//!     |          +-----------+--> Stuck (slot taken; may yet go back or end)
//!     |          +-----------+--> Lost  (slot taken)
//!     +--> (never started: forgotten, slot free)
//! ```
//!
//! Runs whose death is proven are not kept: the store knows them, and the state stays as small as
//! what lives.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::fmt;

use crate::event::Stop;

/// A run's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(Box<str>);

/// A slot's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(Box<str>);

/// All that is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) runs: BTreeMap<RunId, Run>,
    /// Who holds each slot that is taken.
    pub(crate) slots: BTreeMap<Slot, RunId>,
    pub(crate) shutting_down: bool,
}

/// A run that is not known to be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The slot it holds.
    pub slot: Slot,
    /// Where it stands.
    pub phase: Phase,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Admitted; its program may or may not run yet.
    Starting {
        /// A stop that came meanwhile.
        stop: Option<Stop>,
    },
    /// Its program runs.
    Running {
        /// What is known of its leader.
        leader: Leader,
    },
    /// It is to end.
    Stopping {
        /// How.
        stop: Stop,
        /// What is known of its leader.
        leader: Leader,
    },
    /// Somebody of it is left, or it cannot be looked at.
    Stuck,
    /// Proof of its death can no longer be had.
    Lost,
}

/// What is known of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// Nothing but that it was started.
    Lives,
    /// It has ended.
    Exited,
}

impl State {
    /// The run of this id, unless it is over with proof or was never admitted.
    #[must_use]
    pub fn run(&self, run: &RunId) -> Option<&Run> {
        self.runs.get(run)
    }

    /// A state with nothing but this run: enough to learn what facts about it would make of it.
    #[must_use]
    pub fn only(&self, run: &RunId) -> Self {
        let mut only = Self { shutting_down: self.shutting_down, ..Self::default() };
        if let Some(known) = self.runs.get(run) {
            only.slots.insert(known.slot.clone(), run.clone());
            only.runs.insert(run.clone(), known.clone());
        }
        only
    }

    /// Who holds a slot.
    #[must_use]
    pub fn holder(&self, slot: &Slot) -> Option<&RunId> {
        self.slots.get(slot)
    }

    /// Every run that holds a slot.
    pub fn runs(&self) -> impl Iterator<Item = (&RunId, &Run)> {
        self.runs.iter()
    }

    /// True once the daemon is leaving.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }
}

impl RunId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RunId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Slot {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Slot {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
