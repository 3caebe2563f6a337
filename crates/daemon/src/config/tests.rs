//! Tables of what files say, and of what is said about files that are wrong: line, key, what was
//! meant.

use std::fs;
use std::path::{Path, PathBuf};

use super::init::{REPOSITORY_TEXT, USER_TEXT};
use super::*;

/// A directory of a test's own, gone with it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let dir = format!("kennel-config-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("it can be made");
        Self(fs::canonicalize(dir).expect("it is there"))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.0.clone() } else { self.0.join(name) }
    }

    pub(super) fn dir(&self, name: &str) {
        fs::create_dir_all(self.path(name)).expect("it can be made");
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("it can be made");
        fs::write(path, text).expect("it can be written");
    }

    pub(super) fn link(&self, to: &str, at: &str) {
        std::os::unix::fs::symlink(self.path(to), self.path(at)).expect("it can be made");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn wrong(read: impl Fn(&[u8]) -> Vec<Problem>, text: &str, expected: &[(usize, &str, &str)]) {
    let found = read(text.as_bytes());
    assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
    for (problem, (line, key, words)) in found.iter().zip(expected) {
        assert_eq!(problem.file, "F", "{text}");
        let key = (!key.is_empty()).then(|| (*key).to_owned());
        assert_eq!((problem.line, &problem.key), (Some(*line), &key), "{text}\n{problem}");
        assert!(problem.message.contains(words), "{text}\n{problem}");
    }
}

fn of_user(bytes: &[u8]) -> Vec<Problem> {
    user("F", bytes).err().unwrap_or_default()
}

fn of_repository(bytes: &[u8]) -> Vec<Problem> {
    repository("F", bytes, &["mine".to_owned()]).err().unwrap_or_default()
}

const COMMAND: &str = "[[agent]]\nname = \"a\"\ncommand = [\"x\"]\n";

/// What is wrong with an agent that has these further lines, from line 4 on.
fn wrong_agent(more: &str, expected: &[(usize, &str, &str)]) {
    wrong(of_repository, &format!("{COMMAND}{more}"), expected);
}

#[test]
fn every_unknown_key_is_named_with_its_line_and_the_one_that_was_meant() {
    wrong_agent("max_turn = 3", &[(4, "agent.max_turn", "is max_turns meant?")]);
    wrong_agent("\n\nwal = \"1h\"", &[(6, "agent.wal", "is wall meant?")]);
    wrong_agent("colour = 1", &[(4, "agent.colour", "there are name, stage")]);
    wrong_agent(
        "gentle-signal = \"INT\"",
        &[(4, "agent.gentle-signal", "is gentle_signal meant?")],
    );
    wrong(of_repository, "[[agnet]]\nname = 1", &[(1, "agnet", "is agent meant?")]);
    wrong(of_repository, "[limits]\nwall = \"1h\"", &[(1, "limits", "caps are the user's")]);
    wrong(of_repository, "[[channel]]\n", &[(1, "channel", "the user's config.toml")]);
    wrong(of_user, "[[stage]]\n", &[(1, "stage", "a repository's")]);
    wrong(of_user, "[limits]\nwalls = 1", &[(2, "limits.walls", "is wall meant?")]);
    wrong(
        of_repository,
        "[project]\nbase_brunch = \"x\"",
        &[(2, "project.base_brunch", "is base_branch meant?")],
    );
    wrong_agent("provder = \"x\"", &[(4, "agent.provder", "is provider meant?")]);
    for (key, meant) in [
        ("merg", "merge"),
        ("gate_wal", "gate_wall"),
        ("gate_outputs", "gate_output"),
        ("retry_wai", "retry_wait"),
        ("retry_wait_max", "retry_wait_most"),
        ("main_checkuot", "main_checkout"),
    ] {
        let text = format!("[project]\n{key} = 1");
        let meant = format!("is {meant} meant?");
        wrong(of_repository, &text, &[(2, &format!("project.{key}"), &meant)]);
    }
    // All of them, in the order of the file.
    wrong_agent(
        "x = 1\ny = 2\npids = \"z\"",
        &[
            (4, "agent.x", "no such key"),
            (5, "agent.y", "no such key"),
            (6, "agent.pids", "this is text"),
        ],
    );
}

#[test]
fn every_wrong_value_is_told_with_what_it_has_to_be() {
    for (line, key, words) in [
        ("wall = 5", "wall", "a duration in quotes"),
        ("wall = \"5\"", "wall", "15m or 2h"),
        ("wall = \"0s\"", "wall", "more than 0"),
        ("idle = \"1 h\"", "idle", "no duration"),
        ("memory = \"4GB\"", "memory", "64K, 512M, 4G or 1T"),
        ("memory = 4", "memory", "a size in quotes"),
        ("output = \"0\"", "output", "more than 0"),
        ("max_turns = 0", "max_turns", "a whole number from 1 on"),
        ("max_turns = -3", "max_turns", "a whole number from 1 on"),
        ("max_turns = 1.5", "max_turns", "this is a number"),
        ("max_tokens = 99999999999999999999", "max_tokens", "99999999999999999999 is not"),
        ("max_budget_usd = 0", "max_budget_usd", "above 0"),
        ("max_budget_usd = -1.5", "max_budget_usd", "above 0"),
        ("max_budget_usd = inf", "max_budget_usd", "above 0"),
        ("max_budget_usd = nan", "max_budget_usd", "above 0"),
        ("max_budget_usd = \"5\"", "max_budget_usd", "an amount"),
        ("pids = 5_000_000_000", "pids", "too large"),
        ("grace = \"1000h\"", "grace", "may have 720 hours"),
        ("gentle_signal = \"TERMINATE\"", "gentle_signal", "not a signal"),
        ("gentle_signal = \"KILL\"", "gentle_signal", "asks for nothing"),
        ("stage = \"qe\"", "stage", "is qa meant?"),
        ("kind = \"commnad\"", "kind", "is command meant?"),
        ("resume = \"session\"", "resume", "a command has no session"),
        ("resume = true", "resume", "text in quotes"),
        ("max_instances = 0", "max_instances", "from 1 on"),
        ("env = \"A=1\"", "env", "a table"),
        ("env = { A = 1 }", "env.A", "has to be text"),
        ("env = { \"A=B\" = \"1\" }", "env.A=B", "no variable"),
        ("model = \"m\"", "model", "started as it is"),
        ("allowed_tools = [\"x\"]", "allowed_tools", "started as it is"),
        ("format = \"clod\"", "format", "or none"),
        ("prompt = 1", "prompt", "text in quotes"),
        ("provider = 1", "provider", "text in quotes"),
        ("provider = \"\"", "provider", "like \"anthropic\""),
        ("provider = \"a b\"", "provider", "without spaces"),
    ] {
        wrong_agent(line, &[(4, &format!("agent.{key}"), words)]);
    }
}

#[test]
fn what_a_project_says_is_what_git_and_the_mind_can_do() {
    for (line, key, words) in [
        ("merge = \"squash\"", "merge", "none of rebase, merge"),
        ("merge = true", "merge", "text in quotes"),
        ("main_checkout = \"gaurd\"", "main_checkout", "is guard meant?"),
        ("gate_wall = \"0s\"", "gate_wall", "more than 0"),
        ("gate_wall = 30", "gate_wall", "a duration in quotes"),
        ("gate_output = \"0\"", "gate_output", "more than 0"),
        ("gate_output = \"1GB\"", "gate_output", "no size"),
        ("retry_wait = \"0ms\"", "retry_wait", "would be tried at once"),
        (
            "retry_wait_most = \"5s\"",
            "retry_wait_most",
            "5s is shorter than retry_wait, which is 10s",
        ),
        ("retry_wait_most = \"x\"", "retry_wait_most", "no duration"),
        ("max_retries = -1", "max_retries", "from 0 on"),
        ("base_branch = \"a..b\"", "base_branch", "no name for a branch"),
        ("base_branch = \"\"", "base_branch", "it is empty"),
        ("branch_prefix = \"-x\"", "branch_prefix", "no branch of git can begin"),
        ("branch_prefix = \"a b/\"", "branch_prefix", "no branch of git can begin"),
        ("worktree_root = \"~you/x\"", "worktree_root", "begin it with ~/"),
        ("copy = [\"../x\"]", "copy", "not below the repository"),
    ] {
        let text = format!("[project]\n{line}");
        wrong(of_repository, &text, &[(2, &format!("project.{key}"), words)]);
    }
    wrong(
        of_repository,
        "[project]\nbase_branch = \"main\"\nbranch_prefix = \"main/\"",
        &[(3, "project.branch_prefix", "no branch below another")],
    );
    let project = |text: &str| repository("F", text.as_bytes(), &[]).expect("it reads").project;
    let usual = project("");
    assert_eq!(usual, Project::default());
    assert_eq!((usual.max_retries, usual.branch_prefix.as_str()), (3, "kennel/"));
    assert_eq!((usual.merge, usual.main_checkout), (MergeMode::Rebase, MainCheckout::Guard));
    let own = project(
        "[project]\nmerge = \"merge\"\nmain_checkout = \"share\"\nretry_wait = \"1h\"\n\
         max_retries = 0\ngate_wall = \"1m\"\ngate_output = \"1K\"\nbase_branch = \"a/b\"",
    );
    assert_eq!((own.merge, own.main_checkout), (MergeMode::Merge, MainCheckout::Share));
    assert_eq!((own.gate_wall, own.gate_output), (Duration::from_secs(60), 1024));
    // The longest wait is never the shorter one.
    assert_eq!((own.retry_wait, own.retry_wait_most, own.max_retries), {
        (Duration::from_secs(3600), Duration::from_secs(3600), 0)
    });
    assert_eq!(own.base_branch.as_deref(), Some("a/b"));
}

#[test]
fn every_agent_is_one_thing_with_one_name() {
    let agent = |lines: &str| format!("[[agent]]\nname = \"a\"\n{lines}");
    for (text, expected) in [
        (agent("kind = \"claude\"\ncommand = [\"x\"]"), &[(4, "agent.command", "has its own")][..]),
        (
            agent("kind = \"codex\"\nallowed_tools = [\"x\"]"),
            &[(4, "agent.allowed_tools", "takes no list")],
        ),
        (agent("kind = \"command\""), &[(1, "agent.command", "has to have one")]),
        (agent("model = \"m\""), &[(1, "agent.kind", "say what it is")]),
        (agent("command = \"x y\""), &[(3, "agent.command", "[\"x\", \"y\"]")]),
        (agent("command = []"), &[(3, "agent.command", "begins with a program")]),
        (agent("command = [1]"), &[(3, "agent.command", "in a list of text")]),
        (
            agent("command = [\"sh\", \"-c\", \"x {prompt}\"]"),
            &[(3, "agent.command", "a word of its own")],
        ),
        ("[[agent]]\ncommand = [\"x\"]".to_owned(), &[(1, "agent.name", "no name")]),
        (
            "[[agent]]\nname = \"a b\"\ncommand = [\"x\"]".to_owned(),
            &[(2, "agent.name", "not a name")],
        ),
        (
            "[[agent]]\nname = \"-a\"\ncommand = [\"x\"]".to_owned(),
            &[(2, "agent.name", "not a name")],
        ),
        (
            "[[agent]]\nname = \"\"\ncommand = [\"x\"]".to_owned(),
            &[(2, "agent.name", "not a name")],
        ),
        (format!("{COMMAND}{COMMAND}"), &[(5, "agent.name", "another agent \"a\"")]),
        ("[agent]\nname = \"a\"".to_owned(), &[(1, "agent", "write [[agent]]")]),
        ("agent = [1]".to_owned(), &[(1, "agent", "a whole number")]),
    ] {
        wrong(of_repository, &text, expected);
        wrong(of_user, &text, expected);
    }
}

#[test]
fn what_does_not_read_is_told_by_its_line() {
    wrong(of_user, "[limits\nwall = \"1h\"", &[(1, "", "")]);
    wrong(of_user, "a = 1\na = 2", &[(2, "", "duplicate key")]);
    let not_text = user("F", b"# fine\n\xff\xfe\x00").unwrap_err();
    assert_eq!(not_text[0].to_string(), "F:2: this is not text: write the file in UTF-8");
    let large = user("F", &vec![b'#'; MAX_FILE_BYTES + 1]).unwrap_err();
    assert!(large[0].to_string().contains("F: the file is too large"), "{large:?}");
    // Deep, long, and torn anywhere: never a panic, always a place or a meaning.
    let deep = format!("a = {}", "[".repeat(10_000));
    assert!(user("F", deep.as_bytes()).is_err());
    let many: String = (0..1000).map(|n| format!("k{n} = 1\n")).collect();
    assert_eq!(user("F", many.as_bytes()).unwrap_err().len(), 50);
    for end in (0..REPOSITORY_TEXT.len()).step_by(7) {
        let torn = repository("F", &REPOSITORY_TEXT.as_bytes()[..end], &[]);
        assert!(torn.is_ok() || torn.is_err_and(|problems| !problems.is_empty()));
    }
}

#[test]
fn a_pipeline_that_cannot_end_or_names_nobody_is_refused() {
    let stage = |name: &str, more: &str| format!("[[stage]]\nname = \"{name}\"\n{more}\n");
    let done = stage("done", "terminal = true");
    for (text, expected) in [
        (
            format!("{}{done}", stage("a", "agents = [\"nobody\"]")),
            &[(3, "stage.agents", "there is no agent \"nobody\"; there are mine")][..],
        ),
        (
            format!("{}{done}", stage("a", "next = \"doen\"")),
            &[(3, "stage.next", "is done meant?")],
        ),
        (
            format!("{}{done}", stage("a", "on_failure = \"x\"")),
            &[(3, "stage.on_failure", "no stage")],
        ),
        (
            stage("a", "next = \"b\"") + &stage("b", "next = \"a\""),
            &[(3, "stage.next", "never end"), (6, "stage.next", "never end")],
        ),
        (stage("a", ""), &[(1, "stage.next", "never end")]),
        (format!("{done}{done}"), &[(5, "stage.name", "another stage")]),
        (stage("h", "hold = true\nterminal = true"), &[(3, "stage.hold", "not both")]),
        (
            format!("{}{done}", stage("h", "hold = true\nagents = [\"mine\"]")),
            &[(4, "stage.agents", "nothing is done")],
        ),
        (
            format!(
                "{}{}{done}",
                stage("a", "next = \"b\"\non_failure = \"done\""),
                stage("b", "next = \"a\"")
            ),
            &[(3, "stage.next", "success alone"), (7, "stage.next", "success alone")],
        ),
        (
            format!("{}{done}", stage("a", "next = \"a\"\non_failure = \"done\"")),
            &[(3, "stage.next", "success alone")],
        ),
        ("stage = []".to_owned(), &[(1, "stage", "leave it out")]),
        (
            format!("{}{done}", stage("h", "hold = true\nmerge = true")),
            &[(4, "stage.merge", "nothing is done")],
        ),
        (stage("t", "terminal = true\nmerge = true"), &[(4, "stage.merge", "nothing is done")]),
        (format!("{}{done}", stage("a", "merge = 1")), &[(3, "stage.merge", "true or false")]),
        (
            format!("{}{done}", stage("a", "success = true")),
            &[(3, "stage.success", "only a terminal")],
        ),
        (
            format!("{}{done}", stage("h", "hold = true\nsuccess = false")),
            &[(4, "stage.success", "only a terminal")],
        ),
        (stage("t", "terminal = true\nsuccess = \"no\""), &[(4, "stage.success", "true or false")]),
        (
            format!("{}{done}", stage("a", "sucess = true")),
            &[(3, "stage.sucess", "is success meant?")],
        ),
        (format!("{}{done}", stage("a", "order = 1")), &[(1, "stage", "every stage an order")]),
        (
            format!("{}{done}", stage("a", "gates = [\"make\"]")),
            &[(3, "stage.gates", "a list of words")],
        ),
    ] {
        wrong(of_repository, &text, expected);
    }
    let good = format!(
        "{}{}{done}",
        stage("a", "agents = [\"mine\"]\nmax_runs = 2\ngates = [[\"make\", \"test\"]]"),
        stage("b", "on_failure = \"a\""),
    );
    let stages = repository("F", good.as_bytes(), &["mine".to_owned()]).unwrap().stages;
    let next: Vec<_> = stages.iter().map(|stage| stage.next.as_deref()).collect();
    assert_eq!(next, [Some("b"), Some("done"), None]);
    assert_eq!(stages[0].gates, [["make", "test"]]);
    // In their order, which need not be that of the file.
    let turned = stage("done", "order = 2\nterminal = true") + &stage("a", "order = 1");
    let stages = repository("F", turned.as_bytes(), &[]).unwrap().stages;
    assert_eq!(stages[0].next.as_deref(), Some("done"));
}

#[test]
fn the_default_pipeline_has_each_agent_where_its_profile_says() {
    let of = |name: &str, role: &str| {
        format!("[[agent]]\nname = \"{name}\"\ncommand = [\"x\"]\nstage = \"{role}\"\n")
    };
    let text = of("c1", "coder") + &of("q", "qa") + &of("c2", "coder") + &of("o", "other");
    let stages = repository("F", text.as_bytes(), &[]).unwrap().stages;
    let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(
        names,
        ["backlog", "current", "qa", "merge", "done", "archived", "blocked", "frozen"]
    );
    assert_eq!(stages[1].agents, ["c1", "c2"]);
    assert_eq!(stages[2].agents, ["q"]);
    assert_eq!(stages[3].agents, Vec::<String>::new());
    let holds = stages.iter().filter(|stage| stage.kind == StageKind::Hold).count();
    assert_eq!(holds, 2);
}

#[test]
fn a_channel_has_the_shape_of_its_kind_and_stays_on_this_machine_unless_told() {
    let channel = |lines: &str| format!("[[channel]]\nname = \"c\"\n{lines}");
    for (lines, expected) in [
        ("", &[(1, "channel.kind", "say what it is")][..]),
        ("kind = \"webhok\"", &[(3, "channel.kind", "is webhook meant?")]),
        ("kind = \"webhook\"", &[(1, "channel.url", "has to have one")]),
        ("kind = \"webhook\"\nurl = \"http://h.example/\"", &[(4, "channel.url", "remote = true")]),
        (
            "kind = \"webhook\"\nurl = \"http://127.0.0.1@h.example/\"",
            &[(4, "channel.url", "no address")],
        ),
        (
            "kind = \"webhook\"\nurl = \"http://127.0.0.1.h.example/\"",
            &[(4, "channel.url", "another machine")],
        ),
        ("kind = \"webhook\"\nurl = \"ftp://localhost/\"", &[(4, "channel.url", "no address")]),
        ("kind = \"webhook\"\nurl = \"http://localhost:x/\"", &[(4, "channel.url", "no address")]),
        (
            "kind = \"webhook\"\nurl = \"http://localhost\"\nsecret = \"s\"\nsecret_env = \"S\"",
            &[(6, "channel.secret_env", "one of them")],
        ),
        ("kind = \"command\"", &[(1, "channel.command", "has to have one")]),
        ("kind = \"wake\"\nwall = \"1s\"", &[(4, "channel.wall", "has none")]),
        ("kind = \"desktop\"\ntries = 0", &[(4, "channel.tries", "")]),
        ("kind = \"desktop\"\ntries = 1001", &[(4, "channel.tries", "may be 1000")]),
        ("kind = \"desktop\"\nfirst_pause = \"0s\"", &[(4, "channel.first_pause", "more than 0")]),
        ("kind = \"desktop\"\nurl = \"http://localhost\"", &[(4, "channel.url", "has none")]),
        ("kind = \"desktop\"\nkinds = [\"end\"]", &[(4, "channel.kinds", "no kind of notice")]),
        ("kind = \"desktop\"\nfailures_only = 1", &[(4, "channel.failures_only", "true or false")]),
    ] {
        wrong(of_user, &channel(lines), expected);
    }
    for url in [
        "http://localhost",
        "http://127.0.0.1:8080/x?y#z",
        "https://[::1]:9/",
        "http://[::1]",
        "http://127.1.2.3/",
    ] {
        let text = channel(&format!("kind = \"webhook\"\nurl = {url:?}\nsecret = \"s3\""));
        let channels = user("F", text.as_bytes()).unwrap().channels;
        let Delivery::Webhook { url: read, secret, .. } = &channels[0].delivery else { panic!() };
        assert_eq!((read.as_str(), secret), (url, &Some(Secret::Text("s3".to_owned()))));
        assert!(!format!("{channels:?}").contains("s3"), "a secret is shown");
    }
    let far = channel("kind = \"webhook\"\nurl = \"https://h.example:1/\"\nremote = true");
    assert!(user("F", far.as_bytes()).is_ok());
    let wake = channel("kind = \"wake\"\nagent = \"a\"\nkinds = [\"ended\"]\nfailures_only = true");
    let channels = user("F", wake.as_bytes()).unwrap().channels;
    assert_eq!(channels[0].delivery, Delivery::Wake { agent: Some("a".to_owned()) });
    assert!(channels[0].failures_only && channels[0].kinds == ["ended"]);
}

/// The text with every example in it made real.
fn with_examples(text: &str) -> String {
    let is_example = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        let is_key =
            line.contains(" = ") && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_key || line.starts_with("[[") || line.starts_with("[l")
    };
    let line = |line: &str| match line.strip_prefix("# ").filter(|rest| is_example(rest)) {
        Some(example) => example.to_owned(),
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_files_that_are_written_read_and_so_does_every_example_in_them() {
    let plain = repository("F", REPOSITORY_TEXT.as_bytes(), &[]).unwrap();
    assert_eq!(plain.agents[0].name, "coder");
    assert_eq!(plain.agents[0].limits.wall_ms, Some(7_200_000));
    let full = repository("F", with_examples(REPOSITORY_TEXT).as_bytes(), &[]).unwrap();
    assert_eq!((full.agents.len(), full.stages.len()), (3, 6), "the examples are not found");
    assert!(full.project.worktree_root.is_some() && full.agents[0].limits.memory.is_some());
    // What is written there as an example is what counts without it.
    let unsaid = Project { base_branch: Some("main".to_owned()), ..Project::default() };
    assert_eq!(plain.project, unsaid);
    let said = Project { worktree_root: None, copy: Vec::new(), ..full.project };
    let said = Project { setup: Vec::new(), teardown: Vec::new(), ..said };
    assert_eq!((said, &full.agents[0].provider), (unsaid, &plain.agents[0].provider));
    assert_eq!(user("F", USER_TEXT.as_bytes()), Ok(User::default()));
    let full = user("F", with_examples(USER_TEXT).as_bytes()).unwrap();
    assert_eq!((full.agents.len(), full.channels.len()), (1, 4), "the examples are not found");
    assert_eq!(full.caps.output, Some(4 << 30));
}
