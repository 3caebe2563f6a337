//! The mind of stories: which step of which story is next, and what follows from how a step ended.
//!
//! ```text
//!                      a stage, from its entry to its completion
//! Fresh --agent--> Worked --merge--> Gated(0) --gate--> Gated(1) .. Gated(n) --land--> next stage
//!   ^                                    |                  |                  |
//!   +-- retry, after a growing wait -----+------------------+  base moved: Worked again
//! ```
//!
//! What a stage has not, it skips: agents, gates, or the merge and the landing around its gates.
//! Everything that is done for a story is a [`Step`], and a story has at most one. A step is one
//! owned run, whose id follows from the story and the step's number: a start that is told again
//! is the same run.
//!
//! Of the same make as the mind of runs: a [`StoryEvent`] happened, [`decide_story`] changes
//! nothing, a [`StoryFact`] is held true once it is durable, [`Stories::apply`] is the only
//! mutator, and a [`StoryEffect`] is asked of the world. The time is an argument, in milliseconds
//! of the Unix clock. What one event means for one story is one fact, so that no crash leaves half
//! of it: whatever is cut off is found by the next [`StoryEvent::Reconcile`].
//!
//! Never holds the truth about a run, never names git, a file or a prompt. A step is over when
//! its end was told with proof, and by nothing else.

mod apply;
mod assign;
mod decide;
mod effect;
mod ended;
mod event;
mod fact;
mod names;
mod notice;
mod pipeline;
mod reconcile;
mod state;

pub use assign::Reason;
pub use decide::{StoryDecision, StoryRefusal, decide_story};
pub use effect::StoryEffect;
pub use event::{Edit, NewStory, Outcome, Seen, SeenStep, StoryEvent, TurnedAway};
pub use fact::{StoryFact, Then};
pub use names::{
    AgentName, Model, ProjectKey, Provider, Session, StageName, StepId, StoryId, StoryRef, Tail,
    Words,
};
pub use notice::{About, StoryKind, StoryNotice};
pub use pipeline::{AgentRule, BackOff, Pipeline, PipelineFault, Role, Stage, StageKind, WorkRule};
pub use state::{
    Before, Blocked, Cause, Ceiling, Ceilings, Gone, Hold, Leave, Left, Progress, Step, StepPhase,
    Stories, Story, Tree, Used, Wait, WaitFor, Why, Work,
};
