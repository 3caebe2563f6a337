//! What a step is started with: work becomes a request for a run. Owns what each kind of work needs
//! before it can begin, and whose fault it is if it cannot.
//!
//! An agent and a gate begin with a baseline of the main checkout; a removal with a save. All that
//! is done here may be done again: ids follow from the step.

use std::path::Path;

use kennel_process::Stream;
use kennel_supervisor::story::{Left, Outcome, Session, StepId, TurnedAway, Why, Work};
use kennel_transcript::{Format, last_words};
use tokio::sync::watch;

use super::errand::{Errand, environment, git_request, slot};
use super::hands::{GiveUp, Hands, Start};
use super::outcome::{Undone, left_in_failure, rate_limited, session_of, was_answered, why_not};
use super::project::Known;
use super::prompt::{Told, prompt, story};
use super::words;
use crate::api::start::{Inside, begin_inside};
use crate::api::{ApiError, wire};
use crate::config::settings::Found;
use crate::steps::{Place, Refused, Step, StepOutcome};
use crate::store::format::{Part, StepOf};
use crate::store::kept::KeptRun;
use crate::tail::{Offsets, Tail, Tails, last_lines};
use crate::text::Text;
use crate::time::Time;

/// Steps before one that are searched, for the merge of a landing or the runs of a session: gates,
/// and tries that came to nothing.
const MAX_BACK: u32 = 200;

/// The end of an agent's stream that is searched for its last words: a model writes less than this
/// in one response, and the results of tools that come after it are rarely more.
const MAX_STREAM_BYTES: u64 = 4 << 20;

/// Words of a gate's command that are quoted to an agent: enough to know which it was.
const MAX_WORDS: usize = 8;

/// What came of a start.
pub(super) enum Started {
    Yes,
    /// There was nothing to run for it.
    Without(Outcome),
    /// No, for this reason, and nothing of it ever will.
    No(Option<String>),
    /// Not now.
    Refused(TurnedAway, String),
}

/// A request for a run, whose profile it is, and what it may use.
struct Asked {
    request: wire::RunRequest,
    found: Option<Found>,
    left: Option<Left>,
}

/// Why there is no request.
pub(super) enum NotAsked {
    GiveUp(GiveUp),
    Started(Started),
}

impl From<GiveUp> for NotAsked {
    fn from(gave_up: GiveUp) -> Self {
        Self::GiveUp(gave_up)
    }
}

/// For those who cannot begin anew: their step is over already.
impl From<NotAsked> for GiveUp {
    fn from(not_asked: NotAsked) -> Self {
        match not_asked {
            NotAsked::GiveUp(why) => why,
            NotAsked::Started(Started::No(Some(why)) | Started::Refused(_, why)) => Self(why),
            NotAsked::Started(Started::Yes | Started::Without(_) | Started::No(None)) => {
                Self("no errand could be sent".to_owned())
            }
        }
    }
}

pub(super) fn no(why: impl Into<String>) -> NotAsked {
    NotAsked::Started(Started::No(Some(why.into())))
}

impl Hands {
    /// Has the run of a step, unless it is to end before it began.
    pub(super) async fn start(
        &self,
        step: &StepId,
        start: &Start,
        stops: &watch::Receiver<bool>,
    ) -> Result<Started, GiveUp> {
        let known = match self.known(&step.story.project).await {
            Ok(known) => known,
            Err(e) => {
                let message = e.into_wire().message;
                return Ok(Started::Refused(TurnedAway::Unconfigured, message));
            }
        };
        let place = known.place(&self.app.home, &step.story)?;
        let asked = match self.asked(step, start, &known, &place).await {
            Ok(asked) => asked,
            Err(NotAsked::Started(started)) => return Ok(started),
            Err(NotAsked::GiveUp(why)) => return Err(why),
        };
        // It may have been moved, held or archived meanwhile.
        if *stops.borrow() {
            return Ok(Started::No(None));
        }
        self.begin(step, &start.work, asked).await
    }

