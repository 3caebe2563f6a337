//! What holds a cohort together: a cgroup leaf where one can be had, a subreaper, or a group alone.
//!
//! Owns: the three grades and the cgroup leaf of a run (made, killed, listed, removed). Found out
//! by doing, never by version. Never touches a leaf whose inode is not the one it made or recorded.

use std::cell::Cell;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::RunId;
use crate::sys::{Pid, Pidfd, proc};

/// What holds a cohort together, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Containment {
    /// A cgroup v2 leaf and a subreaper. Nothing that forks, starts a session or changes its user
    /// gets away; what moves itself out of the leaf is still a descendant.
    Cgroup,
    /// A subreaper alone. Every descendant is found, as long as the keeper lives.
    Subreaper,
    /// Session and process group alone: a process that starts a session of its own gets away.
    Group,
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroup => "cgroup",
            Self::Subreaper => "subreaper",
            Self::Group => "group",
        })
    }
}

/// Where a run's leaf is and which one it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafId {
    /// Its directory.
    pub path: PathBuf,
    /// Its inode, which is the cgroup's id: a later leaf at the same path has another.
    pub id: u64,
    /// The inode of the cgroup it is in, by which the hierarchy is known again.
    #[serde(default)]
    pub parent: Option<u64>,
}

/// A run's cgroup leaf, held open.
#[derive(Debug)]
pub(crate) struct Leaf {
    id: LeafId,
    dir: File,
    events: File,
    kill: File,
    /// Somebody removed it, which only an empty one allows.
    gone: Cell<bool>,
}

/// Evidence that a leaf is gone. The kernel removes only a leaf without members.
#[derive(Debug)]
pub(crate) struct LeafRemoved(());

/// What became of a recorded leaf.
#[derive(Debug)]
pub(crate) enum Reopened {
    Leaf(Leaf),
    Gone(LeafRemoved),
}

/// How an attempt to remove a leaf went.
#[derive(Debug)]
pub(crate) enum Removal {
    Removed(LeafRemoved),
    /// Somebody is still in it, or in a leaf below it.
    Busy,
}

/// Leaves an agent may nest below ours before we call it hostile and report it.
const MAX_NESTED_LEAVES: usize = 4096;

/// The cgroup of the daemon and its keepers, where it is not the one that holds the leaves.
pub const KEEPERS_CGROUP: &str = "kennel.keepers";

/// Prefix of every leaf kennel makes.
pub(crate) const LEAF_PREFIX: &str = "kennel-";

impl Leaf {
    /// Where the leaf of a run belongs: below the cgroup we are in ourselves, or beside it if it is
    /// one made for us; there placing a child needs no rights but those over our own subtree.
    pub(crate) fn path_for(run: &RunId) -> Result<PathBuf, String> {
        Ok(ground()?.join(format!("{LEAF_PREFIX}{run}")))
    }

    /// Makes the leaf.
    pub(crate) fn create(path: PathBuf) -> Result<Self, String> {
        fs::create_dir(&path).map_err(|e| failed("make", &path, &e))?;
        let leaf = Self::open_at(path.clone()).map_err(|e| failed("use", &path, &e));
        if leaf.is_err() {
            let _ = fs::remove_dir(&path);
        }
        leaf
    }

    /// Opens a leaf again by what was recorded of it. One that is gone, or whose path is another's
    /// by now, was removed, and only an empty one can be.
    pub(crate) fn reopen(id: &LeafId) -> io::Result<Reopened> {
        check_hierarchy(id)?;
        match Self::open_at(id.path.clone()) {
            Ok(leaf) if leaf.id.id == id.id => Ok(Reopened::Leaf(leaf)),
            Ok(_) => Ok(Reopened::Gone(LeafRemoved(()))),
            Err(e) if gone(&e) => Ok(Reopened::Gone(LeafRemoved(()))),
            Err(e) => Err(e),
        }
    }

    fn open_at(path: PathBuf) -> io::Result<Self> {
        let dir = File::open(&path)?;
        let id = dir.metadata()?.ino();
        let events = File::open(path.join("cgroup.events"))?;
        let kill = File::options().write(true).open(path.join("cgroup.kill"))?;
        let parent = path.parent().and_then(|p| p.metadata().ok()).map(|m| m.ino());
        let gone = Cell::new(false);
        let leaf = Self { id: LeafId { path, id, parent }, dir, events, kill, gone };
        leaf.populated()?;
        Ok(leaf)
    }

