//! Random calls over random configs and far levels that misbehave, beside a map of what may be found: no byte is ever wrong, nothing
//! that was deleted comes back, nothing leaks, and memory stays bounded.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::collections::{HashMap, HashSet};

use common::*;
use kv_blocks::policy::PolicyKind;
use kv_blocks::{Cache, Config, KeyBuilder, KeyHash};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Put { prompt: usize, from: usize, blocks: usize },
    Get { prompt: usize, from: usize, blocks: usize },
    Acquire { prompt: usize, blocks: usize, keep: bool },
    Exists { prompt: usize, blocks: usize },
    Delete { prompt: usize, from: usize, blocks: usize },
    Prefetch { prompt: usize, blocks: usize },
    Mode(Mode),
    Release,
    GiveBack,
}

fn call() -> impl Strategy<Value = Call> {
    let (prompt, from, blocks) = (0_usize..6, 0_usize..4, 0_usize..9);
    prop_oneof![
        6 => (prompt.clone(), from.clone(), blocks.clone()).prop_map(|(prompt, from, blocks)| Call::Put { prompt, from, blocks }),
        8 => (prompt.clone(), from.clone(), blocks.clone()).prop_map(|(prompt, from, blocks)| Call::Get { prompt, from, blocks }),
        2 => (prompt.clone(), blocks.clone(), any::<bool>()).prop_map(|(prompt, blocks, keep)| Call::Acquire { prompt, blocks, keep }),
        2 => (prompt.clone(), blocks.clone()).prop_map(|(prompt, blocks)| Call::Exists { prompt, blocks }),
        2 => (prompt.clone(), from, blocks.clone()).prop_map(|(prompt, from, blocks)| Call::Delete { prompt, from, blocks }),
        1 => (prompt, blocks).prop_map(|(prompt, blocks)| Call::Prefetch { prompt, blocks }),
        2 => prop::sample::select(MODES.to_vec()).prop_map(Call::Mode),
        1 => Just(Call::Release),
        1 => Just(Call::GiveBack),
    ]
}

fn configs() -> impl Strategy<Value = (Config, bool)> {
    let near =
        (1_usize..24, any::<bool>(), prop::sample::select(vec![PolicyKind::S3Fifo, PolicyKind::Lru, PolicyKind::Fifo]));
    let keys = (
        prop::sample::select(vec![KeyBuilder::Raw, KeyBuilder::Simple, KeyBuilder::Rolling]),
        prop::sample::select(vec![KeyHash::Xxh3, KeyHash::Sha256, KeyHash::Farm128, KeyHash::Weakened(3)]),
        any::<bool>(),
    );
    let far = (
        prop::sample::select(vec!["ALL", "HOT", "EVICTED"]),
        prop::sample::select(vec![0_usize, 1, 8, 400]),
        1_usize..6,
        prop::sample::select(vec![(1_usize, 0.0), (4, 0.1)]),
    );
    (near, keys, far).prop_map(|((blocks, enabled, policy), (builder, hash, validation), (ingestion, inflight, batch, threshold))| {
        // A hash that collides needs validation.
        let collides = matches!(hash, KeyHash::Weakened(_)) && builder != KeyBuilder::Raw;
        let text = format!(
            "chunk_size = 16\ntoken_validation = {}\n[l2]\ningestion_type = '{ingestion}'\nop_batch = {batch}\nper_token_timeout_ms = 0\ningestion_max_inflight_tokens = {inflight}",
            validation || collides
        );
        let mut config = config(blocks, &text);
        config.l1.enabled = enabled;
        config.l1.eviction_policy = policy;
        config.l2.key_builder = builder;
        config.l2.key_hash = hash;
        config.double_get_threshold = threshold;
        (config, collides)
    })
}

/// Prompts that share beginnings: the second half of each is its own.
fn tokens(prompt: usize, blocks: usize) -> Vec<i32> {
    (0..blocks * BLOCK).map(|n| if n < 2 * BLOCK { (prompt / 3) as i32 } else { prompt as i32 * 7 }).collect()
}

struct Oracle {
    /// Of each prompt, up to the end of a block, the versions that may be found.
    versions: HashMap<Vec<i32>, HashSet<u8>>,
    next: u8,
}

impl Oracle {
    fn check(&self, tokens: &[i32], bytes: &[u8]) {
        let known = self.versions.get(tokens).into_iter().flatten().any(|version| block(tokens, *version) == bytes);
        assert!(known, "bytes that were not put for {tokens:?}, or were deleted");
    }

    /// Put a new version of the blocks from this one on. Answers how many were taken.
    fn put(&mut self, cache: &Cache, tokens: &[i32], from: usize) -> usize {
        let blocks = tokens.len() / BLOCK - from;
        self.next = self.next.wrapping_add(1);
        let values: Vec<Vec<u8>> = (0..blocks).map(|index| block(&tokens[..end(from, index)], self.next)).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let (prefix, query) = tokens.split_at(from * BLOCK);
        // What was not taken may have been all the same, where writes were late.
        for index in 0..blocks {
            self.versions.entry(tokens[..end(from, index)].to_vec()).or_default().insert(self.next);
        }
        let taken = cache.put(prefix, query, &values).unwrap() / BLOCK;
        assert!(taken <= blocks);
        taken
    }

    fn get(&self, cache: &Cache, tokens: &[i32], from: usize) {
        let (prefix, query) = tokens.split_at(from * BLOCK);
        let mut into = vec![vec![0xaa; BYTES]; query.len() / BLOCK];
        let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
        let found = cache.get(prefix, query, &mut rooms).unwrap() / BLOCK;
        into.iter().take(found).enumerate().for_each(|(index, bytes)| self.check(&tokens[..end(from, index)], bytes));
        for bytes in into.iter().skip(found + 1) {
            assert!(bytes.iter().all(|byte| *byte == 0xaa), "nothing is written behind the run");
        }
    }
}

