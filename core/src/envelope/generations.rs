//! The greatest generation of each manifest that was read lately. A lower one is an older manifest, which came back after a newer one
//! was seen: a failover to a replica that lacked it, or a late change.

use std::hash::RandomState;
use std::time::Instant;

use kv_platform::sync::Mutex;
use twox_hash::XxHash3_128;

use super::tail::Generation;
use crate::limits::{GENERATION_REMEMBERED_FOR, REMEMBERED_GENERATIONS};
use crate::recent::RecentMap;

/// By the XXH3-128 of the name, so that a long name takes no more room than a short one.
pub struct Generations(Mutex<RecentMap<u128, (Generation, Instant), RandomState>>);

impl Default for Generations {
    fn default() -> Self {
        Generations(Mutex::new(RecentMap::new(REMEMBERED_GENERATIONS)))
    }
}

impl Generations {
    /// The greatest generation of a manifest that was read lately. Asked for before a manifest is read: another reader may see a newer
    /// one while this one is on its way, and both are right.
    pub fn known(&self, name: &str, now: Instant) -> Option<Generation> {
        let remembered = self.0.lock();
        let (greatest, read) = remembered.get(&XxHash3_128::oneshot(name.as_bytes()))?;
        (now.saturating_duration_since(*read) < GENERATION_REMEMBERED_FOR).then_some(*greatest)
    }

    /// A manifest was read. Whether it is none that is older than what was `known` when its reading began.
    pub fn accept(&self, name: &str, generation: Generation, known: Option<Generation>, now: Instant) -> bool {
        if known.is_some_and(|greatest| generation < greatest) {
            return false;
        }
        let greatest = self.known(name, now).map_or(generation, |known| known.max(generation));
        self.0.lock().insert(XxHash3_128::oneshot(name.as_bytes()), (greatest, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::tail::generation;

    #[test]
    fn an_older_one_is_noticed_until_the_newer_one_is_forgotten() {
        let (generations, now) = (Generations::default(), Instant::now());
        let accept = |name, microseconds, at| {
            let known = generations.known(name, at);
            generations.accept(name, generation(microseconds), known, at)
        };
        assert!(accept("m", 5, now) && accept("m", 5, now) && accept("m", 6, now));
        assert!(!accept("m", 5, now) && accept("n", 5, now) && accept("m", 7, now));
        assert!(!accept("m", 6, now + GENERATION_REMEMBERED_FOR / 2));
        assert!(accept("m", 6, now + GENERATION_REMEMBERED_FOR), "it is forgotten");
    }

    #[test]
    fn readers_at_the_same_time_may_see_different_manifests() {
        let (generations, now) = (Generations::default(), Instant::now());
        let slower = generations.known("m", now);
        assert!(generations.accept("m", generation(6), None, now));
        assert!(generations.accept("m", generation(5), slower, now), "its reading began before the other's ended");
        assert_eq!(generations.known("m", now), Some(generation(6)), "the greatest stays");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (generations, now) = (Generations::default(), Instant::now());
        for n in 0..5 * REMEMBERED_GENERATIONS {
            generations.accept(&n.to_string(), generation(2), None, now);
        }
        let newest = 5 * REMEMBERED_GENERATIONS - 1;
        let known = generations.known(&newest.to_string(), now);
        assert!(!generations.accept(&newest.to_string(), generation(1), known, now));
        assert_eq!(generations.known("0", now), None);
    }
}
