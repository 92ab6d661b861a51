//! Waiting. A call runs on the consumer's thread, which may itself be inside an asynchronous runtime, where tokio's
//! `block_on` would panic; so the thread parks by hand, and one thread of ours drives the timers and sockets.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::limits;
use crate::signals::block_signals;

/// The thread that drives timers and sockets.
pub(crate) struct Driver(Handle);

impl Driver {
    pub(super) fn start() -> std::io::Result<Self> {
        // Names are resolved on threads that tokio starts from the consumer's.
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(limits::MAX_BLOCKING_THREADS).on_thread_start(block_signals);
        let runtime = builder.enable_all().build()?;
        let handle = runtime.handle().clone();
        let name = "kv-store-driver".to_owned();
        thread::Builder::new().name(name).spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        Ok(Driver(handle))
    }

    /// Run a future on this thread to its end; what it waits for is driven by the driver's thread.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _within = self.0.enter();
        let parker = Arc::new(Parker::default());
        let waker = Waker::from(parker.clone());
        let mut context = Context::from_waker(&waker);
        // Inside a task of the consumer's runtime tokio counts what the task may do before it yields. We cannot yield: once
        // that is used up, every wait of ours would end in another one.
        let mut future = pin!(tokio::task::unconstrained(future));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            parker.park();
        }
    }
}

/// Not `std::thread::park`: a wake-up meant for the consumer's own use of it would be swallowed.
#[derive(Default)]
struct Parker {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Parker {
    fn park(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !*woken {
            woken = self.wake.wait(woken).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *woken = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waits_inside_another_runtime() {
        let driver = Driver::start().unwrap();
        let outer = Builder::new_current_thread().build().unwrap();
        let answer = outer.block_on(async {
            driver.block_on(async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                42
            })
        });
        assert_eq!(answer, 42);
    }

    #[test]
    fn goes_on_when_the_consumers_task_has_used_up_its_turn() {
        let driver = Driver::start().unwrap();
        let (done, waits) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let outer = Builder::new_current_thread().build().unwrap();
            outer.block_on(async {
                driver.block_on(async {
                    for _ in 0..300 {
                        tokio::time::sleep(Duration::from_micros(1)).await;
                    }
                })
            });
            done.send(()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("it spins");
    }
}
