//! The one loop: decide, commit, apply, perform. Events that came together become durable together.
//!
//! Owns: the state, the connection that writes, and the order in which things become true. Has a
//! thread of its own: a disk that takes its time keeps nobody waiting but those who asked for it.
//! A fact that the store did not take is not believed, and its effects are not performed: whoever
//! told the event is told why, and may tell it again. A stop alone is passed on all the same: its
//! keeper records it before it acts, and tells of it until the store takes it. A full disk must not
//! keep an agent alive that fills it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use kennel_process::Spec;
use kennel_supervisor::story::{
    Seen, StepId, Stories, StoryDecision, StoryEvent, StoryFact, StoryRef, StoryRefusal,
    decide_story,
};
use kennel_supervisor::{Before, Decision, Effect, Event, Fact, Refusal, State, decide};
use tokio::sync::{mpsc, oneshot};

use crate::feed::Feed;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::notice::Named;
use crate::perform::Performer;
use crate::random::new_run_id;
use crate::store::channel::Mark;
use crate::store::consumer::{Ack, Place};
use crate::store::format::{self, Detail};
use crate::store::kept::{KeptRun, Standing};
use crate::store::retention::Bounds;
use crate::store::{Entry, Line, MARK_LETTERS, StoreError, StoryEntry, StoryWords, Writer};
use crate::story::hands::Hands;
use crate::story::now::StoriesNow;
use crate::story::{clock, errand};
use crate::tail::Tails;
use crate::time::Time;

/// Events that may wait: one per run that has something to say, and one per request.
const EVENT_QUEUE: usize = 1024;
/// Events that are committed together at most: more would only make the first one wait.
const BATCH: usize = 256;

/// An event, what is to be kept beside it, and who wants to know what came of it.
#[derive(Debug)]
pub(crate) struct Input {
    event: Event,
    detail: Detail,
    /// The end of the run's output, if the event is told with one.
    tail: Option<Arc<Tails>>,
    /// What to start, if the event asks for a run. Never stored: it holds the environment.
    spec: Option<Box<Spec>>,
    /// True if it becomes durable with the one before it, or neither does.
    joined: bool,
    reply: oneshot::Sender<Result<Outcome, Arc<StoreError>>>,
}

/// An event with its detail, and the end of the run's output if it is told with one.
pub(crate) type Said = (Event, Detail, Option<Arc<Tails>>);

/// What came of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    /// Its facts are durable and its effects under way.
    Done,
    AlreadySo,
    Refused(Refusal),
}

/// An event of stories, the words that are kept with it, and who wants to know what came of it.
#[derive(Debug)]
struct StoryInput {
    event: StoryEvent,
    words: Option<StoryWords>,
    reply: StoryReply,
}

type StoryReply = oneshot::Sender<Result<StoryOutcome, Arc<StoreError>>>;

/// What came of an event of stories.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum StoryOutcome {
    /// Its facts are durable and its effects under way.
    Done,
    AlreadySo,
    Refused(StoryRefusal),
}

/// The way into the loop.
#[derive(Clone, Debug)]
pub(crate) struct Inbox(mpsc::Sender<Message>);

/// The loop's own end of it.
pub(crate) struct Outbox(mpsc::Receiver<Message>);

/// What the loop is told.
#[derive(Debug)]
enum Message {
    Event(Box<Input>),
    Story(Box<StoryInput>),
    /// What lives is to be compared with what stories believe.
    Reconcile(StoryReply),
    /// The key of a repository, which gets one.
    Project(String, oneshot::Sender<Result<String, StoreError>>),
    /// Events that become durable together or not at all.
    Together(Vec<Input>),
    /// Somebody has read so far. Decides nothing.
    Ack(Ack, oneshot::Sender<Result<Place, StoreError>>),
    /// What a channel did. Decides nothing.
    Mark(String, Mark, oneshot::Sender<Result<usize, StoreError>>),
    /// Somebody does not read any more.
    ForgetConsumer(String, oneshot::Sender<Result<bool, StoreError>>),
    /// What is old enough is to go. Decides nothing: only the dead are removed.
    Retain(Bounds, oneshot::Sender<Result<Vec<String>, StoreError>>),
}

pub(crate) fn inbox() -> (Inbox, Outbox) {
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    (Inbox(sender), Outbox(events))
}

