//! The store: the journal of facts and the runs they make, in SQLite.
//!
//! Owns: the only connection that writes, which is the event loop's, and one that reads. A commit
//! that returned `Ok` is on disk (WAL, `synchronous=FULL`). Never decides anything; its
//! unique indexes refuse what the mind must not do.

pub(crate) mod channel;
pub(crate) mod consumer;
pub(crate) mod format;
pub(crate) mod kept;
mod read;
pub(crate) mod retention;
mod schema;
mod story;
pub(crate) mod story_format;
mod write;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kennel_supervisor as mind;
use rusqlite::Connection;

use crate::notice::Named;
use crate::tail::Tails;
use crate::time::Time;
use channel::{Letter, Tried, Wake};
use consumer::{Consumer, Place};
use format::Detail;
use kept::{KeptRun, Standing};
pub(crate) use read::{Line, Lines, Meant, Page, Wanted};
pub(crate) use schema::unfit_file_system;
pub(crate) use story::{KeptWords, MARK_LETTERS, StoryEntry, StoryWords};
pub(crate) use write::Writer;

/// The store, open for questions.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    reader: Arc<Mutex<Connection>>,
}

/// A fact on its way to the disk.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) fact: mind::Fact,
    pub(crate) detail: Detail,
    /// Where the run of the fact stands afterwards.
    pub(crate) state: Standing,
    pub(crate) at: Time,
    /// What it is told as, if it is.
    pub(crate) notice: Option<Named>,
    /// The end of the run's output, if it is told with one.
    pub(crate) tail: Option<Arc<Tails>>,
}

/// What was in the store when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) writer: Writer,
    pub(crate) state: mind::State,
    pub(crate) stories: mind::Stories,
    pub(crate) live: Vec<KeptRun>,
    pub(crate) last_seq: u64,
}

impl Store {
    /// Opens the store, making it if there is none, and replays what is live on top of `state`.
    pub(crate) fn open(path: &Path, state: mind::State) -> Result<Opened, StoreError> {
        Self::open_at(path, state).map_err(|e| e.at(path))
    }

    fn open_at(path: &Path, state: mind::State) -> Result<Opened, StoreError> {
        let connection = schema::open_writer(path)?;
        let state =
            read::replay(&connection, state).map_err(StoreError::to("replay the journal"))?;
        let stories =
            story::replay(&connection).map_err(StoreError::to("replay the facts of stories"))?;
        let live = read::live(&connection).map_err(StoreError::to("read the runs"))?;
        let last_seq = read::last_seq(&connection).map_err(StoreError::to("read the journal"))?;
        let reader = schema::open_reader(path)?;
        let store = Self { reader: Arc::new(Mutex::new(reader)) };
        Ok(Opened { store, writer: Writer(connection), state, stories, live, last_seq })
    }

    /// Runs newest first, dead ones too.
    pub(crate) async fn list(&self, page: Page) -> Result<Vec<KeptRun>, StoreError> {
        self.read(move |c| read::list(c, &page)).await
    }

    /// The run of exactly this id.
    pub(crate) async fn run(&self, id: &str) -> Result<Option<KeptRun>, StoreError> {
        let id = id.to_owned();
        self.read(move |c| read::by_id(c, &id)).await
    }

    /// The run somebody means by an id, by the name of a slot it holds, or by the beginning of an
    /// id, in this order.
    pub(crate) async fn meant_by(&self, name: &str) -> Result<Meant, StoreError> {
        let name = name.to_owned();
        self.read(move |c| read::meant_by(c, &name)).await
    }

    /// The journal after a line, oldest first.
    pub(crate) async fn lines(&self, after: u64, limit: usize) -> Result<Lines, StoreError> {
        self.read(move |c| read::lines(c, after, limit)).await
    }

    /// The notices after a line, oldest first.
    pub(crate) async fn notices(&self, wanted: Wanted) -> Result<Lines, StoreError> {
        self.read(move |c| read::notices(c, &wanted)).await
    }

    /// The newest notices, oldest of them first.
    pub(crate) async fn last_notices(&self, wanted: Wanted) -> Result<Lines, StoreError> {
        self.read(move |c| read::last_notices(c, &wanted)).await
    }

