//! Each function of the contract at its edges, as the guest `edges` finds it, and as components find it that must load for ever. The same
//! tables hold on a second host: tests/second-host.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kv_store_tests::objects::ObjectServer;
use kv_store_tests::{compat, dist, echo, root, test_components};
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::backend::{Backend, BackendLayer, Bytes, ChunkHash, Opening, Wrap};
use kv_store_wasm::{Error, Host};

/// Takes the instances of a store, to call them as the contract has it.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Option<Arc<dyn Backend>>>>);

impl BackendLayer for Tap {
    fn open(&self, _: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        let Tap(slot) = self.clone();
        Ok(Some(Box::new(move |inner| {
            *slot.lock().unwrap() = Some(inner.clone());
            inner
        })))
    }
}

/// The instances of a store of the components in a folder.
fn open(uri: &str, components: &Path) -> Arc<dyn Backend> {
    let tap = Tap::default();
    let target = root().join("target");
    let helper = dist().join("libexec/kv-store-compile");
    let scheme = uri.split(':').next().unwrap();
    let host = Host::builder()
        // Components in JavaScript and Python take half a minute of two cores to compile.
        .config_text(format!(
            "[compile]\nhelper = '{}'\n[backend.{scheme}.limits]\ncompile_ms = 1200000\n",
            helper.display()
        ))
        .components([components.to_owned()])
        .cache(target.join("test-consumers/cache"))
        .layer(tap.clone())
        .build()
        .unwrap();
    let _store = host.open(uri).unwrap();
    let instances = tap.0.lock().unwrap().clone();
    instances.unwrap()
}

fn until() -> Until {
    Until::new(&kv_store_wasm::limits::Limits::default())
}

/// What the component finds at a URI.
fn rows(instances: &dyn Backend) -> String {
    String::from_utf8(instances.get_manifest("rows", &until()).unwrap().unwrap().to_vec()).unwrap()
}

/// The guest as it is built now, and as it was built for the text of 1.1.0.
fn edges() -> [(Option<tempfile::TempDir>, PathBuf); 2] {
    let folder = tempfile::tempdir().unwrap();
    let former = folder.path().to_owned();
    compat::unpack(&root().join("tests/compat/1.1.0-edges.wasm.zst"), &former.join("edges.wasm"));
    [(None, test_components()), (Some(folder), former)]
}

/// Each of them finds at a URI what the table has.
#[track_caller]
fn finds(uri: impl Fn() -> String, table: &str) {
    for (_folder, components) in edges() {
        let (found, expected) = ask(&uri(), &components, table);
        assert_eq!(differences(&found, &expected), Vec::<String>::new(), "{}", components.display());
    }
}

/// What the guest finds at a URI, and what the table has.
fn ask(uri: &str, components: &Path, table: &str) -> (String, String) {
    let instances = open(uri, components);
    let hashes = [b"hash-one", b"hash-two"].map(|hash| ChunkHash::new(hash).unwrap());
    let chunks = [(hashes[0], Bytes::Borrowed(b"first")), (hashes[1], Bytes::Borrowed(b""))];
    instances.put(&chunks, false, &until()).unwrap();
    instances.get(&hashes, &mut [], &until()).unwrap();
    instances.exists(&hashes, &until()).unwrap();
    instances.commit(Some(("manifest", b"a manifest")), &hashes, 0, &until()).unwrap();
    let expected = std::fs::read_to_string(root().join("tests/second-host").join(table)).unwrap();
    (rows(&*instances), expected)
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
    finds(|| format!("edges://{}", folder.path().display()), "edges-files.txt");
}

#[test]
fn records_answer_as_the_table_says() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    let uri = || {
        count.set(count.get() + 1);
        let directory = folder.path().join(format!("{}/records", count.get()));
        std::fs::create_dir_all(&directory).unwrap();
        format!("edges://{}", directory.display())
    };
    finds(uri, "edges-records.txt");
}

#[test]
fn net_and_http_answer_as_the_table_says() {
    let (echo, objects) = (echo::start(), ObjectServer::start());
    finds(|| format!("edges://127.0.0.1:{echo},127.0.0.1:{}/x", objects.port), "edges-network.txt");
}

#[test]
fn components_that_call_each_function_of_1_0_find_what_they_found_for_ever() {
    let (echo, objects) = (echo::start(), ObjectServer::start());
    let expected = std::fs::read_to_string(root().join("tests/compat/calls.txt")).unwrap();
    for name in ["javascript-calls", "python-calls"] {
        let folder = tempfile::tempdir().unwrap();
        let packed = root().join("tests/compat").join(format!("1.0.0-{name}.wasm.zst"));
        compat::unpack(&packed, &folder.path().join(format!("{name}.wasm")));
        let directory = tempfile::tempdir().unwrap();
        let uris = [
            format!("{name}://{}", directory.path().display()),
            format!("{name}://127.0.0.1:{echo},127.0.0.1:{}/x", objects.port),
        ];
        let found = uris.map(|uri| rows(&*open(&uri, folder.path()))).concat();
        assert_eq!(differences(&found, &expected), Vec::<String>::new(), "{name}");
    }
}
