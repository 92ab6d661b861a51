//! Lines of the log for C. `include/kv_store_wasm.h` is the documentation.

use std::ffi::{CString, c_char, c_void};

use kv_store_abi::process::*;
use kv_store_wasm::raw::log::set_sink;
use kv_store_wasm::{Error, ErrorKind};
use log::{Level, LevelFilter, Log, Metadata, Record};

use super::{guarded, report, status};

/// The consumer's function, and what it is called with.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    context: *mut c_void,
    most: LevelFilter,
}

// SAFETY: the header asks for a function that any thread may call at any time with the context.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Log for Callback {
    fn enabled(&self, asked: &Metadata<'_>) -> bool {
        asked.level() <= self.most
    }

    fn log(&self, record: &Record<'_>) {
        // The host's lines hold no control character, so no NUL.
        let line = CString::new(record.args().to_string()).unwrap_or_default();
        // SAFETY: the header asks for a function that stays callable; the line lives until it returns.
        unsafe { (self.function)(self.context, number(record.level()), line.as_ptr()) };
    }

    fn flush(&self) {}
}

/// As the header numbers the levels.
fn number(level: Level) -> i32 {
    match level {
        Level::Error => KV_STORE_WASM_LOG_ERROR,
        Level::Warn => KV_STORE_WASM_LOG_WARN,
        Level::Info => KV_STORE_WASM_LOG_INFO,
        Level::Debug | Level::Trace => KV_STORE_WASM_LOG_DEBUG,
    }
}

/// Have lines of the log go to a function from now on, up to a level; without a function, to standard error.
///
/// # Safety
/// `function` is NULL, or may be called with `context` by any thread at any time until the process ends.
pub(super) unsafe extern "C" fn set_log(function: kv_store_wasm_log_fn, context: *mut c_void, level: i32) -> i32 {
    let set = guarded("set_log", || {
        let most = match level {
            KV_STORE_WASM_LOG_OFF => LevelFilter::Off,
            KV_STORE_WASM_LOG_ERROR => LevelFilter::Error,
            KV_STORE_WASM_LOG_WARN => LevelFilter::Warn,
            KV_STORE_WASM_LOG_INFO => LevelFilter::Info,
            KV_STORE_WASM_LOG_DEBUG => LevelFilter::Debug,
            other => return Err(Error::new(ErrorKind::Invalid, format!("the level is {other}, not one of 0 to 4"))),
        };
        set_sink(function.map(|function| Box::new(Callback { function, context, most }) as Box<dyn Log>));
        Ok(())
    });
    match set {
        Ok(()) => 0,
        Err(error) => {
            report("set_log", None, &error);
            status(&error)
        }
    }
}
