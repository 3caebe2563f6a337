//! Qwen Code: `-o stream-json` on standard output, in the manner of Claude Code.
//!
//! Owns that reader. What differs from the model: the lines of one response have different ids, and
//! only its last one has a usage that is not zero, which is how a response is told; input includes
//! what was read from the cache; the total at the end is the session's and has side calls in it
//! that no line shows; there is no such line when a limit or a signal ended the run.

use serde::Deserialize;

use crate::claude::Message;
use crate::entry::{Ending, Entry, Grade, Span, Tokens, Total, Turn, TurnId, Usage};
use crate::json::{Count, Flag, Loose, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    model: String,
    /// Tools asked for by lines whose response has not been told yet; of the main agent and of
    /// sub-agents, whose lines may come in between.
    pending: [u64; 2],
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        tell_if_new(&mut self.session, line.session_id.as_str(), tell, Entry::Session);
        match line.kind.as_str() {
            "assistant" => self.answer(&line, tell),
            "user" => line.message.0.tell_results(tell),
            "system" if line.subtype.as_str() == "init" => {
                tell_if_new(&mut self.model, line.model.as_str(), tell, Entry::Model);
            }
            "result" => result(&line, tell),
            "system" | "stream_event" => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }

    fn answer(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        let message = &line.message.0;
        let subagent = !line.parent_tool_use_id.is_empty();
        let pending = &mut self.pending[usize::from(subagent)];
        *pending += message.content.0.tool_count;
        let usage = message.usage.0;
        let tokens =
            tokens(usage.input_tokens.0, usage.cache_read_input_tokens.0, usage.output_tokens.0);
        if tokens != Tokens::default() {
            let id = message.id.kept();
            let tools = std::mem::take(pending);
            tell(Entry::Turn(Turn { id: TurnId::Shared(id.clone()), subagent, tools }));
            tell(Entry::Usage(Usage {
                id: Some(id),
                request: None,
                model: message.model.some(),
                grade: Grade::Streamed,
                subagent,
                tokens,
                usd: None,
            }));
        }
        message.tell_tools(tell);
    }
}

fn result(line: &Line<'_>, tell: Tell<'_>) {
    let usage = &line.usage.0;
    let tokens =
        tokens(usage.input_tokens.0, usage.cache_read_input_tokens.0, usage.output_tokens.0);
    tell(Entry::Total(Total { since: Span::Session, tokens: Some(tokens), usd: None }));
    if line.is_error.0 {
        tell(Entry::Error(line.error.0.message.kept()));
    }
    tell(Entry::Result(Ending { is_error: line.is_error.0, subtype: line.subtype.kept() }));
}

/// All input includes what was read from the cache.
fn tokens(input: u64, cached: u64, output: u64) -> Tokens {
    Tokens { input: input.saturating_sub(cached), output, cache_read: cached, ..Tokens::default() }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    subtype: Text<'a>,
    #[serde(borrow)]
    session_id: Text<'a>,
    #[serde(borrow)]
    parent_tool_use_id: Text<'a>,
    #[serde(borrow)]
    model: Text<'a>,
    #[serde(borrow)]
    message: Loose<Message<'a>>,
    is_error: Flag,
    #[serde(borrow)]
    error: Loose<Failure<'a>>,
    usage: Loose<TotalUsage>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure<'a> {
    #[serde(borrow)]
    message: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TotalUsage {
    input_tokens: Count,
    output_tokens: Count,
    cache_read_input_tokens: Count,
}
