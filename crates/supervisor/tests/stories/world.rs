//! The mind of stories in a simulated world, where runs end in every way and nothing is in time.
//!
//! ```text
//! users, clock --> [messages] --> decide --> journal, fact by fact --> [effects] --> runs
//!                      ^                                                          (the truth)
//!                      +----------- how they stand: twice, late, out of order ----------+
//! ```
//!
//! The daemon here may die after every single fact: what it had not written, every message and
//! every effect that waited is lost; it begins again with what was written and a look at what
//! lives. Its hands keep the contract of effects and nothing more: a run is started once, a run
//! that was refused never is, and who asks about a run that is over is told its end.
//!
//! After each action nobody shares a worktree or an instance of an agent, see [`World::check`];
//! when nothing is left to be done, every story has come to a lawful rest, see
//! [`World::come_to_rest`].

use std::collections::{BTreeMap, BTreeSet};

use kennel_supervisor::story::{
    Blocked, Hold, Leave, Outcome, Reason, Seen, SeenStep, StageKind, StepId, StepPhase, Stories,
    StoryDecision, StoryEffect, StoryEvent, StoryFact, StoryRef, Tree, TurnedAway, Used, Work,
    decide_story,
};

use crate::mind::{add, ended, new_story, pipeline, read, step, story};
use crate::seeded::{Rng, seeds};

/// Worlds made at random: some seconds of a debug build.
const WORLDS: u64 = 800;
/// Actions during which things go wrong in such a world.
const CHAOS: usize = 250;
/// A world that is not at rest after so many actions never will be: each takes some hundred.
const REST_BOUND: usize = 20_000;
/// Looks at the truth that a run outlives which ignores that it is to end.
const STUBBORN: u32 = 6;

#[test]
fn nobody_shares_a_worktree_and_all_come_to_rest_in_any_random_world() {
    for seed in seeds(WORLDS) {
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), Rng::new(seed));
        world.request(&read("p", pipeline()));
        world.request(&read("q", pipeline()));
        for _ in 0..CHAOS {
            world.go_wrong_perhaps();
            world.act();
        }
        world.come_to_rest();
    }
}

#[test]
fn a_crash_after_every_fact_loses_no_work_and_does_none_twice() {
    let facts = run_to_done(None).journal.len();
    assert!(facts > 60, "{facts} facts are too few for a test");
    for at in 0..=facts {
        let world = run_to_done(Some(at));
        let label = &world.label;
        for id in ["1", "2", "3"] {
            let s = story("p", id);
            assert!(world.stories.story(&s).is_some_and(|known| known.done), "{label}: {id}");
            let done = |what: &str| {
                let of_it = world.runs.iter().filter(|(id, _)| id.story == s);
                of_it.filter(|(_, run)| run.what == what && run.succeeded()).count()
            };
            for what in ["Prepare", "Agent current", "Agent qa", "Merge", "Land"] {
                assert_eq!(done(what), 1, "{label}: {what} of {id}");
            }
        }
    }
}

/// Three stories that go to done without a failure, and a crash after so many facts.
fn run_to_done(crash_at: Option<usize>) -> World {
    let mut world = World::new(&format!("a crash at {crash_at:?}"), Rng::new(7));
    world.nature = Nature::Good;
    world.crash_at = crash_at;
    let requests = [
        read("p", pipeline()),
        add(&story("p", "1"), new_story("current")),
        add(&story("p", "2"), new_story("current")),
        add(&story("p", "3"), new_story("current")),
    ];
    // Whoever asks hears of a crash and asks again.
    for request in requests {
        world.request(&request);
    }
    world.come_to_rest();
    world
}

#[test]
fn a_hundred_moves_at_random_leave_exactly_one_right_agent_or_none() {
    for seed in seeds(40) {
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), Rng::new(seed));
        world.nature = Nature::Endless;
        world.request(&read("p", pipeline()));
        let s = story("p", "1");
        world.request(&add(&s, new_story("current")));
        world.settle();
        for _ in 0..100 {
            let to = *world.rng.pick(&["backlog", "current", "qa", "done", "parked"]);
            world.tell(StoryEvent::MoveRequested { story: s.clone(), to: to.into() });
            for _ in 0..world.rng.below(4) {
                world.act();
            }
            if world.rng.one_in(20) {
                world.crash();
            }
        }
        world.settle();
        let known = world.stories.story(&s).expect("it is there");
        let alive = world.alive_of(&s);
        let right = match known.stage.as_str() {
            "current" => vec!["Agent current"],
            "qa" => vec!["Agent qa"],
            _ => vec![],
        };
        assert_eq!(alive, right, "in {}: {}", known.stage, world.label);
    }
}

