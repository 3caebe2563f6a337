//! `kennel run`: starts a command in a slot, and stays with it unless told not to.
//!
//! Owns: what the command inherits from here (directory, environment, input), and what a Ctrl-C or
//! a closed terminal means.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kennel_daemon::{Text, new_run_id, wire};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attach;
use super::logs::{Follower, Until, follow};
use super::send::forward_stdin;
use super::wait::until_over;
use crate::client::Client;
use crate::error::{Failure, RUN_FAILED};
use crate::output::{Out, say};
use crate::{duration, render, size};

/// Starts that a crash of ours interrupted are tried again so often.
const START_TRIES: u32 = 3;
/// What is left of us when the terminal is closed: 128 and the signal's number.
const HUNG_UP: u8 = 129;

/// Run a command in a slot, and own everything it starts.
///
/// In the foreground its output is ours, Ctrl-C asks it to stop and a second one forces it, and we
/// exit as it does: with its code, 128+n if signal n ended it, 124 if a limit did, 125 if it was
/// refused, 126 if it is not executable, 127 if it is not found. A closed terminal leaves it
/// running.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Run this agent of kennel.toml, or of your own configuration; the words are what it is told.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Have that agent go on in this session of its.
    #[arg(long, value_name = "SESSION", requires = "agent")]
    resume: Option<String>,
    /// The slot to run in; at most one run lives in it. The agent's name, or one of its own, if not
    /// said.
    #[arg(long, value_name = "K")]
    slot: Option<String>,
    /// Print the run's id once it has started, and leave it running.
    #[arg(short, long)]
    detach: bool,
    /// Where to run it.
    #[arg(short = 'C', value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Run it in this directory, and let no other run with --worktree in there meanwhile.
    #[arg(long, value_name = "DIR", conflicts_with = "directory")]
    worktree: Option<PathBuf>,
    /// Set a variable of its environment.
    #[arg(long = "env", value_name = "K=V", value_parser = parse_env())]
    env: Vec<(OsString, OsString)>,
    /// Give it a terminal. With --stdin on a terminal, that one is attached to it.
    #[arg(long)]
    pty: bool,
    /// Give it an input: ours in the foreground, what `kennel send` writes when detached.
    #[arg(long)]
    stdin: bool,
    /// Time between asking it to end and forcing it; 10s if not said.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// What happens to the rest when the command itself exits.
    #[arg(long, value_name = "WHAT", default_value = "sweep")]
    on_exit: OnExit,
    #[command(flatten)]
    telling: TellingArgs,
    #[command(flatten)]
    limits: LimitArgs,
    /// The command and its arguments; with --agent, what the agent is told.
    #[arg(required_unless_present = "agent", trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// What is told of the run; see `kennel notices`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Notices")]
