//! `kennel logs`: what a run wrote, from its files, and what it writes from here on.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::{Text, wire};
use serde::Serialize;

use crate::client::{Client, segment};
use crate::error::{FAILED, Failure};
use crate::output::{self, Out, say};

/// How long one question for more output waits, in milliseconds; then it is asked again.
const POLL_MS: u32 = 15_000;

/// Print what a run wrote: its stdout to stdout, its stderr to stderr.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// A run, the beginning of its id, or a slot.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Go on until the run has ended.
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn logs(args: &LogsArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let run: wire::Run = client.get(&format!("/v1/runs/{}", segment(&args.run)))?;
    let until = match args.follow {
        true => Until::TheEnd { stop_if_reader_leaves: false },
        false => Until::NoMore,
    };
    let followers = follow(client, &run, until, *out);
    followers.into_iter().try_for_each(Follower::join)?;
    Ok(0)
}

/// How long streams are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// As far as there is something now.
    NoMore,
    /// Until the run has ended.
    TheEnd {
        /// As a pipe does to whoever writes into it.
        stop_if_reader_leaves: bool,
    },
}

/// A thread that copies one stream.
pub(crate) struct Follower(std::thread::JoinHandle<Result<(), Failure>>);

impl Follower {
    pub(crate) fn join(self) -> Result<(), Failure> {
        let panicked = || Failure::new(FAILED, "internal", "a reader of output panicked");
        self.0.join().unwrap_or_else(|_| Err(panicked()))
    }
}

/// Copies the streams of a run to ours, each in a thread.
pub(crate) fn follow(client: &Client, run: &wire::Run, until: Until, out: Out) -> Vec<Follower> {
    let copy = |stream: &'static str, mut to: Box<dyn Write + Send>| {
        let (client, id) = (client.clone(), run.id.clone());
        Follower(std::thread::spawn(move || {
            let mut cast = (stream == "terminal").then(Cast::default);
            let copied = read_stream(&client, &id, stream, until, |piece| {
                if out.json {
                    return out.answer(&piece.line(stream), String::new);
                }
                if piece.skipped > 0 {
                    say(&format!("kennel: {} bytes of {stream} are not kept", piece.skipped));
                }
                match &mut cast {
                    Some(cast) => {
                        output::bytes(&cast.decode(piece.bytes, piece.skipped > 0), &mut to)
                    }
                    None => output::bytes(piece.bytes, &mut to),
                }
            });
            match (&copied, until) {
                (Err(Failure::ReaderLeft), Until::TheEnd { stop_if_reader_leaves: true }) => {
                    let path = format!("/v1/runs/{id}/stop");
                    client.post::<wire::Run>(&path, &wire::StopRequest::default()).map(drop)
                }
                _ => copied,
            }
        }))
    };
    if run.pty {
        return vec![copy("terminal", Box::new(io::stdout()))];
    }
    vec![copy("stdout", Box::new(io::stdout())), copy("stderr", Box::new(io::stderr()))]
}

/// A piece of a stream, after so many bytes that are not kept.
struct Piece<'a> {
    offset: u64,
    skipped: u64,
    bytes: &'a [u8],
}

impl Piece<'_> {
    /// One line of `logs --json`; of a terminal it is a piece of its recording.
    fn line(&self, stream: &str) -> impl Serialize {
        let data = Text(OsString::from_vec(self.bytes.to_vec()));
        let (offset, skipped) = (self.offset, self.skipped);
        serde_json::json!({"stream": stream, "offset": offset, "skipped": skipped, "data": data})
    }
}

/// What came of looking for some text.
pub(crate) enum Found {
    /// It is there: in this stream, beginning at this byte.
    At {
        stream: &'static str,
        offset: u64,
    },
    EndedWithout,
    TimedOut,
}

