//! `/v1/notices` and `/v1/consumers`: what deserves telling, to whom it was told, and how far each
//! has read.
//!
//! Owns: a consumer's place, and that it has one reader at a time. A notice is told until it is
//! acknowledged, under an id that stays: at least once on the way, once in effect. Reading alone
//! acknowledges nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Event as Sent;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::error::ApiError;
use super::stream::{self, Page, Pages, sent, sent_json, stream};
use super::view::{lagged, notice};
use super::{App, BadQuery, LONGEST_POLL, parse, wire};
use crate::feed::MAX_LINES;
use crate::notice::word;
use crate::random::new_run_id;
use crate::store::consumer::{Ack, Consumer, Place};
use crate::store::{Line, Lines, StoreError, Wanted};
use crate::time::Time;

/// The longest name of a consumer.
const MAX_NAME_BYTES: usize = 128;
/// Notices a stream reads at once.
const STREAM_NOTICES: usize = 256;
/// How long a reader that asks again and again keeps its consumer between two questions.
const BETWEEN: Duration = Duration::from_secs(2);
/// A consumer that reads without acknowledging says so often that it is still there: retention
/// holds what those have not read that come.
const PRESENT: Duration = Duration::from_secs(3600);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct NoticesQuery {
    /// Whose unread notices; it is made known by its first question, and starts with the oldest
    /// notice that is kept.
    #[serde(default)]
    consumer: Option<String>,
    /// Notices after this number. If not said: after what the consumer has acknowledged.
    #[serde(default)]
    after: Option<u64>,
    /// How long to wait for one, in milliseconds; at most 20 s.
    #[serde(default)]
    wait_ms: u64,
    /// The most notices to return; at most 1000.
    #[serde(default)]
    limit: Option<usize>,
    /// Also those that runs asked not to be told of.
    #[serde(default)]
    all: bool,
    /// Those of this run alone.
    #[serde(default)]
    run: Option<String>,
    /// Instead: the newest so many.
    #[serde(default)]
    last: Option<usize>,
    /// A name for who asks. While one reads for a consumer, another one is refused.
    #[serde(default)]
    reader: Option<String>,
}

/// What deserves telling, in order. With `Accept: text/event-stream` as server-sent events, whose
/// ids are the numbers to acknowledge.
#[utoipa::path(get, path = "/v1/notices", params(NoticesQuery),
    responses((status = 200, body = wire::Notices), (status = 409, body = wire::ErrorBody),
        (status = 410, body = wire::ErrorBody)))]
pub(super) async fn notices(
    State(app): State<App>,
    headers: HeaderMap,
    query: Result<Query<NoticesQuery>, BadQuery>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let run = match &query.run {
        Some(name) => Some(app.meant_by(name).await?.id),
        None => None,
    };
    let (limit, quiet) = (query.limit.unwrap_or(MAX_LINES), query.all);
    if let Some(last) = query.last {
        let wanted = Wanted { after: 0, limit: last.clamp(1, MAX_LINES), quiet, run };
        let lines = app.store.last_notices(wanted).await?;
        let notices: Vec<wire::Notice> = lines.lines.iter().filter_map(notice).collect();
        let next = notices.last().map_or(0, |notice| notice.seq);
        return Ok(Json(wire::Notices { notices, next }).into_response());
    }
    let held = app.reads(&query)?;
    let after = match (&query.consumer, query.after) {
        (Some(name), after) => after.unwrap_or(app.come(name).await?.acked),
        (None, after) => after.unwrap_or(0),
    };
    if stream::is_wanted(&headers) {
        let after = stream::last_read(&headers)?.unwrap_or(after);
        app.check_place(after)?;
        let wanted = Wanted { after, limit: STREAM_NOTICES, quiet, run };
        let told = Told { wanted, lag_told: false, _held: held };
        return Ok(stream(app, after, told).into_response());
    }
    app.check_place(after)?;
    let bound = Duration::from_millis(query.wait_ms).min(LONGEST_POLL);
    let wanted = Wanted { after, limit, quiet, run };
    Ok(Json(app.notices_within(wanted, bound).await?).into_response())
}

impl App {
    /// Notices as soon as there are some, or none when the time is over.
    pub(crate) async fn notices_within(
        &self,
        mut wanted: Wanted,
        bound: Duration,
    ) -> Result<wire::Notices, ApiError> {
        let deadline = Instant::now() + bound;
        loop {
            let (lines, next) = self.feed.notices(wanted.clone()).await?;
            let left = deadline.saturating_duration_since(Instant::now());
            let lag = lag(&wanted, &lines);
            if !lines.lines.is_empty() || lag.is_some() || left.is_zero() {
                let told = lag.into_iter().chain(lines.lines.iter().filter_map(notice));
                return Ok(wire::Notices { notices: told.collect(), next });
            }
            wanted.after = next;
            self.until_after(self.feed.watch_notices(), next, left).await?;
        }
    }

    /// A consumer comes to read: it is known from here on.
    pub(crate) async fn come(&self, name: &str) -> Result<Place, ApiError> {
        check_name(name)?;
        let now = Time::now().0;
        let recent = |known: &Place| now.saturating_sub(known.at_ms) < PRESENT.as_millis() as u64;
        match self.store.place(name).await? {
            Some(known) if recent(&known) => Ok(known),
            Some(_) | None => {
                let ack = Ack { consumer: name.to_owned(), through: None, at_ms: now };
                Ok(self.inbox.acknowledge(ack).await?)
            }
        }
    }

