//! Process descriptors: the one way to signal, watch and name a process.
//!
//! A [`Pid`] is a number, checked to be one that may be named at all; it cannot be signalled. A
//! [`Pidfd`] refers to one process for ever, whatever happens to the number.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// A process number that may be named to the kernel: greater than one and not our own.
///
/// It is not a handle. The process may be gone and the number may be somebody else's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pid(libc::pid_t);

impl Pid {
    /// Refuses 0, 1, negative numbers and this very process: signalling any of them is a bug.
    pub(crate) fn new(raw: i64) -> Option<Self> {
        Self::other_than(rustix::process::getpid(), raw)
    }

    /// The same for a caller with many numbers, who asks the kernel only once who we are.
    pub(super) fn other_than(own: rustix::process::Pid, raw: i64) -> Option<Self> {
        match libc::pid_t::try_from(raw) {
            Ok(pid) if pid > 1 && pid != own.as_raw_nonzero().get() => Some(Self(pid)),
            Ok(_) | Err(_) => None,
        }
    }

    pub(crate) fn get(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn raw(self) -> libc::pid_t {
        self.0
    }
}

/// How far a group signal got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupSignal {
    Sent,
    /// The group has no member left.
    Empty,
    /// This kernel cannot signal a group through a descriptor.
    Unsupported,
}

/// One process, held open.
#[derive(Debug)]
pub(crate) struct Pidfd {
    fd: OwnedFd,
    pid: Pid,
}

/// What the kernel says of a process through its descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) cgroup_id: Option<u64>,
    /// The raw wait status; known only after somebody reaped the process.
    pub(crate) exit: Option<i32>,
}

/// The eight bytes by which pidfs finds a process again, with the type the kernel gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// Large enough for any handle pidfs makes (8 bytes today).
const HANDLE_ROOM: usize = 64;

#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    f_handle: [u8; HANDLE_ROOM],
}

