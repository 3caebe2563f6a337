//! What became of a run, from its directory alone, in any process, after any crash.
//!
//! ```text
//! record damaged, newer, or taken away -----------> Unreadable (not dead, not alive: unknown)
//! record has an end ------------------------------> Ended
//! lock held --------------------------------------> Running (ask the keeper)
//! lock free, record of another boot --------------> Ended (status unknown: reboot)
//! lock free, no record, or one that says nothing
//! of an opened gate ------------------------------> NeverStarted
//! lock free, record without an end ---------------> Orphaned (the keeper died): stop it from here
//! ```
//!
//! Owns: this decision, and the stop of a run whose keeper is dead, by the same ladder and the same
//! cohort code the keeper uses. Never reads a damaged record as "nothing there".

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cohort::{self, Cohort, Role};
use crate::connection::{Connection, ConnectionError};
use crate::containment::{Leaf, LeafId, LeafRemoved, Reopened};
use crate::control::Status;
use crate::controllers::OomKill;
use crate::exit::{ExitStatus, UnknownStatus};
use crate::failpoint::failpoint;
use crate::identity::{Liveness, Process};
use crate::keeper::remove_socket;
use crate::ladder::{Ladder, Rung, Seen};
use crate::output::OutputTotals;
use crate::proof::{Proof, Survivor};
use crate::record::{
    Cause, End, Fact, History, Lock, Lost, ReadError, Record, RunDir, Started, Verdict, unix_ms,
};
use crate::spec::OnExit;
use crate::sys;

/// How long a keeper that holds its lock may take to open its socket, or to let go of the lock.
const KEEPER_BOUND: Duration = Duration::from_secs(5);
/// Pause between two looks at a keeper that is coming or going.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// How long whoever collects orphans may take before the leader's status is called unknown. Some
/// inits of containers and small machines look only every other second.
const STATUS_BOUND: Duration = Duration::from_secs(6);
/// The longest sleep while a stop is under way without a keeper's loop around it.
const WATCH_PAUSE: Duration = Duration::from_millis(5);

/// What became of a run.
#[derive(Debug)]
pub enum Adopted {
    /// Its keeper lives, and this is a connection to it.
    Running {
        /// The connection.
        connection: Connection,
        /// What the keeper said first.
        status: Box<Status>,
    },
    /// It has ended.
    Ended(Box<End>),
    /// No instruction of its program ever ran, nor will.
    NeverStarted,
    /// Its keeper died. What it kept may live on.
    Orphaned(Box<Orphan>),
    /// Its record cannot be read: unknown, and to be treated as alive.
    Unreadable(ReadError),
}

/// Finds out what became of the run in this directory. A directory that is not there is
/// [`Adopted::Unreadable`]: make it before you promise anybody a run in it, and its absence can
/// never be taken for "nothing started".
///
/// ```standalone_crate
/// # use std::time::Duration;
/// # use kennel_process::{RunId, Spec, start};
/// use kennel_process::{Adopted, adopt};
/// # fn main() -> std::process::ExitCode {
/// #     if let Some(code) = kennel_process::keeper::enter() { return code; }
/// #     let dir = std::env::temp_dir().join(format!("kennel-adopt-{}", std::process::id()));
/// #     let spec = Spec::new(RunId::new("example").unwrap(), "sleep").arg("60");
/// #     drop(start(&spec, &dir).unwrap());
/// // Another process started this run; all we have is its directory.
/// match adopt(&dir).unwrap() {
///     Adopted::Running { mut connection, status } => {
///         println!("leader {}", status.started.leader.pid);
///         connection.stop(Some(Duration::from_secs(5))).unwrap();
///         println!("{:?}", connection.wait_end(Duration::from_secs(30)).unwrap());
///     }
///     Adopted::Ended(end) => println!("{}", end.status),
///     Adopted::NeverStarted => println!("no instruction of it ran"),
///     Adopted::Orphaned(mut orphan) => println!("{:?}", orphan.kill().unwrap()),
///     Adopted::Unreadable(why) => println!("unknown: {why}"),
/// }
/// #     std::fs::remove_dir_all(&dir).unwrap();
/// #     std::process::ExitCode::SUCCESS
/// # }
/// ```
pub fn adopt(dir: &Path) -> Result<Adopted, AdoptError> {
    sys::proc::check_ours().map_err(AdoptError::System)?;
    let dir = RunDir::new(dir);
    let mut deadline = Instant::now() + KEEPER_BOUND;
    let mut woken = false;
    loop {
        if let Some(ended) = ended_already(&dir, Keeper::MayLive)? {
            return Ok(ended);
        }
        if let Some(lock) = dir.lock().map_err(AdoptError::System)? {
            return without_keeper(dir, lock);
        }
        match connect(&dir) {
            Ok((connection, status)) => {
                return Ok(Adopted::Running { connection, status: Box::new(status) });
            }
            Err(_) if Instant::now() >= deadline && !woken && wake(&dir) => {
                woken = true;
                deadline = Instant::now() + KEEPER_BOUND;
            }
            Err(e) if Instant::now() >= deadline => return Err(AdoptError::KeeperSilent(e)),
            // It is just coming or just going: its socket and its lock are not one.
            Err(_) => std::thread::sleep(LOOK_PAUSE),
        }
    }
}

