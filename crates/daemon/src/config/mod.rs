//! Configuration: what the user's file and a repository's file say, as plain data.
//!
//! ```text
//! bytes --parse--> User | Repository, or every problem with its line and the nearest right key
//!   settings   which files count here, their last good version, and who was trusted with what
//!   plan       an agent, a prompt and the caller's flags become what a run is asked for
//!   project    a directory becomes a project: its main checkout, and what may be used of its file
//!   pipeline   a repository's file becomes what the mind of stories goes by
//! ```
//!
//! Owns: the shapes. Only `settings`, `project`, `checkout`, `trust` and `init` look at a disk;
//! nothing here starts anything. A repository's file decides nothing above the user's own caps, and
//! nothing of it is used before somebody trusted exactly these bytes.

pub mod argv;
mod checkout;
pub mod init;
pub mod merge;
mod parse;
pub mod pipeline;
mod problem;
pub mod project;
mod provider;
pub mod report;
pub mod settings;
mod stages;
mod table;
pub mod trust;

use std::fmt;
use std::time::Duration;

use kennel_process::Signal;

use crate::api::wire::Limits;
use crate::steps::MergeMode;

pub use parse::{repository, user};
pub use problem::{Problem, nearest};

/// The name of a repository's file.
pub const REPOSITORY_FILE: &str = "kennel.toml";
/// The largest file that is read: some hundred agents with long prompts fit in it.
pub const MAX_FILE_BYTES: usize = 256 << 10;

/// Channels there may be: each is a task of the daemon's, and one request or run at a time.
pub const MAX_CHANNELS: usize = 32;
/// The most tries that may be asked for: with the longest pause, some four days.
pub const MAX_TRIES: u32 = 1000;

/// The user's own file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// Caps on every run: nobody starts one with more.
    pub caps: Limits,
    /// Agents that are there in every directory.
    pub agents: Vec<Agent>,
    /// Where notices go.
    pub channels: Vec<Channel>,
}

/// The file of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct Repository {
    /// Its agents.
    pub agents: Vec<Agent>,
    /// How far a story can come, in order; the default ones if the file has none.
    pub stages: Vec<Stage>,
    /// How stories are worked on.
    pub project: Project,
}

/// A profile: what is started under a name, and how far it may go.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// What it is asked for by.
    pub name: String,
    /// Which stage's work it does.
    pub role: Role,
    /// What is started.
    pub starts: Starts,
    /// Who serves it: what is paused together when one of them takes no more.
    pub provider: String,
    /// What it is told before anything else.
    pub prompt: Option<String>,
    /// Bounds on each of its runs.
    pub limits: Limits,
    /// Time between asking and forcing; the usual if not said.
    pub grace: Option<Duration>,
    /// The signal that asks it to end.
    pub gentle_signal: Signal,
    /// Whether it goes on in its session when it is started again for the same story.
    pub resume: Resume,
    /// Variables over those of whoever starts it.
    pub env: Vec<(String, String)>,
    /// How many of it may live at once; as many as there are slots for if not said.
    pub max_instances: Option<u32>,
}

/// Which stage's work an agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are the file's own")]
pub enum Role {
    Coder,
    Qa,
    Merge,
    Other,
}

/// What an agent starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starts {
    /// Words as they are; one that is `{prompt}` is the prompt, which else comes last.
    Command {
        /// Program and arguments.
        words: Vec<String>,
        /// Whose words it speaks; found out from the program's name if not said.
        format: Option<String>,
    },
    /// A client that is known, so that its command line is made here.
    Client {
        /// Which.
        client: Client,
        /// Its program, if that has another name or place.
        program: Option<String>,
        /// The model it is to use.
        model: Option<String>,
        /// The tools it may use without asking.
        allowed_tools: Vec<String>,
        /// Further words for its command line.
        args: Vec<String>,
    },
}

/// A client whose command line is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words are the file's own")]
pub enum Client {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

impl Client {
    /// The word for it, which is also its program and the format it speaks.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
        }
    }
}

/// Whether an agent goes on in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// When it is started again for the same story.
    Session,
    /// Each start is a new session.
    Never,
}

/// How far a story can come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// What being there means.
    pub kind: StageKind,
    /// Who works there.
    pub agents: Vec<String>,
    /// What has to succeed before a story leaves it for the next.
    pub gates: Vec<Vec<String>>,
    /// True if the story is merged with its base before the gates, and lands on it after them.
    pub merge: bool,
    /// Where a story goes from it.
    pub next: Option<String>,
    /// Where it goes if the gates or the agent fail; it stays if not said.
    pub on_failure: Option<String>,
    /// How many runs may work there at once.
    pub max_runs: Option<u32>,
}

