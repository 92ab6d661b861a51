//! What the engines of a history store: keys, names, and values that say what they are of.

use std::io::Write;
use std::sync::OnceLock;

use kv_store_core::backend::{ChunkHash, Layout};
use kv_store_core::envelope::{stored_key, stored_name};
use twox_hash::{XxHash3_64, XxHash3_128};

/// What is stored under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A chunk whose key is the hash of its content.
    Content,
    /// One under another key, always with the same value.
    Opaque,
    /// One that is replaced, each time with a value of its own.
    Register,
    Manifest,
}

/// What a value is stored under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: Kind,
    pub number: u8,
}

/// Tells the values of a key apart. Those of content and opaque keys are always 0.
pub type Version = u64;

/// What lies under a key in the backend: `c` and the key of a chunk, `m` and the name of a manifest.
pub type Stored = Vec<u8>;

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letter = match self.kind {
            Kind::Content => 'C',
            Kind::Opaque => 'O',
            Kind::Register => 'R',
            Kind::Manifest => 'M',
        };
        write!(formatter, "{letter}{}", self.number)
    }
}

/// How long the values of a history are.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    pub big: bool,
    /// About 4 KiB, where redis has another way for longer ones.
    pub long: bool,
}

impl Lengths {
    /// Room for any value.
    pub fn longest(self) -> usize {
        match self {
            Lengths { big: true, .. } => 400_000,
            Lengths { long: true, .. } => 5_000,
            _ => 400,
        }
    }

    fn of(self, key: Key) -> usize {
        match (self.big, key.kind) {
            // As long as makes a save flush early, and a batch go side by side.
            (true, Kind::Content | Kind::Opaque) => 300_000 + 17 * usize::from(key.number),
            _ if self.long => 3_990 + 43 * usize::from(key.number),
            _ => 40 + 31 * usize::from(key.number % 5),
        }
    }

    /// The value of a key.
    pub fn value(self, key: Key, version: Version) -> Vec<u8> {
        let mut value = format!("{key} {version} ").into_bytes();
        value.resize(self.of(key).max(value.len() + 1), filler(key, version));
        value
    }

    /// Whether these bytes are that value.
    fn is_value(self, key: Key, version: Version, bytes: &[u8]) -> bool {
        let mut head = [0; 40];
        let mut left = &mut head[..];
        write!(left, "{key} {version} ").expect("the longest head has 27 bytes");
        let len = 40 - left.len();
        let Some((before, rest)) = bytes.split_at_checked(len).filter(|(before, _)| *before == &head[..len]) else {
            return false;
        };
        // All are the same where each is what the one before it is.
        before.len() + rest.len() == self.of(key).max(len + 1)
            && rest.first() == Some(&filler(key, version))
            && rest[1..] == rest[..rest.len() - 1]
    }

    /// What a consumer calls a chunk.
    pub fn hash(self, key: Key) -> &'static [u8] {
        &known(self, key).hash
    }

    fn hash_of(self, key: Key) -> Vec<u8> {
        match key.kind {
            Kind::Content => XxHash3_64::oneshot(&self.value(key, 0)).to_le_bytes().to_vec(),
            Kind::Opaque => {
                let mut hash = format!("opaque {} ", key.number).into_bytes();
                hash.resize(32, 0x55);
                hash
            }
            Kind::Register | Kind::Manifest => format!("register {}", key.number).into_bytes(),
        }
    }
}

fn filler(key: Key, version: Version) -> u8 {
    key.number.wrapping_mul(31).wrapping_add(version as u8) | 0x80
}

/// What follows from a key, and is asked for all the time.
struct Known {
    hash: Vec<u8>,
    places: [Stored; 2],
}

fn known(lengths: Lengths, key: Key) -> &'static Known {
    const KINDS: usize = 4;
    const NUMBERS: usize = 256;
    static KNOWN: [OnceLock<Box<Known>>; 4 * KINDS * NUMBERS] = [const { OnceLock::new() }; 4 * KINDS * NUMBERS];
    let of = usize::from(lengths.big) + 2 * usize::from(lengths.long);
    KNOWN[(of * KINDS + key.kind as usize) * NUMBERS + usize::from(key.number)].get_or_init(|| {
        let hash = lengths.hash_of(key);
        Box::new(Known { places: places_of(key, &hash), hash })
    })
}

pub fn name(key: Key) -> String {
    format!("manifest {}", key.number)
}

/// Where a key may lie in the backend, in layouts 1 and 2.
pub fn places(lengths: Lengths, key: Key) -> &'static [Stored; 2] {
    &known(lengths, key).places
}

