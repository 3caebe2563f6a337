//! The one shipped binary: keeper hand-off first, then parse, then one match; the only exit.
//!
//! Owns: the command line's shape. Nothing may run before the hand-off: a keeper lives as long as
//! its agent, and every byte touched here would be carried by each of them.

#![forbid(unsafe_code)]

mod client;
mod commands;
mod duration;
mod error;
mod keys;
mod notify;
mod output;
mod progress;
mod render;
mod size;
mod socket;
mod terminal;
mod viewer;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use client::Client;
use commands::{
    attach, channels, config, daemon, doctor, generate, limits, list, logs, mcp, notices, run,
    send, service, show, stop, story, usage, wait,
};
use error::Failure;
use output::Out;

/// A process layer for coding agents: start them, own them, stop the whole of them with proof.
#[derive(Debug, Parser)]
#[command(name = "kennel", version)]
struct Cli {
    /// Answer in JSON: one object, or one per line. Errors too.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Ps(list::PsArgs),
    Show(show::ShowArgs),
    Logs(logs::LogsArgs),
    Limits(limits::LimitsArgs),
    Usage(usage::UsageArgs),
    Attach(attach::AttachArgs),
    Send(send::SendArgs),
    Wait(wait::WaitArgs),
    Stop(stop::StopArgs),
    Kill(stop::KillArgs),
    Story(Box<story::StoryArgs>),
    Notices(notices::NoticesArgs),
    Ack(notices::AckArgs),
    Consumers(notices::ConsumersArgs),
    Channels(channels::ChannelsArgs),
    Up(daemon::UpArgs),
    Down(daemon::DownArgs),
    Doctor(doctor::DoctorArgs),
    Init(config::InitArgs),
    Trust(config::TrustArgs),
    Config(config::ConfigArgs),
    Service(service::ServiceArgs),
    Mcp(mcp::McpArgs),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    if let Some(code) = kennel_process::keeper::enter_with(kennel_daemon::make_meter) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => return error::refuse_arguments(&refused),
    };
    let out = Out { json: cli.json };
    match perform(cli.command, &out) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(&out),
    }
}

fn perform(command: Command, out: &Out) -> Result<u8, Failure> {
    // Found by each that needs it: the others are also run in builds, where there is no home.
    let client = Client::find;
    match command {
        Command::Run(args) => run::run(*args, &client()?, out),
        Command::Ps(args) => list::ps(&args, &client()?, out),
        Command::Show(args) => show::show(&args, &client()?, out),
        Command::Logs(args) => logs::logs(&args, &client()?, out),
        Command::Limits(args) => limits::limits(&args, &client()?, out),
        Command::Usage(args) => usage::usage(&args, &client()?, out),
        Command::Attach(args) => attach::attach(args, &client()?),
        Command::Send(args) => send::send(&args, &client()?),
        Command::Wait(args) => wait::wait(&args, &client()?, out),
        Command::Stop(args) => stop::stop(&args, &client()?, out),
        Command::Kill(args) => stop::kill(&args, &client()?, out),
        Command::Story(args) => story::story(*args, &client()?, out),
        Command::Notices(args) => notices::notices(&args, &client()?, out),
        Command::Ack(args) => notices::ack(&args, &client()?, out),
        Command::Consumers(args) => notices::consumers(&args, &client()?, out),
        Command::Channels(args) => channels::channels(&args, &client()?, out),
        Command::Up(args) => daemon::up(&args, &client()?),
        Command::Down(args) => daemon::down(&args, &client()?, out),
        Command::Doctor(args) => doctor::doctor(&args, &client()?, out),
        Command::Init(args) => config::init(&args, || Ok(client()?.home), out),
        Command::Trust(args) => config::trust(&args, &client()?.home, out),
        Command::Config(args) => config::config(&args, &client()?.home, out),
        Command::Service(args) => service::service(&args, out),
        Command::Mcp(args) => mcp::mcp(&args, &client()?),
        Command::Completions(args) => generate::completions(&args, Cli::command()),
        Command::Man(args) => generate::man(&args, Cli::command()),
    }
}

/// Ends this process at once, from whichever thread knows that it must.
#[allow(clippy::exit, reason = "a signal has no caller to return to")]
pub(crate) fn leave(code: u8) -> ! {
    std::process::exit(i32::from(code))
}
