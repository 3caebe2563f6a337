//! What a run has used so far, from all its sources: every response once, and the best number for
//! it.
//!
//! Owns the counting. Three rules make it right:
//!
//! - **A response is one response**, however many lines and sources tell it. Turns are counted by
//!   their shared name; a source without such names is counted by itself, and the larger count
//!   holds.
//! - **The better number wins.** A placeholder gives way to what was streamed, that to what is on
//!   disk; of two equally good ones the one with more output holds, for clients write snapshots
//!   first.
//! - **A total is never added.** It counts as far as it exceeds what was there when it was first
//!   seen in a resumed run, and from zero in a fresh one; and only where responses were not
//!   recorded one by one, which is the truth for this run.

use crate::entry::{
    Ending, Entry, Grade, RateLimit, Span, Tokens, Total, Turn, TurnId, Usage, Waiting,
};
use crate::prices::{PICO_PER_USD, Prices};
use crate::reader::Source;
use crate::recent::{Recent, name_of};

/// How many models are told apart. A run uses a handful; more than this share the last row.
const MAX_MODELS: usize = 16;

/// How many unknown kinds are kept by name, for somebody to look at.
const MAX_UNKNOWN_NAMES: usize = 16;

/// Whether the session is older than the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It began with this run.
    Fresh,
    /// It was resumed or forked: totals include what earlier runs used.
    Resumed,
}

/// Counts what the entries of a run's sources tell.
#[derive(Clone, Debug)]
pub struct Tally {
    prices: Prices,
    history: History,
    /// The model to price by where the stream names none.
    assumed_model: Option<String>,
    turns: Recent<SeenTurn>,
    main: TurnCount,
    subagents: TurnCount,
    /// Turns without a shared name, per source.
    own: [OwnTurns; 2],
    tools: Recent<bool>,
    tool_calls: u64,
    open_tools: u64,
    usages: Recent<SeenUsage>,
    /// Under which name the usage of a response is kept, by the response's id alone.
    usage_names: Recent<u64>,
    /// What was counted per response.
    named: Ledger,
    /// What was told without the name of a response, per source.
    nameless: [Ledger; 2],
    has_recorded: bool,
    total: Option<SeenTotal>,
    /// How many totals were told, and what was counted per response since the last.
    totals: u64,
    since_total: Sum,
    /// Responses of which only the beginning was told, and the number of the last total that has
    /// their ends: one that says less than what was counted until then has not.
    unconfirmed: u64,
    confirmed_by: u64,
    /// Responses that were cut off: a total does not confirm them.
    cut: u64,
    session: Option<String>,
    model: Option<String>,
    /// Standard output is in a form that can be read.
    has_stdout: bool,
    /// It tells responses, so that a file cannot be late with one that nobody has heard of.
    says_turns: bool,
    standing: Standing,
    waits: u64,
    ending: Option<Ending>,
    rate_limited_until: Option<u64>,
    /// The service refused, and has answered nothing since.
    refused: bool,
    counts: LineCounts,
    unknown_names: Vec<String>,
    errors: u64,
    last_error: Option<String>,
}

