//! Limits of a run: which of them can be enforced, and where they stand.
//!
//! Owns: what makes a limit invalid, its share of the spec, and `GET /v1/runs/{run}/limits`. Holds
//! nobody to anything: that is the keeper's.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use kennel_process::{Bindings, Binds, Connection, LimitReached, Limits as Bounds, Spec};
use kennel_supervisor::{Unenforceable, story};
use kennel_transcript::files::{Belt, Chosen, belt, chosen_session};
use kennel_transcript::{Countable, Format, Sources, can_count};

use super::error::ApiError;
use super::{App, wire};
use crate::charge::Charge;
use crate::home::Home;
use crate::live::Live;
use crate::meter::{Account, FileAccount, Orders, own_prices};
use crate::random::uuid;
use crate::session;
use crate::store::format::{Ended, Request};
use crate::store::kept::KeptRun;

/// What is said of a run whose keeper is older than charges.
const CHILDREN_UNCOUNTED: &str =
    "its keeper is of an older kennel: what the runs it started use does not count for its limits";

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

/// Whose words the command speaks: what was said, else what its name says.
pub(super) fn format_of(request: &wire::RunRequest) -> Result<Option<Format>, ApiError> {
    match request.format.as_deref() {
        Some("none") => Ok(None),
        Some(name) => name
            .parse()
            .map(Some)
            .map_err(|e| ApiError::bad_request(format!("format {name:?} is {e}, or none"))),
        None => {
            let program = request.command.first().map(|program| std::path::Path::new(&program.0));
            let name = program.and_then(|path| path.file_name()?.to_str());
            Ok(name.and_then(Format::guess))
        }
    }
}

/// The first limit that nobody could enforce, and why.
pub(super) fn unenforceable(
    request: &wire::RunRequest,
    format: Option<Format>,
) -> Option<Unenforceable> {
    if request.unenforced_ok {
        return None;
    }
    by_words(&request.limits).into_iter().find_map(|(limit, _)| {
        let because = uncountable(request, format, limit)?;
        Some(Unenforceable { limit: limit.into(), because: because.as_str().into() })
    })
}

/// Why nobody could count what a limit in the agent's words bounds.
pub(super) fn uncountable(
    request: &wire::RunRequest,
    format: Option<Format>,
    limit: &str,
) -> Option<String> {
    let Some(format) = format else {
        let why = "nothing reads what this command says of itself: name its --format";
        return Some(why.to_owned());
    };
    let what = match limit {
        "max_budget_usd" => Countable::Money,
        "max_tokens" => Countable::Tokens,
        "max_tool_turns" | "max_turns" => Countable::ToolTurns,
        _ => return None,
    };
    let basis = match can_count(format, what) {
        Ok(basis) => basis,
        Err(why) => return Some(why.to_owned()),
    };
    let from_files = basis.from == Sources::Files || request.pty;
    let unknown = match chosen_session(format, &argv(request)) {
        Chosen::Resumed(None) => true,
        // What a terminal shows does not tell the id of a copy.
        Chosen::Forked { id: None, .. } => request.pty,
        Chosen::Resumed(Some(_))
        | Chosen::Forked { id: Some(_), .. }
        | Chosen::Insert { .. }
        | Chosen::Already(_)
        | Chosen::Client(_) => false,
    };
    (from_files && unknown).then(|| {
        "what an older session used before cannot be told apart: name the session to resume"
            .to_owned()
    })
}

/// The session that a client is told to work in.
pub(super) struct NamedSession {
    format: Format,
    id: String,
}

impl NamedSession {
    /// Of a request that does not take counting lightly.
    pub(super) fn of(request: &wire::RunRequest, format: Option<Format>) -> Option<Self> {
        let format = format.filter(|_| !request.unenforced_ok)?;
        let id = session::named(chosen_session(format, &argv(request)))?;
        Some(Self { format, id })
    }

    /// Refuses it if a live run works in it: both would be charged for what either uses.
    pub(super) fn check(&self, live: &Live) -> Result<(), ApiError> {
        let Self { format, id } = self;
        let Some(holder) = session::holder(live, *format, id) else { return Ok(()) };
        let message =
            format!("run {holder} works in session {id}: what either uses would count twice");
        let hint = "wait for its end, stop it, or fork the session; --unenforced-ok starts it \
                    all the same";
        Err(ApiError::new(StatusCode::CONFLICT, "session_in_use", message).hint(hint))
    }
}

