//! Write a storage backend for kv-store-wasm in Rust.
//!
//! A backend is a type that implements [`Backend`], handed to [`export!`]; `tools/cli/template/lib.rs.in`, which `kv-store new` copies, is the shortest one. From
//! nothing:
//!
//! ```text
//! cargo new --lib acme && cd acme
//! # Cargo.toml:  [lib]
//! #              crate-type = ["cdylib"]
//! #              [dependencies]
//! #              kv-store-sdk = { path = "CLONE/sdk" }        (CLONE: this repository)
//! # src/lib.rs:  a copy of CLONE/cli/template/lib.rs.in, with acme for @NAME@
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
//! offers is reached through [`payloads`], [`net`], [`http`], [`files`], [`records`], [`system`] and [`changes`]; a component imports only what it uses, and
//! the operator decides what it reaches. The contract itself, with what each error means, is `wit/backend.wit`.

mod backend;
mod batch;
#[doc(hidden)]
#[allow(missing_docs, clippy::missing_safety_doc)]
pub mod bindings {
    #[cfg(not(feature = "native-host"))]
    wit_bindgen::generate!({
        path: "wit",
        world: "backend",
        pub_export_macro: true,
        default_bindings_module: "kv_store_sdk::bindings",
        generate_all,
    });
    #[cfg(feature = "native-host")]
    wit_bindgen::generate!({
        path: "wit",
        world: "backend",
        pub_export_macro: true,
        default_bindings_module: "kv_store_sdk::bindings",
        generate_all,
        with: {
            "kv-store:backend/files@1.1.0": crate::native::files,
            "kv-store:backend/payloads@1.1.0": crate::native::payloads,
            "kv-store:backend/records@1.1.0": crate::native::records,
            "kv-store:backend/net@1.1.0": crate::native::net,
            "kv-store:backend/http@1.1.0": crate::native::http,
            "kv-store:backend/system@1.1.0": crate::native::system,
            "kv-store:backend/changes@1.1.0": crate::native::changes,
        },
    });
}
pub mod changes;
/// The interface that a backend may export beside `store`.
#[doc(hidden)]
#[allow(missing_docs, clippy::missing_safety_doc)]
pub mod maintained_bindings {
    wit_bindgen::generate!({
        path: "wit",
        inline: "package kv-store:sdk; world maintained { export kv-store:backend/maintenance@1.1.0; }",
        world: "kv-store:sdk/maintained",
        with: { "kv-store:backend/types@1.1.0": crate::bindings::kv_store::backend::types },
        pub_export_macro: true,
        default_bindings_module: "kv_store_sdk::maintained_bindings",
    });
}
mod conversation;
mod error;
pub mod eviction;
pub mod key;
mod maintenance;
#[cfg(feature = "native-host")]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod native;
mod options;
mod several;
pub mod uri;

pub use backend::{Backend, Features};
pub use batch::{Chunk, Hashes, Manifest, absent, get_outcomes};
pub use bindings::kv_store::backend::store_types::{
    CommitOutcome, DeleteOutcome, GetOutcome, Presence, Properties, PutOutcome,
};
pub use bindings::kv_store::backend::types::{Error, ErrorKind};
#[cfg(not(feature = "native-host"))]
pub use bindings::kv_store::backend::{files, http, net, payloads, records, system};
pub use conversation::{Conversation, Peer};
pub use maintained_bindings::exports::kv_store::backend::maintenance::{
    ChunkEntry, ChunkPage, Evicted, Eviction, ManifestEntry, ManifestPage, Totals,
};
pub use maintenance::Maintenance;
#[cfg(feature = "native-host")]
pub use native::{files, http, net, payloads, records, system};
pub use options::Options;
pub use payloads::{Part, Payload};
pub use several::{Next, Request, ask};

/// What a backend's operations return.
pub type Result<T> = std::result::Result<T, Error>;

#[doc(hidden)]
pub mod __private {
    pub use crate::backend::Instance;

    /// The contract that this SDK was built for, for the stamp.
    pub const CONTRACT: &str = "kv-store:backend@1.0.0-rc";
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

