//! The meter of a run whose agent's words we can read: counts turns, tokens and money from its
//! output and from the files its client keeps, and holds it to limits.
//!
//! ```text
//! output files of the run --+
//!                           +--> readers --> tally --> limits --> desk (the keeper)
//! the client's own files ---+
//! ```
//!
//! Owns: finding and following those files, and what a limit in the agent's words means. Runs in
//! the keeper, in a thread of its own, without the daemon. Stops nobody: it tells the keeper.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kennel_process::{Chunk, Desk, LimitReached, Meter, Spec, Stream, Streams, Woken, read_output};
use kennel_supervisor::Doing;
use kennel_transcript::files::{self, Files, Place};
use kennel_transcript::{
    CostBasis, Entry, Format, History, ModelUse, Price, Prices, Reader, Source, Standing, Tally,
    Tokens, Used,
};
use serde::{Deserialize, Serialize};

use crate::charge::Charge;

/// How often a client's files are looked at while nothing is written: a client may write there
/// first, and say nothing for long.
const FILE_LOOK: Duration = Duration::from_millis(500);
/// How soon they are looked at again after output: the two are not written at the same moment.
const SOON: Duration = Duration::from_millis(20);
/// How often at most the account is told.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Bytes read from a file at once.
const PIECE_BYTES: usize = 256 << 10;
/// Files of one run that are followed: its own and its sub-agents'.
const MAX_FILES: usize = 256;
/// Entries of one directory that are looked at in a search.
const MAX_ENTRIES: usize = 10_000;
/// Models an account tells apart: it has to fit beside the proof.
const MAX_MODELS: usize = 8;
/// From this part of a limit on, somebody is warned, once.
const WARN_AT: f64 = 0.8;

/// What the daemon asks of a run's meter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Whose words the agent speaks.
    pub(crate) format: String,
    /// The session, if the command line says it.
    pub(crate) session: Option<String>,
    /// True if an older session goes on: what it used before is not this run's.
    pub(crate) resumed: bool,
    /// The name of the turn limit, and how many turns that ask for a tool.
    pub(crate) turns: Option<(String, u64)>,
    pub(crate) usd: Option<f64>,
    pub(crate) tokens: Option<u64>,
    /// Seconds between the final result and the end.
    pub(crate) finish: Option<f64>,
    /// Prices of the user's own, as the file had them when the run was asked for: a file that is
    /// broken later changes nothing.
    #[serde(default)]
    pub(crate) prices: Option<String>,
}

/// The most bytes of a file of prices.
const MAX_PRICES_BYTES: u64 = 256 << 10;

