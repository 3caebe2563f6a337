//! Killed before any command that changes something, a step run again comes to the same end.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use kennel_daemon::steps::{MergeMode, Operation, Place, Refused, Step, StepOutcome};
use kennel_process::ExitStatus;
use kennel_tests::{end_of, pass};

use crate::World;
use crate::world::{AT, files_of, merge, prepare, remove, spec_of, write_in};

/// More commands than any step has: a step that never ends fails the test.
const MAX_COMMANDS: u32 = 60;

/// Stands in `PATH` before the real ones and counts calls that change something. Before the one
/// with the number `DIE_AT` it kills the whole run, which has a process group of its own.
const SHADOW: &str = r#"#!/bin/sh
PATH=$REAL_PATH
changes=no
case ${0##*/} in
git) for word in "$@"; do case $word in
    worktree | update-ref | reset | add | write-tree | commit-tree | update-index | read-tree | \
    rebase | merge | clean | checkout-index) changes=yes ;;
    symbolic-ref) changes=ref ;;
    -q) if [ "$changes" = ref ]; then changes=no; fi ;;
    esac; done ;;
*) changes=yes ;;
esac
if [ "$changes" != no ]; then
    printf x >>"$COUNT"
    if [ "$(wc -c <"$COUNT")" -eq "$DIE_AT" ] && [ -n "$KENNEL_RUN" ]; then kill -KILL 0; fi
fi
exec "${0##*/}" "$@"
"#;

struct Shadow {
    dir: PathBuf,
    path: OsString,
}

impl Shadow {
    fn new(world: &World) -> Self {
        let dir = world.scratch.borrow().path().join("shadow");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("git"), SHADOW).unwrap();
        fs::set_permissions(dir.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
        for tool in ["mkdir", "rm", "rmdir", "mv", "cp", "ln"] {
            symlink("git", dir.join(tool)).unwrap();
        }
        let real = std::env::var_os("PATH").expect("there is a PATH");
        let mut path = dir.clone().into_os_string();
        path.push(":");
        path.push(&real);
        Self { dir, path }
    }

    /// True if the step was killed; false if it has fewer commands than that.
    fn kills(&self, world: &World, step: &Step, at: u32) -> bool {
        let count = self.dir.join("count");
        let _ = fs::remove_file(&count);
        let real = std::env::var_os("PATH").expect("there is a PATH");
        let set = [
            ("PATH", self.path.clone()),
            ("REAL_PATH", real),
            ("COUNT", count.into_os_string()),
            ("DIE_AT", at.to_string().into()),
        ];
        match world.run_with(step, &set) {
            StepOutcome::Broken { status: ExitStatus::Signaled(9), .. } => true,
            StepOutcome::Broken { status, why } => panic!("{at}: {status:?} {why}"),
            StepOutcome::Prepared { .. }
            | StepOutcome::Looked(_)
            | StepOutcome::Saved(_)
            | StepOutcome::NothingToSave
            | StepOutcome::Merged { .. }
            | StepOutcome::Conflict { .. }
            | StepOutcome::Landed { .. }
            | StepOutcome::Removed { .. } => false,
            StepOutcome::Refused { why, text, .. } => panic!("{at}: {why:?} {text}"),
        }
    }
}

/// Calls with 1, 2, ... until a step was not killed, which must not be at once.
fn at_every_command(least: u32, mut killed: impl FnMut(u32) -> bool) {
    let survived = (1..MAX_COMMANDS).find(|n| !killed(*n)).expect("steps come to an end");
    assert!(survived > least, "only {survived} commands: what changes something is not counted");
}

#[test]
fn prepared() {
    let world = World::new("kill-prepare");
    world.write(".env", "secret");
    world.keep_main();
    let shadow = Shadow::new(&world);
    let step = |place: &Place| Step::Prepare {
        place: place.clone(),
        copy: vec![".env".to_owned()],
        setup: vec![vec!["sh".into(), "-c".into(), "echo done >build-log".into()]],
    };
    let calm = world.place("calm");
    assert!(matches!(world.run(&step(&calm)), StepOutcome::Prepared { .. }));
    at_every_command(6, |n| {
        let place = world.place(&format!("s{n}"));
        let killed = shadow.kills(&world, &step(&place), n);
        let outcome = world.run(&step(&place));
        assert!(matches!(outcome, StepOutcome::Prepared { .. }), "{n}: {outcome:?}");
        assert_eq!(files_of(&place.worktree), files_of(&calm.worktree), "{n}");
        assert_eq!(world.notes(&format!("s{n}")), world.notes("calm"), "{n}");
        let seen = world.look(&place);
        assert_eq!((seen.changed, seen.untracked, seen.ahead), (0, 1, 0), "{n}");
        let reason = fs::read_to_string(world.admin(&place).join("locked")).unwrap();
        assert_eq!(reason.trim_end(), format!("kennel: story s{n}"));
        killed
    });
    world.check_main();
}

