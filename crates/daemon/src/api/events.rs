//! `GET /v1/events`: the journal, as a page that may wait for more, or as a stream of server-sent
//! events that goes on where the reader's last one was.
//!
//! Owns: how lines are handed out. A reader that comes too late for some is told so first.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::error::ApiError;
use super::view::{event, removed};
use super::{App, BadQuery, LONGEST_POLL, wire};
use crate::feed::MAX_LINES;
use crate::store::Lines;

/// How often a silent stream says that it is still there.
const PING: Duration = Duration::from_secs(15);
/// What a browser waits before it connects again.
const RETRY: Duration = Duration::from_secs(1);
/// Lines a stream reads at once.
const STREAM_LINES: usize = 256;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    /// Lines after this number. 0 is the beginning.
    #[serde(default)]
    after: Option<u64>,
    /// How long to wait for a line, in milliseconds; at most 20 s.
    #[serde(default)]
    wait_ms: u64,
    /// The most lines to return; at most 1000.
    #[serde(default)]
    limit: Option<usize>,
}

/// What became true, in order. With `Accept: text/event-stream` as server-sent events, whose ids
/// are the lines' numbers: `Last-Event-ID` goes on after the last one read.
#[utoipa::path(get, path = "/v1/events", params(EventsQuery),
    responses((status = 200, body = wire::Events)))]
pub(super) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, BadQuery>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let streamed = text(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/event-stream"));
    if streamed {
        let last = match text(header::HeaderName::from_static("last-event-id")) {
            Some(id) => Some(id.parse().map_err(|_| {
                ApiError::bad_request(format!("Last-Event-ID {id:?} is not a number"))
            })?),
            None => None,
        };
        return Ok(stream(app, last.or(query.after).unwrap_or(0)).into_response());
    }
    let after = query.after.unwrap_or(0);
    let limit = query.limit.unwrap_or(MAX_LINES);
    let bound = Duration::from_millis(query.wait_ms).min(LONGEST_POLL);
    app.until_after(after, bound).await?;
    let lines = app.feed.after(after, limit).await?;
    let events = told(&lines);
    let next = events.last().map_or(after, |event| event.seq);
    Ok(Json(wire::Events { events, next }).into_response())
}

fn told(lines: &Lines) -> Vec<wire::Event> {
    lines.removed_through.map(removed).into_iter().chain(lines.lines.iter().map(event)).collect()
}

struct Follow {
    app: App,
    after: u64,
    newest: watch::Receiver<u64>,
    ready: VecDeque<wire::Event>,
}

fn stream(app: App, after: u64) -> Sse<impl Stream<Item = Result<Sent, Infallible>>> {
    let newest = app.feed.watch();
    let follow = Follow { app, after, newest, ready: VecDeque::new() };
    let events = unfold(follow, |mut follow| async move {
        let event = follow.next().await?;
        Some((Ok(sent(&event)), follow))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(PING))
}

impl Follow {
    /// The next event; `None` when the daemon leaves, so that the reader asks the next one.
    async fn next(&mut self) -> Option<wire::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Some(event);
            }
            // Marked as seen before the look, so that what comes in between is not missed.
            self.newest.borrow_and_update();
            let lines = self.app.feed.after(self.after, STREAM_LINES).await.ok()?;
            self.ready.extend(told(&lines));
            if self.ready.is_empty() {
                let mut leaving = self.app.leaving.clone();
                tokio::select! {
                    changed = self.newest.changed() => changed.ok()?,
                    _ = leaving.wait_for(|leaving| *leaving) => return None,
                }
            }
        }
    }
}

fn sent(event: &wire::Event) -> Sent {
    let kind = serde_json::to_value(event.kind).ok();
    let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("event");
    let data = serde_json::to_string(event).unwrap_or_default();
    Sent::default().id(event.seq.to_string()).event(kind).retry(RETRY).data(data)
}

impl App {
    /// Waits until there is a line after this one, or the time is over.
    async fn until_after(&self, after: u64, bound: Duration) -> Result<(), ApiError> {
        let mut newest = self.feed.watch();
        let mut leaving = self.leaving.clone();
        tokio::select! {
            _ = newest.wait_for(|newest| *newest > after) => Ok(()),
            () = tokio::time::sleep(bound) => Ok(()),
            _ = leaving.wait_for(|leaving| *leaving) => Err(ApiError::leaving()),
        }
    }
}
