//! Stories from end to end: what their agents do, git, gates, retries, holds and merges, with the
//! command as its users have it. What is killed on the way is in `stories_survive`.

use std::fs;

use serde_json::json;

use super::home::{Home, make_program};
use super::storied::{
    CODES, Repo, STAGES, agent, count, home, script, sign, told, until_told, usual,
};

#[test]
fn stories_go_through_all_stages_in_the_order_of_dependencies_and_priorities() {
    let home = home();
    script(&home, "coder", &format!("wait_for go-$KENNEL_STORY\n{CODES}"));
    let coder = agent("coder", "coder", "");
    let qa = agent("qa", "qa", "");
    let project = "[project]\nretry_wait = \"20ms\"\n";
    let repo = Repo::new(&home, "repo", &[project, &coder, &qa, STAGES].concat());
    // One coder: who is there first has it, then the higher priority, then the older.
    repo.add("first", &[]);
    until_told(&home, "began first ");
    for (id, more) in [
        ("second", &[][..]),
        ("urgent", &["--priority", "5"]),
        ("late", &["--depends-on", "first,urgent", "--priority", "9"]),
        ("idea", &["--stage", "backlog"]),
    ] {
        repo.add(id, more);
    }
    let late = repo.show("late");
    assert_eq!(late["waits_code"], "dependencies", "{late}");
    assert_eq!(late["waits_for"], "waits for first, urgent", "{late}");
    assert_eq!(repo.show("second")["waits_code"], "agents_busy");
    assert_eq!(repo.show("idea")["waits_code"], "move");
    for id in ["first", "urgent", "late", "second"] {
        sign(&home, &format!("go-{id}"));
    }
    for id in ["first", "urgent", "late", "second"] {
        let done = repo.until_done(id);
        assert_eq!((&done["stage"], &done["retries_used"]), (&json!("done"), &json!(0)), "{done}");
        assert_eq!(repo.landed(id), 1, "{:?}", repo.subjects("main"));
        assert_eq!(repo.notices(id, "story_done").len(), 1);
        assert_eq!(repo.notices(id, "story_moved").len(), 2);
        // A gate in each of two stages, an agent in each of two; that of the merge as often as its
        // base has moved.
        let began = |stage: &str| count(&home, &format!("began {id} {stage} "));
        assert_eq!((began("current"), began("qa")), (2, 1), "{}", told(&home));
        assert!(began("merge") >= 1, "{}", told(&home));
    }
    let began: Vec<String> = told(&home)
        .lines()
        .filter_map(|line| {
            line.strip_prefix("began ")?.split_once(" current ").map(|of| of.0.to_owned())
        })
        .collect();
    let place = |id: &str| began.iter().position(|one| one == id);
    assert_eq!(place("first"), Some(0), "{began:?}");
    assert!(place("urgent") < place("second") && place("urgent") < place("late"), "{began:?}");
    assert_eq!(repo.show("idea")["stage"], "backlog");
    // Only an archived story loses its worktree; the files are on the base and in the checkout.
    assert!(repo.dir().join("late.txt").exists());
    for id in ["first", "second", "urgent", "late", "idea"] {
        repo.story(&["archive", id]);
        repo.until_gone(id);
    }
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(repo.git(&["for-each-ref", "refs/heads", "refs/kennel"]).lines().count(), 1);
    repo.check();
    home.check();
}

