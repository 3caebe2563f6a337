//! The files a client keeps about a session: found, watched, and read as they grow.
//!
//! ```text
//! late --it is there--> following --another under its name--> rotated
//!                        |  |  +--shorter than it was--> truncated
//!                        |  +--its name is gone--> missing (what is still written to it is read)
//!                        +--it cannot be opened or read--> unreadable (tried at every look)
//! ```
//!
//! Owns: which files are this run's, from where on they are, and what state each is in: a file that
//! cannot be read is told, and never taken for one in which nothing was spent. Adds nothing up.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use kennel_process::FileWatch;
use kennel_transcript::files::{self, Files, Name, Place};
use kennel_transcript::{Entry, Format, Reader, Source};
use serde::{Deserialize, Serialize};

/// Bytes read from a file at once: what they say is judged before more is read.
const PIECE_BYTES: usize = 64 << 10;
/// Files of one run that are followed: its own and its sub-agents'.
const MAX_FILES: usize = 256;
/// Entries of one directory that are looked at in a search.
const MAX_ENTRIES: usize = 10_000;
/// Directories one search enters. Codex makes one for each day.
const MAX_DIRS: usize = 2000;
/// Directories that are watched: a user may watch so many, and others want some.
const MAX_WATCHED_DIRS: usize = 256;
/// Files an account tells of: it has to fit beside the proof.
const MAX_TOLD: usize = 6;
/// Characters of a path that are told: the end of it says which it is.
const MAX_PATH_CHARS: usize = 200;

/// Where a client's files can be.
pub(super) struct Whereabouts {
    pub(super) format: Format,
    pub(super) cwd: PathBuf,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(OsString, OsString)>,
}

impl Whereabouts {
    fn variable(&self, name: &str) -> Option<OsString> {
        self.env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    fn places(&self, session: &str, subagents: &[String]) -> Vec<Place> {
        let lookup = |name: &str| self.variable(name);
        let own = files::files(self.format, &lookup, &self.cwd, session, &self.argv);
        let others = subagents
            .iter()
            .map(|child| files::subagent_files(self.format, &lookup, &self.cwd, child));
        let all = std::iter::once(own).chain(others);
        all.flat_map(|found| match found {
            Files::At(places) => places,
            Files::None(_) => Vec::new(),
        })
        .collect()
    }

    /// Where the files are of what may be older than the run.
    fn older_places(&self, older: Older<'_>) -> Vec<Place> {
        match older {
            Older::Nothing => Vec::new(),
            Older::Session(session) => self.places(session, &[]),
            Older::Any => {
                let lookup = |name: &str| self.variable(name);
                match files::older_files(self.format, &lookup, &self.cwd, &self.argv) {
                    Files::At(places) => places,
                    Files::None(_) => Vec::new(),
                }
            }
        }
    }
}

/// What may have been there before the run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Older<'s> {
    /// Nothing: its client makes a new session, under an id nobody had.
    Nothing,
    /// Files of this session, if it was used before.
    Session(&'s str),
    /// Files of every session: which of them goes on is told later.
    Any,
}

/// What is told of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileAccount {
    pub(crate) path: String,
    /// `late`, `following`, `rotated`, `truncated`, `missing`, or `unreadable: ` and why.
    pub(crate) state: String,
    pub(crate) subagent: bool,
}

/// The state of a file that is not there yet.
const LATE: &str = "late";

impl FileAccount {
    /// Whether there is such a file, and not only a place where it is expected.
    pub(crate) fn is_there(&self) -> bool {
        self.state != LATE
    }
}

/// The files of one run.
pub(super) struct Following {
    place: Whereabouts,
    files: Vec<Followed>,
    /// Files that were there before the start, and how long they were.
    before: Vec<(PathBuf, u64)>,
    /// When the run began: what a file of an older session says of earlier times is not its own.
    began_ms: u64,
    /// Whether the session may be older than the run.
    is_older: bool,
    subagents: Vec<String>,
    /// Where its own file is expected, while there is none.
    late: Option<PathBuf>,
    search_due: bool,
    watch: Option<FileWatch>,
    /// Why what is watched is not all.
    blind: Option<String>,
    /// What somebody has to know, and whether he was told.
    alarm: Option<String>,
    alarmed: bool,
    piece: Vec<u8>,
}

