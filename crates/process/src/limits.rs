//! Bounds that any program can be held to, and when they are reached.
//!
//! Owns: the arithmetic. Time, totals and samples are arguments; nothing is measured, stopped or
//! told from here. What an agent's own words say (turns, tokens, money) is the meter's.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::controllers::Bindings;
use crate::record::LimitReached;

/// How often memory and processes are counted while one of them is bounded.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// A run is looked at so often within the time it may be idle.
const LOOKS_PER_IDLE: u32 = 4;
/// Idleness is looked for no more often than this.
const SHORTEST_IDLE_LOOK: Duration = Duration::from_millis(50);
/// How late a look may come on a loaded machine before it is taken for the end of a suspend.
const SLACK: Duration = Duration::from_secs(1);
/// Less processor time than this part of a while is none: runtimes wake up for nothing.
const IDLE_CPU_PART: u32 = 100;
/// From this part of a limit on, somebody is warned, once.
const WARN_AT: f64 = 0.8;
/// More than this part of what the kernel allows is used only if somebody has raised its bound: it
/// goes beyond it by single pages.
const RAISED: f64 = 1.1;

/// Bounds on a run. Each that is `None` is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Time since its start, suspend included.
    pub wall: Option<Duration>,
    /// Time without output, without growth of its transcript, and without processor time.
    pub idle: Option<Duration>,
    /// Bytes it writes to both streams, or to its terminal.
    pub output: Option<u64>,
    /// Bytes of memory its cohort has for itself.
    pub memory: Option<u64>,
    /// Processes and threads in its cohort.
    pub pids: Option<u32>,
}

/// What was found out about a cohort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) cpu: Duration,
    pub(crate) memory: u64,
    /// Processes and threads.
    pub(crate) tasks: u64,
    /// How often the kernel refused one more.
    pub(crate) refused: u64,
}

/// What a run did since the last judgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doings {
    /// When it last wrote, or its transcript last grew.
    pub(crate) active_at: Duration,
    pub(crate) written: u64,
    /// It waits for something outside: a tool, a person, a service that said when to come back.
    pub(crate) excused: bool,
}

/// What follows from a look.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Judgement {
    Warn(LimitReached),
    Stop(LimitReached),
}

/// Judges one run.
#[derive(Debug)]
pub(crate) struct Judge {
    limits: Limits,
    binds: Bindings,
    started_at: Duration,
    /// When processor time was last seen to have been used.
    busy_at: Duration,
    last: Option<(Duration, Sample)>,
    warned: Vec<&'static str>,
}

impl Judge {
    pub(crate) fn new(limits: Limits, binds: Bindings, started_at: Duration) -> Self {
        Self { limits, binds, started_at, busy_at: started_at, last: None, warned: Vec::new() }
    }

    /// When to look next, at the latest.
    pub(crate) fn due(&self, doings: Doings) -> Option<Duration> {
        let wall = self.limits.wall.map(|wall| {
            let warning = self.started_at + wall.mul_f64(WARN_AT);
            if self.warned.contains(&"wall") { self.started_at + wall } else { warning }
        });
        [wall, self.sample_due(doings)].into_iter().flatten().min()
    }

    /// When the cohort is to be counted next. Each count puts it off: no look is due before it
    /// could find anything new.
    fn sample_due(&self, doings: Doings) -> Option<Duration> {
        let last = self.last.map_or(self.started_at, |(at, _)| at);
        let sample = self.samples().then_some(last + SAMPLE_EVERY);
        let idle = self.limits.idle.map(|idle| {
            let regular = last + idle_look(idle);
            let reached = doings.active_at.max(self.busy_at) + idle;
            match doings.excused {
                true => regular,
                false => regular.min(reached.max(last + SHORTEST_IDLE_LOOK)),
            }
        });
        [sample, idle].into_iter().flatten().min()
    }

    /// True if the next judgement needs a sample.
    pub(crate) fn wants_sample(&self, now: Duration, doings: Doings) -> bool {
        self.sample_due(doings).is_some_and(|due| now >= due)
    }

