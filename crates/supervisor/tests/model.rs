//! The mind against a model of it: the promises of the design once more, in other words.
//!
//! The model is one list of runs, searched from its beginning for every question; the mind keeps
//! maps, and facts between deciding and changing. Every event gives the same answer in both, and
//! leaves both believing the same. [`every_event_in_every_state_of_two_runs`] leaves out nothing
//! that two runs can be brought to; [`random_events_among_many_runs`] goes where that does not
//! reach, and makes what fails short before it shows it.
//!
//! What was changed in the mind to see that this fails, each caught here: a slot freed by `Lost`
//! or `Stuck`, not freed, or not looked at, and the same of worktrees; a stop forgotten before the
//! start, by the start, by an exit, by `Stuck`; a stop lengthened, softened, or not recorded; no
//! stop for a run found running that was to stop, nor at a shutdown; an exit or a stop taken for an
//! end; a proof not taken from the stuck or the lost; the lost back among the running; an end or a
//! shutdown told twice; facts about nobody; admission without a fact, twice, over the room, while
//! leaving, with a limit that does not bind, or for another's claim; a run that was found started,
//! or let in where another is; nothing, not the leaving, or not an admission undone. Of notices: a
//! second end, the same number twice, a note told again, a child that outlives a stop.

mod seeded;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kennel_supervisor::{
    Before, Claim, Decision, Doing, Effect, Ending, Event, Fact, Kind, Leader, Match, Note, Phase,
    Refusal, RunId, State, Stop, Unenforceable, decide,
};
use seeded::{Rng, seeds};

/// Random sequences of events that are tried.
const SEQUENCES: u64 = 1500;
/// Events in each: enough for every id to live and die several times.
const EVENTS: usize = 60;

const RUNS: [&str; 4] = ["r0", "r1", "r2", "r3"];
const SLOTS: [&str; 3] = ["s0", "s1", "s2"];
const WORKTREES: [&str; 2] = ["/w0", "/w1"];
const STOPS: [Stop; 4] = [
    Stop::Ask { grace_ms: None },
    Stop::Ask { grace_ms: Some(5) },
    Stop::Ask { grace_ms: Some(9) },
    Stop::Force,
];

#[test]
fn every_event_in_every_state_of_two_runs() {
    let child = Claim { parent: Some("r0".into()), ..claim("s1", None) };
    let claims = [claim("s0", None), claim("s0", Some("/w0")), claim("s1", Some("/w0")), child];
    let events = all_events(&RUNS[..2], &claims);
    for room in [1, 2] {
        let first = (Model::with_room_for(room), State::with_room_for(room));
        let mut seen = BTreeSet::from([first.0.key()]);
        let mut open = VecDeque::from([first]);
        while let Some((model, state)) = open.pop_front() {
            for event in &events {
                let (mut next, mut then) = (model.clone(), state.clone());
                if let Err(why) = check_step(&mut next, &mut then, event) {
                    panic!("{why}\nin {model:?}\nafter {event:?}");
                }
                if then != state && seen.insert(next.key()) {
                    open.push_back((next, then));
                }
            }
        }
        assert!(seen.len() > room * 50, "only {} states were reached", seen.len());
    }
}

#[test]
fn random_events_among_many_runs() {
    for seed in seeds(SEQUENCES) {
        let mut rng = Rng::new(seed);
        let room = 1 + rng.below(4);
        let events: Vec<Event> = (0..EVENTS).map(|_| any_event(&mut rng)).collect();
        if let Err(why) = check_all(room, &events) {
            let (short, why) = shortest(room, events, why);
            panic!("{why}\nKENNEL_SEED={seed}, room for {room}, after:\n{short:#?}");
        }
    }
}

#[test]
fn what_fails_is_made_short() {
    // Nothing fails, so that there has to be a wrong model for it: one with more room.
    let start = |n: usize| request(RUNS[n], claim(SLOTS[n], None));
    let events = vec![start(0), Event::Exited("r0".into()), Event::LeaveRequested, start(1)];
    let fails = |events: &[Event]| {
        let (mut model, mut state) = (Model::with_room_for(2), State::with_room_for(1));
        events.iter().try_for_each(|event| check_step(&mut model, &mut state, event))
    };
    let (short, _) = shortest_that(fails, events, String::new());
    assert_eq!(short, [start(0), start(1)]);
}

