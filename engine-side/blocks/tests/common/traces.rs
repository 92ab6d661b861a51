//! Traces of requests for blocks, and the share of them that a policy serves. Deterministic.

#![allow(dead_code, reason = "each user takes a part")]

use std::collections::HashMap;

use kv_blocks::policy::{PolicyKind, S3FifoOptions};

/// A trace by name.
pub type Trace = (&'static str, fn() -> Vec<u64>);

pub const TRACES: [Trace; 3] =
    [("Zipf, exponent 0.9", zipf), ("Zipf and scans", scans), ("multi-turn conversations", conversations)];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A rank of `ranks`, each as likely as its own power: the inverse of the distribution's integral.
fn rank(random: &mut Random, ranks: f64, exponent: f64) -> u64 {
    let power = 1.0 - exponent;
    ((random.unit() * (ranks.powf(power) - 1.0) + 1.0).powf(1.0 / power)) as u64
}

/// 200,000 requests of 20,000 blocks, by Zipf.
pub fn zipf() -> Vec<u64> {
    let mut random = Random(1);
    (0..200_000).map(|_| rank(&mut random, 20_000.0, 0.9)).collect()
}

/// As above; each 200th request begins a run of 100 blocks that nobody asks for again.
pub fn scans() -> Vec<u64> {
    let mut random = Random(2);
    let (mut trace, mut fresh) = (Vec::new(), 1 << 40);
    for request in 0..100_000 {
        trace.push(rank(&mut random, 20_000.0, 0.9));
        if request % 200 == 199 {
            trace.extend(fresh..fresh + 100);
            fresh += 100;
        }
    }
    trace
}

/// Conversations that begin with one of 8 system prompts of 16 blocks. Each turn asks for all blocks so far, then adds 1 to 8. At any
/// time 60 are under way; after each turn one in 5 ends, and a new one takes its place.
pub fn conversations() -> Vec<u64> {
    let mut random = Random(3);
    let mut next = 1_u64 << 32;
    let mut trace = Vec::new();
    let begin = |random: &mut Random| -> Vec<u64> {
        let system = random.below(8);
        (0..16).map(|block| system << 8 | block).collect()
    };
    let mut under_way: Vec<Vec<u64>> = (0..60).map(|_| begin(&mut random)).collect();
    for _ in 0..5000 {
        let chosen = random.below(60) as usize;
        let new = 1 + random.below(8);
        let ends = random.below(5) == 0;
        let fresh = begin(&mut random);
        let Some(conversation) = under_way.get_mut(chosen) else { continue };
        conversation.extend(next..next + new);
        next += new;
        trace.extend_from_slice(conversation);
        if ends {
            *conversation = fresh;
        }
    }
    trace
}

/// The share of requests that a cache of so many blocks serves.
#[allow(clippy::expect_used, clippy::indexing_slicing, reason = "of tests, and of an example that is one")]
pub fn hit_ratio(policy: PolicyKind, trace: &[u64], blocks: usize) -> f64 {
    let mut policy = policy.build(blocks as u64, S3FifoOptions::default());
    let (mut entries, mut keys) = (HashMap::new(), vec![0; blocks]);
    let mut hits = 0;
    for key in trace {
        if let Some(entry) = entries.get(key) {
            policy.access(*entry);
            hits += 1;
            continue;
        }
        let entry = match entries.len() < blocks {
            true => entries.len() as u32,
            false => {
                let victim = policy.victim(&mut |_| false).expect("nothing is pinned");
                entries.remove(&keys[victim as usize]);
                victim
            }
        };
        keys[entry as usize] = *key;
        entries.insert(*key, entry);
        policy.insert(entry, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1);
    }
    f64::from(hits) / trace.len() as f64
}
