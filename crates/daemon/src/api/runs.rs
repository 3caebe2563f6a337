//! Runs: listed, shown, waited for, ended. Owns these five routes.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use kennel_supervisor::{Claim, Event, Refusal, Stop};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, BadQuery};
use super::output::written;
use super::view::view;
use super::{App, LONGEST_POLL, ambiguous, parse_or_default, wire};
use crate::event_loop::Outcome;
use crate::store::Page;
use crate::store::format::Detail;
use crate::store::kept::{KeptRun, Standing};

/// The most runs one listing gives.
const MAX_LISTED_RUNS: usize = 10_000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Dead runs too.
    #[serde(default)]
    all: bool,
    /// The most runs to return.
    #[serde(default)]
    limit: Option<usize>,
    /// Only runs older than the one of this id, for the next page.
    #[serde(default)]
    before: Option<String>,
    /// With what each run that is not dead has written, which looks at its files.
    #[serde(default)]
    output: bool,
}

/// Runs, newest first.
#[utoipa::path(get, path = "/v1/runs", params(ListQuery),
    responses((status = 200, body = Vec<wire::Run>)))]
pub(super) async fn list(
    State(app): State<App>,
    query: Result<Query<ListQuery>, BadQuery>,
) -> Result<Json<Vec<wire::Run>>, ApiError> {
    let Query(query) = query?;
    let limit = query.limit.unwrap_or(MAX_LISTED_RUNS).clamp(1, MAX_LISTED_RUNS);
    let before = match &query.before {
        Some(id) => {
            let run = app.meant_by(id).await?;
            Some((run.request.at_ms, run.id.to_string()))
        }
        None => None,
    };
    let runs: Vec<KeptRun> = if query.all {
        let runs = app.store.list(Page { before, limit }).await?;
        // What is known already and the store cannot take yet.
        runs.into_iter().map(|run| app.live.get(&run.id).unwrap_or(run)).collect()
    } else {
        let older = |run: &KeptRun| {
            before.as_ref().is_none_or(|(at, id)| (run.request.at_ms, &*run.id) < (*at, id))
        };
        app.live.all().into_iter().filter(older).take(limit).collect()
    };
    let mut views: Vec<wire::Run> = runs.iter().map(view).collect();
    if query.output {
        let home = app.home.clone();
        let look = tokio::task::spawn_blocking(move || {
            for (run, shown) in runs.iter().zip(&mut views) {
                shown.output = written(&home, run);
            }
            views
        });
        views = look.await.map_err(|_| ApiError::leaving())?;
    }
    Ok(Json(views))
}

/// One run, with what it has written.
#[utoipa::path(get, path = "/v1/runs/{run}", params(("run" = String, Path)),
    responses((status = 200, body = wire::Run), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<wire::Run>, ApiError> {
    let run = app.meant_by(&name).await?;
    let home = app.home.clone();
    let look = tokio::task::spawn_blocking(move || {
        let mut shown = view(&run);
        shown.output = written(&home, &run);
        shown
    });
    Ok(Json(look.await.map_err(|_| ApiError::leaving())?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    /// How long to wait, in milliseconds; at most 20 s.
    #[serde(default)]
    timeout_ms: Option<u64>,
}

/// Answers when the run is dead or stuck, or when the time is over.
#[utoipa::path(get, path = "/v1/runs/{run}/wait", params(("run" = String, Path), WaitQuery),
    responses((status = 200, body = wire::Run), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn wait(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<WaitQuery>, BadQuery>,
) -> Result<Json<wire::Run>, ApiError> {
    let Query(query) = query?;
    let bound = query.timeout_ms.map_or(LONGEST_POLL, Duration::from_millis).min(LONGEST_POLL);
    let run = app.meant_by(&name).await?;
    Ok(Json(view(&app.until(&run.id, bound, KeptRun::is_over).await?)))
}

/// Asks a run to end and has it forced after its grace. Answers at once: `wait` waits for the
/// proof. To stop what is stopping or dead is to have it so already.
#[utoipa::path(post, path = "/v1/runs/{run}/stop", params(("run" = String, Path)),
    request_body = wire::StopRequest,
    responses((status = 200, body = wire::Run), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn stop(
    State(app): State<App>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Run>, ApiError> {
    let request: wire::StopRequest = parse_or_default(&body)?;
    app.end(&name, Stop::Ask { grace_ms: request.grace_ms }).await.map(Json)
}

/// Has a run forced to end now.
// The body is read though it says nothing: a request left half-read is an error for its sender.
#[utoipa::path(post, path = "/v1/runs/{run}/kill", params(("run" = String, Path)),
    responses((status = 200, body = wire::Run), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn kill(
    State(app): State<App>,
    Path(name): Path<String>,
    _body: Bytes,
) -> Result<Json<wire::Run>, ApiError> {
    app.end(&name, Stop::Force).await.map(Json)
}

impl App {
    /// Has a run end in some way. To end what is dead is to have it so already.
    pub(crate) async fn end(&self, name: &str, stop: Stop) -> Result<wire::Run, ApiError> {
        let run = self.meant_by(name).await?;
        if run.state == Standing::Dead {
            // Whoever stops a slot must not be told of another run that is dead; whoever repeats a
            // stop must not hit a later run that took that id for its slot.
            return match self.live.in_slot(name) {
                Some(holder) if holder.id != run.id && &*run.id == name => {
                    Err(ambiguous(name, &[run.id.to_string(), holder.id.to_string()]))
                }
                Some(_) | None => Ok(view(&run)),
            };
        }
        let event = Event::StopRequested { run: (&*run.id).into(), stop };
        match self.inbox.tell(event, Detail::Nothing).await? {
            Outcome::Done | Outcome::AlreadySo | Outcome::Refused(Refusal::NotLive) => {}
            Outcome::Refused(refusal) => {
                let slot = (&*run.slot).into();
                let claim = Claim { slot, worktree: None, parent: None };
                return Err(ApiError::refused(&refusal, &claim, None));
            }
        }
        Ok(view(&self.known(&run.id).await?))
    }
}
