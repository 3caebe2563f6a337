//! The keeper's loop: one poll, one handler for each thing that can become ready, one ladder.
//!
//! ```text
//!        poll: signals, leader, streams, cgroup, socket, clients, next deadline
//!          |
//!          v
//!   handle what is ready -> look at the cohort -> do what the ladder says -> poll again
//!                                                        |
//!                                   proof -> drain -> record -> tell -> wait for the ack -> leave
//! ```
//!
//! Owns: the run from its exec to its end. At rest it sleeps in the kernel: without a stop under
//! way there is no deadline and no periodic wake-up. Never announces what is not recorded, and
//! never lets a client, a full disk or a screen get in the way of the stop protocol.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Kept;
use super::clients::{self, Client, refusal};
use super::streams::{InputRefused, Piece, Ready};
use crate::cohort::{self, Attempt};
use crate::control::{
    Do, Event, Frame, PROTOCOL, Refusal, RefusalCode, Reply, Request, State, Status,
};
use crate::controllers::OomKill;
use crate::exit::ExitStatus;
use crate::failpoint::failpoint;
use crate::ladder::{Ladder, Requested, Rung, Seen};
use crate::limits::{Doings, Judge, Judgement, Sample};
use crate::meter::{MAX_USAGE_BYTES, Metered, Word};
use crate::proof::{Proof, Survivor};
use crate::record::{Cause, End, Fact, LimitReached, Verdict, unix_ms};
use crate::spec::{MAX_GRACE, OnExit, TerminalSize};
use crate::sys;
use crate::{OutputTotals, Signal};

/// How long the keeper waits after the end for whoever promised to acknowledge it.
const ACK_BOUND: Duration = Duration::from_secs(5);
/// How long it waits for the other clients to take what they are owed.
const FLUSH_BOUND: Duration = Duration::from_secs(1);
/// Pause before a failed write of the record, or a failed look at the system, is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause: a disk may be full for days.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The longest name of a limit: it goes into the record.
const MAX_LIMIT_KIND_BYTES: usize = 64;
/// How long the meter may take to read the last of a run that is over.
const METER_BOUND: Duration = Duration::from_secs(2);
/// What comes sooner than this is waited for without the timer: to come so late is no harm.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// The most lines about its own trouble that one keeper writes.
const MAX_COMPLAINTS: u32 = 100;

/// Keeps a started run until its end has been recorded and told.
pub(super) fn keep(kept: Kept, starter: UnixStream) -> io::Result<()> {
    let mut keeper = Keeper::new(kept);
    starter.set_read_timeout(None)?;
    if let Ok(mut client) = Client::new(starter) {
        // The starter has said all of a greeting by sending the spec.
        client.greeted = true;
        keeper.clients.push(client);
    }
    keeper.run();
    Ok(())
}

/// What is known of a run at the moment it has started.
pub(super) fn first_status(kept: &Kept) -> Status {
    Status {
        state: State::Running,
        started: kept.started.clone(),
        exit: None,
        cause: None,
        survivors: Vec::new(),
        survivor_count: 0,
        output: OutputTotals::default(),
        silent_ms: 0,
        end: None,
        limits: Vec::new(),
        warned: Vec::new(),
        usage: None,
        meter_trouble: None,
    }
}

struct Keeper {
    kept: Kept,
    ladder: Ladder,
    clients: Vec<Client>,
    cause: Option<Cause>,
    exit: Option<ExitStatus>,
    /// Whether the kernel killed in it for want of memory.
    oom: Option<OomKill>,
    /// It was seen to have ended; its status may not be known yet.
    leader_ended: bool,
    survivors: (Vec<Survivor>, u64),
    /// Facts that are true and not durable yet, oldest first.
    unwritten: VecDeque<Fact>,
    retry: Retry,
    phases: Phases,
    ending: Ending,
    complaints: u32,
    /// No connection is taken before this time.
    accept_after: Option<Duration>,
    judge: Judge,
    warned: Vec<LimitReached>,
    meter_trouble: Option<String>,
    /// What wakes it in time when the machine has slept. Without one it comes late then.
    timer: Option<sys::Timer>,
}

/// How far the end has come.
enum Ending {
    NotYet,
    /// Proven; the record does not have it yet.
    Proven(Box<End>),
    /// Recorded and told; leaving when the acknowledgement or the bound comes.
    Told {
        end: Box<End>,
        leave_at: Duration,
    },
}

