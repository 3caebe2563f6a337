//! Stories that the real Claude Code and the real Codex work on, with a scripted model, in a
//! network that has nothing but loopback: as in `real`, whose world this is.
//!
//! A story's text names the script of its model. A session that goes on is known by that: its
//! script goes on too, though nothing new names it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use kennel_tests::model::{Ask, Refusal, Step, tag};
use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, Said, make_program};
use super::real::{
    CLAUDE_USD, CODEX_USD, Client, World, alone, carriers_of_mark, mark, refused_until, using,
};

/// A gate that a fruit has to be ripe for.
const RIPE: &str =
    r#"["sh", "-c", "grep -qx ripe fruit || { echo the fruit is not ripe; exit 1; }"]"#;

/// The usual way: an agent and a gate, then it lands.
fn usual_stages() -> String {
    format!(
        "[[stage]]\nname = \"current\"\nagents = [\"coder\"]\ngates = [{RIPE}]\n\
         next = \"merge\"\n{LANDS}"
    )
}

const LANDS: &str = "[[stage]]\nname = \"merge\"\nmerge = true\nnext = \"done\"\n\
    [[stage]]\nname = \"done\"\nterminal = true\n";

/// What a coder does: a file with this in it, in a commit.
fn commits(word: &str) -> String {
    format!("echo {word} >fruit && git add fruit && git commit -qm {word}")
}

/// A repository with stories in a world.
struct Board(World);

impl Board {
    fn new(client: Client, program: &Path, scripts: Vec<(&str, Vec<Step>)>) -> Self {
        let world = World::new(client, program, scripts);
        make_repository(&world.home);
        Self(world)
    }

    fn home(&self) -> &Home {
        &self.0.home
    }

    /// Says how stories are worked on: with the client as `coder`, of this many instances.
    fn configure(&self, client: Client, instances: u32, stages: &str) {
        let (kind, model, args) = match client {
            Client::Claude => ("claude", "claude-sonnet-5", "--dangerously-skip-permissions"),
            Client::Codex => ("codex", "gpt-5.4", "--dangerously-bypass-approvals-and-sandbox"),
        };
        let coder = format!(
            "[[agent]]\nname = \"coder\"\nstage = \"coder\"\nkind = {kind:?}\nmodel = {model:?}\n\
             program = {:?}\nargs = [{args:?}]\nresume = \"session\"\nmax_instances = {instances}\n\
             grace = \"1s\"\n",
            self.0.program
        );
        configure(self.home(), &format!("{coder}{stages}"));
    }

    fn add(&self, id: &str, more: &[&str]) {
        let text = format!("{} It has to be ripe.", tag(id));
        add(self.home(), id, &text, more);
    }
}

/// Makes a repository of the working directory, with an identity of its own.
fn make_repository(home: &Home) {
    let own = home.path().join("agent");
    fs::create_dir_all(&own).expect("it can be made");
    let identity = "[user]\nname = Tester\nemail = tester@example.invalid\n";
    fs::write(own.join(".gitconfig"), identity).expect("it can be written");
    git(home, &["init", "-q", "-b", "main"]);
}

/// Commits the configuration with all that is there, and trusts it.
fn configure(home: &Home, more: &str) {
    let text = format!("[project]\nbase_branch = \"main\"\nretry_wait = \"50ms\"\n{more}");
    fs::write(home.work().join("kennel.toml"), text).expect("it can be written");
    git(home, &["add", "-A"]);
    git(home, &["commit", "-q", "-m", "A project"]);
    home.ok(&["trust"]);
}

#[track_caller]
fn git(home: &Home, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(home.work()).env("HOME", home.path().join("agent"));
    let said = Said::of(&command.output().expect("git is there"));
    assert_eq!(said.code, 0, "git {args:?}: {said:?}");
    said.out.trim_end().to_owned()
}

fn add(home: &Home, id: &str, text: &str, more: &[&str]) {
    let title = format!("Grow {id} in the garden");
    let mut args = vec!["story", "add", &title, "--id", id, "--text", text];
    args.extend(["--stage", "current"]);
    args.extend(more);
    home.ok(&args);
}

fn shown(home: &Home, id: &str) -> Value {
    home.json(&["story", "show", id])
}

