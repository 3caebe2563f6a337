//! `kennel limits`: where a run stands with each of its limits.

use clap::Args;
use kennel_daemon::wire;

use crate::client::{Client, segment};
use crate::error::Failure;
use crate::output::{Out, line, say};

/// Show where a run stands with each of its limits: used, allowed, what is counted, how it
/// binds, and who set it.
#[derive(Debug, Args)]
pub(crate) struct LimitsArgs {
    /// A run, the beginning of its id, or a slot.
    run: String,
}

pub(crate) fn limits(args: &LimitsArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let path = format!("/v1/runs/{}/limits", segment(&args.run));
    let report: wire::LimitsReport = client.get(&path)?;
    if out.json {
        out.answer(&report, String::new)?;
        return Ok(0);
    }
    if report.limits.is_empty() {
        say("kennel: the run has no limits");
    }
    for limit in &report.limits {
        line(&words(limit))?;
    }
    for file in &report.files {
        line(&format!("{:<15} {}", file.state, file.path))?;
    }
    if report.unconfirmed > 0 {
        let few = report.unconfirmed;
        say(&format!("kennel: what {few} responses used is not confirmed yet, and may be more"));
    }
    if let Some(why) = &report.files_by_timer {
        say(&format!("kennel: files are looked at twice a second: {why}"));
    }
    if let Some(trouble) = &report.trouble {
        say(&format!("kennel: the counting has trouble: {trouble}"));
    }
    Ok(0)
}

fn words(limit: &wire::LimitStanding) -> String {
    let used = limit.used.map_or_else(|| "?".to_owned(), number);
    let wire::LimitStanding { kind, used: _, children, max, from, source, binds, because, warned } =
        limit;
    let because = because.as_ref().map(|why| format!(" (no harder: {why})")).unwrap_or_default();
    let warned = if *warned { " (warned)" } else { "" };
    let below = children
        .filter(|used| *used > 0.0)
        .map(|used| format!(", {} of it used by the runs it started", number(used)));
    let below = below.unwrap_or_default();
    let max = number(*max);
    format!(
        "{kind:<15} {used:>12} of {max:<12} {binds:<9} {source}{because}{warned}{below}; \
         set by {from}"
    )
}

/// Whole numbers as such, others with what matters of them.
fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
