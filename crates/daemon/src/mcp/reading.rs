//! Output as a model reads it: text, from byte offsets that never shift, a bounded amount at once,
//! with the number of bytes left out.
//!
//! Owns: how bytes become text, a terminal's recording included, and looking for words. Reads the
//! run's files by the same door as the API.

use kennel_process::{Chunk, Stream, end_of_output};
use serde::Serialize;

use super::inputs::{Cursors, Which};
use crate::api::App;
use crate::api::error::ApiError;
use crate::api::output::{Reading, has_ended};
use crate::store::kept::KeptRun;
use crate::tail::{Plain, shown, written_in};

/// What one answer gives of one stream if nobody says how much: a few screens.
const USUAL_BYTES: usize = 16 << 10;
/// The most it gives: more would fill a model's context.
const MAX_BYTES: usize = 256 << 10;
/// The fewest bytes that are looked at: what a terminal is sent at once is one line of its
/// recording, and is not cut.
const MIN_BYTES: usize = 256;
/// The longest beginning of a character that is held back until the rest of it is written.
const MAX_HELD_BACK_BYTES: usize = 3;

/// The streams of a run.
pub(super) fn streams_of(run: &KeptRun) -> &'static [Stream] {
    if run.request.terminal { &[Stream::Terminal] } else { &[Stream::Stdout, Stream::Stderr] }
}

pub(super) fn name_of(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Terminal => "terminal",
    }
}

impl Which {
    pub(super) fn stream(self) -> Stream {
        match self {
            Self::Stdout => Stream::Stdout,
            Self::Stderr => Stream::Stderr,
            Self::Terminal => Stream::Terminal,
        }
    }
}

impl Cursors {
    pub(super) fn of(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
            Stream::Terminal => self.terminal,
        }
    }
}

/// How much of each stream is wanted.
pub(super) fn bounded(asked: Option<u32>) -> usize {
    asked.map_or(USUAL_BYTES, |asked| asked as usize).clamp(MIN_BYTES, MAX_BYTES)
}

/// A part of a stream.
#[derive(Debug, Serialize)]
pub(super) struct Piece {
    pub(super) stream: &'static str,
    /// Offset of its first byte.
    pub(super) from: u64,
    /// Offset after its last byte: where to go on.
    pub(super) to: u64,
    pub(super) text: String,
    /// Bytes between those two that are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) not_kept: u64,
    /// Bytes before it that were not asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) left_out_before: u64,
    /// Bytes after it that were written already and did not fit.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) left_out_after: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Where somebody reads in one stream of one run.
pub(super) struct Source<'a> {
    pub(super) app: &'a App,
    pub(super) run: &'a KeptRun,
    pub(super) stream: Stream,
}