    async fn begin(
        &self,
        step: &StepId,
        work: &Work,
        Asked { request, found, left }: Asked,
    ) -> Result<Started, GiveUp> {
        let part = Some(StepOf::new(step, Part::Step));
        let inside = Inside { step: part, left, found, parent: None };
        let turn = self.turns.of(&step.story.project);
        let held = match work {
            // Nobody looks at the checkout while it is moved, and one moves it at a time: two would
            // take each other's half for somebody's changes.
            Work::Land => {
                let held = turn.lock().await;
                self.until_none_lives(&step.story.project, Step::LOOK_NAME).await?;
                self.until_none_lives(&step.story.project, Step::LAND_NAME).await?;
                Some(held)
            }
            Work::Prepare { .. }
            | Work::Agent { .. }
            | Work::Merge
            | Work::Gate { .. }
            | Work::Remove => None,
        };
        let begun = begin_inside(&self.app, request, inside).await;
        drop(held);
        match begun {
            Ok(_) => Ok(Started::Yes),
            // It was admitted, and what became of it is found by its id.
            Err(_) if self.find(step.run().as_str()).await?.is_some() => Ok(Started::Yes),
            Err(e) => match refused(e) {
                NotAsked::Started(started) => Ok(started),
                NotAsked::GiveUp(why) => Err(why),
            },
        }
    }

    async fn asked(
        &self,
        step: &StepId,
        start: &Start,
        known: &Known,
        place: &Place,
    ) -> Result<Asked, NotAsked> {
        let place = place.clone();
        let project = &known.now.said.project;
        let git = |what: Step| -> Result<Asked, NotAsked> {
            let slot = slot(step, what.word());
            let mut request = git_request(step.run().to_string(), slot, &what, &known.now)?;
            request.notify = wire::Notify::Failure;
            self.locate(step, start, &mut request, what.place());
            Ok(Asked { request, found: None, left: None })
        };
        match &start.work {
            Work::Prepare { .. } => {
                let (copy, setup) = (project.copy.clone(), project.setup.clone());
                let mut asked = git(Step::Prepare { place, copy, setup })?;
                asked.request.limits = known.now.gate_limits();
                Ok(asked)
            }
            Work::Merge => {
                let mode = project.merge;
                in_worktree(git(Step::Merge { place: place.clone(), mode })?, &place)
            }
            Work::Land => match self.merged(step).await? {
                Some(StepOutcome::Merged { head, base, .. }) => {
                    // Before it is there: whoever looks meanwhile is to know whose doing it is,
                    // also if this landing is killed right after.
                    self.app.landed.note(&step.story.project, head.clone());
                    git(Step::Land { place, old: base, new: head })
                }
                // There was nothing to merge, so there is nothing to land.
                Some(StepOutcome::Refused { why: Refused::NothingAhead, .. }) => {
                    Err(NotAsked::Started(Started::Without(Outcome::Success)))
                }
                Some(_) | None => {
                    let outcome = Outcome::Failed { ahead: false, tail: None };
                    Err(NotAsked::Started(Started::Without(outcome)))
                }
            },
            Work::Remove => {
                let saved = self.saved(step, known, &place).await?;
                let teardown = project.teardown.clone();
                let mut asked = git(Step::Remove { place: place.clone(), saved, teardown })?;
                asked.request.limits = known.now.gate_limits();
                in_worktree(asked, &place)
            }
            Work::Gate { n } => {
                let Some(words) = known.now.gate(start.stage.as_str(), *n) else {
                    return Err(no(format!("stage {} has no gate {}", start.stage, n + 1)));
                };
                let command = words.iter().map(|word| Text(word.into())).collect();
                self.stand(step, known, &place).await?;
                let slot = slot(step, &words::work(&start.work).replace(' ', "-"));
                let mut request = wire::RunRequest {
                    command,
                    slot: Some(slot),
                    limits: known.now.gate_limits(),
                    format: Some("none".to_owned()),
                    notify: wire::Notify::Failure,
                    ..self.request(step)
                };
                self.locate(step, start, &mut request, &place);
                in_worktree(Asked { request, found: None, left: None }, &place)
            }
            Work::Agent { .. } => self.asked_of_agent(step, start, known, &place).await,
        }
    }

