//! From a run or a line as it is kept to one as it is shown. Owns this one conversion; adds
//! nothing.

use kennel_process::{Cause, End, ExitStatus, LimitReached, Survivor, UnknownStatus, Verdict};

use super::error::start_error;
use super::wire;
use crate::meter::{Account, AccountTokens};
use crate::notice::{Named, Told};
use crate::store::Line;
use crate::store::format::{self, Detail, Ended, Stuck};
use crate::store::kept::{KeptRun, Standing};
use crate::store::story_format;
use crate::story::words;
use crate::time::Time;
use kennel_supervisor as mind;

pub(crate) fn view(run: &KeptRun) -> wire::Run {
    let started = run.started.as_ref();
    let ended = run.ended.as_deref();
    let stuck = run.stuck.as_ref().filter(|_| run.state == Standing::Stuck);
    let request = &run.request;
    wire::Run {
        id: run.id.to_string(),
        slot: run.slot.to_string(),
        state: state_of(run.state),
        command: request.command.clone(),
        cwd: request.cwd.clone(),
        worktree: request.worktree.clone(),
        pty: request.terminal,
        stdin: request.stdin || request.terminal,
        grace_ms: request.grace_ms,
        parent: request.parent.clone(),
        story: request.step.as_ref().map(|step| format!("{}/{}", step.project, step.story)),
        notify: request.notify,
        watch: request.watch.clone(),
        heartbeat_ms: request.heartbeat_ms,
        limits: request.limits.clone(),
        agent: request.agent.as_ref().map(|agent| agent.name.clone()),
        agent_file: request.agent.as_ref().map(|agent| agent.file.clone()),
        notes: request.notes.clone(),
        requested_at: Time(request.at_ms),
        started_at: started.map(|s| Time(s.at_ms)),
        ended_at: ended.map(|ended| Time(ended.at_ms())),
        containment: started.map(|s| s.containment.to_string()),
        containment_because: started.and_then(|s| s.containment_because.clone()),
        leader: started.map(|s| wire::Process { pid: s.leader.pid }),
        keeper: started.map(|s| wire::Process { pid: s.keeper.pid }),
        stuck_because: stuck.map(|s| s.reason.clone()),
        survivors: stuck.map(|s| survivors_of(s)).unwrap_or_default(),
        survivor_count: stuck.map_or(0, |s| s.count),
        end: ended.map(ending_of),
        proof: ended.and_then(proof_in),
        output: None,
        usage: run.usage_now().and_then(|account| usage_of(&account)),
    }
}

/// A line of the journal as it is told.
pub(crate) fn event(line: &Line) -> wire::Event {
    use wire::EventKind as Kind;
    let mut event = wire::Event {
        seq: line.seq,
        at: line.at,
        kind: Kind::ShuttingDown,
        run: line.run.as_deref().map(str::to_owned),
        slot: line.slot.as_deref().map(str::to_owned),
        story: None,
        message: None,
        stop: None,
        leader: None,
        containment: None,
        status: None,
        limit: None,
        stuck_because: None,
        survivors: Vec::new(),
        end: None,
        proof: None,
        through: None,
    };
    event.kind = match &*line.fact {
        format::Fact::Admitted { .. } => Kind::Admitted,
        format::Fact::Started => Kind::Started,
        format::Fact::Stopping { stop } => {
            event.stop = Some(match stop {
                format::Stop::Ask { grace_ms } => wire::Stop { force: false, grace_ms: *grace_ms },
                format::Stop::Force => wire::Stop { force: true, grace_ms: None },
            });
            Kind::Stopping
        }
        format::Fact::Exited => Kind::Exited,
        format::Fact::Warned { .. } => Kind::Warned,
        format::Fact::Noted(_) => Kind::Noted,
        format::Fact::Stuck => Kind::Stuck,
        format::Fact::Ended { ending: format::Ending::Lost } => Kind::Lost,
        format::Fact::Ended { .. } => Kind::Ended,
        format::Fact::ShuttingDown => Kind::ShuttingDown,
        format::Fact::Story(fact) => {
            let fact = fact.of();
            // A provider's pause is no story's.
            event.story = Some(story_format::place(&fact)).filter(|place| place != "/");
            event.message = words::fact(&fact);
            Kind::Story
        }
    };
    match &*line.detail {
        Detail::Nothing
        | Detail::Shutdown
        | Detail::Request(_)
        | Detail::Matched(_)
        | Detail::Heartbeat(_) => {}
        Detail::Started(started) => {
            event.leader = Some(wire::Process { pid: started.leader.pid });
            event.containment = Some(started.containment.to_string());
        }
        Detail::Exited(status) => event.status = Some(status_of(*status)),
        Detail::Limit(limit) => {
            event.limit = Some(limit_of(limit));
        }
        Detail::Stuck(stuck) => {
            event.stuck_because = Some(stuck.reason.clone());
            event.survivors = survivors_of(stuck);
        }
        Detail::Ended(ended) => {
            event.end = Some(ending_of(ended));
            event.proof = proof_in(ended);
        }
    }
    event
}

