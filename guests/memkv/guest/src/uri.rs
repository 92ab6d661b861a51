//! The URI: which server, which namespace.

use kv_store_sdk::uri::host_port;
use kv_store_sdk::{Error, Result};
use memkv_wire::{DEFAULT_PORT, MAX_NAMESPACE_BYTES};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `host:port`.
    pub authority: String,
    pub namespace: String,
}

/// `memkv://HOST[:PORT]/NAMESPACE`.
pub fn parse(uri: &str) -> Result<Target> {
    let wrong = |what: &str| Error::invalid(format!("{what}: expected memkv://HOST[:PORT]/NAMESPACE"));
    let rest = uri.strip_prefix("memkv://").ok_or_else(|| wrong("the scheme is not memkv"))?;
    if rest.contains(['?', '#']) {
        return Err(wrong("a query or fragment has no meaning here; options belong in the config file"));
    }
    let (host, namespace) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') {
        return Err(wrong("memkv has no users; the key is MEMKV_AUTH_KEY"));
    }
    let authority = host_port(host, DEFAULT_PORT).ok_or_else(|| wrong("no host"))?;
    if namespace.is_empty() {
        return Err(wrong("no namespace"));
    }
    if namespace.contains('/') {
        let root = namespace.split('/').next().unwrap_or_default();
        let help = format!(
            "a namespace holds no '/'; if what follows is an object's name, set root = \"/{root}\" in the config"
        );
        return Err(wrong(&help));
    }
    if namespace.len() > MAX_NAMESPACE_BYTES {
        return Err(wrong(&format!("the namespace is longer than {MAX_NAMESPACE_BYTES} bytes")));
    }
    Ok(Target { authority, namespace: namespace.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_defaults() {
        for (uri, authority, namespace) in [
            ("memkv://h/llama", "h:9900", "llama"),
            ("memkv://10.0.0.1:1/a b", "10.0.0.1:1", "a b"),
            ("memkv://[::1]/n", "[::1]:9900", "n"),
        ] {
            let expected = Target { authority: authority.to_owned(), namespace: namespace.to_owned() };
            assert_eq!(parse(uri).unwrap(), expected, "{uri}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let long = format!("memkv://h/{}", "n".repeat(MAX_NAMESPACE_BYTES + 1));
        for (uri, said) in [
            ("redis://h/n", "scheme"),
            ("memkv://h", "no namespace"),
            ("memkv://h/", "no namespace"),
            ("memkv:///n", "no host"),
            ("memkv://:9900/n", "no host"),
            ("memkv://me@h/n", "MEMKV_AUTH_KEY"),
            ("memkv://h/n?timeout=1", "query"),
            ("memkv://h/n/slot-7.bin", "root = \"/n\""),
            (&long, "longer than 255"),
        ] {
            let error = parse(uri).unwrap_err();
            assert!(error.message.contains(said), "{uri}: {}", error.message);
        }
    }
}
