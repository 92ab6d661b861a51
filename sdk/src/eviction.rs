//! Which entries to evict: the least recently used of those that were listed. Pure, so that every backend evicts by the same rules.
//!
//! A store that fits [`Candidates::WHOLE`] entries is judged as a whole. Of a larger one some pages are listed, from a random place
//! on, and the oldest eighth of each page goes: since hashes are evenly spread, these are about the oldest eighth of the store.
//!
//! Manifests. A backend that knows only times removes the manifests that were last used before [`Victims::manifests_before`], and only
//! then the chunks: whoever reads a manifest reads its chunks after it, so a manifest that was used later names no chunk that
//! goes. Times may lag behind by [`lag`], which is added.

use crate::Eviction;

/// How much later a manifest may have been used, by its time, than a chunk that it names: a save stores its chunks first, and a
/// noted time lags behind by up to a minute. At most what chunks are kept for, which is the operator's word for how long a save takes;
/// a second at least.
pub fn lag(what: &Eviction, now: u64) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    now.checked_sub(what.keep_since).map_or(60 * SECOND, |kept| kept.clamp(SECOND, 60 * SECOND))
}

/// An entry that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<K> {
    /// By which the backend finds it again.
    pub key: K,
    /// Bytes.
    pub size: u64,
    /// When it was last stored or used: nanoseconds since 1970-01-01 UTC.
    pub used: u64,
}

/// Entries that were listed, page by page.
pub struct Candidates<K> {
    what: Eviction,
    /// Those whose time has come, and then the oldest of the rest.
    chosen: Vec<Candidate<K>>,
    page: Vec<Candidate<K>>,
    expired_bytes: u64,
    chosen_bytes: u64,
    listed: usize,
    whole: Vec<Candidate<K>>,
    sampling: bool,
}

/// What to remove, the oldest first.
pub struct Victims<K> {
    pub chunks: Vec<Candidate<K>>,
    /// Manifests that were last used before this go first. Nanoseconds since 1970-01-01 UTC.
    pub manifests_before: u64,
}

impl<K> Candidates<K> {
    /// Entries that are judged as a whole; how many are remembered is bounded by a few times that.
    pub const WHOLE: usize = 16 << 10;
    /// Of a page of a larger store so many go at once.
    const SHARE: usize = 8;

    pub fn new(what: Eviction) -> Self {
        Candidates {
            what,
            chosen: Vec::new(),
            page: Vec::new(),
            expired_bytes: 0,
            chosen_bytes: 0,
            listed: 0,
            whole: Vec::new(),
            sampling: false,
        }
    }

    /// Add an entry of a page.
    pub fn add(&mut self, candidate: Candidate<K>) {
        self.listed += 1;
        if candidate.used > self.what.keep_since {
            return;
        }
        if self.what.unused_since.is_some_and(|since| candidate.used < since) {
            self.expired_bytes += candidate.size;
            self.chosen.push(candidate);
        } else if self.what.bytes > 0 {
            self.page.push(candidate);
        }
    }

    /// A page is complete. Answers whether enough is found, so that no further one need be listed.
    pub fn end_page(&mut self) -> bool {
        if self.listed > Self::WHOLE && !self.sampling {
            self.sampling = true;
            // The pages so far are one large page.
            let whole = std::mem::take(&mut self.whole);
            self.page.extend(whole);
        }
        let page = std::mem::take(&mut self.page);
        if !self.sampling {
            self.whole.extend(page);
            return false;
        }
        let share = page.len().div_ceil(Self::SHARE);
        self.choose(page, share);
        self.is_full()
    }

    /// Whether as much was found as one call removes.
    fn is_full(&self) -> bool {
        let enough = self.expired_bytes.saturating_add(self.chosen_bytes) >= self.what.bytes;
        self.chosen.len() >= 2 * Self::WHOLE || (enough && self.what.unused_since.is_none())
    }

    fn choose(&mut self, mut from: Vec<Candidate<K>>, most: usize) {
        longest_unused_first(&mut from);
        for candidate in from.into_iter().take(most) {
            if self.expired_bytes.saturating_add(self.chosen_bytes) >= self.what.bytes {
                return;
            }
            self.chosen_bytes += candidate.size;
            self.chosen.push(candidate);
        }
    }

