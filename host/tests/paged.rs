//! Sequences between paged caches and stores, against the components as they are installed.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "paged/damaged.rs"]
mod damaged;
#[path = "paged/engine.rs"]
mod engine;

use engine::{Engine, LAYERS, SHAPE, chunk_key, error_of, open, restore, save, slots, stores};
use kv_store_wasm::ErrorKind;
use kv_store_wasm::paged::{Convert, Description, Order, Restore, Save, describe};
use kvx::{CacheShape, DType, IndexSlice, KvCacheMut, KvScales, Layout, Scale};
use proptest::prelude::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// A save or a restore, with something else said.
fn with<T>(mut asked: T, set: impl FnOnce(&mut T)) -> T {
    set(&mut asked);
    asked
}

#[test]
fn what_was_saved_is_restored_through_every_kind_of_store() {
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 1);
    let (from, to) = ([7, 3, 20, 11], [2, 23, 0, 9]);
    for (store, _folder) in stores() {
        for threads in [1, 3] {
            let caches = engine.caches();
            let name = format!("sequence-{threads}");
            let saved =
                with(save(&name, &caches, &from, 14, 8), |set| set.threads = threads).run(&store).expect("saved");
            let row = 2 * 8 * 2;
            assert_eq!((saved.chunks, saved.bytes), (2, 14 * 2 * LAYERS as u64 * row));
            let mut other = engine.blank();
            let slots = slots(&to, 4, 14);
            let restored =
                with(restore(&name, &slots), |set| set.threads = threads).run(&store, &mut other.caches_mut()).unwrap();
            assert_eq!((restored.tokens, restored.saved, restored.chunks), (14, 14, 2));
            assert!(other.tokens(&to, 14) == engine.tokens(&from, 14));
            // The tokens, and nothing else.
            let written = other.pools.iter().flatten().flatten().filter(|byte| **byte != 0xEE).count();
            assert!(written <= saved.bytes as usize);
            let described = describe(&store, &name).unwrap().unwrap();
            let chunk_keys = [0..8, 8..14].map(|tokens| chunk_key(&engine.tokens(&from, 14), tokens, row as usize));
            let Description { tokens, chunk_tokens, block_size, bytes, .. } = described;
            assert_eq!((tokens, chunk_tokens, block_size, bytes), (14, 8, 4, saved.bytes));
            assert_eq!((&described.chunk_keys[..], &described.model[..]), (&chunk_keys[..], &b"model"[..]));
            assert_eq!(described.layers.len(), LAYERS);
            for layer in &described.layers {
                assert_eq!((layer.heads, layer.head_dim, layer.orders), (2, 8, [Order::Nhd; 2]));
                assert_eq!((layer.stored, layer.cache), (DType::F16, DType::F16));
            }
            assert_eq!(described.chunks_present(&store).unwrap(), 2);
            let mut one_gone = described.clone();
            one_gone.chunk_keys[1] = [0xAB; 8];
            assert_eq!(one_gone.chunks_present(&store).unwrap(), 1);
        }
        assert!(describe(&store, "nothing").unwrap().is_none());
    }
}

/// A chunk is its tokens layer by layer, K and V, dense, under the XXH3-64 of that, whatever the pages look like; the
/// upper half of the 128 bits is in the manifest.
#[test]
fn a_chunk_is_what_the_documentation_says() {
    let store = open("memory://paged-format");
    for (layout, tokens) in [(Layout::Hnd, 4u32), (Layout::HndPacked { pack: 4 }, 16)] {
        let engine = Engine::new(SHAPE, DType::F16, layout, LAYERS, 2);
        engine.save(&store, "format", &[5, 1, 2, 3], tokens, tokens);
        let content = engine.tokens(&[5, 1, 2, 3], tokens).concat().concat();
        let key = xxh3_64(&content).to_le_bytes();
        assert!(*store.get_chunk(&key).unwrap().expect("it is under its key") == content[..]);
        let manifest = store.get_manifest("format").unwrap().unwrap();
        let check = ((xxh3_128(&content) >> 64) as u64).to_le_bytes();
        assert!(manifest.windows(16).any(|id| id[..8] == key && id[8..] == check));
    }
}

