//! The mind of stories, rule by rule: each test is one promise, told as what happens to a story.

use std::collections::BTreeSet;

use crate::mind::{BACK_OFF_MS, Mind, add, ended, new_story, pipeline, read, step, story};
use kennel_supervisor::story::{
    Blocked, Cause, Ceiling, Ceilings, Edit, Gone, Hold, Leave, Left, Outcome, PipelineFault,
    Progress, Reason, Seen, SeenStep, StageKind, StepPhase, Stories, StoryEffect, StoryEvent,
    StoryFact, StoryKind, StoryRef, StoryRefusal, Tree, TurnedAway, Used, WaitFor, Why, Work,
    WorkRule,
};

const FAILED: Outcome = Outcome::Failed { ahead: false, tail: None };

/// A mind with the pipeline in project `p`.
fn mind() -> Mind {
    let mut mind = Mind { now_ms: 1_000_000, ..Mind::default() };
    mind.must(&read("p", pipeline()));
    mind
}

/// A mind with a story in a stage, whose worktree is ready.
fn with_story(stage: &str) -> (Mind, StoryRef) {
    let (mut mind, s) = (mind(), story("p", "1"));
    mind.must(&add(&s, new_story(stage)));
    if mind.work(&s).is_some() {
        mind.end(&s, Outcome::Success);
    }
    (mind, s)
}

fn agent_of(mind: &Mind, story: &StoryRef) -> Option<String> {
    match mind.work(story) {
        Some(Work::Agent { agent, .. }) => Some(agent.to_string()),
        _ => None,
    }
}

fn why_of(mind: &Mind, story: &StoryRef) -> Option<Why> {
    match mind.work(story) {
        Some(Work::Agent { why, .. }) => Some(why.clone()),
        _ => None,
    }
}

fn change(stage: &str, change: impl FnOnce(&mut WorkRule)) -> StoryEvent {
    let mut changed = pipeline();
    let found = changed.stages.iter_mut().find(|known| known.name == stage.into());
    match found.map(|known| &mut known.kind) {
        Some(StageKind::Work(rule)) => change(rule),
        _ => panic!("no such work"),
    }
    read("p", changed)
}

fn wait_over(mind: &mut Mind) {
    mind.now_ms = mind.stories.next_wake(mind.now_ms).expect("something waits");
    mind.must(&StoryEvent::Tick);
}

fn told(mind: &Mind) -> Vec<StoryKind> {
    let mut at = Stories::default();
    let each = mind.facts.iter().filter_map(|fact| {
        let notice = at.notice_of(fact);
        at.apply(fact);
        notice.map(|notice| notice.kind)
    });
    each.collect()
}

#[test]
fn a_story_goes_from_its_first_agent_to_done_one_step_at_a_time() {
    let (mut mind, s) = (mind(), story("p", "1"));
    mind.must(&add(&s, new_story("current")));
    let mut seen = vec![];
    while let Some(work) = mind.work(&s).cloned() {
        let stage = mind.story(&s).stage.to_string();
        let name = match work {
            Work::Prepare { agent } => {
                format!("prepare for {:?}", agent.map(|(a, n)| (a.to_string(), n)))
            }
            Work::Agent { agent, .. } => agent.to_string(),
            Work::Merge => "merge".into(),
            Work::Gate { n } => format!("gate {n}"),
            Work::Land => "land".into(),
            Work::Remove => "remove".into(),
        };
        seen.push(format!("{stage}: {name}"));
        mind.end(&s, Outcome::Success);
    }
    assert_eq!(
        seen,
        [
            "current: prepare for Some((\"ann\", 1))",
            "current: ann",
            "current: gate 0",
            "current: gate 1",
            "qa: rev",
            "merge: merge",
            "merge: gate 0",
            "merge: land",
        ]
    );
    assert!(mind.story(&s).done);
    assert_eq!(mind.why(&s), Some(Reason::Ended));
    assert_eq!(told(&mind), [StoryKind::Moved, StoryKind::Moved, StoryKind::Done]);
}

#[test]
fn a_start_told_again_is_the_same_run_and_every_step_another() {
    let (mut mind, s) = with_story("current");
    let first = step(&s, 2).run();
    let asked = mind.must(&StoryEvent::Reconcile(Seen::Steps(vec![])));
    let [StoryEffect::StartStep { step: again, .. }] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(again.run(), first);
    mind.end(&s, FAILED);
    wait_over(&mut mind);
    assert_eq!(mind.story(&s).step.as_ref().map(|step| step.number), Some(3));
    assert_ne!(step(&s, 3).run(), first);
}

