//! The locks of everything that runs natively: the standard library's, without poison.
//!
//! The standard library's own stay underneath, and not those of a crate as parking_lot: what a lock does across a fork, and that it costs one
//! atomic where nobody else has it, is as it was. loom and the simulated memkv-server bring locks with these same functions, and stand in
//! for them.
//!
//! Poison is passed over. A panic is caught where it would leave the library (`core/src/panics.rs`, the entries of the C ABI, the loop of each
//! thread), and fails one call; an engine goes on, and a lock that stayed poisoned would fail every later call with it. So whoever changes what
//! a lock guards completes the change before anything that could panic, or leaves with a guard of its own that notes the outcome as unknown
//! (`core/src/backend/holding.rs`). clippy.toml refuses the standard library's way to do the same by hand.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// As [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        whole(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        whole(self.0.lock())
    }

    /// None: another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        free(self.0.try_lock())
    }

    pub fn get_mut(&mut self) -> &mut T {
        whole(self.0.get_mut())
    }
}

/// As [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        whole(self.0.read())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        whole(self.0.write())
    }

    /// None: another thread writes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        free(self.0.try_read())
    }

    /// None: another thread has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        free(self.0.try_write())
    }
}

/// As [`std::sync::Condvar`]. Whoever waits looks again at what it waits for, so no wait says whether its time ran out.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        whole(self.0.wait(guard))
    }

    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        whole(self.0.wait_while(guard, condition))
    }

    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, at_most: Duration) -> MutexGuard<'a, T> {
        whole(self.0.wait_timeout(guard, at_most)).0
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        whole(self.0.wait_timeout_while(guard, at_most, condition)).0
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that passes poison over")]
fn whole<T>(taken: Result<T, PoisonError<T>>) -> T {
    taken.unwrap_or_else(PoisonError::into_inner)
}

fn free<T>(taken: Result<T, TryLockError<T>>) -> Option<T> {
    match taken {
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(poisoned)) => Some(whole(Err(poisoned))),
        Ok(guard) => Some(guard),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    /// A lock whose holder panicked, with what it had written.
    fn left_by_a_panic() -> Arc<(Mutex<u32>, Condvar, RwLock<u32>)> {
        let shared = Arc::new((Mutex::new(0), Condvar::new(), RwLock::new(0)));
        let own = shared.clone();
        let panicked = thread::spawn(move || {
            let (mut number, mut other) = (own.0.lock(), own.2.write());
            (*number, *other) = (1, 1);
            panic!("with both locks");
        });
        assert!(panicked.join().is_err() && shared.0.0.is_poisoned() && shared.2.0.is_poisoned());
        shared
    }

    #[test]
    fn a_lock_whose_holder_panicked_is_taken_as_before() {
        let shared = left_by_a_panic();
        assert_eq!((*shared.0.lock(), *shared.2.read()), (1, 1));
        *shared.2.write() += 1;
        assert_eq!((shared.0.try_lock().as_deref(), *shared.2.read()), (Some(&1), 2));
        let Some((mut number, ..)) = Arc::into_inner(shared) else { panic!("the only holder") };
        *number.get_mut() += 1;
        assert_eq!(number.into_inner(), 2);
    }

    #[test]
    fn a_wait_goes_on_where_a_holder_panicked() {
        let shared = left_by_a_panic();
        let (number, changed, _) = &*shared;
        assert_eq!(*changed.wait_timeout(number.lock(), Duration::from_millis(1)), 1);
        assert_eq!(*changed.wait_timeout_while(number.lock(), Duration::from_millis(1), |n| *n == 1), 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                *number.lock() = 2;
                changed.notify_all();
            });
            let mut seen = number.lock();
            while *seen < 2 {
                seen = changed.wait(seen);
            }
            assert_eq!(*changed.wait_while(seen, |n| *n < 2), 2);
        });
    }

    #[test]
    fn a_lock_that_another_thread_has_is_not_waited_for() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
        let shared = RwLock::new(());
        let reads = shared.read();
        assert!(shared.try_read().is_some() && shared.try_write().is_none());
        drop(reads);
        let writes = shared.try_write();
        assert!(writes.is_some() && shared.try_read().is_none());
    }
}
