//! What the end of a step means for its story. Owns: retries, going back, what is gated though its
//! agent failed, and when somebody has to look. One end is one fact.
//!
//! An attempt that failed uses one retry, whatever ended it: a limit, an agent or a gate. What no
//! attempt was made of uses none: a refusal, a start that came to nothing, work that nobody could
//! look at, a provider that takes no more; each of these waits, and all but the last a bounded
//! number of times.

use super::decide::{Draft, Scope};
use super::event::Outcome;
use super::fact::{StoryFact, Then};
use super::names::{Provider, Session, StageName, StepId, Tail};
use super::pipeline::{BackOff, Pipeline, WorkRule};
use super::state::{
    Blocked, Cause, Ceiling, Hold, Progress, Step, StepPhase, Story, Tree, Used, Wait, WaitFor,
    Why, Work,
};

/// Starts in a row that may come to nothing: a program that is missing stays missing, a crash
/// of the daemon in the midst of a start does not happen five times in a row.
pub(super) const MISFIRES_MAX: u32 = 5;
/// Waits between them.
const MISFIRED: BackOff = BackOff { first_ms: 1000, most_ms: 60_000 };
/// How often a story is merged again because its base moved: every time all its gates are run
/// again, and a base that moves faster than that needs a person to make room.
pub(super) const BASE_MOVED_MAX: u32 = 5;

impl Draft {
    pub(super) fn step_ended(
        &mut self,
        step: &StepId,
        outcome: &Outcome,
        used: Used,
        session: Option<&Session>,
    ) -> Scope {
        let Some((story, current)) = self.stories.step(step) else {
            return self.stray_ended(step, outcome);
        };
        if *outcome == Outcome::Lost && matches!(current.phase, StepPhase::Lost { .. }) {
            return Scope::Nowhere;
        }
        let provider = self.paused_by(step, outcome);
        let Ok(pipeline) = self.pipeline(&step.story.project) else { return Scope::Nowhere };
        let end = End { pipeline, story, step: current, now_ms: self.now_ms };
        let (then, tree) = (end.means(outcome), end.tree(outcome));
        if let Some((provider, until_ms)) = provider {
            self.pause(&provider, until_ms);
        }
        let (step, session) = (step.clone(), session.cloned());
        let project = step.story.project.clone();
        self.fact(StoryFact::StepEnded { step, used, session, tree, then });
        self.changed(&project)
    }

    fn stray_ended(&mut self, step: &StepId, outcome: &Outcome) -> Scope {
        if self.stories.strays.contains(step) && *outcome != Outcome::Lost {
            self.fact(StoryFact::StrayEnded(step.clone()));
        }
        self.changed(&step.story.project)
    }

    /// The provider that took no more from a step's agent.
    fn paused_by(&self, step: &StepId, outcome: &Outcome) -> Option<(Provider, Option<u64>)> {
        let Outcome::RateLimited { until_ms } = outcome else { return None };
        let (_, current) = self.stories.step(step)?;
        let (agent, _) = current.work.agent()?;
        let rule = self.stories.pipeline(&step.story.project)?.agent(agent)?;
        Some((rule.provider.clone(), *until_ms))
    }
}

/// A step that is over, and all that matters for what comes of it.
struct End<'a> {
    pipeline: &'a Pipeline,
    story: &'a Story,
    step: &'a Step,
    now_ms: u64,
}

