//! What happens to stories by time alone: waits that are over, looks at what lives, configuration
//! that changed. Owns when; what follows is the mind's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kennel_supervisor::story::{ProjectKey, SeenStep, StoryEffect, StoryEvent};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::hands::Hands;
use crate::api::App;
use crate::event_loop::{StoryOutcome, TellError};
use crate::live::Live;
use crate::store::format::Part;
use crate::store::kept::{KeptRun, Standing};
use crate::time::Time;

/// How often it is looked what lives: whatever was lost on the way is found then.
const RECONCILE_EVERY: Duration = Duration::from_secs(30);
/// How often files of projects that have stories are looked at for changes.
const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// The longest sleep: a clock that was set is noticed then.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// The shortest: a wait whose end is now must not make a loop.
const SHORTEST_SLEEP: Duration = Duration::from_millis(5);

/// Keeps stories going, until the daemon leaves.
pub(crate) async fn run(hands: Hands) {
    let app = hands.app.clone();
    if let Err(e) = remember(&hands).await {
        tracing::error!("failed to read what is known of projects: {e}");
    }
    let mut changes = app.stories.watch();
    let (mut reconciled, mut reloaded) = (None::<Instant>, None::<Instant>);
    let mut leaving = app.leaving.clone();
    let mut reloading = None::<JoinHandle<()>>;
    let unusable = Unusable::default();
    let mut wake = None::<u64>;
    loop {
        let stories = changes.borrow_and_update().clone();
        let any = stories.projects().next().is_some();
        let idle = reloading.as_ref().is_none_or(JoinHandle::is_finished);
        if any && idle && due(reloaded, RELOAD_EVERY) {
            // Beside the rest: a file system that hangs must not hold up what is not on it.
            let (app, unusable) = (app.clone(), unusable.clone());
            reloading = Some(tokio::spawn(async move { reload(&app, &unusable).await }));
            reloaded = Some(Instant::now());
        }
        if any && due(reconciled, RECONCILE_EVERY) {
            heard(app.inbox.reconcile_stories().await);
            reconciled = Some(Instant::now());
        }
        if *leaving.borrow_and_update() {
            return;
        }
        // One that passed while something else was done is still owed.
        wake = wake.into_iter().chain(stories.next_wake(Time::now().0)).min();
        let until_wake = wake.map(|at| Duration::from_millis(at.saturating_sub(Time::now().0)));
        let rest = if any { RELOAD_EVERY } else { LONGEST_SLEEP };
        let sleep = until_wake.unwrap_or(rest).clamp(SHORTEST_SLEEP, rest);
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(sleep) => {
                let over = wake.take_if(|at| Time::now().0 >= *at);
                if over.is_some() {
                    tell(&app, StoryEvent::Tick).await;
                }
            }
            _ = leaving.changed() => {}
        }
    }
}

fn due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

/// What a daemon that begins has to know: repositories, landings, and who attends to what lives.
async fn remember(hands: &Hands) -> Result<(), crate::store::StoreError> {
    let app = &hands.app;
    hands.remember_landings().await?;
    for step in seen(&app.live) {
        hands.perform(StoryEffect::AskStep(step.step));
    }
    Ok(())
}

/// All steps whose runs live, or are not proven dead.
pub(crate) fn seen(live: &Live) -> Vec<SeenStep> {
    let one = |run: KeptRun| {
        let of = run.request.step.as_ref().filter(|of| of.part == Part::Step)?;
        let stopping = match run.state {
            Standing::Stopping | Standing::Stuck => true,
            Standing::Starting | Standing::Running => false,
            // The store does not have it yet, and its slot is not free.
            Standing::Dead => true,
        };
        Some(SeenStep { step: of.step(), stopping })
    };
    live.all().into_iter().filter_map(one).collect()
}

/// Projects whose configuration could not be used when it was last read.
type Unusable = Arc<Mutex<BTreeSet<ProjectKey>>>;

/// Reads what projects with stories say now. What cannot be used changes nothing; once it can be
/// again, whoever waited for it is told at once.
async fn reload(app: &App, unusable: &Unusable) {
    let stories = app.stories.now();
    let mut again = false;
    for key in stories.projects() {
        if stories.stories(key).next().is_none() {
            continue;
        }
        let Some(path) = app.projects.path(key.as_str()) else { continue };
        match app.project_at(path).await {
            Ok(now) => {
                let was_unusable = locked(unusable).remove(key);
                again |= was_unusable;
                if was_unusable || stories.pipeline(key) != Some(&*now.pipeline) {
                    let (project, pipeline) = (key.clone(), now.pipeline.clone());
                    tell(app, StoryEvent::PipelineRead { project, pipeline }).await;
                }
            }
            Err(_) => {
                locked(unusable).insert(key.clone());
                tell(app, StoryEvent::PipelineUnreadable(key.clone())).await;
            }
        }
    }
    if again {
        // Steps that were given up for want of it are asked for anew.
        heard(app.inbox.reconcile_stories().await);
    }
}

/// Nothing is left half-done by whoever panicked: every change is one call.
fn locked(unusable: &Unusable) -> MutexGuard<'_, BTreeSet<ProjectKey>> {
    unusable.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells something that will be told again if it is lost.
async fn tell(app: &App, event: StoryEvent) {
    heard(app.inbox.tell_story(event, None).await);
}

fn heard(told: Result<StoryOutcome, TellError>) {
    match told {
        Ok(_) | Err(TellError::Leaving) => {}
        Err(TellError::Store(e)) => tracing::warn!("stories stand still: {e}"),
    }
}
