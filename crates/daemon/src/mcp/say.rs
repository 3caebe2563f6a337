//! Runs and output in the words of the tools. Owns these sentences and shapes; knows nothing of how
//! they were found.

use serde_json::{Value, json};

use super::reading::Piece;
use crate::api::wire;

/// The longest command that is shown.
const MAX_COMMAND_CHARS: usize = 200;

/// A run as data: what is not known is not there.
pub(super) fn brief(run: &wire::Run) -> Value {
    let mut value = json!({
        "run": run.id,
        "slot": run.slot,
        "state": run.state,
        "command": command(run),
        "cwd": run.cwd,
        "requested_at": run.requested_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "containment": run.containment,
        "containment_because": run.containment_because,
        "end": run.end,
        "proof": run.proof,
        "stuck_because": run.stuck_because,
        "usage": run.usage,
        "output_bytes": run.output.as_ref().map(|output| output.bytes),
    });
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
        if run.survivor_count > 0 {
            fields.insert("survivors".to_owned(), json!(run.survivors));
            fields.insert("survivor_count".to_owned(), run.survivor_count.into());
        }
    }
    value
}

/// Where a run stands.
pub(super) fn sentence(run: &wire::Run) -> String {
    let how = match (run.state, &run.end) {
        (wire::State::Starting, _) => "is starting".to_owned(),
        (wire::State::Running, _) => "is running".to_owned(),
        (wire::State::Stopping, _) => "is being stopped; something of it may still live".to_owned(),
        (wire::State::Stuck, Some(end)) => format!("is lost: {}", error_of(end)),
        (wire::State::Stuck, None) => {
            let why = run.stuck_because.as_deref().unwrap_or("nobody knows why");
            format!("is stuck, {} processes are left: {why}", run.survivor_count)
        }
        (wire::State::Dead, Some(end)) => ended(end),
        (wire::State::Dead, None) => "is dead".to_owned(),
    };
    format!("Run {} (slot {}) {how}.", run.id, run.slot)
}

fn ended(end: &wire::End) -> String {
    let status = match &end.status {
        wire::Status::Exited(code) => format!("exited with code {code}"),
        wire::Status::Signaled(signal) => format!("was ended by signal {signal}"),
        wire::Status::Unknown(why) => format!("is dead, its status is unknown ({why})"),
    };
    match (end.cause, &end.limit) {
        (wire::Cause::Exit, _) => status,
        (wire::Cause::Stopped, _) => format!("was stopped: it {status}"),
        (wire::Cause::Killed, _) => format!("was killed: it {status}"),
        (wire::Cause::Limit, Some(limit)) => {
            format!(
                "reached its limit {} ({} of {}): it {status}",
                limit.kind, limit.used, limit.max
            )
        }
        (wire::Cause::Limit, None) => format!("reached a limit: it {status}"),
        (wire::Cause::Oom, _) => format!("had no memory left: it {status}"),
        (wire::Cause::Lost, _) => format!("lost its keeper: it {status}"),
        (wire::Cause::NeverStarted, _) => format!("never started: {}", error_of(end)),
    }
}

fn error_of(end: &wire::End) -> &str {
    end.error.as_ref().map_or("nobody knows why", |error| error.message.as_str())
}

/// One line of a listing.
pub(super) fn line(run: &wire::Run) -> String {
    format!("{} Command: {}", sentence(run), command(run))
}

