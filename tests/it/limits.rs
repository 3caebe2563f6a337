//! Limits that any program can be held to, kept by the keeper alone.

use std::time::Duration;

use kennel_process::{Binds, Cause, Containment, End, Event, Limits, Spec, Told};
use kennel_tests::{PATIENCE, Scratch, containments, end_of, pass, proof_of, test_keeper};

fn limited(scratch: &Scratch, agent: &str, args: &[&str], limits: Limits) -> Spec {
    let mut spec = scratch.spec("run", agent, args);
    spec.limits = limits;
    spec.grace = Duration::from_millis(50);
    spec
}

/// Runs an agent to its end in every containment, and gives each end to a check.
fn ends(name: &str, agent: &str, args: &[&str], limits: &Limits, check: impl Fn(&End)) {
    for containment in containments() {
        let mut scratch = Scratch::new(name);
        let mut spec = limited(&scratch, agent, args, limits.clone());
        spec.containment = containment;
        scratch.add_bystanders(&spec);
        let mut run = scratch.start("run", &spec);
        let end = end_of(&mut run);
        let _ = proof_of(&end);
        check(&end);
        scratch.check_gone("run");
    }
}

fn stopped_by<'a>(end: &'a End, kind: &str) -> &'a kennel_process::LimitReached {
    if let Cause::Limit(limit) = &end.cause
        && limit.kind == kind
        && limit.used >= limit.max
    {
        return limit;
    }
    panic!("not stopped by {kind}: {:?}", end.cause)
}

#[test]
fn a_run_has_so_much_time_and_no_more() {
    let limits = Limits { wall: Some(Duration::from_millis(300)), ..Limits::default() };
    ends("wall", "ignore_term", &[], &limits, |end| {
        let limit = stopped_by(end, "wall");
        assert!((limit.max - 0.3).abs() < 1e-9, "{limit:?}");
    });
}

#[test]
fn who_does_nothing_is_idle_and_who_computes_or_writes_is_not() {
    let idle = Limits { idle: Some(Duration::from_millis(400)), ..Limits::default() };
    ends("idle", "ignore_term", &[], &idle, |end| _ = stopped_by(end, "idle"));
    // Both would be stopped sooner if they were taken for idle.
    let both = Limits { wall: Some(Duration::from_millis(1500)), ..idle };
    ends("busy", "busy", &[], &both, |end| _ = stopped_by(end, "wall"));
    ends("writes", "chatty", &["/dev/null", "1000", "50000", "0"], &both, |end| {
        _ = stopped_by(end, "wall")
    });
}

#[test]
fn a_run_may_write_so_much_and_no_more() {
    let limits = Limits { output: Some(1 << 20), ..Limits::default() };
    ends("output", "bench_flood", &["1000"], &limits, |end| {
        let limit = stopped_by(end, "output");
        assert!(limit.used < 512e6, "stopped soon after: {limit:?}");
    });
}

#[test]
fn a_cohort_has_so_much_memory_and_so_many_processes_and_no_more() {
    let memory = Limits { memory: Some(64 << 20), ..Limits::default() };
    ends("memory", "eats", &["4000"], &memory, |end| match &end.cause {
        // Where the kernel holds it to that, which nobody can be sure of here.
        Cause::Oom(Some(limit)) => assert_eq!(limit.max, f64::from(64 << 20), "{limit:?}"),
        Cause::Exit
        | Cause::Stopped
        | Cause::Killed
        | Cause::Limit(_)
        | Cause::Oom(None)
        | Cause::Lost
        | Cause::NeverStarted => {
            let limit = stopped_by(end, "memory");
            assert!(limit.used < 2e9, "stopped soon after: {limit:?}");
        }
    });
    // Without a cgroup: in one the kernel may refuse the processes instead.
    let scratch = Scratch::new("pids");
    let limits = Limits { pids: Some(20), ..Limits::default() };
    let mut spec = limited(&scratch, "bench_many", &["60"], limits);
    spec.containment = Containment::Subreaper;
    let mut run = scratch.start("run", &spec);
    let end = end_of(&mut run);
    let _ = proof_of(&end);
    stopped_by(&end, "pids");
}

