//! What keepers say becomes events: one task per run, from its start or its adoption to its end.
//!
//! ```text
//! start -----> watch the keeper ---- ended ----> kept, acknowledged, over
//!                 |       ^
//!      keeper lost|       | it answers
//!                 v       |
//! adopt -----> look at the run's directory ----> ended | never started ----> kept, over
//!                 |
//!                 +--> orphaned: stop it from here
//!                 +--> unreadable, or silent: stuck, look again later
//! ```
//!
//! Owns: the only place where a proof becomes a death. Never infers one from a closed connection,
//! a missing file or a time-out. An ending is acknowledged to its keeper after it is durable here.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kennel_process::{
    Adopted, Asked, Cause, Connection, ConnectionError, End, Event as Told, Hurry, LimitReached,
    Liveness, Orphan, OutputTotals, Process, Spec, StartError, StartFailure, StartStage,
    State as KeeperState, Status, Survivor, Swept, Told as Heard, Verdict, adopt, ended_by_reboot,
};
use kennel_supervisor::{Doing, Ending, Event, Note, RunId, Stop};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::charge::Charges;
use crate::event_loop::{Inbox, Said, TellError};
use crate::home::Home;
use crate::live::Live;
use crate::meter;
use crate::metrics::Metrics;
use crate::redact::Secrets;
use crate::store::Store;
use crate::store::format::{Detail, Ended, Stuck};
use crate::store::kept::Standing;
use crate::tail::{Offsets, Tails};
use crate::time::Time;
use crate::watch::{Allowance, Lookout};

/// Starts under way at once: more would only make all of them slower.
const STARTS_AT_ONCE: usize = 16;
/// Runs looked at at once after a restart.
const LOOKS_AT_ONCE: usize = 32;
/// Stops handed over at once.
const STOPS_AT_ONCE: usize = 16;
/// Enough for the kill protocol; a sweep waits out graces and has a thread of its own.
const SWEEP_STACK_BYTES: usize = 512 << 10;
/// Pause before a run that cannot be looked at is looked at again, or before the store is offered a
/// fact again; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before a run is looked at again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause before the store is offered a fact again: space may be back any moment.
const LONGEST_STORE_PAUSE: Duration = Duration::from_secs(2);
/// Pause before what is owed to the store is offered again while its run goes on.
const OWED_PAUSE: Duration = Duration::from_millis(500);
/// How long the exit of a leader waits for the end of its run, to be told with it: most come within
/// a millisecond, and each would be a sync of its own. A run that others hold open says so later.
const EXIT_PAUSE: Duration = Duration::from_millis(20);
/// Events of one run that may be owed: a keeper tells a handful in its life.
const MAX_OWED: usize = 16;
/// How long an end waits to be shown until its output has been searched for what is watched.
const SEARCH_BOUND: Duration = Duration::from_secs(2);
/// What a keeper may say in one go before others get their turn.
const HEARD_AT_ONCE: usize = 64;

/// Observes runs and tells the loop.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(crate) home: Home,
    pub(crate) inbox: Inbox,
    pub(crate) live: Live,
    pub(crate) metrics: Metrics,
    pub(crate) store: Store,
    pub(crate) charges: Charges,
    /// How many matches of all runs together may be told.
    pub(crate) matches: Arc<Mutex<Allowance>>,
    starts: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    pub(crate) stops: Arc<Semaphore>,
    /// How soon runs are to end whose keepers could not be told.
    hurries: Arc<Mutex<BTreeMap<RunId, Hurry>>>,
}

/// What a run's task does next.
enum Next {
    Watch(Connection),
    /// Its keeper tells what happens, and has said how things stood before.
    Listen(Connection, Box<Status>),
    LookAgain,
    Over,
}

/// The daemon is leaving: whatever was observed will be observed again by the next one.
pub(crate) struct Leaving;

impl Observer {
    pub(crate) fn new(
        home: Home,
        inbox: Inbox,
        live: Live,
        metrics: Metrics,
        store: Store,
    ) -> Self {
        let starts = Arc::new(Semaphore::new(STARTS_AT_ONCE));
        let looks = Arc::new(Semaphore::new(LOOKS_AT_ONCE));
        let stops = Arc::new(Semaphore::new(STOPS_AT_ONCE));
        Self {
            home,
            inbox,
            live,
            metrics,
            store,
            charges: Charges::default(),
            matches: Allowance::of_all(),
            starts,
            looks,
            stops,
            hurries: Arc::default(),
        }
    }

