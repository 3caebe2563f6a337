//! What a run must survive: each agent named by its crime, in every containment and kind of
//! streams.
//!
//! Each test compares what the keeper reports with the truth file the agent wrote, and ends in the
//! checker: nobody carries the cookie, no cgroup and no socket is left, every bystander lives.

use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

use kennel_process::{
    Adopted, Cause, Containment, ExitStatus, Liveness, OnExit, Signal, Spec, StartError,
    StartStage, State, Stream, Streams, Swept, Verdict, adopt, ladder,
};
use kennel_tests::{
    LONG, SHORT, Scratch, agent, are_root, both_streams, containments, each, end_of, numbers_after,
    proof_of, shown_by, skipped, state_of, stop_and_expect, test_keeper, until, wait_for,
};

/// As the system numbers them.
const ENOENT: i32 = 2;
const EACCES: i32 = 13;

// Deaf, slow and standing still.

#[test]
fn an_agent_that_ignores_every_signal_is_forced_after_the_grace() {
    each("ignore_term", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
        assert_eq!(end.cause, Cause::Stopped, "{label}");
        let effort = proof_of(&end).effort();
        assert!(effort.rounds >= 1, "{label}: {effort:?}");
        assert_eq!(effort.asked, Some(Signal::TERM), "{label}");
    });
}

#[test]
fn an_agent_that_leaves_in_grace_is_not_waited_for_nor_forced() {
    each("leaves_late", &["42", "50"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let begun = Instant::now();
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(42));
        assert!(begun.elapsed() < LONG / 2, "{label}: took {:?}", begun.elapsed());
        assert!(scratch.told().contains("leaves 42"), "{label}: {}", scratch.told());
        let effort = proof_of(&end).effort();
        let force = (effort.rounds, effort.cgroup_kills, effort.group_kills, effort.process_kills);
        assert_eq!(force, (0, 0, 0, 0), "{label}");
    });
}

#[test]
fn the_grace_counts_from_the_asking_however_slow_the_record_is() {
    let grace = Duration::from_millis(300);
    each("leaves_late", &["42", "1"], |scratch, label, spec| {
        // A disk that takes its time: the keeper stands still between record and signal.
        let keeper = test_keeper().env("KENNEL_FAILPOINT", "stop.recorded=stop");
        let mut run = scratch.try_start("run", &spec, &keeper).unwrap();
        wait_for(scratch, "ready");
        let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("{label}") };
        std::thread::scope(|scope| {
            let stop = scope.spawn(|| run.connection.stop(Some(grace)));
            let pid = keeper.identity().pid;
            until("the keeper stands still", || (state_of(pid) == Some('T')).then_some(()));
            let begun = Instant::now();
            until("the grace is over", || (begun.elapsed() > grace).then_some(()));
            keeper.signal(Signal::CONT).unwrap();
            stop.join().unwrap().unwrap();
        });
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Exited(42), "{label}: {end:?}");
        assert!(scratch.told().contains("leaves 42"), "{label}");
    });
}

#[test]
fn a_leader_that_stands_still_is_asked_gently() {
    each("stands_still", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let leader = run.started.leader.pid;
        until("the leader stands still", || (state_of(leader) == Some('T')).then_some(()));
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(7));
        assert_eq!(proof_of(&end).effort().rounds, 0, "{label}");
        assert!(scratch.told().contains("asked"), "{label}");
    });
}

#[test]
fn every_member_of_the_group_is_asked_once_and_nobody_else() {
    each("counts_asks", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        for who in ["leader", "member", "stranger"] {
            wait_for(scratch, &format!("here {who}"));
        }
        run.connection.stop(Some(LONG)).unwrap();
        wait_for(scratch, "asked leader");
        wait_for(scratch, "asked member");
        // Asked again while they think about it: that is no second signal.
        run.connection.stop(Some(LONG)).unwrap();
        run.connection.kill().unwrap();
        assert_eq!(end_of(&mut run).status, ExitStatus::Signaled(9), "{label}");
        let told = scratch.told();
        let mut asked: Vec<&str> = told.lines().filter(|l| l.starts_with("asked")).collect();
        asked.sort_unstable();
        assert_eq!(asked, ["asked leader", "asked member"], "{label}");
    });
}

