//! A run's processes: observing them, asking them, forcing them, and gathering the evidence.
//!
//! Owns: every signal that goes to a cohort. A victim is chosen only by what the kernel says of
//! membership through a held descriptor: a child of ours, a member of the run's cgroup, a
//! descendant of a held and living process, the group of a held leader. Never by a name, a path, a
//! command line, a cookie or a number from a file.
//!
//! The same code serves the keeper, which is the cohort's parent, and whoever takes over from a
//! keeper that has died ([`Role`]).

use std::collections::HashSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::containment::{Containment, Leaf, LeafId, LeafRemoved, Removal};
use crate::controllers::{self, Bindings, OomKill};
use crate::exit::{ExitStatus, UnknownStatus};
use crate::identity::{Identity, Process};
use crate::ladder::Seen;
use crate::limits::Sample;
use crate::proof::{Effort, Proof, SessionEmpty, Survivor, SurvivorReason, Suspect};
use crate::spec::RunId;
use crate::sys::pidfd::GroupSignal;
use crate::sys::wait::{self, AnyChild, ChildState};
use crate::sys::{self, Pid, Pidfd, proc};
use crate::{Signal, record};

/// The most processes one walk follows. A fork storm beyond it is finished by the next round.
const MAX_WALK: usize = 100_000;
/// The most processes a walk holds at once, well within the usual limit of descriptors. Who is not
/// held loses its parent, becomes our child, and is found by the next round.
const MAX_HELD: usize = 400;
/// How long one round goes on killing children without a pause.
const PASSES_BOUND: Duration = Duration::from_millis(5);
/// A run is short up to here: a time in which no machine gives out all of its process numbers, so
/// that who is younger than the run is known by the number.
const SHORT_RUN: Duration = Duration::from_secs(1);
/// The most numbers that are gone through one by one. Beyond, the list of processes is shorter.
const MAX_YOUNGER: u32 = 4096;
/// Collecting zombies one by one is repeated at most this part of the time.
const REAP_DUTY: u32 = 2;

/// Who is looking at the cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its parent: statuses and orphans come to us.
    Owner,
    /// Somebody else, after the owner died.
    Adopter,
}

/// A run's processes.
#[derive(Debug)]
pub(crate) struct Cohort {
    containment: Containment,
    role: Role,
    leader: Option<Process>,
    leader_collected: bool,
    leaf: Option<Leaf>,
    effort: Effort,
    /// Zombies are not collected again before this time, see [`reap_others`](Self::reap_others).
    reap_after: Duration,
}

/// What came of an attempt to prove death.
pub(crate) enum Attempt {
    Proven(Proof),
    NotYet,
}

impl Cohort {
    pub(crate) fn new(
        containment: Containment,
        role: Role,
        leader: Option<Process>,
        leaf: Option<Leaf>,
    ) -> Self {
        Self {
            containment,
            role,
            leader,
            leader_collected: false,
            leaf,
            effort: Effort::default(),
            reap_after: Duration::ZERO,
        }
    }

    pub(crate) fn leader(&self) -> Option<&Process> {
        self.leader.as_ref()
    }

    pub(crate) fn into_leader(self) -> Option<Process> {
        self.leader
    }

    pub(crate) fn effort_mut(&mut self) -> &mut Effort {
        &mut self.effort
    }

    /// Ready with `POLLPRI` when the cgroup may have become empty.
    pub(crate) fn cgroup_events(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.as_ref().and_then(Leaf::events_fd)
    }

    /// Looks at the cohort, cheaply while it lives.
    pub(crate) fn see(&mut self) -> io::Result<Seen> {
        let leader_ended = self.leader_ended()?;
        // Who else is left matters only once the leader is not.
        let others_gone = leader_ended && self.others_gone()?;
        Ok(Seen { leader_ended, others_gone })
    }

    fn leader_ended(&self) -> io::Result<bool> {
        match &self.leader {
            Some(leader) if !self.leader_collected => leader.has_ended(),
            Some(_) | None => Ok(true),
        }
    }

