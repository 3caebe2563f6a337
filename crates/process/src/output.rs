//! What a run wrote, kept in files whose byte offsets never shift.
//!
//! ```text
//! stdout.0            the head: the first bytes, never touched again
//! stdout.1073741824   a segment of the tail, named by the offset of its first byte
//! stdout.1107296256   the newest one, being written
//! ```
//!
//! Owns: the segments, the limit (head and tail are kept, the middle is dropped one whole segment
//! at a time) and the account of what was dropped. The keeper alone writes and removes segments. A
//! reader finds the offset of every byte in the names, and every gap between them; it is shown as a
//! gap and never closed up.
//!
//! Never blocks the agent: the files are the buffer, and a disk that cannot take a byte costs that
//! byte and is counted, not the agent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One of the streams a run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal, as an asciicast recording.
    Terminal,
}

impl Stream {
    fn file_stem(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Terminal => "terminal.cast",
        }
    }

    /// The file of the segment that begins at this offset.
    fn segment(self, dir: &Path, start: u64) -> PathBuf {
        dir.join(format!("{}.{start}", self.file_stem()))
    }
}

/// How much a run wrote and how much of it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTotals {
    /// Bytes of standard output, or of the terminal's recording.
    pub stdout: StreamTotals,
    /// Bytes of standard error; none with a terminal.
    pub stderr: StreamTotals,
    /// True if every writer had closed its end when the keeper stopped reading.
    pub complete: bool,
}

impl OutputTotals {
    /// What the files alone tell, after the keeper died. Whether a missing byte was dropped or lost
    /// can no longer be told apart, nor whether all was read: both are said to the less good side.
    pub(crate) fn of_files(dir: &Path) -> Self {
        let terminal = StreamTotals::of_files(dir, Stream::Terminal).unwrap_or_default();
        let stdout = StreamTotals::of_files(dir, Stream::Stdout).unwrap_or_default();
        let stderr = StreamTotals::of_files(dir, Stream::Stderr).unwrap_or_default();
        let stdout = if terminal.written > 0 { terminal } else { stdout };
        Self { stdout, stderr, complete: false }
    }
}

impl StreamTotals {
    fn of_files(dir: &Path, stream: Stream) -> io::Result<Self> {
        let mut totals = Self::default();
        for start in segments(dir, stream)? {
            let length = fs::metadata(stream.segment(dir, start))?.len();
            totals.dropped += start.saturating_sub(totals.written);
            totals.written = start + length;
        }
        Ok(totals)
    }
}

/// How much of one stream was written, dropped and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTotals {
    /// All bytes, and so the offset of the next one.
    pub written: u64,
    /// Bytes of the middle that were removed to keep within the limit.
    pub dropped: u64,
    /// Bytes that the disk did not take.
    pub lost: u64,
}

/// The tail is kept in this many segments, so that it is at least `(n - 1) / n` of its share.
const TAIL_SEGMENTS: u64 = 8;

/// The most files a tail consists of, however short they are.
const MAX_TAIL_FILES: usize = 64;

/// One stream being written.
#[derive(Debug)]
pub(crate) struct Writer {
    dir: PathBuf,
    stream: Stream,
    head_bytes: u64,
    segment_bytes: u64,
    file: Option<File>,
    /// Offset of the first byte of the segment being written.
    start: u64,
    /// Full segments of the tail, oldest first: first byte and length.
    tail: std::collections::VecDeque<(u64, u64)>,
    totals: StreamTotals,
}

impl Writer {
    /// Begins a stream that keeps about `keep_bytes`. Its first file is made with its first byte: a
    /// start makes enough files as it is, and a directory that takes none refuses those.
    pub(crate) fn new(dir: &Path, stream: Stream, keep_bytes: u64) -> Self {
        let head_bytes = keep_bytes / 2;
        Self {
            dir: dir.to_owned(),
            stream,
            head_bytes,
            segment_bytes: (keep_bytes - head_bytes) / TAIL_SEGMENTS,
            file: None,
            start: 0,
            tail: std::collections::VecDeque::new(),
            totals: StreamTotals::default(),
        }
    }

    pub(crate) fn totals(&self) -> StreamTotals {
        self.totals
    }