impl Inbox {
    /// Tells an event and waits until it is decided and durable.
    pub(crate) async fn tell(&self, event: Event, detail: Detail) -> Result<Outcome, TellError> {
        self.tell_with(event, detail, None).await
    }

    /// Like [`tell`](Self::tell), with what is to be started if it is admitted.
    pub(crate) async fn tell_with(
        &self,
        event: Event,
        detail: Detail,
        spec: Option<Box<Spec>>,
    ) -> Result<Outcome, TellError> {
        self.tell_all(event, detail, None, spec).await
    }

    /// Like [`tell`](Self::tell), with the end of the run's output.
    pub(crate) async fn tell_tail(
        &self,
        event: Event,
        detail: Detail,
        tail: Option<Arc<Tails>>,
    ) -> Result<Outcome, TellError> {
        self.tell_all(event, detail, tail, None).await
    }

    async fn tell_all(
        &self,
        event: Event,
        detail: Detail,
        tail: Option<Arc<Tails>>,
        spec: Option<Box<Spec>>,
    ) -> Result<Outcome, TellError> {
        let (reply, outcome) = oneshot::channel();
        let input = Input { event, detail, tail, spec, joined: false, reply };
        self.0.send(Message::Event(Box::new(input))).await.map_err(|_| TellError::Leaving)?;
        outcome.await.map_err(|_| TellError::Leaving)?.map_err(TellError::Store)
    }

    /// Tells an event of stories and waits until it is decided and durable.
    pub(crate) async fn tell_story(
        &self,
        event: StoryEvent,
        words: Option<StoryWords>,
    ) -> Result<StoryOutcome, TellError> {
        let (reply, outcome) = oneshot::channel();
        let input = StoryInput { event, words, reply };
        self.0.send(Message::Story(Box::new(input))).await.map_err(|_| TellError::Leaving)?;
        outcome.await.map_err(|_| TellError::Leaving)?.map_err(TellError::Store)
    }

    /// Has what lives compared with what stories believe, and waits until that is durable.
    pub(crate) async fn reconcile_stories(&self) -> Result<StoryOutcome, TellError> {
        let (reply, outcome) = oneshot::channel();
        self.0.send(Message::Reconcile(reply)).await.map_err(|_| TellError::Leaving)?;
        outcome.await.map_err(|_| TellError::Leaving)?.map_err(TellError::Store)
    }

    /// The key of a repository; it is known by it from here on.
    pub(crate) async fn project(&self, path: String) -> Result<String, StoreError> {
        let (reply, key) = oneshot::channel();
        self.0.send(Message::Project(path, reply)).await.map_err(|_| StoreError::Gone)?;
        key.await.map_err(|_| StoreError::Gone)?
    }

    /// Tells several events, in this order, that become durable in one transaction or not at all.
    pub(crate) async fn tell_together(&self, all: Vec<Said>) -> Result<(), TellError> {
        let (mut inputs, mut outcomes) = (Vec::new(), Vec::new());
        for (event, detail, tail) in all {
            let (reply, outcome) = oneshot::channel();
            let joined = !inputs.is_empty();
            inputs.push(Input { event, detail, tail, spec: None, joined, reply });
            outcomes.push(outcome);
        }
        self.0.send(Message::Together(inputs)).await.map_err(|_| TellError::Leaving)?;
        for outcome in outcomes {
            let _ = outcome.await.map_err(|_| TellError::Leaving)?.map_err(TellError::Store)?;
        }
        Ok(())
    }

    /// Has kept how far a consumer has read.
    pub(crate) async fn acknowledge(&self, ack: Ack) -> Result<Place, StoreError> {
        let (reply, kept) = oneshot::channel();
        self.0.send(Message::Ack(ack, reply)).await.map_err(|_| StoreError::Gone)?;
        kept.await.map_err(|_| StoreError::Gone)?
    }

    /// Has kept what a channel did. How many rows it was about.
    pub(crate) async fn mark(&self, channel: &str, mark: Mark) -> Result<usize, StoreError> {
        let (reply, kept) = oneshot::channel();
        let message = Message::Mark(channel.to_owned(), mark, reply);
        self.0.send(message).await.map_err(|_| StoreError::Gone)?;
        kept.await.map_err(|_| StoreError::Gone)?
    }

    /// Has a consumer forgotten. True if there was one.
    pub(crate) async fn forget_consumer(&self, name: String) -> Result<bool, StoreError> {
        let (reply, forgotten) = oneshot::channel();
        let message = Message::ForgetConsumer(name, reply);
        self.0.send(message).await.map_err(|_| StoreError::Gone)?;
        forgotten.await.map_err(|_| StoreError::Gone)?
    }

