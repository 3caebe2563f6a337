//! Processes we did not start: stopping one, or one with its descendants, and listing.
//!
//! Owns: the verbs for strangers. A victim is a [`Process`] the caller took hold of; descendants
//! are found by descent from held processes only. Finding by command line lists and never signals:
//! the caller looks, chooses, and passes identities on.
//!
//! What is proven is less than for a run of ours: every process that was held has ended. A
//! descendant that lost its parent before it could be seen belongs to nobody we hold, and is not
//! touched.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::Signal;
use crate::cohort::{describe, keeps_its_number, visit_tree};
use crate::identity::{Identity, Process};
use crate::ladder::FORCE_BOUND;
use crate::proof::Survivor;
use crate::sys::{self, Pid, Pidfd, proc};

/// The most processes one tree may hold here; each is held open until the end.
const MAX_TREE: usize = 800;
/// Pause between two looks at processes that were signalled.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// What a stop of strangers did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrangersStopped {
    /// Everybody who was held and has ended, verified through the hold.
    pub ended: Vec<Identity>,
    /// Everybody who was held and has not.
    pub survivors: Vec<Survivor>,
    /// True if anybody had to be forced.
    pub forced: bool,
}

/// Stops one process: asks, and forces after `grace`. Its children are left alone.
///
/// ```
/// use std::time::Duration;
/// use kennel_process::{Process, stop_process};
///
/// let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
/// let held = Process::from_number(stranger.id()).unwrap();
/// let stopped = stop_process(held, Duration::from_secs(5)).unwrap();
/// assert!(stopped.survivors.is_empty() && !stopped.forced);
/// stranger.wait().unwrap();
/// ```
pub fn stop_process(process: Process, grace: Duration) -> Result<StrangersStopped, StrangerError> {
    refuse_ancestor(&process)?;
    stop_all(vec![process], grace, false)
}

/// Stops one process with all its descendants: asks all, and forces after `grace`, again and again
/// until a look finds nobody new and everybody held has ended.
pub fn stop_tree(root: Process, grace: Duration) -> Result<StrangersStopped, StrangerError> {
    refuse_ancestor(&root)?;
    let mut held = vec![root];
    take_hold_below(&mut held)?;
    stop_all(held, grace, true)
}

/// Lists the descendants of a process as they are now, parents before children.
///
/// ```
/// use kennel_process::{Process, descendants};
///
/// use std::process::Command;
///
/// let mut shell = Command::new("sh").args(["-c", "sleep 60; true"]).spawn().unwrap();
/// let held = Process::from_number(shell.id()).unwrap();
/// let below = descendants(&held);
/// assert!(below.iter().all(|child| child.identity().pid != shell.id()));
/// # let _ = kennel_process::stop_tree(held, std::time::Duration::ZERO);
/// # shell.wait().unwrap();
/// ```
#[must_use]
pub fn descendants(process: &Process) -> Vec<Process> {
    let mut found = Vec::new();
    let mut known = HashSet::from([process.held().pid()]);
    visit_tree(process.held(), false, &mut known, &mut |held| {
        if found.len() < MAX_TREE {
            found.extend(hold_again(held));
        }
    });
    found
}

/// A process found by its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Who it is.
    pub identity: Identity,
    /// Its arguments, joined by spaces, with what is no text replaced.
    pub command_line: String,
}

/// Lists the processes whose command line holds `pattern`, a plain text. A listing for people:
/// whoever is on it may be a bystander, and nothing is ever stopped by it.
///
/// ```
/// let found = kennel_process::find_by_command_line("no such command line anywhere").unwrap();
/// assert!(found.is_empty());
/// ```
pub fn find_by_command_line(pattern: &str) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for pid in proc::all()? {
        let Ok(held) = Pidfd::open(pid) else { continue };
        let Ok(bytes) = proc::command_line(pid) else {
            continue;
        };
        let words = bytes.split(|b| *b == 0).map(String::from_utf8_lossy);
        let command_line = words.collect::<Vec<_>>().join(" ").trim_end().to_owned();
        if command_line.contains(pattern) {
            // Fails if the number changed hands while we read.
            found.extend(Identity::of(&held).map(|identity| Found { identity, command_line }).ok());
        }
    }
    Ok(found)
}

