//! Configuration through the command: whose limits bind, who is trusted with what, and what counts
//! while a file is broken or gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, Said, make_program};

/// An agent that tells its arguments and one variable, and stays.
const STAYS: &str = r#"["sh", "-c", "echo \"$1\" \"$MARK\"; exec sleep 1000", "sh"]"#;

fn agent(name: &str, more: &str) -> String {
    format!("[[agent]]\nname = \"{name}\"\ncommand = {STAYS}\n{more}\n")
}

/// A repository beside the others of a test, with this file.
fn repository(home: &Home, name: &str, text: &str) -> PathBuf {
    let dir = home.path().join(name);
    fs::create_dir_all(dir.join("deep/er")).expect("it can be made");
    write(&dir.join("kennel.toml"), text);
    dir
}

fn write(file: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(file.parent().expect("it is in a directory")).expect("it can be made");
    fs::write(file, text).expect("it can be written");
}

fn user_file(home: &Home) -> PathBuf {
    home.path().join("config/config.toml")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

/// The error a command was refused with.
fn error(said: &Said) -> Value {
    let line = said.err.lines().last().unwrap_or_default();
    let body: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    body["error"].clone()
}

/// Asks for a run that has to be refused, and gives the code and the sentence.
#[track_caller]
fn refused(home: &Home, args: &[&str]) -> (String, String) {
    let mut all = vec!["--json", "run", "-d"];
    all.extend(args);
    let said = home.kennel(&all);
    assert_eq!(said.code, 125, "{said:?}");
    let error = error(&said);
    let part = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    (part("code"), format!("{} ({})", part("message"), part("hint")))
}

fn standing(home: &Home, run: &str, kind: &str) -> Value {
    let report = home.json(&["limits", run]);
    let limits = report["limits"].as_array().cloned().unwrap_or_default();
    limits.into_iter().find(|limit| limit["kind"] == kind).unwrap_or(Value::Null)
}

#[test]
fn an_agent_is_started_by_name_with_all_that_its_profile_says() {
    let mut home = Home::new();
    home.set("MARK", "outer");
    let more = "prompt = \"first\"\ngrace = \"1s\"\ngentle_signal = \"USR1\"\nwall = \"1h\"\n\
                env = { MARK = \"profile\" }\nidle = \"30m\"";
    let dir = repository(&home, "repo", &agent("tester", more));
    home.ok(&["trust", text(&dir)]);
    let deep = dir.join("deep/er");
    let run = home.start(&["--agent", "tester", "-C", text(&deep), "--", "then", "that"]);
    let shown = home.show(&run);
    assert_eq!((&shown["slot"], &shown["agent"]), (&"tester".into(), &"tester".into()), "{shown}");
    assert_eq!(shown["grace_ms"], 1000, "{shown}");
    assert_eq!(shown["cwd"], text(&deep), "{shown}");
    assert!(shown["agent_file"].as_str().expect("text").ends_with("repo/kennel.toml"), "{shown}");
    assert_eq!(shown["command"][4], "first\n\nthen that", "{shown}");
    until("it has told", || {
        let told = home.ok(&["logs", &run]);
        (told == "first\n\nthen that profile").then_some(())
    });
    let wall = standing(&home, &run, "wall");
    assert!(wall["from"].as_str().expect("text").contains("agent tester in "), "{wall}");
    let table = home.ok(&["ps"]);
    let row = table.lines().find(|line| line.contains(&run)).expect("it is listed");
    assert!(row.split_whitespace().any(|word| word == "tester"), "{table}");
    assert!(home.ok(&["show", &run]).contains("tester, of "));
    let (code, words) = refused(&home, &["--agent", "tester", "-C", text(&dir)]);
    assert_eq!(code, "slot_taken", "{words}");
    // Its own signal ends it: nothing else about USR1 does.
    home.ok(&["stop", &run]);
    assert_eq!(home.show(&run)["end"]["status"]["signaled"], 10);
    // A variable that the caller says comes after the profile's.
    let run = home.start(&["--agent", "tester", "-C", text(&dir), "--env", "MARK=flag"]);
    until("it has told", || (home.ok(&["logs", &run]) == "first flag").then_some(()));
    let usage = home.json(&["usage", "--by", "agent"]);
    assert_eq!(usage["lines"][0]["key"], "tester", "{usage}");
    assert_eq!(usage["lines"][0]["runs"], 2, "{usage}");
    home.check();
}

#[test]
fn a_callers_flag_lowers_and_never_raises() {
    let home = Home::new();
    let dir = repository(&home, "repo", &agent("a", "wall = \"1h\"\npids = 50\ngrace = \"100ms\""));
    home.ok(&["trust", text(&dir)]);
    let at = ["--agent", "a", "-C", text(&dir)];
    let run = home.start(&[&at[..], &["--wall", "30m"]].concat());
    let wall = standing(&home, &run, "wall");
    assert_eq!((&wall["max"], &wall["from"]), (&1800.0.into(), &"the caller".into()), "{wall}");
    assert_eq!(standing(&home, &run, "pids")["max"], 50.0);
    let (code, words) = refused(&home, &[&at[..], &["--slot", "b", "--wall", "61m"]].concat());
    assert_eq!(code, "limit_above_cap", "{words}");
    assert!(words.contains("limit wall may be 1h at most, by agent a in "), "{words}");
    assert!(words.contains("61m was asked for"), "{words}");
    // A limit the profile leaves open is the caller's to set.
    let run = home.start(&[&at[..], &["--slot", "c", "--output", "1M"]].concat());
    assert_eq!(standing(&home, &run, "output")["from"], "the caller");
    // And the profile's own binds.
    write(&dir.join("kennel.toml"), agent("a", "wall = \"200ms\"\ngrace = \"100ms\""));
    home.ok(&["trust", text(&dir)]);
    let said = home.kennel(&["run", "--agent", "a", "--slot", "d", "-C", text(&dir)]);
    assert_eq!(said.code, 124, "{said:?}");
    assert!(said.err.contains("limit wall reached"), "{said:?}");
    home.check();
}

#[test]
fn the_users_cap_is_above_every_repository_every_caller_and_every_command() {
    let home = Home::new();
    write(&user_file(&home), "[limits]\nwall = \"10m\"\nmax_budget_usd = 3\n");
    let dir = repository(&home, "repo", "");
    write(&dir.join("stay.sh"), "#!/bin/sh\nexec sleep 1000\n");
    make_program(&dir.join("stay.sh"), &dir.join("stay"));
    let agent = |more: &str| format!("[[agent]]\nname = \"a\"\ncommand = [\"./stay\"]\n{more}");
    let more = "wall = \"1h\"\npids = 50\nformat = \"claude\"\nmax_budget_usd = 2.5\nmax_turns = 9";
    write(&dir.join("kennel.toml"), agent(more));
    home.ok(&["trust", text(&dir)]);
    let said = home.kennel(&["--json", "run", "-d", "--agent", "a", "-C", text(&dir)]);
    assert_eq!(said.code, 0, "{said:?}");
    let run: Value = serde_json::from_str(&said.out).expect("it is JSON");
    let id = run["id"].as_str().expect("text").to_owned();
    let note = run["notes"][0].as_str().expect("it is told").to_owned();
    assert!(note.contains("limit wall of agent a in ") && note.contains("is 1h"), "{note}");
    assert!(note.contains("was lowered to 10m, by the cap in "), "{note}");
    assert!(said.err.contains(&note), "{said:?}");
    let wall = standing(&home, &id, "wall");
    assert_eq!(wall["max"], 600.0, "{wall}");
    assert!(wall["from"].as_str().expect("text").contains("the cap in "), "{wall}");
    assert_eq!(standing(&home, &id, "max_budget_usd")["max"], 2.5);
    assert_eq!(standing(&home, &id, "max_turns")["max"], 9.0);
    home.ok(&["kill", &id]);
    // A caller cannot pass it, with an agent or with a command.
    let at = ["--agent", "a", "-C", text(&dir), "--wall", "11m"];
    let (code, words) = refused(&home, &at);
    assert_eq!(code, "limit_above_cap", "{words}");
    assert!(words.contains("by the cap in "), "{words}");
    let (code, words) = refused(&home, &["--wall", "11m", "--", "true"]);
    assert_eq!(code, "limit_above_cap", "{words}");
    // A command of one's own has it too; what nobody could count of it is left out.
    let run = home.start(&["--grace", "100ms", "--", "sleep", "1000"]);
    assert_eq!(standing(&home, &run, "wall")["max"], 600.0);
    assert_eq!(standing(&home, &run, "max_budget_usd"), Value::Null);
    // Not so an agent that nobody could count: that would be a way around the cap.
    write(&dir.join("kennel.toml"), agent("format = \"none\""));
    home.ok(&["trust", text(&dir)]);
    let (code, words) = refused(&home, &["--agent", "a", "-C", text(&dir)]);
    assert_eq!(code, "limit_not_enforceable", "{words}");
    home.check();
}

#[test]
fn nothing_of_a_file_runs_before_it_is_trusted_and_a_changed_one_asks_again() {
    let home = Home::new();
    let ran = home.path().join("ran");
    let file = |word: &str| {
        let command = format!("[\"sh\", \"-c\", \"echo {word} >>{}\"]", text(&ran));
        format!("[[agent]]\nname = \"a\"\ncommand = {command}\n[project]\nsetup = [[\"make\"]]\n")
    };
    let dir = repository(&home, "repo", &file("one"));
    let at = ["--agent", "a", "-C", text(&dir)];
    let (code, words) = refused(&home, &at);
    assert_eq!(code, "config_untrusted", "{words}");
    assert!(words.contains("nobody has trusted it") && words.contains("kennel trust"), "{words}");
    let shown = home.ok(&["trust", text(&dir)]);
    assert!(shown.contains("agent a: sh -c 'echo one") && shown.contains("make"), "{shown}");
    home.ok(&[&["run"][..], &at].concat());
    let list = home.json(&["trust", "--list"]);
    assert_eq!(list["file"], format!("{}/kennel.toml", text(&dir)), "{list}");
    assert_eq!(list["sha256"].as_str().map(str::len), Some(64), "{list}");
    // As long as before, and in the same moment if the disk is fast.
    write(&dir.join("kennel.toml"), file("two"));
    let (code, words) = refused(&home, &at);
    assert_eq!(code, "config_untrusted", "{words}");
    assert!(words.contains("has changed since it was trusted"), "{words}");
    home.kill_daemon();
    assert_eq!(refused(&home, &at).0, "config_untrusted");
    // The old content is trusted still: it is what was looked at.
    write(&dir.join("kennel.toml"), file("one"));
    home.ok(&[&["run"][..], &at].concat());
    home.ok(&["trust", "--revoke", text(&dir)]);
    assert_eq!(refused(&home, &at).0, "config_untrusted");
    assert_eq!(home.kennel(&["trust", "--revoke", text(&dir)]).code, 3);
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "one\none\n");
    // What does not read is not trusted; nor is anything if nobody can say what was.
    write(&dir.join("kennel.toml"), "[[agent]]\nnaem = \"a\"\n");
    let said = home.kennel(&["trust", text(&dir)]);
    assert_eq!(said.code, 4, "{said:?}");
    assert!(said.err.contains("kennel.toml:2: agent.naem: "), "{said:?}");
    assert!(said.err.contains("is name meant?"), "{said:?}");
    write(&dir.join("kennel.toml"), file("one"));
    write(&home.state().join("trust.json"), "{\"v\":1,\"trus");
    let (code, words) = refused(&home, &at);
    assert_eq!(code, "trust_unreadable", "{words}");
    assert_eq!(home.kennel(&["trust", text(&dir)]).code, 1);
    fs::remove_file(home.state().join("trust.json")).expect("it is there");
    assert_eq!(refused(&home, &at).0, "config_untrusted");
    home.check();
}

