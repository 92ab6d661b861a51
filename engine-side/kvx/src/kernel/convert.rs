//! Quantises and dequantises rows of contiguous elements.
//!
//! Invariant: every instruction set gives the same bits. The plain loops over
//! `float` define them, and the compiler vectorises them for what every CPU of
//! the target has; on x86-64 there are kernels for wider sets, and the widest
//! that the CPU has is chosen when the call starts.

#[cfg(target_arch = "x86_64")]
use super::convert_x86::{self as x86, InF16, Vectors};
use super::float::{Bf16, E4m3, E5m2, F16, F32, Narrow, Wide};
#[cfg(not(target_arch = "x86_64"))]
use super::float::{Narrow as InF16, Wide as Vectors};
use super::stream::LINE;
use crate::dtype::DType;

/// Rows of contiguous elements that share a scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub count: usize,
    /// Elements of a row.
    pub n: usize,
    /// Bytes from a row to the next.
    pub src_step: usize,
    pub dst_step: usize,
    /// Whether to store past the caches, where a kernel can and the destination is aligned.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub stream: bool,
}

impl Rows {
    pub fn one(n: usize) -> Self {
        Rows { count: 1, n, src_step: 0, dst_step: 0, stream: false }
    }

    /// Whether to store past the caches into rows from `dst` on.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub fn streams_to(&self, dst: *mut u8) -> bool {
        self.stream && (dst.addr() | self.dst_step).is_multiple_of(LINE)
    }
}

/// Converts rows from `src` to `dst` with one scale.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of the rows, in elements of the types that
/// the function was picked for, at any alignment, and they must not overlap.
pub(crate) type Convert = unsafe fn(src: *const u8, dst: *mut u8, rows: Rows, scale: f32);

