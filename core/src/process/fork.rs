//! State that the process has once, and forks.
//!
//! A fork leaves the child with one thread and with locks that nobody will release, so the child forgets what the parent
//! had: whatever was made before belongs to an older generation, and the first use in the child makes it anew.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use kv_platform::sync::Mutex;

/// Whether the process is still the one in which a value was made.
#[derive(Clone, Copy, Debug)]
pub struct Fork {
    made_in: u64,
    forks: fn() -> u64,
}

impl Fork {
    /// Of this moment. `forks` tells how often the process was forked off another.
    pub fn now(forks: fn() -> u64) -> Self {
        Fork { made_in: forks(), forks }
    }

    /// Whether no fork came in between.
    pub fn is_same(self) -> bool {
        self.made_in == (self.forks)()
    }
}

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How often this process was forked off another that used the library. What was made in another generation is dead.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// A value made at its first use and kept until the process ends: calls may be under way while it exits.
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Cell<T>>,
}

/// A lock of its own for each generation, because a fork may leave one locked for ever.
struct Cell<T: 'static> {
    generation: u64,
    value: Mutex<Option<&'static T>>,
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    pub const fn new() -> Self {
        PerProcess { current: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The value of this generation. One thread makes it while others wait; if that fails, the next one tries again.
    pub fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'static T, E> {
        let mut value = self.cell().value.lock();
        if let Some(made) = *value {
            return Ok(made);
        }
        let made: &'static T = Box::leak(Box::new(make()?));
        *value = Some(made);
        Ok(made)
    }

    /// The value of this generation, which begins as the default one.
    pub fn get(&self) -> &'static T
    where
        T: Default,
    {
        let Ok(value) = self.get_or_make(|| Ok::<T, Infallible>(T::default()));
        value
    }

    fn cell(&self) -> &'static Cell<T> {
        watch_forks();
        let generation = generation();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: a published cell is never freed.
            if let Some(cell) = unsafe { current.as_ref() }.filter(|cell| cell.generation == generation) {
                return cell;
            }
            let fresh = Box::into_raw(Box::new(Cell { generation, value: Mutex::new(None) }));
            if self.current.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: `fresh` came from a box a moment ago, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

/// Have [`generation`] tell forks from now on.
pub fn watch_forks() {
    extern "C" fn in_child() {
        // One atomic: all that a child of a threaded process may do here.
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }
    // Not a `Once`, which a fork in another thread could leave half done for ever. That two threads may both come to
    // register does no harm: a generation is only ever compared.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler is async-signal-safe, and the library is never unloaded (`-z nodelete`).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        WATCHED.store(true, Ordering::Release);
    }
}

#[cfg(test)]
pub use tests::holds_in_a_child;

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether something holds in a child that is forked off now. It runs there alone, whatever other threads are at.
    pub fn holds_in_a_child(check: impl FnOnce() -> bool + std::panic::UnwindSafe) -> bool {
        // SAFETY: glibc leaves its allocator usable in the child, and `check` takes no lock that another thread may hold.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            let holds = std::panic::catch_unwind(check).unwrap_or(false);
            // SAFETY: ends the child at once, without what the test program does at its end.
            unsafe { libc::_exit(if holds { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_child_begins_anew_and_the_parent_goes_on() {
        static COUNT: PerProcess<AtomicU64> = PerProcess::new();
        COUNT.get().store(7, Ordering::SeqCst);
        assert!(holds_in_a_child(|| {
            let begun = COUNT.get().fetch_add(1, Ordering::SeqCst);
            let grandchild = holds_in_a_child(|| COUNT.get().load(Ordering::SeqCst) == 0);
            begun == 0 && COUNT.get().load(Ordering::SeqCst) == 1 && grandchild
        }));
        assert_eq!(COUNT.get().load(Ordering::SeqCst), 7);
    }
}
