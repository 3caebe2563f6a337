//! Reaping: peeking at, collecting and counting our own children.
//!
//! A peek (`WNOWAIT`) leaves the zombie in place, and with it the claim on its number. The keeper
//! peeks first, records, sweeps, and collects last.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use super::{Pid, Pidfd, check};

/// How a child ended, as `waitid` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    Exited(i32),
    Signaled(i32),
}

/// What one child of ours is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildState {
    Alive,
    /// Ended, not collected: its number is still its own.
    Ended(WaitStatus),
    NotOurChild,
}

/// What a look at all children found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyChild {
    /// There are children and none has ended.
    Alive,
    /// This one has ended and waits to be collected.
    Ended(Pid),
    /// `ECHILD`.
    None,
}

/// Evidence that this process has no child of any kind. Made from `ECHILD` and from nothing else.
#[derive(Debug)]
pub(crate) struct NoChildren(());

/// Looks at one child without collecting it.
pub(crate) fn state_of(child: &Pidfd) -> io::Result<ChildState> {
    one(child, libc::WNOWAIT)
}

/// Collects one child. Its number may be reused from here on.
pub(crate) fn reap(child: &Pidfd) -> io::Result<ChildState> {
    one(child, 0)
}

/// Collects the child with this number if it has ended. The number is that of an unreaped child, so
/// it cannot have been reused.
pub(crate) fn reap_pid(pid: Pid) -> io::Result<ChildState> {
    state(waitid(libc::P_PID, pid.raw() as libc::id_t, 0))
}

/// Looks for an ended child without collecting it.
pub(crate) fn any() -> io::Result<AnyChild> {
    match waitid(libc::P_ALL, 0, libc::WNOWAIT) {
        Ok(Some((pid, _))) => Ok(Pid::new(pid.into()).map_or(AnyChild::Alive, AnyChild::Ended)),
        Ok(None) => Ok(AnyChild::Alive),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(AnyChild::None),
        Err(e) => Err(e),
    }
}

/// The evidence that there is no child, or nothing if there is one.
pub(crate) fn no_children() -> io::Result<Option<NoChildren>> {
    Ok((any()? == AnyChild::None).then_some(NoChildren(())))
}

fn one(child: &Pidfd, options: libc::c_int) -> io::Result<ChildState> {
    // Linux 5.4 and later; by number before, which is as safe for an unreaped child.
    match waitid(libc::P_PIDFD, child.as_fd().as_raw_fd() as libc::id_t, options) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            state(waitid(libc::P_PID, child.pid().raw() as libc::id_t, options))
        }
        other => state(other),
    }
}

fn state(result: io::Result<Option<(libc::pid_t, WaitStatus)>>) -> io::Result<ChildState> {
    match result {
        Ok(Some((_, status))) => Ok(ChildState::Ended(status)),
        Ok(None) => Ok(ChildState::Alive),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(ChildState::NotOurChild),
        Err(e) => Err(e),
    }
}

fn waitid(
    id_type: libc::idtype_t,
    id: libc::id_t,
    options: libc::c_int,
) -> io::Result<Option<(libc::pid_t, WaitStatus)>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL | options;
    loop {
        // SAFETY: `info` is writable for the size of a siginfo_t and outlives the call.
        let ret = unsafe { libc::waitid(id_type, id, info.as_mut_ptr(), options) };
        match check(ret.into()) {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // SAFETY: zeroed at first and then filled by the kernel; all-zero is a valid siginfo_t.
    let info = unsafe { info.assume_init() };
    // SAFETY: waitid fills the SIGCHLD members, or leaves them zero if nothing has ended.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    let status = match info.si_code {
        libc::CLD_EXITED => WaitStatus::Exited(status),
        _ => WaitStatus::Signaled(status),
    };
    Ok(Some((pid, status)))
}
