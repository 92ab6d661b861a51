//! What an HTTP server sends: a head, and a chunked body behind it, however it is cut.
#![no_main]

use kv_http_wire::{Body, Chunks, Step, parse_head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (to_head, at_once, bytes) = input;
    let Ok(Some((head, len))) = parse_head(bytes, to_head) else { return };
    assert!(len <= bytes.len());
    if head.body != Body::Chunked {
        return;
    }
    let (mut chunks, mut from, mut to) = (Chunks::default(), len, len);
    loop {
        match chunks.step(&bytes[from..to]) {
            Ok(Step::Skip(count)) => {
                from += count;
                assert!(from <= to);
            }
            Ok(Step::Data(left)) if to > from => {
                let count = left.min((to - from) as u64);
                from += count as usize;
                chunks.took(count);
            }
            Ok(Step::Data(_) | Step::More) if to < bytes.len() => to = (to + 1 + usize::from(at_once)).min(bytes.len()),
            Ok(_) | Err(_) => return,
        }
    }
});
