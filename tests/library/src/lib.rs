//! `libkv_store_faults.so`: `libkv_store_wasm.so`, of the same crates and the same build, that obeys the table `fault` of a
//! backend's config. Tests load it; it is not installed.

use kv_store_ffi as _;

extern "C" fn install() {
    kv_store_faults::install();
}

/// The dynamic loader calls it, before anybody can open a store.
// SAFETY: the section holds pointers to functions that take nothing they must read; `install` sets a static and returns.
#[unsafe(link_section = ".init_array")]
#[used]
static INSTALL: extern "C" fn() = install;
