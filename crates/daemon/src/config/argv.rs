//! The command line an agent's profile means. Pure: profile, prompt and session in, words out.
//!
//! Owns: how each client is started so that nobody is asked anything, its stream can be counted,
//! and no prompt is taken for a flag. The id of a new session and the client's own belts are added
//! where a run is started. Flags of Claude Code and Codex are as run in the tests with real
//! clients; those of Gemini and opencode as measured once.

use std::fmt;
use std::path::Path;

use super::parse::PROMPT;
use super::{Agent, Client, Starts};

/// Which session a start belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session<'s> {
    /// One of its own.
    New,
    /// The one of this id goes on.
    Resumed(&'s str),
}

/// Why a profile gives no command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCommand {
    /// Nothing was said to it.
    NoPrompt,
    /// It has no sessions that could go on.
    NoSessions,
    /// This is no id of a session.
    BadSession(String),
    /// A zero byte, which no argument can have.
    ZeroByte,
}

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPrompt => f.write_str("it has no prompt and was given none: say what to do"),
            Self::NoSessions => f.write_str("it is a command, and has no session that could go on"),
            Self::BadSession(id) => {
                write!(f, "{id:?} is no id of a session: use letters, digits, '-' and '_'")
            }
            Self::ZeroByte => f.write_str("its prompt has a zero byte, which no argument can have"),
        }
    }
}

impl std::error::Error for NoCommand {}

/// The words to start. `dir` is where the profile's file is: a program with a relative path is
/// looked for there, and not where the agent works and may write.
pub fn words(
    agent: &Agent,
    dir: &Path,
    session: Session<'_>,
    said: Option<&str>,
) -> Result<Vec<String>, NoCommand> {
    let prompt = prompt(agent.prompt.as_deref(), said);
    if prompt.as_ref().is_some_and(|prompt| prompt.contains('\0')) {
        return Err(NoCommand::ZeroByte);
    }
    match &agent.starts {
        Starts::Command { words, .. } => command(words, dir, session, prompt),
        Starts::Client { client, program, model, allowed_tools, args } => {
            let prompt = prompt.ok_or(NoCommand::NoPrompt)?;
            let told = Told { model: model.as_deref(), allowed_tools, args };
            let mut words = vec![match program {
                Some(program) => located(dir, program),
                None => client.word().to_owned(),
            }];
            words.extend(flags(*client, &told, checked(session)?, prompt));
            Ok(words)
        }
    }
}

/// What an agent is told: its own prompt first, then what whoever starts it says.
fn prompt(own: Option<&str>, said: Option<&str>) -> Option<String> {
    let parts = [own, said].into_iter().flatten().filter(|part| !part.trim().is_empty());
    let parts: Vec<&str> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

fn command(
    words: &[String],
    dir: &Path,
    session: Session<'_>,
    prompt: Option<String>,
) -> Result<Vec<String>, NoCommand> {
    if session != Session::New {
        return Err(NoCommand::NoSessions);
    }
    let mut words = words.to_vec();
    if let Some(program) = words.first_mut() {
        *program = located(dir, program);
    }
    let has_place = words.iter().any(|word| word == PROMPT);
    match prompt {
        Some(prompt) if has_place => {
            for word in words.iter_mut().filter(|word| *word == PROMPT) {
                word.clone_from(&prompt);
            }
        }
        Some(prompt) => words.push(prompt),
        None if has_place => return Err(NoCommand::NoPrompt),
        None => {}
    }
    Ok(words)
}

fn located(dir: &Path, program: &str) -> String {
    if program.contains('/') {
        return dir.join(program).to_string_lossy().into_owned();
    }
    program.to_owned()
}

/// An id that no client could take for a flag.
fn checked(session: Session<'_>) -> Result<Option<&str>, NoCommand> {
    let Session::Resumed(id) = session else { return Ok(None) };
    let right = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if id.is_empty() || id.starts_with('-') || !id.bytes().all(right) {
        return Err(NoCommand::BadSession(id.to_owned()));
    }
    Ok(Some(id))
}

/// What a profile says to a client.
struct Told<'p> {
    model: Option<&'p str>,
    allowed_tools: &'p [String],
    args: &'p [String],
}

