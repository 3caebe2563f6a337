//! What holds a run together, in each grade, and that each says what it is.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kennel_process::{Containment, Evidence, ExitStatus, Verdict};
use kennel_tests::{
    LONG, Scratch, agent, are_root, both_streams, containments, each, end_of, numbers_after,
    program, proof_of, skipped, stop_and_expect, wait_for,
};

#[test]
fn the_containment_that_was_asked_for_is_recorded_and_proven() {
    each("leaves_late", &["0", "1"], |scratch, label, spec| {
        let mut run = scratch.start("run", &spec);
        assert_eq!(run.started.containment, spec.containment, "{label}");
        wait_for(scratch, "ready");
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Exited(0));
        let proof = proof_of(&end);
        assert_eq!(proof.grade(), spec.containment, "{label}");
        assert!(proof.rests_on().contains(&Evidence::NoDescendant), "{label}: {proof:?}");
        let by_cgroup = proof.rests_on().iter().any(|e| matches!(e, Evidence::CgroupEmpty(_)));
        assert_eq!(by_cgroup, spec.containment == Containment::Cgroup, "{label}");
    });
}

#[test]
fn the_leader_is_in_its_cgroup_from_its_first_instruction() {
    let name = "the_leader_is_in_its_cgroup_from_its_first_instruction";
    if !containments().contains(&Containment::Cgroup) {
        return skipped(name, "there is no cgroup to be had");
    }
    for streams in both_streams() {
        let mut scratch = Scratch::new("leaf");
        let mut spec = scratch.spec("run", "double_fork", &[]);
        spec.streams = streams;
        let mut run = scratch.start("run", &spec);
        let leaf = run.started.leaf.clone().expect("there is a leaf");
        let leaf_name = format!("/kennel-{}", spec.run);
        assert!(leaf.path.to_str().unwrap().ends_with(&leaf_name), "{leaf:?}");
        wait_for(&scratch, "daemon");
        let daemon = numbers_after(&scratch, "daemon")[0];
        // The first is in it because it was born there, the second because of that.
        for pid in [run.started.leader.pid, daemon] {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            let ours = groups.lines().find(|line| line.starts_with("0::")).unwrap();
            assert!(ours.ends_with(&leaf_name), "{ours}");
        }
        let own = fs::read_to_string(format!("/proc/{}/cgroup", run.started.keeper.pid)).unwrap();
        assert!(!own.contains(&leaf_name), "the keeper is not in it: {own}");
        run.connection.kill().unwrap();
        assert_eq!(end_of(&mut run).status, ExitStatus::Signaled(9));
        scratch.check_gone("run");
    }
}

#[test]
fn a_group_alone_contains_a_plain_agent_and_says_so() {
    for streams in both_streams() {
        let mut scratch = Scratch::new("group");
        let mut spec = scratch.spec("run", "holds_terminal", &[]);
        spec.containment = Containment::Group;
        spec.streams = streams;
        scratch.add_bystanders(&spec);
        let mut run = scratch.start("run", &spec);
        assert_eq!(run.started.containment, Containment::Group);
        assert!(run.started.containment_because.is_some());
        assert_eq!(run.started.leaf, None);
        wait_for(&scratch, "ready");
        let end = stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
        let proof = proof_of(&end);
        assert_eq!(proof.grade(), Containment::Group);
        assert_eq!(proof.rests_on(), [Evidence::LeaderCollected, Evidence::SessionEmpty]);
        scratch.check_gone("run");
    }
}

#[test]
fn a_group_alone_says_nothing_of_a_process_that_left_its_session() {
    let mut scratch = Scratch::new("escaped");
    let mut spec = scratch.spec("run", "double_fork", &[]);
    spec.containment = Containment::Group;
    let mut run = scratch.start("run", &spec);
    wait_for(&scratch, "ready");
    wait_for(&scratch, "daemon");
    let daemon = numbers_after(&scratch, "daemon")[0];
    let held = kennel_process::Process::from_number(daemon).unwrap();
    let end = stop_and_expect(&mut run, LONG, ExitStatus::Signaled(15));
    assert!(matches!(&end.verdict, Verdict::Dead(p) if p.grade() == Containment::Group));
    assert!(!held.has_ended().unwrap(), "it is not covered, and so not touched");
    held.signal(kennel_process::Signal::KILL).unwrap();
    kennel_tests::until("the daemon is gone", || held.has_ended().unwrap().then_some(()));
    scratch.check_gone("run");
}

#[test]
fn an_ordinary_user_has_everything_but_the_cgroup() {
    let name = "an_ordinary_user_has_everything_but_the_cgroup";
    let starter = program("starter");
    let nobody = |args: &[&str]| {
        let mut command = Command::new(&starter);
        command.args(args).current_dir("/");
        if are_root() {
            command.uid(65534).gid(65534);
        }
        command
    };
    let looked = nobody(&["look", agent("double_fork").to_str().unwrap()]).output();
    if !looked.as_ref().is_ok_and(|o| o.status.success()) {
        return skipped(name, &format!("our programs are not for everybody: {looked:?}"));
    }
    let output = nobody(&["whole"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("containment"), "{said}");
    if are_root() {
        assert!(said.contains("containment subreaper"), "{said}");
    }
}
