//! The only code that changes stories, live and on replay.
//!
//! Owns: what a fact means. Never refuses and never panics: a fact is true whether or not it was
//! expected, and one about a story or a step that is not there changes nothing.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use super::event::{Edit, NewStory};
use super::fact::{StoryFact, Then};
use super::names::{ProjectKey, Session, StageName, StepId, StoryRef};
use super::pipeline::Pipeline;
use super::state::{
    Blocked, Gone, Hold, Leave, Progress, Project, Step, StepPhase, Stories, Story, Tree, Used,
    Why, Work,
};

impl Stories {
    /// Makes a fact part of what is believed.
    pub fn apply(&mut self, fact: &StoryFact) {
        self.count_notice(fact);
        match fact {
            StoryFact::PipelineSet { project, pipeline } => self.set_pipeline(project, pipeline),
            StoryFact::Added { story, new, done } => self.add(story, new, *done),
            StoryFact::Edited { story, edit } => self.change(story, |known| known.edit(edit)),
            StoryFact::Moved { story, to, done } => self.change(story, |known| {
                known.enter(to, Why::First);
                known.done = *done;
                known.look_again();
            }),
            StoryFact::Advanced { story, to, done } => self.change(story, |known| {
                known.enter(to, Why::First);
                known.done = *done;
            }),
            StoryFact::Held { story, hold } => {
                self.change(story, |known| known.hold = Some(hold.clone()));
            }
            StoryFact::Unheld(story) => self.change(story, |known| {
                known.hold = None;
                known.look_again();
            }),
            StoryFact::Leaving { story, how } => self.change(story, |known| {
                known.leaving = Some(*how);
                known.hold = None;
                known.look_again();
            }),
            StoryFact::Left(story) => self.leave(story),
            StoryFact::StepBegun { step, work } => {
                self.change(&step.story, |known| known.begin(step.number, work));
            }
            StoryFact::StepStarted(step) => self.change_step(step, |story, current| {
                story.misfires = 0;
                story.turned_away = 0;
                match current.phase {
                    StepPhase::Asked => current.phase = StepPhase::Alive,
                    StepPhase::Alive | StepPhase::Stopping | StepPhase::Lost { .. } => {}
                }
                true
            }),
            StoryFact::StepRefused { step, wait } => self.change_step(step, |story, _| {
                story.turned_away = story.turned_away.saturating_add(1);
                story.wait = Some(*wait);
                false
            }),
            StoryFact::StepStopping(step) => self.change_step(step, |_, current| {
                current.phase = StepPhase::Stopping;
                true
            }),
            StoryFact::StepEnded { step, used, session, tree, then } => {
                self.change_step(step, |story, current| {
                    story.account(current, *used, session.as_ref());
                    story.tree = *tree;
                    story.go_on(current, then)
                });
            }
            StoryFact::StrayFound(step) => {
                self.strays.insert(step.clone());
                // Whatever it was, its run has that id: no step is to have it again.
                self.change(&step.story, |known| known.steps = known.steps.max(step.number));
            }
            StoryFact::StrayEnded(step) => {
                self.strays.remove(step);
            }
            StoryFact::Paused { provider, until_ms } => {
                self.pauses.entry(provider.clone()).or_default().until_ms = Some(*until_ms);
            }
            StoryFact::Unpaused(provider) => {
                self.pauses.entry(provider.clone()).or_default().until_ms = None;
            }
        }
    }

    fn set_pipeline(&mut self, project: &ProjectKey, pipeline: &Arc<Pipeline>) {
        let pipeline = Arc::clone(pipeline);
        match self.projects.get_mut(project) {
            Some(known) => {
                let known = Arc::make_mut(known);
                known.pipeline = pipeline;
                for story in known.stories.values_mut().filter(|s| s.wants_configuration()) {
                    Arc::make_mut(story).wait = None;
                }
            }
            None => {
                let (stories, gone) = (BTreeMap::new(), BTreeMap::new());
                let new = Project { pipeline, stories, gone, added: 0 };
                self.projects.insert(project.clone(), Arc::new(new));
            }
        }
    }

    fn add(&mut self, story: &StoryRef, new: &NewStory, done: bool) {
        let seen = self.strays_of(story).next_back().map_or(0, |stray| stray.number);
        let Some(project) = self.projects.get_mut(&story.project) else { return };
        let project = Arc::make_mut(project);
        project.added += 1;
        let mut added = Story::new(new, project.added, done);
        added.steps = seen;
        project.stories.insert(story.id.clone(), Arc::new(added));
    }

    fn leave(&mut self, story: &StoryRef) {
        let Some(project) = self.projects.get_mut(&story.project) else { return };
        let project = Arc::make_mut(project);
        let Some(known) = project.stories.remove(&story.id) else { return };
        let gone = match known.leaving {
            Some(Leave::Remove) => Gone::Removed,
            Some(Leave::Archive) | None => Gone::Archived { done: known.done },
        };
        project.gone.insert(story.id.clone(), gone);
    }

