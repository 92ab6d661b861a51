//! Each function of the contract at its edges, as the guest `edges` finds it. The same table holds on a second host: tests/second-host.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::{Arc, Mutex};

use kv_store_tests::objects::ObjectServer;
use kv_store_tests::{dist, echo, root, test_components};
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::backend::{Backend, Bytes, ChunkHash, Layer, Opening, Wrap};
use kv_store_wasm::{Error, Host};

/// Takes the instances of a store, to call them as the contract has it.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Option<Arc<dyn Backend>>>>);

impl Layer for Tap {
    fn open(&self, _: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        let Tap(slot) = self.clone();
        Ok(Some(Box::new(move |inner| {
            *slot.lock().unwrap() = Some(inner.clone());
            inner
        })))
    }
}

/// What the guest finds at a URI, and what the table has.
fn ask(uri: &str, table: &str) -> (String, String) {
    let tap = Tap::default();
    let target = root().join("target");
    let helper = dist().join("libexec/kv-store-compile");
    let host = Host::builder()
        .config_text(format!("[compile]\nhelper = '{}'\n", helper.display()))
        .components([test_components()])
        .cache(target.join("test-consumers/cache"))
        .layer(tap.clone())
        .build()
        .unwrap();
    let _store = host.open(uri).unwrap();
    let instances = tap.0.lock().unwrap().clone().unwrap();
    let until = || Until::new(&kv_store_wasm::limits::Limits::default());
    let hashes = [b"hash-one", b"hash-two"].map(|hash| ChunkHash::new(hash).unwrap());
    let chunks = [(hashes[0], Bytes::Borrowed(b"first")), (hashes[1], Bytes::Borrowed(b""))];
    instances.put(&chunks, false, &until()).unwrap();
    instances.get(&hashes, &mut [], &until()).unwrap();
    instances.exists(&hashes, &until()).unwrap();
    instances.commit(Some(("manifest", b"a manifest")), &hashes, 0, &until()).unwrap();
    let found = instances.get_manifest("rows", &until()).unwrap().unwrap();
    let expected = std::fs::read_to_string(root().join("tests/second-host").join(table)).unwrap();
    (String::from_utf8(found.to_vec()).unwrap(), expected)
}

fn differences(found: &str, expected: &str) -> Vec<String> {
    let (found, expected): (Vec<&str>, Vec<&str>) = (found.lines().collect(), expected.lines().collect());
    let missing = expected.iter().filter(|line| !found.contains(line)).map(|line| format!("not found: {line}"));
    let more = found.iter().filter(|line| !expected.contains(line)).map(|line| format!("found: {line}"));
    let mut all: Vec<String> = missing.chain(more).collect();
    if all.is_empty() && found != expected {
        all.push("the same rows in another order".into());
    }
    all
}

#[test]
fn payloads_files_and_system_answer_as_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let (found, expected) = ask(&format!("edges://{}", folder.path().display()), "edges-files.txt");
    assert_eq!(differences(&found, &expected), Vec::<String>::new());
}

#[test]
fn net_and_http_answer_as_the_table_says() {
    let (echo, objects) = (echo::start(), ObjectServer::start());
    let uri = format!("edges://127.0.0.1:{echo},127.0.0.1:{}/x", objects.port);
    let (found, expected) = ask(&uri, "edges-network.txt");
    assert_eq!(differences(&found, &expected), Vec::<String>::new());
}
