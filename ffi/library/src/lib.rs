//! `libkv_store_wasm.so`. rustc exports from a cdylib the unmangled functions of the crates that it links, so naming the
//! crate of the C ABI is all that it takes; `include/exports.txt` lists them, and a test holds the library to the list.

use kv_store_ffi as _;
