//! From how a run ended to what that was for its story. Owns what counts as success, whose fault an
//! end is, and what is said of it; what follows from it is the mind's.
//!
//! An agent has succeeded if it exited by itself with 0, left its worktree on its branch with
//! nothing uncommitted or half done, and, if it writes, has written: one that only says so has not.

use kennel_process::{Cause, ExitStatus, UnknownStatus, Verdict};
use kennel_supervisor::story::{Outcome, Role, Session, StepId, Tail, Used, Work};

use super::MICROS;
use super::hands::{GiveUp, Hands};
use crate::config::MainCheckout;
use crate::meter::Account;
use crate::steps::{Drift, Looked, Operation, Refused, Step, StepOutcome, WorktreeState, drift};
use crate::store::kept::KeptRun;
use crate::store::{StoreError, format};

/// Landings that are remembered, of all projects together: more than happen while one run works.
const LANDINGS: usize = 200;

/// Removals in a row that may be cut off before the story is blocked: each is safe to do again, but
/// whoever kills five of them means it, or will kill the sixth.
const REMOVALS_CUT_OFF: u32 = 5;

/// What is told of a step that is over.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) used: Used,
    pub(super) session: Option<Session>,
}

/// How a run ended, as far as it matters for what it did.
enum How {
    /// By itself, with this code or signal.
    Exit(ExitStatus),
    Limit,
    Stopped,
    /// The machine went down under it.
    Reboot,
    Lost,
    Never(String),
}

impl Hands {
    /// What the end of a step's run was for its story.
    pub(super) async fn outcome(&self, step: &StepId, run: &KeptRun) -> Result<Ended, GiveUp> {
        let (used, session) = (used(run), session_of(run));
        let over = |outcome| Ok(Ended { outcome, used, session: session.clone() });
        let now = self.app.stories.now();
        let current = now.story(&step.story).and_then(|story| story.step.clone());
        // A stray: that it is over is all that matters.
        let Some(current) = current.filter(|current| current.number == step.number) else {
            return over(Outcome::Stopped);
        };
        let how = match how(run) {
            How::Exit(status) => status,
            How::Lost => return over(Outcome::Lost),
            How::Reboot => return over(Outcome::Interrupted),
            How::Never(why) => {
                self.app.troubles.note(&step.story, why);
                return over(Outcome::NeverStarted);
            }
            How::Stopped if self.app.store.stopped_by_shutdown(&run.id).await? => {
                return over(Outcome::Interrupted);
            }
            How::Stopped => {
                let after = self.after_any(step, &current.work).await?;
                return over(if after.drifted { Outcome::Drifted } else { Outcome::Stopped });
            }
            How::Limit => return over(self.limited(step, run, &current.work).await?),
        };
        over(match &current.work {
            Work::Agent { agent, .. } => {
                let rule = now.pipeline(&step.story.project).and_then(|p| p.agent(agent).cloned());
                let role = rule.map_or(Role::Other, |rule| rule.role);
                self.of_agent(step, run, role, how).await?
            }
            Work::Gate { n } => self.of_gate(step, run, *n, how).await?,
            work @ (Work::Prepare { .. } | Work::Merge | Work::Land | Work::Remove) => {
                self.of_git(step, run, work).await?
            }
        })
    }

    async fn of_agent(
        &self,
        step: &StepId,
        run: &KeptRun,
        role: Role,
        status: ExitStatus,
    ) -> Result<Outcome, GiveUp> {
        let After { tree, branch, drifted, unseen } = self.after(step).await?;
        if drifted {
            return Ok(Outcome::Drifted);
        }
        if unseen && status == ExitStatus::Exited(0) {
            return Ok(Outcome::Unseen);
        }
        let ahead = tree.as_ref().is_some_and(|tree| is_ahead(tree, &branch));
        let said = |why: String| {
            self.app.troubles.note(&step.story, why);
        };
        // Also of one that leaves with 0: its last question was not answered, so it is not through.
        if let Some(until_ms) = rate_limited(run) {
            return Ok(Outcome::RateLimited { until_ms });
        }
        if status != ExitStatus::Exited(0) {
            said(format!("its agent {}", in_words(status)));
            return Ok(failed(run, ahead));
        }
        let Some(tree) = tree else {
            said("its worktree was gone when its agent had ended".to_owned());
            return Ok(failed(run, false));
        };
        if let Some(why) = undone(&tree, role, &branch) {
            said(why.sentence().to_owned());
            return Ok(Outcome::Failed { ahead, tail: Some(why.tail(run)) });
        }
        self.app.troubles.forget(&step.story);
        Ok(Outcome::Success)
    }

