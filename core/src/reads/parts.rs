//! A value in parts that are read side by side, and put together in order.

use std::collections::BTreeMap;

use kv_platform::files::AROUND_CACHE_ALIGNMENT;

use super::{Read, ReadPermit};
use crate::limits::READ_PART_BYTES;

/// A last part that is shorter is read with the one before.
const SHORT: u64 = READ_PART_BYTES as u64 / 8;

/// The bytes of a file between two places in parts, in order: where each begins, and how long it is. All but the first begin at a multiple of
/// the alignment.
pub fn parts(begin: u64, end: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut at = begin;
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|left| *left > 0)?;
        let len = match left <= READ_PART_BYTES as u64 + SHORT {
            true => left,
            false => (at + READ_PART_BYTES as u64) / ALIGNMENT * ALIGNMENT - at,
        };
        at += len;
        Some((at - len, len as usize))
    })
}

const ALIGNMENT: u64 = AROUND_CACHE_ALIGNMENT as u64;

/// The first of [`parts`].
pub fn first_part(begin: u64, end: u64) -> usize {
    parts(begin, end).next().map_or(0, |(_, len)| len)
}

/// Parts that have come, each with its permit, of which the first ones may still be missing.
#[derive(Default)]
pub struct Parts {
    came: BTreeMap<usize, (Read, ReadPermit)>,
    next: usize,
    /// The length of each.
    lens: Vec<usize>,
}

impl Parts {
    /// A further part of so many bytes is under way: its number.
    pub fn expect(&mut self, len: usize) -> usize {
        self.lens.push(len);
        self.lens.len() - 1
    }

    /// A part has come.
    pub fn put(&mut self, number: usize, part: Read, permit: ReadPermit) {
        self.came.insert(number, (part, permit));
    }

    /// The next part in order, if it has come, and how long it was to be: a shorter one is where the file ends.
    pub fn take(&mut self) -> Option<(Read, usize, ReadPermit)> {
        let (part, permit) = self.came.remove(&self.next)?;
        let len = self.lens.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        Some((part, len, permit))
    }

    /// Whether all were taken.
    pub fn is_done(&self) -> bool {
        self.next == self.lens.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_little_longer_than_a_part_is_one_read() {
        let part = READ_PART_BYTES as u64;
        let lens = |begin, end| parts(begin, end).map(|(_, len)| len as u64).collect::<Vec<_>>();
        assert!(lens(5, 5).is_empty() && lens(6, 5).is_empty());
        assert_eq!(lens(0, 1), [1]);
        assert_eq!(lens(0, part + 64), [part + 64]);
        assert_eq!(lens(0, 4 * part + 64), [part, part, part, part + 64]);
        assert_eq!(lens(64, 2 * part + 64), [part - 64, part + 64]);
        assert_eq!(lens(u64::MAX - 1, u64::MAX), [1]);
    }

    proptest! {
        #[test]
        fn parts_are_all_in_order_and_short(begin in 0..1_u64 << 40, len in 0..1_u64 << 25) {
            let end = begin + len;
            let mut at = begin;
            for (number, (place, len)) in parts(begin, end).enumerate() {
                prop_assert_eq!(place, at);
                prop_assert!(len > 0 && len as u64 <= READ_PART_BYTES as u64 + SHORT);
                prop_assert!(number == 0 || place.is_multiple_of(ALIGNMENT));
                at += len as u64;
            }
            prop_assert_eq!(at, end);
            prop_assert_eq!(first_part(begin, end) as u64, parts(begin, end).next().map_or(0, |(_, len)| len as u64));
        }
    }
}
