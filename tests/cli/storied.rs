//! A repository with stories: git, a `kennel.toml`, agents that are shell scripts, and the checker
//! of what stories leave behind.
//!
//! Owns: what every scripted agent begins with, which is a lock in its worktree and a word in the
//! truth file; and what has to hold after every test, whatever it did.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_tests::until;
use serde_json::Value;

use super::home::{Home, Said};

/// What every agent and gate begins with. The lock is inherited by all it starts, so that it is
/// free when the last of them is gone, and not before.
const PRELUDE: &str = r#"
say() { echo "$*" >> "$TRUTH"; }
exec 9>> .lock
flock -n 9 || { say "taken $KENNEL_STORY $KENNEL_RUN"; exit 99; }
commit() { echo "$2" >> "$1"; git add -A; git commit -q -m "$KENNEL_STORY: $3"; }
# Waits for a sign that the test gives.
wait_for() { while [ ! -e "$SIGNS/$1" ]; do sleep 0.01; done; }
tries() { grep -c "^began $KENNEL_STORY $KENNEL_STAGE " "$TRUTH"; }
say "began $KENNEL_STORY $KENNEL_STAGE $KENNEL_RUN"
"#;

/// A coder that does what it is for: one commit to a file of its story's own.
pub(crate) const CODES: &str = r#"commit "$KENNEL_STORY.txt" work work"#;

/// The stages most tests have: a coder with a gate, somebody who looks, and the merge.
pub(crate) const STAGES: &str = r#"
[[stage]]
name = "backlog"
[[stage]]
name = "current"
agents = ["coder"]
gates = [["sh", "@AGENTS@/gate", "current"]]
[[stage]]
name = "qa"
agents = ["qa"]
on_failure = "current"
[[stage]]
name = "merge"
merge = true
gates = [["sh", "@AGENTS@/gate", "merge"]]
on_failure = "current"
[[stage]]
name = "done"
terminal = true
"#;

/// A repository and what is known of it.
pub(crate) struct Repo<'a> {
    home: &'a Home,
    dir: PathBuf,
}

/// A home whose commands tell agents where the truth is kept, and git whose commits are whose.
pub(crate) fn home() -> Home {
    let mut home = Home::new();
    let place = home.path().to_owned();
    let signs = place.join("signs");
    fs::create_dir_all(place.join("agents")).expect("it can be made");
    fs::create_dir_all(&signs).expect("it can be made");
    let truth = home.truth("stories");
    fs::write(&truth, "").expect("it can be written");
    for (name, value) in [
        ("TRUTH", text(&truth)),
        ("SIGNS", text(&signs)),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ] {
        home.set(name, value);
    }
    home
}

