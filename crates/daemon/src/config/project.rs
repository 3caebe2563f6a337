//! A directory becomes a project: its main checkout, what may be used of that checkout's own
//! `kennel.toml`, and where its stories have their place.
//!
//! ```text
//! the file is      good     broken    gone
//! trusted          it       -         -
//! changed since    (last)   (last)    (last)     last: as it was trusted, by the copy kept then
//! not trusted      refused  refused   refused
//! ```
//!
//! Owns: which version counts, and what is told beside it. The file of a worktree is never read:
//! an agent can write that. Never gives trust, never starts anything, and polls nothing: who wants
//! to know of changes asks again, which costs a reading and no parsing if nothing has changed.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kennel_supervisor::story::Pipeline;

use super::checkout::branch_of;
use super::pipeline::{fault_words, pipeline};
use super::settings::{ConfigError, Found, InForce, Settings, Version, names, problem};
use super::{Agent, Problem, REPOSITORY_FILE, Repository, User};
use crate::api::wire::Limits;
use crate::home::Home;
use crate::steps::{Place, StorySlug};

pub use super::checkout::{ProjectError, main_checkout};

/// The branch stories start from if the file names none and the main checkout is on none.
const USUAL_BASE: &str = "main";

/// A project as it counts now.
#[derive(Clone, Debug)]
pub struct ProjectNow {
    /// The main checkout, or a bare repository; canonical.
    pub repository: PathBuf,
    /// Its file.
    pub file: PathBuf,
    /// What that says, as it was trusted.
    pub said: Arc<Repository>,
    /// What the user's file says.
    pub user: Arc<User>,
    /// What the mind of stories goes by.
    pub pipeline: Arc<Pipeline>,
    /// What somebody should know: a file that is broken, gone, or changed and not trusted yet.
    pub notes: Vec<String>,
    user_file: PathBuf,
    base: String,
    worktree_root: Option<PathBuf>,
}

/// The last version of a project's file that was good and trusted.
#[derive(Clone, Debug)]
pub(super) struct LastTrusted {
    sha256: String,
    said: Arc<Repository>,
    user_agents: Vec<Agent>,
    pipeline: Arc<Pipeline>,
}

/// What counts of a project's file, and what is wrong with what lies there now.
struct Counts {
    version: LastTrusted,
    problems: Vec<Problem>,
}

impl Settings {
    /// The project a directory belongs to, as it counts now.
    pub fn project(&self, dir: &Path) -> Result<ProjectNow, ConfigError> {
        let repository = main_checkout(dir).map_err(ConfigError::Project)?;
        let now = self.in_force()?;
        let file = repository.join(REPOSITORY_FILE);
        let file = std::fs::canonicalize(&file).unwrap_or(file);
        self.know_project(&repository);
        let Counts { version, problems } = self.counts(&repository, &file, &now)?;
        let LastTrusted { said, pipeline, .. } = version;
        let worktree_root = match &said.project.worktree_root {
            Some(root) => Some(rooted(root, &repository).map_err(|why| {
                let key = Some("project.worktree_root".to_owned());
                ConfigError::Invalid(vec![Problem { key, ..problem(&file, why) }])
            })?),
            None => None,
        };
        let base = said.project.base_branch.clone().or_else(|| branch_of(&repository));
        let base = base.unwrap_or_else(|| USUAL_BASE.to_owned());
        let mut notes = now.notes;
        notes.extend(problems.iter().map(ToString::to_string));
        let InForce { user, user_file, .. } = now;
        Ok(ProjectNow {
            repository,
            file,
            said,
            user,
            pipeline,
            notes,
            user_file,
            base,
            worktree_root,
        })
    }

    /// What is wrong now with the files of projects that were asked for.
    pub(super) fn projects_problems(&self) -> Vec<Problem> {
        let Ok(now) = self.in_force() else { return Vec::new() };
        let mut problems = Vec::new();
        // Of a repository that is gone itself, whoever has stories there tells.
        for repository in self.known_projects().iter().filter(|dir| dir.is_dir()) {
            let file = repository.join(REPOSITORY_FILE);
            let file = std::fs::canonicalize(&file).unwrap_or(file);
            match self.counts(repository, &file, &now) {
                Ok(counts) => problems.extend(counts.problems),
                Err(ConfigError::Invalid(found)) => problems.extend(found),
                // Told once, of the list itself.
                Err(ConfigError::Trust(_)) => {}
                Err(e) => problems.push(problem(&file, e.to_string())),
            }
        }
        problems
    }

