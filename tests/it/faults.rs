//! Faults of the system around a run: disks that are full or read-only, directories of somebody
//! else, descriptors that run out, cgroups that cannot be made.
//!
//! A start that cannot be recorded is refused and has run nothing; a run that is under way goes on,
//! and its end is told only once it is durable. Where a fault needs another mount or another user,
//! the test runs itself again in there ([`again`]); where that cannot be had it says so.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_process::{
    Adopted, Cause, Chunk, Connection, Containment, ExitStatus, KeeperProgram, Liveness, Process,
    Run, Signal, Spec, StartError, State, Stream, Swept, UnknownStatus, Verdict, Waited, adopt,
    read_output, start_with,
};
use kennel_tests::{
    Scratch, agent, are_root, carriers_of, containments, end_of, leaves_of, pass, program,
    proof_of, skipped, test_keeper, test_keeper_path, until, wait_for,
};
use rustix::io::Errno;

/// Nobody's number on every Linux.
const NOBODY: u32 = 65534;
/// A grace nobody uses up.
const LONG: Duration = Duration::from_secs(20);

// What holds after every fault.

/// Nothing of a run is left, and no instruction of its agent ran.
#[track_caller]
fn expect_nothing_ran(scratch: &Scratch, name: &str, what: &str) {
    let run = scratch.run_id(name);
    until("whoever was forked is gone", || carriers_of(run.as_str()).is_empty().then_some(()));
    let left = leaves_of(run.as_str());
    left.iter().for_each(|leaf| drop(fs::remove_dir(leaf)));
    assert_eq!(left, Vec::<PathBuf>::new(), "{what}: a cgroup is left");
    assert_eq!(scratch.told(), "", "{what}: user code ran");
}