#[test]
fn the_gentle_signal_is_the_one_that_was_said() {
    each("says", &[], |scratch, label, mut spec| {
        let script = r#"trap 'exit 5' INT; trap 'exit 6' TERM; "$0" ready
            while :; do sleep 1000 & wait; done"#;
        spec.program = "sh".into();
        spec.args = vec!["-c".into(), script.into(), agent("says").into()];
        spec.ask = Signal::INT;
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(5));
        assert_eq!(proof_of(&end).effort().asked, Some(Signal::INT), "{label}");
    });
}

// Children that get away elsewhere.

#[test]
fn a_daemonised_child_dies_with_its_run() {
    each("double_fork", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        wait_for(scratch, "daemon");
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(15));
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}

#[test]
fn a_disowned_child_that_holds_the_terminal_dies_with_its_run() {
    each("holds_terminal", &[], |scratch, _, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    });
}

#[test]
fn a_disowned_child_does_not_outlive_a_leader_that_exits_by_itself() {
    each("holds_terminal", &["3"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        assert_eq!((&end.cause, end.status), (&Cause::Exit, ExitStatus::Exited(3)), "{label}");
        assert!(scratch.told().contains("child"), "{label}");
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}

#[test]
fn hoppers_that_change_their_number_all_the_time_are_caught() {
    for kind in ["group", "session"] {
        each("hopper", &["4", kind], |scratch, label, spec| {
            let mut run = scratch.start("run", &spec);
            for n in 1..=4 {
                wait_for(scratch, &format!("hops {n}"));
            }
            let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
            let effort = proof_of(&end).effort();
            assert!(effort.force_us < bound_us(), "{label}, {kind}: {effort:?}");
        });
    }
}

#[test]
fn a_leader_whose_main_thread_left_is_alive_until_it_is_killed() {
    each("headless", &["leader"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "headless");
        assert_eq!(state_of(run.started.leader.pid), Some('Z'), "{label}");
        let status = run.connection.status().unwrap();
        assert_eq!((status.state, status.exit), (State::Running, None), "{label}");
        stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
    });
}

#[test]
fn a_leader_whose_main_thread_left_ends_with_the_code_of_its_last_thread() {
    each("headless", &["leaves", "5"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        assert_eq!((&end.cause, end.status), (&Cause::Exit, ExitStatus::Exited(5)), "{label}");
    });
}

#[test]
fn a_child_whose_main_thread_left_dies_with_its_run() {
    each("headless", &["child"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "headless");
        let child = numbers_after(scratch, "headless")[0];
        assert_eq!(state_of(child), Some('Z'), "{label}");
        stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
    });
}

#[test]
fn zombies_by_the_thousand_are_collected() {
    each("zombie_farm", &["2000"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
        let effort = proof_of(&end).effort();
        assert!(effort.total() < ladder::FORCE_BOUND, "{label}: {effort:?}");
    });
}

#[test]
fn a_chain_of_a_thousand_children_dies_with_its_run() {
    each("deep_chain", &["1000"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        run.connection.kill().unwrap();
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Signaled(9), "{label}");
        assert!(proof_of(&end).effort().force_us < bound_us(), "{label}");
    });
}

#[test]
fn children_of_a_nested_reaper_die_with_the_run() {
    each("nested_reaper", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        for n in 0..3 {
            wait_for(scratch, &format!("daemon {n}"));
        }
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(15));
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}

