//! The shapes of the store: facts, and what is kept beside them. Owns the words on disk and their
//! conversions; the mind's own types may change without changing them.
//!
//! What a keeper recorded is kept in its record's own shape, which every later kennel reads. The
//! environment of a run is never kept: it holds secrets, and a start is never repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use kennel_process::{End, ExitStatus, LimitReached, OnExit, StartFailure, Started, Survivor};
use kennel_supervisor as mind;
use serde::{Deserialize, Serialize};

use super::story_format::StoryFact;
use crate::api::wire::{Limits, Notify, Watch};
use crate::redact::Secrets;
use crate::tail::Offsets;
use crate::text::Text;

/// A fact as it is written.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Admitted {
        slot: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worktree: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
    },
    Started,
    Stopping {
        stop: Stop,
    },
    Exited,
    Warned {
        limit: String,
    },
    Noted(Note),
    Stuck,
    Ended {
        ending: Ending,
    },
    ShuttingDown,
    /// A fact of stories, which is no run's.
    Story(Box<StoryFact>),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    LimitReached(String),
    Works,
    Waits,
    RateLimited { until_ms: Option<u64> },
    Matched { stream: u8, through: u64, pattern: u16 },
    Heartbeat(u32),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    Ask { grace_ms: Option<u64> },
    Force,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    NeverStarted,
    Dead,
    Lost,
}

/// What is kept beside a fact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Detail {
    Nothing,
    Request(Arc<Request>),
    Started(Arc<Started>),
    Exited(ExitStatus),
    Limit(LimitReached),
    Stuck(Arc<Stuck>),
    Ended(Arc<Ended>),
    Matched(Arc<Matched>),
    Heartbeat(Offsets),
    /// Beside a stop: everything was stopped, and this run with the rest.
    Shutdown,
}

/// What a watched line was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Matched {
    /// The pattern, as it was asked for.
    pub(crate) pattern: String,
    pub(crate) stream: String,
    /// The line, without credentials, cut if it is long.
    pub(crate) line: String,
    /// How many lines this pattern has matched so far.
    pub(crate) seen: u64,
    /// Matches since the last one told that were left out for being too many.
    pub(crate) left_out: u64,
}

impl Detail {
    /// What the journal keeps of it: a request may be large, and the run's own row has it.
    pub(crate) fn of_a_line(&self) -> Self {
        if let Self::Request(_) = self { Self::Nothing } else { self.clone() }
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) command: Vec<Text>,
    pub(crate) cwd: Text,
    pub(crate) terminal: bool,
    pub(crate) grace_ms: u64,
    pub(crate) on_exit: OnExit,
    pub(crate) at_ms: u64,
    /// True if its standard input can be written to.
    #[serde(default)]
    pub(crate) stdin: bool,
    #[serde(default)]
    pub(crate) worktree: Option<String>,
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Whose words it speaks, if that is known.
    #[serde(default)]
    pub(crate) format: Option<String>,
    /// Which start of the machine it was asked for in: what has no directory after another one has
    /// lost it with the machine, and not to somebody's hands.
    #[serde(default)]
    pub(crate) boot: String,
    /// The run whose agent asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    #[serde(default)]
    pub(crate) notify: Notify,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) watch: Vec<Watch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeat_ms: Option<u64>,
    /// What of its environment is not to be told.
    #[serde(default, skip_serializing_if = "Secrets::is_empty")]
    pub(crate) secrets: Secrets,
    /// The profile it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<AgentOf>,
    /// Who set each limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) limits_from: BTreeMap<String, String>,
    /// What its starter should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// The step of a story that it is, or is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<StepOf>,
}

/// The step of a story that a run is, or is part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepOf {
    pub(crate) project: String,
    pub(crate) story: String,
    pub(crate) number: u32,
    pub(crate) part: Part,
}

impl StepOf {
    pub(crate) fn new(step: &mind::story::StepId, part: Part) -> Self {
        let project = step.story.project.as_str().to_owned();
        let story = step.story.id.as_str().to_owned();
        Self { project, story, number: step.number, part }
    }

