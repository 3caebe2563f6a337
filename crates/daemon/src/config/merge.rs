//! Whose limit binds: the user's cap, an agent's profile, or the caller's flag. Pure.
//!
//! Owns the one rule: the lowest counts, a profile above a cap is lowered and that is told, and a
//! caller who asks for more than both allow is refused.

use std::collections::BTreeMap;
use std::fmt;

use crate::api::wire::Limits;

/// One bound, by whatever name it is set. Both names of a bound on turns are one: the other name
/// would else be a way around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Turns,
    Budget,
    Tokens,
    Wall,
    Idle,
    Finish,
    Memory,
    Pids,
    Output,
}

const AXES: [Axis; 9] = [
    Axis::Turns,
    Axis::Budget,
    Axis::Tokens,
    Axis::Wall,
    Axis::Idle,
    Axis::Finish,
    Axis::Memory,
    Axis::Pids,
    Axis::Output,
];

/// Limits, and who set them.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    /// For people: `agent coder in FILE`.
    pub who: &'s str,
    /// What they set.
    pub limits: &'s Limits,
}

/// What binds a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Its limits.
    pub limits: Limits,
    /// Who set each, by its name.
    pub from: BTreeMap<String, String>,
    /// What was lowered, in sentences.
    pub lowered: Vec<String>,
}

/// The caller asked for more than is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    kind: &'static str,
    asked: String,
    allowed: String,
    who: String,
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, asked, allowed, who } = self;
        write!(f, "limit {kind} may be {allowed} at most, by {who}, and {asked} was asked for")
    }
}

impl std::error::Error for Raised {}

/// The limits of a run.
pub fn merge(
    cap: Source<'_>,
    profile: Option<Source<'_>>,
    caller: &Limits,
) -> Result<Merged, Raised> {
    let mut merged = Merged::default();
    for axis in AXES {
        let capped = axis.of(cap.limits).map(|at| (at, cap));
        let own = profile.and_then(|own| Some((axis.of(own.limits)?, own)));
        // Of two that are equal the profile's is told: it is the nearer one.
        let bound = match (own, capped) {
            (Some(own), Some(cap)) if cap.0.value < own.0.value => Some(cap),
            (Some(own), _) => Some(own),
            (None, capped) => capped,
        };
        let asked = axis.of(caller);
        if let (Some(asked), Some((allowed, by))) = (&asked, &bound)
            && asked.value > allowed.value
        {
            let (asked, allowed) = (asked.to_string(), allowed.to_string());
            return Err(Raised { kind: axis.kind(caller), asked, allowed, who: by.who.to_owned() });
        }
        let (limits, who) = match (asked, bound) {
            (Some(_), _) => (caller, "the caller"),
            (None, Some((at, by))) => {
                if let Some((own, profile)) = own.filter(|(own, _)| own.value > at.value) {
                    let kind = axis.kind(profile.limits);
                    merged.lowered.push(format!(
                        "limit {kind} of {} is {own} and was lowered to {at}, by {}",
                        profile.who, by.who
                    ));
                }
                (by.limits, by.who)
            }
            (None, None) => continue,
        };
        axis.copy(limits, &mut merged.limits);
        merged.from.insert(axis.kind(limits).to_owned(), who.to_owned());
    }
    // It makes the bound narrower, so that whoever wants it so is heard.
    let own = profile.is_some_and(|own| own.limits.idle_tools);
    merged.limits.idle_tools = cap.limits.idle_tools || own || caller.idle_tools;
    Ok(merged)
}

/// The height of a bound, comparable, and as it is written.
#[derive(Clone, Copy, Debug)]
struct Height {
    value: f64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Count,
    Money,
    Milliseconds,
    Bytes,
}

