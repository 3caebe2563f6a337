//! Faults of the home: a disk that is full or may not be written, a store that is gone, damaged or
//! somebody else's, two daemons at once, clocks that jump, and more runs than anybody looks at.
//!
//! Agents go on through all of it, their ends are never lost and never doubled, and whoever asks is
//! told what is wrong and what to do. Where a test needs a disk of its own it runs itself again in
//! a namespace with one ([`again`]), or says that it was not run.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_tests::{agent, are_root, carriers_of, skipped, until};
use serde_json::{Value, json};

use super::home::{Home, SOON, Said};

/// Set for a test that runs itself again: its name, so that no other takes it for its own.
const AGAIN: &str = "KENNEL_TEST_AGAIN";
/// The size of a small disk: a few runs and the store fit.
const DISK: &str = "3m";

/// A home on a small disk, if this is the second time, inside.
fn inside(test: &str) -> Option<(Home, PathBuf)> {
    let again = std::env::var(AGAIN).is_ok_and(|name| name == test);
    again.then(|| (Home::new(), std::env::temp_dir()))
}

/// Runs one test of this binary again where the directory of temporary files is a small disk. The
/// mount is gone with the last process in there.
fn on_a_small_disk(test: &str) {
    let flags = if are_root() { "-m" } else { "-Urm" };
    let place = std::env::temp_dir().join(format!("kd-{}-{}", std::process::id(), test.len()));
    fs::create_dir(&place).expect("it can be made");
    let mount = format!(r#"mount -t tmpfs -o size={DISK},mode=700 kennel-test "$1""#);
    let mut probe = Command::new("unshare");
    probe.args([flags, "sh", "-c", &mount, "sh"]).arg(&place).stderr(Stdio::null());
    if probe.status().is_ok_and(|status| status.success()) {
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", &format!(r#"{mount} && shift && exec "$@""#), "sh"]);
        command.arg(&place).arg(std::env::current_exe().expect("we run from a file"));
        command.env("TMPDIR", &place);
        again(test, command);
    } else {
        skipped(test, "no disk can be mounted here");
    }
    let _ = fs::remove_dir(&place);
}

/// Runs one test of this binary again by way of a command, and fails as it fails.
fn again(test: &str, mut command: Command) {
    let output = command
        .args([&format!("faults::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(AGAIN, test)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "inside: {said}\n{complained}");
    assert!(said.contains("1 passed"), "it ran nothing: {said}\n{complained}");
}

/// Fills a disk to its last page, and keeps it full until it is dropped.
struct Full(PathBuf);

impl Full {
    fn disk(place: &Path) -> Self {
        let filler = place.join("filler");
        let mut file = fs::File::create(&filler).expect("the disk takes a file");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Self(filler)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The error a command printed under `--json`.
#[track_caller]
fn error_of(said: &Said) -> Value {
    let line = said.err.lines().last().unwrap_or_default();
    let body: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {said:?}"));
    body["error"].clone()
}

/// A start is refused, names the store, and says what to do.
#[track_caller]
fn expect_refused_for_want_of_space(home: &Home) {
    let said = home.kennel(&["--json", "run", "-d", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    let error = error_of(&said);
    assert_eq!(error["code"], "store_failed", "{error}");
    let hint = error["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("make room"), "{error}");
}

/// An agent that lives until somebody makes a file, and exits with this code.
fn until_told(home: &Home, name: &str, code: u8) -> (String, PathBuf) {
    // Not in the home: that may be full.
    let sign = Path::new("/dev/shm").join(format!("kt-{}-{name}", home_name(home)));
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; exit {code}", sign.display());
    let run = home.start(&["--slot", name, "--", "sh", "-c", &script]);
    (run, sign)
}

fn home_name(home: &Home) -> String {
    home.path().file_name().expect("it has a name").to_string_lossy().into_owned()
}

/// Tells such an agent.
fn tell(sign: &Path) {
    fs::write(sign, "").expect("it can be made");
}

fn state_of(home: &Home, run: &str) -> Value {
    home.show(run)["state"].clone()
}

/// Waits until a run is dead with proof, and returns it.
#[track_caller]
fn dead(home: &Home, run: &str) -> Value {
    until("the run is dead", || {
        let shown = home.show(run);
        (shown["state"] == "dead" && shown["proof"].is_object()).then_some(shown)
    })
}

#[test]
fn a_full_disk_refuses_starts_and_keeps_neither_ends_nor_stops_from_being_known() {
    let test = "a_full_disk_refuses_starts_and_keeps_neither_ends_nor_stops_from_being_known";
    let Some((home, place)) = inside(test) else { return on_a_small_disk(test) };
    let (by_itself, sign) = until_told(&home, "itself", 7);
    let stubborn = agent("ignore_term").to_string_lossy().into_owned();
    let asked = home.start(&["--slot", "asked", "--", "sleep", "1000"]);
    let forced = home.start(&["--slot", "forced", "--", &stubborn]);
    let orphan = home.start(&["--slot", "orphan", "--", "sleep", "1000"]);
    let stays = home.start(&["--slot", "stays", "--", "sleep", "1000"]);
    let daemon = home.daemon().expect("it is up").identity().pid;
    let full = Full::disk(&place);

    expect_refused_for_want_of_space(&home);
    // An end is in the run's own record, where there is space for it, and is shown from there.
    tell(&sign);
    let shown = dead(&home, &by_itself);
    assert_eq!(shown["end"]["status"], json!({"exited": 7}), "{shown}");
    assert_eq!(home.kennel(&["wait", &by_itself]).code, 7);
    // A stop is the keeper's to record and to carry out.
    for (how, run, cause) in [("stop", &asked, "stopped"), ("kill", &forced, "killed")] {
        let said = home.kennel(&[how, run]);
        assert_eq!(said.code, 0, "{how}: {said:?}");
        assert!(said.out.contains("all gone"), "{how}: {said:?}");
        assert_eq!(home.show(run)["end"]["cause"], cause);
    }
    // So is a run whose keeper dies.
    home.kill_keeper(&orphan);
    let shown = dead(&home, &orphan);
    assert_eq!(shown["end"]["cause"], "lost", "{shown}");
    // What is not durable in the store has happened to nobody else: no slot is free.
    expect_refused_for_want_of_space(&home);
    let said = home.kennel(&["--json", "run", "-d", "--slot", "asked", "--", "true"]);
    assert_eq!((said.code, error_of(&said)["code"].clone()), (125, json!("slot_taken")));
    assert_eq!(home.ends(), Vec::<String>::new());
    assert_eq!(state_of(&home, &stays), "running");
    let listed = home.all_runs();
    let dead_ones = listed.iter().filter(|run| run["state"] == "dead").count();
    assert_eq!((listed.len(), dead_ones), (5, 4), "{listed:?}");
    home.ok(&["ps"]);

    drop(full);
    until("every end is in the journal", || (home.ends().len() == 4).then_some(()));
    until("starts work again", || {
        (home.kennel(&["run", "--slot", "asked", "--", "true"]).code == 0).then_some(())
    });
    assert_eq!(home.daemon().expect("it is up").identity().pid, daemon, "it never went away");
    let _ = fs::remove_file(sign);
    home.check();
}
