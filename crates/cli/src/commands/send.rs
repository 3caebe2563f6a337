//! `kennel send`: writes to a run's input or terminal, and copies our own input there.
//!
//! Owns: pieces, and patience with a run that does not read. No piece is ever sent twice: what may
//! have been taken is reported, not repeated.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::wire;

use crate::client::{Client, segment};
use crate::error::{FAILED, Failure, REFUSED};
use crate::output::say;

/// The most that is sent at once: a keeper takes so much whole or not at all.
const PIECE_BYTES: usize = 64 << 10;
/// How long `send` waits for a run that does not read: long enough for a slow start of a program.
const FULL_BOUND: Duration = Duration::from_secs(30);
/// First pause before a piece is offered again; it doubles up to the longest.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// The longest such pause: a run that reads again does not wait for us noticeably longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Write to a run's input, as if it had been typed.
///
/// The run needs an input: start it with --stdin or --pty. The words are joined by spaces and Enter
/// is added. A single `-` sends our own input instead, as it is.
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// A run, the beginning of its id, or a slot.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// What to write; `-` for our own input. Put `--` before words that begin with a dash.
    #[arg(required_unless_present = "eof")]
    text: Vec<OsString>,
    /// Do not add Enter.
    #[arg(short, long)]
    no_newline: bool,
    /// Close its input afterwards: it reads end of file. A terminal is sent Ctrl-D.
    #[arg(long)]
    eof: bool,
}

pub(crate) fn send(args: &SendArgs, client: &Client) -> Result<u8, Failure> {
    let run: wire::Run = client.get(&format!("/v1/runs/{}", segment(&args.run)))?;
    let mut feed = Feed::new(client, &run.id, Some(FULL_BOUND));
    match args.text.as_slice() {
        [only] if only == "-" => feed.copy(stdin())?,
        words => feed.write(&typed(words, args.no_newline, run.pty))?,
    }
    if args.eof {
        feed.close()?;
    }
    Ok(0)
}

/// The words as somebody would type them.
fn typed(words: &[OsString], no_newline: bool, pty: bool) -> Vec<u8> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let mut bytes = words.join(&b' ');
    if !no_newline && !words.is_empty() {
        // The key Enter sends a carriage return; a terminal in its usual mode makes a newline of
        // it, and a program that reads keys expects it.
        bytes.push(if pty { b'\r' } else { b'\n' });
    }
    bytes
}

/// Copies our own input to a run, in a thread, and closes its input at the end of ours. Waits for
/// as long as the run lives, as a pipe would.
pub(crate) fn forward_stdin(client: &Client, run: &wire::Run) {
    let (client, id) = (client.clone(), run.id.clone());
    std::thread::spawn(move || {
        let mut feed = Feed::new(&client, &id, None);
        match feed.copy(stdin()).and_then(|()| feed.close()) {
            // It closed its input, or is over: as with a pipe, whose writer is only told if it
            // goes on.
            Err(Failure::Told { error, .. }) if !is_over(&error.code) => {
                say(&format!("kennel: {}", error.message));
            }
            Ok(()) | Err(Failure::Told { .. } | Failure::ReaderLeft | Failure::TerminalClosed) => {}
        }
    });
}

/// True for an error that says no more than that nobody reads any more.
pub(crate) fn is_over(code: &str) -> bool {
    matches!(code, "no_input" | "not_live")
}

/// The way into a run's input.
pub(crate) struct Feed<'a> {
    client: &'a Client,
    path: String,
    /// How long a run may go without reading; for ever if not said, for its end ends it.
    patience: Option<Duration>,
    taken: u64,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(client: &'a Client, run: &str, patience: Option<Duration>) -> Self {
        Self { client, path: format!("/v1/runs/{run}/input"), patience, taken: 0 }
    }

    /// Copies to the end.
    pub(crate) fn copy(&mut self, mut from: impl Read) -> Result<(), Failure> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.write(&buffer[..n])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let message = format!("failed to read our own input: {e}");
                    return Err(Failure::new(FAILED, "input", message));
                }
            }
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.offer(piece)?;
            self.taken += piece.len() as u64;
        }
        Ok(())
    }

    /// Closes the input once the run has read all of it.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        self.client.post_bytes(&format!("{}?close=true", self.path), b"")
    }

    /// Offers one piece until it is taken.
    fn offer(&self, piece: &[u8]) -> Result<(), Failure> {
        let deadline = self.patience.map(|patience| Instant::now() + patience);
        let mut pause = FULL_PAUSE;
        loop {
            match self.client.post_bytes(&self.path, piece) {
                Err(Failure::Told { error, .. }) if error.code == "input_full" => {}
                answered => return answered,
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                let message =
                    format!("the run does not read: {} bytes were taken, no more", self.taken);
                return Err(Failure::new(REFUSED, "input_full", message)
                    .hint("send the rest later; nothing of it was taken"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Our own input, without the standard library's buffer: what is read is passed on at once.
struct Stdin;

pub(crate) fn stdin() -> impl Read {
    Stdin
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(rustix::stdio::stdin(), buffer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_typed_with_spaces_between_and_enter_after() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(typed(&words("go on"), false, false), b"go on\n");
        assert_eq!(typed(&words("go on"), false, true), b"go on\r");
        assert_eq!(typed(&words("y"), true, true), b"y");
        assert_eq!(typed(&[OsString::new()], false, false), b"\n");
        assert_eq!(typed(&[], false, false), b"");
    }
}
