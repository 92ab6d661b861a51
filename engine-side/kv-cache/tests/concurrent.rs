//! Everything at once: savers, readers, views, eviction, gc, on budgets that hold a few rows. Whatever is answered is right.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use kv_cache::{ErrorKind, Reason, Save, TierKind};

const ROWS: u32 = 12;
const BYTES: usize = 20_000;

#[test]
fn whatever_is_answered_is_right() {
    let (_folder, path) = folder();
    let config = format!("{}[ram]\nbudget = 100000\n[queue]\nsaves = 4\n", disk(&path, 100_000));
    let cache = open(&config);
    let stop = AtomicBool::new(false);
    let (found, stored) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            scope.spawn({
                let (cache, stop, stored) = (&cache, &stop, &stored);
                move || {
                    let mut n = thread;
                    while !stop.load(Ordering::Relaxed) {
                        n = (n * 5 + 3) % ROWS;
                        let tier = if n % 2 == 0 { TierKind::Ram } else { TierKind::Disk };
                        let reason = if n % 3 == 0 { Reason::Finish } else { Reason::Evict };
                        let (tokens, payload) = (tokens(n, 8), payload(n, BYTES));
                        match cache.save(Save::new(&IDENTITY, &tokens, payload).tier(tier).reason(reason)) {
                            Ok(_) => _ = stored.fetch_add(1, Ordering::Relaxed),
                            // All of the tier's rows are in use at this moment.
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
                        }
                    }
                }
            });
        }
        for thread in 0..3u32 {
            scope.spawn({
                let (cache, stop, found) = (&cache, &stop, &found);
                move || {
                    let mut n = thread;
                    while !stop.load(Ordering::Relaxed) {
                        n = (n * 7 + 1) % ROWS;
                        let Some(hit) = lookup(cache, &tokens(n, 8)) else { continue };
                        // Nothing removes a row that is in use.
                        match thread {
                            0 => assert!(*hit.view().unwrap() == payload(n, BYTES)),
                            _ => assert!(load(&hit).unwrap() == payload(n, BYTES)),
                        }
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        scope.spawn(|| {
            for n in (0..ROWS).cycle().take(200) {
                cache.evict(&IDENTITY.key(&tokens(n, 8)));
                if n == 0 {
                    cache.gc().unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert!(cache.flush(Duration::from_secs(20)));
    let stats = cache.stats();
    assert!(found.load(Ordering::Relaxed) > 0 && stored.load(Ordering::Relaxed) > 0 && stats.evictions > 0);
    assert_eq!((stats.load_misses, stats.corrupt_files, stats.truncated_files), (0, 0, 0));
    for tier in &stats.tiers {
        assert!(tier.bytes <= tier.budget && tier.reserved == 0, "{tier:?}");
    }
    let files = names(&path);
    assert_eq!(files.len() as u64, stats.tiers[1].rows, "a file for each row: {files:?}");
}