#[test]
fn requests_are_refused_by_name() {
    let (mut mind, s) = with_story("backlog");
    let other = story("p", "2");
    let names = |known: &[&str]| known.iter().map(|name| (*name).into()).collect::<Vec<_>>();
    let no_stage = StoryRefusal::NoSuchStage {
        stage: "curent".into(),
        known: names(&["backlog", "current", "qa", "merge", "done", "archived", "parked"]),
    };
    let known = ["ann", "bob", "rev"].map(Into::into).into();
    let no_agent = StoryRefusal::NoSuchAgent { agent: "zoe".into(), known };
    let pinned = |name: &str| Some(name.into());
    let on = |id: &str| BTreeSet::from([id.into()]);
    let edit = |edit| StoryEvent::EditRequested { story: story("p", "1"), edit };
    let to = |to: &str| StoryEvent::MoveRequested { story: story("p", "1"), to: to.into() };
    let with = |change: &dyn Fn(&mut kennel_supervisor::story::NewStory)| {
        let mut new = new_story("backlog");
        change(&mut new);
        add(&other, new)
    };
    let cases = [
        (add(&story("q", "1"), new_story("current")), StoryRefusal::NoPipeline("q".into())),
        (add(&s, new_story("current")), StoryRefusal::IdTaken),
        (add(&other, new_story("curent")), no_stage.clone()),
        (with(&|new| new.pinned = pinned("zoe")), no_agent.clone()),
        (with(&|new| new.depends_on = on("7")), StoryRefusal::UnknownDependency("7".into())),
        (with(&|new| new.depends_on = on("2")), StoryRefusal::Cycle(vec!["2".into(), "2".into()])),
        (to("curent"), no_stage),
        (edit(Edit { pinned: Some(pinned("zoe")), ..Edit::default() }), no_agent),
        (StoryEvent::FreezeRequested(other.clone()), StoryRefusal::NoSuchStory(other.clone())),
        (StoryEvent::UnholdRequested(other.clone()), StoryRefusal::NoSuchStory(other.clone())),
    ];
    for (event, refusal) in cases {
        assert_eq!(mind.tell(&event), Err(refusal), "{event:?}");
    }
    mind.must(&StoryEvent::BlockRequested(s.clone()));
    let held = StoryRefusal::Held(Hold::Blocked(Blocked::ByUser));
    assert_eq!(mind.tell(&StoryEvent::FreezeRequested(s.clone())), Err(held));
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    mind.must(&to("done"));
    let ended = StoryRefusal::Ended("done".into());
    assert_eq!(mind.tell(&StoryEvent::BlockRequested(s.clone())), Err(ended));
}

#[test]
fn a_cycle_is_named_from_its_beginning_to_its_end() {
    let mut mind = mind();
    for id in ["a", "b", "c", "d"] {
        mind.must(&add(&story("p", id), new_story("backlog")));
    }
    let mut depend = |id: &str, on: &[&str]| {
        let depends_on = Some(on.iter().map(|id| (*id).into()).collect());
        let edit = Edit { depends_on, ..Edit::default() };
        mind.tell(&StoryEvent::EditRequested { story: story("p", id), edit })
    };
    assert_eq!(depend("a", &["b", "d"]), Ok(vec![]));
    assert_eq!(depend("b", &["c", "d"]), Ok(vec![]));
    let cycle = ["c", "a", "b", "c"].map(Into::into).into();
    assert_eq!(depend("c", &["d", "a"]), Err(StoryRefusal::Cycle(cycle)));
    assert_eq!(depend("c", &["d"]), Ok(vec![]));
}

#[test]
fn a_dependency_is_met_by_success_alone_and_also_from_the_archive() {
    for (to, met) in [("done", true), ("archived", false), ("parked", false)] {
        let (mut mind, first, second) = (mind(), story("p", "1"), story("p", "2"));
        mind.must(&add(&first, new_story("backlog")));
        let mut new = new_story("current");
        new.depends_on = BTreeSet::from(["1".into()]);
        mind.must(&add(&second, new));
        assert_eq!(mind.why(&second), Some(Reason::DependsOn(vec!["1".into()])));
        mind.must(&StoryEvent::MoveRequested { story: first.clone(), to: to.into() });
        assert_eq!(mind.work(&second).is_some(), met, "{to}");
        let gone = StoryEvent::LeaveRequested { story: first.clone(), how: Leave::Archive };
        mind.must(&gone);
        assert_eq!(mind.stories.gone(&first), Some(Gone::Archived { done: met }));
        assert_eq!(mind.work(&second).is_some(), met, "{to} and archived");
    }
}

#[test]
fn turns_go_by_stage_then_priority_then_age() {
    let mut mind = mind();
    mind.must(&change("current", |rule| rule.agents = vec!["ann".into()]));
    let waits = [("low", -1), ("old", 0), ("new", 0), ("high", 5)];
    mind.must(&add(&story("p", "busy"), new_story("current")));
    for (id, priority) in waits {
        let mut new = new_story("current");
        new.priority = priority;
        mind.must(&add(&story("p", id), new));
        assert_eq!(mind.why(&story("p", id)), Some(Reason::AgentsBusy));
    }
    let mut order = vec![];
    for _ in 0..waits.len() {
        let all: Vec<_> = mind.stories.stories(&"p".into()).map(|(id, _)| id.clone()).collect();
        let has = |id: &&_| mind.work(&StoryRef::new(&"p".into(), id)).is_some();
        let busy = all.iter().find(has).expect("one works").clone();
        let busy = StoryRef::new(&"p".into(), &busy);
        mind.must(&StoryEvent::MoveRequested { story: busy.clone(), to: "parked".into() });
        let number = mind.story(&busy).step.as_ref().expect("it is being stopped").number;
        mind.must(&ended(step(&busy, number), Outcome::Stopped));
        let all: Vec<_> = mind.stories.stories(&"p".into()).map(|(id, _)| id.clone()).collect();
        let has = |id: &&_| mind.work(&StoryRef::new(&"p".into(), id)).is_some();
        order.push(all.iter().find(has).expect("one works").to_string());
    }
    assert_eq!(order, ["high", "old", "new", "low"]);
}

#[test]
fn the_pinned_agent_comes_first_and_anybody_else_if_it_is_busy_or_of_another_stage() {
    let mut mind = mind();
    let pinned = |name: &str| {
        let mut new = new_story("current");
        new.pinned = Some(name.into());
        new
    };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|id| story("p", id));
    mind.must(&add(&a, pinned("bob")));
    mind.end(&a, Outcome::Success);
    assert_eq!(agent_of(&mind, &a), Some("bob".into()));
    mind.must(&add(&b, pinned("bob")));
    mind.end(&b, Outcome::Success);
    assert_eq!(agent_of(&mind, &b), Some("ann".into()));
    mind.must(&add(&c, pinned("rev")));
    assert_eq!(mind.why(&c), Some(Reason::AgentsBusy));
    let mut more = pipeline();
    more.agents[1].max_instances = 2;
    mind.must(&read("p", more));
    let Some(Work::Prepare { agent: Some((agent, 2)) }) = mind.work(&c) else { panic!() };
    assert_eq!(agent.as_str(), "bob");
    mind.must(&add(&d, new_story("current")));
    assert_eq!(mind.why(&d), Some(Reason::AgentsBusy));
    mind.end(&a, FAILED);
    let Some(Work::Prepare { agent: Some((_, 1)) }) = mind.work(&d) else { panic!() };
}

