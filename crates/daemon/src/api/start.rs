//! `POST /v1/runs`: a request becomes a spec and an event; the answer comes after the exec.
//!
//! Owns: what a request may ask for, and the run's id. A request told again with the same id is the
//! same run.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use kennel_process::{
    DEFAULT_GRACE, EnvBase, Environment, MAX_LABEL_BYTES, OnExit, RunId, Spec, Stdin, Streams,
    TerminalSize,
};
use kennel_supervisor::story::Left;
use kennel_supervisor::{Claim, Event, Refusal};
use tokio::sync::OwnedMutexGuard;

use super::error::ApiError;
use super::limits::NamedSession;
use super::plan::{Planned, digest, plan_with};
use super::view::view;
use super::{App, limits, parse, wire};
use crate::config::settings::Found;
use crate::event_loop::Outcome;
use crate::random::new_run_id;
use crate::redact::{Secrets, redact_argument};
use crate::steps::Step;
use crate::store::format::{Detail, Label, Request, StepOf};
use crate::store::kept::{KeptRun, Standing};
use crate::time::Time;
use crate::watch;

/// Longer than a start may take at worst: the process library's own bounds come first.
const START_BOUND: Duration = Duration::from_secs(120);
/// The longest name of a slot.
const MAX_SLOT_BYTES: usize = 128;
/// The kernel takes so many pages as one argument or variable, its closing zero included.
const MAX_ARGUMENT_PAGES: usize = 32;

/// Starts a run. Answers when its program runs, or with why it does not. With an `id` it may be
/// asked again if the answer was lost: the same request is the same run.
#[utoipa::path(post, path = "/v1/runs", request_body = wire::RunRequest,
    responses((status = 201, body = wire::Run), (status = 409, body = wire::ErrorBody),
        (status = 422, body = wire::ErrorBody), (status = 507, body = wire::ErrorBody)))]
pub(super) async fn start(
    State(app): State<App>,
    body: Bytes,
) -> Result<(StatusCode, Json<wire::Run>), ApiError> {
    let request: wire::RunRequest = parse(&body)?;
    drop(body);
    Ok((StatusCode::CREATED, Json(begin(&app, request, None).await?)))
}

/// What a run is for, beside what can be asked for over the API.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// The run whose agent asks for it.
    pub(crate) parent: Option<Arc<str>>,
    /// What of a story it is.
    pub(crate) step: Option<StepOf>,
    /// What its story may still use.
    pub(crate) left: Option<Left>,
    /// The profile of its agent, if that is not to be looked for where it works: there its agent
    /// could have changed it.
    pub(crate) found: Option<Found>,
}

/// Has a run admitted and started, for the agent of the run `parent` if that asks for it.
pub(crate) async fn begin(
    app: &App,
    request: wire::RunRequest,
    parent: Option<Arc<str>>,
) -> Result<wire::Run, ApiError> {
    begin_inside(app, request, Inside { parent, ..Inside::default() }).await
}