#[test]
fn saved() {
    let world = World::new("kill-save");
    let shadow = Shadow::new(&world);
    let place = world.fix_it();
    world.prepare(&place);
    world.commit(&place, "b", "committed");
    write_in(&place.worktree, "a", "staged");
    world.git_in(&place.worktree, &["add", "-A"]);
    write_in(&place.worktree, "a", "dirty");
    let step = Step::Save { place: place.clone(), at: AT };
    let calm = world.save(&place);
    let index = fs::read(world.admin(&place).join("index")).unwrap();
    at_every_command(6, |n| {
        world.git(&["update-ref", "-d", &calm.reference]);
        let killed = shadow.kills(&world, &step, n);
        assert_eq!(world.save(&place), calm, "{n}");
        assert_eq!(fs::read(world.admin(&place).join("index")).unwrap(), index, "{n}");
        killed
    });
    assert!(!world.notes("fix-it").iter().any(|name| name.starts_with("index")));
    world.check_main();
}

#[test]
fn merged_or_in_conflict() {
    for mode in [MergeMode::Rebase, MergeMode::Merge] {
        let world = World::new("kill-merge");
        let shadow = Shadow::new(&world);
        let story = |name: &str, file: &str| {
            let place = world.place(name);
            world.prepare(&place);
            world.git_in(&place.worktree, &["reset", "-q", "--hard", "main~1"]);
            world.commit(&place, file, "one\nours\nthree\n");
            place
        };
        world.commit_main("c", "x\n");
        world.commit_main("a", "one\ntheirs\nthree\n");
        at_every_command(3, |n| {
            let place = story(&format!("m{n}"), "b");
            let killed = shadow.kills(&world, &merge(&place, mode), n);
            let outcome = world.run(&merge(&place, mode));
            assert!(matches!(outcome, StepOutcome::Merged { .. }), "{n}: {outcome:?}");
            let seen = world.look(&place);
            assert_eq!((seen.behind, seen.changed, seen.untracked), (0, 0, 0), "{n}");
            killed
        });
        at_every_command(3, |n| {
            let place = story(&format!("c{n}"), "a");
            let killed = shadow.kills(&world, &merge(&place, mode), n);
            let before = world.git(&["rev-parse", &place.branch()]);
            let outcome = world.run(&merge(&place, mode));
            assert!(matches!(outcome, StepOutcome::Conflict { .. }), "{n}: {outcome:?}");
            let seen = world.look(&place);
            assert_eq!((seen.head, seen.operation), (before, Operation::None), "{n}");
            assert_eq!((seen.changed, seen.untracked), (0, 0), "{n}");
            killed
        });
        world.check_main();
    }
}

#[test]
fn landed() {
    let world = World::new("kill-land");
    let shadow = Shadow::new(&world);
    at_every_command(2, |n| {
        let place = world.place(&format!("s{n}"));
        let old = world.prepare(&place);
        let new = world.commit(&place, &format!("f{n}"), "work");
        let step = Step::Land { place: place.clone(), old, new: new.clone() };
        let killed = shadow.kills(&world, &step, n);
        assert_eq!(world.run(&step), StepOutcome::Landed { head: new.clone() }, "{n}");
        assert_eq!(world.git(&["rev-parse", "HEAD"]), new);
        assert_eq!(world.git(&["status", "--porcelain"]), "", "{n}");
        killed
    });
}

