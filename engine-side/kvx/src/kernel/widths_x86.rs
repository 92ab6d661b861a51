//! Vectors of AVX2 and of AVX-512 by one set of names, so that a kernel is written once for both.
//!
//! Nothing here decides anything: each function is an instruction, or the few that stand for one which a set lacks.

use std::arch::x86_64::*;

use super::float::Bits32;

pub(super) const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// An instruction set. Every function is called only where it is there, on valid memory of any alignment; where `STREAM`,
/// memory is aligned to what is stored, which goes past the caches: see [`grid::copy`](super::grid::copy).
///
/// # Safety
/// Of all functions: the CPU has the set, and memory is as above.
#[allow(clippy::missing_safety_doc)] // Said once, above.
pub(super) trait Width {
    /// Numbers of 32 bits in a vector; of 16 bits, there are twice as many.
    const LANES: usize;
    /// F32 lanes.
    type F: Copy;
    /// Integers, of 32 or 16 bits.
    type I: Bits32;
    /// Half of a vector: as many 16-bit lanes as `F` has of F32.
    type H: Copy;

    unsafe fn load(p: *const u8) -> Self::I;
    unsafe fn load_half(p: *const u8) -> Self::H;
    unsafe fn store<const STREAM: bool>(p: *mut u8, x: Self::I);
    unsafe fn store_half<const STREAM: bool>(p: *mut u8, x: Self::H);

    unsafe fn bits(x: Self::F) -> Self::I;
    unsafe fn float(x: Self::I) -> Self::F;
    unsafe fn set(x: f32) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fmadd(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    unsafe fn fnmadd(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn to_f16(x: Self::F) -> Self::H;
    unsafe fn from_f16(x: Self::H) -> Self::F;

    unsafe fn max32(a: Self::I, b: Self::I) -> Self::I;
    /// 16-bit lanes to 32, with zeros above.
    unsafe fn widen(x: Self::H) -> Self::I;
    /// The lower 16 bits of 32-bit lanes, whose upper ones are zero.
    unsafe fn narrow(x: Self::I) -> Self::H;

    unsafe fn join(low: Self::H, high: Self::H) -> Self::I;
    unsafe fn halves(x: Self::I) -> [Self::H; 2];
    unsafe fn set16(x: i16) -> Self::I;
    unsafe fn shl16<const N: u32>(x: Self::I) -> Self::I;
    unsafe fn shr16<const N: u32>(x: Self::I) -> Self::I;
    /// As unsigned numbers.
    unsafe fn min16(a: Self::I, b: Self::I) -> Self::I;
    /// `then` in the 16-bit lanes where `a > b`, as signed numbers, and zero elsewhere.
    unsafe fn where_above16(a: Self::I, b: Self::I, then: i16) -> Self::I;
    /// `then` in the 16-bit lanes where `a == b`, and `x` elsewhere.
    unsafe fn where_equal16(a: Self::I, b: Self::I, then: i16, x: Self::I) -> Self::I;
    /// On 16-bit lanes, one for each F32 of both: `nan` where it is NaN, and `minus` where it is negative.
    unsafe fn marks(low: Self::F, high: Self::F, nan: i16, minus: i16) -> Self::I;
    /// Bytes to 16-bit lanes, with zeros above.
    unsafe fn load_bytes(p: *const u8) -> Self::I;
    /// The lower bytes of 16-bit lanes, whose upper ones are zero.
    unsafe fn store_bytes(p: *mut u8, x: Self::I);
}

/// With FMA and F16C.
pub(super) struct Avx2;

/// With BW, VL and DQ.
pub(super) struct Avx512;

/// The functions of a set that are one instruction.
macro_rules! one_instruction {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $instruction:path;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $type),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $instruction($($arg),*) }
            }
        )*
    };
}

// SAFETY (of the blocks in these two that have no other): the promise of the trait.

