//! Bounds that the kernel itself keeps on a run's leaf, and what it says of them.
//!
//! Owns: the controllers `memory` and `pids` of a leaf (had, set, read back, read). Found out by
//! doing: a bound is called hard only after its file took the value and a real process was charged
//! to it. Whatever is missing leaves the bound to the keeper's samples, with the reason. Decides
//! nothing: what is reached is judged in `limits`, what ended a run in `record`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::containment::{self, Leaf};
use crate::limits::Limits;
use crate::sys;

/// How long a process that waits at its gate may take to be charged for its first page: it has
/// only to run, which on a machine under load takes its turn.
const CHARGE_BOUND: Duration = Duration::from_secs(2);
/// Pause between two looks for that.
const CHARGE_PAUSE: Duration = Duration::from_micros(200);
/// What a file of a bound says without one.
const NO_BOUND: &str = "max";
/// There only where there can be swap, with a line for each and a heading.
const SWAPS: &str = "/proc/swaps";

/// How a limit binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binds {
    /// The kernel keeps it.
    Hard {
        /// The bound that is in force, as the kernel gives it back.
        max: u64,
    },
    /// The keeper looks, four times a second.
    Sampled {
        /// Why the kernel does not.
        because: String,
    },
}

/// How the limits on memory and processes bind; `None` where there is no such limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bindings {
    /// Of memory.
    pub memory: Option<Binds>,
    /// Of processes and threads.
    pub pids: Option<Binds>,
}

impl Bindings {
    /// Nobody keeps these but the keeper, for this reason.
    pub(crate) fn sampled(limits: &Limits, because: &str) -> Self {
        let sampled = || Binds::Sampled { because: because.to_owned() };
        Self {
            memory: limits.memory.is_some().then(sampled),
            pids: limits.pids.is_some().then(sampled),
        }
    }

    /// True if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_none() && self.pids.is_none()
    }

    /// The bound on memory that the kernel keeps.
    pub(crate) fn hard_memory(&self) -> Option<u64> {
        hard(self.memory.as_ref())
    }

    /// The bound on processes and threads that the kernel keeps.
    pub(crate) fn hard_pids(&self) -> Option<u64> {
        hard(self.pids.as_ref())
    }

    /// True if a look at the processes themselves is needed for any of them.
    pub(crate) fn need_a_walk(&self) -> bool {
        let sampled = |binds: &Option<Binds>| matches!(binds, Some(Binds::Sampled { .. }));
        sampled(&self.memory) || sampled(&self.pids)
    }
}

fn hard(binds: Option<&Binds>) -> Option<u64> {
    match binds? {
        Binds::Hard { max } => Some(*max),
        Binds::Sampled { .. } => None,
    }
}

/// Whose bound it was that made the kernel kill for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OomKill {
    /// The run's own.
    OwnBound,
    /// Somebody else's: the machine's, or that of a cgroup the run's is in.
    Elsewhere,
}

/// How limits on memory and processes bind here, found out by trying, without a process.
#[must_use]
pub fn strongest_bindings() -> Bindings {
    const ANY_MEMORY: u64 = 64 << 20;
    const ANY_PIDS: u32 = 64;
    let limits = Limits { memory: Some(ANY_MEMORY), pids: Some(ANY_PIDS), ..Limits::default() };
    let tried = containment::probe("binds", |leaf| bind(leaf, &limits));
    tried.unwrap_or_else(|because| Bindings::sampled(&limits, &because))
}

/// Sets the bounds on a leaf in which nobody is yet.
pub(crate) fn bind(leaf: &Leaf, limits: &Limits) -> Bindings {
    let leaf = leaf.id().path.as_path();
    let binds = |bound: Result<u64, String>| match bound {
        Ok(max) => Binds::Hard { max },
        Err(because) => Binds::Sampled { because },
    };
    Bindings {
        memory: limits.memory.map(|max| binds(bind_memory(leaf, max))),
        pids: limits.pids.map(|max| binds(bind_pids(leaf, max.into()))),
    }
}