/// What a run has used, as plain data.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// Completed responses, those of sub-agents included.
    pub turns: u64,
    /// Those that asked for a tool, those of sub-agents included.
    pub tool_turns: u64,
    /// Completed responses of sub-agents.
    pub subagent_turns: u64,
    /// Those of sub-agents that asked for a tool.
    pub subagent_tool_turns: u64,
    /// Tools that were called.
    pub tool_calls: u64,
    /// Tools that were called and have not finished.
    pub open_tools: u64,
    /// Tokens by kind.
    pub tokens: Tokens,
    /// United States dollars.
    pub usd: f64,
    /// What the dollars rest on.
    pub basis: CostBasis,
    /// Responses of which only a placeholder is known and that no total includes yet, so that
    /// tokens and dollars are too low.
    pub unconfirmed: u64,
    /// What was counted per response, by model. Not where only totals are known.
    pub models: Vec<ModelUse>,
    /// The session, if it was named.
    pub session: Option<String>,
    /// The model in use now, if it was named.
    pub model: Option<String>,
    /// What the agent is doing.
    pub standing: Standing,
    /// How often it has begun to wait for a person.
    pub waits: u64,
    /// The last final answer. An agent may work on after one.
    pub ending: Option<Ending>,
    /// Until when the service refuses, in seconds since 1970, if it said so at any time.
    pub rate_limited_until: Option<u64>,
    /// True if the service refused and has answered nothing since, whatever its client did then.
    pub rate_limited: bool,
    /// Lines that were read.
    pub lines: u64,
    /// Lines that were text where JSON was expected.
    pub plain_lines: u64,
    /// Lines that began as JSON and were not.
    pub broken_lines: u64,
    /// Lines that were too long to be read.
    pub too_long_lines: u64,
    /// Things of a kind that no reader knows.
    pub unknown: u64,
    /// The first few of those kinds.
    pub unknown_names: Vec<String>,
    /// Errors that were told.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
}

/// What was used of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelUse {
    /// As the stream names it; empty if it does not.
    pub model: String,
    /// By kind.
    pub tokens: Tokens,
    /// United States dollars.
    pub usd: f64,
    /// Whether its price is known; else it was priced as the dearest that is.
    pub known: bool,
}

/// What an amount of money rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostBasis {
    /// Nothing was told yet, or nothing that is this run's alone.
    Unknown,
    /// The client said it.
    Said,
    /// Tokens, priced by the table of this date.
    Priced {
        /// Of the table.
        date: String,
    },
    /// Tokens, some of them of this model, which is not in the table of this date and was priced as
    /// the dearest that is.
    Dearest {
        /// The model; empty if it was never named.
        model: String,
        /// Of the table.
        date: String,
    },
}

/// What an agent is doing, as far as its stream tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It works, or has not said anything yet.
    Working,
    /// It waits for a person.
    Waiting(Waiting),
    /// A request failed and is tried again.
    Retrying {
        /// Counted from one.
        attempt: u64,
        /// How long the client waits before it, where it says so.
        delay_ms: Option<u64>,
    },
    /// The service refuses.
    RateLimited {
        /// Seconds since 1970, if known.
        until: Option<u64>,
    },
    /// It gave its final answer, and has not left.
    Finishing,
}