/// Waits until a story is as it should be, and says how it was if it does not become so.
#[track_caller]
fn until_story(home: &Home, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until(what, || {
            last = shown(home, id);
            is(&last).then(|| last.clone())
        })
    }));
    found.unwrap_or_else(|_| panic!("story {id}: {what}: {last:#}"))
}

#[track_caller]
fn all_done(home: &Home) {
    let said = home.kennel(&["story", "wait", "--timeout", "120s"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", home.ok(&["--json", "story", "list"]));
}

/// The runs of an agent for a story that began, oldest first.
fn runs_of(home: &Home, story: &str, agent: &str) -> Vec<Value> {
    let mut runs = home.all_runs();
    let slot = format!("/{story}:{agent}");
    runs.retain(|run| run["slot"].as_str().is_some_and(|own| own.ends_with(&slot)));
    runs.retain(|run| run["end"]["cause"] != "never_started");
    let number = |run: &Value| {
        let id = run["id"].as_str().unwrap_or_default();
        id.rsplit('_').next().and_then(|n| n.parse::<u32>().ok())
    };
    runs.sort_by_key(number);
    let id = |run: &Value| run["id"].as_str().expect("it is text").to_owned();
    runs.iter().map(|run| home.show(&id(run))).collect()
}

#[track_caller]
fn check_used(story: &Value, turns: u64, usd: f64) {
    assert_eq!(story["used"]["turns"], turns, "{story:#}");
    let cost = story["used"]["cost_usd"].as_f64().expect("it is known");
    assert!((cost - usd).abs() < 1e-6, "{cost} is not {usd}: {story:#}");
}

/// An attempt that is not good enough, and one that is, in the same session.
fn unripe_then_ripe(client: Client, program: &Path, usd: f64) {
    let steps = vec![
        using("I write.").shell(&commits("green")).step(),
        using("Done.").step(),
        using("I look again.").shell(&commits("ripe")).step(),
        using("Now it is.").step(),
    ];
    let board = Board::new(client, program, vec![("fruit", steps)]);
    let home = board.home();
    board.configure(client, 1, &usual_stages());
    board.add("fruit", &[]);
    all_done(home);

    // The steps of one script: the second run saw what was said in the first.
    let calls = board.0.model.calls();
    assert_eq!(board.0.model.played("fruit"), [0, 1, 2, 3], "{calls:#?}");
    assert_eq!(calls.len(), 4, "{calls:#?}");
    let told = |n: usize| calls[n].told.join("\n");
    for words in ["Grow fruit in the garden", "It has to be ripe.", "on branch kennel/fruit"] {
        assert_eq!(told(2).matches(words).count(), 1, "{words}: {:#?}", calls[2]);
    }
    let last = calls[2].told.last().expect("it was told something");
    for words in ["Go on with story fruit", "The last try failed", "the fruit is not ripe"] {
        assert!(last.contains(words), "{words}: {last}");
        assert!(!told(1).contains(words), "{words}: {:#?}", calls[1]);
    }

    let runs = runs_of(home, "fruit", "coder");
    assert_eq!(runs.len(), 2, "{runs:#?}");
    for run in &runs {
        assert_eq!(run["usage"]["turns"], 2, "its own alone: {run:#}");
        assert_eq!(run["usage"]["session"], runs[0]["usage"]["session"], "{run:#}");
    }
    let story = shown(home, "fruit");
    assert_eq!((&story["stage"], &story["retries_used"]), (&"done".into(), &1.into()));
    check_used(&story, 2, 4.0 * usd);
    assert_eq!(git(home, &["log", "--format=%s", "main"]), "ripe\ngreen\nA project");
    assert_eq!(git(home, &["status", "--porcelain"]), "");
    board.0.check_gone(runs.last().expect("there is one"));
    home.check();
}

#[test]
fn a_story_that_claude_works_on_is_gated_and_lands_and_costs_what_was_served() {
    alone(Client::Claude, |program| {
        let steps =
            vec![using("I write.").shell(&commits("ripe")).step(), using("It is done.").step()];
        let board = Board::new(Client::Claude, program, vec![("fruit", steps)]);
        let home = board.home();
        board.configure(Client::Claude, 1, &usual_stages());
        board.add("fruit", &[]);
        all_done(home);
        let calls = board.0.model.calls();
        assert_eq!(board.0.model.played("fruit"), [0, 1], "{calls:#?}");
        assert_eq!(calls.len(), 2, "{calls:#?}");
        let told = calls[0].told.join("\n");
        for words in ["# Story fruit: Grow fruit in the garden", "It has to be ripe."] {
            assert!(told.contains(words), "{words}: {told}");
        }
        let story = shown(home, "fruit");
        assert_eq!((&story["done"], &story["retries_used"]), (&true.into(), &0.into()));
        check_used(&story, 1, 2.0 * CLAUDE_USD);
        assert_eq!(git(home, &["show", "main:fruit"]), "ripe");
        assert_eq!(git(home, &["status", "--porcelain"]), "");
        home.check();
    });
}

#[test]
fn what_claude_failed_with_is_told_to_the_next_try_in_words() {
    alone(Client::Claude, |program| {
        // One of the few that it does not ask again for by itself.
        let refusal = Refusal { status: 413, kind: "request_too_large", headers: vec![], times: 1 };
        let steps = vec![
            Step::Refuse(refusal),
            using("I write.").shell(&commits("ripe")).step(),
            using("Done.").step(),
        ];
        let board = Board::new(Client::Claude, program, vec![("fruit", steps)]);
        let home = board.home();
        board.configure(Client::Claude, 1, &usual_stages());
        board.add("fruit", &[]);
        all_done(home);
        let story = shown(home, "fruit");
        assert_eq!(story["retries_used"], 1, "{story:#} {:#?}", board.0.model.calls());
        let calls = board.0.model.calls();
        let told = calls.last().expect("it was asked").told.join("\n");
        assert!(told.contains("The last try failed"), "{told}");
        let quoted = "nothing to obey:\n\n```text\nRequest too large";
        assert!(told.contains(quoted) && !told.contains("session_id"), "{told}");
        home.check();
    });
}

#[test]
fn claude_goes_on_in_its_session_with_what_its_gate_said() {
    alone(Client::Claude, |program| unripe_then_ripe(Client::Claude, program, CLAUDE_USD));
}

#[test]
fn codex_goes_on_in_its_session_with_what_its_gate_said() {
    alone(Client::Codex, |program| unripe_then_ripe(Client::Codex, program, CODEX_USD));
}

/// Until when a provider is paused, as the API has it.
fn paused(home: &Home) -> Option<String> {
    let dir = home.work();
    let (status, page) = home.ask("GET", &format!("/v1/stories?dir={}", dir.display()), "");
    assert_eq!(status, 200, "{page}");
    let paused = page["paused"].as_array()?.first()?;
    assert_eq!(paused["provider"], "anthropic", "{page}");
    Some(paused["until"].to_string())
}

/// A tool that says that it is there, and stays until a file is.
fn waits(id: &str) -> String {
    format!(
        "echo {id} >>$KENNEL_HOME/truth-tools; \
         until [ -e $KENNEL_HOME/gate-{id} ]; do sleep 0.05; done"
    )
}

fn release(home: &Home, id: &str) {
    fs::write(home.path().join(format!("gate-{id}")), "").expect("it can be written");
}

#[test]
fn a_refusal_pauses_all_stories_of_a_provider_and_burns_no_retry() {
    alone(Client::Claude, |program| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let refused = |id: &str, seconds: u64| {
            vec![
                using("I begin.").shell(&waits(id)).step(),
                Step::Refuse(refused_until(now + seconds, 1)),
                using("I go on.")
                    .shell(&format!("echo {id} >{id}; git add .; git commit -qm {id}"))
                    .step(),
                using("Done.").step(),
            ]
        };
        let late = vec![
            using("I write.").shell("echo d >d; git add .; git commit -qm d").step(),
            using("Done.").step(),
        ];
        let scripts = vec![
            ("a", refused("a", 3600)),
            ("b", refused("b", 7200)),
            ("c", refused("c", 1800)),
            ("d", late),
        ];
        let mut board = Board::new(Client::Claude, program, scripts);
        // Only who has a subscription is told until when.
        board.0.home.set("ANTHROPIC_API_KEY", "");
        board.0.home.set("CLAUDE_CODE_OAUTH_TOKEN", "none");
        let home = board.home();
        let stages = format!(
            "[[agent]]\nname = \"other\"\nkind = \"command\"\nformat = \"none\"\n\
             command = [\"sh\", \"-c\", \"echo e >e; git add .; git commit -qm e\", \
             \"{{prompt}}\"]\n\
             [[stage]]\nname = \"current\"\nagents = [\"coder\"]\nnext = \"merge\"\n\
             [[stage]]\nname = \"chores\"\nagents = [\"other\"]\nnext = \"merge\"\n{LANDS}"
        );
        board.configure(Client::Claude, 3, &stages);
        for id in ["a", "b", "c"] {
            board.add(id, &[]);
        }
        for id in ["a", "b", "c"] {
            board.0.wait_for(id);
        }
        let is_paused = |story: &Value| story["waits_code"] == "paused" && story["step"].is_null();
        release(home, "a");
        until_story(home, "a", "it waits for its provider", is_paused);
        let first = paused(home).expect("it is paused");
        release(home, "b");
        until_story(home, "b", "it waits for its provider", is_paused);
        let second = paused(home).expect("it is paused");
        assert_ne!(first, second, "it was moved later");
        release(home, "c");
        until_story(home, "c", "it waits for its provider", is_paused);
        assert_eq!(paused(home), Some(second.clone()), "it is not moved sooner");
        // Who comes later does not begin, and who is served by another does.
        board.add("d", &[]);
        assert!(is_paused(&shown(home, "d")), "{:#}", shown(home, "d"));
        home.ok(&["story", "add", "A chore", "--id", "e", "--stage", "chores"]);
        home.ok(&["story", "wait", "e", "--timeout", "60s"]);
        // A pause is remembered.
        home.kill_daemon();
        let list = home.ok(&["story", "list"]);
        assert!(list.contains("note: anthropic takes no more until"), "{list}");
        assert_eq!(paused(home), Some(second));
        for id in ["a", "b", "c", "d"] {
            let story = shown(home, id);
            assert!(is_paused(&story), "{story:#}");
            assert_eq!(story["retries_used"], 0, "{story:#}");
        }
        assert_eq!(board.0.model.played("d"), Vec::<usize>::new());

        home.ok(&["story", "unblock", "--provider", "anthropic"]);
        all_done(home);
        for id in ["a", "b", "c"] {
            assert_eq!(board.0.model.played(id), [0, 1, 2, 3], "{:#?}", board.0.model.calls());
            let story = shown(home, id);
            assert_eq!(story["retries_used"], 0, "{story:#}");
            check_used(&story, 2, 3.0 * CLAUDE_USD);
        }
        assert_eq!(board.0.model.played("d"), [0, 1]);
        let said = home.kennel(&["story", "unblock", "--provider", "anthropic"]);
        assert_ne!(said.code, 0, "{said:?}");
        home.check();
    });
}

#[test]
fn ceilings_add_up_over_runs_and_block_until_they_are_raised() {
    alone(Client::Claude, |program| {
        // Whoever is at its limit is in the middle of a tool: it cannot ask once more before it is
        // stopped.
        let steps = |quick: usize| {
            let mut steps =
                vec![using("I write.").shell(&commits("green")).step(), using("Done.").step()];
            steps.extend((0..quick).map(|_| using("I look.").shell("echo one").step()));
            steps.push(using("I look.").shell("exec sleep 1000").step());
            steps.push(using("Nobody gets here.").step());
            steps
        };
        let ripe = vec![using("I write.").shell(&commits("ripe")).step(), using("Done.").step()];
        let scripts = vec![("money", steps(2)), ("turns", steps(0)), ("ripe", ripe)];
        let board = Board::new(Client::Claude, program, scripts);
        let home = board.home();
        // Both write the same file: they are not to meet on the base.
        let stages = format!(
            "[[stage]]\nname = \"current\"\nagents = [\"coder\"]\ngates = [{RIPE}]\n\
             next = \"done\"\n\
             [[stage]]\nname = \"done\"\nterminal = true\n"
        );
        board.configure(Client::Claude, 2, &stages);
        // Two responses are 0.045. Three more are over 0.065, which two and all but the last words
        // of the third are not.
        board.add("money", &["--max-budget-usd", "0.11"]);
        // One of the first run uses a tool; its last words are free, as they are of its own limit.
        board.add("turns", &["--max-turns", "2"]);
        let blocked = |story: &Value| story["hold"] == "blocked";
        let story = until_story(home, "money", "it is blocked", blocked);
        let because = story["hold_because"].as_str().unwrap_or_default().to_owned();
        assert!(because.starts_with("its runs used $0.11 of $0.11"), "{story:#}");
        check_used(&story, 4, 5.0 * CLAUDE_USD);
        let story = until_story(home, "turns", "it is blocked", blocked);
        let because = story["hold_because"].as_str().unwrap_or_default().to_owned();
        assert!(because.starts_with("its runs used 2 of 2 tool turns"), "{story:#}");
        assert_eq!(story["used"]["turns"], 2, "{story:#}");

        for (id, kind, left) in
            [("money", "max_budget_usd", 0.065), ("turns", "max_tool_turns", 1.0)]
        {
            let runs = runs_of(home, id, "coder");
            assert_eq!(runs.len(), 2, "{runs:#?}");
            let max = runs[1]["limits"][kind].as_f64().unwrap_or(f64::NAN);
            assert!((max - left).abs() < 1e-9, "it is held to what is left: {:#}", runs[1]);
            assert_eq!(runs[1]["end"]["limit"]["kind"], kind, "{:#}", runs[1]);
            assert_eq!(runs[1]["usage"]["session"], runs[0]["usage"]["session"]);
            let said = home.kennel(&["story", "unblock", id]);
            assert!(said.code != 0 && said.err.contains("raise the ceiling"), "{said:?}");
        }

        // Raised, it goes on, and is told what it is now.
        let text = format!("{} Or else.", tag("ripe"));
        home.ok(&["story", "edit", "money", "--max-budget-usd", "1", "--text", &text]);
        home.ok(&["story", "edit", "turns", "--max-turns", "20", "--text", &text]);
        home.ok(&["story", "unblock", "money"]);
        home.ok(&["story", "unblock", "turns"]);
        all_done(home);
        for id in ["money", "turns"] {
            let runs = runs_of(home, id, "coder");
            assert_eq!(runs.len(), 3, "{runs:#?}");
            assert_eq!(runs[2]["usage"]["session"], runs[0]["usage"]["session"]);
            assert_eq!(runs[2]["usage"]["turns"], 2, "{:#}", runs[2]);
        }
        check_used(&shown(home, "money"), 5, 7.0 * CLAUDE_USD);
        assert_eq!(shown(home, "turns")["used"]["turns"], 3);
        home.check();
    });
}

#[test]
fn a_daemon_that_is_killed_at_every_turn_of_a_story_does_nothing_twice() {
    alone(Client::Claude, |program| {
        let steps = vec![
            using("I write.").shell(&format!("{}; {}", waits("first"), commits("green"))).step(),
            using("Done.").step(),
            using("I look again.")
                .shell(&format!("{}; {}", waits("second"), commits("ripe")))
                .step(),
            using("Now it is.").step(),
        ];
        let board = Board::new(Client::Claude, program, vec![("fruit", steps)]);
        let home = board.home();
        board.configure(Client::Claude, 1, &usual_stages());
        board.add("fruit", &[]);
        board.0.wait_for("first");
        let run = shown(home, "fruit")["run"].as_str().expect("it has one").to_owned();
        home.kill_daemon();
        // It works on, and dies, with nobody to see it.
        release(home, "first");
        release(home, "second");
        let record = home.run_dir(&run).join("record");
        until("its keeper sees it end", || {
            fs::read_to_string(&record).ok().filter(|text| text.contains("\"ended\""))
        });
        assert!(home.daemon().is_none(), "nobody has helped");
        let mut seen: Vec<String> = Vec::new();
        until("the story is done", || {
            let story = shown(home, "fruit");
            let keys = ["stage", "progress", "step", "run", "waits_code"];
            let now = keys.map(|key| story[key].to_string()).join(" ");
            if story["hold"] != Value::Null {
                panic!("{story:#}\n{seen:#?}");
            }
            if story["done"] == true {
                return Some(());
            }
            if !seen.contains(&now) {
                home.kill_daemon();
                seen.push(now);
            }
            None
        });
        // The gate, the agent and the landing at least.
        assert!(seen.len() >= 4, "{seen:#?}");
        assert_eq!(board.0.model.played("fruit"), [0, 1, 2, 3], "{seen:#?}");
        assert_eq!(board.0.told(), ["first", "second"]);
        let runs = runs_of(home, "fruit", "coder");
        assert_eq!(runs.len(), 2, "{runs:#?}");
        let story = shown(home, "fruit");
        assert_eq!(story["retries_used"], 1, "{story:#}");
        check_used(&story, 2, 4.0 * CLAUDE_USD);
        assert_eq!(git(home, &["log", "--format=%s", "main"]), "ripe\ngreen\nA project");
        home.check();
    });
}

/// Begins by looking for whatever carries the mark, which is in nobody's command line but theirs.
const LOOKS: &str = r#"for file in /proc/[0-9]*/cmdline; do
    line=$(tr '\0' ' ' 2>/dev/null <"$file")
    case $line in *"$MARK"*) echo "$line" >>"$SEEN" ;; esac