    /// What goes. `lag`: see [`lag`].
    pub fn victims(mut self, lag: u64) -> Victims<K> {
        let whole = std::mem::take(&mut self.whole);
        let all = whole.len();
        self.choose(whole, all);
        let mut chunks = self.chosen;
        // In this order, where the removal is cut short.
        longest_unused_first(&mut chunks);
        let newest = chunks.last().map_or(0, |candidate| candidate.used + 1);
        let expired = self.what.unused_since.unwrap_or(0);
        let manifests_before = if newest == 0 { expired } else { newest.saturating_add(lag).max(expired) };
        Victims { chunks, manifests_before }
    }
}

/// In one function that is not inlined: a sort is kilobytes of code, which the host compiles when it opens the store.
#[inline(never)]
fn longest_unused_first<K>(candidates: &mut [Candidate<K>]) {
    candidates.sort_unstable_by_key(|candidate| candidate.used);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Eviction {
        Eviction { bytes, unused_since, keep_since }
    }

    fn evict(what: Eviction, entries: impl IntoIterator<Item = (u64, u64)>) -> Victims<u64> {
        let mut candidates = Candidates::new(what);
        for (key, (size, used)) in (0..).zip(entries) {
            candidates.add(Candidate { key, size, used });
        }
        candidates.end_page();
        candidates.victims(5)
    }

    #[test]
    fn the_oldest_go_until_it_is_enough() {
        let victims = evict(eviction(25, None, 1000), [(10, 3), (10, 1), (10, 2), (10, 4)]);
        let used: Vec<u64> = victims.chunks.iter().map(|victim| victim.used).collect();
        assert_eq!(used, [1, 2, 3]);
        assert_eq!(victims.manifests_before, 3 + 1 + 5);
    }

    #[test]
    fn what_was_stored_lately_stays_and_what_is_expired_goes() {
        let victims = evict(eviction(1000, None, 2), [(10, 3), (10, 1), (10, 2), (10, 4)]);
        assert_eq!(victims.chunks.len(), 2);
        let victims = evict(eviction(0, Some(3), 1000), [(10, 3), (10, 1), (10, 2), (10, 4)]);
        assert_eq!(victims.chunks.iter().map(|victim| victim.used).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(victims.manifests_before, 8);
        // Expired manifests go where no chunk does.
        assert_eq!(evict(eviction(0, Some(3), 1000), []).manifests_before, 3);
        assert_eq!(evict(eviction(9, None, 1000), []).manifests_before, 0);
    }

    #[test]
    fn a_large_store_is_sampled_and_what_goes_is_old() {
        const PAGES: u64 = 64;
        // No divisor of `WHOLE`, which pages pass and need not meet.
        const PAGE: u64 = 1000;
        // Ages are spread over the keys.
        let used = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let total = PAGES * PAGE;
        let what = eviction(total / 20, None, u64::MAX);
        let mut candidates = Candidates::new(what);
        let mut pages = 0;
        for page in 0..PAGES {
            (0..PAGE).for_each(|at| {
                let key = page * PAGE + at;
                candidates.add(Candidate { key, size: 1, used: used(key) });
            });
            pages += 1;
            if candidates.end_page() {
                break;
            }
        }
        assert!(pages < PAGES, "not all of it is listed");
        let victims = candidates.victims(0);
        assert!(victims.chunks.len() as u64 >= total / 20);
        let mut all: Vec<u64> = (0..total).map(used).collect();
        all.sort_unstable();
        let eighth = all[total as usize / 8];
        let young = victims.chunks.iter().filter(|victim| victim.used > eighth + eighth / 5).count();
        assert!(young * 100 <= victims.chunks.len(), "{young} of {} are not among the oldest", victims.chunks.len());
        assert!(victims.chunks.is_sorted_by_key(|victim| victim.used));
    }

    #[test]
    fn times_lag_by_a_minute_or_by_what_chunks_are_kept_for() {
        const SECOND: u64 = 1_000_000_000;
        let now = 1000 * SECOND;
        assert_eq!(lag(&eviction(1, None, now - 7 * SECOND), now), 7 * SECOND);
        assert_eq!(lag(&eviction(1, None, now), now), SECOND);
        assert_eq!(lag(&eviction(1, None, u64::MAX), now), 60 * SECOND);
        assert_eq!(lag(&eviction(1, None, 0), now), 60 * SECOND);
    }
}