#[test]
fn a_number_of_instances_that_was_lowered_counts_all_that_live() {
    let mut mind = mind();
    let with = |max| {
        let mut one = pipeline();
        one.agents[0].max_instances = max;
        if let StageKind::Work(rule) = &mut one.stages[1].kind {
            rule.agents = vec!["ann".into()];
        }
        read("p", one)
    };
    mind.must(&with(2));
    let [a, b, c] = ["a", "b", "c"].map(|id| story("p", id));
    mind.must(&add(&a, new_story("current")));
    mind.must(&add(&b, new_story("current")));
    mind.must(&with(1));
    mind.end(&a, Outcome::Stopped);
    mind.must(&add(&c, new_story("current")));
    assert_eq!(mind.why(&c), Some(Reason::AgentsBusy), "the second one of it lives");
    mind.end(&b, Outcome::Stopped);
    assert_eq!(mind.why(&c), None);
}

#[test]
fn a_story_is_told_done_once() {
    let (mut mind, s) = with_story("backlog");
    for to in ["done", "archived", "backlog", "done"] {
        mind.must(&StoryEvent::MoveRequested { story: s.clone(), to: to.into() });
    }
    let expected = [StoryKind::Done, StoryKind::Moved, StoryKind::Moved, StoryKind::Done];
    assert_eq!(told(&mind), expected, "again only after it was not");
}

#[test]
fn a_stage_has_no_more_steps_than_it_may() {
    let mut mind = mind();
    mind.must(&change("current", |rule| rule.max_runs = Some(1)));
    let [a, b] = ["a", "b"].map(|id| story("p", id));
    mind.must(&add(&a, new_story("current")));
    mind.must(&add(&b, new_story("current")));
    assert_eq!(mind.why(&b), Some(Reason::StageFull { max: 1 }));
    mind.must(&change("current", |rule| rule.max_runs = Some(2)));
    assert_eq!(mind.why(&b), None);
}

#[test]
fn a_failed_gate_is_told_to_the_next_agent_and_waits_grow_until_it_is_blocked() {
    let (mut mind, s) = with_story("current");
    let tail = |n: u32| Some(format!("gate {n}").as_str().into());
    for (retry, wait_ms) in [(1, BACK_OFF_MS), (2, 150)] {
        mind.end(&s, Outcome::Success);
        mind.end(&s, Outcome::Failed { ahead: true, tail: tail(retry) });
        let Some(Reason::Waits(wait)) = mind.why(&s) else { panic!("{:?}", mind.why(&s)) };
        assert_eq!((wait.for_ms, wait.why), (wait_ms, WaitFor::Retry(Cause::Gate(0))));
        mind.now_ms += wait_ms - 1;
        mind.must(&StoryEvent::Tick);
        assert_eq!(mind.work(&s), None, "too early");
        mind.now_ms += 1;
        assert_eq!(mind.why(&s), Some(Reason::Ready));
        mind.must(&StoryEvent::Tick);
        assert_eq!(why_of(&mind, &s), Some(Why::Retry(tail(retry))));
    }
    mind.end(&s, FAILED);
    let (stage, cause) = ("current".into(), Cause::Agent);
    let blocked = Hold::Blocked(Blocked::Retries { stage, max: 2, cause });
    assert_eq!(mind.why(&s), Some(Reason::Held(blocked)));
    assert_eq!(told(&mind), [StoryKind::Retried, StoryKind::Retried, StoryKind::Blocked]);
    mind.now_ms += 1_000_000;
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    assert_eq!(agent_of(&mind, &s), Some("ann".into()));
    assert!(mind.story(&s).retries.is_empty());
    assert_eq!(mind.story(&s).retries_used, 2);
}

#[test]
fn commits_of_a_failed_agent_are_gated_and_not_thrown_away() {
    let failed = Outcome::Failed { ahead: true, tail: None };
    for outcome in [failed, Outcome::Limit { ahead: true, tail: None }] {
        let (mut mind, s) = with_story("current");
        mind.end(&s, outcome.clone());
        assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
        assert_eq!(mind.story(&s).retries_used, 0);
        mind.end(&s, FAILED);
        assert_eq!(mind.story(&s).retries_used, 1);
        // Nothing looks at them here: they are no reason to go on.
        let (mut mind, s) = with_story("qa");
        mind.end(&s, outcome);
        assert_eq!(mind.story(&s).retries_used, 1);
    }
}

#[test]
fn a_limit_is_a_retry_in_the_same_stage_and_never_a_loop() {
    let (mut mind, s) = with_story("qa");
    let mut runs = 0;
    while agent_of(&mind, &s).is_some() {
        runs += 1;
        mind.end(&s, Outcome::Limit { ahead: false, tail: None });
        assert_eq!(mind.work(&s), None, "killed and started again at once");
        if mind.stories.next_wake(mind.now_ms).is_some() {
            wait_over(&mut mind);
        }
    }
    assert_eq!(runs, 3);
    let (stage, cause) = ("qa".into(), Cause::Limit);
    let blocked = Blocked::Retries { stage, max: 2, cause };
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(blocked)));
}

#[test]
fn two_stages_cannot_send_a_story_to_and_fro_for_ever() {
    let (mut mind, s) = with_story("qa");
    let mut back = 0;
    while mind.story(&s).hold.is_none() {
        assert_eq!(agent_of(&mind, &s), Some("rev".into()));
        mind.end(&s, FAILED);
        if mind.story(&s).hold.is_none() {
            assert_eq!(mind.story(&s).stage.as_str(), "current");
            wait_over(&mut mind);
            assert_eq!(why_of(&mind, &s), Some(Why::Retry(None)));
            for _ in 0..3 {
                mind.end(&s, Outcome::Success);
            }
            back += 1;
        }
    }
    assert_eq!(back, 2);
    assert_eq!(mind.story(&s).stage.as_str(), "qa");
}

