//! The functions of 0.2, for programs that were built with its header: `include/kv_store_deprecated.h`.
//!
//! Each forwards to the function of the table; where that fails, `save` and `load` answer 0. They stay as long as the library is
//! `libkv_store_llama.so`.

use std::ffi::c_char;

use kv_store_abi::llama::{kv_store_llama_t, llama_context};

use crate::api;
use crate::engine::{SequenceId, Token};

/// # Safety
/// As `open` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_open(uri: *const c_char, model: *const c_char) -> *mut kv_store_llama_t {
    // SAFETY: by this function's own condition.
    unsafe { api::open(uri, model) }
}

/// # Safety
/// As `save` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_save(
    states: *const kv_store_llama_t,
    context: *mut llama_context,
    name: *const c_char,
    sequence: SequenceId,
    tokens: *const Token,
    count: usize,
) -> usize {
    // SAFETY: by this function's own condition.
    unsafe { api::save(states, context, name, sequence, tokens, count) }.max(0) as usize
}

/// # Safety
/// As `load` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_load(
    states: *const kv_store_llama_t,
    context: *mut llama_context,
    name: *const c_char,
    sequence: SequenceId,
    tokens: *mut Token,
    room: usize,
    count: *mut usize,
) -> usize {
    // SAFETY: by this function's own condition.
    unsafe { api::load(states, context, name, sequence, tokens, room, count) }.max(0) as usize
}

/// # Safety
/// As `close` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_llama_close(states: *mut kv_store_llama_t) {
    // SAFETY: by this function's own condition.
    unsafe { api::close(states) }
}

/// As `last_error` of the table.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_llama_last_error() -> *const c_char {
    // SAFETY: it takes nothing.
    unsafe { api::last_error() }
}