fn places_of(key: Key, hash: &[u8]) -> [Stored; 2] {
    if key.kind == Kind::Manifest {
        let name = name(key);
        return [of_manifest(&name), of_manifest(&stored_name(&name))];
    }
    let hash = ChunkHash::new(hash).expect("hashes of a history have 1 to 64 bytes");
    [Layout::Plain, Layout::Enveloped].map(|layout| of_chunk(stored_key(&hash.lying(layout)).as_slice()))
}

pub fn of_chunk(key: &[u8]) -> Stored {
    [b"c", key].concat()
}

pub fn of_manifest(name: &str) -> Stored {
    [b"m", name.as_bytes()].concat()
}

/// Which value of a key these bytes are. None: of none.
pub fn version(lengths: Lengths, key: Key, bytes: &[u8]) -> Option<Version> {
    let text = bytes.split(|byte| *byte == b' ').nth(1)?;
    let version: Version = std::str::from_utf8(text).ok()?.parse().ok()?;
    lengths.is_value(key, version, bytes).then_some(version)
}

/// The same of what lies in the backend, with an envelope or without. An envelope that is not whole is of none.
pub fn stored_version(lengths: Lengths, key: Key, bytes: &[u8]) -> Option<Version> {
    version(lengths, key, bytes).or_else(|| {
        let (value, tail) = bytes.split_last_chunk()?;
        version(lengths, key, value).filter(|_| is_envelope(lengths, key, value, tail))
    })
}

/// Whether the envelope of a value is whole, as `docs/envelope.md` has it: nothing of `core` is asked.
fn is_envelope(lengths: Lengths, key: Key, value: &[u8], tail: &[u8; 64]) -> bool {
    let name = name(key);
    let (kind, of) = match key.kind {
        Kind::Manifest => (2, name.as_bytes()),
        _ => (1, lengths.hash(key)),
    };
    let mut covered = XxHash3_128::new();
    covered.write(&[kind]);
    for bytes in [of, value] {
        covered.write(&(bytes.len() as u64).to_le_bytes());
        covered.write(bytes);
    }
    covered.write(&tail[16..48]);
    tail[32..48] == *b"KVENV2\r\n\x01\0\0\0\0\0\0\0" && tail[..16] == covered.finish_128().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_version_and_other_bytes_tell_none() {
        for lengths in [(false, false), (false, true), (true, false)].map(|(big, long)| Lengths { big, long }) {
            for (kind, version) in [(Kind::Content, 0), (Kind::Register, 7), (Kind::Manifest, Version::MAX)] {
                let key = Key { kind, number: 3 };
                let value = lengths.value(key, version);
                assert_eq!(super::version(lengths, key, &value), Some(version));
                assert_eq!(super::version(lengths, Key { number: 4, ..key }, &value), None);
                assert_eq!(super::version(lengths, key, &value[..value.len() - 1]), None);
                assert_eq!(super::version(lengths, key, &[&value[..], b"x"].concat()), None);
                for at in [0, 1, 3, value.len() / 2, value.len() - 2, value.len() - 1] {
                    let mut other = value.clone();
                    other[at] ^= 1;
                    assert_eq!(super::version(lengths, key, &other), None, "byte {at} of {key}");
                }
            }
        }
        // As it is written, and in no other way.
        let lengths = Lengths { big: false, long: false };
        let value = lengths.value(Key { kind: Kind::Register, number: 3 }, 7);
        let other = String::from_utf8_lossy(&value).replace("R3 7 ", "R3 +7 ").into_bytes();
        assert_eq!(super::version(lengths, Key { kind: Kind::Register, number: 3 }, &other), None);
    }

    #[test]
    fn a_bit_of_an_envelope_tells_as_one_of_the_value_does() {
        let lengths = Lengths { big: false, long: false };
        let (key, mut tail) = (Key { kind: Kind::Opaque, number: 2 }, [0; 64]);
        let value = lengths.value(key, 0);
        tail[32..42].copy_from_slice(b"KVENV2\r\n\x01\0");
        let hash = lengths.hash(key);
        let lens = [hash, &value].map(|bytes| (bytes.len() as u64).to_le_bytes());
        let covered = [&[1], &lens[0][..], hash, &lens[1], &value, &tail[16..48]].concat();
        tail[..16].copy_from_slice(&XxHash3_128::oneshot(&covered).to_le_bytes());
        let stored = [&value[..], &tail].concat();
        assert_eq!(stored_version(lengths, key, &stored), Some(0));
        for at in 0..stored.len() {
            let mut other = stored.clone();
            other[at] ^= 1;
            // The checksum does not cover the generation.
            let expected = (at >= stored.len() - 16).then_some(0);
            assert_eq!(stored_version(lengths, key, &other), expected, "byte {at}");
        }
    }
}
