//! The 64 bytes behind a value.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..16 | XXH3-128, seed 0: kind, key length, key, value length, value, then bytes 16..48 |
//! | 16..32 | digest of a descriptor; zeros: none |
//! | 32..40 | magic |
//! | 40..42 | version |
//! | 42..44 | what was done to the value before it was stored; 0: nothing |
//! | 44..48 | zeros |
//! | 48..64 | generation, which the checksum does not cover; zeros: none |

use std::io::Write;

use crate::descriptor::DescriptorDigest;
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_HASH_BYTES;
use crate::payload::{Covering, Damaged, PayloadBytes, Sum, xxh3};

/// What an envelope adds to a value.
pub const TAIL_BYTES: usize = 64;

/// The line ends show a transfer that changed them.
const MAGIC: [u8; 8] = *b"KVENV2\r\n";
const VERSION: u16 = 1;
/// The place of a generation that a component has still to write.
const NO_GENERATION: [u8; 16] = [0; 16];

/// What the checksum covers of the tail, and where that lies in it.
const COVERED_BYTES: usize = 32;
type Covered = [u8; COVERED_BYTES];

/// What the checksum of a chunk covers before its value, at most: kind, key length, key, value length.
const HEAD_BYTES: usize = 1 + 2 * size_of::<u64>() + MAX_HASH_BYTES;

/// What lies in an envelope. A chunk's is none of a manifest, whatever their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Chunk = 1,
    Manifest = 2,
}

/// When a manifest was published, by the clock of who orders the changes: microseconds, then random bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    microseconds: u64,
    nonce: [u8; 8],
}

impl Generation {
    fn read(bytes: &[u8; 16]) -> Option<Self> {
        let [microseconds, nonce] = bytes.as_chunks().0 else { return None };
        let generation = Generation { microseconds: u64::from_le_bytes(*microseconds), nonce: *nonce };
        (generation != Generation::default()).then_some(generation)
    }
}

/// A generation of a moment, for tests.
#[cfg(test)]
pub fn generation(microseconds: u64) -> Generation {
    Generation { microseconds, nonce: [0; 8] }
}

/// A value that is what was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sound {
    pub len: usize,
    pub generation: Option<Generation>,
    /// Of whoever put it.
    pub descriptor: Option<DescriptorDigest>,
}

/// What was found behind a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The value is the first so many bytes, and is what was put.
    Sound(Sound),
    /// A later version has written it, or something was done to it that this version cannot undo.
    Foreign { version: u16, transforms: u16 },
    /// It is not what was put.
    Damaged(Damaged),
}

/// The tail of a value that lies in several pieces.
pub fn tail<'a>(
    kind: Kind,
    key: &[u8],
    descriptor: Option<DescriptorDigest>,
    len: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> [u8; TAIL_BYTES] {
    let mut covered: Covered = [0; COVERED_BYTES];
    let (digest, fields) = covered.split_at_mut(16);
    if let Some(descriptor) = descriptor {
        digest.copy_from_slice(descriptor.bytes());
    }
    fields.iter_mut().zip(MAGIC.into_iter().chain(VERSION.to_le_bytes())).for_each(|(to, from)| *to = from);
    let checksum = checksum(kind, key, len as u64, pieces, &covered);
    let mut tail = [0; TAIL_BYTES];
    tail.iter_mut().zip(checksum.to_le_bytes().into_iter().chain(covered)).for_each(|(to, from)| *to = from);
    tail
}

/// Hold what a backend has answered under a key against its checksum.
pub fn judge(kind: Kind, key: &[u8], stored: PayloadBytes<'_>) -> Judged {
    judge_summed(kind, key, stored, None)
}

