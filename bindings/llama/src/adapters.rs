//! Whether models of this process may compute with more than their files have.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static LOADED: AtomicBool = AtomicBool::new(false);

/// A LoRA adapter or a control vector is loaded in this process.
pub fn note() {
    LOADED.store(true, Relaxed);
}

/// Whether one was.
pub fn were_loaded() -> bool {
    LOADED.load(Relaxed)
}
