//! What only the inside can show: the layout, and the panic boundary. The rest is tested from C.

use std::mem::{offset_of, size_of};

use super::*;

#[test]
fn the_vtable_is_laid_out_as_in_the_header() {
    let pointer = size_of::<usize>();
    assert_eq!(offset_of!(kv_store_vtable, version), 0);
    assert_eq!(offset_of!(kv_store_vtable, open), pointer);
    assert_eq!(offset_of!(kv_store_vtable, prefetch_chunks), 8 * pointer);
    assert_eq!(size_of::<kv_store_vtable>(), 9 * pointer);
    assert_eq!(VTABLE.version, 2);
}

#[test]
fn a_panic_becomes_an_error() {
    let error = guarded::<()>("put_chunk", || panic!("boom {}", 1)).unwrap_err();
    assert!(error.to_string().contains("put_chunk") && error.to_string().contains("boom 1"), "{error}");
    // SAFETY: NULL is allowed.
    assert!(unsafe { call("get_chunk", std::ptr::null_mut(), |_| Ok(0)) } < 0);
}

#[test]
fn the_header_of_paged_saves_names_every_answer() {
    let header = include_str!("../../include/kv_store_kvx.h");
    let numbers: Vec<(&str, i32)> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define KV_STORE_KVX_")?.strip_suffix(')')?.split_once(" ("))
        .map(|(name, number)| (name, number.parse().expect("a number")))
        .collect();
    for (index, kind) in ErrorKind::NAMES.iter().enumerate() {
        let number = if *kind == "missing" { MISSING } else { -(index as i32 + 1) };
        assert!(numbers.contains(&(&*kind.to_uppercase(), number)), "{kind} is {number}; the header has {numbers:?}");
    }
    assert_eq!(numbers.len(), ErrorKind::NAMES.len(), "one name for each");
    assert_eq!(ErrorKind::Version as usize, ErrorKind::NAMES.len());
}
