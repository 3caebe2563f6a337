//! The keeper: one small process per run, parent of the agent, owner until the end.
//!
//! Owns: the way from a spec to a running program (the gated exec), after which the loop in
//! `run_loop` takes over. Single-threaded, no runtime, no child but the agent. It needs nobody:
//! the process that started it may die at any instruction.
//!
//! ```text
//! spec read -> directory locked -> cgroup leaf made -> leader forked, waits at its gate
//!   -> record written and synced -> gate opened, exec -> told -> loop -> proof -> recorded -> gone
//! ```

mod clients;
mod nursery;
mod run_loop;
mod streams;

pub(crate) use clients::{remove_socket, through};
pub(crate) use nursery::Nursery;

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;
use std::time::Duration;

use crate::cohort::{Cohort, Role};
use crate::containment::{Containment, Leaf};
use crate::control::{Answer, Do, Frame, HEADER_BYTES, MAX_SPEC_BYTES, Reply, Request, json_frame};
use crate::controllers::{self, Bindings};
use crate::exit::{ExitStatus, UnknownStatus};
use crate::failpoint::failpoint;
use crate::identity::{Identity, Process};
use crate::meter::{MakeMeter, Metered};
use crate::passing;
use crate::proof::Proof;
use crate::record::{
    Cause, End, Fact, History, Lock, LockNote, NEVER_STARTED_FILE, Record, RunDir, StartFailure,
    StartStage, Started, Verdict, unix_ms,
};
use crate::spec::{Environment, Spec, c_string};
use crate::sys::fork::{self, Gated, Opened, Plan, Stage};
use crate::sys::signals::SignalFd;
use crate::sys::{self, wait};
use streams::{Ends, Streams};

/// The argument that makes an executable a keeper, see [`enter`].
pub const KEEPER_ARG: &str = "keeper";

/// The request on a new keeper's socket that says what to run.
pub(crate) const START_REQUEST_ID: u64 = 1;
/// How long a new keeper waits to be told what to run.
const SPEC_BOUND: Duration = Duration::from_secs(10);
/// How long the starter is kept waiting for an exec: longer than any disk, shorter than a person.
const EXEC_BOUND: Duration = Duration::from_secs(30);
/// How long a child that never became the program may take to leave.
const LEAVE_BOUND: Duration = Duration::from_secs(5);
/// The score asked of the kernel's memory killer; only root gets it.
const OOM_SCORE: i32 = -900;

/// Becomes a keeper if this process was started as one; otherwise does nothing.
///
/// Call it first in `main` of every program that calls [`start`](crate::start): a keeper is that
/// very program, started again with [`KEEPER_ARG`] as its first argument. With a run's directory
/// after it, it keeps that run; without, it is the nursery from which the keepers of one starter
/// are forked. Either has a socket as its standard input.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = kennel_process::keeper::enter() {
///         return code;
///     }
///     // The program's own work.
///     std::process::ExitCode::SUCCESS
/// }
/// ```
#[must_use]
pub fn enter() -> Option<ExitCode> {
    enter_with(|_| None)
}