    async fn of_gate(
        &self,
        step: &StepId,
        run: &KeptRun,
        n: u32,
        status: ExitStatus,
    ) -> Result<Outcome, GiveUp> {
        let After { drifted, unseen, .. } = self.after(step).await?;
        if drifted {
            return Ok(Outcome::Drifted);
        }
        if unseen && status == ExitStatus::Exited(0) {
            return Ok(Outcome::Unseen);
        }
        if status == ExitStatus::Exited(0) {
            self.app.troubles.forget(&step.story);
            return Ok(Outcome::Success);
        }
        self.app.troubles.note(&step.story, format!("gate {} {}", n + 1, in_words(status)));
        Ok(failed(run, false))
    }

    async fn limited(&self, step: &StepId, run: &KeptRun, work: &Work) -> Result<Outcome, GiveUp> {
        let After { tree, branch, drifted, .. } = self.after_any(step, work).await?;
        if drifted {
            return Ok(Outcome::Drifted);
        }
        let ahead = tree.is_some_and(|tree| is_ahead(&tree, &branch));
        self.app.troubles.note(&step.story, "a limit ended its run".to_owned());
        Ok(Outcome::Limit { ahead, tail: Some(tail(run)) })
    }

    async fn of_git(&self, step: &StepId, run: &KeptRun, work: &Work) -> Result<Outcome, GiveUp> {
        Ok(match self.read(run).await {
            StepOutcome::Conflict { .. } => Outcome::Conflict { tail: Some(tail(run)) },
            StepOutcome::Landed { .. }
            | StepOutcome::Prepared { .. }
            | StepOutcome::Merged { .. }
            | StepOutcome::Removed { .. }
            | StepOutcome::Looked(_)
            | StepOutcome::Saved(_)
            | StepOutcome::NothingToSave => {
                self.app.troubles.forget(&step.story);
                Outcome::Success
            }
            StepOutcome::Refused { why: Refused::NothingAhead, .. } if *work == Work::Merge => {
                Outcome::Success
            }
            StepOutcome::Refused { why: Refused::BaseMoved, .. } if *work == Work::Land => {
                Outcome::BaseMoved
            }
            StepOutcome::Refused { text, .. } => {
                self.app.troubles.note(&step.story, text.trim().to_owned());
                failed(run, false)
            }
            StepOutcome::Broken { why, .. } => {
                self.app.troubles.note(&step.story, why);
                // Others are tried again as it is. Of a removal that fails somebody has to see why,
                // but one that was killed has no reason of its own.
                if *work == Work::Remove && self.was_cut_off_by_chance(step, run).await? {
                    return Ok(Outcome::Interrupted);
                }
                failed(run, false)
            }
        })
    }