done
echo looked >>"$SEEN"
"#;

#[test]
fn nothing_that_claude_left_behind_is_there_when_the_next_begins_in_its_worktree() {
    alone(Client::Claude, |program| {
        let escapes = || {
            let stays = Ask::Background("sh ./stays".to_owned());
            vec![
                using("I leave some.").shell("sh ./leaves").step(),
                using("One more.").ask(stays).step(),
                using("It runs.").step(),
            ]
        };
        let ripe = vec![using("I write.").shell(&commits("ripe")).step(), using("Done.").step()];
        let scripts = vec![("moved", escapes()), ("stopped", escapes()), ("ripe", ripe)];
        let mut board = Board::new(Client::Claude, program, scripts);
        let seen = board.0.home.truth("seen");
        board.0.home.set("MARK", &mark());
        board.0.home.set("SEEN", &seen.to_string_lossy());
        let home = board.home();
        fs::write(home.work().join("looks"), LOOKS).expect("it can be written");
        let stages = "[[agent]]\nname = \"looker\"\nkind = \"command\"\nformat = \"none\"\n\
             command = [\"sh\", \"looks\", \"{prompt}\"]\n\
             [[stage]]\nname = \"current\"\nagents = [\"coder\"]\nnext = \"look\"\n\
             [[stage]]\nname = \"look\"\nagents = [\"looker\"]\nnext = \"done\"\n\
             [[stage]]\nname = \"done\"\nterminal = true\n";
        board.configure(Client::Claude, 1, stages);
        let escaped = |id: &str| {
            board.add(id, &[]);
            board.0.wait_for("stays");
            // One of each that was left, the child of one, and what stays.
            until("they are there", || (carriers_of_mark().len() >= 5).then_some(()));
        };

        escaped("moved");
        home.ok(&["story", "move", "moved", "look"]);
        home.ok(&["story", "wait", "moved", "--timeout", "60s"]);
        assert_eq!(fs::read_to_string(&seen).unwrap_or_default(), "looked\n");
        let (coder, looker) = (runs_of(home, "moved", "coder"), runs_of(home, "moved", "looker"));
        assert_eq!((coder.len(), looker.len()), (1, 1), "{coder:#?} {looker:#?}");
        assert_eq!(coder[0]["end"]["cause"], "stopped", "{:#}", coder[0]);
        assert!(coder[0]["proof"].is_object(), "{:#}", coder[0]);
        board.0.check_gone(&coder[0]);

        // A stop of its run is nothing to answer with a start.
        fs::remove_file(home.truth("tools")).expect("it is there");
        escaped("stopped");
        let run = shown(home, "stopped")["run"].as_str().expect("it has one").to_owned();
        home.ok(&["stop", &run]);
        board.0.check_gone(&home.show(&run));
        let story = until_story(home, "stopped", "it is frozen", |s| s["hold"] == "frozen");
        assert_eq!(story["retries_used"], 0, "{story:#}");
        home.ok(&["story", "edit", "stopped", "--text", &tag("ripe")]);
        home.ok(&["story", "unblock", "stopped"]);
        all_done(home);
        assert_eq!(fs::read_to_string(&seen).unwrap_or_default(), "looked\nlooked\n");
        let runs = runs_of(home, "stopped", "coder");
        assert_eq!(runs.len(), 2, "{runs:#?}");
        assert_eq!(runs[1]["usage"]["session"], runs[0]["usage"]["session"], "{runs:#?}");
        home.check();
    });
}

