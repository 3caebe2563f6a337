//! How long decisions about stories take. Nothing is asserted but that a look at what is idle does
//! nothing. A decision changes nothing, so each is made some times and the shortest counts: what
//! else the machine does is no part of it.
//!
//! `cargo run --release -p kennel-supervisor --example figures`

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_supervisor::story::{
    AgentRule, BackOff, Ceilings, Edit, NewStory, Outcome, Pipeline, Role, Seen, SeenStep, Stage,
    StageKind, StepId, Stories, StoryDecision, StoryEvent, StoryRef, Used, WorkRule, decide_story,
};

const STORIES: usize = 1000;
const AGENTS: usize = 50;
const DECISIONS: usize = 2000;
/// So often each is made.
const TIMES: usize = 5;

fn main() {
    let mut told = Vec::new();
    for (name, instances) in [("50 busy, 950 waiting", 1), ("1,000 busy", 20)] {
        let mut stories = filled(instances);
        let mut times: Vec<Duration> = (0..DECISIONS).map(|n| change(&mut stories, n)).collect();
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
    let (project, pipeline) = ("p".into(), Arc::new(pipeline(instances)));
    make_true(&mut stories, &StoryEvent::PipelineRead { project, pipeline });
    for n in 0..STORIES {
        let new = NewStory {
            stage: "current".into(),
            pinned: None,
            depends_on: BTreeSet::new(),
            priority: (n % 7) as i32,
            ceilings: Ceilings::default(),
        };
        make_true(&mut stories, &StoryEvent::AddRequested { story: story(n), new });
    }
    for SeenStep { step, .. } in seen(&stories) {
        make_true(&mut stories, &StoryEvent::StepStarted(step));
    }
    stories
}

fn story(n: usize) -> StoryRef {
    StoryRef::new(&"p".into(), &n.to_string().as_str().into())
}

/// Two stages of work with all agents in each, two gates, and an end.
fn pipeline(max_instances: u32) -> Pipeline {
    let agents: Vec<AgentRule> = (0..AGENTS)
        .map(|n| AgentRule {
            name: format!("agent-{n}").as_str().into(),
            role: Role::Coder,
            max_instances,
            provider: "provider".into(),
            model: "model".into(),
            resumes: true,
        })
        .collect();
    let work = |next: &str| {
        StageKind::Work(WorkRule {
            agents: agents.iter().map(|agent| agent.name.clone()).collect(),
            gates: 2,
            merge: false,
            next: next.into(),
            on_failure: None,
            max_runs: None,
        })
    };
    let stage = |name: &str, kind| Stage { name: name.into(), kind };
    Pipeline {
        stages: vec![
            stage("current", work("qa")),
            stage("qa", work("done")),
            stage("done", StageKind::Terminal { success: true }),
        ],
        agents,
        max_retries: 3,
        back_off: BackOff { first_ms: 1000, most_ms: 60_000 },
    }
}

fn seen(stories: &Stories) -> Vec<SeenStep> {
    let project = "p".into();
    let steps = stories.stories(&project).filter_map(|(id, known)| {
        let number = known.step.as_ref()?.number;
        Some(SeenStep {
            step: StepId { story: StoryRef::new(&project, id), number },
            stopping: false,
        })
    });
    steps.collect()
}

/// Somebody's step ends, mostly well, or somebody changes a priority; how long that was decided.
fn change(stories: &mut Stories, n: usize) -> Duration {
    let busy: Vec<StepId> = seen(stories).into_iter().map(|seen| seen.step).collect();
    // Anybody, and another one each time.
    let any = n.wrapping_mul(7919);
    let event = if n.is_multiple_of(5) {
        let priority = Some((any % 1000) as i32);
        let edit = Edit { priority, ..Edit::default() };
        StoryEvent::EditRequested { story: story(any % STORIES), edit }
    } else {
        let (step, used, session) = (busy[any % busy.len()].clone(), Used::default(), None);
        StoryEvent::StepEnded { step, outcome: Outcome::Success, used, session }
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