#[derive(Default)]
struct Retry {
    at: Option<Duration>,
    pause: Duration,
}

/// When each phase of the stop began.
#[derive(Default)]
struct Phases {
    asked: Option<Duration>,
    forced: Option<Duration>,
    emptied: Option<Duration>,
}

#[derive(Clone, Copy)]
enum Token {
    Timer,
    Signals,
    Leader,
    Cgroup,
    Meter,
    Listener,
    Stream(Ready),
    Client(usize),
}

impl Keeper {
    fn new(kept: Kept) -> Self {
        Self {
            ladder: Ladder::new(kept.spec.on_exit),
            judge: Judge::new(kept.spec.limits.clone(), kept.started.binds.clone(), kept.forked_at),
            kept,
            clients: Vec::new(),
            cause: None,
            exit: None,
            oom: None,
            leader_ended: false,
            survivors: (Vec::new(), 0),
            unwritten: VecDeque::new(),
            retry: Retry::default(),
            phases: Phases::default(),
            ending: Ending::NotYet,
            complaints: 0,
            accept_after: None,
            warned: Vec::new(),
            meter_trouble: None,
            timer: sys::Timer::new().ok(),
        }
    }

    fn run(&mut self) {
        if self.kept.spec.meter.is_some() && self.kept.metered.is_none() {
            self.meter_failed("it could not be started".to_owned());
        }
        loop {
            let until = self.climb();
            if self.may_leave() {
                return;
            }
            self.serve(until);
            let now = sys::boottime();
            self.judge(now);
            self.kept.streams.idle(now);
            self.accept_after = self.accept_after.filter(|after| *after > now);
        }
    }

    /// Waits until something is ready, at most until then, and handles all that is.
    fn serve(&mut self, until: Option<Duration>) {
        let ready = match self.wait(until) {
            Ok(ready) => ready,
            Err(e) => {
                self.complain("poll", &e);
                std::thread::sleep(RETRY_PAUSE);
                Vec::new()
            }
        };
        for (token, flags) in ready {
            self.handle(token, flags);
        }
        self.clients.retain(|c| !c.is_broken());
    }

    // The ladder.

    /// Looks at the cohort and does what is due. Returns when to look again at the latest.
    fn climb(&mut self) -> Option<Duration> {
        self.write_facts();
        loop {
            match self.ending {
                Ending::NotYet => {}
                Ending::Proven(_) => {
                    self.finish();
                    return self.retry.at;
                }
                Ending::Told { leave_at, .. } => return Some(leave_at),
            }
            let seen = self.see();
            let now = sys::boottime();
            match self.ladder.next(now, seen) {
                Rung::Wait(until) => {
                    let reap = self.kept.cohort.reap_due(now).filter(|_| seen.leader_ended);
                    let limit = self.limit_due();
                    return [until, reap, limit, self.retry.at].into_iter().flatten().min();
                }
                Rung::Ask => {
                    self.phases.asked = Some(now);
                    self.kept.cohort.ask(self.kept.spec.ask);
                    let _ = failpoint("stop.asked");
                }
                Rung::Force { round } => {
                    self.phases.forced.get_or_insert(now);
                    let forced = self.kept.cohort.force(round);
                    let _ = failpoint("stop.forced");
                    self.complain_of("force", forced);
                }
                Rung::Prove => self.prove(now),
                Rung::TellStuck => self.tell_stuck(),
            }
        }
    }

    /// Looks at the cohort, and records the leader's status while it is still there to be asked
    /// again. What cannot be seen is not gone: a stop goes on, and ends in stuck at the worst.
    fn see(&mut self) -> Seen {
        let seen = self.kept.cohort.see().and_then(|seen| {
            self.leader_ended |= seen.leader_ended;
            if seen.leader_ended {
                self.note_exit()?;
            }
            Ok(seen)
        });
        match seen {
            Ok(seen) => seen,
            Err(e) => {
                self.complain("look at the cohort", &e);
                Seen { leader_ended: self.exit.is_some(), others_gone: false }
            }
        }
    }

    fn note_exit(&mut self) -> io::Result<()> {
        if self.exit.is_some() {
            return Ok(());
        }
        let Some(status) = self.kept.cohort.peek_status()? else { return Ok(()) };
        self.exit = Some(status);
        self.oom = self.kept.cohort.oom_kill();
        failpoint("stop.exited")?;
        self.add_fact(Fact::Exited { status, oom: self.oom, at_ms: unix_ms() });
        failpoint("stop.exit_recorded")?;
        self.tell(&Event::Exited(status));
        Ok(())
    }