#[test]
fn claude_whose_session_is_gone_begins_a_new_one_at_the_next_try() {
    alone(Client::Claude, |program| {
        let steps = vec![
            using("I write.")
                .shell(&format!("[ -e fruit ] && w=ripe || w=green; {}", commits("$w")))
                .step(),
            using("Done.").step(),
        ];
        let board = Board::new(Client::Claude, program, vec![("fruit", steps)]);
        let home = board.home();
        // Whatever fails, all sessions are gone after it.
        let gate =
            r#"["sh", "-c", "grep -qx ripe fruit || { rm -rf ${HOME:?}/.claude; exit 1; }"]"#;
        board.configure(Client::Claude, 1, &usual_stages().replace(RIPE, gate));
        board.add("fruit", &[]);
        all_done(home);
        let runs = runs_of(home, "fruit", "coder");
        assert_eq!(runs.len(), 3, "{runs:#?}");
        let turns: Vec<u64> =
            runs.iter().filter_map(|run| run["usage"]["turns"].as_u64()).collect();
        assert_eq!(turns, [2, 0, 2], "{runs:#?}");
        assert_ne!(runs[2]["usage"]["session"], runs[0]["usage"]["session"], "{runs:#?}");
        let story = shown(home, "fruit");
        assert_eq!(story["retries_used"], 2, "{story:#}");
        check_used(&story, 2, 4.0 * CLAUDE_USD);
        home.check();
    });
}

