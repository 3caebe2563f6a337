//! The public shapes of the API, shared with every client. Owns the names scripts rely on: fields
//! may be added, never renamed or removed.

mod story;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::tail::{Tail, Tails};
use crate::text::Text;
use crate::time::Time;
pub use story::*;

/// Asks for a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The id it is to have, so that a request whose answer was lost can be made again without a
    /// second run: 1 to 64 letters, digits, `-` or `_`. One is made up if not said.
    #[serde(default)]
    pub id: Option<String>,
    /// Program and arguments: each a string, or a list of bytes where it is no text.
    #[schema(value_type = Vec<String>)]
    #[serde(default)]
    pub command: Vec<Text>,
    /// Instead of a command: the agent of this name in the `kennel.toml` of the directory's
    /// repository, if that is trusted, else in the user's configuration. Its name is the slot's if
    /// none is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// What that agent is told, after its own prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The session of that agent that is to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// Where it starts; an absolute path.
    #[schema(value_type = String)]
    pub cwd: Text,
    /// Its whole environment, as pairs of name and value.
    #[schema(value_type = Vec<(String, String)>)]
    pub env: Vec<(Text, Text)>,
    /// Variables over those of `env` and of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<(String, String)>)]
    pub set_env: Vec<(Text, Text)>,
    /// The slot it wants; one of its own if not said.
    #[serde(default)]
    pub slot: Option<String>,
    /// A directory that no other run may work in meanwhile; an absolute path.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub worktree: Option<Text>,
    /// A terminal instead of pipes.
    #[serde(default)]
    pub pty: bool,
    /// The size of that terminal.
    #[serde(default)]
    pub size: Option<Size>,
    /// A standard input that can be written to; else there is none. A terminal always has one.
    #[serde(default)]
    pub stdin: bool,
    /// Bounds on it. One that cannot be enforced refuses the start, and so does one above what the
    /// agent's profile or the user's caps allow.
    #[serde(default)]
    pub limits: Limits,
    /// Whose words its output and its files are in: `claude`, `codex`, and so on, or `none`. Found
    /// out from the command's name if not said.
    #[serde(default)]
    pub format: Option<String>,
    /// Start it also if a limit cannot be enforced.
    #[serde(default)]
    pub unenforced_ok: bool,
    /// Time between asking and forcing, in milliseconds; 10 s if not said.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// What happens to the rest when the leader exits.
    #[serde(default)]
    pub on_exit: OnExit,
    /// When to tell of its end.
    #[serde(default)]
    pub notify: Notify,
    /// What to look for in its output.
    #[serde(default)]
    pub watch: Vec<Watch>,
    /// Tell what it wrote lately so often, in milliseconds, if it wrote something; 1 s at least.
    #[serde(default)]
    pub heartbeat_ms: Option<u64>,
}

/// When the end of a run is told. It is kept in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Notify {
    /// However it ends.
    #[default]
    Always,
    /// Unless it exits by itself with 0.
    Failure,
    /// Only if it exits by itself with 0.
    Success,
    /// Unless somebody stopped or killed it.
    UnlessStopped,
    /// Not at all, nor anything else about it.
    Never,
}

/// Something to look for in a run's output, from its first byte on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// A regular expression, tried on whole lines.
    pub pattern: String,
    /// Which of the lines that match are told.
    #[serde(default)]
    pub mode: WatchMode,
    /// With `threshold`: how many lines have to match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u32>,
}

/// Which of the lines that match are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchMode {
    /// Every one, as far as they are not too many; the rest is counted.
    #[default]
    Every,
    /// The first.
    Once,
    /// The one that makes them as many as the threshold, once.
    Threshold,
}

/// What happens to the rest of a cohort when its leader exits by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// It is forced to end.
    #[default]
    Sweep,
    /// It is awaited.
    Wait,
}

