//! Questions to the store. Owns every query; changes nothing.

use std::sync::Arc;

use kennel_supervisor as mind;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::format;
use super::kept::{KeptRun, Standing};
use crate::notice::Named;
use crate::tail::Tails;
use crate::time::Time;

/// The most candidates an ambiguous prefix lists.
const MAX_CANDIDATES: usize = 10;

const COLUMNS: &str = "SELECT id, slot, state, request, started, stuck, ended FROM run";

pub(super) const LINES: &str = "SELECT seq, at_ms, journal.run, slot, fact, detail, notice, \
     quiet, tail FROM journal LEFT JOIN run ON run.id = journal.run";

const WANTED: &str = "notice IS NOT NULL AND seq > ?1 AND (?2 IS NULL OR journal.run = ?2) \
     AND (?3 OR quiet = 0)";

/// Which run somebody means.
#[derive(Debug)]
pub(crate) enum Meant {
    One(KeptRun),
    Several(Vec<String>),
    Nobody,
}

/// Which runs a listing gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// Those asked for before this moment and id, if it is not the first page.
    pub(crate) before: Option<(u64, String)>,
    pub(crate) limit: usize,
}

/// One line of the journal.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    pub(crate) at: Time,
    pub(crate) run: Option<Arc<str>>,
    pub(crate) slot: Option<Arc<str>>,
    pub(crate) fact: Arc<format::Fact>,
    pub(crate) detail: Arc<format::Detail>,
    pub(crate) notice: Option<Arc<Named>>,
    pub(crate) tail: Option<Arc<Tails>>,
}

/// Which notices somebody wants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Those after this line.
    pub(crate) after: u64,
    pub(crate) limit: usize,
    /// Quiet ones too.
    pub(crate) quiet: bool,
    /// Those of this run alone.
    pub(crate) run: Option<Arc<str>>,
}

impl Wanted {
    /// True if a line is one of them.
    pub(crate) fn has(&self, line: &Line) -> bool {
        let told = |notice: &Arc<Named>| self.quiet || !notice.quiet;
        line.seq > self.after
            && line.notice.as_ref().is_some_and(told)
            && self.run.as_ref().is_none_or(|run| line.run.as_ref() == Some(run))
    }
}

/// Some of the journal, and what is not there any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) lines: Vec<Line>,
    /// Up to this number lines were removed that the reader may not have seen.
    pub(crate) removed_through: Option<u64>,
}

/// What is believed of every run that is not dead, from its facts.
pub(super) fn replay(
    connection: &Connection,
    mut state: mind::State,
) -> rusqlite::Result<mind::State> {
    let sql = "SELECT run, fact FROM journal \
         WHERE run IN (SELECT id FROM run WHERE state <> 'dead') ORDER BY seq";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let run: String = row.get(0)?;
        let fact: format::Fact = json(row, 1)?;
        if let Some(fact) = fact.of(&run) {
            state.apply(&fact);
        }
    }
    Ok(state)
}

pub(super) fn live(connection: &Connection) -> rusqlite::Result<Vec<KeptRun>> {
    query(connection, &format!("{COLUMNS} WHERE state <> 'dead'"), [])
}

/// Newest first.
pub(super) fn list(connection: &Connection, page: &Page) -> rusqlite::Result<Vec<KeptRun>> {
    let (at, id) = match &page.before {
        Some((at, id)) => (*at as i64, id.as_str()),
        None => (i64::MAX, ""),
    };
    let sql = format!(
        "{COLUMNS} WHERE (requested_ms, id) < (?1, ?2) \
         ORDER BY requested_ms DESC, id DESC LIMIT ?3"
    );
    query(connection, &sql, params![at, id, page.limit as i64])
}

/// The newest runs whose slot has this ending.
pub(super) fn in_slots_that_end(
    connection: &Connection,
    ending: &str,
    limit: usize,
) -> rusqlite::Result<Vec<KeptRun>> {
    let sql = format!(
        "{COLUMNS} WHERE substr(slot, -length(?1)) = ?1 ORDER BY requested_ms DESC LIMIT ?2"
    );
    query(connection, &sql, params![ending, limit as i64])
}

pub(super) fn by_id(connection: &Connection, id: &str) -> rusqlite::Result<Option<KeptRun>> {
    connection
        .prepare_cached(&format!("{COLUMNS} WHERE id = ?"))?
        .query_row([id], kept_run)
        .optional()
}