    async fn asked_of_agent(
        &self,
        step: &StepId,
        start: &Start,
        known: &Known,
        place: &Place,
    ) -> Result<Asked, NotAsked> {
        let Work::Agent { agent, session, why, .. } = &start.work else {
            return Err(no("it is no agent's work"));
        };
        let Some(found) = known.now.agent(agent.as_str()) else {
            let message = format!("agent {agent} is not in the configuration any more");
            return Err(NotAsked::Started(Started::Refused(TurnedAway::Unconfigured, message)));
        };
        self.stand(step, known, place).await?;
        let (project, id) = (step.story.project.as_str(), step.story.id.as_str());
        let kept = self.app.store.words(project, id).await.map_err(GiveUp::from)?;
        let Some(kept) = kept.get(id) else {
            return Err(no("its text is not in the store"));
        };
        let tail = self.said(why).await?;
        let past = match session {
            Some(session) => Some((session, self.past_of(step, session).await?)),
            None => None,
        };
        let past = past.filter(|(_, past)| !past.is_gone());
        let rule = known.now.pipeline.agent(agent);
        let role = rule.map_or(kennel_supervisor::story::Role::Other, |rule| rule.role);
        let branch = place.branch();
        let mut told = Told {
            title: &kept.title,
            text: &kept.text,
            id: step.story.id.as_str(),
            branch: &branch,
            base: &place.base,
            stage: start.stage.as_str(),
            role,
            why,
            tail: tail.as_deref(),
            resumed: false,
        };
        // Somebody may have changed the story since.
        told.resumed = past.as_ref().is_some_and(|(_, past)| past.was_told(&story(&told)));
        let mut request = wire::RunRequest {
            agent: Some(agent.as_str().to_owned()),
            prompt: Some(prompt(&told)),
            resume: past.map(|(session, _)| session.as_str().to_owned()),
            slot: Some(slot(step, agent.as_str())),
            ..self.request(step)
        };
        self.locate(step, start, &mut request, place);
        in_worktree(Asked { request, found: Some(found), left: Some(start.left) }, place)
    }

    fn request(&self, step: &StepId) -> wire::RunRequest {
        wire::RunRequest {
            id: Some(step.run().to_string()),
            env: environment(),
            ..wire::RunRequest::default()
        }
    }

    /// Says to a run which story it works on, and where.
    fn locate(&self, step: &StepId, start: &Start, request: &mut wire::RunRequest, place: &Place) {
        let own = [
            ("KENNEL_STORY", step.story.id.as_str().into()),
            ("KENNEL_PROJECT", step.story.project.as_str().into()),
            ("KENNEL_STAGE", start.stage.as_str().into()),
            ("KENNEL_REPOSITORY", place.repository.clone().into_os_string()),
            ("KENNEL_WORKTREE", place.worktree.clone().into_os_string()),
            ("KENNEL_BRANCH", place.branch().into()),
            ("KENNEL_BASE", place.base.clone().into()),
        ];
        let own = own.into_iter().map(|(name, value)| (Text(name.into()), Text(value)));
        request.set_env.extend(own);
    }

    /// Sees to it that the worktree is there, and notes how the main checkout stands. A directory
    /// that git knows nothing of is no worktree: nobody could commit there.
    async fn stand(&self, step: &StepId, known: &Known, place: &Place) -> Result<(), NotAsked> {
        if !place.worktree.is_dir() {
            self.prepared(step, known, place).await?;
        }
        let what = Step::Look { place: place.clone() };
        match self.baseline(step, known, &what).await? {
            StepOutcome::Looked(looked) if looked.worktree.is_some() => Ok(()),
            StepOutcome::Looked(_) => self.prepared(step, known, place).await,
            other @ (StepOutcome::Refused { .. }
            | StepOutcome::Broken { .. }
            | StepOutcome::Prepared { .. }
            | StepOutcome::Saved(_)
            | StepOutcome::NothingToSave
            | StepOutcome::Merged { .. }
            | StepOutcome::Conflict { .. }
            | StepOutcome::Landed { .. }
            | StepOutcome::Removed { .. }) => Err(no(why_not(&other))),
        }
    }

