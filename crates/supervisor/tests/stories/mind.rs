//! What tests of stories begin with: a pipeline, names, and a mind that is told things and is
//! looked at after each. Owns the promises that hold after every decision, whatever it was about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kennel_supervisor::story::{
    AgentRule, BackOff, Ceilings, Hold, NewStory, Outcome, Pipeline, Reason, Role, Session, Stage,
    StageKind, StepId, StepPhase, Stories, Story, StoryDecision, StoryEffect, StoryEvent,
    StoryFact, StoryRef, StoryRefusal, Tree, Used, Work, WorkRule, decide_story,
};

/// The first wait before a retry.
pub(crate) const BACK_OFF_MS: u64 = 100;

/// Backlog, current (two coders, two gates), qa (a reviewer), merge (a gate), done, archived and
/// parked.
pub(crate) fn pipeline() -> Pipeline {
    let work = |agents: &[&str], gates, merge, next: &str, on_failure: Option<&str>| {
        StageKind::Work(WorkRule {
            agents: agents.iter().map(|name| (*name).into()).collect(),
            gates,
            merge,
            next: next.into(),
            on_failure: on_failure.map(Into::into),
            max_runs: None,
        })
    };
    let stage = |name: &str, kind| Stage { name: name.into(), kind };
    Pipeline {
        stages: vec![
            stage("backlog", work(&[], 0, false, "current", None)),
            stage("current", work(&["ann", "bob"], 2, false, "qa", None)),
            stage("qa", work(&["rev"], 0, false, "merge", Some("current"))),
            stage("merge", work(&[], 1, true, "done", None)),
            stage("done", StageKind::Terminal { success: true }),
            stage("archived", StageKind::Terminal { success: false }),
            stage("parked", StageKind::Hold),
        ],
        agents: vec![
            agent("ann", Role::Coder, "north"),
            agent("bob", Role::Coder, "south"),
            agent("rev", Role::Qa, "north"),
        ],
        max_retries: 2,
        back_off: BackOff { first_ms: BACK_OFF_MS, most_ms: 150 },
    }
}

fn agent(name: &str, role: Role, provider: &str) -> AgentRule {
    let model = format!("{name}-1").as_str().into();
    let (name, provider) = (name.into(), provider.into());
    AgentRule { name, role, max_instances: 1, provider, model, resumes: true }
}

pub(crate) fn story(project: &str, id: &str) -> StoryRef {
    StoryRef::new(&project.into(), &id.into())
}

pub(crate) fn step(story: &StoryRef, number: u32) -> StepId {
    StepId { story: story.clone(), number }
}

pub(crate) fn new_story(stage: &str) -> NewStory {
    NewStory {
        stage: stage.into(),
        pinned: None,
        depends_on: BTreeSet::new(),
        priority: 0,
        ceilings: Ceilings::default(),
    }
}

pub(crate) fn read(project: &str, pipeline: Pipeline) -> StoryEvent {
    StoryEvent::PipelineRead { project: project.into(), pipeline: Arc::new(pipeline) }
}

pub(crate) fn add(story: &StoryRef, new: NewStory) -> StoryEvent {
    StoryEvent::AddRequested { story: story.clone(), new }
}

pub(crate) fn ended(step: StepId, outcome: Outcome) -> StoryEvent {
    StoryEvent::StepEnded { step, outcome, used: Used::default(), session: None }
}

/// A mind that is told things, in a time that passes when the test says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mind {
    pub(crate) stories: Stories,
    pub(crate) now_ms: u64,
    /// All that became true.
    pub(crate) facts: Vec<StoryFact>,
    /// How often each notice was told.
    pub(crate) told: BTreeMap<String, u32>,
}

impl Mind {
    /// What follows from an event, made true. Nothing, if it is refused.
    pub(crate) fn tell(&mut self, event: &StoryEvent) -> Result<Vec<StoryEffect>, StoryRefusal> {
        let decision = decide_story(&self.stories, event, self.now_ms);
        assert_eq!(decision, decide_story(&self.stories, event, self.now_ms), "decided by chance");
        let (facts, effects) = match decision {
            StoryDecision::Do { facts, effects } => (facts, effects),
            StoryDecision::AlreadySo => (vec![], vec![]),
            StoryDecision::Refused(refusal) => return Err(refusal),
        };
        let old = self.stories.clone();
        let before = self.stories.before();
        for fact in &facts {
            self.take(fact);
        }
        let mut undone = self.stories.clone();
        undone.undo(before);
        assert_eq!(undone, old, "what is undone");
        self.check_effects(event, &effects);
        self.check();
        self.check_told_again(event);
        Ok(effects)
    }

    fn take(&mut self, fact: &StoryFact) {
        if let StoryFact::StepBegun { step, .. } = fact {
            let known = self.stories.story(&step.story).expect("a step of nobody");
            assert_eq!(known.step, None, "a second step: {fact:?}");
            assert_eq!(known.hold, None, "a step of a held story: {fact:?}");
            assert_eq!(step.number, known.steps + 1, "a number is given twice: {fact:?}");
            assert!(!self.stories.strays().any(|stray| stray.story == step.story), "{fact:?}");
        }
        if let Some(notice) = self.stories.notice_of(fact) {
            let told =
                self.told.entry(format!("{:?} {:?}", notice.about, notice.kind)).or_default();
            *told += 1;
            assert_eq!(notice.n, *told, "{notice:?} of {fact:?}");
        }
        self.stories.apply(fact);
        self.facts.push(fact.clone());
    }

