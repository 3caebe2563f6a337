//! The mind of stories against a model of it: the promises of the design once more, in other words.
//!
//! The model is one list of stories that is changed in place and searched from its beginning for
//! every question; the mind keeps shared maps, and facts between deciding and changing. Every event
//! has the same answer in both and leaves both believing the same, and every story that has no step
//! waits for the same reason in both. [`every_short_life_of_a_story`] leaves out nothing that a few
//! events can bring one story to; [`random_events_among_many_stories`] goes where that does not
//! reach, and makes what fails short before it shows it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::mind::{Mind, add, ended, new_story, pipeline, read, step, story};
use crate::seeded::{Rng, seeds};
use kennel_supervisor::story::{
    Blocked, Cause, Ceiling, Ceilings, Edit, Gone, Hold, Leave, Left, NewStory, Outcome, Pipeline,
    Progress, Reason, Role, Seen, SeenStep, StageKind, StepId, StepPhase, Story, StoryEffect,
    StoryEvent, StoryId, StoryRef, StoryRefusal, Tail, Tree, TurnedAway, Used, Wait, WaitFor, Why,
    Work, WorkRule,
};

/// Random sequences of events that are tried.
const SEQUENCES: u64 = 300;
/// Events in each: enough for a story to come through the whole pipeline and back.
const EVENTS: usize = 120;
/// Events in a row of which everything is tried.
const DEPTH: usize = 5;

const PROJECTS: [&str; 2] = ["p", "q"];
const IDS: [&str; 4] = ["1", "2", "3", "4"];
const STAGES: [&str; 7] = ["backlog", "current", "qa", "merge", "done", "archived", "parked"];

/// Something that happens so many milliseconds after what came before it.
type Then = (u64, StoryEvent);

#[test]
fn every_short_life_of_a_story() {
    let s = story("p", "1");
    let mut first = (Mind { now_ms: 1_000, ..Mind::default() }, Model::default());
    check_step(&mut first, &(0, read("p", short_pipeline()))).expect("it begins");
    check_step(&mut first, &(0, add(&s, new_story("do")))).expect("it begins");
    let mut seen = BTreeSet::from([picture_of(&first.0, &s)]);
    let mut open = VecDeque::from([(first, 0)]);
    while let Some((at, depth)) = open.pop_front() {
        for event in short_events(&at.0, &s) {
            let mut next = at.clone();
            if let Err(why) = check_step(&mut next, &event) {
                panic!("{why}\nafter {:#?}\nand {event:?}", at.0.facts);
            }
            if depth + 1 < DEPTH && seen.insert(picture_of(&next.0, &s)) {
                open.push_back((next, depth + 1));
            }
        }
    }
    assert!(seen.len() > 1000, "only {} states were reached", seen.len());
}

#[test]
fn random_events_among_many_stories() {
    for seed in seeds(SEQUENCES) {
        let mut rng = Rng::new(seed);
        let mut both = begin();
        let mut events = vec![];
        for _ in 0..EVENTS {
            let event = any_event(&mut rng, &both.0);
            events.push(event.clone());
            if let Err(why) = check_step(&mut both, &event) {
                let (short, why) = shortest(events, why);
                panic!("{why}\nKENNEL_SEED={seed}, after:\n{short:#?}");
            }
        }
        both.0.check_replay();
    }
}

#[test]
fn random_lives_come_everywhere() {
    // What the random events must reach for the test above to mean anything.
    let mut reached = BTreeSet::new();
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut both = begin();
        for _ in 0..EVENTS {
            let event = any_event(&mut rng, &both.0);
            let _ = check_step(&mut both, &event);
            for known in &both.1.stories {
                reached.insert(format!("{:?}", known.tree));
                reached.extend(known.step.as_ref().map(|step| name_of(&step.work)));
                let phase = known.step.as_ref().map(|step| format!("{:?}", step.phase));
                reached.extend(phase.map(|phase| first_word(&phase)));
                reached.extend(known.hold.as_ref().map(|hold| first_word(&format!("{hold:?}"))));
                let why = both.1.why(known, both.0.now_ms);
                reached.extend(why.map(|why| first_word(&format!("{why:?}"))));
            }
        }
    }
    let must = "Prepare Agent Merge Gate Land Remove Asked Alive Stopping Lost None Unsettled \
        Ready Frozen Blocked_ByUser Blocked_Retries Blocked_Ceiling Blocked_Lost Blocked_Drifted \
        Blocked_TreeStays Ended WaitsForMove Held DependsOn Stray Waits StageFull AgentsBusy \
        Paused";
    let missing: Vec<&str> = must.split_whitespace().filter(|m| !reached.contains(*m)).collect();
    assert!(missing.is_empty(), "never reached: {missing:?} of {reached:?}");
}

fn first_word(debug: &str) -> String {
    let words = debug.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.take(2).collect();
    let blocked = words[0] == "Blocked" && words.len() > 1;
    if blocked { words.join("_") } else { words[0].to_owned() }
}

fn name_of(work: &Work) -> String {
    first_word(&format!("{work:?}"))
}

// The model.

#[derive(Clone, Debug, Default)]
struct Model {
    pipelines: Vec<(String, Pipeline)>,
    /// In the order in which they were added.
    stories: Vec<Known>,
    gone: Vec<(StoryRef, Gone)>,
    strays: Vec<StepId>,
    pauses: Vec<(String, u64)>,
}

#[derive(Clone, Debug)]
struct Known {
    name: StoryRef,
    stage: String,
    entry: u32,
    progress: Progress,
    done: bool,
    hold: Option<Hold>,
    leaving: Option<Leave>,
    wish: NewStory,
    used: Used,
    /// The stage of each retry since somebody looked.
    burnt: Vec<String>,
    burnt_ever: u32,
    misfires: u32,
    away: u32,
    base_moved: u32,
    wait: Option<Wait>,
    sessions: BTreeMap<(String, String), String>,
    tree: Tree,
    step: Option<Doing>,
    steps: u32,
}

#[derive(Clone, Debug)]
struct Doing {
    number: u32,
    stage: String,
    entry: u32,
    work: Work,
    phase: StepPhase,
    counted: Used,
}

type Answer = Result<Vec<StoryEffect>, StoryRefusal>;

