//! Gemini CLI: `stream-json` on standard output, the chat file on disk.
//!
//! Owns both readers. What matters of them:
//!
//! - Standard output names no responses: one begins with the first text or tool call after a tool's
//!   result. It tells tokens only at the end, of this run, and leaves thinking out of the output.
//! - The chat file has a line per response, written again under the same `id` when its tools have
//!   finished, and lines that patch others, which count nothing.
//! - In both, input includes what was cached.

use serde::Deserialize;

use crate::entry::{Ending, Entry, Grade, Span, Tokens, Total, Turn, TurnId, Usage};
use crate::json::{Count, Fold, Gather, Loose, Text, front, object};
use crate::reader::{Source, Tell, tell_if_new};

/// How many tool calls of one response are told one by one; models ask for tens at most.
const MAX_CALLS: usize = 256;

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    model: String,
    /// Responses that began on standard output.
    turns: u64,
    /// Whether one of them is under way.
    answering: bool,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], source: Source, tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        match source {
            Source::Stdout => self.said(&line, tell),
            Source::File { subagent } => self.recorded(&line, subagent, tell),
        }
        Some(length)
    }

    fn said(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        match line.kind.as_str() {
            "init" => {
                tell_if_new(&mut self.session, line.session_id.as_str(), tell, Entry::Session);
                tell_if_new(&mut self.model, line.model.as_str(), tell, Entry::Model);
            }
            "message" if line.role.as_str() == "assistant" => self.answer(0, tell),
            "message" => {}
            "tool_use" => {
                self.answer(1, tell);
                let (id, name) = (line.tool_id.kept(), line.tool_name.kept());
                tell(Entry::ToolStarted { id, name });
            }
            "tool_result" => {
                self.answering = false;
                tell(Entry::ToolFinished { id: line.tool_id.kept() });
            }
            "error" => tell(Entry::Error(line.message.kept())),
            "result" => self.result(line, tell),
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
    }

    /// A piece of a response. The turn is told with its first piece, and with each tool again.
    fn answer(&mut self, tools: u64, tell: Tell<'_>) {
        let is_new = !std::mem::replace(&mut self.answering, true);
        self.turns += u64::from(is_new);
        if is_new || tools > 0 {
            tell(Entry::Turn(Turn { id: TurnId::Own(self.turns), subagent: false, tools }));
        }
    }

    fn result(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        let stats = &line.stats.0;
        let thinking = stats.total.0.saturating_sub(stats.input.0).saturating_sub(stats.output.0);
        let tokens = Tokens {
            input: stats.input.0.saturating_sub(stats.cached.0),
            output: stats.output.0.saturating_add(thinking),
            cache_read: stats.cached.0,
            ..Tokens::default()
        };
        tell(Entry::Total(Total { since: Span::Run, tokens: Some(tokens), usd: None }));
        let is_error = line.status.as_str() != "success";
        if is_error {
            tell(Entry::Error(line.error.0.message.kept()));
        }
        tell(Entry::Result(Ending { is_error, subtype: line.status.kept() }));
    }

    fn recorded(&mut self, line: &Line<'_>, subagent: bool, tell: Tell<'_>) {
        tell_if_new(&mut self.session, line.session_on_disk.as_str(), tell, Entry::Session);
        match line.kind.as_str() {
            "gemini" => {
                tell_if_new(&mut self.model, line.model.as_str(), tell, Entry::Model);
                let calls = &line.tool_calls.0;
                let id = TurnId::Shared(line.id.kept());
                tell(Entry::Turn(Turn { id, subagent, tools: calls.count }));
                calls.tell_finished(tell);
                let usage = Usage {
                    id: line.id.some(),
                    request: None,
                    model: line.model.some(),
                    grade: Grade::Recorded,
                    subagent,
                    tokens: line.tokens.0.tokens(),
                    usd: None,
                };
                tell(Entry::Usage(usage));
            }
            // The header, patches, and what the user or the client itself says.
            "" | "user" | "info" | "warning" => {}
            "error" => tell(Entry::Error(line.content.kept())),
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    session_id: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    role: Text<'a>,
    #[serde(borrow)]
    tool_id: Text<'a>,
    #[serde(borrow)]
    tool_name: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow)]
    message: Text<'a>,
    #[serde(borrow)]
    error: Loose<Failure<'a>>,
    stats: Loose<Stats>,
    #[serde(borrow, rename = "sessionId")]
    session_on_disk: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    content: Text<'a>,
    tokens: Loose<DiskTokens>,
    #[serde(borrow, rename = "toolCalls")]
    tool_calls: Fold<Calls<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure<'a> {
    #[serde(borrow)]
    message: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stats {
    #[serde(rename = "total_tokens")]
    total: Count,
    #[serde(rename = "input_tokens")]
    input: Count,
    #[serde(rename = "output_tokens")]
    output: Count,
    cached: Count,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DiskTokens {
    input: Count,
    output: Count,
    cached: Count,
    thoughts: Count,
    total: Count,
}

impl DiskTokens {
    /// What is in the total and in nothing else was thought; `thoughts` should be the same.
    fn tokens(&self) -> Tokens {
        let rest = self.total.0.saturating_sub(self.input.0).saturating_sub(self.output.0);
        Tokens {
            input: self.input.0.saturating_sub(self.cached.0),
            output: self.output.0.saturating_add(rest.max(self.thoughts.0)),
            cache_read: self.cached.0,
            ..Tokens::default()
        }
    }
}

/// The calls of a response, which are on disk only once they have finished.
#[derive(Default)]
struct Calls<'a> {
    count: u64,
    some: Vec<Call<'a>>,
}

impl Calls<'_> {
    fn tell_finished(&self, tell: Tell<'_>) {
        for call in &self.some {
            tell(Entry::ToolStarted { id: call.id.kept(), name: call.name.kept() });
            tell(Entry::ToolFinished { id: call.id.kept() });
        }
    }
}

impl<'de: 'a, 'a> Gather<'de> for Calls<'a> {
    type Element = Loose<Call<'a>>;

    fn gather(&mut self, Loose(call): Self::Element) {
        self.count += 1;
        if self.some.len() < MAX_CALLS {
            self.some.push(call);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Call<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
}
