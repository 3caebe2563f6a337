//! Belief about steps compared with what should be and with what was seen. Owns: which step has to
//! end, and what is told again because it may have been lost.
//!
//! Stops only; what is to be started instead waits for the proof. What could not be seen stops
//! nobody, and a second look at the same does nothing.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::decide::{Draft, Scope};
use super::effect::StoryEffect;
use super::event::{Seen, SeenStep, TurnedAway};
use super::fact::StoryFact;
use super::names::{ProjectKey, StepId, StoryRef};
use super::pipeline::{BackOff, Pipeline, StageKind};
use super::state::{Step, StepPhase, Story, Wait, WaitFor, Work};

/// Waits between two tries of what was refused: a slot is free again after seconds or hours, and
/// nobody tells.
const TURNED_AWAY: BackOff = BackOff { first_ms: 1000, most_ms: 60_000 };

impl Draft {
    pub(super) fn step_started(&mut self, step: &StepId) -> Scope {
        match self.stories.step(step).map(|(_, current)| current.phase) {
            Some(StepPhase::Asked) => self.fact(StoryFact::StepStarted(step.clone())),
            Some(StepPhase::Alive | StepPhase::Lost { .. }) => {}
            // It was to be stopped and may not have been up, or we died in between.
            Some(StepPhase::Stopping) => self.stop(step),
            None => self.stop_stray(step, false),
        }
        // Nothing is free by it.
        Scope::Nowhere
    }

    pub(super) fn step_refused(&mut self, step: &StepId, why: TurnedAway) -> Scope {
        let Some((story, current)) = self.stories.step(step) else { return Scope::Nowhere };
        match current.phase {
            StepPhase::Asked | StepPhase::Stopping => {}
            // Somebody saw it alive: it ends with a proof or not at all.
            StepPhase::Alive | StepPhase::Lost { .. } => return Scope::Nowhere,
        }
        let for_ms = TURNED_AWAY.wait_ms(story.turned_away.saturating_add(1));
        let wait = Wait { since_ms: self.now_ms, for_ms, why: WaitFor::TurnedAway(why) };
        self.fact(StoryFact::StepRefused { step: step.clone(), wait });
        self.changed(&step.story.project)
    }

    pub(super) fn reconcile(&mut self, seen: &Seen) -> Scope {
        let seen = match seen {
            Seen::Unreadable => return Scope::Nowhere,
            Seen::Steps(seen) => seen,
        };
        let projects: Vec<ProjectKey> = self.stories.projects().cloned().collect();
        for project in &projects {
            self.stop_what_does_not_belong_in(project);
        }
        for SeenStep { step, stopping } in seen {
            match self.stories.step(step).map(|(_, current)| current.phase) {
                Some(StepPhase::Asked) => self.fact(StoryFact::StepStarted(step.clone())),
                Some(StepPhase::Stopping) if !stopping => self.stop(step),
                Some(StepPhase::Alive | StepPhase::Stopping | StepPhase::Lost { .. }) => {}
                None => self.stop_stray(step, *stopping),
            }
        }
        self.ask_for_the_unseen(seen);
        Scope::Everywhere
    }

    /// The step of a story is stopped if it is not what should be done for it.
    pub(super) fn stop_if_it_does_not_belong(&mut self, story: &StoryRef) {
        let Ok(pipeline) = self.pipeline(&story.project) else { return };
        let Some(known) = self.stories.story(story) else { return };
        if let Some(number) = misplaced(pipeline, known) {
            let step = story.step(number);
            self.fact(StoryFact::StepStopping(step.clone()));
            self.stop(&step);
        }
    }

    pub(super) fn stop_what_does_not_belong_in(&mut self, project: &ProjectKey) {
        let Ok(pipeline) = self.pipeline(project) else { return };
        let all = self.stories.stories(project);
        let misplaced = all.filter(|(_, story)| misplaced(pipeline, story).is_some());
        let stories: Vec<StoryRef> = misplaced.map(|(id, _)| StoryRef::new(project, id)).collect();
        for story in &stories {
            self.stop_if_it_does_not_belong(story);
        }
    }

