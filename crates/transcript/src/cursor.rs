//! Cursor agent: `-p --output-format stream-json` on standard output. Unverified.
//!
//! Owns that reader, written from Cursor's documents: the client has no package in a registry and
//! could not be run. As documented messages have no names and no tokens are told, so a response is
//! taken to begin with the first text or tool call after a tool's end. The final line may never
//! come, and the client may stay after it.

use serde::Deserialize;

use crate::entry::{Ending, Entry, Turn, TurnId};
use crate::json::{Flag, Text, front, object};
use crate::reader::{Tell, tell_if_new};

/// What is remembered from line to line.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    session: String,
    model: String,
    turns: u64,
    answering: bool,
}

impl State {
    pub(crate) fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        let (line, length) = object::<Line<'_>>(bytes)?;
        tell_if_new(&mut self.session, line.session_id.as_str(), tell, Entry::Session);
        match (line.kind.as_str(), line.subtype.as_str()) {
            ("system", "init") => {
                tell_if_new(&mut self.model, line.model.as_str(), tell, Entry::Model);
            }
            ("assistant", _) => self.answer(0, tell),
            ("tool_call", "started") => {
                self.answer(1, tell);
                let (id, name) = (line.call_id.kept(), "tool".to_owned());
                tell(Entry::ToolStarted { id, name });
            }
            ("tool_call", "completed") => {
                self.answering = false;
                tell(Entry::ToolFinished { id: line.call_id.kept() });
            }
            ("result", subtype) => {
                let is_error = line.is_error.0 || subtype != "success";
                tell(Entry::Result(Ending { is_error, subtype: line.subtype.kept() }));
            }
            ("system" | "user" | "thinking" | "tool_call", _) => {}
            (other, _) => tell(Entry::Unknown(front(other).to_owned())),
        }
        Some(length)
    }

    /// A piece of a response: told with the first piece, and with each tool again.
    fn answer(&mut self, tools: u64, tell: Tell<'_>) {
        let is_new = !std::mem::replace(&mut self.answering, true);
        self.turns += u64::from(is_new);
        if is_new || tools > 0 {
            tell(Entry::Turn(Turn { id: TurnId::Own(self.turns), subagent: false, tools }));
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
    model: Text<'a>,
    #[serde(borrow)]
    call_id: Text<'a>,
    is_error: Flag,
}