/// Bounds on a run. Each that is left out is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Completed responses of the model; those that ask for a tool, unless `max_tool_turns` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u64>,
    /// Completed responses of the model that ask for a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_turns: Option<u64>,
    /// Money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// Tokens of every kind together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Milliseconds since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Milliseconds without output, growth of its transcript, or processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// True if an agent that waits for a tool is idle too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle_tools: bool,
    /// Milliseconds between its final result and its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_ms: Option<u64>,
    /// Bytes of memory of its cohort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processes and threads of its cohort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Bytes it writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Lines.
    #[schema(value_type = u16, minimum = 1)]
    pub rows: NonZeroU16,
    /// Columns.
    #[schema(value_type = u16, minimum = 1)]
    pub cols: NonZeroU16,
}

/// Asks for a stop.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Time between asking and forcing; the run's own if not said.
    #[serde(default)]
    pub grace_ms: Option<u64>,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// Its slot.
    pub slot: String,
    /// Where it stands.
    pub state: State,
    /// Program and arguments: each a string, or a list of bytes where it is no text.
    #[schema(value_type = Vec<String>)]
    pub command: Vec<Text>,
    /// Where it started, in the same way.
    #[schema(value_type = String)]
    pub cwd: Text,
    /// The directory that is its alone.
    pub worktree: Option<String>,
    /// True if it has a terminal instead of pipes.
    pub pty: bool,
    /// True if its standard input can be written to.
    pub stdin: bool,
    /// Time between asking it to end and forcing it, in milliseconds.
    pub grace_ms: u64,
    /// The run whose agent asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The story that it is a step of: `PROJECT/ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub story: Option<String>,
    /// When its end is told.
    #[serde(default)]
    pub notify: Notify,
    /// What is looked for in its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<Watch>,
    /// How often it is told what it wrote lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// Bounds on it.
    pub limits: Limits,
    /// The agent it was started as.
    #[serde(default)]
    pub agent: Option<String>,
    /// The file that agent is in.
    #[serde(default)]
    pub agent_file: Option<String>,
    /// What its starter should know: limits that were lowered, configuration that is broken.
    #[serde(default)]
    pub notes: Vec<String>,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: Time,
    /// When it started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Time>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Time>,
    /// What holds its cohort together: `cgroup`, `subreaper` or `group`.
    pub containment: Option<String>,
    /// Why it is not more than that.
    pub containment_because: Option<String>,
    /// The process that was exec'd.
    pub leader: Option<Process>,
    /// The keeper of it.
    pub keeper: Option<Process>,
    /// How it ended.
    pub end: Option<End>,
    /// How it is known that nothing of it is left.
    pub proof: Option<ProofView>,
    /// Why it is stuck.
    pub stuck_because: Option<String>,
    /// Who is left, while it is stuck: the first of them.
    pub survivors: Vec<Survivor>,
    /// How many are left, while it is stuck.
    pub survivor_count: u64,
    /// What it wrote, as far as that was asked for.
    pub output: Option<Output>,
    /// What it used, if somebody can count it.
    pub usage: Option<Usage>,
}

/// What a run wrote.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Output {
    /// Bytes written, dropped ones included.
    pub bytes: u64,
    /// When it last wrote anything.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_at: Option<Time>,
}

/// What a run used.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Completed responses of the model, sub-agents' included.
    pub turns: u64,
    /// Those that asked for a tool.
    pub tool_turns: u64,
    /// Completed responses of sub-agents.
    pub subagent_turns: u64,
    /// Tools that were called.
    pub tool_calls: u64,
    /// Tokens by kind.
    pub tokens: Tokens,
    /// What it cost, if that can be known.
    pub cost_usd: Option<f64>,
    /// What the cost rests on.
    pub cost_basis: String,
    /// The session, by which it can be resumed.
    pub session: Option<String>,
    /// The model in use.
    pub model: Option<String>,
    /// What the agent is doing: `working`, `waiting`, `retrying`, `rate_limited`, `finishing`.
    pub standing: String,
    /// Until when the service refuses, in seconds since 1970.
    pub rate_limited_until: Option<u64>,
    /// Responses of which only the beginning is known: what they used is seen but not confirmed, so
    /// that tokens and cost are too low for now.
    #[serde(default)]
    pub unconfirmed: u64,
    /// Lines that could not be read, or that say something no reader knows.
    #[serde(default)]
    pub unread: u64,
    /// The files the client keeps about its session: the first of them.
    #[serde(default)]
    pub files: Vec<FollowedFile>,
    /// Why they are looked at by the clock, and not at once when they change.
    #[serde(default)]
    pub files_by_timer: Option<String>,
    /// What is wrong with the counting.
    pub trouble: Option<String>,
    /// What the runs it started used, and theirs: in no other field here, and held to its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildrenUsage>,
}