    /// Starts a run that was admitted, and stays with it.
    pub(crate) async fn start_and_watch(&self, run: &RunId, spec: Box<Spec>) {
        let dir = self.home.run_dir(run.as_str());
        let started = {
            // Never closed.
            let _turn = self.starts.acquire().await;
            let start = tokio::task::spawn_blocking(move || {
                let mut run = kennel_process::start(&spec, &dir)?;
                // At once: a short run is over before its start is durable here.
                let asked = run.connection.ask_to_watch_and_ack().ok();
                Ok((run, asked))
            });
            match start.await {
                Ok(started) => started,
                // Whoever panicked has told nobody what became of it.
                Err(e) if e.is_panic() => Err(StartError::KeeperDied),
                Err(_) => return,
            }
        };
        let mut attending = Attending::new(self, run);
        let next = match started {
            Ok((started, asked)) => {
                let detail = Detail::Started(Arc::new(started.started));
                attending.leader = Some(started.leader);
                let told = attending.tell_started(detail);
                let (told, watched) = tokio::join!(told, watched(started.connection, asked));
                match (told, watched) {
                    (Ok(()), Ok(next)) => next,
                    (Err(Leaving), _) | (_, Err(Leaving)) => return,
                }
            }
            // Somebody was there before, and may be there still: what lives is not "never started".
            Err(StartError::Failed(failure))
                if failure.stage == StartStage::Directory && failure.errno.is_none() =>
            {
                Next::LookAgain
            }
            Err(StartError::Failed(failure)) => {
                let failure = self.without_credentials(run, failure);
                let ended = Ended::NeverStarted {
                    message: failure.to_string(),
                    failure: Some(failure),
                    at_ms: Time::now().0,
                    interrupted: false,
                };
                let _ = self.tell_end(run, Ending::NeverStarted, ended).await;
                return;
            }
            Err(
                e @ (StartError::Spec(_)
                | StartError::TooLarge(_)
                | StartError::Directory(_)
                | StartError::Launch(_)),
            ) => return self.not_started(run, &e.to_string()).await,
            // Whether it runs is not known from here: its directory knows.
            Err(StartError::KeeperDied | StartError::NoAnswer | _) => Next::LookAgain,
        };
        let _ = attending.attend(next).await;
        self.forget_hurry(run);
    }

    /// Takes a run of an earlier daemon back, and stays with it.
    pub(crate) async fn adopt_and_watch(&self, run: &RunId) {
        let mut attending = Attending::new(self, run);
        let _ = attending.attend(Next::LookAgain).await;
        self.forget_hurry(run);
    }

    /// Nothing of this run was ever started.
    pub(crate) async fn not_started(&self, run: &RunId, why: &str) {
        let _ = self.tell_not_started(run, why, false).await;
    }

    async fn tell_not_started(
        &self,
        run: &RunId,
        why: &str,
        interrupted: bool,
    ) -> Result<(), Leaving> {
        let message = self.secrets_of(run).redact(why.as_bytes());
        let at_ms = Time::now().0;
        let ended = Ended::NeverStarted { message, failure: None, at_ms, interrupted };
        self.tell_end(run, Ending::NeverStarted, ended).await
    }

    /// A run cannot be looked at or asked. Its slot stays taken.
    pub(crate) async fn stuck(&self, run: &RunId, reason: String) {
        let _ = self.tell_stuck(run, reason, Vec::new(), 0).await;
    }

    /// Its keeper is gone: whoever stops what is left is to do so this soon.
    pub(crate) fn hurry(&self, run: &RunId, stop: Stop) {
        if self.live.get(run.as_str()).is_none() {
            return;
        }
        match stop {
            Stop::Force => self.hurry_of(run).to(Duration::ZERO),
            Stop::Ask { grace_ms: Some(ms) } => self.hurry_of(run).to(Duration::from_millis(ms)),
            // Its own grace, which it gets anyway.
            Stop::Ask { grace_ms: None } => {}
        }
    }

