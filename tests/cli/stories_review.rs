//! What a review of stories found, each kept from coming back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, make_program};

/// A repository with one coder, who is a script, and a merge stage.
struct Repository {
    home: Home,
    path: PathBuf,
}

const FILE: &str = r#"
[project]
base_branch = "main"
max_retries = 1
retry_wait = "10ms"
[[agent]]
name = "coder"
stage = "coder"
command = ["agents/coder", "{prompt}"]
[[stage]]
name = "current"
agents = ["coder"]
[[stage]]
name = "merge"
merge = true
gates = [["true"]]
[[stage]]
name = "done"
terminal = true
"#;

/// A coder that does what it should.
const WORKS: &str = "echo x > \"f-$KENNEL_STORY\"; git add -A; git commit -qm work";

impl Repository {
    fn new(coder: &str) -> Self {
        Self::in_home(Home::new(), coder)
    }

    fn in_home(home: Home, coder: &str) -> Self {
        let path = home.work().join("repo");
        fs::create_dir_all(path.join("agents")).expect("it can be made");
        let repository = Self { home, path };
        repository.git(&["init", "-q", "-b", "main", "."]);
        repository.git(&["config", "user.email", "a@b"]);
        repository.git(&["config", "user.name", "a"]);
        fs::write(repository.path.join("kennel.toml"), FILE).expect("it can be written");
        let script = repository.home.work().join("coder.sh");
        fs::write(&script, format!("#!/bin/sh\n{coder}\n")).expect("it can be written");
        make_program(&script, &repository.path.join("agents/coder"));
        repository.git(&["add", "-A"]);
        repository.git(&["commit", "-qm", "init"]);
        repository.kennel(&["trust"]);
        repository
    }

    fn git(&self, args: &[&str]) -> String {
        git_in(&self.path, args)
    }

    fn kennel(&self, args: &[&str]) -> String {
        self.said(args).0
    }

    /// What a command said and its exit code.
    fn said(&self, args: &[&str]) -> (String, i32) {
        let mut command = self.home.command(args);
        let output = command.current_dir(&self.path).output().expect("it can be run");
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&said).into_owned(), output.status.code().unwrap_or(-1))
    }

    fn add(&self, id: &str, stage: &str) {
        let (said, code) = self.said(&["story", "add", "It", "--id", id, "--stage", stage]);
        assert_eq!(code, 0, "{said}");
    }

    /// Waits until nothing goes on any more. True if all are done.
    fn rests(&self) -> bool {
        let (said, code) = self.said(&["story", "wait", "--timeout", "60s"]);
        assert!(code == 0 || code == 1, "{said}");
        code == 0
    }

    fn story(&self, id: &str) -> Value {
        let text = self.kennel(&["--json", "story", "show", id]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }
}

fn git_in(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git").current_dir(dir).args(args).output().expect("git is there");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn caps_below_what_git_steps_ask_for_lower_them_and_hold_up_nobody() {
    let repository = Repository::new(WORKS);
    let config = repository.home.path().join("config");
    fs::create_dir_all(&config).expect("it can be made");
    fs::write(config.join("config.toml"), "[limits]\nwall = \"1m\"\noutput = \"1M\"\n")
        .expect("it can be written");
    repository.add("one", "current");
    assert!(repository.rests(), "{:?}", repository.story("one"));
    let land: Vec<Value> = repository.home.all_runs();
    let walls = land.iter().filter_map(|run| run["limits"]["wall_ms"].as_u64());
    assert!(walls.clone().count() > 5 && walls.clone().all(|wall| wall <= 60_000), "{land:?}");
    repository.home.check();
}

#[test]
fn an_agent_that_leaves_its_branch_or_a_rebase_has_not_succeeded_and_is_told() {
    let repository = Repository::new(
        "printf '%s\\n' \"$1\" >> \"$KENNEL_REPOSITORY/../prompt-$KENNEL_STORY\"\n\
         git rev-parse -q --verify REBASE_HEAD >/dev/null && exec git rebase --abort\n\
         git symbolic-ref -q HEAD >/dev/null || exec git checkout -q \"$KENNEL_BRANCH\"\n\
         for n in 1 2; do echo x > \"$KENNEL_STORY-$n\"; git add -A; git commit -qm $n; done\n\
         case $KENNEL_STORY in\n\
         branch) git checkout -q --detach ;;\n\
         rebase) GIT_SEQUENCE_EDITOR='sed -i s/^pick/edit/' git rebase -q -i HEAD~2 ;;\n\
         esac",
    );
    for (id, words) in [("branch", "on another branch"), ("rebase", "in the middle of a rebase")] {
        repository.add(id, "current");
        assert!(repository.rests(), "{:?}", repository.story(id));
        let prompts = repository.home.work().join(format!("prompt-{id}"));
        let prompts = fs::read_to_string(prompts).expect("it was told");
        assert!(prompts.contains(words), "{id}: {prompts}");
        let files = repository.git(&["ls-tree", "--name-only", "main"]);
        assert!(files.contains(&format!("{id}-2")), "{files}");
    }
    repository.home.check();
}

