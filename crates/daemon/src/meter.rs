//! The meter of a run whose agent's words we can read: counts turns, tokens and money from its
//! output and from the files its client keeps, and holds it to limits.
//!
//! ```text
//! output files of the run --+
//!                           +--> readers --> tally --> limits --> desk (the keeper)
//! the client's own files ---+
//! ```
//!
//! Owns: what a limit in the agent's words means, and when to look. Runs in the keeper, in a thread
//! of its own, without the daemon, and sleeps while neither output nor files change. Stops nobody:
//! it tells the keeper. Which files there are is said in `meter/files.rs`.

mod account;
mod files;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use kennel_process::{Chunk, Desk, LimitReached, Meter, Spec, Stream, Streams, read_output};
use kennel_transcript::files::chosen_model;
use kennel_transcript::{
    CostBasis, Entry, Format, History, Price, Prices, Reader, Source, Standing, Tally, Used,
};
use serde::{Deserialize, Serialize};

use crate::charge::{Charge, ChargeTold};
pub(crate) use account::{Account, AccountTokens, doing};
pub(crate) use files::FileAccount;
use files::{Following, Older, Whereabouts};

/// How often files are looked at that cannot be watched.
const FILE_LOOK: Duration = Duration::from_millis(500);
/// How soon those are looked at again after output: the two are not written at the same moment.
const SOON: Duration = Duration::from_millis(20);
/// How often at most the account is told.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// The longest wait for a time to finish: a bound far from every overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
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
    /// True if who waits for a tool is idle too.
    #[serde(default)]
    pub(crate) idle_tools: bool,
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
    let prices: BTreeMap<String, Price> = serde_json::from_str(&text)?;
    match prices.iter().find(|(_, price)| !price.is_valid()) {
        // It would be counted as nothing, and a budget would never bind.
        Some((model, _)) => Err(io::Error::other(format!("a price of {model:?} is below 0"))),
        None => Ok(Some(text)),
    }
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
    let place = Whereabouts { format, cwd, argv: argv.clone(), env: spec.env.set.clone() };
    // What is there before the start is not this run's doing.
    let older = match (orders.session.as_deref(), format) {
        (Some(session), _) => Older::Session(session),
        (None, _) if orders.resumed => Older::Any,
        // It has no sessions, and adds to the same file for ever.
        (None, Format::Aider) => Older::Session(""),
        (None, _) => Older::Nothing,
    };
    let files = Following::new(place, older, orders.resumed);
    let history = if files.is_older() { History::Resumed } else { History::Fresh };
    let mut tally = Tally::new(prices(orders.prices.as_ref()), history);
    if let Some(model) = chosen_model(format, &argv) {
        tally.assume_model(model);
    }
    let stream = match spec.streams {
        Streams::Pipes { .. } => Some(Stream::Stdout),
        // What a terminal shows is for people: only the files tell.
        Streams::Terminal { .. } => None,
    };
    Some(Box::new(Count {
        output: Output { stream, offset: 0, reader: Reader::new(format, Source::Stdout), lost: 0 },
        files,
        session: orders.session.clone(),
        tally,
        finishing: None,
        warned: Vec::new(),
        stopped: false,
        told: None,
        trouble: None,
        charged: Charge::default(),
        shared_with: None,
        orders,
    }))
}

/// What has been read of the run's own output.
struct Output {
    stream: Option<Stream>,
    offset: u64,
    reader: Reader,
    /// Bytes that were not kept, and so not read.
    lost: u64,
}

/// Counts one run.
struct Count {
    orders: Orders,
    output: Output,
    files: Following,
    session: Option<String>,
    tally: Tally,
    /// Since when it has given its final answer.
    finishing: Option<Instant>,
    warned: Vec<&'static str>,
    stopped: bool,
    /// What was told last, and when; and whether there is something newer.
    told: Option<(String, Instant, bool)>,
    trouble: Option<String>,
    /// What the run's descendants used.
    charged: Charge,
    /// Who works in the same session, once somebody does.
    shared_with: Option<String>,
}

