//! No bystander is ever touched: not by a number that was used again, and not by a likeness.
//!
//! The forced reuse of numbers happens in a pid namespace, where the helper `reuse` is alone.
//! Beside it, every test of [`survive`](crate::survive) runs among bystanders that look like its
//! run.

use std::process::{Command, Output};

use kennel_process::{Cause, ExitStatus};
use kennel_tests::{LONG, Scratch, are_root, program, skipped, stop_and_expect, wait_for};

/// Runs a check of the helper in a pid namespace of its own.
fn in_namespace(check: &str) -> std::io::Result<Output> {
    let mut command = Command::new("unshare");
    if !are_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(program("reuse")).arg(check).output()
}

#[track_caller]
fn check_in_namespace(name: &str, check: &str) {
    match in_namespace("probe") {
        Ok(output) if output.status.success() => {}
        other => return skipped(name, &format!("no pid namespace to be had: {other:?}")),
    }
    let output = in_namespace(check).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

#[test]
fn a_number_that_was_used_again_is_not_the_process_it_was() {
    check_in_namespace("a_number_that_was_used_again_is_not_the_process_it_was", "identity");
}

#[test]
fn a_number_that_was_used_again_does_not_lead_to_the_children_of_a_stranger() {
    check_in_namespace("the children of a stranger with a used number", "tree");
}

#[test]
fn a_stranger_with_the_number_of_a_dead_leader_is_not_swept_with_its_run() {
    check_in_namespace("a stranger with the number of a dead leader", "orphan");
}

#[test]
fn the_number_of_a_leader_is_nobody_elses_before_the_proof() {
    check_in_namespace("the_number_of_a_leader_is_nobody_elses_before_the_proof", "pinned");
}

#[test]
fn two_runs_that_look_the_same_do_not_touch_each_other() {
    let mut scratch = Scratch::new("twins");
    let spec = scratch.spec("one", "double_fork", &[]);
    scratch.add_bystanders(&spec);
    let mut one = scratch.start("one", &spec);
    wait_for(&scratch, "ready");
    let mut other = spec.clone();
    other.run = scratch.run_id("other");
    let mut other = scratch.start("other", &other);
    kennel_tests::until("both are ready", || {
        (scratch.told().matches("daemon").count() == 2).then_some(())
    });
    stop_and_expect(&mut one, LONG, ExitStatus::Signaled(15));
    scratch.check_gone("one");
    let id = scratch.run_id("other");
    assert_eq!(kennel_tests::carriers_of(id.as_str()).len(), 2, "the other lives, all of it");
    assert_eq!(other.connection.status().unwrap().exit, None);
    let end = stop_and_expect(&mut other, LONG, ExitStatus::Signaled(15));
    assert_eq!(end.cause, Cause::Stopped);
    scratch.check_gone("other");
}
