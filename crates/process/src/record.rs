//! What a keeper writes durably about its run: one file of facts, in the order they became true.
//!
//! ```text
//! run directory, itself locked (flock) by the keeper while it lives
//!   lock      a note by who holds that lock: which keeper, which cgroup; read-only once there is
//!             a record
//!   record    facts, one JSON object a line, each with a checksum; blank space up to a fixed size
//! ```
//!
//! Owns: the format, its versions, and the reserve. The file is written at full size, synced and
//! renamed into place before the gate opens: a full disk can refuse a start, and can never lose an
//! ending. A torn last line is a fact that did not become durable; anything else that does not read
//! is [`ReadError`], and never "nothing there".

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::containment::{Containment, LeafId};
use crate::controllers::{Bindings, OomKill};
use crate::exit::ExitStatus;
use crate::failpoint::failpoint;
use crate::identity::Identity;
use crate::proof::{Proof, Survivor, Suspect};
use crate::spec::{OnExit, RunId, Streams};
use crate::{OutputTotals, Signal};

/// The version of the format this code writes. It reads this one and all before it.
pub(crate) const VERSION: u32 = 1;
/// Reserved for the whole record. An identity takes 1 KiB, an ending 2 KiB, a list of survivors the
/// rest.
const RECORD_BYTES: u64 = 32 << 10;
/// The part of it that only the ending may use.
const END_RESERVE_BYTES: u64 = 12 << 10;
/// A record that grew beyond this was not written by us.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// The most survivors or suspects one fact lists; their full number is said beside.
pub(crate) const MAX_LISTED: usize = 24;

/// Left by whoever concluded that a run never started, so that a keeper that comes late does not.
pub(crate) const NEVER_STARTED_FILE: &str = "never-started";
const RECORD_FILE: &str = "record";
const LOCK_FILE: &str = "lock";
const NEW_NOTE_EXTENSION: &str = "new";
const SEALED_MODE: u32 = 0o400;

/// Why a run ended. The first cause is kept, whoever asks later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The leader exited by itself.
    Exit,
    /// Somebody asked it to stop.
    Stopped,
    /// Somebody had it killed without asking.
    Killed,
    /// A limit was reached.
    Limit(LimitReached),
    /// The kernel killed it for want of memory: its limit if that was its own, else `None`.
    Oom(Option<LimitReached>),
    /// The keeper died and the run was swept, or can no longer be accounted for.
    Lost,
    /// No instruction of the program ever ran.
    NeverStarted,
}

/// Which limit was reached, and where it stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitReached {
    /// Its name.
    pub kind: String,
    /// What was used.
    pub used: f64,
    /// What was allowed.
    pub max: f64,
}

impl Eq for LimitReached {}

impl Cause {
    /// Why a run ended whose leader ended without anybody having asked for it. A leader that the
    /// kernel killed for want of memory died of SIGKILL; any other death is its own.
    pub(crate) fn of_exit(status: ExitStatus, oom: Option<OomKill>, started: &Started) -> Self {
        match (oom, status) {
            (Some(oom), ExitStatus::Signaled(libc::SIGKILL)) => Self::of_oom(oom, started),
            // The rest of the cohort was awaited, and then killed as a whole.
            (Some(OomKill::OwnBound), _) if started.on_exit == OnExit::Wait => {
                Self::of_oom(OomKill::OwnBound, started)
            }
            (Some(_) | None, _) => Self::Exit,
        }
    }

    pub(crate) fn of_oom(oom: OomKill, started: &Started) -> Self {
        let max = started.binds.hard_memory().filter(|_| oom == OomKill::OwnBound);
        Self::Oom(max.map(|max| {
            // The kernel kills when all that is allowed is used, and not before.
            LimitReached { kind: "memory".to_owned(), used: max as f64, max: max as f64 }
        }))
    }
}

