//! A project as a step needs it: its repository, its configuration as it may be used now, and the
//! places of its stories. Owns the way from a key or a directory to these; reads files in a thread
//! that may wait.
//!
//! Who only looks at stories, or holds them, needs no configuration: what the mind knows of a
//! project is in the journal. What would be started is started by `Known` alone.

use std::path::PathBuf;

use kennel_supervisor::story::{ProjectKey, StoryRef};

use super::hands::{GiveUp, Hands};
use crate::api::{ApiError, App};
use crate::config::project::{ProjectNow, main_checkout};
use crate::home::Home;
use crate::steps::{Place, StorySlug};

/// A project, as it is configured now.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) key: String,
    pub(crate) now: ProjectNow,
}

impl Known {
    /// Where a story's work is.
    pub(crate) fn place(&self, home: &Home, story: &StoryRef) -> Result<Place, GiveUp> {
        let slug = StorySlug::new(story.id.as_str()).map_err(|e| GiveUp(e.to_string()))?;
        Ok(self.now.place(home, &self.key, &slug))
    }
}

impl Hands {
    pub(super) async fn known(&self, project: &ProjectKey) -> Result<Known, ApiError> {
        let Some(path) = self.app.projects.path(project.as_str()) else {
            return Err(ApiError::internal(format!("project {project} has no repository")));
        };
        let now = self.app.project_at(path).await?;
        Ok(Known { key: project.as_str().to_owned(), now })
    }
}

impl App {
    /// The project a directory is in, as it is configured now.
    pub(crate) async fn project_at(&self, dir: PathBuf) -> Result<ProjectNow, ApiError> {
        let settings = self.settings.clone();
        let read = tokio::task::spawn_blocking(move || settings.project(&dir));
        Ok(read.await.map_err(|_| ApiError::leaving())??)
    }

    /// The key and the repository of a project that has, or had, stories, by a directory of it:
    /// whatever its configuration is now.
    pub(crate) async fn known_at(&self, dir: PathBuf) -> Option<(String, PathBuf)> {
        let found = tokio::task::spawn_blocking(move || main_checkout(&dir).ok());
        let repository = found.await.ok().flatten()?;
        let key = self.projects.key(&repository)?;
        self.stories.now().pipeline(&key.as_str().into())?;
        Some((key, repository))
    }
}
