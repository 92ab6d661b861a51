//! The contract's `changes`.

use super::host;

pub fn begin(items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
    host(|host| host.begin(items, token))
}

pub fn not_done(items: &[u32]) {
    host(|host| host.not_done(items));
}
