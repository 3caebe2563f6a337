//! `POST /v1/runs/{run}/input`: bytes for a run's standard input or terminal.
//!
//! Owns: handing them to its keeper, which takes all of them or says why not.

use std::path::PathBuf;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use kennel_process::{Connection, ConnectionError, RefusalCode};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{App, BadQuery};

/// What a keeper takes whole or not at all.
pub(super) const MAX_INPUT_BYTES: usize = 64 << 10;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct InputQuery {
    /// Close it after these bytes: the run reads end of file. Not for a terminal.
    #[serde(default)]
    close: bool,
}

/// Writes to a run's standard input or terminal.
#[utoipa::path(post, path = "/v1/runs/{run}/input", params(("run" = String, Path), InputQuery),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 204)))]
pub(super) async fn input(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<InputQuery>, BadQuery>,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let Query(query) = query?;
    let run = app.meant_by(&name).await?;
    give(&app, &run.id, body.to_vec(), query.close).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Hands bytes to a run's keeper, and has its input closed after them.
pub(crate) async fn give(
    app: &App,
    run: &str,
    bytes: Vec<u8>,
    close: bool,
) -> Result<(), ApiError> {
    if bytes.len() > MAX_INPUT_BYTES {
        let message = format!("the input has {} bytes and may have {MAX_INPUT_BYTES}", bytes.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
            .hint("send it in pieces: each is taken whole or not at all"));
    }
    let dir = app.home.run_dir(run);
    let written = app.talks.talk(move || write(dir, &bytes, close)).await?;
    written.map_err(|e| refused(&e))
}

fn write(dir: PathBuf, bytes: &[u8], close: bool) -> Result<(), ConnectionError> {
    let mut keeper = Connection::open(&dir)?;
    keeper.write(bytes)?;
    if close { keeper.close_stdin() } else { Ok(()) }
}

/// Why a keeper did not take input.
pub(crate) fn refused(error: &ConnectionError) -> ApiError {
    let ConnectionError::Refused(refusal) = error else {
        if let ConnectionError::NoAnswer = error {
            let message = "its keeper does not answer: the input may have been taken, or will be";
            return ApiError::new(StatusCode::GATEWAY_TIMEOUT, "perhaps_taken", message);
        }
        return ApiError::new(StatusCode::CONFLICT, "not_live", "the run has ended, or is ending");
    };
    let (status, code) = match refusal.code {
        RefusalCode::NoInput => (StatusCode::CONFLICT, "no_input"),
        RefusalCode::InputFull => (StatusCode::TOO_MANY_REQUESTS, "input_full"),
        RefusalCode::Ended | RefusalCode::Gone => (StatusCode::CONFLICT, "not_live"),
        RefusalCode::NoTerminal => (StatusCode::CONFLICT, "no_terminal"),
        RefusalCode::UnknownRequest
        | RefusalCode::Protocol
        | RefusalCode::BadSignal
        | RefusalCode::Busy
        | RefusalCode::System => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    let error = ApiError::new(status, code, refusal.message.clone());
    match code {
        "no_input" => error.hint("start it with --stdin or --pty to write to it"),
        "input_full" => error.hint("the run does not read; try again later"),
        _ => error,
    }
}
