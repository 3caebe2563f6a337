//! What a run starts with, what goes into it, and what comes out: exactly, whole, and in order.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU16;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use kennel_process::{
    Chunk, Connection, ConnectionError, EnvBase, Event, ExitStatus, RefusalCode, Spec, Stdin,
    Stream, Streams, TerminalSize, Told, read_output,
};
use kennel_tests::{
    LONG, PATIENCE, Scratch, agent, both_streams, each, end_of, output_of, program, shown_by,
    shown_by_recording, stop_and_expect, test_keeper, until, wait_for,
};

const PIPE: Streams = Streams::Pipes { stdin: Stdin::Pipe };

/// Runs `shows` with these words to its end and gives what it showed.
fn shown(scratch: &mut Scratch, spec: &Spec) -> Vec<u8> {
    let mut run = scratch.start("run", spec);
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Exited(0));
    assert!(end.output.complete);
    scratch.check_gone("run");
    shown_by(&run)
}

fn size(rows: u16, cols: u16) -> TerminalSize {
    TerminalSize { rows: NonZeroU16::new(rows).unwrap(), cols: NonZeroU16::new(cols).unwrap() }
}

// What a run starts with.

#[test]
fn the_environment_is_exactly_what_was_said_and_the_cookie() {
    for base in [EnvBase::Clear, EnvBase::Inherit] {
        let mut scratch = Scratch::new("env");
        let mut spec = scratch.spec("run", "shows", &["env"]);
        spec.env.base = base;
        spec.env.set = vec![
            ("ADDED".into(), "one".into()),
            ("ADDED".into(), "two".into()),
            ("EMPTY".into(), "".into()),
            ("ODD".into(), OsString::from_vec(vec![b'a', 0xff, b'=', b'z'])),
            ("KENNEL_RUN".into(), "forged".into()),
        ];
        let keeper = test_keeper().env("KENNEL_OF_THE_KEEPER", "not for the run");
        let mut run = scratch.try_start("run", &spec, &keeper).unwrap();
        assert_eq!(end_of(&mut run).status, ExitStatus::Exited(0));
        let shown = output_of(run.dir(), Stream::Stdout);
        let mut seen = BTreeMap::new();
        for entry in shown.split(|b| *b == 0).filter(|e| !e.is_empty()) {
            let at = entry.iter().position(|b| *b == b'=').unwrap();
            let name = OsStr::from_bytes(&entry[..at]).to_owned();
            let value = OsStr::from_bytes(&entry[at + 1..]).to_owned();
            assert_eq!(seen.insert(name, value), None, "each name once");
        }
        let mut expected: BTreeMap<OsString, OsString> = match base {
            EnvBase::Clear => BTreeMap::new(),
            EnvBase::Inherit => std::env::vars_os().collect(),
        };
        expected.insert("ADDED".into(), "two".into());
        expected.insert("EMPTY".into(), "".into());
        expected.insert("ODD".into(), OsString::from_vec(vec![b'a', 0xff, b'=', b'z']));
        expected.insert("KENNEL_RUN".into(), spec.run.as_str().into());
        assert_eq!(seen, expected);
        scratch.check_gone("run");
    }
}

#[test]
fn a_run_starts_in_its_directory_or_in_its_starters() {
    for streams in both_streams() {
        let mut scratch = Scratch::new("cwd");
        let mut spec = scratch.spec("run", "shows", &["cwd"]);
        spec.streams = streams;
        let work = scratch.work().canonicalize().unwrap();
        assert_eq!(shown(&mut scratch, &spec), work.as_os_str().as_bytes());
        let mut scratch = Scratch::new("cwd");
        let mut spec = scratch.spec("run", "shows", &["cwd"]);
        spec.streams = streams;
        spec.cwd = None;
        let own = std::env::current_dir().unwrap();
        assert_eq!(shown(&mut scratch, &spec), own.as_os_str().as_bytes());
    }
}

#[test]
fn a_run_has_no_descriptor_but_its_three_streams() {
    for streams in both_streams().into_iter().chain([PIPE]) {
        let mut scratch = Scratch::new("fds");
        let mut spec = scratch.spec("run", "shows", &["fds"]);
        spec.streams = streams;
        let shown = shown(&mut scratch, &spec);
        let mut fds: Vec<&str> = str::from_utf8(&shown).unwrap().split_whitespace().collect();
        fds.sort_unstable();
        assert_eq!(fds, ["0", "1", "2"], "{streams:?}");
    }
}