#[test]
fn what_a_gate_said_reaches_the_next_prompt_and_what_fails_too_often_is_blocked_and_told_once() {
    let home = home();
    script(&home, "coder", &format!(r#"printf '%s\n' "$1" > "$SIGNS/prompt-$(tries)"; {CODES}"#));
    script(
        &home,
        "gate",
        r#"[ -e "$SIGNS/good" ] || { echo "the gate says no-$(tries)" >&2; exit 3; }"#,
    );
    let repo = Repo::new(&home, "repo", &usual("max_retries = 2"));
    repo.add("a", &["--text", "Do it well."]);
    let blocked = repo.until_blocked("a");
    let because = blocked["hold_because"].as_str().expect("it is text");
    assert!(because.contains("stage current was tried again 2 times"), "{because}");
    assert!(because.contains("gate 1 failed") && because.contains("exited with 3"), "{because}");
    assert_eq!(blocked["retries_used"], 2, "{blocked}");
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    assert_eq!(repo.notices("a", "story_retried").len(), 2);
    let prompt = |n: u32| fs::read_to_string(home.path().join(format!("signs/prompt-{n}")));
    let (first, second) = (prompt(1).expect("it is there"), prompt(3).expect("it is there"));
    assert!(first.contains("Do it well.") && !first.contains("the gate says"), "{first}");
    assert!(second.contains("Do it well.") && second.contains("the gate says no-2"), "{second}");
    // Nothing goes on by itself, and a daemon that comes later has nothing to add.
    home.kill_daemon();
    repo.until_blocked("a");
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    sign(&home, "good");
    repo.story(&["unblock", "a"]);
    repo.until_done("a");
    repo.check();
    home.check();
}

#[test]
fn who_looks_and_says_no_sends_a_story_back_with_its_words() {
    let home = home();
    script(&home, "coder", &format!(r#"printf '%s' "$1" > "$SIGNS/prompt-$(tries)"; {CODES}"#));
    script(&home, "qa", r#"[ $(tries) -gt 1 ] || { echo "I do not like it"; exit 1; }"#);
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 1, "{done}");
    assert_eq!(repo.notices("a", "story_sent_back").len(), 1);
    assert_eq!(repo.notices("a", "story_moved").len(), 3);
    let prompt = fs::read_to_string(home.path().join("signs/prompt-3")).expect("it is there");
    assert!(prompt.contains("I do not like it"), "{prompt}");
    assert_eq!(repo.landed("a"), 2);
    repo.check();
    home.check();
}

/// The usual file, with a coder that speaks like Claude Code.
fn with_a_client(home: &Home) -> String {
    // A client is given flags of ours; the prompt is its last word.
    let client = home.path().join("agents/client");
    let text = "#!/bin/sh\nfor last; do :; done\nexec sh \"${0%/*}/coder\" \"$last\"\n";
    fs::write(&client, text).expect("it can be written");
    make_program(&client, &home.path().join("agents/claude"));
    let file = usual("").replacen("format = \"none\"", "format = \"claude\"", 1);
    file.replacen("\"sh\", \"@AGENTS@/coder\"", "\"@AGENTS@/claude\"", 1)
}

#[test]
fn who_was_refused_by_its_provider_and_says_nothing_is_wrong_uses_no_retry() {
    let home = home();
    let refused = json!({ "type": "rate_limit_event", "session_id": "s",
        "rate_limit_info": { "status": "rejected" } });
    fs::write(home.path().join("signs/stream"), refused.to_string()).expect("it can be written");
    script(
        &home,
        "coder",
        &format!(
            r#"[ $(tries) = 1 ] && [ $KENNEL_STORY = nothing ] || {CODES}
[ $(tries) -gt 1 ] || {{ cat "$SIGNS/stream"; echo; }}"#
        ),
    );
    let repo = Repo::new(&home, "repo", &with_a_client(&home));
    // Whatever it did before: its last question was not answered, so it is not through.
    for id in ["nothing", "half"] {
        repo.add(id, &[]);
        repo.until(id, "waits for its provider", |story| story["waits_code"] == "paused");
        home.ok(&["story", "unblock", "--provider", "anthropic"]);
        let done = repo.until_done(id);
        assert_eq!(done["retries_used"], 0, "{done}");
    }
    repo.check();
    home.check();
}

#[test]
fn what_an_agent_said_reaches_the_next_prompt_in_words_and_not_as_a_stream() {
    let home = home();
    let said = |id: u32, text: &str| {
        let content = json!([{ "type": "text", "text": text }]);
        let message = json!({ "id": id.to_string(), "model": "m", "content": content });
        json!({ "type": "assistant", "message": message }).to_string()
    };
    let ends = json!({ "type": "result", "subtype": "error_during_execution", "is_error": true,
        "errors": ["It was all too much"] });
    let lines =
        [said(1, "I look."), said(2, "The \"login\" fails:\nno such user."), ends.to_string()];
    fs::write(home.path().join("signs/stream"), lines.join("\n")).expect("it can be written");
    script(
        &home,
        "coder",
        &format!(
            r#"printf '%s' "$1" > "$SIGNS/prompt-$(tries)"
if [ $(tries) -gt 1 ]; then {CODES}; exit; fi
cat "$SIGNS/stream"; echo; echo "and a warning" >&2; exit 1"#
        ),
    );
    let repo = Repo::new(&home, "repo", &with_a_client(&home));
    repo.add("a", &[]);
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 1, "{done}");
    let prompt = fs::read_to_string(home.path().join("signs/prompt-2")).expect("it is there");
    let said = "The \"login\" fails:\nno such user.\nIt was all too much\nand a warning\n";
    assert!(prompt.contains(&format!("```text\n{said}```")), "{prompt}");
    assert!(!prompt.contains("\"type\"") && !prompt.contains("I look."), "{prompt}");
    repo.check();
    home.check();
}

#[test]
fn what_an_agent_leaves_undone_is_a_failed_attempt_that_is_told_to_it() {
    let home = home();
    script(
        &home,
        "coder",
        r#"case $(tries) in
        1) echo half > half.txt; exit 0 ;;
        2) printf '%s' "$1" > "$SIGNS/second"; git checkout -q . ; rm half.txt; exit 0 ;;
        3) printf '%s' "$1" > "$SIGNS/third"; commit a.txt x work ;;
        esac"#,
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 2, "{done}");
    let prompt = |n: &str| fs::read_to_string(home.path().join("signs").join(n)).expect("there");
    assert!(prompt("second").contains("changes that are in no commit"), "{}", prompt("second"));
    assert!(prompt("third").contains("without a commit"), "{}", prompt("third"));
    repo.check();
    home.check();
}