    /// Whoever lives and is nobody's step is stopped, and its story waits for that.
    fn stop_stray(&mut self, step: &StepId, stopping: bool) {
        let known = self.stories.strays.contains(step);
        if !known {
            self.fact(StoryFact::StrayFound(step.clone()));
        }
        if !known || !stopping {
            self.stop(step);
        }
    }

    /// What was begun and is not seen was cut off by a crash, or has ended and the word of it was
    /// lost: whoever knows is asked. Nobody is taken for dead here.
    fn ask_for_the_unseen(&mut self, seen: &[SeenStep]) {
        let seen: BTreeSet<&StepId> = seen.iter().map(|seen| &seen.step).collect();
        let mut asked = Vec::new();
        for (project, known) in &self.stories.projects {
            for (id, story) in &known.stories {
                let Some(current) = &story.step else { continue };
                let step = StoryRef::new(project, id).step(current.number);
                if !seen.contains(&step) {
                    let belongs = belongs(&known.pipeline, story, current);
                    asked.extend(asked_of(step, story, current, belongs));
                }
            }
        }
        let unseen = self.stories.strays.iter().filter(|stray| !seen.contains(stray));
        asked.extend(unseen.map(|stray| StoryEffect::StopStep(stray.clone())));
        for effect in asked {
            match effect {
                StoryEffect::StopStep(step) => self.stop(&step),
                StoryEffect::StartStep { .. } | StoryEffect::AskStep(_) => self.effect(effect),
            }
        }
    }
}

fn asked_of(step: StepId, story: &Story, current: &Step, belongs: bool) -> Option<StoryEffect> {
    match current.phase {
        // Whether it was started is not known, and it is not to be any more.
        StepPhase::Asked if !belongs => Some(StoryEffect::AskStep(step)),
        StepPhase::Asked => {
            let (stage, work) = (current.stage.clone(), current.work.clone());
            Some(StoryEffect::StartStep { step, stage, work, left: story.left() })
        }
        // A lost one that is not seen any more has its proof by now.
        StepPhase::Alive | StepPhase::Lost { .. } => Some(StoryEffect::AskStep(step)),
        StepPhase::Stopping => Some(StoryEffect::StopStep(step)),
    }
}

/// The number of a story's step if it has to end: its story is elsewhere, held, over or to go.
fn misplaced(pipeline: &Pipeline, story: &Story) -> Option<u32> {
    let step = story.step.as_ref()?;
    match step.phase {
        StepPhase::Asked | StepPhase::Alive => {}
        StepPhase::Stopping | StepPhase::Lost { .. } => return None,
    }
    match step.work {
        Work::Agent { .. } | Work::Gate { .. } | Work::Prepare { .. } => {}
        // Short work of our own, of which a half would be worse than all or nothing.
        Work::Merge | Work::Land | Work::Remove => return None,
    }
    (!belongs(pipeline, story, step)).then_some(step.number)
}

/// True if a step is what should be done for its story.
fn belongs(pipeline: &Pipeline, story: &Story, step: &Step) -> bool {
    let going = match step.work {
        Work::Remove => return story.leaving.is_some() && story.hold.is_none(),
        Work::Prepare { .. }
        | Work::Agent { .. }
        | Work::Merge
        | Work::Gate { .. }
        | Work::Land => story.leaving.is_some(),
    };
    let over = match pipeline.stage(&story.stage).map(|stage| &stage.kind) {
        Some(StageKind::Hold | StageKind::Terminal { .. }) => true,
        // A stage that is not there any more says nothing about who is in it.
        Some(StageKind::Work(_)) | None => false,
    };
    let elsewhere = step.entry != story.entry;
    !(over || elsewhere || going || story.hold.is_some())
}