    /// Which version of a project's file counts.
    fn counts(&self, repository: &Path, file: &Path, now: &InForce) -> Result<Counts, ConfigError> {
        let (good, problems) = self.repository(file, &names(&now.user.agents));
        let Some(trusted) = self.trusted(file)? else {
            // Nobody trusts it, or nobody does any more: then what it said last counts no longer.
            self.forget_trusted(repository);
            return Err(match good {
                Some(_) if problems.is_empty() => {
                    ConfigError::Untrusted { file: file.to_owned(), changed: false }
                }
                _ => unusable(file, problems),
            });
        };
        let usable = good.filter(|good| good.sha256 == trusted);
        let is_current = usable.is_some() && problems.is_empty();
        let version = match usable {
            Some(good) => Some(self.renewed(repository, file, &good, &now.user, is_current)?),
            None => self.last_good(repository, file, &trusted, now)?,
        };
        match version {
            Some(version) if is_current => Ok(Counts { version, problems }),
            Some(version) => Ok(Counts { version, problems: told(file, problems) }),
            None if problems.is_empty() && file.exists() => {
                Err(ConfigError::Untrusted { file: file.to_owned(), changed: true })
            }
            None => Err(unusable(file, problems)),
        }
    }

    /// What counts in the place of a file that is not what was trusted: that itself, by the copy
    /// that was kept of it; else what was trusted before, as it was read then.
    fn last_good(
        &self,
        repository: &Path,
        file: &Path,
        trusted: &str,
        now: &InForce,
    ) -> Result<Option<LastTrusted>, ConfigError> {
        let known = self.last_trusted(repository);
        if known.as_ref().is_some_and(|known| known.sha256 == trusted) {
            return Ok(known);
        }
        match self.as_trusted(file, trusted, &names(&now.user.agents)) {
            Some(said) => {
                let version = Version { said, sha256: trusted.to_owned() };
                self.renewed(repository, file, &version, &now.user, false).map(Some)
            }
            None => Ok(known),
        }
    }

    /// A version that is good and trusted, with its pipeline, which is made anew only if something
    /// in it has changed. One that is not what the file says now keeps the pipeline it had.
    fn renewed(
        &self,
        repository: &Path,
        file: &Path,
        Version { said, sha256 }: &Version<Repository>,
        user: &User,
        is_current: bool,
    ) -> Result<LastTrusted, ConfigError> {
        if let Some(known) = self.last_trusted(repository)
            && Arc::ptr_eq(&known.said, said)
            && (known.user_agents == user.agents || !is_current)
        {
            return Ok(known);
        }
        let made = pipeline(said, &user.agents)
            .map_err(|fault| ConfigError::Invalid(vec![problem(file, fault_words(&fault))]))?;
        let (sha256, said) = (sha256.clone(), said.clone());
        let (user_agents, pipeline) = (user.agents.clone(), Arc::new(made));
        let version = LastTrusted { sha256, said, user_agents, pipeline };
        self.remember_trusted(repository, version.clone());
        Ok(version)
    }
}

/// Why there is nothing to go by.
fn unusable(file: &Path, problems: Vec<Problem>) -> ConfigError {
    if problems.is_empty() || !file.exists() {
        return ConfigError::NoFile { file: file.to_owned() };
    }
    ConfigError::Invalid(problems)
}

