//! `GET /v1/events`: the journal, as a page that may wait for more, or as a stream of server-sent
//! events that goes on where the reader's last one was.
//!
//! Owns: how lines are handed out. A reader that comes too late for some is told so first.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::error::ApiError;
use super::stream::{self, Page, Pages, sent, stream};
use super::view::{event, removed};
use super::{App, BadQuery, LONGEST_POLL, wire};
use crate::feed::MAX_LINES;
use crate::store::{Lines, StoreError};

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
    responses((status = 200, body = wire::Events), (status = 410, body = wire::ErrorBody)))]
pub(super) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, BadQuery>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    if stream::is_wanted(&headers) {
        let after = stream::last_read(&headers)?.or(query.after).unwrap_or(0);
        app.check_place(after)?;
        return Ok(stream(app, after, Journal).into_response());
    }
    let after = query.after.unwrap_or(0);
    app.check_place(after)?;
    let limit = query.limit.unwrap_or(MAX_LINES);
    let bound = Duration::from_millis(query.wait_ms).min(LONGEST_POLL);
    app.until_after(app.feed.watch(), after, bound).await?;
    let lines = app.feed.after(after, limit).await?;
    let events = told(&lines);
    let next = events.last().map_or(after, |event| event.seq);
    Ok(Json(wire::Events { events, next }).into_response())
}

fn told(lines: &Lines) -> Vec<wire::Event> {
    lines.removed_through.map(removed).into_iter().chain(lines.lines.iter().map(event)).collect()
}

/// Every line of the journal.
struct Journal;

impl Pages for Journal {
    fn newest(&self, app: &App) -> watch::Receiver<u64> {
        app.feed.watch()
    }

    async fn after(&mut self, app: &App, after: u64) -> Result<Page, StoreError> {
        let events = told(&app.feed.after(after, STREAM_LINES).await?);
        let next = events.last().map_or(after, |event| event.seq);
        let ready = events.iter().map(|event| sent(event.seq, &event.kind, event)).collect();
        Ok(Page { ready, next })
    }
}