#[test]
fn whoever_was_stopped_with_everything_else_goes_on_without_a_retry() {
    let (mut mind, s) = with_story("current");
    mind.end(&s, Outcome::Interrupted);
    assert_eq!((mind.story(&s).hold.clone(), mind.story(&s).retries_used), (None, 0));
    assert!(matches!(mind.work(&s), Some(Work::Agent { .. })), "it is worked on again");
}

#[test]
fn another_title_is_a_fact_of_its_own_and_the_same_one_is_none() {
    let (mut mind, s) = with_story("current");
    let title = |words: &str| {
        let edit = Edit { words: Some(words.into()), ..Edit::default() };
        StoryEvent::EditRequested { story: s.clone(), edit }
    };
    mind.must(&title("one"));
    assert_eq!(mind.story(&s).words, Some("one".into()));
    mind.must(&title("two"));
    assert_eq!(mind.story(&s).words, Some("two".into()));
}

#[test]
fn a_stop_by_somebody_is_not_answered_by_a_start() {
    let (mut mind, s) = with_story("current");
    let effects = mind.end(&s, Outcome::Stopped);
    assert_eq!((effects, mind.why(&s)), (vec![], Some(Reason::Held(Hold::Frozen))));
    assert_eq!(mind.story(&s).retries_used, 0);
    mind.now_ms += 1_000_000;
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    assert_eq!(why_of(&mind, &s), Some(Why::First));
}

#[test]
fn what_is_held_is_stopped_and_goes_on_only_after_the_proof() {
    for hold in [StoryEvent::FreezeRequested, StoryEvent::BlockRequested] {
        let (mut mind, s) = with_story("current");
        mind.must(&StoryEvent::StepStarted(step(&s, 2)));
        let effects = mind.must(&hold(s.clone()));
        assert_eq!(effects, [StoryEffect::StopStep(step(&s, 2))]);
        mind.must(&StoryEvent::UnholdRequested(s.clone()));
        assert_eq!(mind.story(&s).step.as_ref().map(|s| s.phase), Some(StepPhase::Stopping));
        let effects = mind.must(&ended(step(&s, 2), FAILED));
        assert_eq!(effects.len(), 1, "{effects:?}");
        assert_eq!(agent_of(&mind, &s), Some("ann".into()));
        assert_eq!(mind.story(&s).retries_used, 0, "it was ended by us");
    }
}

#[test]
fn what_succeeded_before_the_stop_reached_it_is_not_done_twice() {
    let (mut mind, s) = with_story("current");
    mind.must(&StoryEvent::FreezeRequested(s.clone()));
    mind.must(&ended(step(&s, 2), Outcome::Success));
    assert_eq!(mind.work(&s), None);
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
}

#[test]
fn a_moved_story_has_the_old_run_stopped_and_its_end_says_nothing_about_the_new_stage() {
    for outcome in [Outcome::Success, FAILED, Outcome::Stopped, Outcome::NeverStarted] {
        let (mut mind, s) = with_story("current");
        let to = |stage: &str| StoryEvent::MoveRequested { story: s.clone(), to: stage.into() };
        assert_eq!(mind.must(&to("qa")), [StoryEffect::StopStep(step(&s, 2))]);
        assert_eq!(mind.must(&to("current")), [], "it is being stopped already");
        mind.must(&to("qa"));
        mind.must(&ended(step(&s, 2), outcome));
        assert_eq!(agent_of(&mind, &s), Some("rev".into()));
        assert_eq!(mind.story(&s).progress, Progress::Fresh(Why::First));
        assert_eq!((mind.story(&s).hold.clone(), mind.story(&s).retries_used), (None, 0));
    }
}

#[test]
fn the_base_moving_merges_and_gates_again_and_not_for_ever() {
    let (mut mind, s) = with_story("merge");
    let mut times = 0;
    while mind.story(&s).hold.is_none() {
        assert_eq!(mind.work(&s), Some(&Work::Merge));
        mind.end(&s, Outcome::Success);
        assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
        mind.end(&s, Outcome::Success);
        assert_eq!(mind.work(&s), Some(&Work::Land));
        mind.end(&s, Outcome::BaseMoved);
        times += 1;
    }
    assert_eq!(times, 6);
    let hold = Some(Hold::Blocked(Blocked::BaseMoves { times: 5 }));
    assert_eq!(mind.story(&s).hold, hold);
    assert_eq!(mind.story(&s).retries_used, 0);
}

#[test]
fn a_conflict_goes_back_to_who_writes_with_where_it_is() {
    let (mut mind, s) = with_story("merge");
    let tail = Some("both changed x".into());
    mind.end(&s, Outcome::Conflict { tail: tail.clone() });
    assert_eq!(mind.story(&s).stage.as_str(), "current");
    wait_over(&mut mind);
    assert_eq!(why_of(&mind, &s), Some(Why::Conflict(tail)));
    assert_eq!(told(&mind), [StoryKind::SentBack]);

    let (mut mind, s) = with_story("merge");
    mind.must(&change("current", |rule| rule.agents = vec!["rev".into()]));
    mind.end(&s, Outcome::Conflict { tail: None });
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(Blocked::Conflict)));
}

