//! Who reads the journal, and how far each has said that it has read. Owns these rows.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

/// A consumer, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) place: Place,
    /// Notices after that, those that are not quiet.
    pub(crate) unread: u64,
}

/// How far a consumer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// It has read everything up to this line.
    pub(crate) acked: u64,
    /// When it last said so, in milliseconds of the Unix clock.
    pub(crate) at_ms: u64,
}

/// What a consumer says.
#[derive(Clone, Debug)]
pub(crate) struct Ack {
    pub(crate) consumer: String,
    /// It has read everything up to this line. `None` only makes it known, from the first line on.
    pub(crate) through: Option<u64>,
    pub(crate) at_ms: u64,
}

const PLACE: &str = "SELECT acked, acked_ms FROM consumer WHERE name = ?";
const ALL: &str = "SELECT acked, acked_ms, name, (SELECT count(*) FROM journal \
     WHERE notice IS NOT NULL AND quiet = 0 AND seq > acked) FROM consumer ORDER BY name";

pub(super) fn acknowledge(tx: &Transaction<'_>, ack: &Ack) -> rusqlite::Result<Place> {
    let through = ack.through.unwrap_or(0) as i64;
    // Reading alone keeps its place too: who comes is not away.
    tx.prepare_cached(
        "INSERT INTO consumer (name, acked, acked_ms) VALUES (?1, ?2, ?3) ON CONFLICT (name) \
         DO UPDATE SET acked = max(acked, ?2), acked_ms = max(acked_ms, ?3)",
    )?
    .execute(params![ack.consumer, through, ack.at_ms as i64])?;
    tx.prepare_cached(PLACE)?.query_row([&ack.consumer], place)
}

pub(super) fn forget(tx: &Transaction<'_>, name: &str) -> rusqlite::Result<bool> {
    Ok(tx.execute("DELETE FROM consumer WHERE name = ?", [name])? > 0)
}

pub(super) fn by_name(connection: &Connection, name: &str) -> rusqlite::Result<Option<Place>> {
    connection.prepare_cached(PLACE)?.query_row([name], place).optional()
}

pub(super) fn list(connection: &Connection) -> rusqlite::Result<Vec<Consumer>> {
    let mut statement = connection.prepare_cached(ALL)?;
    let rows = statement.query_map([], |row| {
        let unread = row.get::<_, i64>(3)? as u64;
        Ok(Consumer { name: row.get(2)?, place: place(row)?, unread })
    })?;
    rows.collect()
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    let number = |at| row.get::<_, i64>(at).map(|value| value as u64);
    Ok(Place { acked: number(0)?, at_ms: number(1)? })
}