    fn hurry_of(&self, run: &RunId) -> Hurry {
        let mut hurries = self.hurries.lock().unwrap_or_else(PoisonError::into_inner);
        hurries.entry(run.clone()).or_default().clone()
    }

    fn forget_hurry(&self, run: &RunId) {
        self.hurries.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    /// Tells an event until the store has taken it.
    pub(crate) async fn tell(&self, event: Event, detail: &Detail) -> Result<(), Leaving> {
        self.tell_with(event, detail, None).await
    }

    /// The same, with the end of the run's output.
    pub(crate) async fn tell_with(
        &self,
        event: Event,
        detail: &Detail,
        tail: Option<Arc<Tails>>,
    ) -> Result<(), Leaving> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.inbox.tell_tail(event.clone(), detail.clone(), tail.clone()).await {
                Ok(_) => return Ok(()),
                Err(TellError::Leaving) => return Err(Leaving),
                Err(TellError::Store(_)) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_STORE_PAUSE);
                }
            }
        }
    }

    async fn tell_stuck(
        &self,
        run: &RunId,
        reason: String,
        survivors: Vec<Survivor>,
        count: u64,
    ) -> Result<(), Leaving> {
        let detail = Detail::Stuck(Arc::new(Stuck { reason, survivors, count }));
        self.tell(Event::Stuck(run.clone()), &detail).await
    }

    async fn tell_end(&self, run: &RunId, ending: Ending, ended: Ended) -> Result<(), Leaving> {
        self.tell_end_after(run, ending, ended, None, Vec::new()).await
    }

    /// Tells an end, and in the same commit what came right before it.
    async fn tell_end_after(
        &self,
        run: &RunId,
        ending: Ending,
        ended: Ended,
        tail: Option<Arc<Tails>>,
        before: Vec<Said>,
    ) -> Result<(), Leaving> {
        let detail = Detail::Ended(Arc::new(ended));
        let mut all = before;
        all.push((Event::Ended { run: run.clone(), ending }, detail.clone(), tail));
        let mut pause = FIRST_PAUSE;
        loop {
            match self.inbox.tell_together(all.clone()).await {
                Ok(()) => return Ok(()),
                Err(TellError::Leaving) => return Err(Leaving),
                Err(TellError::Store(_)) => {
                    self.foretell_end(run, ending, &detail);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_STORE_PAUSE);
                }
            }
        }
    }

    /// Reads the end of what a run wrote, for whoever is told of its own end.
    fn read_tail(&self, run: &RunId) -> JoinHandle<(Tails, Offsets)> {
        let (dir, secrets) = (self.home.run_dir(run.as_str()), self.secrets_of(run));
        tokio::task::spawn_blocking(move || Tails::since(&dir, Offsets::default(), &secrets))
    }

    fn secrets_of(&self, run: &RunId) -> Secrets {
        self.live.get(run.as_str()).map(|known| known.request.secrets.clone()).unwrap_or_default()
    }

    /// Why a program did not start, as it may be told: it names what was asked for.
    fn without_credentials(&self, run: &RunId, failure: StartFailure) -> StartFailure {
        let secrets = self.secrets_of(run);
        let (path, message) = (failure.path.as_bytes(), failure.message.as_bytes());
        let (path, message) = (secrets.redact(path), secrets.redact(message));
        StartFailure { path, message, ..failure }
    }

    /// Whoever waits for an end must not wait for space.
    fn foretell_end(&self, run: &RunId, ending: Ending, detail: &Detail) {
        match ending {
            Ending::Dead | Ending::NeverStarted => {
                self.live.foretell(run.as_str(), Standing::Dead, detail);
            }
            Ending::Lost => {}
        }
    }
}

/// One task's attention to one run.
struct Attending<'a> {
    observer: &'a Observer,
    run: &'a RunId,
    /// The leader held open since the start: knows its status even if the keeper is killed.
    leader: Option<Process>,
    /// What the store could not take yet, for want of space. Told in this order, so that the run is
    /// attended to meanwhile.
    owed: VecDeque<(Event, Detail)>,
    /// Who looks out for something in its output.
    lookout: Option<Lookout>,
    /// The end of its output, read from its exit on, while its keeper makes the end durable.
    read_ahead: Option<JoinHandle<(Tails, Offsets)>>,
    /// What the agent was last said to be doing, and how often it had waited. Not known after a
    /// restart: what was told of it before, the mind knows.
    doing: Option<(Doing, u64)>,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.observer.charges.forget_files(self.run.as_str());
    }
}