/// An id, else the slot a run holds, else a slot's last run, else the beginning of an id: who stops
/// a slot twice must not hit a run whose id begins like it.
pub(super) fn meant_by(connection: &Connection, name: &str) -> rusqlite::Result<Meant> {
    if let Some(run) = by_id(connection, name)? {
        return Ok(Meant::One(run));
    }
    let by_slot = format!("{COLUMNS} WHERE slot = ?1 AND state <> 'dead'");
    // A range, not LIKE: a name may hold the characters LIKE gives a meaning.
    let by_prefix = format!(
        "{COLUMNS} WHERE id >= ?1 AND id < ?1 || char(0x10ffff) ORDER BY id LIMIT {MAX_CANDIDATES}"
    );
    let last_of_slot =
        format!("{COLUMNS} WHERE slot = ?1 ORDER BY requested_ms DESC, id DESC LIMIT 1");
    let tries = if name.is_empty() { vec![] } else { vec![by_slot, last_of_slot, by_prefix] };
    for sql in tries {
        let mut found = query(connection, &sql, [name])?;
        match found.len() {
            0 => {}
            1 => return Ok(Meant::One(found.remove(0))),
            2.. => return Ok(Meant::Several(found.iter().map(|run| run.id.to_string()).collect())),
        }
    }
    Ok(Meant::Nobody)
}

/// Lines after a number, oldest first.
pub(super) fn lines(connection: &Connection, after: u64, limit: usize) -> rusqlite::Result<Lines> {
    let through = removed_through(connection)?;
    let sql = format!("{LINES} WHERE seq > ? ORDER BY seq LIMIT ?");
    let lines = query_lines(connection, &sql, params![after as i64, limit as i64])?;
    Ok(Lines { lines, removed_through: (after < through).then_some(through) })
}

/// Notices after a number, oldest first.
pub(super) fn notices(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Lines> {
    let through = removed_through(connection)?;
    let sql = format!("{LINES} WHERE {WANTED} ORDER BY seq LIMIT ?4");
    let lines = query_notices(connection, &sql, wanted)?;
    Ok(Lines { lines, removed_through: (wanted.after < through).then_some(through) })
}

/// The newest notices, oldest of them first.
pub(super) fn last_notices(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Lines> {
    let sql = format!("{LINES} WHERE {WANTED} ORDER BY seq DESC LIMIT ?4");
    let mut lines = query_notices(connection, &sql, wanted)?;
    lines.reverse();
    Ok(Lines { lines, removed_through: None })
}

/// Notices of one kind of one run, by their names, which begin with both.
pub(super) fn noted(connection: &Connection, run: &str, kind: &str) -> rusqlite::Result<Vec<Line>> {
    let sql = format!(
        "{LINES} WHERE notice >= ?1 AND notice < ?1 || char(0x10ffff) AND journal.run = ?2 \
         ORDER BY seq"
    );
    query_lines(connection, &sql, params![format!("{run}/{kind}/"), run])
}

/// The first line about a run.
pub(super) fn first_line(connection: &Connection, run: &str) -> rusqlite::Result<Option<u64>> {
    let sql = "SELECT min(seq) FROM journal WHERE run = ?";
    let mut first = connection.prepare_cached(sql)?;
    first.query_row([run], |row| row.get::<_, Option<i64>>(0)).map(|seq| seq.map(|seq| seq as u64))
}

fn query_notices(
    connection: &Connection,
    sql: &str,
    wanted: &Wanted,
) -> rusqlite::Result<Vec<Line>> {
    let Wanted { after, limit, quiet, run } = wanted;
    query_lines(connection, sql, params![*after as i64, run, quiet, *limit as i64])
}

pub(super) fn query_lines(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Line>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, |row| {
        let notice: Option<String> = row.get(6)?;
        let quiet = row.get(7)?;
        Ok(Line {
            seq: row.get::<_, i64>(0)? as u64,
            at: Time(row.get::<_, i64>(1)? as u64),
            run: row.get(2)?,
            slot: row.get(3)?,
            fact: Arc::new(json(row, 4)?),
            detail: Arc::new(json(row, 5)?),
            notice: notice.and_then(|id| Named::kept(id, quiet)).map(Arc::new),
            tail: maybe_json(row, 8)?,
        })
    })?;
    rows.collect()
}

fn removed_through(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT through FROM removed";
    connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|seq| seq as u64)
}

/// The number of the last line there ever was.
pub(super) fn last_seq(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'journal'";
    connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|seq| seq as u64)
}

/// What SQLite finds wrong with the file: the first of it.
pub(super) fn quick_check(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

fn query(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> rusqlite::Result<Vec<KeptRun>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params, kept_run)?;
    rows.collect()
}

fn kept_run(row: &Row<'_>) -> rusqlite::Result<KeptRun> {
    let word = row.get_ref(2)?.as_str()?;
    Ok(KeptRun {
        id: row.get(0)?,
        slot: row.get(1)?,
        // The table's own check allows no other word.
        state: Standing::from_word(word).unwrap_or(Standing::Stuck),
        request: Arc::new(json(row, 3)?),
        started: maybe_json(row, 4)?,
        stuck: maybe_json(row, 5)?,
        ended: maybe_json(row, 6)?,
        usage: None,
    })
}

pub(super) fn json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    at: usize,
) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_str()?;
    let kind = rusqlite::types::Type::Text;
    serde_json::from_str(text)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(at, kind, e.into()))
}

fn maybe_json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    at: usize,
) -> rusqlite::Result<Option<Arc<T>>> {
    if row.get_ref(at)? == rusqlite::types::ValueRef::Null {
        return Ok(None);
    }
    json(row, at).map(|value| Some(Arc::new(value)))
}