/// The model: what is promised, over a plain list.
#[derive(Clone, Debug)]
struct Model {
    /// In the order of their admission.
    runs: Vec<Known>,
    leaving: bool,
    room: usize,
}

#[derive(Clone, Debug)]
struct Known {
    id: RunId,
    claim: Claim,
    stands: Stands,
    leader_left: bool,
    /// How it is to end, once that was said.
    wish: Option<Stop>,
    /// What it was near to, as it was told.
    near: Vec<String>,
    /// All that was noted of it, in order.
    notes: Vec<Note>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stands {
    Waiting,
    Up,
    Ending,
    Stuck,
    Lost,
}

/// What comes of an event. Nothing at all is "already so".
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    refused: Option<Refusal>,
    facts: Vec<Fact>,
    effects: Vec<Effect>,
}

impl Model {
    fn with_room_for(room: usize) -> Self {
        Self { runs: vec![], leaving: false, room }
    }

    /// Something that is the same for models that go on the same, and has an order.
    fn key(&self) -> String {
        let brief = |run: &Known| {
            let wish = run.wish.filter(|_| run.stands == Stands::Stuck);
            let (id, claim, phase) = (&run.id, &run.claim, run.phase());
            format!("{id} {claim:?} {phase:?} {wish:?} {:?} {:?}", run.near, run.notes)
        };
        let mut runs: Vec<String> = self.runs.iter().map(brief).collect();
        runs.sort();
        format!("{} {runs:?}", self.leaving)
    }

    fn answer(&mut self, event: &Event) -> Answer {
        match event {
            Event::RunRequested { run, claim, unenforceable } => {
                self.requested(run, claim, unenforceable.as_ref())
            }
            Event::Found { run, claim } => self.found(run, claim),
            Event::StopRequested { run, stop } => match self.find(run) {
                Some(known) => {
                    let answer = known.told_to_stop(*stop);
                    self.and_its_family(run, *stop, answer)
                }
                None => Answer { refused: Some(Refusal::NotLive), ..Answer::default() },
            },
            Event::Started(run) => self.find(run).map(Known::seen_running).unwrap_or_default(),
            Event::Stopping(run) => match self.find(run).map(Known::seen_stopping) {
                Some(answer) => self.and_its_family(run, STOPS[0], answer),
                None => Answer::default(),
            },
            Event::Exited(run) => {
                self.find(run).map(Known::seen_without_leader).unwrap_or_default()
            }
            Event::Warned { run, limit } => match self.find(run) {
                Some(known) => known.warned_of(limit),
                None => Answer::default(),
            },
            Event::Noted { run, note } => match (self.find(run).map(|r| r.noted(note)), note) {
                (Some(answer), Note::LimitReached(_)) => self.and_its_family(run, STOPS[0], answer),
                (Some(answer), _) => answer,
                (None, _) => Answer::default(),
            },
            Event::Stuck(run) => self.find(run).map(Known::seen_stuck).unwrap_or_default(),
            Event::Ended { run, ending } => self.over(run, *ending),
            Event::ShutdownRequested { stop } => self.shut_down(*stop),
            Event::LeaveRequested => Answer { effects: vec![Effect::Leave], ..Answer::default() },
        }
    }

    fn find(&mut self, run: &RunId) -> Option<&mut Known> {
        self.runs.iter_mut().find(|known| known.id == *run)
    }

