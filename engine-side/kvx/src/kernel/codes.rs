//! Quantises 16-bit numbers by one scale with a table: twice as fast as computing each code, and
//! the same bits, because the table is made by the conversion that it stands for.
//!
//! The code of a positive number never falls as the number grows, and numbers as bits grow in the
//! same order. So the bits are cut into cells of equal length, short enough that a code changes
//! at most once inside of one: a cell is then its first code, and where the next one begins. All
//! that fits 512 cells, and those fit the registers of AVX-512 with VBMI, which looks up 64 bytes
//! at a time in 128.

use super::convert::{Convert, Rows};
#[cfg(target_arch = "x86_64")]
use super::stream::LINE;
use crate::dtype::DType;

const CELLS: usize = 512;

#[repr(C, align(64))]
struct Cells([u8; CELLS]);

/// The codes of one 16-bit type by one scale.
pub(crate) struct Codes {
    /// The code of a cell's first number.
    first: Cells,
    /// How far into a cell the next code begins; more than a cell's length where it does not.
    next: Cells,
    /// Where the cells begin; what is below has the first cell's code, 0.
    start: u16,
    /// The logarithm of a cell's length.
    shift: u32,
    /// The bits of infinity; what is above is NaN.
    infinity: i16,
}

impl Codes {
    /// Tokens of a tile: as many as give a line of codes of a group.
    pub const TOKENS: usize = 8;

    /// `None` where there is no kernel for them, or the scale puts codes closer than cells.
    pub fn new(wide: DType, narrow: DType, convert: Convert, scale: f32) -> Option<Box<Codes>> {
        // The logarithm of a cell's length. Codes are at least 1/16 of a number apart for E4M3, and
        // 1/8 for E5M2, but subnormal numbers need shorter cells, for which F16 has room.
        let (shift, infinity) = match (wide, narrow) {
            (DType::F16, _) => (10 - 4, 0x7c00u16),
            (DType::BF16, DType::F8E4M3) => (7 - 4, 0x7f80),
            (DType::BF16, _) => (7 - 3, 0x7f80),
            _ => return None,
        };
        if !available() {
            return None;
        }
        let numbers: Vec<u16> = (0..=infinity).collect();
        let mut codes = vec![0u8; numbers.len()];
        // SAFETY: both hold that many elements of the types that `convert` is for.
        unsafe { convert(numbers.as_ptr().cast(), codes.as_mut_ptr(), Rows::one(numbers.len()), scale) };
        let length = 1usize << shift;
        let one = codes.partition_point(|code| *code == 0);
        let start = (one >> shift).saturating_sub(1) << shift;
        let mut table = Codes {
            first: Cells([0; CELLS]),
            next: Cells([0xff; CELLS]),
            start: start as u16,
            shift,
            infinity: infinity as i16,
        };
        let largest = *codes.last()?;
        for cell in 0..CELLS {
            let from = (start + cell * length).min(codes.len() - 1);
            let numbers = &codes[from..(from + length).min(codes.len())];
            let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
            // The last cell stands for all that is beyond it, too.
            if last - first > 1 || (cell == CELLS - 1 && first != largest) {
                return None;
            }
            table.first.0[cell] = first;
            if last != first {
                table.next.0[cell] = numbers.partition_point(|code| *code == first) as u8;
            }
        }
        Some(Box::new(table))
    }

    /// Quantises rows; `convert` and `scale` are those that the table was made with, for what is
    /// left at the end of a row.
    ///
    /// # Safety
    /// As [`Convert`].
    pub unsafe fn quantise(&self, src: *const u8, dst: *mut u8, rows: Rows, (convert, scale): (Convert, f32)) {
        // SAFETY: the caller's promise; there is a table only where there is the kernel.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            let done = if rows.streams_to(dst) {
                x86::quantise::<true>(self, src, dst, rows)
            } else {
                x86::quantise::<false>(self, src, dst, rows)
            };
            #[cfg(not(target_arch = "x86_64"))]
            let done = 0;
            if done < rows.n {
                convert(src.add(2 * done), dst.add(done), Rows { n: rows.n - done, ..rows }, scale);
            }
        }
    }

    /// How many of `tokens` tokens [`quantise_groups`](Self::quantise_groups) takes, of heads of so many groups of `group` elements.
    pub fn whole_groups(groups: usize, group: usize, tokens: usize) -> usize {
        if group != GROUP || !groups.is_multiple_of(GROUPS_AT_ONCE) {
            return 0;
        }
        tokens / Codes::TOKENS * Codes::TOKENS
    }

    /// Quantises a head of tokens into groups: tiles are transposed in registers, and leave them as lines of codes.
    ///
    /// # Safety
    /// `src` must be valid for reads of the head's numbers at each of its tokens, and `dst` for writes of their codes at
    /// each of its groups; they must not overlap. The tokens and groups are what [`whole_groups`](Self::whole_groups) takes.
    pub unsafe fn quantise_groups(&self, src: *const u8, dst: *mut u8, head: GroupedHead) {
        // SAFETY: the caller's promise; there is a table only where there is the kernel.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if head.stream && (dst.addr() | head.dst_step).is_multiple_of(LINE) {
                x86::quantise_groups::<true>(self, src, dst, head);
            } else {
                x86::quantise_groups::<false>(self, src, dst, head);
            }
        }
    }
}