/// Whoever looks later finds that the run never started.
#[track_caller]
fn expect_never_started(dir: &Path, what: &str) {
    match adopt(dir) {
        Ok(Adopted::NeverStarted) => {}
        Ok(Adopted::Ended(end)) => assert_eq!(end.cause, Cause::NeverStarted, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
}

/// The system's number in a refusal.
fn errno_of(error: &StartError) -> Option<i32> {
    match error {
        StartError::Directory(e) | StartError::Launch(e) => e.raw_os_error(),
        StartError::Failed(failure) => failure.errno,
        StartError::Spec(_)
        | StartError::TooLarge(_)
        | StartError::KeeperDied
        | StartError::NoAnswer
        | _ => None,
    }
}

#[track_caller]
fn expect_refused(start: Result<Run, StartError>, errno: Errno, what: &str) {
    match start {
        Err(e) => {
            assert_eq!(errno_of(&e), Some(errno.raw_os_error()), "{what}: {e}");
            assert!(e.to_string().contains(&errno.to_string()), "{what}: it is not said: {e}");
        }
        Ok(_) => panic!("{what}: it started"),
    }
}

#[track_caller]
fn kill_and_wait(run: &mut Run) {
    run.connection.kill().expect("it can be killed");
    let end = end_of(run);
    let _ = proof_of(&end);
}

// The same test again, elsewhere.

/// Set for a test that runs itself again: its name, so that no other takes it for its own.
const AGAIN: &str = "KENNEL_TEST_AGAIN";
/// Where, if that matters.
const PLACE: &str = "KENNEL_TEST_PLACE";

/// The place, if this is the second time, inside.
fn inside(test: &str) -> Option<PathBuf> {
    let again = std::env::var(AGAIN).is_ok_and(|name| name == test);
    again.then(|| PathBuf::from(std::env::var_os(PLACE).unwrap_or_default()))
}

/// Runs one test of this binary again by way of a command, and fails as it fails.
fn again(test: &str, mut command: Command, place: &Path) {
    let output = command
        .args([&format!("faults::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(AGAIN, test)
        .env(PLACE, place)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "inside: {said}\n{complained}");
    assert!(said.contains("1 passed"), "it ran nothing: {said}\n{complained}");
}

/// Runs a test again where a small disk of its own is mounted, or says that this cannot be.
fn on_a_small_disk(test: &str) {
    let flags = if are_root() { "-m" } else { "-Urm" };
    let scratch = Scratch::new("disk");
    let place = scratch.path().join("disk");
    fs::create_dir(&place).expect("it can be made");
    let mount = r#"mount -t tmpfs -o size=256k,mode=700 kennel-test "$1""#;
    let possible = Command::new("unshare")
        .args([flags, "sh", "-c", mount, "sh"])
        .arg(&place)
        .stderr(Stdio::null())
        .status();
    if !possible.is_ok_and(|status| status.success()) {
        return skipped(test, "no disk can be mounted here");
    }
    let mut command = Command::new("unshare");
    let script = format!(r#"{mount} && shift && exec "$@""#);
    command.args([flags, "sh", "-c", &script, "sh"]).arg(&place);
    command.arg(std::env::current_exe().expect("we run from a file"));
    again(test, command, &place);
}

/// Fills a disk until this many pages are left, whatever else is on it.
fn leave_pages(place: &Path, pages: usize) {
    let filler = place.join("filler");
    let mut file = fs::File::create(&filler).expect("the disk takes a file");
    while file.write_all(&[0; 4096]).is_ok() {}
    let length = file.metadata().expect("it is open").len();
    file.set_len(length.saturating_sub(4096 * pages as u64)).expect("it can shrink");
}

// Disks.

#[test]
fn a_full_disk_refuses_the_start_and_nothing_has_run() {
    let test = "a_full_disk_refuses_the_start_and_nothing_has_run";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let (mut refused, mut started) = (0, 0);
    // A start needs a dozen pages: the disk is full at each of its writes in turn.
    for pages in 0..16 {
        let scratch = Scratch::new("full");
        let dir = place.join(format!("run{pages}"));
        leave_pages(&place, pages);
        let spec = scratch.spec("run", "crash_quiet", &[]);
        match start_with(&spec, &dir, &test_keeper()) {
            Ok(mut run) => {
                started += 1;
                kill_and_wait(&mut run);
            }
            Err(e) => {
                refused += 1;
                let what = format!("{pages} pages left");
                expect_refused(Err(e), Errno::NOSPC, &what);
                expect_nothing_ran(&scratch, "run", &what);
                expect_never_started(&dir, &what);
            }
        }
        fs::remove_dir_all(&dir).expect("it can be removed");
    }
    assert!(refused > 5 && started > 0, "{refused} refused, {started} started");
}

/// All that is kept of standard output, and all that is shown to be missing.
fn kept_and_missing(dir: &Path) -> (u64, u64, Vec<u8>) {
    let (mut kept, mut missing, mut tail) = (0, 0, Vec::new());
    while let Some(chunk) =
        read_output(dir, Stream::Stdout, kept + missing).expect("it can be read")
    {
        match chunk {
            Chunk::Bytes { offset, bytes } => {
                assert_eq!(offset, kept + missing);
                for (n, line) in bytes.chunks(64).enumerate().filter(|(_, l)| l.len() == 64) {
                    if offset % 64 == 0 {
                        let number = offset / 64 + n as u64;
                        let expected = format!("{number:063}\n");
                        assert_eq!(String::from_utf8_lossy(line), expected, "at {offset}");
                    }
                }
                kept += bytes.len() as u64;
                tail = bytes;
            }
            Chunk::Gap { from, to } => {
                assert_eq!(from, kept + missing);
                missing += to - from;
            }
        }
    }
    (kept, missing, tail)
}

#[test]
fn a_disk_that_fills_up_costs_output_and_neither_the_agent_nor_the_end() {
    let test = "a_disk_that_fills_up_costs_output_and_neither_the_agent_nor_the_end";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    const LINES: u64 = 6000;
    let scratch = Scratch::new("fills");
    let dir = place.join("run");
    fs::write(place.join("ballast"), vec![0; 64 << 10]).expect("there is room");
    let spec = scratch.spec("run", "crash_writer", &[&LINES.to_string()]);
    let mut run = start_with(&spec, &dir, &test_keeper()).expect("there is room");
    let written = |run: &mut Run, lines: u64| {
        until("all of it has been read", || {
            let output = run.connection.status().expect("the keeper lives").output;
            (output.stdout.written == lines * 64).then_some(output.stdout)
        })
    };
    // 375 KiB on a disk of 256: the agent writes on, the loss is counted.
    wait_for(&scratch, &format!("wrote {LINES}"));
    let full = written(&mut run, LINES);
    assert!(full.lost > 0 && full.lost < LINES * 64, "{full:?}");
    assert_eq!(full.dropped, 0);
    // Space again: output goes on, with the loss shown where it was.
    fs::remove_file(place.join("ballast")).expect("it is ours");
    run.connection.signal(Signal::USR1).expect("the agent lives");
    wait_for(&scratch, &format!("wrote {}", 2 * LINES));
    let again = written(&mut run, 2 * LINES);
    let (kept, missing, _) = kept_and_missing(&dir);
    assert!(kept > LINES * 64 - full.lost, "nothing was kept after there was space: {again:?}");
    assert!(missing > 0, "{again:?}");
    // Full to the last page at the end: what is told is on the disk all the same.
    leave_pages(&place, 0);
    run.connection.stop(Some(LONG)).expect("it can be stopped");
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Signaled(15));
    assert_eq!(end.output.stdout.written, 2 * LINES * 64);
    assert_eq!(kept + end.output.stdout.lost, 2 * LINES * 64, "every byte is kept or counted");
    match adopt(&dir) {
        Ok(Adopted::Ended(adopted)) => assert_eq!(*adopted, end),
        other => panic!("{other:?}"),
    }
    expect_no_trace(&scratch, "run");
}

fn expect_no_trace(scratch: &Scratch, name: &str) {
    let run = scratch.run_id(name);
    assert_eq!(carriers_of(run.as_str()), Vec::<String>::new());
    assert_eq!(leaves_of(run.as_str()), Vec::<PathBuf>::new());
}

#[test]
fn a_disk_full_to_the_last_page_takes_the_end_of_an_orphan_too() {
    let test = "a_disk_full_to_the_last_page_takes_the_end_of_an_orphan_too";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let scratch = Scratch::new("orphan");
    let dir = place.join("run");
    let spec = scratch.spec("run", "ignore_term", &[]);
    let run = start_with(&spec, &dir, &test_keeper()).expect("there is room");
    wait_for(&scratch, "ready");
    leave_pages(&place, 0);
    kill_keeper(&run);
    let Ok(Adopted::Orphaned(mut orphan)) = adopt(&dir) else { panic!("it is an orphan") };
    orphan.know_leader(run.leader);
    let Ok(Swept::Ended(end)) = orphan.kill() else { panic!("it can be swept") };
    drop(orphan);
    match adopt(&dir) {
        Ok(Adopted::Ended(adopted)) => assert_eq!(adopted, end),
        other => panic!("{other:?}"),
    }
    expect_no_trace(&scratch, "run");
}

#[test]
fn a_read_only_disk_refuses_the_start_and_nothing_has_run() {
    let test = "a_read_only_disk_refuses_the_start_and_nothing_has_run";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let scratch = Scratch::new("readonly");
    fs::create_dir(place.join("made")).expect("it can be made");
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&place).status();
    assert!(remount.is_ok_and(|status| status.success()));
    let spec = scratch.spec("run", "crash_quiet", &[]);
    for name in ["made", "missing"] {
        let start = start_with(&spec, &place.join(name), &test_keeper());
        expect_refused(start, Errno::ROFS, name);
        expect_nothing_ran(&scratch, "run", name);
    }
    // Nobody can promise that nothing starts later where nothing can be written down.
    let adopted = adopt(&place.join("made"));
    assert!(adopted.is_err(), "{adopted:?}");
}

#[test]
fn a_limit_on_the_size_of_files_refuses_the_start_and_nothing_has_run() {
    for containment in containments() {
        let scratch = Scratch::new("fsize");
        let mut spec = scratch.spec("run", "crash_quiet", &[]);
        spec.containment = containment;
        let keeper = limited_keeper(&scratch, "ulimit -f 8");
        let start = scratch.try_start("run", &spec, &keeper);
        expect_refused(start, Errno::FBIG, "8 blocks");
        expect_nothing_ran(&scratch, "run", "8 blocks");
        expect_never_started(&scratch.run_dir("run"), "8 blocks");
    }
}

// Users.

/// Runs a test again as nobody, or says that this cannot be.
fn as_nobody(test: &str, place: &Path) {
    if !are_root() {
        return skipped(test, "we are not root");
    }
    let own = std::env::current_exe().expect("we run from a file");
    let reachable = |path: &Path| {
        let mut probe = Command::new("test");
        probe.arg("-x").arg(path).uid(NOBODY).gid(NOBODY).current_dir("/");
        probe.status().is_ok_and(|status| status.success())
    };
    if ![&own, &test_keeper_path(), &agent("crash_quiet")].into_iter().all(|p| reachable(p)) {
        return skipped(test, "the build's directory is closed to others");
    }
    let mut command = Command::new(own);
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("HOME");
    again(test, command, place);
}

#[test]
fn a_directory_of_somebody_else_refuses_the_start_and_nothing_has_run() {
    let test = "a_directory_of_somebody_else_refuses_the_start_and_nothing_has_run";
    let Some(place) = inside(test) else {
        let outer = Scratch::new("theirs");
        for (name, mode) in [("open", 0o755), ("closed", 0o700)] {
            let dir = outer.path().join(name);
            fs::create_dir(&dir).expect("it can be made");
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        as_nobody(test, outer.path());
        for name in ["open", "closed"] {
            let left = fs::read_dir(outer.path().join(name)).expect("it is ours").count();
            assert_eq!(left, 0, "something was written to {name}");
        }
        return;
    };
    let scratch = Scratch::new("ours");
    let spec = scratch.spec("run", "crash_quiet", &[]);
    for name in ["open", "closed", "open/below", "closed/below"] {
        let start = start_with(&spec, &place.join(name), &test_keeper());
        expect_refused(start, Errno::ACCESS, name);
        expect_nothing_ran(&scratch, "run", name);
        let adopted = adopt(&place.join(name));
        let careful = matches!(adopted, Err(_) | Ok(Adopted::Unreadable(_)));
        assert!(careful, "{name}: {adopted:?}");
    }
}

#[test]
fn where_no_cgroup_can_be_made_the_subreaper_holds_and_the_reason_is_kept() {
    let test = "where_no_cgroup_can_be_made_the_subreaper_holds_and_the_reason_is_kept";
    let Some(_) = inside(test) else {
        let outer = Scratch::new("plain");
        return as_nobody(test, outer.path());
    };
    let mut scratch = Scratch::new("nobody");
    let spec = scratch.spec("run", "double_fork", &[]);
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "daemon");
    wait_for(&scratch, "ready");
    let started = run.started.clone();
    if started.containment == Containment::Cgroup {
        kill_and_wait(&mut run);
        return skipped(test, "nobody may make cgroups here");
    }
    assert_eq!(started.containment, Containment::Subreaper);
    let because = started.containment_because.expect("there is a reason");
    assert!(because.contains("kennel-") && because.contains("denied"), "{because}");
    assert_eq!(started.leaf, None);
    run.connection.stop(Some(LONG)).expect("it can be stopped");
    let end = end_of(&mut run);
    assert_eq!(proof_of(&end).grade(), Containment::Subreaper);
    scratch.check_gone("run");
}

#[test]
fn a_cgroup_of_the_same_name_is_left_alone() {
    if containments()[0] != Containment::Cgroup {
        return;
    }
    let mut scratch = Scratch::new("same");
    let spec = scratch.spec("run", "crash_quiet", &[]);
    let mut probe = scratch.start("probe", &scratch.spec("probe", "bystander", &[]));
    let leaf = probe.started.leaf.clone().expect("it has one").path;
    kill_and_wait(&mut probe);
    let theirs = leaf.with_file_name(format!("kennel-{}", scratch.run_id("run")));
    fs::create_dir(&theirs).expect("it can be made");
    let mut member = Command::new(agent("bystander")).spawn().expect("it starts");
    fs::write(theirs.join("cgroup.procs"), member.id().to_string()).expect("it can join");
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "ready");
    let (containment, because) = (run.started.containment, run.started.containment_because.clone());
    kill_and_wait(&mut run);
    let lives = member.try_wait().expect("we are its parent").is_none();
    let stands = theirs.exists();
    let _ = member.kill();
    let _ = member.wait();
    until("it can be removed", || fs::remove_dir(&theirs).is_ok().then_some(()));
    assert!(lives && stands, "somebody else's cgroup was touched: {lives} {stands}");
    assert_eq!(containment, Containment::Subreaper, "{because:?}");
    scratch.check_gone("run");
}

#[test]
fn an_empty_cgroup_of_the_same_name_is_left_alone_by_adopters_too() {
    if containments()[0] != Containment::Cgroup {
        return;
    }
    let scratch = Scratch::new("empty");
    let mut probe = scratch.start("probe", &scratch.spec("probe", "bystander", &[]));
    let leaf = probe.started.leaf.clone().expect("it has one").path;
    kill_and_wait(&mut probe);
    let theirs = leaf.with_file_name(format!("kennel-{}", scratch.run_id("run")));
    fs::create_dir(&theirs).expect("it can be made");
    let spec = scratch.spec("run", "crash_quiet", &[]);
    let start = scratch.try_start("run", &spec, &failing_keeper("start.forked=kill"));
    assert!(matches!(start, Err(StartError::KeeperDied)), "{start:?}");
    let adopted = adopt(&scratch.run_dir("run"));
    let stands = fs::remove_dir(&theirs).is_ok();
    assert!(matches!(adopted, Ok(Adopted::NeverStarted)), "{adopted:?}");
    assert!(stands, "somebody else's cgroup was removed");
    expect_nothing_ran(&scratch, "run", "same name");
}

// Descriptors.

/// A keeper that is started by way of a shell with a limit of its own.
fn limited_keeper(scratch: &Scratch, limit: &str) -> KeeperProgram {
    let path = scratch.path().join(format!("keeper-{}", limit.replace(' ', "")));
    let keeper = test_keeper_path();
    let script = format!("#!/bin/sh\n{limit}\nexec {} \"$@\"\n", keeper.display());
    let mut file = fs::File::create(&path).expect("it can be made");
    file.write_all(script.as_bytes()).expect("it can be written");
    file.set_permissions(fs::Permissions::from_mode(0o755)).expect("it is ours");
    drop(file);
    KeeperProgram::new(path)
}

#[test]
fn a_keeper_short_of_descriptors_refuses_the_start_or_does_all_of_it() {
    /// With fewer not even the loader gets to the keeper's first line.
    const LEAST: u32 = 8;
    let mut refused = 0;
    for containment in containments() {
        for descriptors in 3..40 {
            let mut scratch = Scratch::new("few");
            let mut spec = scratch.spec("run", "crash_quiet", &[]);
            spec.containment = containment;
            let what = format!("{containment}, {descriptors} descriptors");
            let keeper = limited_keeper(&scratch, &format!("ulimit -n {descriptors}"));
            match scratch.try_start("run", &spec, &keeper) {
                Ok(mut run) => {
                    kill_and_wait(&mut run);
                    scratch.check_gone("run");
                }
                Err(e) => {
                    refused += 1;
                    assert!(descriptors < 32, "{what}: {e}");
                    if descriptors >= LEAST {
                        expect_refused(Err(e), Errno::MFILE, &what);
                    }
                    expect_nothing_ran(&scratch, "run", &what);
                    expect_never_started(&scratch.run_dir("run"), &what);
                }
            }
        }
    }
    assert!(refused > 4, "the limit did not bind: {refused}");
}

#[test]
fn a_starter_short_of_descriptors_is_refused_and_nothing_has_run() {
    let mut refused = 0;
    for descriptors in 4..24 {
        let mut scratch = Scratch::new("starter");
        let spec = scratch.spec("run", "crash_quiet", &[]);
        let spec = serde_json::to_string(&spec).expect("every spec is JSON");
        let output = Command::new("sh")
            .args(["-c", r#"ulimit -n "$1"; shift; exec "$@""#, "sh"])
            .arg(descriptors.to_string())
            .arg(program("crash-starter"))
            .arg("start")
            .arg(test_keeper_path())
            .arg(scratch.run_dir("run"))
            .args(["", &spec])
            .stdin(Stdio::null())
            .output()
            .expect("a shell starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let what = format!("{descriptors} descriptors: {said}");
        if said.starts_with("started") {
            let Ok(Adopted::Running { mut connection, .. }) = adopt(&scratch.run_dir("run")) else {
                panic!("{what}: it was told to run");
            };
            connection.kill().expect("it can be killed");
            assert!(matches!(connection.wait_end(LONG), Ok(Waited::Ended(_))), "{what}");
            scratch.check_gone("run");
        } else {
            refused += 1;
            if scratch.run_dir("run").exists() {
                expect_never_started(&scratch.run_dir("run"), &what);
            }
            expect_nothing_ran(&scratch, "run", &what);
        }
    }
    assert!(refused > 2, "the limit did not bind: {refused}");
}

#[test]
fn sixty_four_descriptors_are_enough_to_stop_three_hundred_descendants() {
    for containment in containments() {
        let mut scratch = Scratch::new("many");
        let mut spec = scratch.spec("run", "crash_many", &["300"]);
        spec.containment = containment;
        let keeper = limited_keeper(&scratch, "ulimit -n 64");
        let mut run = scratch.try_start("run", &spec, &keeper).expect("64 are enough to start");
        wait_for(&scratch, "ready");
        run.connection.stop(Some(LONG)).expect("it can be stopped");
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Signaled(15));
        assert!(proof_of(&end).effort().processes >= 300, "{containment}: {end:?}");
        scratch.check_gone("run");
    }
}

/// Limits a keeper to the descriptors it has and a few more.
fn leave_descriptors(keeper: u32, free: u64) {
    let used = fs::read_dir(format!("/proc/{keeper}/fd")).expect("it lives");
    let numbers: Vec<u64> =
        used.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    // Limits are on numbers: the lowest free ones are the next to be used.
    let limit = (0_u64..).filter(|n| !numbers.contains(n)).nth(free as usize);
    set_limit(keeper, limit);
}

fn set_limit(keeper: u32, limit: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_raw(keeper as i32).expect("it has a number");
    let new = Rlimit { current: limit, maximum: Some(4096) };
    prlimit(Some(pid), Resource::Nofile, new).expect("it is ours");
}

#[test]
fn a_keeper_out_of_descriptors_claims_no_death_it_cannot_see() {
    let mut kinds = containments();
    kinds.push(Containment::Group);
    for containment in kinds {
        for free in 0..5 {
            let mut scratch = Scratch::new("blind");
            let mut spec = scratch.spec("run", "crash_straggler", &[]);
            spec.containment = containment;
            let mut run = scratch.start("run", &spec);
            wait_for(&scratch, "ready");
            wait_for(&scratch, "straggler");
            let keeper = run.started.keeper.pid;
            leave_descriptors(keeper, free);
            fs::write(scratch.work().join("go"), "").expect("it can be written");
            let log = run.dir().join("keeper.log");
            until("the keeper has ended the run, or complained", || {
                let ended = fs::read(run.dir().join("record"))
                    .is_ok_and(|r| String::from_utf8_lossy(&r).contains("\"ended\""));
                let complained = fs::metadata(&log).is_ok_and(|m| m.len() > 0);
                (ended || complained).then_some(())
            });
            if let Liveness::Alive(_) = run.started.keeper.find() {
                set_limit(keeper, Some(1024));
            }
            let end = end_of(&mut run);
            let left = carriers_of(scratch.run_id("run").as_str());
            end_the_straggler(&scratch);
            assert_eq!(left, Vec::<String>::new(), "{containment}, {free} free: {end:?}");
            assert_eq!(end.status, ExitStatus::Exited(3));
            let _ = proof_of(&end);
            scratch.check_gone("run");
        }
    }
}

/// Ticks of the processor a process has used, a hundred to the second.
pub(crate) fn ticks_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    // User and system time are fields 14 and 15; the first after the name is the third.
    fields[12..14].iter().map(|ticks| ticks.parse::<u64>().unwrap_or(0)).sum()
}

#[test]
fn a_keeper_that_cannot_take_a_client_on_does_not_burn_the_processor() {
    let mut scratch = Scratch::new("spin");
    let mut run = scratch.start("run", &scratch.spec("run", "crash_quiet", &[]));
    wait_for(&scratch, "ready");
    let keeper = run.started.keeper.pid;
    leave_descriptors(keeper, 0);
    // More than one, should the keeper have had something open while we counted.
    let connect = |_| std::os::unix::net::UnixStream::connect(run.dir().join("control"));
    let clients: Vec<_> = (0..4).map(connect).collect();
    let before = ticks_of(keeper);
    pass(Duration::from_millis(500));
    let used = ticks_of(keeper) - before;
    set_limit(keeper, Some(1024));
    drop(clients);
    kill_and_wait(&mut run);
    scratch.check_gone("run");
    assert!(used < 5, "{used} of 50 ticks were used to do nothing");
}

/// Ends what a false proof has left behind, so that the test leaves nothing itself.
fn end_the_straggler(scratch: &Scratch) {
    let told = scratch.told();
    let number = told.lines().find_map(|line| line.strip_prefix("straggler ")?.parse().ok());
    let Some(held) = number.and_then(|number| Process::from_number(number).ok()) else { return };
    let carriers = carriers_of(scratch.run_id("run").as_str());
    let number = held.identity().pid.to_string();
    if carriers.iter().any(|carrier| carrier.split(' ').next() == Some(&number)) {
        let _ = held.signal(Signal::KILL);
    }
}

// Errors of single calls, by failpoint.

fn failing_keeper(failpoint: &str) -> KeeperProgram {
    test_keeper().env("KENNEL_FAILPOINT", failpoint)
}

#[test]
fn an_error_at_any_point_before_the_gate_refuses_the_start_and_nothing_has_run() {
    let errors = [Errno::NOSPC, Errno::ROFS, Errno::ACCESS, Errno::MFILE];
    for containment in containments() {
        for point in [
            "start.locked",
            "start.contained",
            "start.leaf",
            "start.forked",
            "record.create",
            "record.sync",
            "record.rename",
            "record.sync_dir",
            "start.recorded",
            "record.opening",
        ] {
            for errno in errors {
                let mut scratch = Scratch::new("errno");
                let mut spec = scratch.spec("run", "crash_quiet", &[]);
                spec.containment = containment;
                let what = format!("{containment}, {point}, {errno}");
                let keeper = failing_keeper(&format!("{point}=errno:{}", errno.raw_os_error()));
                let start = scratch.try_start("run", &spec, &keeper);
                assert!(matches!(start, Err(StartError::Failed(_))), "{what}: {start:?}");
                expect_refused(start, errno, &what);
                expect_nothing_ran(&scratch, "run", &what);
                expect_never_started(&scratch.run_dir("run"), &what);
                scratch.check_gone("run");
            }
        }
    }
}

#[test]
fn a_run_of_whose_exec_nothing_was_heard_is_kept() {
    for containment in containments() {
        let mut scratch = Scratch::new("unheard");
        let mut spec = scratch.spec("run", "crash_quiet", &[]);
        spec.containment = containment;
        let start = scratch.try_start("run", &spec, &failing_keeper("start.gate=errno:12"));
        let mut run = start.expect("it is kept");
        wait_for(&scratch, "ready");
        kill_and_wait(&mut run);
        scratch.check_gone("run");
    }
}

fn kill_keeper(run: &Run) {
    let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("it lives") };
    keeper.signal(Signal::KILL).expect("it lives");
    until("the keeper is gone", || keeper.has_ended().expect("we hold it").then_some(()));
}

#[test]
fn an_end_that_cannot_be_written_is_not_told_and_the_cohort_is_gone_all_the_same() {
    for containment in containments() {
        let scratch = Scratch::new("untold");
        let mut spec = scratch.spec("run", "double_fork", &[]);
        spec.containment = containment;
        let keeper = failing_keeper("record.append=errno:28");
        let mut run = scratch.try_start("run", &spec, &keeper).expect("it starts");
        wait_for(&scratch, "daemon");
        wait_for(&scratch, "ready");
        let mut watcher = Connection::open(run.dir()).expect("the keeper listens");
        watcher.watch().expect("it answers");
        run.connection.stop(Some(LONG)).expect("it can be stopped");
        let run_id = scratch.run_id("run");
        until("all of them are gone", || carriers_of(run_id.as_str()).is_empty().then_some(()));
        let status = until("the keeper knows it", || {
            let status = run.connection.status().expect("the keeper lives");
            status.exit.is_some().then_some(status)
        });
        assert_eq!(status.exit, Some(ExitStatus::Signaled(15)));
        assert!(status.state != State::Ended && status.end.is_none(), "{status:?}");
        match adopt(run.dir()) {
            Ok(Adopted::Running { status, .. }) => {
                assert!(status.state != State::Ended && status.end.is_none(), "{status:?}");
            }
            other => panic!("told before it was durable: {other:?}"),
        }
        while let Some(told) = watcher.next(Duration::ZERO).expect("the keeper lives") {
            let text = format!("{told:?}");
            assert!(!text.contains("Ended"), "told before it was durable: {text}");
        }
        kill_keeper(&run);
        let Ok(Adopted::Orphaned(mut orphan)) = adopt(run.dir()) else { panic!("an orphan") };
        orphan.know_leader(run.leader);
        let swept = orphan.kill();
        let Ok(Swept::Ended(end)) = swept else { panic!("it can be swept: {swept:?}") };
        let unknown = ExitStatus::Unknown(UnknownStatus::KeeperLost);
        assert!([unknown, ExitStatus::Signaled(15)].contains(&end.status), "{end:?}");
        match (&end.verdict, containment) {
            (Verdict::Dead(_), Containment::Cgroup) => {}
            (Verdict::Lost(lost), Containment::Subreaper) => assert_eq!(lost.suspects, []),
            other => panic!("{other:?}"),
        }
        drop(orphan);
        expect_no_trace(&scratch, "run");
    }
}

#[test]
fn a_record_that_refuses_once_has_every_fact_in_the_end() {
    for nth in 1..=3 {
        let mut scratch = Scratch::new("once");
        let spec: Spec = scratch.spec("run", "crash_quiet", &[]);
        let keeper = failing_keeper(&format!("record.append=errno:28@{nth}"));
        let mut run = scratch.try_start("run", &spec, &keeper).expect("it starts");
        wait_for(&scratch, "ready");
        run.connection.stop(Some(LONG)).expect("it can be stopped");
        let end = end_of(&mut run);
        assert_eq!(end.status, ExitStatus::Signaled(15));
        let record = fs::read_to_string(run.dir().join("record")).expect("it is text");
        let facts: Vec<&str> = ["\"started\"", "\"stopping\"", "\"exited\"", "\"ended\""]
            .into_iter()
            .filter(|fact| record.contains(&format!("\"fact\":{{{fact}")))
            .collect();
        assert_eq!(facts.len(), 4, "{nth}: {record}");
        match adopt(run.dir()) {
            Ok(Adopted::Ended(adopted)) => assert_eq!(*adopted, end),
            other => panic!("{nth}: {other:?}"),
        }
        scratch.check_gone("run");
    }
}
