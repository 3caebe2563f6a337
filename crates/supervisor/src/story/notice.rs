//! What of stories deserves telling, and which of its kind it is. Owns the closed list of kinds
//! and the count that makes the same notice the same one for ever.
//!
//! A fact gives one notice or none, so that whatever makes a fact durable once tells of it once.

use super::fact::{StoryFact, Then};
use super::names::{Provider, StoryRef};
use super::state::{Hold, Stories};

/// What a notice of stories says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoryKind {
    /// A story is in another stage.
    Moved,
    /// A story is done.
    Done,
    /// A stage is tried again.
    Retried,
    /// A story goes back to an earlier stage.
    SentBack,
    /// A story has to be looked at.
    Blocked,
    /// A story is archived or removed.
    Gone,
    /// A provider is not asked for a while.
    Paused,
}

/// What it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A story.
    Story(StoryRef),
    /// A provider.
    Provider(Provider),
}

/// A notice's name: the same for ever, and no other one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryNotice {
    /// About what.
    pub about: About,
    /// What it says.
    pub kind: StoryKind,
    /// The how many-th of this kind about this, from 1 on.
    pub n: u32,
}

impl Stories {
    /// What is to be told of a fact, if anything. Asked before the fact is applied.
    #[must_use]
    pub fn notice_of(&self, fact: &StoryFact) -> Option<StoryNotice> {
        let was_done = || fact.story().and_then(|story| self.story(story)).is_some_and(|s| s.done);
        let kind = kind_of(fact, was_done)?;
        let (about, told) = match fact {
            StoryFact::Paused { provider, .. } => {
                let told = self.pauses.get(provider).map_or(0, |pause| pause.told);
                (About::Provider(provider.clone()), told)
            }
            StoryFact::PipelineSet { .. }
            | StoryFact::Added { .. }
            | StoryFact::Edited { .. }
            | StoryFact::Moved { .. }
            | StoryFact::Advanced { .. }
            | StoryFact::Held { .. }
            | StoryFact::Unheld(_)
            | StoryFact::Leaving { .. }
            | StoryFact::Left(_)
            | StoryFact::StepBegun { .. }
            | StoryFact::StepStarted(_)
            | StoryFact::StepRefused { .. }
            | StoryFact::StepStopping(_)
            | StoryFact::StepEnded { .. }
            | StoryFact::StrayFound(_)
            | StoryFact::StrayEnded(_)
            | StoryFact::Unpaused(_) => {
                let story = fact.story()?;
                let told = self.story(story)?.told.get(&kind).copied().unwrap_or(0);
                (About::Story(story.clone()), told)
            }
        };
        Some(StoryNotice { about, kind, n: told.saturating_add(1) })
    }

    pub(super) fn count_notice(&mut self, fact: &StoryFact) {
        let Some(StoryNotice { about, kind, n }) = self.notice_of(fact) else { return };
        match about {
            About::Story(story) => self.change(&story, |known| {
                known.told.insert(kind, n);
            }),
            About::Provider(provider) => self.pauses.entry(provider).or_default().told = n,
        }
    }
}

fn kind_of(fact: &StoryFact, was_done: impl Fn() -> bool) -> Option<StoryKind> {
    let told_of_hold = |hold: &Hold| match hold {
        Hold::Blocked(_) => Some(StoryKind::Blocked),
        // Whoever froze it, or stopped its run, knows.
        Hold::Frozen => None,
    };
    match fact {
        StoryFact::Moved { done, .. } | StoryFact::Advanced { done, .. } => {
            Some(if *done && !was_done() { StoryKind::Done } else { StoryKind::Moved })
        }
        StoryFact::Held { hold, .. } => told_of_hold(hold),
        StoryFact::Left(_) => Some(StoryKind::Gone),
        StoryFact::Paused { .. } => Some(StoryKind::Paused),
        StoryFact::StepEnded { then, .. } => match then {
            Then::Same | Then::Went(_) | Then::Misfired { .. } | Then::BaseMoved => None,
            Then::Again { .. } => Some(StoryKind::Retried),
            Then::Back { .. } => Some(StoryKind::SentBack),
            Then::Held { hold, .. } => told_of_hold(hold),
            Then::Lost => Some(StoryKind::Blocked),
        },
        StoryFact::PipelineSet { .. }
        | StoryFact::Added { .. }
        | StoryFact::Edited { .. }
        | StoryFact::Unheld(_)
        | StoryFact::Leaving { .. }
        | StoryFact::StepBegun { .. }
        | StoryFact::StepStarted(_)
        | StoryFact::StepRefused { .. }
        | StoryFact::StepStopping(_)
        | StoryFact::StrayFound(_)
        | StoryFact::StrayEnded(_)
        | StoryFact::Unpaused(_) => None,
    }
}
