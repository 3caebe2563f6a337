//! The seam between a keeper and whoever can read its agent's own words.
//!
//! ```text
//! keeper --"there is more output", charge, "it is over"--> desk --> meter, a thread of its own
//!        <--warn, stop, usage, active, excused------------ desk <--
//! ```
//!
//! Owns: the desk over which the two speak. The keeper knows no format and waits for nobody: a
//! meter that panics or stands still is told of, and the run is kept, stopped and proven without
//! it. A meter signals nobody; it says what it found, and the keeper acts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::record::LimitReached;
use crate::spec::Spec;
use crate::sys;
use crate::sys::watch::{Changes, FileWatch};

/// The longest account of what a run used: it goes into the record beside the proof.
pub const MAX_USAGE_BYTES: usize = 4 << 10;
/// Words that may wait for the keeper, which takes them at once.
const MAX_WORDS: usize = 64;
/// The stack of a meter: parsers recurse a little.
const METER_STACK_BYTES: usize = 512 << 10;
/// Pause after a wait that failed, for want of kernel memory: it must not become a loop.
const POLL_FAILED_PAUSE: Duration = Duration::from_millis(100);

/// Reads what an agent says of itself, from its output and its files, and holds it to limits.
pub trait Meter: Send {
    /// Follows the run until [`Desk::wait`] says that it is over, and returns when all has been
    /// read.
    fn follow(&mut self, desk: &Desk);
}

/// Makes the meter of a run, if it is to have one. Called before the run starts.
pub type MakeMeter = fn(&Spec) -> Option<Box<dyn Meter>>;

/// What a meter says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    Warn(LimitReached),
    Stop(LimitReached),
    /// It ended before the run did, for this reason.
    Failed(String),
}

/// What a wait found. Nothing of it if the time was over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// There may be more output, or another charge.
    pub output: bool,
    /// What has changed among the files that are watched.
    pub files: Changes,
    /// The run is over: what is there now is all.
    pub over: bool,
}

impl Woken {
    fn is_by_something(self) -> bool {
        self.output || self.over || self.files.any()
    }
}

/// Where keeper and meter meet. Every copy is the same one.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    papers: Mutex<Papers>,
    /// Readable when the keeper has said something.
    call: OwnedFd,
    /// The meter has come to its end.
    left: Condvar,
    /// Readable when the meter has said something.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Papers {
    more_output: bool,
    over: bool,
    words: Vec<Word>,
    usage: Option<String>,
    active_at: Duration,
    excused: bool,
    finished: bool,
    charge: Option<String>,
}

