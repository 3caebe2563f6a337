//! Who asks, and which runs are theirs.
//!
//! Owns: the way from a connection to a run (peer, cohort, run), and who may see and end what. A
//! process of a run sees what that run started, and what those started; anybody else is the user.
//! Who cannot be told is refused, never taken for the user.

use std::collections::HashSet;
use std::sync::Arc;

use axum::http::StatusCode;
use kennel_process::{Started, recorded_start};

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::listen::Asker;
use crate::session::{resumed_session, session_of};
use crate::store::Page;
use crate::store::kept::KeptRun;

/// The longest line of parents that is followed: runs start runs a few deep.
const MAX_GENERATIONS: usize = 64;

/// How far back a session that goes on is looked for.
const MAX_SESSION_RUNS: usize = 1000;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Nobody's process: whoever owns this kennel.
    User,
    /// A process of this run.
    Run(Arc<str>),
}

/// Where the process that asks was found.
enum Found {
    In(Arc<str>),
    /// In no run that lives; with the cookie of one, if it has any.
    Outside(Option<Vec<u8>>),
}

/// What a run is to the one that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Started,
    Itself,
    Above,
    Beside,
    None,
}

impl App {
    /// Who is on the other end.
    pub(super) async fn caller(&self, asker: &Asker) -> Result<Caller, ApiError> {
        let unknown = |why: &str| {
            let message = format!("who asks cannot be told: {why}");
            ApiError::new(StatusCode::FORBIDDEN, "unknown_caller", message)
                .hint("connect again, from a process that stays")
        };
        let peer = match asker {
            Asker::Token => return Ok(Caller::User),
            Asker::Process(None) => return Err(unknown("the process that connected has ended")),
            Asker::Process(Some(peer)) => peer.clone(),
        };
        let (runs, home) = (self.live.all(), self.home.clone());
        let look = tokio::task::spawn_blocking(move || -> Result<Found, std::io::Error> {
            // A program runs a moment before its start is known here; its record has it before.
            let started = |run: &KeptRun| -> Option<Arc<Started>> {
                let recorded = || recorded_start(&home.run_dir(&run.id)).ok().flatten();
                run.started.clone().or_else(|| recorded().map(Arc::new))
            };
            let known: Vec<Arc<Started>> = runs.iter().filter_map(started).collect();
            let known: Vec<&Started> = known.iter().map(|started| &**started).collect();
            if let Some(found) = peer.run_among(&known)? {
                return Ok(Found::In(found.run.as_str().into()));
            }
            Ok(Found::Outside(peer.cookie()?))
        });
        let found = look.await.map_err(|_| ApiError::leaving())?;
        let cookie = match found.map_err(|e| unknown(&e.to_string()))? {
            Found::In(run) => return Ok(Caller::Run(run)),
            Found::Outside(cookie) => cookie.and_then(|cookie| String::from_utf8(cookie).ok()),
        };
        // It got out of its run on the way, which may be over by now, and may do less like this
        // than otherwise.
        let Some(cookie) = cookie else { return Ok(Caller::User) };
        let come_from = match self.live.get(&cookie) {
            Some(run) => Some(run),
            None => self.store.run(&cookie).await?,
        };
        Ok(come_from.map_or(Caller::User, |run| Caller::Run(run.id)))
    }

    /// The run a caller means, if it is one it may see.
    pub(super) async fn seen(&self, caller: &Caller, name: &str) -> Result<KeptRun, ApiError> {
        let run = self.meant_by(name).await?;
        let Caller::Run(own) = caller else { return Ok(run) };
        let why = match self.relation(own, &run).await? {
            Relation::Started => return Ok(run),
            Relation::Itself => "it is the run you are in",
            Relation::Above => "it started the run you are in",
            Relation::Beside => "it was started beside the run you are in, not by it",
            Relation::None => "it was not started by the run you are in",
        };
        let message = format!("run {} is not yours: {why}", run.id);
        Err(ApiError::new(StatusCode::FORBIDDEN, "not_yours", message)
            .hint("`list` shows the runs you may see and stop"))
    }