    /// Takes all of `bytes`. What the disk refuses is counted as lost; its offsets stay empty.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let now = bytes.len().min(room as usize);
            self.write_part(&bytes[..now]);
            bytes = &bytes[now..];
        }
    }

    /// Takes one unit that must not be split over two segments, as a line of a recording.
    pub(crate) fn write_whole(&mut self, unit: &[u8]) {
        if unit.len() as u64 > self.room() && self.totals.written > self.start {
            self.rotate();
        }
        self.write_part(unit);
    }

    fn room(&mut self) -> u64 {
        let limit = if self.start == 0 { self.head_bytes } else { self.segment_bytes };
        let used = self.totals.written - self.start;
        if used >= limit {
            self.rotate();
            return self.segment_bytes;
        }
        limit - used
    }

    fn write_part(&mut self, part: &[u8]) {
        let at = self.totals.written - self.start;
        if self.file.is_none() {
            self.file = self.open_segment().ok();
        }
        let taken = self.file.as_ref().is_some_and(|file| file.write_all_at(part, at).is_ok());
        self.totals.written += part.len() as u64;
        if !taken {
            self.lose(at, part.len() as u64);
        }
    }

    /// Ends the segment before the bytes the disk refused, so that they show as a gap.
    fn lose(&mut self, kept: u64, lost: u64) {
        self.totals.lost += lost;
        match self.file.take() {
            Some(_) if kept == 0 && self.start > 0 => {
                let _ = fs::remove_file(self.segment_path(self.start));
            }
            // Part of the refused bytes may have been written.
            Some(file) => {
                let _ = file.set_len(kept);
                if self.start > 0 {
                    self.tail.push_back((self.start, kept));
                }
            }
            None => {}
        }
        self.start = self.totals.written;
        self.trim();
    }

    fn rotate(&mut self) {
        if self.start > 0 && self.file.is_some() {
            self.tail.push_back((self.start, self.totals.written - self.start));
        }
        self.trim();
        self.start = self.totals.written;
        self.file = self.open_segment().ok();
    }

    /// Removes the oldest segments of the tail until the rest, with one more, is within its share.
    /// A disk that comes and goes makes short segments; many of those count as one.
    fn trim(&mut self) {
        let share = self.segment_bytes * (TAIL_SEGMENTS - 1);
        while self.tail.iter().map(|(_, length)| length).sum::<u64>() > share
            || self.tail.len() > MAX_TAIL_FILES
        {
            let Some((start, length)) = self.tail.pop_front() else { return };
            let _ = fs::remove_file(self.segment_path(start));
            self.totals.dropped += length;
        }
    }

    fn segment_path(&self, start: u64) -> PathBuf {
        self.stream.segment(&self.dir, start)
    }

    fn open_segment(&self) -> io::Result<File> {
        let path = self.segment_path(self.start);
        File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
    }
}

/// A piece of a stream as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// These bytes, beginning at this offset.
    Bytes {
        /// Where in the stream.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// Nothing is kept from one offset to the other.
    Gap {
        /// The first byte that is missing.
        from: u64,
        /// The first byte that is there again.
        to: u64,
    },
}

