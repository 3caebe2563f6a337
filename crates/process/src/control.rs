//! The keeper's protocol: frames, requests, replies and events, and nothing that does I/O.
//!
//! ```text
//! frame = length (u32, little endian, of what follows the kind) | kind (u8) | payload
//! kind 0  a JSON message: Request one way, Answer the other
//! kind 1  input for the run:  request id (u64) | bytes
//! kind 2  output of the run:  stream (u8) | offset (u64) | bytes
//! kind 3  the current screen of a terminal: offset (u64) | bytes that draw it
//! ```
//!
//! Owns: the shapes and their bounds. The protocol's number changes only when an old peer would
//! misunderstand; fields may be added, and unknown ones are ignored. A keeper lives as long as its
//! agent, so every later kennel speaks with the first version too.

use serde::{Deserialize, Serialize};

use crate::exit::ExitStatus;
use crate::output::{OutputTotals, Stream};
use crate::proof::{Survivor, Suspect};
use crate::record::{Cause, End, LimitReached, StartFailure, Started};
use crate::spec::{Spec, TerminalSize};

/// The version of the protocol this code speaks.
pub const PROTOCOL: u32 = 1;
/// The largest frame of any kind but a spec.
pub(crate) const MAX_FRAME_BYTES: usize = 256 << 10;
/// The largest spec: more than any kernel accepts as arguments and environment together.
pub(crate) const MAX_SPEC_BYTES: usize = 16 << 20;
/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 5;

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    #[serde(rename = "do")]
    pub(crate) what: Do,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Do {
    /// The first request on every connection.
    Hello {
        protocol: u32,
    },
    /// Only on the connection the keeper was started with, and only once.
    Start(Box<Spec>),
    Status,
    /// Ask, then force after the grace (the run's own if not said).
    Stop {
        cause: Cause,
        grace_ms: Option<u64>,
    },
    /// Force now.
    Kill {
        cause: Cause,
    },
    Signal {
        signal: i32,
    },
    CloseStdin,
    Resize(TerminalSize),
    /// Be sent every event from here on. With `ack`, the keeper waits a bounded time after the end
    /// for the acknowledgement before it leaves.
    Watch {
        ack: bool,
    },
    /// Be sent the output as it comes, after the current screen if it is a terminal.
    Attach,
    Detach,
    /// The end has been stored elsewhere: the keeper may leave.
    Ack,
    /// What others used on the run's behalf, for its meter: all of it, in the meter's own words.
    Charge(String),
}

/// What the keeper sends back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Reply { id: u64, result: Result<Reply, Refusal> },
    Event(Event),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Hello { protocol: u32, run: String },
    Done,
    Status(Box<Status>),
    StartFailed(StartFailure),
}

/// Why a keeper did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A word that programs can rely on.
    pub code: RefusalCode,
    /// A sentence for people.
    pub message: String,
}

/// The reasons a keeper refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The request is not one this keeper knows.
    UnknownRequest,
    /// The two sides have no protocol in common.
    Protocol,
    /// The run's standard input is not a pipe or a terminal, or is closed already.
    NoInput,
    /// The run reads its input too slowly; nothing of this request was taken.
    InputFull,
    /// There is no terminal to resize.
    NoTerminal,
    /// The leader is gone.
    Gone,
    /// Not a signal, or not one that may be passed on.
    BadSignal,
    /// The run has ended.
    Ended,
    /// More connections than a keeper serves.
    Busy,
    /// The system refused.
    System,
}

