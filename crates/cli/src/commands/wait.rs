//! `kennel wait`: waits for an ending and exits with its code.

use std::time::{Duration, Instant};

use clap::Args;
use kennel_daemon::wire;

use crate::client::{Client, segment};
use crate::error::{Failure, TIMED_OUT};
use crate::output::{Out, say};
use crate::{duration, render};

/// Wait until a run has ended, and exit as it did.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// A run, the beginning of its id, or a slot.
    run: String,
    /// Give up after this long, with exit code 124.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    timeout: Option<Duration>,
}

pub(crate) fn wait(args: &WaitArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let Some(run) = until_over(client, &args.run, args.timeout).map_err(Failure::of_run)? else {
        let message = format!("run {} goes on after the time-out", args.run);
        return Err(Failure::new(TIMED_OUT, "timed_out", message));
    };
    if out.json {
        out.answer(&run, String::new)?;
    } else if let Some(text) = render::ending(&run).filter(|_| run.state == wire::State::Stuck) {
        say(&format!("kennel: {text}"));
    }
    Ok(render::exit_code(&run))
}

/// Waits until a run is dead or stuck. `None` when the time is over.
pub(crate) fn until_over(
    client: &Client,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Option<wire::Run>, Failure> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    // The name of a slot may mean another run later: from here on the id is meant.
    let mut run: wire::Run = client.get(&format!("/v1/runs/{}", segment(name)))?;
    loop {
        match run.state {
            wire::State::Dead | wire::State::Stuck => return Ok(Some(run)),
            wire::State::Starting | wire::State::Running | wire::State::Stopping => {}
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let bound = left.map(|left| format!("?timeout_ms={}", left.as_millis() + 1));
        run = client.get(&format!("/v1/runs/{}/wait{}", run.id, bound.unwrap_or_default()))?;
    }
}
