//! What the process has once: the wasmtime engine, the driver of timers and sockets, the ticker, and the loaded
//! components and open stores. It is made by the first open and lives until the process ends: nothing is torn down at
//! exit, when calls may still be under way.
//!
//! A fork leaves the child with one thread and with locks that nobody will release, so the child forgets all of it: a
//! handle from before belongs to an older [`generation`], and the first open in the child makes a new process state.

mod driver;
mod signals;
mod ticker;

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use wasmtime::{Config, Engine, OptLevel};

pub(crate) use driver::Driver;
pub(crate) use signals::with_signals_blocked;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::loader::Components;
use crate::store::Stores;
use ticker::Ticker;

/// The process-wide state.
pub(crate) struct Process {
    pub engine: Engine,
    pub driver: Driver,
    pub ticker: Ticker,
    pub components: Components,
    pub stores: Stores,
    pub generation: u64,
}

/// Filled once. A lock of its own for each generation, because a fork may leave one locked for ever.
#[derive(Default)]
struct Cell(Mutex<Option<&'static Process>>);

static CURRENT: AtomicPtr<Cell> = AtomicPtr::new(std::ptr::null_mut());
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How often this process was forked off another that used the library. What was made in another generation is dead.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// The process-wide state, made if it is not there.
pub(crate) fn process() -> Result<&'static Process, Error> {
    watch_forks();
    let mut cell = CURRENT.load(Ordering::Acquire);
    if cell.is_null() {
        let fresh = Box::into_raw(Box::<Cell>::default());
        cell = match CURRENT.compare_exchange(cell, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: `fresh` came from a box a moment ago, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        };
    }
    // SAFETY: a published cell is never freed.
    let cell: &'static Cell = unsafe { &*cell };
    let mut made = cell.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(process) = *made {
        return Ok(process);
    }
    let process: &'static Process = Box::leak(Box::new(Process::new()?));
    *made = Some(process);
    Ok(process)
}

impl Process {
    fn new() -> Result<Self, Error> {
        let generation = generation();
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Other, format!("cannot start {what}: {error}"))
        };
        // The threads of rayon, which compiles in parallel, did not survive a fork.
        let parallel = generation == 0;
        let engine = Engine::new(&engine_config(parallel)).map_err(|error| cannot("wasmtime", &error))?;
        with_signals_blocked(|| {
            let driver = Driver::start().map_err(|error| cannot("the driver thread", &error))?;
            let ticker = Ticker::start(engine.clone()).map_err(|error| cannot("the ticker thread", &error))?;
            let components = Components::new(&engine)?;
            Ok(Process { engine, driver, ticker, components, stores: Stores::default(), generation })
        })
    }
}

/// The engine's settings. `docs/decisions/engine-settings.md` says why each is as it is.
fn engine_config(parallel_compilation: bool) -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .parallel_compilation(parallel_compilation)
        .concurrency_support(false)
        .epoch_interruption(true)
        .signals_based_traps(false)
        .memory_reservation(0)
        .memory_guard_size(0)
        .memory_reservation_for_growth(1 << 20)
        .max_wasm_stack(limits::WASM_STACK_BYTES)
        .async_stack_size(limits::FIBER_STACK_BYTES)
        .wasm_memory64(false)
        .wasm_multi_memory(false);
    config
}

fn watch_forks() {
    extern "C" fn in_child() {
        // Two stores: all that a child of a threaded process may do here.
        CURRENT.store(std::ptr::null_mut(), Ordering::Release);
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }
    static WATCH: Once = Once::new();
    // SAFETY: the handler is async-signal-safe, and the library is never unloaded (`-z nodelete`).
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}
