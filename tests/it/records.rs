//! Records and messages that outlive their writer: of an earlier kennel, of a later one, of another
//! boot, damaged, or not ours to read. None of them is ever read as "nothing there".

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kennel_process::{
    Adopted, Cause, End, Evidence, ExitStatus, ReadError, Signal, Started, Swept, UnknownStatus,
    Verdict, adopt,
};
use kennel_tests::{
    Family, Scratch, are_root, end_of, program, proof_of, skipped, test_keeper_path, until,
    wait_for,
};

/// A copy of a record that the first version wrote: adopting may add to a run's directory.
fn fixture(scratch: &Scratch, name: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/records/v1").join(name);
    let record = fs::read(from.join("record")).expect("it is checked in");
    directory_with(scratch, name, &record)
}

fn directory_with(scratch: &Scratch, name: &str, record: &[u8]) -> PathBuf {
    let dir = scratch.run_dir(name);
    fs::create_dir_all(&dir).expect("it can be made");
    fs::write(dir.join("record"), record).expect("it can be written");
    dir
}

fn ended(dir: &Path) -> End {
    match adopt(dir) {
        Ok(Adopted::Ended(end)) => *end,
        other => panic!("{}: {other:?}", dir.display()),
    }
}

#[test]
fn every_record_of_version_1_is_read_for_ever() {
    let scratch = Scratch::new("v1");
    let reboot = ExitStatus::Unknown(UnknownStatus::Reboot);
    // What was written is of a boot that is not this one: nothing outlives a boot, and what the
    // keeper had recorded before it stays true.
    for (name, status, cause) in [
        ("gated", reboot, Cause::Lost),
        ("running", reboot, Cause::Lost),
        ("stopping", reboot, Cause::Stopped),
        ("exited", ExitStatus::Exited(7), Cause::Exit),
        ("ended", ExitStatus::Exited(7), Cause::Exit),
        ("stopped", ExitStatus::Signaled(15), Cause::Stopped),
    ] {
        let end = ended(&fixture(&scratch, name));
        assert_eq!((end.status, &end.cause), (status, &cause), "{name}");
        let by_reboot = proof_of(&end).rests_on() == [Evidence::Reboot];
        assert_eq!(by_reboot, !matches!(name, "ended" | "stopped"), "{name}: {end:?}");
    }
}