    /// A run is admitted once. Its slot and worktree must be nobody's; then there must be somebody
    /// to watch it, its limits must bind, and there must be room.
    fn requested(
        &mut self,
        run: &RunId,
        claim: &Claim,
        unenforceable: Option<&Unenforceable>,
    ) -> Answer {
        let refused = |why| Answer { refused: Some(why), ..Answer::default() };
        if let Some(known) = self.find(run) {
            let same = known.claim == *claim;
            return if same { Answer::default() } else { refused(Refusal::IdTaken) };
        }
        if let Some(why) = self.in_the_way(claim) {
            return refused(why);
        }
        if self.leaving {
            return refused(Refusal::ShuttingDown);
        }
        if let Some(parent) = claim.parent.clone()
            && !self.find(&parent).is_some_and(|parent| parent.may_ask())
        {
            return refused(Refusal::ParentEnding { parent });
        }
        if let Some(limit) = unenforceable {
            return refused(Refusal::LimitNotEnforceable(limit.clone()));
        }
        if self.runs.len() >= self.room {
            return refused(Refusal::HostFull { room: self.room });
        }
        self.admitted(run, claim, Effect::Start(run.clone()))
    }

    /// Who lives needs nobody's leave, but nobody else may be in its place.
    fn found(&mut self, run: &RunId, claim: &Claim) -> Answer {
        if self.find(run).is_some() {
            return Answer::default();
        }
        match self.in_the_way(claim) {
            Some(why) => Answer { refused: Some(why), ..Answer::default() },
            None => self.admitted(run, claim, Effect::Adopt(run.clone())),
        }
    }

    /// Who has what this claim asks for, as a reason against it.
    fn in_the_way(&self, claim: &Claim) -> Option<Refusal> {
        let by_slot = self.runs.iter().find(|other| other.claim.slot == claim.slot);
        if let Some(other) = by_slot {
            let id = other.id.clone();
            return Some(match other.stands {
                Stands::Stuck | Stands::Lost => Refusal::StuckSurvivors { of: id },
                Stands::Waiting | Stands::Up | Stands::Ending => Refusal::SlotTaken { by: id },
            });
        }
        let worktree = claim.worktree.as_ref()?;
        let other = self.runs.iter().find(|other| other.claim.worktree.as_ref() == Some(worktree));
        other.map(|other| Refusal::WorktreeInUse { by: other.id.clone() })
    }

    fn admitted(&mut self, run: &RunId, claim: &Claim, effect: Effect) -> Answer {
        let (id, claim) = (run.clone(), claim.clone());
        let fact = Fact::Admitted { run: id.clone(), claim: claim.clone() };
        self.runs.push(Known {
            id,
            claim,
            stands: Stands::Waiting,
            leader_left: false,
            wish: None,
            near: vec![],
            notes: vec![],
        });
        Answer { facts: vec![fact], effects: vec![effect], refused: None }
    }

    /// Proof ends a run for good and frees what it held. Without one it holds all of it, and a
    /// proof may come yet.
    fn over(&mut self, run: &RunId, ending: Ending) -> Answer {
        let Some(at) = self.runs.iter().position(|known| known.id == *run) else {
            return Answer::default();
        };
        match ending {
            Ending::Dead | Ending::NeverStarted => drop(self.runs.remove(at)),
            Ending::Lost if self.runs[at].stands == Stands::Lost => return Answer::default(),
            Ending::Lost => self.runs[at].stands = Stands::Lost,
        }
        Answer { facts: vec![Fact::Ended { run: run.clone(), ending }], ..Answer::default() }
    }

    /// Who ends takes along all that it asked for, generation by generation, in the order of ids.
    fn and_its_family(&mut self, run: &RunId, stop: Stop, mut answer: Answer) -> Answer {
        if answer.refused.is_some() {
            return answer;
        }
        self.runs.sort_by(|a, b| a.id.cmp(&b.id));
        let mut seen = vec![run.clone()];
        let mut generation = vec![run.clone()];
        while !generation.is_empty() {
            let mut next = vec![];
            for parent in &generation {
                for known in &mut self.runs {
                    if known.claim.parent.as_ref() == Some(parent) && !seen.contains(&known.id) {
                        let told = known.told_to_stop(stop);
                        answer.facts.extend(told.facts);
                        answer.effects.extend(told.effects);
                        seen.push(known.id.clone());
                        next.push(known.id.clone());
                    }
                }
            }
            generation = next;
        }
        answer
    }

