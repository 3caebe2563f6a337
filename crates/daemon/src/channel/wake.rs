//! An agent is woken: when a run that it asked for has ended and it has not heard of it, its
//! session goes on with the notice as its prompt.
//!
//! ```text
//! notice -> who asked for that run -> lives: waits until it is dead and its slot is free
//!                                  -> has acknowledged it, was stopped, nobody: nothing to do
//!                                  -> dead: planned (durable) -> one run in its slot -> settled
//! ```
//!
//! Owns: which notices one run tells of, which is kept before that run is asked for, so that none
//! is in two. What waits for a live agent keeps nobody else waiting: the place moves when all
//! before it is settled. A run that was woken has no parent, and its own end wakes nobody.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use kennel_process::Cause;
use kennel_transcript::Format;
use tokio::sync::watch;
use tokio::time::Instant;

use super::deliver::{Postman, Reading, letter};
use super::{Failed, hook, resume, words};
use crate::api::start::begin;
use crate::api::{view, wire};
use crate::config::{Client, Delivery};
use crate::redact::MARK;
use crate::store::channel::Mark;
use crate::store::format::Ended;
use crate::store::kept::{KeptRun, Standing};
use crate::text::Text;
use crate::time::Time;

/// Notices that may wait for agents that still live; those after them are read when some are done.
const MAX_WAITING: usize = 1000;
/// So often within an hour is one slot woken: an agent that starts something each time it is woken
/// would go on for ever, at its user's cost.
const MAX_WAKES_AN_HOUR: usize = 30;
/// That hour.
const HOUR: Duration = Duration::from_secs(3600);
/// Lines that the place may be behind, as for other channels.
const MAX_UNKEPT: u64 = 256;

/// A notice that nothing was done about yet.
#[derive(Debug)]
struct Waiting {
    notice: wire::Notice,
    /// The run that asked for the run it is about.
    parent: String,
    /// The run that is going to tell of it, if that is decided.
    planned: Option<String>,
    /// It was given up on before, after so many tries, and somebody wants it again.
    revived: Option<u32>,
}

/// What is to be done about a notice.
enum Next {
    Nothing,
    /// Somebody has to end, or time to pass.
    Wait,
    Impossible(String),
    Wake(Box<Sleeper>),
}

/// Whose session goes on.
#[derive(Clone, Debug)]
struct Sleeper {
    run: KeptRun,
    session: String,
}

/// What became of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A run tells of it.
    Done,
    /// There was nothing to do, and whoever looks again finds the same.
    Idle,
    Buried,
}

/// What goes on with the tries of one planned run.
#[derive(Debug)]
struct Trying {
    tries: u32,
    not_before: Instant,
}

struct Waker {
    postman: Postman,
    reading: Reading,
    waiting: Vec<Waiting>,
    /// By the first notice that the run tells of.
    trying: HashMap<u64, Trying>,
    /// When each slot was woken lately.
    woken: HashMap<String, VecDeque<Instant>>,
}

/// Wakes agents until the daemon leaves. If the channel is new, for what comes after `from`.
pub(super) async fn serve(postman: Postman, from: u64) {
    let mut newest = postman.app.feed.watch();
    let reading = postman.place(from).await;
    let (trying, woken) = (HashMap::new(), HashMap::new());
    let mut waker = Waker { postman, reading, waiting: Vec::new(), trying, woken };
    let mut planned = waker.planned().await;
    loop {
        newest.borrow_and_update();
        if waker.postman.letters_wanted() {
            waker.take_letters().await;
        }
        waker.read(&mut planned).await;
        waker.work().await;
        waker.advance().await;
        if !waker.rest(&mut newest).await {
            return;
        }
    }
}

/// What an earlier daemon decided, by the number of the notice: the run, or that it is settled.
type Planned = BTreeMap<u64, Option<String>>;

impl Waker {
    async fn planned(&self) -> Planned {
        let postman = &self.postman;
        let name = &postman.channel.name;
        let wakes = postman.insist(|| postman.app.store.wakes(name)).await;
        wakes.into_iter().map(|wake| (wake.seq, wake.run.filter(|_| !wake.settled))).collect()
    }

    /// Reads what is new, as far as there is room.
    async fn read(&mut self, planned: &mut Planned) {
        while self.waiting.len() < MAX_WAITING {
            let room = MAX_WAITING - self.waiting.len();
            let (notices, next) = self.postman.page(self.reading.read, room).await;
            for notice in notices {
                let known = planned.remove(&notice.seq);
                // Who was started by nobody's agent wakes nobody; what is settled stays so.
                if let Some(parent) = self.parent(&notice).await
                    && known != Some(None)
                {
                    let planned = known.flatten();
                    self.waiting.push(Waiting { notice, parent, planned, revived: None });
                }
            }
            if next <= self.reading.read {
                return;
            }
            self.reading.read = next;
        }
    }

