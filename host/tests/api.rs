//! The Rust API, against the components as they are installed.

#![allow(clippy::expect_used, clippy::indexing_slicing)]

mod common;

use kv_store_wasm::{Depth, Diagnosis, ErrorKind, Put, Store, doctor, inspect};

fn open(uri: &str) -> Result<Store, kv_store_wasm::Error> {
    common::prepare();
    Store::open(uri)
}

fn fatal(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis.problems.iter().filter(|problem| problem.fatal).map(|problem| problem.what.as_str()).collect()
}

#[test]
fn a_component_tells_what_it_is_without_being_run() {
    let component = common::prepare().join("redis.wasm");
    let found = inspect(&component).expect("a component");
    assert_eq!(found.bytes, component.metadata().expect("a file").len());
    assert!(found.imports.iter().any(|import| import.name.starts_with("kv-store:backend/net@")), "{found:?}");
    assert!(found.imports.iter().all(|import| import.not_offered.is_none()) && found.problems.is_empty(), "{found:?}");
    assert!(found.exports.iter().any(|name| name.starts_with("kv-store:backend/store@1.")), "{found:?}");
    let says = |key: &str, part: &str| found.stamp.iter().any(|(k, value)| k == key && value.contains(part));
    assert!(
        says("sdk", "kv-store-sdk") && says("contract", "kv-store:backend") && says("wish", "password"),
        "{found:?}"
    );
    assert!(found.functions > 10 && found.largest_function > 100, "{found:?}");
    assert_eq!(inspect("/dev/null".as_ref()).expect_err("no component").kind(), ErrorKind::Invalid);
}

#[test]
fn the_doctor_tells_what_an_open_would_do() {
    let component = common::prepare().join("redis.wasm");
    let found = doctor("wasm://redis://cache.svc:6379/3", Depth::Offline);
    assert!(found.problems.is_empty(), "{found:?}");
    assert_eq!((found.uri.as_str(), found.scheme.as_str()), ("redis://cache.svc:6379/3", "redis"));
    assert_eq!((found.component.as_ref(), found.component_by_config), (Some(&component), false));
    assert!(found.config.is_some_and(|path| path.to_string_lossy().contains("api-tests-")));
    assert_eq!(found.reaches.servers, ["cache.svc:6379"]);
    assert_eq!(found.reaches.secret_prefix.as_deref(), Some("REDIS_"));
    assert_eq!((found.reaches.directory, found.tenant, found.label), (None, None, None));
    assert_eq!(found.inspection.map(|found| found.bytes), component.metadata().ok().map(|meta| meta.len()));
}

#[test]
fn the_doctor_says_what_is_wrong_and_what_to_do() {
    common::prepare();
    for (uri, said) in [
        ("no uri", "scheme"),
        ("acme://x", "acme.wasm"),
        ("local-fs:///no/such/place", "/no/such is no directory"),
        ("local-fs:///tmp/../etc", "'..'"),
        ("redis://me:hunter2@h", "REDIS_PASSWORD"),
    ] {
        let found = doctor(uri, Depth::Probe);
        assert!(fatal(&found).iter().any(|what| what.contains(said)), "{uri}: {found:?}");
        assert!(found.problems.iter().all(|problem| !problem.remedy.is_empty()), "{found:?}");
        assert!(!format!("{found:?}").contains("hunter2"), "{uri}: a secret is told");
    }
}

#[test]
fn the_doctor_opens_a_store_only_when_it_is_asked() {
    let (_, scratch) = (common::prepare(), tempfile::tempdir().expect("a temporary directory"));
    let path = scratch.path().join("store");
    let uri = format!("local-fs://{}", path.display());
    assert!(doctor(&uri, Depth::Connect).label.is_none() && !path.exists());
    let found = doctor(&uri, Depth::Probe);
    assert!(found.label.is_some() && found.problems.is_empty() && path.exists(), "{found:?}");
    assert!(doctor(&uri, Depth::Connect).cached);
    let found = doctor("redis://127.0.0.1:1", Depth::Probe);
    assert!(fatal(&found).iter().any(|what| what.contains("127.0.0.1:1")), "{found:?}");
}

#[test]
fn the_doctor_connects_to_the_server_of_the_uri_unless_it_is_told_not_to() {
    common::prepare();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = listener.local_addr().expect("its address").to_string();
    let uri = format!("redis://{server}/0");
    let found = doctor(&uri, Depth::Connect);
    assert!(fatal(&found).is_empty() && found.label.is_none(), "{found:?}");
    let [reached] = &found.servers[..] else { panic!("{found:?}") };
    assert_eq!((&reached.server, reached.reached.as_ref()), (&server, Some(&server)));
    assert!(found.not_tried.iter().any(|what| what.contains("logging in to the server")), "{found:?}");
    drop(listener);
    let gone = doctor(&uri, Depth::Connect);
    assert!(fatal(&gone).iter().any(|what| what.contains(&server) && what.contains("refused")), "{gone:?}");
    let offline = doctor(&uri, Depth::Offline);
    assert!(fatal(&offline).is_empty() && offline.servers.is_empty(), "{offline:?}");
    assert!(offline.not_tried.iter().any(|what| what.contains("connecting")), "{offline:?}");
    // Which port that is, is the backend's business.
    let portless = doctor("acme://127.0.0.1/x", Depth::Connect);
    assert!(portless.servers.is_empty() && portless.not_tried[0].contains("127.0.0.1"), "{portless:?}");
    let unknown = doctor("redis://no-such-host.invalid:6379", Depth::Connect);
    assert!(fatal(&unknown).iter().any(|what| what.contains("cannot resolve")), "{unknown:?}");
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
