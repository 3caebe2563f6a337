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
use alloc::vec::Vec;
use core::fmt;

use crate::event::{Claim, Stop};
use crate::notice::Noted;

/// A run's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(Box<str>);

/// A slot's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(Box<str>);

/// A directory that at most one run works in, by the one name it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worktree(Box<str>);

/// All that is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) runs: BTreeMap<RunId, Run>,
    /// Who holds each slot that is taken.
    pub(crate) slots: BTreeMap<Slot, RunId>,
    /// Who works in each worktree that is in use.
    pub(crate) worktrees: BTreeMap<Worktree, RunId>,
    pub(crate) shutting_down: bool,
    /// How many runs the host can hold.
    pub(crate) room: usize,
}

/// What was believed of one run before facts about it, to go back to if they are not taken.
#[derive(Clone, Debug)]
pub struct Before {
    run: RunId,
    known: Option<Run>,
    shutting_down: bool,
}

/// A run that is not known to be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What it holds.
    pub claim: Claim,
    /// Where it stands.
    pub phase: Phase,
    /// How it was to end before it was stuck: still to be performed if it is found running.
    pub(crate) stop_when_found: Option<Stop>,
    /// Limits it came near, each told once.
    pub(crate) warned: Vec<Box<str>>,
    /// What was noted of it and told, each once.
    pub(crate) noted: Noted,
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

impl Default for State {
    fn default() -> Self {
        Self::with_room_for(usize::MAX)
    }
}

impl State {
    /// Nothing believed yet, on a host that can hold so many runs.
    #[must_use]
    pub fn with_room_for(room: usize) -> Self {
        Self {
            runs: BTreeMap::new(),
            slots: BTreeMap::new(),
            worktrees: BTreeMap::new(),
            shutting_down: false,
            room,
        }
    }

    /// The run of this id, unless it is over with proof or was never admitted.
    #[must_use]
    pub fn run(&self, run: &RunId) -> Option<&Run> {
        self.runs.get(run)
    }

    /// What is believed of a run now, before facts about it are applied that the store may not
    /// take.
    #[must_use]
    pub fn before(&self, run: &RunId) -> Before {
        let known = self.runs.get(run).cloned();
        Before { run: run.clone(), known, shutting_down: self.shutting_down }
    }

    /// Goes back to what was believed: the facts applied since were not taken. Several are undone
    /// in the reverse of their order.
    pub fn undo(&mut self, before: Before) {
        self.forget(&before.run);
        self.shutting_down = before.shutting_down;
        if let Some(known) = before.known {
            self.hold(&before.run, known);
        }
    }

    /// Who holds a slot.
    #[must_use]
    pub fn holder(&self, slot: &Slot) -> Option<&RunId> {
        self.slots.get(slot)
    }

    /// Who works in a worktree.
    #[must_use]
    pub fn lives_in(&self, worktree: &Worktree) -> Option<&RunId> {
        self.worktrees.get(worktree)
    }

    /// True if the host cannot hold one more run.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.runs.len() >= self.room
    }

    /// Every run that holds a slot.
    pub fn runs(&self) -> impl Iterator<Item = (&RunId, &Run)> {
        self.runs.iter()
    }

    /// The runs that the agent of a run asked for and that still hold their slots.
    pub fn children<'a>(&'a self, run: &'a RunId) -> impl Iterator<Item = &'a RunId> {
        let of_it = move |known: &Run| known.claim.parent.as_ref() == Some(run);
        self.runs.iter().filter(move |(_, known)| of_it(known)).map(|(child, _)| child)
    }

    /// True once the daemon is leaving.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }
}

impl Run {
    /// How it is to end, if that was said.
    pub(crate) fn stop(&self) -> Option<Stop> {
        match self.phase {
            Phase::Starting { stop } => stop,
            Phase::Stopping { stop, .. } => Some(stop),
            Phase::Stuck => self.stop_when_found,
            Phase::Running { .. } | Phase::Lost => None,
        }
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

impl Worktree {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Worktree {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Worktree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
