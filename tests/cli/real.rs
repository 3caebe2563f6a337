//! The real Claude Code and the real Codex, held to limits and stopped, with tools that do all they
//! can to outlive them.
//!
//! Each test runs itself again in a network that has nothing but loopback, with an environment that
//! is clean, keys that are none and a home of its own; there the daemon, the agent and a scripted
//! model live.
//! `tests/real/install` gets the agents. What cannot be had here is skipped by name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kennel_tests::model::{Answer, Ask, Model, Refusal, Step, Tokens, answer, tag};
use kennel_tests::{agent, pass, skipped, until};
use serde_json::Value;

use super::home::Home;

/// Set in the process that runs a test in the closed network: where the agent's program is.
const INSIDE: &str = "KENNEL_REAL_PROGRAM";
/// How long that process may take before it is given up. Every wait in it is shorter.
const INSIDE_BOUND: Duration = Duration::from_secs(300);
/// What `loopback` exits with where no such network can be made.
const NO_NETWORK: i32 = 96;
/// How long nobody may ask the model anything after the proof.
const SILENCE: Duration = Duration::from_millis(700);
/// The agents and their exact versions.
const VERSIONS: &str = include_str!("../real/versions");

/// What a response uses unless a test says otherwise.
///
/// By claude-sonnet-5: 1000 * 2 + 500 * 10 + 20000 * 0.2 + 3000 * 2.5 + 1000 * 4 = 22500 millionths
/// of a dollar. By gpt-5.4, which has no price for writing to a cache:
/// 1000 * 2.5 + 500 * 15 + 20000 * 0.25 = 15000 millionths.
const USED: Tokens = Tokens {
    input: 1000,
    output: 500,
    cache_read: 20_000,
    cache_write_5m: 3000,
    cache_write_1h: 1000,
};
pub(crate) const CLAUDE_USD: f64 = 0.0225;
pub(crate) const CODEX_USD: f64 = 0.015;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Claude,
    Codex,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }

    /// Where `tests/real/install` puts it: the path, or why there is none.
    fn program(self) -> Result<PathBuf, String> {
        let line = VERSIONS.lines().find(|line| line.split(' ').next() == Some(self.name()));
        let words: Vec<&str> = line.expect("it is in the list").split(' ').collect();
        let [name, package, version, program] = words[..] else { panic!("four words: {words:?}") };
        let inside = format!("{name}-{version}/node_modules/{package}/{program}");
        let here = std::env::current_exe().expect("we run from a file");
        let roots = match std::env::var_os("KENNEL_REAL_AGENTS") {
            Some(root) => vec![PathBuf::from(root)],
            None => here.ancestors().map(|dir| dir.join("real-agents")).collect(),
        };
        let found = roots.iter().map(|root| root.join(&inside)).find(|path| path.exists());
        found.ok_or_else(|| format!("{name} {version} is not here: tests/real/install gets it"))
    }
}

/// Runs the body of a test in a network of its own, or says why not.
pub(crate) fn alone<F: FnOnce(&Path)>(client: Client, test: F) {
    if let Some(program) = std::env::var_os(INSIDE) {
        return test(Path::new(&program));
    }
    // As the test runner has it: without the crate in front and what the closure adds behind.
    let name = std::any::type_name::<F>().split_once("::").expect("it is in a module").1;
    let name = name.trim_end_matches("::{{closure}}");
    let program = match client.program() {
        Ok(program) => program,
        Err(why) => return skipped(name, &why),
    };
    let probe = Command::new(agent("loopback")).arg("/bin/true").output().expect("it starts");
    if probe.status.code() == Some(NO_NETWORK) {
        let why = String::from_utf8_lossy(&probe.stderr).into_owned();
        return skipped(name, why.trim_end());
    }
    run_inside(name, &program);
}