/// As [`judge`]. `sum`: of these bytes with what [`covering`] says, where it was made when they came.
pub fn judge_summed(kind: Kind, key: &[u8], stored: PayloadBytes<'_>, sum: Option<Sum>) -> Judged {
    let stored_len = stored.len();
    let damaged = |digest| Judged::Damaged(Damaged { len: usize::try_from(stored_len).unwrap_or(usize::MAX), digest });
    let Some(len) = stored_len.checked_sub(TAIL_BYTES as u64) else {
        let mut digest = xxh3();
        stored.pieces().for_each(|piece| digest.write(piece));
        return damaged(digest.finish_128());
    };
    let mut tail = [0; TAIL_BYTES];
    let mut rest = &mut tail[..];
    for piece in stored.range(len, TAIL_BYTES as u64) {
        let Some((now, later)) = rest.split_at_mut_checked(piece.len()) else { break };
        now.copy_from_slice(piece);
        rest = later;
    }
    let [first, second, third, generation] = tail.as_chunks::<16>().0 else { return damaged(0) };
    let Some(covered) = tail.split_at(16).1.first_chunk::<COVERED_BYTES>() else { return damaged(0) };
    let checksum = match sum.filter(|sum| sum.stored == stored_len) {
        Some(sum) => sum.checksum,
        None => checksum(kind, key, len, stored.range(0, len), covered),
    };
    if checksum.to_le_bytes() != *first {
        let mut digest = xxh3();
        digest.write(&checksum.to_le_bytes());
        digest.write(&tail[..TAIL_BYTES - 16]);
        return damaged(digest.finish_128());
    }
    let [magic, rest] = third.as_chunks::<8>().0 else { return damaged(0) };
    let [version, transforms, ..] = rest.as_chunks::<2>().0 else { return damaged(0) };
    let (version, transforms) = (u16::from_le_bytes(*version), u16::from_le_bytes(*transforms));
    if *magic != MAGIC || version != VERSION || transforms != 0 {
        return Judged::Foreign { version, transforms };
    }
    let (generation, descriptor) = (Generation::read(generation), DescriptorDigest::read(second));
    Judged::Sound(Sound { len: len as usize, generation, descriptor })
}

/// What is stored for a manifest that comes with its envelope, under a component's own word for its name, with which its checksum
/// cannot be computed: it gets another generation.
pub fn without_generation(stored: &[u8]) -> Result<Vec<u8>, Error> {
    let mut without = stored.to_vec();
    let tail = without
        .last_chunk_mut::<TAIL_BYTES>()
        .filter(|tail| tail.get(32..).is_some_and(|rest| rest.starts_with(&MAGIC)));
    if let Some(generation) = tail.and_then(|tail| tail.last_chunk_mut()) {
        *generation = NO_GENERATION;
    } else if stored.ends_with(&NO_GENERATION) {
        let message = "a manifest of layout 1 that ends in 16 zeros cannot be put under the component's word for its name, because the \
                       component would write a generation there: put it under its own name";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(without)
}

/// What the checksum covers of a value and its tail.
pub fn covering(kind: Kind, key: &[u8]) -> Covering {
    let mut before = Vec::with_capacity(1 + size_of::<u64>() + key.len());
    before_value(kind, key, |bytes| before.extend_from_slice(bytes));
    let part = TAIL_BYTES - COVERED_BYTES - NO_GENERATION.len();
    Covering { before, behind: TAIL_BYTES as u64, part: part as u64..(part + COVERED_BYTES) as u64 }
}

/// What the checksum covers before the length of the value.
fn before_value(kind: Kind, key: &[u8], mut write: impl FnMut(&[u8])) {
    write(&[kind as u8]);
    write(&(key.len() as u64).to_le_bytes());
    write(key);
}

fn checksum<'a>(kind: Kind, key: &[u8], len: u64, pieces: impl Iterator<Item = &'a [u8]>, covered: &Covered) -> u128 {
    let mut digest = xxh3();
    // At once where it fits, as for each chunk: to begin a write takes as long as to hash some hundred bytes.
    let mut head = [0; HEAD_BYTES];
    let mut rest = &mut head[..];
    let mut fits = true;
    before_value(kind, key, |bytes| fits &= rest.write_all(bytes).is_ok());
    fits &= rest.write_all(&len.to_le_bytes()).is_ok();
    let filled = HEAD_BYTES - rest.len();
    match head.get(..filled).filter(|_| fits) {
        Some(head) => digest.write(head),
        None => {
            before_value(kind, key, |bytes| digest.write(bytes));
            digest.write(&len.to_le_bytes());
        }
    }
    pieces.for_each(|piece| digest.write(piece));
    digest.write(covered);
    digest.finish_128()
}

