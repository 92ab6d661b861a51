//! The conversions of `convert`, by hand for AVX2 and AVX-512: one kernel each way, over any [`Width`].
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

use std::ops::RangeInclusive;

use super::convert::Rows;
use super::float::{Bits32, E4m3, E5m2, Narrow};
pub(super) use super::vectors_x86::Vectors;
use super::widths_x86::{Avx2, Avx512, Width};

/// Scales for which the fused division is exact, with room: 2^-30 to 2^30.
pub(super) const FUSED: RangeInclusive<f32> = 9.313226e-10..=1.0737418e9;

/// How an 8-bit type lies in an F16.
pub(super) trait InF16: Narrow {
    /// Where its last bit is: 7 or 8.
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

/// Elements of a step.
const fn step<V: Width>() -> usize {
    2 * V::LANES
}

/// Quantises the first whole steps of each row and returns how many elements those are.
///
/// # Safety
/// That of [`Width`]; as `Convert` otherwise, with a scale in [`FUSED`].
#[inline(always)]
unsafe fn quantise<V: Width, W: Vectors, N: InF16>(src: *const u8, dst: *mut u8, rows: Rows, scale: f32) -> usize {
    let size = size_of::<W::Bits>();
    let whole = rows.n / step::<V>() * step::<V>();
    // SAFETY: the instruction set is the caller's promise; elements `done..done + step` of a row are on both sides.
    unsafe {
        let s = V::set(scale * N::FACTOR);
        let r = V::set(1.0 / (scale * N::FACTOR));
        for row in 0..rows.count {
            let (src, dst) = (src.add(row * rows.src_step), dst.add(row * rows.dst_step));
            for done in (0..whole).step_by(step::<V>()) {
                let from = src.add(done * size);
                let low = rounded::<V, N>(W::load::<V>(from), s, r);
                let high = rounded::<V, N>(W::load::<V>(from.add(V::LANES * size)), s, r);
                let h = V::I::and(V::join(low, high), V::set16(0x7fff));
                let h = V::min16(h, V::set16(N::LARGEST));
                let code = if N::SHIFT == 8 { V::shr16::<8>(h) } else { V::shr16::<7>(h) };
                V::store_bytes(dst.add(done), V::I::or(code, W::marks::<V>(from)));
            }
        }
    }
    whole
}

/// `x / s`, rounded to the bits that the 8-bit type has, as F16. `r` is `1 / s`.
///
/// # Safety
/// That of [`Width`].
#[inline(always)]
unsafe fn rounded<V: Width, N: InF16>(x: V::F, s: V::F, r: V::F) -> V::H {
    // SAFETY: the caller's promise.
    unsafe {
        let q = V::mul(x, r);
        let q = V::fmadd(V::fnmadd(q, s, x), r, q);
        let exponent = V::I::and(V::bits(q), V::I::set(EXPONENT));
        let exponent = V::max32(exponent, V::I::set(SMALLEST_NORMAL));
        let place = V::float(V::I::plus(exponent, V::I::set(place_of::<N>())));
        V::to_f16(V::sub(V::add(q, place), place))
    }
}

/// Dequantises the first whole steps of each row and returns how many elements those are.
///
/// # Safety
/// As [`quantise`].
#[inline(always)]
unsafe fn dequantise<V: Width, W: Vectors, N: InF16>(src: *const u8, dst: *mut u8, rows: Rows, scale: f32) -> usize {
    // SAFETY: the caller's promise, and what the steps write is aligned where it has to be.
    unsafe {
        if rows.streams_to(dst) {
            dequantise_to::<V, W, N, true>(src, dst, rows, scale)
        } else {
            dequantise_to::<V, W, N, false>(src, dst, rows, scale)
        }
    }
}

/// # Safety
/// As [`dequantise`]; `dst` and its step are aligned to lines where `STREAM`.
#[inline(always)]
unsafe fn dequantise_to<V: Width, W: Vectors, N: InF16, const STREAM: bool>(
    src: *const u8,
    dst: *mut u8,
    rows: Rows,
    scale: f32,
) -> usize {
    let size = size_of::<W::Bits>();
    let whole = rows.n / step::<V>() * step::<V>();
    // SAFETY: as in `quantise`.
    unsafe {
        let factor = V::set(scale * N::FACTOR);
        for row in 0..rows.count {
            let (src, dst) = (src.add(row * rows.src_step), dst.add(row * rows.dst_step));
            for done in (0..whole).step_by(step::<V>()) {
                let code = V::load_bytes(src.add(done));
                let high = V::shl16::<8>(code);
                let h = if N::SHIFT == 8 {
                    high
                } else {
                    let code = V::I::and(code, V::set16(0x7f));
                    let abs = V::where_equal16(code, V::set16(0x7f), 0x7e00, V::shl16::<7>(code));
                    V::I::or(abs, V::I::and(high, V::set16(i16::MIN)))
                };
                let [low, high] = V::halves(h);
                let to = dst.add(done * size);
                W::store::<V, STREAM>(to, V::mul(V::from_f16(low), factor));
                W::store::<V, STREAM>(to.add(V::LANES * size), V::mul(V::from_f16(high), factor));
            }
        }
    }
    whole
}

/// A kernel with an instruction set for the compiler to use.
macro_rules! with_features {
    ($name:ident, $kernel:ident, $width:ty, $features:literal) => {
        /// # Safety
        /// As the kernel, on a CPU that has the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<W: Vectors, N: InF16>(
            src: *const u8,
            dst: *mut u8,
            rows: Rows,
            scale: f32,
        ) -> usize {
            // SAFETY: the caller's promise.
            unsafe { $kernel::<$width, W, N>(src, dst, rows, scale) }
        }
    };
}

with_features!(quantise_avx2, quantise, Avx2, "avx2,fma,f16c");
with_features!(dequantise_avx2, dequantise, Avx2, "avx2,fma,f16c");
with_features!(quantise_avx512, quantise, Avx512, "avx512f,avx512bw,avx512vl,avx512dq");
with_features!(dequantise_avx512, dequantise, Avx512, "avx512f,avx512bw,avx512vl,avx512dq");