impl<'a> Attending<'a> {
    fn new(observer: &'a Observer, run: &'a RunId) -> Self {
        if let Some(known) = observer.live.get(run.as_str()) {
            observer.charges.link(run.as_str(), known.request.parent.as_deref());
        }
        let lookout = Lookout::begin(observer, run);
        let (leader, owed, doing) = (None, VecDeque::new(), None);
        Self { observer, run, leader, owed, lookout, read_ahead: None, doing }
    }

    async fn attend(&mut self, mut next: Next) -> Result<(), Leaving> {
        let mut pause = FIRST_PAUSE;
        loop {
            next = match next {
                Next::Watch(connection) => {
                    pause = FIRST_PAUSE;
                    watched(connection, None).await?
                }
                Next::Listen(connection, status) => self.listen(connection, *status).await?,
                Next::LookAgain => self.look(&mut pause).await?,
                Next::Over => return Ok(()),
            };
        }
    }

    /// Tells an event, or owes it to a store that cannot take it.
    async fn tell(&mut self, event: Event, detail: Detail) -> Result<(), Leaving> {
        self.owe(event, detail).await?;
        self.pay().await
    }

    /// Has an event told with what comes next.
    async fn owe(&mut self, event: Event, detail: Detail) -> Result<(), Leaving> {
        if self.owed.len() == MAX_OWED {
            self.settle().await?;
        }
        self.owed.push_back((event, detail));
        Ok(())
    }

    /// Tells what is owed, as far as the store takes it.
    async fn pay(&mut self) -> Result<(), Leaving> {
        while let Some((event, detail)) = self.owed.front() {
            match self.observer.inbox.tell(event.clone(), detail.clone()).await {
                Ok(_) => drop(self.owed.pop_front()),
                Err(TellError::Leaving) => return Err(Leaving),
                Err(TellError::Store(_)) => break,
            }
        }
        Ok(())
    }

    /// Tells all that is owed, however long the store takes.
    async fn settle(&mut self) -> Result<(), Leaving> {
        while let Some((event, detail)) = self.owed.pop_front() {
            self.observer.tell(event, &detail).await?;
        }
        Ok(())
    }

    /// Its record has the start: who asked for it need not wait for space either.
    async fn tell_started(&mut self, detail: Detail) -> Result<(), Leaving> {
        self.tell(Event::Started(self.run.clone()), detail.clone()).await?;
        if !self.owed.is_empty() {
            self.observer.live.foretell(self.run.as_str(), Standing::Running, &detail);
        }
        Ok(())
    }

    /// The only place where a proof becomes a death.
    async fn tell_recorded_end(&mut self, mut end: Box<End>) -> Result<(), Leaving> {
        let failure = end.start_error.take();
        end.start_error = failure.map(|why| self.observer.without_credentials(self.run, why));
        let ending = match &end.verdict {
            Verdict::Dead(_proof) => Ending::Dead,
            Verdict::Lost(_) => Ending::Lost,
        };
        let mut searched = true;
        if let Some(lookout) = self.lookout.take() {
            let mut search = std::pin::pin!(lookout.finish());
            // Whoever waits for the end need not wait for a long search, nor for space.
            searched = match tokio::time::timeout(SEARCH_BOUND, &mut search).await {
                Ok(searched) => searched,
                Err(_) => {
                    let detail = Detail::Ended(Arc::new(Ended::Recorded(end.clone())));
                    self.observer.foretell_end(self.run, ending, &detail);
                    search.await
                }
            };
        }
        if let Cause::Limit(limit) | Cause::Oom(Some(limit)) = &end.cause {
            let note = Note::LimitReached(limit.kind.as_str().into());
            let event = Event::Noted { run: self.run.clone(), note };
            self.owe(event, Detail::Limit(limit.clone())).await?;
        }
        self.charge(end.usage.as_deref());
        let tail = self.tail(end.output, searched).await;
        let before = self.owed.drain(..).map(|(event, detail)| (event, detail, None)).collect();
        let ended = Ended::Recorded(end);
        self.observer.tell_end_after(self.run, ending, ended, tail, before).await
    }