#[test]
fn commits_of_an_agent_that_fails_or_is_ended_by_a_limit_are_gated_and_not_thrown_away() {
    let home = home();
    // One crashes behind its commit, one is ended by its wall with nothing and then with a commit.
    script(
        &home,
        "coder",
        r#"case $KENNEL_STORY in
        crash) commit c.txt x work; exit 7 ;;
        esac
        [ "$(tries)" = 1 ] || commit s.txt x work
        exec sleep 1000"#,
    );
    let coder = agent("coder", "coder", "max_instances = 2\ngrace = \"100ms\"\nwall = \"1500ms\"");
    let project = "[project]\nretry_wait = \"20ms\"\n";
    let qa = agent("qa", "qa", "");
    let repo = Repo::new(&home, "repo", &[project, &coder, &qa, STAGES].concat());
    repo.add("crash", &[]);
    repo.add("slow", &[]);
    let done = repo.until_done("crash");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(count(&home, "began crash current "), 2, "one agent, one gate: {}", told(&home));
    let done = repo.until_done("slow");
    assert_eq!(done["retries_used"], 1, "{done}");
    assert_eq!(repo.notices("slow", "story_retried").len(), 1);
    assert_eq!(count(&home, "began slow current "), 3, "{}", told(&home));
    assert_eq!((repo.landed("crash"), repo.landed("slow")), (1, 1));
    repo.check();
    home.check();
}

