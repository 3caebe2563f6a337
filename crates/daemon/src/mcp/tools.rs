//! What each tool does, over the same functions as the API's routes.
//!
//! Owns: the answers, each in a sentence or two and as data. Decides nothing: a refusal is the
//! mind's, or the caller's lack of kin. A time that is over is an answer and not an error.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::{FutureExt, join_all, select_all};
use kennel_process::{Connection, ConnectionError, RefusalCode};
use kennel_supervisor::Stop;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::caller::{Caller, own_of};
use super::inputs::{self, Command, Cursors};
use super::reading::{Piece, Source, bounded, name_of, streams_of};
use super::say;
use crate::api::error::ApiError;
use crate::api::input::{give, refused};
use crate::api::output::written;
use crate::api::start::begin;
use crate::api::view::view;
use crate::api::{App, wire};
use crate::random::new_run_id;
use crate::redact::redact_argument;
use crate::store::format::Request;
use crate::store::kept::{KeptRun, Standing};
use crate::store::{Page, Wanted};
use crate::text::Text;

/// How many runs a listing gives if nobody says.
const USUAL_LISTED: u32 = 50;
/// How many it gives at most.
const MAX_LISTED: u32 = 500;
/// How many runs are looked at for those that are the caller's.
const MAX_LOOKED_AT: usize = 10_000;
/// How many of them in one go: an agent is seldom older than so many runs.
const LOOKED_AT_AT_ONCE: usize = 256;
/// How many runs one call may name: each is watched.
const MAX_NAMED: usize = 64;
/// How long `wait` and `stop` wait if nobody says: shorter than any client gives a tool.
const USUAL_WAIT: Duration = Duration::from_secs(30);
/// How long they wait at most.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// How long `poll` waits at most.
const LONGEST_POLL: Duration = Duration::from_secs(60);
/// How long a run may take to read the rest of its input before `close` says that it has not.
const CLOSE_BOUND: Duration = Duration::from_secs(1);
/// Pause between two looks whether it has.
const CLOSE_PAUSE: Duration = Duration::from_millis(10);
/// How many notices are given if nobody says.
const USUAL_NOTICES: u32 = 20;
/// How many are given at most: each may have the end of an output with it.
const MAX_NOTICES: u32 = 100;
/// How many are looked at in one go for those that are the caller's.
const NOTICES_AT_ONCE: usize = 256;
/// Who reads if the user does not say.
const USERS_CONSUMER: &str = "mcp";
/// How often a slot that was taken and is free a moment later is tried again.
const SLOT_TRIES: u32 = 3;

/// What a tool answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) value: Value,
}

/// Whose call it is, and what a run it starts inherits.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) around: Around,
}

/// Where a caller is.
#[derive(Clone, Debug)]
pub(super) struct Around {
    pub(super) cwd: Text,
    pub(super) env: Vec<(Text, Text)>,
    /// What to say of it, if it is not the caller's own.
    pub(super) note: Option<&'static str>,
}

type Answered = Result<Answer, ApiError>;

impl Call {
    pub(super) async fn start(&self, input: inputs::Start) -> Answered {
        let mut tries = 1;
        loop {
            match self.start_once(&input).await {
                Err(e) if e.code() == "slot_taken" => match self.already(&input).await? {
                    Taken::Same(run) => return Ok(self.started(&input, &view(&run), Some(&run))),
                    Taken::Nobody if tries < SLOT_TRIES => tries += 1,
                    Taken::Nobody | Taken::Other => return Err(e),
                },
                started => return Ok(self.started(&input, &started?, None)),
            }
        }
    }