/// What is known of a run before its program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The run.
    pub run: RunId,
    /// Its keeper.
    pub keeper: Identity,
    /// Its leader.
    pub leader: Identity,
    /// What holds its cohort together.
    pub containment: Containment,
    /// Why it is not more than that, if it is not the strongest.
    pub containment_because: Option<String>,
    /// Its cgroup.
    pub leaf: Option<LeafId>,
    /// How its limits on memory and processes bind.
    #[serde(default, skip_serializing_if = "Bindings::is_empty")]
    pub binds: Bindings,
    /// Pipes or terminal.
    pub streams: Streams,
    /// What happens to the cohort when the leader exits.
    pub on_exit: OnExit,
    /// The signal that asks it to end.
    pub ask: Signal,
    /// The time it then gets.
    pub grace: Duration,
    /// What whoever started it wanted to find again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When, in milliseconds of the Unix clock.
    pub at_ms: u64,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// How the leader ended.
    pub status: ExitStatus,
    /// The evidence, or what is missing.
    pub verdict: Verdict,
    /// What it wrote.
    pub output: OutputTotals,
    /// Why it never started, if it did not.
    pub start_error: Option<StartFailure>,
    /// What it used, in the words of its meter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
    /// When, in milliseconds of the Unix clock.
    pub at_ms: u64,
}

/// Whether death is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing of the run is left.
    Dead(Proof),
    /// Proof can no longer be had.
    Lost(Lost),
}

/// Why proof can no longer be had, and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// In words.
    pub reason: String,
    /// Processes that carry the run's cookie and are not provably its own.
    pub suspects: Vec<Suspect>,
}

/// Why a program did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// What was being done.
    pub stage: StartStage,
    /// On what.
    pub path: String,
    /// The system's error number, if it was the system.
    pub errno: Option<i32>,
    /// In words.
    pub message: String,
}

/// What was being done when a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// Reading and checking what to run.
    Spec,
    /// Making the run's directory, lock, socket or output files.
    Directory,
    /// Opening pipes or a terminal.
    Streams,
    /// Forking the leader and preparing it.
    Fork,
    /// Writing the record.
    Record,
    /// Changing to the working directory.
    WorkingDirectory,
    /// Becoming the program.
    Exec,
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.stage {
            StartStage::Spec => "take the spec of",
            StartStage::Directory => "set up",
            StartStage::Streams => "open the streams of",
            StartStage::Fork => "fork for",
            StartStage::Record => "write the record",
            StartStage::WorkingDirectory => "change to directory",
            StartStage::Exec => "run",
        };
        write!(f, "failed to {what} {}: {}", self.path, self.message)
    }
}

impl std::error::Error for StartFailure {}

/// One thing that became true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Started(Box<Started>),
    /// Written before the gate opens: without it, no instruction of the program has run.
    Opening {
        at_ms: u64,
    },
    Stopping {
        cause: Cause,
        grace_ms: u64,
        at_ms: u64,
    },
    Exited {
        status: ExitStatus,
        /// Whether the kernel had killed for want of memory by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oom: Option<OomKill>,
        at_ms: u64,
    },
    Stuck {
        survivors: Vec<Survivor>,
        count: u64,
        at_ms: u64,
    },
    Ended(Box<End>),
    /// Found after the end: processes outside the cohort that carry the cookie.
    Outside {
        suspects: Vec<Suspect>,
        count: u64,
        at_ms: u64,
    },
}

/// A run directory.
#[derive(Clone, Debug)]
pub(crate) struct RunDir(PathBuf);

/// The keeper's hold on a run directory. Released by the kernel when the keeper ends, however it
/// ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _held: File,
    note: PathBuf,
}

/// What the holder of the lock says of itself. Not durable and not needed after a reboot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LockNote {
    pub(crate) keeper: Identity,
    /// The leaf it is about to make or has made. Noted before it is made, so that none is ever
    /// without a note.
    pub(crate) leaf: Option<PathBuf>,
}