#[test]
fn a_limit_that_is_hit_every_time_blocks_the_story_and_starts_nobody_any_more() {
    let home = home();
    script(&home, "coder", "exec sleep 1000");
    let coder = agent("coder", "coder", "grace = \"50ms\"\nwall = \"300ms\"");
    let project = "[project]\nretry_wait = \"20ms\"\nmax_retries = 1\n";
    let qa = agent("qa", "qa", "");
    let repo = Repo::new(&home, "repo", &[project, &coder, &qa, STAGES].concat());
    repo.add("a", &[]);
    let blocked = repo.until_blocked("a");
    let because = blocked["hold_because"].as_str().expect("it is text");
    assert!(because.contains("a limit ended its run"), "{because}");
    assert_eq!(count(&home, "began a "), 2, "{}", told(&home));
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    repo.check();
    home.check();
}

#[test]
fn circles_and_strangers_among_dependencies_are_named_and_who_is_needed_stays() {
    let home = home();
    let repo = Repo::new(&home, "repo", &usual(""));
    let at = ["--stage", "backlog"];
    repo.add("a", &at);
    repo.add("b", &[&at[..], &["--depends-on", "a"]].concat());
    repo.add("c", &[&at[..], &["--depends-on", "b"]].concat());
    let (code, words) = repo.refused(&["edit", "a", "--depends-on", "c"]);
    assert_eq!(code, "dependency_cycle", "{words}");
    assert!(words.contains("a -> c -> b -> a"), "{words}");
    let (code, words) = repo.refused(&["edit", "a", "--depends-on", "a"]);
    assert_eq!(code, "dependency_cycle", "{words}");
    let (code, words) = repo.refused(&["add", "d", "--id", "d", "--depends-on", "nobody"]);
    assert_eq!(code, "dependency_not_found", "{words}");
    assert!(words.contains("nobody"), "{words}");
    let (code, words) = repo.refused(&["rm", "a"]);
    assert_eq!(code, "story_needed", "{words}");
    assert!(words.contains('b'), "{words}");
    let (code, words) = repo.refused(&["move", "a", "nowhere"]);
    assert_eq!(code, "stage_not_found", "{words}");
    assert!(words.contains("current"), "{words}");
    let (code, words) = repo.refused(&["add", "again", "--id", "a"]);
    assert_eq!(code, "id_taken", "{words}");
    assert_eq!(repo.show("a")["depends_on"], json!([]));
    repo.story(&["rm", "c"]);
    repo.until_gone("c");
    let (code, words) = repo.refused(&["add", "again", "--id", "c"]);
    assert_eq!(code, "id_taken", "{words}");
    repo.check();
    home.check();
}

#[test]
fn two_repositories_have_the_same_ids_side_by_side() {
    let home = home();
    script(&home, "coder", &format!("say \"in $KENNEL_REPOSITORY\"\n{CODES}"));
    let one = Repo::new(&home, "one", &usual(""));
    let two = Repo::new(&home, "two", &usual(""));
    for repo in [&one, &two] {
        repo.add("a", &[]);
        repo.add("b", &["--depends-on", "a"]);
    }
    for repo in [&one, &two] {
        repo.until_done("a");
        repo.until_done("b");
        assert_eq!((repo.landed("a"), repo.landed("b")), (1, 1));
        assert_eq!(count(&home, &format!("in {}", repo.dir().display())), 2, "{}", told(&home));
    }
    // A worktree counts as its repository.
    let worktree = one.worktree("a").expect("it has one");
    one.story(&["archive", "b"]);
    let shown = home.json(&["story", "-C", worktree.to_str().expect("text"), "show", "a"]);
    assert_eq!(shown["repository"], one.dir().to_str().expect("text"), "{shown}");
    one.until_gone("b");
    assert_eq!(two.show("b")["stage"], "done");
    one.check();
    two.check();
    home.check();
}

