//! The configuration as it is now: which files count for a directory, the last good version of
//! each, and what may be used of it.
//!
//! ```text
//! user's        none: no caps; broken or gone: the last good one counts, and that is told
//! repository's  untrusted or changed: refused; broken: the last good one, if that is trusted
//! ```
//!
//! What counts for a project and its stories is decided in `project`, on the same versions.
//!
//! Owns: when files are read, which is when they are asked for; nothing is polled. Contents are
//! compared, because a time and a size can be the same for two of them. Runs keep what they were
//! started with: nothing here reaches them.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::project::{LastTrusted, ProjectError};
use super::trust::{self, TrustError, read_file, sha256};
use super::{Agent, Problem, REPOSITORY_FILE, Repository, User, parse};
use crate::home::Home;

/// So many repositories are remembered; beyond them the memory begins anew, which costs a reading.
const MAX_REPOSITORIES: usize = 1024;

/// The configuration of one home.
#[derive(Clone, Debug)]
pub struct Settings {
    home: Home,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    user: Versions<User>,
    repositories: HashMap<PathBuf, Versions<Repository>>,
    /// Projects that were asked for, by their repository.
    projects: HashMap<PathBuf, Option<LastTrusted>>,
}

/// What is known of one file.
#[derive(Debug)]
struct Versions<T> {
    /// What it was when it was last looked at, with the names that were known then.
    last: Option<(Content, Vec<String>)>,
    /// What was wrong with that.
    problems: Vec<Problem>,
    good: Option<Version<T>>,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Self { last: None, problems: Vec::new(), good: None }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Version<T> {
    pub(super) said: Arc<T>,
    pub(super) sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Missing,
    Bytes(Vec<u8>),
    Unreadable(String),
}

/// An agent that was asked for by name.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its profile.
    pub agent: Agent,
    /// The file it is in.
    pub file: PathBuf,
}

/// What is in force for a start.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The user's file as it counts.
    pub user: Arc<User>,
    /// Where that is.
    pub user_file: PathBuf,
    /// What its starter should know: a file that is broken or gone.
    pub notes: Vec<String>,
}