impl Pidfd {
    /// Opens whatever process has this number now. The caller must know why that is the right one:
    /// it is an unreaped child of ours, or its identity is compared afterwards.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.raw(), 0) })?;
        // SAFETY: the kernel just made this descriptor for us and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { fd, pid })
    }

    /// Takes a descriptor that came from elsewhere (another process, `clone3`).
    pub(crate) fn from_fd(fd: OwnedFd, pid: Pid) -> Self {
        Self { fd, pid }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to this process and to no other. `ESRCH` once it has been reaped.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        self.send(signal, 0)
    }

    /// Sends a signal to the process group this process leads. Never falls back to a group number:
    /// after the leader was reaped such a number may be a stranger's.
    pub(crate) fn signal_group(&self, signal: i32) -> io::Result<GroupSignal> {
        const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 1 << 2;
        match self.send(signal, PIDFD_SIGNAL_PROCESS_GROUP) {
            Ok(()) => Ok(GroupSignal::Sent),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(GroupSignal::Empty),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(GroupSignal::Unsupported),
            Err(e) => Err(e),
        }
    }

    /// Signals the group by its number, for kernels without group signals by descriptor. Sound only
    /// while the leader is our unreaped child, because a zombie keeps its number from being reused;
    /// the peek proves that it is.
    pub(crate) fn signal_group_of_unreaped_child(&self, signal: i32) -> io::Result<GroupSignal> {
        if super::wait::state_of(self)? == super::wait::ChildState::NotOurChild {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        // SAFETY: kill takes two integers. The number is > 1 by construction and pinned, see above.
        let ret = unsafe { libc::kill(-self.pid.raw(), signal) };
        match check(ret.into()) {
            Ok(_) => Ok(GroupSignal::Sent),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(GroupSignal::Empty),
            Err(e) => Err(e),
        }
    }

    /// True once the process has ended, reaped or not. State `Z` in `/proc` is not the same: a
    /// process whose main thread left while others run shows `Z` and is alive.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&rustix::time::Timespec::default())) {
                Ok(_) => return Ok(!fds[0].revents().is_empty()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Finds a process again by its handle. `ESTALE` means: it has been reaped, or it belongs to
    /// another pid namespace.
    pub(crate) fn reopen(handle: &Handle, pid: Pid) -> io::Result<Self> {
        if handle.bytes.len() > HANDLE_ROOM {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut raw = RawHandle {
            handle_bytes: handle.bytes.len() as u32,
            handle_type: handle.kind,
            f_handle: [0; HANDLE_ROOM],
        };
        raw.f_handle[..handle.bytes.len()].copy_from_slice(&handle.bytes);
        // Any pidfd names the file system; our own is always there.
        let own = own_pidfd()?;
        // SAFETY: `raw` is laid out as struct file_handle and says how many of its bytes count.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                own.as_raw_fd(),
                &raw mut raw,
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        let fd = check(ret)?;
        // SAFETY: the kernel just made this descriptor for us and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { fd, pid })
    }

    /// Asks the kernel about this process, race-free. `None` where the kernel cannot say.
    pub(crate) fn info(&self) -> Option<Info> {
        const INFO_CGROUPID: u64 = 1 << 2;
        const INFO_EXIT: u64 = 1 << 3;
        #[repr(C)]
        #[derive(Default)]
        struct PidfdInfo {
            mask: u64,
            cgroupid: u64,
            pid: u32,
            tgid: u32,
            ppid: u32,
            ids: [u32; 8],
            exit_code: i32,
        }
        // _IOWR(0xFF, 11, struct pidfd_info) for the 64 byte first version of the structure.
        const GET_INFO: libc::c_ulong =
            (3 << 30) | ((size_of::<PidfdInfo>() as libc::c_ulong) << 16) | (0xFF << 8) | 11;
        const { assert!(size_of::<PidfdInfo>() == 64) };
        let mut info = PidfdInfo { mask: INFO_CGROUPID | INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: the request carries the structure's size, and the structure outlives the call.
        let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        check(ret.into()).ok()?;
        Some(Info {
            cgroup_id: (info.mask & INFO_CGROUPID != 0).then_some(info.cgroupid),
            exit: (info.mask & INFO_EXIT != 0).then_some(info.exit_code),
        })
    }

    fn send(&self, signal: i32, flags: u32) -> io::Result<()> {
        // SAFETY: a null siginfo is allowed and means "as kill(2) would"; the rest are integers.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                flags,
            )
        };
        check(ret).map(drop)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The never-reused number of a process within this boot, where the kernel has pidfs.
pub(crate) fn inode_of(pidfd: impl AsFd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    let fs = rustix::fs::fstatfs(&pidfd).ok()?;
    if fs.f_type as u64 != PID_FS_MAGIC {
        return None;
    }
    rustix::fs::fstat(&pidfd).ok().map(|s| s.st_ino)
}

/// The durable handle of a process, where the kernel gives one (6.14 and later).
pub(crate) fn handle_of(pidfd: impl AsFd) -> Option<Handle> {
    let mut raw =
        RawHandle { handle_bytes: HANDLE_ROOM as u32, handle_type: 0, f_handle: [0; HANDLE_ROOM] };
    let mut mount_id: i32 = 0;
    // SAFETY: `raw` is laid out as struct file_handle with `handle_bytes` bytes of room behind
    // it, the path is an empty C string as AT_EMPTY_PATH asks, and both outlive the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            pidfd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    check(ret).ok()?;
    let len = (raw.handle_bytes as usize).min(HANDLE_ROOM);
    Some(Handle { kind: raw.handle_type, bytes: raw.f_handle[..len].to_vec() })
}

/// Who is on the other end of a local socket.
#[derive(Debug)]
pub(crate) enum PeerPid {
    /// It, held open. Its number is its own only while that is not collected.
    Held(Pidfd),
    /// Nobody whose number we could name: init, ourselves, or somebody of another pid namespace.
    Unnamed,
}

/// Takes hold of whoever connected this local socket. Kernels from 6.5 on have held it themselves
/// since then; of an older one the number is asked, which may have changed hands.
pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<PeerPid> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a ucred of the length that is passed, and both outlive the call.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut length,
        )
    };
    check(ret.into())?;
    let Some(pid) = Pid::new(cred.pid.into()) else { return Ok(PeerPid::Unnamed) };
    let mut raw: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the buffer is an integer of the length that is passed, and both outlive the call.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut raw).cast(),
            &raw mut length,
        )
    };
    match check(ret.into()) {
        Ok(_) => {
            // SAFETY: the kernel just made this descriptor for us and nobody else knows it.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            Ok(PeerPid::Held(Pidfd { fd, pid }))
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            Pidfd::open(pid).map(PeerPid::Held)
        }
        Err(e) => Err(e),
    }
}

/// A descriptor of this very process, for identity only; it has no way to be signalled.
pub(crate) fn own_pidfd() -> io::Result<OwnedFd> {
    let own = rustix::process::getpid();
    Ok(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_must_never_be_signalled_are_refused() {
        for raw in [0, 1, -1, i64::from(i32::MIN), i64::MAX, i64::from(std::process::id())] {
            assert_eq!(Pid::new(raw), None, "{raw}");
        }
        assert!(Pid::new(2).is_some() || std::process::id() == 2);
    }
}
