//! Frames of memkv, as a peer that has no key would send them: a header, and fields of any kind. What is taken apart and put
//! together again is the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use memkv_wire::fields::{BatchGet, Commit, Connect, Connected, Delete, Exists, Lookup, Put, text};
use memkv_wire::{HEADER_BYTES, Header, Incoming, Key, MAX_FIELDS_BYTES, Version};

fuzz_target!(|bytes: &[u8]| {
    if let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        if let Ok(decoded) = Header::decode(header) {
            assert_eq!(decoded.encode(), *header);
        }
        let mut incoming = Incoming::new(Key::new([7; 32]), MAX_FIELDS_BYTES, 1 << 20);
        if let Ok(header) = incoming.open(header) {
            assert!(header.fields as usize <= MAX_FIELDS_BYTES && header.value <= 1 << 20);
            let _ = (header.op(), header.answers(), header.is_refusal());
        }
        fields(rest);
    }
    fields(bytes);
});

fn fields(bytes: &[u8]) {
    for version in Version::ALL {
        if let Ok(found) = Connect::decode(bytes, version) {
            assert_eq!(found.encode(version), bytes);
        }
        if let Ok(found) = Put::decode(bytes, version) {
            assert_eq!(found.encode(version), bytes);
        }
        if let Ok(found) = Delete::decode(bytes, version) {
            assert_eq!(found.encode(version), bytes);
        }
        // Flags that are not known yet are dropped.
        if let Ok(found) = Connected::decode(bytes, version) {
            assert_eq!(found.encode(version).len(), bytes.len());
        }
    }
    if let Ok(found) = Lookup::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
    if let Ok(found) = Commit::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
    if let Ok(found) = Exists::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
    if let Ok(found) = BatchGet::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
    assert!(!text(bytes).contains(char::is_control));
}
