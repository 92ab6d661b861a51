//! Memory of the C library's `malloc`, so that what was read from a file or a socket can be handed to the consumer as it lies.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind};
use crate::limits;

/// Bytes in memory of the C library's `malloc`, of exactly the length asked for (one byte where that is 0).
pub struct Buffer {
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: a buffer owns its memory alone and gives out shared references only.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing changes the bytes once the buffer is made.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A copy of parts, one after another.
    pub fn concat(parts: &[&[u8]]) -> Result<Self, Error> {
        let mut filling = Filling::new(parts.iter().map(|part| part.len() as u64).sum())?;
        parts.iter().for_each(|part| filling.push(part));
        filling.finish()
    }

    /// Leave out what lies behind the first `len` bytes. Memory is given back where much of it would be unused.
    pub fn truncate(&mut self, len: usize) {
        let unused = self.len.saturating_sub(len);
        self.len -= unused;
        if unused > self.len / 4 {
            // SAFETY: the memory is malloc's and has no other owner; where realloc answers NULL it stays as it is.
            let shrunk = unsafe { libc::realloc(self.data.as_ptr().cast(), self.len.max(1)) };
            self.data = NonNull::new(shrunk.cast()).unwrap_or(self.data);
        }
    }

    /// The memory, for a consumer that will `free` it, and the length.
    pub fn into_raw(self) -> (NonNull<u8>, usize) {
        let raw = (self.data, self.len);
        std::mem::forget(self);
        raw
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Filling` hands a buffer out only when all `len` bytes are initialised; they live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from malloc and, unless `into_raw` forgot `self`, has no other owner.
        unsafe { libc::free(self.data.as_ptr().cast()) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A buffer that is being filled, from the front. It is handed out when it is full, and not before.
pub struct Filling {
    /// Its bytes are not read before all of them are there.
    buffer: Buffer,
    filled: usize,
}

impl Filling {
    /// Room for `len` bytes.
    ///
    /// `Exhausted` above [`limits::MAX_VALUE_BYTES`], before anything is allocated, or where `malloc` has no memory.
    pub fn new(len: u64) -> Result<Self, Error> {
        if let Some(buffer) = super::spare::take(len) {
            return Ok(Self::again(buffer));
        }
        // SAFETY: malloc with a size above 0 has no precondition.
        Self::made(len, |len| unsafe { libc::malloc(len) })
    }

    /// `allocate` answers memory for `free`, or NULL.
    fn made(len: u64, allocate: impl FnOnce(usize) -> *mut libc::c_void) -> Result<Self, Error> {
        let len = usize::try_from(len).ok().filter(|len| *len <= limits::MAX_VALUE_BYTES).ok_or_else(|| {
            let limit = limits::MAX_VALUE_BYTES;
            Error::new(ErrorKind::Exhausted, format!("value too long: {len} bytes, the limit is {limit}"))
        })?;
        let data = NonNull::new(allocate(len.max(1)).cast::<u8>())
            .ok_or_else(|| Error::new(ErrorKind::Exhausted, format!("out of memory: cannot allocate {len} bytes")))?;
        Ok(Filling { buffer: Buffer { data, len }, filled: 0 })
    }

    /// [`Filling::new`] with room that starts on a cache line.
    pub fn aligned(len: u64) -> Result<Self, Error> {
        const LINE: usize = 64;
        Self::made(len, |len| {
            let mut data = std::ptr::null_mut();
            // SAFETY: the alignment is a power of two and a multiple of a pointer's size; `data` is set where it answers 0.
            if unsafe { libc::posix_memalign(&mut data, LINE, len) } == 0 { data } else { std::ptr::null_mut() }
        })
    }

    /// The memory of a buffer, to be filled again.
    pub fn again(buffer: Buffer) -> Self {
        Filling { buffer, filled: 0 }
    }

    /// How many bytes there is room for, those that are filled included.
    pub fn room(&self) -> u64 {
        self.buffer.len as u64
    }

    /// Make room for so many bytes, or leave out what is over; what was filled stays, as far as there is room for it.
    ///
    /// `Exhausted` as for [`Filling::new`].
    pub fn resize(&mut self, len: u64) -> Result<(), Error> {
        let data = self.buffer.data;
        // SAFETY: the memory is malloc's and has no other owner; where realloc answers NULL it stays as it is.
        let resized = Self::made(len, |len| unsafe { libc::realloc(data.as_ptr().cast(), len) })?;
        let former = std::mem::replace(&mut self.buffer, resized.buffer);
        // Its memory is the new one's now.
        std::mem::forget(former);
        self.filled = self.filled.min(self.buffer.len);
        Ok(())
    }

    /// What is still to be filled, for a read; [`Filling::advance`] says how much of it was.
    pub fn rest(&mut self) -> &mut [MaybeUninit<u8>] {
        let Buffer { data, len } = self.buffer;
        // SAFETY: `data` points to `len` bytes that only `self` refers to, `filled` is at most `len`, and MaybeUninit
        // needs no initialisation.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr().add(self.filled).cast(), len - self.filled) }
    }

    /// # Safety
    /// The first `count` bytes of [`Filling::rest`] have been initialised.
    pub unsafe fn advance(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.buffer.len);
        counts::add(|counts| counts.placed += count);
    }

    /// What has been filled so far.
    pub fn filled(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes are initialised, by `push` or by the promise of `advance`.
        unsafe { std::slice::from_raw_parts(self.buffer.data.as_ptr(), self.filled) }
    }

    /// Copy bytes behind those that are there; what does not fit is left out.
    pub fn push(&mut self, part: &[u8]) {
        let rest = self.rest();
        let count = part.len().min(rest.len());
        if let (Some(to), Some(from)) = (rest.get_mut(..count), part.get(..count)) {
            to.write_copy_of_slice(from);
            self.filled += count;
            counts::add(|counts| counts.copied += count);
        }
    }

    /// The buffer. `Corrupt` if bytes are missing.
    pub fn finish(self) -> Result<Buffer, Error> {
        if self.filled != self.buffer.len {
            let message = format!("only {} of {} bytes arrived", self.filled, self.buffer.len);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(self.buffer)
    }
}

/// How the bytes of buffers came there, for the tests that count copies, here and in the crates around: all that fills a buffer goes
/// through [`Filling`](super::Filling).
pub mod counts {
    use std::cell::Cell;
    use std::fs::File;
    use std::path::Path;

    use kv_platform::files::{self, Memory};

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Counts {
        /// Copied from other memory.
        pub copied: usize,
        /// Put there by a read, or by whoever made them.
        pub placed: usize,
    }

    thread_local! {
        static COUNTS: Cell<Counts> = const { Cell::new(Counts { copied: 0, placed: 0 }) };
    }

    pub(in crate::payload) fn add(change: impl FnOnce(&mut Counts)) {
        let mut counts = COUNTS.get();
        change(&mut counts);
        COUNTS.set(counts);
    }

    /// How bytes come that are read from files which lie in memory, below a folder: straight to their place, or by another thread where it
    /// cannot be told that nobody has to be waited for.
    pub fn of_files(folder: &Path, bytes: usize) -> Counts {
        let told = File::open(folder).is_ok_and(|folder| files::in_memory(folder) != Memory::Unknown);
        if told { Counts { placed: bytes, copied: 0 } } else { Counts { placed: 0, copied: bytes } }
    }

    /// What this thread has filled since it last asked.
    pub fn take() -> Counts {
        COUNTS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_has_memory() {
        let buffer = Buffer::concat(&[]).unwrap();
        assert!(buffer.is_empty());
        let (data, len) = buffer.into_raw();
        assert_eq!(len, 0);
        // SAFETY: from malloc, owned by this test.
        unsafe { libc::free(data.as_ptr().cast()) }
    }

    #[test]
    fn parts_lie_in_order() {
        assert_eq!(&*Buffer::concat(&[b"ab", b"", b"c"]).unwrap(), b"abc");
    }

    #[test]
    fn a_buffer_is_cut_with_or_without_its_memory() {
        for (whole, cut) in [(1 << 20, (1 << 20) - 64), (100, 36), (64, 0), (5, 9)] {
            let bytes: Vec<u8> = (0..whole).map(|n: usize| n as u8).collect();
            let mut buffer = Buffer::concat(&[&bytes]).unwrap();
            buffer.truncate(cut);
            assert_eq!(&*buffer, &bytes[..cut.min(whole)]);
            assert_eq!(buffer.as_ptr().addr() % 16, 0);
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_it_is_allocated() {
        assert_eq!(Filling::new(u64::MAX).err().unwrap().kind(), ErrorKind::Exhausted);
    }

    #[test]
    fn a_buffer_that_grows_keeps_what_it_holds() {
        let mut filling = Filling::new(2).unwrap();
        filling.push(b"ab");
        filling.resize(1 << 20).unwrap();
        filling.push(b"cd");
        assert_eq!((filling.filled(), filling.room()), (&b"abcd"[..], 1 << 20));
        assert_eq!(filling.resize(u64::MAX).unwrap_err().kind(), ErrorKind::Exhausted);
        filling.resize(3).unwrap();
        assert_eq!(&*filling.finish().unwrap(), b"abc");
    }

    #[test]
    fn what_is_not_filled_is_never_handed_out() {
        let mut filling = Filling::new(4).unwrap();
        filling.push(b"abc");
        assert_eq!(filling.rest().len(), 1);
        assert_eq!(filling.finish().unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