/// How many tokens there are up to the end of a block, by its index behind `from`.
fn end(from: usize, index: usize) -> usize {
    (from + index + 1) * BLOCK
}

fn run(config: &Config, collides: bool, calls: &[Call]) {
    let far = TestFar::new();
    let cache = open(config.clone(), &far);
    let mut oracle = Oracle { versions: HashMap::new(), next: 0 };
    let mut kept = Vec::new();
    for call in calls {
        match *call {
            Call::Put { prompt, from, blocks } => {
                let taken = oracle.put(&cache, &tokens(prompt, from + blocks), from);
                if config.l1.enabled && kept.is_empty() && !collides {
                    assert_eq!(taken, blocks, "the near level takes all");
                }
            }
            Call::Get { prompt, from, blocks } => oracle.get(&cache, &tokens(prompt, from + blocks), from),
            Call::Acquire { prompt, blocks, keep } => {
                let tokens = tokens(prompt, blocks);
                let acquired = cache.acquire(&[], &tokens).unwrap();
                acquired.iter().enumerate().for_each(|(index, bytes)| oracle.check(&tokens[..end(0, index)], bytes));
                if keep && kept.len() < 3 {
                    let bytes: Vec<Vec<u8>> = acquired.iter().map(<[u8]>::to_vec).collect();
                    kept.push((acquired, bytes));
                }
            }
            Call::Exists { prompt, blocks } => {
                let run = cache.exists(&[], &tokens(prompt, blocks)).unwrap();
                assert!(run <= blocks * BLOCK && run.is_multiple_of(BLOCK));
            }
            Call::Delete { prompt, from, blocks } => {
                let tokens = tokens(prompt, from + blocks);
                let (prefix, query) = tokens.split_at(from * BLOCK);
                let gone = cache.delete(prefix, query).unwrap() / BLOCK;
                for index in 0..gone {
                    oracle.versions.remove(&tokens[..end(from, index)]);
                }
                if gone == blocks && !collides && far.state.lock().unwrap().mode == Mode::Sound {
                    assert_eq!(cache.exists(prefix, query).unwrap(), 0);
                }
            }
            Call::Prefetch { prompt, blocks } => {
                assert!(cache.prefetch(&[], &tokens(prompt, blocks)).unwrap() <= blocks * BLOCK);
            }
            Call::Mode(mode) => far.set(mode),
            Call::Release => far.release(),
            Call::GiveBack => kept.clear(),
        }
        for (acquired, bytes) in &kept {
            assert!(acquired.iter().eq(bytes.iter().map(Vec::as_slice)), "what is acquired does not change");
        }
        let used = cache.metrics().used;
        assert!(used.near_bytes <= used.near_capacity_bytes, "{used:?}");
    }
    kept.clear();
    // A removal that a late write has called for may itself be held.
    while far.held() > 0 {
        far.release();
    }
    let used = cache.metrics().used;
    assert_eq!((used.fetching_blocks, used.writing_blocks), (0, 0));
    assert_eq!(used.memory_bytes, used.near_bytes, "no slot leaks");
    cache.close().unwrap();
    assert_eq!(cache.metrics().used.memory_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_is_wrong_and_nothing_leaks(config in configs(), calls in prop::collection::vec(call(), 1..40)) {
        run(&config.0, config.1, &calls);
    }
}

/// Threads at once over a small cache, with a far level that holds back some of its answers.
#[test]
fn threads_at_once_find_right_bytes_only() {
    for (text, blocks) in [
        (
            "token_validation = true\n[l2]\ningestion_type = 'ALL'\ningestion_max_inflight_tokens = 40\nper_token_timeout_ms = 1",
            24,
        ),
        ("[l1]\neviction_policy = 'LRU'\n[l2]\ningestion_type = 'EVICTED'\nper_token_timeout_ms = 0", 12),
        ("double_get_threshold = [1, 0.0]\n[l2]\ningestion_type = 'HOT'\nper_token_timeout_ms = 0", 40),
    ] {
        let far = TestFar::new();
        let cache: Cache = open(config(blocks, text), &far);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (cache, far) = (&cache, &far);
                scope.spawn(move || {
                    let mut random = thread + 1;
                    for _ in 0..1500 {
                        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                        let tokens = prompt((random >> 33) as i32 % 12, 1 + (random >> 50) as usize % 8);
                        match (random >> 59) % 16 {
                            0..6 => drop(put(cache, &tokens)),
                            6..11 => drop(get(cache, &tokens)),
                            11 => {
                                let acquired = cache.acquire(&[], &tokens).unwrap();
                                assert!(
                                    acquired.iter().eq(blocks_of(&tokens, acquired.len()).iter().map(Vec::as_slice))
                                );
                            }
                            12 => drop(cache.delete(&[], &tokens).unwrap()),
                            13 => drop(cache.exists(&[], &tokens).unwrap()),
                            14 => far.set(Mode::Hang),
                            _ => far.release(),
                        }
                    }
                });
            }
        });
        while far.held() > 0 {
            far.release();
        }
        let used = cache.metrics().used;
        assert_eq!((used.memory_bytes, used.fetching_blocks, used.writing_blocks), (used.near_bytes, 0, 0));
    }
}

fn blocks_of(tokens: &[i32], count: usize) -> Vec<Vec<u8>> {
    let mut all = blocks(tokens, 0);
    all.truncate(count);
    all
}
