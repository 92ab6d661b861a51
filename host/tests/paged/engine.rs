//! An engine with paged caches, and the stores that it saves to.

use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use kv_store_wasm::paged::{Restore, Save, Saved};
use kv_store_wasm::{ErrorKind, Store};
use kvx::{BlockTable, CacheShape, DType, Gather, KvCache, KvCacheMut, KvScales, KvTokensMut, Layout, Slots};
use xxhash_rust::xxh3::xxh3_64;

pub fn open(uri: &str) -> Store {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).unwrap().join("target");
    let components = target.join("dist/components");
    let probe = target.join("test-components/probe.wasm");
    assert!(components.exists() && probe.exists(), "run `cargo xtask test`, which builds the components");
    static PREPARED: Once = Once::new();
    // SAFETY: nobody reads the environment before this is done: tests open stores only here.
    PREPARED.call_once(|| unsafe {
        let config = target.join("paged-tests.toml");
        let probe = probe.display();
        let tables = format!(
            "[backend.probe-buffered]\ncomponent = '{probe}'\n[backend.probe-small]\ncomponent = '{probe}'\n\
             options.max-value = '1000'\n[backend.probe-batches]\ncomponent = '{probe}'\n\
             options = {{ batch = '4', answers = '3' }}\n"
        );
        std::fs::write(&config, tables).expect("the target folder can be written to");
        std::env::set_var("KV_STORE_WASM_PATH", &components);
        std::env::set_var("KV_STORE_WASM_CONFIG", &config);
        std::env::set_var("KV_STORE_WASM_CACHE", target.join("test-consumers/cache"));
    });
    Store::open(uri).expect("it opens")
}

/// The layers of an engine: a K and a V pool for each.
#[derive(Clone)]
pub struct Engine {
    pub shape: CacheShape,
    pub dtype: DType,
    pub layout: Layout,
    pub pools: Vec<[Vec<u8>; 2]>,
}

impl Engine {
    /// Pools of bytes that are all different from those of other seeds.
    pub fn new(shape: CacheShape, dtype: DType, layout: Layout, layers: usize, seed: u64) -> Self {
        let len = shape.slots() as usize * shape.token_elements() as usize * dtype.size();
        let pool = |seed: u64| {
            let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            };
            (0..len).map(|_| next()).collect::<Vec<u8>>()
        };
        let pools = (0..layers as u64).map(|layer| [0, 1].map(|side| pool(seed * 1000 + layer * 2 + side))).collect();
        Engine { shape, dtype, layout, pools }
    }

    pub fn blank(&self) -> Self {
        let mut blank = self.clone();
        blank.pools.iter_mut().flatten().for_each(|pool| pool.fill(0xEE));
        blank
    }

    pub fn caches(&self) -> Vec<KvCache<'_>> {
        self.pools.iter().map(|[k, v]| KvCache::new(self.shape, self.dtype, [self.layout; 2], k, v).unwrap()).collect()
    }

    pub fn caches_mut(&mut self) -> Vec<KvCacheMut<'_>> {
        let Engine { shape, dtype, layout, pools } = self;
        pools.iter_mut().map(|[k, v]| KvCacheMut::new(*shape, *dtype, [*layout; 2], k, v).unwrap()).collect()
    }

    /// The values of a sequence, layer by layer K and V, as a naive consumer has them.
    pub fn tokens(&self, blocks: &[i32], tokens: u32) -> Vec<[Vec<u8>; 2]> {
        self.tokens_as(self.dtype, None, blocks, tokens)
    }

    pub fn tokens_as(
        &self,
        dtype: DType,
        scales: Option<KvScales<'_>>,
        blocks: &[i32],
        tokens: u32,
    ) -> Vec<[Vec<u8>; 2]> {
        let row = self.shape.token_elements() as usize * dtype.size();
        let gather = |cache: &KvCache<'_>| {
            let mut out = [(); 2].map(|()| vec![0; tokens as usize * row]);
            let [key, value] = &mut out;
            let needed = tokens.div_ceil(self.shape.block_size) as usize;
            Gather {
                table: BlockTable::Packed { indices: blocks[..needed].into(), max_blocks_per_seq: needed as u32 },
                seq_lens: [tokens as i32][..].into(),
                max_seq_len: tokens,
                scales,
                threads: 1,
            }
            .run(cache, &mut KvTokensMut { key, value, dtype })
            .unwrap();
            out
        };
        self.caches().iter().map(gather).collect()
    }

    pub fn save(&self, store: &Store, name: &str, blocks: &[i32], tokens: u32, chunk_tokens: u32) -> Saved {
        let caches = self.caches();
        save(name, &caches, blocks, tokens, chunk_tokens).run(store).expect("saved")
    }
}

pub fn save<'a>(
    name: &'a str,
    layers: &'a [KvCache<'a>],
    blocks: &'a [i32],
    tokens: u32,
    chunk_tokens: u32,
) -> Save<'a> {
    let mut save = Save::new(name, layers, blocks.into(), tokens);
    save.model = b"model";
    save.chunk_tokens = chunk_tokens;
    save
}

pub fn restore<'a>(name: &'a str, slots: &'a [i64]) -> Restore<'a> {
    let mut restore = Restore::new(name, Slots { slots: slots.into(), invalid_slot: -1 });
    restore.model = b"model";
    restore
}

/// The slots of a sequence in so many blocks.
pub fn slots(blocks: &[i32], block_size: u32, tokens: u32) -> Vec<i64> {
    let slot = |token: u32| i64::from(blocks[(token / block_size) as usize]) * i64::from(block_size);
    (0..tokens).map(|token| slot(token) + i64::from(token % block_size)).collect()
}

/// The key of a chunk with some of these tokens, of which one has so many bytes of K.
pub fn chunk_key(layers: &[[Vec<u8>; 2]], tokens: Range<usize>, row: usize) -> [u8; 8] {
    let content: Vec<&[u8]> = layers.iter().flatten().map(|side| &side[tokens.start * row..tokens.end * row]).collect();
    xxh3_64(&content.concat()).to_le_bytes()
}

pub const SHAPE: CacheShape = CacheShape { num_blocks: 24, block_size: 4, num_kv_heads: 2, head_dim: 8 };
pub const LAYERS: usize = 3;

pub fn stores() -> Vec<(Store, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let files = open(&format!("local-fs://{}", folder.path().display()));
    vec![
        (files, Some(folder)),
        (open("memory://paged"), None),
        (open("probe-buffered://paged"), None),
        (open("probe-batches://paged"), None),
    ]
}

pub fn error_of(restore: &Restore<'_>, store: &Store, engine: &mut Engine) -> (ErrorKind, String, u32) {
    let before = engine.pools.clone();
    let failed = restore.run(store, &mut engine.caches_mut()).expect_err("it fails");
    if failed.tokens == 0 {
        assert!(engine.pools == before, "a failed restore wrote pages: {failed}");
    }
    (failed.error.kind(), failed.to_string(), failed.tokens)
}
