//! `kennel up` and `kennel down`: the daemon in the foreground, and its leaving.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use kennel_daemon::{Keep, Options, wire};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::client::Client;
use crate::error::{FAILED, Failure};
use crate::output::{Out, say};
use crate::progress::Progress;
use crate::{duration, notify, render, size};

/// Run the daemon in the foreground. It starts by itself when it is needed.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Serve the API on this address of this machine too, to those who have the token.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// How many runs may live at once; as many as there are file descriptors for if not said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_runs: Option<u32>,
    /// Remove dead runs, with their output, after this long.
    #[arg(long, value_name = "D", default_value = "720h", value_parser = duration::parse)]
    keep_age: Duration,
    /// Remove the oldest dead runs while all of them together take more than this.
    #[arg(long, value_name = "S", default_value = "20G", value_parser = size::parse)]
    keep_size: u64,
}

/// Have the daemon leave. Runs go on under their keepers unless you say otherwise.
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Stop every run first, all at once, and wait for the proofs.
    #[arg(long)]
    stop_runs: bool,
    /// Time between asking the runs to end and forcing them; each run's own if not said.
    #[arg(long, value_name = "D", requires = "stop_runs", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// How long stopping all of them may take; what is left then goes on.
    #[arg(long, value_name = "D", requires = "stop_runs", value_parser = duration::parse)]
    deadline: Option<Duration>,
}

/// Runs the daemon until it is told to leave. Its log goes to stderr.
pub(crate) fn up(args: &UpArgs, client: &Client) -> Result<u8, Failure> {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    // Else a line that cannot be written, on a full disk for one, would be a panic of whoever wrote
    // it: what complains about it writes to the same place.
    let log = log.with_target(false).log_internal_errors(false).finish();
    // It tells of every message, and what is in it.
    let quiet =
        Targets::new().with_default(LevelFilter::INFO).with_target("rmcp", LevelFilter::WARN);
    log.with(quiet).init();
    let options = Options {
        keep: Keep { age: args.keep_age, bytes: args.keep_size },
        max_runs: args.max_runs.map(|n| n as usize),
        listen: args.listen,
    };
    let served = kennel_daemon::serve(&client.home, &options, notify::ready);
    notify::stopping();
    served.map_err(|e| Failure::new(FAILED, "daemon", e.to_string()))?;
    Ok(0)
}

/// Has the daemon leave. Says what goes on without it.
pub(crate) fn down(args: &DownArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    // Runs may outlive the daemon that knew them: somebody has to be there to stop them.
    let mut longest = Duration::ZERO;
    if args.stop_runs {
        let runs: Vec<wire::Run> = client.get("/v1/runs")?;
        longest = Duration::from_millis(runs.iter().map(|run| run.grace_ms).max().unwrap_or(0));
    }
    let ms = |time: Duration| time.as_millis() as u64;
    let request = wire::ShutdownRequest {
        stop_runs: args.stop_runs,
        grace_ms: args.grace.map(ms),
        deadline_ms: args.deadline.map(ms),
    };
    let longest = args.deadline.or(args.grace).unwrap_or(longest);
    let what = if args.stop_runs { "stopping every run" } else { "waiting for the daemon" };
    let waiting = Progress::new(what.to_owned());
    let shutdown = client.shut_down(&request, longest)?;
    drop(waiting);
    let Some(shutdown) = shutdown else {
        say("kennel: no daemon is running");
        return Ok(0);
    };
    if out.json {
        out.answer(&shutdown, String::new)?;
    } else {
        for run in &shutdown.stopped {
            say(&format!("{}: {}", run.id, render::ending(run).unwrap_or_default()));
        }
        say(&format!("kennel: the daemon left{}", left_words(shutdown.left.len(), args.stop_runs)));
    }
    Ok(if args.stop_runs && !shutdown.left.is_empty() { FAILED } else { 0 })
}

/// Who was to be stopped and is left is stuck or lost, and may have no keeper any more.
fn left_words(left: usize, were_to_stop: bool) -> String {
    match (left, were_to_stop) {
        (0, _) => String::new(),
        (1, false) => "; 1 run goes on under its keeper".to_owned(),
        (n, false) => format!("; {n} runs go on under their keepers"),
        (1, true) => "; 1 run is not proven dead: `kennel ps` names it".to_owned(),
        (n, true) => format!("; {n} runs are not proven dead: `kennel ps` names them"),
    }
}