    /// Dead letters that somebody wants again.
    async fn take_letters(&mut self) {
        let postman = &self.postman;
        let name = &postman.channel.name;
        let letters = postman.insist(|| postman.app.store.letters(name)).await;
        for letter in letters.into_iter().filter(|letter| letter.again) {
            let known = self.waiting.iter().any(|waiting| waiting.notice.seq == letter.seq);
            let Ok(notice) = serde_json::from_str::<wire::Notice>(&letter.body) else { continue };
            if let (false, Some(parent)) = (known, self.parent(&notice).await) {
                let revived = Some(letter.tries);
                self.waiting.push(Waiting { notice, parent, planned: None, revived });
            }
        }
    }

    async fn parent(&self, notice: &wire::Notice) -> Option<String> {
        self.found(&notice.run).await?.request.parent.clone()
    }

    /// Does what can be done about what waits.
    async fn work(&mut self) {
        let mut sleepers: BTreeMap<String, (Sleeper, Vec<usize>)> = BTreeMap::new();
        let mut settled = Vec::new();
        for (at, waiting) in self.waiting.iter().enumerate() {
            match self.next(waiting).await {
                Next::Wait => {}
                Next::Nothing => settled.push((at, Fate::Idle)),
                Next::Impossible(why) => {
                    self.postman.failed(&why);
                    self.bury(waiting, 1, why).await;
                    settled.push((at, Fate::Buried));
                }
                Next::Wake(sleeper) => {
                    // What was decided stays: a notice is in one run alone.
                    let by = match (&waiting.planned, waiting.revived) {
                        (Some(run), _) => run.clone(),
                        (None, Some(_)) => format!("again {}", waiting.notice.seq),
                        (None, None) => format!("of {}", sleeper.run.id),
                    };
                    sleepers.entry(by).or_insert_with(|| (*sleeper, Vec::new())).1.push(at);
                }
            }
        }
        let mut slots = Vec::new();
        for (sleeper, of) in sleepers.into_values() {
            // The slot has room for one.
            if !slots.contains(&sleeper.run.slot) && self.may_wake(&sleeper.run.slot) {
                slots.push(sleeper.run.slot.clone());
                if let Some(fate) = self.wake(&sleeper, &of).await {
                    settled.extend(of.into_iter().map(|at| (at, fate)));
                }
            }
        }
        self.settle(settled).await;
    }

    async fn next(&self, waiting: &Waiting) -> Next {
        let Waiting { notice, parent, .. } = waiting;
        let postman = &self.postman;
        let app = &postman.app;
        let Some(sleeper) = self.found(parent).await else {
            return Next::Impossible(format!("run {parent}, which asked for it, is not kept"));
        };
        if let Delivery::Wake { agent: Some(name) } = &postman.channel.delivery
            && sleeper.request.agent.as_ref().is_none_or(|agent| agent.name != *name)
        {
            return Next::Nothing;
        }
        if sleeper.state != Standing::Dead {
            return Next::Wait;
        }
        if !left_by_itself(&sleeper) || self.has_heard(&sleeper, notice.seq).await {
            return Next::Nothing;
        }
        match view::view(&sleeper).usage.and_then(|usage| usage.session) {
            None => Next::Impossible(format!("the session of run {parent} is not known")),
            Some(_) if app.live.in_slot(&sleeper.slot).is_some() => Next::Wait,
            Some(session) => Next::Wake(Box::new(Sleeper { run: sleeper, session })),
        }
    }

    /// True if an agent has acknowledged a notice itself. Who goes on with a session reads under
    /// the name of the first run of it.
    async fn has_heard(&self, sleeper: &KeptRun, seq: u64) -> bool {
        let app = &self.postman.app;
        // If they cannot be told, it is told twice rather than never.
        let mut selves = app.selves(sleeper).await.unwrap_or_default();
        selves.push(sleeper.id.clone());
        for own in selves {
            let name = format!("run:{own}");
            let place = self.postman.insist(|| app.store.place(&name)).await;
            if place.is_some_and(|place| place.acked >= seq) {
                return true;
            }
        }
        false
    }

    async fn found(&self, id: &str) -> Option<KeptRun> {
        self.postman.insist(|| self.find(id)).await
    }

