//! `kennel run`: starts a command in a slot, and stays with it unless told not to.
//!
//! Owns: what the command inherits from here (directory, environment), and what a Ctrl-C means.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kennel_daemon::{Text, wire};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::logs::{Follower, Until, follow};
use super::wait::until_over;
use crate::client::Client;
use crate::error::{Failure, RUN_FAILED};
use crate::output::{Out, say};
use crate::{duration, render};

/// Run a command in a slot, and own everything it starts.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The slot to run in; at most one run lives in it. One of its own if not said.
    #[arg(long, value_name = "K")]
    slot: Option<String>,
    /// Print the run's id once it has started, and leave it running.
    #[arg(short, long)]
    detach: bool,
    /// Where to run it.
    #[arg(short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Set a variable of its environment.
    #[arg(long = "env", value_name = "K=V", value_parser = parse_env())]
    env: Vec<(OsString, OsString)>,
    /// Give it a terminal.
    #[arg(long)]
    pty: bool,
    /// Time between asking it to end and forcing it.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// What happens to the rest when the command itself exits.
    #[arg(long, value_name = "WHAT", default_value = "sweep")]
    on_exit: OnExit,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnExit {
    /// It is ended too.
    Sweep,
    /// It is awaited.
    Wait,
}

fn parse_env() -> impl clap::builder::TypedValueParser<Value = (OsString, OsString)> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().try_map(|text| {
        let bytes = text.as_bytes();
        match bytes.iter().position(|b| *b == b'=') {
            None | Some(0) => Err("use NAME=VALUE"),
            Some(at) => {
                let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                Ok((part(&bytes[..at]), part(&bytes[at + 1..])))
            }
        }
    })
}

pub(crate) fn run(args: RunArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let detach = args.detach;
    let request = request(args)?;
    // From here on a Ctrl-C is a stop, and one that comes during the start is not lost.
    let signals = if detach { None } else { Some(watch_signals()?) };
    let run: wire::Run = client.post_once("/v1/runs", &request).map_err(Failure::of_run)?;
    let Some(signals) = signals else {
        out.answer(&run, || run.id.clone())?;
        return Ok(0);
    };
    stop_on_signals(signals, client.clone(), run.id.clone());
    let until = Until::TheEnd { stop_if_reader_leaves: true };
    let followers = follow(client, &run, until, Out { json: false });
    let Some(run) = until_over(client, &run.id, None).map_err(Failure::of_run)? else {
        return Ok(RUN_FAILED);
    };
    conclude(&run, followers)
}

fn request(args: RunArgs) -> Result<wire::RunRequest, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(RUN_FAILED, "bad_directory", format!("failed to use the directory: {e}"))
    };
    let cwd = match args.directory {
        Some(dir) => std::path::absolute(dir).map_err(failed)?,
        None => std::env::current_dir().map_err(failed)?,
    };
    let text = |text: OsString| Text(text);
    let env = std::env::vars_os().chain(args.env);
    Ok(wire::RunRequest {
        command: args.command.into_iter().map(text).collect(),
        cwd: Text(cwd.into_os_string()),
        env: env.map(|(name, value)| (text(name), text(value))).collect(),
        slot: args.slot,
        pty: args.pty,
        grace_ms: args.grace.map(|grace| grace.as_millis() as u64),
        on_exit: match args.on_exit {
            OnExit::Sweep => wire::OnExit::Sweep,
            OnExit::Wait => wire::OnExit::Wait,
        },
    })
}

fn watch_signals() -> Result<Signals, Failure> {
    Signals::new([SIGINT, SIGTERM])
        .map_err(|e| Failure::new(RUN_FAILED, "signals", format!("failed to watch signals: {e}")))
}

/// The first signal asks the run to stop; every later one forces it.
fn stop_on_signals(mut signals: Signals, client: Client, id: String) {
    std::thread::spawn(move || {
        for (n, _) in signals.forever().enumerate() {
            let how = if n == 0 { "stop" } else { "kill" };
            let asked = client
                .post::<wire::Run>(&format!("/v1/runs/{id}/{how}"), &wire::StopRequest::default());
            if let Err(Failure::Told { error, .. }) = asked {
                say(&format!("kennel: {}", error.message));
            }
        }
    });
}

fn conclude(run: &wire::Run, followers: Vec<Follower>) -> Result<u8, Failure> {
    match run.state {
        // Its output may go on for as long as it is stuck.
        wire::State::Stuck => {}
        wire::State::Dead
        | wire::State::Starting
        | wire::State::Running
        | wire::State::Stopping => {
            let copied: Result<(), Failure> = followers.into_iter().try_for_each(Follower::join);
            if let Err(Failure::Told { error, .. }) = copied {
                say(&format!("kennel: {}", error.message));
            }
        }
    }
    let by_itself = run.end.as_ref().is_some_and(|end| end.cause == wire::Cause::Exit);
    if let Some(text) = render::ending(run).filter(|_| !by_itself) {
        say(&format!("kennel: run {} {text}", run.id));
    }
    Ok(render::exit_code(run))
}
