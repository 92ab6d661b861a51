//! Parts that are useful only together, as attention and its indexer, attention and a recurrent state, or the layers of one step: found
//! all, or not at all.
//!
//! A bundle is a manifest over its parts, which lie as chunks under the hashes of their content. It names each part with its length and 128
//! bits of its content. So a part that was evicted, torn or replaced is noticed when the bundle is loaded, parts of two saves are never mixed,
//! and no part is handed out unless all are there. Its descriptor (`docs/envelope.md`) is the manifest's.
//!
//! What it does not do: a backend evicts chunk by chunk, so that of a bundle that lost a part the others take room until they are
//! evicted too.

use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, ErrorKind};
use crate::limits::{MAX_BUNDLE_PARTS, MAX_NAME_BYTES};
use crate::payload::Buffer;
use crate::store::{Damage, Store};

/// Begins the manifest of a bundle.
const MAGIC: [u8; 8] = *b"KVBNDL1\n";
const SEAL_BYTES: usize = 8;

/// A part to save: its name within the bundle, and its bytes in pieces, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// 1 to 4,096 bytes; no two parts of a bundle have the same.
    pub name: &'a str,
    /// The bytes of the part.
    pub pieces: &'a [&'a [u8]],
}

/// What a load found.
#[derive(Debug)]
pub enum Loaded {
    /// Each part with its name, in the order in which they were saved.
    Whole(Vec<(String, Buffer)>),
    /// There is no such bundle for this reader.
    Nothing,
    /// These parts are gone, or not what was saved: none is handed out.
    Lacks(Vec<String>),
}

