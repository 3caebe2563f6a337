//! The crash matrix: SIGKILL of the keeper, of its starter, and of both, at every arrow of the
//! spawn and stop protocols, and what another process then finds.
//!
//! ```text
//! before the record says "opening" -> never started, and no instruction of the agent ran
//! from there until the end         -> orphaned; dead with the kernel's own status, or lost if
//!                                     there is no cgroup
//! once the end is recorded         -> ended, as recorded
//! only the starter killed          -> the run goes on as if nothing had happened
//! ```
//!
//! Each case is a [`Family`]: its init tells how every orphan really ended, and ends only when
//! nobody is left. A keeper is frozen at its failpoint by its own SIGSTOP, found among the init's
//! children by that state, and killed there or let go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kennel_process::{
    AdoptError, Adopted, Cause, Connection, Containment, End, ExitStatus, Liveness, Orphan,
    Process, RunId, Signal, Spec, StartError, Stream, Swept, UnknownStatus, Verdict, Waited, adopt,
};
use kennel_tests::{
    Family, PATIENCE, Scratch, both_streams, carriers_of, containments, end_of, leaves_of,
    output_of, pass, program, proof_of, stop_and_expect, test_keeper, until, wait_for,
};

/// A grace that only an agent deaf to the gentle signal uses up.
const LONG: Duration = Duration::from_secs(20);
/// For such an agent.
const SHORT: Duration = Duration::from_millis(20);

/// An agent of the matrix, with all that can truly be said of its end.
struct Agent {
    program: &'static str,
    grace: Duration,
    /// How it ends if nothing happens to its keeper.
    status: ExitStatus,
    leaves_by_itself: bool,
    /// What it tells when it has done its worst.
    ready: &'static [&'static str],
    /// Who gets away from a subreaper that is dead.
    escapes: Escapes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    Nobody,
    /// One who stays where it is.
    One,
    /// One who is never the same twice, so that no list of suspects is ever up to date.
    Hopper,
}

const QUIET: Agent = Agent {
    program: "crash_quiet",
    grace: LONG,
    status: ExitStatus::Signaled(15),
    leaves_by_itself: false,
    ready: &["ready"],
    escapes: Escapes::Nobody,
};
const EXIT7: Agent = Agent {
    program: "crash_exit7",
    status: ExitStatus::Exited(7),
    leaves_by_itself: true,
    ..QUIET
};
const DEAF: Agent =
    Agent { program: "ignore_term", grace: SHORT, status: ExitStatus::Signaled(9), ..QUIET };
const DAEMONISER: Agent =
    Agent { program: "double_fork", ready: &["daemon", "ready"], escapes: Escapes::One, ..QUIET };
const WRITER: Agent = Agent { program: "crash_writer", ..QUIET };
const HOPPER: Agent = Agent { program: "crash_refork", escapes: Escapes::Hopper, ..QUIET };

/// An arrow of the spawn or the stop protocol: a failpoint, and which passing of it.
struct Arrow {
    point: &'static str,
    nth: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The starter may not have sent the spec.
    Entered,
    /// The record does not say yet that the gate opens.
    Unrecorded,
    /// The record says so, and the gate is shut.
    Gated,
    /// The agent runs.
    Running,
    /// It is being stopped, or has left by itself.
    Stopping,
    /// The end is recorded.
    Ended,
}

const fn arrow(point: &'static str, phase: Phase) -> Arrow {
    Arrow { point, nth: 1, phase }
}

