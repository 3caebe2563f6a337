//! What a request means under the configuration: an agent's name becomes a command, and the user's
//! caps and the profile become limits.
//!
//! Owns: the order of these and the codes they are refused with. Everything it decides by is looked
//! up once, before the run is admitted; a run keeps what it was started with.

use std::collections::BTreeMap;
use std::path::Path;

use axum::http::StatusCode;
use kennel_process::Signal;

use super::error::ApiError;
use super::{App, limits, wire};
use crate::config::argv::{Session, words};
use crate::config::merge::{Source, merge};
use crate::config::project::ProjectError;
use crate::config::settings::{ConfigError, Found, InForce, Settings};
use crate::config::trust::sha256;
use crate::config::{Agent, Starts};
use crate::live::Live;
use crate::store::format::AgentOf;
use crate::store::kept::KeptRun;
use crate::text::Text;

/// A request as it is carried out, and where that came from.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) request: wire::RunRequest,
    pub(super) agent: Option<AgentOf>,
    /// How many of that agent may live at once.
    max_instances: Option<u32>,
    /// What asks it to end, if its profile says so.
    pub(super) gentle_signal: Option<Signal>,
    pub(super) limits_from: BTreeMap<String, String>,
    pub(super) notes: Vec<String>,
}

/// What was asked for in these words, so that the same can be known again when configuration has
/// changed meanwhile. The environment is left out, as it is wherever requests are compared.
pub(super) fn digest(request: &wire::RunRequest) -> Result<String, ApiError> {
    let plain = wire::RunRequest { id: None, env: Vec::new(), ..request.clone() };
    let json = serde_json::to_vec(&plain).map_err(|e| ApiError::internal(e.to_string()))?;
    Ok(sha256(&json))
}

/// Plans a request. Reads files, in a thread that may wait. Its agent may have been found already,
/// whatever file is above the directory it works in:
/// a worktree's is written by agents. Without one it is found by its name, as ever.
pub(super) async fn plan_with(
    app: &App,
    request: wire::RunRequest,
    found: Option<Found>,
) -> Result<Planned, ApiError> {
    let settings = app.settings.clone();
    let planned = tokio::task::spawn_blocking(move || planned(&settings, request, found));
    planned.await.map_err(|_| ApiError::leaving())?
}

fn planned(
    settings: &Settings,
    request: wire::RunRequest,
    found: Option<Found>,
) -> Result<Planned, ApiError> {
    let now = settings.in_force()?;
    let (found, notes) = match (found, request.agent.as_deref()) {
        (None, None) => return plain(&now, request),
        (Some(_), _) | (None, Some(_)) if !request.command.is_empty() => {
            let message = "an agent has its own command: say what to do as prompt";
            return Err(ApiError::bad_request(message));
        }
        (Some(found), _) => (found, Vec::new()),
        (None, Some(name)) => settings.agent(&now, name, Path::new(&request.cwd.0))?,
    };
    by_agent(&now, found, notes, request)
}

/// A command of the caller's own: only the caps are above it. Those that need its own words bind if
/// there is anybody to read them; `make` has none.
fn plain(now: &InForce, mut request: wire::RunRequest) -> Result<Planned, ApiError> {
    if request.prompt.is_some() || request.resume.is_some() {
        let message = "prompt and resume are for an agent: name one, or give a command";
        return Err(ApiError::bad_request(message));
    }
    let format = limits::format_of(&request)?;
    let countable = |kind: &str| limits::uncountable(&request, format, kind).is_none();
    let caps = limits::only(&now.user.caps, countable);
    let who = cap_of(now);
    let merged = merge(Source { who: &who, limits: &caps }, None, &request.limits);
    let merged = merged.map_err(|raised| above(&raised, now))?;
    request.limits = merged.limits;
    over(&mut request.env, std::mem::take(&mut request.set_env));
    let (limits_from, notes) = (merged.from, now.notes.clone());
    Ok(Planned {
        request,
        agent: None,
        max_instances: None,
        gentle_signal: None,
        limits_from,
        notes,
    })
}

