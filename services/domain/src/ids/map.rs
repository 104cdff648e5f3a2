//! Maps by reservation, and by what an operator named. An event looks up several of them, and a keyed hash would be most
//! of what a look-up costs. A reservation's id is random already and made by Weir, never taken from a client; tenants,
//! teams, keys and models are named by the catalog: so nobody outside can choose ones that collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::ReservationId;

/// A map by what no client chooses.
pub type OwnMap<K, V> = HashMap<K, V, BuildHasherDefault<OwnBits>>;
/// A map whose keys hash themselves.
pub type ReservationMap<V> = OwnMap<ReservationId, V>;

/// Takes a key word by word and spreads each over all bits: tables take some from both ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnBits(u64);

/// Odd, with bits set everywhere: 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for OwnBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, word: u64) {
        let spread = u128::from(self.0 ^ word) * u128::from(SPREAD);
        let [low, high] = [spread, spread >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0));
        self.0 = low ^ high;
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    fn hash(of: impl Hash) -> u64 {
        BuildHasherDefault::<OwnBits>::default().hash_one(of)
    }

    #[test]
    fn ids_that_differ_in_any_one_bit_of_their_random_half_differ_at_both_ends_of_the_hash() {
        let ids = (0..62).map(|bit| ReservationId::from_bytes((1u128 << bit).to_be_bytes()));
        let hashes: Vec<u64> = ids.map(hash).collect();
        for ends in [|hash: &u64| hash >> 48, |hash: &u64| hash & 0xffff] {
            assert!(hashes.iter().map(ends).collect::<HashSet<_>>().len() > 55);
        }
    }

    #[test]
    fn a_map_finds_what_it_was_given() {
        let mut map = ReservationMap::default();
        for n in 0..10_000u128 {
            map.insert(ReservationId::from_bytes(n.to_be_bytes()), n);
        }
        assert!((0..10_000).all(|n: u128| map.get(&ReservationId::from_bytes(n.to_be_bytes())) == Some(&n)));
        assert_ne!(hash("one text"), hash("another"));
    }
}
