//! What all stores of the process may have together, what those of one backend or tenant may have of it, and what one of
//! them: counts that are taken from and given back, and never overdrawn.
//!
//! Invariant: a store holds no more than its share, and all stores of a backend or tenant no more than theirs, whatever the
//! component does and however many URIs it is opened by, so that what is left serves the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use kv_platform::sync::Mutex;
use rustix::process::{Resource, getrlimit};

pub struct Budget {
    used: AtomicU64,
    limit: u64,
}

/// The bounds of the process.
pub struct Budgets {
    /// Payload bytes that instances hold.
    pub payload_bytes: Budget,
    /// What instances cost beside them: linear memory, tables, globals, handles.
    pub memory_bytes: Budget,
    /// Descriptors that are open for components: connections, and the files and sockets of WASI.
    pub descriptors: Budget,
    /// Open connections, the idle ones included. Counted only: each is a descriptor.
    pub connections: Budget,
    /// Bytes in the write buffers of all handles.
    pub write_buffers: Budget,
    /// Who can do without descriptors.
    pub idle: IdleDescriptors,
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
            write_buffers: Budget::new(limits::PROCESS_WRITE_BUFFER_BYTES),
            idle: IdleDescriptors::default(),
        }
    }
}

/// What a store keeps open for its next calls.
pub trait Idle: Send + Sync {
    /// Close what no call uses.
    fn close(&self);
}

/// What stores keep open for their next calls, each with the share that it is of. It goes where a bound would refuse what a call needs.
#[derive(Default)]
pub struct IdleDescriptors(Mutex<Vec<OfShare>>);

/// The share that something idle is of.
type OfShare = (Weak<Share>, Weak<dyn Idle>);

impl IdleDescriptors {
    pub fn add(&self, share: &Arc<Share>, idle: Weak<dyn Idle>) {
        let mut all = self.0.lock();
        all.retain(|(_, idle)| idle.strong_count() > 0);
        all.push((Arc::downgrade(share), idle));
    }

    /// Close those of the stores that `share` is bounded together with at this bound.
    fn close(&self, share: &Share, bound: BoundLevel) {
        let together = |other: &Share| match bound {
            BoundLevel::Store => std::ptr::eq(other, share),
            BoundLevel::Owner => Arc::ptr_eq(&other.owner, &share.owner),
            BoundLevel::Process => true,
        };
        let of_share =
            |(other, idle): &OfShare| other.upgrade().filter(|other| together(other)).and_then(|_| idle.upgrade());
        // Closed without the lock, which whoever opens a store waits for.
        let idle: Vec<Arc<dyn Idle>> = self.0.lock().iter().filter_map(of_share).collect();
        idle.iter().for_each(|idle| idle.close());
    }
}

impl Budgets {
    /// What stores without a handle may hold together: half of what one owner may have, so that its other half serves those that
    /// are used.
    pub fn most_idle_bytes(&self) -> u64 {
        limits::IDLE_STORE_BYTES.min(self.memory_bytes.limit / limits::OWNER_FRACTION / 2)
    }
}

impl Budget {
    pub const fn new(limit: u64) -> Self {
        Budget { used: AtomicU64::new(0), limit }
    }

    /// Take from it. False, and nothing is taken, where so much is not left.
    #[must_use]
    pub fn take(&self, amount: u64) -> bool {
        self.take_within(amount, self.limit)
    }

    fn take_within(&self, amount: u64, limit: u64) -> bool {
        let fits = |used: u64| used.checked_add(amount).filter(|used| *used <= limit);
        amount == 0 || self.used.try_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Give back what was taken.
    pub fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Relaxed);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}

/// Whose stores are bounded together: those of a tenant, or of a backend where it has no tenants.
pub struct Owner {
    payload_bytes: Budget,
    memory_bytes: Budget,
    descriptors: Budget,
    write_buffers: Budget,
}

impl Default for Owner {
    fn default() -> Self {
        // Counts; how far each goes is a matter of the share that is taken from.
        let count = || Budget::new(u64::MAX);
        Owner { payload_bytes: count(), memory_bytes: count(), descriptors: count(), write_buffers: count() }
    }
}

