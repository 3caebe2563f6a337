//! Errors of the API: a status, a stable code, a sentence, a hint. Owns the codes.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kennel_process::{StartFailure, StartStage};
use kennel_supervisor::{Claim, Refusal, Unenforceable};

use super::wire;
use crate::event_loop::TellError;
use crate::store::StoreError;

/// The system's number for "no such file".
const ENOENT: i32 = 2;
/// The system's numbers for no space, a read-only file system, and a quota that is used up.
const UNWRITABLE: [i32; 3] = [28, 30, 122];
/// What to do about a home that cannot be written.
const MAKE_ROOM: &str = "make room in the home, or make it writable, and try again";

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

    pub(crate) fn code(&self) -> &str {
        &self.error.code
    }

    pub(crate) fn into_wire(self) -> wire::Error {
        self.error
    }

    /// What was asked for is under way, and this daemon cannot tell what comes of it.
    pub(crate) fn ask_again() -> Self {
        let message = "the daemon is leaving, and the run was admitted: it may run";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ask_again", message)
            .hint("send the same request again, with the same id: it is the same run")
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.error.hint = Some(hint.into());
        self
    }

    pub(crate) fn refused(refusal: &Refusal, claim: &Claim, worktree: Option<&str>) -> Self {
        let conflict = |code, message: String| Self::new(StatusCode::CONFLICT, code, message);
        let slot = &claim.slot;
        match refusal {
            Refusal::SlotTaken { by } => {
                conflict("slot_taken", format!("slot {slot} is taken by run {by}"))
                    .hint(format!("stop it with `kennel stop {by}`, or use another slot"))
            }
            Refusal::StuckSurvivors { of } => {
                let message = format!("slot {slot} is taken by run {of}, which is stuck");
                conflict("stuck_survivors", message)
                    .hint(format!("`kennel show {of}` says what is left of it and why"))
            }
            Refusal::WorktreeInUse { by } => {
                let worktree = worktree.unwrap_or("the worktree");
                conflict("worktree_in_use", format!("run {by} works in {worktree}"))
                    .hint(format!("stop it with `kennel stop {by}`, or use another directory"))
            }
            Refusal::IdTaken => conflict("id_taken", "the id belongs to another run".to_owned())
                .hint("leave it out to have one made up"),
            Refusal::LimitNotEnforceable(Unenforceable { limit, because }) => {
                let message = format!("limit {limit} cannot be enforced: {because}");
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "limit_not_enforceable", message)
            }
            Refusal::HostFull { room } => {
                let message = format!("there are {room} runs already, and no more fit");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "host_full", message)
                    .hint("stop one, or start the daemon with more room: `kennel up --max-runs N`")
            }
            Refusal::ParentEnding { parent } => {
                let message = format!("run {parent} is ending, and starts nothing any more");
                conflict("parent_ending", message)
            }
            Refusal::ShuttingDown => Self::leaving(),
            Refusal::NotLive => conflict("not_live", "the run has ended".to_owned()),
            Refusal::Lost => {
                conflict("lost", "the run is lost: nobody can tell what is left of it".to_owned())
                    .hint("`kennel show` says why; what is found can be ended with `kill --pid`")
            }
        }
    }

    /// From a run that never started.
    pub(crate) fn never_started(error: wire::Error) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, error }
    }

    /// With this to do about it, unless there is something better already.
    pub(crate) fn hint_if_none(mut self, hint: impl Into<String>) -> Self {
        self.error.hint.get_or_insert_with(|| hint.into());
        self
    }
}

/// The code and sentence for a start that failed.
pub(crate) fn start_error(failure: Option<&StartFailure>, message: &str) -> wire::Error {
    let code = match failure.map(|f| (f.stage, f.errno)) {
        Some((StartStage::Exec, Some(ENOENT))) => "command_not_found",
        Some((StartStage::Exec, _)) => "not_executable",
        Some((StartStage::WorkingDirectory, _)) => "bad_directory",
        Some((StartStage::Directory | StartStage::Streams | StartStage::Record, Some(errno)))
            if UNWRITABLE.contains(&errno) =>
        {
            "store_failed"
        }
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
    let hint = (code == "store_failed").then(|| MAKE_ROOM.to_owned());
    wire::Error { code: code.to_owned(), message: message.to_owned(), hint }
}

impl From<TellError> for ApiError {
    fn from(error: TellError) -> Self {
        match error {
            TellError::Leaving => Self::leaving(),
            TellError::Store(e) => Self::store(&e),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::store(&error)
    }
}

impl ApiError {
    fn store(error: &StoreError) -> Self {
        let hint = if error.is_for_want_of_space() {
            format!("nothing was changed, and runs that are alive go on; {MAKE_ROOM}")
        } else {
            "nothing was changed; runs that are alive go on".to_owned()
        };
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "store_failed", error.to_string()).hint(hint)
    }
}

/// A query that does not read.
pub(crate) type BadQuery = QueryRejection;

impl From<BadQuery> for ApiError {
    fn from(rejection: BadQuery) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(wire::ErrorBody { error: self.error })).into_response()
    }
}
