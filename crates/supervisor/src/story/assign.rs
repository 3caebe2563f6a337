//! Who works on what: stages in order, in each the higher priority first, then the older story.
//! Owns the one verdict on a story that both the assignment and its explanation follow, so that
//! what is explained is what happens.
//!
//! Within one pass things are only taken and never freed: whoever was passed over at its turn is
//! passed over for the same reason at the end of it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::decide::{Draft, Scope, is_done};
use super::effect::StoryEffect;
use super::fact::StoryFact;
use super::names::{AgentName, ProjectKey, Provider, StageName, StepId, StoryId, StoryRef};
use super::pipeline::{Pipeline, Stage, StageKind, WorkRule};
use super::state::{Blocked, Gone, Hold, Progress, Project, Stories, Story, Tree, Wait, Why, Work};

/// Why a story has no step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is in a stage that ends it.
    Ended,
    /// It is in a stage where nothing is done, or has nobody to do it: somebody moves it on.
    WaitsForMove,
    /// Its stage is not in the pipeline any more: somebody moves it.
    StageGone(StageName),
    /// It is held.
    Held(Hold),
    /// These are not done.
    DependsOn(Vec<StoryId>),
    /// A run of it that is not its step any more has not ended.
    Stray(StepId),
    /// Something is tried again later.
    Waits(Wait),
    /// As many stories have a step in its stage as may.
    StageFull {
        /// So many.
        max: u32,
    },
    /// All its stage's agents are busy.
    AgentsBusy,
    /// No agent of its stage is served; this one is the first that will be.
    Paused {
        /// By whom.
        provider: Provider,
        /// Until when.
        until_ms: u64,
    },
    /// Nothing is against it any more: it has one after the next look.
    Ready,
}

/// What is to be done for a story that has no step.
enum Verdict {
    Start(Work),
    /// Its stage is complete.
    Advance(StageName),
    /// Nothing is left of it but its entry.
    Leave,
    Block(Blocked),
    Wait(Reason),
}

/// What comes next in a stage.
enum Next<'a> {
    Agent(&'a Why),
    Work(Work),
    Complete,
    Nothing,
}

/// What is taken in a project.
#[derive(Default)]
struct Taken {
    stages: BTreeMap<StageName, u32>,
    instances: BTreeMap<AgentName, BTreeSet<u32>>,
    /// Stages without a free agent, and why: nobody is free again while we look.
    without: BTreeMap<StageName, Reason>,
}

impl Stories {
    /// Why a story has no step; none if it has one, or is not there.
    #[must_use]
    pub fn why_waiting(&self, story: &StoryRef, now_ms: u64) -> Option<Reason> {
        let project = self.projects.get(&story.project)?;
        let known = project.stories.get(&story.id)?;
        let look = Look { stories: self, project, now_ms };
        look.reason(story, known, &mut Taken::in_project(project))
    }

    /// The same of every story of a project that has no step, by its id.
    #[must_use]
    pub fn all_waiting(&self, project: &ProjectKey, now_ms: u64) -> Vec<(StoryId, Reason)> {
        let Some(known) = self.projects.get(project) else { return Vec::new() };
        let look = Look { stories: self, project: known, now_ms };
        let mut taken = Taken::in_project(known);
        let reasons = known.stories.iter().filter_map(|(id, story)| {
            let reason = look.reason(&StoryRef::new(project, id), story, &mut taken)?;
            Some((id.clone(), reason))
        });
        reasons.collect()
    }

    /// When a wait or a pause is over next: a [`super::StoryEvent::Tick`] before changes nothing.
    #[must_use]
    pub fn next_wake(&self, now_ms: u64) -> Option<u64> {
        let stories = self.projects.values().flat_map(|project| project.stories.values());
        let waits = stories.filter(|story| story.step.is_none()).filter_map(|story| story.wait);
        let open = waits.filter(|wait| !wait.is_over(now_ms)).map(|wait| wait.end_ms());
        let pauses = self.pauses.values().filter_map(|pause| pause.until_ms);
        open.chain(pauses.filter(|until| now_ms < *until)).min()
    }
}

impl Draft {
    /// Gives every story the step it can have.
    pub(super) fn assign(&mut self, scope: &Scope) {
        match scope {
            Scope::Nowhere => {}
            Scope::Project(project) => self.assign_in(project),
            Scope::Everywhere => {
                let projects: Vec<ProjectKey> = self.stories.projects().cloned().collect();
                projects.iter().for_each(|project| self.assign_in(project));
            }
        }
    }

