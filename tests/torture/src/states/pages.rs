//! What a power loss may leave of the bytes of a file. `tests/simulate` has the same disk, and compiles this file too.

use std::collections::BTreeSet;

/// What a disk writes whole or not at all.
pub const PAGE: u64 = 4096;
/// What lay on the disk before.
pub const STALE: u8 = 0xa5;

/// Answers which of so many options is taken. The first is the oldest, the last the newest.
pub type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

/// The bytes of a file whose first version is on the disk, and of each later one any page or none.
pub fn torn(versions: &[impl AsRef<[u8]>], pick: Pick<'_>) -> Vec<u8> {
    let versions: Vec<&[u8]> = versions.iter().map(AsRef::as_ref).collect();
    let (Some(oldest), Some(newest)) = (versions.first(), versions.last()) else { return Vec::new() };
    if versions.len() == 1 {
        return oldest.to_vec();
    }
    let (old, new) = (oldest.len() as u64, newest.len() as u64);
    let lengths = lengths(&versions, old, new);
    let length = if lengths.len() > 1 { lengths[pick(lengths.len())] } else { lengths[0] };
    let mut bytes = vec![0; length as usize];
    for (number, page) in bytes.chunks_mut(PAGE as usize).enumerate() {
        let of = |version: &&[u8]| {
            let mut there = vec![0; page.len()];
            let start = number * PAGE as usize;
            let part = version.get(start..version.len().min(start + page.len())).unwrap_or_default();
            there[..part.len()].copy_from_slice(part);
            there
        };
        let mut options: Vec<Vec<u8>> = versions.iter().map(of).collect();
        // It was not the file's before.
        if number as u64 * PAGE >= old {
            options.insert(1, vec![STALE; page.len()]);
        }
        options.dedup();
        let taken = if options.len() > 1 { pick(options.len()) } else { 0 };
        page.copy_from_slice(&options[taken]);
    }
    bytes
}

/// How long it may be: as long as any version, or a multiple of a page between.
fn lengths(versions: &[&[u8]], old: u64, new: u64) -> Vec<u64> {
    let mut lengths: BTreeSet<u64> = versions.iter().map(|version| version.len() as u64).collect();
    let (shortest, longest) = (lengths.first().copied().unwrap_or(0), lengths.last().copied().unwrap_or(0));
    lengths.extend((shortest / PAGE + 1..longest.div_ceil(PAGE)).map(|page| page * PAGE));
    lengths.retain(|len| *len != old && *len != new);
    let mut lengths: Vec<u64> = std::iter::once(old).chain(lengths).collect();
    if new != old {
        lengths.push(new);
    }
    lengths
}
