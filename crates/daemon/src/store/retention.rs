//! What is kept for how long. Owns the rule: only runs that are dead are removed, oldest first,
//! whole (facts, row, directory), and not while a consumer has still to read of them, unless it has
//! not come for very long; then it is told of the gap.
//!
//! Of stories nothing goes while they are there. Of one that is gone, what tells what became of it
//! stays for ever, because others may depend on it and its id is not used again; so do all pauses
//! of providers, because their notices are counted by them.

use std::collections::BTreeSet;
use std::time::Duration;

use kennel_supervisor::StoryFact;
use kennel_supervisor::story::Then;
use rusqlite::{Transaction, params};

use super::read;
use super::story::of_stories;

/// A consumer that is away holds what it has not read for so many times the age of everything else.
const PATIENCE: u32 = 3;
/// Runs removed at once, and stories thinned, so that no commit waits long behind them.
pub(crate) const REMOVED_AT_ONCE: usize = 200;

/// How much is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// A run that has been dead for longer goes.
    pub age: Duration,
    /// The oldest dead runs go while their directories together have more bytes.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Self { age: Duration::from_secs(30 * 24 * 3600), bytes: 20 << 30 }
    }
}

/// What one removal may remove.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Runs that ended before.
    pub(crate) before_ms: u64,
    /// Consumers that acknowledged nothing since hold nothing back.
    pub(crate) patience_ms: u64,
    /// These, whenever they ended, because space is short.
    pub(crate) also: Vec<String>,
    /// Not these, whenever they ended: a story still has to hear of them.
    pub(crate) spare: Vec<String>,
}

impl Keep {
    pub(crate) fn bounds(&self, now_ms: u64, also: Vec<String>, spare: Vec<String>) -> Bounds {
        let ago = |age: Duration| now_ms.saturating_sub(age.as_millis() as u64);
        Bounds {
            before_ms: ago(self.age),
            patience_ms: ago(self.age.saturating_mul(PATIENCE)),
            also,
            spare,
        }
    }
}

