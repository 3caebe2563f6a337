//! Where words go: data to stdout, everything else to stderr. The only place that prints.
//!
//! A reader that left is not an error of ours; it ends the command quietly.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::{FAILED, Failure};

/// How a command answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) json: bool,
}

impl Out {
    /// Answers with one value: as JSON if that was asked for, else as text.
    pub(crate) fn answer(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.json {
            let json = serde_json::to_string(value);
            let json = json.map_err(|e| Failure::new(FAILED, "internal", e.to_string()))?;
            return line(&json);
        }
        line(&text())
    }
}

/// Writes a line of data.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    written(writeln!(stdout, "{text}").and_then(|()| stdout.flush()))
}

/// Writes bytes of data as they are.
pub(crate) fn bytes(bytes: &[u8], mut to: impl Write) -> Result<(), Failure> {
    written(to.write_all(bytes).and_then(|()| to.flush()))
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    let Err(e) = result else { return Ok(()) };
    if e.kind() == io::ErrorKind::BrokenPipe {
        return Err(Failure::ReaderLeft);
    }
    Err(Failure::new(FAILED, "output", format!("failed to write the output: {e}")))
}

/// Says something to people. If nobody can hear it, nobody can be told.
pub(crate) fn say(text: &str) {
    // One write: other processes may share this stderr, and lines must not mix.
    let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
