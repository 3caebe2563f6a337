//! What an adversarial reading of the kill path broke, each as the sequence that broke it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_process::{
    Adopted, Cause, ConnectionError, Containment, ExitStatus, LimitReached, Liveness, RefusalCode,
    Signal, Spec, SpecError, State, Streams, SurvivorReason, TerminalSize, Waited, adopt,
};
use kennel_tests::{
    LONG, PATIENCE, Scratch, agent, containments, end_of, proof_of, skipped, until, wait_for,
};

use crate::faults::ticks_of;

fn quiet(scratch: &Scratch) -> Spec {
    scratch.spec("run", "crash_quiet", &[])
}

#[test]
fn a_run_whose_files_were_swept_away_is_still_found_running() {
    let mut scratch = Scratch::new("wiped");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    fs::remove_file(run.dir().join("record")).expect("it is there");
    match adopt(run.dir()) {
        Ok(Adopted::Running { .. }) => {}
        other => panic!("its keeper lives: {other:?}"),
    }
    fs::remove_file(run.dir().join("lock")).expect("it is there");
    let adopted = adopt(run.dir());
    assert!(!matches!(adopted, Ok(Adopted::NeverStarted | Adopted::Ended(_))), "{adopted:?}");
    run.connection.kill().expect("its first connection still serves");
    until("the leader is gone", || run.leader.has_ended().expect("we hold it").then_some(()));
    scratch.check_gone("run");
}

#[test]
fn a_record_taken_away_from_a_dead_keeper_is_missed() {
    let scratch = Scratch::new("taken");
    let run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let record = fs::read(run.dir().join("record")).expect("it is there");
    fs::remove_file(run.dir().join("record")).expect("it is ours");
    let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("it lives") };
    keeper.signal(Signal::KILL).expect("it lives");
    until("the keeper is gone", || keeper.has_ended().expect("we hold it").then_some(()));
    let adopted = adopt(run.dir());
    assert!(matches!(adopted, Ok(Adopted::Unreadable(_))), "{adopted:?}");
    // With its record back, it can be ended.
    fs::write(run.dir().join("record"), record).expect("it is ours");
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(run.dir()) else { panic!("it is an orphan") };
    let swept = orphan.kill();
    assert!(matches!(swept, Ok(kennel_process::Swept::Ended(_))), "{swept:?}");
    assert!(run.leader.has_ended().expect("we hold it"));
}

#[test]
fn a_held_lock_is_never_a_reboot() {
    let mut scratch = Scratch::new("boot");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    // Another machine's name for its boot, in a record whose keeper lives here.
    let path = run.dir().join("record");
    let text = fs::read_to_string(&path).expect("it is text");
    let (first, rest) = text.split_once('\n').expect("it has lines");
    let (_, fact) = first.split_once("\"fact\":").expect("every line has one");
    let fact = fact.strip_suffix('}').expect("and ends after it");
    let fact = fact.replace(&run.started.leader.boot_id, "another-boot-another-boot-another-b0");
    let crc = crc32fast::hash(fact.as_bytes());
    let forged = format!("{{\"v\":1,\"crc\":{crc},\"fact\":{fact}}}\n{rest}    ");
    fs::write(&path, forged).expect("it is ours");
    let adopted = adopt(run.dir());
    assert!(matches!(adopted, Ok(Adopted::Running { .. })), "{adopted:?}");
    run.connection.kill().expect("it can be killed");
    until("the leader is gone", || run.leader.has_ended().expect("we hold it").then_some(()));
    scratch.check_gone("run");
}

#[test]
fn whoever_sits_on_the_socket_in_the_keepers_place_is_not_believed() {
    let mut scratch = Scratch::new("impostor");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let socket = run.dir().join("control");
    fs::remove_file(&socket).expect("it is there");
    let impostor = UnixListener::bind(&socket).expect("the place is free");
    let opened = kennel_process::Connection::open(run.dir());
    assert!(matches!(opened, Err(ConnectionError::NoKeeper(_))), "{opened:?}");
    drop(impostor);
    run.connection.kill().expect("its first connection still serves");
    let _ = end_of(&mut run);
    let _ = fs::remove_file(&socket);
    scratch.check_gone("run");
}

