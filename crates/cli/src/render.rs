//! Runs in words: a table, a description, an ending. Owns every sentence about a run and the exit
//! code that stands for its ending.

use std::fmt::Write;
use std::time::Duration;

use kennel_daemon::{Text, Time, wire};
use kennel_process::Signal;

use crate::duration::words;
use crate::error::{RUN_FAILED, TIMED_OUT, start_code};
use crate::size;

/// The code a foreground `run` and `wait` exit with.
pub(crate) fn exit_code(run: &wire::Run) -> u8 {
    let Some(end) = run.end.as_ref().filter(|_| run.state == wire::State::Dead) else {
        return RUN_FAILED;
    };
    match end.cause {
        wire::Cause::Limit => return TIMED_OUT,
        wire::Cause::Oom if end.limit.is_some() => return TIMED_OUT,
        wire::Cause::NeverStarted => {
            return end.error.as_ref().map_or(RUN_FAILED, |e| start_code(&e.code));
        }
        wire::Cause::Exit | wire::Cause::Stopped | wire::Cause::Killed => {}
        wire::Cause::Oom | wire::Cause::Lost => {}
    }
    match end.status {
        wire::Status::Exited(code) => u8::try_from(code).unwrap_or(RUN_FAILED),
        wire::Status::Signaled(signal) => u8::try_from(128 + signal).unwrap_or(RUN_FAILED),
        wire::Status::Unknown(_) => RUN_FAILED,
    }
}

/// A run's ending, or what is in its way, in one or more sentences.
pub(crate) fn ending(run: &wire::Run) -> Option<String> {
    let mut text = match &run.end {
        Some(end) => end_words(end, &lasted(run)),
        None => match &run.stuck_because {
            Some(why) => format!("stuck: {why}; its slot stays taken"),
            None => return None,
        },
    };
    if let Some(proof) = &run.proof {
        let plural = if proof.processes == 1 { "" } else { "es" };
        if proof.processes > 0 {
            let _ = write!(text, "; {} process{plural}", proof.processes);
        }
        let took = words(Duration::from_micros(proof.took_us));
        let _ = write!(text, "; all gone in {took}; rests on {}", proof.rests_on.join(" and "));
    }
    for survivor in &run.survivors {
        let wire::Survivor { pid, name, state, reason, .. } = survivor;
        let _ = write!(text, "\n  left: {pid} {name} (state {state}), which {reason}");
    }
    Some(text)
}

fn lasted(run: &wire::Run) -> String {
    match (run.started_at, run.ended_at) {
        (Some(from), Some(to)) => {
            format!(" after {}", words(Duration::from_millis(to.0.saturating_sub(from.0))))
        }
        (Some(_) | None, None) | (None, Some(_)) => String::new(),
    }
}

fn end_words(end: &wire::End, after: &str) -> String {
    let status = match &end.status {
        wire::Status::Exited(code) => format!("exited with {code}"),
        wire::Status::Signaled(n) => match Signal::new(*n) {
            Some(signal) => format!("ended by {signal}"),
            None => format!("ended by signal {n}"),
        },
        wire::Status::Unknown(why) => format!("status unknown ({})", why.replace('_', " ")),
    };
    let error = end.error.as_ref().map(|e| match &e.hint {
        Some(hint) => format!("{}; {hint}", e.message),
        None => e.message.clone(),
    });
    match end.cause {
        wire::Cause::Exit => format!("{status} by itself{after}"),
        wire::Cause::Stopped => format!("stopped by you{after}; {status}"),
        wire::Cause::Killed => format!("killed by you{after}; {status}"),
        wire::Cause::Limit => match &end.limit {
            Some(l) => {
                format!("limit {} reached{after} ({} of {}); {status}", l.kind, l.used, l.max)
            }
            None => format!("a limit was reached{after}; {status}"),
        },
        wire::Cause::Oom => match &end.limit {
            Some(l) => format!(
                "out of memory{after}: the kernel ended it at its limit {} of {}; {status}",
                l.kind, l.max
            ),
            None => format!(
                "out of memory{after}: the kernel ended it, though not for a limit of its own; \
                 {status}"
            ),
        },
        wire::Cause::Lost => match error {
            Some(why) => format!("lost{after}: {why}; its slot stays taken"),
            None => format!("its keeper was lost{after}, and what it kept was stopped; {status}"),
        },
        wire::Cause::NeverStarted => match error {
            Some(why) => format!("never started: {why}"),
            None => "never started".to_owned(),
        },
    }
}

