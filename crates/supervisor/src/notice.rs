//! What deserves telling, and which of its kind it is. Owns the closed list of kinds and the count
//! that makes the same notice the same one for ever; what it says of the run is not known here.
//!
//! A fact gives one notice or none, so that whatever makes a fact durable once tells of it once.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::event::Ending;
use crate::fact::Fact;
use crate::state::{Phase, Run, RunId, State};

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The program runs.
    Started,
    /// The run comes near a limit.
    LimitWarning,
    /// The run was ended by a limit.
    LimitReached,
    /// Somebody of it is left after a stop, or it cannot be looked at.
    Stuck,
    /// The agent waits for its user.
    Waiting,
    /// The agent's provider takes no more for a while.
    RateLimited,
    /// Its output had what somebody watches for.
    WatchMatch,
    /// It goes on, and this is what it wrote lately.
    Heartbeat,
    /// It is over: the one terminal notice of every run.
    Ended,
    /// It was over without a proof, and now there is one: its slot is free.
    Settled,
}

/// A notice's name: the same for ever, and no other one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose.
    pub run: RunId,
    /// What it is about.
    pub kind: Kind,
    /// The how many-th of this kind of this run, from 1 on.
    pub n: u32,
}

/// Something observed of a run that lives and changes nothing about its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A limit has ended it: told once the proof is there, with the end right behind.
    LimitReached(Box<str>),
    /// The agent works, waits for its user, or is not served.
    Doing(Doing),
    /// A line of its output matched.
    Matched(Match),
    /// It was time for a heartbeat: the how many-th.
    Heartbeat(u32),
}

/// What the agent does, in its own words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// It works, or says nothing of it.
    #[default]
    Works,
    /// It waits for its user.
    Waits,
    /// Its provider takes no more until then, in milliseconds of the Unix clock, if it said when.
    RateLimited {
        /// When it ends.
        until_ms: Option<u64>,
    },
}

/// Where in a run's output a pattern matched. Matches of one stream have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Match {
    /// Which stream, by a number of the caller's.
    pub stream: u8,
    /// The offset behind the matching line.
    pub through: u64,
    /// Which of the run's patterns.
    pub pattern: u16,
}

/// What was noted of a run so far, so that nothing is told twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    reached: bool,
    doing: Doing,
    /// The last match of each stream.
    matched: BTreeMap<u8, (u64, u16)>,
    heartbeats: u32,
    /// How many of each kind were told.
    told: BTreeMap<Kind, u32>,
}

impl Noted {
    /// True if this is not known yet.
    pub(crate) fn is_news(&self, note: &Note) -> bool {
        match note {
            Note::LimitReached(_) => !self.reached,
            Note::Doing(doing) => self.doing != *doing,
            Note::Matched(found) => self
                .matched
                .get(&found.stream)
                .is_none_or(|last| *last < (found.through, found.pattern)),
            Note::Heartbeat(n) => *n == self.heartbeats + 1,
        }
    }

    pub(crate) fn keep(&mut self, note: &Note) {
        match note {
            Note::LimitReached(_) => self.reached = true,
            Note::Doing(doing) => self.doing = *doing,
            Note::Matched(found) => {
                self.matched.insert(found.stream, (found.through, found.pattern));
            }
            Note::Heartbeat(n) => self.heartbeats = *n,
        }
    }

    pub(crate) fn count(&mut self, kind: Kind) {
        *self.told.entry(kind).or_default() += 1;
    }
}

impl Run {
    /// Where the last match of a stream ended, if there was one.
    #[must_use]
    pub fn matched_through(&self, stream: u8) -> Option<u64> {
        self.noted.matched.get(&stream).map(|(through, _)| *through)
    }

    /// How many heartbeats it had.
    #[must_use]
    pub fn heartbeats(&self) -> u32 {
        self.noted.heartbeats
    }
}

impl State {
    /// What is to be told of a fact, if anything. Asked before the fact is applied.
    #[must_use]
    pub fn notice_of(&self, fact: &Fact) -> Option<Notice> {
        let run = fact.run()?;
        let known = self.run(run)?;
        let kind = kind_of(known, fact)?;
        let n = known.noted.told.get(&kind).map_or(1, |told| told + 1);
        Some(Notice { run: run.clone(), kind, n })
    }
}