/// Limits without those in an agent's words that are not wanted.
pub(super) fn only(limits: &wire::Limits, wanted: impl Fn(&str) -> bool) -> wire::Limits {
    wire::Limits {
        max_turns: limits.max_turns.filter(|_| wanted("max_turns")),
        max_tool_turns: limits.max_tool_turns.filter(|_| wanted("max_tool_turns")),
        max_budget_usd: limits.max_budget_usd.filter(|_| wanted("max_budget_usd")),
        max_tokens: limits.max_tokens.filter(|_| wanted("max_tokens")),
        finish_ms: limits.finish_ms.filter(|_| wanted("finish")),
        ..limits.clone()
    }
}

fn argv(request: &wire::RunRequest) -> Vec<String> {
    request.command.iter().map(|arg| arg.0.to_string_lossy().into_owned()).collect()
}

/// Has the run counted: what its meter is told, and what its command line has to say for that.
pub(super) fn count(
    spec: &mut Spec,
    kept: &Request,
    format: Option<Format>,
    home: &Home,
) -> Result<(), ApiError> {
    let Some(format) = format else { return Ok(()) };
    let request = &kept.limits;
    let prices = match own_prices(&home.prices()) {
        Ok(prices) => prices,
        Err(e) if request.max_budget_usd.is_some() => {
            let message = format!("{} does not read: {e}", home.prices().display());
            return Err(ApiError::bad_request(message).hint(
                "it is an object of models, each with \"in\" and \"out\" per million tokens",
            ));
        }
        Err(e) => {
            tracing::warn!("{} does not read and is left out: {e}", home.prices().display());
            None
        }
    };
    let words = |spec: &Spec| -> Vec<String> {
        let all = std::iter::once(&spec.program).chain(&spec.args);
        all.map(|arg| arg.to_string_lossy().into_owned()).collect()
    };
    let named = !by_words(request).is_empty() || kept.agent.is_some();
    let (session, resumed) = match chosen_session(format, &words(spec)) {
        // Left as it is unless something depends on it: a command is the user's own. An agent's is
        // made by us, and its session may have to go on.
        Chosen::Insert { at, flag } if named => {
            let id =
                uuid().map_err(|e| ApiError::internal(format!("failed to make an id: {e}")))?;
            insert(spec, at, [flag.to_owned(), id.clone()]);
            (Some(id), false)
        }
        Chosen::Insert { .. } | Chosen::Client(_) => (None, false),
        Chosen::Already(id) => (Some(id), false),
        Chosen::Resumed(id) | Chosen::Forked { from: _, id } => (id, true),
    };
    let (at, belt) = belt(format, &words(spec), &looser(request));
    insert(spec, at, belt);
    let tool_turns = request.max_tool_turns.map(|max| ("max_tool_turns".to_owned(), max));
    let orders = Orders {
        format: format.to_string(),
        session,
        resumed,
        turns: tool_turns.or(request.max_turns.map(|max| ("max_turns".to_owned(), max))),
        usd: request.max_budget_usd,
        tokens: request.max_tokens,
        finish: request.finish_ms.map(|ms| ms as f64 / 1000.0),
        idle_tools: request.idle_tools,
        prices,
    };
    let json = serde_json::to_string(&orders);
    spec.meter = Some(json.map_err(|e| ApiError::internal(e.to_string()))?);
    Ok(())
}

/// The client's own limits, so much above ours that ours decide: it counts narration too, and
/// checks after the fact.
fn looser(limits: &wire::Limits) -> Belt {
    const TURNS_PER_TOOL_TURN: u64 = 4;
    const MORE_TURNS: u64 = 50;
    const MORE_MONEY: f64 = 1.5;
    /// A number that every client reads; no more than this is ever spent.
    const MOST_MONEY: f64 = 1e9;
    let turns = limits.max_tool_turns.or(limits.max_turns);
    Belt {
        turns: turns.map(|n| n.saturating_mul(TURNS_PER_TOOL_TURN).saturating_add(MORE_TURNS)),
        // Codex alone has one, and calls it under development: its settings change, and where one
        // is missing it refuses to start.
        tokens: None,
        usd: limits.max_budget_usd.map(|usd| (usd * MORE_MONEY).min(MOST_MONEY)),
    }
}