    /// True if this removal did not come to its end, and not all of those before it did neither.
    async fn was_cut_off_by_chance(&self, step: &StepId, run: &KeptRun) -> Result<bool, GiveUp> {
        if !is_cut_off(run) {
            return Ok(false);
        }
        for back in 1..REMOVALS_CUT_OFF {
            let Some(number) = step.number.checked_sub(back) else { return Ok(true) };
            let before = StepId { story: step.story.clone(), number };
            let found = self.find(before.run().as_str()).await?;
            let is_removal =
                |run: &KeptRun| Step::name_in(&run.request.command) == Some(Step::REMOVE_NAME);
            if !found.is_some_and(|run| is_removal(&run) && is_cut_off(&run)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Remembers where landings of earlier daemons have put the base, or were about to.
    pub(super) async fn remember_landings(&self) -> Result<(), StoreError> {
        for run in self.app.store.landings(LANDINGS).await? {
            let Some(of) = &run.request.step else { continue };
            if let Some(commit) = Step::lands(&run.request.command) {
                self.app.landed.note(&of.step().story.project, commit.to_owned());
            }
        }
        Ok(())
    }

    /// The same as [`after`](Self::after), of any step: nothing where nobody worked.
    async fn after_any(&self, step: &StepId, work: &Work) -> Result<After, GiveUp> {
        match work {
            Work::Agent { .. } | Work::Gate { .. } => self.after(step).await,
            Work::Prepare { .. } | Work::Merge | Work::Land | Work::Remove => Ok(After::default()),
        }
    }

    /// How the worktree stands after a run that worked in it, and whether the main checkout
    /// drifted meanwhile. What drifted is told with the story; where the checkout is shared with
    /// its user, it is only told. Whether its start was ever told says nothing: it may have lived
    /// and died while nobody was there.
    async fn after(&self, step: &StepId) -> Result<After, GiveUp> {
        let known = self.known(&step.story.project).await.map_err(GiveUp::from)?;
        let place = known.place(&self.app.home, &step.story)?;
        let branch = place.branch();
        let looked = self.look_after(step, &known, &Step::Look { place }).await?;
        let StepOutcome::Looked(after) = looked else {
            let why = format!("its worktree could not be looked at: {}", why_not(&looked));
            tracing::warn!("{step}: {why}");
            self.app.troubles.note(&step.story, why);
            return Ok(After { unseen: true, ..After::default() });
        };
        let drifted = match self.last_baseline(step).await? {
            Some(StepOutcome::Looked(before)) => self.drifted(step, &before, &after),
            Some(_) | None => Vec::new(),
        };
        let drifts = !drifted.is_empty();
        if drifts {
            let what: Vec<&str> = drifted.into_iter().map(drift_word).collect();
            let why = format!("the main checkout changed while it ran: {}", what.join(", "));
            tracing::warn!("{step}: {why}");
            self.app.troubles.note(&step.story, why);
        }
        let guarded = known.now.said.project.main_checkout == MainCheckout::Guard;
        Ok(After { tree: after.worktree, branch, drifted: drifts && guarded, unseen: false })
    }

    fn drifted(&self, step: &StepId, before: &Looked, now: &Looked) -> Vec<Drift> {
        let landed = self.app.landed.has(&step.story.project, &now.base);
        drift(before, now, landed.then_some(now.base.as_str()))
    }
}

/// How things stand after a run.
#[derive(Default)]
struct After {
    /// The worktree, if it could be looked at.
    tree: Option<WorktreeState>,
    /// The branch it should be on.
    branch: String,
    /// True if the main checkout is not as it was.
    drifted: bool,
    /// True if nobody could look, which is no fault of whoever worked there.
    unseen: bool,
}

/// What an agent left undone, though it exited with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// A rebase, a merge or the like is under way.
    Unfinished,
    /// Its worktree is on another branch, or on none.
    Elsewhere,
    /// Changes that are in no commit.
    Uncommitted,
    /// It writes, and there is no commit.
    NoCommit,
}

impl Undone {
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Unfinished => {
                "its agent left the worktree in the middle of a rebase, a merge or the like: \
                 finish or abort it first"
            }
            Self::Elsewhere => {
                "its agent left the worktree on another branch than the story's: bring the work \
                 onto the story's branch, and check that out"
            }
            Self::Uncommitted => "its agent left changes that are in no commit",
            Self::NoCommit => "its agent ended without a commit",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Elsewhere => "elsewhere",
            Self::Uncommitted => "uncommitted",
            Self::NoCommit => "no-commit",
        }
    }

    fn tail(self, run: &KeptRun) -> Tail {
        format!("{}:{}", self.word(), run.id).as_str().into()
    }

    /// What a tail says, and the run it is of.
    pub(super) fn of(tail: &Tail) -> (Option<Self>, &str) {
        let Some((word, run)) = tail.as_str().split_once(':') else { return (None, tail.as_str()) };
        let all = [Self::Unfinished, Self::Elsewhere, Self::Uncommitted, Self::NoCommit];
        (all.into_iter().find(|undone| undone.word() == word), run)
    }
}

/// Why what would be merged and gated is not what the agent has worked on.
fn astray(tree: &WorktreeState, branch: &str) -> Option<Undone> {
    match tree.operation {
        Operation::None if tree.branch == branch => None,
        Operation::None => Some(Undone::Elsewhere),
        Operation::Rebase
        | Operation::Am
        | Operation::Merge
        | Operation::CherryPick
        | Operation::Revert
        | Operation::Bisect => Some(Undone::Unfinished),
    }
}

/// True if its branch has commits that gates can judge.
fn is_ahead(tree: &WorktreeState, branch: &str) -> bool {
    tree.ahead > 0 && astray(tree, branch).is_none()
}

