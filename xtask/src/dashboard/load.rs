//! What the dashboard shows: stores at work in this process, through the library as it is installed.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers::Server;
use kv_store_tests::{Handle, Library};

use crate::place::Place;

/// How long the stores are at work, and when of that the server of redis is down and a tenant floods, in seconds.
pub const SECONDS: u64 = 60;
const DOWN: Range<u64> = 20..35;
const FLOOD: Range<u64> = 40..50;

/// Two tenants on files with a bound, one of which floods for a while, and a store on a redis that is down for a while.
pub fn run(place: &Place, work: &Path, listener: &str) -> Result<()> {
    let mut server = RedisServer::start(&[]);
    let uris = [
        format!("local-fs://{}", work.join("chat").display()),
        format!("local-fs://{}", work.join("code").display()),
        format!("redis://127.0.0.1:{}", server.port),
    ];
    let text = format!(
        "metrics = '{listener}'\n\
         [backend.local-fs]\noptions = {{ durability = 'rename', max_bytes = '67108864', save_grace_s = '1' }}\n\
         [[tenant]]\nuri = '{}'\n[[tenant]]\nuri = '{}'\nquota.operations_per_s = 400\n",
        uris[0], uris[1]
    );
    let config = work.join("kv-store.toml");
    std::fs::write(&config, text)?;
    // SAFETY: nothing else runs in this process yet.
    unsafe {
        std::env::set_var("KV_STORE_WASM_CONFIG", &config);
        std::env::set_var("KV_STORE_WASM_CACHE", place.work().join("aot"));
        std::env::set_var("KV_STORE_WASM_LOG", "off");
    }
    let library = Library::load(&place.library()).map_err(anyhow::Error::msg)?;
    let begun = Instant::now();
    let stores = uris.iter().map(|uri| library.open(uri).with_context(|| format!("{uri} does not open")));
    let stores: Vec<Handle> = stores.collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        for (at, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                let mut save = 0_u64;
                while begun.elapsed() < Duration::from_secs(SECONDS) {
                    save_and_restore(store, save);
                    save += 1;
                    let floods = at == 1 && FLOOD.contains(&begun.elapsed().as_secs());
                    std::thread::sleep(Duration::from_millis(if floods { 5 } else { 100 }));
                }
            });
        }
        std::thread::sleep(Duration::from_secs(DOWN.start));
        server.stop();
        std::thread::sleep(Duration::from_secs(DOWN.end - DOWN.start));
        server.restart();
    });
    Ok(())
}

/// A conversation is saved and an earlier one restored, every other one in batches. Failures are what the dashboard shows.
fn save_and_restore(store: &Handle, save: u64) {
    if save % 2 == 1 {
        return in_batches(store, save);
    }
    for chunk in 0..16 {
        let _ = store.put_chunk(&key(save, chunk), &[chunk as u8; 64 << 10]);
    }
    let _ = store.put_manifest(&format!("save-{save}"), &save.to_le_bytes());
    // The oldest of them are gone where the store evicts.
    let earlier = save.saturating_sub(save % 100);
    let _ = store.get_manifest(&format!("save-{earlier}"));
    for chunk in 0..16 {
        let _ = store.get_chunk(&key(earlier, chunk));
    }
}

fn key(save: u64, chunk: u64) -> Vec<u8> {
    [save, chunk].map(u64::to_le_bytes).concat()
}

/// The same by `kv_store_batch.h`.
fn in_batches(store: &Handle, save: u64) {
    let Some(batches) = store.batches() else { return };
    let keys: Vec<Vec<u8>> = (0..16).map(|chunk| key(save, chunk)).collect();
    let data: Vec<Vec<u8>> = (0..16).map(|chunk| vec![chunk; 64 << 10]).collect();
    let chunks: Vec<(&[u8], &[u8])> = keys.iter().zip(&data).map(|(key, data)| (&**key, &**data)).collect();
    if let Some(batch) = batches.save() {
        let _ = batch.put_many(&chunks);
        let _ = batch.commit(&format!("save-{save}"), &save.to_le_bytes());
    }
    let earlier = save.saturating_sub(save % 100) + 1;
    let keys: Vec<Vec<u8>> = (0..16).map(|chunk| key(earlier, chunk)).collect();
    let hashes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let _ = store.get_manifest(&format!("save-{earlier}"));
    let _ = batches.get_many(&hashes);
}
