//! A branch meets its base, and the base moves only from where the gates ran.

use std::fs;

use kennel_daemon::steps::{MergeMode, Operation, Place, Refused, Step, StepOutcome};

use crate::World;
use crate::world::{files_of, merge, write_in};

const MODES: [MergeMode; 2] = [MergeMode::Rebase, MergeMode::Merge];

fn land(place: &Place, old: &str, new: &str) -> Step {
    Step::Land { place: place.clone(), old: old.to_owned(), new: new.to_owned() }
}

/// Merges and gives head and base.
#[track_caller]
fn merged(world: &World, place: &Place, mode: MergeMode) -> (String, String) {
    let outcome = world.run(&merge(place, mode));
    let StepOutcome::Merged { head, base, .. } = outcome else { panic!("not merged: {outcome:?}") };
    (head, base)
}

#[test]
fn work_is_merged_in_the_worktree_and_landed_in_a_clean_checkout() {
    for mode in MODES {
        let world = World::new("merged");
        let place = world.fix_it();
        world.prepare(&place);
        world.refused(&merge(&place, mode), Refused::NothingAhead);
        world.commit(&place, "b", "work\n");
        let base = world.commit_main("c", "meanwhile\n");
        let (head, on) = merged(&world, &place, mode);
        assert_eq!(on, base);
        assert_eq!(world.look(&place).behind, 0);
        assert!(place.worktree.join("c").exists(), "gates see both");
        world.check_main();

        // Files that git does not know do not stand in the way, unless they do.
        world.write("mine", "untracked");
        world.write("b", "untracked");
        world.keep_main();
        world.refused(&land(&place, &base, &head), Refused::Dirty);
        world.check_main();
        fs::remove_file(world.repository.join("b")).unwrap();
        let landed = StepOutcome::Landed { head: head.clone() };
        assert_eq!(world.run(&land(&place, &base, &head)), landed);
        assert_eq!(world.run(&land(&place, &base, &head)), landed, "twice is once");
        assert_eq!(world.git(&["rev-parse", "main"]), head);
        assert_eq!(world.git(&["status", "--porcelain"]), "?? mine");
        assert_eq!(fs::read_to_string(world.repository.join("b")).unwrap(), "work\n");
    }
}

#[test]
fn a_conflict_comes_back_with_its_text_and_everything_is_as_before() {
    for mode in MODES {
        let world = World::new("conflict");
        let place = world.fix_it();
        world.prepare(&place);
        world.commit(&place, "b", "fine\n");
        let tip = world.commit(&place, "a", "one\nours\nthree\n");
        world.commit_main("c", "new in the base\n");
        let base = world.commit_main("a", "one\ntheirs\nthree\n");
        let before = files_of(&place.worktree);
        let outcome = world.run(&merge(&place, mode));
        let StepOutcome::Conflict { base: with, files, text } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((with, files), (base, vec!["a".to_owned()]));
        for word in ["CONFLICT", "ours", "theirs"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let seen = world.look(&place);
        assert_eq!((seen.head, seen.operation, seen.changed), (tip, Operation::None, 0));
        assert_eq!(seen.branch, "kennel/fix-it");
        assert_eq!(files_of(&place.worktree), before);
        world.check_main();
    }
}

#[test]
fn a_long_conflict_is_cut() {
    let world = World::new("long");
    let place = world.fix_it();
    world.prepare(&place);
    world.commit(&place, "a", &"ours\n".repeat(20_000));
    world.commit_main("a", &"theirs\n".repeat(20_000));
    let outcome = world.run(&merge(&place, MergeMode::Rebase));
    let StepOutcome::Conflict { text, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(text.len(), 16 << 10);
    world.check_main();
}

#[test]
fn what_is_in_no_commit_or_half_done_is_not_merged() {
    let world = World::new("unready");
    let place = world.fix_it();
    let step = merge(&place, MergeMode::Rebase);
    world.refused(&step, Refused::WorktreeGone);
    world.prepare(&place);
    world.commit(&place, "a", "one\nours\nthree\n");
    write_in(&place.worktree, "forgotten", "never added");
    world.refused(&step, Refused::Dirty);
    fs::remove_file(place.worktree.join("forgotten")).unwrap();
    world.commit_main("a", "one\ntheirs\nthree\n");
    assert!(!world.try_git(&place.worktree, &["rebase", "main"]).status.success());
    world.refused(&step, Refused::InProgress);
    assert_eq!(world.look(&place).operation, Operation::Rebase, "and left as it was");
    world.prepare(&place);
    world.git_in(&place.worktree, &["rebase", "--abort"]);
    world.git_in(&place.worktree, &["checkout", "-q", "--detach"]);
    world.refused(&step, Refused::WrongBranch);
    world.check_main();
}

#[test]
fn the_base_moves_only_from_where_the_gates_ran() {
    let world = World::new("moved");
    let place = world.fix_it();
    world.prepare(&place);
    world.commit(&place, "b", "work\n");
    let (head, base) = merged(&world, &place, MergeMode::Rebase);
    world.write("a", "dirty\n");
    world.keep_main();
    world.refused(&land(&place, &base, &head), Refused::Dirty);
    world.check_main();
    world.git(&["checkout", "-q", "--", "a"]);
    world.refused(&land(&place, &head, &base), Refused::NotFastForward);
    world.refused(&land(&place, &base, &"0".repeat(40)), Refused::NotFastForward);
    let now = world.commit_main("c", "meanwhile\n");
    assert!(world.refused(&land(&place, &base, &head), Refused::BaseMoved).contains(&now));
    world.check_main();

    // Checked out nowhere, it is a compare and swap of the ref alone.
    let (head, base) = merged(&world, &place, MergeMode::Merge);
    world.git(&["checkout", "-q", "--detach"]);
    let files = files_of(&world.repository);
    let landed = StepOutcome::Landed { head: head.clone() };
    assert_eq!(world.run(&land(&place, &base, &head)), landed);
    assert_eq!(world.git(&["rev-parse", "main"]), head);
    assert_eq!(files_of(&world.repository), files);
    assert_eq!(world.git(&["status", "--porcelain"]), "");
}

#[test]
fn a_base_in_another_worktree_is_moved_there() {
    let world = World::new("elsewhere");
    let place = world.fix_it();
    let other = world.worktrees.join("other");
    world.git(&["checkout", "-q", "--detach"]);
    world.keep_main();
    world.git(&["worktree", "add", "-q", other.to_str().unwrap(), "main"]);
    world.prepare(&place);
    world.commit(&place, "b", "work\n");
    let (head, base) = merged(&world, &place, MergeMode::Rebase);
    assert_eq!(world.run(&land(&place, &base, &head)), StepOutcome::Landed { head });
    assert!(other.join("b").exists());
    assert_eq!(world.git_in(&other, &["status", "--porcelain"]), "");
}
