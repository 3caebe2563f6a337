//! The journal's speed beside bare SQLite doing the same rows. Owns both loops; for `bench-daemon`
//! alone, and not in what ships.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_process::ExitStatus;
use kennel_supervisor as mind;
use rusqlite::{Connection, TransactionBehavior};

use crate::feed::Feed;
use crate::notice::Named;
use crate::store::consumer::Ack;
use crate::store::format::{Detail, Ended, Request};
use crate::store::kept::Standing;
use crate::store::{Entry, Line, Store, Wanted};
use crate::tail::{Tail, Tails};
use crate::text::Text;
use crate::time::Time;

/// Facts of one run.
pub const FACTS_PER_RUN: usize = 4;

/// The facts of one whole run, as the loop would commit them.
fn facts(n: usize) -> [Entry; FACTS_PER_RUN] {
    let id = format!("bench{n:08}");
    let run = mind::RunId::from(id.as_str());
    let request = Request {
        command: vec![Text("claude".into()), Text("-p".into()), Text("fix the login".into())],
        cwd: Text("/srv/project".into()),
        terminal: false,
        stdin: false,
        limits: Default::default(),
        format: None,
        worktree: None,
        boot: "3e0c3a52-3c5c-4f0e-8f63-6e3b8d7d5c11".to_owned(),
        agent: None,
        limits_from: Default::default(),
        notes: Vec::new(),
        step: None,
        grace_ms: 10_000,
        on_exit: kennel_process::OnExit::Sweep,
        at_ms: 1_800_000_000_000,
        parent: None,
        notify: Default::default(),
        watch: Vec::new(),
        heartbeat_ms: None,
        secrets: Default::default(),
    };
    let claim = mind::Claim { slot: id.as_str().into(), worktree: None, parent: None };
    let message = "x".repeat(600);
    let ended = Ended::NeverStarted { message, failure: None, at_ms: 1, interrupted: false };
    let at = Time(1_800_000_000_000);
    let entry = |fact, detail, state| Entry { fact, detail, state, at, notice: None, tail: None };
    [
        entry(
            mind::Fact::Admitted { run: run.clone(), claim },
            Detail::Request(Arc::new(request)),
            Standing::Starting,
        ),
        entry(mind::Fact::Started(run.clone()), Detail::Nothing, Standing::Running),
        entry(
            mind::Fact::Exited(run.clone()),
            Detail::Exited(ExitStatus::Exited(0)),
            Standing::Running,
        ),
        entry(
            mind::Fact::Ended { run, ending: mind::Ending::Dead },
            Detail::Ended(Arc::new(ended)),
            Standing::Dead,
        ),
    ]
}

/// Commits the facts of so many runs, so many facts at once, through the store as the loop does.
pub fn through_the_store(file: &Path, runs: usize, at_once: usize) -> Duration {
    let mut writer = Store::open(file, mind::State::default()).expect("it can be made").writer;
    let all: Vec<Entry> = (0..runs).flat_map(facts).collect();
    let begun = Instant::now();
    for batch in all.chunks(at_once) {
        writer.commit(batch).expect("it is taken");
    }
    begun.elapsed()
}

/// Writes the same rows with nothing but SQLite, in this thread, with texts that are ready.
pub fn bare(file: &Path, runs: usize, at_once: usize) -> Duration {
    drop(Store::open(file, mind::State::default()).expect("it can be made"));
    let mut connection = Connection::open(file).expect("it can be opened");
    connection.pragma_update(None, "synchronous", "FULL").expect("it can be set");
    connection.pragma_update(None, "foreign_keys", true).expect("it can be set");
    let text = |value: &dyn erased::Json| value.text();
    let rows: Vec<(String, usize, String, String)> = (0..runs)
        .flat_map(|n| facts(n).into_iter().enumerate().map(move |(k, entry)| (n, k, entry)))
        .map(|(n, k, entry)| {
            let fact = text(&crate::store::format::Fact::from(&entry.fact));
            let kept = match &entry.detail {
                Detail::Request(request) => text(&**request),
                Detail::Ended(ended) => text(&**ended),
                other @ (Detail::Nothing
                | Detail::Shutdown
                | Detail::Started(_)
                | Detail::Exited(_)
                | Detail::Limit(_)
                | Detail::Stuck(_)
                | Detail::Matched(_)
                | Detail::Heartbeat(_)) => text(other),
            };
            (format!("bench{n:08}"), k, fact, kept)
        })
        .collect();
    let begun = Instant::now();
    for batch in rows.chunks(at_once) {
        let how = TransactionBehavior::Immediate;
        let tx = connection.transaction_with_behavior(how).expect("it begins");
        for (id, k, fact, kept) in batch {
            bare_row(&tx, id, *k, fact, kept).expect("it is taken");
        }
        tx.commit().expect("it is taken");
    }
    begun.elapsed()
}

fn bare_row(
    tx: &rusqlite::Transaction<'_>,
    id: &str,
    k: usize,
    fact: &str,
    kept: &str,
) -> rusqlite::Result<()> {
    match k {
        0 => tx
            .prepare_cached(
                "INSERT INTO run (id, slot, worktree, state, requested_ms, request) \
                 VALUES (?1, ?1, NULL, 'starting', 1800000000000, ?2)",
            )?
            .execute([id, kept])?,
        3 => tx
            .prepare_cached(
                "UPDATE run SET state = 'dead', ended = ?2, ended_ms = 1 WHERE id = ?1",
            )?
            .execute([id, kept])?,
        _ => tx.prepare_cached("UPDATE run SET state = 'running' WHERE id = ?1")?.execute([id])?,
    };
    let kept = if k == 0 { "\"nothing\"" } else { kept };
    tx.prepare_cached(
        "INSERT INTO journal (at_ms, run, fact, detail) VALUES (1800000000000, ?, ?, ?)",
    )?
    .execute([id, fact, kept])?;
    Ok(())
}

