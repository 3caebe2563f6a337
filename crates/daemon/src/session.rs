//! Which session the client of a run works in, and who else does.
//!
//! Owns: the session of a run, by what it said and by its command line; and that two live runs in
//! one session do not go unnoticed. Both are read from the same file, in which nobody can tell
//! whose a response is: what either uses counts for both, so that each is stopped too early rather
//! than too late. Enforces nothing.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kennel_transcript::Format;
use kennel_transcript::files::{Chosen, Files, chosen_session, files};

use crate::live::Live;
use crate::meter::Account;
use crate::store::kept::KeptRun;

/// The session of an agent, by what it said, else by its command line.
pub(crate) fn session_of(run: &KeptRun) -> Option<String> {
    let account = run.usage_now().and_then(|json| serde_json::from_str::<Account>(&json).ok());
    let said = account.and_then(|account| account.session);
    said.or_else(|| named(chosen(run)?))
}

/// The session an agent was told to go on with.
pub(crate) fn resumed_session(run: &KeptRun) -> Option<String> {
    match chosen(run)? {
        Chosen::Resumed(id) | Chosen::Forked { from: id, id: _ } => id,
        Chosen::Already(_) | Chosen::Insert { .. } | Chosen::Client(_) => None,
    }
}

/// The session a command line names as the one to work in.
pub(crate) fn named(chosen: Chosen) -> Option<String> {
    match chosen {
        Chosen::Already(id) => Some(id),
        Chosen::Resumed(id) | Chosen::Forked { from: _, id } => id,
        Chosen::Insert { .. } | Chosen::Client(_) => None,
    }
}

/// The live run whose client works in this session, if what is used there is counted by a file of
/// the session's.
pub(crate) fn holder(live: &Live, format: Format, session: &str) -> Option<Arc<str>> {
    let lookup = |_: &str| None;
    if matches!(files(format, &lookup, Path::new("/"), session, &[]), Files::None(_)) {
        return None;
    }
    let is_it = |run: &KeptRun| {
        run.ended.is_none()
            && format_of(run) == Some(format)
            && session_of(run).as_deref() == Some(session)
    };
    live.all().into_iter().find(is_it).map(|run| run.id)
}

fn chosen(run: &KeptRun) -> Option<Chosen> {
    let words = run.request.command.iter().map(|word| word.0.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    Some(chosen_session(format_of(run)?, &words))
}

fn format_of(run: &KeptRun) -> Option<Format> {
    match run.request.format.as_deref() {
        Some(said) => said.parse().ok(),
        None => Format::guess(Path::new(&run.request.command.first()?.0).file_name()?.to_str()?),
    }
}

/// Which files live runs are counted by, and who shares one.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    files: HashMap<Arc<str>, Vec<String>>,
    with: HashMap<Arc<str>, Arc<str>>,
}

impl Shares {
    /// What a live run is counted by now. Returns who was found to share with another by that, and
    /// has to be told.
    pub(crate) fn note(&mut self, run: &str, account: &str) -> Vec<Arc<str>> {
        let Ok(account) = serde_json::from_str::<Account>(account) else { return Vec::new() };
        let own = account.followed.into_iter().filter(|file| !file.subagent && file.is_there());
        let own: Vec<String> = own.map(|file| file.path).collect();
        if self.files.get(run) == Some(&own) {
            return Vec::new();
        }
        let run: Arc<str> = run.into();
        let shares = |(id, files): (&Arc<str>, &Vec<String>)| {
            (*id != run && files.iter().any(|file| own.contains(file))).then(|| id.clone())
        };
        let others: Vec<Arc<str>> = self.files.iter().filter_map(shares).collect();
        self.files.insert(run.clone(), own);
        let mut told = Vec::new();
        for other in others {
            for (one, another) in [(&run, &other), (&other, &run)] {
                if !self.with.contains_key(one) {
                    self.with.insert(one.clone(), another.clone());
                    told.push(one.clone());
                }
            }
        }
        told
    }

    /// Who works, or worked, in a live run's session beside it.
    pub(crate) fn with(&self, run: &str) -> Option<&Arc<str>> {
        self.with.get(run)
    }

    /// A run does not live any more. Who shared with it has been told so, and stays told.
    pub(crate) fn forget(&mut self, run: &str) {
        self.files.remove(run);
        self.with.remove(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::FileAccount;

    fn account(files: &[(&str, &str, bool)]) -> String {
        let file = |(path, state, subagent): &(&str, &str, bool)| FileAccount {
            path: (*path).to_owned(),
            state: (*state).to_owned(),
            subagent: *subagent,
        };
        let followed = files.iter().map(file).collect();
        serde_json::to_string(&Account { followed, ..Account::default() }).unwrap()
    }

    #[test]
    fn two_that_are_counted_by_one_file_are_told_of_each_other_once() {
        let mut shares = Shares::default();
        let (one, two) =
            (account(&[("/s", "following", false)]), account(&[("/s", "rotated", false)]));
        assert_eq!(shares.note("a", &one), Vec::<Arc<str>>::new());
        assert_eq!(
            shares.note("x", &account(&[("/t", "following", false)])),
            Vec::<Arc<str>>::new()
        );
        // Where a file is expected, and what sub-agents have, says nothing.
        let others = account(&[("/s", "late", false), ("/s", "following", true)]);
        assert_eq!(shares.note("y", &others), Vec::<Arc<str>>::new());
        assert_eq!(shares.note("b", &two), ["b", "a"].map(Arc::from));
        assert_eq!(shares.note("b", &two), Vec::<Arc<str>>::new());
        assert_eq!(shares.note("a", "not an account"), Vec::<Arc<str>>::new());
        assert_eq!(shares.with("a").map(|run| &**run), Some("b"));
        // A third is news to nobody but itself, and the dead share nothing.
        assert_eq!(shares.note("c", &one), [Arc::from("c")]);
        for run in ["a", "b", "c"] {
            shares.forget(run);
        }
        assert_eq!(shares.note("d", &one), Vec::<Arc<str>>::new());
        assert!(shares.with("x").is_none() && shares.with("a").is_none());
    }
}
