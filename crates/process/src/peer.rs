//! Who is on the other end of a local socket, and to which run it belongs.
//!
//! ```text
//! held peer -> its parent, held -> ... -> a keeper or leader we know -> that run
//!          \-> else: a leaf we know, a session we know
//!          \-> else: nobody's
//! ```
//!
//! Owns: this one question, asked of the kernel and answered from held processes alone. The nearest
//! run counts. What cannot be told is an error and never "nobody's", because nobody's processes may
//! do more than a run's own. Signals nobody.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use crate::cohort::keeps_its_number;
use crate::containment::{Containment, LEAF_PREFIX, Leaf, Reopened};
use crate::identity::{Identity, Liveness};
use crate::record::Started;
use crate::spec::COOKIE;
use crate::sys::pidfd::{PeerPid, inode_of, of_peer};
use crate::sys::{Pid, Pidfd, proc};

/// The longest line of parents that is walked: more than any agent needs, and a walk stays short.
const MAX_GENERATIONS: usize = 4096;
/// How often a walk begins anew because somebody on the way ended meanwhile.
const MAX_WALKS: u32 = 64;

/// Whoever connected a local socket, held open.
#[derive(Debug)]
pub struct Peer(PeerPid);

/// How far a walk came.
enum Walk<'a> {
    To(&'a Started),
    Top,
    /// Somebody on the way was collected, or got another parent.
    Again,
}

impl Peer {
    /// Takes hold of whoever connected this socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        of_peer(socket.as_fd()).map(Self)
    }

    /// Takes hold of our own parent: whatever run that is in, we are in.
    pub fn above_us() -> io::Result<Self> {
        for _ in 0..MAX_WALKS {
            let parent = proc::own_stat()?.ppid;
            let Some(pid) = Pid::new(parent.into()) else { return Ok(Self(PeerPid::Unnamed)) };
            let Some(held) = gone_is_none(Pidfd::open(pid))? else { continue };
            if proc::own_stat()?.ppid == parent {
                return Ok(Self(PeerPid::Held(held)));
            }
        }
        Err(io::Error::other("our parent changes faster than it can be looked at"))
    }

    /// The one of these runs whose cohort it is in, or the nearest of several; `None` if it is in
    /// none. An error means that nobody can tell, also because it has ended.
    pub fn run_among<'a>(&self, runs: &[&'a Started]) -> io::Result<Option<&'a Started>> {
        let held = match &self.0 {
            PeerPid::Unnamed => return Ok(None),
            PeerPid::Held(held) => held,
        };
        let found = match nearest(held, runs)? {
            Some(found) => Some(found),
            None => by_leaf(held, runs)?.or(by_session(held, runs)?),
        };
        check_lives(held)?;
        Ok(found)
    }

    /// The cookie in the environment it was exec'd with: of the run it comes from, wherever it is
    /// by now. Only a hint, because anybody can leave it out.
    pub fn cookie(&self) -> io::Result<Option<Vec<u8>>> {
        let held = match &self.0 {
            PeerPid::Unnamed => return Ok(None),
            PeerPid::Held(held) => held,
        };
        // Another user's environment is hidden; root's is no run's of ours.
        let cookie = proc::environment_value(held.pid(), COOKIE).unwrap_or(None);
        check_lives(held)?;
        Ok(cookie)
    }
}

/// All that was read by its number was about it only if that is still its own.
fn check_lives(held: &Pidfd) -> io::Result<()> {
    if held.has_ended()? { Err(ended()) } else { Ok(()) }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the process that asks has ended")
}

/// The first of the runs whose keeper or leader is above it, or is it.
fn nearest<'a>(peer: &Pidfd, runs: &[&'a Started]) -> io::Result<Option<&'a Started>> {
    let namespace = proc::pid_namespace()?;
    let ours = |identity: &Identity| identity.pid_namespace == namespace;
    let known: HashMap<u32, (&Identity, &'a Started)> = runs
        .iter()
        .flat_map(|run| [(&run.keeper, *run), (&run.leader, *run)])
        .filter(|(identity, _)| ours(identity))
        .map(|(identity, run)| (identity.pid, (identity, run)))
        .collect();
    for _ in 0..MAX_WALKS {
        match walk(peer, &known)? {
            Walk::To(run) => return Ok(Some(run)),
            Walk::Top => return Ok(None),
            Walk::Again if peer.has_ended()? => return Err(ended()),
            Walk::Again => {}
        }
    }
    Err(io::Error::other("its parents change faster than they can be looked at"))
}

fn walk<'a>(peer: &Pidfd, known: &HashMap<u32, (&Identity, &'a Started)>) -> io::Result<Walk<'a>> {
    let mut above: Option<Pidfd> = None;
    for _ in 0..MAX_GENERATIONS {
        let held = above.as_ref().unwrap_or(peer);
        let Some(stat) = gone_is_none(proc::stat(held.pid()))? else { return Ok(Walk::Again) };
        if !keeps_its_number(held) {
            return Ok(Walk::Again);
        }
        if let Some((identity, run)) = known.get(&held.pid().get())
            && is_same(held, stat.start_ticks, identity)
        {
            return Ok(Walk::To(run));
        }
        let Some(parent) = Pid::new(stat.ppid.into()) else { return Ok(Walk::Top) };
        let Some(next) = gone_is_none(Pidfd::open(parent))? else { return Ok(Walk::Again) };
        // Nobody becomes the parent of somebody who is there already but an ancestor of it: who has
        // this number now, and had it when it was opened, is the same.
        let Some(again) = gone_is_none(proc::stat(held.pid()))? else { return Ok(Walk::Again) };
        if again.ppid != parent.get() || !keeps_its_number(held) {
            return Ok(Walk::Again);
        }
        above = Some(next);
    }
    Err(io::Error::other("it has more generations above it than are looked at"))
}

fn is_same(held: &Pidfd, start_ticks: u64, identity: &Identity) -> bool {
    let same_inode = match (inode_of(held), identity.pidfs_inode) {
        (Some(one), Some(other)) => one == other,
        (Some(_) | None, None) | (None, Some(_)) => true,
    };
    identity.start_ticks == start_ticks && same_inode
}

fn gone_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The run in whose leaf it is, if it is not below its keeper: another one's child was put there.
fn by_leaf<'a>(peer: &Pidfd, runs: &[&'a Started]) -> io::Result<Option<&'a Started>> {
    // Where there are no cgroups nobody is in one of ours.
    let Ok(path) = proc::cgroup_of(peer.pid()) else { return Ok(None) };
    for name in path.rsplit('/').filter_map(|part| part.strip_prefix(LEAF_PREFIX)) {
        let Some(run) = runs.iter().find(|run| run.run.as_str() == name) else { continue };
        let Some(leaf) = &run.leaf else { continue };
        if let Reopened::Leaf(leaf) = Leaf::reopen(leaf)?
            && leaf.holds(peer)?
        {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// The run whose session it is in, where that is all that holds one together.
fn by_session<'a>(peer: &Pidfd, runs: &[&'a Started]) -> io::Result<Option<&'a Started>> {
    let session = proc::stat(peer.pid())?.session;
    let in_group = |run: &&&Started| {
        run.containment == Containment::Group
            && run.leader.pid == session
            && matches!(run.leader.find(), Liveness::Alive(_))
    };
    Ok(runs.iter().find(in_group).copied())
}
