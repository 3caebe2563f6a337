//! The files of a client and what it says of itself, when they do not behave: late, replaced, cut,
//! gone, unreadable, endless. Every state is told, nothing is counted twice, and limits bind all
//! the same.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use kennel_tests::{agent, pass, skipped, until};
use serde_json::Value;

use super::home::Home;
use super::meter::{home, over, responses, transcript};

/// What one response of the scripted client costs, in millionths of a dollar, and what of it is
/// known while only its beginning is.
pub(super) const WHOLE: u64 = 3000;
const BEGUN: u64 = 2010;

/// The session of every run here.
pub(super) const SESSION: &str = "11111111-2222-4333-8444-555555555555";

/// The most memory a keeper ever has, in kilobytes, whatever it is told: a line of 8 MiB and as
/// much to make room for it, what is read at once, and the program itself, unoptimised.
const MOST_KILOBYTES: u64 = 48 << 10;

/// How long it may take until something is counted: an unoptimised keeper reads a gigabyte in ten
/// seconds, and on a loaded machine in many times that.
const LONG: Duration = Duration::from_secs(180);

/// Opens one gate of a script after the other.
pub(super) struct Gates<'h>(pub(super) &'h Home);

impl Gates<'_> {
    /// A step of a script: wait until this gate is open.
    pub(super) fn wait(&self, n: u32) -> String {
        let gate = self.0.path().join(format!("gate{n}"));
        format!("until [ -e {} ]; do sleep 0.02; done", gate.display())
    }

    pub(super) fn open(&self, n: u32) {
        fs::write(self.0.path().join(format!("gate{n}")), "").expect("it can be written");
    }
}

/// Starts the scripted client in the session, under these flags.
pub(super) fn start(home: &Home, ours: &[&str], script: &str) -> String {
    let mut args = ours.to_vec();
    args.extend(["--", "claude", "--session-id", SESSION, "-p", script]);
    home.start(&args)
}

/// Waits until its money, in millionths, and the state of its file are these.
#[track_caller]
pub(super) fn stands(home: &Home, run: &str, millionths: u64, state: &str) -> Value {
    let mut last = Value::Null;
    let found = until_or(|| {
        last = home.show(run);
        let usage = &last["usage"];
        let usd = usage["cost_usd"].as_f64().unwrap_or(0.0);
        let is_so = (usd * 1e6).round() == millionths as f64
            && usage["files"][0]["state"].as_str().is_some_and(|now| now.starts_with(state));
        is_so.then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("not {millionths} and {state:?}: {last}"))
}

/// Like `until`, for who has more to say than that it was in vain.
fn until_or<T>(mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        match found() {
            Some(thing) => return Some(thing),
            None => pass(Duration::from_millis(10)),
        }
    }
    None
}

/// How often somebody was warned, by kind.
pub(super) fn warned(home: &Home, kind: &str) -> usize {
    let (_, page) = home.ask("GET", "/v1/events", "");
    let events = page["events"].as_array().expect("a list");
    let is_it = |event: &&Value| event["kind"] == "warned" && event["limit"]["kind"] == kind;
    events.iter().filter(is_it).count()
}

#[test]
fn a_file_that_is_late_replaced_copied_cut_or_gone_is_told_and_nothing_is_counted_twice() {
    let home = home();
    let gates = Gates(&home);
    let steps = [
        "kept=$file; file=/dev/null; turn 1",
        "file=$kept; turn 2",
        "mv $file $file.old; turn 3",
        "cp $file $file.new; mv $file.new $file; turn 4",
        ": >$file; turn 5",
        "rm $file",
        "turn 6",
    ];
    let script: Vec<String> =
        (0_u32..).zip(steps).map(|(n, step)| format!("{}; {step}", gates.wait(n))).collect();
    let script = format!("{}; sleep 1000", script.join("; "));
    let run = start(&home, &["--max-budget-usd", "1"], &script);
    let mut known = BEGUN;
    let states = ["late", "following", "rotated", "rotated", "truncated", "missing", "rotated"];
    for (n, state) in (0_u32..).zip(states) {
        gates.open(n);
        known += if n == 0 || n == 5 { 0 } else { WHOLE };
        let shown = stands(&home, &run, known, state);
        assert_eq!(shown["usage"]["unconfirmed"], 1, "of the first nobody has more: {shown}");
        let report = home.json(&["limits", &run]);
        assert_eq!(report["files"], shown["usage"]["files"], "{report}");
        assert_eq!(report["unconfirmed"], 1, "{report}");
        let path = report["files"][0]["path"].as_str().unwrap_or_default();
        assert!(path.ends_with(&format!("{SESSION}.jsonl")), "{report}");
        let words = home.kennel(&["limits", &run]);
        assert!(words.out.contains(state) && words.err.contains("not confirmed"), "{words:?}");
    }
    // The last of them is watched, too: nothing else tells of this.
    let mut file = fs::File::options().append(true).open(transcript(&home, SESSION)).unwrap();
    std::io::Write::write_all(&mut file, line("alone", 100).as_bytes()).expect("there is room");
    stands(&home, &run, known + WHOLE, "rotated");
    assert_eq!(warned(&home, "transcript"), 1, "one alarm is enough");
    home.ok(&["kill", &run]);
    home.check();
}

