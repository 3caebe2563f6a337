//! Told once: notices of every kind of ending, consumers and their places, watches, heartbeats, and
//! what is never told.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use kennel_process::Connection;
use kennel_tests::{PATIENCE, until};
use serde_json::{Value, json};

use super::home::{Home, make_program};

/// Stops that race with the exit of a run, each by ten at once.
const RACES: usize = 1000;
/// Commands that exit at once.
const INSTANT: usize = 500;
/// Notices a consumer pages through.
const MANY: u64 = 100_000;
/// What the daemon may grow by meanwhile.
const GROWTH_KB: u64 = 48 << 10;

/// A follower of notices, each as it comes.
struct Follower {
    child: Child,
    notices: Receiver<Value>,
}

impl Follower {
    fn of(home: &Home, args: &[&str]) -> Self {
        let mut all = vec!["--json", "notices", "--follow"];
        all.extend(args);
        let mut command = home.command(&all);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it can be run");
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (tell, notices) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let notice = serde_json::from_str(&line).expect("it is JSON");
                if tell.send(notice).is_err() {
                    break;
                }
            }
        });
        Self { child, notices }
    }

    #[track_caller]
    fn next(&self) -> Value {
        self.notices.recv_timeout(PATIENCE).expect("there is one more")
    }

    /// The next one of a kind.
    #[track_caller]
    fn next_of(&self, kind: &str) -> Value {
        loop {
            let notice = self.next();
            if notice["kind"] == kind {
                return notice;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} of {value} is no text"))
}

/// What a consumer has to read, without acknowledging it.
#[track_caller]
fn unread(home: &Home, consumer: &str) -> Vec<Value> {
    let out = home.ok(&["--json", "notices", "--consumer", consumer]);
    out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

fn of_run<'a>(notices: &'a [Value], run: &str) -> Vec<&'a Value> {
    notices.iter().filter(|notice| notice["run"] == run).collect()
}

fn kinds(notices: &[&Value]) -> Vec<String> {
    notices.iter().map(|notice| text(notice, "kind").to_owned()).collect()
}

#[test]
fn every_way_to_end_is_told_once_with_cause_status_and_tail() {
    let home = Home::new();
    home.ok(&["ps"]);
    let run = |args: &[&str]| {
        let mut all = vec!["--"];
        all.extend(args);
        home.start(&all)
    };
    let mut ways: Vec<(String, &str, Value)> = Vec::new();
    ways.push((run(&["sh", "-c", "echo bye; exit 3"]), "exit", json!({"exited": 3})));
    ways.push((run(&["sh", "-c", "kill -9 $$"]), "exit", json!({"signaled": 9})));
    let stopped = run(&["sleep", "1000"]);
    home.ok(&["stop", &stopped]);
    ways.push((stopped, "stopped", json!({"signaled": 15})));
    let killed = run(&["sleep", "1000"]);
    home.ok(&["kill", &killed]);
    ways.push((killed, "killed", json!({"signaled": 9})));
    let limited = home.start(&["--wall", "100ms", "--", "sleep", "1000"]);
    assert_eq!(home.kennel(&["wait", &limited]).code, 124);
    ways.push((limited, "limit", json!({"signaled": 15})));
    let lost = run(&["sleep", "1000"]);
    home.kill_keeper(&lost);
    home.kennel(&["wait", &lost]);
    ways.push((lost, "lost", json!({"signaled": 15})));
    assert_eq!(home.kennel(&["run", "--slot", "never", "--", "/no/such/program"]).code, 127);
    let never = text(&home.show("never"), "id").to_owned();
    ways.push((never, "never_started", json!({"unknown": "never_started"})));
    // One that goes on without a daemon, one that ends without one, and one that is stopped.
    let gate = home.truth("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done; echo late; exit 5", gate.display());
    let ended_alone = run(&["sh", "-c", &wait]);
    home.kill_daemon();
    fs::write(&gate, "").expect("it can be made");
    let dir = home.run_dir(&ended_alone);
    until("it has ended without a daemon", || {
        let record = fs::read_to_string(dir.join("record")).ok()?;
        record.contains("\"ended\"").then_some(())
    });
    ways.push((ended_alone, "exit", json!({"exited": 5})));
    for (id, _, _) in &ways {
        home.kennel(&["wait", id]);
    }
    let told = unread(&home, "all");
    for (id, cause, status) in &ways {
        let own = of_run(&told, id);
        let ended: Vec<_> = own.iter().filter(|notice| notice["kind"] == "ended").collect();
        assert_eq!(ended.len(), 1, "{own:#?}");
        let notice = ended[0];
        assert_eq!(notice["id"], format!("{id}/ended/1"), "{notice}");
        assert_eq!(notice["end"]["cause"], *cause, "{notice}");
        assert_eq!(notice["end"]["status"], *status, "{notice}");
        assert_eq!(notice["end"], home.show(id)["end"], "what is told is what is shown");
    }
    let tail = |at: usize| {
        let own = of_run(&told, &ways[at].0);
        own.last().expect("it is told")["tail"]["stdout"]["text"].clone()
    };
    assert_eq!((tail(0), tail(7)), (json!("bye\n"), json!("late\n")));
    let limited = of_run(&told, &ways[4].0);
    let expected = ["started", "limit_warning", "limit_reached", "ended"];
    assert_eq!(kinds(&limited), expected, "in this order");
    assert_eq!(limited[2]["limit"]["kind"], "wall");
    home.check();
}