    /// Nobody new; everybody else is told to stop if that is wanted, in the order of their ids.
    fn shut_down(&mut self, stop: Option<Stop>) -> Answer {
        let mut answer = Answer::default();
        if !self.leaving {
            answer.facts.push(Fact::ShuttingDown);
        }
        self.leaving = true;
        let mut runs: Vec<&mut Known> = self.runs.iter_mut().collect();
        runs.sort_by(|a, b| a.id.cmp(&b.id));
        for (known, stop) in runs.into_iter().zip(stop.into_iter().cycle()) {
            let told = known.told_to_stop(stop);
            answer.facts.extend(told.facts);
            answer.effects.extend(told.effects);
        }
        answer
    }
}

impl Known {
    /// True if its agent can ask for more runs: it is there, or will be, and is not to end.
    fn may_ask(&self) -> bool {
        matches!(self.stands, Stands::Waiting | Stands::Up) && self.wish.is_none()
    }

    /// What was noted is told once: a limit, a change of what the agent does, each line of output,
    /// each heartbeat in its turn. Nothing is told of who cannot be accounted for.
    fn noted(&mut self, note: &Note) -> Answer {
        let count = |kind: fn(&Note) -> bool| self.notes.iter().filter(|n| kind(n)).count();
        let news = match note {
            Note::LimitReached(_) => count(|n| matches!(n, Note::LimitReached(_))) == 0,
            Note::Doing(doing) => {
                let last = self.notes.iter().rev().find_map(|n| match n {
                    Note::Doing(doing) => Some(*doing),
                    Note::LimitReached(_) | Note::Matched(_) | Note::Heartbeat(_) => None,
                });
                last.unwrap_or(Doing::Works) != *doing
            }
            Note::Matched(new) => self.notes.iter().all(|n| match n {
                Note::Matched(old) => {
                    old.stream != new.stream
                        || old.through < new.through
                        || (old.through == new.through && old.pattern < new.pattern)
                }
                Note::LimitReached(_) | Note::Doing(_) | Note::Heartbeat(_) => true,
            }),
            Note::Heartbeat(n) => count(|n| matches!(n, Note::Heartbeat(_))) as u32 + 1 == *n,
        };
        if !news || self.stands == Stands::Lost {
            return Answer::default();
        }
        self.notes.push(note.clone());
        let fact = Fact::Noted { run: self.id.clone(), note: note.clone() };
        Answer { facts: vec![fact], ..Answer::default() }
    }

    /// Who is told of a limit once knows of it.
    fn warned_of(&mut self, limit: &str) -> Answer {
        if self.near.iter().any(|known| known == limit) {
            return Answer::default();
        }
        self.near.push(limit.to_owned());
        let fact = Fact::Warned { run: self.id.clone(), limit: limit.into() };
        Answer { facts: vec![fact], ..Answer::default() }
    }

    /// A stop is kept before it is performed, and only ever made shorter. Who is not up yet is
    /// stopped later, and who is stuck is asked once more.
    fn told_to_stop(&mut self, stop: Stop) -> Answer {
        if self.stands == Stands::Lost {
            return Answer { refused: Some(Refusal::Lost), ..Answer::default() };
        }
        let news = match self.wish {
            None => true,
            Some(old) if self.stands == Stands::Waiting => is_shorter(stop, old),
            Some(old) => may_be_shorter(stop, old),
        };
        if self.stands == Stands::Stuck {
            let effects = vec![self.stop(stop)];
            return Answer { effects, ..Answer::default() };
        }
        if !news {
            return Answer::default();
        }
        self.wish = Some(stop);
        let mut effects = vec![];
        if self.stands != Stands::Waiting {
            self.stands = Stands::Ending;
            effects.push(self.stop(stop));
        }
        Answer {
            facts: vec![Fact::Stopping { run: self.id.clone(), stop }],
            effects,
            refused: None,
        }
    }

    /// Who is up and was to stop is stopped now, however often it is found up.
    fn seen_running(&mut self) -> Answer {
        let news = matches!(self.stands, Stands::Waiting | Stands::Stuck);
        if news {
            self.leader_left = false;
            self.stands = if self.wish.is_some() { Stands::Ending } else { Stands::Up };
        }
        let wish = self.wish.filter(|_| self.stands == Stands::Ending);
        Answer {
            facts: if news { vec![Fact::Started(self.id.clone())] } else { vec![] },
            effects: wish.map(|stop| self.stop(stop)).into_iter().collect(),
            refused: None,
        }
    }