#[test]
fn a_child_that_moves_out_of_the_cgroup_dies_with_its_run() {
    let name = "a_child_that_moves_out_of_the_cgroup_dies_with_its_run";
    if !are_root() || !containments().contains(&Containment::Cgroup) {
        return skipped(name, "needs root and a cgroup");
    }
    for kind in ["child", "daemon"] {
        each("leaves_cgroup", &[kind], |scratch, label, spec| {
            if spec.containment != Containment::Cgroup {
                return;
            }
            let mut run = scratch.start("run", &spec);
            wait_for(scratch, "moved to");
            let told = scratch.told();
            assert!(!told.contains("kennel-") && !told.contains("failed"), "{label}: {told}");
            let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(15));
            assert!(proof_of(&end).effort().process_kills >= 1, "{label}, {kind}");
        });
    }
}

#[test]
fn a_child_of_another_user_dies_with_its_run() {
    if !are_root() {
        return skipped("a_child_of_another_user_dies_with_its_run", "needs root");
    }
    each("other_user", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "other");
        let child = numbers_after(scratch, "other")[0];
        until("the child is another user", || {
            let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            status.contains("Uid:\t65534").then_some(())
        });
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(15));
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}

#[test]
fn a_child_held_by_a_tracer_dies_with_its_run() {
    each("traces_sibling", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        until("a child is traced, or that is forbidden here", || {
            let told = scratch.told();
            (told.contains("traces") || told.contains("cannot trace")).then_some(())
        });
        if scratch.told().contains("cannot trace") {
            skipped("a_child_held_by_a_tracer_dies_with_its_run", &scratch.told());
        } else {
            let traced = numbers_after(scratch, "traces")[0];
            assert_eq!(state_of(traced), Some('t'), "{label}");
        }
        stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
    });
}

// Agents that answer a stop with more of themselves.

#[test]
fn an_agent_that_forks_when_it_is_asked_to_end_is_forced() {
    each("forks_when_asked", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        run.connection.stop(Some(LONG)).unwrap();
        wait_for(scratch, "forked");
        run.connection.kill().unwrap();
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Signaled(9), "{label}");
        assert_eq!(end.cause, Cause::Stopped, "{label}: the first cause is kept");
        assert!(proof_of(&end).effort().force_us < bound_us(), "{label}");
    });
}

#[test]
fn a_fork_storm_is_ended_within_the_bound() {
    each("storm", &["500"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "storm");
        run.connection.kill().unwrap();
        let end = end_of(&mut run);
        assert_eq!((&end.cause, end.status), (&Cause::Killed, ExitStatus::Signaled(9)), "{label}");
        let effort = proof_of(&end).effort();
        assert!(effort.force_us < bound_us(), "{label}: {effort:?}");
        assert!(effort.processes > 1, "{label}: {effort:?}");
    });
}

#[test]
fn a_script_stopped_in_its_first_step_never_begins_the_second() {
    let scripts = [
        r#"trap "" TERM; "$STEP1"; "$STEP2" "the second step runs""#,
        // The same in a session of its own, where no group signal reaches it.
        r#"trap "" TERM; setsid sh -c '"$STEP1"; "$STEP2" "the second step runs"'; "$STEP2" third"#,
    ];
    for (n, script) in scripts.into_iter().enumerate() {
        for _ in 0..5 {
            each("ignore_term", &[], |scratch, label, mut spec| {
                spec.program = "sh".into();
                spec.args = vec!["-c".into(), script.into()];
                spec.env.set.push(("STEP1".into(), agent("ignore_term").into()));
                spec.env.set.push(("STEP2".into(), agent("says").into()));
                let mut run = scratch.start("run", &spec);
                wait_for(scratch, "ready");
                stop_and_expect(&mut run, Duration::from_millis(5), ExitStatus::Signaled(9));
                let told = scratch.told();
                let steps = told.lines().filter(|line| !line.starts_with("ready")).count();
                assert_eq!(steps, 0, "{label}, script {n}: {told}");
            });
        }
    }
}

#[test]
fn nobody_is_set_to_work_by_the_killing_of_its_child() {
    each("next_step", &["100"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        until("all wait for their children", || {
            (scratch.told().matches("step").count() == 100).then_some(())
        });
        run.connection.kill().unwrap();
        assert_eq!(end_of(&mut run).status, ExitStatus::Signaled(9), "{label}");
        let told = scratch.told();
        assert_eq!(told.matches("next step").count(), 0, "{label}: {told}");
    });
}