#[test]
fn ceilings_add_up_over_runs_and_no_agent_is_started_at_one() {
    let (mut mind, s) = (mind(), story("p", "1"));
    let mut new = new_story("current");
    new.ceilings = Ceilings { turns: Some(10), money_micros: Some(500), retries: None };
    mind.must(&add(&s, new));
    let effects = mind.end(&s, Outcome::Success);
    let left = |effects: &[StoryEffect]| match effects {
        [StoryEffect::StartStep { left, .. }] => *left,
        other => panic!("{other:?}"),
    };
    assert_eq!(left(&effects), Left { turns: Some(10), money_micros: Some(500) });
    mind.end_with(&s, FAILED, Used { turns: 4, money_micros: 500 }, None);
    mind.now_ms += BACK_OFF_MS;
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    let reached = Blocked::Ceiling { of: Ceiling::Money, used: 500, max: 500 };
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(reached.clone())));
    let unhold = StoryEvent::UnholdRequested(s.clone());
    assert_eq!(mind.tell(&unhold), Err(StoryRefusal::AtCeiling(reached)));
    let ceilings = Some(Ceilings { turns: Some(10), money_micros: None, retries: None });
    let edit = Edit { ceilings, ..Edit::default() };
    mind.must(&StoryEvent::EditRequested { story: s.clone(), edit });
    assert_eq!(left(&mind.must(&unhold)), Left { turns: Some(6), money_micros: None });
    // What is worked on needs no agent for its gates.
    mind.end_with(&s, Outcome::Success, Used { turns: 7, money_micros: 1 }, None);
    assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
    assert_eq!(mind.story(&s).used, Used { turns: 11, money_micros: 501 });
    mind.end(&s, Outcome::Success);
    mind.end(&s, Outcome::Success);
    let reached = Blocked::Ceiling { of: Ceiling::Turns, used: 11, max: 10 };
    assert_eq!(mind.story(&s).stage.as_str(), "qa");
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(reached)));
}

#[test]
fn a_storys_own_retries_are_bounded_over_all_stages() {
    let (mut mind, s) = (mind(), story("p", "1"));
    let mut new = new_story("current");
    new.ceilings.retries = Some(1);
    mind.must(&add(&s, new));
    mind.end(&s, FAILED);
    wait_over(&mut mind);
    mind.end(&s, Outcome::Success);
    mind.end(&s, FAILED);
    let reached = Blocked::Ceiling { of: Ceiling::Retries, used: 1, max: 1 };
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(reached)));
}

