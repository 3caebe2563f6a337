//! Codex CLI: `exec --json` and `app-server` on standard output, rollout files on disk.
//!
//! Owns the three readers. What matters of them:
//!
//! - Standard output cannot tell one response from the next; what it calls a turn is a whole
//!   prompt. Turns, tokens and the model are in the rollout, one `token_usage_record` per response,
//!   written before the tools of that response run. Older files have `token_count` instead, after
//!   the tools.
//! - `turn.completed` has totals of the thread, of its root only, earlier runs included.
//! - A sub-agent has a rollout of its own, which may begin with a replay of its parent's.
//! - `input_tokens` includes what was cached, `output_tokens` the reasoning. That it also includes
//!   what is written to a cache is assumed, not measured.

use serde::Deserialize;

use crate::entry::{
    Ending, Entry, Grade, RateLimit, Span, Tokens, Total, Turn, TurnId, Usage, Waiting,
};
use crate::json::{Count, Fold, Gather, Loose, Number, Text, front, object};
use crate::reader::{Source, Tell, tell_if_new};

/// How many sub-agents one line may name; a call starts one.
const MAX_RECEIVERS: usize = 64;

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The root thread, or the thread whose rollout this is.
    thread: String,
    model: String,
    subagent: bool,
    /// Tools asked for since the last response was recorded.
    tools: u64,
    /// Responses the app server told.
    turns: u64,
    /// The file has records, so its counts say nothing new.
    has_records: bool,
    /// Sub-agents that were told.
    child: String,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], source: Source, tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        match source {
            Source::Stdout if !line.method.is_empty() => self.served(&line, tell),
            Source::Stdout => self.said(&line, tell),
            Source::File { subagent } => self.recorded(&line, subagent, tell),
        }
        Some(length)
    }

    /// A line of `exec --json`.
    fn said(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        match line.kind.as_str() {
            "thread.started" => {
                tell_if_new(&mut self.thread, line.thread_id.as_str(), tell, Entry::Session);
            }
            "item.started" => self.item(&line.item.0, Step::Started, tell),
            "item.updated" => {}
            "item.completed" => self.item(&line.item.0, Step::Completed, tell),
            "turn.started" => tell(Entry::Working),
            "turn.completed" => {
                let tokens = Some(line.usage.0.tokens());
                tell(Entry::Total(Total { since: Span::Session, tokens, usd: None }));
                let subtype = "completed".to_owned();
                tell(Entry::Result(Ending { is_error: false, subtype }));
            }
            "turn.failed" => {
                tell(Entry::Error(line.error.0.message.kept()));
                tell(Entry::Result(Ending { is_error: true, subtype: "failed".to_owned() }));
            }
            "error" => tell(trouble(line.message.as_str())),
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
    }

    fn item(&mut self, item: &Item<'_>, step: Step, tell: Tell<'_>) {
        let name = match item.kind.as_str() {
            "collab_tool_call" => item.tool.kept(),
            "command_execution" | "file_change" | "mcp_tool_call" | "web_search" => {
                item.kind.kept()
            }
            "agent_message" | "reasoning" | "todo_list" => return,
            // Warnings come as errors, too; what ends the run comes as a failed turn.
            "error" => return tell(Entry::Error(item.message.kept())),
            other => return tell(Entry::Unknown(format!("item/{}", front(other)))),
        };
        for child in &item.receivers.0.0 {
            tell_if_new(&mut self.child, child.as_str(), tell, Entry::Subagent);
        }
        tell(match step {
            Step::Started => Entry::ToolStarted { id: item.id.kept(), name },
            Step::Completed => Entry::ToolFinished { id: item.id.kept() },
        });
    }

    /// A message of the app server.
    fn served(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        let params = &line.params.0;
        if self.thread.is_empty() {
            tell_if_new(&mut self.thread, params.thread_id.as_str(), tell, Entry::Session);
        }
        let subagent = self.thread != front(params.thread_id.as_str());
        match line.method.as_str() {
            "thread/status/changed" => match params.status.0.kind.as_str() {
                "active" if params.status.0.flags.0.0 => {
                    tell(Entry::Waiting(Waiting::Approval));
                }
                "active" => tell(Entry::Working),
                "idle" if !subagent => tell(Entry::Waiting(Waiting::Input)),
                _ => {}
            },
            "item/started" => self.served_item(&params.item.0, Step::Started, tell),
            "item/completed" => self.served_item(&params.item.0, Step::Completed, tell),
            "thread/tokenUsage/updated" => {
                let tools = std::mem::take(&mut self.tools);
                self.turns += 1;
                tell(Entry::Turn(Turn { id: TurnId::Own(self.turns), subagent, tools }));
                if !subagent {
                    let tokens = Some(params.token_usage.0.total.0.tokens());
                    tell(Entry::Total(Total { since: Span::Session, tokens, usd: None }));
                }
            }
            "turn/completed" if !subagent => {
                let status = &params.turn.0.status;
                let is_error = status.as_str() != "completed";
                tell(Entry::Result(Ending { is_error, subtype: status.kept() }));
            }
            method if method.ends_with("/requestApproval") => {
                // The sample has no item/started before it, so this is what says a tool was asked
                // for.
                self.tools += 1;
                tell(Entry::Waiting(Waiting::Approval));
            }
            // Many are notifications of no weight, and all have a name of their own.
            _ => {}
        }
    }

    fn served_item(&mut self, item: &Item<'_>, step: Step, tell: Tell<'_>) {
        let tools =
            ["commandExecution", "fileChange", "mcpToolCall", "collabToolCall", "webSearch"];
        let is_tool = tools.contains(&item.kind.as_str());
        match step {
            Step::Started if is_tool => {
                self.tools += 1;
                tell(Entry::ToolStarted { id: item.id.kept(), name: item.kind.kept() });
            }
            Step::Completed if is_tool => tell(Entry::ToolFinished { id: item.id.kept() }),
            Step::Started | Step::Completed => {}
        }
    }

    /// A line of a rollout.
    fn recorded(&mut self, line: &Line<'_>, subagent: bool, tell: Tell<'_>) {
        let payload = &line.payload.0;
        match line.kind.as_str() {
            // A replay of the parent's has the parent's header, after the file's own.
            "session_meta" if self.thread.is_empty() => {
                self.subagent = !payload.parent_thread_id.is_empty();
                tell_if_new(&mut self.thread, payload.id.as_str(), tell, Entry::Session);
            }
            "turn_context" => {
                tell_if_new(&mut self.model, payload.model.as_str(), tell, Entry::Model);
            }
            "response_item" => match payload.kind.as_str() {
                "function_call" | "local_shell_call" | "custom_tool_call" => self.tools += 1,
                _ => {}
            },
            "token_usage_record" => {
                self.has_records = true;
                let thread = payload.thread_id.as_str();
                if self.thread.is_empty() || thread.is_empty() || self.thread == front(thread) {
                    self.response(payload.response_id.kept(), &payload.usage.0, subagent, tell);
                }
            }
            "event_msg" => self.event(payload, subagent, tell),
            "session_meta" | "compacted" | "world_state" | "inter_agent_communication" => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
    }

    fn event(&mut self, payload: &Payload<'_>, subagent: bool, tell: Tell<'_>) {
        match payload.kind.as_str() {
            "token_count" => {
                let limits = &payload.rate_limits.0;
                if !limits.reached.is_empty() {
                    let until = limits.primary.0.resets_at.count();
                    tell(Entry::RateLimit(RateLimit::Rejected { until }));
                }
                let info = &payload.info.0;
                let total = info.total.0.tokens();
                if !self.has_records && total != Tokens::default() {
                    // A count that is repeated has the same total.
                    let id = format!("{}/{}", self.thread, total.all());
                    self.response(id, &info.last.0, subagent, tell);
                }
            }
            "task_complete" | "turn_complete" if !subagent && !self.subagent => {
                let subtype = "completed".to_owned();
                tell(Entry::Result(Ending { is_error: false, subtype }));
            }
            "turn_aborted" if !subagent && !self.subagent => {
                tell(Entry::Result(Ending { is_error: true, subtype: "aborted".to_owned() }));
            }
            "error" => tell(trouble(payload.message.as_str())),
            _ => {}
        }
    }

    fn response(&mut self, id: String, usage: &Counts, subagent: bool, tell: Tell<'_>) {
        let subagent = subagent || self.subagent;
        let tools = std::mem::take(&mut self.tools);
        tell(Entry::Turn(Turn { id: TurnId::Shared(id.clone()), subagent, tools }));
        let model = Some(self.model.clone()).filter(|model| !model.is_empty());
        let (grade, tokens) = (Grade::Recorded, usage.tokens());
        let id = Some(id);
        tell(Entry::Usage(Usage { id, request: None, model, grade, subagent, tokens, usd: None }));
    }
}

#[derive(Clone, Copy)]
enum Step {
    Started,
    Completed,
}

/// A retry is told as an error whose text says which one it is.
fn trouble(message: &str) -> Entry {
    let retry = message.strip_prefix("Reconnecting").and_then(|rest| rest.split('/').next());
    let digits = retry.map(|rest| rest.trim_matches(|c: char| !c.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(attempt) => Entry::Retrying { attempt, delay_ms: None },
        None => Entry::Error(front(message).to_owned()),
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    thread_id: Text<'a>,
    #[serde(borrow)]
    item: Loose<Item<'a>>,
    usage: Loose<Counts>,
    #[serde(borrow)]
    error: Loose<Failure<'a>>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow)]
    method: Text<'a>,
    #[serde(borrow)]
    params: Loose<Params<'a>>,
    #[serde(borrow)]
    payload: Loose<Payload<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Item<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    tool: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow, rename = "receiver_thread_ids")]
    receivers: Fold<Receivers<'a>>,
}

#[derive(Default)]
struct Receivers<'a>(Vec<Text<'a>>);

