//! Evidence of death. The only file that can make a [`Proof`].
//!
//! Owns: which evidence counts, and the order in which it is gathered. Each kind of evidence is a
//! value that only the matching kernel answer can produce (`ECHILD`, a removed cgroup, an empty
//! group); a signal that was sent, a closed pipe, a missing number or a time-out is none.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::containment::{LeafId, LeafRemoved};
use crate::exit::ExitStatus;
use crate::identity::Identity;
use crate::sys::wait::NoChildren;
use crate::{Containment, Signal};

/// Evidence that nothing of a run is left, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    rests_on: Vec<Evidence>,
    leader: ExitStatus,
    effort: Effort,
    proven_at_ms: u64,
}

/// One thing a proof rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The cgroup said `populated 0` and was then removed, which the kernel allows only when empty.
    CgroupEmpty(LeafId),
    /// The keeper, parent of every orphan among the descendants, has no child left.
    NoDescendant,
    /// The leader's own children are collected; descendants that left its session are not covered.
    LeaderCollected,
    /// No process was seen in the leader's session while its number was its own. A look through
    /// `/proc`: what re-forks all the time can slip past it.
    SessionEmpty,
    /// The leader, found by its identity, has ended.
    LeaderGone,
    /// The run belongs to an earlier boot of this machine.
    Reboot,
    /// The gate in front of the program was never opened.
    NeverStarted,
}

/// What a stop took: who was signalled, how often, how long each phase lasted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// The gentle signal, if one was sent.
    pub asked: Option<Signal>,
    /// Rounds of force; none if the cohort left by itself.
    pub rounds: u32,
    /// How many times `cgroup.kill` was written.
    pub cgroup_kills: u32,
    /// How many times SIGKILL went to the leader's group.
    pub group_kills: u32,
    /// How many SIGKILLs went to single processes.
    pub process_kills: u32,
    /// The most processes seen in the cohort when the stop began or during it.
    pub processes: u32,
    /// From the first signal until the force, or until the end if none was needed.
    pub ask_us: u64,
    /// From the first force until nobody was left.
    pub force_us: u64,
    /// From the moment nobody was seen any more to the proof.
    pub prove_us: u64,
}

impl Effort {
    /// All phases together.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.ask_us + self.force_us + self.prove_us)
    }
}

/// Evidence that nobody is in the leader's session, made by [`Cohort`](crate::cohort::Cohort).
#[derive(Debug)]
pub(crate) struct SessionEmpty(pub(crate) ());

impl Proof {
    /// From the cohort's parent, with a cgroup: the leader was peeked at, recorded and collected,
    /// then no child was left, then the cgroup could be removed.
    pub(crate) fn by_cgroup(
        leaf: LeafId,
        _removed: &LeafRemoved,
        _no_children: &NoChildren,
        leader: ExitStatus,
        effort: Effort,
    ) -> Self {
        Self::now(vec![Evidence::CgroupEmpty(leaf), Evidence::NoDescendant], leader, effort)
    }

    /// From the cohort's parent and subreaper: the leader was collected and no child was left.
    pub(crate) fn by_subreaper(
        _no_children: &NoChildren,
        leader: ExitStatus,
        effort: Effort,
    ) -> Self {
        Self::now(vec![Evidence::NoDescendant], leader, effort)
    }

    /// From the leader's parent, without a subreaper: nobody was left in its session while its
    /// number was still its own, then it was collected.
    pub(crate) fn by_group(
        _no_children: &NoChildren,
        _session: &SessionEmpty,
        leader: ExitStatus,
        effort: Effort,
    ) -> Self {
        Self::now(vec![Evidence::LeaderCollected, Evidence::SessionEmpty], leader, effort)
    }

    /// From somebody else, after the keeper died: the leader has ended and its cgroup is gone.
    pub(crate) fn by_adopter(
        leaf: LeafId,
        _removed: &LeafRemoved,
        leader: ExitStatus,
        effort: Effort,
    ) -> Self {
        Self::now(vec![Evidence::CgroupEmpty(leaf), Evidence::LeaderGone], leader, effort)
    }

