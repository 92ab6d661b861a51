//! `libkv_store_llama.so`: the states of llama.cpp's sequences in a kv-store-wasm store.
//!
//! Loaded before libllama (`LD_PRELOAD`, or linked) it takes the place of `llama_state_seq_save_file` and
//! `llama_state_seq_load_file`, so that llama-server, unmodified, keeps its slots in the store that `KV_STORE_LLAMA_URI`
//! names. `include/kv_store_llama.h` has the same for programs that would rather call. `docs/llama-server.md` shows both.
//!
//! - `preload` has the functions, with llama.cpp's answers; `api` those of the header, `deprecated` those that it had in 0.2.
//! - `states` saves and loads: the state of a sequence (`engine` asks libllama for it) is cut (`layout`), its chunks are put
//!   under the hash of their content, and a manifest (`record`) names them and holds the rest.
//! - `auto` finds beginnings of prompts in the store without being asked (`KV_STORE_LLAMA_AUTO=1`).
//! - `background` stores what was copied, while the server goes on; `local` is the server's own file of a slot.
//! - `model` says which states a model may be given.
//! - `store` calls the store library through its C ABI, and `library` finds and loads that: no second store is built into this one.
//!
//! Invariant: llama.cpp is given the bytes of a state that the same model wrote, all of them, or nothing.

mod adapters;
mod api;
mod auto;
mod background;
mod chunks;
mod copied;
mod deprecated;
mod engine;
mod layout;
mod library;
mod local;
mod log;
mod memory;
mod model;
mod preload;
mod record;
mod settings;
mod slot;
mod states;
mod store;

pub use api::kv_store_llama_get_vtable;
pub use deprecated::{
    kv_store_llama_close, kv_store_llama_last_error, kv_store_llama_load, kv_store_llama_open, kv_store_llama_save,
};
pub use preload::{
    llama_adapter_lora_init, llama_adapter_lora_init_from_file_ptr, llama_set_adapter_cvec, llama_state_seq_load_file,
    llama_state_seq_save_file,
};
