//! How often bytes are copied, by count: every byte that comes into a payload is counted where that happens, on the
//! calling thread, which is the only one here.

use crate::kvx::{
    BlockTable, CacheShape, DType, Gather, KvCache, KvCacheMut, KvTokens, KvTokensMut, Layout, Slots, Write,
};

use crate::paged::{Restore, Save};
use crate::payload::counts::{self, Counts};
use crate::{ENVELOPE_BYTES, Store};

const SHAPE: CacheShape = CacheShape { num_blocks: 16, block_size: 16, num_kv_heads: 2, head_dim: 64 };
const BLOCKS: [i32; 8] = [3, 1, 15, 7, 0, 9, 11, 4];
const TOKENS: u32 = 8 * 16;
const LAYERS: usize = 4;
/// Of K, or of V, of one layer.
const SIDE: usize = 8 * 16 * 2 * 64 * 2;
const ALL: usize = SIDE * 2 * LAYERS;
const CHUNKS: usize = 4;

/// In a process of its own, whose environment says where the components are.
#[test]
fn a_byte_is_moved_once_each_way() {
    const INSIDE: &str = "KV_STORE_TEST_COPIES";
    if std::env::var_os(INSIDE).is_some() {
        return count();
    }
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").canonicalize().unwrap();
    let probe = target.join("test-components/probe.wasm");
    assert!(probe.exists(), "{} is missing: run `cargo xtask test`, which builds it", probe.display());
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &config,
        format!("compile = 'in-process'\n[backend.probe-buffered]\ncomponent = '{}'\n", probe.display()),
    )
    .unwrap();
    let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name])
        .env(INSIDE, "1")
        .env("KV_STORE_WASM_CONFIG", config.path())
        .env("KV_STORE_WASM_PATH", target.join("dist/components"))
        .env("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"))
        .output()
        .unwrap();
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
}

fn count() {
    let scratch = tempfile::tempdir().unwrap();
    let files = format!("local-fs://{}", scratch.path().display());
    // No two chunks are alike: 251 is prime.
    let pool = |i: usize| (0..SHAPE.slots() as usize * 2 * 64 * 2).map(|n| (n * (i + 1) % 251) as u8).collect();
    let pools: Vec<Vec<u8>> = (0..2 * LAYERS).map(pool).collect();
    let slots: Vec<i64> =
        (0..TOKENS as i64).map(|token| i64::from(BLOCKS[token as usize / 16]) * 16 + token % 16).collect();

    // What a chunk's way into the store costs beside the gather, and what its way out leaves for the consumer to copy.
    // What is read from files is copied once where it cannot be told that it lies in memory.
    let read = counts::of_files(scratch.path(), 1).copied;
    let stores = [(files.as_str(), 0, read, read), ("memory://copies", 1, 1, 0), ("probe-buffered://copies", 1, 1, 0)];
    for ((uri, put_copies, get_copies, restore_copies), layout) in
        stores.iter().flat_map(|s| [(*s, Layout::Hnd), (*s, Layout::Nhd)])
    {
        let (pairs, _) = pools.as_chunks::<2>();
        let caches: Vec<KvCache<'_>> =
            pairs.iter().map(|[k, v]| KvCache::new(SHAPE, DType::F16, [layout; 2], k, v).unwrap()).collect();
        let store = Store::open(uri).unwrap();
        counts::take();
        let mut save = Save::new("fused", &caches, BLOCKS[..].into(), TOKENS);
        save.chunk_tokens = TOKENS / CHUNKS as u32;
        assert_eq!(save.run(&store).unwrap().existed, 0);
        // The manifest, and the envelopes.
        let lists = 40 + LAYERS * 20 + CHUNKS * 16 + 8 + (CHUNKS + 1) * ENVELOPE_BYTES as usize;
        let Counts { copied, placed } = counts::take();
        // A backend that is written through takes dense tokens from the pages: no byte is moved before it.
        let lent = layout == Layout::Nhd && store.info().write_through;
        let (placed_by_save, copied_by_save) = (placed, copied);
        let (gathered, kept) = if lent { (0, put_copies * ALL) } else { (ALL, 0) };
        assert_eq!(placed, gathered, "{uri}: a gather writes each byte once, into the payload");
        assert!((kept..=kept + lists).contains(&copied), "{uri}: {copied} bytes were copied by a save");

        let mut outs = vec![vec![0; SHAPE.slots() as usize * 2 * 64 * 2]; 2 * LAYERS];
        let mut layers: Vec<KvCacheMut<'_>> = caches_mut(&mut outs, layout);
        let restore = Restore::new("fused", Slots { slots: slots[..].into(), invalid_slot: -1 });
        counts::take();
        restore.run(&store, &mut layers).unwrap();
        let Counts { copied, placed } = counts::take();
        assert!(copied <= lists + restore_copies * ALL, "{uri}: {copied} bytes were copied by a restore");
        // A store of files reads; those in memory lend what they hold.
        assert!(placed <= ALL + lists, "{uri}: {placed}");
        drop(layers);
        let restored: Vec<KvCacheMut<'_>> = caches_mut(&mut outs, layout);
        for (cache, restored) in caches.iter().zip(&restored) {
            assert!(gathered_of(cache) == gathered_of(&restored.shared()), "{uri}: other values came back");
        }
        drop(restored);
        let mut layers: Vec<KvCacheMut<'_>> = caches_mut(&mut outs, layout);

        let Apart { gathered, copied_in, copied_out } = Apart::count(&store, &caches, &mut layers, &slots, layout);
        assert_eq!(gathered, ALL, "the gather, which the fused save has too");
        // Where the backend copies, the envelopes too.
        let stored = ALL + 2 * LAYERS * ENVELOPE_BYTES as usize;
        assert!((put_copies * ALL..=put_copies * stored).contains(&copied_in), "{uri}: {copied_in}");
        // What is read, too.
        let envelopes = restore_copies * (stored - ALL);
        assert_eq!(copied_out, get_copies * ALL + envelopes, "{uri}");
        let fused = (placed_by_save + copied_by_save) / ALL;
        println!("{uri}, {layout:?}: bytes moved per byte saved: {fused} fused, {} apart", 1 + put_copies);
    }
}