fn run_inside(name: &str, program: &Path) {
    let log = std::env::temp_dir().join(format!("kn-{}-{}", std::process::id(), name.len()));
    let log = log.with_extension(name.replace("::", "-"));
    let out = File::create(&log).expect("it can be made");
    let again = out.try_clone().expect("it can be had twice");
    let mut child = Command::new(agent("loopback"))
        .arg(std::env::current_exe().expect("we run from a file"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TMPDIR", std::env::temp_dir())
        .env(INSIDE, program)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(again)
        .spawn()
        .expect("it starts");
    let deadline = Instant::now() + INSIDE_BOUND;
    let status = loop {
        match child.try_wait().expect("it is ours") {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => pass(Duration::from_millis(10)),
        }
    };
    let said = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let Some(status) = status else {
        // What it made has our name nowhere but in the path: that leads to all of it.
        let _left = Home::left_by(child.id());
        let _ = child.kill();
        let _ = child.wait();
        panic!("{name} takes longer than {INSIDE_BOUND:?}: {said}");
    };
    assert!(status.success() && said.contains("1 passed"), "{name}: {status}\n{said}");
}

/// What a test has in its closed network.
pub(crate) struct World {
    pub(crate) home: Home,
    pub(crate) model: Model,
    client: Client,
    pub(crate) program: String,
}

/// The word in the command line of everything a tool starts here, and of nothing else.
pub(crate) fn mark() -> String {
    format!("4000.{}", std::process::id())
}

impl World {
    pub(crate) fn new(client: Client, program: &Path, scripts: Vec<(&str, Vec<Step>)>) -> Self {
        let mut home = Home::new();
        let model = Model::start(scripts).expect("loopback is there");
        let own = home.path().join("agent");
        fs::create_dir(&own).expect("it can be made");
        home.set("HOME", &own.to_string_lossy());
        let scratch = own.to_string_lossy().into_owned();
        let settings: &[(&str, &str)] = match client {
            Client::Claude => &[
                // The usual one is every user's, and refused where users are mapped.
                ("CLAUDE_CODE_TMPDIR", &scratch),
                ("ANTHROPIC_BASE_URL", &model.url()),
                ("ANTHROPIC_API_KEY", "none"),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
                ("DISABLE_AUTOUPDATER", "1"),
                // Root may not turn the questions off otherwise.
                ("IS_SANDBOX", "1"),
            ],
            Client::Codex => &[("MODEL_KEY", "none")],
        };
        for (name, value) in settings {
            home.set(name, value);
        }
        if client == Client::Codex {
            let dir = own.join(".codex");
            fs::create_dir(&dir).expect("it can be made");
            let config = format!(
                "model = \"gpt-5.4\"\nmodel_provider = \"scripted\"\n\
                 [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}/v1\"\n\
                 wire_api = \"responses\"\nenv_key = \"MODEL_KEY\"\n",
                model.url()
            );
            fs::write(dir.join("config.toml"), config).expect("it can be written");
        }
        let program = program.to_string_lossy().into_owned();
        let world = Self { home, model, client, program };
        world.write_tools();
        world
    }

    /// The programs the model asks for: one that leaves processes behind and is done, one that
    /// stays and will not listen. Each process tells its name first.
    fn write_tools(&self) {
        let (told, mark) = (self.home.truth("tools"), mark());
        let told = told.display();
        let sleeps = format!("sleep {mark}");
        let leaves = format!(
            r#"setsid sh -c 'echo setsid >>{told}; exec {sleeps}' >/dev/null 2>&1 </dev/null &
(nohup sh -c 'echo nohup >>{told}; exec {sleeps}' >/dev/null 2>&1 </dev/null &)
(setsid sh -c 'trap "" HUP INT TERM; echo traps >>{told}; {sleeps} & wait; {sleeps}' \
    >/dev/null 2>&1 </dev/null &)
(env -i setsid sh -c 'trap "" HUP; echo stripped >>{told}; exec {sleeps}' \
    >/dev/null 2>&1 </dev/null &)
until [ "$(wc -l <{told})" -ge 4 ]; do sleep 0.02; done
echo left
"#
        );
        let stays = format!(
            "trap '' HUP INT TERM\necho stays >>{told}\n\
             {sleeps} & wait; {sleeps} & wait; {sleeps}\n"
        );
        fs::write(self.home.work().join("leaves"), leaves).expect("it can be written");
        fs::write(self.home.work().join("stays"), stays).expect("it can be written");
    }

    /// The command line of the agent with a prompt for this script.
    fn command(&self, more: &[&str], script: &str) -> Vec<String> {
        let flags: &[&str] = match self.client {
            Client::Claude => &[
                "--output-format",
                "stream-json",
                "--verbose",
                "--dangerously-skip-permissions",
                "--model",
                "claude-sonnet-5",
            ],
            Client::Codex => &[
                "exec",
                "--json",
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
            ],
        };
        let prompt = format!("{} do your part", tag(script));
        let mut words = vec![self.program.as_str()];
        words.extend(flags.iter().chain(more));
        match self.client {
            Client::Claude => words.extend(["-p", &prompt]),
            Client::Codex => words.push(&prompt),
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Starts the agent, detached, under these flags of ours.
    pub(crate) fn start(&self, ours: &[&str], more: &[&str], script: &str) -> String {
        let command = self.command(more, script);
        let mut args: Vec<&str> = ours.to_vec();
        args.push("--");
        args.extend(command.iter().map(String::as_str));
        self.home.start(&args)
    }

    /// What the tools have told so far.
    pub(crate) fn told(&self) -> Vec<String> {
        let text = fs::read_to_string(self.home.truth("tools")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn wait_for(&self, word: &str) {
        until(&format!("a tool tells {word:?}"), || {
            self.told().iter().any(|told| told == word).then_some(())
        });
    }

    /// Waits until that much money is counted: a client writes down what a response used a little
    /// after its tool has begun.
    fn counted(&self, run: &str, usd: f64) {
        until("its money is counted", || {
            let cost = self.home.show(run)["usage"]["cost_usd"].as_f64()?;
            ((cost - usd).abs() < 1e-9).then_some(())
        });
    }

    pub(crate) fn over(&self, run: &str) -> Value {
        until("the run is over", || {
            let shown = self.home.show(run);
            (shown["state"] == "dead").then_some(shown)
        })
    }

    /// What has to be true after every end: nothing that a tool started is left, whether it carries
    /// our mark or not, and nobody asks the model anything any more.
    pub(crate) fn check_gone(&self, run: &Value) {
        assert!(run["proof"].is_object(), "{run}");
        assert_eq!(carriers_of_mark(), Vec::<String>::new(), "{run}");
        let calls = self.model.calls().len();
        pass(SILENCE);
        assert_eq!(self.model.calls().len(), calls, "{:?}", self.model.calls());
    }

    /// All four that a tool left behind were there.
    fn check_left(&self, run: &Value) {
        let told = self.told();
        for word in ["setsid", "nohup", "traps", "stripped"] {
            assert!(told.iter().any(|told| told == word), "{word}: {told:?}: {run}");
        }
    }
}

/// Every process with the mark of our tools in its command line.
pub(crate) fn carriers_of_mark() -> Vec<String> {
    let mark = mark();
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&mark)).collect()
}

pub(crate) fn using(text: &str) -> Answer {
    answer(text).used(USED)
}

/// Leaves four processes behind, then works on, then stays in a tool that will not listen.
fn escape() -> Vec<Step> {
    vec![
        using("I leave some.").shell("sh ./leaves").step(),
        using("I look around.").shell("echo two").step(),
        using("I stay.").shell("sh ./stays").step(),
        using("Nobody gets here.").step(),
    ]
}

/// The counts of so many answers with a tool each, and what they cost.
#[track_caller]
pub(crate) fn check_counts(run: &Value, answers: u64, tool_turns: u64, usd: f64) {
    let usage = &run["usage"];
    assert_eq!(usage["turns"], answers, "{run}");
    assert_eq!(usage["tool_turns"], tool_turns, "{run}");
    assert_eq!(usage["tokens"]["input"], answers * USED.input, "{run}");
    assert_eq!(usage["tokens"]["output"], answers * USED.output, "{run}");
    assert_eq!(usage["tokens"]["cache_read"], answers * USED.cache_read, "{run}");
    let cost = usage["cost_usd"].as_f64().expect("it is known");
    assert!((cost - usd).abs() < 1e-9, "{cost} is not {usd}: {run}");
}

/// The counts of so many answers of Claude's with a tool each, the last of which may have been cut
/// off: its tool is known before its output. Then that is told.
#[track_caller]
fn check_counts_of_cut(run: &Value, answers: u64) {
    let missing = answers * USED.output - run["usage"]["tokens"]["output"].as_u64().unwrap_or(0);
    if missing == 0 {
        return check_counts(run, answers, answers, answers as f64 * CLAUDE_USD);
    }
    // One token is a placeholder; the others cost 10 millionths each.
    assert_eq!(missing, USED.output - 1, "{run}");
    let mut whole = run.clone();
    whole["usage"]["tokens"]["output"] = (answers * USED.output).into();
    check_counts(&whole, answers, answers, answers as f64 * CLAUDE_USD - missing as f64 * 10e-6);
    assert!(run["usage"]["trouble"].as_str().is_some_and(|t| t.contains("too low")), "{run}");
}

#[track_caller]
fn check_limit(run: &Value, kind: &str, used: f64, max: f64) {
    assert_eq!(run["end"]["cause"], "limit", "{run}");
    let limit = &run["end"]["limit"];
    assert_eq!(limit["kind"], kind, "{run}");
    assert_eq!(limit["max"], max, "{run}");
    let told = limit["used"].as_f64().expect("a number");
    assert!((told - used).abs() < 1e-9, "{run}");
}

#[test]
fn the_third_tool_turn_of_claude_ends_it_and_all_that_its_tools_started() {
    alone(Client::Claude, |program| {
        let world = World::new(Client::Claude, program, vec![("escape", escape())]);
        let run = world.start(&["--max-tool-turns", "3"], &[], "escape");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        check_limit(&shown, "max_tool_turns", 3.0, 3.0);
        check_counts_of_cut(&shown, 3);
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn a_budget_ends_claude_at_the_response_that_spends_it() {
    alone(Client::Claude, |program| {
        let world = World::new(Client::Claude, program, vec![("escape", escape())]);
        // Three responses are 0.0675. Before the last has said its output, which it does at its
        // end, 0.0675 - 499 * 10 millionths are known, which is 0.06251: within the budget.
        let run = world.start(&["--max-budget-usd", "0.065"], &[], "escape");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        check_limit(&shown, "max_budget_usd", 3.0 * CLAUDE_USD, 0.065);
        check_counts(&shown, 3, 3, 3.0 * CLAUDE_USD);
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn the_wall_clock_ends_claude_in_the_middle_of_a_tool_that_will_not_listen() {
    alone(Client::Claude, |program| {
        let world = World::new(Client::Claude, program, vec![("escape", escape())]);
        let run = world.start(&["--wall", "20s"], &[], "escape");
        world.wait_for("stays");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        assert_eq!(shown["end"]["limit"]["kind"], "wall", "{shown}");
        assert!(shown["end"]["limit"]["used"].as_f64() >= Some(20.0), "{shown}");
        check_counts(&shown, 3, 3, 3.0 * CLAUDE_USD);
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

/// A stop ends a client and all that its tools started, wherever that has gone.
fn a_stop_ends(client: Client, program: &Path, usd: f64) {
    let world = World::new(client, program, vec![("escape", escape())]);
    let run = world.start(&[], &[], "escape");
    world.wait_for("stays");
    world.counted(&run, 3.0 * usd);
    // One of each that was left, the child of one, and what stays.
    assert!(carriers_of_mark().len() >= 5, "{:?}", carriers_of_mark());
    world.home.ok(&["stop", &run]);
    let shown = world.home.show(&run);
    world.check_gone(&shown);
    world.check_left(&shown);
    assert_eq!(shown["end"]["cause"], "stopped", "{shown}");
    check_counts(&shown, 3, 3, 3.0 * usd);
    assert_eq!(world.model.played("escape"), [0, 1, 2]);
    world.home.check();
}

#[test]
fn a_stop_ends_claude_and_all_that_its_tools_started() {
    alone(Client::Claude, |program| a_stop_ends(Client::Claude, program, CLAUDE_USD));
}

#[test]
fn claude_with_a_background_shell_is_ended_when_its_time_to_finish_is_over() {
    alone(Client::Claude, |program| {
        let stays = Ask::Background("sh ./stays".to_owned());
        let steps = vec![
            using("I start it.").ask(stays).step(),
            using("It runs.").step(),
            using("It is over.").step(),
        ];
        let world = World::new(Client::Claude, program, vec![("background", steps)]);
        let run = world.start(&["--finish", "2s"], &[], "background");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(world.told(), ["stays"]);
        assert_eq!(shown["end"]["limit"]["kind"], "finish", "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CLAUDE_USD);
        assert_eq!(world.model.played("background"), [0, 1]);
        world.home.check();
    });
}

#[test]
fn what_sub_agents_of_claude_do_counts_and_is_told_apart() {
    alone(Client::Claude, |program| {
        let task = Ask::Task(format!("{} do the small part", tag("small")));
        let large = vec![using("I delegate.").ask(task).step(), using("It is done.").step()];
        let small = vec![
            using("I look.").shell("echo one").step(),
            using("I look again.").shell("echo two").step(),
            using("Done.").step(),
        ];
        let scripts = vec![("large", large), ("small", small)];
        let mut world = World::new(Client::Claude, program, scripts);
        world.home.set("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1");
        let run = world.start(&["--max-tool-turns", "10"], &[], "large");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        // Two of its own and three of the sub-agent's; all but the last of each ask for a tool.
        check_counts(&shown, 5, 3, 5.0 * CLAUDE_USD);
        assert_eq!(shown["usage"]["subagent_turns"], 3, "{shown}");
        assert_eq!(world.model.played("large"), [0, 1]);
        assert_eq!(world.model.played("small"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn the_tool_turns_of_a_sub_agent_of_claude_count_against_the_limit() {
    alone(Client::Claude, |program| {
        let task = Ask::Task(format!("{} do the small part", tag("escape")));
        let large = vec![using("I delegate.").ask(task).step(), using("It is done.").step()];
        let scripts = vec![("large", large), ("escape", escape())];
        let mut world = World::new(Client::Claude, program, scripts);
        world.home.set("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1");
        let run = world.start(&["--max-turns", "4"], &[], "large");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        check_limit(&shown, "max_turns", 4.0, 4.0);
        check_counts_of_cut(&shown, 4);
        assert_eq!(shown["usage"]["subagent_turns"], 3, "{shown}");
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn claude_that_waits_to_try_again_is_not_idle() {
    alone(Client::Claude, |program| {
        let refusal = Refusal {
            status: 429,
            kind: "rate_limit_error",
            headers: vec![("retry-after".to_owned(), "5".to_owned())],
            times: 1,
        };
        let steps = vec![
            using("I begin.").shell("echo one").step(),
            Step::Refuse(refusal),
            using("It works again.").step(),
        ];
        let world = World::new(Client::Claude, program, vec![("refused", steps)]);
        let run = world.start(&["--idle", "2s"], &[], "refused");
        until("it is told that it tries again", || {
            (world.home.show(&run)["usage"]["standing"] == "retrying").then_some(())
        });
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CLAUDE_USD);
        assert_eq!(world.model.played("refused"), [0, 1, 2]);
        world.home.check();
    });
}

/// What the service sends to who has a subscription, and used it up until then.
pub(crate) fn refused_until(seconds: u64, times: u32) -> Refusal {
    let until_then = seconds.to_string();
    let header =
        |name: &str, value: &str| (format!("anthropic-ratelimit-unified-{name}"), value.to_owned());
    Refusal {
        status: 429,
        kind: "rate_limit_error",
        headers: vec![
            header("status", "rejected"),
            header("reset", &until_then),
            header("representative-claim", "five_hour"),
            header("5h-status", "rejected"),
            header("5h-reset", &until_then),
            header("5h-utilization", "1.0"),
        ],
        times,
    }
}

#[test]
fn claude_that_is_refused_until_a_time_says_until_when() {
    alone(Client::Claude, |program| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let refusal = refused_until(now + 3600, u32::MAX);
        let steps = vec![using("I begin.").shell("echo one").step(), Step::Refuse(refusal)];
        let mut world = World::new(Client::Claude, program, vec![("refused", steps)]);
        world.home.set("ANTHROPIC_API_KEY", "");
        world.home.set("CLAUDE_CODE_OAUTH_TOKEN", "none");
        let run = world.start(&["--idle", "3s"], &[], "refused");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(shown["usage"]["rate_limited_until"], now + 3600, "{shown}");
        check_counts(&shown, 1, 1, CLAUDE_USD);
        world.home.check();
    });
}

#[test]
fn claude_resumed_after_a_kill_is_charged_for_the_new_run_alone() {
    alone(Client::Claude, |program| {
        let second = vec![using("I go on.").shell("echo three").step(), using("I am done.").step()];
        let scripts = vec![("escape", escape()), ("second", second)];
        let world = World::new(Client::Claude, program, scripts);
        let session = "11111111-2222-4333-8444-555555555555";
        let run = world.start(&[], &["--session-id", session], "escape");
        world.wait_for("stays");
        world.counted(&run, 3.0 * CLAUDE_USD);
        world.home.ok(&["kill", &run]);
        let shown = world.home.show(&run);
        world.check_gone(&shown);
        check_counts(&shown, 3, 3, 3.0 * CLAUDE_USD);
        // Less than the session has used so far, and more than this run will.
        let ours = ["--max-tool-turns", "2", "--max-budget-usd", "0.06"];
        let run = world.start(&ours, &["--resume", session], "second");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(shown["usage"]["session"], session, "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CLAUDE_USD);
        assert_eq!(world.model.played("second"), [0, 1]);
        world.home.check();
    });
}

#[test]
fn a_budget_ends_codex_and_all_that_its_tools_started() {
    alone(Client::Codex, |program| {
        let world = World::new(Client::Codex, program, vec![("escape", escape())]);
        // Two responses are 0.03, three 0.045.
        let ours = ["--max-budget-usd", "0.04", "--max-tokens", "1000000"];
        let run = world.start(&ours, &[], "escape");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        check_limit(&shown, "max_budget_usd", 3.0 * CODEX_USD, 0.04);
        check_counts(&shown, 3, 3, 3.0 * CODEX_USD);
        assert_eq!(shown["usage"]["model"], "gpt-5.4", "{shown}");
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn a_stop_ends_codex_and_all_that_its_tools_started() {
    alone(Client::Codex, |program| a_stop_ends(Client::Codex, program, CODEX_USD));
}

#[test]
fn the_third_tool_turn_of_codex_ends_it_and_all_that_its_tools_started() {
    alone(Client::Codex, |program| {
        let world = World::new(Client::Codex, program, vec![("escape", escape())]);
        let run = world.start(&["--max-tool-turns", "3"], &[], "escape");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        check_limit(&shown, "max_tool_turns", 3.0, 3.0);
        check_counts(&shown, 3, 3, 3.0 * CODEX_USD);
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn codex_resumed_after_a_kill_is_charged_for_the_new_run_alone() {
    alone(Client::Codex, |program| {
        let second = vec![using("I go on.").shell("echo three").step(), using("I am done.").step()];
        let scripts = vec![("escape", escape()), ("second", second)];
        let world = World::new(Client::Codex, program, scripts);
        let run = world.start(&[], &[], "escape");
        world.wait_for("stays");
        world.counted(&run, 3.0 * CODEX_USD);
        world.home.ok(&["kill", &run]);
        let shown = world.home.show(&run);
        world.check_gone(&shown);
        check_counts(&shown, 3, 3, 3.0 * CODEX_USD);
        let session = shown["usage"]["session"].as_str().expect("it is known").to_owned();
        // Less than the session has used so far, and more than this run will.
        let ours = ["--max-tool-turns", "2", "--max-budget-usd", "0.04"];
        let run = world.start(&ours, &["resume", &session], "second");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(shown["usage"]["session"], session.as_str(), "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CODEX_USD);
        assert_eq!(world.model.played("second"), [0, 1]);
        world.home.check();
    });
}

/// A profile starts the client so that it is counted, and goes on in the session it told.
fn a_profile_starts(client: Client, program: &Path, usd: f64) {
    let second = vec![using("I go on.").shell("echo three").step(), using("I am done.").step()];
    let world = World::new(client, program, vec![("escape", escape()), ("second", second)]);
    let (kind, args) = match client {
        Client::Claude => ("claude", "--dangerously-skip-permissions"),
        Client::Codex => ("codex", "--dangerously-bypass-approvals-and-sandbox"),
    };
    let model = match client {
        Client::Claude => "claude-sonnet-5",
        Client::Codex => "gpt-5.4",
    };
    // What looks like a flag is for the model all the same.
    let text = format!(
        "[[agent]]\nname = \"it\"\nkind = {kind:?}\nprogram = {:?}\nmodel = {model:?}\n\
         args = [{args:?}]\nprompt = \"--help is not wanted\"\nmax_tool_turns = 3\n",
        world.program
    );
    fs::write(world.home.work().join("kennel.toml"), text).expect("it can be written");
    world.home.ok(&["trust"]);
    let say = |script: &str| format!("{} do your part", tag(script));
    let run = world.home.start(&["--agent", "it", "--", &say("escape")]);
    let shown = world.over(&run);
    world.check_gone(&shown);
    check_limit(&shown, "max_tool_turns", 3.0, 3.0);
    match client {
        Client::Claude => check_counts_of_cut(&shown, 3),
        Client::Codex => check_counts(&shown, 3, 3, 3.0 * usd),
    }
    let session = shown["usage"]["session"].as_str().expect("it is known").to_owned();
    let run = world.home.start(&["--agent", "it", "--resume", &session, "--", &say("second")]);
    let shown = world.over(&run);
    world.check_gone(&shown);
    assert_eq!(shown["end"]["cause"], "exit", "{shown}");
    assert_eq!(shown["usage"]["session"], session.as_str(), "{shown}");
    check_counts(&shown, 2, 1, 2.0 * usd);
    assert_eq!(world.model.played("second"), [0, 1]);
    world.home.check();
}

#[test]
fn claude_is_started_and_resumed_by_its_profile() {
    alone(Client::Claude, |program| a_profile_starts(Client::Claude, program, CLAUDE_USD));
}

#[test]
fn codex_is_started_and_resumed_by_its_profile() {
    alone(Client::Codex, |program| a_profile_starts(Client::Codex, program, CODEX_USD));
}

#[test]
fn claude_whose_model_says_nothing_more_is_idle() {
    alone(Client::Claude, |program| {
        let steps = vec![using("I begin.").shell("sh ./leaves").step(), Step::Hang];
        let world = World::new(Client::Claude, program, vec![("hangs", steps)]);
        let run = world.start(&["--idle", "3s"], &[], "hangs");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        assert_eq!(shown["end"]["limit"]["kind"], "idle", "{shown}");
        assert_eq!(shown["usage"]["turns"], 1, "{shown}");
        world.home.check();
    });
}

#[test]
fn what_sub_agents_of_codex_do_counts_and_is_told_apart() {
    alone(Client::Codex, |program| {
        let task = Ask::Task(format!("{} do the small part", tag("small")));
        let large = vec![
            using("I delegate.").ask(task).step(),
            using("I wait.").ask(Ask::WaitForTasks).step(),
            using("It is done.").step(),
        ];
        let small = vec![using("I look.").shell("echo one").step(), using("Done.").step()];
        let scripts = vec![("large", large), ("small", small)];
        let world = World::new(Client::Codex, program, scripts);
        let run = world.start(&["--max-tool-turns", "10"], &[], "large");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(world.model.played("large"), [0, 1, 2], "{}", world.home.ok(&["logs", &run]));
        assert_eq!(world.model.played("small"), [0, 1]);
        // Three of its own and two of the sub-agent's; all but the last of each ask for a tool.
        check_counts(&shown, 5, 3, 5.0 * CODEX_USD);
        assert_eq!(shown["usage"]["subagent_turns"], 2, "{shown}");
        world.home.check();
    });
}

#[test]
fn codex_that_waits_to_try_again_is_not_idle() {
    alone(Client::Codex, |program| {
        let refusal = Refusal {
            status: 429,
            kind: "rate_limit_exceeded",
            headers: vec![("retry-after".to_owned(), "5".to_owned())],
            times: 1,
        };
        let steps = vec![
            using("I begin.").shell("echo one").step(),
            Step::Refuse(refusal),
            using("It works again.").step(),
        ];
        let world = World::new(Client::Codex, program, vec![("refused", steps)]);
        let run = world.start(&["--idle", "2s", "--finish", "30s"], &[], "refused");
        until("it is told that it tries again", || {
            (world.home.show(&run)["usage"]["standing"] == "retrying").then_some(())
        });
        // It stays for five seconds after its last word when it cannot reach its maker: that is its
        // time to finish, and no idleness.
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        assert_eq!(world.model.played("refused"), [0, 1, 2], "{shown}");
        let calls = world.model.calls();
        assert!(calls[2].at - calls[1].at > Duration::from_secs(2), "{calls:?}");
        check_counts(&shown, 2, 1, 2.0 * CODEX_USD);
        world.home.check();
    });
}

#[test]
fn the_tool_turns_of_claude_bind_while_the_daemon_is_dead_and_are_told_once() {
    alone(Client::Claude, |program| {
        let world = World::new(Client::Claude, program, vec![("escape", escape())]);
        let run = world.start(&["--max-tool-turns", "3"], &[], "escape");
        until("it has begun", || (!world.model.calls().is_empty()).then_some(()));
        world.home.kill_daemon();
        let record = world.home.run_dir(&run).join("record");
        until("its keeper ends it alone", || {
            fs::read_to_string(&record).ok().filter(|text| text.contains("\"ended\""))
        });
        assert!(world.home.daemon().is_none(), "nobody has helped");
        // Told now, and not again by the next daemon.
        for _ in 0..2 {
            let shown = world.over(&run);
            world.check_gone(&shown);
            world.check_left(&shown);
            check_limit(&shown, "max_tool_turns", 3.0, 3.0);
            check_counts_of_cut(&shown, 3);
            assert_eq!(world.home.ends(), [run.as_str()]);
            world.home.kill_daemon();
        }
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn claude_resumed_after_its_budget_ended_it_has_the_whole_of_the_next_one() {
    alone(Client::Claude, |program| {
        let second = vec![using("I go on.").shell("echo three").step(), using("I am done.").step()];
        let scripts = vec![("escape", escape()), ("second", second)];
        let world = World::new(Client::Claude, program, scripts);
        let session = "11111111-2222-4333-8444-555555555555";
        let budget = ["--max-budget-usd", "0.065"];
        let run = world.start(&budget, &["--session-id", session], "escape");
        let shown = world.over(&run);
        check_limit(&shown, "max_budget_usd", 3.0 * CLAUDE_USD, 0.065);
        let run = world.start(&budget, &["--resume", session], "second");
        let shown = world.over(&run);
        world.check_gone(&shown);
        assert_eq!(shown["end"]["cause"], "exit", "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CLAUDE_USD);
        assert_eq!(shown["usage"]["unconfirmed"], 0, "{shown}");
        assert_eq!(shown["usage"]["files"][0]["state"], "following", "{shown}");
        world.home.check();
    });
}

#[test]
fn the_wall_clock_ends_codex_in_the_middle_of_a_tool_that_will_not_listen() {
    alone(Client::Codex, |program| {
        let world = World::new(Client::Codex, program, vec![("escape", escape())]);
        let run = world.start(&["--wall", "20s"], &[], "escape");
        world.wait_for("stays");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        assert_eq!(shown["end"]["limit"]["kind"], "wall", "{shown}");
        assert!(shown["end"]["limit"]["used"].as_f64() >= Some(20.0), "{shown}");
        check_counts(&shown, 3, 3, 3.0 * CODEX_USD);
        assert_eq!(world.model.played("escape"), [0, 1, 2]);
        world.home.check();
    });
}

#[test]
fn codex_that_stays_after_its_answer_is_ended_by_its_time_to_finish_and_not_as_idle() {
    alone(Client::Codex, |program| {
        let steps =
            vec![using("I leave some.").shell("sh ./leaves").step(), using("I am done.").step()];
        let world = World::new(Client::Codex, program, vec![("leaves", steps)]);
        let run = world.start(&["--finish", "4s", "--idle", "3s"], &[], "leaves");
        let shown = world.over(&run);
        world.check_gone(&shown);
        world.check_left(&shown);
        assert_eq!(shown["end"]["limit"]["kind"], "finish", "{shown}");
        check_counts(&shown, 2, 1, 2.0 * CODEX_USD);
        assert_eq!(world.model.played("leaves"), [0, 1]);
        world.home.check();
    });
}

/// The tool results in what a client wrote, as text.
fn results(world: &World, run: &str) -> String {
    let out = world.home.ok(&["logs", run]);
    let lines = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["type"] == "user").map(|line| line.to_string()).collect()
}

#[test]
fn claude_starts_a_command_through_our_tools_and_reads_its_result_when_resumed() {
    alone(Client::Claude, |program| {
        let gate = std::env::temp_dir().join(format!("kn-gate-{}", std::process::id()));
        let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
        let start = serde_json::json!({"command": format!("{wait}; echo forty-two; exit 3"),
            "slot": "background"});
        let (poll, none) = (r#"{"run":"background"}"#.to_owned(), "{}".to_owned());
        let stop_other = r#"{"runs":["other"]}"#.to_owned();
        let scripts = vec![
            (
                "first",
                vec![
                    using("It may take long.")
                        .ask(Ask::Mcp("kennel", "start", start.to_string()))
                        .step(),
                    using("I will be told.").step(),
                ],
            ),
            (
                "second",
                vec![
                    using("I was told.").ask(Ask::Mcp("kennel", "notices", none)).step(),
                    using("What did it say?").ask(Ask::Mcp("kennel", "log", poll)).step(),
                    using("And this?").ask(Ask::Mcp("kennel", "stop", stop_other)).step(),
                    using("Done.").step(),
                ],
            ),
        ];
        let world = World::new(Client::Claude, program, scripts);
        let config = serde_json::json!({"mcpServers": {"kennel":
            {"command": env!("CARGO_BIN_EXE_kennel"), "args": ["mcp"]}}});
        let config = config.to_string();
        let mcp = ["--mcp-config", &config, "--strict-mcp-config"];
        let other = world.home.start(&["--slot", "other", "--", "sleep", "1000"]);
        let first = world.start(&[], &mcp, "first");
        let shown = world.over(&first);
        assert_eq!(shown["end"]["status"]["exited"], 0, "{shown}");
        let said = results(&world, &first);
        assert!(said.contains("already_running"), "{said}");
        // It goes on without the one that started it.
        let child = world.home.show("background");
        assert_eq!(child["state"], "running", "{child}");
        assert_eq!(child["parent"], first, "{child}");
        fs::write(&gate, "").expect("it can be written");
        until("it has ended", || {
            (world.home.show(child["id"].as_str()?)["state"] == "dead").then_some(())
        });
        let _ = fs::remove_file(&gate);

        let session = shown["usage"]["session"].as_str().expect("it is known").to_owned();
        let resumed = [&mcp[..], &["--resume", &session]].concat();
        let second = world.start(&[], &resumed, "second");
        let shown = world.over(&second);
        assert_eq!(shown["end"]["status"]["exited"], 0, "{shown}");
        let said = results(&world, &second);
        assert!(said.contains("exited with code 3") || said.contains(r#"exited\":3"#), "{said}");
        assert!(said.contains("forty-two"), "{said}");
        assert!(said.contains("not_yours"), "{said}");
        assert_eq!(world.home.show(&other)["state"], "running", "it is not the agent's to stop");
        assert_eq!(world.model.played("second"), [0, 1, 2, 3]);
        world.home.check();
    });
}

#[test]
fn codex_starts_a_command_through_our_tools_and_reads_its_result() {
    alone(Client::Codex, |program| {
        let start = r#"{"command":"echo forty-two; exit 3","slot":"background"}"#.to_owned();
        let wait = r#"{"runs":["background"]}"#.to_owned();
        let log = r#"{"run":"background"}"#.to_owned();
        let script = vec![
            using("I start it.").ask(Ask::Mcp("kennel", "start", start)).step(),
            using("I wait.").ask(Ask::Mcp("kennel", "wait", wait)).step(),
            using("I read.").ask(Ask::Mcp("kennel", "log", log)).step(),
            using("Done.").step(),
        ];
        let world = World::new(Client::Codex, program, vec![("tools", script)]);
        let config = world.home.path().join("agent/.codex/config.toml");
        let mut text = fs::read_to_string(&config).expect("it is there");
        text.push_str(&format!(
            "[mcp_servers.kennel]\ncommand = {:?}\nargs = [\"mcp\"]\ntool_timeout_sec = 660\n\
             env_vars = [\"KENNEL_HOME\"]\n",
            env!("CARGO_BIN_EXE_kennel")
        ));
        fs::write(&config, text).expect("it can be written");
        let run = world.start(&[], &[], "tools");
        let shown = world.over(&run);
        assert_eq!(shown["end"]["status"]["exited"], 0, "{shown}");
        let said = world.home.ok(&["logs", &run]);
        assert!(said.contains("already_running"), "{said}");
        assert!(said.contains("forty-two"), "{said}");
        let child = world.home.all_runs().into_iter().find(|known| known["slot"] == "background");
        let child = child.expect("it was started");
        assert_eq!((&child["parent"], &child["end"]["status"]["exited"]), (&run.into(), &3.into()));
        world.home.check();
    });
}

#[test]
fn claude_is_woken_once_by_what_it_left_running_and_reads_the_result() {
    alone(Client::Claude, |program| {
        let gate = std::env::temp_dir().join(format!("kn-wake-{}", std::process::id()));
        let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
        let start = serde_json::json!({"command": format!("{wait}; echo forty-two; exit 3"),
            "slot": "background"});
        let read = r#"{"run":"background"}"#.to_owned();
        let script = vec![
            using("It may take long.").ask(Ask::Mcp("kennel", "start", start.to_string())).step(),
            using("I will be told.").step(),
            // Only somebody who wakes it gets it here.
            using("I was told.").ask(Ask::Mcp("kennel", "log", read)).step(),
            using("Done.").step(),
        ];
        let world = World::new(Client::Claude, program, vec![("boss", script)]);
        let mcp = serde_json::json!({"mcpServers": {"kennel":
            {"command": env!("CARGO_BIN_EXE_kennel"), "args": ["mcp"]}}});
        let (mcp, own) = (mcp.to_string(), world.home.path().join("agent"));
        let config = format!(
            "[[channel]]\nname = \"wake\"\nkind = \"wake\"\nagent = \"boss\"\n\
             [[agent]]\nname = \"boss\"\nkind = \"claude\"\nprogram = {:?}\n\
             model = \"claude-sonnet-5\"\nmax_tool_turns = 5\n\
             args = [\"--dangerously-skip-permissions\", \"--mcp-config\", {mcp:?}, \
             \"--strict-mcp-config\"]\n\
             [agent.env]\nANTHROPIC_BASE_URL = {:?}\nANTHROPIC_API_KEY = \"none\"\n\
             CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC = \"1\"\nDISABLE_AUTOUPDATER = \"1\"\n\
             IS_SANDBOX = \"1\"\nCLAUDE_CODE_TMPDIR = {:?}\n",
            world.program,
            world.model.url(),
            own.to_string_lossy(),
        );
        let dir = world.home.path().join("config");
        fs::create_dir(&dir).expect("it can be made");
        fs::write(dir.join("config.toml"), config).expect("it can be written");

        let say = format!("{} do your part", tag("boss"));
        let first = world.home.start(&["--agent", "boss", "--", &say]);
        let shown = world.over(&first);
        assert_eq!(shown["end"]["status"]["exited"], 0, "{shown}");
        let session = shown["usage"]["session"].clone();
        let child = world.home.show("background");
        assert_eq!((&child["state"], &child["parent"]), (&"running".into(), &first.clone().into()));
        // What it waits for ends while nobody can tell it.
        world.home.kill_daemon();
        fs::write(&gate, "").expect("it can be written");
        let woken = until("it was woken", || {
            let mut runs = world.home.all_runs();
            runs.retain(|run| run["slot"] == "boss" && run["id"] != *first);
            Some(runs.first()?["id"].as_str()?.to_owned())
        });
        let _ = fs::remove_file(&gate);
        let shown = world.over(&woken);
        assert_eq!(shown["end"]["status"]["exited"], 0, "{shown}");
        assert_eq!(shown["usage"]["session"], session, "its session went on");
        let said = results(&world, &woken);
        assert!(said.contains("forty-two"), "{said}");
        // Its own end wakes nobody, nor does another daemon.
        world.home.kill_daemon();
        world.home.ok(&["run", "--", "true"]);
        pass(SILENCE);
        assert_eq!(world.model.played("boss"), [0, 1, 2, 3]);
        let mut runs = world.home.all_runs();
        runs.retain(|run| run["slot"] == "boss");
        assert_eq!(runs.len(), 2, "{runs:#?}");
        world.home.check();
    });
}