#[test]
fn a_record_of_a_later_version_is_unreadable_and_says_so() {
    let scratch = Scratch::new("later");
    for name in ["running", "ended"] {
        let dir = fixture(&scratch, name);
        let text = fs::read_to_string(dir.join("record")).expect("it is text");
        fs::write(dir.join("record"), text.replace("{\"v\":1,", "{\"v\":2,")).expect("it writes");
        match adopt(&dir) {
            Ok(Adopted::Unreadable(e @ ReadError::Newer(_, 2))) => {
                assert!(e.to_string().contains("later kennel"), "{e}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_fact_added_by_a_later_kennel_of_the_same_version_spoils_nothing() {
    let scratch = Scratch::new("field");
    let dir = fixture(&scratch, "ended");
    let text = fs::read_to_string(dir.join("record")).expect("it is text");
    let mut changed = String::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let (_, fact) = line.split_once("\"fact\":").expect("every line has one");
        let fact = fact.strip_suffix('}').expect("and ends after it");
        let fact = fact.replacen("\":{", "\":{\"colour\":\"blue\",", 1);
        let crc = crc32fast::hash(fact.as_bytes());
        changed.push_str(&format!("{{\"v\":1,\"crc\":{crc},\"fact\":{fact}}}\n"));
    }
    let before = ended(&dir);
    fs::write(dir.join("record"), format!("{changed:<32768}")).expect("it writes");
    assert_eq!(ended(&dir), before);
}

/// A record of this boot, the facts it holds, and what may be said if the last of them are lost.
struct Sample {
    record: Vec<u8>,
    started: Started,
    end: Option<End>,
}

impl Sample {
    /// The record of a run that ended by itself.
    fn ended() -> Self {
        let scratch = Scratch::new("sample");
        let mut run = scratch.start("run", &scratch.spec("run", "crash_exit7", &[]));
        let end = end_of(&mut run);
        let record = fs::read(run.dir().join("record")).expect("it is there");
        Self { record, started: run.started, end: Some(end) }
    }

    /// The record of a run whose keeper was killed while the agent ran.
    fn orphaned() -> Self {
        let scratch = Scratch::new("sample");
        let dir = scratch.run_dir("run");
        let spec = scratch.spec("run", "crash_quiet", &[]);
        let mut family = Family::start(&spec, &dir, "start.told=kill@1");
        until("the keeper is gone", || {
            (family.word("started").is_some() && family.keeper().is_none()).then_some(())
        });
        let record = fs::read(dir.join("record")).expect("it is there");
        let Ok(Adopted::Orphaned(mut orphan)) = adopt(&dir) else { panic!("it is an orphan") };
        let started = orphan.started().clone();
        let Ok(Swept::Ended(end)) = orphan.kill() else { panic!("it can be swept") };
        if let Verdict::Lost(lost) = &end.verdict {
            assert_eq!(lost.suspects, []);
        }
        drop(orphan);
        family.await_end();
        Self { record, started, end: None }
    }

    /// Where each line ends.
    fn line_ends(&self) -> Vec<usize> {
        let ends = self.record.iter().enumerate().filter(|(_, b)| **b == b'\n');
        ends.map(|(at, _)| at + 1).collect()
    }

    /// A damaged record is unreadable, or what is left of it is true.
    fn expect_truth(&self, scratch: &Scratch, what: &str, damaged: &[u8]) {
        let dir = directory_with(scratch, "damaged", damaged);
        match adopt(&dir) {
            Ok(Adopted::Unreadable(_)) => {}
            Ok(Adopted::Ended(end)) => assert_eq!(Some(&*end), self.end.as_ref(), "{what}"),
            Ok(Adopted::Orphaned(orphan)) => assert_eq!(orphan.started(), &self.started, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
        let _ = fs::remove_dir_all(&dir);
    }
}

#[test]
fn a_flipped_byte_anywhere_is_never_read_as_nothing_there() {
    let scratch = Scratch::new("flipped");
    for sample in [Sample::ended(), Sample::orphaned()] {
        let written = *sample.line_ends().last().expect("it has lines");
        for at in (0..written).step_by(7) {
            for byte in [sample.record[at] ^ 1, 0, 0xff, b'\n', b' '] {
                let mut damaged = sample.record.clone();
                damaged[at] = byte;
                let what = format!("byte {at} is {byte:#x} instead of {:#x}", sample.record[at]);
                sample.expect_truth(&scratch, &what, &damaged);
            }
        }
    }
}

#[test]
fn a_record_torn_anywhere_is_never_read_as_nothing_there() {
    let scratch = Scratch::new("torn");
    for sample in [Sample::ended(), Sample::orphaned()] {
        let ends = sample.line_ends();
        let written = *ends.last().expect("it has lines");
        for cut in (0..written).filter(|cut| cut % 7 == 0 || ends.contains(&(cut + 1))) {
            // The blank reserve is there, the text is not all there. At the very end of a line this
            // is what a record looks like before the next fact is written.
            if !ends.contains(&cut) {
                let mut torn = sample.record[..cut].to_vec();
                torn.resize(sample.record.len(), b' ');
                if cut > 0 {
                    sample.expect_truth(&scratch, &format!("blank from {cut}"), &torn);
                }
            }
        }
    }
}

#[test]
fn a_record_cut_short_anywhere_is_never_read_as_nothing_there() {
    let scratch = Scratch::new("short");
    for sample in [Sample::ended(), Sample::orphaned()] {
        let ends = sample.line_ends();
        let written = *ends.last().expect("it has lines");
        let cuts = (0..written).filter(|cut| cut % 7 == 0 || ends.contains(cut));
        for cut in cuts.chain([written, sample.record.len() - 1]) {
            sample.expect_truth(&scratch, &format!("cut at {cut}"), &sample.record[..cut]);
        }
    }
}

#[test]
fn what_is_no_record_at_all_is_never_read_as_nothing_there() {
    let scratch = Scratch::new("garbage");
    for garbage in [&b""[..], b"\n", b"{}", b"{}\n", b"null\n", b"\0\0\0\0", &[b' '; 32 << 10]] {
        let dir = directory_with(&scratch, "garbage", garbage);
        let adopted = adopt(&dir);
        assert!(matches!(adopted, Ok(Adopted::Unreadable(_))), "{garbage:?}: {adopted:?}");
    }
    let dir = scratch.run_dir("folder");
    fs::create_dir_all(dir.join("record")).expect("it can be made");
    let adopted = adopt(&dir);
    assert!(matches!(adopted, Ok(Adopted::Unreadable(_))), "{adopted:?}");
    // A run whose directory is gone was not "never started" either.
    let adopted = adopt(&scratch.run_dir("nowhere"));
    assert!(matches!(adopted, Ok(Adopted::Unreadable(_)) | Err(_)), "{adopted:?}");
}

#[test]
fn somebody_elses_record_is_not_read_as_nothing_there() {
    const NOBODY: u32 = 65534;
    if !are_root() {
        return skipped("somebody_elses_record_is_not_read_as_nothing_there", "we are not root");
    }
    let scratch = Scratch::new("other");
    // The build's own directory may be closed to others.
    let adopter = scratch.path().join("adopter");
    // By another process: a file we hold open for writing may be inherited by what another test
    // starts at that moment, and cannot be executed meanwhile.
    let copy = Command::new("cp").arg(program("crash-starter")).arg(&adopter).status();
    assert!(copy.expect("it can be run").success());
    let may = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    may(&adopter, 0o755);
    let as_nobody = |dir: &Path| {
        let output = Command::new(&adopter)
            .args(["adopt".as_ref(), dir.as_os_str()])
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .output()
            .expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let record = Sample::orphaned().record;
    let dir = directory_with(&scratch, "run", &record);
    for (dir_mode, record_mode) in [(0o700, 0o600), (0o755, 0o600), (0o700, 0o644)] {
        may(&dir, dir_mode);
        may(&dir.join("record"), record_mode);
        let said = as_nobody(&dir);
        assert!(said.starts_with("unreadable "), "{dir_mode:o} {record_mode:o}: {said}");
    }
    // The record can be read and the lock cannot be taken: nobody may conclude anything.
    may(&dir, 0o755);
    may(&dir.join("record"), 0o644);
    let said = as_nobody(&dir);
    assert!(said.starts_with("error "), "{said}");
    // No record, and a directory in which nobody could have made one.
    fs::remove_file(dir.join("record")).expect("it is ours");
    let said = as_nobody(&dir);
    assert!(said.starts_with("error "), "{said}");
    assert!(!dir.join("never-started").exists());
}

// The protocol, byte for byte as version 1 has it.

fn frame(json: &str) -> Vec<u8> {
    let mut bytes = (json.len() as u32).to_le_bytes().to_vec();
    bytes.push(0);
    bytes.extend(json.as_bytes());
    bytes
}

fn next_frame(stream: &mut UnixStream) -> serde_json::Value {
    let mut header = [0; 5];
    stream.read_exact(&mut header).expect("the keeper answers");
    assert_eq!(header[4], 0, "a message");
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).expect("the keeper answers");
    serde_json::from_slice(&payload).expect("messages are JSON")
}

/// The answer to the request of this number; events before it are kept.
fn answer(
    stream: &mut UnixStream,
    id: u64,
    events: &mut Vec<serde_json::Value>,
) -> serde_json::Value {
    loop {
        let mut frame = next_frame(stream);
        if frame["reply"]["id"] == id {
            return frame["reply"]["result"].take();
        }
        events.push(frame["event"].take());
    }
}

#[test]
fn a_client_of_version_1_is_understood_for_ever() {
    let mut scratch = Scratch::new("client1");
    let dir = scratch.run_dir("run");
    fs::create_dir(&dir).expect("it can be made");
    // Started as version 1 starts a keeper: by its argument, a socket, and this message.
    let (mut starter, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut first = Command::new(test_keeper_path())
        .args(["keeper".as_ref(), dir.as_os_str()])
        .env_clear()
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let spec = serde_json::json!({
        "run": scratch.run_id("run").as_str(),
        "program": kennel_tests::agent("crash_quiet"),
        "args": [],
        "env": {"base": "clear", "set": [["TRUTH", scratch.truth()]]},
        "cwd": scratch.work(),
        "streams": {"pipes": {"stdin": "closed"}},
        "on_exit": "sweep",
        "ask": Signal::TERM.number(),
        "grace": {"secs": 10, "nanos": 0},
        "keep_bytes": 1 << 20,
        "containment": "cgroup",
    });
    let start = format!(r#"{{"id":1,"do":{{"start":{spec}}}}}"#);
    starter.write_all(&frame(&start)).expect("it listens");
    let mut events = Vec::new();
    let told = answer(&mut starter, 1, &mut events);
    assert_eq!(told["Ok"]["status"]["state"], "running", "{told}");
    first.wait().expect("we are its parent");
    wait_for(&scratch, "ready");

    let mut client = UnixStream::connect(dir.join("control")).expect("the keeper listens");
    let mut ask = |id: u64, what: &str, events: &mut Vec<_>| {
        let request = format!(r#"{{"id":{id},"do":{what}}}"#);
        client.write_all(&frame(&request)).expect("it listens");
        answer(&mut client, id, events)
    };
    let hello = ask(1, r#"{"hello":{"protocol":1}}"#, &mut events);
    assert_eq!(hello["Ok"]["hello"]["protocol"], 1, "{hello}");
    assert_eq!(hello["Ok"]["hello"]["run"], scratch.run_id("run").as_str());
    let status = ask(2, r#""status""#, &mut events);
    let started = &status["Ok"]["status"]["started"];
    assert!(started["leader"]["pid"].is_u64() && started["keeper"]["boot_id"].is_string());
    let unknown = ask(3, r#"{"dance":{}}"#, &mut events);
    assert_eq!(unknown["Err"]["code"], "unknown_request", "{unknown}");
    let _ = ask(4, r#"{"watch":{"ack":true}}"#, &mut events);
    let done = ask(5, r#"{"stop":{"cause":"stopped","grace_ms":5000}}"#, &mut events);
    assert_eq!(done["Ok"], "done", "{done}");
    while events.last().is_none_or(|e| e.get("ended").is_none()) {
        events.push(next_frame(&mut client)["event"].take());
    }
    let kinds: Vec<&String> = events.iter().filter_map(|e| e.as_object()?.keys().next()).collect();
    assert_eq!(kinds, ["stopping", "exited", "ended"]);
    let end = &events.last().expect("the last is the end")["ended"];
    assert_eq!(end["status"]["signaled"], 15, "{end}");
    assert_eq!(end["cause"], "stopped", "{end}");
    assert!(end["verdict"]["dead"]["rests_on"].is_array(), "{end}");
    client.write_all(&frame(r#"{"id":6,"do":"ack"}"#)).expect("it listens");
    scratch.check_gone("run");
}