#[test]
fn the_tail_has_what_was_written_after_the_leader_had_left() {
    let home = Home::new();
    let gate = home.truth("gate");
    let late = format!("until [ -e {} ]; do sleep 0.01; done; echo late", gate.display());
    let script = format!("({late}) & echo early");
    let run = home.start(&["--on-exit", "wait", "--", "sh", "-c", &script]);
    // Its exit is told by itself while the rest goes on.
    until("its leader has left", || {
        let (_, page) = home.ask("GET", "/v1/events", "");
        let events = page["events"].as_array().cloned().unwrap_or_default();
        events.iter().any(|event| event["run"] == run && event["kind"] == "exited").then_some(())
    });
    fs::write(&gate, "").expect("it can be made");
    home.ok(&["wait", &run]);
    let told = unread(&home, "c");
    let ended = *of_run(&told, &run).last().expect("it is told");
    assert_eq!(ended["tail"]["stdout"]["text"], "early\nlate\n", "{ended}");
    home.check();
}

#[test]
fn a_stop_that_races_with_the_exit_a_thousand_times_by_ten_at_once_is_one_notice() {
    let home = Home::new();
    home.ok(&["ps"]);
    let next = AtomicUsize::new(0);
    let path = std::env::var("PATH").unwrap_or_default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < RACES {
                    // It has ended a little before, or a little after, it is told to.
                    let request = json!({"command": ["sleep", "0.005"], "cwd": "/",
                        "env": [["PATH", path]]});
                    let (status, run) = home.ask("POST", "/v1/runs", &request.to_string());
                    assert_eq!(status, 201, "{run}");
                    let stop = format!("/v1/runs/{}/stop", text(&run, "id"));
                    std::thread::scope(|racers| {
                        for _ in 0..10 {
                            racers.spawn(|| {
                                let (status, said) = home.ask("POST", &stop, "{\"grace_ms\":0}");
                                assert_eq!(status, 200, "{said}");
                            });
                        }
                    });
                }
            });
        }
    });
    let runs = until("all of them are dead", || {
        let runs = home.all_runs();
        runs.iter().all(|run| run["state"] == "dead").then_some(runs)
    });
    assert_eq!(runs.len(), RACES);
    let mut causes = BTreeMap::new();
    for run in &runs {
        *causes.entry(text(&run["end"], "cause").to_owned()).or_insert(0) += 1;
    }
    println!("{causes:?}");
    // One of each, and what is told is what is kept: the checker compares them.
    home.check();
}

