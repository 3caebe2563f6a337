//! A run in the foreground: what Ctrl-C, a closed terminal and a reader that leaves mean, and how
//! we exit. Also stopping all of them, and waiting for several.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use kennel_process::{Process, Signal};
use kennel_tests::{agent, until};
use serde_json::Value;

use super::home::{Home, Said};

fn foreground(home: &Home, args: &[&str]) -> Child {
    let mut all = vec!["run"];
    all.extend(args);
    let mut command = home.command(&all);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run")
}

fn signal(client: &Child, signal: Signal) {
    let process = Process::from_number(client.id()).expect("it lives");
    process.signal(signal).expect("it can be signalled");
}

fn the_run(home: &Home) -> Value {
    until("the run is there", || {
        let out = home.kennel(&["--json", "ps"]).out;
        let run: Value = serde_json::from_str(out.lines().next()?).ok()?;
        (run["state"] == "running").then_some(run)
    })
}

#[test]
fn it_exits_as_the_command_does() {
    let home = Home::new();
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["/"], 126),
        (&["no-such-command-at-all"], 127),
    ] {
        let mut args = vec!["run", "--"];
        args.extend(command);
        let said = home.kennel(&args);
        assert_eq!(said.code, code, "{command:?}: {said:?}");
    }
    home.check();
}

#[test]
fn ctrl_c_is_a_stop_and_a_second_one_forces() {
    let home = Home::new();
    let client = foreground(&home, &["--", "sleep", "1000"]);
    let run = the_run(&home);
    signal(&client, Signal::INT);
    let said = Said::of(&client.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 143, "{said:?}");
    assert!(said.err.contains("stopped by you"), "{said:?}");
    let shown = home.show(run["id"].as_str().expect("text"));
    assert_eq!(shown["end"]["cause"], "stopped", "{shown}");

    let stubborn = agent("ignore_term").to_string_lossy().into_owned();
    let client = foreground(&home, &["--grace", "1h", "--", &stubborn]);
    let id = the_run(&home)["id"].as_str().expect("text").to_owned();
    signal(&client, Signal::INT);
    until("it is stopping", || (home.show(&id)["state"] == "stopping").then_some(()));
    signal(&client, Signal::INT);
    let said = Said::of(&client.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 137, "{said:?}");
    let shown = home.show(&id);
    assert_eq!(shown["end"]["cause"], "stopped", "the first cause is kept: {shown}");
    home.check();
}

#[test]
fn a_closed_terminal_leaves_the_run_alone() {
    let home = Home::new();
    let client = foreground(&home, &["--", "sleep", "1000"]);
    let id = the_run(&home)["id"].as_str().expect("text").to_owned();
    signal(&client, Signal::HUP);
    let said = Said::of(&client.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 129, "{said:?}");
    assert_eq!(home.show(&id)["state"], "running");
    home.check();
}

