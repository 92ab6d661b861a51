//! The Rust API, against the components as they are installed.

#![allow(clippy::expect_used)]

use kv_store_wasm::{ErrorKind, Put, Store};

fn open(uri: &str) -> Result<Store, kv_store_wasm::Error> {
    let components = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/dist/components");
    assert!(
        std::path::Path::new(components).exists(),
        "{components} is missing: run `cargo xtask test`, which builds it"
    );
    let components = std::path::Path::new(components).canonicalize().expect("it exists");
    let target = components.ancestors().nth(2).expect("it lies in target/dist");
    std::fs::write(target.join("empty.toml"), "").expect("the target folder can be written to");
    static PREPARED: std::sync::Once = std::sync::Once::new();
    // SAFETY: nobody reads the environment before this is done: tests open stores only here.
    PREPARED.call_once(|| unsafe {
        std::env::set_var("KV_STORE_WASM_PATH", &components);
        std::env::set_var("KV_STORE_WASM_CONFIG", target.join("empty.toml"));
        std::env::set_var("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"));
    });
    Store::open(uri)
}

#[test]
fn what_was_put_is_found_and_what_was_opened_is_told() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let store = open(&format!("wasm://local-fs://{}", scratch.path().display())).expect("it opens");
    assert_eq!(store.put_chunk(b"key", b"bytes").expect("put"), Put::New);
    assert_eq!(store.put_chunk(b"key", b"bytes").expect("put"), Put::Existed);
    store.put_manifest("name", b"key").expect("published");
    store.prefetch_chunks(b"key", 3).expect("prefetched");
    assert_eq!(store.get_chunk(b"key").expect("get").as_deref(), Some(&b"bytes"[..]));
    assert_eq!(store.get_manifest("name").expect("get").as_deref(), Some(&b"key"[..]));
    assert!(store.get_chunk(b"none").expect("a miss is no error").is_none());
    store.delete_manifest("name").expect("deleted");
    assert!(store.get_manifest("name").expect("a miss is no error").is_none());

    let info = store.info();
    assert_eq!(info.directory.as_deref(), Some(scratch.path()));
    assert_eq!((info.server, info.durable, info.write_through), (None, true, true));
    assert_eq!(info.component_sha256.len(), 64);
}

#[test]
fn an_error_has_a_kind_and_says_what_to_do() {
    let error = open("local-fs://relative").err().expect("a relative path is refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("local-fs:///absolute/path"), "{error}");
    let store = open("memory://api").expect("it opens");
    assert_eq!(store.put_chunk(b"", b"x").expect_err("no hash").kind(), ErrorKind::Invalid);
}