/// A head of some tokens, whose elements lie in groups of [`GROUP`] in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupedHead {
    pub tokens: usize,
    pub groups: usize,
    /// Bytes from a token to the next.
    pub src_step: usize,
    /// Bytes from a group to the next, in the cache; there the tokens of a group follow each other.
    pub dst_step: usize,
    /// Bytes from a number to the one that is read into the first-level cache meanwhile. Only a hint.
    pub ahead: isize,
    /// Whether to store past the caches, where the destination is aligned.
    pub stream: bool,
}

/// Elements of a group, and the bytes of its numbers.
const GROUP: usize = 8;
const GROUP_BYTES: usize = 16;
/// Groups of a tile: those of a line of a token's numbers.
const GROUPS_AT_ONCE: usize = 4;

fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::super::transpose_x86::{put, transposed};
    use super::{CELLS, Cells, Codes, GROUP, GROUP_BYTES, GROUPS_AT_ONCE, GroupedHead, Rows};

    /// Elements of a step.
    const STEP: usize = 64;

    /// The lower, or else the upper, bytes of 64 numbers in two vectors.
    const fn bytes_of_words(upper: usize) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut i = 0;
        while i < 64 {
            bytes[i] = (2 * i + upper) as u8;
            i += 1;
        }
        bytes
    }

    /// The entries of a table under 9-bit indices: the lower 8 bits, and the masks of bits 7 and 8.
    ///
    /// # Safety
    /// AVX-512 F, BW and VBMI.
    #[inline(always)]
    unsafe fn look_up(table: &[__m512i; CELLS / 64], index: __m512i, bit7: __mmask64, bit8: __mmask64) -> __m512i {
        let [a, b, c, d, e, f, g, h] = *table;
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_permutex2var_epi8(a, index, b);
            let low = _mm512_mask_blend_epi8(bit7, low, _mm512_permutex2var_epi8(c, index, d));
            let high = _mm512_permutex2var_epi8(e, index, f);
            let high = _mm512_mask_blend_epi8(bit7, high, _mm512_permutex2var_epi8(g, index, h));
            _mm512_mask_blend_epi8(bit8, low, high)
        }
    }

    /// # Safety
    /// AVX-512 F.
    #[inline(always)]
    unsafe fn load(cells: &Cells) -> [__m512i; CELLS / 64] {
        // SAFETY: the caller's promise; a table is that many vectors, and aligned.
        std::array::from_fn(|i| unsafe { _mm512_load_si512(cells.0.as_ptr().add(64 * i).cast()) })
    }

    /// What does not change from step to step.
    struct Constants<'a> {
        codes: &'a Codes,
        first: [__m512i; CELLS / 64],
        lower: __m512i,
        upper: __m512i,
        start: __m512i,
        infinity: __m512i,
        inside: __m512i,
        shift: __m128i,
    }

    impl<'a> Constants<'a> {
        /// # Safety
        /// AVX-512 F, BW and VBMI.
        #[inline(always)]
        unsafe fn of(codes: &'a Codes) -> Self {
            const LOWER: [u8; 64] = bytes_of_words(0);
            const UPPER: [u8; 64] = bytes_of_words(1);
            // SAFETY: the caller's promise; constants and tables of the lengths that are read.
            unsafe {
                Constants {
                    codes,
                    first: load(&codes.first),
                    lower: _mm512_loadu_si512(LOWER.as_ptr().cast()),
                    upper: _mm512_loadu_si512(UPPER.as_ptr().cast()),
                    start: _mm512_set1_epi16(codes.start as i16),
                    infinity: _mm512_set1_epi16(codes.infinity),
                    inside: _mm512_set1_epi8((1 << codes.shift) - 1),
                    shift: _mm_cvtsi32_si128(codes.shift as i32),
                }
            }
        }

        /// The codes of 64 numbers.
        ///
        /// # Safety
        /// AVX-512 F, BW and VBMI.
        #[inline(always)]
        unsafe fn codes(&self, low: __m512i, high: __m512i) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe {
                let one = _mm512_set1_epi8(1);
                let abs = _mm512_set1_epi16(0x7fff);
                let (a, b) = (_mm512_and_si512(low, abs), _mm512_and_si512(high, abs));
                let nan = u64::from(_mm512_cmpgt_epi16_mask(a, self.infinity))
                    | u64::from(_mm512_cmpgt_epi16_mask(b, self.infinity)) << 32;
                let last = _mm512_set1_epi16(CELLS as i16 - 1);
                let cell_a = _mm512_min_epu16(_mm512_srl_epi16(_mm512_subs_epu16(a, self.start), self.shift), last);
                let cell_b = _mm512_min_epu16(_mm512_srl_epi16(_mm512_subs_epu16(b, self.start), self.shift), last);
                let index = _mm512_permutex2var_epi8(cell_a, self.lower, cell_b);
                let bit8 = _mm512_permutex2var_epi8(cell_a, self.upper, cell_b);
                let bit8 = _mm512_test_epi8_mask(bit8, one);
                let bit7 = _mm512_movepi8_mask(index);
                let place = _mm512_and_si512(_mm512_permutex2var_epi8(a, self.lower, b), self.inside);
                // The registers are too few for both tables, and what the compiler puts on the stack may lie across
                // two pages there: half as fast, in one process of ten. In its place, it is read in whole lines.
                let next = load(black_box(&self.codes.next));
                let first = look_up(&self.first, index, bit7, bit8);
                let next = look_up(&next, index, bit7, bit8);
                let code = _mm512_mask_add_epi8(first, _mm512_cmpge_epu8_mask(place, next), first, one);
                let code = _mm512_mask_mov_epi8(code, nan, _mm512_set1_epi8(0x7f));
                let sign = _mm512_permutex2var_epi8(low, self.upper, high);
                _mm512_or_si512(code, _mm512_and_si512(sign, _mm512_set1_epi8(i8::MIN)))
            }
        }
    }

    /// Quantises the first `n / STEP * STEP` elements of each row and returns how many those are.
    ///
    /// # Safety
    /// AVX-512 F, BW and VBMI; as `Convert` otherwise.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub unsafe fn quantise<const STREAM: bool>(codes: &Codes, src: *const u8, dst: *mut u8, rows: Rows) -> usize {
        let whole = rows.n / STEP * STEP;
        // SAFETY: the features are this function's; 64 elements from `done` on are in the row, on both sides.
        unsafe {
            let constants = Constants::of(codes);
            for row in 0..rows.count {
                for done in (0..whole).step_by(STEP) {
                    let from = src.add(row * rows.src_step + 2 * done);
                    let [low, high] = [_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast())];
                    put::<STREAM>(dst.add(row * rows.dst_step + done), constants.codes(low, high));
                }
            }
        }
        whole
    }

    /// See [`Codes::quantise_groups`].
    ///
    /// # Safety
    /// AVX-512 F, BW and VBMI; as there otherwise, and `dst` and its step begin lines where `STREAM`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub unsafe fn quantise_groups<const STREAM: bool>(codes: &Codes, src: *const u8, dst: *mut u8, head: GroupedHead) {
        // SAFETY: the features are this function's; tokens and groups are the caller's.
        unsafe {
            let constants = Constants::of(codes);
            for group in (0..head.groups).step_by(GROUPS_AT_ONCE) {
                for token in (0..head.tokens).step_by(Codes::TOKENS) {
                    let from = src.add(token * head.src_step + group * GROUP_BYTES);
                    for i in 0..Codes::TOKENS {
                        let ahead = from.wrapping_add(i * head.src_step).wrapping_offset(head.ahead);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    }
                    let low = transposed(from, head.src_step);
                    let high = transposed(from.add(4 * head.src_step), head.src_step);
                    for i in 0..GROUPS_AT_ONCE {
                        let to = dst.add((group + i) * head.dst_step + token * GROUP);
                        put::<STREAM>(to, constants.codes(low[i], high[i]));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::convert::{Isa, quantise};
    use super::*;

    /// Every number of both types, by scales that put the codes anywhere among them.
    #[test]
    fn a_table_gives_the_codes_that_it_was_made_of() {
        if !available() {
            // Not by eprintln, of which nothing is shown where a test passes.
            let skipped = "skipped: kvx's table of codes, because this CPU has no AVX-512 VBMI";
            return writeln!(std::io::stderr(), "{skipped}").unwrap();
        }
        let numbers: Vec<u16> = (0..=u16::MAX).chain(0..70).collect();
        let n = numbers.len();
        let mut tables = 0;
        for (wide, narrow) in
            [DType::F16, DType::BF16].into_iter().flat_map(|w| [(w, DType::F8E4M3), (w, DType::F8E5M2)])
        {
            let convert = quantise(Isa::Baseline, wide, narrow).unwrap();
            let odd = (0..60).map(|i| 1.37f32.powi(i * 5 - 150) * 1.1);
            for scale in [1.0, 0.5, 0.3, 3.0, 448.0, 1e-3, 7e-6, 1e4, 2e-38, 1e30, f32::MAX, f32::MIN_POSITIVE]
                .into_iter()
                .chain(odd)
            {
                let Some(table) = Codes::new(wide, narrow, convert, scale) else { continue };
                tables += 1;
                let [mut want, mut got] = [(); 2].map(|()| vec![0u8; n]);
                // SAFETY: all hold as many elements.
                unsafe {
                    convert(numbers.as_ptr().cast(), want.as_mut_ptr(), Rows::one(n), scale);
                    table.quantise(numbers.as_ptr().cast(), got.as_mut_ptr(), Rows::one(n), (convert, scale));
                }
                let wrong = (0..n).find(|i| want[*i] != got[*i]);
                assert_eq!(wrong.map(|i| (numbers[i], want[i], got[i])), None, "{wide:?} to {narrow:?} / {scale}");
                // Rows of 130 in steps of 192, past the caches: what is between them stays.
                let mut memory = vec![0xEE; n + 64];
                let start = memory.as_ptr().align_offset(64);
                let out = &mut memory[start..start + n];
                let rows = Rows { count: 300, n: 130, src_step: 260, dst_step: 192, stream: true };
                // SAFETY: 300 rows are in the numbers and in the output.
                unsafe {
                    table.quantise(numbers.as_ptr().cast(), out.as_mut_ptr(), rows, (convert, scale));
                }
                super::super::stream::fence();
                groups_are_as_rows(&table, &numbers, &want);
                for (row, out) in out.chunks_exact(192).take(300).enumerate() {
                    assert_eq!(out[..130], want[row * 130..][..130], "row {row}");
                    assert_eq!(out[130..], [0xEE; 62], "row {row}");
                }
            }
        }
        // All but those by which most numbers become zero, or all the largest.
        assert!(tables > 200, "{tables}");
    }

    /// Heads of 128 numbers, 512 tokens of them, in groups that have room for 520, into memory that starts a line and not.
    fn groups_are_as_rows(table: &Codes, numbers: &[u16], want: &[u8]) {
        let (tokens, groups, room) = (512, 16, 520);
        assert_eq!(Codes::whole_groups(groups, GROUP, tokens + 7), tokens);
        for (shift, stream) in [(0, true), (0, false), (8, true)] {
            let mut memory = vec![0xEE; groups * room * GROUP + 128];
            let start = memory.as_ptr().align_offset(64) + shift;
            let out = &mut memory[start..start + groups * room * GROUP];
            let (src_step, dst_step) = (groups * GROUP_BYTES, room * GROUP);
            let head = GroupedHead { tokens, groups, src_step, dst_step, ahead: 64, stream };
            // SAFETY: the numbers and the output are as long as that.
            unsafe { table.quantise_groups(numbers.as_ptr().cast(), out.as_mut_ptr(), head) };
            super::super::stream::fence();
            for (group, out) in out.chunks_exact(dst_step).enumerate() {
                for (token, out) in out.chunks_exact(GROUP).enumerate() {
                    let want =
                        if token < tokens { &want[(token * groups + group) * GROUP..][..GROUP] } else { &[0xEE; 8] };
                    assert_eq!(out, want, "token {token}, group {group}");
                }
            }
        }
    }
}