/// The user's own prices, as text that reads. `None` if there are none.
pub(crate) fn own_prices(file: &Path) -> io::Result<Option<String>> {
    use std::io::Read;
    let opened = match File::open(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    opened.take(MAX_PRICES_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_PRICES_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    let _: BTreeMap<String, Price> = serde_json::from_str(&text)?;
    Ok(Some(text))
}

/// The prices of a run: those that are shipped, and those of the user's own before them.
fn prices(own: Option<&String>) -> Prices {
    let own = own.and_then(|text| serde_json::from_str::<BTreeMap<String, Price>>(text).ok());
    Prices::shipped().with(own.unwrap_or_default())
}

/// Makes the meter of a run from what the daemon put into its spec.
pub fn make_meter(spec: &Spec) -> Option<Box<dyn Meter>> {
    let orders: Orders = serde_json::from_str(spec.meter.as_deref()?).ok()?;
    let format: Format = orders.format.parse().ok()?;
    let cwd = spec.cwd.as_ref().and_then(|cwd| fs::canonicalize(cwd).ok()).unwrap_or_default();
    let argv = std::iter::once(&spec.program).chain(&spec.args);
    let argv: Vec<String> = argv.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let history = if orders.resumed { History::Resumed } else { History::Fresh };
    let mut tally = Tally::new(prices(orders.prices.as_ref()), history);
    if let Some(model) = files::chosen_model(format, &argv) {
        tally.assume_model(model);
    }
    let stream = match spec.streams {
        Streams::Pipes { .. } => Some(Stream::Stdout),
        // What a terminal shows is for people: only the files tell.
        Streams::Terminal { .. } => None,
    };
    let mut count = Count {
        place: Whereabouts { format, cwd, argv, env: spec.env.set.clone() },
        output: Output { stream, offset: 0, reader: Reader::new(format, Source::Stdout), lost: 0 },
        followed: Vec::new(),
        before: Vec::new(),
        subagents: Vec::new(),
        session: orders.session.clone(),
        tally,
        finishing: None,
        warned: Vec::new(),
        stopped: false,
        told: None,
        trouble: None,
        charged: Charge::default(),
        orders,
    };
    // What is there before the start is not this run's doing.
    count.before = count.sizes_now();
    Some(Box::new(count))
}

/// Where a client's files can be.
struct Whereabouts {
    format: Format,
    cwd: PathBuf,
    argv: Vec<String>,
    env: Vec<(OsString, OsString)>,
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
}

/// What has been read of the run's own output.
struct Output {
    stream: Option<Stream>,
    offset: u64,
    reader: Reader,
    /// Bytes that were not kept, and so not read.
    lost: u64,
}

/// A file of the client's that is being read.
struct Followed {
    path: PathBuf,
    file: File,
    inode: u64,
    offset: u64,
    source: Source,
    reader: Reader,
    whose: Whose,
}

/// Whose a file is. Some clients give files names that do not say it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    NotKnown,
    Another,
}

/// Counts one run.
struct Count {
    orders: Orders,
    place: Whereabouts,
    output: Output,
    followed: Vec<Followed>,
    /// Files that were there before the start, and how long they were.
    before: Vec<(PathBuf, u64)>,
    subagents: Vec<String>,
    session: Option<String>,
    tally: Tally,
    /// Since when it has given its final answer.
    finishing: Option<Instant>,
    warned: Vec<&'static str>,
    stopped: bool,
    /// What was told last, and when.
    told: Option<(String, Instant)>,
    trouble: Option<String>,
    /// What the run's descendants used.
    charged: Charge,
}

impl Meter for Count {
    fn follow(&mut self, desk: &Desk) {
        let mut wait = Duration::ZERO;
        loop {
            let woken = desk.wait(wait);
            let grown = self.read_output(desk.dir()) | self.read_files();
            if grown {
                desk.active();
            }
            self.heed_charge(desk);
            self.judge(desk);
            if woken == Woken::Over {
                return self.conclude(desk);
            }
            self.tell(desk, false);
            wait = if woken == Woken::Output || grown { SOON } else { FILE_LOOK };
        }
    }
}

impl Count {
    /// Reads the rest of everything, also lines without an end, and gives the last account.
    fn conclude(&mut self, desk: &Desk) {
        while self.read_output(desk.dir()) | self.read_files() {}
        let mut entries = Vec::new();
        self.output.reader.finish(&mut |entry| entries.push((Source::Stdout, entry)));
        for followed in &mut self.followed {
            let source = followed.source;
            followed.reader.finish(&mut |entry| entries.push((source, entry)));
        }
        self.take(entries);
        let used = self.tally.used();
        if used.unconfirmed > 0 && used.basis != CostBasis::Said {
            let cut = format!("{} responses never said what they used in full", used.unconfirmed);
            self.trouble.get_or_insert(format!("{cut}: tokens and cost are too low"));
        }
        self.tell(desk, true);
    }

    /// Reads what the run wrote since the last time. True if there was something.
    fn read_output(&mut self, dir: &Path) -> bool {
        let Some(stream) = self.output.stream else { return false };
        let (mut grown, mut entries) = (false, Vec::new());
        loop {
            match read_output(dir, stream, self.output.offset) {
                Ok(Some(Chunk::Bytes { offset, bytes })) => {
                    self.output.offset = offset + bytes.len() as u64;
                    let tell = &mut |entry| entries.push((Source::Stdout, entry));
                    self.output.reader.feed(&bytes, tell);
                }
                Ok(Some(Chunk::Gap { from, to })) => {
                    self.output.lost += to - from;
                    self.output.offset = to;
                    self.trouble = Some(format!("{} bytes were not read", self.output.lost));
                }
                // No file before the first byte, or a look that comes too early.
                Ok(None) | Err(_) => break,
            }
            grown = true;
            self.take(std::mem::take(&mut entries));
        }
        grown
    }

    /// Looks for files that are new, and reads what was added to each. True if there was something.
    fn read_files(&mut self) -> bool {
        self.find_files();
        let (mut grown, mut all) = (false, Vec::new());
        let session = self.session.clone();
        for followed in &mut self.followed {
            let mut entries = Vec::new();
            match followed.read(&mut entries) {
                Ok(more) => grown |= more,
                Err(e) => {
                    self.trouble = Some(format!("failed to read {}: {e}", followed.path.display()));
                }
            }
            followed.confirm(&entries, session.as_deref());
            if followed.whose == Whose::Ours {
                all.append(&mut entries);
            }
        }
        self.take(all);
        grown
    }

    fn find_files(&mut self) {
        // Aider has no sessions, and its file is named by the command line alone.
        let session = match (&self.session, self.place.format) {
            (Some(session), _) => session.clone(),
            (None, Format::Aider) => String::new(),
            (None, _) => return,
        };
        for place in self.place.places(&session, &self.subagents) {
            let own = Source::File { subagent: false };
            let known = self.followed.iter().any(|f| f.source == own && f.whose == Whose::Ours);
            if known && !place.subagents {
                continue;
            }
            for path in found_in(&place) {
                if self.followed.len() >= MAX_FILES {
                    self.trouble = Some("it has more files than are followed".to_owned());
                    return;
                }
                if self.followed.iter().all(|followed| followed.path != path) {
                    self.begin(path, &place);
                }
            }
        }
    }

    /// Begins to follow a file, at what this run adds to it.
    fn begin(&mut self, path: PathBuf, place: &Place) {
        let Ok(file) = File::open(&path) else { return };
        let Ok(meta) = file.metadata() else { return };
        let known = self.before.iter().find(|(known, _)| *known == path).map(|(_, length)| *length);
        let source = Source::File { subagent: place.subagents };
        let reader = Reader::new(self.place.format, source);
        let whose = if place.confirm { Whose::NotKnown } else { Whose::Ours };
        let (inode, offset) = (meta.ino(), known.unwrap_or(0));
        self.followed.push(Followed { path, file, inode, offset, source, reader, whose });
    }

    /// The files of a session that is known before the start, and how long they are.
    fn sizes_now(&self) -> Vec<(PathBuf, u64)> {
        let Some(session) = self.session.as_deref().filter(|_| self.orders.resumed) else {
            return Vec::new();
        };
        let places = self.place.places(session, &[]);
        let found = places.iter().flat_map(found_in);
        found.filter_map(|path| Some((path.clone(), fs::metadata(&path).ok()?.len()))).collect()
    }

    fn take(&mut self, entries: Vec<(Source, Entry)>) {
        for (source, entry) in entries {
            if let (Entry::Session(id), None) = (&entry, &self.session) {
                self.session = Some(id.clone());
            }
            if let Entry::Subagent(id) = &entry
                && self.subagents.len() < MAX_FILES
                && !self.subagents.contains(id)
            {
                self.subagents.push(id.clone());
            }
            self.tally.add(source, &entry);
        }
    }

    fn heed_charge(&mut self, desk: &Desk) {
        let told = desk.charged().and_then(|json| serde_json::from_str::<Charge>(&json).ok());
        self.charged = self.charged.or_more(told.unwrap_or_default());
    }

    /// Holds the run to its limits, with all that its descendants used. Turns come before money:
    /// the order in which two that are reached at once are told.
    fn judge(&mut self, desk: &Desk) {
        let used = self.tally.used();
        desk.excuse(is_excused(&used));
        let finishing = used.standing == Standing::Finishing;
        self.finishing = finishing.then(|| self.finishing.unwrap_or_else(Instant::now));
        if self.stopped {
            return;
        }
        let spent = self.finishing.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let orders = self.orders.clone();
        let turns = orders.turns.as_ref().map(|(name, max)| {
            let name = if name == "max_turns" { "max_turns" } else { "max_tool_turns" };
            (name, (used.tool_turns + self.charged.tool_turns) as f64, *max as f64)
        });
        let all = [
            turns,
            orders.usd.map(|max| ("max_budget_usd", used.usd + self.charged.cost_usd, max)),
            orders.tokens.map(|max| {
                let all = used.tokens.all() + self.charged.tokens.all();
                ("max_tokens", all as f64, max as f64)
            }),
            orders.finish.map(|max| ("finish", spent, max)),
        ];
        for (kind, used, max) in all.into_iter().flatten() {
            let limit = LimitReached { kind: kind.to_owned(), used, max };
            if used >= max {
                self.stopped = true;
                return desk.stop(limit);
            }
            if used >= max * WARN_AT && kind != "finish" && !self.warned.contains(&kind) {
                self.warned.push(kind);
                desk.warn(limit);
            }
        }
    }

    /// Gives the account to the keeper, if it is another one than before.
    fn tell(&mut self, desk: &Desk, at_once: bool) {
        let mut account =
            Account::of(&self.tally.used(), self.files_word(), self.trouble.as_deref());
        account.children = Some(self.charged).filter(|charge| *charge != Charge::default());
        let Ok(json) = serde_json::to_string(&account) else { return };
        let (same, recent) = self
            .told
            .as_ref()
            .map_or((false, false), |(told, at)| (*told == json, at.elapsed() < TELL_EVERY));
        if !same && (at_once || !recent) {
            desk.tell_usage(json.clone());
            self.told = Some((json, Instant::now()));
        }
    }

    fn files_word(&self) -> &'static str {
        match (self.followed.is_empty(), &self.session) {
            (false, _) => "followed",
            (true, Some(_)) => "not found",
            (true, None) => "not known",
        }
    }
}