const ARROWS: &[Arrow] = &[
    arrow("start.entered", Phase::Entered),
    arrow("start.spec", Phase::Unrecorded),
    arrow("start.locked", Phase::Unrecorded),
    arrow("start.contained", Phase::Unrecorded),
    arrow("start.leaf", Phase::Unrecorded),
    arrow("start.forked", Phase::Unrecorded),
    arrow("record.create", Phase::Unrecorded),
    arrow("record.sync", Phase::Unrecorded),
    arrow("record.rename", Phase::Unrecorded),
    arrow("record.sync_dir", Phase::Unrecorded),
    arrow("start.recorded", Phase::Unrecorded),
    arrow("record.opening", Phase::Unrecorded),
    arrow("start.opening", Phase::Gated),
    arrow("start.gate", Phase::Running),
    arrow("start.opened", Phase::Running),
    arrow("start.told", Phase::Running),
    arrow("record.append", Phase::Stopping),
    arrow("stop.recorded", Phase::Stopping),
    arrow("stop.asked", Phase::Stopping),
    arrow("stop.forced", Phase::Stopping),
    arrow("stop.exited", Phase::Stopping),
    Arrow { point: "record.append", nth: 2, phase: Phase::Stopping },
    arrow("stop.exit_recorded", Phase::Stopping),
    arrow("prove.collected", Phase::Stopping),
    arrow("stop.proven", Phase::Stopping),
    Arrow { point: "record.append", nth: 3, phase: Phase::Stopping },
    arrow("stop.recorded_end", Phase::Ended),
    arrow("stop.told", Phase::Ended),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Keeper,
    /// It ends by a panic of its own, and so with its destructors.
    Panicking,
    Starter,
    Both,
}

const VICTIMS: [Victim; 4] = [Victim::Keeper, Victim::Panicking, Victim::Starter, Victim::Both];

/// Every arrow and every victim for one agent, in every containment.
fn matrix(agent: &Agent) {
    for containment in containments() {
        let mut scratch = Scratch::new("crash");
        scratch.add_bystanders(&scratch.spec("none", agent.program, &[]));
        let mut n = 0;
        // Before the gate no agent differs from another.
        let all = [QUIET.program, EXIT7.program].contains(&agent.program);
        let before = |arrow: &Arrow| matches!(arrow.phase, Phase::Entered | Phase::Unrecorded);
        for arrow in ARROWS.iter().filter(|arrow| all || !before(arrow)) {
            for victim in VICTIMS {
                // A panic differs from a kill in the keeper alone: one agent will do.
                if victim == Victim::Panicking && agent.program != QUIET.program {
                    continue;
                }
                n += 1;
                let case = Case::new(&scratch, &format!("{n}"), agent, containment, arrow, victim);
                naming(&case.label(), || case.run());
                scratch.check_bystanders();
            }
        }
    }
}

/// Says in which of many cases a test failed.
fn naming(label: &str, case: impl FnOnce()) {
    use std::io::Write;
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case)) {
        let _ = writeln!(std::io::stderr(), "in the case: {label}");
        std::panic::resume_unwind(panic);
    }
}

struct Case<'a> {
    run: RunId,
    spec: Spec,
    dir: PathBuf,
    truth: PathBuf,
    agent: &'a Agent,
    arrow: &'a Arrow,
    victim: Victim,
}

impl<'a> Case<'a> {
    fn new(
        scratch: &Scratch,
        name: &str,
        agent: &'a Agent,
        containment: Containment,
        arrow: &'a Arrow,
        victim: Victim,
    ) -> Self {
        let truth = scratch.path().join(format!("truth-{name}"));
        let mut spec = scratch.spec(name, agent.program, &[]);
        spec.env.set.push(("TRUTH".into(), truth.clone().into()));
        spec.containment = containment;
        spec.grace = agent.grace;
        Self {
            run: scratch.run_id(name),
            spec,
            dir: scratch.run_dir(name),
            truth,
            agent,
            arrow,
            victim,
        }
    }

    fn label(&self) -> String {
        format!(
            "{} in a {}, {:?} killed at {} ({})",
            self.agent.program,
            self.spec.containment,
            self.victim,
            self.arrow.point,
            self.arrow.nth
        )
    }

    fn told(&self) -> String {
        fs::read_to_string(&self.truth).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        let told = self.told();
        self.agent.ready.iter().all(|word| told.contains(word))
    }

    /// What the starter is told once the agent is ready.
    fn order(&self) -> String {
        if self.agent.leaves_by_itself {
            return "wait".to_owned();
        }
        format!("stop {}", self.agent.grace.as_millis())
    }

    fn run(&self) {
        let action = match self.victim {
            Victim::Keeper => "kill",
            Victim::Panicking => "panic",
            Victim::Starter | Victim::Both => "stop",
        };
        let failpoint = format!("{}={action}@{}", self.arrow.point, self.arrow.nth);
        let mut family = Family::start(&self.spec, &self.dir, &failpoint);
        if matches!(self.arrow.phase, Phase::Stopping | Phase::Ended) {
            until("the run has started", || family.word("started"));
            until("the agent is ready", || self.is_ready().then_some(()));
            family.order(&self.order());
        }
        let keeper_lives = self.crash(&family);
        if keeper_lives {
            self.expect_to_go_on(&mut family);
        } else {
            self.expect_a_crash(&mut family);
        }
        self.expect_no_trace(&mut family);
    }

