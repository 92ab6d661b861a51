//! What only the inside can show: the numbers of failures, and the panic boundary. Layouts are the crate `kv-store-abi`'s; the rest is
//! tested from C.

use kv_store_abi::status::*;

use super::*;

#[test]
fn a_panic_becomes_an_error() {
    let error = guarded::<()>("put_chunk", || panic!("boom {}", 1)).unwrap_err();
    assert!(error.to_string().contains("put_chunk") && error.to_string().contains("boom 1"), "{error}");
    // SAFETY: NULL is allowed.
    assert!(unsafe { call("get_chunk", std::ptr::null_mut(), |_| Ok(0)) } < 0);
}

#[test]
fn each_kind_of_failure_is_the_status_of_its_name() {
    let statuses = [
        (ErrorKind::Unavailable, "unavailable", KV_STORE_UNAVAILABLE),
        (ErrorKind::Denied, "denied", KV_STORE_DENIED),
        (ErrorKind::Exhausted, "exhausted", KV_STORE_EXHAUSTED),
        (ErrorKind::Invalid, "invalid", KV_STORE_INVALID),
        (ErrorKind::Corrupt, "corrupt", KV_STORE_CORRUPT),
        (ErrorKind::Unsupported, "unsupported", KV_STORE_UNSUPPORTED),
        (ErrorKind::Component, "component", KV_STORE_COMPONENT),
        (ErrorKind::Other, "other", KV_STORE_OTHER),
        (ErrorKind::Missing, "missing", KV_STORE_MISSING),
        (ErrorKind::Mismatch, "mismatch", KV_STORE_MISMATCH),
        (ErrorKind::Cancelled, "cancelled", KV_STORE_CANCELLED),
        (ErrorKind::Version, "version", KV_STORE_VERSION),
    ];
    assert_eq!(statuses.map(|(_, name, _)| name), ErrorKind::NAMES);
    for (kind, name, number) in statuses {
        assert_eq!(status(&Error::new(kind, "")), number, "{name}");
    }
}