/// Inserts words into a command line whose first is the program.
fn insert(spec: &mut Spec, at: usize, words: impl IntoIterator<Item = String>) {
    let at = at.saturating_sub(1).min(spec.args.len());
    spec.args.splice(at..at, words.into_iter().map(Into::into));
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
    let ask =
        app.talks.talk(move || Connection::open(&dir).and_then(|mut keeper| keeper.status()).ok());
    let status = ask.await?;
    let mut known = status.as_ref().map(|status| status.limits.clone()).unwrap_or_default();
    known.extend(reached(&run));
    let told = status.as_ref().and_then(|status| status.usage.clone());
    let account = told.or_else(|| run.usage_at_end());
    let account = account.and_then(|json| serde_json::from_str::<Account>(&json).ok());
    known.extend(counted(account.as_ref(), &run.request.limits));
    let children = account.as_ref().and_then(|account| account.children);
    let warned = status.as_ref().map(|status| status.warned.clone()).unwrap_or_default();
    let failed = status.and_then(|status| status.meter_trouble);
    let trouble = failed.or_else(|| account.as_ref().and_then(|account| account.trouble.clone()));
    let deaf = app.charges.is_refused_by(&run.id).then(|| CHILDREN_UNCOUNTED.to_owned());
    let trouble = trouble.or(deaf);
    let unconfirmed = account.as_ref().map_or(0, |account| account.unconfirmed);
    let files_by_timer = account.as_ref().and_then(|account| account.by_timer.clone());
    let files = account.map(|account| files_of(account.followed)).unwrap_or_default();
    let limits = asked_for(&run.request.limits)
        .into_iter()
        .map(|(kind, max)| {
            let used = known.iter().find(|limit| limit.kind == kind).map(|limit| limit.used);
            let (source, binds, because) = meaning(kind, run.started.as_ref().map(|s| &s.binds));
            let (source, binds) = (source.to_owned(), binds.to_owned());
            let from = run.request.limits_from.get(kind).cloned();
            let from = from.unwrap_or_else(|| "the caller".to_owned());
            let warned = warned.iter().any(|limit| limit.kind == kind);
            let children = children.and_then(|children| children.toward(kind));
            let kind = kind.to_owned();
            wire::LimitStanding { kind, used, children, max, from, source, binds, because, warned }
        })
        .collect();
    Ok(Json(wire::LimitsReport { limits, trouble, unconfirmed, files, files_by_timer }))
}

/// Where each of a client's files stands.
pub(super) fn files_of(accounts: Vec<FileAccount>) -> Vec<wire::FollowedFile> {
    let shown = |file: FileAccount| wire::FollowedFile {
        path: file.path,
        state: file.state,
        subagent: file.subagent,
    };
    accounts.into_iter().map(shown).collect()
}

/// What the meter counted, by the names of limits, that of descendants included.
fn counted(account: Option<&Account>, limits: &wire::Limits) -> Vec<LimitReached> {
    let Some(account) = account else { return Vec::new() };
    let below = account.children.unwrap_or_default();
    let used = |kind: &str| {
        let own = match kind {
            "max_turns" | "max_tool_turns" => account.tool_turns as f64,
            // What nobody can price is not nothing, unless somebody below has a price.
            "max_budget_usd" if account.children.is_some() => account.cost_usd.unwrap_or(0.0),
            "max_budget_usd" => account.cost_usd?,
            "max_tokens" => account.tokens.all() as f64,
            _ => return None,
        };
        Some(own + below.toward(kind).unwrap_or(0.0))
    };
    let limits = by_words(limits).into_iter();
    limits
        .filter_map(|(kind, max)| {
            Some(LimitReached { kind: kind.to_owned(), used: used(kind)?, max })
        })
        .collect()
}

/// A limit of a run above, or of its story, and what is left of it.
pub(super) struct Left {
    kind: &'static str,
    /// Whose: `run ID` or `story ID`.
    pub(super) of: String,
    left: f64,
}

/// What is left of the ceilings of a story.
pub(super) fn left_of_story(story: &str, left: &story::Left) -> Vec<Left> {
    let of = || format!("story {story}");
    let turns = left.turns.map(|n| Left { kind: "max_turns", of: of(), left: n as f64 });
    let usd = left.money_micros.map(|micros| micros as f64 / crate::story::MICROS);
    let usd = usd.map(|usd| Left { kind: "max_budget_usd", of: of(), left: usd });
    turns.into_iter().chain(usd).collect()
}

/// What is left of each limit that holds for whatever this run starts.
pub(super) fn left(app: &App, run: &KeptRun) -> Vec<Left> {
    let own = run.usage_now().and_then(|json| Charge::of(&json)).unwrap_or_default();
    let below = app.charges.below(&run.id);
    let by_words = by_words(&run.request.limits).into_iter();
    by_words
        .filter_map(|(kind, max)| {
            let used = own.toward(kind)? + below.toward(kind)?;
            Some(Left { kind, of: format!("run {}", run.id), left: max - used })
        })
        .collect()
}