    async fn start_once(&self, input: &inputs::Start) -> Result<wire::Run, ApiError> {
        let id =
            new_run_id().map_err(|e| ApiError::internal(format!("failed to make an id: {e}")))?;
        let request = wire::RunRequest {
            id: Some(id.clone()),
            command: words(&input.command)?,
            agent: None,
            prompt: None,
            resume: None,
            cwd: input.cwd.as_ref().map_or_else(|| self.around.cwd.clone(), text),
            env: self.environment(&input.env)?,
            set_env: Vec::new(),
            slot: input.slot.clone(),
            worktree: None,
            pty: input.pty,
            size: None,
            stdin: input.stdin,
            limits: input.limits.wire(),
            format: input.format.clone(),
            unenforced_ok: false,
            grace_ms: input.grace_ms,
            on_exit: wire::OnExit::Sweep,
            notify: input.notify.wire(),
            watch: input.watch.iter().map(inputs::Watch::wire).collect(),
            heartbeat_ms: input.heartbeat_ms,
        };
        let parent = match &self.caller {
            Caller::User => None,
            // Nobody would be charged for it, and nobody's end would be its own.
            Caller::Run(own) if self.app.live.get(own).is_none() => {
                let message = format!("run {own}, which you come from, is over");
                return Err(ApiError::new(StatusCode::CONFLICT, "parent_ending", message)
                    .hint("start it from outside of any run, as yourself"));
            }
            Caller::Run(own) => Some(own.clone()),
        };
        // To its end, also if nobody waits for the answer any more.
        let app = self.app.clone();
        let begun = tokio::spawn(async move { begin(&app, request, parent).await });
        begun.await.map_err(|_| ApiError::leaving())?
    }

    fn environment(&self, more: &BTreeMap<String, String>) -> Result<Vec<(Text, Text)>, ApiError> {
        if let Some(name) = more.keys().find(|name| name.is_empty() || name.contains('=')) {
            let message = format!("env: {name:?} is not the name of a variable");
            return Err(ApiError::bad_request(message));
        }
        let own = self
            .around
            .env
            .iter()
            .filter(|(name, _)| name.0.to_str().is_none_or(|name| !more.contains_key(name)));
        let more = more.iter().map(|(name, value)| (text(name), text(value)));
        Ok(own.cloned().chain(more).collect())
    }

    /// Who has the slot.
    async fn already(&self, input: &inputs::Start) -> Result<Taken, ApiError> {
        let holder = input.slot.as_deref().and_then(|slot| self.app.live.in_slot(slot));
        let Some(run) = holder else { return Ok(Taken::Nobody) };
        let cwd = input.cwd.as_ref().map_or_else(|| self.around.cwd.clone(), text);
        let env = self.environment(&input.env)?;
        let asked = words(&input.command)?;
        let asked: Vec<Text> = asked.iter().map(|word| redact_argument(word, &env)).collect();
        // What is being stopped does not do it any more.
        let lives = matches!(run.state, Standing::Starting | Standing::Running);
        let same = lives && run.request.command == asked && run.request.cwd == cwd;
        if same && self.app.sees(&self.caller, &run).await? {
            return Ok(Taken::Same(Box::new(run)));
        }
        Ok(Taken::Other)
    }

    fn started(&self, input: &inputs::Start, run: &wire::Run, known: Option<&KeptRun>) -> Answer {
        let already = known.is_some();
        let mut ignored = Vec::new();
        if input.stdin && input.pty {
            ignored.push("stdin: a terminal always has an input".to_owned());
        }
        let left = known.map(|known| left_as_it_was(input, &known.request)).unwrap_or_default();
        if !left.is_empty() {
            let left = left.join(", ");
            ignored.push(format!("{left}: it runs already, with what it was started with"));
        }
        let mut value = say::brief(run);
        value["already_running"] = already.into();
        value["ignored"] = json!(ignored);
        let mut text = match already {
            true => format!("Run {} does that already in slot {}.", run.id, run.slot),
            false => format!("Started run {} in slot {}.", run.id, run.slot),
        };
        if let Some(because) = &run.containment_because {
            let grade = run.containment.as_deref().unwrap_or("nothing");
            text.push_str(&format!(" It is held together by {grade} only: {because}."));
        }
        let around = self.around.note.filter(|_| !already).map(str::to_owned);
        let notes: Vec<String> = run.notes.iter().cloned().chain(around).collect();
        text.extend(notes.iter().map(|note| format!(" Note: {note}.")));
        value["notes"] = json!(notes);
        for what in ignored {
            text.push_str(&format!(" Ignored: {what}."));
        }
        Answer { text, value }
    }

