//! What lies in the home without the store knowing of it: directories of runs, and cgroups.
//!
//! Owns: telling leftovers, which may go, from runs that live without anybody knowing, which are
//! taken in. The store may have been lost or put back; the runs are still there, and a home is
//! never read as "no agents". Nothing is signalled from here.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kennel_process::{Adopted, FoundLeaf, OnExit, adopt, found_leaves};
use kennel_supervisor::{Claim, Event};

use crate::event_loop::{Inbox, Outcome};
use crate::home::Home;
use crate::store::format::{Detail, Label, Request};
use crate::store::{Store, StoreError};
use crate::text::Text;
use crate::time::Time;

/// A directory or cgroup that is younger may be of a start that is under way.
const SETTLED: Duration = Duration::from_secs(60);

/// Looks for what the store does not know.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    pub(crate) home: Home,
    pub(crate) store: Store,
    pub(crate) inbox: Inbox,
}

/// Something the store does not know.
#[derive(Debug)]
pub(crate) enum Stray {
    /// A run that lives, or may live: to be taken in, with what its record says of it.
    Run(String, Option<Box<Label>>),
    /// The directory of a run that is over, or never was: may be removed.
    Leftover(String),
}

impl Finder {
    /// Every directory of a run there is now.
    pub(crate) fn directories(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.home.runs())?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    }

    /// Takes in every run that lives without the store knowing of it. These directories were there
    /// before anything could be started.
    pub(crate) async fn take_in_all(&self, directories: Vec<String>) {
        let strays = match self.strays(directories).await {
            Ok(strays) => strays,
            Err(e) => return tracing::warn!("failed to look for runs nobody knows of: {e}"),
        };
        for stray in strays {
            if let Stray::Run(run, label) = stray {
                self.take_in(&run, label).await;
            }
        }
    }

    /// Those that the store does not know. An empty one may be of a start that is under way, or was
    /// interrupted and may be asked for again: it is left alone until it has lain for a while.
    pub(crate) async fn strays(&self, directories: Vec<String>) -> io::Result<Vec<Stray>> {
        let mut strays = Vec::new();
        for run in directories {
            let dir = self.home.run_dir(&run);
            if self.store.run(&run).await.map_err(io::Error::other)?.is_some() {
                continue;
            }
            if is_empty(&dir)? {
                if is_settled(&dir) {
                    strays.push(Stray::Leftover(run));
                }
                continue;
            }
            let there = dir.clone();
            let look = tokio::task::spawn_blocking(move || adopt(&dir)).await;
            if !there.exists() {
                // Retention came in between.
                continue;
            }
            let label = match &look {
                Ok(Ok(Adopted::Ended(_) | Adopted::NeverStarted)) => {
                    strays.push(Stray::Leftover(run));
                    continue;
                }
                Ok(Ok(Adopted::Running { status, .. })) => status.started.label.as_deref(),
                Ok(Ok(Adopted::Orphaned(orphan))) => orphan.started().label.as_deref(),
                Ok(Ok(Adopted::Unreadable(_)) | Err(_)) | Err(_) => None,
            };
            let label = label.and_then(|json| serde_json::from_str(json).ok());
            strays.push(Stray::Run(run, label));
        }
        Ok(strays)
    }

    /// Makes a run that was found one of ours, in the slot its record names, or in one of its own
    /// if that is not known or somebody else has it by now.
    pub(crate) async fn take_in(&self, run: &str, label: Option<Box<Label>>) -> bool {
        tracing::warn!(run, "found a run that the store does not know; it is taken in");
        let request = label.as_ref().map_or_else(unknown_request, |label| label.request.clone());
        let detail = Detail::Request(Arc::new(request));
        let own = Claim { slot: run.into(), worktree: None, parent: None };
        let kept = label.map(|label| Claim {
            slot: label.slot.as_str().into(),
            worktree: label.worktree.as_deref().map(Into::into),
            parent: label.request.parent.as_deref().map(Into::into),
        });
        for claim in kept.into_iter().chain([own]) {
            let event = Event::Found { run: run.into(), claim };
            match self.inbox.tell(event, detail.clone()).await {
                Ok(Outcome::Done | Outcome::AlreadySo) => return true,
                Ok(Outcome::Refused(_)) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Removes the directory of a run that is over, if the store still does not know it and no
    /// keeper has come to it meanwhile.
    pub(crate) async fn remove(&self, run: &str) -> io::Result<()> {
        use rustix::fs::{FlockOperation, flock};
        let dir = self.home.run_dir(run);
        let held = fs::File::open(&dir)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        if self.store.run(run).await.map_err(io::Error::other)?.is_some() {
            return Err(io::Error::other("it is a run's by now"));
        }
        if is_empty(&dir)? { fs::remove_dir(&dir) } else { fs::remove_dir_all(&dir) }
    }

    /// Cgroups named after runs that the store does not know, or knows to be dead.
    pub(crate) async fn stray_leaves(&self) -> io::Result<Vec<FoundLeaf>> {
        let mut strays = Vec::new();
        for leaf in found_leaves()? {
            let known = self.store.run(&leaf.run).await.map_err(io::Error::other)?;
            let lives = known.is_some_and(|run| run.state != crate::store::kept::Standing::Dead);
            if !lives && leaf.age >= SETTLED {
                strays.push(leaf);
            }
        }
        Ok(strays)
    }

    /// True if SQLite finds nothing wrong with the store.
    pub(crate) async fn store_is_sound(&self) -> Result<Option<String>, StoreError> {
        self.store.quick_check().await
    }
}

/// What is said of a run whose record says nothing of it.
fn unknown_request() -> Request {
    Request {
        command: vec![Text("?".into())],
        cwd: Text("/".into()),
        terminal: false,
        stdin: false,
        limits: Default::default(),
        format: None,
        worktree: None,
        grace_ms: kennel_process::DEFAULT_GRACE.as_millis() as u64,
        on_exit: OnExit::Sweep,
        at_ms: Time::now().0,
        boot: String::new(),
        parent: None,
        notify: Default::default(),
        watch: Vec::new(),
        heartbeat_ms: None,
        secrets: Default::default(),
        agent: None,
        limits_from: Default::default(),
        notes: Vec::new(),
        step: None,
    }
}

fn is_empty(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        // Removed meanwhile.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

fn is_settled(dir: &Path) -> bool {
    let made = fs::metadata(dir).and_then(|meta| meta.modified());
    made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age >= SETTLED))
}