#[test]
fn a_run_leads_a_session_a_group_and_its_terminal() {
    for (streams, expected) in both_streams().into_iter().zip(["1 1 0", "1 1 1"]) {
        let mut scratch = Scratch::new("ids");
        let mut spec = scratch.spec("run", "shows", &["ids"]);
        spec.streams = streams;
        assert_eq!(String::from_utf8(shown(&mut scratch, &spec)).unwrap(), expected);
    }
}

#[test]
fn nothing_of_a_rude_starter_reaches_the_run() {
    for (what, blocked) in [("signals", None), ("fds", Some("0 1 2 "))] {
        let (output, shown) = run_below_rude_parent("all-but-chld", what);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        match blocked {
            Some(expected) => assert_eq!(shown, expected),
            None => {
                let zero = "0".repeat(16);
                for name in ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"] {
                    let line = shown.lines().find(|l| l.starts_with(name)).unwrap();
                    assert_eq!(line, format!("{name}:\t{zero}"), "{shown}");
                }
            }
        }
    }
}

#[test]
fn a_starter_that_ignores_the_ends_of_its_children_can_start_runs() {
    let (output, shown) = run_below_rude_parent("all", "fds");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(shown, "0 1 2 ");
}

/// Has `shows` run by a starter that a rude parent launched.
fn run_below_rude_parent(rude: &str, what: &str) -> (std::process::Output, String) {
    let mut scratch = Scratch::new("rude");
    let dir = scratch.run_dir("run");
    let output = Command::new(agent("rude_parent"))
        .arg(rude)
        .args([program("starter").as_os_str(), "run".as_ref(), dir.as_os_str()])
        .arg(scratch.run_id("run").as_str())
        .arg(agent("shows"))
        .arg(what)
        .output()
        .unwrap();
    let shown = if dir.exists() { output_of(&dir, Stream::Stdout) } else { Vec::new() };
    scratch.check_gone("run");
    (output, String::from_utf8(shown).unwrap())
}

#[test]
fn arguments_arrive_as_they_were_whatever_their_size_and_bytes() {
    for streams in both_streams() {
        let mut scratch = Scratch::new("args");
        let mut spec = scratch.spec("run", "shows", &["args"]);
        // The kernel takes 128 KiB in one argument; a terminal would fold control characters.
        let big: Vec<u8> = (0..120 << 10).map(|n| b'A' + (n % 26) as u8).collect();
        let mut odd = vec![big, b"".to_vec(), b"a b\"'$`".to_vec()];
        if streams == (Streams::Pipes { stdin: Stdin::Closed }) {
            odd.push((1..=255).collect());
        }
        spec.args.extend(odd.iter().map(|a| OsString::from_vec(a.clone())));
        spec.streams = streams;
        let shown = shown(&mut scratch, &spec);
        let mut seen: Vec<Vec<u8>> = shown.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
        assert_eq!(seen.pop(), Some(Vec::new()), "each ends in a zero byte");
        assert_eq!(seen, odd);
    }
}

// What goes into a run.

#[test]
fn closed_input_is_at_its_end() {
    let mut scratch = Scratch::new("closed");
    let mut spec = scratch.spec("run", "shows", &[]);
    spec.program = "cat".into();
    spec.args.clear();
    let mut run = scratch.start("run", &spec);
    assert_eq!(end_of(&mut run).status, ExitStatus::Exited(0));
    assert_eq!(output_of(run.dir(), Stream::Stdout), b"");
    scratch.check_gone("run");
}

#[test]
fn a_run_without_input_refuses_it() {
    let mut scratch = Scratch::new("noinput");
    let mut run = scratch.start("run", &scratch.spec("run", "bystander", &[]));
    let dir = run.dir().to_owned();
    assert_eq!(refusal_of(&dir, |c| c.write(b"x")), RefusalCode::NoInput);
    assert_eq!(refusal_of(&dir, Connection::close_stdin), RefusalCode::NoInput);
    let resized = refusal_of(&dir, |c| c.resize(TerminalSize::default()));
    assert_eq!(resized, RefusalCode::NoTerminal);
    run.connection.kill().unwrap();
    end_of(&mut run);
    scratch.check_gone("run");
}

