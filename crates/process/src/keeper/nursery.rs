//! The nursery: the process from which a starter's keepers are forked. To load an executable takes
//! longer than all the rest of a start, and so is done once per starter and not once per run.
//!
//! ```text
//! starter --(run directory, socket)--> nursery --fork--> keeper, child of init like the nursery
//! ```
//!
//! Owns: both ends of the channel between the two. The nursery knows no run, holds no file and has
//! no child; it leaves when its starter is gone. Killed at any instruction it costs at most a start
//! that had not begun, and the next start opens another.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{KEEPER_ARG, START_REQUEST_ID, become_keeper, failure, leave_surroundings};
use crate::control::{Answer, Reply, json_frame};
use crate::meter::MakeMeter;
use crate::passing;
use crate::record::{RunDir, StartStage};
use crate::sys::{self, fork};

/// The longest path the kernel takes.
const MAX_PATH_BYTES: usize = 4096;
/// How long a starter waits for room in the channel: as long as for a keeper to read its spec.
const CHANNEL_BOUND: Duration = Duration::from_secs(10);

/// The starter's end.
#[derive(Debug)]
pub(crate) struct Nursery(OwnedFd);

impl Nursery {
    /// Starts a nursery. What is sent to it before it listens waits for it.
    pub(crate) fn open(program: &Path, env: &[(OsString, OsString)]) -> io::Result<Self> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(CHANNEL_BOUND))?;
        let mut first = Command::new(program)
            .arg(KEEPER_ARG)
            .env_clear()
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // It detaches itself as its first act: this collects what it detached from, unless we
        // ignore the ends of our children and the kernel has done so.
        let _ = first.wait();
        Ok(Self(ours))
    }

    /// Has a keeper forked for the run in this directory, with `starter` as its end of the socket.
    /// An error means that there is none: the nursery is gone.
    pub(crate) fn hand_over(&self, dir: &Path, starter: &UnixStream) -> io::Result<()> {
        passing::send(&self.0, dir.as_os_str().as_bytes(), starter.as_fd()).map(drop)
    }
}

/// Forks a keeper for each message until the starter has closed the channel. Returns in the nursery
/// then, and in each keeper when its run is over.
pub(super) fn serve(make_meter: MakeMeter) -> io::Result<()> {
    let channel = leave_surroundings()?;
    sys::set_name(c"kennel-nursery");
    sys::signals::ignore_children()?;
    // What is the same for every keeper is found out once.
    sys::proc::boot_id().and(sys::proc::pid_namespace())?;
    loop {
        let (dir, starter) = passing::receive(&channel, MAX_PATH_BYTES)?;
        let dir = RunDir::new(Path::new(&OsString::from_vec(dir)));
        let starter = match starter {
            Some(starter) => UnixStream::from(starter),
            None if dir.path().as_os_str().is_empty() => return Ok(()),
            None => continue,
        };
        match fork::fork_sibling() {
            Ok(fork::Side::Parent) => {}
            Ok(fork::Side::Child) => {
                // Ours alone to hear on: with a copy in each keeper, nobody would see it close.
                drop(channel);
                rustix::process::setsid()?;
                return become_keeper(&dir, starter, make_meter);
            }
            Err(e) => refuse(starter, &dir, &e),
        }
    }
}

fn refuse(mut starter: UnixStream, dir: &RunDir, error: &io::Error) {
    let failed = failure(StartStage::Fork, dir.path().display().to_string(), error);
    let result = Ok(Reply::StartFailed(failed));
    // A starter that is gone needs no answer.
    let _ = starter.write_all(&json_frame(&Answer::Reply { id: START_REQUEST_ID, result }));
}