#[test]
fn sequences_share_the_chunks_of_their_prefix() {
    for (store, _folder) in stores() {
        let engine = Engine::new(SHAPE, DType::BF16, Layout::Nhd, LAYERS, 3);
        assert_eq!(engine.save(&store, "first", &[1, 2, 3, 4, 5], 18, 8).existed, 0);
        // Two more blocks of the same prefix: the last chunk was cut short and is another now.
        let saved = engine.save(&store, "second", &[1, 2, 3, 4, 5, 6], 24, 8);
        assert_eq!((saved.chunks, saved.existed), (3, 2));
        // The same values in other pages, of another layout and block size.
        let shape = CacheShape { num_blocks: 12, block_size: 8, ..SHAPE };
        let mut other = Engine::new(shape, DType::BF16, Layout::HndPacked { pack: 2 }, LAYERS, 4);
        let slots = slots(&[9, 0, 4], 8, 24);
        let convert = Convert::new(true, false);
        with(restore("second", &slots), |set| set.convert = convert).run(&store, &mut other.caches_mut()).unwrap();
        let saved = other.save(&store, "third", &[9, 0, 4], 24, 8);
        assert_eq!((saved.chunks, saved.existed), (3, 3), "{}", store.info().uri);
    }
}

#[test]
fn the_first_tokens_alone_and_those_without_a_slot_are_served() {
    let store = open("memory://paged-some");
    let engine = Engine::new(SHAPE, DType::F32, Layout::Hnd, LAYERS, 5);
    let from = [7, 3, 20, 11];
    engine.save(&store, "some", &from, 16, 4);
    let mut other = engine.blank();
    // Chunk 0 is there already, chunk 1 is wanted but for a token, chunk 2 in part, chunk 3 not at all.
    let slots: Vec<i64> = vec![-1, -1, -1, -1, 20, 21, -7, 23, 40, 41];
    let restored = restore("some", &slots).run(&store, &mut other.caches_mut()).unwrap();
    assert_eq!((restored.tokens, restored.saved, restored.chunks), (10, 16, 2));
    let (want, got) = (engine.tokens(&from, 16), other.tokens(&[0, 5, 10], 12));
    let row = 2 * 8 * 4;
    for (want, got) in want.iter().flatten().zip(got.iter().flatten()) {
        let token = |all: &[u8], token: usize| all[token * row..][..row].to_vec();
        for t in 0..12 {
            let expected = if [4, 5, 7, 8, 9].contains(&t) { token(want, t) } else { vec![0xEE; row] };
            assert_eq!(token(got, t), expected, "token {t}");
        }
    }
    let none = restore("some", &[]).run(&store, &mut other.caches_mut()).unwrap();
    assert_eq!((none.tokens, none.chunks), (0, 0));
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let store = open("memory://paged-misfits");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 6);
    engine.save(&store, "misfits", &[1, 2], 8, 4);
    let all: Vec<i64> = (0..8).collect();
    let whole = restore("misfits", &all);
    let check = |restore: &Restore<'_>, mut engine: Engine, kind: ErrorKind, what: &str| {
        let (got, message, tokens) = error_of(restore, &store, &mut engine);
        assert!(got == kind && message.contains(what) && tokens == 0, "{got:?} {message}");
    };
    use ErrorKind::{Invalid, Mismatch, Missing};
    check(&with(whole, |set| set.name = "nothing"), engine.blank(), Missing, "nothing was saved");
    check(&with(whole, |set| set.model = b"other"), engine.blank(), Mismatch, "model");
    let mut fewer = engine.blank();
    fewer.pools.pop();
    check(&whole, fewer, Mismatch, "3 layers");
    let more: Vec<i64> = (0..9).collect();
    check(&restore("misfits", &more), engine.blank(), Mismatch, "8 tokens");
    let past: Vec<i64> = vec![0, 1, 96];
    check(&restore("misfits", &past), engine.blank(), Invalid, "slot 96");
    let other = |shape, dtype, layout| Engine::new(shape, dtype, layout, LAYERS, 7);
    check(&whole, other(CacheShape { head_dim: 16, ..SHAPE }, DType::F16, Layout::Nhd), Mismatch, "2 heads of 8");
    check(&whole, other(SHAPE, DType::F16, Layout::Hnd), Mismatch, "layouts");
    check(&whole, other(SHAPE, DType::BF16, Layout::Nhd), Mismatch, "no conversion");
    check(&whole, other(SHAPE, DType::F8E4M3, Layout::Nhd), Mismatch, "scales");
    let convert = Convert::new(true, true);
    check(
        &with(whole, |set| set.convert = convert),
        other(SHAPE, DType::F8E4M3, Layout::Nhd),
        Invalid,
        "needs a scale",
    );
    let one = [Some(KvScales { k: Scale::per_tensor(1.0), v: Scale::per_tensor(1.0) })];
    check(&with(whole, |set| set.scales = &one), engine.blank(), Invalid, "scales for 1 of 3");

    let caches = engine.caches();
    let fits = save("refused", &caches, &[1, 2], 8, 4);
    let check = |save: Save<'_>, what: &str| {
        let error = save.run(&store).expect_err("refused");
        assert!(error.kind() == Invalid && error.to_string().contains(what), "{error}");
    };
    check(with(fits, |set| set.tokens = 9), "need 3 blocks");
    check(with(fits, |set| set.tokens = 0), "above zero");
    check(with(fits, |set| set.chunk_tokens = 6), "multiple");
    check(with(fits, |set| set.layers = &[]), "no layers");
    check(with(fits, |set| set.blocks = [1, -1][..].into()), "block 1 of the sequence is -1");
    check(with(fits, |set| set.blocks = IndexSlice::from(&[1i64, 24][..])), "is 24");
    check(with(fits, |set| set.name = ""), "name");
    check(with(fits, |set| set.model = &[b'x'; 257]), "model");
    check(with(fits, |set| set.stored = Some(DType::F32)), "does not convert");
    assert!(describe(&store, "refused").unwrap().is_none());
    let small = open("probe-small://paged");
    let large = with(fits, |set| set.chunk_tokens = 8);
    assert_eq!(large.run(&small).expect_err("a chunk of 1536 bytes is too large").kind(), Invalid);
}