    fn expect_no_trace(&self, family: &mut Family) {
        family.await_end();
        assert_eq!(carriers_of(self.run.as_str()), Vec::<String>::new());
        let left = leaves_of(self.run.as_str());
        left.iter().for_each(|leaf| drop(fs::remove_dir(leaf)));
        assert_eq!(left, Vec::<PathBuf>::new(), "a cgroup is left");
    }

    /// Waits for the arrow and kills there. True if the keeper lives on, which is also so if this
    /// run never comes by this arrow.
    fn crash(&self, family: &Family) -> bool {
        if matches!(self.victim, Victim::Keeper | Victim::Panicking) {
            // The failpoint does it; the starter finds out.
            let stopping = matches!(self.arrow.phase, Phase::Stopping | Phase::Ended);
            return until("the keeper is killed, or done", || {
                if family.word("ended").is_some() {
                    return Some(self.arrow.phase != Phase::Ended);
                }
                let heard = if stopping { ["broken"; 2] } else { ["error", "started"] };
                let heard = heard.iter().any(|word| family.word(word).is_some());
                (heard && family.keeper().is_none()).then_some(false)
            });
        }
        let starter = family.starter();
        let frozen =
            until("the keeper is at the arrow, or done", || match family.frozen_keeper() {
                Some(keeper) => Some(Some(keeper)),
                None if family.keeper().is_some() => None,
                None => family.word("ended").map(|_| None),
            });
        let Some(keeper) = frozen else { return true };
        if self.victim == Victim::Both {
            keeper.signal(Signal::KILL).expect("it stands still");
        }
        starter.signal(Signal::KILL).expect("it waits");
        if self.victim == Victim::Starter {
            let gone = || starter.has_ended().expect("we hold it").then_some(());
            until("the starter is gone", gone);
            keeper.signal(Signal::CONT).expect("it stands still");
        }
        self.victim == Victim::Starter
    }

    fn expect_to_go_on(&self, family: &mut Family) {
        // Before the keeper has its lock an adopter could still be the first.
        let recorded = until("the run is recorded, or its keeper gone", || {
            if self.dir.join("record").exists() {
                return Some(true);
            }
            (self.arrow.phase == Phase::Entered && family.keeper().is_none()).then_some(false)
        });
        if !recorded {
            return self.expect_never_started(adopt(&self.dir), family);
        }
        let end = match adopt(&self.dir) {
            Ok(Adopted::Running { connection, status }) => {
                assert_eq!(status.started.run, self.run);
                self.end_it(connection)
            }
            Ok(Adopted::Ended(end)) => *end,
            other => panic!("the death of its starter changed the run: {other:?}"),
        };
        assert_eq!(end.status, self.agent.status, "{end:?}");
        assert_eq!(proof_of(&end).leader(), end.status);
        let cause = if self.agent.leaves_by_itself { Cause::Exit } else { Cause::Stopped };
        assert_eq!(end.cause, cause);
        assert!(self.is_ready(), "what it did before is not undone: {:?}", self.told());
        self.expect_the_same_again(&end);
    }

    fn end_it(&self, mut connection: Connection) -> End {
        if !self.agent.leaves_by_itself {
            until("the agent is ready", || self.is_ready().then_some(()));
            connection.stop(Some(self.agent.grace)).expect("it can be stopped");
        }
        match connection.wait_end(PATIENCE) {
            Ok(Waited::Ended(end)) => *end,
            other => panic!("it does not end: {other:?}"),
        }
    }

