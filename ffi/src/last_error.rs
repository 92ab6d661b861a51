//! The text of the last failed call of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use kv_store_wasm::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keep the text of a failure.
pub(super) fn remember(error: &Error) {
    // No text of ours has a NUL; one in a guest's has been replaced.
    LAST.set(CString::new(error.to_string()).unwrap_or_default());
}

/// The text, valid until the thread's next failure: `last_error` of every table.
pub(super) unsafe extern "C" fn text() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}
