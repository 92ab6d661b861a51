//! The system under the server: a [`System`] of the thread, streams that the program makes, and locks at which another simulated thread may
//! go on.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Add, AddAssign, Deref, DerefMut, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use std::net::Shutdown;

use kv_platform::sync;

/// Time, randomness and turns.
pub trait System {
    /// Nanoseconds on the clock that nobody sets.
    fn steady(&self) -> u64;

    /// Nanoseconds since 1970-01-01 UTC.
    fn wall(&self) -> u64;

    fn fill(&self, bytes: &mut [u8]);

    /// The running thread is about to take a lock of what has this type: others may go on.
    fn turn(&self, of: &'static str);

    /// The running thread waits for others.
    fn wait(&self, long: Duration);
}

/// The server's end of a connection.
pub trait Peer: Send + Sync {
    /// `WouldBlock`: nothing came in time.
    fn read(&self, into: &mut [u8], timeout: Option<Duration>) -> io::Result<usize>;

    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    fn shutdown(&self, how: Shutdown);
}

thread_local! {
    static SYSTEM: RefCell<Option<Arc<dyn System>>> = const { RefCell::new(None) };
}

/// Have the servers of this thread run over a system. None: no server runs any more.
pub fn enter(system: Option<Arc<dyn System>>) {
    SYSTEM.set(system);
}

pub(crate) fn system<T>(ask: impl FnOnce(&dyn System) -> T) -> T {
    // Not borrowed while others go on.
    let system = SYSTEM.with_borrow(Clone::clone).expect("a server runs over a system");
    ask(&*system)
}

#[derive(Debug)]
pub struct NoRandomness;

impl fmt::Display for NoRandomness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("none")
    }
}

pub fn fill(bytes: &mut [u8]) -> Result<(), NoRandomness> {
    system(|system| system.fill(bytes));
    Ok(())
}

/// A moment of the steady clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Self {
        Instant(Duration::from_nanos(system(|system| system.steady())))
    }

    pub fn duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn checked_duration_since(self, earlier: Instant) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }

    pub fn elapsed(self) -> Duration {
        Instant::now().duration_since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, long: Duration) -> Instant {
        Instant(self.0 + long)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, long: Duration) {
        self.0 += long;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

/// A stream whose other end the program has.
pub struct TcpStream {
    peer: Box<dyn Peer>,
    /// Nanoseconds. 0: none.
    timeout: AtomicU64,
}

impl TcpStream {
    pub fn over(peer: Box<dyn Peer>) -> Self {
        TcpStream { peer, timeout: AtomicU64::new(0) }
    }

    pub fn set_nodelay(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let nanoseconds = timeout.map_or(0, |timeout| timeout.as_nanos().try_into().unwrap_or(u64::MAX));
        self.timeout.store(nanoseconds, Relaxed);
        Ok(())
    }

    /// Nothing that is written waits.
    pub fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.peer.shutdown(how);
        Ok(())
    }
}

impl io::Read for &TcpStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let timeout = Some(self.timeout.load(Relaxed)).filter(|timeout| *timeout > 0);
        self.peer.read(into, timeout.map(Duration::from_nanos))
    }
}

impl io::Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.peer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A lock. Before it is taken others may go on, and who holds it may wait.
#[derive(Default)]
pub struct Mutex<T>(sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    guard: sync::MutexGuard<'a, T>,
}

/// How often a lock is looked at that another thread holds.
const LOOK: Duration = Duration::from_micros(50);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        system(|system| system.turn(std::any::type_name::<T>()));
        self.take()
    }

    fn take(&self) -> MutexGuard<'_, T> {
        loop {
            match self.0.try_lock() {
                Some(guard) => return MutexGuard { of: self, guard },
                None => system(|system| system.wait(LOOK)),
            }
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Who waits looks again and again, as a condition may be true without a word.
#[derive(Default)]
pub struct Condvar(());

impl Condvar {
    pub fn new() -> Self {
        Condvar(())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_timeout(guard, LOOK)
    }

    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, at_most: Duration) -> MutexGuard<'a, T> {
        let of = guard.of;
        drop(guard);
        system(|system| system.wait(LOOK.min(at_most)));
        of.take()
    }

    pub fn notify_all(&self) {}
}
