//! The slab's counts and the index over it, with loom's atomics and locks in place of the standard library's: every order in which
//! threads can run, and every value that a read may see, within loom's bounds.

#![cfg(test)]

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

    /// As `kv_platform::sync::Mutex`.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

mod key {
    pub use kv_blocks::Key;
}

mod policy {
    pub use kv_blocks::policy::Policy;
}

#[allow(dead_code, reason = "the models use a part")]
#[path = "../../src/slab/pool.rs"]
mod pool;
#[allow(dead_code, reason = "the models use a part")]
#[path = "../../src/near/shard.rs"]
mod shard;

use kv_blocks::policy::{PolicyKind, S3FifoOptions};
use kv_blocks::{Key, KeyBuilder, KeyHash, Keys};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pool::Pool;
use shard::Shard;
use sync::Mutex;

/// A slab whose slots are cells: loom fails where one is read and written without an order between the two.
struct Slab {
    pool: Pool,
    cells: Vec<UnsafeCell<u8>>,
}

// SAFETY: that the cells are used by one writer or many readers is what is tested.
unsafe impl Sync for Slab {}
// SAFETY: as above.
unsafe impl Send for Slab {}

impl Slab {
    fn new(slots: u32) -> Self {
        Slab { pool: Pool::new(slots), cells: (0..slots).map(|_| UnsafeCell::new(0)).collect() }
    }

    /// Take a slot, and fill it as its only holder.
    fn fill(&self, near: usize, value: u8) -> Option<u32> {
        let slot = self.pool.take(near)?;
        // SAFETY: nobody else has it.
        self.cells[slot as usize].with_mut(|cell| unsafe { *cell = value });
        Some(slot)
    }

    fn read(&self, slot: u32) -> u8 {
        // SAFETY: it is shared, and nobody writes it.
        self.cells[slot as usize].with(|cell| unsafe { *cell })
    }
}

fn key(number: i32) -> Key {
    Keys::for_scope(KeyBuilder::Rolling, KeyHash::Xxh3, [0; 16], 1).of(&[], &[number])[0]
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn a_slot_has_one_owner_and_its_readers_are_done_before_the_next() {
    model(|| {
        let slab = Arc::new(Slab::new(1));
        let slot = slab.fill(0, 1).unwrap();
        slab.pool.retain(slot);
        let reader = {
            let slab = slab.clone();
            thread::spawn(move || {
                assert_eq!(slab.read(slot), 1);
                slab.pool.release(slot, 1);
            })
        };
        let next = {
            let slab = slab.clone();
            thread::spawn(move || {
                if let Some(slot) = slab.fill(0, 2) {
                    assert_eq!(slab.read(slot), 2);
                    slab.pool.release(slot, 0);
                }
            })
        };
        assert_eq!(slab.read(slot), 1);
        slab.pool.release(slot, 0);
        reader.join().unwrap();
        next.join().unwrap();
        assert_eq!(slab.pool.in_use(), 0);
        assert!(slab.pool.take(0).is_some() && slab.pool.take(0).is_none());
    });
}

/// One thread reads what the index has, another puts a block in its place: the reader sees the one or the other, whole, and each slot is
/// given back once.
#[test]
fn a_block_that_is_found_stays_while_it_is_given_up() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::Lru] {
        model(move || {
            let slab = Arc::new(Slab::new(2));
            let index = Arc::new(Mutex::new(Shard::new(1, 1, policy.build(1, S3FifoOptions::default()))));
            let first = slab.fill(0, 1).unwrap();
            index.lock().insert(key(1), first, false, |slot| slab.pool.is_shared(slot));
            let reader = {
                let (slab, index) = (slab.clone(), index.clone());
                thread::spawn(move || {
                    let found = {
                        let mut index = index.lock();
                        let found = index.access(&key(1)).map(|(slot, _)| slot);
                        found.inspect(|slot| slab.pool.retain(*slot))
                    };
                    if let Some(slot) = found {
                        assert_eq!(slab.read(slot), 1);
                        slab.pool.release(slot, 0);
                    }
                })
            };
            let second = slab.fill(0, 2).unwrap();
            let inserted = index.lock().insert(key(2), second, false, |slot| slab.pool.is_shared(slot));
            let gone = inserted.evicted.expect("there is room for one");
            assert_eq!(gone.slot, first);
            slab.pool.release(gone.slot, 0);
            // The slot of the first block is free when its reader has gone.
            if let Some(slot) = slab.fill(0, 3) {
                slab.pool.release(slot, 0);
            }
            reader.join().unwrap();
            let left = index.lock().clear();
            assert_eq!(left, [second]);
            slab.pool.release(second, 0);
            assert_eq!(slab.pool.in_use(), 0);
        });
    }
}
