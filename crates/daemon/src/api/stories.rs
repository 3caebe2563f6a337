//! `/v1/stories`: pieces of work and where they stand. Requests become events of stories; what may
//! be is the mind's to say.
//!
//! Owns: which repository a directory is of, and the id a story gets. Waits for nothing but the
//! journal: what is asked for is under way when it answers, and `GET` says how far it is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use kennel_supervisor::story::{
    Ceilings, Edit, Leave, NewStory, Pipeline, ProjectKey, StageKind, StageName, StoryEvent,
    StoryId, StoryRef, StoryRefusal,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::ApiError;
use super::{App, BadQuery, LONGEST_POLL, parse, wire};
use crate::config::project::ProjectNow;
use crate::config::trust::sha256;
use crate::event_loop::StoryOutcome;
use crate::steps::StorySlug;
use crate::store::{KeptWords, StoryWords};
use crate::story::project::Known;
use crate::story::{MICROS, view, words};
use crate::text::Text;
use crate::time::Time;

/// The longest title: a line.
const MAX_TITLE_BYTES: usize = 500;
/// The longest text: an agent's prompt holds it, as one argument of a program.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// The longest id that is made of a title; what is asked for may be longer.
const MAX_MADE_BYTES: usize = 30;
/// Ids that are tried for a title: a hundred stories of one title are a mistake.
const MAX_IDS: u32 = 100;
/// The longest key of a request.
const MAX_KEY_BYTES: usize = 128;
/// What a story shows of its past.
const HISTORY: usize = 200;
/// The dearest ceiling: what is beyond is a mistake, and fits no counter.
const MAX_USD: f64 = 1_000_000_000.0;

/// A project, as somebody who asks has to know it.
struct Asked {
    key: ProjectKey,
    repository: PathBuf,
    /// How it is configured, or why nothing of that may be used now: then what the mind knows of
    /// it from before counts for who looks, holds or moves, and nothing is begun.
    known: Result<Known, wire::Error>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Any directory of the repository; an absolute path.
    dir: String,
    /// Also those that are archived or removed.
    #[serde(default)]
    all: bool,
    /// Answer once there is something newer than this line of the journal about its stories.
    #[serde(default)]
    after: Option<u64>,
    /// How long to wait for that, in milliseconds; at most 20 s.
    #[serde(default)]
    wait_ms: u64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct PlaceQuery {
    /// Any directory of the repository; an absolute path.
    dir: String,
}

/// The stories of a repository.
#[utoipa::path(get, path = "/v1/stories", params(ListQuery),
    responses((status = 200, body = wire::Stories), (status = 403, body = wire::ErrorBody)))]
pub(super) async fn list(
    State(app): State<App>,
    query: Result<Query<ListQuery>, BadQuery>,
) -> Result<Json<wire::Stories>, ApiError> {
    let Query(query) = query?;
    let asked = app.asked(&Text(query.dir.clone().into())).await?;
    let bound = Duration::from_millis(query.wait_ms).min(LONGEST_POLL);
    if let Some(after) = query.after {
        app.until_news(&asked.key, after, bound).await?;
    }
    app.all_stories(&asked, query.all).await.map(Json)
}

/// Adds a story. With a `key` it may be asked for again if the answer was lost.
#[utoipa::path(post, path = "/v1/stories", request_body = wire::StoryRequest,
    responses((status = 201, body = wire::Story), (status = 409, body = wire::ErrorBody)))]
pub(super) async fn add(
    State(app): State<App>,
    body: Bytes,
) -> Result<(StatusCode, Json<wire::Story>), ApiError> {
    let request: wire::StoryRequest = parse(&body)?;
    check_words(&request.title, &request.text)?;
    check_key(request.key.as_deref())?;
    let asked = app.asked(&request.dir).await?;
    let story = app.added(&asked, request).await?;
    Ok((StatusCode::CREATED, Json(app.story_shown(&asked, &story).await?)))
}