#[test]
fn a_limit_on_a_coder_that_ignores_hang_ups_never_makes_two_in_the_worktree() {
    for seed in seeds(20) {
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), Rng::new(seed));
        world.nature = Nature::LimitIgnored;
        world.request(&read("p", pipeline()));
        let s = story("p", "1");
        world.request(&add(&s, new_story("current")));
        let mut agents = BTreeSet::new();
        for _ in 0..2000 {
            // The assignment runs all the time.
            world.hear(&StoryEvent::Tick);
            world.act();
            world.now_ms += 10;
            let alive =
                world.runs.iter().filter(|(_, run)| run.alive && run.what == "Agent current");
            agents.extend(alive.map(|(id, _)| id.number));
        }
        assert_eq!(agents.len(), 3, "the first and two retries: {agents:?}");
        let hold = world.stories.story(&s).and_then(|known| known.hold.clone());
        assert!(matches!(hold, Some(Hold::Blocked(Blocked::Retries { .. }))), "{hold:?}");
    }
}

#[test]
fn an_archived_story_goes_only_when_its_forking_agent_is_gone() {
    for seed in seeds(40) {
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), Rng::new(seed));
        world.nature = Nature::Endless;
        world.request(&read("p", pipeline()));
        let s = story("p", "1");
        world.request(&add(&s, new_story("current")));
        world.settle();
        assert_eq!(world.alive_of(&s), ["Agent current"]);
        let how = if seed % 2 == 0 { Leave::Archive } else { Leave::Remove };
        world.request(&StoryEvent::LeaveRequested { story: s.clone(), how });
        while world.stories.story(&s).is_some() {
            let removes = world.stories.story(&s).and_then(|known| known.step.as_ref());
            if removes.is_some_and(|step| step.work == Work::Remove) {
                let alive = world.alive_of(&s);
                assert!(alive.iter().all(|what| what == "Remove"), "{alive:?}: {}", world.label);
            }
            if world.rng.one_in(9) {
                world.crash();
            }
            world.bound();
            world.act();
        }
        assert!(world.alive_of(&s).is_empty(), "{}", world.label);
    }
}

// The world.

/// How runs behave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    Any,
    /// All succeed.
    Good,
    /// Agents do not end by themselves.
    Endless,
    /// Agents are ended by a limit and ignore that for long.
    LimitIgnored,
}

struct World {
    label: String,
    rng: Rng,
    now_ms: u64,
    nature: Nature,
    /// What the daemon believes.
    stories: Stories,
    /// What it wrote.
    journal: Vec<StoryFact>,
    crash_at: Option<usize>,
    /// What it was told and has not heard yet.
    messages: Vec<StoryEvent>,
    /// What it wants and has not done yet.
    effects: Vec<StoryEffect>,
    /// The truth.
    runs: BTreeMap<StepId, Run>,
    actions: usize,
}

/// A run as it really is.
struct Run {
    what: String,
    agent: Option<(String, u32)>,
    alive: bool,
    stopping: bool,
    /// What the daemon could learn of its end.
    outcome: Option<Outcome>,
    refused: bool,
    /// Looks that it still outlives.
    lives: u32,
}

impl Run {
    fn succeeded(&self) -> bool {
        self.outcome == Some(Outcome::Success)
    }
}

impl World {
    fn new(label: &str, rng: Rng) -> Self {
        Self {
            label: label.to_owned(),
            rng,
            now_ms: 1_000_000,
            nature: Nature::Any,
            stories: Stories::default(),
            journal: vec![],
            crash_at: None,
            messages: vec![],
            effects: vec![],
            runs: BTreeMap::new(),
            actions: 0,
        }
    }

    fn tell(&mut self, event: StoryEvent) {
        self.messages.push(event);
    }

    /// Asks until it was heard: a crash in between is heard of.
    fn request(&mut self, event: &StoryEvent) {
        while !self.hear(event) {
            self.bound();
        }
    }

    fn bound(&mut self) {
        self.actions += 1;
        assert!(self.actions < REST_BOUND, "no rest: {}", self.label);
    }

