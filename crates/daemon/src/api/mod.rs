//! The API: requests become events, kept runs become answers. HTTP and JSON on a private socket.
//!
//! Owns: routes, their bounds, and who may connect. Decides nothing: a refusal is the mind's.

mod error;
mod output;
mod start;
mod view;
pub mod wire;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use kennel_supervisor::{Event, Refusal, RunId, Stop};
use serde::Deserialize;
use tokio::net::{UnixListener, UnixStream, unix};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, watch};

use crate::event_loop::{Inbox, Outcome};
use crate::home::Home;
use crate::store::format::Detail;
use crate::store::{KeptRun, Meant, Store};
use error::ApiError;
use view::view;

/// The largest request: more than any kernel takes as arguments and environment together.
const MAX_REQUEST_BYTES: usize = 16 << 20;
/// The longest one request waits for something to happen; clients ask again.
const LONGEST_POLL: Duration = Duration::from_secs(20);
/// Pause after an accept that failed: out of descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every route can reach.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) home: Home,
    pub(crate) store: Store,
    pub(crate) inbox: Inbox,
    pub(crate) leaving: watch::Receiver<bool>,
    /// One permit for each question that may wait for output.
    pub(crate) followers: Arc<Semaphore>,
}

impl App {
    pub(crate) fn new(
        home: Home,
        store: Store,
        inbox: Inbox,
        leaving: watch::Receiver<bool>,
    ) -> Self {
        let followers = Arc::new(Semaphore::new(output::MAX_FOLLOWERS));
        Self { home, store, inbox, leaving, followers }
    }
}

pub(crate) fn router(app: App) -> Router {
    let unknown =
        || async { ApiError::new(StatusCode::NOT_FOUND, "no_such_route", "no such route") };
    let method = || async {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "bad_method", "not with this method")
    };
    Router::new()
        .route("/v1/runs", get(list).post(start::start))
        .route("/v1/runs/{run}", get(show))
        .route("/v1/runs/{run}/wait", get(wait))
        .route("/v1/runs/{run}/output", get(output::output))
        .route("/v1/runs/{run}/stop", post(stop))
        .route("/v1/runs/{run}/kill", post(kill))
        .route("/v1/shutdown", post(shutdown))
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .with_state(app)
}

/// A listener that serves nobody but our own user and root.
pub(crate) struct OwnersOnly(pub(crate) UnixListener);

impl axum::serve::Listener for OwnersOnly {
    type Io = UnixStream;
    type Addr = unix::SocketAddr;

