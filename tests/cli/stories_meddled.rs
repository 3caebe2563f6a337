//! Stories while somebody else has a hand in their repository: another home's daemon, or a person
//! who renames, deletes and moves what is a story's. Work is kept, what is wrong is named, and what
//! was put right goes on.

use std::fs;

use serde_json::json;

use super::home::Home;
use super::storied::{CODES, Repo, count, home, script, sign, text, told, until_told, usual};

/// A coder and a gate of the last stage that wait for a sign.
fn with_waits(home: &Home) {
    let waits = "[ $1 = current ] || { say at-gate-$KENNEL_STORY; wait_for gate-$KENNEL_STORY; }";
    script(home, "gate", waits);
    script(
        home,
        "coder",
        &format!("[ -e $KENNEL_STORY.txt ] || {{ {CODES}; }}\nsay up-$KENNEL_STORY\nwait_for go"),
    );
}

#[test]
fn a_base_that_is_renamed_under_a_story_is_named_and_back_again_it_is_landed_on() {
    let home = home();
    with_waits(&home);
    sign(&home, "go");
    let repo = Repo::new(&home, "repo", &usual("max_retries = 0\nmain_checkout = \"share\""));
    repo.add("a", &[]);
    until_told(&home, "at-gate-a");
    repo.git(&["branch", "-q", "-m", "main", "trunk"]);
    sign(&home, "gate-a");
    let blocked = repo.until_blocked("a");
    let because = blocked["hold_because"].as_str().expect("it is text");
    assert!(because.contains("there is no branch main"), "{because}");
    assert_eq!(repo.subjects("trunk"), ["first"]);
    repo.git(&["branch", "-q", "-m", "trunk", "main"]);
    repo.story(&["unblock", "a"]);
    repo.until_done("a");
    assert_eq!(repo.landed("a"), 1);
    repo.check();
    home.check();
}

#[test]
fn what_is_deleted_moved_or_taken_under_a_story_is_named_and_put_right_it_goes_on() {
    let home = home();
    with_waits(&home);
    let ids = ["dir", "admin", "moved", "taken"];
    let repo = Repo::new(&home, "repo", &usual("max_retries = 1\nmain_checkout = \"share\""));
    for id in ids {
        sign(&home, &format!("gate-{id}"));
        repo.add(id, &[]);
        until_told(&home, &format!("up-{id}"));
    }
    let tree = |id: &str| repo.worktree(id).expect("it has one");
    for id in ["moved", "taken"] {
        repo.story(&["freeze", id]);
        repo.until(id, "rests", |story| story["step"].is_null());
    }
    // While its agent runs: the directory; what git knows of it.
    let admin = tree("admin");
    fs::remove_dir_all(tree("dir")).expect("it can be removed");
    fs::remove_dir_all(repo.dir().join(".git/worktrees/admin")).expect("it can be removed");
    // While it rests: away from its commit; to a worktree of the person's own.
    let tip = repo.git(&["rev-parse", "kennel/moved"]);
    repo.git(&["update-ref", "refs/heads/kennel/moved", "main"]);
    let taken = tree("taken");
    repo.git(&["worktree", "unlock", text(&taken)]);
    repo.git(&["worktree", "remove", text(&taken)]);
    let mine = home.path().join("mine");
    repo.git(&["worktree", "add", "-q", text(&mine), "kennel/taken"]);
    sign(&home, "go");
    for id in ["moved", "taken"] {
        repo.story(&["unblock", id]);
    }
    let done = repo.until_done("dir");
    assert_eq!((repo.landed("dir"), &done["retries_used"]), (1, &json!(1)), "{done:#}");
    for (id, words) in [
        ("admin", "is no worktree of"),
        ("admin", "move it away; what is committed for the story is on kennel/admin"),
        ("moved", "changes that are in no commit"),
        ("taken", "checked out elsewhere"),
    ] {
        let blocked = repo.until_blocked(id);
        let because = blocked["hold_because"].as_str().expect("it is text");
        assert!(because.contains(words), "{id}: {words:?} is not in {because:?}");
    }
    // Nobody works where nothing could be committed.
    assert_eq!(count(&home, "began admin current"), 1, "{}", told(&home));
    assert!(mine.join("taken.txt").exists() && admin.join("admin.txt").exists());
    fs::rename(&admin, home.path().join("away")).expect("it can be moved");
    repo.git(&["update-ref", "refs/heads/kennel/moved", &tip]);
    repo.git(&["worktree", "remove", text(&mine)]);
    for id in ["admin", "moved", "taken"] {
        repo.story(&["unblock", id]);
        repo.until_done(id);
        assert_eq!(repo.landed(id), 1);
    }
    for id in ids {
        repo.story(&["archive", id]);
        repo.until_gone(id);
    }
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 1);
    repo.check();
    home.check();
}

#[test]
fn two_homes_share_a_repository_and_of_two_stories_of_one_id_one_is_told_who_has_its_branch() {
    let home = home();
    let other = super::storied::home();
    for home in [&home, &other] {
        with_waits(home);
        for name in ["go", "gate-same", "gate-one", "gate-two"] {
            sign(home, name);
        }
    }
    let repo = Repo::new(&home, "repo", &usual("max_retries = 3\nmain_checkout = \"share\""));
    let theirs = Repo::at(&other, repo.dir());
    other.ok(&["trust", text(repo.dir())]);
    repo.add("same", &[]);
    until_told(&home, "up-same");
    theirs.add("same", &[]);
    repo.add("one", &[]);
    theirs.add("two", &[]);
    for (repo, id) in [(&repo, "same"), (&repo, "one"), (&theirs, "two")] {
        repo.until_done(id);
        assert_eq!(repo.landed(id), 1);
    }
    let blocked = theirs.until_blocked("same");
    let because = blocked["hold_because"].as_str().expect("it is text");
    assert!(because.contains("the branch kennel/same is checked out elsewhere"), "{because}");
    assert!(because.contains(text(home.path())), "{because}");
    for (repo, id) in [(&theirs, "same"), (&theirs, "two"), (&repo, "one"), (&repo, "same")] {
        repo.story(&["archive", id]);
        repo.until_gone(id);
    }
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(repo.git(&["for-each-ref", "refs/heads/kennel"]), "");
    repo.check();
    theirs.check();
    home.check();
    other.check();
}
