//! What a file would run, and how the files of a directory are: for people who decide. Owns the
//! lists; reads files and changes nothing.

use std::path::Path;

use serde::Serialize;

use super::argv::{Session, words};
use super::settings::repository_file;
use super::trust::{TrustError, list, read_file, sha256};
use super::{Agent, Problem, Repository, parse};
use crate::home::Home;

/// Something a repository's file has run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// When: `agent coder`, `gate of stage qa`, `setup`.
    pub what: String,
    /// Program and arguments; `{prompt}` is what is said to it then.
    pub command: Vec<String>,
    /// Variables it is given.
    pub env: Vec<(String, String)>,
}

/// Everything a repository's file, which is in `dir`, would have run.
#[must_use]
pub fn would_run(repository: &Repository, dir: &Path) -> Vec<Runs> {
    let plain = |what: String| {
        move |command: &Vec<String>| Runs {
            what: what.clone(),
            command: command.clone(),
            env: Vec::new(),
        }
    };
    let mut all: Vec<Runs> = repository.agents.iter().map(|agent| of_agent(agent, dir)).collect();
    for stage in &repository.stages {
        all.extend(stage.gates.iter().map(plain(format!("gate of stage {}", stage.name))));
    }
    all.extend(repository.project.setup.iter().map(plain("setup of a worktree".to_owned())));
    all.extend(repository.project.teardown.iter().map(plain("teardown of a worktree".to_owned())));
    all
}

fn of_agent(agent: &Agent, dir: &Path) -> Runs {
    // A profile that reads gives a command once there is a prompt.
    let command = words(agent, dir, Session::New, Some(parse::PROMPT)).unwrap_or_default();
    Runs { what: format!("agent {}", agent.name), command, env: agent.env.clone() }
}

/// How a file of configuration is.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Which.
    pub file: String,
    /// `user` or `repository`.
    pub whose: &'static str,
    /// `ok`, `missing` or `wrong`.
    pub state: &'static str,
    /// Whether it may be used as it is; only said of a repository's.
    pub trusted: Option<bool>,
    /// Its agents.
    pub agents: Vec<String>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

/// The user's file and that of the repository a directory is in, if there is one.
pub fn check(home: &Home, dir: &Path) -> Result<Vec<FileReport>, TrustError> {
    let file = home.config_file();
    let shown = file.display().to_string();
    let mut user_agents = Vec::new();
    let mut user = of_file(&file, "user", |bytes| {
        let user = parse::user(&shown, bytes)?;
        user_agents = user.agents.into_iter().map(|agent| agent.name).collect();
        Ok(user_agents.clone())
    });
    user.trusted = None;
    let mut reports = vec![user];
    if let Some(file) = repository_file(dir) {
        let shown = file.display().to_string();
        let mut report = of_file(&file, "repository", |bytes| {
            let repository = parse::repository(&shown, bytes, &user_agents)?;
            Ok(repository.agents.into_iter().map(|agent| agent.name).collect())
        });
        let now = read_file(&file).ok().flatten().map(|bytes| sha256(&bytes));
        let known = list(home)?.into_iter().find(|trusted| trusted.file == shown);
        report.trusted = Some(known.is_some_and(|known| Some(known.sha256) == now));
        reports.push(report);
    }
    Ok(reports)
}

fn of_file(
    file: &Path,
    whose: &'static str,
    agents: impl FnOnce(&[u8]) -> Result<Vec<String>, Vec<Problem>>,
) -> FileReport {
    let shown = file.display().to_string();
    let whole =
        |message: String| vec![Problem { file: shown.clone(), line: None, key: None, message }];
    let (state, agents, problems) = match read_file(file) {
        Ok(None) => ("missing", Vec::new(), Vec::new()),
        Ok(Some(bytes)) => match agents(&bytes) {
            Ok(agents) => ("ok", agents, Vec::new()),
            Err(problems) => ("wrong", Vec::new(), problems),
        },
        Err(e) => ("wrong", Vec::new(), whole(format!("failed to read it: {e}"))),
    };
    FileReport { file: shown, whose, state, trusted: None, agents, problems }
}
