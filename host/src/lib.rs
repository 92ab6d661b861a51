//! kv-store-wasm: storage backends for KV state as sandboxed WebAssembly components.