#[test]
fn removed_when_merged_or_saved() {
    let world = World::new("kill-remove");
    let shadow = Shadow::new(&world);
    for dirty in [false, true] {
        at_every_command(3, |n| {
            let place = world.place(&format!("{}{n}", if dirty { "d" } else { "s" }));
            world.prepare(&place);
            let saved = dirty.then(|| {
                write_in(&place.worktree, "x", "dirty");
                world.save(&place).reference
            });
            let step = remove(&place, saved.as_deref());
            let killed = shadow.kills(&world, &step, n);
            assert_eq!(world.run(&step), StepOutcome::Removed { branch_kept: false }, "{n}");
            assert!(!place.worktree.exists(), "{n}");
            assert_eq!(world.notes(place.story.as_str()), [""; 0], "{n}");
            if let Some(saved) = saved {
                assert_eq!(world.git(&["show", &format!("{saved}:x")]), "dirty");
                world.git(&["update-ref", "-d", &saved]);
            }
            killed
        });
    }
    let left = fs::read_dir(world.git_dir().join("worktrees")).into_iter().flatten().count();
    assert_eq!(left, 0);
    world.check_main();
}

/// Runs a step and kills the run after a while; then runs it to its end. A lock that git died with
/// and that is not the story's own is told by its name, and taken away by hand.
fn killed_after(world: &World, step: &Step, name: &str, after: Duration) -> StepOutcome {
    let id = world.scratch.borrow().run_id(name);
    let spec = spec_of(id, step, world.environment(), &[]).unwrap();
    let mut run = world.scratch.borrow().start(name, &spec);
    pass(after);
    run.connection.kill().expect("it can be killed, also if it has ended");
    let _ = end_of(&mut run);
    let outcome = world.run(step);
    let StepOutcome::Refused { why: Refused::LockHeld, text, .. } = &outcome else {
        return outcome;
    };
    // The path has quotes of its own.
    let from_lock = text.split_once("Unable to create '").expect("it is named").1;
    let lock = from_lock.split_once("': File exists").expect("it is named").0;
    let own = "refs/heads/kennel/";
    assert!(!lock.contains(own), "{name}: a lock of the story's own was not dropped: {text}");
    fs::remove_file(lock).unwrap_or_else(|error| panic!("{name}: {error}, though told: {text}"));
    world.run(step)
}

#[test]
fn at_no_particular_moment() {
    let world = World::new("kill-random");
    for n in 0..200 {
        world.write(&format!("many/{n}"), &format!("{n}\n").repeat(50));
    }
    world.commit_main("many/x", "x");
    let base = world.commit_main("a", "one\ntwo\nchanged\n");
    for n in 0..12 {
        let after = Duration::from_millis(15 * n);
        let place = world.place(&format!("s{n}"));
        let outcome = killed_after(&world, &prepare(&place), &format!("p{n}"), after);
        assert!(matches!(outcome, StepOutcome::Prepared { .. }), "{n}: {outcome:?}");
        assert_eq!(world.look(&place).changed, 0, "{n}");
        world.git_in(&place.worktree, &["reset", "-q", "--hard", "main~2"]);
        world.commit(&place, "b", "work\n");
        let step = merge(&place, MergeMode::Rebase);
        let outcome = killed_after(&world, &step, &format!("m{n}"), after);
        assert!(matches!(outcome, StepOutcome::Merged { commits: 1, .. }), "{n}: {outcome:?}");
        let seen = world.look(&place);
        assert_eq!((seen.changed, seen.untracked, seen.behind), (0, 0, 0), "{n}");
        let kept = world.save(&place);
        let step = remove(&place, Some(&kept.reference));
        let outcome = killed_after(&world, &step, &format!("r{n}"), after);
        assert_eq!(outcome, StepOutcome::Removed { branch_kept: true }, "{n}");
        assert!(!place.worktree.exists(), "{n}");
    }
    assert_eq!(world.git(&["rev-parse", "main"]), base);
    world.git(&["fsck", "--strict"]);
    world.check_main();
}

// Killed inside git: states that git itself leaves behind.

