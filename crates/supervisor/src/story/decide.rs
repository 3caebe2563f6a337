//! From what happened to what is true of stories and what to do: state, event and time in, facts
//! and effects out.
//!
//! Owns: what may be asked for, and that whatever changed is reconciled and assigned in the same
//! decision. Changes nothing: it works on a copy, by the facts it gives. What was observed is never
//! refused.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::assign::needs_agent;
use super::effect::StoryEffect;
use super::event::{Edit, NewStory, StoryEvent};
use super::fact::StoryFact;
use super::names::{AgentName, ProjectKey, Provider, StageName, StepId, StoryId, StoryRef};
use super::pipeline::{Pipeline, PipelineFault, StageKind};
use super::state::{Blocked, Gone, Hold, Leave, Stories, Story};

/// How long a provider is not asked that did not say until when: rate windows are minutes.
pub(super) const PAUSE_UNSAID_MS: u64 = 5 * 60 * 1000;
/// How long at least: a time that is past already must not become a start and a refusal in turn.
pub(super) const PAUSE_LEAST_MS: u64 = 30 * 1000;
/// How long at most: the longest windows are a week, and what is later was read wrongly.
pub(super) const PAUSE_MOST_MS: u64 = 8 * 24 * 60 * 60 * 1000;

/// What follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum StoryDecision {
    /// These facts, made durable, then these effects.
    Do {
        /// In this order.
        facts: Vec<StoryFact>,
        /// In this order.
        effects: Vec<StoryEffect>,
    },
    /// Nothing: it is so already.
    AlreadySo,
    /// Nothing: it may not be.
    Refused(StoryRefusal),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoryRefusal {
    /// The project's configuration was never read.
    NoPipeline(ProjectKey),
    /// The configuration makes no sense; the last good one stays.
    BadPipeline(PipelineFault),
    /// There is no such story.
    NoSuchStory(StoryRef),
    /// There is no such stage; these there are.
    NoSuchStage {
        /// What was asked for.
        stage: StageName,
        /// What there is.
        known: Vec<StageName>,
    },
    /// There is no such agent; these there are.
    NoSuchAgent {
        /// What was asked for.
        agent: AgentName,
        /// What there is.
        known: Vec<AgentName>,
    },
    /// The id is, or was, another story's.
    IdTaken,
    /// It would depend on a story that is not there.
    UnknownDependency(StoryId),
    /// It would wait for itself: each of these depends on the next, and the last is the first.
    Cycle(Vec<StoryId>),
    /// It is held already, for another reason.
    Held(Hold),
    /// It is over: nothing is done for it that could be held.
    Ended(StageName),
    /// It may use no more: raise the ceiling first.
    AtCeiling(Blocked),
    /// It is to go.
    Leaving(Leave),
    /// These wait for it.
    NeededBy(Vec<StoryId>),
}

/// Decides what follows from an event that happens now. Changes nothing.
pub fn decide_story(stories: &Stories, event: &StoryEvent, now_ms: u64) -> StoryDecision {
    let mut draft = Draft::new(stories, now_ms);
    match draft.happen(event) {
        Err(refusal) => StoryDecision::Refused(refusal),
        Ok(scope) => {
            draft.assign(&scope);
            draft.decision()
        }
    }
}

/// Where something may have to be assigned after an event.
pub(super) enum Scope {
    Nowhere,
    Project(ProjectKey),
    Everywhere,
}

/// A decision in the making: everything as it will be, and how it got there.
pub(super) struct Draft {
    pub(super) stories: Stories,
    pub(super) now_ms: u64,
    facts: Vec<StoryFact>,
    effects: Vec<StoryEffect>,
    /// Whose stop is among the effects.
    stopped: BTreeSet<StepId>,
}

type Decided = Result<Scope, StoryRefusal>;

impl Draft {
    pub(super) fn new(stories: &Stories, now_ms: u64) -> Self {
        let (facts, effects, stopped) = (vec![], vec![], BTreeSet::new());
        Self { stories: stories.clone(), now_ms, facts, effects, stopped }
    }

