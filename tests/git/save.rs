//! Work is kept whole, whatever state it is in, and nothing of the user's is touched by it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use kennel_daemon::steps::{Operation, Place, Refused, Step, StepOutcome};

use crate::World;
use crate::world::{AT, Files, SAVED, files_of, write_in};

/// What a save must leave alone in the worktree: HEAD, index, stash, files.
fn state(world: &World, place: &Place) -> (Vec<u8>, String, Files) {
    let admin = world.admin(place);
    let index = fs::read(admin.join("index")).expect("it has one");
    let head = fs::read_to_string(admin.join("HEAD")).expect("it has one");
    let refs = world.git(&["for-each-ref", "refs/heads", "refs/stash"]);
    (index, head + &refs, files_of(&place.worktree))
}

/// The files of a commit, written out by git elsewhere.
fn files_in(world: &World, commit: &str) -> Files {
    let dir = world.scratch.borrow().path().join("restored");
    world.git(&["worktree", "add", "-q", "--detach", dir.to_str().unwrap(), commit]);
    let files = files_of(&dir);
    world.git(&["worktree", "remove", "--force", dir.to_str().unwrap()]);
    files
}

#[test]
fn nothing_to_save_is_told_as_such() {
    let world = World::new("nothing");
    let place = world.fix_it();
    let step = Step::Save { place: place.clone(), at: AT };
    world.refused(&step, Refused::WorktreeGone);
    world.prepare(&place);
    write_in(&place.worktree, "build/out", "ignored");
    assert_eq!(world.run(&step), StepOutcome::NothingToSave);
    assert_eq!(world.git(&["for-each-ref", "refs/kennel"]), "");
    world.check_main();
}

#[test]
fn commits_alone_are_kept_as_they_are() {
    let world = World::new("commits");
    let place = world.fix_it();
    world.prepare(&place);
    world.commit(&place, "b", "1");
    let tip = world.commit(&place, "b", "2");
    let saved = world.save(&place);
    assert_eq!((saved.commit.as_str(), saved.dirty, saved.commits), (tip.as_str(), false, 2));
    assert_eq!(saved.reference, SAVED);
    // On no branch: nothing else would keep it.
    world.git_in(&place.worktree, &["checkout", "-q", "--detach", "main"]);
    let lone = world.commit(&place, "c", "alone");
    let saved = world.save(&place);
    assert_eq!(saved.reference, format!("{SAVED}-2"), "a name that is taken is not given away");
    for commit in [tip, lone] {
        world.git(&["merge-base", "--is-ancestor", &commit, &saved.commit]);
    }
    world.check_main();
}

#[test]
fn what_is_staged_hidden_and_untracked_is_kept_and_the_index_is_not_touched() {
    let world = World::new("staged");
    world.commit_main("hidden", "1\n");
    world.commit_main("skipped", "1\n");
    let place = world.fix_it();
    world.prepare(&place);
    let dir = &place.worktree;
    write_in(dir, "a", "staged\n");
    write_in(dir, ".env", "forced\n");
    write_in(dir, "only-staged", "s\n");
    world.git_in(dir, &["add", "-f", "a", ".env", "only-staged"]);
    write_in(dir, "a", "changed after\n");
    fs::remove_file(dir.join("only-staged")).unwrap();
    world.git_in(dir, &["update-index", "--assume-unchanged", "hidden"]);
    world.git_in(dir, &["update-index", "--skip-worktree", "skipped"]);
    write_in(dir, "hidden", "2\n");
    write_in(dir, "skipped", "2\n");
    write_in(dir, "later", "intent\n");
    world.git_in(dir, &["add", "-N", "later"]);
    let before = state(&world, &place);
    let saved = world.save(&place);
    assert!(saved.dirty && saved.unsaved.is_empty(), "{saved:?}");
    assert_eq!(state(&world, &place), before);
    assert_eq!(files_in(&world, &saved.commit), before.2);
    let staged = world.git(&["show", &format!("{}^2:a", saved.commit)]);
    assert_eq!(staged, "staged");
    assert_eq!(world.git(&["show", &format!("{}^2:only-staged", saved.commit)]), "s");
    world.check_main();
}

#[test]
fn a_change_of_the_same_length_in_the_same_second_is_kept() {
    let world = World::new("racy");
    let place = world.fix_it();
    world.prepare(&place);
    world.git(&["config", "core.trustctime", "false"]);
    let (file, index) = (place.worktree.join("a"), world.admin(&place).join("index"));
    let then = SystemTime::now() - Duration::from_secs(100);
    let date = |path: &Path| {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(then)).unwrap();
    };
    date(&file);
    world.git_in(&place.worktree, &["update-index", "--refresh"]);
    fs::write(&file, "ONE\nTWO\nTHREE\n").unwrap();
    date(&file);
    date(&index);
    assert_eq!(world.look(&place).changed, 1, "git itself sees it");
    let saved = world.save(&place);
    assert_eq!(world.git(&["show", &format!("{}:a", saved.commit)]), "ONE\nTWO\nTHREE");
    world.check_main();
}

#[test]
fn a_merge_and_a_rebase_that_go_on_are_kept_with_all_their_sides() {
    let world = World::new("going-on");
    let place = world.fix_it();
    world.prepare(&place);
    let ours = world.commit(&place, "a", "one\nours\nthree\n");
    world.commit_main("a", "one\ntheirs\nthree\n");
    for (command, operation) in [("merge", Operation::Merge), ("rebase", Operation::Rebase)] {
        assert!(!world.try_git(&place.worktree, &[command, "main"]).status.success());
        let seen = world.look(&place);
        assert_eq!((seen.operation, seen.unmerged), (operation, 1));
        write_in(&place.worktree, "a", "one\nhalf resolved\nthree\n");
        let before = state(&world, &place);
        let saved = world.save(&place);
        assert_eq!(state(&world, &place), before);
        assert_eq!(files_in(&world, &saved.commit), before.2);
        world.git(&["merge-base", "--is-ancestor", &ours, &saved.commit]);
        world.git_in(&place.worktree, &[command, "--abort"]);
    }
    world.check_main();
}