/// A file of the client's.
struct Followed {
    path: PathBuf,
    state: FileState,
    open: Option<Open>,
    offset: u64,
    /// How much of it was there before the run.
    before: u64,
    source: Source,
    reader: Reader,
    whose: Whose,
}

struct Open {
    file: File,
    /// Device and number: a name can mean another file.
    id: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FileState {
    Following,
    Rotated,
    Truncated,
    Missing,
    Unreadable(String),
}

/// Whose a file is. Some clients give files names that do not say it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    NotKnown,
    Another,
}

impl Following {
    /// Nothing yet. What files hold now is not this run's.
    pub(super) fn new(place: Whereabouts, older: Older<'_>, resumed: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut following = Self {
            place,
            files: Vec::new(),
            before: Vec::new(),
            began_ms: now.as_millis() as u64,
            is_older: resumed,
            subagents: Vec::new(),
            late: None,
            search_due: false,
            watch: None,
            blind: None,
            alarm: None,
            alarmed: false,
            piece: Vec::new(),
        };
        for place in following.place.older_places(older) {
            let found = found_in(&place, &mut Search::default());
            let sizes = found.into_iter().filter_map(|path| {
                let length = fs::metadata(&path).ok()?.len();
                Some((path, length))
            });
            let known = following.before.len();
            following.before.extend(sizes);
            // Also one whose id was given as a new one's: some clients go on with it then.
            let is_own = matches!(older, Older::Session(_)) && !place.confirm;
            following.is_older |= is_own && following.before.len() > known;
        }
        following
    }

    /// Whether the session is older than the run, or may be.
    pub(super) fn is_older(&self) -> bool {
        self.is_older
    }

    /// What to wait for, if anything can be watched.
    pub(super) fn watch(&self) -> Option<&FileWatch> {
        self.watch.as_ref()
    }

    /// Why files have to be looked at by the clock, if they have to be.
    pub(super) fn by_timer(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// There may be files that are not known yet.
    pub(super) fn search_again(&mut self) {
        self.search_due = true;
    }

    /// A sub-agent has a file of its own, under this id.
    pub(super) fn add_subagent(&mut self, id: &String) {
        if self.subagents.len() < MAX_FILES && !self.subagents.contains(id) {
            self.subagents.push(id.clone());
            self.search_due = true;
        }
    }

    /// What somebody has to be told, once.
    pub(super) fn take_alarm(&mut self) -> Option<String> {
        let alarm = self.alarm.take().filter(|_| !self.alarmed);
        self.alarmed |= alarm.is_some();
        alarm
    }

    /// Whether files are read at all, in a word.
    pub(super) fn word(&self, session_known: bool) -> &'static str {
        match (self.files.is_empty(), session_known) {
            (false, _) => "followed",
            (true, true) => "not found",
            (true, false) => "not known",
        }
    }

    /// Where each stands, those that somebody should know of first.
    pub(super) fn accounts(&self) -> Vec<FileAccount> {
        let late = self.late.iter().map(|path| FileAccount {
            path: end_of(path),
            state: LATE.to_owned(),
            subagent: false,
        });
        let ours = self.files.iter().filter(|followed| followed.whose == Whose::Ours);
        let (well, ill): (Vec<_>, Vec<_>) =
            ours.partition(|followed| followed.state == FileState::Following);
        let all = ill.into_iter().chain(well).map(Followed::account);
        late.chain(all).take(MAX_TOLD).collect()
    }

    /// Looks for files that are new, if there may be some.
    pub(super) fn search(&mut self, session: Option<&str>) {
        // Aider has no sessions, and its file is named by the command line alone.
        let session = match (session, self.place.format) {
            (Some(session), _) => session,
            (None, Format::Aider) => "",
            (None, _) => return,
        };
        if !std::mem::take(&mut self.search_due) {
            return;
        }
        let places = self.place.places(session, &self.subagents);
        let mut search = Search { watch: self.take_watch(&places), ..Search::default() };
        for place in &places {
            if !place.subagents && self.has_own() {
                continue;
            }
            let found = found_in(place, &mut search);
            for path in found {
                self.begin(path, place, &mut search);
            }
        }
        for dir in self.files.iter().filter_map(|followed| followed.path.parent()) {
            search.watch_dir_to_be(dir);
        }
        self.late = if self.has_own() { None } else { places.first().map(expected) };
        self.blind = search.blind.filter(|_| !places.is_empty());
        self.watch = search.watch;
    }

    fn has_own(&self) -> bool {
        let own = Source::File { subagent: false };
        self.files.iter().any(|file| file.source == own && file.whose == Whose::Ours)
    }

    /// The one instance of this run, made when there is something to watch for the first time.
    fn take_watch(&mut self, places: &[Place]) -> Option<FileWatch> {
        let is_new = self.watch.is_none() && self.blind.is_none() && !places.is_empty();
        self.watch.take().or_else(|| is_new.then(|| FileWatch::new().ok()).flatten())
    }

    /// Begins to follow a file, at what this run adds to it.
    fn begin(&mut self, path: PathBuf, place: &Place, search: &mut Search) {
        if self.files.iter().any(|followed| followed.path == path) {
            return;
        }
        let held = self.files.iter().filter(|followed| followed.whose != Whose::Another);
        if held.clone().count() >= MAX_FILES {
            // Some of them may turn out to be another's when they are read.
            if held.clone().any(|followed| followed.whose == Whose::NotKnown) {
                self.search_due = true;
            } else {
                self.alarm = Some("it has more files than are followed".to_owned());
            }
            return;
        }
        // Two names of one file are one file.
        let id = fs::metadata(&path).ok().map(|meta| (meta.dev(), meta.ino()));
        let is_known = |known: &Followed| known.id() == id;
        if id.is_some() && self.files.iter().any(is_known) {
            return;
        }
        let known = self.before.iter().find(|(known, _)| *known == path);
        let before = known.map_or(0, |(_, length)| *length);
        let source = Source::File { subagent: place.subagents };
        let reader = Reader::new(self.place.format, source);
        // A file that was not there before may begin with a copy of one that was.
        let reader = match self.is_older && known.is_none() {
            true => reader.since(self.began_ms),
            false => reader,
        };
        let whose = if place.confirm { Whose::NotKnown } else { Whose::Ours };
        search.watch_file(&path);
        let (state, open) = (FileState::Following, None);
        let offset = before;
        self.files.push(Followed { path, state, open, offset, before, source, reader, whose });
    }

    /// Reads a piece of what was added to each file. True if there was something.
    pub(super) fn read(
        &mut self,
        session: Option<&str>,
        entries: &mut Vec<(Source, Entry)>,
    ) -> bool {
        let mut grown = false;
        // Only while it is needed: most of the time nothing is read.
        self.piece.resize(PIECE_BYTES, 0);
        let since = self.is_older.then_some(self.began_ms);
        for followed in self.files.iter_mut().filter(|file| file.whose != Whose::Another) {
            let before = (followed.state.clone(), followed.id());
            let mut told = Vec::new();
            grown |= followed.read(&mut self.piece, since, &mut told);
            followed.confirm(&told, session);
            if followed.whose == Whose::Ours {
                entries.append(&mut told);
            }
            if followed.whose == Whose::Another {
                followed.open = None;
                continue;
            }
            if (followed.state.clone(), followed.id()) == before {
                continue;
            }
            if let Some(alarm) = followed.alarm() {
                self.alarm = Some(alarm);
            }
            // A new file under an old name is watched anew, and read again: something may have come
            // in between.
            (self.search_due, grown) = (true, true);
            if let (Some(watch), Some(_)) = (&self.watch, &followed.open) {
                let _ = watch.file(&followed.path);
            }
        }
        self.piece = Vec::new();
        grown
    }

    /// The last line of each, also without an end.
    pub(super) fn finish(&mut self, entries: &mut Vec<(Source, Entry)>) {
        for followed in self.files.iter_mut().filter(|file| file.whose == Whose::Ours) {
            let source = followed.source;
            followed.reader.finish(&mut |entry| entries.push((source, entry)));
        }
    }
}

