//! The contract as Rust, generated from `wit/backend.wit`.

#![allow(missing_docs, clippy::all)]

wasmtime::component::bindgen!({
    path: "../wit",
    world: "backend",
    with: {
        "kv-store:backend/payload.payload": crate::payload::Payload,
        "kv-store:backend/net.connection": crate::guest::Connection,
        "kv-store:backend/files.directory": crate::guest::OpenDirectory,
    },
    imports: {
        "kv-store:backend/net": async | trappable,
        "kv-store:backend/host.sleep": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
