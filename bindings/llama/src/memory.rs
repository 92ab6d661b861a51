//! Memory for a whole state. It is kept for the next state, but the system may take its pages back meanwhile
//! (`MADV_FREE`): memory that is new to the process costs more than what is done in it.

use std::io;
use std::ops::{Deref, DerefMut};

use kv_platform::sync::Mutex;

use memmap2::{Advice, MmapMut, UncheckedAdvice};

static KEPT: Mutex<Option<MmapMut>> = Mutex::new(None);

/// Memory of at least the size of a state. What is in it at first is undefined, but initialised.
pub struct StateMemory {
    /// `None` only while it is dropped.
    map: Option<MmapMut>,
    len: usize,
}

impl StateMemory {
    /// So many bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        let kept = KEPT.lock().take().filter(|map| map.len() >= len);
        let map = match kept {
            Some(map) => map,
            None => {
                let map = MmapMut::map_anon(len.max(1))?;
                // Only a hint.
                let _ = map.advise(Advice::HugePage);
                map
            }
        };
        Ok(StateMemory { map: Some(map), len })
    }
}

impl Deref for StateMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().and_then(|map| map.get(..self.len)).unwrap_or_default()
    }
}

impl DerefMut for StateMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().and_then(|map| map.get_mut(..self.len)).unwrap_or_default()
    }
}

impl Drop for StateMemory {
    fn drop(&mut self) {
        let Some(map) = self.map.take() else { return };
        // SAFETY: the pages may read as zero from now on, and nobody reads them before they are written: a state is written
        // over all of its memory before it is read.
        if unsafe { map.unchecked_advise(UncheckedAdvice::Free) }.is_err() {
            return;
        }
        let mut kept = KEPT.lock();
        // The larger serves more states.
        if kept.as_ref().is_none_or(|kept| kept.len() < map.len()) {
            *kept = Some(map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_length_that_was_asked_for_and_holds_what_is_written() {
        for len in [5_000_000, 1, 100_000, 6_000_000] {
            let mut memory = StateMemory::new(len).unwrap();
            assert_eq!(memory.len(), len);
            memory.fill(7);
            assert!(memory.iter().all(|byte| *byte == 7));
        }
    }
}