    /// Has removed what is old, and names the runs whose directories are nobody's now.
    pub(crate) async fn retain(&self, bounds: Bounds) -> Result<Vec<String>, StoreError> {
        let (reply, removed) = oneshot::channel();
        let message = Message::Retain(bounds, reply);
        self.0.send(message).await.map_err(|_| StoreError::Gone)?;
        removed.await.map_err(|_| StoreError::Gone)?
    }
}

/// The loop.
pub(crate) struct EventLoop {
    pub(crate) state: State,
    pub(crate) stories: Stories,
    pub(crate) stories_now: StoriesNow,
    pub(crate) hands: Hands,
    pub(crate) writer: Writer,
    pub(crate) live: Live,
    pub(crate) feed: Feed,
    pub(crate) metrics: Metrics,
    pub(crate) performer: Performer,
}

/// An event that the store did not take, and what would have followed from it.
type Refused = (Input, Vec<Effect>);

/// Events that were decided on and are not yet durable.
#[derive(Default)]
struct Batch {
    decided: Vec<(Input, Outcome, Vec<Effect>)>,
    entries: Vec<Entry>,
    /// What to go back to if the store does not take them.
    befores: Vec<Before>,
}

impl EventLoop {
    /// Runs until nobody can tell anything any more.
    pub(crate) fn run(mut self, Outbox(mut messages): Outbox) {
        let mut waiting = Vec::with_capacity(BATCH);
        while messages.blocking_recv_many(&mut waiting, BATCH) > 0 {
            let mut inputs = Vec::with_capacity(waiting.len());
            for message in waiting.drain(..) {
                match message {
                    Message::Event(input) => inputs.push(*input),
                    Message::Story(input) => {
                        // In the order in which they were told.
                        self.take_all(std::mem::take(&mut inputs));
                        self.take_story(*input);
                    }
                    Message::Reconcile(reply) => {
                        self.take_all(std::mem::take(&mut inputs));
                        // Now: a step whose end was told meanwhile would be taken for a stray.
                        let seen = Seen::Steps(clock::seen(&self.live));
                        let event = StoryEvent::Reconcile(seen);
                        self.take_story(StoryInput { event, words: None, reply });
                    }
                    Message::Project(path, reply) => {
                        let _ = reply.send(self.key_of(&path));
                    }
                    Message::Together(all) => inputs.extend(all),
                    Message::Retain(mut bounds, reply) => {
                        bounds.spare = self.current_steps();
                        let _ = reply.send(self.writer.retain(&bounds));
                    }
                    Message::Ack(ack, reply) => {
                        let _ = reply.send(self.writer.acknowledge(&ack));
                    }
                    Message::Mark(channel, mark, reply) => {
                        let _ = reply.send(self.writer.mark(&channel, &mark));
                    }
                    Message::ForgetConsumer(name, reply) => {
                        let _ = reply.send(self.writer.forget_consumer(&name));
                    }
                }
            }
            self.take_all(inputs);
        }
    }

    /// The key of a repository; one that has none gets one that no other home has either.
    fn key_of(&mut self, path: &str) -> Result<String, StoreError> {
        let mark = new_run_id().map_err(StoreError::Io)?;
        let mark = mark.get(..MARK_LETTERS).unwrap_or(&mark);
        self.writer.project(path, mark, Time::now().0)
    }

    /// Decides on an event of stories, makes what follows durable, then performs it. If the store
    /// does not take it, nothing has changed.
    fn take_story(&mut self, input: StoryInput) {
        let StoryInput { event, words, reply } = input;
        let at = Time::now();
        let (facts, effects) = match decide_story(&self.stories, &event, at.0) {
            StoryDecision::AlreadySo => return drop(reply.send(Ok(StoryOutcome::AlreadySo))),
            StoryDecision::Refused(why) => {
                return drop(reply.send(Ok(StoryOutcome::Refused(why))));
            }
            StoryDecision::Do { facts, effects } => (facts, effects),
        };
        if let Err(e) = self.keep_stories(facts, words, at) {
            tracing::error!("{e}; not done: {event:?}");
            return drop(reply.send(Err(Arc::new(e))));
        }
        effects.into_iter().for_each(|effect| self.hands.perform(effect));
        // Whoever asked may have left.
        let _ = reply.send(Ok(StoryOutcome::Done));
    }

