//! From what happened to what is true and what to do: state and event in, facts and effects out.
//!
//! Owns: every rule about slots and runs. Changes nothing. A repeated request is already so; what
//! is not allowed is refused with a name. What was observed is never refused.

use alloc::vec;
use alloc::vec::Vec;

use crate::effect::Effect;
use crate::event::{Claim, Ending, Event, Stop, Unenforceable};
use crate::fact::Fact;
use crate::notice::Note;
use crate::state::{Leader, Phase, RunId, State};

/// What follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// These facts, made durable, then these effects.
    Do {
        /// In this order.
        facts: Vec<Fact>,
        /// In this order.
        effects: Vec<Effect>,
    },
    /// Nothing: it is so already.
    AlreadySo,
    /// Nothing: it may not be.
    Refused(Refusal),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The slot is not free: this run of it has no proof of death.
    SlotTaken {
        /// Who holds it.
        by: RunId,
    },
    /// The slot is not free, and will not be before somebody looks: what is left of this run could
    /// not be ended, or cannot be accounted for.
    StuckSurvivors {
        /// Whose.
        of: RunId,
    },
    /// The worktree is not free: this run works in it.
    WorktreeInUse {
        /// Who works in it.
        by: RunId,
    },
    /// The id belongs to another run.
    IdTaken,
    /// A limit that was asked for would not bind.
    LimitNotEnforceable(Unenforceable),
    /// The host holds as many runs as it can.
    HostFull {
        /// So many.
        room: usize,
    },
    /// Whose agent asks for it is about to end, or has.
    ParentEnding {
        /// Which run that is.
        parent: RunId,
    },
    /// The daemon is leaving.
    ShuttingDown,
    /// No such run holds a slot: it is over with proof, or was never admitted.
    NotLive,
    /// Nothing can be done to a run that nobody can account for.
    Lost,
}

/// Decides what follows from an event. Changes nothing.
pub fn decide(state: &State, event: &Event) -> Decision {
    match event {
        Event::RunRequested { run, claim, unenforceable } => {
            admit(state, run, claim, unenforceable.as_ref())
        }
        Event::Found { run, claim } => found(state, run, claim),
        Event::StopRequested { run, stop } => stop_with_children(state, run, *stop),
        Event::Started(run) => started(state, run),
        Event::Stopping(run) => stopping(state, run),
        Event::Exited(run) => exited(state, run),
        Event::Warned { run, limit } => warned(state, run, limit),
        Event::Noted { run, note } => noted(state, run, note),
        Event::Stuck(run) => stuck(state, run),
        Event::Ended { run, ending } => ended(state, run, *ending),
        Event::ShutdownRequested { stop } => shut_down(state, *stop),
        Event::LeaveRequested => Decision::Do { facts: vec![], effects: vec![Effect::Leave] },
    }
}

fn fact(fact: Fact) -> Decision {
    Decision::Do { facts: vec![fact], effects: vec![] }
}

fn admit(
    state: &State,
    run: &RunId,
    claim: &Claim,
    unenforceable: Option<&Unenforceable>,
) -> Decision {
    if let Some(known) = state.run(run) {
        return if known.claim == *claim {
            Decision::AlreadySo
        } else {
            Decision::Refused(Refusal::IdTaken)
        };
    }
    match why_not(state, claim, unenforceable) {
        Some(refusal) => Decision::Refused(refusal),
        None => Decision::Do {
            facts: vec![Fact::Admitted { run: run.clone(), claim: claim.clone() }],
            effects: vec![Effect::Start(run.clone())],
        },
    }
}

/// What lives has its place, whatever else is against it: no room, a daemon that leaves.
fn found(state: &State, run: &RunId, claim: &Claim) -> Decision {
    if state.run(run).is_some() {
        return Decision::AlreadySo;
    }
    if let Some(holder) = state.holder(&claim.slot) {
        return Decision::Refused(taken(state, holder));
    }
    if let Some(worker) = claim.worktree.as_ref().and_then(|w| state.lives_in(w)) {
        return Decision::Refused(Refusal::WorktreeInUse { by: worker.clone() });
    }
    Decision::Do {
        facts: vec![Fact::Admitted { run: run.clone(), claim: claim.clone() }],
        effects: vec![Effect::Adopt(run.clone())],
    }
}

