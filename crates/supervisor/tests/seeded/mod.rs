//! Randomness that can be had again: a small generator, and the seeds to begin with.
//!
//! Our own and not a crate, because the mind is to depend on nothing, for its tests neither. Owns:
//! what `KENNEL_SEED` means. A failure names its seed; with that in `KENNEL_SEED` it alone is run.

/// SplitMix64: every seed is a good one, and its neighbour gives something else.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The same numbers for the same seed, for ever.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of them; there is one.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// So many seeds, or the one that somebody wants to see again.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("KENNEL_SEED") {
        Ok(seed) => vec![seed.parse().expect("KENNEL_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}