    /// Makes facts of stories durable and believed, or neither.
    fn keep_stories(
        &mut self,
        facts: Vec<StoryFact>,
        mut words: Option<StoryWords>,
        at: Time,
    ) -> Result<(), StoreError> {
        if facts.is_empty() {
            return Ok(());
        }
        let before = self.stories.before();
        let mut entries = Vec::with_capacity(facts.len());
        for fact in facts {
            let notice = self.stories.notice_of(&fact).as_ref().map(Named::of_story);
            self.stories.apply(&fact);
            // What was said goes with what was asked for, which comes first.
            let asked = matches!(fact, StoryFact::Added { .. } | StoryFact::Edited { .. });
            let words = if asked { words.take() } else { None };
            entries.push(StoryEntry { fact, at, notice, words });
        }
        match self.writer.commit_stories(&entries) {
            Ok(first) => {
                self.publish_stories(first, &entries);
                Ok(())
            }
            Err(e) => {
                self.stories.undo(before);
                Err(e)
            }
        }
    }

    fn publish_stories(&self, first: u64, entries: &[StoryEntry]) {
        self.stories_now.put(self.stories.clone());
        let numbered = (first..).zip(entries);
        self.feed.append(numbered.map(|(seq, entry)| Line::of_story(seq, entry)).collect());
    }

    /// The runs of steps that are not over for their stories: what they left is still needed.
    fn current_steps(&self) -> Vec<String> {
        let mut runs = Vec::new();
        for project in self.stories.projects() {
            for (id, story) in self.stories.stories(project) {
                let Some(step) = &story.step else { continue };
                let step = StepId { story: StoryRef::new(project, id), number: step.number };
                runs.push(step.run().to_string());
                runs.extend(errand::ids_of(&step));
            }
        }
        runs.extend(self.stories.strays().map(|stray| stray.run().to_string()));
        runs
    }

    fn take_all(&mut self, inputs: Vec<Input>) {
        let alone = !inputs.iter().skip(1).any(|input| !input.joined);
        let Err((refused, e)) = self.take(inputs.into_iter()) else { return };
        if alone {
            return self.refuse(refused, &e);
        }
        // One that cannot be written must not take the others with it.
        let mut left = refused.into_iter().map(|(input, _)| input).peekable();
        while let Some(first) = left.next() {
            let mut together = vec![first];
            while let Some(joined) = left.next_if(|input| input.joined) {
                together.push(joined);
            }
            if let Err((refused, e)) = self.take(together.into_iter()) {
                self.refuse(refused, &e);
            }
        }
    }

    /// Decides on events in their order, makes what follows durable, then performs it. If the store
    /// does not take it, nothing has changed and the events come back.
    fn take(
        &mut self,
        inputs: impl Iterator<Item = Input>,
    ) -> Result<(), (Vec<Refused>, Arc<StoreError>)> {
        let mut batch = Batch::default();
        for input in inputs {
            self.decide(input, &mut batch);
        }
        let Batch { decided, entries, befores } = batch;
        if !entries.is_empty() {
            let begun = Instant::now();
            match self.writer.commit(&entries) {
                Ok(first) => self.publish(first, entries),
                Err(e) => {
                    befores.into_iter().rev().for_each(|before| self.state.undo(before));
                    let refused = decided.into_iter().map(|(input, _, effects)| (input, effects));
                    return Err((refused.collect(), Arc::new(e)));
                }
            }
            self.metrics.commit_took(begun.elapsed());
        }
        for (mut input, outcome, effects) in decided {
            for effect in effects {
                self.performer.perform(effect, &mut input.spec);
            }
            // Whoever asked may have left.
            let _ = input.reply.send(Ok(outcome));
        }
        Ok(())
    }