/// What the record of the run in this directory says of its start; `None` as long as no instruction
/// of its program can have run.
pub fn recorded_start(dir: &Path) -> Result<Option<Started>, ReadError> {
    let history = History::read(&RunDir::new(dir))?;
    Ok(history.and_then(|history| history.started().cloned()))
}

/// Lets the keeper of the run in this directory go on, if somebody made it stand still. True if it
/// lives.
pub fn wake_keeper(dir: &Path) -> bool {
    wake(&RunDir::new(dir))
}

/// True if the keeper of the run in this directory lives.
pub fn has_keeper(dir: &Path) -> bool {
    let note = RunDir::new(dir).read_note();
    matches!(note.map(|note| note.keeper.find()), Some(Liveness::Alive(_)))
}

/// Lets a keeper go on that somebody, its own agent perhaps, made stand still. The one named in the
/// lock's note, and no other.
fn wake(dir: &RunDir) -> bool {
    match dir.read_note().map(|note| note.keeper.find()) {
        Some(Liveness::Alive(keeper)) => keeper.signal(crate::Signal::CONT).is_ok(),
        Some(Liveness::Dead(_) | Liveness::Unknown(_)) | None => false,
    }
}

/// Whether a keeper of the run may still live.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    MayLive,
    /// The lock is ours.
    Gone,
}

/// What the record alone can tell for good. That the machine was started anew can be told only once
/// the lock is ours: who holds it lives, whatever the boot is called here.
fn ended_already(dir: &RunDir, keeper: Keeper) -> Result<Option<Adopted>, AdoptError> {
    let history = match History::read(dir) {
        Ok(Some(history)) => history,
        Ok(None) => return Ok(None),
        Err(e) => return Ok(Some(Adopted::Unreadable(e))),
    };
    let boot = sys::proc::boot_id().map_err(AdoptError::System)?;
    let started = history.started().filter(|_| keeper == Keeper::Gone);
    let reboot = started.and_then(|s| Proof::by_reboot(&s.leader.boot_id, &boot));
    if let Some(recorded) = history.end() {
        // A keeper that was killed after its last word left its socket.
        let lost = matches!(recorded.verdict, Verdict::Lost(_));
        if lost
            && keeper == Keeper::MayLive
            && history.started().is_some_and(|s| s.leader.boot_id != boot)
        {
            return Ok(None);
        }
        if keeper == Keeper::Gone || matches!(dir.lock(), Ok(Some(_))) {
            let _ = remove_socket(dir.path());
        }
        // What nobody could account for is accounted for when the machine has been started anew.
        let verdict = match (&recorded.verdict, reboot) {
            (Verdict::Lost(_), Some(proof)) => Verdict::Dead(proof),
            (Verdict::Lost(_) | Verdict::Dead(_), _) => recorded.verdict.clone(),
        };
        return Ok(Some(Adopted::Ended(Box::new(End { verdict, ..recorded.clone() }))));
    }
    Ok(reboot.map(|proof| {
        // A status the keeper recorded before the machine went down is still the true one.
        let status = history.exit().unwrap_or(proof.leader());
        let cause = cause_of(&history, Cause::Lost);
        Adopted::Ended(Box::new(end(dir, cause, status, Verdict::Dead(proof))))
    }))
}

/// The name the kernel gives to the time since the machine was started, to be kept beside the
/// intent to start a run.
pub fn boot_id() -> Result<String, AdoptError> {
    sys::proc::boot_id().map_err(AdoptError::System)
}

