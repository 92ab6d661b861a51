//! Write a storage backend for kv-store-wasm in Rust.
//!
//! A backend is a type that implements [`Backend`], handed to [`export!`]; `guests/memory` is the complete example. From
//! nothing:
//!
//! ```text
//! cargo new --lib acme && cd acme
//! # Cargo.toml:  [lib]
//! #              crate-type = ["cdylib"]
//! #              [dependencies]
//! #              kv-store-sdk = { path = "CLONE/sdk" }        (CLONE: this repository)
//! # src/lib.rs:  a copy of CLONE/guests/memory/src/lib.rs, with acme:// for memory://
//! rustup target add wasm32-unknown-unknown
//! cargo build --release --target wasm32-unknown-unknown
//! wasm-tools component new target/wasm32-unknown-unknown/release/acme.wasm -o acme.wasm
//! KV_STORE_WASM_PATH=$PWD  a consumer that opens  acme://
//! ```
//!
//! `wasm-tools` is the crate of that name. Built so, a component imports no WASI. For `std::fs` and the rest of std
//! build for `wasm32-wasip2` instead, which makes a component at once: the host gives it WASI 0.2 within the same grants.
//!
//! The bytes of chunks and manifests stay in the host: a backend sees a [`Payload`], which is a handle. What the host
//! offers is reached through [`payload`], [`net`], [`files`] and [`host`]; a component imports only what it uses, and
//! the operator decides what it reaches. The contract itself, with what each error means, is `wit/backend.wit`.

mod backend;
mod batch;
#[doc(hidden)]
#[allow(missing_docs, clippy::missing_safety_doc)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "backend",
        pub_export_macro: true,
        default_bindings_module: "kv_store_sdk::bindings",
        generate_all,
    });
}
mod conversation;
mod error;
pub mod key;
mod options;
pub mod uri;

pub use backend::{Backend, Features};
pub use batch::{Chunk, Hashes, Manifest, absent};
pub use bindings::exports::kv_store::backend::store::{CommitOutcome, DeleteOutcome, GetOutcome, Presence, PutOutcome};
pub use bindings::kv_store::backend::payload::{Part, Payload};
pub use bindings::kv_store::backend::types::{Error, ErrorKind};
pub use bindings::kv_store::backend::{files, host, net, payload};
pub use conversation::Conversation;
pub use options::Options;

/// What a backend's operations return.
pub type Result<T> = std::result::Result<T, Error>;

#[doc(hidden)]
pub mod __private {
    pub use crate::backend::Instance;

    /// The contract that this SDK was built for, for the stamp.
    pub const CONTRACT: &str = "kv-store:backend@1.0.0";
    /// The SDK and its version, for the stamp.
    pub const SDK: &str = concat!("kv-store-sdk ", env!("CARGO_PKG_VERSION"));

    // Evaluated by the compiler, which refuses an index that is out of range, as it does all that `get` could say.
    #[allow(clippy::indexing_slicing)]
    /// Copies the parts of a stamp into the array that the link section holds. `N` is the sum of their lengths.
    pub const fn join<const N: usize>(parts: &[&str]) -> [u8; N] {
        let mut out = [0; N];
        let (mut at, mut part) = (0, 0);
        while part < parts.len() {
            let bytes = parts[part].as_bytes();
            let mut byte = 0;
            while byte < bytes.len() {
                out[at] = bytes[byte];
                at += 1;
                byte += 1;
            }
            part += 1;
        }
        out
    }

    #[allow(clippy::indexing_slicing)]
    /// The length of all parts together.
    pub const fn joined_len(parts: &[&str]) -> usize {
        let (mut len, mut part) = (0, 0);
        while part < parts.len() {
            len += parts[part].len();
            part += 1;
        }
        len
    }
}

/// Make a component of a [`Backend`].
///
/// After the type may come the wishes: what the backend would like to be granted, for people who look into the component.
/// They grant nothing.
///
/// ```text
/// kv_store_sdk::export!(Redis, wishes: ["connect to the server in the URI", "secret password"]);
/// ```
///
/// It also writes the component's stamp, the custom section `kv-store-backend`: lines of `key: value` with the name and
/// version of the crate, the SDK, the contract and each wish.
#[macro_export]
macro_rules! export {
    ($backend:ty $(, wishes: [$($wish:literal),* $(,)?])? $(,)?) => {
        const _: () = {
            const STAMP: &[&str] = &[
                "component: ", env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"),
                "\nsdk: ", $crate::__private::SDK,
                "\ncontract: ", $crate::__private::CONTRACT,
                $($("\nwish: ", $wish,)*)?
                "\n",
            ];
            #[cfg(target_family = "wasm")]
            #[unsafe(link_section = "kv-store-backend")]
            #[used]
            static SECTION: [u8; $crate::__private::joined_len(STAMP)] = $crate::__private::join(STAMP);

            struct Component;

            impl $crate::__private::Instance for Component {
                type Backend = $backend;

                fn slot() -> &'static ::std::thread::LocalKey<::std::cell::RefCell<Option<$backend>>> {
                    ::std::thread_local! {
                        static SLOT: ::std::cell::RefCell<Option<$backend>> =
                            const { ::std::cell::RefCell::new(None) };
                    }
                    &SLOT
                }
            }

            $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
}