// Streams that are held, closed or flooded.

#[test]
fn a_grandchild_that_writes_for_ever_does_not_hold_up_the_end() {
    const BYTES: usize = 200_000;
    each("writes_on", &["200000"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        assert_eq!((&end.cause, end.status), (&Cause::Exit, ExitStatus::Exited(4)), "{label}");
        let shown = shown_by(&run);
        assert!(shown.len() >= BYTES, "{label}: {} bytes", shown.len());
        let wrong = shown[..BYTES].iter().zip(letters()).position(|(a, b)| *a != b);
        assert_eq!(wrong, None, "{label}");
        assert!(shown[BYTES..].iter().all(|b| *b == b'X'), "{label}");
    });
}

#[test]
fn a_stranger_who_holds_the_output_does_not_hold_up_the_end() {
    each("leaves_late", &["0", "1"], |scratch, label, spec| {
        if matches!(spec.streams, Streams::Terminal { .. }) {
            // A hung-up terminal is closed for everybody: it cannot be held.
            return end_of_plain_run(scratch, &spec);
        }
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let path = format!("/proc/{}/fd/1", run.started.leader.pid);
        let held = fs::File::options().write(true).open(path).unwrap();
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(0));
        assert!(!end.output.complete, "{label}: somebody could still write");
        drop(held);
    });
}

fn end_of_plain_run(scratch: &Scratch, spec: &Spec) {
    let mut run = scratch.start("run", spec);
    wait_for(scratch, "ready");
    let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(0));
    assert!(end.output.complete);
}

#[test]
fn an_agent_that_closes_all_its_descriptors_runs_on_until_it_is_stopped() {
    each("closes_all", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "closed");
        let lines = || scratch.told().matches("runs on").count();
        let seen = lines();
        until("it runs on", || {
            assert!(
                !run.leader.has_ended().unwrap(),
                "{label}: it was ended: {:?}",
                end_of(&mut run)
            );
            (lines() > seen + 5).then_some(())
        });
        let status = run.connection.status().unwrap();
        assert_eq!((status.state, status.exit), (State::Running, None), "{label}");
        stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    });
}

#[test]
fn sixty_four_mebibytes_that_nobody_reads_are_kept_whole() {
    const BYTES: u64 = 64 << 20;
    for containment in containments() {
        let mut scratch = Scratch::new("pours");
        let mut spec = scratch.spec("run", "pours", &[&BYTES.to_string(), "binary"]);
        spec.containment = containment;
        spec.keep_bytes = 4 * BYTES;
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Exited(0));
        let totals = end.output.stdout;
        assert_eq!((totals.written, totals.dropped, totals.lost), (BYTES, 0, 0));
        assert!(end.output.complete);
        let kept = kennel_tests::output_of(run.dir(), Stream::Stdout);
        assert_eq!(kept.len() as u64, BYTES);
        let pattern: Vec<u8> = (0..251).collect();
        assert!(kept.chunks(pattern.len()).all(|part| part == &pattern[..part.len()]));
        scratch.check_gone("run");
    }
}

// Ends too soon, or never begins.

#[test]
fn two_hundred_agents_that_exit_at_once_all_have_their_status() {
    for containment in containments() {
        for streams in both_streams() {
            let mut scratch = Scratch::new("exits");
            for n in 0..50 {
                let code = (n * 7) % 256;
                let name = format!("run{n}");
                let mut spec = scratch.spec(&name, "exits_with", &[&code.to_string()]);
                spec.containment = containment;
                spec.streams = streams;
                let mut run = scratch.start(&name, &spec);
                let end = end_of(&mut run);
                assert_eq!((end.cause, end.status), (Cause::Exit, ExitStatus::Exited(code)));
            }
            for n in 0..50 {
                scratch.check_gone(&format!("run{n}"));
            }
        }
    }
}

