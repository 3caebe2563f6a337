//! Tables of what files say, and of what is said about files that are wrong: line, key, what was
//! meant.

use super::init::{REPOSITORY_TEXT, USER_TEXT};
use super::*;

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
    ] {
        wrong_agent(line, &[(4, &format!("agent.{key}"), words)]);
    }
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
    assert_eq!((full.agents.len(), full.stages.len()), (3, 4), "the examples are not found");
    assert!(full.project.worktree_root.is_some() && full.agents[0].limits.memory.is_some());
    assert_eq!(user("F", USER_TEXT.as_bytes()), Ok(User::default()));
    let full = user("F", with_examples(USER_TEXT).as_bytes()).unwrap();
    assert_eq!((full.agents.len(), full.channels.len()), (1, 4), "the examples are not found");
    assert_eq!(full.caps.output, Some(4 << 30));
}
