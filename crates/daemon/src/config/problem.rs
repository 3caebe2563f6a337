//! What is wrong with a configuration: where, which key, why, and what was probably meant. Owns the
//! wording of places and the search for the nearest name.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A name further away than this from every right one is none of them mistyped.
const MAX_DISTANCE: usize = 3;

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, from 1; none if it is the file as a whole.
    pub line: Option<usize>,
    /// The key it is about, with where it belongs: `agent.max_turns`.
    pub key: Option<String>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Problem {
    /// True if this says the same as another, or more.
    pub(super) fn is_about(&self, other: &Self) -> bool {
        let place = |problem: &Self| (problem.file.clone(), problem.line, problem.key.clone());
        place(self) == place(other) && self.message.starts_with(&other.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        match &self.key {
            Some(key) => write!(f, ": {key}: {}", self.message),
            None => write!(f, ": {}", self.message),
        }
    }
}

/// Collects what is wrong with one file.
#[derive(Debug)]
pub(super) struct Problems<'t> {
    file: &'t str,
    text: &'t str,
    found: Vec<Problem>,
}

impl<'t> Problems<'t> {
    pub(super) fn of(file: &'t str, text: &'t str) -> Self {
        Self { file, text, found: Vec::new() }
    }

    /// Notes one, at a place of the text.
    pub(super) fn at(&mut self, span: Range<usize>, key: &str, message: impl Into<String>) {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let key = (!key.is_empty()).then(|| key.to_owned());
        let (file, message) = (self.file.to_owned(), message.into());
        self.found.push(Problem { file, line: Some(line), key, message });
    }

    /// All of them, in the order of the file.
    pub(super) fn into_found(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|problem| problem.line);
        self.found
    }
}

/// The one of these names that was probably meant.
#[must_use]
pub fn nearest<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let bound = MAX_DISTANCE.min(word.chars().count().max(2) / 2);
    let near = names.iter().map(|name| (distance(word, name), *name));
    near.filter(|(far, _)| *far <= bound).min().map(|(_, name)| name)
}

/// How many letters have to be put in, taken out, exchanged or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1);
            least = least.min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_what_was_mistyped_and_nothing_far_away() {
        let names = ["max_turns", "max_tokens", "model", "wall", "idle", "pids"];
        for (word, meant) in [
            ("max_turn", Some("max_turns")),
            ("MAX_TURNS", Some("max_turns")),
            ("max_trusn", Some("max_turns")),
            ("modle", Some("model")),
            ("wal", Some("wall")),
            ("pid", Some("pids")),
            ("colour", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, &names), meant, "{word}");
        }
    }
}
