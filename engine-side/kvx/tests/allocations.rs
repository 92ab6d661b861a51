//! Small calls allocate nothing: a decode step makes one for each token and layer. Counted, and not timed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::calls::*;
use common::*;
use kvx::ffi::*;

thread_local! {
    // Of this thread only: the test harness has threads of its own.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is the system allocator's, which keeps the rules.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `call` allocates, and what it answers.
fn count(call: impl FnOnce() -> u32) -> (u64, u32) {
    let before = COUNT.with(Cell::get);
    let status = call();
    (COUNT.with(Cell::get) - before, status)
}

const LAYOUTS: [u32; 4] = [NHD, KVX_LAYOUT_BLOCK_HND, PACKED_LAYOUT, CUSTOM];

#[test]
fn small_calls_allocate_nothing() {
    // The first call of a process reads KVX_THREADS, and finds out what the CPU has.
    let warm = Calls::new(PACKED, PACKED_LAYOUT, KVX_DTYPE_F8_E4M3, F16);
    assert_eq!(warm.write(), KVX_STATUS_OK);
    assert!(count(|| vec![1u8; 7].len() as u32 - 7).0 == 1, "allocations are counted");

    for layout in LAYOUTS {
        for (cache, tokens) in [(F16, F16), (KVX_DTYPE_F32, KVX_DTYPE_F32), (KVX_DTYPE_F8_E4M3, F16), (5, 2)] {
            let c = Calls::new(PACKED, layout, cache, tokens);
            let what = format!("layout {layout}, cache {cache}, tokens {tokens}");
            assert_eq!(count(|| c.validate()), (0, KVX_STATUS_OK), "{what}");
            assert_eq!(count(|| c.write()), (0, KVX_STATUS_OK), "{what}");

            let mut c = Calls::new(PACKED, layout, cache, tokens);
            let [key, value] = c.io.each_mut().map(Guarded::ptr);
            c.write = kvx_write_desc_t {
                k_scale_desc: c.write.k_scale_desc,
                v_scale_desc: c.write.v_scale_desc,
                ..write_desc(io(tokens, &[1], &DIMS, key, value), true, c.slots[2..].as_ptr().cast())
            };
            assert_eq!(count(|| c.write()), (0, KVX_STATUS_OK), "one token, {what}");
        }
        for format in [PACKED, RAGGED, OFFSETS] {
            let c = Calls::new(format, layout, F16, F16);
            assert_eq!(count(|| c.gather()), (0, KVX_STATUS_OK), "layout {layout}, table {format}");
        }
    }
}
