//! Copies whole cache lines past the caches, where the target can: none is read only to be overwritten. And has lines read
//! before they are needed.

use super::lanes::{Lanes as _, Native};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Copies `len` bytes, a multiple of [`LINE`], to where a line begins. [`fence`] must follow.
///
/// Stores of half a line are 1.1 to 1.3 times as fast as quarters, measured over all layouts; of whole lines no faster yet.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes; they must not overlap.
#[inline(always)]
pub(super) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(len.is_multiple_of(LINE) && dst.addr().is_multiple_of(LINE));
    // SAFETY: the caller's promise, and the CPU has what the first needs.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return halves(src, dst, len);
        }
        quarters(src, dst, len);
    }
}

/// # Safety
/// As [`stream`], on a CPU that has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn halves(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256};
    for line in (0..len).step_by(LINE) {
        // SAFETY: both halves of the line are inside.
        unsafe {
            let [low, high] = [0, 32].map(|at| _mm256_loadu_si256(src.add(line + at).cast()));
            _mm256_stream_si256(dst.add(line).cast(), low);
            _mm256_stream_si256(dst.add(line + 32).cast(), high);
        }
    }
}

/// # Safety
/// As [`stream`].
unsafe fn quarters(src: *const u8, dst: *mut u8, len: usize) {
    for at in (0..len).step_by(16) {
        // SAFETY: 16 bytes from `at` on are inside, and aligned where they go.
        unsafe { Native::load(src.add(at)).stream(dst.add(at)) };
    }
}

/// Has the lines of `len` bytes read into the second-level cache. Only a hint: any address will do.
#[inline(always)]
pub(super) fn read_ahead(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// Orders streamed stores before whatever this thread does next, as plain stores are.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_copies_each_byte_and_no_other() {
        type Stream = unsafe fn(*const u8, *mut u8, usize);
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let mut widths: Vec<Stream> = vec![quarters];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            widths.push(halves);
        }
        let src: Vec<u8> = (0..8 * LINE).map(|i| (i % 251) as u8).collect();
        for (width, lines) in widths.iter().flat_map(|width| (0..6).map(move |lines| (width, lines))) {
            let mut memory = [0xEE; 8 * LINE];
            let start = memory.as_ptr().align_offset(LINE) + LINE;
            let len = lines * LINE;
            // SAFETY: both have so many bytes, from an odd address and from the start of a line.
            unsafe { width(src.as_ptr().add(1), memory.as_mut_ptr().add(start), len) };
            fence();
            assert_eq!(memory[start..start + len], src[1..1 + len]);
            assert!(memory[..start].iter().chain(&memory[start + len..]).all(|byte| *byte == 0xEE));
        }
    }
}
