//! A line that says what is being waited for, and for how long already. On a terminal only, on
//! stderr, and gone when the wait is over.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::duration::words;

/// What is over sooner needs no line.
const FIRST_AFTER: Duration = Duration::from_millis(400);
/// How often the line is written again.
const EVERY: Duration = Duration::from_millis(200);
/// Back to the beginning of the line, and nothing on it.
const CLEAR: &str = "\r\x1b[K";

/// The line, until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    pub(crate) fn new(what: String) -> Self {
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let (over, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut pause = FIRST_AFTER;
            let mut shown = false;
            while told.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let line = format!("{CLEAR}{what}: {}", words(begun.elapsed()));
                let _ = io::stderr().write_all(line.as_bytes());
                (pause, shown) = (EVERY, true);
            }
            if shown {
                let _ = io::stderr().write_all(CLEAR.as_bytes());
            }
        });
        Self(Some((over, thread)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((over, thread)) = self.0.take() {
            drop(over);
            let _ = thread.join();
        }
    }
}