    /// Has a worktree made again that somebody took away.
    async fn prepared(&self, step: &StepId, known: &Known, place: &Place) -> Result<(), NotAsked> {
        let project = &known.now.said.project;
        let (copy, setup) = (project.copy.clone(), project.setup.clone());
        let what = Step::Prepare { place: place.clone(), copy, setup };
        let made = self.errand(step, known, Errand::Prepare, &what).await?;
        if matches!(made, StepOutcome::Prepared { .. }) { Ok(()) } else { Err(no(why_not(&made))) }
    }

    /// What the last merge before a landing came to.
    async fn merged(&self, land: &StepId) -> Result<Option<StepOutcome>, GiveUp> {
        let oldest = land.number.saturating_sub(MAX_BACK).max(1);
        for number in (oldest..land.number).rev() {
            let step = StepId { story: land.story.clone(), number };
            let Some(run) = self.find(step.run().as_str()).await? else { continue };
            if Step::name_in(&run.request.command) == Some(Step::MERGE_NAME) {
                return self.outcome_of(&run.id).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Keeps what is in no commit of the base, before a worktree goes; under which ref.
    async fn saved(
        &self,
        step: &StepId,
        known: &Known,
        place: &Place,
    ) -> Result<Option<String>, NotAsked> {
        let what = Step::Save { place: place.clone(), at: Time::now() };
        let why = match self.errand(step, known, Errand::Save, &what).await? {
            StepOutcome::Saved(saved) if saved.unsaved.is_empty() => {
                return Ok(Some(saved.reference));
            }
            StepOutcome::NothingToSave => return Ok(None),
            // What is not there cannot be lost: the removal says what it finds.
            StepOutcome::Refused { why: Refused::WorktreeGone, .. } => return Ok(None),
            StepOutcome::Saved(saved) => format!("git could not save {}", saved.unsaved.join(", ")),
            other @ (StepOutcome::Refused { .. }
            | StepOutcome::Broken { .. }
            | StepOutcome::Prepared { .. }
            | StepOutcome::Looked(_)
            | StepOutcome::Merged { .. }
            | StepOutcome::Conflict { .. }
            | StepOutcome::Landed { .. }
            | StepOutcome::Removed { .. }) => why_not(&other),
        };
        self.app.troubles.note(&step.story, why);
        let outcome = Outcome::Failed { ahead: true, tail: None };
        Err(NotAsked::Started(Started::Without(outcome)))
    }

    /// The runs of a story before this step that belong to a session.
    async fn past_of(&self, step: &StepId, session: &Session) -> Result<Past, GiveUp> {
        let mut runs = Vec::new();
        let oldest = step.number.saturating_sub(MAX_BACK).max(1);
        for number in (oldest..step.number).rev() {
            let before = StepId { story: step.story.clone(), number };
            let Some(run) = self.find(before.run().as_str()).await? else { continue };
            let resumed = run.request.command.iter().any(|word| word.0 == session.as_str());
            if resumed || session_of(&run).as_ref() == Some(session) {
                runs.push(OfSession { run, resumed });
            }
        }
        Ok(Past(runs))
    }

    /// What an agent is told of what failed before.
    async fn said(&self, why: &Why) -> Result<Option<String>, GiveUp> {
        let tail = match why {
            Why::First => return Ok(None),
            Why::Retry(tail) | Why::Conflict(tail) => tail,
        };
        let Some(tail) = tail else { return Ok(None) };
        let (undone, id) = Undone::of(tail);
        if let Some(undone) = undone {
            return Ok(Some(undone.sentence().to_owned()));
        }
        let Some(run) = self.find(id).await? else { return Ok(None) };
        if let Why::Conflict(_) = why {
            let said = self.read(&run).await;
            return Ok(Some(if let StepOutcome::Conflict { text, files, .. } = &said {
                format!("{}\n\n{text}", files.join("\n"))
            } else {
                why_not(&said)
            }));
        }
        let dir = self.app.home.run_dir(id);
        let said = tokio::task::spawn_blocking(move || said_last(&run, &dir)).await;
        Ok(said.ok())
    }
}

/// The runs of a session, the last one first.
struct Past(Vec<OfSession>);

/// A run that belongs to a session.
struct OfSession {
    run: KeptRun,
    /// It was to go on in it.
    resumed: bool,
}

impl Past {
    /// True if the last run that was to go on in it left at once and by itself, without an answer:
    /// it is not there any more, and the next run begins a new one. That its provider took no
    /// more is no reason.
    fn is_gone(&self) -> bool {
        let last = self.0.iter().find(|known| known.resumed);
        last.is_some_and(|known| {
            !was_answered(&known.run)
                && left_in_failure(&known.run)
                && rate_limited(&known.run).is_none()
        })
    }

    /// True if a run of it was told this.
    fn was_told(&self, text: &str) -> bool {
        let has = |word: &Text| word.0.to_string_lossy().contains(text);
        self.0.iter().any(|known| known.run.request.command.iter().any(has))
    }
}

/// What a run was and what it said last: an agent in words, where they can be told from the rest
/// of what its client writes.
fn said_last(run: &KeptRun, dir: &Path) -> String {
    let secrets = &run.request.secrets;
    let (mut tails, _) = Tails::since(dir, Offsets::default(), secrets);
    let words = format_of(run).and_then(|format| {
        let lines = last_lines(dir, Stream::Stdout, MAX_STREAM_BYTES).ok()?;
        last_words(format, &lines)
    });
    if let Some(words) = words {
        let text = secrets.redact_from(words.as_bytes(), 0);
        tails.stdout = Some(Tail { text, left_out: 0 });
    }
    quoted(run, &tails)
}

/// Whose words the agent of a run writes; none if it is no agent's, or nobody can read them.
fn format_of(run: &KeptRun) -> Option<Format> {
    let request = &run.request;
    request.agent.as_ref()?;
    match &request.format {
        Some(name) => name.parse().ok(),
        None => Format::guess(&request.command.first()?.0.to_string_lossy()),
    }
}

/// What a run was and what it wrote last. The command of an agent is left out: it has the prompt of
/// the last attempt in it, and that has the one before.
fn quoted(run: &KeptRun, tails: &Tails) -> String {
    let mut text = String::new();
    if run.request.agent.is_none() {
        let words = run.request.command.iter().take(MAX_WORDS).map(|word| word.0.to_string_lossy());
        text = format!("$ {}\n", words.collect::<Vec<_>>().join(" "));
    }
    for tail in [&tails.stdout, &tails.stderr, &tails.terminal].into_iter().flatten() {
        if tail.left_out > 0 {
            text.push_str(&format!("[{} bytes before this]\n", tail.left_out));
        }
        text.push_str(&tail.text);
        if !tail.text.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

/// Has a run work in the story's worktree, which is its alone meanwhile.
fn in_worktree(mut asked: Asked, place: &Place) -> Result<Asked, NotAsked> {
    let is_git = asked.request.cwd.0 == *place.repository.as_os_str();
    if Path::new(&place.worktree).is_dir() {
        let dir = Text(place.worktree.clone().into());
        asked.request.worktree = Some(dir.clone());
        if !is_git {
            asked.request.cwd = dir;
        }
    } else if !is_git {
        return Err(no(format!("there is no worktree at {}", place.worktree.display())));
    }
    Ok(asked)
}

/// What a run that was not admitted means: nothing that its story could help, or that it cannot be.
pub(super) fn refused(error: ApiError) -> NotAsked {
    let wire::Error { code, message, .. } = error.into_wire();
    let why = match code.as_str() {
        "slot_taken" | "stuck_survivors" | "agent_busy" | "session_in_use" => TurnedAway::SlotTaken,
        "worktree_in_use" => TurnedAway::WorktreeInUse,
        "host_full" => TurnedAway::HostFull,
        "shutting_down" => TurnedAway::ShuttingDown,
        "config_invalid" | "config_untrusted" | "trust_unreadable" | "agent_not_found" => {
            TurnedAway::Unconfigured
        }
        // Space may be back any moment; the next reconcile asks again.
        "store_failed" | "ask_again" | "internal" => return GiveUp(message).into(),
        _ => return no(message),
    };
    NotAsked::Started(Started::Refused(why, message))
}