    async fn find(&self, id: &str) -> Result<Option<KeptRun>, crate::store::StoreError> {
        match self.postman.app.live.get(id) {
            Some(run) => Ok(Some(run)),
            None => self.postman.app.store.run(id).await,
        }
    }

    /// Has one run tell of these. What became of them, unless they are tried again.
    async fn wake(&mut self, sleeper: &Sleeper, of: &[usize]) -> Option<Fate> {
        let notices: Vec<wire::Notice> =
            of.iter().map(|at| self.waiting[*at].notice.clone()).collect();
        let first = notices[0].seq;
        let before = self.waiting[of[0]].revived.unwrap_or(0);
        let trying = self.trying.get(&first);
        if trying.is_some_and(|trying| trying.not_before > Instant::now()) {
            return None;
        }
        let tries = trying.map_or(before, |trying| trying.tries) + 1;
        let id = match &self.waiting[of[0]].planned {
            Some(run) if tries == before + 1 => run.clone(),
            Some(_) | None => {
                let ids: Vec<&str> = notices.iter().map(|notice| notice.id.as_str()).collect();
                hook::run_id(&self.postman.channel.name, &ids, tries)
            }
        };
        if self.waiting[of[0]].revived.is_none() {
            let seqs = notices.iter().map(|notice| notice.seq).collect();
            self.postman.keep(Mark::Planned { run: id.clone(), seqs }).await;
        }
        of.iter().for_each(|at| self.waiting[*at].planned = Some(id.clone()));
        match self.start(sleeper, &id, &notices).await {
            Ok(()) => {
                self.trying.remove(&first);
                let slot = sleeper.run.slot.to_string();
                self.woken.entry(slot).or_default().push_back(Instant::now());
                self.postman.delivered();
                Some(Fate::Done)
            }
            Err(failed) => self.not_woken(failed, first, tries, of).await,
        }
    }

    async fn not_woken(
        &mut self,
        failed: Failed,
        first: u64,
        tries: u32,
        of: &[usize],
    ) -> Option<Fate> {
        self.postman.unless_leaving().await;
        self.postman.failed(&failed.error);
        let Some(pause) = self.postman.pause(&failed, tries) else {
            self.trying.remove(&first);
            for at in of {
                self.bury(&self.waiting[*at], tries, failed.error.clone()).await;
            }
            return Some(Fate::Buried);
        };
        self.trying.insert(first, Trying { tries, not_before: Instant::now() + pause });
        None
    }

    /// Asks for the run, or finds that it was asked for.
    async fn start(
        &self,
        sleeper: &Sleeper,
        id: &str,
        notices: &[wire::Notice],
    ) -> Result<(), Failed> {
        if was_started(hook::known(&self.postman, id).await?) {
            return Ok(());
        }
        let request = request(sleeper, id, &words::prompt(notices))?;
        match begin(&self.postman.app, request, None).await {
            Ok(_) => Ok(()),
            // It was admitted, and the answer was lost.
            Err(_) if was_started(hook::known(&self.postman, id).await?) => Ok(()),
            Err(e) => Err(hook::refused(e)),
        }
    }

    async fn bury(&self, waiting: &Waiting, tries: u32, error: String) {
        let letters = vec![letter(&waiting.notice, tries, error)];
        let name = &self.postman.channel.name;
        tracing::warn!(
            "channel {name} has given up on {}: {}",
            letters[0].notice,
            letters[0].error
        );
        self.postman.app.metrics.dead_letters(1);
        self.postman.keep(Mark::Dead { letters, through: None, at_ms: Time::now().0 }).await;
    }

    /// There is nothing more to do about these.
    async fn settle(&mut self, mut settled: Vec<(usize, Fate)>) {
        settled.sort_unstable_by_key(|(at, _)| *at);
        let mut seqs = Vec::new();
        for (at, fate) in settled.into_iter().rev() {
            let Waiting { notice, revived, .. } = self.waiting.remove(at);
            match (fate, revived) {
                // Kept with its letter.
                (Fate::Buried, _) | (Fate::Idle, None) => {}
                (Fate::Done | Fate::Idle, Some(_)) => {
                    self.postman.keep(Mark::Revived(notice.seq)).await;
                }
                (Fate::Done, None) => seqs.push(notice.seq),
            }
        }
        if !seqs.is_empty() {
            self.postman.keep(Mark::Settled(seqs)).await;
        }
    }