#[test]
fn no_hook_runs_and_nobody_is_asked_for_a_name_or_a_key() {
    let world = World::new("hooks");
    let told = world.scratch.borrow().truth();
    let hooks = world.git_dir().join("hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["pre-commit", "post-checkout", "reference-transaction", "post-index-change"] {
        fs::write(hooks.join(hook), format!("#!/bin/sh\necho {hook} >>'{}'\n", told.display()))
            .unwrap();
        fs::set_permissions(hooks.join(hook), fs::Permissions::from_mode(0o755)).unwrap();
    }
    world.git(&["config", "commit.gpgSign", "true"]);
    world.git(&["config", "gpg.program", "false"]);
    world.git(&["config", "user.useConfigOnly", "true"]);
    let _ = fs::remove_file(&told);
    let place = world.fix_it();
    world.prepare(&place);
    write_in(&place.worktree, "new", "n");
    let saved = world.save(&place);
    let _ = world.look(&place);
    assert_eq!(world.scratch.borrow().told(), "");
    assert_eq!(world.git(&["log", "-1", "--format=%an <%ae>", &saved.commit]).as_str(), {
        "kennel <kennel@localhost>"
    });
}

#[test]
fn what_git_cannot_keep_is_named() {
    let world = World::new("cannot");
    let place = world.fix_it();
    let library = world.scratch.borrow().path().join("library");
    fs::create_dir(&library).unwrap();
    world.git_in(&library, &["init", "-q"]);
    write_in(&library, "l", "1");
    world.git_in(&library, &["add", "-A"]);
    world.git_in(&library, &["commit", "-q", "-m", "l"]);
    world.git(&["submodule", "--quiet", "add", library.to_str().unwrap(), "sub"]);
    world.git(&["commit", "-q", "-m", "sub"]);
    world.keep_main();
    world.prepare(&place);
    world.git_in(&place.worktree, &["submodule", "--quiet", "update", "--init"]);
    let step = Step::Save { place: place.clone(), at: AT };
    assert_eq!(world.run(&step), StepOutcome::NothingToSave, "a submodule as it should be");

    write_in(&place.worktree, "sub/l", "changed inside");
    let outcome = world.run(&step);
    let StepOutcome::Refused { why: Refused::NotSaved, unsaved, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(unsaved, ["sub"]);
    // Repositories that nobody declared, one of them without a commit.
    for name in ["clone", "empty"] {
        fs::create_dir(place.worktree.join(name)).unwrap();
        world.git_in(&place.worktree.join(name), &["init", "-q"]);
        write_in(&place.worktree, &format!("{name}/f"), "f");
    }
    let clone = place.worktree.join("clone");
    world.git_in(&clone, &["add", "-A"]);
    world.git_in(&clone, &["commit", "-q", "-m", "c"]);
    write_in(&place.worktree, "beside", "kept");
    let saved = world.save(&place);
    let mut unsaved = saved.unsaved.clone();
    unsaved.sort();
    assert_eq!(unsaved, ["clone", "empty/", "sub"]);
    assert_eq!(world.git(&["show", &format!("{}:beside", saved.commit)]), "kept");
    world.check_main();
}

/// Small and seeded: a failure comes back with its number.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.roll(300)).map(|_| self.roll(256) as u8).collect()
    }
}

const NAMES: [&[u8]; 12] = [
    b"plain",
    b"with space",
    b"new\nline",
    b"-dash",
    b"quo'te\"",
    b"\xff\xfe",
    b"dir/x",
    b"dir/y\n",
    "é/ü".as_bytes(),
    b"\x01\x02",
    b"back\\slash",
    b"*?[a]",
];

fn disturb(dir: &Path, dice: &mut Dice) {
    for name in NAMES {
        let path = dir.join(OsStr::from_bytes(name));
        let action = dice.roll(6);
        if action > 0 {
            let _ = fs::remove_file(&path);
            fs::create_dir_all(path.parent().expect("a directory")).unwrap();
        }
        match action {
            // As it was, or gone.
            0 | 1 => {}
            2 => symlink(OsStr::from_bytes(b"some\nwhere"), &path).unwrap(),
            n => {
                fs::write(&path, dice.bytes()).unwrap();
                let mode = if n == 3 { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}

#[test]
fn random_trees_come_back_byte_for_byte() {
    let world = World::new("random");
    let place = world.fix_it();
    world.prepare(&place);
    for seed in 1..=12 {
        let mut dice = Dice(0x9e37_79b9 * seed);
        disturb(&place.worktree, &mut dice);
        if dice.roll(2) == 0 {
            world.git_in(&place.worktree, &["add", "-A"]);
            disturb(&place.worktree, &mut dice);
        }
        let before = state(&world, &place);
        let outcome = world.run(&Step::Save { place: place.clone(), at: AT });
        let StepOutcome::Saved(saved) = outcome else { panic!("{seed}: {outcome:?}") };
        assert_eq!(saved.unsaved, [""; 0], "{seed}");
        assert_eq!(state(&world, &place), before, "{seed}");
        assert_eq!(files_in(&world, &saved.commit), before.2, "{seed}");
        if dice.roll(2) == 0 {
            world.git_in(&place.worktree, &["add", "-A"]);
            world.git_in(&place.worktree, &["commit", "-q", "--allow-empty", "-m", "on"]);
        }
    }
    world.check_main();
}