impl Width for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;
    type H = __m128i;

    one_instruction! {
        bits(x: __m256) -> __m256i = _mm256_castps_si256;
        float(x: __m256i) -> __m256 = _mm256_castsi256_ps;
        set(x: f32) -> __m256 = _mm256_set1_ps;
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps;
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps;
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps;
        fmadd(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps;
        fnmadd(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps;
        to_f16(x: __m256) -> __m128i = _mm256_cvtps_ph::<NEAREST>;
        from_f16(x: __m128i) -> __m256 = _mm256_cvtph_ps;
        max32(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32;
        widen(x: __m128i) -> __m256i = _mm256_cvtepu16_epi32;
        set16(x: i16) -> __m256i = _mm256_set1_epi16;
        min16(a: __m256i, b: __m256i) -> __m256i = _mm256_min_epu16;
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> __m128i {
        // SAFETY: see above.
        unsafe { _mm_loadu_si128(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<const STREAM: bool>(p: *mut u8, x: __m256i) {
        // SAFETY: see above.
        unsafe { if STREAM { _mm256_stream_si256(p.cast(), x) } else { _mm256_storeu_si256(p.cast(), x) } }
    }
    #[inline(always)]
    unsafe fn store_half<const STREAM: bool>(p: *mut u8, x: __m128i) {
        // SAFETY: see above.
        unsafe { if STREAM { _mm_stream_si128(p.cast(), x) } else { _mm_storeu_si128(p.cast(), x) } }
    }
    #[inline(always)]
    unsafe fn narrow(x: __m256i) -> __m128i {
        // SAFETY: see above.
        unsafe { _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)) }
    }
    #[inline(always)]
    unsafe fn join(low: __m128i, high: __m128i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set_m128i(high, low) }
    }
    #[inline(always)]
    unsafe fn halves(x: __m256i) -> [__m128i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)] }
    }
    #[inline(always)]
    unsafe fn shl16<const N: u32>(x: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_sll_epi16(x, _mm_cvtsi32_si128(N as i32)) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: u32>(x: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_srl_epi16(x, _mm_cvtsi32_si128(N as i32)) }
    }
    #[inline(always)]
    unsafe fn where_above16(a: __m256i, b: __m256i, then: i16) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(_mm256_cmpgt_epi16(a, b), _mm256_set1_epi16(then)) }
    }
    #[inline(always)]
    unsafe fn where_equal16(a: __m256i, b: __m256i, then: i16, x: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_blendv_epi8(x, _mm256_set1_epi16(then), _mm256_cmpeq_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn marks(low: __m256, high: __m256, nan: i16, minus: i16) -> __m256i {
        /// Two vectors of 32-bit masks as one of 16-bit masks, in order.
        ///
        /// # Safety
        /// AVX2.
        #[inline(always)]
        unsafe fn masks16(low: __m256i, high: __m256i) -> __m256i {
            // SAFETY: the caller's promise.
            unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high)) }
        }
        // SAFETY: see above.
        unsafe {
            let (a, b) = (_mm256_cmp_ps::<_CMP_UNORD_Q>(low, low), _mm256_cmp_ps::<_CMP_UNORD_Q>(high, high));
            let nans = masks16(_mm256_castps_si256(a), _mm256_castps_si256(b));
            let (a, b) = (_mm256_castps_si256(low), _mm256_castps_si256(high));
            let signs = masks16(_mm256_srai_epi32::<31>(a), _mm256_srai_epi32::<31>(b));
            let nans = _mm256_and_si256(nans, _mm256_set1_epi16(nan));
            _mm256_or_si256(nans, _mm256_and_si256(signs, _mm256_set1_epi16(minus)))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: __m256i) {
        // SAFETY: see above.
        unsafe {
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
}

impl Width for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type I = __m512i;
    type H = __m256i;

    one_instruction! {
        bits(x: __m512) -> __m512i = _mm512_castps_si512;
        float(x: __m512i) -> __m512 = _mm512_castsi512_ps;
        set(x: f32) -> __m512 = _mm512_set1_ps;
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps;
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps;
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps;
        fmadd(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps;
        fnmadd(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps;
        to_f16(x: __m512) -> __m256i = _mm512_cvtps_ph::<NEAREST>;
        from_f16(x: __m256i) -> __m512 = _mm512_cvtph_ps;
        max32(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32;
        widen(x: __m256i) -> __m512i = _mm512_cvtepu16_epi32;
        narrow(x: __m512i) -> __m256i = _mm512_cvtepi32_epi16;
        set16(x: i16) -> __m512i = _mm512_set1_epi16;
        min16(a: __m512i, b: __m512i) -> __m512i = _mm512_min_epu16;
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_half(p: *const u8) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<const STREAM: bool>(p: *mut u8, x: __m512i) {
        // SAFETY: see above.
        unsafe { if STREAM { _mm512_stream_si512(p.cast(), x) } else { _mm512_storeu_si512(p.cast(), x) } }
    }
    #[inline(always)]
    unsafe fn store_half<const STREAM: bool>(p: *mut u8, x: __m256i) {
        // SAFETY: see above.
        unsafe { if STREAM { _mm256_stream_si256(p.cast(), x) } else { _mm256_storeu_si256(p.cast(), x) } }
    }
    #[inline(always)]
    unsafe fn join(low: __m256i, high: __m256i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high) }
    }
    #[inline(always)]
    unsafe fn halves(x: __m512i) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x)] }
    }
    #[inline(always)]
    unsafe fn shl16<const N: u32>(x: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_slli_epi16::<N>(x) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: u32>(x: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srli_epi16::<N>(x) }
    }
    #[inline(always)]
    unsafe fn where_above16(a: __m512i, b: __m512i, then: i16) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_maskz_set1_epi16(_mm512_cmpgt_epi16_mask(a, b), then) }
    }
    #[inline(always)]
    unsafe fn where_equal16(a: __m512i, b: __m512i, then: i16, x: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(a, b), _mm512_set1_epi16(then)) }
    }
    #[inline(always)]
    unsafe fn marks(low: __m512, high: __m512, nan: i16, minus: i16) -> __m512i {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low, low), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(high, high));
            let nans = u32::from(a) | u32::from(b) << 16;
            let (a, b) = (_mm512_castps_si512(low), _mm512_castps_si512(high));
            let signs = u32::from(_mm512_movepi32_mask(a)) | u32::from(_mm512_movepi32_mask(b)) << 16;
            _mm512_or_si512(_mm512_maskz_set1_epi16(nans, nan), _mm512_maskz_set1_epi16(signs, minus))
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: __m512i) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi16_epi8(x)) }
    }
}