    pub(super) fn fact(&mut self, fact: StoryFact) {
        self.stories.apply(&fact);
        self.facts.push(fact);
    }

    pub(super) fn effect(&mut self, effect: StoryEffect) {
        self.effects.push(effect);
    }

    /// Has a run stopped; once is enough in one decision.
    pub(super) fn stop(&mut self, step: &StepId) {
        if self.stopped.insert(step.clone()) {
            self.effect(StoryEffect::StopStep(step.clone()));
        }
    }

    fn decision(self) -> StoryDecision {
        if self.facts.is_empty() && self.effects.is_empty() {
            return StoryDecision::AlreadySo;
        }
        StoryDecision::Do { facts: self.facts, effects: self.effects }
    }

    /// The scope of a change in a project, if there was one.
    pub(super) fn changed(&self, project: &ProjectKey) -> Scope {
        if self.facts.is_empty() { Scope::Nowhere } else { Scope::Project(project.clone()) }
    }

    fn happen(&mut self, event: &StoryEvent) -> Decided {
        match event {
            StoryEvent::PipelineRead { project, pipeline } => self.read(project, pipeline),
            StoryEvent::PipelineUnreadable(_) => Ok(Scope::Nowhere),
            StoryEvent::AddRequested { story, new } => self.add(story, new),
            StoryEvent::EditRequested { story, edit } => self.edit(story, edit),
            StoryEvent::MoveRequested { story, to } => self.move_to(story, to),
            StoryEvent::FreezeRequested(story) => self.hold(story, Hold::Frozen),
            StoryEvent::BlockRequested(story) => self.hold(story, Hold::Blocked(Blocked::ByUser)),
            StoryEvent::UnholdRequested(story) => self.unhold(story),
            StoryEvent::LeaveRequested { story, how } => self.leave(story, *how),
            StoryEvent::StepStarted(step) => Ok(self.step_started(step)),
            StoryEvent::StepRefused { step, why } => Ok(self.step_refused(step, *why)),
            StoryEvent::StepEnded { step, outcome, used, session } => {
                Ok(self.step_ended(step, outcome, *used, session.as_ref()))
            }
            StoryEvent::RateLimited { provider, until_ms } => {
                self.pause(provider, *until_ms);
                Ok(Scope::Nowhere)
            }
            StoryEvent::UnpauseRequested(provider) => Ok(self.unpause(provider)),
            StoryEvent::Tick => Ok(Scope::Everywhere),
            StoryEvent::Reconcile(seen) => Ok(self.reconcile(seen)),
        }
    }

    fn read(&mut self, project: &ProjectKey, pipeline: &Arc<Pipeline>) -> Decided {
        pipeline.check().map_err(StoryRefusal::BadPipeline)?;
        // Who was turned away for want of it need not wait any longer.
        let waits = self.stories.stories(project).any(|(_, known)| known.wants_configuration());
        if waits || self.stories.pipeline(project) != Some(&**pipeline) {
            let (project, pipeline) = (project.clone(), Arc::clone(pipeline));
            self.fact(StoryFact::PipelineSet { project: project.clone(), pipeline });
            self.stop_what_does_not_belong_in(&project);
        }
        Ok(self.changed(project))
    }

    fn add(&mut self, story: &StoryRef, new: &NewStory) -> Decided {
        let pipeline = self.pipeline(&story.project)?;
        let kind = kind_of(pipeline, &new.stage)?;
        let done = matches!(kind, StageKind::Terminal { success: true });
        check_agent(pipeline, new.pinned.as_ref())?;
        if self.stories.story(story).is_some() || self.stories.gone(story).is_some() {
            return Err(StoryRefusal::IdTaken);
        }
        self.check_dependencies(story, &new.depends_on)?;
        self.fact(StoryFact::Added { story: story.clone(), new: new.clone(), done });
        Ok(self.changed(&story.project))
    }

