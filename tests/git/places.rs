//! Places that are special: bare repositories, other file systems, full and foreign ones.

use std::fs;
use std::process::Command;

use kennel_daemon::steps::{MergeMode, Place, Refused, Step, StepOutcome};
use kennel_tests::{are_root, skipped};

use crate::World;
use crate::world::{merge, prepare, remove, write_in};

#[test]
fn a_bare_repository_has_worktrees_and_lands_by_its_ref_alone() {
    let world = World::empty("bare", &["init", "-q", "--bare", "-b", "main"]);
    let seed = world.scratch.borrow().path().join("seed");
    fs::create_dir(&seed).unwrap();
    world.git_in(&seed, &["init", "-q", "-b", "main"]);
    write_in(&seed, "a", "1");
    world.git_in(&seed, &["add", "-A"]);
    world.git_in(&seed, &["commit", "-q", "-m", "first"]);
    world.git_in(&seed, &["push", "-q", world.repository.to_str().unwrap(), "main"]);
    // Also with its worktrees inside of it, as some lay them out.
    let inside = Place { worktree: world.repository.join("trees/x"), ..world.place("x") };
    for place in [world.fix_it(), inside] {
        let old = world.prepare(&place);
        world.commit(&place, place.story.as_str(), "work");
        let outcome = world.run(&merge(&place, MergeMode::Rebase));
        let StepOutcome::Merged { head, base, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(base, old);
        let step = Step::Land { place: place.clone(), old, new: head.clone() };
        assert_eq!(world.run(&step), StepOutcome::Landed { head: head.clone() });
        assert_eq!(world.git(&["rev-parse", "main"]), head);
        assert_eq!(world.look(&place).ahead, 0);
        let removed = StepOutcome::Removed { branch_kept: false };
        assert_eq!(world.run(&remove(&place, None)), removed);
    }
}

/// Whether a file system can be mounted in a namespace of our own; says it if not.
fn can_mount(name: &str) -> bool {
    let done = Command::new("unshare")
        .args(["-rm", "sh", "-c", "mount -t tmpfs none /mnt"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !done {
        skipped(name, "no file system can be mounted here");
    }
    done
}

/// A step behind a mount: its command, in a namespace where `dir` is a small file system, after
/// `first` was done there.
fn run_mounted(world: &World, step: &Step, dir: &str, size: &str, first: &str) -> StepOutcome {
    let run = world.scratch.borrow().run_id("mounted");
    let mut spec = crate::world::spec_of(run, step, world.environment(), &[]).unwrap();
    let script = "dir=$1 size=$2 first=$3; shift 3
        mount -t tmpfs -o \"size=$size\" none \"$dir\" && eval \"$first\" && exec \"$@\"";
    let words = ["-rm", "sh", "-c", script, "sh", dir, size, first, "sh"];
    let before = words.map(Into::into).into_iter();
    spec.args = before.chain(spec.args).collect();
    spec.program = "unshare".into();
    let mut run = world.scratch.borrow().start("mounted", &spec);
    let end = kennel_tests::end_of(&mut run);
    let out = kennel_tests::output_of(run.dir(), kennel_process::Stream::Stdout);
    step.read(end.status, &out)
}

#[test]
fn worktrees_on_another_file_system_work_and_a_full_one_is_told() {
    if !can_mount("worktrees on another file system") {
        return;
    }
    let world = World::new("mounts");
    world.commit_main("big", &"0123456789abcdef".repeat(64 << 10));
    fs::create_dir(&world.worktrees).unwrap();
    let dir = world.worktrees.to_str().unwrap();
    let place = world.fix_it();
    let outcome = run_mounted(&world, &prepare(&place), dir, "8m", ":");
    let StepOutcome::Prepared { made: true, .. } = outcome else { panic!("{outcome:?}") };

    // The mount went with the run: the registration is stale, and that is repaired.
    let full = World::new("full");
    full.commit_main("big", &"0123456789abcdef".repeat(64 << 10));
    fs::create_dir(&full.worktrees).unwrap();
    let dir = full.worktrees.to_str().unwrap();
    let outcome = run_mounted(&full, &prepare(&full.fix_it()), dir, "256k", ":");
    let StepOutcome::Refused { why: Refused::DiskFull, text, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(text.contains("no room left"), "{text}");
    for (world, place) in [(&world, place), (&full, full.fix_it())] {
        world.prepare(&place);
        assert_eq!(world.look(&place).changed, 0);
        world.check_main();
    }
}

#[test]
fn a_repository_on_a_full_disk_is_told() {
    if !can_mount("a repository on a full disk") {
        return;
    }
    let world = World::new("full-repository");
    let small = world.scratch.borrow().path().join("small");
    fs::create_dir(&small).unwrap();
    let place = Place { repository: small.join("repo"), ..world.fix_it() };
    // The repository has a path that is hard to quote: the script reaches it by a link.
    std::os::unix::fs::symlink(&world.repository, world.scratch.borrow().path().join("r")).unwrap();
    let first = "cp -RL \"$dir/../r\" \"$dir/repo\" && { cat /dev/zero >\"$dir/fill\" 2>&-; :; }";
    let outcome = run_mounted(&world, &prepare(&place), small.to_str().unwrap(), "2m", first);
    let StepOutcome::Refused { why: Refused::DiskFull, .. } = outcome else {
        panic!("{outcome:?}")
    };

    world.check_main();
}

#[test]
fn a_repository_of_another_user_is_told() {
    if !are_root() {
        skipped("a repository of another user", "only root can give files away");
        return;
    }
    let world = World::new("owner");
    std::os::unix::fs::chown(&world.repository, Some(4321), None).unwrap();
    std::os::unix::fs::chown(world.git_dir(), Some(4321), None).unwrap();
    let told = world.refused(&prepare(&world.fix_it()), Refused::UnsafeOwnership);
    assert!(told.contains("safe.directory"), "{told}");
}
