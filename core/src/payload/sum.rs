//! The checksum of a value, made while its memory is filled: its bytes lie in the processor's caches then, and not any more when the
//! whole batch has come.

use std::ops::Range;

use twox_hash::xxhash3_128::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};

use super::memory::PayloadBytes;

/// So many bytes are filled between two looks at them: few enough for a cache of a processor's own, many enough for few system calls.
pub const SUMMED_AT_ONCE: usize = 128 << 10;

/// XXH3-128, seed 0, of what comes piece by piece. That of the crate allocates a copy of its secret for each value.
pub type Xxh3 = RawHasher<&'static [u8; DEFAULT_SECRET_LENGTH]>;

/// One that has seen nothing yet.
pub fn xxh3() -> Xxh3 {
    RawHasher::new(SecretBuffer::default())
}

/// What a checksum covers: XXH3-128, seed 0, of `before`, the length of the value (8 bytes, little-endian), the value, and a part of the
/// bytes that lie behind it.
#[derive(Clone, Debug)]
pub struct Covering {
    pub before: Vec<u8>,
    /// How many bytes lie behind the value.
    pub behind: u64,
    /// Which of them are covered.
    pub part: Range<u64>,
}

/// The checksum of what fills some memory, so many bytes with those behind the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub stored: u64,
    pub checksum: u128,
}

/// A checksum on its way.
pub struct Summing {
    covering: Covering,
    digest: Xxh3,
    /// Bytes of the value that the digest has taken.
    taken: u64,
    sum: Option<Sum>,
}

impl Summing {
    pub fn new(covering: Covering) -> Self {
        Summing { covering, digest: xxh3(), taken: 0, sum: None }
    }

    /// Other bytes will fill the memory.
    pub fn begin_anew(&mut self) {
        (self.taken, self.sum) = (0, None);
    }

    /// Take what has come of `stored` bytes in all.
    pub fn take(&mut self, came: PayloadBytes<'_>, stored: u64) {
        let Covering { before, behind, part } = &self.covering;
        let Some(value) = stored.checked_sub(*behind).filter(|_| self.sum.is_none()) else { return };
        if self.taken == 0 {
            self.digest = xxh3();
            self.digest.write(before);
            self.digest.write(&value.to_le_bytes());
        }
        let end = came.len().min(value);
        came.range(self.taken, end - self.taken).for_each(|piece| self.digest.write(piece));
        self.taken = end;
        if came.len() == stored {
            came.range(value + part.start, part.end - part.start).for_each(|piece| self.digest.write(piece));
            self.sum = Some(Sum { stored, checksum: self.digest.finish_128() });
        }
    }

    /// The checksum, as soon as all has come.
    pub fn sum(&self) -> Option<Sum> {
        self.sum
    }
}