    pub(super) async fn list(&self, input: inputs::List) -> Answered {
        let most = input.limit.unwrap_or(USUAL_LISTED).clamp(1, MAX_LISTED) as usize;
        let mut own = match (&self.caller, input.live) {
            (Caller::User, true) => self.app.live.all(),
            (Caller::User, false) => {
                self.app.store.list(Page { before: None, limit: most + 1 }).await?
            }
            (Caller::Run(own), live) => {
                let mut seen = self.started_by(own).await?;
                seen.retain(|run| !live || self.app.live.get(&run.id).is_some());
                seen
            }
        };
        let more = own.len() > most;
        own.truncate(most);
        // What is known already and the store cannot take yet.
        let now = |run: KeptRun| self.app.live.get(&run.id).unwrap_or(run);
        let runs = self.shown(own.into_iter().map(now).collect()).await?;
        let lines: Vec<String> = runs.iter().map(say::line).collect();
        let mut text = if lines.is_empty() { "No runs.".to_owned() } else { lines.join("\n") };
        if more {
            text.push_str("\nOlder ones are left out.");
        }
        let runs: Vec<Value> = runs.iter().map(say::brief).collect();
        Ok(Answer { text, value: json!({"runs": runs, "more": more}) })
    }

    /// What a run started, and what those started, newest first. None of it is older than the run.
    async fn started_by(&self, own: &str) -> Result<Vec<KeptRun>, ApiError> {
        let own = self.app.known(own).await?;
        let selves = self.app.selves(&own).await?;
        let oldest = match selves.last() {
            Some(id) => self.app.known(id).await?.request.at_ms,
            None => own.request.at_ms,
        };
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let page = self.app.store.list(Page { before, limit: LOOKED_AT_AT_ONCE }).await?;
            let whole = page.len() == LOOKED_AT_AT_ONCE;
            all.extend(page);
            before = all.last().map(|run: &KeptRun| (run.request.at_ms, run.id.to_string()));
            let older = before.as_ref().is_some_and(|(at, _)| *at < oldest);
            if !whole || older || all.len() >= MAX_LOOKED_AT {
                return Ok(own_of(&selves, all));
            }
        }
    }

    /// Runs with what they wrote.
    async fn shown(&self, runs: Vec<KeptRun>) -> Result<Vec<wire::Run>, ApiError> {
        let home = self.app.home.clone();
        let look = tokio::task::spawn_blocking(move || {
            let shown = |run: &KeptRun| wire::Run { output: written(&home, run), ..view(run) };
            runs.iter().map(shown).collect()
        });
        look.await.map_err(|_| ApiError::leaving())
    }

    pub(super) async fn poll(&self, input: inputs::Poll) -> Answered {
        let run = self.app.seen(&self.caller, &input.run).await?;
        let most = bounded(input.max_bytes);
        let mut pieces = self.pieces(&run, input.cursors, most).await?;
        let nothing = pieces.iter().all(|piece| piece.from == piece.to);
        let wait = Duration::from_millis(input.wait_ms).min(LONGEST_POLL);
        if nothing && !wait.is_zero() && !run.is_over() {
            self.until_more(&run, input.cursors, wait).await?;
            pieces = self.pieces(&run, input.cursors, most).await?;
        }
        // After the look: what is said to be over wrote nothing more, unless it is asked for below.
        let now = self.app.known(&run.id).await?;
        if now.ended.is_some() && run.ended.is_none() {
            pieces = self.pieces(&now, input.cursors, most).await?;
        }
        let shown = view(&now);
        let cursors: BTreeMap<&str, u64> = pieces.iter().map(|p| (p.stream, p.to)).collect();
        let more = pieces.iter().any(|piece| piece.left_out_after > 0);
        let mut value = say::brief(&shown);
        value["output"] = json!(pieces);
        value["cursors"] = json!(cursors);
        value["more"] = more.into();
        let mut text = say::sentence(&shown);
        say::add_pieces(&mut text, &pieces);
        text.push_str(&format!("\ncursors: {}", json!(cursors)));
        Ok(Answer { text, value })
    }

    async fn pieces(
        &self,
        run: &KeptRun,
        cursors: Cursors,
        most: usize,
    ) -> Result<Vec<Piece>, ApiError> {
        let mut pieces = Vec::new();
        for stream in streams_of(run) {
            let source = Source { app: &self.app, run, stream: *stream };
            pieces.push(source.from(cursors.of(*stream), most).await?);
        }
        Ok(pieces)
    }

    /// Waits for output behind these offsets, or the end.
    async fn until_more(
        &self,
        run: &KeptRun,
        cursors: Cursors,
        bound: Duration,
    ) -> Result<(), ApiError> {
        let more = streams_of(run).iter().map(|stream| {
            let reading = crate::api::output::Reading {
                dir: self.app.home.run_dir(&run.id),
                stream: *stream,
                offset: cursors.of(*stream),
            };
            let (app, id) = (&self.app, &run.id);
            async move { reading.wait(app, id).await.map(drop) }.boxed()
        });
        let mut leaving = self.app.leaving.clone();
        tokio::select! {
            (first, _, _) = select_all(more) => first,
            ended = self.app.until(&run.id, bound, KeptRun::is_over) => ended.map(drop),
            () = tokio::time::sleep(bound) => Ok(()),
            _ = leaving.wait_for(|leaving| *leaving) => Err(ApiError::leaving()),
        }
    }

    pub(super) async fn log(&self, input: inputs::Log) -> Answered {
        let run = self.app.seen(&self.caller, &input.run).await?;
        let most = bounded(input.max_bytes);
        let streams = streams_of(&run);
        if let Some(which) = input.stream.map(inputs::Which::stream)
            && !streams.contains(&which)
        {
            let there: Vec<&str> = streams.iter().map(|stream| name_of(*stream)).collect();
            let message = format!("run {} has no stream {}", run.id, name_of(which));
            return Err(
                ApiError::bad_request(message).hint(format!("it has {}", there.join(" and ")))
            );
        }
        let wanted = |stream: &&kennel_process::Stream| {
            input.stream.is_none_or(|which| which.stream() == **stream)
        };
        let mut pieces = Vec::new();
        for stream in streams.iter().filter(wanted) {
            let source = Source { app: &self.app, run: &run, stream: *stream };
            pieces.push(match input.offset {
                Some(offset) => source.from(offset, most).await?,
                None => source.tail(most).await?,
            });
        }
        let shown = view(&run);
        let mut text = say::sentence(&shown);
        say::add_pieces(&mut text, &pieces);
        let value = json!({"run": shown.id, "state": shown.state, "output": pieces});
        Ok(Answer { text, value })
    }

    pub(super) async fn wait(&self, input: inputs::Wait) -> Answered {
        let runs = self.all_seen(&input.runs).await?;
        let until = input.until.as_deref();
        if until == Some("") {
            let message = "until is empty: every output has the empty text";
            return Err(ApiError::bad_request(message).hint("leave it out to wait for the end"));
        }
        let bound = input.timeout_ms.map_or(USUAL_WAIT, Duration::from_millis).min(LONGEST_WAIT);
        let deadline = Instant::now() + bound;
        let one_run = runs.len() == 1;
        let cursors = if one_run { input.cursors } else { Cursors::default() };
        let any = input.mode == inputs::Mode::Any;
        let found = tokio::select! {
            over = self.until_over(&runs, any) => over.map(|()| None)?,
            found = self.find(&runs, until, cursors), if until.is_some() => Some(found?),
            () = tokio::time::sleep_until(deadline) => None,
        };
        let mut now = Vec::new();
        for run in &runs {
            now.push(self.app.known(&run.id).await?);
        }
        let over = now.iter().filter(|run| run.is_over()).count();
        let done = if any { over > 0 } else { over == now.len() };
        // Words that came with the end are there too.
        let found = match (found, until) {
            (None, Some(text)) if done => self.find_now(&now, text, cursors).await?,
            (found, _) => found,
        };
        let timed_out = found.is_none() && !done;
        let runs: Vec<wire::Run> = now.iter().map(view).collect();
        let mut lines: Vec<String> = runs.iter().map(say::sentence).collect();
        if let Some(found) = &found {
            lines.insert(
                0,
                format!("The text is there: {}.", found["where"].as_str().unwrap_or("")),
            );
        } else if timed_out {
            lines.insert(0, format!("Not yet, after {} ms.", bound.as_millis()));
        } else if until.is_some() {
            lines.insert(0, "It ended without writing that text.".to_owned());
        }
        let runs: Vec<Value> = runs.iter().map(say::brief).collect();
        let value = json!({"timed_out": timed_out, "found": found, "runs": runs});
        Ok(Answer { text: lines.join("\n"), value })
    }

    async fn until_over(&self, runs: &[KeptRun], any: bool) -> Result<(), ApiError> {
        // The caller's own bound comes first.
        let over = |run: &KeptRun| {
            let (app, id) = (self.app.clone(), run.id.clone());
            async move { app.until(&id, LONGEST_WAIT * 2, KeptRun::is_over).await.map(drop) }
                .boxed()
        };
        let each: Vec<_> = runs.iter().map(over).collect();
        if any {
            return select_all(each).await.0;
        }
        join_all(each).await.into_iter().collect()
    }

    /// Waits for the first of the runs that writes a text. Never comes back if none does: their end
    /// is waited for beside it.
    async fn find(
        &self,
        runs: &[KeptRun],
        text: Option<&str>,
        cursors: Cursors,
    ) -> Result<Value, ApiError> {
        let text = text.unwrap_or_default();
        let looks = runs.iter().flat_map(|run| {
            streams_of(run).iter().map(move |stream| {
                let source = Source { app: &self.app, run, stream: *stream };
                async move {
                    match source.find(text, cursors.of(*stream)).await? {
                        Some(offset) => Ok(say::found(&run.id, name_of(*stream), offset)),
                        None => std::future::pending().await,
                    }
                }
                .boxed()
            })
        });
        select_all(looks).await.0
    }

    /// Looks for a text in what has been written already.
    async fn find_now(
        &self,
        runs: &[KeptRun],
        text: &str,
        cursors: Cursors,
    ) -> Result<Option<Value>, ApiError> {
        for run in runs.iter().filter(|run| run.ended.is_some()) {
            for stream in streams_of(run) {
                let source = Source { app: &self.app, run, stream: *stream };
                if let Some(offset) = source.find(text, cursors.of(*stream)).await? {
                    return Ok(Some(say::found(&run.id, name_of(*stream), offset)));
                }
            }
        }
        Ok(None)
    }

    async fn all_seen(&self, names: &[String]) -> Result<Vec<KeptRun>, ApiError> {
        if names.is_empty() {
            return Err(ApiError::bad_request("runs is empty: name at least one"));
        }
        if names.len() > MAX_NAMED {
            let message = format!("runs has {} names and may have {MAX_NAMED}", names.len());
            return Err(ApiError::bad_request(message));
        }
        let mut runs: Vec<KeptRun> = Vec::new();
        for name in names {
            let run = self.app.seen(&self.caller, name).await?;
            if runs.iter().all(|known| known.id != run.id) {
                runs.push(run);
            }
        }
        Ok(runs)
    }

    pub(super) async fn stop(&self, input: inputs::Stop) -> Answered {
        // All of them before the first: nobody is half stopped because one is not the caller's.
        let runs = self.all_seen(&input.runs).await?;
        let stop = match input.force {
            true => Stop::Force,
            false => Stop::Ask { grace_ms: input.grace_ms },
        };
        for run in &runs {
            self.app.end(&run.id, stop).await?;
        }
        let bound = input.timeout_ms.map_or(USUAL_WAIT, Duration::from_millis).min(LONGEST_WAIT);
        let over = tokio::time::timeout(bound, self.until_over(&runs, false)).await;
        if let Ok(Err(e)) = over {
            return Err(e);
        }
        let mut shown = Vec::new();
        for run in &runs {
            shown.push(view(&self.app.known(&run.id).await?));
        }
        let dead = |run: &wire::Run| run.state == wire::State::Dead;
        let all_dead = shown.iter().all(dead);
        let text: Vec<String> = shown.iter().map(say::sentence).collect();
        let runs: Vec<Value> = shown.iter().map(say::brief).collect();
        let value = json!({"all_dead": all_dead, "timed_out": over.is_err(), "runs": runs});
        Ok(Answer { text: text.join("\n"), value })
    }

    pub(super) async fn write(&self, input: inputs::Write) -> Answered {
        self.give(&input.run, input.data.into_bytes()).await
    }

    pub(super) async fn submit(&self, input: inputs::Submit) -> Answered {
        let run = self.app.seen(&self.caller, &input.run).await?;
        // What the Enter key sends; on a pipe there is no terminal that would make it a line's end.
        let enter = if run.request.terminal { '\r' } else { '\n' };
        self.give(&run.id, format!("{}{enter}", input.line).into_bytes()).await
    }

    async fn give(&self, name: &str, bytes: Vec<u8>) -> Answered {
        let run = self.app.seen(&self.caller, name).await?;
        let length = bytes.len();
        give(&self.app, &run.id, bytes, false).await?;
        let text = format!("{length} bytes are on their way to run {}.", run.id);
        Ok(Answer { text, value: json!({"run": &*run.id, "bytes": length}) })
    }

    pub(super) async fn close(&self, input: inputs::Close) -> Answered {
        let run = self.app.seen(&self.caller, &input.run).await?;
        let (dir, terminal) = (self.app.home.run_dir(&run.id), run.request.terminal);
        let closed = self.app.talks.talk(move || close(&dir, terminal)).await?;
        let closed = closed.map_err(|e| refused(&e))?;
        let (word, text) = match closed {
            Closed::Yes => ("closed", "It reads end of file now."),
            Closed::Unread => {
                ("unread", "It has not read all of its input yet; end of file comes after that.")
            }
            Closed::Asked => {
                ("sent", "Ctrl-D was sent to its terminal; whether it ends is the program's.")
            }
        };
        let value = json!({"run": &*run.id, "input": word});
        Ok(Answer { text: text.to_owned(), value })
    }
}