#[test]
fn what_was_refused_is_tried_again_and_costs_no_retry() {
    let (mut mind, s) = with_story("current");
    let mut waited = vec![];
    for number in 2..10 {
        let (step, why) = (step(&s, number), TurnedAway::HostFull);
        mind.must(&StoryEvent::StepRefused { step, why });
        let Some(Reason::Waits(wait)) = mind.why(&s) else { panic!() };
        assert_eq!(wait.why, WaitFor::TurnedAway(why));
        waited.push(wait.for_ms / 1000);
        wait_over(&mut mind);
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!((mind.story(&s).retries_used, mind.story(&s).misfires), (0, 0));
    mind.must(&StoryEvent::StepStarted(step(&s, 10)));
    // What lives is not refused any more.
    let refused = StoryEvent::StepRefused { step: step(&s, 10), why: TurnedAway::SlotTaken };
    assert_eq!(mind.must(&refused), []);
    assert!(mind.story(&s).step.is_some());
}

#[test]
fn who_waits_for_a_configuration_waits_no_longer_than_for_that() {
    let (mut mind, s) = with_story("current");
    let refused = |number, why| StoryEvent::StepRefused { step: step(&s, number), why };
    for (number, why, goes_on) in
        [(2, TurnedAway::Unconfigured, true), (3, TurnedAway::HostFull, false)]
    {
        mind.must(&refused(number, why));
        assert!(mind.story(&s).step.is_none());
        let again = mind.stories.pipeline(&"p".into()).cloned().expect("it was read");
        mind.must(&read("p", again));
        assert_eq!(mind.story(&s).step.is_some(), goes_on, "{why:?}");
    }
}

#[test]
fn what_never_starts_waits_longer_each_time_and_is_blocked_without_a_retry() {
    let (mut mind, s) = with_story("current");
    for number in 2..6 {
        mind.must(&ended(step(&s, number), Outcome::NeverStarted));
        wait_over(&mut mind);
    }
    mind.must(&ended(step(&s, 6), Outcome::NeverStarted));
    let hold = Some(Hold::Blocked(Blocked::NeverStarts { tries: 5 }));
    assert_eq!((mind.story(&s).hold.clone(), mind.story(&s).retries_used), (hold, 0));

    // So is work that nobody could look at: nobody says that it failed.
    let (mut mind, s) = with_story("current");
    mind.must(&StoryEvent::StepStarted(step(&s, 2)));
    mind.must(&ended(step(&s, 2), Outcome::Unseen));
    assert_eq!((mind.story(&s).misfires, mind.story(&s).retries_used), (1, 0));
    assert_eq!(mind.story(&s).progress, Progress::Fresh(Why::First));

    let (mut mind, s) = with_story("current");
    mind.must(&ended(step(&s, 2), Outcome::NeverStarted));
    wait_over(&mut mind);
    mind.end(&s, Outcome::Success);
    assert_eq!(mind.story(&s).misfires, 0);
}

#[test]
fn a_rate_limit_pauses_its_provider_for_all_moves_only_later_and_costs_no_retry() {
    let (mut mind, s) = with_story("current");
    mind.must(&read("q", pipeline()));
    let now = mind.now_ms;
    let until = now + 60_000;
    mind.end(&s, Outcome::RateLimited { until_ms: Some(until) });
    // The other coder is served by somebody else.
    assert_eq!(agent_of(&mind, &s), Some("bob".into()));
    assert_eq!(mind.story(&s).retries_used, 0);
    let [other, third] = [story("q", "1"), story("p", "3")];
    mind.must(&add(&other, new_story("qa")));
    let paused = |until_ms| Some(Reason::Paused { provider: "north".into(), until_ms });
    assert_eq!(mind.why(&other), paused(until));
    mind.must(&add(&third, new_story("current")));
    assert_eq!(mind.why(&third), Some(Reason::AgentsBusy));
    let limited = |until_ms| StoryEvent::RateLimited { provider: "north".into(), until_ms };
    mind.must(&limited(Some(until - 1)));
    mind.must(&limited(None));
    assert_eq!(mind.why(&other), paused(until));
    mind.must(&limited(Some(until + 5)));
    assert_eq!(mind.why(&other), paused(until + 5));
    mind.now_ms = until + 4;
    assert_eq!(mind.stories.next_wake(mind.now_ms), Some(until + 5));
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    let mut earlier = mind.clone();
    let effects = earlier.must(&StoryEvent::UnpauseRequested("north".into()));
    assert_eq!(effects.len(), 2, "{effects:?}");
    mind.now_ms += 1;
    assert_eq!(mind.must(&StoryEvent::Tick).len(), 2);
    assert_eq!(told(&mind).iter().filter(|kind| **kind == StoryKind::Paused).count(), 2);
}

#[test]
fn a_pause_has_a_least_and_a_longest_time() {
    let (mut mind, _) = with_story("backlog");
    let (now, minute) = (mind.now_ms, 60_000);
    for (said, wait) in [
        (Some(now - 5), minute / 2),
        (None, 5 * minute),
        (Some(now + minute), minute),
        (Some(u64::MAX), 8 * 24 * 60 * minute),
    ] {
        let mut mind = mind.clone();
        mind.must(&StoryEvent::RateLimited { provider: "north".into(), until_ms: said });
        assert_eq!(mind.stories.paused_until(&"north".into(), now), Some(now + wait), "{said:?}");
    }
    mind.must(&StoryEvent::UnpauseRequested("north".into()));
    assert_eq!(mind.facts.len(), 2, "nothing was paused");
}

#[test]
fn a_pause_that_the_clock_was_set_back_from_is_over() {
    let (mut mind, _) = with_story("backlog");
    let (now, year) = (mind.now_ms, 365 * 24 * 60 * 60 * 1000);
    let paused = |mind: &Mind| mind.stories.paused_until(&"north".into(), mind.now_ms);
    mind.now_ms = now + year;
    mind.must(&StoryEvent::RateLimited { provider: "north".into(), until_ms: None });
    assert!(paused(&mind).is_some());
    mind.now_ms = now;
    assert_eq!(paused(&mind), None);
}

#[test]
fn a_merge_that_was_cut_off_is_undone_before_anybody_works_there() {
    let limit = Outcome::Limit { ahead: false, tail: None };
    for (outcome, again) in [
        (limit, true),
        (FAILED, true),
        (Outcome::Stopped, true),
        (Outcome::Interrupted, true),
        (Outcome::Conflict { tail: None }, false),
        (Outcome::NeverStarted, false),
    ] {
        let (mut mind, s) = with_story("merge");
        assert_eq!(mind.work(&s), Some(&Work::Merge));
        mind.end(&s, outcome.clone());
        if mind.story(&s).hold.is_some() {
            mind.must(&StoryEvent::UnholdRequested(s.clone()));
        }
        if mind.work(&s).is_none() {
            wait_over(&mut mind);
        }
        let next = mind.work(&s);
        assert!(next.is_some(), "{outcome:?}");
        assert_eq!(matches!(next, Some(Work::Prepare { .. })), again, "{outcome:?}: {next:?}");
    }
}

#[test]
fn sessions_are_of_one_agent_and_one_model() {
    let (mut mind, s) = with_story("current");
    let session = |mind: &Mind| match mind.work(&s) {
        Some(Work::Agent { session, .. }) => session.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(session(&mind), None);
    mind.end_with(&s, FAILED, Used::default(), Some("s-1".into()));
    wait_over(&mut mind);
    assert_eq!(session(&mind), Some("s-1".into()));
    let mut newer = pipeline();
    newer.agents[0].model = "ann-2".into();
    mind.must(&read("p", newer.clone()));
    mind.end(&s, FAILED);
    wait_over(&mut mind);
    assert_eq!(session(&mind), None, "of another model");
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    newer.agents[0].model = "ann-1".into();
    newer.agents[0].resumes = false;
    mind.must(&read("p", newer));
    mind.end(&s, Outcome::Stopped);
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    assert_eq!(session(&mind), None, "of an agent that begins anew");
}

#[test]
fn drift_of_the_main_checkout_is_loud_however_the_run_ended() {
    for hold_first in [false, true] {
        let (mut mind, s) = with_story("current");
        if hold_first {
            mind.must(&StoryEvent::MoveRequested { story: s.clone(), to: "qa".into() });
        }
        mind.must(&ended(step(&s, 2), Outcome::Drifted));
        assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(Blocked::Drifted)));
        assert_eq!(told(&mind).last(), Some(&StoryKind::Blocked));
    }
}

#[test]
fn a_lost_run_keeps_its_story_until_a_proof_comes_and_is_counted_once() {
    let (mut mind, s) = with_story("current");
    let lost = |turns| StoryEvent::StepEnded {
        step: step(&s, 2),
        outcome: Outcome::Lost,
        used: Used { turns, money_micros: 1 },
        session: None,
    };
    mind.must(&lost(5));
    assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(Blocked::Lost)));
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    mind.now_ms += 1_000_000;
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    let seen = vec![SeenStep { step: step(&s, 2), stopping: false }];
    assert_eq!(mind.must(&StoryEvent::Reconcile(Seen::Steps(seen))), []);
    let asked = mind.must(&StoryEvent::Reconcile(Seen::Steps(vec![])));
    assert_eq!(asked, [StoryEffect::AskStep(step(&s, 2))]);
    let (outcome, used) = (Outcome::Stopped, Used { turns: 6, money_micros: 1 });
    mind.must(&StoryEvent::StepEnded { step: step(&s, 2), outcome, used, session: None });
    assert_eq!(mind.story(&s).used, Used { turns: 6, money_micros: 1 });
    assert_eq!(mind.why(&s), Some(Reason::Held(Hold::Frozen)), "somebody stopped it");
}

