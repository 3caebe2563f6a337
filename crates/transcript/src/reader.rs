//! From bytes to lines to entries, however the bytes are cut.
//!
//! Owns where a line ends, how long one may be, and what is tried on one that is not plain JSON.
//! What an object means is said in the file of its client.

use crate::entry::Entry;
use crate::format::Format;
use crate::{aider, amp, claude, codex, copilot, cursor, gemini, goose, opencode, qwen};

/// The longest line that is read. The longest that counts is one response, and a model writes less
/// than 1 MiB in one; what is longer is the result of a tool, a picture for instance, and counts
/// nothing. The memory of a reader never exceeds this.
pub const MAX_LINE_BYTES: usize = 8 << 20;

/// What a reader keeps of its memory after a long line.
const KEPT_LINE_BYTES: usize = 64 << 10;

/// How often JSON is looked for on a line that begins with text. A brace may be part of the text;
/// to try each of them would take quadratic time.
const MAX_GLUE_TRIES: usize = 4;

/// Where the bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The client's standard output.
    Stdout,
    /// A file the client keeps about the session.
    File {
        /// Whether the file is a sub-agent's own.
        subagent: bool,
    },
}

impl Source {
    pub(crate) fn is_subagent(self) -> bool {
        match self {
            Self::Stdout => false,
            Self::File { subagent } => subagent,
        }
    }
}

/// Whoever is told entries.
pub(crate) type Tell<'t> = &'t mut dyn FnMut(Entry);

/// Reads one source of one client.
///
/// The same bytes give the same entries, however they are cut into calls of
/// [`feed`](Self::feed).
#[derive(Clone, Debug)]
pub struct Reader {
    format: Format,
    source: Source,
    client: Client,
    /// The front of a line whose end has not come yet.
    partial: Vec<u8>,
    /// The line under way is too long, and what is still to come of it goes by unread.
    skipping: bool,
}

/// What a client's reader has to remember from line to line.
#[derive(Clone, Debug)]
enum Client {
    Claude(claude::State),
    Codex(codex::State),
    Gemini(gemini::State),
    Opencode(opencode::State),
    Qwen(qwen::State),
    Copilot(copilot::State),
    Goose(goose::State),
    Aider(aider::State),
    Amp(amp::State),
    Cursor(cursor::State),
}

impl Reader {
    /// A reader at the beginning of a source, or at the beginning of any line of it.
    pub fn new(format: Format, source: Source) -> Self {
        let client = match format {
            Format::Claude => Client::Claude(claude::State::default()),
            Format::Codex => Client::Codex(codex::State::default()),
            Format::Gemini => Client::Gemini(gemini::State::default()),
            Format::Opencode => Client::Opencode(opencode::State::default()),
            Format::Qwen => Client::Qwen(qwen::State::default()),
            Format::Copilot => Client::Copilot(copilot::State::default()),
            Format::Goose => Client::Goose(goose::State::default()),
            Format::Aider => Client::Aider(aider::State::default()),
            Format::Amp => Client::Amp(amp::State::default()),
            Format::Cursor => Client::Cursor(cursor::State::default()),
        };
        Self { format, source, client, partial: Vec::new(), skipping: false }
    }

    /// Leaves out lines that say they are older than this, in milliseconds since 1970. For the file
    /// of a forked session of Claude Code, which begins with a copy of the older one; elsewhere it
    /// changes nothing. A file that was there before the run is better read from where it ended
    /// then: times are the machine's, and a clock can be set back.
    #[must_use]
    pub fn since(mut self, unix_ms: u64) -> Self {
        if let Client::Claude(state) = &mut self.client {
            state.since_ms = Some(unix_ms);
        }
        self
    }