/// A line of the journal as the notice it is. `None` if it is none.
pub(crate) fn notice(line: &Line) -> Option<wire::Notice> {
    let named = line.notice.as_ref()?;
    if let format::Fact::Story(fact) = &*line.fact {
        return Some(story_notice(line, named, &fact.of()));
    }
    let mut notice = wire::Notice {
        seq: line.seq,
        run: line.run.as_deref()?.to_owned(),
        slot: line.slot.as_deref().map(str::to_owned),
        at: line.at,
        quiet: named.quiet,
        tail: line.tail.as_deref().cloned(),
        ..beside(named.id.clone(), kind_of(named.kind))
    };
    match &*line.detail {
        Detail::Nothing
        | Detail::Shutdown
        | Detail::Request(_)
        | Detail::Exited(_)
        | Detail::Heartbeat(_) => {}
        Detail::Started(started) => {
            notice.leader = Some(wire::Process { pid: started.leader.pid });
        }
        Detail::Limit(limit) => notice.limit = Some(limit_of(limit)),
        Detail::Stuck(stuck) => {
            notice.stuck_because = Some(stuck.reason.clone());
            notice.survivors = survivors_of(stuck);
        }
        Detail::Ended(ended) => {
            notice.end = Some(ending_of(ended));
            notice.proof = proof_in(ended);
            notice.usage = usage_in(ended);
        }
        Detail::Matched(found) => notice.watch = match_of(&line.fact, found),
    }
    if let format::Fact::Noted(format::Note::RateLimited { until_ms }) = &*line.fact {
        notice.until = until_ms.map(Time);
    }
    Some(notice)
}

fn story_notice(line: &Line, named: &Named, fact: &mind::StoryFact) -> wire::Notice {
    use mind::StoryFact as F;
    let run = story_format::step_of(fact).map(|step| step.run().as_str().to_owned());
    let until = match fact {
        F::Paused { until_ms, .. } => Some(Time(*until_ms)),
        F::PipelineSet { .. }
        | F::Added { .. }
        | F::Edited { .. }
        | F::Moved { .. }
        | F::Advanced { .. }
        | F::Held { .. }
        | F::Unheld(_)
        | F::Leaving { .. }
        | F::Left(_)
        | F::StepBegun { .. }
        | F::StepStarted(_)
        | F::StepRefused { .. }
        | F::StepStopping(_)
        | F::StepEnded { .. }
        | F::StrayFound(_)
        | F::StrayEnded(_)
        | F::Unpaused(_) => None,
    };
    wire::Notice {
        seq: line.seq,
        run: run.unwrap_or_default(),
        at: line.at,
        quiet: named.quiet,
        until,
        story: fact.story().map(ToString::to_string),
        stage: words::stage(fact).map(|stage| stage.as_str().to_owned()),
        message: words::fact(fact),
        ..beside(named.id.clone(), kind_of(named.kind))
    }
}

/// What a consumer is told in the place of notices that are not kept any more.
pub(crate) fn lagged(after: u64, through: u64) -> wire::Notice {
    let of = format!("lagged/{through}");
    wire::Notice { seq: after, through: Some(through), ..beside(of, wire::NoticeKind::Lagged) }
}

/// What a channel is tried with.
pub(crate) fn test_notice(id: &str) -> wire::Notice {
    beside(id.to_owned(), wire::NoticeKind::Test)
}

/// A notice of which nothing is said yet: what is in no journal is told like this.
fn beside(id: String, kind: wire::NoticeKind) -> wire::Notice {
    wire::Notice {
        seq: 0,
        id,
        run: String::new(),
        slot: None,
        kind,
        at: Time::now(),
        quiet: false,
        leader: None,
        limit: None,
        stuck_because: None,
        survivors: Vec::new(),
        until: None,
        watch: None,
        end: None,
        proof: None,
        usage: None,
        tail: None,
        through: None,
        story: None,
        stage: None,
        message: None,
    }
}