    async fn accept(&mut self) -> (UnixStream, unix::SocketAddr) {
        let own = rustix::process::geteuid().as_raw();
        loop {
            match self.0.accept().await {
                Ok((stream, from)) => {
                    if stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
                        return (stream, from);
                    }
                    tracing::warn!("turned a stranger away: {:?}", stream.peer_cred());
                }
                Err(e) => {
                    tracing::error!("failed to accept a connection: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<unix::SocketAddr> {
        self.0.local_addr()
    }
}

#[derive(Deserialize)]
struct ListQuery {
    #[serde(default)]
    all: bool,
}

async fn list(
    State(app): State<App>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Vec<wire::Run>>, ApiError> {
    let query = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let runs = app.store.list(query.all).await?;
    Ok(Json(runs.iter().map(view).collect()))
}

async fn show(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<Json<wire::Run>, ApiError> {
    Ok(Json(view(&app.meant_by(&name).await?)))
}

#[derive(Deserialize)]
struct WaitQuery {
    timeout_ms: Option<u64>,
}

/// Answers when the run is dead or stuck, or when the time is over.
async fn wait(
    State(app): State<App>,
    Path(name): Path<String>,
    query: Result<Query<WaitQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<wire::Run>, ApiError> {
    let query = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let bound = query.timeout_ms.map_or(LONGEST_POLL, Duration::from_millis).min(LONGEST_POLL);
    let changes = app.inbox.changes();
    let id = app.meant_by(&name).await?.id;
    let over = |run: &KeptRun| matches!(run.state.as_str(), "dead" | "stuck");
    Ok(Json(view(&app.until(&id, changes, bound, over).await?)))
}

async fn stop(
    State(app): State<App>,
    Path(name): Path<String>,
    body: axum::body::Bytes,
) -> Result<Json<wire::Run>, ApiError> {
    let request: wire::StopRequest = match body.len() {
        0 => wire::StopRequest::default(),
        _ => parse(&body)?,
    };
    app.end(&name, Stop::Ask { grace_ms: request.grace_ms }).await
}

/// The body is read though it says nothing: a request left half-read is an error for its sender.
async fn kill(
    State(app): State<App>,
    Path(name): Path<String>,
    _body: axum::body::Bytes,
) -> Result<Json<wire::Run>, ApiError> {
    app.end(&name, Stop::Force).await
}

async fn shutdown(
    State(app): State<App>,
    _body: axum::body::Bytes,
) -> Result<StatusCode, ApiError> {
    let _ = app.inbox.tell(Event::ShutdownRequested, Detail::Nothing, None).await?;
    Ok(StatusCode::ACCEPTED)
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("failed to read the request: {e}")))
}

impl App {
    async fn meant_by(&self, name: &str) -> Result<KeptRun, ApiError> {
        match self.store.meant_by(name).await? {
            Meant::One(run) => Ok(*run),
            Meant::Several(candidates) => {
                let message = format!("{name} is the beginning of several runs");
                Err(ApiError::new(StatusCode::CONFLICT, "ambiguous_run", message)
                    .hint(format!("one of {}", candidates.join(", "))))
            }
            Meant::Nobody => {
                let message = format!("there is no run or live slot {name}");
                Err(ApiError::new(StatusCode::NOT_FOUND, "run_not_found", message)
                    .hint("`kennel ps -a` lists all runs"))
            }
        }
    }

    async fn end(&self, name: &str, stop: Stop) -> Result<Json<wire::Run>, ApiError> {
        let run = self.meant_by(name).await?;
        let event = Event::StopRequested { run: run.id.as_str().into(), stop };
        match self.inbox.tell(event, Detail::Nothing, None).await? {
            Outcome::Done | Outcome::AlreadySo | Outcome::Refused(Refusal::NotLive) => {}
            Outcome::Refused(refusal) => return Err(ApiError::refused(&refusal, &run.slot)),
        }
        Ok(Json(view(&self.known(&run.id).await?)))
    }

    async fn known(&self, id: &str) -> Result<KeptRun, ApiError> {
        let run = self.store.run(id).await?;
        run.ok_or_else(|| ApiError::internal(format!("run {id} is not in the store")))
    }

    /// The run as soon as it is as wanted, or as it is when the time is over.
    async fn until(
        &self,
        id: &str,
        mut changes: broadcast::Receiver<RunId>,
        bound: Duration,
        wanted: impl Fn(&KeptRun) -> bool,
    ) -> Result<KeptRun, ApiError> {
        let mut leaving = self.leaving.clone();
        let deadline = tokio::time::sleep(bound);
        tokio::pin!(deadline);
        loop {
            let run = self.known(id).await?;
            if wanted(&run) {
                return Ok(run);
            }
            tokio::select! {
                () = changed(&mut changes, id) => {}
                () = &mut deadline => return Ok(run),
                _ = leaving.wait_for(|leaving| *leaving) => return Err(ApiError::leaving()),
            }
        }
    }
}

/// Waits until something about this run has changed, or may have.
async fn changed(changes: &mut broadcast::Receiver<RunId>, id: &str) {
    loop {
        match changes.recv().await {
            Ok(run) if run.as_str() == id => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            // The loop is gone, and with it every change: only the deadline or the leaving is left.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