#[test]
fn a_transcript_nobody_can_read_is_told_once_and_the_other_limits_go_on() {
    for make in ["mkfifo $file", "mkdir $file", "ln -s /dev/zero $file", "ln -s $file $file"] {
        let home = home();
        let gates = Gates(&home);
        let script = format!(
            "{make}; file=/dev/null; tool 1; {}; {}; sleep 1000",
            gates.wait(1),
            responses("tool", 2, 2)
        );
        let run = start(&home, &["--max-tool-turns", "3", "--max-budget-usd", "1"], &script);
        let shown = stands(&home, &run, BEGUN, "unreadable: ");
        assert!(shown["usage"]["trouble"].as_str().is_some_and(|t| t.contains("failed to read")));
        until("there is an alarm", || (warned(&home, "transcript") == 1).then_some(()));
        gates.open(1);
        let shown = over(&home, &run);
        assert_eq!(shown["end"]["limit"]["kind"], "max_tool_turns", "{make}: {shown}");
        assert_eq!(warned(&home, "transcript"), 1, "{make}");
        home.check();
    }
}

#[test]
fn files_that_cannot_be_watched_are_looked_at_by_the_clock_and_that_is_told() {
    let home = home();
    // A daemon of a user who may watch nothing: the kernel counts by namespace, too.
    let none = "echo 0 >/proc/sys/user/max_inotify_instances && exec \"$@\"";
    let ours = home.command(&["ps"]);
    let mut unshare = Command::new("unshare");
    unshare.args(["-Ur", "sh", "-c", none, "sh"]).arg(ours.get_program()).args(ours.get_args());
    unshare.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let made = unshare.current_dir(home.work()).output().expect("it can be run");
    if !made.status.success() {
        let test = "files_that_cannot_be_watched_are_looked_at_by_the_clock_and_that_is_told";
        return skipped(test, "no namespace of users can be made");
    }
    let script = format!("{}; file=/dev/null; sleep 1000", responses("turn", 1, 2));
    let run = start(&home, &["--max-budget-usd", "1"], &script);
    let shown = stands(&home, &run, 2 * WHOLE, "following");
    assert!(shown["usage"]["files_by_timer"].as_str().is_some_and(|why| !why.is_empty()));
    let mut file = fs::File::options().append(true).open(transcript(&home, SESSION)).unwrap();
    // Nothing but the file changes.
    std::io::Write::write_all(&mut file, line("late-1", 100).as_bytes()).expect("there is room");
    stands(&home, &run, 3 * WHOLE, "following");
    home.ok(&["kill", &run]);
    home.check();
}