struct TellingArgs {
    /// When its end is told.
    #[arg(long, value_name = "WHEN", default_value = "always")]
    notify: Notify,
    /// Tell of every line of its output that has this regular expression, if they are not too many.
    #[arg(long, value_name = "REGEX")]
    watch: Vec<String>,
    /// Tell of the first such line.
    #[arg(long, value_name = "REGEX")]
    watch_once: Vec<String>,
    /// Tell of the N-th such line.
    #[arg(long, value_name = "N:REGEX", value_parser = parse_threshold)]
    watch_after: Vec<(u32, String)>,
    /// Tell so often what it wrote since the last time, if it did; 1s at least.
    #[arg(long, value_name = "D", value_parser = parse_bound)]
    heartbeat: Option<Duration>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Notify {
    /// However it ends.
    Always,
    /// Unless it exits by itself with 0.
    Failure,
    /// Only if it exits by itself with 0.
    Success,
    /// Unless somebody stopped or killed it.
    UnlessStopped,
    /// Not at all, nor anything else about it.
    Never,
}

impl Notify {
    fn wire(self) -> wire::Notify {
        match self {
            Self::Always => wire::Notify::Always,
            Self::Failure => wire::Notify::Failure,
            Self::Success => wire::Notify::Success,
            Self::UnlessStopped => wire::Notify::UnlessStopped,
            Self::Never => wire::Notify::Never,
        }
    }
}

impl TellingArgs {
    fn watches(&self) -> Vec<wire::Watch> {
        let of = |pattern: &String, mode, threshold| {
            let pattern = pattern.clone();
            wire::Watch { pattern, mode, threshold }
        };
        let every = self.watch.iter().map(|p| of(p, wire::WatchMode::Every, None));
        let once = self.watch_once.iter().map(|p| of(p, wire::WatchMode::Once, None));
        let after =
            self.watch_after.iter().map(|(n, p)| of(p, wire::WatchMode::Threshold, Some(*n)));
        every.chain(once).chain(after).collect()
    }
}

fn parse_threshold(text: &str) -> Result<(u32, String), String> {
    let parts = text.split_once(':').and_then(|(n, pattern)| {
        let n = n.parse::<u32>().ok().filter(|n| *n > 0)?;
        Some((n, pattern.to_owned()))
    });
    parts.ok_or_else(|| "use N:REGEX with N above 0, like 3:error".to_owned())
}

/// Bounds on the run, kept by its keeper, also while the daemon is down. Those of the agent, and
/// your own caps, can only be lowered.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Stop it after so many responses of its model that ask for a tool.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_turns: Option<u64>,
    /// The same, before --max-turns if both are given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tool_turns: Option<u64>,
    /// Stop it when it has cost so much.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_usd)]
    max_budget_usd: Option<f64>,
    /// Stop it after so many tokens of every kind.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: Option<u64>,
    /// Stop it after so much time.
    #[arg(long, value_name = "D", value_parser = parse_bound)]
    wall: Option<Duration>,
    /// Stop it when it has written, computed and got nothing for so long.
    #[arg(long, value_name = "D", value_parser = parse_bound)]
    idle: Option<Duration>,
    /// Take an open call of a tool for idleness, too.
    #[arg(long, requires = "idle")]
    idle_tools: bool,
    /// Stop it if it is still there so long after its final result.
    #[arg(long, value_name = "D", value_parser = parse_bound)]
    finish: Option<Duration>,
    /// End it when all its processes together have so much memory.
    #[arg(long, value_name = "S", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Allow it so many processes and threads: the kernel refuses more, or it is stopped.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Stop it when it has written so much.
    #[arg(long, value_name = "S", value_parser = parse_bytes)]
    output: Option<u64>,
    /// Whose words it speaks: claude, codex, gemini, opencode, qwen, copilot, goose, aider, or
    /// none. Found out from the command's name if not said.
    #[arg(long, value_name = "F")]
    format: Option<String>,
    /// Start it also if a limit cannot be enforced.
    #[arg(long)]
    unenforced_ok: bool,
}

impl LimitArgs {
    fn wire(&self) -> wire::Limits {
        let ms = |time: Duration| time.as_millis() as u64;
        wire::Limits {
            max_turns: self.max_turns,
            max_tool_turns: self.max_tool_turns,
            max_budget_usd: self.max_budget_usd,
            max_tokens: self.max_tokens,
            wall_ms: self.wall.map(ms),
            idle_ms: self.idle.map(ms),
            idle_tools: self.idle_tools,
            finish_ms: self.finish.map(ms),
            memory: self.memory,
            pids: self.pids,
            output: self.output,
        }
    }
}

fn parse_usd(text: &str) -> Result<f64, String> {
    let amount = text.parse::<f64>().ok().filter(|usd| usd.is_finite() && *usd > 0.0);
    amount.ok_or_else(|| "use an amount above 0, like 2.50".to_owned())
}

fn parse_bound(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("use more than 0: nothing could run under it".to_owned()),
        time => Ok(time),
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("use more than 0: nothing could run under it".to_owned()),
        bytes => Ok(bytes),
    }
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
    let attached = args.pty && args.stdin && !detach && io::stdin().is_terminal();
    let input = args.stdin && !detach;
    let mut request = request(args)?;
    if detach {
        let run = start(client, &mut request)?;
        out.answer(&run, || run.id.clone())?;
        return Ok(0);
    }
    if attached {
        request.size = attach::own_size();
        let run = start(client, &mut request)?;
        return attach::attach_to(client, &run).map_err(Failure::of_run);
    }
    // From here on a Ctrl-C is a stop, and one that comes during the start is not lost.
    let signals = watch_signals()?;
    let run = start(client, &mut request)?;
    heed_signals(signals, client.clone(), run.id.clone());
    let until = Until::TheEnd { stop_if_reader_leaves: true };
    let followers = follow(client, &run, until, Out { json: false });
    if input {
        forward_stdin(client, &run);
    }
    let Some(run) = until_over(client, &run.id, None).map_err(Failure::of_run)? else {
        return Ok(RUN_FAILED);
    };
    conclude(&run, followers)
}

