//! The URI: which master, and whose objects.

use kv_store_sdk::uri::host_port;
use kv_store_sdk::{Error, Result};

const DEFAULT_PORT: u16 = 50051;
const MAX_NAMESPACE_BYTES: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port` of the master.
    pub master: String,
    /// Sets the objects of this store apart from others that the same master knows.
    pub namespace: String,
}

/// `mooncake://MASTER[:PORT]/NAMESPACE`.
pub fn parse(uri: &str) -> Result<Target> {
    let wrong = |what: &str| Error::invalid(format!("{what}: expected mooncake://MASTER[:PORT]/NAMESPACE"));
    let rest = uri.strip_prefix("mooncake://").ok_or_else(|| wrong("the scheme is not mooncake"))?;
    let (authority, namespace) = rest.split_once('/').ok_or_else(|| wrong("no namespace"))?;
    if authority.contains(['@', ',']) {
        return Err(wrong("one master, and no user: Mooncake's master knows no passwords"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if namespace.is_empty() || namespace.len() > MAX_NAMESPACE_BYTES || !namespace.bytes().all(is_plain) {
        return Err(wrong("the namespace must be 1 to 64 of a-z, A-Z, 0-9, `-`, `_` and `.`"));
    }
    let master = host_port(authority, DEFAULT_PORT).ok_or_else(|| wrong("no host"))?;
    Ok(Target { master, namespace: namespace.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_defaults() {
        for (uri, master) in [("mooncake://m/a", "m:50051"), ("mooncake://[::1]:7/a", "[::1]:7")] {
            assert_eq!(parse(uri).unwrap(), Target { master: master.to_owned(), namespace: "a".to_owned() }, "{uri}");
        }
        for uri in [
            "mooncake://m",
            "mooncake://m/",
            "mooncake:///a",
            "mooncake://m/a/b",
            "mooncake://m/a?b",
            "mooncake://a,b/c",
            "x",
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }
}
