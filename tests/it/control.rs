//! The keeper's socket under abuse: whatever is said to it, by whomever and how many, the run and
//! its keeper go on, and one stop gives one end.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{fs, thread};

use kennel_process::{
    Adopted, Cause, Connection, ConnectionError, End, Event, ExitStatus, LimitReached, Liveness,
    Run, Signal, State, Told, adopt,
};
use kennel_tests::{
    LONG, PATIENCE, SHORT, Scratch, are_root, each, end_of, program, proof_of, skipped, until,
    wait_for,
};
use serde_json::Value;

const HELLO: &str = r#"{"id":1,"do":{"hello":{"protocol":1}}}"#;

/// A connection that says what it likes.
struct Raw(UnixStream);

impl Raw {
    fn open(dir: &Path) -> Self {
        let stream = UnixStream::connect(dir.join("control")).expect("the keeper listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends bytes; a keeper that has closed its end is no failure of the test.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    fn say(&mut self, json: &str) {
        self.send(&frame(0, json.as_bytes()));
    }

    /// The next answer; `None` once the keeper has closed the connection.
    fn hear(&mut self) -> Option<Value> {
        let mut header = [0_u8; 5];
        self.0.read_exact(&mut header).ok()?;
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).ok()?;
        assert_eq!(header[4], 0, "it is a message");
        Some(serde_json::from_slice(&payload).unwrap())
    }

