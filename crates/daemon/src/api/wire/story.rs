//! The public shapes of stories. Owns the names scripts rely on, like its parent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tokens;
use crate::text::Text;
use crate::time::Time;

/// Asks for a story.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoryRequest {
    /// Any directory of its repository, or of a worktree of it; an absolute path.
    #[schema(value_type = String)]
    pub dir: Text,
    /// The id it is to have: 1 to 36 small letters, digits and single `-` between them. Made of the
    /// title if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it is, in a line.
    pub title: String,
    /// What its agents are told.
    #[serde(default)]
    pub text: String,
    /// Where it begins; in the first stage if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Who works on it if that agent is free and of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Stories that have to be done before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// The higher, the sooner.
    #[serde(default)]
    pub priority: i32,
    /// What all its runs together may use.
    #[serde(default)]
    pub ceilings: StoryCeilings,
    /// What tells it from every other story that is asked for: who asks again after an answer was
    /// lost, with the same words here, gets the same story.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What all runs of a story together may use. Each that is left out is without bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoryCeilings {
    /// Responses of models that ask for a tool, as in the limits of each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u64>,
    /// Money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_budget_usd: Option<f64>,
    /// Retries, of all stages together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
}

/// Says what is to be different about a story; what is left out stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoryEdit {
    /// Any directory of its repository.
    #[schema(value_type = String)]
    pub dir: Text,
    /// Its title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who works on it; an empty name is nobody in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// All stories that have to be done before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// The higher, the sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// All its ceilings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<StoryCeilings>,
}

/// Says where a story is to be.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoryMove {
    /// Any directory of its repository.
    #[schema(value_type = String)]
    pub dir: Text,
    /// The stage.
    pub stage: String,
}

/// Says in which repository a story is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StoryPlace {
    /// Any directory of its repository.
    #[schema(value_type = String)]
    pub dir: Text,
}

/// A story.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Story {
    /// Its id, unique in its repository for ever.
    pub id: String,
    /// What it is, in a line.
    pub title: String,
    /// What its agents are told. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What its repository is called here.
    pub project: String,
    /// Where its repository is.
    pub repository: String,
    /// How far it has come. `archived` and `removed` for those that are gone.
    pub stage: String,
    /// How far it has come in that stage: `fresh`, `worked`, `gated N`, `landed`.
    pub progress: String,
    /// `blocked` or `frozen`: nothing is done for it.
    pub hold: Option<String>,
    /// Why.
    pub hold_because: Option<String>,
    /// True if it is done.
    pub done: bool,
    /// The agent that works on it now.
    pub agent: Option<String>,
    /// The agent that works on it if it can.
    pub pinned: Option<String>,
    /// What is done for it now: `prepare`, `agent`, `merge`, `gate N`, `land`, `remove`.
    pub step: Option<String>,
    /// The run of that.
    pub run: Option<String>,
    /// True while that run is being stopped, or cannot be ended.
    #[serde(default)]
    pub stopping: bool,
    /// Retries of the stage it is in since somebody last looked at it.
    pub retries: u32,
    /// Retries of all its life.
    pub retries_used: u32,
    /// Its worktree, if it has one.
    pub worktree: Option<String>,
    /// Its branch.
    pub branch: Option<String>,
    /// Why nothing is done for it now, in a sentence; none if something is.
    pub waits_for: Option<String>,
    /// The same in a word: `ended`, `move`, `stage_gone`, `held`, `dependencies`, `stray`, `retry`,
    /// `refused`, `unconfigured`, `misfire`, `stage_full`, `agents_busy`, `paused`, `ready`.
    pub waits_code: Option<String>,
    /// When that is over, if it is a matter of time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub waits_until: Option<Time>,
    /// Stories that have to be done before.
    pub depends_on: Vec<String>,
    /// The higher, the sooner.
    pub priority: i32,
    /// What all its runs together may use.
    pub ceilings: StoryCeilings,
    /// What they have used.
    pub used: StoryUsed,
    /// `archive` or `remove`: it is to go, once nothing of it runs and its work is safe.
    pub leaving: Option<String>,
    /// When it was added.
    #[schema(value_type = String, format = DateTime)]
    pub added_at: Time,
    /// What happened to it, oldest first; of a long story the newest part. Left out of lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StoryLine>,
    /// What is wrong with the configuration of its repository, and where work is kept of a story
    /// that is gone, if anything. Left out of lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What runs of a story used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StoryUsed {
    /// Responses of models that asked for a tool: what its ceiling on turns counts.
    pub turns: u64,
    /// What they cost, as far as that is known.
    pub cost_usd: f64,
    /// Tokens. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
}

/// Something that happened to a story.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoryLine {
    /// Its place in the journal.
    pub seq: u64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Time,
    /// What, in a sentence.
    pub text: String,
    /// The run it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// The stories of a repository.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stories {
    /// What the repository is called here.
    pub project: String,
    /// Where it is.
    pub repository: String,
    /// Its stages, in order.
    pub stages: Vec<String>,
    /// Each story, in the order of stages, and in each the sooner first.
    pub stories: Vec<Story>,
    /// Who takes no more for a while.
    pub paused: Vec<PausedProvider>,
    /// What is wrong with its configuration, if anything, and what counts in its place: what was
    /// trusted last, or nothing, so that nothing is begun.
    pub notes: Vec<String>,
    /// The newest line of the journal that is in this.
    pub seq: u64,
}

/// A provider that is not asked for a while.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PausedProvider {
    /// Which.
    pub provider: String,
    /// Until when.
    #[schema(value_type = String, format = DateTime)]
    pub until: Time,
}

/// Says that a provider is to be asked again.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnpauseRequest {
    /// Which.
    pub provider: String,
}
