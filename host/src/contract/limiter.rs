//! What an instance costs beside its payloads. wasmtime's own limiter bounds each memory alone; a guest with many would
//! have many times its limit, and has tables, globals and handles beside them. This one sums all of it, and takes each byte
//! from the share of the store too.

use std::sync::Arc;

use wasmtime::{ResourceLimiter, Result};

use super::memory::Memory;
use crate::limits;

pub(super) struct Limiter {
    memory: Arc<Memory>,
    table_elements: usize,
    /// What the last growth that was allowed took: it is given back where it fails for another reason.
    last: usize,
}

impl Limiter {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        Limiter { memory, table_elements: 0, last: 0 }
    }

    fn grow(&mut self, bytes: usize) -> bool {
        let taken = self.memory.take(bytes).is_ok();
        self.last = if taken { bytes } else { 0 };
        taken
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        // What its own maximum refuses must not count.
        self.last = 0;
        Ok(maximum.is_none_or(|maximum| desired <= maximum) && self.grow(desired.saturating_sub(current)))
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> Result<()> {
        let last = std::mem::take(&mut self.last);
        self.memory.give_back(last);
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        let more = desired.saturating_sub(current);
        let elements = self.table_elements.saturating_add(more);
        let fits = maximum.is_none_or(|maximum| desired <= maximum)
            && elements <= limits::MAX_TABLE_ELEMENTS
            && self.grow(more.saturating_mul(limits::TABLE_ELEMENT_BYTES));
        if fits {
            self.table_elements = elements;
        }
        Ok(fits)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> Result<()> {
        self.memory_grow_failed(error)
    }

    fn instances(&self) -> usize {
        limits::MAX_CORE_INSTANCES
    }

    fn memories(&self) -> usize {
        limits::MAX_MEMORIES
    }

    fn tables(&self) -> usize {
        limits::MAX_TABLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::tests::{access, budgets, limited};

    fn limiter(memory_bytes: u64) -> Limiter {
        Limiter::new(Memory::new(access(limited(|limits| limits.memory_bytes = memory_bytes), &budgets(0, 0))))
    }

    #[test]
    fn memories_tables_and_handles_are_summed() {
        let mut limiter = limiter(1000);
        assert!(limiter.memory_growing(0, 600, None).unwrap());
        assert!(!limiter.memory_growing(0, 600, None).unwrap());
        assert!(limiter.table_growing(0, 10, None).unwrap());
        assert!(!limiter.table_growing(10, 26, None).unwrap());
        limiter.memory.take(240).unwrap();
        let refused = limiter.memory.take(1).unwrap_err();
        assert!(refused.to_string().contains("memory_bytes = 1000"), "{refused}");
        limiter.memory.give_back(240);
        assert!(limiter.memory_growing(600, 840, None).unwrap());
        assert!(!limiter.memory_growing(840, 841, None).unwrap());
    }

    #[test]
    fn what_did_not_come_does_not_count() {
        let mut limiter = limiter(100);
        assert!(!limiter.memory_growing(0, 90, Some(50)).unwrap());
        assert!(limiter.memory_growing(0, 90, None).unwrap());
        limiter.memory_grow_failed(wasmtime::Error::msg("no memory")).unwrap();
        assert!(limiter.memory_growing(0, 90, None).unwrap());
    }

    #[test]
    fn what_all_instances_cost_is_bounded_and_given_back() {
        let budgets = std::sync::Arc::new(crate::budget::Budgets {
            memory_bytes: crate::budget::Budget::new(1000),
            ..crate::budget::Budgets::default()
        });
        let small = || access(limited(|limits| limits.memory_bytes = 400), &budgets);
        let store = small();
        let of = |access: &Arc<crate::contract::Access>| Limiter::new(Memory::new(access.clone()));
        let (mut one, mut two) = (of(&store), of(&store));
        assert!(one.memory_growing(0, 400, None).unwrap());
        // A store has no more than one instance is allowed, where a quarter of the process's is less.
        assert!(!two.memory_growing(0, 100, None).unwrap());
        let mut of_other = of(&small());
        assert!(of_other.memory_growing(0, 400, None).unwrap());
        drop((one, two, of_other));
        assert_eq!(budgets.memory_bytes.used(), 0);
    }
}
