//! `kennel stop` and `kennel kill`: end runs, and come back with the proof or with what is left.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::wire;
use kennel_process::{HoldError, Process, StrangersStopped, stop_process, stop_tree};
use serde::Serialize;

use super::wait::until_over;
use crate::client::{Client, segment};
use crate::error::{FAILED, Failure, NOT_FOUND, REFUSED};
use crate::output::Out;
use crate::progress::Progress;
use crate::{duration, render};

/// Ask runs to end, force them after their grace, and wait for the proof.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Runs, beginnings of their ids, or slots.
    #[arg(required = true, value_name = "RUN|SLOT",
        value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    /// Time between asking and forcing.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Option<Duration>,
}

/// Force runs to end now, and wait for the proof.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Runs, beginnings of their ids, or slots.
    #[arg(required_unless_present = "pid", value_name = "RUN|SLOT",
        value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    /// Any process of this number instead, no run of ours. Held open before it is signalled.
    #[arg(long, value_name = "PID", conflicts_with = "names",
        value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// With all its descendants.
    #[arg(long, requires = "pid", conflicts_with = "names")]
    tree: bool,
}

pub(crate) fn stop(args: &StopArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let grace_ms = args.grace.map(|grace| grace.as_millis() as u64);
    end(&args.names, "stop", &wire::StopRequest { grace_ms }, client, out)
}

pub(crate) fn kill(args: &KillArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    match args.pid {
        Some(pid) => stop_stranger(pid, args.tree, out),
        None => end(&args.names, "kill", &wire::StopRequest::default(), client, out),
    }
}

/// All are asked before any is waited for: their graces pass together.
fn end(
    names: &[String],
    how: &str,
    request: &wire::StopRequest,
    client: &Client,
    out: &Out,
) -> Result<u8, Failure> {
    let (mut asked, mut failed) = (Vec::new(), None);
    for name in names {
        let path = format!("/v1/runs/{}/{how}", segment(name));
        // One that cannot be asked must not keep the others alive.
        match client.post::<wire::Run>(&path, request) {
            Ok(run) => asked.push(run),
            Err(e) => failed = failed.or(Some(e)),
        }
    }
    let mut code = 0;
    for run in asked {
        let waiting = Progress::new(format!("waiting for the end of run {}", run.id));
        let Some(run) = until_over(client, &run.id, None)? else { continue };
        drop(waiting);
        if run.state != wire::State::Dead {
            code = FAILED;
        }
        let text = || {
            let ending = render::ending(&run);
            format!("{}: {}", run.id, ending.unwrap_or_else(|| "goes on".to_owned()))
        };
        out.answer(&run, text)?;
    }
    failed.map_or(Ok(code), Err)
}

#[derive(Serialize)]
struct Killed {
    ended: Vec<wire::Process>,
    survivors: Vec<wire::Survivor>,
}

fn stop_stranger(pid: u32, tree: bool, out: &Out) -> Result<u8, Failure> {
    let held = Process::from_number(pid).map_err(|e| refused_hold(&e))?;
    let stopped =
        if tree { stop_tree(held, Duration::ZERO) } else { stop_process(held, Duration::ZERO) };
    let StrangersStopped { ended, survivors, .. } =
        stopped.map_err(|e| Failure::new(REFUSED, "not_killed", e.to_string()))?;
    let killed = Killed {
        ended: ended.iter().map(|who| wire::Process { pid: who.pid }).collect(),
        survivors: survivors
            .iter()
            .map(|s| wire::Survivor {
                pid: s.identity.pid,
                name: s.comm.clone(),
                state: s.state,
                uid: s.uid,
                tracer: s.tracer,
                reason: s.reason.to_string(),
            })
            .collect(),
    };
    out.answer(&killed, || killed_words(&killed))?;
    Ok(if killed.survivors.is_empty() { 0 } else { FAILED })
}

fn killed_words(killed: &Killed) -> String {
    let mut lines: Vec<String> =
        killed.ended.iter().map(|process| format!("{}: has ended", process.pid)).collect();
    lines.extend(
        killed
            .survivors
            .iter()
            .map(|s| format!("{}: {} is left (state {}): it {}", s.pid, s.name, s.state, s.reason)),
    );
    lines.join("\n")
}

fn refused_hold(error: &HoldError) -> Failure {
    match error {
        HoldError::NoSuchProcess(_) => {
            Failure::new(NOT_FOUND, "no_such_process", error.to_string())
        }
        HoldError::NotAllowed(_) | HoldError::Io(..) | _ => {
            Failure::new(REFUSED, "not_killed", error.to_string())
        }
    }
}
