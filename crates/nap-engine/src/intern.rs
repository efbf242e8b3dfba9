//! Equal things get equal numbers, fast and in the same way on every machine.
//!
//! A hash map would do, but its order is random; so things are found by a digest of their content
//! in an ordered map, and compared in full only where digests are equal.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// A digest that depends on the content alone.
pub(crate) fn digest<T: Hash + ?Sized>(thing: &T) -> u64 {
    let mut mixer = Mixer(0);
    thing.hash(&mut mixer);
    mixer.finish()
}

/// A quick hash function. Nobody gains anything by making digests collide: equals are always
/// compared in full.
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

/// Things with their numbers, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    pub(crate) items: Vec<T>,
    /// By digest, and a counter for those that share one.
    numbers: BTreeMap<(u64, u32), usize>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { items: Vec::new(), numbers: BTreeMap::new() }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// The number of a thing, a new one if it was not seen yet.
    pub(crate) fn number(&mut self, thing: T) -> usize {
        let digest = digest(&thing);
        let mut place = 0;
        while let Some(number) = self.numbers.get(&(digest, place)) {
            if self.items[*number] == thing {
                return *number;
            }
            place += 1;
        }
        let number = self.items.len();
        self.items.push(thing);
        self.numbers.insert((digest, place), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_share_a_number() {
        let mut interner = Interner::default();
        let numbers = ["a", "b", "a", "a longer text than eight bytes", "b"]
            .map(|text| interner.number(text));
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        assert_eq!(interner.items, ["a", "b", "a longer text than eight bytes"]);
    }

    #[test]
    fn things_with_one_digest_are_told_apart() {
        #[derive(PartialEq, Eq)]
        struct Same(u8);
        impl Hash for Same {
            fn hash<H: Hasher>(&self, _: &mut H) {}
        }
        let mut interner = Interner::default();
        let numbers = [1, 2, 1, 2].map(|number| interner.number(Same(number)));
        assert_eq!(numbers, [0, 1, 0, 1]);
    }
}