/// Why the configuration cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// It does not read, and never did since the daemon started.
    Invalid(Vec<Problem>),
    /// Nobody has trusted the repository's file.
    Untrusted {
        /// Which.
        file: PathBuf,
        /// True if an earlier version of it was.
        changed: bool,
    },
    /// A project has no file, and had none since the daemon started.
    NoFile {
        /// Where it would be.
        file: PathBuf,
    },
    /// The directory is of no project.
    Project(ProjectError),
    /// There is no such agent.
    NoSuchAgent {
        /// The name.
        name: String,
        /// Those there are, in the files that were looked at.
        known: Vec<String>,
        /// These files.
        files: Vec<PathBuf>,
    },
    /// Nobody can say who was trusted.
    Trust(TrustError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problems) => {
                let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
                write!(f, "the configuration is wrong: {}", lines.join("; "))
            }
            Self::Untrusted { file, changed: false } => {
                write!(f, "{} may run commands, and nobody has trusted it", file.display())
            }
            Self::Untrusted { file, changed: true } => {
                write!(f, "{} has changed since it was trusted", file.display())
            }
            Self::NoFile { file } => {
                write!(f, "{} is not there, and stories are worked on by it", file.display())
            }
            Self::Project(e) => e.fmt(f),
            Self::NoSuchAgent { name, known, files } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                f.write_str(&parse::unknown("agent", name, &known))?;
                let files: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
                write!(f, " (looked in {})", files.join(" and "))
            }
            Self::Trust(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {}

impl Settings {
    /// The configuration of a home. Nothing is read yet.
    #[must_use]
    pub fn of(home: &Home) -> Self {
        Self { home: home.clone(), seen: Arc::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        // Whoever panicked with it left whole versions behind, or none.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the user's file says now, or said last.
    pub fn in_force(&self) -> Result<InForce, ConfigError> {
        let user_file = self.home.config_file();
        let shown = user_file.display().to_string();
        let content = content(&user_file);
        let versions = &mut self.seen().user;
        versions.look(&shown, content, Vec::new(), |bytes| parse::user(&shown, bytes));
        let notes: Vec<String> = versions.problems.iter().map(last_good_counts).collect();
        match (&versions.good, versions.problems.is_empty()) {
            (Some(good), _) => Ok(InForce { user: good.said.clone(), user_file, notes }),
            (None, true) => Ok(InForce { user: Arc::default(), user_file, notes }),
            (None, false) => Err(ConfigError::Invalid(versions.problems.clone())),
        }
    }

    /// The agent of this name for a directory: its repository's, else the user's. With what the
    /// starter should know.
    pub fn agent(
        &self,
        in_force: &InForce,
        name: &str,
        dir: &Path,
    ) -> Result<(Found, Vec<String>), ConfigError> {
        let own = in_force.user.agents.iter().find(|agent| agent.name == name);
        let mut known: Vec<String> = names(&in_force.user.agents);
        let mut files = vec![in_force.user_file.clone()];
        if let Some(file) = repository_file(dir) {
            let (version, problems) = self.repository(&file, &known);
            match version {
                Some(version) => {
                    if let Some(agent) = version.said.agents.iter().find(|a| a.name == name) {
                        self.check_trust(&file, &version.sha256)?;
                        let notes = problems.iter().map(last_good_counts).collect();
                        return Ok((Found { agent: agent.clone(), file }, notes));
                    }
                    known.splice(0..0, names(&version.said.agents));
                    files.insert(0, file);
                }
                // It may have an agent of this name: nobody can say whose is meant.
                None if !problems.is_empty() => return Err(ConfigError::Invalid(problems)),
                // A link that leads nowhere, or gone meanwhile.
                None => {}
            }
        }
        match own {
            Some(agent) => {
                let file = in_force.user_file.clone();
                Ok((Found { agent: agent.clone(), file }, Vec::new()))
            }
            None => Err(ConfigError::NoSuchAgent { name: name.to_owned(), known, files }),
        }
    }

    /// The last good version of a repository's file, and what is wrong with it now.
    pub(super) fn repository(
        &self,
        file: &Path,
        others: &[String],
    ) -> (Option<Version<Repository>>, Vec<Problem>) {
        let shown = file.display().to_string();
        let content = content(file);
        let repositories = &mut self.seen().repositories;
        if repositories.len() >= MAX_REPOSITORIES && !repositories.contains_key(file) {
            repositories.clear();
        }
        let versions = repositories.entry(file.to_owned()).or_default();
        let parse = |bytes: &[u8]| parse::repository(&shown, bytes, others);
        versions.look(&shown, content, others.to_vec(), parse);
        (versions.good.clone(), versions.problems.clone())
    }

    fn check_trust(&self, file: &Path, sha256: &str) -> Result<(), ConfigError> {
        match self.trusted(file)? {
            Some(trusted) if trusted == sha256 => Ok(()),
            changed => {
                let (file, changed) = (file.to_owned(), changed.is_some());
                Err(ConfigError::Untrusted { file, changed })
            }
        }
    }

    /// The SHA-256 that a file was trusted with, if it is.
    pub(super) fn trusted(&self, file: &Path) -> Result<Option<String>, ConfigError> {
        let trusted = trust::list(&self.home).map_err(ConfigError::Trust)?;
        let shown = file.to_str();
        let known = trusted.into_iter().find(|trusted| Some(trusted.file.as_str()) == shown);
        Ok(known.map(|known| known.sha256))
    }

    /// What a repository's file said when it was trusted with this SHA-256, if that is kept and
    /// still reads: it may name an agent of the user's that is gone.
    pub(super) fn as_trusted(
        &self,
        file: &Path,
        sha256: &str,
        others: &[String],
    ) -> Option<Arc<Repository>> {
        let bytes = trust::kept(&self.home, sha256)?;
        let said = parse::repository(&file.display().to_string(), &bytes, others);
        said.ok().map(Arc::new)
    }

    /// Notes that a project was asked for.
    pub(super) fn know_project(&self, repository: &Path) {
        let projects = &mut self.seen().projects;
        if projects.len() >= MAX_REPOSITORIES && !projects.contains_key(repository) {
            projects.clear();
        }
        projects.entry(repository.to_owned()).or_default();
    }

    /// Every project that was asked for, by its repository.
    pub(super) fn known_projects(&self) -> Vec<PathBuf> {
        self.seen().projects.keys().cloned().collect()
    }

    pub(super) fn last_trusted(&self, repository: &Path) -> Option<LastTrusted> {
        self.seen().projects.get(repository).cloned().flatten()
    }

    pub(super) fn remember_trusted(&self, repository: &Path, version: LastTrusted) {
        self.seen().projects.insert(repository.to_owned(), Some(version));
    }

    pub(super) fn forget_trusted(&self, repository: &Path) {
        self.seen().projects.insert(repository.to_owned(), None);
    }

    /// What is wrong now with the user's file and with those of repositories that were asked for.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = match self.in_force() {
            Ok(_) => self.seen().user.problems.clone(),
            Err(ConfigError::Invalid(problems)) => problems,
            Err(
                e @ (ConfigError::Untrusted { .. }
                | ConfigError::NoFile { .. }
                | ConfigError::Project(_)
                | ConfigError::NoSuchAgent { .. }),
            ) => vec![problem(&self.home.config_file(), e.to_string())],
            Err(ConfigError::Trust(e)) => vec![problem(&self.home.trust(), e.to_string())],
        };
        if let Err(e) = trust::list(&self.home) {
            problems.push(problem(&self.home.trust(), e.to_string()));
        }
        let others = self.in_force().map(|now| names(&now.user.agents)).unwrap_or_default();
        let files: Vec<PathBuf> = self.seen().repositories.keys().cloned().collect();
        // One that is gone is told of when it is asked for: branches come and go.
        for file in files.iter().filter(|file| file.exists()) {
            problems.extend(self.repository(file, &others).1);
        }
        // What counts in the place of a file that is wrong is told with it, and once.
        let of_projects = self.projects_problems();
        problems.retain(|known| !of_projects.iter().any(|told| told.is_about(known)));
        problems.extend(of_projects);
        problems
    }
}

impl<T> Versions<T> {
    /// Looks at what a file is now. If that is as it was, nothing has changed.
    fn look(
        &mut self,
        shown: &str,
        content: Content,
        others: Vec<String>,
        parse: impl FnOnce(&[u8]) -> Result<T, Vec<Problem>>,
    ) {
        let now = (content, others);
        if self.last.as_ref() == Some(&now) {
            return;
        }
        let whole = |message: String| {
            vec![Problem { file: shown.to_owned(), line: None, key: None, message }]
        };
        self.problems = match &now.0 {
            Content::Missing if self.good.is_none() => Vec::new(),
            Content::Missing => whole("the file is gone".to_owned()),
            Content::Unreadable(why) => whole(format!("failed to read it: {why}")),
            Content::Bytes(bytes) => match parse(bytes) {
                Ok(said) => {
                    self.good = Some(Version { said: Arc::new(said), sha256: sha256(bytes) });
                    Vec::new()
                }
                Err(problems) => problems,
            },
        };
        for problem in &self.problems {
            match &self.good {
                Some(_) => tracing::warn!("{}", last_good_counts(problem)),
                None => tracing::warn!("{problem}; nothing is started by it"),
            }
        }
        self.last = Some(now);
    }
}

/// The file of the repository a directory is in. None above the repository's own top.
#[must_use]
pub fn repository_file(dir: &Path) -> Option<PathBuf> {
    let dir = std::fs::canonicalize(dir).ok()?;
    for level in dir.ancestors() {
        let file = level.join(REPOSITORY_FILE);
        if file.symlink_metadata().is_ok() {
            return Some(std::fs::canonicalize(&file).unwrap_or(file));
        }
        if level.join(".git").symlink_metadata().is_ok() {
            return None;
        }
    }
    None
}

fn content(file: &Path) -> Content {
    match read_file(file) {
        Ok(Some(bytes)) => Content::Bytes(bytes),
        Ok(None) => Content::Missing,
        Err(e) => Content::Unreadable(e.to_string()),
    }
}

/// The names of agents.
pub(super) fn names(agents: &[Agent]) -> Vec<String> {
    agents.iter().map(|agent| agent.name.clone()).collect()
}

pub(super) fn problem(file: &Path, message: String) -> Problem {
    Problem { file: file.display().to_string(), line: None, key: None, message }
}

fn last_good_counts(problem: &Problem) -> String {
    format!("{problem}; what it said last counts")
}