    /// The lines of one run that are notices of one kind, oldest first.
    pub(crate) async fn noted(&self, run: &str, kind: &str) -> Result<Vec<Line>, StoreError> {
        let (run, kind) = (run.to_owned(), kind.to_owned());
        self.read(move |c| read::noted(c, &run, &kind)).await
    }

    /// The first line about a run, if there is one.
    pub(crate) async fn first_line(&self, run: &str) -> Result<Option<u64>, StoreError> {
        let run = run.to_owned();
        self.read(move |c| read::first_line(c, &run)).await
    }

    /// Who reads the journal.
    pub(crate) async fn consumers(&self) -> Result<Vec<Consumer>, StoreError> {
        self.read(consumer::list).await
    }

    /// How far the consumer of this name has come.
    pub(crate) async fn place(&self, name: &str) -> Result<Option<Place>, StoreError> {
        let name = name.to_owned();
        self.read(move |c| consumer::by_name(c, &name)).await
    }

    /// What a channel has given up on, oldest first.
    pub(crate) async fn letters(&self, channel: &str) -> Result<Vec<Letter>, StoreError> {
        let channel = channel.to_owned();
        self.read(move |c| channel::letters(c, &channel)).await
    }

    /// The channels that have given up on something, and on how much.
    pub(crate) async fn buried(&self) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(channel::buried).await
    }

    /// How often a channel has tried the notice it is at.
    pub(crate) async fn tried(&self, channel: &str) -> Result<Option<Tried>, StoreError> {
        let channel = channel.to_owned();
        self.read(move |c| channel::tried(c, &channel)).await
    }

    /// The notices for which a channel wakes agents, or has, since what it acknowledged.
    pub(crate) async fn wakes(&self, channel: &str) -> Result<Vec<Wake>, StoreError> {
        let channel = channel.to_owned();
        self.read(move |c| channel::wakes(c, &channel)).await
    }

    /// What SQLite finds wrong with the file, if anything.
    pub(crate) async fn quick_check(&self) -> Result<Option<String>, StoreError> {
        self.read(read::quick_check).await
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let reader = self.reader.clone();
        let read = tokio::task::spawn_blocking(move || look(&locked(&reader)));
        read.await.map_err(|_| StoreError::Gone)?.map_err(StoreError::to("read the store"))
    }
}

