//! Bugs that are planted one at a time, to see whether the search finds them. Those of `core` are in `planted.toml`: `cargo xtask simulate
//! --planted` plants them in a copy of it, and the variable names the one that is on. Those of the storage system are in this crate.

use std::sync::OnceLock;

/// Names the bug that is on.
pub const VARIABLE: &str = "KV_SIMULATE_PLANTED";

/// Whether this bug is on.
pub fn is(name: &str) -> bool {
    static PLANTED: OnceLock<Option<String>> = OnceLock::new();
    PLANTED.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref() == Some(name)
}