/// What an agent waits for is not its own idleness.
fn is_excused(used: &Used) -> bool {
    let waits = match used.standing {
        Standing::Waiting(_) | Standing::Retrying { .. } | Standing::RateLimited { .. } => true,
        Standing::Working | Standing::Finishing => false,
    };
    waits || used.open_tools > 0
}

impl Followed {
    /// The first session a file names is the one it is about.
    fn confirm(&mut self, entries: &[(Source, Entry)], session: Option<&str>) {
        let named = entries.iter().find_map(|(_, entry)| {
            if let Entry::Session(id) = entry { Some(id.as_str()) } else { None }
        });
        if let (Whose::NotKnown, Some(named)) = (self.whose, named) {
            self.whose = if Some(named) == session { Whose::Ours } else { Whose::Another };
        }
    }

    /// Reads what was added. True if there was something.
    fn read(&mut self, entries: &mut Vec<(Source, Entry)>) -> io::Result<bool> {
        let now = fs::metadata(&self.path);
        if now.as_ref().is_ok_and(|now| now.ino() != self.inode) {
            // Replaced by another: what it says is told again, and counted once.
            self.file = File::open(&self.path)?;
            self.inode = self.file.metadata()?.ino();
            self.offset = 0;
        }
        if self.file.metadata()?.len() < self.offset {
            let cut = "it was cut short; what it says from now on is counted";
            self.offset = self.file.metadata()?.len();
            return Err(io::Error::other(cut));
        }
        let (source, mut grown) = (self.source, false);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let n = self.file.read_at(&mut piece, self.offset)?;
            if n == 0 {
                return Ok(grown);
            }
            self.offset += n as u64;
            grown = true;
            self.reader.feed(&piece[..n], &mut |entry| entries.push((source, entry)));
        }
    }
}