    /// True if memory or processes are bounded.
    pub(crate) fn samples(&self) -> bool {
        self.limits.memory.is_some() || self.limits.pids.is_some()
    }

    /// Judges what is known now. Output comes before time, time before size: the order in which two
    /// limits that are reached at once are told.
    pub(crate) fn judge(
        &mut self,
        now: Duration,
        doings: Doings,
        sample: Option<Sample>,
    ) -> Vec<Judgement> {
        let limits = self.limits.clone();
        let mut judgements = Vec::new();
        if let Some(max) = limits.output {
            self.hold("output", doings.written as f64, max as f64, &mut judgements);
        }
        if let Some(max) = limits.wall {
            let used = now.saturating_sub(self.started_at);
            self.hold("wall", used.as_secs_f64(), max.as_secs_f64(), &mut judgements);
        }
        if let Some(sample) = sample {
            self.see_cpu(now, sample);
            if let Some(max) = limits.memory {
                let (used, max) = (sample.memory as f64, max as f64);
                match self.binds.hard_memory() {
                    Some(_) => {
                        self.watch("memory", used, max, used >= max * WARN_AT, &mut judgements)
                    }
                    None => self.hold("memory", used, max, &mut judgements),
                }
            }
            if let Some(max) = limits.pids {
                let (used, max) = (sample.tasks as f64, f64::from(max));
                match self.binds.hard_pids() {
                    Some(_) => self.watch("pids", used, max, sample.refused > 0, &mut judgements),
                    None => self.hold("pids", used, max, &mut judgements),
                }
            }
        }
        if let Some(max) = limits.idle.filter(|_| !doings.excused) {
            let since = doings.active_at.max(self.busy_at);
            let used = now.saturating_sub(since);
            // Only right after a look at the processor: what happened since the last is not known.
            if used >= max && sample.is_some() {
                judgements.push(Judgement::Stop(reached(
                    "idle",
                    used.as_secs_f64(),
                    max.as_secs_f64(),
                )));
            }
        }
        judgements
    }

    /// Where each limit stands. Of memory and processes only with a sample.
    pub(crate) fn standing(
        &self,
        now: Duration,
        doings: Doings,
        sample: Option<Sample>,
    ) -> Vec<LimitReached> {
        let limits = &self.limits;
        let seconds = |time: Duration| time.as_secs_f64();
        let since = doings.active_at.max(self.busy_at);
        let all = [
            limits.wall.map(|max| {
                reached("wall", seconds(now.saturating_sub(self.started_at)), seconds(max))
            }),
            limits
                .idle
                .map(|max| reached("idle", seconds(now.saturating_sub(since)), seconds(max))),
            limits.output.map(|max| reached("output", doings.written as f64, max as f64)),
            limits
                .memory
                .zip(sample)
                .map(|(max, s)| reached("memory", s.memory as f64, max as f64)),
            limits.pids.zip(sample).map(|(max, s)| reached("pids", s.tasks as f64, max.into())),
        ];
        all.into_iter().flatten().collect()
    }

    /// Whoever used more than next to nothing since the last look was busy.
    fn see_cpu(&mut self, now: Duration, sample: Sample) {
        // The first look is compared with the start: the machine may have slept before it.
        let (at, before) = self.last.unwrap_or((self.started_at, Sample::default()));
        let used = sample.cpu.saturating_sub(before.cpu);
        let gap = now.saturating_sub(at);
        // Nobody looked when it was time to: the machine slept, and the agent with it.
        let slept = self.limits.idle.is_some_and(|idle| gap > 2 * idle_look(idle) + SLACK);
        if used * IDLE_CPU_PART > gap || slept {
            self.busy_at = now;
        }
        self.last = Some((now, sample));
    }