fn flags(client: Client, told: &Told<'_>, session: Option<&str>, prompt: String) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut say = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
    let tools = told.allowed_tools.join(",");
    let model = told.model.map(|model| match client {
        Client::Claude => ["--model", model],
        Client::Codex | Client::Gemini | Client::Opencode => ["-m", model],
    });
    match client {
        Client::Claude => say(&["-p", "--output-format", "stream-json", "--verbose"]),
        Client::Codex => say(&["exec", "--json", "--skip-git-repo-check"]),
        Client::Gemini => say(&["-o", "stream-json", "--skip-trust"]),
        Client::Opencode => say(&["run", "--format", "json"]),
    }
    say(model.as_ref().map_or(&[], |words| &words[..]));
    match client {
        Client::Claude if !tools.is_empty() => say(&[&format!("--allowedTools={tools}")]),
        Client::Gemini if !tools.is_empty() => say(&[&format!("--allowed-tools={tools}")]),
        Client::Claude | Client::Codex | Client::Gemini | Client::Opencode => {}
    }
    let args: Vec<&str> = told.args.iter().map(String::as_str).collect();
    say(&args);
    if let Some(id) = session {
        match client {
            Client::Claude | Client::Gemini => say(&["--resume", id]),
            Client::Codex => say(&["resume", id]),
            Client::Opencode => say(&["-s", id]),
        }
    }
    match client {
        Client::Claude | Client::Codex | Client::Opencode => say(&["--", &prompt]),
        // Its prompt is the value of a flag, and may begin like one.
        Client::Gemini => say(&[&format!("--prompt={prompt}")]),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::user;
    use super::*;

    fn agent(text: &str) -> Agent {
        let text = format!("[[agent]]\nname = \"a\"\n{text}");
        user("config.toml", text.as_bytes()).unwrap().agents.remove(0)
    }

    fn line(text: &str, session: Session<'_>, said: Option<&str>) -> Result<String, NoCommand> {
        words(&agent(text), Path::new("/repo"), session, said).map(|words| words.join("|"))
    }

    #[test]
    fn each_client_is_started_so_that_it_asks_nobody_and_can_be_counted() {
        for (text, expected) in [
            (
                "kind = \"claude\"\nmodel = \"sonnet\"\nallowed_tools = [\"Read\", \"Bash(ls:*)\"]",
                "claude|-p|--output-format|stream-json|--verbose|--model|sonnet|\
                 --allowedTools=Read,Bash(ls:*)|--|-go",
            ),
            ("kind = \"claude\"", "claude|-p|--output-format|stream-json|--verbose|--|-go"),
            (
                "kind = \"codex\"\nmodel = \"m\"\nargs = [\"-s\", \"workspace-write\"]",
                "codex|exec|--json|--skip-git-repo-check|-m|m|-s|workspace-write|--|-go",
            ),
            (
                "kind = \"gemini\"\nmodel = \"m\"\nallowed_tools = [\"a\", \"b\"]",
                "gemini|-o|stream-json|--skip-trust|-m|m|--allowed-tools=a,b|--prompt=-go",
            ),
            ("kind = \"opencode\"\nmodel = \"p/m\"", "opencode|run|--format|json|-m|p/m|--|-go"),
            (
                "kind = \"claude\"\nprogram = \"bin/claude\"\nprompt = \"Be brief.\"",
                "/repo/bin/claude|-p|--output-format|stream-json|--verbose|--|Be brief.\n\n-go",
            ),
        ] {
            assert_eq!(line(text, Session::New, Some("-go")).unwrap(), expected, "{text}");
            assert!(line(text, Session::New, None).is_err() || text.contains("prompt"), "{text}");
        }
    }

    #[test]
    fn each_client_goes_on_in_the_session_it_is_told() {
        let id = "01a1e2e8-6cb0-7251-a7c7-b2989b5c95fc";
        for (kind, expected) in [
            ("claude", format!("stream-json|--verbose|--resume|{id}|--|go")),
            ("codex", format!("--skip-git-repo-check|resume|{id}|--|go")),
            ("gemini", format!("--skip-trust|--resume|{id}|--prompt=go")),
            ("opencode", format!("json|-s|{id}|--|go")),
        ] {
            let text = format!("kind = {kind:?}");
            let words = line(&text, Session::Resumed(id), Some("go")).unwrap();
            assert!(words.ends_with(&expected), "{words}");
            for bad in ["", "--last", "a b", "x;y"] {
                let refused = line(&text, Session::Resumed(bad), Some("go")).unwrap_err();
                assert_eq!(refused, NoCommand::BadSession(bad.to_owned()));
            }
        }
        let command = line("command = [\"true\"]", Session::Resumed(id), None);
        assert_eq!(command, Err(NoCommand::NoSessions));
    }

    #[test]
    fn a_command_is_started_as_it_stands_with_the_prompt_in_its_place_or_last() {
        for (text, said, expected) in [
            ("command = [\"run\", \"it\"]", None, Ok("run|it")),
            ("command = [\"run\", \"it\"]", Some("--now; rm"), Ok("run|it|--now; rm")),
            ("command = [\"run\", \"{prompt}\", \"-v\"]", Some("x y"), Ok("run|x y|-v")),
            ("command = [\"run\", \"{prompt}\"]", None, Err(NoCommand::NoPrompt)),
            ("command = [\"run\", \"{prompt}\"]", Some("  "), Err(NoCommand::NoPrompt)),
            ("command = [\"run\"]\nprompt = \"p\"", Some("s"), Ok("run|p\n\ns")),
            ("command = [\"./run\"]", None, Ok("/repo/./run")),
            ("command = [\"/bin/run\"]", None, Ok("/bin/run")),
            ("command = [\"run\"]", Some("a\0b"), Err(NoCommand::ZeroByte)),
        ] {
            assert_eq!(line(text, Session::New, said), expected.map(str::to_owned), "{text}");
        }
    }
}
