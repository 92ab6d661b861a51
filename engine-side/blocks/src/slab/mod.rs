//! One piece of memory, cut into slots of one size: where blocks are, and stay while anybody has one.
//!
//! A [`Slot`] is one holder's alone, to be filled; shared, it becomes a [`Block`], which nobody changes any more. Both keep the
//! memory itself: a slot that comes back late, from a far level that hung, comes back to memory that is still there.

mod pool;

use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::error::{Error, ErrorKind, Result};
use crate::metrics::stripe;
use pool::Pool;

/// Each slot begins at a multiple of this.
const ALIGN: usize = 64;
/// From this size on huge pages are asked for.
const HUGE: usize = 2 << 20;

pub(crate) struct Slab {
    memory: MmapRaw,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Bytes of a slot that are used.
    len: usize,
    pool: Pool,
}

impl Slab {
    /// Reserve memory for so many slots. It is taken from the system when a slot is first filled.
    pub fn new(slots: usize, len: usize) -> Result<Arc<Self>> {
        let stride = len.checked_next_multiple_of(ALIGN);
        let bytes = stride.and_then(|stride| stride.checked_mul(slots)).filter(|bytes| *bytes <= isize::MAX as usize);
        let (Some(stride), Some(bytes), Ok(count)) = (stride, bytes, u32::try_from(slots)) else {
            return Err(Error::invalid(format!(
                "{slots} blocks of {len} bytes do not fit into memory: lower l1.capacity_gb"
            )));
        };
        let mut memory = MmapOptions::new().len(bytes.max(1)).no_reserve_swap().map_anon().map_err(|cause| {
            Error::new(ErrorKind::OutOfMemory, format!("cannot reserve {bytes} bytes for blocks: {cause}"))
        })?;
        if bytes >= HUGE {
            // SAFETY: the mapping was just made, and has so many bytes.
            unsafe { kv_platform::memory::in_large_pages(memory.as_mut_ptr().cast(), bytes) };
        }
        Ok(Arc::new(Slab { memory: memory.into(), stride, len, pool: Pool::new(count) }))
    }

    /// Take a free slot.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        self.pool.take(stripe()).map(|id| Slot { slab: self.clone(), id })
    }

    /// As [`Slab::take`], for no longer than the slab is borrowed.
    pub fn fill(&self) -> Option<Filling<'_>> {
        self.pool.take(stripe()).map(|id| Filling(Pinned { slab: self, id }))
    }

    /// Bytes of a slot.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Slots that are in use.
    pub fn in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// Whether anybody beside the index holds a slot.
    pub fn is_shared(&self, id: u32) -> bool {
        self.pool.is_shared(id)
    }

    /// Hold a slot that is in use.
    ///
    /// # Safety
    /// The caller has the lock of an index that holds the slot, or holds it itself.
    pub unsafe fn retain(&self, id: u32) {
        self.pool.retain(id);
    }

    /// Take over a count of a slot.
    ///
    /// # Safety
    /// The count is the caller's, and is not given back otherwise. The slot is shared.
    pub unsafe fn block(self: &Arc<Self>, id: u32) -> Block {
        Block { slab: self.clone(), id }
    }

    /// As [`Slab::block`], for no longer than the slab is borrowed.
    ///
    /// # Safety
    /// As [`Slab::block`].
    pub unsafe fn pinned(&self, id: u32) -> Pinned<'_> {
        Pinned { slab: self, id }
    }

    fn start(&self, id: u32) -> *mut u8 {
        // SAFETY: ids are those of the pool, which has as many slots as the memory.
        unsafe { self.memory.as_mut_ptr().add(id as usize * self.stride) }
    }

    fn bytes(&self, id: u32) -> &[u8] {
        // SAFETY: the slot lies in the memory, which was zeroed; it is shared, so nobody writes it while a holder lives.
        unsafe { std::slice::from_raw_parts(self.start(id), self.len) }
    }
}

/// A slot that is one holder's alone.
pub struct Slot {
    slab: Arc<Slab>,
    id: u32,
}

impl Slot {
    /// The slot's memory. Its contents are those of its last use, or zeros.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the slot lies in the memory, which was zeroed, and this is its only holder.
        unsafe { std::slice::from_raw_parts_mut(self.slab.start(self.id), self.slab.len) }
    }

    /// The slot's memory.
    pub fn bytes(&self) -> &[u8] {
        self.slab.bytes(self.id)
    }

    /// From now on nobody changes it.
    pub(crate) fn share(self) -> Block {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, and `this` is not dropped.
        Block { slab: unsafe { std::ptr::read(&this.slab) }, id: this.id }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slab.pool.release(self.id, stripe());
    }
}

/// A block's memory, which stays as it is while this lives.
pub struct Block {
    slab: Arc<Slab>,
    id: u32,
}

