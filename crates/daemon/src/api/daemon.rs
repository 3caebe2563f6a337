//! The daemon itself: what it is, how it does, and its leaving. Owns these four routes.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use kennel_supervisor::{Event, Stop};

use super::error::ApiError;
use super::view::view;
use super::{App, document, parse_or_default, wire};
use crate::store::format::Detail;
use crate::store::kept::{KeptRun, Standing};

/// How long stopping every run may take if nobody says, past the longest grace of any of them.
const STOP_ALL_BOUND: Duration = Duration::from_secs(30);
/// How long starts under way are waited for before the daemon leaves: each has its answer then.
pub(crate) const START_BOUND: Duration = Duration::from_secs(10);
/// Prometheus's own words for its format.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the daemon says of itself.
#[utoipa::path(get, path = "/v1/daemon", responses((status = 200, body = wire::Daemon)))]
pub(super) async fn daemon(State(app): State<App>) -> Json<wire::Daemon> {
    Json(wire::Daemon {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        home: app.home.state().to_string_lossy().into_owned(),
        started_at: app.started_at,
        last_seq: app.feed.last(),
        live: app.live.all().len() as u64,
        room: app.room as u64,
        shutting_down: *app.leaving.borrow(),
    })
}

/// Counters and times, for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
pub(super) async fn metrics(State(app): State<App>) -> Result<impl IntoResponse, ApiError> {
    let text = app.metrics.text(&app.live);
    let text = text.map_err(|e| ApiError::internal(format!("failed to write metrics: {e}")))?;
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], text))
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, body = String)))]
pub(super) async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document())
}

/// Has the daemon leave. Runs go on under their keepers, unless they are to be stopped first: then
/// all are asked at once, and what is not proven dead by the deadline is named.
#[utoipa::path(post, path = "/v1/shutdown", request_body = wire::ShutdownRequest,
    responses((status = 200, body = wire::Shutdown)))]
pub(super) async fn shutdown(
    State(app): State<App>,
    body: Bytes,
) -> Result<Json<wire::Shutdown>, ApiError> {
    let request: wire::ShutdownRequest = parse_or_default(&body)?;
    // Its own task: a client that leaves must not leave the daemon between staying and going.
    let work = tokio::spawn(async move { app.shut_down(request).await });
    work.await.map_err(|_| ApiError::leaving())?.map(Json)
}

impl App {
    async fn shut_down(&self, request: wire::ShutdownRequest) -> Result<wire::Shutdown, ApiError> {
        let stop = request.stop_runs.then_some(Stop::Ask { grace_ms: request.grace_ms });
        // Told also if the store does not take it: a full disk must not keep a daemon alive.
        let told = self.inbox.tell(Event::ShutdownRequested { stop }, Detail::Nothing).await;
        if request.stop_runs {
            drop(told?);
        }
        // Asked for now: whoever was admitted was so before, and nobody is any more.
        let runs = self.live.all();
        self.live.starts_settle(START_BOUND).await;
        if request.stop_runs {
            self.all_over(&runs, &request).await;
        }
        let mut now = Vec::with_capacity(runs.len());
        for run in &runs {
            now.push(self.known(&run.id).await?);
        }
        let (dead, left): (Vec<KeptRun>, Vec<KeptRun>) =
            now.into_iter().partition(|run| run.state == Standing::Dead);
        drop(self.inbox.tell(Event::LeaveRequested, Detail::Nothing).await);
        let views = |runs: &[KeptRun]| runs.iter().map(view).collect();
        Ok(wire::Shutdown { stopped: views(&dead), left: views(&left) })
    }

    /// Waits until each of them is dead or stuck, or the deadline for all of them has passed.
    async fn all_over(&self, runs: &[KeptRun], request: &wire::ShutdownRequest) {
        let longest = runs.iter().map(|run| run.request.grace_ms).max().unwrap_or(0);
        let grace = Duration::from_millis(request.grace_ms.unwrap_or(longest));
        let bound = request.deadline_ms.map(Duration::from_millis);
        let bound = bound.unwrap_or_else(|| grace.saturating_add(STOP_ALL_BOUND));
        let deadline = tokio::time::Instant::now() + bound;
        for run in runs {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if self.until(&run.id, left, KeptRun::is_over).await.is_err() {
                return;
            }
        }
    }
}
