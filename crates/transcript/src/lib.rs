//! What a coding agent's own event stream tells, in one vocabulary for every agent.
//!
//! Bytes go in, [`Entry`]s come out, and a [`Tally`] makes of them what a run has used so far:
//!
//! ```
//! use kennel_transcript::{Format, History, Prices, Reader, Source, Tally};
//!
//! let mut tally = Tally::new(Prices::shipped(), History::Fresh);
//! let mut reader = Reader::new(Format::Claude, Source::Stdout);
//! let bytes = br#"{"type":"assistant","message":{"id":"m1","model":"claude-sonnet-5",
//!     "content":[{"type":"tool_use","id":"t1","name":"Bash"}]}}"#;
//! let line: Vec<u8> = bytes.iter().copied().filter(|b| *b != b'\n').collect();
//! reader.feed(&line, &mut |entry| tally.add(Source::Stdout, &entry));
//! reader.finish(&mut |entry| tally.add(Source::Stdout, &entry));
//!
//! let used = tally.used();
//! assert_eq!((used.turns, used.tool_turns, used.open_tools), (1, 1, 1));
//! ```
//!
//! A run may have several sources: its standard output, and files its client keeps about the
//! session. Each has a [`Reader`] of its own and all of them feed one tally, which counts every
//! response once. [`files`] says where those files are and how to have a client use a session id of
//! ours; [`can_count`] says beforehand what can be counted for a client at all.
//!
//! Owns: the words for what agents report, how each client writes them, what they cost. Never does
//! I/O, never reads a clock, never fails on input: what is unknown, broken or too long is counted
//! as such. The work is linear in the bytes given, the memory is bounded by constants.

#![forbid(unsafe_code)]

mod aider;
mod amp;
mod claude;
mod codex;
mod copilot;
mod cursor;
mod entry;
pub mod files;
mod format;
mod gemini;
mod goose;
mod json;
mod opencode;
mod prices;
mod qwen;
mod reader;
mod recent;
mod tally;
mod words;

pub use entry::{
    Ending, Entry, Grade, RateLimit, Span, Tokens, Total, Turn, TurnId, Usage, Waiting,
};
pub use format::{Basis, Countable, Format, Sources, UnknownFormat, can_count};
pub use prices::{LongContext, Price, Priced, Prices};
pub use reader::{MAX_LINE_BYTES, Reader, Source};
pub use tally::{CostBasis, History, ModelUse, Standing, Tally, Used};
pub use words::last_words;
