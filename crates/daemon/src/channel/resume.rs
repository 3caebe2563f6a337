//! How a run that was started without a profile goes on in its session: its own command line,
//! without what it was told and without its session. Pure.
//!
//! Owns: which words of a client's command line are which. A word that could be either refuses the
//! whole: a prompt taken for a flag, or dropped flags, would be another agent.

use std::path::Path;

use kennel_process::Signal;

use crate::config::argv::{Session, words};
use crate::config::{Agent, Client, Resume, Role, Starts};

/// How a client's flags are read.
struct Flags {
    /// Words that begin the command line and are no prompt.
    verbs: &'static [&'static str],
    /// Take the next word, and stay.
    valued: &'static [&'static str],
    /// Take all words up to the next flag, and stay.
    listed: &'static [&'static str],
    /// Take the next word, and go with it: prompts, sessions, what is said anew.
    dropped: &'static [&'static str],
    /// Take nothing, and go.
    dropped_alone: &'static [&'static str],
}

const CLAUDE: Flags = Flags {
    verbs: &[],
    valued: &[
        "--model",
        "--fallback-model",
        "--permission-mode",
        "--permission-prompt-tool",
        "--system-prompt",
        "--append-system-prompt",
        "--settings",
        "--setting-sources",
        "--max-turns",
        "--max-budget-usd",
        "--agents",
        "--agent",
        "--input-format",
        "--effort",
        "--json-schema",
    ],
    listed: &[
        "--allowedTools",
        "--allowed-tools",
        "--disallowedTools",
        "--disallowed-tools",
        "--tools",
        "--add-dir",
        "--mcp-config",
        "--betas",
        "--plugin-dir",
    ],
    dropped: &["--resume", "-r", "--session-id", "--output-format"],
    dropped_alone: &["-p", "--print", "--continue", "-c", "--verbose", "--fork-session"],
};

const CODEX: Flags = Flags {
    verbs: &["exec", "e"],
    valued: &[
        "-m",
        "--model",
        "-c",
        "--config",
        "-s",
        "--sandbox",
        "-p",
        "--profile",
        "-C",
        "--cd",
        "-o",
        "--output-last-message",
        "--output-schema",
        "--color",
        "-a",
        "--ask-for-approval",
        "--add-dir",
        "--enable",
        "--disable",
        "--local-provider",
    ],
    listed: &[],
    dropped: &["resume", "-i", "--image"],
    dropped_alone: &["--json", "--skip-git-repo-check", "--last"],
};

const GEMINI: Flags = Flags {
    verbs: &[],
    valued: &[
        "-m",
        "--model",
        "--approval-mode",
        "-e",
        "--extensions",
        "--include-directories",
        "--allowed-tools",
        "--allowed-mcp-server-names",
    ],
    listed: &[],
    dropped: &[
        "-p",
        "--prompt",
        "-i",
        "--prompt-interactive",
        "-r",
        "--resume",
        "--session-id",
        "-o",
        "--output-format",
    ],
    dropped_alone: &["--skip-trust"],
};

const OPENCODE: Flags = Flags {
    verbs: &["run"],
    valued: &["-m", "--model", "--agent", "--variant", "--port", "--attach", "--title"],
    listed: &[],
    dropped: &["-s", "--session", "--format", "-f", "--file", "--command"],
    dropped_alone: &["-c", "--continue", "--fork"],
};

/// The command line by which a client goes on in its session with a prompt.
pub(super) fn command(
    client: Client,
    own: &[String],
    cwd: &Path,
    session: &str,
    prompt: &str,
) -> Result<Vec<String>, String> {
    let Some((program, rest)) = own.split_first() else {
        return Err("it has no command".to_owned());
    };
    let flags = match client {
        Client::Claude => &CLAUDE,
        Client::Codex => &CODEX,
        Client::Gemini => &GEMINI,
        Client::Opencode => &OPENCODE,
    };
    let starts = Starts::Client {
        client,
        program: Some(program.clone()),
        model: None,
        allowed_tools: Vec::new(),
        args: kept(flags, rest)?,
    };
    let agent = Agent {
        name: String::new(),
        role: Role::Other,
        starts,
        provider: String::new(),
        prompt: None,
        limits: Default::default(),
        grace: None,
        gentle_signal: Signal::TERM,
        resume: Resume::Session,
        env: Vec::new(),
        max_instances: None,
    };
    words(&agent, cwd, Session::Resumed(session), Some(prompt)).map_err(|e| e.to_string())
}

