//! Amp: `--stream-json` on standard output, in the manner of Claude Code. Unverified.
//!
//! Owns that reader, written from Amp's documents: the client needs its own server and could not be
//! run. As documented a message is one line, its usage is final, and cache tokens are beside the
//! input. Money is in credits on that server and is not told.

use serde::Deserialize;

use crate::claude::Message;
use crate::entry::{Ending, Entry, Grade, Tokens, Turn, TurnId, Usage};
use crate::json::{Flag, Loose, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    model: String,
    turns: u64,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        tell_if_new(&mut self.session, line.session_id.as_str(), tell, Entry::Session);
        match line.kind.as_str() {
            "assistant" => self.answer(&line, tell),
            "user" => line.message.0.tell_results(tell),
            "system" => {}
            "result" => {
                if line.is_error.0 {
                    tell(Entry::Error(line.error.kept()));
                }
                let (is_error, subtype) = (line.is_error.0, line.subtype.kept());
                tell(Entry::Result(Ending { is_error, subtype }));
            }
            other => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }

    fn answer(&mut self, line: &Line<'_>, tell: Tell<'_>) {
        let message = &line.message.0;
        let subagent = !line.parent_tool_use_id.is_empty();
        tell_if_new(&mut self.model, message.model.as_str(), tell, Entry::Model);
        let id = match message.id.some() {
            Some(id) => TurnId::Shared(id),
            None => {
                self.turns += 1;
                TurnId::Own(self.turns)
            }
        };
        tell(Entry::Turn(Turn { id, subagent, tools: message.content.0.tool_count }));
        message.tell_tools(tell);
        let tokens = message.usage.0.tokens();
        if tokens != Tokens::default() {
            tell(Entry::Usage(Usage {
                id: message.id.some(),
                request: None,
                model: message.model.some(),
                grade: Grade::Streamed,
                subagent,
                tokens,
                usd: None,
            }));
        }
    }
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
    message: Loose<Message<'a>>,
    is_error: Flag,
    #[serde(borrow)]
    error: Text<'a>,
}
