//! Who a process is, in a way that a reused number cannot fool.
//!
//! Owns: [`Identity`] (what is written down about a process), [`Process`] (a process held open, the
//! only thing that can be signalled), and [`Liveness`] (the three-valued answer to "does it
//! live?"). Never guesses: what cannot be decided is [`Liveness::Unknown`], and unknown is never
//! signalled and never called dead.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use crate::Signal;
use crate::sys::pidfd::{GroupSignal, Handle, handle_of, inode_of};
use crate::sys::{Pid, Pidfd, proc};

/// Everything that tells one process from every other, past and future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The boot it lives in: with another boot all numbers are void.
    pub boot_id: String,
    /// The pid namespace its number belongs to.
    pub pid_namespace: u64,
    /// Its number. For people to read; no function of this crate signals by it.
    pub pid: u32,
    /// Clock ticks after boot at which it started.
    pub start_ticks: u64,
    /// Its number in pidfs, never reused within a boot, where the kernel has pidfs (6.9).
    pub pidfs_inode: Option<u64>,
    /// Its file handle in pidfs, where the kernel gives one (6.14).
    pub pidfs_handle: Option<PidfsHandle>,
}

/// A pidfs file handle as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PidfsHandle {
    kind: i32,
    bytes: Vec<u8>,
}

/// Whether an identified process lives.
#[derive(Debug)]
pub enum Liveness {
    /// It lives, and is now held open.
    Alive(Process),
    /// It has ended.
    Dead(DeadBecause),
    /// It cannot be told from here. Not dead, not to be signalled.
    Unknown(String),
}

/// How it is known that a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadBecause {
    /// The machine was started anew since.
    Reboot,
    /// The kernel has no such process any more.
    Gone,
    /// Its number belongs to a later process now.
    NumberReused,
    /// It has ended and waits for its parent to collect it.
    Zombie,
}

impl Identity {
    /// The identity of this very process.
    pub fn own() -> io::Result<Self> {
        let pid = std::process::id();
        let own = crate::sys::pidfd::own_pidfd()?;
        Self::assemble(pid, proc::own_stat()?.start_ticks, own.as_fd())
    }

    /// The identity of a process held open. Fails if it is reaped while we look.
    pub(crate) fn of(process: &Pidfd) -> io::Result<Self> {
        let start_ticks = proc::stat(process.pid())?.start_ticks;
        let identity = Self::assemble(process.pid().get(), start_ticks, process.as_fd())?;
        // The number was this process's while we read only if it is still not reaped.
        process.signal(0).or_else(ignore_permission)?;
        Ok(identity)
    }

    /// The identity of a child that this very process has forked and not collected: it lives in the
    /// same boot and the same namespace, and its number is its own.
    pub(crate) fn of_child(&self, child: &Pidfd) -> io::Result<Self> {
        let start_ticks = proc::stat(child.pid())?.start_ticks;
        Ok(Self { pid: child.pid().get(), start_ticks, ..self.clone() }.with_pidfs(child.as_fd()))
    }

    fn assemble(pid: u32, start_ticks: u64, held: BorrowedFd<'_>) -> io::Result<Self> {
        let (boot_id, pid_namespace) = (proc::boot_id()?, proc::pid_namespace()?);
        let known = Self {
            boot_id,
            pid_namespace,
            pid,
            start_ticks,
            pidfs_inode: None,
            pidfs_handle: None,
        };
        Ok(known.with_pidfs(held))
    }

    fn with_pidfs(self, held: BorrowedFd<'_>) -> Self {
        let pidfs_inode = inode_of(held);
        let pidfs_handle = handle_of(held).map(|h| PidfsHandle { kind: h.kind, bytes: h.bytes });
        Self { pidfs_inode, pidfs_handle, ..self }
    }

    /// Looks for this process, and holds it open if it lives.
    #[must_use]
    pub fn find(&self) -> Liveness {
        match self.try_find() {
            Ok(liveness) => liveness,
            Err(e) => Liveness::Unknown(format!("failed to look at process {}: {e}", self.pid)),
        }
    }

    /// Like [`find`](Self::find), but a zombie is held open too: its status may still be had.
    pub(crate) fn reopen(&self) -> io::Result<Option<Process>> {
        if proc::boot_id()? != self.boot_id {
            return Ok(None);
        }
        // Of another pid namespace we can hold nobody; a cgroup, if there is one, tells the rest.
        if proc::pid_namespace()? != self.pid_namespace {
            return Ok(None);
        }
        let Some(pid) = Pid::new(self.pid.into()) else {
            return Err(io::Error::other("the recorded process number is not one of ours"));
        };
        let held = self.open_held(pid)?;
        Ok(held.map(|held| Process { held, identity: self.clone() }))
    }

    fn try_find(&self) -> io::Result<Liveness> {
        if proc::boot_id()? != self.boot_id {
            return Ok(Liveness::Dead(DeadBecause::Reboot));
        }
        if proc::pid_namespace()? != self.pid_namespace {
            let why = "it was recorded in another pid namespace";
            return Ok(Liveness::Unknown(why.to_owned()));
        }
        let Some(pid) = Pid::new(self.pid.into()) else {
            return Ok(Liveness::Unknown(format!("{} is not a process number of ours", self.pid)));
        };
        match self.open_held(pid)? {
            None => Ok(Liveness::Dead(self.who_has_the_number(pid))),
            Some(held) if held.has_ended()? => Ok(Liveness::Dead(DeadBecause::Zombie)),
            Some(held) => Ok(Liveness::Alive(Process { held, identity: self.clone() })),
        }
    }

