//! The gated fork: a child that is ours, in its cgroup and recorded before it runs user code.
//!
//! The child prepares itself (session, terminal, streams, signals, descriptors), then blocks
//! reading one byte from the gate. If the gate closes instead, because the keeper died, the child
//! leaves without having run a single instruction of the user's. Errors travel back through a pipe
//! that a successful exec closes.
//!
//! Between `clone3` and `execve` the child uses only system calls: nothing here allocates or locks.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Pid, Pidfd, check, signals};

/// Everything the child needs, made before the fork so that it need not allocate.
pub(crate) struct Plan<'a> {
    /// Paths to try, in order, as a search through `PATH` gives them.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) envp: Vec<CString>,
    pub(crate) cwd: Option<CString>,
    /// Standard input, output and error of the child.
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Standard input is a terminal that becomes the child's controlling one.
    pub(crate) terminal: bool,
    /// The directory of the cgroup to be born in.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// The memory-killer score to put back, if the keeper lowered its own.
    pub(crate) oom_score: Option<i32>,
}

/// A forked child that waits before its gate.
pub(crate) struct Gated {
    pub(crate) child: Pidfd,
    gate: OwnedFd,
    report: File,
}

/// Where on its way to exec the child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    Prepare = 1,
    Directory = 2,
    Exec = 3,
}

/// What became of an opened gate.
#[derive(Debug)]
pub(crate) enum Opened {
    /// The program is running.
    Execed,
    /// It is not; the child has left.
    Failed { stage: Stage, error: io::Error },
    /// Neither was heard within the bound: the child hangs on its way (a dead network mount, say).
    Unheard,
}

/// What the child leaves with when it never became the program.
const NEVER_EXECED: i32 = 127;

/// From linux/sched.h; the constant of the libc crate is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Descriptors of the parent that the child must find at a known number are moved above this first.
const HIGH_FD: RawFd = 10;
const GATE_FD: RawFd = 3;
const REPORT_FD: RawFd = 4;

/// Forks the child up to its gate. An error means that there is no child.
pub(crate) fn fork(plan: &Plan<'_>) -> io::Result<Gated> {
    let (gate_read, gate_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (report_read, report_write) = pipe_with(PipeFlags::CLOEXEC)?;
    let gate_read = rustix::io::fcntl_dupfd_cloexec(&gate_read, HIGH_FD)?;
    let report_write = rustix::io::fcntl_dupfd_cloexec(&report_write, HIGH_FD)?;
    let oom = plan.oom_score.map(|s| s.to_string());
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        let end = std::iter::once(std::ptr::null());
        strings.iter().map(|s| s.as_ptr()).chain(end).collect()
    };
    let argv = pointers(&plan.argv);
    let envp = pointers(&plan.envp);
    let child = Child {
        plan,
        argv: &argv,
        envp: &envp,
        gate: gate_read.as_raw_fd(),
        report: report_write.as_raw_fd(),
        oom: oom.as_deref().map(str::as_bytes),
    };
    match clone_process(plan.cgroup)? {
        Cloned::Child => child.become_program(),
        Cloned::Parent(child) => {
            Ok(Gated { child, gate: gate_write, report: File::from(report_read) })
        }
    }
}

impl Gated {
    /// Lets the child go on to exec and waits, at most `bound`, to hear how that went.
    pub(crate) fn open(self, bound: Duration) -> (Pidfd, Opened) {
        let _ = crate::failpoint::failpoint("start.opening");
        // A child killed while it waited makes this EPIPE; its report then reads as end of file and
        // its status tells the rest.
        let _ = File::from(self.gate).write(&[1]);
        let heard = crate::failpoint::failpoint("start.gate");
        let opened = heard.and_then(|()| Self::read_report(self.report, bound));
        (self.child, opened.unwrap_or(Opened::Unheard))
    }

    fn read_report(mut report: File, bound: Duration) -> io::Result<Opened> {
        let deadline = super::boottime() + bound;
        loop {
            let left = deadline.saturating_sub(super::boottime());
            let timeout = rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&report, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(Opened::Unheard),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let mut bytes = [0_u8; 8];
        match report.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(Opened::Execed),
            Err(e) => return Err(e),
        }
        let stage = match u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) {
            3 => Stage::Exec,
            2 => Stage::Directory,
            _ => Stage::Prepare,
        };
        let errno = i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Ok(Opened::Failed { stage, error: io::Error::from_raw_os_error(errno) })
    }
}

enum Cloned {
    Child,
    Parent(Pidfd),
}

