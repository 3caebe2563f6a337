//! A scratch repository, a story's place in it, and steps run the way the daemon runs them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kennel_daemon::Time;
use kennel_daemon::steps::{
    MergeMode, Place, Refused, Saved, Step, StepError, StepOutcome, StorySlug, WorktreeState,
};
use kennel_process::{Environment, ExitStatus, Spec, Stream};
use kennel_tests::{Scratch, end_of, output_of};

/// A moment that no clock gave, so that commits are the same every time.
pub(crate) const AT: Time = Time(1_767_225_600_123);
pub(crate) const SAVED: &str = "refs/kennel/saved/fix-it/20260101T000000.123Z";

/// Files of a directory: the kind, the mode and the bytes of each, by its path.
pub(crate) type Files = BTreeMap<PathBuf, (char, u32, Vec<u8>)>;

pub(crate) struct World {
    pub(crate) scratch: RefCell<Scratch>,
    pub(crate) repository: PathBuf,
    pub(crate) worktrees: PathBuf,
    runs: Cell<u32>,
    main: RefCell<(String, Files)>,
}

impl World {
    /// A repository with one commit on `main`, at a path that is hard to quote.
    pub(crate) fn new(name: &str) -> Self {
        let world = Self::empty(name, &["init", "-q", "-b", "main"]);
        world.write("a", "one\ntwo\nthree\n");
        world.write(".gitignore", ".env\nbuild/\n");
        world.git(&["add", "-A"]);
        world.git(&["commit", "-q", "-m", "first"]);
        world.keep_main();
        world
    }

    /// A directory in which git was called with these arguments, and nothing else was done.
    pub(crate) fn empty(name: &str, init: &[&str]) -> Self {
        let scratch = Scratch::new(&format!("git-{name}"));
        let repository = scratch.path().join("-re po \"it's\"\né");
        let worktrees = scratch.path().join("-w t's \"\n$HOME");
        fs::create_dir(&repository).expect("it can be made");
        let scratch = RefCell::new(scratch);
        let main = RefCell::default();
        let world = Self { scratch, repository, worktrees, runs: Cell::new(0), main };
        world.git(init);
        world
    }

    pub(crate) fn place(&self, story: &str) -> Place {
        Place {
            repository: self.repository.clone(),
            story: StorySlug::new(story).expect("a slug"),
            branch_prefix: "kennel/".to_owned(),
            base: "main".to_owned(),
            worktree: self.worktrees.join(story),
        }
    }

    /// The story that most tests are about.
    pub(crate) fn fix_it(&self) -> Place {
        self.place("fix-it")
    }

