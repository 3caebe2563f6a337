//! What an agent said last, in words, for whoever has to go on where it ended.
//!
//! Owns which parts of a client's standard output are words of the agent or of the client itself,
//! and which of them are the last. Counts nothing: that is the readers' and the tally's. Reads each
//! line as a whole, because it is asked once about a run that is over, and not on the way.

use serde_json::Value;

use crate::format::Format;

/// Errors that are passed on: the last ones say why it ended, those before are tries.
const MAX_ERRORS: usize = 3;

/// The model of what Claude Code says in the model's place.
const SYNTHETIC: &str = "<synthetic>";

/// What an agent said last on its standard output, or on the last lines of it: its final answer or
/// its last text, and the errors after it, each on a line of its own. None if there are no words
/// among them, or the client writes no events that tell them apart from the rest.
#[must_use]
pub fn last_words(format: Format, stdout: &[u8]) -> Option<String> {
    if format == Format::Aider {
        return None;
    }
    let mut words = Words::default();
    for line in stdout.split(|byte| *byte == b'\n') {
        words.line(format, line);
    }
    let Words { text, errors, .. } = words;
    let all = std::iter::once(text).chain(errors);
    let all: Vec<String> =
        all.map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect();
    (!all.is_empty()).then(|| all.join("\n"))
}

/// The last that was said so far.
#[derive(Default)]
struct Words {
    text: String,
    /// The response the text is of, while it may go on.
    of: Option<String>,
    /// What went wrong since.
    errors: Vec<String>,
}

/// Something on a line.
enum Said {
    /// Words of the agent. Those of the same response belong together.
    Text {
        of: Option<String>,
        text: String,
        /// What stands between the pieces of one response.
        between: &'static str,
    },
    /// The agent, its client or the service failed, in its own words.
    Error(String),
    /// Anything else: what is said after it is another response, if responses have no names.
    Else,
}

impl Words {
    fn line(&mut self, format: Format, line: &[u8]) {
        let line = line.trim_ascii();
        // Text may stand in front of an object on the same line.
        let object = line.iter().position(|byte| *byte == b'{').map(|at| &line[at..]);
        let read = object.and_then(|object| serde_json::from_slice::<Value>(object).ok());
        match read {
            Some(event) => said(format, &event, &mut |said| self.take(said)),
            // Not a torn object: something the client says beside its events.
            None if !line.is_empty() && !line.starts_with(b"{") => {
                self.take(Said::Error(String::from_utf8_lossy(line).into_owned()));
            }
            None => {}
        }
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::Text { text, .. } if text.trim().is_empty() => {}
            Said::Text { of, text, between } => {
                // Whoever speaks again has got over it.
                self.errors.clear();
                if of.is_some() && self.of == of {
                    self.text.push_str(between);
                    self.text.push_str(&text);
                } else {
                    (self.of, self.text) = (of, text);
                }
            }
            Said::Error(error) => {
                let error = error.trim().to_owned();
                if !error.is_empty() && self.errors.last() != Some(&error) {
                    self.errors.push(error);
                }
                let surplus = self.errors.len().saturating_sub(MAX_ERRORS);
                self.errors.drain(..surplus);
            }
            Said::Else => self.of = None,
        }
    }
}

type Tell<'t> = &'t mut dyn FnMut(Said);

fn said(format: Format, event: &Value, tell: Tell<'_>) {
    match format {
        // Written by the first of them, and by the others in its manner.
        Format::Claude | Format::Qwen | Format::Amp | Format::Cursor => claude(event, tell),
        Format::Codex => codex(event, tell),
        Format::Gemini => gemini(event, tell),
        Format::Opencode => opencode(event, tell),
        Format::Copilot => copilot(event, tell),
        Format::Goose => goose(event, tell),
        Format::Aider => {}
    }
}

/// A text in an object, or nothing where it has something else.
fn text(of: &Value) -> String {
    of.as_str().unwrap_or_default().to_owned()
}

fn alone(of: &Value) -> Said {
    Said::Text { of: None, text: text(of), between: "" }
}

fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    let all = message["content"].as_array().into_iter().flatten();
    all.filter(|block| block["type"] == "text").map(|block| &block["text"])
}

fn claude(event: &Value, tell: Tell<'_>) {
    let message = &event["message"];
    match event["type"].as_str() {
        // A sub-agent speaks to the agent.
        Some("assistant") if !event["parent_tool_use_id"].is_null() => {}
        Some("assistant") if message["model"] == SYNTHETIC => {
            blocks(message).for_each(|block| tell(Said::Error(text(block))));
        }
        Some("assistant") => {
            for block in blocks(message) {
                let of = message["id"].as_str().map(str::to_owned);
                tell(Said::Text { of, text: text(block), between: "\n" });
            }
        }
        Some("result") if event["is_error"] == true => {
            let errors = event["errors"].as_array().into_iter().flatten();
            let one = [&event["result"], &event["error"], &event["error"]["message"]];
            one.into_iter().chain(errors).for_each(|error| tell(Said::Error(text(error))));
        }
        Some("result") => tell(alone(&event["result"])),
        Some(_) | None => {}
    }
}

/// `exec --json`.
fn codex(event: &Value, tell: Tell<'_>) {
    let item = &event["item"];
    match (event["type"].as_str(), item["type"].as_str()) {
        (Some("item.completed"), Some("agent_message")) => tell(alone(&item["text"])),
        (Some("item.completed"), Some("error")) => tell(Said::Error(text(&item["message"]))),
        (Some("turn.failed"), _) => tell(Said::Error(text(&event["error"]["message"]))),
        (Some("error"), _) => tell(Said::Error(text(&event["message"]))),
        (_, _) => {}
    }
}

/// A response comes in pieces without a name, and ends with whatever is none.
fn gemini(event: &Value, tell: Tell<'_>) {
    match event["type"].as_str() {
        Some("message") if event["role"] == "assistant" => {
            let (of, text) = (Some(String::new()), text(&event["content"]));
            tell(Said::Text { of, text, between: "" });
        }
        Some("error") => tell(Said::Error(text(&event["message"]))),
        Some("result") if event["status"] != "success" => {
            tell(Said::Error(text(&event["error"]["message"])));
        }
        Some(_) | None => tell(Said::Else),
    }
}

fn opencode(event: &Value, tell: Tell<'_>) {
    let part = &event["part"];
    match event["type"].as_str() {
        Some("text") => {
            let of = part["messageID"].as_str().map(str::to_owned);
            tell(Said::Text { of, text: text(&part["text"]), between: "\n" });
        }
        Some("error") => {
            let error = &event["error"];
            let told = error["data"]["message"].as_str().or(error["name"].as_str());
            tell(Said::Error(told.unwrap_or_default().to_owned()));
        }
        Some(_) | None => {}
    }
}

fn copilot(event: &Value, tell: Tell<'_>) {
    let data = &event["data"];
    match event["type"].as_str() {
        Some("assistant.message") => tell(alone(&data["content"])),
        Some("session.error" | "model.call_failure") => tell(Said::Error(text(&data["message"]))),
        Some(_) | None => {}
    }
}

fn goose(event: &Value, tell: Tell<'_>) {
    let message = &event["message"];
    match event["type"].as_str() {
        Some("message") if message["role"] == "assistant" => {
            for block in blocks(message) {
                let of = message["id"].as_str().map(str::to_owned);
                tell(Said::Text { of, text: text(block), between: "" });
            }
        }
        Some("error") => tell(Said::Error(text(&event["error"]))),
        Some(_) | None => {}
    }
}