    /// Who is seen stopping needs no stop of ours, and is no reason to forget one that was sharper.
    fn seen_stopping(&mut self) -> Answer {
        let known = match self.stands {
            Stands::Waiting => self.wish.is_some(),
            Stands::Up | Stands::Stuck => false,
            Stands::Ending | Stands::Lost => true,
        };
        if known {
            return Answer::default();
        }
        if self.stands == Stands::Stuck {
            self.leader_left = false;
        }
        if self.stands != Stands::Waiting {
            self.stands = Stands::Ending;
        }
        let stop = *self.wish.get_or_insert(Stop::Ask { grace_ms: None });
        Answer { facts: vec![Fact::Stopping { run: self.id.clone(), stop }], ..Answer::default() }
    }

    /// A leader leaves once. It cannot have left without having been there.
    fn seen_without_leader(&mut self) -> Answer {
        let stuck = matches!(self.stands, Stands::Stuck | Stands::Lost);
        if stuck || (self.leader_left && self.stands != Stands::Waiting) {
            return Answer::default();
        }
        self.leader_left = true;
        self.stands = if self.wish.is_some() { Stands::Ending } else { Stands::Up };
        Answer { facts: vec![Fact::Exited(self.id.clone())], ..Answer::default() }
    }

    fn seen_stuck(&mut self) -> Answer {
        if matches!(self.stands, Stands::Stuck | Stands::Lost) {
            return Answer::default();
        }
        self.stands = Stands::Stuck;
        Answer { facts: vec![Fact::Stuck(self.id.clone())], ..Answer::default() }
    }

    fn stop(&self, stop: Stop) -> Effect {
        Effect::Stop { run: self.id.clone(), stop }
    }

    fn phase(&self) -> Phase {
        let leader = if self.leader_left { Leader::Exited } else { Leader::Lives };
        match self.stands {
            Stands::Waiting => Phase::Starting { stop: self.wish },
            Stands::Up => Phase::Running { leader },
            Stands::Ending => {
                Phase::Stopping { stop: self.wish.expect("nothing ends unasked"), leader }
            }
            Stands::Stuck => Phase::Stuck,
            Stands::Lost => Phase::Lost,
        }
    }
}

/// Both would begin at the start: the shorter grace is the sooner end. The run's own, which nobody
/// knows here, gives way to one that was named.
fn is_shorter(new: Stop, old: Stop) -> bool {
    let rank = |stop| match stop {
        Stop::Force => 0,
        Stop::Ask { grace_ms } => grace_ms.map_or(u64::MAX, |ms| ms + 1),
    };
    rank(new) < rank(old)
}

/// One grace has begun: the keeper has the clock and compares, so that it hears of every other.
fn may_be_shorter(new: Stop, old: Stop) -> bool {
    old != Stop::Force && new != Stop::Ask { grace_ms: None }
}

/// One event in both, and everything that is to hold after it.
fn check_step(model: &mut Model, state: &mut State, event: &Event) -> Result<(), String> {
    let decision = decide(state, event);
    let changes = !matches!(decision, Decision::AlreadySo | Decision::Refused(_));
    let (facts, effects, refused) = match decision {
        Decision::Do { facts, effects } => (facts, effects, None),
        Decision::AlreadySo => (vec![], vec![], None),
        Decision::Refused(refusal) => (vec![], vec![], Some(refusal)),
    };
    let said = Answer { refused, facts, effects };
    same("the answer", &said, &model.answer(event))?;
    if changes != (said.facts.len() + said.effects.len() > 0) {
        return Err(format!("to do nothing is not to do: {said:?}"));
    }
    for fact in &said.facts {
        check_fact(state, fact)?;
    }
    check_beliefs(model, state)?;
    check_told_again(state, event)
}

