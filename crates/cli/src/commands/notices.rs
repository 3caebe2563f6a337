//! `kennel notices`, `ack` and `consumers`: what deserves telling, and how far somebody has read.
//!
//! Owns: the order of printing and acknowledging. What was not written is not acknowledged.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kennel_daemon::{new_run_id, wire};

use crate::client::{Client, segment};
use crate::error::{FAILED, Failure, USAGE};
use crate::output::{Out, line};
use crate::render;

/// Notices asked for at once.
const PAGE: usize = 500;
/// Shown without a consumer, if nothing else is said.
const DEFAULT_LAST: usize = 20;
/// How long one question of a follower waits, in milliseconds.
const WAIT_MS: u64 = 20_000;

/// Show what deserves telling: starts, warnings, matches, and each end exactly once.
///
/// Without --consumer: the newest ones. With it: what that consumer has not acknowledged, oldest
/// first. A notice is shown until `kennel ack` has acknowledged it, and has an id that stays the
/// same, so that who is told twice can know it.
#[derive(Debug, Args)]
pub(crate) struct NoticesArgs {
    /// Who reads: a name of your choice, which keeps its own place.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    consumer: Option<String>,
    /// Go on with what comes.
    #[arg(short, long)]
    follow: bool,
    /// At most so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Those after this number.
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Those of this run alone.
    #[arg(long, value_name = "RUN|SLOT")]
    run: Option<String>,
    /// Also those that runs asked not to be told of.
    #[arg(long)]
    all: bool,
    /// Acknowledge each once it is written.
    #[arg(long, requires = "consumer")]
    ack: bool,
}

/// Acknowledge what a consumer has read: everything up to a number.
#[derive(Debug, Args)]
pub(crate) struct AckArgs {
    /// Who has read.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    consumer: String,
    /// The `seq` of the last notice that was read.
    #[arg(value_name = "SEQ")]
    seq: u64,
}

/// List who reads notices, and how many each has still to read; or forget one.
#[derive(Debug, Args)]
pub(crate) struct ConsumersArgs {
    /// Forget this one: nothing is kept for it any more.
    #[arg(long, value_name = "NAME")]
    forget: Option<String>,
}

pub(crate) fn notices(args: &NoticesArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let follower = args.follow || args.consumer.is_some() || args.after.is_some();
    if !follower {
        let last = args.limit.map_or(DEFAULT_LAST, |limit| limit as usize);
        let page: wire::Notices = client.get(&format!("{}&last={last}", query(args, None)))?;
        return page.notices.iter().try_for_each(|n| show(n, out)).map(|()| 0);
    }
    // Who follows keeps others off between two questions too.
    let reader = new_run_id().map_err(|e| Failure::new(FAILED, "internal", e.to_string()))?;
    let reader = if args.follow { format!("&reader={reader}") } else { String::new() };
    let (mut after, mut left) = (args.after, args.limit.unwrap_or(u64::MAX));
    if args.follow && args.consumer.is_none() && after.is_none() {
        // From here on: who wants more names a consumer or a number.
        after = Some(client.get::<wire::Daemon>("/v1/daemon")?.last_seq);
    }
    while left > 0 {
        let wait = if args.follow { WAIT_MS } else { 0 };
        let limit = PAGE.min(usize::try_from(left).unwrap_or(PAGE));
        let path = format!("{}&limit={limit}&wait_ms={wait}{reader}", query(args, after));
        let page: wire::Notices = client.get(&path)?;
        for notice in &page.notices {
            show(notice, out)?;
            left -= 1;
        }
        if let (true, Some(last), Some(name)) =
            (args.ack, page.notices.iter().map(|notice| notice.seq).max(), &args.consumer)
        {
            acknowledge(client, name, last)?;
        }
        let all = page.notices.len() < limit;
        after = Some(page.next);
        if all && !args.follow {
            break;
        }
    }
    Ok(0)
}

fn query(args: &NoticesArgs, after: Option<u64>) -> String {
    let mut path = format!("/v1/notices?all={}", args.all);
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={value}"));
        }
    };
    add("consumer", args.consumer.as_deref().map(segment));
    add("run", args.run.as_deref().map(segment));
    add("after", after.map(|after| after.to_string()));
    path
}

fn show(notice: &wire::Notice, out: &Out) -> Result<(), Failure> {
    out.answer(notice, || render::notice(notice))
}

fn acknowledge(client: &Client, name: &str, seq: u64) -> Result<wire::Consumer, Failure> {
    let path = format!("/v1/consumers/{}/ack", segment(name));
    client.post(&path, &wire::AckRequest { seq })
}

pub(crate) fn ack(args: &AckArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let known = acknowledge(client, &args.consumer, args.seq)?;
    if out.json {
        out.answer(&known, String::new)?;
    }
    Ok(0)
}

pub(crate) fn consumers(args: &ConsumersArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    if let Some(name) = &args.forget {
        if name.is_empty() {
            return Err(Failure::new(USAGE, "usage", "--forget needs a consumer's name"));
        }
        client.delete(&format!("/v1/consumers/{}", segment(name)))?;
        return Ok(0);
    }
    let known: Vec<wire::Consumer> = client.get("/v1/consumers")?;
    for consumer in &known {
        out.answer(consumer, || {
            let wire::Consumer { name, acked, acked_at, unread } = consumer;
            let unread = unread.unwrap_or(0);
            format!("{name}: read up to {acked} at {acked_at}, {unread} to read")
        })?;
    }
    if known.is_empty() && !out.json {
        line("nobody yet: `kennel notices --consumer NAME` makes one known")?;
    }
    Ok(0)
}
