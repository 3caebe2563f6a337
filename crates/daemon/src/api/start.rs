//! `POST /v1/runs`: a request becomes a spec and an event; the answer comes after the exec.
//!
//! Owns: what a request may ask for, and the run's id.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use kennel_process::{
    DEFAULT_GRACE, EnvBase, Environment, OnExit, RunId, Spec, Streams, TerminalSize,
};
use kennel_supervisor::Event;

use super::error::ApiError;
use super::view::view;
use super::{App, parse, wire};
use crate::event_loop::Outcome;
use crate::store::format::{Detail, Request};
use crate::time::Time;

/// Longer than a start may take at worst: the process library's own bounds come first.
const START_BOUND: Duration = Duration::from_secs(60);
/// The longest name of a slot.
const MAX_SLOT_BYTES: usize = 128;
/// Letters of an id: 32 of them, none that reads like another.
const ID_LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
/// Letters in an id: 50 bits, so that ids made at random do not meet.
const ID_LENGTH: usize = 10;

pub(super) async fn start(
    State(app): State<App>,
    body: Bytes,
) -> Result<(StatusCode, Json<wire::Run>), ApiError> {
    let request: wire::RunRequest = parse(&body)?;
    drop(body);
    let id = new_id().map_err(|e| ApiError::internal(format!("failed to make an id: {e}")))?;
    let slot = request.slot.clone().unwrap_or_else(|| id.clone());
    check_slot(&slot)?;
    let kept = kept(&request);
    let spec = spec(&id, request)?;
    make_dir(&app, &id).await?;

    let changes = app.inbox.changes();
    let event = Event::RunRequested { run: id.as_str().into(), slot: slot.as_str().into() };
    let told = app.inbox.tell(event, Detail::Request(Box::new(kept)), Some(Box::new(spec))).await;
    match told {
        Ok(Outcome::Done | Outcome::AlreadySo) => {}
        Ok(Outcome::Refused(refusal)) => {
            let _ = std::fs::remove_dir(app.home.run_dir(&id));
            return Err(ApiError::refused(&refusal, &slot));
        }
        Err(e) => {
            let _ = std::fs::remove_dir(app.home.run_dir(&id));
            return Err(e.into());
        }
    }
    let settled = |run: &crate::store::KeptRun| {
        run.started.is_some() || run.ended.is_some() || run.state == "stuck"
    };
    let run = view(&app.until(&id, changes, START_BOUND, settled).await?);
    match run.end {
        Some(wire::End { cause: wire::Cause::NeverStarted, error: Some(error), .. }) => {
            Err(ApiError::never_started(error).hint(format!("`kennel show {id}` tells more")))
        }
        Some(_) | None => Ok((StatusCode::CREATED, Json(run))),
    }
}

fn new_id() -> io::Result<String> {
    let mut random = [0_u8; ID_LENGTH];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let letter = |byte: &u8| char::from(ID_LETTERS[usize::from(byte % 32)]);
    Ok(random.iter().map(letter).collect())
}

fn check_slot(slot: &str) -> Result<(), ApiError> {
    if slot.is_empty() || slot.len() > MAX_SLOT_BYTES || slot.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!(
            "slot {slot:?} is not a name: use 1 to {MAX_SLOT_BYTES} bytes, no control characters"
        )));
    }
    Ok(())
}

fn kept(request: &wire::RunRequest) -> Request {
    Request {
        command: request.command.clone(),
        cwd: request.cwd.clone(),
        terminal: request.pty,
        grace_ms: request.grace_ms.unwrap_or(DEFAULT_GRACE.as_millis() as u64),
        on_exit: on_exit(request.on_exit),
        at_ms: Time::now().0,
    }
}

fn on_exit(asked: wire::OnExit) -> OnExit {
    match asked {
        wire::OnExit::Sweep => OnExit::Sweep,
        wire::OnExit::Wait => OnExit::Wait,
    }
}

fn spec(id: &str, request: wire::RunRequest) -> Result<Spec, ApiError> {
    let run = RunId::new(id).map_err(|e| ApiError::internal(e.to_string()))?;
    let mut command = request.command.into_iter();
    let Some(program) = command.next() else {
        return Err(ApiError::bad_request("there is no command to run"));
    };
    let cwd = PathBuf::from(request.cwd.0);
    if !cwd.is_absolute() {
        return Err(ApiError::bad_request("the working directory is not an absolute path"));
    }
    let mut spec = Spec::new(run, program.0);
    spec.args = command.map(|arg| arg.0).collect();
    spec.env = Environment {
        base: EnvBase::Clear,
        set: request.env.into_iter().map(|(name, value)| (name.0, value.0)).collect(),
    };
    spec.cwd = Some(cwd);
    if request.pty {
        spec.streams = Streams::Terminal { size: TerminalSize::default() };
    }
    spec.on_exit = on_exit(request.on_exit);
    spec.grace = request.grace_ms.map_or(DEFAULT_GRACE, Duration::from_millis);
    spec.check().map_err(|e| ApiError::bad_request(e.to_string()))?;
    Ok(spec)
}

async fn make_dir(app: &App, id: &str) -> Result<(), ApiError> {
    let (home, id) = (app.home.clone(), id.to_owned());
    let made = tokio::task::spawn_blocking(move || home.make_run_dir(&id)).await;
    let made = made.map_err(|_| ApiError::leaving())?;
    made.map_err(|e| {
        let message = format!("failed to make the run's directory: {e}");
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_failed", message)
    })
}