/// A notice in a line, and under it what belongs to it.
pub(crate) fn notice(notice: &wire::Notice) -> String {
    let wire::Notice { seq, at, run, slot, .. } = notice;
    let slot = slot.as_ref().filter(|slot| *slot != run);
    let slot = slot.map(|slot| format!(" ({slot})")).unwrap_or_default();
    let who = match &notice.story {
        Some(story) => story.clone(),
        None if run.is_empty() => "kennel".to_owned(),
        None => format!("{run}{slot}"),
    };
    let mut text = format!("{seq:>6}  {at}  {who}: {}", notice_words(notice));
    for survivor in &notice.survivors {
        let wire::Survivor { pid, name, state, reason, .. } = survivor;
        let _ = write!(text, "\n  left: {pid} {name} (state {state}), which {reason}");
    }
    let Some(tails) = &notice.tail else { return text };
    let streams = [("out", &tails.stdout), ("err", &tails.stderr), ("tty", &tails.terminal)];
    for (name, tail) in streams {
        let Some(tail) = tail else { continue };
        if tail.left_out > 0 {
            let _ = write!(text, "\n  {name} | ... {} before", size::words(tail.left_out));
        }
        for line in tail.text.lines() {
            let _ = write!(text, "\n  {name} | {}", visible(line));
        }
    }
    if tails.unsearched {
        text.push_str("\n  its output is too long to be searched to the end for what is watched");
    }
    text
}

/// Output quoted on a terminal must not be able to steer it.
pub(crate) fn visible(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

fn notice_words(notice: &wire::Notice) -> String {
    let limit = || match &notice.limit {
        Some(limit) => format!("{} ({} of {})", limit.kind, limit.used, limit.max),
        None => "?".to_owned(),
    };
    let trouble = notice.limit.as_ref().and_then(wire::Limit::trouble);
    match notice.kind {
        wire::NoticeKind::Started => "started".to_owned(),
        wire::NoticeKind::LimitWarning => match trouble {
            Some(trouble) => trouble.to_owned(),
            None => format!("comes near its limit {}", limit()),
        },
        wire::NoticeKind::LimitReached => format!("was ended by its limit {}", limit()),
        wire::NoticeKind::Stuck => {
            let why = notice.stuck_because.as_deref().unwrap_or("?");
            format!("stuck: {why}; its slot stays taken")
        }
        wire::NoticeKind::Waiting => "waits for its user".to_owned(),
        wire::NoticeKind::RateLimited => match notice.until {
            Some(until) => format!("is rate limited until {until}"),
            None => "is rate limited".to_owned(),
        },
        wire::NoticeKind::WatchMatch => match &notice.watch {
            Some(found) => {
                let more = match found.left_out {
                    0 => String::new(),
                    n => format!(" ({n} more left out)"),
                };
                let wire::WatchMatch { pattern, stream, line, .. } = found;
                format!("{stream} has {pattern:?}{more}: {}", visible(line))
            }
            None => "matched".to_owned(),
        },
        wire::NoticeKind::Heartbeat => "goes on".to_owned(),
        wire::NoticeKind::Ended | wire::NoticeKind::Settled => {
            notice.end.as_ref().map_or_else(|| "ended".to_owned(), |end| end_words(end, ""))
        }
        wire::NoticeKind::StoryMoved
        | wire::NoticeKind::StoryDone
        | wire::NoticeKind::StoryRetried
        | wire::NoticeKind::StorySentBack
        | wire::NoticeKind::StoryBlocked
        | wire::NoticeKind::StoryGone
        | wire::NoticeKind::ProviderPaused => {
            notice.message.as_deref().map_or_else(|| "?".to_owned(), visible)
        }
        wire::NoticeKind::Lagged => match notice.through {
            Some(through) => format!("notices up to {through} are not kept any more"),
            None => "some notices are not kept any more".to_owned(),
        },
        wire::NoticeKind::Test => "a test: nothing has happened".to_owned(),
    }
}

/// Everything about one run.
pub(crate) fn description(run: &wire::Run) -> String {
    let mut lines = vec![
        ("run", run.id.clone()),
        ("slot", run.slot.clone()),
        ("state", state_word(run.state).to_owned()),
    ];
    if let Some(agent) = &run.agent {
        let file = run.agent_file.as_deref().unwrap_or("?");
        lines.push(("agent", format!("{agent}, of {file}")));
    }
    lines.extend([
        ("command", command_line(run)),
        ("directory", run.cwd.0.to_string_lossy().into_owned()),
    ]);
    lines.extend(run.notes.iter().map(|note| ("note", note.clone())));
    let times = [("requested", Some(run.requested_at)), ("started", run.started_at)];
    lines.extend(times.into_iter().filter_map(|(n, time)| Some((n, time?.to_string()))));
    if let Some(leader) = &run.leader {
        lines.push(("leader", format!("process {}", leader.pid)));
    }
    if let Some(containment) = &run.containment {
        let because = run.containment_because.as_ref().map(|why| format!(" ({why})"));
        lines.push(("contained", format!("{containment}{}", because.unwrap_or_default())));
    }
    if let Some(output) = run.output.as_ref().filter(|output| output.bytes > 0) {
        let last = output.last_at.map(|last| format!(", last at {last}")).unwrap_or_default();
        lines.push(("output", format!("{}{last}", size::words(output.bytes))));
    }
    lines.extend(run.ended_at.map(|time| ("ended", time.to_string())));
    lines.extend(ending(run).map(|text| ("ending", text)));
    let line = |(name, value): &(&str, String)| format!("{name:<10} {value}");
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The heading of a listing.
const COLUMNS: [&str; 10] =
    ["RUN", "SLOT", "STATE", "AGE", "AGENT", "TURNS", "COST", "OUTPUT", "CONTAINED", "COMMAND"];
/// The column that is coloured.
const STATE_COLUMN: usize = 2;

/// How a listing is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Lines are cut to this many characters.
    pub(crate) width: Option<usize>,
    pub(crate) colour: bool,
}

/// One line per run, under a heading.
pub(crate) fn table(runs: &[wire::Run], now: Time, style: Style) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(runs.iter().map(|run| row(run, now)));
    let colour = |n: usize| runs.get(n).map(|run| state_colour(run.state));
    aligned(&rows, style, STATE_COLUMN, colour)
}

