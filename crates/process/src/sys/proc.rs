//! `/proc`, read and parsed here and nowhere else.
//!
//! Whatever is read by number is a rumour: the number may have changed hands between two reads. The
//! callers hold a [`Pidfd`](super::Pidfd), read, and then check that the held process had not
//! ended.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Pid;

/// The parts of `/proc/PID/stat` kennel needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) comm: String,
    pub(crate) state: char,
    pub(crate) ppid: u32,
    pub(crate) pgrp: u32,
    pub(crate) session: u32,
    /// Clock ticks since boot at which the process started.
    pub(crate) start_ticks: u64,
}

/// The parts of `/proc/PID/status` that explain a survivor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) uid: Option<u32>,
    pub(crate) tracer: Option<u32>,
}

/// The most of an environment or a command line that is looked at.
const MAX_STRINGS_BYTES: usize = 4 << 20;
/// Room for what nearly every file here holds, so that one read takes it all.
const USUAL_BYTES: usize = 4 << 10;

/// Reads a file of the kernel's. These have no size, and a general reader would feel its way in
/// steps of a few bytes; a start reads ten of them before its gate may open.
fn read(path: &str) -> io::Result<Vec<u8>> {
    read_bounded(path, usize::MAX)
}

fn read_bounded(path: &str, most: usize) -> io::Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    while bytes.len() < most {
        bytes.reserve(USUAL_BYTES / 2);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(bytes)
}

pub(super) fn read_to_string(path: &str) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

pub(crate) fn stat(pid: Pid) -> io::Result<Stat> {
    let text = read(&format!("/proc/{}/stat", pid.get()))?;
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "malformed stat"))
}

/// Our own start time, by the same road as anybody else's.
pub(crate) fn own_stat() -> io::Result<Stat> {
    let text = read("/proc/self/stat")?;
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "malformed stat"))
}

/// The name is between the first `(` and the last `)`, because it may hold both.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|b| *b == b'(')?;
    let close = text.iter().rposition(|b| *b == b')')?;
    let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Field 3 of the manual page is the first after the name.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        comm,
        state: fields.first()?.chars().next()?,
        ppid: number(4)? as u32,
        pgrp: number(5)? as u32,
        session: number(6)? as u32,
        start_ticks: number(22)?,
    })
}

pub(crate) fn status(pid: Pid) -> io::Result<Status> {
    let text = read_to_string(&format!("/proc/{}/status", pid.get()))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u32>().ok()
    };
    Ok(Status { uid: field("Uid:"), tracer: field("TracerPid:").filter(|t| *t != 0) })
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Processor time, with that of children it collected.
    pub(crate) cpu: std::time::Duration,
    /// The memory that is its own: what it shares with files and other processes is not counted.
    pub(crate) memory: u64,
    /// Its threads, the first among them.
    pub(crate) threads: u64,
}

/// What a process uses now.
pub(crate) fn usage(pid: Pid) -> io::Result<Usage> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed stat");
    let stat = read(&format!("/proc/{}/stat", pid.get()))?;
    let after = stat.iter().rposition(|b| *b == b')').ok_or_else(malformed)?;
    let text = std::str::from_utf8(&stat[after + 1..]).map_err(|_| malformed())?;
    // Fields 14 to 17 and 20 of the manual page; field 3 is the first after the name.
    let mut fields = text.split_ascii_whitespace().skip(11).map(|f| f.parse::<u64>().unwrap_or(0));
    let ticks: u64 = fields.by_ref().take(4).sum();
    // Of one that has ended and was not collected it says 0, and it still has its number.
    let threads = fields.nth(2).unwrap_or(0).max(1);
    let per_second = rustix::param::clock_ticks_per_second();
    let cpu = std::time::Duration::from_millis(ticks * 1000 / per_second.max(1));
    let statm = read_to_string(&format!("/proc/{}/statm", pid.get()))?;
    let mut pages = statm.split_ascii_whitespace().skip(1).filter_map(|f| f.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let memory = resident.saturating_sub(shared) * rustix::param::page_size() as u64;
    Ok(Usage { cpu, memory, threads })
}

