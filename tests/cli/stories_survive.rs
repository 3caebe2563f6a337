//! Stories while everything around them dies, moves or forks: never two agents in a worktree,
//! nothing done twice that was done once, no work lost.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_tests::{agent as evil, pass, skipped, until};
use serde_json::{Value, json};

use super::home::Home;
use super::storied::{
    CODES, Repo, STAGES, agent, all_notices, all_told, count, home, repo_name, script, sign, told,
    until_told, usual,
};

/// A small generator: the same seed gives the same moves and crashes.
pub(crate) struct Dice(u64);

impl Dice {
    /// Seeded by the clock or by `KENNEL_SEED`; says which.
    pub(crate) fn new() -> Self {
        let given = std::env::var("KENNEL_SEED").ok().and_then(|n| n.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
        let seed = given.unwrap_or(now) | 1;
        println!("KENNEL_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Runs that live of a story's agents and gates.
fn alive(home: &Home, id: &str) -> Vec<Value> {
    let out = home.ok(&["--json", "ps"]);
    let runs = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
    let of = format!("/{id}:");
    runs.filter(|run| run["slot"].as_str().is_some_and(|slot| slot.contains(&of))).collect()
}

/// What is left running is of no more interest: everything is held before the checker comes.
fn freeze(repo: &Repo<'_>, id: &str) {
    repo.story(&["freeze", id]);
    repo.until(id, "rests", |story| story["step"].is_null());
}

#[test]
fn a_limit_that_ends_a_deaf_coder_never_makes_two_in_a_worktree() {
    let home = home();
    // It ignores every request, and so do its children, of which two have left its session.
    script(
        &home,
        "coder",
        r#"trap '' TERM HUP INT
        setsid sh -c 'trap "" TERM HUP INT; while :; do sleep 1; done' &
        (setsid sh -c 'exec sleep 1000' & )
        say deaf
        while :; do sleep 0.05; done"#,
    );
    let coder = agent("coder", "coder", "max_instances = 3\ngrace = \"80ms\"\nwall = \"400ms\"");
    let project = "[project]\nretry_wait = \"10ms\"\nretry_wait_most = \"20ms\"\nmax_retries = 3\n";
    let qa = agent("qa", "qa", "");
    let repo = Repo::new(&home, "repo", &[project, &coder, &qa, STAGES].concat());
    repo.add("other", &["--stage", "backlog"]);
    repo.add("a", &[]);
    let mut n = 0;
    until("the story is blocked", || {
        // Each of these has everything assigned anew.
        n += 1;
        let edit = format!(",\"priority\":{}", n % 7);
        assert_eq!(repo.ask("PATCH", "/other", &edit).0, 200);
        let stage = if n % 2 == 0 { "backlog" } else { "qa" };
        let _ = repo.ask("POST", "/other/move", &format!(",\"stage\":\"{stage}\""));
        let (_, story) = repo.ask("PATCH", "/a", &edit);
        pass(Duration::from_millis(5));
        (story["hold"] == "blocked").then_some(())
    });
    println!("{n} changes");
    assert_eq!(count(&home, "began a current "), 4, "{}", told(&home));
    assert_eq!(count(&home, "taken "), 0, "{}", told(&home));
    let blocked = repo.show("a");
    assert_eq!(blocked["retries_used"], 3, "{blocked}");
    assert_eq!(repo.notices("a", "story_blocked").len(), 1);
    // What was cut off a hundred times goes on, and takes away what it left of its own.
    let _ = repo.ask("POST", "/other/move", ",\"stage\":\"qa\"");
    repo.until_done("other");
    repo.check();
    home.check();
}

#[test]
fn a_story_that_is_moved_a_hundred_times_has_the_right_agent_or_none() {
    let home = home();
    let mut dice = Dice::new();
    // Some take a while to go.
    script(
        &home,
        "coder",
        r#"[ $(($$ % 3)) = 0 ] && trap '' TERM; (sleep 1000 &) ; while :; do sleep 0.02; done"#,
    );
    script(&home, "qa", "exec sleep 1000");
    let coder = agent("coder", "coder", "grace = \"60ms\"");
    let qa = agent("qa", "qa", "grace = \"60ms\"");
    let repo = Repo::new(&home, "repo", &["[project]\n", &coder, &qa, STAGES].concat());
    repo.add("a", &["--stage", "backlog"]);
    for n in 0..100 {
        let stage = ["backlog", "current", "qa"][dice.below(3) as usize];
        let (status, said) = repo.ask("POST", "/a/move", &format!(",\"stage\":\"{stage}\""));
        assert_eq!(status, 200, "{said}");
        assert_eq!(said["stage"], stage, "{said}");
        // Sometimes long enough that somebody begins.
        let most = if n % 8 == 0 { 400_000 } else { 30_000 };
        pass(Duration::from_micros(dice.below(most)));
    }
    for (stage, who) in [("qa", Some("qa")), ("backlog", None), ("current", Some("coder"))] {
        repo.story(&["move", "a", stage]);
        let rests = repo.until("a", "is at rest", |story| {
            let agent = story["agent"].as_str();
            story["stopping"] == false
                && agent == who
                && (story["step"] == "agent" && !story["run"].is_null() || who.is_none())
                && (who.is_some() || story["step"].is_null())
        });
        let alive = alive(&home, "a");
        let slots: Vec<&str> = alive.iter().filter_map(|run| run["slot"].as_str()).collect();
        let right = who.map(|who| format!("/a:{who}"));
        let ok = match &right {
            Some(right) => slots.len() == 1 && slots[0].ends_with(right),
            None => slots.is_empty(),
        };
        assert!(ok, "{stage}: {slots:?}, {rests:#}");
    }
    freeze(&repo, "a");
    repo.check();
    home.check();
}

/// The whole pipeline with a place to wait in every step: setup, agents, gates, the smudge filter
/// of git for merge and landing, teardown.
pub(crate) fn with_stops(home: &Home) -> Repo<'_> {
    let stop = |at: &str| format!("say at-{at}-$KENNEL_STORY; wait_for {at}");
    script(home, "setup", &stop("prepare"));
    script(home, "coder", &format!("{}\n{CODES}\nsay coded-$KENNEL_STORY", stop("agent")));
    script(home, "gate", r#"say "at-gate-$1-$KENNEL_STORY"; wait_for "gate-$1""#);
    script(home, "teardown", &stop("remove"));
    let smudge = home.path().join("agents/smudge");
    let text = r#"name=worktree
        [ "$PWD" != "$REPO" ] || name=land
        case $1 in moved.txt) [ $name = land ] || name=merge ;; esac
        case $name in merge | land) echo "at-$name" >> "$TRUTH"
        while [ ! -e "$SIGNS/$name" ]; do sleep 0.01; done ;; esac
        exec cat"#;
    fs::write(
        &smudge,
        format!("REPO={}\n{text}", home.path().join(repo_name(home, "repo")).display()),
    )
    .expect("it can be written");
    let stages = STAGES
        .replace("[[stage]]\nname = \"qa\"\nagents = [\"qa\"]\non_failure = \"current\"\n", "");
    let coder = agent("coder", "coder", "");
    let project = "[project]\nbase_branch = \"main\"\nmain_checkout = \"share\"\n\
                   setup = [[\"sh\", \"@AGENTS@/setup\"]]\n\
                   teardown = [[\"sh\", \"@AGENTS@/teardown\"]]\n";
    let repo = Repo::new(home, "repo", &[project, &coder, &stages].concat());
    repo.write(".gitattributes", "*.txt filter=slow\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "attributes"]);
    let smudge = format!("sh {} %f", smudge.display());
    repo.git(&["config", "filter.slow.smudge", &smudge]);
    repo
}

#[test]
fn a_daemon_that_is_killed_in_every_step_goes_on_where_it_was() {
    let home = home();
    let repo = with_stops(&home);
    repo.add("a", &[]);
    let killed_at = |at: &str, sign_of: &str| {
        until_told(&home, at);
        home.kill_daemon();
        // The step ends while nobody is there, or after somebody came who was killed as well.
        if sign_of.len().is_multiple_of(2) {
            repo.show("a");
            home.kill_daemon();
        }
        sign(&home, sign_of);
    };
    killed_at("at-prepare-a", "prepare");
    repo.show("a");
    killed_at("at-agent-a", "agent");
    repo.show("a");
    // The base moves, so that the merge has something to write.
    until_told(&home, "at-gate-current-a");
    sign(&home, "land");
    repo.write("moved.txt", "by hand\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "by hand"]);
    fs::remove_file(home.path().join("signs/land")).expect("it is there");
    killed_at("at-gate-current-a", "gate-current");
    repo.show("a");
    killed_at("at-merge", "merge");
    repo.show("a");
    killed_at("at-gate-merge-a", "gate-merge");
    repo.show("a");
    killed_at("at-land", "land");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    repo.story(&["archive", "a"]);
    killed_at("at-remove-a", "remove");
    let gone = repo.until_gone("a");
    assert_eq!(gone["done"], true, "{gone}");
    assert_eq!(repo.subjects("main"), ["a: work", "by hand", "attributes", "first"]);
    for (line, times) in [
        ("at-prepare-a", 1),
        ("coded-a", 1),
        ("at-gate-current-a", 1),
        ("at-gate-merge-a", 1),
        ("at-remove-a", 1),
    ] {
        assert_eq!(count(&home, line), times, "{line}: {}", told(&home));
    }
    for (kind, times) in [("story_moved", 1), ("story_done", 1), ("story_gone", 1)] {
        assert_eq!(repo.notices("a", kind).len(), times, "{kind}");
    }
    assert_eq!(repo.git(&["worktree", "list"]).lines().count(), 1);
    repo.check();
    home.check();
}

#[test]
fn a_merge_that_somebody_kills_is_undone_before_anybody_else_works_there() {
    let home = home();
    let repo = with_stops(&home);
    for name in ["prepare", "agent", "gate-current", "gate-merge", "land", "remove"] {
        sign(&home, name);
    }
    let body = r#"say "on $(git symbolic-ref -q --short HEAD || echo nothing)"
        [ -z "$(git status --porcelain)" ] || say unclean"#;
    script(
        &home,
        "coder",
        &format!("{body}\nwait_for \"coder-$(grep -c '^on ' $TRUTH)\"\n{CODES}"),
    );
    repo.add("a", &[]);
    until_told(&home, "on kennel/a");
    repo.write("moved.txt", "by hand\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-q", "-m", "by hand"]);
    sign(&home, "coder-1");
    until_told(&home, "at-merge");
    let merge = repo.show("a")["run"].as_str().expect("it runs").to_owned();
    home.ok(&["kill", &merge]);
    sign(&home, "merge");
    repo.until("a", "is frozen", |story| story["hold"] == "frozen");
    repo.story(&["move", "a", "current"]);
    repo.story(&["unblock", "a"]);
    until("the coder is back", || (count(&home, "on ") == 2).then_some(()));
    assert_eq!(count(&home, "on kennel/a"), 2, "{}", told(&home));
    assert_eq!(count(&home, "unclean"), 0, "{}", told(&home));
    sign(&home, "coder-2");
    let done = repo.until_done("a");
    assert_eq!(done["retries_used"], 0, "{done}");
    assert_eq!(repo.subjects("main"), ["a: work", "a: work", "by hand", "attributes", "first"]);
    repo.check();
    home.check();
}

#[test]
fn an_agent_whose_keeper_is_killed_is_gone_before_the_next_one_comes() {
    let home = home();
    script(
        &home,
        "coder",
        &format!(
            "say up-$(tries); [ $(tries) -gt 1 ] || {{ trap '' TERM; wait_for never; }}\n{CODES}"
        ),
    );
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("a", &[]);
    until_told(&home, "up-1");
    let run = repo.show("a")["run"].as_str().expect("it runs").to_owned();
    home.kill_keeper(&run);
    // Where nobody can prove that it is gone, nobody else begins, and a kill proves nothing either.
    let over = repo.until("a", "goes on or is blocked", |story| {
        story["done"] == true || story["hold"] == "blocked"
    });
    if over["hold"] == "blocked" {
        assert!(over["hold_because"].to_string().contains("nobody can say"), "{over}");
        assert_ne!(home.kennel(&["kill", &run]).code, 0);
        assert_eq!((count(&home, "up-"), &repo.show("a")["hold"]), (1, &json!("blocked")));
        return skipped("a story after its agent's keeper was killed", "there is no cgroup here");
    }
    let done = repo.until("a", "is done", |story| story["done"] == true);
    assert_eq!(done["retries_used"], 1, "{done}");
    assert_eq!(repo.landed("a"), 1);
    repo.check();
    home.check();
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_neither_loses_nor_repeats() {
    let home = home();
    let mut dice = Dice::new();
    let body = r#"sleep 0.0$(($$ % 10))
        [ "$(tries)" = 1 ] || say "told: $(printf %s "$1" | tr '\n' ' ' | tail -c 500)""#;
    script(&home, "coder", &format!("{body}\n{CODES}\nsay coded-$KENNEL_STORY"));
    let repo = Repo::new(&home, "repo", &usual(""));
    for round in 0..rounds() {
        let ids = [format!("r{round}a"), format!("r{round}b")];
        for id in &ids {
            repo.add(id, &[]);
        }
        let mut kills = 0;
        let over = || ids.iter().all(|id| repo.show(id)["done"] == true);
        while !over() {
            assert!(kills < 60, "round {round} takes too many: {:#}", repo.show(&ids[0]));
            // Now and then it has the time to come somewhere.
            let most = if kills % 3 == 2 { 1500 } else { 400 };
            pass(Duration::from_millis(dice.below(most)));
            home.kill_daemon();
            kills += 1;
            for id in &ids {
                let story = repo.show(id);
                assert_ne!(story["hold"], "blocked", "round {round}: {story:#}\n{}", told(&home));
            }
        }
        for id in &ids {
            let done = repo.show(id);
            assert_eq!(done["retries_used"], 0, "round {round}: {done}\n{}", all_told(&home));
            assert_eq!(repo.landed(id), 1, "round {round}: {:?}", repo.subjects("main"));
            for (line, times) in [("coded-ID", 1), ("began ID current ", 2), ("began ID qa ", 1)] {
                let line = line.replace("ID", id);
                assert_eq!(count(&home, &line), times, "round {round}: {line}: {}", told(&home));
            }
            assert_eq!(repo.notices(id, "story_done").len(), 1, "round {round}");
            assert_eq!(repo.notices(id, "story_moved").len(), 2, "round {round}");
        }
        println!("round {round}: {kills} kills");
    }
    repo.check();
    home.check();
}

/// How many rounds of random crashes; more for a long night.
fn rounds() -> u64 {
    std::env::var("KENNEL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

#[test]
fn a_story_that_goes_while_its_agent_forks_is_gone_after_the_proof_and_its_work_is_saved() {
    let home = home();
    let storm = evil("storm");
    let body = format!(
        "commit b.txt x work\necho dirty > dirty.txt\nsay up-$KENNEL_STORY\nexec {} 150",
        storm.display()
    );
    script(&home, "coder", &body);
    let repo = Repo::new(&home, "repo", &usual(""));
    for (id, how, stage) in [("kept", "archive", "archived"), ("cast", "rm", "removed")] {
        repo.add(id, &[]);
        until_told(&home, &format!("up-{id}"));
        let storms = count(&home, "storm");
        let run = repo.show(id)["run"].as_str().expect("it runs").to_owned();
        // The one that is removed is in the midst of forking.
        if how == "archive" {
            until("the storm is there", || (count(&home, "storm") > storms).then_some(()));
        }
        repo.story(&[how, id]);
        let gone = repo.until_gone(id);
        assert_eq!((&gone["stage"], &gone["done"]), (&json!(stage), &json!(false)), "{gone}");
        let shown = home.show(&run);
        assert!(shown["proof"].is_object(), "{shown}");
        let notices = all_notices(&home);
        let seq = |is: &dyn Fn(&Value) -> bool| {
            let found = notices.iter().find(|notice| is(notice)).expect("it was told");
            found["seq"].as_u64().expect("it is a number")
        };
        let ended = seq(&|n| n["run"] == *run && n["kind"] == "ended");
        let told_gone = seq(&|n| {
            n["kind"] == "story_gone" && n["story"].as_str().is_some_and(|of| of.ends_with(id))
        });
        assert!(ended < told_gone, "the proof comes first");
        let saved = repo.git(&["for-each-ref", "--format=%(refname)", "refs/kennel/saved"]);
        let own =
            saved.lines().find(|name| name.contains(&format!("/{id}/"))).expect("it is saved");
        let kept =
            format!("what its base has not is kept on its branch kennel/{id} and under {own}");
        assert_eq!(gone["notes"], json!([kept]), "it is told where: {gone}");
        assert_eq!(repo.git(&["show", &format!("{own}:dirty.txt")]), "dirty");
        assert_eq!(repo.subjects(own)[1], format!("{id}: work"));
        assert_eq!(repo.worktree(id), None, "its worktree is gone");
        assert_eq!(repo.notices(id, "story_gone").len(), 1);
    }
    assert_eq!(repo.subjects("main"), ["first"]);
    repo.check();
    home.check();
}

#[test]
fn three_hundred_stories_are_listed_at_once() {
    let home = home();
    let repo = Repo::new(&home, "repo", &usual(""));
    repo.add("s", &["--stage", "backlog"]);
    let begun = std::time::Instant::now();
    for n in 0..300 {
        let on = if n > 0 { format!("\"s{}\"", n - 1) } else { String::new() };
        let (title, text) = (format!("Story {n}"), "x".repeat(1000));
        let more = format!(
            ",\"id\":\"s{n}\",\"title\":\"{title}\",\"text\":\"{text}\",\"stage\":\"backlog\",\
             \"depends_on\":[{on}]"
        );
        let (status, said) = repo.ask("POST", "", &more);
        assert_eq!(status, 201, "{said}");
    }
    let added = begun.elapsed();
    let begun = std::time::Instant::now();
    let listed = repo.story(&["list"]);
    let took = begun.elapsed();
    let daemon = home.daemon().expect("it is up").identity().pid;
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).expect("it lives");
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is told");
    let kb: u64 = rss.trim().trim_end_matches(" kB").parse().expect("it is a number");
    println!("300 stories: added in {added:?}, listed in {took:?}, the daemon has {kb} kB");
    assert_eq!(listed.matches("\"id\"").count(), 301);
    assert!(kb < 512 * 1024, "{rss}");
    repo.check();
    home.check();
}