#[derive(Clone, Copy, Debug)]
struct SeenTurn {
    subagent: bool,
    tools: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct TurnCount {
    turns: u64,
    tool_turns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OwnTurns {
    /// The last one, and whether it asked for a tool.
    last: u64,
    last_tools: bool,
    main: TurnCount,
    subagents: TurnCount,
}

#[derive(Clone, Copy, Debug)]
struct SeenUsage {
    grade: Grade,
    row: usize,
    tokens: Tokens,
    pico: u64,
    said: bool,
    /// How many totals had been told when the response first was.
    after_total: u64,
}

/// Sums by model.
#[derive(Clone, Debug, Default)]
struct Ledger {
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    model: String,
    known: bool,
    sum: Sum,
}

/// Tokens and what they cost, in picodollars, apart by who said so.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    tokens: Tokens,
    said: u64,
    priced: u64,
}

/// The last total, and what of it is not this run's.
#[derive(Clone, Copy, Debug)]
struct SeenTotal {
    tokens: Option<Tokens>,
    pico: Option<u64>,
    tokens_before: Tokens,
    pico_before: u64,
    /// Whether what was before is known, and not the whole of the first total.
    is_ours: bool,
}

impl SeenTotal {
    /// True if it includes all that was counted.
    fn has(&self, counted: &Sum) -> bool {
        match (self.tokens, self.pico) {
            (Some(tokens), _) => tokens.larger(&counted.tokens) == tokens,
            (None, Some(pico)) => pico >= counted.pico(),
            (None, None) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct LineCounts {
    lines: u64,
    plain: u64,
    broken: u64,
    too_long: u64,
    unknown: u64,
}

impl Tally {
    /// Nothing used yet.
    pub fn new(prices: Prices, history: History) -> Self {
        Self {
            prices,
            history,
            assumed_model: None,
            turns: Recent::default(),
            main: TurnCount::default(),
            subagents: TurnCount::default(),
            own: Default::default(),
            tools: Recent::default(),
            tool_calls: 0,
            open_tools: 0,
            usages: Recent::default(),
            usage_names: Recent::default(),
            named: Ledger::default(),
            nameless: Default::default(),
            has_recorded: false,
            total: None,
            totals: 0,
            since_total: Sum::default(),
            unconfirmed: 0,
            confirmed_by: 0,
            cut: 0,
            session: None,
            model: None,
            has_stdout: false,
            says_turns: false,
            standing: Standing::Working,
            waits: 0,
            ending: None,
            rate_limited_until: None,
            refused: false,
            counts: LineCounts::default(),
            unknown_names: Vec::new(),
            errors: 0,
            last_error: None,
        }
    }

    /// Prices by this model what the stream gives no model for: the one on the command line.
    pub fn assume_model(&mut self, model: &str) {
        self.assumed_model = Some(model.to_owned());
    }

    /// Takes up one entry of one source.
    pub fn add(&mut self, source: Source, entry: &Entry) {
        self.has_stdout |= source == Source::Stdout && entry.is_about_the_agent();
        match entry {
            Entry::Line => self.counts.lines += 1,
            Entry::Session(id) => self.name_session(source, id),
            Entry::Model(model) => self.name_model(source, model),
            Entry::Subagent(_) => {}
            Entry::Turn(turn) => self.turn(source, turn),
            Entry::ToolStarted { id, name: _ } => self.tool_started(id),
            Entry::ToolFinished { id } => self.tool_finished(id),
            Entry::Usage(usage) => self.usage(source, usage),
            Entry::Total(total) => self.total(total),
            Entry::Working => self.works(source),
            Entry::Waiting(what) => self.waits(*what),
            Entry::Retrying { attempt, delay_ms } => {
                let (attempt, delay_ms) = (*attempt, *delay_ms);
                self.standing = Standing::Retrying { attempt, delay_ms };
            }
            Entry::RateLimit(RateLimit::Rejected { until }) => {
                self.rate_limited_until = until.or(self.rate_limited_until);
                self.refused = true;
                self.standing = Standing::RateLimited { until: *until };
            }
            Entry::RateLimit(RateLimit::Warning { until: _ }) => {}
            Entry::Result(ending) => self.result(source, ending),
            Entry::Error(message) => {
                self.errors += 1;
                self.last_error = Some(message.clone());
            }
            Entry::Unknown(name) => self.unknown(name),
            Entry::Plain => self.counts.plain += 1,
            Entry::Broken => self.counts.broken += 1,
            Entry::TooLong => self.counts.too_long += 1,
        }
    }

    /// What was used so far.
    pub fn used(&self) -> Used {
        let (main, subagents) = self.turn_counts();
        let (tokens, usd, basis) = self.cost();
        Used {
            turns: main.turns + subagents.turns,
            tool_turns: main.tool_turns + subagents.tool_turns,
            subagent_turns: subagents.turns,
            subagent_tool_turns: subagents.tool_turns,
            tool_calls: self.tool_calls,
            open_tools: self.open_tools,
            tokens,
            usd,
            basis,
            unconfirmed: self.unconfirmed + self.cut,
            models: self.rows().filter(|row| row.is_used()).map(Row::as_use).collect(),
            session: self.session.clone(),
            model: self.model.clone().or_else(|| self.assumed_model.clone()),
            standing: self.standing,
            waits: self.waits,
            ending: self.ending.clone(),
            rate_limited_until: self.rate_limited_until,
            rate_limited: self.refused,
            lines: self.counts.lines,
            plain_lines: self.counts.plain,
            broken_lines: self.counts.broken,
            too_long_lines: self.counts.too_long,
            unknown: self.counts.unknown,
            unknown_names: self.unknown_names.clone(),
            errors: self.errors,
            last_error: self.last_error.clone(),
        }
    }

    /// A sub-agent's file names the sub-agent's session, which is not the run's.
    fn name_session(&mut self, source: Source, id: &str) {
        if !source.is_subagent() {
            self.session = Some(id.to_owned());
        }
    }

    fn name_model(&mut self, source: Source, model: &str) {
        if !source.is_subagent() {
            self.model = Some(model.to_owned());
        }
    }

    /// A file trails: the end of one prompt may be read there when the next is under way.
    fn result(&mut self, source: Source, ending: &Ending) {
        if source == Source::Stdout || !self.has_stdout {
            self.ending = Some(ending.clone());
            self.standing = Standing::Finishing;
        }
    }

    fn turn(&mut self, source: Source, turn: &Turn) {
        self.says_turns |= source == Source::Stdout;
        // What is told a second time, by a file that trails, says nothing about now.
        match &turn.id {
            TurnId::Shared(id) if self.shared_turn(name_of(id), turn) => {
                self.refused = false;
                if self.says_turns {
                    self.standing = Standing::Working;
                } else {
                    self.works(source);
                }
            }
            TurnId::Own(place) if self.own[lane(source)].take(*place, turn) => {
                self.refused = false;
                self.works(source);
            }
            TurnId::Shared(_) | TurnId::Own(_) => {}
        }
    }

    /// It works. What a file says of it may be older than the final answer that was said, if only
    /// the file has it or it has no name that both sources share.
    fn works(&mut self, source: Source) {
        let trails = source != Source::Stdout && self.has_stdout;
        if !(trails && self.standing == Standing::Finishing) {
            self.standing = Standing::Working;
        }
    }

    fn shared_turn(&mut self, name: u64, turn: &Turn) -> bool {
        let tools = turn.tools > 0;
        if let Some(seen) = self.turns.get_mut(name) {
            if tools && !seen.tools {
                seen.tools = true;
                let subagent = seen.subagent;
                self.count_of(subagent).tool_turns += 1;
            }
            return false;
        }
        let subagent = turn.subagent;
        self.turns.insert(name, SeenTurn { subagent, tools });
        let count = self.count_of(subagent);
        count.turns += 1;
        count.tool_turns += u64::from(tools);
        true
    }

    fn count_of(&mut self, subagent: bool) -> &mut TurnCount {
        if subagent { &mut self.subagents } else { &mut self.main }
    }

    fn turn_counts(&self) -> (TurnCount, TurnCount) {
        let [stdout, file] = &self.own;
        let main = self.main.larger(&stdout.main).larger(&file.main);
        (main, self.subagents.larger(&stdout.subagents).larger(&file.subagents))
    }

    fn tool_started(&mut self, id: &str) {
        if self.tools.get(name_of(id)).is_none() {
            self.remember_tool(id, true);
            self.tool_calls += 1;
            self.standing = Standing::Working;
        }
    }

    fn tool_finished(&mut self, id: &str) {
        match self.tools.get_mut(name_of(id)) {
            Some(open) if *open => {
                *open = false;
                self.open_tools -= 1;
                self.works_again();
            }
            Some(_) => {}
            // Its start is still to come, from a source that trails, and must not open it again.
            None => {
                self.remember_tool(id, false);
                self.tool_calls += 1;
            }
        }
    }

    fn remember_tool(&mut self, id: &str, open: bool) {
        self.open_tools += u64::from(open);
        let forgotten = self.tools.insert(name_of(id), open);
        self.open_tools -= u64::from(forgotten == Some(true));
    }

    /// A tool's end is a sign of life after a permission, and none after the final answer.
    fn works_again(&mut self) {
        match self.standing {
            Standing::Waiting(_) | Standing::Retrying { .. } | Standing::RateLimited { .. } => {
                self.standing = Standing::Working;
            }
            Standing::Working | Standing::Finishing => {}
        }
    }

    /// After the final answer a client waits for nothing that it would need to go on.
    fn waits(&mut self, what: Waiting) {
        match (what, self.standing) {
            (Waiting::Input, Standing::Finishing) => {}
            (Waiting::Input | Waiting::Approval, before) => {
                self.waits += u64::from(!matches!(before, Standing::Waiting(_)));
                self.standing = Standing::Waiting(what);
            }
        }
    }

    fn usage(&mut self, source: Source, usage: &Usage) {
        let Some(id) = &usage.id else { return self.nameless_usage(source, usage) };
        let turn = self.turns.get(name_of(id));
        let is_replay = usage.subagent && turn.is_some_and(|turn| !turn.subagent);
        if is_replay {
            return;
        }
        let name = self.usage_name(id, usage.request.as_deref());
        let old = self.usages.get(name).copied();
        if let Some(old) = old
            && (usage.grade, usage.tokens.output) <= (old.grade, old.tokens.output)
        {
            return;
        }
        if let Some(old) = old {
            self.named.rows[old.row].sum.take_back(&old);
        }
        let mut seen = self.named.take(&self.prices, self.model_of(usage), usage);
        seen.after_total = old.map_or(self.totals, |old| old.after_total);
        if seen.after_total == self.totals {
            self.count_since_total(old, &seen);
        }
        self.unconfirmed -= u64::from(old.is_some_and(|old| self.is_unconfirmed(&old)));
        self.unconfirmed += u64::from(self.is_unconfirmed(&seen));
        // A total has no more of those than we have.
        self.cut -= u64::from(old.is_some_and(|old| old.grade == Grade::Cut));
        self.cut += u64::from(seen.grade == Grade::Cut);
        self.has_recorded |= seen.grade == Grade::Recorded;
        self.usages.insert(name, seen);
        self.usage_names.insert(name_of(id), name);
    }

    fn count_since_total(&mut self, old: Option<SeenUsage>, new: &SeenUsage) {
        if let Some(old) = old {
            self.since_total.take_back(&old);
        }
        self.since_total.put(new);
    }

    fn is_unconfirmed(&self, seen: &SeenUsage) -> bool {
        seen.grade == Grade::Placeholder && seen.after_total >= self.confirmed_by
    }

    /// A response is known by its own id and its request's. Where one source gives no request, the
    /// response's id alone has to do, whichever came first.
    fn usage_name(&self, id: &str, request: Option<&str>) -> u64 {
        let alone = name_of(id);
        match request {
            None => self.usage_names.get(alone).copied().unwrap_or(alone),
            Some(_) if self.usages.get(alone).is_some() => alone,
            Some(request) => name_of((id, request)),
        }
    }

    fn nameless_usage(&mut self, source: Source, usage: &Usage) {
        let model = self.model_of(usage);
        self.nameless[lane(source)].take(&self.prices, model, usage);
        self.has_recorded |= usage.grade == Grade::Recorded;
    }

    fn model_of(&self, usage: &Usage) -> String {
        usage.model.clone().unwrap_or_else(|| self.used_model())
    }

    fn total(&mut self, total: &Total) {
        let pico = total.usd.map(pico_of);
        let (mut tokens_before, mut pico_before) = (Tokens::default(), 0);
        let mut is_ours = true;
        let counted = self.counted();
        match (total.since, self.history, self.total) {
            (Span::Run, _, _) | (Span::Session, History::Fresh, _) => {}
            (Span::Session, History::Resumed, Some(first)) => {
                (tokens_before, pico_before) = (first.tokens_before, first.pico_before);
                is_ours = first.is_ours;
            }
            (Span::Session, History::Resumed, None) => {
                // What was counted up to here is this run's; the rest was there before it.
                tokens_before = total.tokens.unwrap_or_default().minus(&counted.tokens);
                pico_before = pico.unwrap_or(0).saturating_sub(counted.pico());
                is_ours = counted.tokens != Tokens::default();
            }
        }
        self.totals += 1;
        self.since_total = Sum::default();
        let tokens = total.tokens;
        let seen = SeenTotal { tokens, pico, tokens_before, pico_before, is_ours };
        // In a resumed session, how much of a total is ours is taken from what was counted.
        let is_all_ours = total.since == Span::Run || self.history == History::Fresh;
        if is_all_ours && seen.has(&counted) {
            self.unconfirmed = 0;
            self.confirmed_by = self.totals;
        }
        self.total = Some(seen);
    }

    /// All that was counted response by response.
    fn counted(&self) -> Sum {
        self.ledgers().iter().fold(Sum::default(), |sum, ledger| sum.plus(&ledger.sum()))
    }

    /// What names its responses, and the better of what does not.
    fn ledgers(&self) -> [&Ledger; 2] {
        let [stdout, file] = &self.nameless;
        [&self.named, if file.rows.is_empty() { stdout } else { file }]
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.ledgers().into_iter().flat_map(|ledger| &ledger.rows)
    }

    fn cost(&self) -> (Tokens, f64, CostBasis) {
        let counted = self.counted();
        let basis = self.counted_basis(&counted);
        let (tokens, pico, basis) = match self.trusted_total() {
            Some(total) => self.with_total(&total, &counted, basis),
            None if counted.tokens == Tokens::default() && counted.pico() == 0 => {
                (counted.tokens, 0, CostBasis::Unknown)
            }
            None => (counted.tokens, counted.pico(), basis),
        };
        (tokens, pico as f64 / PICO_PER_USD, basis)
    }

    /// A total that may say more than what was counted. In a resumed run it is a guess beside what
    /// was recorded one by one.
    fn trusted_total(&self) -> Option<SeenTotal> {
        let trusted = self.history == History::Fresh || !self.has_recorded;
        self.total.filter(|total| total.is_ours && trusted)
    }

    fn with_total(
        &self,
        total: &SeenTotal,
        counted: &Sum,
        basis: CostBasis,
    ) -> (Tokens, u64, CostBasis) {
        // With files to read, what comes after a total may be older than it.
        let since = if self.has_recorded { Sum::default() } else { self.since_total };
        let told = total.tokens.unwrap_or_default().minus(&total.tokens_before).plus(&since.tokens);
        let tokens = counted.tokens.larger(&told);
        let pico = counted.pico();
        if let Some(said) = total.pico {
            let said = said.saturating_sub(total.pico_before).saturating_add(since.pico());
            return if said >= pico {
                (tokens, said, CostBasis::Said)
            } else {
                (tokens, pico, basis)
            };
        }
        // Calls that no line showed, at the price of a short prompt: which were long nobody knows.
        let more = told.minus(&counted.tokens);
        if more == Tokens::default() {
            return (tokens, pico, basis);
        }
        let model = self.used_model();
        let (price, known) = self.prices.pico(&model, &more);
        (tokens, pico.saturating_add(price), self.basis_with(basis, &model, known))
    }

    fn used_model(&self) -> String {
        self.model.clone().or_else(|| self.assumed_model.clone()).unwrap_or_default()
    }

    fn counted_basis(&self, counted: &Sum) -> CostBasis {
        let date = self.prices.date().to_owned();
        match self.rows().find(|row| !row.known && row.sum.priced > 0) {
            Some(row) => CostBasis::Dearest { model: row.model.clone(), date },
            None if counted.said > 0 && counted.priced == 0 => CostBasis::Said,
            None => CostBasis::Priced { date },
        }
    }

    fn basis_with(&self, basis: CostBasis, model: &str, known: bool) -> CostBasis {
        let date = self.prices.date().to_owned();
        match basis {
            CostBasis::Dearest { .. } => basis,
            CostBasis::Unknown | CostBasis::Said | CostBasis::Priced { .. } if known => {
                CostBasis::Priced { date }
            }
            CostBasis::Unknown | CostBasis::Said | CostBasis::Priced { .. } => {
                CostBasis::Dearest { model: model.to_owned(), date }
            }
        }
    }

    fn unknown(&mut self, name: &str) {
        self.counts.unknown += 1;
        let is_new = !self.unknown_names.iter().any(|known| known == name);
        if is_new && self.unknown_names.len() < MAX_UNKNOWN_NAMES {
            self.unknown_names.push(name.to_owned());
        }
    }
}

impl OwnTurns {
    /// Takes up the turn at this place; says whether it is a new one.
    fn take(&mut self, place: u64, turn: &Turn) -> bool {
        let tools = turn.tools > 0;
        let is_new = place > self.last;
        let asks_now = tools && (is_new || !self.last_tools);
        self.last_tools = tools || (self.last_tools && !is_new);
        self.last = self.last.max(place);
        let count = if turn.subagent { &mut self.subagents } else { &mut self.main };
        count.turns += u64::from(is_new);
        count.tool_turns += u64::from(asks_now);
        is_new
    }
}

impl TurnCount {
    fn larger(&self, other: &Self) -> Self {
        Self {
            turns: self.turns.max(other.turns),
            tool_turns: self.tool_turns.max(other.tool_turns),
        }
    }
}

impl Sum {
    fn pico(&self) -> u64 {
        self.said.saturating_add(self.priced)
    }

    fn put(&mut self, seen: &SeenUsage) {
        self.tokens = self.tokens.plus(&seen.tokens);
        let part = if seen.said { &mut self.said } else { &mut self.priced };
        *part = part.saturating_add(seen.pico);
    }

    fn take_back(&mut self, seen: &SeenUsage) {
        self.tokens = self.tokens.minus(&seen.tokens);
        let part = if seen.said { &mut self.said } else { &mut self.priced };
        *part = part.saturating_sub(seen.pico);
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.plus(&other.tokens),
            said: self.said.saturating_add(other.said),
            priced: self.priced.saturating_add(other.priced),
        }
    }
}

impl Ledger {
    /// Prices a usage and adds it to its model.
    fn take(&mut self, prices: &Prices, model: String, usage: &Usage) -> SeenUsage {
        let (grade, tokens) = (usage.grade, usage.tokens);
        let (pico, known) = prices.pico(&model, &tokens);
        let row = self.row(model, known);
        let seen = SeenUsage { grade, row, tokens, pico, said: false, after_total: 0 };
        let seen = match usage.usd.filter(|usd| *usd > 0.0) {
            // Nothing for something is what clients say that know no price.
            Some(usd) => SeenUsage { pico: pico_of(usd), said: true, ..seen },
            None => seen,
        };
        self.rows[row].sum.put(&seen);
        seen
    }

    fn row(&mut self, model: String, known: bool) -> usize {
        if let Some(at) = self.rows.iter().position(|row| row.model == model) {
            return at;
        }
        if self.rows.len() == MAX_MODELS {
            self.rows[MAX_MODELS - 1].known &= known;
            return MAX_MODELS - 1;
        }
        self.rows.push(Row { model, known, sum: Sum::default() });
        self.rows.len() - 1
    }

    fn sum(&self) -> Sum {
        self.rows.iter().fold(Sum::default(), |sum, row| sum.plus(&row.sum))
    }
}

impl Row {
    fn is_used(&self) -> bool {
        self.sum.tokens != Tokens::default() || self.sum.pico() > 0
    }

    fn as_use(&self) -> ModelUse {
        ModelUse {
            model: self.model.clone(),
            tokens: self.sum.tokens,
            usd: self.sum.pico() as f64 / PICO_PER_USD,
            known: self.known,
        }
    }
}

fn lane(source: Source) -> usize {
    match source {
        Source::Stdout => 0,
        Source::File { .. } => 1,
    }
}

fn pico_of(usd: f64) -> u64 {
    (usd * PICO_PER_USD).round() as u64
}