impl RunDir {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Takes the lock if nobody holds it. It is on the directory itself, which nobody can remove
    /// from under its holder and make anew.
    pub(crate) fn lock(&self) -> io::Result<Option<Lock>> {
        use rustix::fs::{FlockOperation, flock};
        let held = File::open(&self.0)?;
        // A reader may take a lock; only the owner may conclude anything from having it.
        let (owner, own) = (held.metadata()?.uid(), rustix::process::geteuid());
        if owner != own.as_raw() && !own.is_root() {
            return Err(rustix::io::Errno::ACCESS.into());
        }
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _held: held, note: self.join(LOCK_FILE) })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether anything was ever put here. Without that, no keeper came.
    pub(crate) fn is_untouched(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            // The first note may have been in the making.
            let unfinished = Path::new(LOCK_FILE).with_extension(NEW_NOTE_EXTENSION);
            if name != NEVER_STARTED_FILE && Path::new(&name) != unfinished {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the last holder of the lock had written a record.
    pub(crate) fn is_sealed(&self) -> io::Result<bool> {
        Ok(fs::metadata(self.join(LOCK_FILE))?.mode() & 0o777 == SEALED_MODE)
    }

    /// What the last holder of the lock said of itself.
    pub(crate) fn read_note(&self) -> Option<LockNote> {
        serde_json::from_slice(&fs::read(self.join(LOCK_FILE)).ok()?).ok()
    }
}

impl Lock {
    pub(crate) fn write_note(&self, note: &LockNote) -> io::Result<()> {
        // Replaced whole: a keeper killed in between leaves the old note or the new one.
        let new = self.note.with_extension(NEW_NOTE_EXTENSION);
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(note)?)?;
        fs::rename(new, &self.note)
    }

    /// Marks the note: from here on there is a record, and if it is missing somebody took it away.
    /// By its mode, because that is one small step where another write would be several.
    pub(crate) fn seal(&self) -> io::Result<()> {
        fs::set_permissions(&self.note, fs::Permissions::from_mode(SEALED_MODE))
    }
}

/// The record of a run, open for appending.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    used: u64,
}

#[derive(Serialize)]
struct LineOut<'a> {
    v: u32,
    crc: u32,
    fact: &'a RawValue,
}

#[derive(Deserialize)]
struct LineIn<'a> {
    v: u32,
    crc: u32,
    #[serde(borrow)]
    fact: &'a RawValue,
}

impl Record {
    /// Writes the first fact and the reserve, and makes both durable. Until this returns `Ok`, no
    /// program may run.
    pub(crate) fn create(dir: &RunDir, started: &Started) -> io::Result<Self> {
        let line = encode(&Fact::Started(Box::new(started.clone())))?;
        let temporary = dir.join("record.new");
        let result = Self::write_new(dir, &temporary, &line);
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        result
    }

    fn write_new(dir: &RunDir, temporary: &Path, line: &[u8]) -> io::Result<Self> {
        failpoint("record.create")?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(temporary)?;
        let mut bytes = vec![b' '; RECORD_BYTES as usize];
        bytes[..line.len()].copy_from_slice(line);
        file.write_all(&bytes)?;
        failpoint("record.sync")?;
        file.sync_all()?;
        failpoint("record.rename")?;
        fs::rename(temporary, dir.join(RECORD_FILE))?;
        failpoint("record.sync_dir")?;
        File::open(dir.path())?.sync_all()?;
        Ok(Self { file, used: line.len() as u64 })
    }

