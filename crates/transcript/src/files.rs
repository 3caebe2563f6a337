//! Where clients keep their files, and what to add to a command line: pure arithmetic on names.
//!
//! Owns the knowledge of paths and flags. Never looks at a disk or an environment: the caller gives
//! what the agent's own environment says, and does the searching.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::format::Format;

/// How deep a search goes at most: for Codex these are year, month and day.
pub const MAX_SEARCH_DEPTH: usize = 3;

/// The longest project directory whose name Claude Code is known to write in full; what it does to
/// a longer one was not measured, so the session is searched for instead.
const MAX_PROJECT_BYTES: usize = 200;

/// What tells a variable of the agent's environment.
pub type Lookup<'l> = &'l dyn Fn(&str) -> Option<OsString>;

/// Where a session's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// In these places. The first that has the file has it; those of sub-agents come in addition.
    At(Vec<Place>),
    /// There is nothing to follow, and this is why.
    None(&'static str),
}

/// Where to look for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// It is in this directory, which need not be there yet.
    pub dir: PathBuf,
    /// Or this many levels of directories below it.
    pub depth: usize,
    /// What it is called.
    pub name: Name,
    /// Whether such files are sub-agents': there may be many, and they appear while the run goes
    /// on.
    pub subagents: bool,
    /// Whether a file of that name may be another session's, so that the
    /// [`Session`](crate::Entry::Session) it tells first has to be compared.
    pub confirm: bool,
}

/// What a file is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Exactly this.
    Exact(String),
    /// This in front, that behind, and anything between them.
    Between(String, String),
}

impl Place {
    /// Whether a file of this name, found there, is meant.
    pub fn matches(&self, file: &str) -> bool {
        match &self.name {
            Name::Exact(name) => name == file,
            Name::Between(front, back) => {
                file.strip_prefix(front.as_str()).is_some_and(|rest| rest.ends_with(back.as_str()))
            }
        }
    }

    fn exact(dir: PathBuf, depth: usize, name: &str) -> Self {
        let name = Name::Exact(name.to_owned());
        Self { dir, depth, name, subagents: false, confirm: false }
    }

    fn below(dir: PathBuf, depth: usize, front: &str, back: &str) -> Self {
        let name = Name::Between(front.to_owned(), back.to_owned());
        Self { dir, depth, name, subagents: false, confirm: false }
    }

    fn of_subagents(self) -> Self {
        Self { subagents: true, ..self }
    }

    fn needing_proof(self) -> Self {
        Self { confirm: true, ..self }
    }
}

/// Where the files of a session are.
///
/// `cwd` is the agent's working directory with links resolved, as the kernel gives it to the
/// client. Only aider's file depends on `argv`.
pub fn files(
    format: Format,
    lookup: Lookup<'_>,
    cwd: &Path,
    session: &str,
    argv: &[String],
) -> Files {
    let home = lookup("HOME").map(PathBuf::from).unwrap_or_default();
    match format {
        Format::Claude => Files::At(claude(lookup, &home, cwd, session)),
        Format::Codex => {
            let root = dir_in(lookup, "CODEX_HOME").unwrap_or_else(|| home.join(".codex"));
            let suffix = format!("-{session}.jsonl");
            let sessions = root.join("sessions");
            Files::At(vec![Place::below(sessions, MAX_SEARCH_DEPTH, "rollout-", &suffix)])
        }
        Format::Gemini => {
            // The directory of a project has a name that only the client's own register knows.
            let root = dir_in(lookup, "GEMINI_CLI_HOME").unwrap_or(home).join(".gemini/tmp");
            Files::At(vec![Place::below(root, 2, "session-", ".jsonl").needing_proof()])
        }
        Format::Copilot => {
            let dir = copilot_root(lookup, &home).join("session-state").join(session);
            Files::At(vec![Place::exact(dir, 0, "events.jsonl")])
        }
        Format::Aider => aider(cwd, argv),
        Format::Opencode => Files::None("opencode keeps a database; standard output suffices"),
        Format::Goose => Files::None("goose keeps a database, which cannot be followed"),
        Format::Qwen => Files::None("standard output suffices; its chat file was not measured"),
        Format::Amp => Files::None("amp rewrites its file as a whole, which cannot be followed"),
        Format::Cursor => Files::None("cursor is not known to keep a file"),
    }
}