    /// The end of what the run wrote. What was read ahead counts if nothing was written since.
    async fn tail(&mut self, written: OutputTotals, searched: bool) -> Option<Arc<Tails>> {
        let ahead = match self.read_ahead.take() {
            Some(read) => read.await.ok().filter(|(_, to)| to.is_end_of(written)),
            None => None,
        };
        let (mut tails, _) = match ahead {
            Some(read) => read,
            None => self.observer.read_tail(self.run).await.ok()?,
        };
        tails.unsearched = !searched;
        (!tails.is_empty()).then(|| Arc::new(tails))
    }

    /// Passes on what the keeper says, after how things stood. Waiting for it to speak is the
    /// runtime's.
    async fn listen(&mut self, keeper: Connection, status: Status) -> Result<Next, Leaving> {
        let Ok(mut keeper) = Listening::to(keeper) else { return Ok(Next::LookAgain) };
        for limit in status.warned {
            self.tell_warning(limit).await?;
        }
        if let Some(account) = &status.usage {
            self.tell_usage(account).await?;
        }
        if let Some(status) = status.exit {
            self.owe_exit(status).await?;
        }
        match status.state {
            KeeperState::Stopping => {
                self.tell(Event::Stopping(self.run.clone()), Detail::Nothing).await?;
            }
            KeeperState::Stuck => {
                self.tell_survivors(status.survivors, status.survivor_count).await?;
            }
            KeeperState::Running | KeeperState::Ended => {}
        }
        if let Some(end) = status.end {
            return self.keep_end(keeper, Box::new(end)).await;
        }
        // What is owed now was not refused yet.
        let mut pause = EXIT_PAUSE;
        loop {
            let heard = tokio::select! {
                heard = keeper.heard() => heard,
                () = tokio::time::sleep(pause), if !self.owed.is_empty() => {
                    self.pay().await?;
                    pause = OWED_PAUSE;
                    continue;
                }
            };
            pause = EXIT_PAUSE;
            let Ok(heard) = heard else { return Ok(Next::LookAgain) };
            for told in heard {
                match told {
                    Heard::Event(Told::Ended(end)) => return self.keep_end(keeper, end).await,
                    Heard::Event(told) => self.pass_on(told).await?,
                    Heard::Output { .. } | Heard::Screen { .. } => {}
                }
            }
        }
    }

    async fn tell_warning(&mut self, limit: LimitReached) -> Result<(), Leaving> {
        let event = Event::Warned { run: self.run.clone(), limit: limit.kind.as_str().into() };
        self.tell(event, Detail::Limit(limit)).await
    }

    /// What it used is no fact; that its agent waits, or is not served, is one.
    async fn tell_usage(&mut self, account: &str) -> Result<(), Leaving> {
        self.observer.live.used(self.run.as_str(), account);
        self.charge(Some(account));
        self.observer.charges.note_files(self.run.as_str(), account);
        let (doing, waits) = meter::doing(account);
        match self.doing.replace((doing, waits)) {
            // It waits for something else: between two accounts it was answered, and worked.
            Some((Doing::Waits, before)) if doing == Doing::Waits && before < waits => {
                self.tell_doing(Doing::Works).await?;
            }
            Some((before, _)) if before == doing => return Ok(()),
            Some(_) | None => {}
        }
        self.tell_doing(doing).await
    }

    async fn tell_doing(&mut self, doing: Doing) -> Result<(), Leaving> {
        let event = Event::Noted { run: self.run.clone(), note: Note::Doing(doing) };
        self.tell(event, Detail::Nothing).await
    }

    /// What it used counts for the runs above it, too.
    fn charge(&self, account: Option<&str>) {
        if let Some(account) = account {
            self.observer.charges.note(self.run.as_str(), account);
        }
    }

    async fn owe_exit(&mut self, status: kennel_process::ExitStatus) -> Result<(), Leaving> {
        self.read_ahead = Some(self.observer.read_tail(self.run));
        self.owe(Event::Exited(self.run.clone()), Detail::Exited(status)).await
    }