/// Takes back what a process in the leaf, which waits at its gate, is not charged to.
pub(crate) fn check_charged(leaf: &Leaf, bindings: &mut Bindings) {
    let path = leaf.id().path.as_path();
    let uncharged = |what: &str| Binds::Sampled {
        because: format!("the kernel charges no {what} to {}", path.display()),
    };
    if bindings.hard_pids().is_some() && !charged(|| Ok(number(path, "pids.current")? > 0)) {
        let _ = write(path, "pids.max", NO_BOUND);
        bindings.pids = Some(uncharged("process"));
    }
    // Who was killed for its very first page was charged for it, too.
    let memory =
        || Ok(number(path, "memory.current")? > 0 || count(path, "memory.events", "oom_kill")? > 0);
    if bindings.hard_memory().is_some() && !charged(memory) {
        let _ = write(path, "memory.max", NO_BOUND);
        bindings.memory = Some(uncharged("memory"));
    }
}

/// What counts as used: what the kernel cannot take back without asking anybody.
pub(crate) fn memory_used(leaf: &Leaf) -> io::Result<u64> {
    let path = leaf.id().path.as_path();
    let cache = count(path, "memory.stat", "inactive_file").unwrap_or(0);
    Ok(number(path, "memory.current")?.saturating_sub(cache))
}

/// Processes and threads in the leaf, those that have ended and were not collected among them.
pub(crate) fn tasks(leaf: &Leaf) -> io::Result<u64> {
    number(&leaf.id().path, "pids.current")
}

/// How often a process or thread was refused because there were too many.
pub(crate) fn refused(leaf: &Leaf) -> io::Result<u64> {
    count(&leaf.id().path, "pids.events", "max")
}

/// Whether the kernel has killed anybody in the leaf for want of memory. `None` also where nobody
/// counts that. The kernel counts before it kills, so whoever is seen dead of it is counted.
pub(crate) fn oom_kill(leaf: &Leaf) -> Option<OomKill> {
    let path = leaf.id().path.as_path();
    if count(path, "memory.events", "oom_kill").ok()? == 0 {
        return None;
    }
    // Not of a leaf that the run has made below its own. An old kernel does not tell them apart.
    let own = count(path, "memory.events.local", "oom");
    let own = own.or_else(|_| count(path, "memory.events", "oom"));
    Some(if own.unwrap_or(0) > 0 { OomKill::OwnBound } else { OomKill::Elsewhere })
}

fn bind_memory(leaf: &Path, max: u64) -> Result<u64, String> {
    enable(leaf, "memory")?;
    let page = rustix::param::page_size() as u64;
    deny_swap(leaf)?;
    set(leaf, "memory.oom.group", 1)?;
    // Last: what fails before it leaves no bound behind. The kernel rounds down to a page.
    let taken = set(leaf, "memory.max", max)?;
    if taken > max || max - taken >= page {
        let _ = write(leaf, "memory.max", NO_BOUND);
        return Err(format!("{} took {taken} for {max}", leaf.join("memory.max").display()));
    }
    Ok(taken)
}