/// Where the file of a sub-agent is whose session was told by
/// [`Entry::Subagent`](crate::Entry::Subagent). Claude Code's are found without being told.
pub fn subagent_files(format: Format, lookup: Lookup<'_>, cwd: &Path, child: &str) -> Files {
    match format {
        Format::Codex => match files(format, lookup, cwd, child, &[]) {
            Files::At(places) => Files::At(places.into_iter().map(Place::of_subagents).collect()),
            Files::None(why) => Files::None(why),
        },
        Format::Claude
        | Format::Gemini
        | Format::Opencode
        | Format::Qwen
        | Format::Copilot
        | Format::Goose
        | Format::Aider
        | Format::Amp
        | Format::Cursor => Files::None("its sub-agents have no file that is known by their id"),
    }
}

/// Where the files of all sessions are that this command line could go on with: to know, before it
/// is told which that is, what was there before it.
pub fn older_files(format: Format, lookup: Lookup<'_>, cwd: &Path, argv: &[String]) -> Files {
    let home = lookup("HOME").map(PathBuf::from).unwrap_or_default();
    match format {
        Format::Claude => {
            let projects =
                claude_roots(lookup, &home).into_iter().map(|root| root.join("projects"));
            let project = claude_project(cwd);
            let all = projects.flat_map(|projects| {
                let (dir, more) = match project.len() > MAX_PROJECT_BYTES {
                    true => (projects, 1),
                    false => (projects.join(&project), 0),
                };
                // Those of sub-agents are in `SESSION/subagents`.
                let children = Place::below(dir.clone(), more + 2, "agent-", ".jsonl");
                [Place::below(dir, more, "", ".jsonl"), children.of_subagents()]
            });
            Files::At(all.collect())
        }
        Format::Codex => match files(format, lookup, cwd, "", argv) {
            Files::At(places) => {
                let any = Name::Between("rollout-".to_owned(), ".jsonl".to_owned());
                let all = places.into_iter().map(|place| Place { name: any.clone(), ..place });
                Files::At(all.collect())
            }
            Files::None(why) => Files::None(why),
        },
        Format::Copilot => {
            let all = copilot_root(lookup, &home).join("session-state");
            Files::At(vec![Place::exact(all, 1, "events.jsonl")])
        }
        Format::Gemini
        | Format::Aider
        | Format::Opencode
        | Format::Goose
        | Format::Qwen
        | Format::Amp
        | Format::Cursor => files(format, lookup, cwd, "", argv),
    }
}

fn copilot_root(lookup: Lookup<'_>, home: &Path) -> PathBuf {
    dir_in(lookup, "COPILOT_HOME").unwrap_or_else(|| home.join(".copilot"))
}

fn claude_roots(lookup: Lookup<'_>, home: &Path) -> Vec<PathBuf> {
    match dir_in(lookup, "CLAUDE_CONFIG_DIR") {
        Some(root) => vec![root],
        None => vec![home.join(".claude"), home.join(".config/claude")],
    }
}

fn claude(lookup: Lookup<'_>, home: &Path, cwd: &Path, session: &str) -> Vec<Place> {
    let roots = claude_roots(lookup, home);
    let project = claude_project(cwd);
    let name = format!("{session}.jsonl");
    let mut places = Vec::new();
    for projects in roots.iter().map(|root| root.join("projects")) {
        if project.len() > MAX_PROJECT_BYTES {
            places.push(Place::exact(projects.clone(), 1, &name));
            let children = Place::below(projects, MAX_SEARCH_DEPTH, "agent-", ".jsonl");
            places.push(children.of_subagents().needing_proof());
            continue;
        }
        let dir = projects.join(&project);
        let children = dir.join(session).join("subagents");
        places.push(Place::exact(dir, 0, &name));
        places.push(Place::below(children, 0, "agent-", ".jsonl").of_subagents());
    }
    places
}

/// The name of a project's directory: what is no letter or digit of ASCII becomes a dash, each unit
/// of UTF-16 one, because the client counts characters that way.
fn claude_project(cwd: &Path) -> String {
    let mut name = String::new();
    for c in cwd.to_string_lossy().chars() {
        if c.is_ascii_alphanumeric() {
            name.push(c);
        } else {
            name.extend(std::iter::repeat_n('-', c.len_utf16()));
        }
    }
    name
}

fn aider(cwd: &Path, argv: &[String]) -> Files {
    match value_of(argv, &["--analytics-log"]) {
        Some(log) => {
            let path = cwd.join(log);
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            match (path.parent(), name) {
                (Some(dir), Some(name)) => Files::At(vec![Place::exact(dir.to_owned(), 0, &name)]),
                _ => Files::None("--analytics-log names no file"),
            }
        }
        None => Files::None("aider writes no log without --analytics-log FILE"),
    }
}