    /// The step it is, or is part of.
    pub(crate) fn step(&self) -> mind::story::StepId {
        let (project, id) = (self.project.as_str().into(), self.story.as_str().into());
        let story = mind::story::StoryRef::new(&project, &id);
        mind::story::StepId { story, number: self.number }
    }
}

/// Which part of a step a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The step itself: its end is the step's.
    Step,
    /// What is done before it.
    Before,
    /// What is done after it.
    After,
}

/// The profile a run was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AgentOf {
    pub(crate) name: String,
    pub(crate) file: String,
    /// What was asked for, before it was made a command: configuration may change, and the same
    /// request is the same run.
    pub(crate) asked: String,
}

impl Request {
    /// True if both ask for the same, whenever they did.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if let (Some(own), Some(others)) = (&self.agent, &other.agent) {
            return own.asked == others.asked;
        }
        // Who set a limit, and what there was to say, is not asked for.
        let then = |request: &Self| Self {
            at_ms: 0,
            boot: String::new(),
            limits_from: BTreeMap::new(),
            notes: Vec::new(),
            // The environment is not compared, and nor is what is kept of it.
            secrets: Secrets::default(),
            ..request.clone()
        };
        then(self) == then(other)
    }
}

/// What is kept of a run beside its record, so that a store that was lost does not lose it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) slot: String,
    pub(crate) worktree: Option<String>,
    pub(crate) request: Request,
}

impl Label {
    pub(crate) fn of(claim: &mind::Claim, request: &Request) -> Self {
        Self {
            slot: claim.slot.as_str().to_owned(),
            worktree: claim.worktree.as_ref().map(|w| w.as_str().to_owned()),
            request: request.clone(),
        }
    }
}

/// Why a run is stuck.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stuck {
    pub(crate) reason: String,
    /// The first of those who are left, of `count` in all.
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) count: u64,
}

/// What is known of an ending.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ended {
    /// What the keeper, or whoever took over from it, recorded.
    Recorded(Box<End>),
    /// Nothing was recorded because nothing was started.
    NeverStarted {
        message: String,
        failure: Option<StartFailure>,
        at_ms: u64,
        /// True if a crash of ours came in between: the same command may start the next time.
        #[serde(default)]
        interrupted: bool,
    },
}

impl Ended {
    /// When, in milliseconds of the Unix clock.
    pub(crate) fn at_ms(&self) -> u64 {
        match self {
            Self::Recorded(end) => end.at_ms,
            Self::NeverStarted { at_ms, .. } => *at_ms,
        }
    }
}

impl From<&mind::Fact> for Fact {
    fn from(fact: &mind::Fact) -> Self {
        match fact {
            mind::Fact::Admitted { claim, .. } => Self::Admitted {
                slot: claim.slot.as_str().to_owned(),
                worktree: claim.worktree.as_ref().map(|w| w.as_str().to_owned()),
                parent: claim.parent.as_ref().map(|run| run.as_str().to_owned()),
            },
            mind::Fact::Started(_) => Self::Started,
            mind::Fact::Stopping { stop, .. } => Self::Stopping {
                stop: match stop {
                    mind::Stop::Ask { grace_ms } => Stop::Ask { grace_ms: *grace_ms },
                    mind::Stop::Force => Stop::Force,
                },
            },
            mind::Fact::Exited(_) => Self::Exited,
            mind::Fact::Warned { limit, .. } => Self::Warned { limit: limit.to_string() },
            mind::Fact::Noted { note, .. } => Self::Noted(note.into()),
            mind::Fact::Stuck(_) => Self::Stuck,
            mind::Fact::Ended { ending, .. } => Self::Ended {
                ending: match ending {
                    mind::Ending::NeverStarted => Ending::NeverStarted,
                    mind::Ending::Dead => Ending::Dead,
                    mind::Ending::Lost => Ending::Lost,
                },
            },
            mind::Fact::ShuttingDown => Self::ShuttingDown,
        }
    }
}

