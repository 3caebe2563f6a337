//! Disks that are full in the middle of a story's steps: that of its worktrees, that of its
//! repository, that of the home. Work is kept, what is wrong is said, the user's checkout is as it
//! was, and with room again the story goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_tests::until;
use serde_json::json;

use super::faults::{Full, inside, on_a_small_disk};
use super::home::Home;
use super::storied::{Repo, count, home, script, sign, text, until_told, usual};

/// Pages that are left on a disk that is called full: enough for notes, refs and an index, and for
/// nothing as large as a file of [`BIG`].
const FEW: u64 = 40;
/// Bytes of a file that does not fit: it is random, so that nothing makes it smaller.
const BIG: &str = "400000";

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().expect("it can be run");
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Gives a directory a disk of its own, with what is in it.
fn give_disk(dir: &Path) {
    let aside = dir.with_extension("aside");
    fs::create_dir_all(dir).expect("it can be made");
    run("cp", &["-a", text(dir), text(&aside)]);
    run("mount", &["-t", "tmpfs", "-o", "size=6m,mode=755", "kennel-test", text(dir)]);
    run("cp", &["-a", &format!("{}/.", text(&aside)), text(dir)]);
    fs::remove_dir_all(aside).expect("it can be removed");
}

/// A repository and a root for worktrees, each on a disk of its own; gates wait for a sign.
fn on_disks(home: &Home) -> (Repo<'_>, PathBuf) {
    let roots = home.path().join("roots");
    let project =
        format!("max_retries = 1\nmain_checkout = \"share\"\nworktree_root = {:?}", text(&roots));
    script(home, "gate", r#"say "at-$1-$KENNEL_STORY"; wait_for "$1-$KENNEL_STORY""#);
    let coder = format!("head -c {BIG} /dev/urandom > b-$KENNEL_STORY; commit z x work");
    script(home, "coder", &coder);
    let repo = Repo::new(home, "repo", &usual(&project));
    give_disk(repo.dir());
    give_disk(&roots);
    (repo, roots)
}

/// The story is blocked for want of room, in this stage, and the checkout is as it was.
#[track_caller]
fn blocked_for_room(repo: &Repo<'_>, id: &str, stage: &str) {
    let blocked = repo.until_blocked(id);
    assert_eq!(blocked["stage"], stage, "{blocked:#}");
    let because = blocked["hold_because"].as_str().expect("it is text");
    let told =
        ["No space left on device", "no room left"].iter().any(|word| because.contains(word));
    assert!(told, "{because}");
    repo.check();
}

#[test]
fn a_full_disk_in_the_middle_of_each_step_keeps_the_work_and_with_room_it_goes_on() {
    let test = "stories_disks::\
                a_full_disk_in_the_middle_of_each_step_keeps_the_work_and_with_room_it_goes_on";
    if inside(test).is_none() {
        return on_a_small_disk(test);
    }
    let home = home();
    let (repo, roots) = on_disks(&home);
    let by_hand = |name: &str| {
        let big = format!("head -c {BIG} /dev/urandom > {name}");
        run("sh", &["-c", &format!("cd {} && {big}", text(repo.dir()))]);
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-q", "-m", "by hand"]);
    };
    // So that a new worktree has something large in it.
    by_hand("large");
    let git_dir = repo.dir().join(".git");
    for (n, disk) in [&roots, &git_dir].into_iter().enumerate() {
        let id = format!("s{n}");
        // In prepare: of the repository nothing large is written then, so there it is really full.
        let full = Full::but_for(disk, if *disk == roots { FEW } else { 0 });
        repo.add(&id, &[]);
        blocked_for_room(&repo, &id, "current");
        drop(full);
        repo.story(&["unblock", &id]);
        // In merge: the base has moved by a large file.
        until_told(&home, &format!("at-current-{id}"));
        by_hand(&format!("larger-{n}"));
        let full = Full::but_for(disk, if *disk == roots { FEW } else { 0 });
        sign(&home, &format!("current-{id}"));
        blocked_for_room(&repo, &id, "merge");
        drop(full);
        repo.story(&["unblock", &id]);
        // In the landing: what it writes is on the disk of the repository.
        until_told(&home, &format!("at-merge-{id}"));
        let full = Full::but_for(&git_dir, FEW * n as u64);
        sign(&home, &format!("merge-{id}"));
        blocked_for_room(&repo, &id, "merge");
        assert_eq!(repo.landed(&id), 0);
        drop(full);
        repo.story(&["unblock", &id]);
        repo.until_done(&id);
        assert_eq!((repo.landed(&id), count(&home, &format!("began {id} current"))), (1, 2));
        repo.story(&["archive", &id]);
        repo.until_gone(&id);
        repo.check();
    }
    home.check();
}

#[test]
fn a_home_that_is_nearly_full_in_the_middle_of_a_landing_costs_nothing() {
    let test = "stories_disks::\
                a_home_that_is_nearly_full_in_the_middle_of_a_landing_costs_nothing";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let home = home();
    // Not in the home: that is full.
    let go = PathBuf::from(format!("/dev/shm/kt-{}-land", std::process::id()));
    let gate = format!(
        "[ $1 = current ] || while [ ! -e {}-$KENNEL_STORY ]; do sleep 0.02; done",
        go.display()
    );
    script(&home, "gate", &format!("{gate}\nsay gated-$1-$KENNEL_STORY"));
    let repo = Repo::new(&home, "repo", &usual(""));
    give_disk(repo.dir());
    for pages in [0, 9, 12, 16, 20, 24, 40] {
        let id = format!("s{pages}");
        let sign = PathBuf::from(format!("{}-{id}", go.display()));
        repo.add(&id, &[]);
        let at = repo.until(&id, "is at its last gate", |story| {
            story["stage"] == "merge" && story["step"] == "gate 1" && story["run"].is_string()
        });
        let gate = at["run"].as_str().expect("it runs").to_owned();
        until("it runs", || (home.show(&gate)["state"] == "running").then_some(()));
        let full = Full::but_for(&place, pages);
        fs::write(&sign, "").expect("it can be made");
        until("the gate has ended", || (home.show(&gate)["state"] == "dead").then_some(()));
        // What can be done in so little room is done.
        let look = until("the story was looked at", || {
            let (status, story) = repo.ask("PATCH", &format!("/{id}"), "");
            (status != 0).then_some(story)
        });
        println!("{pages} pages: {}", look["step"]);
        drop(full);
        let done = repo.until_done(&id);
        assert_eq!((repo.landed(&id), &done["retries_used"]), (1, &json!(0)), "{done:#}");
        let _ = fs::remove_file(sign);
        repo.check();
    }
    home.check();
}
