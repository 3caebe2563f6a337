//! A run as it is kept. Owns what a fact and what is kept beside it make of one, so that memory and
//! tables cannot differ.

use std::sync::Arc;

use kennel_process::Started;
use kennel_supervisor as mind;

use super::format::{Detail, Ended, Request, Stuck};

/// A run as it is kept. Cheap to copy: every change makes a new one.
#[derive(Clone, Debug)]
pub(crate) struct KeptRun {
    pub(crate) id: Arc<str>,
    pub(crate) slot: Arc<str>,
    pub(crate) state: Standing,
    pub(crate) request: Arc<Request>,
    pub(crate) started: Option<Arc<Started>>,
    pub(crate) stuck: Option<Arc<Stuck>>,
    pub(crate) ended: Option<Arc<Ended>>,
    /// What its meter said last. Not kept over a restart: its keeper says it again.
    pub(crate) usage: Option<Arc<str>>,
}

/// Where a run stands, in the words of the store and of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Starting,
    Running,
    Stopping,
    Stuck,
    Dead,
}

impl Standing {
    pub(crate) const ALL: [Self; 5] =
        [Self::Starting, Self::Running, Self::Stopping, Self::Stuck, Self::Dead];

    /// From what the mind believes; `None` is a run that it has forgotten, with proof.
    pub(crate) fn of(phase: Option<mind::Phase>) -> Self {
        use mind::Phase;
        match phase {
            Some(Phase::Starting { stop: None }) => Self::Starting,
            Some(Phase::Running { .. }) => Self::Running,
            Some(Phase::Starting { stop: Some(_) } | Phase::Stopping { .. }) => Self::Stopping,
            Some(Phase::Stuck | Phase::Lost) => Self::Stuck,
            None => Self::Dead,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stuck => "stuck",
            Self::Dead => "dead",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl KeptRun {
    /// A run that was just admitted.
    pub(crate) fn admitted(run: &mind::RunId, claim: &mind::Claim, request: Arc<Request>) -> Self {
        Self {
            id: run.as_str().into(),
            slot: claim.slot.as_str().into(),
            state: Standing::Starting,
            request,
            started: None,
            stuck: None,
            ended: None,
            usage: None,
        }
    }

    /// The run after a fact, with what is kept beside it.
    #[must_use]
    pub(crate) fn after(&self, state: Standing, detail: &Detail) -> Self {
        let mut run = Self { state, ..self.clone() };
        match detail {
            Detail::Started(started) => run.started = Some(started.clone()),
            Detail::Stuck(stuck) => run.stuck = Some(stuck.clone()),
            Detail::Ended(ended) => run.ended = Some(ended.clone()),
            Detail::Nothing
            | Detail::Shutdown
            | Detail::Exited(_)
            | Detail::Limit(_)
            | Detail::Request(_)
            | Detail::Matched(_)
            | Detail::Heartbeat(_) => {}
        }
        run
    }

    /// What its meter said last, if its end has been recorded.
    pub(crate) fn usage_at_end(&self) -> Option<String> {
        match self.ended.as_deref() {
            Some(Ended::Recorded(end)) => end.usage.clone(),
            Some(Ended::NeverStarted { .. }) | None => None,
        }
    }

    /// What it used, as far as somebody counted.
    pub(crate) fn usage_now(&self) -> Option<String> {
        self.usage_at_end().or_else(|| self.usage.as_deref().map(str::to_owned))
    }

    /// True once nothing more will happen to it without somebody's doing: dead, or stuck.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, Standing::Dead | Standing::Stuck)
    }
}