/// How the keeper of the run in this directory refuses.
fn refusal_of(
    dir: &Path,
    ask: impl FnOnce(&mut Connection) -> Result<(), ConnectionError>,
) -> RefusalCode {
    match ask(&mut Connection::open(dir).unwrap()) {
        Err(ConnectionError::Refused(refusal)) => refusal.code,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn what_is_written_to_the_input_arrives_whole_and_then_ends() {
    let mut scratch = Scratch::new("cat");
    let mut spec = scratch.spec("run", "shows", &[]);
    spec.program = "cat".into();
    spec.args.clear();
    spec.streams = PIPE;
    let mut run = scratch.start("run", &spec);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut written = 0;
    until("all of it is taken", || {
        // Within the bound of what waits; refused whole when it is full.
        let part = &bytes[written..bytes.len().min(written + (64 << 10))];
        match run.connection.write(part) {
            Ok(()) => written += part.len(),
            Err(ConnectionError::Refused(r)) => assert_eq!(r.code, RefusalCode::InputFull),
            Err(e) => panic!("{e}"),
        }
        (written == bytes.len()).then_some(())
    });
    run.connection.close_stdin().unwrap();
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Exited(0));
    assert!(output_of(run.dir(), Stream::Stdout) == bytes);
    scratch.check_gone("run");
}

#[test]
fn input_that_nobody_reads_is_refused_when_it_is_too_much() {
    each("bystander", &[], |scratch, label, mut spec| {
        if matches!(spec.streams, Streams::Pipes { .. }) {
            spec.streams = PIPE;
        }
        let mut run = scratch.start("run", &spec);
        let part = vec![b'x'; 64 << 10];
        let mut taken = 0;
        let refused = loop {
            match run.connection.write(&part) {
                Ok(()) => taken += part.len(),
                Err(e) => break e,
            }
            assert!(taken < 16 << 20, "{label}: there is no bound");
        };
        let full =
            matches!(&refused, ConnectionError::Refused(r) if r.code == RefusalCode::InputFull);
        assert!(full, "{label}: {refused}");
        assert!(taken >= part.len(), "{label}");
        stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    });
}

// What comes out of a run.

#[test]
fn the_two_outputs_are_kept_apart_and_byte_for_byte() {
    const BYTES: usize = 300_000;
    let mut scratch = Scratch::new("apart");
    let mut spec = scratch.spec("run", "pours", &[]);
    let script = r#""$0" 300000 binary 1; "$0" 300000 letters 2"#;
    spec.program = "sh".into();
    spec.args = vec!["-c".into(), script.into(), agent("pours").into()];
    let mut run = scratch.start("run", &spec);
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Exited(0));
    let (out, err) = (output_of(run.dir(), Stream::Stdout), output_of(run.dir(), Stream::Stderr));
    assert!(out.iter().enumerate().all(|(n, b)| usize::from(*b) == n % 251));
    assert!(err.iter().enumerate().all(|(n, b)| usize::from(*b - b'a') == n % 26));
    assert_eq!((out.len(), err.len()), (BYTES, BYTES));
    let totals = (end.output.stdout.written, end.output.stderr.written, end.output.complete);
    assert_eq!(totals, (BYTES as u64, BYTES as u64, true));
    scratch.check_gone("run");
}

#[test]
fn beyond_the_limit_head_and_tail_are_kept_and_the_gap_is_told() {
    const TOTAL: u64 = 1 << 20;
    const KEEP: u64 = 64 << 10;
    let mut scratch = Scratch::new("limit");
    let mut spec = scratch.spec("run", "pours", &[&TOTAL.to_string(), "binary"]);
    spec.keep_bytes = KEEP;
    let mut run = scratch.start("run", &spec);
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Exited(0));
    let (mut offset, mut kept, mut gaps) = (0, 0, Vec::new());
    while let Some(chunk) = read_output(run.dir(), Stream::Stdout, offset).unwrap() {
        match chunk {
            Chunk::Bytes { offset: at, bytes } => {
                assert_eq!(at, offset);
                let right = |(n, b): (usize, &u8)| u64::from(*b) == (at + n as u64) % 251;
                assert!(bytes.iter().enumerate().all(right), "bytes at {at} are not their own");
                kept += bytes.len() as u64;
                offset += bytes.len() as u64;
            }
            Chunk::Gap { from, to } => {
                assert_eq!(from, offset);
                gaps.push((from, to));
                offset = to;
            }
        }
    }
    assert_eq!(offset, TOTAL, "the last byte is the last byte");
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].0, KEEP / 2, "the head is kept");
    assert!(kept <= KEEP && kept > KEEP * 3 / 4, "{kept}");
    let totals = end.output.stdout;
    assert_eq!((totals.written, totals.lost), (TOTAL, 0));
    assert_eq!(totals.dropped, gaps[0].1 - gaps[0].0);
    scratch.check_gone("run");
}