    fn edit(&mut self, story: &StoryRef, edit: &Edit) -> Decided {
        let known = self.staying(story)?;
        let same = edit.pinned.as_ref().is_none_or(|pinned| *pinned == known.pinned)
            && edit.depends_on.as_ref().is_none_or(|on| *on == known.depends_on)
            && edit.priority.is_none_or(|priority| priority == known.priority)
            && edit.ceilings.is_none_or(|ceilings| ceilings == known.ceilings)
            && (edit.words.is_none() || edit.words == known.words);
        if same {
            return Ok(Scope::Nowhere);
        }
        let pinned = edit.pinned.as_ref().and_then(Option::as_ref);
        check_agent(self.pipeline(&story.project)?, pinned)?;
        if let Some(depends_on) = &edit.depends_on {
            self.check_dependencies(story, depends_on)?;
        }
        self.fact(StoryFact::Edited { story: story.clone(), edit: edit.clone() });
        Ok(self.changed(&story.project))
    }

    fn move_to(&mut self, story: &StoryRef, to: &StageName) -> Decided {
        let known = self.staying(story)?;
        let kind = kind_of(self.pipeline(&story.project)?, to)?;
        if known.stage == *to {
            return Ok(Scope::Nowhere);
        }
        let done = is_done(known, kind);
        self.fact(StoryFact::Moved { story: story.clone(), to: to.clone(), done });
        self.stop_if_it_does_not_belong(story);
        Ok(self.changed(&story.project))
    }

    fn hold(&mut self, story: &StoryRef, hold: Hold) -> Decided {
        let known = self.staying(story)?;
        match self.pipeline(&story.project)?.stage(&known.stage).map(|stage| &stage.kind) {
            Some(StageKind::Terminal { .. }) => {
                return Err(StoryRefusal::Ended(known.stage.clone()));
            }
            Some(StageKind::Work(_) | StageKind::Hold) | None => {}
        }
        match &known.hold {
            Some(old) if *old == hold => return Ok(Scope::Nowhere),
            Some(old) => return Err(StoryRefusal::Held(old.clone())),
            None => {}
        }
        self.fact(StoryFact::Held { story: story.clone(), hold });
        self.stop_if_it_does_not_belong(story);
        Ok(self.changed(&story.project))
    }

    fn unhold(&mut self, story: &StoryRef) -> Decided {
        let known = self.known(story)?;
        if known.hold.is_none() {
            return Ok(Scope::Nowhere);
        }
        let needs_agent =
            known.leaving.is_none() && needs_agent(self.pipeline(&story.project)?, known);
        if let Some(reached) = known.at_ceiling().filter(|_| needs_agent) {
            return Err(StoryRefusal::AtCeiling(reached));
        }
        self.fact(StoryFact::Unheld(story.clone()));
        Ok(self.changed(&story.project))
    }

    fn leave(&mut self, story: &StoryRef, how: Leave) -> Decided {
        let known = self.known(story)?;
        match known.leaving {
            Some(old) if old == how => return Ok(Scope::Nowhere),
            Some(old) => return Err(StoryRefusal::Leaving(old)),
            None => {}
        }
        let needed_by = self.needed_by(story);
        if how == Leave::Remove && !needed_by.is_empty() {
            return Err(StoryRefusal::NeededBy(needed_by));
        }
        self.fact(StoryFact::Leaving { story: story.clone(), how });
        self.stop_if_it_does_not_belong(story);
        Ok(self.changed(&story.project))
    }

