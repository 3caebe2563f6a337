//! What is kept of every run that is not dead, in memory, and whom to wake when it changes.
//!
//! Owns: a copy of what the store has, changed by the event loop, right after each commit. Ahead of
//! the store in one thing: a start or an ending that the run's own record has, or its directory
//! proves, while the store cannot take it. Questions about the dead go to the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::store::format::Detail;
use crate::store::kept::{KeptRun, Standing};

/// Runs that are not dead.
#[derive(Clone, Debug)]
pub(crate) struct Live(Arc<Mutex<HashMap<Arc<str>, watch::Sender<KeptRun>>>>);

impl Live {
    pub(crate) fn new(runs: Vec<KeptRun>) -> Self {
        let known = runs.into_iter().map(|run| (run.id.clone(), watch::Sender::new(run)));
        Self(Arc::new(Mutex::new(known.collect())))
    }

    /// The run of this id.
    pub(crate) fn get(&self, id: &str) -> Option<KeptRun> {
        self.locked().get(id).map(|run| run.borrow().clone())
    }

    /// The run that holds this slot.
    pub(crate) fn in_slot(&self, slot: &str) -> Option<KeptRun> {
        let runs = self.locked();
        let found = runs.values().find(|run| &*run.borrow().slot == slot);
        found.map(|run| run.borrow().clone())
    }

    /// The run of this id, and every change of it from here on, its death included.
    pub(crate) fn watch(&self, id: &str) -> Option<watch::Receiver<KeptRun>> {
        self.locked().get(id).map(watch::Sender::subscribe)
    }

    /// All of them, newest first.
    pub(crate) fn all(&self) -> Vec<KeptRun> {
        let mut runs: Vec<KeptRun> =
            self.locked().values().map(|run| run.borrow().clone()).collect();
        runs.sort_by(|a, b| (b.request.at_ms, &b.id).cmp(&(a.request.at_ms, &a.id)));
        runs
    }

    /// Waits until nobody is starting any more, at most so long.
    pub(crate) async fn starts_settle(&self, bound: Duration) {
        let deadline = tokio::time::Instant::now() + bound;
        let starting = |run: &KeptRun| run.started.is_none() && run.ended.is_none();
        for run in self.all().into_iter().filter(|run| starting(run)) {
            if let Some(mut changes) = self.watch(&run.id) {
                let settled = changes.wait_for(|run| !starting(run) || run.is_over());
                drop(tokio::time::timeout_at(deadline, settled).await);
            }
        }
    }

    /// Runs as they were just committed, in order. Whoever asks about them, or waits for them, has
    /// an answer only after `tell` has told those who follow the journal: neither is ahead of the
    /// other for anybody who asks both.
    pub(crate) fn put_all(&self, changed: Vec<KeptRun>, tell: impl FnOnce()) {
        let mut runs = self.locked();
        tell();
        for run in changed {
            Self::put(&mut runs, run);
        }
    }

    fn put(runs: &mut HashMap<Arc<str>, watch::Sender<KeptRun>>, run: KeptRun) {
        if run.state == Standing::Dead {
            // Whoever waits still sees the last value.
            if let Some(known) = runs.remove(&run.id) {
                known.send_replace(run);
            }
            return;
        }
        match runs.get(&run.id) {
            // What was foretold stays so; facts from before it come late.
            Some(known) if known.borrow().state == Standing::Dead => {}
            Some(known) => drop(known.send_replace(run)),
            None => drop(runs.insert(run.id.clone(), watch::Sender::new(run))),
        }
    }

    /// Shows a start or a death that is certain without the store, which cannot take it for want of
    /// space. The slot stays taken until it can; the next daemon would find the same.
    pub(crate) fn foretell(&self, id: &str, state: Standing, detail: &Detail) {
        if let Some(known) = self.locked().get(id) {
            let run = known.borrow().after(state, detail);
            known.send_replace(run);
        }
    }

    /// What a run's meter said. No fact, and in no journal: the end has the last of it.
    pub(crate) fn used(&self, id: &str, account: &str) {
        if let Some(run) = self.locked().get(id) {
            run.send_modify(|run| run.usage = Some(account.into()));
        }
    }

    /// Nothing is left half-done by whoever panicked: every change is one call.
    fn locked(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<KeptRun>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
