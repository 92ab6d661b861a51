//! The cases of `hostile.rs` in a process that has what an engine commonly has: 1024 descriptors and 6 GB of address space.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

// Its own `main`.
#[allow(dead_code)]
#[path = "hostile.rs"]
mod hostile;

/// `ulimit -Sn 1024 -Sv 6000000`.
const BOUNDS: [(libc::__rlimit_resource_t, libc::rlim_t); 2] =
    [(libc::RLIMIT_NOFILE, 1024), (libc::RLIMIT_AS, 6_000_000 << 10)];

fn main() {
    for (what, bound) in BOUNDS {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limits` is filled before it is read.
        let set = unsafe {
            libc::getrlimit(what, &mut limits);
            limits.rlim_cur = bound.min(limits.rlim_max);
            libc::setrlimit(what, &limits)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    hostile::ROUNDS.store(1, std::sync::atomic::Ordering::SeqCst);
    hostile::run_all();
}
