//! How this library stands in for a function of libllama.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::engine::function;

/// The function behind this library; looked up once.
pub fn original(known: &AtomicUsize, name: &CStr) -> Option<usize> {
    match known.load(Relaxed) {
        0 => {
            let found = function(name)? as usize;
            known.store(found, Relaxed);
            Some(found)
        }
        known => Some(known),
    }
}

/// A function that this library stands in for: its symbol, its type, what it answers where libllama has none, and what it does while the
/// automatic cache is on. There, `$original` is the function behind it.
macro_rules! stand_in {
    ($symbol:literal: fn $name:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)?, without $missing:expr, |$original:ident| $body:expr) => {
        /// As in `llama.h`.
        ///
        /// # Safety
        /// As there.
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $answer)? {
            static KNOWN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
            let name = std::ffi::CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()).unwrap_or_default();
            let Some(found) = $crate::auto::stand_in::original(&KNOWN, name) else { return $missing };
            // SAFETY: it is the function of this name and type.
            let $original = unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) $(-> $answer)?>(found)
            };
            if !$crate::auto::is_on() {
                // SAFETY: by this function's own condition.
                return unsafe { $original($($arg),*) };
            }
            // SAFETY: the same, for all that is called here.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    };
}

pub(super) use stand_in;

/// Run a function of libllama that may call others which this library stands in for.
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
    let _inside = super::Inside::enter();
    work()
}