/// A reader that panicked has left nothing half-done: it cannot write.
fn locked(reader: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    reader.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// The file is another program's.
    Foreign(PathBuf),
    /// The file is not what SQLite wrote, and how it noticed.
    Damaged(PathBuf, rusqlite::Error),
    /// Locks or shared memory cannot be trusted there.
    UnfitFileSystem {
        /// Which file system.
        kind: String,
        /// The store's file.
        path: PathBuf,
    },
    /// SQLite cannot have a write-ahead log there; the mode it has instead.
    NoWal(String),
    /// This program was built with an SQLite that may corrupt its files.
    OldSqlite(&'static str),
    /// The system refused its file or its writer's thread.
    Io(io::Error),
    /// The writer is gone: the daemon is leaving.
    Gone,
}

impl StoreError {
    fn to(what: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |e| Self::Sql(what, e)
    }

    /// The same, of the file at this place if that is what is wrong.
    fn at(self, path: &Path) -> Self {
        if let Self::Sql(_, e) = &self
            && e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt)
            && let Self::Sql(_, e) = self
        {
            return Self::Damaged(path.to_owned(), e);
        }
        self
    }

    /// True if the home has no room or may not be written: what was tried may be tried again.
    #[must_use]
    pub fn is_for_want_of_space(&self) -> bool {
        use rusqlite::ErrorCode::{DiskFull, ReadOnly, SystemIoFailure};
        match self {
            Self::Sql(_, e) => {
                matches!(e.sqlite_error_code(), Some(DiskFull | ReadOnly | SystemIoFailure))
            }
            Self::Newer { .. }
            | Self::Foreign(_)
            | Self::Damaged(..)
            | Self::UnfitFileSystem { .. }
            | Self::NoWal(_)
            | Self::OldSqlite(_)
            | Self::Io(_)
            | Self::Gone => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sql(what, e) => write!(f, "failed to {what}: {e}"),
            Self::Newer { found } => write!(
                f,
                "the store has schema {found} and this kennel knows {}: use the newer one",
                schema::SCHEMA
            ),
            Self::Foreign(path) => write!(
                f,
                "{} is not a store of kennel's: move it away, or set KENNEL_HOME to another place",
                path.display()
            ),
            Self::Damaged(path, e) => write!(
                f,
                "{} is damaged ({e}): put a copy back, or move it away with what lies beside it: \
                 runs that live are found again",
                path.display()
            ),
            Self::UnfitFileSystem { kind, path } => write!(
                f,
                "{} would be on {kind}, where locks and shared memory cannot be trusted: \
                 set KENNEL_HOME to a directory on a local disk",
                path.display()
            ),
            Self::NoWal(mode) => write!(
                f,
                "the store's file system allows no write-ahead log (SQLite chose {mode:?}): \
                 set KENNEL_HOME to a directory on a local disk"
            ),
            Self::OldSqlite(version) => {
                write!(
                    f,
                    "SQLite {version} may corrupt its files: build kennel with 3.51.3 or later"
                )
            }
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
    use format::{Ended, Request};
    use retention::Keep;
    use std::time::Duration;

    pub(super) struct Scratch(std::path::PathBuf);

    impl Scratch {
        pub(super) fn new(name: &str) -> Self {
            let own = format!("kennel-store-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(own);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        pub(super) fn file(&self) -> PathBuf {
            self.0.join("kennel.db")
        }

        pub(super) fn open(&self) -> Result<Opened, StoreError> {
            Store::open(&self.file(), mind::State::default())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    pub(super) fn admit(run: &str, slot: &str, worktree: Option<&str>) -> Entry {
        let request = Request {
            command: vec![Text("true".into())],
            cwd: Text("/".into()),
            terminal: false,
            stdin: false,
            limits: Default::default(),
            format: None,
            worktree: worktree.map(str::to_owned),
            boot: String::new(),
            agent: None,
            limits_from: Default::default(),
            notes: Vec::new(),
            step: None,
            grace_ms: 1,
            on_exit: kennel_process::OnExit::Sweep,
            at_ms: 1,
            parent: None,
            notify: Default::default(),
            watch: Vec::new(),
            heartbeat_ms: None,
            secrets: Default::default(),
        };
        let worktree = worktree.map(Into::into);
        let claim = mind::Claim { slot: slot.into(), worktree, parent: None };
        Entry {
            fact: mind::Fact::Admitted { run: run.into(), claim },
            detail: Detail::Request(Arc::new(request)),
            state: Standing::Starting,
            at: Time(1),
            notice: None,
            tail: None,
        }
    }

    fn end(run: &str, ending: mind::Ending, state: Standing) -> Entry {
        let ended = Ended::NeverStarted {
            message: "no".to_owned(),
            failure: None,
            at_ms: 2,
            interrupted: false,
        };
        Entry {
            fact: mind::Fact::Ended { run: run.into(), ending },
            detail: Detail::Ended(Arc::new(ended)),
            state,
            at: Time(2),
            notice: None,
            tail: None,
        }
    }

    pub(super) fn dead(run: &str) -> Entry {
        end(run, mind::Ending::Dead, Standing::Dead)
    }

    #[test]
    fn two_live_runs_in_a_slot_or_worktree_are_refused_even_if_the_mind_asks_for_them() {
        let scratch = Scratch::new("double");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let mut commit = |entry: Entry| writer.commit(&[entry]);
        commit(admit("a1", "s", Some("/w"))).unwrap();
        assert!(commit(admit("a2", "s", None)).is_err());
        assert!(commit(admit("a2", "t", Some("/w"))).is_err());
        assert!(wait(store.run("a2")).unwrap().is_none(), "nothing of a refused commit is left");
        commit(end("a1", mind::Ending::Lost, Standing::Stuck)).unwrap();
        assert!(commit(admit("a2", "s", None)).is_err());
        commit(dead("a1")).unwrap();
        commit(admit("a2", "s", Some("/w"))).unwrap();
        let both = [admit("b1", "u", None), admit("b2", "u", None)];
        assert!(writer.commit(&both).is_err());
        assert!(wait(store.run("b1")).unwrap().is_none(), "all of a commit or nothing");
    }

    #[test]
    fn what_was_committed_is_believed_after_a_restart() {
        let scratch = Scratch::new("replay");
        let Opened { mut writer, mut state, .. } = scratch.open().unwrap();
        let entries = [
            admit("a1", "s", None),
            dead("a1"),
            admit("a2", "s", Some("/w")),
            admit("b1", "t", None),
        ];
        entries.iter().for_each(|entry| state.apply(&entry.fact));
        assert_eq!(writer.commit(&entries).unwrap(), 1);
        let again = scratch.open().unwrap();
        assert_eq!(again.state, state);
        assert_eq!((again.last_seq, again.live.len()), (4, 2));
        let meant = |name: &'static str| wait(again.store.meant_by(name)).unwrap();
        assert!(matches!(meant("s"), Meant::One(run) if &*run.id == "a2"));
        assert!(matches!(meant("b"), Meant::One(run) if &*run.id == "b1"));
        assert!(matches!(meant("a"), Meant::Several(ids) if ids == ["a1", "a2"]));
        assert!(matches!(meant("%"), Meant::Nobody));
        assert!(matches!(meant(""), Meant::Nobody));
    }

    #[test]
    fn a_store_of_a_later_kennel_or_of_another_program_is_refused() {
        let scratch = Scratch::new("newer");
        drop(scratch.open().unwrap());
        let connection = Connection::open(scratch.file()).unwrap();
        connection.pragma_update(None, "user_version", schema::SCHEMA + 1).unwrap();
        let found = schema::SCHEMA + 1;
        assert!(matches!(scratch.open(), Err(StoreError::Newer { found: f }) if f == found));
        connection.pragma_update(None, "application_id", 7).unwrap();
        assert!(matches!(scratch.open(), Err(StoreError::Foreign(_))));
    }

    /// A store as the first schema had it, with a run that is dead and one that is not.
    fn first_schema(path: &Path) {
        let old = Connection::open(path).unwrap();
        old.execute_batch(include_str!("1.sql")).unwrap();
        old.execute_batch(
            r#"PRAGMA application_id = 0x6b656e6c; PRAGMA user_version = 1;
            INSERT INTO run VALUES ('a1', 's', 'dead',
                '{"command":["true"],"cwd":"/","terminal":false,"grace_ms":1,
                  "on_exit":"sweep","at_ms":5}',
                NULL, NULL, '{"never_started":{"message":"no","failure":null,"at_ms":9}}');
            INSERT INTO run VALUES ('a2', 's', 'starting',
                '{"command":["true"],"cwd":"/","terminal":false,"grace_ms":1,
                  "on_exit":"sweep","at_ms":7}',
                NULL, NULL, NULL);
            INSERT INTO journal (at_ms, run, fact, detail)
                VALUES (7, 'a2', '{"admitted":{"slot":"s"}}', '"nothing"');"#,
        )
        .unwrap();
    }

    #[test]
    fn an_older_store_is_copied_then_migrated_and_nothing_of_it_is_lost() {
        let scratch = Scratch::new("migrate");
        first_schema(&scratch.file());
        let opened = scratch.open().unwrap();
        let page = Page { before: None, limit: 10 };
        let runs = wait(opened.store.list(page)).unwrap();
        let ids: Vec<&str> = runs.iter().map(|run| &*run.id).collect();
        assert_eq!(ids, ["a2", "a1"], "newest first");
        assert_eq!(opened.state.holder(&"s".into()).map(mind::RunId::as_str), Some("a2"));
        let copy = Connection::open(schema::backup_path(&scratch.file(), 1)).unwrap();
        let version = copy.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
        assert_eq!(version.unwrap(), 1);
    }

    #[test]
    fn a_migration_that_fails_leaves_the_older_store_as_it_was() {
        let scratch = Scratch::new("halfway");
        first_schema(&scratch.file());
        // A directory in the place of the copy: no copy, no migration.
        let in_the_way = schema::backup_path(&scratch.file(), 1);
        std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        assert!(scratch.open().is_err());
        let connection = Connection::open(scratch.file()).unwrap();
        let version = connection.pragma_query_value(None, "user_version", |r| r.get::<_, i64>(0));
        assert_eq!(version.unwrap(), 1);
        std::fs::remove_dir_all(in_the_way).unwrap();
        scratch.open().unwrap();
    }

    #[test]
    fn what_is_old_goes_whole_and_readers_who_come_late_are_told() {
        let scratch = Scratch::new("retain");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let entries = [
            admit("a1", "s", None),
            dead("a1"),
            admit("a2", "s", None),
            admit("a3", "t", None),
            dead("a3"),
        ];
        writer.commit(&entries).unwrap();
        let keep = Keep { age: Duration::from_millis(10), bytes: u64::MAX };
        let mut retain = |now| writer.retain(&keep.bounds(now, Vec::new(), Vec::new())).unwrap();
        let reader = |acked: i64| {
            let connection = Connection::open(scratch.file()).unwrap();
            let sql = "INSERT OR REPLACE INTO consumer VALUES ('me', ?, 100)";
            connection.execute(sql, [acked]).unwrap();
        };
        assert!(retain(12).is_empty(), "not old enough");
        reader(1);
        assert!(retain(100).is_empty(), "somebody has still to read of it");
        reader(2);
        assert_eq!(retain(100), ["a1"]);
        let lines = wait(store.lines(0, 10)).unwrap();
        assert_eq!(lines.removed_through, Some(2));
        assert_eq!(lines.lines.iter().map(|l| l.seq).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(wait(store.lines(2, 10)).unwrap().removed_through, None);
        assert_eq!(retain(100 + 30 + 1), ["a3"], "who has not come for very long holds nothing");
        assert!(wait(store.run("a2")).unwrap().is_some(), "what lives is kept, however old");
    }

    #[test]
    fn what_a_channel_gives_up_on_and_its_place_are_kept_together() {
        use channel::{MAX_LETTERS, Mark, consumer_of};
        let scratch = Scratch::new("channel");
        let Opened { store, mut writer, .. } = scratch.open().unwrap();
        let letter = |seq: u64| Letter {
            seq,
            notice: format!("r/ended/{seq}"),
            body: "{}".to_owned(),
            tries: 3,
            error: "no".to_owned(),
            at_ms: 7,
            again: false,
        };
        let mut mark = |mark: Mark| writer.mark("c", &mark).unwrap();
        mark(Mark::Tried(Tried { seq: 5, tries: 2, error: "no".to_owned(), at_ms: 6 }));
        assert_eq!(wait(store.tried("c")).unwrap().map(|tried| tried.tries), Some(2));
        mark(Mark::Dead { letters: vec![letter(5)], through: Some(5), at_ms: 7 });
        let place = wait(store.place(&consumer_of("c"))).unwrap().unwrap();
        assert_eq!(place.acked, 5);
        assert_eq!(wait(store.tried("c")).unwrap(), None);
        assert_eq!(wait(store.letters("c")).unwrap(), [letter(5)]);
        assert_eq!(mark(Mark::Again), 1);
        assert!(wait(store.letters("c")).unwrap()[0].again);
        mark(Mark::Revived(5));
        assert!(wait(store.letters("c")).unwrap().is_empty());
        let many = (10..10 + MAX_LETTERS as u64 + 3).map(letter).collect();
        mark(Mark::Dead { letters: many, through: None, at_ms: 8 });
        let letters = wait(store.letters("c")).unwrap();
        assert_eq!((letters.len(), letters[0].seq), (MAX_LETTERS, 13), "the oldest go");
        assert_eq!(wait(store.buried()).unwrap(), [("c".to_owned(), MAX_LETTERS as u64)]);
        mark(Mark::Planned { run: "w".to_owned(), seqs: vec![2000, 2001] });
        mark(Mark::Settled(vec![2001]));
        mark(Mark::Planned { run: "x".to_owned(), seqs: vec![2000, 2001] });
        let wakes = wait(store.wakes("c")).unwrap();
        let of = |seq| wakes.iter().find(|wake| wake.seq == seq).unwrap();
        assert_eq!((of(2000).run.as_deref(), of(2000).settled), (Some("x"), false));
        assert_eq!((of(2001).run.as_deref(), of(2001).settled), (Some("w"), true));
        mark(Mark::Through { seq: 2000, at_ms: 9 });
        let left: Vec<u64> = wait(store.wakes("c")).unwrap().iter().map(|wake| wake.seq).collect();
        assert_eq!(left, [2001]);
    }
}
