//! Sequences saved and restored over components in memory. `host/tests/paged.rs` has the rest, over real ones.

use std::sync::Arc;

use kvx::{CacheShape, DType, KvCache, KvCacheMut, Layout, Slots};

use super::{Checked, Restore, Save, describe};
use crate::payload::counts;
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};
use crate::store::Store;

const URI: &str = "fake://h:1/paged";
/// A token has 256 bytes of K, and as many of V.
const SHAPE: CacheShape = CacheShape { num_blocks: 4, block_size: 16, num_kv_heads: 2, head_dim: 64 };
const BLOCKS: [i32; 3] = [2, 0, 3];
const TOKENS: u32 = 40;
const POOL: usize = SHAPE.num_blocks as usize * SHAPE.block_size as usize * 256;

fn written_through() -> Arc<Fakes> {
    let properties = Properties { write_through: true, ..Properties::default() };
    Arc::new(Fakes::of(Features { properties, ..Features::default() }))
}

fn pool(seed: u8) -> Vec<u8> {
    (0..POOL).map(|n| (n % 251) as u8 ^ seed).collect()
}

/// Save from pages in a layout, and tell how many bytes were gathered for it.
fn save(store: &Store, shape: CacheShape, layout: Layout) -> usize {
    let (key, value) = (pool(1), pool(2));
    let bytes = (shape.num_blocks * shape.block_size * shape.num_kv_heads * shape.head_dim * 2) as usize;
    let cache = KvCache::new(shape, DType::F16, [layout; 2], &key[..bytes], &value[..bytes]).unwrap();
    let caches = [cache];
    let mut save = Save::new("name", &caches, BLOCKS[..].into(), TOKENS.min(shape.block_size * 3));
    save.chunk_tokens = shape.block_size;
    counts::take();
    save.run(store).unwrap();
    counts::take().placed
}

#[test]
fn what_was_saved_is_checked_chunk_by_chunk() {
    let fakes = written_through();
    let store = Store::open_with(URI, &fakes.setup("[backend.fake.limits]\ndamaged_ms = 0\n")).unwrap();
    save(&store, SHAPE, Layout::Nhd);
    let saved = describe(&store, "name").unwrap().unwrap();
    assert_eq!((saved.tokens, saved.chunk_keys.len()), (TOKENS, 3));
    assert_eq!(saved.chunks_present(&store).unwrap(), 3);
    assert_eq!(saved.check_chunks(&store).unwrap(), Checked { sound: 3, ..Checked::default() });

    // By a reader who knows nothing yet.
    let backend = fakes.store(URI);
    backend.lose(&saved.chunk_keys[1]);
    backend.store(&saved.chunk_keys[2], b"other bytes");
    let checked = saved.check_chunks(&store).unwrap();
    assert_eq!((checked.sound, checked.missing, checked.foreign), (1, vec![1], vec![]));
    assert_eq!(checked.damaged.len(), 1);
    assert_eq!(checked.damaged[0].0, 2);
    assert_eq!(describe(&store, "no such name").unwrap(), None);
}

/// Pages that are written as they lie cost no gather; pieces of less than 4 KiB, and another order than the store's, do.
#[test]
fn only_large_pieces_in_the_stores_order_are_lent() {
    let store = Store::open_with(URI, &written_through().setup("")).unwrap();
    assert_eq!(save(&store, SHAPE, Layout::Nhd), 0);
    assert_eq!(save(&store, SHAPE, Layout::Hnd), TOKENS as usize * 512);
    // A block has 2 KiB of K here.
    let small = CacheShape { block_size: 8, ..SHAPE };
    assert_eq!(save(&store, small, Layout::Nhd), 24 * 512);
    let buffered = Store::open_with(URI, &Arc::<Fakes>::default().setup("")).unwrap();
    assert_eq!(save(&buffered, SHAPE, Layout::Nhd), TOKENS as usize * 512);
}

#[test]
fn what_is_restored_is_what_was_saved() {
    let store = Store::open_with(URI, &written_through().setup("")).unwrap();
    save(&store, SHAPE, Layout::Nhd);
    let (mut key, mut value) = (vec![0; POOL], vec![0; POOL]);
    let slots: Vec<i64> =
        (0..i64::from(TOKENS)).map(|token| i64::from(BLOCKS[token as usize / 16]) * 16 + token % 16).collect();
    let mut caches = [KvCacheMut::new(SHAPE, DType::F16, [Layout::Nhd; 2], &mut key, &mut value).unwrap()];
    let restore = Restore::new("name", Slots { slots: slots[..].into(), invalid_slot: -1 });
    restore.run(&store, &mut caches).unwrap();
    for slot in slots {
        let bytes = slot as usize * 256..(slot as usize + 1) * 256;
        assert_eq!((&key[bytes.clone()], &value[bytes.clone()]), (&pool(1)[bytes.clone()], &pool(2)[bytes]));
    }
}