    fn others_gone(&mut self) -> io::Result<bool> {
        if let Some(leaf) = &self.leaf
            && leaf.populated()?
        {
            return Ok(false);
        }
        match self.role {
            Role::Owner => {
                self.reap_others()?;
                Ok(self.other_children()?.is_empty() && self.session_done()?)
            }
            Role::Adopter => Ok(self.leaf.is_some() || self.session_members()?.is_empty()),
        }
    }

    /// Without a subreaper, only the session tells who is left.
    fn session_done(&self) -> io::Result<bool> {
        match self.containment {
            Containment::Cgroup | Containment::Subreaper => Ok(true),
            Containment::Group => Ok(self.session_members()?.is_empty()),
        }
    }

    /// Counts the cohort's processes and threads, its processor time and its memory. Who comes or
    /// goes meanwhile may be missed: a count, and no evidence of anything.
    pub(crate) fn sample(&self, binds: &Bindings) -> io::Result<Sample> {
        let Some(leaf) = &self.leaf else { return self.walk() };
        // The leaf also remembers those who are gone; without one a change of them looks like less.
        let mut sample = match leaf.cpu_time() {
            Ok(cpu) if binds.need_a_walk() => Sample { cpu, ..self.walk()? },
            Ok(cpu) => Sample { cpu, ..Sample::default() },
            Err(_) => self.walk()?,
        };
        if binds.hard_memory().is_some() {
            sample.memory = controllers::memory_used(leaf)?;
        }
        if binds.hard_pids().is_some() {
            sample.tasks = controllers::tasks(leaf)?;
            sample.refused = controllers::refused(leaf)?;
        }
        Ok(sample)
    }

    /// Counts by a look at each process.
    fn walk(&self) -> io::Result<Sample> {
        let members = match &self.leaf {
            Some(leaf) => leaf.members()?,
            None => descendants(proc::own_children()?),
        };
        let mut sample = Sample::default();
        for member in members {
            if let Ok(usage) = proc::usage(member) {
                sample.cpu += usage.cpu;
                sample.memory += usage.memory;
                sample.tasks += usage.threads;
            }
        }
        Ok(sample)
    }

    /// Whether the kernel has killed anybody here for want of memory.
    pub(crate) fn oom_kill(&self) -> Option<OomKill> {
        self.leaf.as_ref().and_then(controllers::oom_kill)
    }

    /// Passes any signal on to the leader.
    pub(crate) fn signal_leader(&self, signal: Signal) -> io::Result<()> {
        match &self.leader {
            Some(leader) if !self.leader_collected => leader.signal(signal),
            Some(_) | None => Err(io::Error::new(io::ErrorKind::NotFound, "the leader is gone")),
        }
    }

    /// Sends the gentle signal: to the leader, then to the others in its group, each followed by
    /// SIGCONT. One signal each: some agents take a second one as "now, without saving".
    pub(crate) fn ask(&mut self, signal: Signal) {
        self.count_members();
        self.effort.asked = Some(signal);
        let Some(leader) = &self.leader else {
            return;
        };
        gentle(leader, signal);
        let group = leader.identity().pid;
        self.visit(&mut |member| {
            let in_group = proc::stat(member.pid()).is_ok_and(|s| s.pgrp == group);
            if in_group && member.has_ended().is_ok_and(|ended| !ended) {
                let _ = member.signal(signal.number());
                let _ = member.signal(Signal::CONT.number());
            }
        });
    }

    /// One round of force. Errors of single steps are no reason to leave out the others; the proof
    /// finds what is left, and the survivors' list says why.
    pub(crate) fn force(&mut self, round: u32) -> io::Result<()> {
        if self.effort.rounds == 0 {
            self.count_members();
        }
        self.effort.rounds += 1;
        let by_cgroup = self.leaf.as_ref().map_or(Ok(()), Leaf::kill_all);
        self.effort.cgroup_kills += u32::from(self.leaf.is_some() && by_cgroup.is_ok());
        self.kill_group();
        // The first write to cgroup.kill is nearly always enough; the walk is for what it misses.
        if self.leaf.is_none() || by_cgroup.is_err() || round > 1 {
            let mut kills = 0;
            self.visit(&mut |member| kills += kill_one(member));
            self.effort.process_kills += kills;
        }
        let children = match self.role {
            Role::Owner => self.kill_children(),
            Role::Adopter => Ok(()),
        };
        by_cgroup.and(children)
    }

