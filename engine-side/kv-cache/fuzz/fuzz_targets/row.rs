//! Any bytes as a row file: refused or read, never a panic, and what is read is what its bytes say.

#![no_main]

use kv_cache::row::{NewRow, parse, parse_head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() as u64;
    let head = parse_head(bytes, length);
    let Ok(row) = parse(bytes, length) else { return };
    assert_eq!(head, Ok(row.head));
    assert_eq!(row.head.tokens as usize, row.tokens.len());
    // Written by us and read again it is the same row.
    let new = NewRow {
        identity: row.identity,
        tokens: &row.tokens,
        reason: row.head.reason,
        detail: &row.detail,
        quant_bits: row.head.quant_bits,
        context_size: row.head.context_size,
        created: row.head.created,
        prompt: &row.prompt,
        host: &row.host,
        payload_bytes: row.head.payload_bytes.min(1 << 40),
        descriptor: row.descriptor,
    };
    let encoded = new.encode(row.head.payload_crc32c);
    let again = parse(&encoded, encoded.len() as u64 + new.payload_bytes).expect("what we write is read");
    assert_eq!((again.key(), again.sealed), (row.key(), true));
});