    async fn pass_on(&mut self, told: Told) -> Result<(), Leaving> {
        match told {
            Told::Stopping(_) => {
                self.tell(Event::Stopping(self.run.clone()), Detail::Nothing).await
            }
            Told::Exited(status) => self.owe_exit(status).await,
            Told::Stuck { survivors, count } => self.tell_survivors(survivors, count).await,
            Told::Ended(end) => self.tell_recorded_end(end).await,
            // In the run's record; nobody here reads it yet.
            Told::Outside { .. } | Told::Skipped { .. } => Ok(()),
            Told::Warned(limit) => self.tell_warning(limit).await,
            Told::Usage(account) => self.tell_usage(&account).await,
        }
    }

    /// Durable here first; then its keeper may leave.
    async fn keep_end(&mut self, keeper: Listening, end: Box<End>) -> Result<Next, Leaving> {
        self.tell_recorded_end(end).await?;
        let mut keeper = keeper.into_connection();
        // A keeper that does not hear it leaves a little later.
        tokio::task::spawn_blocking(move || drop(keeper.ack()));
        Ok(Next::Over)
    }

    async fn look(&mut self, pause: &mut Duration) -> Result<Next, Leaving> {
        let (observer, run) = (self.observer, self.run);
        let dir = observer.home.run_dir(run.as_str());
        let missing = !dir.exists();
        let adopted = {
            // Never closed.
            let _turn = observer.looks.acquire().await;
            let look = tokio::task::spawn_blocking(move || adopt(&dir));
            let Ok(adopted) = look.await else { return Err(Leaving) };
            adopted
        };
        let why = match adopted {
            Ok(Adopted::Running { connection, status }) => {
                if let Liveness::Alive(leader) = status.started.leader.find() {
                    self.leader = Some(leader);
                }
                self.tell_status(*status).await?;
                return Ok(Next::Watch(connection));
            }
            Ok(Adopted::Ended(end)) => {
                self.tell_recorded_end(end).await?;
                return Ok(Next::Over);
            }
            Ok(Adopted::NeverStarted) => {
                let why = "the daemon or the keeper ended before the start";
                observer.tell_not_started(run, why, true).await?;
                return Ok(Next::Over);
            }
            Ok(Adopted::Orphaned(orphan)) => return self.sweep(*orphan, pause).await,
            Ok(Adopted::Unreadable(e)) => match self.ended_by_reboot().filter(|_| missing) {
                Some(end) => {
                    self.tell_recorded_end(Box::new(end)).await?;
                    return Ok(Next::Over);
                }
                None => e.to_string(),
            },
            Err(e) => e.to_string(),
        };
        self.settle().await?;
        observer.tell_stuck(run, why, Vec::new(), 0).await?;
        rest(pause).await;
        Ok(Next::LookAgain)
    }

    /// The end of the run, if the machine has been started anew since it was admitted.
    fn ended_by_reboot(&self) -> Option<End> {
        let known = self.observer.live.get(self.run.as_str())?;
        let boot = Some(known.request.boot.as_str()).filter(|boot| !boot.is_empty())?;
        ended_by_reboot(boot).ok().flatten()
    }

    /// What a keeper says of a run that was believed in some other way so far.
    async fn tell_status(&mut self, status: Status) -> Result<(), Leaving> {
        let (observer, run) = (self.observer, self.run);
        tracing::info!(%run, "adopted");
        observer.metrics.adopted();
        match status.state {
            KeeperState::Stuck => {
                self.tell_survivors(status.survivors, status.survivor_count).await
            }
            state @ (KeeperState::Running | KeeperState::Stopping | KeeperState::Ended) => {
                let detail = Detail::Started(Arc::new(status.started));
                self.tell_started(detail).await?;
                if state == KeeperState::Stopping {
                    self.tell(Event::Stopping(run.clone()), Detail::Nothing).await?;
                }
                Ok(())
            }
        }
    }

    async fn tell_survivors(
        &mut self,
        survivors: Vec<Survivor>,
        count: u64,
    ) -> Result<(), Leaving> {
        let reason = "processes are left that could not be ended".to_owned();
        let detail = Detail::Stuck(Arc::new(Stuck { reason, survivors, count }));
        self.tell(Event::Stuck(self.run.clone()), detail).await
    }

