//! The one writer: the only connection that writes, in the hands of the event loop.
//!
//! Owns: what a fact becomes on disk. Everything of one commit is durable when it returns, or
//! nothing of it is. Facts that came together are committed together.

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use kennel_supervisor as mind;

use super::channel::{self, Mark};
use super::consumer::{self, Ack, Place};
use super::format::{self, Detail};
use super::kept::Standing;
use super::retention::{self, Bounds};
use super::{Entry, StoreError};

/// The connection that writes.
#[derive(Debug)]
pub(crate) struct Writer(pub(super) Connection);

impl Writer {
    /// Makes facts durable, all or none, and returns the number of the first.
    pub(crate) fn commit(&mut self, entries: &[Entry]) -> Result<u64, StoreError> {
        in_one(&mut self.0, |tx| write(tx, entries)).map_err(StoreError::to("write the journal"))
    }

    /// Keeps a consumer, and how far it has read: never less than it has said before.
    pub(crate) fn acknowledge(&mut self, ack: &Ack) -> Result<Place, StoreError> {
        in_one(&mut self.0, |tx| consumer::acknowledge(tx, ack))
            .map_err(StoreError::to("keep what was read"))
    }

    /// Forgets a consumer. True if there was one.
    pub(crate) fn forget_consumer(&mut self, name: &str) -> Result<bool, StoreError> {
        in_one(&mut self.0, |tx| consumer::forget(tx, name))
            .map_err(StoreError::to("forget a consumer"))
    }

    /// Keeps something of a channel. How many rows it was about.
    pub(crate) fn mark(&mut self, channel: &str, mark: &Mark) -> Result<usize, StoreError> {
        in_one(&mut self.0, |tx| channel::keep(tx, channel, mark))
            .map_err(StoreError::to("keep what a channel did"))
    }

    /// Removes what is old, and names the runs whose directories are nobody's now.
    pub(crate) fn retain(&mut self, bounds: &Bounds) -> Result<Vec<String>, StoreError> {
        let removed = in_one(&mut self.0, |tx| retention::remove(tx, bounds));
        removed.map_err(StoreError::to("remove what is old"))
    }
}

pub(super) fn in_one<T>(
    connection: &mut Connection,
    write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    // Immediate: a transaction that reads first and writes later can be refused in between.
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let written = write(&tx)?;
    tx.commit()?;
    Ok(written)
}

/// Writes facts in order; the number of the first.
fn write(tx: &Transaction<'_>, entries: &[Entry]) -> rusqlite::Result<u64> {
    let mut first = None;
    for entry in entries {
        let run = entry.fact.run().map(mind::RunId::as_str);
        if let Some(run) = run {
            update_run(tx, run, entry)?;
        }
        let fact = text(&format::Fact::from(&entry.fact))?;
        let detail = text(&entry.detail.of_a_line())?;
        let (id, quiet) = entry.notice.as_ref().map(|n| (n.id.as_str(), n.quiet)).unzip();
        let tail = entry.tail.as_ref().map(|tail| text(&**tail)).transpose()?;
        tx.prepare_cached(
            "INSERT INTO journal (at_ms, run, fact, detail, notice, quiet, tail) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            entry.at.0 as i64,
            run,
            fact,
            detail,
            id,
            quiet.unwrap_or(false),
            tail
        ])?;
        first.get_or_insert(tx.last_insert_rowid() as u64);
    }
    Ok(first.unwrap_or(0))
}

fn update_run(tx: &Transaction<'_>, run: &str, entry: &Entry) -> rusqlite::Result<()> {
    let state = entry.state.word();
    if let mind::Fact::Admitted { claim, .. } = &entry.fact {
        // Our own invariant: a run without a request is never written.
        let Detail::Request(request) = &entry.detail else {
            return Err(rusqlite::Error::InvalidQuery);
        };
        let worktree = claim.worktree.as_ref().map(mind::Worktree::as_str);
        let at = request.at_ms as i64;
        tx.prepare_cached(
            "INSERT INTO run (id, slot, worktree, state, requested_ms, request) \
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            run,
            claim.slot.as_str(),
            worktree,
            state,
            at,
            text(request)?
        ])?;
        return Ok(());
    }
    let (sql, kept) = match &entry.detail {
        Detail::Started(started) => ("UPDATE run SET state = ?, started = ?", text(started)?),
        Detail::Stuck(stuck) => ("UPDATE run SET state = ?, stuck = ?", text(stuck)?),
        Detail::Ended(ended) => {
            let at = (entry.state == Standing::Dead).then_some(ended.at_ms() as i64);
            tx.prepare_cached("UPDATE run SET state = ?, ended = ?, ended_ms = ? WHERE id = ?")?
                .execute(params![state, text(ended)?, at, run])?;
            return Ok(());
        }
        Detail::Nothing
        | Detail::Shutdown
        | Detail::Exited(_)
        | Detail::Limit(_)
        | Detail::Request(_)
        | Detail::Matched(_)
        | Detail::Heartbeat(_) => {
            tx.prepare_cached("UPDATE run SET state = ? WHERE id = ?")?
                .execute(params![state, run])?;
            return Ok(());
        }
    };
    tx.prepare_cached(&format!("{sql} WHERE id = ?"))?.execute(params![state, kept, run])?;
    Ok(())
}

pub(super) fn text(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}
