//! The only code that changes state, live and on replay.
//!
//! Owns: what a fact means. Never refuses and never panics: a fact is true whether or not it was
//! expected, and one about a run that is not there changes nothing.

use alloc::vec::Vec;

use crate::event::Ending;
use crate::fact::Fact;
use crate::notice::{Noted, kind_of};
use crate::state::{Leader, Phase, Run, RunId, State};

impl State {
    /// Makes a fact part of what is believed.
    pub fn apply(&mut self, fact: &Fact) {
        if let Some(known) = fact.run().and_then(|run| self.runs.get_mut(run))
            && let Some(kind) = kind_of(known, fact)
        {
            known.noted.count(kind);
        }
        match fact {
            Fact::Admitted { run, claim } => {
                let phase = Phase::Starting { stop: None };
                let claim = claim.clone();
                let noted = Noted::default();
                let warned = Vec::new();
                self.hold(run, Run { claim, phase, stop_when_found: None, warned, noted });
            }
            Fact::Started(run) => self.change(run, |known| match known.phase {
                Phase::Starting { .. } | Phase::Stuck => match known.stop() {
                    Some(stop) => Phase::Stopping { stop, leader: Leader::Lives },
                    None => Phase::Running { leader: Leader::Lives },
                },
                Phase::Running { .. } | Phase::Stopping { .. } | Phase::Lost => known.phase,
            }),
            Fact::Stopping { run, stop } => self.change(run, |known| match known.phase {
                Phase::Starting { .. } => Phase::Starting { stop: Some(*stop) },
                Phase::Running { leader } | Phase::Stopping { leader, .. } => {
                    Phase::Stopping { stop: *stop, leader }
                }
                Phase::Stuck => Phase::Stopping { stop: *stop, leader: Leader::Lives },
                Phase::Lost => Phase::Lost,
            }),
            Fact::Exited(run) => self.change(run, |known| match known.phase {
                Phase::Starting { stop: Some(stop) } | Phase::Stopping { stop, .. } => {
                    Phase::Stopping { stop, leader: Leader::Exited }
                }
                Phase::Starting { stop: None } | Phase::Running { .. } => {
                    Phase::Running { leader: Leader::Exited }
                }
                Phase::Stuck | Phase::Lost => known.phase,
            }),
            Fact::Warned { run, limit } => {
                if let Some(known) = self.runs.get_mut(run) {
                    known.warned.push(limit.clone());
                }
            }
            Fact::Noted { run, note } => {
                if let Some(known) = self.runs.get_mut(run) {
                    known.noted.keep(note);
                }
            }
            Fact::Stuck(run) => self.change(run, |_| Phase::Stuck),
            Fact::Ended { run, ending } => match ending {
                Ending::NeverStarted | Ending::Dead => self.forget(run),
                Ending::Lost => self.change(run, |_| Phase::Lost),
            },
            Fact::ShuttingDown => self.shutting_down = true,
        }
    }

    fn change(&mut self, run: &RunId, change: impl FnOnce(&Run) -> Phase) {
        if let Some(known) = self.runs.get_mut(run) {
            let (stop, phase) = (known.stop(), change(known));
            known.stop_when_found = stop.filter(|_| phase == Phase::Stuck);
            known.phase = phase;
        }
    }

    pub(crate) fn hold(&mut self, run: &RunId, known: Run) {
        self.slots.insert(known.claim.slot.clone(), run.clone());
        if let Some(worktree) = &known.claim.worktree {
            self.worktrees.insert(worktree.clone(), run.clone());
        }
        self.runs.insert(run.clone(), known);
    }

    /// The run is over with proof: what it held is free, unless another run has it by now.
    pub(crate) fn forget(&mut self, run: &RunId) {
        let Some(known) = self.runs.remove(run) else { return };
        if self.slots.get(&known.claim.slot) == Some(run) {
            self.slots.remove(&known.claim.slot);
        }
        if let Some(worktree) = &known.claim.worktree
            && self.worktrees.get(worktree) == Some(run)
        {
            self.worktrees.remove(worktree);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Claim, Stop};

    #[test]
    fn every_phase_is_reached_by_its_facts_and_proof_alone_frees() {
        let run = || RunId::from("r1");
        let ask = Stop::Ask { grace_ms: None };
        let steps = [
            (Fact::Started(run()), Some(Phase::Running { leader: Leader::Lives })),
            (Fact::Stuck(run()), Some(Phase::Stuck)),
            (Fact::Started(run()), Some(Phase::Running { leader: Leader::Lives })),
            (Fact::Exited(run()), Some(Phase::Running { leader: Leader::Exited })),
            (
                Fact::Stopping { run: run(), stop: ask },
                Some(Phase::Stopping { stop: ask, leader: Leader::Exited }),
            ),
            (Fact::Ended { run: run(), ending: Ending::Lost }, Some(Phase::Lost)),
            (Fact::Started(run()), Some(Phase::Lost)),
            (Fact::Ended { run: run(), ending: Ending::Dead }, None),
        ];
        let mut state = State::default();
        let worktree = Some("/w".into());
        state.apply(&Fact::Admitted {
            run: run(),
            claim: Claim { slot: "s".into(), worktree, parent: None },
        });
        for (fact, expected) in steps {
            state.apply(&fact);
            assert_eq!(state.run(&run()).map(|r| r.phase), expected, "{fact:?}");
            assert_eq!(state.holder(&"s".into()).is_some(), expected.is_some(), "{fact:?}");
            assert_eq!(state.lives_in(&"/w".into()).is_some(), expected.is_some(), "{fact:?}");
        }
        assert_eq!(state, State::default());
    }

    #[test]
    fn facts_about_nobody_change_nothing() {
        let mut state = State::default();
        for fact in [Fact::Started("x".into()), Fact::Exited("x".into()), Fact::Stuck("x".into())] {
            state.apply(&fact);
        }
        state.apply(&Fact::Ended { run: "x".into(), ending: Ending::Dead });
        assert_eq!(state, State::default());
    }
}