impl Block {
    /// The whole slot.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.slab.bytes(self.id)
    }

    /// The same block, held a second time while this is borrowed.
    pub(crate) fn pin(&self) -> Pinned<'_> {
        self.slab.pool.retain(self.id);
        Pinned { slab: &self.slab, id: self.id }
    }

    /// The slot's number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Its number, with the count.
    fn into_id(self) -> u32 {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, and `this` is not dropped.
        drop(unsafe { std::ptr::read(&this.slab) });
        this.id
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        self.slab.pool.retain(self.id);
        Block { slab: self.slab.clone(), id: self.id }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.slab.pool.release(self.id, stripe());
    }
}

/// A block that is held while the slab is borrowed.
pub(crate) struct Pinned<'a> {
    slab: &'a Slab,
    id: u32,
}

/// A slot that is one holder's alone while the slab is borrowed.
pub(crate) struct Filling<'a>(Pinned<'a>);

impl<'a> Filling<'a> {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the slot lies in the memory, which was zeroed, and this is its only holder.
        unsafe { std::slice::from_raw_parts_mut(self.0.slab.start(self.0.id), self.0.slab.len) }
    }

    /// From now on nobody changes it.
    pub fn share(self) -> Pinned<'a> {
        self.0
    }
}

impl Pinned<'_> {
    pub fn bytes(&self) -> &[u8] {
        self.slab.bytes(self.id)
    }

    /// The same block, held a second time.
    pub fn to_block(&self, slab: &Arc<Slab>) -> Block {
        self.slab.pool.retain(self.id);
        Block { slab: slab.clone(), id: self.id }
    }

    /// Its number, with the count.
    pub fn into_id(self) -> u32 {
        std::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.slab.pool.release(self.id, stripe());
    }
}

/// Blocks that were acquired: views of memory that nobody changes, until they are given back by dropping this.
pub struct Acquired {
    slab: Arc<Slab>,
    ids: Vec<u32>,
    /// Bytes of a block.
    payload: usize,
}

impl Acquired {
    pub(crate) fn new(slab: &Arc<Slab>, most: usize, payload: usize) -> Self {
        Acquired { slab: slab.clone(), ids: Vec::with_capacity(most), payload }
    }

    pub(crate) fn push(&mut self, pinned: Pinned<'_>) {
        self.ids.push(pinned.into_id());
    }

    pub(crate) fn push_block(&mut self, block: Block) {
        self.ids.push(block.into_id());
    }

    /// How many there are: the leading blocks of the query.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// A block's bytes. They begin at a multiple of 64.
    pub fn block(&self, index: usize) -> Option<&[u8]> {
        self.ids.get(index).and_then(|id| self.slab.bytes(*id).get(..self.payload))
    }

    /// All blocks, in the order of the query.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ids.iter().filter_map(|id| self.slab.bytes(*id).get(..self.payload))
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.slab.pool.release(*id, stripe()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_when_its_last_holder_is_gone() {
        let slab = Slab::new(2, 100).unwrap();
        let mut slot = slab.take().unwrap();
        slot.bytes_mut().fill(7);
        let block = slot.share();
        let other = block.clone();
        let second = slab.take().unwrap();
        assert!(slab.take().is_none() && slab.in_use() == 2);
        drop(block);
        assert!(slab.take().is_none());
        assert!(other.bytes().iter().all(|byte| *byte == 7));
        drop((other, second));
        assert_eq!(slab.in_use(), 0);
        assert!(slab.take().is_some());
    }

    #[test]
    fn what_was_acquired_is_counted_and_given_back() {
        let slab = Slab::new(2, 100).unwrap();
        let mut acquired = Acquired::new(&slab, 2, 50);
        assert!(acquired.is_empty() && acquired.block(0).is_none());
        let mut slot = slab.take().unwrap();
        slot.bytes_mut().fill(7);
        acquired.push_block(slot.share());
        assert!(!acquired.is_empty() && acquired.len() == 1);
        assert_eq!((acquired.block(0), acquired.iter().count()), (Some(&[7; 50][..]), 1));
        drop(acquired);
        assert_eq!(slab.in_use(), 0);
    }

    #[test]
    fn a_slot_outlives_who_opened_the_slab() {
        let slab = Slab::new(1, 4096).unwrap();
        let mut slot = slab.take().unwrap();
        drop(slab);
        slot.bytes_mut().fill(9);
        assert_eq!(slot.bytes()[4095], 9);
    }

    #[test]
    fn slots_are_aligned_and_apart() {
        let slab = Slab::new(100, 65).unwrap();
        let mut slots: Vec<Slot> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!(slots.len(), 100);
        slots.iter_mut().enumerate().for_each(|(n, slot)| slot.bytes_mut().fill(n as u8));
        for (n, slot) in slots.iter().enumerate() {
            assert!(slot.bytes().iter().all(|byte| *byte == n as u8));
            assert_eq!(slot.bytes().as_ptr() as usize % ALIGN, 0);
        }
        assert!(Slab::new(usize::MAX, 64).is_err() && Slab::new(1 << 33, 1).is_err());
    }
}