/// One fact is applied: only proof frees, only an admission takes, and it can be undone.
fn check_fact(state: &mut State, fact: &Fact) -> Result<(), String> {
    let run = fact.run().cloned().unwrap_or_else(|| "".into());
    let lives = state.run(&run).is_some();
    let admits = matches!(fact, Fact::Admitted { .. });
    if fact.run().is_some() && lives == admits {
        return Err(format!("a fact about nobody, or a second admission: {fact:?}"));
    }
    let frees = matches!(fact, Fact::Ended { ending: Ending::Dead | Ending::NeverStarted, .. });
    let old = state.clone();
    let before = state.before(&run);
    state.apply(fact);
    for slot in SLOTS {
        let (was, is) = (old.holder(&slot.into()), state.holder(&slot.into()));
        let ok = match (was, is) {
            (Some(was), None) => frees && *was == run,
            (None, Some(is)) => admits && *is == run,
            (Some(_), Some(_)) | (None, None) => was == is,
        };
        if !ok {
            return Err(format!("{slot} went from {was:?} to {is:?} by {fact:?}"));
        }
    }
    let mut undone = state.clone();
    undone.undo(before);
    same("what is undone", &undone, &old)
}

/// Mind and model believe the same, and nobody shares a slot or a worktree.
fn check_beliefs(model: &Model, state: &State) -> Result<(), String> {
    let mut known: Vec<&Known> = model.runs.iter().collect();
    known.sort_by(|a, b| a.id.cmp(&b.id));
    let expected: Vec<_> = known.iter().map(|run| (&run.id, &run.claim, run.phase())).collect();
    let believed: Vec<_> = state.runs().map(|(id, run)| (id, &run.claim, run.phase)).collect();
    same("what is believed", &believed, &expected)?;
    for slot in SLOTS.map(Into::into) {
        let holders: Vec<_> = known.iter().filter(|run| run.claim.slot == slot).collect();
        at_most_one("in a slot", &holders)?;
        let holder = holders.first().map(|run| &run.id);
        same("who holds a slot", &state.holder(&slot), &holder)?;
    }
    for worktree in WORKTREES.map(Into::into) {
        let works = |run: &&&Known| run.claim.worktree.as_ref() == Some(&worktree);
        let workers: Vec<_> = known.iter().filter(works).collect();
        at_most_one("in a worktree", &workers)?;
        let worker = workers.first().map(|run| &run.id);
        same("who works in a worktree", &state.lives_in(&worktree), &worker)?;
    }
    same("whether it is leaving", &state.is_shutting_down(), &model.leaving)
}

/// What is told again is no news: no second fact, but for a grace that only a keeper can compare,
/// and the same belief.
fn check_told_again(state: &State, event: &Event) -> Result<(), String> {
    let Decision::Do { facts, .. } = decide(state, event) else { return Ok(()) };
    let names_a_grace = |stop: &Stop| matches!(stop, Stop::Ask { grace_ms: Some(_) });
    let only_graces = facts.iter().all(|fact| match fact {
        Fact::Stopping { stop, .. } => names_a_grace(stop),
        Fact::Admitted { .. }
        | Fact::Started(_)
        | Fact::Exited(_)
        | Fact::Warned { .. }
        | Fact::Noted { .. }
        | Fact::Stuck(_)
        | Fact::Ended { .. }
        | Fact::ShuttingDown => false,
    });
    if !only_graces {
        return Err(format!("told again it gave {facts:?}"));
    }
    let mut again = state.clone();
    facts.iter().for_each(|fact| again.apply(fact));
    same("the state after the same again", &again, state)
}

/// A whole sequence: each step, then replay and undo of all that became true in it.
fn check_all(room: usize, events: &[Event]) -> Result<(), String> {
    let (mut model, mut state) = (Model::with_room_for(room), State::with_room_for(room));
    let mut history = History::default();
    for event in events {
        let stops = matches!(event, Event::Started(run) if history.to_stop.contains(run));
        let old = state.clone();
        check_step(&mut model, &mut state, event)?;
        let Decision::Do { facts, effects } = decide(&old, event) else { continue };
        let mut at = old;
        for fact in facts {
            history.take(&at, &fact)?;
            at.apply(&fact);
            history.facts.push(fact);
        }
        if stops && !effects.iter().any(|effect| matches!(effect, Effect::Stop { .. })) {
            return Err(format!("{event:?}: it was to be stopped, and nobody does"));
        }
    }
    let mut replayed = State::with_room_for(room);
    history.facts.iter().for_each(|fact| replayed.apply(fact));
    same("what is replayed", &replayed, &state)?;
    check_replay_of_the_living(room, &history.facts, &state)?;
    // Each suffix in turn, from the last fact alone to all of them.
    for (before, old) in history.befores.into_iter().rev() {
        state.undo(before);
        same("what is undone", &state, &old)?;
    }
    Ok(())
}