#[test]
fn a_worktree_that_git_had_half_made_is_made_anew() {
    let world = World::new("half-made");
    let place = world.fix_it();
    let step = prepare(&place);
    // As `git worktree add` leaves it at several points: registered and locked, then with its
    // directory, then with the file in it, then with a file of git's own that is not written yet.
    for stage in 0..4 {
        world.git(&["branch", "-f", "kennel/fix-it", "main"]);
        let notes = world.git_dir().join("kennel/fix-it");
        fs::create_dir_all(&notes).unwrap();
        fs::write(notes.join("branch"), "kennel/fix-it\n").unwrap();
        fs::write(notes.join("adding"), "x\n").unwrap();
        let admin = world.git_dir().canonicalize().unwrap().join("worktrees/fix-it");
        fs::create_dir_all(&admin).unwrap();
        fs::write(admin.join("locked"), "initializing").unwrap();
        fs::create_dir_all(&place.worktree).unwrap();
        let real = place.worktree.canonicalize().unwrap().join(".git");
        fs::write(admin.join("gitdir"), format!("{}\n", real.display())).unwrap();
        match stage {
            0 => fs::remove_dir(&place.worktree).unwrap(),
            1 => {}
            _ => fs::write(real, format!("gitdir: {}\n", admin.display())).unwrap(),
        }
        if stage == 3 {
            fs::write(admin.join("commondir"), "").unwrap();
        }
        let outcome = world.run(&step);
        assert!(
            matches!(outcome, StepOutcome::Prepared { made: true, .. }),
            "{stage}: {outcome:?}"
        );
        assert_eq!(world.look(&place).changed, 0);
        let outcome = world.run(&remove(&place, None));
        assert_eq!(outcome, StepOutcome::Removed { branch_kept: false });
    }
    world.check_main();
}

#[test]
fn a_checkout_and_a_merge_that_died_with_gits_lock_go_on() {
    let world = World::new("died");
    let place = world.fix_it();
    world.prepare(&place);
    let admin = world.admin(&place);
    let notes = world.git_dir().join("kennel/fix-it");
    // In the making of a branch, of which nothing is there but the note and git's lock.
    let other = world.place("other");
    fs::create_dir(world.git_dir().join("kennel/other")).unwrap();
    fs::write(world.git_dir().join("kennel/other/branch"), "kennel/other\n").unwrap();
    fs::write(world.git_dir().join("refs/heads/kennel/other.lock"), "").unwrap();
    world.prepare(&other);

    // In the checkout of a new worktree.
    let on_branch = world.git_dir().join("refs/heads/kennel/fix-it.lock");
    fs::write(notes.join("adding"), "x\n").unwrap();
    fs::write(admin.join("index.lock"), "").unwrap();
    fs::write(&on_branch, "").unwrap();
    fs::remove_file(place.worktree.join("a")).unwrap();
    world.prepare(&place);
    assert!(place.worktree.join("a").exists() && !admin.join("index.lock").exists());
    assert!(!on_branch.exists());

    // In a fast-forward: files of the base are there, the index knows nothing of them.
    let tip = world.commit(&place, "b", "work\n");
    let base = world.commit_main("c", "new\n");
    fs::write(notes.join("merging"), format!("{tip} {base}\n")).unwrap();
    fs::write(admin.join("index.lock"), "").unwrap();
    write_in(&place.worktree, "c", "new\n");
    write_in(&place.worktree, "a", "torn");
    let outcome = world.run(&merge(&place, MergeMode::Rebase));
    assert!(matches!(outcome, StepOutcome::Merged { commits: 1, .. }), "{outcome:?}");
    let seen = world.look(&place);
    assert_eq!((seen.changed, seen.untracked, seen.behind), (0, 0, 0));
    assert_eq!(seen.locks, [""; 0]);
    // Had a person been there meanwhile, this would be their work.
    let kept = world.git(&["for-each-ref", "refs/kennel/saved", "--format=%(refname)"]);
    assert_eq!(world.git(&["show", &format!("{kept}:a")]), "torn");

    // A lock that no note explains is somebody's.
    fs::write(admin.join("index.lock"), "").unwrap();
    assert_eq!(world.look(&place).locks.len(), 1);
    write_in(&place.worktree, "x", "saved all the same");
    world.save(&place);
    assert!(admin.join("index.lock").exists());
    world.check_main();
}