    /// Kills our children, pass after pass without a pause while there are any: what re-forks all
    /// the time loses its parent at every step and so is our child at nearly every moment, but
    /// never for long. What moved itself out of the cgroup is found here as well.
    fn kill_children(&mut self) -> io::Result<()> {
        let deadline = sys::boottime() + PASSES_BOUND;
        loop {
            let children = self.other_children()?;
            for child in &children {
                self.effort.process_kills += Pidfd::open(*child).map_or(0, |c| kill_one(&c));
            }
            // With a cgroup the dead are collected at once when it is empty.
            if children.is_empty() || self.leaf_is_populated() {
                return Ok(());
            }
            self.reap_others()?;
            if sys::boottime() >= deadline {
                return Ok(());
            }
        }
    }

    fn leaf_is_populated(&self) -> bool {
        self.leaf.as_ref().is_some_and(|leaf| leaf.populated().unwrap_or(true))
    }

    fn kill_group(&mut self) {
        let Some(leader) = &self.leader else { return };
        // The leader's number names its group only while nobody has collected it; a descriptor does
        // so for ever, and finds nobody once the group is gone.
        let sent = match (self.role, self.leader_collected) {
            (Role::Owner, false) => leader.signal_group(Signal::KILL),
            (Role::Owner, true) | (Role::Adopter, _) => {
                leader.held().signal_group(Signal::KILL.number())
            }
        };
        if matches!(sent, Ok(GroupSignal::Sent)) {
            self.effort.group_kills += 1;
        }
    }

    /// Shows every member that can be found now, held open and with its membership checked through
    /// the hold; the leader itself only to an adopter, who has no unreaped child to speak of. One
    /// after the other, so that a storm of thousands does not run us out of descriptors.
    fn visit(&self, see: &mut dyn FnMut(&Pidfd)) {
        let leader = self.leader.as_ref().filter(|_| !self.leader_collected);
        let mut known: HashSet<Pid> = leader.map(|l| l.held().pid()).into_iter().collect();
        if let Some(leaf) = &self.leaf {
            for pid in leaf.members().unwrap_or_default() {
                let held = Pidfd::open(pid).ok().filter(|h| leaf.holds(h).unwrap_or(false));
                if let Some(held) = held.filter(|h| known.insert(h.pid())) {
                    see(&held);
                }
            }
        }
        if self.role == Role::Owner {
            for child in self.other_children().unwrap_or_default() {
                if let Some(held) = Pidfd::open(child).ok().filter(|_| known.insert(child)) {
                    visit_tree(&held, true, &mut known, see);
                }
            }
        }
        if let Some(leader) = leader {
            visit_tree(leader.held(), self.role == Role::Adopter, &mut known, see);
        }
        for member in self.session_members().unwrap_or_default() {
            if known.insert(member.pid()) {
                visit_tree(&member, true, &mut known, see);
            }
        }
    }

    /// Members of the leader's session, told by its number. Sound only while the leader itself,
    /// alive or not collected, keeps the number: otherwise the list is empty.
    fn session_members(&self) -> io::Result<Vec<Pidfd>> {
        let Some(leader) = self.leader.as_ref() else { return Ok(Vec::new()) };
        // With a cgroup or as living subreaper we know better ways.
        let needed = self.leaf.is_none()
            && (self.role == Role::Adopter || self.containment == Containment::Group);
        if !needed {
            return Ok(Vec::new());
        }
        if self.leader_collected {
            return Err(io::Error::other("the leader's number is no longer its own"));
        }
        let session = leader.identity().pid;
        let mut members = Vec::new();
        for pid in proc::all()?.into_iter().filter(|p| p.get() != session) {
            // A quick look first, so that strangers need not be held; then the look that counts.
            if session_of(pid)? == Some(session) {
                let held = unless_gone(Pidfd::open(pid))?;
                let inside = |h: &Pidfd| {
                    Ok::<_, io::Error>(session_of(h.pid())? == Some(session) && !h.has_ended()?)
                };
                match held {
                    Some(held) if inside(&held)? => members.push(held),
                    Some(_) | None => {}
                }
            }
        }
        // Only if the leader still holds the number was it that session all the while.
        Ok(if keeps_its_number(leader.held()) { members } else { Vec::new() })
    }