/// With swap a bound on memory bounds nothing. Without its file there must be none.
fn deny_swap(leaf: &Path) -> Result<(), String> {
    match fs::metadata(leaf.join("memory.swap.max")) {
        Ok(_) => match set(leaf, "memory.swap.max", 0)? {
            0 => Ok(()),
            other => Err(format!("the kernel allows {other} bytes of swap and no less")),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound && !there_is_swap() => Ok(()),
        Err(e) => Err(failed("deny swap in", &leaf.join("memory.swap.max"), &e)),
    }
}

fn there_is_swap() -> bool {
    fs::read_to_string(SWAPS).is_ok_and(|swaps| swaps.lines().count() > 1)
}

fn bind_pids(leaf: &Path, max: u64) -> Result<u64, String> {
    enable(leaf, "pids")?;
    match set(leaf, "pids.max", max)? {
        taken if taken == max => Ok(taken),
        taken => {
            let _ = write(leaf, "pids.max", NO_BOUND);
            Err(format!("{} took {taken} for {max}", leaf.join("pids.max").display()))
        }
    }
}

/// Has the leaf given a controller by the cgroup it is in.
fn enable(leaf: &Path, controller: &str) -> Result<(), String> {
    if has(leaf, controller)? {
        return Ok(());
    }
    let parent = leaf.parent().unwrap_or(Path::new("/"));
    if !has(parent, controller)? {
        return Err(format!("{} has no {controller} controller", parent.display()));
    }
    if has_inner_processes(parent)? {
        return Err(format!(
            "{} has processes of its own, and then the kernel gives no controllers to what is in \
             it",
            parent.display()
        ));
    }
    let ask = |sign: char| write(parent, "cgroup.subtree_control", &format!("{sign}{controller}"));
    ask('+').map_err(|e| failed("get controllers from", parent, &e))?;
    // Somebody may have entered the parent meanwhile. The kernel then lets it have controllers for
    // threads alone, and nobody could be in any leaf below it any more.
    let kind = read(leaf, "cgroup.type").map_err(|e| failed("read", leaf, &e))?;
    if kind.trim() != "domain" {
        let _ = ask('-');
        return Err(format!("{} would be {}", leaf.display(), kind.trim()));
    }
    match has(leaf, controller)? {
        true => Ok(()),
        false => Err(format!("{} was given no {controller} controller", leaf.display())),
    }
}

fn has(cgroup: &Path, controller: &str) -> Result<bool, String> {
    let file = "cgroup.controllers";
    let list = read(cgroup, file).map_err(|e| failed("read", &cgroup.join(file), &e))?;
    Ok(list.split_ascii_whitespace().any(|name| name == controller))
}

/// The root of all, which alone has no type, may have processes beside its children.
fn has_inner_processes(cgroup: &Path) -> Result<bool, String> {
    if !cgroup.join("cgroup.type").exists() {
        return Ok(false);
    }
    let members = read(cgroup, "cgroup.procs").map_err(|e| failed("read", cgroup, &e))?;
    Ok(!members.is_empty())
}

fn charged(look: impl Fn() -> io::Result<bool>) -> bool {
    let deadline = sys::boottime() + CHARGE_BOUND;
    loop {
        match look() {
            Ok(true) => return true,
            Ok(false) if sys::boottime() < deadline => std::thread::sleep(CHARGE_PAUSE),
            Ok(false) | Err(_) => return false,
        }
    }
}

/// Writes a value and gives what the file says afterwards.
fn set(cgroup: &Path, file: &str, value: u64) -> Result<u64, String> {
    let path = cgroup.join(file);
    write(cgroup, file, &value.to_string()).map_err(|e| failed("write", &path, &e))?;
    number(cgroup, file).map_err(|e| failed("read", &path, &e))
}

fn write(cgroup: &Path, file: &str, value: &str) -> io::Result<()> {
    use std::io::Write;
    // Never made: in a cgroup a file that is not there is an answer.
    let mut file = fs::OpenOptions::new().write(true).open(cgroup.join(file))?;
    file.write_all(value.as_bytes())
}

fn read(cgroup: &Path, file: &str) -> io::Result<String> {
    fs::read_to_string(cgroup.join(file))
}

fn number(cgroup: &Path, file: &str) -> io::Result<u64> {
    let text = read(cgroup, file)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{file} says {:?}", text.trim())))
}

/// One number of a file with a name and a number in each line.
fn count(cgroup: &Path, file: &str, name: &str) -> io::Result<u64> {
    let text = read(cgroup, file)?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find_map(|(key, value)| (key == name).then(|| value.parse().ok())?);
    found.ok_or_else(|| io::Error::other(format!("{file} does not say {name}")))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("failed to {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a cgroup. What the kernel does, it does not; the virtual machine
    /// of the end-to-end tests does.
    struct Lookalike(std::path::PathBuf);

    impl Lookalike {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let path = std::env::temp_dir().join(format!("kennel-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            Self(path)
        }

        fn said(&self, file: &str) -> String {
            fs::read_to_string(self.0.join(file)).unwrap()
        }
    }

    impl Drop for Lookalike {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_controller_that_is_not_there_is_the_reason() {
        let dir = Lookalike::new(
            "without",
            &[("cgroup.controllers", "cpu io\n"), ("leaf/cgroup.controllers", "\n")],
        );
        let why = bind_memory(&dir.0.join("leaf"), 1 << 20).unwrap_err();
        assert_eq!(why, format!("{} has no memory controller", dir.0.display()));
        assert_eq!(bind_pids(&dir.0.join("nowhere"), 3).unwrap_err().matches("failed").count(), 1);
    }

    #[test]
    fn nothing_is_asked_of_a_cgroup_with_processes_of_its_own() {
        let dir = Lookalike::new(
            "inner",
            &[
                ("cgroup.controllers", "memory pids\n"),
                ("cgroup.type", "domain\n"),
                ("cgroup.procs", "7\n"),
                ("cgroup.subtree_control", ""),
                ("leaf/cgroup.controllers", "\n"),
            ],
        );
        // Of `pids` alone the kernel would take it, and no leaf could have a process any more.
        for why in [bind_pids(&dir.0.join("leaf"), 3), bind_memory(&dir.0.join("leaf"), 1 << 20)] {
            assert!(why.unwrap_err().contains("processes of its own"));
        }
        assert_eq!(dir.said("cgroup.subtree_control"), "");
    }

    #[test]
    fn a_leaf_that_could_have_no_process_is_given_back() {
        let dir = Lookalike::new(
            "invalid",
            &[
                ("cgroup.controllers", "pids\n"),
                ("cgroup.subtree_control", ""),
                ("leaf/cgroup.controllers", "\n"),
                ("leaf/cgroup.type", "domain invalid\n"),
            ],
        );
        assert!(bind_pids(&dir.0.join("leaf"), 3).unwrap_err().contains("domain invalid"));
        assert_eq!(dir.said("cgroup.subtree_control"), "-pids");
    }

    #[test]
    fn a_bound_is_hard_only_if_its_files_took_it() {
        let all = [
            ("cgroup.controllers", "memory pids\n"),
            ("memory.oom.group", ""),
            ("memory.swap.max", ""),
            ("memory.max", ""),
            ("pids.max", ""),
        ];
        let dir = Lookalike::new("whole", &all);
        assert_eq!(bind_memory(&dir.0, 8 << 20), Ok(8 << 20));
        assert_eq!(bind_pids(&dir.0, 30), Ok(30));
        assert_eq!(dir.said("memory.swap.max"), "0");
        assert_eq!(dir.said("memory.oom.group"), "1");
        for missing in ["memory.oom.group", "memory.max"] {
            let rest: Vec<_> = all.into_iter().filter(|(file, _)| *file != missing).collect();
            let dir = Lookalike::new(missing, &rest);
            assert!(bind_memory(&dir.0, 8 << 20).unwrap_err().contains(missing));
        }
    }

    #[test]
    fn counts_are_read_by_their_whole_name() {
        let events = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n";
        let dir = Lookalike::new("counts", &[("memory.events", events)]);
        assert_eq!(count(&dir.0, "memory.events", "oom").unwrap(), 1);
        assert_eq!(count(&dir.0, "memory.events", "oom_kill").unwrap(), 3);
        assert!(count(&dir.0, "memory.events", "oom_kil").is_err());
        assert!(count(&dir.0, "nowhere", "oom").is_err());
    }
}
