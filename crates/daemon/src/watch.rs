//! Looking out for a run: patterns in its output, and a heartbeat now and then.
//!
//! ```text
//! output files --> lines --> patterns --> not too many --> event (the mind knows what was told)
//! ```
//!
//! Owns: how lines are put together and matched, and how many matches are told. Reads the run's
//! files from their first byte, so that nothing is missed however it was cut or whoever died; the
//! keeper only says when there is more. After a restart all of it is read again, and what was told
//! is known by its place.
//! Whatever it found is told before the end is.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kennel_process::{Chunk, Connection, Stream, read_output};
use kennel_supervisor::{Event, Match, Note, RunId};
use regex::bytes::{Regex, RegexBuilder};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::api::wire::{self, Watch, WatchMode};
use crate::observe::{Listening, Observer};
use crate::redact::Secrets;
use crate::store::Line;
use crate::store::format::{Detail, Fact, Matched, Note as KeptNote};
use crate::store::kept::KeptRun;
use crate::tail::{Offsets, Plain, Tails, written_in};

/// Patterns of one run: each is tried on every line.
const MAX_PATTERNS: usize = 16;
/// The longest pattern.
const MAX_PATTERN_BYTES: usize = 1024;
/// What a pattern may take once it is compiled.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// The shortest time between heartbeats: each is a commit.
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(1);
/// A longer line is tried in pieces of this size.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The most bytes of a matching line that are told.
const MAX_TOLD_BYTES: usize = 1000;
/// A line without an end is tried after such a pause: prompts have none.
const PROMPT_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a keeper that could not be asked is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// How often the store is asked what was told before: for a minute.
const STORE_TRIES: u32 = 120;
/// How long a run's end may wait until what is left of its output has been looked at.
const FINISH_BOUND: Duration = Duration::from_secs(60);

/// How many matches may be told, of one run and of all together: so many at once, and one more each
/// so often. The rest is counted.
const OF_A_RUN: (u32, Duration) = (10, Duration::from_secs(5));
const OF_ALL: (u32, Duration) = (100, Duration::from_millis(100));

const STREAMS: [Stream; 3] = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
const NAMES: [&str; 3] = ["stdout", "stderr", "terminal"];

/// Refuses what cannot be looked out for, before anything is kept of it.
pub(crate) fn check(request: &wire::RunRequest) -> Result<(), crate::api::ApiError> {
    let bad = crate::api::ApiError::bad_request;
    if request.watch.len() > MAX_PATTERNS {
        return Err(bad(format!("there are more than {MAX_PATTERNS} patterns to watch for")));
    }
    for watch in &request.watch {
        let named = |why: String| bad(format!("pattern {:?} cannot be used: {why}", watch.pattern));
        if watch.pattern.is_empty() {
            return Err(named("every line has the empty text".to_owned()));
        }
        compiled(&watch.pattern).map_err(named)?;
        match (watch.mode, watch.threshold) {
            (WatchMode::Threshold, Some(1..)) | (WatchMode::Every | WatchMode::Once, None) => {}
            (WatchMode::Threshold, Some(0) | None) => {
                return Err(named("a threshold of 1 or more is needed with it".to_owned()));
            }
            (WatchMode::Every | WatchMode::Once, Some(_)) => {
                return Err(named("a threshold goes with mode \"threshold\"".to_owned()));
            }
        }
    }
    let short = |ms: u64| Duration::from_millis(ms) < SHORTEST_HEARTBEAT;
    match request.heartbeat_ms {
        Some(ms) if short(ms) => {
            Err(bad(format!("a heartbeat every {ms} ms is too often: use 1 s or more")))
        }
        Some(_) | None => Ok(()),
    }
}

/// A pattern that takes time and space in proportion to what it is tried on.
fn compiled(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("it has more than {MAX_PATTERN_BYTES} bytes"));
    }
    let built = RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build();
    built.map_err(|e| e.to_string())
}

/// So many at once, and one more each so often.
#[derive(Debug)]
pub(crate) struct Allowance {
    most: u32,
    every: Duration,
    left: u32,
    since: Instant,
}

impl Allowance {
    fn new((most, every): (u32, Duration)) -> Self {
        Self { most, every, left: most, since: Instant::now() }
    }

