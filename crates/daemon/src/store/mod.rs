//! The store: the journal of facts and the runs they make, in SQLite.
//!
//! Owns: one writer thread with the only connection that writes, and one connection that reads. A
//! commit that returned `Ok` is on disk (WAL, `synchronous=FULL`). Never decides anything; its
//! unique index refuses what the mind must not do.

pub(crate) mod format;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kennel_supervisor as mind;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use format::{Detail, Ended, Request, Stuck};
use kennel_process::Started;

/// The schema this code writes.
const SCHEMA: i64 = 1;
/// "kenl": tells the file from other programs' databases.
const APPLICATION_ID: i64 = 0x6b65_6e6c;
/// How long a reader or writer waits for the other, or for somebody's `sqlite3` shell.
const BUSY_BOUND: Duration = Duration::from_secs(5);
/// Commits that may wait for the writer. The event loop sends one and waits for it.
const COMMIT_QUEUE: usize = 16;
/// The most runs one listing gives, newest first.
const MAX_LISTED_RUNS: usize = 10_000;
/// The most candidates an ambiguous prefix lists.
const MAX_CANDIDATES: usize = 10;

/// The store, open.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    writer: mpsc::Sender<(Commit, oneshot::Sender<Result<(), StoreError>>)>,
    reader: Arc<Mutex<Connection>>,
}

/// Facts that become durable together.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) facts: Vec<mind::Fact>,
    pub(crate) detail: Detail,
    /// Where the run of these facts stands afterwards.
    pub(crate) state: &'static str,
    pub(crate) at_ms: u64,
}

/// A run as it is kept.
#[derive(Debug)]
pub(crate) struct KeptRun {
    pub(crate) id: String,
    pub(crate) slot: String,
    pub(crate) state: String,
    pub(crate) request: Request,
    pub(crate) started: Option<Started>,
    pub(crate) stuck: Option<Stuck>,
    pub(crate) ended: Option<Ended>,
}

/// Which run somebody means.
#[derive(Debug)]
pub(crate) enum Meant {
    One(Box<KeptRun>),
    Several(Vec<String>),
    Nobody,
}

impl Store {
    /// Opens the store, making it if there is none, and replays what is live.
    pub(crate) fn open(path: &Path) -> Result<(Self, mind::State), StoreError> {
        make_private(path).map_err(StoreError::Io)?;
        let mut connection = connect(path)?;
        prepare(&mut connection)?;
        let state = replay(&connection)?;
        let reader = connect(path)?;
        reader.pragma_update(None, "query_only", true).map_err(StoreError::to("set up reader"))?;
        let (writer, commits) = mpsc::channel(COMMIT_QUEUE);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write_all(connection, commits))
            .map_err(StoreError::Io)?;
        Ok((Self { writer, reader: Arc::new(Mutex::new(reader)) }, state))
    }

    /// Makes facts durable. After an error nothing of them is.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        let (reply, done) = oneshot::channel();
        self.writer.send((commit, reply)).await.map_err(|_| StoreError::Gone)?;
        done.await.map_err(|_| StoreError::Gone)?
    }

    /// Every run, or every run that is not dead, newest first.
    pub(crate) async fn list(&self, all: bool) -> Result<Vec<KeptRun>, StoreError> {
        let sql = "SELECT id, slot, state, request, started, stuck, ended FROM run \
             WHERE ?1 OR state <> 'dead' \
             ORDER BY json_extract(request, '$.at_ms') DESC LIMIT ?2";
        self.read(move |c| query(c, sql, params![all, MAX_LISTED_RUNS as i64])).await
    }

    /// The run of exactly this id.
    pub(crate) async fn run(&self, id: &str) -> Result<Option<KeptRun>, StoreError> {
        let id = id.to_owned();
        self.read(move |c| by_id(c, &id)).await
    }

    /// The run somebody means by an id, by the name of a slot it holds, or by the beginning of an
    /// id, in this order.
    pub(crate) async fn meant_by(&self, name: &str) -> Result<Meant, StoreError> {
        let name = name.to_owned();
        self.read(move |c| meant_by(c, &name)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reader = self.reader.clone();
        let read = tokio::task::spawn_blocking(move || look(&locked(&reader)));
        read.await.map_err(|_| StoreError::Gone)?.map_err(StoreError::to("read runs"))
    }
}

/// A reader that panicked has left nothing half-done: it cannot write.
fn locked(reader: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SQLite gives its other files the permissions of the first.
fn make_private(path: &Path) -> io::Result<()> {
    File::options().append(true).create(true).mode(0o600).open(path).map(drop)
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let open = || {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_BOUND)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        Ok(connection)
    };
    open().map_err(StoreError::to("open the store"))
}

