//! Sessions that are not new: used before, continued, or used by two at once. Each run is charged
//! for itself alone, and where that cannot be told apart it is refused, or said.

use std::fs;

use kennel_tests::until;
use serde_json::Value;

use super::followed::{Gates, SESSION, WHOLE, stands, start, warned};
use super::home::{Home, make_program};
use super::meter::{home, over, responses};

/// Goes on in the session.
fn resume(home: &Home, ours: &[&str], script: &str) -> super::home::Said {
    let mut args = vec!["run", "-d"];
    args.extend(ours);
    args.extend(["--", "claude", "--resume", SESSION, "-p", script]);
    home.kennel(&args)
}

#[test]
fn an_id_that_was_used_before_does_not_charge_its_old_turns_to_a_new_run() {
    let home = home();
    home.ok(&["run", "--", "claude", "--session-id", SESSION, "-p", &responses("tool", 1, 8)]);
    // Not resumed: the same id is given to what should be a new session.
    let run = start(&home, &["--max-tool-turns", "5"], "tool 9; exit 7");
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["status"]["exited"], 7, "{shown}");
    assert_eq!(shown["usage"]["tool_turns"], 1, "{shown}");
    assert_eq!(shown["usage"]["cost_usd"], 0.003, "{shown}");
    home.check();
}

#[test]
fn a_log_of_aider_that_is_added_to_for_ever_is_charged_line_by_line() {
    let home = home();
    let used = r#""main_model":"gpt-5","prompt_tokens":10,"completion_tokens":1,"cost":0.5"#;
    let send = format!(r#"{{"event":"message_send","properties":{{{used}}}}}"#);
    let script = format!("#!/bin/sh\necho '{send}' >>log.jsonl\nexit 3\n");
    let file = home.path().join("aider-script");
    fs::write(&file, script).expect("it is ours");
    make_program(&file, &home.path().join("bin/aider"));
    for n in 1..=3 {
        let args = ["--max-budget-usd", "0.8", "--", "aider", "--analytics-log", "log.jsonl"];
        let shown = over(&home, &home.start(&args));
        assert_eq!(shown["end"]["status"]["exited"], 3, "run {n}: {shown}");
        assert_eq!(shown["usage"]["cost_usd"], 0.5, "run {n}: {shown}");
        assert_eq!(shown["usage"]["turns"], 1, "run {n}: {shown}");
    }
    home.check();
}

#[test]
fn a_session_in_which_a_live_run_works_is_refused_until_its_end() {
    let home = home();
    let gates = Gates(&home);
    let script = format!("turn 1; {}; exit 4", gates.wait(1));
    let first = start(&home, &[], &script);
    // Also before it has said anything, and also by who has no limits.
    let said = resume(&home, &[], "tool 2");
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains(&first) && said.err.contains("--unenforced-ok"), "{said:?}");
    let args =
        ["--json", "run", "--max-turns", "5", "--", "claude", "--resume", SESSION, "-p", "x"];
    let said = home.kennel(&args);
    let error: Value = serde_json::from_str(&said.err).expect("it is JSON");
    assert_eq!(error["error"]["code"], "session_in_use", "{error}");
    // A copy of it is another session, and so is one of another client.
    let copy = ["run", "--", "claude", "--resume", SESSION, "--fork-session", "-p", "exit 5"];
    assert_eq!(home.kennel(&copy).code, 5);
    gates.open(1);
    over(&home, &first);
    let said = resume(&home, &[], "tool 2; exit 6");
    assert_eq!(said.code, 0, "{said:?}");
    let shown = over(&home, said.out.trim());
    assert_eq!(shown["usage"]["tool_turns"], 1, "{shown}");
    home.check();
}

#[test]
fn a_session_whose_id_we_gave_is_known_by_what_the_run_says() {
    let home = home();
    let args = ["--max-turns", "5", "--", "claude", "-p", "turn 1; sleep 1000"];
    let first = home.start(&args);
    let session =
        until("it is told", || home.show(&first)["usage"]["session"].as_str().map(str::to_owned));
    let said = home.kennel(&["run", "--", "claude", "--resume", &session, "-p", "turn 2"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains(&first), "{said:?}");
    home.ok(&["kill", &first]);
    home.check();
}

#[test]
fn of_many_who_want_one_session_at_once_one_gets_it() {
    let home = home();
    home.ok(&["run", "--", "claude", "--session-id", SESSION, "-p", "turn 1"]);
    let started: Vec<String> = std::thread::scope(|scope| {
        let asks: Vec<_> =
            (0..4).map(|_| scope.spawn(|| resume(&home, &[], "turn 2; sleep 1000"))).collect();
        let said = asks.into_iter().map(|ask| ask.join().expect("it answers"));
        said.filter(|said| said.code == 0).map(|said| said.out.trim().to_owned()).collect()
    });
    assert_eq!(started.len(), 1, "{started:?}");
    home.ok(&["kill", &started[0]]);
    home.check();
}

#[test]
fn two_that_share_a_session_all_the_same_are_told_of_each_other_once_for_good() {
    let home = home();
    let gates = Gates(&home);
    let script = format!("turn 1; {}; sleep 1000", gates.wait(1));
    let first = start(&home, &["--max-budget-usd", "1"], &script);
    stands(&home, &first, WHOLE, "following");
    let script = format!("turn 2; {}; sleep 1000", gates.wait(1));
    let said = resume(&home, &["--unenforced-ok", "--max-budget-usd", "1"], &script);
    assert_eq!(said.code, 0, "{said:?}");
    let second = said.out.trim().to_owned();
    for (run, other) in [(&first, &second), (&second, &first)] {
        let told = until("it is told", || {
            home.json(&["limits", run])["trouble"].as_str().map(str::to_owned)
        });
        assert!(told.contains(other) && told.contains("counts for both"), "{told}");
        let words = home.kennel(&["limits", run]);
        assert!(words.err.contains(other), "{words:?}");
    }
    // Of the second response the first knows by the file alone.
    stands(&home, &first, 2 * WHOLE, "following");
    home.kill_daemon();
    for run in [&first, &second] {
        until("it is told anew", || home.show(run)["usage"]["trouble"].as_str().map(str::to_owned));
    }
    until("both are warned", || (warned(&home, "session") == 2).then_some(()));
    home.ok(&["kill", &first]);
    home.ok(&["kill", &second]);
    for (run, other) in [(&first, &second), (&second, &first)] {
        let trouble = over(&home, run)["usage"]["trouble"].clone();
        assert!(trouble.as_str().is_some_and(|told| told.contains(other.as_str())), "{trouble}");
    }
    for by in ["run", "day", "model"] {
        assert_eq!(home.json(&["usage", "--by", by])["total"]["shared"], 2, "{by}");
    }
    let words = home.kennel(&["usage"]);
    assert!(words.err.contains("counts for both"), "{words:?}");
    assert_eq!(warned(&home, "session"), 2, "each of them once");
    let notices = home.ok(&["notices"]);
    assert!(notices.contains("shares its session"), "{notices}");
    assert!(!notices.contains("comes near"), "of no limit: {notices}");
    home.check();
}