    /// A pause moves only later, and only a person ends it sooner.
    pub(super) fn pause(&mut self, provider: &Provider, until_ms: Option<u64>) {
        let after = |ms| self.now_ms.saturating_add(ms);
        let said = until_ms.unwrap_or(after(PAUSE_UNSAID_MS));
        let until = said.clamp(after(PAUSE_LEAST_MS), after(PAUSE_MOST_MS));
        let old = self.stories.paused_until(provider, self.now_ms);
        // What is told again is the same pause, unless it says a later time.
        let news = match (old, until_ms) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(old), Some(said)) => said > old && until > old,
        };
        if news {
            self.fact(StoryFact::Paused { provider: provider.clone(), until_ms: until });
        }
    }

    fn unpause(&mut self, provider: &Provider) -> Scope {
        if self.stories.paused_until(provider, self.now_ms).is_none() {
            return Scope::Nowhere;
        }
        self.fact(StoryFact::Unpaused(provider.clone()));
        Scope::Everywhere
    }

    pub(super) fn pipeline(&self, project: &ProjectKey) -> Result<&Pipeline, StoryRefusal> {
        let known = self.stories.pipeline(project);
        known.ok_or_else(|| StoryRefusal::NoPipeline(project.clone()))
    }

    fn known(&self, story: &StoryRef) -> Result<&Story, StoryRefusal> {
        self.stories.story(story).ok_or_else(|| StoryRefusal::NoSuchStory(story.clone()))
    }

    /// The story, unless it is to go.
    fn staying(&self, story: &StoryRef) -> Result<&Story, StoryRefusal> {
        let known = self.known(story)?;
        match known.leaving {
            Some(how) => Err(StoryRefusal::Leaving(how)),
            None => Ok(known),
        }
    }

    /// Who is not done and depends on a story.
    fn needed_by(&self, story: &StoryRef) -> Vec<StoryId> {
        let all = self.stories.stories(&story.project);
        let waits = |known: &Story| !known.done && known.depends_on.contains(&story.id);
        all.filter(|(_, known)| waits(known)).map(|(id, _)| id.clone()).collect()
    }

    fn check_dependencies(
        &self,
        story: &StoryRef,
        on: &BTreeSet<StoryId>,
    ) -> Result<(), StoryRefusal> {
        for id in on.iter().filter(|id| **id != story.id) {
            let other = StoryRef::new(&story.project, id);
            let archived = matches!(self.stories.gone(&other), Some(Gone::Archived { .. }));
            if self.stories.story(&other).is_none() && !archived {
                return Err(StoryRefusal::UnknownDependency(id.clone()));
            }
        }
        match self.cycle(story, on) {
            Some(cycle) => Err(StoryRefusal::Cycle(cycle)),
            None => Ok(()),
        }
    }

    /// The way from a story over what it would depend on back to itself, if there is one.
    fn cycle(&self, story: &StoryRef, on: &BTreeSet<StoryId>) -> Option<Vec<StoryId>> {
        // Whom each was reached from.
        let mut from: BTreeMap<StoryId, StoryId> = BTreeMap::new();
        let mut open: Vec<(StoryId, StoryId)> =
            on.iter().rev().map(|id| (id.clone(), story.id.clone())).collect();
        while let Some((id, by)) = open.pop() {
            if id == story.id {
                let mut way = vec![id, by];
                while let Some(before) = way.last().and_then(|last| from.get(last)) {
                    way.push(before.clone());
                }
                way.reverse();
                return Some(way);
            }
            if from.contains_key(&id) {
                continue;
            }
            if let Some(known) = self.stories.story(&StoryRef::new(&story.project, &id)) {
                open.extend(known.depends_on.iter().rev().map(|on| (on.clone(), id.clone())));
            }
            from.insert(id, by);
        }
        None
    }
}

/// Whether a story is done once it is in a stage of this kind. What was done and is put into
/// another end stays done.
pub(super) fn is_done(story: &Story, kind: &StageKind) -> bool {
    match kind {
        StageKind::Terminal { success } => *success || story.done,
        StageKind::Work(_) | StageKind::Hold => false,
    }
}

fn kind_of<'a>(pipeline: &'a Pipeline, stage: &StageName) -> Result<&'a StageKind, StoryRefusal> {
    match pipeline.stage(stage) {
        Some(known) => Ok(&known.kind),
        None => {
            let known = pipeline.stages.iter().map(|stage| stage.name.clone()).collect();
            Err(StoryRefusal::NoSuchStage { stage: stage.clone(), known })
        }
    }
}

fn check_agent(pipeline: &Pipeline, agent: Option<&AgentName>) -> Result<(), StoryRefusal> {
    match agent.filter(|agent| pipeline.agent(agent).is_none()) {
        None => Ok(()),
        Some(agent) => {
            let known = pipeline.agents.iter().map(|agent| agent.name.clone()).collect();
            Err(StoryRefusal::NoSuchAgent { agent: agent.clone(), known })
        }
    }
}
