//! The end of what a run wrote, small enough to be told. Owns how much that is, and what a
//! terminal's recording is in plain words. Credentials are left out of it.

use std::io;
use std::path::Path;

use kennel_process::{Chunk, OutputTotals, Stream, end_of_output, read_output};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::redact::{LONGEST, Secrets};

/// The most bytes of one stream that a notice quotes: a screenful, and thousands of notices fit
/// into memory.
pub(crate) const TAIL_BYTES: u64 = 2000;
/// A recording has more bytes than what it shows: times, brackets, escapes.
const RECORDING_FACTOR: u64 = 4;

/// The end of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tail {
    /// Its last words; what is not text is replaced.
    pub text: String,
    /// So many bytes before it are left out here. They are in the run's output.
    pub left_out: u64,
}

/// The ends of a run's streams; those that are empty are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tails {
    /// Of standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Tail>,
    /// Of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Tail>,
    /// Of a terminal, without its control sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Tail>,
    /// True if the end of the output was not searched for what is watched, because that took too
    /// long: there may be matches that nobody was told of.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsearched: bool,
}

/// Where in its streams somebody has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offsets {
    pub(crate) stdout: u64,
    pub(crate) stderr: u64,
    pub(crate) terminal: u64,
}

impl Offsets {
    /// True if this is where everything ends that a run wrote.
    pub(crate) fn is_end_of(self, written: OutputTotals) -> bool {
        // What a terminal was sent counts as standard output there.
        self.stdout + self.terminal == written.stdout.written
            && self.stderr == written.stderr.written
    }
}

impl Tails {
    /// The ends of what was written since, and where they end.
    pub(crate) fn since(dir: &Path, from: Offsets, secrets: &Secrets) -> (Self, Offsets) {
        Self::read(dir, from, secrets, false)
    }

    fn read(dir: &Path, from: Offsets, secrets: &Secrets, whole: bool) -> (Self, Offsets) {
        let mut to = from;
        let read = |stream, from: u64, to: &mut u64| {
            let (tail, end) = tail_of(dir, stream, from, secrets, whole).ok()?;
            *to = end;
            tail
        };
        let tails = Self {
            stdout: read(Stream::Stdout, from.stdout, &mut to.stdout),
            stderr: read(Stream::Stderr, from.stderr, &mut to.stderr),
            terminal: read(Stream::Terminal, from.terminal, &mut to.terminal),
            unsearched: false,
        };
        (tails, to)
    }

    /// The same, of lines that have ended: what is being written is told the next time, whole.
    pub(crate) fn of_whole_lines(dir: &Path, from: Offsets, secrets: &Secrets) -> (Self, Offsets) {
        Self::read(dir, from, secrets, true)
    }

    /// True if there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The end of one stream after an offset, and the offset behind it.
fn tail_of(
    dir: &Path,
    stream: Stream,
    from: u64,
    secrets: &Secrets,
    whole_lines: bool,
) -> io::Result<(Option<Tail>, u64)> {
    let mut end = end_of_output(dir, stream)?;
    if whole_lines {
        end = end_of_line(dir, stream, from, end)?;
    }
    if end <= from {
        return Ok((None, from));
    }
    let recorded = stream == Stream::Terminal;
    let most = if recorded { TAIL_BYTES * RECORDING_FACTOR } else { TAIL_BYTES };
    let begin = from.max(end.saturating_sub(most));
    // A value may begin before what is quoted.
    let searched = if secrets.is_empty() { 0 } else { LONGEST as u64 };
    let (bytes, first) = read_from(dir, stream, begin.saturating_sub(searched), end)?;
    let skipped = begin.saturating_sub(first) as usize;
    let text = if recorded {
        let (text, from) = shown_from(&bytes, skipped);
        secrets.redact_from(text.as_bytes(), from)
    } else {
        let at = from_whole_character(&bytes, skipped.min(bytes.len()));
        secrets.redact_from(&bytes, at)
    };
    Ok((Some(Tail { text, left_out: begin - from }), end))
}

/// The last lines of a stream, of up to so many bytes. One whose beginning is not among them is
/// left out.
pub(crate) fn last_lines(dir: &Path, stream: Stream, most: u64) -> io::Result<Vec<u8>> {
    let end = end_of_output(dir, stream)?;
    let (mut bytes, first) = read_from(dir, stream, end.saturating_sub(most), end)?;
    if first > 0 {
        let cut = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..cut);
    }
    Ok(bytes)
}

/// The offset behind the last line that has ended, if there is one among the last bytes; a longer
/// line is told in pieces.
fn end_of_line(dir: &Path, stream: Stream, from: u64, end: u64) -> io::Result<u64> {
    let begin = from.max(end.saturating_sub(TAIL_BYTES * RECORDING_FACTOR));
    let (bytes, first) = read_from(dir, stream, begin, end)?;
    match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(at) => Ok(first + at as u64 + 1),
        None if begin > from => Ok(end),
        None => Ok(from),
    }
}

/// A character that was cut by the bound is left out.
fn from_whole_character(bytes: &[u8], at: usize) -> usize {
    let cut = at > 0 && at < bytes.len();
    let rest = bytes[at..].iter().take(3).take_while(|byte| (**byte & 0xc0) == 0x80).count();
    if cut { at + rest } else { at }
}