/// The most bytes one [`read_output`] gives.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Reads what is kept of a stream from `offset` on: bytes, or the gap that begins there, or nothing
/// if nothing more was written so far. Works from the run's directory alone, alive or not.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("kennel-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// # std::fs::write(dir.join("stdout.0"), "hello\n")?;
/// use kennel_process::{Chunk, Stream, read_output};
/// let mut offset = 0;
/// while let Some(chunk) = read_output(&dir, Stream::Stdout, offset)? {
///     match chunk {
///         Chunk::Bytes { offset: at, bytes } => {
///             assert_eq!(bytes, b"hello\n");
///             offset = at + bytes.len() as u64;
///         }
///         Chunk::Gap { from: _, to } => offset = to,
///     }
/// }
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok(()) }
/// ```
pub fn read_output(dir: &Path, stream: Stream, offset: u64) -> io::Result<Option<Chunk>> {
    /// A segment may be removed between listing and opening; the next listing knows.
    const TRIES: usize = 8;
    for _ in 0..TRIES {
        let starts = segments(dir, stream)?;
        let Some(&start) = starts.iter().rfind(|s| **s <= offset) else {
            let Some(&to) = starts.first() else {
                return Ok(None);
            };
            return Ok(Some(Chunk::Gap { from: offset, to }));
        };
        let file = match File::open(stream.segment(dir, start)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        // No more than there is: to clear a megabyte for one line takes longer than all else here.
        let left = file.metadata()?.len().saturating_sub(offset - start);
        let mut bytes = vec![0; left.min(MAX_CHUNK_BYTES as u64) as usize];
        let n = file.read_at(&mut bytes, offset - start)?;
        bytes.truncate(n);
        if n > 0 {
            return Ok(Some(Chunk::Bytes { offset, bytes }));
        }
        return match starts.iter().find(|s| **s > offset) {
            Some(&to) => Ok(Some(Chunk::Gap { from: offset, to })),
            None => Ok(None),
        };
    }
    Err(io::Error::other("the output is rotated faster than it can be read"))
}

/// The offset behind the last byte of a stream, by its files alone.
pub fn end_of_output(dir: &Path, stream: Stream) -> io::Result<u64> {
    let Some(start) = segments(dir, stream)?.last().copied() else { return Ok(0) };
    match fs::metadata(stream.segment(dir, start)) {
        // Dropped since the listing: nothing of it can be read any more.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(start),
        found => Ok(start + found?.len()),
    }
}

/// How much a run has written so far, dropped bytes included, and when it last did, by its files
/// alone. Of a terminal it is the recording's size.
pub fn written_so_far(dir: &Path) -> io::Result<(u64, Option<std::time::SystemTime>)> {
    let (mut bytes, mut last) = ([0_u64; 3], None);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((stem, start)) = name.to_str().and_then(|name| name.rsplit_once('.')) else {
            continue;
        };
        let streams = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
        let stream = streams.iter().position(|stream| stream.file_stem() == stem);
        let (Some(stream), Ok(start)) = (stream, start.parse::<u64>()) else { continue };
        // It may be dropped between the listing and the look.
        let Ok(found) = entry.metadata() else { continue };
        if found.len() > 0 {
            bytes[stream] = bytes[stream].max(start + found.len());
            last = last.max(found.modified().ok());
        }
    }
    Ok((bytes.iter().sum(), last))
}

/// The offsets at which the kept segments of a stream begin, in order.
fn segments(dir: &Path, stream: Stream) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let start = name.to_str().and_then(|n| n.strip_prefix(stream.file_stem()));
        if let Some(start) = start.and_then(|s| s.strip_prefix('.')?.parse().ok()) {
            starts.push(start);
        }
    }
    starts.sort_unstable();
    Ok(starts)
}

/// A terminal's output as an asciicast v2 recording.
#[derive(Debug)]
pub(crate) struct Recording {
    writer: Writer,
    began: std::time::Duration,
    /// The beginning of a character whose rest has not come yet.
    partial: Vec<u8>,
    /// Bytes of the terminal itself, not of the recording.
    raw: u64,
}

impl Recording {
    pub(crate) fn begin(
        dir: &Path,
        keep_bytes: u64,
        size: crate::spec::TerminalSize,
        now: std::time::Duration,
        unix_seconds: u64,
    ) -> Self {
        let writer = Writer::new(dir, Stream::Terminal, keep_bytes);
        let mut recording = Self { writer, began: now, partial: Vec::new(), raw: 0 };
        let header = serde_json::json!({
            "version": 2, "width": size.cols, "height": size.rows, "timestamp": unix_seconds,
        });
        recording.line(&header);
        recording
    }

    pub(crate) fn totals(&self) -> StreamTotals {
        self.writer.totals()
    }

    /// Bytes the terminal has written so far.
    pub(crate) fn raw_offset(&self) -> u64 {
        self.raw
    }

    pub(crate) fn output(&mut self, now: std::time::Duration, bytes: &[u8]) {
        self.raw += bytes.len() as u64;
        self.partial.extend_from_slice(bytes);
        let whole = complete_utf8(&self.partial);
        if whole > 0 {
            let text = String::from_utf8_lossy(&self.partial[..whole]).into_owned();
            self.partial.drain(..whole);
            self.event(now, "o", &text);
        }
    }

    pub(crate) fn resized(&mut self, now: std::time::Duration, size: crate::spec::TerminalSize) {
        self.event(now, "r", &format!("{}x{}", size.cols, size.rows));
    }

    /// Writes what is left of a character that will never be complete.
    pub(crate) fn finish(&mut self, now: std::time::Duration) {
        if !self.partial.is_empty() {
            let text = String::from_utf8_lossy(&self.partial).into_owned();
            self.partial.clear();
            self.event(now, "o", &text);
        }
    }

    fn event(&mut self, now: std::time::Duration, code: &str, data: &str) {
        let seconds = now.saturating_sub(self.began).as_micros() as f64 / 1e6;
        self.line(&serde_json::json!([seconds, code, data]));
    }