/// What a keeper knows of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where the run stands.
    pub state: State,
    /// What was recorded before it started.
    pub started: Started,
    /// How the leader ended, once it has.
    pub exit: Option<ExitStatus>,
    /// Why it is being stopped, once it is.
    pub cause: Option<Cause>,
    /// Who is left after the bound of a stop: the first of them.
    pub survivors: Vec<Survivor>,
    /// How many are left in all.
    #[serde(default)]
    pub survivor_count: u64,
    /// What it wrote so far.
    pub output: OutputTotals,
    /// Milliseconds since it last wrote anything.
    pub silent_ms: u64,
    /// The end, once it is recorded.
    pub end: Option<End>,
    /// Where each of its limits stands, those of its meter not among them.
    #[serde(default)]
    pub limits: Vec<LimitReached>,
    /// Limits that somebody was warned of, each once.
    #[serde(default)]
    pub warned: Vec<LimitReached>,
    /// What it used so far, in the words of its meter.
    #[serde(default)]
    pub usage: Option<String>,
    /// What is wrong with its meter.
    #[serde(default)]
    pub meter_trouble: Option<String>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The leader runs, or, if the run asked for that, the rest of the cohort is awaited.
    Running,
    /// It is being stopped, or swept after its leader exited.
    Stopping,
    /// The bound has passed and somebody is left.
    Stuck,
    /// Death is proven and recorded.
    Ended,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A stop began.
    Stopping(Cause),
    /// A limit is near, told once for each; or its meter has failed, which is told as `meter`.
    Warned(LimitReached),
    /// What the run used so far, in the words of its meter.
    Usage(String),
    /// The leader ended. The cohort may still live, and output may still come.
    Exited(ExitStatus),
    /// The bound of a stop has passed and these are left, of `count` in all. Told once.
    Stuck {
        /// The first of them.
        survivors: Vec<Survivor>,
        /// How many.
        count: u64,
    },
    /// The end, recorded. Nothing follows but [`Outside`](Self::Outside).
    Ended(Box<End>),
    /// After the end: processes outside the cohort that carry the run's cookie.
    Outside {
        /// The first of them.
        suspects: Vec<Suspect>,
        /// How many.
        count: u64,
    },
    /// An attached client read too slowly: these bytes of a stream were not sent to it. They are in
    /// the files.
    Skipped {
        /// Which stream.
        stream: Stream,
        /// How many bytes.
        bytes: u64,
    },
}

/// What one frame carries.
#[derive(Debug)]
pub(crate) enum Frame {
    Json(Vec<u8>),
    Input { id: u64, bytes: Vec<u8> },
    Output { stream: Stream, offset: u64, bytes: Vec<u8> },
    Screen { offset: u64, bytes: Vec<u8> },
}

/// A frame that breaks the rules. The connection cannot be trusted any further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadFrame {
    TooLarge(usize),
    UnknownKind(u8),
    Short,
}

impl std::fmt::Display for BadFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge(n) => write!(f, "a frame of {n} bytes is more than allowed"),
            Self::UnknownKind(kind) => write!(f, "frames of kind {kind} are not known here"),
            Self::Short => f.write_str("a frame is shorter than its kind needs"),
        }
    }
}

impl Frame {
    /// Takes one whole frame from the front of `buffer`; `None` if more bytes must come first.
    pub(crate) fn take(buffer: &mut Vec<u8>, max: usize) -> Result<Option<Self>, BadFrame> {
        let Some((frame, length)) = Self::first(buffer, max)? else { return Ok(None) };
        buffer.drain(..length);
        Ok(Some(frame))
    }

    /// Takes every whole frame, up to the first bad one, moving the rest only once.
    pub(crate) fn take_all(buffer: &mut Vec<u8>, max: usize) -> (Vec<Self>, Option<BadFrame>) {
        let (mut frames, mut taken) = (Vec::new(), 0);
        let bad = loop {
            match Self::first(&buffer[taken..], max) {
                Ok(Some((frame, length))) => {
                    frames.push(frame);
                    taken += length;
                }
                Ok(None) => break None,
                Err(bad) => break Some(bad),
            }
        };
        buffer.drain(..taken);
        (frames, bad)
    }

    /// The first frame and how many bytes it takes.
    fn first(buffer: &[u8], max: usize) -> Result<Option<(Self, usize)>, BadFrame> {
        let Some(header) = buffer.get(..HEADER_BYTES) else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length > max {
            return Err(BadFrame::TooLarge(length));
        }
        let Some(payload) = buffer.get(HEADER_BYTES..HEADER_BYTES + length) else {
            return Ok(None);
        };
        let frame = Self::from_parts(header[4], payload.to_vec())?;
        Ok(Some((frame, HEADER_BYTES + length)))
    }

