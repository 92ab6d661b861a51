//! S3-FIFO hits more often than LRU and FIFO where its paper says so: on skewed requests, the more so with blocks that are asked for
//! once, and at small sizes.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "common/traces.rs"]
mod traces;

use kv_blocks::policy::PolicyKind;
use traces::{hit_ratio, scans, zipf};

#[test]
fn s3fifo_beats_lru_on_skewed_requests_and_with_scans() {
    for (name, trace, least) in [("zipf", zipf(), 0.02), ("scans", scans(), 0.04)] {
        for blocks in [200, 400, 1000] {
            let ratio = |policy| hit_ratio(policy, &trace, blocks);
            let (s3fifo, lru, fifo) = (ratio(PolicyKind::S3Fifo), ratio(PolicyKind::Lru), ratio(PolicyKind::Fifo));
            assert!(s3fifo > lru + least && s3fifo > fifo + least, "{name}, {blocks}: {s3fifo} {lru} {fifo}");
        }
    }
}
