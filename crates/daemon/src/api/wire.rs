//! The public shapes of the API, shared with every client. Owns the names scripts rely on: fields
//! may be added, never renamed or removed.

use serde::{Deserialize, Serialize};

use crate::text::Text;
use crate::time::Time;

/// Asks for a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Program and arguments.
    pub command: Vec<Text>,
    /// Where it starts; an absolute path.
    pub cwd: Text,
    /// Its whole environment.
    pub env: Vec<(Text, Text)>,
    /// The slot it wants; one of its own if not said.
    pub slot: Option<String>,
    /// A terminal instead of pipes.
    #[serde(default)]
    pub pty: bool,
    /// Time between asking and forcing.
    pub grace_ms: Option<u64>,
    /// What happens to the rest when the leader exits.
    #[serde(default)]
    pub on_exit: OnExit,
}

/// What happens to the rest of a cohort when its leader exits by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// It is forced to end.
    #[default]
    Sweep,
    /// It is awaited.
    Wait,
}

/// Asks for a stop.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Time between asking and forcing; the run's own if not said.
    pub grace_ms: Option<u64>,
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// Its slot.
    pub slot: String,
    /// Where it stands.
    pub state: State,
    /// Program and arguments, with what is no text replaced.
    pub command: Vec<String>,
    /// Where it started.
    pub cwd: String,
    /// True if it has a terminal instead of pipes.
    pub pty: bool,
    /// When it was asked for.
    pub requested_at: Time,
    /// When it started.
    pub started_at: Option<Time>,
    /// When it ended.
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
    /// Who is left, while it is stuck.
    pub survivors: Vec<Survivor>,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
}

/// How a run ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// How its leader ended.
    pub status: Status,
    /// The limit that ended it.
    pub limit: Option<Limit>,
    /// Why it never started, or why it is lost.
    pub error: Option<Error>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words are the design's own")]
pub enum Cause {
    Exit,
    Stopped,
    Killed,
    Limit,
    Lost,
    NeverStarted,
}

/// How a leader ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// With this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// Nobody knows, for this reason: `reboot`, `keeper_lost` or `never_started`.
    Unknown(String),
}

/// A limit that was reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub kind: String,
    /// What was used.
    pub used: f64,
    /// What was allowed.
    pub max: f64,
}

/// How it is known that nothing of a run is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    pub proven_at: Time,
}

/// A process that could not be ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Survivor {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The kernel's letter for its state.
    pub state: char,
    /// Its user.
    pub uid: Option<u32>,
    /// Who traces it.
    pub tracer: Option<u32>,
    /// Why it is still there.
    pub reason: String,
}

/// Every error of the API.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: Error,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error {
    /// A word that programs can rely on.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Header of an output answer: the offset to ask for next.
pub const NEXT_OFFSET: &str = "kennel-next-offset";
/// Header of an output answer: so many bytes before the next offset are not kept.
pub const SKIPPED: &str = "kennel-skipped";
/// Header of an output answer: the run has ended and this was all.
pub const END_OF_OUTPUT: &str = "kennel-end-of-output";