    /// Refuses to compile what is no entry of `schemes`: a lower-case letter, then lower-case letters, digits, `-`, `+` and `.`, and
    /// perhaps `:` with a port.
    #[allow(clippy::indexing_slicing)]
    pub const fn check_schemes(schemes: &[&str]) {
        assert!(schemes.len() <= 16, "a component lists 16 schemes at most");
        let mut scheme = 0;
        while scheme < schemes.len() {
            let bytes = schemes[scheme].as_bytes();
            assert!(!bytes.is_empty() && bytes[0].is_ascii_lowercase(), "a scheme begins with a lower-case letter");
            let (mut at, mut digits, mut port) = (1, 0, 0);
            while at < bytes.len() && bytes[at] != b':' {
                let byte = bytes[at];
                let tame = byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.');
                assert!(tame, "a scheme has lower-case letters, digits, '-', '+' and '.'");
                at += 1;
            }
            let has_port = at < bytes.len();
            at += 1;
            while at < bytes.len() {
                assert!(bytes[at].is_ascii_digit() && digits < 5, "after ':' comes a port");
                port = port * 10 + (bytes[at] - b'0') as u32;
                (at, digits) = (at + 1, digits + 1);
            }
            assert!(!has_port || (port > 0 && port <= u16::MAX as u32), "a port is 1 to 65535");
            scheme += 1;
        }
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

    #[cfg(test)]
    mod tests {
        use super::{join, joined_len};

        #[test]
        fn the_parts_of_a_stamp_follow_each_other() {
            let parts = ["ab", "", "c", "def"];
            assert_eq!((joined_len(&parts), joined_len(&[]), joined_len(&[""])), (6, 0, 0));
            assert_eq!(join::<6>(&parts), *b"abcdef");
        }
    }
}

/// What [`export!`] makes for the host of a component.
#[cfg(not(feature = "native-host"))]
#[doc(hidden)]
#[macro_export]
macro_rules! export_component {
    ($component:ident { $($more:tt)* }) => {
        $crate::bindings::export!($component with_types_in $crate::bindings);
        $($more)*
    };
}

/// Several backends may be in one native program: they export no symbols.
#[cfg(feature = "native-host")]
#[doc(hidden)]
#[macro_export]
macro_rules! export_component {
    ($component:ident { $($more:tt)* }) => {};
}

#[cfg(not(feature = "native-host"))]
#[doc(hidden)]
#[macro_export]
macro_rules! export_native {
    ($backend:ty { $($more:tt)* }) => {};
}

/// And for a program that runs the backend natively.
#[cfg(feature = "native-host")]
#[doc(hidden)]
#[macro_export]
macro_rules! export_native {
    ($backend:ty {}) => {
        $crate::export_native!(@ $backend, open);
    };
    ($backend:ty { $($more:tt)+ }) => {
        $crate::export_native!(@ $backend, open_maintained);
    };
    (@ $backend:ty, $open:ident) => {
        /// Open a store over the host of the running call.
        pub fn open(
            uri: &str,
            options: Vec<(String, String)>,
        ) -> $crate::Result<(Box<dyn $crate::native::Opened>, $crate::Features)> {
            $crate::native::$open::<$backend>(uri, options)
        }
    };
}

/// Make a component of a [`Backend`], or, with `TYPE, maintenance`, of one that implements [`Maintenance`] too.
///
/// After the type may come, in this order and each of them or not:
/// - `schemes`: what the URIs that it serves begin with, the name under which it is installed first. `acmes` is then found by `acme.wasm`,
///   where no component has that name. One that has a port of its own is `"acmes:7443"`; 16 at most.
/// - `port`: what a URI without a port means. The host grants it only to a component that ships with it, or that the operator has
///   pinned by `sha256`; otherwise the URI must name the port.
/// - `endpoint`: where it finds what a URI names that has no server, as `s3://BUCKET` has none: `"https://s3.{region}.amazonaws.com"`, where
///   `{region}` is the option `region`. The operator may name another (`endpoint` in the config), and must unless the component ships with
///   the host or is pinned by `sha256`.
/// - `wishes`: what the backend would like to be granted, for people who look into the component. They grant nothing.
/// - `options`, `secrets`: the names of all options and of all secrets that it takes, so that `kv-store config check` finds a misspelt one
///   without running the component.
///
/// ```text
/// kv_store_sdk::export!(Redis, schemes: ["redis", "rediss"], port: 6379, wishes: ["the server in the URI"],
///     options: ["prefix", "ttl_s"], secrets: ["password"]);
/// ```
///
/// It also writes the component's stamp, the custom section `kv-store-backend`: lines of `key: value` with the name and
/// version of the crate, the SDK, the contract, the schemes, the port and the endpoint, each wish, the options and the secrets.
#[macro_export]
macro_rules! export {
    (@ { $($more:tt)* } $backend:ty $(, schemes: [$($scheme:literal),* $(,)?])? $(, port: $port:literal)?
        $(, endpoint: $endpoint:literal)? $(, wishes: [$($wish:literal),* $(,)?])? $(, options: [$($option:literal),* $(,)?])?
        $(, secrets: [$($secret:literal),* $(,)?])? $(,)?) => {
        const _: () = {
            $(const _: () = $crate::__private::check_schemes(&[$($scheme),*]);)?
            $(const _: ::core::num::NonZeroU16 = ::core::num::NonZeroU16::new($port).unwrap();)?
            const STAMP: &[&str] = &[
                "component: ", env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"),
                "\nsdk: ", $crate::__private::SDK,
                "\ncontract: ", $crate::__private::CONTRACT,
                $("\nschemes:", $(" ", $scheme,)* " ",)?
                $("\nport: ", concat!($port),)?
                $("\nendpoint: ", $endpoint,)?
                $($("\nwish: ", $wish,)*)?
                $("\noptions:", $(" ", $option,)* " ",)?
                $("\nsecrets:", $(" ", $secret,)* " ",)?
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

            $crate::export_component!(Component { $($more)* });
        };
        $crate::export_native!($backend { $($more)* });
    };
    ($backend:ty, maintenance $($rest:tt)*) => {
        $crate::export!(@ {
            $crate::maintained_bindings::export!(Component with_types_in $crate::maintained_bindings);
        } $backend $($rest)*);
    };
    ($backend:ty $(, $name:ident: $list:tt)* $(,)?) => {
        $crate::export!(@ {} $backend $(, $name: $list)*);
    };
}

#[cfg(test)]
mod tests {
    use super::__private::check_schemes;

    #[test]
    fn what_is_no_scheme_does_not_compile() {
        check_schemes(&["s3", "s3+http:80", "local-fs", "a.b:65535"]);
        for wrong in ["", "S3", "3s", "s_3", "s3:", "s3:0", "s3:65536", "s3:+7", "s3:100000", "s3://", " s3"] {
            assert!(std::panic::catch_unwind(|| check_schemes(&[wrong])).is_err(), "{wrong:?}");
        }
        assert!(std::panic::catch_unwind(|| check_schemes(&["a"; 17])).is_err());
    }
}

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
