//! What lies in a run's directory when the daemon comes back: records of another boot, damaged
//! ones, directories that are gone or that belong to nobody. Whatever cannot be read is told once,
//! keeps its slot, and is never read as "no agents".

use std::fs;
use std::path::PathBuf;

use kennel_process::{KeeperProgram, Process, RunId, Signal, Spec};
use kennel_tests::{carriers_of, until};
use serde_json::{Value, json};

use super::home::Home;

/// A boot that is not this one.
const OTHER_BOOT: &str = "00000000-1111-4222-8333-444444444444";

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it is there").trim().to_owned()
}

/// Ends a run behind everybody's back: its keeper and its leader, as a power cut would.
fn cut_power(home: &Home, run: &str) {
    let shown = home.show(run);
    home.kill_daemon();
    for who in ["keeper", "leader"] {
        let pid = shown[who]["pid"].as_u64().expect("it has one") as u32;
        if let Ok(process) = Process::from_number(pid) {
            let _ = process.signal(Signal::KILL);
        }
    }
    until("nothing of it lives", || carriers_of(run).is_empty().then_some(()));
}

/// The record's facts, each changed by `change`, with checksums that fit.
fn rewrite(home: &Home, run: &str, change: impl Fn(&str) -> String) {
    let path = home.run_dir(run).join("record");
    let text = fs::read_to_string(&path).expect("it is text");
    let mut changed = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (_, fact) = line.split_once("\"fact\":").expect("every line has one");
        let fact = change(fact.strip_suffix('}').expect("and ends after it"));
        let crc = crc32fast::hash(fact.as_bytes());
        changed.push_str(&format!("{{\"v\":1,\"crc\":{crc},\"fact\":{fact}}}\n"));
    }
    fs::write(&path, format!("{changed:<32768}")).expect("it can be written");
}

/// Has the store say that a run was asked for in another boot.
fn ask_in_another_boot(home: &Home, run: &str) {
    let sql = format!(
        "UPDATE run SET request = json_set(request, '$.boot', '{OTHER_BOOT}') WHERE id = '{run}'"
    );
    home.sql(&sql);
}

/// How often something of this kind is in the journal about a run.
fn told(home: &Home, run: &str, kind: &str) -> usize {
    let (status, page) = home.ask("GET", "/v1/events?after=0", "");
    assert_eq!(status, 200, "{page}");
    let events = page["events"].as_array().cloned().unwrap_or_default();
    events.iter().filter(|event| event["run"] == run && event["kind"] == kind).count()
}

#[track_caller]
fn in_state(home: &Home, run: &str, state: &str) -> Value {
    until(&format!("it is {state}"), || {
        // Not yet known, perhaps.
        let said = home.kennel(&["--json", "show", run]);
        let shown: Value = serde_json::from_str(&said.out).unwrap_or_default();
        (shown["state"] == state).then_some(shown)
    })
}

/// Dead because the machine was started anew: by proof, with an honest status, once.
#[track_caller]
fn expect_dead_by_reboot(home: &Home, run: &str) {
    let shown = in_state(home, run, "dead");
    assert_eq!(shown["end"]["status"], json!({"unknown": "reboot"}), "{shown}");
    assert!(shown["proof"]["rests_on"].to_string().contains("boot"), "{shown}");
    assert_eq!(home.kennel(&["run", "--slot", "s", "--", "true"]).code, 0, "its slot is free");
    assert_eq!(told(home, run, "ended"), 1);
    assert_eq!(told(home, run, "stuck"), 0);
}

/// Quarantined: stuck with this reason, told once, its slot taken, however often it is looked at.
#[track_caller]
fn expect_quarantined(home: &Home, run: &str, reason: &str) {
    let shown = in_state(home, run, "stuck");
    let because = shown["stuck_because"].as_str().unwrap_or_default();
    assert!(because.contains(reason), "{shown}");
    let said = home.kennel(&["--json", "run", "--slot", "s", "--", "true"]);
    assert_eq!(said.code, 125, "{said:?}");
    assert!(said.err.contains("\"stuck_survivors\""), "{said:?}");
    assert_eq!(told(home, run, "stuck"), 1);
    assert_eq!(told(home, run, "ended"), 0);
}

