//! What all instances of the process may have together: a count that is taken from and given back, and never overdrawn.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limits;

pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
}

/// The bounds of the process.
pub(crate) struct Budgets {
    /// Payload bytes that instances hold.
    pub payload_bytes: Budget,
    /// Open connections, the idle ones included.
    pub connections: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            payload_bytes: Budget::new(limits::PROCESS_PAYLOAD_BYTES),
            connections: Budget::new(limits::PROCESS_CONNECTIONS),
        }
    }
}

impl Budget {
    pub(crate) const fn new(limit: u64) -> Self {
        Budget { used: AtomicU64::new(0), limit }
    }

    /// Take from it. False, and nothing is taken, where so much is not left.
    #[must_use]
    pub(crate) fn take(&self, amount: u64) -> bool {
        let fits = |used: u64| used.checked_add(amount).filter(|used| *used <= self.limit);
        amount == 0 || self.used.try_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Give back what was taken.
    pub(crate) fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Relaxed);
    }

    /// One of it, until the answer is dropped.
    pub(crate) fn permit(&'static self) -> Option<Permit> {
        self.take(1).then(|| Permit(self))
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// One of a budget.
pub(crate) struct Permit(&'static Budget);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_overdrawn() {
        static BUDGET: Budget = Budget::new(100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if BUDGET.take(30) {
                            assert!(BUDGET.used() <= 100);
                            BUDGET.give_back(30);
                        }
                    }
                });
            }
        });
        assert_eq!(BUDGET.used(), 0);
        assert!(!BUDGET.take(101) && !BUDGET.take(u64::MAX) && BUDGET.take(99));
        let last = BUDGET.permit();
        assert!(last.is_some() && BUDGET.permit().is_none());
        assert_eq!(BUDGET.used(), 100);
        drop(last);
        assert!(BUDGET.permit().is_some());
    }
}