    /// Says why nothing came of an event; of a stop that somebody asked for, that it is under way.
    fn refuse(&self, refused: Vec<Refused>, error: &Arc<StoreError>) {
        for (mut input, mut effects) in refused {
            // The store could not be told either that it has started.
            if let Event::StopRequested { run, stop } = &input.event
                && self.live.get(run.as_str()).is_some_and(|run| run.state == Standing::Running)
            {
                effects = vec![Effect::Stop { run: run.clone(), stop: *stop }];
            }
            let asked = matches!(
                input.event,
                Event::StopRequested { .. } | Event::ShutdownRequested { .. }
            );
            effects.retain(|effect| matches!(effect, Effect::Stop { .. }));
            let stops = !effects.is_empty();
            for effect in effects {
                self.performer.perform(effect, &mut input.spec);
            }
            // Whoever told what was observed tells it again.
            if asked && stops {
                tracing::warn!("{error}; passed on without the store: {:?}", input.event);
                let _ = input.reply.send(Ok(Outcome::Done));
                continue;
            }
            tracing::error!("{error}; not done: {:?}", input.event);
            let _ = input.reply.send(Err(error.clone()));
        }
    }

    /// Decides on one event as if all before it were durable already. Nobody hears of it, and
    /// nothing is done, before they are.
    fn decide(&mut self, input: Input, batch: &mut Batch) {
        let (outcome, effects) = match decide(&self.state, &input.event) {
            Decision::AlreadySo => (Outcome::AlreadySo, Vec::new()),
            Decision::Refused(refusal) => (Outcome::Refused(refusal), Vec::new()),
            Decision::Do { facts, effects } => {
                let at = Time::now();
                for fact in facts {
                    let run = fact.run().cloned().unwrap_or_else(|| "".into());
                    batch.befores.push(self.state.before(&run));
                    let notice = self.state.notice_of(&fact);
                    self.state.apply(&fact);
                    let state = Standing::of(self.state.run(&run).map(|known| known.phase));
                    // What is said of the run that was asked for is not said of its children.
                    let own = input.event.run().is_none_or(|asked| *asked == run);
                    let detail = match (&input.event, &fact) {
                        (Event::ShutdownRequested { .. }, Fact::Stopping { .. }) => {
                            Detail::Shutdown
                        }
                        _ if own => input.detail.clone(),
                        _ => Detail::Nothing,
                    };
                    let notice = notice.map(|notice| {
                        let known = self.live.get(notice.run.as_str());
                        let notify = known.map(|run| run.request.notify).unwrap_or_default();
                        Named::new(&notice, notify, &detail)
                    });
                    let tail = input.tail.clone().filter(|_| notice.is_some());
                    batch.entries.push(Entry { fact, detail, state, at, notice, tail });
                }
                (Outcome::Done, effects)
            }
        };
        batch.decided.push((input, outcome, effects));
    }

    /// What is durable is shown: to those who ask, to those who wait, to those who follow.
    fn publish(&self, first: u64, entries: Vec<Entry>) {
        let mut lines = Vec::with_capacity(entries.len());
        let mut runs = Vec::new();
        for (n, entry) in entries.into_iter().enumerate() {
            let run = self.changed(&entry, &runs);
            let fact = Arc::new(format::Fact::from(&entry.fact));
            let detail = entry.detail.of_a_line();
            lines.push(Line {
                seq: first + n as u64,
                at: entry.at,
                run: run.as_ref().map(|run| run.id.clone()),
                slot: run.as_ref().map(|run| run.slot.clone()),
                fact,
                detail: Arc::new(detail),
                notice: entry.notice.map(Arc::new),
                tail: entry.tail,
            });
            if let Some(run) = run {
                self.metrics.changed(&run, &lines[n]);
                runs.push(run);
            }
        }
        self.live.put_all(runs, || self.feed.append(lines));
    }

    /// The run of a fact after it, given what those before it in the same commit made of runs.
    fn changed(&self, entry: &Entry, before: &[KeptRun]) -> Option<KeptRun> {
        let run = entry.fact.run()?;
        match (&entry.fact, &entry.detail) {
            (kennel_supervisor::Fact::Admitted { claim, .. }, Detail::Request(request)) => {
                Some(KeptRun::admitted(run, claim, request.clone()))
            }
            _ => {
                let just = before.iter().rev().find(|known| &*known.id == run.as_str());
                let known = just.cloned().or_else(|| self.live.get(run.as_str()))?;
                Some(known.after(entry.state, &entry.detail))
            }
        }
    }
}

/// Why an event was not taken.
#[derive(Debug)]
pub(crate) enum TellError {
    /// The daemon is leaving. The event will be found again by the next one.
    Leaving,
    /// The store did not take its facts. Nothing has changed; it can be told again.
    Store(Arc<StoreError>),
}

impl fmt::Display for TellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving => f.write_str("the daemon is leaving"),
            Self::Store(e) => e.fmt(f),
        }
    }
}