/// Where in the kernel a process sleeps, if the kernel tells.
pub(crate) fn wait_channel(pid: Pid) -> Option<String> {
    let text = read_to_string(&format!("/proc/{}/wchan", pid.get())).ok()?;
    (!text.is_empty() && text != "0").then_some(text)
}

/// The arguments of a process, NUL separated; empty for kernel threads and zombies.
pub(crate) fn command_line(pid: Pid) -> io::Result<Vec<u8>> {
    read_bounded(&format!("/proc/{}/cmdline", pid.get()), MAX_STRINGS_BYTES)
}

/// True if this exact `NAME=value` is in the environment the process was exec'd with.
pub(crate) fn environment_has(pid: Pid, entry: &[u8]) -> io::Result<bool> {
    let environ = read_bounded(&format!("/proc/{}/environ", pid.get()), MAX_STRINGS_BYTES)?;
    Ok(environ.split(|b| *b == 0).any(|e| e == entry))
}

/// What a variable was in the environment the process was exec'd with.
pub(crate) fn environment_value(pid: Pid, name: &str) -> io::Result<Option<Vec<u8>>> {
    let environ = read_bounded(&format!("/proc/{}/environ", pid.get()), MAX_STRINGS_BYTES)?;
    let value =
        |entry: &[u8]| Some(entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    Ok(environ.split(|b| *b == 0).find_map(value))
}

/// Every process there is, but for us and init.
pub(crate) fn all() -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        pids.extend(parse_number(name.as_bytes()).and_then(|n| Pid::other_than(own, n)));
    }
    Ok(pids)
}

/// Every number that was given out after this one, whoever has it or had it; `None` where that
/// cannot be told from the last number, or where there are more than `most`.
///
/// The kernel gives numbers out in turn, and begins again at the lowest after the highest.
pub(crate) fn younger_than(pid: Pid, most: u32) -> io::Result<Option<Vec<Pid>>> {
    let text = read_to_string("/proc/loadavg")?;
    let last = text.split_ascii_whitespace().next_back().and_then(|last| last.parse::<u32>().ok());
    let Some(last) =
        last.filter(|last| (pid.get()..=pid.get().saturating_add(most)).contains(last))
    else {
        return Ok(None);
    };
    let own = rustix::process::getpid();
    Ok(Some((pid.get() + 1..=last).filter_map(|n| Pid::other_than(own, n.into())).collect()))
}

/// The children of a process, over all its threads. `NotFound` where the process is gone or the
/// kernel has no `children` file.
pub(crate) fn children(pid: Pid) -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", pid.get()))? {
        let mut path = task?.path();
        path.push("children");
        pids.extend(parse_children(&fs::read(path)?));
    }
    Ok(pids)
}

/// Our own children. We have one thread.
pub(crate) fn own_children() -> io::Result<Vec<Pid>> {
    match read("/proc/thread-self/children") {
        Ok(text) => Ok(parse_children(&text).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => own_children_by_scan(),
        Err(e) => Err(e),
    }
}

fn parse_children(text: &[u8]) -> impl Iterator<Item = Pid> {
    text.split(|b| *b == b' ').filter_map(parse_pid)
}

/// For kernels without the `children` file: everyone who names us as parent. Weaker (a re-forker
/// may slip through one scan), which is why rounds repeat and `ECHILD` has the last word.
fn own_children_by_scan() -> io::Result<Vec<Pid>> {
    let own = std::process::id();
    let is_child = |pid: &Pid| stat(*pid).is_ok_and(|s| s.ppid == own);
    Ok(all()?.into_iter().filter(is_child).collect())
}

/// The path of a process within the cgroup v2 hierarchy.
pub(crate) fn cgroup_of(pid: Pid) -> io::Result<String> {
    parse_cgroup(&read_to_string(&format!("/proc/{}/cgroup", pid.get()))?)
}

pub(crate) fn own_cgroup() -> io::Result<String> {
    parse_cgroup(&read_to_string("/proc/self/cgroup")?)
}

fn parse_cgroup(text: &str) -> io::Result<String> {
    let line = text.lines().find_map(|l| l.strip_prefix("0::"));
    let path = line.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup v2 entry"))?;
    Ok(path.to_owned())
}

/// Where cgroup v2 is mounted, and which part of the hierarchy that mount shows.
pub(crate) fn cgroup2_mounts() -> io::Result<Vec<(String, String)>> {
    Ok(parse_mounts(&read_to_string("/proc/self/mountinfo")?))
}

/// Root and mount point of each cgroup2 line. Paths have spaces and the like as octal escapes.
fn parse_mounts(text: &str) -> Vec<(String, String)> {
    let mut mounts = Vec::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        if right.split(' ').next() != Some("cgroup2") {
            continue;
        }
        let mut fields = left.split(' ').skip(3);
        if let (Some(root), Some(point)) = (fields.next(), fields.next()) {
            mounts.push((unescape(root), unescape(point)));
        }
    }
    mounts
}