/// What it means for a story to be in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Something is to be done.
    Work,
    /// It waits for somebody.
    Hold,
    /// Nothing is to be done any more.
    Terminal {
        /// True if who depends on a story that is here may go on.
        success: bool,
    },
}

/// Retries of a stage, if nobody says how many: what three tries with the failure before their eyes
/// do not solve, a person should see.
const USUAL_RETRIES: u32 = 3;
/// What branches of ours begin with, if nobody says.
const USUAL_PREFIX: &str = "kennel/";
/// How long a gate may take, if nobody says: longer than most test suites, and short enough that
/// one that hangs is told of the same hour.
const USUAL_GATE_WALL: Duration = Duration::from_secs(30 * 60);
/// How much a gate may write, if nobody says: the noisiest suites stay below, a loop that prints
/// does not fill a disk.
const USUAL_GATE_OUTPUT_BYTES: u64 = 256 << 20;
/// The first wait before a retry, if nobody says: long enough for what is flaky to pass.
const USUAL_RETRY_WAIT: Duration = Duration::from_secs(10);
/// The longest wait, if nobody says: what is still wrong then is not getting better by waiting.
const USUAL_RETRY_WAIT_MOST: Duration = Duration::from_secs(15 * 60);

/// How stories are worked on. What a file does not say is the usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The branch that work starts from and goes back to; the one the main checkout is on if not
    /// said.
    pub base_branch: Option<String>,
    /// How often a stage is tried again before a story is blocked.
    pub max_retries: u32,
    /// The first wait before that; it doubles.
    pub retry_wait: Duration,
    /// The longest wait before that.
    pub retry_wait_most: Duration,
    /// How a story's branch meets its base.
    pub merge: MergeMode,
    /// How long a gate may take.
    pub gate_wall: Duration,
    /// How many bytes a gate may write.
    pub gate_output: u64,
    /// What a change of the main checkout means while a story is worked on.
    pub main_checkout: MainCheckout,
    /// Where worktrees are made.
    pub worktree_root: Option<String>,
    /// What every branch of ours begins with.
    pub branch_prefix: String,
    /// Files to copy into a worktree, beside those of `.worktreeinclude`.
    pub copy: Vec<String>,
    /// What is run in a new worktree.
    pub setup: Vec<Vec<String>>,
    /// What is run before one is removed.
    pub teardown: Vec<Vec<String>>,
}

impl Default for Project {
    fn default() -> Self {
        Self {
            base_branch: None,
            max_retries: USUAL_RETRIES,
            retry_wait: USUAL_RETRY_WAIT,
            retry_wait_most: USUAL_RETRY_WAIT_MOST,
            merge: MergeMode::Rebase,
            gate_wall: USUAL_GATE_WALL,
            gate_output: USUAL_GATE_OUTPUT_BYTES,
            main_checkout: MainCheckout::Guard,
            worktree_root: None,
            branch_prefix: USUAL_PREFIX.to_owned(),
            copy: Vec::new(),
            setup: Vec::new(),
            teardown: Vec::new(),
        }
    }
}

/// Whose the main checkout is while a run of a story works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MainCheckout {
    /// Nobody's: a change of it blocks the story.
    Guard,
    /// The user works there too: a change is only told.
    Share,
}

/// Where notices go.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// How they get there.
    pub delivery: Delivery,
    /// Only notices of these kinds; all if it is empty.
    pub kinds: Vec<String>,
    /// Only those that tell of a failure.
    pub failures_only: bool,
    /// How often a notice is tried before it is given up on; the usual if not said.
    pub tries: Option<u32>,
    /// The pause after its first failure, which doubles; the usual if not said.
    pub first_pause: Option<Duration>,
}

/// How notices get to where they go.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// A request to this address.
    Webhook {
        /// `http://` or `https://`.
        url: String,
        /// What they are signed with.
        secret: Option<Secret>,
        /// True if it may be another machine's.
        remote: bool,
        /// How long one request may take; the usual if not said.
        answer_within: Option<Duration>,
    },
    /// A program that is started for each.
    Command {
        /// Program and arguments.
        words: Vec<String>,
        /// Bounds on each of its runs; the usual where nothing is said.
        limits: Limits,
    },
    /// The desktop's own notifications.
    Desktop,
    /// The agent whose run asked for the run it is about: its session goes on with the notice.
    Wake {
        /// Only runs of this agent are woken; all if not said.
        agent: Option<String>,
    },
}

/// What notices are signed with. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// This text.
    Text(String),
    /// What this variable of the daemon's environment holds.
    Variable(String),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::Variable(name) => write!(f, "Variable({name:?})"),
        }
    }
}

#[cfg(test)]
mod tests;
