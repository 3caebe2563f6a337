//! A memory of the last few things, by name: the newest stay, the oldest are forgotten.
//!
//! Owns the bound on what a tally remembers. Names are kept as hashes, so that a name of any length
//! costs the same; at this many names two of them share one by chance about once in 10^12 runs.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How many names are remembered. What repeats a response repeats it within seconds: the blocks of
/// one answer come together, and a file trails standard output by one write. In that time a run
/// with a hundred sub-agents at once has some hundred responses; this is many times that, and all
/// tables of a tally together stay below 1 MiB. What is forgotten and then repeated is counted
/// twice, so a limit can only bite early.
pub(crate) const MAX_REMEMBERED: usize = 2048;

/// The last things, by name.
#[derive(Clone, Debug)]
pub(crate) struct Recent<V> {
    values: HashMap<u64, V>,
    order: VecDeque<u64>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Recent<V> {
    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut V> {
        self.values.get_mut(&name)
    }

    pub(crate) fn get(&self, name: u64) -> Option<&V> {
        self.values.get(&name)
    }

    /// Remembers something new; gives back what had to be forgotten for it.
    pub(crate) fn insert(&mut self, name: u64, value: V) -> Option<V> {
        if self.values.insert(name, value).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() <= MAX_REMEMBERED {
            return None;
        }
        self.order.pop_front().and_then(|oldest| self.values.remove(&oldest))
    }
}

/// A name as it is remembered.
pub(crate) fn name_of(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_the_oldest_are_given_back() {
        let mut recent = Recent::default();
        for n in 0..MAX_REMEMBERED as u64 {
            assert_eq!(recent.insert(n, n), None);
        }
        assert_eq!(recent.insert(3, 33), None, "a known name needs no room");
        assert_eq!(recent.insert(u64::MAX, 7), Some(0));
        assert_eq!(
            (recent.get(0), recent.get(3), recent.get(u64::MAX)),
            (None, Some(&33), Some(&7))
        );
        assert_eq!(recent.values.len(), MAX_REMEMBERED);
    }
}
