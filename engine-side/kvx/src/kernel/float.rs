//! Conversions between F32 and the narrow floats, one element at a time.
//!
//! Invariant: round to nearest, ties to even; a NaN stays a NaN and keeps its
//! sign. Written without branches or tables so that the compiler turns a loop
//! over them into vectors of whatever width it is allowed, and every width
//! gives the same bits: it is the same code.
//!
//! The tricks are two. Rounding: add half of what is cut off (less one, plus
//! the lowest bit that stays, so that ties go to even) and cut; a carry runs
//! into the exponent, as it should. Subnormals: adding a number whose last
//! place is the smallest subnormal makes the adder itself round there.

const F32_ABS: u32 = 0x7fff_ffff;
const F32_INFINITY: u32 = 0x7f80_0000;

/// A type that tokens outside of the cache may have.
pub(crate) trait Wide {
    /// The element as it lies in memory.
    type Bits: Copy;
    fn decode(bits: Self::Bits) -> f32;
    fn encode(x: f32) -> Self::Bits;
}

/// An 8-bit type that a cache may have.
pub(crate) trait Narrow {
    fn decode(bits: u8) -> f32;
    /// Saturates: infinities and what is too large become the largest finite value.
    fn encode(x: f32) -> u8;
}

/// As many numbers of 32 bits as a vector has, or one: what a rounding is written in once for all widths.
///
/// # Safety
/// Of all functions: the CPU has the instructions of the type.
#[allow(clippy::missing_safety_doc)] // Said once, above.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) trait Bits32: Copy {
    unsafe fn set(x: i32) -> Self;
    unsafe fn and(a: Self, b: Self) -> Self;
    unsafe fn or(a: Self, b: Self) -> Self;
    /// Wraps.
    unsafe fn plus(a: Self, b: Self) -> Self;
    /// By 16 bits.
    unsafe fn shl(x: Self) -> Self;
    /// By 16 bits, with zeros above.
    unsafe fn shr(x: Self) -> Self;
    /// `then` where `a > b`, as signed numbers.
    unsafe fn where_above(a: Self, b: Self, then: Self, otherwise: Self) -> Self;
}

impl Bits32 for u32 {
    #[inline(always)]
    unsafe fn set(x: i32) -> u32 {
        x as u32
    }
    #[inline(always)]
    unsafe fn and(a: u32, b: u32) -> u32 {
        a & b
    }
    #[inline(always)]
    unsafe fn or(a: u32, b: u32) -> u32 {
        a | b
    }
    #[inline(always)]
    unsafe fn plus(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    unsafe fn shl(x: u32) -> u32 {
        x << 16
    }
    #[inline(always)]
    unsafe fn shr(x: u32) -> u32 {
        x >> 16
    }
    #[inline(always)]
    unsafe fn where_above(a: u32, b: u32, then: u32, otherwise: u32) -> u32 {
        if a as i32 > b as i32 { then } else { otherwise }
    }
}

/// The BF16 nearest to an F32, both as bits.
///
/// # Safety
/// As [`Bits32`].
#[inline(always)]
pub(crate) unsafe fn round_to_bf16<B: Bits32>(bits: B) -> B {
    // SAFETY: the caller's promise.
    unsafe {
        let high = B::shr(bits);
        let half = B::plus(B::and(high, B::set(1)), B::set(0x7fff));
        let rounded = B::shr(B::plus(bits, half));
        let nan = B::or(high, B::set(0x40));
        B::where_above(B::and(bits, B::set(F32_ABS as i32)), B::set(F32_INFINITY as i32), nan, rounded)
    }
}

pub(crate) struct F32;
pub(crate) struct Bf16;
pub(crate) struct F16;
pub(crate) struct E4m3;
pub(crate) struct E5m2;

impl Wide for F32 {
    type Bits = u32;

    #[inline(always)]
    fn decode(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn encode(x: f32) -> u32 {
        x.to_bits()
    }
}

impl Wide for Bf16 {
    type Bits = u16;

    #[inline(always)]
    fn decode(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn encode(x: f32) -> u16 {
        // SAFETY: numbers are there on every CPU.
        unsafe { round_to_bf16(x.to_bits()) as u16 }
    }
}

impl Wide for F16 {
    type Bits = u16;

    #[inline(always)]
    fn decode(bits: u16) -> f32 {
        decode_e5(u32::from(bits & 0x7fff), u32::from(bits >> 15))
    }

