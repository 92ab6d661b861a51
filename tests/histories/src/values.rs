//! What is stored, and under which keys. Few keys, so that processes meet; each value is stored once in a history, but for the contents of
//! chunks whose keys are their hashes.

use xxhash_rust::xxh3::xxh3_64;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

pub const MANIFESTS: u64 = 6;
/// Chunks whose keys are the hashes of their contents, and others.
pub const CONTENTS: u64 = 10;
pub const OTHERS: u64 = 6;

/// A key of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Manifest(u64),
    Content(u64),
    Other(u64),
}

impl Key {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Key> {
        let manifests = (0..MANIFESTS).map(Key::Manifest);
        manifests.chain((0..CONTENTS).map(Key::Content)).chain((0..OTHERS).map(Key::Other))
    }

    /// In a record.
    pub fn name(self) -> String {
        match self {
            Key::Manifest(number) => format!("m/{number}"),
            Key::Content(number) => format!("c/{number}"),
            Key::Other(number) => format!("w/{number}"),
        }
    }

    /// Of a chunk, in the store.
    pub fn hash(self) -> Vec<u8> {
        match self {
            Key::Content(number) => xxh3_64(&content(number)).to_be_bytes().to_vec(),
            other => format!("histories {:>6}", other.name()).into_bytes(),
        }
    }
}

/// The bytes of a chunk whose key is their hash.
pub fn content(number: u64) -> Vec<u8> {
    let length = match number % 5 {
        0..=2 => 100 + number * 10,
        3 => 5_000 + number,
        _ => 90_000 + number,
    };
    bytes(Random(number.wrapping_add(1).wrapping_mul(GOLDEN)), length)
}

/// A value that no other call of any process stores: little mostly, and what backends send in another way than that.
pub fn value(process: u32, number: u64, random: &mut Random) -> Vec<u8> {
    let length = match random.below(20) {
        0..=9 => 24 + random.below(200),
        10..=17 => 4_000 + random.below(4_000),
        18 => 100_000,
        _ => 400_000,
    };
    bytes(Random((u64::from(process) << 40 | number).wrapping_mul(GOLDEN) ^ GOLDEN), length)
}

/// What nobody reads.
pub fn filler(number: u64, length: u64) -> Vec<u8> {
    bytes(Random(number.wrapping_mul(GOLDEN)), length)
}

fn bytes(mut random: Random, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while (bytes.len() as u64) < length {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// What a record says of bytes.
pub fn digest(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_values_are_alike_and_no_two_keys() {
        let mut random = Random(1);
        let values: HashSet<u64> = (1..9)
            .flat_map(|process| (0..200).map(move |number| (process, number)))
            .map(|(process, number)| digest(&value(process, number, &mut random)))
            .chain((0..CONTENTS).map(|number| digest(&content(number))))
            .collect();
        assert_eq!(values.len(), 8 * 200 + CONTENTS as usize);
        let hashes: HashSet<Vec<u8>> = Key::all().map(Key::hash).collect();
        assert_eq!(hashes.len() as u64, MANIFESTS + CONTENTS + OTHERS);
    }
}
