//! Whether what was fetched is what was put. Today's consumers key chunks by XXH3-64 of the content, but an 8-byte hash
//! need not be that. So a store is watched until it is known: the first 8-byte put settles it, or a fetched chunk that
//! matches. Once it is known to be content-keyed, a chunk that does not match its hash is never answered.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use twox_hash::XxHash3_64;

use crate::backend::ChunkHash;
use crate::config::Verify;
use crate::near::ContentKeys;

pub(super) struct Verifier {
    mode: Verify,
    keyed: AtomicU8,
}

/// What is known of a store's keys of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyScheme {
    Unsettled,
    /// They are hashes of the content.
    Hashes,
    /// They are not.
    Opaque,
    /// The operator wants none held against its content.
    Unchecked,
}

const UNSETTLED: u8 = 0;
const OPAQUE: u8 = 1;
const BIG_ENDIAN: u8 = 2;
const LITTLE_ENDIAN: u8 = 3;

impl Verifier {
    pub(super) fn new(mode: Verify) -> Self {
        Verifier { mode, keyed: AtomicU8::new(UNSETTLED) }
    }

    /// Learn from a put, which is the truth about its chunk.
    pub(super) fn saw_put(&self, hash: &ChunkHash, data: &[u8]) {
        if self.mode == Verify::Auto
            && self.keyed.load(Relaxed) == UNSETTLED
            && let Some(key) = key(hash)
        {
            self.settle(order(key, data).unwrap_or(OPAQUE));
        }
    }

    /// Learn from what one call fetched, all of it, before any of it is judged: one match tells.
    pub(super) fn saw_fetched<'a>(&self, fetched: impl Iterator<Item = (&'a ChunkHash, &'a [u8])>) {
        if self.mode != Verify::Auto || self.keyed.load(Relaxed) != UNSETTLED {
            return;
        }
        let matching = |(hash, data)| key(hash).and_then(|key| order(key, data));
        if let Some(found) = { fetched }.find_map(matching) {
            self.settle(found);
        }
    }

    /// Whether it may still be found out what the keys are: what is accepted until then is to be judged again.
    pub(super) fn is_unsettled(&self) -> bool {
        self.mode == Verify::Auto && self.keyed.load(Relaxed) == UNSETTLED
    }

    /// Whether fetched bytes may be answered. While nothing is known of the store they may: its keys may be others.
    pub(super) fn accepts(&self, hash: &ChunkHash, data: &[u8]) -> bool {
        let Some(key) = key(hash) else { return true };
        match (self.mode, self.keyed.load(Relaxed)) {
            (Verify::Off, _) | (Verify::Auto, UNSETTLED | OPAQUE) => true,
            (Verify::Xxh3, _) => order(key, data).is_some(),
            (Verify::Auto, keyed) => order(key, data) == Some(keyed),
        }
    }

    /// What is known of keys of 8 bytes.
    pub(super) fn keys(&self) -> KeyScheme {
        match (self.mode, self.keyed.load(Relaxed)) {
            (Verify::Xxh3, _) => KeyScheme::Hashes,
            (Verify::Off, _) => KeyScheme::Unchecked,
            (Verify::Auto, UNSETTLED) => KeyScheme::Unsettled,
            (Verify::Auto, OPAQUE) => KeyScheme::Opaque,
            (Verify::Auto, _) => KeyScheme::Hashes,
        }
    }

    /// Whether the operator insists that keys are content hashes.
    pub(super) fn insists(&self) -> bool {
        self.mode == Verify::Xxh3
    }

    fn settle(&self, keyed: u8) {
        // The first to know wins.
        let _ = self.keyed.compare_exchange(UNSETTLED, keyed, Relaxed, Relaxed);
    }
}

/// What the near level may keep. A store whose keys are not known yet may have content hashes; a chunk whose key is the hash of it
/// is then one.
impl ContentKeys for Verifier {
    fn may_be(&self) -> bool {
        match self.mode {
            Verify::Auto => self.keyed.load(Relaxed) != OPAQUE,
            Verify::Xxh3 => true,
            Verify::Off => false,
        }
    }

