//! The kernel, one function per operation. All `unsafe` of kennel lives in this directory.
//!
//! Owns: the raw system calls no library wraps (`clone3`, pidfs handles, `PIDFD_GET_INFO`, group
//! signals through a pidfd, `waitid` with a peek), and the parsing of `/proc`. A bare process
//! number enters the crate here and does not leave it again as something that can be signalled: the
//! only type with a `signal` method is [`Pidfd`].
//!
//! Never does: decide anything. Which signal, when, and what it proves is said by the modules
//! above.

pub(crate) mod fork;
pub(crate) mod pidfd;
pub(crate) mod proc;
pub(crate) mod pty;
pub(crate) mod signals;
pub(crate) mod wait;
pub(crate) mod watch;

pub(crate) use pidfd::{Pid, Pidfd};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Turns the `-1` of a C call into the error it stands for.
fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Time since boot, suspend included. Every deadline of the crate is on this clock.
pub(crate) fn boottime() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// A timer on the clock of every deadline. The time-out of a poll does not run while the machine
/// sleeps: who waits by that alone comes late by as long as it slept.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(rustix::time::timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Readable from then on, until it is set to something else.
    pub(crate) fn set(&self, at: Duration) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // All zeros would switch it off.
        let nanos = at.subsec_nanos().max(1);
        let at = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: nanos.into() };
        let time = Itimerspec { it_interval: none, it_value: at };
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &time)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes this process the parent of every orphan among its descendants.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // Any non-empty pid means "on"; the kernel reads only the truth value.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    match rustix::process::child_subreaper()? {
        Some(_) => Ok(()),
        None => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

/// Has standard error appended to a file, also where there is no descriptor left: standard output,
/// of no use to a keeper, makes room. To be called once, while 1 is still that.
pub(crate) fn append_stderr_to(path: &Path) -> io::Result<()> {
    let open = || std::fs::File::options().append(true).create(true).mode(0o600).open(path);
    let file = match open() {
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            // SAFETY: an integer; no value in this process owns descriptor 1.
            unsafe { libc::close(1) };
            open()?
        }
        other => other?,
    };
    Ok(rustix::stdio::dup2_stderr(&file)?)
}

/// The name by which lists of processes show this one.
pub(crate) fn set_name(name: &std::ffi::CStr) {
    // SAFETY: the kernel reads a string that ends in a null byte, and no more than 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Sets how many files this process and what it starts may have open. They may raise it again up to
/// the hard limit, which stays.
pub(crate) fn lower_descriptor_limit(soft: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let soft = before.maximum.map_or(soft, |hard| soft.min(hard));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..before })?)
}

/// Gives memory that was needed once back to the system: a keeper waits for days with what its
/// start took.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back_memory() {
    // SAFETY: trims free memory of the allocator; nothing that is in use moves.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries have no such call.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back_memory() {}

/// Keeps the kernel's memory killer away from this process, where that is allowed. Returns the
/// score in force before, which a child must get back before it becomes somebody else's program.
pub(crate) fn protect_from_oom(score: i32) -> Option<i32> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let before: i32 = proc::read_to_string(FILE).ok()?.trim().parse().ok()?;
    if before <= score {
        return None;
    }
    std::fs::write(FILE, score.to_string()).ok()?;
    Some(before)
}