/// The first reason against a new run, if there is one. Who holds the slot comes first: that is
/// what the caller can act on.
fn why_not(state: &State, claim: &Claim, unenforceable: Option<&Unenforceable>) -> Option<Refusal> {
    if let Some(holder) = state.holder(&claim.slot) {
        return Some(taken(state, holder));
    }
    if let Some(worker) = claim.worktree.as_ref().and_then(|w| state.lives_in(w)) {
        return Some(Refusal::WorktreeInUse { by: worker.clone() });
    }
    if state.is_shutting_down() {
        return Some(Refusal::ShuttingDown);
    }
    // Who is being stopped must not live on in what it asks for meanwhile.
    if let Some(parent) = claim.parent.as_ref().filter(|parent| is_ending(state, parent)) {
        return Some(Refusal::ParentEnding { parent: parent.clone() });
    }
    if let Some(limit) = unenforceable {
        return Some(Refusal::LimitNotEnforceable(limit.clone()));
    }
    state.is_full().then_some(Refusal::HostFull { room: state.room })
}

fn taken(state: &State, holder: &RunId) -> Refusal {
    match state.run(holder).map(|known| known.phase) {
        Some(Phase::Stuck | Phase::Lost) => Refusal::StuckSurvivors { of: holder.clone() },
        Some(Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. }) | None => {
            Refusal::SlotTaken { by: holder.clone() }
        }
    }
}

/// Nobody new; those that live are stopped together, if that is wanted.
fn shut_down(state: &State, stop: Option<Stop>) -> Decision {
    let mut facts = vec![];
    let mut effects = vec![];
    if !state.is_shutting_down() {
        facts.push(Fact::ShuttingDown);
    }
    for (run, _) in state.runs() {
        if let Some(stop) = stop
            && let Decision::Do { facts: more, effects: asked } = request_stop(state, run, stop)
        {
            facts.extend(more);
            effects.extend(asked);
        }
    }
    if facts.is_empty() && effects.is_empty() {
        return Decision::AlreadySo;
    }
    Decision::Do { facts, effects }
}

fn is_ending(state: &State, run: &RunId) -> bool {
    match state.run(run) {
        None => true,
        Some(known) => match known.phase {
            Phase::Running { .. } => false,
            Phase::Starting { stop } => stop.is_some(),
            Phase::Stopping { .. } | Phase::Stuck | Phase::Lost => true,
        },
    }
}

/// Who is stopped is stopped with all that its agent asked for, and that theirs did.
fn stop_with_children(state: &State, run: &RunId, stop: Stop) -> Decision {
    with_children(state, run, stop, request_stop(state, run, stop))
}

/// Children first, then theirs. Each once, whatever was found in records.
fn descendants<'a>(state: &'a State, run: &'a RunId) -> Vec<&'a RunId> {
    let mut family = vec![run];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        for child in state.children(parent) {
            if !family.contains(&child) {
                family.push(child);
            }
        }
        at += 1;
    }
    family.remove(0);
    family
}

/// The same decision, and every descendant of the run stopped too.
fn with_children(state: &State, run: &RunId, stop: Stop, decision: Decision) -> Decision {
    let (mut facts, mut effects) = match decision {
        Decision::Do { facts, effects } => (facts, effects),
        Decision::AlreadySo => (vec![], vec![]),
        Decision::Refused(_) => return decision,
    };
    for child in descendants(state, run) {
        if let Decision::Do { facts: more, effects: asked } = request_stop(state, child, stop) {
            facts.extend(more);
            effects.extend(asked);
        }
    }
    if facts.is_empty() && effects.is_empty() {
        return Decision::AlreadySo;
    }
    Decision::Do { facts, effects }
}

fn request_stop(state: &State, run: &RunId, stop: Stop) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::Refused(Refusal::NotLive);
    };
    let go = Decision::Do {
        facts: vec![Fact::Stopping { run: run.clone(), stop }],
        effects: vec![Effect::Stop { run: run.clone(), stop }],
    };
    match &known.phase {
        // Nobody can be asked yet: the stop is performed as soon as the start is known.
        Phase::Starting { stop: None } => fact(Fact::Stopping { run: run.clone(), stop }),
        Phase::Starting { stop: Some(old) } if shorter(stop, *old) => {
            fact(Fact::Stopping { run: run.clone(), stop })
        }
        Phase::Starting { stop: Some(_) } => Decision::AlreadySo,
        Phase::Running { .. } => go,
        Phase::Stopping { stop: old, .. } if sooner(stop, *old) => go,
        Phase::Stopping { .. } => Decision::AlreadySo,
        // Its keeper goes on trying by itself; asking again does no harm and may help.
        Phase::Stuck => {
            Decision::Do { facts: vec![], effects: vec![Effect::Stop { run: run.clone(), stop }] }
        }
        Phase::Lost => Decision::Refused(Refusal::Lost),
    }
}

