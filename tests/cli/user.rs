//! kennel for somebody who is not root and has no cgroup to write to: what is promised for runs
//! that a subreaper holds. The test gives its home to another user and runs everything as that one.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use kennel_tests::{are_root, carriers_of, skipped, until};

use super::home::{Home, Said};

/// Nobody's number, which is nobody's on every machine.
const NOBODY: u32 = 65_534;

/// A home of that user's, if we may give one away, and that user may run the binary and has no
/// cgroup of its own.
fn nobodys_home(name: &str) -> Option<Home> {
    if !are_root() {
        skipped(name, "only root can become somebody else");
        return None;
    }
    let mut home = Home::new();
    home.give_to(NOBODY);
    home.set("HOME", home.path().to_str().expect("it is text").to_owned().as_str());
    if !home.command(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        skipped(name, "another user may not run the binary where it is");
        return None;
    }
    let run = home.start(&["--", "true"]);
    if home.show(&run)["containment"] != "subreaper" {
        skipped(name, "nobody has a cgroup here");
        return None;
    }
    Some(home)
}

#[test]
fn who_is_not_root_has_every_descendant_ended_and_is_told_what_is_weaker() {
    let Some(home) = nobodys_home("who is not root") else { return };
    let doctor = home.kennel(&["doctor"]);
    assert_eq!(doctor.code, 0, "{doctor:?}");
    for words in ["held by subreaper only", "Permission denied", "kennel service install"] {
        assert!(doctor.out.contains(words), "{words:?} is not in {doctor:?}");
    }
    // It ignores requests, and has daemonised a child twice removed.
    let script = "trap '' TERM; (setsid sh -c '(setsid sleep 1000 &)' &)\n\
                  echo up; while :; do sleep 1; done";
    let run = home.start(&["--slot", "review", "--", "sh", "-c", script]);
    until("it is up", || home.ok(&["logs", &run]).contains("up").then_some(()));
    until("its child is there", || (carriers_of(&run).len() >= 3).then_some(()));
    home.kill_daemon();
    let said = home.kennel(&["stop", "--grace", "100ms", "review"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("all gone") && said.out.contains("rests on subreaper"), "{said:?}");
    assert_eq!(carriers_of(&run), [""; 0]);
    let said = home.kennel(&["run", "--", "sh", "-c", "exit 3"]);
    assert_eq!(said.code, 3, "{said:?}");
    home.check();
}

#[test]
fn who_is_not_root_loses_the_proof_with_the_keeper_and_keeps_the_slot() {
    let Some(home) = nobodys_home("who is not root, without a keeper") else { return };
    let script = "echo up; while :; do sleep 1; done";
    let run = home.start(&["--slot", "s", "--grace", "100ms", "--", "sh", "-c", script]);
    until("it is up", || home.ok(&["logs", &run]).contains("up").then_some(()));
    home.kill_keeper(&run);
    let lost = until("it is lost", || {
        let shown = home.show(&run);
        (shown["state"] == "stuck").then_some(shown)
    });
    assert_eq!(lost["end"]["cause"], "lost", "{lost}");
    assert!(lost["proof"].is_null(), "{lost}");
    assert_eq!(carriers_of(&run), [""; 0], "what could be found was stopped");
    let said = home.kennel(&["run", "-d", "--slot", "s", "--", "true"]);
    assert!(said.code == 125 && said.err.contains("stuck"), "{said:?}");
    let said = home.kennel(&["show", &run]);
    assert!(said.out.contains("without a cgroup nobody else can tell"), "{said:?}");
    let said = home.kennel(&["down", "--stop-runs"]);
    assert_ne!(said.code, 0, "{said:?}");
    let words = [&*said.out, &*said.err].concat();
    assert!(words.contains("1 run is not proven dead"), "{said:?}");
    // No checker: there is no proof, and there will be none before the next boot.
}

#[test]
fn the_example_flows_for_who_is_not_root() {
    let Some(home) = nobodys_home("the example, not as root") else { return };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let own = home.path().join("examples");
    let copied = Command::new("cp").arg("-R").args([&examples, &own]).status();
    assert!(copied.is_ok_and(|status| status.success()), "it cannot be copied");
    let mut command = Command::new("sh");
    command.arg(own.join("pipeline/run")).env("KENNEL", env!("CARGO_BIN_EXE_kennel"));
    command.env("TMPDIR", home.path()).env("HOME", home.path()).current_dir(home.path());
    let output = command.uid(NOBODY).gid(NOBODY).output().expect("it can be run");
    let said = Said::of(&output);
    assert_eq!(said.code, 0, "{said:?}");
    for story in ["goodbye", "hello", "index", "readme", "thanks"] {
        assert!(said.out.contains(&format!("{story}: merge -> done")), "{said:?}");
    }
    let left = fs::read_dir(home.path()).expect("it is there").flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().contains("pipeline"));
    assert_eq!(left.count(), 0, "the scratch directory is left");
    home.check();
}
