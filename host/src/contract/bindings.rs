//! The contract as Rust, generated from `wit/backend.wit`.

#![allow(missing_docs, clippy::all)]

wasmtime::component::bindgen!({
    path: "wit",
    world: "backend",
    with: {
        "kv-store:backend/payloads.payload": crate::payload::Payload,
        "kv-store:backend/net.connect-options": crate::contract::ConnectOptions,
        "kv-store:backend/net.connection": crate::contract::Connection,
        "kv-store:backend/http.request-options": crate::contract::RequestOptions,
        "kv-store:backend/files.directory": crate::contract::OpenDirectory,
        "kv-store:backend/records.record-options": crate::contract::RecordOptions,
        "kv-store:backend/records.record-store": crate::contract::RecordStore,
    },
    imports: {
        "kv-store:backend/net": async | trappable,
        "kv-store:backend/http.send": async | trappable,
        "kv-store:backend/system.sleep": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});

/// The interface that a component may export beside `store`.
pub mod maintained {
    wasmtime::component::bindgen!({
        path: "wit",
        inline: "package kv-store:host; world maintained { export kv-store:backend/maintenance@1.1.0; }",
        world: "kv-store:host/maintained",
        with: { "kv-store:backend/types": crate::contract::bindings::kv_store::backend::types },
        exports: { default: async },
    });
    pub use exports::kv_store::backend::maintenance::*;
}
