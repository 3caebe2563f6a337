//! `kennel wait`: waits for endings, or for words in the output, and exits with what came of it.

use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::wire;

use super::logs::{Found, find_text};
use crate::client::{Client, segment};
use crate::error::{FAILED, Failure, TIMED_OUT};
use crate::output::{Out, say};
use crate::{duration, render};

/// How long one question about one of several runs waits, in milliseconds, before the next is
/// asked about.
const TURN_MS: u64 = 100;

/// Wait until runs have ended, and exit as they did.
///
/// With several runs the exit code is 0 if all of them ended with 0, else that of the first, in the
/// order given, that did not. With --any it is that of the first run that ended.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Runs, beginnings of their ids, or slots.
    #[arg(required = true, value_name = "RUN|SLOT",
        value_parser = NonEmptyStringValueParser::new())]
    runs: Vec<String>,
    /// Wait for the first of them only, and print its id.
    #[arg(long)]
    any: bool,
    /// Give up after this long, with exit code 124.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Wait until the run has written this, and exit with 0; 1 if it ended without.
    #[arg(long, value_name = "TEXT", conflicts_with = "any")]
    until: Option<String>,
}

pub(crate) fn wait(args: &WaitArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    if let Some(text) = &args.until {
        return wait_for_text(args, text, deadline, client, out);
    }
    let mut runs = Vec::new();
    for name in &args.runs {
        runs.push(find(client, name).map_err(Failure::of_run)?);
    }
    if args.any && runs.len() > 1 {
        let run = first_over(client, runs, deadline)?;
        out.answer(&run, || run.id.clone())?;
        return conclude(&run, out);
    }
    let mut code = 0;
    for run in runs {
        let id = run.id.clone();
        let over = until_over_from(client, run, deadline).map_err(Failure::of_run)?;
        let Some(run) = over else { return Err(timed_out(&id)) };
        if out.json {
            out.answer(&run, String::new)?;
        }
        let own = conclude(&run, out)?;
        if code == 0 {
            code = own;
        }
    }
    Ok(code)
}

fn conclude(run: &wire::Run, out: &Out) -> Result<u8, Failure> {
    if let Some(text) = render::ending(run).filter(|_| run.state == wire::State::Stuck && !out.json)
    {
        say(&format!("kennel: run {} {text}", run.id));
    }
    Ok(render::exit_code(run))
}

fn timed_out(id: &str) -> Failure {
    Failure::new(TIMED_OUT, "timed_out", format!("run {id} goes on after the time-out"))
}

fn wait_for_text(
    args: &WaitArgs,
    text: &str,
    deadline: Option<Instant>,
    client: &Client,
    out: &Out,
) -> Result<u8, Failure> {
    let [name] = args.runs.as_slice() else {
        let message = "--until waits for one run: name one";
        return Err(Failure::new(crate::error::USAGE, "usage", message));
    };
    if text.is_empty() {
        let message = "--until needs some text: every output has the empty one";
        return Err(Failure::new(crate::error::USAGE, "usage", message));
    }
    let run = find(client, name).map_err(Failure::of_run)?;
    match find_text(client, &run, text.as_bytes(), deadline)? {
        Found::At { stream, offset } => {
            let found = serde_json::json!({"id": run.id, "stream": stream, "offset": offset});
            if out.json {
                out.answer(&found, String::new)?;
            }
            Ok(0)
        }
        Found::EndedWithout => {
            let message = format!("run {} ended without writing {text:?}", run.id);
            Err(Failure::new(FAILED, "not_written", message))
        }
        Found::TimedOut => Err(timed_out(&run.id)),
    }
}

/// Asks about each in turn until one is over.
fn first_over(
    client: &Client,
    mut runs: Vec<wire::Run>,
    deadline: Option<Instant>,
) -> Result<wire::Run, Failure> {
    loop {
        if let Some(over) = runs.iter().find(|run| is_over(run)) {
            return Ok(over.clone());
        }
        for run in &mut runs {
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Err(timed_out(&run.id));
            }
            let path = format!("/v1/runs/{}/wait?timeout_ms={TURN_MS}", run.id);
            *run = client.get(&path).map_err(Failure::of_run)?;
            if is_over(run) {
                break;
            }
        }
    }
}

fn is_over(run: &wire::Run) -> bool {
    match run.state {
        wire::State::Dead | wire::State::Stuck => true,
        wire::State::Starting | wire::State::Running | wire::State::Stopping => false,
    }
}

fn find(client: &Client, name: &str) -> Result<wire::Run, Failure> {
    client.get(&format!("/v1/runs/{}", segment(name)))
}

/// Waits until a run is dead or stuck. `None` when the time is over.
pub(crate) fn until_over(
    client: &Client,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Option<wire::Run>, Failure> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    until_over_from(client, find(client, name)?, deadline)
}

/// The name of a slot may mean another run later: from here on the id is meant.
fn until_over_from(
    client: &Client,
    mut run: wire::Run,
    deadline: Option<Instant>,
) -> Result<Option<wire::Run>, Failure> {
    while !is_over(&run) {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let bound = left.map(|left| format!("?timeout_ms={}", left.as_millis() + 1));
        run = client.get(&format!("/v1/runs/{}/wait{}", run.id, bound.unwrap_or_default()))?;
    }
    Ok(Some(run))
}