#[test]
fn a_removal_and_a_landing_that_died_half_way_are_finished_or_told() {
    let world = World::new("half-way");
    let place = world.fix_it();
    world.prepare(&place);
    let notes = world.git_dir().join("kennel/fix-it");
    for git_file_too in [false, true] {
        world.prepare(&place);
        fs::write(notes.join("removing"), "\n").unwrap();
        fs::write(world.git_dir().join("refs/heads/kennel/fix-it.lock"), "").unwrap();
        fs::remove_file(place.worktree.join("a")).unwrap();
        if git_file_too {
            fs::remove_file(place.worktree.join(".git")).unwrap();
        }
        let outcome = world.run(&remove(&place, None));
        assert_eq!(outcome, StepOutcome::Removed { branch_kept: false });
    }
    world.check_main();
    // Somebody was there between the crash and the second try.
    world.prepare(&place);
    fs::write(notes.join("removing"), "\n").unwrap();
    fs::remove_file(place.worktree.join(".gitignore")).unwrap();
    write_in(&place.worktree, "a", "by hand");
    world.refused(&remove(&place, None), Refused::Dirty);
    let saved = world.save(&place).reference;
    write_in(&place.worktree, "a", "by hand, later");
    world.refused(&remove(&place, Some(&saved)), Refused::NotSaved);
    world.prepare(&place);
    assert_eq!(fs::read_to_string(place.worktree.join("a")).unwrap(), "by hand, later");
    assert!(place.worktree.join(".gitignore").exists(), "what the removal took is back");
    write_in(&place.worktree, "a", "by hand");
    let outcome = world.run(&remove(&place, Some(&saved)));
    assert_eq!(outcome, StepOutcome::Removed { branch_kept: false });

    // git had written files and index of the checkout, and not yet moved the branch.
    let old = world.prepare(&place);
    let new = world.commit(&place, "b", "work\n");
    fs::write(notes.join("landing"), format!("{old} {new}\n")).unwrap();
    world.git(&["read-tree", "-m", "-u", &new]);
    let step = Step::Land { place: place.clone(), old, new: new.clone() };
    assert_eq!(world.run(&step), StepOutcome::Landed { head: new.clone() });
    assert_eq!(world.git(&["status", "--porcelain"]), "");
}

/// A landing that changes, adds and deletes files, and what git had made of it when it died.
struct CutOff {
    world: World,
    place: Place,
    old: String,
    new: String,
}

impl CutOff {
    fn new(name: &str) -> Self {
        let world = World::new(name);
        for (file, text) in [("gone", "x\n"), ("deep/er/old", "x\n"), ("run", "x\n")] {
            world.commit_main(file, text);
        }
        let place = world.fix_it();
        let old = world.prepare(&place);
        for file in ["gone", "deep/er/old"] {
            fs::remove_file(place.worktree.join(file)).unwrap();
        }
        let run = place.worktree.join("run");
        fs::set_permissions(run, fs::Permissions::from_mode(0o755)).unwrap();
        symlink("nowhere", place.worktree.join("link")).unwrap();
        write_in(&place.worktree, "new/er/\"it's\"\n", "some work\n");
        let new = world.commit(&place, "a", "other\n");
        let cut_off = Self { world, place, old, new };
        let notes = cut_off.world.git_dir().join("kennel/fix-it");
        fs::write(notes.join("landing"), format!("{} {}\n", cut_off.old, cut_off.new)).unwrap();
        cut_off
    }

    fn step(&self) -> Step {
        let (old, new) = (self.old.clone(), self.new.clone());
        Step::Land { place: self.place.clone(), old, new }
    }

    #[track_caller]
    fn lands(self, what: &str) {
        assert!(self.look(), "{what}: it is told that a landing is not over");
        let outcome = self.world.run(&self.step());
        assert_eq!(outcome, StepOutcome::Landed { head: self.new.clone() }, "{what}");
        assert_eq!(self.world.git(&["status", "--porcelain"]), "", "{what}");
        assert_eq!(self.world.git(&["rev-parse", "HEAD"]), self.new, "{what}");
        assert!(!self.look() && !self.world.git_dir().join("index.lock").exists(), "{what}");
        assert_eq!(self.world.notes("fix-it"), ["branch", "ready"], "{what}");
    }

    fn look(&self) -> bool {
        let outcome = self.world.run(&Step::Look { place: self.place.clone() });
        let StepOutcome::Looked(looked) = outcome else { panic!("{outcome:?}") };
        looked.landing
    }
}

