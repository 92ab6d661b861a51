//! Memory of an instance. wasmtime's own limiter bounds each memory alone; a guest with many would have many times its
//! limit, so this one sums.

use wasmtime::{ResourceLimiter, Result};

use crate::limits;

pub(super) struct Limiter {
    memory: Sum,
    table_elements: Sum,
}

struct Sum {
    used: usize,
    limit: usize,
}

impl Sum {
    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let Some(used) = self.used.checked_add(desired.saturating_sub(current)) else { return false };
        let fits = used <= self.limit;
        if fits {
            self.used = used;
        }
        fits
    }
}

impl Limiter {
    pub(super) fn new(memory_bytes: usize) -> Self {
        Limiter {
            memory: Sum { used: 0, limit: memory_bytes },
            table_elements: Sum { used: 0, limit: limits::MAX_TABLE_ELEMENTS },
        }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        // What its own maximum refuses must not count.
        Ok(maximum.is_none_or(|maximum| desired <= maximum) && self.memory.grow(current, desired))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        Ok(maximum.is_none_or(|maximum| desired <= maximum) && self.table_elements.grow(current, desired))
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

    #[test]
    fn memories_are_summed() {
        let mut limiter = Limiter::new(100);
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.memory_growing(60, 100, None).unwrap());
        assert!(!limiter.memory_growing(100, 101, None).unwrap());
    }

    #[test]
    fn what_a_memory_refuses_itself_does_not_count() {
        let mut limiter = Limiter::new(100);
        assert!(!limiter.memory_growing(0, 90, Some(50)).unwrap());
        assert!(limiter.memory_growing(0, 90, None).unwrap());
    }
}