/// The end of a run of another boot whose directory is not there: it went down with the machine
/// before it was on disk. `None` if the machine has not been started anew; then somebody removed
/// it, and what it was about may live.
pub fn ended_by_reboot(boot: &str) -> Result<Option<End>, AdoptError> {
    let proof = Proof::by_reboot(boot, &boot_id()?);
    Ok(proof.map(|proof| End {
        cause: Cause::Lost,
        status: proof.leader(),
        verdict: Verdict::Dead(proof),
        output: OutputTotals::default(),
        start_error: None,
        usage: None,
        at_ms: unix_ms(),
    }))
}

fn connect(dir: &RunDir) -> Result<(Connection, Status), ConnectionError> {
    let mut connection = Connection::open(dir.path())?;
    let status = connection.status()?;
    Ok((connection, status))
}

/// The lock is ours, so no keeper lives, and none can start.
fn without_keeper(dir: RunDir, lock: Lock) -> Result<Adopted, AdoptError> {
    // The keeper may have written the end between our first look and its last breath.
    if let Some(ended) = ended_already(&dir, Keeper::Gone)? {
        return Ok(ended);
    }
    let history = match History::read(&dir) {
        Ok(Some(history)) if history.opened() => history,
        Ok(None) if record_was_taken_away(&dir)? => {
            let gone = io::Error::new(io::ErrorKind::NotFound, "somebody removed it");
            return Ok(Adopted::Unreadable(ReadError::Io(dir.join("record"), gone)));
        }
        Ok(_) => {
            remove_unused_leaf(&dir).map_err(AdoptError::System)?;
            refuse_later_start(&dir)?;
            let _ = remove_socket(dir.path());
            return Ok(Adopted::NeverStarted);
        }
        Err(e) => return Ok(Adopted::Unreadable(e)),
    };
    let Some(started) = history.started().cloned() else {
        return Err(AdoptError::System(io::Error::other("a record without a start")));
    };
    let leader = started.leader.reopen().map_err(AdoptError::System)?;
    Ok(Adopted::Orphaned(Box::new(Orphan {
        dir,
        _lock: lock,
        history,
        started,
        leader,
        oom: None,
        hurry: Hurry::default(),
    })))
}

/// True if there must have been a record: its keeper noted that it wrote one, or was here and its
/// note is missing as well.
fn record_was_taken_away(dir: &RunDir) -> Result<bool, AdoptError> {
    let taken = match dir.read_note() {
        Some(_) => dir.is_sealed(),
        None => dir.is_untouched().map(|untouched| !untouched),
    };
    taken.map_err(AdoptError::System)
}

/// A keeper that was told to start late must not do so after we said that nothing started.
fn refuse_later_start(dir: &RunDir) -> Result<(), AdoptError> {
    let path = dir.join(crate::record::NEVER_STARTED_FILE);
    std::fs::write(path, b"").map_err(AdoptError::System)
}

/// Removes the leaf of a start that did not get as far as its gate. Whoever is in it is the child
/// that waits there, and leaves by itself now that nobody can let it through: nobody is signalled.
pub(crate) fn remove_unused_leaf(dir: &RunDir) -> io::Result<()> {
    let Some(path) = dir.read_note().and_then(|note| note.leaf) else { return Ok(()) };
    let deadline = Instant::now() + KEEPER_BOUND;
    loop {
        match std::fs::remove_dir(&path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.raw_os_error() != Some(libc::EBUSY) => return Err(e),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => std::thread::sleep(LOOK_PAUSE),
        }
    }
}

/// A run whose keeper died. While this is held, nobody else can take the run over.
#[derive(Debug)]
pub struct Orphan {
    dir: RunDir,
    _lock: Lock,
    history: History,
    started: Started,
    leader: Option<Process>,
    /// The kernel had killed for want of memory before anything was done from here.
    oom: Option<OomKill>,
    hurry: Hurry,
}

/// Shortens the stop of an orphan, also from another thread while it is under way. Every copy is
/// the same one.
#[derive(Clone, Debug)]
pub struct Hurry(Arc<AtomicU64>);

/// Nobody is in a hurry.
const NO_HURRY: u64 = u64::MAX;

impl Default for Hurry {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NO_HURRY)))
    }
}

impl Hurry {
    /// Has force used after this grace, counted from now. Never later than was said before.
    pub fn to(&self, grace: Duration) {
        let until = sys::boottime().saturating_add(grace).as_micros();
        let until = u64::try_from(until).unwrap_or(NO_HURRY);
        self.0.fetch_min(until, Ordering::Relaxed);
    }