    /// Moves the place over what is settled.
    async fn advance(&mut self) {
        let news = self.waiting.iter().filter(|waiting| waiting.revived.is_none());
        let through = match news.map(|waiting| waiting.notice.seq).min() {
            Some(first) => first - 1,
            None => self.reading.read,
        };
        let waiting = self.waiting.len() as u64;
        self.postman.knows(|known| known.waiting = waiting);
        if through.saturating_sub(self.reading.kept) >= MAX_UNKEPT {
            self.postman.keep(Mark::Through { seq: through, at_ms: Time::now().0 }).await;
            self.reading.kept = through;
        }
    }

    fn may_wake(&mut self, slot: &str) -> bool {
        let Some(lately) = self.woken.get_mut(slot) else { return true };
        while lately.front().is_some_and(|at| at.elapsed() > HOUR) {
            lately.pop_front();
        }
        lately.len() < MAX_WAKES_AN_HOUR
    }

    /// Waits until there may be something to do. False if the daemon leaves.
    async fn rest(&self, newest: &mut watch::Receiver<u64>) -> bool {
        let next = self.trying.values().map(|trying| trying.not_before).min();
        let full = self.woken.values().filter(|lately| lately.len() >= MAX_WAKES_AN_HOUR);
        let room = full.filter_map(|lately| lately.front()).map(|at| *at + HOUR).min();
        let Some(next) = next.into_iter().chain(room).min() else {
            return self.postman.more(newest).await;
        };
        tokio::time::timeout_at(next, self.postman.more(newest)).await.unwrap_or(true)
    }
}

/// An agent that somebody stopped, or a limit, is not to go on.
fn left_by_itself(run: &KeptRun) -> bool {
    match run.ended.as_deref() {
        Some(Ended::Recorded(end)) => end.cause == Cause::Exit,
        Some(Ended::NeverStarted { .. }) | None => false,
    }
}

/// True of a run that was admitted and of which nobody knows that it never started.
fn was_started(run: Option<KeptRun>) -> bool {
    run.is_some_and(|run| match run.ended.as_deref() {
        Some(Ended::NeverStarted { .. }) => false,
        Some(Ended::Recorded(_)) | None => true,
    })
}

/// What goes on in the session: by the agent's profile, or by the command it was started with.
fn request(sleeper: &Sleeper, id: &str, prompt: &str) -> Result<wire::RunRequest, Failed> {
    let Sleeper { run, session } = sleeper;
    let own = &run.request;
    let asked = wire::RunRequest {
        id: Some(id.to_owned()),
        cwd: own.cwd.clone(),
        env: hook::environment(),
        slot: Some(run.slot.to_string()),
        worktree: own.worktree.as_deref().map(|dir| Text(dir.into())),
        notify: own.notify,
        ..wire::RunRequest::default()
    };
    if let Some(agent) = &own.agent {
        let (agent, resume) = (Some(agent.name.clone()), Some(session.clone()));
        return Ok(wire::RunRequest { agent, resume, prompt: Some(prompt.to_owned()), ..asked });
    }
    let command = plain(run, session, prompt).map_err(|why| {
        let run = &run.id;
        Failed::never(format!("run {run} cannot go on: {why}; start it by a profile (--agent)"))
    })?;
    Ok(wire::RunRequest {
        command: command.into_iter().map(|word| Text(word.into())).collect(),
        format: own.format.clone(),
        limits: own.limits.clone(),
        grace_ms: Some(own.grace_ms),
        ..asked
    })
}

fn plain(run: &KeptRun, session: &str, prompt: &str) -> Result<Vec<String>, String> {
    let own = &run.request;
    let words = own.command.iter().map(|word| word.0.to_str().map(str::to_owned));
    let words: Vec<String> =
        words.collect::<Option<_>>().ok_or_else(|| "its command is no text".to_owned())?;
    if words.iter().any(|word| word.contains(MARK)) {
        return Err("its command had a credential, which was not kept".to_owned());
    }
    let guess = || words.first().and_then(|program| Format::guess(program));
    let format = own.format.as_deref().map_or_else(guess, |name| name.parse().ok());
    let client = match format {
        Some(Format::Claude) => Client::Claude,
        Some(Format::Codex) => Client::Codex,
        Some(Format::Gemini) => Client::Gemini,
        Some(Format::Opencode) => Client::Opencode,
        Some(
            Format::Qwen
            | Format::Copilot
            | Format::Goose
            | Format::Aider
            | Format::Amp
            | Format::Cursor,
        )
        | None => return Err("nobody knows how its client goes on".to_owned()),
    };
    let cwd = Path::new(&own.cwd.0);
    resume::command(client, &words, cwd, session, prompt)
}
