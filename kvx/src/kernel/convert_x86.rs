//! The conversions of `convert`, by hand for AVX2 and AVX-512.
//!
//! Invariant: the same bits as the portable loop for every input; the tests
//! compare them. Four facts make that cheap:
//! - E5M2 is the upper byte of an F16, and E4M3 is bits 7 to 14 of the F16 of 1/256 of its
//!   value, subnormals included. So the hardware's F16 conversions do most of the work, and the
//!   rest is done on 16-bit lanes.
//! - Adding 1.5 * 2^k and taking it away again rounds to a multiple of its last place. With k picked
//!   by the exponent of what is rounded, but not below the subnormals', that is the rounding to
//!   8 bits, and the conversion to F16 that follows is exact.
//! - With `r = 1 / s` rounded, `q = x * r` and `q + (x - q * s) * r` in fused steps is `x / s`
//!   correctly rounded (Markstein), where nothing over- or underflows. With `s` in [`FUSED`]
//!   it does so only where the result saturates or is zero in any case.
//! - What overflows on the way ends as an F16 that is infinity or NaN and is clamped like all
//!   that is too large; whether a NaN comes out, and the sign, are decided by `x` alone.

use std::arch::x86_64::*;
use std::ops::RangeInclusive;

use super::convert::Rows;
use super::float::{E4m3, E5m2, Narrow};
use super::vectors_x86::NEAREST;
pub(super) use super::vectors_x86::Vectors;

/// Scales for which the fused division is exact, with room: 2^-30 to 2^30.
pub(super) const FUSED: RangeInclusive<f32> = 9.313226e-10..=1.0737418e9;

/// Elements per step of both kernels.
pub(super) const STEP: usize = 32;

/// How an 8-bit type lies in an F16.
pub(super) trait InF16: Narrow {
    /// Where its last bit is.
    const SHIFT: u32;
    /// Its value over that of the F16.
    const FACTOR: f32;
    /// The bits of the F16 of its largest finite value.
    const LARGEST: i16;
    /// The bits of the F32 that are to be rounded away: all of the mantissa but its own.
    const CUT: i32;
}

impl InF16 for E4m3 {
    const SHIFT: u32 = 7;
    const FACTOR: f32 = 256.0;
    const LARGEST: i16 = 0x3f00;
    const CUT: i32 = 20;
}

impl InF16 for E5m2 {
    const SHIFT: u32 = 8;
    const FACTOR: f32 = 1.0;
    const LARGEST: i16 = 0x7b00;
    const CUT: i32 = 21;
}

/// The exponent bits of an F32, and those of the smallest normal F16.
const EXPONENT: i32 = 0x7f80_0000;
const SMALLEST_NORMAL: i32 = 113 << 23;

/// What makes, of the exponent of what is rounded, the number that rounds it when it is added: half
/// more than a power of two, so that the sum of neither sign leaves its binade.
const fn place_of<N: InF16>() -> i32 {
    (N::CUT << 23) + (1 << 22)
}

/// Quantises the first `n / STEP * STEP` elements of each row and returns how many those are.
///
/// # Safety
/// AVX-512 F, BW, VL and DQ; as `Convert` otherwise, with a scale in [`FUSED`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn quantise_avx512<W: Vectors, N: InF16>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    let size = size_of::<W::Bits>();
    let s = _mm512_set1_ps(scale * N::FACTOR);
    let r = _mm512_set1_ps(1.0 / (scale * N::FACTOR));
    let shift = _mm_cvtsi32_si128(N::SHIFT as i32);
    let whole = rows.n / STEP * STEP;
    for row in 0..rows.count {
        // SAFETY: the row is one of the caller's.
        let (src, dst) = unsafe { (src.add(row * rows.src_step), dst.add(row * rows.dst_step)) };
        for done in (0..whole).step_by(STEP) {
            let mut halves = [_mm256_setzero_si256(); 2];
            for (i, half) in halves.iter_mut().enumerate() {
                // SAFETY: 32 elements from `done` on are there; the features are this function's.
                let x = unsafe { W::load16(src.add((done + 16 * i) * size)) };
                let q = _mm512_mul_ps(x, r);
                let q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, s, x), r, q);
                let exponent = _mm512_and_si512(_mm512_castps_si512(q), _mm512_set1_epi32(EXPONENT));
                let exponent = _mm512_max_epi32(exponent, _mm512_set1_epi32(SMALLEST_NORMAL));
                let place = _mm512_add_epi32(exponent, _mm512_set1_epi32(place_of::<N>()));
                let place = _mm512_castsi512_ps(place);
                let rounded = _mm512_sub_ps(_mm512_add_ps(q, place), place);
                *half = _mm512_cvtps_ph::<NEAREST>(rounded);
            }
            let h = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
            let h = _mm512_and_si512(h, _mm512_set1_epi16(0x7fff));
            let h = _mm512_min_epu16(h, _mm512_set1_epi16(N::LARGEST));
            // SAFETY: as above.
            let marks = unsafe { W::marks32(src.add(done * size)) };
            let code = _mm512_or_si512(_mm512_srl_epi16(h, shift), marks);
            // SAFETY: room for 32 bytes from `done` on.
            unsafe { _mm256_storeu_si256(dst.add(done).cast(), _mm512_cvtepi16_epi8(code)) };
        }
    }
    whole
}

