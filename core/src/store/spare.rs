//! Memory that chunks waited in, or were restored from, kept for the next ones. Fresh memory costs a page fault for each 4 KiB, which is as much as
//! the copy into it; and what is given back to `malloc` in large pieces it gives back to the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use crate::error::Error;
use crate::limits::SPARE_BYTES;
use crate::payload::{Buffer, Filling};

/// Buffers of one store, of whatever lengths its chunks have.
pub(super) struct Spare {
    buffers: Mutex<Vec<Buffer>>,
    /// Bytes kept in the whole process.
    kept: Arc<AtomicUsize>,
}

impl Spare {
    /// `kept`: the bytes that all stores of the process keep.
    pub(super) fn new(kept: &Arc<AtomicUsize>) -> Self {
        Spare { buffers: Mutex::default(), kept: kept.clone() }
    }

    /// A copy of bytes, in kept memory of that length where there is some.
    pub(super) fn copy(&self, bytes: &[u8]) -> Result<Buffer, Error> {
        let kept = {
            let mut buffers = self.buffers.lock();
            // Chunks of a store are mostly of one length, so the first look finds it.
            let at = buffers.iter().rposition(|buffer| buffer.len() == bytes.len());
            at.map(|at| buffers.swap_remove(at))
        };
        let Some(buffer) = kept else { return Buffer::concat(&[bytes]) };
        self.kept.fetch_sub(buffer.len(), Relaxed);
        let mut filling = Filling::again(buffer);
        filling.push(bytes);
        filling.finish()
    }

    /// Kept memory for buffers of these lengths, as far as there is some.
    pub(super) fn take(&self, lens: impl Iterator<Item = usize>) -> Vec<Buffer> {
        let mut buffers = self.buffers.lock();
        let mut take = |len: usize| {
            let at = buffers.iter().rposition(|buffer| buffer.len() == len)?;
            Some(buffers.swap_remove(at))
        };
        let taken: Vec<Buffer> = lens.filter_map(&mut take).collect();
        self.kept.fetch_sub(taken.iter().map(|buffer| buffer.len()).sum(), Relaxed);
        taken
    }

    /// Keep the memory of a buffer that nobody else holds, if there is room for it.
    pub(super) fn keep(&self, buffer: Arc<Buffer>) {
        let Ok(buffer) = Arc::try_unwrap(buffer) else { return };
        let fits = |kept: usize| kept.checked_add(buffer.len()).filter(|kept| *kept <= SPARE_BYTES);
        if self.kept.try_update(Relaxed, Relaxed, fits).is_ok() {
            self.buffers.lock().push(buffer);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.buffers.lock().iter().map(|buffer| buffer.len()).sum(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_for_the_same_length() {
        let spare = Spare::new(&Arc::default());
        let first = spare.copy(&[1; 5000]).unwrap();
        let place = first.as_ptr();
        spare.keep(Arc::new(first));
        assert_ne!(spare.copy(&[2; 4999]).unwrap().as_ptr(), place);
        let again = spare.copy(&[3; 5000]).unwrap();
        assert_eq!((again.as_ptr(), &again[..]), (place, &[3; 5000][..]));
    }

    #[test]
    fn memory_is_taken_by_length_and_not_counted_any_more() {
        let spare = Spare::new(&Arc::default());
        for len in [100, 200, 100] {
            spare.keep(Arc::new(Buffer::concat(&[&vec![0; len]]).unwrap()));
        }
        let lens: Vec<usize> = spare.take([100, 300, 100, 100].into_iter()).iter().map(|buffer| buffer.len()).collect();
        assert_eq!(lens, [100, 100]);
        assert_eq!(spare.buffers.lock().iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [200]);
    }

    #[test]
    fn what_somebody_holds_is_not_kept_and_what_is_kept_is_bounded() {
        let spare = Spare::new(&Arc::default());
        let held = Arc::new(spare.copy(&[1; 100]).unwrap());
        spare.keep(held.clone());
        assert!(spare.buffers.lock().is_empty());
        (0..100).for_each(|_| spare.keep(Arc::new(Buffer::concat(&[&[0; 1 << 20]]).unwrap())));
        assert!(spare.buffers.lock().len() <= SPARE_BYTES >> 20);
    }
}
