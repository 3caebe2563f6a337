//! `GET /v1/runs/{run}/output`: what a run wrote, from a byte offset on, waiting for more if asked.
//!
//! Owns: the joining of files and keeper. The bytes come from the run's files alone; the keeper is
//! only asked to say when there are more.

use std::io;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue};
use kennel_process::{Chunk, Connection, ConnectionError, Stream, read_output};
use serde::Deserialize;

use super::error::ApiError;
use super::{App, LONGEST_POLL, wire};
use crate::store::KeptRun;

/// Questions that may wait for output at once. Each holds a thread, and the store's readers need
/// threads of the same pool.
pub(crate) const MAX_FOLLOWERS: usize = 384;
/// What a question beyond that waits before it answers "nothing so far".
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How long a run whose keeper has left may take to be known as ended.
const ENDING_BOUND: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    Stdout,
    Stderr,
    Terminal,
}

#[derive(Deserialize)]
pub(super) struct OutputQuery {
    stream: Which,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    wait_ms: u64,
}

/// What a look at the output found.
enum Found {
    Chunk(Chunk),
    /// Nothing so far.
    Nothing,
    /// Nothing, and nobody there who could say when there is more.
    KeeperLeft,
}

pub(super) async fn output(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<OutputQuery>, QueryRejection>,
) -> Result<(HeaderMap, Vec<u8>), ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let changes = app.inbox.changes();
    let run = app.meant_by(&name).await?;
    // Asked before the look: what has ended writes no more, so that nothing found is all there is.
    let over = has_ended(&run);
    let permit = app.followers.clone().try_acquire_owned().ok();
    let may_wait = !over && permit.is_some();
    let wait = if may_wait { Duration::from_millis(query.wait_ms) } else { Duration::ZERO };
    let dir = app.home.run_dir(&run.id);
    let stream = match query.stream {
        Which::Stdout => Stream::Stdout,
        Which::Stderr => Stream::Stderr,
        Which::Terminal => Stream::Terminal,
    };
    let offset = query.offset;
    let look = tokio::task::spawn_blocking(move || {
        // Held by the thread, which may outlive a client that leaves.
        let _permit = permit;
        look(&dir, stream, offset, wait)
    });
    let mut leaving = app.leaving.clone();
    let found = tokio::select! {
        found = look => found.map_err(|_| ApiError::leaving())?,
        _ = leaving.wait_for(|leaving| *leaving) => return Err(ApiError::leaving()),
    };
    match found.map_err(|e| ApiError::internal(format!("failed to read the output: {e}")))? {
        Found::Chunk(Chunk::Bytes { offset, bytes }) => {
            Ok((headers(offset + bytes.len() as u64, 0, false), bytes))
        }
        Found::Chunk(Chunk::Gap { from, to }) => Ok((headers(to, to - from, false), Vec::new())),
        Found::Nothing => {
            if !over && !may_wait {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Ok((headers(offset, 0, over), Vec::new()))
        }
        Found::KeeperLeft => {
            // The end is about to be known: the client's next request will find it.
            app.until(&run.id, changes, ENDING_BOUND, has_ended).await?;
            Ok((headers(offset, 0, false), Vec::new()))
        }
    }
}

fn has_ended(run: &KeptRun) -> bool {
    run.ended.is_some()
}

fn headers(next: u64, skipped: u64, end: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(wire::NEXT_OFFSET, HeaderValue::from(next));
    headers.insert(wire::SKIPPED, HeaderValue::from(skipped));
    headers.insert(wire::END_OF_OUTPUT, HeaderValue::from(u16::from(end)));
    headers
}

fn look(dir: &FilePath, stream: Stream, offset: u64, wait: Duration) -> io::Result<Found> {
    let deadline = Instant::now() + wait.min(LONGEST_POLL);
    if let Some(chunk) = read(dir, stream, offset)? {
        return Ok(Found::Chunk(chunk));
    }
    if wait.is_zero() {
        return Ok(Found::Nothing);
    }
    let attached = Connection::open(dir).and_then(|mut c| c.attach().map(|_| c));
    let Ok(mut keeper) = attached else { return Ok(Found::KeeperLeft) };
    loop {
        // After attaching, so that what was written in between is seen too.
        if let Some(chunk) = read(dir, stream, offset)? {
            return Ok(Found::Chunk(chunk));
        }
        match keeper.next(deadline.saturating_duration_since(Instant::now())) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Found::Nothing),
            Err(ConnectionError::NoAnswer) => return Ok(Found::Nothing),
            Err(_) => return Ok(Found::KeeperLeft),
        }
    }
}

/// A run that never started may have no files at all.
fn read(dir: &FilePath, stream: Stream, offset: u64) -> io::Result<Option<Chunk>> {
    match read_output(dir, stream, offset) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other,
    }
}
