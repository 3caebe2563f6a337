//! Changes of files and directories as the kernel tells them: no look by the clock is needed.
//!
//! Owns: one inotify instance of whoever follows a client's files, and what of its events matters.
//! Says that something changed, never what it was: whoever is told looks for himself.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Instances that have to be left for others. A user has 128 of them by default, agents and
/// editors need some, and without one they fail; we can do without.
const LEFT_FOR_OTHERS: usize = 16;
/// Bytes of events taken at once: the longest has 272.
const EVENT_BYTES: usize = 4096;
/// Events taken in one go, in reads. The kernel keeps 16,384, and merges what is the same.
const MAX_READS: usize = 4096;

/// What has changed since the last question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A watched file has more in it, or less.
    pub contents: bool,
    /// A name came, went or means another file: time to search.
    pub names: bool,
}

impl Changes {
    /// Whether there are any.
    #[must_use]
    pub fn any(self) -> bool {
        self.contents || self.names
    }
}

/// Watches files and directories.
#[derive(Debug)]
pub struct FileWatch(OwnedFd);

impl FileWatch {
    /// Takes one of the user's instances, if enough are left for others.
    pub fn new() -> io::Result<Self> {
        let instance = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let ours = instance()?;
        // Others may take them in the next moment: this keeps us from being the ones who take the
        // last, and can do no more.
        let _left = (0..LEFT_FOR_OTHERS).map(|_| instance()).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(ours))
    }

    /// Watches what a file holds. To watch it twice is to watch it once.
    pub fn file(&self, path: &Path) -> io::Result<()> {
        // A file that we hold open is not deleted when its last name goes: only its attributes say.
        let flags = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        self.add(path, flags | WatchFlags::DELETE_SELF)
    }

    /// Watches which names a directory has. What its files hold wakes nobody: they may be many, and
    /// others'.
    pub fn dir(&self, path: &Path) -> io::Result<()> {
        let names = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MOVE_SELF;
        self.add(path, names | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR)
    }

    fn add(&self, path: &Path, flags: WatchFlags) -> io::Result<()> {
        inotify::add_watch(&self.0, path, flags)?;
        Ok(())
    }

    /// Takes what has changed. What was lost, because it was too much, has changed all of it.
    #[must_use]
    pub fn take(&self) -> Changes {
        let mut changes = Changes::default();
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        for _ in 0..MAX_READS {
            match events.next() {
                Ok(event) if event.events() == ReadFlags::MODIFY => changes.contents = true,
                Ok(_) => changes = Changes { contents: true, names: true },
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        changes
    }
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
