//! Names, flags, requests and bytes that nobody expects: each is understood or refused with a
//! sentence and a stable code, and nothing of it reaches anybody it does not mean.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Stdio;

use kennel_tests::until;
use serde_json::{Value, json};

use super::home::{Home, Said};

/// Longer than any name may be.
const LONG_NAME: usize = 10_000;

/// Asks for a run of this id through the API.
fn post(home: &Home, id: &str, slot: Option<&str>, command: &[&str]) -> (u16, Value) {
    let mut body = json!({
        "id": id, "command": command, "cwd": home.work(), "env": [["PATH", "/usr/bin:/bin"]],
    });
    if let Some(slot) = slot {
        body["slot"] = slot.into();
    }
    home.ask("POST", "/v1/runs", &body.to_string())
}

#[track_caller]
fn error_of(said: &Said) -> Value {
    let line = said.err.lines().last().unwrap_or_default();
    let body: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {said:?}"));
    assert!(body["error"]["code"].is_string() && body["error"]["message"].is_string(), "{body}");
    body["error"].clone()
}

fn is_panic(said: &Said) -> bool {
    said.code == 101 || said.err.contains("panicked") || said.out.contains("panicked")
}

#[test]
fn a_run_is_found_by_every_unique_beginning_and_by_no_other() {
    let home = Home::new();
    home.ok(&["ps"]);
    for id in ["abc-1", "abc-2", "abd"] {
        assert_eq!(post(&home, id, None, &["true"]).0, 201);
    }
    for (name, meant) in [("abd", "abd"), ("abc-1", "abc-1"), ("abc-", ""), ("a", ""), ("abcd", "")]
    {
        let said = home.kennel(&["--json", "show", name]);
        if meant.is_empty() {
            assert_eq!(said.code, 3, "{name}: {said:?}");
            continue;
        }
        assert_eq!(said.code, 0, "{name}: {said:?}");
        assert_eq!(serde_json::from_str::<Value>(&said.out).expect("JSON")["id"], meant);
    }
    let error = error_of(&home.kennel(&["--json", "stop", "abc"]));
    assert_eq!(error["code"], "ambiguous_run", "{error}");
    let hint = error["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("abc-1") && hint.contains("abc-2") && !hint.contains("abd"), "{hint}");
    home.check();
}

#[test]
fn names_of_nobody_are_refused_by_every_command_whatever_is_in_them() {
    let home = Home::new();
    home.ok(&["ps"]);
    assert_eq!(post(&home, "known", None, &["true"]).0, 201);
    let long = "n".repeat(LONG_NAME);
    let wide = "\u{1f415}".repeat(LONG_NAME);
    let names = [
        "unknown",
        "%",
        "_",
        "known%",
        "..",
        ".",
        "../..",
        "a/b",
        "/",
        "/v1/daemon",
        "known/stop",
        " ",
        "known ",
        "\u{e9}",
        "\u{202e}",
        "?all=true",
        "#",
        "%00",
        "%2e%2e",
        "*",
        "'",
        "\"",
        "\t",
        "\u{10ffff}",
        "known\u{0301}",
        &long,
        &wide,
    ];
    for name in names {
        for command in ["show", "logs", "stop", "kill", "wait", "attach"] {
            let said = home.kennel(&["--json", command, "--", name]);
            let shown = &name[..name.char_indices().nth(20).map_or(name.len(), |(at, _)| at)];
            let expected = if matches!(command, "wait" | "attach") { 125 } else { 3 };
            assert_eq!(said.code, expected, "{command} {shown:?}: {said:?}");
            assert_eq!(error_of(&said)["code"], "run_not_found", "{command} {shown:?}: {said:?}");
        }
        let said = home.kennel(&["--json", "send", "--", name, "text"]);
        assert_eq!(said.code, 3, "{said:?}");
    }
    for command in ["show", "logs", "stop", "kill", "wait", "attach"] {
        let said = home.kennel(&["--json", command, ""]);
        assert_eq!(said.code, 2, "{command}: {said:?}");
        assert_eq!(error_of(&said)["code"], "usage");
        let bytes = [OsStr::new("--json"), OsStr::new(command), OsStr::from_bytes(b"\xff\xfe")];
        let said = home.kennel(&bytes);
        assert_eq!(said.code, 2, "{command}: {said:?}");
    }
    home.check();
}

#[test]
fn slots_may_have_odd_names_and_are_found_by_them() {
    let home = Home::new();
    let longest = "s".repeat(128);
    let odd = [
        "a/b",
        "../up",
        "50%",
        "with space",
        " ",
        "\u{e9}t\u{e9}",
        "\u{1f415}",
        "-dash",
        "%2F",
        "..",
        "a?b#c",
        "'\"`$(id)",
        &longest,
    ];
    for slot in odd {
        let run = home.start(&[&format!("--slot={slot}"), "--", "sleep", "1000"]);
        let shown = home.json(&["show", "--", slot]);
        assert_eq!((&shown["id"], &shown["slot"]), (&json!(run), &json!(slot)));
        let said = home.kennel(&["run", &format!("--slot={slot}"), "--", "true"]);
        assert_eq!(said.code, 125, "{slot:?}: {said:?}");
        let said = home.kennel(&["kill", "--", slot]);
        assert_eq!(said.code, 0, "{slot:?}: {said:?}");
    }
    for slot in ["", "tab\there", "line\nbreak", "bell\u{7}", &"s".repeat(129)] {
        let said = home.kennel(&["--json", "run", &format!("--slot={slot}"), "--", "true"]);
        assert_eq!(said.code, 125, "{slot:?}: {said:?}");
        let error = error_of(&said);
        assert!(error["message"].to_string().contains("slot"), "{error}");
    }
    // Nothing was made outside the place for it.
    let state: Vec<_> = fs::read_dir(home.state()).expect("it is there").flatten().collect();
    assert!(state.iter().all(|entry| entry.file_name() != "up"));
    home.check();
}

#[test]
fn a_slot_named_like_another_run_never_makes_a_stop_hit_the_wrong_one() {
    let home = Home::new();
    home.ok(&["ps"]);
    assert_eq!(post(&home, "older", None, &["sleep", "1000"]).0, 201);
    // Its own slot has its name; another run cannot have it.
    let said = home.kennel(&["--json", "run", "-d", "--slot", "older", "--", "true"]);
    assert_eq!((said.code, error_of(&said)["code"].clone()), (125, json!("slot_taken")));
    home.ok(&["kill", "older"]);
    // Free, it can: then the name means two.
    let newer = home.start(&["--slot", "older", "--", "sleep", "1000"]);
    for how in ["stop", "kill"] {
        let said = home.kennel(&["--json", how, "older"]);
        assert_eq!(said.code, 3, "{said:?}");
        let error = error_of(&said);
        assert_eq!(error["code"], "ambiguous_run");
        assert!(error["hint"].to_string().contains(&newer), "{error}");
        assert_eq!(home.show(&newer)["state"], "running");
    }
    assert_eq!(home.show("older")["state"], "dead", "an id is an id");
    // The slot of one run named like the beginning of another's id: whoever holds it is meant.
    assert_eq!(post(&home, "other", Some("old"), &["sleep", "1000"]).0, 201);
    assert_eq!(home.show("old")["id"], "other");
    // One that cannot be found keeps none of the others alive.
    let said = home.kennel(&["kill", "nobody", "old", &newer]);
    assert_eq!(said.code, 3, "{said:?}");
    for run in ["other", &newer] {
        assert_eq!(home.show(run)["state"], "dead", "{said:?}");
    }
    home.check();
}

/// Every flag that takes a value: the command with what else it needs, the flag, and good words
/// that its complaint holds.
const FLAGS: [(&[&str], &str); 13] = [
    (&["run"], "--grace"),
    (&["run"], "--on-exit"),
    (&["run"], "--env"),
    (&["ps"], "--limit"),
    (&["stop", "nobody"], "--grace"),
    (&["wait", "nobody"], "--timeout"),
    (&["down", "--stop-runs"], "--grace"),
    (&["down", "--stop-runs"], "--deadline"),
    (&["up"], "--listen"),
    (&["up"], "--max-runs"),
    (&["up"], "--keep-age"),
    (&["up"], "--keep-size"),
    (&["attach", "nobody"], "--detach-key"),
];

#[test]
fn hostile_values_of_flags_are_refused_by_name() {
    let home = Home::new();
    let hostile: Vec<OsString> = [
        "",
        "-1",
        "-0",
        "NaN",
        "inf",
        "1e999",
        "99999999999999999999999",
        "1.5",
        "0x10",
        "\u{665}s",
        "s",
        "ms",
        "--",
        "\u{1f415}",
        "\u{0}",
    ]
    .iter()
    .filter(|value| !value.contains('\0'))
    .map(OsString::from)
    .chain([OsString::from_vec(vec![0xff, 0xfe]), OsString::from("9".repeat(100_000))])
    .collect();
    for (command, flag) in FLAGS {
        for value in &hostile {
            let mut args: Vec<OsString> = vec!["--json".into()];
            args.extend(command.iter().map(OsString::from));
            let mut word = OsString::from(format!("{flag}="));
            word.push(value);
            args.push(word);
            if command[0] == "run" {
                args.extend(["--", "true"].map(OsString::from));
            }
            let said = home.kennel(&args);
            let what = format!("{command:?} {flag} {:.30}", value.to_string_lossy());
            assert!(!is_panic(&said), "{what}: {said:?}");
            assert_eq!(said.code, if command[0] == "run" { 125 } else { 2 }, "{what}: {said:?}");
            let error = error_of(&said);
            assert_eq!(error["code"], "usage", "{what}: {error}");
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.contains(flag), "{what} does not name it: {message:.300}");
        }
    }
    for args in [
        &["kill", "--pid=0"][..],
        &["kill", "--pid=-1"],
        &["kill", "--pid=4294967296"],
        &["kill", "--pid="],
        &["kill", "--pid=1", "name"],
        &["kill", "--tree", "name"],
        &["kill"],
        &["stop"],
        &["wait"],
        &["show"],
        &["down", "--grace", "1s"],
        &["ps", "--limit", "0"],
        &["ps", "--limit", "10001"],
        &["up", "--max-runs", "0"],
        &["completions", "tcsh"],
        &["dance"],
        &["--dance"],
        &[],
    ] {
        let said = home.kennel(&[&["--json"], args].concat());
        assert_eq!(said.code, 2, "{args:?}: {said:?}");
        assert_eq!(error_of(&said)["code"], "usage", "{args:?}");
    }
    for args in [
        &["--slot"][..],
        &["-C", "", "--", "true"],
        &["-C", "/nowhere/at/all", "--", "true"],
        &["-C", "/dev/null", "--", "true"],
        &["--worktree", "", "--", "true"],
        &["--worktree", "/nowhere/at/all", "--", "true"],
        &["-C", "/", "--worktree", "/", "--", "true"],
        &["--dance", "--", "true"],
        &["--", ""],
        &["--"],
        &[],
    ] {
        let said = home.kennel(&[&["--json", "run"], args].concat());
        assert_eq!(said.code, 125, "{args:?}: {said:?}");
        error_of(&said);
        assert!(!is_panic(&said), "{args:?}: {said:?}");
    }
    // A flag before the command is ours or nobody's; after it, its own, whatever it looks like.
    assert_eq!(home.ok(&["run", "echo", "-n", "--json", "--", "-x"]), "--json -- -x");
    assert_eq!(home.kennel(&["run", "--", "-x"]).code, 127);
    home.check();
}

