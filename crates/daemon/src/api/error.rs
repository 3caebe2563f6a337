//! Errors of the API: a status, a stable code, a sentence, a hint. Owns the codes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kennel_process::{StartFailure, StartStage};
use kennel_supervisor::Refusal;

use super::wire;
use crate::event_loop::TellError;
use crate::store::StoreError;

/// The system's number for "no such file".
const ENOENT: i32 = 2;

/// An error on its way to a client.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: wire::Error,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let error = wire::Error { code: code.to_owned(), message: message.into(), hint: None };
        Self { status, error }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn leaving() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the daemon is leaving")
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.error.hint = Some(hint.into());
        self
    }

    pub(crate) fn refused(refusal: &Refusal, slot: &str) -> Self {
        match refusal {
            Refusal::SlotTaken { by } => {
                let message = format!("slot {slot} is taken by run {by}");
                Self::new(StatusCode::CONFLICT, "slot_taken", message)
                    .hint(format!("stop it with `kennel stop {by}`, or use another slot"))
            }
            Refusal::ShuttingDown => Self::leaving(),
            Refusal::NotLive => Self::new(StatusCode::CONFLICT, "not_live", "the run has ended"),
            Refusal::Lost => {
                let message = "the run is lost: nobody can tell what is left of it";
                Self::new(StatusCode::CONFLICT, "lost", message)
                    .hint("`kennel show` says why; what is found can be ended with `kill --pid`")
            }
        }
    }

    /// From a run that never started.
    pub(crate) fn never_started(error: wire::Error) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, error }
    }
}

/// The code and sentence for a start that failed.
pub(crate) fn start_error(failure: Option<&StartFailure>, message: &str) -> wire::Error {
    let code = match failure.map(|f| (f.stage, f.errno)) {
        Some((StartStage::Exec, Some(ENOENT))) => "command_not_found",
        Some((StartStage::Exec, _)) => "not_executable",
        Some((StartStage::WorkingDirectory, _)) => "bad_directory",
        Some((
            StartStage::Spec
            | StartStage::Directory
            | StartStage::Streams
            | StartStage::Fork
            | StartStage::Record,
            _,
        ))
        | None => "start_failed",
    };
    wire::Error { code: code.to_owned(), message: message.to_owned(), hint: None }
}

impl From<TellError> for ApiError {
    fn from(error: TellError) -> Self {
        match error {
            TellError::Leaving => Self::leaving(),
            TellError::Store(e) => e.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "store_failed", error.to_string())
            .hint("nothing was changed; runs that are alive go on")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(wire::ErrorBody { error: self.error })).into_response()
    }
}