impl Desk {
    fn new(dir: &Path) -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let (bell, call) = (rustix::event::eventfd(0, flags)?, rustix::event::eventfd(0, flags)?);
        let (papers, left) = (Mutex::default(), Condvar::new());
        Ok(Self(Arc::new(Shared { dir: dir.to_owned(), papers, call, left, bell })))
    }

    // The meter's side.

    /// The run's directory, whose output [`read_output`](crate::read_output) reads.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Waits until there is more output, a watched file has changed or the run is over; at most so
    /// long, if that is said.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>, files: Option<&FileWatch>) -> Woken {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let woken = self.look(files);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if woken.is_by_something() || left.is_some_and(|left| left.is_zero()) {
                return woken;
            }
            let left = left.map(|left| rustix::time::Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut fds = vec![PollFd::new(&self.0.call, PollFlags::IN)];
            fds.extend(files.map(|files| PollFd::new(files, PollFlags::IN)));
            // What cannot be waited for is looked at again, after the shortest of pauses.
            if poll(&mut fds, left.as_ref()).is_err_and(|e| e != rustix::io::Errno::INTR) {
                std::thread::sleep(POLL_FAILED_PAUSE);
            }
        }
    }

    fn look(&self, files: Option<&FileWatch>) -> Woken {
        silence(&self.0.call);
        let files = files.map(FileWatch::take).unwrap_or_default();
        let mut papers = self.papers();
        let output = std::mem::take(&mut papers.more_output);
        Woken { output, files, over: papers.over }
    }

    /// A limit is near.
    pub fn warn(&self, limit: LimitReached) {
        self.say(Word::Warn(limit));
    }

    /// A limit is reached: the run is to be stopped.
    pub fn stop(&self, limit: LimitReached) {
        self.say(Word::Stop(limit));
    }

    /// What the run used so far, as a JSON object of at most [`MAX_USAGE_BYTES`].
    pub fn tell_usage(&self, json: String) {
        if json.len() <= MAX_USAGE_BYTES {
            self.papers().usage = Some(json);
            self.ring();
        }
    }

    /// The agent did something that its output does not show: its transcript grew.
    pub fn active(&self) {
        self.papers().active_at = sys::boottime();
    }

    /// Whether the agent waits for something that is not its own doing, and so is not idle.
    pub fn excuse(&self, excused: bool) {
        self.papers().excused = excused;
    }

    /// What others used on the run's behalf, as it was told last.
    #[must_use]
    pub fn charged(&self) -> Option<String> {
        self.papers().charge.clone()
    }

    fn say(&self, word: Word) {
        let mut papers = self.papers();
        if papers.words.len() < MAX_WORDS {
            papers.words.push(word);
        }
        drop(papers);
        self.ring();
    }

    fn ring(&self) {
        sound(&self.0.bell);
    }

    fn finish(&self, failed: Option<String>) {
        self.papers().finished = true;
        match failed {
            Some(why) => self.say(Word::Failed(why)),
            None => self.ring(),
        }
        self.0.left.notify_all();
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.0.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keeper's side of a meter.
#[derive(Debug)]
pub(crate) struct Metered(Desk);

impl Metered {
    /// Puts a meter to work in a thread of its own.
    pub(crate) fn begin(dir: &Path, mut meter: Box<dyn Meter>) -> io::Result<Self> {
        let desk = Desk::new(dir)?;
        let own = desk.clone();
        let thread = std::thread::Builder::new().name("meter".to_owned());
        thread.stack_size(METER_STACK_BYTES).spawn(move || {
            let followed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                meter.follow(&own);
            }));
            let over = own.papers().over;
            own.finish(match followed {
                Ok(()) if over => None,
                Ok(()) => Some("it left before the run was over".to_owned()),
                Err(_) => Some("it panicked".to_owned()),
            });
        })?;
        Ok(Self(desk))
    }

    /// Readable when it has said something.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.0.0.bell.as_fd()
    }

    pub(crate) fn there_is_more(&self) {
        // Who has not come for the last call needs no other.
        let called = std::mem::replace(&mut self.0.papers().more_output, true);
        if !called {
            sound(&self.0.0.call);
        }
    }

    pub(crate) fn charge(&self, charge: String) {
        self.0.papers().charge = Some(charge);
        self.there_is_more();
    }

    /// What it has said since the last time.
    pub(crate) fn take_words(&self) -> Vec<Word> {
        silence(&self.0.0.bell);
        std::mem::take(&mut self.0.papers().words)
    }

    pub(crate) fn usage(&self) -> Option<String> {
        self.0.papers().usage.clone()
    }

    /// When the agent was last seen doing something, and whether it is excused from doing more.
    pub(crate) fn doings(&self) -> (Duration, bool) {
        let papers = self.0.papers();
        (papers.active_at, papers.excused)
    }

    /// Says that the run is over and waits, at most so long, until all of it has been read.
    pub(crate) fn settle(&self, bound: Duration) {
        let deadline = Instant::now() + bound;
        let mut papers = self.0.papers();
        papers.over = true;
        sound(&self.0.0.call);
        while !papers.finished {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.0.left.wait_timeout(papers, left);
            papers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Makes a descriptor of events readable.
fn sound(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// And not readable any more.
fn silence(bell: &OwnedFd) {
    let mut count = [0; 8];
    let _ = rustix::io::read(bell, &mut count[..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Echo;

    impl Meter for Echo {
        fn follow(&mut self, desk: &Desk) {
            let mut outputs = 0;
            loop {
                let woken = desk.wait(Some(PATIENCE), None);
                if woken.output {
                    outputs += 1;
                    let kind = "turns".to_owned();
                    desk.warn(LimitReached { kind, used: 1.0, max: 1.0 });
                }
                if woken.over {
                    return desk.tell_usage(format!("{{\"outputs\":{outputs}}}"));
                }
                assert!(woken.output, "it waits for ever: {woken:?}");
            }
        }
    }

    struct Panics;

    impl Meter for Panics {
        fn follow(&mut self, _: &Desk) {
            panic!("a bug in a parser");
        }
    }

    struct StandsStill;

    impl Meter for StandsStill {
        fn follow(&mut self, _: &Desk) {
            std::thread::sleep(Duration::from_secs(3));
        }
    }

    fn words(metered: &Metered) -> Vec<Word> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let words = metered.take_words();
            if !words.is_empty() || Instant::now() >= deadline {
                return words;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_a_meter_says_arrives_and_its_last_account_is_waited_for() {
        let metered = Metered::begin(Path::new("/"), Box::new(Echo)).unwrap();
        metered.there_is_more();
        assert!(matches!(&words(&metered)[..], [Word::Warn(_)]));
        metered.settle(PATIENCE);
        assert_eq!(metered.usage().as_deref(), Some("{\"outputs\":1}"));
        assert!(metered.take_words().is_empty());
    }

    #[test]
    fn changes_of_watched_files_end_a_wait_and_those_of_others_do_not() {
        let dir = std::env::temp_dir().join(format!("kennel-watch-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (ours, theirs) = (dir.join("ours"), dir.join("theirs"));
        std::fs::write(&ours, "a").unwrap();
        std::fs::write(&theirs, "a").unwrap();
        let desk = Desk::new(&dir).unwrap();
        let watch = FileWatch::new().unwrap();
        watch.dir(&dir).unwrap();
        watch.file(&ours).unwrap();
        let wait = |patience| desk.wait(Some(patience), Some(&watch)).files;
        let append = |path: &Path| {
            let mut file = std::fs::File::options().append(true).open(path).unwrap();
            std::io::Write::write_all(&mut file, b"b").unwrap();
        };
        append(&theirs);
        assert_eq!(wait(Duration::ZERO), Changes::default());
        append(&ours);
        assert_eq!(wait(PATIENCE), Changes { contents: true, names: false });
        std::fs::write(dir.join("new"), "a").unwrap();
        assert!(wait(PATIENCE).names);
        let _held = std::fs::File::open(&ours).unwrap();
        std::fs::remove_file(&ours).unwrap();
        assert!(wait(PATIENCE).names, "also while somebody holds it open");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(watch.file(&ours).is_err());
    }

    #[test]
    fn a_meter_that_fails_is_told_of_and_waited_for_no_longer() {
        let metered = Metered::begin(Path::new("/"), Box::new(Panics)).unwrap();
        assert!(matches!(&words(&metered)[..], [Word::Failed(why)] if why.contains("panicked")));
        metered.settle(PATIENCE);
        let metered = Metered::begin(Path::new("/"), Box::new(StandsStill)).unwrap();
        let begun = Instant::now();
        metered.settle(Duration::from_millis(10));
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}