fn prepare(connection: &mut Connection) -> Result<(), StoreError> {
    let found = connection
        .pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))
        .map_err(StoreError::to("read the schema's version"))?;
    if found > SCHEMA {
        return Err(StoreError::Newer { found });
    }
    if found == SCHEMA {
        return Ok(());
    }
    let make = |connection: &mut Connection| {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(include_str!("schema.sql"))?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", SCHEMA)?;
        tx.commit()
    };
    make(connection).map_err(StoreError::to("make the tables"))
}

/// What is believed of every run that is not dead, from its facts.
fn replay(connection: &Connection) -> Result<mind::State, StoreError> {
    let sql = "SELECT run, fact FROM journal \
         WHERE run IN (SELECT id FROM run WHERE state <> 'dead') ORDER BY seq";
    let read = || {
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_map([], |row| {
            let run: String = row.get(0)?;
            let fact: format::Fact = json(row, 1)?;
            Ok(fact.of(&run))
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    let mut state = mind::State::default();
    let facts = read().map_err(StoreError::to("replay the journal"))?;
    facts.iter().for_each(|fact| state.apply(fact));
    Ok(state)
}

fn write_all(
    mut connection: Connection,
    mut commits: mpsc::Receiver<(Commit, oneshot::Sender<Result<(), StoreError>>)>,
) {
    while let Some((commit, reply)) = commits.blocking_recv() {
        let written = write(&mut connection, &commit).map_err(StoreError::to("write the journal"));
        let _ = reply.send(written);
    }
}

fn write(connection: &mut Connection, commit: &Commit) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for fact in &commit.facts {
        let run = fact.run().map(mind::RunId::as_str);
        if let Some(run) = run {
            update_run(&tx, run, fact, commit)?;
        }
        let fact = text(&format::Fact::from(fact))?;
        let line = params![commit.at_ms as i64, run, fact, text(&commit.detail)?];
        tx.prepare_cached("INSERT INTO journal (at_ms, run, fact, detail) VALUES (?, ?, ?, ?)")?
            .execute(line)?;
    }
    tx.commit()
}

fn update_run(
    tx: &Transaction<'_>,
    run: &str,
    fact: &mind::Fact,
    commit: &Commit,
) -> rusqlite::Result<()> {
    if let mind::Fact::Admitted { slot, .. } = fact {
        // Our own invariant: a run without a request is never written.
        let Detail::Request(request) = &commit.detail else {
            return Err(rusqlite::Error::InvalidQuery);
        };
        let request = text(request)?;
        tx.prepare_cached("INSERT INTO run (id, slot, state, request) VALUES (?, ?, ?, ?)")?
            .execute(params![run, slot.as_str(), commit.state, request])?;
        return Ok(());
    }
    let (sql, kept) = match &commit.detail {
        Detail::Started(started) => ("UPDATE run SET state = ?, started = ?", text(started)?),
        Detail::Stuck(stuck) => ("UPDATE run SET state = ?, stuck = ?", text(stuck)?),
        Detail::Ended(ended) => ("UPDATE run SET state = ?, ended = ?", text(ended)?),
        Detail::Nothing | Detail::Exited(_) | Detail::Request(_) => {
            tx.prepare_cached("UPDATE run SET state = ? WHERE id = ?")?
                .execute(params![commit.state, run])?;
            return Ok(());
        }
    };
    tx.prepare_cached(&format!("{sql} WHERE id = ?"))?.execute(params![commit.state, kept, run])?;
    Ok(())
}

fn by_id(connection: &Connection, id: &str) -> rusqlite::Result<Option<KeptRun>> {
    let sql = "SELECT id, slot, state, request, started, stuck, ended FROM run WHERE id = ?";
    connection.prepare_cached(sql)?.query_row([id], kept_run).optional()
}

fn meant_by(connection: &Connection, name: &str) -> rusqlite::Result<Meant> {
    if let Some(run) = by_id(connection, name)? {
        return Ok(Meant::One(Box::new(run)));
    }
    let columns = "SELECT id, slot, state, request, started, stuck, ended FROM run";
    let by_slot = format!("{columns} WHERE slot = ? AND state <> 'dead'");
    // `substr`, not LIKE: a name may hold the characters LIKE gives a meaning.
    let by_prefix =
        format!("{columns} WHERE substr(id, 1, length(?1)) = ?1 LIMIT {MAX_CANDIDATES}");
    for sql in [by_slot, by_prefix] {
        let mut found = query(connection, &sql, [name])?;
        match found.len() {
            0 => {}
            1 => return Ok(Meant::One(Box::new(found.remove(0)))),
            2.. => return Ok(Meant::Several(found.into_iter().map(|run| run.id).collect())),
        }
    }
    Ok(Meant::Nobody)
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
    Ok(KeptRun {
        id: row.get(0)?,
        slot: row.get(1)?,
        state: row.get(2)?,
        request: json(row, 3)?,
        started: maybe_json(row, 4)?,
        stuck: maybe_json(row, 5)?,
        ended: maybe_json(row, 6)?,
    })
}

fn text(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(at)?.as_str()?;
    let kind = rusqlite::types::Type::Text;
    serde_json::from_str(text)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(at, kind, e.into()))
}

fn maybe_json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    at: usize,
) -> rusqlite::Result<Option<T>> {
    if row.get_ref(at)? == rusqlite::types::ValueRef::Null {
        return Ok(None);
    }
    json(row, at).map(Some)
}