/// What a run's descendants used together.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChildrenUsage {
    /// Completed responses of the model.
    pub turns: u64,
    /// Those that asked for a tool.
    pub tool_turns: u64,
    /// Tokens by kind.
    pub tokens: Tokens,
    /// What they cost, as far as that is known.
    pub cost_usd: f64,
}

/// A file the client keeps about its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FollowedFile {
    /// Where it is, or is expected; of a long path the end.
    pub path: String,
    /// `late`, `following`, `rotated`, `truncated`, `missing`, or `unreadable: ` and why.
    pub state: String,
    /// Whether it is a sub-agent's.
    pub subagent: bool,
}

/// What runs used together.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// What the lines are by.
    pub by: String,
    /// One for each run, agent, day or model.
    pub lines: Vec<UsageLine>,
    /// All of them together.
    pub total: UsageLine,
}

/// What some runs used together.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct UsageLine {
    /// The run, agent, day or model.
    pub key: String,
    /// How many runs, those that nobody could count among them.
    pub runs: u64,
    /// How many of them nobody could count.
    pub uncounted: u64,
    /// How many of them worked in a session of another live run, and were charged for both.
    #[serde(default)]
    pub shared: u64,
    /// Completed responses of the model.
    pub turns: u64,
    /// Those that asked for a tool.
    pub tool_turns: u64,
    /// Tokens by kind.
    pub tokens: Tokens,
    /// What they cost, as far as that is known.
    pub cost_usd: f64,
}

/// Tokens by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tokens {
    /// Read by the model, not from a cache.
    pub input: u64,
    /// Written by the model.
    pub output: u64,
    /// Read from a cache.
    pub cache_read: u64,
    /// Written to a cache.
    pub cache_write: u64,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words are the design's own")]
pub enum State {
    Starting,
    Running,
    Stopping,
    Stuck,
    Dead,
}

/// A process, for people to read.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Its number.
    pub pid: u32,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// How its leader ended.
    pub status: Status,
    /// The limit that ended it, also that of `oom` if it was the run's own.
    pub limit: Option<Limit>,
    /// Why it never started, or why it is lost.
    pub error: Option<Error>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words are the design's own")]
pub enum Cause {
    Exit,
    Stopped,
    Killed,
    Limit,
    Oom,
    Lost,
    NeverStarted,
}

/// How a leader ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// Nobody knows, for this reason: `reboot`, `keeper_lost` or `never_started`.
    Unknown(String),
}

/// Where a run stands with its limits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitsReport {
    /// Each of them.
    pub limits: Vec<LimitStanding>,
    /// What is wrong with the counting, if anything.
    pub trouble: Option<String>,
    /// Responses whose use is seen and not confirmed yet.
    #[serde(default)]
    pub unconfirmed: u64,
    /// The files the client keeps about its session: the first of them.
    #[serde(default)]
    pub files: Vec<FollowedFile>,
    /// Why they are looked at by the clock, and not at once when they change.
    #[serde(default)]
    pub files_by_timer: Option<String>,
}

/// Where a run stands with one of its limits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitStanding {
    /// Its name.
    pub kind: String,
    /// What was used, if that is known now: seconds, bytes, or a count.
    pub used: Option<f64>,
    /// How much of that its descendants used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<f64>,
    /// What is allowed.
    pub max: f64,
    /// Who set it: the caller, an agent's profile, or a cap of the user's.
    #[serde(default)]
    pub from: String,
    /// What is counted.
    pub source: String,
    /// How it binds: `hard`, `sampled` or `estimate`.
    pub binds: String,
    /// Why it does not bind harder, if it could elsewhere.
    #[serde(default)]
    pub because: Option<String>,
    /// True if its warning was given, as far as that is known now.
    #[serde(default)]
    pub warned: bool,
}