impl Followed {
    /// Which file it is now.
    fn id(&self) -> Option<(u64, u64)> {
        self.open.as_ref().map(|open| open.id)
    }

    /// The first session a file names is the one it is about.
    fn confirm(&mut self, entries: &[(Source, Entry)], session: Option<&str>) {
        let named = entries.iter().find_map(|(_, entry)| {
            if let Entry::Session(id) = entry { Some(id.as_str()) } else { None }
        });
        if let (Whose::NotKnown, Some(named)) = (self.whose, named) {
            self.whose = if Some(named) == session { Whose::Ours } else { Whose::Another };
        }
    }

    /// Reads a piece of what was added. True if there was one.
    fn read(
        &mut self,
        piece: &mut [u8],
        since: Option<u64>,
        entries: &mut Vec<(Source, Entry)>,
    ) -> bool {
        match self.try_read(piece, since, entries) {
            Ok(grown) => grown,
            Err(e) => {
                self.state = FileState::Unreadable(e.to_string());
                false
            }
        }
    }

    fn try_read(
        &mut self,
        piece: &mut [u8],
        since: Option<u64>,
        entries: &mut Vec<(Source, Entry)>,
    ) -> io::Result<bool> {
        let source = self.source;
        let mut tell = |entry| entries.push((source, entry));
        self.open_anew(since, &mut tell)?;
        let Some(open) = &self.open else { return Ok(false) };
        if open.file.metadata()?.len() < self.offset {
            self.state = FileState::Truncated;
            self.begin_again(since, &mut tell);
        }
        let Some(open) = &self.open else { return Ok(false) };
        let n = open.file.read_at(piece, self.offset)?;
        self.offset += n as u64;
        self.reader.feed(&piece[..n], &mut tell);
        Ok(n > 0)
    }