impl Source<'_> {
    fn reading(&self, offset: u64) -> Reading {
        Reading { dir: self.app.home.run_dir(&self.run.id), stream: self.stream, offset }
    }

    /// How long the stream is so far.
    async fn length(&self) -> Result<u64, ApiError> {
        let (dir, stream) = (self.app.home.run_dir(&self.run.id), self.stream);
        let look = tokio::task::spawn_blocking(move || end_of_output(&dir, stream));
        // A run that never started may have no files at all.
        Ok(look.await.map_err(|_| ApiError::leaving())?.unwrap_or(0))
    }

    /// What there is from an offset on.
    pub(super) async fn from(&self, offset: u64, most: usize) -> Result<Piece, ApiError> {
        self.read(offset, most, Begin::AtOnce).await
    }

    /// The end of what there is.
    pub(super) async fn tail(&self, most: usize) -> Result<Piece, ApiError> {
        let offset = self.length().await?.saturating_sub(most as u64);
        let begin = if offset == 0 { Begin::AtOnce } else { Begin::Between };
        let piece = self.read(offset, most, begin).await?;
        Ok(Piece { left_out_before: piece.from, ..piece })
    }

    async fn read(&self, from: u64, most: usize, begin: Begin) -> Result<Piece, ApiError> {
        // Before the look: so that an end that is said to be one is one.
        let over = has_ended(self.run);
        let (mut at, mut not_kept, mut begin) = (from, 0, begin);
        let bytes = loop {
            match self.reading(at).look().await? {
                Some(Chunk::Gap { from, to }) => {
                    not_kept += to - from;
                    at = to;
                    begin = Begin::Between;
                }
                Some(Chunk::Bytes { bytes, .. }) => break bytes,
                None => break Vec::new(),
            }
        };
        let cut = match self.stream {
            Stream::Terminal => cut_recording(&bytes, most, begin),
            Stream::Stdout | Stream::Stderr => cut_text(&bytes, most, begin, over),
        };
        let to = at + cut.to as u64;
        let left_out_after = self.length().await?.saturating_sub(to);
        Ok(Piece {
            stream: name_of(self.stream),
            from: if not_kept > 0 { from } else { at + cut.from as u64 },
            to,
            text: cut.text,
            not_kept,
            left_out_before: 0,
            // What was held back is a part of a character, and not worth a word.
            left_out_after: if cut.held_back { 0 } else { left_out_after },
        })
    }

    /// Waits until the stream has some text, looking from an offset on: where it begins, or how far
    /// the recording of a terminal had come. `None` if the run ended without.
    pub(super) async fn find(&self, text: &str, from: u64) -> Result<Option<u64>, ApiError> {
        let (mut offset, mut seen) = (from, Seen::new(self.stream, text));
        loop {
            let over = match self.app.live.get(&self.run.id) {
                Some(run) => has_ended(&run),
                None => true,
            };
            let reading = self.reading(offset);
            let chunk = match reading.look().await? {
                None if over => return Ok(None),
                None => reading.wait(self.app, &self.run.id).await?,
                chunk => chunk,
            };
            match chunk {
                Some(Chunk::Gap { to, .. }) => {
                    offset = to;
                    seen = Seen::new(self.stream, text);
                }
                Some(Chunk::Bytes { bytes, .. }) => {
                    let before = offset;
                    offset += bytes.len() as u64;
                    if let Some(found) = seen.find(&bytes, before) {
                        return Ok(Some(found));
                    }
                }
                None => {}
            }
        }
    }
}

/// How a piece begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    AtOnce,
    /// Perhaps in the middle of a character or a line: that is left out.
    Between,
}

struct Cut {
    from: usize,
    to: usize,
    text: String,
    held_back: bool,
}

fn cut_text(bytes: &[u8], most: usize, begin: Begin, over: bool) -> Cut {
    let is_rest = |byte: &u8| byte & 0xc0 == 0x80;
    let rest = bytes.iter().take(MAX_HELD_BACK_BYTES).take_while(|byte| is_rest(byte)).count();
    let from = if begin == Begin::Between { rest } else { 0 };
    let end = bytes.len().min(from + most);
    let to = match std::str::from_utf8(&bytes[from..end]) {
        // A character that is cut by the end: the rest of it comes later, or with the next piece.
        Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 => from + e.valid_up_to(),
        Err(e) if e.error_len().is_none() && !over && end == bytes.len() => from,
        Ok(_) | Err(_) => end,
    };
    // Of a run that is over nothing follows.
    let to = if over && end == bytes.len() { end } else { to };
    let text = String::from_utf8_lossy(&bytes[from..to]).into_owned();
    Cut { from, to, text, held_back: to < end }
}

/// Whole lines of a recording, of which at least one is taken.
fn cut_recording(bytes: &[u8], most: usize, begin: Begin) -> Cut {
    let line_after = |at: usize| bytes[at..].iter().position(|b| *b == b'\n').map(|n| at + n + 1);
    let from = if begin == Begin::Between { line_after(0).unwrap_or(bytes.len()) } else { 0 };
    let end = bytes.len().min(from + most);
    let whole = bytes[from..end].iter().rposition(|b| *b == b'\n').map(|n| from + n + 1);
    let to = whole.or_else(|| line_after(from)).unwrap_or(from);
    Cut { from, to, text: shown(&bytes[from..to]), held_back: to < end && end == bytes.len() }
}

