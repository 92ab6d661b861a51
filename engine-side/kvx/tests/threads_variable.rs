//! `KVX_THREADS`, as a process sees it: read at the first call, obeyed by the C functions, and no more threads than that.
//!
//! A test of its own binary, run again by itself with the variable set: threads are counted in the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]
#![cfg(target_os = "linux")]

mod common;

use common::*;
use kvx::ffi::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Moves 16 MiB, which is enough for 4 threads.
const DIMS: Dims = Dims { blocks: 512, tokens: 16, heads: 4, dim: 128 };

fn running() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn as_many_threads_as_the_variable_says_and_no_more() {
    const INSIDE: &str = "KVX_TEST_INSIDE";
    if let Ok(want) = std::env::var(INSIDE) {
        return println!("most threads: {}", most_threads(want.parse().unwrap()));
    }
    for (set, want) in [(None, 1), (Some("3"), 3), (Some(" 2 "), 2), (Some("0"), 1), (Some("many"), 1), (Some("-4"), 1)]
    {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "as_many_threads_as_the_variable_says_and_no_more", "--nocapture", "--test-threads=1"]);
        child.env(INSIDE, want.to_string()).env_remove("KVX_THREADS");
        if let Some(set) = set {
            child.env("KVX_THREADS", set);
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(&format!("most threads: {want}\n")), "KVX_THREADS={set:?}: {text}");
    }
}

/// The most threads that large writes have at once, the caller's included. They are repeated until
/// so many were seen as are `wanted`, or it is clear that they never will, and a little longer.
fn most_threads(wanted: usize) -> usize {
    let bytes = 512 * 16 * 4 * 128 * 2;
    let mut buffers = [(); 4].map(|()| vec![1u8; bytes]);
    let [k, v, key, value] = buffers.each_mut().map(|b| b.as_mut_ptr().cast());
    let strides = dense(&[512, 16, 4, 128]);
    // HND_PACKED, which is slow enough to be seen at work.
    let p = pool(KVX_DTYPE_F16, KVX_LAYOUT_BLOCK_HND_PACKED, &DIMS, 8, strides[..4].try_into().unwrap());
    let mut cache = cache(&DIMS, p, p);
    [cache.k.data, cache.v.data] = [k, v];
    let mut slots = indices(&(0..512 * 16).collect::<Vec<_>>(), true);
    let write = write_desc(io(KVX_DTYPE_F16, &[512 * 16], &DIMS, key, value), true, slots.as_mut_ptr().cast());

    let (done, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // This thread is one of them.
            let before = running();
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(running() - before, Ordering::Relaxed);
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut left = 3;
        for _ in 0..300 {
            // SAFETY: the buffers are as large as the descriptors say.
            assert_eq!(unsafe { kvx_write_kv(&cache, &write, std::ptr::null_mut()) }, KVX_STATUS_OK);
            if most.load(Ordering::Relaxed) + 1 >= wanted {
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    // The caller's own was there before.
    most.into_inner() + 1
}