#[test]
fn a_program_that_cannot_be_run_is_told_with_stage_path_and_error() {
    each("bystander", &[], |scratch, label, spec| {
        let missing = scratch.path().join("no-such-program").into_os_string();
        let plain = scratch.path().join("not-executable").into_os_string();
        fs::write(&plain, "text").unwrap();
        let nowhere = scratch.path().join("no-such-directory");
        let program = |program: &OsString| Spec { program: program.clone(), ..spec.clone() };
        let cwd = Spec { cwd: Some(nowhere.clone()), ..spec.clone() };
        for (n, (spec, stage, errno, path)) in [
            (program(&missing), StartStage::Exec, ENOENT, missing.clone()),
            (program(&plain), StartStage::Exec, EACCES, plain.clone()),
            (cwd, StartStage::WorkingDirectory, ENOENT, nowhere.into_os_string()),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("failed{n}");
            let spec = Spec { run: scratch.run_id(&name), ..spec };
            match scratch.try_start(&name, &spec, &test_keeper()) {
                Err(StartError::Failed(failure)) => {
                    assert_eq!(failure.stage, stage, "{label}: {failure:?}");
                    assert_eq!(failure.errno, Some(errno), "{label}: {failure:?}");
                    assert_eq!(failure.path, path.to_str().unwrap(), "{label}");
                }
                other => panic!("{label}: {other:?}"),
            }
            match adopt(&scratch.run_dir(&name)) {
                Ok(Adopted::Ended(end)) => {
                    assert_eq!(end.cause, Cause::NeverStarted, "{label}");
                    assert!(end.start_error.is_some(), "{label}");
                }
                other => panic!("{label}: {other:?}"),
            }
            scratch.check_gone(&name);
        }
    });
}

// The keeper itself as the victim.

#[test]
fn an_agent_that_kills_its_keeper_is_swept_by_whoever_adopts_it() {
    each("kills_keeper", &[], |scratch, label, spec| {
        let (mut orphan, run) = orphaned(scratch, spec);
        assert!(matches!(orphan.leader(), Liveness::Alive(_)), "{label}");
        let end = match orphan.kill() {
            Ok(Swept::Ended(end)) => end,
            other => panic!("{label}: {other:?}"),
        };
        until("the leader is dead", || run.leader.has_ended().unwrap().then_some(()));
        expect_verdict(&end.verdict, run.started.containment, label);
        assert_eq!(end.cause, Cause::Lost, "{label}");
        if kernel_remembers_statuses() {
            assert_eq!(end.status, ExitStatus::Signaled(9), "{label}");
        }
        drop(orphan);
        match adopt(run.dir()) {
            Ok(Adopted::Ended(again)) => assert_eq!(again, end, "{label}: it is recorded"),
            other => panic!("{label}: {other:?}"),
        }
    });
}

#[test]
fn an_agent_that_exits_after_it_killed_its_keeper_has_its_own_status() {
    each("kills_keeper", &["21"], |scratch, label, spec| {
        let (mut orphan, run) = orphaned(scratch, spec);
        // Whoever collects orphans here may take seconds; only then does the kernel tell a status.
        until("the leader is collected", || run.leader.signal(Signal::CONT).err());
        let containment = run.started.containment;
        orphan.know_leader(run.leader);
        let end = match orphan.kill() {
            Ok(Swept::Ended(end)) => end,
            other => panic!("{label}: {other:?}"),
        };
        expect_verdict(&end.verdict, containment, label);
        if kernel_remembers_statuses() {
            assert_eq!(end.status, ExitStatus::Exited(21), "{label}");
        } else {
            assert!(matches!(end.status, ExitStatus::Unknown(_)), "{label}: {end:?}");
        }
    });
}