    fn expect_a_crash(&self, family: &mut Family) {
        let adopted = adopt(&self.dir);
        match self.arrow.phase {
            Phase::Entered | Phase::Unrecorded => self.expect_never_started(adopted, family),
            Phase::Gated | Phase::Running | Phase::Stopping => match adopted {
                Ok(Adopted::Orphaned(orphan)) => self.expect_orphan(orphan, family),
                other => panic!("its keeper is dead and nobody has ended it: {other:?}"),
            },
            Phase::Ended => match adopted {
                Ok(Adopted::Ended(end)) => {
                    assert_eq!(end.status, self.agent.status, "{end:?}");
                    assert_eq!(proof_of(&end).leader(), end.status);
                    self.expect_the_same_again(&end);
                }
                other => panic!("its end was recorded: {other:?}"),
            },
        }
    }

    fn expect_never_started(&self, adopted: Result<Adopted, AdoptError>, family: &mut Family) {
        assert!(matches!(adopted, Ok(Adopted::NeverStarted)), "{adopted:?}");
        let again = adopt(&self.dir);
        assert!(matches!(again, Ok(Adopted::NeverStarted)), "{again:?}");
        assert!(!self.dir.join("control").exists(), "a socket is left");
        // Nobody is left who could still run it.
        family.await_end();
        assert_eq!(self.told(), "", "user code ran in a run that never started");
    }

    fn expect_orphan(&self, mut orphan: Box<Orphan>, family: &mut Family) {
        assert_eq!(orphan.started().run, self.run);
        assert_eq!(orphan.started().containment, self.spec.containment);
        let leader = orphan.started().leader.pid;
        if self.arrow.phase == Phase::Running && self.agent.escapes == Escapes::One {
            until("the agent is ready", || self.is_ready().then_some(()));
        }
        let lived = matches!(orphan.leader(), Liveness::Alive(_));
        let end = match orphan.kill().expect("it can be swept") {
            Swept::Ended(end) => *end,
            stuck @ Swept::Stuck { .. } => panic!("{stuck:?}"),
        };
        drop(orphan);
        assert!(!self.dir.join("control").exists(), "a socket is left");
        match (&end.verdict, self.spec.containment) {
            (Verdict::Dead(proof), Containment::Cgroup) => assert_eq!(proof.leader(), end.status),
            (Verdict::Lost(_), Containment::Subreaper) => self.end_suspects(&end),
            (verdict, containment) => panic!("{containment}: {verdict:?}"),
        }
        self.expect_the_same_again(&end);
        family.await_end();
        self.expect_true_status(&end, family.collected(leader), lived);
        if self.arrow.phase == Phase::Gated {
            assert_eq!(self.told(), "", "user code ran before the gate was opened");
        }
    }

    /// The init's word is the kernel's. An end that does not know may say so only if the leader was
    /// collected before anybody came to look.
    fn expect_true_status(&self, end: &End, collected: Option<ExitStatus>, lived: bool) {
        match (end.status, collected) {
            (ExitStatus::Unknown(why), _) => {
                assert_eq!(why, UnknownStatus::KeeperLost);
                assert!(!lived || !kernel_remembers(), "the kernel knew: {collected:?}");
            }
            (status, Some(collected)) => assert_eq!(status, collected),
            // The keeper lived to collect it.
            (status, None) => assert_eq!(status, self.agent.status),
        }
        if end.status == ExitStatus::Exited(7) {
            assert!(self.told().contains("exit 7"), "{}", self.told());
        }
    }

    /// Without a cgroup what got away is named, and it is the test that ends it.
    fn end_suspects(&self, end: &End) {
        let Verdict::Lost(lost) = &end.verdict else { return };
        assert!(lost.reason.contains("keeper"), "{lost:?}");
        let carriers = carriers_of(self.run.as_str());
        match self.agent.escapes {
            Escapes::Nobody => assert_eq!(carriers, Vec::<String>::new()),
            Escapes::One => {
                for carrier in &carriers {
                    let pid = carrier.split(' ').next().expect("a number comes first");
                    let named = lost.suspects.iter().any(|s| s.identity.pid.to_string() == pid);
                    assert!(named, "{carrier} is not among the suspects {:?}", lost.suspects);
                }
            }
            Escapes::Hopper => {}
        }
        for suspect in &lost.suspects {
            if let Liveness::Alive(process) = suspect.identity.find() {
                let _ = process.signal(Signal::KILL);
            }
        }
        if self.agent.escapes == Escapes::Hopper {
            until("the hopper is caught", || {
                let carriers = carriers_of(self.run.as_str());
                carriers.iter().for_each(|carrier| kill_carrier(carrier, self.run.as_str()));
                carriers.is_empty().then_some(())
            });
        }
    }