#[test]
fn commands_that_exit_at_once_are_each_told_to_who_follows() {
    let home = Home::new();
    home.ok(&["ps"]);
    let follower = Follower::of(&home, &["--consumer", "follower"]);
    let next = AtomicUsize::new(0);
    let path = std::env::var("PATH").unwrap_or_default();
    let request = json!({"command": ["true"], "cwd": "/", "env": [["PATH", path]]}).to_string();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < INSTANT {
                    let (status, run) = home.ask("POST", "/v1/runs", &request);
                    assert_eq!(status, 201, "{run}");
                }
            });
        }
    });
    let mut ended = BTreeSet::new();
    let mut last = 0;
    while ended.len() < INSTANT {
        let notice = follower.next();
        let seq = notice["seq"].as_u64().expect("it is a number");
        assert!(seq > last, "{notice} after {last}");
        last = seq;
        if notice["kind"] == "ended" {
            assert!(ended.insert(text(&notice, "run").to_owned()), "{notice} was told before");
        }
    }
    home.check();
}

#[test]
fn who_follows_over_crashes_of_the_daemon_misses_nothing_and_can_tell_what_came_twice() {
    let home = Home::new();
    home.ok(&["ps"]);
    let follower = Follower::of(&home, &["--consumer", "steady"]);
    let mut expected = BTreeSet::new();
    for round in 0..6 {
        let runs: Vec<String> = (0..5).map(|_| home.start(&["--", "sh", "-c", "echo x"])).collect();
        // Some are told before it dies, some after.
        if round % 2 == 0 {
            home.kennel(&["wait", &runs[0]]);
        }
        home.kill_daemon();
        home.ok(&["ps"]);
        expected.extend(runs);
    }
    let mut seen = BTreeMap::new();
    until("all of them are told", || {
        while let Ok(notice) = follower.notices.try_recv() {
            if notice["kind"] == "ended" {
                seen.entry(text(&notice, "run").to_owned())
                    .or_insert_with(Vec::new)
                    .push((notice["seq"].clone(), notice["id"].clone()));
            }
        }
        expected.iter().all(|run| seen.contains_key(run)).then_some(())
    });
    for (run, notices) in &seen {
        let first = &notices[0];
        assert!(notices.iter().all(|notice| notice == first), "{run}: {notices:?}");
    }
    home.check();
}

#[test]
fn a_consumer_that_crashes_between_reading_and_acknowledging_is_told_again_and_others_are_not() {
    let home = Home::new();
    let run = home.start(&["--", "true"]);
    home.ok(&["wait", &run]);
    let first = unread(&home, "one");
    assert_eq!(kinds(&of_run(&first, &run)), ["started", "ended"]);
    let last = first.last().expect("there is one")["seq"].as_u64().expect("it is a number");
    // Nothing was acknowledged: all of it comes again, also after a crash of the daemon.
    home.kill_daemon();
    assert_eq!(unread(&home, "one"), first);
    assert_eq!(unread(&home, "two"), first);
    home.ok(&["ack", "--consumer", "one", &last.to_string()]);
    home.kill_daemon();
    assert_eq!(unread(&home, "one"), Vec::<Value>::new());
    assert_eq!(unread(&home, "two"), first, "the other has its own place");
    // Never back, and never into the future.
    home.ok(&["ack", "--consumer", "one", "1"]);
    assert_eq!(unread(&home, "one"), Vec::<Value>::new());
    let said = home.kennel(&["ack", "--consumer", "one", "100000"]);
    assert_ne!(said.code, 0);
    assert!(said.err.contains("there is no notice 100000 yet"), "{said:?}");
    // One reader at a time: the second is told so, and takes over when the first is gone.
    let follower = Follower::of(&home, &["--consumer", "two"]);
    assert_eq!(follower.next()["kind"], "started");
    let said = home.kennel(&["notices", "--consumer", "two"]);
    assert!(said.err.contains("somebody else is reading as consumer two"), "{said:?}");
    drop(follower);
    until("its place is free", || {
        let said = home.kennel(&["--json", "notices", "--consumer", "two"]);
        (said.code == 0).then_some(())
    });
    let list = home.ok(&["consumers"]);
    assert!(list.contains("one: read up to") && list.contains("two: read up to 0"), "{list}");
    home.ok(&["consumers", "--forget", "one"]);
    assert_eq!(unread(&home, "one"), first, "a new one begins with the oldest that is kept");
    assert_ne!(home.kennel(&["consumers", "--forget", "nobody"]).code, 0);
    home.check();
}