impl From<&mind::Note> for Note {
    fn from(note: &mind::Note) -> Self {
        match note {
            mind::Note::LimitReached(limit) => Self::LimitReached(limit.to_string()),
            mind::Note::Doing(mind::Doing::Works) => Self::Works,
            mind::Note::Doing(mind::Doing::Waits) => Self::Waits,
            mind::Note::Doing(mind::Doing::RateLimited { until_ms }) => {
                Self::RateLimited { until_ms: *until_ms }
            }
            mind::Note::Matched(mind::Match { stream, through, pattern }) => {
                Self::Matched { stream: *stream, through: *through, pattern: *pattern }
            }
            mind::Note::Heartbeat(n) => Self::Heartbeat(*n),
        }
    }
}

impl From<Note> for mind::Note {
    fn from(note: Note) -> Self {
        match note {
            Note::LimitReached(limit) => Self::LimitReached(limit.into()),
            Note::Works => Self::Doing(mind::Doing::Works),
            Note::Waits => Self::Doing(mind::Doing::Waits),
            Note::RateLimited { until_ms } => Self::Doing(mind::Doing::RateLimited { until_ms }),
            Note::Matched { stream, through, pattern } => {
                Self::Matched(mind::Match { stream, through, pattern })
            }
            Note::Heartbeat(n) => Self::Heartbeat(n),
        }
    }
}

impl Fact {
    /// The fact as the mind of runs knows it, of this run; none if it is one of stories.
    pub(crate) fn of(self, run: &str) -> Option<mind::Fact> {
        let run = mind::RunId::from(run);
        let fact = match self {
            Self::Admitted { slot, worktree, parent } => mind::Fact::Admitted {
                run,
                claim: mind::Claim {
                    slot: slot.as_str().into(),
                    worktree: worktree.as_deref().map(Into::into),
                    parent: parent.as_deref().map(Into::into),
                },
            },
            Self::Started => mind::Fact::Started(run),
            Self::Stopping { stop } => mind::Fact::Stopping {
                run,
                stop: match stop {
                    Stop::Ask { grace_ms } => mind::Stop::Ask { grace_ms },
                    Stop::Force => mind::Stop::Force,
                },
            },
            Self::Exited => mind::Fact::Exited(run),
            Self::Warned { limit } => mind::Fact::Warned { run, limit: limit.into() },
            Self::Noted(note) => mind::Fact::Noted { run, note: note.into() },
            Self::Stuck => mind::Fact::Stuck(run),
            Self::Ended { ending } => mind::Fact::Ended {
                run,
                ending: match ending {
                    Ending::NeverStarted => mind::Ending::NeverStarted,
                    Ending::Dead => mind::Ending::Dead,
                    Ending::Lost => mind::Ending::Lost,
                },
            },
            Self::ShuttingDown => mind::Fact::ShuttingDown,
            Self::Story(_) => return None,
        };
        Some(fact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first version of the journal, word for word. Never change these; add new ones.
    #[test]
    fn version_one_is_read_for_ever() {
        for text in [
            r#"{"admitted":{"slot":"s"}}"#,
            r#"{"admitted":{"slot":"s","worktree":"/w"}}"#,
            r#""started""#,
            r#"{"stopping":{"stop":{"ask":{"grace_ms":5}}}}"#,
            r#"{"stopping":{"stop":"force"}}"#,
            r#""exited""#,
            r#"{"warned":{"limit":"wall"}}"#,
            r#""stuck""#,
            r#"{"ended":{"ending":"never_started"}}"#,
            r#"{"ended":{"ending":"dead"}}"#,
            r#"{"ended":{"ending":"lost"}}"#,
            r#""shutting_down""#,
            r#"{"admitted":{"slot":"s","parent":"r0"}}"#,
            r#"{"noted":{"limit_reached":"wall"}}"#,
            r#"{"noted":"works"}"#,
            r#"{"noted":"waits"}"#,
            r#"{"noted":{"rate_limited":{"until_ms":5}}}"#,
            r#"{"noted":{"matched":{"stream":1,"through":9,"pattern":0}}}"#,
            r#"{"noted":{"heartbeat":3}}"#,
        ] {
            let fact = serde_json::from_str::<Fact>(text).unwrap().of("r").unwrap();
            assert_eq!(serde_json::to_string(&Fact::from(&fact)).unwrap(), text);
        }
    }
}
