//! Errors for people and scripts: code, sentence, hint, exit code. Owns the exit codes.
//!
//! 0 fine; 1 failed; 2 wrong usage; 3 no such run or story; 4 refused; 5 no daemon; 124 time-out.
//! `run` and `wait` pass the agent's own code on; theirs are 125, 126 and 127, as `env` and
//! `timeout` do.

use std::process::ExitCode;

use kennel_daemon::wire;

use crate::output::{Out, say};

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const NOT_FOUND: u8 = 3;
pub(crate) const REFUSED: u8 = 4;
pub(crate) const NO_DAEMON: u8 = 5;
pub(crate) const TIMED_OUT: u8 = 124;
/// A run was refused, or its ending cannot be told in a code.
pub(crate) const RUN_FAILED: u8 = 125;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const COMMAND_NOT_FOUND: u8 = 127;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// To be told.
    Told { error: wire::Error, exit: u8 },
    /// Whoever read our output has left. Not an error.
    ReaderLeft,
    /// The terminal was closed. Not an error either.
    TerminalClosed,
}

impl Failure {
    pub(crate) fn new(exit: u8, code: &str, message: impl Into<String>) -> Self {
        let error = wire::Error { code: code.to_owned(), message: message.into(), hint: None };
        Self::Told { error, exit }
    }

    /// With what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Told { error, .. } = &mut self {
            error.hint = Some(hint.into());
        }
        self
    }

    /// From an error of the API.
    pub(crate) fn from_wire(error: wire::Error) -> Self {
        let exit = match error.code.as_str() {
            "run_not_found" | "ambiguous_run" | "agent_not_found" | "channel_not_found"
            | "story_not_found" | "stage_not_found" | "config_not_found" | "not_a_repository" => {
                NOT_FOUND
            }
            "slot_taken"
            | "stuck_survivors"
            | "worktree_in_use"
            | "id_taken"
            | "host_full"
            | "limit_not_enforceable"
            | "limit_above_cap"
            | "agent_busy"
            | "session_in_use"
            | "config_untrusted"
            | "config_invalid"
            | "dependency_not_found"
            | "dependency_cycle"
            | "story_held"
            | "story_ended"
            | "story_at_ceiling"
            | "story_leaving"
            | "story_needed"
            | "story_gone"
            | "shutting_down"
            | "lost"
            | "no_input"
            | "not_live" => REFUSED,
            "bad_request" => USAGE,
            _ => FAILED,
        };
        Self::Told { error, exit }
    }

    /// The same failure of a command that otherwise exits like the agent it runs.
    pub(crate) fn of_run(self) -> Self {
        match self {
            Self::Told { error, exit: _ } => {
                let exit = start_code(&error.code);
                Self::Told { error, exit }
            }
            Self::ReaderLeft => Self::ReaderLeft,
            Self::TerminalClosed => Self::TerminalClosed,
        }
    }

    /// Tells it and gives the exit code. Nobody can be told that telling failed.
    pub(crate) fn report(self, out: &Out) -> ExitCode {
        match self {
            Self::ReaderLeft | Self::TerminalClosed => ExitCode::SUCCESS,
            Self::Told { error, exit } => {
                tell(&error, out.json);
                ExitCode::from(exit)
            }
        }
    }
}

/// The exit code of a start that failed with this code.
pub(crate) fn start_code(code: &str) -> u8 {
    match code {
        "command_not_found" => COMMAND_NOT_FOUND,
        "not_executable" => NOT_EXECUTABLE,
        _ => RUN_FAILED,
    }
}

fn tell(error: &wire::Error, json: bool) {
    if json {
        let body = wire::ErrorBody { error: error.clone() };
        say(&serde_json::to_string(&body).unwrap_or_default());
        return;
    }
    let hint = error.hint.as_ref().map(|hint| format!("\n        {hint}"));
    say(&format!("kennel: {}{}", error.message, hint.unwrap_or_default()));
}

/// Help and version are answers; everything else the parser says is a refusal.
pub(crate) fn refuse_arguments(refused: &clap::Error) -> ExitCode {
    if !refused.use_stderr() {
        let _ = refused.print();
        return ExitCode::SUCCESS;
    }
    // The parser gave up, so that only the words themselves can say what was wanted.
    let (mut json, mut run) = (false, false);
    for arg in std::env::args_os().skip(1).take_while(|arg| arg != "--") {
        json |= arg == "--json";
        run |= arg == "run";
    }
    // The parser does not say which.
    let no_text = std::env::args_os().skip(1).find(|arg| arg.to_str().is_none());
    if let Some(arg) = no_text.filter(|_| refused.kind() == clap::error::ErrorKind::InvalidUtf8) {
        let message = format!("argument {arg:?} is not text: write it in UTF-8");
        tell(&wire::Error { code: "usage".to_owned(), message, hint: None }, json);
    } else if json {
        let message = refused.to_string().trim_end().to_owned();
        tell(&wire::Error { code: "usage".to_owned(), message, hint: None }, true);
    } else {
        let _ = refused.print();
    }
    ExitCode::from(if run { RUN_FAILED } else { USAGE })
}
