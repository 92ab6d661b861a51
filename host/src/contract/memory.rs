//! The bytes of `memory_bytes` that one instance has taken: by the [`Limiter`](super::limiter::Limiter) for what wasmtime makes, and by
//! the host for what it holds on the instance's behalf.
//!
//! Invariant: bytes that the host holds for an instance across a wait are taken before they are allocated, from the instance and from the
//! shares of its store, its owner and the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Access;
use crate::error::{Error, ErrorKind};
use crate::limits;

/// What one instance may have and has.
pub(in crate::contract) struct Memory {
    access: Arc<Access>,
    used: AtomicU64,
    limit: u64,
}

impl Memory {
    pub(in crate::contract) fn new(access: Arc<Access>) -> Arc<Self> {
        let limit = access.reach.limits.memory_bytes;
        Arc::new(Memory { access, used: AtomicU64::new(0), limit })
    }

    /// Take bytes, and leave what is kept for reads.
    pub(in crate::contract) fn take_to_put(&self, bytes: usize) -> Result<(), Error> {
        let (kept, used, limit) = (self.limit / limits::READ_FRACTION, self.used.load(Relaxed), self.limit);
        if (bytes as u64).saturating_add(kept) > limit.saturating_sub(used) {
            let message = format!(
                "memory limit exceeded: {used} held + {bytes} requested > memory_bytes = {limit}, of which {kept} are kept for reads"
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        self.take(bytes)
    }

    /// Take bytes. `Exhausted`, and nothing is taken, where so much is not left.
    pub(in crate::contract) fn take(&self, bytes: usize) -> Result<(), Error> {
        let (bytes, limit) = (bytes as u64, self.limit);
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        if let Err(used) = self.used.try_update(Relaxed, Relaxed, fits) {
            let message = format!("memory limit exceeded: {used} held + {bytes} requested > memory_bytes = {limit}");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        self.access.reach.shares.memory_bytes.take(bytes).inspect_err(|_| {
            self.used.fetch_sub(bytes, Relaxed);
        })
    }

    pub(in crate::contract) fn give_back(&self, bytes: usize) {
        let bytes = bytes as u64;
        let given = self.used.try_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(bytes)));
        let given = given.map_or(0, |used| used.min(bytes));
        self.access.reach.shares.memory_bytes.give_back(given);
    }

    /// Take bytes until the answer is dropped.
    pub(in crate::contract) fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, Error> {
        self.take(bytes)?;
        Ok(Charge { memory: self.clone(), bytes })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.access.reach.shares.memory_bytes.give_back(self.used.load(Relaxed));
    }
}

/// Bytes of an instance's memory that the host holds for it; given back when dropped.
pub(in crate::contract) struct Charge {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Charge {
    /// Have so many bytes in all, which are more than before.
    pub(in crate::contract) fn raise(&mut self, bytes: usize) -> Result<(), Error> {
        self.memory.take(bytes.saturating_sub(self.bytes))?;
        self.bytes = self.bytes.max(bytes);
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

/// Bytes on their way to the guest. Those beyond the first [`limits::RECEIVE_BUFFER_BYTES`], for which a connection counts, are taken
/// before there is memory for them.
pub(in crate::contract) struct Arriving {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Arriving {
    pub(in crate::contract) fn new(memory: &Arc<Memory>) -> Result<Self, Error> {
        Ok(Arriving { bytes: Vec::new(), charge: memory.charge(0)? })
    }

    /// Make room for `len` bytes in all.
    pub(in crate::contract) fn reserve(&mut self, len: usize) -> Result<(), Error> {
        if len <= self.bytes.capacity() {
            return Ok(());
        }
        self.charge.raise(len.saturating_sub(limits::RECEIVE_BUFFER_BYTES))?;
        self.bytes
            .try_reserve_exact(len - self.bytes.len())
            .map_err(|_| Error::new(ErrorKind::Exhausted, format!("out of memory: cannot allocate {len} bytes")))
    }

    /// Add bytes, of which there may be `most` in all.
    pub(in crate::contract) fn push(&mut self, bytes: &[u8], most: usize) -> Result<(), Error> {
        let len = self.bytes.len().saturating_add(bytes.len());
        if len > self.bytes.capacity() {
            self.reserve(len.max(self.bytes.capacity().saturating_mul(2).min(most)))?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub(in crate::contract) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes, which are about to become the guest's.
    pub(in crate::contract) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::tests::{access, budgets, limited};

    const KIB: usize = 1 << 10;

    #[test]
    fn what_arrives_is_taken_before_it_is_there_and_given_back() {
        let access = access(limited(|limits| limits.memory_bytes = 256 * KIB as u64), &budgets(0, 0));
        let memory = Memory::new(access.clone());
        let used = || access.reach.shares.memory_bytes.used() as usize;
        let mut line = Arriving::new(&memory).unwrap();
        line.push(&[1; 64 * KIB], usize::MAX).unwrap();
        assert_eq!(used(), 0, "the connection counts for these");
        line.push(&[2; KIB], 100 * KIB).unwrap();
        assert_eq!((line.len(), used()), (65 * KIB, 36 * KIB), "as much as there is memory for");
        let refused = line.push(&[3; 300 * KIB], usize::MAX).unwrap_err();
        assert!(refused.kind() == ErrorKind::Exhausted && refused.to_string().contains("memory_bytes = 262144"));
        assert_eq!((line.len(), used()), (65 * KIB, 36 * KIB), "a refusal changes nothing");
        assert_eq!(line.finish().len(), 65 * KIB);
        assert_eq!(used(), 0);
        drop(memory.charge(100 * KIB).unwrap());
        assert_eq!(used(), 0);
        memory.take(KIB).unwrap();
        drop(memory);
        assert_eq!(used(), 0, "what an instance had goes with it");
    }
}