/// After a restart only facts about those that are not dead are read, and of leaving nothing.
fn check_replay_of_the_living(room: usize, facts: &[Fact], state: &State) -> Result<(), String> {
    let mut replayed = State::with_room_for(room);
    let live = |fact: &&Fact| fact.run().is_some_and(|run| state.run(run).is_some());
    facts.iter().filter(live).for_each(|fact| replayed.apply(fact));
    if state.is_shutting_down() {
        replayed.apply(&Fact::ShuttingDown);
    }
    same("what is replayed of the living", &replayed, state)
}

/// All that became true, who lives, and who of them is to be stopped whenever it is found running.
#[derive(Default)]
struct History {
    facts: Vec<Fact>,
    befores: Vec<(Before, State)>,
    live: BTreeSet<RunId>,
    to_stop: BTreeSet<RunId>,
    /// What was told of who lives: of each kind one, two, three, and one end.
    told: BTreeMap<(RunId, Kind), u32>,
}

impl History {
    /// Each life begins once, ends at most once, and nothing is said of it outside of it.
    fn take(&mut self, state: &State, fact: &Fact) -> Result<(), String> {
        let run = fact.run().cloned().unwrap_or_else(|| "".into());
        self.befores.push((state.before(&run), state.clone()));
        self.take_notice(state, fact)?;
        let expected = match fact {
            Fact::Admitted { .. } => self.live.insert(run),
            Fact::Ended { ending: Ending::Dead | Ending::NeverStarted, .. } => {
                self.to_stop.remove(&run);
                self.live.remove(&run)
            }
            // Nothing can be done to it any more.
            Fact::Ended { ending: Ending::Lost, .. } => {
                self.to_stop.remove(&run);
                self.live.contains(&run)
            }
            Fact::Stopping { .. } => {
                self.to_stop.insert(run.clone());
                self.live.contains(&run)
            }
            Fact::Started(_)
            | Fact::Exited(_)
            | Fact::Warned { .. }
            | Fact::Noted { .. }
            | Fact::Stuck(_) => self.live.contains(&run),
            Fact::ShuttingDown => !state.is_shutting_down(),
        };
        expected.then_some(()).ok_or_else(|| format!("not now: {fact:?}"))
    }

