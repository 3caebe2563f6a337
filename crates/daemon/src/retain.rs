//! Removing what is old, now and then. Owns when, and the directories of what was removed; what may
//! go is the store's rule.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::found::Finder;
use crate::home::Home;
use crate::store::kept::Standing;
use crate::store::retention::{Keep, REMOVED_AT_ONCE};
use crate::store::{Page, Store};
use crate::time::Time;

/// How often a daemon looks for what is old, from its start on.
const EVERY: Duration = Duration::from_secs(3600);
/// Runs whose size is asked for at once.
const PAGE: usize = 1000;

pub(crate) async fn retain_for_ever(finder: Finder, keep: Keep) {
    loop {
        match retain(&finder, &keep).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!("removed {removed} runs that were old or too large"),
            Err(e) => tracing::warn!("failed to remove what is old: {e}"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Removes what is to go, and says how many runs that were.
async fn retain(finder: &Finder, keep: &Keep) -> io::Result<usize> {
    let Finder { home, store, inbox } = finder;
    let mut removed = 0;
    loop {
        let large = too_large(home, store, keep).await?;
        let bounds = keep.bounds(Time::now().0, large, Vec::new());
        let gone = inbox.retain(bounds).await.map_err(io::Error::other)?;
        for run in &gone {
            // One that cannot be removed is a leftover, which `doctor` names.
            if let Err(e) = remove_dir(&home.run_dir(run)) {
                tracing::warn!(run, "failed to remove its directory: {e}");
            }
        }
        removed += gone.len();
        if gone.len() < REMOVED_AT_ONCE {
            return Ok(removed);
        }
    }
}

/// The oldest dead runs beyond the bytes that are kept.
async fn too_large(home: &Home, store: &Store, keep: &Keep) -> io::Result<Vec<String>> {
    let (mut bytes, mut large) = (0_u64, Vec::new());
    let mut before = None;
    loop {
        let page = Page { before: before.take(), limit: PAGE };
        let runs = store.list(page).await.map_err(io::Error::other)?;
        for run in &runs {
            if run.state == Standing::Dead {
                bytes = bytes.saturating_add(size_of(&home.run_dir(&run.id)));
                if bytes > keep.bytes {
                    large.push(run.id.to_string());
                }
            }
        }
        match runs.last() {
            Some(last) if runs.len() == PAGE => {
                before = Some((last.request.at_ms, last.id.to_string()));
            }
            Some(_) | None => break,
        }
    }
    // Oldest first.
    large.reverse();
    Ok(large)
}

fn size_of(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum()
}

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}