fn command(run: &wire::Run) -> String {
    let words: Vec<_> = run.command.iter().map(|word| word.0.to_string_lossy()).collect();
    // A line for a shell is shown as it was given.
    let text = match words.as_slice() {
        [sh, flag, line] if sh == "sh" && flag == "-c" => line.to_string(),
        words => words.join(" "),
    };
    match text.char_indices().nth(MAX_COMMAND_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// One notice in a line, with the end of the output behind it.
pub(super) fn notice(notice: &wire::Notice) -> String {
    let head = format!("[{}] run {}", notice.seq, notice.run);
    let limit = |limit: &Option<wire::Limit>| {
        limit.as_ref().map_or_else(String::new, |l| format!("{} ({} of {})", l.kind, l.used, l.max))
    };
    let mut text = match notice.kind {
        wire::NoticeKind::Started => format!("{head} runs."),
        wire::NoticeKind::LimitWarning => {
            match notice.limit.as_ref().and_then(wire::Limit::trouble) {
                Some(trouble) => format!("{head} {trouble}."),
                None => format!("{head} comes near {}.", limit(&notice.limit)),
            }
        }
        wire::NoticeKind::LimitReached => format!("{head} reached {}.", limit(&notice.limit)),
        wire::NoticeKind::Stuck => {
            let why = notice.stuck_because.as_deref().unwrap_or("nobody knows why");
            format!("{head} is stuck: {why}.")
        }
        wire::NoticeKind::Waiting => format!("{head} waits for its user."),
        wire::NoticeKind::RateLimited => format!("{head} is not served for a while."),
        wire::NoticeKind::WatchMatch => match &notice.watch {
            Some(found) => format!("{head} wrote a line with {:?}: {}", found.pattern, found.line),
            None => format!("{head} wrote what was watched for."),
        },
        wire::NoticeKind::Heartbeat => format!("{head} goes on."),
        wire::NoticeKind::Ended | wire::NoticeKind::Settled => match &notice.end {
            Some(end) => format!("{head} {}.", ended(end)),
            None => format!("{head} is over."),
        },
        wire::NoticeKind::StoryMoved
        | wire::NoticeKind::StoryDone
        | wire::NoticeKind::StoryRetried
        | wire::NoticeKind::StorySentBack
        | wire::NoticeKind::StoryBlocked
        | wire::NoticeKind::StoryGone => {
            let story = notice.story.as_deref().unwrap_or("?");
            let what = notice.message.as_deref().unwrap_or("nobody knows what");
            format!("[{}] story {story}: {what}.", notice.seq)
        }
        wire::NoticeKind::ProviderPaused => {
            let what = notice.message.as_deref().unwrap_or("takes no more for a while");
            format!("[{}] provider {what}.", notice.seq)
        }
        wire::NoticeKind::Test => "A test of a channel: nothing has happened.".to_owned(),
        wire::NoticeKind::Lagged => {
            format!("[{}] Notices before this one are not kept any more.", notice.seq)
        }
    };
    for (stream, tail) in notice.tail.iter().flat_map(tails) {
        text.push_str(&format!("\n--- end of {stream} ---\n{}", tail.text.trim_end_matches('\n')));
    }
    if notice.tail.as_ref().is_some_and(|tail| tail.unsearched) {
        text.push_str("\nIts output is too long to be searched to the end for what you watch.");
    }
    text
}

fn tails(tails: &wire::Tails) -> impl Iterator<Item = (&'static str, &wire::Tail)> {
    let each =
        [("stdout", &tails.stdout), ("stderr", &tails.stderr), ("the terminal", &tails.terminal)];
    each.into_iter().filter_map(|(stream, tail)| Some((stream, tail.as_ref()?)))
}

/// Adds output to a text, with what is missing from it.
pub(super) fn add_pieces(text: &mut String, pieces: &[Piece]) {
    for piece in pieces.iter().filter(|piece| piece.from != piece.to) {
        text.push_str(&format!("\n--- {} from byte {} to {}", piece.stream, piece.from, piece.to));
        let missing = [
            ("before it left out", piece.left_out_before),
            ("not kept", piece.not_kept),
            ("after it left out", piece.left_out_after),
        ];
        for (what, bytes) in missing.into_iter().filter(|(_, bytes)| *bytes > 0) {
            text.push_str(&format!(", {bytes} bytes {what}"));
        }
        text.push_str(" ---\n");
        text.push_str(piece.text.trim_end_matches('\n'));
    }
    if pieces.iter().all(|piece| piece.from == piece.to) {
        text.push_str("\nNo new output.");
    }
}

/// Where a text was found.
pub(super) fn found(run: &str, stream: &str, offset: u64) -> Value {
    let place = format!("run {run}, {stream}, byte {offset}");
    json!({"run": run, "stream": stream, "offset": offset, "where": place})
}