#[test]
fn a_landing_that_was_cut_off_anywhere_is_undone_and_done_again() {
    let lock = |cut_off: &CutOff| {
        let text = "kennel: landing of story fix-it\n";
        for file in ["index.lock", "kennel/fix-it/held"] {
            fs::write(cut_off.world.git_dir().join(file), text).unwrap();
        }
    };
    type Harm = fn(&World);
    let states: [(&str, Harm); 6] = [
        ("nothing was written", |_| {}),
        ("one file was being written", |world| world.write("a", "oth")),
        ("an old one was taken away", |world| {
            fs::remove_file(world.repository.join("a")).unwrap();
        }),
        ("new ones are there, one in part", |world| {
            world.write("a", "other\n");
            world.write("new/er/\"it's\"\n", "some");
            symlink("nowhere", world.repository.join("link")).unwrap();
        }),
        ("all are there but the index", |world| {
            fs::remove_file(world.repository.join("gone")).unwrap();
            fs::remove_dir_all(world.repository.join("deep")).unwrap();
            world.write("a", "other\n");
            world.write("new/er/\"it's\"\n", "some work\n");
            let run = world.repository.join("run");
            fs::set_permissions(run, fs::Permissions::from_mode(0o755)).unwrap();
            symlink("nowhere", world.repository.join("link")).unwrap();
        }),
        ("all but the branch", |world| {
            world.git(&["read-tree", "-m", "-u", "kennel/fix-it"]);
        }),
    ];
    for (what, harm) in states {
        for locked in [false, true] {
            let cut_off = CutOff::new("cut-off");
            harm(&cut_off.world);
            if locked {
                lock(&cut_off);
            }
            cut_off.lands(what);
        }
    }
    // All steps of the story after it undo it as well.
    for merges in [true, false] {
        let cut_off = CutOff::new("cut-off");
        let saved = cut_off.world.save(&cut_off.place).reference;
        cut_off.world.write("a", "oth");
        lock(&cut_off);
        let step = if merges {
            merge(&cut_off.place, MergeMode::Rebase)
        } else {
            remove(&cut_off.place, Some(&saved))
        };
        let outcome = cut_off.world.run(&step);
        assert!(
            matches!(outcome, StepOutcome::Merged { .. } | StepOutcome::Removed { .. }),
            "{outcome:?}"
        );
        cut_off.world.check_main();
        assert!(!cut_off.look());
    }
    // Another story has landed meanwhile: what is new and not tracked hindered nobody.
    let cut_off = CutOff::new("overtaken");
    cut_off.world.write("new/er/\"it's\"\n", "some");
    cut_off.world.write("mine", "mine\n");
    cut_off.world.git(&["mv", "run", "ran"]);
    cut_off.world.git(&["commit", "-q", "-m", "other"]);
    cut_off.world.refused(&cut_off.step(), Refused::BaseMoved);
    assert_eq!(cut_off.world.git(&["status", "--porcelain"]), "?? mine");
    assert!(!cut_off.look());
    // It was undone, or done, by hand.
    for to in ["main", "kennel/fix-it"] {
        let cut_off = CutOff::new("by-hand");
        cut_off.world.write("a", "oth");
        cut_off.world.git(&["reset", "-q", "--hard", to]);
        cut_off.lands(to);
    }
}

#[test]
fn what_a_person_wrote_or_holds_in_a_half_landed_checkout_is_left_alone() {
    for (file, text) in [("a", "other\nand mine\n"), ("gone", "mine\n"), ("link", "mine\n")] {
        let cut_off = CutOff::new("by-a-person");
        cut_off.world.write("new/er/\"it's\"\n", "some");
        cut_off.world.write(file, text);
        cut_off.world.keep_main();
        let told = cut_off.world.refused(&cut_off.step(), Refused::HalfLanded);
        for word in [file, &cut_off.old, &cut_off.new, "git reset --hard"] {
            assert!(told.contains(word), "{word:?} is not in {told}");
        }
        cut_off.world.check_main();
        cut_off.world.git(&["reset", "-q", "--hard"]);
        cut_off.world.git(&["clean", "-q", "-f", "-d"]);
        cut_off.lands(file);
    }
    // Whoever has the index has it, with or without a landing that was cut off.
    for cut_off in [true, false] {
        let held = CutOff::new("held");
        if !cut_off {
            fs::remove_file(held.world.git_dir().join("kennel/fix-it/landing")).unwrap();
        }
        let lock = held.world.git_dir().join("index.lock");
        fs::write(&lock, "").unwrap();
        let told = held.world.refused(&held.step(), Refused::LockHeld);
        assert!(told.contains("index.lock"), "{told}");
        held.world.check_main();
        fs::remove_file(lock).unwrap();
        assert!(matches!(held.world.run(&held.step()), StepOutcome::Landed { .. }));
    }
}
