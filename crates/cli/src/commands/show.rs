//! `kennel show`: one run, with its ending in words.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::wire;

use crate::client::{Client, segment};
use crate::error::Failure;
use crate::output::Out;
use crate::render;

/// Show everything about one run, and explain its ending.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A run, the beginning of its id, or a slot.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
}

pub(crate) fn show(args: &ShowArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let run: wire::Run = client.get(&format!("/v1/runs/{}", segment(&args.run)))?;
    out.answer(&run, || render::description(&run))?;
    Ok(0)
}
