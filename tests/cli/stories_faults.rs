//! Stories in a world that is not as it should be: no git, a bare repository, a base or a worktree
//! that is gone, locked or elsewhere, a full disk, and files of configuration that break under way.
//! Every fault is named with what to do, and once it is gone the story goes on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kennel_tests::{skipped, until};
use serde_json::json;

use super::faults::{Full, inside, on_a_small_disk};
use super::home::{Home, make_program};
use super::storied::{CODES, Repo, count, home, script, sign, text, told, until_told, usual};

/// A directory with all programs there are, but for git.
fn programs_without_git(home: &Home) -> PathBuf {
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("it can be made");
    let path = std::env::var_os("PATH").expect("it is set");
    for dir in std::env::split_paths(&path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_name().to_string_lossy().starts_with("git") {
                // The first of a name counts, as in the variable.
                let _ = std::os::unix::fs::symlink(entry.path(), bin.join(entry.file_name()));
            }
        }
    }
    bin
}

#[track_caller]
fn expect_because(repo: &Repo<'_>, id: &str, what: &[&str]) {
    let blocked = repo.until_blocked(id);
    let because = blocked["hold_because"].as_str().expect("it is text");
    for what in what {
        assert!(because.contains(what), "{what:?} is not in {because:?}");
    }
}

#[test]
fn without_git_a_story_is_blocked_by_name_and_with_it_again_it_goes_on() {
    let mut home = home();
    let path = std::env::var("PATH").expect("it is text");
    let bin = programs_without_git(&home);
    home.set("PATH", bin.to_str().expect("it is text"));
    {
        let repo = Repo::new(&home, "repo", &usual("max_retries = 1"));
        repo.add("a", &[]);
        expect_because(&repo, "a", &["its worktree could not be made", "there is no git in PATH"]);
        assert_eq!(count(&home, "began"), 0, "{}", told(&home));
    }
    home.down();
    home.set("PATH", &path);
    let repo = Repo::known(&home, "repo");
    repo.story(&["unblock", "a"]);
    repo.until_done("a");
    repo.check();
    home.check();
}

/// A git that is away while there is this sign, and tells when it was asked for then.
fn git_that_can_be_away(home: &mut Home) {
    let path = std::env::var("PATH").expect("it is text");
    let git = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.exists());
    let git = git.expect("there is a git");
    let bin = home.path().join("bin");
    fs::create_dir(&bin).expect("it can be made");
    let body = format!(
        "#!/bin/sh\n\
         [ -e \"$SIGNS/away\" ] && {{ echo away >>\"$TRUTH\"; echo no room >&2; exit 128; }}\n\
         exec {} \"$@\"\n",
        text(&git)
    );
    let script = home.path().join("git.sh");
    fs::write(&script, body).expect("it can be written");
    make_program(&script, &bin.join("git"));
    home.set("PATH", &format!("{}:{path}", text(&bin)));
}

#[test]
fn work_that_cannot_be_looked_at_is_looked_at_again_and_never_charged_a_retry() {
    let mut home = home();
    git_that_can_be_away(&mut home);
    let away = home.path().join("signs/away");
    script(&home, "coder", &format!("{CODES}\n[ $(tries) -gt 1 ] || : > \"$SIGNS/away\""));
    let repo = Repo::new(&home, "repo", &usual(""));
    // For a moment: what was done counts, and is not done again.
    repo.add("a", &[]);
    until_told(&home, "away");
    fs::remove_file(&away).expect("it was there");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(count(&home, "began a current "), 2, "{}", told(&home));
    // For longer than it is looked for: it is tried again later, and nobody calls that a failure.
    repo.add("b", &[]);
    let waits = repo.until("b", "waits", |story| story["waits_code"] == "misfire");
    assert!(waits["waits_for"].as_str().is_some_and(|why| why.contains("no room")), "{waits}");
    fs::remove_file(&away).expect("it was there");
    let done = repo.until_done("b");
    assert_eq!(done["retries_used"], 0, "{done}");
    repo.check();
    home.check();
}