    /// The process itself, held open, or nothing if the kernel has reaped it.
    fn open_held(&self, pid: Pid) -> io::Result<Option<Pidfd>> {
        if let Some(handle) = &self.pidfs_handle {
            let handle = Handle { kind: handle.kind, bytes: handle.bytes.clone() };
            match Pidfd::reopen(&handle, pid) {
                Ok(held) => return Ok(Some(held)),
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(None),
                // Not supported here after all, or not allowed: the number is the next best way.
                Err(_) => {}
            }
        }
        let held = match Pidfd::open(pid) {
            Ok(held) => held,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(e) => return Err(e),
        };
        let found = match Self::of(&held) {
            Ok(found) => found,
            Err(e) => {
                // Reaped while we looked, or hidden from us: only the first means gone.
                let gone = held.signal(0).is_err_and(|e| e.raw_os_error() == Some(libc::ESRCH));
                return if gone { Ok(None) } else { Err(e) };
            }
        };
        let same_inode = match (self.pidfs_inode, found.pidfs_inode) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (Some(_) | None, None) | (None, Some(_)) => true,
        };
        Ok((found.start_ticks == self.start_ticks && same_inode).then_some(held))
    }

    fn who_has_the_number(&self, pid: Pid) -> DeadBecause {
        match Pidfd::open(pid) {
            Ok(_) => DeadBecause::NumberReused,
            Err(_) => DeadBecause::Gone,
        }
    }
}

/// A process held open, with its identity. The only way to signal anything with this crate.
#[derive(Debug)]
pub struct Process {
    held: Pidfd,
    identity: Identity,
}

impl Process {
    /// Takes hold of a process just made or listed by us.
    pub(crate) fn hold(held: Pidfd) -> io::Result<Self> {
        let identity = Identity::of(&held)?;
        Ok(Self { held, identity })
    }

    /// A child of ours whose identity was taken while it waited at its gate: an exec changes none
    /// of it.
    pub(crate) fn from_child(held: Pidfd, identity: Identity) -> Self {
        Self { held, identity }
    }

    /// A process held open by somebody else, with the identity they recorded for it.
    pub(crate) fn from_parts(held: std::os::fd::OwnedFd, identity: Identity) -> Option<Self> {
        let pid = Pid::new(identity.pid.into())?;
        Some(Self { held: Pidfd::from_fd(held, pid), identity })
    }

    /// Takes hold of whatever process has this number now.
    ///
    /// This is where a number from outside becomes an identity. What the caller means by the number
    /// is the caller's to know; from here on only this one process is meant, and never a successor.
    pub fn from_number(pid: u32) -> Result<Self, HoldError> {
        let pid = Pid::new(pid.into()).ok_or(HoldError::NotAllowed(pid))?;
        let held = Pidfd::open(pid).map_err(|e| HoldError::from_io(pid.get(), e))?;
        Self::hold(held).map_err(|e| HoldError::from_io(pid.get(), e))
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Sends it a signal. An error of kind `NotFound` means that it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.held.signal(signal.number()).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH) => io::Error::new(io::ErrorKind::NotFound, e),
            _ => e,
        })
    }

    /// True once it has ended, collected by its parent or not.
    pub fn has_ended(&self) -> io::Result<bool> {
        self.held.has_ended()
    }

    pub(crate) fn held(&self) -> &Pidfd {
        &self.held
    }

    /// Signals the group it leads; `ask` and `force` of a cohort are the only users.
    pub(crate) fn signal_group(&self, signal: Signal) -> io::Result<GroupSignal> {
        match self.held.signal_group(signal.number())? {
            GroupSignal::Unsupported => self.held.signal_group_of_unreaped_child(signal.number()),
            sent @ (GroupSignal::Sent | GroupSignal::Empty) => Ok(sent),
        }
    }
}

impl AsFd for Process {
    /// Readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// Why a process could not be taken hold of.
#[derive(Debug)]
#[non_exhaustive]
pub enum HoldError {
    /// 0, 1, or this process itself.
    NotAllowed(u32),
    /// There is no such process.
    NoSuchProcess(u32),
    /// The system refused.
    Io(u32, io::Error),
}

impl HoldError {
    fn from_io(pid: u32, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Self::NoSuchProcess(pid),
            _ => Self::Io(pid, error),
        }
    }
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed(pid) => {
                write!(f, "process {pid} is never signalled: it is init, nobody, or kennel itself")
            }
            Self::NoSuchProcess(pid) => write!(f, "there is no process {pid}"),
            Self::Io(pid, e) => write!(f, "failed to take hold of process {pid}: {e}"),
        }
    }
}

impl std::error::Error for HoldError {}

/// `EPERM` from a probe means that it exists and belongs to somebody else.
fn ignore_permission(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::EPERM) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_ourselves_and_another_boot_is_not_ours() {
        let own = Identity::own().unwrap();
        assert_eq!(own.pid, std::process::id());
        let mut other = own.clone();
        other.boot_id = "another".to_owned();
        assert!(matches!(other.find(), Liveness::Dead(DeadBecause::Reboot)));
        let mut elsewhere = own;
        elsewhere.pid_namespace += 1;
        assert!(matches!(elsewhere.find(), Liveness::Unknown(_)));
    }

    #[test]
    fn numbers_that_must_never_be_signalled_cannot_be_held() {
        for pid in [0, 1, std::process::id(), u32::MAX] {
            assert!(matches!(Process::from_number(pid), Err(HoldError::NotAllowed(_))), "{pid}");
        }
    }
}
