//! From a spec to a run that is owned: has a keeper forked, hands it the spec, and returns once the
//! program has really been exec'd.
//!
//! Owns: the starter's side of the gated exec. The keeper is this very executable, entered through
//! [`keeper::enter`](crate::keeper::enter) and loaded once for all runs of a starter. Whatever
//! happens to the starter afterwards is no concern of the run's.

use std::ffi::OsString;
use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::connection::{Connection, ConnectionError};
use crate::control::{Do, MAX_SPEC_BYTES, Reply, Request, json_frame};
use crate::identity::Process;
use crate::keeper::{Nursery, START_REQUEST_ID};
use crate::passing;
use crate::record::{RunDir, StartFailure, Started};
use crate::spec::{EnvBase, Environment, Spec, SpecError};

/// How long a start may take: the keeper's own bound on the exec, and room for a loaded machine.
const START_BOUND: Duration = Duration::from_secs(45);

/// Room for a first answer, which takes a fiftieth of it. A longer one comes in parts.
const ANSWER_BYTES: usize = 64 << 10;

/// The executable that becomes a run's keeper.
///
/// It is loaded once, at the first start: keepers are forked from that one process, which this
/// value and its clones share and which leaves with the last of them. A keeper therefore has the
/// limits, the cgroup and the file mode mask that this process had at its first start.
#[derive(Clone, Debug)]
pub struct KeeperProgram {
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
    nursery: Arc<Mutex<Option<Nursery>>>,
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
        Self { program: program.into(), env: Vec::new(), nursery: Arc::default() }
    }

    /// Gives the keeper itself a variable; the run does not see it. A keeper has no other
    /// environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self.nursery = Arc::default();
        self
    }

    /// Has a keeper forked for a run. Returns our end of its socket.
    fn launch(&self, dir: &Path) -> Result<UnixStream, StartError> {
        let (ours, theirs) = UnixStream::pair().map_err(StartError::Launch)?;
        let mut nursery = self.nursery.lock().unwrap_or_else(PoisonError::into_inner);
        if nursery.as_ref().is_some_and(|open| open.hand_over(dir, &theirs).is_ok()) {
            return Ok(ours);
        }
        // There was none yet, or it was killed.
        let open = Nursery::open(&self.program, &self.env).map_err(StartError::Launch)?;
        open.hand_over(dir, &theirs).map_err(|_| StartError::KeeperDied)?;
        *nursery = Some(open);
        Ok(ours)
    }

    /// Has the next start open another nursery, because this one may stand still.
    fn forget_nursery(&self) {
        *self.nursery.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
    static OWN: LazyLock<KeeperProgram> = LazyLock::new(KeeperProgram::default);
    start_with(spec, dir, &OWN)
}

/// Like [`start`], with another executable as the keeper.
pub fn start_with(spec: &Spec, dir: &Path, keeper: &KeeperProgram) -> Result<Run, StartError> {
    spec.check().map_err(StartError::Spec)?;
    let spec = complete(spec).map_err(StartError::Directory)?;
    let frame = json_frame(&Request { id: START_REQUEST_ID, what: Do::Start(Box::new(spec)) });
    if frame.len() > MAX_SPEC_BYTES {
        return Err(StartError::TooLarge(frame.len()));
    }
    let dir = std::path::absolute(dir).map_err(StartError::Directory)?;
    make_directory(&dir).map_err(StartError::Directory)?;
    let mut socket = keeper.launch(&dir)?;
    socket.set_write_timeout(Some(START_BOUND)).map_err(StartError::Launch)?;
    let heard = match socket.write_all(&frame) {
        Ok(()) => hear(socket, dir),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(StartError::NoAnswer),
        Err(_) => Err(StartError::KeeperDied),
    };
    if let Err(StartError::NoAnswer) = heard {
        keeper.forget_nursery();
    }
    heard
}

/// Settles what the keeper would otherwise take from its own surroundings: it has none.
fn complete(spec: &Spec) -> io::Result<Spec> {
    let set = spec.env.resolve(std::env::vars_os(), &spec.run);
    let cwd = match &spec.cwd {
        Some(cwd) => std::path::absolute(cwd)?,
        None => std::env::current_dir()?,
    };
    let env = Environment { base: EnvBase::Clear, set };
    let descriptors = spec.descriptors.or(BEFORE_RAISED.get().copied());
    Ok(Spec { env, cwd: Some(cwd), descriptors, ..spec.clone() })
}

/// The limit that was in force before it was raised.
static BEFORE_RAISED: OnceLock<u64> = OnceLock::new();

/// Allows this process as many open files as the system lets it have, and returns how many. Runs it
/// starts get the limit from before: programs that use `select` break with the larger one.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let Some(soft) = before.current else { return Ok(u64::MAX) };
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: before.maximum, ..before })?;
    BEFORE_RAISED.get_or_init(|| soft);
    Ok(before.maximum.unwrap_or(u64::MAX))
}

fn make_directory(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other,
    }
}

/// Reads the keeper's first answer and the leader's descriptor that comes with it.
fn hear(socket: UnixStream, dir: PathBuf) -> Result<Run, StartError> {
    let deadline = Instant::now() + START_BOUND;
    let (mut received, mut leader) = (Vec::new(), None);
    while received.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StartError::NoAnswer);
        }
        socket.set_read_timeout(Some(left)).map_err(StartError::Launch)?;
        match passing::receive(&socket, ANSWER_BYTES) {
            Ok((bytes, _)) if bytes.is_empty() => return Err(StartError::KeeperDied),
            Ok(answer) => (received, leader) = answer,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(StartError::KeeperDied),
        }
    }
    let mut connection = Connection::new(RunDir::new(&dir), socket, received);
    let started = match connection.reply_to(START_REQUEST_ID) {
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