#[test]
fn a_proof_that_comes_late_ends_the_hold_and_means_what_it_says() {
    let lost_in = |stage: &str| {
        let (mut mind, s) = with_story(stage);
        mind.must(&ended(step(&s, 2), Outcome::Lost));
        (mind, s)
    };
    let (mut mind, s) = lost_in("current");
    mind.must(&ended(step(&s, 2), Outcome::Success));
    assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
    let (mut mind, s) = lost_in("current");
    mind.must(&ended(step(&s, 2), FAILED));
    assert_eq!((mind.story(&s).hold.clone(), mind.story(&s).retries_used), (None, 1));
    let (mut mind, s) = lost_in("current");
    mind.must(&StoryEvent::MoveRequested { story: s.clone(), to: "qa".into() });
    mind.must(&ended(step(&s, 2), Outcome::Stopped));
    assert_eq!(agent_of(&mind, &s), Some("rev".into()));
    // It was to end before it was lost, because of us.
    let (mut mind, s) = with_story("current");
    mind.must(&StoryEvent::LeaveRequested { story: s.clone(), how: Leave::Archive });
    mind.must(&ended(step(&s, 2), Outcome::Lost));
    mind.must(&ended(step(&s, 2), Outcome::Stopped));
    assert_eq!(mind.work(&s), Some(&Work::Remove));
}

#[test]
fn reconcile_stops_who_is_nobodys_once_and_its_story_waits_for_the_proof() {
    let (mut mind, s) = with_story("current");
    mind.end(&s, FAILED);
    let old = SeenStep { step: step(&s, 2), stopping: false };
    let gone = SeenStep { step: step(&story("p", "9"), 1), stopping: false };
    let strange = SeenStep { step: step(&story("x", "1"), 1), stopping: false };
    let seen = vec![old.clone(), gone.clone(), strange.clone()];
    let stops = [&old, &gone, &strange].map(|seen| StoryEffect::StopStep(seen.step.clone()));
    assert_eq!(mind.must(&StoryEvent::Reconcile(Seen::Unreadable)), []);
    assert_eq!(mind.must(&StoryEvent::Reconcile(Seen::Steps(seen.clone()))), stops);
    let stopping = |seen: SeenStep| SeenStep { stopping: true, ..seen };
    let again = Seen::Steps(seen.into_iter().map(stopping).collect());
    assert_eq!(mind.must(&StoryEvent::Reconcile(again.clone())), []);
    mind.now_ms += 1_000_000;
    assert_eq!(mind.must(&StoryEvent::Tick), []);
    assert_eq!(mind.why(&s), Some(Reason::Stray(step(&s, 2))));
    mind.must(&ended(step(&s, 2), Outcome::Lost));
    assert_eq!(mind.why(&s), Some(Reason::Stray(step(&s, 2))));
    let effects = mind.must(&ended(step(&s, 2), Outcome::Stopped));
    assert_eq!(effects.len(), 1, "{effects:?}");
}

#[test]
fn reconcile_says_again_what_a_crash_may_have_cut_off() {
    let (mut mind, s) = with_story("current");
    let (id, none) = (step(&s, 2), || StoryEvent::Reconcile(Seen::Steps(vec![])));
    let see = |stopping| {
        let step = step(&s, 2);
        StoryEvent::Reconcile(Seen::Steps(vec![SeenStep { step, stopping }]))
    };
    let effects = mind.must(&none());
    assert!(matches!(&effects[..], [StoryEffect::StartStep { step, .. }] if *step == id));
    assert_eq!(mind.must(&see(false)), []);
    assert_eq!(mind.story(&s).step.as_ref().map(|s| s.phase), Some(StepPhase::Alive));
    assert_eq!(mind.must(&none()), [StoryEffect::AskStep(id.clone())]);
    mind.must(&StoryEvent::FreezeRequested(s.clone()));
    assert_eq!(mind.must(&see(true)), []);
    assert_eq!(mind.must(&see(false)), [StoryEffect::StopStep(id.clone())]);
    assert_eq!(mind.must(&none()), [StoryEffect::StopStep(id.clone())]);
    assert_eq!(mind.must(&StoryEvent::StepStarted(id.clone())), [StoryEffect::StopStep(id)]);
}

#[test]
fn short_work_of_our_own_is_not_cut_off_and_not_begun_for_a_held_story() {
    let (mut mind, s) = with_story("merge");
    assert_eq!(mind.must(&StoryEvent::FreezeRequested(s.clone())), []);
    let asked = mind.must(&StoryEvent::Reconcile(Seen::Steps(vec![])));
    assert_eq!(asked, [StoryEffect::AskStep(step(&s, 2))]);
    mind.must(&ended(step(&s, 2), Outcome::Success));
    assert_eq!(mind.work(&s), None);
    mind.must(&StoryEvent::UnholdRequested(s.clone()));
    assert_eq!(mind.work(&s), Some(&Work::Gate { n: 0 }));
}

