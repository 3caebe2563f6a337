//! Signals as this process receives them: all blocked, read from a descriptor.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// The highest signal number of Linux.
pub(crate) const LAST_SIGNAL: i32 = 64;

/// Every signal of this process, as something to poll and read.
#[derive(Debug)]
pub(crate) struct SignalFd(OwnedFd);

/// What arrived, coalesced: signals carry no count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) child: bool,
    pub(crate) terminate: bool,
}

impl SignalFd {
    /// Blocks every signal that can be blocked and opens the descriptor they are read from.
    pub(crate) fn block_all() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset initialises the set it is given.
        check(unsafe { libc::sigfillset(set.as_mut_ptr()) }.into())?;
        // SAFETY: initialised by the call above.
        let set = unsafe { set.assume_init() };
        let how = libc::SIG_SETMASK;
        // SAFETY: a valid set in, nothing out.
        let ret = unsafe { libc::sigprocmask(how, &raw const set, std::ptr::null_mut()) };
        check(ret.into())?;
        // A SIGCHLD that was ignored when we were exec'd would make the kernel reap for us and lose
        // every status.
        set_default(libc::SIGCHLD);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: -1 asks for a new descriptor; the set is valid.
        let fd = check(unsafe { libc::signalfd(-1, &raw const set, flags) }.into())?;
        // SAFETY: the kernel just made this descriptor for us and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Takes all that has arrived; never blocks.
    pub(crate) fn take(&self) -> Arrived {
        const ONE: usize = size_of::<libc::signalfd_siginfo>();
        let mut arrived = Arrived::default();
        let mut buf = [0_u8; ONE * 8];
        loop {
            let n = match rustix::io::read(&self.0, &mut buf) {
                Ok(n) => n,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return arrived,
            };
            for one in buf[..n].chunks_exact(ONE) {
                // ssi_signo is the first member, an unsigned 32 bit number.
                let signo = u32::from_ne_bytes([one[0], one[1], one[2], one[3]]) as i32;
                arrived.child |= signo == libc::SIGCHLD;
                arrived.terminate |= signo == libc::SIGTERM;
            }
            if n < buf.len() {
                return arrived;
            }
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel's own `struct sigaction`, which has room for every signal; all-zero is `SIG_DFL`.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Has the kernel collect our children, in a process that wants to know nothing of them.
pub(crate) fn ignore_children() -> io::Result<()> {
    // SAFETY: no handler of ours is named.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts one signal back to its default. By system call, because the C library keeps two signals to
/// itself and would leave them ignored. Errors (SIGKILL, SIGSTOP) are no errors: those cannot be
/// anything but default.
pub(super) fn set_default(signal: i32) {
    let default = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    let nothing = std::ptr::null_mut::<KernelAction>();
    // SAFETY: the structure is laid out as the kernel's and outlives the call, its mask has the
    // eight bytes that are said, and no handler of ours is named.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, nothing, size_of::<u64>())
    };
}

/// Puts every signal back to its default and empties the mask. For a forked child on its way to
/// exec; takes no lock and allocates nothing.
pub(super) fn reset_all_in_child() {
    for signal in 1..=LAST_SIGNAL {
        set_default(signal);
    }
    let empty: u64 = 0;
    let nothing = std::ptr::null_mut::<u64>();
    let how = libc::SIG_SETMASK;
    // SAFETY: the mask has the eight bytes that are said; nothing is written back.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const empty, nothing, size_of::<u64>())
    };
}
