//! What keepers say becomes events: one thread per run, from its start or its adoption to its end.
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

use std::time::Duration;

use kennel_process::{
    Adopted, Cause, Connection, End, Event as Told, ExitStatus, Liveness, Orphan, Process, Spec,
    StartError, State as KeeperState, Status, Survivor, Swept, Told as Heard, Verdict, adopt,
};
use kennel_supervisor::{Ending, Event, RunId};

use crate::event_loop::{Inbox, TellError};
use crate::home::Home;
use crate::store::format::{Detail, Ended, Stuck};
use crate::time::Time;

/// Enough for a connection's buffers; a thousand runs are a thousand threads.
pub(crate) const RUN_STACK_BYTES: usize = 512 << 10;
/// How long one wait for a keeper lasts. Nothing happens when it is over but another one.
const WATCH_WAIT: Duration = Duration::from_secs(3600);
/// Pause before a run that cannot be looked at is looked at again; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Observes runs and tells the loop.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub(crate) home: Home,
    pub(crate) inbox: Inbox,
}

/// What a run's thread does next.
enum Next {
    Watch(Connection),
    LookAgain,
    Over,
}

/// The daemon is leaving: whatever was observed will be observed again by the next one.
struct Leaving;

impl Observer {
    /// Starts a run that was admitted, and stays with it.
    pub(crate) fn start_and_watch(&self, run: &RunId, spec: &Spec) {
        let first = match kennel_process::start(spec, &self.home.run_dir(run.as_str())) {
            Ok(started) => {
                let detail = Detail::Started(Box::new(started.started));
                if self.tell(Event::Started(run.clone()), &detail).is_err() {
                    return;
                }
                (Next::Watch(started.connection), Some(started.leader))
            }
            Err(StartError::Failed(failure)) => {
                let ended = Ended::NeverStarted {
                    message: failure.to_string(),
                    failure: Some(failure),
                    at_ms: Time::now().0,
                };
                let _ = self.tell_end(run, Ending::NeverStarted, ended);
                return;
            }
            Err(
                e @ (StartError::Spec(_)
                | StartError::TooLarge(_)
                | StartError::Directory(_)
                | StartError::Launch(_)),
            ) => return self.not_started(run, &e.to_string()),
            // Whether it runs is not known from here: its directory knows.
            Err(StartError::KeeperDied | StartError::NoAnswer | _) => (Next::LookAgain, None),
        };
        let (next, leader) = first;
        let _ = Attending { observer: self, run, leader }.attend(next);
    }

    /// Takes a run of an earlier daemon back, and stays with it.
    pub(crate) fn adopt_and_watch(&self, run: &RunId) {
        let _ = Attending { observer: self, run, leader: None }.attend(Next::LookAgain);
    }

    /// Nothing of this run was ever started.
    pub(crate) fn not_started(&self, run: &RunId, why: &str) {
        let message = why.to_owned();
        let ended = Ended::NeverStarted { message, failure: None, at_ms: Time::now().0 };
        let _ = self.tell_end(run, Ending::NeverStarted, ended);
    }

    /// A run cannot be looked at or asked. Its slot stays taken.
    pub(crate) fn stuck(&self, run: &RunId, reason: String) {
        let _ = self.tell_stuck(run, reason, Vec::new(), 0);
    }

    /// Tells an event until the store has taken it.
    fn tell(&self, event: Event, detail: &Detail) -> Result<(), Leaving> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.inbox.tell_blocking(event.clone(), detail.clone()) {
                Ok(_) => return Ok(()),
                Err(TellError::Leaving) => return Err(Leaving),
                Err(TellError::Store(_)) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn tell_stuck(
        &self,
        run: &RunId,
        reason: String,
        survivors: Vec<Survivor>,
        count: u64,
    ) -> Result<(), Leaving> {
        let detail = Detail::Stuck(Stuck { reason, survivors, count });
        self.tell(Event::Stuck(run.clone()), &detail)
    }

    fn tell_exit(&self, run: &RunId, status: ExitStatus) -> Result<(), Leaving> {
        self.tell(Event::Exited(run.clone()), &Detail::Exited(status))
    }

    fn tell_end(&self, run: &RunId, ending: Ending, ended: Ended) -> Result<(), Leaving> {
        self.tell(Event::Ended { run: run.clone(), ending }, &Detail::Ended(ended))
    }

    /// The only place where a proof becomes a death.
    fn tell_recorded_end(&self, run: &RunId, end: Box<End>) -> Result<(), Leaving> {
        let ending = match &end.verdict {
            Verdict::Dead(_proof) => Ending::Dead,
            Verdict::Lost(_) => Ending::Lost,
        };
        self.tell_end(run, ending, Ended::Recorded(end))
    }
}

/// One thread's attention to one run.
struct Attending<'a> {
    observer: &'a Observer,
    run: &'a RunId,
    /// The leader held open since the start: knows its status even if the keeper is killed.
    leader: Option<Process>,
}