impl Meter for Count {
    fn follow(&mut self, desk: &Desk) {
        self.files.search_again();
        let mut wait = Some(Duration::ZERO);
        loop {
            let woken = desk.wait(wait, self.files.watch());
            if woken.files.names || self.files.by_timer().is_some() {
                self.files.search_again();
            }
            self.heed_charge(desk);
            let grown = self.catch_up(desk);
            if woken.over {
                return self.conclude(desk);
            }
            self.tell(desk, false);
            wait = self.next_look(woken.output || grown);
        }
    }
}

impl Count {
    /// Reads the rest of everything, also lines without an end, and gives the last account.
    fn conclude(&mut self, desk: &Desk) {
        // If it takes too long, this is what was told last.
        let rest = "it ended before all that it wrote was read: tokens and cost may be too low";
        let trouble = self.trouble.replace(rest.to_owned());
        self.tell(desk, true);
        self.files.search_again();
        self.catch_up(desk);
        if self.trouble.as_deref() == Some(rest) {
            self.trouble = trouble;
        }
        let mut entries = Vec::new();
        self.output.reader.finish(&mut |entry| entries.push((Source::Stdout, entry)));
        self.files.finish(&mut entries);
        self.take(entries);
        let used = self.tally.used();
        if used.unconfirmed > 0 && used.basis != CostBasis::Said {
            let cut = format!("{} responses never said what they used in full", used.unconfirmed);
            self.trouble.get_or_insert(format!("{cut}: tokens and cost are too low"));
        }
        self.tell(desk, true);
    }

    /// Reads all there is, and judges after every piece: who writes without end must not be spared
    /// for it. True if there was something.
    fn catch_up(&mut self, desk: &Desk) -> bool {
        let mut grown = false;
        loop {
            let mut entries = Vec::new();
            let more = self.read_output(desk.dir(), &mut entries);
            self.take(entries);
            self.files.search(self.session.as_deref());
            let mut entries = Vec::new();
            let more = self.files.read(self.session.as_deref(), &mut entries) | more;
            self.take(entries);
            if more {
                desk.active();
            }
            self.judge(desk);
            if !more {
                return grown;
            }
            grown = true;
            self.tell(desk, false);
        }
    }

    /// Reads a piece of what the run wrote since the last time. True if there was one.
    fn read_output(&mut self, dir: &Path, entries: &mut Vec<(Source, Entry)>) -> bool {
        let Some(stream) = self.output.stream else { return false };
        let tell = &mut |entry| entries.push((Source::Stdout, entry));
        match read_output(dir, stream, self.output.offset) {
            Ok(Some(Chunk::Bytes { offset, bytes })) => {
                self.output.offset = offset + bytes.len() as u64;
                self.output.reader.feed(&bytes, tell);
                true
            }
            Ok(Some(Chunk::Gap { from, to })) => {
                self.output.lost += to - from;
                self.output.offset = to;
                // What is behind the gap is no end of what was before it.
                self.output.reader.finish(tell);
                self.trouble = Some(format!("{} bytes were not read", self.output.lost));
                true
            }
            // No file before the first byte, or a look that comes too early.
            Ok(None) | Err(_) => false,
        }
    }

    fn take(&mut self, entries: Vec<(Source, Entry)>) {
        for (source, entry) in entries {
            if let (Entry::Session(id), None) = (&entry, &self.session) {
                self.session = Some(id.clone());
                self.files.search_again();
            }
            if let Entry::Subagent(id) = &entry {
                self.files.add_subagent(id);
            }
            self.tally.add(source, &entry);
        }
    }

    fn heed_charge(&mut self, desk: &Desk) {
        let told = desk.charged().and_then(|json| serde_json::from_str::<ChargeTold>(&json).ok());
        let told = told.unwrap_or_default();
        self.charged = self.charged.or_more(told.below);
        if self.shared_with.is_none() && told.shared_with.is_some() {
            self.shared_with = told.shared_with;
            desk.warn(LimitReached { kind: "session".to_owned(), used: 0.0, max: 0.0 });
        }
    }