    fn prove(&mut self, now: Duration) {
        self.phases.emptied.get_or_insert(now);
        self.account();
        // Whoever was awaited may have been killed after the leader had left. What tells goes with
        // the leaf.
        if self.kept.spec.on_exit == OnExit::Wait {
            self.oom = self.kept.cohort.oom_kill().or(self.oom);
        }
        // `Prove` is due only when the leader has ended, and then its status was peeked at.
        let attempt = match self.exit {
            Some(status) => self.kept.cohort.prove(status).map(|attempt| (attempt, status)),
            None => Err(io::Error::other("the leader's status is not known")),
        };
        match attempt {
            Ok((Attempt::Proven(proof), status)) => {
                let _ = failpoint("stop.proven");
                self.ladder.gone();
                self.proven(proof, status);
            }
            Ok((Attempt::NotYet, _)) => self.not_proven(),
            Err(e) => {
                self.complain("prove", &e);
                self.not_proven();
            }
        }
    }

    fn not_proven(&mut self) {
        self.phases.emptied = None;
        self.ladder.not_yet(sys::boottime());
    }

    /// Enters the length of each phase into the account the proof carries.
    fn account(&mut self) {
        let now = sys::boottime();
        let emptied = self.phases.emptied.unwrap_or(now);
        let us = |from: Option<Duration>, to: Duration| {
            from.map_or(0, |from| to.saturating_sub(from).as_micros() as u64)
        };
        let asked_until = self.phases.forced.unwrap_or(emptied);
        let effort = self.kept.cohort.effort_mut();
        effort.ask_us = us(self.phases.asked, asked_until);
        effort.force_us = us(self.phases.forced, emptied);
        effort.prove_us = us(Some(emptied), now);
    }

    fn proven(&mut self, proof: Proof, status: ExitStatus) {
        let clients = &mut self.clients;
        let complete = self.kept.streams.drain(&mut |piece| pass_on(clients, &piece));
        let usage = self.last_usage();
        let by_itself = || Cause::of_exit(status, self.oom, &self.kept.started);
        let end = End {
            usage,
            cause: self.cause.clone().unwrap_or_else(by_itself),
            status,
            verdict: Verdict::Dead(proof),
            output: OutputTotals { complete, ..self.kept.streams.totals() },
            start_error: None,
            at_ms: unix_ms(),
        };
        self.add_fact(Fact::Ended(Box::new(end.clone())));
        self.ending = Ending::Proven(Box::new(end));
    }

    /// Tells the end once it is durable.
    fn finish(&mut self) {
        self.write_facts();
        if !self.unwritten.is_empty() {
            return;
        }
        if let Ending::Proven(end) = std::mem::replace(&mut self.ending, Ending::NotYet) {
            let _ = failpoint("stop.recorded_end");
            let waits = self.clients.iter().any(|c| c.must_ack);
            let bound = if waits { ACK_BOUND } else { FLUSH_BOUND };
            self.tell(&Event::Ended(end.clone()));
            let leave_at = sys::boottime() + bound;
            self.ending = Ending::Told { end, leave_at };
            // Who asked while the end was being written need not wait for the long look.
            self.serve(Some(Duration::ZERO));
            self.look_outside();
            let _ = failpoint("stop.told");
        }
    }

    /// After the end: who else carries the cookie? Reported, never signalled.
    fn look_outside(&mut self) {
        let age = sys::boottime().saturating_sub(self.kept.forked_at);
        let leader = &self.kept.started.leader;
        let found = cohort::suspects_after(&self.kept.spec.run, leader, age);
        let (suspects, count) = found.unwrap_or_else(|e| {
            self.complain("look for suspects", &e);
            (Vec::new(), 0)
        });
        if count > 0 {
            let fact = Fact::Outside { suspects: suspects.clone(), count, at_ms: unix_ms() };
            // A hint beside a finished record: not worth waiting for a disk.
            let _ = self.kept.record.append(&fact);
            self.tell(&Event::Outside { suspects, count });
        }
    }

