//! GitHub Copilot CLI: `--output-format json` on standard output, `events.jsonl` on disk.
//!
//! Owns both readers, which see the same events with different gaps: what a call used is on disk
//! only, and the session's id is on standard output only in its last line. What matters of them: a
//! response is one `turnId` of one `interactionId`, told when it is complete and not when its turn
//! ends, for that comes after its tools; input includes what was read from and written to the
//! cache; `cost` is not money; an aborted run ends with exit code 0 and says so only in
//! `assistant.idle`.

use serde::Deserialize;

use crate::entry::{Ending, Entry, Grade, Tokens, Turn, TurnId, Usage};
use crate::json::{Count, Flag, Fold, Gather, Loose, Number, Text, front, object};
use crate::reader::{Source, Tell, tell_if_new};

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    model: String,
    /// The turn under way, as an id.
    turn: String,
    aborted: bool,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], source: Source, tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        let data = &line.data.0;
        match line.kind.as_str() {
            "session.start" | "session.resume" => {
                tell_if_new(&mut self.session, data.session.as_str(), tell, Entry::Session);
                tell_if_new(&mut self.model, data.selected_model.as_str(), tell, Entry::Model);
            }
            "assistant.turn_start" => {
                self.turn = format!("{}/{}", front(data.interaction.as_str()), data.turn.kept());
            }
            "assistant.message" => self.answer(data, tell),
            "session.usage_record" => self.used(&data.usage.0, source.is_subagent(), tell),
            "tool.execution_start" => {
                let (id, name) = (data.call.kept(), data.tool.kept());
                tell(Entry::ToolStarted { id, name });
            }
            "tool.execution_complete" => tell(Entry::ToolFinished { id: data.call.kept() }),
            "session.error" | "model.call_failure" => tell(Entry::Error(data.message.kept())),
            "assistant.idle" => self.aborted |= data.aborted.0,
            "abort" => self.aborted = true,
            "result" => self.result(&line, tell),
            kind if is_known(kind) => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }

    fn answer(&mut self, data: &Data<'_>, tell: Tell<'_>) {
        tell_if_new(&mut self.model, data.model.as_str(), tell, Entry::Model);
        let id = match (data.interaction.is_empty(), data.turn.is_empty()) {
            (false, false) => format!("{}/{}", data.interaction.kept(), data.turn.kept()),
            _ => self.turn.clone(),
        };
        let id = if id.is_empty() { data.call_id.kept() } else { id };
        let tools = data.requests.0.0;
        tell(Entry::Turn(Turn { id: TurnId::Shared(id), subagent: false, tools }));
    }

    fn used(&mut self, usage: &Record<'_>, subagent: bool, tell: Tell<'_>) {
        let id = if self.turn.is_empty() { usage.call_id.kept() } else { self.turn.clone() };
        let tools = usage.tools.0;
        tell(Entry::Turn(Turn { id: TurnId::Shared(id), subagent, tools }));
        let cached = usage.cache_read.0.saturating_add(usage.cache_write.0);
        tell(Entry::Usage(Usage {
            id: usage.call_id.some(),
            request: None,
            model: usage.model.some(),
            grade: Grade::Recorded,
            subagent,
            tokens: Tokens {
                input: usage.input.0.saturating_sub(cached),
                output: usage.output.0,
                cache_read: usage.cache_read.0,
                cache_write_5m: usage.cache_write.0,
                ..Tokens::default()
            },
            usd: None,
        }));
    }

    fn result(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        tell_if_new(&mut self.session, line.session.as_str(), tell, Entry::Session);
        let code = line.exit_code.0;
        let (is_error, subtype) = match (self.aborted, code) {
            (true, _) => (true, "aborted".to_owned()),
            (false, Some(0.0)) => (false, "exit 0".to_owned()),
            (false, Some(code)) => (true, format!("exit {code}")),
            // A secret of one letter is masked inside keys, too.
            (false, None) => (true, "exit unknown".to_owned()),
        };
        tell(Entry::Result(Ending { is_error, subtype }));
    }
}

fn is_known(kind: &str) -> bool {
    let known = [
        "assistant.turn_end",
        "assistant.message_start",
        "assistant.message_delta",
        "assistant.reasoning",
        "assistant.reasoning_delta",
        "assistant.tool_call_delta",
        "agent.interrupted",
        "user.message",
        "system.message",
        "model.call_start",
        "model.call_finished",
        "model.call_final_result",
        "tool.shell_output",
        "tool.execution_partial_result",
        "session.background_tasks_changed",
        "session.info",
        "session.mcp_servers_loaded",
        "session.shutdown",
        "session.skills_loaded",
        "session.tools_updated",
    ];
    known.contains(&kind)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    data: Loose<Data<'a>>,
    #[serde(borrow, rename = "sessionId")]
    session: Text<'a>,
    #[serde(rename = "exitCode")]
    exit_code: Number,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data<'a> {
    #[serde(borrow, rename = "sessionId")]
    session: Text<'a>,
    #[serde(borrow, rename = "selectedModel")]
    selected_model: Text<'a>,
    #[serde(borrow, rename = "turnId")]
    turn: Text<'a>,
    #[serde(borrow, rename = "interactionId")]
    interaction: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow, rename = "apiCallId")]
    call_id: Text<'a>,
    #[serde(rename = "toolRequests")]
    requests: Fold<HowMany>,
    #[serde(borrow, rename = "toolCallId")]
    call: Text<'a>,
    #[serde(borrow, rename = "toolName")]
    tool: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    aborted: Flag,
    #[serde(borrow)]
    usage: Loose<Record<'a>>,
}

/// How many there are.
#[derive(Default)]
struct HowMany(u64);

impl<'de> Gather<'de> for HowMany {
    type Element = serde::de::IgnoredAny;

    fn gather(&mut self, _: Self::Element) {
        self.0 += 1;
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Record<'a> {
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(rename = "inputTokens")]
    input: Count,
    #[serde(rename = "outputTokens")]
    output: Count,
    #[serde(rename = "cacheReadTokens")]
    cache_read: Count,
    #[serde(rename = "cacheWriteTokens")]
    cache_write: Count,
    #[serde(borrow, rename = "apiCallId")]
    call_id: Text<'a>,
    #[serde(rename = "numToolCalls")]
    tools: Count,
}
