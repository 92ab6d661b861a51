//! The SDK and the contract, as this program was built with them.

/// Their files in a project, and what is in them.
pub const SDK: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));

/// Where the contract lies in a project in another language than Rust.
pub const CONTRACT_OF_OTHERS: &str = "wit/deps/kv-store-backend/backend.wit";

/// The text of the contract.
pub fn contract() -> &'static str {
    SDK.iter().find(|(path, _)| *path == "sdk/wit/backend.wit").map_or("", |(_, text)| *text)
}
