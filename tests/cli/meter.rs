//! Limits in an agent's own words: turns, tokens and money, counted from a scripted `claude` that
//! writes the lines and the transcript of the real one.

use std::fs;
use std::path::PathBuf;

use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, make_program};

/// What the scripted client does, in shell. `turn N` is a response that asks for no tool, `tool N`
/// one that asks for one; both also write the transcript, with the true usage.
const CLIENT: &str = r#"#!/bin/sh
session=none
while [ $# -gt 0 ]; do
    case "$1" in
        --session-id|--resume) session=$2; shift 2;;
        --max-turns|--max-budget-usd) shift 2;;
        -p) script=$2; shift 2;;
        *) shift;;
    esac
done
project=$(pwd -P | sed 's/[^A-Za-z0-9]/-/g')
mkdir -p "$HOME/.claude/projects/$project"
file="$HOME/.claude/projects/$project/$session.jsonl"
say() {
    head="\"message\":{\"id\":\"$RUN-$1\",\"model\":\"claude-sonnet-5\",\"content\":[$2],"
    head="$head\"usage\":{\"input_tokens\":1000,\"output_tokens\":"
    ids="\"requestId\":\"q$RUN-$1\",\"sessionId\":\"$session\""
    echo "{\"type\":\"assistant\",$ids,$head$3}}}" >>"$file"
    echo "{\"type\":\"assistant\",\"session_id\":\"$session\",${head}1}}}"
}
turn() { say "$1" '{"type":"text","text":"I think"}' 100; }
tool() { say "$1" "{\"type\":\"tool_use\",\"id\":\"t$1\",\"name\":\"Bash\",\"input\":{}}" 100; }
RUN=$$
head="\"type\":\"system\",\"subtype\":\"init\",\"model\":\"claude-sonnet-5\""
echo "{$head,\"session_id\":\"$session\"}"
eval "$script"
"#;

/// A home with the scripted client in its path, and an own HOME for the agent.
pub(super) fn home() -> Home {
    let mut home = Home::new();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("it can be made");
    let script = home.path().join("claude");
    fs::write(&script, CLIENT).expect("it can be written");
    make_program(&script, &bin.join("claude"));
    let path = std::env::var("PATH").unwrap_or_default();
    let (bin, own) = (bin.to_string_lossy().into_owned(), home.path().join("agent"));
    home.set("PATH", &format!("{bin}:{path}"));
    home.set("HOME", &own.to_string_lossy());
    home
}

/// Some of a script: so many responses of a kind, with numbers from `first` on.
pub(super) fn responses(kind: &str, first: u32, count: u32) -> String {
    let last = first + count - 1;
    format!("for n in $(seq {first} {last}); do {kind} $n; done")
}

pub(super) fn transcript(home: &Home, session: &str) -> PathBuf {
    let work = fs::canonicalize(home.work()).expect("it is there");
    let dash = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let project: String = work.to_string_lossy().chars().map(dash).collect();
    home.path().join("agent/.claude/projects").join(project).join(format!("{session}.jsonl"))
}

pub(super) fn over(home: &Home, run: &str) -> Value {
    until("the run is over", || {
        let shown = home.show(run);
        (shown["state"] == "dead").then_some(shown)
    })
}

