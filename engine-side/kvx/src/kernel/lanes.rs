//! Sixteen bytes that can be interleaved with sixteen others: all that a transpose needs.
//!
//! SSE2 and NEON belong to their targets, so nothing is chosen at run time
//! here. [`Portable`] is what other targets use, and what tests compare with.

/// A 16-byte vector.
pub(crate) trait Lanes: Copy {
    /// Whether wider vectors, where the CPU has them, do as well.
    #[cfg(target_arch = "x86_64")]
    const NATIVE: bool = true;

    /// # Safety
    /// `p` must be valid for reads of 16 bytes, at any alignment.
    unsafe fn load(p: *const u8) -> Self;

    /// # Safety
    /// `p` must be valid for writes of 16 bytes, at any alignment.
    unsafe fn store(self, p: *mut u8);

    /// Stores past the caches where the target can, else as [`store`](Self::store).
    ///
    /// # Safety
    /// As `store`, and `p` must be aligned to 16 bytes.
    #[inline(always)]
    unsafe fn stream(self, p: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(p) }
    }

    /// `a0 b0 a1 b1 ...` in elements of `UNIT` bytes (1, 2, 4 or 8): the first and the second
    /// half of the 32 bytes.
    fn zip<const UNIT: usize>(a: Self, b: Self) -> (Self, Self);
}

/// Plain arrays.
#[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), cfg(test))]
#[derive(Clone, Copy)]
pub(crate) struct Portable([u8; 16]);

#[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), cfg(test))]
impl Lanes for Portable {
    #[cfg(target_arch = "x86_64")]
    const NATIVE: bool = false;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Portable(unsafe { p.cast::<[u8; 16]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; 16]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn zip<const UNIT: usize>(a: Self, b: Self) -> (Self, Self) {
        let byte = |i: usize| {
            let (element, rest) = (i / UNIT, i % UNIT);
            let from = if element.is_multiple_of(2) { a.0 } else { b.0 };
            from[element / 2 * UNIT + rest]
        };
        (Portable(std::array::from_fn(byte)), Portable(std::array::from_fn(|i| byte(i + 16))))
    }
}

#[cfg(target_arch = "x86_64")]
mod native {
    use super::Lanes;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Native(__m128i);

    impl Lanes for Native {
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            // SAFETY: the caller's promise; SSE2 is part of x86-64.
            Native(unsafe { _mm_loadu_si128(p.cast()) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut u8) {
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(p.cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut u8) {
            // SAFETY: as above, and aligned.
            unsafe { _mm_stream_si128(p.cast(), self.0) }
        }

        #[inline(always)]
        fn zip<const UNIT: usize>(a: Self, b: Self) -> (Self, Self) {
            let (a, b) = (a.0, b.0);
            // SAFETY: SSE2 is part of x86-64.
            let (low, high) = unsafe {
                match UNIT {
                    1 => (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)),
                    2 => (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)),
                    4 => (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)),
                    8 => (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)),
                    _ => unreachable!("units are 1, 2, 4 or 8 bytes"),
                }
            };
            (Native(low), Native(high))
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod native {
    use super::Lanes;
    use std::arch::aarch64::*;

    #[derive(Clone, Copy)]
    pub(crate) struct Native(uint8x16_t);

    impl Lanes for Native {
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            // SAFETY: the caller's promise; NEON is part of aarch64.
            Native(unsafe { vld1q_u8(p) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut u8) {
            // SAFETY: as above.
            unsafe { vst1q_u8(p, self.0) }
        }

        #[inline(always)]
        fn zip<const UNIT: usize>(a: Self, b: Self) -> (Self, Self) {
            let (a, b) = (a.0, b.0);
            // SAFETY: NEON is part of aarch64; the casts only rename the lanes.
            let (low, high) = unsafe {
                match UNIT {
                    1 => (vzip1q_u8(a, b), vzip2q_u8(a, b)),
                    2 => {
                        let (a, b) = (vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
                        let (l, h) = (vzip1q_u16(a, b), vzip2q_u16(a, b));
                        (vreinterpretq_u8_u16(l), vreinterpretq_u8_u16(h))
                    }
                    4 => {
                        let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
                        let (l, h) = (vzip1q_u32(a, b), vzip2q_u32(a, b));
                        (vreinterpretq_u8_u32(l), vreinterpretq_u8_u32(h))
                    }
                    8 => {
                        let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
                        let (l, h) = (vzip1q_u64(a, b), vzip2q_u64(a, b));
                        (vreinterpretq_u8_u64(l), vreinterpretq_u8_u64(h))
                    }
                    _ => unreachable!("units are 1, 2, 4 or 8 bytes"),
                }
            };
            (Native(low), Native(high))
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use native::Native;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use Portable as Native;