/// Removes the rows of what goes and names the runs.
pub(super) fn remove(tx: &Transaction<'_>, bounds: &Bounds) -> rusqlite::Result<Vec<String>> {
    let held_from = held_from(tx, bounds)?;
    let mut gone = Vec::new();
    let by_age = "SELECT id FROM run WHERE state = 'dead' AND ended_ms < ? \
         ORDER BY ended_ms LIMIT ?";
    // Those that are spared must not keep younger ones from their turn.
    let most = REMOVED_AT_ONCE.saturating_add(bounds.spare.len());
    let old: Vec<String> = tx
        .prepare(by_age)?
        .query_map(params![bounds.before_ms as i64, most as i64], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let spare: BTreeSet<&String> = bounds.spare.iter().collect();
    for run in old.iter().chain(&bounds.also).filter(|run| !spare.contains(run)) {
        if gone.len() < REMOVED_AT_ONCE && remove_run(tx, run, held_from)? {
            gone.push(run.clone());
        }
    }
    thin_stories(tx, bounds, held_from)?;
    thin_pipelines(tx, bounds, held_from)?;
    Ok(gone)
}

/// The first line that somebody who still comes has not read.
fn held_from(tx: &Transaction<'_>, bounds: &Bounds) -> rusqlite::Result<i64> {
    let sql = "SELECT min(acked) FROM consumer WHERE acked_ms >= ?";
    let acked: Option<i64> = tx.query_row(sql, [bounds.patience_ms as i64], |row| row.get(0))?;
    Ok(acked.map_or(i64::MAX, |acked| acked + 1))
}

fn remove_run(tx: &Transaction<'_>, run: &str, held_from: i64) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM run WHERE id = ? AND state = 'dead'";
    if tx.query_row(sql, [run], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(false);
    }
    let sql = "SELECT coalesce(max(seq), 0), count(*) FROM journal WHERE run = ?";
    let (last, facts): (i64, i64) =
        tx.query_row(sql, [run], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if last >= held_from {
        return Ok(false);
    }
    tx.prepare_cached("DELETE FROM journal WHERE run = ?")?.execute([run])?;
    tx.prepare_cached("DELETE FROM run WHERE id = ?")?.execute([run])?;
    tx.prepare_cached(
        "UPDATE removed SET runs = runs + 1, facts = facts + ?, through = max(through, ?)",
    )?
    .execute(params![facts, last])?;
    Ok(true)
}

/// Removes those lines of stories that went long ago that nothing rests on any more.
fn thin_stories(tx: &Transaction<'_>, bounds: &Bounds, held_from: i64) -> rusqlite::Result<()> {
    let sql = "SELECT project, id FROM story WHERE gone_ms < ? AND gone_ms IS NOT NULL \
         AND thinned = 0 ORDER BY gone_ms LIMIT ?";
    let old: Vec<(String, String)> = tx
        .prepare_cached(sql)?
        .query_map(params![bounds.before_ms as i64, REMOVED_AT_ONCE as i64], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for (project, id) in old {
        let unneeded = unneeded(&facts_of(tx, &format!("{project}/{id}"))?);
        if unneeded.last().is_some_and(|last| *last >= held_from) {
            continue;
        }
        remove_lines(tx, &unneeded)?;
        tx.prepare_cached("UPDATE story SET thinned = 1 WHERE project = ? AND id = ?")?
            .execute([project, id])?;
    }
    Ok(())
}

fn facts_of(tx: &Transaction<'_>, place: &str) -> rusqlite::Result<Vec<(i64, StoryFact)>> {
    let mut statement =
        tx.prepare_cached("SELECT seq, fact FROM journal WHERE story = ? ORDER BY seq")?;
    let mut rows = statement.query([place])?;
    let mut facts = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(fact) = of_stories(&read::json(row, 1)?) {
            facts.push((row.get(0)?, fact));
        }
    }
    Ok(facts)
}

/// The lines of a story that is gone without which a replay ends as it would with them.
fn unneeded(facts: &[(i64, StoryFact)]) -> Vec<i64> {
    let mut sent_back = BTreeSet::new();
    let mut strays = BTreeSet::new();
    for (_, fact) in facts {
        match fact {
            // Takes back that it is done, which is told with the step that it ends.
            StoryFact::StepEnded { step, then: Then::Back { .. }, .. } => {
                sent_back.insert(step.number);
            }
            StoryFact::StrayFound(step) => {
                strays.insert(step.number);
            }
            StoryFact::StrayEnded(step) => {
                strays.remove(&step.number);
            }
            StoryFact::PipelineSet { .. }
            | StoryFact::Added { .. }
            | StoryFact::Edited { .. }
            | StoryFact::Moved { .. }
            | StoryFact::Advanced { .. }
            | StoryFact::Held { .. }
            | StoryFact::Unheld(_)
            | StoryFact::Leaving { .. }
            | StoryFact::Left(_)
            | StoryFact::StepBegun { .. }
            | StoryFact::StepStarted(_)
            | StoryFact::StepRefused { .. }
            | StoryFact::StepStopping(_)
            | StoryFact::StepEnded { .. }
            | StoryFact::Paused { .. }
            | StoryFact::Unpaused(_) => {}
        }
    }
    let is_needed = |fact: &StoryFact| match fact {
        StoryFact::Added { .. }
        | StoryFact::Moved { .. }
        | StoryFact::Advanced { .. }
        | StoryFact::Leaving { .. }
        | StoryFact::Left(_)
        | StoryFact::PipelineSet { .. }
        | StoryFact::Paused { .. }
        | StoryFact::Unpaused(_) => true,
        StoryFact::StepBegun { step, .. } | StoryFact::StepEnded { step, .. } => {
            sent_back.contains(&step.number)
        }
        StoryFact::StrayFound(step) => strays.contains(&step.number),
        StoryFact::Edited { .. }
        | StoryFact::Held { .. }
        | StoryFact::Unheld(_)
        | StoryFact::StepStarted(_)
        | StoryFact::StepRefused { .. }
        | StoryFact::StepStopping(_)
        | StoryFact::StrayEnded(_) => false,
    };
    facts.iter().filter(|(_, fact)| !is_needed(fact)).map(|(seq, _)| *seq).collect()
}

/// Removes pipelines that a newer one supersedes. The first stays with the last: without one before
/// them, a replay has no project for its stories.
fn thin_pipelines(tx: &Transaction<'_>, bounds: &Bounds, held_from: i64) -> rusqlite::Result<()> {
    let sql = "SELECT seq FROM project JOIN journal ON story = project.key || '/' \
         WHERE seq > (SELECT min(seq) FROM journal WHERE story = project.key || '/') \
         AND seq < (SELECT max(seq) FROM journal WHERE story = project.key || '/') \
         AND at_ms < ? AND seq < ? LIMIT ?";
    let (before, most) = (bounds.before_ms as i64, REMOVED_AT_ONCE as i64);
    let superseded: Vec<i64> = tx
        .prepare_cached(sql)?
        .query_map(params![before, held_from, most], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    remove_lines(tx, &superseded)
}

fn remove_lines(tx: &Transaction<'_>, seqs: &[i64]) -> rusqlite::Result<()> {
    let mut statement = tx.prepare_cached("DELETE FROM journal WHERE seq = ?")?;
    for seq in seqs {
        statement.execute([seq])?;
    }
    let through = seqs.iter().max().copied().unwrap_or(0);
    tx.prepare_cached("UPDATE removed SET facts = facts + ?, through = max(through, ?)")?
        .execute(params![seqs.len() as i64, through])?;
    Ok(())
}
