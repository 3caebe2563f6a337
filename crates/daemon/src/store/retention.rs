//! What is kept for how long. Owns the rule: only runs that are dead are removed, oldest first,
//! whole (facts, row, directory), and not while a consumer has still to read of them, unless it has
//! not come for very long; then it is told of the gap.

use std::time::Duration;

use rusqlite::{Transaction, params};

/// A consumer that is away holds what it has not read for so many times the age of everything else.
const PATIENCE: u32 = 3;
/// Runs removed at once, so that no commit waits long behind them.
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
}

impl Keep {
    pub(crate) fn bounds(&self, now_ms: u64, also: Vec<String>) -> Bounds {
        let ago = |age: Duration| now_ms.saturating_sub(age.as_millis() as u64);
        Bounds {
            before_ms: ago(self.age),
            patience_ms: ago(self.age.saturating_mul(PATIENCE)),
            also,
        }
    }
}

/// Removes the rows of what goes and names the runs.
pub(super) fn remove(tx: &Transaction<'_>, bounds: &Bounds) -> rusqlite::Result<Vec<String>> {
    let held_from = held_from(tx, bounds)?;
    let mut gone = Vec::new();
    let by_age = "SELECT id FROM run WHERE state = 'dead' AND ended_ms < ? \
         ORDER BY ended_ms LIMIT ?";
    let old: Vec<String> = tx
        .prepare(by_age)?
        .query_map(params![bounds.before_ms as i64, REMOVED_AT_ONCE as i64], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for run in old.iter().chain(&bounds.also) {
        if gone.len() < REMOVED_AT_ONCE && remove_run(tx, run, held_from)? {
            gone.push(run.clone());
        }
    }
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
