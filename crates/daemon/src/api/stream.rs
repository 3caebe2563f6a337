//! Server-sent events that go on where the reader's last one was: of the journal, and of notices.
//!
//! Owns: waiting for more, and the reader's place. What a line becomes is told from outside.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use serde::Serialize;
use tokio::sync::watch;

use super::App;
use super::error::ApiError;
use crate::store::StoreError;

/// How often a silent stream says that it is still there.
const PING: Duration = Duration::from_secs(15);
/// What a browser waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);

/// Some of what is streamed, and where to go on.
pub(super) struct Page {
    pub(super) ready: Vec<Sent>,
    pub(super) next: u64,
}

/// What a stream is made of.
pub(super) trait Pages: Send + 'static {
    /// Wakes when there is more.
    fn newest(&self, app: &App) -> watch::Receiver<u64>;

    /// What comes after a line.
    fn after(
        &mut self,
        app: &App,
        after: u64,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;
}

/// True if the reader wants a stream and not a page.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let kinds = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    kinds.is_some_and(|kinds| kinds.contains("text/event-stream"))
}

/// The last line a reader that comes back has read, if it says so.
pub(super) fn last_read(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(id) = headers.get("last-event-id").and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let number = id.parse();
    number
        .map(Some)
        .map_err(|_| ApiError::bad_request(format!("Last-Event-ID {id:?} is not a number")))
}

/// One event, under the number of its line.
pub(super) fn sent(seq: u64, kind: &impl Serialize, data: &impl Serialize) -> Sent {
    let kind = serde_json::to_value(kind).ok();
    let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("event");
    sent_json(seq, kind, &serde_json::to_string(data).unwrap_or_default())
}

/// The same, of what was written before.
pub(super) fn sent_json(seq: u64, kind: &str, data: &str) -> Sent {
    Sent::default().id(seq.to_string()).event(kind).retry(RETRY).data(data)
}

struct Follow<P> {
    app: App,
    pages: P,
    after: u64,
    newest: watch::Receiver<u64>,
    ready: VecDeque<Sent>,
}

/// Streams pages from a line on, until the reader or the daemon leaves.
pub(super) fn stream<P: Pages>(
    app: App,
    after: u64,
    pages: P,
) -> Sse<impl Stream<Item = Result<Sent, Infallible>>> {
    let newest = pages.newest(&app);
    let follow = Follow { app, pages, after, newest, ready: VecDeque::new() };
    let events = unfold(follow, |mut follow| async move {
        let event = follow.next().await?;
        Some((Ok(event), follow))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(PING))
}

impl<P: Pages> Follow<P> {
    /// The next event; `None` when the daemon leaves, so that the reader asks the next one.
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // Marked as seen before the look, so that what comes in between is not missed.
            self.newest.borrow_and_update();
            let page = self.pages.after(&self.app, self.after).await.ok()?;
            let more = page.next > self.after;
            self.after = page.next;
            self.ready.extend(page.ready);
            if self.ready.is_empty() && !more {
                let mut leaving = self.app.leaving.clone();
                tokio::select! {
                    changed = self.newest.changed() => changed.ok()?,
                    _ = leaving.wait_for(|leaving| *leaving) => return None,
                }
            }
        }
    }
}

impl App {
    /// Refuses a place that the journal has not come to: it was made anew since, and who waits for
    /// the old numbers would miss all before them in silence.
    pub(super) fn check_place(&self, after: u64) -> Result<(), ApiError> {
        let last = self.feed.last();
        if after <= last {
            return Ok(());
        }
        let message = format!(
            "there is no line {after}: the newest is {last}, so that the journal was begun anew \
             since that number was given"
        );
        Err(ApiError::new(StatusCode::GONE, "journal_begun_anew", message)
            .hint("begin with 0; what the old one told of runs is lost"))
    }

    /// Waits until there is a line after this one, or the time is over.
    pub(super) async fn until_after(
        &self,
        mut newest: watch::Receiver<u64>,
        after: u64,
        bound: Duration,
    ) -> Result<(), ApiError> {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            _ = newest.wait_for(|newest| *newest > after) => Ok(()),
            () = tokio::time::sleep(bound) => Ok(()),
            _ = leaving.wait_for(|leaving| *leaving) => Err(ApiError::leaving()),
        }
    }
}