    fn until(&self) -> Option<Duration> {
        let until = self.0.load(Ordering::Relaxed);
        (until != NO_HURRY).then(|| Duration::from_micros(until))
    }
}

/// What came of stopping an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swept {
    /// It is over: dead with proof, or lost with the reason. Recorded.
    Ended(Box<End>),
    /// The bound has passed and these are left. Stop it again to go on trying.
    Stuck {
        /// The first of them.
        survivors: Vec<Survivor>,
        /// How many.
        count: u64,
    },
}

impl Orphan {
    /// What was recorded before the run started.
    #[must_use]
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Whether its leader lives.
    #[must_use]
    pub fn leader(&self) -> Liveness {
        self.started.leader.find()
    }

    /// Gives a leader held open since the start: it still knows the status after somebody else has
    /// collected the leader.
    pub fn know_leader(&mut self, leader: Process) {
        if leader.identity() == &self.started.leader && self.leader.is_none() {
            self.leader = Some(leader);
        }
    }

    /// Has every later stop end sooner if this says so.
    pub fn heed(&mut self, hurry: Hurry) {
        self.hurry = hurry;
    }

    /// Asks what is left of the run to end, and forces it after `grace`.
    pub fn stop(&mut self, cause: Cause, grace: Duration) -> Result<Swept, AdoptError> {
        self.sweep(cause, grace).map_err(AdoptError::System)
    }

    /// Forces what is left of the run to end now.
    pub fn kill(&mut self) -> Result<Swept, AdoptError> {
        self.stop(Cause::Lost, Duration::ZERO)
    }

    fn sweep(&mut self, cause: Cause, grace: Duration) -> io::Result<Swept> {
        let (leaf, gone) = match &self.started.leaf {
            None => (None, None),
            Some(id) => match Leaf::reopen(id)? {
                Reopened::Leaf(leaf) => (Some(leaf), None),
                Reopened::Gone(removed) => (None, Some((id.clone(), removed))),
            },
        };
        let containment = self.started.containment;
        let mut cohort = Cohort::new(containment, Role::Adopter, self.leader.take(), leaf);
        // Before anybody is forced: what is found now was not our doing.
        let oom = cohort.oom_kill().filter(|_| cohort.see().is_ok_and(|seen| seen.leader_ended));
        self.oom = self.oom.or(oom);
        let swept = climb(&mut cohort, self.started.ask, grace, gone.is_some(), &self.hurry);
        failpoint("adopt.climbed")?;
        let swept = swept.and_then(|s| self.conclude(&mut cohort, cause, gone, s));
        self.leader = cohort.into_leader();
        swept
    }

    fn conclude(
        &mut self,
        cohort: &mut Cohort,
        cause: Cause,
        gone: Option<(LeafId, LeafRemoved)>,
        climbed: Climbed,
    ) -> io::Result<Swept> {
        match climbed {
            Climbed::Stuck => {
                let (survivors, count) = cohort.survivors();
                return Ok(Swept::Stuck { survivors, count });
            }
            Climbed::Empty => {}
        }
        let status = match self.history.exit() {
            Some(status) => status,
            None => await_status(cohort)?,
        };
        let had_leaf = gone.is_none() && self.started.leaf.is_some();
        let removed = match gone {
            Some(gone) => Some(gone),
            None => cohort.remove_leaf()?,
        };
        if had_leaf && removed.is_none() {
            // Somebody came back while the status was awaited.
            let (survivors, count) = cohort.survivors();
            return Ok(Swept::Stuck { survivors, count });
        }
        failpoint("adopt.removed")?;
        let (suspects, _) = cohort::suspects(&self.started.run)?;
        let verdict = match removed {
            Some((leaf, removed)) if suspects.is_empty() => {
                let effort = cohort.effort_mut().clone();
                Verdict::Dead(Proof::by_adopter(leaf, &removed, status, effort))
            }
            Some(_) => Verdict::Lost(Lost {
                reason:
                    "its keeper died, its cgroup is empty, and processes outside of it carry its \
                         cookie"
                        .to_owned(),
                suspects,
            }),
            None => Verdict::Lost(Lost {
                reason: format!(
                    "its keeper died, and without a cgroup nobody else can tell whether all of its \
                     descendants are gone (containment: {})",
                    self.started.containment
                ),
                suspects,
            }),
        };
        let cause = cause_of(&self.history, self.killed_for_memory(status).unwrap_or(cause));
        let end = end(&self.dir, cause, status, verdict);
        let mut record = Record::reopen(&self.dir, &self.history)?;
        record.append(&Fact::Ended(Box::new(end.clone())))?;
        let _ = remove_socket(self.dir.path());
        Ok(Swept::Ended(Box::new(end)))
    }
}

