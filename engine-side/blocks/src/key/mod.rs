//! The keys of blocks: one for each, depending on every token up to the block's end.
//!
//! | builder | key of block n | work for a prompt |
//! | --- | --- | --- |
//! | RAW | SHA-256 of the token bytes up to the block's end, which is as good as the bytes themselves and fits a store's keys | linear |
//! | SIMPLE | the chosen hash of those bytes | linear; quadratic with FarmHash |
//! | ROLLING | the chosen hash over the key of block n - 1 and the bytes of block n's own tokens | linear |
//!
//! Tokens are hashed as 32-bit little-endian numbers. All but FarmHash begin with the scope (see [`crate::Spec`]), so keys of two
//! scopes differ; with FarmHash keys are AIBrix's own, bit for bit. In a far level the scope stands before each key as well.

mod farm;

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use farm::farm128;

/// The longest key.
const KEY_BYTES: usize = 32;
/// What names a scope, and stands before each key in a far level.
pub const SCOPE_BYTES: usize = 16;

/// The key of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// A key of at most 32 bytes.
    fn new<const BYTES: usize>(bytes: [u8; BYTES]) -> Self {
        let mut key = [0; KEY_BYTES];
        if let Some(head) = key.first_chunk_mut() {
            *head = bytes;
        }
        Key(key)
    }

    fn of(hash: u128) -> Self {
        Key::new(hash.to_be_bytes())
    }

    /// The key: 16 bytes, or 32 of SHA-256. Shorter ones are followed by zeros.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Another part, to spread keys over shards.
    pub(crate) fn spread(&self) -> usize {
        let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, ..] = self.0;
        usize::from(u16::from_le_bytes([a, b]))
    }

    /// A part of the key for tables in memory.
    pub fn fingerprint(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&hex::encode(self.0))
    }
}

/// How keys are built. See the table in this module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum KeyBuilder {
    /// The token bytes.
    #[serde(rename = "RAW")]
    Raw,
    /// A hash of the token bytes.
    #[serde(rename = "SIMPLE_HASH")]
    Simple,
    /// A hash over the block and its parent's key.
    #[default]
    #[serde(rename = "ROLLING_HASH")]
    Rolling,
}

/// What keys are hashed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum KeyHash {
    /// XXH3, 128 bits: fast. Who writes prompts can make two that collide; where that matters take `sha256`, or validation.
    #[default]
    #[serde(rename = "xxh3")]
    Xxh3,
    /// SHA-256.
    #[serde(rename = "sha256")]
    Sha256,
    /// FarmHash, 128 bits: the keys of AIBrix. Collisions can be made, as with XXH3.
    #[serde(rename = "farm128")]
    Farm128,
    /// XXH3 of which all but so many bits are zero, for tests of collisions. No config names it.
    #[doc(hidden)]
    #[serde(skip)]
    Weakened(u32),
}

impl KeyHash {
    /// The name that stands in a scope.
    pub(crate) fn name(self) -> String {
        match self {
            KeyHash::Xxh3 => "xxh3-128".to_owned(),
            KeyHash::Sha256 => "sha-256".to_owned(),
            KeyHash::Farm128 => "farm-128".to_owned(),
            KeyHash::Weakened(bits) => format!("xxh3-{bits}"),
        }
    }

    /// Bytes of a key.
    fn len(self) -> usize {
        if self == KeyHash::Sha256 { KEY_BYTES } else { KEY_BYTES / 2 }
    }
}

fn weakened(hash: u128, bits: u32) -> u128 {
    hash & !(u128::MAX >> bits.min(127))
}

/// Builds the keys of one scope.
#[derive(Clone, Debug)]
pub struct Keys {
    builder: KeyBuilder,
    hash: KeyHash,
    scope: [u8; SCOPE_BYTES],
    block_tokens: usize,
}

impl Keys {
    /// Keys of blocks of so many tokens, at least one. The scope is what prompts must have in common to share blocks;
    /// [`crate::Cache::keys`] has those of a cache.
    pub fn for_scope(builder: KeyBuilder, hash: KeyHash, scope: [u8; SCOPE_BYTES], block_tokens: usize) -> Self {
        Keys { builder, hash, scope, block_tokens: block_tokens.max(1) }
    }

    /// Bytes of a key that are not always zero.
    fn key_len(&self) -> usize {
        if self.builder == KeyBuilder::Raw { KEY_BYTES } else { self.hash.len() }
    }

    /// The key in a far level: the scope, then the key. 32 or 48 bytes.
    pub(crate) fn far(&self, key: &Key) -> Vec<u8> {
        let key = key.0.get(..self.key_len()).unwrap_or(&key.0);
        [self.scope.as_slice(), key].concat()
    }

    /// The keys of the whole blocks of `query`, which follows `prefix`. The prefix is a whole number of blocks.
    pub fn of(&self, prefix: &[i32], query: &[i32]) -> Vec<Key> {
        let mut keys = Vec::new();
        self.append(prefix, query, &mut keys);
        keys
    }

