//! Making a worktree, finding it again, and everything that can be in the way.

use std::fs;
use std::os::unix::fs::symlink;

use kennel_daemon::steps::{Drift, Place, Refused, Step, StepOutcome, drift};

use crate::World;
use crate::world::{files_of, prepare, spec_of, write_in};

#[test]
fn a_worktree_is_made_once_and_found_again_with_its_work() {
    let world = World::new("made");
    let place = world.fix_it();
    let setup =
        vec![vec!["sh".into(), "-c".into(), "echo it\\'s $KENNEL_STORY >>build/log".into()]];
    world.write(".worktreeinclude", ".env\nbuild/keep\na\n");
    for (name, text) in [(".env", "secret"), ("build/keep", "k"), ("build/not", "n")] {
        world.write(name, text);
    }
    world.keep_main();
    let step = Step::Prepare { place: place.clone(), copy: vec![], setup };
    let first = world.run(&step);
    let head = world.git(&["rev-parse", "main"]);
    let outcome = &first;
    let StepOutcome::Prepared { made: true, head: h, base, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((h, base), (&head, &head));
    let files = files_of(&place.worktree);
    let names: Vec<_> = files.keys().map(|k| k.to_string_lossy().into_owned()).collect();
    assert_eq!(names, [".env", ".gitignore", "a", "build/keep", "build/log"]);
    assert_eq!(fs::read_to_string(place.worktree.join("build/log")).unwrap(), "it's fix-it\n");
    let reason = fs::read_to_string(world.admin(&place).join("locked")).unwrap();
    assert_eq!(reason.trim_end(), "kennel: story fix-it");

    let work = world.commit(&place, "b", "work\n");
    write_in(&place.worktree, "dirty", "kept");
    let outcome = world.run(&step);
    let StepOutcome::Prepared { made: false, head, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(head, work);
    assert_eq!(fs::read_to_string(place.worktree.join("dirty")).unwrap(), "kept");
    let log = fs::read_to_string(place.worktree.join("build/log")).unwrap();
    assert_eq!(log, "it's fix-it\n", "setup is run once");
    world.check_main();
}

#[test]
fn a_setup_that_fails_is_told_and_tried_again() {
    let world = World::new("setup");
    let place = world.fix_it();
    let setup = |code: &str| Step::Prepare {
        place: place.clone(),
        copy: vec![],
        setup: vec![vec!["sh".into(), "-c".into(), format!("echo kennel-step: {{}}; exit {code}")]],
    };
    let told = world.refused(&setup("7"), Refused::SetupFailed);
    assert!(told.contains("ended with 7"), "{told}");
    assert!(matches!(world.run(&setup("0")), StepOutcome::Prepared { made: false, .. }));
    world.check_main();
}

#[test]
fn copied_files_stay_inside_the_worktree() {
    let world = World::new("copy");
    let outside = world.scratch.borrow().path().join("outside");
    fs::create_dir(&outside).unwrap();
    // In the commit `data` is a link that leads out; in the checkout it is a directory by now.
    symlink(&outside, world.repository.join("data")).unwrap();
    world.commit_main(".gitignore", "secret\nlink\n");
    fs::remove_file(world.repository.join("data")).unwrap();
    world.write("data/secret", "s");
    world.write("deep/er/secret", "d");
    symlink("/etc/hostname", world.repository.join("link")).unwrap();
    world.keep_main();
    let place = world.fix_it();
    let copy = vec!["secret".to_owned(), "/link".to_owned(), "../x".to_owned()];
    let step = Step::Prepare { place: place.clone(), copy, setup: vec![] };
    assert!(matches!(world.run(&step), StepOutcome::Prepared { .. }));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing went out");
    assert_eq!(fs::read_to_string(place.worktree.join("deep/er/secret")).unwrap(), "d");
    assert!(place.worktree.join("link").is_symlink(), "a link is copied as one");
    world.check_main();
}

#[test]
fn what_is_in_the_way_is_refused_by_name_and_left_alone() {
    let world = World::new("taken");
    let place = world.fix_it();
    write_in(&place.worktree, "mine", "precious");
    assert!(world.refused(&prepare(&place), Refused::PathTaken).contains("not empty"));
    assert_eq!(fs::read_to_string(place.worktree.join("mine")).unwrap(), "precious");
    fs::remove_dir_all(&place.worktree).unwrap();
    symlink("/nowhere", &place.worktree).unwrap();
    world.refused(&prepare(&place), Refused::PathTaken);
    fs::remove_file(&place.worktree).unwrap();
    fs::create_dir(&place.worktree).unwrap();

    // A branch of that name is somebody's; one beside its prefix makes it impossible.
    world.git(&["branch", "kennel/fix-it"]);
    world.refused(&prepare(&place), Refused::BranchTaken);
    world.git(&["branch", "-D", "kennel/fix-it"]);
    world.git(&["branch", "kennel"]);
    world.keep_main();
    world.refused(&prepare(&place), Refused::BranchTaken);
    world.git(&["branch", "-D", "kennel"]);
    world.keep_main();
    world.prepare(&place);

    let inside = Place { worktree: world.repository.join("trees/x"), ..world.place("x") };
    world.refused(&prepare(&inside), Refused::InsideCheckout);
    fs::remove_dir(world.repository.join("trees")).unwrap();
    let ignored = Place { worktree: world.repository.join("build/x"), ..world.place("x") };
    world.prepare(&ignored);
    fs::remove_dir_all(world.repository.join("build")).unwrap();
    world.check_main();
}

#[test]
fn a_worktree_that_is_locked_or_elsewhere_is_told() {
    let world = World::new("locked");
    let place = world.fix_it();
    world.prepare(&place);
    let path = place.worktree.to_str().unwrap();
    world.git(&["worktree", "unlock", path]);
    world.git(&["worktree", "lock", "--reason", "on a stick", path]);
    assert!(world.refused(&prepare(&place), Refused::LockedByOther).contains("on a stick"));
    world.git(&["worktree", "unlock", path]);

    world.git_in(&place.worktree, &["checkout", "-q", "--detach"]);
    world.refused(&prepare(&place), Refused::WrongBranch);
    assert_eq!(world.look(&place).branch, "");
    let other = Place { worktree: world.worktrees.join("other"), ..place.clone() };
    world.git(&["worktree", "add", "-q", other.worktree.to_str().unwrap(), "kennel/fix-it"]);
    world.refused(&prepare(&place), Refused::WrongBranch);
    fs::remove_dir_all(&place.worktree).unwrap();
    // Its own registration is stale now and dropped; the branch is somebody's.
    world.refused(&prepare(&place), Refused::BranchBusy);
    world.git(&["worktree", "remove", other.worktree.to_str().unwrap()]);
    world.prepare(&place);
    world.check_main();
}

#[test]
fn a_stale_registration_is_repaired_and_those_of_others_are_left() {
    let world = World::new("stale");
    let (place, other) = (world.fix_it(), world.place("other"));
    world.prepare(&place);
    world.prepare(&other);
    let work = world.commit(&place, "b", "work");
    fs::remove_dir_all(&place.worktree).unwrap();
    fs::remove_dir_all(&other.worktree).unwrap();
    assert_eq!(world.prepare(&place), work, "the branch and its commits are used again");
    let registered = fs::read_dir(world.git_dir().join("worktrees")).unwrap().count();
    assert_eq!(registered, 2, "the other one may be on a disk that is not mounted");
    // The file that leads back to the repository is made anew.
    fs::remove_file(place.worktree.join(".git")).unwrap();
    assert_eq!(world.prepare(&place), work);
    world.check_main();
}

#[test]
fn repositories_that_cannot_have_a_story_are_told_apart() {
    let world = World::new("where");
    let gone = Place { base: "trunk".into(), ..world.fix_it() };
    world.refused(&prepare(&gone), Refused::BaseGone);
    let missing = Place { repository: "/nowhere/at/all".into(), ..world.fix_it() };
    world.refused(&prepare(&missing), Refused::NotARepository);
    let plain = Place { repository: world.scratch.borrow().work(), ..world.fix_it() };
    world.refused(&prepare(&plain), Refused::NotARepository);
    fs::create_dir(world.repository.join("build")).unwrap();
    let below = Place { repository: world.repository.join("build"), ..world.fix_it() };
    world.refused(&prepare(&below), Refused::NotARepository);
    fs::remove_dir(world.repository.join("build")).unwrap();
    world.prepare(&world.fix_it());
    let linked = Place { repository: world.fix_it().worktree, ..world.place("x") };
    world.refused(&prepare(&linked), Refused::NotMainCheckout);
    world.check_main();

    let none = World::empty("unborn", &["init", "-q", "-b", "main"]);
    none.refused(&prepare(&none.fix_it()), Refused::NoCommits);
}

#[test]
fn a_machine_without_git_is_told() {
    let world = World::new("nogit");
    let path = world.scratch.borrow().work();
    for tool in ["sh", "od", "tr", "tail", "mkdir"] {
        let at = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join(tool))
            .find(|file| file.exists());
        symlink(at.expect("it is installed"), path.join(tool)).unwrap();
    }
    let outcome = world.run_with(&prepare(&world.fix_it()), &[("PATH", path.into())]);
    let StepOutcome::Refused { why: Refused::GitMissing, text, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(text.contains("install"), "{text}");
    world.check_main();
}

#[test]
fn a_lock_of_gits_is_waited_for_and_never_broken() {
    let world = World::new("lock");
    let place = world.fix_it();
    let lock = world.git_dir().join("refs/heads/kennel/fix-it.lock");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "").unwrap();
    // Waiting is for real here; the bound is shortened in the script's own text. Twice, for what
    // one try leaves behind must not make the lock ours.
    for name in ["first", "second"] {
        let run = world.scratch.borrow().run_id(name);
        let step = prepare(&place);
        let mut spec = spec_of(run, &step, world.environment(), &[]).unwrap();
        let script = spec.args[1].to_str().unwrap().replace("LOCK_TRIES=10", "LOCK_TRIES=2");
        assert_ne!(script, spec.args[1].to_str().unwrap());
        spec.args[1] = script.replace("LockTimeout=1000", "LockTimeout=10").into();
        let mut run = world.scratch.borrow().start(name, &spec);
        let end = kennel_tests::end_of(&mut run);
        let out = kennel_tests::output_of(run.dir(), kennel_process::Stream::Stdout);
        let outcome = step.read(end.status, &out);
        let StepOutcome::Refused { why: Refused::LockHeld, text, .. } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(text.contains("fix-it.lock"), "{text}");
    }
    assert!(lock.exists());
    fs::remove_file(lock).unwrap();
    world.prepare(&place);
    world.check_main();
}

#[test]
fn eight_stories_of_one_repository_are_prepared_at_once() {
    let world = World::new("eight");
    let runs: Vec<_> = (0..8)
        .map(|n| {
            let name = format!("s{n}");
            let step = prepare(&world.place(&name));
            let id = world.scratch.borrow().run_id(&name);
            let spec = spec_of(id, &step, world.environment(), &[]).unwrap();
            (step, world.scratch.borrow().start(&name, &spec))
        })
        .collect();
    for (step, mut run) in runs {
        let end = kennel_tests::end_of(&mut run);
        let out = kennel_tests::output_of(run.dir(), kennel_process::Stream::Stdout);
        let outcome = step.read(end.status, &out);
        assert!(matches!(outcome, StepOutcome::Prepared { made: true, .. }), "{outcome:?}");
    }
    for n in 0..8 {
        let seen = world.look(&world.place(&format!("s{n}")));
        assert_eq!((seen.branch.as_str(), seen.changed), (format!("kennel/s{n}").as_str(), 0));
    }
    world.git(&["fsck", "--strict"]);
    world.check_main();
}

#[test]
fn every_change_of_the_main_checkout_is_seen_as_drift() {
    let world = World::new("drift");
    let place = world.fix_it();
    world.write("untracked", "1");
    world.prepare(&place);
    let look = || {
        let outcome = world.run(&Step::Look { place: place.clone() });
        let StepOutcome::Looked(looked) = outcome else { panic!("{outcome:?}") };
        looked
    };
    let mut before = look();
    let mut drifted = || {
        let now = look();
        let found = drift(&before, &now, None);
        before = now;
        found
    };
    // What the story itself does is none.
    world.commit(&place, "b", "work");
    world.git(&["update-ref", "refs/kennel/saved/fix-it/x", "main"]);
    assert_eq!(drifted(), [], "its own work");
    world.write("a", "changed\n");
    assert_eq!(drifted(), [Drift::Status, Drift::Contents], "a file changes");
    world.write("a", "changed more\n");
    assert_eq!(drifted(), [Drift::Contents], "and again");
    world.write("untracked", "2");
    assert_eq!(drifted(), [Drift::Contents], "one git does not know");
    world.git(&["add", "a"]);
    assert!(drifted().contains(&Drift::Index), "staged");
    world.git(&["stash", "-q"]);
    assert!(drifted().contains(&Drift::Stash), "stashed");
    world.git(&["branch", "more"]);
    assert_eq!(drifted(), [Drift::Branches], "a branch");
    world.git(&["checkout", "-q", "more"]);
    assert_eq!(drifted(), [Drift::Branch], "another branch");
    world.git(&["commit", "-q", "--allow-empty", "-m", "x"]);
    assert_eq!(drifted(), [Drift::Head, Drift::Branches], "a commit");
    world.git(&["branch", "-q", "-f", "main", "more"]);
    assert_eq!(drifted(), [Drift::Base], "the base");
}