    fn other_children(&self) -> io::Result<Vec<Pid>> {
        let leader = self.leader.as_ref().map(|l| l.held().pid());
        let mut children = proc::own_children()?;
        children.retain(|c| Some(*c) != leader);
        Ok(children)
    }

    /// Collects every ended child but the leader.
    ///
    /// While the leader lives the kernel names each ended child in turn. Once the leader itself is
    /// a zombie the kernel would name it for ever, so the list of children is gone through instead;
    /// that costs time in proportion to all children, so it is done at most half of the time.
    pub(crate) fn reap_others(&mut self) -> io::Result<()> {
        let leader = self.leader.as_ref().map(|l| l.held().pid());
        loop {
            match wait::any()? {
                AnyChild::Ended(pid) if Some(pid) != leader => {
                    wait::reap_pid(pid)?;
                }
                AnyChild::Ended(_) => break,
                AnyChild::Alive | AnyChild::None => return Ok(()),
            }
        }
        let begun = sys::boottime();
        if begun < self.reap_after {
            return Ok(());
        }
        for child in self.other_children()? {
            wait::reap_pid(child)?;
        }
        let now = sys::boottime();
        self.reap_after = now + (now - begun) * (REAP_DUTY - 1);
        Ok(())
    }

    /// When collecting zombies was put off, until when.
    pub(crate) fn reap_due(&self, now: Duration) -> Option<Duration> {
        (self.reap_after > now).then_some(self.reap_after)
    }

    /// The leader's status without collecting it; `None` while it lives or where nobody can know.
    pub(crate) fn peek_status(&self) -> io::Result<Option<ExitStatus>> {
        let Some(leader) = &self.leader else {
            return Ok(None);
        };
        match wait::state_of(leader.held())? {
            ChildState::Ended(status) => Ok(Some(status.into())),
            ChildState::Alive => Ok(None),
            ChildState::NotOurChild => {
                let word = leader.held().info().and_then(|i| i.exit);
                Ok(word.map(ExitStatus::from_wait_word))
            }
        }
    }

    /// The owner's last step: collect the leader, and gather the evidence. The leader's status was
    /// peeked at and recorded before.
    pub(crate) fn prove(&mut self, status: ExitStatus) -> io::Result<Attempt> {
        // While the leader's number is still its own.
        let session = match self.containment {
            Containment::Group if !self.session_members()?.is_empty() => {
                return Ok(Attempt::NotYet);
            }
            Containment::Group => Some(SessionEmpty(())),
            Containment::Cgroup | Containment::Subreaper => None,
        };
        if let (Some(leader), false) = (&self.leader, self.leader_collected) {
            wait::reap(leader.held())?;
            self.leader_collected = true;
        }
        crate::failpoint::failpoint("prove.collected")?;
        let Some(no_children) = wait::no_children()? else {
            return Ok(Attempt::NotYet);
        };
        let effort = self.effort.clone();
        Ok(Attempt::Proven(match (&self.leaf, session) {
            (Some(leaf), _) => match leaf.remove()? {
                Removal::Busy => return Ok(Attempt::NotYet),
                Removal::Removed(removed) => {
                    Proof::by_cgroup(leaf.id().clone(), &removed, &no_children, status, effort)
                }
            },
            (None, Some(session)) => Proof::by_group(&no_children, &session, status, effort),
            (None, None) => Proof::by_subreaper(&no_children, status, effort),
        }))
    }

