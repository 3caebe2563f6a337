//! Short runs of our own around a step: looks, saves, a worktree made again. Owns their ids, and
//! that nobody looks at a checkout while a landing moves it.
//!
//! An errand is a run like any other: contained, limited, recorded. Its id follows from the step's,
//! so that after a crash it is found and not sent again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kennel_process::{Chunk, ExitStatus, Stream, read_output};
use kennel_supervisor::story::{ProjectKey, StepId};

use super::hands::{GiveUp, Hands};
use super::project::Known;
use super::start::{NotAsked, no, refused};
use crate::api::start::{Inside, begin_inside};
use crate::api::{App, wire};
use crate::config::project::ProjectNow;
use crate::steps::{Step, StepOutcome};
use crate::store::format::{Ended, Part, StepOf};
use crate::store::kept::{KeptRun, Standing};
use crate::text::Text;

/// How often an errand is sent that was killed before it came to its end.
const TRIES: u32 = 3;
/// How often it is looked at what a run left: a host that is out of processes or memory, or a lock
/// of git's, is in the way for seconds.
const LOOKS: u32 = 5;
/// The pause after the first look that could not be taken; each further one is twice as long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Baselines of one step: one for each daemon that tried to start it.
const MAX_BASELINES: u32 = 9;
/// The time of an errand, and of any step of git's: its locks are waited for some twenty seconds,
/// and a large repository takes its time to be looked at. The user's caps are above it.
const WALL: Duration = Duration::from_secs(10 * 60);
/// An errand's output: its last line has a conflict at most.
const OUTPUT: u64 = 16 << 20;
/// The most of an errand's standard output that is read: its last line and what git let slip.
const MAX_READ_BYTES: usize = 1 << 20;
/// Between asking and forcing it. A lock that it leaves is told by its notes.
const GRACE: Duration = Duration::from_secs(5);
/// How long one look for its end waits; then it looks again.
const LOOK: Duration = Duration::from_secs(60);

/// Who looks at, or moves, the main checkout of a project: one is begun at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<ProjectKey, Arc<tokio::sync::Mutex<()>>>>>);

impl Turns {
    pub(super) fn of(&self, project: &ProjectKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(project.clone()).or_default().clone()
    }
}

/// What an errand is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// How things stood before its step.
    Before,
    /// How they stand after it.
    After,
    /// To keep what is not in the base.
    Save,
    /// To make a worktree again that somebody removed.
    Prepare,
}

impl Errand {
    fn letter(self) -> char {
        match self {
            Self::Before => 'b',
            Self::After => 'a',
            Self::Save => 's',
            Self::Prepare => 'p',
        }
    }

    fn part(self) -> Part {
        match self {
            Self::Before | Self::Save | Self::Prepare => Part::Before,
            Self::After => Part::After,
        }
    }

    /// The id of the try of this number.
    fn run(self, step: &StepId, n: u32) -> String {
        let number = if n == 1 { String::new() } else { n.to_string() };
        format!("{}-{}{number}", step.run(), self.letter())
    }
}

impl Hands {
    /// What an errand came to. One that was sent before is found; one that was killed is sent
    /// again.
    pub(super) async fn errand(
        &self,
        step: &StepId,
        known: &Known,
        errand: Errand,
        what: &Step,
    ) -> Result<StepOutcome, NotAsked> {
        let mut came_to = None;
        for n in 1..=TRIES {
            let id = errand.run(step, n);
            if self.find(&id).await?.is_none() {
                self.send(step, known, errand, &id, what).await?;
            }
            let outcome = self.outcome_of(&id).await?;
            let broken = matches!(outcome, StepOutcome::Broken { .. });
            came_to = Some(outcome);
            if !broken {
                break;
            }
        }
        came_to.ok_or_else(|| no("no errand was sent"))
    }

