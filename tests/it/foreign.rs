//! Processes we did not start: stopped by identity, with what is below them if that was asked, and
//! nobody else.

use std::fs;
use std::process::{Child, Command, Stdio};

use kennel_process::{
    HoldError, Process, Signal, StrangerError, descendants, find_by_command_line, stop_process,
    stop_tree,
};
use kennel_tests::{LONG, SHORT, Scratch, agent, numbers_after, until};

/// A family of four, each member held open, with the parent first.
struct Family {
    parent: Child,
    members: Vec<Process>,
}

fn family(scratch: &Scratch, kind: &str) -> Family {
    let parent = Command::new(agent("family"))
        .arg(kind)
        .env("TRUTH", scratch.truth())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut numbers = until("the family is complete", || {
        Some(numbers_after(scratch, "member")).filter(|n| n.len() == 4)
    });
    numbers.sort_by_key(|n| *n != parent.id());
    let members = numbers.iter().map(|n| Process::from_number(*n).unwrap()).collect();
    Family { parent, members }
}

impl Family {
    fn living(&self) -> usize {
        self.members.iter().filter(|m| !m.has_ended().unwrap()).count()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = member.signal(Signal::KILL);
        }
        let _ = self.parent.wait();
    }
}

fn hold(child: &Child) -> Process {
    Process::from_number(child.id()).unwrap()
}

#[test]
fn one_process_is_stopped_and_its_children_are_left_alone() {
    let mut scratch = Scratch::new("one");
    let spec = scratch.spec("run", "family", &["gentle"]);
    scratch.add_bystanders(&spec);
    let family = family(&scratch, "gentle");
    let stopped = stop_process(hold(&family.parent), LONG).unwrap();
    assert_eq!(stopped.ended, [family.members[0].identity().clone()]);
    assert!(stopped.survivors.is_empty() && !stopped.forced, "{stopped:?}");
    assert_eq!(family.living(), 3);
    scratch.check_bystanders();
}

#[test]
fn a_tree_is_stopped_with_all_its_members_and_nobody_else() {
    for (kind, grace, forced) in [("gentle", LONG, false), ("deaf", SHORT, true)] {
        let mut scratch = Scratch::new("tree");
        let spec = scratch.spec("run", "family", &[kind]);
        scratch.add_bystanders(&spec);
        let family = family(&scratch, kind);
        let below = descendants(&family.members[0]);
        assert_eq!(below.len(), 3, "{kind}");
        for member in &family.members[1..] {
            assert!(below.iter().any(|b| b.identity() == member.identity()), "{kind}");
        }
        let stopped = stop_tree(hold(&family.parent), grace).unwrap();
        assert_eq!(stopped.ended.len(), 4, "{kind}: {stopped:?}");
        assert!(stopped.survivors.is_empty(), "{kind}: {stopped:?}");
        assert_eq!(stopped.forced, forced, "{kind}: {stopped:?}");
        assert_eq!(family.living(), 0, "{kind}");
        scratch.check_bystanders();
    }
}

#[test]
fn a_process_that_is_deaf_or_stands_still_is_stopped_all_the_same() {
    for (name, word, forced) in [("ignore_term", "ready", true), ("stands_still", "ready", false)] {
        let scratch = Scratch::new("deaf");
        let mut child = Command::new(agent(name)).env("TRUTH", scratch.truth()).spawn().unwrap();
        kennel_tests::wait_for(&scratch, word);
        if name == "stands_still" {
            until("it stands still", || {
                (kennel_tests::state_of(child.id()) == Some('T')).then_some(())
            });
        }
        let grace = if forced { SHORT } else { LONG };
        let stopped = stop_process(hold(&child), grace).unwrap();
        assert_eq!((stopped.ended.len(), stopped.forced), (1, forced), "{name}: {stopped:?}");
        assert!(stopped.survivors.is_empty(), "{name}: {stopped:?}");
        child.wait().unwrap();
    }
}

#[test]
fn a_process_that_has_ended_is_stopped_already() {
    let mut child = Command::new(agent("exits_with")).arg("0").spawn().unwrap();
    let held = hold(&child);
    until("it has ended", || held.has_ended().unwrap().then_some(()));
    let stopped = stop_tree(held, LONG).unwrap();
    assert_eq!((stopped.ended.len(), stopped.survivors.len()), (1, 0));
    child.wait().unwrap();
}

#[test]
fn nobody_stops_init_itself_or_what_it_runs_under() {
    for pid in [0, 1, std::process::id()] {
        assert!(matches!(Process::from_number(pid), Err(HoldError::NotAllowed(_))), "{pid}");
    }
    let mut ancestor = std::os::unix::process::parent_id();
    let mut seen = 0;
    while ancestor > 1 {
        for stop in [stop_process, stop_tree] {
            match stop(Process::from_number(ancestor).unwrap(), LONG) {
                Err(StrangerError::OurAncestor(pid)) => assert_eq!(pid, ancestor),
                other => panic!("{other:?}"),
            }
        }
        seen += 1;
        let stat = fs::read_to_string(format!("/proc/{ancestor}/stat")).unwrap();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        ancestor = parent.and_then(|p| p.parse().ok()).unwrap();
    }
    if seen == 0 {
        kennel_tests::skipped("nobody_stops_what_it_runs_under", "our parent is init");
    }
}

#[test]
fn there_is_no_hold_on_a_number_nobody_has() {
    let mut child = Command::new(agent("exits_with")).spawn().unwrap();
    let held = hold(&child);
    child.wait().unwrap();
    let gone = held.signal(Signal::TERM).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    assert!(descendants(&held).is_empty());
}

#[test]
fn finding_by_command_line_lists_and_touches_nobody() {
    let mut scratch = Scratch::new("find");
    let mark = scratch.path().join("mark").to_str().unwrap().to_owned();
    let spec = scratch.spec("run", "bystander", &[&mark]);
    scratch.add_bystanders(&spec);
    let found = until("it is listed", || {
        let found = find_by_command_line(&mark).unwrap();
        (!found.is_empty()).then_some(found)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].command_line.ends_with(&mark), "{found:?}");
    assert!(matches!(found[0].identity.find(), kennel_process::Liveness::Alive(_)));
    assert!(find_by_command_line("no such words in any command line").unwrap().is_empty());
    scratch.check_bystanders();
}