/// A story, with its text and its past.
#[utoipa::path(get, path = "/v1/stories/{story}", params(("story" = String, Path), PlaceQuery),
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn show(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<PlaceQuery>, BadQuery>,
) -> Result<Json<wire::Story>, ApiError> {
    let Query(PlaceQuery { dir }) = query?;
    let asked = app.asked(&Text(dir.into())).await?;
    let story = asked.story(&id);
    Ok(Json(app.story_shown(&asked, &story).await?))
}

/// Changes a story: its words, who works on it, what it waits for, what it may use.
#[utoipa::path(patch, path = "/v1/stories/{story}", params(("story" = String, Path)),
    request_body = wire::StoryEdit,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn edit(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryEdit = parse(&body)?;
    let asked = app.asked(&request.dir).await?;
    let story = asked.story(&id);
    let turn = app.story_words.lock().await;
    let (edit, words) = app.edit_of(&asked, &story, request).await?;
    app.tell_of(StoryEvent::EditRequested { story: story.clone(), edit }, words).await?;
    drop(turn);
    Ok(Json(app.story_shown(&asked, &story).await?))
}

/// Puts a story into another stage. Who works on it for the one it leaves is stopped with proof
/// before anybody begins in the new one.
#[utoipa::path(post, path = "/v1/stories/{story}/move", params(("story" = String, Path)),
    request_body = wire::StoryMove,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn move_to(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryMove = parse(&body)?;
    let to = request.stage.as_str().into();
    app.change(&id, &request.dir, |story| StoryEvent::MoveRequested { story, to }).await
}

/// Has nothing done for a story until somebody has looked at it.
#[utoipa::path(post, path = "/v1/stories/{story}/block", params(("story" = String, Path)),
    request_body = wire::StoryPlace,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn block(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryPlace = parse(&body)?;
    app.change(&id, &request.dir, StoryEvent::BlockRequested).await
}

/// Lets a blocked or frozen story go on. What failed before is forgotten.
#[utoipa::path(post, path = "/v1/stories/{story}/unblock", params(("story" = String, Path)),
    request_body = wire::StoryPlace,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn unblock(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryPlace = parse(&body)?;
    app.change(&id, &request.dir, StoryEvent::UnholdRequested).await
}

/// Has nothing done for a story until somebody says so.
#[utoipa::path(post, path = "/v1/stories/{story}/freeze", params(("story" = String, Path)),
    request_body = wire::StoryPlace,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn freeze(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryPlace = parse(&body)?;
    app.change(&id, &request.dir, StoryEvent::FreezeRequested).await
}

/// Puts a story away: its run is stopped with proof, its work saved, its worktree removed.
#[utoipa::path(post, path = "/v1/stories/{story}/archive", params(("story" = String, Path)),
    request_body = wire::StoryPlace,
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn archive(
    State(app): State<App>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<wire::Story>, ApiError> {
    let request: wire::StoryPlace = parse(&body)?;
    let leave = |story| StoryEvent::LeaveRequested { story, how: Leave::Archive };
    app.change(&id, &request.dir, leave).await
}

/// Throws a story away, in the same order. Its id is never used again.
#[utoipa::path(delete, path = "/v1/stories/{story}", params(("story" = String, Path), PlaceQuery),
    responses((status = 200, body = wire::Story), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn remove(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<PlaceQuery>, BadQuery>,
) -> Result<Json<wire::Story>, ApiError> {
    let Query(PlaceQuery { dir }) = query?;
    let leave = |story| StoryEvent::LeaveRequested { story, how: Leave::Remove };
    app.change(&id, &Text(dir.into()), leave).await
}

/// Has a provider asked again before its pause is over.
#[utoipa::path(post, path = "/v1/providers/unpause", request_body = wire::UnpauseRequest,
    responses((status = 204), (status = 404, body = wire::ErrorBody)))]
