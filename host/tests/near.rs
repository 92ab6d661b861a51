//! The near level of the Rust API, before a component as it is installed.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Once;

use kv_store_wasm::{BatchOptions, Depth, Fetch, Fetched, Memory, NewChunk, Presence, Put, Store, doctor};
use xxhash_rust::xxh3::xxh3_64;

/// Where the stores and the disk tier are.
fn place() -> PathBuf {
    static PREPARED: Once = Once::new();
    let place = std::env::temp_dir().join(format!("kv-near-{}", std::process::id()));
    PREPARED.call_once(|| {
        let components = common::prepare();
        let helper = components.ancestors().nth(1).unwrap().join("libexec/kv-store-compile");
        ["a", "b"].iter().for_each(|tenant| std::fs::create_dir_all(place.join(tenant)).unwrap());
        let (shown, near) = (place.display(), "near = { memory_bytes = 1048576");
        let config = format!(
            "[compile]\nhelper = '{}'\n[backend.local-fs]\n\
             [[tenant]]\nuri = 'local-fs://{shown}/a'\n{near}, disk = '{shown}/near', disk_bytes = 1048576 }}\n\
             [[tenant]]\nuri = 'local-fs://{shown}/b'\n{near}, disk = '{shown}/near', disk_bytes = 1048576 }}\n\
             [[tenant]]\nuri = 'local-fs://{shown}/brief'\n{near}, ttl_s = 1 }}\n\
             [[tenant]]\nuri = 'local-fs://{shown}/unverified'\nverify = 'off'\n{near} }}\n\
             [[tenant]]\nuri = 'local-fs://{shown}/open'\nnear = {{ disk = '{shown}/public', disk_bytes = 1048576 }}\n\
             [[tenant]]\nuri = 'local-fs://{shown}/near'\n",
            helper.display()
        );
        let path = place.join("config.toml");
        std::fs::write(&path, config).unwrap();
        // SAFETY: each test waits for this before it opens anything.
        unsafe { std::env::set_var("KV_STORE_WASM_CONFIG", path) };
    });
    place
}

fn uri(name: &str) -> String {
    format!("local-fs://{}", place().join(name).display())
}

fn key(data: &[u8]) -> [u8; 8] {
    xxh3_64(data).to_be_bytes()
}

