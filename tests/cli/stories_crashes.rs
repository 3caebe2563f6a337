//! Steps of git that die inside git: run, keeper and daemon at one blow, at moments that were
//! chosen and at moments that were not. In the end every story is on the base once, and the user's
//! own git finds nothing in its way.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_process::{Process, Signal};
use kennel_tests::{carriers_of, pass, skipped, until};
use serde_json::{Value, json};

use super::home::Home;
use super::storied::{Repo, all_told, home, script, sign, until_told, usual};
use super::stories_survive::{Dice, with_stops};

/// Kills everything at one blow: the daemon, the keeper of a run, and all that runs below it. False
/// if the run is over, or has not begun.
fn kill_all_of(home: &Home, run: &str) -> bool {
    let Some(pid) = home.show(run)["keeper"]["pid"].as_u64() else { return false };
    let Ok(keeper) = Process::from_number(pid as u32) else { return false };
    let numbers = carriers_of(run)
        .into_iter()
        .filter_map(|line| line.split(' ').next().and_then(|number| number.parse().ok()));
    let held: Vec<Process> = numbers.filter_map(|pid| Process::from_number(pid).ok()).collect();
    // What is held is what it was when the run was not over yet.
    if home.show(run)["state"] == "dead" {
        return false;
    }
    home.kill_daemon();
    let _ = keeper.signal(Signal::KILL);
    for process in &held {
        let _ = process.signal(Signal::KILL);
    }
    true
}

/// True if the end of a run can be proven whose keeper was killed; says so if not.
fn outlives_keepers(home: &Home, name: &str) -> bool {
    let run = home.start(&["--", "true"]);
    let is = home.show(&run)["containment"] == "cgroup";
    if !is {
        skipped(name, "there is no cgroup here");
    }
    is
}

#[test]
fn a_landing_that_dies_while_git_writes_files_is_done_by_the_next_one() {
    let home = home();
    if !outlives_keepers(&home, "a landing that dies while git writes files") {
        return;
    }
    let repo = with_stops(&home);
    for name in ["prepare", "agent", "gate-current", "gate-merge", "merge", "remove"] {
        sign(&home, name);
    }
    // In the order of the index: two files are written when the filter of the third stops git.
    script(
        &home,
        "coder",
        r#"echo new > 0.md; echo changed > a; git rm -q gone
        commit "$KENNEL_STORY.txt" work work"#,
    );
    repo.write("gone", "x\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "gone"]);
    repo.add("a", &[]);
    until_told(&home, "at-land");
    assert!(repo.dir().join("0.md").exists(), "git is in the middle of it");
    let run = repo.show("a")["run"].as_str().expect("it runs").to_owned();
    assert!(kill_all_of(&home, &run));
    until("all of it is gone", || carriers_of(&run).is_empty().then_some(()));
    sign(&home, "land");
    let done = repo.until("a", "is done", |story| story["done"] == true);
    assert_eq!((repo.landed("a"), &done["retries_used"]), (1, &json!(1)), "{done:#}");
    repo.check();
    home.check();
}

/// How many rounds of random crashes; more for a long night.
fn rounds() -> u64 {
    std::env::var("KENNEL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// A coder that does its work once, in as many files as make git take its time.
const CODES_ONCE: &str = r#"
    rm -f "$(git rev-parse --git-path index.lock)"
    mkdir -p "$KENNEL_STORY"
    for n in 1 2 3 4 5 6 7 8 9; do echo "$n" > "$KENNEL_STORY/$n"; done
    git add -A
    git diff --cached --quiet || git commit -q -m "$KENNEL_STORY: work""#;

/// Crashes of one round's stories on their way to done, and of their removal: what comes between
/// two crashes takes a second or so, and a round must come to its end.
const CRASHES: usize = 6;

/// How often a step of the same kind of a story is killed in a row. What is killed again and again
/// is given up, and so is an errand that was killed three times.
const OF_A_KIND: usize = 2;

/// Kills one run that lives, with all around it, and notes which step of which story it was. Looks
/// are most of what lives, and change nothing: most of them are let be.
fn kill_any(home: &Home, dice: &mut Dice, killed: &mut Vec<String>) {
    let out = home.ok(&["--json", "ps"]);
    let runs: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let Some(run) = runs.get(dice.below(runs.len().max(1) as u64) as usize) else { return };
    let slot = run["slot"].as_str().expect("it is text");
    let spared = slot.ends_with(":look") && dice.below(8) > 0 || dice.below(3) == 0;
    let often = killed.iter().filter(|before| *before == slot).count() >= OF_A_KIND;
    if !spared && !often && kill_all_of(home, run["id"].as_str().expect("it is text")) {
        killed.push(slot.to_owned());
    }
}

#[test]
fn steps_that_die_at_any_moment_with_all_around_them_leave_every_story_done_once() {
    let home = home();
    if !outlives_keepers(&home, "steps that die at any moment with all around them") {
        return;
    }
    let mut dice = Dice::new();
    script(&home, "coder", CODES_ONCE);
    let project = "max_retries = 50\nretry_wait_most = \"50ms\"\nmain_checkout = \"share\"\n\
                   setup = [[\"sh\", \"-c\", \"true\"]]";
    let repo = Repo::new(&home, "repo", &usual(project));
    let mut kills: BTreeMap<String, u32> = BTreeMap::new();
    for round in 0..rounds() {
        let ids = [format!("r{round}-a"), format!("r{round}-b")];
        for id in &ids {
            repo.add(id, &[]);
        }
        let is = |id: &str, what: &str| {
            let story = repo.show(id);
            assert_ne!(story["hold"], "blocked", "{id}: {story:#}\n{}", all_told(&home));
            match what {
                "done" => story["done"] == true,
                _ => story["stage"] == "archived",
            }
        };
        for what in ["done", "gone"] {
            if what == "gone" {
                for id in &ids {
                    repo.story(&["archive", id]);
                }
            }
            let mut killed = Vec::new();
            until("all are there", || {
                pass(Duration::from_millis(dice.below(100)));
                if killed.len() < CRASHES {
                    kill_any(&home, &mut dice, &mut killed);
                }
                ids.iter().all(|id| is(id, what)).then_some(())
            });
            for slot in killed {
                let step = slot.rsplit(':').next().unwrap_or_default();
                *kills.entry(step.to_owned()).or_default() += 1;
            }
        }
        for id in &ids {
            assert_eq!(repo.landed(id), 1, "round {round}: {id}");
            assert_eq!(repo.worktree(id), None, "round {round}: {id}");
        }
        println!("round {round}: {kills:?}");
        repo.check();
    }
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(repo.git(&["for-each-ref", "refs/heads/kennel"]), "");
    let saved = repo.git(&["for-each-ref", "--format=%(refname)", "refs/kennel/saved"]);
    for line in saved.lines() {
        assert!(line.contains("/unfinished-"), "there was nothing to save: {saved}");
    }
    home.check();
}