fn undone(tree: &WorktreeState, role: Role, branch: &str) -> Option<Undone> {
    if let Some(astray) = astray(tree, branch) {
        return Some(astray);
    }
    if tree.changed + tree.untracked + tree.unmerged > 0 {
        return Some(Undone::Uncommitted);
    }
    match role {
        Role::Coder if tree.ahead == 0 => Some(Undone::NoCommit),
        Role::Coder | Role::Qa | Role::Merge | Role::Other => None,
    }
}

/// Why something was not done, for people.
pub(super) fn why_not(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Refused { text, .. } => text.trim().to_owned(),
        StepOutcome::Broken { why, .. } => why.clone(),
        StepOutcome::Prepared { .. }
        | StepOutcome::Looked(_)
        | StepOutcome::Saved(_)
        | StepOutcome::NothingToSave
        | StepOutcome::Merged { .. }
        | StepOutcome::Conflict { .. }
        | StepOutcome::Landed { .. }
        | StepOutcome::Removed { .. } => "it did something else than it was asked for".to_owned(),
    }
}

/// Where the last words of a run are kept: in its own output.
fn tail(run: &KeptRun) -> Tail {
    (&*run.id).into()
}

fn failed(run: &KeptRun, ahead: bool) -> Outcome {
    Outcome::Failed { ahead, tail: Some(tail(run)) }
}

fn how(run: &KeptRun) -> How {
    let end = match run.ended.as_deref() {
        Some(format::Ended::Recorded(end)) => end,
        Some(format::Ended::NeverStarted { message, .. }) => return How::Never(message.clone()),
        None => return How::Lost,
    };
    if let Verdict::Lost(_) = &end.verdict {
        return How::Lost;
    }
    match (&end.cause, end.status) {
        (_, ExitStatus::Unknown(UnknownStatus::Reboot)) => How::Reboot,
        (Cause::Stopped | Cause::Killed, _) => How::Stopped,
        (Cause::Limit(_) | Cause::Oom(_), _) => How::Limit,
        (Cause::NeverStarted, _) => {
            let why = end.start_error.as_ref().map(ToString::to_string);
            How::Never(why.unwrap_or_else(|| "it never started".to_owned()))
        }
        (Cause::Exit | Cause::Lost, status) => How::Exit(status),
    }
}

/// True if a run was killed before it came to its end, by nobody who said so.
fn is_cut_off(run: &KeptRun) -> bool {
    matches!(how(run), How::Exit(ExitStatus::Signaled(_) | ExitStatus::Unknown(_)))
}

/// True if nobody can say any more whether anything of a run is left.
pub(super) fn is_lost(run: &KeptRun) -> bool {
    matches!(run.ended.as_deref(), Some(format::Ended::Recorded(end))
        if matches!(end.verdict, Verdict::Lost(_)))
}

fn account(run: &KeptRun) -> Option<Account> {
    serde_json::from_str(&run.usage_now()?).ok()
}

/// What a run used, its children included.
pub(super) fn used(run: &KeptRun) -> Used {
    account(run).as_ref().map(used_by).unwrap_or_default()
}

/// In the units of the limits that hold each run to what is left of its story's ceilings, or their
/// sum could be beyond a ceiling that every run has kept: of turns, those that use a tool.
fn used_by(account: &Account) -> Used {
    let below = account.children.unwrap_or_default();
    let usd = account.cost_usd.unwrap_or(0.0) + below.cost_usd;
    Used {
        turns: account.tool_turns.saturating_add(below.tool_turns),
        // Rounded up: what is nearly used up is.
        money_micros: (usd.max(0.0) * MICROS).ceil() as u64,
    }
}

/// The session that a run leaves behind to go on in. Without an answer there is nothing in it, and
/// it may not even be there: its id is chosen before its client is started.
pub(super) fn session_of(run: &KeptRun) -> Option<Session> {
    let account = account(run).filter(|account| account.turns > 0)?;
    account.session.as_deref().map(Into::into)
}

/// True if a model has answered in a run, with or without a tool.
pub(super) fn was_answered(run: &KeptRun) -> bool {
    account(run).is_some_and(|account| account.turns > 0)
}

/// True if a run ended by itself, and not well.
pub(super) fn left_in_failure(run: &KeptRun) -> bool {
    matches!(how(run), How::Exit(status) if status != ExitStatus::Exited(0))
}

