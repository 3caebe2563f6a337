//! opencode: `run --format json` on standard output.
//!
//! Owns that reader; what opencode keeps on disk is a database, and standard output suffices. What
//! matters of it: a response is what lies between `step_start` and `step_finish`; a tool is told
//! only when it has finished, so one that hangs looks like silence; there is no final line; the
//! steps of sub-agents and the call for a title are not shown. Input excludes what was cached.

use serde::Deserialize;

use crate::entry::{Entry, Grade, Tokens, Turn, TurnId, Usage};
use crate::json::{Count, Loose, Number, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    child: String,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        tell_if_new(&mut self.session, line.session.as_str(), tell, Entry::Session);
        let part = &line.part.0;
        match line.kind.as_str() {
            "step_start" => tell(Entry::Working),
            "step_finish" => finished(part, tell),
            "tool_use" => {
                let child = part.state.0.metadata.0.session.as_str();
                tell_if_new(&mut self.child, child, tell, Entry::Subagent);
                let (id, name) = (part.call.kept(), part.tool.kept());
                tell(Entry::ToolStarted { id: id.clone(), name });
                tell(Entry::ToolFinished { id });
            }
            "error" => {
                let error = &line.error.0;
                let told = [&error.data.0.message, &error.name];
                let first = told.into_iter().find(|text| !text.is_empty());
                tell(Entry::Error(first.map(Text::kept).unwrap_or_default()));
            }
            "text" | "reasoning" => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }
}

fn finished(part: &Part<'_>, tell: Tell<'_>) {
    let id = part.message.kept();
    let tools = u64::from(part.reason.as_str() == "tool-calls");
    tell(Entry::Turn(Turn { id: TurnId::Shared(id.clone()), subagent: false, tools }));
    let tokens = &part.tokens.0;
    tell(Entry::Usage(Usage {
        id: Some(id),
        request: None,
        model: None,
        grade: Grade::Recorded,
        subagent: false,
        tokens: Tokens {
            input: tokens.input.0,
            output: tokens.output.0.saturating_add(tokens.reasoning.0),
            cache_read: tokens.cache.0.read.0,
            cache_write_5m: tokens.cache.0.write.0,
            ..Tokens::default()
        },
        usd: part.cost.amount(),
    }));
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, rename = "sessionID")]
    session: Text<'a>,
    #[serde(borrow)]
    part: Loose<Part<'a>>,
    #[serde(borrow)]
    error: Loose<Failure<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Part<'a> {
    #[serde(borrow, rename = "messageID")]
    message: Text<'a>,
    #[serde(borrow)]
    reason: Text<'a>,
    #[serde(borrow)]
    tool: Text<'a>,
    #[serde(borrow, rename = "callID")]
    call: Text<'a>,
    #[serde(borrow)]
    state: Loose<ToolState<'a>>,
    tokens: Loose<StepTokens>,
    cost: Number,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolState<'a> {
    #[serde(borrow)]
    metadata: Loose<Metadata<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow, rename = "sessionId")]
    session: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StepTokens {
    input: Count,
    output: Count,
    reasoning: Count,
    cache: Loose<Cache>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cache {
    read: Count,
    write: Count,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    data: Loose<FailureData<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FailureData<'a> {
    #[serde(borrow)]
    message: Text<'a>,
}
