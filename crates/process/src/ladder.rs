//! The stop protocol as pure rungs: elapsed time and observations in, next rung out.
//!
//! ```text
//!            stop(grace)            grace over, or the leader exited
//!  Running ---------------> Asking -------------------> Forcing ----> Stuck
//!     |                       |                          |  ^          |
//!     | leader exited         | leader exited,           |  | not yet  | (tries on, with
//!     | by itself             | nobody left              |  |          |  back-off, for ever)
//!     +--> Forcing, or wait   v                          v  |          v
//!          for the rest      Prove -----------------> Prove -------> Prove --> Gone
//! ```
//!
//! Owns: the order of the rungs and every bound of a stop. Never sends, reads or waits: the keeper
//! does what a rung says, and so does whoever stops a run whose keeper has died.

use std::time::Duration;

use crate::spec::OnExit;

/// How long forcing may go on before the survivors are told. The dearest honest case measured, a
/// process freeing tens of gigabytes, stays far below.
pub const FORCE_BOUND: Duration = Duration::from_secs(5);
/// Pause after the first round of force; each later one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between rounds while the bound has not passed.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between rounds once stuck: a survivor may wait for a dead network mount for
/// days.
const LONGEST_STUCK_PAUSE: Duration = Duration::from_secs(30);

/// What was seen of the cohort just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The leader has ended (collected or not).
    pub leader_ended: bool,
    /// Nobody is left but, perhaps, the leader itself.
    pub others_gone: bool,
}

impl Seen {
    fn nobody_left(self) -> bool {
        self.leader_ended && self.others_gone
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Rung {
    /// Send the gentle signal, once.
    Ask,
    /// Nothing to do until something is seen, or until this time.
    Wait(Option<Duration>),
    /// Do one round of force.
    Force {
        /// Counted from 1.
        round: u32,
    },
    /// Try to prove that nobody is left; if that fails say so with [`Ladder::not_yet`].
    Prove,
    /// The bound has passed: tell who is left. Given once; the rounds go on.
    TellStuck,
}

/// How a request to stop was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The stop begins with this request.
    Begun,
    /// It was under way; the time left is shorter now.
    Shortened,
    /// It was under way and ends no later than asked.
    AlreadySo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Asked for, and nobody asked yet: the grace begins with the asking.
    Due {
        grace: Duration,
        leader_was_gone: bool,
    },
    Asking {
        deadline: Duration,
        leader_was_gone: bool,
    },
    Forcing {
        since: Duration,
        round: u32,
        next: Duration,
    },
    Stuck {
        told: bool,
        round: u32,
        next: Duration,
        pause: Duration,
    },
    Gone,
}

/// One run's way from running to gone.
#[derive(Clone, Debug)]
pub struct Ladder {
    on_exit: OnExit,
    state: State,
    /// A proof that failed is not tried again before this time.
    prove_after: Duration,
    failed_proofs: u32,
}

impl Ladder {
    /// The ladder of a run that has just started.
    #[must_use]
    pub fn new(on_exit: OnExit) -> Self {
        Self { on_exit, state: State::Running, prove_after: Duration::ZERO, failed_proofs: 0 }
    }

    /// Asks for a stop with this much grace from now. A second request can only shorten.
    pub fn request(&mut self, now: Duration, grace: Duration, seen: Seen) -> Requested {
        let deadline = now.saturating_add(grace);
        match &mut self.state {
            State::Running => {
                self.state = if grace.is_zero() {
                    State::Forcing { since: now, round: 0, next: now }
                } else {
                    State::Due { grace, leader_was_gone: seen.leader_ended }
                };
                Requested::Begun
            }
            State::Due { grace: old, .. } if grace < *old => {
                *old = grace;
                Requested::Shortened
            }
            State::Asking { deadline: old, .. } if deadline < *old => {
                *old = deadline;
                Requested::Shortened
            }
            State::Due { .. }
            | State::Asking { .. }
            | State::Forcing { .. }
            | State::Stuck { .. }
            | State::Gone => Requested::AlreadySo,
        }
    }

