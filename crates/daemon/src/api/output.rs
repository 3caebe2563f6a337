//! `GET /v1/runs/{run}/output`: what a run wrote, from a byte offset on, waiting for more if asked.
//!
//! Owns: the joining of files and keeper. The bytes come from the run's files alone; the keeper is
//! only asked to say when there are more.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue};
use kennel_process::{Chunk, Connection, Stream, read_output, written_so_far};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, BadQuery};
use super::{App, LONGEST_POLL, wire};
use crate::home::Home;
use crate::observe::Listening;
use crate::store::format::Ended;
use crate::store::kept::KeptRun;
use crate::time::Time;

/// What a reader waits before it asks again when too many wait for keepers.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How long a run whose keeper has left may take to be known as ended.
const ENDING_BOUND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Which {
    Stdout,
    Stderr,
    Terminal,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputQuery {
    /// Which stream; a run with a terminal has only that, as an asciicast recording.
    stream: Which,
    /// Where in it to begin.
    #[serde(default)]
    offset: u64,
    /// How long to wait for more, in milliseconds; at most 20 s.
    #[serde(default)]
    wait_ms: u64,
}

/// A part of what a run wrote. Headers say where to go on (`kennel-next-offset`), how many bytes
/// before that are not kept (`kennel-skipped`), and whether this was all (`kennel-end-of-output`).
#[utoipa::path(get, path = "/v1/runs/{run}/output", params(("run" = String, Path), OutputQuery),
    responses((status = 200, body = String, content_type = "application/octet-stream"),
        (status = 404, body = wire::ErrorBody)))]
pub(super) async fn output(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<OutputQuery>, BadQuery>,
) -> Result<(HeaderMap, Vec<u8>), ApiError> {
    let Query(query) = query?;
    let run = app.meant_by(&name).await?;
    let reading = Reading {
        dir: app.home.run_dir(&run.id),
        stream: match query.stream {
            Which::Stdout => Stream::Stdout,
            Which::Stderr => Stream::Stderr,
            Which::Terminal => Stream::Terminal,
        },
        offset: query.offset,
    };
    // Asked before the look: what has ended writes no more, so that nothing found is all there is.
    let over = has_ended(&run);
    if let Some(chunk) = reading.look().await? {
        return Ok(answer(chunk));
    }
    if over || query.wait_ms == 0 {
        return Ok((headers(reading.offset, 0, over), Vec::new()));
    }
    let wait = Duration::from_millis(query.wait_ms).min(LONGEST_POLL);
    let mut leaving = app.leaving.clone();
    let more = tokio::select! {
        more = reading.wait(&app, &run.id) => more?,
        () = tokio::time::sleep(wait) => None,
        _ = leaving.wait_for(|leaving| *leaving) => return Err(ApiError::leaving()),
    };
    Ok(more.map_or_else(|| (headers(reading.offset, 0, false), Vec::new()), answer))
}

fn answer(chunk: Chunk) -> (HeaderMap, Vec<u8>) {
    match chunk {
        Chunk::Bytes { offset, bytes } => (headers(offset + bytes.len() as u64, 0, false), bytes),
        Chunk::Gap { from, to } => (headers(to, to - from, false), Vec::new()),
    }
}

pub(crate) fn has_ended(run: &KeptRun) -> bool {
    run.ended.is_some()
}

fn headers(next: u64, skipped: u64, end: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(wire::NEXT_OFFSET, HeaderValue::from(next));
    headers.insert(wire::SKIPPED, HeaderValue::from(skipped));
    headers.insert(wire::END_OF_OUTPUT, HeaderValue::from(u16::from(end)));
    headers
}

/// Where somebody reads.
pub(crate) struct Reading {
    pub(crate) dir: PathBuf,
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
}

impl Reading {
    /// What is there now.
    pub(crate) async fn look(&self) -> Result<Option<Chunk>, ApiError> {
        let (dir, stream, offset) = (self.dir.clone(), self.stream, self.offset);
        let found = tokio::task::spawn_blocking(move || read(&dir, stream, offset));
        let found = found.await.map_err(|_| ApiError::leaving())?;
        found.map_err(|e| ApiError::internal(format!("failed to read the output: {e}")))
    }

    /// Waits until there is more. `None` if it is to be asked again: too many wait for keepers, or
    /// its own has left, so that the end is known now.
    pub(crate) async fn wait(&self, app: &App, run: &str) -> Result<Option<Chunk>, ApiError> {
        let dir = self.dir.clone();
        let attach = app.talks.talk(move || {
            let mut keeper = Connection::open(&dir).ok()?;
            keeper.attach().ok()?;
            Some(keeper)
        });
        let Ok(keeper) = attach.await else {
            // Too many wait for keepers: who reads output asks again, and misses nothing.
            tokio::time::sleep(BUSY_PAUSE).await;
            return Ok(None);
        };
        let mut keeper = keeper.and_then(|keeper| Listening::to(keeper).ok());
        while let Some(listening) = &mut keeper {
            // After attaching, so that what was written in between is seen too.
            if let Some(more) = self.look().await? {
                return Ok(Some(more));
            }
            if listening.heard().await.is_err() {
                break;
            }
        }
        // Its keeper has left, so that its end is about to be known: the next look will find it.
        app.until(run, ENDING_BOUND, has_ended).await?;
        Ok(None)
    }
}

/// A run that never started may have no files at all.
fn read(dir: &FilePath, stream: Stream, offset: u64) -> io::Result<Option<Chunk>> {
    match read_output(dir, stream, offset) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other,
    }
}

/// How much a run has written and when it last did: by its files while it lives, by its record
/// once that has the end.
pub(crate) fn written(home: &Home, run: &KeptRun) -> Option<wire::Output> {
    let (bytes, last) = written_so_far(&home.run_dir(&run.id)).ok()?;
    let bytes = match run.ended.as_deref() {
        Some(Ended::Recorded(end)) => end.output.stdout.written + end.output.stderr.written,
        Some(Ended::NeverStarted { .. }) | None => bytes,
    };
    let since = last.and_then(|last| last.duration_since(UNIX_EPOCH).ok());
    Some(wire::Output { bytes, last_at: since.map(|since| Time(since.as_millis() as u64)) })
}