/// A line of a transcript as the scripted client writes it.
fn line(id: &str, output: u64) -> String {
    let usage = format!(r#"{{"input_tokens":1000,"output_tokens":{output}}}"#);
    let message =
        format!(r#"{{"id":"{id}","model":"claude-sonnet-5","content":[],"usage":{usage}}}"#);
    format!(
        "{{\"type\":\"assistant\",\"requestId\":\"q{id}\",\"sessionId\":\"{SESSION}\",\
         \"message\":{message}}}\n"
    )
}

#[test]
fn a_budget_binds_by_the_file_alone_and_a_keeper_that_is_told_nothing_sleeps() {
    let home = home();
    let run = start(&home, &["--max-budget-usd", "0.0085"], "turn 1; sleep 1000");
    let shown = stands(&home, &run, WHOLE, "following");
    assert!(shown["usage"]["files_by_timer"].is_null(), "{shown}");
    let keeper = shown["keeper"]["pid"].as_u64().expect("a number");
    // Longer than any look by the clock would take to come.
    until("nothing wakes it", || {
        let before = wakes(keeper);
        pass(Duration::from_millis(1200));
        (wakes(keeper) == before).then_some(())
    });
    let mut file = fs::File::options().append(true).open(transcript(&home, SESSION)).unwrap();
    let both = line("x-1", 100) + &line("x-2", 100);
    std::io::Write::write_all(&mut file, both.as_bytes()).expect("there is room");
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "max_budget_usd", "{shown}");
    home.check();
}

/// How often the threads of a process have waited so far.
fn wakes(pid: u64) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let count = |text: String| {
        let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    texts.filter_map(count).sum()
}

fn most_memory(pid: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = text.lines().find(|line| line.starts_with("VmHWM")).expect("it is there");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn a_line_too_long_to_be_held_is_told_counted_past_and_costs_no_memory() {
    let home = home();
    let pours = agent("pours").to_string_lossy().into_owned();
    // Each in one line: 64 MiB that are said, of which none goes from the kept output before it is
    // read, and a gigabyte that is a hole in the file.
    let said =
        format!("printf '{{\"type\":\"assistant\",\"x\":\"'; {pours} 67108864 letters; echo");
    let kept = "printf '{' >>$file; truncate -s +1G $file; echo >>$file";
    let script = format!("tool 1; {said}; {kept}; tool 2; sleep 1000");
    let run = start(&home, &["--max-tool-turns", "100"], &script);
    let shown = stands(&home, &run, 2 * WHOLE, "following");
    assert_eq!(shown["usage"]["tool_turns"], 2, "{shown}");
    assert_eq!(shown["usage"]["unread"], 2, "{shown}");
    let keeper = shown["keeper"]["pid"].as_u64().expect("a number");
    let most = most_memory(keeper);
    assert!(most < MOST_KILOBYTES, "{most} kB");
    home.ok(&["kill", &run]);
    home.check();
}

#[test]
fn of_two_limits_in_one_piece_turns_are_told_and_the_first_line_can_reach_them() {
    let home = home();
    // Nothing else is said before it, or after it.
    let usage = r#""usage":{"input_tokens":1000000000000,"output_tokens":1}"#;
    let tool = r#""content":[{"type":"tool_use","id":"t","name":"Bash","input":{}}]"#;
    let message = format!(r#""message":{{"id":"m","model":"claude-opus-5",{tool},{usage}}}"#);
    let script = format!("#!/bin/sh\necho '{{\"type\":\"assistant\",{message}}}'\nsleep 1000\n");
    let first = home.path().join("first");
    fs::write(&first, script).expect("it is ours");
    super::home::make_program(&first, &home.path().join("bin/first"));
    let ours = ["--max-tool-turns", "1", "--max-budget-usd", "0.01", "--max-tokens", "5"];
    let mut args = ours.to_vec();
    args.extend(["--format", "claude", "--", "first"]);
    let run = home.start(&args);
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "max_tool_turns", "{shown}");
    assert_eq!(shown["end"]["limit"]["used"], 1.0, "{shown}");
    assert!(shown["usage"]["cost_usd"].as_f64() > Some(0.01), "{shown}");
    home.check();
}

#[test]
fn who_waits_for_a_person_or_a_service_is_not_idle_nor_is_who_may_still_finish() {
    let reset = "\"status\":\"rejected\",\"resetsAt\":4000000000";
    let approval = r#"{"type":"control_request","request":{"subtype":"can_use_tool"}}"#;
    let refused = format!(r#"{{"type":"rate_limit_event","rate_limit_info":{{{reset}}}}}"#);
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"x"}"#;
    let tool = concat!(
        r#"{"type":"assistant","message":{"id":"t","model":"claude-sonnet-5","content":[{"type":"#,
        r#""tool_use","id":"u","name":"Bash","input":{}}],"usage":{"output_tokens":1}}}"#
    );
    for (said, ours, standing, ends) in [
        (tool, &["--idle", "500ms"][..], "working", None),
        (tool, &["--idle", "500ms", "--idle-tools"], "working", Some("idle")),
        (approval, &["--idle", "500ms"], "waiting", None),
        (&refused, &["--idle", "500ms"], "rate_limited", None),
        (result, &["--idle", "500ms", "--finish", "1h"], "finishing", None),
        (result, &["--idle", "1h", "--finish", "500ms"], "finishing", Some("finish")),
        // Without a time to finish there is nothing else to hold it to.
        (result, &["--idle", "500ms"], "finishing", Some("idle")),
    ] {
        let home = home();
        let gates = Gates(&home);
        let script = format!("turn 1; echo '{said}'; {}; exit 6", sleep_until(&gates, 1));
        let run = start(&home, ours, &script);
        until("its standing is told", || {
            (home.show(&run)["usage"]["standing"] == standing).then_some(())
        });
        if let Some(limit) = ends {
            let shown = over(&home, &run);
            assert_eq!(shown["end"]["limit"]["kind"], limit, "{ours:?}: {shown}");
        } else {
            // Three times as long as it may be idle.
            pass(Duration::from_millis(1500));
            assert_eq!(home.show(&run)["state"], "running", "{ours:?}");
            gates.open(1);
            let shown = over(&home, &run);
            assert_eq!(shown["end"]["status"]["exited"], 6, "{ours:?}: {shown}");
        }
        home.check();
    }
}

/// A step that waits without using any processor to speak of.
fn sleep_until(gates: &Gates<'_>, n: u32) -> String {
    gates.wait(n).replace("sleep 0.02", "sleep 0.5")
}

#[test]
fn a_warning_is_told_once_however_often_the_daemon_is_killed() {
    let home = home();
    let gates = Gates(&home);
    let (few, rest) = (responses("tool", 1, 8), responses("tool", 9, 2));
    let script = format!("{few}; {}; tool 9; {}; {rest}; sleep 1000", gates.wait(1), gates.wait(2));
    let run = start(&home, &["--max-tool-turns", "10"], &script);
    until("it is warned of", || (warned(&home, "max_tool_turns") == 1).then_some(()));
    home.kill_daemon();
    gates.open(1);
    let counted = |n: u64| {
        until("it is counted", || (home.show(&run)["usage"]["tool_turns"] == n).then_some(()));
    };
    counted(9);
    assert_eq!(warned(&home, "max_tool_turns"), 1);
    home.kill_daemon();
    gates.open(2);
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "max_tool_turns", "{shown}");
    assert_eq!(warned(&home, "max_tool_turns"), 1);
    home.check();
}

#[test]
fn numbers_that_are_none_change_nothing_and_those_that_are_too_large_do_not_wrap() {
    let home = home();
    let bad = r#"
        for n in '-5' '"x"' 'null' '-1e300' '[]' '{}' 'true'; do
            i=$((i+1))
            u="\"usage\":{\"input_tokens\":$n,\"output_tokens\":$n}"
            m="\"id\":\"bad$i\",\"model\":\"claude-sonnet-5\",\"content\":[],$u"
            echo "{\"type\":\"assistant\",\"requestId\":\"b$i\",\"message\":{$m}}" >>$file
        done"#;
    let total = r#"echo '{"type":"result","subtype":"success","total_cost_usd":-7,"result":"x"}'"#;
    let script = format!("turn 1; i=0; {bad}; {total}; exit 3");
    let run = start(&home, &["--max-budget-usd", "1"], &script);
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["status"]["exited"], 3, "{shown}");
    assert_eq!(shown["usage"]["cost_usd"], 0.003, "{shown}");
    for (large, kind) in [("18446744073709551615", "max_tokens"), ("1e308", "max_budget_usd")] {
        let usage = format!(
            r#""cache_read_input_tokens":{large},"input_tokens":{large},"output_tokens":{large}"#
        );
        let message = format!(
            r#"{{"id":"big{kind}","model":"nobody-knows-it","content":[],"usage":{{{usage}}}}}"#
        );
        let script = format!(
            r#"echo '{{"type":"assistant","requestId":"q{kind}","message":{message}}}' >>$file
               sleep 1000"#
        );
        let max = if kind == "max_tokens" { "18446744073709551615" } else { "1e6" };
        let run = start(&home, &[&format!("--{}", kind.replace('_', "-")), max], &script);
        let shown = over(&home, &run);
        assert_eq!(shown["end"]["limit"]["kind"], kind, "{shown}");
        let basis = shown["usage"]["cost_basis"].as_str().unwrap_or_default();
        assert!(basis.contains("nobody-knows-it"), "{shown}");
        assert_eq!(home.json(&["limits", &run])["limits"][0]["kind"], kind);
    }
    assert!(home.json(&["usage", "--by", "day"])["total"]["cost_usd"].is_number());
    home.check();
}

