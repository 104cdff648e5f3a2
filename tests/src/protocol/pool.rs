//! Values kept once: equal values have the same number, so that a state is small and comparing is cheap.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// The number of a kept value.
pub(super) type Id = u32;

#[derive(Debug)]
pub(super) struct Pool<T> {
    values: Vec<Rc<T>>,
    /// What tells values apart, as bytes: the domain's types compare, but have no hash.
    known: HashMap<Vec<u8>, Id>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { values: Vec::new(), known: HashMap::new() }
    }
}

impl<T> Pool<T> {
    pub(super) fn keep(&mut self, name: Vec<u8>, value: T) -> Id {
        let next = Id::try_from(self.values.len()).expect("fewer values than numbers");
        let id = *self.known.entry(name).or_insert(next);
        if id == next {
            self.values.push(Rc::new(value));
        }
        id
    }

    pub(super) fn get(&self, id: Id) -> Rc<T> {
        Rc::clone(&self.values[id as usize])
    }

    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }
}

impl<T: std::fmt::Debug> Pool<T> {
    /// Keeps a value that its `Debug` form describes in full.
    pub(super) fn keep_shown(&mut self, value: T) -> Id {
        self.keep(format!("{value:?}").into_bytes(), value)
    }
}

/// A map whose keys are a few small numbers of our own: nobody chooses them to collide, and they are looked up millions
/// of times.
pub(super) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// A multiplication for each word of a key.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Quick(u64);

impl Quick {
    const fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}
