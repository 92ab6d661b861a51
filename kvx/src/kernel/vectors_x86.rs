//! The types of tokens as vectors of F32, for AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::float::{Bf16, F16, F32, Wide};

pub(super) const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Loads and stores a type as vectors of F32. Every function is called only where its
/// instruction set is there, on valid memory of any alignment.
pub(super) trait Vectors: Wide {
    /// # Safety
    /// AVX2 and F16C; 8 elements at `p`.
    unsafe fn load8(p: *const u8) -> __m256;
    /// # Safety
    /// AVX2 and F16C; room for 8 elements at `p`, which is aligned to them where `STREAM`: see [`grid::copy`](super::grid::copy).
    unsafe fn store8<const STREAM: bool>(p: *mut u8, x: __m256);
    /// # Safety
    /// AVX-512 F and BW; 16 elements at `p`.
    unsafe fn load16(p: *const u8) -> __m512;
    /// # Safety
    /// AVX-512 F and BW; room for 16 elements at `p`, aligned as above.
    unsafe fn store16<const STREAM: bool>(p: *mut u8, x: __m512);
    /// On 16-bit lanes: 0x80 where negative, plus 0x7f where NaN.
    ///
    /// # Safety
    /// AVX2; 16 elements at `p`.
    unsafe fn marks16(p: *const u8) -> __m256i;
    /// On 16-bit lanes: 0x80 where negative, plus 0x7f where NaN.
    ///
    /// # Safety
    /// AVX-512 F, BW and DQ; 32 elements at `p`.
    unsafe fn marks32(p: *const u8) -> __m512i;
}

/// [`Vectors::marks16`] of a 16-bit type.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn marks16_of_halves(p: *const u8, infinity: i16) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm256_loadu_si256(p.cast());
        let abs = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
        let nan = _mm256_cmpgt_epi16(abs, _mm256_set1_epi16(infinity));
        let nan = _mm256_and_si256(nan, _mm256_set1_epi16(0x7f));
        let minus = _mm256_and_si256(_mm256_srli_epi16::<8>(x), _mm256_set1_epi16(0x80));
        _mm256_or_si256(nan, minus)
    }
}

/// [`Vectors::marks32`] of a 16-bit type.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn marks32_of_halves(p: *const u8, infinity: i16) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let x = _mm512_loadu_si512(p.cast());
        let abs = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
        let nan = _mm512_cmpgt_epi16_mask(abs, _mm512_set1_epi16(infinity));
        let minus = _mm512_and_si512(_mm512_srli_epi16::<8>(x), _mm512_set1_epi16(0x80));
        _mm512_or_si512(minus, _mm512_maskz_set1_epi16(nan, 0x7f))
    }
}

// SAFETY (of the blocks in this file that have no other): the caller has the instruction set
// and valid memory, as each function asks.

impl Vectors for F32 {
    #[inline(always)]
    unsafe fn marks16(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe {
            let [low, high] = [0, 8].map(|i| _mm256_loadu_ps(p.cast::<f32>().add(i)));
            let nans = [low, high].map(|x| _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let nan = narrow_masks(nans.map(|m| _mm256_castps_si256(m)));
            let signs = [low, high].map(|x| _mm256_srai_epi32::<31>(_mm256_castps_si256(x)));
            let minus = _mm256_and_si256(narrow_masks(signs), _mm256_set1_epi16(0x80));
            _mm256_or_si256(_mm256_and_si256(nan, _mm256_set1_epi16(0x7f)), minus)
        }
    }
    #[inline(always)]
    unsafe fn marks32(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let [low, high] = [0, 16].map(|i| _mm512_loadu_ps(p.cast::<f32>().add(i)));
            let nans = [low, high].map(|x| u32::from(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x)));
            let signs = [low, high].map(|x| u32::from(_mm512_movepi32_mask(_mm512_castps_si512(x))));
            let nan = _mm512_maskz_set1_epi16(nans[0] | nans[1] << 16, 0x7f);
            let minus = _mm512_maskz_set1_epi16(signs[0] | signs[1] << 16, 0x80);
            _mm512_or_si512(nan, minus)
        }
    }
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store8<const STREAM: bool>(p: *mut u8, x: __m256) {
        // SAFETY: see above.
        unsafe { put256::<STREAM>(p, _mm256_castps_si256(x)) }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store16<const STREAM: bool>(p: *mut u8, x: __m512) {
        // SAFETY: see above.
        unsafe { put512::<STREAM>(p, _mm512_castps_si512(x)) }
    }
}

impl Vectors for F16 {
    #[inline(always)]
    unsafe fn marks16(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { marks16_of_halves(p, 0x7c00) }
    }
    #[inline(always)]
    unsafe fn marks32(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { marks32_of_halves(p, 0x7c00) }
    }
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store8<const STREAM: bool>(p: *mut u8, x: __m256) {
        // SAFETY: see above.
        unsafe { put128::<STREAM>(p, _mm256_cvtps_ph::<NEAREST>(x)) }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store16<const STREAM: bool>(p: *mut u8, x: __m512) {
        // SAFETY: see above.
        unsafe { put256::<STREAM>(p, _mm512_cvtps_ph::<NEAREST>(x)) }
    }
}

impl Vectors for Bf16 {
    #[inline(always)]
    unsafe fn marks16(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { marks16_of_halves(p, 0x7f80) }
    }
    #[inline(always)]
    unsafe fn marks32(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { marks32_of_halves(p, 0x7f80) }
    }
    #[inline(always)]
    unsafe fn load8(p: *const u8) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store8<const STREAM: bool>(p: *mut u8, x: __m256) {
        // SAFETY: see above. The same steps as `Bf16::encode`.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let high = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let code = _mm256_blendv_epi8(rounded, quiet, nan);
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(code, code));
            put128::<STREAM>(p, _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    unsafe fn load16(p: *const u8) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store16<const STREAM: bool>(p: *mut u8, x: __m512) {
        // SAFETY: see above. The same steps as `Bf16::encode`.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let code = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
            put256::<STREAM>(p, _mm512_cvtepi32_epi16(code));
        }
    }
}

/// Two vectors of 32-bit masks as one of 16-bit masks, in order.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn narrow_masks([low, high]: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high)) }
}

/// # Safety
/// SSE2; room for 16 bytes at `p`, which is aligned to them where `STREAM`.
#[inline(always)]
unsafe fn put128<const STREAM: bool>(p: *mut u8, x: __m128i) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { _mm_stream_si128(p.cast(), x) } else { _mm_storeu_si128(p.cast(), x) } }
}

/// # Safety
/// AVX; room for 32 bytes at `p`, which is aligned to them where `STREAM`.
#[inline(always)]
unsafe fn put256<const STREAM: bool>(p: *mut u8, x: __m256i) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { _mm256_stream_si256(p.cast(), x) } else { _mm256_storeu_si256(p.cast(), x) } }
}

/// # Safety
/// AVX-512 F; room for 64 bytes at `p`, which is aligned to them where `STREAM`.
#[inline(always)]
unsafe fn put512<const STREAM: bool>(p: *mut u8, x: __m512i) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { _mm512_stream_si512(p.cast(), x) } else { _mm512_storeu_si512(p.cast(), x) } }
}
