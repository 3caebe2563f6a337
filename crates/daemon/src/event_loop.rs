//! The one loop: decide, commit, apply, perform. One event at a time.
//!
//! Owns: the state, and the order in which things become true. A fact that the store did not take
//! is not believed, and its effects are not performed: whoever told the event is told why, and may
//! tell it again.

use std::fmt;

use kennel_process::Spec;
use kennel_supervisor::{Decision, Event, Fact, Refusal, RunId, State, decide};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::perform::Performer;
use crate::store::format::{Detail, state_word};
use crate::store::{Commit, Store, StoreError};
use crate::time::Time;

/// Events that may wait: one per run that has something to say, and one per request.
const EVENT_QUEUE: usize = 1024;
/// Changes a slow waiter may miss before it has to look at the store again.
const CHANGE_QUEUE: usize = 1024;

/// An event, what is to be kept beside it, and who wants to know what came of it.
#[derive(Debug)]
pub(crate) struct Input {
    event: Event,
    detail: Detail,
    /// What to start, if the event asks for a run. Never stored: it holds the environment.
    spec: Option<Box<Spec>>,
    reply: oneshot::Sender<Result<Outcome, StoreError>>,
}

/// What came of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// Its facts are durable and its effects under way.
    Done,
    AlreadySo,
    Refused(Refusal),
}

/// The way into the loop.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    events: mpsc::Sender<Input>,
    changes: broadcast::Sender<RunId>,
}

/// The loop's own end of it.
pub(crate) struct Loop {
    events: mpsc::Receiver<Input>,
    changes: broadcast::Sender<RunId>,
}

pub(crate) fn inbox() -> (Inbox, Loop) {
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let (changes, _) = broadcast::channel(CHANGE_QUEUE);
    (Inbox { events: sender, changes: changes.clone() }, Loop { events, changes })
}

impl Inbox {
    /// Tells an event and waits until it is decided and durable.
    pub(crate) async fn tell(
        &self,
        event: Event,
        detail: Detail,
        spec: Option<Box<Spec>>,
    ) -> Result<Outcome, TellError> {
        let (reply, outcome) = oneshot::channel();
        let input = Input { event, detail, spec, reply };
        self.events.send(input).await.map_err(|_| TellError::Leaving)?;
        outcome.await.map_err(|_| TellError::Leaving)?.map_err(TellError::Store)
    }

    /// Like [`tell`](Self::tell), from a thread outside the runtime.
    pub(crate) fn tell_blocking(&self, event: Event, detail: Detail) -> Result<Outcome, TellError> {
        let (reply, outcome) = oneshot::channel();
        let input = Input { event, detail, spec: None, reply };
        self.events.blocking_send(input).map_err(|_| TellError::Leaving)?;
        outcome.blocking_recv().map_err(|_| TellError::Leaving)?.map_err(TellError::Store)
    }

    /// Every change from here on, by the run it is about.
    pub(crate) fn changes(&self) -> broadcast::Receiver<RunId> {
        self.changes.subscribe()
    }
}

/// Runs until the daemon is to leave.
pub(crate) async fn run(mut state: State, store: Store, performer: Performer, mut ends: Loop) {
    while let Some(Input { event, detail, mut spec, reply }) = ends.events.recv().await {
        let outcome = match decide(&state, &event) {
            Decision::AlreadySo => Ok(Outcome::AlreadySo),
            Decision::Refused(refusal) => Ok(Outcome::Refused(refusal)),
            Decision::Do { facts, effects } => {
                let committed = commit(&state, &store, &facts, detail).await;
                committed.map(|()| {
                    for fact in &facts {
                        state.apply(fact);
                        // Nobody may be waiting, and that is fine.
                        fact.run().map(|run| ends.changes.send(run.clone()));
                    }
                    for effect in effects {
                        performer.perform(effect, &mut spec);
                    }
                    Outcome::Done
                })
            }
        };
        if let Err(e) = &outcome {
            tracing::error!("{e}; not done: {event:?}");
        }
        let _ = reply.send(outcome);
        if state.is_shutting_down() {
            return;
        }
    }
}

async fn commit(
    state: &State,
    store: &Store,
    facts: &[Fact],
    detail: Detail,
) -> Result<(), StoreError> {
    if facts.is_empty() {
        return Ok(());
    }
    // What the facts will make of their run is asked of the same code that will make it so.
    let run = facts.iter().find_map(Fact::run);
    let phase = run.and_then(|run| {
        let mut after = state.only(run);
        facts.iter().for_each(|fact| after.apply(fact));
        after.run(run).map(|known| known.phase)
    });
    let at_ms = Time::now().0;
    store.commit(Commit { facts: facts.to_vec(), detail, state: state_word(phase), at_ms }).await
}

/// Why an event was not taken.
#[derive(Debug)]
pub(crate) enum TellError {
    /// The daemon is leaving. The event will be found again by the next one.
    Leaving,
    /// The store did not take its facts. Nothing has changed; it can be told again.
    Store(StoreError),
}

impl fmt::Display for TellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving => f.write_str("the daemon is leaving"),
            Self::Store(e) => e.fmt(f),
        }
    }
}
