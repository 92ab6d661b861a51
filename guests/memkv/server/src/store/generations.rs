//! The generations of manifests: microseconds of the wall clock, and greater than each that the same name had, also when the clock
//! is set back. A reader that remembers the greatest takes a lower one for an older manifest.
//!
//! What a name had is kept beside the table, for as long as readers remember it, because the manifest may be deleted or evicted meanwhile.
//! The bound is on names; what is forgotten for it matters only where the clock is set back as well.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use crate::names::Name;
use crate::os::Instant;

/// How long readers remember.
const KEPT: Duration = Duration::from_secs(600);
/// Names that are kept: some 14 MB if all are as long as they can be.
const NAMES: NonZeroUsize = NonZeroUsize::new(16 << 10).unwrap();

pub struct Generations {
    /// None is as low.
    floor: u64,
    /// In the order of `at`.
    latest: LruCache<Name, Latest>,
}

#[derive(Clone, Copy)]
struct Latest {
    /// The greatest that was given to a put.
    given: u64,
    /// The greatest that was published and is gone.
    published: u64,
    at: Instant,
}

impl Default for Generations {
    fn default() -> Self {
        Generations { floor: 0, latest: LruCache::new(NAMES) }
    }
}

impl Generations {
    /// Give none as low as this.
    pub fn begin_after(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    /// One for a put of this name: `there` is what the name has, `wall` the time in microseconds.
    pub fn next(&mut self, name: &Name, there: u64, wall: u64, now: Instant) -> u64 {
        let latest = self.latest(name, now);
        let (given, published) = latest.map_or((0, 0), |latest| (latest.given, latest.published));
        let next = self.floor.max(there).max(given).saturating_add(1).max(wall);
        self.keep(name, Latest { given: next, published, at: now });
        next
    }

    /// A manifest of this generation is gone.
    pub fn removed(&mut self, name: &Name, generation: u64, now: Instant) {
        let latest = self.latest(name, now);
        let (given, published) = latest.map_or((0, 0), |latest| (latest.given, latest.published));
        self.keep(name, Latest { given: given.max(generation), published: published.max(generation), at: now });
    }

    /// The greatest that was published and is gone; 0: none is known.
    pub fn published(&self, name: &Name, now: Instant) -> u64 {
        self.latest(name, now).map_or(0, |latest| latest.published)
    }

    fn latest(&self, name: &Name, now: Instant) -> Option<Latest> {
        self.latest.peek(name).copied().filter(|latest| now.duration_since(latest.at) < KEPT)
    }

    fn keep(&mut self, name: &Name, latest: Latest) {
        let now = latest.at;
        self.latest.put(name.clone(), latest);
        while self.latest.peek_lru().is_some_and(|(_, oldest)| now.duration_since(oldest.at) >= KEPT) {
            self.latest.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> Name {
        n.to_le_bytes().to_vec().into()
    }

    #[test]
    fn each_is_greater_than_the_one_before_also_when_the_clock_is_set_back() {
        let (mut generations, now) = (Generations::default(), Instant::now());
        assert_eq!(generations.next(&name(1), 0, 1000, now), 1000);
        assert_eq!(generations.next(&name(1), 1000, 400, now), 1001);
        // One that was given and is not published yet counts as well.
        assert_eq!(generations.next(&name(1), 1000, 400, now), 1002);
        assert_eq!(generations.next(&name(2), 0, 400, now), 400, "another name");
        generations.begin_after(5000);
        assert_eq!(generations.next(&name(2), 400, 400, now), 5001);
        assert_eq!(generations.next(&name(2), u64::MAX, 400, now), u64::MAX);
    }

    #[test]
    fn what_is_gone_is_kept_for_ten_minutes() {
        let (mut generations, now) = (Generations::default(), Instant::now());
        generations.removed(&name(1), 1000, now);
        let soon = now + KEPT - Duration::from_millis(1);
        assert_eq!((generations.published(&name(1), soon), generations.published(&name(2), soon)), (1000, 0));
        assert_eq!(generations.next(&name(1), 0, 400, soon), 1001);
        assert_eq!(generations.published(&name(1), soon), 1000, "a put that is under way does not forget it");
        let later = soon + KEPT;
        assert_eq!((generations.published(&name(1), later), generations.next(&name(1), 0, 400, later)), (0, 400));
    }

    #[test]
    fn the_names_are_bounded_and_what_is_old_goes() {
        let (mut generations, now) = (Generations::default(), Instant::now());
        (0..2 * NAMES.get() as u64).for_each(|n| generations.removed(&name(n), 1, now));
        assert_eq!(generations.latest.len(), NAMES.get());
        generations.removed(&name(0), 1, now + KEPT);
        assert_eq!(generations.latest.len(), 1);
    }
}
