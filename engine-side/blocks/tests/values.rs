//! Values of the far level that are damaged or replaced by others, and what is in one level only.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::*;
use kv_blocks::{Cache, Config};

#[test]
fn a_damaged_block_is_a_miss_until_the_next_put_and_the_far_level_decides_whether_it_stays() {
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    let writer = open(config(8, "[l2]\ningestion_type = 'ALL'"), &far);
    put(&writer, &tokens);
    for value in far.state.lock().unwrap().values.values_mut() {
        value[7] ^= 1;
    }
    let cache = open(config(8, "[l2]\ningestion_type = 'ALL'"), &far);
    assert_eq!(get(&cache, &tokens), 0);
    let state = far.state.lock().unwrap();
    assert_eq!((state.values.len(), state.damaged.clone(), state.deletes.len()), (4, vec![4], 0));
    drop(state);
    assert_eq!(cache.metrics().damaged_blocks, 4);
    put(&cache, &tokens);
    assert_eq!(get(&open(config(8, ""), &far), &tokens), 4);
}

#[test]
fn a_gateway_that_lies_destroys_nothing() {
    let far = TestFar::new();
    let tokens = prompt(1, 4);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens);
    let cache = open(config(8, "double_get_threshold = [1, 0.0]\n[l2]\ningestion_type = 'ALL'"), &far);
    for mode in [Mode::Flip, Mode::Swap, Mode::Lengths] {
        far.set(mode);
        assert!(get(&cache, &tokens) < 4);
    }
    far.set(Mode::Sound);
    assert_eq!(get(&cache, &tokens), 4);
    assert_eq!(far.len(), 4);
}

/// Put a version of a prompt's blocks.
fn put_version(cache: &Cache, tokens: &[i32], version: u8) {
    let blocks = blocks(tokens, version);
    let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
    assert_eq!(cache.put(&[], tokens, &blocks).unwrap(), tokens.len());
}

/// The version of a prompt that a cache has, in all its blocks.
fn version(cache: &Cache, tokens: &[i32]) -> Option<u8> {
    let mut into = vec![vec![0; BYTES]; tokens.len() / BLOCK];
    let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
    let found = cache.get(&[], tokens, &mut rooms).unwrap();
    (found == tokens.len()).then(|| (0..9).find(|version| blocks(tokens, *version) == into).expect("one version"))
}

#[test]
fn other_bytes_of_the_same_tokens_replace_the_former_ones_in_both_levels() {
    let tokens = prompt(1, 4);
    for ingestion in ["ALL", "HOT", "EVICTED"] {
        let far = TestFar::new();
        let text = format!("[l1]\neviction_policy = 'FIFO'\n[l2]\ningestion_type = '{ingestion}'");
        let cache = open(config(8, &text), &far);
        // Each version is given up before the next is put, and is in the far level then; the last two meet in the near level.
        for number in [1, 2, 3] {
            put_version(&cache, &tokens, number);
            assert_eq!(version(&cache, &tokens), Some(number), "{ingestion}");
            if number != 2 {
                put(&cache, &prompt(2 + i32::from(number), 8));
                assert_eq!(version(&cache, &tokens), Some(number), "{ingestion}: after an eviction");
            }
        }
        assert_eq!(version(&open(config(8, ""), &far), &tokens), Some(3), "{ingestion}: to another process");
    }
    let far = TestFar::new();
    let without = open(config(0, "[l1]\nenabled = false"), &far);
    [1, 2].into_iter().for_each(|number| put_version(&without, &tokens, number));
    assert_eq!(version(&without, &tokens), Some(2));
}

#[test]
fn what_is_put_while_the_former_bytes_are_written_is_written_after_them() {
    let tokens = prompt(1, 4);
    let far = TestFar::new();
    let text = "[l1]\neviction_policy = 'FIFO'\n[l2]\ningestion_type = 'ALL'\ningestion_max_inflight_tokens = 400";
    let cache = open(config(8, text), &far);
    far.set(Mode::Hang);
    put_version(&cache, &tokens, 1);
    put_version(&cache, &tokens, 2);
    far.release();
    cache.flush().unwrap();
    assert_eq!(version(&open(config(8, ""), &far), &tokens), Some(2));
    // Where the later bytes are near no more, neither are left.
    far.set(Mode::Hang);
    put_version(&cache, &tokens, 3);
    put_version(&cache, &tokens, 4);
    put(&cache, &prompt(2, 8));
    far.release();
    cache.flush().unwrap();
    assert_eq!(version(&open(config(8, ""), &far), &tokens), None);
    // The same bytes once more are written once.
    let puts = || far.state.lock().unwrap().puts.iter().sum::<usize>();
    put_version(&cache, &tokens, 5);
    let before = puts();
    put_version(&cache, &tokens, 5);
    assert_eq!((puts(), version(&cache, &tokens)), (before, Some(5)));
}

#[test]
fn exists_counts_what_is_near_behind_what_is_only_far() {
    let far = TestFar::new();
    let tokens = prompt(1, 8);
    put(&open(config(8, "[l2]\ningestion_type = 'ALL'"), &far), &tokens[..2 * BLOCK]);
    let text = "double_get_threshold = [1, 0.0]\n[l2]\ningestion_type = 'EVICTED'";
    let cache = open(Config { chunk_size: 16, ..config(8, text) }, &far);
    let behind = blocks(&tokens, 0).split_off(2);
    let behind: Vec<&[u8]> = behind.iter().map(Vec::as_slice).collect();
    assert_eq!(cache.put(&tokens[..2 * BLOCK], &tokens[2 * BLOCK..], &behind).unwrap(), 6 * BLOCK);
    assert_eq!(cache.exists(&[], &tokens).unwrap(), 8 * BLOCK);
    assert_eq!(far.state.lock().unwrap().exists, [2], "only what is not near is asked for");
    assert_eq!(get(&cache, &tokens), 8);
    // One that is in neither level ends the run.
    assert_eq!(cache.delete(&tokens[..BLOCK], &tokens[BLOCK..2 * BLOCK]).unwrap(), BLOCK);
    assert_eq!(cache.exists(&[], &tokens).unwrap(), BLOCK);
}