    /// Holds the run to its limits, with all that its descendants used. Turns come before money:
    /// the order in which two that are reached at once are told.
    fn judge(&mut self, desk: &Desk) {
        let used = self.tally.used();
        desk.excuse(self.is_excused(&used));
        let finishing = used.standing == Standing::Finishing;
        self.finishing = finishing.then(|| self.finishing.unwrap_or_else(Instant::now));
        if let Some(alarm) = self.files.take_alarm() {
            self.trouble = Some(alarm);
            desk.warn(LimitReached { kind: "transcript".to_owned(), used: 0.0, max: 0.0 });
        }
        if self.stopped {
            return;
        }
        let spent = self.finishing.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let turns = self.orders.turns.as_ref().map(|(name, max)| {
            let name = if name == "max_turns" { "max_turns" } else { "max_tool_turns" };
            let all = used.tool_turns.saturating_add(self.charged.tool_turns);
            (name, all as f64, *max as f64)
        });
        let tokens = used.tokens.all().saturating_add(self.charged.tokens.all()) as f64;
        let usd = used.usd + self.charged.cost_usd;
        let all = [
            turns,
            self.orders.usd.map(|max| ("max_budget_usd", usd, max)),
            self.orders.tokens.map(|max| ("max_tokens", tokens, max as f64)),
            self.orders.finish.map(|max| ("finish", spent, max)),
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

    /// What an agent waits for is not its own idleness. And who has given the final answer has
    /// nothing left to do: how long that may take is said by the time to finish, if there is one.
    fn is_excused(&self, used: &Used) -> bool {
        let waits = match used.standing {
            Standing::Waiting(_) | Standing::Retrying { .. } | Standing::RateLimited { .. } => true,
            Standing::Finishing => self.orders.finish.is_some(),
            Standing::Working => false,
        };
        waits || used.open_tools > 0 && !self.orders.idle_tools
    }

    /// When to look again, though nobody calls. Never, if nothing is due.
    fn next_look(&self, active: bool) -> Option<Duration> {
        let files = self.files.by_timer().map(|_| if active { SOON } else { FILE_LOOK });
        let told = self.told.as_ref().filter(|(_, _, newer)| *newer);
        let told = told.map(|(_, at, _)| TELL_EVERY.saturating_sub(at.elapsed()));
        let finish = self.finishing.zip(self.orders.finish).filter(|_| !self.stopped);
        let finish = finish.map(|(since, max)| {
            let max = Duration::try_from_secs_f64(max).unwrap_or(LONGEST_WAIT);
            max.saturating_sub(since.elapsed()).min(LONGEST_WAIT)
        });
        [files, told, finish].into_iter().flatten().min()
    }

    fn all_trouble(&self) -> Option<String> {
        let shared = self.shared_with.as_ref().map(|run| {
            format!("run {run} works in the same session: what either of them used counts for both")
        });
        match (shared, &self.trouble) {
            (Some(shared), Some(trouble)) => Some(format!("{shared}; {trouble}")),
            (Some(trouble), None) => Some(trouble),
            (None, trouble) => trouble.clone(),
        }
    }

    /// Gives the account to the keeper, if it is another one than before.
    fn tell(&mut self, desk: &Desk, at_once: bool) {
        let recent = self.told.as_ref().is_some_and(|(_, at, _)| at.elapsed() < TELL_EVERY);
        if recent && !at_once {
            // Whether it is another is found out when it may be told.
            if let Some((_, _, newer)) = &mut self.told {
                *newer = true;
            }
            return;
        }
        let mut account = Account::of(&self.tally.used());
        account.trouble = self.all_trouble();
        account.shared_with = self.shared_with.clone();
        account.files = self.files.word(self.session.is_some()).to_owned();
        account.followed = self.files.accounts();
        account.by_timer = self.files.by_timer().map(str::to_owned);
        account.children = Some(self.charged).filter(|charge| *charge != Charge::default());
        let Some(json) = account.into_json() else { return };
        if self.told.as_ref().is_none_or(|(told, _, _)| *told != json) {
            desk.tell_usage(json.clone());
        }
        self.told = Some((json, Instant::now(), false));
    }
}
