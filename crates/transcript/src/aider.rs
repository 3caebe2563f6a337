//! aider: text on standard output, and the analytics log, which is JSON.
//!
//! Owns both readers. What matters of them: the text ends each response with a line of rounded
//! tokens and its cost, the log has the same exactly; neither names responses, both tell each once;
//! there are no tools; in the log the name of the model may be masked.

use serde::Deserialize;

use crate::entry::{Ending, Entry, Grade, Tokens, Turn, TurnId, Usage};
use crate::json::{Count, Loose, Number, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// What the log writes instead of a model it does not know.
const MASKED: &str = "REDACTED";

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    model: String,
    turns: u64,
}

impl State {
    /// A line of standard output.
    pub(crate) fn text(&mut self, line: &[u8], tell: Tell<'_>) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Main model: ").or(line.strip_prefix("Model: ")) {
            let model = rest.split(" with ").next().unwrap_or_default();
            tell_if_new(&mut self.model, model, tell, Entry::Model);
        } else if let Some(rest) = line.strip_prefix("Tokens: ") {
            let (tokens, cost) = rest.split_once("Cost: ").unwrap_or((rest, ""));
            self.response(rounded_tokens(tokens), message_cost(cost), Grade::Streamed, tell);
        } else if let Some(cost) = line.strip_prefix("Cost: ") {
            // With a cache in use, tokens and cost are on lines of their own.
            self.usage(Tokens::default(), message_cost(cost), Grade::Streamed, tell);
        }
    }

    /// A line of the analytics log.
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        let properties = &line.properties.0;
        match line.event.as_str() {
            "message_send" => {
                let model = properties.main_model.as_str();
                if !model.ends_with(MASKED) {
                    tell_if_new(&mut self.model, model, tell, Entry::Model);
                }
                let tokens = Tokens {
                    input: properties.prompt_tokens.0,
                    output: properties.completion_tokens.0,
                    ..Tokens::default()
                };
                self.response(tokens, properties.cost.amount(), Grade::Recorded, tell);
            }
            "exit" => {
                let subtype = properties.reason.kept();
                let is_error = !subtype.starts_with("Completed");
                tell(Entry::Result(Ending { is_error, subtype }));
            }
            // Its events are many and only these two are about what a run uses; the rest has names.
            "" => tell(Entry::Unknown(front(line.kind.as_str()).to_owned())),
            _ => {}
        }
        Some(length)
    }

    fn response(&mut self, tokens: Tokens, usd: Option<f64>, grade: Grade, tell: Tell<'_>) {
        self.turns += 1;
        let id = TurnId::Own(self.turns);
        tell(Entry::Turn(Turn { id, subagent: false, tools: 0 }));
        self.usage(tokens, usd, grade, tell);
    }

    fn usage(&self, tokens: Tokens, usd: Option<f64>, grade: Grade, tell: Tell<'_>) {
        let model = Some(self.model.clone()).filter(|model| !model.is_empty());
        let (id, request, subagent) = (None, None, false);
        tell(Entry::Usage(Usage { id, request, model, grade, subagent, tokens, usd }));
    }
}

/// `1.1k sent, 3k cache hit, 20 received.`
fn rounded_tokens(text: &str) -> Tokens {
    let mut tokens = Tokens::default();
    for part in text.trim_end().trim_end_matches('.').split(", ") {
        let Some((number, kind)) = part.split_once(' ') else { continue };
        let number = rounded(number);
        match kind {
            "sent" => tokens.input = number,
            "received" => tokens.output = number,
            "cache write" => tokens.cache_write_5m = number,
            "cache hit" => tokens.cache_read = number,
            _ => {}
        }
    }
    tokens
}

/// `20`, `1.1k`, `2M`, `1,234`; what is no number is zero.
fn rounded(text: &str) -> u64 {
    let text = text.replace(',', "");
    let (digits, times) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1e3),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1e6),
            None => (text.as_str(), 1.0),
        },
    };
    digits.parse::<f64>().map_or(0, |number| (number * times).round() as u64)
}

/// `$0.0017 message, $0.0017 session.`
fn message_cost(text: &str) -> Option<f64> {
    let (cost, _) = text.strip_prefix('$')?.split_once(" message")?;
    Number(cost.replace(',', "").parse().ok()).amount()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    event: Text<'a>,
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    properties: Loose<Properties<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Properties<'a> {
    #[serde(borrow)]
    main_model: Text<'a>,
    #[serde(borrow)]
    reason: Text<'a>,
    prompt_tokens: Count,
    completion_tokens: Count,
    cost: Number,
}
