//! From a spec to a run that is owned: starts a keeper, hands it the spec, and returns once the
//! program has really been exec'd.
//!
//! Owns: the starter's side of the gated exec. The keeper is this very executable, entered through
//! [`keeper::enter`](crate::keeper::enter). Whatever happens to the starter afterwards is no
//! concern of the run's.

use std::ffi::OsString;
use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::connection::{Connection, ConnectionError};
use crate::control::{Do, MAX_SPEC_BYTES, Reply, Request, json_frame};
use crate::identity::Process;
use crate::keeper::KEEPER_ARG;
use crate::record::{RunDir, StartFailure, Started};
use crate::spec::{EnvBase, Environment, Spec, SpecError};

/// How long a start may take: the keeper's own bound on the exec, and room for a loaded machine.
const START_BOUND: Duration = Duration::from_secs(45);

/// The executable that becomes a run's keeper.
#[derive(Clone, Debug)]
pub struct KeeperProgram {
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
}

impl Default for KeeperProgram {
    /// The running executable itself, also if its file has been replaced since.
    fn default() -> Self {
        Self::new("/proc/self/exe")
    }
}

impl KeeperProgram {
    /// Another executable that calls [`keeper::enter`](crate::keeper::enter) first in its `main`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), env: Vec::new() }
    }

    /// Gives the keeper itself a variable; the run does not see it. A keeper has no other
    /// environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// A run that was just started: its program is running, owned and recorded.
#[derive(Debug)]
pub struct Run {
    /// The connection to its keeper.
    pub connection: Connection,
    /// What was recorded of it before it ran.
    pub started: Started,
    /// Its leader, held open. As long as it is held, the leader's status can be had even if the
    /// keeper is killed, where the kernel remembers (6.15); see
    /// [`Orphan::know_leader`](crate::Orphan::know_leader).
    pub leader: Process,
    dir: PathBuf,
}

impl Run {
    /// The run's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Starts a run in a new directory, with this executable as its keeper.
///
/// Returns after the program has been exec'd. The run goes on when the returned value is dropped,
/// and when this process ends.
///
/// ```standalone_crate
/// use std::time::Duration;
/// use kennel_process::{RunId, Spec, Waited, start};
///
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = kennel_process::keeper::enter() {
///         return code;
///     }
///     let dir = std::env::temp_dir().join(format!("kennel-start-{}", std::process::id()));
///     let spec = Spec::new(RunId::new("example").unwrap(), "sh").arg("-c").arg("exit 3");
///     let mut run = start(&spec, &dir).unwrap();
///     let Waited::Ended(end) = run.connection.wait_end(Duration::from_secs(10)).unwrap() else {
///         panic!("it has ten seconds");
///     };
///     assert_eq!(end.status, kennel_process::ExitStatus::Exited(3));
///     std::fs::remove_dir_all(&dir).unwrap();
///     std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn start(spec: &Spec, dir: &Path) -> Result<Run, StartError> {
    start_with(spec, dir, &KeeperProgram::default())
}

/// Like [`start`], with another executable as the keeper.
pub fn start_with(spec: &Spec, dir: &Path, keeper: &KeeperProgram) -> Result<Run, StartError> {
    spec.check().map_err(StartError::Spec)?;
    let spec = complete(spec).map_err(StartError::Directory)?;
    let frame = json_frame(&Request { id: 1, what: Do::Start(Box::new(spec)) });
    if frame.len() > MAX_SPEC_BYTES {
        return Err(StartError::TooLarge(frame.len()));
    }
    let dir = std::path::absolute(dir).map_err(StartError::Directory)?;
    make_directory(&dir).map_err(StartError::Directory)?;
    let (mut socket, mut first) = launch(&dir, keeper).map_err(StartError::Launch)?;
    let heard = match socket.write_all(&frame) {
        Ok(()) => hear(socket, dir),
        Err(_) => Err(StartError::KeeperDied),
    };
    // The keeper detached itself as its first act: this collects what it detached from.
    let _ = first.wait();
    heard
}

/// Settles what the keeper would otherwise take from its own surroundings: it has none.
fn complete(spec: &Spec) -> io::Result<Spec> {
    let set = spec.env.resolve(std::env::vars_os(), &spec.run);
    let cwd = match &spec.cwd {
        Some(cwd) => std::path::absolute(cwd)?,
        None => std::env::current_dir()?,
    };
    Ok(Spec { env: Environment { base: EnvBase::Clear, set }, cwd: Some(cwd), ..spec.clone() })
}

fn make_directory(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other,
    }
}

