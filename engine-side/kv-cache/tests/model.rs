//! Index, tiers and eviction against an oracle that is too simple to be wrong: lists in the order of use.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::collections::VecDeque;

use common::*;
use kv_cache::{Cache, ErrorKind, Hit, Saved, TierKind};
use proptest::prelude::*;

const OVERHEAD: u64 = 512;
const BUDGET: u64 = 6000;

#[derive(Clone, Debug)]
enum Action {
    Save { tier: bool, row: u32, bytes: usize },
    Lookup { row: u32, keep: bool },
    LetGo { which: usize },
    Evict { row: u32 },
    EvictBytes { tier: bool, bytes: u64 },
    Gc,
    Reopen,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let row = || 0u32..6;
    proptest::collection::vec(
        prop_oneof![
            5 => (any::<bool>(), row(), 1usize..3500).prop_map(|(tier, row, bytes)| Action::Save { tier, row, bytes }),
            4 => (row(), proptest::bool::weighted(0.2)).prop_map(|(row, keep)| Action::Lookup { row, keep }),
            1 => (0usize..4).prop_map(|which| Action::LetGo { which }),
            1 => row().prop_map(|row| Action::Evict { row }),
            1 => (any::<bool>(), 0u64..5000).prop_map(|(tier, bytes)| Action::EvictBytes { tier, bytes }),
            1 => Just(Action::Gc),
            1 => Just(Action::Reopen),
        ],
        1..40,
    )
}

/// A tier as a list of rows, the one used least recently first.
#[derive(Default)]
struct Oracle {
    rows: VecDeque<Entry>,
}

#[derive(Clone)]
struct Entry {
    row: u32,
    bytes: usize,
    charged: u64,
}

impl Oracle {
    fn used(&self) -> u64 {
        self.rows.iter().map(|entry| entry.charged).sum()
    }

    fn find(&self, row: u32) -> Option<usize> {
        self.rows.iter().position(|entry| entry.row == row)
    }

    fn touch(&mut self, at: usize) -> Entry {
        let entry = self.rows.remove(at).unwrap();
        self.rows.push_back(entry.clone());
        entry
    }

    /// Evict from the front, past what is held, until at most `target` is used.
    fn shrink(&mut self, target: u64, held: impl Fn(u32) -> bool) {
        let mut at = 0;
        while self.used() > target && at < self.rows.len() {
            if held(self.rows[at].row) {
                at += 1;
            } else {
                self.rows.remove(at);
            }
        }
    }
}

struct World {
    cache: Option<Cache>,
    config: String,
    /// ram, disk.
    tiers: [Oracle; 2],
    /// Tier, row and handle.
    held: Vec<(usize, u32, Hit)>,
    /// What a row's file has besides its payload.
    metadata: u64,
}

const KINDS: [TierKind; 2] = [TierKind::Ram, TierKind::Disk];

impl World {
    fn holds(&self, tier: usize) -> impl Fn(u32) -> bool + use<> {
        let rows: Vec<u32> = self.held.iter().filter(|(t, ..)| *t == tier).map(|(_, row, _)| *row).collect();
        move |row| rows.contains(&row)
    }

    fn step(&mut self, action: &Action) {
        let cache = self.cache.clone().unwrap();
        match *action {
            Action::Save { tier, row, bytes } => {
                let tier = usize::from(tier);
                let charged = bytes as u64 + if tier == 0 { OVERHEAD } else { self.metadata };
                let held = self.holds(tier);
                let oracle = &mut self.tiers[tier];
                let saved = save_to(&cache, KINDS[tier], &tokens(row, 8), &payload(row, bytes));
                if oracle.find(row).is_some() {
                    assert_eq!(saved.unwrap(), Saved::Known);
                    return;
                }
                let kept: u64 = oracle.rows.iter().filter(|entry| held(entry.row)).map(|entry| entry.charged).sum();
                if kept + charged > BUDGET {
                    assert_eq!(saved.unwrap_err().kind(), ErrorKind::Full);
                    return;
                }
                oracle.shrink(BUDGET - charged, held);
                assert_eq!(saved.unwrap(), Saved::Stored);
                oracle.rows.push_back(Entry { row, bytes, charged });
            }
            Action::Lookup { row, keep } => {
                let found = lookup(&cache, &tokens(row, 8));
                let expected = (0..2).find_map(|tier| self.tiers[tier].find(row).map(|at| (tier, at)));
                let Some((tier, at)) = expected else { return assert!(found.is_none()) };
                let entry = self.tiers[tier].touch(at);
                let hit = found.unwrap();
                assert_eq!(hit.tier(), KINDS[tier]);
                assert_eq!(load(&hit).unwrap(), payload(row, entry.bytes));
                if keep {
                    self.held.push((tier, row, hit));
                }
            }
            Action::LetGo { which } => {
                if which < self.held.len() {
                    let (_, row, hit) = self.held.remove(which);
                    let bytes = load(&hit).unwrap();
                    assert_eq!(bytes, payload(row, bytes.len()), "a handle's row is whole to the end");
                }
            }
            Action::Evict { row } => {
                let mut expected = 0;
                for tier in 0..2 {
                    if let (Some(at), false) = (self.tiers[tier].find(row), self.holds(tier)(row)) {
                        self.tiers[tier].rows.remove(at);
                        expected += 1;
                    }
                }
                assert_eq!(cache.evict(&IDENTITY.key(&tokens(row, 8))), expected);
            }
            Action::EvictBytes { tier, bytes } => {
                let tier = usize::from(tier);
                let held = self.holds(tier);
                let before = self.tiers[tier].used();
                self.tiers[tier].shrink(before.saturating_sub(bytes), held);
                assert_eq!(cache.evict_bytes(KINDS[tier], bytes), before - self.tiers[tier].used());
            }
            Action::Gc => assert_eq!(cache.gc().unwrap(), kv_cache::Gc::default()),
            Action::Reopen => {
                self.held.clear();
                drop(cache);
                self.cache = None;
                self.tiers[0] = Oracle::default();
                self.cache = Some(open(&self.config));
            }
        }
        if let Some(cache) = &self.cache {
            for (tier, stats) in self.tiers.iter().zip(cache.stats().tiers) {
                assert_eq!((stats.rows, stats.bytes, stats.reserved), (tier.rows.len() as u64, tier.used(), 0));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_oracle_does(actions in actions()) {
        let (_folder, path) = folder();
        let config = format!("{}[ram]\nbudget = {BUDGET}\n", disk(&path, BUDGET));
        let cache = open(&config);
        save_to(&cache, TierKind::Disk, &tokens(99, 8), b"x").unwrap();
        let metadata = cache.evict_bytes(TierKind::Disk, 1) - 1;
        let mut world = World { cache: Some(cache), config, tiers: Default::default(), held: Vec::new(), metadata };
        for action in &actions {
            world.step(action);
        }
    }
}