    /// The next rung, given what is seen now. Call again after doing it, until it says wait.
    pub fn next(&mut self, now: Duration, seen: Seen) -> Rung {
        let provable = seen.nobody_left() && now >= self.prove_after;
        match &mut self.state {
            State::Gone => Rung::Wait(None),
            State::Running
            | State::Due { .. }
            | State::Asking { .. }
            | State::Forcing { .. }
            | State::Stuck { .. }
                if provable =>
            {
                Rung::Prove
            }
            State::Running => match (seen.leader_ended, self.on_exit) {
                (false, OnExit::Sweep | OnExit::Wait) | (true, OnExit::Wait) => Rung::Wait(None),
                (true, OnExit::Sweep) => self.force(now),
            },
            State::Due { grace, leader_was_gone } => {
                let (grace, leader_was_gone) = (*grace, *leader_was_gone);
                if grace.is_zero() {
                    return self.force(now);
                }
                self.state = State::Asking { deadline: now.saturating_add(grace), leader_was_gone };
                Rung::Ask
            }
            State::Asking { deadline, leader_was_gone } => {
                let left_in_grace = seen.leader_ended && !*leader_was_gone;
                if left_in_grace || now >= *deadline {
                    self.force(now)
                } else {
                    Rung::Wait(Some(*deadline))
                }
            }
            State::Forcing { since, round, .. } if now >= *since + FORCE_BOUND => {
                let round = *round;
                self.state = State::Stuck { told: false, round, next: now, pause: LONGEST_PAUSE };
                self.next(now, seen)
            }
            State::Forcing { round, next, .. } => {
                if now < *next {
                    return Rung::Wait(Some(*next));
                }
                *round += 1;
                *next = now + pause_after(*round);
                Rung::Force { round: *round }
            }
            State::Stuck { told, .. } if !*told => {
                *told = true;
                Rung::TellStuck
            }
            State::Stuck { round, next, pause, .. } => {
                if now < *next {
                    return Rung::Wait(Some(*next));
                }
                *round += 1;
                *next = now + *pause;
                *pause = (*pause * 2).min(LONGEST_STUCK_PAUSE);
                Rung::Force { round: *round }
            }
        }
    }

    /// The proof was tried and somebody turned up: force again, and try the proof after a pause.
    pub fn not_yet(&mut self, now: Duration) {
        self.failed_proofs += 1;
        match &self.state {
            State::Running | State::Due { .. } | State::Asking { .. } => {
                self.state = State::Forcing { since: now, round: 0, next: now };
                self.prove_after = now + FIRST_PAUSE;
            }
            State::Forcing { .. } => self.prove_after = now + pause_after(self.failed_proofs),
            State::Stuck { pause, .. } => self.prove_after = now + *pause,
            State::Gone => {}
        }
    }

    /// The proof was made.
    pub fn gone(&mut self) {
        self.state = State::Gone;
    }

    /// True from the first request, or the leader's own exit, until the proof.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        match self.state {
            State::Due { .. }
            | State::Asking { .. }
            | State::Forcing { .. }
            | State::Stuck { .. } => true,
            State::Running | State::Gone => false,
        }
    }

    /// True while rounds of force are under way.
    #[must_use]
    pub fn is_forcing(&self) -> bool {
        match self.state {
            State::Forcing { .. } | State::Stuck { .. } => true,
            State::Running | State::Due { .. } | State::Asking { .. } | State::Gone => false,
        }
    }

    /// True once the survivors were told, until they are gone.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        match self.state {
            State::Stuck { .. } => true,
            State::Running
            | State::Due { .. }
            | State::Asking { .. }
            | State::Forcing { .. }
            | State::Gone => false,
        }
    }

    fn force(&mut self, now: Duration) -> Rung {
        self.state = State::Forcing { since: now, round: 1, next: now + FIRST_PAUSE };
        Rung::Force { round: 1 }
    }
}