#[test]
fn what_is_too_large_is_refused_in_words_and_the_daemon_stays_healthy() {
    let home = Home::new();
    home.ok(&["ps"]);
    let before = home.daemon().expect("it is up").identity().pid;
    // No kernel takes an argument of 10 MB, or a variable; nothing is kept of either.
    let large = "x".repeat(10 << 20);
    let (status, body) = post(&home, "large", Some("s"), &["echo", &large]);
    assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")));
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("argument 1 is too long: it has 10485760 bytes"), "{message:.300}");
    let request = json!({"command": ["true"], "cwd": "/", "env": [["BIG", large]]});
    let (status, body) = home.ask("POST", "/v1/runs", &request.to_string());
    assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")));
    assert!(body["error"]["message"].to_string().contains("variable BIG is too long"));
    assert_eq!(home.all_runs().len(), 0);
    // Many that are large together are refused by the kernel itself.
    let (each, mut many) = ("z".repeat(100_000), vec!["echo"]);
    many.extend(std::iter::repeat_n(each.as_str(), 100));
    let (status, body) = post(&home, "many", Some("s"), &many);
    assert_eq!(status, 422, "{:.300}", body.to_string());
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("list too long") && message.len() < 1000, "{message:.300}");
    assert_eq!(home.kennel(&["run", "--slot", "s", "--", "true"]).code, 0, "its slot is free");
    // A request of 20 MB is read to its end, so that its sender can read the answer.
    let (status, body) = home.ask("POST", "/v1/runs", &" ".repeat(20 << 20));
    assert_eq!((status, &body["error"]["code"]), (413, &json!("too_large")), "{body}");
    assert!(body["error"]["hint"].is_string(), "{body}");
    // One that does not say how large it is, too.
    let mut stream = home.connect();
    let head = "POST /v1/runs HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\
        transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it is taken");
    let piece = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    for _ in 0..20 {
        // It need not be taken to the end.
        if stream.write_all(piece.as_bytes()).is_err() {
            break;
        }
    }
    let _ = stream.write_all(b"0\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains(" 413 ") && answer.contains("\"too_large\""), "{answer:.300}");
    // The command line's own way there: a script with an argument the kernel still takes.
    let most = "y".repeat(100_000);
    assert_eq!(home.ok(&["run", "--", "echo", &most]), most);
    assert_eq!(home.daemon().expect("it is up").identity().pid, before);
    home.check();
}

