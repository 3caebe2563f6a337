//! A worktree goes only when nothing goes with it.

use std::fs;

use kennel_daemon::steps::{Refused, Step, StepOutcome};

use crate::World;
use crate::world::{AT, SAVED, remove, write_in};

#[test]
fn a_merged_worktree_goes_with_its_branch_and_what_was_saved_stays() {
    let world = World::new("gone");
    let place = world.fix_it();
    world.prepare(&place);
    write_in(&place.worktree, "x", "saved once");
    world.save(&place);
    fs::remove_file(place.worktree.join("x")).unwrap();
    let marker = world.scratch.borrow().truth();
    let tear = |code: &str| Step::Remove {
        place: place.clone(),
        saved: None,
        teardown: vec![
            vec!["cp".into(), "a".into(), marker.to_str().unwrap().into()],
            vec!["sh".into(), "-c".into(), format!("exit {code}")],
        ],
    };
    world.refused(&tear("3"), Refused::TeardownFailed);
    assert!(place.worktree.exists());
    let removed = StepOutcome::Removed { branch_kept: false };
    assert_eq!(world.run(&tear("0")), removed);
    assert_eq!(world.scratch.borrow().told(), "one\ntwo\nthree\n");
    assert!(!place.worktree.exists());
    assert_eq!(world.git(&["for-each-ref", "refs/heads/kennel", "--format=%(refname)"]), "");
    assert_eq!(world.git(&["for-each-ref", "refs/kennel", "--format=%(refname)"]), SAVED);
    assert_eq!(world.run(&remove(&place, None)), removed, "already gone is gone");
    assert_eq!(world.notes("fix-it"), [""; 0]);
    world.check_main();
}

#[test]
fn of_a_worktree_that_somebody_deleted_the_branch_goes_if_it_is_merged_and_else_stays() {
    for how in ["its directory", "the root as well", "by git", "and pruned"] {
        for (work, merged) in [("none", true), ("landed", true), ("of its own", false)] {
            let world = World::new("deleted");
            let place = world.fix_it();
            world.prepare(&place);
            let tip = match work {
                "none" => world.git(&["rev-parse", "main"]),
                _ => world.commit(&place, "new", "work"),
            };
            if work == "landed" {
                world.git(&["merge", "-q", "--ff-only", "kennel/fix-it"]);
                world.keep_main();
            }
            let path = place.worktree.to_str().unwrap();
            match how {
                "by git" => drop(world.git(&["worktree", "remove", "-f", "-f", path])),
                "the root as well" => {
                    fs::remove_dir_all(place.worktree.parent().unwrap()).unwrap();
                }
                _ => fs::remove_dir_all(&place.worktree).unwrap(),
            }
            if how == "and pruned" {
                world.git(&["worktree", "unlock", path]);
                world.git(&["worktree", "prune"]);
            }
            let said = world.run(&remove(&place, None));
            assert_eq!(said, StepOutcome::Removed { branch_kept: !merged }, "{how}, {work}");
            let left = world.git(&["for-each-ref", "refs/heads/kennel", "--format=%(objectname)"]);
            assert_eq!(left, if merged { "" } else { &tip }, "{how}, {work}");
            let listed = world.git(&["worktree", "list", "--porcelain"]);
            assert!(!listed.contains("fix-it"), "{how}, {work}: {listed}");
            world.check_main();
        }
    }
}

#[test]
fn work_that_is_nowhere_else_keeps_its_worktree() {
    let world = World::new("kept");
    let place = world.fix_it();
    world.prepare(&place);
    let step = remove(&place, None);
    write_in(&place.worktree, "new", "untracked");
    world.refused(&step, Refused::Dirty);
    let tip = world.commit(&place, "new", "committed");
    world.refused(&step, Refused::Unmerged);
    world.refused(&remove(&place, Some(SAVED)), Refused::NotSaved);
    write_in(&place.worktree, "more", "1");
    let saved = world.save(&place);
    let with = remove(&place, Some(&saved.reference));
    write_in(&place.worktree, "more", "changed since");
    assert!(world.refused(&with, Refused::NotSaved).contains("changed since"));
    assert_eq!(fs::read_to_string(place.worktree.join("more")).unwrap(), "changed since");
    write_in(&place.worktree, "more", "1");
    assert_eq!(world.run(&with), StepOutcome::Removed { branch_kept: true });
    assert!(!place.worktree.exists());
    assert_eq!(world.git(&["rev-parse", "kennel/fix-it"]), tip);
    assert_eq!(world.git(&["show", &format!("{SAVED}:more")]), "1");
    // The story comes back with its commits, and what was saved can be taken from the ref.
    assert_eq!(world.prepare(&place), tip);
    world.check_main();
}

#[test]
fn a_rebase_that_goes_on_is_saved_before_it_goes() {
    let world = World::new("rebasing");
    let place = world.fix_it();
    world.prepare(&place);
    world.commit(&place, "a", "one\nours\nthree\n");
    world.commit_main("a", "one\ntheirs\nthree\n");
    assert!(!world.try_git(&place.worktree, &["rebase", "main"]).status.success());
    world.refused(&remove(&place, None), Refused::InProgress);
    let saved = world.save(&place);
    let step = remove(&place, Some(&saved.reference));
    assert_eq!(world.run(&step), StepOutcome::Removed { branch_kept: true });
    assert!(world.git(&["show", &format!("{SAVED}:a")]).contains("<<<<<<<"));
    world.check_main();
}

#[test]
fn a_repository_inside_the_worktree_keeps_it() {
    let world = World::new("inside");
    let place = world.fix_it();
    world.prepare(&place);
    let clone = place.worktree.join("clone");
    fs::create_dir(&clone).unwrap();
    world.git_in(&clone, &["init", "-q"]);
    write_in(&clone, "f", "f");
    world.git_in(&clone, &["add", "-A"]);
    world.git_in(&clone, &["commit", "-q", "-m", "c"]);
    let saved = world.save(&place);
    assert_eq!(saved.unsaved, ["clone"]);
    world.refused(&remove(&place, Some(&saved.reference)), Refused::NotSaved);
    assert!(clone.join("f").exists());
    world.check_main();
}

#[test]
fn what_is_not_ours_is_not_removed() {
    let world = World::new("others");
    let place = world.fix_it();
    write_in(&place.worktree, "mine", "m");
    world.refused(&remove(&place, None), Refused::PathTaken);
    fs::remove_dir_all(&place.worktree).unwrap();
    world.prepare(&place);
    let path = place.worktree.to_str().unwrap();
    world.git(&["worktree", "unlock", path]);
    world.git(&["worktree", "lock", "--reason", "mine", path]);
    world.refused(&remove(&place, None), Refused::LockedByOther);
    // Without its .git file git would find the repository around it; ours does not look for one.
    world.git(&["worktree", "unlock", path]);
    fs::remove_file(place.worktree.join(".git")).unwrap();
    world.refused(&remove(&place, None), Refused::WorktreeGone);
    let _ = world.run(&Step::Save { place: place.clone(), at: AT });
    assert!(place.worktree.join("a").exists());
    world.check_main();
}