/// Those that have open stores, by backend and tenant.
#[derive(Default)]
pub struct Owners(Mutex<HashMap<OwnerName, Weak<Owner>>>);

type OwnerName = (String, Option<String>);

impl Owners {
    pub fn get(&self, backend: &str, tenant: Option<&str>) -> Arc<Owner> {
        let mut owners = self.0.lock();
        let key = (backend.to_owned(), tenant.map(str::to_owned));
        if let Some(owner) = owners.get(&key).and_then(Weak::upgrade) {
            return owner;
        }
        owners.retain(|_, owner| owner.strong_count() > 0);
        let owner = Arc::default();
        owners.insert(key, Arc::downgrade(&owner));
        owner
    }
}

/// What one store may have of a budget of the process.
pub struct Share {
    /// What it is of, in plural, for messages.
    what: &'static str,
    budgets: Arc<Budgets>,
    of_process: fn(&Budgets) -> &Budget,
    owner: Arc<Owner>,
    of_owner: fn(&Owner) -> &Budget,
    /// What all stores of the owner may have.
    owner_limit: u64,
    store: Budget,
}

/// What one store has of each budget.
pub struct Shares {
    pub payload_bytes: Share,
    pub memory_bytes: Share,
    pub descriptors: Arc<Share>,
    /// Those of the process.
    pub budgets: Arc<Budgets>,
    /// What waits in the buffers of its handles.
    pub write_buffers: Share,
}

impl Shares {
    pub fn of(budgets: &Arc<Budgets>, owner: &Arc<Owner>, limits: &Limits) -> Self {
        // What the operator allows one instance is never out of its reach.
        let share = |what, of_process: fn(&Budgets) -> &Budget, of_owner: fn(&Owner) -> &Budget, instance: u64| Share {
            what,
            owner: owner.clone(),
            of_owner,
            owner_limit: (of_process(budgets).limit / limits::OWNER_FRACTION).max(instance),
            store: Budget::new((of_process(budgets).limit / limits::STORE_FRACTION).max(instance)),
            budgets: budgets.clone(),
            of_process,
        };
        let Limits { payload_bytes, memory_bytes, .. } = *limits;
        // One store of several handles may have all that is its owner's: what waits is flushed soon, unless its backend is down.
        let waits = budgets.write_buffers.limit / limits::OWNER_FRACTION;
        Shares {
            payload_bytes: share("payload bytes", |all| &all.payload_bytes, |own| &own.payload_bytes, payload_bytes),
            memory_bytes: share("bytes of memory", |all| &all.memory_bytes, |own| &own.memory_bytes, memory_bytes),
            descriptors: Arc::new(share("descriptors", |all| &all.descriptors, |own| &own.descriptors, 1)),
            write_buffers: share("bytes in write buffers", |all| &all.write_buffers, |own| &own.write_buffers, waits),
            budgets: budgets.clone(),
        }
    }
}

/// Which bound is met.
#[derive(Clone, Copy)]
enum BoundLevel {
    Store,
    Owner,
    Process,
}

impl Share {
    /// Take from it. `Exhausted`, and nothing is taken, where so much is not left.
    pub fn take(&self, amount: u64) -> Result<(), Error> {
        self.take_within_all(amount).map_err(|bound| {
            let (budget, most, whose) = match bound {
                BoundLevel::Store => (&self.store, self.store.limit, "one store of the process"),
                BoundLevel::Owner => {
                    ((self.of_owner)(&self.owner), self.owner_limit, "all stores of one backend or tenant together")
                }
                BoundLevel::Process => {
                    let process = (self.of_process)(&self.budgets);
                    (process, process.limit, "all stores of the process together")
                }
            };
            let (what, used) = (self.what, budget.used());
            let message = format!("limit of {what} exceeded: {used} held + {amount} requested > {most} for {whose}");
            Error::new(ErrorKind::Exhausted, message)
        })
    }