    fn expect_the_same_again(&self, end: &End) {
        match adopt(&self.dir) {
            Ok(Adopted::Ended(again)) => assert_eq!(*again, *end, "two answers"),
            other => panic!("it had ended: {other:?}"),
        }
    }
}

/// Ends a process of a test's own, which carries the cookie of that test's run, once it is held.
fn kill_carrier(carrier: &str, run: &str) {
    let number = carrier.split(' ').next().and_then(|n| n.parse().ok());
    let Some(held) = number.and_then(|n| Process::from_number(n).ok()) else { return };
    let still = carriers_of(run).iter().any(|c| c.split(' ').next() == carrier.split(' ').next());
    if still {
        let _ = held.signal(Signal::KILL);
    }
}

/// Whether a held process tells its status after somebody else has collected it.
fn kernel_remembers() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version >= (6, 15)
}

#[test]
fn a_quiet_agent_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&QUIET);
}

#[test]
fn an_agent_that_exits_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&EXIT7);
}

#[test]
fn a_deaf_agent_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&DEAF);
}

#[test]
fn a_daemonised_child_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&DAEMONISER);
}

#[test]
fn an_agent_that_writes_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&WRITER);
}

#[test]
fn an_agent_that_forks_away_is_accounted_for_whoever_is_killed_at_any_arrow() {
    matrix(&HOPPER);
}

/// Numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Rounds of the test below; each is one seed.
const ROUNDS: u64 = 48;

#[test]
fn a_crash_at_no_particular_moment_is_accounted_for_too() {
    const ANYWHERE: Arrow = Arrow { point: "none", nth: 1, phase: Phase::Stopping };
    const ANYWHERE_BEFORE: Arrow = Arrow { point: "none", nth: 1, phase: Phase::Entered };
    let containments = containments();
    let mut scratch = Scratch::new("dice");
    scratch.add_bystanders(&scratch.spec("none", "crash_quiet", &[]));
    for seed in 0..ROUNDS {
        let mut dice = Dice(seed);
        let agents = [&QUIET, &EXIT7, &DEAF, &WRITER, &DAEMONISER];
        let agent = agents[dice.roll(agents.len() as u64) as usize];
        let containment = match agent.escapes {
            Escapes::Nobody => containments[dice.roll(containments.len() as u64) as usize],
            Escapes::One | Escapes::Hopper => containments[0],
        };
        let victim =
            [Victim::Keeper, Victim::Keeper, Victim::Starter, Victim::Both][dice.roll(4) as usize];
        let arrow = if victim == Victim::Starter { &ANYWHERE_BEFORE } else { &ANYWHERE };
        let mut case = Case::new(&scratch, &seed.to_string(), agent, containment, arrow, victim);
        case.spec.streams = both_streams()[dice.roll(2) as usize];
        let stop = dice.roll(2) == 0;
        let delay = Duration::from_micros(dice.roll(if stop { 30_000 } else { 12_000 }));
        let label = format!("seed {seed}: {} after {delay:?}, stop {stop}", case.label());
        naming(&label, || case.crash_any_time(stop, delay));
        scratch.check_bystanders();
    }
}

impl Case<'_> {
    fn crash_any_time(&self, stop: bool, delay: Duration) {
        let mut family = Family::start(&self.spec, &self.dir, "");
        let starter = family.starter();
        if stop {
            until("the run has started", || family.word("started"));
            until("the agent is ready", || self.is_ready().then_some(()));
            family.order(&self.order());
        }
        pass(delay);
        let keeper = until("the keeper is there, or done", || match family.keeper() {
            Some(keeper) => Some(Some(keeper)),
            None => ["ended", "reaped"].iter().any(|w| family.word(w).is_some()).then_some(None),
        });
        if matches!(self.victim, Victim::Starter | Victim::Both) {
            let _ = starter.signal(Signal::KILL);
        }
        if self.victim == Victim::Starter {
            self.expect_to_go_on(&mut family);
            return self.expect_no_trace(&mut family);
        }
        if let Some(keeper) = &keeper {
            let _ = keeper.signal(Signal::KILL);
        }
        self.expect_anything_true(&mut family);
        self.expect_no_trace(&mut family);
    }

    fn expect_anything_true(&self, family: &mut Family) {
        match adopt(&self.dir) {
            never @ Ok(Adopted::NeverStarted) => self.expect_never_started(never, family),
            Ok(Adopted::Orphaned(orphan)) => self.expect_orphan(orphan, family),
            Ok(Adopted::Ended(end)) => {
                assert!(matches!(end.verdict, Verdict::Dead(_)), "{end:?}");
                self.expect_the_same_again(&end);
                self.expect_true_status(&end, None, true);
            }
            other => panic!("its keeper was killed: {other:?}"),
        }
    }
}