#[test]
fn a_bare_repository_has_stories_that_land() {
    let home = home();
    let seed = Repo::new(&home, "seed", &usual(""));
    let bare = Repo::known(&home, "bare");
    seed.git(&["clone", "-q", "--bare", ".", text(bare.dir())]);
    bare.configure(&usual(""));
    bare.add("a", &[]);
    bare.add("b", &["--depends-on", "a"]);
    bare.until_done("b");
    assert_eq!(bare.subjects("main"), ["b: work", "a: work", "first"]);
    for id in ["a", "b"] {
        bare.story(&["archive", id]);
        bare.until_gone(id);
    }
    assert_eq!(bare.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(seed.subjects("main"), ["first"]);
    bare.check_repository();
    seed.check();
    home.check();
}

#[test]
fn a_base_that_is_gone_is_named_and_back_again_it_is_landed_on() {
    let home = home();
    let repo = Repo::new(&home, "repo", &usual("max_retries = 0"));
    repo.git(&["checkout", "-q", "-b", "side"]);
    repo.git(&["branch", "-q", "-m", "main", "hidden"]);
    repo.add("a", &[]);
    expect_because(&repo, "a", &["there is no branch main"]);
    repo.git(&["branch", "-q", "-m", "hidden", "main"]);
    repo.story(&["unblock", "a"]);
    repo.until_done("a");
    // The checkout is on another branch: it stays as it is.
    assert_eq!((repo.landed("a"), repo.subjects("side").len()), (1, 1));
    repo.git(&["checkout", "-q", "main"]);
    repo.check();
    home.check();
}

#[test]
fn a_worktree_that_somebody_deleted_is_made_again_with_all_its_commits() {
    let home = home();
    script(
        &home,
        "coder",
        r#"[ -e once.txt ] || commit once.txt x once
        say up-$(tries); wait_for go; commit b.txt x two"#,
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    repo.add("gone", &[]);
    until("both work", || (count(&home, "up-1") == 2).then_some(()));
    for id in ["a", "gone"] {
        repo.story(&["freeze", id]);
        repo.until(id, "rests", |story| story["step"].is_null());
        fs::remove_dir_all(repo.worktree(id).expect("it has one")).expect("it can be removed");
    }
    sign(&home, "go");
    repo.story(&["unblock", "a"]);
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(repo.subjects("main"), ["a: two", "a: once", "first"]);
    // One that nobody goes on with can be put away all the same; its branch stays.
    repo.story(&["archive", "gone"]);
    repo.until_gone("gone");
    let kept = repo.git(&["for-each-ref", "--format=%(refname)", "--contains", "kennel/gone"]);
    assert_eq!(kept, "refs/heads/kennel/gone");
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 2);
    repo.check();
    home.check();
}

#[test]
fn a_worktree_that_somebody_locked_is_not_removed_until_it_is_free() {
    let home = home();
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    repo.until_done("a");
    let worktree = repo.worktree("a").expect("it has one");
    let worktree = worktree.to_str().expect("it is text");
    repo.git(&["worktree", "unlock", worktree]);
    repo.git(&["worktree", "lock", "--reason", "mine", worktree]);
    repo.story(&["archive", "a"]);
    expect_because(&repo, "a", &["could not be removed", "locked by somebody else: mine"]);
    assert!(Path::new(worktree).join("a.txt").exists());
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    repo.git(&["worktree", "unlock", worktree]);
    repo.story(&["unblock", "a"]);
    let gone = repo.until_gone("a");
    assert_eq!(gone["done"], true, "{gone}");
    assert!(!Path::new(worktree).exists());
    repo.check();
    home.check();
}

#[test]
fn of_stories_whose_worktrees_were_deleted_merged_branches_go_and_the_others_are_told() {
    let home = home();
    let body = format!("{CODES}\nsay \"up $KENNEL_STORY\"\nwait_for go-$KENNEL_STORY");
    script(&home, "coder", &body);
    let repo = Repo::new(&home, "repo", &usual(""));
    sign(&home, "go-done");
    repo.add("done", &[]);
    repo.until_done("done");
    repo.add("open", &[]);
    // Not in the midst of its commit.
    until_told(&home, "up open");
    repo.story(&["freeze", "open"]);
    repo.until("open", "has no run", |story| story["step"].is_null());
    // In this order nobody begins, who would have its worktree made again.
    repo.story(&["move", "open", "backlog"]);
    repo.story(&["unblock", "open"]);
    let root = repo.worktree("done").expect("it has one");
    fs::remove_dir_all(root.parent().expect("it is below one")).expect("it can be removed");
    for (id, notes) in [
        ("done", json!(null)),
        ("open", json!(["what its base has not is kept on its branch kennel/open"])),
    ] {
        repo.story(&["archive", id]);
        let gone = repo.until_gone(id);
        assert_eq!(gone["notes"], notes, "{gone}");
    }
    let heads = repo.git(&["for-each-ref", "--format=%(refname:short)", "refs/heads"]);
    assert_eq!(heads, "kennel/open\nmain");
    repo.check();
    home.check();
}

#[test]
fn worktrees_may_be_on_another_file_system() {
    let home = home();
    let root = Path::new("/dev/shm").join(home.path().file_name().expect("it has a name"));
    let device = |path: &Path| fs::metadata(path).map(|is| is.dev()).ok();
    if device(Path::new("/dev/shm")).is_none_or(|dev| Some(dev) == device(home.path())) {
        return skipped("worktrees_may_be_on_another_file_system", "there is none at /dev/shm");
    }
    fs::create_dir(&root).expect("it can be made");
    let root_is = format!("worktree_root = {:?}", root.to_str().expect("it is text"));
    let repo = Repo::new(&home, "repo", &usual(&root_is));
    repo.add("a", &[]);
    repo.until_done("a");
    assert!(repo.worktree("a").expect("it has one").starts_with(&root));
    repo.story(&["archive", "a"]);
    repo.until_gone("a");
    assert_eq!(repo.landed("a"), 1);
    repo.check();
    home.check();
    fs::remove_dir_all(&root).expect("it can be removed");
}

#[test]
fn a_disk_that_is_full_while_an_agent_ends_costs_nothing_once_there_is_room() {
    let test =
        "stories_faults::a_disk_that_is_full_while_an_agent_ends_costs_nothing_once_there_is_room";
    let Some(place) = inside(test) else { return on_a_small_disk(test) };
    let home = home();
    // Not in the home: that is full.
    let go = PathBuf::from(format!("/dev/shm/kt-{}-go", std::process::id()));
    let body = format!("{CODES}\nsay up\nwhile [ ! -e {} ]; do sleep 0.02; done", go.display());
    script(&home, "coder", &body);
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    until_told(&home, "up");
    let run = repo.show("a")["run"].as_str().expect("it runs").to_owned();
    let full = Full::disk(&place);
    let (code, words) = repo.refused(&["add", "b"]);
    assert_eq!(code, "store_failed", "{words}");
    fs::write(&go, "").expect("it can be made");
    until("the agent has ended", || (home.show(&run)["state"] == "dead").then_some(()));
    assert_eq!(repo.show("a")["stage"], "current");
    drop(full);
    let done = repo.until_done("a");
    assert_eq!(count(&home, "up"), 1, "{}", told(&home));
    assert_eq!((repo.landed("a"), &done["retries_used"]), (1, &json!(0)), "{done}");
    let _ = fs::remove_file(go);
    repo.check();
    home.check();
}

#[test]
fn a_file_that_breaks_or_is_not_trusted_stops_nobody_and_trust_counts_at_once() {
    let home = home();
    script(&home, "coder", &format!("wait_for go-$KENNEL_STORY\n{CODES}"));
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    repo.add("b", &[]);
    until_told(&home, "began a ");
    until_told(&home, "began b ");
    // Broken: the last good one counts, and it is told.
    repo.put_file("[[agent]\nnonsense");
    let noted = |word: &str| {
        let listed = home.ok(&["story", "-C", text(repo.dir()), "list"]);
        assert!(listed.contains(word), "{word:?} is not in {listed}");
    };
    noted("kennel.toml");
    let doctor = home.kennel(&["doctor"]);
    assert!(doctor.out.contains("kennel.toml"), "{doctor:?}");
    sign(&home, "go-a");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(repo.show("b")["step"], "agent");
    // Good and not trusted: the same.
    let extra = usual("").replace(
        "[[stage]]\nname = \"qa\"",
        "[[stage]]\nname = \"extra\"\n[[stage]]\nname = \"qa\"",
    );
    let extra = extra.replace("agents = [\"coder\"]", "agents = [\"coder\"]\nnext = \"extra\"");
    repo.put_file(&extra);
    noted("trust");
    assert_eq!(repo.refused(&["move", "b", "extra"]).0, "stage_not_found");
    // Trusted: it counts without a restart, also for whoever works now.
    let daemon = home.daemon().expect("it is up").identity().pid;
    home.ok(&["trust", text(repo.dir())]);
    sign(&home, "go-b");
    let there = repo.until("b", "is in the new stage", |story| story["stage"] == "extra");
    assert_eq!(there["waits_code"], "move", "{there}");
    assert_eq!(home.daemon().expect("it is up").identity().pid, daemon);
    repo.story(&["move", "b", "qa"]);
    repo.until_done("b");
    repo.check();
    home.check();
}

#[test]
fn after_a_restart_what_was_trusted_last_counts_until_the_changed_file_is_trusted() {
    let home = home();
    script(&home, "coder", &format!("wait_for go-$KENNEL_STORY\n{CODES}"));
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    until_told(&home, "began a ");
    for (id, broken) in [("b", false), ("c", true)] {
        // What nobody has trusted would leave a mark, and be told by it.
        let other = usual("").replace("@AGENTS@/gate", "@AGENTS@/untrusted");
        repo.put_file(if broken { "[[agent]\nnonsense" } else { &other });
        home.kill_daemon();
        let listed = home.ok(&["story", "-C", text(repo.dir()), "list"]);
        assert!(listed.contains("what was trusted last counts"), "{listed}");
        repo.add(id, &[]);
        until_told(&home, &format!("began {id} "));
    }
    for id in ["a", "b", "c"] {
        sign(&home, &format!("go-{id}"));
        let done = repo.until_done(id);
        assert_eq!(done["retries_used"], 0, "{done}");
    }
    repo.check();
    home.check();
}

#[test]
fn without_a_usable_file_stories_are_seen_and_held_and_nothing_begins() {
    let home = home();
    script(&home, "coder", &format!("wait_for go-$KENNEL_STORY\n{CODES}"));
    let repo = Repo::new(&home, "repo", &usual(""));
    for id in ["frozen", "gone", "kept"] {
        repo.add(id, &[]);
        until_told(&home, &format!("began {id} "));
    }
    repo.add("later", &["--stage", "backlog"]);
    let all = told(&home);
    home.ok(&["trust", "--revoke", text(repo.dir())]);
    let user_file = home.path().join("config/config.toml");
    fs::create_dir_all(user_file.parent().expect("it has one")).expect("it can be made");
    for (broken, said) in [("[limits]\nwal = \"1m\"\n", "wal"), ("", "nobody has trusted it")] {
        fs::write(&user_file, broken).expect("it can be written");
        home.kill_daemon();
        let listed = home.ok(&["story", "-C", text(repo.dir()), "list"]);
        assert!(listed.contains(said) && listed.contains("kept"), "{listed}");
        let shown = home.ok(&["story", "-C", text(repo.dir()), "show", "kept"]);
        assert!(shown.contains(said) && shown.contains("nothing is begun"), "{shown}");
        for args in [&["freeze", "frozen"][..], &["archive", "gone"], &["block", "later"]] {
            let all = [&["story", "-C", text(repo.dir())][..], args].concat();
            let (said_of_it, words) = (home.kennel(&all), args.join(" "));
            assert_eq!(said_of_it.code, 0, "{words}: {said_of_it:?}");
        }
        repo.story(&["unblock", "later"]);
        repo.story(&["move", "later", "current"]);
        let later = repo
            .until("later", "waits for the file", |story| story["waits_code"] == "unconfigured");
        assert!(later["waits_for"].as_str().is_some_and(|why| why.contains(said)), "{later}");
        repo.story(&["move", "later", "backlog"]);
        for id in ["frozen", "gone"] {
            repo.until(id, "has no run that lives", |story| story["run"].is_null());
        }
        assert_eq!(repo.show("gone")["leaving"], "archive");
    }
    // Who waits is told what for; agents that were there go on, and nobody else begins.
    repo.story(&["move", "later", "current"]);
    let waited = repo.try_story(&["wait", "later"]);
    assert_eq!(waited.code, 1, "{waited:?}");
    assert!(waited.err.contains("nobody has trusted it"), "{waited:?}");
    assert_eq!(told(&home), all, "something was run");
    assert!(repo.show("kept")["run"].is_string());
    // Trusted again, all of it is made good.
    home.ok(&["trust", text(repo.dir())]);
    repo.until_gone("gone");
    repo.story(&["unblock", "frozen"]);
    for id in ["frozen", "kept", "later"] {
        sign(&home, &format!("go-{id}"));
        repo.until_done(id);
    }
    repo.check();
    home.check();
}

#[test]
fn nothing_is_done_for_a_file_that_nobody_trusts() {
    let home = home();
    let trusted = Repo::new(&home, "trusted", &usual(""));
    let repo = Repo::known(&home, "stranger");
    trusted.git(&["clone", "-q", ".", text(repo.dir())]);
    repo.put_file(&usual(""));
    for args in [&["add", "x"][..], &["list"]] {
        let (code, words) = repo.refused(args);
        assert_eq!(code, "config_untrusted", "{words}");
        assert!(words.contains("kennel trust"), "{words}");
    }
    home.ok(&["trust", text(repo.dir())]);
    repo.add("x", &[]);
    repo.until_done("x");
    // Outside of any repository there are no stories.
    let said = home.kennel(&["--json", "story", "-C", "/", "list"]);
    assert_ne!(said.code, 0, "{said:?}");
    assert!(said.err.contains("repository"), "{said:?}");
    repo.check();
    home.check();
}