    /// The keeper died: the run is stopped from here, by the same protocol.
    async fn sweep(&mut self, mut orphan: Orphan, pause: &mut Duration) -> Result<Next, Leaving> {
        let (observer, run) = (self.observer, self.run);
        tracing::warn!(%run, "its keeper died; what is left of the run is stopped from here");
        self.tell(Event::Stopping(run.clone()), Detail::Nothing).await?;
        if let Some(leader) = self.leader.take() {
            orphan.know_leader(leader);
        }
        orphan.heed(observer.hurry_of(run));
        let mut grace = orphan.started().grace;
        loop {
            let name = format!("sweep {run}");
            let swept = on_own_thread(name, move || {
                let swept = orphan.stop(Cause::Lost, grace);
                (swept, orphan)
            });
            let Some((swept, back)) = swept.await else {
                rest(pause).await;
                return Ok(Next::LookAgain);
            };
            orphan = back;
            match swept {
                Ok(Swept::Ended(end)) => {
                    self.tell_recorded_end(end).await?;
                    return Ok(Next::Over);
                }
                Ok(Swept::Stuck { survivors, count }) => {
                    self.tell_survivors(survivors, count).await?;
                }
                Err(e) => observer.tell_stuck(run, e.to_string(), Vec::new(), 0).await?,
            }
            grace = Duration::ZERO;
            rest(pause).await;
        }
    }
}

/// Has a keeper tell what happens, if it was not asked to before. It answers at once or not at all.
async fn watched(mut keeper: Connection, asked: Option<Asked>) -> Result<Next, Leaving> {
    let watched = tokio::task::spawn_blocking(move || {
        let status = match asked {
            Some(asked) => keeper.status_asked_for(asked),
            None => keeper.watch_and_ack(),
        };
        (keeper, status)
    });
    let Ok((keeper, status)) = watched.await else { return Err(Leaving) };
    let Ok(status) = status else { return Ok(Next::LookAgain) };
    Ok(Next::Listen(keeper, Box::new(status)))
}

async fn rest(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

/// Runs what may take as long as somebody's grace where it keeps nobody else waiting. `None` if
/// there is no thread to be had.
async fn on_own_thread<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name).stack_size(SWEEP_STACK_BYTES);
    if let Err(e) = thread.spawn(move || drop(done.send(work()))) {
        tracing::error!("failed to start a thread: {e}");
    }
    result.await.ok()
}

/// A connection to a keeper that the runtime waits on.
pub(crate) struct Listening {
    keeper: Connection,
    /// The same socket, known to the runtime, which says when it can be read and reads nothing.
    socket: UnixStream,
}

impl Listening {
    pub(crate) fn to(keeper: Connection) -> std::io::Result<Self> {
        let copy = std::os::unix::net::UnixStream::from(keeper.as_fd().try_clone_to_owned()?);
        copy.set_nonblocking(true)?;
        let socket = UnixStream::from_std(copy)?;
        Ok(Self { keeper, socket })
    }

    pub(crate) fn into_connection(self) -> Connection {
        self.keeper
    }

    /// Waits until the keeper has said something, and returns it. An error is a keeper that left.
    /// Nothing is lost if the wait is given up.
    pub(crate) async fn heard(&mut self) -> Result<Vec<Heard>, ConnectionError> {
        loop {
            let heard = self.said_so_far()?;
            if !heard.is_empty() {
                return Ok(heard);
            }
            self.socket.readable().await.map_err(ConnectionError::Broken)?;
            // The runtime learns that it was mistaken only by an attempt that fails.
            let (keeper, mut first) = (&mut self.keeper, None);
            let _ = self.socket.try_io(Interest::READABLE, || match keeper.next(Duration::ZERO) {
                Ok(None) => Err(std::io::ErrorKind::WouldBlock.into()),
                said => {
                    first = Some(said);
                    Ok(())
                }
            });
            if let Some(said) = first {
                let mut heard: Vec<Heard> = said?.into_iter().collect();
                // What it said before it left comes first.
                heard.extend(self.said_so_far().unwrap_or_default());
                return Ok(heard);
            }
        }
    }

    fn said_so_far(&mut self) -> Result<Vec<Heard>, ConnectionError> {
        let mut heard = Vec::new();
        while heard.len() < HEARD_AT_ONCE {
            match self.keeper.next(Duration::ZERO) {
                Ok(Some(told)) => heard.push(told),
                Ok(None) => break,
                Err(_) if !heard.is_empty() => break,
                Err(e) => return Err(e),
            }
        }
        Ok(heard)
    }
}