pub(super) async fn unpause(State(app): State<App>, body: Bytes) -> Result<StatusCode, ApiError> {
    let request: wire::UnpauseRequest = parse(&body)?;
    let event = StoryEvent::UnpauseRequested(request.provider.as_str().into());
    match app.inbox.tell_story(event, None).await? {
        StoryOutcome::Done => Ok(StatusCode::NO_CONTENT),
        StoryOutcome::AlreadySo | StoryOutcome::Refused(_) => {
            let message = format!("provider {:?} is not paused", request.provider);
            Err(ApiError::new(StatusCode::NOT_FOUND, "not_paused", message)
                .hint("`kennel story list` names those that are"))
        }
    }
}

impl Asked {
    /// What somebody should know of its configuration.
    fn notes(&self) -> Vec<String> {
        match &self.known {
            Ok(known) => known.now.notes.clone(),
            Err(wire::Error { message, hint, .. }) => {
                let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                vec![format!("{message}; nothing is begun until it may be used{hint}")]
            }
        }
    }

    fn story(&self, id: &str) -> StoryRef {
        StoryRef::new(&self.key, &StoryId::from(id))
    }
}

impl App {
    /// The project of a directory, made known by its first question. One that is known already
    /// needs no configuration: a person must always be able to look at stories and to hold them.
    async fn asked(&self, dir: &Text) -> Result<Asked, ApiError> {
        let dir = PathBuf::from(dir.0.clone());
        if !dir.is_absolute() {
            let message = format!("dir {} is not an absolute path", dir.display());
            return Err(ApiError::bad_request(message));
        }
        let now = match self.project_at(dir.clone()).await {
            Ok(now) => now,
            Err(error) => {
                let Some((key, repository)) = self.known_at(dir).await else { return Err(error) };
                let (key, known) = (key.as_str().into(), Err(error.into_wire()));
                return Ok(Asked { key, repository, known });
            }
        };
        let path = now.repository.to_str().map(str::to_owned).ok_or_else(|| {
            let message = format!("{} is not text", now.repository.display());
            ApiError::bad_request(message).hint("move the repository to a path of plain text")
        })?;
        let key = self.inbox.project(path).await?;
        self.projects.put(&key, now.repository.clone());
        let project = ProjectKey::from(key.as_str());
        self.read_pipeline(&project, &now).await?;
        let repository = now.repository.clone();
        Ok(Asked { key: project, repository, known: Ok(Known { key, now }) })
    }

    /// Makes the mind know how the stories of a project are worked on, if that has changed.
    async fn read_pipeline(&self, project: &ProjectKey, now: &ProjectNow) -> Result<(), ApiError> {
        if self.stories.now().pipeline(project) == Some(&*now.pipeline) {
            return Ok(());
        }
        let (project, pipeline) = (project.clone(), now.pipeline.clone());
        let event = StoryEvent::PipelineRead { project, pipeline };
        match self.inbox.tell_story(event, None).await? {
            StoryOutcome::Done | StoryOutcome::AlreadySo => Ok(()),
            StoryOutcome::Refused(why) => Err(refused(&why)),
        }
    }

    /// Waits until the journal has something about a project's stories after a line.
    async fn until_news(
        &self,
        project: &ProjectKey,
        after: u64,
        bound: Duration,
    ) -> Result<(), ApiError> {
        let deadline = Instant::now() + bound;
        loop {
            let last = self.feed.last();
            let newest = self.store.last_seq_of_project(project.as_str()).await?;
            let left = deadline.saturating_duration_since(Instant::now());
            if newest > after || left.is_zero() {
                return Ok(());
            }
            self.until_after(self.feed.watch(), last, left).await?;
        }
    }

