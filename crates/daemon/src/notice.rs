//! What a notice is called and who wants to hear of it. Owns the names of kinds, the stable id, and
//! the rule by which a run's own filter keeps one quiet. What is told once is the mind's rule.

use kennel_process::{Cause, ExitStatus};
use kennel_supervisor::story::About;
use kennel_supervisor::{Kind, Notice, StoryKind, StoryNotice};

use crate::api::wire::Notify;
use crate::store::format::{Detail, Ended};

/// A notice beside the line of the journal that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// `RUN/KIND/N`, `story/PROJECT/ID/KIND/N` or `provider/NAME/paused/N`.
    pub(crate) id: String,
    pub(crate) kind: Told,
    /// True if its run asked not to be told of it.
    pub(crate) quiet: bool,
}

/// What a notice says, of a run or of stories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Run(Kind),
    Story(StoryKind),
}

impl Named {
    pub(crate) fn new(notice: &Notice, notify: Notify, detail: &Detail) -> Self {
        let Notice { run, kind, n } = notice;
        let id = format!("{run}/{}/{n}", word(Told::Run(*kind)));
        Self { id, kind: Told::Run(*kind), quiet: is_quiet(*kind, notify, detail) }
    }

    /// Of stories. No run's filter is asked: what is told of them is for people.
    pub(crate) fn of_story(notice: &StoryNotice) -> Self {
        let StoryNotice { about, kind, n } = notice;
        let kind_in_id = word_in_id(*kind);
        let id = match about {
            About::Story(story) => format!("{OF_STORY}{story}/{kind_in_id}/{n}"),
            About::Provider(provider) => format!("{OF_PROVIDER}{provider}/{kind_in_id}/{n}"),
        };
        Self { id, kind: Told::Story(*kind), quiet: false }
    }

    /// From what the journal keeps of it. `None` if a later kennel wrote it, or nobody of ours.
    pub(crate) fn kept(id: String, quiet: bool) -> Option<Self> {
        let kind = kind_in(&id)?;
        Some(Self { id, kind, quiet })
    }
}

/// Every kind, for those who look one up by its word.
pub(crate) const KINDS: [Told; 17] = [
    Told::Run(Kind::Started),
    Told::Run(Kind::LimitWarning),
    Told::Run(Kind::LimitReached),
    Told::Run(Kind::Stuck),
    Told::Run(Kind::Waiting),
    Told::Run(Kind::RateLimited),
    Told::Run(Kind::WatchMatch),
    Told::Run(Kind::Heartbeat),
    Told::Run(Kind::Ended),
    Told::Run(Kind::Settled),
    Told::Story(StoryKind::Moved),
    Told::Story(StoryKind::Done),
    Told::Story(StoryKind::Retried),
    Told::Story(StoryKind::SentBack),
    Told::Story(StoryKind::Blocked),
    Told::Story(StoryKind::Gone),
    Told::Story(StoryKind::Paused),
];
/// What ids of notices about stories begin with: no id of a run has a `/`.
const OF_STORY: &str = "story/";
/// The same of those about providers.
const OF_PROVIDER: &str = "provider/";

/// A kind's word, in the store and in the API.
pub(crate) fn word(kind: Told) -> &'static str {
    match kind {
        Told::Run(Kind::Started) => "started",
        Told::Run(Kind::LimitWarning) => "limit_warning",
        Told::Run(Kind::LimitReached) => "limit_reached",
        Told::Run(Kind::Stuck) => "stuck",
        Told::Run(Kind::Waiting) => "waiting",
        Told::Run(Kind::RateLimited) => "rate_limited",
        Told::Run(Kind::WatchMatch) => "watch_match",
        Told::Run(Kind::Heartbeat) => "heartbeat",
        Told::Run(Kind::Ended) => "ended",
        Told::Run(Kind::Settled) => "settled",
        Told::Story(StoryKind::Moved) => "story_moved",
        Told::Story(StoryKind::Done) => "story_done",
        Told::Story(StoryKind::Retried) => "story_retried",
        Told::Story(StoryKind::SentBack) => "story_sent_back",
        Told::Story(StoryKind::Blocked) => "story_blocked",
        Told::Story(StoryKind::Gone) => "story_gone",
        Told::Story(StoryKind::Paused) => "provider_paused",
    }
}

/// The kind of this word.
pub(crate) fn kind_of_word(text: &str) -> Option<Told> {
    KINDS.into_iter().find(|kind| word(*kind) == text)
}

/// A kind of stories within an id, whose beginning says the rest of its word.
fn word_in_id(kind: StoryKind) -> &'static str {
    let word = word(Told::Story(kind));
    word.split_once('_').map_or(word, |(_, rest)| rest)
}