/// A client that speaks as Claude Code does, has no sessions, and writes down what it is asked.
const FORGETFUL: &str = r#"#!/bin/sh
session= how=
for word in "$@"; do
    case $how in --session-id | --resume) session=$word; echo "$how $word" >>"$TOLD" ;; esac
    how=$word
done
case $* in *--resume*)
    echo '{"type":"result","subtype":"error_during_execution","is_error":true}'
    exit 1 ;;
esac
printf '{"type":"system","subtype":"init","session_id":"%s","model":"claude-sonnet-5"}\n' "$session"
printf '{"type":"assistant","message":{"id":"m","model":"claude-sonnet-5",'
echo '"usage":{"input_tokens":1,"output_tokens":1},"content":[{"type":"text","text":"hm"}]}}'
[ -e fruit ] && echo ripe >fruit || echo green >fruit
git add fruit && git commit -qm fruit
printf '{"type":"result","subtype":"success","is_error":false,"session_id":"%s"}\n' "$session"
"#;

/// In another stage than the one that failures lead to, so that somebody else comes in between.
#[test]
fn an_agent_without_its_session_begins_a_new_one_wherever_its_story_was_meanwhile() {
    let mut home = Home::new();
    make_repository(&home);
    home.set("HOME", &home.path().join("agent").to_string_lossy());
    let told = home.truth("told");
    home.set("TOLD", &told.to_string_lossy());
    let file = home.path().join("forgetful");
    fs::write(&file, FORGETFUL).expect("it can be written");
    make_program(&file, &home.path().join("claude"));
    let text = format!(
        "[[agent]]\nname = \"coder\"\nstage = \"coder\"\nkind = \"command\"\nformat = \"none\"\n\
         command = [\"sh\", \"-c\", \"date >>days; git add days; git commit -qm day\", \
         \"{{prompt}}\"]\n\
         [[agent]]\nname = \"grower\"\nstage = \"coder\"\nkind = \"claude\"\nprogram = {:?}\n\
         resume = \"session\"\n\
         [[stage]]\nname = \"current\"\nagents = [\"coder\"]\nnext = \"grow\"\n\
         [[stage]]\nname = \"grow\"\nagents = [\"grower\"]\ngates = [{RIPE}]\nnext = \"merge\"\n\
         on_failure = \"current\"\n{LANDS}",
        home.path().join("claude"),
    );
    configure(&home, &text);
    add(&home, "fruit", "It has to be ripe.", &[]);
    all_done(&home);
    let told = fs::read_to_string(&told).expect("it was started");
    let told: Vec<(&str, &str)> = told.lines().filter_map(|line| line.split_once(' ')).collect();
    let [(first, one), (second, again), (third, other)] = told[..] else { panic!("{told:?}") };
    assert_eq!([first, second, third], ["--session-id", "--resume", "--session-id"]);
    assert!(one == again && one != other, "{told:?}");
    let story = shown(&home, "fruit");
    assert_eq!(story["retries_used"], 2, "{story:#}");
    home.check();
}
