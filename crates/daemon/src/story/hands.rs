//! What the mind of stories asks of the world becomes runs, and what became of them is told to it.
//!
//! ```text
//! StartStep --> known? --no--> before: look, save --> begin the run --+
//! AskStep   --> known? --no--> "never started"                        |
//! StopStep  --> the same, and its run is stopped                      v
//!               known? --yes------------------------> follow it to its death --> after: look
//!                                                                                    |
//!                                                     StepEnded <--------------------+
//! ```
//!
//! Owns: one task for each step, from the effect to the end that is told. Everything it does has an
//! id that follows from the step, so that whoever does it again after a crash finds what was done.
//! Decides nothing: what an end means for a story is the mind's. Never takes a run for over
//! without its proof.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kennel_supervisor::Stop;
use kennel_supervisor::story::{
    Left, Outcome, Session, StageName, StepId, StoryEffect, StoryEvent, TurnedAway, Used, Work,
};
use tokio::sync::watch;

use super::outcome::{self, Ended};
use super::start::Started;
use crate::api::App;
use crate::event_loop::TellError;
use crate::store::kept::{KeptRun, Standing};

/// Pause before something that could not be done for want of space, or of an answer, is done again.
const AGAIN: Duration = Duration::from_secs(1);

/// The hands of stories.
#[derive(Clone, Debug)]
pub(crate) struct Hands {
    pub(super) app: App,
    /// Steps that a task sees through; true once they are to end.
    attended: Arc<Mutex<BTreeMap<StepId, watch::Sender<bool>>>>,
    /// Who looks at, or moves, the checkout of which project.
    pub(super) turns: super::errand::Turns,
}

/// What is to be started.
pub(super) struct Start {
    pub(super) stage: StageName,
    pub(super) work: Work,
    pub(super) left: Left,
}

/// It cannot be gone on with now: the daemon is leaving, or something cannot be read. The step is
/// found again by the next reconcile.
#[derive(Debug)]
pub(crate) struct GiveUp(pub(super) String);

impl From<crate::api::ApiError> for GiveUp {
    fn from(error: crate::api::ApiError) -> Self {
        Self(error.into_wire().message)
    }
}

impl From<crate::store::StoreError> for GiveUp {
    fn from(error: crate::store::StoreError) -> Self {
        Self(error.to_string())
    }
}

/// A step that is attended to, until this is dropped.
struct Attended {
    hands: Hands,
    step: StepId,
}

impl Drop for Attended {
    fn drop(&mut self) {
        self.hands.locked().remove(&self.step);
    }
}

impl Hands {
    pub(crate) fn new(app: App) -> Self {
        Self { app, attended: Arc::default(), turns: super::errand::Turns::default() }
    }

    /// Performs one effect. Its facts are durable.
    pub(crate) fn perform(&self, effect: StoryEffect) {
        match effect {
            StoryEffect::StartStep { step, stage, work, left } => {
                self.attend(step, Some(Start { stage, work, left }), false);
            }
            StoryEffect::StopStep(step) => self.attend(step, None, true),
            StoryEffect::AskStep(step) => self.attend(step, None, false),
        }
    }

    /// Has somebody see a step through. Whoever does so already is told if it is to end.
    fn attend(&self, step: StepId, start: Option<Start>, stop: bool) {
        let mut attended = self.locked();
        if let Some(known) = attended.get(&step) {
            if stop {
                known.send_replace(true);
            }
            return;
        }
        let (sender, stops) = watch::channel(stop);
        attended.insert(step.clone(), sender);
        drop(attended);
        let attended = Attended { hands: self.clone(), step };
        tokio::spawn(async move {
            let Attended { hands, step } = &attended;
            if let Err(GiveUp(why)) = hands.see_through(step, start, stops).await {
                tracing::warn!("{step} is not attended to for now: {why}");
                hands.app.troubles.gave_up(&step.story, why);
            }
        });
    }

    /// Nothing is left half-done by whoever panicked: every change is one call.
    fn locked(&self) -> MutexGuard<'_, BTreeMap<StepId, watch::Sender<bool>>> {
        self.attended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn see_through(
        &self,
        step: &StepId,
        start: Option<Start>,
        stops: watch::Receiver<bool>,
    ) -> Result<(), GiveUp> {
        if self.find(step.run().as_str()).await?.is_some() {
            return self.follow(step, stops).await;
        }
        let Some(start) = start.filter(|_| !*stops.borrow()) else {
            return self.never_started(step).await;
        };
        match self.start(step, &start, &stops).await? {
            Started::Yes => self.follow(step, stops).await,
            Started::Without(outcome) => self.ended(step, outcome, Used::default(), None).await,
            Started::No(why) => {
                if let Some(why) = why {
                    self.app.troubles.note(&step.story, why);
                }
                self.never_started(step).await
            }
            Started::Refused(why, message) => {
                self.app.troubles.note(&step.story, message);
                self.refused(step, why).await
            }
        }
    }