/// What holds a run to its memory and its processes is recorded before it runs, and whatever keeps
/// the kernel from it is named.
#[test]
fn how_a_limit_binds_is_known_and_why_no_harder() {
    for containment in containments() {
        let mut scratch = Scratch::new("binds");
        let limits = Limits { memory: Some(1 << 30), pids: Some(100), ..Limits::default() };
        let mut spec = limited(&scratch, "ignore_term", &[], limits);
        spec.containment = containment;
        let mut run = scratch.start("run", &spec);
        let binds = run.started.binds.clone();
        let controllers = run.started.leaf.as_ref().map(|leaf| {
            std::fs::read_to_string(leaf.path.join("cgroup.controllers")).expect("it is there")
        });
        let controllers = controllers.as_deref().unwrap_or_default();
        for (name, binds, asked) in [("memory", binds.memory, 1 << 30), ("pids", binds.pids, 100)] {
            match binds.expect("there is such a limit") {
                Binds::Hard { max } => {
                    assert_eq!(max, asked, "{name}");
                    assert!(controllers.contains(name), "{controllers}");
                }
                Binds::Sampled { because } => assert!(!because.is_empty(), "{name}"),
            }
        }
        if containment != Containment::Cgroup {
            let sampled = |b: &Option<Binds>| match b {
                Some(Binds::Sampled { because }) => because.contains("no cgroup"),
                Some(Binds::Hard { .. }) | None => false,
            };
            let binds = &run.started.binds;
            assert!(sampled(&binds.memory) && sampled(&binds.pids), "{binds:?}");
        }
        run.connection.kill().expect("it can be killed");
        let _ = proof_of(&end_of(&mut run));
        scratch.check_gone("run");
    }
}

/// Threads count as processes do, in either grade.
#[test]
fn threads_are_counted_too() {
    let scratch = Scratch::new("threads");
    let limits = Limits { pids: Some(100), ..Limits::default() };
    let mut spec = limited(&scratch, "headless", &["leader"], limits);
    spec.containment = Containment::Subreaper;
    let mut run = scratch.start("run", &spec);
    kennel_tests::wait_for(&scratch, "headless");
    let status = run.connection.status().expect("it answers");
    let pids = status.limits.iter().find(|limit| limit.kind == "pids").expect("it is told");
    assert!(pids.used >= 2.0, "{pids:?}");
    run.connection.kill().expect("it can be killed");
    let _ = proof_of(&end_of(&mut run));
}

#[test]
fn somebody_is_warned_once_before_a_limit_is_reached() {
    let scratch = Scratch::new("warned");
    let limits = Limits { wall: Some(Duration::from_millis(500)), ..Limits::default() };
    let spec = limited(&scratch, "ignore_term", &[], limits);
    let mut run = scratch.start("run", &spec);
    let _ = run.connection.watch().expect("it is watched");
    let (mut warnings, mut ended) = (0, false);
    while !ended {
        match run.connection.next(PATIENCE).expect("it goes on") {
            Some(Told::Event(Event::Warned(limit))) => {
                assert_eq!(limit.kind, "wall");
                assert!(limit.used < limit.max, "{limit:?}");
                warnings += 1;
            }
            Some(Told::Event(Event::Ended(_))) => ended = true,
            Some(_) => {}
            None => panic!("nothing is told"),
        }
    }
    assert_eq!(warnings, 1);
}

#[test]
fn a_wall_clock_that_jumps_neither_ends_a_run_nor_spares_it() {
    let keeper = test_keeper().env("KENNEL_FAILPOINT", "clock.jumps=errno:1");
    let hour = Duration::from_secs(3600);
    let short = Duration::from_millis(300);
    for (wall, idle, ends) in
        [(hour, short, Some("idle")), (short, hour, Some("wall")), (hour, hour, None)]
    {
        let mut scratch = Scratch::new("jumps");
        let limits = Limits { wall: Some(wall), idle: Some(idle), ..Limits::default() };
        let spec = limited(&scratch, "ignore_term", &[], limits);
        scratch.add_bystanders(&spec);
        let mut run = scratch.try_start("run", &spec, &keeper).unwrap_or_else(|e| panic!("{e}"));
        if ends.is_none() {
            // Asked often: each look reads the clock, and it is another time at each.
            for _ in 0..50 {
                pass(Duration::from_millis(10));
                let status = run.connection.status().expect("it answers");
                assert_eq!(status.state, kennel_process::State::Running, "{status:?}");
            }
            run.connection.kill().expect("it can be killed");
        }
        let end = end_of(&mut run);
        let _ = proof_of(&end);
        let century = Duration::from_secs(50 * 365 * 86_400).as_millis() as u64;
        let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64;
        assert!(end.at_ms == 0 || end.at_ms > now + century, "the clock did jump: {end:?}");
        if let Some(kind) = ends {
            let limit = stopped_by(&end, kind);
            assert!(limit.used < 60.0, "by the clock that does not jump: {limit:?}");
        }
        scratch.check_gone("run");
    }
}