impl Call {
    /// Under which name a caller reads notices: an agent under its run's own.
    async fn consumer(&self, asked: Option<String>) -> Result<String, ApiError> {
        match (&self.caller, asked) {
            (Caller::User, asked) => Ok(asked.unwrap_or_else(|| USERS_CONSUMER.to_owned())),
            (Caller::Run(own), None) => {
                // Who goes on with a session goes on where that has read.
                let selves = self.app.selves(&self.app.known(own).await?).await?;
                let first = selves.last().unwrap_or(own);
                Ok(format!("run:{first}"))
            }
            (Caller::Run(own), Some(asked)) => {
                let message = format!("consumer {asked:?} is not yours: you read as run {own}");
                Err(ApiError::bad_request(message).hint("leave it out"))
            }
        }
    }

    pub(super) async fn notices(&self, input: inputs::Notices) -> Answered {
        let consumer = self.consumer(input.consumer).await?;
        let most = input.limit.unwrap_or(USUAL_NOTICES).clamp(1, MAX_NOTICES) as usize;
        let mut after = self.app.come(&consumer).await?.acked;
        let mut concerns = Concerns::of(self).await?;
        // What was told before an agent was there is nothing to it, however much that is.
        after = after.max(concerns.begun);
        let deadline = Instant::now() + Duration::from_millis(input.wait_ms).min(LONGEST_WAIT);
        let (mut told, mut left_out) = (Vec::new(), false);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let bound = if told.is_empty() { left } else { Duration::ZERO };
            let wanted = Wanted { after, limit: NOTICES_AT_ONCE, quiet: false, run: None };
            let page = self.app.notices_within(wanted, bound).await?;
            let over = page.notices.is_empty() && (bound.is_zero() || !told.is_empty());
            for notice in page.notices {
                if !concerns.has(&self.app, &notice).await? {
                    continue;
                }
                left_out |= told.len() == most;
                if told.len() < most {
                    told.push(notice);
                }
            }
            if over || left_out {
                break;
            }
            after = page.next.max(after);
        }
        let lines: Vec<String> = told.iter().map(say::notice).collect();
        let text = if lines.is_empty() { "No notices.".to_owned() } else { lines.join("\n") };
        let value = json!({"consumer": consumer, "notices": told, "more": left_out});
        Ok(Answer { text, value })
    }

    pub(super) async fn ack(&self, input: inputs::Ack) -> Answered {
        let consumer = self.consumer(input.consumer).await?;
        let acked = self.app.acknowledge(&consumer, input.seq).await?.acked;
        let text = format!("Notices up to {acked} are not told again.");
        Ok(Answer { text, value: json!({"consumer": consumer, "acked": acked}) })
    }
}