/// A limit that was reached.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// Its name.
    pub kind: String,
    /// What was used.
    pub used: f64,
    /// What was allowed.
    pub max: f64,
}

impl Limit {
    /// What a warning says that is about the counting and about no limit: it has no numbers.
    pub fn trouble(&self) -> Option<&'static str> {
        match self.kind.as_str() {
            "meter" => Some("is not counted any more: what it spends is not seen"),
            "transcript" => {
                Some("has a transcript that does not read: what it spends may not be seen")
            }
            "session" => {
                Some("shares its session with another run: what either uses counts for both")
            }
            _ => None,
        }
    }
}

/// How it is known that nothing of a run is left.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProofView {
    /// Each thing it rests on.
    pub rests_on: Vec<String>,
    /// The most processes seen in the cohort.
    pub processes: u32,
    /// Rounds of force it took.
    pub rounds: u32,
    /// From the first signal to the proof, in microseconds.
    pub took_us: u64,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub proven_at: Time,
}

/// A process that could not be ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Survivor {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The kernel's letter for its state.
    #[schema(value_type = String)]
    pub state: char,
    /// Its user.
    pub uid: Option<u32>,
    /// Who traces it.
    pub tracer: Option<u32>,
    /// Why it is still there.
    pub reason: String,
}

/// A line of the journal: something that became true.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; later ones are greater.
    pub seq: u64,
    /// When it became true.
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    /// What.
    pub kind: EventKind,
    /// The run it is about.
    pub run: Option<String>,
    /// The slot of that run.
    pub slot: Option<String>,
    /// Of `story`: `PROJECT/ID`, or `PROJECT/` if it is about all stories of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub story: Option<String>,
    /// Of `story`: what, in a sentence, if it is worth one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it is to end, of `stopping`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// The process that was exec'd, of `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Process>,
    /// What holds its cohort together, of `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<String>,
    /// How the leader ended, of `exited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Which limit is near, of `warned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Why, of `stuck`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck_because: Option<String>,
    /// Who is left, of `stuck`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<Survivor>,
    /// How it ended, of `ended` and `lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// How it is known that nothing is left, of `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<ProofView>,
    /// Of `removed`: lines up to this number are not kept any more, and may not have been read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<u64>,
}

/// What became true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A run has its slot.
    Admitted,
    /// Its program runs.
    Started,
    /// It is to end, or to end sooner.
    Stopping,
    /// Its leader ended; the rest may live on.
    Exited,
    /// It came near a limit. Once for each; `meter` says that its counting has failed, and
    /// `transcript` that a file it rests on cannot be read as it should.
    Warned,
    /// Something else about it was told: `GET /v1/notices` says what.
    Noted,
    /// Somebody of it is left, or it cannot be looked at.
    Stuck,
    /// Nobody can account for it. Its slot stays taken.
    Lost,
    /// It is over, with proof. Exactly one for each run.
    Ended,
    /// The daemon admits no more runs.
    ShuttingDown,
    /// Something about stories.
    Story,
    /// Older lines are not kept any more. Not a line itself.
    Removed,
}

/// How a run is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    /// True if it is forced at once.
    pub force: bool,
    /// Time between asking and forcing; its own if not said.
    pub grace_ms: Option<u64>,
}