/// Whether a second request shortens the first while neither grace has begun: both would begin at
/// the start. The run's own is not known here and gives way to one that is named.
fn shorter(new: Stop, old: Stop) -> bool {
    match old {
        Stop::Ask { grace_ms: Some(old_ms) } => match new {
            Stop::Ask { grace_ms } => grace_ms.is_some_and(|ms| ms < old_ms),
            Stop::Force => true,
        },
        Stop::Ask { grace_ms: None } | Stop::Force => sooner(new, old),
    }
}

/// Whether a second request can shorten the first. Graces begin at different times, so that only
/// the keeper can compare two of them: it is passed on whenever it names one.
fn sooner(new: Stop, old: Stop) -> bool {
    match new {
        Stop::Force => old != Stop::Force,
        Stop::Ask { grace_ms } => match old {
            Stop::Force => false,
            Stop::Ask { .. } => grace_ms.is_some(),
        },
    }
}

fn started(state: &State, run: &RunId) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    let stop_it = |facts, stop| Decision::Do {
        facts,
        effects: vec![Effect::Stop { run: run.clone(), stop }],
    };
    match &known.phase {
        // It was to be stopped and could not be told so: it was not up, or not to be reached.
        Phase::Starting { .. } | Phase::Stuck => match known.stop() {
            Some(stop) => stop_it(vec![Fact::Started(run.clone())], stop),
            None => fact(Fact::Started(run.clone())),
        },
        Phase::Running { .. } => Decision::AlreadySo,
        // It was to be stopped and nobody has told its keeper: we died in between.
        Phase::Stopping { stop, .. } => stop_it(vec![], *stop),
        Phase::Lost => Decision::AlreadySo,
    }
}

fn stopping(state: &State, run: &RunId) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    let seen = match &known.phase {
        Phase::Starting { stop: None } | Phase::Running { .. } | Phase::Stuck => {
            // What was asked for before it was stuck may have been sharper.
            let stop = known.stop().unwrap_or(Stop::Ask { grace_ms: None });
            fact(Fact::Stopping { run: run.clone(), stop })
        }
        Phase::Starting { stop: Some(_) } | Phase::Stopping { .. } | Phase::Lost => {
            Decision::AlreadySo
        }
    };
    with_children(state, run, Stop::Ask { grace_ms: None }, seen)
}

fn exited(state: &State, run: &RunId) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    match &known.phase {
        Phase::Starting { .. } => fact(Fact::Exited(run.clone())),
        Phase::Running { leader } | Phase::Stopping { leader, .. } => match leader {
            Leader::Lives => fact(Fact::Exited(run.clone())),
            Leader::Exited => Decision::AlreadySo,
        },
        Phase::Stuck | Phase::Lost => Decision::AlreadySo,
    }
}

fn warned(state: &State, run: &RunId, limit: &str) -> Decision {
    match state.run(run) {
        Some(known) if !known.warned.iter().any(|told| **told == *limit) => {
            fact(Fact::Warned { run: run.clone(), limit: limit.into() })
        }
        Some(_) | None => Decision::AlreadySo,
    }
}

fn noted(state: &State, run: &RunId, note: &Note) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    let news = known.noted.is_news(note) && known.phase != Phase::Lost;
    let noted = match news {
        true => fact(Fact::Noted { run: run.clone(), note: note.clone() }),
        false => Decision::AlreadySo,
    };
    match note {
        // It may have been reached while nobody was there to see it stopping.
        Note::LimitReached(_) => with_children(state, run, Stop::Ask { grace_ms: None }, noted),
        Note::Doing(_) | Note::Matched(_) | Note::Heartbeat(_) => noted,
    }
}

fn stuck(state: &State, run: &RunId) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    match &known.phase {
        Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. } => {
            fact(Fact::Stuck(run.clone()))
        }
        Phase::Stuck | Phase::Lost => Decision::AlreadySo,
    }
}