    /// As [`Keys::of`], behind the keys that are in `keys`: memory that is used again.
    pub fn append(&self, prefix: &[i32], query: &[i32], keys: &mut Vec<Key>) {
        keys.reserve(query.len() / self.block_tokens);
        match (self.builder, self.hash) {
            (KeyBuilder::Rolling, KeyHash::Farm128) => self.rolling_aibrix(prefix, query, keys),
            (KeyBuilder::Rolling, KeyHash::Xxh3) if self.block_tokens == 16 => self.rolling_16(prefix, query, keys),
            (KeyBuilder::Rolling, KeyHash::Xxh3) => {
                self.rolling(prefix, query, keys, |input| xxh3_128(input).to_le_bytes());
            }
            (KeyBuilder::Rolling, KeyHash::Sha256) => {
                self.rolling(prefix, query, keys, |input| Sha256::digest(input).into());
            }
            (KeyBuilder::Rolling, KeyHash::Weakened(bits)) => {
                self.rolling(prefix, query, keys, |input| weakened(xxh3_128(input), bits).to_be_bytes());
            }
            (KeyBuilder::Simple, KeyHash::Farm128) => {
                let mut bytes = le_bytes(prefix).into_owned();
                for block in query.chunks_exact(self.block_tokens) {
                    bytes.extend_from_slice(&le_bytes(block));
                    keys.push(Key::of(farm128(&bytes)));
                }
            }
            (KeyBuilder::Simple, KeyHash::Xxh3 | KeyHash::Weakened(_)) => {
                let mut state = Xxh3::new();
                state.update(&self.scope);
                state.update(&le_bytes(prefix));
                keys.extend(query.chunks_exact(self.block_tokens).map(|block| {
                    state.update(&le_bytes(block));
                    match self.hash {
                        KeyHash::Weakened(bits) => Key::of(weakened(state.digest128(), bits)),
                        _ => Key::of(state.digest128()),
                    }
                }));
            }
            (KeyBuilder::Raw, _) | (KeyBuilder::Simple, KeyHash::Sha256) => {
                let mut state = Sha256::new();
                state.update(self.scope);
                state.update(le_bytes(prefix));
                keys.extend(query.chunks_exact(self.block_tokens).map(|block| {
                    state.update(le_bytes(block));
                    Key(state.clone().finalize().into())
                }));
            }
        }
    }

    /// Each key is a hash of so many bytes over the parent's, or the scope, and the block's own tokens.
    fn rolling<const BYTES: usize>(
        &self,
        prefix: &[i32],
        query: &[i32],
        keys: &mut Vec<Key>,
        hash: impl Fn(&[u8]) -> [u8; BYTES],
    ) {
        let mut parent = self.first_parent();
        let mut input = vec![0; BYTES + self.block_tokens * 4];
        let mut roll = |block: &[i32]| {
            if let Some((head, own)) = input.split_first_chunk_mut() {
                *head = parent;
                own.copy_from_slice(&le_bytes(block));
            }
            parent = hash(&input);
            Key::new(parent)
        };
        for block in prefix.chunks_exact(self.block_tokens) {
            roll(block);
        }
        keys.extend(query.chunks_exact(self.block_tokens).map(roll));
    }

    /// [`Keys::rolling`] with XXH3 for blocks of 16 tokens: what has a length that the compiler knows stays in registers, which
    /// halves the time. So do keys that are written where they stay: the loop carries the parent as a number, and 16 bytes of each key
    /// are all that it stores.
    fn rolling_16(&self, prefix: &[i32], query: &[i32], keys: &mut Vec<Key>) {
        let roll = |parent: u128, block: &[i32; 16]| {
            let mut input = [0_u8; 80];
            let (head, own) = input.split_at_mut(16);
            head.copy_from_slice(&parent.to_le_bytes());
            own.copy_from_slice(&le_bytes(block));
            xxh3_128(&input)
        };
        let mut parent = prefix.as_chunks().0.iter().fold(u128::from_le_bytes(self.first_parent()), &roll);
        let blocks = query.as_chunks().0;
        let first = keys.len();
        keys.resize(first + blocks.len(), Key([0; KEY_BYTES]));
        for (key, block) in keys.get_mut(first..).unwrap_or_default().iter_mut().zip(blocks) {
            parent = roll(parent, block);
            if let Some(head) = key.0.first_chunk_mut() {
                *head = parent.to_le_bytes();
            }
        }
    }

    /// What stands in place of the first block's parent.
    fn first_parent<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut parent = [0; BYTES];
        parent.iter_mut().zip(self.scope).for_each(|(to, from)| *to = from);
        parent
    }

    /// AIBrix's own combination of the hashes of blocks.
    fn rolling_aibrix(&self, prefix: &[i32], query: &[i32], keys: &mut Vec<Key>) {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
        let mut parent: Option<u128> = None;
        let mut roll = |block: &[i32]| {
            let own = farm128(&le_bytes(block));
            let rolled = match parent {
                None => own,
                Some(parent) => {
                    let sum = own.wrapping_add(PRIME).wrapping_add(parent << 24).wrapping_add(parent >> 4);
                    (parent ^ sum).wrapping_mul(PRIME)
                }
            };
            parent = Some(rolled);
            Key::of(rolled)
        };
        for block in prefix.chunks_exact(self.block_tokens) {
            roll(block);
        }
        keys.extend(query.chunks_exact(self.block_tokens).map(roll));
    }

    /// SHA-256 over the scope and all tokens up to each block's end: what validation compares beside the block's own tokens.
    pub(crate) fn histories(&self, prefix: &[i32], query: &[i32]) -> Vec<[u8; 32]> {
        let mut state = Sha256::new();
        state.update(self.scope);
        state.update(le_bytes(prefix));
        let history = |block: &[i32]| {
            state.update(le_bytes(block));
            state.clone().finalize().into()
        };
        query.chunks_exact(self.block_tokens).map(history).collect()
    }
}

/// Tokens as they are hashed and stored.
pub(crate) fn le_bytes(tokens: &[i32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(tokens))
    } else {
        Cow::Owned(tokens.iter().flat_map(|token| token.to_le_bytes()).collect())
    }
}

#[cfg(test)]
mod tests;