// One run, several hands.

/// A run of a quiet agent whose keeper was killed as soon as it had told of the start.
fn orphaned(scratch: &Scratch, name: &str, agent: &str, containment: Containment) -> Family {
    let mut spec = scratch.spec(name, agent, &[]);
    spec.containment = containment;
    let family = Family::start(&spec, &scratch.run_dir(name), "start.told=kill@1");
    until("the keeper is gone", || {
        (family.word("started").is_some() && family.keeper().is_none()).then_some(())
    });
    wait_for(scratch, "ready");
    family
}

fn swept(orphan: &mut Orphan) -> End {
    match orphan.kill().expect("it can be swept") {
        Swept::Ended(end) => *end,
        stuck @ Swept::Stuck { .. } => panic!("{stuck:?}"),
    }
}

fn ended(dir: &Path) -> End {
    match adopt(dir) {
        Ok(Adopted::Ended(end)) => *end,
        other => panic!("it has ended: {other:?}"),
    }
}

#[test]
fn an_orphan_that_somebody_holds_is_nobody_elses() {
    let scratch = Scratch::new("held");
    let dir = scratch.run_dir("run");
    let mut family = orphaned(&scratch, "run", "crash_quiet", containments()[0]);
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(&dir) else { panic!("it is an orphan") };
    let second = adopt(&dir);
    assert!(matches!(second, Err(AdoptError::KeeperSilent(_))), "{second:?}");
    let end = swept(&mut orphan);
    // The end is recorded, and that is all another one needs.
    assert_eq!(ended(&dir), end);
    drop(orphan);
    family.await_end();
}

#[test]
fn of_many_adopters_at_once_one_sweeps_and_all_say_the_same() {
    for containment in containments() {
        let scratch = Scratch::new("many");
        let dir = scratch.run_dir("run");
        let mut family = orphaned(&scratch, "run", "crash_quiet", containment);
        let (barrier, holders) = (Barrier::new(8), AtomicU32::new(0));
        let one = || {
            barrier.wait();
            match adopt(&dir) {
                Ok(Adopted::Orphaned(mut orphan)) => {
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold one orphan");
                    swept(&mut orphan)
                }
                Ok(Adopted::Ended(end)) => *end,
                other => panic!("{other:?}"),
            }
        };
        let ends: Vec<End> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().expect("it does not panic")).collect()
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        assert_eq!(holders.into_inner(), 1);
        family.await_end();
    }
}

#[test]
fn an_adopter_killed_half_way_leaves_the_rest_to_the_next_one() {
    for containment in containments() {
        for point in ["adopt.climbed", "adopt.removed", "record.append"] {
            let scratch = Scratch::new("halfway");
            let dir = scratch.run_dir("run");
            let mut family = orphaned(&scratch, "run", "crash_quiet", containment);
            let first = std::process::Command::new(program("crash-starter"))
                .args(["adopt".as_ref(), dir.as_os_str()])
                .env("KENNEL_FAILPOINT", format!("{point}=kill"))
                .output()
                .expect("it starts");
            assert_eq!(first.stdout, b"", "{point}: it told of an end it had not recorded");
            let Ok(Adopted::Orphaned(mut orphan)) = adopt(&dir) else {
                panic!("{point}: an orphan")
            };
            let leader = orphan.started().leader.pid;
            let end = swept(&mut orphan);
            assert_eq!(
                matches!(end.verdict, Verdict::Dead(_)),
                containment == Containment::Cgroup,
                "{point}: {end:?}"
            );
            assert_eq!(ended(&dir), end);
            drop(orphan);
            family.await_end();
            let collected = family.collected(leader);
            assert_eq!(collected, Some(ExitStatus::Signaled(9)));
            let unknown = ExitStatus::Unknown(UnknownStatus::KeeperLost);
            assert!(Some(end.status) == collected || end.status == unknown, "{point}: {end:?}");
        }
    }
}