    /// One step of anybody.
    fn act(&mut self) {
        match self.rng.below(4) {
            0 | 1 if !self.messages.is_empty() => {
                let at = self.rng.below(self.messages.len());
                let message = self.messages.remove(at);
                if self.nature == Nature::Any && self.rng.one_in(6) {
                    self.messages.push(message.clone());
                }
                self.hear(&message);
            }
            2 if !self.effects.is_empty() => {
                let effect = self.effects.remove(0);
                self.perform(effect);
            }
            _ => self.happen_to_a_run(),
        }
        self.check();
    }

    /// The daemon decides, writes fact by fact, and may die after each. True if it lived.
    fn hear(&mut self, event: &StoryEvent) -> bool {
        let decision = decide_story(&self.stories, event, self.now_ms);
        let StoryDecision::Do { facts, effects } = decision else { return true };
        for fact in facts {
            if let StoryFact::StepBegun { step, .. } = &fact {
                let known = self.stories.story(&step.story).expect("a step of nobody");
                assert!(known.hold.is_none() && known.step.is_none(), "{fact:?}: {}", self.label);
            }
            self.stories.apply(&fact);
            self.journal.push(fact);
            if self.crash_at == Some(self.journal.len()) {
                self.crash_at = None;
                self.crash();
                return false;
            }
            if self.nature == Nature::Any && self.rng.one_in(60) {
                self.crash();
                return false;
            }
        }
        self.effects.extend(effects);
        true
    }

    /// All that was in memory is gone; then it begins again with what was written.
    fn crash(&mut self) {
        self.messages.clear();
        self.effects.clear();
        let mut replayed = Stories::default();
        self.journal.iter().for_each(|fact| replayed.apply(fact));
        self.stories = replayed;
        self.look();
    }

    fn look(&mut self) {
        let alive = self.runs.iter().filter(|(_, run)| run.alive);
        let seen = alive.map(|(step, run)| SeenStep { step: step.clone(), stopping: run.stopping });
        let seen = Seen::Steps(seen.collect());
        self.tell(StoryEvent::Reconcile(seen));
    }

    fn perform(&mut self, effect: StoryEffect) {
        match effect {
            StoryEffect::StartStep { step, stage, work, .. } => {
                if self.runs.contains_key(&step) {
                    return self.tell_of(&step);
                }
                let current = self.stories.story(&step.story).and_then(|s| s.step.as_ref());
                let asked = current.is_some_and(|current| {
                    current.number == step.number && current.phase == StepPhase::Asked
                });
                if asked {
                    self.start(step, stage.as_str(), &work);
                }
            }
            StoryEffect::StopStep(step) => match self.runs.get_mut(&step) {
                Some(run) if run.alive => run.stopping = true,
                Some(_) => self.tell_of(&step),
                None => self.never_started(step),
            },
            StoryEffect::AskStep(step) => match self.runs.get(&step) {
                Some(_) => self.tell_of(&step),
                None => self.never_started(step),
            },
        }
    }

    fn start(&mut self, step: StepId, stage: &str, work: &Work) {
        let what = match work {
            Work::Agent { .. } => format!("Agent {stage}"),
            Work::Prepare { .. } => "Prepare".to_owned(),
            Work::Merge => "Merge".to_owned(),
            Work::Gate { .. } => "Gate".to_owned(),
            Work::Land => "Land".to_owned(),
            Work::Remove => "Remove".to_owned(),
        };
        let refused = self.nature == Nature::Any && self.rng.one_in(10);
        let agent = match work {
            Work::Agent { agent, instance, .. } => Some((agent.to_string(), *instance)),
            Work::Prepare { .. } | Work::Merge | Work::Gate { .. } | Work::Land | Work::Remove => {
                None
            }
        };
        let lives = if self.rng.one_in(4) { STUBBORN } else { 1 };
        let (outcome, alive, stopping) = (None, !refused, false);
        let run = Run { what, agent, alive, stopping, outcome, refused, lives };
        self.runs.insert(step.clone(), run);
        self.tell_of(&step);
    }

    fn never_started(&mut self, step: StepId) {
        let (what, outcome) = ("nothing".to_owned(), Some(Outcome::NeverStarted));
        let run = Run {
            what,
            agent: None,
            alive: false,
            stopping: false,
            outcome,
            refused: false,
            lives: 0,
        };
        self.runs.insert(step.clone(), run);
        self.tell_of(&step);
    }