    fn may_leave(&self) -> bool {
        match &self.ending {
            Ending::NotYet | Ending::Proven(_) => false,
            Ending::Told { leave_at, .. } => {
                let waited_for = |c: &Client| c.must_ack || c.owes();
                !self.clients.iter().any(waited_for) || sys::boottime() >= *leave_at
            }
        }
    }

    fn tell_stuck(&mut self) {
        let (survivors, count) = self.kept.cohort.survivors();
        self.survivors = (survivors.clone(), count);
        self.add_fact(Fact::Stuck { survivors: survivors.clone(), count, at_ms: unix_ms() });
        self.tell(&Event::Stuck { survivors, count });
    }

    // Limits.

    /// When the limits want to be looked at again: not once a stop is under way.
    fn limit_due(&self) -> Option<Duration> {
        let judged = matches!(self.ending, Ending::NotYet) && !self.ladder.is_stopping();
        judged.then(|| self.judge.due(self.doings())).flatten()
    }

    fn doings(&self) -> Doings {
        let totals = self.kept.streams.totals();
        let (active_at, excused) =
            self.kept.metered.as_ref().map_or((Duration::ZERO, false), Metered::doings);
        Doings {
            active_at: active_at.max(self.kept.streams.last_output()),
            written: totals.stdout.written + totals.stderr.written,
            excused,
        }
    }

    fn sample(&self) -> io::Result<Sample> {
        self.kept.cohort.sample(&self.kept.started.binds)
    }

    /// Holds the run to its limits. The first that is reached stops it; the others may be reached
    /// by what the stop itself takes, and are not its cause.
    fn judge(&mut self, now: Duration) {
        if self.ladder.is_stopping() || !matches!(self.ending, Ending::NotYet) {
            return;
        }
        let doings = self.doings();
        let wanted = self.judge.wants_sample(now, doings);
        let sample = match wanted.then(|| self.sample()) {
            Some(Ok(sample)) => Some(sample),
            Some(Err(e)) => {
                self.complain("count the cohort", &e);
                None
            }
            None => None,
        };
        for judgement in self.judge.judge(now, doings, sample) {
            match judgement {
                Judgement::Warn(limit) => self.warn(limit),
                Judgement::Stop(limit) => return self.stop_at(limit),
            }
        }
    }

    fn warn(&mut self, limit: LimitReached) {
        if self.warned.iter().all(|known| known.kind != limit.kind) {
            self.warned.push(limit.clone());
            self.tell(&Event::Warned(limit));
        }
    }

    fn stop_at(&mut self, limit: LimitReached) {
        let grace = self.kept.spec.grace;
        let _ = self.stop(Cause::Limit(limit), grace);
    }

    /// What the meter said.
    fn heed_meter(&mut self) {
        let Some(metered) = &self.kept.metered else { return };
        let words = metered.take_words();
        if let Some(usage) = metered.usage() {
            self.tell(&Event::Usage(usage));
        }
        for word in words {
            match word {
                Word::Warn(limit) => self.warn(limit),
                Word::Stop(limit) => self.stop_at(limit),
                Word::Failed(why) => self.meter_failed(why),
            }
        }
    }

    /// What was to be counted is not counted any more, and somebody has to know.
    fn meter_failed(&mut self, why: String) {
        self.complain("go on counting", &io::Error::other(why.as_str()));
        self.meter_trouble = Some(why);
        self.warn(LimitReached { kind: "meter".to_owned(), used: 0.0, max: 0.0 });
    }

    /// The account of a run that is over: nothing it wrote is missing from it, unless the meter
    /// does not come to its end.
    fn last_usage(&mut self) -> Option<String> {
        let metered = self.kept.metered.as_ref()?;
        metered.settle(METER_BOUND);
        metered.usage()
    }

    fn stop(&mut self, cause: Cause, grace: Duration) -> Result<Reply, Refusal> {
        let seen = Seen { leader_ended: self.exit.is_some(), others_gone: false };
        match self.ladder.request(sys::boottime(), grace, seen) {
            Requested::AlreadySo | Requested::Shortened => Ok(Reply::Done),
            Requested::Begun => {
                self.cause = Some(cause.clone());
                let grace_ms = grace.as_millis() as u64;
                self.add_fact(Fact::Stopping { cause: cause.clone(), grace_ms, at_ms: unix_ms() });
                let _ = failpoint("stop.recorded");
                self.tell(&Event::Stopping(cause));
                Ok(Reply::Done)
            }
        }
    }

    // The record.

