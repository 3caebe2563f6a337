//! The journal as it grows, for those who follow it.
//!
//! Owns: the newest lines in memory, so that a hundred followers do not ask the disk for what was
//! just written. What is older comes from the store. Never ahead of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::store::{Line, Lines, Store, StoreError, Wanted};

/// Lines kept in memory; who lags further behind reads the store.
const RECENT: usize = 4096;
/// Notices of which the words are kept: those at the tip, which all who follow want at once.
const WRITTEN: usize = 32;
/// The most lines one answer has.
pub(crate) const MAX_LINES: usize = 1000;

/// Notices in the words that are told, by the number of their line.
type Written = VecDeque<(u64, Arc<str>)>;

/// The way to the journal's lines.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    store: Store,
    recent: Arc<Mutex<VecDeque<Line>>>,
    last: watch::Sender<u64>,
    /// The newest line that is a notice: who follows those is not woken by others.
    last_notice: watch::Sender<u64>,
    written: Arc<Mutex<Written>>,
}

impl Feed {
    pub(crate) fn new(store: Store, last_seq: u64) -> Self {
        let [last, last_notice] = [last_seq; 2].map(watch::Sender::new);
        Self { store, recent: Arc::default(), last, last_notice, written: Arc::default() }
    }

    /// Lines that were just committed.
    pub(crate) fn append(&self, lines: Vec<Line>) {
        let Some(newest) = lines.last().map(|line| line.seq) else { return };
        let notice = lines.iter().rev().find(|line| line.notice.is_some()).map(|line| line.seq);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.extend(lines);
        let surplus = recent.len().saturating_sub(RECENT);
        recent.drain(..surplus);
        drop(recent);
        self.last.send_replace(newest);
        if let Some(notice) = notice {
            self.last_notice.send_replace(notice);
        }
    }

    /// The number of the newest line.
    pub(crate) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Wakes when there are lines after the last one seen by it.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Wakes when there are notices after the last one seen by it.
    pub(crate) fn watch_notices(&self) -> watch::Receiver<u64> {
        self.last_notice.subscribe()
    }

    /// Lines after a number, oldest first, at most so many.
    pub(crate) async fn after(&self, after: u64, limit: usize) -> Result<Lines, StoreError> {
        let limit = limit.clamp(1, MAX_LINES);
        if after >= self.last() {
            return Ok(Lines::default());
        }
        if let Some(lines) = self.recent(after, limit) {
            return Ok(Lines { lines, removed_through: None });
        }
        self.store.lines(after, limit).await
    }

    /// Notices after a number, oldest first, at most so many, and how far the journal was looked
    /// through for them.
    pub(crate) async fn notices(&self, wanted: Wanted) -> Result<(Lines, u64), StoreError> {
        let wanted = Wanted { limit: wanted.limit.clamp(1, MAX_LINES), ..wanted };
        let last = self.last();
        if wanted.after >= last {
            return Ok((Lines::default(), wanted.after));
        }
        let lines = match self.recent(wanted.after, RECENT) {
            Some(recent) => {
                let wants = |line: &Line| wanted.has(line);
                let lines = recent.into_iter().filter(wants).take(wanted.limit).collect();
                Lines { lines, removed_through: None }
            }
            None => self.store.notices(wanted.clone()).await?,
        };
        let through = match lines.lines.last() {
            // There may be more of them.
            Some(line) if lines.lines.len() == wanted.limit => line.seq,
            Some(line) => line.seq.max(last),
            None => last,
        };
        Ok((lines, through))
    }

    /// A line in the words that those who follow are told; written by the first who asks.
    pub(crate) fn written(
        &self,
        seq: u64,
        write: impl FnOnce() -> Option<String>,
    ) -> Option<Arc<str>> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = written.iter().rev().find(|(known, _)| *known == seq) {
            return Some(known.clone());
        }
        let text: Arc<str> = write()?.into();
        if written.len() == WRITTEN {
            written.pop_front();
        }
        written.push_back((seq, text.clone()));
        Some(text)
    }

    /// From memory, if all that was asked for is there.
    fn recent(&self, after: u64, limit: usize) -> Option<Vec<Line>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent.front()?.seq;
        if after + 1 < first {
            return None;
        }
        let from = recent.partition_point(|line| line.seq <= after);
        Some(recent.iter().skip(from).take(limit).cloned().collect())
    }
}