fn kind_of(kind: Told) -> wire::NoticeKind {
    match kind {
        Told::Run(mind::Kind::Started) => wire::NoticeKind::Started,
        Told::Run(mind::Kind::LimitWarning) => wire::NoticeKind::LimitWarning,
        Told::Run(mind::Kind::LimitReached) => wire::NoticeKind::LimitReached,
        Told::Run(mind::Kind::Stuck) => wire::NoticeKind::Stuck,
        Told::Run(mind::Kind::Waiting) => wire::NoticeKind::Waiting,
        Told::Run(mind::Kind::RateLimited) => wire::NoticeKind::RateLimited,
        Told::Run(mind::Kind::WatchMatch) => wire::NoticeKind::WatchMatch,
        Told::Run(mind::Kind::Heartbeat) => wire::NoticeKind::Heartbeat,
        Told::Run(mind::Kind::Ended) => wire::NoticeKind::Ended,
        Told::Run(mind::Kind::Settled) => wire::NoticeKind::Settled,
        Told::Story(mind::StoryKind::Moved) => wire::NoticeKind::StoryMoved,
        Told::Story(mind::StoryKind::Done) => wire::NoticeKind::StoryDone,
        Told::Story(mind::StoryKind::Retried) => wire::NoticeKind::StoryRetried,
        Told::Story(mind::StoryKind::SentBack) => wire::NoticeKind::StorySentBack,
        Told::Story(mind::StoryKind::Blocked) => wire::NoticeKind::StoryBlocked,
        Told::Story(mind::StoryKind::Gone) => wire::NoticeKind::StoryGone,
        Told::Story(mind::StoryKind::Paused) => wire::NoticeKind::ProviderPaused,
    }
}

fn usage_in(ended: &Ended) -> Option<wire::Usage> {
    match ended {
        Ended::Recorded(end) => usage_of(end.usage.as_deref()?),
        Ended::NeverStarted { .. } => None,
    }
}

fn match_of(fact: &format::Fact, found: &format::Matched) -> Option<wire::WatchMatch> {
    let format::Fact::Noted(format::Note::Matched { through, .. }) = fact else { return None };
    Some(wire::WatchMatch {
        pattern: found.pattern.clone(),
        stream: found.stream.clone(),
        through: *through,
        line: found.line.clone(),
        seen: found.seen,
        left_out: found.left_out,
    })
}

/// What readers are told in the place of lines that are not kept any more.
pub(crate) fn removed(through: u64) -> wire::Event {
    let line = Line {
        seq: through,
        at: Time::now(),
        run: None,
        slot: None,
        fact: std::sync::Arc::new(format::Fact::ShuttingDown),
        detail: std::sync::Arc::new(Detail::Nothing),
        notice: None,
        tail: None,
    };
    let kind = wire::EventKind::Removed;
    wire::Event { kind, through: Some(through), ..event(&line) }
}

/// An account that does not read is none.
fn usage_of(account: &str) -> Option<wire::Usage> {
    let account: Account = serde_json::from_str(account).ok()?;
    Some(wire::Usage {
        turns: account.turns,
        tool_turns: account.tool_turns,
        subagent_turns: account.subagent_turns,
        tool_calls: account.tool_calls,
        tokens: tokens_of(account.tokens),
        cost_usd: account.cost_usd,
        cost_basis: account.cost_basis,
        session: account.session,
        model: account.model,
        standing: account.standing,
        rate_limited_until: account.rate_limited_until,
        unconfirmed: account.unconfirmed,
        unread: account.unread,
        files: super::limits::files_of(account.followed),
        files_by_timer: account.by_timer,
        trouble: account.trouble,
        children: account.children.map(|children| wire::ChildrenUsage {
            turns: children.turns,
            tool_turns: children.tool_turns,
            tokens: tokens_of(children.tokens),
            cost_usd: children.cost_usd,
        }),
    })
}

fn tokens_of(tokens: AccountTokens) -> wire::Tokens {
    let AccountTokens { input, output, cache_read, cache_write } = tokens;
    wire::Tokens { input, output, cache_read, cache_write }
}

fn state_of(state: Standing) -> wire::State {
    match state {
        Standing::Starting => wire::State::Starting,
        Standing::Running => wire::State::Running,
        Standing::Stopping => wire::State::Stopping,
        Standing::Dead => wire::State::Dead,
        Standing::Stuck => wire::State::Stuck,
    }
}

fn ending_of(ended: &Ended) -> wire::End {
    match ended {
        Ended::Recorded(end) => end_of(end),
        Ended::NeverStarted { message, failure, interrupted, .. } => {
            let mut error = start_error(failure.as_ref(), message);
            if *interrupted {
                "start_interrupted".clone_into(&mut error.code);
            }
            let status = wire::Status::Unknown("never_started".to_owned());
            wire::End { cause: wire::Cause::NeverStarted, status, limit: None, error: Some(error) }
        }
    }
}

fn proof_in(ended: &Ended) -> Option<wire::ProofView> {
    match ended {
        Ended::Recorded(end) => proof_of(end),
        Ended::NeverStarted { .. } => None,
    }
}