    /// What is to be started is its story's step, and what is to be stopped is not to go on.
    fn check_effects(&self, event: &StoryEvent, effects: &[StoryEffect]) {
        for effect in effects {
            match effect {
                StoryEffect::StartStep { step, stage, work, .. } => {
                    let known = self.stories.story(&step.story).expect("a step of nobody");
                    let current = known.step.as_ref().expect("it has one");
                    assert_eq!(known.hold, None, "started for a held story: {event:?}");
                    assert_eq!(&known.stage, stage, "started for another stage: {event:?}");
                    assert_eq!((current.number, &current.work), (step.number, work));
                    assert_eq!(current.phase, StepPhase::Asked);
                }
                StoryEffect::StopStep(step) => {
                    let known = self.stories.story(&step.story).and_then(|s| s.step.as_ref());
                    let current = known.filter(|current| current.number == step.number);
                    let stray = self.stories.strays().any(|stray| stray == step);
                    let stops = current.is_some_and(|s| s.phase == StepPhase::Stopping);
                    assert!(stray || stops, "{step} is stopped without a fact: {event:?}");
                }
                StoryEffect::AskStep(_) => {}
            }
        }
    }

    /// All that became true, made true again, is what is believed.
    pub(crate) fn check_replay(&self) {
        let mut replayed = Stories::default();
        self.facts.iter().for_each(|fact| replayed.apply(fact));
        assert_eq!(replayed, self.stories, "what is replayed");
    }

    /// What holds after every decision.
    fn check(&self) {
        for project in self.stories.projects() {
            let pipeline = self.stories.pipeline(project).expect("it has one");
            let mut busy = BTreeMap::<_, BTreeSet<u32>>::new();
            for (id, known) in self.stories.stories(project) {
                check_step(pipeline, known);
                let agent = known.step.as_ref().and_then(|step| step.work.agent());
                if let Some((agent, instance)) = agent {
                    let fresh = busy.entry(agent.clone()).or_default().insert(instance);
                    assert!(fresh, "{project}/{id}: {agent} {instance} works twice");
                }
                let why = self.stories.why_waiting(&StoryRef::new(project, id), self.now_ms);
                assert_eq!(why.is_none(), known.step.is_some(), "{project}/{id}: {why:?}");
            }
        }
    }

    /// What is told again is no news.
    fn check_told_again(&self, event: &StoryEvent) {
        match decide_story(&self.stories, event, self.now_ms) {
            StoryDecision::Do { facts, .. } => assert_eq!(facts, [], "told again: {event:?}"),
            StoryDecision::AlreadySo | StoryDecision::Refused(_) => {}
        }
    }

    /// Something that is not refused.
    pub(crate) fn must(&mut self, event: &StoryEvent) -> Vec<StoryEffect> {
        let told = self.tell(event);
        self.check_replay();
        told.unwrap_or_else(|refusal| panic!("{event:?} was refused: {refusal:?}"))
    }

    pub(crate) fn story(&self, story: &StoryRef) -> &Story {
        self.stories.story(story).expect("it is there")
    }

    pub(crate) fn why(&self, story: &StoryRef) -> Option<Reason> {
        self.stories.why_waiting(story, self.now_ms)
    }

    /// The work of a story's step.
    pub(crate) fn work(&self, story: &StoryRef) -> Option<&Work> {
        self.story(story).step.as_ref().map(|step| &step.work)
    }

    /// Ends the step of a story; it was alive.
    pub(crate) fn end(&mut self, story: &StoryRef, outcome: Outcome) -> Vec<StoryEffect> {
        self.end_with(story, outcome, Used::default(), None)
    }

    pub(crate) fn end_with(
        &mut self,
        of: &StoryRef,
        outcome: Outcome,
        used: Used,
        session: Option<Session>,
    ) -> Vec<StoryEffect> {
        let number = self.story(of).step.as_ref().expect("it has a step").number;
        self.must(&StoryEvent::StepStarted(step(of, number)));
        self.must(&StoryEvent::StepEnded { step: step(of, number), outcome, used, session })
    }
}

/// A step is one that its story should have, or is about to end, or is short work of our own.
fn check_step(pipeline: &Pipeline, known: &Story) {
    let Some(current) = &known.step else { return };
    let ends = matches!(current.phase, StepPhase::Stopping | StepPhase::Lost { .. });
    let ours = matches!(current.work, Work::Merge | Work::Land | Work::Remove);
    let work = pipeline.stage(&known.stage).is_none_or(|s| matches!(s.kind, StageKind::Work(_)));
    let right = current.entry == known.entry && work && known.hold.is_none();
    let staying = known.leaving.is_none() || current.work == Work::Remove;
    assert!(ends || ours || (right && staying), "a step that should not be: {known:?}");
    if !matches!(current.work, Work::Prepare { .. } | Work::Remove) {
        assert_eq!(known.tree, Tree::Ready, "work without a worktree: {known:?}");
    }
    assert!(known.hold != Some(Hold::Frozen) || ends || ours, "{known:?}");
}
