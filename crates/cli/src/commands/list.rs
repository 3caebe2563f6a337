//! `kennel ps`: the runs there are.

use clap::Args;
use kennel_daemon::{Time, wire};

use crate::client::Client;
use crate::error::Failure;
use crate::output::{Out, line};
use crate::render;

/// List the runs that hold a slot.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Also those that have ended.
    #[arg(short, long)]
    all: bool,
    /// At most so many, newest first.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

pub(crate) fn ps(args: &PsArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let runs: Vec<wire::Run> =
        client.get(&format!("/v1/runs?all={}&output=true&limit={}", args.all, args.limit))?;
    if out.json {
        runs.iter().try_for_each(|run| out.answer(run, String::new))?;
    } else {
        line(&render::table(&runs, Time::now(), Out::style()))?;
    }
    Ok(0)
}