/// What is wrong with a file in whose place an earlier version counts, and what to do.
fn told(file: &Path, problems: Vec<Problem>) -> Vec<Problem> {
    const LAST: &str = "what was trusted last counts";
    let problems = match problems.is_empty() && !file.exists() {
        // Nobody has seen it there since the daemon started.
        true => vec![problem(file, "the file is gone".to_owned())],
        false => problems,
    };
    if problems.is_empty() {
        let shown = file.display();
        let message = format!(
            "it has changed since it was trusted: read it, then `kennel trust {shown}`; {LAST}"
        );
        return vec![problem(file, message)];
    }
    let with_end = |mut problem: Problem| {
        let to_do = if file.exists() {
            "repair it, then `kennel trust "
        } else {
            "bring it back, or `kennel init` and `kennel trust "
        };
        problem.message = format!("{}; {LAST}: {to_do}{}`", problem.message, file.display());
        problem
    };
    problems.into_iter().map(with_end).collect()
}

impl ProjectNow {
    /// The agent of this name: the repository's, else the user's.
    #[must_use]
    pub fn agent(&self, name: &str) -> Option<Found> {
        let named = |agents: &[Agent]| agents.iter().find(|agent| agent.name == name).cloned();
        let own = named(&self.said.agents).map(|agent| Found { agent, file: self.file.clone() });
        own.or_else(|| {
            let file = self.user_file.clone();
            named(&self.user.agents).map(|agent| Found { agent, file })
        })
    }

    /// The command of a stage's gate, from 0 on.
    #[must_use]
    pub fn gate(&self, stage: &str, n: u32) -> Option<&[String]> {
        let stage = self.said.stages.iter().find(|known| known.name == stage)?;
        stage.gates.get(usize::try_from(n).ok()?).map(Vec::as_slice)
    }

    /// The limits of a gate's run: the project's, and never above the user's caps.
    #[must_use]
    pub fn gate_limits(&self) -> Limits {
        self.below_caps(self.said.project.gate_wall, self.said.project.gate_output)
    }

    /// These limits, where the user's caps are not lower: what asks for more is refused.
    pub(crate) fn below_caps(&self, wall: Duration, output: u64) -> Limits {
        let caps = &self.user.caps;
        let lower = |own: u64, cap: Option<u64>| Some(cap.map_or(own, |cap| own.min(cap)));
        Limits {
            wall_ms: lower(wall.as_millis() as u64, caps.wall_ms),
            output: lower(output, caps.output),
            ..Limits::default()
        }
    }

    /// The branch stories start from and land on.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Where a story's work is. `key` is the project's own name below the state directory, where
    /// worktrees are if the file says nothing else.
    #[must_use]
    pub fn place(&self, home: &Home, key: &str, story: &StorySlug) -> Place {
        let root = match &self.worktree_root {
            Some(root) => root.clone(),
            None => plain(&home.worktrees().join(key)),
        };
        Place {
            repository: self.repository.clone(),
            story: story.clone(),
            branch_prefix: self.said.project.branch_prefix.clone(),
            base: self.base.clone(),
            worktree: root.join(story.as_str()),
        }
    }
}

/// A worktree root as it is meant: from the main checkout on, `~` being the user's home.
fn rooted(root: &str, repository: &Path) -> Result<PathBuf, String> {
    let user_home = || {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        home.ok_or_else(|| format!("{root:?} needs a home, and HOME is not set for the daemon"))
    };
    let path = match root.strip_prefix('~') {
        Some(rest) => user_home()?.join(rest.trim_start_matches('/')),
        None => repository.join(root),
    };
    Ok(plain(&path))
}

