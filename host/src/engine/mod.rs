//! What the process has once to run guests: the wasmtime engine, the driver of timers and sockets, and the ticker. Made by
//! the first open; nothing is torn down at exit.

mod driver;
mod ticker;

use wasmtime::{Config, Engine};

pub(crate) use driver::{Driver, before, before_it_is, has_waited, wait_for_socket, wait_until};

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::PerProcess;
use crate::signals::with_signals_blocked;
use ticker::Ticker;

/// What runs guests.
pub(crate) struct Runtime {
    pub engine: Engine,
    pub driver: Driver,
    pub ticker: Ticker,
}

/// The runtime of this process, made if it is not there.
pub(crate) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: PerProcess<Runtime> = PerProcess::new();
    RUNTIME.get_or_make(Runtime::start)
}

impl Runtime {
    fn start() -> Result<Self, Error> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Other, format!("cannot start {what}: {error}"))
        };
        let engine = Engine::new(&engine_config()).map_err(|error| cannot("wasmtime", &error))?;
        with_signals_blocked(|| {
            let driver = Driver::start().map_err(|error| cannot("the driver thread", &error))?;
            let ticker = Ticker::start(engine.clone()).map_err(|error| cannot("the ticker thread", &error))?;
            Ok(Runtime { engine, driver, ticker })
        })
    }
}

/// The engine's settings: those that compiled code depends on, and how it is run. `docs/decisions/engine-settings.md` says why
/// each is as it is.
fn engine_config() -> Config {
    let mut config = kv_store_compiler::config();
    config.max_wasm_stack(limits::WASM_STACK_BYTES).async_stack_size(limits::FIBER_STACK_BYTES);
    config
}