/// A fact that deserves telling.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Notice {
    /// Its place in the journal: what `ack` takes.
    pub seq: u64,
    /// `RUN/KIND/N`: the same for ever, so that who is told twice can know it. Of stories
    /// `story/PROJECT/ID/KIND/N`, of providers `provider/NAME/paused/N`.
    pub id: String,
    /// Whose. With a kind of stories: the run of the step it is about, or empty.
    pub run: String,
    /// Its slot.
    pub slot: Option<String>,
    /// What it is about.
    pub kind: NoticeKind,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    /// True if the run's own filter keeps it from those who do not ask for all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
    /// With `started`: the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Process>,
    /// With `limit_warning` and `limit_reached`: the limit. `meter` says that counting has failed,
    /// `transcript` that a file of the client's does not read, `session` that another live run is
    /// charged for the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// With `stuck`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck_because: Option<String>,
    /// With `stuck`: the first of those who are left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<Survivor>,
    /// With `rate_limited`: until when, if that was said. With `provider_paused`: until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until: Option<Time>,
    /// With `watch_match`: what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchMatch>,
    /// With `ended` and `settled`: how, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// With `ended` and `settled`: the evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<ProofView>,
    /// With `ended`: what it used, as far as somebody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// With `ended`: the end of its output. With `heartbeat`: of what is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tails>,
    /// With `lagged`: notices up to this number are not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<u64>,
    /// With a kind of stories: `PROJECT/ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub story: Option<String>,
    /// With a kind of stories: the stage it goes to, or that failed, where that is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// With a kind of stories: what happened, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// The program runs.
    Started,
    /// The run comes near a limit. Once for each.
    LimitWarning,
    /// A limit has ended the run; the end itself is the next notice.
    LimitReached,
    /// Somebody is left after a stop, or the run cannot be looked at.
    Stuck,
    /// The agent waits for its user.
    Waiting,
    /// The agent's provider takes no more for a while.
    RateLimited,
    /// The output had what was watched for.
    WatchMatch,
    /// It goes on, and this is what it wrote lately.
    Heartbeat,
    /// It is over. Exactly one for each run.
    Ended,
    /// It was lost, and now its death is proven: its slot is free.
    Settled,
    /// A story is in another stage.
    StoryMoved,
    /// A story is done.
    StoryDone,
    /// A stage of a story is tried again.
    StoryRetried,
    /// A story goes back to an earlier stage.
    StorySentBack,
    /// A story has to be looked at.
    StoryBlocked,
    /// A story is archived or removed.
    StoryGone,
    /// A provider is not asked for a while.
    ProviderPaused,
    /// Not a notice itself: some were removed before this consumer came for them.
    Lagged,
    /// Not in the journal: somebody tries a channel.
    Test,
}

/// What was found in a run's output.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WatchMatch {
    /// The pattern, as it was asked for.
    pub pattern: String,
    /// Which stream.
    pub stream: String,
    /// The offset behind the line.
    pub through: u64,
    /// The line, without credentials, cut if it is long.
    pub line: String,
    /// How many lines this pattern has matched so far.
    pub seen: u64,
    /// Matches of the run since the last one told that were left out for being too many.
    pub left_out: u64,
}

/// Some notices.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Notices {
    /// Oldest first.
    pub notices: Vec<Notice>,
    /// What to ask for next.
    pub next: u64,
}

/// Where notices go.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// `webhook`, `command`, `desktop` or `wake`.
    pub kind: String,
    /// Everything up to this number is done.
    pub acked: u64,
    /// Notices it has still to deliver; at most 1000 are counted.
    pub pending: u64,
    /// What it delivered since the daemon started.
    pub delivered: u64,
    /// Tries that failed since the daemon started.
    pub failed: u64,
    /// When it last delivered something, since the daemon started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_delivered_at: Option<Time>,
    /// What came of its last try, if that failed.
    pub last_error: Option<String>,
    /// When it tries again.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_try_at: Option<Time>,
    /// How many notices it has given up on.
    pub dead_letters: u64,
    /// The newest of them.
    pub letters: Vec<DeadLetter>,
}

/// A notice that a channel has given up on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Its place in the journal.
    pub seq: u64,
    /// Its id.
    pub notice: String,
    /// How often it was tried.
    pub tries: u32,
    /// What came of the last try.
    pub error: String,
    /// When that was.
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    /// True if it is to be delivered again.
    pub again: bool,
}