#[test]
fn a_run_that_is_stopped_freezes_its_story_and_leaving_with_all_of_them_does_not() {
    let home = home();
    script(&home, "coder", &format!("say up-$KENNEL_STORY-$(tries)\nwait_for go\n{CODES}"));
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    repo.add("b", &[]);
    until_told(&home, "up-a-1");
    until_told(&home, "up-b-1");
    let run = repo.show("a")["run"].as_str().expect("it runs").to_owned();
    home.ok(&["stop", &run]);
    let frozen = repo.until("a", "is frozen", |story| story["hold"] == "frozen");
    assert_eq!(frozen["retries_used"], 0, "{frozen}");
    assert_eq!(frozen["run"], json!(null), "{frozen}");
    home.ok(&["down", "--stop-runs"]);
    let back = repo.until("b", "works again", |story| story["step"] == "agent");
    assert_eq!((&back["hold"], &back["retries_used"]), (&json!(null), &json!(0)), "{back}");
    until_told(&home, "up-b-2");
    assert_eq!(repo.show("a")["hold"], "frozen");
    assert_eq!(count(&home, "up-a-"), 1, "{}", told(&home));
    sign(&home, "go");
    repo.until_done("b");
    repo.story(&["unblock", "a"]);
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(repo.notices("a", "story_blocked").len(), 0);
    repo.check();
    home.check();
}