    /// How a run stands.
    fn tell_of(&mut self, step: &StepId) {
        let run = &self.runs[step];
        let event = match &run.outcome {
            Some(outcome) => {
                let used = Used { turns: 1, money_micros: 1 };
                let (step, outcome) = (step.clone(), outcome.clone());
                StoryEvent::StepEnded { step, outcome, used, session: None }
            }
            None if run.refused => {
                StoryEvent::StepRefused { step: step.clone(), why: TurnedAway::HostFull }
            }
            None => StoryEvent::StepStarted(step.clone()),
        };
        self.tell(event);
    }

    fn happen_to_a_run(&mut self) {
        let alive: Vec<StepId> =
            self.runs.iter().filter(|(_, run)| run.alive).map(|(step, _)| step.clone()).collect();
        if alive.is_empty() {
            return;
        }
        let id = self.rng.pick(&alive).clone();
        let run = self.runs.get_mut(&id).expect("it lives");
        let agent = run.what.starts_with("Agent");
        let endless = agent && self.nature == Nature::Endless && !run.stopping;
        if endless {
            return;
        }
        if agent && self.nature == Nature::LimitIgnored && run.lives == 1 {
            run.lives = 10 * STUBBORN;
        }
        run.lives = run.lives.saturating_sub(1);
        if run.lives > 1 {
            return;
        }
        let outcome = match self.nature {
            _ if run.stopping => Outcome::Stopped,
            Nature::Any => any_outcome(&mut self.rng),
            Nature::LimitIgnored if agent => Outcome::Limit { ahead: false, tail: None },
            Nature::Good | Nature::Endless | Nature::LimitIgnored => Outcome::Success,
        };
        // Who is lost may live on.
        run.alive = outcome == Outcome::Lost;
        run.outcome = Some(outcome).filter(|outcome| *outcome != Outcome::Lost);
        if run.alive {
            run.lives = STUBBORN;
            self.tell(ended(id, Outcome::Lost));
        } else {
            self.tell_of(&id);
        }
    }

    fn go_wrong_perhaps(&mut self) {
        let s = story(["p", "q"][self.rng.below(2)], ["1", "2", "3"][self.rng.below(3)]);
        match self.rng.below(24) {
            0 => {
                let new = any_new(&mut self.rng, &s);
                self.tell(add(&s, new));
            }
            1 => {
                let stages = ["backlog", "current", "current", "qa", "merge", "done", "parked"];
                let to = (*self.rng.pick(&stages)).into();
                self.tell(StoryEvent::MoveRequested { story: s, to });
            }
            2 => self.tell(StoryEvent::FreezeRequested(s)),
            3 | 4 => self.tell(StoryEvent::UnholdRequested(s)),
            5 if self.rng.one_in(3) => {
                let how = if self.rng.one_in(2) { Leave::Archive } else { Leave::Remove };
                self.tell(StoryEvent::LeaveRequested { story: s, how });
            }
            6 if self.rng.one_in(3) => self.crash(),
            7 | 8 => {
                self.now_ms += self.rng.below(40_000) as u64;
                self.tell(StoryEvent::Tick);
            }
            9 => self.look(),
            10 => self.tell(StoryEvent::Reconcile(Seen::Unreadable)),
            11 => {
                let until_ms = self.rng.one_in(2).then_some(self.now_ms + 90_000);
                self.tell(StoryEvent::RateLimited { provider: "north".into(), until_ms });
            }
            12 if self.rng.one_in(3) && !self.messages.is_empty() => {
                // A word is lost.
                let at = self.rng.below(self.messages.len());
                self.messages.remove(at);
            }
            13 if self.rng.one_in(3) => {
                let mut other = pipeline();
                other.agents[0].max_instances = 1 + self.rng.below(2) as u32;
                self.tell(read("p", other));
            }
            _ => {}
        }
    }

    /// Nobody is with somebody else in a story's worktree, or in the place of an agent's instance.
    fn check(&self) {
        let alive = || self.runs.iter().filter(|(_, run)| run.alive);
        let mut trees = BTreeSet::new();
        let mut places = BTreeSet::new();
        for (step, run) in alive() {
            assert!(trees.insert(&step.story), "two in the worktree of {step}: {}", self.label);
            if let Some(agent) = &run.agent {
                let fresh = places.insert((&step.story.project, agent));
                assert!(fresh, "{agent:?} works twice, on {step}: {}", self.label);
            }
        }
    }

