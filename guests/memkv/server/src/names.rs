//! What values are stored under.

use std::sync::Arc;

use memkv_wire::fields::Kind;

/// Namespace, kind and key as one run of bytes that no other three make.
pub type Name = Arc<[u8]>;
pub type Value = Arc<Vec<u8>>;

/// The name of what a namespace has under a key.
pub fn name(namespace: &str, kind: Kind, key: &[u8]) -> Name {
    // A namespace has at most 255 bytes.
    [&[kind as u8, namespace.len() as u8], namespace.as_bytes(), key].concat().into()
}

/// What names of a kind in a namespace begin with.
pub fn place(namespace: &str, kind: Kind) -> Vec<u8> {
    [&[kind as u8, namespace.len() as u8], namespace.as_bytes()].concat()
}

/// Whether a name is that of a manifest.
pub fn is_manifest(name: &[u8]) -> bool {
    name.first() == Some(&(Kind::Manifest as u8))
}