fn end_of(end: &End) -> wire::End {
    let (cause, limit) = match &end.cause {
        Cause::Exit => (wire::Cause::Exit, None),
        Cause::Stopped => (wire::Cause::Stopped, None),
        Cause::Killed => (wire::Cause::Killed, None),
        Cause::Limit(reached) => (wire::Cause::Limit, Some(limit_of(reached))),
        Cause::Oom(reached) => (wire::Cause::Oom, reached.as_ref().map(limit_of)),
        Cause::Lost => (wire::Cause::Lost, None),
        Cause::NeverStarted => (wire::Cause::NeverStarted, None),
    };
    let error = match (&end.start_error, &end.verdict) {
        (Some(failure), _) => Some(start_error(Some(failure), &failure.to_string())),
        (None, Verdict::Lost(lost)) => Some(wire::Error {
            code: "lost".to_owned(),
            message: lost.reason.clone(),
            hint: (!lost.suspects.is_empty()).then(|| {
                let list = lost.suspects.iter().map(|s| format!("{} {}", s.identity.pid, s.comm));
                format!("these may be its own: {}", list.collect::<Vec<_>>().join(", "))
            }),
        }),
        (None, Verdict::Dead(_)) => None,
    };
    wire::End { cause, status: status_of(end.status), limit, error }
}

fn limit_of(reached: &LimitReached) -> wire::Limit {
    wire::Limit { kind: reached.kind.clone(), used: reached.used, max: reached.max }
}

fn status_of(status: ExitStatus) -> wire::Status {
    match status {
        ExitStatus::Exited(code) => wire::Status::Exited(code),
        ExitStatus::Signaled(signal) => wire::Status::Signaled(signal),
        ExitStatus::Unknown(why) => wire::Status::Unknown(
            match why {
                UnknownStatus::Reboot => "reboot",
                UnknownStatus::KeeperLost => "keeper_lost",
                UnknownStatus::NeverStarted => "never_started",
            }
            .to_owned(),
        ),
    }
}

fn proof_of(end: &End) -> Option<wire::ProofView> {
    match &end.verdict {
        Verdict::Lost(_) => None,
        Verdict::Dead(proof) => Some(wire::ProofView {
            rests_on: proof.rests_on().iter().map(ToString::to_string).collect(),
            processes: proof.effort().processes,
            rounds: proof.effort().rounds,
            took_us: proof.effort().total().as_micros() as u64,
            proven_at: Time(proof.proven_at_ms()),
        }),
    }
}

fn survivors_of(stuck: &Stuck) -> Vec<wire::Survivor> {
    let one = |s: &Survivor| wire::Survivor {
        pid: s.identity.pid,
        name: s.comm.clone(),
        state: s.state,
        uid: s.uid,
        tracer: s.tracer,
        reason: s.reason.to_string(),
    };
    stuck.survivors.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoryEntry;
    use crate::store::story_format::tests::every_fact;

    #[test]
    fn every_notice_of_stories_says_whose_it_is_and_what_happened() {
        let mut kinds = std::collections::BTreeMap::new();
        for fact in every_fact() {
            // Stories in which nothing was told yet: each notice is the first of its kind.
            let mut stories = mind::Stories::default();
            every_fact().iter().take(2).for_each(|fact| stories.apply(fact));
            let Some(told) = stories.notice_of(&fact) else { continue };
            let named = Some(Named::of_story(&told));
            let entry = StoryEntry { fact, at: Time(5), notice: named, words: None };
            let told = notice(&Line::of_story(9, &entry)).expect("it is one");
            assert_eq!((told.seq, told.at), (9, Time(5)));
            let about_story = told.kind != wire::NoticeKind::ProviderPaused;
            assert_eq!(told.story.as_deref(), about_story.then_some("shop/7"));
            assert_eq!(told.until.is_some(), !about_story);
            assert!(["", "shop_7_3"].contains(&told.run.as_str()), "{}", told.run);
            assert!(told.message.is_some(), "{}", told.id);
            let word = serde_json::to_value(told.kind).unwrap();
            kinds.insert(word.as_str().unwrap().to_owned(), (told.id, told.stage));
        }
        let words: Vec<&str> = kinds.keys().map(String::as_str).collect();
        assert_eq!(
            words,
            [
                "provider_paused",
                "story_blocked",
                "story_done",
                "story_gone",
                "story_moved",
                "story_retried",
                "story_sent_back",
            ]
        );
        assert_eq!(
            kinds["story_moved"],
            ("story/shop/7/moved/1".to_owned(), Some("qa".to_owned()))
        );
        assert_eq!(kinds["story_sent_back"].1.as_deref(), Some("coding"));
        assert_eq!(kinds["provider_paused"].0, "provider/anthropic/paused/1");
    }
}