    /// Nothing is taken where a bound is met.
    fn take_within_all(&self, amount: u64) -> Result<(), BoundLevel> {
        if !self.store.take(amount) {
            return Err(BoundLevel::Store);
        }
        let owner = (self.of_owner)(&self.owner);
        if !owner.take_within(amount, self.owner_limit) {
            self.store.give_back(amount);
            return Err(BoundLevel::Owner);
        }
        if !(self.of_process)(&self.budgets).take(amount) {
            self.store.give_back(amount);
            owner.give_back(amount);
            return Err(BoundLevel::Process);
        }
        Ok(())
    }

    pub fn give_back(&self, amount: u64) {
        self.store.give_back(amount);
        (self.of_owner)(&self.owner).give_back(amount);
        (self.of_process)(&self.budgets).give_back(amount);
    }

    /// One descriptor, until the answer is dropped. Where a bound is met, what is idle under that bound is closed first.
    pub fn permit(self: &Arc<Self>) -> Result<Permit, Error> {
        if let Err(bound) = self.take_within_all(1) {
            self.budgets.idle.close(self, bound);
            self.take(1)?;
        }
        Ok(Permit(self.clone()))
    }

    /// What the store has of it now.
    pub fn used(&self) -> u64 {
        self.store.used()
    }
}

/// One of a share of descriptors.
pub struct Permit(Arc<Share>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back(1);
    }
}

/// A connection of a store: one of its descriptors, and counted among the connections.
pub struct ConnectionPermit {
    budgets: Arc<Budgets>,
    _descriptor: Permit,
}