fn pause_after(round: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << round.saturating_sub(1).min(16));
    doubled.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Seen = Seen { leader_ended: false, others_gone: true };
    const LEADER_LEFT: Seen = Seen { leader_ended: true, others_gone: false };
    const EMPTY: Seen = Seen { leader_ended: true, others_gone: true };
    const GRACE: Duration = Duration::from_secs(10);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn asked() -> Ladder {
        let mut ladder = Ladder::new(OnExit::Sweep);
        assert_eq!(ladder.request(ms(0), GRACE, ALIVE), Requested::Begun);
        assert_eq!(ladder.next(ms(0), ALIVE), Rung::Ask);
        ladder
    }

    #[test]
    fn a_leader_that_leaves_in_grace_is_never_forced() {
        let mut ladder = asked();
        assert_eq!(ladder.next(ms(0), ALIVE), Rung::Wait(Some(GRACE)));
        assert_eq!(ladder.next(ms(50), EMPTY), Rung::Prove);
    }

    #[test]
    fn what_a_leader_leaves_behind_is_forced_at_once() {
        let mut ladder = asked();
        assert_eq!(ladder.next(ms(50), LEADER_LEFT), Rung::Force { round: 1 });
        let mut by_itself = Ladder::new(OnExit::Sweep);
        assert_eq!(by_itself.next(ms(7), LEADER_LEFT), Rung::Force { round: 1 });
    }

    #[test]
    fn asking_happens_once_and_forcing_follows_the_grace() {
        let mut ladder = asked();
        assert_eq!(ladder.next(ms(9_999), ALIVE), Rung::Wait(Some(GRACE)));
        assert_eq!(ladder.next(ms(10_000), ALIVE), Rung::Force { round: 1 });
    }

    #[test]
    fn a_second_request_only_shortens() {
        let mut ladder = asked();
        assert_eq!(ladder.request(ms(1_000), ms(60_000), ALIVE), Requested::AlreadySo);
        assert_eq!(ladder.request(ms(1_000), ms(500), ALIVE), Requested::Shortened);
        assert_eq!(ladder.next(ms(1_400), ALIVE), Rung::Wait(Some(ms(1_500))));
        assert_eq!(ladder.request(ms(1_400), Duration::ZERO, ALIVE), Requested::Shortened);
        assert_eq!(ladder.next(ms(1_400), ALIVE), Rung::Force { round: 1 });
        assert_eq!(ladder.request(ms(1_401), Duration::ZERO, ALIVE), Requested::AlreadySo);
    }

    #[test]
    fn the_grace_begins_with_the_asking() {
        let mut ladder = Ladder::new(OnExit::Sweep);
        assert_eq!(ladder.request(ms(0), ms(100), ALIVE), Requested::Begun);
        assert_eq!(ladder.request(ms(10), ms(50), ALIVE), Requested::Shortened);
        assert_eq!(ladder.next(ms(400), ALIVE), Rung::Ask);
        assert_eq!(ladder.next(ms(400), ALIVE), Rung::Wait(Some(ms(450))));
    }

    #[test]
    fn kill_skips_asking() {
        let mut ladder = Ladder::new(OnExit::Sweep);
        assert_eq!(ladder.request(ms(5), Duration::ZERO, ALIVE), Requested::Begun);
        assert_eq!(ladder.next(ms(5), ALIVE), Rung::Force { round: 1 });
    }

    #[test]
    fn rounds_back_off_and_the_bound_tells_once_and_goes_on() {
        let mut ladder = Ladder::new(OnExit::Sweep);
        let _ = ladder.request(ms(0), Duration::ZERO, ALIVE);
        let (mut now, mut rounds, mut told) = (ms(0), 0, Vec::new());
        while now < Duration::from_secs(300) {
            match ladder.next(now, ALIVE) {
                Rung::Force { round } => {
                    rounds += 1;
                    assert_eq!(round, rounds);
                }
                Rung::Wait(until) => now = until.unwrap(),
                Rung::TellStuck => told.push(now),
                Rung::Ask | Rung::Prove => panic!("neither is due"),
            }
        }
        assert_eq!(told.len(), 1);
        assert!(told[0] >= FORCE_BOUND && told[0] < FORCE_BOUND + LONGEST_PAUSE);
        assert!((30..60).contains(&rounds), "{rounds}");
        assert!(ladder.is_stuck());
        assert_eq!(ladder.next(now, EMPTY), Rung::Prove);
    }

    #[test]
    fn a_failed_proof_leads_to_force_and_not_to_a_spin() {
        let mut ladder = Ladder::new(OnExit::Sweep);
        assert_eq!(ladder.next(ms(1), EMPTY), Rung::Prove);
        ladder.not_yet(ms(1));
        assert_eq!(ladder.next(ms(1), LEADER_LEFT), Rung::Force { round: 1 });
        assert!(matches!(ladder.next(ms(1), LEADER_LEFT), Rung::Wait(Some(_))));
    }

    #[test]
    fn a_proof_that_never_succeeds_ends_in_stuck() {
        let mut ladder = Ladder::new(OnExit::Sweep);
        let (mut now, mut proofs, mut told) = (ms(1), 0, 0);
        while now < Duration::from_secs(60) {
            match ladder.next(now, EMPTY) {
                Rung::Prove => {
                    proofs += 1;
                    ladder.not_yet(now);
                }
                Rung::Wait(until) => now = until.unwrap(),
                Rung::TellStuck => told += 1,
                Rung::Force { .. } => {}
                Rung::Ask => panic!("nobody asked"),
            }
            assert!(proofs < 100, "the proof is tried in a spin");
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn waiting_for_the_rest_waits_until_told_otherwise() {
        let mut ladder = Ladder::new(OnExit::Wait);
        assert_eq!(ladder.next(ms(1), LEADER_LEFT), Rung::Wait(None));
        assert_eq!(ladder.request(ms(2), ms(100), LEADER_LEFT), Requested::Begun);
        assert_eq!(ladder.next(ms(2), LEADER_LEFT), Rung::Ask);
        assert_eq!(ladder.next(ms(3), LEADER_LEFT), Rung::Wait(Some(ms(102))));
        assert_eq!(ladder.next(ms(102), LEADER_LEFT), Rung::Force { round: 1 });
        assert_eq!(ladder.next(ms(103), EMPTY), Rung::Prove);
        ladder.gone();
        assert_eq!(ladder.next(ms(104), EMPTY), Rung::Wait(None));
    }
}