    /// A consumer has read everything up to a line.
    pub(crate) async fn acknowledge(&self, name: &str, seq: u64) -> Result<Place, ApiError> {
        check_name(name)?;
        let last = self.feed.last();
        if seq > last {
            let message = format!("there is no notice {seq} yet: the newest line is {last}");
            return Err(ApiError::bad_request(message)
                .hint("acknowledge the `seq` of a notice that was read"));
        }
        let ack = Ack { consumer: name.to_owned(), through: Some(seq), at_ms: Time::now().0 };
        Ok(self.inbox.acknowledge(ack).await?)
    }

    fn reads(&self, query: &NoticesQuery) -> Result<Option<Held>, ApiError> {
        let Some(name) = &query.consumer else { return Ok(None) };
        // Who does not give a name of its own reads as long as it is connected.
        let reader = match &query.reader {
            Some(reader) => reader.clone(),
            None => new_run_id().map_err(|e| ApiError::internal(e.to_string()))?,
        };
        let keeps = if query.reader.is_some() { BETWEEN } else { Duration::ZERO };
        self.readers.hold(name, reader, keeps).map(Some).ok_or_else(|| {
            let message = format!("somebody else is reading as consumer {name}");
            ApiError::new(StatusCode::CONFLICT, "consumer_busy", message)
                .hint("use another name: each consumer is told everything")
        })
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!(
            "{name:?} is not a consumer's name: use 1 to {MAX_NAME_BYTES} bytes, no control \
             characters"
        )));
    }
    Ok(())
}

/// What a consumer that has read before has missed. One that is new has missed nothing.
fn lag(wanted: &Wanted, lines: &Lines) -> Option<wire::Notice> {
    let through = lines.removed_through.filter(|_| wanted.after > 0)?;
    Some(lagged(wanted.after, through))
}

/// Notices, one after the other.
struct Told {
    wanted: Wanted,
    lag_told: bool,
    _held: Option<Held>,
}

impl Pages for Told {
    fn newest(&self, app: &App) -> watch::Receiver<u64> {
        app.feed.watch_notices()
    }

    async fn after(&mut self, app: &App, after: u64) -> Result<Page, StoreError> {
        self.wanted.after = after;
        let (lines, next) = app.feed.notices(self.wanted.clone()).await?;
        let lag = lag(&self.wanted, &lines).filter(|_| !self.lag_told);
        self.lag_told |= lag.is_some();
        let lag = lag.map(|notice| sent(notice.seq, &notice.kind, &notice));
        let told = lines.lines.iter().filter_map(|line| sent_notice(app, line));
        Ok(Page { ready: lag.into_iter().chain(told).collect(), next })
    }
}

/// A notice for one of those who follow; what it says is written once for all of them.
fn sent_notice(app: &App, line: &Line) -> Option<Sent> {
    let kind = word(line.notice.as_ref()?.kind);
    let json = app.feed.written(line.seq, || serde_json::to_string(&notice(line)?).ok())?;
    Some(sent_json(line.seq, kind, &json))
}

/// Who reads for which consumer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers(Arc<Mutex<HashMap<String, Reading>>>);

#[derive(Debug)]
struct Reading {
    reader: String,
    /// Questions it has open.
    open: u32,
    /// Until when it keeps the consumer without one.
    until: Instant,
}

/// A consumer that is being read for.
#[derive(Debug)]
pub(crate) struct Held {
    readers: Readers,
    consumer: String,
    keeps: Duration,
}

impl Readers {
    fn hold(&self, consumer: &str, reader: String, keeps: Duration) -> Option<Held> {
        let now = Instant::now();
        let mut all = self.locked();
        all.retain(|_, reading| reading.open > 0 || reading.until > now);
        let until = now;
        let reading = all.entry(consumer.to_owned()).or_insert(Reading {
            reader: reader.clone(),
            open: 0,
            until,
        });
        if reading.reader != reader {
            return None;
        }
        reading.open += 1;
        Some(Held { readers: self.clone(), consumer: consumer.to_owned(), keeps })
    }

    /// Nothing is left half-done by whoever panicked: every change is one call.
    fn locked(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(reading) = self.readers.locked().get_mut(&self.consumer) {
            reading.open -= 1;
            reading.until = Instant::now() + self.keeps;
        }
    }
}

/// Who reads notices, and how far each has come.
#[utoipa::path(get, path = "/v1/consumers", responses((status = 200, body = Vec<wire::Consumer>)))]
pub(super) async fn consumers(
    State(app): State<App>,
) -> Result<Json<Vec<wire::Consumer>>, ApiError> {
    let known = app.store.consumers().await?;
    Ok(Json(known.into_iter().map(consumer).collect()))
}

/// Says how far a consumer has read: everything up to a number, never back.
#[utoipa::path(post, path = "/v1/consumers/{consumer}/ack", params(("consumer" = String, Path)),
    request_body = wire::AckRequest,
    responses((status = 200, body = wire::Consumer), (status = 400, body = wire::ErrorBody)))]
pub(super) async fn ack(
    State(app): State<App>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Consumer>, ApiError> {
    let request: wire::AckRequest = parse(&body)?;
    let Place { acked, at_ms } = app.acknowledge(&name, request.seq).await?;
    Ok(Json(wire::Consumer { name, acked, acked_at: Time(at_ms), unread: None }))
}

/// Forgets a consumer: nothing is kept for it any more.
#[utoipa::path(delete, path = "/v1/consumers/{consumer}", params(("consumer" = String, Path)),
    responses((status = 204), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn forget(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    if app.inbox.forget_consumer(name.clone()).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    let message = format!("there is no consumer {name:?}");
    Err(ApiError::new(StatusCode::NOT_FOUND, "consumer_not_found", message)
        .hint("`kennel consumers` lists them"))
}

fn consumer(known: Consumer) -> wire::Consumer {
    let Consumer { name, place, unread } = known;
    wire::Consumer { name, acked: place.acked, acked_at: Time(place.at_ms), unread: Some(unread) }
}