/// Has a run admitted and started.
pub(crate) async fn begin_inside(
    app: &App,
    request: wire::RunRequest,
    Inside { parent, step, left, found }: Inside,
) -> Result<wire::Run, ApiError> {
    let id = match &request.id {
        Some(id) => id.clone(),
        None => {
            new_run_id().map_err(|e| ApiError::internal(format!("failed to make an id: {e}")))?
        }
    };
    let run = RunId::new(id.as_str()).map_err(|e| ApiError::bad_request(e.to_string()))?;
    let again = request.id.is_some();
    limits::check(&request.limits)?;
    watch::check(&request)?;
    let asked = request.agent.is_some().then(|| digest(&request)).transpose()?;
    let asked = asked.as_deref().filter(|_| again);
    // Before its files are looked at: they may have changed since, and the run is what it was.
    if let Some(known) = app.asked_by_agent(&id, asked).await? {
        return app.started(&known.id).await;
    }
    let mut planned = plan_with(app, request, found).await?;
    if let Some(parent) = &parent {
        app.hold_to_what_is_left(parent, &mut planned).await?;
    }
    if let (Some(step), Some(left)) = (&step, &left) {
        planned.hold_to(&limits::left_of_story(&step.story, left))?;
    }
    let format = limits::format_of(&planned.request)?;
    let session = NamedSession::of(&planned.request, format);
    let turn = app.turn(&planned, session.is_some()).await;
    // Whoever had the turn before may have asked for the same.
    if let Some(known) = app.asked_by_agent(&id, asked).await? {
        drop(turn);
        return app.started(&known.id).await;
    }
    planned.find_room(&app.live)?;
    let (mut claim, worktree) = claim(&id, &planned.request)?;
    claim.parent = parent.as_deref().map(Into::into);
    let unenforceable = limits::unenforceable(&planned.request, format);
    let mut kept = kept(&id, &planned, worktree.as_ref(), &app.boot);
    kept.parent = parent.as_deref().map(str::to_owned);
    if step.is_some() {
        Step::without_script(&mut kept.command);
    }
    kept.step = step;
    let kept = Arc::new(kept);
    let mut spec = spec(run, planned.request, worktree)?;
    spec.ask = planned.gentle_signal.unwrap_or(spec.ask);
    spec.label = label(&claim, &kept);
    limits::count(&mut spec, &kept, format, &app.home)?;
    if again && let Some(known) = app.asked_before(&id, &kept, &claim).await? {
        return app.started(&known.id).await;
    }
    if let Some(session) = session {
        session.check(&app.live)?;
    }
    make_dir(app, &id).await?;
    let event =
        Event::RunRequested { run: id.as_str().into(), claim: claim.clone(), unenforceable };
    let detail = Detail::Request(kept.clone());
    let told = app.inbox.tell_with(event, detail, Some(Box::new(spec))).await;
    drop(turn);
    match told {
        Ok(Outcome::Done | Outcome::AlreadySo) => app.started(&id).await,
        // The same request may have been admitted, and its run ended, a moment ago.
        Ok(Outcome::Refused(Refusal::IdTaken)) if again => {
            match app.asked_before(&id, &kept, &claim).await? {
                Some(known) => app.started(&known.id).await,
                None => Err(app.not_admitted(&id, &Refusal::IdTaken, &claim, &kept)),
            }
        }
        Ok(Outcome::Refused(refusal)) => Err(app.not_admitted(&id, &refusal, &claim, &kept)),
        Err(e) => match app.asked_before(&id, &kept, &claim).await {
            Ok(Some(known)) if again => app.started(&known.id).await,
            Ok(_) | Err(_) => {
                app.remove_unused_dir(&id);
                Err(e.into())
            }
        },
    }
}

impl App {
    /// The run of this id, if it was asked for before in the same words.
    async fn asked_before(
        &self,
        id: &str,
        request: &Request,
        claim: &Claim,
    ) -> Result<Option<KeptRun>, ApiError> {
        let known = match self.live.get(id) {
            Some(run) => Some(run),
            None => self.store.run(id).await?,
        };
        match known {
            Some(run) if run.request.is_same(request) && &*run.slot == claim.slot.as_str() => {
                Ok(Some(run))
            }
            Some(_) => Err(ApiError::refused(&Refusal::IdTaken, claim, None)),
            None => Ok(None),
        }
    }

    /// Holds what an agent starts to what is left of its own limits and of those above it. What
    /// nobody counts has nothing that could be held to them.
    async fn hold_to_what_is_left(
        &self,
        parent: &str,
        planned: &mut Planned,
    ) -> Result<(), ApiError> {
        if limits::format_of(&planned.request)?.is_none() {
            return Ok(());
        }
        let parent = self.known(parent).await?;
        let mut above = vec![parent.clone()];
        for id in self.above(&parent).await? {
            above.extend(self.live.get(&id));
        }
        let left: Vec<limits::Left> =
            above.iter().flat_map(|run| limits::left(self, run)).collect();
        planned.hold_to(&left)
    }

    /// Agents, and whoever goes on in a session, are admitted one after the other: how many of one
    /// there are, and whether somebody has the session, is looked up before.
    async fn turn(&self, planned: &Planned, session: bool) -> Option<OwnedMutexGuard<()>> {
        match planned.agent.is_some() || session {
            true => Some(self.agent_starts.clone().lock_owned().await),
            false => None,
        }
    }