#[test]
fn what_ran_before_the_machine_was_started_anew_is_dead_and_its_slot_is_free() {
    let home = Home::new();
    let run = home.start(&["--slot", "s", "--", "sleep", "1000"]);
    cut_power(&home, &run);
    remove_leaf(&run);
    rewrite(&home, &run, |fact| fact.replace(&boot(), OTHER_BOOT));
    ask_in_another_boot(&home, &run);
    expect_dead_by_reboot(&home, &run);
    home.kill_daemon();
    assert_eq!(in_state(&home, &run, "dead")["end"]["cause"], "lost");
    assert_eq!(told(&home, &run, "ended"), 1, "a second look tells nothing new");
    home.check();
}

#[test]
fn a_directory_that_went_down_with_the_machine_is_a_run_that_is_dead() {
    let home = Home::new();
    let run = home.start(&["--slot", "s", "--", "sleep", "1000"]);
    cut_power(&home, &run);
    fs::remove_dir_all(home.run_dir(&run)).expect("it can be removed");
    remove_leaf(&run);
    ask_in_another_boot(&home, &run);
    expect_dead_by_reboot(&home, &run);
    home.check();
}

/// What the machine's going down would have taken along.
fn remove_leaf(run: &str) {
    for leaf in kennel_tests::leaves_of(run) {
        until("its cgroup can be removed", || fs::remove_dir(&leaf).is_ok().then_some(()));
    }
}