#[test]
fn trust_that_is_given_at_the_same_time_is_given_to_all() {
    const MANY: usize = 8;
    let home = Home::new();
    let dirs: Vec<PathBuf> =
        (0..MANY).map(|n| repository(&home, &format!("r{n}"), &agent("a", ""))).collect();
    let given: Vec<_> = dirs
        .iter()
        .map(|dir| home.command(&["trust", text(dir)]).stdout(Stdio::null()).spawn())
        .collect();
    for child in given {
        assert!(child.expect("it runs").wait().expect("it is ours").success());
    }
    let list = home.ok(&["trust", "--list"]);
    assert_eq!(list.lines().count(), MANY, "{list}");
    assert!(dirs.iter().all(|dir| list.contains(&format!("{}/kennel.toml", text(dir)))), "{list}");
}

#[test]
fn a_file_that_breaks_or_goes_changes_no_run_and_what_it_said_last_counts() {
    let home = Home::new();
    write(&user_file(&home), "[limits]\nwall = \"10m\"\n");
    let short = agent("short", "wall = \"3s\"\ngrace = \"100ms\"");
    let file = agent("a", "pids = 50\ngrace = \"100ms\"") + &short;
    let dir = repository(&home, "repo", &file);
    home.ok(&["trust", text(&dir)]);
    let short = home.start(&["--agent", "short", "-C", text(&dir)]);
    let start = |slot: &str| {
        let args = ["run", "-d", "--agent", "a", "--slot", slot, "-C", text(&dir)];
        let said = home.kennel(&args);
        assert_eq!(said.code, 0, "{said:?}");
        (said.out.trim().to_owned(), said.err)
    };
    let (first, _) = start("s0");
    let garbage: &[u8] = b"\x00\xff\xfe garbage \n[[[";
    let broken: [(&[u8], &str); 3] = [
        (b"[limits]\nwal = \"1h\"\n", "limits.wal"),
        (garbage, "UTF-8"),
        (b"[limits", "config.toml:1"),
    ];
    for (n, (bytes, word)) in broken.iter().enumerate() {
        write(&user_file(&home), bytes);
        let (run, said) = start(&format!("u{n}"));
        assert!(said.contains(word) && said.contains("what it said last counts"), "{said}");
        assert_eq!(standing(&home, &run, "wall")["max"], 600.0);
        let doctor = home.kennel(&["doctor"]);
        assert_eq!(doctor.code, 1, "{doctor:?}");
        assert!(doctor.out.contains("config") && doctor.out.contains(word), "{doctor:?}");
    }
    fs::remove_file(user_file(&home)).expect("it is there");
    let (run, said) = start("gone");
    assert!(said.contains("the file is gone"), "{said}");
    assert_eq!(standing(&home, &run, "wall")["max"], 600.0);
    // A repository's: while it does not read, the last good one that was trusted counts.
    write(&user_file(&home), "[limits]\nwall = \"20m\"\n");
    write(&dir.join("kennel.toml"), "[[agent]\nname = ");
    let (run, said) = start("r0");
    assert!(said.contains("kennel.toml:1") && said.contains("what it said last counts"), "{said}");
    assert_eq!(standing(&home, &run, "pids")["max"], 50.0);
    assert_eq!(standing(&home, &run, "wall")["max"], 1200.0, "the repaired file counts at once");
    // The first run has what it was started with.
    assert_eq!(standing(&home, &first, "wall")["max"], 600.0);
    assert_eq!(home.show(&first)["state"], "running");
    // Gone, there is no such agent; a daemon that never saw a good one starts nothing by it.
    fs::remove_file(dir.join("kennel.toml")).expect("it is there");
    assert_eq!(refused(&home, &["--agent", "a", "-C", text(&dir)]).0, "agent_not_found");
    home.kill_daemon();
    write(&user_file(&home), garbage);
    let (code, words) = refused(&home, &["--", "true"]);
    assert_eq!(code, "config_invalid", "{words}");
    assert_eq!(standing(&home, &first, "wall")["max"], 600.0);
    let ended = until("what was started under a limit ends by it", || {
        let shown = home.show(&short);
        (shown["state"] == "dead").then_some(shown)
    });
    assert_eq!(ended["end"]["limit"]["kind"], "wall", "{ended}");
    write(&user_file(&home), "");
    home.check();
}