    /// The run of this id, if it is of an agent and was asked for before in the same words.
    async fn asked_by_agent(
        &self,
        id: &str,
        asked: Option<&str>,
    ) -> Result<Option<KeptRun>, ApiError> {
        let Some(asked) = asked else { return Ok(None) };
        let known = match self.live.get(id) {
            Some(run) => Some(run),
            None => self.store.run(id).await?,
        };
        let same = |run: &KeptRun| run.request.agent.as_ref().is_some_and(|a| a.asked == asked);
        Ok(known.filter(same))
    }

    /// Waits until a run that was admitted has started, and tells of it.
    async fn started(&self, id: &str) -> Result<wire::Run, ApiError> {
        let settled = |run: &KeptRun| {
            run.started.is_some() || run.ended.is_some() || run.state == Standing::Stuck
        };
        // It was admitted, and may run: "refused" would be a lie.
        let run = self.until(id, START_BOUND, settled).await.map_err(|_| ApiError::ask_again())?;
        let run = view(&run);
        match run.end {
            Some(wire::End { cause: wire::Cause::NeverStarted, error: Some(error), .. }) => {
                let more = format!("`kennel show {id}` tells more");
                Err(ApiError::never_started(error).hint_if_none(more))
            }
            Some(_) | None => Ok(run),
        }
    }

    fn not_admitted(
        &self,
        id: &str,
        refusal: &Refusal,
        claim: &Claim,
        request: &Request,
    ) -> ApiError {
        if *refusal != Refusal::IdTaken {
            self.remove_unused_dir(id);
        }
        ApiError::refused(refusal, claim, request.worktree.as_deref())
    }

    /// Only ever removes an empty one: a run's own is never empty once its keeper was there.
    fn remove_unused_dir(&self, id: &str) {
        let _ = std::fs::remove_dir(self.home.run_dir(id));
    }
}

impl Planned {
    /// Lowers its limits to what is left elsewhere; never raises one.
    fn hold_to(&mut self, left: &[limits::Left]) -> Result<(), ApiError> {
        for left in left {
            if let Some((kind, note)) = limits::lower(&mut self.request.limits, left)? {
                self.limits_from.insert(kind.to_owned(), format!("what {} has left", left.of));
                self.notes.push(note);
            }
        }
        Ok(())
    }
}

/// What the run would hold.
fn claim(id: &str, request: &wire::RunRequest) -> Result<(Claim, Option<String>), ApiError> {
    let slot = request.slot.as_deref().unwrap_or(id);
    check_slot(slot)?;
    let found = request.worktree.as_ref().map(|dir| worktree(Path::new(&dir.0))).transpose()?;
    let (key, path) = found.unzip();
    let worktree = key.as_deref().map(Into::into);
    Ok((Claim { slot: slot.into(), worktree, parent: None }, path))
}

/// A worktree by what it is, which no other name and no new name changes, and its path.
fn worktree(dir: &Path) -> Result<(String, String), ApiError> {
    let bad = |why: String| {
        ApiError::bad_request(format!("worktree {} cannot be used: {why}", dir.display()))
    };
    if !dir.is_absolute() {
        return Err(bad("it is not an absolute path".to_owned()));
    }
    let found = std::fs::canonicalize(dir).map_err(|e| bad(e.to_string()))?;
    let meta = std::fs::metadata(&found).map_err(|e| bad(e.to_string()))?;
    if !meta.is_dir() {
        return Err(bad("it is not a directory".to_owned()));
    }
    let path = found.into_os_string().into_string();
    let path = path.map_err(|_| bad("its name is not text".to_owned()))?;
    Ok((format!("{:x}:{:x}", meta.dev(), meta.ino()), path))
}

/// What a run is, for whoever finds it without a store that knows it: kept with its record. Left
/// out if it is too long to be kept there, as few commands are.
fn label(claim: &Claim, request: &Request) -> Option<String> {
    let mut label = Label::of(claim, request);
    label.request.notes.clear();
    let fits = |json: &String| json.len() <= MAX_LABEL_BYTES;
    if let Some(json) = serde_json::to_string(&label).ok().filter(fits) {
        return Some(json);
    }
    label.request.command.truncate(1);
    label.request.limits_from.clear();
    serde_json::to_string(&label).ok().filter(fits)
}