impl Attending<'_> {
    fn attend(&mut self, mut next: Next) -> Result<(), Leaving> {
        let mut pause = FIRST_PAUSE;
        loop {
            next = match next {
                Next::Watch(connection) => {
                    pause = FIRST_PAUSE;
                    self.watch(connection)?
                }
                Next::LookAgain => self.look(&mut pause)?,
                Next::Over => return Ok(()),
            };
        }
    }

    fn watch(&self, mut keeper: Connection) -> Result<Next, Leaving> {
        let Ok(status) = keeper.watch_and_ack() else {
            return Ok(Next::LookAgain);
        };
        if let Some(status) = status.exit {
            self.observer.tell_exit(self.run, status)?;
        }
        if let Some(end) = status.end {
            return self.keep_end(&mut keeper, Box::new(end));
        }
        loop {
            match keeper.next(WATCH_WAIT) {
                Ok(Some(Heard::Event(Told::Ended(end)))) => return self.keep_end(&mut keeper, end),
                Ok(Some(Heard::Event(told))) => self.pass_on(told)?,
                Ok(None | Some(Heard::Output { .. } | Heard::Screen { .. })) => {}
                Err(_) => return Ok(Next::LookAgain),
            }
        }
    }

    fn pass_on(&self, told: Told) -> Result<(), Leaving> {
        let observer = self.observer;
        match told {
            Told::Stopping(_) => observer.tell(Event::Stopping(self.run.clone()), &Detail::Nothing),
            Told::Exited(status) => observer.tell_exit(self.run, status),
            Told::Stuck { survivors, count } => self.tell_survivors(survivors, count),
            Told::Ended(end) => observer.tell_recorded_end(self.run, end),
            // In the run's record; nobody here reads it yet.
            Told::Outside { .. } | Told::Skipped { .. } => Ok(()),
        }
    }

    /// Durable here first; then its keeper may leave.
    fn keep_end(&self, keeper: &mut Connection, end: Box<End>) -> Result<Next, Leaving> {
        self.observer.tell_recorded_end(self.run, end)?;
        // A keeper that does not hear it leaves a little later.
        let _ = keeper.ack();
        Ok(Next::Over)
    }

    fn look(&mut self, pause: &mut Duration) -> Result<Next, Leaving> {
        let (observer, run) = (self.observer, self.run);
        let why = match adopt(&observer.home.run_dir(run.as_str())) {
            Ok(Adopted::Running { connection, status }) => {
                if let Liveness::Alive(leader) = status.started.leader.find() {
                    self.leader = Some(leader);
                }
                self.tell_status(*status)?;
                return Ok(Next::Watch(connection));
            }
            Ok(Adopted::Ended(end)) => {
                observer.tell_recorded_end(run, end)?;
                return Ok(Next::Over);
            }
            Ok(Adopted::NeverStarted) => {
                observer.not_started(run, "the daemon or the keeper ended before the start");
                return Ok(Next::Over);
            }
            Ok(Adopted::Orphaned(orphan)) => return self.sweep(*orphan, pause),
            Ok(Adopted::Unreadable(e)) => e.to_string(),
            Err(e) => e.to_string(),
        };
        observer.tell_stuck(run, why, Vec::new(), 0)?;
        rest(pause);
        Ok(Next::LookAgain)
    }

    /// What a keeper says of a run that was believed in some other way so far.
    fn tell_status(&self, status: Status) -> Result<(), Leaving> {
        let (observer, run) = (self.observer, self.run);
        tracing::info!(%run, "adopted");
        match status.state {
            KeeperState::Stuck => {
                let count = status.survivors.len() as u64;
                self.tell_survivors(status.survivors, count)
            }
            state @ (KeeperState::Running | KeeperState::Stopping | KeeperState::Ended) => {
                let detail = Detail::Started(Box::new(status.started));
                observer.tell(Event::Started(run.clone()), &detail)?;
                if state == KeeperState::Stopping {
                    observer.tell(Event::Stopping(run.clone()), &Detail::Nothing)?;
                }
                Ok(())
            }
        }
    }

    fn tell_survivors(&self, survivors: Vec<Survivor>, count: u64) -> Result<(), Leaving> {
        let reason = "processes are left that could not be ended".to_owned();
        self.observer.tell_stuck(self.run, reason, survivors, count)
    }

    /// The keeper died: the run is stopped from here, by the same protocol.
    fn sweep(&mut self, mut orphan: Orphan, pause: &mut Duration) -> Result<Next, Leaving> {
        let (observer, run) = (self.observer, self.run);
        tracing::warn!(%run, "its keeper died; what is left of the run is stopped from here");
        observer.tell(Event::Stopping(run.clone()), &Detail::Nothing)?;
        if let Some(leader) = self.leader.take() {
            orphan.know_leader(leader);
        }
        let mut grace = orphan.started().grace;
        loop {
            match orphan.stop(Cause::Lost, grace) {
                Ok(Swept::Ended(end)) => {
                    observer.tell_recorded_end(run, end)?;
                    return Ok(Next::Over);
                }
                Ok(Swept::Stuck { survivors, count }) => self.tell_survivors(survivors, count)?,
                Err(e) => observer.tell_stuck(run, e.to_string(), Vec::new(), 0)?,
            }
            grace = Duration::ZERO;
            rest(pause);
        }
    }
}

fn rest(pause: &mut Duration) {
    std::thread::sleep(*pause);
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}
