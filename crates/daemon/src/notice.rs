//! What a notice is called and who wants to hear of it. Owns the names of kinds, the stable id, and
//! the rule by which a run's own filter keeps one quiet. What is told once is the mind's rule.

use kennel_process::{Cause, ExitStatus};
use kennel_supervisor::{Kind, Notice};

use crate::api::wire::Notify;
use crate::store::format::{Detail, Ended};

/// A notice beside the line of the journal that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// `RUN/KIND/N`.
    pub(crate) id: String,
    pub(crate) kind: Kind,
    /// True if its run asked not to be told of it.
    pub(crate) quiet: bool,
}

impl Named {
    pub(crate) fn new(notice: &Notice, notify: Notify, detail: &Detail) -> Self {
        let Notice { run, kind, n } = notice;
        let id = format!("{run}/{}/{n}", word(*kind));
        Self { id, kind: *kind, quiet: is_quiet(*kind, notify, detail) }
    }

    /// From what the journal keeps of it. `None` if a later kennel wrote it, or nobody of ours.
    pub(crate) fn kept(id: String, quiet: bool) -> Option<Self> {
        let kind = kind_in(&id)?;
        Some(Self { id, kind, quiet })
    }
}

/// Every kind, for those who look one up by its word.
pub(crate) const KINDS: [Kind; 10] = [
    Kind::Started,
    Kind::LimitWarning,
    Kind::LimitReached,
    Kind::Stuck,
    Kind::Waiting,
    Kind::RateLimited,
    Kind::WatchMatch,
    Kind::Heartbeat,
    Kind::Ended,
    Kind::Settled,
];

/// A kind's word, in the store and in the API.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Started => "started",
        Kind::LimitWarning => "limit_warning",
        Kind::LimitReached => "limit_reached",
        Kind::Stuck => "stuck",
        Kind::Waiting => "waiting",
        Kind::RateLimited => "rate_limited",
        Kind::WatchMatch => "watch_match",
        Kind::Heartbeat => "heartbeat",
        Kind::Ended => "ended",
        Kind::Settled => "settled",
    }
}

/// The kind of this word.
pub(crate) fn kind_of_word(text: &str) -> Option<Kind> {
    KINDS.into_iter().find(|kind| word(*kind) == text)
}

fn kind_in(id: &str) -> Option<Kind> {
    let mut parts = id.rsplit('/');
    let _n: u32 = parts.next()?.parse().ok()?;
    kind_of_word(parts.next()?)
}

/// The filter is about how a run ends; `never` is about all of it.
fn is_quiet(kind: Kind, notify: Notify, detail: &Detail) -> bool {
    let ends = match kind {
        Kind::Ended | Kind::Settled | Kind::LimitReached => true,
        Kind::Started
        | Kind::LimitWarning
        | Kind::Stuck
        | Kind::Waiting
        | Kind::RateLimited
        | Kind::WatchMatch
        | Kind::Heartbeat => false,
    };
    match notify {
        Notify::Always => false,
        Notify::Never => true,
        Notify::Failure => ends && how(detail) == How::Succeeded,
        Notify::Success => ends && how(detail) != How::Succeeded,
        Notify::UnlessStopped => ends && how(detail) == How::Stopped,
    }
}

#[derive(PartialEq, Eq)]
enum How {
    Succeeded,
    Stopped,
    Failed,
}

/// How a run ended. A limit is told with what it was, and is a failure.
fn how(detail: &Detail) -> How {
    let Detail::Ended(ended) = detail else { return How::Failed };
    match &**ended {
        Ended::NeverStarted { .. } => How::Failed,
        Ended::Recorded(end) => match (&end.cause, end.status) {
            (Cause::Stopped | Cause::Killed, _) => How::Stopped,
            (Cause::Exit, ExitStatus::Exited(0)) => How::Succeeded,
            (
                Cause::Exit | Cause::Limit(_) | Cause::Oom(_) | Cause::Lost | Cause::NeverStarted,
                ExitStatus::Exited(_) | ExitStatus::Signaled(_) | ExitStatus::Unknown(_),
            ) => How::Failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_word_of_its_own_that_never_changes() {
        let words = KINDS.map(word);
        let known = [
            "started",
            "limit_warning",
            "limit_reached",
            "stuck",
            "waiting",
            "rate_limited",
            "watch_match",
            "heartbeat",
            "ended",
            "settled",
        ];
        assert_eq!(words, known);
        for kind in KINDS {
            let notice = Notice { run: "a/b".into(), kind, n: 7 };
            let named = Named::new(&notice, Notify::Always, &Detail::Nothing);
            assert_eq!(named.id, format!("a/b/{}/7", word(kind)));
            assert_eq!(Named::kept(named.id.clone(), false), Some(named));
        }
        for wrong in ["", "r/ended", "r/ended/x", "r/other/1", "ended/1/1/1"] {
            assert_eq!(Named::kept(wrong.to_owned(), false), None, "{wrong}");
        }
    }
}