    /// Each notice has a name that no other has, and each life one terminal notice.
    fn take_notice(&mut self, state: &State, fact: &Fact) -> Result<(), String> {
        let notice = state.notice_of(fact);
        if let Fact::Admitted { run, .. } = fact {
            self.told.retain(|(told, _), _| told != run);
        }
        if let Some(notice) = &notice {
            let told = self.told.entry((notice.run.clone(), notice.kind)).or_default();
            *told += 1;
            same("the number of a notice", &notice.n, told)?;
        }
        if let Fact::Ended { run, .. } = fact {
            let ends = self.told.get(&(run.clone(), Kind::Ended));
            same("the terminal notices of a run", &ends, &Some(&1))?;
        }
        Ok(())
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    let equal = got == expected;
    equal.then_some(()).ok_or_else(|| format!("{what} is {got:?}\nand not {expected:?}"))
}

fn at_most_one(place: &str, runs: &[&&Known]) -> Result<(), String> {
    let ok = runs.len() <= 1;
    ok.then_some(()).ok_or_else(|| format!("{place}: {runs:?}"))
}

fn shortest(room: usize, events: Vec<Event>, why: String) -> (Vec<Event>, String) {
    shortest_that(|events| check_all(room, events), events, why)
}

/// Leaves out events as long as it still fails.
fn shortest_that(
    check: impl Fn(&[Event]) -> Result<(), String>,
    mut events: Vec<Event>,
    mut why: String,
) -> (Vec<Event>, String) {
    let mut part = events.len();
    while part > 0 {
        let mut at = 0;
        while at < events.len() {
            let mut fewer = events.clone();
            fewer.drain(at..(at + part).min(fewer.len()));
            match check(&fewer) {
                Err(still) => (events, why) = (fewer, still),
                Ok(()) => at += part,
            }
        }
        part /= 2;
    }
    (events, why)
}

fn claim(slot: &str, worktree: Option<&str>) -> Claim {
    Claim { slot: slot.into(), worktree: worktree.map(Into::into), parent: None }
}

fn request(run: &str, claim: Claim) -> Event {
    Event::RunRequested { run: run.into(), claim, unenforceable: None }
}

fn limit() -> Unenforceable {
    Unenforceable { limit: "max_turns".into(), because: "no format".into() }
}

fn all_events(runs: &[&str], claims: &[Claim]) -> Vec<Event> {
    let mut events = vec![Event::LeaveRequested, Event::ShutdownRequested { stop: None }];
    events.extend(STOPS.map(|stop| Event::ShutdownRequested { stop: Some(stop) }));
    for id in runs {
        let run = || RunId::from(*id);
        for claim in claims {
            let (claim, unenforceable) = (claim.clone(), Some(limit()));
            events.push(request(id, claim.clone()));
            events.push(Event::Found { run: run(), claim: claim.clone() });
            events.push(Event::RunRequested { run: run(), claim, unenforceable });
        }
        events.extend(STOPS.map(|stop| Event::StopRequested { run: run(), stop }));
        events.extend([Event::Started(run()), Event::Stopping(run())]);
        events.extend([Event::Exited(run()), Event::Stuck(run())]);
        let endings = [Ending::NeverStarted, Ending::Dead, Ending::Lost];
        events.extend(endings.map(|ending| Event::Ended { run: run(), ending }));
    }
    events
}

fn any_note(rng: &mut Rng) -> Note {
    match rng.below(4) {
        0 => Note::LimitReached("wall".into()),
        1 => {
            let until_ms = rng.one_in(2).then_some(7);
            let doings = [Doing::Works, Doing::Waits, Doing::RateLimited { until_ms }];
            Note::Doing(*rng.pick(&doings))
        }
        2 => {
            let (stream, pattern) = (rng.below(2) as u8, rng.below(2) as u16);
            Note::Matched(Match { stream, through: rng.below(4) as u64, pattern })
        }
        _ => Note::Heartbeat(1 + rng.below(3) as u32),
    }
}

/// Any event, those that bring runs further more often than those that end everything.
fn any_event(rng: &mut Rng) -> Event {
    let run: RunId = (*rng.pick(&RUNS)).into();
    match rng.below(42) {
        0..12 => {
            let worktree = rng.one_in(2).then(|| *rng.pick(&WORKTREES));
            let slot: &str = SLOTS[rng.below(SLOTS.len())];
            let parent = rng.one_in(2).then(|| RunId::from(*rng.pick(&RUNS)));
            let claim = Claim { parent, ..claim(slot, worktree) };
            if rng.one_in(8) {
                return Event::Found { run, claim };
            }
            let unenforceable = rng.one_in(8).then(limit);
            Event::RunRequested { run, claim, unenforceable }
        }
        12..18 => Event::StopRequested { run, stop: *rng.pick(&STOPS) },
        18..23 => Event::Started(run),
        23..26 => Event::Stopping(run),
        26..29 => Event::Exited(run),
        29..31 => Event::Stuck(run),
        38 | 40 | 41 => Event::Noted { run, note: any_note(rng) },
        31 => Event::Warned { run, limit: (*rng.pick(&["wall", "idle"])).into() },
        32..38 => {
            let endings = [Ending::NeverStarted, Ending::Dead, Ending::Dead, Ending::Lost];
            Event::Ended { run, ending: *rng.pick(&endings) }
        }
        39 if rng.one_in(3) => {
            Event::ShutdownRequested { stop: rng.one_in(2).then(|| *rng.pick(&STOPS)) }
        }
        _ => Event::LeaveRequested,
    }
}