/// All files below, but those of the host's own.
fn files(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The file of a chunk in a store.
fn file_of(store: &str, data: &[u8]) -> Option<PathBuf> {
    let holds = |bytes: Vec<u8>| bytes.starts_with(data) && [0, 64].contains(&(bytes.len() - data.len()));
    files(&place().join(store)).into_iter().find(|file| std::fs::read(file).is_ok_and(holds))
}

fn put(store: &Store, data: &[u8]) -> [u8; 8] {
    assert_eq!(store.put_chunk(&key(data), data).unwrap(), Put::New);
    key(data)
}

fn get(store: &Store, hash: &[u8]) -> Option<Vec<u8>> {
    store.get_chunk(hash).unwrap().map(|data| data.to_vec())
}

fn presence(store: &Store, hash: &[u8]) -> Presence {
    store.exists_many(&[hash], &BatchOptions::default()).unwrap().remove(0).unwrap()
}

#[test]
fn a_chunk_is_near_and_what_is_there_is_far() {
    let [a, b] = ["a/one", "b/one"].map(|name| Store::open(&uri(name)).unwrap());
    let data = b"a chunk of the one, which the other never sees".to_vec();
    let hash = put(&a, &data);
    a.put_manifest("m", b"manifest").unwrap();
    let file = file_of("a", &data).expect("it is stored");
    // Another process deletes it.
    std::fs::remove_file(&file).unwrap();
    assert_eq!(get(&a, &hash).as_ref(), Some(&data));
    a.prefetch_chunks(&hash, 8).unwrap();
    assert_eq!(get(&a, &hash).as_ref(), Some(&data));
    let (mut memory, options) = (vec![0; data.len()], BatchOptions::default());
    let mut pieces = [memory.as_mut_slice()];
    let mut items = [Fetch::new(&hash, Memory::Pieces(&mut pieces))];
    assert!(
        matches!(a.get_many(&mut items, &options).unwrap()[0], Ok(Some(Fetched::Placed(len))) if len == data.len())
    );
    assert_eq!(memory, data);
    assert!(a.get_unchecked(&[&hash]).unwrap()[0].as_ref().unwrap().is_none(), "this asks the backend");
    // Another tenant has none of it, though it has the same near level's directory.
    assert_eq!(get(&b, &hash), None);
    // A put is answered by what is there, and a manifest is never near.
    assert_eq!(presence(&a, &hash), Presence::Absent);
    assert_eq!(get(&a, &hash), None, "and now it is known that it is gone");
    assert_eq!(a.put_chunk(&hash, &data).unwrap(), Put::New);
    assert!(file_of("a", &data).is_some());
    let manifest = file_of("a", b"manifest").unwrap();
    std::fs::remove_file(manifest).unwrap();
    assert!(a.get_manifest("m").unwrap().is_none());
    // What is deleted here is gone at once.
    assert!(a.delete_many(&[&hash]).unwrap()[0].is_ok());
    assert_eq!(get(&a, &hash), None);
}

#[test]
fn a_chunk_that_was_damaged_far_away_is_answered_from_near_until_it_is_fetched() {
    let store = Store::open(&uri("a/damaged")).unwrap();
    let data = b"sound when it was put".to_vec();
    let hash = put(&store, &data);
    store.put_manifest("m", b"x").unwrap();
    std::fs::write(file_of("a/damaged", &data).unwrap(), b"spoilt since it was p").unwrap();
    assert_eq!(get(&store, &hash).as_ref(), Some(&data));
    // A batch that stores something else under this key: what was near is not the chunk any more.
    let chunk = NewChunk::new(&hash, &[b"something else"]);
    let replace = BatchOptions::default().with_replace();
    assert!(store.put_many(&[chunk], &replace, None).unwrap()[0].is_ok());
    assert_eq!(get(&store, &hash), None, "it is not what its key says");
    // It lies in an envelope, where batches find it.
    assert_eq!(presence(&store, &hash), Presence::Present(Some(14)));
}

#[test]
fn a_delete_by_another_process_is_seen_in_time() {
    let store = Store::open(&uri("brief")).unwrap();
    let [gone, kept] = [&b"gone soon"[..], b"kept for long"].map(|data| put(&store, data));
    store.put_manifest("m", b"x").unwrap();
    std::fs::remove_file(file_of("brief", b"gone soon").unwrap()).unwrap();
    let begun = std::time::Instant::now();
    while get(&store, &gone).is_some() {
        assert!(begun.elapsed().as_secs() < 10, "it is still near");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(get(&store, &kept).unwrap(), b"kept for long");
}

#[test]
fn what_is_near_stays_over_opens_and_is_counted() {
    let data = b"put once, read by the next handle".to_vec();
    let hash = {
        let store = Store::open(&uri("b/again")).unwrap();
        let hash = put(&store, &data);
        store.put_manifest("m", b"x").unwrap();
        hash
    };
    std::fs::remove_file(file_of("b/again", &data).unwrap()).unwrap();
    let hits = || {
        let metrics = kv_store_wasm::metrics().unwrap();
        let series =
            metrics.series.iter().filter(|series| series.tenant.as_ref().is_some_and(|uri| uri.ends_with("/b")));
        let gauge = metrics.stores.iter().find(|store| store.uri.ends_with("/b/again"));
        (series.map(|series| series.events["near_hits"]).sum::<u64>(), gauge.and_then(|store| store.near_memory_bytes))
    };
    let (before, _) = hits();
    let store = Store::open(&uri("b/again")).unwrap();
    assert_eq!(get(&store, &hash), Some(data));
    let (after, held) = hits();
    assert!(after > before && held.is_some_and(|bytes| bytes > 0), "{before} {after} {held:?}");
}

#[test]
fn doctor_tells_of_the_near_level_and_what_is_wrong_with_it() {
    let found = doctor(&uri("a/x"), Depth::Offline);
    let near = found.near.expect("the config has one");
    assert_eq!((near.memory_bytes, near.disk_bytes, near.ttl_s), (1 << 20, 1 << 20, 300));
    assert_eq!(near.disk.unwrap(), place().join("near"));
    let of = |name: &str| doctor(&uri(name), Depth::Offline).problems;
    let says = |name: &str, what: &str| of(name).iter().any(|problem| problem.what.contains(what));
    assert!(!says("a/x", "near level"), "{:?}", of("a/x"));
    assert!(says("unverified", "verify"), "{:?}", of("unverified"));
    std::fs::create_dir_all(place().join("public")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place().join("public"), open).unwrap();
    assert!(says("open", "chmod 700"), "{:?}", of("open"));
    // A store opens all the same.
    let store = Store::open(&uri("open")).unwrap();
    let hash = put(&store, b"without a disk tier");
    assert!(get(&store, &hash).is_some());
    // No component may reach the directory.
    let refused = Store::open(&uri("near")).err().unwrap().to_string();
    assert!(refused.contains("overlaps the disk tier"), "{refused}");
}
