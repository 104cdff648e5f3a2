//! Making other bytes of bytes: the usual small damages, and words of the format that chance would never write.

use crate::random::Random;

/// Mutates inputs of one format.
#[derive(Debug, Clone)]
pub struct Mutator {
    /// What the format is made of: member names, line ends, numbers at the edges.
    pub words: &'static [&'static [u8]],
    /// Longer inputs are cut: a reader's bounds are tested by targets of their own.
    pub max_bytes: usize,
}

/// Most mutations of one round; few keep an input close to something that is read.
const MOST_STEPS: usize = 4;
/// How long a piece that is repeated, moved or removed may be.
const MOST_PIECE_BYTES: usize = 64;

impl Mutator {
    /// A relative of `input`; `other` may give pieces.
    #[must_use]
    pub fn mutate(&self, input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=random.below(MOST_STEPS) {
            self.step(&mut bytes, other, random);
        }
        bytes.truncate(self.max_bytes);
        bytes
    }

    fn step(&self, bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let at = random.below(bytes.len() + 1);
        let piece = |from: &[u8], random: &mut Random| {
            let start = random.below(from.len());
            let end = (start + 1 + random.below(MOST_PIECE_BYTES)).min(from.len());
            from[start..end].to_vec()
        };
        match random.below(10) {
            0 => flip(bytes, random),
            1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.byte();
                }
            }
            2 => bytes.insert(at, random.byte()),
            3 => {
                let end = (at + 1 + random.below(MOST_PIECE_BYTES)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            4 => insert(bytes, at, &piece(&bytes.clone(), random)),
            5 => insert(bytes, at, &piece(other, random)),
            6 => bytes.truncate(at),
            7 => {
                let tail = other[random.below(other.len() + 1)..].to_vec();
                bytes.truncate(at);
                bytes.extend(tail);
            }
            8 => {
                if let Some(word) = random.pick(self.words) {
                    insert(bytes, at, word);
                }
            }
            _ => self.replace_word(bytes, random),
        }
    }

    /// Puts one word of the format in another's place.
    fn replace_word(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let (Some(old), Some(new)) = (random.pick(self.words), random.pick(self.words)) else { return };
        let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(old)).take(64).collect();
        match random.pick(&places) {
            Some(at) => {
                bytes.splice(*at..*at + old.len(), new.iter().copied());
            }
            None => {
                let at = random.below(bytes.len() + 1);
                insert(bytes, at, new);
            }
        }
    }
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    let bit = random.below(8);
    let at = random.below(bytes.len());
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    bytes.splice(at..at, what.iter().copied());
}
