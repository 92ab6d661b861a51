//! Where the chunks of one call go: into the memory that the caller named for each, or into buffers of the host's own.

use std::marker::PhantomData;

use crate::error::Error;
use crate::payload::{self, Buffer, Covering, Got, PayloadBytes, Sum, ValueMemory};

/// How many bytes there is room for.
pub fn capacity(pieces: &[libc::iovec]) -> usize {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.iov_len))
}

/// Where one chunk goes.
#[derive(Clone, Copy, Default)]
pub struct Target<'a> {
    /// None: the host allocates.
    pieces: Option<&'a [libc::iovec]>,
    /// A checksum is wanted of what lies there.
    covering: Option<&'a Covering>,
    sum: Option<Sum>,
    _exclusive: PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for memory that is the target's alone; see `Target::memory`.
unsafe impl Send for Target<'_> {}
// SAFETY: as above; it is written only where it is borrowed mutably.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    /// A buffer that the host makes when the length is known.
    pub const ALLOCATE: Target<'static> = Target { pieces: None, covering: None, sum: None, _exclusive: PhantomData };

    /// Memory of the caller, one piece after another.
    ///
    /// # Safety
    /// Each piece must stay valid for writes, and be used by nobody else, as long as the target is. It need not be initialised.
    pub unsafe fn memory(pieces: &'a [libc::iovec]) -> Self {
        Target { pieces: Some(pieces), ..Target::ALLOCATE }
    }

    /// Have a checksum made of what is placed there, by whoever can do so at less cost than by reading it once more.
    #[must_use]
    pub fn summed(self, covering: Option<&'a Covering>) -> Self {
        Target { covering, ..self }
    }

    /// What the checksum that is wanted covers.
    pub fn covering(&self) -> Option<&'a Covering> {
        self.covering
    }

    /// The checksum of what lies there now. `None`: it was not made.
    pub fn set_sum(&mut self, sum: Option<Sum>) {
        self.sum = sum;
    }

    pub fn sum(&self) -> Option<Sum> {
        self.sum
    }

    /// The pieces of memory; `None` where the host allocates.
    pub fn pieces(&self) -> Option<&'a [libc::iovec]> {
        self.pieces
    }

    /// Copy a value there. `None`: the host allocates.
    pub fn place(&mut self, data: &[u8]) -> Option<Got> {
        // SAFETY: `Target::memory` was promised that the pieces are valid and nobody else's.
        let memory = unsafe { ValueMemory::room(self.pieces?) };
        if memory.len() < data.len() as u64 {
            return Some(Got::TooLong(data.len()));
        }
        self.sum = payload::place(memory, data, self.covering.cloned());
        Some(Got::Placed(data.len()))
    }

    /// A copy of what lies there.
    ///
    /// # Safety
    /// The first `len` bytes are initialised.
    pub unsafe fn copy_of(&self, len: usize) -> Result<Buffer, Error> {
        // SAFETY: as in `place`.
        let memory = unsafe { ValueMemory::room(self.pieces.unwrap_or_default()) };
        // SAFETY: by this function's own condition.
        let bytes = unsafe { PayloadBytes::of(&memory, len as u64) };
        Buffer::concat(&bytes.pieces().collect::<Vec<_>>())
    }

    /// The memory as an item of a call.
    ///
    /// # Safety
    /// The call is over before the target is used by anybody else.
    pub unsafe fn room(&self) -> Option<ValueMemory> {
        // SAFETY: by this function's own condition, and `Target::memory` was promised that nobody else uses the pieces.
        self.pieces.map(|pieces| unsafe { ValueMemory::room(pieces) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_that_is_wanted_is_made_of_what_is_placed() {
        let mut memory = [0_u8; 8];
        let pieces = [libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }];
        let covering = Covering { before: b"key".to_vec(), behind: 0, part: 0..0 };
        for wanted in [None, Some(&covering)] {
            // SAFETY: the memory outlives the target, and is read after it alone.
            let mut target = unsafe { Target::memory(&pieces) }.summed(wanted);
            assert!(matches!(target.place(b"value"), Some(Got::Placed(5))));
            assert_eq!((target.covering().is_some(), target.sum().is_some()), (wanted.is_some(), wanted.is_some()));
        }
        assert_eq!(memory, *b"value\0\0\0");
    }
}
