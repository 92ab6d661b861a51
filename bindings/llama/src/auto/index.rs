//! Names of states by their tokens, and the records that lead from a beginning to the states that have it.
//!
//! A state of so many tokens is a record of a state (`record`) under [`state_name`]. For each of its [`lengths`] (the first 64 tokens, the
//! first 128, and each whole block of [`BLOCK`]) there is an index record under [`index_name`], which lists up to [`MOST`] states. A prompt
//! that shares a beginning with a state finds it by the index of the last such length that they share.
//!
//! The index is a hint: the record of a state has its tokens, and they are compared before it is used.
//!
//! ```text
//! magic kvlindex                        8    version 1, entries   4, 4
//! for each entry, the newest first: tokens 4, hash 16
//! XXH3-128 of all before               16
//! ```

use twox_hash::XxHash3_128;

use crate::engine::Token;

/// Tokens of a block.
pub const BLOCK: usize = 256;
/// Beginnings of less than a block that have index records too.
const SHORT: [usize; 2] = [SHORTEST, 128];
/// Tokens of the shortest state that is stored.
pub const SHORTEST: usize = 64;
/// States that one index record lists.
pub const MOST: usize = 32;
const MAGIC: &[u8; 8] = b"kvlindex";
const VERSION: u32 = 1;
const ENTRY_BYTES: usize = 20;

/// XXH3-128 of tokens, 4 bytes each, little-endian; 16 bytes, big-endian.
pub type Hash = [u8; 16];

/// A state that an index record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedState {
    pub tokens: u32,
    pub hash: Hash,
}

/// The lengths of the beginnings of so many tokens that have index records; they ascend.
pub fn lengths(tokens: usize) -> Vec<usize> {
    let blocks = (1..=tokens / BLOCK).map(|block| block * BLOCK);
    SHORT.into_iter().filter(|short| *short <= tokens).chain(blocks).collect()
}

/// The lengths of the beginnings of so many tokens whose index records list the state of all of them, where the first `indexed` are in a state
/// that is listed already: those behind it. The last one below its end has it always, because a prompt that goes on behind the state, or
/// leaves it before its end, asks there.
pub fn listed(tokens: usize, indexed: usize) -> Vec<usize> {
    let mut lengths = lengths(tokens);
    let last = lengths.iter().rev().find(|length| **length < tokens).copied().unwrap_or(0);
    lengths.retain(|length| *length > indexed || *length >= last);
    lengths
}

/// The hash of the first so many tokens, for each of these numbers, which ascend.
pub fn hashes(tokens: &[Token], lengths: impl IntoIterator<Item = usize>) -> Vec<Hash> {
    let mut hash = XxHash3_128::new();
    let mut done = 0;
    let mut bytes = Vec::new();
    lengths
        .into_iter()
        .map(|length| {
            bytes.clear();
            bytes.extend(tokens.get(done..length).unwrap_or_default().iter().flat_map(|token| token.to_le_bytes()));
            hash.write(&bytes);
            done = length.max(done);
            hash.finish_128().to_be_bytes()
        })
        .collect()
}

/// The hash of all tokens.
pub fn hash(tokens: &[Token]) -> Hash {
    hashes(tokens, [tokens.len()]).pop().unwrap_or_default()
}

fn name(kind: &str, key: &[u8; 32], tokens: usize, hash: &Hash) -> String {
    let key = key.get(..16).unwrap_or_default();
    format!("{kind}@{}-{tokens}-{}", hex::encode(key), hex::encode(hash))
}

/// The manifest of the state of these tokens.
pub fn state_name(key: &[u8; 32], tokens: usize, hash: &Hash) -> String {
    name("llama-prefix", key, tokens, hash)
}

/// The manifest of the index of a beginning that has one of the [`lengths`].
pub fn index_name(key: &[u8; 32], tokens: usize, hash: &Hash) -> String {
    name("llama-index", key, tokens, hash)
}

/// The bytes of an index record.
pub fn encode(entries: &[IndexedState]) -> Vec<u8> {
    let entries = entries.get(..MOST).unwrap_or(entries);
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((entries.len() as u32).to_le_bytes());
    for IndexedState { tokens, hash } in entries {
        out.extend(tokens.to_le_bytes());
        out.extend(hash);
    }
    out.extend(XxHash3_128::oneshot(&out).to_le_bytes());
    out
}