    async fn added(
        &self,
        asked: &Asked,
        request: wire::StoryRequest,
    ) -> Result<StoryRef, ApiError> {
        let project = asked.key.as_str();
        let new = self.new_story(asked, &request)?;
        let wire::StoryRequest { id, title, text, key, .. } = request;
        let _turn = self.story_words.lock().await;
        for n in 1..=MAX_IDS {
            if let Some(key) = &key
                && let Some(id) = self.store.story_by_key(project, key).await?
            {
                return Ok(asked.story(&id));
            }
            let slug = match &id {
                Some(id) => StorySlug::new(id.clone()).map_err(|e| bad(e.to_string()))?,
                None => made_of(&title, n)?,
            };
            let story = asked.story(slug.as_str());
            let event = StoryEvent::AddRequested { story: story.clone(), new: new.clone() };
            let words = StoryWords { title: title.clone(), text: text.clone(), key: key.clone() };
            match self.inbox.tell_story(event, Some(words)).await? {
                StoryOutcome::Done | StoryOutcome::AlreadySo => return Ok(story),
                StoryOutcome::Refused(StoryRefusal::IdTaken) if id.is_none() => {}
                StoryOutcome::Refused(why) => return Err(refused(&why)),
            }
        }
        Err(bad(format!("there are {MAX_IDS} stories of this title"))
            .hint("give it an id of its own"))
    }

    fn new_story(&self, asked: &Asked, request: &wire::StoryRequest) -> Result<NewStory, ApiError> {
        let stage = match &request.stage {
            Some(stage) => stage.as_str().into(),
            None => first_stage(self.stories.now().pipeline(&asked.key))?,
        };
        Ok(NewStory {
            stage,
            pinned: request.agent.as_deref().map(Into::into),
            depends_on: request.depends_on.iter().map(|id| id.as_str().into()).collect(),
            priority: request.priority,
            ceilings: ceilings(&request.ceilings)?,
        })
    }

    async fn change(
        &self,
        id: &str,
        dir: &Text,
        event: impl FnOnce(StoryRef) -> StoryEvent,
    ) -> Result<Json<wire::Story>, ApiError> {
        let asked = self.asked(dir).await?;
        let story = asked.story(id);
        self.tell_of(event(story.clone()), None).await?;
        Ok(Json(self.story_shown(&asked, &story).await?))
    }

    /// Tells what somebody wants of a story.
    async fn tell_of(&self, event: StoryEvent, words: Option<StoryWords>) -> Result<(), ApiError> {
        let leaves = matches!(event, StoryEvent::LeaveRequested { .. });
        match self.inbox.tell_story(event, words).await? {
            StoryOutcome::Done | StoryOutcome::AlreadySo => Ok(()),
            StoryOutcome::Refused(StoryRefusal::NoSuchStory(story))
                if self.stories.now().gone(&story).is_some() =>
            {
                // To have what is gone go is to have it so already.
                if leaves { Ok(()) } else { Err(gone(&story)) }
            }
            StoryOutcome::Refused(why) => Err(refused(&why)),
        }
    }

    async fn edit_of(
        &self,
        asked: &Asked,
        story: &StoryRef,
        request: wire::StoryEdit,
    ) -> Result<(Edit, Option<StoryWords>), ApiError> {
        let kept = self.store.words(asked.key.as_str(), story.id.as_str()).await?;
        let Some(kept) = kept.get(story.id.as_str()) else {
            return Err(refused(&StoryRefusal::NoSuchStory(story.clone())));
        };
        let (title, text) = match (&request.title, &request.text) {
            (None, None) => (None, None),
            (title, text) => (
                Some(title.clone().unwrap_or_else(|| kept.title.clone())),
                Some(text.clone().unwrap_or_else(|| kept.text.clone())),
            ),
        };
        let words = match title.zip(text) {
            None => None,
            Some((title, text)) => {
                check_words(&title, &text)?;
                Some(StoryWords { title, text, key: kept.key.clone() })
            }
        };
        let digest = |words: &StoryWords| {
            sha256(format!("{}\n{}", words.title, words.text).as_bytes()).as_str().into()
        };
        let ids = |ids: Vec<String>| ids.iter().map(|id| id.as_str().into()).collect();
        let pinned = |name: String| (!name.is_empty()).then(|| name.as_str().into());
        let edit = Edit {
            pinned: request.agent.map(pinned),
            depends_on: request.depends_on.map(ids),
            priority: request.priority,
            ceilings: request.ceilings.as_ref().map(ceilings).transpose()?,
            words: words.as_ref().map(digest),
        };
        Ok((edit, words))
    }

