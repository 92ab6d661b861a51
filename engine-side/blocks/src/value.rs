//! What a far level keeps of a block, and the check of what comes back.
//!
//! | bytes | what |
//! | --- | --- |
//! | block | the block |
//! | with validation: 4 for each token, and 32 | the block's own tokens; SHA-256 over the scope and all tokens up to the block's end |
//! | 4 | magic, `KVB1` |
//! | 4 | tokens of the block, little-endian |
//! | 8 | XXH3-64 of the XXH3-64 of the bytes before the magic, of their length, and of the magic and the tokens; numbers are little-endian, and both hashes are seeded with the XXH3-64 of the far key |
//!
//! The block and the proof are what a slot holds; the last 16 bytes are made when it is written, and come back beside the slot. The checksum finds what a storage system damages or mixes up; it is no signature.

use twox_hash::XxHash3_64;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 4] = *b"KVB1";
/// What stands behind the block and its proof.
pub(crate) const TAIL_BYTES: usize = 16;
const HISTORY_BYTES: usize = 32;

/// Where the parts of a value are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub block_tokens: usize,
    /// Bytes of the block itself.
    pub block: usize,
    /// Bytes of the proof: 0 without validation.
    pub proof: usize,
}

impl Shape {
    pub fn new(block_tokens: usize, block: usize, validation: bool) -> Self {
        Shape { block_tokens, block, proof: if validation { block_tokens * 4 + HISTORY_BYTES } else { 0 } }
    }

    /// Bytes of the block and its proof, and of a slot.
    pub fn slot(&self) -> usize {
        self.block + self.proof
    }

    /// The block in a slot.
    pub fn block<'a>(&self, slot: &'a [u8]) -> &'a [u8] {
        slot.get(..self.block).unwrap_or_default()
    }

    /// The proof in a slot.
    fn proof<'a>(&self, slot: &'a [u8]) -> &'a [u8] {
        slot.get(self.block..).unwrap_or_default()
    }

    /// Whether a slot holds the block that this proof is of. Without validation it does.
    pub fn proves(&self, slot: &[u8], proof: Option<&[u8]>) -> bool {
        proof.is_none_or(|proof| self.proof(slot) == proof)
    }

    /// The last bytes of the value of a slot.
    pub fn tail(&self, far_key: &[u8], slot: &[u8]) -> [u8; TAIL_BYTES] {
        let tokens = u32::try_from(self.block_tokens).unwrap_or(u32::MAX).to_le_bytes();
        let seed = xxh3_64(far_key);
        let (body, len) = (XxHash3_64::oneshot_with_seed(seed, slot), slot.len() as u64);
        let all = [&body.to_le_bytes()[..], &len.to_le_bytes(), &MAGIC, &tokens].concat();
        let check = xxh3_64_with_seed(&all, seed).to_le_bytes();
        let mut tail = [0; TAIL_BYTES];
        tail.iter_mut().zip(MAGIC.into_iter().chain(tokens).chain(check)).for_each(|(to, from)| *to = from);
        tail
    }

    /// Whether `len` bytes that came back in a slot and behind it are a value of this key.
    pub fn is_sound(&self, far_key: &[u8], slot: &[u8], tail: &[u8; TAIL_BYTES], len: usize) -> bool {
        len == slot.len() + TAIL_BYTES && *tail == self.tail(far_key, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands behind a block in a far level. Computed with Python's xxhash, not with this code; 1000 bytes are hashed in another
    /// way than few.
    #[test]
    fn golden_tail() {
        for (tokens, block, validation, tail) in [
            (2, 10, false, "4b56423102000000f66d7befbfb9a22f"),
            (2, 10, true, "4b56423102000000fe9b562242ec93de"),
            (16, 1000, false, "4b56423110000000f2516ffa041e7a8f"),
        ] {
            let shape = Shape::new(tokens, block, validation);
            let slot: Vec<u8> = (0..shape.slot()).map(|n| (n * 7) as u8).collect();
            let found = hex::encode(shape.tail(b"golden key", &slot));
            assert_eq!(found, tail, "{block} bytes, validation: {validation}");
        }
    }

    #[test]
    fn every_byte_of_a_value_and_its_key_are_checked() {
        let shape = Shape::new(2, 10, true);
        let mut slot: Vec<u8> = (0..shape.slot() as u8).collect();
        let (mut tail, len) = (shape.tail(b"key", &slot), slot.len() + TAIL_BYTES);
        assert!(shape.is_sound(b"key", &slot, &tail, len));
        assert!(!shape.is_sound(b"kez", &slot, &tail, len));
        assert!(!shape.is_sound(b"key", &slot, &tail, len - 1));
        for at in 0..slot.len() {
            slot[at] ^= 1;
            assert!(!shape.is_sound(b"key", &slot, &tail, len), "byte {at}");
            slot[at] ^= 1;
        }
        for at in 0..TAIL_BYTES {
            tail[at] ^= 1;
            assert!(!shape.is_sound(b"key", &slot, &tail, len), "byte {at} of the tail");
            tail[at] ^= 1;
        }
        assert!(shape.proves(&slot, Some(&slot[10..50])) && !shape.proves(&slot, Some(&[0; 40])));
    }
}