/// Values of FP8 caches can be kept as they are, or as what they stand for; and the latter quantised again.
#[test]
fn fp8_caches_are_dequantised_and_quantised_by_their_scales() {
    let store = open("memory://paged-fp8");
    // Codes of ordinary numbers: no NaN, whose code may change.
    let mut engine = Engine::new(SHAPE, DType::F8E4M3, Layout::Hnd, LAYERS, 8);
    engine.pools.iter_mut().flatten().flatten().for_each(|code| *code &= 0xF7);
    let heads = [0.5f32, 0.25];
    let scales: Vec<Option<KvScales<'_>>> =
        (0..LAYERS).map(|_| Some(KvScales { k: Scale::per_tensor(0.5), v: Scale::per_head(&heads) })).collect();
    let from = [7, 3, 20];
    let caches = engine.caches();
    let fits = save("raw", &caches, &from, 11, 4);
    fits.run(&store).unwrap();
    let dequantised = with(fits, |set| {
        set.name = "dequantised";
        set.stored = Some(DType::F32);
        set.scales = &scales;
    });
    assert_eq!(dequantised.run(&store).unwrap().bytes, 4 * fits.run(&store).unwrap().bytes);
    let slots = slots(&from, 4, 11);
    let mut same = engine.blank();
    restore("raw", &slots).run(&store, &mut same.caches_mut()).unwrap();
    assert!(same.tokens(&from, 11) == engine.tokens(&from, 11));
    let convert = Convert::new(true, true);
    let mut again = Engine { layout: Layout::HndPacked { pack: 8 }, ..engine.blank() };
    with(restore("dequantised", &slots), |set| {
        set.convert = convert;
        set.scales = &scales;
    })
    .run(&store, &mut again.caches_mut())
    .unwrap();
    assert!(again.tokens(&from, 11) == engine.tokens(&from, 11));
    // In a cache of F32 they are what the codes stand for.
    let mut wide = Engine::new(SHAPE, DType::F32, Layout::Hnd, LAYERS, 9);
    restore("dequantised", &slots).run(&store, &mut wide.caches_mut()).unwrap();
    assert!(wide.tokens(&from, 11) == engine.tokens_as(DType::F32, scales[0], &from, 11));
}

/// The time is that of the caller, far below the deadline that a call has otherwise.
#[test]
fn a_call_ends_when_the_callers_time_is_over() {
    let store = open("probe-buffered://time");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Hnd, LAYERS, 23);
    engine.save(&store, "time", &[1, 2], 8, 4);
    let timeout = Some(std::time::Duration::from_millis(50));
    let slots: Vec<i64> = (0..8).collect();
    let told = |kind: ErrorKind, message: String| {
        assert!(kind == ErrorKind::Unavailable && message.contains("timeout_ms"), "{kind:?}: {message}");
    };
    // The probe takes all the time that a call has.
    let slow = with(restore("do:loop", &slots), |set| set.timeout = timeout);
    let (kind, message, _) = error_of(&slow, &store, &mut engine.blank());
    told(kind, message);
    let caches = engine.caches();
    let error =
        with(save("do:loop", &caches, &[1, 2], 8, 4), |set| set.timeout = timeout).run(&store).expect_err("it is late");
    told(error.kind(), error.to_string());
    // None is left before the first call.
    let none = Some(std::time::Duration::ZERO);
    let (kind, message, _) =
        error_of(&with(restore("time", &slots), |set| set.timeout = none), &store, &mut engine.blank());
    told(kind, message);
}