#[test]
fn a_resumed_session_whose_file_is_written_anew_is_charged_for_this_run_alone() {
    let home = home();
    let stamped = r#"
        sed -i 's/^{/{"timestamp":"2020-01-01T00:00:00.000Z",/' $file"#;
    let old = format!("{}; {stamped}", responses("tool", 1, 8));
    home.ok(&["run", "--", "claude", "--session-id", SESSION, "-p", &old]);
    for (n, again) in ["cp $file $file.n; mv $file.n $file", "sed -i 's/I think/I thought/' $file"]
        .into_iter()
        .enumerate()
    {
        let gates = Gates(&home);
        let (one, two) = (n as u32 * 2, n as u32 * 2 + 1);
        let script = format!(
            "tool {0}; {1}; {again}; tool {0}0; {2}; exit 5",
            n + 20,
            gates.wait(one),
            gates.wait(two)
        );
        let args = ["--max-tool-turns", "5", "--", "claude", "--resume", SESSION, "-p", &script];
        let run = home.start(&args);
        stands(&home, &run, WHOLE, "following");
        gates.open(one);
        let shown = stands(&home, &run, 2 * WHOLE, "rotated");
        assert_eq!(shown["usage"]["tool_turns"], 2, "{again}: {shown}");
        gates.open(two);
        let shown = over(&home, &run);
        assert_eq!(shown["end"]["status"]["exited"], 5, "{again}: {shown}");
        assert_eq!(shown["usage"]["cost_usd"], 0.006, "{again}: {shown}");
    }
    home.check();
}