    async fn all_stories(&self, asked: &Asked, all: bool) -> Result<wire::Stories, ApiError> {
        // Before they are looked at: what comes meanwhile is told to who asks for more.
        let seq = self.store.last_seq_of_project(asked.key.as_str()).await?;
        let kept = self.store.titles(asked.key.as_str()).await?;
        let look = self.look(asked, &kept);
        let stories = look.all(all);
        Ok(wire::Stories {
            project: asked.key.to_string(),
            repository: asked.repository.display().to_string(),
            stages: look.stages().iter().map(|stage| stage.name.to_string()).collect(),
            stories,
            paused: look.paused(),
            notes: asked.notes(),
            seq,
        })
    }

    async fn story_shown(&self, asked: &Asked, story: &StoryRef) -> Result<wire::Story, ApiError> {
        let kept = self.store.words(asked.key.as_str(), story.id.as_str()).await?;
        let look = self.look(asked, &kept);
        let Some(mut shown) = look.one(story) else {
            return Err(refused(&StoryRefusal::NoSuchStory(story.clone())));
        };
        shown.text = kept.get(story.id.as_str()).map(|kept| kept.text.clone());
        let (project, id) = (story.project.as_str(), story.id.as_str());
        let lines = self.store.story_lines(project, id, HISTORY).await?;
        shown.history = lines.iter().filter_map(view::line).collect();
        shown.notes = asked.notes();
        let last = shown.history.iter().rev().find_map(|line| line.run.clone());
        if let (Some(_), Some(run)) = (self.stories.now().gone(story), last)
            && let Some((branch, saved)) = self.left_by(&run).await
        {
            shown.notes.extend(words::left(branch.as_deref(), saved.as_deref()));
        }
        Ok(shown)
    }

    fn look<'a>(
        &'a self,
        asked: &'a Asked,
        kept: &'a BTreeMap<String, KeptWords>,
    ) -> view::Look<'a> {
        view::Look {
            stories: self.stories.now(),
            project: &asked.key,
            repository: &asked.repository,
            known: asked.known.as_ref().ok(),
            home: &self.home,
            kept,
            troubles: &self.troubles,
            live: &self.live,
            now_ms: Time::now().0,
        }
    }
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(message)
}

fn gone(story: &StoryRef) -> ApiError {
    let message = format!("story {} is archived or removed", story.id);
    ApiError::new(StatusCode::CONFLICT, "story_gone", message)
        .hint("add another one: an id is never used twice")
}

