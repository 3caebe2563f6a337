//! The one shipped binary: keeper hand-off first, then parse, then one match; the only exit.
//!
//! Owns: the command line's shape. Nothing may run before the hand-off: a keeper lives as long as
//! its agent, and every byte touched here would be carried by each of them.

#![forbid(unsafe_code)]

mod client;
mod commands;
mod duration;
mod error;
mod output;
mod render;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use client::Client;
use commands::{daemon, list, logs, run, show, stop, wait};
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
    Run(run::RunArgs),
    Ps(list::PsArgs),
    Show(show::ShowArgs),
    Logs(logs::LogsArgs),
    Wait(wait::WaitArgs),
    Stop(stop::StopArgs),
    Kill(stop::KillArgs),
    /// Run the daemon in the foreground. It starts by itself when it is needed.
    Up,
    /// Have the daemon leave. Runs go on.
    Down,
}

fn main() -> ExitCode {
    if let Some(code) = kennel_process::keeper::enter() {
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
    let client = Client::find()?;
    match command {
        Command::Run(args) => run::run(args, &client, out),
        Command::Ps(args) => list::ps(&args, &client, out),
        Command::Show(args) => show::show(&args, &client, out),
        Command::Logs(args) => logs::logs(&args, &client, out),
        Command::Wait(args) => wait::wait(&args, &client, out),
        Command::Stop(args) => stop::stop(&args, &client, out),
        Command::Kill(args) => stop::kill(&args, &client, out),
        Command::Up => daemon::up(&client),
        Command::Down => daemon::down(&client, out),
    }
}