    fn line(&mut self, value: &serde_json::Value) {
        let mut line = Vec::new();
        // Values of our own making always serialise, and a Vec takes every byte.
        let _ = writeln!(line, "{value}");
        self.writer.write_whole(&line);
    }
}

/// How many bytes from the start do not end within a character. At most three are held back.
fn complete_utf8(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for at in (from..bytes.len()).rev() {
        let length = match bytes[at] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return bytes.len(),
        };
        return if bytes.len() - at < length { at } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kennel-output-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn read_all(dir: &Path, stream: Stream) -> Vec<Chunk> {
        let (mut offset, mut chunks) = (0, Vec::new());
        while let Some(chunk) = read_output(dir, stream, offset).unwrap() {
            offset = match &chunk {
                Chunk::Bytes { offset, bytes } => offset + bytes.len() as u64,
                Chunk::Gap { to, .. } => *to,
            };
            chunks.push(chunk);
        }
        chunks
    }

    #[test]
    fn head_and_tail_are_kept_and_offsets_never_shift() {
        let dir = scratch("limit");
        let keep = 64 << 10;
        let mut writer = Writer::new(&dir, Stream::Stdout, keep);
        let total: u64 = 1 << 20;
        // Byte n of the stream is n mod 251, so that every kept byte tells its own offset.
        let all: Vec<u8> = (0..total).map(|n| (n % 251) as u8).collect();
        for part in all.chunks(7777) {
            writer.write(part);
        }
        let (mut kept, mut gaps, mut seen_to) = (0, 0, 0);
        for chunk in read_all(&dir, Stream::Stdout) {
            match chunk {
                Chunk::Bytes { offset, bytes } => {
                    assert_eq!(offset, seen_to);
                    kept += bytes.len() as u64;
                    seen_to = offset + bytes.len() as u64;
                    assert!(bytes == all[offset as usize..seen_to as usize]);
                }
                Chunk::Gap { from, to } => {
                    assert_eq!(from, seen_to);
                    gaps += to - from;
                    seen_to = to;
                }
            }
        }
        let totals = writer.totals();
        assert_eq!((totals.written, totals.dropped, totals.lost), (total, gaps, 0));
        assert_eq!(seen_to, total);
        assert_eq!(kept + gaps, total);
        assert!(kept <= keep && kept > keep * 7 / 8, "{kept}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_bytes_and_says_how_many() {
        let dir = scratch("lost");
        let mut writer = Writer::new(&dir, Stream::Stdout, 64 << 10);
        writer.write(b"abc");
        // A descriptor that cannot be written to stands for the full disk.
        writer.file = Some(File::open("/dev/null").unwrap());
        writer.write(b"hello");
        writer.write(b"xyz");
        assert_eq!(writer.totals(), StreamTotals { written: 11, dropped: 0, lost: 5 });
        let expected = [
            Chunk::Bytes { offset: 0, bytes: b"abc".to_vec() },
            Chunk::Gap { from: 3, to: 8 },
            Chunk::Bytes { offset: 8, bytes: b"xyz".to_vec() },
        ];
        assert_eq!(read_all(&dir, Stream::Stdout), expected);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_recording_is_asciicast_and_never_splits_a_character() {
        let dir = scratch("cast");
        let size: crate::spec::TerminalSize =
            serde_json::from_str(r#"{"rows":5,"cols":20}"#).unwrap();
        let at = std::time::Duration::from_secs;
        let mut recording = Recording::begin(&dir, 64 << 10, size, at(1), 1_700_000_000);
        for byte in "aé€😀".as_bytes() {
            recording.output(at(2), &[*byte]);
        }
        recording.output(at(3), &[0xff, b'z', 0xe2, 0x82]);
        recording.resized(at(4), size);
        recording.finish(at(5));
        let text = fs::read_to_string(dir.join("terminal.cast.0")).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines[0]["version"], 2);
        assert_eq!((&lines[0]["width"], &lines[0]["height"]), (&20.into(), &5.into()));
        let shown: String =
            lines[1..].iter().filter(|l| l[1] == "o").map(|l| l[2].as_str().unwrap()).collect();
        assert_eq!(shown, "aé€😀\u{fffd}z\u{fffd}");
        assert_eq!(lines[lines.len() - 2][1], "r");
        fs::remove_dir_all(&dir).unwrap();
    }
}
