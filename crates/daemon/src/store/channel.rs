//! What channels keep: how often they tried, what they gave up on, which run tells of what. Owns
//! these rows; a channel's place is its consumer's.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::consumer::{self, Ack};

/// Dead letters that are kept of one channel; the oldest go. Each has the whole of its notice.
pub(crate) const MAX_LETTERS: usize = 1000;

/// A notice that was given up on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) seq: u64,
    /// The notice's id.
    pub(crate) notice: String,
    /// The notice, as JSON.
    pub(crate) body: String,
    pub(crate) tries: u32,
    /// What came of the last try.
    pub(crate) error: String,
    pub(crate) at_ms: u64,
    /// True if it is to be delivered again.
    pub(crate) again: bool,
}

/// How often the notice that a channel is at was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub(crate) seq: u64,
    pub(crate) tries: u32,
    pub(crate) error: String,
    pub(crate) at_ms: u64,
}

/// A notice for which an agent is, or was, woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) seq: u64,
    /// The run that tells of it.
    pub(crate) run: Option<String>,
    pub(crate) settled: bool,
}

/// What is to be kept of a channel, whole or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Mark {
    /// Everything up to here is done.
    Through { seq: u64, at_ms: u64 },
    /// One that failed, and will be tried again.
    Tried(Tried),
    /// Given up on; with `through`, everything up to there is done.
    Dead { letters: Vec<Letter>, through: Option<u64>, at_ms: u64 },
    /// This run is going to tell of these.
    Planned { run: String, seqs: Vec<u64> },
    /// There is nothing more to do about these.
    Settled(Vec<u64>),
    /// All that was given up on is to be delivered again.
    Again,
    /// A dead letter was delivered after all.
    Revived(u64),
}

/// The consumer that a channel is.
pub(crate) fn consumer_of(channel: &str) -> String {
    format!("channel:{channel}")
}

/// Keeps it. How many rows it was about.
pub(super) fn keep(tx: &Transaction<'_>, channel: &str, mark: &Mark) -> rusqlite::Result<usize> {
    match mark {
        Mark::Through { seq, at_ms } => {
            through(tx, channel, *seq, *at_ms)?;
            Ok(1)
        }
        Mark::Tried(tried) => {
            tx.prepare_cached("INSERT OR REPLACE INTO channel_try VALUES (?, ?, ?, ?, ?)")?.execute(
                params![channel, tried.seq as i64, tried.tries, tried.error, tried.at_ms as i64],
            )
        }
        Mark::Dead { letters, through: end, at_ms } => {
            letters.iter().try_for_each(|letter| bury(tx, channel, letter))?;
            if let Some(seq) = end {
                through(tx, channel, *seq, *at_ms)?;
            }
            Ok(letters.len())
        }
        Mark::Planned { run, seqs } => {
            for seq in seqs {
                tx.prepare_cached(
                    "INSERT INTO wake VALUES (?, ?, ?, 0) ON CONFLICT (channel, seq) \
                     DO UPDATE SET run = excluded.run WHERE settled = 0",
                )?
                .execute(params![channel, *seq as i64, run])?;
            }
            Ok(seqs.len())
        }
        Mark::Settled(seqs) => settle(tx, channel, seqs),
        Mark::Again => tx.execute("UPDATE dead_letter SET again = 1 WHERE channel = ?", [channel]),
        Mark::Revived(seq) => tx.execute(
            "DELETE FROM dead_letter WHERE channel = ? AND seq = ?",
            params![channel, *seq as i64],
        ),
    }
}

fn through(tx: &Transaction<'_>, channel: &str, seq: u64, at_ms: u64) -> rusqlite::Result<()> {
    let ack = Ack { consumer: consumer_of(channel), through: Some(seq), at_ms };
    consumer::acknowledge(tx, &ack)?;
    for table in ["channel_try", "wake"] {
        let sql = format!("DELETE FROM {table} WHERE channel = ? AND seq <= ?");
        tx.prepare_cached(&sql)?.execute(params![channel, seq as i64])?;
    }
    Ok(())
}

fn bury(tx: &Transaction<'_>, channel: &str, letter: &Letter) -> rusqlite::Result<()> {
    tx.prepare_cached("INSERT OR REPLACE INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            channel,
            letter.seq as i64,
            letter.notice,
            letter.body,
            letter.tries,
            letter.error,
            letter.at_ms as i64,
            letter.again
        ])?;
    tx.prepare_cached(
        "DELETE FROM dead_letter WHERE channel = ?1 AND seq <= (SELECT seq FROM dead_letter \
         WHERE channel = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![channel, MAX_LETTERS as i64])?;
    settle(tx, channel, &[letter.seq])?;
    Ok(())
}

fn settle(tx: &Transaction<'_>, channel: &str, seqs: &[u64]) -> rusqlite::Result<usize> {
    for seq in seqs {
        tx.prepare_cached(
            "INSERT INTO wake VALUES (?, ?, NULL, 1) \
             ON CONFLICT (channel, seq) DO UPDATE SET settled = 1",
        )?
        .execute(params![channel, *seq as i64])?;
    }
    Ok(seqs.len())
}

pub(super) fn letters(connection: &Connection, channel: &str) -> rusqlite::Result<Vec<Letter>> {
    let sql = "SELECT seq, notice, body, tries, error, at_ms, again FROM dead_letter \
         WHERE channel = ? ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([channel], |row| {
        Ok(Letter {
            seq: number(row, 0)?,
            notice: row.get(1)?,
            body: row.get(2)?,
            tries: row.get(3)?,
            error: row.get(4)?,
            at_ms: number(row, 5)?,
            again: row.get(6)?,
        })
    })?;
    rows.collect()
}

/// Every channel that has dead letters, whether it is configured or not, and how many.
pub(super) fn buried(connection: &Connection) -> rusqlite::Result<Vec<(String, u64)>> {
    let sql = "SELECT count(*), channel FROM dead_letter GROUP BY channel ORDER BY channel";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(1)?, number(row, 0)?)))?;
    rows.collect()
}

pub(super) fn tried(connection: &Connection, channel: &str) -> rusqlite::Result<Option<Tried>> {
    let sql = "SELECT seq, tries, error, at_ms FROM channel_try WHERE channel = ?";
    connection
        .prepare_cached(sql)?
        .query_row([channel], |row| {
            let (tries, error) = (row.get(1)?, row.get(2)?);
            Ok(Tried { seq: number(row, 0)?, tries, error, at_ms: number(row, 3)? })
        })
        .optional()
}

pub(super) fn wakes(connection: &Connection, channel: &str) -> rusqlite::Result<Vec<Wake>> {
    let sql = "SELECT seq, run, settled FROM wake WHERE channel = ? ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([channel], |row| {
        Ok(Wake { seq: number(row, 0)?, run: row.get(1)?, settled: row.get(2)? })
    })?;
    rows.collect()
}

fn number(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(|value| value as u64)
}
