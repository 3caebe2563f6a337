//! What a review found, each kept from coming back.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;

use kennel_process::{Process, Signal};
use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, Said};

/// The body of a start that notes itself in a file and stays.
fn body(home: &Home, id: &str, slot: &str) -> String {
    let script = format!("echo ran >> {}; sleep 1000", home.truth(id).display());
    let command = ["sh", "-c", &script];
    serde_json::json!({
        "id": id, "slot": slot, "command": command, "cwd": "/",
        "env": [["PATH", std::env::var("PATH").unwrap_or_default()]],
    })
    .to_string()
}

fn times_run(home: &Home, id: &str) -> usize {
    fs::read_to_string(home.truth(id)).unwrap_or_default().lines().count()
}

#[test]
fn a_start_that_is_refused_does_not_run_also_while_the_daemon_leaves() {
    let home = Home::new();
    home.ok(&["run", "--", "true"]);
    for round in 0..8_u64 {
        let script = |n: u64| {
            format!("echo ran >> {}; sleep 1000", home.truth(&format!("{round}-{n}")).display())
        };
        let clients: Vec<_> = (0..4)
            .map(|n| {
                let mut client = home.command(&["run", "-d", "--", "sh", "-c", &script(n)]);
                client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run")
            })
            .collect();
        kennel_tests::pass(std::time::Duration::from_millis(round * 5));
        home.ok(&["down"]);
        for (n, client) in clients.into_iter().enumerate() {
            let said = Said::of(&client.wait_with_output().expect("it ends"));
            let ran = times_run(&home, &format!("{round}-{n}"));
            if said.code == 0 {
                let name = format!("{round}-{n}");
                until("it runs", || (times_run(&home, &name) == 1).then_some(()));
            } else {
                assert_eq!(ran, 0, "{said:?}");
            }
        }
    }
    home.check();
}

#[test]
fn who_is_admitted_while_everything_is_stopped_is_stopped_too() {
    let home = Home::new();
    home.ok(&["run", "--", "true"]);
    let store = rusqlite::Connection::open(home.state().join("kennel.db")).expect("it is there");
    store.execute_batch("BEGIN IMMEDIATE").expect("it is ours");
    // It waits for the store, and the shutdown behind it.
    let mut start = home.connect();
    let body = body(&home, "late", "s");
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: k\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    start.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("it is taken");
    until("it is on its way", || home.run_dir("late").exists().then_some(()));
    let mut down = home.command(&["--json", "down", "--stop-runs", "--grace", "100ms"]);
    let down = down.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run");
    kennel_tests::pass(std::time::Duration::from_millis(300));
    store.execute_batch("ROLLBACK").expect("it is ours");
    drop(store);
    let said = Said::of(&down.wait_with_output().expect("it ends"));
    let mut answer = String::new();
    start.read_to_string(&mut answer).expect("it answers");
    let report: Value = serde_json::from_str(&said.out).expect("it is JSON");
    let stopped = report["stopped"].as_array().expect("a list");
    assert!(stopped.iter().any(|run| run["id"] == "late"), "{report}");
    assert_eq!(report["left"].as_array().map(Vec::len), Some(0), "{report}");
    home.check();
}

