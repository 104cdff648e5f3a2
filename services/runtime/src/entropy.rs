//! Randomness as an argument, and the ids made from it.
//!
//! The operating system is asked for a buffer at a time and per thread: a system call for each id would cost ten times
//! the id. Bytes are wiped from the buffer as they are handed out, so that a core dump holds no id's past.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_domain::ids::ReservationId;

/// A source of random bytes.
pub trait Entropy: Send + Sync + Debug {
    /// Fills `bytes`. Never returns without having done so.
    fn fill(&self, bytes: &mut [u8]);
}

pub type SharedEntropy = Arc<dyn Entropy>;

/// A reservation id that no other call, process or region makes (I3): a UUIDv7, 48 bits of `now_ms` and 74 random bits.
#[must_use]
pub fn new_reservation_id(entropy: &dyn Entropy, now_ms: i64) -> ReservationId {
    let mut random = [0; 10];
    entropy.fill(&mut random);
    let millis = u64::try_from(now_ms).unwrap_or(0);
    ReservationId::new(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// An even draw from `0..=max_ms`, for backoff and for spreading periodic work.
#[must_use]
pub fn jitter_ms(entropy: &dyn Entropy, max_ms: u64) -> u64 {
    let mut random = [0; 8];
    entropy.fill(&mut random);
    // A 128-bit product instead of a remainder: even to within 2^-64 for any range, without a loop.
    let scaled = u128::from(u64::from_le_bytes(random)) * (u128::from(max_ms) + 1);
    u64::try_from(scaled >> 64).unwrap_or(max_ms)
}

/// 4 KiB make some 250 ids: the system call vanishes in the mean, and a thread's buffer stays one page.
const BUFFER_BYTES: usize = 4096;

/// Requests above this size go to the system directly instead of through the buffer.
const LARGEST_BUFFERED_BYTES: usize = 256;

struct Buffer {
    bytes: [u8; BUFFER_BYTES],
    used: usize,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { bytes: [0; BUFFER_BYTES], used: BUFFER_BYTES }) };
}

/// The operating system's generator (`getrandom(2)`), buffered per thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsEntropy;

impl OsEntropy {
    #[must_use]
    pub fn shared() -> SharedEntropy {
        Arc::new(Self)
    }
}

impl Entropy for OsEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > LARGEST_BUFFERED_BYTES {
            return ask_system(bytes);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.used + bytes.len() > BUFFER_BYTES {
                ask_system(&mut buffer.bytes);
                buffer.used = 0;
            }
            let taken = &mut buffer.bytes[buffer.used..buffer.used + bytes.len()];
            bytes.copy_from_slice(taken);
            taken.fill(0);
            buffer.used += bytes.len();
        });
    }
}

fn ask_system(bytes: &mut [u8]) {
    if let Err(error) = getrandom::fill(bytes) {
        #[expect(clippy::panic, reason = "a predictable id or key is worse than a task that ends")]
        {
            panic!("the operating system gave no random bytes: {error}");
        }
    }
}

/// The same bytes for the same seed: for tests, never for ids or keys that leave the process. SplitMix64, by
/// Sebastiano Vigna, in the public domain.
#[derive(Debug)]
pub struct SeededEntropy {
    state: AtomicU64,
}

impl SeededEntropy {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    #[must_use]
    pub fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_version_7_sorted_by_time_and_never_repeat() {
        let ids: Vec<_> = (0..10_000).map(|ms| new_reservation_id(&OsEntropy, 1_790_000_000_000 + ms)).collect();
        assert!(ids.is_sorted());
        assert!(ids.iter().all(|id| id.uuid().get_version_num() == 7));
        let same_moment: HashSet<_> = (0..10_000).map(|_| new_reservation_id(&OsEntropy, 5)).collect();
        assert_eq!(same_moment.len(), 10_000);
    }

    #[test]
    fn threads_do_not_share_a_buffer() {
        let draw = || (0..1_000).map(|_| new_reservation_id(&OsEntropy, 5)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();
        let ids: HashSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.len(), 4_000);
    }

    #[test]
    fn every_size_is_filled_to_the_last_byte() {
        for size in [1, 7, 255, 256, 257, 4096, 10_000] {
            let mut seen = vec![0_u8; size];
            // A byte that stays zero over 20 draws has a chance of 2^-160: it was not written.
            for _ in 0..20 {
                let mut bytes = vec![0; size];
                OsEntropy.fill(&mut bytes);
                seen.iter_mut().zip(&bytes).for_each(|(seen, byte)| *seen |= byte);
            }
            assert!(seen.iter().all(|byte| *byte != 0), "{size}");
        }
    }

    #[test]
    fn a_seed_repeats_and_another_seed_differs() {
        let draw = |seed| {
            let mut bytes = [0; 20];
            SeededEntropy::new(seed).fill(&mut bytes);
            bytes
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // The published first value of the generator for seed 0.
        assert_eq!(SeededEntropy::new(0).next_u64(), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn jitter_reaches_both_ends_and_never_beyond() {
        let entropy = SeededEntropy::new(1);
        let drawn: HashSet<_> = (0..1_000).map(|_| jitter_ms(&entropy, 5)).collect();
        assert_eq!(drawn, HashSet::from([0, 1, 2, 3, 4, 5]));
        assert_eq!(jitter_ms(&entropy, 0), 0);
        let _whole_range = jitter_ms(&entropy, u64::MAX);
    }
}
