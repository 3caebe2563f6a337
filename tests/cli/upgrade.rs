//! Another kennel takes over: a daemon from another file adopts what keepers from the first one
//! hold, also after that file is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_tests::{pass, until};
use rusqlite::Connection;
use serde_json::Value;

use super::faults::{Full, inside, on_a_small_disk};
use super::home::{Home, Said, make_program};
use super::stories_survive::Dice;

fn install(home: &Home, name: &str) -> PathBuf {
    let file = home.path().join(name);
    make_program(Path::new(env!("CARGO_BIN_EXE_kennel")), &file);
    file
}

fn run(kennel: &Path, home: &Home, args: &[&str]) -> String {
    let mut command = Command::new(kennel);
    command.args(args).env("KENNEL_HOME", home.path()).current_dir(home.work());
    let output = command.stdin(Stdio::null()).output().expect("it can be run");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// What a kennel before stories has kept: schema 3, with so many runs that are over, of five lines
/// each, and one that lives. All are made of one that this kennel ran.
fn older_store(home: &Home, runs: u32) -> String {
    let model = home.start(&["--slot", "model", "--", "sleep", "1000"]);
    home.ok(&["stop", "--grace", "5s", &model]);
    let alive = home.start(&["--slot", "alive", "--", "sleep", "1000"]);
    home.ok(&["down"]);
    let file = home.state().join("kennel.db");
    let newer = home.path().join("newer.db");
    let kept = Connection::open(&file).expect("it is there");
    kept.execute("VACUUM INTO ?", [newer.to_str()]).expect("it can be copied");
    drop(kept);
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(home.state().join(format!("kennel.db{ending}")));
    }
    let store = Connection::open(&file).expect("it can be made");
    store.pragma_update(None, "journal_mode", "WAL").expect("it can be set");
    for step in [
        include_str!("../../crates/daemon/src/store/1.sql"),
        include_str!("../../crates/daemon/src/store/2.sql"),
        include_str!("../../crates/daemon/src/store/3.sql"),
    ] {
        store.execute_batch(step).expect("it is a schema");
    }
    let rows = "INSERT INTO run SELECT m.id || n, slot, state,
            replace(request, m.id, m.id || n), replace(started, m.id, m.id || n), stuck, ended,
            worktree, requested_ms, ended_ms FROM newer.run, m, count WHERE run.id = m.id;
        INSERT INTO run SELECT id, slot, state, request, started, stuck, ended, worktree,
            requested_ms, ended_ms FROM newer.run WHERE slot = 'alive';
        INSERT INTO journal (at_ms, run, fact, detail, notice, quiet, tail)
            SELECT at_ms, m.id || n, fact, replace(detail, m.id, m.id || n),
            replace(notice, m.id, m.id || n), quiet, tail FROM count, newer.journal, m
            WHERE run = m.id ORDER BY n, seq;
        INSERT INTO journal (at_ms, run, fact, detail, notice, quiet, tail)
            SELECT at_ms, run, fact, detail, notice, quiet, tail FROM newer.journal
            WHERE run = (SELECT id FROM newer.run WHERE slot = 'alive');
        INSERT INTO consumer SELECT name, acked, acked_ms FROM newer.consumer;";
    let fill = format!(
        "ATTACH '{}' AS newer;
        BEGIN;
        CREATE TEMP TABLE m AS SELECT id FROM newer.run WHERE slot = 'model';
        CREATE TEMP TABLE count AS WITH RECURSIVE c (n) AS
            (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {runs}) SELECT n FROM c;
        {rows}
        PRAGMA application_id = 0x6b656e6c;
        PRAGMA user_version = 3;
        COMMIT;
        DETACH newer;",
        newer.display()
    );
    store.execute_batch(&fill).expect("it can be filled");
    drop(store);
    fs::remove_file(newer).expect("it is there");
    alive
}

/// The schema, and how many runs and lines there are; the file is whole.
fn counted(file: &Path) -> (i64, i64, i64) {
    let store = Connection::open(file).expect("it is there");
    let ask = |sql: &str| store.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
    let check = "PRAGMA quick_check";
    let whole = store.query_row(check, [], |row| row.get::<_, String>(0)).expect(check);
    assert_eq!(whole, "ok", "{}", file.display());
    let version = store.pragma_query_value(None, "user_version", |row| row.get(0));
    let version = version.expect("it has one");
    (version, ask("SELECT count(*) FROM run"), ask("SELECT count(*) FROM journal"))
}

/// What lies beside the store and is neither it nor the copy from before.
fn left_over(home: &Home) -> Vec<String> {
    let names = fs::read_dir(home.state()).expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let known = ["kennel.db", "kennel.db-wal", "kennel.db-shm", "kennel.db.before-4"];
    names.filter(|name| name.starts_with("kennel.db") && !known.contains(&&**name)).collect()
}

