//! Start a process, own everything it spawns, stop the whole of it, and prove that it is gone.
//!
//! Four verbs:
//!
//! - [`start`] runs a program under a *keeper*, a small process of its own that is the program's
//!   parent and owner. Nothing runs before it is recorded durably.
//! - [`Connection::stop`] asks the program to end and forces it after a grace; [`Connection::kill`]
//!   forces at once. One protocol for every caller.
//! - [`Connection::wait_end`] returns the [`End`]: why, how, and the [`Proof`] that nothing is
//!   left, or the [`Survivor`]s and the reason.
//! - [`adopt`] tells what became of a run from its directory alone, in any process, after any
//!   crash, and takes over where a keeper died.
//!
//! A program that uses this crate calls [`keeper::enter`] first in its `main`, because it is its
//! own keeper's executable.
//!
//! # What is promised, and what is not
//!
//! A [`Proof`] names what it rests on. With [`Containment::Cgroup`] nobody is left in the run's
//! cgroup and no descendant of its leader is left at all. With [`Containment::Subreaper`] no
//! descendant is left. With [`Containment::Group`] nobody is left in its session; a process that
//! left the session is not covered. Work handed to a daemon that was there before (docker, systemd,
//! tmux) is not a descendant: if it carries the run's cookie it is reported ([`Event::Outside`]),
//! never signalled.
//!
//! Signals go only through [`Process`], which holds a process open: a number that has been reused
//! cannot be hit. What cannot be known is said to be unknown ([`ExitStatus::Unknown`],
//! [`Liveness::Unknown`], [`Lost`]).
//!
//! Synchronous, without a runtime. Every wait has a bound; everything waitable has a descriptor.

mod adopt;
mod cohort;
mod connection;
mod containment;
mod control;
mod controllers;
mod exit;
mod failpoint;
mod foreign;
mod identity;
pub mod keeper;
pub mod ladder;
mod limits;
mod meter;
mod output;
mod passing;
mod peer;
mod proof;
mod record;
mod signal;
mod spawn;
mod spec;
mod sys;

pub use adopt::{
    AdoptError, Adopted, Hurry, Orphan, Swept, adopt, boot_id, ended_by_reboot, has_keeper,
    recorded_start, wake_keeper,
};
pub use connection::{ANSWER_BOUND, Asked, Connection, ConnectionError, Told, Waited};
pub use containment::{
    Containment, FoundLeaf, KEEPERS_CGROUP, LeafId, found_leaves, settle_in_cgroup,
    strongest_containment,
};
pub use control::{Event, PROTOCOL, Refusal, RefusalCode, State, Status};
pub use controllers::{Bindings, Binds, strongest_bindings};
pub use exit::{ExitStatus, UnknownStatus};
pub use foreign::{
    Found, StrangerError, StrangersStopped, descendants, find_by_command_line, stop_process,
    stop_tree,
};
pub use identity::{DeadBecause, HoldError, Identity, Liveness, PidfsHandle, Process};
pub use limits::Limits;
pub use meter::{Desk, MAX_USAGE_BYTES, MakeMeter, Meter, Woken};
pub use output::{
    Chunk, MAX_CHUNK_BYTES, OutputTotals, Stream, StreamTotals, end_of_output, read_output,
    written_so_far,
};
pub use peer::Peer;
pub use proof::{Effort, Evidence, Proof, Survivor, SurvivorReason, Suspect};
pub use record::{
    Cause, End, LimitReached, Lost, ReadError, StartFailure, StartStage, Started, Verdict,
};
pub use signal::{NotASignal, Signal};
pub use spawn::{
    KeeperProgram, Run, StartError, raise_descriptor_limit, start, start_detached, start_with,
};
pub use spec::{
    COOKIE, DEFAULT_GRACE, DEFAULT_KEEP_BYTES, EnvBase, Environment, MAX_GRACE, MAX_LABEL_BYTES,
    MIN_KEEP_BYTES, OnExit, RunId, Spec, SpecError, Stdin, Streams, TerminalSize,
};
pub use sys::watch::{Changes, FileWatch};