/// Waits until a run has written some text, looking from its first byte on.
pub(crate) fn find_text(
    client: &Client,
    run: &wire::Run,
    text: &[u8],
    deadline: Option<Instant>,
) -> Result<Found, Failure> {
    let streams: &[&'static str] = if run.pty { &["terminal"] } else { &["stdout", "stderr"] };
    let (found, finds) = mpsc::channel();
    for stream in streams {
        let (client, id, text, found) =
            (client.clone(), run.id.clone(), text.to_vec(), found.clone());
        // It ends with its stream, or with us.
        std::thread::spawn(move || drop(found.send(find_in(&client, &id, stream, &text))));
    }
    for _ in streams {
        let next = match deadline {
            None => finds.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => finds.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match next {
            Ok(Ok(Found::EndedWithout)) => {}
            Ok(other) => return other,
            Err(RecvTimeoutError::Timeout) => return Ok(Found::TimedOut),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(Found::EndedWithout)
}

/// Looks through one stream to its end. What is looked for may be cut anywhere.
fn find_in(client: &Client, id: &str, stream: &'static str, text: &[u8]) -> Result<Found, Failure> {
    let mut cast = (stream == "terminal").then(Cast::default);
    let (mut tail, mut at, mut hit) = (Vec::new(), 0_u64, None);
    let read =
        read_stream(client, id, stream, Until::TheEnd { stop_if_reader_leaves: false }, |piece| {
            if piece.skipped > 0 {
                tail.clear();
                at += piece.skipped;
            }
            match &mut cast {
                Some(cast) => tail.extend(cast.decode(piece.bytes, piece.skipped > 0)),
                None => tail.extend_from_slice(piece.bytes),
            }
            if let Some(found) = tail.windows(text.len()).position(|window| window == text) {
                hit = Some(at + found as u64);
                // Nobody wants the rest.
                return Err(Failure::ReaderLeft);
            }
            let done = tail.len().saturating_sub(text.len() - 1);
            at += done as u64;
            tail.drain(..done);
            Ok(())
        });
    match (hit, read) {
        (Some(offset), _) => Ok(Found::At { stream, offset }),
        (None, Err(e)) => Err(e),
        (None, Ok(())) => Ok(Found::EndedWithout),
    }
}

fn read_stream(
    client: &Client,
    id: &str,
    stream: &str,
    until: Until,
    mut take: impl FnMut(&Piece<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut offset = 0;
    let (to_the_end, wait) = match until {
        Until::NoMore => (false, 0),
        Until::TheEnd { .. } => (true, POLL_MS),
    };
    loop {
        let path = format!("/v1/runs/{id}/output?stream={stream}&offset={offset}&wait_ms={wait}");
        let reply = client.get_bytes(&path)?;
        let number = |name| reply.header(name).and_then(|value| value.parse::<u64>().ok());
        let next = number(wire::NEXT_OFFSET).unwrap_or(offset);
        if next > offset {
            let skipped = number(wire::SKIPPED).unwrap_or(0);
            take(&Piece { offset, skipped, bytes: &reply.body })?;
        } else if !to_the_end || number(wire::END_OF_OUTPUT) == Some(1) {
            return Ok(());
        }
        offset = next;
    }
}

/// A terminal's recording (asciicast 2), read back to the bytes the terminal was sent.
#[derive(Default)]
struct Cast {
    partial: Vec<u8>,
    /// After a gap the rest of a line makes no sense.
    broken: bool,
}

impl Cast {
    fn decode(&mut self, bytes: &[u8], after_gap: bool) -> Vec<u8> {
        if after_gap {
            self.partial.clear();
            self.broken = true;
        }
        self.partial.extend_from_slice(bytes);
        let whole = self.partial.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        let mut shown = Vec::new();
        for line in self.partial[..whole].split_inclusive(|b| *b == b'\n') {
            if std::mem::take(&mut self.broken) {
                continue;
            }
            // The first line is a heading, and later kinds of lines are not output.
            if let Ok((_, kind, data)) = serde_json::from_slice::<(f64, String, String)>(line)
                && kind == "o"
            {
                shown.extend_from_slice(data.as_bytes());
            }
        }
        self.partial.drain(..whole);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_gives_its_output_however_it_is_cut() {
        let cast = b"{\"version\":2}\n[0.1,\"o\",\"h\\u001b[1m\"]\n\
            [0.2,\"r\",\"80x24\"]\n[1,\"o\",\"i\\n\"]\n";
        let mut reader = Cast::default();
        let shown: Vec<u8> = cast.iter().flat_map(|b| reader.decode(&[*b], false)).collect();
        assert_eq!(shown, b"h\x1b[1mi\n");
        let mut reader = Cast::default();
        assert_eq!(reader.decode(b"[0,\"o\",\"a", false), b"");
        assert_eq!(reader.decode(b"", true), b"");
        assert_eq!(reader.decode(b"half\"]\n[0,\"o\",\"b\"]\n", false), b"b");
    }
}