    /// The client whose stream is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Where the bytes come from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Takes the next bytes, and tells what the lines that end in them say.
    pub fn feed(&mut self, bytes: &[u8], tell: &mut dyn FnMut(Entry)) {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.end_line(&rest[..end], tell);
            rest = &rest[end + 1..];
        }
        self.keep(rest, tell);
    }

    /// The source has ended: what is left is the last line, whole or torn.
    pub fn finish(&mut self, tell: &mut dyn FnMut(Entry)) {
        if !self.partial.is_empty() || self.skipping {
            self.end_line(&[], tell);
        }
    }

    fn end_line(&mut self, tail: &[u8], tell: Tell<'_>) {
        if self.partial.is_empty() && !self.skipping && tail.len() <= MAX_LINE_BYTES {
            // The usual case: the whole line is in the caller's bytes and is not copied.
            return self.line(tail, tell);
        }
        self.keep(tail, tell);
        if self.skipping {
            self.skipping = false;
            return;
        }
        let mut line = std::mem::take(&mut self.partial);
        self.line(&line, tell);
        line.clear();
        line.shrink_to(KEPT_LINE_BYTES);
        self.partial = line;
    }

    /// Takes a piece of a line that ends later.
    fn keep(&mut self, piece: &[u8], tell: Tell<'_>) {
        if self.skipping || piece.is_empty() {
            return;
        }
        let length = self.partial.len() + piece.len();
        if length > MAX_LINE_BYTES {
            self.partial = Vec::new();
            self.skipping = true;
            tell(Entry::Line);
            tell(Entry::TooLong);
            return;
        }
        if length > self.partial.capacity() {
            // Doubles, as a vector does by itself, but never beyond the bound.
            let room = (length * 2).clamp(KEPT_LINE_BYTES.min(length * 2), MAX_LINE_BYTES);
            self.partial.reserve_exact(room - self.partial.len());
        }
        self.partial.extend_from_slice(piece);
    }

    fn line(&mut self, line: &[u8], tell: Tell<'_>) {
        tell(Entry::Line);
        if let (Client::Aider(state), Source::Stdout) = (&mut self.client, self.source) {
            return state.text(line, tell);
        }
        let text = line.trim_ascii();
        let begins_as_json = text.first() == Some(&b'{');
        let (mut rest, mut tries, mut found) = (text, 0, false);
        while let Some(at) = brace_in(rest) {
            match self.object(&rest[at..], tell) {
                Some(length) => {
                    found = true;
                    rest = &rest[at + length..];
                }
                // Inside a torn object are others, which must not be taken for lines of their own.
                None if begins_as_json => return tell(Entry::Broken),
                None => {
                    tries += 1;
                    rest = &rest[at + 1..];
                }
            }
            if tries == MAX_GLUE_TRIES {
                return tell(Entry::Broken);
            }
        }
        if !found && !text.is_empty() {
            tell(if tries > 0 { Entry::Broken } else { Entry::Plain });
        }
    }

    /// Reads the object at the front of `bytes`; gives back its length, or nothing if it is broken.
    fn object(&mut self, bytes: &[u8], tell: Tell<'_>) -> Option<usize> {
        match &mut self.client {
            Client::Claude(state) => state.object(bytes, self.source, tell),
            Client::Codex(state) => state.object(bytes, self.source, tell),
            Client::Gemini(state) => state.object(bytes, self.source, tell),
            Client::Opencode(state) => state.object(bytes, tell),
            Client::Qwen(state) => state.object(bytes, tell),
            Client::Copilot(state) => state.object(bytes, self.source, tell),
            Client::Goose(state) => state.object(bytes, tell),
            Client::Aider(state) => state.object(bytes, tell),
            Client::Amp(state) => state.object(bytes, tell),
            Client::Cursor(state) => state.object(bytes, tell),
        }
    }
}

/// Where the next object may begin: nearly always at once.
fn brace_in(text: &[u8]) -> Option<usize> {
    if text.first() == Some(&b'{') { Some(0) } else { memchr::memchr(b'{', text) }
}

/// Tells a name when it is another than before: clients repeat them on every line.
pub(crate) fn tell_if_new(
    last: &mut String,
    name: &str,
    tell: Tell<'_>,
    entry: fn(String) -> Entry,
) {
    let name = crate::json::front(name);
    if !name.is_empty() && last != name {
        last.clear();
        last.push_str(name);
        tell(entry(last.clone()));
    }
}
