//! How long a decision takes. Not a test: nothing is asserted but that a look at what is idle does
//! nothing. A decision changes nothing, so each is made some times and the shortest counts: what
//! else the machine does is no part of it.
//!
//! `cargo test --release -p kennel-supervisor --test stories -- --ignored --nocapture figures`

use std::time::{Duration, Instant};

use kennel_supervisor::story::{
    AgentRule, Outcome, Pipeline, Seen, SeenStep, StageKind, StepId, Stories, StoryDecision,
    StoryEvent, StoryRef, decide_story,
};

use crate::mind::{add, ended, new_story, pipeline, read, step, story};
use crate::seeded::Rng;

const STORIES: usize = 1000;
const AGENTS: usize = 50;
const DECISIONS: usize = 2000;
/// So often each is made.
const TIMES: usize = 5;

#[test]
#[ignore = "a figure, for a release build"]
fn figures() {
    let mut told = Vec::new();
    for (name, instances) in [("50 busy, 950 waiting", 1), ("1,000 busy", 20)] {
        let mut stories = filled(instances);
        let mut rng = Rng::new(1);
        let mut times: Vec<Duration> =
            (0..DECISIONS).map(|n| change(&mut stories, &mut rng, n)).collect();
        times.sort();
        told.push(line(&format!("a change, {name}"), &times));
    }
    let stories = filled(20);
    let look = StoryEvent::Reconcile(Seen::Steps(seen(&stories)));
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let (decision, took) = timed(&stories, &look);
            assert_eq!(decision, StoryDecision::AlreadySo, "no facts and no effects");
            took
        })
        .collect();
    times.sort();
    told.push(line("reconcile of 1,000 idle runs", &times));
    show(&told);
}

#[expect(clippy::print_stdout, reason = "it is what figures are for")]
fn show(told: &[String]) {
    println!("{:36} {:>10} {:>10} {:>10}", "", "p50", "p99", "longest");
    told.iter().for_each(|line| println!("{line}"));
}

fn line(name: &str, times: &[Duration]) -> String {
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
    format!("{name:36} {:>7} us {:>7} us {:>7} us", at(50), at(99), at(100))
}

/// One project with all stories in one stage, the worst there is: all are looked at together.
fn filled(instances: u32) -> Stories {
    let mut stories = Stories::default();
    make_true(&mut stories, &read("p", many_agents(instances)));
    for n in 0..STORIES {
        let mut new = new_story("current");
        new.priority = (n % 7) as i32;
        make_true(&mut stories, &add(&story("p", &n.to_string()), new));
    }
    for SeenStep { step, .. } in seen(&stories) {
        make_true(&mut stories, &StoryEvent::StepStarted(step));
    }
    stories
}

fn many_agents(max_instances: u32) -> Pipeline {
    let mut many = pipeline();
    let names: Vec<String> = (0..AGENTS).map(|n| format!("agent-{n}")).collect();
    let first = many.agents[0].clone();
    many.agents.extend(names.iter().map(|name| AgentRule {
        name: name.as_str().into(),
        max_instances,
        ..first.clone()
    }));
    if let StageKind::Work(rule) = &mut many.stages[1].kind {
        rule.agents = names.iter().map(|name| name.as_str().into()).collect();
    }
    many
}

fn seen(stories: &Stories) -> Vec<SeenStep> {
    let project = "p".into();
    let steps = stories.stories(&project).filter_map(|(id, known)| {
        let number = known.step.as_ref()?.number;
        Some(SeenStep { step: step(&StoryRef::new(&project, id), number), stopping: false })
    });
    steps.collect()
}

/// Somebody's step ends, mostly well, or somebody changes a priority; how long that was decided.
fn change(stories: &mut Stories, rng: &mut Rng, n: usize) -> Duration {
    let busy: Vec<StepId> = seen(stories).into_iter().map(|seen| seen.step).collect();
    let event = if n.is_multiple_of(5) {
        let priority = Some(rng.below(1000) as i32);
        let edit = kennel_supervisor::story::Edit { priority, ..Default::default() };
        StoryEvent::EditRequested { story: story("p", &rng.below(STORIES).to_string()), edit }
    } else {
        let outcome = if rng.one_in(9) { Outcome::BaseMoved } else { Outcome::Success };
        ended(rng.pick(&busy).clone(), outcome)
    };
    make_true(stories, &event)
}

fn timed(stories: &Stories, event: &StoryEvent) -> (StoryDecision, Duration) {
    let decide = || {
        let begun = Instant::now();
        let decision = decide_story(stories, event, 1_000);
        (decision, begun.elapsed())
    };
    let (decision, first) = decide();
    let shortest = (1..TIMES).map(|_| decide().1).fold(first, Duration::min);
    (decision, shortest)
}

fn make_true(stories: &mut Stories, event: &StoryEvent) -> Duration {
    let (decision, took) = timed(stories, event);
    if let StoryDecision::Do { facts, .. } = decision {
        facts.iter().for_each(|fact| stories.apply(fact));
    }
    took
}