/// What a fact about a run is worth telling as.
pub(crate) fn kind_of(known: &Run, fact: &Fact) -> Option<Kind> {
    match fact {
        Fact::Admitted { .. } | Fact::Stopping { .. } | Fact::Exited(_) | Fact::ShuttingDown => {
            None
        }
        // Who was stuck and is found running again was told of before.
        Fact::Started(_) => match known.phase {
            Phase::Starting { .. } => Some(Kind::Started),
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Stuck | Phase::Lost => None,
        },
        Fact::Warned { .. } => Some(Kind::LimitWarning),
        Fact::Stuck(_) => Some(Kind::Stuck),
        Fact::Noted { note, .. } => match note {
            Note::LimitReached(_) => Some(Kind::LimitReached),
            Note::Doing(Doing::Works) => None,
            Note::Doing(Doing::Waits) => Some(Kind::Waiting),
            Note::Doing(Doing::RateLimited { .. }) => Some(Kind::RateLimited),
            Note::Matched(_) => Some(Kind::WatchMatch),
            Note::Heartbeat(_) => Some(Kind::Heartbeat),
        },
        Fact::Ended { ending, .. } => match (known.phase, ending) {
            (Phase::Lost, Ending::Dead | Ending::NeverStarted) => Some(Kind::Settled),
            (Phase::Lost, Ending::Lost) => None,
            (
                Phase::Starting { .. }
                | Phase::Running { .. }
                | Phase::Stopping { .. }
                | Phase::Stuck,
                Ending::Dead | Ending::NeverStarted | Ending::Lost,
            ) => Some(Kind::Ended),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Claim, Stop};
    use alloc::vec;
    use alloc::vec::Vec;

    fn run() -> RunId {
        "r".into()
    }

    fn told(facts: &[Fact]) -> Vec<Option<(Kind, u32)>> {
        let mut state = State::default();
        let claim = Claim { slot: "s".into(), worktree: None, parent: None };
        let admitted = Fact::Admitted { run: run(), claim };
        assert_eq!(state.notice_of(&admitted), None);
        state.apply(&admitted);
        let each = facts.iter().map(|fact| {
            let notice = state.notice_of(fact);
            state.apply(fact);
            notice.map(|notice| (notice.kind, notice.n))
        });
        each.collect()
    }

    #[test]
    fn every_kind_is_counted_by_itself_and_the_end_is_told_once() {
        let note = |note| Fact::Noted { run: run(), note };
        let ended = |ending| Fact::Ended { run: run(), ending };
        let warned = |limit: &str| Fact::Warned { run: run(), limit: limit.into() };
        let matched = |through| Note::Matched(Match { stream: 1, through, pattern: 0 });
        let facts = [
            (Fact::Started(run()), Some((Kind::Started, 1))),
            (warned("wall"), Some((Kind::LimitWarning, 1))),
            (warned("idle"), Some((Kind::LimitWarning, 2))),
            (note(Note::Doing(Doing::Waits)), Some((Kind::Waiting, 1))),
            (note(Note::Doing(Doing::Works)), None),
            (note(Note::Doing(Doing::Waits)), Some((Kind::Waiting, 2))),
            (note(Note::Heartbeat(1)), Some((Kind::Heartbeat, 1))),
            (note(matched(5)), Some((Kind::WatchMatch, 1))),
            (note(matched(9)), Some((Kind::WatchMatch, 2))),
            (Fact::Stuck(run()), Some((Kind::Stuck, 1))),
            (Fact::Started(run()), None),
            (Fact::Stuck(run()), Some((Kind::Stuck, 2))),
            (Fact::Stopping { run: run(), stop: Stop::Force }, None),
            (note(Note::LimitReached("wall".into())), Some((Kind::LimitReached, 1))),
            (ended(Ending::Lost), Some((Kind::Ended, 1))),
            (ended(Ending::Dead), Some((Kind::Settled, 1))),
            (ended(Ending::Dead), None),
        ];
        let (facts, expected): (Vec<Fact>, Vec<_>) = facts.into_iter().unzip();
        assert_eq!(told(&facts), expected);
        assert_eq!(told(&[ended(Ending::NeverStarted)]), vec![Some((Kind::Ended, 1))]);
    }

    #[test]
    fn what_was_noted_is_no_news_the_second_time() {
        let at = |stream, through, pattern| Note::Matched(Match { stream, through, pattern });
        let mut noted = Noted::default();
        for (note, news) in [
            (at(1, 10, 0), true),
            (at(1, 10, 0), false),
            (at(1, 10, 1), true),
            (at(1, 9, 5), false),
            (at(2, 3, 0), true),
            (at(1, 11, 0), true),
            (Note::Heartbeat(2), false),
            (Note::Heartbeat(1), true),
            (Note::Heartbeat(1), false),
            (Note::Heartbeat(2), true),
            (Note::Doing(Doing::Works), false),
            (Note::Doing(Doing::RateLimited { until_ms: Some(5) }), true),
            (Note::Doing(Doing::RateLimited { until_ms: Some(5) }), false),
            (Note::Doing(Doing::RateLimited { until_ms: Some(6) }), true),
            (Note::LimitReached("a".into()), true),
            (Note::LimitReached("b".into()), false),
        ] {
            assert_eq!(noted.is_news(&note), news, "{note:?}");
            if news {
                noted.keep(&note);
            }
        }
    }
}