/// Which notices are the caller's.
struct Concerns {
    /// The runs that it is, if it is not the user, who is told everything.
    selves: Option<Vec<Arc<str>>>,
    /// None of its own is before this line.
    begun: u64,
    /// What was found out of runs: each has several notices.
    known: HashMap<String, bool>,
}

impl Concerns {
    async fn of(call: &Call) -> Result<Self, ApiError> {
        let app = &call.app;
        let selves = match &call.caller {
            Caller::User => None,
            Caller::Run(own) => Some(app.selves(&app.known(own).await?).await?),
        };
        let begun = match &selves {
            Some(selves) => app.begun(selves).await?,
            None => 0,
        };
        Ok(Self { selves, begun, known: HashMap::new() })
    }

    /// True if a notice is about a run of the caller's, or about the notices themselves.
    async fn has(&mut self, app: &App, notice: &wire::Notice) -> Result<bool, ApiError> {
        let Some(selves) = self.selves.as_ref() else { return Ok(true) };
        if notice.kind == wire::NoticeKind::Lagged {
            return Ok(true);
        }
        if let Some(known) = self.known.get(&notice.run) {
            return Ok(*known);
        }
        let run = match app.live.get(&notice.run) {
            Some(run) => Some(run),
            None => app.store.run(&notice.run).await?,
        };
        let found = match run {
            Some(run) => app.is_of(selves, &run).await?,
            None => false,
        };
        self.known.insert(notice.run.clone(), found);
        Ok(found)
    }
}