/// Notices told by one commit.
const TOLD_AT_ONCE: usize = 64;
/// Notices a consumer acknowledges at once.
const ACKED_AT_ONCE: u64 = 256;

/// Commits so many notices and has so many consumers follow and acknowledge all of them, as the
/// loop and the API do, without HTTP.
pub fn told_to(file: &Path, notices: usize, consumers: usize) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("it can be made");
    let crate::store::Opened { store, mut writer, .. } =
        Store::open(file, mind::State::default()).expect("it can be made");
    let feed = Feed::new(store, 0);
    let [admitted, ..] = facts(0);
    writer.commit(&[admitted]).expect("it is taken");
    let (acks, acked) = std::sync::mpsc::channel();
    let begun = Instant::now();
    let loop_feed = feed.clone();
    let mind = std::thread::spawn(move || tell_all(writer, &loop_feed, notices, &acked));
    runtime.block_on(async {
        let all = (0..consumers).map(|n| follow(feed.clone(), n, notices, acks.clone()));
        futures_util::future::join_all(all).await;
    });
    drop(acks);
    mind.join().expect("it ends");
    begun.elapsed()
}

/// The loop's half: commits, publishes, and keeps what was acknowledged meanwhile.
fn tell_all(
    mut writer: crate::store::Writer,
    feed: &Feed,
    notices: usize,
    acked: &std::sync::mpsc::Receiver<Ack>,
) {
    let entries: Vec<Entry> = (0..notices).map(told).collect();
    for batch in entries.chunks(TOLD_AT_ONCE) {
        let first = writer.commit(batch).expect("it is taken");
        let lines = batch.iter().enumerate().map(|(n, entry)| Line {
            seq: first + n as u64,
            at: entry.at,
            run: Some("bench00000000".into()),
            slot: Some("bench00000000".into()),
            fact: Arc::new(crate::store::format::Fact::from(&entry.fact)),
            detail: Arc::new(entry.detail.clone()),
            notice: entry.notice.clone().map(Arc::new),
            tail: entry.tail.clone(),
        });
        feed.append(lines.collect());
        for ack in acked.try_iter() {
            writer.acknowledge(&ack).expect("it is taken");
        }
    }
    for ack in acked.iter() {
        writer.acknowledge(&ack).expect("it is taken");
    }
}

/// A notice with a tail, as an ending has.
fn told(n: usize) -> Entry {
    let run = mind::RunId::from("bench00000000");
    let kind = mind::Kind::Heartbeat;
    let notice = mind::Notice { run: run.clone(), kind, n: n as u32 + 1 };
    let tail = Tail { text: "some last words of a run\n".repeat(8), left_out: 12 };
    Entry {
        fact: mind::Fact::Noted { run, note: mind::Note::Heartbeat(n as u32 + 1) },
        detail: Detail::Nothing,
        state: Standing::Running,
        at: Time(1_800_000_000_000),
        notice: Some(Named::new(&notice, Default::default(), &Detail::Nothing)),
        tail: Some(Arc::new(Tails { stdout: Some(tail), ..Tails::default() })),
    }
}

/// A consumer's half.
async fn follow(feed: Feed, n: usize, notices: usize, acks: std::sync::mpsc::Sender<Ack>) {
    let mut newest = feed.watch();
    let (mut seen, mut after, mut acked) = (0, 0, 0);
    while seen < notices {
        newest.borrow_and_update();
        let wanted = Wanted { after, limit: 256, quiet: false, run: None };
        let (lines, next) = feed.notices(wanted).await.expect("it can be read");
        seen += lines.lines.iter().filter_map(crate::api::notice).count();
        after = next;
        if after - acked >= ACKED_AT_ONCE || seen == notices {
            let consumer = format!("consumer{n}");
            let _ = acks.send(Ack { consumer, through: Some(after), at_ms: 1 });
            acked = after;
        }
        if lines.lines.is_empty() && seen < notices {
            drop(newest.changed().await);
        }
    }
}

/// Writes rows of the same size with nothing but SQLite, and tells nobody.
pub fn bare_notices(file: &Path, notices: usize) -> Duration {
    drop(Store::open(file, mind::State::default()).expect("it can be made"));
    let mut connection = Connection::open(file).expect("it can be opened");
    connection.pragma_update(None, "synchronous", "FULL").expect("it can be set");
    let rows: Vec<(String, String, String)> = (0..notices)
        .map(told)
        .map(|entry| {
            let fact = erased::Json::text(&crate::store::format::Fact::from(&entry.fact));
            let tail = entry.tail.map(|tail| erased::Json::text(&*tail)).unwrap_or_default();
            (fact, entry.notice.map(|notice| notice.id).unwrap_or_default(), tail)
        })
        .collect();
    let begun = Instant::now();
    for batch in rows.chunks(TOLD_AT_ONCE) {
        let how = TransactionBehavior::Immediate;
        let tx = connection.transaction_with_behavior(how).expect("it begins");
        for (fact, notice, tail) in batch {
            tx.prepare_cached(
                "INSERT INTO journal (at_ms, fact, detail, notice, quiet, tail) \
                 VALUES (1800000000000, ?, '\"nothing\"', ?, 0, ?)",
            )
            .and_then(|mut insert| insert.execute([fact, notice, tail]))
            .expect("it is taken");
        }
        tx.commit().expect("it is taken");
    }
    begun.elapsed()
}

mod erased {
    //! Anything that can be written as JSON.

    pub(super) trait Json {
        fn text(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn text(&self) -> String {
            serde_json::to_string(self).expect("it can be written")
        }
    }
}