/// What is delivered again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Retried {
    /// So many dead letters.
    pub letters: u64,
}

/// What came of the test of a channel.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tested {
    /// True if it was delivered.
    pub delivered: bool,
    /// The id that the receiver was told.
    pub id: String,
    /// What the receiver answered, or why it was not delivered.
    pub message: String,
}

/// Who reads notices.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// It has read everything up to this number.
    pub acked: u64,
    /// When it last said so.
    #[schema(value_type = String, format = DateTime)]
    pub acked_at: Time,
    /// Notices it has still to read. Counted for a list of consumers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
}

/// Says how far a consumer has read.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    /// Everything up to this number.
    pub seq: u64,
}

/// Some of the journal.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// Oldest first.
    pub events: Vec<Event>,
    /// What to ask for next.
    pub next: u64,
}

/// Asks the daemon to leave.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// Stop every run first, in parallel. Otherwise they go on under their keepers.
    #[serde(default)]
    pub stop_runs: bool,
    /// The grace of that stop; each run's own if not said.
    #[serde(default)]
    pub grace_ms: Option<u64>,
    /// How long all of it may take, in milliseconds. What is left then goes on.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// What a daemon that leaves leaves behind.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Shutdown {
    /// Runs that were stopped with proof.
    pub stopped: Vec<Run>,
    /// Runs that go on.
    pub left: Vec<Run>,
}

/// The daemon itself.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Daemon {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Where it keeps everything.
    pub home: String,
    /// When it started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Time,
    /// The number of the journal's newest line.
    pub last_seq: u64,
    /// Runs that are not dead.
    pub live: u64,
    /// How many it can hold.
    pub room: u64,
    /// True once it admits no more runs.
    pub shutting_down: bool,
}

/// What a look at everything found.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Doctor {
    /// Each thing that was looked at.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// What was looked at, in a word: `containment`, `limits`, `store`, `space`, `runs`,
    /// `leftovers`, `cgroups`, `config`, `linger`.
    pub check: String,
    /// How it is.
    pub level: Level,
    /// What was found, in a sentence.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// True if `doctor --fix` does it.
    pub fixable: bool,
    /// True if that was just done.
    pub fixed: bool,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Weaker than it could be, or worth knowing.
    Note,
    /// Somebody has to look.
    Problem,
}

/// What comes over an attached connection as text; bytes come and go as binary messages. Those to
/// the client begin with one byte for the stream: 0 terminal, 1 stdout, 2 stderr.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachMessage {
    /// To the client, first: whether it may write.
    Attached {
        /// False if somebody else does, or if that was asked for.
        writer: bool,
        /// True if the run has a terminal.
        pty: bool,
    },
    /// To the client: so many bytes were left out because it read too slowly. They are in the
    /// output.
    Skipped(u64),
    /// To the client, last: the run is over, or its keeper left.
    Ended,
    /// To the client: the input was not taken.
    Refused(Error),
    /// From the client: its terminal has this size now.
    Resize(Size),
    /// From the client: no more input.
    CloseStdin,
}

/// What a client of `/v1/mcp` says first: where it is. Runs it starts inherit that.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct McpHello {
    /// Its working directory; an absolute path.
    #[schema(value_type = String)]
    pub cwd: Text,
    /// Its environment, as pairs of name and value.
    #[schema(value_type = Vec<(String, String)>)]
    pub env: Vec<(Text, Text)>,
}

/// Every error of the API.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: Error,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Error {
    /// A word that programs can rely on.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The largest message of `/v1/mcp`: more than any call needs, and less than would matter.
pub const MAX_MCP_BYTES: usize = 4 << 20;
/// Header of an output answer: the offset to ask for next.
pub const NEXT_OFFSET: &str = "kennel-next-offset";
/// Header of an output answer: so many bytes before the next offset are not kept.
pub const SKIPPED: &str = "kennel-skipped";
/// Header of an output answer: the run has ended and this was all.
pub const END_OF_OUTPUT: &str = "kennel-end-of-output";
