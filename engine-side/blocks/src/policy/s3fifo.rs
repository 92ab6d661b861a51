//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), with the parameters of AIBrix.
//!
//! A new entry is in the small queue. At its end an entry that was used `promotion` times is moved to the main queue, and any
//! other is given up, its fingerprint kept in the ghost queue. An entry that comes while its fingerprint is there goes to the
//! main queue at once. At the end of the main queue an entry that was used goes round again, its count lowered by one. The
//! ghost queue has at most as many fingerprints as the cache has entries.

use super::ghost::Ghost;
use super::links::{Links, Queue};
use super::{Policy, S3FifoOptions};

const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// Accesses are counted up to this.
const MAX_HOTNESS: u8 = 3;

/// Gives up what was used once, or not at all, before what was used again. See the paper in this module's text.
pub struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Bytes of the small queue above which it gives up first.
    small_bytes: u64,
    promotion: u8,
}

impl S3Fifo {
    /// For so many bytes in all.
    pub fn new(capacity: u64, options: S3FifoOptions) -> Self {
        S3Fifo {
            links: Links::default(),
            small: Queue::new(SMALL),
            main: Queue::new(MAIN),
            ghost: Ghost::default(),
            small_bytes: (capacity as f64 * options.small_ratio.clamp(0.0, 1.0)) as u64,
            promotion: options.promotion.clamp(1, MAX_HOTNESS),
        }
    }

    /// One step at the end of the small queue.
    fn step_small(&mut self, pinned: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let oldest = self.small.oldest()?;
        if self.links[oldest].hotness >= self.promotion {
            self.small.unlink(&mut self.links, oldest);
            self.links[oldest].hotness = 0;
            self.main.push(&mut self.links, oldest);
            return None;
        }
        if pinned(oldest) {
            self.small.renew(&mut self.links, oldest);
            return None;
        }
        self.small.unlink(&mut self.links, oldest);
        self.ghost.push(self.links[oldest].fingerprint);
        self.ghost.shrink(self.small.len + self.main.len + 1);
        Some(oldest)
    }

    /// One step at the end of the main queue.
    fn step_main(&mut self, pinned: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let oldest = self.main.oldest()?;
        if self.links[oldest].hotness > 0 || pinned(oldest) {
            self.main.renew(&mut self.links, oldest);
            let hotness = &mut self.links[oldest].hotness;
            *hotness = hotness.saturating_sub(1);
            return None;
        }
        self.main.unlink(&mut self.links, oldest);
        Some(oldest)
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, entry: u32, fingerprint: u64, bytes: u64) -> bool {
        self.links.admit(entry, fingerprint, bytes);
        let again = self.ghost.take(fingerprint);
        if again { &mut self.main } else { &mut self.small }.push(&mut self.links, entry);
        again
    }

    fn access(&mut self, entry: u32) -> bool {
        if !self.links.known(entry) {
            return false;
        }
        let link = &mut self.links[entry];
        let former = link.hotness;
        link.hotness = former.saturating_add(1).min(MAX_HOTNESS);
        link.queue == SMALL && former + 1 == self.promotion
    }

    fn remove(&mut self, entry: u32) {
        if !self.links.known(entry) {
            return;
        }
        let queue = if self.links[entry].queue == SMALL { &mut self.small } else { &mut self.main };
        queue.unlink(&mut self.links, entry);
        self.ghost.shrink(self.small.len + self.main.len);
    }

    fn victim(&mut self, pinned: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        // An entry is passed over at most once in the small queue, and once for each of its counted accesses and once more
        // in the main one.
        let steps = self.small.len + (self.small.len + self.main.len) * (usize::from(MAX_HOTNESS) + 2);
        for _ in 0..=steps {
            let victim = match self.small.bytes > self.small_bytes || self.main.len == 0 {
                true => self.step_small(pinned),
                false => self.step_main(pinned),
            };
            if victim.is_some() {
                return victim;
            }
        }
        // All that one queue gives up first is pinned: the other one's turn, whatever their shares.
        for _ in 0..=steps {
            let victim = self.step_main(pinned).or_else(|| self.step_small(pinned));
            if victim.is_some() {
                return victim;
            }
        }
        None
    }

    fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }
}

#[cfg(test)]
impl S3Fifo {
    pub(super) fn ghosts(&self) -> (usize, usize) {
        (self.ghost.len(), self.ghost.places())
    }
}
