//! The one match over effects: what the mind asked for becomes a call.
//!
//! Owns: who does it (a thread of its own for each run, a blocking task for a stop). Returns
//! nothing: every outcome, failure included, comes back as an event.

use std::time::Duration;

use kennel_process::{Connection, ConnectionError, Spec};
use kennel_supervisor::{Effect, RunId, Stop};
use tokio::sync::watch;

use crate::observe::{Observer, RUN_STACK_BYTES};

/// How often a stop is offered to a keeper that does not answer.
const STOP_TRIES: u32 = 3;

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
            Effect::Start(run) => self.start(run, spec.take()),
            Effect::Stop { run, stop } => self.stop(run, stop),
            Effect::Leave => {
                self.leaving.send_replace(true);
            }
        }
    }

    fn start(&self, run: RunId, spec: Option<Box<Spec>>) {
        let observer = self.observer.clone();
        let id = run.clone();
        let thread = std::thread::Builder::new()
            .name(format!("run {run}"))
            .stack_size(RUN_STACK_BYTES)
            .spawn(move || match spec {
                Some(spec) => observer.start_and_watch(&run, &spec),
                // A start is only ever asked for together with what to start.
                None => observer.not_started(&run, "there is nothing to start"),
            });
        if let Err(e) = thread {
            let observer = self.observer.clone();
            let why = format!("failed to start a thread for the run: {e}");
            tokio::task::spawn_blocking(move || observer.not_started(&id, &why));
        }
    }

    fn stop(&self, run: RunId, stop: Stop) {
        let observer = self.observer.clone();
        tokio::task::spawn_blocking(move || {
            let dir = observer.home.run_dir(run.as_str());
            for attempt in 1..=STOP_TRIES {
                let asked = Connection::open(&dir).and_then(|mut keeper| match stop {
                    Stop::Ask { grace_ms } => keeper.stop(grace_ms.map(Duration::from_millis)),
                    Stop::Force => keeper.kill(),
                });
                match asked {
                    Ok(()) => return,
                    Err(e @ (ConnectionError::NoAnswer | ConnectionError::Refused(_))) => {
                        tracing::warn!(%run, attempt, "the stop was not taken: {e}");
                        if attempt == STOP_TRIES {
                            observer.stuck(&run, format!("its keeper does not take a stop: {e}"));
                        }
                    }
                    // It is gone. The thread of the run notices too, and knows what to do.
                    Err(_) => return,
                }
            }
        });
    }
}