#[test]
fn two_repositories_have_an_agent_of_the_same_name_and_the_user_a_third() {
    let home = Home::new();
    write(&user_file(&home), agent("a", "pids = 33") + &agent("own", "pids = 34"));
    let one = repository(&home, "one", &agent("a", "pids = 11"));
    let two = repository(&home, "two", &agent("a", "pids = 22"));
    home.ok(&["trust", text(&one)]);
    home.ok(&["trust", text(&two)]);
    let pids = |args: &[&str]| {
        let run = home.start(&[args, &["--grace", "100ms"]].concat());
        standing(&home, &run, "pids")["max"].as_f64()
    };
    assert_eq!(pids(&["--agent", "a", "-C", text(&one)]), Some(11.0));
    assert_eq!(pids(&["--agent", "a", "-C", text(&two), "--slot", "two"]), Some(22.0));
    assert_eq!(pids(&["--agent", "a", "--slot", "three"]), Some(33.0));
    // The user's own need no trust, also in a repository that is not trusted and has none of them.
    home.ok(&["trust", "--revoke", text(&two)]);
    assert_eq!(pids(&["--agent", "own", "-C", text(&two)]), Some(34.0));
    let (code, words) = refused(&home, &["--agent", "a", "-C", text(&two), "--slot", "four"]);
    assert_eq!(code, "config_untrusted", "{words}");
    // Above the top of a repository nothing is looked for.
    fs::create_dir(two.join("deep/.git")).expect("it can be made");
    assert_eq!(
        pids(&["--agent", "a", "-C", text(&two.join("deep/er")), "--slot", "x"]),
        Some(33.0)
    );
    // A link that leads nowhere is no file.
    let link = home.work().join("kennel.toml");
    std::os::unix::fs::symlink(home.path().join("nowhere"), &link).expect("it can be made");
    assert_eq!(pids(&["--agent", "own", "--slot", "y"]), Some(34.0));
    let (code, words) = refused(&home, &["--agent", "onw", "-C", text(&one)]);
    assert_eq!(code, "agent_not_found", "{words}");
    assert!(words.contains("is own meant?"), "{words}");
    home.check();
}