    fn assign_in(&mut self, project: &ProjectKey) {
        // What is done here can free what waits for it: until nothing moves. Each pass but the
        // last moves a story, and no stage is complete when it is entered.
        while self.settle_in(project) {}
        let Some(known) = self.stories.projects.get(project) else { return };
        let mut taken = Taken::in_project(known);
        for id in in_turn(known) {
            let story = StoryRef::new(project, &id);
            match self.verdict(&story, &mut taken) {
                Some(Verdict::Start(work)) => {
                    self.begin(&story, work, &mut taken);
                }
                Some(Verdict::Block(blocked)) => {
                    self.fact(StoryFact::Held { story, hold: Hold::Blocked(blocked) });
                }
                Some(Verdict::Advance(_) | Verdict::Leave | Verdict::Wait(_)) | None => {}
            }
        }
    }

    /// Moves on whose stage is complete, and lets go who is to. True if there was anybody.
    fn settle_in(&mut self, project: &ProjectKey) -> bool {
        let Some(known) = self.stories.projects.get(project) else { return false };
        let look = Look { stories: &self.stories, project: known, now_ms: self.now_ms };
        let settled: Vec<(StoryId, Option<(StageName, bool)>)> = known
            .stories
            .iter()
            .filter_map(|(id, story)| look.settled(project, id, story))
            .collect();
        let any = !settled.is_empty();
        for (id, to) in settled {
            let story = StoryRef::new(project, &id);
            self.fact(match to {
                Some((to, done)) => StoryFact::Advanced { story, to, done },
                None => StoryFact::Left(story),
            });
        }
        any
    }

    fn verdict(&self, story: &StoryRef, taken: &mut Taken) -> Option<Verdict> {
        let project = self.stories.projects.get(&story.project)?;
        let known = project.stories.get(&story.id)?;
        let look = Look { stories: &self.stories, project, now_ms: self.now_ms };
        look.verdict(story, known, taken)
    }

    fn begin(&mut self, story: &StoryRef, work: Work, taken: &mut Taken) {
        let Some(known) = self.stories.story(story) else { return };
        let (stage, left) = (known.stage.clone(), known.left());
        let step = story.step(known.steps.saturating_add(1));
        taken.take(&stage, &work);
        self.fact(StoryFact::StepBegun { step: step.clone(), work: work.clone() });
        self.effect(StoryEffect::StartStep { step, stage, work, left });
    }
}

/// Who may get a step, in the order of their turns. Who is to go comes first: it takes nothing.
fn in_turn(project: &Project) -> Vec<StoryId> {
    let order = |(n, stage): (usize, &Stage)| (stage.name.clone(), n + 1);
    let order: BTreeMap<StageName, usize> =
        project.pipeline.stages.iter().enumerate().map(order).collect();
    let mut turns = Vec::new();
    for (id, story) in &project.stories {
        if story.step.is_some() || story.hold.is_some() {
            continue;
        }
        let stage = if story.leaving.is_some() { Some(&0) } else { order.get(&story.stage) };
        if let Some(stage) = stage {
            turns.push((*stage, Reverse(story.priority), story.added, id));
        }
    }
    turns.sort_unstable();
    turns.into_iter().map(|(_, _, _, id)| id.clone()).collect()
}

/// Everything as it is, seen from one project.
struct Look<'a> {
    stories: &'a Stories,
    project: &'a Project,
    now_ms: u64,
}

