//! What the library and the program `kv-store-compile` share: how components are compiled, and how the code is handed over.
//!
//! The program compiles one component and does nothing else, in a process that the library starts, bounds and waits for:
//! the compiler's memory and time follow from the component, which is a stranger's. Its standard input is the component,
//! its standard output the code with a [`Seal`] behind it, its standard error what went wrong; no other descriptor is
//! open, the environment is empty, and [`kv_platform::child::confine`] takes the rest away.

mod seal;

use std::hash::{DefaultHasher, Hash, Hasher};

use wasmtime::{Config, Engine, OptLevel};

pub use seal::{SEAL_BYTES, Seal};

/// The file name of the program.
pub const PROGRAM: &str = "kv-store-compile";

/// How the program ends, where no signal ends it.
pub mod exit {
    /// The code is written.
    pub const DONE: u8 = 0;
    /// The component does not compile; standard error says why.
    pub const REFUSED: u8 = 1;
    /// The program is of another build than the library: what it makes would not load.
    pub const OTHER_BUILD: u8 = 2;
    /// The process could not be confined, or the code not be written.
    pub const UNABLE: u8 = 3;
}

/// The settings that compiled code depends on. `docs/decisions/engine-settings.md` says why each is as it is.
pub fn config() -> Config {
    let mut config = Config::new();
    config
        .cranelift_opt_level(OptLevel::Speed)
        .parallel_compilation(true)
        .concurrency_support(false)
        .epoch_interruption(true)
        .signals_based_traps(false)
        .memory_reservation(0)
        .memory_guard_size(0)
        .memory_reservation_for_growth(1 << 20)
        // 16 MiB of zeros in the code for each module with a byte at either end of them, otherwise.
        .memory_guaranteed_dense_image_size(256 << 10)
        .wasm_memory64(false)
        // For the adapters between components; a module with two memories is refused before it is compiled.
        .wasm_multi_memory(true);
    config
}

/// What compiled code depends on, as a number: the version of wasmtime, its settings, the processor.
pub fn engine_hash(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}
