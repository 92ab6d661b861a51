use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// The order of S3-FIFO as the text of its module says it, with lists that are searched.
struct Naive {
    small: VecDeque<(u32, u8)>,
    main: VecDeque<(u32, u8)>,
    ghost: VecDeque<u32>,
    small_entries: usize,
    promotion: u8,
}

impl Naive {
    fn insert(&mut self, key: u32) -> bool {
        let again = self.ghost.iter().position(|ghost| *ghost == key);
        if let Some(place) = again {
            self.ghost.remove(place);
            self.main.push_back((key, 0));
        } else {
            self.small.push_back((key, 0));
        }
        again.is_some()
    }

    fn access(&mut self, key: u32) -> bool {
        if let Some((_, hotness)) = self.small.iter_mut().find(|(of, _)| *of == key) {
            *hotness = (*hotness + 1).min(3);
            return *hotness == self.promotion;
        }
        if let Some((_, hotness)) = self.main.iter_mut().find(|(of, _)| *of == key) {
            *hotness = (*hotness + 1).min(3);
        }
        false
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            if self.small.len() > self.small_entries || self.main.is_empty() {
                let (key, hotness) = self.small.pop_front()?;
                if hotness >= self.promotion {
                    self.main.push_back((key, 0));
                    continue;
                }
                self.ghost.push_back(key);
                let most = self.small.len() + self.main.len() + 1;
                while self.ghost.len() > most {
                    self.ghost.pop_front();
                }
                return Some(key);
            }
            let (key, hotness) = self.main.pop_front()?;
            if hotness == 0 {
                return Some(key);
            }
            self.main.push_back((key, hotness - 1));
        }
    }
}

/// A cache of so many entries of one byte over a policy: whether each key of a trace was there, and what was hot.
fn run(policy: &mut dyn Policy, capacity: usize, trace: &[u32]) -> (Vec<bool>, Vec<u32>) {
    let (mut numbers, mut keys, mut free) = (HashMap::new(), HashMap::new(), (0..capacity as u32).collect::<Vec<_>>());
    let (mut hits, mut hot) = (Vec::new(), Vec::new());
    for key in trace {
        if let Some(number) = numbers.get(key) {
            hits.push(true);
            if policy.access(*number) {
                hot.push(*key);
            }
            continue;
        }
        hits.push(false);
        if free.is_empty() {
            let victim = policy.victim(&mut |_| false).expect("nothing is pinned");
            let gone = keys.remove(&victim).expect("a victim is an entry");
            numbers.remove(&gone);
            free.push(victim);
        }
        let number = free.pop().unwrap();
        numbers.insert(*key, number);
        keys.insert(number, *key);
        if policy.insert(number, u64::from(*key), 1) {
            hot.push(*key);
        }
        assert_eq!(policy.bytes(), numbers.len() as u64);
    }
    (hits, hot)
}

proptest! {
    #[test]
    fn s3fifo_is_what_its_text_says(
        trace in prop::collection::vec(0_u32..40, 0..400),
        capacity in 1_usize..24,
        promotion in 1_u8..=3,
        ratio in 0.05_f64..0.95,
    ) {
        let options = S3FifoOptions { promotion, small_ratio: ratio };
        let ours = run(&mut S3Fifo::new(capacity as u64, options), capacity, &trace);
        let mut naive = Naive {
            small: VecDeque::new(), main: VecDeque::new(), ghost: VecDeque::new(),
            small_entries: (capacity as f64 * ratio) as usize, promotion,
        };
        let (mut hits, mut hot, mut crossed) = (Vec::new(), Vec::new(), HashMap::new());
        for key in &trace {
            let here = naive.small.iter().chain(&naive.main).any(|(of, _)| of == key);
            hits.push(here);
            if here {
                // The hot access is the one that reaches the threshold, not those after it.
                if naive.access(*key) && crossed.insert(*key, ()).is_none() {
                    hot.push(*key);
                }
                continue;
            }
            crossed.remove(key);
            if naive.small.len() + naive.main.len() == capacity {
                naive.victim().unwrap();
            }
            if naive.insert(*key) {
                hot.push(*key);
            }
        }
        prop_assert_eq!(ours, (hits, hot));
    }

    #[test]
    fn lru_and_fifo_are_what_they_are_called(
        trace in prop::collection::vec(0_u32..40, 0..300), capacity in 1_usize..24, lru in any::<bool>()
    ) {
        let (hits, _) = match lru {
            true => run(&mut Lru::default(), capacity, &trace),
            false => run(&mut Fifo::default(), capacity, &trace),
        };
        let mut order: VecDeque<u32> = VecDeque::new();
        for (key, hit) in trace.iter().zip(hits) {
            let place = order.iter().position(|of| of == key);
            prop_assert_eq!(place.is_some(), hit);
            match place {
                Some(place) if lru => { order.remove(place); order.push_back(*key); }
                Some(_) => {}
                None => {
                    if order.len() == capacity { order.pop_front(); }
                    order.push_back(*key);
                }
            }
        }
    }

    /// What is pinned stays, what is not is given up, and each at most once.
    #[test]
    fn no_policy_names_what_is_pinned(
        accesses in prop::collection::vec((0_u32..20, any::<bool>()), 0..100), pinned in prop::collection::vec(any::<bool>(), 20)
    ) {
        for kind in [PolicyKind::S3Fifo, PolicyKind::Lru, PolicyKind::Fifo] {
            let mut policy = kind.build(20, S3FifoOptions::default());
            (0..20).for_each(|entry| { policy.insert(entry, u64::from(entry), 1); });
            for (entry, remove) in &accesses {
                if *remove && entry.is_multiple_of(5) { policy.remove(*entry); } else { policy.access(*entry); }
            }
            let removed = |entry: u32| entry.is_multiple_of(5) && accesses.contains(&(entry, true));
            let mut victims = Vec::new();
            while let Some(victim) = policy.victim(&mut |entry| pinned[entry as usize]) {
                victims.push(victim);
            }
            victims.sort_unstable();
            let expected: Vec<u32> = (0..20).filter(|entry| !pinned[*entry as usize] && !removed(*entry)).collect();
            prop_assert_eq!(victims, expected);
        }
    }
}

#[test]
fn the_ghost_queue_shrinks_with_the_cache() {
    let mut policy = S3Fifo::new(1 << 14, S3FifoOptions::default());
    let mut next = 0_u64;
    for entry in 0..1_u32 << 14 {
        policy.insert(entry, next, 1);
        next += 1;
    }
    for _ in 0..1 << 15 {
        let victim = policy.victim(&mut |_| false).unwrap();
        policy.insert(victim, next, 1);
        next += 1;
    }
    let (full, places) = policy.ghosts();
    assert!(full > 1 << 13 && full <= 1 << 14, "{full}");
    (0..(1 << 14) - 100).for_each(|entry| policy.remove(entry));
    let (few, fewer_places) = policy.ghosts();
    assert!(few <= 100 && fewer_places < places / 20, "{few} fingerprints in {fewer_places} places, once {places}");
}
