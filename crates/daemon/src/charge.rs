//! What a run's descendants used, added up and charged to it: its limits hold for all of them.
//!
//! ```text
//! account of a child --> sum over descendants, the dead included --> keeper of each run above it
//! ```
//!
//! Owns: who started whom, as far as somebody counts, and the sums. A sum is told whole and never
//! as a difference, so that telling it twice or late does no harm. Enforces nothing: the keeper of
//! the run above does, by its ordinary way, also while there is no daemon.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kennel_process::{Connection, ConnectionError};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};

use crate::home::Home;
use crate::live::Live;
use crate::meter::{Account, AccountTokens};
use crate::session::Shares;
use crate::store::{Page, Store, StoreError};

/// Sums told at once: a keeper that stands still keeps one of these waiting.
const TOLD_AT_ONCE: usize = 8;
/// How often a sum is offered to a keeper that does not take it: adoption is over by then.
const MAX_OFFERS: u32 = 40;
/// Pause between two offers, and between two sums for the same run: accounts come in bursts.
const OFFER_PAUSE: Duration = Duration::from_millis(100);
/// Runs read from the store at once.
const PAGE: usize = 1000;
/// The longest line of parents that is followed: runs start runs a few deep.
const MAX_GENERATIONS: usize = 64;

/// What some runs used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) turns: u64,
    pub(crate) tool_turns: u64,
    pub(crate) tokens: AccountTokens,
    pub(crate) cost_usd: f64,
}

impl Charge {
    /// What a run itself used, by its account.
    pub(crate) fn of(account: &str) -> Option<Self> {
        let account: Account = serde_json::from_str(account).ok()?;
        Some(Self {
            turns: account.turns,
            tool_turns: account.tool_turns,
            tokens: account.tokens,
            cost_usd: account.cost_usd.unwrap_or(0.0),
        })
    }

    /// What of it counts for a limit of this name.
    pub(crate) fn toward(&self, limit: &str) -> Option<f64> {
        match limit {
            "max_turns" | "max_tool_turns" => Some(self.tool_turns as f64),
            "max_budget_usd" => Some(self.cost_usd),
            "max_tokens" => Some(self.tokens.all() as f64),
            _ => None,
        }
    }

    /// The larger of each: nobody uses less than before, whatever is forgotten of the dead.
    pub(crate) fn or_more(self, other: Self) -> Self {
        self.with(other, u64::max, f64::max)
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add, |a, b| a + b)
    }

    fn with(
        self,
        other: Self,
        counts: impl Fn(u64, u64) -> u64,
        money: impl Fn(f64, f64) -> f64,
    ) -> Self {
        let tokens = AccountTokens {
            input: counts(self.tokens.input, other.tokens.input),
            output: counts(self.tokens.output, other.tokens.output),
            cache_read: counts(self.tokens.cache_read, other.tokens.cache_read),
            cache_write: counts(self.tokens.cache_write, other.tokens.cache_write),
        };
        Self {
            turns: counts(self.turns, other.turns),
            tool_turns: counts(self.tool_turns, other.tool_turns),
            tokens,
            cost_usd: money(self.cost_usd, other.cost_usd),
        }
    }
}

/// What a keeper is told of its run that it cannot know itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChargeTold {
    /// What the run's descendants used.
    #[serde(flatten)]
    pub(crate) below: Charge,
    /// The live run that works in the same session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared_with: Option<String>,
}

/// The sums of all runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charges(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    books: Mutex<Books>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Books {
    /// Who started it, of every run that somebody's agent started.
    parents: HashMap<Arc<str>, Arc<str>>,
    children: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// What each of those used itself.
    used: HashMap<Arc<str>, Charge>,
    /// Runs whose sums are to be told.
    due: HashSet<Arc<str>>,
    /// Runs whose sums are being told.
    telling: HashSet<Arc<str>>,
    /// Runs whose keepers take none.
    deaf: HashSet<Arc<str>>,
    shares: Shares,
}

impl Charges {
    /// A run was started by another one's agent. Nobody need count it: those below it may be.
    pub(crate) fn link(&self, run: &str, parent: Option<&str>) {
        if let Some(parent) = parent {
            self.books().add(run, parent);
        }
    }

    /// What a run itself used, if it was started by another one's agent.
    pub(crate) fn note(&self, run: &str, account: &str) {
        let Some(charge) = Charge::of(account) else { return };
        let mut books = self.books();
        if !books.parents.contains_key(run) {
            return;
        }
        let known = books.used.entry(run.into()).or_default();
        let charge = known.or_more(charge);
        if *known == charge {
            return;
        }
        *known = charge;
        let above = books.above(run);
        books.due.extend(above);
        drop(books);
        self.0.changed.notify_one();
    }

    /// By which files a live run is counted: who shares one with another is told so.
    pub(crate) fn note_files(&self, run: &str, account: &str) {
        let mut books = self.books();
        let told = books.shares.note(run, account);
        if told.is_empty() {
            return;
        }
        tracing::warn!(%run, "it works in the session of another live run");
        books.due.extend(told);
        drop(books);
        self.0.changed.notify_one();
    }

    /// Nobody attends to a run any more.
    pub(crate) fn forget_files(&self, run: &str) {
        self.books().shares.forget(run);
    }

    /// What the descendants of a run used.
    pub(crate) fn below(&self, run: &str) -> Charge {
        self.books().below(run)
    }

    /// True if a run's keeper is of a kennel that knew no charges: what is below the run does not
    /// count against its limits.
    pub(crate) fn is_refused_by(&self, run: &str) -> bool {
        self.books().deaf.contains(run)
    }