#[test]
fn layers_of_a_restore_are_apart_and_may_be_interleaved() {
    let store = open("memory://paged-apart");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, 2, 24);
    engine.save(&store, "apart", &[1, 2], 8, 4);
    let slots: Vec<i64> = (0..8).collect();
    let convert = Convert::new(true, false);
    let row = 2 * 8;
    // Block by block: K and V of layer 0, K and V of layer 1.
    let strides = Layout::Custom { strides: [4 * 4 * row, row, 8, 1] };
    let mut pool = vec![0xEE_u8; 24 * 4 * 4 * row as usize * 2];
    let restored = |offsets: [[usize; 2]; 2], pool: &mut Vec<u8>| {
        let base = pool.as_mut_ptr();
        let mut caches = offsets.map(|[k, v]| {
            // SAFETY: the pool holds what is described, and nobody else touches it.
            unsafe { KvCacheMut::from_raw(SHAPE, DType::F16, [strides; 2], base.add(k), base.add(v)).unwrap() }
        });
        with(restore("apart", &slots), |set| set.convert = convert).run(&store, &mut caches)
    };
    let side = 4 * row as usize * 2;
    restored([[0, side], [2 * side, 3 * side]], &mut pool).expect("they have no byte in common");
    let want = engine.tokens(&[1, 2], 8);
    assert!(pool[2 * side..][..side] == want[1][0][..side] && pool[4 * side..][..side] == want[0][0][side..]);
    for shared in [[[0, side], [0, side]], [[0, side], [2 * side, side]], [[0, side], [2 * side + 2, 3 * side]]] {
        let before = pool.clone();
        let error = restored(shared, &mut pool).expect_err("they share memory").error;
        assert!(error.kind() == ErrorKind::Invalid, "{error}");
        assert!(pool == before);
    }
}

/// Pages that are lent as they lie give the chunks that a gather of other pages gives: whole blocks, a part of one, in one
/// thread or more, of every dense order.
#[test]
fn dense_pages_and_others_make_the_same_chunks() {
    let shape = CacheShape { num_blocks: 12, block_size: 16, num_kv_heads: 2, head_dim: 64 };
    let row = 2 * 64;
    // Dense tokens, with a gap between blocks; and the heads of a token the other way round, which is not dense.
    let gaps = Layout::Custom { strides: [17 * row, row, 64, 1] };
    let turned = Layout::Custom { strides: [16 * row, row, 1, 2] };
    for (store, _folder) in stores() {
        let source = Engine::new(shape, DType::F16, Layout::Hnd, LAYERS, 14);
        let from = [7, 8, 3, 11];
        let saved = source.save(&store, "gathered", &from, 57, 32);
        assert_eq!((saved.chunks, saved.existed), (2, 0));
        for (threads, layout) in [(1, Layout::Nhd), (2, Layout::Nhd), (1, gaps), (1, turned)] {
            let mut engine = Engine::new(shape, DType::F16, layout, LAYERS, 15);
            engine.pools.iter_mut().flatten().for_each(|pool| pool.resize(12 * 17 * row as usize * 2, 0));
            let into = [2, 3, 9, 0];
            let slots = slots(&into, 16, 57);
            let convert = Convert::new(true, false);
            with(restore("gathered", &slots), |set| set.convert = convert)
                .run(&store, &mut engine.caches_mut())
                .unwrap();
            let caches = engine.caches();
            let lent = with(save("lent", &caches, &into, 57, 32), |set| set.threads = threads).run(&store).unwrap();
            assert_eq!((lent.chunks, lent.existed), (2, 2), "{layout:?}: {}", store.info().uri);
            // And what it puts itself comes back.
            let mut own = Engine::new(shape, DType::F16, layout, LAYERS, 16 + threads as u64);
            own.pools.iter_mut().flatten().for_each(|pool| pool.resize(12 * 17 * row as usize * 2, 1));
            own.save(&store, "own", &from, 41, 16);
            let mut back = own.blank();
            restore("own", &slots[..41]).run(&store, &mut back.caches_mut()).unwrap();
            assert!(back.tokens(&into, 41) == own.tokens(&from, 41), "{layout:?}: {}", store.info().uri);
        }
    }
}