#[test]
fn files_of_sub_agents_that_come_late_and_behind_links_are_counted_once() {
    let home = home();
    let gates = Gates(&home);
    let child = r#"
        sub=$(dirname $file)/$session/subagents; real=$HOME/elsewhere
        mkdir -p $real $(dirname $sub); ln -s $real $sub
        own=$file; file=$real/agent-a.jsonl"#;
    let script = format!(
        "mkdir -p $HOME/far; mv $(dirname $file) $HOME/far/p; ln -s $HOME/far/p $(dirname $file); \
         turn 1; {}; {child}; exec 3>&1 >/dev/null; tool 2; tool 3; ln $file $real/agent-b.jsonl; \
         {}; tool 4; sleep 1000",
        gates.wait(1),
        gates.wait(2)
    );
    let run = start(&home, &["--max-budget-usd", "0.0115"], &script);
    stands(&home, &run, WHOLE, "following");
    gates.open(1);
    let shown = stands(&home, &run, 3 * WHOLE, "following");
    assert_eq!(shown["usage"]["subagent_turns"], 2, "{shown}");
    gates.open(2);
    let shown = over(&home, &run);
    assert_eq!(shown["end"]["limit"]["kind"], "max_budget_usd", "{shown}");
    let used = shown["end"]["limit"]["used"].as_f64().unwrap_or(0.0);
    assert!((used - 0.012).abs() < 1e-9, "{shown}");
    home.check();
}

#[test]
fn a_price_below_nothing_is_refused_where_money_is_bounded() {
    let home = home();
    fs::create_dir(home.path().join("config")).expect("it can be made");
    let file = home.path().join("config/prices.json");
    for prices in [r#"{"in": -1, "out": 1}"#, r#"{"in": 1, "out": 1, "cache_read": -0.1}"#] {
        fs::write(&file, format!(r#"{{"claude-sonnet-5": {prices}}}"#)).expect("there is room");
        let said = home.kennel(&["run", "--max-budget-usd", "1", "--", "claude", "-p", "turn 1"]);
        assert_eq!(said.code, 125, "{said:?}");
        assert!(said.err.contains("below 0") && said.err.contains("prices.json"), "{said:?}");
    }
    home.check();
}