/// The words that stay.
fn kept(flags: &Flags, rest: &[String]) -> Result<Vec<String>, String> {
    let rest = match rest.split_first() {
        Some((verb, rest)) if flags.verbs.contains(&verb.as_str()) => rest,
        Some(_) | None if flags.verbs.is_empty() => rest,
        Some(_) | None => {
            return Err(format!("it was not started as {:?}: nobody knows how", flags.verbs[0]));
        }
    };
    let mut kept = Vec::new();
    let mut prompts = 0;
    let mut words = rest.iter().peekable();
    while let Some(word) = words.next() {
        let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
        let whole = name.len() < word.len();
        if word == "--" {
            // All that follows is the prompt.
            prompts += usize::from(words.next().is_some());
            break;
        } else if flags.dropped.contains(&name) {
            if !whole {
                words.next();
            }
        } else if flags.dropped_alone.contains(&name) {
        } else if !word.starts_with('-') {
            prompts += 1;
        } else {
            kept.push(word.clone());
            if !whole && flags.valued.contains(&name) {
                kept.extend(words.next().cloned());
            } else if !whole && flags.listed.contains(&name) {
                while let Some(value) = words.next_if(|next| !next.starts_with('-')) {
                    kept.push(value.clone());
                }
            }
        }
    }
    if prompts > 1 {
        return Err("it has several words that may be its prompt".to_owned());
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed(client: Client, own: &str) -> Result<String, String> {
        let own: Vec<String> = own.split('|').map(str::to_owned).collect();
        command(client, &own, Path::new("/w"), "s-1", "news").map(|words| words.join("|"))
    }

    #[test]
    fn a_client_goes_on_with_its_own_flags_and_another_prompt() {
        for (client, own, expected) in [
            (
                Client::Claude,
                "claude|-p|--output-format|stream-json|--verbose|--model|m|--session-id|x|--|go",
                "claude|-p|--output-format|stream-json|--verbose|--model|m|--resume|s-1|--|news",
            ),
            (
                Client::Claude,
                "./c|-p|go on|--allowedTools|Read|Bash(ls)|--mcp-config=f|--dangerously-x",
                "/w/./c|-p|--output-format|stream-json|--verbose|--allowedTools|Read|Bash(ls)|\
                 --mcp-config=f|--dangerously-x|--resume|s-1|--|news",
            ),
            (
                Client::Claude,
                "claude|--resume|old|-p|go",
                "claude|-p|--output-format|stream-json|--verbose|--resume|s-1|--|news",
            ),
            (
                Client::Codex,
                "codex|exec|--json|-c|a=b|-s|read-only|go",
                "codex|exec|--json|--skip-git-repo-check|-c|a=b|-s|read-only|resume|s-1|--|news",
            ),
            (
                Client::Codex,
                "codex|exec|--json|resume|old|--|go",
                "codex|exec|--json|--skip-git-repo-check|resume|s-1|--|news",
            ),
            (
                Client::Gemini,
                "gemini|-m|g|--prompt=-go|--yolo",
                "gemini|-o|stream-json|--skip-trust|-m|g|--yolo|--resume|s-1|--prompt=news",
            ),
            (
                Client::Opencode,
                "opencode|run|-m|p/m|-s|old|go",
                "opencode|run|--format|json|-m|p/m|-s|s-1|--|news",
            ),
        ] {
            assert_eq!(resumed(client, own).as_deref(), Ok(expected), "{own}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (client, own) in [
            (Client::Claude, "claude|-p|one|two"),
            (Client::Claude, "claude|--unheard-of|value|-p|go"),
            (Client::Codex, "codex|login"),
            (Client::Codex, "codex"),
            (Client::Opencode, "opencode|serve"),
        ] {
            assert!(resumed(client, own).is_err(), "{own}");
        }
    }
}