/// What a repository's directory is called: like no other test's. Ids of runs are made of its
/// beginning, and the checker knows processes and cgroups by these, on the whole machine.
pub(crate) fn repo_name(home: &Home, name: &str) -> String {
    let place = home.path().file_name().expect("it has a name").to_string_lossy();
    format!("{}-{name}", place.trim_start_matches("kn-"))
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

/// Makes a scripted agent, or a gate, of this name. The truth has a line when it begins.
pub(crate) fn script(home: &Home, name: &str, body: &str) {
    let path = home.path().join("agents").join(name);
    // Whole or not at all: it may be read at any moment.
    let new = path.with_extension("new");
    fs::write(&new, format!("{PRELUDE}\n{body}\n")).expect("it can be written");
    fs::rename(&new, &path).expect("it can be moved");
}

/// Gives a sign that agents wait for.
pub(crate) fn sign(home: &Home, name: &str) {
    fs::write(home.path().join("signs").join(name), "").expect("it can be made");
}

/// What agents have told so far.
pub(crate) fn told(home: &Home) -> String {
    fs::read_to_string(home.truth("stories")).expect("it is there")
}

/// What agents told, and what every run that did not end well wrote last: for messages.
pub(crate) fn all_told(home: &Home) -> String {
    let mut text = told(home);
    for run in home.all_runs().iter().rev() {
        if run["state"] != "dead" || run["end"]["status"]["exited"] == 0 {
            continue;
        }
        let said = home.kennel(&["logs", run["id"].as_str().expect("it is text")]);
        let last = |all: &str| all.lines().rev().take(3).collect::<Vec<_>>().join(" | ");
        let (out, err) = (last(&said.out), last(&said.err));
        text.push_str(&format!("{} {}: {out}; {err}\n", run["id"], run["end"]));
    }
    text
}

/// How often agents told a line that begins so.
pub(crate) fn count(home: &Home, line: &str) -> usize {
    told(home).lines().filter(|told| told.starts_with(line)).count()
}

/// Waits until agents have told a line that begins so.
#[track_caller]
pub(crate) fn until_told(home: &Home, line: &str) {
    until(&format!("an agent says {line:?}"), || (count(home, line) > 0).then_some(()));
}

/// An agent's profile: a script of its own name.
pub(crate) fn agent(name: &str, role: &str, more: &str) -> String {
    format!(
        "[[agent]]\nname = \"{name}\"\nstage = \"{role}\"\nkind = \"command\"\nformat = \"none\"\n\
         command = [\"sh\", \"@AGENTS@/{name}\", \"{{prompt}}\"]\n{more}\n"
    )
}

/// A file with a coder and one who looks, the usual stages, and quick retries.
pub(crate) fn usual(project: &str) -> String {
    let project = format!("[project]\nbase_branch = \"main\"\nretry_wait = \"20ms\"\n{project}\n");
    let coder = agent("coder", "coder", "max_instances = 4\ngrace = \"100ms\"");
    let qa = agent("qa", "qa", "max_instances = 4\ngrace = \"100ms\"");
    [&project, &coder, &qa, STAGES].concat()
}

impl<'a> Repo<'a> {
    /// One with a commit, this file, and agents that do what they are for.
    pub(crate) fn new(home: &'a Home, name: &str, file: &str) -> Self {
        let repo = Self::known(home, name);
        fs::create_dir(&repo.dir).expect("it can be made");
        repo.git(&["init", "-q", "-b", "main"]);
        repo.write(".gitignore", ".lock\nkennel.toml\n");
        repo.write("a", "one\ntwo\nthree\n");
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-q", "-m", "first"]);
        for (agent, body) in [("coder", CODES), ("qa", ""), ("gate", "")] {
            if !home.path().join("agents").join(agent).exists() {
                script(home, agent, body);
            }
        }
        repo.configure(file);
        repo
    }

    /// One that is there already.
    pub(crate) fn known(home: &'a Home, name: &str) -> Self {
        Self { home, dir: home.path().join(repo_name(home, name)) }
    }

    /// One that another home has made.
    pub(crate) fn at(home: &'a Home, dir: &Path) -> Self {
        Self { home, dir: dir.to_owned() }
    }

    /// Gives it another file, and trusts that.
    pub(crate) fn configure(&self, file: &str) {
        self.put_file(file);
        self.home.ok(&["trust", text(&self.dir)]);
    }

    /// Gives it another file.
    pub(crate) fn put_file(&self, file: &str) {
        let agents = self.home.path().join("agents");
        let new = self.home.path().join("kennel.toml.new");
        fs::write(&new, file.replace("@AGENTS@", text(&agents))).expect("it can be written");
        fs::rename(&new, self.dir.join("kennel.toml")).expect("it can be moved");
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.join(file), text).expect("it can be written");
    }

    /// What git says there.
    #[track_caller]
    pub(crate) fn git(&self, args: &[&str]) -> String {
        let said = self.try_git(args);
        assert_eq!(said.code, 0, "git {args:?}: {said:?}");
        said.out.trim_end().to_owned()
    }

    pub(crate) fn try_git(&self, args: &[&str]) -> Said {
        let mut git = Command::new("git");
        let who = ["AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"];
        git.envs(who.map(|name| (format!("GIT_{name}"), "a")));
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        // A look of ours must not be in the way of a step.
        git.env("GIT_OPTIONAL_LOCKS", "0").args(args).current_dir(&self.dir);
        Said::of(&git.output().expect("it can be run"))
    }

    /// A command about its stories.
    pub(crate) fn try_story(&self, args: &[&str]) -> Said {
        let mut all = vec!["--json", "story", "-C", text(&self.dir)];
        all.extend(args);
        self.home.kennel(&all)
    }

    /// The same; it must succeed.
    #[track_caller]
    pub(crate) fn story(&self, args: &[&str]) -> String {
        let said = self.try_story(args);
        assert_eq!(said.code, 0, "story {args:?}: {said:?}");
        said.out.trim_end().to_owned()
    }

    /// The code and the sentence a command about stories is refused with.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> (String, String) {
        let said = self.try_story(args);
        assert_ne!(said.code, 0, "story {args:?}: {said:?}");
        let line = said.err.lines().last().unwrap_or_default();
        let body: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        let part = |key: &str| body["error"][key].as_str().unwrap_or_default().to_owned();
        (part("code"), format!("{} ({})", part("message"), part("hint")))
    }

    /// Adds a story of this id, to be worked on at once.
    #[track_caller]
    pub(crate) fn add(&self, id: &str, more: &[&str]) {
        let mut args = vec!["add", id, "--id", id];
        if !more.contains(&"--stage") {
            args.extend(["--stage", "current"]);
        }
        args.extend(more);
        self.story(&args);
    }

    /// A story as it is shown.
    #[track_caller]
    pub(crate) fn show(&self, id: &str) -> Value {
        let out = self.story(&["show", id]);
        serde_json::from_str(out.lines().next().unwrap_or_default()).expect("it is JSON")
    }

    /// Asks the API about a story, without the cost of a command.
    pub(crate) fn ask(&self, method: &str, path: &str, more: &str) -> (u16, Value) {
        let body = format!("{{\"dir\":{:?}{more}}}", text(&self.dir));
        self.home.ask(method, &format!("/v1/stories{path}"), &body)
    }

    /// Waits until a story is as somebody wants it.
    #[track_caller]
    pub(crate) fn until(&self, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let wanted = format!("{id} {what}");
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(&wanted, || {
                last = self.show(id);
                is(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|why| {
            println!("{wanted}: {last:#}\n{}", all_told(self.home));
            std::panic::resume_unwind(why)
        })
    }

    #[track_caller]
    pub(crate) fn until_done(&self, id: &str) -> Value {
        self.until(id, "is done", |story| {
            assert_ne!(story["hold"], "blocked", "{story:#}\n{}", all_told(self.home));
            story["done"] == true
        })
    }

    #[track_caller]
    pub(crate) fn until_blocked(&self, id: &str) -> Value {
        self.until(id, "is blocked", |story| story["hold"] == "blocked")
    }

    /// Waits until a story is archived or removed, and says what is kept of it.
    #[track_caller]
    pub(crate) fn until_gone(&self, id: &str) -> Value {
        self.until(id, "is gone", |story| {
            assert_ne!(story["hold"], "blocked", "{story:#}");
            story["stage"] == "archived" || story["stage"] == "removed"
        })
    }

    /// Every notice about one of its stories of this kind, oldest first.
    pub(crate) fn notices(&self, id: &str, kind: &str) -> Vec<Value> {
        let ending = format!("/{id}");
        let about = |notice: &Value| {
            let story = notice["story"].as_str().unwrap_or_default();
            story.ends_with(&ending) && notice["kind"] == kind
        };
        all_notices(self.home).into_iter().filter(about).collect()
    }

    /// The worktree a story has, or had.
    pub(crate) fn worktree(&self, id: &str) -> Option<PathBuf> {
        let listed = self.git(&["worktree", "list", "--porcelain"]);
        let paths = listed.lines().filter_map(|line| line.strip_prefix("worktree "));
        paths.map(PathBuf::from).find(|path| path.file_name().is_some_and(|name| name == id))
    }

    /// The subjects of commits on a branch, the newest first.
    #[track_caller]
    pub(crate) fn subjects(&self, branch: &str) -> Vec<String> {
        self.git(&["log", "--format=%s", branch]).lines().map(str::to_owned).collect()
    }

    /// How often the work of a story is on the base.
    #[track_caller]
    pub(crate) fn landed(&self, id: &str) -> usize {
        let begins = format!("{id}: ");
        self.subjects("main").iter().filter(|subject| subject.starts_with(&begins)).count()
    }

    /// What must hold of every repository, at rest: its checkout is clean and on its base, its
    /// objects are whole, no lock is left, and every worktree that is known is there.
    #[track_caller]
    pub(crate) fn check(&self) {
        assert_eq!(self.git(&["status", "--porcelain"]), "", "the main checkout was changed");
        assert_eq!(self.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        self.check_repository();
    }

    /// The same without the checkout: a test has changed it itself.
    #[track_caller]
    pub(crate) fn check_repository(&self) {
        self.git(&["fsck", "--no-dangling", "--no-progress"]);
        let listed = self.git(&["worktree", "list", "--porcelain"]);
        assert!(!listed.contains("prunable"), "{listed}");
        let mut locks = Vec::new();
        find_locks(&self.dir, &mut locks);
        assert_eq!(locks, Vec::<PathBuf>::new(), "locks of git are left");
        check_told(self.home);
    }
}

/// Never were two in a worktree, and what was told of stories was told once, in order.
#[track_caller]
fn check_told(home: &Home) {
    let told = told(home);
    assert!(!told.lines().any(|line| line.starts_with("taken ")), "two in a worktree: {told}");
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for notice in all_notices(home) {
        let id = notice["id"].as_str().expect("it is text");
        if !id.starts_with("story/") {
            continue;
        }
        let (about, n) = id.rsplit_once('/').expect("it has a number");
        let n: u64 = n.parse().expect("it is a number");
        let before = last.insert(about.to_owned(), n).unwrap_or(0);
        assert_eq!(n, before + 1, "{id} after {before}");
    }
}

/// Every notice there is.
pub(crate) fn all_notices(home: &Home) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let (status, page) = home.ask("GET", &format!("/v1/notices?all=true&after={after}"), "");
        assert_eq!(status, 200, "{page}");
        let notices = page["notices"].as_array().cloned().unwrap_or_default();
        if notices.is_empty() {
            return all;
        }
        all.extend(notices);
        after = page["next"].as_u64().expect("it is a number");
    }
}

fn find_locks(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("objects") {
            find_locks(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "lock") {
            found.push(path);
        }
    }
}
