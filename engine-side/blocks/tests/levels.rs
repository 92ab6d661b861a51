//! What each call does over the two levels, and each threshold at its edges.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::*;
use kv_blocks::metrics::{Level, Op};
use kv_blocks::{Cache, Config, ErrorKind, Features, Layout, Noop, Spec};

#[test]
fn one_hole_ends_the_run() {
    let far = TestFar::new();
    let cache = open(config(64, "[l2]\ningestion_type = 'ALL'"), &far);
    let tokens = prompt(1, 64);
    assert_eq!(put(&cache, &tokens), 64);
    assert_eq!(cache.delete(&tokens[..5 * BLOCK], &tokens[5 * BLOCK..6 * BLOCK]).unwrap(), BLOCK);
    assert_eq!(get(&cache, &tokens), 5, "in the near level");
    let other = open(config(64, ""), &far);
    assert_eq!(get(&other, &tokens), 5, "in the far level");
    assert_eq!(other.exists(&[], &tokens).unwrap(), 5 * BLOCK);
    assert_eq!(other.acquire(&[], &tokens).unwrap().len(), 5);
}

#[test]
fn a_prefix_is_a_whole_number_of_blocks_and_buffers_are_of_a_blocks_length() {
    let cache = Cache::open(config(8, ""), spec(), None).unwrap();
    let tokens = prompt(1, 4);
    let wrong = |error: kv_blocks::Error| assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    wrong(cache.exists(&tokens[..3], &tokens).unwrap_err());
    wrong(cache.put(&[], &tokens, &[&[0; BYTES - 1]]).unwrap_err());
    wrong(cache.get(&[], &tokens, &mut [&mut [0; BYTES + 1]]).unwrap_err());
    // Fewer buffers than blocks: as many blocks. Tokens behind the last whole block are left out.
    assert_eq!(cache.put(&[], &tokens, &[&blocks(&tokens, 0)[0]]).unwrap(), BLOCK);
    assert_eq!(cache.put(&[], &tokens[..2 * BLOCK - 1], &[&[0_u8; BYTES][..]; 2]).unwrap(), BLOCK);
    assert_eq!(cache.put(&[], &tokens[..BLOCK - 1], &[&[0_u8; BYTES][..]; 2]).unwrap(), 0);
    cache.close().unwrap();
    assert_eq!(cache.exists(&[], &tokens).unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn configs_without_room_or_block_are_refused() {
    let refused = |config: Config, spec: Spec| Cache::open(config, spec, None).err().expect("refused").kind();
    assert_eq!(refused(config(0, ""), spec()), ErrorKind::Invalid);
    assert_eq!(refused(Config { block_size: -1, ..config(8, "") }, spec()), ErrorKind::Invalid);
    assert_eq!(refused(config(8, ""), Spec::new("", 4, BYTES)), ErrorKind::Invalid);
    assert_eq!(
        Cache::open(Config { block_size: -1, ..config(8, "") }, Spec::new("m", 7, BYTES), None).unwrap().block_tokens(),
        7
    );
}

/// The far level is asked for at least so many blocks that are at least this fraction of the query.
#[test]
fn the_double_get_threshold_at_its_edges() {
    for (threshold, blocks, near, asks) in [
        ((4, 0.1), 8, 4, true),
        ((4, 0.1), 8, 5, false),
        ((4, 0.5), 8, 4, true),
        ((4, 0.51), 8, 4, false),
        ((1, 0.0), 8, 7, true),
        ((0, 0.0), 8, 8, false),
        ((4, 0.1), 40, 36, true),
        ((4, 0.1), 41, 37, false),
        ((9, 0.0), 8, 0, false),
        ((8, 1.0), 8, 0, true),
    ] {
        let far = TestFar::new();
        let tokens = prompt(1, blocks);
        put(&open(config(64, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
        let cache = open(Config { double_get_threshold: threshold, ..config(64, "") }, &far);
        put(&cache, &tokens[..near * BLOCK]);
        let found = get(&cache, &tokens);
        assert_eq!(far.asked() > 0, asks, "{threshold:?}: {near} of {blocks} near");
        assert_eq!(found, if asks { blocks } else { near });
    }
}

#[test]
fn without_a_near_level_the_far_one_is_always_asked_and_written() {
    let far = TestFar::new();
    let cache = open(config(0, "[l1]\nenabled = false"), &far);
    let tokens = prompt(1, 2);
    assert_eq!(put(&cache, &tokens), 2);
    assert_eq!((far.len(), get(&cache, &tokens)), (2, 2));
    assert_eq!(cache.acquire(&[], &tokens).unwrap().iter().collect::<Vec<_>>(), blocks(&tokens, 0));
    assert_eq!(cache.metrics().used.memory_bytes, 0, "what was acquired was given back");
    far.set(Mode::Fail);
    assert_eq!(put(&cache, &prompt(2, 2)), 0, "what was not written was not taken");
    far.set(Mode::Sound);
    assert_eq!(cache.delete(&[], &tokens).unwrap(), 2 * BLOCK);
    assert_eq!((far.len(), get(&cache, &tokens)), (0, 0));
    let none = Cache::open(config(0, "[l1]\nenabled = false"), spec(), None).unwrap();
    assert_eq!((put(&none, &tokens), get(&none, &tokens)), (0, 0));
}

#[test]
fn longer_prompts_than_max_seq_len_are_cut_to_whole_blocks() {
    for (longest, taken) in [(7, 1), (8, 2), (11, 2), (3, 0), (12, 3), (99, 3)] {
        let cache = Cache::open(Config { max_seq_len: longest, ..config(8, "") }, spec(), None).unwrap();
        let tokens = prompt(1, 3);
        assert_eq!(put(&cache, &tokens), taken, "max_seq_len = {longest}");
        assert_eq!(get(&cache, &tokens), taken);
        // The prefix counts.
        assert_eq!(cache.exists(&tokens[..BLOCK], &tokens[BLOCK..]).unwrap(), taken.saturating_sub(1) * BLOCK);
    }
}

/// Batches have `op_batch` blocks at most, passes `chunk_size` tokens, at least 4 blocks; the far level is asked for no pass
/// behind one that has a hole.
#[test]
fn batches_and_passes_have_their_sizes() {
    let far = TestFar::new();
    let tokens = prompt(1, 20);
    let all = "[l2]\nop_batch = 3\ningestion_type = 'ALL'";
    let cache = open(Config { chunk_size: 31, ..config(64, all) }, &far);
    put(&cache, &tokens);
    // 31 tokens are 7 blocks of 4.
    assert_eq!(far.state.lock().unwrap().puts, [3, 3, 1, 3, 3, 1, 3, 3]);
    let cache = open(Config { chunk_size: 1, ..config(64, "[l2]\nop_batch = 32") }, &far);
    assert_eq!(get(&cache, &tokens), 20);
    assert_eq!(far.state.lock().unwrap().gets, [4, 4, 4, 4, 4]);
    let cache = open(Config { chunk_size: 1, ..config(64, "") }, &far);
    let absent = [&tokens[..6 * BLOCK], &prompt(2, 10)[..]].concat();
    far.state.lock().unwrap().gets.clear();
    assert_eq!(get(&cache, &absent), 6);
    assert_eq!(far.state.lock().unwrap().gets, [4, 4]);
    // What cannot take batches gets single items.
    let single = TestFar::with(Features::default().without_batches());
    let cache = open(config(64, "[l2]\ningestion_type = 'ALL'"), &single);
    put(&cache, &tokens[..4 * BLOCK]);
    assert_eq!(single.state.lock().unwrap().puts, [1, 1, 1, 1]);
}

#[test]
fn what_is_written_to_the_far_level_is_what_ingestion_type_says() {
    let tokens = prompt(1, 4);
    let far = TestFar::new();
    let hot = open(config(8, "[l2]\ningestion_type = 'HOT'"), &far);
    put(&hot, &tokens);
    assert_eq!(far.len(), 0, "nothing was hot");
    get(&hot, &tokens[..2 * BLOCK]);
    assert_eq!(far.len(), 2, "the first access is the hot one");
    get(&hot, &tokens[..2 * BLOCK]);
    assert_eq!(far.state.lock().unwrap().puts.iter().sum::<usize>(), 2, "and the only one");

    let far = TestFar::new();
    let hotter = open(config(8, "[l1]\ns3fifo_promotion_threshold = 3\n[l2]\ningestion_type = 'HOT'"), &far);
    put(&hotter, &tokens);
    get(&hotter, &tokens);
    get(&hotter, &tokens);
    assert_eq!(far.len(), 0);
    get(&hotter, &tokens);
    assert_eq!(far.len(), 4);

    let far = TestFar::new();
    let evicted = open(config(4, "[l1]\neviction_policy = 'FIFO'\n[l2]\ningestion_type = 'EVICTED'"), &far);
    put(&evicted, &tokens);
    assert_eq!(far.len(), 0);
    let next = prompt(2, 3);
    put(&evicted, &next);
    assert_eq!((far.len(), evicted.metrics().evictions), (3, 3));
    assert_eq!(get(&evicted, &next), 3);
    // What came from the far level is not written to it again.
    let reader = open(Config { double_get_threshold: (1, 0.0), ..evicted.config().clone() }, &far);
    assert_eq!(get(&reader, &tokens[..3 * BLOCK]), 3);
    put(&reader, &next);
    put(&reader, &prompt(3, 4));
    let metrics = reader.metrics();
    assert_eq!(metrics.ingestions_spared, 3, "{metrics:?}");
}

/// A far level that hangs is given so many tokens and no more; what comes on top is dropped and counted, and memory stays bounded.
#[test]
fn writes_that_are_under_way_are_bounded() {
    for (tokens, most) in [(1, 1), (BLOCK, 1), (2 * BLOCK - 1, 1), (2 * BLOCK, 2), (10 * BLOCK, 10)] {
        let far = TestFar::new();
        far.set(Mode::Hang);
        let text = format!("[l2]\ningestion_type = 'ALL'\ningestion_max_inflight_tokens = {tokens}");
        let cache = open(config(16, &text), &far);
        let mut bytes = 0;
        for n in 0..200 {
            assert_eq!(put(&cache, &prompt(n, 2)), 2);
            let used = cache.metrics().used;
            assert!(used.writing_blocks <= most, "{used:?}");
            bytes = bytes.max(used.memory_bytes);
        }
        assert!(bytes <= (16 + most) * BYTES as u64, "{bytes} bytes for 16 blocks and {most} writes");
        assert_eq!(cache.metrics().ingestions_dropped, 400 - most);
        far.release();
        cache.flush().unwrap();
        assert_eq!((far.len() as u64, cache.metrics().used.writing_blocks), (most, 0));
        assert_eq!(cache.metrics().used.memory_bytes, 16 * BYTES as u64);
    }
}

/// As above where writes are synchronous: who has waited long enough goes on, and what is left behind is bounded.
#[test]
fn writes_that_nobody_waits_for_any_more_are_bounded() {
    let far = TestFar::new();
    far.set(Mode::Hang);
    let text = "chunk_size = 16\n[l2]\nop_batch = 4\ningestion_type = 'ALL'\nper_token_timeout_ms = 0";
    let cache = open(config(16, text), &far);
    for n in 0..200 {
        assert_eq!(put(&cache, &prompt(n, 2)), 2);
    }
    let metrics = cache.metrics();
    let most = 16 * 4;
    assert_eq!((metrics.used.writing_blocks, metrics.ingestions_dropped), (most, 400 - most));
    assert_eq!(cache.flush().unwrap_err().kind(), ErrorKind::Timeout);
    far.release();
    cache.flush().unwrap();
    assert_eq!(far.len() as u64, most);
}

#[test]
fn a_late_answer_is_a_miss_and_fills_the_near_level() {
    let far = TestFar::new();
    let tokens = prompt(1, 8);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    far.set(Mode::Hang);
    let cache = open(config(8, "[l2]\nper_token_timeout_ms = 1"), &far);
    assert_eq!(get(&cache, &tokens), 0);
    let used = cache.metrics().used;
    assert_eq!((used.fetching_blocks, used.near_blocks), (8, 0));
    // Nobody waits for what is late, and nobody asks for it again.
    assert_eq!(get(&cache, &tokens), 0);
    assert_eq!((far.asked(), far.held()), (8, 1));
    far.release();
    assert_eq!(get(&cache, &tokens), 8);
    let metrics = cache.metrics();
    assert_eq!((far.asked(), metrics.late_blocks, metrics.used.fetching_blocks), (8, 8, 0));
    assert!(metrics.of(Level::Cache, Op::Get).unwrap().errors.contains(&("timeout", 1)), "{metrics:?}");
}

#[test]
fn a_pass_has_the_time_of_its_tokens_and_no_time_waits_for_nothing() {
    const HOUR: u64 = 3_600_000;
    let far = TestFar::new();
    let tokens = prompt(1, 8);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    // Hours, so that what the test itself takes is nothing: 4 blocks of 4 tokens, and what is left of the query.
    for (each, blocks, hours) in
        [(HOUR, 1, vec![4]), (HOUR, 4, vec![16]), (HOUR, 6, vec![16, 8]), (2 * HOUR, 4, vec![24])]
    {
        let text = format!("chunk_size = 16\n[l2]\nper_token_timeout_ms = {each}");
        let cache = open(Config { double_get_threshold: (1, 0.0), ..config(8, &text) }, &far);
        far.state.lock().unwrap().times.clear();
        assert_eq!(get(&cache, &tokens[..blocks * BLOCK]), blocks);
        let times = far.state.lock().unwrap().times.clone();
        let rounded = |time: &Duration| (time.as_secs() + 60) / (HOUR / 1000);
        assert_eq!(times.iter().map(rounded).collect::<Vec<_>>(), hours, "{blocks} blocks");
    }
    // In no time: what is answered at once is there, and what is not fills the near level when it comes.
    let cache = open(config(8, "[l2]\nper_token_timeout_ms = 0"), &far);
    assert_eq!(get(&cache, &tokens[..4 * BLOCK]), 4);
    far.set(Mode::Hang);
    assert_eq!(get(&cache, &tokens), 4);
    assert_eq!((far.held(), cache.metrics().used.near_blocks), (1, 4));
    far.release();
    assert_eq!((cache.metrics().used.near_blocks, cache.metrics().late_blocks), (8, 8));
    let asked = far.asked();
    assert_eq!((get(&cache, &tokens), far.asked()), (8, asked));
}

#[test]
fn reads_that_are_under_way_are_bounded() {
    let far = TestFar::new();
    far.set(Mode::Hang);
    let text = "chunk_size = 16\n[l2]\nop_batch = 4\nper_token_timeout_ms = 0";
    let cache = open(config(16, text), &far);
    (0..200).for_each(|n| assert_eq!(get(&cache, &prompt(n, 4)), 0));
    let metrics = cache.metrics();
    assert_eq!(metrics.used.fetching_blocks, 16 * 4);
    assert!(metrics.of(Level::L2, Op::Get).unwrap().errors.iter().any(|(why, _)| *why == "denied"));
    // Questions take no memory of blocks, and are bounded too.
    (0..3000).for_each(|n| assert_eq!(cache.exists(&[], &prompt(n, 1)).unwrap(), 0));
    assert!(far.held() <= 64 + 1024, "{}", far.held());
    far.release();
    assert_eq!(cache.metrics().used.memory_bytes, 0);
}

/// 100 threads miss the same blocks: the far level is asked once.
#[test]
fn blocks_that_many_miss_are_asked_for_once() {
    const THREADS: usize = 100;
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    far.set(Mode::Hang);
    let cache = open(config(8, "[l2]\nper_token_timeout_ms = 60000"), &far);
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, tokens, start) = (&cache, &tokens, &start);
            scope.spawn(move || {
                start.wait();
                match thread % 2 {
                    0 => assert_eq!(get(cache, tokens), 4),
                    _ => assert_eq!(cache.acquire(&[], tokens).unwrap().len(), 4),
                }
            });
        }
        // Each joins before anything is answered.
        while cache.metrics().joined_blocks < 4 * (THREADS as u64 - 1) {
            std::thread::yield_now();
        }
        far.release();
    });
    assert_eq!(far.asked(), 4);
}

#[test]
fn a_delete_removes_near_copies_and_nothing_brings_them_back() {
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    let cache = open(config(8, "[l2]\ningestion_type = 'ALL'\nper_token_timeout_ms = 1"), &far);
    put(&cache, &tokens);
    assert_eq!(cache.delete(&[], &tokens).unwrap(), 4 * BLOCK);
    assert_eq!((far.len(), cache.exists(&[], &tokens).unwrap()), (0, 0));

    // A get that is under way when the block is deleted, and is answered after.
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    far.set(Mode::Hang);
    assert_eq!(get(&cache, &tokens), 0);
    far.set(Mode::Sound);
    assert_eq!(cache.delete(&[], &tokens).unwrap(), 4 * BLOCK);
    far.release();
    assert_eq!((cache.exists(&[], &tokens).unwrap(), get(&cache, &tokens)), (0, 0));

    // A write that is under way, and ends after the delete has given up waiting for it.
    far.set(Mode::Hang);
    assert_eq!(put(&cache, &tokens), 4);
    far.set(Mode::Sound);
    assert_eq!(cache.delete(&[], &tokens).unwrap(), 0, "it could not be done");
    far.release();
    assert_eq!((far.len(), cache.exists(&[], &tokens).unwrap()), (0, 0), "it was done when the write had ended");

    // What a far level cannot do is not said to be done.
    let keeps = TestFar::with(Features::default().without_deletes());
    let cache = open(config(8, "[l2]\ningestion_type = 'ALL'"), &keeps);
    put(&cache, &tokens);
    assert_eq!(cache.delete(&[], &tokens).unwrap(), 0);
    assert_eq!(cache.metrics().used.near_blocks, 0);
}

/// While the far level removes blocks: what it answers to others meanwhile is not kept, and what the near level gives up meanwhile is
/// not written, or the blocks would be back when the delete has ended.
#[test]
fn nothing_is_kept_or_written_while_its_delete_runs() {
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    let during_delete = |cache: &Cache, mode: Mode, meanwhile: &dyn Fn() -> (usize, usize)| {
        far.set(mode);
        std::thread::scope(|scope| {
            let deleting = scope.spawn(|| cache.delete(&[], &tokens).unwrap());
            while far.held() == 0 && !deleting.is_finished() {
                std::thread::yield_now();
            }
            far.set(Mode::Sound);
            let found = meanwhile();
            far.release();
            assert_eq!(deleting.join().unwrap(), 4 * BLOCK);
            found
        })
    };

    let reader = open(config(8, "[l2]\nper_token_timeout_ms = 60000"), &far);
    let found =
        during_delete(&reader, Mode::Hang, &|| (get(&reader, &tokens), reader.metrics().used.near_blocks as usize));
    assert_eq!(found, (4, 0), "they are answered, since they are not removed yet, and not kept");
    assert_eq!((reader.exists(&[], &tokens).unwrap(), far.len()), (0, 0));

    let more = "[l1]\neviction_policy = 'FIFO'\n[l2]\ningestion_type = 'EVICTED'\nper_token_timeout_ms = 60000";
    let writer = open(config(4, more), &far);
    let written = during_delete(&writer, Mode::Late, &|| {
        put(&writer, &tokens);
        put(&writer, &prompt(2, 4));
        (writer.metrics().evictions as usize, far.len())
    });
    assert_eq!(written, (4, 0), "they are given up, and not written");
}

#[test]
fn tenants_layouts_and_ranks_with_equal_tokens_never_meet() {
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    let layout = Layout::try_from("NCLD".to_owned()).unwrap();
    let specs =
        [spec(), Spec { layout, ..spec() }, Spec { tensor_parallel: (1, 2), ..spec() }, Spec { heads: 0..8, ..spec() }];
    let mut caches = Vec::new();
    for builder in ["RAW", "SIMPLE_HASH", "ROLLING_HASH"] {
        for hash in ["xxh3", "sha256", "farm128"] {
            for (tenant, spec) in ["one", "two"].iter().flat_map(|tenant| specs.iter().map(move |spec| (tenant, spec)))
            {
                let text = format!(
                    "double_get_threshold = [1, 0.0]\n[l2]\nnamespace = '{tenant}'\ningestion_type = 'ALL'\nkey_builder = '{builder}'\nkey_hash = '{hash}'"
                );
                let far: Arc<TestFar> = far.clone();
                caches.push(Cache::open(config(8, &text), spec.clone(), Some(far)).unwrap());
            }
        }
    }
    for (number, cache) in caches.iter().enumerate() {
        assert_eq!(cache.exists(&[], &tokens).unwrap(), 0, "cache {number}");
        assert_eq!(get(cache, &tokens), 0, "cache {number}");
        assert_eq!(put(cache, &tokens), 4);
    }
    // RAW has the same keys whatever hash is named, but not the same scope.
    assert_eq!(far.len(), 4 * caches.len());
}

#[test]
fn what_is_acquired_stays_whatever_happens_to_it() {
    let cache = Cache::open(config(4, "[l1]\neviction_policy = 'LRU'"), spec(), None).unwrap();
    let tokens = prompt(1, 4);
    put(&cache, &tokens);
    let acquired = cache.acquire(&[], &tokens).unwrap();
    let again = blocks(&tokens, 1);
    let again: Vec<&[u8]> = again.iter().map(Vec::as_slice).collect();
    assert_eq!(cache.put(&[], &tokens, &again).unwrap(), 4 * BLOCK);
    cache.delete(&[], &tokens).unwrap();
    assert_eq!(put(&cache, &prompt(2, 4)), 4);
    // Memory ends before the process's does: 4 blocks, and those that may be filled at a time.
    let held: Vec<_> = (3..200)
        .map_while(|n| (put(&cache, &prompt(n, 1)) == 1).then(|| cache.acquire(&[], &prompt(n, 1)).unwrap()))
        .collect();
    assert_eq!(held.len(), 64, "beside the first 4 blocks");
    assert_eq!(put(&cache, &prompt(999, 1)), 0);
    let metrics = cache.metrics();
    assert!(metrics.of(Level::L1, Op::Put).unwrap().errors.contains(&("out_of_memory", 2)), "{metrics:?}");
    drop(held);
    assert_eq!(put(&cache, &prompt(999, 4)), 4);
    cache.close().unwrap();
    drop(cache);
    assert_eq!(acquired.iter().collect::<Vec<_>>(), blocks(&tokens, 0));
    assert!(acquired.block(4).is_none() && (acquired.block(0).unwrap().as_ptr() as usize).is_multiple_of(64));
}

#[test]
fn a_prefetch_fills_the_near_level_and_waits_for_nothing() {
    let far = TestFar::new();
    let tokens = prompt(1, 8);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    let cache = open(config(8, ""), &far);
    far.set(Mode::Hang);
    assert_eq!(cache.prefetch(&[], &tokens).unwrap(), 8 * BLOCK);
    far.release();
    far.set(Mode::Fail);
    assert_eq!(get(&cache, &tokens), 8);
    let without = TestFar::with(Features::default().without_prefetches());
    assert_eq!(open(config(8, ""), &without).prefetch(&[], &tokens).unwrap(), 0);
    assert_eq!(without.asked(), 0);
}

#[test]
fn the_noop_far_level_keeps_nothing() {
    let cache = Cache::open(config(8, "[l2]\ningestion_type = 'ALL'"), spec(), Some(Arc::new(Noop))).unwrap();
    let tokens = prompt(1, 8);
    assert_eq!(put(&cache, &tokens), 8);
    assert_eq!(get(&cache, &tokens), 8);
    assert_eq!(get(&cache, &prompt(2, 8)), 0);
    let metrics = cache.metrics();
    assert_eq!(metrics.of(Level::L2, Op::Put).unwrap().fetched_tokens, 32);
    assert!(metrics.stages.iter().any(|stage| stage.stage == "far" && stage.count == 1), "{:?}", metrics.stages);
    assert!(metrics.to_prometheus("").contains("kv_blocks_num_ops_total{level=\"l2\",op=\"get\"} 1\n"));
}