/// A path without `.` and `..`, by its letters alone: the directory need not be there yet.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::tests::Scratch;
    use super::super::trust::{Trusted, give, revoke, sha256};
    use super::*;
    use crate::time::Time;

    /// A home, and a repository in which git has been.
    struct World {
        scratch: Scratch,
        home: Home,
        settings: Settings,
    }

    impl World {
        fn new(name: &str) -> Self {
            let scratch = Scratch::new(name);
            for dir in ["repo/.git/objects", "repo/.git/refs", "home/state"] {
                scratch.dir(dir);
            }
            scratch.write("repo/.git/HEAD", "ref: refs/heads/trunk\n");
            let home = Home::below(&scratch.path("home"));
            let settings = Settings::of(&home);
            Self { scratch, home, settings }
        }

        fn repository(&self) -> PathBuf {
            self.scratch.path("repo")
        }

        fn file(&self) -> PathBuf {
            self.scratch.path("repo/kennel.toml")
        }

        /// The file, with a project that tries again so often.
        fn write(&self, max_retries: u32) {
            self.write_text(&format!("[project]\nmax_retries = {max_retries}\n"));
        }

        fn write_text(&self, text: &str) {
            self.scratch.write("repo/kennel.toml", text);
        }

        fn user(&self, text: &str) {
            self.scratch.write("home/config/config.toml", text);
        }

        /// Trusts the file as it is now, the way the command writes it.
        fn trust(&self) {
            let file = self.file().to_str().expect("it is text").to_owned();
            let sha256 = sha256(&fs::read(self.file()).expect("it is there"));
            self.trusts(&[Trusted { file, sha256, at: Time(0) }]);
        }

        fn trusts(&self, trusted: &[Trusted]) {
            let list = json!({ "v": 1, "trusted": trusted }).to_string();
            fs::write(self.home.trust(), list).expect("it can be written");
        }

        fn now(&self) -> Result<ProjectNow, ConfigError> {
            self.settings.project(&self.repository())
        }

        /// How often it tries again, and what is told beside it.
        #[track_caller]
        fn counts(&self, max_retries: u32, told: &[&str]) {
            let now = self.now().expect("it counts");
            assert_eq!(now.pipeline.max_retries, max_retries, "{:?}", now.notes);
            assert_eq!(now.said.project.max_retries, max_retries);
            assert_eq!(now.notes.len(), told.len(), "{:?}", now.notes);
            for (note, words) in now.notes.iter().zip(told) {
                assert!(note.contains(words), "{note}");
            }
            let problems = self.settings.problems();
            assert_eq!(problems.len(), told.len(), "{problems:?}");
        }

        fn refused(&self) -> String {
            self.now().expect_err("it is refused").to_string()
        }
    }

    #[test]
    fn nothing_counts_that_was_never_trusted_and_the_way_out_is_told() {
        let world = World::new("untrusted");
        assert!(matches!(world.now(), Err(ConfigError::NoFile { .. })), "{}", world.refused());
        world.write(1);
        let error = world.now().expect_err("it is refused");
        assert!(matches!(error, ConfigError::Untrusted { changed: false, .. }), "{error}");
        assert_eq!(world.settings.problems().len(), 1, "{:?}", world.settings.problems());
        // Trusted before the daemon started, and changed since.
        world.trust();
        world.write(2);
        let error = world.now().expect_err("it is refused");
        assert!(matches!(error, ConfigError::Untrusted { changed: true, .. }), "{error}");
        world.write_text("[project]\nmax_retrys = 1\n");
        assert!(world.refused().contains("is max_retries meant?"), "{}", world.refused());
        fs::write(world.home.trust(), "{").expect("it can be written");
        assert!(matches!(world.now(), Err(ConfigError::Trust(_))));
        let outside = world.settings.project(&world.scratch.path("home"));
        let outside = outside.expect_err("it is no repository");
        assert!(matches!(outside, ConfigError::Project(ProjectError::NotInRepository(_))));
    }

    #[test]
    fn the_last_version_that_was_good_and_trusted_counts_until_the_next_one_is() {
        let world = World::new("versions");
        world.write(1);
        world.trust();
        world.counts(1, &[]);
        world.write(2);
        world.counts(1, &["changed since it was trusted: read it, then `kennel trust "]);
        world.write_text("max_retries = ");
        world.counts(1, &["what was trusted last counts: repair it"]);
        fs::remove_file(world.file()).expect("it was there");
        world.counts(1, &["the file is gone; what was trusted last counts"]);
        world.write(3);
        world.counts(1, &["changed since"]);
        world.trust();
        world.counts(3, &[]);
        world.write(1);
        world.counts(3, &["changed since"]);
        // What was there before and is trusted again is as good as new.
        world.trust();
        world.counts(1, &[]);
        fs::remove_file(world.file()).expect("it was there");
        fs::create_dir(world.file()).expect("it can be made");
        world.counts(1, &["not an ordinary file"]);
        // Who takes trust back means it, also of what was read before.
        fs::remove_dir(world.file()).expect("it was there");
        world.write(1);
        world.trusts(&[]);
        assert!(world.refused().contains("nobody has trusted it"), "{}", world.refused());
        world.write(2);
        assert!(world.refused().contains("nobody has trusted it"), "{}", world.refused());
    }

    #[test]
    fn what_was_trusted_last_counts_after_a_restart_too() {
        let mut world = World::new("restart");
        let file = world.file().to_str().expect("it is text").to_owned();
        let trust = |world: &World| {
            let bytes = fs::read(world.file()).expect("it is there");
            give(&world.home, &file, &bytes).expect("it can be given")
        };
        world.write(1);
        trust(&world);
        world.write(2);
        let second = trust(&world);
        for (text, told) in [
            ("[project]\nmax_retries = 3\n", "changed since it was trusted"),
            ("max_retries = ", "what was trusted last counts: repair it"),
        ] {
            world.write_text(text);
            world.settings = Settings::of(&world.home);
            world.counts(2, &[told]);
            // And again, by what is remembered.
            world.counts(2, &[told]);
        }
        fs::remove_file(world.file()).expect("it was there");
        world.settings = Settings::of(&world.home);
        world.counts(2, &["the file is gone; what was trusted last counts: bring it back"]);
        // Trusted and changed before anybody has looked: the last one that was trusted counts.
        world.write(4);
        trust(&world);
        world.write(5);
        world.counts(4, &["changed since"]);
        // Nothing is kept of what is not trusted any more, and nothing counts that is not it.
        let copies = || fs::read_dir(world.home.trusted()).expect("it is there").count();
        assert!(copies() == 1 && !world.home.trusted().join(second.sha256).exists());
        let copy = fs::read_dir(world.home.trusted()).expect("it is there").next();
        let copy = copy.expect("one").expect("it reads").path();
        fs::write(&copy, "[project]\nmax_retries = 9\n").expect("it can be written");
        let fresh = Settings::of(&world.home).project(&world.repository());
        assert!(matches!(fresh, Err(ConfigError::Untrusted { changed: true, .. })), "{fresh:?}");
        revoke(&world.home, &file).expect("it can be taken back");
        assert_eq!(copies(), 0);
        assert!(world.refused().contains("nobody has trusted it"), "{}", world.refused());
    }

    #[test]
    fn what_has_not_changed_is_not_read_anew() {
        let world = World::new("same");
        world.write(1);
        world.trust();
        let (one, two) = (world.now().expect("it counts"), world.now().expect("it counts"));
        assert!(Arc::ptr_eq(&one.said, &two.said) && Arc::ptr_eq(&one.pipeline, &two.pipeline));
    }

    #[test]
    fn the_users_agents_are_there_and_their_loss_is_told() {
        let world = World::new("users");
        let agent = "[[agent]]\nname = \"mine\"\nkind = \"claude\"\nmodel = \"MODEL\"\n";
        world.user(&agent.replace("MODEL", "one"));
        world.write_text(
            "[[agent]]\nname = \"own\"\ncommand = [\"./x\"]\n\
             [[stage]]\nname = \"do\"\nagents = [\"mine\", \"own\"]\n\
             gates = [[\"make\"], [\"make\", \"test\"]]\n\
             [[stage]]\nname = \"done\"\nterminal = true\n",
        );
        world.trust();
        let now = world.now().expect("it counts");
        let model = |now: &ProjectNow| {
            now.pipeline.agent(&"mine".into()).expect("it is named").model.as_str().to_owned()
        };
        assert_eq!(model(&now), "one");
        let found = |name: &str| now.agent(name).map(|found| found.file);
        assert_eq!(found("mine"), Some(world.home.config_file()));
        assert_eq!(found("own"), Some(world.file()));
        assert_eq!(found("nobody"), None);
        assert_eq!(now.gate("do", 1), Some(&["make".to_owned(), "test".to_owned()][..]));
        assert_eq!((now.gate("do", 2), now.gate("done", 0), now.gate("no", 0)), (None, None, None));
        // A change of the user's file counts at once, also in the pipeline.
        world.user(&agent.replace("MODEL", "two"));
        assert_eq!(model(&world.now().expect("it counts")), "two");
        world.user("");
        let now = world.now().expect("what it was counts");
        assert_eq!(model(&now), "two");
        assert!(now.notes[0].contains("there is no agent \"mine\""), "{:?}", now.notes);
        assert!(now.agent("mine").is_none(), "the user has it no more");
        // A broken one of the user's is told beside it.
        world.user("[[agnet]]");
        assert_eq!(world.now().expect("it counts").notes.len(), 2);
    }

    #[test]
    fn a_worktrees_own_file_says_nothing() {
        let world = World::new("of-worktree");
        world.write(1);
        world.trust();
        let own = world.repository().join(".git/worktrees/w");
        world.scratch.write("repo/.git/worktrees/w/commondir", "../..");
        world.scratch.write("tree/.git", &format!("gitdir: {}", own.display()));
        world.scratch.write("tree/kennel.toml", "[project]\nmax_retries = 99\n");
        let now = world.settings.project(&world.scratch.path("tree")).expect("it counts");
        assert_eq!((now.repository, now.file), (world.repository(), world.file()));
        assert_eq!(now.pipeline.max_retries, 1);
    }

    #[test]
    fn a_story_has_its_place_where_the_file_says() {
        let world = World::new("place");
        let story = StorySlug::new("fix-it").expect("it is one");
        let here = world.scratch.path("");
        let user_home = std::env::var_os("HOME").map(PathBuf::from);
        let state = world.home.state().join("worktrees/key/fix-it");
        for (line, worktree) in [
            ("", Some(state)),
            ("worktree_root = \"../trees/./x/\"", Some(here.join("trees/x/fix-it"))),
            ("worktree_root = \".trees\"", Some(here.join("repo/.trees/fix-it"))),
            ("worktree_root = \"/some/../where\"", Some("/where/fix-it".into())),
            ("worktree_root = \"~/trees\"", user_home.map(|home| home.join("trees/fix-it"))),
        ] {
            world.write_text(&format!("[project]\n{line}\n"));
            world.trust();
            let Some(worktree) = worktree else { continue };
            let place = world.now().expect("it counts").place(&world.home, "key", &story);
            assert_eq!(place.worktree, worktree, "{line}");
            assert_eq!(
                (place.repository.clone(), place.base.as_str()),
                (here.join("repo"), "trunk")
            );
            assert_eq!(place.branch(), "kennel/fix-it");
            // Whatever was written, a step takes it.
            assert!(crate::steps::Step::Look { place }.command().is_ok(), "{line}");
        }
        world.write_text("[project]\nbase_branch = \"dev\"\nbranch_prefix = \"k-\"\n");
        world.trust();
        let now = world.now().expect("it counts");
        let place = now.place(&world.home, "key", &story);
        assert_eq!(
            (now.base(), place.base.as_str(), place.branch().as_str()),
            ("dev", "dev", "k-fix-it")
        );
        world.scratch.write("repo/.git/HEAD", "0123456789012345678901234567890123456789");
        world.write(1);
        world.trust();
        assert_eq!(world.now().expect("it counts").base(), "main");
    }

    #[test]
    fn gates_have_the_projects_limits_under_the_users_caps() {
        let world = World::new("gates");
        world.write(1);
        world.trust();
        let limits = || world.now().expect("it counts").gate_limits();
        let usual =
            Limits { wall_ms: Some(1_800_000), output: Some(256 << 20), ..Limits::default() };
        assert_eq!(limits(), usual);
        world.user("[limits]\nwall = \"1m\"\noutput = \"1G\"\nmax_turns = 3\n");
        assert_eq!(limits(), Limits { wall_ms: Some(60_000), ..usual.clone() });
        world.write_text("[project]\ngate_wall = \"5s\"\ngate_output = \"2G\"\n");
        world.trust();
        let capped = Limits { wall_ms: Some(5000), output: Some(1 << 30), ..usual };
        assert_eq!(limits(), capped);
    }
}