#[test]
fn a_run_whose_store_was_lost_is_not_called_never_started_and_keeps_its_slot() {
    let home = Home::new();
    home.ok(&["ps"]);
    let request = body(&home, "kept", "s");
    let (status, _) = home.ask("POST", "/v1/runs", &request);
    assert_eq!(status, 201);
    home.kill_daemon();
    for file in ["kennel.db", "kennel.db-wal", "kennel.db-shm"] {
        let _ = fs::remove_file(home.state().join(file));
    }
    let up = home.up(&[]);
    let (_, first) = home.ask("POST", "/v1/runs", &request);
    let shown = until("it is known again", || {
        let shown = home.show("kept");
        (shown["state"] == "running").then_some(shown)
    });
    assert_eq!(shown["slot"], "s", "{shown}, after {first}");
    let said = home.kennel(&["run", "--slot", "s", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert_eq!(times_run(&home, "kept"), 1);
    home.check();
    drop(up);
}

#[test]
fn a_slot_stopped_twice_hits_nobody_whose_id_begins_like_it() {
    let home = Home::new();
    home.ok(&["ps"]);
    assert_eq!(home.ask("POST", "/v1/runs", &body(&home, "fix-login-1", "other")).0, 201);
    home.start(&["--slot", "fix", "--", "sleep", "1000"]);
    home.ok(&["stop", "fix"]);
    home.ok(&["stop", "fix"]);
    assert_eq!(home.show("fix-login-1")["state"], "running");
    home.check();
}

#[test]
fn a_worktree_is_the_same_under_a_new_name() {
    let home = Home::new();
    let path = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    fs::create_dir(path("one")).expect("it can be made");
    let first = home.start(&["--worktree", &path("one"), "--", "sleep", "1000"]);
    fs::rename(path("one"), path("two")).expect("it can be renamed");
    let said = home.kennel(&["run", "--worktree", &path("two"), "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains(&first), "{said:?}");
    home.check();
}

#[test]
fn who_waits_is_not_told_an_end_that_was_none_when_the_daemon_is_replaced() {
    let home = Home::new();
    let gate = home.path().join("gate");
    let script = format!("until [ -e {} ]; do sleep 0.02; done; exit 7", gate.display());
    let run = home.start(&["--", "sh", "-c", &script]);
    let mut waiting = home.command(&["wait", &run]);
    let waiting = waiting.stderr(Stdio::piped()).spawn().expect("it can be run");
    kennel_tests::pass(std::time::Duration::from_millis(200));
    home.ok(&["down"]);
    home.ok(&["ps"]);
    for _ in 0..4 {
        home.kill_daemon();
        home.ok(&["ps"]);
    }
    fs::write(&gate, "").expect("it can be written");
    let said = Said::of(&waiting.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 7, "{said:?}");
    home.check();
}

#[test]
fn input_is_taken_whole_or_not_at_all() {
    let home = Home::new();
    let run = home.start(&["--stdin", "--", "sleep", "1000"]);
    let path = format!("/v1/runs/{run}/input");
    let (status, error) = home.ask("POST", &path, &"x".repeat((64 << 10) + 1));
    assert_eq!((status, &error["error"]["code"]), (413, &"too_large".into()), "{error}");
    home.check();
}

#[test]
fn a_daemon_whose_socket_is_gone_makes_room_for_the_next() {
    let home = Home::new();
    let run = home.start(&["--", "sleep", "1000"]);
    fs::remove_file(home.state().join("socket")).expect("it is there");
    until("another daemon serves", || (home.kennel(&["show", &run]).code == 0).then_some(()));
    assert_eq!(home.show(&run)["state"], "running");
    home.check();
}

#[test]
fn a_keeper_that_was_made_to_stand_still_hears_a_stop_all_the_same() {
    let home = Home::new();
    let run = home.start(&["--", "sleep", "1000"]);
    let pid = home.show(&run)["keeper"]["pid"].as_u64().expect("it has one") as u32;
    let keeper = Process::from_number(pid).expect("it lives");
    keeper.signal(Signal::STOP).expect("it can be made to");
    drop(home.kennel(&["stop", &run]));
    until("it is stopped", || (home.show(&run)["state"] == "dead").then_some(()));
    assert_eq!(home.show(&run)["end"]["cause"], "stopped");
    home.check();
}

#[test]
fn many_who_wait_for_a_keeper_that_stands_still_keep_nobody_else_waiting() {
    let home = Home::new();
    let still = home.start(&["--stdin", "--", "sleep", "1000"]);
    let pid = home.show(&still)["keeper"]["pid"].as_u64().expect("it has one") as u32;
    let keeper = Process::from_number(pid).expect("it lives");
    keeper.signal(Signal::STOP).expect("it can be made to");
    // More than may wait at once; each waits until its keeper answers, or for long.
    let path = format!("/v1/runs/{still}/input");
    let head = format!("POST {path} HTTP/1.1\r\nhost: k\r\ncontent-length: 1\r\n\r\nx");
    let mut waiting: Vec<_> = (0..80).map(|_| home.connect()).collect();
    for stream in &mut waiting {
        stream.write_all(head.as_bytes()).expect("it is taken");
    }
    until("somebody is turned away", || {
        let (status, error) = home.ask("POST", &path, "x");
        (status == 503 && error["error"]["code"] == "busy").then_some(())
    });
    let said = home.kennel(&["run", "--", "sh", "-c", "echo one; sleep 0.2; echo two; exit 3"]);
    assert_eq!((said.code, said.out.as_str()), (3, "one\ntwo\n"), "{said:?}");
    keeper.signal(Signal::CONT).expect("it can be made to");
    drop(waiting);
    home.check();
}

/// Two users who are not each other, nor root.
const ONE: &str = "65534";
const OTHER: &str = "65533";

fn open_to_all(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours to set");
}

/// The command as another user, with whatever of its home's walls was taken down.
fn as_user(home: &Home, user: &str, args: &[&str]) -> Said {
    let kennel = home.path().join("kennel");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(kennel).args(args);
    command.env("KENNEL_HOME", home.path()).env("SECRET", "hunter2").current_dir("/");
    Said::of(&command.stdin(Stdio::null()).output().expect("it can be run"))
}

#[test]
fn nobody_but_the_owner_is_served_and_nobody_but_the_owner_is_asked() {
    let name = "nobody_but_the_owner_is_served_and_nobody_but_the_owner_is_asked";
    if !kennel_tests::are_root() {
        return kennel_tests::skipped(name, "we are not root, and cannot be two others");
    }
    let home = Home::new();
    let kennel = std::path::Path::new(env!("CARGO_BIN_EXE_kennel"));
    super::home::make_program(kennel, &home.path().join("kennel"));
    home.ok(&["ps"]);
    // Without its walls, only the question who is there is left.
    open_to_all(home.path(), 0o755);
    open_to_all(&home.state(), 0o755);
    open_to_all(&home.state().join("socket"), 0o666);
    let said = as_user(&home, ONE, &["run", "--", "true"]);
    assert_ne!(said.code, 0, "{said:?}");
    assert_eq!(home.all_runs().len(), 0, "a stranger is not served");
    let log = fs::read_to_string(home.state().join("daemon.log")).expect("it is there");
    assert!(log.contains("turned a stranger away"), "{log}");
    home.check();

    // The other way round: a stranger's daemon is not given our environment.
    let theirs = Home::new();
    super::home::make_program(kennel, &theirs.path().join("kennel"));
    open_to_all(theirs.path(), 0o777);
    assert_eq!(as_user(&theirs, ONE, &["ps"]).code, 0);
    open_to_all(&theirs.state(), 0o755);
    open_to_all(&theirs.state().join("socket"), 0o666);
    let said = as_user(&theirs, OTHER, &["run", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("user 65534 listens there"), "{said:?}");
    let listed = as_user(&theirs, ONE, &["ps", "-a", "--json"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, ""), "nothing was started: {listed:?}");
    assert_eq!(as_user(&theirs, ONE, &["down"]).code, 0);
}
