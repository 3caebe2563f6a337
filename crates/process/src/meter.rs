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

use crate::record::LimitReached;
use crate::spec::Spec;
use crate::sys;

/// The longest account of what a run used: it goes into the record beside the proof.
pub const MAX_USAGE_BYTES: usize = 4 << 10;
/// Words that may wait for the keeper, which takes them at once.
const MAX_WORDS: usize = 64;
/// The stack of a meter: parsers recurse a little.
const METER_STACK_BYTES: usize = 512 << 10;

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

/// Why a wait was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There may be more output, or another charge.
    Output,
    /// The time is over.
    Late,
    /// The run is over: what is there now is all.
    Over,
}

/// Where keeper and meter meet. Every copy is the same one.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    papers: Mutex<Papers>,
    called: Condvar,
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
        let bell = rustix::event::eventfd(0, flags)?;
        let (papers, called) = (Mutex::default(), Condvar::new());
        Ok(Self(Arc::new(Shared { dir: dir.to_owned(), papers, called, bell })))
    }

    // The meter's side.

    /// The run's directory, whose output [`read_output`](crate::read_output) reads.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Waits until there is more output or the run is over, at most so long.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Woken {
        let deadline = Instant::now() + timeout;
        let mut papers = self.papers();
        loop {
            if std::mem::take(&mut papers.more_output) {
                return Woken::Output;
            }
            if papers.over {
                return Woken::Over;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Woken::Late;
            }
            let waited = self.0.called.wait_timeout(papers, left);
            papers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
        let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
    }

    fn finish(&self, failed: Option<String>) {
        self.papers().finished = true;
        match failed {
            Some(why) => self.say(Word::Failed(why)),
            None => self.ring(),
        }
        self.0.called.notify_all();
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
        self.0.papers().more_output = true;
        self.0.0.called.notify_all();
    }

    pub(crate) fn charge(&self, charge: String) {
        let mut papers = self.0.papers();
        papers.charge = Some(charge);
        papers.more_output = true;
        drop(papers);
        self.0.0.called.notify_all();
    }

    /// What it has said since the last time.
    pub(crate) fn take_words(&self) -> Vec<Word> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.0.bell, &mut count[..]);
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
        self.0.0.called.notify_all();
        while !papers.finished {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.0.called.wait_timeout(papers, left);
            papers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
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
                match desk.wait(PATIENCE) {
                    Woken::Output => {
                        outputs += 1;
                        let kind = "turns".to_owned();
                        desk.warn(LimitReached { kind, used: 1.0, max: 1.0 });
                    }
                    Woken::Late => return,
                    Woken::Over => return desk.tell_usage(format!("{{\"outputs\":{outputs}}}")),
                }
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