#[test]
fn a_request_told_again_is_the_same_run_whatever_became_of_its_file() {
    let home = Home::new();
    let dir = repository(&home, "repo", &agent("a", "grace = \"100ms\""));
    home.ok(&["trust", text(&dir)]);
    home.ok(&["ps"]);
    let body = |prompt: &str| {
        let path = std::env::var("PATH").expect("there is one");
        serde_json::json!({ "id": "same", "agent": "a", "prompt": prompt, "cwd": text(&dir),
            "env": [["PATH", path]] })
        .to_string()
    };
    let (status, run) = home.ask("POST", "/v1/runs", &body("x"));
    assert_eq!(status, 201, "{run}");
    fs::remove_file(dir.join("kennel.toml")).expect("it is there");
    let (status, again) = home.ask("POST", "/v1/runs", &body("x"));
    assert_eq!((status, &again["leader"]), (201, &run["leader"]), "{again}");
    write(&dir.join("kennel.toml"), agent("a", "grace = \"100ms\""));
    let (status, other) = home.ask("POST", "/v1/runs", &body("y"));
    assert_eq!((status, &other["error"]["code"]), (409, &"id_taken".into()), "{other}");
    for (body, words) in [
        (r#"{"agent":"a","command":["x"],"cwd":"/","env":[]}"#, "its own command"),
        (r#"{"command":["x"],"prompt":"p","cwd":"/","env":[]}"#, "for an agent"),
        (r#"{"cwd":"/","env":[]}"#, "no command"),
    ] {
        let (status, answer) = home.ask("POST", "/v1/runs", body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"]["message"].as_str().expect("text").contains(words), "{answer}");
    }
    home.check();
}

#[test]
fn a_client_is_given_a_session_and_its_stream_is_counted() {
    let home = Home::new();
    let client = "#!/bin/sh\nprintf '%s\\n' \"$@\" >told\n\
        echo '{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"s\",\"model\":\"m\"}'\n";
    let dir = repository(&home, "repo", "");
    write(&dir.join("client.sh"), client);
    make_program(&dir.join("client.sh"), &dir.join("deep/claude"));
    let text_of = |more: &str| {
        format!("[[agent]]\nname = \"c\"\nkind = \"claude\"\nprogram = \"deep/claude\"\n{more}")
    };
    write(&dir.join("kennel.toml"), text_of("model = \"sonnet\"\nmax_tool_turns = 5\n"));
    home.ok(&["trust", text(&dir)]);
    home.ok(&["run", "--agent", "c", "-C", text(&dir), "--", "--do", "it"]);
    let told = fs::read_to_string(dir.join("told")).expect("it ran");
    let words: Vec<&str> = told.lines().collect();
    assert_eq!(words.iter().filter(|word| **word == "--session-id").count(), 1, "{told}");
    assert!(words.contains(&"--max-turns"), "{told}");
    assert!(told.ends_with("stream-json\n--verbose\n--model\nsonnet\n--\n--do it\n"), "{told}");
    assert!(home.all_runs()[0]["usage"].is_object(), "nobody counts it");
    let id = "01a1e2e8-6cb0-7251-a7c7-b2989b5c95fc";
    home.ok(&["run", "--agent", "c", "--resume", id, "-C", text(&dir), "--", "on"]);
    let told = fs::read_to_string(dir.join("told")).expect("it ran");
    assert!(told.ends_with(&format!("--resume\n{id}\n--\non\n")), "{told}");
    assert!(!told.contains("--session-id"), "{told}");
    let (code, words) = refused(&home, &["--agent", "c", "-C", text(&dir)]);
    assert!(code == "bad_request" && words.contains("no prompt"), "{code}: {words}");
    home.check();
}

#[test]
fn as_many_of_an_agent_live_as_its_profile_says_however_many_are_asked_for_at_once() {
    const MOST: usize = 3;
    const ASKED: usize = 8;
    let home = Home::new();
    let more = format!("max_instances = {MOST}\ngrace = \"100ms\"");
    let dir = repository(&home, "repo", &agent("a", &more));
    home.ok(&["trust", text(&dir)]);
    home.ok(&["ps"]);
    let mut asked = Vec::new();
    for n in 0..ASKED {
        let own = format!("own-{n}");
        let mut args = vec!["--json", "run", "-d", "--agent", "a", "-C", text(&dir)];
        // Half of them in slots of their own: that is no way around it.
        if n % 2 == 0 {
            args.extend(["--slot", &own]);
        }
        asked.push(home.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn());
    }
    let mut codes = Vec::new();
    for child in asked {
        let said = Said::of(&child.expect("it runs").wait_with_output().expect("it is ours"));
        codes.push(if said.code == 0 { "started".into() } else { error(&said)["code"].clone() });
    }
    let started = codes.iter().filter(|code| **code == "started").count();
    assert_eq!(started, MOST, "{codes:?}");
    assert!(codes.iter().all(|code| code == "started" || code == "agent_busy"), "{codes:?}");
    // Room that is given back is found again, in the first slot that is free.
    for run in home.all_runs().iter().filter(|run| run["state"] != "dead") {
        home.ok(&["kill", run["id"].as_str().expect("text")]);
    }
    for slot in ["a", "a.2", "a.3"] {
        let run = home.start(&["--agent", "a", "-C", text(&dir)]);
        assert_eq!(home.show(&run)["slot"], slot);
    }
    home.check();
}

#[test]
fn init_writes_what_check_approves_and_never_over_anything() {
    let home = Home::new();
    assert_eq!(home.kennel(&["config", "check"]).code, 0, "no file is no problem");
    let file = home.ok(&["init"]);
    assert_eq!(file, "./kennel.toml");
    home.ok(&["init", "--user"]);
    assert!(user_file(&home).exists());
    let report = home.json(&["config", "check"]);
    assert_eq!(report["files"][0]["state"], "ok", "{report}");
    assert_eq!(report["files"][1]["trusted"], false, "{report}");
    assert_eq!(report["files"][1]["agents"][0], "coder", "{report}");
    let path = home.work().join("kennel.toml");
    write(&path, "[[agent]]\nname = \"a\"\ncommand = [\"x\"]\nwal = \"1h\"\npids = \"x\"\n");
    for args in [&["init"][..], &["init", "--user"]] {
        assert_eq!(home.kennel(args).code, 4);
    }
    assert!(fs::read_to_string(&path).expect("it is there").contains("wal"), "it is overwritten");
    let said = home.kennel(&["config", "check"]);
    assert_eq!(said.code, 1, "{said:?}");
    for words in ["kennel.toml:4: agent.wal: ", "is wall meant?", "kennel.toml:5: agent.pids: "] {
        assert!(said.out.contains(words), "{said:?}");
    }
    let said = home.kennel(&["--json", "config", "check"]);
    let report: Value = serde_json::from_str(&said.out).expect("it is JSON");
    let problem = &report["files"][1]["problems"][0];
    assert_eq!((&problem["line"], &problem["key"]), (&4.into(), &"agent.wal".into()), "{report}");
    // A pipe in its place is not waited for.
    fs::remove_file(&path).expect("it is there");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).expect("it can be made");
    assert_eq!(home.kennel(&["config", "check"]).code, 1);
    assert!(!home.state().join("socket").exists(), "a daemon was started");
}