/// Like [`enter`], for a program whose runs may have a meter.
#[must_use]
pub fn enter_with(make_meter: MakeMeter) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next().as_deref() != Some(OsStr::new(KEEPER_ARG)) {
        return None;
    }
    // A person who types `kennel keeper` has a terminal there, not a socket.
    let dir = args.next().map(PathBuf::from);
    if args.next().is_some() || !stdin_is_a_socket() {
        return None;
    }
    let kept = match dir {
        None => nursery::serve(make_meter),
        Some(dir) => leave_surroundings().and_then(|socket| {
            become_keeper(&RunDir::new(&dir), UnixStream::from(socket), make_meter)
        }),
    };
    Some(match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn stdin_is_a_socket() -> bool {
    use rustix::fs::{FileType, fstat};
    let mode = fstat(rustix::stdio::stdin()).map(|s| FileType::from_raw_mode(s.st_mode));
    mode.is_ok_and(|m| m == FileType::Socket)
}

/// Becomes a process of its own, child of nobody who waits for it. Returns the socket that was its
/// standard input.
fn leave_surroundings() -> io::Result<OwnedFd> {
    sys::fork::detach()?;
    // Whoever started us must be able to unmount and remove what they were in.
    rustix::process::chdir("/")?;
    take_stdin()
}

fn become_keeper(dir: &RunDir, mut starter: UnixStream, make_meter: MakeMeter) -> io::Result<()> {
    sys::set_name(c"kennel-keeper");
    let signals = SignalFd::block_all()?;
    failpoint("start.entered")?;
    let (id, spec) = read_spec(&mut starter)?;
    failpoint("start.spec")?;
    if let Some(descriptors) = spec.descriptors {
        sys::lower_descriptor_limit(descriptors)?;
    }
    // Before the start: it may have to know what is there already.
    let meter = std::panic::catch_unwind(|| make_meter(&spec)).unwrap_or(None);
    match start(dir, &spec, signals) {
        Ok((mut kept, leader)) => {
            failpoint("start.opened")?;
            tell_started(&starter, id, &kept, &leader);
            drop(leader);
            failpoint("start.told")?;
            // After the start: a meter that cannot begin must not keep an agent waiting. What it
            // missed is in the files.
            kept.metered = meter.and_then(|meter| Metered::begin(dir.path(), meter).ok());
            drop(spec);
            sys::give_back_memory();
            run_loop::keep(kept, starter)
        }
        Err(failure) => {
            let reply = Answer::Reply { id, result: Ok(Reply::StartFailed(failure)) };
            starter.write_all(&json_frame(&reply))
        }
    }
}

/// Takes the starter's socket out of descriptor 0, which becomes `/dev/null` like 1 and 2.
fn take_stdin() -> io::Result<OwnedFd> {
    // To the first number behind the streams, and nothing behind it: what the starter's own parents
    // left open must not stay open for as long as a run lives.
    let socket = sys::fork::only_stdin()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(socket)
}

fn read_spec(starter: &mut UnixStream) -> io::Result<(u64, Spec)> {
    starter.set_read_timeout(Some(SPEC_BOUND))?;
    let mut header = [0_u8; HEADER_BYTES];
    starter.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    if length > MAX_SPEC_BYTES {
        return Err(bad("the spec is too large"));
    }
    let mut payload = vec![0; length];
    starter.read_exact(&mut payload)?;
    let Ok(Frame::Json(json)) = Frame::from_parts(header[4], payload) else {
        return Err(bad("the first frame is not a request"));
    };
    match serde_json::from_slice(&json)? {
        Request { id, what: Do::Start(spec) } => Ok((id, *spec)),
        Request { .. } => Err(bad("the first request is not a start")),
    }
}

/// A run that has been started.
pub(crate) struct Kept {
    dir: RunDir,
    pub(crate) spec: Spec,
    pub(crate) started: Started,
    pub(crate) record: Record,
    pub(crate) cohort: Cohort,
    pub(crate) streams: Streams,
    pub(crate) listener: clients::Listener,
    pub(crate) signals: SignalFd,
    pub(crate) metered: Option<Metered>,
    /// When the leader was given its number.
    pub(crate) forked_at: Duration,
    /// Last, and so let go last: a free lock means that nothing of the keeper is left.
    _lock: Lock,
}

/// The whole way from a spec to a running program. A failure at any point leaves no process, no
/// cgroup and no open gate behind.
fn start(dir: &RunDir, spec: &Spec, signals: SignalFd) -> Result<(Kept, OwnedFd), StartFailure> {
    let program = spec.program.to_string_lossy().into_owned();
    let on = |stage: StartStage, path: &str| {
        let path = path.to_owned();
        move |e: io::Error| failure(stage, path, &e)
    };
    let prepared = prepare(dir, spec)?;
    let here = dir.path().to_string_lossy();
    let mut undo = Undo { leaf: None, child: None };
    let contained = contain(spec, &prepared, &mut undo);
    let contained = contained.map_err(on(StartStage::Directory, &here))?;
    failpoint("start.leaf").map_err(on(StartStage::Directory, &here))?;

    let forked_at = sys::boottime();
    let mut binds = bind(spec, &undo, contained.because.as_deref());
    let (gated, because) = fork_leader(spec, &prepared.ends, &mut undo, contained.because)
        .map_err(on(StartStage::Fork, &program))?;
    let streams = prepared.ends.forked();
    let leader = failpoint("start.forked").and_then(|()| prepared.keeper.of_child(&gated.child));
    let leader = leader.map_err(on(StartStage::Fork, &program))?;
    // Everything that can fail is done before the gate opens: what runs is kept.
    let copy = gated.child.as_fd().try_clone_to_owned();
    let copy = copy.map_err(on(StartStage::Fork, &program))?;
    let containment = match (&undo.leaf, contained.subreaper) {
        (Some(_), _) => Containment::Cgroup,
        (None, true) => Containment::Subreaper,
        (None, false) => Containment::Group,
    };
    match (&undo.leaf, &because) {
        (Some(leaf), _) => controllers::check_charged(leaf, &mut binds),
        (None, why) => binds = without_leaf(spec, why.as_deref()),
    }
    let leaf = undo.leaf.as_ref().map(|l| l.id().clone());
    let started = Started {
        run: spec.run.clone(),
        keeper: prepared.keeper,
        leader: leader.clone(),
        containment,
        containment_because: because,
        leaf,
        binds,
        streams: spec.streams,
        on_exit: spec.on_exit,
        ask: spec.ask,
        grace: spec.grace,
        label: spec.label.clone(),
        at_ms: unix_ms(),
    };
    let mut record = Record::create(dir, &started).map_err(on(StartStage::Record, &here))?;
    let recorded = failpoint("start.recorded")
        .and_then(|()| prepared.lock.seal())
        .and_then(|()| record.opening());
    let recorded = recorded.map_err(on(StartStage::Record, &here));
    let leader = match recorded.and_then(|()| open_gate(gated, spec)) {
        Ok(child) => Process::from_child(child, leader),
        Err(failed) => return Err(never_started(undo, record, failed)),
    };
    let cohort = Cohort::new(containment, Role::Owner, Some(leader), undo.keep());
    let kept = Kept {
        dir: dir.clone(),
        spec: forget_environment(spec),
        started,
        record,
        cohort,
        streams,
        listener: prepared.listener,
        signals,
        metered: None,
        forked_at,
        _lock: prepared.lock,
    };
    Ok((kept, copy))
}

/// What a start needs before there is any process.
struct Prepared {
    keeper: Identity,
    /// Where its leaf belongs, or why it can have none.
    planned: Result<PathBuf, String>,
    listener: clients::Listener,
    ends: Ends,
    lock: Lock,
}

impl Prepared {
    fn note(&self, leaf: Option<PathBuf>) -> io::Result<()> {
        self.lock.write_note(&LockNote { keeper: self.keeper.clone(), leaf })
    }
}

fn prepare(dir: &RunDir, spec: &Spec) -> Result<Prepared, StartFailure> {
    let here = dir.path().display().to_string();
    spec.check().map_err(|e| StartFailure {
        stage: StartStage::Spec,
        path: spec.program.to_string_lossy().into_owned(),
        errno: None,
        message: e.to_string(),
    })?;
    let in_directory = |e: io::Error| failure(StartStage::Directory, here.clone(), &e);
    let taken = |why: &str| in_directory(io::Error::new(io::ErrorKind::AlreadyExists, why));
    let lock = dir.lock().map_err(in_directory)?;
    let lock = lock.ok_or_else(|| taken("another keeper holds its lock"))?;
    if dir.join(NEVER_STARTED_FILE).exists() {
        return Err(taken("somebody has concluded already that this run never started"));
    }
    if !matches!(History::read(dir), Ok(None)) {
        return Err(taken("it holds the record of another run"));
    }
    sys::proc::check_ours().map_err(in_directory)?;
    // Of an earlier start here that got no further than this.
    crate::adopt::remove_unused_leaf(dir).map_err(in_directory)?;
    let keeper = Identity::own().map_err(in_directory)?;
    // Before any other file: a directory with something in it and no note has been tampered with.
    let planned = match spec.containment {
        Containment::Cgroup => Leaf::path_for(&spec.run),
        Containment::Subreaper | Containment::Group => Err("not asked for".to_owned()),
    };
    let note = LockNote { keeper: keeper.clone(), leaf: planned.clone().ok() };
    lock.write_note(&note).map_err(in_directory)?;
    log_panics(dir);
    failpoint("start.locked").map_err(in_directory)?;
    let listener = clients::Listener::bind(dir.path()).map_err(in_directory)?;
    let ends = Streams::open(dir.path(), spec.streams, spec.keep_bytes)
        .map_err(|e| failure(StartStage::Streams, here.clone(), &e))?;
    Ok(Prepared { keeper, planned, listener, ends, lock })
}

/// What has to be undone if a start fails half-way: the child before its gate, then its cgroup.
struct Undo {
    leaf: Option<Leaf>,
    child: Option<OwnedFd>,
}

impl Undo {
    fn keep(mut self) -> Option<Leaf> {
        self.child = None;
        self.leaf.take()
    }
}

impl Drop for Undo {
    /// The gate is closed by now, so the child would leave by itself; this is faster. It is our
    /// only child.
    fn drop(&mut self) {
        let deadline = sys::boottime() + LEAVE_BOUND;
        if let Some(child) = self.child.take() {
            let _ = rustix::process::pidfd_send_signal(&child, rustix::process::Signal::KILL);
            while let Ok(state) = wait::any() {
                match state {
                    wait::AnyChild::Ended(pid) => drop(wait::reap_pid(pid)),
                    wait::AnyChild::None => break,
                    wait::AnyChild::Alive if sys::boottime() > deadline => break,
                    wait::AnyChild::Alive => std::thread::sleep(Duration::from_micros(200)),
                }
            }
        }
        if let Some(leaf) = &self.leaf {
            let _ = leaf.kill_all();
            let _ = leaf.remove();
        }
    }
}

/// What could be had to contain the run with, besides the leaf.
struct Contained {
    subreaper: bool,
    because: Option<String>,
}

fn contain(spec: &Spec, prepared: &Prepared, undo: &mut Undo) -> io::Result<Contained> {
    let (subreaper, because) = match spec.containment {
        Containment::Group => (false, Some("asked for no more than a group".to_owned())),
        Containment::Cgroup | Containment::Subreaper => match sys::become_subreaper() {
            Ok(()) => (true, None),
            Err(e) => (false, Some(format!("failed to become a subreaper: {e}"))),
        },
    };
    let without = |because| Contained { subreaper, because };
    let path = match (subreaper, spec.containment) {
        (false, _) => Err(because),
        (true, Containment::Cgroup) => prepared.planned.clone().map_err(Some),
        (true, Containment::Subreaper | Containment::Group) => {
            Err(Some("asked for no more than a subreaper".to_owned()))
        }
    };
    let made = path.and_then(|path| Leaf::create(path).map_err(Some));
    let because = match made {
        Ok(leaf) => {
            undo.leaf = Some(leaf);
            None
        }
        Err(because) => {
            // It may be somebody else's that stands there.
            if prepared.planned.is_ok() {
                prepared.note(None)?;
            }
            because
        }
    };
    failpoint("start.contained")?;
    Ok(without(because))
}

/// Has the kernel hold the run to its bounds, before anybody is in the leaf.
fn bind(spec: &Spec, undo: &Undo, because: Option<&str>) -> Bindings {
    match &undo.leaf {
        Some(leaf) => controllers::bind(leaf, &spec.limits),
        None => without_leaf(spec, because),
    }
}

fn without_leaf(spec: &Spec, because: Option<&str>) -> Bindings {
    let why = because.map(|why| format!("the run has no cgroup: {why}"));
    Bindings::sampled(&spec.limits, &why.unwrap_or_else(|| "the run has no cgroup".to_owned()))
}

/// Forks the leader into the leaf. If the kernel does not let it in there, the leaf is given up and
/// the run is contained by the subreaper alone, with the reason.
fn fork_leader(
    spec: &Spec,
    ends: &Ends,
    undo: &mut Undo,
    because: Option<String>,
) -> io::Result<(Gated, Option<String>)> {
    let oom_score = sys::protect_from_oom(OOM_SCORE);
    let mut plan = plan(spec, ends, oom_score)?;
    let forked = match &undo.leaf {
        None => fork::fork(&plan).map(|gated| (gated, because)),
        Some(leaf) => {
            plan.cgroup = Some(leaf.dir());
            fork::fork(&plan).map(|gated| (gated, because))
        }
    };
    let (gated, because) = match forked {
        Ok(forked) => forked,
        Err(e) if undo.leaf.is_some() => {
            plan.cgroup = None;
            let gated = fork::fork(&plan)?;
            drop(plan);
            if let Some(leaf) = undo.leaf.take() {
                let _ = leaf.remove();
            }
            (gated, Some(format!("failed to start a process in the run's cgroup: {e}")))
        }
        Err(e) => return Err(e),
    };
    undo.child = Some(gated.child.as_fd().try_clone_to_owned()?);
    Ok((gated, because))
}

fn plan<'a>(spec: &Spec, ends: &'a Ends, oom_score: Option<i32>) -> io::Result<Plan<'a>> {
    let invalid = |e: crate::spec::SpecError| io::Error::new(io::ErrorKind::InvalidInput, e);
    let env = spec.env.resolve(std::env::vars_os(), &spec.run);
    let entry = |(name, value): &(OsString, OsString)| {
        let mut entry = name.clone().into_vec();
        entry.push(b'=');
        entry.extend_from_slice(value.as_bytes());
        c_string(OsStr::from_bytes(&entry))
    };
    let strings = std::iter::once(&spec.program).chain(&spec.args);
    Ok(Plan {
        candidates: candidates(&spec.program, &env).map_err(invalid)?,
        argv: strings.map(|s| c_string(s)).collect::<Result<_, _>>().map_err(invalid)?,
        envp: env.iter().map(entry).collect::<Result<_, _>>().map_err(invalid)?,
        cwd: spec.cwd.as_ref().map(|c| c_string(c.as_os_str())).transpose().map_err(invalid)?,
        stdio: ends.child(),
        terminal: matches!(spec.streams, crate::spec::Streams::Terminal { .. }),
        cgroup: None,
        oom_score,
    })
}