/// Until when its provider takes no more, if that is so. Not by what the agent does: Claude Code
/// says that it was refused, then its last words, and leaves, so at its end it has finished like
/// any other.
pub(super) fn rate_limited(run: &KeptRun) -> Option<Option<u64>> {
    let account = account(run)?;
    account
        .rate_limited
        .then(|| account.rate_limited_until.map(|seconds| seconds.saturating_mul(1000)))
}

fn in_words(status: ExitStatus) -> String {
    match status {
        ExitStatus::Exited(code) => format!("exited with {code}"),
        ExitStatus::Signaled(signal) => format!("was ended by signal {signal}"),
        ExitStatus::Unknown(_) => "ended, and nobody knows how".to_owned(),
    }
}

fn drift_word(drift: Drift) -> &'static str {
    match drift {
        Drift::Base => "the base branch moved",
        Drift::Head => "another commit is checked out",
        Drift::Branch => "another branch is checked out",
        Drift::Index => "something was staged or unstaged",
        Drift::Status => "files appeared, vanished or were changed",
        Drift::Contents => "files that were changed before were changed again",
        Drift::Stash => "the stash",
        Drift::Branches => "branches that are no story's",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::Charge;

    fn tree(changed: u64, untracked: u64, ahead: u64) -> WorktreeState {
        WorktreeState {
            head: String::new(),
            branch: "kennel/s".to_owned(),
            changed,
            untracked,
            unmerged: 0,
            ahead,
            behind: 0,
            operation: crate::steps::Operation::None,
            locks: Vec::new(),
        }
    }

    #[test]
    fn an_agent_that_writes_has_done_its_work_once_all_of_it_is_in_a_commit() {
        use Undone::{NoCommit, Uncommitted};
        for (changed, untracked, ahead, role, left) in [
            (0, 0, 1, Role::Coder, None),
            (0, 0, 0, Role::Coder, Some(NoCommit)),
            (1, 0, 0, Role::Coder, Some(Uncommitted)),
            (0, 1, 3, Role::Coder, Some(Uncommitted)),
            (0, 0, 0, Role::Qa, None),
            (0, 2, 0, Role::Qa, Some(Uncommitted)),
            (0, 0, 0, Role::Merge, None),
        ] {
            assert_eq!(undone(&tree(changed, untracked, ahead), role, "kennel/s"), left);
        }
    }

    #[test]
    fn work_that_is_elsewhere_or_unfinished_is_not_done_whoever_did_it() {
        let (on, off) = ("kennel/s", "kennel/t");
        let rebasing = WorktreeState { operation: Operation::Rebase, ..tree(0, 0, 1) };
        let detached = WorktreeState { branch: String::new(), ..tree(0, 0, 1) };
        for role in [Role::Coder, Role::Qa, Role::Merge, Role::Other] {
            for (tree, branch, left, ahead) in [
                (&tree(0, 0, 1), on, None, true),
                (&tree(0, 0, 1), off, Some(Undone::Elsewhere), false),
                (&rebasing, on, Some(Undone::Unfinished), false),
                (&detached, on, Some(Undone::Elsewhere), false),
            ] {
                assert_eq!(undone(tree, role, branch), left, "{tree:?}");
                assert_eq!(is_ahead(tree, branch), ahead, "{tree:?}");
            }
        }
    }

    #[test]
    fn what_counts_for_a_ceiling_is_what_the_limits_of_runs_count() {
        let mut account =
            Account { turns: 9, tool_turns: 3, cost_usd: Some(0.25), ..Account::default() };
        assert_eq!(used_by(&account), Used { turns: 3, money_micros: 250_000 });
        let below = Charge { turns: 7, tool_turns: 2, cost_usd: 0.5, ..Charge::default() };
        account.children = Some(below);
        assert_eq!(used_by(&account), Used { turns: 5, money_micros: 750_000 });
        // The same units as `lower` goes by.
        assert_eq!(below.toward("max_turns"), Some(2.0));
    }

    #[test]
    fn a_tail_tells_its_run_and_what_was_undone() {
        assert_eq!(Undone::of(&"p_s_7".into()), (None, "p_s_7"));
        for undone in [Undone::Unfinished, Undone::Elsewhere, Undone::Uncommitted, Undone::NoCommit]
        {
            let tail = format!("{}:p_s_7", undone.word());
            assert_eq!(Undone::of(&tail.as_str().into()), (Some(undone), "p_s_7"));
        }
        assert_eq!(Undone::of(&"new:p_s_7".into()), (None, "p_s_7"));
    }
}