/// Cells under each other, below a heading; in one column each has the colour of its line, counted
/// from the first below the heading.
pub(crate) fn aligned<const N: usize>(
    rows: &[[String; N]],
    style: Style,
    column: usize,
    colour: impl Fn(usize) -> Option<&'static str>,
) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let before: usize = widths[..column].iter().map(|width| width + 2).sum();
    let mut lines = Vec::with_capacity(rows.len());
    for (n, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ").trim_end().to_owned();
        let line = match style.width {
            Some(width) => cut(&line, width),
            None => line,
        };
        let painted = n.checked_sub(1).and_then(&colour).filter(|_| style.colour);
        lines.push(match painted {
            Some(colour) => coloured(&line, before, &row[column], colour),
            None => line,
        });
    }
    lines.join("\n")
}

fn row(run: &wire::Run, now: Time) -> [String; 10] {
    let ago = |time: Time| words(Duration::from_millis(now.0.saturating_sub(time.0)));
    let none = || "-".to_owned();
    let usage = run.usage.as_ref();
    let cost = usage.and_then(|usage| usage.cost_usd);
    let last = run.output.as_ref().and_then(|output| output.last_at);
    [
        run.id.clone(),
        run.slot.clone(),
        state_word(run.state).to_owned(),
        ago(run.started_at.unwrap_or(run.requested_at)),
        program(run),
        usage.map_or_else(none, |usage| usage.turns.to_string()),
        cost.map_or_else(none, |usd| format!("${usd:.2}")),
        last.map_or_else(none, |last| format!("{} ago", ago(last))),
        run.containment.clone().unwrap_or_else(none),
        command_line(run),
    ]
}

/// The agent it was started as, else what runs, without its path.
fn program(run: &wire::Run) -> String {
    if let Some(agent) = &run.agent {
        return agent.clone();
    }
    let program = run.command.first().map(|word| word.0.to_string_lossy()).unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or(&program);
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// What goes on, what changes, what somebody has to look at, and what is over.
pub(crate) const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
pub(crate) const RED: &str = "\x1b[1;31m";
pub(crate) const DIM: &str = "\x1b[2m";

fn state_colour(state: wire::State) -> &'static str {
    match state {
        wire::State::Running => GREEN,
        wire::State::Starting | wire::State::Stopping => YELLOW,
        wire::State::Stuck => RED,
        wire::State::Dead => DIM,
    }
}

/// The word at a column in a colour.
fn coloured(line: &str, column: usize, word: &str, colour: &str) -> String {
    let at = line.char_indices().nth(column).map(|(at, _)| at);
    match at.filter(|at| line[*at..].starts_with(word)) {
        Some(at) => {
            format!("{}{colour}{word}\x1b[0m{}", &line[..at], &line[at + word.len()..])
        }
        None => line.to_owned(),
    }
}

pub(crate) fn state_word(state: wire::State) -> &'static str {
    match state {
        wire::State::Starting => "starting",
        wire::State::Running => "running",
        wire::State::Stopping => "stopping",
        wire::State::Stuck => "stuck",
        wire::State::Dead => "dead",
    }
}

/// The command as it could be typed again, on one line.
fn command_line(run: &wire::Run) -> String {
    let word = |arg: &Text| quoted(&arg.0.to_string_lossy());
    run.command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A word as it could be typed, on one line.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let shown: String = word.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("'{}'", shown.replace('\'', "'\\''"))
}
