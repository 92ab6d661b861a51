//! Conditions that threads wait for. By the machine's time they sleep in the kernel; a time that is handed in may have threads of its own,
//! and then decides who goes on.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Clock;

/// Tells what one thread waits for from what others do: the address of the condition, or of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitAddress(usize);

/// Something that comes true under a lock. As of [`Condvar`]: who waits looks again whenever the wait returns.
pub struct Condition {
    machine: Condvar,
    /// Threads that wait in the kernel. Changed under the lock; to wake those that are not there is a system call.
    waiting: AtomicUsize,
    clock: Clock,
}

impl Condition {
    /// One that is waited for by this clock.
    pub fn new(clock: &Clock) -> Self {
        Condition { machine: Condvar::new(), waiting: AtomicUsize::new(0), clock: clock.clone() }
    }

    /// Let one of those go on who wait. What they wait for was made true under the lock, which may be given back by now.
    pub fn notify_one(&self) {
        if self.is_waited_for() {
            self.machine.notify_one();
        }
        self.clock.notify(self.address(), false);
    }

    /// Let all go on who wait.
    pub fn notify_all(&self) {
        if self.is_waited_for() {
            self.machine.notify_all();
        }
        self.clock.notify(self.address(), true);
    }

    /// Wait, without the lock, until somebody says that it may be true.
    pub fn wait<'a, T>(&self, lock: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        match self.pause(lock, guard, None) {
            Ok(guard) => guard,
            Err(guard) => self.waits(|| self.machine.wait(guard)),
        }
    }

    /// The same, for so long at most.
    pub fn wait_timeout<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> MutexGuard<'a, T> {
        let until = self.clock.0.as_ref().and_then(|time| time.now().checked_add(at_most));
        match self.pause(lock, guard, until) {
            Ok(guard) => guard,
            Err(guard) => self.waits(|| self.machine.wait_timeout(guard, at_most)),
        }
    }

    /// Whoever made it true took the lock after those that wait were counted under it, or they see that it is true.
    fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Counted while the lock is held, before and after.
    fn waits<'a, T>(&self, wait: impl FnOnce() -> MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = wait();
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// `Err`: threads are the machine's.
    fn pause<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        until: Option<Instant>,
    ) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
        let Some(time) = self.clock.0.as_ref().filter(|time| time.has_threads()) else { return Err(guard) };
        drop(guard);
        time.wait(self.address(), until);
        Ok(self.clock.lock(lock))
    }

    fn address(&self) -> WaitAddress {
        WaitAddress(std::ptr::from_ref(self).addr())
    }
}

impl Clock {
    /// Take a lock that others may hold while they wait for something else.
    pub fn lock<'a, T>(&self, lock: &'a Mutex<T>) -> MutexGuard<'a, T> {
        let taken = self.take(std::ptr::from_ref(lock).cast::<u8>().addr(), || lock.try_lock());
        taken.unwrap_or_else(|| lock.lock())
    }

    /// The same of a lock that readers share, to read.
    pub(crate) fn read<'a, T>(&self, lock: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        let taken = self.take(std::ptr::from_ref(lock).cast::<u8>().addr(), || lock.try_read());
        taken.unwrap_or_else(|| lock.read())
    }

    /// The same to write.
    pub(crate) fn write<'a, T>(&self, lock: &'a RwLock<T>) -> RwLockWriteGuard<'a, T> {
        let taken = self.take(std::ptr::from_ref(lock).cast::<u8>().addr(), || lock.try_write());
        taken.unwrap_or_else(|| lock.write())
    }

    /// Take a lock by a time that has threads of its own. None: threads are the machine's.
    fn take<G>(&self, address: usize, mut try_to: impl FnMut() -> Option<G>) -> Option<G> {
        while let Some(time) = self.0.as_ref().filter(|time| time.has_threads()) {
            match try_to() {
                Some(guard) => return Some(guard),
                None => time.wait_for_lock(WaitAddress(address)),
            }
        }
        None
    }

    /// Wait for so long.
    pub fn sleep(&self, long: Duration) {
        match self.0.as_ref().filter(|time| time.has_threads()) {
            Some(time) => time.wait(WaitAddress(0), time.now().checked_add(long)),
            None => std::thread::sleep(long),
        }
    }

    fn notify(&self, address: WaitAddress, all: bool) {
        if let Some(time) = &self.0 {
            time.notify(address, all);
        }
    }
}