    pub(crate) fn id(&self) -> &LeafId {
        &self.id
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Becomes ready with `POLLPRI` when `populated` changes. The kernel limits how often it tells,
    /// so this is a hint and never the only way to learn of it.
    /// Of a leaf that is gone it would be ready for ever.
    pub(crate) fn events_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone.get()).then_some(self.events.as_fd())
    }

    /// Whether anybody is in the leaf or below it. A leaf that was removed has nobody.
    pub(crate) fn populated(&self) -> io::Result<bool> {
        let mut buf = [0_u8; 256];
        let n = match self.events.read_at(&mut buf, 0) {
            Ok(n) => n,
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {
                self.gone.set(true);
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        let text = String::from_utf8_lossy(&buf[..n]);
        let value = text.lines().find_map(|l| l.strip_prefix("populated "));
        match value {
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(_) | None => Err(io::Error::other("cgroup.events does not say populated")),
        }
    }

    /// Processor time used in the leaf since it was made, by those who are gone too.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        let text = fs::read_to_string(self.id.path.join("cpu.stat"))?;
        let us = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        us.map(Duration::from_micros).ok_or_else(|| io::Error::other("cpu.stat has no usage"))
    }

    /// SIGKILL to all members, whoever's they are. Neither complete nor a proof: a process whose
    /// main thread has left is passed over.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        match (&self.kill).write_all(b"1") {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }

    /// The numbers listed in the leaf and below it now. A rumour: hold, then check with
    /// [`holds`](Self::holds) before doing anything to one.
    pub(crate) fn members(&self) -> io::Result<Vec<Pid>> {
        let mut pids = Vec::new();
        for path in self.subtree()? {
            let text = match fs::read_to_string(path.join("cgroup.procs")) {
                Ok(text) => text,
                // Removed meanwhile, or a threaded leaf, whose processes its parent lists.
                Err(e) if gone(&e) || e.raw_os_error() == Some(libc::EOPNOTSUPP) => continue,
                Err(e) => return Err(e),
            };
            pids.extend(text.lines().filter_map(|l| Pid::new(l.parse().ok()?)));
        }
        Ok(pids)
    }

    /// True if this held process is a member now, asked of the kernel through the descriptor where
    /// it can answer, else read by number with the descriptor checked afterwards.
    pub(crate) fn holds(&self, process: &Pidfd) -> io::Result<bool> {
        if let Some(cgroup) = process.info().and_then(|i| i.cgroup_id) {
            if cgroup == self.id.id {
                return Ok(true);
            }
            let below = self.subtree()?.into_iter().skip(1);
            return Ok(below.into_iter().any(|p| fs::metadata(p).is_ok_and(|m| m.ino() == cgroup)));
        }
        let path = proc::cgroup_of(process.pid())?;
        let inside = path.split('/').any(|part| Some(part) == self.name());
        Ok(inside && !process.has_ended()?)
    }

    /// Removes the leaf with all leaves below it. `Busy` while it has members.
    pub(crate) fn remove(&self) -> io::Result<Removal> {
        match fs::metadata(&self.id.path) {
            Ok(meta) if meta.ino() != self.id.id => return Ok(Removal::Removed(LeafRemoved(()))),
            Err(e) if gone(&e) => return Ok(Removal::Removed(LeafRemoved(()))),
            Ok(_) | Err(_) => {}
        }
        // The plain case first: no leaf below ours.
        match fs::remove_dir(&self.id.path) {
            Ok(()) => return Ok(Removal::Removed(LeafRemoved(()))),
            Err(e) if gone(&e) => return Ok(Removal::Removed(LeafRemoved(()))),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
        let mut below = self.subtree()?;
        while let Some(path) = below.pop() {
            match fs::remove_dir(&path) {
                Ok(()) => {}
                Err(e) if gone(&e) => {}
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Ok(Removal::Busy),
                Err(e) => return Err(e),
            }
        }
        Ok(Removal::Removed(LeafRemoved(())))
    }

    fn name(&self) -> Option<&str> {
        self.id.path.file_name()?.to_str()
    }

    /// The leaf and every leaf below it, parents before children.
    fn subtree(&self) -> io::Result<Vec<PathBuf>> {
        // Two links are the directory's own: it has none below it, which is nearly always so.
        const LINKS_WITHOUT_CHILDREN: u64 = 2;
        let mut all = vec![self.id.path.clone()];
        match self.dir.metadata() {
            Ok(meta) if meta.nlink() == LINKS_WITHOUT_CHILDREN => return Ok(all),
            Ok(_) | Err(_) => {}
        }
        let mut next = 0;
        while let Some(path) = all.get(next).cloned() {
            next += 1;
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(e) if gone(&e) => continue,
                Err(e) => return Err(e),
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    all.push(entry.path());
                }
            }
            if all.len() > MAX_NESTED_LEAVES {
                return Err(io::Error::other("too many cgroups below the run's own"));
            }
        }
        Ok(all)
    }
}

/// A leaf with a name of ours, found where runs started from here have theirs. Whose it is, its
/// name alone does not say: another kennel on this machine makes the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLeaf {
    /// The run it is named after.
    pub run: String,
    /// Where it is.
    pub path: PathBuf,
    /// True if anybody is in it.
    pub populated: bool,
    /// How long ago it was made.
    pub age: Duration,
}