/// The files in a place that are meant.
fn found_in(place: &Place) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![(place.dir.clone(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        // It need not be there yet.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten().take(MAX_ENTRIES) {
            let name = entry.file_name();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && depth < place.depth {
                dirs.push((entry.path(), depth + 1));
            } else if !is_dir && name.to_str().is_some_and(|name| place.matches(name)) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// What a run used, as it is kept beside its end and shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) turns: u64,
    pub(crate) tool_turns: u64,
    pub(crate) subagent_turns: u64,
    pub(crate) tool_calls: u64,
    pub(crate) tokens: AccountTokens,
    pub(crate) cost_usd: Option<f64>,
    pub(crate) cost_basis: String,
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) standing: String,
    pub(crate) rate_limited_until: Option<u64>,
    /// Whether the client's own files are read: `followed`, `not found`, `not known`.
    pub(crate) files: String,
    /// Responses of which only a placeholder is known.
    pub(crate) unconfirmed: u64,
    /// Lines or things that could not be read.
    pub(crate) unread: u64,
    pub(crate) trouble: Option<String>,
    /// By model, as far as that is told: the first of them.
    #[serde(default)]
    pub(crate) models: Vec<ModelAccount>,
    /// What its descendants used, which is in no other field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) children: Option<Charge>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelAccount {
    pub(crate) model: String,
    pub(crate) tokens: AccountTokens,
    pub(crate) cost_usd: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountTokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
}

impl Account {
    fn of(used: &Used, files: &str, trouble: Option<&str>) -> Self {
        let (cost_usd, cost_basis) = match &used.basis {
            CostBasis::Unknown => (None, "unknown".to_owned()),
            CostBasis::Said => (Some(used.usd), "said by the client".to_owned()),
            CostBasis::Priced { date } => (Some(used.usd), format!("tokens at prices of {date}")),
            CostBasis::Dearest { model, date } => {
                let basis = format!("{model:?} is not in the prices of {date}: as the dearest");
                (Some(used.usd), basis)
            }
        };
        let standing = match used.standing {
            Standing::Working => "working",
            Standing::Waiting(_) => "waiting",
            Standing::Retrying { .. } => "retrying",
            Standing::RateLimited { .. } => "rate_limited",
            Standing::Finishing => "finishing",
        };
        Self {
            turns: used.turns,
            tool_turns: used.tool_turns,
            subagent_turns: used.subagent_turns,
            tool_calls: used.tool_calls,
            tokens: AccountTokens::of(&used.tokens),
            cost_usd,
            cost_basis,
            session: used.session.clone(),
            model: used.model.clone(),
            standing: standing.to_owned(),
            rate_limited_until: used.rate_limited_until,
            files: files.to_owned(),
            unconfirmed: used.unconfirmed,
            unread: used.broken_lines + used.too_long_lines + used.unknown,
            trouble: trouble.map(str::to_owned),
            models: used.models.iter().take(MAX_MODELS).map(ModelAccount::of).collect(),
            children: None,
        }
    }
}

/// What the agent does, by an account of its meter. One that does not read says nothing of it.
pub(crate) fn doing(account: &str) -> Doing {
    let Ok(account) = serde_json::from_str::<Account>(account) else { return Doing::Works };
    match account.standing.as_str() {
        "waiting" => Doing::Waits,
        "rate_limited" => {
            let until_ms = account.rate_limited_until.map(|seconds| seconds.saturating_mul(1000));
            Doing::RateLimited { until_ms }
        }
        _ => Doing::Works,
    }
}

impl ModelAccount {
    fn of(used: &ModelUse) -> Self {
        let tokens = AccountTokens::of(&used.tokens);
        Self { model: used.model.clone(), tokens, cost_usd: used.usd }
    }
}

impl AccountTokens {
    pub(crate) fn all(&self) -> u64 {
        self.input + self.output + self.cache_read + self.cache_write
    }

    fn of(tokens: &Tokens) -> Self {
        Self {
            input: tokens.input,
            output: tokens.output,
            cache_read: tokens.cache_read,
            cache_write: tokens.cache_write_5m + tokens.cache_write_1h,
        }
    }
}
