//! `kennel channels`: where notices go, what was given up on, and whether a channel works.
//!
//! Owns: the words about them. Channels themselves are written in the user's `config.toml`.

use clap::{Args, Subcommand};
use kennel_daemon::wire;

use crate::client::{Client, segment};
use crate::error::{FAILED, Failure};
use crate::output::{Out, line};

/// List where notices go; deliver again what was given up on; try one.
///
/// Channels are `[[channel]]` in the user's config.toml.
#[derive(Debug, Args)]
pub(crate) struct ChannelsArgs {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Deliver again what a channel has given up on.
    Retry(NameArgs),
    /// Try a channel once, with a notice that is about nothing. Exits with 1 if that fails.
    Test(NameArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Which channel.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn channels(args: &ChannelsArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    match &args.what {
        None => list(client, out),
        Some(What::Retry(NameArgs { name })) => {
            let path = format!("/v1/channels/{}/retry", segment(name));
            let retried: wire::Retried = client.post(&path, &())?;
            out.answer(&retried, || match retried.letters {
                0 => format!("{name} has given up on nothing"),
                n => format!("{name} delivers {n} again"),
            })?;
            Ok(0)
        }
        Some(What::Test(NameArgs { name })) => {
            let path = format!("/v1/channels/{}/test", segment(name));
            let tested: wire::Tested = client.post(&path, &())?;
            out.answer(&tested, || match tested.delivered {
                true => format!("{name} delivered {}: {}", tested.id, tested.message),
                false => format!("{name} did not deliver: {}", tested.message),
            })?;
            Ok(if tested.delivered { 0 } else { FAILED })
        }
    }
}

fn list(client: &Client, out: &Out) -> Result<u8, Failure> {
    let known: Vec<wire::Channel> = client.get("/v1/channels")?;
    for channel in &known {
        out.answer(channel, || words(channel))?;
    }
    if known.is_empty() && !out.json {
        line("none: they are [[channel]] in the user's config.toml")?;
    }
    Ok(0)
}

fn words(channel: &wire::Channel) -> String {
    let wire::Channel { name, kind, acked, pending, delivered, dead_letters, .. } = channel;
    let mut text = format!(
        "{name} ({kind}): done up to {acked}, {pending} to deliver, {delivered} delivered, \
         {dead_letters} given up on"
    );
    if let Some(error) = &channel.last_error {
        text.push_str(&format!("\n  last try: {error}"));
    }
    if let Some(at) = &channel.next_try_at {
        text.push_str(&format!("\n  next try: {at}"));
    }
    for letter in &channel.letters {
        let wire::DeadLetter { notice, tries, error, at, .. } = letter;
        text.push_str(&format!("\n  given up on {notice} at {at} after {tries}: {error}"));
    }
    text
}