/// Read an index record. `None`: it is none, or damaged.
pub fn decode(bytes: &[u8]) -> Option<Vec<IndexedState>> {
    let (body, seal) = bytes.split_last_chunk::<16>()?;
    if XxHash3_128::oneshot(body).to_le_bytes() != *seal {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let (entries, left) = rest.as_chunks::<ENTRY_BYTES>();
    if count > MOST || entries.len() != count || !left.is_empty() {
        return None;
    }
    let entry = |bytes: &[u8; ENTRY_BYTES]| {
        let (tokens, hash) = bytes.split_first_chunk::<4>()?;
        Some(IndexedState { tokens: u32::from_le_bytes(*tokens), hash: hash.try_into().ok()? })
    };
    entries.iter().map(entry).collect()
}

/// An index record with one more state, which comes first.
pub fn with(entries: Vec<IndexedState>, entry: IndexedState) -> Vec<IndexedState> {
    std::iter::once(entry).chain(entries.into_iter().filter(|other| *other != entry)).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computed with Python's xxhash, not with this code.
    #[test]
    fn golden_names_of_prefixes() {
        let key = std::array::from_fn(|n| n as u8);
        let tokens: Vec<Token> = (0..300).collect();
        let found = hashes(&tokens, [256, 300]);
        assert_eq!(hex::encode(found[0]), "c27a3ed81d535ff0d12ba3ba3964c7ed");
        assert_eq!(
            state_name(&key, 300, &found[1]),
            "llama-prefix@000102030405060708090a0b0c0d0e0f-300-593fc0c02590b7909c65cca78bf608b0"
        );
        assert_eq!(
            index_name(&key, 256, &found[0]),
            "llama-index@000102030405060708090a0b0c0d0e0f-256-c27a3ed81d535ff0d12ba3ba3964c7ed"
        );
        assert_eq!(hash(&tokens), found[1]);
    }

    #[test]
    fn golden_index_record() {
        let entries = [IndexedState { tokens: 300, hash: [7; 16] }, IndexedState { tokens: 256, hash: [9; 16] }];
        let bytes = encode(&entries);
        assert_eq!(
            hex::encode(&bytes),
            "6b766c696e64657801000000020000002c0100000707070707070707070707070707070700010000090909090909090909090909090909095aa2df5d2ca45c3eabe5a07bdc2a081c"
        );
        assert_eq!(decode(&bytes).unwrap(), entries);
    }

    #[test]
    fn beginnings_with_an_index_are_dense_where_prompts_are_short() {
        assert_eq!(lengths(63), [0_usize; 0]);
        assert_eq!(lengths(255), [64, 128]);
        assert_eq!(lengths(800), [64, 128, 256, 512, 768]);
    }

    #[test]
    fn a_state_is_listed_where_prompts_that_share_it_ask() {
        assert_eq!(listed(800, 0), [64, 128, 256, 512, 768]);
        assert_eq!(listed(800, 600), [768]);
        assert_eq!(listed(760, 600), [512], "of it, no length is new");
        assert_eq!(listed(768, 512), [512, 768], "prompts that leave it before its end ask below it");
        assert_eq!(listed(100, 90), [64]);
        assert_eq!(listed(64, 0), [64]);
        assert_eq!(listed(63, 0), [0_usize; 0]);
    }

    #[test]
    fn the_newest_states_are_listed_once() {
        let entry = |tokens| IndexedState { tokens, hash: [tokens as u8; 16] };
        let mut entries = Vec::new();
        for tokens in 0..100 {
            entries = with(entries, entry(tokens));
        }
        assert_eq!(entries.len(), MOST);
        assert_eq!(entries[0], entry(99));
        assert_eq!(with(entries.clone(), entries[3])[..2], [entries[3], entries[0]]);
        assert_eq!(decode(&encode(&entries)).unwrap(), entries);
    }

    proptest! {
        #[test]
        fn damaged_records_are_none(at in 0..52_usize, bit in 0..8_u32, cut in 0..52_usize, noise: Vec<u8>) {
            let mut bytes = encode(&[IndexedState { tokens: 300, hash: [7; 16] }]);
            prop_assert_eq!(bytes.len(), 52);
            prop_assert!(decode(&bytes[..cut]).is_none());
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_none());
            prop_assert!(decode(&noise).is_none());
        }
    }
}