#[test]
fn a_daemon_that_a_hook_of_another_repository_started_works_in_the_right_one() {
    let mut home = Home::new();
    let other = home.work().join("other");
    fs::create_dir_all(&other).expect("it can be made");
    git_in(&other, &["init", "-q", "-b", "main", "."]);
    git_in(
        &other,
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    );
    let before = git_in(&other, &["for-each-ref"]);
    let repository = {
        let plain = Repository::in_home(home, WORKS);
        home = plain.home;
        let path = plain.path;
        // As git sets them for a hook.
        home.set("GIT_DIR", &other.join(".git").to_string_lossy());
        home.set("GIT_INDEX_FILE", &other.join(".git/index").to_string_lossy());
        home.set("GIT_WORK_TREE", &other.to_string_lossy());
        Repository { home, path }
    };
    repository.add("one", "current");
    assert!(repository.rests(), "{:?}", repository.story("one"));
    assert!(repository.git(&["ls-tree", "--name-only", "main"]).contains("f-one"));
    assert_eq!(git_in(&other, &["for-each-ref"]), before);
    repository.home.check();
}

#[test]
fn two_who_edit_or_add_at_once_lose_nothing_and_double_nothing() {
    let repository = Repository::new(WORKS);
    repository.kennel(&["story", "add", "It", "--id", "one", "--stage", "done"]);
    let dir = repository.path.to_string_lossy().into_owned();
    for round in 0..20 {
        let body = |key: &str| {
            serde_json::json!({ "dir": dir, key: format!("{key} {round}") }).to_string()
        };
        std::thread::scope(|scope| {
            for key in ["title", "text"] {
                let (home, body) = (&repository.home, body(key));
                scope.spawn(move || {
                    let (code, said) = home.ask("PATCH", "/v1/stories/one", &body);
                    assert_eq!(code, 200, "{said}");
                });
            }
        });
        let story = repository.story("one");
        let words = (story["title"].as_str(), story["text"].as_str());
        let expected = (format!("title {round}"), format!("text {round}"));
        assert_eq!(words, (Some(&*expected.0), Some(&*expected.1)));
    }
    for round in 0..5 {
        // The same story, told by two who do not know that the other did.
        let ids: Vec<String> = std::thread::scope(|scope| {
            let asked: Vec<_> = ["a", "b", "c"]
                .into_iter()
                .map(|title| {
                    let (home, dir) = (&repository.home, &dir);
                    scope.spawn(move || {
                        let key = format!("k{round}");
                        let title = format!("{title}{round}");
                        let body = serde_json::json!({
                            "dir": dir, "title": title, "stage": "done", "key": key,
                        });
                        let (code, said) = home.ask("POST", "/v1/stories", &body.to_string());
                        assert_eq!(code, 201, "{said}");
                        said["id"].as_str().unwrap_or_default().to_owned()
                    })
                })
                .collect();
            asked.into_iter().map(|asked| asked.join().expect("it is answered")).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
    repository.home.check();
}

#[test]
fn a_text_may_begin_like_a_list_and_who_cannot_go_says_so_in_the_list() {
    let repository = Repository::new(
        "git init -q sub && cd sub && echo x > y && git add -A &&\n\
         git -c user.name=a -c user.email=a@b commit -qm n && cd .. &&\n\
         git add -A && git commit -qm nested",
    );
    let text = "- {prompt} $(false) 'one'";
    let add = ["story", "add", "It", "--id", "one", "--stage", "current", "--text", text];
    let (said, code) = repository.said(&add);
    assert_eq!(code, 0, "{said}");
    assert!(repository.rests(), "{:?}", repository.story("one"));
    assert_eq!(repository.story("one")["text"].as_str(), Some(text));
    repository.kennel(&["story", "archive", "one"]);
    // git removes no worktree that has a repository in it, and neither do we.
    until("it stays", || repository.story("one")["hold"].is_string().then_some(()));
    let list = repository.kennel(&["story", "list"]);
    assert!(list.contains("its worktree could not be removed"), "{list}");
    repository.home.check();
}
