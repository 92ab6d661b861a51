//! Memory that is read into, aligned for reads around the page cache. It is kept for the next reads, because fresh memory costs a page fault
//! for each 4 KiB, and given back when no read has used it for a while.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use kv_platform::files::AROUND_CACHE_ALIGNMENT;
use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::threads::Helpers;

/// What a buffer takes beyond the part of a value: its beginning and end are rounded to the alignment, and a last part that would be short
/// is read with the one before.
const SLACK: usize = limits::READ_PART_BYTES / 8 + 2 * AROUND_CACHE_ALIGNMENT;

/// The lengths that buffers have, and how many of each are kept.
const LENGTHS: [(usize, usize); 2] =
    [((64 << 10) + SLACK, limits::MAX_READS), (limits::READ_PART_BYTES + SLACK, limits::MAX_READERS)];

/// The buffers of a process.
pub struct Buffers {
    kept: Arc<BufferPool>,
    helpers: Arc<Helpers>,
}

struct BufferPool {
    free: Mutex<Free>,
    /// Bytes of all that there are, those in use included.
    bytes: AtomicU64,
}

#[derive(Default)]
struct Free {
    buffers: [Vec<Aligned>; LENGTHS.len()],
    /// Since it was last looked at.
    used: bool,
    /// A job is there that gives them back.
    swept: bool,
}

impl Buffers {
    pub fn new(helpers: &Arc<Helpers>) -> Self {
        let kept = BufferPool { free: Mutex::default(), bytes: AtomicU64::new(0) };
        Buffers { kept: Arc::new(kept), helpers: helpers.clone() }
    }

    /// Bytes that all buffers take now.
    pub fn bytes(&self) -> u64 {
        self.kept.bytes.load(Relaxed)
    }

    /// Room for so many bytes, of one part at most.
    pub fn take(&self, len: usize) -> Result<ReadBuffer, Error> {
        let exhausted = |why: &str| Error::new(ErrorKind::Exhausted, format!("no memory to read {len} bytes: {why}"));
        let class = LENGTHS.iter().position(|(room, _)| len <= *room);
        let class = class.ok_or_else(|| exhausted("it is more than a part"))?;
        let mut free = self.kept.free.lock();
        free.used = true;
        if !free.swept {
            free.swept = sweep_later(&self.helpers, Arc::downgrade(&self.kept));
        }
        let kept = free.buffers.get_mut(class).and_then(Vec::pop);
        drop(free);
        let memory = match kept {
            Some(memory) => memory,
            None => {
                let room = LENGTHS.get(class).map_or(len, |(room, _)| *room);
                let memory = Aligned::new(room).ok_or_else(|| exhausted("malloc has none"))?;
                self.kept.bytes.fetch_add(room as u64, Relaxed);
                memory
            }
        };
        Ok(ReadBuffer { memory: Some(memory), class, kept: self.kept.clone() })
    }
}

impl BufferPool {
    fn gone(&self, memory: Vec<Aligned>) {
        let bytes = memory.iter().map(|memory| memory.layout.size() as u64).sum();
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Give memory back that no read has used for a while, until there is none.
fn sweep_later(helpers: &Arc<Helpers>, kept: Weak<BufferPool>) -> bool {
    let again = Arc::downgrade(helpers);
    helpers.hand_later(limits::READ_BUFFERS_UNUSED, move || {
        let Some(all) = kept.upgrade() else { return };
        let mut free = all.free.lock();
        let unused = !std::mem::take(&mut free.used);
        free.swept = !unused && again.upgrade().is_some_and(|helpers| sweep_later(&helpers, kept));
        if !free.swept {
            let memory = free.buffers.iter_mut().flat_map(std::mem::take).collect();
            drop(free);
            all.gone(memory);
        }
    })
}

/// Memory for one read.
pub struct ReadBuffer {
    memory: Option<Aligned>,
    class: usize,
    kept: Arc<BufferPool>,
}

impl ReadBuffer {
    /// Its bytes, which need not be initialised, and how many they are.
    pub fn room(&mut self) -> (*mut u8, usize) {
        self.memory.as_ref().map_or((std::ptr::null_mut(), 0), |memory| (memory.data.as_ptr(), memory.layout.size()))
    }

    /// # Safety
    /// The bytes before `end` are initialised.
    pub unsafe fn bytes(&self, begin: usize, end: usize) -> &[u8] {
        let Some(memory) = self.memory.as_ref().filter(|memory| begin <= end && end <= memory.layout.size()) else {
            return &[];
        };
        // SAFETY: they lie within the memory, and by this function's own condition.
        unsafe { std::slice::from_raw_parts(memory.data.as_ptr().add(begin), end - begin) }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut free = self.kept.free.lock();
        // Without a job that gives it back nothing is kept.
        let swept = free.swept;
        let most = LENGTHS.get(self.class).map_or(0, |(_, most)| *most);
        match free.buffers.get_mut(self.class).filter(|kept| swept && kept.len() < most) {
            Some(kept) => kept.push(memory),
            None => {
                drop(free);
                self.kept.gone(vec![memory]);
            }
        }
    }
}

struct Aligned {
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is owned memory, and whoever has it uses it alone.
unsafe impl Send for Aligned {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for Aligned {}

impl Aligned {
    fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), AROUND_CACHE_ALIGNMENT).ok()?;
        // SAFETY: the layout has a size above 0.
        let data = NonNull::new(unsafe { alloc(layout) })?;
        Some(Aligned { data, layout })
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(self.data.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::{Clock, Spawn};

    #[test]
    fn memory_is_used_again_and_given_back_when_nobody_reads() {
        let buffers = Buffers::new(&Arc::new(Helpers::new(1, 0, Clock::default(), Spawn::default())));
        let mut first = buffers.take(1).unwrap();
        let (place, room) = first.room();
        assert!(place.addr().is_multiple_of(AROUND_CACHE_ALIGNMENT) && room == LENGTHS[0].0);
        drop(first);
        assert_eq!(buffers.take(LENGTHS[0].0).unwrap().room().0, place, "it is used again");
        let large = buffers.take(LENGTHS[0].0 + 1).unwrap();
        assert_eq!(buffers.bytes(), (LENGTHS[0].0 + LENGTHS[1].0) as u64);
        assert!(buffers.take(LENGTHS[1].0 + 1).is_err_and(|error| error.kind() == ErrorKind::Exhausted));
        drop(large);
        let begun = Instant::now();
        while buffers.bytes() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never given back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_without_a_helper_nothing_is() {
        let buffers = Buffers::new(&Arc::new(Helpers::new(1, 0, Clock::default(), Spawn::default())));
        let many: Vec<_> = (0..LENGTHS[1].1 + 5).map(|_| buffers.take(LENGTHS[1].0).unwrap()).collect();
        drop(many);
        assert_eq!(buffers.bytes(), (LENGTHS[1].0 * LENGTHS[1].1) as u64);
        let none = Buffers::new(&Arc::new(Helpers::new(0, 0, Clock::default(), Spawn::default())));
        drop(none.take(1).unwrap());
        assert_eq!(none.bytes(), 0);
    }
}
