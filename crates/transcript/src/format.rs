//! Which clients there are, and what can be counted for each of them.
//!
//! Owns the closed list and the table of what rests on what. Knows no line of any format.

use std::fmt;
use std::str::FromStr;

/// A client whose stream can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Claude Code.
    Claude,
    /// Codex CLI.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// opencode.
    Opencode,
    /// Qwen Code.
    Qwen,
    /// GitHub Copilot CLI.
    Copilot,
    /// Goose.
    Goose,
    /// aider.
    Aider,
    /// Amp.
    Amp,
    /// Cursor agent.
    Cursor,
}

impl Format {
    /// Every one of them.
    pub const ALL: [Self; 10] = [
        Self::Claude,
        Self::Codex,
        Self::Gemini,
        Self::Opencode,
        Self::Qwen,
        Self::Copilot,
        Self::Goose,
        Self::Aider,
        Self::Amp,
        Self::Cursor,
    ];

    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Qwen => "qwen",
            Self::Copilot => "copilot",
            Self::Goose => "goose",
            Self::Aider => "aider",
            Self::Amp => "amp",
            Self::Cursor => "cursor",
        }
    }

    /// The client behind a command, by the last part of its path. `agent` is not taken for
    /// Cursor's, though it also goes by that name: too many other programs do.
    pub fn guess(program_name: &str) -> Option<Self> {
        let base = program_name.rsplit('/').next().unwrap_or_default();
        let stem = [".exe", ".js", ".mjs", ".py"].iter().find_map(|end| base.strip_suffix(end));
        match stem.unwrap_or(base) {
            "cursor-agent" => Some(Self::Cursor),
            name => Self::ALL.into_iter().find(|format| format.name() == name),
        }
    }

    /// Whether the reader was checked against streams of the real client, or follows its documents.
    pub fn is_verified(self) -> bool {
        match self {
            Self::Claude
            | Self::Codex
            | Self::Gemini
            | Self::Opencode
            | Self::Qwen
            | Self::Copilot
            | Self::Goose
            | Self::Aider => true,
            Self::Amp | Self::Cursor => false,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or(UnknownFormat)
    }
}

/// The name is of no client we can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFormat;

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a transcript format; there are ")?;
        for (n, format) in Format::ALL.into_iter().enumerate() {
            write!(f, "{}{format}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownFormat {}

/// What a limit on a transcript counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Countable {
    /// Completed responses.
    Turns,
    /// Responses that ask for a tool.
    ToolTurns,
    /// Tokens of all kinds.
    Tokens,
    /// United States dollars.
    Money,
}

/// What a count rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Which sources have to be read for it.
    pub from: Sources,
    /// What a person should know of it, or nothing.
    pub note: &'static str,
}

/// The sources of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Standard output, in the client's machine-readable form.
    Stdout,
    /// Files of the client; see [`files`](crate::files).
    Files,
    /// Either alone gives it; both together are better.
    Both,
}

/// Whether something can be counted while the client runs, and from what; else why not.
pub fn can_count(format: Format, what: Countable) -> Result<Basis, &'static str> {
    use Countable::{Money, Tokens, ToolTurns, Turns};
    match format {
        Format::Claude => match what {
            Turns | ToolTurns => of(Sources::Both, ""),
            Tokens | Money => of(
                Sources::Files,
                "from its transcript; standard output alone gives placeholders for output tokens",
            ),
        },
        Format::Codex => of(Sources::Files, "from its rollout file, sub-agents have their own"),
        Format::Gemini => match what {
            Turns | ToolTurns => of(Sources::Both, ""),
            Tokens | Money => of(Sources::Files, "from its chat file, which has no sub-agents"),
        },
        Format::Opencode => {
            of(Sources::Stdout, "sub-agents and the call for a title are not shown")
        }
        Format::Qwen => match what {
            Turns | ToolTurns => of(Sources::Stdout, ""),
            Tokens | Money => of(Sources::Stdout, "side calls are only in the total at the end"),
        },
        Format::Copilot => match what {
            Turns | ToolTurns => of(Sources::Both, ""),
            Tokens | Money => of(Sources::Files, "tokens at list price, not what GitHub bills"),
        },
        Format::Goose => match what {
            Turns | ToolTurns => of(Sources::Stdout, ""),
            Tokens | Money => Err(
                "goose tells tokens and cost only at the end; until then they are in a database",
            ),
        },
        Format::Aider => match what {
            Turns => of(Sources::Both, ""),
            ToolTurns => Err("aider calls no tools"),
            Tokens | Money => of(Sources::Both, "standard output rounds; --analytics-log is exact"),
        },
        Format::Amp => match what {
            Turns | ToolTurns | Tokens => of(Sources::Stdout, "unverified: from its documents"),
            Money => Err("amp is paid in credits, which it does not tell"),
        },
        Format::Cursor => match what {
            Turns | ToolTurns => of(Sources::Stdout, "unverified: from its documents"),
            Tokens | Money => Err("cursor tells neither tokens nor cost"),
        },
    }
}

fn of(from: Sources, note: &'static str) -> Result<Basis, &'static str> {
    Ok(Basis { from, note })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.to_string(), format.name());
        }
        assert_eq!("none".parse::<Format>(), Err(UnknownFormat));
    }

    #[test]
    fn a_client_is_known_by_the_last_part_of_its_path() {
        assert_eq!(Format::guess("/opt/bin/claude"), Some(Format::Claude));
        assert_eq!(Format::guess("codex"), Some(Format::Codex));
        assert_eq!(Format::guess("cursor-agent"), Some(Format::Cursor));
        assert_eq!(Format::guess("gemini.js"), Some(Format::Gemini));
        for other in ["", "agent", "claude-wrapper", "sh", "/claude/bin/sh", "npx"] {
            assert_eq!(Format::guess(other), None, "{other}");
        }
    }
}