    /// The adopter's last step, with a cgroup: the leader has ended, and nobody is in the leaf.
    pub(crate) fn remove_leaf(&mut self) -> io::Result<Option<(LeafId, LeafRemoved)>> {
        let Some(leaf) = self.leaf.as_ref() else {
            return Ok(None);
        };
        if !self.leader_ended()? || leaf.populated()? {
            return Ok(None);
        }
        match leaf.remove()? {
            Removal::Busy => Ok(None),
            Removal::Removed(removed) => Ok(Some((leaf.id().clone(), removed))),
        }
    }

    /// What is the leader's status if the keeper did not record it? Bounded by the caller: the one
    /// who collects orphans (init, usually) may need a moment.
    pub(crate) fn status_as_adopter(&mut self) -> io::Result<Option<ExitStatus>> {
        let Some(leader) = &self.leader else {
            return Ok(Some(ExitStatus::Unknown(UnknownStatus::KeeperLost)));
        };
        // It may have become our own child, if we are a subreaper above the keeper.
        match wait::reap(leader.held())? {
            ChildState::Ended(status) => Ok(Some(status.into())),
            ChildState::Alive => Ok(None),
            ChildState::NotOurChild => {
                Ok(leader.held().info().and_then(|i| i.exit).map(ExitStatus::from_wait_word))
            }
        }
    }

    fn visible_members(&self) -> usize {
        let mut members = 0;
        self.visit(&mut |_| members += 1);
        members
    }

    fn count_members(&mut self) {
        let listed = match &self.leaf {
            Some(leaf) => leaf.members().map_or(0, |m| m.len()),
            None => self.visible_members() + usize::from(self.role == Role::Owner),
        };
        self.effort.processes = self.effort.processes.max(listed as u32);
    }

    /// Who is left and why, at most [`record::MAX_LISTED`] of them, with the full number.
    pub(crate) fn survivors(&self) -> (Vec<Survivor>, u64) {
        let mut listed = Vec::new();
        let mut count = 0;
        let mut add = |held: &Pidfd| {
            if let Some(survivor) = describe(held) {
                count += 1;
                if listed.len() < record::MAX_LISTED {
                    listed.push(survivor);
                }
            }
        };
        if let (Role::Owner, Some(leader), false) = (self.role, &self.leader, self.leader_collected)
        {
            add(leader.held());
        }
        self.visit(&mut add);
        (listed, count)
    }
}

fn kill_one(member: &Pidfd) -> u32 {
    u32::from(member.signal(Signal::KILL.number()).is_ok())
}

/// The session of a process, or nothing if it is gone. Whatever else keeps us from seeing it is an
/// error: what cannot be seen is not gone.
fn session_of(pid: Pid) -> io::Result<Option<u32>> {
    Ok(unless_gone(proc::stat(pid))?.map(|stat| stat.session))
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(e),
    }
}

fn gentle(process: &Process, signal: Signal) {
    // A process that is gone needs no asking.
    let _ = process.signal(signal);
    // A stopped process would keep the signal pending for ever.
    let _ = process.signal(Signal::CONT);
}

/// Shows this process, if wanted, and everybody below it who can be found now, held open.
///
/// Parents before children, so that no parent is set to work by the killing of its child; and who
/// is shown has had its children held before, so that killing it loses none of them. Each was a
/// child of a held process that had not been collected when its children were read, so descent is
/// certain; that the list is complete is not.
pub(crate) fn visit_tree(
    root: &Pidfd,
    with_root: bool,
    known: &mut HashSet<Pid>,
    see: &mut dyn FnMut(&Pidfd),
) {
    let mut next = hold_children(root, known, MAX_HELD);
    if with_root {
        see(root);
    }
    while let Some(held) = next.pop() {
        let below = hold_children(&held, known, MAX_HELD - next.len());
        see(&held);
        next.extend(below);
    }
}

/// These and all below them, as far as they can be listed: numbers to be read about, and no more.
fn descendants(mut all: Vec<Pid>) -> Vec<Pid> {
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        all.extend(proc::children(pid).unwrap_or_default());
        if all.len() > MAX_WALK {
            break;
        }
    }
    all
}