#[test]
fn of_two_starts_in_one_directory_exactly_one_runs() {
    const ROUNDS: usize = 15;
    for round in 0..ROUNDS {
        let mut scratch = Scratch::new("twice");
        let spec = scratch.spec("run", "crash_quiet", &[]);
        let barrier = Barrier::new(2);
        let start = || {
            barrier.wait();
            scratch.try_start("run", &spec, &test_keeper())
        };
        let both = std::thread::scope(|scope| {
            let threads = [scope.spawn(start), scope.spawn(start)];
            threads.map(|t| t.join().expect("it does not panic"))
        });
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for one in both {
            match one {
                Ok(run) => runs.push(run),
                Err(e) => failures.push(e),
            }
        }
        assert_eq!(runs.len(), 1, "round {round}: {failures:?}");
        assert!(matches!(failures[0], StartError::Failed(_)), "round {round}: {failures:?}");
        wait_for(&scratch, "ready");
        let end = stop_and_expect(&mut runs[0], LONG, ExitStatus::Signaled(15));
        assert_eq!(scratch.told().lines().count(), 1, "round {round}: two agents ran");
        // What the loser did must not have spoilt what the winner left.
        assert_eq!(ended(&scratch.run_dir("run")), end);
        scratch.check_gone("run");
    }
}

#[test]
fn a_start_and_an_adopter_at_once_agree_on_whether_it_started() {
    const ROUNDS: u64 = 20;
    let (mut started, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let mut scratch = Scratch::new("meet");
        let spec = scratch.spec("run", "crash_quiet", &[]);
        let dir = scratch.run_dir("run");
        fs::create_dir(&dir).expect("it can be made");
        let barrier = Barrier::new(2);
        let (start, adopted) = std::thread::scope(|scope| {
            let start = scope.spawn(|| {
                barrier.wait();
                scratch.try_start("run", &spec, &test_keeper())
            });
            let adopted = scope.spawn(|| {
                barrier.wait();
                pass(Duration::from_micros(round * 400));
                adopt(&dir)
            });
            (start.join().expect("no panic"), adopted.join().expect("no panic"))
        });
        match (start, adopted.expect("it can be adopted")) {
            (Ok(mut run), Adopted::Running { .. }) => {
                started += 1;
                run.connection.kill().expect("it can be killed");
                let _ = end_of(&mut run);
            }
            (Err(StartError::Failed(_)), Adopted::NeverStarted) => {
                refused += 1;
                assert_eq!(scratch.told(), "");
            }
            other => panic!("round {round}: they disagree: {other:?}"),
        }
        scratch.check_gone("run");
    }
    assert_eq!(started + refused, ROUNDS);
}

#[test]
fn a_keeper_that_comes_late_does_not_start_what_was_called_never_started() {
    for point in ["start.entered", "start.spec"] {
        let scratch = Scratch::new("late");
        let dir = scratch.run_dir("run");
        let spec = scratch.spec("run", "crash_quiet", &[]);
        let mut family = Family::start(&spec, &dir, &format!("{point}=stop@1"));
        let keeper = until("the keeper is at the arrow", || family.frozen_keeper());
        let early = adopt(&dir);
        assert!(matches!(early, Ok(Adopted::NeverStarted)), "{point}: {early:?}");
        keeper.signal(Signal::CONT).expect("it stands still");
        let refusal = until("the starter is told", || family.word("error"));
        assert!(refusal.contains("never started"), "{point}: {refusal}");
        family.await_end();
        assert_eq!(scratch.told(), "", "{point}: it ran");
        let again = adopt(&dir);
        assert!(matches!(again, Ok(Adopted::NeverStarted)), "{point}: {again:?}");
    }
}