#[test]
fn mute_connections_lock_nobody_out() {
    let mut scratch = Scratch::new("mute");
    let mut run = scratch.start("run", &quiet(&scratch));
    let socket = run.dir().join("control");
    let connect = || UnixStream::connect(&socket).expect("it listens");
    let held: Vec<UnixStream> = (0..40).map(|_| connect()).collect();
    match adopt(run.dir()) {
        Ok(Adopted::Running { .. }) => {}
        other => panic!("it is running: {other:?}"),
    }
    drop(held);
    run.connection.kill().expect("it can be killed");
    let _ = end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn a_client_cannot_choose_what_the_end_is_called() {
    let mut scratch = Scratch::new("cause");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let long = LimitReached { kind: "k".repeat(40_000), used: 1.0, max: 1.0 };
    for cause in [Cause::NeverStarted, Cause::Exit, Cause::Lost, Cause::Limit(long)] {
        match run.connection.stop_because(cause, Some(LONG)) {
            Err(ConnectionError::Refused(refusal)) => {
                assert_eq!(refusal.code, RefusalCode::UnknownRequest);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(run.connection.status().expect("it answers").state, State::Running);
    let limit = LimitReached { kind: "wall".to_owned(), used: 2.0, max: 1.0 };
    run.connection.stop_because(Cause::Limit(limit.clone()), Some(LONG)).expect("that may be");
    assert_eq!(end_of(&mut run).cause, Cause::Limit(limit));
    scratch.check_gone("run");
}

#[test]
fn nobody_can_acknowledge_an_end_before_there_is_one() {
    let mut scratch = Scratch::new("ack");
    let mut run = scratch.start("run", &quiet(&scratch));
    let mut daemon = kennel_process::Connection::open(run.dir()).expect("it listens");
    daemon.watch_and_ack().expect("it answers");
    assert!(matches!(run.connection.ack(), Err(ConnectionError::Refused(_))));
    run.connection.kill().expect("it can be killed");
    let _ = end_of(&mut run);
    // The keeper waits for the one who promised, and for nobody else.
    assert_eq!(daemon.status().expect("it is still there").state, State::Ended);
    daemon.ack().expect("now there is one");
    scratch.check_gone("run");
}

#[test]
fn a_terminal_as_large_as_numbers_go_costs_the_screen_and_not_the_keeper() {
    let mut scratch = Scratch::new("huge");
    let mut spec = quiet(&scratch);
    spec.streams = Streams::Terminal { size: TerminalSize::default() };
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "ready");
    let largest = std::num::NonZeroU16::MAX;
    run.connection.resize(TerminalSize { rows: largest, cols: largest }).expect("it is allowed");
    assert_eq!(run.connection.attach().expect("it answers").state, State::Running);
    run.connection.kill().expect("it can be killed");
    let _ = proof_of(&end_of(&mut run));
    scratch.check_gone("run");
}

#[test]
fn a_grace_beyond_all_time_is_refused_by_name_and_a_stop_caps_it() {
    let mut scratch = Scratch::new("grace");
    let mut spec = quiet(&scratch);
    spec.grace = Duration::MAX;
    assert!(matches!(spec.check(), Err(SpecError::Grace(_))));
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    // Straight to the wire: the keeper must not fall over a number.
    let mut raw = UnixStream::connect(run.dir().join("control")).expect("it listens");
    let hello = r#"{"id":1,"do":{"hello":{"protocol":1}}}"#;
    let stop = r#"{"id":2,"do":{"stop":{"cause":"stopped","grace_ms":18446744073709551615}}}"#;
    for text in [hello, stop] {
        let mut frame = (text.len() as u32).to_le_bytes().to_vec();
        frame.push(0);
        frame.extend_from_slice(text.as_bytes());
        raw.write_all(&frame).expect("it takes it");
        let mut header = [0; 5];
        raw.read_exact(&mut header).expect("it answers");
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        raw.read_exact(&mut vec![0; length as usize]).expect("and says how much");
    }
    let _ = end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn a_cgroup_that_cannot_kill_leaves_the_other_ways() {
    if containments()[0] != Containment::Cgroup {
        return skipped("a_cgroup_that_cannot_kill_leaves_the_other_ways", "no cgroup here");
    }
    let mut scratch = Scratch::new("threaded");
    let mut run = scratch.start("run", &scratch.spec("run", "turns_threaded", &[]));
    wait_for(&scratch, "ready");
    let leaf = run.started.leaf.clone().expect("it has one").path;
    fs::write(scratch.work().join("new"), leaf.as_os_str().as_encoded_bytes()).expect("it writes");
    fs::rename(scratch.work().join("new"), scratch.work().join("leaf")).expect("it is ours");
    wait_for(&scratch, "threaded 0 0 0");
    run.connection.kill().expect("it can be killed");
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Signaled(9));
    assert!(proof_of(&end).effort().group_kills > 0, "{end:?}");
    scratch.check_gone("run");
}

#[test]
fn a_leader_that_a_stranger_traces_is_told_as_stuck_without_a_spin_and_ends_when_let_go() {
    let mut scratch = Scratch::new("traced");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let mut tracer = Command::new(agent("holds_traced"))
        .arg(run.started.leader.pid.to_string())
        .env("TRUTH", scratch.truth())
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for(&scratch, "holds");
    if !scratch.told().contains("holds 0") {
        let _ = tracer.kill();
        let _ = tracer.wait();
        run.connection.kill().expect("it can be killed");
        let _ = end_of(&mut run);
        return skipped("a_leader_that_a_stranger_traces", "tracing is not allowed here");
    }
    run.connection.kill().expect("it can be killed");
    let before = ticks_of(run.started.keeper.pid);
    let waited = run.connection.wait_end(PATIENCE).expect("the keeper answers");
    let used = ticks_of(run.started.keeper.pid) - before;
    let Waited::Stuck { survivors, count } = waited else { panic!("it is held: {waited:?}") };
    assert_eq!(count, 1, "{survivors:?}");
    assert_eq!(survivors[0].reason, SurvivorReason::HeldByTracer);
    assert_eq!(survivors[0].tracer, Some(tracer.id()));
    assert!(used < 100, "{used} of 500 ticks were used to wait");
    tracer.kill().expect("we are its parent");
    tracer.wait().expect("we are its parent");
    let ended = until("the run ends", || {
        match run.connection.wait_end(Duration::from_millis(50)).expect("the keeper answers") {
            Waited::Ended(end) => Some(end),
            Waited::Stuck { .. } | Waited::TimedOut => None,
        }
    });
    assert_eq!(ended.status, ExitStatus::Signaled(9));
    let _ = proof_of(&ended);
    scratch.check_gone("run");
}

#[test]
fn a_keeper_made_to_stand_still_is_woken_by_whoever_adopts() {
    let mut scratch = Scratch::new("still");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("it lives") };
    keeper.signal(Signal::STOP).expect("it lives");
    match adopt(run.dir()) {
        Ok(Adopted::Running { status, .. }) => assert_eq!(status.state, State::Running),
        other => panic!("it lives and was woken: {other:?}"),
    }
    run.connection.kill().expect("it can be killed");
    let _ = end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn the_keeper_is_spared_by_the_memory_killer_where_allowed_and_the_agent_never_is() {
    let mut scratch = Scratch::new("oom");
    let mut run = scratch.start("run", &quiet(&scratch));
    wait_for(&scratch, "ready");
    let score = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it lives");
        text.trim().parse::<i32>().expect("it is a number")
    };
    let ours = score("self");
    let keeper = score(&run.started.keeper.pid.to_string());
    assert!(keeper == ours || keeper == -900, "{keeper}, and ours is {ours}");
    assert_eq!(score(&run.started.leader.pid.to_string()), ours, "the keeper's was handed on");
    run.connection.kill().expect("it can be killed");
    let _ = end_of(&mut run);
    scratch.check_gone("run");
}
