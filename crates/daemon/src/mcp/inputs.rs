//! What the tools take. Owns the names a model uses; their docs are what it reads.

use std::collections::BTreeMap;

use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use crate::api::wire;

/// A command.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Command {
    /// A line for `sh -c`.
    Line(String),
    /// Program and arguments, run without a shell.
    Words(Vec<String>),
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    /// A command line for `sh -c`, or program and arguments as a list.
    pub(super) command: Command,
    /// Absolute directory to run in; yours if left out.
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Variables to add to your own environment.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// A name for it. At most one run lives in a slot; the same command again returns the one that
    /// runs.
    #[serde(default)]
    pub(super) slot: Option<String>,
    /// Bounds. It is stopped when it reaches one.
    #[serde(default)]
    pub(super) limits: Limits,
    /// Milliseconds between asking it to end and forcing it; 10000 if left out.
    #[serde(default)]
    pub(super) grace_ms: Option<u64>,
    /// Give it a terminal instead of pipes.
    #[serde(default)]
    pub(super) pty: bool,
    /// Give it an input you can `write` to. A terminal always has one.
    #[serde(default)]
    pub(super) stdin: bool,
    /// Whose event stream it writes, if it is an agent: claude, codex, gemini, ... or none. Found
    /// out from the command's name if left out.
    #[serde(default)]
    pub(super) format: Option<String>,
    /// When its end is told among your `notices`.
    #[serde(default)]
    pub(super) notify: Notify,
    /// Regular expressions to look for in its output; each match is a notice.
    #[serde(default)]
    pub(super) watch: Vec<Watch>,
    /// Tell what it wrote lately so often, in milliseconds, as a notice.
    #[serde(default)]
    pub(super) heartbeat_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Notify {
    #[default]
    Always,
    Failure,
    Success,
    UnlessStopped,
    Never,
}