#[test]
fn bytes_that_are_no_text_come_back_as_they_were() {
    let home = Home::new();
    let odd = OsStr::from_bytes(b"a\xff\xfe\x80b");
    let script = OsStr::new("printf %s \"$1\"; printf %s \"$ODD\" >&2");
    let mut variable = OsString::from("ODD=");
    variable.push(odd);
    let args = [
        OsStr::new("run"),
        OsStr::new("-d"),
        OsStr::new("--env"),
        &variable,
        OsStr::new("--"),
        OsStr::new("sh"),
        OsStr::new("-c"),
        script,
        OsStr::new("sh"),
        odd,
    ];
    let run = home.ok(&args);
    home.ok(&["wait", &run]);
    let logs = home.command(&["logs", &run]).output().expect("it can be run");
    assert_eq!((&logs.stdout[..], &logs.stderr[..]), (odd.as_bytes(), odd.as_bytes()));
    let bytes = json!(odd.as_bytes());
    assert_eq!(home.show(&run)["command"][4], bytes, "nothing of it is lost");
    for line in home.ok(&["--json", "logs", &run]).lines() {
        let line: Value = serde_json::from_str(line).expect("it is JSON");
        assert_eq!(line["data"], bytes, "{line}");
    }
    home.ok(&["ps", "-a"]);
    // In the foreground they pass through as they are.
    let mut all = home.command(&[
        OsStr::new("run"),
        OsStr::new("--"),
        OsStr::new("printf"),
        OsStr::new("%s"),
        odd,
    ]);
    let said = all.stderr(Stdio::null()).output().expect("it can be run");
    assert_eq!(said.stdout, odd.as_bytes());
    // A directory that is no text.
    let dir = home.path().join(odd);
    fs::create_dir(&dir).expect("it can be made");
    let said = home.kennel(&[
        OsStr::new("--json"),
        OsStr::new("run"),
        OsStr::new("-d"),
        OsStr::new("-C"),
        dir.as_os_str(),
        OsStr::new("--"),
        OsStr::new("true"),
    ]);
    assert_eq!(said.code, 0, "{said:?}");
    let shown: Value = serde_json::from_str(&said.out).expect("it is JSON");
    assert_eq!(shown["cwd"], json!(dir.as_os_str().as_bytes()));
    home.check();
}