/// What was asked for that a run which is there already does not have, by name.
fn left_as_it_was(asked: &inputs::Start, run: &Request) -> Vec<&'static str> {
    let watch: Vec<wire::Watch> = asked.watch.iter().map(inputs::Watch::wire).collect();
    let differs = [
        // Its values are not kept: it cannot be told whether they are the same.
        ("env", !asked.env.is_empty()),
        ("limits", asked.limits != inputs::Limits::default()),
        ("grace_ms", asked.grace_ms.is_some_and(|asked| asked != run.grace_ms)),
        ("pty", asked.pty && !run.terminal),
        ("stdin", asked.stdin && !run.stdin && !run.terminal),
        ("format", asked.format.is_some() && asked.format != run.format),
        ("notify", asked.notify.wire() != run.notify),
        ("watch", !watch.is_empty() && watch != run.watch),
        ("heartbeat_ms", asked.heartbeat_ms.is_some() && asked.heartbeat_ms != run.heartbeat_ms),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Who has a slot.
enum Taken {
    Same(Box<KeptRun>),
    Other,
    Nobody,
}

/// What became of an input.
enum Closed {
    Yes,
    /// What was written before is still to be read.
    Unread,
    /// A terminal cannot be closed.
    Asked,
}

/// Closes an input and looks whether it is: to close it once more is refused then.
fn close(dir: &std::path::Path, terminal: bool) -> Result<Closed, ConnectionError> {
    let mut keeper = Connection::open(dir)?;
    keeper.close_stdin()?;
    if terminal {
        return Ok(Closed::Asked);
    }
    let deadline = std::time::Instant::now() + CLOSE_BOUND;
    loop {
        match keeper.close_stdin() {
            Err(ConnectionError::Refused(why)) if why.code == RefusalCode::NoInput => {
                return Ok(Closed::Yes);
            }
            // Its keeper left: the run is over, and its input with it.
            Err(ConnectionError::KeeperLeft) => return Ok(Closed::Yes),
            Err(e) => return Err(e),
            Ok(()) if std::time::Instant::now() >= deadline => return Ok(Closed::Unread),
            Ok(()) => std::thread::sleep(CLOSE_PAUSE),
        }
    }
}

fn text(string: &String) -> Text {
    Text(OsString::from(string))
}

fn words(command: &Command) -> Result<Vec<Text>, ApiError> {
    let words: Vec<&str> = match command {
        Command::Line(line) if line.trim().is_empty() => Vec::new(),
        Command::Line(line) => vec!["sh", "-c", line],
        Command::Words(words) => words.iter().map(String::as_str).collect(),
    };
    if words.is_empty() {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "bad_request", "command is empty"));
    }
    Ok(words.into_iter().map(|word| Text(OsString::from(word))).collect())
}
