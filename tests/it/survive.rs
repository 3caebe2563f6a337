//! What a run must survive: each agent named by its crime, in every containment and kind of streams.

use std::time::Duration;

use kennel_process::{Cause, ExitStatus, Spec};
use kennel_tests::{Scratch, both_streams, containments, proof_of, stop_and_expect, until};

const SHORT: Duration = Duration::from_millis(50);

/// Runs one agent in every combination, waits until it says it is ready, and hands it to the test.
fn each(name: &str, args: &[&str], test: impl Fn(&mut Scratch, &str, Spec)) {
    for containment in containments() {
        for (n, streams) in both_streams().into_iter().enumerate() {
            let mut scratch = Scratch::new(name);
            let mut spec = scratch.spec("run", name, args);
            spec.containment = containment;
            spec.streams = streams;
            scratch.add_bystanders(&spec);
            let label = format!("{containment}, {}", ["pipes", "terminal"][n]);
            test(&mut scratch, &label, spec);
            scratch.check_gone("run");
        }
    }
}

fn wait_for(scratch: &Scratch, word: &str) {
    until(&format!("the agent says {word:?}"), || scratch.told().contains(word).then_some(()));
}

#[test]
fn an_agent_that_ignores_every_signal_is_forced_after_the_grace() {
    each("ignore_term", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(9));
        assert_eq!(end.cause, Cause::Stopped, "{label}");
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}

#[test]
fn a_daemonised_child_dies_with_its_run() {
    each("double_fork", &[], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        wait_for(scratch, "ready");
        wait_for(scratch, "daemon");
        let end = stop_and_expect(&mut run, SHORT, ExitStatus::Signaled(15));
        assert!(proof_of(&end).effort().rounds >= 1, "{label}");
    });
}