/// Every leaf with a name of ours. None where there is no cgroup to be had.
pub fn found_leaves() -> io::Result<Vec<FoundLeaf>> {
    let Ok(ground) = ground() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in fs::read_dir(ground)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(run) = name.and_then(|name| name.strip_prefix(LEAF_PREFIX)) else { continue };
        let run = run.to_owned();
        // One that cannot be opened is just being removed.
        let Ok(leaf) = Leaf::open_at(path.clone()) else { continue };
        let (Ok(populated), Ok(meta)) = (leaf.populated(), leaf.dir.metadata()) else { continue };
        let age = meta.modified().ok().and_then(|made| made.elapsed().ok()).unwrap_or_default();
        found.push(FoundLeaf { run, path, populated, age });
    }
    Ok(found)
}

impl FoundLeaf {
    /// Removes it if nobody is in it; false if somebody is. Nobody is signalled.
    pub fn remove(&self) -> io::Result<bool> {
        match fs::remove_dir(&self.path) {
            Ok(()) => Ok(true),
            Err(e) if gone(&e) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The strongest containment that can be had here, found out by trying, and why it is not more.
pub fn strongest_containment() -> (Containment, Option<String>) {
    match probe("contains", |_| ()) {
        Ok(()) => (Containment::Cgroup, None),
        Err(why) => (Containment::Subreaper, Some(why)),
    }
}

/// Tries something with a leaf that nobody is in.
pub(crate) fn probe<T>(name: &str, with: impl FnOnce(&Leaf) -> T) -> Result<T, String> {
    let run = RunId::new(format!("probe-{name}-{}", std::process::id()));
    let leaf = Leaf::create(Leaf::path_for(&run.map_err(|e| e.to_string())?)?)?;
    let found = with(&leaf);
    leaf.remove().map_err(|e| failed("remove", &leaf.id.path, &e))?;
    Ok(found)
}

/// What is not found is gone only where it was: in the same hierarchy, below the same cgroup.
fn check_hierarchy(leaf: &LeafId) -> io::Result<()> {
    const CGROUP2_MAGIC: u64 = 0x6367_7270;
    let parent = File::open(leaf.path.parent().unwrap_or(Path::new("/")))?;
    let same = leaf.parent.is_none_or(|id| parent.metadata().is_ok_and(|m| m.ino() == id));
    if rustix::fs::fstatfs(&parent)?.f_type as u64 == CGROUP2_MAGIC && same {
        return Ok(());
    }
    Err(io::Error::other("the cgroups seen here are not those the run was started in"))
}

/// Has this process be in a cgroup beside the leaves of its runs instead of the one they are in:
/// the kernel gives controllers to leaves only below a cgroup that has no processes of its own.
///
/// Moves nobody but ourselves, and only if nobody else is there. An error says why all is left as
/// it is, which costs the kernel's own bounds on memory and processes and nothing else.
pub fn settle_in_cgroup() -> Result<(), String> {
    let own = own_directory()?;
    let name = own.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The root of all, which has no type, needs no such thing.
    if name == KEEPERS_CGROUP || !own.join("cgroup.type").exists() {
        return Ok(());
    }
    // systemd puts each new process of a service where the last one was, which the kernel refuses
    // once that has children with controllers: the daemon could not be started again.
    if name.ends_with(".service") {
        return Err(format!("{name} lacks DelegateSubgroup={KEEPERS_CGROUP}"));
    }
    let members = own.join("cgroup.procs");
    let listed = fs::read_to_string(&members).map_err(|e| failed("read", &members, &e))?;
    if listed.trim() != std::process::id().to_string() {
        return Err(format!("{} has other processes", own.display()));
    }
    let beside = own.join(KEEPERS_CGROUP);
    match fs::create_dir(&beside) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make", &beside, &e));
        }
        Ok(()) | Err(_) => {}
    }
    let entered = File::options().write(true).open(beside.join("cgroup.procs"));
    entered.and_then(|mut procs| procs.write_all(b"0")).map_err(|e| {
        let _ = fs::remove_dir(&beside);
        failed("enter", &beside, &e)
    })
}

/// The directory of the cgroup that leaves are made in.
fn ground() -> Result<PathBuf, String> {
    let own = own_directory()?;
    Ok(match own.parent() {
        Some(parent) if own.ends_with(KEEPERS_CGROUP) => parent.to_owned(),
        Some(_) | None => own,
    })
}

/// The directory of the cgroup this process is in.
fn own_directory() -> Result<PathBuf, String> {
    let own = proc::own_cgroup().map_err(|e| format!("no cgroup v2: {e}"))?;
    let mounts = proc::cgroup2_mounts().map_err(|e| format!("no list of mounts: {e}"))?;
    let found = mounts.iter().find_map(|(root, point)| {
        let inside = own.strip_prefix(root.trim_end_matches('/'))?;
        Some(Path::new(point).join(inside.trim_start_matches('/')))
    });
    found.ok_or_else(|| "cgroup v2 is not mounted here".to_owned())
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("failed to {what} {}: {error}", path.display())
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