impl Bits32 for __m256i {
    one_instruction! {
        set(x: i32) -> Self = _mm256_set1_epi32;
        and(a: Self, b: Self) -> Self = _mm256_and_si256;
        or(a: Self, b: Self) -> Self = _mm256_or_si256;
        plus(a: Self, b: Self) -> Self = _mm256_add_epi32;
        shl(x: Self) -> Self = _mm256_slli_epi32::<16>;
        shr(x: Self) -> Self = _mm256_srli_epi32::<16>;
    }
    #[inline(always)]
    unsafe fn where_above(a: Self, b: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { _mm256_blendv_epi8(otherwise, then, _mm256_cmpgt_epi32(a, b)) }
    }
}

impl Bits32 for __m512i {
    one_instruction! {
        set(x: i32) -> Self = _mm512_set1_epi32;
        and(a: Self, b: Self) -> Self = _mm512_and_si512;
        or(a: Self, b: Self) -> Self = _mm512_or_si512;
        plus(a: Self, b: Self) -> Self = _mm512_add_epi32;
        shl(x: Self) -> Self = _mm512_slli_epi32::<16>;
        shr(x: Self) -> Self = _mm512_srli_epi32::<16>;
    }
    #[inline(always)]
    unsafe fn where_above(a: Self, b: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_mov_epi32(otherwise, _mm512_cmpgt_epi32_mask(a, b), then) }
    }
}