    fn alive_of(&self, s: &StoryRef) -> Vec<String> {
        let of_it = self.runs.iter().filter(|(id, run)| id.story == *s && run.alive);
        of_it.map(|(_, run)| run.what.clone()).collect()
    }

    /// Until nothing is on its way any more. Whoever lives may go on living.
    fn settle(&mut self) {
        for _ in 0..20 {
            while !self.messages.is_empty() || !self.effects.is_empty() || self.somebody_ends() {
                self.bound();
                self.act();
            }
            self.now_ms += 120_000;
            self.tell(StoryEvent::Tick);
            self.look();
        }
        while !self.messages.is_empty() || !self.effects.is_empty() || self.somebody_ends() {
            self.bound();
            self.act();
        }
    }

    fn somebody_ends(&self) -> bool {
        let ends = |run: &Run| {
            let endless = self.nature == Nature::Endless && run.what.starts_with("Agent");
            run.alive && (run.stopping || !endless)
        };
        self.runs.values().any(ends)
    }

    /// Nothing goes wrong any more: every story ends, or waits for a person by name.
    fn come_to_rest(&mut self) {
        self.nature = Nature::Good;
        for run in self.runs.values_mut() {
            run.lives = run.lives.min(1);
        }
        self.look();
        self.settle();
        for project in ["p", "q"] {
            let project = project.into();
            for (id, known) in self.stories.stories(&project) {
                let label = &self.label;
                let why = self.stories.why_waiting(&StoryRef::new(&project, id), self.now_ms);
                match why {
                    Some(
                        Reason::Ended
                        | Reason::WaitsForMove
                        | Reason::Held(_)
                        | Reason::DependsOn(_),
                    ) => {}
                    other => {
                        panic!("{project}/{id} is not at rest: {other:?}\n{known:#?}: {label}")
                    }
                }
                let pipeline = self.stories.pipeline(&project).expect("it has one");
                let stage = pipeline.stage(&known.stage).expect("it is lawful");
                let ends = matches!(stage.kind, StageKind::Terminal { success: true });
                assert!(known.done || !ends, "{project}/{id}: {label}");
                assert!(
                    known.tree != Tree::None || known.used == Used::default(),
                    "{known:#?} {label}"
                );
            }
        }
        assert_eq!(self.stories.strays().next(), None, "{}", self.label);
        assert!(!self.runs.values().any(|run| run.alive), "{}", self.label);
        self.check_second_look();
    }

    /// A second look does nothing.
    fn check_second_look(&mut self) {
        let look = StoryEvent::Reconcile(Seen::Steps(vec![]));
        let decision = decide_story(&self.stories, &look, self.now_ms);
        assert_eq!(decision, StoryDecision::AlreadySo, "{}", self.label);
        let again = step(&story("p", "1"), 1);
        let told = decide_story(&self.stories, &ended(again, Outcome::Success), self.now_ms);
        assert_eq!(told, StoryDecision::AlreadySo, "{}", self.label);
    }
}

fn any_new(rng: &mut Rng, s: &StoryRef) -> kennel_supervisor::story::NewStory {
    let mut new = new_story(["current", "qa", "merge"][rng.below(3)]);
    if s.id.as_str() == "3" && rng.one_in(2) {
        new.depends_on = BTreeSet::from(["1".into()]);
    }
    new
}

fn any_outcome(rng: &mut Rng) -> Outcome {
    let tail = || Some("tail".into());
    match rng.below(24) {
        0 => Outcome::Failed { ahead: true, tail: tail() },
        1 => Outcome::Failed { ahead: false, tail: None },
        2 => Outcome::Limit { ahead: false, tail: None },
        3 => Outcome::Limit { ahead: true, tail: None },
        4 => Outcome::RateLimited { until_ms: None },
        5 => Outcome::Conflict { tail: tail() },
        6 => Outcome::BaseMoved,
        7 => Outcome::Drifted,
        8 => Outcome::Stopped,
        9 => Outcome::NeverStarted,
        10 => Outcome::Lost,
        11 => Outcome::Interrupted,
        12 => Outcome::Unseen,
        _ => Outcome::Success,
    }
}