fn launch(dir: &Path, keeper: &KeeperProgram) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(&keeper.program)
        .arg(KEEPER_ARG)
        .arg(dir)
        .env_clear()
        .envs(keeper.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((ours, child))
}

/// Reads the keeper's first answer and the leader's descriptor that comes with it.
fn hear(socket: UnixStream, dir: PathBuf) -> Result<Run, StartError> {
    let deadline = Instant::now() + START_BOUND;
    let mut received = Vec::new();
    let mut leader = None;
    while received.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StartError::NoAnswer);
        }
        socket.set_read_timeout(Some(left)).map_err(StartError::Launch)?;
        match receive_with_descriptor(&socket, &mut leader) {
            Ok(bytes) if bytes.is_empty() => return Err(StartError::KeeperDied),
            Ok(bytes) => received = bytes,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(StartError::KeeperDied),
        }
    }
    let mut connection = Connection::new(RunDir::new(&dir), socket, received);
    let started = match connection.reply_to(1) {
        Ok(Reply::Status(status)) => status.started,
        Ok(Reply::StartFailed(failure)) => return Err(StartError::Failed(failure)),
        Ok(Reply::Hello { .. } | Reply::Done) => return Err(StartError::KeeperDied),
        Err(ConnectionError::NoAnswer) => return Err(StartError::NoAnswer),
        Err(_) => return Err(StartError::KeeperDied),
    };
    let held = leader.and_then(|fd| Process::from_parts(fd, started.leader.clone()));
    let leader = held.ok_or(StartError::KeeperDied)?;
    Ok(Run { connection, started, leader, dir })
}

fn receive_with_descriptor(
    socket: &UnixStream,
    leader: &mut Option<OwnedFd>,
) -> io::Result<Vec<u8>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = vec![0_u8; 64 << 10];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut bytes)];
    let received = loop {
        match recvmsg(socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            *leader = fds.next();
        }
    }
    bytes.truncate(received.bytes);
    Ok(bytes)
}

/// Starts a program of our own that must outlive us, the daemon mostly: in a session of its own,
/// child of nobody, with no input, its output appended to `log`, and no other descriptor. Not a
/// run: nobody owns it but itself.
pub fn start_detached(program: &Path, args: &[OsString], log: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let log = std::fs::File::options().append(true).create(true).mode(0o600).open(log)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    crate::sys::fork::detach_on_exec(&mut command);
    // What is waited for is the process in between, which leaves at once.
    command.spawn()?.wait()?;
    Ok(())
}

/// Why a run could not be started. Except for [`NoAnswer`](Self::NoAnswer) and
/// [`KeeperDied`](Self::KeeperDied), no instruction of the program has run; after those two,
/// [`adopt`](crate::adopt) tells.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The spec is not one that can be run.
    Spec(SpecError),
    /// The spec is larger than any kernel accepts.
    TooLarge(usize),
    /// The run's directory, or the one it should start in, cannot be used.
    Directory(io::Error),
    /// No keeper could be started.
    Launch(io::Error),
    /// The keeper could not start the program, and says at what point.
    Failed(StartFailure),
    /// The keeper ended without an answer. Look into the run's directory.
    KeeperDied,
    /// The keeper has not answered. Look into the run's directory.
    NoAnswer,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(e) => e.fmt(f),
            Self::TooLarge(n) => write!(
                f,
                "arguments and environment take {n} bytes, more than any kernel accepts: \
                 pass large data by file or standard input"
            ),
            Self::Directory(e) => write!(f, "failed to prepare the run's directory: {e}"),
            Self::Launch(e) => write!(f, "failed to start a keeper: {e}"),
            Self::Failed(failure) => failure.fmt(f),
            Self::KeeperDied => f.write_str("the keeper ended before it had answered"),
            Self::NoAnswer => write!(f, "the keeper did not answer within {START_BOUND:?}"),
        }
    }
}

impl std::error::Error for StartError {}