#[test]
fn requests_that_make_no_sense_are_refused_with_stable_codes() {
    let home = Home::new();
    home.ok(&["ps"]);
    assert_eq!(post(&home, "known", None, &["true"]).0, 201);
    let cwd = home.work();
    let good = json!({"command": ["true"], "cwd": cwd, "env": []});
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body.to_string()
    };
    let bodies = [
        String::new(),
        "{".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        "\u{feff}{}".to_owned(),
        "{}".to_owned(),
        "[".repeat(100_000),
        with("comand", json!(["true"])),
        with("command", json!("true")),
        with("command", json!([])),
        with("command", json!([""])),
        with("command", json!(["a\u{0}b"])),
        with("command", json!([[256]])),
        with("command", json!([1])),
        with("cwd", json!("relative")),
        with("cwd", json!(7)),
        with("env", json!({"A": "b"})),
        with("env", json!([["A"]])),
        with("env", json!([["A=B", "c"]])),
        with("env", json!([["", "c"]])),
        with("grace_ms", json!(-1)),
        with("grace_ms", json!(1.5)),
        with("grace_ms", json!(u64::MAX)),
        with("grace_ms", json!("10s")),
        with("on_exit", json!("dance")),
        with("pty", json!("yes")),
        with("size", json!({"rows": 0, "cols": 1})),
        with("worktree", json!("relative")),
        with("slot", json!("")),
        with("slot", json!("a\nb")),
        with("slot", json!("s".repeat(LONG_NAME))),
        with("id", json!("")),
        with("id", json!("..")),
        with("id", json!("a/b")),
        with("id", json!("\u{e9}")),
        with("id", json!("i".repeat(LONG_NAME))),
    ];
    for body in bodies {
        let (status, answer) = home.ask("POST", "/v1/runs", &body);
        let shown = &body[..body.len().min(200)];
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")), "{shown}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty(), "{shown}");
    }
    for (method, path, status, code) in [
        ("GET", "/", 404, "no_such_route"),
        ("GET", "/v1", 404, "no_such_route"),
        ("GET", "/v2/runs", 404, "no_such_route"),
        ("GET", "/v1/runs/", 404, "no_such_route"),
        ("GET", "/v1/runs/known/dance", 404, "no_such_route"),
        ("DELETE", "/v1/runs/known", 405, "bad_method"),
        ("PUT", "/v1/runs", 405, "bad_method"),
        ("POST", "/v1/events", 405, "bad_method"),
        ("GET", "/v1/runs/known/stop", 405, "bad_method"),
        ("DANCE", "/v1/daemon", 405, "bad_method"),
        ("GET", "/v1/runs/%ff", 400, "bad_request"),
        ("GET", "/v1/runs/unknown", 404, "run_not_found"),
        ("GET", "/v1/runs?limit=-1", 400, "bad_request"),
        ("GET", "/v1/runs?all=maybe", 400, "bad_request"),
        ("GET", "/v1/runs?dance=1", 400, "bad_request"),
        ("GET", "/v1/runs?before=unknown", 404, "run_not_found"),
        ("GET", "/v1/events?after=-1", 400, "bad_request"),
        ("GET", "/v1/events?after=18446744073709551616", 400, "bad_request"),
        ("GET", "/v1/runs/known/wait?timeout_ms=soon", 400, "bad_request"),
        ("GET", "/v1/runs/known/output", 400, "bad_request"),
        ("GET", "/v1/runs/known/output?stream=dance", 400, "bad_request"),
        ("GET", "/v1/runs/known/output?stream=stdout&offset=-1", 400, "bad_request"),
        ("GET", "/v1/runs/known/attach", 400, "bad_request"),
        ("POST", "/v1/runs/known/input?close=maybe", 400, "bad_request"),
    ] {
        let (found, answer) = home.ask(method, path, "");
        let code = json!(code);
        assert_eq!((found, &answer["error"]["code"]), (status, &code), "{method} {path}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{path}");
    }
    for body in ["{\"grace_ms\":-1}", "{\"dance\":1}", "[]", "7", "{"] {
        let (status, answer) = home.ask("POST", "/v1/runs/known/stop", body);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("bad_request")), "{body}");
    }
    // Offsets past the end are the end; numbers at the edge are numbers.
    for path in [
        "/v1/runs/known/output?stream=stdout&offset=18446744073709551615",
        "/v1/events?limit=18446744073709551615",
        "/v1/runs?limit=18446744073709551615",
        "/v1/runs/known/wait?timeout_ms=18446744073709551615",
    ] {
        let (status, answer) = home.ask_text("GET", path, "");
        assert_eq!(status, 200, "{path}: {answer}");
    }
    assert_eq!(home.all_runs().len(), 1);
    home.check();
}

