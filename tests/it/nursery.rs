//! The nursery: the process keepers are forked from. Nothing of a run depends on it.

use std::fs;

use kennel_process::{KeeperProgram, Process, Signal};
use kennel_tests::{Scratch, end_of, test_keeper, until};

/// A keeper program whose processes can be told from those of all other tests.
fn marked(scratch: &Scratch) -> KeeperProgram {
    test_keeper().env("KENNEL_TEST_MARK", scratch.path())
}

/// The nurseries of a marked program.
fn nurseries(scratch: &Scratch) -> Vec<u32> {
    let mark = format!("KENNEL_TEST_MARK={}", scratch.path().display());
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let fits = |number: &u32| {
        let name = fs::read(format!("/proc/{number}/comm")).unwrap_or_default();
        let env = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        name == b"kennel-nursery\n" && env.split(|b| *b == 0).any(|e| e == mark.as_bytes())
    };
    numbers.filter(fits).collect()
}

#[test]
fn the_keepers_of_a_starter_come_from_one_nursery_and_outlive_it() {
    let mut scratch = Scratch::new("nursery");
    let program = marked(&scratch);
    let names = ["one", "two", "three"];
    let mut runs: Vec<_> = names
        .map(|name| {
            let spec = scratch.spec(name, "crash_quiet", &[]);
            scratch.try_start(name, &spec, &program.clone()).expect("it starts")
        })
        .into_iter()
        .collect();
    let nursery = nurseries(&scratch);
    assert_eq!(nursery.len(), 1, "{nursery:?}");
    let below = format!("/proc/{0}/task/{0}/children", nursery[0]);
    assert_eq!(fs::read_to_string(below).expect("it lives"), "", "a nursery has no children");
    drop(program);
    until("the nursery leaves with its program", || nurseries(&scratch).is_empty().then_some(()));
    for (run, name) in runs.iter_mut().zip(names) {
        let _ = run.connection.status().expect("its keeper goes on");
        run.connection.kill().expect("it can be killed");
        let _ = end_of(run);
        scratch.check_gone(name);
    }
}

#[test]
fn a_nursery_that_was_killed_is_replaced_by_the_next_start() {
    let mut scratch = Scratch::new("nursery-killed");
    let program = marked(&scratch);
    let spec = scratch.spec("before", "crash_quiet", &[]);
    let mut before = scratch.try_start("before", &spec, &program).expect("it starts");
    let killed = nurseries(&scratch)[0];
    let nursery = Process::from_number(killed).expect("it waits for work");
    nursery.signal(Signal::KILL).expect("it is ours");
    until("it has ended", || nursery.has_ended().expect("it is held").then_some(()));
    let spec = scratch.spec("after", "crash_quiet", &[]);
    let mut after = scratch.try_start("after", &spec, &program).expect("it starts");
    let replaced = nurseries(&scratch);
    assert!(replaced.len() == 1 && replaced[0] != killed, "{replaced:?}");
    for (run, name) in [(&mut before, "before"), (&mut after, "after")] {
        run.connection.kill().expect("it can be killed");
        let _ = end_of(run);
        scratch.check_gone(name);
    }
}