    /// What is too large becomes infinity, as IEEE 754 has it.
    #[inline(always)]
    fn encode(x: f32) -> u16 {
        const SMALLEST_NORMAL: u32 = 0x3880_0000; // 2^-14
        const REBIAS: u32 = 112 << 10; // exponent bias 127 to 15
        const SUBNORMAL: f32 = 0.5; // last place 2^-24
        let bits = x.to_bits();
        let abs = bits & F32_ABS;
        let normal = (abs.wrapping_add(0xfff + ((abs >> 13) & 1)) >> 13).wrapping_sub(REBIAS);
        let subnormal = (f32::from_bits(abs) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
        let code = if abs < SMALLEST_NORMAL { subnormal } else { normal.min(0x7c00) };
        let nan = 0x7e00 | (abs >> 13 & 0x3ff);
        let code = if abs > F32_INFINITY { nan } else { code };
        (code | (bits >> 16 & 0x8000)) as u16
    }
}

/// A float of 5 exponent bits of bias 15 whose other bits `abs` end at bit 0 with 10 of mantissa.
#[inline(always)]
fn decode_e5(abs: u32, sign: u32) -> f32 {
    const SUBNORMAL: u32 = 113 << 23; // 2^-14, the value of exponent 1
    let shifted = abs << 13;
    let normal = shifted + (112 << 23);
    let special = shifted | F32_INFINITY;
    let subnormal = (f32::from_bits(shifted | SUBNORMAL) - f32::from_bits(SUBNORMAL)).to_bits();
    let bits = if abs < 0x400 {
        subnormal
    } else if abs >= 0x7c00 {
        special
    } else {
        normal
    };
    f32::from_bits(bits | sign << 31)
}

impl Narrow for E4m3 {
    #[inline(always)]
    fn decode(bits: u8) -> f32 {
        const SUBNORMAL: u32 = 121 << 23; // 2^-6, the value of exponent 1
        let abs = u32::from(bits & 0x7f);
        let shifted = abs << 20;
        let normal = shifted + (120 << 23);
        let subnormal = (f32::from_bits(shifted | SUBNORMAL) - f32::from_bits(SUBNORMAL)).to_bits();
        let value = if abs < 8 { subnormal } else { normal };
        let value = if abs == 0x7f { 0x7fc0_0000 } else { value };
        f32::from_bits(value | u32::from(bits >> 7) << 31)
    }

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        const SMALLEST_NORMAL: u32 = 121 << 23; // 2^-6
        const LAST_PLACE: f32 = 16384.0; // 2^14, whose last place is 2^-9
        encode_fp8::<20, { 120 << 3 }, SMALLEST_NORMAL, 0x7e>(x, LAST_PLACE)
    }
}

impl Narrow for E5m2 {
    /// E5M2 is the upper half of an F16.
    #[inline(always)]
    fn decode(bits: u8) -> f32 {
        decode_e5(u32::from(bits & 0x7f) << 8, u32::from(bits >> 7))
    }

    #[inline(always)]
    fn encode(x: f32) -> u8 {
        const SMALLEST_NORMAL: u32 = 113 << 23; // 2^-14
        const LAST_PLACE: f32 = 128.0; // 2^7, whose last place is 2^-16
        encode_fp8::<21, { 112 << 2 }, SMALLEST_NORMAL, 0x7b>(x, LAST_PLACE)
    }
}

/// `CUT`: mantissa bits that go; `REBIAS`: difference of the biases, in place; `MAX`: the code of
/// the largest finite value.
#[inline(always)]
fn encode_fp8<const CUT: u32, const REBIAS: u32, const SMALLEST_NORMAL: u32, const MAX: u32>(
    x: f32,
    last_place: f32,
) -> u8 {
    const NAN: u32 = 0x7f;
    let bits = x.to_bits();
    let abs = bits & F32_ABS;
    let half = (1 << (CUT - 1)) - 1;
    let normal = (abs.wrapping_add(half + ((abs >> CUT) & 1)) >> CUT).wrapping_sub(REBIAS);
    let subnormal = (f32::from_bits(abs) + last_place).to_bits().wrapping_sub(last_place.to_bits());
    let code = if abs < SMALLEST_NORMAL { subnormal } else { normal.min(MAX) };
    let code = if abs > F32_INFINITY { NAN } else { code };
    (code | (bits >> 24 & 0x80)) as u8
}