/// Starts an agent that kills its keeper, lets it, and takes the run over.
fn orphaned(
    scratch: &Scratch,
    mut spec: Spec,
) -> (Box<kennel_process::Orphan>, kennel_process::Run) {
    let go = scratch.path().join("go");
    spec.env.set.push(("GO".into(), go.clone().into()));
    let run = scratch.start("run", &spec);
    wait_for(scratch, "daemon");
    fs::write(go, "").unwrap();
    wait_for(scratch, "orphan");
    match adopt(run.dir()) {
        Ok(Adopted::Orphaned(orphan)) => (orphan, run),
        other => panic!("{other:?}"),
    }
}

/// With a cgroup an adopter can prove death; without one it says that it cannot, and names the
/// daemon that got away as a suspect, which the test then ends itself.
fn expect_verdict(verdict: &Verdict, containment: Containment, label: &str) {
    match (verdict, containment) {
        (Verdict::Dead(proof), Containment::Cgroup) => {
            assert_eq!(proof.grade(), Containment::Cgroup, "{label}");
        }
        (Verdict::Lost(lost), Containment::Subreaper) => {
            assert!(lost.reason.contains("keeper died"), "{label}: {lost:?}");
            assert_eq!(lost.suspects.len(), 1, "{label}: {lost:?}");
            for suspect in &lost.suspects {
                let Liveness::Alive(process) = suspect.identity.find() else {
                    panic!("{label}: a suspect is alive, or it is not one: {suspect:?}");
                };
                process.signal(Signal::KILL).unwrap();
                until("the suspect is gone", || process.has_ended().unwrap().then_some(()));
            }
        }
        other => panic!("{label}: {other:?}"),
    }
}

/// Since 6.15 the kernel keeps the status of a collected process for whoever holds it open.
fn kernel_remembers_statuses() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let remembers = version >= (6, 15);
    if !remembers {
        skipped("the status of an orphan", "the kernel is older than 6.15");
    }
    remembers
}

// What a leader leaves behind when it exits by itself.

#[test]
fn a_run_that_waits_for_its_children_ends_with_the_last_of_them() {
    each("lives_on", &[], |scratch, label, mut spec| {
        let go = scratch.path().join("go");
        spec.env.set.push(("GO".into(), go.clone().into()));
        spec.on_exit = OnExit::Wait;
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "child");
        let status = until("the leader's exit is known", || {
            Some(run.connection.status().unwrap()).filter(|s| s.exit.is_some())
        });
        assert_eq!(status.exit, Some(ExitStatus::Exited(6)), "{label}");
        assert_eq!((status.state, status.end), (State::Running, None), "{label}");
        fs::write(&go, "").unwrap();
        let end = end_of(&mut run);
        assert!(scratch.told().contains("child ends"), "{label}");
        assert_eq!((&end.cause, end.status), (&Cause::Exit, ExitStatus::Exited(6)), "{label}");
        assert_eq!(proof_of(&end).effort().rounds, 0, "{label}: nobody was forced");
    });
}

#[test]
fn a_run_that_waits_for_its_children_can_still_be_stopped() {
    each("lives_on", &[], |scratch, label, mut spec| {
        spec.env.set.push(("GO".into(), scratch.path().join("never").into()));
        spec.on_exit = OnExit::Wait;
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "child");
        until("the leader's exit is known", || run.connection.status().unwrap().exit);
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(6));
        assert_eq!(end.cause, Cause::Stopped, "{label}");
        assert!(!scratch.told().contains("child ends"), "{label}");
    });
}

#[test]
fn a_run_that_sweeps_ends_its_children_when_the_leader_exits() {
    each("lives_on", &[], |scratch, label, mut spec| {
        spec.env.set.push(("GO".into(), scratch.path().join("never").into()));
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        assert_eq!((&end.cause, end.status), (&Cause::Exit, ExitStatus::Exited(6)), "{label}");
        assert!(!scratch.told().contains("child ends"), "{label}");
    });
}

/// The letters that `writes_on` and `pours` write.
fn letters() -> impl Iterator<Item = u8> {
    (b'a'..=b'z').cycle()
}

fn bound_us() -> u64 {
    ladder::FORCE_BOUND.as_micros() as u64
}