    fn refused_with(&mut self, code: &str) {
        let answer = self.hear().expect("there is an answer");
        assert_eq!(answer["reply"]["result"]["Err"]["code"], code, "{answer}");
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

/// The run lives, and its keeper serves old and new connections.
#[track_caller]
fn check_served(run: &mut Run) {
    assert_eq!(run.connection.status().unwrap().state, State::Running);
    let mut again = Connection::open(run.dir()).unwrap();
    assert_eq!(again.status().unwrap().started, run.started);
}

// Abuse.

#[test]
fn garbage_is_refused_and_the_keeper_goes_on() {
    each("bystander", &[], |scratch, _, spec| {
        let mut run = scratch.start("run", &spec);
        let dir = run.dir().to_owned();
        // A frame of four gibibytes; the keeper must not wait for it, nor make room.
        let mut raw = Raw::open(&dir);
        raw.send(&[0xff, 0xff, 0xff, 0xff, 0]);
        raw.refused_with("unknown_request");
        assert_eq!(raw.hear(), None, "the connection is closed");
        // A kind nobody knows.
        let mut raw = Raw::open(&dir);
        raw.send(&frame(77, b"?"));
        raw.refused_with("unknown_request");
        // Input without its number, and output, which goes the other way.
        for (kind, payload) in [(1, &b"abc"[..]), (2, &[1; 16]), (3, &[0; 16])] {
            let mut raw = Raw::open(&dir);
            raw.say(HELLO);
            assert!(raw.hear().is_some());
            raw.send(&frame(kind, payload));
            raw.refused_with("unknown_request");
        }
        // Plain noise.
        let mut raw = Raw::open(&dir);
        let noise: Vec<u8> =
            (0..100_000_u32).map(|n| (n.wrapping_mul(n) % 253) as u8 | 1).collect();
        raw.send(&noise);
        while raw.hear().is_some() {}
        check_served(&mut run);
        run.connection.kill().unwrap();
        assert_eq!(end_of(&mut run).status, ExitStatus::Signaled(9));
    });
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_connection_goes_on() {
    let mut scratch = Scratch::new("requests");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let mut raw = Raw::open(run.dir());
    // Before the greeting nothing is done.
    for early in [
        r#"{"id":7,"do":"status"}"#,
        r#"{"id":7,"do":{"kill":{"cause":"killed"}}}"#,
        r#"{"id":7,"do":{"stop":{"cause":"stopped","grace_ms":0}}}"#,
    ] {
        raw.say(early);
        raw.refused_with("protocol");
    }
    raw.say(r#"{"id":1,"do":{"hello":{"protocol":0}}}"#);
    raw.refused_with("protocol");
    raw.say(HELLO);
    assert!(raw.hear().unwrap()["reply"]["result"]["Ok"]["hello"].is_object());
    for (wrong, code) in [
        (r#"{"id":8,"do":"dance"}"#, "unknown_request"),
        (r#"{"id":8,"do":{"stop":{"cause":"no such cause","grace_ms":1}}}"#, "unknown_request"),
        (r#"{"id":8,"do":{"stop":{"cause":"stopped","grace_ms":-1}}}"#, "unknown_request"),
        (r#"{"id":8,"do":{"signal":{"signal":0}}}"#, "bad_signal"),
        (r#"{"id":8,"do":{"signal":{"signal":65}}}"#, "bad_signal"),
        (r#"{"id":8,"do":{"resize":{"rows":0,"cols":80}}}"#, "unknown_request"),
        (r#"{"id":8"#, "unknown_request"),
        ("", "unknown_request"),
        ("\u{0}", "unknown_request"),
    ] {
        raw.say(wrong);
        raw.refused_with(code);
    }
    // A later kennel speaks a later protocol, and says more than we know.
    raw.say(r#"{"id":9,"do":{"hello":{"protocol":99}},"more":true}"#);
    assert_eq!(raw.hear().unwrap()["reply"]["result"]["Ok"]["hello"]["protocol"], 1);
    raw.say(r#"{"id":10,"do":"status"}"#);
    assert_eq!(raw.hear().unwrap()["reply"]["result"]["Ok"]["status"]["state"], "running");
    check_served(&mut run);
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn half_a_frame_and_a_closed_connection_harm_nobody() {
    let mut scratch = Scratch::new("half");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let hello = frame(0, HELLO.as_bytes());
    for cut in 0..hello.len() {
        Raw::open(run.dir()).send(&hello[..cut]);
    }
    let mut held: Vec<Raw> = (0..8).map(|_| Raw::open(run.dir())).collect();
    for raw in &mut held {
        raw.send(&hello[..hello.len() - 1]);
    }
    check_served(&mut run);
    // The rest may come as late as it likes.
    for raw in &mut held {
        raw.send(&hello[hello.len() - 1..]);
        assert!(raw.hear().is_some());
    }
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn forty_connections_do_not_lock_the_owner_out() {
    let mut scratch = Scratch::new("forty");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let mut held: Vec<Raw> = (0..40).map(|_| Raw::open(run.dir())).collect();
    let mut busy = 0;
    for raw in &mut held {
        raw.say(HELLO);
        let answer = raw.hear().unwrap_or_default();
        busy += u32::from(answer["reply"]["result"]["Err"]["code"] == "busy");
    }
    assert!(busy >= 8, "there is a bound: {busy}");
    assert_eq!(run.connection.status().unwrap().state, State::Running);
    drop(held);
    until("there is room again", || Connection::open(run.dir()).ok());
    check_served(&mut run);
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn a_client_that_asks_and_never_reads_is_let_go() {
    let mut scratch = Scratch::new("asks");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let mut raw = Raw::open(run.dir());
    raw.0.set_write_timeout(Some(PATIENCE)).unwrap();
    raw.say(HELLO);
    let many = frame(0, br#"{"id":2,"do":"status"}"#).repeat(1000);
    let mut sent = 0;
    while raw.0.write_all(&many).is_ok() {
        sent += 1000;
        assert!(sent < 1_000_000, "the keeper takes questions without end");
    }
    check_served(&mut run);
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn a_keeper_that_is_signalled_goes_on_and_takes_sigterm_for_a_stop() {
    each("leaves_late", &["17", "0"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let Liveness::Alive(keeper) = run.started.keeper.find() else { panic!("{label}") };
        for number in (1..=64).filter(|n| ![9, 15, 19].contains(n)) {
            keeper.signal(Signal::new(number).unwrap()).unwrap();
        }
        check_served(&mut run);
        keeper.signal(Signal::TERM).unwrap();
        let end = end_of(&mut run);
        let expected = (&Cause::Stopped, ExitStatus::Exited(17));
        assert_eq!((&end.cause, end.status), expected, "{label}");
        assert_eq!(proof_of(&end).effort().rounds, 0, "{label}");
    });
}

// Who may talk.

#[test]
fn the_socket_is_for_its_owner_alone() {
    let mut scratch = Scratch::new("owner");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&run.dir().join("control")), 0o600);
    assert_eq!(mode(run.dir()), 0o700);
    for entry in fs::read_dir(run.dir()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path) & 0o077, 0, "{} is for others too", path.display());
    }
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

#[test]
fn another_user_gets_no_answer_even_through_an_open_door() {
    let name = "another_user_gets_no_answer_even_through_an_open_door";
    if !are_root() {
        return skipped(name, "needs root");
    }
    let mut scratch = Scratch::new("nobody");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let nobody = || {
        let mut command = Command::new(program("starter"));
        command.arg("connect").arg(run.dir()).current_dir("/").uid(65534).gid(65534);
        command.output()
    };
    match nobody() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.starts_with("refused"), "{output:?}");
            for (path, mode) in [(run.dir().to_owned(), 0o755), (run.dir().join("control"), 0o666)]
            {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let said = String::from_utf8(nobody().unwrap().stdout).unwrap();
            assert_eq!(said, "answered: \"\"\n");
        }
        Err(e) => skipped(name, &format!("our programs are not for everybody: {e}")),
    }
    check_served(&mut run);
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

// One stop, one end.

#[test]
fn a_second_stop_only_shortens_and_the_first_cause_is_kept() {
    each("ignore_term", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let mut other = Connection::open(run.dir()).unwrap();
        other.watch().unwrap();
        let limit = limit(1);
        run.connection.stop_because(limit.clone(), Some(Duration::from_secs(3600))).unwrap();
        // Longer is not shorter.
        run.connection.stop(Some(Duration::from_secs(7200))).unwrap();
        let status = run.connection.status().unwrap();
        assert_eq!((status.state, status.cause), (State::Stopping, Some(limit.clone())), "{label}");
        let begun = Instant::now();
        run.connection.stop(Some(SHORT)).unwrap();
        let end = end_of(&mut run);
        assert!(begun.elapsed() < LONG, "{label}");
        assert_eq!((&end.cause, end.status), (&limit, ExitStatus::Signaled(9)), "{label}");
        let events = events_of(&mut other);
        let [Event::Stopping(cause), Event::Exited(status), Event::Ended(told)] = &events[..]
        else {
            panic!("{label}: {events:?}");
        };
        assert_eq!((cause, *status, &**told), (&limit, end.status, &end), "{label}");
        let mut recorded = facts(run.dir());
        recorded.retain(|fact| ["stopping", "exited", "ended"].contains(&fact.as_str()));
        assert_eq!(recorded, ["stopping", "exited", "ended"], "{label}");
    });
}

#[test]
fn ten_stops_and_a_natural_exit_at_once_give_one_end() {
    for round in 0..5 {
        each("leaves_late", &["13", "0"], |scratch, label, spec| {
            let mut run = scratch.start("run", &spec);
            wait_for(scratch, "ready");
            let barrier = Barrier::new(11);
            let ends: Vec<End> = thread::scope(|scope| {
                let stoppers: Vec<_> = (0..10)
                    .map(|n| {
                        let mut connection = Connection::open(run.dir()).unwrap();
                        let barrier = &barrier;
                        scope.spawn(move || {
                            barrier.wait();
                            connection.stop_because(limit(n), Some(LONG)).unwrap();
                            match connection.wait_end(PATIENCE) {
                                Ok(kennel_process::Waited::Ended(end)) => *end,
                                other => panic!("{other:?}"),
                            }
                        })
                    })
                    .collect();
                barrier.wait();
                // It exits by itself on this signal, whoever sends it.
                let _ = run.leader.signal(Signal::TERM);
                stoppers.into_iter().map(|s| s.join().unwrap()).collect()
            });
            let end = end_of(&mut run);
            assert_eq!(end.status, ExitStatus::Exited(13), "{label}, {round}");
            assert!(ends.iter().all(|e| *e == end), "{label}, {round}: {ends:?}");
            let facts = facts(run.dir());
            let count = |name: &str| facts.iter().filter(|f| *f == name).count();
            assert_eq!((count("exited"), count("ended")), (1, 1), "{label}: {facts:?}");
            match &end.cause {
                Cause::Exit => assert_eq!(count("stopping"), 0, "{label}: {facts:?}"),
                Cause::Limit(_) => {
                    assert_eq!(count("stopping"), 1, "{label}: {facts:?}");
                    assert_eq!(recorded_cause(run.dir()), limit_name(&end.cause), "{label}");
                }
                other @ (Cause::Stopped
                | Cause::Killed
                | Cause::Oom(_)
                | Cause::Lost
                | Cause::NeverStarted) => {
                    panic!("{label}: {other:?}");
                }
            }
        });
    }
}

#[test]
fn after_the_end_every_question_has_an_answer() {
    each("leaves_late", &["0", "0"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let mut books = Connection::open(run.dir()).unwrap();
        books.watch_and_ack().unwrap();
        run.connection.stop(Some(LONG)).unwrap();
        let end = end_of(&mut run);
        assert_eq!(proof_of(&end).leader(), ExitStatus::Exited(0), "{label}");
        // The keeper waits for whoever keeps the books, and answers meanwhile.
        let status = run.connection.status().unwrap();
        assert_eq!((status.state, status.end.as_ref()), (State::Ended, Some(&end)), "{label}");
        run.connection.stop(Some(LONG)).unwrap();
        run.connection.kill().unwrap();
        let gone = run.connection.signal(Signal::USR1).unwrap_err();
        assert!(matches!(gone, ConnectionError::Refused(_)), "{label}: {gone}");
        assert!(matches!(adopt(run.dir()), Ok(Adopted::Ended(again)) if *again == end), "{label}");
        let events = events_of(&mut books);
        assert!(matches!(events.last(), Some(Event::Ended(e)) if **e == end), "{label}");
        books.ack().unwrap();
        scratch.check_gone("run");
        // It has left; the record answers.
        run.connection.stop(Some(LONG)).unwrap();
        run.connection.kill().unwrap();
        assert_eq!(end_of(&mut run), end, "{label}");
        let nobody = Connection::open(run.dir()).unwrap_err();
        assert!(matches!(nobody, ConnectionError::NoKeeper(_)), "{label}: {nobody}");
        assert!(matches!(adopt(run.dir()), Ok(Adopted::Ended(again)) if *again == end), "{label}");
    });
}

fn limit(n: u32) -> Cause {
    Cause::Limit(LimitReached { kind: format!("limit-{n}"), used: f64::from(n), max: 1.0 })
}

fn limit_name(cause: &Cause) -> Option<String> {
    match cause {
        Cause::Limit(limit) => Some(limit.kind.clone()),
        Cause::Exit | Cause::Stopped | Cause::Killed | Cause::Oom(_) => None,
        Cause::Lost | Cause::NeverStarted => None,
    }
}

/// The events a watcher is told up to the end.
fn events_of(connection: &mut Connection) -> Vec<Event> {
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Ended(_))) {
        match connection.next(PATIENCE).unwrap() {
            Some(Told::Event(event)) => events.push(event),
            other => panic!("{other:?} after {events:?}"),
        }
    }
    events
}

/// The record's lines, as a reader of the file finds them.
fn lines(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("record")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The names of the recorded facts, in their order.
fn facts(dir: &Path) -> Vec<String> {
    let name = |line: &Value| line["fact"].as_object().unwrap().keys().next().cloned();
    lines(dir).iter().filter_map(name).collect()
}

/// The limit that the recorded stop names.
fn recorded_cause(dir: &Path) -> Option<String> {
    let lines = lines(dir);
    let stopping = lines.iter().map(|l| &l["fact"]["stopping"]).find(|s| s.is_object())?;
    stopping["cause"]["limit"]["kind"].as_str().map(str::to_owned)
}