impl Orphan {
    /// The cause, if its leader was killed for want of memory after its keeper had died. Its own
    /// bound kills the cohort as a whole; of any other the leader's status must say that it was
    /// the one.
    fn killed_for_memory(&self, status: ExitStatus) -> Option<Cause> {
        match (self.oom?, status) {
            (oom @ OomKill::OwnBound, _)
            | (oom @ OomKill::Elsewhere, ExitStatus::Signaled(libc::SIGKILL)) => {
                Some(Cause::of_oom(oom, &self.started))
            }
            (OomKill::Elsewhere, _) => None,
        }
    }
}

enum Climbed {
    Empty,
    Stuck,
}

/// Climbs the ladder without a keeper's loop: nothing else wants our attention meanwhile.
fn climb(
    cohort: &mut Cohort,
    ask: crate::Signal,
    grace: Duration,
    leaf_gone: bool,
    hurry: &Hurry,
) -> io::Result<Climbed> {
    let mut ladder = Ladder::new(OnExit::Sweep);
    let begun = sys::boottime();
    // What cannot be seen is not gone: the force goes on, and ends in stuck at the worst.
    let seen = |cohort: &mut Cohort| match cohort.see() {
        Ok(seen) => {
            Seen { others_gone: seen.others_gone || (leaf_gone && seen.leader_ended), ..seen }
        }
        Err(_) => Seen { leader_ended: false, others_gone: false },
    };
    let first = seen(cohort);
    let _ = ladder.request(begun, grace, first);
    let mut forced_at = None;
    loop {
        let now_seen = seen(cohort);
        let now = sys::boottime();
        if let Some(until) = hurry.until() {
            let _ = ladder.request(now, until.saturating_sub(now), now_seen);
        }
        match ladder.next(now, now_seen) {
            Rung::Ask => cohort.ask(ask),
            Rung::Force { round } => {
                forced_at.get_or_insert(now);
                // One way that fails is no reason to leave out the others, nor the next round.
                let _ = cohort.force(round);
            }
            Rung::Prove => {
                let effort = cohort.effort_mut();
                let forced_at = forced_at.unwrap_or(now);
                effort.ask_us = (forced_at - begun).as_micros() as u64;
                effort.force_us = (now - forced_at).as_micros() as u64;
                return Ok(Climbed::Empty);
            }
            Rung::TellStuck => return Ok(Climbed::Stuck),
            Rung::Wait(until) => {
                let left = until.map_or(WATCH_PAUSE, |until| until.saturating_sub(now));
                std::thread::sleep(left.min(WATCH_PAUSE));
            }
        }
    }
}

/// The leader has ended; whoever collects it next (init, mostly) makes its status readable.
fn await_status(cohort: &mut Cohort) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + STATUS_BOUND;
    loop {
        if let Some(status) = cohort.status_as_adopter()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            return Ok(ExitStatus::Unknown(UnknownStatus::KeeperLost));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// The first cause is kept: a stop the keeper recorded, or the leader's own exit.
fn cause_of(history: &History, otherwise: Cause) -> Cause {
    match (history.stop_cause(), history.exit()) {
        (Some(cause), _) => cause.clone(),
        (None, Some(status)) => match history.started() {
            Some(started) => Cause::of_exit(status, history.oom(), started),
            None => Cause::Exit,
        },
        (None, None) => otherwise,
    }
}

fn end(dir: &RunDir, cause: Cause, status: ExitStatus, verdict: Verdict) -> End {
    End {
        cause,
        status,
        verdict,
        output: OutputTotals::of_files(dir.path()),
        start_error: None,
        usage: None,
        at_ms: unix_ms(),
    }
}

/// Why it cannot be said what became of a run. It is to be treated as alive.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdoptError {
    /// A keeper holds the lock and does not answer.
    KeeperSilent(ConnectionError),
    /// The system refused.
    System(io::Error),
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeeperSilent(e) => write!(f, "the keeper lives and does not answer: {e}"),
            Self::System(e) => write!(f, "failed to find out what became of the run: {e}"),
        }
    }
}

impl std::error::Error for AdoptError {}
