//! Where things lie below the directory. Two names never meet, and no manifest is taken for the directory of chunks.

use kv_store_sdk::key::{escape_listed, hex_behind, listed, unhex};

const CHUNKS: &str = "chunks";
/// The file of a manifest of the name `chunks`. Letters are never escaped, so no other name has it.
const CHUNKS_ESCAPED: &str = "%63hunks";
/// Directories of chunks, by the first hex digit of their hashes.
pub const SHARDS: usize = 16;

/// `chunks/<first hex digit>`.
pub fn shard(number: usize) -> String {
    format!("{CHUNKS}/{number:x}")
}

/// `chunks/<first hex digit>/<hex>`: 16 directories, as the ABI's reference store has them.
pub fn chunk_path(hash: &[u8]) -> String {
    let shard = hash.first().map_or(0, |byte| byte >> 4);
    hex_behind(SHARD_PATHS.get(usize::from(shard)).copied().unwrap_or_default(), hash)
}

/// What stands before the hex digits, by the first of them.
const SHARD_PATHS: [&str; SHARDS] = [
    "chunks/0/",
    "chunks/1/",
    "chunks/2/",
    "chunks/3/",
    "chunks/4/",
    "chunks/5/",
    "chunks/6/",
    "chunks/7/",
    "chunks/8/",
    "chunks/9/",
    "chunks/a/",
    "chunks/b/",
    "chunks/c/",
    "chunks/d/",
    "chunks/e/",
    "chunks/f/",
];

/// The hash of the chunk in a file of this name; none: it is no chunk's.
pub fn chunk_hash(file: &str) -> Option<Vec<u8>> {
    unhex(file.as_bytes()).filter(|hash| (1..=64).contains(&hash.len()))
}

/// The name itself where a file can have it; escaped otherwise.
pub fn manifest_path(name: &str) -> String {
    let key = escape_listed(name);
    if key == CHUNKS { CHUNKS_ESCAPED.to_owned() } else { key }
}

/// The name of the manifest in a file of this name; none: it is no manifest's.
pub fn manifest_name(file: &str) -> Option<String> {
    match file {
        CHUNKS => None,
        CHUNKS_ESCAPED => Some(CHUNKS.to_owned()),
        _ => listed(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where other versions find chunks and manifests.
    #[test]
    fn golden_paths() {
        assert_eq!(chunk_path(&[0xa0, 0x0b, 0xff]), "chunks/a/a00bff");
        assert_eq!([0, 9, 15].map(shard), ["chunks/0", "chunks/9", "chunks/f"]);
        assert_eq!(SHARDS, 16);
        for (name, path) in [("slot-7.bin", "slot-7.bin"), ("../Etc", "%2e.%2f%45tc"), ("chunks", "%63hunks")] {
            assert_eq!(manifest_path(name), path);
            assert_eq!(manifest_name(path).as_deref(), Some(name));
        }
        assert_eq!(
            (chunk_hash("a00bff"), chunk_hash("A0"), chunk_hash("")),
            (Some(vec![0xa0, 0x0b, 0xff]), None, None)
        );
        assert_eq!(crate::marker::MARKER, ".local-fs");
    }
}
