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
use std::time::{Duration, Instant, SystemTime};

use kennel_tests::{agent, are_root, carriers_of, skipped, until};
use serde_json::{Value, json};

use super::home::{Home, SOON, Said};

/// Set for a test that runs itself again: its name, so that no other takes it for its own.
const AGAIN: &str = "KENNEL_TEST_AGAIN";
/// What no clock is ever wrong by.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The size of a small disk: some dozen runs fit, and the store, whose log grows to 4 MB.
const DISK: &str = "12m";

/// The small disk, if this is the second time, inside. A test goes by its path in this binary.
pub(crate) fn inside(test: &str) -> Option<PathBuf> {
    let again = std::env::var(AGAIN).is_ok_and(|name| name == test);
    again.then(std::env::temp_dir)
}

/// The same, for a test of this file, with a home there.
fn home_inside(test: &str) -> Option<(Home, PathBuf)> {
    inside(&own(test)).map(|place| (Home::new(), place))
}

fn own(test: &str) -> String {
    format!("faults::{test}")
}

/// Runs one test of this binary again where the directory of temporary files is a small disk. The
/// mount is gone with the last process in there.
pub(crate) fn on_a_small_disk(test: &str) {
    let flags = if are_root() { "-m" } else { "-Urm" };
    let place = std::env::temp_dir().join(format!("kd-{}-{}", std::process::id(), test.len()));
    fs::create_dir(&place).expect("it can be made");
    let _removed = Removed(place.clone());
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
}

