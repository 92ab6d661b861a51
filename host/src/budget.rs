//! What all stores of the process may have together, and what one of them may have of it: counts that are taken from and
//! given back, and never overdrawn.
//!
//! Invariant: a store holds no more than its share, whatever its component does, so that what is left serves the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::process::{Resource, getrlimit};

use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};

pub(crate) struct Budget {
    used: AtomicU64,
    limit: u64,
}

/// The bounds of the process.
pub(crate) struct Budgets {
    /// Payload bytes that instances hold.
    pub payload_bytes: Budget,
    /// What instances cost beside them: linear memory, tables, globals, handles.
    pub memory_bytes: Budget,
    /// Descriptors that are open for components: connections, and the files and sockets of WASI.
    pub descriptors: Budget,
    /// Open connections, the idle ones included. Counted only: each is a descriptor.
    pub connections: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        // The rest is the consumer's. No limit: `None`.
        let files = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |files| files / limits::DESCRIPTOR_FRACTION);
        let space = getrlimit(Resource::As).current.map_or(u64::MAX, |bytes| bytes / limits::ADDRESS_SPACE_FRACTION);
        Budgets {
            payload_bytes: Budget::new(limits::PROCESS_PAYLOAD_BYTES.min(space)),
            memory_bytes: Budget::new(limits::PROCESS_MEMORY_BYTES.min(space)),
            descriptors: Budget::new(limits::PROCESS_DESCRIPTORS.min(files)),
            connections: Budget::new(u64::MAX),
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

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}

/// What one store may have of a budget of the process.
pub(crate) struct Share {
    /// What it is of, in plural, for messages.
    what: &'static str,
    process: &'static Budget,
    store: Budget,
}

/// What one store has of each budget.
pub(crate) struct Shares {
    pub payload_bytes: Share,
    pub memory_bytes: Share,
    pub descriptors: Arc<Share>,
    pub connections: &'static Budget,
}

impl Shares {
    pub(crate) fn of(budgets: &'static Budgets, limits: &Limits) -> Self {
        // What the operator allows one instance is never out of its reach.
        let bytes = |what, process: &'static Budget, instance: u64| {
            let store = Budget::new((process.limit / limits::STORE_MEMORY_FRACTION).max(instance));
            Share { what, process, store }
        };
        let descriptors = Budget::new((budgets.descriptors.limit / limits::STORE_DESCRIPTORS_FRACTION).max(1));
        Shares {
            payload_bytes: bytes("payload bytes", &budgets.payload_bytes, limits.payload_bytes),
            memory_bytes: bytes("bytes of memory", &budgets.memory_bytes, limits.memory_bytes),
            descriptors: Arc::new(Share { what: "descriptors", process: &budgets.descriptors, store: descriptors }),
            connections: &budgets.connections,
        }
    }
}

impl Share {
    /// Take from it. `Exhausted`, and nothing is taken, where so much is not left.
    pub(crate) fn take(&self, amount: u64) -> Result<(), Error> {
        let full = |whose: &str, budget: &Budget| {
            let (what, used, most) = (self.what, budget.used(), budget.limit);
            let message = format!("{amount} {what} more than the {used} held are over what {whose} may hold ({most})");
            Err(Error::new(ErrorKind::Exhausted, message))
        };
        if !self.store.take(amount) {
            return full("one store of the process", &self.store);
        }
        if !self.process.take(amount) {
            self.store.give_back(amount);
            return full("all stores of the process together", self.process);
        }
        Ok(())
    }

    pub(crate) fn give_back(&self, amount: u64) {
        self.store.give_back(amount);
        self.process.give_back(amount);
    }

    /// One of it, until the answer is dropped.
    pub(crate) fn permit(self: &Arc<Self>) -> Result<Permit, Error> {
        self.take(1)?;
        Ok(Permit(self.clone()))
    }

    /// What the store has of it now.
    pub(crate) fn used(&self) -> u64 {
        self.store.used()
    }
}

/// One of a share.
pub(crate) struct Permit(Arc<Share>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

/// A connection of a store: one of its descriptors, and counted among the connections.
pub(crate) struct ConnectionPermit {
    connections: &'static Budget,
    _descriptor: Permit,
}

impl Shares {
    pub(crate) fn connection(&self) -> Result<ConnectionPermit, Error> {
        let descriptor = self.descriptors.permit()?;
        // It has no bound of its own.
        let _ = self.connections.take(1);
        Ok(ConnectionPermit { connections: self.connections, _descriptor: descriptor })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.give_back(1);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Budgets of so many payload bytes and descriptors, for one test.
    pub(crate) fn budgets(payload_bytes: u64, descriptors: u64) -> &'static Budgets {
        Box::leak(Box::new(Budgets {
            payload_bytes: Budget::new(payload_bytes),
            descriptors: Budget::new(descriptors),
            ..Budgets::default()
        }))
    }

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
        assert!(!BUDGET.take(101) && !BUDGET.take(u64::MAX) && BUDGET.take(100));
    }

    #[test]
    fn one_store_has_its_share_and_leaves_the_rest_to_others() {
        let budgets = budgets(100, 8);
        let small = Limits { payload_bytes: 10, memory_bytes: 10, ..Limits::default() };
        let (one, other) = (Shares::of(budgets, &small), Shares::of(budgets, &small));
        let held: Vec<Permit> = (0..2).map(|_| one.descriptors.permit().unwrap()).collect();
        let refused = one.descriptors.permit().err().unwrap();
        assert!(refused.to_string().contains("one store of the process may hold (2)"), "{refused}");
        let further: Vec<ConnectionPermit> = (0..2).map(|_| other.connection().unwrap()).collect();
        assert_eq!((budgets.descriptors.used(), budgets.connections.used()), (4, 2));
        drop((held, further));
        assert_eq!((budgets.descriptors.used(), budgets.connections.used()), (0, 0));

        one.payload_bytes.take(50).unwrap();
        let refused = one.payload_bytes.take(1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exhausted);
        other.payload_bytes.take(50).unwrap();
        let third = Shares::of(budgets, &small).payload_bytes;
        let refused = third.take(1).unwrap_err();
        assert!(refused.to_string().contains("all stores of the process together may hold (100)"), "{refused}");
        assert_eq!((one.payload_bytes.used(), third.used()), (50, 0));
        // What one instance is allowed by name, a store may have.
        let large = Limits { payload_bytes: 90, ..small };
        one.payload_bytes.give_back(50);
        other.payload_bytes.give_back(50);
        Shares::of(budgets, &large).payload_bytes.take(90).unwrap();
    }

    #[test]
    fn descriptors_stay_below_the_limit_of_the_process() {
        let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let Budgets { descriptors, .. } = Budgets::default();
        assert!(descriptors.limit <= limits::PROCESS_DESCRIPTORS && descriptors.limit <= soft / 2);
    }
}
