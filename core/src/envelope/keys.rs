//! Under which keys and names layout 2 lies in a backend.

use sha2::{Digest, Sha256};

use crate::backend::{CONTENT_KEY_BYTES, ChunkHash, Layout};
use crate::limits::{MAX_HASH_BYTES, MAX_NAME_BYTES};

/// Ends the key of each chunk in an envelope. Four bytes, so that hardly any key of layout 1 ends so: a listing tells the layouts
/// apart by it.
pub const KEY_SUFFIX: [u8; 4] = *b"\x02kv2";
/// The same for a hash that [`KEY_SUFFIX`] would make as long as a hash of its content, of which components do not refuse a late put.
pub const LONGER_KEY_SUFFIX: [u8; 5] = *b"\x02kv2\x02";
/// Ends the name of each manifest in an envelope.
pub const NAME_SUFFIX: char = '\u{2}';

const DIRECT_HASH_BYTES: usize = MAX_HASH_BYTES - KEY_SUFFIX.len();
const LONGER_SUFFIX_FROM: usize = CONTENT_KEY_BYTES - KEY_SUFFIX.len();
const DIRECT_NAME_BYTES: usize = MAX_NAME_BYTES - NAME_SUFFIX.len_utf8();

/// What stands for a hash in layout 2: itself, or its SHA-256 where there is no room for the suffix behind it.
pub fn reduced_key(hash: &ChunkHash) -> ChunkHash {
    let bytes = hash.as_slice();
    if bytes.len() <= DIRECT_HASH_BYTES {
        return *hash;
    }
    ChunkHash::new(&Sha256::digest(bytes)).map_or(*hash, |reduced| reduced.lying(hash.layout()))
}

/// The key under which a chunk lies in the backend.
pub fn stored_key(hash: &ChunkHash) -> ChunkHash {
    let stored = match (hash.layout(), hash.as_slice().len()) {
        (Layout::Plain, _) => Some(*hash),
        (Layout::Enveloped, LONGER_SUFFIX_FROM) => hash.followed_by(&LONGER_KEY_SUFFIX),
        (Layout::Enveloped, ..=DIRECT_HASH_BYTES) => hash.followed_by(&KEY_SUFFIX),
        (Layout::Enveloped, _) => reduced_key(hash).followed_by(&KEY_SUFFIX),
    };
    // It is never too long.
    stored.unwrap_or(*hash)
}

/// The consumer's hash, and its layout, from a key in the backend.
pub fn consumer_key(stored: &[u8]) -> (&[u8], Layout) {
    match (stored.strip_suffix(&KEY_SUFFIX), stored.strip_suffix(&LONGER_KEY_SUFFIX)) {
        (Some(hash), _) if !hash.is_empty() && hash.len() != LONGER_SUFFIX_FROM => (hash, Layout::Enveloped),
        (_, Some(hash)) if hash.len() == LONGER_SUFFIX_FROM => (hash, Layout::Enveloped),
        _ => (stored, Layout::Plain),
    }
}

/// What stands for a name in layout 2: itself, or its SHA-256 where there is no room for the suffix behind it.
pub fn reduced_name(name: &str) -> String {
    if name.len() <= DIRECT_NAME_BYTES {
        return name.to_owned();
    }
    format!("{NAME_SUFFIX}{}", hex::encode(Sha256::digest(name)))
}

/// Whether a name is a component's own word for one that is too long for it to list.
pub fn is_component_name(name: &str) -> bool {
    name.starts_with('\0')
}

/// The name under which a manifest lies in the backend in layout 2. A component's own word for a name stays.
pub fn stored_name(name: &str) -> String {
    if is_component_name(name) {
        return name.to_owned();
    }
    let mut stored = reduced_name(name);
    stored.push(NAME_SUFFIX);
    stored
}

/// The consumer's name, and its layout, from a name in the backend.
pub fn consumer_name(stored: &str) -> (&str, Layout) {
    match stored.strip_suffix(NAME_SUFFIX) {
        Some(name) if !name.is_empty() => (name, Layout::Enveloped),
        _ => (stored, Layout::Plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> ChunkHash {
        ChunkHash::new(bytes).unwrap().lying(Layout::Enveloped)
    }

    /// What lies under other keys is not found any more. Computed with Python's hashlib, not with this code.
    #[test]
    fn golden_layout2_keys() {
        for (hash, stored) in [
            (&b"k"[..], "6b026b7632".to_owned()),
            (b"key4", "6b657934026b763202".to_owned()),
            (&[7; 60], format!("{}026b7632", "07".repeat(60))),
            (&[7; 61], "ceed7831cac7af05835437ae5f10140ff06223749ff2d8dd1554ee1ebe4f6afd026b7632".to_owned()),
            (&[7; 64], "6cfeeb3aa25d3f411dae5eec17d7369ca7153e72dcf54bcf4c3daec0f5b21fc7026b7632".to_owned()),
        ] {
            assert_eq!(stored_key(&key(hash)).to_string(), stored);
            assert_eq!(stored_key(&ChunkHash::new(hash).unwrap()).as_slice(), hash, "in layout 1 it is as it was");
        }
        assert_eq!(stored_name("conversation-7"), "conversation-7\u{2}");
        assert_eq!(stored_name(&"n".repeat(4095)), "n".repeat(4095) + "\u{2}");
        assert_eq!(
            stored_name(&"n".repeat(4096)),
            "\u{2}834369536b343287d6d8eea4dd9f232218c1ffbc87cb979cc7cc65e760b27e2b\u{2}"
        );
    }

    #[test]
    fn what_is_listed_can_be_asked_for() {
        for hash in [&b"k"[..], b"key", b"key4", b"key-5", &[7; 8], &[7; 60], &[7; 64]] {
            let stored = stored_key(&key(hash));
            let (listed, layout) = consumer_key(stored.as_slice());
            assert_eq!(layout, Layout::Enveloped);
            assert_ne!(stored.as_slice().len(), CONTENT_KEY_BYTES, "a late put of it is refused");
            assert_eq!(stored_key(&key(listed)), stored);
            assert_eq!(reduced_key(&key(listed)), reduced_key(&key(hash)), "and has the same checksum");
        }
        for foreign in [&KEY_SUFFIX[..], &LONGER_KEY_SUFFIX, b"key4\x02kv2", b"key-5\x02kv2\x02"] {
            assert_eq!(consumer_key(foreign), (foreign, Layout::Plain));
        }
        for name in ["m".to_owned(), "n".repeat(4096)] {
            let stored = stored_name(&name);
            assert!(stored.len() <= MAX_NAME_BYTES);
            let (listed, layout) = consumer_name(&stored);
            assert_eq!((stored_name(listed), layout), (stored.clone(), Layout::Enveloped));
            assert_eq!(reduced_name(listed), reduced_name(&name));
        }
        assert_eq!((consumer_name("m"), stored_name("\0digest")), (("m", Layout::Plain), "\0digest".to_owned()));
    }
}