    /// How things stand after a step. What keeps us from looking is nothing that its run did: it is
    /// asked again, with growing pauses.
    pub(super) async fn look_after(
        &self,
        step: &StepId,
        known: &Known,
        what: &Step,
    ) -> Result<StepOutcome, NotAsked> {
        let mut pause = LOOK_AGAIN;
        let mut came_to = None;
        for n in 1..=LOOKS {
            let id = Errand::After.run(step, n);
            // One that an earlier daemon sent is not waited after.
            let is_new = self.find(&id).await?.is_none();
            if is_new {
                self.send(step, known, Errand::After, &id, what).await?;
            }
            let outcome = self.outcome_of(&id).await?;
            let looked = matches!(outcome, StepOutcome::Looked(_));
            came_to = Some(outcome);
            if looked {
                break;
            }
            if is_new && n < LOOKS {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        came_to.ok_or_else(|| no("no errand was sent"))
    }

    /// A new baseline: what was seen by an earlier daemon may be hours old.
    pub(super) async fn baseline(
        &self,
        step: &StepId,
        known: &Known,
        what: &Step,
    ) -> Result<StepOutcome, NotAsked> {
        for n in 1..=MAX_BASELINES {
            let id = Errand::Before.run(step, n);
            if self.find(&id).await?.is_none() {
                self.send(step, known, Errand::Before, &id, what).await?;
                return Ok(self.outcome_of(&id).await?);
            }
        }
        // The next step has ids of its own; this one would be found here for ever.
        Err(no(format!("it was looked at {MAX_BASELINES} times, and never began")))
    }

    /// The last baseline of a step.
    pub(super) async fn last_baseline(&self, step: &StepId) -> Result<Option<StepOutcome>, GiveUp> {
        for n in (1..=MAX_BASELINES).rev() {
            let id = Errand::Before.run(step, n);
            if self.find(&id).await?.is_some() {
                return self.outcome_of(&id).await.map(Some);
            }
        }
        Ok(None)
    }

    async fn send(
        &self,
        step: &StepId,
        known: &Known,
        errand: Errand,
        id: &str,
        what: &Step,
    ) -> Result<(), NotAsked> {
        let mut request = git_request(id.to_owned(), slot(step, what.word()), what, &known.now)?;
        match errand {
            // It runs the project's own commands.
            Errand::Prepare => request.limits = known.now.gate_limits(),
            Errand::Before | Errand::After | Errand::Save => {}
        }
        let turn = self.turns.of(&step.story.project);
        let held = turn.lock().await;
        self.until_none_lives(&step.story.project, Step::LAND_NAME).await?;
        let step = Some(StepOf::new(step, errand.part()));
        let sent = begin_inside(&self.app, request, Inside { step, ..Inside::default() }).await;
        drop(held);
        sent.map(drop).map_err(refused)
    }

    /// Waits until no git step of this name lives in a project. By what it is, and not by its slot:
    /// an agent may be called like a step, and anybody can name a slot.
    pub(super) async fn until_none_lives(
        &self,
        project: &ProjectKey,
        name: &str,
    ) -> Result<(), GiveUp> {
        let is_one = |run: &KeptRun| {
            let of = run.request.step.as_ref();
            let ours = of.is_some_and(|of| of.step().story.project == *project);
            let named = Step::name_in(&run.request.command) == Some(name);
            run.state != Standing::Dead && ours && named
        };
        while let Some(run) = self.app.live.all().into_iter().find(is_one) {
            let run = self.app.until(&run.id, LOOK, KeptRun::is_over).await?;
            if run.state == Standing::Stuck {
                return Err(GiveUp(format!("run {} is stuck in the checkout", run.id)));
            }
        }
        Ok(())
    }

    /// What the run of a git step came to, once it is dead.
    pub(super) async fn outcome_of(&self, id: &str) -> Result<StepOutcome, GiveUp> {
        loop {
            let run = self.app.until(id, LOOK, KeptRun::is_over).await?;
            match run.state {
                Standing::Dead => return Ok(self.read(&run).await),
                Standing::Stuck => return Err(GiveUp(format!("run {id} is stuck"))),
                Standing::Starting | Standing::Running | Standing::Stopping => {}
            }
        }
    }

    /// What a dead run of a git step said.
    pub(super) async fn read(&self, run: &KeptRun) -> StepOutcome {
        self.app.read_step(run).await
    }
}

impl App {
    /// What a dead run of a git step said.
    async fn read_step(&self, run: &KeptRun) -> StepOutcome {
        let status = status_of(run);
        let dir = self.home.run_dir(&run.id);
        let said = tokio::task::spawn_blocking(move || stdout_of(&dir)).await;
        match said {
            Ok(Ok(said)) => StepOutcome::read(status, &said),
            Ok(Err(e)) => broken(status, format!("its output cannot be read: {e}")),
            Err(_) => broken(status, "the daemon is leaving".to_owned()),
        }
    }
}

impl App {
    /// What is left of a story's work that its base has not, as the run of its removal told: its
    /// branch, and the ref under which the rest was saved. None if that run was no removal, or is
    /// forgotten.
    pub(crate) async fn left_by(&self, removal: &str) -> Option<(Option<String>, Option<String>)> {
        let run = self.known(removal).await.ok()?;
        let (branch, saved) = Step::removes(&run.request.command)?;
        let kept = matches!(self.read_step(&run).await, StepOutcome::Removed { branch_kept: true });
        Some((kept.then(|| branch.to_owned()), saved.map(str::to_owned)))
    }
}

fn broken(status: ExitStatus, why: String) -> StepOutcome {
    StepOutcome::Broken { status, why }
}

/// The slot of a step: one of the story's own.
pub(super) fn slot(step: &StepId, what: &str) -> String {
    format!("{}:{what}", step.story)
}

/// What is asked for so that a git step is done.
pub(super) fn git_request(
    id: String,
    slot: String,
    what: &Step,
    now: &ProjectNow,
) -> Result<wire::RunRequest, NotAsked> {
    let command = what.command().map_err(|e| no(e.to_string()))?;
    let limits = now.below_caps(WALL, OUTPUT);
    Ok(wire::RunRequest {
        id: Some(id),
        command: command.into_iter().map(Text).collect(),
        cwd: Text(what.place().repository.clone().into()),
        env: environment(),
        slot: Some(slot),
        limits,
        format: Some("none".to_owned()),
        grace_ms: Some(GRACE.as_millis() as u64),
        notify: wire::Notify::Never,
        ..wire::RunRequest::default()
    })
}

/// What of the daemon's own environment no run of a story is given: it is about the daemon's
/// process, or about the repository whose hook or alias happened to start it, and not about its
/// user. With the latter an agent would commit there.
const OWN: [&str; 22] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_GRAFT_FILE",
    "GIT_SHALLOW_FILE",
    "GIT_QUARANTINE_PATH",
    "GIT_REFLOG_ACTION",
    "GIT_CONFIG",
    "GIT_EXEC_PATH",
];

/// What runs of stories are given of the daemon's environment: all of whoever started it.
pub(super) fn environment() -> Vec<(Text, Text)> {
    let wanted = |name: &std::ffi::OsString| !OWN.iter().any(|own| name == own);
    let own = std::env::vars_os().filter(|(name, _)| wanted(name));
    own.map(|(name, value)| (Text(name), Text(value))).collect()
}

/// All ids that errands of a step can have: what they found is needed until it is over.
pub(crate) fn ids_of(step: &StepId) -> impl Iterator<Item = String> {
    let most = [
        (Errand::Before, MAX_BASELINES),
        (Errand::After, LOOKS),
        (Errand::Save, TRIES),
        (Errand::Prepare, TRIES),
    ];
    most.into_iter().flat_map(move |(errand, most)| (1..=most).map(move |n| errand.run(step, n)))
}

fn status_of(run: &KeptRun) -> ExitStatus {
    match run.ended.as_deref() {
        Some(Ended::Recorded(end)) => end.status,
        Some(Ended::NeverStarted { .. }) | None => {
            ExitStatus::Unknown(kennel_process::UnknownStatus::NeverStarted)
        }
    }
}

/// The end of what a run wrote to its standard output.
fn stdout_of(dir: &Path) -> io::Result<Vec<u8>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(chunk) = read_output(dir, Stream::Stdout, at)? {
        match chunk {
            Chunk::Bytes { offset, bytes } => {
                at = offset + bytes.len() as u64;
                all.extend(bytes);
                let surplus = all.len().saturating_sub(MAX_READ_BYTES);
                all.drain(..surplus);
            }
            Chunk::Gap { to, .. } => {
                at = to;
                all.clear();
            }
        }
    }
    Ok(all)
}