#[test]
fn a_cgroup_made_a_moment_before_the_crash_is_removed_by_the_adopter() {
    if containments()[0] != Containment::Cgroup {
        return;
    }
    let scratch = Scratch::new("leaf");
    let dir = scratch.run_dir("run");
    let spec = scratch.spec("run", "crash_quiet", &[]);
    let mut family = Family::start(&spec, &dir, "start.contained=kill@1");
    until("the keeper is gone", || family.word("error"));
    let adopted = adopt(&dir);
    assert!(matches!(adopted, Ok(Adopted::NeverStarted)), "{adopted:?}");
    family.await_end();
    let left = leaves_of(scratch.run_id("run").as_str());
    left.iter().for_each(|leaf| fs::remove_dir(leaf).expect("it is empty"));
    assert_eq!(left, Vec::<PathBuf>::new(), "nobody will ever remove it");
}

#[test]
fn a_second_start_after_a_crash_before_the_record_is_contained_as_well_as_the_first() {
    let mut scratch = Scratch::new("again");
    let spec = scratch.spec("run", "crash_quiet", &[]);
    let dir = scratch.run_dir("run");
    let mut family = Family::start(&spec, &dir, "start.forked=kill@1");
    until("the keeper is gone", || family.word("error"));
    family.await_end();
    let mut run = scratch.start("run", &spec);
    let (containment, because) = (run.started.containment, run.started.containment_because.clone());
    run.connection.kill().expect("it can be killed");
    let _ = end_of(&mut run);
    let left = leaves_of(scratch.run_id("run").as_str());
    left.iter().for_each(|leaf| fs::remove_dir(leaf).expect("it is empty"));
    assert_eq!(left, Vec::<PathBuf>::new(), "the cgroup of the first start is left");
    assert_eq!(containment, containments()[0], "{because:?}");
    scratch.check_gone("run");
}

#[test]
fn whoever_holds_the_leader_knows_its_status_after_everybody_else_is_gone() {
    let mut scratch = Scratch::new("know");
    let spec = scratch.spec("run", "crash_straggler", &[]);
    let run = scratch.start("run", &spec);
    wait_for(&scratch, "ready");
    wait_for(&scratch, "straggler");
    let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("it lives") };
    keeper.signal(Signal::KILL).expect("it lives");
    until("the keeper is gone", || keeper.has_ended().expect("we hold it").then_some(()));
    fs::write(scratch.work().join("go"), "").expect("it can be written");
    // Whoever collects orphans on this machine takes its time.
    let leader = PathBuf::from(format!("/proc/{}", run.started.leader.pid));
    until("the leader is collected", || (!leader.exists()).then_some(()));
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(run.dir()) else { panic!("it is an orphan") };
    orphan.know_leader(run.leader);
    let end = swept(&mut orphan);
    let unknown = ExitStatus::Unknown(UnknownStatus::KeeperLost);
    let expected = if kernel_remembers() { ExitStatus::Exited(3) } else { unknown };
    assert_eq!(end.status, expected);
    if containments()[0] == Containment::Cgroup {
        assert!(matches!(end.verdict, Verdict::Dead(_)), "{end:?}");
    } else {
        let run_id = scratch.run_id("run");
        carriers_of(run_id.as_str()).iter().for_each(|c| kill_carrier(c, run_id.as_str()));
    }
    drop(orphan);
    assert_eq!(carriers_of(scratch.run_id("run").as_str()), Vec::<String>::new());
    assert_eq!(leaves_of(scratch.run_id("run").as_str()), Vec::<PathBuf>::new());
    scratch.check_bystanders();
}

#[test]
fn what_an_orphan_wrote_is_neither_lost_nor_denied() {
    let scratch = Scratch::new("wrote");
    let dir = scratch.run_dir("run");
    let spec = scratch.spec("run", "crash_writer", &["1000"]);
    let mut family = Family::start(&spec, &dir, "stop.recorded=kill@1");
    wait_for(&scratch, "wrote 1000");
    until("it is all in the files", || {
        (output_of(&dir, Stream::Stdout).len() == 64_000).then_some(())
    });
    family.order("stop 1000");
    until("the keeper is gone", || family.word("broken"));
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(&dir) else { panic!("it is an orphan") };
    let end = swept(&mut orphan);
    assert_eq!(end.output.stdout.written, 64_000, "{:?}", end.output);
    // The stop was recorded: that was the cause, whoever finished it.
    assert_eq!(end.cause, Cause::Stopped);
    drop(orphan);
    family.await_end();
}
