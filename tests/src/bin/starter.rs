//! Starts runs from a process of its own, for tests that need another user or other surroundings.
//!
//! `starter run DIR ID PROGRAM ARG...` runs a program to its end; `starter whole` goes once through
//! starting, stopping, proving and adopting; `starter connect DIR` tries to talk to a keeper;
//! `starter look PATH` does nothing if it can read the file. Fails by panicking.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use kennel_process::{
    Adopted, Containment, Evidence, ExitStatus, KeeperProgram, RunId, Spec, adopt,
};
use kennel_tests::{LONG, Scratch, end_of, proof_of, stop_and_expect, wait_for};

fn main() -> ExitCode {
    if let Some(code) = kennel_process::keeper::enter() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["run", dir, id, program, ref rest @ ..] => run(dir, id, program, rest),
        ["whole"] => whole(),
        ["connect", dir] => connect(dir),
        ["look", path] => drop(File::open(path).expect("it can be read")),
        _ => panic!("no such use: {words:?}"),
    }
    ExitCode::SUCCESS
}

fn run(dir: &str, id: &str, program: &str, args: &[&str]) {
    let mut spec = Spec::new(RunId::new(id).expect("it is fit for an id"), program);
    spec.args = args.iter().map(Into::into).collect();
    let started = kennel_process::start(&spec, Path::new(dir));
    let mut run = started.unwrap_or_else(|e| panic!("it does not start: {e}"));
    assert_eq!(end_of(&mut run).status, ExitStatus::Exited(0));
}

/// Everything but a cgroup works for an ordinary user.
fn whole() {
    let keeper = KeeperProgram::default();
    let mut scratch = Scratch::new("ordinary");

    let spec = scratch.spec("stopped", "double_fork", &[]);
    scratch.add_bystanders(&spec);
    let mut run = scratch.try_start("stopped", &spec, &keeper).expect("it starts");
    let started = run.started.clone();
    wait_for(&scratch, "ready");
    wait_for(&scratch, "daemon");
    if started.containment != Containment::Cgroup {
        assert_eq!(started.containment, Containment::Subreaper);
        let because = started.containment_because.clone().expect("there is a reason");
        assert!(because.contains("cgroup") || because.contains("kennel-"), "{because}");
        assert_eq!(started.leaf, None);
    }
    let end = stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    assert_eq!(proof_of(&end).grade(), started.containment);
    assert!(proof_of(&end).rests_on().contains(&Evidence::NoDescendant));
    scratch.check_gone("stopped");
    match adopt(&scratch.run_dir("stopped")) {
        Ok(Adopted::Ended(again)) => assert_eq!(*again, end),
        other => panic!("{other:?}"),
    }

    // What the first run said is no word of the second.
    std::fs::remove_file(scratch.truth()).expect("the first one spoke");
    let spec = scratch.spec("adopted", "leaves_late", &["8", "1"]);
    drop(scratch.try_start("adopted", &spec, &keeper).expect("it starts"));
    wait_for(&scratch, "ready");
    match adopt(&scratch.run_dir("adopted")) {
        Ok(Adopted::Running { mut connection, .. }) => {
            connection.stop(Some(LONG)).expect("it can be stopped");
            let waited = connection.wait_end(LONG).expect("the keeper answers");
            let kennel_process::Waited::Ended(end) = waited else { panic!("{waited:?}") };
            assert_eq!(end.status, ExitStatus::Exited(8));
        }
        other => panic!("{other:?}"),
    }
    scratch.check_gone("adopted");
    say(&format!("containment {}", started.containment));
}

/// Says a valid greeting and reads the answer: a stranger must get none.
fn connect(dir: &str) {
    let hello = br#"{"id":1,"do":{"hello":{"protocol":1}}}"#;
    let mut stream = match UnixStream::connect(Path::new(dir).join("control")) {
        Ok(stream) => stream,
        Err(e) => return say(&format!("refused: {e}")),
    };
    let mut frame = (hello.len() as u32).to_le_bytes().to_vec();
    frame.push(0);
    frame.extend_from_slice(hello);
    let _ = stream.write_all(&frame);
    let mut answer = Vec::new();
    let _ = stream.set_read_timeout(Some(LONG));
    let _ = stream.read_to_end(&mut answer);
    say(&format!("answered: {:?}", String::from_utf8_lossy(&answer)));
}

/// Tells the test that started us.
fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").expect("the test listens");
}