#[test]
fn an_attached_client_follows_the_output_with_its_offsets() {
    let mut scratch = Scratch::new("attach");
    let mut spec = scratch.spec("run", "shows", &[]);
    spec.program = "cat".into();
    spec.args.clear();
    spec.streams = PIPE;
    let mut run = scratch.start("run", &spec);
    let mut first = Connection::open(run.dir()).unwrap();
    first.attach().unwrap();
    run.connection.write(b"hello ").unwrap();
    assert_eq!(follow(&mut first, 0, 6), b"hello ");
    // Who comes later begins where the stream stands.
    let mut second = Connection::open(run.dir()).unwrap();
    assert_eq!(second.attach().unwrap().output.stdout.written, 6);
    run.connection.write(b"world").unwrap();
    assert_eq!(follow(&mut second, 6, 5), b"world");
    assert_eq!(follow(&mut first, 6, 5), b"world");
    second.detach().unwrap();
    run.connection.write(b"!").unwrap();
    assert_eq!(follow(&mut first, 11, 1), b"!");
    run.connection.close_stdin().unwrap();
    end_of(&mut run);
    assert!(!matches!(second.next(LONG), Ok(Some(Told::Output { .. }))), "it detached");
    scratch.check_gone("run");
}

/// Reads `bytes` bytes of live output that must begin at `offset`.
fn follow(connection: &mut Connection, mut offset: u64, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        match connection.next(PATIENCE).unwrap() {
            Some(Told::Output { stream: Stream::Stdout, offset: at, bytes }) => {
                assert_eq!(at, offset);
                offset += bytes.len() as u64;
                all.extend(bytes);
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

#[test]
fn an_attached_client_that_does_not_read_costs_the_agent_nothing() {
    const BYTES: u64 = 32 << 20;
    let mut scratch = Scratch::new("slow");
    let script = format!(r#"read go; "$0" {BYTES} binary; exec "$1""#);
    let mut spec = scratch.spec("run", "pours", &[]);
    spec.program = "sh".into();
    spec.args = vec!["-c".into(), script.into(), agent("pours").into(), agent("bystander").into()];
    spec.streams = PIPE;
    let mut run = scratch.start("run", &spec);
    let mut slow = Connection::open(run.dir()).unwrap();
    slow.attach().unwrap();
    run.connection.write(b"go\n").unwrap();
    // The agent gets rid of all of it while nobody reads.
    wait_for(&scratch, "poured");
    until("the keeper has read all of it", || {
        (run.connection.status().unwrap().output.stdout.written == BYTES).then_some(())
    });
    // Whoever fell behind is told by how much, and loses nothing else.
    let (mut offset, mut skipped) = (0, 0);
    while offset < BYTES {
        match slow.next(PATIENCE).unwrap() {
            Some(Told::Output { offset: at, bytes, .. }) => {
                assert_eq!(at, offset);
                assert!(
                    bytes
                        .iter()
                        .enumerate()
                        .all(|(n, b)| { u64::from(*b) == (at + n as u64) % 251 })
                );
                offset += bytes.len() as u64;
            }
            Some(Told::Event(Event::Skipped { stream: Stream::Stdout, bytes })) => {
                skipped += bytes;
                offset += bytes;
            }
            other => panic!("at {offset}: {other:?}"),
        }
    }
    assert_eq!(offset, BYTES);
    assert!(skipped > 0, "there was a bound");
    stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    assert_eq!(output_of(run.dir(), Stream::Stdout).len() as u64, BYTES);
    scratch.check_gone("run");
}

#[test]
fn a_client_that_never_reads_does_not_hold_up_the_end() {
    const BYTES: u64 = 32 << 20;
    let mut scratch = Scratch::new("never");
    let spec = scratch.spec("run", "pours", &[&BYTES.to_string(), "binary"]);
    let mut run = scratch.start("run", &spec);
    let held: Vec<Connection> = (0..3).map_while(|_| attached(run.dir())).collect();
    let end = end_of(&mut run);
    assert_eq!((end.status, end.output.stdout.written), (ExitStatus::Exited(0), BYTES));
    scratch.check_gone("run");
    drop(held);
}

/// An attached connection, unless the run is over already.
fn attached(dir: &Path) -> Option<Connection> {
    let mut connection = Connection::open(dir).ok()?;
    connection.attach().ok()?;
    Some(connection)
}

// Terminals.

#[test]
fn a_terminal_has_the_size_that_was_said_and_tells_of_changes() {
    let mut scratch = Scratch::new("size");
    let mut spec = scratch.spec("run", "window", &[]);
    spec.streams = Streams::Terminal { size: size(33, 101) };
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "signal 0 size 33x101");
    run.connection.resize(size(50, 132)).unwrap();
    wait_for(&scratch, "signal 28 size 50x132");
    stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    let recording = String::from_utf8(output_of(run.dir(), Stream::Terminal)).unwrap();
    assert!(recording.contains(r#""width":101"#) && recording.contains(r#""height":33"#));
    assert!(recording.contains(r#""r","132x50""#), "{recording}");
    scratch.check_gone("run");
}

#[test]
fn a_terminal_echoes_its_input_and_ends_it() {
    let mut scratch = Scratch::new("echo");
    let mut spec = scratch.spec("run", "shows", &[]);
    spec.program = "cat".into();
    spec.args.clear();
    spec.streams = Streams::Terminal { size: size(24, 80) };
    let mut run = scratch.start("run", &spec);
    run.connection.write("häλlo\n".as_bytes()).unwrap();
    run.connection.close_stdin().unwrap();
    assert_eq!(end_of(&mut run).status, ExitStatus::Exited(0));
    assert_eq!(shown_by_recording(run.dir()), "häλlo\r\nhäλlo\r\n");
    scratch.check_gone("run");
}

#[test]
fn the_interrupt_character_reaches_the_agent_as_a_signal() {
    let mut scratch = Scratch::new("interrupt");
    let mut spec = scratch.spec("run", "bystander", &[]);
    spec.streams = Streams::Terminal { size: size(24, 80) };
    let mut run = scratch.start("run", &spec);
    run.connection.write(b"\x03").unwrap();
    let end = end_of(&mut run);
    let expected = (kennel_process::Cause::Exit, ExitStatus::Signaled(2));
    assert_eq!((end.cause, end.status), expected);
    scratch.check_gone("run");
}

#[test]
fn who_attaches_to_a_terminal_sees_its_screen_and_then_follows() {
    let mut scratch = Scratch::new("screen");
    let script = r#"printf 'gone\033[2J\033[3;5Hvisible'; "$0" drawn; read x
        printf ' later %s' "$x"
        "$0" later; exec "$1""#;
    let mut spec = scratch.spec("run", "says", &[]);
    spec.program = "sh".into();
    spec.args = vec!["-c".into(), script.into(), agent("says").into(), agent("bystander").into()];
    spec.streams = Streams::Terminal { size: size(10, 40) };
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "drawn");
    // What was written before is read before: the keeper may still have to get to it.
    let (mut client, offset, screen) = until("the keeper has seen the screen", || {
        let mut client = Connection::open(run.dir()).unwrap();
        client.attach().unwrap();
        match client.next(PATIENCE).unwrap() {
            Some(Told::Screen { offset, bytes }) => {
                let text = String::from_utf8(bytes).unwrap();
                text.contains("visible").then_some((client, offset, text))
            }
            other => panic!("the screen comes first: {other:?}"),
        }
    });
    assert!(!screen.contains("gone"), "{screen:?}");
    assert!(screen.contains("3;5H"), "it is where it was: {screen:?}");
    run.connection.write(b"word\n").unwrap();
    let (mut at, mut followed) = (offset, String::new());
    while !followed.contains("later word") {
        match client.next(PATIENCE).unwrap() {
            Some(Told::Output { stream: Stream::Terminal, offset, bytes }) => {
                assert_eq!(offset, at, "nothing between the screen and what follows");
                at += bytes.len() as u64;
                followed.push_str(str::from_utf8(&bytes).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    wait_for(&scratch, "later");
    stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    assert!(shown_by_recording(run.dir()).contains("gone\u{1b}[2J"), "it is all recorded");
    scratch.check_gone("run");
}

#[test]
fn a_terminal_passes_on_bytes_that_are_no_text() {
    let mut scratch = Scratch::new("odd");
    let mut spec = scratch.spec("run", "bystander", &[]);
    spec.program = "sh".into();
    spec.args = vec!["-c".into(), r"stty raw; printf 'a\377\200\303'; sleep 1000".into()];
    spec.streams = Streams::Terminal { size: size(10, 40) };
    let mut run = scratch.start("run", &spec);
    let status = |run: &mut kennel_process::Run| run.connection.status().unwrap();
    until("it is shown", || shown_by_recording(run.dir()).contains('a').then_some(()));
    assert_eq!(status(&mut run).exit, None);
    run.connection.kill().unwrap();
    let end = end_of(&mut run);
    assert_eq!(end.status, ExitStatus::Signaled(9));
    assert_eq!(shown_by_recording(run.dir()), "a\u{fffd}\u{fffd}\u{fffd}");
    scratch.check_gone("run");
}