impl Look<'_> {
    fn reason(&self, story: &StoryRef, known: &Story, taken: &mut Taken) -> Option<Reason> {
        match self.verdict(story, known, taken)? {
            Verdict::Wait(reason) => Some(reason),
            Verdict::Start(_) | Verdict::Advance(_) | Verdict::Leave | Verdict::Block(_) => {
                Some(Reason::Ready)
            }
        }
    }

    /// What is to be done for a story; none if it has a step.
    fn verdict(&self, story: &StoryRef, known: &Story, taken: &mut Taken) -> Option<Verdict> {
        if known.step.is_some() {
            return None;
        }
        let verdict = match self.against(story, known) {
            Some(reason) => Verdict::Wait(reason),
            None if known.leaving.is_some() => self.leaving(known),
            None => self.in_stage(known, taken),
        };
        Some(verdict)
    }

    /// What is against anything at all, for who stays and for who goes.
    fn against(&self, story: &StoryRef, known: &Story) -> Option<Reason> {
        if let Some(stray) = self.stories.strays_of(story).next() {
            return Some(Reason::Stray(stray.clone()));
        }
        known.hold.clone().map(Reason::Held)
    }

    fn leaving(&self, known: &Story) -> Verdict {
        match (known.tree, self.waits(known)) {
            (Tree::None, _) => Verdict::Leave,
            (Tree::Unsettled | Tree::Ready, Some(wait)) => Verdict::Wait(Reason::Waits(wait)),
            (Tree::Unsettled | Tree::Ready, None) => Verdict::Start(Work::Remove),
        }
    }

    fn waits(&self, known: &Story) -> Option<Wait> {
        known.wait.filter(|wait| !wait.is_over(self.now_ms))
    }

    fn in_stage(&self, known: &Story, taken: &mut Taken) -> Verdict {
        let pipeline = &self.project.pipeline;
        let rule = match pipeline.stage(&known.stage).map(|stage| &stage.kind) {
            Some(StageKind::Work(rule)) => rule,
            Some(StageKind::Hold) => return Verdict::Wait(Reason::WaitsForMove),
            Some(StageKind::Terminal { .. }) => return Verdict::Wait(Reason::Ended),
            None => return Verdict::Wait(Reason::StageGone(known.stage.clone())),
        };
        let unmet = self.unmet(known);
        if !unmet.is_empty() {
            return Verdict::Wait(Reason::DependsOn(unmet));
        }
        let next = next_in(rule, &known.progress);
        match (&next, known.at_ceiling()) {
            (Next::Nothing, _) => return Verdict::Wait(Reason::WaitsForMove),
            (Next::Complete, _) => return Verdict::Advance(rule.next.clone()),
            (Next::Agent(_), Some(reached)) => return Verdict::Block(reached),
            (Next::Agent(_), None) | (Next::Work(_), _) => {}
        }
        if let Some(wait) = self.waits(known) {
            return Verdict::Wait(Reason::Waits(wait));
        }
        if let Some(max) = rule.max_runs.filter(|max| taken.in_stage(&known.stage) >= *max) {
            return Verdict::Wait(Reason::StageFull { max });
        }
        match self.work(known, rule, next, taken) {
            Ok(work) => Verdict::Start(work),
            Err(reason) => Verdict::Wait(reason),
        }
    }

    fn work(
        &self,
        known: &Story,
        rule: &WorkRule,
        next: Next<'_>,
        taken: &mut Taken,
    ) -> Result<Work, Reason> {
        let (work, agent) = match next {
            Next::Agent(why) => {
                let (agent, instance) = self.free_agent(known, rule, taken)?;
                let work = self.agent_work(known, &agent, instance, why);
                (work, Some((agent, instance)))
            }
            Next::Work(work) => (work, None),
            Next::Complete | Next::Nothing => return Err(Reason::WaitsForMove),
        };
        match known.tree {
            Tree::Ready => Ok(work),
            Tree::None | Tree::Unsettled => Ok(Work::Prepare { agent }),
        }
    }

    fn agent_work(&self, known: &Story, agent: &AgentName, instance: u32, why: &Why) -> Work {
        let rule = self.project.pipeline.agent(agent);
        let model = rule.map_or_else(|| "".into(), |rule| rule.model.clone());
        let key = (agent.clone(), model.clone());
        let resumes = rule.is_some_and(|rule| rule.resumes);
        let session = known.sessions.get(&key).filter(|_| resumes).cloned();
        Work::Agent { agent: agent.clone(), instance, model, session, why: why.clone() }
    }

    /// The pinned agent if it is free, else the first of the stage that is.
    fn free_agent(
        &self,
        known: &Story,
        rule: &WorkRule,
        taken: &mut Taken,
    ) -> Result<(AgentName, u32), Reason> {
        if let Some(reason) = taken.without.get(&known.stage) {
            return Err(reason.clone());
        }
        let pinned = known.pinned.iter().filter(|pinned| rule.agents.contains(pinned));
        let mut paused: Option<(u64, Provider)> = None;
        let mut busy = false;
        for name in pinned.chain(&rule.agents) {
            let Some(agent) = self.project.pipeline.agent(name) else { continue };
            if let Some(until) = self.stories.paused_until(&agent.provider, self.now_ms) {
                if paused.as_ref().is_none_or(|(first, _)| until < *first) {
                    paused = Some((until, agent.provider.clone()));
                }
                continue;
            }
            match taken.free_instance(name, agent.max_instances) {
                Some(instance) => return Ok((name.clone(), instance)),
                None => busy = true,
            }
        }
        let reason = match paused {
            Some((until_ms, provider)) if !busy => Reason::Paused { provider, until_ms },
            Some(_) | None => Reason::AgentsBusy,
        };
        taken.without.insert(known.stage.clone(), reason.clone());
        Err(reason)
    }

    fn unmet(&self, known: &Story) -> Vec<StoryId> {
        let met = |id: &&StoryId| match self.project.stories.get(*id) {
            Some(other) => other.done,
            None => matches!(self.project.gone.get(*id), Some(Gone::Archived { done: true })),
        };
        known.depends_on.iter().filter(|id| !met(id)).cloned().collect()
    }

    /// What becomes of a story without a step: where it goes, or nothing if it is to leave.
    fn settled(
        &self,
        project: &ProjectKey,
        id: &StoryId,
        known: &Story,
    ) -> Option<(StoryId, Option<(StageName, bool)>)> {
        // Most are not; what is taken matters to neither.
        let may = known.leaving.is_some() || !matches!(known.progress, Progress::Fresh(_));
        if known.step.is_some() || !may {
            return None;
        }
        match self.verdict(&StoryRef::new(project, id), known, &mut Taken::default())? {
            Verdict::Advance(to) => {
                let done = becomes_done(&self.project.pipeline, known, &to);
                Some((id.clone(), Some((to, done))))
            }
            Verdict::Leave => Some((id.clone(), None)),
            Verdict::Start(_) | Verdict::Block(_) | Verdict::Wait(_) => None,
        }
    }
}