/// `clone3` straight into the cgroup where there is one. Kernels or filters without `clone3` get a
/// plain fork; the gate gives the parent time to move the child itself.
fn clone_process(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is the documented "nothing asked for" of clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: no CLONE_VM, so this is a fork: the child has its own copy of everything. We have one
    // thread, so no lock is held by a thread that is missing in the child. `args` is of the size
    // said and `pidfd` outlives the call.
    let ret = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    match check(ret) {
        Ok(0) => return Ok(Cloned::Child),
        Ok(pid) => {
            // SAFETY: the kernel stored a new descriptor there because of CLONE_PIDFD.
            let fd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            return Ok(Cloned::Parent(Pidfd::from_fd(fd, own_child(pid)?)));
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {}
        Err(e) => return Err(e),
    }
    // SAFETY: as for clone3.
    match check(unsafe { libc::fork() }.into())? {
        0 => Ok(Cloned::Child),
        pid => {
            let pid = own_child(pid)?;
            let child = Pidfd::open(pid)?;
            if let Some(cgroup) = cgroup {
                join(cgroup, pid)?;
            }
            Ok(Cloned::Parent(child))
        }
    }
}

fn own_child(pid: libc::c_long) -> io::Result<Pid> {
    Pid::new(pid).ok_or_else(|| io::Error::other("the kernel gave a child no usable number"))
}

fn join(cgroup: BorrowedFd<'_>, pid: Pid) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, openat};
    let procs = openat(cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    File::from(procs).write_all(pid.get().to_string().as_bytes())
}

/// The child's side. Everything it uses was made by the parent.
struct Child<'a> {
    plan: &'a Plan<'a>,
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    gate: RawFd,
    report: RawFd,
    oom: Option<&'a [u8]>,
}

impl Child<'_> {
    fn become_program(&self) -> ! {
        if let Err(e) = self.prepare() {
            fail(self.report, Stage::Prepare, e);
        }
        await_gate();
        if let Some(cwd) = &self.plan.cwd
            && let Err(e) = rustix::process::chdir(cwd.as_c_str())
        {
            fail(REPORT_FD, Stage::Directory, e);
        }
        fail(REPORT_FD, Stage::Exec, self.exec());
    }

    fn prepare(&self) -> Result<(), Errno> {
        rustix::process::setsid()?;
        // Sources first: they may have any number, also one of 0 to 4.
        for (target, source) in self.plan.stdio.iter().enumerate() {
            duplicate(source.as_raw_fd(), target as RawFd, 0)?;
        }
        if self.plan.terminal {
            // SAFETY: descriptor 0 was just put there.
            let stdin = unsafe { BorrowedFd::borrow_raw(0) };
            rustix::process::ioctl_tiocsctty(stdin)?;
        }
        duplicate(self.gate, GATE_FD, libc::O_CLOEXEC)?;
        duplicate(self.report, REPORT_FD, libc::O_CLOEXEC)?;
        close_from(REPORT_FD + 1);
        if let Some(score) = self.oom {
            restore_oom(score);
        }
        signals::reset_all_in_child();
        Ok(())
    }

    /// Tries each candidate; returns the error worth telling, as a search through `PATH` does: a
    /// file that is there and may not be run beats those that are not there.
    fn exec(&self) -> Errno {
        let mut worst = Errno::NOENT;
        for path in &self.plan.candidates {
            // SAFETY: both arrays end in a null pointer and, like the strings they point to, live
            // until the exec replaces them.
            unsafe { libc::execve(path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
            match last_errno() {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => worst = Errno::ACCESS,
                other => return other,
            }
        }
        worst
    }
}

/// Blocks until the keeper opens the gate; leaves if it closes.
fn await_gate() {
    // SAFETY: the descriptor was put there by `prepare`.
    let gate = unsafe { BorrowedFd::borrow_raw(GATE_FD) };
    let mut byte = [0_u8; 1];
    loop {
        match rustix::io::read(gate, &mut byte) {
            Ok(1) => return,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => leave(),
        }
    }
}

fn fail(report: RawFd, stage: Stage, error: Errno) -> ! {
    let mut bytes = [0_u8; 8];
    bytes[..4].copy_from_slice(&(stage as u32).to_ne_bytes());
    bytes[4..].copy_from_slice(&error.raw_os_error().to_ne_bytes());
    // SAFETY: the report pipe is open at this number at this stage.
    let report = unsafe { BorrowedFd::borrow_raw(report) };
    // Eight bytes go into an empty pipe whole.
    let _ = rustix::io::write(report, &bytes);
    leave()
}

fn leave() -> ! {
    // SAFETY: _exit runs no destructor and no handler of the parent's.
    unsafe { libc::_exit(NEVER_EXECED) }
}

fn last_errno() -> Errno {
    // Reads a thread-local integer; allocates nothing for an error the system gave.
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(code)
}

fn duplicate(from: RawFd, to: RawFd, flags: libc::c_int) -> Result<(), Errno> {
    // dup3 refuses equal numbers; an equal number would also keep its close-on-exec flag.
    let ret = if from == to {
        // SAFETY: fcntl with F_SETFD takes integers only.
        unsafe { libc::fcntl(to, libc::F_SETFD, if flags == 0 { 0 } else { libc::FD_CLOEXEC }) }
    } else {
        // SAFETY: dup3 takes integers only; the target belongs to this process alone.
        unsafe { libc::dup3(from, to, flags) }
    };
    if ret < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Keeps standard input as descriptor 3 and closes all others but the three streams. Called before
/// this process has opened anything of its own.
pub(crate) fn only_stdin() -> io::Result<OwnedFd> {
    const FIRST: RawFd = 3;
    // SAFETY: integers only. Whatever was there was inherited, and nobody here knows of it.
    let ret = unsafe { libc::dup3(0, FIRST, libc::O_CLOEXEC) };
    super::check(ret.into())?;
    close_from(FIRST + 1);
    // SAFETY: it was just made, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(FIRST) })
}

/// Closes everything from `first` up, so that the program starts with its three streams only.
fn close_from(first: RawFd) {
    // SAFETY: integers only; nothing in this process uses these descriptors any more.
    let ret = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if ret == 0 {
        return;
    }
    const MOST_FDS: u64 = 1 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    for fd in first..limit.unwrap_or(MOST_FDS).min(MOST_FDS) as RawFd {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

fn restore_oom(score: &[u8]) {
    use rustix::fs::{Mode, OFlags, open};
    if let Ok(file) =
        open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    {
        let _ = rustix::io::write(file.as_fd(), score);
    }
}

/// Has a command, once forked, start a session of its own, leave its parent, and hand no descriptor
/// but its three streams to the program.
pub(crate) fn detach_on_exec(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let detach = || {
        rustix::process::setsid()?;
        // SAFETY: as below; between fork and exec only system calls are made.
        if check(unsafe { libc::fork() }.into())? > 0 {
            // SAFETY: _exit runs no destructor and no handler of the parent's.
            unsafe { libc::_exit(0) };
        }
        let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
        // SAFETY: integers only. Marked and not closed, because the standard library still needs
        // its own pipe to report a failed exec. An old kernel refuses, and the streams opened by
        // this crate are close-on-exec anyway.
        unsafe { libc::syscall(libc::SYS_close_range, GATE_FD, u32::MAX, flags) };
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(detach) };
}

/// Which of the two processes after a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Parent,
    Child,
}

/// Forks a process that is not our child but our parent's, as we are: nobody here has to collect
/// it. The caller ignores SIGCHLD, for the kernels where it is our child after all.
pub(crate) fn fork_sibling() -> io::Result<Side> {
    // SAFETY: all-zero is the documented "nothing asked for" of clone_args. Without a signal of its
    // own a sibling gets ours.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PARENT as u64;
    // SAFETY: no CLONE_VM, so this is a fork; we have one thread, see `clone_process`. `args` is of
    // the size said.
    let ret = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    match check(ret) {
        Ok(0) => return Ok(Side::Child),
        Ok(_) => return Ok(Side::Parent),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {}
        Err(e) => return Err(e),
    }
    // Without clone3 a child of ours does as well: the kernel collects it.
    // SAFETY: as for clone3.
    Ok(match check(unsafe { libc::fork() }.into())? {
        0 => Side::Child,
        _ => Side::Parent,
    })
}

/// Splits this process in two and keeps the child: the caller's parent sees an orderly exit at
/// once, and nobody has to reap the process that goes on.
pub(crate) fn detach() -> io::Result<()> {
    // SAFETY: we have one thread, see `clone_process`.
    match check(unsafe { libc::fork() }.into())? {
        0 => {
            rustix::process::setsid()?;
            Ok(())
        }
        // SAFETY: _exit runs no destructor; the child owns everything now.
        _ => unsafe { libc::_exit(0) },
    }
}

const _: () = assert!(size_of::<Stage>() == 4);
