//! Where things lie below the directory. Two names never meet, and no manifest is taken for the directory of chunks.

use kv_store_sdk::key::{escape, hex};

const CHUNKS: &str = "chunks";

/// `chunks/<first hex digit>/<hex>`: 16 directories, as the ABI's reference store has them.
pub fn chunk_path(hash: &[u8]) -> String {
    let hex = hex(hash);
    let first = hex.get(..1).unwrap_or("0");
    [CHUNKS, "/", first, "/", &hex].concat()
}

/// The name itself where a file can have it; escaped otherwise.
pub fn manifest_path(name: &str) -> String {
    let key = escape(name);
    // `escape` leaves letters alone, so no other name has this key.
    if key == CHUNKS { format!("%63{}", &CHUNKS[1..]) } else { key }
}