#[test]
fn narration_is_free_and_the_tenth_tool_turn_stops() {
    let home = home();
    let (talk, few) = (responses("turn", 1, 30), responses("tool", 31, 5));
    let script = format!("{talk}; {few}; sleep 0.3; exit 4");
    let said = home.kennel(&["run", "--max-tool-turns", "10", "--", "claude", "-p", &script]);
    assert_eq!(said.code, 4, "{said:?}");
    let run = home.all_runs().remove(0);
    assert_eq!(run["usage"]["turns"], 35, "{run}");
    assert_eq!(run["usage"]["tool_turns"], 5, "{run}");

    // Seen at eight, before it is seen at ten.
    let (eight, two) = (responses("tool", 31, 8), responses("tool", 39, 2));
    let gate = home.path().join("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    let script = format!("{talk}; {eight}; {wait}; {two}; sleep 1000");
    let run = home.start(&["--max-turns", "10", "--", "claude", "-p", &script]);
    until("it is warned of", || {
        let (_, page) = home.ask("GET", "/v1/events", "");
        let events = page["events"].as_array()?.iter().any(|event| event["kind"] == "warned");
        events.then_some(())
    });
    fs::write(&gate, "").expect("it can be written");
    assert_eq!(home.kennel(&["wait", &run]).code, 124);
    let run = home.show(&run);
    assert_eq!(run["end"]["limit"]["kind"], "max_turns", "{run}");
    let (_, page) = home.ask("GET", "/v1/events", "");
    let events = page["events"].as_array().expect("a list");
    let warned: Vec<&Value> = events.iter().filter(|event| event["kind"] == "warned").collect();
    assert_eq!(warned.len(), 1, "once, at 80 %: {warned:?}");
    assert_eq!(warned[0]["limit"]["kind"], "max_turns", "{warned:?}");
    assert_eq!(run["end"]["limit"]["used"], 10.0, "{run}");
    assert_eq!(run["usage"]["turns"], 40, "{run}");
    home.check();
}

#[test]
fn money_is_counted_from_the_transcript_and_binds_while_the_daemon_is_dead() {
    let home = home();
    // One response is 1000 in and 100 out: 1000 * 2 + 100 * 10 = 3000 millionths of a dollar.
    let gate = home.path().join("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    let script = format!("turn 1; turn 2; {wait}; {}; sleep 1000", responses("turn", 3, 8));
    let run = home.start(&["--max-budget-usd", "0.0295", "--", "claude", "-p", &script]);
    let early = until("two are counted", || {
        let shown = home.show(&run);
        (shown["usage"]["cost_usd"].as_f64() == Some(0.006)).then_some(shown)
    });
    assert!(early["usage"]["cost_basis"].as_str().is_some_and(|b| b.contains("prices of")));
    home.kill_daemon();
    fs::write(&gate, "").expect("it can be written");
    let record = home.run_dir(&run).join("record");
    until("its keeper ends it alone", || {
        fs::read_to_string(&record).ok().filter(|text| text.contains("\"ended\""))
    });
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "max_budget_usd", "{shown}");
    let used = shown["end"]["limit"]["used"].as_f64().expect("a number");
    assert!((used - 0.03).abs() < 1e-9, "{shown}");
    assert_eq!(shown["usage"]["cost_usd"], shown["end"]["limit"]["used"], "{shown}");
    home.check();
}

#[test]
fn the_clients_own_limits_are_passed_looser_and_the_users_are_left_alone() {
    let home = home();
    let told = |ours: &[&str], theirs: &[&str]| {
        let script = r"tr '\0' '\n' </proc/$$/cmdline";
        let args = [&["run"], ours, &["--", "claude"], theirs, &["-p", script]].concat();
        home.ok(&args)
    };
    let ours = ["--max-turns", "10", "--max-budget-usd", "2"];
    let words = told(&ours, &[]);
    // Four for each that asks for a tool, and fifty more; half as much money again.
    assert!(words.contains("--max-turns\n90\n--max-budget-usd\n3\n"), "{words}");
    assert!(words.contains("--session-id\n"), "{words}");
    let words = told(&ours, &["--max-turns", "7"]);
    assert!(words.contains("--max-turns\n7\n") && !words.contains("90"), "{words}");
    let words = told(&["--wall", "1h"], &[]);
    assert!(!words.contains("--max-") && !words.contains("--session-id"), "{words}");
    home.check();
}

#[test]
fn prices_of_the_users_own_come_first_and_broken_ones_are_refused() {
    let home = home();
    let file = home.path().join("config/prices.json");
    fs::create_dir(home.path().join("config")).expect("it can be made");
    fs::write(&file, r#"{"claude-sonnet-5": {"in": 20, "out": 100}}"#).expect("it can be written");
    home.ok(&["run", "--", "claude", "--session-id", "own-prices", "-p", "turn 1"]);
    let run = home.all_runs().remove(0);
    assert_eq!(run["usage"]["cost_usd"], 0.03, "ten times as dear: {run}");
    fs::write(&file, "{").expect("it can be written");
    let said = home.kennel(&["run", "--max-budget-usd", "1", "--", "claude", "-p", "turn 1"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("prices.json"), "{said:?}");
    home.ok(&["run", "--", "claude", "--session-id", "no-prices", "-p", "turn 1"]);
    home.check();
}

#[test]
fn a_resumed_session_is_charged_for_this_run_alone() {
    let home = home();
    let session = "11111111-2222-4333-8444-555555555555";
    let script = responses("tool", 1, 8);
    let first =
        ["run", "--slot", "s1:coder", "--", "claude", "--session-id", session, "-p", &script];
    home.ok(&first);
    assert!(transcript(&home, session).exists());
    let script = format!("{}; sleep 0.3; exit 5", responses("tool", 9, 3));
    let limited = ["run", "--slot", "s1:qa", "--max-tool-turns", "5"];
    let args = [&limited[..], &["--", "claude", "--resume", session, "-p", &script]].concat();
    let said = home.kennel(&args);
    assert_eq!(said.code, 5, "{said:?}");
    let run = home.all_runs().remove(0);
    assert_eq!(run["usage"]["tool_turns"], 3, "{run}");
    assert_eq!(run["usage"]["cost_usd"], 0.009, "{run}");
    // Eight of the first run and three of this one, and one that nobody can count.
    home.ok(&["run", "--", "true"]);
    for (by, key) in [("run", run["id"].as_str()), ("agent", Some("claude"))] {
        let report = home.json(&["usage", "--by", by]);
        let lines = report["lines"].as_array().expect("a list");
        assert!(lines.iter().any(|line| line["key"].as_str() == key), "{report}");
        assert_eq!(report["total"]["tool_turns"], 11, "{report}");
        assert_eq!(report["total"]["uncounted"], 1, "{report}");
    }
    let report = home.json(&["usage", "--by", "story"]);
    let lines = report["lines"].as_array().expect("a list");
    let keys: Vec<_> = lines.iter().map(|l| (l["key"].as_str(), l["tool_turns"].clone())).collect();
    assert_eq!(keys, [(Some("none"), 0.into()), (Some("s1"), 11.into())], "{report}");
    let report = home.json(&["usage", "--by", "model"]);
    let model = report["lines"]
        .as_array()
        .and_then(|lines| lines.iter().find(|line| line["key"] == "claude-sonnet-5").cloned());
    let model = model.expect("it is there");
    assert_eq!((&model["runs"], &model["tokens"]["output"]), (&2.into(), &1100.into()), "{model}");
    assert!(home.ok(&["usage", "--by", "day"]).contains("total"));
    let unknown = home.kennel(&["run", "--max-tokens", "5", "--", "claude", "--continue"]);
    assert_eq!(unknown.code, 125, "{unknown:?}");
    assert!(unknown.err.contains("name the session"), "{unknown:?}");
    home.check();
}

#[test]
fn an_agent_that_stays_after_its_result_is_stopped_and_where_it_stands_is_told() {
    let home = home();
    let result = r#"echo '{"type":"result","subtype":"success","is_error":false,"result":"x"}'"#;
    let script = format!("tool 1; {result}; sleep 1000");
    let args = ["--finish", "300ms", "--max-turns", "5", "--", "claude", "-p", &script];
    let run = home.start(&args);
    let report = until("it is counted", || {
        let report = home.json(&["limits", &run]);
        let turns = report["limits"].as_array()?.iter().find(|l| l["kind"] == "max_turns")?.clone();
        (turns["used"] == 1.0).then_some(turns)
    });
    assert_eq!(report["max"], 5.0, "{report}");
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "finish", "{shown}");
    home.check();
}
