//! `kennel usage`: what runs used together.

use clap::{Args, ValueEnum};
use kennel_daemon::wire;

use crate::client::Client;
use crate::error::Failure;
use crate::output::{Out, line, say};

/// Show what runs used: turns, tokens, cost. Runs that nobody could count are counted as such.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// What to add up by.
    #[arg(long, value_name = "WHAT", default_value = "run")]
    by: By,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Run,
    /// What is done for a story; runs of none are under `none`.
    Story,
    Agent,
    Day,
    Model,
}

pub(crate) fn usage(args: &UsageArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let by = match args.by {
        By::Run => "run",
        By::Story => "story",
        By::Agent => "agent",
        By::Day => "day",
        By::Model => "model",
    };
    let report: wire::UsageReport = client.get(&format!("/v1/usage?by={by}"))?;
    if out.json {
        out.answer(&report, String::new)?;
        return Ok(0);
    }
    let width = report.lines.iter().map(|l| l.key.chars().count()).chain([by.len(), 5]).max();
    let width = width.unwrap_or(0);
    let title = by.to_uppercase();
    line(&format!(
        "{title:<width$}  {:>6}  {:>9}  {:>7}  {:>10}  {:>10}  {:>10}  {:>10}",
        "RUNS", "UNCOUNTED", "TURNS", "TOOL TURNS", "TOKENS IN", "TOKENS OUT", "COST"
    ))?;
    for used in report.lines.iter().chain([&report.total]) {
        line(&words(used, width))?;
    }
    if report.total.shared > 0 {
        say(&format!(
            "kennel: {} of the runs worked in a session of another at the same time: what either \
             used counts for both",
            report.total.shared
        ));
    }
    Ok(0)
}

fn words(used: &wire::UsageLine, width: usize) -> String {
    let wire::UsageLine { key, runs, uncounted, shared: _, turns, tool_turns, tokens, cost_usd } =
        used;
    let read = tokens.input + tokens.cache_read + tokens.cache_write;
    let cost = format!("${cost_usd:.4}");
    format!(
        "{key:<width$}  {runs:>6}  {uncounted:>9}  {turns:>7}  {tool_turns:>10}  {read:>10}  \
         {:>10}  {cost:>10}",
        tokens.output
    )
}
