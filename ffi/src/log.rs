//! Lines of the log for C. `include/kv_store_wasm.h` is the documentation.

use std::ffi::{CString, c_char, c_void};

use kv_store_wasm::raw::log::set_sink;
use kv_store_wasm::{Error, ErrorKind};
use log::{Level, LevelFilter, Log, Metadata, Record};

use super::{guarded, report};

/// Takes a line: what was given with the function, the level, and a C string.
type Function = unsafe extern "C" fn(*mut c_void, i32, *const c_char);

/// The consumer's function, and what it is called with.
struct Callback {
    function: Function,
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
        Level::Error => 1,
        Level::Warn => 2,
        Level::Info => 3,
        Level::Debug | Level::Trace => 4,
    }
}

/// Have lines of the log go to a function from now on, up to a level; without a function, to standard error.
///
/// # Safety
/// `function` is NULL, or may be called with `context` by any thread at any time until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_wasm_set_log(function: Option<Function>, context: *mut c_void, level: i32) -> i32 {
    let set = guarded("set_log", || {
        let most = match level {
            0 => LevelFilter::Off,
            1 => LevelFilter::Error,
            2 => LevelFilter::Warn,
            3 => LevelFilter::Info,
            4 => LevelFilter::Debug,
            other => return Err(Error::new(ErrorKind::Invalid, format!("the level is {other}, not one of 0 to 4"))),
        };
        set_sink(function.map(|function| Box::new(Callback { function, context, most }) as Box<dyn Log>));
        Ok(())
    });
    match set {
        Ok(()) => 0,
        Err(error) => {
            report("set_log", None, &error);
            -(error.kind() as i32)
        }
    }
}
