//! The one match over effects: what the mind asked for becomes a call.
//!
//! Owns: who does it (a task for each run, a blocking call for a stop). Returns nothing: every
//! outcome, failure included, comes back as an event.

use std::time::Duration;

use kennel_process::{Connection, ConnectionError, Spec};
use kennel_supervisor::{Effect, RunId, Stop};
use tokio::sync::watch;

use crate::observe::Observer;

/// A keeper that has not taken a stop so often makes its run stuck.
const STOP_TRIES: u32 = 3;
/// How often a stop is offered at most: for about an hour. Whoever asks again begins anew.
const MAX_OFFERS: u32 = 120;
/// Pause before a stop is offered again; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Performs effects.
#[derive(Clone, Debug)]
pub(crate) struct Performer {
    pub(crate) observer: Observer,
    pub(crate) leaving: watch::Sender<bool>,
}

impl Performer {
    /// Performs one effect. Its facts are durable: the loop committed them before it called.
    pub(crate) fn perform(&self, effect: Effect, spec: &mut Option<Box<Spec>>) {
        match effect {
            Effect::Start(run) => {
                let (observer, spec) = (self.observer.clone(), spec.take());
                tokio::spawn(async move {
                    match spec {
                        Some(spec) => observer.start_and_watch(&run, spec).await,
                        // A start is only ever asked for together with what to start.
                        None => observer.not_started(&run, "there is nothing to start").await,
                    }
                });
            }
            Effect::Adopt(run) => {
                let observer = self.observer.clone();
                tokio::spawn(async move { observer.adopt_and_watch(&run).await });
            }
            Effect::Stop { run, stop } => {
                let observer = self.observer.clone();
                tokio::spawn(async move { stop_run(&observer, run, stop).await });
            }
            Effect::Leave => {
                self.leaving.send_replace(true);
            }
        }
    }
}

/// Offers a stop to the run's keeper until it is taken, for an hour. The journal has it, so that
/// whoever was told of it need not ask again; a keeper that was made to stand still may wake up any
/// time.
async fn stop_run(observer: &Observer, run: RunId, stop: Stop) {
    let dir = observer.home.run_dir(run.as_str());
    let mut pause = FIRST_PAUSE;
    for attempt in 1..=MAX_OFFERS {
        let dir = dir.clone();
        // Never closed.
        let turn = observer.stops.acquire().await;
        let asked = tokio::task::spawn_blocking(move || {
            // One that somebody, its own agent perhaps, made stand still is to hear it.
            if attempt > 1 {
                kennel_process::wake_keeper(&dir);
            }
            Connection::open(&dir).and_then(|mut keeper| match stop {
                Stop::Ask { grace_ms } => keeper.stop(grace_ms.map(Duration::from_millis)),
                Stop::Force => keeper.kill(),
            })
        });
        let asked = asked.await;
        drop(turn);
        match asked {
            Ok(Ok(())) => return,
            Ok(Err(e @ (ConnectionError::NoAnswer | ConnectionError::Refused(_)))) => {
                tracing::warn!(%run, attempt, "the stop was not taken: {e}");
                if attempt == STOP_TRIES {
                    observer.stuck(&run, format!("its keeper does not take a stop: {e}")).await;
                }
            }
            // It is gone, and whoever stops what it left behind is told how soon; or it could not
            // be reached for a reason that passes, and is asked again.
            Ok(Err(_)) => observer.hurry(&run, stop),
            // The daemon is leaving; the next one finds the stop in the journal.
            Err(_) => return,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        // Over, or lost: there is nobody to offer it to.
        if observer.live.get(run.as_str()).is_none_or(|known| known.ended.is_some()) {
            return;
        }
    }
}