/// Save parts as one bundle, in place of a former one of this name. When it returns, they are as durable as after
/// [`Store::put_manifest`]; before, a reader finds the former bundle, or none.
///
/// # Errors
/// `Invalid`: too many parts, or a name that is none. What putting the parts or the manifest comes to; nothing is published then.
pub fn save(store: &Store, name: &str, parts: &[Part<'_>]) -> Result<(), Error> {
    check(parts)?;
    let save = store.within(None).begin_save();
    let mut named = Vec::with_capacity(parts.len());
    for part in parts {
        let id = Id::of(part.pieces);
        save.put_pieces(&id.key, part.pieces)?;
        named.push((part.name.to_owned(), id));
    }
    save.publish(name, &to_bytes(&named))
}

/// Load a bundle: all its parts, or none.
///
/// # Errors
/// What asking the backend comes to; `Corrupt` or `Version` where what lies under the name is no bundle that this version reads.
pub fn load(store: &Store, name: &str) -> Result<Loaded, Error> {
    let Some(manifest) = store.get_manifest(name)? else { return Ok(Loaded::Nothing) };
    let named = parse(&manifest)?;
    let within = store.within(None);
    let keys: Vec<[u8; 8]> = named.iter().map(|(_, id)| id.key).collect();
    let found = within.get_buffers(&keys)?;
    let (mut parts, mut lacks) = (Vec::with_capacity(named.len()), Vec::new());
    for ((part, id), data) in named.into_iter().zip(found) {
        let sound = |data: &[u8]| Id::of(&[data]) == id;
        let whole = match data {
            Some(data) if sound(&data) => Some(data),
            Some(data) => match within.found_damaged(&id.key, &data, &sound)? {
                Damage::Passing(sound) => Some(sound),
                Damage::Removed | Damage::Stays(_) => None,
            },
            None => None,
        };
        match whole {
            Some(data) => parts.push((part, Arc::try_unwrap(data).or_else(|shared| Buffer::concat(&[&shared]))?)),
            None => lacks.push(part),
        }
    }
    Ok(if lacks.is_empty() { Loaded::Whole(parts) } else { Loaded::Lacks(lacks) })
}

fn check(parts: &[Part<'_>]) -> Result<(), Error> {
    if parts.is_empty() || parts.len() > MAX_BUNDLE_PARTS {
        let count = parts.len();
        return Err(Error::invalid(format!("a bundle has 1 to {MAX_BUNDLE_PARTS} parts, this one {count}")));
    }
    let mut names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    if let Some(wrong) = names.iter().find(|name| name.is_empty() || name.len() > MAX_NAME_BYTES) {
        let len = wrong.len();
        return Err(Error::invalid(format!("the name of a part has 1 to {MAX_NAME_BYTES} bytes, this one {len}")));
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some(twice) => Err(Error::invalid(format!("two parts of the bundle have the name {:?}", twice.first()))),
        None => Ok(()),
    }
}

/// What tells one part's bytes from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    len: u64,
    /// XXH3-64, little-endian: the key of the chunk.
    key: [u8; 8],
    /// The upper half of XXH3-128, little-endian.
    check: [u8; 8],
}

impl Id {
    fn of(pieces: &[&[u8]]) -> Self {
        let mut digest = Xxh3::new();
        pieces.iter().for_each(|piece| digest.update(piece));
        let upper = (digest.digest128() >> 64) as u64;
        Id {
            len: pieces.iter().map(|piece| piece.len() as u64).sum(),
            key: digest.digest().to_le_bytes(),
            check: upper.to_le_bytes(),
        }
    }
}

/// Numbers are little-endian: magic, parts (u32), then of each the length of its name (u32), the name, its length (u64), key and check; at
/// the end the XXH3-64 of all before it.
fn to_bytes(named: &[(String, Id)]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((named.len() as u32).to_le_bytes());
    for (name, Id { len, key, check }) in named {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(key);
        bytes.extend(check);
    }
    let seal = xxh3_64(&bytes);
    bytes.extend(seal.to_le_bytes());
    bytes
}

fn parse(manifest: &[u8]) -> Result<Vec<(String, Id)>, Error> {
    let corrupt = || Error::new(ErrorKind::Corrupt, "the manifest is no bundle's, or damaged");
    if manifest.get(..6) == MAGIC.get(..6) && manifest.get(6..8) != MAGIC.get(6..8) {
        let message = "the bundle was saved by a later version, which this one does not read";
        return Err(Error::new(ErrorKind::Version, message));
    }
    let (sealed, seal) = manifest.split_last_chunk::<SEAL_BYTES>().ok_or_else(corrupt)?;
    if xxh3_64(sealed).to_le_bytes() != *seal {
        return Err(corrupt());
    }
    let mut rest = sealed.strip_prefix(&MAGIC).ok_or_else(corrupt)?;
    let count = u32::from_le_bytes(*take(&mut rest).ok_or_else(corrupt)?);
    let mut named = Vec::new();
    for _ in 0..count {
        let part = |rest: &mut &[u8]| {
            let name_len = u32::from_le_bytes(*take(rest)?) as usize;
            let (name, behind) = rest.split_at_checked(name_len)?;
            *rest = behind;
            let name = std::str::from_utf8(name).ok()?.to_owned();
            Some((name, Id { len: u64::from_le_bytes(*take(rest)?), key: *take(rest)?, check: *take(rest)? }))
        };
        named.push(part(&mut rest).ok_or_else(corrupt)?);
    }
    if rest.is_empty() { Ok(named) } else { Err(corrupt()) }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bundle whose manifest is made otherwise is not read. Computed with Python's xxhash, not with this code.
    #[test]
    fn golden_bundle() {
        let named = [("attention", &b"KV"[..]), ("indexer", b"keys of the indexer")];
        let named = named.map(|(name, value)| (name.to_owned(), Id::of(&[value])));
        let hex = hex::encode(to_bytes(&named));
        assert_eq!(
            hex,
            "4b56424e444c310a0200000009000000617474656e74696f6e02000000000000007683e4402bb3421abada76b7d090d3df07000000696e6465786572130000000000000094ebb4dcc4037fd8fa7795e3283c2b92c970b7de2c5bf059"
        );
        assert_eq!(parse(&to_bytes(&named)).unwrap(), named);
    }

    #[test]
    fn no_bytes_are_too_strange_for_a_manifest() {
        let named = [("a".to_owned(), Id::of(&[b"x"])), ("b".to_owned(), Id::of(&[b"y", b"z"]))];
        let bytes = to_bytes(&named);
        for at in 0..bytes.len() {
            assert!(parse(&bytes[..at]).is_err(), "{at} bytes");
            for flip in [1, 128] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                assert!(parse(&other).is_err(), "byte {at}");
            }
        }
        // Sealed, and all the same none.
        let sealed = |bytes: &[u8]| [bytes, &xxh3_64(bytes).to_le_bytes()].concat();
        for strange in [&b"KVBNDL1\n"[..], b"KVBNDL1\n\xff\xff\xff\xff", b"KVBNDL1\n\x01\0\0\0\xff\xff\xff\xffname"] {
            assert_eq!(parse(&sealed(strange)).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(parse(&sealed(b"KVBNDL2\n")).unwrap_err().kind(), ErrorKind::Version);
    }

    #[test]
    fn a_bundle_names_each_part_once() {
        let part = |name| Part { name, pieces: &[b"x"] };
        assert!(check(&[part("a"), part("b")]).is_ok());
        for wrong in [&[][..], &[part("a"), part("a")], &[part("")], &vec![part("a"); MAX_BUNDLE_PARTS + 1]] {
            assert_eq!(check(wrong).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
