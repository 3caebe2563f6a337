//! Process numbers, used again on purpose: what the number named before must not be taken for what
//! it names now. Runs as the init of a pid namespace of its own, where nobody else takes numbers.
//!
//! `reuse probe` fails if numbers cannot be chosen here; the other words name what is checked.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitCode, Stdio};

use kennel_process::{
    Adopted, Containment, DeadBecause, ExitStatus, Identity, KeeperProgram, Liveness, OnExit,
    Process, Run, Signal, Swept, Verdict, adopt, descendants, stop_process, stop_tree,
};
use kennel_tests::{LONG, Scratch, agent, end_of, numbers_after, stop_and_expect, until, wait_for};
use rustix::process::{WaitId, WaitIdOptions, waitid};

fn main() -> ExitCode {
    if let Some(code) = kennel_process::keeper::enter() {
        return code;
    }
    match std::env::args().nth(1).as_deref() {
        Some("probe") => drop(take_number(5000, 0, "stranger", None)),
        Some("identity") => identity(),
        Some("tree") => tree(),
        Some("orphan") => {
            orphan(Containment::Cgroup);
            orphan(Containment::Subreaper);
        }
        Some("pinned") => {
            pinned(Containment::Cgroup);
            pinned(Containment::Subreaper);
        }
        other => panic!("no such check: {other:?}"),
    }
    ExitCode::SUCCESS
}

/// A process of ours, ended when the check is over, however it is over.
struct Stranger(Child);

impl Stranger {
    fn start(name: &str, scratch: Option<&Scratch>) -> Self {
        let mut command = Command::new(agent(name));
        command.stdin(Stdio::null());
        if let Some(scratch) = scratch {
            command.env("TRUTH", scratch.truth());
        }
        Self(command.spawn().expect("it starts"))
    }

    fn hold(&self) -> Process {
        Process::from_number(self.0.id()).expect("it is our child")
    }