#[test]
fn a_start_asked_for_again_is_the_same_run_whatever_happened_in_between() {
    let home = Home::new();
    home.ok(&["ps"]);
    let again = |when: &str| {
        let (status, run) = post(&home, "once", Some("s"), &["sleep", "1000"]);
        assert_eq!((status, &run["id"]), (201, &json!("once")), "{when}: {run}");
        run["leader"]["pid"].clone()
    };
    let leader = again("at first");
    let other = |when: &str| {
        for (slot, command) in [("s", ["sleep", "1001"]), ("t", ["sleep", "1000"])] {
            let (status, body) = post(&home, "once", Some(slot), &command);
            assert_eq!((status, &body["error"]["code"]), (409, &json!("id_taken")), "{when}");
        }
    };
    assert_eq!(again("while it runs"), leader);
    other("while it runs");
    home.kill_daemon();
    home.ok(&["ps"]);
    assert_eq!(again("after a crash of the daemon"), leader);
    other("after a crash of the daemon");
    home.ok(&["kill", "once"]);
    assert_eq!(again("after its end"), leader);
    other("after its end");
    home.kill_daemon();
    home.ok(&["ps"]);
    assert_eq!(again("after its end and a crash"), leader);
    assert_eq!(home.all_runs().len(), 1);
    // Many at once, with the daemon killed among them.
    let body = json!({"id": "herd", "command": ["sleep", "1000"], "cwd": home.work(),
        "env": [["PATH", "/usr/bin:/bin"]]});
    let body = body.to_string();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: k\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut streams: Vec<_> = (0..20).map(|_| home.connect()).collect();
    for stream in &mut streams {
        stream.write_all(head.as_bytes()).expect("it is taken");
    }
    home.kill_daemon();
    drop(streams);
    home.ok(&["ps"]);
    // It was admitted before the crash or not; asked again, it is one run, or one that a crash
    // kept from starting.
    let (status, answer) = home.ask("POST", "/v1/runs", &body);
    match status {
        201 => assert_eq!(answer["id"], "herd"),
        _ => assert_eq!(answer["error"]["code"], "start_interrupted", "{answer}"),
    }
    assert_eq!(home.all_runs().len(), 2);
    let starts = fs::read_dir(home.state().join("runs")).expect("it is there").count();
    assert_eq!(starts, 2);
    until("nothing is left to do", || {
        home.all_runs().iter().all(|run| run["state"] != "starting").then_some(())
    });
    home.check();
}