    /// The variables every git of a test has: no configuration but the repository's.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let home = self.scratch.borrow().path().to_owned();
        [
            ("HOME", home.into_os_string()),
            ("XDG_CONFIG_HOME", "/nowhere".into()),
            ("GIT_CONFIG_GLOBAL", "/dev/null".into()),
            ("GIT_CONFIG_NOSYSTEM", "1".into()),
            // What would lead git astray if the scripts let it.
            ("GIT_DIR", "/nowhere".into()),
            ("GIT_WORK_TREE", "/nowhere".into()),
            ("GIT_INDEX_FILE", "/nowhere/index".into()),
            ("GIT_PAGER", "false".into()),
            ("GIT_EDITOR", "false".into()),
        ]
        .map(|(name, value)| (name.into(), value))
        .to_vec()
    }

    /// git in the main checkout, by the test's own hand.
    #[track_caller]
    pub(crate) fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.repository, args)
    }

    #[track_caller]
    pub(crate) fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        let output = self.try_git(dir, args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {complaint}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    pub(crate) fn try_git(&self, dir: &Path, args: &[&str]) -> Output {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=tester", "-c", "user.email=t@example.invalid"]);
        command.args(["-c", "protocol.file.allow=always"]).args(args).current_dir(dir);
        command.envs(self.environment());
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EDITOR"] {
            command.env_remove(name);
        }
        command.output().expect("git runs")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write_in(&self.repository, name, text);
    }

    /// A commit in a worktree, by an agent's hand.
    pub(crate) fn commit(&self, place: &Place, name: &str, text: &str) -> String {
        write_in(&place.worktree, name, text);
        self.git_in(&place.worktree, &["add", "-A"]);
        self.git_in(&place.worktree, &["commit", "-q", "-m", name]);
        self.git_in(&place.worktree, &["rev-parse", "HEAD"])
    }

    /// A commit in the main checkout, by its user's hand.
    pub(crate) fn commit_main(&self, name: &str, text: &str) -> String {
        self.write(name, text);
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", name]);
        self.keep_main();
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs a step as an owned run.
    #[track_caller]
    pub(crate) fn run(&self, step: &Step) -> StepOutcome {
        self.run_with(step, &[])
    }

    #[track_caller]
    pub(crate) fn run_with(&self, step: &Step, set: &[(&str, OsString)]) -> StepOutcome {
        self.runs.set(self.runs.get() + 1);
        self.run_as(&format!("run{}", self.runs.get()), step, set)
    }

    /// The same with a name of the caller's, for steps that run at the same time.
    #[track_caller]
    pub(crate) fn run_as(&self, name: &str, step: &Step, set: &[(&str, OsString)]) -> StepOutcome {
        let run = self.scratch.borrow().run_id(name);
        let spec = spec_of(run, step, self.environment(), set).expect("a command");
        let mut run = self.scratch.borrow().start(name, &spec);
        let end = end_of(&mut run);
        let stdout = output_of(run.dir(), Stream::Stdout);
        let said = output_of(run.dir(), Stream::Stderr);
        drop(run);
        self.scratch.borrow_mut().check_gone(name);
        let outcome = step.read(end.status, &stdout);
        if let StepOutcome::Broken { status: ExitStatus::Exited(_), .. } = &outcome {
            panic!("{outcome:?}: {}", String::from_utf8_lossy(&said));
        }
        let told = stdout.iter().filter(|b| **b == b'\n').count();
        assert!(told <= 1, "only the outcome: {}", String::from_utf8_lossy(&stdout));
        outcome
    }

    #[track_caller]
    pub(crate) fn prepare(&self, place: &Place) -> String {
        let outcome = self.run(&prepare(place));
        let StepOutcome::Prepared { head, path, .. } = outcome else {
            panic!("not prepared: {outcome:?}")
        };
        assert_eq!(path, real(&place.worktree));
        head
    }

    #[track_caller]
    pub(crate) fn save(&self, place: &Place) -> Saved {
        let outcome = self.run(&Step::Save { place: place.clone(), at: AT });
        let StepOutcome::Saved(saved) = outcome else { panic!("not saved: {outcome:?}") };
        saved
    }

    #[track_caller]
    pub(crate) fn look(&self, place: &Place) -> WorktreeState {
        let outcome = self.run(&Step::Look { place: place.clone() });
        let StepOutcome::Looked(looked) = outcome else { panic!("no worktree seen: {outcome:?}") };
        looked.worktree.expect("a worktree")
    }

    /// Runs a step that must be refused; gives the words.
    #[track_caller]
    pub(crate) fn refused(&self, step: &Step, expected: Refused) -> String {
        let outcome = self.run(step);
        let StepOutcome::Refused { why, text, .. } = outcome else {
            panic!("expected {expected:?}: {outcome:?}")
        };
        assert_eq!(why, expected, "{text}");
        text
    }

    /// Takes the main checkout as it is now for how it must stay.
    pub(crate) fn keep_main(&self) {
        *self.main.borrow_mut() = self.look_at_main();
    }

    /// The main checkout is as it was: commit, branch, index, stash, branches of its user, files.
    #[track_caller]
    pub(crate) fn check_main(&self) {
        assert_eq!(self.look_at_main(), *self.main.borrow(), "the main checkout changed");
    }

    fn look_at_main(&self) -> (String, Files) {
        let ask = |args: &[&str]| {
            String::from_utf8_lossy(&self.try_git(&self.repository, args).stdout).into_owned()
        };
        let mut text = ask(&["rev-parse", "HEAD"]) + &ask(&["symbolic-ref", "HEAD"]);
        text += &ask(&["ls-files", "-s"]);
        text += &ask(&["stash", "list"]);
        let refs = ask(&["for-each-ref", "--format=%(refname) %(objectname)"]);
        let theirs = |line: &&str| {
            !line.contains("refs/heads/kennel/") && !line.contains("refs/kennel/saved/")
        };
        text.extend(refs.lines().filter(theirs));
        (text, files_of(&self.repository))
    }

    /// What git keeps for us about a story.
    pub(crate) fn notes(&self, story: &str) -> Vec<String> {
        let dir = self.git_dir().join("kennel").join(story);
        let mut names: Vec<String> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .map(|e| e.expect("it is read").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn git_dir(&self) -> PathBuf {
        let own = self.repository.join(".git");
        if own.exists() { own } else { self.repository.clone() }
    }

    /// The git directory of a story's worktree.
    pub(crate) fn admin(&self, place: &Place) -> PathBuf {
        self.git_in(&place.worktree, &["rev-parse", "--absolute-git-dir"]).into()
    }
}

/// The run of a step: what the daemon's hands will make of it.
pub(crate) fn spec_of(
    run: kennel_process::RunId,
    step: &Step,
    environment: Vec<(OsString, OsString)>,
    set: &[(&str, OsString)],
) -> Result<Spec, StepError> {
    let mut words = step.command()?.into_iter();
    let mut spec = Spec::new(run, words.next().expect("a program"));
    spec.args = words.collect();
    spec.env = Environment { set: environment, ..Environment::default() };
    spec.env.set.extend(set.iter().map(|(name, value)| ((*name).into(), value.clone())));
    Ok(spec)
}

pub(crate) fn prepare(place: &Place) -> Step {
    Step::Prepare { place: place.clone(), copy: vec![], setup: vec![] }
}

pub(crate) fn merge(place: &Place, mode: MergeMode) -> Step {
    Step::Merge { place: place.clone(), mode }
}

pub(crate) fn remove(place: &Place, saved: Option<&str>) -> Step {
    Step::Remove { place: place.clone(), saved: saved.map(str::to_owned), teardown: vec![] }
}

pub(crate) fn write_in(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("it can be made");
    fs::write(path, text).expect("it can be written");
}

/// The path with the links in its directory followed, as git writes it.
pub(crate) fn real(path: &Path) -> PathBuf {
    let parent = path.parent().expect("not the root").canonicalize().expect("it is there");
    parent.join(path.file_name().expect("a name"))
}

/// Everything below a directory but what git keeps there.
pub(crate) fn files_of(dir: &Path) -> Files {
    let mut files = Files::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(at) = directories.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten() {
            let path = entry.expect("it is read").path();
            let short = path.strip_prefix(dir).expect("below it").to_owned();
            let data = fs::symlink_metadata(&path).expect("it is there");
            if short == Path::new(".git") {
                continue;
            } else if data.is_dir() {
                directories.push(path);
            } else if data.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                files.insert(short, ('l', 0, target.as_os_str().as_bytes().to_vec()));
            } else {
                // git knows one bit of a mode.
                let mode = data.permissions().mode() & 0o100;
                files.insert(short, ('f', mode, fs::read(&path).expect("it can be read")));
            }
        }
    }
    files
}
