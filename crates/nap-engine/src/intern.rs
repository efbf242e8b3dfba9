//! Interning: equal items get equal indices, in the order of their first appearance.
//!
//! A hash map would serve, but its order is random and must not reach a plan. Items are found by a
//! digest of their content in an ordered map, and compared in full where digests are equal.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Digest of an item, the same in every process.
pub(crate) fn digest<T: Hash + ?Sized>(item: &T) -> u64 {
    let mut mixer = Mixer(0);
    item.hash(&mut mixer);
    mixer.finish()
}

/// A fast hash function without defence against chosen collisions: items with equal digests are
/// always compared in full.
pub(crate) struct Mixer(pub(crate) u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.mix(chunk.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            self.mix(rest.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.mix(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.mix(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(u64::try_from(number).unwrap_or(u64::MAX));
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    }
}

/// Distinct items, in the order of their first appearance.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    pub(crate) items: Vec<T>,
    /// Index of each item by its digest and a counter for items that share a digest.
    indices: BTreeMap<(u64, u32), usize>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { items: Vec::new(), indices: BTreeMap::new() }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Index of an item, a new one at its first appearance.
    pub(crate) fn intern(&mut self, item: T) -> usize {
        let digest = digest(&item);
        let mut collisions = 0;
        while let Some(index) = self.indices.get(&(digest, collisions)) {
            if self.items[*index] == item {
                return *index;
            }
            collisions += 1;
        }
        let index = self.items.len();
        self.items.push(item);
        self.indices.insert((digest, collisions), index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_items_share_an_index() {
        let mut interner = Interner::default();
        let indices = ["a", "b", "a", "a longer text than eight bytes", "b"]
            .map(|text| interner.intern(text));
        assert_eq!(indices, [0, 1, 0, 2, 1]);
        assert_eq!(interner.items, ["a", "b", "a longer text than eight bytes"]);
    }

    #[test]
    fn items_with_one_digest_are_told_apart() {
        #[derive(PartialEq, Eq)]
        struct Same(u8);
        impl Hash for Same {
            fn hash<H: Hasher>(&self, _: &mut H) {}
        }
        let mut interner = Interner::default();
        let indices = [1, 2, 1, 2].map(|number| interner.intern(Same(number)));
        assert_eq!(indices, [0, 1, 0, 1]);
    }
}