/// The paths to try for a program: itself if it holds a slash, else one for each part of the run's
/// own `PATH`.
fn candidates(
    program: &OsStr,
    env: &[(OsString, OsString)],
) -> Result<Vec<CString>, crate::spec::SpecError> {
    const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    std::env::split_paths(path)
        .map(|dir| {
            let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
            c_string(dir.join(program).as_os_str())
        })
        .collect()
}

fn open_gate(gated: Gated, spec: &Spec) -> Result<sys::Pidfd, StartFailure> {
    let program = spec.program.to_string_lossy().into_owned();
    let (child, opened) = gated.open(EXEC_BOUND);
    match opened {
        // Of a child that hangs nobody can say that it never ran: it is kept, and can be stopped.
        Opened::Execed | Opened::Unheard => Ok(child),
        Opened::Failed { stage: Stage::Prepare, error } => {
            Err(failure(StartStage::Fork, program, &error))
        }
        Opened::Failed { stage: Stage::Directory, error } => {
            let dir = spec.cwd.as_ref().map_or(String::new(), |c| c.display().to_string());
            Err(failure(StartStage::WorkingDirectory, dir, &error))
        }
        Opened::Failed { stage: Stage::Exec, error } => {
            Err(failure(StartStage::Exec, program, &error))
        }
    }
}

