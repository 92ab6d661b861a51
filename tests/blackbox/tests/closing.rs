//! Handles that are closed while a helper still stores what was put on them. A process of its own, for the counters are the
//! process's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::ffi::CString;
use std::time::{Duration, Instant};

use kv_store_tests::redis::RedisServer;
use kv_store_tests::{library, library_path};

/// What is held of write buffers by all stores of the process that loaded the library.
fn write_buffer_bytes() -> u64 {
    let path = CString::new(library_path().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: C strings; the header declares the function so, and the library stays loaded.
    let metrics = unsafe {
        let loaded = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        let symbol = libc::dlsym(loaded, c"kv_store_wasm_metrics".as_ptr());
        assert!(!symbol.is_null(), "the library has counters");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(*mut u8, usize) -> usize>(symbol)
    };
    let mut text = vec![0; metrics(std::ptr::null_mut(), 0) + 4096];
    metrics(text.as_mut_ptr(), text.len());
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.starts_with("kv_store_write_buffer_bytes "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_close_in_the_middle_of_an_early_flush_gives_back_what_was_held() {
    let server = RedisServer::start(&[]);
    let chunk = vec![7; 64 << 10];
    let before = write_buffer_bytes();
    for round in 0..200_u32 {
        let store = library().open(&format!("redis://127.0.0.1:{}", server.port)).expect("it opens");
        for n in 0..40_u32 {
            assert_eq!(store.put_chunk(&[round.to_le_bytes(), n.to_le_bytes()].concat(), &chunk).unwrap(), 0);
        }
        drop(store);
    }
    let begun = Instant::now();
    while write_buffer_bytes() != before {
        assert!(begun.elapsed().as_secs() < 60, "{} bytes of write buffers, {before} before", write_buffer_bytes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// It kept its directory open for ten minutes: a file system could not be unmounted.
#[test]
fn a_closed_store_lets_go_of_its_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("store");
    let store = library().open(&format!("local-fs://{}", path.display())).expect("it opens");
    assert_eq!(store.put_chunk(b"key", b"chunk").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|at| at.starts_with(&path))).count()
    };
    assert!(open() > 0);
    drop(store);
    let begun = Instant::now();
    while open() > 0 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(open(), 0);
}