/// Dequantises the first `n / STEP * STEP` elements of each row and returns how many those are.
///
/// # Safety
/// As [`quantise_avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn dequantise_avx512<W: Vectors, N: InF16>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    // SAFETY: the caller's promise, and what the steps write is aligned where it has to be.
    unsafe {
        if rows.streams_to(dst) {
            dequantise_avx512_to::<W, N, true>(src, dst, rows, scale)
        } else {
            dequantise_avx512_to::<W, N, false>(src, dst, rows, scale)
        }
    }
}

/// # Safety
/// As [`dequantise_avx512`]; `dst` and its step are aligned to lines where `STREAM`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn dequantise_avx512_to<W: Vectors, N: InF16, const STREAM: bool>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    let size = size_of::<W::Bits>();
    let factor = _mm512_set1_ps(scale * N::FACTOR);
    let whole = rows.n / STEP * STEP;
    for row in 0..rows.count {
        // SAFETY: the row is one of the caller's.
        let (src, dst) = unsafe { (src.add(row * rows.src_step), dst.add(row * rows.dst_step)) };
        for done in (0..whole).step_by(STEP) {
            // SAFETY: 32 bytes from `done` on are there.
            let code = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(src.add(done).cast()) });
            let high = _mm512_slli_epi16::<8>(code);
            let h = if N::SHIFT == 8 {
                high
            } else {
                let code = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
                let nan = _mm512_cmpeq_epi16_mask(code, _mm512_set1_epi16(0x7f));
                let abs = _mm512_slli_epi16::<7>(code);
                let abs = _mm512_mask_mov_epi16(abs, nan, _mm512_set1_epi16(0x7e00));
                _mm512_or_si512(abs, _mm512_and_si512(high, _mm512_set1_epi16(i16::MIN)))
            };
            for (i, h) in [_mm512_castsi512_si256(h), _mm512_extracti64x4_epi64::<1>(h)].into_iter().enumerate() {
                let x = _mm512_mul_ps(_mm512_cvtph_ps(h), factor);
                // SAFETY: room for 32 elements from `done` on; the features are this function's.
                unsafe { W::store16::<STREAM>(dst.add((done + 16 * i) * size), x) };
            }
        }
    }
    whole
}

