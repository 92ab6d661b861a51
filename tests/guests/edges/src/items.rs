//! Items of the running call, as parts.

use kv_store_sdk::payloads::{ItemRange, Part, crc32c};
use kv_store_sdk::{Chunk, Hashes, Manifest, Payload};

use crate::{content, row};

fn joined(parts: &[Part]) -> kv_store_sdk::Result<String> {
    Payload::from_parts(parts).and_then(|joined| content(&joined))
}

fn range(item: u32, offset: u64, len: u64) -> Part<'static> {
    Part::ItemRange(ItemRange { item, offset, len })
}

/// Two chunks: `first`, and one of no bytes.
pub fn of_a_put(chunks: &[Chunk]) {
    row("put-chunks: items", Ok(chunks.len()));
    row("put-chunks: lens", Ok(chunks.iter().map(|chunk| chunk.len.to_string()).collect::<Vec<_>>().join(" ")));
    row("put-chunks: item 0", joined(&[Part::Item(0)]));
    row("put-chunks: item 1", joined(&[Part::Item(1)]));
    row("put-chunks: an item twice", joined(&[Part::Item(0), Part::Item(0)]));
    row("put-chunks: a range of an item", joined(&[range(0, 1, 3)]));
    row("put-chunks: a range past the end of an item", joined(&[range(0, 3, 3)]));
    row("put-chunks: a range of nothing at the end", joined(&[range(1, 0, 0)]));
    row("put-chunks: an item that is not there", joined(&[Part::Item(2)]));
    row("put-chunks: a range of an item that is not there", joined(&[range(u32::MAX, 0, 0)]));
    row("put-chunks: crc32c of an item", crc32c(&[Part::Item(0)]).map(|sum| format!("{sum:08x}")));
}

pub fn of_a_commit(manifest: &Manifest, fresh: &[Hashes]) {
    let count: usize = fresh.iter().map(|hashes| hashes.len()).sum();
    row("commit: fresh", Ok(count));
    row(
        "commit: item 0 has the manifest's length",
        Payload::from_parts(&[Part::Item(0)]).map(|data| data.len() == manifest.len),
    );
    row("commit: item 1", joined(&[Part::Item(1)]));
}

/// Calls that have no items, or none to send.
pub fn outside(call: &str) {
    row(&format!("{call}: item 0 as a part"), joined(&[Part::Item(0)]));
}