    /// Opens a record to add to it, after the one who wrote it is gone. The caller holds the lock.
    pub(crate) fn reopen(dir: &RunDir, history: &History) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(dir.join(RECORD_FILE))?;
        Ok(Self { file, used: history.bytes })
    }

    /// Adds a fact. After an error the same place is written again next time.
    ///
    /// An ending is synced to the disk before anybody hears of it. The steps before it outlive any
    /// crash of ours once they are written; only the loss of the whole machine can take them, and
    /// then nothing of the run is left either, and its end is told as a reboot.
    pub(crate) fn append(&mut self, fact: &Fact) -> io::Result<()> {
        failpoint("record.append")?;
        let ending = match fact {
            Fact::Ended(_) | Fact::Outside { .. } => true,
            Fact::Started(_)
            | Fact::Opening { .. }
            | Fact::Stopping { .. }
            | Fact::Exited { .. }
            | Fact::Stuck { .. } => false,
        };
        self.write(fact, if ending { RECORD_BYTES } else { RECORD_BYTES - END_RESERVE_BYTES })?;
        if ending {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Notes that the gate is about to open.
    pub(crate) fn opening(&mut self) -> io::Result<()> {
        failpoint("record.opening")?;
        self.write(&Fact::Opening { at_ms: unix_ms() }, RECORD_BYTES - END_RESERVE_BYTES)
    }

    fn write(&mut self, fact: &Fact, limit: u64) -> io::Result<()> {
        let line = encode(fact)?;
        let end = self.used + line.len() as u64;
        if end > limit {
            let why = "the record has no room for this but its reserve";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        self.file.write_all_at(&line, self.used)?;
        self.used = end;
        Ok(())
    }
}

fn encode(fact: &Fact) -> io::Result<Vec<u8>> {
    let body = serde_json::value::to_raw_value(fact)?;
    let crc = crc32(body.get().as_bytes());
    let mut line = serde_json::to_vec(&LineOut { v: VERSION, crc, fact: &body })?;
    line.push(b'\n');
    Ok(line)
}

/// A record read back.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) facts: Vec<Fact>,
    bytes: u64,
    /// Something follows the last whole fact.
    torn: bool,
}

impl History {
    /// Reads a run's record. `Ok(None)` only if there is none, which means that no gate was opened.
    pub(crate) fn read(dir: &RunDir) -> Result<Option<Self>, ReadError> {
        use std::io::Read;
        let path = dir.join(RECORD_FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound && dir.path().is_dir() => {
                return Ok(None);
            }
            Err(e) => return Err(ReadError::Io(path, e)),
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|e| ReadError::Io(path.clone(), e))?;
        if bytes.len() as u64 > MAX_RECORD_BYTES {
            return Err(ReadError::Corrupt(
                path,
                "it is larger than any record of ours".to_owned(),
            ));
        }
        if (bytes.len() as u64) < RECORD_BYTES {
            return Err(ReadError::Corrupt(path, "its end is missing".to_owned()));
        }
        Self::parse(&bytes).map(Some).map_err(|e| match e {
            Malformed::Newer(version) => ReadError::Newer(path, version),
            Malformed::Corrupt(why) => ReadError::Corrupt(path, why),
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let written = bytes.trim_ascii_end();
        let mut facts = Vec::new();
        let mut good = 0;
        let mut rest = bytes;
        while good < written.len() {
            let line_end = rest.iter().position(|b| *b == b'\n');
            let line = &rest[..line_end.unwrap_or(rest.len())];
            match decode(line) {
                Ok(fact) if line_end.is_some() => facts.push(fact),
                Err(Malformed::Newer(version)) => return Err(Malformed::Newer(version)),
                Ok(_) | Err(Malformed::Corrupt(_)) => {
                    // The last line may be torn: it was being written when the writer died. The
                    // first may not: it was renamed into place whole.
                    let last = good + line.len() >= written.len();
                    if last && !facts.is_empty() {
                        break;
                    }
                    return Err(Malformed::Corrupt(format!("line {} is damaged", facts.len() + 1)));
                }
            }
            good += line.len() + 1;
            rest = &bytes[good.min(bytes.len())..];
        }
        match facts.first() {
            Some(Fact::Started(_)) => {
                Ok(Self { facts, bytes: good as u64, torn: good < written.len() })
            }
            Some(_) => Err(Malformed::Corrupt("it does not begin with a start".to_owned())),
            None => Err(Malformed::Corrupt("it is empty".to_owned())),
        }
    }

    pub(crate) fn started(&self) -> Option<&Started> {
        self.facts.iter().find_map(|f| if let Fact::Started(s) = f { Some(&**s) } else { None })
    }

    /// Whether the gate may have been opened. If not, no instruction of the program has run. What
    /// cannot be read may have said so.
    pub(crate) fn opened(&self) -> bool {
        self.torn || self.facts.iter().any(|f| matches!(f, Fact::Opening { .. }))
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.facts.iter().find_map(|f| if let Fact::Ended(end) = f { Some(&**end) } else { None })
    }

    /// The cause recorded when a stop began.
    pub(crate) fn stop_cause(&self) -> Option<&Cause> {
        self.facts.iter().find_map(|f| match f {
            Fact::Stopping { cause, .. } => Some(cause),
            Fact::Started(_) | Fact::Opening { .. } | Fact::Exited { .. } | Fact::Stuck { .. } => {
                None
            }
            Fact::Ended(_) | Fact::Outside { .. } => None,
        })
    }

    /// The leader's status, if the keeper lived to record it.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        let status =
            |f: &Fact| if let Fact::Exited { status, .. } = f { Some(*status) } else { None };
        self.facts.iter().find_map(status)
    }

    /// Whether the kernel had killed for want of memory when the leader ended.
    pub(crate) fn oom(&self) -> Option<OomKill> {
        self.facts.iter().find_map(|f| if let Fact::Exited { oom, .. } = f { *oom } else { None })
    }
}

enum Malformed {
    Newer(u32),
    Corrupt(String),
}

fn decode(line: &[u8]) -> Result<Fact, Malformed> {
    let corrupt = |e: serde_json::Error| Malformed::Corrupt(e.to_string());
    let line: LineIn<'_> = serde_json::from_slice(line).map_err(corrupt)?;
    if line.v > VERSION {
        return Err(Malformed::Newer(line.v));
    }
    if crc32(line.fact.get().as_bytes()) != line.crc {
        return Err(Malformed::Corrupt("checksum".to_owned()));
    }
    serde_json::from_str(line.fact.get()).map_err(corrupt)
}

/// The CRC-32 of zip and Ethernet. By a table of our own: the fast ones first ask the processor
/// what it can do, and on a virtual machine that takes longer than all the checksums of a run.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc32_table();
    let step = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

const fn crc32_table() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { POLYNOMIAL ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// Why a record that is there cannot be read. Whatever it is about is not known to be dead.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    Io(PathBuf, io::Error),
    /// It is damaged.
    Corrupt(PathBuf, String),
    /// A later kennel wrote it.
    Newer(PathBuf, u32),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, e) => write!(f, "failed to read record {}: {e}", path.display()),
            Self::Corrupt(path, why) => write!(f, "record {} is damaged: {why}", path.display()),
            Self::Newer(path, version) => write!(
                f,
                "record {} has format {version}, newer than {VERSION} of this kennel: \
                 use a later kennel",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ReadError {}

/// The wall clock, for people; nothing is decided by it. Tests have it jump between 1970 and the
/// next century.
pub(crate) fn unix_ms() -> u64 {
    const CENTURY_MS: u64 = 100 * 365 * 86_400_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    match crate::failpoint::failpoint("clock.jumps") {
        Ok(()) => now,
        Err(_) if crate::sys::boottime().subsec_millis().is_multiple_of(2) => now + CENTURY_MS,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::Binds;

    fn started() -> Started {
        let own = Identity::own().unwrap();
        Started {
            run: RunId::new("r1").unwrap(),
            keeper: own.clone(),
            leader: own,
            containment: Containment::Subreaper,
            containment_because: Some("no cgroup".to_owned()),
            leaf: None,
            binds: Bindings::default(),
            streams: Streams::Pipes { stdin: crate::spec::Stdin::Closed },
            on_exit: OnExit::Sweep,
            ask: Signal::TERM,
            grace: Duration::from_secs(10),
            label: None,
            at_ms: 1,
        }
    }

    fn exited() -> Fact {
        Fact::Exited { status: ExitStatus::Exited(3), oom: None, at_ms: 2 }
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = encode(&Fact::Started(Box::new(started()))).unwrap();
        bytes.extend(encode(&exited()).unwrap());
        bytes.resize(4096, b' ');
        bytes
    }

    #[test]
    fn what_was_written_is_read_back() {
        let history = History::parse(&bytes()).unwrap_or_else(|_| panic!("it reads"));
        assert_eq!(history.started(), Some(&started()));
        assert_eq!(history.exit(), Some(ExitStatus::Exited(3)));
        assert_eq!(history.end(), None);
    }

    #[test]
    fn out_of_memory_is_told_only_of_a_leader_that_was_killed_or_a_cohort_that_was_awaited() {
        use OomKill::{Elsewhere, OwnBound};
        let killed = ExitStatus::Signaled(libc::SIGKILL);
        let hard = Binds::Hard { max: 4096 };
        let of = |status, oom, on_exit, memory: Option<&Binds>| {
            let binds = Bindings { memory: memory.cloned(), pids: None };
            Cause::of_exit(status, oom, &Started { on_exit, binds, ..started() })
        };
        let limit = LimitReached { kind: "memory".to_owned(), used: 4096.0, max: 4096.0 };
        let at_limit = Cause::Oom(Some(limit));
        for (status, oom, on_exit, memory, expected) in [
            (killed, None, OnExit::Sweep, Some(&hard), Cause::Exit),
            (killed, Some(OwnBound), OnExit::Sweep, Some(&hard), at_limit.clone()),
            (killed, Some(Elsewhere), OnExit::Sweep, Some(&hard), Cause::Oom(None)),
            (killed, Some(Elsewhere), OnExit::Sweep, None, Cause::Oom(None)),
            // Somebody else of the cohort was killed, and it went on.
            (ExitStatus::Exited(0), Some(Elsewhere), OnExit::Sweep, None, Cause::Exit),
            (ExitStatus::Exited(0), Some(Elsewhere), OnExit::Wait, None, Cause::Exit),
            (ExitStatus::Exited(0), Some(OwnBound), OnExit::Wait, Some(&hard), at_limit),
        ] {
            assert_eq!(of(status, oom, on_exit, memory), expected, "{status} {oom:?} {on_exit:?}");
        }
    }

    #[test]
    fn every_torn_tail_reads_as_the_facts_before_it() {
        let whole = bytes();
        let first = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
        let second = first + whole[first..].iter().position(|b| *b == b'\n').unwrap() + 1;
        for cut in first..second {
            let mut torn = whole[..cut].to_vec();
            torn.resize(4096, b' ');
            let history = History::parse(&torn).unwrap_or_else(|_| panic!("cut at {cut}"));
            assert_eq!(history.facts.len(), 1, "cut at {cut}");
            assert_eq!(history.bytes, first as u64, "cut at {cut}");
        }
    }

    #[test]
    fn damage_is_told_and_never_read_as_nothing() {
        let whole = bytes();
        let first = whole.iter().position(|b| *b == b'\n').unwrap();
        for at in 0..first {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            if let Ok(history) = History::parse(&damaged) {
                // A flipped bit that leaves the meaning the same (the case of a key the reader
                // does not check) must at least leave the facts the same.
                assert_eq!(history.started(), Some(&started()), "byte {at}");
            }
        }
        assert!(History::parse(b"").is_err());
        assert!(History::parse(&[b' '; 100]).is_err());
        assert!(History::parse(b"garbage\n").is_err());
    }

    /// The check value of every description of this checksum.
    #[test]
    fn the_checksum_is_the_one_everybody_means() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_later_version_is_refused_by_number() {
        let text = String::from_utf8(bytes()).unwrap().replace(r#"{"v":1,"#, r#"{"v":9,"#);
        assert!(matches!(History::parse(text.as_bytes()), Err(Malformed::Newer(9))));
    }
}
