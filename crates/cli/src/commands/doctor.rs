//! `kennel doctor`: how everything is, and what to do about it.
//!
//! Owns: the words around what the daemon found, and what can be said if there is no daemon to ask.

use clap::Args;
use kennel_daemon::wire::{self, Level};

use crate::client::Client;
use crate::error::{FAILED, Failure};
use crate::output::{Out, line};

/// Look at everything: what holds runs together here and why, the store, space, leftovers, cgroups.
///
/// Exits with 1 if there is a problem. Changes nothing unless told to.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Repair what is safe to repair: leftovers of runs that are over, empty cgroups, runs nobody
    /// knows of.
    #[arg(long)]
    fix: bool,
}

pub(crate) fn doctor(args: &DoctorArgs, client: &Client, out: &Out) -> Result<u8, Failure> {
    let found: Result<wire::Doctor, Failure> =
        if args.fix { client.post("/v1/doctor", &()) } else { client.get("/v1/doctor") };
    let found = match found {
        Ok(found) => found,
        // That there is no daemon, and why, is a finding too.
        Err(Failure::Told { error, .. }) if error.code == "daemon_unreachable" => wire::Doctor {
            findings: vec![wire::Finding {
                check: "daemon".to_owned(),
                level: Level::Problem,
                message: error.message,
                hint: Some("`kennel up` runs it in the foreground and says more".to_owned()),
                fixable: false,
                fixed: false,
            }],
        },
        Err(e) => return Err(e),
    };
    if out.json {
        out.answer(&found, String::new)?;
    } else {
        found.findings.iter().try_for_each(|finding| line(&words(finding)))?;
    }
    let problem = |finding: &wire::Finding| finding.level == Level::Problem && !finding.fixed;
    Ok(if found.findings.iter().any(problem) { FAILED } else { 0 })
}

fn words(finding: &wire::Finding) -> String {
    let mark = match (finding.fixed, finding.level) {
        (true, _) => "fixed",
        (false, Level::Ok) => "ok",
        (false, Level::Note) => "note",
        (false, Level::Problem) => "PROBLEM",
    };
    let mut text = format!("{mark:<8} {:<12} {}", finding.check, finding.message);
    if let Some(hint) = &finding.hint {
        text.push_str(&format!("\n{:22}{hint}", ""));
    }
    if finding.fixable && !finding.fixed {
        text.push_str(&format!("\n{:22}`kennel doctor --fix` does what is needed", ""));
    }
    text
}
