//! The seal of a value whose key is not its content hash: 16 bytes behind it, XXH3-128 (seed 0, little-endian) over the key's
//! length, the key, the value's length (both little-endian, 8 bytes) and the value. Whatever a backend answers in place of what
//! was put, under this key or another, does not match its seal.

use twox_hash::XxHash3_128;

use crate::backend::ChunkHash;

pub(super) const SEAL_BYTES: usize = 16;

/// The seal of a value that lies in several pieces.
pub(super) fn seal<'a>(hash: &ChunkHash, len: usize, pieces: impl Iterator<Item = &'a [u8]>) -> [u8; SEAL_BYTES] {
    let mut digest = XxHash3_128::new();
    let key = hash.as_slice();
    digest.write(&(key.len() as u64).to_le_bytes());
    digest.write(key);
    digest.write(&(len as u64).to_le_bytes());
    pieces.for_each(|piece| digest.write(piece));
    digest.finish_128().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of what was stored, if its seal matches.
    fn unsealed<'a>(hash: &ChunkHash, stored: &'a [u8]) -> Option<&'a [u8]> {
        let (value, found) = stored.split_at_checked(stored.len().checked_sub(SEAL_BYTES)?)?;
        (seal(hash, value.len(), std::iter::once(value)) == *found).then_some(value)
    }

    /// A value whose seal does not match counts as damaged and is removed, so a seal made otherwise loses all that is sealed. Computed
    /// with Python's xxhash, not with this code.
    #[test]
    fn golden_seal() {
        let long: Vec<u8> = (0..1000).map(|n| (n * 7) as u8).collect();
        for (value, expected) in
            [(&b"value"[..], "3404077685472d3325bd251cf538147c"), (&long, "a82842efafbe14dbcbfe9a8e38b35431")]
        {
            let seal = seal(&ChunkHash::new(b"key").unwrap(), value.len(), [value].into_iter());
            let hex = hex::encode(seal);
            assert_eq!(hex, expected, "{} bytes", value.len());
        }
    }

    #[test]
    fn a_seal_tells_keys_lengths_and_bytes_apart() {
        let hash = |key: &[u8]| ChunkHash::new(key).unwrap();
        let sealed = |key: &[u8], value: &[u8]| [value, &seal(&hash(key), value.len(), [value].into_iter())].concat();
        for value in [&b""[..], b"x", &[7; 1000]] {
            let stored = sealed(b"key", value);
            assert_eq!(unsealed(&hash(b"key"), &stored), Some(value));
            assert_eq!(unsealed(&hash(b"kez"), &stored), None);
            for bit in 0..stored.len() * 8 {
                let mut damaged = stored.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(unsealed(&hash(b"key"), &damaged), None, "bit {bit}");
            }
            (0..stored.len()).for_each(|len| assert_eq!(unsealed(&hash(b"key"), &stored[..len]), None));
        }
        let pieces = seal(&hash(b"k"), 4, [&b"ab"[..], b"", b"cd"].into_iter());
        assert_eq!(pieces, seal(&hash(b"k"), 4, [&b"abcd"[..]].into_iter()));
    }
}
