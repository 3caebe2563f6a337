//! Whoever connects a local socket is known by the run it is in, however it got there.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use kennel_process::{Containment, Peer, Run, Started};
use kennel_tests::{Scratch, agent, containments, end_of, until, wait_for};

/// A listening socket and runs that connect to it.
struct Door {
    scratch: Scratch,
    listener: UnixListener,
}

impl Door {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let listener = UnixListener::bind(scratch.path().join("door")).unwrap();
        Self { scratch, listener }
    }

    fn path(&self) -> String {
        self.scratch.path().join("door").to_str().unwrap().to_owned()
    }

    /// A run that connects in some way.
    fn run(&self, name: &str, how: &str, containment: Containment) -> (Run, UnixStream) {
        let mut spec = self.scratch.spec(name, "connects", &[&self.path(), how]);
        spec.containment = containment;
        let run = self.scratch.start(name, &spec);
        let (stream, _) = self.listener.accept().unwrap();
        (run, stream)
    }

    fn end(mut self, runs: Vec<(&str, Run)>) {
        for (name, mut run) in runs {
            run.connection.kill().unwrap();
            drop(end_of(&mut run));
            self.scratch.check_gone(name);
        }
    }
}

fn of(stream: &UnixStream, runs: &[&Started]) -> Result<Option<String>, String> {
    let found = Peer::of(stream)
        .and_then(|peer| Ok(peer.run_among(runs)?.map(|started| started.run.as_str().to_owned())));
    found.map_err(|e| e.to_string())
}

#[test]
fn a_process_is_known_by_its_run_whatever_became_of_its_parents() {
    for containment in containments() {
        for how in ["plain", "daemon", "deep", "forgets"] {
            let door = Door::new("peer");
            let (one, from_one) = door.run("one", how, containment);
            let (two, from_two) = door.run("two", how, containment);
            let both = [&one.started, &two.started];
            let label = format!("{containment} {how}");
            let (first, second) = (door.scratch.run_id("one"), door.scratch.run_id("two"));
            assert_eq!(of(&from_one, &both).unwrap().as_deref(), Some(first.as_str()), "{label}");
            assert_eq!(of(&from_two, &both).unwrap().as_deref(), Some(second.as_str()), "{label}");
            assert_eq!(of(&from_two, &[&one.started]), Ok(None), "{label}");
            let cookie = Peer::of(&from_one).unwrap().cookie().unwrap();
            let carried = (how != "forgets").then(|| first.as_str().as_bytes().to_vec());
            assert_eq!(cookie, carried, "{label}");
            door.end(vec![("one", one), ("two", two)]);
        }
    }
}

#[test]
fn with_a_group_alone_the_session_tells_and_who_left_it_has_its_cookie() {
    let door = Door::new("peer-group");
    let (one, from_one) = door.run("one", "plain", Containment::Group);
    let id = door.scratch.run_id("one");
    assert_eq!(of(&from_one, &[&one.started]).unwrap().as_deref(), Some(id.as_str()));
    let (two, from_two) = door.run("two", "daemon", Containment::Group);
    let peer = Peer::of(&from_two).unwrap();
    let cookie = door.scratch.run_id("two");
    assert_eq!(peer.cookie().unwrap().as_deref(), Some(cookie.as_str().as_bytes()));
    let daemon = until("it says who it is", || {
        let told = kennel_tests::numbers_after(&door.scratch, "connected");
        told.into_iter().find(|pid| *pid != one.started.leader.pid)
    });
    let held = kennel_process::Process::from_number(daemon).unwrap();
    held.signal(kennel_process::Signal::KILL).unwrap();
    until("it is gone", || held.has_ended().unwrap().then_some(()));
    assert!(peer.cookie().is_err(), "nothing is said of who has ended");
    door.end(vec![("one", one), ("two", two)]);
}

#[test]
fn nobody_is_taken_for_somebody_elses_process_and_who_is_gone_for_none() {
    for containment in containments() {
        let door = Door::new("peer-gone");
        let (one, from_one) = door.run("one", "handed", containment);
        wait_for(&door.scratch, "handed");
        // Kernels that hold the peer say that it is gone; its number alone might be another's.
        until("it has ended", || of(&from_one, &[&one.started]).is_err().then_some(()));
        let mut stranger = Command::new(agent("connects"))
            .args([&door.path(), "plain"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = door.listener.accept().unwrap();
        assert_eq!(of(&stream, &[&one.started]), Ok(None));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(of(&stream, &[&one.started]).is_err());
        door.end(vec![("one", one)]);
    }
}