fn refused(why: &StoryRefusal) -> ApiError {
    let (code, message, hint) = words::refusal(why);
    let status = match why {
        StoryRefusal::NoSuchStory(_) => StatusCode::NOT_FOUND,
        StoryRefusal::NoPipeline(_)
        | StoryRefusal::BadPipeline(_)
        | StoryRefusal::NoSuchStage { .. }
        | StoryRefusal::NoSuchAgent { .. }
        | StoryRefusal::UnknownDependency(_)
        | StoryRefusal::Cycle(_) => StatusCode::UNPROCESSABLE_ENTITY,
        StoryRefusal::IdTaken
        | StoryRefusal::Held(_)
        | StoryRefusal::Ended(_)
        | StoryRefusal::AtCeiling(_)
        | StoryRefusal::Leaving(_)
        | StoryRefusal::NeededBy(_) => StatusCode::CONFLICT,
    };
    let error = ApiError::new(status, code, message);
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Where a story begins: in the first stage that is no hold.
fn first_stage(pipeline: Option<&Pipeline>) -> Result<StageName, ApiError> {
    let stages = pipeline.into_iter().flat_map(|pipeline| &pipeline.stages);
    let mut begins = stages.filter(|stage| !matches!(stage.kind, StageKind::Hold));
    let first = begins.next().map(|stage| stage.name.clone());
    first.ok_or_else(|| bad("the project has no stage where a story could begin"))
}

fn ceilings(asked: &wire::StoryCeilings) -> Result<Ceilings, ApiError> {
    if asked.max_turns == Some(0) {
        return Err(bad("ceiling max_turns is 0: no run could begin"));
    }
    let money_micros = match asked.max_budget_usd {
        None => None,
        Some(usd) if usd > 0.0 && usd <= MAX_USD => Some((usd * MICROS).round().max(1.0) as u64),
        Some(usd) => {
            return Err(bad(format!(
                "ceiling max_budget_usd is {usd}: give dollars above 0 and up to {MAX_USD}"
            )));
        }
    };
    Ok(Ceilings { turns: asked.max_turns, money_micros, retries: asked.max_retries })
}

fn check_words(title: &str, text: &str) -> Result<(), ApiError> {
    if title.trim().is_empty() || title.len() > MAX_TITLE_BYTES || title.contains(['\n', '\0']) {
        let message = format!("a title is one line of 1 to {MAX_TITLE_BYTES} bytes");
        return Err(bad(message).hint("put what is longer into the text"));
    }
    if text.len() > MAX_TEXT_BYTES || text.contains('\0') {
        let message = format!("a text has up to {MAX_TEXT_BYTES} bytes, and no zero among them");
        return Err(bad(message).hint("put what is longer into a file of the repository"));
    }
    Ok(())
}

fn check_key(key: Option<&str>) -> Result<(), ApiError> {
    match key.filter(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
        None => Ok(()),
        Some(_) => Err(bad(format!("a key has 1 to {MAX_KEY_BYTES} bytes"))),
    }
}

/// An id made of a title: its letters and digits, small, words joined by `-`; the how many-th try.
fn made_of(title: &str, n: u32) -> Result<StorySlug, ApiError> {
    let mut slug = String::new();
    for word in title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let more = if slug.is_empty() { word.len() } else { slug.len() + 1 + word.len() };
        if !slug.is_empty() && more > MAX_MADE_BYTES {
            break;
        }
        if !slug.is_empty() {
            slug.push('-');
        }
        slug.extend(word.chars().take(MAX_MADE_BYTES).map(|c| c.to_ascii_lowercase()));
    }
    if slug.is_empty() {
        slug.push_str("story");
    }
    if n > 1 {
        slug.push_str(&format!("-{n}"));
    }
    StorySlug::new(slug).map_err(|e| bad(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_of_what_the_title_has_of_letters() {
        for (title, n, id) in [
            ("Fix the login", 1, "fix-the-login"),
            ("Fix the login", 2, "fix-the-login-2"),
            ("  --- ", 1, "story"),
            ("ÄÖ", 3, "story-3"),
            (
                "C++: make `new` throw, at last and for all of them",
                1,
                "c-make-new-throw-at-last-and",
            ),
            (&"x".repeat(99), 100, &format!("{}-100", "x".repeat(30))),
        ] {
            assert_eq!(made_of(title, n).unwrap().as_str(), id);
        }
    }

    #[test]
    fn ceilings_that_mean_nothing_are_refused() {
        let of = |usd: f64| wire::StoryCeilings { max_budget_usd: Some(usd), ..Default::default() };
        for usd in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(ceilings(&of(usd)).is_err(), "{usd}");
        }
        assert_eq!(ceilings(&of(1.5)).unwrap().money_micros, Some(1_500_000));
        let none = wire::StoryCeilings { max_turns: Some(0), ..Default::default() };
        assert!(ceilings(&none).is_err());
    }
}