impl Shares {
    pub fn connection(&self) -> Result<ConnectionPermit, Error> {
        let descriptor = self.descriptors.permit()?;
        // It has no bound of its own.
        let _ = self.budgets.connections.take(1);
        Ok(ConnectionPermit { budgets: self.budgets.clone(), _descriptor: descriptor })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.budgets.connections.give_back(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Budgets of so many payload bytes and descriptors, for one test.
    fn budgets(payload_bytes: u64, descriptors: u64) -> Arc<Budgets> {
        Arc::new(Budgets {
            payload_bytes: Budget::new(payload_bytes),
            descriptors: Budget::new(descriptors),
            ..Budgets::default()
        })
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
    fn one_store_has_its_share_and_so_has_its_owner() {
        let budgets = budgets(100, 8);
        let small = Limits { payload_bytes: 10, memory_bytes: 10, ..Limits::default() };
        let owners = Owners::default();
        let of = |tenant| Shares::of(&budgets, &owners.get("redis", tenant), &small);
        let stores = [of(Some("a")), of(Some("a")), of(Some("a"))];
        let refused = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();

        let mut held: Vec<Permit> = (0..2).map(|_| stores[0].descriptors.permit().unwrap()).collect();
        let full = refused(stores[0].descriptors.permit().map(drop));
        assert!(full.contains("> 2 for one store of the process"), "{full}");
        held.extend((0..2).map(|_| stores[1].descriptors.permit().unwrap()));
        // However many stores it opens.
        let full = refused(stores[2].descriptors.permit().map(drop));
        assert!(full.contains("> 4 for all stores of one backend or tenant together"), "{full}");
        let further: Vec<ConnectionPermit> = (0..2).map(|_| of(None).connection().unwrap()).collect();
        assert_eq!((budgets.descriptors.used(), budgets.connections.used()), (6, 2));
        drop((held, further));
        assert_eq!((budgets.descriptors.used(), budgets.connections.used()), (0, 0));

        for (tenant, most) in [("a", [25, 25]), ("b", [25, 25])] {
            for bytes in most {
                of(Some(tenant)).payload_bytes.take(bytes).unwrap();
            }
        }
        let full = refused(of(Some("c")).payload_bytes.take(1));
        assert!(full.contains("> 100 for all stores of the process together"), "{full}");
    }

    /// Descriptors that a store keeps.
    struct Kept(Mutex<Vec<Permit>>);

    impl Idle for Kept {
        fn close(&self) {
            self.0.lock().clear();
        }
    }

    #[test]
    fn what_is_idle_goes_before_a_bound_refuses_what_is_needed() {
        let budgets = budgets(100, 8);
        let owners = Owners::default();
        let of = |tenant| Shares::of(&budgets, &owners.get("s3", tenant), &Limits::default()).descriptors;
        let keep = |share: &Arc<Share>, count: usize| {
            let kept = Arc::new(Kept(Mutex::new((0..count).map(|_| share.permit().unwrap()).collect())));
            let weak: Weak<Kept> = Arc::downgrade(&kept);
            budgets.idle.add(share, weak);
            kept
        };
        let left = |all: &[&Arc<Kept>]| all.iter().map(|kept| kept.0.lock().len()).collect::<Vec<_>>();

        // A store's bound is 2, its owner's 4, the process's 8.
        let [one, two, three] = [of(Some("a")), of(Some("a")), of(Some("a"))];
        let (of_one, of_two) = (keep(&one, 1), keep(&two, 2));
        let used = one.permit().unwrap();
        let more = one.permit().unwrap();
        assert_eq!(left(&[&of_one, &of_two]), [0, 2], "its own go where its own bound is met");
        let third = three.permit().unwrap();
        assert_eq!(left(&[&of_two]), [0], "those of its owner where its owner's is");
        let full = one.permit().err().unwrap().to_string();
        assert!(full.contains("2 held + 1 requested > 2 for one store"), "what is used stays: {full}");

        let [of_b, of_c] = [keep(&of(Some("b")), 2), keep(&of(Some("c")), 2)];
        let rest = three.permit().unwrap();
        assert_eq!(budgets.descriptors.used(), 8);
        let _another = of(Some("d")).permit().unwrap();
        assert_eq!(left(&[&of_b, &of_c]), [0, 0], "and all where the process's is");
        drop((used, more, third, rest));
        assert_eq!(budgets.descriptors.used(), 1);
    }

    #[test]
    fn what_one_instance_is_allowed_a_store_may_have() {
        let budgets = budgets(100, 8);
        let large = Limits { payload_bytes: 90, ..Limits::default() };
        let shares = Shares::of(&budgets, &Arc::default(), &large);
        shares.payload_bytes.take(90).unwrap();
        assert_eq!(shares.payload_bytes.used(), 90);
        shares.payload_bytes.give_back(90);
        assert_eq!((shares.payload_bytes.used(), budgets.payload_bytes.used()), (0, 0));
    }

    /// A tenant whose backend is down, with as many handles and stores as it likes, leaves the others what is theirs.
    #[test]
    fn write_buffers_of_one_owner_leave_those_of_others_their_share() {
        let budgets = budgets(100, 8);
        let owners = Owners::default();
        let of = |tenant| Shares::of(&budgets, &owners.get("redis", tenant), &Limits::default());
        let stores = [of(Some("down")), of(Some("down"))];
        let handle = limits::WRITE_BUFFER_BYTES as u64;
        let filled = (0..8).filter(|number| stores[number % 2].write_buffers.take(handle).is_ok()).count();
        assert_eq!(filled, 4, "of 8 handles with 64 MiB each, half of the process's 512 MiB");
        let full = stores[0].write_buffers.take(1).unwrap_err().to_string();
        assert!(full.contains("> 268435456 for all stores of one backend or tenant together"), "{full}");
        for tenant in [Some("well"), None] {
            assert!((0..2).all(|_| of(tenant).write_buffers.take(handle).is_ok()), "{tenant:?}");
        }
        let alone = Shares::of(&self::tests::budgets(100, 8), &owners.get("redis", Some("alone")), &Limits::default());
        assert!((0..4).all(|_| alone.write_buffers.take(handle).is_ok()), "one store may have all of its owner's");
    }

    #[test]
    fn stores_without_a_handle_hold_a_quarter_of_the_memory_at_most() {
        let of = |bytes| Budgets { memory_bytes: Budget::new(bytes), ..Budgets::default() }.most_idle_bytes();
        assert_eq!((of(1000), of(u64::MAX)), (250, limits::IDLE_STORE_BYTES));
    }

    #[test]
    fn descriptors_stay_below_the_limit_of_the_process() {
        let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let Budgets { descriptors, .. } = Budgets::default();
        assert!(descriptors.limit <= limits::PROCESS_DESCRIPTORS && descriptors.limit <= soft / 2);
    }
}
