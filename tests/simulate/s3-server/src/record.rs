//! What a record of a manifest shows, as `guests/s3/src/record.rs` lays it out: read here anew, so that the rules do not believe the backend.

use std::sync::Arc;

use crate::Value;

const MAGIC: &[u8] = b"kvs3man1";
const MANIFEST: u8 = 1;
const TOMBSTONE: u8 = 3;
const HEAD: usize = 96;
const GENERATION: std::ops::Range<usize> = 48..64;

/// What is stored under a key, as the rules have it: the bytes of a chunk, the manifest of a record with its generation behind it. None: nothing.
pub fn shown(key: &str, object: &Value) -> Option<Value> {
    if !key.contains("/r/") {
        return Some(object.clone());
    }
    if !object.starts_with(MAGIC) {
        return Some(object.clone());
    }
    match object.get(8) {
        Some(&TOMBSTONE) => None,
        Some(&MANIFEST) if object.len() >= HEAD => {
            let mut manifest = object[HEAD..].to_vec();
            if let Some(place) = manifest.last_chunk_mut::<16>().filter(|place| **place == [0; 16]) {
                place.copy_from_slice(&object[GENERATION]);
            }
            Some(Arc::new(manifest))
        }
        _ => Some(object.clone()),
    }
}
