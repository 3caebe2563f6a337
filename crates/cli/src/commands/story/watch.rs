//! `kennel story wait` and `list --watch`: stories as they go.
//!
//! Owns: the asking again. Whether a story can still go on is decided in `rest`; what is seen is
//! what one answer says, so that stages passed between two of them are not told of one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::time::Instant;

use kennel_daemon::{Time, wire};

use super::rest::{Standing, standings};
use super::{Place, WaitArgs, words};
use crate::client::segment;
use crate::error::{FAILED, Failure, NOT_FOUND, TIMED_OUT};
use crate::output::{Out, bytes, line};

/// How long one question waits for news, in milliseconds: well below what the API allows, and times
/// on the screen are no older.
const WAIT_MS: u64 = 20_000;
/// Clears the screen of a terminal and goes to its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) fn wait(args: &WaitArgs, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut seen = place.list(true)?;
    let named: BTreeSet<&str> = args.ids.iter().map(String::as_str).collect();
    for id in &named {
        if !seen.stories.iter().any(|story| story.id == **id) {
            let message = format!("there is no story {id} in {}", seen.repository);
            return Err(Failure::new(NOT_FOUND, "story_not_found", message));
        }
    }
    let awaited = |story: &&wire::Story| named.is_empty() || named.contains(story.id.as_str());
    loop {
        let stuck = stuck_runs(place, &seen)?;
        let standings = standings(&seen.stories, &stuck);
        let stories: Vec<&wire::Story> = seen.stories.iter().filter(awaited).collect();
        let going =
            stories.iter().find(|s| standings.get(s.id.as_str()) == Some(&Standing::GoesOn));
        let Some(going) = going else { return conclude(&stories, &standings) };
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(timed_out(going));
        }
        let left_ms = left.and_then(|left| u64::try_from(left.as_millis()).ok());
        let wait_ms = left_ms.map_or(WAIT_MS, |ms| ms.saturating_add(1).min(WAIT_MS));
        let next = place.list_after(true, seen.seq, wait_ms)?;
        tell(&seen, &next, awaited, out)?;
        seen = next;
    }
}

/// Runs that were stopped and cannot be ended. Only those that are being stopped can be.
fn stuck_runs(place: &Place<'_>, seen: &wire::Stories) -> Result<BTreeSet<String>, Failure> {
    let mut stuck = BTreeSet::new();
    for run in seen.stories.iter().filter(|story| story.stopping).filter_map(|s| s.run.as_ref()) {
        match place.client.get::<wire::Run>(&format!("/v1/runs/{}", segment(run))) {
            Ok(known) if known.state == wire::State::Stuck => drop(stuck.insert(run.clone())),
            Ok(_) => {}
            // It is gone by now: the next look says so.
            Err(Failure::Told { error, .. }) if error.code == "run_not_found" => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(stuck)
}

fn conclude(
    stories: &[&wire::Story],
    standings: &BTreeMap<&str, Standing<'_>>,
) -> Result<u8, Failure> {
    let why = |story: &&wire::Story| words::rests(story, standings.get(story.id.as_str())?);
    let rest: Vec<String> = stories.iter().filter_map(why).collect();
    let message = match rest.as_slice() {
        [] => return Ok(0),
        [one] => format!("nothing goes on any more: {one}"),
        several => {
            let n = several.len();
            format!(
                "nothing goes on any more, and {n} stories are not done:\n  {}",
                rest.join("\n  ")
            )
        }
    };
    let hint = "`kennel story show ID` says more; `unblock` and `move` let a story go on";
    Err(Failure::new(FAILED, "stories_rest", message).hint(hint))
}

fn timed_out(story: &wire::Story) -> Failure {
    let message = format!("not done after the time-out: {}", words::standing(story));
    Failure::new(TIMED_OUT, "timed_out", message)
}

/// Tells what is different: a line each, or each story that is as it now is.
fn tell(
    old: &wire::Stories,
    new: &wire::Stories,
    of: impl Fn(&&wire::Story) -> bool,
    out: &Out,
) -> Result<(), Failure> {
    let before: BTreeMap<&str, &wire::Story> =
        old.stories.iter().map(|story| (story.id.as_str(), story)).collect();
    for story in new.stories.iter().filter(of) {
        let lines = words::changes(before.get(story.id.as_str()).copied(), story);
        match out.json {
            true if lines.is_empty() => {}
            true => out.answer(story, String::new)?,
            false => lines.iter().try_for_each(|text| line(text))?,
        }
    }
    Ok(())
}

/// Shows all stories until somebody interrupts it.
pub(super) fn watch(all: bool, place: &Place<'_>, out: &Out) -> Result<u8, Failure> {
    let draws = !out.json && io::stdout().is_terminal();
    let mut seen = place.list(all)?;
    if out.json {
        seen.stories.iter().try_for_each(|story| out.answer(story, String::new))?;
    }
    loop {
        if draws {
            let text = words::overview(&seen, Time::now(), Out::style());
            bytes(format!("{CLEAR}{text}\n").as_bytes(), io::stdout())?;
        }
        let next = place.list_after(all, seen.seq, WAIT_MS)?;
        if !draws {
            tell(&seen, &next, |_| true, out)?;
            let gone = |story: &&wire::Story| next.stories.iter().all(|s| s.id != story.id);
            for story in seen.stories.iter().filter(gone).filter(|_| !out.json) {
                line(&format!("{}: gone", story.id))?;
            }
        }
        seen = next;
    }
}