/// The kind in an id, read from its end: the name of a provider may have a `/`.
fn kind_in(id: &str) -> Option<Told> {
    let (before, n) = id.rsplit_once('/')?;
    let _n: u32 = n.parse().ok()?;
    let (about, kind) = before.rsplit_once('/')?;
    let begins = |of: &str| about.len() > of.len() && about.starts_with(of);
    KINDS.into_iter().find(|known| match known {
        Told::Run(_) => word(*known) == kind,
        Told::Story(of @ StoryKind::Paused) => begins(OF_PROVIDER) && word_in_id(*of) == kind,
        Told::Story(of) => begins(OF_STORY) && word_in_id(*of) == kind,
    })
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
    use kennel_supervisor::story::StoryRef;

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
            "story_moved",
            "story_done",
            "story_retried",
            "story_sent_back",
            "story_blocked",
            "story_gone",
            "provider_paused",
        ];
        assert_eq!(words, known);
        for kind in KINDS {
            assert_eq!(kind_of_word(word(kind)), Some(kind));
        }
    }

    #[test]
    fn a_filter_goes_by_the_cause_and_not_by_the_status() {
        use std::sync::Arc;

        use kennel_process::{End, LimitReached, Lost, OutputTotals, UnknownStatus, Verdict};
        let ended = |cause, status| {
            let lost = Lost { reason: String::new(), suspects: Vec::new() };
            let (verdict, output) = (Verdict::Lost(lost), OutputTotals::default());
            let (start_error, usage, at_ms) = (None, None, 0);
            let end = End { cause, status, verdict, output, start_error, usage, at_ms };
            Detail::Ended(Arc::new(Ended::Recorded(Box::new(end))))
        };
        let limit = LimitReached { kind: "wall".to_owned(), used: 1.0, max: 1.0 };
        let unknown = ExitStatus::Unknown(UnknownStatus::KeeperLost);
        let (fine, term) = (ExitStatus::Exited(0), ExitStatus::Signaled(15));
        // Which of failure, success and unless-stopped tell of it.
        for (detail, told) in [
            (ended(Cause::Exit, fine), [false, true, true]),
            (ended(Cause::Exit, ExitStatus::Exited(1)), [true, false, true]),
            (ended(Cause::Exit, term), [true, false, true]),
            // Asked to end, it said that all was well.
            (ended(Cause::Stopped, fine), [true, false, false]),
            (ended(Cause::Killed, ExitStatus::Signaled(9)), [true, false, false]),
            (ended(Cause::Limit(limit), fine), [true, false, true]),
            (ended(Cause::Oom(None), ExitStatus::Signaled(9)), [true, false, true]),
            (ended(Cause::Lost, unknown), [true, false, true]),
            (Detail::Nothing, [true, false, true]),
        ] {
            for kind in [Kind::Ended, Kind::Settled, Kind::LimitReached] {
                let filters = [Notify::Failure, Notify::Success, Notify::UnlessStopped];
                let is_told = filters.map(|notify| !is_quiet(kind, notify, &detail));
                assert_eq!(is_told, told, "{kind:?}, {detail:?}");
                assert!(!is_quiet(kind, Notify::Always, &detail));
                assert!(is_quiet(kind, Notify::Never, &detail));
            }
            assert!(!is_quiet(Kind::WatchMatch, Notify::Success, &detail));
            assert!(is_quiet(Kind::WatchMatch, Notify::Never, &detail));
        }
    }

    #[test]
    fn what_a_notice_is_called_says_what_it_is() {
        let story = || About::Story(StoryRef::new(&"shop".into(), &"7-login".into()));
        let provider = |name: &str| About::Provider(name.into());
        for kind in KINDS {
            let (named, id) = match kind {
                Told::Run(kind) => {
                    let notice = Notice { run: "a/b".into(), kind, n: 7 };
                    let named = Named::new(&notice, Notify::Always, &Detail::Nothing);
                    (named, format!("a/b/{}/7", word(Told::Run(kind))))
                }
                Told::Story(kind @ StoryKind::Paused) => {
                    let about = provider("a/b/moved/1");
                    let named = Named::of_story(&StoryNotice { about, kind, n: 2 });
                    (named, "provider/a/b/moved/1/paused/2".to_owned())
                }
                Told::Story(kind) => {
                    let named = Named::of_story(&StoryNotice { about: story(), kind, n: 3 });
                    let short = word(Told::Story(kind)).strip_prefix("story_").unwrap();
                    (named, format!("story/shop/7-login/{short}/3"))
                }
            };
            assert_eq!((&named.id, named.kind), (&id, kind));
            assert_eq!(Named::kept(id, false), Some(named));
        }
        for wrong in [
            "",
            "r/ended",
            "r/ended/x",
            "r/other/1",
            "ended/1/1/1",
            "r/moved/1",
            "story/moved/1",
            "story//paused/1",
            "provider/p/moved/1",
            "story/p/7/story_moved/1",
        ] {
            assert_eq!(Named::kept(wrong.to_owned(), false), None, "{wrong}");
        }
    }
}