/// Another consumer of the store may have keys of its own: what these calls put and get tells the store nothing.
#[test]
fn the_store_is_not_taken_to_be_keyed_by_content() {
    let store = open("memory://paged-keys");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 11);
    engine.save(&store, "keys", &[1, 2], 8, 4);
    restore("keys", &[0, 1, 2, 3, 4, 5, 6, 7]).run(&store, &mut engine.blank().caches_mut()).unwrap();
    store.put_chunk(b"8-bytes!", b"whatever").unwrap();
    assert_eq!(store.get_chunk(b"8-bytes!").unwrap().as_deref(), Some(&b"whatever"[..]));
}

#[test]
fn a_manifest_of_another_kind_is_refused() {
    let store = open("memory://paged-foreign");
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 12);
    for content in [&b""[..], b"KVXSEQ\r\n", b"something that an engine has written"] {
        store.put_manifest("foreign", content).unwrap();
        let (kind, message, _) = error_of(&restore("foreign", &[0]), &store, &mut engine.blank());
        assert!(kind == ErrorKind::Corrupt && message.contains("manifest"), "{message}");
        assert_eq!(describe(&store, "foreign").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Any geometry, from any layout into any other, in parts of any size: the same tokens in other slots.
    #[test]
    fn any_sequence_comes_back(
        (heads, pack, packs) in (1..4u32, 1..9u32, 1..4u32),
        (size, other_size) in (1..6u32, 1..6u32),
        tokens in 1..40u32,
        run in 1..4u32,
        (from, into) in (0..4usize, 0..4usize),
        (dtype, layers) in (prop::sample::select(vec![DType::F16, DType::F32, DType::F8E5M2]), 1..4usize),
        (max_bytes, threads) in (0..5000u64, 1..4usize),
        seed in any::<u32>(),
    ) {
        let head_dim = pack * packs;
        let shape = |block_size: u32| {
            CacheShape { num_blocks: 40u32.div_ceil(block_size) + 3, block_size, num_kv_heads: heads, head_dim }
        };
        let layout = |which: usize, shape: &CacheShape| {
            let [b, t, h] = [shape.num_blocks, shape.block_size, heads].map(u64::from);
            // The last dimension outermost, blocks innermost.
            let strides = [1, b, b * t, b * t * h];
            [Layout::Nhd, Layout::Hnd, Layout::HndPacked { pack }, Layout::Custom { strides }][which]
        };
        let (own, other) = (shape(size), shape(other_size));
        let engine = Engine::new(own, dtype, layout(from, &own), layers, seed.into());
        let mut target = Engine::new(other, dtype, layout(into, &other), layers, u64::from(seed) + 1);
        let blocks = |shape: &CacheShape| {
            let n = shape.num_blocks as i32;
            // 43 and 41 are primes larger than any number of blocks that they do not divide.
            (0..n).map(|i| (i * 43 + (seed % 1000) as i32) % n).collect::<Vec<i32>>()
        };
        let distinct = |blocks: &[i32]| blocks.iter().collect::<std::collections::HashSet<_>>().len() == blocks.len();
        let (source, destination) = (blocks(&own), blocks(&other));
        prop_assume!(distinct(&source) && distinct(&destination));
        let store = open("memory://paged-any");
        let caches = engine.caches();
        with(save("any", &caches, &source, tokens, run * size), |set| set.threads = threads).run(&store).unwrap();
        let slots = slots(&destination, other_size, tokens);
        let convert = Convert::new(true, false);
        with(restore("any", &slots), |set| { set.convert = convert; set.max_bytes = max_bytes; set.threads = threads; }).run(&store, &mut target.caches_mut()).unwrap();
        prop_assert!(target.tokens(&destination, tokens) == engine.tokens(&source, tokens));
    }
}

/// A fused save has a ledger of its own.
#[test]
fn a_save_neither_publishes_nor_needs_what_else_was_put_on_the_handle() {
    let engine = Engine::new(SHAPE, DType::F16, Layout::Nhd, LAYERS, 12);
    let uri = "probe-buffered://a-save-of-its-own";
    let (store, reader) = (open(uri), open(uri));
    store.put_chunk(b"loose", b"waits for a manifest").unwrap();
    engine.save(&store, "own", &[5, 1, 2, 3], 14, 8);
    assert!(reader.get_chunk(b"loose").unwrap().is_none(), "the fused save has published another's chunk");
    store.put_manifest("later", b"loose").unwrap();
    assert_eq!(&*reader.get_chunk(b"loose").unwrap().unwrap(), b"waits for a manifest");
    assert_eq!(describe(&reader, "own").unwrap().unwrap().chunks_present(&reader).unwrap(), 2);
}
