//! The API: requests become events, kept runs become answers. HTTP and JSON on a private socket.
//!
//! Owns: routes, their bounds, and what names mean. Decides nothing: a refusal is the mind's. Every
//! route is written once and gives its handler and its part of the OpenAPI document.

mod attach;
mod channels;
pub(crate) mod daemon;
mod doctor;
pub(crate) mod error;
mod events;
pub(crate) mod input;
mod limits;
pub(crate) mod listen;
mod notices;
pub(crate) mod output;
mod plan;
mod runs;
pub(crate) mod start;
mod stories;
mod stream;
mod usage;
pub(crate) mod view;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::{Mutex, Semaphore, watch};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::channel::Channels;
use crate::charge::Charges;
use crate::config::settings::Settings;
use crate::event_loop::Inbox;
use crate::feed::Feed;
use crate::home::Home;
use crate::live::Live;
use crate::mcp;
use crate::metrics::Metrics;
use crate::store::kept::KeptRun;
use crate::store::{Meant, Store};
use crate::story::now::{Landed, Projects, StoriesNow, Troubles};
use crate::time::Time;
use attach::Writers;
pub(crate) use error::ApiError;
use error::BadQuery;
use notices::Readers;
#[cfg(feature = "bench")]
pub(crate) use view::notice;

/// The largest request: more than any kernel takes as arguments and environment together.
const MAX_REQUEST_BYTES: usize = 16 << 20;
/// A larger one is read to its end and dropped, so that its sender comes to read why; one larger
/// than this is cut off.
const MAX_DRAINED_BYTES: usize = 128 << 20;
/// The longest sentence that a layer below ours says about an error.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// The longest one request waits for something to happen; clients ask again.
const LONGEST_POLL: Duration = Duration::from_secs(20);

/// What every route can reach.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) home: Home,
    pub(crate) store: Store,
    pub(crate) inbox: Inbox,
    pub(crate) live: Live,
    pub(crate) feed: Feed,
    pub(crate) metrics: Metrics,
    pub(crate) leaving: watch::Receiver<bool>,
    pub(crate) writers: Writers,
    pub(crate) boot: String,
    pub(crate) started_at: Time,
    pub(crate) room: usize,
    pub(crate) talks: Talks,
    pub(crate) readers: Readers,
    pub(crate) channels: Channels,
    pub(crate) charges: Charges,
    pub(crate) settings: Settings,
    pub(crate) stories: StoriesNow,
    pub(crate) projects: Projects,
    pub(crate) troubles: Troubles,
    pub(crate) landed: Landed,
    /// Held by the start of an agent, or in a session that is named, until it is admitted or
    /// refused.
    pub(crate) agent_starts: Arc<Mutex<()>>,
    /// Held from looking what is kept of a story until that is changed: of two who ask at once, the
    /// second finds what the first did.
    pub(crate) story_words: Arc<Mutex<()>>,
}

/// Requests that wait for keepers. A keeper that stands still keeps each for a while: beyond these
/// the others are turned away, so that starts, stops and questions to the store have threads left.
#[derive(Clone, Debug)]
pub(crate) struct Talks(Arc<Semaphore>);

/// How many of them at once.
const MAX_TALKS: usize = 48;

impl Default for Talks {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_TALKS)))
    }
}

impl Talks {
    /// Has something asked of a keeper, in a thread that may wait.
    pub(crate) async fn talk<T: Send + 'static>(
        &self,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(permit) = self.0.clone().try_acquire_owned() else {
            let message = "too many requests wait for keepers that do not answer";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
                .hint("try again later"));
        };
        let asked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            ask()
        });
        asked.await.map_err(|_| ApiError::leaving())
    }
}

#[derive(OpenApi)]
#[openapi(info(
    title = "kennel",
    description = "Start, watch and stop runs. Every error is an `ErrorBody` with a stable code."
))]
struct Document;

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(runs::list, start::start))
        .routes(routes!(runs::show))
        .routes(routes!(runs::wait))
        .routes(routes!(runs::stop))
        .routes(routes!(runs::kill))
        .routes(routes!(limits::limits))
        .routes(routes!(usage::usage))
        .routes(routes!(output::output))
        .routes(routes!(input::input))
        .routes(routes!(attach::attach))
        .routes(routes!(mcp::connect))
        .routes(routes!(events::events))
        .routes(routes!(notices::notices))
        .routes(routes!(notices::consumers))
        .routes(routes!(notices::forget))
        .routes(routes!(notices::ack))
        .routes(routes!(channels::list))
        .routes(routes!(channels::retry))
        .routes(routes!(channels::test))
        .routes(routes!(stories::list, stories::add))
        .routes(routes!(stories::show, stories::edit, stories::remove))
        .routes(routes!(stories::move_to))
        .routes(routes!(stories::block))
        .routes(routes!(stories::unblock))
        .routes(routes!(stories::freeze))
        .routes(routes!(stories::archive))
        .routes(routes!(stories::unpause))
        .routes(routes!(daemon::daemon))
        .routes(routes!(daemon::shutdown))
        .routes(routes!(doctor::examine, doctor::fix))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::openapi))
}

