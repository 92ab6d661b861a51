//! Quantises and dequantises rows of contiguous elements.
//!
//! Invariant: every instruction set gives the same bits (see `float`). The
//! same generic loop is compiled once per set, and the widest that the CPU
//! has is chosen when the call starts.

use super::float::{Bf16, E4m3, E5m2, F16, F32, Narrow, Wide};
use crate::dtype::DType;

/// Converts `n` elements from `src` to `dst` with one scale.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `n` elements of the types that the
/// function was picked for, at any alignment, and they must not overlap.
pub(crate) type Convert = unsafe fn(src: *const u8, dst: *mut u8, n: usize, scale: f32);

/// What the loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// What every CPU of the target has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The widest that this CPU has.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if avx512 {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    }
}

/// `stored = round(x / scale)`: from `wide` to `narrow`. `None` where they are no such types.
pub(crate) fn quantise(isa: Isa, wide: DType, narrow: DType) -> Option<Convert> {
    Some(match (wide, narrow) {
        (DType::F16, DType::F8E4M3) => pick_quantise::<F16, E4m3>(isa),
        (DType::F16, DType::F8E5M2) => pick_quantise::<F16, E5m2>(isa),
        (DType::BF16, DType::F8E4M3) => pick_quantise::<Bf16, E4m3>(isa),
        (DType::BF16, DType::F8E5M2) => pick_quantise::<Bf16, E5m2>(isa),
        (DType::F32, DType::F8E4M3) => pick_quantise::<F32, E4m3>(isa),
        (DType::F32, DType::F8E5M2) => pick_quantise::<F32, E5m2>(isa),
        _ => return None,
    })
}

/// `x = stored * scale`: from `narrow` to `wide`. `None` where they are no such types.
pub(crate) fn dequantise(isa: Isa, narrow: DType, wide: DType) -> Option<Convert> {
    Some(match (wide, narrow) {
        (DType::F16, DType::F8E4M3) => pick_dequantise::<F16, E4m3>(isa),
        (DType::F16, DType::F8E5M2) => pick_dequantise::<F16, E5m2>(isa),
        (DType::BF16, DType::F8E4M3) => pick_dequantise::<Bf16, E4m3>(isa),
        (DType::BF16, DType::F8E5M2) => pick_dequantise::<Bf16, E5m2>(isa),
        (DType::F32, DType::F8E4M3) => pick_dequantise::<F32, E4m3>(isa),
        (DType::F32, DType::F8E5M2) => pick_dequantise::<F32, E5m2>(isa),
        _ => return None,
    })
}

/// Elements per step of the loops: whole vectors of every width, and small enough that the
/// compiler keeps the step in registers.
const STEP: usize = 32;

#[inline(always)]
unsafe fn quantise_loop<W: Wide, N: Narrow>(src: *const u8, dst: *mut u8, n: usize, scale: f32) {
    let src = src.cast::<W::Bits>();
    let mut done = 0;
    while done + STEP <= n {
        // SAFETY: the caller vouches for `n` elements; arrays of plain bits have no invalid
        // values, and unaligned access is asked for.
        unsafe {
            let from = src.add(done).cast::<[W::Bits; STEP]>().read_unaligned();
            let to = from.map(|bits| N::encode(W::decode(bits) / scale));
            dst.add(done).cast::<[u8; STEP]>().write_unaligned(to);
        }
        done += STEP;
    }
    for i in done..n {
        // SAFETY: `i < n`, as above.
        unsafe {
            let x = W::decode(src.add(i).read_unaligned());
            dst.add(i).write(N::encode(x / scale));
        }
    }
}

#[inline(always)]
unsafe fn dequantise_loop<W: Wide, N: Narrow>(src: *const u8, dst: *mut u8, n: usize, scale: f32) {
    let dst = dst.cast::<W::Bits>();
    let mut done = 0;
    while done + STEP <= n {
        // SAFETY: as in `quantise_loop`.
        unsafe {
            let from = src.add(done).cast::<[u8; STEP]>().read_unaligned();
            let to = from.map(|bits| W::encode(N::decode(bits) * scale));
            dst.add(done).cast::<[W::Bits; STEP]>().write_unaligned(to);
        }
        done += STEP;
    }
    for i in done..n {
        // SAFETY: `i < n`, as above.
        unsafe {
            let x = N::decode(src.add(i).read()) * scale;
            dst.add(i).write_unaligned(W::encode(x));
        }
    }
}

/// Compiles a loop for every instruction set, with a function that picks one.
macro_rules! for_each_isa {
    ($pick:ident, $loop:ident) => {
        fn $pick<W: Wide, N: Narrow>(isa: Isa) -> Convert {
            /// # Safety
            /// As for [`Convert`].
            unsafe fn baseline<W: Wide, N: Narrow>(s: *const u8, d: *mut u8, n: usize, x: f32) {
                // SAFETY: the caller's promise is the loop's.
                unsafe { $loop::<W, N>(s, d, n, x) }
            }
            /// # Safety
            /// As for [`Convert`], on a CPU with AVX2.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            unsafe fn avx2<W: Wide, N: Narrow>(s: *const u8, d: *mut u8, n: usize, x: f32) {
                // SAFETY: the caller's promise is the loop's.
                unsafe { $loop::<W, N>(s, d, n, x) }
            }
            /// # Safety
            /// As for [`Convert`], on a CPU with these parts of AVX-512.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
            unsafe fn avx512<W: Wide, N: Narrow>(s: *const u8, d: *mut u8, n: usize, x: f32) {
                // SAFETY: the caller's promise is the loop's.
                unsafe { $loop::<W, N>(s, d, n, x) }
            }
            match isa {
                Isa::Baseline => baseline::<W, N>,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::<W, N>,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::<W, N>,
            }
        }
    };
}

for_each_isa!(pick_quantise, quantise_loop);
for_each_isa!(pick_dequantise, dequantise_loop);