fn ended(state: &State, run: &RunId, ending: Ending) -> Decision {
    let Some(known) = state.run(run) else {
        return Decision::AlreadySo;
    };
    let over = fact(Fact::Ended { run: run.clone(), ending });
    match &known.phase {
        Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. } | Phase::Stuck => {
            over
        }
        // A proof that comes late is still one.
        Phase::Lost => match ending {
            Ending::Lost => Decision::AlreadySo,
            Ending::Dead | Ending::NeverStarted => over,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Stop = Stop::Ask { grace_ms: None };
    const ASK_SOON: Stop = Stop::Ask { grace_ms: Some(5) };
    const R: &str = "r1";

    fn run() -> RunId {
        R.into()
    }

    /// A state with one run of slot `s`, brought about by facts as it would be on replay.
    fn after(facts: &[Fact]) -> State {
        let mut state = State::default();
        state.apply(&Fact::Admitted { run: run(), claim: claim("s", None) });
        for fact in facts {
            state.apply(fact);
        }
        state
    }

    fn claim(slot: &str, worktree: Option<&str>) -> Claim {
        Claim { slot: slot.into(), worktree: worktree.map(Into::into), parent: None }
    }

    fn request(run: &str, claim: Claim) -> Event {
        Event::RunRequested { run: run.into(), claim, unenforceable: None }
    }

    fn stop_fact(stop: Stop) -> Fact {
        Fact::Stopping { run: run(), stop }
    }

    fn phases() -> [(&'static str, State); 7] {
        let started = Fact::Started(run());
        let lost = Fact::Ended { run: run(), ending: Ending::Lost };
        [
            ("starting", after(&[])),
            ("starting, to stop", after(&[stop_fact(ASK)])),
            ("running", after(core::slice::from_ref(&started))),
            ("exited", after(&[started.clone(), Fact::Exited(run())])),
            ("stopping", after(&[started.clone(), stop_fact(ASK)])),
            ("stuck", after(&[started.clone(), Fact::Stuck(run())])),
            ("lost", after(&[started, lost])),
        ]
    }

    #[test]
    fn a_slot_is_free_only_after_proof_or_if_nothing_ever_started() {
        let ask = |state: &State| decide(state, &request("r2", claim("s", None)));
        for (name, mut state) in phases() {
            let taken = Decision::Refused(match name {
                "stuck" | "lost" => Refusal::StuckSurvivors { of: run() },
                _ => Refusal::SlotTaken { by: run() },
            });
            assert_eq!(ask(&state), taken, "{name}");
            for (ending, frees) in
                [(Ending::Lost, false), (Ending::NeverStarted, true), (Ending::Dead, true)]
            {
                let mut state = state.clone();
                state.apply(&Fact::Ended { run: run(), ending });
                let admitted = matches!(ask(&state), Decision::Do { .. });
                assert_eq!(admitted, frees, "{name}, {ending:?}");
            }
            state.apply(&Fact::ShuttingDown);
            assert_eq!(ask(&state), taken, "{name}");
        }
    }

    #[test]
    fn a_start_is_admitted_once_and_not_while_shutting_down() {
        let event = request(R, claim("s", None));
        let admitted = Decision::Do {
            facts: vec![Fact::Admitted { run: run(), claim: claim("s", None) }],
            effects: vec![Effect::Start(run())],
        };
        let mut state = State::default();
        assert_eq!(decide(&state, &event), admitted);
        for (name, state) in phases() {
            assert_eq!(decide(&state, &event), Decision::AlreadySo, "{name}");
            let other = request(R, claim("t", None));
            assert_eq!(decide(&state, &other), Decision::Refused(Refusal::IdTaken), "{name}");
        }
        state.apply(&Fact::ShuttingDown);
        assert_eq!(decide(&state, &event), Decision::Refused(Refusal::ShuttingDown));
        let again = Event::ShutdownRequested { stop: Some(ASK) };
        assert_eq!(decide(&state, &again), Decision::AlreadySo);
    }

    #[test]
    fn every_reason_against_a_start_has_its_name() {
        let mut state = State::with_room_for(1);
        let unenforceable =
            Some(Unenforceable { limit: "max_turns".into(), because: "no format".into() });
        let limited = Event::RunRequested {
            run: "r2".into(),
            claim: claim("t", None),
            unenforceable: unenforceable.clone(),
        };
        let refused = |state: &State, event: &Event| match decide(state, event) {
            Decision::Refused(refusal) => Some(refusal),
            Decision::Do { .. } | Decision::AlreadySo => None,
        };
        let expected = unenforceable.map(Refusal::LimitNotEnforceable);
        assert_eq!(refused(&state, &limited), expected);
        state.apply(&Fact::Admitted { run: run(), claim: claim("s", Some("/w")) });
        let elsewhere = request("r2", claim("t", Some("/w")));
        let expected = Some(Refusal::WorktreeInUse { by: run() });
        assert_eq!(refused(&state, &elsewhere), expected);
        let full = request("r2", claim("t", Some("/w2")));
        assert_eq!(refused(&state, &full), Some(Refusal::HostFull { room: 1 }));
        state.apply(&Fact::Ended { run: run(), ending: Ending::Dead });
        assert_eq!(refused(&state, &elsewhere), None);
    }

    #[test]
    fn a_limit_that_is_near_is_told_once() {
        let mut state = after(&[Fact::Started(run())]);
        let event = |limit: &str| Event::Warned { run: run(), limit: limit.into() };
        let told = Fact::Warned { run: run(), limit: "wall".into() };
        assert_eq!(decide(&state, &event("wall")), fact(told.clone()));
        state.apply(&told);
        assert_eq!(decide(&state, &event("wall")), Decision::AlreadySo);
        assert!(matches!(decide(&state, &event("idle")), Decision::Do { .. }));
        assert_eq!(decide(&State::default(), &event("wall")), Decision::AlreadySo);
    }

    #[test]
    fn a_run_that_was_found_is_looked_at_and_never_started() {
        let mut state = State::with_room_for(0);
        let event = Event::Found { run: run(), claim: claim("s", None) };
        let expected = Decision::Do {
            facts: vec![Fact::Admitted { run: run(), claim: claim("s", None) }],
            effects: vec![Effect::Adopt(run())],
        };
        assert_eq!(decide(&state, &event), expected);
        state.apply(&Fact::Admitted { run: run(), claim: claim("s", None) });
        assert_eq!(decide(&state, &event), Decision::AlreadySo);
        let other = Event::Found { run: "r2".into(), claim: claim("s", None) };
        assert_eq!(decide(&state, &other), Decision::Refused(Refusal::SlotTaken { by: run() }));
    }

    #[test]
    fn a_shutdown_stops_every_run_that_lives_or_none() {
        let mut state = after(&[Fact::Started(run())]);
        state.apply(&Fact::Admitted { run: "r2".into(), claim: claim("t", None) });
        let leave_them = Event::ShutdownRequested { stop: None };
        assert_eq!(decide(&state, &leave_them), fact(Fact::ShuttingDown));
        let expected = Decision::Do {
            facts: vec![
                Fact::ShuttingDown,
                stop_fact(ASK),
                Fact::Stopping { run: "r2".into(), stop: ASK },
            ],
            effects: vec![Effect::Stop { run: run(), stop: ASK }],
        };
        assert_eq!(decide(&state, &Event::ShutdownRequested { stop: Some(ASK) }), expected);
    }

    #[test]
    fn facts_that_were_not_taken_are_undone() {
        for (name, state) in phases() {
            let facts = [
                Fact::Admitted { run: "r2".into(), claim: claim("t", Some("/w")) },
                stop_fact(ASK),
                Fact::ShuttingDown,
                Fact::Ended { run: run(), ending: Ending::Dead },
            ];
            let mut changed = state.clone();
            let mut befores = vec![];
            for fact in &facts {
                befores.push(changed.before(fact.run().unwrap_or(&run())));
                changed.apply(fact);
            }
            assert_ne!(changed, state, "{name}");
            befores.into_iter().rev().for_each(|before| changed.undo(before));
            assert_eq!(changed, state, "{name}");
        }
    }

    #[test]
    fn a_stop_is_recorded_before_it_is_performed_and_only_ever_shortened() {
        let performed = |stop| Decision::Do {
            facts: vec![stop_fact(stop)],
            effects: vec![Effect::Stop { run: run(), stop }],
        };
        let again =
            Decision::Do { facts: vec![], effects: vec![Effect::Stop { run: run(), stop: ASK }] };
        let expected = [
            fact(stop_fact(ASK)),
            Decision::AlreadySo,
            performed(ASK),
            performed(ASK),
            Decision::AlreadySo,
            again,
            Decision::Refused(Refusal::Lost),
        ];
        for ((name, state), expected) in phases().into_iter().zip(expected) {
            let event = Event::StopRequested { run: run(), stop: ASK };
            assert_eq!(decide(&state, &event), expected, "{name}");
        }
        let stopping = after(&[Fact::Started(run()), stop_fact(ASK)]);
        let forced = after(&[Fact::Started(run()), stop_fact(Stop::Force)]);
        for (state, stop, expected) in [
            (&stopping, ASK_SOON, performed(ASK_SOON)),
            (&stopping, Stop::Force, performed(Stop::Force)),
            (&forced, ASK_SOON, Decision::AlreadySo),
            (&forced, Stop::Force, Decision::AlreadySo),
        ] {
            let event = Event::StopRequested { run: run(), stop };
            assert_eq!(decide(state, &event), expected, "{stop:?}");
        }
        let unknown = Event::StopRequested { run: "r9".into(), stop: ASK };
        assert_eq!(decide(&stopping, &unknown), Decision::Refused(Refusal::NotLive));
    }

    #[test]
    fn a_stop_that_came_before_the_start_or_before_a_crash_is_performed() {
        let stop = || vec![Effect::Stop { run: run(), stop: ASK }];
        let early = after(&[stop_fact(ASK)]);
        let started = Event::Started(run());
        let expected = Decision::Do { facts: vec![Fact::Started(run())], effects: stop() };
        assert_eq!(decide(&early, &started), expected);
        let crashed = after(&[Fact::Started(run()), stop_fact(ASK)]);
        assert_eq!(decide(&crashed, &started), Decision::Do { facts: vec![], effects: stop() });
    }

    #[test]
    fn a_stop_is_not_forgotten_by_getting_stuck() {
        let started = Event::Started(run());
        let stuck = Fact::Stuck(run());
        for facts in [
            vec![stop_fact(Stop::Force), stuck.clone()],
            vec![Fact::Started(run()), stop_fact(Stop::Force), stuck.clone(), stuck.clone()],
        ] {
            let mut state = after(&facts);
            let found = Decision::Do {
                facts: vec![Fact::Started(run())],
                effects: vec![Effect::Stop { run: run(), stop: Stop::Force }],
            };
            assert_eq!(decide(&state, &started), found, "{facts:?}");
            let orphaned = decide(&state, &Event::Stopping(run()));
            assert_eq!(orphaned, fact(stop_fact(Stop::Force)), "{facts:?}");
            state.apply(&Fact::Started(run()));
            let to_stop = Phase::Stopping { stop: Stop::Force, leader: Leader::Lives };
            assert_eq!(state.run(&run()).map(|known| known.phase), Some(to_stop), "{facts:?}");
            state.apply(&stuck);
            let before = state.before(&run());
            state.apply(&Fact::Started(run()));
            state.undo(before);
            assert_eq!(decide(&state, &started), found, "{facts:?}");
        }
    }

    #[test]
    fn a_stop_before_the_start_is_only_ever_shortened() {
        let later = Stop::Ask { grace_ms: Some(50) };
        for (old, new, taken) in [
            (ASK, ASK_SOON, true),
            (later, ASK_SOON, true),
            (ASK_SOON, Stop::Force, true),
            (ASK_SOON, ASK_SOON, false),
            (ASK_SOON, later, false),
            (ASK_SOON, ASK, false),
            (Stop::Force, ASK_SOON, false),
        ] {
            let state = after(&[stop_fact(old)]);
            let expected = if taken { fact(stop_fact(new)) } else { Decision::AlreadySo };
            let decision = decide(&state, &Event::StopRequested { run: run(), stop: new });
            assert_eq!(decision, expected, "{old:?}, {new:?}");
            let seen = decide(&state, &Event::Stopping(run()));
            assert_eq!(seen, Decision::AlreadySo, "{old:?} is no softer for being seen");
        }
    }

    #[test]
    fn an_observation_told_twice_is_one_fact_and_none_about_the_dead() {
        let events = [
            Event::Started(run()),
            Event::Exited(run()),
            Event::Stuck(run()),
            Event::Ended { run: run(), ending: Ending::Lost },
            Event::Ended { run: run(), ending: Ending::Dead },
        ];
        for (name, state) in phases() {
            for event in &events {
                let mut state = state.clone();
                let Decision::Do { facts, .. } = decide(&state, event) else { continue };
                facts.iter().for_each(|fact| state.apply(fact));
                if let Decision::Do { facts, .. } = decide(&state, event) {
                    assert!(facts.is_empty(), "{name}: {event:?} twice gave {facts:?}");
                }
            }
        }
        for event in &events {
            assert_eq!(decide(&State::default(), event), Decision::AlreadySo, "{event:?}");
        }
    }
}