/// At most `room` of the children of a held process that are not known yet.
fn hold_children(parent: &Pidfd, known: &mut HashSet<Pid>, room: usize) -> Vec<Pidfd> {
    let mut held = Vec::new();
    for pid in proc::children(parent.pid()).unwrap_or_default() {
        if held.len() >= room || known.len() > MAX_WALK {
            break;
        }
        let Ok(child) = Pidfd::open(pid) else { continue };
        let is_child = proc::stat(pid).is_ok_and(|s| s.ppid == parent.pid().get());
        // The stat was the held child's only if its number was not freed meanwhile, and the number
        // in it the held parent's only if that was not collected.
        let certain = keeps_its_number(&child) && keeps_its_number(parent);
        if is_child && certain && known.insert(pid) {
            held.push(child);
        }
    }
    held
}

/// True if a held process has not been collected, so that its number is still its own. `EPERM` of a
/// probe means: it is there, and somebody else's.
pub(crate) fn keeps_its_number(held: &Pidfd) -> bool {
    match held.signal(0) {
        Ok(()) => true,
        Err(e) => e.raw_os_error() == Some(libc::EPERM),
    }
}

/// Explains one process that is left. `None` if it has gone after all.
pub(crate) fn describe(held: &Pidfd) -> Option<Survivor> {
    let identity = Identity::of(held).ok()?;
    let stat = proc::stat(held.pid()).ok()?;
    let status = proc::status(held.pid()).unwrap_or_default();
    let ended = held.has_ended().ok()?;
    if ended && status.tracer.is_none() {
        return None;
    }
    let refused = held.signal(0).is_err_and(|e| e.raw_os_error() == Some(libc::EPERM));
    let reason = if ended {
        SurvivorReason::HeldByTracer
    } else if refused {
        SurvivorReason::NotPermitted
    } else if stat.state == 'D' {
        SurvivorReason::Uninterruptible
    } else {
        SurvivorReason::StillExiting
    };
    Some(Survivor {
        identity,
        comm: stat.comm,
        state: stat.state,
        uid: status.uid,
        tracer: status.tracer,
        wait_channel: proc::wait_channel(held.pid()),
        reason,
    })
}

/// Processes anywhere that carry the run's cookie. To be reported, never signalled: the cookie is
/// inherited by whatever a user starts later from a server that began in the run. An error means
/// that nobody can say; who belongs to another user and hides its environment is passed over.
pub(crate) fn suspects(run: &RunId) -> io::Result<(Vec<Suspect>, u64)> {
    suspects_among(run, proc::all()?)
}

/// The same for a run that lasted `age` only. To look at every process of the machine costs more
/// than the whole rest of a short run. Who was there before the run has the cookie only if it has
/// turned into another program meanwhile; so after a short run those are looked at who are younger.
pub(crate) fn suspects_after(
    run: &RunId,
    leader: &Identity,
    age: Duration,
) -> io::Result<(Vec<Suspect>, u64)> {
    let leader = Pid::new(leader.pid.into()).filter(|_| age < SHORT_RUN);
    let younger = leader.map(|pid| proc::younger_than(pid, MAX_YOUNGER)).transpose()?.flatten();
    match younger {
        Some(younger) => suspects_among(run, younger),
        None => suspects(run),
    }
}

fn suspects_among(run: &RunId, numbers: Vec<Pid>) -> io::Result<(Vec<Suspect>, u64)> {
    let cookie = run.cookie();
    let carries = |pid| match proc::environment_has(pid, cookie.as_bytes()) {
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => Err(e),
        Ok(carries) => Ok(carries),
        Err(_) => Ok(false),
    };
    let (mut listed, mut count) = (Vec::new(), 0);
    for pid in numbers {
        // A quick look first, so that strangers need not be held; then the look that counts.
        if !carries(pid)? {
            continue;
        }
        let Some(held) = unless_gone(Pidfd::open(pid))? else { continue };
        if !carries(pid)? || held.has_ended()? {
            continue;
        }
        if let (Ok(identity), Ok(stat)) = (Identity::of(&held), proc::stat(pid)) {
            count += 1;
            if listed.len() < record::MAX_LISTED {
                listed.push(Suspect { identity, comm: stat.comm });
            }
        }
    }
    Ok((listed, count))
}