#[test]
fn a_directory_that_somebody_removed_is_no_death() {
    let home = Home::new();
    let run = home.start(&["--slot", "s", "--", "sleep", "1000"]);
    cut_power(&home, &run);
    let away = home.path().join("away");
    fs::rename(home.run_dir(&run), &away).expect("it can be moved");
    expect_quarantined(&home, &run, "record");
    home.kill_daemon();
    expect_quarantined(&home, &run, "record");
    let said = home.kennel(&["doctor"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains(&format!("run {run} in slot s is stuck")), "{said:?}");
    // Put back, it is what it was: a run whose keeper was killed.
    fs::rename(&away, home.run_dir(&run)).expect("it can be moved");
    let shown = in_state(&home, &run, "dead");
    assert_eq!(shown["end"]["cause"], "lost", "{shown}");
    home.check();
}

/// What may happen to a record.
enum Damage {
    Bytes(fn(&[u8]) -> Vec<u8>),
    /// Something else is in its place.
    Folder,
}

#[test]
fn a_record_that_does_not_read_is_quarantined_told_once_and_known_again_when_repaired() {
    let flip = |record: &[u8]| {
        let mut record = record.to_vec();
        record[40] ^= 1;
        record
    };
    let newer = |record: &[u8]| {
        String::from_utf8_lossy(record).replace("{\"v\":1,", "{\"v\":2,").into_bytes()
    };
    for (name, damage, reason) in [
        ("flipped", Damage::Bytes(flip), "record"),
        ("cut", Damage::Bytes(|record| record[..700].to_vec()), "record"),
        ("empty", Damage::Bytes(|_| Vec::new()), "record"),
        ("newer", Damage::Bytes(newer), "later kennel"),
        ("folder", Damage::Folder, "record"),
    ] {
        let home = Home::new();
        let run = home.start(&["--slot", "s", "--", "sleep", "1000"]);
        let path = home.run_dir(&run).join("record");
        home.kill_daemon();
        let good = fs::read(&path).expect("it is there");
        let aside = home.path().join("aside");
        match &damage {
            Damage::Bytes(damage) => fs::write(&path, damage(&good)).expect("it can be written"),
            Damage::Folder => {
                fs::rename(&path, &aside).expect("it can be moved");
                fs::create_dir(&path).expect("it can be made");
            }
        }
        expect_quarantined(&home, &run, reason);
        home.kill_daemon();
        expect_quarantined(&home, &run, reason);
        assert_ne!(carriers_of(&run), Vec::<String>::new(), "{name}: nobody was touched");
        match damage {
            // In place: its keeper has it open.
            Damage::Bytes(_) => fs::write(&path, &good).expect("it can be written"),
            Damage::Folder => {
                fs::remove_dir(&path).expect("it is empty");
                fs::rename(&aside, &path).expect("it can be moved");
            }
        }
        let shown = in_state(&home, &run, "running");
        assert_eq!(shown["stuck_because"], Value::Null, "{name}: {shown}");
        let said = home.kennel(&["stop", "s"]);
        assert_eq!(said.code, 0, "{name}: {said:?}");
        assert_eq!(told(&home, &run, "stuck"), 1, "{name}");
        home.check();
    }
}

#[test]
fn a_run_that_is_quarantined_can_be_stopped_if_its_keeper_lives() {
    let home = Home::new();
    let run = home.start(&["--slot", "s", "--", "sleep", "1000"]);
    let path = home.run_dir(&run).join("record");
    home.kill_daemon();
    let good = fs::read(&path).expect("it is there");
    let mut bad = good.clone();
    bad[40] ^= 1;
    fs::write(&path, &bad).expect("it can be written");
    expect_quarantined(&home, &run, "record");
    // The keeper takes the stop; that it worked cannot be proven by a record that does not read.
    let said = home.kennel(&["kill", &run]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("stuck"), "{said:?}");
    until("the agent is gone", || carriers_of(&run).is_empty().then_some(()));
    let now = fs::read(&path).expect("it is there");
    assert_eq!(&now[..good.len().min(100)], &bad[..100], "nobody repaired it");
    let mut repaired = now;
    repaired[40] ^= 1;
    fs::write(&path, repaired).expect("it can be written");
    let shown = in_state(&home, &run, "dead");
    assert_eq!(shown["end"]["cause"], "killed", "{shown}");
    home.check();
}

/// A run that the store has never heard of, in the home's own directory.
fn start_beside(home: &Home, id: &str) -> (RunId, PathBuf) {
    let run = RunId::new(id).expect("it is an id");
    let mut spec = Spec::new(run.clone(), "sleep");
    spec.args = vec!["1000".into()];
    spec.cwd = Some(home.work());
    let dir = home.run_dir(id);
    let keeper = KeeperProgram::new(env!("CARGO_BIN_EXE_kennel"));
    drop(kennel_process::start_with(&spec, &dir, &keeper).expect("it starts"));
    (run, dir)
}

#[test]
fn a_run_that_nobody_knows_is_taken_in_and_leftovers_go_only_when_told() {
    let home = Home::new();
    home.ok(&["ps"]);
    let (early, _) = start_beside(&home, &format!("early-{}", std::process::id()));
    home.ok(&["down"]);
    let shown = in_state(&home, early.as_str(), "running");
    assert_eq!(shown["slot"], early.as_str(), "{shown}");

    // One that came while the daemon was up is named, and taken in when somebody says so.
    let (late, _) = start_beside(&home, &format!("late-{}", std::process::id()));
    let said = home.kennel(&["--json", "doctor"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains(&format!("run {late} is there")), "{said:?}");
    assert_eq!(home.kennel(&["show", late.as_str()]).code, 3);
    home.ok(&["doctor", "--fix"]);
    in_state(&home, late.as_str(), "running");

    // The directory of a run that is over and that the store does not know: named, and kept.
    let (over, dir) = start_beside(&home, &format!("over-{}", std::process::id()));
    let mut keeper = kennel_process::Connection::open(&dir).expect("it lives");
    keeper.kill().expect("it can be killed");
    drop(keeper.wait_end(super::home::SOON));
    until("it is gone", || carriers_of(over.as_str()).is_empty().then_some(()));
    let leftover = format!("the directory of run {over}, which is over, is nobody's");
    let findings = |args: &[&str]| home.kennel(&[&["--json"], args].concat()).out;
    until("its keeper has left", || findings(&["doctor"]).contains(&leftover).then_some(()));
    home.kill_daemon();
    assert!(findings(&["doctor"]).contains(&leftover), "a restart removes nothing");
    assert!(dir.exists());
    assert!(findings(&["doctor", "--fix"]).contains(&leftover));
    assert!(!dir.exists());
    assert!(!findings(&["doctor"]).contains(&leftover));
    assert_eq!(home.kennel(&["stop", early.as_str(), late.as_str()]).code, 0);
    home.check();
}