    /// Watches what the kernel holds. It is not stopped from here, unless the bound is not what it
    /// was: whoever runs in a cgroup may be allowed to change it.
    fn watch(
        &mut self,
        kind: &'static str,
        used: f64,
        max: f64,
        worth_a_word: bool,
        to: &mut Vec<Judgement>,
    ) {
        if used > max * RAISED {
            to.push(Judgement::Stop(reached(kind, used, max)));
        } else if worth_a_word && !self.warned.contains(&kind) {
            self.warned.push(kind);
            to.push(Judgement::Warn(reached(kind, used, max)));
        }
    }

    fn hold(&mut self, kind: &'static str, used: f64, max: f64, to: &mut Vec<Judgement>) {
        if used >= max {
            to.push(Judgement::Stop(reached(kind, used, max)));
        } else if used >= max * WARN_AT && !self.warned.contains(&kind) {
            self.warned.push(kind);
            to.push(Judgement::Warn(reached(kind, used, max)));
        }
    }
}

fn idle_look(idle: Duration) -> Duration {
    (idle / LOOKS_PER_IDLE).max(SHORTEST_IDLE_LOOK)
}

fn reached(kind: &str, used: f64, max: f64) -> LimitReached {
    LimitReached { kind: kind.to_owned(), used, max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::Binds;

    const S: Duration = Duration::from_secs(1);

    fn kinds(judgements: &[Judgement]) -> Vec<String> {
        let word = |judgement: &Judgement| match judgement {
            Judgement::Warn(limit) => format!("warn {}", limit.kind),
            Judgement::Stop(limit) => format!("stop {}", limit.kind),
        };
        judgements.iter().map(word).collect()
    }

    #[test]
    fn each_limit_warns_once_and_stops_when_it_is_reached() {
        let limits = Limits {
            wall: Some(10 * S),
            output: Some(100),
            memory: Some(1000),
            pids: Some(10),
            idle: None,
        };
        let mut judge = Judge::new(limits, Bindings::default(), 5 * S);
        let doings = |written| Doings { active_at: 5 * S, written, excused: false };
        let sample = |memory, tasks| Some(Sample { cpu: S, memory, tasks, refused: 0 });
        for (now, written, sample, expected) in [
            (6, 10, sample(1, 1), &[][..]),
            (7, 80, sample(1, 1), &["warn output"]),
            (8, 99, sample(800, 8), &["warn memory", "warn pids"]),
            (13, 99, None, &["warn wall"]),
            (14, 99, sample(900, 9), &[]),
            (15, 100, sample(1000, 10), &["stop output", "stop wall", "stop memory", "stop pids"]),
        ] {
            let judged = judge.judge(now * S, doings(written), sample);
            assert_eq!(kinds(&judged), expected, "at {now}");
        }
    }

    #[test]
    fn what_the_kernel_holds_is_warned_of_and_stopped_only_if_its_bound_was_raised() {
        let limits = Limits { memory: Some(1000), pids: Some(10), ..Limits::default() };
        let hard = |max| Some(Binds::Hard { max });
        let binds = Bindings { memory: hard(1000), pids: hard(10) };
        let mut judge = Judge::new(limits, binds, S);
        for (memory, tasks, refused, expected) in [
            (700, 9, 0, &[][..]),
            (800, 10, 0, &["warn memory"]),
            (1000, 10, 3, &["warn pids"]),
            (1010, 10, 9, &[]),
            (1200, 10, 9, &["stop memory"]),
            (900, 12, 9, &["stop pids"]),
        ] {
            let sample = Sample { cpu: S, memory, tasks, refused };
            let judged = judge.judge(2 * S, Doings::default(), Some(sample));
            assert_eq!(kinds(&judged), expected, "{memory} {tasks}");
        }
    }

    #[test]
    fn idle_is_nothing_written_nothing_computed_and_no_excuse() {
        let limits = Limits { idle: Some(4 * S), ..Limits::default() };
        let at = |judge: &mut Judge, now: u32, active: u32, cpu_ms: u64, excused| {
            let doings = Doings { active_at: active * S, written: 0, excused };
            let cpu = Duration::from_millis(cpu_ms);
            let sample = Sample { cpu, memory: 0, tasks: 1, refused: 0 };
            kinds(&judge.judge(now * S, doings, Some(sample)))
        };
        let none: &[&str] = &[];
        let mut judge = Judge::new(limits.clone(), Bindings::default(), Duration::ZERO);
        assert_eq!(at(&mut judge, 1, 0, 0, false), none);
        assert_eq!(at(&mut judge, 3, 0, 500, false), none, "it computes");
        assert_eq!(at(&mut judge, 5, 0, 505, false), none, "not idle for long enough");
        assert_eq!(at(&mut judge, 7, 0, 510, false), ["stop idle"], "5 ms in 2 s are none");

        let mut judge = Judge::new(limits.clone(), Bindings::default(), Duration::ZERO);
        assert_eq!(at(&mut judge, 5, 4, 0, false), none, "it wrote");
        assert_eq!(at(&mut judge, 7, 4, 0, false), none, "not for long enough");
        assert_eq!(at(&mut judge, 9, 4, 0, true), none, "it waits for a tool");
        assert_eq!(at(&mut judge, 10, 4, 0, false), ["stop idle"]);

        let mut judge = Judge::new(limits.clone(), Bindings::default(), Duration::ZERO);
        assert_eq!(at(&mut judge, 2, 2, 0, false), none);
        assert_eq!(at(&mut judge, 3600, 2, 0, false), none, "the machine slept");
        assert_eq!(at(&mut judge, 3602, 2, 0, false), none, "it has just woken up");
        assert_eq!(at(&mut judge, 3604, 2, 0, false), ["stop idle"], "and does nothing");

        let mut judge = Judge::new(limits.clone(), Bindings::default(), Duration::ZERO);
        assert_eq!(at(&mut judge, 3600, 0, 0, false), none, "it slept before it was ever seen");
        assert_eq!(at(&mut judge, 3602, 0, 0, false), none, "it has just woken up");
        assert_eq!(at(&mut judge, 3604, 0, 0, false), ["stop idle"], "and does nothing");

        let judge = Judge::new(limits, Bindings::default(), Duration::ZERO);
        let doings = Doings::default();
        assert_eq!(judge.due(doings), Some(S), "often enough to see it compute");
        assert!(judge.wants_sample(S, doings));
    }

    #[test]
    fn who_has_no_limits_is_never_looked_at() {
        let judge = Judge::new(Limits::default(), Bindings::default(), S);
        assert_eq!(judge.due(Doings::default()), None);
        assert!(!judge.wants_sample(100 * S, Doings::default()));
    }

    #[test]
    fn a_look_puts_the_next_one_off_whatever_the_run_does() {
        let all = Limits {
            wall: Some(1000 * S),
            idle: Some(4 * S),
            memory: Some(1 << 30),
            ..Limits::default()
        };
        let idle_only = Limits { memory: None, wall: None, ..all.clone() };
        for limits in [all, idle_only] {
            for (active, busy, excused) in
                [(0, false, false), (0, false, true), (0, true, true), (3, true, false)]
            {
                let mut judge = Judge::new(limits.clone(), Bindings::default(), Duration::ZERO);
                let (mut now, mut looks) = (Duration::ZERO, 0);
                while now < 60 * S && looks < 10_000 {
                    let doings = Doings { active_at: active * S, written: 0, excused };
                    now = now.max(judge.due(doings).expect("there are limits"));
                    let sample = judge.wants_sample(now, doings).then(|| Sample {
                        cpu: if busy { now / 2 } else { Duration::ZERO },
                        memory: 0,
                        tasks: 1,
                        refused: 0,
                    });
                    let judged = judge.judge(now, doings, sample);
                    looks += 1;
                    if judged.iter().any(|j| matches!(j, Judgement::Stop(_))) {
                        break;
                    }
                }
                assert!(looks <= 300, "{limits:?} {active} {busy} {excused}: {looks} looks");
            }
        }
    }
}