fn stop_all(
    mut held: Vec<Process>,
    grace: Duration,
    with_descendants: bool,
) -> Result<StrangersStopped, StrangerError> {
    let mut forced = false;
    if !grace.is_zero() {
        for process in &held {
            let _ = process.signal(Signal::TERM);
            let _ = process.signal(Signal::CONT);
        }
        await_all(&held, grace);
    }
    let deadline = sys::boottime() + FORCE_BOUND;
    loop {
        // Below those who live somebody new may have been born; below the dead nobody is provable.
        let before = held.len();
        if with_descendants {
            take_hold_below(&mut held)?;
        }
        let living: Vec<&Process> = held.iter().filter(|p| !ended(p)).collect();
        if living.is_empty() && held.len() == before {
            break;
        }
        for process in living {
            forced |= process.signal(Signal::KILL).is_ok();
        }
        if sys::boottime() >= deadline {
            break;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    let (dead, alive): (Vec<&Process>, Vec<&Process>) = held.iter().partition(|p| ended(p));
    Ok(StrangersStopped {
        ended: dead.iter().map(|p| p.identity().clone()).collect(),
        survivors: alive.iter().filter_map(|p| describe(p.held())).collect(),
        forced,
    })
}

fn await_all(held: &[Process], grace: Duration) {
    let deadline = sys::boottime() + grace;
    while sys::boottime() < deadline && !held.iter().all(ended) {
        std::thread::sleep(LOOK_PAUSE);
    }
}

fn ended(process: &Process) -> bool {
    process.has_ended().unwrap_or(false)
}

/// Adds everybody below the held ones who is not held yet.
fn take_hold_below(held: &mut Vec<Process>) -> Result<(), StrangerError> {
    let mut known: HashSet<Pid> = HashSet::new();
    let mut added = Vec::new();
    for process in held.iter().filter(|p| !ended(p)) {
        known.insert(process.held().pid());
        visit_tree(process.held(), false, &mut known, &mut |below| {
            added.extend(hold_again(below));
        });
    }
    let new = |p: &Process| !held.iter().any(|h| h.identity() == p.identity());
    let new: Vec<Process> = added.into_iter().filter(new).collect();
    if held.len() + new.len() > MAX_TREE {
        return Err(StrangerError::TooMany(held.len() + new.len()));
    }
    held.extend(new);
    Ok(())
}

fn hold_again(held: &Pidfd) -> Option<Process> {
    let again = Process::hold(Pidfd::open(held.pid()).ok()?).ok()?;
    // The same number is the same process only if the first hold has not been collected.
    keeps_its_number(held).then_some(again)
}

/// Stopping the process we run under would stop us half-way.
fn refuse_ancestor(process: &Process) -> Result<(), StrangerError> {
    proc::check_ours().map_err(StrangerError::System)?;
    let mut parent = proc::own_stat().map_err(StrangerError::System)?.ppid;
    while let Some(pid) = Pid::new(parent.into()) {
        if pid == process.held().pid() {
            return Err(StrangerError::OurAncestor(pid.get()));
        }
        parent = proc::stat(pid).map_err(StrangerError::System)?.ppid;
    }
    Ok(())
}

/// Why strangers were not stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum StrangerError {
    /// We run below it.
    OurAncestor(u32),
    /// More processes than can be held open at once.
    TooMany(usize),
    /// The system refused.
    System(io::Error),
}

impl fmt::Display for StrangerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OurAncestor(pid) => {
                write!(f, "process {pid} is one that kennel itself runs under")
            }
            Self::TooMany(n) => {
                write!(f, "{n} processes are more than can be held at once ({MAX_TREE})")
            }
            Self::System(e) => write!(f, "failed to look at processes: {e}"),
        }
    }
}

impl std::error::Error for StrangerError {}