    #[track_caller]
    fn check_unhurt(&mut self) {
        let ended = self.0.try_wait().expect("we are its parent");
        assert!(ended.is_none(), "the stranger was hurt: {ended:?}");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent that has this very number, and not the start time of the one before: start times
/// are told in ticks, and within one of them no kernel without pidfs could tell the two apart.
fn take_number(number: u32, ticks: u64, name: &str, scratch: Option<&Scratch>) -> Stranger {
    until("the number is taken again", || {
        choose_next(number);
        let stranger = Stranger::start(name, scratch);
        let identity = stranger.hold().identity().clone();
        (identity.pid == number && identity.start_ticks != ticks).then_some(stranger)
    })
}

/// Makes the next process have this number, if it is free.
fn choose_next(number: u32) {
    fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string())
        .expect("numbers can be chosen in a namespace of our own");
}

/// An identity as a kernel without pidfs has it: number and start time alone.
fn without_pidfs(identity: &Identity) -> Identity {
    Identity { pidfs_inode: None, pidfs_handle: None, ..identity.clone() }
}

fn identity() {
    let first = Stranger::start("bystander", None);
    let held = first.hold();
    let identity = held.identity().clone();
    let both = [identity.clone(), without_pidfs(&identity)];
    for known in &both {
        assert!(matches!(known.find(), Liveness::Alive(_)));
    }
    held.signal(Signal::KILL).expect("it can be signalled");
    until("it has ended", || held.has_ended().expect("it is held").then_some(()));
    for known in &both {
        let found = known.find();
        assert!(matches!(found, Liveness::Dead(DeadBecause::Zombie)), "{found:?}");
    }
    drop(first);
    for known in &both {
        let found = known.find();
        assert!(matches!(found, Liveness::Dead(DeadBecause::Gone)), "{found:?}");
    }
    let mut stranger = take_number(identity.pid, identity.start_ticks, "stranger", None);
    for known in &both {
        let found = known.find();
        assert!(matches!(found, Liveness::Dead(DeadBecause::NumberReused)), "{found:?}");
    }
    for signal in [Signal::TERM, Signal::KILL] {
        assert_eq!(held.signal(signal).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    }
    let stopped = stop_process(held, LONG).expect("it is nobody's ancestor");
    assert_eq!((stopped.ended.len(), stopped.forced), (1, false));
    stranger.check_unhurt();
}

/// A hold on a process that is gone does not lead to the children of whoever has its number now.
fn tree() {
    let scratch = Scratch::new("tree");
    let first = Stranger::start("bystander", None);
    let held = first.hold();
    let identity = held.identity().clone();
    drop(first);
    let mut stranger = take_number(identity.pid, 0, "family", Some(&scratch));
    let members = until("the family is complete", || {
        Some(numbers_after(&scratch, "member")).filter(|n| n.len() >= 4)
    });
    let members: Vec<Process> =
        members.into_iter().filter_map(|n| Process::from_number(n).ok()).collect();
    assert!(descendants(&held).is_empty());
    let stopped = stop_tree(held, LONG).expect("it is nobody's ancestor");
    assert_eq!((stopped.ended, stopped.forced), (vec![identity], false));
    let hurt = members.iter().filter(|m| m.has_ended().expect("it is held")).count();
    assert_eq!(hurt, 0, "members of a stranger's family were hurt");
    stranger.check_unhurt();
}

fn start_run(scratch: &Scratch, name: &str, containment: Containment, on_exit: OnExit) -> Run {
    let mut spec = scratch.spec("run", name, &[]);
    spec.env.set.push(("GO".into(), scratch.path().join("go").into()));
    spec.containment = containment;
    spec.on_exit = on_exit;
    scratch.try_start("run", &spec, &KeeperProgram::default()).expect("it starts")
}

/// The keeper is killed, the leader ends and is collected, and a stranger gets its number, which is
/// also the number of its group and its session. Whoever sweeps the run does not touch the
/// stranger.
fn orphan(containment: Containment) {
    let mut scratch = Scratch::new("reuse");
    let run = start_run(&scratch, "double_fork", containment, OnExit::Sweep);
    wait_for(&scratch, "ready");
    wait_for(&scratch, "daemon");
    let leader = run.started.leader.clone();
    let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("the keeper lives") };
    keeper.signal(Signal::KILL).expect("it can be killed");
    until("the keeper is gone", || keeper.has_ended().expect("it is held").then_some(()));
    run.leader.signal(Signal::KILL).expect("it can be killed");
    // We are init here: orphans are ours to collect.
    until("the leader is collected", || {
        let collected = waitid(WaitId::PidFd(run.leader.as_fd()), WaitIdOptions::EXITED);
        collected.ok().flatten()
    });
    let mut stranger = take_number(leader.pid, leader.start_ticks, "stranger", None);
    assert_eq!(run.leader.signal(Signal::KILL).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(run.dir()) else { panic!("it is an orphan") };
    let found = orphan.leader();
    assert!(matches!(found, Liveness::Dead(DeadBecause::NumberReused)), "{found:?}");
    orphan.know_leader(run.leader);
    let Ok(Swept::Ended(end)) = orphan.kill() else { panic!("it can be swept") };
    stranger.check_unhurt();
    let daemon = Process::from_number(numbers_after(&scratch, "daemon")[0]);
    match end.verdict {
        Verdict::Dead(_) => {
            assert_eq!(run.started.containment, Containment::Cgroup);
            let gone = daemon.is_ok_and(|d| d.has_ended().expect("it is held"));
            assert!(gone, "the daemon died with the run, and waits for us to collect it");
        }
        Verdict::Lost(lost) => {
            assert_ne!(run.started.containment, Containment::Cgroup);
            let daemon = daemon.expect("without a cgroup nobody finds it");
            assert_eq!(lost.suspects.len(), 1, "{lost:?}");
            assert_eq!(&lost.suspects[0].identity, daemon.identity());
            daemon.signal(Signal::KILL).expect("it can be killed");
            until("it is gone", || daemon.has_ended().expect("it is held").then_some(()));
        }
    }
    if let ExitStatus::Exited(code) = end.status {
        panic!("it was killed, and did not exit with {code}");
    }
    scratch.check_bystanders();
    stranger.check_unhurt();
}

/// As long as a run is not proven dead, the number of its leader, and so of its group, is nobody
/// else's: the keeper does not collect it.
fn pinned(containment: Containment) {
    let mut scratch = Scratch::new("pinned");
    let mut run = start_run(&scratch, "lives_on", containment, OnExit::Wait);
    wait_for(&scratch, "child");
    until("the leader's exit is known", || run.connection.status().expect("it answers").exit);
    for _ in 0..20 {
        choose_next(run.started.leader.pid);
        let other = Stranger::start("stranger", None);
        assert_ne!(other.0.id(), run.started.leader.pid);
    }
    let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(6));
    scratch.check_gone("run");
    // After the proof it is free.
    let mut stranger = take_number(run.started.leader.pid, 0, "stranger", None);
    run.connection.kill().expect("it has ended");
    assert_eq!(end_of(&mut run), end);
    assert_eq!(run.leader.signal(Signal::KILL).map_err(|e| e.kind()), Err(ErrorKind::NotFound));
    stranger.check_unhurt();
}