/// A directory that nothing is in once its mount is gone.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs one test of this binary again by way of a command, and fails as it fails.
fn again(test: &str, mut command: Command) {
    let output = command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
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
pub(crate) struct Full(PathBuf);

impl Full {
    pub(crate) fn disk(place: &Path) -> Self {
        Self::but_for(place, 0)
    }

    /// So many pages are left.
    pub(crate) fn but_for(place: &Path, pages: u64) -> Self {
        let filler = place.join("filler");
        let mut file = fs::File::create(&filler).expect("the disk takes a file");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        let length = file.metadata().expect("it is open").len();
        file.set_len(length.saturating_sub(4096 * pages)).expect("it can shrink");
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
    let Some((home, place)) = home_inside(test) else { return on_a_small_disk(&own(test)) };
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

#[test]
fn a_disk_that_fills_up_during_a_start_refuses_it_at_once_or_lets_it_run() {
    let test = "a_disk_that_fills_up_during_a_start_refuses_it_at_once_or_lets_it_run";
    let Some((home, place)) = home_inside(test) else { return on_a_small_disk(&own(test)) };
    home.ok(&["ps"]);
    let (mut refused, mut started) = (0, 0);
    // A start needs some dozen pages: the disk is full at each of its writes in turn.
    for pages in 0..32 {
        let full = Full::but_for(&place, pages);
        let begun = Instant::now();
        let said = home.kennel(&["--json", "run", "-d", "--", "sleep", "1000"]);
        assert!(begun.elapsed() < SOON, "{pages} pages: {said:?}");
        match said.code {
            0 => {
                started += 1;
                let run: Value = serde_json::from_str(&said.out).expect("it is JSON");
                let run = run["id"].as_str().expect("it is text");
                let said = home.kennel(&["kill", run]);
                assert_eq!(said.code, 0, "{pages} pages: {said:?}");
            }
            _ => {
                refused += 1;
                assert_eq!(said.code, 125, "{pages} pages: {said:?}");
                assert_eq!(error_of(&said)["code"], "store_failed", "{pages} pages: {said:?}");
            }
        }
        drop(full);
        let live = || home.ok(&["--json", "ps"]).is_empty().then_some(());
        until("the store has all of it", live);
    }
    assert!(refused > 5 && started > 0, "{refused} refused, {started} started");
    home.check();
}

#[test]
fn a_daemon_that_is_killed_on_a_full_disk_is_replaced_or_says_why_not() {
    let test = "a_daemon_that_is_killed_on_a_full_disk_is_replaced_or_says_why_not";
    let Some((home, place)) = home_inside(test) else { return on_a_small_disk(&own(test)) };
    let (by_itself, sign) = until_told(&home, "itself", 3);
    let stays = home.start(&["--slot", "stays", "--", "sleep", "1000"]);
    let leader = home.show(&stays)["leader"]["pid"].clone();
    let full = Full::disk(&place);
    home.kill_daemon();
    tell(&sign);
    let said = home.kennel(&["--json", "ps"]);
    match said.code {
        0 => {
            dead(&home, &by_itself);
            expect_refused_for_want_of_space(&home);
            assert_eq!(home.kennel(&["kill", &stays]).code, 0);
        }
        // It cannot come up: then it says what is in its way, and nobody was touched.
        5 => {
            let error = error_of(&said);
            assert_eq!(error["code"], "daemon_unreachable", "{error}");
            assert!(error.to_string().contains("no room"), "{error}");
            assert_ne!(carriers_of(&stays), Vec::<String>::new());
        }
        _ => panic!("{said:?}"),
    }
    drop(full);
    let shown = dead(&home, &by_itself);
    assert_eq!(shown["end"]["status"], json!({"exited": 3}), "{shown}");
    assert_eq!(home.show(&stays)["leader"]["pid"], leader);
    assert_eq!(home.kennel(&["run", "--", "true"]).code, 0);
    until("its end is in the journal", || home.ends().contains(&by_itself).then_some(()));
    if state_of(&home, &stays) == "dead" {
        until("its end is in the journal", || home.ends().contains(&stays).then_some(()));
    }
    let _ = fs::remove_file(sign);
    home.check();
}

#[test]
fn a_read_only_home_is_named_and_writable_again_it_works() {
    let test = "a_read_only_home_is_named_and_writable_again_it_works";
    let Some((home, place)) = home_inside(test) else { return on_a_small_disk(&own(test)) };
    assert_eq!(home.kennel(&["run", "--", "true"]).code, 0);
    home.down();
    let remount = |how: &str| {
        until("nobody writes there any more", || {
            let mut mount = Command::new("mount");
            mount.args(["-o", how]).arg(&place).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success()).then_some(())
        });
    };
    remount("remount,ro");
    for (args, code) in [(&["ps"][..], 5), (&["up"], 1), (&["run", "--", "true"], 125)] {
        let said = home.kennel(args);
        assert_eq!(said.code, code, "{said:?}");
        assert!(said.err.contains("Read-only file system"), "{said:?}");
        let state = home.state();
        assert!(said.err.contains(&*state.to_string_lossy()), "it names the place: {said:?}");
    }
    remount("remount,rw");
    assert_eq!(home.kennel(&["run", "--", "true"]).code, 0);
    assert_eq!(home.all_runs().len(), 2);
    home.check();
}

/// Files that nobody may write to, not even through descriptors that are open, until it is dropped.
struct Sealed(Vec<PathBuf>);

impl Sealed {
    /// `None` where the file system cannot do that, or we may not.
    fn these(paths: Vec<PathBuf>) -> Option<Self> {
        let sealed = Self(paths);
        sealed.mark("+i").then_some(sealed)
    }

    fn mark(&self, how: &str) -> bool {
        let mut chattr = Command::new("chattr");
        chattr.arg(how).args(&self.0).stderr(Stdio::null());
        chattr.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.mark("-i");
    }
}

#[test]
fn a_home_that_may_not_be_written_for_a_while_loses_nothing() {
    let home = Home::new();
    let (by_itself, sign) = until_told(&home, "itself", 9);
    let forced = home.start(&["--slot", "forced", "--", "sleep", "1000"]);
    let stays = home.start(&["--slot", "stays", "--", "sleep", "1000"]);
    let paths = ["", "runs", "kennel.db", "kennel.db-wal"].map(|name| home.state().join(name));
    let Some(sealed) = Sealed::these(paths.to_vec()) else {
        return skipped("a home that may not be written for a while", "no file can be sealed here");
    };
    expect_refused_for_want_of_space(&home);
    tell(&sign);
    assert_eq!(dead(&home, &by_itself)["end"]["status"], json!({"exited": 9}));
    assert_eq!(home.kennel(&["kill", &forced]).code, 0);
    assert_eq!(home.ends(), Vec::<String>::new());
    drop(sealed);
    until("every end is in the journal", || (home.ends().len() == 2).then_some(()));
    assert_eq!(home.kennel(&["run", "--slot", "forced", "--", "true"]).code, 0);
    assert_eq!(state_of(&home, &stays), "running");
    let _ = fs::remove_file(sign);
    home.check();
}

#[test]
fn clocks_that_jumped_harm_nothing() {
    let home = Home::new();
    let now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000";
    let (year, far) = (365_u64 * 86_400_000, 253_402_300_800_000_u64 + 5);
    let mut runs = Vec::new();
    for (name, at) in [
        ("long-ago", "0".to_owned()),
        ("last-year", format!("{now} - {year}")),
        ("next-year", format!("{now} + {year}")),
        // After the last year of four digits.
        ("far", far.to_string()),
    ] {
        let dead = home.start(&["--", "true"]);
        until("it is dead", || (state_of(&home, &dead) == "dead").then_some(()));
        let live = home.start(&["--slot", name, "--", "sleep", "1000"]);
        runs.push((dead, live, at));
    }
    home.kill_daemon();
    for (dead, live, at) in &runs {
        home.sql(&format!(
            "UPDATE run SET requested_ms = {at}, request = json_set(request, '$.at_ms', {at}), \
                started = json_set(started, '$.at_ms', {at}) WHERE id IN ('{dead}', '{live}'); \
             UPDATE run SET ended_ms = {at}, ended = json_set(ended, '$.recorded.at_ms', {at}) \
                WHERE id = '{dead}'; \
             UPDATE journal SET at_ms = {at} WHERE run IN ('{dead}', '{live}');"
        ));
        for file in ["stdout.0", "record"] {
            let path = home.run_dir(live).join(file);
            if let Ok(file) = fs::File::options().append(true).open(path) {
                file.set_modified(SystemTime::now() + CENTURY).expect("it is ours");
            }
        }
    }
    let order = |all: &[&str]| -> Vec<String> {
        let out = home.ok(&[&["--json", "ps"], all].concat());
        let id = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["id"].clone();
        out.lines().map(|line| id(line).as_str().expect("text").to_owned()).collect()
    };
    let mut newest_first: Vec<String> =
        runs.iter().rev().map(|(_, live, _)| live.clone()).collect();
    let up = home.up(&["--keep-age", "87600h"]);
    assert_eq!(order(&[]), newest_first);
    until("what ended decades ago is removed", || (order(&["-a"]).len() == 7).then_some(()));
    for text in [home.ok(&["ps"]), home.ok(&["ps", "-a"])] {
        assert!(!text.contains('-') || !text.contains(" -1"), "no age is negative: {text}");
    }
    for (dead, live, _) in &runs {
        assert_eq!(home.kennel(&["show", dead]).code, if *dead == runs[0].0 { 3 } else { 0 });
        assert_eq!(state_of(&home, live), "running");
        // A time-out is a time, not a moment.
        let begun = Instant::now();
        let said = home.kennel(&["wait", live, "--timeout", "50ms"]);
        assert_eq!(said.code, 124, "{said:?}");
        assert!(begun.elapsed() < SOON);
    }
    // What ended long ago is removed; what says that it ends in the future is kept.
    home.ok(&["down"]);
    drop(up);
    let up = home.up(&["--keep-age", "1h"]);
    until("the old ones are gone", || (home.all_runs().len() == 6).then_some(()));
    let left = order(&["-a"]);
    for (n, (dead, live, _)) in runs.iter().enumerate() {
        assert_eq!(left.contains(dead), n >= 2, "{n}");
        assert!(left.contains(live));
    }
    // Graces are times too: a clock that stands in the future neither shortens nor lengthens one.
    let last = newest_first.remove(0);
    let begun = Instant::now();
    home.ok(&["stop", &last]);
    assert!(begun.elapsed() < SOON);
    home.check();
    drop(up);
}

#[test]
fn a_thousand_finished_runs_are_listed_found_and_removed_whole() {
    const REAL: usize = 200;
    let home = Home::new();
    home.ok(&["ps"]);
    let cwd = home.work();
    let start = |n: usize| {
        let id = format!("real{n:04}");
        let body = json!({"id": id, "command": ["true"], "cwd": cwd, "env": [["PATH", "/bin"]]});
        let (status, run) = home.ask("POST", "/v1/runs", &body.to_string());
        assert_eq!(status, 201, "{run}");
    };
    std::thread::scope(|scope| {
        for part in 0..8 {
            scope.spawn(move || (0..REAL).filter(|n| n % 8 == part).for_each(start));
        }
    });
    let live = home.start(&["--slot", "live", "--", "sleep", "1000"]);
    until("all of them have ended", || (home.ends().len() == REAL).then_some(()));
    home.ok(&["down"]);
    // The rest as they would be, of a year ago.
    let then = "CAST(strftime('%s', 'now', '-365 days') AS INTEGER) * 1000";
    home.sql(&format!(
        "WITH RECURSIVE n(i) AS (SELECT {REAL} UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
         INSERT INTO run (id, slot, state, request, started, stuck, ended, worktree, requested_ms, \
            ended_ms) \
         SELECT printf('made%04d', i), printf('made%04d', i), 'dead', request, started, stuck, \
            json_set(ended, '$.recorded.at_ms', {then} + i), NULL, {then} + i, {then} + i \
            FROM n, run WHERE run.id = 'real0000'; \
         INSERT INTO journal (at_ms, run, fact, detail) \
         SELECT {then}, run.id, fact, detail FROM run, journal \
            WHERE journal.run = 'real0000' AND run.id LIKE 'made%';"
    ));
    for n in REAL..1000 {
        let dir = home.run_dir(&format!("made{n:04}"));
        fs::create_dir(&dir).expect("it can be made");
        fs::copy(home.run_dir("real0000").join("record"), dir.join("record")).expect("it copies");
    }
    let begun = Instant::now();
    let up = home.up(&["--keep-age", "87600h"]);
    assert_eq!(home.ok(&["--json", "ps"]).lines().count(), 1);
    assert_eq!(home.ok(&["--json", "ps", "-a"]).lines().count(), 1000, "as many as it says");
    assert_eq!(home.all_runs().len(), 1001);
    assert_eq!(home.show("made0999")["state"], "dead");
    assert_eq!(home.kennel(&["show", "made099"]).code, 3, "a beginning that is not unique");
    assert_eq!(home.ends().len(), 1000);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    home.ok(&["down"]);
    drop(up);

    // By age: all that were made up go, with rows, journal and directories; the rest stays.
    let up = home.up(&["--keep-age", "24h"]);
    until("the old ones are gone", || (home.all_runs().len() == REAL + 1).then_some(()));
    until("their directories too", || {
        let dirs = fs::read_dir(home.state().join("runs")).expect("it is there").count();
        (dirs == REAL + 1).then_some(())
    });
    assert_eq!(home.ends().len(), REAL);
    assert_eq!(home.sql("SELECT count(*) FROM journal WHERE run LIKE 'made%'"), "0");
    let (_, page) = home.ask("GET", "/v1/events?after=0", "");
    assert_eq!(page["events"][0]["kind"], "removed", "readers are told: {page}");
    assert_eq!(home.kennel(&["show", "made0999"]).code, 3);
    home.ok(&["down"]);
    drop(up);
    // By size: nothing dead is left, and what lives stays.
    let up = home.up(&["--keep-size", "0"]);
    until("only the living are left", || (home.all_runs().len() == 1).then_some(()));
    assert_eq!(state_of(&home, &live), "running");
    let said = home.kennel(&["--json", "doctor"]);
    assert!(!said.out.contains("is nobody's"), "{said:?}");
    home.ok(&["kill", "live"]);
    home.check();
    drop(up);
}

#[test]
fn of_two_daemons_the_second_names_the_first_and_leaves() {
    let home = Home::new();
    let first = home.up(&[]);
    let said = home.kennel(&["up"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains(&format!("process {}", first.child.id())), "{said:?}");
    assert_eq!(home.daemon().expect("it is up").identity().pid, first.child.id());
    home.check();
}

#[test]
fn however_many_clients_come_at_once_one_daemon_starts() {
    let home = Home::new();
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let mut client = home.command(&["--json", "run", "-d", "--", "true"]);
            client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run")
        })
        .collect();
    for client in clients {
        let said = Said::of(&client.wait_with_output().expect("it ends"));
        assert_eq!(said.code, 0, "{said:?}");
    }
    assert_eq!(home.all_runs().len(), 30);
    let mut log = String::new();
    let file = fs::File::open(home.state().join("daemon.log")).expect("it is there");
    file.take(1 << 20).read_to_string(&mut log).expect("it is text");
    assert_eq!(log.matches("serving on").count(), 1, "{log}");
    home.check();
}

/// A home whose daemon is gone and one of whose runs lives; it is told to exit with 5.
fn home_with_a_live_run() -> (Home, String, PathBuf) {
    let home = Home::new();
    assert_eq!(home.kennel(&["run", "--", "true"]).code, 0);
    let (run, sign) = until_told(&home, "slot", 5);
    home.kill_daemon();
    (home, run, sign)
}

fn remove_store(home: &Home) {
    for name in ["kennel.db", "kennel.db-wal", "kennel.db-shm"] {
        let _ = fs::remove_file(home.state().join(name));
    }
}

#[test]
fn after_the_store_was_deleted_what_lives_is_found_again_and_can_be_stopped() {
    for stop in [true, false] {
        let (home, run, sign) = home_with_a_live_run();
        let second = home.start(&["--", "sleep", "1000"]);
        home.kill_daemon();
        remove_store(&home);
        let found = until("both are found", || {
            let runs = home.all_runs();
            let known = runs.iter().filter(|run| run["state"] == "running").count();
            (known == 2).then_some(runs)
        });
        assert!(found.iter().all(|run| run["leader"]["pid"].is_u64()), "{found:?}");
        if stop {
            let said = home.kennel(&["stop", &run, &second]);
            assert_eq!(said.code, 0, "{said:?}");
        } else {
            tell(&sign);
            assert_eq!(home.kennel(&["wait", &run]).code, 5);
        }
        let _ = fs::remove_file(sign);
        home.check();
    }
}

#[test]
fn a_store_that_is_damaged_newer_or_not_ours_is_named_and_no_agent_is_touched() {
    let (home, run, sign) = home_with_a_live_run();
    home.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    let store = home.state().join("kennel.db");
    let good = fs::read(&store).expect("it is there");
    let put = |bytes: &[u8]| {
        remove_store(&home);
        fs::write(&store, bytes).expect("it can be written");
    };
    let cases: [(&str, &dyn Fn(), &str); 4] = [
        ("garbage", &|| put(&b"no database at all, by far. ".repeat(500)), "not a store"),
        (
            "newer",
            &|| {
                put(&good);
                home.sql("PRAGMA user_version = 77");
            },
            "schema 77",
        ),
        (
            "foreign",
            &|| {
                put(b"");
                home.sql("CREATE TABLE theirs (a); PRAGMA application_id = 5");
            },
            "not a store",
        ),
        (
            "torn",
            &|| {
                let mut torn = good.clone();
                torn[100..8192.min(good.len())].fill(0xa5);
                put(&torn);
            },
            "kennel.db",
        ),
    ];
    for (name, spoil, word) in cases {
        spoil();
        let before = fs::read(&store).expect("it is there");
        let said = home.kennel(&["up"]);
        assert_eq!(said.code, 1, "{name}: {said:?}");
        assert!(said.err.contains(word), "{name}: {said:?}");
        assert!(fs::read(&store).expect("it is there") == before, "{name}: it was changed");
        assert_ne!(carriers_of(&run), Vec::<String>::new(), "{name}");
        if name == "garbage" {
            // Who is in nobody's foreground says it to whoever asks.
            let said = home.kennel(&["ps"]);
            assert_eq!(said.code, 5, "{name}: {said:?}");
            assert!(said.err.contains(word), "{name}: {said:?}");
        }
    }
    put(&good);
    assert_eq!(state_of(&home, &run), "running");
    tell(&sign);
    assert_eq!(home.kennel(&["wait", &run]).code, 5);
    let _ = fs::remove_file(sign);
    home.check();
}