    /// From a record of another boot: nothing outlives a boot.
    pub(crate) fn by_reboot(recorded_boot: &str, current_boot: &str) -> Option<Self> {
        if recorded_boot == current_boot {
            return None;
        }
        let unknown = ExitStatus::Unknown(crate::exit::UnknownStatus::Reboot);
        Some(Self::now(vec![Evidence::Reboot], unknown, Effort::default()))
    }

    /// From a start that failed before its gate was opened, or in the exec itself, whose child has
    /// been collected by its parent.
    pub(crate) fn never_started() -> Self {
        let unknown = ExitStatus::Unknown(crate::exit::UnknownStatus::NeverStarted);
        Self::now(vec![Evidence::NeverStarted], unknown, Effort::default())
    }

    fn now(rests_on: Vec<Evidence>, leader: ExitStatus, effort: Effort) -> Self {
        Self { rests_on, leader, effort, proven_at_ms: crate::record::unix_ms() }
    }

    /// What it rests on.
    #[must_use]
    pub fn rests_on(&self) -> &[Evidence] {
        &self.rests_on
    }

    /// How the leader ended.
    #[must_use]
    pub fn leader(&self) -> ExitStatus {
        self.leader
    }

    /// What the stop took.
    #[must_use]
    pub fn effort(&self) -> &Effort {
        &self.effort
    }

    /// When it was made, in milliseconds of the Unix clock.
    #[must_use]
    pub fn proven_at_ms(&self) -> u64 {
        self.proven_at_ms
    }

    /// The containment this evidence amounts to.
    #[must_use]
    pub fn grade(&self) -> Containment {
        let by_cgroup = |e: &Evidence| matches!(e, Evidence::CgroupEmpty(_));
        if self.rests_on.iter().any(by_cgroup) {
            Containment::Cgroup
        } else if self.rests_on.contains(&Evidence::SessionEmpty) {
            Containment::Group
        } else {
            Containment::Subreaper
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effort = &self.effort;
        let plural = if effort.processes == 1 { "" } else { "es" };
        if effort.processes > 0 {
            write!(f, "{} process{plural}; ", effort.processes)?;
        }
        write!(f, "all gone in {:?}; rests on ", effort.total())?;
        for (n, evidence) in self.rests_on.iter().enumerate() {
            write!(f, "{}{evidence}", if n == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CgroupEmpty(_) => "cgroup",
            Self::NoDescendant => "subreaper",
            Self::LeaderCollected => "collected leader",
            Self::SessionEmpty => "empty session",
            Self::LeaderGone => "leader's identity",
            Self::Reboot => "reboot",
            Self::NeverStarted => "closed gate",
        })
    }
}

/// One process that could not be ended, and why as far as can be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Who it is.
    pub identity: Identity,
    /// Its name.
    pub comm: String,
    /// The state letter of the kernel: `D`, `Z`, `t` and so on.
    pub state: char,
    /// Its user.
    pub uid: Option<u32>,
    /// Who traces it.
    pub tracer: Option<u32>,
    /// Where in the kernel it sleeps.
    pub wait_channel: Option<String>,
    /// Why it is still there.
    pub reason: SurvivorReason,
}

/// Why a process is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SurvivorReason {
    /// It sleeps in the kernel where no signal reaches it.
    Uninterruptible,
    /// It has ended, and its tracer has not let go of it.
    HeldByTracer,
    /// It belongs to another user and we may not signal it.
    NotPermitted,
    /// It was signalled and is on its way out.
    StillExiting,
}

impl fmt::Display for SurvivorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uninterruptible => "sleeps in the kernel, out of reach of signals",
            Self::HeldByTracer => "has ended but is held by its tracer",
            Self::NotPermitted => "belongs to another user",
            Self::StillExiting => "was killed and is still exiting",
        })
    }
}

/// A process outside the cohort that carries the run's cookie: work handed to another daemon, or
/// something that escaped. Reported, never signalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Who it is.
    pub identity: Identity,
    /// Its name.
    pub comm: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_proven_by_another_boot_id_only() {
        let own = Identity::own().unwrap();
        assert!(Proof::by_reboot(&own.boot_id, &own.boot_id).is_none());
        let proof = Proof::by_reboot(&own.boot_id, "later").unwrap();
        assert_eq!(proof.rests_on(), [Evidence::Reboot]);
        assert!(matches!(proof.leader(), ExitStatus::Unknown(_)));
    }
}