#[test]
fn what_is_acknowledged_while_reading_is_not_told_again() {
    let home = Home::new();
    for _ in 0..3 {
        home.ok(&["run", "--", "true"]);
    }
    let read = home.ok(&["--json", "notices", "--consumer", "c", "--ack", "--limit", "4"]);
    assert_eq!(read.lines().count(), 4);
    let rest = home.ok(&["--json", "notices", "--consumer", "c", "--ack"]);
    assert_eq!(rest.lines().count(), 2);
    assert_eq!(home.ok(&["notices", "--consumer", "c"]), "");
    home.check();
}

#[test]
fn a_runs_own_filter_decides_what_is_told_and_nothing_is_lost_by_it() {
    let home = Home::new();
    let run = |notify: &str, script: &str| {
        let id = home.start(&["--notify", notify, "--", "sh", "-c", script]);
        if script == "sleep 1000" {
            home.ok(&["stop", &id]);
        }
        home.kennel(&["wait", &id]);
        id
    };
    let cases = [
        ("always", "true", true),
        ("always", "sleep 1000", true),
        ("failure", "true", false),
        ("failure", "exit 2", true),
        ("failure", "sleep 1000", true),
        ("success", "true", true),
        ("success", "exit 2", false),
        ("success", "sleep 1000", false),
        ("unless-stopped", "exit 2", true),
        ("unless-stopped", "sleep 1000", false),
        ("never", "exit 2", false),
    ];
    let runs = cases.map(|(notify, script, _)| run(notify, script));
    let told = unread(&home, "c");
    let all = home.ok(&["--json", "notices", "--limit", "1000", "--all"]);
    for (id, (notify, script, expected)) in runs.iter().zip(cases) {
        let own = kinds(&of_run(&told, id));
        let is_told = own.iter().any(|kind| kind == "ended");
        assert_eq!(is_told, expected, "{notify}, {script}: {own:?}");
        assert_eq!(own.is_empty(), notify == "never", "{notify}: {own:?}");
        assert!(all.contains(&format!("{id}/ended/1")), "{notify}: it is kept all the same");
    }
    home.check();
}

#[test]
fn a_pattern_is_found_from_the_first_byte_however_it_was_written() {
    let home = Home::new();
    let gate = home.truth("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let script = format!(
        "echo first; printf 'split in'; {wait}; printf ' two\\n'; echo up >&2; \
         printf 'no newline: pass'"
    );
    let watches = ["first", "split in two$", "^up$", "pass$"];
    let mut args = Vec::new();
    watches.iter().for_each(|pattern| args.extend(["--watch-once", pattern]));
    args.extend(["--", "sh", "-c", &script]);
    let follower = Follower::of(&home, &["--consumer", "c"]);
    let run = home.start(&args);
    assert_eq!(follower.next_of("watch_match")["watch"]["line"], "first");
    // Known after a restart, and not told again.
    home.kill_daemon();
    fs::write(&gate, "").expect("it can be made");
    home.ok(&["wait", &run]);
    let told = unread_of(&home, &run);
    let mut lines: Vec<(String, String, u64)> = Vec::new();
    for notice in told.iter().filter(|notice| notice["kind"] == "watch_match") {
        let found = &notice["watch"];
        let through = found["through"].as_u64().expect("it is a number");
        lines.push((text(found, "stream").into(), text(found, "line").into(), through));
    }
    lines.sort();
    let expected = [
        ("stderr", "up", 3),
        ("stdout", "first", 6),
        ("stdout", "no newline: pass", 35),
        ("stdout", "split in two", 19),
    ];
    let expected = expected.map(|(stream, line, at)| (stream.to_owned(), line.to_owned(), at));
    assert_eq!(lines, expected);
    assert_eq!(told.last().expect("there is one")["kind"], "ended", "the end comes last");
    home.check();
}