#[test]
fn a_story_leaves_after_the_proof_and_after_its_worktree() {
    for how in [Leave::Archive, Leave::Remove] {
        let (mut mind, s) = with_story("current");
        let leave = StoryEvent::LeaveRequested { story: s.clone(), how };
        assert_eq!(mind.must(&leave), [StoryEffect::StopStep(step(&s, 2))]);
        let to = StoryEvent::MoveRequested { story: s.clone(), to: "qa".into() };
        assert_eq!(mind.tell(&to), Err(StoryRefusal::Leaving(how)));
        mind.must(&ended(step(&s, 2), Outcome::Stopped));
        assert_eq!(mind.work(&s), Some(&Work::Remove));
        mind.end(&s, FAILED);
        assert_eq!(mind.story(&s).hold, Some(Hold::Blocked(Blocked::TreeStays)));
        assert_eq!(mind.story(&s).tree, Tree::Unsettled);
        mind.must(&StoryEvent::UnholdRequested(s.clone()));
        mind.end(&s, Outcome::Success);
        let gone = match how {
            Leave::Archive => Gone::Archived { done: false },
            Leave::Remove => Gone::Removed,
        };
        assert_eq!((mind.stories.story(&s), mind.stories.gone(&s)), (None, Some(gone)));
        assert_eq!(mind.tell(&add(&s, new_story("current"))), Err(StoryRefusal::IdTaken));
        assert_eq!(told(&mind).last(), Some(&StoryKind::Gone));
    }
}

#[test]
fn what_others_wait_for_is_not_removed() {
    let (mut mind, first) = with_story("backlog");
    let mut new = new_story("backlog");
    new.depends_on = BTreeSet::from(["1".into()]);
    mind.must(&add(&story("p", "2"), new));
    let leave = StoryEvent::LeaveRequested { story: first.clone(), how: Leave::Remove };
    assert_eq!(mind.tell(&leave), Err(StoryRefusal::NeededBy(vec!["2".into()])));
    mind.must(&StoryEvent::MoveRequested { story: story("p", "2"), to: "done".into() });
    mind.must(&leave);
    assert_eq!(mind.stories.gone(&first), Some(Gone::Removed));
}

#[test]
fn the_last_good_pipeline_stays_and_a_changed_one_is_used_at_once() {
    let (mut mind, s) = with_story("current");
    let mut bad = pipeline();
    bad.stages.clear();
    let refusal = StoryRefusal::BadPipeline(PipelineFault::Empty);
    assert_eq!(mind.tell(&read("p", bad)), Err(refusal));
    let unreadable = StoryEvent::PipelineUnreadable("p".into());
    assert_eq!(mind.must(&unreadable), []);
    assert_eq!(mind.stories.pipeline(&"p".into()), Some(&pipeline()));
    mind.end(&s, Outcome::Success);
    mind.end(&s, Outcome::Success);
    assert_eq!(mind.work(&s), Some(&Work::Gate { n: 1 }));
    mind.must(&change("current", |rule| rule.gates = 1));
    mind.end(&s, Outcome::Success);
    assert_eq!(mind.story(&s).stage.as_str(), "qa");
    let mut without = pipeline();
    without.stages.retain(|stage| stage.name.as_str() != "qa");
    let StageKind::Work(rule) = &mut without.stages[1].kind else { panic!() };
    rule.next = "merge".into();
    assert_eq!(mind.must(&read("p", without.clone())), [], "nobody is stopped");
    mind.end(&s, Outcome::Success);
    assert_eq!(mind.why(&s), Some(Reason::StageGone("qa".into())));
    without.stages.push(kennel_supervisor::story::Stage {
        name: "qa".into(),
        kind: StageKind::Terminal { success: false },
    });
    mind.must(&read("p", without));
    assert_eq!(mind.why(&s), Some(Reason::Ended));
}

#[test]
fn a_stage_that_became_an_end_has_its_runs_stopped() {
    let (mut mind, s) = with_story("qa");
    let mut other = pipeline();
    other.stages[2].kind = StageKind::Terminal { success: true };
    assert_eq!(mind.must(&read("p", other)), [StoryEffect::StopStep(step(&s, 2))]);
}

#[test]
fn nobody_works_where_nothing_is_to_be_done() {
    for (stage, reason) in [
        ("backlog", Reason::WaitsForMove),
        ("parked", Reason::WaitsForMove),
        ("done", Reason::Ended),
        ("archived", Reason::Ended),
    ] {
        let (mind, s) = with_story(stage);
        assert_eq!(mind.why(&s), Some(reason), "{stage}");
        assert_eq!(mind.story(&s).done, stage == "done");
    }
}

#[test]
fn two_projects_with_the_same_ids_do_not_know_each_other() {
    let mut mind = mind();
    mind.must(&read("q", pipeline()));
    let (one, two) = (story("p", "1"), story("q", "1"));
    mind.must(&add(&one, new_story("current")));
    mind.must(&add(&two, new_story("current")));
    assert_ne!(step(&one, 1).run(), step(&two, 1).run());
    mind.end(&one, Outcome::Success);
    mind.end(&two, Outcome::Success);
    // An agent of the same name in each: each project has its own.
    assert_eq!(agent_of(&mind, &one), agent_of(&mind, &two));
    mind.must(&ended(step(&one, 2), Outcome::Stopped));
    assert_eq!(mind.story(&one).hold, Some(Hold::Frozen));
    assert_eq!(mind.story(&two).hold, None);
}

#[test]
fn a_clock_that_is_set_back_makes_nobody_wait_for_ever() {
    let (mut mind, s) = with_story("current");
    mind.end(&s, FAILED);
    mind.now_ms -= 500_000;
    mind.must(&StoryEvent::Tick);
    assert_eq!(agent_of(&mind, &s), Some("ann".into()));
}

#[test]
fn facts_about_nobody_change_nothing() {
    let (mind, s) = with_story("backlog");
    let nobody = [story("x", "1"), story("p", "9")];
    for who in nobody {
        let mut stories = mind.stories.clone();
        for fact in [
            StoryFact::Unheld(who.clone()),
            StoryFact::Left(who.clone()),
            StoryFact::StepStarted(step(&who, 1)),
            StoryFact::StepStopping(step(&who, 1)),
            StoryFact::StepStopping(step(&s, 1)),
            StoryFact::StrayEnded(step(&who, 1)),
            StoryFact::Held { story: who.clone(), hold: Hold::Frozen },
        ] {
            stories.apply(&fact);
            assert_eq!(stories, mind.stories, "{fact:?}");
        }
    }
}