/// What there is from an offset to another, and where it really begins.
fn read_from(dir: &Path, stream: Stream, from: u64, to: u64) -> io::Result<(Vec<u8>, u64)> {
    let (mut all, mut first, mut at) = (Vec::new(), from, from);
    while at < to {
        match read_output(dir, stream, at)? {
            Some(Chunk::Bytes { offset, bytes }) => {
                at = offset + bytes.len() as u64;
                all.extend(bytes);
            }
            Some(Chunk::Gap { to, .. }) => {
                (first, at) = (to, to);
                all.clear();
            }
            None => break,
        }
    }
    all.truncate(to.saturating_sub(first) as usize);
    Ok((all, first))
}

/// What a piece of a recording shows, without control sequences. Lines that were cut are left out.
pub(crate) fn shown(recording: &[u8]) -> String {
    shown_from(recording, 0).0
}

/// The same, and where in it the lines begin that are behind so many bytes of the recording: what
/// was shown before is needed to know a value again that was written in two goes.
fn shown_from(recording: &[u8], skipped: usize) -> (String, usize) {
    let (mut plain, mut at, mut from) = (Plain::default(), 0, None);
    for line in recording.split(|byte| *byte == b'\n') {
        if at >= skipped {
            from.get_or_insert(plain.text.len());
        }
        at += line.len() + 1;
        if let Some(text) = written_in(line) {
            plain.add(&text);
        }
    }
    let from = from.unwrap_or(plain.text.len());
    (plain.text, from)
}

/// What one line of a recording has as output.
pub(crate) fn written_in(line: &[u8]) -> Option<String> {
    let (_, kind, text): (f64, String, String) = serde_json::from_slice(line).ok()?;
    (kind == "o").then_some(text)
}

/// Text of a terminal without its control sequences, however it is cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plain {
    pub(crate) text: String,
    within: Within,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    #[default]
    Text,
    Escape,
    /// `ESC [`: parameters up to a final letter.
    Sequence,
    /// `ESC ]` and the like: anything up to BEL or `ESC \`.
    Command,
    CommandEscape,
}

impl Plain {
    pub(crate) fn add(&mut self, text: &str) {
        for c in text.chars() {
            self.within = match (self.within, c) {
                (Within::Text, '\u{1b}') => Within::Escape,
                (Within::Text, c) => {
                    if c == '\n' || c == '\t' || !c.is_control() {
                        self.text.push(c);
                    }
                    Within::Text
                }
                (Within::Escape, '[') => Within::Sequence,
                (Within::Escape, ']' | 'P' | '_' | '^' | 'X') => Within::Command,
                // Intermediates, before a final.
                (Within::Escape, ' '..='/') => Within::Escape,
                (Within::Escape, _) => Within::Text,
                (Within::Sequence, '@'..='~') => Within::Text,
                (Within::Sequence, _) => Within::Sequence,
                (Within::Command, '\u{7}') => Within::Text,
                (Within::Command, '\u{1b}') => Within::CommandEscape,
                (Within::Command, _) => Within::Command,
                (Within::CommandEscape, '\\') => Within::Text,
                (Within::CommandEscape, _) => Within::Command,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_told_in_plain_words() {
        let recording = concat!(
            "{\"version\":2}\n",
            "[0.1,\"o\",\"\\u001b[1;31mred\\u001b[0m \\u001b]0;ti\"]\n",
            "[0.2,\"o\",\"tle\\u0007\\r\\nnext\\u001b(B\"]\n",
            "[0.3,\"i\",\"typed\"]\n",
            "[0.4,\"o\",\"cut"
        );
        assert_eq!(shown(recording.as_bytes()), "red \nnext");
    }

    #[test]
    fn a_value_that_a_terminal_was_sent_in_two_goes_is_not_quoted_by_its_second_half() {
        use std::os::unix::fs::DirBuilderExt;

        use crate::text::Text;
        let dir = std::env::temp_dir().join(format!("kennel-tail-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).unwrap();
        let env = [(Text("API_KEY".into()), Text("hunter2-hunter2".into()))];
        let secrets = Secrets::of(&env, "r");
        // The first go is before what is quoted, the second is its first line.
        let rest = format!("[0.3,\"o\",\"{}\"]\n", "x".repeat(7950));
        let recording = format!("[0.1,\"o\",\"hunter2-\"]\n[0.2,\"o\",\"hunter2 \"]\n{rest}");
        std::fs::write(dir.join("terminal.cast.0"), recording).unwrap();
        let (tails, _) = Tails::since(&dir, Offsets::default(), &secrets);
        std::fs::remove_dir_all(&dir).unwrap();
        let text = tails.terminal.unwrap().text;
        assert!(text.starts_with("[redacted] x"), "{}", &text[..40]);
    }

    #[test]
    fn a_character_is_never_cut() {
        let text = "aé".as_bytes();
        assert_eq!(from_whole_character(text, 0), 0);
        assert_eq!(from_whole_character(text, 1), 1);
        assert_eq!(from_whole_character(text, 2), 3);
        assert_eq!(from_whole_character(text, 3), 3);
    }
}