/// A client that waits for an approval and is then not served, in Claude's words.
const WAITS: &str = r#"#!/bin/sh
say() { echo "$1"; }
say '{"type":"system","subtype":"init","model":"claude-sonnet-5","session_id":"s"}'
say '{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool"}}'
until [ -e "$GATE" ]; do sleep 0.01; done
say '{"type":"assistant","session_id":"s","message":{"id":"m","model":"claude-sonnet-5",
"content":[],"usage":{"input_tokens":1,"output_tokens":1}}}' | tr -d '\n'
echo
info='"status":"rejected","resetsAt":2000000000,"rateLimitType":"five_hour"'
say "{\"type\":\"rate_limit_event\",\"rate_limit_info\":{$info},\"session_id\":\"s\"}"
until [ -e "$GATE.again" ]; do sleep 0.01; done
say '{"type":"assistant","session_id":"s","message":{"id":"n","model":"claude-sonnet-5",
"content":[],"usage":{"input_tokens":1,"output_tokens":1}}}' | tr -d '\n'
echo
until [ -e "$GATE.third" ]; do sleep 0.01; done
say "{\"type\":\"rate_limit_event\",\"rate_limit_info\":{$info},\"session_id\":\"s\"}"
sleep 1000
"#;

#[test]
fn an_agent_that_waits_or_is_not_served_is_told_of_once() {
    let mut home = Home::new();
    let script = home.path().join("client");
    let program = home.path().join("claude");
    fs::write(&script, WAITS).expect("it can be written");
    make_program(&script, &program);
    let gate = home.truth("gate");
    home.set("GATE", &gate.to_string_lossy());
    let follower = Follower::of(&home, &["--consumer", "c"]);
    let run = home.start(&["--", &program.to_string_lossy()]);
    assert_eq!(follower.next_of("waiting")["run"], run);
    // Who comes after a crash finds it waiting still, which is no news.
    home.kill_daemon();
    home.ok(&["ps"]);
    fs::write(&gate, "").expect("it can be made");
    let limited = follower.next_of("rate_limited");
    assert_eq!(limited["until"], "2033-05-18T03:33:20.000Z", "{limited}");
    // It works again while nobody is there to see it, and is refused once more: that is news. Who
    // follows would have a daemon started that sees it.
    drop(follower);
    home.kill_daemon();
    let gate = |name: &str| format!("{}.{name}", gate.display());
    fs::write(gate("again"), "").expect("it can be made");
    until("its keeper has heard that it works again", || {
        let account = Connection::open(&home.run_dir(&run)).ok()?.status().ok()?.usage?;
        account.contains("\"turns\":2").then_some(())
    });
    let follower = Follower::of(&home, &["--consumer", "d"]);
    until("the next daemon has seen that it works", || {
        (home.show(&run)["usage"]["turns"] == 2).then_some(())
    });
    fs::write(gate("third"), "").expect("it can be made");
    assert_eq!(follower.next_of("rate_limited")["id"], format!("{run}/rate_limited/1"));
    assert_eq!(follower.next_of("rate_limited")["id"], format!("{run}/rate_limited/2"));
    home.ok(&["stop", &run]);
    let told = unread_of(&home, &run);
    let all: Vec<&Value> = told.iter().collect();
    assert_eq!(kinds(&all), ["started", "waiting", "rate_limited", "rate_limited", "ended"]);
    home.check();
}

#[test]
fn a_line_that_comes_in_two_goes_with_a_long_pause_is_one_line() {
    let home = Home::new();
    let gate = home.truth("gate");
    let script =
        format!("printf FAI; until [ -e {} ]; do sleep 0.01; done; echo LED", gate.display());
    let follower = Follower::of(&home, &["--consumer", "c"]);
    let args = ["--watch", "FAILED", "--watch", "^FAI", "--", "sh", "-c", &script];
    let run = home.start(&args);
    let first = follower.next_of("watch_match");
    assert_eq!(
        (&first["watch"]["pattern"], &first["watch"]["line"]),
        (&json!("^FAI"), &json!("FAI"))
    );
    fs::write(&gate, "").expect("it can be made");
    let second = follower.next_of("watch_match");
    let watch = &second["watch"];
    assert_eq!((&watch["pattern"], &watch["line"]), (&json!("FAILED"), &json!("FAILED")));
    assert_eq!(follower.next_of("ended")["run"], run);
    let told = unread_of(&home, &run);
    let all: Vec<&Value> = told.iter().collect();
    assert_eq!(kinds(&all), ["started", "watch_match", "watch_match", "ended"]);
    home.check();
}

