//! Hashes as the contract has them: a byte string, and the width of each.

use std::collections::BTreeMap;

use crate::backend::{ChunkHash, ChunkSet};
use crate::contract::bindings::kv_store::backend::store_types::Hashes;
use crate::error::{Error, contract_violation};
use crate::limits::MAX_HASH_BYTES;

/// The first hashes, as far as they have one width: what goes into one call. Empty only if there are none.
pub(super) fn of_one_width(hashes: &[ChunkHash]) -> &[ChunkHash] {
    let Some(width) = hashes.first().map(|hash| hash.as_slice().len()) else { return &[] };
    let same = hashes.iter().take_while(|hash| hash.as_slice().len() == width).count();
    hashes.get(..same).unwrap_or(hashes)
}

/// Hashes of one width, for a guest.
pub(super) fn to_guest<'a>(hashes: impl Iterator<Item = &'a ChunkHash>) -> Hashes {
    let count = hashes.size_hint().0;
    let mut all = Hashes { width: 0, bytes: Vec::new() };
    for hash in hashes {
        let hash = hash.as_slice();
        if all.width == 0 {
            all.width = hash.len() as u32;
            all.bytes.reserve(hash.len() * count);
        }
        debug_assert_eq!(hash.len(), all.width as usize, "a call has hashes of one width");
        all.bytes.extend_from_slice(hash);
    }
    all
}

/// Hashes of any widths, for a guest, each list of another width.
pub(super) fn to_guest_by_width(hashes: &[ChunkHash]) -> Vec<Hashes> {
    let mut by_width: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for hash in hashes {
        let hash = hash.as_slice();
        by_width.entry(hash.len() as u32).or_default().extend_from_slice(hash);
    }
    by_width.into_iter().map(|(width, bytes)| Hashes { width, bytes }).collect()
}

/// Hashes that a guest names, each of which must be among those that it was given.
pub(super) fn from_guest(named: &[Hashes], given: &[ChunkHash]) -> Result<Vec<ChunkHash>, Error> {
    let given: ChunkSet = given.iter().copied().collect();
    let mut found = Vec::new();
    for Hashes { width, bytes } in named {
        let width = *width as usize;
        if !(1..=MAX_HASH_BYTES).contains(&width) || !bytes.len().is_multiple_of(width) {
            return Err(contract_violation(format_args!("named {} bytes of hashes of width {width}", bytes.len())));
        }
        for hash in bytes.chunks_exact(width) {
            let hash = ChunkHash::new(hash)?;
            if !given.contains(&hash) {
                return Err(contract_violation(format_args!("named chunk {hash}, which it was not given")));
            }
            found.push(hash);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn hashes(all: &[&[u8]]) -> Vec<ChunkHash> {
        all.iter().map(|hash| ChunkHash::new(hash).unwrap()).collect()
    }

    #[test]
    fn a_call_has_hashes_of_one_width() {
        let mixed = hashes(&[b"aa", b"bb", b"c", b"dd"]);
        let Hashes { width, bytes } = to_guest(of_one_width(&mixed).iter());
        assert_eq!((width, &bytes[..]), (2, &b"aabb"[..]));
        assert_eq!(of_one_width(&mixed[2..]).len(), 1);
        assert!(of_one_width(&[]).is_empty());
        let by_width = to_guest_by_width(&mixed);
        let by_width: Vec<_> = by_width.iter().map(|list| (list.width, &list.bytes[..])).collect();
        assert_eq!(by_width, [(1, &b"c"[..]), (2, &b"aabbdd"[..])]);
    }

    #[test]
    fn what_a_guest_names_is_what_it_was_given() {
        let given = hashes(&[b"aa", b"bb", b"c"]);
        let named = |width, bytes: &[u8]| from_guest(&[Hashes { width, bytes: bytes.to_vec() }], &given);
        assert_eq!(named(2, b"bbaa").unwrap(), hashes(&[b"bb", b"aa"]));
        assert_eq!(named(1, b"c").unwrap(), hashes(&[b"c"]));
        for (width, bytes) in [(0, &b"aa"[..]), (65, &[7; 65]), (2, b"aab"), (2, b"cc"), (u32::MAX, b""), (1, b"x")] {
            assert_eq!(named(width, bytes).unwrap_err().kind(), ErrorKind::Component, "{width} {bytes:?}");
        }
    }
}