#[test]
fn a_reader_that_leaves_stops_the_run_as_a_pipe_would() {
    let home = Home::new();
    let mut client = foreground(&home, &["--", "yes"]);
    let mut lines = BufReader::new(client.stdout.take().expect("a pipe"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("it writes");
    assert_eq!(first, "y\n");
    drop(lines);
    let mut err = String::new();
    client.stderr.take().expect("a pipe").read_to_string(&mut err).expect("it ends");
    assert!(!err.contains("panicked"), "{err}");
    drop(client.wait());
    let runs = home.all_runs();
    assert_eq!(runs[0]["end"]["cause"], "stopped", "{runs:?}");
    home.check();
}

#[test]
fn its_input_is_ours_if_that_is_asked_for() {
    use std::io::Write;
    let home = Home::new();
    let mut command = home.command(&["run", "--stdin", "--", "sha256sum"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().expect("it can be run");
    let mut input = client.stdin.take().expect("a pipe");
    // More than any buffer between here and there.
    let block = [b'x'; 64 << 10];
    for _ in 0..64 {
        input.write_all(&block).expect("it is taken");
    }
    drop(input);
    let said = Said::of(&client.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 0, "{said:?}");
    let expected = expected_sum(&home);
    assert_eq!(said.out.split(' ').next(), expected.split(' ').next(), "{said:?}");
    let none = home.kennel(&["run", "--", "wc", "-c"]);
    assert_eq!((none.code, none.out.trim()), (0, "0"), "without it there is none");
    home.check();
}

/// What the same program says of the same bytes without us in between.
fn expected_sum(home: &Home) -> String {
    let file = home.path().join("input");
    std::fs::write(&file, vec![b'x'; 64 * (64 << 10)]).expect("it can be written");
    home.ok(&["run", "--", "sha256sum", &file.to_string_lossy()])
}

#[test]
fn down_leaves_runs_alone_or_stops_all_of_them_at_once() {
    let home = Home::new();
    let stubborn = agent("ignore_term").to_string_lossy().into_owned();
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(home.start(&["--grace", "1h", "--", &stubborn]));
        runs.push(home.start(&["--", "sleep", "1000"]));
    }
    let said = home.kennel(&["down"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("10 runs go on under their keepers"), "{said:?}");
    let said = home.kennel(&["--json", "down", "--stop-runs", "--grace", "200ms"]);
    assert_eq!(said.code, 0, "{said:?}");
    let report: Value = serde_json::from_str(&said.out).expect("it is JSON");
    let stopped = report["stopped"].as_array().expect("a list");
    assert_eq!((stopped.len(), report["left"].as_array().map(Vec::len)), (10, Some(0)));
    for run in stopped {
        assert!(run["proof"].is_object(), "{run}");
        assert_eq!(run["end"]["cause"], "stopped", "{run}");
    }
    assert!(home.daemon().is_none(), "it left");
    home.check();
}

#[test]
fn waits_end_as_the_runs_do() {
    let home = Home::new();
    let fine = home.start(&["--", "true"]);
    let seven = home.start(&["--", "sh", "-c", "exit 7"]);
    let long = home.start(&["--", "sleep", "1000"]);
    assert_eq!(home.kennel(&["wait", &fine]).code, 0);
    assert_eq!(home.kennel(&["wait", &fine, &seven]).code, 7);
    assert_eq!(home.kennel(&["wait", &seven, &fine]).code, 7);
    let any = home.kennel(&["wait", "--any", &long, &seven]);
    assert_eq!((any.code, any.out.trim()), (7, seven.as_str()));
    let late = home.kennel(&["wait", "--timeout", "50ms", &long]);
    assert_eq!(late.code, 124, "{late:?}");
    assert!(late.err.contains("goes on"), "{late:?}");
    let late = home.kennel(&["wait", "--any", "--timeout", "50ms", &long, &long]);
    assert_eq!(late.code, 124, "{late:?}");
    home.check();
}

#[test]
fn who_waits_for_what_is_long_over_is_answered_at_once_and_what_is_stuck_is_not_unknown() {
    let home = Home::new();
    let old = home.start(&["--", "sh", "-c", "exit 7"]);
    home.kennel(&["wait", &old]);
    let lost = home.start(&["--", "sleep", "1000"]);
    home.kill_keeper(&lost);
    let code = home.kennel(&["wait", &lost]).code;
    assert_eq!(home.show(&lost)["end"]["cause"], "lost");
    home.ok(&["down"]);
    // As good as the retention: all but a day of it has passed.
    let day = 24 * 60 * 60 * 1000_u64;
    home.sql(&format!("UPDATE run SET ended_ms = ended_ms - 29 * {day}"));
    for wait in [&["wait", &old][..], &["wait", "--any", &old], &["wait", &old, "--timeout", "1ms"]]
    {
        let said = home.kennel(wait);
        assert_eq!(said.code, 7, "{wait:?}: {said:?}");
    }
    assert_eq!(home.kennel(&["wait", &lost]).code, code, "what was lost is no other than before");
    // One that nobody can look at is there all the same.
    let unreadable = home.start(&["--", "sleep", "1000"]);
    home.kill_daemon();
    let path = home.run_dir(&unreadable).join("record");
    let mut record = fs::read(&path).expect("it is there");
    record[40] ^= 1;
    fs::write(&path, &record).expect("it can be written");
    until("it is stuck", || (home.show(&unreadable)["state"] == "stuck").then_some(()));
    let said = home.kennel(&["--json", "wait", &unreadable]);
    assert!(!said.err.contains("not_found"), "{said:?}");
    assert!(said.out.contains("\"stuck\""), "{said:?}");
    let said = home.kennel(&["--json", "wait", "nobody"]);
    assert!(said.err.contains("not_found"), "{said:?}");
    record[40] ^= 1;
    fs::write(&path, &record).expect("it can be written");
    until("it is read again", || (home.show(&unreadable)["state"] == "running").then_some(()));
    home.check();
}

#[test]
fn text_is_found_however_it_was_written() {
    let home = Home::new();
    let script = "printf hel; read a; printf 'lo wor'; read b; echo ld >&2; echo ld; read c; true";
    let run = home.start(&["--stdin", "--", "sh", "-c", script]);
    let mut waiting = home.command(&["--json", "wait", "--until", "hello world", &run]);
    let waiting = waiting.stdout(Stdio::piped()).spawn().expect("it can be run");
    home.ok(&["send", &run, "on"]);
    home.ok(&["send", &run, "on"]);
    let found = Said::of(&waiting.wait_with_output().expect("it ends"));
    assert_eq!(found.code, 0, "{found:?}");
    let found: Value = serde_json::from_str(&found.out).expect("it is JSON");
    assert_eq!((&found["stream"], &found["offset"]), (&"stdout".into(), &0.into()));
    home.ok(&["send", "--eof", "--no-newline", &run, ""]);
    home.ok(&["wait", &run]);
    let none = home.kennel(&["wait", "--until", "not there", &run]);
    assert_eq!(none.code, 1, "{none:?}");
    home.check();
}