#[test]
fn a_place_that_a_new_journal_has_not_come_to_is_refused_and_not_waited_at() {
    let home = Home::new();
    home.kennel(&["run", "--", "true"]);
    let newest = home.ask("GET", "/v1/notices?after=0", "").1["next"].as_u64().expect("a number");
    for what in ["notices", "events"] {
        let (status, said) = home.ask("GET", &format!("/v1/{what}?after={newest}"), "");
        assert_eq!(status, 200, "{said}");
        let (status, said) = home.ask("GET", &format!("/v1/{what}?after={}", newest + 1), "");
        assert_eq!((status, &said["error"]["code"]), (410, &json!("journal_begun_anew")), "{said}");
    }
    assert_eq!(home.kennel(&["notices", "--after", "999999"]).code, 1);
    home.check();
}

/// All that was told of one run.
fn unread_of(home: &Home, run: &str) -> Vec<Value> {
    let out = home.ok(&["--json", "notices", "--run", run, "--limit", "1000"]);
    out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

#[test]
fn matches_are_told_once_at_a_threshold_or_as_long_as_they_are_few_and_the_rest_is_counted() {
    let home = Home::new();
    let script = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo error $i; done";
    let args = [
        "--watch",
        "error",
        "--watch-once",
        "error [2-9]$",
        "--watch-after",
        "7:error",
        "--",
        "sh",
        "-c",
        script,
    ];
    let run = home.start(&args);
    home.ok(&["wait", &run]);
    let told = unread_of(&home, &run);
    let found: Vec<&Value> =
        told.iter().filter(|n| n["kind"] == "watch_match").map(|n| &n["watch"]).collect();
    let of = |pattern: &str| {
        let all = found.iter().filter(|found| found["pattern"] == pattern);
        all.map(|found| (*found).clone()).collect::<Vec<Value>>()
    };
    let once = of("error [2-9]$");
    assert_eq!((once.len(), &once[0]["line"]), (1, &json!("error 2")));
    let every = of("error");
    let threshold = every.iter().filter(|f| f["line"] == "error 7" && f["seen"] == 7);
    assert_eq!(threshold.count(), 2, "by the threshold and by every: {every:#?}");
    let left_out: u64 = found.iter().map(|f| f["left_out"].as_u64().expect("a number")).sum();
    // Forty by "every", one at the threshold; each is told or counted.
    assert_eq!(every.len() as u64 + left_out, 41, "{every:#?}");
    assert!(left_out > 0 && every.len() > 10, "{left_out} of {}", every.len());
    let last = every.last().expect("there is one");
    assert_eq!((&last["line"], &last["seen"]), (&json!("error 40"), &json!(40)), "{last}");
    home.check();
}

#[test]
fn a_watch_is_told_once_whenever_the_daemon_is_killed() {
    let home = Home::new();
    let script = "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i; sleep 0.02; done";
    let args = ["--watch-once", "line 5$", "--watch-once", "line 15$", "--watch-after", "25:line"];
    let args = [&args[..], &["--", "sh", "-c", script]].concat();
    let run = home.start(&args);
    for n in [3, 5, 9, 15, 20, 25, 28] {
        home.kennel(&["wait", "--until", &format!("line {n}\n"), &run]);
        home.kill_daemon();
    }
    home.ok(&["wait", &run]);
    let told = unread_of(&home, &run);
    let found = told.iter().filter(|n| n["kind"] == "watch_match");
    let lines: Vec<&str> = found.map(|n| text(&n["watch"], "line")).collect();
    assert_eq!(lines, ["line 5", "line 15", "line 25"]);
    home.check();
}

#[test]
fn a_prompt_and_a_terminal_are_watched_too() {
    let home = Home::new();
    let follower = Follower::of(&home, &["--consumer", "c"]);
    let run = home.start(&[
        "--stdin",
        "--watch",
        "assword:",
        "--",
        "sh",
        "-c",
        "printf 'Password: '; read answer; echo got $answer",
    ]);
    let notice = follower.next_of("watch_match");
    assert_eq!(notice["watch"]["line"], "Password: ", "{notice}");
    home.ok(&["send", &run, "x"]);
    home.ok(&["wait", &run]);
    let script = r"printf 'a\033[31mred\033[0mline\r\nplain\r\n'";
    let run = home.start(&["--pty", "--watch", "^aredline$", "--", "sh", "-c", script]);
    home.ok(&["wait", &run]);
    let notice = follower.next_of("watch_match");
    assert_eq!((text(&notice, "run"), text(&notice["watch"], "stream")), (&*run, "terminal"));
    let ended = follower.next_of("ended");
    assert_eq!(ended["tail"]["terminal"]["text"], "aredline\nplain\n", "{ended}");
    home.check();
}

#[test]
fn patterns_that_cannot_be_used_are_refused_by_name() {
    let home = Home::new();
    let long = "x".repeat(2000);
    let huge = "(a{1000}){1000}";
    for (args, why) in [
        (vec!["--watch", "("], "unclosed group"),
        (vec!["--watch", &long], "more than 1024 bytes"),
        (vec!["--watch", huge], "cannot be used"),
        (vec!["--watch-after", "0:x"], "N:REGEX"),
        (vec!["--watch-after", "x"], "N:REGEX"),
        (vec!["--heartbeat", "10ms"], "use 1 s or more"),
        (vec!["--notify", "sometimes"], "possible values"),
    ] {
        let all = [&["run"], &args[..], &["--", "true"]].concat();
        let said = home.kennel(&all);
        assert_eq!(said.code, 125, "{args:?}: {said:?}");
        assert!(said.err.contains(why), "{args:?}: {said:?}");
    }
    let many = vec!["--watch=x"; 17];
    let said = home.kennel(&[&["run"], &many[..], &["--", "true"]].concat());
    assert!(said.err.contains("more than 16 patterns"), "{said:?}");
    home.check();
}

#[test]
fn a_heartbeat_has_only_what_is_new_and_comes_before_the_end() {
    let home = Home::new();
    let follower = Follower::of(&home, &["--consumer", "c"]);
    let (one, two) = (home.truth("one"), home.truth("two"));
    let wait =
        |gate: &std::path::Path| format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let script = format!(
        "echo early; {}; printf 'half'; echo ' more'; {}; echo late",
        wait(&one),
        wait(&two)
    );
    let run = home.start(&["--heartbeat", "1s", "--", "sh", "-c", &script]);
    assert_eq!(follower.next_of("heartbeat")["tail"]["stdout"]["text"], "early\n");
    home.kill_daemon();
    fs::write(&one, "").expect("it can be made");
    home.ok(&["ps"]);
    let second = follower.next_of("heartbeat");
    assert_eq!(second["tail"]["stdout"]["text"], "half more\n", "{second}");
    assert_eq!(second["id"], format!("{run}/heartbeat/2"));
    fs::write(&two, "").expect("it can be made");
    home.ok(&["wait", &run]);
    let told = unread_of(&home, &run);
    let all: Vec<&Value> = told.iter().collect();
    let heard = kinds(&all);
    assert_eq!(heard.last().map(String::as_str), Some("ended"), "{heard:?}");
    assert!(heard.iter().filter(|kind| *kind == "heartbeat").count() <= 3, "{heard:?}");
    home.check();
}

#[test]
fn what_looks_like_a_credential_is_never_told_nor_kept() {
    const KEY: &str = "sk-very-secret-0123456789";
    const PASSWORD: &str = "hunter2hunter2";
    let mut home = Home::new();
    home.set("ACME_API_KEY", KEY);
    home.set("DATABASE_URL", &format!("postgres://me:{PASSWORD}@db/x"));
    let script = format!(
        "echo key $ACME_API_KEY; echo $DATABASE_URL >&2; echo {KEY}; sleep 1.2; echo $ACME_API_KEY"
    );
    let args = ["--watch", "key|sk", "--heartbeat", "1s", "--", "sh", "-c", &script];
    let run = home.start(&args);
    // What cannot be started is named.
    let path = format!("/no/{KEY}/such");
    assert_eq!(home.kennel(&["run", "--slot", "never", "--", &path]).code, 127);
    let never = home.show("never")["end"]["error"]["message"].to_string();
    assert!(never.contains("/no/[redacted]/such"), "{never}");
    // It is known also to a daemon that never saw its environment.
    home.kill_daemon();
    home.ok(&["wait", &run]);
    let told = home.ok(&["--json", "notices", "--run", &run, "--limit", "100"]);
    assert!(told.contains("[redacted]"), "{told}");
    let shown = [
        told,
        home.ok(&["notices"]),
        home.ok(&["ps", "-a"]),
        home.ok(&["--json", "ps", "-a"]),
        home.ok(&["show", &run]),
        home.ask_text("GET", "/v1/events", "").1,
    ];
    for text in &shown {
        assert!(!text.contains(KEY) && !text.contains(PASSWORD), "{text}");
    }
    assert!(home.ok(&["logs", &run]).contains(KEY), "its output is its own");
    home.check();
    let state = home.state();
    for file in ["kennel.db", "kennel.db-wal", "daemon.log"] {
        let bytes = fs::read(state.join(file)).unwrap_or_default();
        for secret in [KEY, PASSWORD] {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{file} has {secret}");
        }
    }
}

#[test]
fn a_consumer_that_comes_too_late_is_told_that_it_lags() {
    let home = Home::new();
    let old = home.start(&["--", "true"]);
    home.ok(&["wait", &old]);
    let first = unread(&home, "late");
    let seq = first[0]["seq"].as_u64().expect("it is a number");
    home.ok(&["ack", "--consumer", "late", &seq.to_string()]);
    home.ok(&["down"]);
    // A week and more has passed: longer than its patience.
    home.sql("UPDATE run SET ended_ms = 1; UPDATE consumer SET acked_ms = 1");
    let up = home.up(&["--keep-age", "1h"]);
    until("it is removed", || (home.kennel(&["show", &old]).code != 0).then_some(()));
    let new = home.start(&["--", "true"]);
    home.ok(&["wait", &new]);
    let told = unread(&home, "late");
    assert_eq!(told[0]["kind"], "lagged", "{told:#?}");
    let through = told[0]["through"].as_u64().expect("it is a number");
    assert!(through > seq, "{told:#?}");
    assert_eq!(kinds(&of_run(&told, &new)), ["started", "ended"]);
    let fresh = unread(&home, "fresh");
    assert_eq!(kinds(&fresh.iter().collect::<Vec<_>>()), ["started", "ended"], "it missed nothing");
    home.check();
    drop(up);
}

#[test]
fn a_hundred_thousand_notices_are_paged_through_in_flat_memory() {
    let home = Home::new();
    let run = home.start(&["--", "true"]);
    home.ok(&["wait", &run]);
    home.ok(&["down"]);
    home.sql(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY}) \
         INSERT INTO journal (at_ms, run, fact, detail, notice, tail) \
         SELECT 1, '{run}', '{{\"noted\":{{\"heartbeat\":' || i || '}}}}', \
             '{{\"heartbeat\":{{\"stdout\":0,\"stderr\":0,\"terminal\":0}}}}', \
             '{run}/heartbeat/' || i, '{{\"stdout\":{{\"text\":\"some words\",\"left_out\":0}}}}' \
         FROM n"
    ));
    home.ok(&["ps"]);
    let daemon = home.daemon().expect("it is up").identity().pid;
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{daemon}/status")).expect("it lives");
        let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("it is there");
        let number = line.split_whitespace().nth(1).expect("it is there");
        number.parse::<u64>().expect("it is a number")
    };
    let before = resident();
    let read = home.ok(&["--json", "notices", "--consumer", "pager"]);
    assert_eq!(read.lines().count() as u64, MANY + 2);
    let grown = resident() - before;
    assert!(grown < GROWTH_KB, "the daemon grew by {grown} kB");
    let last = home.ok(&["--json", "notices", "--limit", "1"]);
    assert!(last.contains(&format!("/heartbeat/{MANY}")), "{last}");
    // They are no facts of the run's own life, which the checker would miss.
    home.sql("DELETE FROM journal WHERE notice LIKE '%/heartbeat/%'");
    home.check();
}