fn unescape(field: &str) -> String {
    let mut out = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\').map(String::from_utf8_lossy);
        match digits.and_then(|d| u8::from_str_radix(&d, 8).ok()) {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Refuses a `/proc` of another pid namespace, whose numbers would name strangers here.
pub(crate) fn check_ours() -> io::Result<()> {
    let seen = fs::read_link("/proc/self")?;
    if seen.as_os_str().as_bytes() == std::process::id().to_string().as_bytes() {
        return Ok(());
    }
    Err(io::Error::other("/proc belongs to another pid namespace: mount the one of this"))
}

/// The random name of this boot.
pub(crate) fn boot_id() -> io::Result<String> {
    // A process lives in one boot only, and so does whoever is forked from it.
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id.clone());
    }
    let id = read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(BOOT_ID.get_or_init(|| id).clone())
}

/// The pid namespace we and our numbers live in.
pub(crate) fn pid_namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    // A process never changes its own; nobody here asks for another one for those it forks.
    static NAMESPACE: OnceLock<u64> = OnceLock::new();
    if let Some(namespace) = NAMESPACE.get() {
        return Ok(*namespace);
    }
    let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    Ok(*NAMESPACE.get_or_init(|| namespace))
}

fn parse_pid(digits: &[u8]) -> Option<Pid> {
    Pid::new(parse_number(digits)?)
}

fn parse_number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text =
            b"4242 (evil) S 1 (x) R 7 4242 4240 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!(stat.comm, "evil) S 1 (x");
        assert_eq!((stat.state, stat.ppid, stat.pgrp, stat.session), ('R', 7, 4242, 4240));
        assert_eq!(stat.start_ticks, 98765);
    }

    #[test]
    fn a_torn_stat_is_no_stat() {
        for text in [&b""[..], b"12", b"12 (", b"12 (a", b"12 (a)", b"12 (a) R 1 2"] {
            assert_eq!(parse_stat(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn cgroup_mounts_are_found_wherever_they_are() {
        let text = "35 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    36 24 0:31 /a /mnt/my\\040cg rw shared:9 - cgroup2 none rw\n\
                    37 24 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let expected = [("/", "/sys/fs/cgroup/unified"), ("/a", "/mnt/my cg")];
        let expected = expected.map(|(r, p)| (r.to_owned(), p.to_owned()));
        assert_eq!(parse_mounts(text), expected);
    }

    #[test]
    fn whoever_is_born_later_is_younger() {
        let Some(older) = Pid::new(std::os::unix::process::parent_id().into()) else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // `None` after the numbers have begun again, or where too many were given out.
        if let Some(younger) = younger_than(older, 1 << 20).unwrap() {
            assert!(younger.iter().any(|p| p.get() == child.id()));
            assert!(younger.iter().all(|p| p.get() > older.get()));
        }
        assert_eq!(younger_than(Pid::new(i32::MAX.into()).unwrap(), 1 << 20).unwrap(), None);
        child.wait().unwrap();
    }

    #[test]
    fn our_own_stat_reads_like_us() {
        let stat = own_stat().unwrap();
        assert!(stat.start_ticks > 0);
        assert!(stat.ppid > 0);
    }
}
