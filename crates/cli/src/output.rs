//! Where words go: data to stdout, everything else to stderr. The only place that prints.
//!
//! A reader that left is not an error of ours; it ends the command quietly.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::error::{FAILED, Failure};
use crate::render::Style;

/// The system's number for "input/output error", which a terminal without anybody gives.
const CLOSED_TERMINAL: i32 = 5;

/// How a command answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) json: bool,
}

impl Out {
    /// How tables look: as wide as the terminal, coloured unless `NO_COLOR` says otherwise; as wide
    /// as they are and plain for whoever reads a pipe.
    pub(crate) fn style() -> Style {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Style { width: None, colour: false };
        }
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        Style { width, colour: !plain }
    }

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
    // A terminal that was closed: nobody's wish, so that whatever we show goes on without us.
    if e.raw_os_error() == Some(CLOSED_TERMINAL) {
        return Err(Failure::TerminalClosed);
    }
    Err(Failure::new(FAILED, "output", format!("failed to write the output: {e}")))
}

/// Says something to people. If nobody can hear it, nobody can be told.
pub(crate) fn say(text: &str) {
    // One write: other processes may share this stderr, and lines must not mix.
    let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
