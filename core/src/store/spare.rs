//! Memory that chunks waited in, or were restored from, kept for the next ones. Fresh memory costs a page fault for each 4 KiB, which is as much as
//! the copy into it; and what is given back to `malloc` in large pieces it gives back to the kernel.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use crate::error::Error;
use crate::limits::{SPARE_BYTES, SPARE_LENGTHS};
use crate::payload::{Buffer, Filling};

/// Buffers of one store, of the lengths that its chunks have again and again.
pub(super) struct Spare {
    buffers: Mutex<Vec<Buffer>>,
    /// The lengths that were asked for last, and not kept. One that stands here once may never come again: its memory would be kept for nothing.
    missed: Mutex<VecDeque<usize>>,
    /// Bytes kept in the whole process.
    kept: Arc<AtomicUsize>,
}

impl Spare {
    /// `kept`: the bytes that all stores of the process keep.
    pub(super) fn new(kept: &Arc<AtomicUsize>) -> Self {
        Spare { buffers: Mutex::default(), missed: Mutex::default(), kept: kept.clone() }
    }

    /// A copy of bytes, in kept memory of that length where there is some.
    pub(super) fn copy(&self, bytes: &[u8]) -> Result<Buffer, Error> {
        let kept = {
            let mut buffers = self.buffers.lock();
            // Chunks of a store are mostly of one length, so the first look finds it.
            let at = buffers.iter().rposition(|buffer| buffer.len() == bytes.len());
            at.map(|at| buffers.swap_remove(at))
        };
        let Some(buffer) = kept else {
            self.miss(bytes.len());
            return Buffer::concat(&[bytes]);
        };
        self.kept.fetch_sub(buffer.len(), Relaxed);
        let mut filling = Filling::again(buffer);
        filling.push(bytes);
        filling.finish()
    }

    /// Kept memory for buffers of these lengths, as far as there is some.
    pub(super) fn take(&self, lens: impl Iterator<Item = usize>) -> Vec<Buffer> {
        let mut buffers = self.buffers.lock();
        let mut take = |len: usize| {
            let Some(at) = buffers.iter().rposition(|buffer| buffer.len() == len) else {
                self.miss(len);
                return None;
            };
            Some(buffers.swap_remove(at))
        };
        let taken: Vec<Buffer> = lens.filter_map(&mut take).collect();
        self.kept.fetch_sub(taken.iter().map(|buffer| buffer.len()).sum(), Relaxed);
        taken
    }

    fn miss(&self, len: usize) {
        let mut missed = self.missed.lock();
        missed.push_back(len);
        if missed.len() > SPARE_LENGTHS {
            missed.pop_front();
        }
    }

    /// Whether this length comes again and again.
    fn is_common(&self, len: usize) -> bool {
        let is_kept = self.buffers.lock().last().is_some_and(|buffer| buffer.len() == len);
        is_kept || self.missed.lock().iter().filter(|missed| **missed == len).nth(1).is_some()
    }

    /// Keep the memory of a buffer that nobody else holds, if its length is common and there is room for it.
    pub(super) fn keep(&self, buffer: Arc<Buffer>) {
        let Ok(buffer) = Arc::try_unwrap(buffer) else { return };
        if !self.is_common(buffer.len()) {
            return;
        }
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

    fn keeping(lens: &[usize]) -> Spare {
        let spare = Spare::new(&Arc::default());
        let copies = lens.iter().map(|len| Arc::new(spare.copy(&vec![0; *len]).unwrap()));
        copies.collect::<Vec<_>>().into_iter().for_each(|copy| spare.keep(copy));
        spare
    }

    fn lens(spare: &Spare) -> Vec<usize> {
        spare.buffers.lock().iter().map(|buffer| buffer.len()).collect()
    }

    #[test]
    fn memory_is_used_again_for_the_same_length() {
        let spare = keeping(&[5000, 5000]);
        let place = spare.buffers.lock().last().unwrap().as_ptr();
        assert_ne!(spare.copy(&[2; 4999]).unwrap().as_ptr(), place);
        let again = spare.copy(&[3; 5000]).unwrap();
        assert_eq!((again.as_ptr(), &again[..]), (place, &[3; 5000][..]));
    }

    #[test]
    fn memory_is_taken_by_length_and_not_counted_any_more() {
        let spare = keeping(&[100, 200, 100, 200]);
        let taken: Vec<usize> =
            spare.take([100, 300, 100, 100].into_iter()).iter().map(|buffer| buffer.len()).collect();
        assert_eq!(taken, [100, 100]);
        assert_eq!((lens(&spare), spare.kept.load(Relaxed)), (vec![200, 200], 400));
    }

    #[test]
    fn what_somebody_holds_is_not_kept_and_what_is_kept_is_bounded() {
        let spare = Spare::new(&Arc::default());
        let held = [1, 1].map(|byte| Arc::new(spare.copy(&[byte; 100]).unwrap()));
        spare.keep(held[0].clone());
        assert!(lens(&spare).is_empty());
        let spare = keeping(&[1 << 20; 100]);
        assert_eq!(lens(&spare).len(), SPARE_BYTES >> 20);
    }

    #[test]
    fn nothing_is_kept_of_lengths_that_do_not_come_again() {
        let once: Vec<usize> = (1..1000).collect();
        assert_eq!(lens(&keeping(&once)), []);
        // One that does is kept among them, and memory is kept of it again when all of it was taken.
        let spare = keeping(&[&once[..], &[4000, 2000, 4000, 2000, 4000, 2000]].concat());
        assert_eq!(lens(&spare), [4000, 2000, 4000, 2000, 4000, 2000]);
        let taken = spare.take([2000; 3].into_iter());
        taken.into_iter().for_each(|buffer| spare.keep(Arc::new(buffer)));
        assert_eq!(lens(&spare).iter().filter(|len| **len == 2000).count(), 3);
    }
}
