//! Randomness that a seed repeats.

/// SplitMix64: enough for choices, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly in `0..below`, as far as a test can tell.
    pub const fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).expect("a list's length fits")]
    }
}

/// `WEIR_TEST_SEED`, as `make test-long` sets it, or else always the same.
#[must_use]
pub fn seed() -> u64 {
    number("WEIR_TEST_SEED").unwrap_or(20_261_129)
}

/// A number in the environment.
#[must_use]
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable} is `{text}`: {error}")))
}