impl Notify {
    pub(super) fn wire(self) -> wire::Notify {
        match self {
            Self::Always => wire::Notify::Always,
            Self::Failure => wire::Notify::Failure,
            Self::Success => wire::Notify::Success,
            Self::UnlessStopped => wire::Notify::UnlessStopped,
            Self::Never => wire::Notify::Never,
        }
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Watch {
    /// A regular expression, tried on whole lines.
    pub(super) pattern: String,
    /// Which of the lines that match are told.
    #[serde(default)]
    pub(super) mode: WatchMode,
    /// With `threshold`: how many lines have to match.
    #[serde(default)]
    pub(super) threshold: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WatchMode {
    #[default]
    Every,
    Once,
    Threshold,
}

impl Watch {
    pub(super) fn wire(&self) -> wire::Watch {
        let mode = match self.mode {
            WatchMode::Every => wire::WatchMode::Every,
            WatchMode::Once => wire::WatchMode::Once,
            WatchMode::Threshold => wire::WatchMode::Threshold,
        };
        wire::Watch { pattern: self.pattern.clone(), mode, threshold: self.threshold }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Milliseconds since its start.
    pub(super) wall_ms: Option<u64>,
    /// Milliseconds without output or processor time.
    pub(super) idle_ms: Option<u64>,
    /// If it is an agent: waiting for a tool is idleness too.
    pub(super) idle_tools: bool,
    /// Bytes of memory of all its processes.
    pub(super) memory: Option<u64>,
    /// Processes.
    pub(super) pids: Option<u32>,
    /// Bytes it writes.
    pub(super) output: Option<u64>,
    /// If it is an agent: responses that ask for a tool.
    pub(super) max_turns: Option<u64>,
    /// The same, before `max_turns` if both are given.
    pub(super) max_tool_turns: Option<u64>,
    /// If it is an agent: what it may cost.
    pub(super) max_budget_usd: Option<f64>,
    /// If it is an agent: tokens of every kind.
    pub(super) max_tokens: Option<u64>,
    /// If it is an agent: milliseconds between its final result and its end.
    pub(super) finish_ms: Option<u64>,
}

impl Limits {
    pub(super) fn wire(&self) -> wire::Limits {
        wire::Limits {
            max_turns: self.max_turns,
            max_tool_turns: self.max_tool_turns,
            max_budget_usd: self.max_budget_usd,
            max_tokens: self.max_tokens,
            wall_ms: self.wall_ms,
            idle_ms: self.idle_ms,
            idle_tools: self.idle_tools,
            finish_ms: self.finish_ms,
            memory: self.memory,
            pids: self.pids,
            output: self.output,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct List {
    /// Only runs that have not ended.
    pub(super) live: bool,
    /// The most to list, newest first; 50 if left out.
    pub(super) limit: Option<u32>,
}

/// Where to go on reading: byte offsets, as an earlier answer gave them.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cursors {
    pub(super) stdout: u64,
    pub(super) stderr: u64,
    pub(super) terminal: u64,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Poll {
    /// A run's id, the beginning of it, or a slot.
    pub(super) run: String,
    /// The `cursors` of the last poll: only newer output is given. From the first byte if left out.
    #[serde(default)]
    pub(super) cursors: Cursors,
    /// Wait so long for output or the end if there is nothing new, in milliseconds; at most 60000.
    #[serde(default)]
    pub(super) wait_ms: u64,
    /// The most bytes of each stream; 16384 if left out.
    #[serde(default)]
    pub(super) max_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    Stdout,
    Stderr,
    Terminal,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    /// A run's id, the beginning of it, or a slot.
    pub(super) run: String,
    /// Which stream; all of them if left out.
    #[serde(default)]
    pub(super) stream: Option<Which>,
    /// Begin at this byte. The end of the output is given if left out.
    #[serde(default)]
    pub(super) offset: Option<u64>,
    /// The most bytes of each stream; 16384 if left out.
    #[serde(default)]
    pub(super) max_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    #[default]
    All,
    Any,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wait {
    /// Ids, beginnings of ids, or slots.
    pub(super) runs: Vec<String>,
    /// Wait for all of them, or for the first.
    #[serde(default)]
    pub(super) mode: Mode,
    /// Come back as soon as one of them has written this text, too.
    #[serde(default)]
    pub(super) until: Option<String>,
    /// Look for that text from here on, with one run. From its first byte if left out.
    #[serde(default)]
    pub(super) cursors: Cursors,
    /// Come back after so many milliseconds at the latest; 30000 if left out, at most 600000.
    #[serde(default)]
    pub(super) timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Stop {
    /// Ids, beginnings of ids, or slots.
    pub(super) runs: Vec<String>,
    /// Milliseconds between asking and forcing; the run's own if left out.
    #[serde(default)]
    pub(super) grace_ms: Option<u64>,
    /// Force it now, without asking.
    #[serde(default)]
    pub(super) force: bool,
    /// Wait so long for the proof that nothing is left, in milliseconds; 30000 if left out, at most
    /// 600000.
    #[serde(default)]
    pub(super) timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    /// A run's id, the beginning of it, or a slot.
    pub(super) run: String,
    /// Written as it is; nothing is added.
    pub(super) data: String,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Submit {
    /// A run's id, the beginning of it, or a slot.
    pub(super) run: String,
    /// The line, without its end: Enter is added.
    pub(super) line: String,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Notices {
    /// Wait so long for one if there is none, in milliseconds; at most 600000.
    pub(super) wait_ms: u64,
    /// The most to give, oldest first; 20 if left out.
    pub(super) limit: Option<u32>,
    /// Leave out; only for people, who may read under several names.
    pub(super) consumer: Option<String>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ack {
    /// The `seq` of the last notice you have dealt with: it and all before it are not told again.
    pub(super) seq: u64,
    /// Leave out; only for people, who may read under several names.
    #[serde(default)]
    pub(super) consumer: Option<String>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Close {
    /// A run's id, the beginning of it, or a slot.
    pub(super) run: String,
}