impl<'de: 'a, 'a> Gather<'de> for Receivers<'a> {
    type Element = Text<'a>;

    fn gather(&mut self, id: Text<'a>) {
        if self.0.len() < MAX_RECEIVERS {
            self.0.push(id);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure<'a> {
    #[serde(borrow)]
    message: Text<'a>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Counts {
    input_tokens: Count,
    cached_input_tokens: Count,
    cache_write_input_tokens: Count,
    output_tokens: Count,
}

impl Counts {
    fn tokens(&self) -> Tokens {
        tokens(
            self.input_tokens.0,
            self.cached_input_tokens.0,
            self.cache_write_input_tokens.0,
            self.output_tokens.0,
        )
    }
}

/// The same in the app server's spelling.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct ServedCounts {
    #[serde(rename = "inputTokens")]
    input: Count,
    #[serde(rename = "cachedInputTokens")]
    cached: Count,
    #[serde(rename = "cacheWriteInputTokens")]
    written: Count,
    #[serde(rename = "outputTokens")]
    output: Count,
}

impl ServedCounts {
    fn tokens(&self) -> Tokens {
        tokens(self.input.0, self.cached.0, self.written.0, self.output.0)
    }
}

/// All input includes what was cached and what is written to the cache.
fn tokens(input: u64, cached: u64, written: u64, output: u64) -> Tokens {
    Tokens {
        input: input.saturating_sub(cached).saturating_sub(written),
        output,
        cache_read: cached,
        cache_write_5m: written,
        ..Tokens::default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params<'a> {
    #[serde(borrow, rename = "threadId")]
    thread_id: Text<'a>,
    #[serde(borrow)]
    status: Loose<Status<'a>>,
    #[serde(borrow)]
    item: Loose<Item<'a>>,
    #[serde(borrow)]
    turn: Loose<ServedTurn<'a>>,
    #[serde(rename = "tokenUsage")]
    token_usage: Loose<ServedUsage>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(rename = "activeFlags")]
    flags: Fold<WaitsForSomebody>,
}

/// Whether a flag says that somebody is waited for.
#[derive(Default)]
struct WaitsForSomebody(bool);

impl<'de> Gather<'de> for WaitsForSomebody {
    type Element = Text<'de>;

    fn gather(&mut self, flag: Text<'de>) {
        self.0 |= flag.as_str().starts_with("waitingOn");
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServedTurn<'a> {
    #[serde(borrow)]
    status: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServedUsage {
    total: Loose<ServedCounts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Payload<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    parent_thread_id: Text<'a>,
    #[serde(borrow)]
    thread_id: Text<'a>,
    #[serde(borrow)]
    response_id: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    usage: Loose<Counts>,
    info: Loose<CountInfo>,
    #[serde(borrow)]
    rate_limits: Loose<Limits<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CountInfo {
    #[serde(rename = "total_token_usage")]
    total: Loose<Counts>,
    #[serde(rename = "last_token_usage")]
    last: Loose<Counts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits<'a> {
    #[serde(borrow, rename = "rate_limit_reached_type")]
    reached: Text<'a>,
    primary: Loose<Window>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Window {
    resets_at: Number,
}