/// The same limits, none of them above what is left: and which was lowered, from what. An error if
/// nothing is left.
pub(super) fn lower(
    limits: &mut wire::Limits,
    left: &Left,
) -> Result<Option<(&'static str, String)>, ApiError> {
    let kind = left.kind;
    let whole = left.left.floor().max(0.0) as u64;
    let used_up = || {
        let message = format!("{} has nothing left of its limit {kind}", left.of);
        ApiError::new(StatusCode::CONFLICT, "limit_used_up", message)
    };
    if left.left <= 0.0 || (whole == 0 && kind != "max_budget_usd") {
        return Err(used_up());
    }
    let told = |kind, before: Option<String>, now: String| {
        let before = before.unwrap_or_else(|| "none".to_owned());
        let note = format!("limit {kind} is {now}, not {before}: that is left of {}'s", left.of);
        Some((kind, note))
    };
    let count = |kind, limit: &mut Option<u64>| {
        let before = *limit;
        if before.is_some_and(|max| max <= whole) {
            return None;
        }
        *limit = Some(whole);
        told(kind, before.map(|max| max.to_string()), whole.to_string())
    };
    Ok(match kind {
        // The one that counts, if both are given.
        "max_turns" | "max_tool_turns" if limits.max_turns.is_some() => {
            match limits.max_tool_turns {
                Some(_) => count("max_tool_turns", &mut limits.max_tool_turns),
                None => count("max_turns", &mut limits.max_turns),
            }
        }
        "max_turns" | "max_tool_turns" => count("max_tool_turns", &mut limits.max_tool_turns),
        "max_tokens" => count("max_tokens", &mut limits.max_tokens),
        _ => match limits.max_budget_usd {
            Some(max) if max <= left.left => None,
            before => {
                limits.max_budget_usd = Some(left.left);
                told("max_budget_usd", before.map(|max| max.to_string()), left.left.to_string())
            }
        },
    })
}

/// The limit that ended a run.
fn reached(run: &KeptRun) -> Option<LimitReached> {
    match run.ended.as_deref() {
        Some(Ended::Recorded(end)) => match &end.cause {
            kennel_process::Cause::Limit(limit) => Some(limit.clone()),
            kennel_process::Cause::Oom(limit) => limit.clone(),
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

/// What is counted for a limit, how it binds, and why no harder.
fn meaning(kind: &str, binds: Option<&Bindings>) -> (&'static str, &'static str, Option<String>) {
    let sampled = |source, binds: Option<&Binds>| {
        let because = binds.and_then(|binds| match binds {
            Binds::Sampled { because } => Some(because.clone()),
            Binds::Hard { .. } => None,
        });
        (source, "sampled", because)
    };
    let hard = |binds: Option<&Binds>| matches!(binds, Some(Binds::Hard { .. }));
    let (memory, pids) =
        (binds.and_then(|b| b.memory.as_ref()), binds.and_then(|b| b.pids.as_ref()));
    match kind {
        "wall" => ("time since the start, suspend included", "hard", None),
        "idle" => ("output, transcript and processor time", "sampled", None),
        "output" => ("bytes as they are written", "hard", None),
        "memory" if hard(memory) => ("memory of the run's cgroup, by the kernel", "hard", None),
        "memory" => sampled("memory of each process that is its own, four times a second", memory),
        "pids" if hard(pids) => ("processes and threads, by the kernel", "hard", None),
        "pids" => sampled("processes and threads, four times a second", pids),
        _ => ("the agent's own words", "estimate", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_lowered_to_what_is_left_and_never_raised() {
        let left = |kind, left| Left { kind, of: "p".to_owned(), left };
        let mut limits = wire::Limits { max_turns: Some(9), ..wire::Limits::default() };
        assert!(lower(&mut limits, &left("max_tool_turns", 9.0)).is_ok_and(|told| told.is_none()));
        assert!(lower(&mut limits, &left("max_turns", 4.0)).is_ok_and(|told| told.is_some()));
        assert_eq!((limits.max_turns, limits.max_tool_turns), (Some(4), None));
        limits.max_tool_turns = Some(7);
        assert!(lower(&mut limits, &left("max_turns", 5.0)).is_ok_and(|told| told.is_some()));
        assert_eq!((limits.max_turns, limits.max_tool_turns), (Some(4), Some(5)));
        assert!(lower(&mut limits, &left("max_budget_usd", 0.5)).is_ok_and(|told| told.is_some()));
        assert!(lower(&mut limits, &left("max_budget_usd", 2.0)).is_ok_and(|told| told.is_none()));
        assert_eq!(limits.max_budget_usd, Some(0.5));
        for (kind, left_over) in [("max_tokens", 0.4), ("max_budget_usd", 0.0), ("max_turns", -1.0)]
        {
            let refused = lower(&mut limits, &left(kind, left_over));
            assert_eq!(
                refused.err().map(|e| e.code().to_owned()),
                Some("limit_used_up".to_owned())
            );
        }
    }
}