    /// Opens what its name means now, if that is another file than before.
    fn open_anew(&mut self, since: Option<u64>, tell: &mut dyn FnMut(Entry)) -> io::Result<()> {
        let meant = match fs::metadata(&self.path) {
            Ok(meta) => (meta.dev(), meta.ino()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.state = FileState::Missing;
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        match self.id() {
            Some(id) if id == meant => {}
            Some(_) => {
                let new = Open::file(&self.path)?;
                let old = self.open.replace(new);
                self.state = FileState::Rotated;
                let same = old.is_some_and(|old| self.is_copy_of(&old.file));
                // A copy goes on where the old one was; all else is something new.
                if !same {
                    self.begin_again(since, tell);
                }
            }
            None => self.open = Some(Open::file(&self.path)?),
        }
        match self.state {
            FileState::Missing | FileState::Unreadable(_) => self.state = FileState::Following,
            FileState::Following | FileState::Rotated | FileState::Truncated => {}
        }
        Ok(())
    }

    /// Reads from the front. What is told again under a name is counted once; what an earlier run
    /// said is left out by its time, where it says one.
    fn begin_again(&mut self, since: Option<u64>, tell: &mut dyn FnMut(Entry)) {
        self.reader.finish(tell);
        self.offset = 0;
        if let Some(since) = since.filter(|_| self.before > 0) {
            self.reader = self.reader.clone().since(since);
        }
    }

    /// Whether all that was read of the old file is in the new one, too.
    fn is_copy_of(&self, old: &File) -> bool {
        let Some(new) = self.open.as_ref().map(|open| &open.file) else { return false };
        let (mut ours, mut theirs) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let mut at = 0;
        while at < self.offset {
            let length = PIECE_BYTES.min((self.offset - at) as usize);
            let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
            let read = old.read_exact_at(theirs, at).and_then(|()| new.read_exact_at(ours, at));
            if read.is_err() || ours != theirs {
                return false;
            }
            at += length as u64;
        }
        true
    }

    /// What somebody has to know of it. That it was rotated is no loss: it is read on.
    fn alarm(&self) -> Option<String> {
        let path = end_of(&self.path);
        match &self.state {
            FileState::Following | FileState::Rotated => None,
            FileState::Truncated => Some(format!("{path} was cut short, and is read anew")),
            FileState::Missing => Some(format!("{path} is gone: what is spent may not be seen")),
            FileState::Unreadable(why) => Some(format!("failed to read {path}: {why}")),
        }
    }

    fn account(&self) -> FileAccount {
        let state = match &self.state {
            FileState::Following => "following".to_owned(),
            FileState::Rotated => "rotated".to_owned(),
            FileState::Truncated => "truncated".to_owned(),
            FileState::Missing => "missing".to_owned(),
            FileState::Unreadable(why) => format!("unreadable: {why}"),
        };
        let subagent = self.source == Source::File { subagent: true };
        FileAccount { path: end_of(&self.path), state, subagent }
    }
}

impl Open {
    /// Opens a regular file. Who puts a pipe or a device there must not make us wait for it, or
    /// read for ever.
    fn file(path: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let file =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let meta = file.metadata()?;
        match meta.is_file() {
            true => Ok(Self { file, id: (meta.dev(), meta.ino()) }),
            false => Err(io::Error::other("it is no regular file")),
        }
    }
}

/// One search, and what of it is watched.
#[derive(Default)]
struct Search {
    watch: Option<FileWatch>,
    watched_dirs: usize,
    entered: usize,
    blind: Option<String>,
}

impl Search {
    fn watch_file(&mut self, path: &Path) {
        let done = self.watch.as_ref().map(|watch| watch.file(path));
        self.note(done);
    }

    fn watch_dir(&mut self, dir: &Path) {
        self.watched_dirs += 1;
        if self.watched_dirs > MAX_WATCHED_DIRS {
            self.blind = Some("it has more directories than are watched".to_owned());
            return;
        }
        let done = self.watch.as_ref().map(|watch| watch.dir(dir));
        self.note(done);
    }

    /// Watches a directory, or where it will come into being.
    fn watch_dir_to_be(&mut self, dir: &Path) {
        let mut near = dir;
        // It may be made in between: then we are woken, or find it at the next step.
        while !near.is_dir() {
            let Some(parent) = near.parent() else { return };
            near = parent;
        }
        self.watch_dir(near);
        if near != dir && dir.is_dir() {
            self.watch_dir(dir);
        }
    }

    fn note(&mut self, done: Option<io::Result<()>>) {
        match done {
            Some(Ok(())) => {}
            // Gone again: whoever watches its directory is told.
            Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => {}
            Some(Err(e)) => self.blind = Some(format!("it cannot be watched: {e}")),
            None => self.blind = Some("no more files can be watched by this user".to_owned()),
        }
    }
}

/// The files in a place that are meant. Its directories are watched before they are read, so that
/// nothing can come in between.
fn found_in(place: &Place, search: &mut Search) -> Vec<PathBuf> {
    search.watch_dir_to_be(&place.dir);
    if let (Name::Exact(name), 0) = (&place.name, place.depth) {
        let path = place.dir.join(name);
        return if path.symlink_metadata().is_ok() { vec![path] } else { Vec::new() };
    }
    let mut found = Vec::new();
    let mut dirs = vec![(place.dir.clone(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        search.entered += 1;
        if search.entered > MAX_DIRS {
            search.blind = Some("it has more directories than are searched".to_owned());
            break;
        }
        if depth > 0 {
            search.watch_dir(&dir);
        }
        let mut below = Vec::new();
        // It need not be there yet.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten().take(MAX_ENTRIES) {
            let (name, path) = (entry.file_name(), entry.path());
            let is_dir = entry.file_type().is_ok_and(|kind| {
                kind.is_dir() || (kind.is_symlink() && depth < place.depth && path.is_dir())
            });
            if is_dir && depth < place.depth {
                below.push((path, depth + 1));
            } else if !is_dir && name.to_str().is_some_and(|name| place.matches(name)) {
                found.push(path);
            }
        }
        // The last is entered first: names that are dates come in order of time.
        below.sort();
        dirs.append(&mut below);
    }
    found.sort();
    found
}

/// Where a file is expected, in words.
fn expected(place: &Place) -> PathBuf {
    let name = match &place.name {
        Name::Exact(name) => name.clone(),
        Name::Between(front, back) => format!("{front}*{back}"),
    };
    let dirs = std::iter::repeat_n("*", place.depth);
    dirs.fold(place.dir.clone(), |path, dir| path.join(dir)).join(name)
}

/// The end of a path, which says which file it is.
fn end_of(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.char_indices().rev().nth(MAX_PATH_CHARS) {
        Some((at, _)) => format!("...{}", &text[at..]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A home of a client, removed with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let n = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("kennel-files-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).expect("it can be made");
            Self(path)
        }

        fn following(&self, format: Format) -> Following {
            let env = vec![("HOME".into(), self.0.clone().into_os_string())];
            let (cwd, argv) = (self.0.clone(), Vec::new());
            Following::new(Whereabouts { format, cwd, argv, env }, Older::Nothing, false)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
            fs::write(path, text).expect("there is room");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn catch_up(following: &mut Following, session: &str) -> Vec<Entry> {
        let mut entries = Vec::new();
        following.search_again();
        loop {
            following.search(Some(session));
            if !following.read(Some(session), &mut entries) {
                return entries.into_iter().map(|(_, entry)| entry).collect();
            }
        }
    }

    #[test]
    fn ours_is_found_among_more_files_of_others_than_are_followed() {
        let scratch = Scratch::new();
        for n in 0..MAX_FILES * 2 {
            let text = format!("{{\"sessionId\":\"other-{n}\"}}\n");
            scratch.write(&format!(".gemini/tmp/p/chats/session-{n:04}.jsonl"), &text);
        }
        scratch.write(".gemini/tmp/p/chats/session-9999.jsonl", "{\"sessionId\":\"ours\"}\n");
        let mut following = scratch.following(Format::Gemini);
        let entries = catch_up(&mut following, "ours");
        assert!(entries.contains(&Entry::Session("ours".to_owned())), "{entries:?}");
        assert_eq!(following.take_alarm(), None);
        let accounts = following.accounts();
        assert_eq!(accounts.len(), 1, "{accounts:?}");
        assert!(accounts[0].path.ends_with("session-9999.jsonl"), "{accounts:?}");
    }

    #[test]
    fn a_tree_with_more_directories_than_are_watched_is_looked_at_by_the_clock_until_it_is_found() {
        let scratch = Scratch::new();
        for n in 0..MAX_WATCHED_DIRS {
            let dir = scratch.0.join(format!(".codex/sessions/2020/{n:03}"));
            fs::create_dir_all(dir).expect("it can be made");
        }
        let mut following = scratch.following(Format::Codex);
        catch_up(&mut following, "ours");
        assert!(following.by_timer().is_some_and(|why| why.contains("more directories")));
        assert_eq!(following.accounts()[0].state, "late");
        let name = ".codex/sessions/2026/11/16/rollout-x-ours.jsonl";
        scratch.write(name, "{\"type\":\"x\"}\n");
        catch_up(&mut following, "ours");
        assert_eq!(following.accounts()[0].state, "following");
        assert_eq!(following.by_timer(), None, "one directory is enough now");
    }

    #[test]
    fn a_long_path_is_told_by_its_end() {
        let path = PathBuf::from(format!("/{}/session.jsonl", "ä".repeat(500)));
        let told = end_of(&path);
        assert!(told.starts_with("...") && told.ends_with("ä/session.jsonl"), "{told}");
        assert!(told.chars().count() <= MAX_PATH_CHARS + 4, "{told}");
    }
}