    /// True if a caller may see a run.
    pub(super) async fn sees(&self, caller: &Caller, run: &KeptRun) -> Result<bool, ApiError> {
        match caller {
            Caller::User => Ok(true),
            Caller::Run(own) => Ok(self.relation(own, run).await? == Relation::Started),
        }
    }

    /// True if one of these started a run, or one that those started.
    pub(super) async fn is_of(&self, selves: &[Arc<str>], run: &KeptRun) -> Result<bool, ApiError> {
        let above = self.above(run).await?;
        let own = |id: &Arc<str>| above.iter().any(|above| **above == **id);
        Ok(selves.iter().any(own) && !selves.contains(&run.id))
    }

    /// The line after which there may be something about what these started.
    pub(super) async fn begun(&self, selves: &[Arc<str>]) -> Result<u64, ApiError> {
        let mut first: Option<u64> = None;
        for own in selves {
            let line = self.store.first_line(own).await?;
            first = line.map(|line| first.map_or(line, |first| first.min(line))).or(first);
        }
        Ok(first.unwrap_or(0))
    }

    async fn relation(&self, own: &str, run: &KeptRun) -> Result<Relation, ApiError> {
        if own == &*run.id {
            return Ok(Relation::Itself);
        }
        let own = self.known(own).await?;
        let (mine, its) = (self.above(&own).await?, self.above(run).await?);
        let selves = self.selves(&own).await?;
        Ok(if its.iter().any(|id| selves.iter().any(|own| **own == **id)) {
            Relation::Started
        } else if mine.iter().any(|id| **id == *run.id) {
            Relation::Above
        } else if mine.first().is_some_and(|parent| its.first() == Some(parent)) {
            Relation::Beside
        } else {
            Relation::None
        })
    }

    /// A run, and those before it whose session it goes on with, oldest last. What those started
    /// is its own: who is woken to see what became of it has to be able to.
    pub(crate) async fn selves(&self, own: &KeptRun) -> Result<Vec<Arc<str>>, ApiError> {
        let mut selves = vec![own.id.clone()];
        let Some(session) = resumed_session(own) else { return Ok(selves) };
        let before = Some((own.request.at_ms, own.id.to_string()));
        let older = self.store.list(Page { before, limit: MAX_SESSION_RUNS }).await?;
        // Beside each other, so that nobody gets at another's by resuming its session below itself.
        let same = |run: &&KeptRun| {
            run.ended.is_some()
                && run.request.parent == own.request.parent
                && session_of(run).as_deref() == Some(session.as_str())
        };
        selves.extend(older.iter().filter(same).map(|run| run.id.clone()));
        Ok(selves)
    }

    /// Who started a run, and who started that, nearest first.
    pub(crate) async fn above(&self, run: &KeptRun) -> Result<Vec<String>, ApiError> {
        let (mut above, mut next) = (Vec::new(), run.request.parent.clone());
        while let Some(id) = next.filter(|_| above.len() < MAX_GENERATIONS) {
            // One that is not kept any more has nobody above it that could be told.
            let parent = match self.live.get(&id) {
                Some(parent) => Some(parent),
                None => self.store.run(&id).await?,
            };
            next = parent.and_then(|parent| parent.request.parent.clone());
            above.push(id);
        }
        Ok(above)
    }
}

/// Those of the runs, given newest first, that one of these started, or one that those started: a
/// run is asked for after the one that started it.
pub(super) fn own_of(selves: &[Arc<str>], runs: Vec<KeptRun>) -> Vec<KeptRun> {
    let mut seen: HashSet<Arc<str>> = selves.iter().cloned().collect();
    for run in runs.iter().rev() {
        if run.request.parent.as_deref().is_some_and(|parent| seen.contains(parent)) {
            seen.insert(run.id.clone());
        }
    }
    let shown = |run: &KeptRun| seen.contains(&run.id) && !selves.contains(&run.id);
    runs.into_iter().filter(shown).collect()
}