/// Ends a run whose record is written and whose program never ran: collects the child and removes
/// its cgroup before anybody is told that nothing ran.
fn never_started(undo: Undo, mut record: Record, failed: StartFailure) -> StartFailure {
    drop(undo);
    let end = End {
        cause: Cause::NeverStarted,
        status: ExitStatus::Unknown(UnknownStatus::NeverStarted),
        verdict: Verdict::Dead(Proof::never_started()),
        output: crate::OutputTotals::default(),
        usage: None,
        start_error: Some(failed.clone()),
        at_ms: unix_ms(),
    };
    // If this cannot be written the record says "started", and whoever adopts the run finds its
    // leader gone: less said, nothing wrong said.
    let _ = record.append(&Fact::Ended(Box::new(end)));
    failed
}

fn failure(stage: StartStage, path: String, error: &io::Error) -> StartFailure {
    StartFailure { stage, path, errno: error.raw_os_error(), message: error.to_string() }
}

/// The environment holds the user's secrets and has done its work.
fn forget_environment(spec: &Spec) -> Spec {
    Spec { env: Environment::default(), args: Vec::new(), ..spec.clone() }
}

/// What goes wrong in the keeper itself is said on standard error, which becomes a file of the run
/// when there is something to say. Tried once: without the file it is not said.
fn open_log(dir: &RunDir) {
    static OPENED: Once = Once::new();
    OPENED.call_once(|| {
        let _ = sys::append_stderr_to(&dir.join("keeper.log"));
    });
}

fn log_panics(dir: &RunDir) {
    let dir = dir.clone();
    std::panic::set_hook(Box::new(move |panic| {
        open_log(&dir);
        let _ = writeln!(io::stderr(), "{panic}");
    }));
}

/// Tells the starter, and gives it a descriptor of the leader: with it the status can be had even
/// if this keeper is killed. The starter may be gone; that changes nothing.
fn tell_started(starter: &UnixStream, id: u64, kept: &Kept, leader: &OwnedFd) {
    let status = run_loop::first_status(kept);
    let frame = json_frame(&Answer::Reply { id, result: Ok(Reply::Status(Box::new(status))) });
    if let Ok(n) = passing::send(starter, &frame, leader.as_fd()) {
        let _ = (&*starter).write_all(&frame[n..]);
    }
}