    pub(super) fn change(&mut self, story: &StoryRef, change: impl FnOnce(&mut Story)) {
        if let Some(project) = self.projects.get_mut(&story.project)
            && let Some(known) = Arc::make_mut(project).stories.get_mut(&story.id)
        {
            change(Arc::make_mut(known));
        }
    }

    /// Changes a story and its step, which is forgotten if that is said.
    fn change_step(&mut self, step: &StepId, change: impl FnOnce(&mut Story, &mut Step) -> bool) {
        self.change(&step.story, |story| {
            let Some(mut current) = story.step.take_if(|current| current.number == step.number)
            else {
                return;
            };
            if change(story, &mut current) {
                story.step = Some(current);
            }
        });
    }
}

impl Story {
    fn new(new: &NewStory, added: u64, done: bool) -> Self {
        Self {
            added,
            stage: new.stage.clone(),
            entry: 1,
            progress: Progress::Fresh(Why::First),
            done,
            hold: None,
            leaving: None,
            pinned: new.pinned.clone(),
            depends_on: new.depends_on.clone(),
            priority: new.priority,
            ceilings: new.ceilings,
            words: None,
            used: Used::default(),
            retries: BTreeMap::new(),
            retries_used: 0,
            misfires: 0,
            turned_away: 0,
            base_moved: 0,
            wait: None,
            sessions: BTreeMap::new(),
            tree: Tree::None,
            step: None,
            steps: 0,
            told: BTreeMap::new(),
        }
    }

    fn edit(&mut self, edit: &Edit) {
        let Edit { pinned, depends_on, priority, ceilings, words } = edit.clone();
        self.words = words.or(self.words.take());
        self.pinned = pinned.unwrap_or(self.pinned.take());
        self.priority = priority.unwrap_or(self.priority);
        self.ceilings = ceilings.unwrap_or(self.ceilings);
        if let Some(depends_on) = depends_on {
            self.depends_on = depends_on;
        }
    }

    fn enter(&mut self, stage: &StageName, why: Why) {
        self.stage = stage.clone();
        self.entry = self.entry.saturating_add(1);
        self.progress = Progress::Fresh(why);
        self.base_moved = 0;
        self.wait = None;
    }

    /// Somebody looked at it: what went wrong before does not count any more.
    fn look_again(&mut self) {
        self.retries.clear();
        self.misfires = 0;
        self.turned_away = 0;
        self.base_moved = 0;
        self.wait = None;
    }

    fn begin(&mut self, number: u32, work: &Work) {
        let (stage, entry, work) = (self.stage.clone(), self.entry, work.clone());
        match work {
            Work::Prepare { .. } | Work::Remove => self.tree = Tree::Unsettled,
            Work::Agent { .. } | Work::Merge | Work::Gate { .. } | Work::Land => {}
        }
        let (phase, counted) = (StepPhase::Asked, Used::default());
        self.step = Some(Step { number, stage, entry, work, phase, counted });
        self.steps = self.steps.max(number);
        self.wait = None;
    }

    /// Adds what a step used, but for what was added when it was lost.
    fn account(&mut self, step: &mut Step, used: Used, session: Option<&Session>) {
        let turns = used.turns.saturating_sub(step.counted.turns);
        let money = used.money_micros.saturating_sub(step.counted.money_micros);
        self.used.turns = self.used.turns.saturating_add(turns);
        self.used.money_micros = self.used.money_micros.saturating_add(money);
        step.counted = used;
        if let (Work::Agent { agent, model, .. }, Some(session)) = (&step.work, session) {
            self.sessions.insert((agent.clone(), model.clone()), session.clone());
        }
    }

    /// What the end of its step means. True if the step stays.
    fn go_on(&mut self, step: &mut Step, then: &Then) -> bool {
        let misfires = core::mem::take(&mut self.misfires);
        // The proof is there: that there was none is nothing to look at any more.
        self.hold.take_if(|hold| *hold == Hold::Blocked(Blocked::Lost));
        match then {
            Then::Same => {}
            Then::Went(progress) => self.progress = progress.clone(),
            Then::Again { progress, wait } => {
                self.burn();
                self.progress = progress.clone();
                self.wait = Some(*wait);
            }
            Then::Back { to, why, wait } => {
                self.burn();
                self.enter(to, why.clone());
                self.done = false;
                self.wait = Some(*wait);
            }
            Then::Misfired { wait } => {
                self.misfires = misfires.saturating_add(1);
                self.wait = Some(*wait);
            }
            Then::BaseMoved => {
                self.base_moved = self.base_moved.saturating_add(1);
                self.progress = Progress::Worked;
            }
            Then::Held { hold, progress } => {
                self.hold = Some(hold.clone());
                self.progress = progress.clone();
            }
            Then::Lost => {
                self.hold = Some(Hold::Blocked(Blocked::Lost));
                let stopping = step.phase == StepPhase::Stopping;
                step.phase = StepPhase::Lost { stopping };
                return true;
            }
        }
        false
    }

    fn burn(&mut self) {
        *self.retries.entry(self.stage.clone()).or_default() += 1;
        self.retries_used = self.retries_used.saturating_add(1);
    }
}
