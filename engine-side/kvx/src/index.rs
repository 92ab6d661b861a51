//! Integers that come from outside: slots, block ids, `indptr`, lengths.
//!
//! Read one by one and unaligned, because an engine's buffer may start
//! anywhere; widened to `i64`, so that one code path serves S32 and S64.

use std::marker::PhantomData;

/// A borrowed array of S32 or S64 in the machine's byte order.
#[derive(Clone, Copy, Debug)]
pub struct IndexSlice<'a> {
    base: *const u8,
    len: usize,
    /// Bytes of one. As wide as the rest, so that a copy has no padding to move.
    size: usize,
    buffer: PhantomData<&'a [u8]>,
}

// SAFETY: a shared borrow of plain integers, like the slices that it is made from.
unsafe impl Send for IndexSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for IndexSlice<'_> {}

impl<'a> From<&'a [i32]> for IndexSlice<'a> {
    fn from(slice: &'a [i32]) -> Self {
        IndexSlice { base: slice.as_ptr().cast(), len: slice.len(), size: 4, buffer: PhantomData }
    }
}

impl<'a> From<&'a [i64]> for IndexSlice<'a> {
    fn from(slice: &'a [i64]) -> Self {
        IndexSlice { base: slice.as_ptr().cast(), len: slice.len(), size: 8, buffer: PhantomData }
    }
}

impl IndexSlice<'_> {
    /// Integers behind a pointer, S64 if `wide` and else S32.
    ///
    /// # Safety
    /// `base` must be valid for reads of `len` integers, 8 bytes each if `wide`, else 4, for as
    /// long as the result lives; it need not be aligned, and may be null if `len` is 0.
    pub unsafe fn from_raw(base: *const u8, len: usize, wide: bool) -> Self {
        IndexSlice { base, len, size: if wide { 8 } else { 4 }, buffer: PhantomData }
    }

    /// How many integers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether they are S64.
    pub fn is_wide(&self) -> bool {
        self.size == 8
    }

    /// The integers in `range`.
    ///
    /// # Panics
    /// Where `range` is not within `0..len`.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // An address in bounds or one past them; nothing is read here.
        IndexSlice { base: self.base.wrapping_add(range.start * self.size), len: range.len(), ..*self }
    }

    pub(crate) fn bytes(&self) -> crate::cache::Span {
        crate::cache::Span::of(self.base, self.len.saturating_mul(self.size))
    }

    /// The integer at `i`, sign-extended.
    ///
    /// # Panics
    /// Where `i` is not below [`len`](Self::len).
    pub fn get(&self, i: usize) -> i64 {
        assert!(i < self.len, "index {i} of {}", self.len);
        // SAFETY: `i` is in bounds, and whoever made `self` vouched for `len` integers.
        unsafe {
            if self.is_wide() {
                self.base.cast::<i64>().add(i).read_unaligned()
            } else {
                i64::from(self.base.cast::<i32>().add(i).read_unaligned())
            }
        }
    }
}