    fn is_key_of(&self, hash: &ChunkHash, content: &[&[u8]]) -> bool {
        let Some(order) = key(hash).and_then(|key| order_of(key, digest(content))) else { return false };
        match (self.mode, self.keyed.load(Relaxed)) {
            (Verify::Off, _) | (Verify::Auto, OPAQUE) => false,
            (Verify::Xxh3, _) | (Verify::Auto, UNSETTLED) => true,
            (Verify::Auto, keyed) => keyed == order,
        }
    }
}

/// Whether a key of 8 bytes is the XXH3-64 of a value that lies in several parts, in either byte order. Other keys are no
/// content hashes, and pass.
pub(super) fn is_xxh3(hash: &ChunkHash, value: &[&[u8]]) -> bool {
    key(hash).is_none_or(|key| order_of(key, digest(value)).is_some())
}

fn digest(value: &[&[u8]]) -> u64 {
    if let [whole] = value {
        return XxHash3_64::oneshot(whole);
    }
    let mut digest = XxHash3_64::new();
    value.iter().for_each(|part| digest.write(part));
    digest.finish()
}

fn key(hash: &ChunkHash) -> Option<[u8; 8]> {
    hash.as_slice().try_into().ok()
}

/// The byte order in which the key is the XXH3-64 of the data, if it is.
fn order(key: [u8; 8], data: &[u8]) -> Option<u8> {
    order_of(key, XxHash3_64::oneshot(data))
}

fn order_of(key: [u8; 8], digest: u64) -> Option<u8> {
    if key == digest.to_be_bytes() {
        Some(BIG_ENDIAN)
    } else if key == digest.to_le_bytes() {
        Some(LITTLE_ENDIAN)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn big(data: &[u8]) -> ChunkHash {
        ChunkHash::new(&xxh3_64(data).to_be_bytes()).unwrap()
    }

    fn little(data: &[u8]) -> ChunkHash {
        ChunkHash::new(&xxh3_64(data).to_le_bytes()).unwrap()
    }

    #[test]
    fn a_put_settles_a_store_in_either_byte_order() {
        for hash in [big, little] {
            let verifier = Verifier::new(Verify::Auto);
            verifier.saw_put(&hash(b"a"), b"a");
            assert!(verifier.accepts(&hash(b"b"), b"b"));
            assert!(!verifier.accepts(&hash(b"b"), b"x"));
        }
    }

    #[test]
    fn other_keys_are_left_alone() {
        let verifier = Verifier::new(Verify::Auto);
        verifier.saw_put(&ChunkHash::new(b"8-bytes!").unwrap(), b"a");
        assert!(verifier.accepts(&big(b"b"), b"x"));
        let verifier = Verifier::new(Verify::Xxh3);
        assert!(verifier.accepts(&ChunkHash::new(&[7; 32]).unwrap(), b"x"));
    }

    #[test]
    fn a_matching_get_settles_what_no_put_has() {
        let verifier = Verifier::new(Verify::Auto);
        verifier.saw_fetched([(&big(b"b"), &b"x"[..])].into_iter());
        assert!(verifier.accepts(&big(b"b"), b"x"));
        verifier.saw_fetched([(&big(b"b"), &b"x"[..]), (&big(b"c"), &b"c"[..])].into_iter());
        assert!(!verifier.accepts(&big(b"b"), b"x"));
        assert!(verifier.accepts(&big(b"c"), b"c"));
    }

    #[test]
    fn the_operator_can_insist_or_waive() {
        assert!(!Verifier::new(Verify::Xxh3).accepts(&big(b"b"), b"x"));
        let off = Verifier::new(Verify::Off);
        off.saw_put(&big(b"a"), b"a");
        assert!(off.accepts(&big(b"b"), b"x"));
    }
}