fn dir_in(lookup: Lookup<'_>, name: &str) -> Option<PathBuf> {
    lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// How the session of a command line comes by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// We may choose it: insert this flag and the id at this index of the command line.
    Insert {
        /// Where; what stands there moves back.
        at: usize,
        /// To be followed by the id.
        flag: &'static str,
    },
    /// The user has chosen it.
    Already(String),
    /// An older session goes on. Its id, if the command line has it; else the stream will tell.
    Resumed(Option<String>),
    /// A copy of an older session goes on, under an id of its own.
    Forked {
        /// The older one's id, if the command line has it.
        from: Option<String>,
        /// The copy's, if the user has chosen it; else the stream will tell.
        id: Option<String>,
    },
    /// The client chooses it, and tells it in its stream, or not at all.
    Client(&'static str),
}

/// How the session of this command line comes by its id.
pub fn chosen_session(format: Format, argv: &[String]) -> Chosen {
    if let Some(from) = resumed(format, argv) {
        if !forks(format, argv) {
            return Chosen::Resumed(from);
        }
        let id = value_of(argv, &["--session-id"]).map(str::to_owned);
        return Chosen::Forked { from, id };
    }
    let flag = match format {
        Format::Claude | Format::Gemini | Format::Qwen | Format::Copilot => "--session-id",
        Format::Codex => return Chosen::Client("codex tells its thread in the first line"),
        Format::Opencode => return Chosen::Client("opencode tells its session in every line"),
        Format::Goose => return Chosen::Client("goose has names for sessions, and tells no id"),
        Format::Aider => return Chosen::Client("aider has no sessions"),
        Format::Amp => return Chosen::Client("amp tells its thread in every line"),
        Format::Cursor => return Chosen::Client("cursor tells its session in the first line"),
    };
    match value_of(argv, &[flag]) {
        Some(id) => Chosen::Already(id.to_owned()),
        None => Chosen::Insert { at: after_program(format, argv), flag },
    }
}

/// Whether an older session goes on, and which, if the command line says so.
fn resumed(format: Format, argv: &[String]) -> Option<Option<String>> {
    let (with_id, without): (&[&str], &[&str]) = match format {
        Format::Claude => (&["--resume", "-r"], &["--continue", "-c"]),
        Format::Codex => return codex_resumed(argv),
        Format::Gemini => (&["--resume", "-r"], &[]),
        Format::Opencode => (&["--session", "-s"], &["--continue", "-c"]),
        Format::Qwen => (&["--resume", "-r"], &["--continue", "-c"]),
        Format::Copilot => (&["--resume"], &["--continue"]),
        Format::Goose => (&[], &["--resume", "-r"]),
        Format::Aider => (&[], &["--restore-chat-history"]),
        Format::Amp => return has_word(argv, "continue").then_some(None),
        Format::Cursor => (&["--resume"], &["--continue"]),
    };
    if let Some(id) = value_of(argv, with_id) {
        // `latest` and a number are no ids.
        let is_id = id.len() > 8 && !id.starts_with('-');
        return Some(is_id.then(|| id.to_owned()));
    }
    let flags = with_id.iter().chain(without);
    let before = argv.iter().take_while(|word| *word != "--");
    let words: Vec<&str> = before.map(String::as_str).collect();
    flags.clone().any(|flag| words.contains(flag)).then_some(None)
}

/// Whether what goes on is a copy.
fn forks(format: Format, argv: &[String]) -> bool {
    match format {
        Format::Claude | Format::Qwen => has_flag(argv, "--fork-session"),
        Format::Opencode => has_flag(argv, "--fork"),
        Format::Codex => codex_verb(argv).is_some_and(|at| argv[at] == "fork"),
        Format::Gemini
        | Format::Copilot
        | Format::Goose
        | Format::Aider
        | Format::Amp
        | Format::Cursor => false,
    }
}

fn codex_resumed(argv: &[String]) -> Option<Option<String>> {
    let id = argv[codex_verb(argv)? + 1..].iter().find(|word| !word.starts_with('-'));
    Some(id.filter(|id| is_uuid(id)).cloned())
}

fn codex_verb(argv: &[String]) -> Option<usize> {
    argv.iter().position(|word| word == "resume" || word == "fork")
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// The model a command line asks for, for clients whose stream names none.
pub fn chosen_model(format: Format, argv: &[String]) -> Option<&str> {
    let flags: &[&str] = match format {
        Format::Aider | Format::Copilot | Format::Goose | Format::Cursor => &["--model"],
        Format::Claude => &["--model"],
        Format::Codex | Format::Gemini | Format::Opencode | Format::Qwen => &["--model", "-m"],
        Format::Amp => return None,
    };
    value_of(argv, flags)
}

/// Limits of the client's own, to be set looser than ours, so that ours decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Belt {
    /// Responses of its main loop.
    pub turns: Option<u64>,
    /// Tokens of all its threads.
    pub tokens: Option<u64>,
    /// United States dollars.
    pub usd: Option<f64>,
}

/// What to insert into a command line, and where. Nothing for limits the client does not have and
/// for those the user has set.
pub fn belt(format: Format, argv: &[String], belt: &Belt) -> (usize, Vec<String>) {
    let mut words = Vec::new();
    let mut pass = |flag: &str, value: Option<String>| {
        if let Some(value) = value.filter(|_| value_of(argv, &[flag]).is_none()) {
            words.extend([flag.to_owned(), value]);
        }
    };
    let turns = belt.turns.map(|turns| turns.to_string());
    match format {
        Format::Claude => {
            pass("--max-turns", turns);
            pass("--max-budget-usd", belt.usd.map(|usd| usd.to_string()));
        }
        Format::Qwen => pass("--max-session-turns", turns),
        Format::Goose => pass("--max-turns", turns),
        Format::Codex => {
            // Without the list of reminders the client refuses the setting.
            let setting = |n| {
                let reminders = "reminder_at_remaining_tokens=[]";
                format!("features.rollout_budget={{enabled=true,limit_tokens={n},{reminders}}}")
            };
            let is_set = argv.iter().any(|word| word.contains("rollout_budget"));
            if let Some(tokens) = belt.tokens.filter(|_| !is_set) {
                words.extend(["-c".to_owned(), setting(tokens)]);
            }
        }
        Format::Gemini
        | Format::Opencode
        | Format::Copilot
        | Format::Aider
        | Format::Amp
        | Format::Cursor => {}
    }
    (after_program(format, argv), words)
}

/// Behind the program and, where flags belong to a subcommand, behind that. A program that starts
/// the client, such as `env` or `npx`, is passed over.
fn after_program(format: Format, argv: &[String]) -> usize {
    let program = argv.iter().position(|word| Format::guess(word) == Some(format)).unwrap_or(0);
    let subcommand = match format {
        Format::Codex => "exec",
        Format::Goose => "run",
        Format::Claude
        | Format::Gemini
        | Format::Opencode
        | Format::Qwen
        | Format::Copilot
        | Format::Aider
        | Format::Amp
        | Format::Cursor => return (program + 1).min(argv.len()),
    };
    let found = argv.iter().skip(program).position(|word| word == subcommand);
    (program + found.unwrap_or(0) + 1).min(argv.len())
}

/// The value of the first of these flags, as `--flag value` or `--flag=value`.
fn value_of<'a>(argv: &'a [String], flags: &[&str]) -> Option<&'a str> {
    let words: Vec<&str> = argv.iter().map(String::as_str).take_while(|w| *w != "--").collect();
    words.iter().enumerate().find_map(|(n, word)| {
        let flag = flags.iter().find(|flag| word.starts_with(**flag))?;
        match word[flag.len()..].strip_prefix('=') {
            Some(value) => Some(value),
            None if word.len() == flag.len() => words.get(n + 1).copied(),
            None => None,
        }
    })
}