/// What there is a kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// The plain loops, as the compiler vectorises them for every CPU of the target.
    Baseline,
    /// With FMA and F16C, which every such CPU has.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// With BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// From the narrowest to the widest.
    pub const ALL: &[Isa] = &[
        Isa::Baseline,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512,
    ];

    /// Whether this CPU has it.
    pub fn available(self) -> bool {
        match self {
            Isa::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
        }
    }

    /// The widest that this CPU has.
    pub fn detect() -> Isa {
        let widest = Isa::ALL.iter().rev().find(|isa| isa.available());
        widest.copied().unwrap_or(Isa::Baseline)
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
pub(super) const STEP: usize = 32;

/// Elements `done..n` of a row.
///
/// # Safety
/// As [`Convert`].
#[inline(always)]
unsafe fn quantise_row<W: Wide, N: Narrow>(src: *const u8, dst: *mut u8, mut done: usize, n: usize, scale: f32) {
    let src = src.cast::<W::Bits>();
    while done + STEP <= n {
        // SAFETY: the caller vouches for `n` elements; arrays of plain bits have no invalid
        // values, and unaligned access is asked for.
        unsafe {
            let from = src.add(done).cast::<[W::Bits; STEP]>().read_unaligned();
            let mut to = [0; STEP];
            for (to, bits) in to.iter_mut().zip(from) {
                *to = N::encode(W::decode(bits) / scale);
            }
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

/// Elements `done..n` of a row.
///
/// # Safety
/// As [`Convert`].
#[inline(always)]
unsafe fn dequantise_row<W: Wide, N: Narrow>(src: *const u8, dst: *mut u8, mut done: usize, n: usize, scale: f32) {
    let dst = dst.cast::<W::Bits>();
    while done + STEP <= n {
        // SAFETY: as in `quantise_row`.
        unsafe {
            let from = src.add(done).cast::<[u8; STEP]>().read_unaligned();
            let mut to = [W::encode(0.0); STEP];
            for (to, bits) in to.iter_mut().zip(from) {
                *to = W::encode(N::decode(bits) * scale);
            }
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

/// A function that picks the loop or a kernel. Kernels leave the rest of each row to the loop,
/// and all of it where they can not use the scale.
macro_rules! picks {
    ($pick:ident, $row:ident, $avx2:ident, $avx512:ident) => {
        fn $pick<W: Vectors, N: InF16>(isa: Isa) -> Convert {
            /// The elements of each row from `done` on.
            ///
            /// # Safety
            /// As for [`Convert`].
            #[inline(always)]
            unsafe fn rest<W: Vectors, N: InF16>(s: *const u8, d: *mut u8, done: usize, rows: Rows, x: f32) {
                if done < rows.n {
                    for row in 0..rows.count {
                        // SAFETY: the row is one of the caller's.
                        unsafe { $row::<W, N>(s.add(row * rows.src_step), d.add(row * rows.dst_step), done, rows.n, x) }
                    }
                }
            }
            /// # Safety
            /// As for [`Convert`].
            unsafe fn baseline<W: Vectors, N: InF16>(s: *const u8, d: *mut u8, rows: Rows, x: f32) {
                // SAFETY: the caller's promise, passed on.
                unsafe { rest::<W, N>(s, d, 0, rows, x) }
            }
            /// # Safety
            /// As for [`Convert`], on a CPU that has this.
            #[cfg(target_arch = "x86_64")]
            unsafe fn avx2<W: Vectors, N: InF16>(s: *const u8, d: *mut u8, rows: Rows, x: f32) {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    let fused = x86::FUSED.contains(&x);
                    let done = if fused { x86::$avx2::<W, N>(s, d, rows, x) } else { 0 };
                    rest::<W, N>(s, d, done, rows, x)
                }
            }
            /// # Safety
            /// As for [`Convert`], on a CPU that has this.
            #[cfg(target_arch = "x86_64")]
            unsafe fn avx512<W: Vectors, N: InF16>(s: *const u8, d: *mut u8, rows: Rows, x: f32) {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    let fused = x86::FUSED.contains(&x);
                    let done = if fused { x86::$avx512::<W, N>(s, d, rows, x) } else { 0 };
                    rest::<W, N>(s, d, done, rows, x)
                }
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

picks!(pick_quantise, quantise_row, quantise_avx2, quantise_avx512);
picks!(pick_dequantise, dequantise_row, dequantise_avx2, dequantise_avx512);

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Once;

    use super::*;

    /// The tests of the crate compare what the CPU at hand picks with a reference; this compares
    /// everything that it has with each other: every 16-bit number, at lengths around the steps.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let wide = [DType::F16, DType::BF16, DType::F32];
        let narrow = [DType::F8E4M3, DType::F8E5M2];
        let codes: Vec<u8> = (0..=255).cycle().take(1031).collect();
        for (w, n) in wide.into_iter().flat_map(|w| narrow.map(|n| (w, n))) {
            // Of F32, each 16-bit number is the upper half, and a hash of it the lower.
            let bits: Vec<u8> = (0..=0xffffu32)
                .flat_map(|i| match w.size() {
                    2 => (i as u16).to_le_bytes().to_vec(),
                    _ => (i << 16 | i.wrapping_mul(40503) >> 8 & 0xffff).to_le_bytes().to_vec(),
                })
                .collect();
            for scale in [1.0f32, 0.3, 1e-9, 1.1e-9, 1e9, 1.2e9, 1e-30, f32::MAX] {
                for n_elements in [0, 1, 31, 32, 33, 0xffff, 0x10000] {
                    let run = |isa| {
                        let mut out = vec![0xEE; n_elements + 1];
                        let convert = quantise(isa, w, n).unwrap();
                        // SAFETY: both hold that many elements, and the CPU has `isa`.
                        unsafe { convert(bits.as_ptr(), out.as_mut_ptr(), Rows::one(n_elements), scale) };
                        assert_eq!(out[n_elements], 0xEE);
                        out
                    };
                    all_alike(run, &format!("{w:?} to {n:?}, {n_elements} / {scale}"));
                }
                let run = |isa| {
                    let mut out = vec![0xEE; codes.len() * w.size() + 1];
                    let convert = dequantise(isa, n, w).unwrap();
                    // SAFETY: as above.
                    unsafe { convert(codes.as_ptr(), out.as_mut_ptr(), Rows::one(codes.len()), scale) };
                    assert_eq!(out.pop(), Some(0xEE));
                    out
                };
                all_alike(run, &format!("{n:?} to {w:?} * {scale}"));
            }
        }
    }

    fn all_alike(run: impl Fn(Isa) -> Vec<u8>, what: &str) {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            for isa in Isa::ALL.iter().filter(|isa| !isa.available()) {
                // Not by eprintln, of which nothing is shown where a test passes.
                writeln!(std::io::stderr(), "skipped: kvx's conversions by {isa:?}, which this CPU has not").unwrap();
            }
        });
        let baseline = run(Isa::Baseline);
        for isa in Isa::ALL.iter().filter(|isa| isa.available()) {
            let got = run(*isa);
            let wrong = got.iter().zip(&baseline).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{isa:?}: {what}");
        }
    }
}