/// The bytes that a save and a restore move that are not fused: a gather into a buffer, put; got back, and written.
struct Apart {
    gathered: usize,
    copied_in: usize,
    copied_out: usize,
}

impl Apart {
    fn count(
        store: &Store,
        caches: &[KvCache<'_>],
        layers: &mut [KvCacheMut<'_>],
        slots: &[i64],
        layout: Layout,
    ) -> Self {
        let (mut gathered, mut copied_in, mut copied_out) = (0, 0, 0);
        for (layer, cache) in caches.iter().enumerate() {
            let [key, value] = gathered_of(cache);
            gathered += key.len() + value.len();
            for (side, data) in [key, value].iter().enumerate() {
                let hash = [layer as u8, side as u8, u8::from(layout == Layout::Nhd)];
                counts::take();
                store.put_chunk(&hash, data).unwrap();
                copied_in += counts::take().copied;
            }
        }
        store.put_manifest("plain", b"").unwrap();
        for (layer, cache) in layers.iter_mut().enumerate() {
            counts::take();
            let [key, value] = [0, 1].map(|side| {
                let hash = [layer as u8, side, u8::from(layout == Layout::Nhd)];
                store.get_chunk(&hash).unwrap().unwrap()
            });
            copied_out += counts::take().copied;
            let write = Write { slots: Slots { slots: slots.into(), invalid_slot: -1 }, scales: None, threads: 1 };
            write.run(cache, &KvTokens { key: &key, value: &value, dtype: DType::F16 }).unwrap();
        }
        Apart { gathered, copied_in, copied_out }
    }
}

/// K and V of the sequence in a cache.
fn gathered_of(cache: &KvCache<'_>) -> [Vec<u8>; 2] {
    let [mut key, mut value] = [(); 2].map(|()| vec![0; SIDE]);
    Gather {
        table: BlockTable::Packed { indices: BLOCKS[..].into(), max_blocks_per_seq: BLOCKS.len() as u32 },
        seq_lens: [TOKENS as i32][..].into(),
        max_seq_len: TOKENS,
        scales: None,
        threads: 1,
    }
    .run(cache, &mut KvTokensMut { key: &mut key, value: &mut value, dtype: DType::F16 })
    .unwrap();
    [key, value]
}

fn caches_mut(pools: &mut [Vec<u8>], layout: Layout) -> Vec<KvCacheMut<'_>> {
    let (pairs, _) = pools.as_chunks_mut::<2>();
    pairs.iter_mut().map(|[k, v]| KvCacheMut::new(SHAPE, DType::F16, [layout; 2], k, v).unwrap()).collect()
}
