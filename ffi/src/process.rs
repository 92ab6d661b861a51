//! What the library offers to the process, for C. `include/kv_store_wasm.h` is the documentation.

use kv_store_abi::process::{KV_STORE_WASM_VTABLE_VERSION, kv_store_wasm_vtable_t};

use super::{last_error, log, metrics};

static VTABLE: kv_store_wasm_vtable_t = kv_store_wasm_vtable_t {
    size: size_of::<kv_store_wasm_vtable_t>() as u32,
    version: KV_STORE_WASM_VTABLE_VERSION,
    metrics: metrics::metrics,
    set_log: log::set_log,
    last_error: last_error::text,
};

/// The vtable of the process. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_wasm_get_vtable() -> *const kv_store_wasm_vtable_t {
    &VTABLE
}