impl End<'_> {
    fn means(&self, outcome: &Outcome) -> Then {
        match outcome {
            Outcome::Lost => return Then::Lost,
            Outcome::Drifted => return self.blocked(Blocked::Drifted),
            Outcome::Success
            | Outcome::Failed { .. }
            | Outcome::Limit { .. }
            | Outcome::RateLimited { .. }
            | Outcome::Conflict { .. }
            | Outcome::BaseMoved
            | Outcome::Stopped
            | Outcome::Interrupted
            | Outcome::NeverStarted
            | Outcome::Unseen => {}
        }
        if self.step.entry != self.story.entry {
            return Then::Same;
        }
        match self.step.phase {
            StepPhase::Asked | StepPhase::Alive | StepPhase::Lost { stopping: false } => {
                self.means_by_itself(outcome)
            }
            // However it ended, it ended because of us; but what succeeded is not done twice.
            StepPhase::Stopping | StepPhase::Lost { stopping: true } => match outcome {
                Outcome::Success => self.succeeded(),
                Outcome::Failed { .. }
                | Outcome::Limit { .. }
                | Outcome::RateLimited { .. }
                | Outcome::Conflict { .. }
                | Outcome::BaseMoved
                | Outcome::Drifted
                | Outcome::Stopped
                | Outcome::Interrupted
                | Outcome::NeverStarted
                | Outcome::Unseen
                | Outcome::Lost => Then::Same,
            },
        }
    }

    fn means_by_itself(&self, outcome: &Outcome) -> Then {
        match outcome {
            Outcome::Success => self.succeeded(),
            Outcome::Failed { ahead, tail } => self.failed(*ahead, tail.as_ref()),
            Outcome::Limit { ahead, tail } => self.limited(*ahead, tail.as_ref()),
            Outcome::RateLimited { .. } => match self.step.work {
                Work::Agent { .. } => Then::Same,
                Work::Prepare { .. }
                | Work::Merge
                | Work::Gate { .. }
                | Work::Land
                | Work::Remove => self.failed(false, None),
            },
            Outcome::Conflict { tail } => self.conflicted(tail.as_ref()),
            Outcome::BaseMoved => self.base_moved(),
            Outcome::Stopped => match &self.story.hold {
                None | Some(Hold::Blocked(Blocked::Lost)) => self.held(Hold::Frozen),
                Some(_) => Then::Same,
            },
            Outcome::NeverStarted | Outcome::Unseen => self.misfired(),
            Outcome::Interrupted | Outcome::Drifted | Outcome::Lost => Then::Same,
        }
    }

    fn succeeded(&self) -> Then {
        match self.step.work {
            Work::Prepare { .. } | Work::Remove => Then::Same,
            Work::Agent { .. } => Then::Went(Progress::Worked),
            Work::Merge => Then::Went(Progress::Gated(0)),
            Work::Gate { n } => Then::Went(Progress::Gated(n.saturating_add(1))),
            Work::Land => Then::Went(Progress::Landed),
        }
    }

    fn failed(&self, ahead: bool, tail: Option<&Tail>) -> Then {
        match self.step.work {
            Work::Agent { .. } if ahead && self.is_gated() => Then::Went(Progress::Worked),
            Work::Agent { .. } => self.back(Cause::Agent, tail),
            Work::Gate { n } => self.back(Cause::Gate(n), tail),
            Work::Prepare { .. } => self.again(Cause::Prepare, self.story.progress.clone()),
            Work::Merge => self.again(Cause::Merge, Progress::Worked),
            Work::Land => self.again(Cause::Land, Progress::Worked),
            Work::Remove => self.blocked(Blocked::TreeStays),
        }
    }

    /// A limit says nothing against the stage before: it is tried again where it is.
    fn limited(&self, ahead: bool, tail: Option<&Tail>) -> Then {
        match self.step.work {
            Work::Agent { .. } if ahead && self.is_gated() => Then::Went(Progress::Worked),
            Work::Agent { .. } => self.again(Cause::Limit, self.restart(Why::Retry(tail.cloned()))),
            Work::Gate { .. } | Work::Prepare { .. } | Work::Merge | Work::Land | Work::Remove => {
                self.failed(false, tail)
            }
        }
    }

    /// Commits that nothing looks at are no reason to go on.
    fn is_gated(&self) -> bool {
        self.rule().is_some_and(|rule| rule.gates > 0)
    }

    fn conflicted(&self, tail: Option<&Tail>) -> Then {
        match self.step.work {
            Work::Merge => {}
            Work::Prepare { .. }
            | Work::Agent { .. }
            | Work::Gate { .. }
            | Work::Land
            | Work::Remove => return self.failed(false, tail),
        }
        let on_failure = self.rule().and_then(|rule| rule.on_failure.as_ref());
        let why = Why::Conflict(tail.cloned());
        match on_failure.or(self.pipeline.coders_stage()) {
            Some(to) if *to != self.story.stage => self.back_to(to, Cause::Conflict, why),
            Some(_) => self.again(Cause::Conflict, self.restart(why)),
            None => self.blocked(Blocked::Conflict),
        }
    }

    fn base_moved(&self) -> Then {
        match self.step.work {
            Work::Land if self.story.base_moved < BASE_MOVED_MAX => Then::BaseMoved,
            Work::Land => {
                let times = self.story.base_moved;
                let hold = Hold::Blocked(Blocked::BaseMoves { times });
                Then::Held { hold, progress: Progress::Worked }
            }
            Work::Prepare { .. }
            | Work::Agent { .. }
            | Work::Merge
            | Work::Gate { .. }
            | Work::Remove => self.failed(false, None),
        }
    }

    fn misfired(&self) -> Then {
        let tries = self.story.misfires.saturating_add(1);
        if tries >= MISFIRES_MAX {
            return self.blocked(Blocked::NeverStarts { tries });
        }
        Then::Misfired { wait: self.wait(MISFIRED.wait_ms(tries), WaitFor::Misfire) }
    }

    /// To the stage for failures, or here again.
    fn back(&self, cause: Cause, tail: Option<&Tail>) -> Then {
        let why = Why::Retry(tail.cloned());
        let on_failure = self.rule().and_then(|rule| rule.on_failure.as_ref());
        match on_failure.filter(|to| **to != self.story.stage) {
            Some(to) => self.back_to(to, cause, why),
            None => self.again(cause, self.restart(why)),
        }
    }

    fn back_to(&self, to: &StageName, cause: Cause, why: Why) -> Then {
        match self.retry(cause) {
            Ok(wait) => Then::Back { to: to.clone(), why, wait },
            Err(blocked) => self.held_at(Hold::Blocked(blocked), self.restart(why)),
        }
    }

    fn again(&self, cause: Cause, progress: Progress) -> Then {
        match self.retry(cause) {
            Ok(wait) => Then::Again { progress, wait },
            Err(blocked) => self.held_at(Hold::Blocked(blocked), progress),
        }
    }

    /// The wait before one more retry, if there is one.
    fn retry(&self, cause: Cause) -> Result<Wait, Blocked> {
        let (stage, max) = (self.story.stage.clone(), self.pipeline.max_retries);
        let tried = self.story.retries.get(&stage).copied().unwrap_or(0);
        if tried >= max {
            return Err(Blocked::Retries { stage, max, cause });
        }
        let used = self.story.retries_used;
        if let Some(max) = self.story.ceilings.retries.filter(|max| used >= *max) {
            let (used, max) = (used.into(), max.into());
            return Err(Blocked::Ceiling { of: Ceiling::Retries, used, max });
        }
        let for_ms = self.pipeline.back_off.wait_ms(tried.saturating_add(1));
        Ok(self.wait(for_ms, WaitFor::Retry(cause)))
    }

    fn wait(&self, for_ms: u64, why: WaitFor) -> Wait {
        Wait { since_ms: self.now_ms, for_ms, why }
    }

    /// Where a stage begins for somebody who is told why it does so again.
    fn restart(&self, why: Why) -> Progress {
        match self.rule() {
            Some(rule) if rule.agents.is_empty() && rule.merge => Progress::Worked,
            Some(rule) if rule.agents.is_empty() => Progress::Gated(0),
            Some(_) | None => Progress::Fresh(why),
        }
    }

    fn blocked(&self, blocked: Blocked) -> Then {
        self.held(Hold::Blocked(blocked))
    }

    fn held(&self, hold: Hold) -> Then {
        self.held_at(hold, self.story.progress.clone())
    }

    fn held_at(&self, hold: Hold, progress: Progress) -> Then {
        Then::Held { hold, progress }
    }

    fn rule(&self) -> Option<&WorkRule> {
        self.pipeline.work(&self.story.stage)
    }

    /// What is known of the worktree now. A run that never was changed nothing.
    fn tree(&self, outcome: &Outcome) -> Tree {
        match (&self.step.work, outcome) {
            (Work::Prepare { .. }, Outcome::Success) => Tree::Ready,
            (Work::Remove, Outcome::Success) => Tree::None,
            (Work::Prepare { .. } | Work::Remove, _) => Tree::Unsettled,
            // It may be in the middle of a merge: whoever comes next needs it as it was.
            (
                Work::Merge,
                Outcome::Failed { .. }
                | Outcome::Limit { .. }
                | Outcome::Stopped
                | Outcome::Interrupted,
            ) => Tree::Unsettled,
            (Work::Agent { .. } | Work::Merge | Work::Gate { .. } | Work::Land, _) => {
                self.story.tree
            }
        }
    }
}
