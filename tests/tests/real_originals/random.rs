//! Random choices that are derived from a seed. The same seed always leads to the same choices, so the seed and the
//! number identify a case.

use std::env;

/// The variable with a seed that replaces the fixed seed.
const SEED: &str = "KUBELET_AUTHENTICATOR_ORIGINALS_SEED";

/// The seed of this run.
pub fn seed() -> u64 {
    env::var(SEED).map_or(2025, |seed| {
        seed.parse()
            .unwrap_or_else(|_| panic!("{SEED} is a number, and not {seed:?}"))
    })
}

/// The instructions to run the same cases again.
pub fn again() -> String {
    format!("{SEED}={}", seed())
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The random choices for one case.
    pub fn of_case(number: usize) -> Self {
        let mut seeded = Self(seed());
        let salt = seeded.next();
        Self(salt ^ u64::try_from(number).unwrap())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap();
        usize::try_from(self.next() % end).unwrap()
    }

    /// True once in `times` calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these values.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