/// The OpenAPI document, as it is served and kept in the repository.
pub(crate) fn document() -> String {
    let mut document = routes().into_openapi();
    document.components.get_or_insert_default();
    document.to_pretty_json().unwrap_or_default()
}

pub(crate) fn router(app: App) -> Router {
    let unknown =
        || async { ApiError::new(StatusCode::NOT_FOUND, "no_such_route", "no such route") };
    let method = || async {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "bad_method", "not with this method")
    };
    let (router, _) = routes().split_for_parts();
    router
        .route_service("/mcp", mcp::service(&app))
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(from_fn(bounded))
        .layer(map_response(typed))
        .with_state(app)
}

/// Refuses a request that says it is too large, after all of it was read.
async fn bounded(request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    if length <= MAX_REQUEST_BYTES {
        return next.run(request).await;
    }
    let mut drained = 0;
    let mut body = request.into_body().into_data_stream();
    while drained < MAX_DRAINED_BYTES
        && let Some(Ok(bytes)) = body.next().await
    {
        drained += bytes.len();
    }
    too_large(format!("the request has {length} bytes")).into_response()
}

fn too_large(what: String) -> ApiError {
    let message = format!("{what}, and may have {MAX_REQUEST_BYTES}");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        .hint("put what is large into a file and name that")
}

/// Every error is an `ErrorBody`, also where a layer below ours says it in plain text.
async fn typed(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large("the request has more bytes".to_owned()).into_response();
    }
    let said = axum::body::to_bytes(response.into_body(), MAX_MESSAGE_BYTES).await;
    let said = said.map(|said| String::from_utf8_lossy(&said).into_owned()).unwrap_or_default();
    let code = if status.is_client_error() { "bad_request" } else { "internal" };
    ApiError::new(status, code, said).into_response()
}

/// Several runs could be meant.
fn ambiguous(name: &str, candidates: &[String]) -> ApiError {
    let message = format!("{name} may mean several runs");
    ApiError::new(StatusCode::CONFLICT, "ambiguous_run", message)
        .hint(format!("one of {}", candidates.join(", ")))
}

fn parse<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, ApiError> {
    // A list would be taken for the fields in their order.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(ApiError::bad_request("failed to read the request: it is not an object"));
    }
    serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("failed to read the request: {e}")))
}

/// Like [`parse`], of a body that may be left out.
fn parse_or_default<T: for<'a> Deserialize<'a> + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

impl App {
    /// The run somebody means by an id, by the name of a slot it holds, or by the beginning of an
    /// id.
    pub(crate) async fn meant_by(&self, name: &str) -> Result<KeptRun, ApiError> {
        if let Some(run) = self.live.get(name) {
            return Ok(run);
        }
        match self.store.meant_by(name).await? {
            // The store's reader may have looked a moment before the last commit.
            Meant::One(run) => Ok(self.live.get(&run.id).unwrap_or(run)),
            Meant::Several(candidates) => Err(ambiguous(name, &candidates)),
            Meant::Nobody => match self.live.in_slot(name) {
                Some(run) => Ok(run),
                None => {
                    let message = format!("there is no run or live slot {name:?}");
                    Err(ApiError::new(StatusCode::NOT_FOUND, "run_not_found", message)
                        .hint("`kennel ps -a` lists all runs"))
                }
            },
        }
    }

    /// The run of exactly this id, which is known to have been admitted.
    pub(crate) async fn known(&self, id: &str) -> Result<KeptRun, ApiError> {
        if let Some(run) = self.live.get(id) {
            return Ok(run);
        }
        let run = self.store.run(id).await?;
        run.ok_or_else(|| ApiError::internal(format!("run {id} is not in the store")))
    }

    /// The run as soon as it is as wanted, or as it is when the time is over.
    pub(crate) async fn until(
        &self,
        id: &str,
        bound: Duration,
        wanted: impl Fn(&KeptRun) -> bool,
    ) -> Result<KeptRun, ApiError> {
        let Some(mut changes) = self.live.watch(id) else {
            return self.known(id).await;
        };
        let mut leaving = self.leaving.clone();
        tokio::select! {
            biased;
            // Its last value stays after a death, which is as much as there will be.
            _ = changes.wait_for(&wanted) => {}
            () = tokio::time::sleep(bound) => {}
            _ = leaving.wait_for(|leaving| *leaving) => return Err(ApiError::leaving()),
        }
        let run = changes.borrow().clone();
        Ok(run)
    }
}
