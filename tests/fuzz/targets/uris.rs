//! The URIs of the backends that go to servers, and names as keys.

#![no_main]
#![allow(dead_code)]

use kv_store_sdk::key::{MAX_KEY_BYTES, escape};
use kv_store_sdk::uri::{host_port, host_ports};
use libfuzzer_sys::fuzz_target;

#[path = "../../../guests/memkv/guest/src/uri.rs"]
mod memkv;
#[path = "../../../guests/redis/src/uri.rs"]
mod redis;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for uri in [text.to_owned(), format!("redis://{text}"), format!("rediss://{text}"), format!("memkv://{text}")] {
        let _ = redis::parse(&uri);
        if let Ok(target) = memkv::parse(&uri) {
            assert!(!target.namespace.is_empty() && !target.authority.is_empty());
        }
    }
    if let Some(authority) = host_port(text, 1) {
        assert!(authority.contains(':'));
    }
    for server in host_ports(text, 1).into_iter().flatten() {
        assert!(server.contains(':') && !server.contains(','), "{server}");
    }
    let key = escape(text);
    assert!(key.len() <= MAX_KEY_BYTES && !key.starts_with('.') && !key.contains(['/', '\\', '\0']), "{key}");
});