/// What the store could not do.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite refused; what was tried, and its reason.
    Sql(&'static str, rusqlite::Error),
    /// A later kennel made this store.
    Newer {
        /// Its schema.
        found: i64,
    },
    /// The system refused its file or its writer's thread.
    Io(io::Error),
    /// The writer is gone: the daemon is leaving.
    Gone,
}

impl StoreError {
    fn to(what: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |e| Self::Sql(what, e)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(what, e) => write!(f, "failed to {what}: {e}"),
            Self::Newer { found } => write!(
                f,
                "the store has schema {found} and this kennel knows {SCHEMA}: use the newer one"
            ),
            Self::Io(e) => write!(f, "failed to set up the store: {e}"),
            Self::Gone => f.write_str("the store is closed"),
        }
    }
}

impl std::error::Error for StoreError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;

    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let own = format!("kennel-store-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(own);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn open(&self) -> Result<(Store, mind::State), StoreError> {
            Store::open(&self.0.join("kennel.db"))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn admit(run: &str, slot: &str) -> Commit {
        let request = Request {
            command: vec![Text("true".into())],
            cwd: Text("/".into()),
            terminal: false,
            grace_ms: 1,
            on_exit: kennel_process::OnExit::Sweep,
            at_ms: 1,
        };
        Commit {
            facts: vec![mind::Fact::Admitted { run: run.into(), slot: slot.into() }],
            detail: Detail::Request(Box::new(request)),
            state: "starting",
            at_ms: 1,
        }
    }

    fn end(run: &str, ending: mind::Ending, state: &'static str) -> Commit {
        let ended = Ended::NeverStarted { message: "no".to_owned(), failure: None, at_ms: 2 };
        Commit {
            facts: vec![mind::Fact::Ended { run: run.into(), ending }],
            detail: Detail::Ended(ended),
            state,
            at_ms: 2,
        }
    }

    #[test]
    fn two_live_runs_in_a_slot_are_refused_even_if_the_mind_asks_for_them() {
        let scratch = Scratch::new("double");
        let (store, _) = scratch.open().unwrap();
        wait(store.commit(admit("a1", "s"))).unwrap();
        assert!(wait(store.commit(admit("a2", "s"))).is_err());
        assert!(wait(store.run("a2")).unwrap().is_none(), "nothing of a refused commit is left");
        wait(store.commit(end("a1", mind::Ending::Lost, "stuck"))).unwrap();
        assert!(wait(store.commit(admit("a2", "s"))).is_err());
        wait(store.commit(end("a1", mind::Ending::Dead, "dead"))).unwrap();
        wait(store.commit(admit("a2", "s"))).unwrap();
    }

    #[test]
    fn what_was_committed_is_believed_after_a_restart() {
        let scratch = Scratch::new("replay");
        let (store, mut state) = scratch.open().unwrap();
        let dead = end("a1", mind::Ending::Dead, "dead");
        for commit in [admit("a1", "s"), dead, admit("a2", "s"), admit("b1", "t")] {
            commit.facts.iter().for_each(|fact| state.apply(fact));
            wait(store.commit(commit)).unwrap();
        }
        let (again, replayed) = scratch.open().unwrap();
        assert_eq!(replayed, state);
        let meant = |name: &'static str| wait(again.meant_by(name)).unwrap();
        assert!(matches!(meant("s"), Meant::One(run) if run.id == "a2"));
        assert!(matches!(meant("b"), Meant::One(run) if run.id == "b1"));
        assert!(matches!(meant("a"), Meant::Several(ids) if ids == ["a1", "a2"]));
        assert!(matches!(meant("%"), Meant::Nobody));
    }

    #[test]
    fn a_store_of_a_later_kennel_is_refused() {
        let scratch = Scratch::new("newer");
        drop(scratch.open().unwrap());
        let connection = Connection::open(scratch.0.join("kennel.db")).unwrap();
        connection.pragma_update(None, "user_version", SCHEMA + 1).unwrap();
        assert!(matches!(scratch.open(), Err(StoreError::Newer { found: 2 })));
    }
}