#[test]
fn a_story_that_is_held_has_its_agent_stopped_with_proof_and_its_work_kept() {
    let home = home();
    script(
        &home,
        "coder",
        "echo precious > kept.txt\nsay up-$(tries)\nwait_for go\ncommit kept.txt more work",
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    for (n, (hold, word)) in [("freeze", "frozen"), ("block", "blocked")].into_iter().enumerate() {
        until_told(&home, &format!("up-{}", n + 1));
        let run = repo.show("a")["run"].as_str().expect("it runs").to_owned();
        repo.story(&[hold, "a"]);
        repo.until("a", "has no step", |story| story["hold"] == word && story["step"].is_null());
        let shown = home.show(&run);
        assert_eq!(shown["state"], "dead", "{shown}");
        assert!(shown["proof"].is_object(), "{shown}");
        let kept = repo.worktree("a").expect("it has one").join("kept.txt");
        assert_eq!(fs::read_to_string(kept).expect("it is there"), "precious\n");
        repo.story(&["unblock", "a"]);
    }
    until_told(&home, "up-3");
    sign(&home, "go");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    // Somebody blocked it: that is a block like any other.
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    repo.check();
    home.check();
}

#[test]
fn an_agent_that_changes_the_main_checkout_blocks_its_story_and_a_shared_one_is_only_told() {
    let home = home();
    script(&home, "coder", &format!("{CODES}\necho mine >> \"$KENNEL_REPOSITORY/a\""));
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("bad", &[]);
    let blocked = repo.until_blocked("bad");
    let because = blocked["hold_because"].as_str().expect("it is text");
    assert!(because.contains("changed the main checkout"), "{because}");
    assert!(because.contains("files appeared, vanished or were changed"), "{because}");
    assert_eq!(repo.notices("bad", "story_blocked").len(), 1);
    // What it has committed is still there.
    assert_eq!(repo.subjects("kennel/bad")[0], "bad: work");
    repo.git(&["checkout", "-q", "."]);
    repo.configure(&usual("main_checkout = \"share\""));
    repo.add("shared", &[]);
    // It is told, and goes on, until it is to land on a checkout with changes.
    let waits = repo.until("shared", "fails to land", |story| {
        story["waits_for"].as_str().is_some_and(|why| why.contains("in no commit"))
    });
    assert_eq!(waits["stage"], "merge", "{waits}");
    repo.git(&["checkout", "-q", "."]);
    if waits["hold"] == "blocked" {
        repo.story(&["unblock", "shared"]);
    }
    repo.until("shared", "is done", |story| {
        if story["hold"] == "blocked" {
            repo.story(&["unblock", "shared"]);
        }
        story["done"] == true
    });
    assert_eq!((repo.landed("bad"), repo.landed("shared")), (0, 1));
    repo.check();
    home.check();
}

#[test]
fn a_landing_of_another_story_is_no_drift() {
    let home = home();
    script(
        &home,
        "coder",
        &format!(r#"case $KENNEL_STORY in long*) wait_for go ;; esac; {CODES}"#),
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("long-1", &[]);
    repo.add("long-2", &[]);
    until_told(&home, "began long-1 ");
    until_told(&home, "began long-2 ");
    repo.add("quick", &[]);
    repo.until_done("quick");
    sign(&home, "go");
    for id in ["long-1", "long-2"] {
        let done = repo.until_done(id);
        assert_eq!(done["retries_used"], 0, "{done}");
        assert_eq!(repo.landed(id), 1);
    }
    repo.check();
    home.check();
}

#[test]
fn conflicts_go_back_to_the_coder_with_their_text() {
    let home = home();
    // Both change the same line; who is sent back takes the base as it is now and adds to it.
    script(
        &home,
        "coder",
        r#"if [ "$(git merge-base HEAD main)" = "$(git rev-parse main)" ]; then
            wait_for go
        else
            printf '%s' "$1" > "$SIGNS/conflict"
            git reset -q --hard main
        fi
        sed -i "s/^two.*/& $KENNEL_STORY/" a
        git commit -q -a -m "$KENNEL_STORY: work""#,
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("x", &[]);
    repo.add("y", &[]);
    until_told(&home, "began x ");
    until_told(&home, "began y ");
    sign(&home, "go");
    let retries: u64 = ["x", "y"]
        .map(|id| repo.until_done(id)["retries_used"].as_u64().expect("it is a number"))
        .iter()
        .sum();
    assert_eq!(retries, 1, "one of them was sent back");
    let prompt = fs::read_to_string(home.path().join("signs/conflict")).expect("it is there");
    assert!(prompt.contains("<<<<<<<") && prompt.contains(">>>>>>>"), "{prompt}");
    let back = [repo.notices("x", "story_sent_back"), repo.notices("y", "story_sent_back")];
    assert_eq!(back.concat().len(), 1);
    let line = repo.git(&["show", "main:a"]);
    assert!(line.contains("two x y") || line.contains("two y x"), "{line}");
    assert_eq!((repo.landed("x"), repo.landed("y")), (1, 1));
    repo.check();
    home.check();
}

#[test]
fn a_base_that_moved_is_merged_again_and_what_lands_was_gated() {
    let home = home();
    // The gate of the merge lets the base move once, behind its back.
    script(
        &home,
        "gate",
        r#"[ "$1" = merge ] && say "gated $(git rev-parse HEAD)"
        if [ "$1" = merge ] && [ ! -e "$SIGNS/moved" ]; then say at-gate; wait_for moved; fi"#,
    );
    let repo = Repo::new(&home, "repo", &usual("main_checkout = \"share\""));
    repo.add("a", &[]);
    until_told(&home, "at-gate");
    repo.write("mine", "by hand\n");
    repo.git(&["add", "mine"]);
    repo.git(&["commit", "-q", "-m", "by hand"]);
    sign(&home, "moved");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(repo.subjects("main"), ["a: work", "by hand", "first"]);
    let head = repo.git(&["rev-parse", "main"]);
    assert_eq!(count(&home, "gated "), 2, "{}", told(&home));
    assert_eq!(count(&home, &format!("gated {head}")), 1, "{}", told(&home));
    repo.check();
    home.check();
}

#[test]
fn stories_that_land_at_once_all_land() {
    let home = home();
    script(&home, "gate", r#"[ "$1" = merge ] && { say at-gate; wait_for land; } || true"#);
    let repo = Repo::new(&home, "repo", &usual(""));
    let ids = ["a", "b", "c"];
    for id in ids {
        repo.add(id, &[]);
    }
    kennel_tests::until("all are at the gate", || (count(&home, "at-gate") == 3).then_some(()));
    sign(&home, "land");
    for id in ids {
        let done = repo.until_done(id);
        assert_eq!(done["retries_used"], 0, "{done}");
        assert_eq!(repo.landed(id), 1);
        assert_eq!(repo.notices(id, "story_done").len(), 1);
    }
    repo.check();
    home.check();
}
