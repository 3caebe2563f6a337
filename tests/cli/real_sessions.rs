//! Sessions of the real Claude Code and the real Codex that are not new: continued, forked, and one
//! that waits for a person. Each run is charged for itself alone.

use std::time::Duration;

use kennel_tests::model::{Step, tag};
use kennel_tests::{pass, until};
use serde_json::{Value, json};

use super::real::{CLAUDE_USD, CODEX_USD, Client, World, alone, check_counts, using};

/// How long the one that waits may be idle: long enough to start in.
const IDLE: &str = "3s";
/// So long it is left waiting: twice as long, and more.
const LEFT_WAITING: Duration = Duration::from_secs(7);

/// Two answers, one of them with a tool.
fn short(word: &str) -> Vec<Step> {
    vec![using("I look.").shell(&format!("echo {word}")).step(), using("I am done.").step()]
}

/// A first run, and one that goes on with its session in the words of the client.
fn goes_on(
    client: Client,
    program: &std::path::Path,
    more: impl Fn(&str) -> Vec<String>,
    usd: f64,
) {
    let scripts = vec![("first", short("one")), ("second", short("two"))];
    let world = World::new(client, program, scripts);
    let run = world.start(&[], &[], "first");
    let shown = world.over(&run);
    check_counts(&shown, 2, 1, 2.0 * usd);
    let session = shown["usage"]["session"].as_str().expect("it is known").to_owned();
    let more = more(&session);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let run = world.start(&["--max-tool-turns", "2"], &more, "second");
    let shown = world.over(&run);
    assert_eq!(shown["end"]["cause"], "exit", "{shown}");
    assert_eq!(shown["end"]["status"]["exited"], 0, "{}", world.home.ok(&["logs", &run]));
    check_counts(&shown, 2, 1, 2.0 * usd);
    world.home.check();
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn claude_in_a_fork_of_a_session_is_charged_for_the_fork_alone() {
    alone(Client::Claude, |program| {
        let more = |id: &str| words(&["--resume", id, "--fork-session"]);
        goes_on(Client::Claude, program, more, CLAUDE_USD);
    });
}

#[test]
fn claude_in_the_last_session_is_charged_for_the_new_run_alone() {
    alone(Client::Claude, |program| {
        goes_on(Client::Claude, program, |_| words(&["--continue"]), CLAUDE_USD);
    });
}

#[test]
fn codex_in_a_fork_of_a_session_is_charged_for_the_fork_alone() {
    alone(Client::Codex, |program| {
        goes_on(Client::Codex, program, |id| words(&["fork", id]), CODEX_USD);
    });
}

/// What the client asks for, newest last: the id of each question.
fn questions(world: &World, run: &str) -> Vec<Value> {
    let out = world.home.ok(&["logs", run]);
    let lines = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let asks = |line: &Value| {
        line["type"] == "control_request" && line["request"]["subtype"] == "can_use_tool"
    };
    lines.filter(asks).collect()
}

fn waits(world: &World, run: &str, times: usize) -> Value {
    until(&format!("it waits for the {times}th time"), || {
        let standing = world.home.show(run)["usage"]["standing"].clone();
        let asked = questions(world, run);
        (standing == "waiting" && asked.len() == times).then(|| asked[times - 1].clone())
    })
}

/// How often it was told that the run waits.
fn told_to_wait(world: &World, run: &str) -> usize {
    let (_, page) = world.home.ask("GET", "/v1/notices?limit=1000", "");
    let notices = page["notices"].as_array().expect("a list").clone();
    notices.iter().filter(|told| told["kind"] == "waiting" && told["run"] == *run).count()
}

fn send(world: &World, run: &str, line: &Value) {
    world.home.ok(&["send", run, &line.to_string()]);
}

#[test]
fn claude_that_waits_for_a_permission_is_not_idle_and_that_it_waits_is_told_once() {
    alone(Client::Claude, |program| {
        let steps = vec![
            using("May I?").shell("touch asked-1").step(),
            using("And this?").shell("touch asked-2").step(),
            using("I am done.").step(),
        ];
        let world = World::new(Client::Claude, program, vec![("asks", steps)]);
        // Without permissions, and answered over its own input and output. An open tool call is
        // idleness here: only that it waits can excuse it.
        let command = [
            world.program.as_str(),
            "-p",
            "--output-format",
            "stream-json",
            "--input-format",
            "stream-json",
            "--verbose",
            "--permission-prompt-tool",
            "stdio",
            "--model",
            "claude-sonnet-5",
        ];
        let ours = ["--stdin", "--idle", IDLE, "--idle-tools", "--max-budget-usd", "1", "--"];
        let run = world.home.start(&[&ours[..], &command].concat());
        let text = format!("{} do your part", tag("asks"));
        let message = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        send(&world, &run, &json!({"type": "user", "message": message}));

        let question = waits(&world, &run, 1);
        until("it is told", || (told_to_wait(&world, &run) == 1).then_some(()));
        // Nobody tells it again after a crash, and nobody takes it for idle meanwhile.
        world.home.kill_daemon();
        pass(LEFT_WAITING);
        waits(&world, &run, 1);
        let shown = world.home.show(&run);
        assert_eq!(shown["state"], "running", "{shown}");
        assert_eq!(told_to_wait(&world, &run), 1);
        check_counts(&shown, 1, 1, CLAUDE_USD);
        assert!(!world.home.work().join("asked-1").exists(), "it did not wait for the answer");

        let allow = json!({"behavior": "allow", "updatedInput": question["request"]["input"]});
        send(&world, &run, &answer_to(&question, &allow));
        let question = waits(&world, &run, 2);
        assert!(world.home.work().join("asked-1").exists(), "it was allowed");
        until("it is told again", || (told_to_wait(&world, &run) == 2).then_some(()));
        send(&world, &run, &answer_to(&question, &json!({"behavior": "deny", "message": "no"})));

        // It has answered, and its input stays open: nobody is waited for any more.
        let shown = world.over(&run);
        assert_eq!(shown["end"]["limit"]["kind"], "idle", "{shown}");
        assert!(!world.home.work().join("asked-2").exists(), "it was denied");
        check_counts(&shown, 3, 2, 3.0 * CLAUDE_USD);
        assert_eq!(told_to_wait(&world, &run), 2);
        assert_eq!(world.model.played("asks"), [0, 1, 2]);
        world.check_gone(&shown);
        world.home.check();
    });
}

fn answer_to(question: &Value, answer: &Value) -> Value {
    let response =
        json!({"subtype": "success", "request_id": question["request_id"], "response": answer});
    json!({"type": "control_response", "response": response})
}