/// Quantises the first `n / STEP * STEP` elements of each row and returns how many those are.
///
/// # Safety
/// AVX2, FMA and F16C; as `Convert` otherwise, with a scale in [`FUSED`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantise_avx2<W: Vectors, N: InF16>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    let size = size_of::<W::Bits>();
    let s = _mm256_set1_ps(scale * N::FACTOR);
    let r = _mm256_set1_ps(1.0 / (scale * N::FACTOR));
    let shift = _mm_cvtsi32_si128(N::SHIFT as i32);
    let whole = rows.n / STEP * STEP;
    for row in 0..rows.count {
        // SAFETY: the row is one of the caller's.
        let (src, dst) = unsafe { (src.add(row * rows.src_step), dst.add(row * rows.dst_step)) };
        for done in (0..whole).step_by(STEP) {
            let mut codes = [_mm256_setzero_si256(); 2];
            for (j, code) in codes.iter_mut().enumerate() {
                let at = done + 16 * j;
                let mut halves = [_mm_setzero_si128(); 2];
                for (i, half) in halves.iter_mut().enumerate() {
                    // SAFETY: 32 elements from `done` on are there; the features are this function's.
                    let x = unsafe { W::load8(src.add((at + 8 * i) * size)) };
                    let q = _mm256_mul_ps(x, r);
                    let q = _mm256_fmadd_ps(_mm256_fnmadd_ps(q, s, x), r, q);
                    let exponent = _mm256_and_si256(_mm256_castps_si256(q), _mm256_set1_epi32(EXPONENT));
                    let exponent = _mm256_max_epi32(exponent, _mm256_set1_epi32(SMALLEST_NORMAL));
                    let place = _mm256_add_epi32(exponent, _mm256_set1_epi32(place_of::<N>()));
                    let place = _mm256_castsi256_ps(place);
                    let rounded = _mm256_sub_ps(_mm256_add_ps(q, place), place);
                    *half = _mm256_cvtps_ph::<NEAREST>(rounded);
                }
                // SAFETY: as above.
                let marks = unsafe { W::marks16(src.add(at * size)) };
                let h = _mm256_set_m128i(halves[1], halves[0]);
                let h = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff));
                let h = _mm256_min_epu16(h, _mm256_set1_epi16(N::LARGEST));
                *code = _mm256_or_si256(_mm256_srl_epi16(h, shift), marks);
            }
            let bytes = _mm256_packus_epi16(codes[0], codes[1]);
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
            // SAFETY: room for 32 bytes from `done` on.
            unsafe { _mm256_storeu_si256(dst.add(done).cast(), bytes) };
        }
    }
    whole
}

/// Dequantises the first `n / STEP * STEP` elements of each row and returns how many those are.
///
/// # Safety
/// As [`quantise_avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dequantise_avx2<W: Vectors, N: InF16>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    // SAFETY: the caller's promise, and what the steps write is aligned where it has to be.
    unsafe {
        if rows.streams_to(dst) {
            dequantise_avx2_to::<W, N, true>(src, dst, rows, scale)
        } else {
            dequantise_avx2_to::<W, N, false>(src, dst, rows, scale)
        }
    }
}

/// # Safety
/// As [`dequantise_avx2`]; `dst` and its step are aligned to lines where `STREAM`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dequantise_avx2_to<W: Vectors, N: InF16, const STREAM: bool>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    let size = size_of::<W::Bits>();
    let factor = _mm256_set1_ps(scale * N::FACTOR);
    let whole = rows.n / STEP * STEP;
    for row in 0..rows.count {
        // SAFETY: the row is one of the caller's.
        let (src, dst) = unsafe { (src.add(row * rows.src_step), dst.add(row * rows.dst_step)) };
        for done in (0..whole).step_by(STEP) {
            for j in 0..2 {
                let at = done + 16 * j;
                // SAFETY: 16 bytes from `at` on are there.
                let code = _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(src.add(at).cast()) });
                let high = _mm256_slli_epi16::<8>(code);
                let h = if N::SHIFT == 8 {
                    high
                } else {
                    let code = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
                    let nan = _mm256_cmpeq_epi16(code, _mm256_set1_epi16(0x7f));
                    let abs = _mm256_slli_epi16::<7>(code);
                    let abs = _mm256_blendv_epi8(abs, _mm256_set1_epi16(0x7e00), nan);
                    _mm256_or_si256(abs, _mm256_and_si256(high, _mm256_set1_epi16(i16::MIN)))
                };
                for (i, h) in [_mm256_castsi256_si128(h), _mm256_extracti128_si256::<1>(h)].into_iter().enumerate() {
                    let x = _mm256_mul_ps(_mm256_cvtph_ps(h), factor);
                    // SAFETY: room for 32 elements from `done` on; the features are this function's.
                    unsafe { W::store8::<STREAM>(dst.add((at + 8 * i) * size), x) };
                }
            }
        }
    }
    whole
}