impl Model {
    fn answer(&mut self, event: &StoryEvent, now: u64) -> Answer {
        let mut out = vec![];
        let changes = match event {
            StoryEvent::PipelineRead { project, pipeline } => {
                pipeline.check().map_err(StoryRefusal::BadPipeline)?;
                let old = self.pipelines.iter_mut().find(|(name, _)| name == project.as_str());
                let pipeline = (**pipeline).clone();
                let unconfigured = WaitFor::TurnedAway(TurnedAway::Unconfigured);
                let mut waited = false;
                for known in self.stories.iter_mut().filter(|s| s.name.project == *project) {
                    if known.wait.is_some_and(|wait| wait.why == unconfigured) {
                        known.wait = None;
                        waited = true;
                    }
                }
                let changes = match old {
                    Some((_, old)) if *old == pipeline => waited,
                    Some((_, old)) => {
                        *old = pipeline;
                        true
                    }
                    None => {
                        self.pipelines.push((project.to_string(), pipeline));
                        true
                    }
                };
                self.stop_misplaced(&mut out);
                changes
            }
            StoryEvent::PipelineUnreadable(_) => false,
            StoryEvent::AddRequested { story, new } => self.added(story, new)?,
            StoryEvent::EditRequested { story, edit } => self.edited(story, edit)?,
            StoryEvent::MoveRequested { story, to } => self.moved(story, to.as_str(), &mut out)?,
            StoryEvent::FreezeRequested(story) => self.held(story, Hold::Frozen, &mut out)?,
            StoryEvent::BlockRequested(story) => {
                self.held(story, Hold::Blocked(Blocked::ByUser), &mut out)?
            }
            StoryEvent::UnholdRequested(story) => self.unheld(story)?,
            StoryEvent::LeaveRequested { story, how } => self.leaves(story, *how, &mut out)?,
            StoryEvent::StepStarted(step) => {
                self.seen_alive(step, false, true, &mut out);
                return Ok(out);
            }
            StoryEvent::StepRefused { step, why } => self.refused(step, *why, now),
            StoryEvent::StepEnded { step, outcome, used, session } => {
                let session = session.as_ref().map(ToString::to_string);
                self.ended(step, outcome, *used, session, now)
            }
            StoryEvent::RateLimited { provider, until_ms } => {
                self.pause(provider.as_str(), *until_ms, now);
                false
            }
            StoryEvent::UnpauseRequested(provider) => {
                let old = self.pauses.len();
                self.pauses.retain(|(name, until)| name != provider.as_str() || *until <= now);
                self.pauses.len() < old
            }
            StoryEvent::Tick => true,
            StoryEvent::Reconcile(Seen::Unreadable) => false,
            StoryEvent::Reconcile(Seen::Steps(seen)) => {
                self.stop_misplaced(&mut out);
                let stopped = out.clone();
                for seen in seen {
                    self.seen_alive(&seen.step, seen.stopping, false, &mut out);
                }
                self.ask(seen, &mut out);
                // Nobody is told to stop twice.
                let mut once = vec![];
                for effect in out {
                    if !once.contains(&effect) {
                        once.push(effect);
                    }
                }
                assert!(once.starts_with(&stopped));
                out = once;
                true
            }
        };
        if changes {
            self.work(&projects_of(event), now, &mut out);
        }
        Ok(out)
    }

    fn pipeline(&self, project: &str) -> Option<&Pipeline> {
        self.pipelines.iter().find(|(name, _)| name == project).map(|(_, pipeline)| pipeline)
    }

    fn at(&self, name: &StoryRef) -> Option<usize> {
        self.stories.iter().position(|known| known.name == *name)
    }

    fn at_step(&self, step: &StepId) -> Option<usize> {
        let at = self.at(&step.story)?;
        let number = self.stories[at].step.as_ref()?.number;
        (number == step.number).then_some(at)
    }

    fn staying(&self, name: &StoryRef) -> Result<usize, StoryRefusal> {
        let at = self.at(name).ok_or_else(|| StoryRefusal::NoSuchStory(name.clone()))?;
        self.stories[at].leaving.map_or(Ok(at), |how| Err(StoryRefusal::Leaving(how)))
    }

    fn kind(&self, project: &str, stage: &str) -> Option<StageKind> {
        let stages = &self.pipeline(project)?.stages;
        stages.iter().find(|known| known.name.as_str() == stage).map(|known| known.kind.clone())
    }

    fn rule(&self, known: &Known) -> Option<WorkRule> {
        match self.kind(known.name.project.as_str(), &known.stage)? {
            StageKind::Work(rule) => Some(rule),
            StageKind::Hold | StageKind::Terminal { .. } => None,
        }
    }

    fn check_stage(&self, project: &str, stage: &str) -> Result<StageKind, StoryRefusal> {
        let pipeline = self.pipeline(project);
        let pipeline = pipeline.ok_or_else(|| StoryRefusal::NoPipeline(project.into()))?;
        let known = pipeline.stages.iter().map(|stage| stage.name.clone()).collect();
        let no = StoryRefusal::NoSuchStage { stage: stage.into(), known };
        self.kind(project, stage).ok_or(no)
    }

