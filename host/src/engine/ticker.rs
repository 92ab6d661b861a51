//! The thread that advances the engine's epoch, which is how running guest code is looked at. It sleeps while nobody
//! calls, so an idle process is not woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

use wasmtime::Engine;

use crate::limits;

pub(crate) struct Ticker {
    shared: Arc<Calls>,
    thread: Thread,
}

#[derive(Default)]
struct Calls {
    /// Calls begun, ever, and calls under way now.
    begun: AtomicU64,
    active: AtomicU64,
    asleep: AtomicBool,
}

/// A call under way: while there is one, the epoch advances.
pub(crate) struct Ticking<'a>(&'a Calls);

impl Ticker {
    pub(super) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Calls::default());
        let of_thread = shared.clone();
        let name = "kv-store-ticker".to_owned();
        let handle = thread::Builder::new().name(name).stack_size(128 << 10).spawn(move || run(&engine, &of_thread))?;
        Ok(Ticker { shared, thread: handle.thread().clone() })
    }

    /// Keep the epoch advancing until the answer is dropped.
    pub(crate) fn tick(&self) -> Ticking<'_> {
        // Sequentially consistent, as in `run`: either the ticker sees this call, or this call sees it asleep.
        self.shared.active.fetch_add(1, Ordering::SeqCst);
        self.shared.begun.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking(&self.shared)
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

fn run(engine: &Engine, shared: &Calls) {
    crate::panics::own_thread();
    let idle_ticks = limits::TICKER_IDLE.as_millis() / limits::EPOCH_TICK.as_millis();
    let (mut seen, mut idle) = (0, 0);
    loop {
        thread::sleep(limits::EPOCH_TICK);
        engine.increment_epoch();
        let begun = shared.begun.load(Ordering::SeqCst);
        if begun != seen || shared.active.load(Ordering::SeqCst) > 0 {
            (seen, idle) = (begun, 0);
            continue;
        }
        idle += 1;
        if idle < idle_ticks {
            continue;
        }
        shared.asleep.store(true, Ordering::SeqCst);
        while shared.begun.load(Ordering::SeqCst) == seen {
            thread::park();
        }
        shared.asleep.store(false, Ordering::SeqCst);
        idle = 0;
    }
}