    /// That of all runs together.
    pub(crate) fn of_all() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self::new(OF_ALL)))
    }

    fn take(&mut self, now: Instant) -> bool {
        let more = now.duration_since(self.since).as_nanos() / self.every.as_nanos();
        if more > 0 {
            self.left = self.left.saturating_add(more.min(1 << 20) as u32).min(self.most);
            self.since = now;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

/// Somebody who looks out for a run.
#[derive(Debug)]
pub(crate) struct Lookout {
    over: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Lookout {
    /// Begins, if anything is to be looked out for.
    pub(crate) fn begin(observer: &Observer, run: &RunId) -> Option<Self> {
        let known = observer.live.get(run.as_str())?;
        if known.request.watch.is_empty() && known.request.heartbeat_ms.is_none() {
            return None;
        }
        let (over, ends) = watch::channel(false);
        let (observer, run) = (observer.clone(), run.clone());
        let task = tokio::spawn(async move {
            if let Some(looking) = Looking::resume(observer, run, &known).await {
                looking.go_on(ends).await;
            }
        });
        Some(Self { over, task })
    }

    /// The run has ended: returns when everything it wrote has been looked at. False if that takes
    /// too long: there may be matches that nobody is told of.
    pub(crate) async fn finish(self) -> bool {
        self.finish_within(FINISH_BOUND).await
    }

    async fn finish_within(self, bound: Duration) -> bool {
        self.over.send_replace(true);
        let searching = self.task.abort_handle();
        let finished = tokio::time::timeout(bound, self.task).await.is_ok();
        if !finished {
            searching.abort();
            tracing::warn!("the end of an output was not searched: it is too long, or has no room");
        }
        finished
    }
}

struct Looking {
    observer: Observer,
    run: RunId,
    dir: PathBuf,
    patterns: Vec<Pattern>,
    readers: Vec<Reader>,
    secrets: Secrets,
    allowance: Allowance,
    /// Matches that were too many since the last one told, and the last of them.
    left_out: u64,
    last_left_out: Option<Found>,
    heartbeat: Option<Heartbeat>,
}

struct Pattern {
    watch: Watch,
    regex: Regex,
    seen: u64,
    /// Where the last match ended, of each stream, those that were told before a restart included.
    told: [u64; STREAMS.len()],
    /// True if it has nothing more to tell.
    done: bool,
}

struct Heartbeat {
    every: Duration,
    told: u32,
    offsets: Offsets,
}

/// A line that matched.
struct Found {
    at: Match,
    detail: Matched,
    /// True if it is told however many there were before.
    certain: bool,
}

impl Looking {
    /// Goes on behind what was told of the run before, if anything was.
    async fn resume(observer: Observer, run: RunId, known: &KeptRun) -> Option<Self> {
        let request = &known.request;
        let matches = told_before(&observer, &run, "watch_match").await?;
        let beats = told_before(&observer, &run, "heartbeat").await?;
        let patterns = request.watch.iter().filter_map(|watch| {
            let regex = compiled(&watch.pattern).ok()?;
            let told = [0; STREAMS.len()];
            Some(Pattern { watch: watch.clone(), regex, seen: 0, told, done: false })
        });
        let mut looking = Self {
            dir: observer.home.run_dir(run.as_str()),
            patterns: patterns.collect(),
            readers: STREAMS.map(Reader::new).into(),
            secrets: request.secrets.clone(),
            allowance: Allowance::new(OF_A_RUN),
            left_out: 0,
            last_left_out: None,
            heartbeat: request.heartbeat_ms.map(|ms| Heartbeat {
                every: Duration::from_millis(ms),
                told: beats.len() as u32,
                offsets: beats.last().map(offsets_of).unwrap_or_default(),
            }),
            observer,
            run,
        };
        for line in &matches {
            looking.know(line);
        }
        Some(looking)
    }

    /// A match that was told before.
    fn know(&mut self, line: &Line) {
        let Fact::Noted(KeptNote::Matched { stream, through, pattern }) = &*line.fact else {
            return;
        };
        if let (Some(pattern), Detail::Matched(told)) =
            (self.patterns.get_mut(usize::from(*pattern)), &*line.detail)
        {
            pattern.seen = told.seen;
            if let Some(told) = pattern.told.get_mut(usize::from(*stream)) {
                *told = *through;
            }
            pattern.done = match pattern.watch.mode {
                WatchMode::Every => false,
                WatchMode::Once | WatchMode::Threshold => true,
            };
        }
    }

    async fn go_on(mut self, mut over: watch::Receiver<bool>) {
        let mut keeper = None;
        let mut beat_at = self.heartbeat.as_ref().map(|beat| Instant::now() + beat.every);
        loop {
            if self.look(false).await.is_none() {
                return;
            }
            let far = Instant::now() + FINISH_BOUND;
            let prompt_at = self.readers.iter().any(Reader::has_news);
            let prompt_at = prompt_at.then(|| Instant::now() + PROMPT_PAUSE);
            tokio::select! {
                () = async { drop(over.wait_for(|over| *over).await) } => {
                    let _ = self.look(true).await;
                    return;
                }
                () = tokio::time::sleep_until(beat_at.unwrap_or(far)), if beat_at.is_some() => {
                    if self.beat().await.is_none() {
                        return;
                    }
                    beat_at = self.heartbeat.as_ref().map(|beat| Instant::now() + beat.every);
                }
                () = tokio::time::sleep_until(prompt_at.unwrap_or(far)), if prompt_at.is_some() => {
                    if self.try_parts().await.is_none() {
                        return;
                    }
                }
                () = more(&self.dir, &mut keeper), if !self.patterns.is_empty() => {}
            }
        }
    }

    /// Reads and matches all there is. `None` if the daemon is leaving.
    async fn look(&mut self, to_the_end: bool) -> Option<()> {
        if self.patterns.is_empty() {
            return Some(());
        }
        for at in 0..self.readers.len() {
            loop {
                let (dir, reader) = (self.dir.clone(), &self.readers[at]);
                let (stream, offset) = (reader.stream, reader.offset);
                let read = tokio::task::spawn_blocking(move || read_output(&dir, stream, offset));
                let Ok(Some(chunk)) = read.await.ok()? else { break };
                for line in self.readers[at].take(chunk) {
                    self.try_line(at, &line).await?;
                }
            }
            if to_the_end && let Some(line) = self.readers[at].rest() {
                self.try_line(at, &line).await?;
            }
        }
        if to_the_end && let Some(last) = self.last_left_out.take() {
            self.left_out -= 1;
            self.tell(last).await?;
        }
        Some(())
    }

    /// Lines that have stood without an end for a while are tried as they are.
    async fn try_parts(&mut self) -> Option<()> {
        for at in 0..self.readers.len() {
            if let Some(line) = self.readers[at].part_so_far() {
                self.try_line(at, &line).await?;
            }
        }
        Some(())
    }

    async fn try_line(&mut self, stream: usize, line: &WholeLine) -> Option<()> {
        for n in 0..self.patterns.len() {
            // It was told of this line, of a part of it, or of a later one.
            if self.patterns[n].told[stream] > line.begun {
                continue;
            }
            let at = Match { stream: stream as u8, through: line.through, pattern: n as u16 };
            if let Some(found) = self.found(n, at, line) {
                self.consider(found).await?;
            }
        }
        Some(())
    }

    fn found(&mut self, n: usize, at: Match, line: &WholeLine) -> Option<Found> {
        let pattern = &mut self.patterns[n];
        if pattern.done || !pattern.regex.is_match(&line.bytes) {
            return None;
        }
        pattern.seen += 1;
        // What follows in the same line is no other match.
        pattern.told[usize::from(at.stream)] = line.through;
        let certain = match pattern.watch.mode {
            WatchMode::Every => false,
            WatchMode::Once => true,
            WatchMode::Threshold => {
                if pattern.seen < u64::from(pattern.watch.threshold.unwrap_or(1)) {
                    return None;
                }
                true
            }
        };
        pattern.done = certain;
        let detail = Matched {
            pattern: pattern.watch.pattern.clone(),
            stream: NAMES[usize::from(at.stream)].to_owned(),
            line: cut(self.secrets.redact(&line.bytes)),
            seen: pattern.seen,
            left_out: 0,
        };
        Some(Found { at, detail, certain })
    }

    async fn consider(&mut self, found: Found) -> Option<()> {
        let now = Instant::now();
        let of_all = &self.observer.matches;
        let allowed = found.certain
            || (self.allowance.take(now)
                && of_all.lock().unwrap_or_else(PoisonError::into_inner).take(now));
        if allowed {
            return self.tell(found).await;
        }
        self.left_out += 1;
        self.last_left_out = Some(found);
        Some(())
    }

    async fn tell(&mut self, mut found: Found) -> Option<()> {
        found.detail.left_out = std::mem::take(&mut self.left_out);
        self.last_left_out = None;
        let note = Note::Matched(found.at);
        let event = Event::Noted { run: self.run.clone(), note };
        self.observer.tell(event, &Detail::Matched(Arc::new(found.detail))).await.ok()
    }

    /// Tells what is new, if anything is.
    async fn beat(&mut self) -> Option<()> {
        let Some(heartbeat) = &mut self.heartbeat else { return Some(()) };
        let (dir, from, secrets) = (self.dir.clone(), heartbeat.offsets, self.secrets.clone());
        let read = tokio::task::spawn_blocking(move || Tails::of_whole_lines(&dir, from, &secrets));
        let (tails, to) = read.await.ok()?;
        if tails.is_empty() {
            return Some(());
        }
        heartbeat.told += 1;
        heartbeat.offsets = to;
        let note = Note::Heartbeat(heartbeat.told);
        let event = Event::Noted { run: self.run.clone(), note };
        let tail = Some(Arc::new(tails));
        self.observer.tell_with(event, &Detail::Heartbeat(to), tail).await.ok()
    }
}

/// What is told of a line. Cut after it was searched for credentials: no part of one is left.
fn cut(mut line: String) -> String {
    line.truncate(line.floor_char_boundary(MAX_TOLD_BYTES));
    line
}

/// What was told of a run before. A store that does not answer is asked again: without it nobody
/// could look out.
async fn told_before(observer: &Observer, run: &RunId, kind: &str) -> Option<Vec<Line>> {
    for _ in 0..STORE_TRIES {
        match observer.store.noted(run.as_str(), kind).await {
            Ok(lines) => return Some(lines),
            Err(e) => tracing::warn!(%run, "nobody looks out for it yet: {e}"),
        }
        tokio::time::sleep(ASK_PAUSE).await;
    }
    tracing::error!(%run, "nobody looks out for it: the store does not say what was told before");
    None
}

fn offsets_of(line: &Line) -> Offsets {
    if let Detail::Heartbeat(offsets) = &*line.detail { *offsets } else { Offsets::default() }
}

/// Returns when there may be more output.
async fn more(dir: &Path, keeper: &mut Option<Listening>) {
    if let Some(listening) = keeper {
        if listening.heard().await.is_err() {
            *keeper = None;
        }
        return;
    }
    let own = dir.to_owned();
    let attach = tokio::task::spawn_blocking(move || {
        let mut keeper = Connection::open(&own).ok()?;
        keeper.attach().ok()?;
        Some(keeper)
    });
    let attached = attach.await.ok().flatten();
    *keeper = attached.and_then(|keeper| Listening::to(keeper).ok());
    if keeper.is_none() {
        tokio::time::sleep(ASK_PAUSE).await;
    }
}

/// A line, or a piece of a very long one.
struct WholeLine {
    bytes: Vec<u8>,
    /// The offset it begins at.
    begun: u64,
    /// The offset behind it.
    through: u64,
}

/// One stream, put together into lines.
struct Reader {
    stream: Stream,
    offset: u64,
    /// The line that has no end yet.
    part: Vec<u8>,
    /// Of a terminal: what its recording shows.
    plain: Plain,
    /// Where the last line ended.
    ended: u64,
    /// How far the line that has no end yet was tried.
    tried: u64,
}

impl Reader {
    fn new(stream: Stream) -> Self {
        let (part, plain) = (Vec::new(), Plain::default());
        Self { stream, offset: 0, part, plain, ended: 0, tried: 0 }
    }

    /// True if a line has begun and not ended.
    fn has_part(&self) -> bool {
        !self.part.is_empty() && self.stream != Stream::Terminal || !self.plain.text.is_empty()
    }

    /// True if there is more of such a line than was tried.
    fn has_news(&self) -> bool {
        self.has_part() && self.offset > self.tried
    }

    /// A line that has no end yet, as it is. It stays: what follows may be what somebody watches
    /// for the beginning of.
    fn part_so_far(&mut self) -> Option<WholeLine> {
        if !self.has_news() {
            return None;
        }
        self.tried = self.offset;
        let bytes = match self.stream {
            Stream::Terminal => self.plain.text.clone().into_bytes(),
            Stream::Stdout | Stream::Stderr => self.part.clone(),
        };
        Some(WholeLine { bytes, begun: self.ended, through: self.offset })
    }

    fn take(&mut self, chunk: Chunk) -> Vec<WholeLine> {
        match chunk {
            Chunk::Gap { to, .. } => {
                (self.offset, self.ended) = (to, to);
                self.part.clear();
                self.plain = Plain::default();
                Vec::new()
            }
            Chunk::Bytes { offset, bytes } => {
                let mut lines = Vec::new();
                self.offset = offset;
                for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                    self.offset += piece.len() as u64;
                    self.part.extend_from_slice(piece);
                    if self.part.last() == Some(&b'\n') {
                        self.end_line(&mut lines);
                    } else if self.part.len() >= MAX_LINE_BYTES && self.stream != Stream::Terminal {
                        lines.extend(self.rest());
                    }
                }
                lines
            }
        }
    }

    fn end_line(&mut self, lines: &mut Vec<WholeLine>) {
        let mut bytes = std::mem::take(&mut self.part);
        bytes.pop();
        if self.stream == Stream::Terminal {
            let begun = self.offset - bytes.len() as u64 - 1;
            return self.show(&bytes, begun, lines);
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        lines.push(self.whole(bytes, self.offset));
    }

    fn whole(&mut self, bytes: Vec<u8>, through: u64) -> WholeLine {
        let begun = std::mem::replace(&mut self.ended, through);
        WholeLine { bytes, begun, through }
    }

    /// Lines that one line of a recording completes. Each has a place of its own within it: there
    /// are at least as many bytes as it shows characters.
    fn show(&mut self, recorded: &[u8], begun: u64, lines: &mut Vec<WholeLine>) {
        let Some(text) = written_in(recorded) else { return };
        let mut place = begun;
        for piece in text.split_inclusive('\n') {
            place += piece.chars().count() as u64;
            self.plain.add(piece);
            let long = self.plain.text.len() >= MAX_LINE_BYTES;
            if self.plain.text.ends_with('\n') || long {
                let shown = std::mem::take(&mut self.plain.text);
                let bytes = shown.trim_end_matches('\n').as_bytes().to_vec();
                lines.push(self.whole(bytes, place));
            }
        }
    }

    /// What there is of a line that has no end; what follows is another one.
    fn rest(&mut self) -> Option<WholeLine> {
        if !self.has_part() {
            return None;
        }
        let bytes = match self.stream {
            Stream::Terminal => std::mem::take(&mut self.plain.text).into_bytes(),
            Stream::Stdout | Stream::Stderr => std::mem::take(&mut self.part),
        };
        Some(self.whole(bytes, self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &[WholeLine]) -> Vec<(String, u64, u64)> {
        let text = |line: &WholeLine| String::from_utf8_lossy(&line.bytes).into_owned();
        lines.iter().map(|line| (text(line), line.begun, line.through)).collect()
    }

    #[test]
    fn a_line_that_stands_without_an_end_is_tried_once_as_it_is_and_again_as_a_whole() {
        for (stream, first, second) in [
            (Stream::Stdout, "x\nFAI", "LED\n"),
            (Stream::Terminal, "[0.1,\"o\",\"x\\nFAI\"]\n", "[9.1,\"o\",\"LED\\n\"]\n"),
        ] {
            let mut reader = Reader::new(stream);
            let bytes = |offset: usize, text: &str| Chunk::Bytes {
                offset: offset as u64,
                bytes: text.as_bytes().to_vec(),
            };
            assert_eq!(reader.take(bytes(0, first)).len(), 1);
            let begun = reader.ended;
            let part: Vec<WholeLine> = reader.part_so_far().into_iter().collect();
            assert_eq!(told(&part), [("FAI".to_owned(), begun, first.len() as u64)]);
            assert!(reader.part_so_far().is_none(), "there is nothing new");
            let whole = reader.take(bytes(first.len(), second));
            assert_eq!(told(&whole)[0].0, "FAILED", "{stream:?}");
            // So that a match in its part is known to be one of this line, and no later one.
            assert_eq!(whole[0].begun, begun);
            assert!(part[0].through > whole[0].begun && part[0].through < whole[0].through);
            assert!(!reader.has_part());
        }
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up_and_said_to_be() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (finished, search) in [(true, Duration::ZERO), (false, Duration::from_secs(3600))] {
                let (over, _) = watch::channel(false);
                let task = tokio::spawn(tokio::time::sleep(search));
                let lookout = Lookout { over, task };
                assert_eq!(lookout.finish_within(Duration::from_millis(50)).await, finished);
            }
        });
    }
}
