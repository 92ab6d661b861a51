//! The counters for C. `include/kv_store_wasm.h` is the documentation.

use std::ffi::c_char;

use super::{guarded, report};

/// Write the counters as text in the format of Prometheus, as `snprintf` does.
///
/// # Safety
/// `buffer` is NULL, where `len` does not matter, or valid for writes of `len` bytes.
pub(super) unsafe extern "C" fn metrics(buffer: *mut c_char, len: usize) -> usize {
    let text =
        guarded("metrics", || kv_store_wasm::metrics().map(|metrics| metrics.to_string())).unwrap_or_else(|error| {
            report("metrics", None, &error);
            String::new()
        });
    // No name holds a NUL: URIs with control characters are refused.
    if !buffer.is_null() && len > 0 {
        let count = text.len().min(len - 1);
        // SAFETY: `count` bytes are in `text`, and one more than them in `buffer`, by this function's own condition.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
            *buffer.add(count) = 0;
        }
    }
    text.len()
}
