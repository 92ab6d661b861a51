//! The types of tokens as vectors of F32, for any [`Width`].

use super::float::{Bf16, Bits32, F16, F32, Wide, round_to_bf16};
use super::widths_x86::Width;

/// Loads and stores a type as vectors of F32.
///
/// # Safety
/// Of all functions: those of [`Width`], for as many elements at `p` as they speak of.
#[allow(clippy::missing_safety_doc)] // Said once, above.
pub(super) trait Vectors: Wide {
    /// `V::LANES` elements.
    unsafe fn load<V: Width>(p: *const u8) -> V::F;
    /// `V::LANES` elements.
    unsafe fn store<V: Width, const STREAM: bool>(p: *mut u8, x: V::F);
    /// Of `2 * V::LANES` elements, on 16-bit lanes: 0x80 where negative, plus 0x7f where NaN.
    unsafe fn marks<V: Width>(p: *const u8) -> V::I;
}

const NAN: i16 = 0x7f;
const MINUS: i16 = 0x80;

/// [`Vectors::marks`] of a 16-bit type.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn marks_of_halves<V: Width>(p: *const u8, infinity: i16) -> V::I {
    // SAFETY: the caller's promise.
    unsafe {
        let x = V::load(p);
        let abs = V::I::and(x, V::set16(0x7fff));
        let minus = V::I::and(V::shr16::<8>(x), V::set16(MINUS));
        V::I::or(V::where_above16(abs, V::set16(infinity), NAN), minus)
    }
}

// SAFETY (of the blocks below): the promise of the trait.

impl Vectors for F32 {
    #[inline(always)]
    unsafe fn load<V: Width>(p: *const u8) -> V::F {
        // SAFETY: see above.
        unsafe { V::float(V::load(p)) }
    }
    #[inline(always)]
    unsafe fn store<V: Width, const STREAM: bool>(p: *mut u8, x: V::F) {
        // SAFETY: see above.
        unsafe { V::store::<STREAM>(p, V::bits(x)) }
    }
    #[inline(always)]
    unsafe fn marks<V: Width>(p: *const u8) -> V::I {
        // SAFETY: see above.
        unsafe { V::marks(Self::load::<V>(p), Self::load::<V>(p.add(4 * V::LANES)), NAN, MINUS) }
    }
}

impl Vectors for F16 {
    #[inline(always)]
    unsafe fn load<V: Width>(p: *const u8) -> V::F {
        // SAFETY: see above.
        unsafe { V::from_f16(V::load_half(p)) }
    }
    #[inline(always)]
    unsafe fn store<V: Width, const STREAM: bool>(p: *mut u8, x: V::F) {
        // SAFETY: see above.
        unsafe { V::store_half::<STREAM>(p, V::to_f16(x)) }
    }
    #[inline(always)]
    unsafe fn marks<V: Width>(p: *const u8) -> V::I {
        // SAFETY: see above.
        unsafe { marks_of_halves::<V>(p, 0x7c00) }
    }
}

impl Vectors for Bf16 {
    #[inline(always)]
    unsafe fn load<V: Width>(p: *const u8) -> V::F {
        // SAFETY: see above.
        unsafe { V::float(V::I::shl(V::widen(V::load_half(p)))) }
    }
    #[inline(always)]
    unsafe fn store<V: Width, const STREAM: bool>(p: *mut u8, x: V::F) {
        // SAFETY: see above.
        unsafe { V::store_half::<STREAM>(p, V::narrow(round_to_bf16(V::bits(x)))) }
    }
    #[inline(always)]
    unsafe fn marks<V: Width>(p: *const u8) -> V::I {
        // SAFETY: see above.
        unsafe { marks_of_halves::<V>(p, 0x7f80) }
    }
}
