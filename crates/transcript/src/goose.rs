//! Goose: `run --output-format stream-json` on standard output.
//!
//! Owns that reader; what Goose keeps on disk is a database. What matters of it: the chunks of one
//! response share `message.id`; tokens and money come once, at the end, for the whole session; text
//! may stand in front of an object on the same line; an error of the service is an ordinary text
//! with exit code 0, known by how it begins. Input includes what was read from and written to the
//! cache.

use serde::Deserialize;

use crate::entry::{Ending, Entry, Span, Tokens, Total, Turn, TurnId};
use crate::json::{Count, Fold, Gather, Loose, Number, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// How many tool calls or results of one message are told one by one; models ask for tens at most.
const MAX_BLOCKS: usize = 256;

/// How a text begins that tells an error of the service.
const ERROR_BEGINS: &str = "Ran into this error";

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    model: String,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        match line.kind.as_str() {
            "message" => self.message(&line.message.0, tell),
            "complete" => complete(&line, tell),
            "error" => tell(Entry::Error(line.error.kept())),
            "notification" => {}
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }

    fn message(&mut self, message: &Message<'_>, tell: Tell<'_>) {
        let content = &message.content.0;
        for id in &content.results {
            tell(Entry::ToolFinished { id: id.kept() });
        }
        if message.role.as_str() != "assistant" {
            return;
        }
        if content.error {
            return tell(Entry::Error(ERROR_BEGINS.to_owned()));
        }
        let model = message.metadata.0.inference.0.model.as_str();
        tell_if_new(&mut self.model, model, tell, Entry::Model);
        let id = TurnId::Shared(message.id.kept());
        tell(Entry::Turn(Turn { id, subagent: false, tools: content.tool_count }));
        for (id, name) in &content.tools {
            tell(Entry::ToolStarted { id: id.kept(), name: name.kept() });
        }
    }
}

fn complete(line: &Line<'_>, tell: Tell<'_>) {
    let cached = line.cache_read.0.saturating_add(line.cache_write.0);
    let tokens = Tokens {
        input: line.input.0.saturating_sub(cached),
        output: line.output.0,
        cache_read: line.cache_read.0,
        cache_write_5m: line.cache_write.0,
        ..Tokens::default()
    };
    let usd = line.cost_usd.amount();
    tell(Entry::Total(Total { since: Span::Session, tokens: Some(tokens), usd }));
    tell(Entry::Result(Ending { is_error: false, subtype: "complete".to_owned() }));
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    message: Loose<Message<'a>>,
    #[serde(borrow)]
    error: Text<'a>,
    #[serde(rename = "input_tokens")]
    input: Count,
    #[serde(rename = "output_tokens")]
    output: Count,
    #[serde(rename = "cache_read_input_tokens")]
    cache_read: Count,
    #[serde(rename = "cache_write_input_tokens")]
    cache_write: Count,
    cost_usd: Number,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    role: Text<'a>,
    #[serde(borrow)]
    content: Fold<Blocks<'a>>,
    #[serde(borrow)]
    metadata: Loose<Metadata<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    inference: Loose<Inference<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Inference<'a> {
    #[serde(borrow, rename = "requestedModel")]
    model: Text<'a>,
}

#[derive(Default)]
struct Blocks<'a> {
    tools: Vec<(Text<'a>, Text<'a>)>,
    tool_count: u64,
    results: Vec<Text<'a>>,
    error: bool,
}

impl<'de: 'a, 'a> Gather<'de> for Blocks<'a> {
    type Element = Loose<Block<'a>>;

    fn gather(&mut self, Loose(block): Self::Element) {
        match block.kind.as_str() {
            "toolRequest" => {
                self.tool_count += 1;
                if self.tools.len() < MAX_BLOCKS {
                    self.tools.push((block.id, block.call.0.value.0.name));
                }
            }
            "toolResponse" if self.results.len() < MAX_BLOCKS => self.results.push(block.id),
            "text" => self.error |= block.text.as_str().starts_with(ERROR_BEGINS),
            _ => {}
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    id: Text<'a>,
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(borrow, rename = "toolCall")]
    call: Loose<Call<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Call<'a> {
    #[serde(borrow)]
    value: Loose<CallValue<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CallValue<'a> {
    #[serde(borrow)]
    name: Text<'a>,
}