fn by_agent(
    now: &InForce,
    found: Found,
    mut notes: Vec<String>,
    mut request: wire::RunRequest,
) -> Result<Planned, ApiError> {
    let asked = digest(&request)?;
    notes.splice(0..0, now.notes.clone());
    let Found { agent, file } = found;
    let name = agent.name.as_str();
    let dir = file.parent().unwrap_or(Path::new("/"));
    let session = request.resume.as_deref().map_or(Session::New, Session::Resumed);
    let command = words(&agent, dir, session, request.prompt.as_deref());
    let command = command.map_err(|why| ApiError::bad_request(format!("agent {name}: {why}")))?;
    request.command = command.into_iter().map(|word| Text(word.into())).collect();
    request.format = request.format.or_else(|| format_of(&agent));
    let grace = agent.grace.map(|grace| grace.as_millis() as u64);
    request.grace_ms = request.grace_ms.or(grace);
    let env = agent.env.iter().map(|(name, value)| (Text(name.into()), Text(value.into())));
    over(&mut request.env, env.collect());
    over(&mut request.env, std::mem::take(&mut request.set_env));

    let (cap, own) = (cap_of(now), format!("agent {name} in {}", file.display()));
    let own = Source { who: &own, limits: &agent.limits };
    let cap = Source { who: &cap, limits: &now.user.caps };
    let merged = merge(cap, Some(own), &request.limits).map_err(|raised| above(&raised, now))?;
    request.limits = merged.limits;
    notes.extend(merged.lowered);
    let file = file.display().to_string();
    Ok(Planned {
        request,
        agent: Some(AgentOf { name: agent.name, file, asked }),
        max_instances: agent.max_instances,
        gentle_signal: Some(agent.gentle_signal),
        limits_from: merged.from,
        notes,
    })
}

impl Planned {
    /// Finds room for one more of an agent: its first slot that is free, if none was asked for.
    /// Called by one start at a time, until that is admitted: else two would find the same room.
    pub(super) fn find_room(&mut self, live: &Live) -> Result<(), ApiError> {
        let Some(AgentOf { name, file, .. }) = &self.agent else { return Ok(()) };
        let is_one = |run: &KeptRun| {
            run.request.agent.as_ref().is_some_and(|own| own.name == *name && own.file == *file)
        };
        let alive = live.all().iter().filter(|run| is_one(run)).count();
        if let Some(most) = self.max_instances.filter(|most| alive >= *most as usize) {
            let message = format!("agent {name} has {alive} live runs, and may have {most}");
            let hint = format!("stop one, or raise max_instances in {file}");
            return Err(ApiError::new(StatusCode::CONFLICT, "agent_busy", message).hint(hint));
        }
        let more = (2..=self.max_instances.unwrap_or(1)).map(|n| format!("{name}.{n}"));
        let free = || {
            let mut slots = std::iter::once(name.clone()).chain(more);
            slots.find(|slot| live.in_slot(slot).is_none()).unwrap_or_else(|| name.clone())
        };
        self.request.slot.get_or_insert_with(free);
        Ok(())
    }
}

fn format_of(agent: &Agent) -> Option<String> {
    match &agent.starts {
        Starts::Command { format, .. } => format.clone(),
        Starts::Client { client, .. } => Some(client.word().to_owned()),
    }
}

/// Sets variables over those that are there.
fn over(env: &mut Vec<(Text, Text)>, set: Vec<(Text, Text)>) {
    env.retain(|(name, _)| !set.iter().any(|(other, _)| other == name));
    env.extend(set);
}

fn cap_of(now: &InForce) -> String {
    format!("the cap in {}", now.user_file.display())
}

fn above(raised: &crate::config::merge::Raised, now: &InForce) -> ApiError {
    let hint = format!(
        "a caller can only lower it: leave it out, or change the file ({} has the caps)",
        now.user_file.display()
    );
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "limit_above_cap", raised.to_string())
        .hint(hint)
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        let (status, code, hint) = match &error {
            ConfigError::Invalid(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "config_invalid",
                "`kennel config check` shows all of it; nothing is started without it".to_owned(),
            ),
            ConfigError::Untrusted { file, .. } => (
                StatusCode::FORBIDDEN,
                "config_untrusted",
                format!("read it, then `kennel trust {}`", file.display()),
            ),
            ConfigError::NoFile { file } => (
                StatusCode::NOT_FOUND,
                "config_not_found",
                format!(
                    "`kennel init` writes one with examples, then `kennel trust {}`",
                    file.display()
                ),
            ),
            ConfigError::Project(ProjectError::NotInRepository(_)) => (
                StatusCode::NOT_FOUND,
                "not_a_repository",
                "stories belong to a repository of git: go to one, or name it".to_owned(),
            ),
            ConfigError::Project(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "repository_unreadable",
                "`git status` there says what git makes of it".to_owned(),
            ),
            ConfigError::NoSuchAgent { .. } => (
                StatusCode::NOT_FOUND,
                "agent_not_found",
                "agents are [[agent]] in kennel.toml; `kennel init` writes one with examples"
                    .to_owned(),
            ),
            ConfigError::Trust(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "trust_unreadable",
                "nothing of a repository's file is used until that reads".to_owned(),
            ),
        };
        Self::new(status, code, error.to_string()).hint(hint)
    }
}
