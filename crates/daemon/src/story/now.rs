//! What is known of stories beside the journal, for those who ask: the stories as they are, the
//! repositories of projects, what troubles a story, what kennel itself has landed. Owns copies and
//! words; nothing here decides anything, and all of it can be had again.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kennel_supervisor::story::{ProjectKey, Stories, StoryRef};
use tokio::sync::watch;

use crate::store::{Store, StoreError};

/// Landings that are remembered for each project: more than can happen while one run works.
const MAX_LANDED: usize = 1000;
/// The longest trouble that is kept: a screenful.
const MAX_TROUBLE_BYTES: usize = 2000;

/// The stories as they were last committed.
#[derive(Clone, Debug)]
pub(crate) struct StoriesNow(watch::Sender<Stories>);

impl StoriesNow {
    pub(crate) fn new(stories: Stories) -> Self {
        Self(watch::Sender::new(stories))
    }

    /// All of them. Cheap: they are shared.
    pub(crate) fn now(&self) -> Stories {
        self.0.borrow().clone()
    }

    /// They have changed, durably.
    pub(crate) fn put(&self, stories: Stories) {
        self.0.send_replace(stories);
    }

    /// Wakes when they change.
    pub(crate) fn watch(&self) -> watch::Receiver<Stories> {
        self.0.subscribe()
    }
}

/// Where the repository of each project is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Projects(Arc<Mutex<BTreeMap<String, PathBuf>>>);

impl Projects {
    /// All that the store knows.
    pub(crate) async fn in_store(store: &Store) -> Result<Self, StoreError> {
        let known = store.projects().await?.into_iter().map(|known| (known.key, known.path.into()));
        Ok(Self(Arc::new(Mutex::new(known.collect()))))
    }

    pub(crate) fn put(&self, key: &str, path: PathBuf) {
        locked(&self.0).insert(key.to_owned(), path);
    }

    pub(crate) fn path(&self, key: &str) -> Option<PathBuf> {
        locked(&self.0).get(key).cloned()
    }

    pub(crate) fn key(&self, path: &Path) -> Option<String> {
        let known = locked(&self.0);
        known.iter().find(|(_, known)| *known == path).map(|(key, _)| key.clone())
    }
}

/// What went wrong last with a story, in words. Lost by a restart; said again if it is still so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(Arc<Mutex<BTreeMap<StoryRef, Trouble>>>);

#[derive(Clone, Debug)]
struct Trouble {
    why: String,
    /// True if it keeps its step from being gone on with, and not only what comes after it.
    gave_up: bool,
}

impl Troubles {
    pub(crate) fn note(&self, story: &StoryRef, why: String) {
        self.put(story, why, false);
    }

    /// Its step cannot be gone on with now.
    pub(crate) fn gave_up(&self, story: &StoryRef, why: String) {
        self.put(story, why, true);
    }

    fn put(&self, story: &StoryRef, mut why: String, gave_up: bool) {
        if why.len() > MAX_TROUBLE_BYTES {
            let end = (0..=MAX_TROUBLE_BYTES).rev().find(|at| why.is_char_boundary(*at));
            why.truncate(end.unwrap_or(0));
        }
        locked(&self.0).insert(story.clone(), Trouble { why, gave_up });
    }

    pub(crate) fn forget(&self, story: &StoryRef) {
        locked(&self.0).remove(story);
    }

    pub(crate) fn of(&self, story: &StoryRef) -> Option<String> {
        locked(&self.0).get(story).map(|trouble| trouble.why.clone())
    }

    /// What its step waits for.
    pub(crate) fn of_step(&self, story: &StoryRef) -> Option<String> {
        let known = locked(&self.0);
        known.get(story).filter(|trouble| trouble.gave_up).map(|trouble| trouble.why.clone())
    }
}

/// Commits that kennel itself has put the base of a project to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Landed(Arc<Mutex<BTreeMap<ProjectKey, VecDeque<String>>>>);

impl Landed {
    pub(crate) fn note(&self, project: &ProjectKey, commit: String) {
        let mut all = locked(&self.0);
        let known = all.entry(project.clone()).or_default();
        if !known.contains(&commit) {
            known.push_back(commit);
        }
        let surplus = known.len().saturating_sub(MAX_LANDED);
        known.drain(..surplus);
    }

    pub(crate) fn has(&self, project: &ProjectKey, commit: &str) -> bool {
        locked(&self.0).get(project).is_some_and(|known| known.iter().any(|one| one == commit))
    }
}

/// Nothing is left half-done by whoever panicked: every change is one call.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