    pub(crate) fn from_parts(kind: u8, payload: Vec<u8>) -> Result<Self, BadFrame> {
        match kind {
            0 => Ok(Self::Json(payload)),
            1 => {
                let (id, bytes) = split_u64(&payload)?;
                Ok(Self::Input { id, bytes: bytes.to_vec() })
            }
            2 => {
                let (&stream, rest) = payload.split_first().ok_or(BadFrame::Short)?;
                let stream = match stream {
                    1 => Stream::Stdout,
                    2 => Stream::Stderr,
                    3 => Stream::Terminal,
                    other => return Err(BadFrame::UnknownKind(other)),
                };
                let (offset, bytes) = split_u64(rest)?;
                Ok(Self::Output { stream, offset, bytes: bytes.to_vec() })
            }
            3 => {
                let (offset, bytes) = split_u64(&payload)?;
                Ok(Self::Screen { offset, bytes: bytes.to_vec() })
            }
            other => Err(BadFrame::UnknownKind(other)),
        }
    }
}

fn split_u64(payload: &[u8]) -> Result<(u64, &[u8]), BadFrame> {
    let (number, rest) = payload.split_first_chunk::<8>().ok_or(BadFrame::Short)?;
    Ok((u64::from_le_bytes(*number), rest))
}

/// The bytes of a JSON frame. Messages of our own making always serialise.
pub(crate) fn json_frame(message: &impl Serialize) -> Vec<u8> {
    let body = serde_json::to_vec(message).unwrap_or_default();
    frame(0, &[&body])
}

pub(crate) fn input_frame(id: u64, bytes: &[u8]) -> Vec<u8> {
    frame(1, &[&id.to_le_bytes(), bytes])
}

pub(crate) fn output_frame(stream: Stream, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let stream = match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        Stream::Terminal => 3,
    };
    frame(2, &[&[stream], &offset.to_le_bytes(), bytes])
}

pub(crate) fn screen_frame(offset: u64, bytes: &[u8]) -> Vec<u8> {
    frame(3, &[&offset.to_le_bytes(), bytes])
}

fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.extend((length as u32).to_le_bytes());
    bytes.push(kind);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_whole_however_they_are_cut() {
        let mut wire = json_frame(&Request { id: 7, what: Do::Status });
        wire.extend(input_frame(9, b"hello"));
        wire.extend(output_frame(Stream::Stderr, 1 << 40, b"x"));
        let (mut buffer, mut frames) = (Vec::new(), Vec::new());
        for byte in wire {
            buffer.push(byte);
            while let Some(frame) = Frame::take(&mut buffer, MAX_FRAME_BYTES).unwrap() {
                frames.push(frame);
            }
        }
        assert!(matches!(&frames[0], Frame::Json(_)));
        assert!(matches!(&frames[1], Frame::Input { id: 9, bytes } if bytes == b"hello"));
        assert!(matches!(&frames[2], Frame::Output { offset, .. } if *offset == 1 << 40));
        assert_eq!(frames.len(), 3);
    }

    #[test]
    fn garbage_is_an_error_and_never_a_huge_allocation() {
        let mut huge = vec![0xff, 0xff, 0xff, 0xff, 0];
        assert_eq!(
            Frame::take(&mut huge, MAX_FRAME_BYTES).unwrap_err(),
            BadFrame::TooLarge(u32::MAX as usize)
        );
        let mut unknown = vec![0, 0, 0, 0, 77];
        assert_eq!(
            Frame::take(&mut unknown, MAX_FRAME_BYTES).unwrap_err(),
            BadFrame::UnknownKind(77)
        );
        let mut short = vec![2, 0, 0, 0, 1, b'a', b'b'];
        assert_eq!(Frame::take(&mut short, MAX_FRAME_BYTES).unwrap_err(), BadFrame::Short);
    }

    /// The first version of the protocol, byte for byte. Never change these; add new ones.
    #[test]
    fn version_one_is_spoken_for_ever() {
        for text in [
            r#"{"id":1,"do":{"hello":{"protocol":1}}}"#,
            r#"{"id":2,"do":"status"}"#,
            r#"{"id":3,"do":{"stop":{"cause":"stopped","grace_ms":500}}}"#,
            r#"{"id":4,"do":{"kill":{"cause":"killed"}}}"#,
            r#"{"id":5,"do":{"signal":{"signal":10}}}"#,
            r#"{"id":6,"do":"close_stdin"}"#,
            r#"{"id":7,"do":{"resize":{"rows":24,"cols":80}}}"#,
            r#"{"id":8,"do":{"watch":{"ack":true}}}"#,
            r#"{"id":9,"do":"attach"}"#,
            r#"{"id":10,"do":"ack"}"#,
            r#"{"id":11,"do":{"charge":"{}"}}"#,
        ] {
            let request: Request = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
        }
    }
}
