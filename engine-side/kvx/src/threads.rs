//! Splits one large call over threads, never more than the caller allows.
//!
//! The threads live for the call only: nothing is kept in the process, and a
//! call that allows one thread starts none. They inherit the caller's signal
//! mask.

use crate::error::Result;

/// Below this much per thread, starting it costs more than it saves.
const MIN_BYTES_PER_THREAD: u64 = 4 << 20;

/// How many parts to make of a call that moves `bytes`, given the caller's limit (0 counts as 1).
pub(crate) fn parts(allowed: usize, bytes: u64) -> usize {
    let useful = usize::try_from(bytes / MIN_BYTES_PER_THREAD).unwrap_or(usize::MAX);
    allowed.min(useful).max(1)
}

/// Runs `work(0)..work(parts - 1)`, the first on this thread. A thread that can not be
/// started has its part done here.
#[inline(always)]
pub(crate) fn run(parts: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    if parts == 1 {
        // A scope allocates; a small call must not.
        return work(0);
    }
    run_side_by_side(parts, &work)
}

fn run_side_by_side(parts: usize, work: &(impl Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let mut result = Ok(());
        let mut started = Vec::with_capacity(parts - 1);
        for part in 1..parts {
            match std::thread::Builder::new().spawn_scoped(scope, move || work(part)) {
                Ok(handle) => started.push(handle),
                Err(_) => result = result.and(work(part)),
            }
        }
        result = result.and(work(0));
        for handle in started {
            // A panic goes on in the caller, where the C functions catch it.
            let done = handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            result = result.and(done);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_large_calls_are_split_and_only_as_far_as_allowed() {
        assert_eq!(parts(8, MIN_BYTES_PER_THREAD), 1);
        assert_eq!(parts(8, 3 * MIN_BYTES_PER_THREAD), 3);
        assert_eq!(parts(2, 100 * MIN_BYTES_PER_THREAD), 2);
        assert_eq!(parts(0, 100 * MIN_BYTES_PER_THREAD), 1);
    }

    #[test]
    fn every_part_runs_once_and_an_error_comes_back() {
        let seen: [AtomicUsize; 5] = Default::default();
        run(5, |part| {
            seen[part].fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
        let failed = run(3, |part| if part == 2 { Err(crate::error::internal("two")) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }
}