    fn add_fact(&mut self, fact: Fact) {
        self.unwritten.push_back(fact);
        if self.unwritten.len() == 1 {
            self.retry = Retry::default();
        }
        self.write_facts();
    }

    /// Writes what is not durable yet, in order. A disk that refuses is asked again later; the stop
    /// protocol does not wait for it.
    fn write_facts(&mut self) {
        let now = sys::boottime();
        if self.retry.at.is_some_and(|at| now < at) {
            return;
        }
        while let Some(fact) = self.unwritten.front() {
            match self.kept.record.append(fact) {
                Ok(()) => {
                    self.unwritten.pop_front();
                    self.retry = Retry::default();
                }
                // It will never fit. What follows must not wait for it, the end least of all.
                Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                    self.unwritten.pop_front();
                    self.complain("write the record", &e);
                }
                Err(e) => {
                    let doubled = (self.retry.pause * 2).max(RETRY_PAUSE).min(LONGEST_RETRY_PAUSE);
                    self.retry = Retry { at: Some(now + doubled), pause: doubled };
                    self.complain("write the record", &e);
                    return;
                }
            }
        }
    }

    fn complain_of(&mut self, what: &str, result: io::Result<()>) {
        if let Err(e) = result {
            self.complain(what, &e);
        }
    }

    fn complain(&mut self, what: &str, error: &io::Error) {
        self.complaints += 1;
        if self.complaints <= MAX_COMPLAINTS {
            super::open_log(&self.kept.dir);
            let _ = writeln!(io::stderr(), "{} failed to {what}: {error}", unix_ms());
        }
    }

    // What becomes ready.

    fn wait(&self, until: Option<Duration>) -> io::Result<Vec<(Token, PollFlags)>> {
        let mut tokens = Vec::with_capacity(8 + self.clients.len());
        let mut fds = Vec::with_capacity(8 + self.clients.len());
        let mut add = |token, fd, flags| {
            tokens.push(token);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        add(Token::Signals, self.kept.signals.as_fd(), PollFlags::IN);
        // Once it was seen to have ended, its descriptor would be ready for ever: its status may be
        // held back by a tracer.
        if let (false, Some(leader)) = (self.leader_ended, self.kept.cohort.leader()) {
            add(Token::Leader, leader.as_fd(), PollFlags::IN);
        }
        // While the leader lives an empty cgroup is impossible, and each change would wake us.
        if let (Some(_), Some(events)) = (self.exit, self.cgroup_events()) {
            add(Token::Cgroup, events, PollFlags::PRI);
        }
        if let Some(metered) = &self.kept.metered {
            add(Token::Meter, metered.bell(), PollFlags::IN);
        }
        if self.accept_after.is_none() {
            add(Token::Listener, self.kept.listener.as_fd(), PollFlags::IN);
        }
        for (ready, fd, write) in self.kept.streams.interests() {
            let flags = if write { PollFlags::OUT } else { PollFlags::IN };
            add(Token::Stream(ready), fd, flags);
        }
        for (n, client) in self.clients.iter().enumerate() {
            let write = if client.owes() { PollFlags::OUT } else { PollFlags::empty() };
            add(Token::Client(n), client.as_fd(), PollFlags::IN | write);
        }
        let until = [until, self.kept.streams.idle_at(), self.accept_after];
        let until = until.into_iter().flatten().min();
        let left = until.map(|until| until.saturating_sub(sys::boottime()));
        let far = until.filter(|_| left >= Some(SHORT_WAIT));
        if let (Some(timer), Some(at)) = (&self.timer, far)
            && timer.set(at).is_ok()
        {
            add(Token::Timer, timer.as_fd(), PollFlags::IN);
        }
        let timeout = left.map(|left| rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready = tokens.into_iter().zip(fds.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn cgroup_events(&self) -> Option<BorrowedFd<'_>> {
        match self.ending {
            Ending::NotYet => self.kept.cohort.cgroup_events(),
            Ending::Proven(_) | Ending::Told { .. } => None,
        }
    }

    fn handle(&mut self, token: Token, flags: PollFlags) {
        match token {
            Token::Signals => self.signals(),
            // The next look at the cohort, or at the clock, finds out what these mean.
            Token::Timer | Token::Leader | Token::Cgroup => {}
            Token::Meter => self.heed_meter(),
            Token::Listener => match self.kept.listener.accept() {
                Ok(Some(stream)) => clients::admit(&mut self.clients, stream),
                Ok(None) => {}
                Err(e) => {
                    // Out of descriptors, mostly. The client waits, and so do we.
                    self.accept_after = Some(sys::boottime() + RETRY_PAUSE);
                    self.complain("take a connection", &e);
                }
            },
            Token::Stream(ready) => {
                let clients = &mut self.clients;
                self.kept.streams.handle(ready, &mut |piece| pass_on(clients, &piece));
                if let Some(metered) = &self.kept.metered {
                    metered.there_is_more();
                }
            }
            Token::Client(n) => {
                if flags.contains(PollFlags::OUT) {
                    self.clients[n].flush();
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    for frame in self.clients[n].receive() {
                        self.answer(n, frame);
                    }
                    self.clients[n].flush();
                }
            }
        }
    }

    fn signals(&mut self) {
        let arrived = self.kept.signals.take();
        if arrived.terminate {
            let grace = self.kept.spec.grace;
            let _ = self.stop(Cause::Stopped, grace);
        }
        // While force is at work the dead are collected when nobody is left, all at once.
        if arrived.child && !self.ladder.is_forcing() {
            let reaped = self.kept.cohort.reap_others();
            self.complain_of("collect children", reaped);
        }
    }

    fn answer(&mut self, client: usize, frame: Frame) {
        let (id, result) = match frame {
            Frame::Json(json) => match serde_json::from_slice::<Request>(&json) {
                Ok(Request { id, what }) => (id, self.perform(client, what)),
                Err(e) => {
                    (request_id(&json), Err(refusal(RefusalCode::UnknownRequest, &e.to_string())))
                }
            },
            Frame::Input { id, bytes } => (id, self.input(&bytes)),
            Frame::Output { .. } | Frame::Screen { .. } => {
                (0, Err(refusal(RefusalCode::UnknownRequest, "output goes the other way")))
            }
        };
        let attached = matches!(result, Ok(Reply::Status(_))) && self.clients[client].attached;
        self.clients[client].reply(id, result);
        if attached {
            self.show_screen(client);
        }
    }

    fn perform(&mut self, client: usize, what: Do) -> Result<Reply, Refusal> {
        let greeted = self.clients[client].greeted;
        match what {
            Do::Hello { protocol } => {
                if protocol == 0 {
                    return Err(refusal(RefusalCode::Protocol, "protocols are counted from 1"));
                }
                self.clients[client].greeted = true;
                let run = self.kept.spec.run.to_string();
                Ok(Reply::Hello { protocol: protocol.min(PROTOCOL), run })
            }
            _ if !greeted => {
                Err(refusal(RefusalCode::Protocol, "the first request is not a hello"))
            }
            Do::Start(_) => Err(refusal(RefusalCode::UnknownRequest, "it was started already")),
            Do::Status => Ok(Reply::Status(Box::new(self.status()))),
            Do::Stop { cause, grace_ms } => {
                let grace = grace_ms.map_or(self.kept.spec.grace, Duration::from_millis);
                self.stop(asked_for(cause)?, grace.min(MAX_GRACE))
            }
            Do::Kill { cause } => self.stop(asked_for(cause)?, Duration::ZERO),
            Do::Signal { signal } => self.signal(signal),
            Do::CloseStdin => {
                self.kept.streams.close_input().map(|()| Reply::Done).map_err(no_input)
            }
            Do::Resize(size) => self.resize(size),
            Do::Watch { ack } => {
                self.clients[client].watching = true;
                self.clients[client].must_ack |= ack;
                Ok(Reply::Status(Box::new(self.status())))
            }
            Do::Attach => {
                self.clients[client].attached = true;
                Ok(Reply::Status(Box::new(self.status())))
            }
            Do::Detach => {
                self.clients[client].attached = false;
                Ok(Reply::Done)
            }
            Do::Charge(charge) => self.charge(charge),
            Do::Ack => match self.ending {
                Ending::Told { .. } => {
                    self.clients[client].must_ack = false;
                    Ok(Reply::Done)
                }
                Ending::NotYet | Ending::Proven(_) => {
                    let message = "there is no end to acknowledge yet";
                    Err(refusal(RefusalCode::UnknownRequest, message))
                }
            },
        }
    }

    /// A run without a meter is held to nothing that a charge could reach.
    fn charge(&mut self, charge: String) -> Result<Reply, Refusal> {
        if charge.len() > MAX_USAGE_BYTES {
            let message = format!("a charge may have {MAX_USAGE_BYTES} bytes");
            return Err(refusal(RefusalCode::UnknownRequest, &message));
        }
        if let Some(metered) = &self.kept.metered {
            metered.charge(charge);
        }
        Ok(Reply::Done)
    }

    fn signal(&self, number: i32) -> Result<Reply, Refusal> {
        let Some(signal) = Signal::new(number) else {
            let message = format!("{number} is not a signal");
            return Err(refusal(RefusalCode::BadSignal, &message));
        };
        match self.kept.cohort.signal_leader(signal) {
            Ok(()) => Ok(Reply::Done),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(refusal(RefusalCode::Gone, "the leader is gone"))
            }
            Err(e) => Err(refusal(RefusalCode::System, &e.to_string())),
        }
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Reply, Refusal> {
        self.kept.streams.write(bytes).map(|()| Reply::Done).map_err(no_input)
    }

    fn resize(&mut self, size: TerminalSize) -> Result<Reply, Refusal> {
        match self.kept.streams.resize(size) {
            None => Err(refusal(RefusalCode::NoTerminal, "the run has no terminal")),
            Some(Ok(())) => Ok(Reply::Done),
            Some(Err(e)) => Err(refusal(RefusalCode::System, &e.to_string())),
        }
    }

    fn show_screen(&mut self, client: usize) {
        if let Some((offset, drawn)) = self.kept.streams.screen() {
            self.clients[client].show_screen(offset, &drawn);
        }
    }

    fn status(&self) -> Status {
        let state = match &self.ending {
            Ending::Told { .. } => State::Ended,
            Ending::Proven(_) => State::Stopping,
            Ending::NotYet if self.ladder.is_stuck() => State::Stuck,
            Ending::NotYet if self.ladder.is_stopping() => State::Stopping,
            Ending::NotYet => State::Running,
        };
        let end = match &self.ending {
            Ending::Told { end, .. } => Some((**end).clone()),
            Ending::NotYet | Ending::Proven(_) => None,
        };
        let silent = sys::boottime().saturating_sub(self.kept.streams.last_output());
        let counted = self.judge.samples() && state == State::Running;
        let sample = counted.then(|| self.sample().ok()).flatten();
        Status {
            state,
            started: self.kept.started.clone(),
            exit: self.exit,
            cause: self.cause.clone(),
            survivors: self.survivors.0.clone(),
            survivor_count: self.survivors.1,
            output: self.kept.streams.totals(),
            silent_ms: silent.as_millis() as u64,
            end,
            limits: self.judge.standing(sys::boottime(), self.doings(), sample),
            warned: self.warned.clone(),
            usage: self.kept.metered.as_ref().and_then(Metered::usage),
            meter_trouble: self.meter_trouble.clone(),
        }
    }

    fn tell(&mut self, event: &Event) {
        for client in self.clients.iter_mut().filter(|c| c.watching) {
            client.event(event);
            client.flush();
        }
    }
}

/// The causes a client may give. The others are findings, not requests.
fn asked_for(cause: Cause) -> Result<Cause, Refusal> {
    match &cause {
        Cause::Stopped | Cause::Killed => Ok(cause),
        Cause::Limit(limit) if limit.kind.len() <= MAX_LIMIT_KIND_BYTES => Ok(cause),
        Cause::Limit(_) | Cause::Exit | Cause::Oom(_) | Cause::Lost | Cause::NeverStarted => {
            let message = "a stop is asked for as stopped, killed, or limit with a short kind";
            Err(refusal(RefusalCode::UnknownRequest, message))
        }
    }
}

fn pass_on(clients: &mut [Client], piece: &Piece<'_>) {
    for client in clients.iter_mut().filter(|c| c.attached) {
        client.output(piece);
        client.flush();
    }
}

fn no_input(why: InputRefused) -> Refusal {
    match why {
        InputRefused::NoInput => refusal(RefusalCode::NoInput, "the run takes no input"),
        InputRefused::Full => {
            refusal(RefusalCode::InputFull, "the run does not read its input; try again later")
        }
    }
}

/// The id of a request that is otherwise not understood, so that the refusal finds its asker.
fn request_id(json: &[u8]) -> u64 {
    #[derive(serde::Deserialize)]
    struct Id {
        id: u64,
    }
    serde_json::from_slice::<Id>(json).map_or(0, |i| i.id)
}