    /// Reads what is kept of earlier runs, and tells every sum: whoever was there while no daemon
    /// was has missed some.
    pub(crate) async fn load(&self, store: &Store) -> Result<(), StoreError> {
        let mut before = None;
        loop {
            let page = store.list(Page { before: before.take(), limit: PAGE }).await?;
            for run in &page {
                self.link(&run.id, run.request.parent.as_deref());
                if let Some(account) = run.usage_now() {
                    self.note(&run.id, &account);
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => {
                    before = Some((last.request.at_ms, last.id.to_string()));
                }
                Some(_) | None => break,
            }
        }
        let mut books = self.books();
        let above: Vec<Arc<str>> = books.children.keys().cloned().collect();
        books.due.extend(above);
        drop(books);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Tells sums as they change, for ever.
    pub(crate) async fn tell_for_ever(self, home: Home, live: Live) {
        let turns = Arc::new(Semaphore::new(TOLD_AT_ONCE));
        loop {
            self.0.changed.notified().await;
            for run in self.take_due() {
                let (charges, turns) = (self.clone(), turns.clone());
                let (home, live) = (home.clone(), live.clone());
                tokio::spawn(async move {
                    // Never closed.
                    let turn = turns.acquire().await;
                    charges.tell(&run, &home, &live).await;
                    drop(turn);
                    charges.told(&run);
                });
            }
        }
    }

    async fn tell(&self, run: &Arc<str>, home: &Home, live: &Live) {
        for _ in 0..MAX_OFFERS {
            // Whose end is known enforces nothing any more.
            if live.get(run).is_none_or(|known| known.ended.is_some()) {
                return;
            }
            let Ok(sum) = serde_json::to_string(&self.told_of(run)) else { return };
            let dir = home.run_dir(run);
            let told = tokio::task::spawn_blocking(move || {
                Connection::open(&dir).and_then(|mut keeper| keeper.charge(&sum))
            });
            match told.await {
                Ok(Ok(())) => return,
                Ok(Err(ConnectionError::Refused(why))) => {
                    // A keeper of an older kennel: what its children use is shown, not enforced.
                    tracing::warn!(%run, "its keeper takes no charges: {}", why.message);
                    self.books().deaf.insert(run.clone());
                    return;
                }
                Ok(Err(_)) => tokio::time::sleep(OFFER_PAUSE).await,
                Err(_) => return,
            }
        }
    }

    fn told_of(&self, run: &str) -> ChargeTold {
        let books = self.books();
        let shared_with = books.shares.with(run).map(|other| other.to_string());
        ChargeTold { below: books.below(run), shared_with }
    }

    fn take_due(&self) -> Vec<Arc<str>> {
        let mut books = self.books();
        let Books { due, telling, deaf, .. } = &mut *books;
        due.retain(|run| !deaf.contains(run));
        let ready: Vec<Arc<str>> =
            due.iter().filter(|run| !telling.contains(*run)).cloned().collect();
        for run in &ready {
            due.remove(run);
            telling.insert(run.clone());
        }
        ready
    }

    /// Whatever came meanwhile is told in the next sum.
    fn told(&self, run: &Arc<str>) {
        self.books().telling.remove(run);
        self.0.changed.notify_one();
    }

    /// Nothing is left half-done by whoever panicked: every change is a few plain calls.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn add(&mut self, run: &str, parent: &str) {
        if !self.parents.contains_key(run) {
            let (run, parent): (Arc<str>, Arc<str>) = (run.into(), parent.into());
            self.children.entry(parent.clone()).or_default().push(run.clone());
            self.parents.insert(run, parent);
        }
    }

    fn above(&self, run: &str) -> Vec<Arc<str>> {
        let first = self.parents.get(run).cloned();
        let next = |id: &Arc<str>| self.parents.get(id).cloned();
        std::iter::successors(first, next).take(MAX_GENERATIONS).collect()
    }

    fn below(&self, run: &str) -> Charge {
        let (mut sum, mut seen) = (Charge::default(), HashSet::from([run]));
        let mut next = vec![run];
        while let Some(at) = next.pop() {
            for child in self.children.get(at).into_iter().flatten() {
                if seen.insert(child) {
                    sum = sum.plus(self.used.get(child).copied().unwrap_or_default());
                    next.push(child);
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(tool_turns: u64, usd: f64) -> String {
        let account = Account { tool_turns, cost_usd: Some(usd), ..Account::default() };
        serde_json::to_string(&account).unwrap()
    }

    #[test]
    fn every_run_is_charged_for_all_below_it_once_whatever_is_told_again() {
        let charges = Charges::default();
        for (run, parent) in
            [("child", Some("top")), ("grandchild", Some("child")), ("beside", Some("other"))]
        {
            charges.link(run, parent);
        }
        charges.link("top", None);
        charges.note("child", &account(2, 0.5));
        charges.note("grandchild", &account(3, 0.25));
        charges.note("beside", &account(100, 9.0));
        for _ in 0..2 {
            charges.note("grandchild", &account(3, 0.25));
            charges.note("grandchild", &account(1, 0.1));
        }
        charges.note("top", &account(50, 1.0));
        charges.note("child", "not an account");
        let sum = charges.below("top");
        assert_eq!((sum.tool_turns, sum.cost_usd), (5, 0.75));
        assert_eq!(charges.below("child").tool_turns, 3);
        assert_eq!(charges.below("grandchild"), Charge::default());
        let mut due = charges.take_due();
        due.sort();
        assert_eq!(due, ["child", "other", "top"].map(Arc::from));
        charges.note("grandchild", &account(4, 0.25));
        assert_eq!(charges.take_due(), Vec::<Arc<str>>::new(), "one sum of a run at a time");
        charges.told(&"top".into());
        assert_eq!(charges.take_due(), ["top"].map(Arc::from));
    }
}