fn has_flag(argv: &[String], flag: &str) -> bool {
    argv.iter().take_while(|word| *word != "--").any(|word| word == flag)
}

fn has_word(argv: &[String], word: &str) -> bool {
    argv.iter().any(|other| other == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn at(format: Format, variables: &[(&str, &str)], session: &str) -> Vec<Place> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| OsString::from(value))
        };
        match files(format, &lookup, Path::new("/srv/a b/ö"), session, &[]) {
            Files::At(places) => places,
            Files::None(why) => panic!("{why}"),
        }
    }

    #[test]
    fn a_claude_session_is_in_the_directory_of_its_project() {
        let places = at(Format::Claude, &[("HOME", "/h")], "S");
        let dirs: Vec<&str> = places.iter().map(|place| place.dir.to_str().unwrap()).collect();
        assert_eq!(
            dirs,
            [
                "/h/.claude/projects/-srv-a-b--",
                "/h/.claude/projects/-srv-a-b--/S/subagents",
                "/h/.config/claude/projects/-srv-a-b--",
                "/h/.config/claude/projects/-srv-a-b--/S/subagents",
            ]
        );
        assert!(places[0].matches("S.jsonl") && !places[0].subagents);
        assert!(!places[0].matches("S.jsonl.gz") && !places[0].matches("xS.jsonl"));
        assert!(places[1].matches("agent-a1.jsonl") && places[1].subagents);
        assert!(!places[1].matches("agent-.json") && !places[1].matches("agent.jsonl"));
        let moved = at(Format::Claude, &[("HOME", "/h"), ("CLAUDE_CONFIG_DIR", "/c")], "S");
        assert_eq!(moved[0].dir, Path::new("/c/projects/-srv-a-b--"));
        assert_eq!(moved.len(), 2);
    }

    #[test]
    fn other_sessions_are_where_their_variables_say() {
        let places = at(Format::Codex, &[("HOME", "/h")], "T");
        assert_eq!(
            (places[0].dir.as_path(), places[0].depth),
            (Path::new("/h/.codex/sessions"), 3)
        );
        assert!(places[0].matches("rollout-2026-11-15T19-37-58-T.jsonl"));
        assert!(!places[0].matches("rollout-2026-11-15T19-37-58-U.jsonl"));
        let places = at(Format::Codex, &[("HOME", "/h"), ("CODEX_HOME", "/x")], "T");
        assert_eq!(places[0].dir, Path::new("/x/sessions"));
        let places = at(Format::Copilot, &[("HOME", "/h")], "S");
        assert_eq!(places[0].dir, Path::new("/h/.copilot/session-state/S"));
        let places = at(Format::Gemini, &[("HOME", "/h")], "S");
        assert_eq!(places[0].dir, Path::new("/h/.gemini/tmp"));
        assert!(places[0].confirm && places[0].matches("session-2026-11-15T20-22-192a49fb.jsonl"));
    }

    #[test]
    fn the_log_of_aider_is_where_its_command_line_says() {
        let none = |_: &str| None;
        let line = argv("aider --analytics-log=log/a.jsonl --message x");
        let Files::At(places) = files(Format::Aider, &none, Path::new("/w"), "", &line) else {
            panic!("it has a log");
        };
        assert_eq!(places[0].dir, Path::new("/w/log"));
        assert!(places[0].matches("a.jsonl"));
        let line = argv("aider --message x");
        assert!(matches!(files(Format::Aider, &none, Path::new("/w"), "", &line), Files::None(_)));
    }

    #[test]
    fn a_session_id_is_ours_unless_the_user_has_one() {
        let insert = |at| Chosen::Insert { at, flag: "--session-id" };
        let chosen = |format, line: &str| chosen_session(format, &argv(line));
        assert_eq!(chosen(Format::Claude, "claude -p x"), insert(1));
        assert_eq!(chosen(Format::Claude, "env A=1 /bin/claude -p x"), insert(3));
        assert_eq!(chosen(Format::Claude, "mine -p x"), insert(1));
        assert_eq!(chosen(Format::Copilot, "copilot -p x"), insert(1));
        let mine = Chosen::Already("U".to_owned());
        assert_eq!(chosen(Format::Claude, "claude --session-id U -p x"), mine);
        assert_eq!(chosen(Format::Qwen, "qwen --session-id=U x"), mine);
        let id = "01a1e0b7-6787-7451-8b85-6b0e2fff5ae1";
        let resumed = Chosen::Resumed(Some(id.to_owned()));
        assert_eq!(chosen(Format::Claude, &format!("claude --resume {id} -p x")), resumed);
        assert_eq!(chosen(Format::Codex, &format!("codex exec resume {id} --json x")), resumed);
        assert_eq!(chosen(Format::Codex, "codex exec resume --last x"), Chosen::Resumed(None));
        assert_eq!(chosen(Format::Gemini, "gemini --resume latest"), Chosen::Resumed(None));
        assert_eq!(chosen(Format::Claude, "claude -c -p x"), Chosen::Resumed(None));
        assert_eq!(chosen(Format::Claude, "claude -p -- --resume"), insert(1));
        assert!(matches!(chosen(Format::Codex, "codex exec x"), Chosen::Client(_)));
    }

    #[test]
    fn a_fork_has_an_id_of_its_own() {
        let (old, new) = ("01a1e0b7-6787-7451-8b85-6b0e2fff5ae1", "U");
        let forked = |from: Option<&str>, id: Option<&str>| Chosen::Forked {
            from: from.map(str::to_owned),
            id: id.map(str::to_owned),
        };
        for (format, line, expected) in [
            (Format::Claude, "claude --resume OLD --fork-session -p x", forked(Some(old), None)),
            (Format::Claude, "claude -c --fork-session -p x", forked(None, None)),
            (
                Format::Claude,
                "claude --fork-session --session-id U -r OLD -p x",
                forked(Some(old), Some(new)),
            ),
            (Format::Qwen, "qwen --resume OLD --fork-session x", forked(Some(old), None)),
            (Format::Opencode, "opencode run -c --fork x", forked(None, None)),
            (Format::Codex, "codex exec fork OLD --json x", forked(Some(old), None)),
            // Not a flag, and not a copy of anything.
            (Format::Claude, "claude -r OLD -- --fork-session", Chosen::Resumed(Some(old.into()))),
            (
                Format::Claude,
                "claude --fork-session -p x",
                Chosen::Insert { at: 1, flag: "--session-id" },
            ),
        ] {
            let line = argv(&line.replace("OLD", old));
            assert_eq!(chosen_session(format, &line), expected, "{line:?}");
        }
    }

    #[test]
    fn every_file_of_a_session_is_among_those_of_all_sessions() {
        let session = "01a1e0b7-6787-7451-8b85-6b0e2fff5ae1";
        let lookup = |name: &str| (name == "HOME").then(|| OsString::from("/h"));
        let long = format!("/{}", "x".repeat(MAX_PROJECT_BYTES));
        for (format, cwd) in [
            (Format::Claude, "/srv/a"),
            (Format::Claude, &long),
            (Format::Codex, "/srv/a"),
            (Format::Gemini, "/srv/a"),
            (Format::Copilot, "/srv/a"),
        ] {
            let at = |files| match files {
                Files::At(places) => places,
                Files::None(why) => panic!("{why}"),
            };
            let cwd = Path::new(cwd);
            let own: Vec<Place> = at(files(format, &lookup, cwd, session, &[]));
            let all: Vec<Place> = at(older_files(format, &lookup, cwd, &[]));
            for place in own {
                let file = match &place.name {
                    Name::Exact(name) => name.clone(),
                    Name::Between(front, back) => format!("{front}a{back}"),
                };
                let reaches = |wide: &&Place| {
                    let below = place.dir.strip_prefix(&wide.dir);
                    let depth = below.map(|path| path.components().count() + place.depth);
                    depth.is_ok_and(|depth| depth <= wide.depth) && wide.matches(&file)
                };
                assert!(all.iter().any(|wide| reaches(&wide)), "{format}: {place:?} {all:?}");
            }
        }
    }

    #[test]
    fn a_belt_is_put_on_where_the_client_has_one() {
        let all = Belt { turns: Some(12), tokens: Some(9), usd: Some(2.5) };
        let of = |format, line: &str| belt(format, &argv(line), &all);
        let words = |text: &str| argv(text);
        let expected = (1, words("--max-turns 12 --max-budget-usd 2.5"));
        assert_eq!(of(Format::Claude, "claude -p x"), expected);
        let expected = (1, words("--max-budget-usd 2.5"));
        assert_eq!(of(Format::Claude, "claude --max-turns 3 -p x"), expected);
        assert_eq!(of(Format::Goose, "goose run -t x"), (2, words("--max-turns 12")));
        let budget = "-c features.rollout_budget={enabled=true,limit_tokens=9,\
                      reminder_at_remaining_tokens=[]}";
        assert_eq!(of(Format::Codex, "codex exec --json x"), (2, words(budget)));
        assert_eq!(of(Format::Gemini, "gemini -p x"), (1, Vec::new()));
        assert_eq!(belt(Format::Claude, &[], &all).0, 0);
    }

    #[test]
    fn the_model_of_a_command_line_is_found() {
        let line = argv("opencode run -m openai/gpt-5 x");
        assert_eq!(chosen_model(Format::Opencode, &line), Some("openai/gpt-5"));
        assert_eq!(chosen_model(Format::Aider, &argv("aider --model=o3")), Some("o3"));
        assert_eq!(chosen_model(Format::Codex, &argv("codex exec x")), None);
    }
}