/// Text that is looked for, over pieces that may be cut anywhere.
struct Seen {
    text: Vec<u8>,
    tail: Vec<u8>,
    recording: Option<(Vec<u8>, Plain)>,
}

impl Seen {
    fn new(stream: Stream, text: &str) -> Self {
        let recording = match stream {
            Stream::Terminal => Some((Vec::new(), Plain::default())),
            Stream::Stdout | Stream::Stderr => None,
        };
        Self { text: text.into(), tail: Vec::new(), recording }
    }

    fn find(&mut self, bytes: &[u8], offset: u64) -> Option<u64> {
        let before = self.tail.len() as u64;
        match &mut self.recording {
            None => self.tail.extend_from_slice(bytes),
            Some((partial, plain)) => {
                partial.extend_from_slice(bytes);
                let whole = partial.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
                for text in partial[..whole].split(|b| *b == b'\n').filter_map(written_in) {
                    plain.add(&text);
                }
                self.tail.extend_from_slice(std::mem::take(&mut plain.text).as_bytes());
                partial.drain(..whole);
            }
        }
        let found = self.tail.windows(self.text.len()).position(|window| window == self.text);
        let kept = self.tail.len().min(self.text.len().saturating_sub(1));
        self.tail.drain(..self.tail.len() - kept);
        found.map(|at| match self.recording {
            None => (offset + at as u64).saturating_sub(before),
            Some(_) => offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_goes_on_where_it_was() {
        let all = "aä€😀z".repeat(40);
        let (mut at, mut read) = (0, String::new());
        while at < all.len() {
            let cut = cut_text(&all.as_bytes()[at..], 7, Begin::AtOnce, false);
            assert!(cut.to > 0 && !cut.text.contains('\u{fffd}'), "{}", cut.text);
            read.push_str(&cut.text);
            at += cut.to;
        }
        assert_eq!(read, all);
        // The rest of a character may come yet; of a run that is over it will not.
        let half = &"€".as_bytes()[..2];
        assert_eq!(cut_text(half, 10, Begin::AtOnce, false).to, 0);
        assert_eq!(cut_text(half, 10, Begin::AtOnce, true).to, 2);
        assert_eq!(cut_text(b"\xff\xfe", 10, Begin::AtOnce, false).to, 2, "no text at all");
        assert_eq!(cut_text("€x".as_bytes(), 10, Begin::Between, false).from, 0);
        assert_eq!(cut_text(&"€x".as_bytes()[1..], 10, Begin::Between, false).text, "x");
    }

    #[test]
    fn a_recording_is_cut_between_its_lines_and_read_as_plain_text() {
        let cast = b"{\"version\":2}\n[0.1,\"o\",\"\\u001b[1mred\\u001b[0m\\r\\n\"]\n[1,\"o\",\"x";
        let cut = cut_recording(cast, 1000, Begin::AtOnce);
        assert_eq!((cut.text.as_str(), &cast[cut.to..]), ("red\n", &b"[1,\"o\",\"x"[..]));
        let cut = cut_recording(cast, 3, Begin::AtOnce);
        assert_eq!((cut.text.as_str(), cut.to), ("", 14), "a line is taken whole");
        assert_eq!(cut_recording(&cast[3..], 1000, Begin::Between).text, "red\n");
    }

    #[test]
    fn words_are_found_however_they_are_cut() {
        let mut seen = Seen::new(Stream::Stdout, "ready now");
        assert_eq!(seen.find(b"not re", 100), None);
        assert_eq!(seen.find(b"ady", 106), None);
        assert_eq!(seen.find(b" now, and", 109), Some(104));
        let mut seen = Seen::new(Stream::Terminal, "ok>");
        assert_eq!(seen.find(b"[0,\"o\",\"\\u001b[1mo\"]\n[0,\"o\",\"\\u001b[", 0), None);
        assert_eq!(seen.find(b"0mk>\"]\n", 40), Some(40));
    }
}