    /// The run of this id, whatever became of it.
    pub(super) async fn find(&self, id: &str) -> Result<Option<KeptRun>, GiveUp> {
        match self.app.live.get(id) {
            Some(run) => Ok(Some(run)),
            None => Ok(self.app.store.run(id).await?),
        }
    }

    /// Stays with a run until its death is proven, and tells of it.
    async fn follow(&self, step: &StepId, mut stops: watch::Receiver<bool>) -> Result<(), GiveUp> {
        let id = step.run();
        let mut told = Told::default();
        if let Some(mut changes) = self.app.live.watch(id.as_str()) {
            loop {
                let run = changes.borrow_and_update().clone();
                let stop = *stops.borrow_and_update();
                self.pass_on(step, &run, stop, &mut told).await?;
                if run.state == Standing::Dead {
                    break;
                }
                let mut leaving = self.app.leaving.clone();
                if *leaving.borrow_and_update() {
                    return Err(GiveUp("the daemon is leaving".to_owned()));
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { break },
                    // Those who tell it live as long as we do.
                    _ = stops.changed() => {}
                    () = tokio::time::sleep(AGAIN), if told.stop_owed => {}
                    _ = leaving.changed() => {}
                }
            }
        }
        let run = self.app.known(id.as_str()).await?;
        if run.state != Standing::Dead {
            return Err(GiveUp(format!("run {id} is not proven dead in the store yet")));
        }
        if run.started.is_some() && !told.started {
            self.tell(StoryEvent::StepStarted(step.clone())).await?;
        }
        let Ended { outcome, used, session } = self.outcome(step, &run).await?;
        self.ended(step, outcome, used, session).await
    }

    /// Tells what is new about a run that lives, and has it stopped if it is to end.
    async fn pass_on(
        &self,
        step: &StepId,
        run: &KeptRun,
        stop: bool,
        told: &mut Told,
    ) -> Result<(), GiveUp> {
        if run.started.is_some() && !told.started {
            self.tell(StoryEvent::StepStarted(step.clone())).await?;
            self.app.troubles.forget(&step.story);
            told.started = true;
        }
        if stop && !told.stop && run.state != Standing::Dead {
            // Its own grace. A stop is never lost: what the store has no room for is passed on.
            told.stop = self.app.end(&run.id, Stop::Ask { grace_ms: None }).await.is_ok();
            told.stop_owed = !told.stop;
        }
        if run.state == Standing::Stuck && outcome::is_lost(run) && !told.lost {
            told.lost = true;
            self.ended(step, Outcome::Lost, outcome::used(run), None).await?;
        }
        if let Some(until) = outcome::rate_limited(run)
            && told.rate_limit != Some(until)
            && let Some(provider) = self.provider(step)
        {
            told.rate_limit = Some(until);
            self.tell(StoryEvent::RateLimited { provider, until_ms: until }).await?;
        }
        Ok(())
    }

    /// Who serves the agent of a step.
    fn provider(&self, step: &StepId) -> Option<kennel_supervisor::story::Provider> {
        let now = self.app.stories.now();
        let current = now.story(&step.story)?.step.clone()?;
        let (agent, _) = current.work.agent()?;
        Some(now.pipeline(&step.story.project)?.agent(agent)?.provider.clone())
    }

    async fn never_started(&self, step: &StepId) -> Result<(), GiveUp> {
        self.ended(step, Outcome::NeverStarted, Used::default(), None).await
    }

    async fn refused(&self, step: &StepId, why: TurnedAway) -> Result<(), GiveUp> {
        self.tell(StoryEvent::StepRefused { step: step.clone(), why }).await
    }

    async fn ended(
        &self,
        step: &StepId,
        outcome: Outcome,
        used: Used,
        session: Option<Session>,
    ) -> Result<(), GiveUp> {
        self.tell(StoryEvent::StepEnded { step: step.clone(), outcome, used, session }).await
    }

    /// Tells an event until the store has taken it. What was observed is never refused.
    pub(super) async fn tell(&self, event: StoryEvent) -> Result<(), GiveUp> {
        loop {
            match self.app.inbox.tell_story(event.clone(), None).await {
                Ok(_) => return Ok(()),
                Err(TellError::Leaving) => return Err(GiveUp("the daemon is leaving".to_owned())),
                Err(TellError::Store(_)) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

/// What was told of a run already.
#[derive(Default)]
struct Told {
    started: bool,
    stop: bool,
    /// It is to be stopped, and that was not taken.
    stop_owed: bool,
    lost: bool,
    rate_limit: Option<Option<u64>>,
}
