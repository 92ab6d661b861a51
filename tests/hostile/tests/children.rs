//! The compile helper is a process, and the children of the engine are the engine's: it may ignore SIGCHLD, count it, or wait for
//! whatever child ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use kv_store_hostile::{prepare, table};
use kv_store_tests::dist;
use kv_store_wasm::{Error, Store};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

fn on_child(handler: libc::sighandler_t) {
    // SAFETY: the handler is one atomic.
    unsafe { libc::signal(libc::SIGCHLD, handler) };
}

/// The component was compiled, loaded and asked: what it misses is its own scheme.
fn assert_ran(opened: Result<Store, Error>) {
    let error = opened.err().map_or_else(String::new, |error| error.to_string());
    assert!(error.contains("expected memory://"), "{error}");
}

#[test]
fn an_engine_that_ignores_its_children_and_one_that_waits_for_any_notice_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let sound = std::fs::read(dist().join("components/memory.wasm")).unwrap();
    // A custom section makes each another component, which is compiled anew.
    let tables = ["ignores", "waits"].map(|name| {
        let path = folder.path().join(format!("{name}.wasm"));
        let section = [&[0, name.len() as u8 + 1, name.len() as u8], name.as_bytes()].concat();
        std::fs::write(&path, [sound.clone(), section].concat()).unwrap();
        table(name, &path, "")
    });
    prepare(&tables.concat());

    on_child(libc::SIG_IGN);
    assert_ran(Store::open("ignores://x"));

    on_child(count as *const () as libc::sighandler_t);
    let (stop, reaped) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                // SAFETY: no status is wanted.
                if unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {
                    reaped.fetch_add(1, SeqCst);
                }
                std::thread::yield_now();
            }
        });
        let opened = Store::open("waits://x");
        stop.store(true, SeqCst);
        assert_ran(opened);
    });
    assert_eq!((reaped.load(SeqCst), SIGNALS.load(SeqCst)), (0, 0), "children and signals that the engine was given");
    // SAFETY: no status is wanted. None is left behind either, of whatever kind.
    assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) }, -1);
}
