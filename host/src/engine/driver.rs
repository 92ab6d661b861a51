//! Waiting. A call runs on the consumer's thread, which may itself be inside an asynchronous runtime, where tokio's
//! `block_on` would panic; so the thread parks by hand.
//!
//! What a call mostly waits for, its connection and its deadline, the thread waits for itself, in `ppoll`: a wake-up by way
//! of another thread costs more than a small operation. A future that cannot go on says what it waits for with
//! [`wait_for_socket`] and [`wait_until`] and answers `Pending`; both hold for that one look at it. Making connections and
//! resolving names is left to tokio, which one thread of ours drives.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::RawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use kv_platform::sync::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle};

use crate::limits;
use crate::panics;
use crate::signals::block_signals;

/// The thread that drives connecting and resolving.
pub(crate) struct Driver(Handle);

/// What the running future waits for, on its own thread.
struct Waits {
    sockets: Vec<libc::pollfd>,
    until: Option<Instant>,
}

thread_local! {
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
    static WAITS: RefCell<Waits> = const { RefCell::new(Waits { sockets: Vec::new(), until: None }) };
}

/// How long a thread that waits for sockets is deaf to wake-ups by others. No future of ours waits for both.
const DEAF: Duration = Duration::from_millis(50);

/// Look at the running future again when a socket is ready: `events` of `poll`, `POLLIN` or `POLLOUT`.
pub(crate) fn wait_for_socket(socket: RawFd, events: libc::c_short) {
    WAITS.with_borrow_mut(|waits| match waits.sockets.iter_mut().find(|waiting| waiting.fd == socket) {
        Some(waiting) => waiting.events |= events,
        None => waits.sockets.push(libc::pollfd { fd: socket, events, revents: 0 }),
    });
}

/// Look at the running future again at this moment, if nothing else comes first.
pub(crate) fn wait_until(moment: Instant) {
    WAITS.with_borrow_mut(|waits| waits.until = Some(waits.until.map_or(moment, |earlier| earlier.min(moment))));
}

/// A future's output, if it comes before a deadline.
pub(crate) async fn before<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    before_it_is(|| deadline, future).await
}

/// A future's output, if it comes before a deadline that may move while it waits.
pub(crate) async fn before_it_is<F: Future>(deadline: impl Fn() -> Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            let deadline = deadline();
            if Instant::now() >= deadline {
                return Poll::Ready(None);
            }
            wait_until(deadline);
            Poll::Pending
        }
    })
    .await
}

impl Driver {
    pub(crate) fn start() -> std::io::Result<Self> {
        // Names are resolved on threads that tokio starts from the consumer's.
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(limits::MAX_BLOCKING_THREADS).on_thread_start(|| {
            block_signals();
            panics::own_thread();
        });
        let runtime = builder.enable_all().build()?;
        let handle = runtime.handle().clone();
        let name = "kv-store-driver".to_owned();
        thread::Builder::new().name(name).spawn(move || {
            panics::own_thread();
            runtime.block_on(std::future::pending::<()>());
        })?;
        Ok(Driver(handle))
    }

    /// Have a task done on the driver's thread, some time.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Have something done that can only be waited for, on one of a few threads, some time.
    pub(crate) fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        self.0.spawn_blocking(work);
    }

    /// Run a future on this thread, to its end or to the deadline, which may move meanwhile.
    pub(crate) fn block_on<F: Future>(&self, deadline: impl Fn() -> Instant, future: F) -> Option<F::Output> {
        let _within = self.0.enter();
        let parker = Arc::new(Parker::default());
        let waker = Waker::from(parker.clone());
        let mut context = Context::from_waker(&waker);
        // Inside a task of the consumer's runtime tokio counts what the task may do before it yields. We cannot yield: once
        // that is used up, every wait of ours would end in another one.
        let mut future = pin!(tokio::task::unconstrained(before_it_is(deadline, future)));
        loop {
            WAITS.with_borrow_mut(|waits| {
                waits.sockets.clear();
                waits.until = None;
            });
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            parker.park();
            HAS_WAITED.set(true);
        }
    }
}

/// Whether this thread has waited since this was last asked.
pub(crate) fn has_waited() -> bool {
    HAS_WAITED.replace(false)
}

#[derive(Default)]
struct Parker {
    woken: AtomicBool,
    /// Not `std::thread::park`: a wake-up meant for the consumer's own use of it would be swallowed.
    asleep: Mutex<()>,
    wake: Condvar,
}

impl Parker {
    /// Sleep until something comes that the future waits for.
    fn park(&self) {
        WAITS.with_borrow_mut(|Waits { sockets, until }| {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if sockets.is_empty() {
                let asleep = self.asleep.lock();
                // What comes early only has the future looked at once more.
                let _awake = self.wake.wait_timeout_while(asleep, left, |()| !self.woken.load(Ordering::Acquire));
            } else if !self.woken.load(Ordering::Acquire) {
                kv_platform::system::wait(sockets, left.min(DEAF));
            }
        });
        // Not a plain store: what a waker wrote before a wake-up that this takes back must be seen by the look that follows,
        // and no look may come before it, or a wake-up between the two would be lost.
        self.woken.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // Locked, or the wake-up could fall between the sleeper's look and its sleep.
            drop(self.asleep.lock());
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn waits_inside_another_runtime() {
        let driver = Driver::start().unwrap();
        let outer = Builder::new_current_thread().build().unwrap();
        let answer = outer.block_on(async {
            driver.block_on(soon, async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                42
            })
        });
        assert_eq!(answer, Some(42));
    }

    #[test]
    fn goes_on_when_the_consumers_task_has_used_up_its_turn() {
        let driver = Driver::start().unwrap();
        let (done, waits) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let outer = Builder::new_current_thread().build().unwrap();
            outer.block_on(async {
                driver.block_on(soon, async {
                    for _ in 0..300 {
                        tokio::time::sleep(Duration::from_micros(1)).await;
                    }
                })
            });
            done.send(()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("it spins");
    }

    #[test]
    fn a_deadline_ends_a_wait_and_the_earlier_one_ends_it_first() {
        let driver = Driver::start().unwrap();
        let begun = Instant::now();
        let never = std::future::pending::<()>();
        assert!(driver.block_on(|| begun + Duration::from_millis(20), never).is_none());
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let inner = before(Instant::now() + Duration::from_millis(5), std::future::pending::<()>());
        assert_eq!(driver.block_on(soon, inner), Some(None));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_socket_wakes_its_own_thread() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let driver = Driver::start().unwrap();
        let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            there.write_all(b"!").unwrap();
            there
        });
        let received = driver.block_on(
            soon,
            poll_fn(|_| {
                let mut byte = [0];
                match here.read(&mut byte) {
                    Ok(1) => Poll::Ready(byte[0]),
                    _ => {
                        wait_for_socket(here.as_raw_fd(), libc::POLLIN);
                        Poll::Pending
                    }
                }
            }),
        );
        assert_eq!(received, Some(b'!'));
        drop(late.join().unwrap());
    }
}