fn check_slot(slot: &str) -> Result<(), ApiError> {
    if slot.is_empty() || slot.len() > MAX_SLOT_BYTES || slot.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!(
            "slot {slot:?} is not a name: use 1 to {MAX_SLOT_BYTES} bytes, no control characters"
        )));
    }
    Ok(())
}

fn kept(id: &str, planned: &Planned, worktree: Option<&String>, boot: &str) -> Request {
    let request = &planned.request;
    let shown = |argument| redact_argument(argument, &request.env);
    Request {
        command: request.command.iter().map(shown).collect(),
        cwd: request.cwd.clone(),
        terminal: request.pty,
        stdin: request.stdin,
        limits: request.limits.clone(),
        format: request.format.clone(),
        worktree: worktree.cloned(),
        grace_ms: request.grace_ms.unwrap_or(DEFAULT_GRACE.as_millis() as u64),
        on_exit: on_exit(request.on_exit),
        at_ms: Time::now().0,
        boot: boot.to_owned(),
        parent: None,
        step: None,
        notify: request.notify,
        watch: request.watch.clone(),
        heartbeat_ms: request.heartbeat_ms,
        secrets: Secrets::of(&request.env, id),
        agent: planned.agent.clone(),
        limits_from: planned.limits_from.clone(),
        notes: planned.notes.clone(),
    }
}

fn on_exit(asked: wire::OnExit) -> OnExit {
    match asked {
        wire::OnExit::Sweep => OnExit::Sweep,
        wire::OnExit::Wait => OnExit::Wait,
    }
}

fn spec(run: RunId, request: wire::RunRequest, worktree: Option<String>) -> Result<Spec, ApiError> {
    let mut command = request.command.into_iter();
    let Some(program) = command.next() else {
        return Err(ApiError::bad_request("there is no command to run"));
    };
    // What was claimed is where it works, whatever a link is made to point to meanwhile.
    let in_worktree = request.worktree.as_ref() == Some(&request.cwd);
    let cwd = worktree.filter(|_| in_worktree).map_or(request.cwd.0.into(), PathBuf::from);
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
    spec.streams = match request.pty {
        true => {
            let size = request.size.map(|size| TerminalSize { rows: size.rows, cols: size.cols });
            Streams::Terminal { size: size.unwrap_or_default() }
        }
        false if request.stdin => Streams::Pipes { stdin: Stdin::Pipe },
        false => Streams::Pipes { stdin: Stdin::Closed },
    };
    spec.limits = limits::bounds(&request.limits);

    spec.on_exit = on_exit(request.on_exit);
    spec.grace = request.grace_ms.map_or(DEFAULT_GRACE, Duration::from_millis);
    spec.check().map_err(|e| ApiError::bad_request(e.to_string()))?;
    check_lengths(&spec)?;
    Ok(spec)
}

/// Refuses what no kernel takes as one argument or variable, before anything is kept of it.
fn check_lengths(spec: &Spec) -> Result<(), ApiError> {
    let most = rustix::param::page_size() * MAX_ARGUMENT_PAGES - 1;
    let arguments = std::iter::once(&spec.program).chain(&spec.args);
    let arguments = arguments.enumerate().map(|(n, arg)| (format!("argument {n}"), arg.len()));
    let variables = spec.env.set.iter().map(|(name, value)| {
        (format!("variable {}", name.display()), name.len() + 1 + value.len())
    });
    match arguments.chain(variables).find(|(_, length)| *length > most) {
        None => Ok(()),
        Some((what, length)) => {
            let message = format!("{what} is too long: it has {length} bytes and may have {most}");
            Err(ApiError::bad_request(message)
                .hint("that is the kernel's own bound: put it into a file and name that"))
        }
    }
}

/// Before the run is admitted: an intent whose directory is missing could not be told from one
/// that somebody deleted. Found there already if the same request came before.
async fn make_dir(app: &App, id: &str) -> Result<(), ApiError> {
    match app.home.make_run_dir(id) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            let message = format!("failed to make the run's directory: {e}");
            Err(ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_failed", message)
                .hint("make room in the home, or make it writable, and try again"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
