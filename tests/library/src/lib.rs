//! `libkv_store_faults.so`: `libkv_store_wasm.so`, of the same crates and the same build, that obeys the table `fault` of a
//! backend's config, and whose clock can be set. Tests load it; it is not installed.

use std::time::Duration;

use kv_store_ffi as _;

extern "C" fn install() {
    kv_store_faults::install();
}

/// The dynamic loader calls it, before anybody can open a store.
// SAFETY: the section holds pointers to functions that take nothing they must read; `install` sets a static and returns.
#[unsafe(link_section = ".init_array")]
#[used]
static INSTALL: extern "C" fn() = install;

/// Stop the clock of the stores, and let time pass on it: see [`kv_store_faults::pass`].
// SAFETY: no other function of this name is linked.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_faults_pass(milliseconds: u64) {
    kv_store_faults::pass(Duration::from_millis(milliseconds));
}