#[test]
fn a_large_store_of_before_stories_is_migrated_whatever_kills_the_daemon_meanwhile() {
    let home = Home::new();
    let alive = older_store(&home, 20_000);
    let (file, copy) = (home.state().join("kennel.db"), home.state().join("kennel.db.before-4"));
    let before = counted(&file);
    assert_eq!((before.0, before.1), (3, 20_001));
    assert_eq!(before.2, 100_002);
    let size = fs::metadata(&file).expect("it is there").len();
    let mut dice = Dice::new();
    let mut migrated = 0;
    for _ in 0..12 {
        let mut command = home.command(&["up"]);
        let mut daemon = command.stderr(Stdio::null()).spawn().expect("it can be run");
        pass(Duration::from_millis(dice.below(1500)));
        daemon.kill().expect("it is ours");
        daemon.wait().expect("it is ours");
        let now = counted(&file);
        assert!(now == before || (now.0 == 4 && now.1 == before.1), "{now:?}");
        // What has this name is whole.
        if copy.exists() {
            assert_eq!(counted(&copy), before);
        }
        if now.0 == 4 {
            migrated += 1;
            // Back to before, as it was copied.
            for beside in ["-wal", "-shm"] {
                let _ = fs::remove_file(home.state().join(format!("kennel.db{beside}")));
            }
            fs::rename(&copy, &file).expect("it can be put back");
        }
    }
    println!("{} MiB: migrated {migrated} times of 12", size >> 20);
    let began = Instant::now();
    assert_eq!(home.show(&alive)["state"], "running");
    println!("migrated, and answered, in {:?}", began.elapsed());
    assert_eq!(counted(&copy), before);
    assert_eq!(left_over(&home), [""; 0]);
    assert_eq!(home.all_runs().len(), 10_000, "as many as are listed at once");
    assert_eq!(counted(&file).1, before.1);
    home.ok(&["kill", &alive]);
}

#[test]
fn a_store_that_has_no_room_to_be_migrated_stays_as_it_was_and_says_what_to_do() {
    let test = "upgrade::\
                a_store_that_has_no_room_to_be_migrated_stays_as_it_was_and_says_what_to_do";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let home = Home::new();
    let alive = older_store(&home, 400);
    let (file, copy) = (home.state().join("kennel.db"), home.state().join("kennel.db.before-4"));
    let before = counted(&file);
    let aside = home.path().join("aside.db");
    let store = Connection::open(&file).expect("it is there");
    store.execute("VACUUM INTO ?", [aside.to_str()]).expect("it can be copied");
    drop(store);
    let most = fs::metadata(&aside).expect("it is there").len() / 4096;
    fs::remove_file(&aside).expect("it is there");
    // No room for the copy; for half of it; for all of it, what readers and writers share, and the
    // beginning of a log.
    for pages in [16, most / 2, most + 10] {
        let full = Full::but_for(&place, pages);
        let Said { code, err, .. } = home.kennel(&["show", &alive]);
        assert_ne!(code, 0, "{pages}: {err}");
        let told = if pages > most { "migrate the store" } else { "needs as much room again" };
        assert!(err.contains(told) && err.contains("disk is full"), "{pages}: {err}");
        drop(full);
        assert_eq!(counted(&file), before, "{pages}");
        assert!(!copy.exists() || counted(&copy) == before, "{pages}");
        assert_eq!(left_over(&home), [""; 0], "{pages}");
    }
    assert_eq!(home.show(&alive)["state"], "running");
    assert_eq!(counted(&copy), before);
    home.ok(&["kill", &alive]);
}

#[test]
fn a_new_binary_adopts_what_the_old_one_s_keepers_hold() {
    let home = Home::new();
    let old = install(&home, "old");
    let script = "echo one; read line; echo $line; exit 5";
    let args = ["run", "-d", "--stdin", "--slot", "s", "--", "sh", "-c", script];
    let kept = run(&old, &home, &args);
    let long = run(&old, &home, &["run", "-d", "--", "sleep", "1000"]);
    run(&old, &home, &["down"]);
    fs::remove_file(&old).expect("it can be removed");

    let new = install(&home, "new");
    let shown: Value = serde_json::from_str(&run(&new, &home, &["--json", "show", &kept])).unwrap();
    assert_eq!(shown["state"], "running", "{shown}");
    run(&new, &home, &["send", "s", "two"]);
    let ended = until("it ends", || {
        let shown: Value =
            serde_json::from_str(&run(&new, &home, &["--json", "show", &kept])).unwrap();
        (shown["state"] == "dead").then_some(shown)
    });
    assert_eq!(ended["end"]["status"]["exited"], 5, "{ended}");
    assert_eq!(run(&new, &home, &["logs", &kept]), "one\ntwo");
    run(&new, &home, &["stop", &long]);
    // New runs are kept by the new binary: the old one is not needed for anything.
    run(&new, &home, &["run", "--", "true"]);
    home.check();
}