/// A value as the version after this one might store it.
#[cfg(test)]
pub(crate) fn of_later_version(kind: Kind, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut tail = tail(kind, key, None, value.len(), std::iter::once(value));
    tail[40..44].copy_from_slice(&[2, 0, 1, 0]);
    let covered: Covered = tail[16..48].try_into().unwrap();
    let sum = checksum(kind, key, value.len() as u64, std::iter::once(value), &covered);
    tail[..16].copy_from_slice(&sum.to_le_bytes());
    [value, &tail].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Summing;

    fn stored(kind: Kind, key: &[u8], value: &[u8]) -> Vec<u8> {
        [value, &tail(kind, key, None, value.len(), std::iter::once(value))].concat()
    }

    fn judged(kind: Kind, key: &[u8], stored: &[u8]) -> Judged {
        judge(kind, key, PayloadBytes::Slice(stored))
    }

    fn sound(len: usize, generation: Option<Generation>) -> Judged {
        Judged::Sound(Sound { len, generation, descriptor: None })
    }

    #[test]
    fn a_sum_that_is_made_on_the_way_is_the_one_that_is_made_at_the_end() {
        let value: Vec<u8> = (0..10_000).map(|n: u32| ((n * n) >> 3) as u8).collect();
        for len in [0, 1, 17, 240, 241, 1024, 10_000] {
            let stored = stored(Kind::Chunk, b"key", &value[..len]);
            let whole = PayloadBytes::Slice(&stored);
            let sound = judge(Kind::Chunk, b"key", whole);
            for step in [1, 7, 63, 64, 65, 256, 4096, 20_000] {
                let mut summing = Summing::new(covering(Kind::Chunk, b"key"));
                for again in 0..2 {
                    summing.begin_anew();
                    for end in (step..stored.len()).step_by(step).chain([stored.len()]) {
                        assert_eq!(summing.sum(), None, "{len} bytes, {end} came");
                        summing.take(PayloadBytes::Slice(&stored[..end]), stored.len() as u64);
                    }
                    let sum = summing.sum();
                    assert!(sum.is_some(), "{again}");
                    assert_eq!(judge_summed(Kind::Chunk, b"key", whole, sum), sound, "{len} in steps of {step}");
                    assert!(matches!(judge_summed(Kind::Chunk, b"kez", whole, None), Judged::Damaged(_)));
                }
                let other = summing.sum().map(|sum| Sum { checksum: sum.checksum ^ 1, ..sum });
                assert!(matches!(judge_summed(Kind::Chunk, b"key", whole, other), Judged::Damaged(_)), "it is used");
                let of_less = other.map(|sum| Sum { stored: sum.stored - 1, ..sum });
                assert_eq!(judge_summed(Kind::Chunk, b"key", whole, of_less), sound, "it is not of these bytes");
            }
        }
        let mut summing = Summing::new(covering(Kind::Chunk, b"key"));
        summing.take(PayloadBytes::Slice(&[0; 63]), 63);
        assert_eq!(summing.sum(), None, "there is no tail");
    }

    /// As [`golden_envelope`], with the digest of a descriptor. Computed with Python's xxhash, not with this code.
    #[test]
    fn golden_envelope_with_a_descriptor() {
        let digest = DescriptorDigest::read(&std::array::from_fn(|n| n as u8 + 1)).unwrap();
        let tail = tail(Kind::Chunk, b"key", Some(digest), 5, [&b"value"[..]].into_iter());
        let hex = hex::encode(tail);
        let rest = "0102030405060708090a0b0c0d0e0f104b56454e56320d0a0100000000000000";
        assert_eq!(hex, format!("77db8fb8c2b3304eb6451f82536619e2{rest}{}", "0".repeat(32)));
        let stored = [&b"value"[..], &tail].concat();
        let expected = Sound { len: 5, generation: None, descriptor: Some(digest) };
        assert_eq!(judged(Kind::Chunk, b"key", &stored), Judged::Sound(expected));
        let other = DescriptorDigest::read(&[9; 16]).unwrap();
        let others = self::tail(Kind::Chunk, b"key", Some(other), 5, [&b"value"[..]].into_iter());
        assert_ne!(others[..16], tail[..16], "the checksum covers it");
    }

    /// A value whose envelope does not match is damaged, so one that is made otherwise loses all that lies in layout 2. Computed
    /// with Python's xxhash, not with this code.
    #[test]
    fn golden_envelope() {
        let long: Vec<u8> = (0..1000).map(|n| (n * 7) as u8).collect();
        let rest = "000000000000000000000000000000004b56454e56320d0a0100000000000000";
        for (kind, key, value, expected) in [
            (Kind::Chunk, &b"key"[..], &b"value"[..], "454e3a01c4276b3f718f021607d35a9d"),
            (Kind::Manifest, b"conversation", &long, "9cb1217d154b6b1c269f78b1b6696cb7"),
            (Kind::Chunk, &[7; 32], b"", "326654e6e5b563f8105f2c06d22ec222"),
        ] {
            let tail = tail(kind, key, None, value.len(), [value].into_iter());
            let hex = hex::encode(tail);
            assert_eq!(hex, format!("{expected}{rest}{}", "0".repeat(32)), "{} bytes", value.len());
            assert_eq!(judged(kind, key, &[value, &tail].concat()), sound(value.len(), None));
        }
    }

    #[test]
    fn an_envelope_tells_kinds_keys_lengths_and_bytes_apart() {
        for value in [&b""[..], b"x", &[7; 1000]] {
            let stored = stored(Kind::Chunk, b"key", value);
            assert_eq!(judged(Kind::Chunk, b"key", &stored), sound(value.len(), None));
            assert!(matches!(judged(Kind::Chunk, b"kez", &stored), Judged::Damaged(_)));
            assert!(matches!(judged(Kind::Manifest, b"key", &stored), Judged::Damaged(_)));
            let (damageable, _) = stored.split_at(stored.len() - 16);
            let mut digests = std::collections::BTreeSet::new();
            for bit in 0..damageable.len() * 8 {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let Judged::Damaged(found) = judged(Kind::Chunk, b"key", &damaged) else { panic!("bit {bit}") };
                assert!(found.len == stored.len() && digests.insert(found.digest), "bit {bit}");
                assert_eq!(judged(Kind::Chunk, b"key", &damaged), Judged::Damaged(found), "the same again");
            }
            for len in 0..stored.len() {
                assert!(matches!(judged(Kind::Chunk, b"key", &stored[..len]), Judged::Damaged(_)), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_value_may_lie_in_pieces_anywhere_cut() {
        let whole = stored(Kind::Chunk, b"k", b"abcdef");
        let pieces = tail(Kind::Chunk, b"k", None, 6, [&b"ab"[..], b"", b"cdef"].into_iter());
        assert_eq!(pieces, whole[6..]);
        for cut in 0..=whole.len() {
            let (head, rest) = whole.split_at(cut);
            let pieces: [&[u8]; 3] = [head, b"", rest];
            // SAFETY: the pieces outlive it.
            let memory = unsafe { crate::payload::ValueMemory::of_pieces(&pieces) };
            // SAFETY: as above.
            let bytes = unsafe { PayloadBytes::of(&memory, whole.len() as u64) };
            assert_eq!(judge(Kind::Chunk, b"k", bytes), sound(6, None), "cut at {cut}");
        }
    }

    #[test]
    fn what_a_later_version_wrote_is_left_alone_and_a_generation_may_be_written_by_others() {
        let later = of_later_version(Kind::Manifest, b"m", b"bytes");
        assert_eq!(judged(Kind::Manifest, b"m", &later), Judged::Foreign { version: 2, transforms: 1 });

        let mut published = stored(Kind::Manifest, b"m", b"bytes");
        published[b"bytes".len() + 48..].copy_from_slice(&[7; 16]);
        let generation = Generation { microseconds: u64::from_le_bytes([7; 8]), nonce: [7; 8] };
        assert_eq!(judged(Kind::Manifest, b"m", &published), sound(5, Some(generation)));
        let before = Generation { microseconds: generation.microseconds - 1, nonce: [255; 8] };
        assert!(before < generation && Generation { nonce: [8; 8], ..generation } > generation);
    }

    #[test]
    fn a_manifest_that_comes_with_its_envelope_gets_another_generation() {
        let unpublished = stored(Kind::Manifest, b"m", b"bytes");
        let mut published = unpublished.clone();
        published[5 + 48..].copy_from_slice(&[7; 16]);
        assert_eq!(without_generation(&published).unwrap(), unpublished);
        assert_eq!(without_generation(&unpublished).unwrap(), unpublished);
        // Of layout 1: it has no place for a generation.
        for plain in [&b""[..], b"bytes", &[0; 15], &[1; 64]] {
            assert_eq!(without_generation(plain).unwrap(), plain);
        }
        assert_eq!(without_generation(&[&[1][..], &[0; 16]].concat()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