/// Starts the run. The id is ours, so that asking again cannot start a second one.
fn start(client: &Client, request: &mut wire::RunRequest) -> Result<wire::Run, Failure> {
    request.id = Some(new_id()?);
    for _ in 1..START_TRIES {
        match client.post("/v1/runs", request) {
            // It was admitted, and the daemon left: the next one knows what became of it.
            Err(Failure::Told { error, .. }) if error.code == "ask_again" => {}
            // Nothing of it ran, nor will: another may.
            Err(Failure::Told { error, .. }) if error.code == "start_interrupted" => {
                request.id = Some(new_id()?);
            }
            started => return noted(started),
        }
    }
    noted(client.post("/v1/runs", request))
}

/// Tells what the daemon has to say about a start.
fn noted(started: Result<wire::Run, Failure>) -> Result<wire::Run, Failure> {
    if let Ok(run) = &started {
        run.notes.iter().for_each(|note| say(&format!("kennel: {note}")));
    }
    started.map_err(Failure::of_run)
}

fn new_id() -> Result<String, Failure> {
    new_run_id()
        .map_err(|e| Failure::new(RUN_FAILED, "internal", format!("failed to make an id: {e}")))
}

fn request(args: RunArgs) -> Result<wire::RunRequest, Failure> {
    let failed = |e: io::Error| {
        Failure::new(RUN_FAILED, "bad_directory", format!("failed to use the directory: {e}"))
    };
    let cwd = match args.directory.as_ref().or(args.worktree.as_ref()) {
        Some(dir) => std::path::absolute(dir).map_err(failed)?,
        None => std::env::current_dir().map_err(failed)?,
    };
    let text = |text: OsString| Text(text);
    let worktree = args.worktree.is_some().then(|| Text(cwd.clone().into_os_string()));
    let pair = |(name, value)| (text(name), text(value));
    // An agent has variables of its own, and those that are said here come after them.
    let (env, set_env) = match args.agent {
        Some(_) => (Vec::new(), args.env),
        None => (args.env, Vec::new()),
    };
    let env = std::env::vars_os().chain(env);
    let prompt = match (&args.agent, args.command.is_empty()) {
        (Some(_), false) => Some(prompt(&args.command)?),
        (Some(_), true) | (None, _) => None,
    };
    let command = if args.agent.is_some() { Vec::new() } else { args.command };
    Ok(wire::RunRequest {
        id: None,
        command: command.into_iter().map(text).collect(),
        agent: args.agent,
        prompt,
        resume: args.resume,
        set_env: set_env.into_iter().map(pair).collect(),
        cwd: Text(cwd.into_os_string()),
        env: env.map(pair).collect(),
        slot: args.slot,
        worktree,
        pty: args.pty,
        size: None,
        stdin: args.stdin,
        limits: args.limits.wire(),
        format: args.limits.format,
        unenforced_ok: args.limits.unenforced_ok,
        grace_ms: args.grace.map(|grace| grace.as_millis() as u64),
        on_exit: match args.on_exit {
            OnExit::Sweep => wire::OnExit::Sweep,
            OnExit::Wait => wire::OnExit::Wait,
        },
        notify: args.telling.notify.wire(),
        watch: args.telling.watches(),
        heartbeat_ms: args.telling.heartbeat.map(|every| every.as_millis() as u64),
    })
}

/// What an agent is told: the words with one space between them.
fn prompt(words: &[OsString]) -> Result<String, Failure> {
    let texts: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let texts = texts.ok_or_else(|| {
        Failure::new(RUN_FAILED, "usage", "what an agent is told has to be text: write UTF-8")
    })?;
    Ok(texts.join(" "))
}

fn watch_signals() -> Result<Signals, Failure> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|e| Failure::new(RUN_FAILED, "signals", format!("failed to watch signals: {e}")))
}

/// The first Ctrl-C asks the run to stop; every later one forces it. A closed terminal is nobody's
/// wish: we go, the run stays.
fn heed_signals(mut signals: Signals, client: Client, id: String) {
    std::thread::spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                crate::leave(HUNG_UP);
            }
            let how = if asked { "kill" } else { "stop" };
            if !asked && io::stderr().is_terminal() {
                say(&format!("kennel: stopping run {id}; once more forces it"));
            }
            asked = true;
            let path = format!("/v1/runs/{id}/{how}");
            let told = client.post::<wire::Run>(&path, &wire::StopRequest::default());
            if let Err(Failure::Told { error, .. }) = told {
                say(&format!("kennel: {}", error.message));
            }
        }
    });
}

fn conclude(run: &wire::Run, followers: Vec<Follower>) -> Result<u8, Failure> {
    match run.state {
        // Its output may go on for as long as it is stuck.
        wire::State::Stuck if run.end.is_none() => {}
        wire::State::Dead
        | wire::State::Stuck
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
