//! The stages of a repository's file: read, joined by name, and checked as a whole. Owns the
//! default pipeline and what makes one senseless. Nothing is moved through it here.

use std::collections::BTreeSet;
use std::ops::Range;

use super::parse::{named, unknown};
use super::problem::Problems;
use super::table::Table;
use super::{Agent, Role, Stage, StageKind};

/// A stage as it stands in the file, with where it says what.
struct Written {
    stage: Stage,
    order: Option<u64>,
    agents_at: Range<usize>,
    next_at: Range<usize>,
    on_failure_at: Range<usize>,
}

/// The stages of a file, or the default ones.
pub(super) fn stages(
    root: &Table<'_, '_>,
    to: &mut Problems<'_>,
    agents: &[Agent],
    others: &[String],
) -> Vec<Stage> {
    let mut written = named(root, to, "stage", one);
    if !root.has("stage") {
        return default_stages(agents);
    }
    if written.is_empty() {
        root.wrong(to, "stage", "there is none: leave it out, and there are the usual ones");
    }
    let ordered = written.iter().filter(|stage| stage.order.is_some()).count();
    if ordered != 0 && ordered != written.len() {
        root.wrong(to, "stage", "give every stage an order, or none: then they are as written");
        return Vec::new();
    }
    written.sort_by_key(|stage| stage.order);
    join(&mut written);
    let own = agents.iter().map(|agent| agent.name.as_str());
    let known: Vec<&str> = own.chain(others.iter().map(String::as_str)).collect();
    for stage in &written {
        check(to, stage, &written, &known);
    }
    written.into_iter().map(|written| written.stage).collect()
}

fn one(table: &Table<'_, '_>, to: &mut Problems<'_>, name: String) -> Option<Written> {
    let (hold, terminal) = (table.flag(to, "hold"), table.flag(to, "terminal"));
    let success = table.flag(to, "success");
    let kind = match (hold.unwrap_or(false), terminal.unwrap_or(false)) {
        (true, true) => {
            table.wrong(to, "hold", "a stage is terminal or a hold, and not both");
            StageKind::Hold
        }
        (true, false) => StageKind::Hold,
        (false, true) => StageKind::Terminal { success: success.unwrap_or(true) },
        (false, false) => StageKind::Work,
    };
    if table.has("success") && !matches!(kind, StageKind::Terminal { .. }) {
        table.wrong(to, "success", "only a terminal stage ends a story: add terminal = true");
    }
    let stage = Stage {
        name,
        kind,
        agents: table.texts(to, "agents").unwrap_or_default(),
        gates: table.commands(to, "gates").unwrap_or_default(),
        merge: table.flag(to, "merge").unwrap_or(false),
        next: table.text(to, "next"),
        on_failure: table.text(to, "on_failure"),
        max_runs: table.small_number(to, "max_runs", 1),
    };
    let order = table.number(to, "order", 0);
    if kind != StageKind::Work {
        for key in ["agents", "gates", "merge", "on_failure", "max_runs"] {
            if table.has(key) {
                table.wrong(to, key, "nothing is done in a stage that is a hold or terminal");
            }
        }
    }
    let [agents_at, next_at, on_failure_at] =
        ["agents", "next", "on_failure"].map(|key| table.place(key));
    Some(Written { stage, order, agents_at, next_at, on_failure_at })
}

/// Work without a next stage goes to the one behind it.
fn join(stages: &mut [Written]) {
    let names: Vec<(String, StageKind)> =
        stages.iter().map(|Written { stage, .. }| (stage.name.clone(), stage.kind)).collect();
    for (n, Written { stage, .. }) in stages.iter_mut().enumerate() {
        if stage.kind == StageKind::Work && stage.next.is_none() {
            let behind = names[n + 1..].iter().find(|(_, kind)| *kind != StageKind::Hold);
            stage.next = behind.map(|(name, _)| name.clone());
        }
    }
}

fn check(to: &mut Problems<'_>, written: &Written, all: &[Written], known: &[&str]) {
    let Written { stage, agents_at, next_at, on_failure_at, .. } = written;
    for agent in stage.agents.iter().filter(|agent| !known.contains(&agent.as_str())) {
        to.at(agents_at.clone(), "stage.agents", unknown("agent", agent, known));
    }
    let names: Vec<&str> = all.iter().map(|other| other.stage.name.as_str()).collect();
    for (at, key, target) in [
        (next_at, "stage.next", &stage.next),
        (on_failure_at, "stage.on_failure", &stage.on_failure),
    ] {
        if let Some(target) = target.as_deref().filter(|name| !names.contains(name)) {
            to.at(at.clone(), key, unknown("stage", target, &names));
        }
    }
    if stage.kind == StageKind::Work && !ends(stage, all) {
        let message = "no terminal stage can be reached from here: a story would never end";
        to.at(next_at.clone(), "stage.next", message);
    } else if goes_round(stage, all) {
        let message = "success alone leads from here back to here: a story that never fails would \
                       never end";
        to.at(next_at.clone(), "stage.next", message);
    }
}

/// True if success alone leads from a stage back to it, as the mind of stories asks.
fn goes_round(from: &Stage, all: &[Written]) -> bool {
    let mut at = from;
    for _ in all {
        let next = at.next.as_deref().filter(|_| at.kind == StageKind::Work);
        let next = next.and_then(|name| all.iter().find(|other| other.stage.name == name));
        match next {
            Some(next) if next.stage.name == from.name => return true,
            Some(next) => at = &next.stage,
            None => return false,
        }
    }
    false
}

/// True if some way leads from a stage to a terminal one. What is misnamed is told elsewhere.
fn ends(from: &Stage, all: &[Written]) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(stage) = open.pop() {
        if matches!(stage.kind, StageKind::Terminal { .. }) {
            return true;
        }
        if !seen.insert(&stage.name) {
            continue;
        }
        for target in [&stage.next, &stage.on_failure].into_iter().flatten() {
            match all.iter().find(|other| other.stage.name == *target) {
                Some(next) => open.push(&next.stage),
                None => return true,
            }
        }
    }
    false
}

/// The pipeline of a file that has none: each agent works where its profile says.
fn default_stages(agents: &[Agent]) -> Vec<Stage> {
    let with = |role: Role| -> Vec<String> {
        let these = agents.iter().filter(|agent| agent.role == role);
        these.map(|agent| agent.name.clone()).collect()
    };
    let stage = |name: &str, kind, agents, next: Option<&str>, on_failure: Option<&str>| Stage {
        name: name.to_owned(),
        kind,
        agents,
        gates: Vec::new(),
        merge: name == "merge",
        next: next.map(str::to_owned),
        on_failure: on_failure.map(str::to_owned),
        max_runs: None,
    };
    use StageKind::{Hold, Work};
    let terminal = |success| StageKind::Terminal { success };
    vec![
        stage("backlog", Work, Vec::new(), Some("current"), None),
        stage("current", Work, with(Role::Coder), Some("qa"), None),
        stage("qa", Work, with(Role::Qa), Some("merge"), Some("current")),
        stage("merge", Work, with(Role::Merge), Some("done"), Some("current")),
        stage("done", terminal(true), Vec::new(), Some("archived"), None),
        stage("archived", terminal(false), Vec::new(), None, None),
        stage("blocked", Hold, Vec::new(), None, None),
        stage("frozen", Hold, Vec::new(), None, None),
    ]
}