/// True if what comes next for a story takes an agent.
pub(super) fn needs_agent(pipeline: &Pipeline, story: &Story) -> bool {
    let rule = pipeline.work(&story.stage);
    rule.is_some_and(|rule| matches!(next_in(rule, &story.progress), Next::Agent(_)))
}

fn becomes_done(pipeline: &Pipeline, story: &Story, to: &StageName) -> bool {
    pipeline.stage(to).is_some_and(|stage| is_done(story, &stage.kind))
}

/// What comes next in a stage that a story has come so far in.
fn next_in<'a>(rule: &WorkRule, progress: &'a Progress) -> Next<'a> {
    let gate = |n| match n {
        n if n < rule.gates => Next::Work(Work::Gate { n }),
        _ if rule.merge => Next::Work(Work::Land),
        _ => Next::Complete,
    };
    let after_work = || if rule.merge { Next::Work(Work::Merge) } else { gate(0) };
    match progress {
        Progress::Fresh(why) if !rule.agents.is_empty() => Next::Agent(why),
        Progress::Fresh(_) if rule.gates == 0 && !rule.merge => Next::Nothing,
        Progress::Fresh(_) | Progress::Worked => after_work(),
        Progress::Gated(n) => gate(*n),
        Progress::Landed => Next::Complete,
    }
}

impl Taken {
    fn in_project(project: &Project) -> Self {
        let mut taken = Self::default();
        for step in project.stories.values().filter_map(|story| story.step.as_ref()) {
            taken.take(&step.stage, &step.work);
        }
        taken
    }

    fn take(&mut self, stage: &StageName, work: &Work) {
        if *work == Work::Remove {
            return;
        }
        *self.stages.entry(stage.clone()).or_default() += 1;
        if let Some((agent, instance)) = work.agent() {
            self.instances.entry(agent.clone()).or_default().insert(instance);
        }
    }

    fn in_stage(&self, stage: &StageName) -> u32 {
        self.stages.get(stage).copied().unwrap_or(0)
    }

    /// The lowest instance of an agent that is not taken. A limit that was lowered meanwhile
    /// counts all that live.
    fn free_instance(&self, agent: &AgentName, max: u32) -> Option<u32> {
        let Some(taken) = self.instances.get(agent) else { return Some(1) };
        if taken.len() as u64 >= u64::from(max) {
            return None;
        }
        (1..=max).find(|instance| !taken.contains(instance))
    }
}
