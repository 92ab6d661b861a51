//! The block cache over stores, through the components as they are installed.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use kv_store_tests::redis::RedisServer;
use kv_store_wasm::blocks::{self, Cache, Config, Spec};

const BLOCK: usize = 16;
const BYTES: usize = 40_000;

fn open(uri: &str, tenant: &str) -> Cache {
    common::prepare();
    let text = format!(
        "block_size = {BLOCK}\n[l1]\ncapacity_gb = 0.01\n[l2]\nbackend = '{uri}'\nnamespace = '{tenant}'\ningestion_type = 'ALL'\nper_token_timeout_ms = 1000"
    );
    blocks::open(Config::parse(&text).unwrap(), Spec::new("model", 0, BYTES)).expect("the cache opens")
}

fn values(tokens: &[i32]) -> Vec<Vec<u8>> {
    let value = |block: &[i32]| (0..BYTES).map(|n| (block[0] as usize * 31 + n * 7 + (n >> 8)) as u8).collect();
    tokens.chunks_exact(BLOCK).map(value).collect()
}

/// What one process has put another one finds, and nobody of another tenant; what is deleted is gone for all.
fn round(uri: &str, seed: i32) {
    let tokens: Vec<i32> = (0..40 * BLOCK as i32).map(|n| seed * 100_000 + n).collect();
    let values = values(&tokens);
    let views: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    let writer = open(uri, "one");
    assert_eq!(writer.put(&[], &tokens, &views).unwrap(), tokens.len());

    let reader = open(uri, "one");
    assert_eq!(reader.exists(&[], &tokens).unwrap(), tokens.len());
    let mut into = vec![vec![0; BYTES]; 40];
    let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
    assert_eq!(reader.get(&[], &tokens, &mut rooms).unwrap(), tokens.len(), "{:?}", reader.metrics());
    assert!(into == values);
    let acquired = reader.acquire(&tokens[..BLOCK], &tokens[BLOCK..]).unwrap();
    assert!(acquired.iter().eq(views[1..].iter().copied()));

    assert_eq!(open(uri, "two").exists(&[], &tokens).unwrap(), 0);

    assert_eq!(reader.delete(&tokens[..5 * BLOCK], &tokens[5 * BLOCK..6 * BLOCK]).unwrap(), BLOCK);
    let third = open(uri, "one");
    assert_eq!(third.exists(&[], &tokens).unwrap(), 5 * BLOCK);
    assert_eq!(third.acquire(&[], &tokens).unwrap().len(), 5);
    for cache in [writer, reader, third] {
        cache.close().unwrap();
    }
}

#[test]
fn over_memory() {
    // One store, which every cache of the process shares.
    round("memory://blocks", 1);
}

#[test]
fn over_files() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}", folder.path().display());
    round(&uri, 2);

    // A file that is damaged is a miss and is removed.
    let tokens: Vec<i32> = (0..4 * BLOCK as i32).map(|n| 7_000_000 + n).collect();
    let values = values(&tokens);
    let views: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    let before = files(folder.path());
    open(&uri, "one").put(&[], &tokens, &views).unwrap();
    let fresh: Vec<_> = files(folder.path()).into_iter().filter(|path| !before.contains(path)).collect();
    assert_eq!(fresh.len(), 4, "{fresh:?}");
    for path in &fresh {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let reader = open(&uri, "one");
    assert_eq!(reader.acquire(&[], &tokens).unwrap().len(), 0);
    reader.close().unwrap();
    assert_eq!(reader.metrics().damaged_blocks, 4);
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn over_redis() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    round(&format!("redis://127.0.0.1:{}/3", server.port), 3);
}

#[test]
fn a_backend_that_is_gone_is_a_miss() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    let uri = format!("redis://127.0.0.1:{}/3", server.port);
    let cache = open(&uri, "one");
    drop(server);
    let tokens: Vec<i32> = (0..8 * BLOCK as i32).collect();
    let values = values(&tokens);
    let views: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    assert_eq!(cache.exists(&[], &tokens).unwrap(), 0);
    assert_eq!(cache.put(&[], &tokens, &views).unwrap(), tokens.len(), "the near level has it");
    assert_eq!(cache.acquire(&[], &tokens).unwrap().len(), 8);
    let metrics = cache.metrics();
    assert!(metrics.series.iter().any(|series| series.level == "l2" && !series.errors.is_empty()), "{metrics:?}");
}
