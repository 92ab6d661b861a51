//! The length of the longest recent chunk: the maximum over the last 1,024 to 2,048.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[derive(Default)]
pub(super) struct Lengths {
    young: AtomicUsize,
    old: AtomicUsize,
    seen: AtomicUsize,
}

/// The last so many chunks count, and twice so many at most.
const COUNTED: usize = 1024;

impl Lengths {
    pub(super) fn saw(&self, len: usize) {
        if self.seen.fetch_add(1, Relaxed) % COUNTED == COUNTED - 1 {
            self.old.store(self.young.swap(0, Relaxed), Relaxed);
        }
        self.young.fetch_max(len, Relaxed);
    }

    /// 0: none was seen.
    pub(super) fn longest(&self) -> usize {
        self.young.load(Relaxed).max(self.old.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_counts_and_is_forgotten() {
        let lengths = Lengths::default();
        assert_eq!(lengths.longest(), 0);
        lengths.saw(100);
        (0..COUNTED - 1).for_each(|_| lengths.saw(7));
        assert_eq!(lengths.longest(), 100);
        (0..2 * COUNTED).for_each(|_| lengths.saw(7));
        assert_eq!(lengths.longest(), 7);
    }
}
