//! `kennel init`, `trust` and `config check`: files of configuration, written, trusted and checked.
//!
//! Owns: what is said about them. Needs no daemon: trust is given here and nowhere else, by whoever
//! has the files of the home.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kennel_daemon::Home;
use kennel_daemon::config::report::{FileReport, Runs, check, would_run};
use kennel_daemon::config::settings::repository_file;
use kennel_daemon::config::trust::{self, TrustError, read_file};
use kennel_daemon::config::{self, Problem, REPOSITORY_FILE};
use serde_json::json;

use crate::error::{FAILED, Failure, NOT_FOUND, REFUSED};
use crate::output::{Out, line};
use crate::render::quoted;

/// Write a documented kennel.toml, or with --user your own config.toml. Never overwrites.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Where to write it.
    #[arg(default_value = ".", conflicts_with = "user")]
    dir: PathBuf,
    /// Write your own configuration instead: caps, agents for every directory, channels.
    #[arg(long)]
    user: bool,
}

pub(crate) fn init(
    args: &InitArgs,
    home: impl FnOnce() -> Result<Home, Failure>,
    out: &Out,
) -> Result<u8, Failure> {
    let (file, written) = match args.user {
        true => config::init::user(&home()?),
        false => config::init::repository(&args.dir),
    };
    let shown = file.display();
    match written {
        Ok(()) => {
            out.answer(&json!({ "file": file, "written": true }), || shown.to_string())?;
            Ok(0)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let message = format!("{shown} is there already, and is left as it is");
            Err(Failure::new(REFUSED, "file_exists", message)
                .hint("move it away to have a new one written"))
        }
        Err(e) => {
            Err(Failure::new(FAILED, "write_failed", format!("failed to write {shown}: {e}")))
        }
    }
}

/// Trust the kennel.toml of a repository, after showing what it would run.
///
/// It is trusted as it is now: changed, it asks again. What its commands run is not looked at.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// The repository, a directory in it, or the file itself.
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// List the files that are trusted.
    #[arg(long, conflicts_with_all = ["dir", "revoke"])]
    list: bool,
    /// Trust it no more. Runs of it go on.
    #[arg(long)]
    revoke: bool,
}

pub(crate) fn trust(args: &TrustArgs, home: &Home, out: &Out) -> Result<u8, Failure> {
    if args.list {
        for trusted in trust::list(home).map_err(|e| failed(&e))? {
            let text = || format!("{}  {}  {}", trusted.at, trusted.sha256, trusted.file);
            out.answer(&trusted, text)?;
        }
        return Ok(0);
    }
    let file = if args.revoke { as_it_was(&args.dir)? } else { as_it_is(&args.dir)? };
    let Some(shown) = file.to_str() else {
        let message = format!("{} cannot be trusted: its path is not text", file.display());
        return Err(Failure::new(REFUSED, "bad_directory", message));
    };
    if args.revoke {
        if !trust::revoke(home, shown).map_err(|e| failed(&e))? {
            let message = format!("{shown} is not trusted");
            return Err(Failure::new(NOT_FOUND, "not_trusted", message));
        }
        out.answer(&json!({ "file": shown, "trusted": false }), || shown.to_owned())?;
        return Ok(0);
    }
    give(home, &file, shown, out)
}

/// Trusts the bytes that were read, shown and checked, whatever is in their place by now.
fn give(home: &Home, file: &Path, shown: &str, out: &Out) -> Result<u8, Failure> {
    let unreadable = |e: &dyn std::fmt::Display| {
        Failure::new(FAILED, "config_invalid", format!("failed to read {shown}: {e}"))
    };
    let bytes = read_file(file).map_err(|e| unreadable(&e))?;
    let bytes = bytes.ok_or_else(|| unreadable(&"it is gone"))?;
    let own = home.config_file();
    let own_bytes = read_file(&own).ok().flatten().unwrap_or_default();
    let own = config::user(&own.display().to_string(), &own_bytes).unwrap_or_default();
    let others: Vec<String> = own.agents.into_iter().map(|agent| agent.name).collect();
    let repository = config::repository(shown, &bytes, &others).map_err(|problems| {
        let message = format!("{shown} is not trusted: {}", joined(&problems));
        Failure::new(REFUSED, "config_invalid", message).hint("repair it first")
    })?;
    let runs = would_run(&repository, file.parent().unwrap_or(Path::new("/")));
    if !out.json {
        line(&format!("{shown} would run:"))?;
        runs.iter().try_for_each(|run| line(&words(run)))?;
    }
    let trusted = trust::give(home, shown, &bytes).map_err(|e| failed(&e))?;
    let answer = json!({ "file": trusted.file, "sha256": trusted.sha256, "at": trusted.at,
        "trusted": true, "would_run": runs });
    out.answer(&answer, || format!("trusted as it is now, {}", trusted.sha256))?;
    Ok(0)
}

fn words(run: &Runs) -> String {
    let env = run.env.iter().map(|(name, value)| quoted(&format!("{name}={value}")));
    let words: Vec<String> = env.chain(run.command.iter().map(|word| quoted(word))).collect();
    format!("  {}: {}", run.what, words.join(" "))
}

/// The file that is there now.
fn as_it_is(dir: &Path) -> Result<PathBuf, Failure> {
    let found = if dir.is_file() { fs::canonicalize(dir).ok() } else { repository_file(dir) };
    found.ok_or_else(|| {
        let message = format!("there is no {REPOSITORY_FILE} in {} or above it", dir.display());
        Failure::new(NOT_FOUND, "config_not_found", message)
            .hint("`kennel init` writes one with examples")
    })
}

/// The file that was there when it was trusted: it may be gone.
fn as_it_was(dir: &Path) -> Result<PathBuf, Failure> {
    if let Ok(file) = as_it_is(dir) {
        return Ok(file);
    }
    let path = std::path::absolute(dir).map_err(|e| {
        Failure::new(FAILED, "bad_directory", format!("failed to use {}: {e}", dir.display()))
    })?;
    let is_file = path.file_name().is_some_and(|name| name == REPOSITORY_FILE);
    Ok(if is_file { path } else { path.join(REPOSITORY_FILE) })
}

fn failed(error: &TrustError) -> Failure {
    Failure::new(FAILED, "trust_unreadable", error.to_string())
}

/// Look at the configuration.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say what is wrong with your config.toml and with the kennel.toml of a repository.
    ///
    /// Each problem has its file, its line, its key, and the key that was probably meant. Exits
    /// with 1 if there is any.
    Check {
        /// A directory in the repository.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
}

pub(crate) fn config(args: &ConfigArgs, home: &Home, out: &Out) -> Result<u8, Failure> {
    let What::Check { dir } = &args.what;
    let reports = check(home, dir).map_err(|e| failed(&e))?;
    let wrong = reports.iter().any(|report| !report.problems.is_empty());
    if out.json {
        out.answer(&json!({ "files": reports }), String::new)?;
    } else {
        reports.iter().try_for_each(|report| line(&description(report)))?;
    }
    Ok(if wrong { FAILED } else { 0 })
}

fn description(report: &FileReport) -> String {
    let FileReport { file, state, trusted, agents, problems, .. } = report;
    let mut text = match trusted {
        Some(true) => format!("{state:<8} {file} (trusted)"),
        Some(false) => format!("{state:<8} {file} (not trusted: read it, then `kennel trust`)"),
        None => format!("{state:<8} {file}"),
    };
    if !agents.is_empty() {
        text.push_str(&format!("\n         agents: {}", agents.join(", ")));
    }
    for problem in problems {
        text.push_str(&format!("\n         {problem}"));
    }
    text
}

fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
