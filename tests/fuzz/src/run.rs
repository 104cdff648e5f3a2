//! The loop: the corpus as it is, then its relatives until the time is over.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use weir_runtime::entropy::{Entropy, OsEntropy};

use crate::corpus;
use crate::mutate::Mutator;
use crate::random::Random;

/// One target: its name, which is also its corpus's folder, and its format.
#[derive(Debug, Clone)]
pub struct Fuzz {
    pub name: &'static str,
    pub mutator: Mutator,
    /// Inputs beside the corpus on disk, such as golden files of other crates.
    pub seeds: Vec<Vec<u8>>,
}

/// Seconds that each target gets in CI.
const DEFAULT_SECONDS: u64 = 5;
/// Inputs kept for their shape in one run; beyond it new shapes are not followed.
const MOST_INPUTS: usize = 2_048;
/// No reader may take longer for inputs of this size, debug build and a busy machine included.
const MOST_TIME: Duration = Duration::from_secs(2);

/// What a target tells of an input: inputs of one shape are alike to the reader.
pub fn shape_of(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Fuzz {
    /// Calls `check` with the corpus and then with mutations, for `WEIR_FUZZ_SECONDS`. `check` panics where a promise is
    /// broken and returns the input's shape otherwise.
    ///
    /// # Panics
    /// Goes on with the panic of `check`, after it has printed how to repeat it; when an input takes too long; when the
    /// corpus cannot be read.
    pub fn run(&self, mut check: impl FnMut(&[u8], &mut Random) -> u64) {
        let mut inputs = match corpus::read(self.name) {
            Ok(inputs) => inputs,
            Err(error) => resume_unwind(Box::new(format!("the corpus of {} cannot be read: {error}", self.name))),
        };
        inputs.extend(self.seeds.iter().cloned());
        assert!(!inputs.is_empty(), "{} has no corpus", self.name);
        let mut shapes = HashSet::new();
        for (number, input) in inputs.iter().enumerate() {
            shapes.insert(self.round(&format!("corpus:{number}"), input, &mut Random::new(0), &mut check));
        }
        let (base, only) = chosen_seed();
        let until = Instant::now() + Duration::from_secs(seconds());
        let mut round = only.unwrap_or(0);
        // A repeated round mutates what the corpus held at the start; what the run had added by then came from rounds
        // of the same seed, so those are run first.
        let mut replayed = 0;
        while only.map_or_else(|| Instant::now() < until, |only| replayed <= only) {
            let number = if only.is_some() { replayed } else { round };
            let mut random = Random::new(base ^ number.wrapping_mul(0xd134_2543_de82_ef95));
            let first = random.below(inputs.len());
            let second = random.below(inputs.len());
            let input = self.mutator.mutate(&inputs[first], &inputs[second], &mut random);
            let shape = self.round(&format!("{base}:{number}"), &input, &mut random, &mut check);
            if shapes.insert(shape) && inputs.len() < MOST_INPUTS {
                inputs.push(input);
            }
            round += 1;
            replayed += 1;
        }
        println!("{}: seed {base}, {replayed} rounds, {} shapes", self.name, shapes.len());
    }

    fn round(
        &self,
        round: &str,
        input: &[u8],
        random: &mut Random,
        check: &mut impl FnMut(&[u8], &mut Random) -> u64,
    ) -> u64 {
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(input, random)));
        let took = started.elapsed();
        if outcome.is_err() || took > MOST_TIME {
            let kept = match corpus::keep_failure(self.name, round, input) {
                Ok(path) => path.display().to_string(),
                Err(error) => format!("nowhere ({error})"),
            };
            println!(
                "{}: round WEIR_FUZZ_SEED={round} failed after {took:?} on {} bytes, kept in {kept}",
                self.name,
                input.len()
            );
        }
        match outcome {
            Ok(shape) => {
                assert!(took <= MOST_TIME, "{} bytes took {took:?}", input.len());
                shape
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn seconds() -> u64 {
    std::env::var("WEIR_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_SECONDS)
}

/// The base of all rounds, and the last round to run when one is repeated: `WEIR_FUZZ_SEED=base` or `base:round`.
fn chosen_seed() -> (u64, Option<u64>) {
    let text = std::env::var("WEIR_FUZZ_SEED").unwrap_or_default();
    let (base, round) = text.split_once(':').map_or((text.as_str(), None), |(base, round)| (base, round.parse().ok()));
    let base = base.parse().unwrap_or_else(|_| {
        let mut bytes = [0; 8];
        OsEntropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    });
    (base, round)
}