impl fmt::Display for Height {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, value) = (self.value as u64, self.value);
        let in_units = |f: &mut fmt::Formatter<'_>, units: &[(u64, &str)]| {
            let fits = |(size, _): &&(u64, &str)| whole.is_multiple_of(*size) && whole > 0;
            let (size, name) = units.iter().find(fits).copied().unwrap_or((1, ""));
            write!(f, "{}{name}", whole / size)
        };
        match self.unit {
            Unit::Count => write!(f, "{whole}"),
            Unit::Money => write!(f, "${value}"),
            Unit::Milliseconds => {
                in_units(f, &[(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")])
            }
            Unit::Bytes => in_units(f, &[(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")]),
        }
    }
}

impl Axis {
    fn of(self, limits: &Limits) -> Option<Height> {
        let count = |n: u64| (n as f64, Unit::Count);
        let time = |ms: u64| (ms as f64, Unit::Milliseconds);
        let bytes = |n: u64| (n as f64, Unit::Bytes);
        let (value, unit) = match self {
            Self::Turns => limits.max_tool_turns.or(limits.max_turns).map(count),
            Self::Budget => limits.max_budget_usd.map(|usd| (usd, Unit::Money)),
            Self::Tokens => limits.max_tokens.map(count),
            Self::Wall => limits.wall_ms.map(time),
            Self::Idle => limits.idle_ms.map(time),
            Self::Finish => limits.finish_ms.map(time),
            Self::Memory => limits.memory.map(bytes),
            Self::Pids => limits.pids.map(|n| count(u64::from(n))),
            Self::Output => limits.output.map(bytes),
        }?;
        Some(Height { value, unit })
    }

    fn copy(self, from: &Limits, to: &mut Limits) {
        match self {
            Self::Turns => match from.max_tool_turns {
                Some(turns) => to.max_tool_turns = Some(turns),
                None => to.max_turns = from.max_turns,
            },
            Self::Budget => to.max_budget_usd = from.max_budget_usd,
            Self::Tokens => to.max_tokens = from.max_tokens,
            Self::Wall => to.wall_ms = from.wall_ms,
            Self::Idle => to.idle_ms = from.idle_ms,
            Self::Finish => to.finish_ms = from.finish_ms,
            Self::Memory => to.memory = from.memory,
            Self::Pids => to.pids = from.pids,
            Self::Output => to.output = from.output,
        }
    }

    /// Its name where it was set.
    fn kind(self, set: &Limits) -> &'static str {
        match self {
            Self::Turns if set.max_tool_turns.is_some() => "max_tool_turns",
            Self::Turns => "max_turns",
            Self::Budget => "max_budget_usd",
            Self::Tokens => "max_tokens",
            Self::Wall => "wall",
            Self::Idle => "idle",
            Self::Finish => "finish",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Output => "output",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(ms: u64) -> Limits {
        Limits { wall_ms: Some(ms), ..Limits::default() }
    }

    fn merged(cap: &Limits, own: &Limits, caller: &Limits) -> Result<Merged, Raised> {
        let own = Source { who: "agent a in F", limits: own };
        merge(Source { who: "your cap in U", limits: cap }, Some(own), caller)
    }

    #[test]
    fn the_lowest_binds_and_a_caller_can_only_lower() {
        let none = Limits::default();
        // Cap, profile, caller: what binds and who set it, or who refuses.
        let (cap, own, caller) = ("your cap in U", "agent a in F", "the caller");
        for (c, p, k, expected) in [
            (None, None, None, None),
            (Some(60_000), None, None, Some((60_000, cap))),
            (None, Some(50_000), None, Some((50_000, own))),
            (None, None, Some(40_000), Some((40_000, caller))),
            (Some(60_000), Some(50_000), None, Some((50_000, own))),
            (Some(60_000), Some(70_000), None, Some((60_000, cap))),
            (Some(60_000), Some(60_000), None, Some((60_000, own))),
            (Some(60_000), Some(50_000), Some(40_000), Some((40_000, caller))),
            (Some(60_000), Some(50_000), Some(50_000), Some((50_000, caller))),
        ] {
            let of = |ms: Option<u64>| ms.map_or(none.clone(), wall);
            let found = merged(&of(c), &of(p), &of(k)).unwrap();
            assert_eq!(found.limits, of(expected.map(|(ms, _)| ms)), "{c:?} {p:?} {k:?}");
            let from = found.from.get("wall").map(String::as_str);
            assert_eq!(from, expected.map(|(_, who)| who), "{c:?} {p:?} {k:?}");
            let lowered = p.is_some() && c < p && c.is_some() && k.is_none();
            assert_eq!(found.lowered.len(), usize::from(lowered), "{:?}", found.lowered);
        }
        for (c, p, who) in [
            (Some(60_000), None, cap),
            (Some(60_000), Some(70_000), cap),
            (Some(70_000), Some(60_000), own),
            (None, Some(60_000), own),
        ] {
            let of = |ms: Option<u64>| ms.map_or(none.clone(), wall);
            let refused = merged(&of(c), &of(p), &wall(60_001)).unwrap_err().to_string();
            assert!(
                refused.contains("wall may be 1m at most") && refused.contains(who),
                "{refused}"
            );
            assert!(refused.contains("60001ms"), "{refused}");
        }
    }

    #[test]
    fn the_other_name_of_a_limit_on_turns_is_no_way_around_it() {
        let turns = |n| Limits { max_turns: Some(n), ..Limits::default() };
        let tool_turns = |n| Limits { max_tool_turns: Some(n), ..Limits::default() };
        let none = Limits::default();
        assert!(merged(&turns(10), &none, &tool_turns(11)).is_err());
        assert!(merged(&tool_turns(10), &none, &turns(11)).is_err());
        assert_eq!(merged(&turns(10), &tool_turns(20), &none).unwrap().limits, turns(10));
        assert_eq!(merged(&turns(10), &none, &tool_turns(9)).unwrap().limits, tool_turns(9));
        // Both at once: the one that counts is compared, and alone kept.
        let both = Limits { max_turns: Some(100), max_tool_turns: Some(5), ..Limits::default() };
        assert_eq!(merged(&turns(10), &both, &none).unwrap().limits, tool_turns(5));
    }

    #[test]
    fn every_limit_has_its_axis() {
        let all = Limits {
            max_turns: None,
            max_tool_turns: Some(1),
            max_budget_usd: Some(1.5),
            max_tokens: Some(1),
            wall_ms: Some(1),
            idle_ms: Some(90_000),
            idle_tools: true,
            finish_ms: Some(7_200_000),
            memory: Some(3 << 30),
            pids: Some(1),
            output: Some(1),
        };
        let found = merged(&all, &Limits::default(), &Limits::default()).unwrap();
        assert_eq!(found.limits, all);
        assert_eq!(found.from.len(), AXES.len());
        let shown: Vec<String> = AXES.map(|axis| axis.of(&all).unwrap().to_string()).to_vec();
        assert_eq!(shown, ["1", "$1.5", "1", "1ms", "90s", "2h", "3G", "1", "1"]);
    }
}
