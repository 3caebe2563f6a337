//! Limits of a run: which of them can be enforced, and where they stand.
//!
//! Owns: what makes a limit invalid, its share of the spec, and `GET /v1/runs/{run}/limits`. Holds
//! nobody to anything: that is the keeper's.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use kennel_process::{Connection, LimitReached, Limits as Bounds};
use kennel_supervisor::Unenforceable;

use super::error::ApiError;
use super::{App, wire};
use crate::store::format::Ended;
use crate::store::kept::KeptRun;

/// Refuses values that are no bounds.
pub(super) fn check(limits: &wire::Limits) -> Result<(), ApiError> {
    let counts = [
        ("max_turns", limits.max_turns),
        ("max_tool_turns", limits.max_tool_turns),
        ("max_tokens", limits.max_tokens),
        ("wall_ms", limits.wall_ms),
        ("idle_ms", limits.idle_ms),
        ("finish_ms", limits.finish_ms),
        ("memory", limits.memory),
        ("pids", limits.pids.map(u64::from)),
        ("output", limits.output),
    ];
    if let Some((name, _)) = counts.iter().find(|(_, value)| *value == Some(0)) {
        let message = format!("limit {name} is 0: nothing could run under it; leave it out");
        return Err(ApiError::bad_request(message));
    }
    match limits.max_budget_usd {
        Some(usd) if !(usd.is_finite() && usd > 0.0) => {
            let message = format!("limit max_budget_usd is {usd}: use an amount above 0");
            Err(ApiError::bad_request(message))
        }
        Some(_) | None => Ok(()),
    }
}

/// What the keeper holds any program to.
pub(super) fn bounds(limits: &wire::Limits) -> Bounds {
    Bounds {
        wall: limits.wall_ms.map(Duration::from_millis),
        idle: limits.idle_ms.map(Duration::from_millis),
        output: limits.output,
        memory: limits.memory,
        pids: limits.pids,
    }
}

/// The limits that only an agent's own words can be held to, by name.
pub(super) fn by_words(limits: &wire::Limits) -> Vec<(&'static str, f64)> {
    let all = [
        ("max_tool_turns", limits.max_tool_turns.map(|n| n as f64)),
        ("max_turns", limits.max_turns.map(|n| n as f64)),
        ("max_budget_usd", limits.max_budget_usd),
        ("max_tokens", limits.max_tokens.map(|n| n as f64)),
        ("finish", limits.finish_ms.map(|ms| ms as f64 / 1000.0)),
    ];
    all.into_iter().filter_map(|(name, max)| Some((name, max?))).collect()
}

/// The first limit that nobody could enforce.
pub(super) fn unenforceable(request: &wire::RunRequest) -> Option<Unenforceable> {
    if request.unenforced_ok {
        return None;
    }
    let (limit, _) = by_words(&request.limits).into_iter().next()?;
    let because = "nothing reads what this command says of itself".into();
    Some(Unenforceable { limit: limit.into(), because })
}

/// Where a run stands with each of its limits: what was used, what is allowed, what is counted, and
/// how it binds.
#[utoipa::path(get, path = "/v1/runs/{run}/limits", params(("run" = String, Path)),
    responses((status = 200, body = wire::LimitsReport), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn limits(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<wire::LimitsReport>, ApiError> {
    let run = app.meant_by(&name).await?;
    let dir = app.home.run_dir(&run.id);
    let ask = tokio::task::spawn_blocking(move || {
        Connection::open(&dir).and_then(|mut keeper| keeper.status()).ok()
    });
    let status = ask.await.map_err(|_| ApiError::leaving())?;
    let mut known = status.as_ref().map(|status| status.limits.clone()).unwrap_or_default();
    known.extend(reached(&run));
    let trouble = status.and_then(|status| status.meter_trouble);
    let limits = asked_for(&run.request.limits)
        .into_iter()
        .map(|(kind, max)| {
            let used = known.iter().find(|limit| limit.kind == kind).map(|limit| limit.used);
            let (source, binds) = meaning(kind);
            let (source, binds) = (source.to_owned(), binds.to_owned());
            wire::LimitStanding { kind: kind.to_owned(), used, max, source, binds }
        })
        .collect();
    Ok(Json(wire::LimitsReport { limits, trouble }))
}

/// The limit that ended a run.
fn reached(run: &KeptRun) -> Option<LimitReached> {
    match run.ended.as_deref() {
        Some(Ended::Recorded(end)) => match &end.cause {
            kennel_process::Cause::Limit(limit) => Some(limit.clone()),
            kennel_process::Cause::Exit
            | kennel_process::Cause::Stopped
            | kennel_process::Cause::Killed
            | kennel_process::Cause::Lost
            | kennel_process::Cause::NeverStarted => None,
        },
        Some(Ended::NeverStarted { .. }) | None => None,
    }
}

/// Every limit of a run, by the name it is told under.
fn asked_for(limits: &wire::Limits) -> Vec<(&'static str, f64)> {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let plain = [
        ("wall", limits.wall_ms.map(seconds)),
        ("idle", limits.idle_ms.map(seconds)),
        ("output", limits.output.map(|n| n as f64)),
        ("memory", limits.memory.map(|n| n as f64)),
        ("pids", limits.pids.map(f64::from)),
    ];
    let plain = plain.into_iter().filter_map(|(name, max)| Some((name, max?)));
    by_words(limits).into_iter().chain(plain).collect()
}

/// What is counted for a limit, and how it binds.
fn meaning(kind: &str) -> (&'static str, &'static str) {
    match kind {
        "wall" => ("time since the start, suspend included", "hard"),
        "idle" => ("output, transcript and processor time", "sampled"),
        "output" => ("bytes as they are written", "hard"),
        "memory" => ("memory of each process that is its own, four times a second", "sampled"),
        "pids" => ("processes, four times a second", "sampled"),
        _ => ("the agent's own words", "estimate"),
    }
}
