//! From the bytes of a file to what it says, or to everything that is wrong with it. Pure.
//!
//! Owns: which keys there are and what each may be. The tree comes from the `toml` crate, whose
//! values know where they stand; derived readers would stop at the first wrong key and could name
//! neither its line nor the one that was meant.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use kennel_process::{MAX_GRACE, Signal};
use kennel_transcript::Format;
use toml::de::DeTable;

use super::problem::{Problem, Problems};
use super::table::{Table, one_of};
use super::{
    Agent, Channel, Client, Delivery, MAX_CHANNELS, MAX_FILE_BYTES, MAX_TRIES, MainCheckout,
    Project, Repository, Resume, Role, Secret, Starts, User, provider, stages,
};
use crate::api::wire::Limits;
use crate::notice::{KINDS, kind_of_word, word};
use crate::steps::{MergeMode, is_branch_name};

/// The longest name of an agent, a stage or a channel: it is a slot's and a branch's part too.
const MAX_NAME_BYTES: usize = 64;
/// So many problems of one file are told: whoever has more reads the rest after these are solved.
const MAX_PROBLEMS: usize = 50;
/// The word of a command that the prompt takes the place of.
pub(super) const PROMPT: &str = "{prompt}";

/// Reads the user's file.
pub fn user(file: &str, bytes: &[u8]) -> Result<User, Vec<Problem>> {
    let here = [
        ("stage", "stages are a repository's: put them into its kennel.toml"),
        ("project", "this is a repository's: put it into its kennel.toml"),
    ];
    read(file, bytes, |root, to| {
        let caps = root.table(to, "limits").map(|table| {
            let caps = limits(&table, to);
            table.end(to, &[]);
            caps
        });
        let agents = agents(&root, to);
        let channels = named(&root, to, "channel", channel);
        if channels.len() > MAX_CHANNELS {
            root.wrong(to, "channel", format!("there may be {MAX_CHANNELS} of them"));
        }
        root.end(to, &here);
        User { caps: caps.unwrap_or_default(), agents, channels }
    })
}

/// Reads a repository's file. `others` are agents it may name and does not have: the user's.
pub fn repository(file: &str, bytes: &[u8], others: &[String]) -> Result<Repository, Vec<Problem>> {
    let here = [
        ("limits", "caps are the user's: put limits into each [[agent]]"),
        ("channel", "channels are the user's: put them into the user's config.toml"),
    ];
    read(file, bytes, |root, to| {
        let agents = agents(&root, to);
        let project = root.table(to, "project").map(|table| project(table, to));
        let stages = stages::stages(&root, to, &agents, others);
        root.end(to, &here);
        Repository { agents, stages, project: project.unwrap_or_default() }
    })
}