    fn check_pin(&self, project: &str, wish: &NewStory) -> Result<(), StoryRefusal> {
        let agents = self.pipeline(project).map(|p| p.agents.clone()).unwrap_or_default();
        let known: Vec<_> = agents.into_iter().map(|agent| agent.name).collect();
        match &wish.pinned {
            Some(agent) if !known.contains(agent) => {
                Err(StoryRefusal::NoSuchAgent { agent: agent.clone(), known })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// All there is of each name is looked at first, then whether it comes back to itself.
    fn check_deps(&self, name: &StoryRef, on: &BTreeSet<StoryId>) -> Result<(), StoryRefusal> {
        for id in on {
            let other = StoryRef::new(&name.project, id);
            let archived = |(gone, how): &(StoryRef, Gone)| *gone == other && *how != Gone::Removed;
            if other != *name && self.at(&other).is_none() && !self.gone.iter().any(archived) {
                return Err(StoryRefusal::UnknownDependency(id.clone()));
            }
        }
        let mut way = vec![name.id.clone()];
        if self.comes_back(name, on, &mut way) {
            return Err(StoryRefusal::Cycle(way));
        }
        Ok(())
    }

    fn comes_back(&self, name: &StoryRef, on: &BTreeSet<StoryId>, way: &mut Vec<StoryId>) -> bool {
        for id in on {
            way.push(id.clone());
            let next = self.at(&StoryRef::new(&name.project, id));
            let next = next.map(|at| self.stories[at].wish.depends_on.clone()).unwrap_or_default();
            if *id == name.id || self.comes_back(name, &next, way) {
                return true;
            }
            way.pop();
        }
        false
    }

    fn added(&mut self, name: &StoryRef, new: &NewStory) -> Result<bool, StoryRefusal> {
        let project = name.project.as_str();
        let kind = self.check_stage(project, new.stage.as_str())?;
        self.check_pin(project, new)?;
        if self.at(name).is_some() || self.gone.iter().any(|(gone, _)| gone == name) {
            return Err(StoryRefusal::IdTaken);
        }
        self.check_deps(name, &new.depends_on)?;
        self.stories.push(Known {
            name: name.clone(),
            stage: new.stage.to_string(),
            entry: 1,
            progress: Progress::Fresh(Why::First),
            done: kind == StageKind::Terminal { success: true },
            hold: None,
            leaving: None,
            wish: new.clone(),
            used: Used::default(),
            burnt: vec![],
            burnt_ever: 0,
            misfires: 0,
            away: 0,
            base_moved: 0,
            wait: None,
            sessions: BTreeMap::new(),
            tree: Tree::None,
            step: None,
            steps: 0,
        });
        // The runs of a story that were seen before it have their numbers already.
        for id in self.strays.iter().filter(|id| id.story == *name) {
            let added = self.stories.last_mut().expect("it was added");
            added.steps = added.steps.max(id.number);
        }
        Ok(true)
    }

    fn edited(&mut self, name: &StoryRef, edit: &Edit) -> Result<bool, StoryRefusal> {
        let at = self.staying(name)?;
        let mut wish = self.stories[at].wish.clone();
        wish.pinned = edit.pinned.clone().unwrap_or(wish.pinned);
        wish.depends_on = edit.depends_on.clone().unwrap_or(wish.depends_on);
        wish.priority = edit.priority.unwrap_or(wish.priority);
        wish.ceilings = edit.ceilings.unwrap_or(wish.ceilings);
        if wish == self.stories[at].wish {
            return Ok(false);
        }
        if edit.pinned.is_some() {
            self.check_pin(name.project.as_str(), &wish)?;
        }
        if edit.depends_on.is_some() {
            self.check_deps(name, &wish.depends_on)?;
        }
        self.stories[at].wish = wish;
        Ok(true)
    }

    fn moved(
        &mut self,
        name: &StoryRef,
        to: &str,
        out: &mut Vec<StoryEffect>,
    ) -> Result<bool, StoryRefusal> {
        let at = self.staying(name)?;
        let kind = self.check_stage(name.project.as_str(), to)?;
        let known = &mut self.stories[at];
        if known.stage == to {
            return Ok(false);
        }
        known.done = ends_done(known.done, &kind);
        known.enter(to, Why::First);
        known.looked_at();
        self.stop_misplaced(out);
        Ok(true)
    }

    fn held(
        &mut self,
        name: &StoryRef,
        hold: Hold,
        out: &mut Vec<StoryEffect>,
    ) -> Result<bool, StoryRefusal> {
        let at = self.staying(name)?;
        let stage = self.stories[at].stage.clone();
        if let Some(StageKind::Terminal { .. }) = self.kind(name.project.as_str(), &stage) {
            return Err(StoryRefusal::Ended(stage.as_str().into()));
        }
        match self.stories[at].hold.clone() {
            Some(old) if old == hold => return Ok(false),
            Some(old) => return Err(StoryRefusal::Held(old)),
            None => self.stories[at].hold = Some(hold),
        }
        self.stop_misplaced(out);
        Ok(true)
    }

    fn unheld(&mut self, name: &StoryRef) -> Result<bool, StoryRefusal> {
        let at = self.at(name).ok_or_else(|| StoryRefusal::NoSuchStory(name.clone()))?;
        let known = &self.stories[at];
        if known.hold.is_none() {
            return Ok(false);
        }
        let by_agent = self.rule(known).is_some_and(|rule| !rule.agents.is_empty())
            && matches!(known.progress, Progress::Fresh(_))
            && known.leaving.is_none();
        if let Some(reached) = known.at_ceiling().filter(|_| by_agent) {
            return Err(StoryRefusal::AtCeiling(reached));
        }
        let known = &mut self.stories[at];
        known.hold = None;
        known.looked_at();
        Ok(true)
    }

    fn leaves(
        &mut self,
        name: &StoryRef,
        how: Leave,
        out: &mut Vec<StoryEffect>,
    ) -> Result<bool, StoryRefusal> {
        let at = self.at(name).ok_or_else(|| StoryRefusal::NoSuchStory(name.clone()))?;
        match self.stories[at].leaving {
            Some(old) if old == how => return Ok(false),
            Some(old) => return Err(StoryRefusal::Leaving(old)),
            None => {}
        }
        let needs = |known: &&Known| {
            let same = known.name.project == name.project;
            same && !known.done && known.wish.depends_on.contains(&name.id)
        };
        let needed: BTreeSet<StoryId> =
            self.stories.iter().filter(needs).map(|known| known.name.id.clone()).collect();
        if how == Leave::Remove && !needed.is_empty() {
            return Err(StoryRefusal::NeededBy(needed.into_iter().collect()));
        }
        let known = &mut self.stories[at];
        known.leaving = Some(how);
        known.hold = None;
        known.looked_at();
        self.stop_misplaced(out);
        Ok(true)
    }

    /// Who works for a story that is held, elsewhere, over or to go is stopped: agents, gates and
    /// what makes worktrees. Everybody, in the order of names; who is right is not touched.
    fn stop_misplaced(&mut self, out: &mut Vec<StoryEffect>) {
        let mut order: Vec<usize> = (0..self.stories.len()).collect();
        order.sort_by(|a, b| self.stories[*a].name.cmp(&self.stories[*b].name));
        for at in order {
            let right = self.is_right(at);
            let known = &mut self.stories[at];
            let Some(doing) = &mut known.step else { continue };
            let live = matches!(doing.phase, StepPhase::Asked | StepPhase::Alive);
            let ours = matches!(doing.work, Work::Merge | Work::Land | Work::Remove);
            if live && !ours && !right {
                doing.phase = StepPhase::Stopping;
                out.push(StoryEffect::StopStep(step(&known.name, doing.number)));
            }
        }
    }

    fn is_right(&self, at: usize) -> bool {
        let known = &self.stories[at];
        let Some(doing) = &known.step else { return true };
        if doing.work == Work::Remove {
            return known.leaving.is_some() && known.hold.is_none();
        }
        let kind = self.kind(known.name.project.as_str(), &known.stage);
        let stands = matches!(kind, Some(StageKind::Hold | StageKind::Terminal { .. }));
        !stands && doing.entry == known.entry && known.hold.is_none() && known.leaving.is_none()
    }

    fn seen_alive(&mut self, id: &StepId, stopping: bool, told: bool, out: &mut Vec<StoryEffect>) {
        match self.at_step(id) {
            Some(at) => {
                let known = &mut self.stories[at];
                let doing = known.step.as_mut().expect("it has that step");
                match doing.phase {
                    StepPhase::Asked => {
                        doing.phase = StepPhase::Alive;
                        (known.misfires, known.away) = (0, 0);
                    }
                    StepPhase::Stopping if told || !stopping => {
                        out.push(StoryEffect::StopStep(id.clone()));
                    }
                    StepPhase::Alive | StepPhase::Stopping | StepPhase::Lost { .. } => {}
                }
            }
            None => {
                let new = !self.strays.contains(id);
                if new {
                    self.strays.push(id.clone());
                    if let Some(at) = self.at(&id.story) {
                        self.stories[at].steps = self.stories[at].steps.max(id.number);
                    }
                }
                if new || !stopping {
                    out.push(StoryEffect::StopStep(id.clone()));
                }
            }
        }
    }

    /// Whoever has a step that was not seen is asked about it; strays come last.
    fn ask(&mut self, seen: &[SeenStep], out: &mut Vec<StoryEffect>) {
        let not_seen = |id: &StepId| !seen.iter().any(|seen| seen.step == *id);
        let mut order: Vec<usize> = (0..self.stories.len()).collect();
        order.sort_by(|a, b| self.stories[*a].name.cmp(&self.stories[*b].name));
        for at in order {
            let right = self.is_right(at);
            let known = &self.stories[at];
            let Some(doing) = &known.step else { continue };
            let id = step(&known.name, doing.number);
            if not_seen(&id) {
                match doing.phase {
                    StepPhase::Asked if right => out.push(known.start_effect()),
                    StepPhase::Stopping => out.push(StoryEffect::StopStep(id)),
                    StepPhase::Asked | StepPhase::Alive | StepPhase::Lost { .. } => {
                        out.push(StoryEffect::AskStep(id));
                    }
                }
            }
        }
        let mut strays: Vec<StepId> =
            self.strays.iter().filter(|id| not_seen(id)).cloned().collect();
        strays.sort();
        out.extend(strays.into_iter().map(StoryEffect::StopStep));
    }

    fn refused(&mut self, id: &StepId, why: TurnedAway, now: u64) -> bool {
        let Some(at) = self.at_step(id) else { return false };
        let known = &mut self.stories[at];
        let phase = known.step.as_ref().expect("it has that step").phase;
        if matches!(phase, StepPhase::Alive | StepPhase::Lost { .. }) {
            return false;
        }
        let seconds = [1, 2, 4, 8, 16, 32, 60][(known.away as usize).min(6)];
        let for_ms = seconds * 1000;
        known.wait = Some(Wait { since_ms: now, for_ms, why: WaitFor::TurnedAway(why) });
        known.away += 1;
        known.step = None;
        true
    }

    fn pause(&mut self, provider: &str, said: Option<u64>, now: u64) {
        let minute = 60_000;
        let least = now + minute / 2;
        let most = now + 8 * 24 * 60 * minute;
        let until = said.unwrap_or(now + 5 * minute).max(least).min(most);
        let old = self.pauses.iter_mut().find(|(name, until)| name == provider && *until > now);
        match (old, said) {
            (Some(_), None) => {}
            (Some((_, old)), Some(said)) => {
                if said > *old {
                    *old = until.max(*old);
                }
            }
            (None, _) => self.pauses.push((provider.to_owned(), until)),
        }
    }

    fn ended(
        &mut self,
        id: &StepId,
        outcome: &Outcome,
        used: Used,
        session: Option<String>,
        now: u64,
    ) -> bool {
        let Some(at) = self.at_step(id) else {
            let old = self.strays.len();
            self.strays.retain(|stray| stray != id || *outcome == Outcome::Lost);
            return self.strays.len() < old;
        };
        let doing = self.stories[at].step.clone().expect("it has that step");
        let was_lost = matches!(doing.phase, StepPhase::Lost { .. });
        if was_lost && *outcome == Outcome::Lost {
            return false;
        }
        if let (Outcome::RateLimited { until_ms }, Some((agent, _))) = (outcome, doing.work.agent())
        {
            let agents = self.pipeline(id.story.project.as_str()).map(|p| p.agents.clone());
            let rule = agents.unwrap_or_default().into_iter().find(|rule| rule.name == *agent);
            if let Some(rule) = rule {
                self.pause(rule.provider.as_str(), *until_ms, now);
            }
        }
        let known = &mut self.stories[at];
        known.used.turns += used.turns.saturating_sub(doing.counted.turns);
        known.used.money_micros += used.money_micros.saturating_sub(doing.counted.money_micros);
        if let (Work::Agent { agent, model, .. }, Some(session)) = (&doing.work, session) {
            known.sessions.insert((agent.to_string(), model.to_string()), session);
        }
        match (&doing.work, outcome == &Outcome::Success) {
            (Work::Prepare { .. }, true) => known.tree = Tree::Ready,
            (Work::Remove, true) => known.tree = Tree::None,
            (Work::Prepare { .. } | Work::Remove, false) => known.tree = Tree::Unsettled,
            // It may have been cut off in the midst of it.
            (Work::Merge, false)
                if matches!(
                    outcome,
                    Outcome::Failed { .. }
                        | Outcome::Limit { .. }
                        | Outcome::Stopped
                        | Outcome::Interrupted
                ) =>
            {
                known.tree = Tree::Unsettled;
            }
            (Work::Agent { .. } | Work::Merge | Work::Gate { .. } | Work::Land, _) => {}
        }
        if *outcome == Outcome::Lost {
            known.hold = Some(Hold::Blocked(Blocked::Lost));
            known.misfires = 0;
            let doing = known.step.as_mut().expect("it has that step");
            doing.phase = StepPhase::Lost { stopping: doing.phase == StepPhase::Stopping };
            doing.counted = used;
            return true;
        }
        known.step = None;
        if was_lost && known.hold == Some(Hold::Blocked(Blocked::Lost)) {
            known.hold = None;
        }
        let misfires = known.misfires;
        known.misfires = 0;
        if *outcome == Outcome::Drifted {
            known.hold = Some(Hold::Blocked(Blocked::Drifted));
        } else if doing.entry == known.entry {
            let stopped = [StepPhase::Stopping, StepPhase::Lost { stopping: true }];
            let ours = stopped.contains(&doing.phase);
            if !ours || *outcome == Outcome::Success {
                self.consequence(at, &doing, outcome, misfires, now);
            }
        }
        true
    }

    /// What follows from a step that ended by itself, for a story still where it was.
    fn consequence(
        &mut self,
        at: usize,
        doing: &Doing,
        outcome: &Outcome,
        misfires: u32,
        now: u64,
    ) {
        let rule = self.rule(&self.stories[at]);
        let gated = rule.as_ref().is_some_and(|rule| rule.gates > 0);
        let known = &mut self.stories[at];
        let by_agent = matches!(doing.work, Work::Agent { .. });
        let none = || (None, false);
        let (tail, keeps_commits): (Option<Tail>, bool) = match outcome {
            Outcome::Success => {
                match doing.work {
                    Work::Agent { .. } => known.progress = Progress::Worked,
                    Work::Merge => known.progress = Progress::Gated(0),
                    Work::Gate { n } => known.progress = Progress::Gated(n + 1),
                    Work::Land => known.progress = Progress::Landed,
                    Work::Prepare { .. } | Work::Remove => {}
                }
                return;
            }
            Outcome::Stopped => {
                known.hold = Some(known.hold.take().unwrap_or(Hold::Frozen));
                return;
            }
            Outcome::NeverStarted | Outcome::Unseen => {
                if misfires == 4 {
                    known.hold = Some(Hold::Blocked(Blocked::NeverStarts { tries: 5 }));
                } else {
                    known.misfires = misfires + 1;
                    let for_ms = 1000 << misfires;
                    known.wait = Some(Wait { since_ms: now, for_ms, why: WaitFor::Misfire });
                }
                return;
            }
            Outcome::RateLimited { .. } if by_agent => return,
            Outcome::BaseMoved if doing.work == Work::Land => {
                known.progress = Progress::Worked;
                if known.base_moved == 5 {
                    known.hold = Some(Hold::Blocked(Blocked::BaseMoves { times: 5 }));
                } else {
                    known.base_moved += 1;
                }
                return;
            }
            Outcome::Failed { ahead, tail } | Outcome::Limit { ahead, tail } => {
                (tail.clone(), *ahead && gated && by_agent)
            }
            Outcome::Conflict { tail } => (tail.clone(), false),
            Outcome::RateLimited { .. } | Outcome::BaseMoved => none(),
            Outcome::Interrupted | Outcome::Drifted | Outcome::Lost => return,
        };
        if keeps_commits {
            known.progress = Progress::Worked;
            return;
        }
        self.failed(at, doing, outcome, tail, rule.as_ref(), now);
    }

    fn failed(
        &mut self,
        at: usize,
        doing: &Doing,
        outcome: &Outcome,
        tail: Option<Tail>,
        rule: Option<&WorkRule>,
        now: u64,
    ) {
        let known = &self.stories[at];
        let pipeline = self.pipeline(known.name.project.as_str()).expect("it has one").clone();
        let conflict = doing.work == Work::Merge && matches!(outcome, Outcome::Conflict { .. });
        let limit = matches!(outcome, Outcome::Limit { .. });
        let cause = match doing.work {
            Work::Agent { .. } if limit => Cause::Limit,
            Work::Agent { .. } => Cause::Agent,
            Work::Gate { n } => Cause::Gate(n),
            Work::Prepare { .. } => Cause::Prepare,
            Work::Merge if conflict => Cause::Conflict,
            Work::Merge => Cause::Merge,
            Work::Land => Cause::Land,
            Work::Remove => {
                self.stories[at].hold = Some(Hold::Blocked(Blocked::TreeStays));
                return;
            }
        };
        let why = if conflict { Why::Conflict(tail) } else { Why::Retry(tail) };
        let has_agents = rule.is_none_or(|rule| !rule.agents.is_empty());
        let merges = rule.is_some_and(|rule| rule.merge);
        let anew = match (has_agents, merges) {
            (true, _) => Progress::Fresh(why.clone()),
            (false, true) => Progress::Worked,
            (false, false) => Progress::Gated(0),
        };
        let said = rule.and_then(|rule| rule.on_failure.clone());
        let goes = match cause {
            Cause::Agent | Cause::Gate(_) => said,
            Cause::Conflict => {
                let writes = |stage: &&kennel_supervisor::story::Stage| match &stage.kind {
                    StageKind::Work(rule) => rule.agents.iter().any(|name| {
                        pipeline.agents.iter().any(|a| a.name == *name && a.role == Role::Coder)
                    }),
                    StageKind::Hold | StageKind::Terminal { .. } => false,
                };
                let coder = pipeline.stages.iter().find(writes).map(|stage| stage.name.clone());
                let to = said.or(coder);
                if to.is_none() {
                    self.stories[at].hold = Some(Hold::Blocked(Blocked::Conflict));
                    return;
                }
                to
            }
            Cause::Limit | Cause::Prepare | Cause::Merge | Cause::Land => None,
        };
        let known = &mut self.stories[at];
        let goes = goes.filter(|to| to.as_str() != known.stage);
        let stays = match cause {
            Cause::Prepare => known.progress.clone(),
            Cause::Merge | Cause::Land => Progress::Worked,
            Cause::Agent | Cause::Limit | Cause::Gate(_) | Cause::Conflict => anew,
        };
        let tried = known.burnt.iter().filter(|stage| **stage == known.stage).count() as u32;
        if tried >= pipeline.max_retries {
            let (stage, max) = (known.stage.as_str().into(), pipeline.max_retries);
            known.hold = Some(Hold::Blocked(Blocked::Retries { stage, max, cause }));
            known.progress = stays;
            return;
        }
        if let Some(max) = known.wish.ceilings.retries.filter(|max| known.burnt_ever >= *max) {
            let (of, used, max) = (Ceiling::Retries, known.burnt_ever.into(), max.into());
            known.hold = Some(Hold::Blocked(Blocked::Ceiling { of, used, max }));
            known.progress = stays;
            return;
        }
        known.burnt.push(known.stage.clone());
        known.burnt_ever += 1;
        match goes {
            Some(to) => {
                known.enter(to.as_str(), why);
                known.done = false;
            }
            None => known.progress = stays,
        }
        let doubled = pipeline.back_off.first_ms << tried;
        let for_ms = doubled.min(pipeline.back_off.most_ms);
        known.wait = Some(Wait { since_ms: now, for_ms, why: WaitFor::Retry(cause) });
    }

    // Who works on what.

    fn work(&mut self, only: &Option<String>, now: u64, out: &mut Vec<StoryEffect>) {
        let mut projects: Vec<String> =
            self.pipelines.iter().map(|(name, _)| name.clone()).collect();
        projects.sort();
        projects.retain(|project| only.as_ref().is_none_or(|only| only == project));
        for project in projects {
            while let Some(at) = self.somebody_complete(&project, now) {
                self.complete(at);
            }
            let turns = self.turns(&project);
            for name in turns {
                let at = self.at(&name).expect("it is there");
                let known = &self.stories[at];
                match self.next(known, now) {
                    Ok(Todo::Start(work)) => {
                        let known = &mut self.stories[at];
                        known.begin(work);
                        out.push(known.start_effect());
                    }
                    Ok(Todo::Block(blocked)) => {
                        self.stories[at].hold = Some(Hold::Blocked(blocked));
                    }
                    Ok(Todo::Leave | Todo::Advance) => panic!("it was complete before"),
                    Err(_) => {}
                }
            }
        }
    }

    fn somebody_complete(&self, project: &str, now: u64) -> Option<usize> {
        self.stories.iter().position(|known| {
            known.name.project.as_str() == project
                && matches!(self.next(known, now), Ok(Todo::Leave | Todo::Advance))
        })
    }

    fn complete(&mut self, at: usize) {
        let known = self.stories[at].clone();
        if let Some(how) = known.leaving {
            let gone = match how {
                Leave::Archive => Gone::Archived { done: known.done },
                Leave::Remove => Gone::Removed,
            };
            self.gone.push((known.name.clone(), gone));
            self.stories.remove(at);
            return;
        }
        let to = self.rule(&known).expect("it was work").next;
        let kind = self.kind(known.name.project.as_str(), to.as_str()).expect("it was checked");
        let known = &mut self.stories[at];
        known.done = ends_done(known.done, &kind);
        known.enter(to.as_str(), Why::First);
    }

    /// Everybody of a project: who goes first, then by stage, priority and age.
    fn turns(&self, project: &str) -> Vec<StoryRef> {
        let stages: Vec<&str> = self
            .pipeline(project)
            .map(|p| p.stages.iter().map(|s| s.name.as_str()).collect())
            .unwrap_or_default();
        let mine = self.stories.iter().enumerate();
        let mut mine: Vec<(usize, &Known)> =
            mine.filter(|(_, known)| known.name.project.as_str() == project).collect();
        mine.sort_by_key(|(age, known)| {
            let stage = stages.iter().position(|stage| *stage == known.stage);
            (known.leaving.is_none(), stage, -known.wish.priority, *age)
        });
        mine.into_iter().map(|(_, known)| known.name.clone()).collect()
    }

    /// What is to be done for a story that has no step, or why nothing is.
    fn next(&self, known: &Known, now: u64) -> Result<Todo, Reason> {
        if known.step.is_some() {
            return Err(Reason::Ready);
        }
        let mut strays: Vec<&StepId> =
            self.strays.iter().filter(|stray| stray.story == known.name).collect();
        strays.sort();
        if let Some(stray) = strays.first() {
            return Err(Reason::Stray((*stray).clone()));
        }
        if let Some(hold) = &known.hold {
            return Err(Reason::Held(hold.clone()));
        }
        let waits = known.wait.filter(|w| now >= w.since_ms && now - w.since_ms < w.for_ms);
        if known.leaving.is_some() {
            return match (known.tree, waits) {
                (Tree::None, _) => Ok(Todo::Leave),
                (_, Some(wait)) => Err(Reason::Waits(wait)),
                (_, None) => Ok(Todo::Start(Work::Remove)),
            };
        }
        let rule = match self.kind(known.name.project.as_str(), &known.stage) {
            None => return Err(Reason::StageGone(known.stage.as_str().into())),
            Some(StageKind::Hold) => return Err(Reason::WaitsForMove),
            Some(StageKind::Terminal { .. }) => return Err(Reason::Ended),
            Some(StageKind::Work(rule)) => rule,
        };
        let unmet: Vec<StoryId> =
            known.wish.depends_on.iter().filter(|id| !self.is_done(known, id)).cloned().collect();
        if !unmet.is_empty() {
            return Err(Reason::DependsOn(unmet));
        }
        // The stage as a list, and how much of it is done.
        let mut list = vec![];
        if !rule.agents.is_empty() {
            list.push("agent".to_owned());
        }
        if rule.merge {
            list.push("merge".to_owned());
        }
        list.extend((0..rule.gates).map(|n| n.to_string()));
        if rule.merge {
            list.push("land".to_owned());
        }
        if list.is_empty() && matches!(known.progress, Progress::Fresh(_)) {
            return Err(Reason::WaitsForMove);
        }
        let before = |name: &str| list.iter().position(|item| item == name).unwrap_or(0);
        let did = match &known.progress {
            Progress::Fresh(_) => 0,
            Progress::Worked => before("agent") + usize::from(!rule.agents.is_empty()),
            Progress::Gated(n) => {
                let first = usize::from(!rule.agents.is_empty()) + usize::from(rule.merge);
                first + (*n).min(rule.gates) as usize
            }
            Progress::Landed => list.len(),
        };
        let Some(item) = list.get(did) else { return Ok(Todo::Advance) };
        if item == "agent"
            && let Some(reached) = known.at_ceiling()
        {
            return Ok(Todo::Block(reached));
        }
        if let Some(wait) = waits {
            return Err(Reason::Waits(wait));
        }
        let in_stage = |other: &&Known| {
            let doing = other.step.as_ref().filter(|doing| doing.work != Work::Remove);
            other.name.project == known.name.project
                && doing.is_some_and(|doing| doing.stage == known.stage)
        };
        let there = self.stories.iter().filter(in_stage).count();
        if let Some(max) = rule.max_runs.filter(|max| there >= *max as usize) {
            return Err(Reason::StageFull { max });
        }
        let agent = if item == "agent" { Some(self.whom(known, &rule, now)?) } else { None };
        if known.tree != Tree::Ready {
            return Ok(Todo::Start(Work::Prepare { agent }));
        }
        Ok(Todo::Start(match (item.as_str(), agent) {
            ("merge", _) => Work::Merge,
            ("land", _) => Work::Land,
            (_, Some((agent, instance))) => self.by_agent(known, agent.as_str(), instance),
            (n, None) => Work::Gate { n: n.parse().expect("a number") },
        }))
    }

    fn by_agent(&self, known: &Known, agent: &str, instance: u32) -> Work {
        let pipeline = self.pipeline(known.name.project.as_str()).expect("it has one");
        let rule = pipeline.agents.iter().find(|rule| rule.name.as_str() == agent).expect("known");
        let key = (agent.to_owned(), rule.model.to_string());
        let session = known.sessions.get(&key).filter(|_| rule.resumes);
        let Progress::Fresh(why) = known.progress.clone() else { panic!("nothing for an agent") };
        Work::Agent {
            agent: agent.into(),
            instance,
            model: rule.model.clone(),
            session: session.map(|session| session.as_str().into()),
            why,
        }
    }

    fn whom(
        &self,
        known: &Known,
        rule: &WorkRule,
        now: u64,
    ) -> Result<(kennel_supervisor::story::AgentName, u32), Reason> {
        let pipeline = self.pipeline(known.name.project.as_str()).expect("it has one");
        let mut wanted = rule.agents.clone();
        // The pinned one first, if it is one of them; the order of the others stays.
        wanted.sort_by_key(|name| Some(name) != known.wish.pinned.as_ref());
        let mut paused = vec![];
        for name in &wanted {
            let agent = pipeline.agents.iter().find(|agent| agent.name == *name).expect("known");
            let provider = agent.provider.as_str();
            let pause = self.pauses.iter().find(|(p, until)| p == provider && now < *until);
            if let Some((_, until_ms)) = pause {
                paused.push((*until_ms, agent.provider.clone()));
                continue;
            }
            let mine = |other: &&Known| other.name.project == known.name.project;
            let steps = self.stories.iter().filter(mine).filter_map(|other| other.step.as_ref());
            let of_it = steps.filter_map(|doing| doing.work.agent()).filter(|(a, _)| *a == name);
            let busy: Vec<u32> = of_it.map(|(_, instance)| instance).collect();
            if busy.len() < agent.max_instances as usize {
                let free = (1..).find(|n| !busy.contains(n)).expect("there is one");
                return Ok((name.clone(), free));
            }
        }
        if paused.len() < wanted.len() {
            return Err(Reason::AgentsBusy);
        }
        // The first that is served again; of two, the one that was asked first.
        let mut first = paused[0].clone();
        for other in paused {
            if other.0 < first.0 {
                first = other;
            }
        }
        Err(Reason::Paused { until_ms: first.0, provider: first.1 })
    }

    fn is_done(&self, known: &Known, id: &StoryId) -> bool {
        let other = StoryRef::new(&known.name.project, id);
        let archived = (other.clone(), Gone::Archived { done: true });
        self.at(&other).is_some_and(|at| self.stories[at].done) || self.gone.contains(&archived)
    }

    fn why(&self, known: &Known, now: u64) -> Option<Reason> {
        if known.step.is_some() {
            return None;
        }
        Some(self.next(known, now).err().unwrap_or(Reason::Ready))
    }
}

enum Todo {
    Start(Work),
    Advance,
    Leave,
    Block(Blocked),
}

fn ends_done(was: bool, kind: &StageKind) -> bool {
    match kind {
        StageKind::Terminal { success: true } => true,
        StageKind::Terminal { success: false } => was,
        StageKind::Work(_) | StageKind::Hold => false,
    }
}

/// The project in which somebody may get a step after an event; none for all of them.
fn projects_of(event: &StoryEvent) -> Option<String> {
    let project = match event {
        StoryEvent::PipelineRead { project, .. } | StoryEvent::PipelineUnreadable(project) => {
            project
        }
        StoryEvent::AddRequested { story, .. }
        | StoryEvent::EditRequested { story, .. }
        | StoryEvent::MoveRequested { story, .. }
        | StoryEvent::FreezeRequested(story)
        | StoryEvent::BlockRequested(story)
        | StoryEvent::UnholdRequested(story)
        | StoryEvent::LeaveRequested { story, .. } => &story.project,
        StoryEvent::StepStarted(step)
        | StoryEvent::StepRefused { step, .. }
        | StoryEvent::StepEnded { step, .. } => &step.story.project,
        StoryEvent::RateLimited { .. }
        | StoryEvent::UnpauseRequested(_)
        | StoryEvent::Tick
        | StoryEvent::Reconcile(_) => return None,
    };
    Some(project.to_string())
}

impl Known {
    fn enter(&mut self, stage: &str, why: Why) {
        self.stage = stage.to_owned();
        self.entry += 1;
        self.progress = Progress::Fresh(why);
        self.base_moved = 0;
        self.wait = None;
    }

    fn looked_at(&mut self) {
        self.burnt.clear();
        (self.misfires, self.away, self.base_moved) = (0, 0, 0);
        self.wait = None;
    }

    fn at_ceiling(&self) -> Option<Blocked> {
        let Ceilings { turns, money_micros, .. } = self.wish.ceilings;
        let each = [
            (Ceiling::Turns, self.used.turns, turns),
            (Ceiling::Money, self.used.money_micros, money_micros),
        ];
        let reached = each.into_iter().find(|(_, used, max)| max.is_some_and(|max| max <= *used));
        reached.map(|(of, used, max)| Blocked::Ceiling { of, used, max: max.unwrap_or(0) })
    }

    fn begin(&mut self, work: Work) {
        if matches!(work, Work::Prepare { .. } | Work::Remove) {
            self.tree = Tree::Unsettled;
        }
        self.steps += 1;
        self.wait = None;
        let (stage, counted) = (self.stage.clone(), Used::default());
        let (number, entry, phase) = (self.steps, self.entry, StepPhase::Asked);
        self.step = Some(Doing { number, stage, entry, work, phase, counted });
    }

    fn start_effect(&self) -> StoryEffect {
        let doing = self.step.as_ref().expect("it has a step");
        let Ceilings { turns, money_micros, .. } = self.wish.ceilings;
        StoryEffect::StartStep {
            step: step(&self.name, doing.number),
            stage: doing.stage.as_str().into(),
            work: doing.work.clone(),
            left: Left {
                turns: turns.map(|max| max.saturating_sub(self.used.turns)),
                money_micros: money_micros.map(|max| max.saturating_sub(self.used.money_micros)),
            },
        }
    }

    fn picture(&self) -> String {
        let mut burnt = BTreeMap::<&str, u32>::new();
        self.burnt.iter().for_each(|stage| *burnt.entry(stage).or_default() += 1);
        let doing = self.step.as_ref();
        let doing = doing.map(|d| (d.number, d.stage.as_str(), d.entry, &d.work, d.phase));
        let sessions: Vec<_> =
            self.sessions.iter().map(|((a, m), s)| (a.as_str(), m.as_str(), s.as_str())).collect();
        format!(
            "{} {} {:?} {} {:?} {:?} {:?} {:?} {:?} {burnt:?} {} {} {} {} {:?} {sessions:?} {:?} \
             {doing:?} {}",
            self.stage,
            self.entry,
            self.progress,
            self.done,
            self.hold,
            self.leaving,
            self.wish.pinned,
            (&self.wish.depends_on, self.wish.priority, self.wish.ceilings),
            self.used,
            self.burnt_ever,
            self.misfires,
            self.away,
            self.base_moved,
            self.wait,
            self.tree,
            self.steps,
        )
    }
}

fn picture(known: &Story) -> String {
    let burnt: BTreeMap<&str, u32> =
        known.retries.iter().map(|(stage, n)| (stage.as_str(), *n)).collect();
    let doing = known.step.as_ref();
    let doing = doing.map(|d| (d.number, d.stage.as_str(), d.entry, &d.work, d.phase));
    let sessions: Vec<_> =
        known.sessions.iter().map(|((a, m), s)| (a.as_str(), m.as_str(), s.as_str())).collect();
    format!(
        "{} {} {:?} {} {:?} {:?} {:?} {:?} {:?} {burnt:?} {} {} {} {} {:?} {sessions:?} {:?} \
         {doing:?} {}",
        known.stage,
        known.entry,
        known.progress,
        known.done,
        known.hold,
        known.leaving,
        known.pinned,
        (&known.depends_on, known.priority, known.ceilings),
        known.used,
        known.retries_used,
        known.misfires,
        known.turned_away,
        known.base_moved,
        known.wait,
        known.tree,
        known.steps,
    )
}

// Comparing.

fn begin() -> (Mind, Model) {
    let mut both = (Mind { now_ms: 10_000_000, ..Mind::default() }, Model::default());
    for project in PROJECTS {
        check_step(&mut both, &(0, read(project, pipeline()))).expect("it begins");
    }
    both
}

/// One event in both. Whatever the mind's own checks find fails too.
fn check_step((mind, model): &mut (Mind, Model), (after, event): &Then) -> Result<(), String> {
    mind.now_ms += after;
    let told = catch_unwind(AssertUnwindSafe(|| mind.tell(event)));
    let got = told.map_err(|why| match why.downcast::<String>() {
        Ok(why) => *why,
        Err(_) => "a check failed".to_owned(),
    })?;
    let expected = model.answer(event, mind.now_ms);
    same("the answer", &got, &expected)?;
    for project in PROJECTS {
        let known: Vec<(String, String)> = mind
            .stories
            .stories(&project.into())
            .map(|(id, known)| (id.to_string(), picture(known)))
            .collect();
        let mine = model.stories.iter().filter(|known| known.name.project.as_str() == project);
        let mut wanted: Vec<(String, String)> =
            mine.clone().map(|known| (known.name.id.to_string(), known.picture())).collect();
        wanted.sort();
        same("the stories", &known, &wanted)?;
        for known in mine {
            let why = model.why(known, mind.now_ms);
            same("why it waits", &mind.why(&known.name), &why)?;
        }
        let all = mind.stories.all_waiting(&project.into(), mind.now_ms);
        for (id, reason) in all {
            let name = StoryRef::new(&project.into(), &id);
            same("why all wait", &Some(reason), &mind.why(&name))?;
        }
    }
    let mut strays = model.strays.clone();
    strays.sort();
    same("strays", &mind.stories.strays().cloned().collect(), &strays)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    let equal = got == expected;
    equal.then_some(()).ok_or_else(|| format!("{what} is {got:#?}\nand not {expected:#?}"))
}

/// Leaves out events as long as it still fails.
fn shortest(mut events: Vec<Then>, mut why: String) -> (Vec<Then>, String) {
    let fails = |events: &[Then]| {
        let mut both = begin();
        events.iter().try_for_each(|event| check_step(&mut both, event))
    };
    let mut part = events.len();
    while part > 0 {
        let mut at = 0;
        while at < events.len() {
            let mut fewer = events.clone();
            fewer.drain(at..(at + part).min(fewer.len()));
            match fails(&fewer) {
                Err(still) => (events, why) = (fewer, still),
                Ok(()) => at += part,
            }
        }
        part /= 2;
    }
    (events, why)
}

// What can happen.

fn short_pipeline() -> Pipeline {
    let mut short = pipeline();
    let work = |agents: &[&str], gates, merge, next: &str, on_failure: Option<&str>| WorkRule {
        agents: agents.iter().map(|name| (*name).into()).collect(),
        gates,
        merge,
        next: next.into(),
        on_failure: on_failure.map(Into::into),
        max_runs: None,
    };
    short.stages[0].name = "do".into();
    short.stages[0].kind = StageKind::Work(work(&["ann"], 1, false, "merge", None));
    short.stages[3].kind = StageKind::Work(work(&[], 0, true, "done", Some("do")));
    short.stages.retain(|stage| ["do", "merge", "done"].contains(&stage.name.as_str()));
    short.max_retries = 1;
    short
}

/// Everything that can happen to one story, about its last step and the one before it.
fn short_events(mind: &Mind, s: &StoryRef) -> Vec<Then> {
    let mut events = vec![
        (0, StoryEvent::FreezeRequested(s.clone())),
        (0, StoryEvent::UnholdRequested(s.clone())),
        (0, StoryEvent::LeaveRequested { story: s.clone(), how: Leave::Archive }),
        (0, StoryEvent::Reconcile(Seen::Steps(vec![]))),
        (1_000_000, StoryEvent::Tick),
        (0, StoryEvent::RateLimited { provider: "north".into(), until_ms: None }),
    ];
    for to in ["do", "merge", "done"] {
        events.push((0, StoryEvent::MoveRequested { story: s.clone(), to: to.into() }));
    }
    let last = mind.stories.story(s).map_or(1, |known| known.steps);
    for number in [last, last.saturating_sub(1)] {
        let id = || step(s, number);
        events.push((0, StoryEvent::StepStarted(id())));
        events.push((0, StoryEvent::StepRefused { step: id(), why: TurnedAway::SlotTaken }));
        let seen = vec![SeenStep { step: id(), stopping: false }];
        events.push((0, StoryEvent::Reconcile(Seen::Steps(seen))));
        for outcome in outcomes(Some(mind.now_ms + 40_000)) {
            events.push((0, ended(id(), outcome)));
        }
    }
    events
}

fn outcomes(until_ms: Option<u64>) -> Vec<Outcome> {
    let tail = || Some("tail".into());
    vec![
        Outcome::Success,
        Outcome::Failed { ahead: false, tail: tail() },
        Outcome::Failed { ahead: true, tail: tail() },
        Outcome::Limit { ahead: false, tail: None },
        Outcome::Limit { ahead: true, tail: None },
        Outcome::RateLimited { until_ms },
        Outcome::Conflict { tail: tail() },
        Outcome::BaseMoved,
        Outcome::Drifted,
        Outcome::Stopped,
        Outcome::Interrupted,
        Outcome::NeverStarted,
        Outcome::Unseen,
        Outcome::Lost,
    ]
}

fn picture_of(mind: &Mind, s: &StoryRef) -> String {
    let strays: Vec<String> = mind.stories.strays().map(ToString::to_string).collect();
    let paused = mind.stories.paused_until(&"north".into(), mind.now_ms);
    format!("{:?} {strays:?} {paused:?}", mind.stories.story(s).map(picture))
}

/// Any event, those that bring stories further more often than those that end everything.
fn any_event(rng: &mut Rng, mind: &Mind) -> Then {
    let project = if rng.one_in(4) { "q" } else { "p" };
    let s = story(project, IDS[rng.below(4)]);
    let after = if rng.one_in(3) { rng.below(200) as u64 } else { 0 };
    let event = match rng.below(40) {
        0..5 => add(&s, any_new(rng)),
        5 => {
            let new = any_new(rng);
            let edit = Edit {
                pinned: rng.one_in(2).then_some(new.pinned),
                depends_on: rng.one_in(2).then_some(new.depends_on),
                priority: rng.one_in(2).then_some(new.priority),
                ceilings: rng.one_in(2).then_some(new.ceilings),
                words: None,
            };
            StoryEvent::EditRequested { story: s, edit }
        }
        6..8 => StoryEvent::MoveRequested { story: s, to: (*rng.pick(&STAGES)).into() },
        8 => StoryEvent::FreezeRequested(s),
        9 => StoryEvent::BlockRequested(s),
        10..13 => StoryEvent::UnholdRequested(s),
        13 if rng.one_in(2) => {
            let how = if rng.one_in(2) { Leave::Archive } else { Leave::Remove };
            StoryEvent::LeaveRequested { story: s, how }
        }
        14 => {
            let why = [TurnedAway::HostFull, TurnedAway::Unconfigured][rng.below(2)];
            StoryEvent::StepRefused { step: any_step(rng, mind, &s), why }
        }
        15..19 => StoryEvent::StepStarted(any_step(rng, mind, &s)),
        19..32 => {
            let until = Some(mind.now_ms + rng.below(90_000) as u64);
            let mut outcomes = outcomes(until.filter(|_| rng.one_in(2)));
            outcomes.extend((0..24).map(|_| Outcome::Success));
            let used = Used { turns: rng.below(4) as u64, money_micros: rng.below(9) as u64 };
            let session = rng.one_in(3).then(|| "session".into());
            let (step, outcome) = (any_step(rng, mind, &s), rng.pick(&outcomes).clone());
            StoryEvent::StepEnded { step, outcome, used, session }
        }
        32 => StoryEvent::RateLimited {
            provider: (*rng.pick(&["north", "south"])).into(),
            until_ms: rng.one_in(2).then(|| mind.now_ms + rng.below(100_000) as u64),
        },
        33 => StoryEvent::UnpauseRequested((*rng.pick(&["north", "south"])).into()),
        34 => read(project, any_pipeline(rng)),
        35 if rng.one_in(3) => StoryEvent::PipelineUnreadable(project.into()),
        36..38 => return (rng.below(120_000) as u64, StoryEvent::Tick),
        38 => {
            let seen = (0..rng.below(4)).map(|_| {
                let s = story(PROJECTS[rng.below(2)], IDS[rng.below(4)]);
                SeenStep { step: any_step(rng, mind, &s), stopping: rng.one_in(2) }
            });
            let seen = seen.collect();
            StoryEvent::Reconcile(if rng.one_in(6) { Seen::Unreadable } else { Seen::Steps(seen) })
        }
        _ => StoryEvent::Tick,
    };
    (after, event)
}

/// Mostly the story's step of now; else one before it, or one that never was.
fn any_step(rng: &mut Rng, mind: &Mind, s: &StoryRef) -> StepId {
    let last = mind.stories.story(s).map_or(1, |known| known.steps);
    let number = if rng.one_in(6) { rng.below(last as usize + 2) as u32 } else { last };
    step(s, number)
}

fn any_new(rng: &mut Rng) -> NewStory {
    let some = |rng: &mut Rng, max| rng.one_in(4).then(|| 1 + rng.below(max) as u64);
    NewStory {
        stage: (*rng.pick(&["current", "current", "current", "qa", "merge", "backlog"])).into(),
        pinned: rng.one_in(3).then(|| (*rng.pick(&["ann", "bob", "rev", "zoe"])).into()),
        depends_on: IDS.iter().filter(|_| rng.one_in(8)).map(|id| (*id).into()).collect(),
        priority: rng.below(3) as i32 - 1,
        ceilings: Ceilings {
            turns: some(rng, 20),
            money_micros: some(rng, 40),
            retries: some(rng, 3).map(|max| max as u32),
        },
    }
}

/// The pipeline, with something else about it.
fn any_pipeline(rng: &mut Rng) -> Pipeline {
    let mut other = pipeline();
    other.agents[rng.below(3)].max_instances = 1 + rng.below(2) as u32;
    other.max_retries = rng.below(3) as u32;
    other.agents[0].resumes = rng.one_in(2);
    if rng.one_in(8) {
        other.stages.truncate(rng.below(7));
        return other;
    }
    let at = rng.below(4);
    let gates = rng.below(3) as u32;
    if let StageKind::Work(rule) = &mut other.stages[at].kind {
        rule.max_runs = rng.one_in(2).then(|| rng.below(3) as u32);
        rule.gates = gates;
        rule.on_failure = rng.one_in(2).then(|| (*rng.pick(&STAGES)).into());
        if rng.one_in(4) {
            rule.agents.clear();
        }
        if rng.one_in(6) {
            rule.merge = !rule.merge;
        }
        if rng.one_in(8) {
            rule.next = (*rng.pick(&STAGES)).into();
        }
    }
    if rng.one_in(6) {
        other.stages[2].kind = StageKind::Terminal { success: rng.one_in(2) };
    }
    other
}