fn read<T>(
    file: &str,
    bytes: &[u8],
    meaning: impl FnOnce(Table<'_, '_>, &mut Problems<'_>) -> T,
) -> Result<T, Vec<Problem>> {
    let whole = |line, message| vec![Problem { file: file.to_owned(), line, key: None, message }];
    if bytes.len() > MAX_FILE_BYTES {
        let message = format!("the file is too large: it may have {MAX_FILE_BYTES} bytes");
        return Err(whole(None, message));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let good = &bytes[..e.valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        whole(Some(line), "this is not text: write the file in UTF-8".to_owned())
    })?;
    let mut problems = Problems::of(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    // What was made of a text that does not read would only give problems nobody has.
    if !errors.is_empty() {
        for error in errors {
            problems.at(error.span().unwrap_or(0..0), "", error.message());
        }
        return Err(first(problems));
    }
    let said = meaning(Table::of("", root.get_ref(), 0..0), &mut problems);
    let found = first(problems);
    if found.is_empty() { Ok(said) } else { Err(found) }
}

fn first(problems: Problems<'_>) -> Vec<Problem> {
    let mut found = problems.into_found();
    found.truncate(MAX_PROBLEMS);
    found
}

/// The tables of a list, each with a name that no other has.
pub(super) fn named<T>(
    root: &Table<'_, '_>,
    to: &mut Problems<'_>,
    key: &'static str,
    one: impl Fn(&Table<'_, '_>, &mut Problems<'_>, String) -> Option<T>,
) -> Vec<T> {
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for table in root.tables(to, key) {
        let name = name(&table, to);
        if let Some(name) = &name
            && !names.insert(name.clone())
        {
            table.wrong(to, "name", format!("there is another {key} {name:?}"));
        }
        all.extend(one(&table, to, name.unwrap_or_default()));
        table.end(to, &[]);
    }
    all
}

fn name(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<String> {
    if !table.has("name") {
        table.wrong(to, "name", "it has no name");
    }
    let name = table.text(to, "name")?;
    let right = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && name.len() <= MAX_NAME_BYTES && name.chars().all(right) {
        return Some(name);
    }
    let message = format!(
        "{name:?} is not a name: use 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' and '.', a \
         letter or digit first"
    );
    table.wrong(to, "name", message);
    None
}

fn limits(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Limits {
    Limits {
        max_turns: table.number(to, "max_turns", 1),
        max_tool_turns: table.number(to, "max_tool_turns", 1),
        max_budget_usd: table.money(to, "max_budget_usd"),
        max_tokens: table.number(to, "max_tokens", 1),
        wall_ms: bound(table, to, "wall"),
        idle_ms: bound(table, to, "idle"),
        idle_tools: table.flag(to, "idle_tools").unwrap_or(false),
        finish_ms: bound(table, to, "finish"),
        memory: bytes(table, to, "memory"),
        pids: table.small_number(to, "pids", 1),
        output: bytes(table, to, "output"),
    }
}

fn bound(table: &Table<'_, '_>, to: &mut Problems<'_>, key: &'static str) -> Option<u64> {
    let time = table.duration(to, key)?;
    if time == Duration::ZERO {
        table.wrong(to, key, "use more than 0: nothing could run under it");
    }
    Some(time.as_millis() as u64)
}

fn bytes(table: &Table<'_, '_>, to: &mut Problems<'_>, key: &'static str) -> Option<u64> {
    let bytes = table.size(to, key)?;
    if bytes == 0 {
        table.wrong(to, key, "use more than 0: nothing could run under it");
    }
    Some(bytes)
}

fn agents(root: &Table<'_, '_>, to: &mut Problems<'_>) -> Vec<Agent> {
    named(root, to, "agent", |table, to, name| {
        let roles = [
            ("coder", Role::Coder),
            ("qa", Role::Qa),
            ("merge", Role::Merge),
            ("other", Role::Other),
        ];
        let role = table.word(to, "stage", &roles).unwrap_or(Role::Other);
        let starts = starts(table, to);
        let client = match &starts {
            Some(Starts::Client { client, .. }) => Some(*client),
            Some(Starts::Command { .. }) | None => None,
        };
        let policies = [("session", Resume::Session), ("never", Resume::Never)];
        let resume = table.word(to, "resume", &policies);
        if resume == Some(Resume::Session) && client.is_none() {
            table.wrong(to, "resume", "a command has no session: only a client's can go on");
        }
        let usual = if client.is_some() { Resume::Session } else { Resume::Never };
        let served_by = provider(table, to);
        let prompt = table.text(to, "prompt");
        if prompt.as_ref().is_some_and(|prompt| prompt.contains('\0')) {
            table.wrong(to, "prompt", "it has a zero byte, which no argument can have");
        }
        let limits = limits(table, to);
        let (grace, signal) = (grace(table, to), gentle_signal(table, to));
        let env = table.variables(to, "env").unwrap_or_default();
        let max_instances = table.small_number(to, "max_instances", 1);
        let starts = starts?;
        Some(Agent {
            provider: served_by.unwrap_or_else(|| provider::usual(&name, &starts)),
            name,
            role,
            starts,
            prompt,
            limits,
            grace,
            gentle_signal: signal.unwrap_or_else(|| usual_signal(client)),
            resume: resume.unwrap_or(usual),
            env,
            max_instances,
        })
    })
}

fn provider(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<String> {
    let text = table.text(to, "provider")?;
    let odd = |c: char| c.is_control() || c.is_whitespace();
    if text.is_empty() || text.len() > MAX_NAME_BYTES || text.contains(odd) {
        let message =
            format!("use 1 to {MAX_NAME_BYTES} letters without spaces, like \"anthropic\"");
        table.wrong(to, "provider", message);
    }
    Some(text)
}

/// What it starts: a command in so many words, or a client with what it is to be told.
fn starts(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<Starts> {
    let kinds = [
        ("claude", Some(Client::Claude)),
        ("codex", Some(Client::Codex)),
        ("gemini", Some(Client::Gemini)),
        ("opencode", Some(Client::Opencode)),
        ("command", None),
    ];
    let kind = table.word(to, "kind", &kinds);
    let words = table.command(to, "command");
    let format = table.text(to, "format");
    let program = table.text(to, "program");
    let model = table.text(to, "model");
    let tools = table.texts(to, "allowed_tools");
    let args = table.texts(to, "args");
    let client = match kind {
        Some(client) => client,
        // Said wrongly, and told already.
        None if table.has("kind") => return None,
        None if table.has("command") => None,
        None => {
            let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
            table.wrong(to, "kind", format!("say what it is: {}", names.join(", ")));
            return None;
        }
    };
    match client {
        None => {
            for key in ["model", "allowed_tools", "args", "program"] {
                if table.has(key) {
                    let message = "a command is started as it is: put this into its words, or \
                                   name a client as kind";
                    table.wrong(to, key, message);
                }
            }
            if !table.has("command") {
                table.wrong(to, "command", "an agent of kind command has to have one");
            }
            check_format(table, to, format.as_deref());
            let words = words?;
            check_placeholder(table, to, &words);
            Some(Starts::Command { words, format })
        }
        Some(client) => {
            let word = client.word();
            for key in ["command", "format"] {
                if table.has(key) {
                    let message = format!(
                        "kind {word} has its own: use model, allowed_tools and args, or kind \
                         command"
                    );
                    table.wrong(to, key, message);
                }
            }
            let listed = matches!(client, Client::Claude | Client::Gemini);
            if table.has("allowed_tools") && !listed {
                let message = format!("{word} takes no list of tools: use args for its own rules");
                table.wrong(to, "allowed_tools", message);
            }
            for (key, text) in [("model", &model), ("program", &program)] {
                if text.as_ref().is_some_and(|text| text.is_empty() || text.contains('\0')) {
                    table.wrong(to, key, "it is empty, or has a zero byte");
                }
            }
            let (allowed_tools, args) = (tools.unwrap_or_default(), args.unwrap_or_default());
            Some(Starts::Client { client, program, model, allowed_tools, args })
        }
    }
}

fn check_format(table: &Table<'_, '_>, to: &mut Problems<'_>, format: Option<&str>) {
    if let Some(name) = format.filter(|name| *name != "none")
        && let Err(e) = Format::from_str(name)
    {
        table.wrong(to, "format", format!("{name:?} is {e}, or none"));
    }
}

/// Inside another word it would be for a shell to take apart, and a prompt is anybody's text.
fn check_placeholder(table: &Table<'_, '_>, to: &mut Problems<'_>, words: &[String]) {
    if words.iter().any(|word| word.contains(PROMPT) && word != PROMPT) {
        let message = "{prompt} has to be a word of its own: in a shell's line, use \"$1\" and put \
                       \"sh\", \"{prompt}\" behind it";
        table.wrong(to, "command", message);
    }
    if words.iter().any(|word| word.contains('\0')) {
        table.wrong(to, "command", "a word has a zero byte, which no argument can have");
    }
}

fn grace(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<Duration> {
    let grace = table.duration(to, "grace")?;
    if grace > MAX_GRACE {
        table.wrong(to, "grace", format!("it may have {} hours", MAX_GRACE.as_secs() / 3600));
    }
    Some(grace)
}

fn gentle_signal(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<Signal> {
    let text = table.text(to, "gentle_signal")?;
    match text.parse::<Signal>() {
        Ok(Signal::KILL | Signal::STOP) => {
            table.wrong(to, "gentle_signal", format!("{text} asks for nothing: use INT or TERM"));
            None
        }
        Ok(signal) => Some(signal),
        Err(e) => {
            table.wrong(to, "gentle_signal", e.to_string());
            None
        }
    }
}

/// The signal after which a client tells its result and keeps its session, as measured.
fn usual_signal(client: Option<Client>) -> Signal {
    match client {
        Some(Client::Claude | Client::Codex) => Signal::INT,
        Some(Client::Gemini | Client::Opencode) | None => Signal::TERM,
    }
}

fn project(table: Table<'_, '_>, to: &mut Problems<'_>) -> Project {
    let text = |to: &mut Problems<'_>, key: &'static str| {
        let text = table.text(to, key)?;
        if text.is_empty() || text.chars().any(char::is_control) {
            table.wrong(to, key, "it is empty, or has a control character");
            return None;
        }
        Some(text)
    };
    let usual = Project::default();
    let merges = [("rebase", MergeMode::Rebase), ("merge", MergeMode::Merge)];
    let whose = [("guard", MainCheckout::Guard), ("share", MainCheckout::Share)];
    let (retry_wait, retry_wait_most) = retry_waits(&table, to, &usual);
    let project = Project {
        base_branch: text(to, "base_branch"),
        max_retries: table.small_number(to, "max_retries", 0).unwrap_or(usual.max_retries),
        retry_wait,
        retry_wait_most,
        merge: table.word(to, "merge", &merges).unwrap_or(usual.merge),
        gate_wall: positive(&table, to, "gate_wall").unwrap_or(usual.gate_wall),
        gate_output: bytes(&table, to, "gate_output").unwrap_or(usual.gate_output),
        main_checkout: table.word(to, "main_checkout", &whose).unwrap_or(usual.main_checkout),
        worktree_root: text(to, "worktree_root"),
        branch_prefix: text(to, "branch_prefix").unwrap_or(usual.branch_prefix),
        copy: table.texts(to, "copy").unwrap_or_default(),
        setup: table.commands(to, "setup").unwrap_or_default(),
        teardown: table.commands(to, "teardown").unwrap_or_default(),
    };
    check_branches(&table, to, &project);
    check_paths(&table, to, &project);
    table.end(to, &[]);
    project
}

/// The first wait before a retry, and the longest, which is never the shorter one.
fn retry_waits(
    table: &Table<'_, '_>,
    to: &mut Problems<'_>,
    usual: &Project,
) -> (Duration, Duration) {
    let mut wait = |key| {
        let wait = table.duration(to, key)?;
        if wait == Duration::ZERO {
            table.wrong(to, key, "use more than 0: what fails at once would be tried at once");
        }
        Some(wait)
    };
    let (first, most) = (wait("retry_wait"), wait("retry_wait_most"));
    let first_or_usual = first.unwrap_or(usual.retry_wait);
    if let Some(most) = most.filter(|most| *most < first_or_usual) {
        let message = format!("{most:?} is shorter than retry_wait, which is {first_or_usual:?}");
        table.wrong(to, "retry_wait_most", message);
    }
    (first_or_usual, most.unwrap_or(usual.retry_wait_most).max(first_or_usual))
}

/// What git would not take as a branch is told here, and not by the first story.
fn check_branches(table: &Table<'_, '_>, to: &mut Problems<'_>, project: &Project) {
    let Project { base_branch, branch_prefix, .. } = project;
    if let Some(base) = base_branch.as_ref().filter(|base| !is_branch_name(base)) {
        table.wrong(to, "base_branch", format!("{base:?} is no name for a branch of git"));
    }
    if !is_branch_name(&format!("{branch_prefix}x")) {
        let message = format!("no branch of git can begin with {branch_prefix:?}");
        table.wrong(to, "branch_prefix", message);
    }
    let below = |base: &&String| branch_prefix.starts_with(&format!("{base}/"));
    if let Some(base) = base_branch.as_ref().filter(below) {
        let message = format!("git has no branch below another: {base:?} is one already");
        table.wrong(to, "branch_prefix", message);
    }
}

fn check_paths(table: &Table<'_, '_>, to: &mut Problems<'_>, project: &Project) {
    let leaves = |path: &String| path.starts_with('/') || path.split('/').any(|part| part == "..");
    if let Some(path) = project.copy.iter().find(|path| leaves(path)) {
        table.wrong(to, "copy", format!("{path:?} is not below the repository"));
    }
    let of_another =
        |root: &String| root.starts_with('~') && root != "~" && !root.starts_with("~/");
    if project.worktree_root.as_ref().is_some_and(of_another) {
        table.wrong(to, "worktree_root", "only your own home is known: begin it with ~/");
    }
}

fn channel(table: &Table<'_, '_>, to: &mut Problems<'_>, name: String) -> Option<Channel> {
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Webhook,
        Command,
        Desktop,
        Wake,
    }
    let words = [
        ("webhook", Kind::Webhook),
        ("command", Kind::Command),
        ("desktop", Kind::Desktop),
        ("wake", Kind::Wake),
    ];
    let kind = table.word(to, "kind", &words);
    if !table.has("kind") {
        table.wrong(to, "kind", "say what it is: webhook, command, desktop or wake");
    }
    let url = table.text(to, "url");
    let secret = secret(table, to);
    let remote = table.flag(to, "remote").unwrap_or(false);
    let answer_within = positive(table, to, "answer_within");
    let command = table.command(to, "command");
    let bounds = hook_limits(table, to);
    let agent = table.text(to, "agent");
    let kinds = kinds(table, to);
    let failures_only = table.flag(to, "failures_only").unwrap_or(false);
    let tries = table.small_number(to, "tries", 1);
    if tries.is_some_and(|tries| tries > MAX_TRIES) {
        table.wrong(to, "tries", format!("it may be {MAX_TRIES}"));
    }
    let first_pause = positive(table, to, "first_pause");
    let kind = kind?;
    let (own, needed, word): (&[&str], _, _) = match kind {
        Kind::Webhook => {
            (&["url", "secret", "secret_env", "remote", "answer_within"], Some("url"), "webhook")
        }
        Kind::Command => {
            (&["command", "wall", "output", "memory", "pids"], Some("command"), "command")
        }
        Kind::Desktop => (&[], None, "desktop"),
        Kind::Wake => (&["agent"], None, "wake"),
    };
    for key in CHANNEL_KEYS {
        if table.has(key) && !own.contains(&key) {
            table.wrong(to, key, format!("a channel of kind {word} has none"));
        }
    }
    if let Some(needed) = needed.filter(|key| !table.has(key)) {
        table.wrong(to, needed, format!("a channel of kind {word} has to have one"));
    }
    let delivery = match kind {
        Kind::Webhook => {
            let url = url?;
            check_url(table, to, &url, remote);
            Delivery::Webhook { url, secret, remote, answer_within }
        }
        Kind::Command => Delivery::Command { words: command?, limits: bounds },
        Kind::Desktop => Delivery::Desktop,
        Kind::Wake => Delivery::Wake { agent },
    };
    Some(Channel { name, delivery, kinds, failures_only, tries, first_pause })
}

/// What a channel may have beside what all have, by its kind.
const CHANNEL_KEYS: [&str; 11] = [
    "url",
    "secret",
    "secret_env",
    "remote",
    "answer_within",
    "command",
    "wall",
    "output",
    "memory",
    "pids",
    "agent",
];

/// Bounds on a program that is told of notices: it speaks no client's words.
fn hook_limits(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Limits {
    Limits {
        wall_ms: bound(table, to, "wall"),
        memory: bytes(table, to, "memory"),
        pids: table.small_number(to, "pids", 1),
        output: bytes(table, to, "output"),
        ..Limits::default()
    }
}

fn positive(table: &Table<'_, '_>, to: &mut Problems<'_>, key: &'static str) -> Option<Duration> {
    bound(table, to, key).map(Duration::from_millis)
}

fn secret(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Option<Secret> {
    let (text, variable) = (table.text(to, "secret"), table.text(to, "secret_env"));
    for (key, value) in [("secret", &text), ("secret_env", &variable)] {
        if value.as_ref().is_some_and(String::is_empty) {
            table.wrong(to, key, "it is empty");
        }
    }
    match (text, variable) {
        (Some(_), Some(_)) => {
            table.wrong(to, "secret_env", "there is a secret too: use one of them");
            None
        }
        (Some(text), None) => Some(Secret::Text(text)),
        (None, Some(name)) => Some(Secret::Variable(name)),
        (None, None) => None,
    }
}

fn kinds(table: &Table<'_, '_>, to: &mut Problems<'_>) -> Vec<String> {
    let kinds = table.texts(to, "kinds").unwrap_or_default();
    if let Some(kind) = kinds.iter().find(|kind| kind_of_word(kind).is_none()) {
        let known = KINDS.map(word);
        table.wrong(
            to,
            "kinds",
            format!("{kind:?} is no kind of notice: {}", one_of(kind, &known)),
        );
    }
    kinds
}

/// A notice leaves this machine only for who says so.
fn check_url(table: &Table<'_, '_>, to: &mut Problems<'_>, url: &str, remote: bool) {
    let Some(host) = host_of(url) else {
        let message = format!("{url:?} is no address: use http://HOST[:PORT]/PATH, no user in it");
        table.wrong(to, "url", message);
        return;
    };
    if !remote && !is_loopback(host) {
        let message = format!("{host} is another machine: add remote = true if that is meant");
        table.wrong(to, "url", message);
    }
}

fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if url.contains(odd) || authority.contains('@') {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':').or((rest.is_empty()).then_some("1"))?),
        None => authority.split_once(':').unwrap_or((authority, "1")),
    };
    (!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Says of a name that is nowhere what there is.
pub(super) fn unknown(what: &str, name: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return format!("there is no {what} {name:?}, nor any other");
    }
    format!("there is no {what} {name:?}; there are {}", one_of(name, names))
}
