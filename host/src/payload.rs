//! Bytes in host memory: what a consumer gets, and what a guest sees as a handle.
//!
//! A [`Buffer`] is C `malloc` memory, so that what was read from a file or a socket can be handed to the consumer as it
//! lies. A [`Payload`] is what a handle of a guest stands for. The consumer's own memory becomes a payload only for the
//! length of a call: [`Payload::Lent`] is ended by the host before the call returns.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

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
    pub(crate) fn concat(parts: &[&[u8]]) -> Result<Self, Error> {
        let mut filling = Filling::new(parts.iter().map(|part| part.len() as u64).sum())?;
        parts.iter().for_each(|part| filling.push(part));
        filling.finish()
    }

    /// The memory, for a consumer that will `free` it, and the length.
    pub(crate) fn into_raw(self) -> (NonNull<u8>, usize) {
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
pub(crate) struct Filling {
    /// Its bytes are not read before all of them are there.
    buffer: Buffer,
    filled: usize,
}

impl Filling {
    /// Room for `len` bytes.
    ///
    /// `Exhausted` above [`limits::MAX_VALUE_BYTES`], before anything is allocated, or where `malloc` has no memory.
    pub(crate) fn new(len: u64) -> Result<Self, Error> {
        // SAFETY: malloc with a size above 0 has no precondition.
        Self::made(len, |len| unsafe { libc::malloc(len) })
    }

    /// `allocate` answers memory for `free`, or NULL.
    fn made(len: u64, allocate: impl FnOnce(usize) -> *mut libc::c_void) -> Result<Self, Error> {
        let len = usize::try_from(len).ok().filter(|len| *len <= limits::MAX_VALUE_BYTES).ok_or_else(|| {
            let limit = limits::MAX_VALUE_BYTES;
            Error::new(ErrorKind::Exhausted, format!("{len} bytes are more than a value may have ({limit})"))
        })?;
        let data = NonNull::new(allocate(len.max(1)).cast::<u8>())
            .ok_or_else(|| Error::new(ErrorKind::Exhausted, format!("no memory for {len} bytes")))?;
        Ok(Filling { buffer: Buffer { data, len }, filled: 0 })
    }

    /// [`Filling::new`] with room that starts on a cache line.
    pub(crate) fn aligned(len: u64) -> Result<Self, Error> {
        const LINE: usize = 64;
        Self::made(len, |len| {
            let mut data = std::ptr::null_mut();
            // SAFETY: the alignment is a power of two and a multiple of a pointer's size; `data` is set where it answers 0.
            if unsafe { libc::posix_memalign(&mut data, LINE, len) } == 0 { data } else { std::ptr::null_mut() }
        })
    }

    /// The memory of a buffer, to be filled again.
    pub(crate) fn again(buffer: Buffer) -> Self {
        Filling { buffer, filled: 0 }
    }

    /// What is still to be filled, for a read; [`Filling::advance`] says how much of it was.
    pub(crate) fn rest(&mut self) -> &mut [MaybeUninit<u8>] {
        let Buffer { data, len } = self.buffer;
        // SAFETY: `data` points to `len` bytes that only `self` refers to, `filled` is at most `len`, and MaybeUninit
        // needs no initialisation.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr().add(self.filled).cast(), len - self.filled) }
    }

    /// # Safety
    /// The first `count` bytes of [`Filling::rest`] have been initialised.
    pub(crate) unsafe fn advance(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.buffer.len);
        #[cfg(test)]
        counts::add(|counts| counts.placed += count);
    }

    /// What has been filled so far.
    pub(crate) fn filled(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes are initialised, by `push` or by the promise of `advance`.
        unsafe { std::slice::from_raw_parts(self.buffer.data.as_ptr(), self.filled) }
    }

    /// Copy bytes behind those that are there; what does not fit is left out.
    pub(crate) fn push(&mut self, part: &[u8]) {
        let rest = self.rest();
        let count = part.len().min(rest.len());
        if let (Some(to), Some(from)) = (rest.get_mut(..count), part.get(..count)) {
            to.write_copy_of_slice(from);
            self.filled += count;
            #[cfg(test)]
            counts::add(|counts| counts.copied += count);
        }
    }

    /// The buffer. `Corrupt` if bytes are missing.
    pub(crate) fn finish(self) -> Result<Buffer, Error> {
        if self.filled != self.buffer.len {
            let message = format!("only {} of {} bytes came", self.filled, self.buffer.len);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(self.buffer)
    }
}

/// How the bytes of buffers came there, for tests: all that fills a buffer goes through [`Filling`].
#[cfg(test)]
pub(crate) mod counts {
    use std::cell::Cell;

    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Counts {
        /// Copied from other memory.
        pub copied: usize,
        /// Put there by a read, or by whoever made them.
        pub placed: usize,
    }

    thread_local! {
        static COUNTS: Cell<Counts> = const { Cell::new(Counts { copied: 0, placed: 0 }) };
    }

    pub(super) fn add(change: impl FnOnce(&mut Counts)) {
        let mut counts = COUNTS.get();
        change(&mut counts);
        COUNTS.set(counts);
    }

    /// What this thread has filled since it last asked.
    pub(crate) fn take() -> Counts {
        COUNTS.take()
    }
}

/// What a guest's handle stands for.
pub enum Payload {
    /// Bytes that live until the last handle to them is gone.
    Owned(Arc<Buffer>),
    /// Bytes of the caller, for the length of one call.
    Lent(Lent),
    /// A lent payload whose call is over. The handle is the guest's to drop; until then its number is not used again.
    Ended,
}

/// Memory that the caller of the running operation keeps valid and unchanged until the operation returns.
pub struct Lent {
    memory: Memory,
    /// The buffer that the memory belongs to, where it is the host's own, so that sharing needs no copy.
    owner: Option<Arc<Buffer>>,
}

/// Where lent bytes are: in one piece, or in several that make one value.
enum Memory {
    Whole(Piece),
    Pieces(Box<[Piece]>),
}

struct Piece {
    data: NonNull<u8>,
    len: usize,
    /// Bytes before it, of the whole value.
    offset: u64,
}

impl Piece {
    fn of(bytes: &[u8], offset: u64) -> Self {
        Piece { data: NonNull::from(bytes).cast(), len: bytes.len(), offset }
    }

    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// # Safety
    /// The memory must be lent still.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: made of a slice, which is still valid by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

// SAFETY: a `Lent` is read only by host functions of the call it was made for, which end before the memory does.
unsafe impl Send for Lent {}
// SAFETY: as above; it is never written through.
unsafe impl Sync for Lent {}

impl Payload {
    /// Lend memory to a guest.
    ///
    /// # Safety
    /// The payload must be replaced by [`Payload::Ended`], or dropped, before `bytes` becomes invalid.
    pub(crate) unsafe fn lend(bytes: &[u8]) -> Self {
        Payload::Lent(Lent { memory: Memory::Whole(Piece::of(bytes, 0)), owner: None })
    }

    /// Lend memory that makes one value, one piece after another.
    ///
    /// # Safety
    /// As [`Payload::lend`], for each piece.
    pub(crate) unsafe fn lend_pieces(pieces: &[&[u8]]) -> Self {
        let mut end = 0;
        let place = |bytes: &&[u8]| {
            let piece = Piece::of(bytes, end);
            end = piece.end();
            piece
        };
        Payload::Lent(Lent { memory: Memory::Pieces(pieces.iter().map(place).collect()), owner: None })
    }

    /// Lend a buffer of the host. Safe: the payload keeps the buffer alive.
    pub(crate) fn lend_buffer(buffer: &Arc<Buffer>) -> Self {
        let bytes: &[u8] = buffer;
        Payload::Lent(Lent { memory: Memory::Whole(Piece::of(bytes, 0)), owner: Some(buffer.clone()) })
    }

    /// The bytes, piece by piece; none if the call that lent them is over.
    pub(crate) fn pieces(&self) -> Option<impl Iterator<Item = &[u8]>> {
        Some(self.range(0, self.len()?))
    }

    /// Some of the bytes, piece by piece, none of which is empty: those that there are from `offset` on, `len` at most.
    pub(crate) fn range(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        let (whole, pieces): (Option<&[u8]>, &[Piece]) = match self {
            Payload::Owned(buffer) => (Some(buffer), &[]),
            Payload::Lent(Lent { memory: Memory::Pieces(pieces), .. }) => (None, pieces),
            // SAFETY: whoever lent the memory keeps it valid until the payload is ended, which takes `&mut self`.
            Payload::Lent(Lent { memory: Memory::Whole(piece), .. }) => (Some(unsafe { piece.bytes() }), &[]),
            Payload::Ended => (None, &[]),
        };
        let end = offset.saturating_add(len);
        let begin = pieces.partition_point(|piece| piece.end() <= offset);
        let pieces = pieces.get(begin..).unwrap_or_default().iter().take_while(move |piece| piece.offset < end);
        // SAFETY: as above.
        let pieces = pieces.map(|piece| (piece.offset, unsafe { piece.bytes() }));
        whole.map(|bytes| (0, bytes)).into_iter().chain(pieces).filter_map(move |(begins, bytes)| {
            let within = |place: u64| place.saturating_sub(begins).min(bytes.len() as u64) as usize;
            bytes.get(within(offset)..within(end)).filter(|part| !part.is_empty())
        })
    }

    /// How many bytes there are; none if the call that lent them is over.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Payload::Owned(buffer) => Some(buffer.len() as u64),
            Payload::Lent(Lent { memory: Memory::Whole(piece), .. }) => Some(piece.end()),
            Payload::Lent(Lent { memory: Memory::Pieces(pieces), .. }) => Some(pieces.last().map_or(0, Piece::end)),
            Payload::Ended => None,
        }
    }

    /// The same bytes, to keep. Copies only what is not the host's.
    pub(crate) fn share(&self) -> Result<Option<Arc<Buffer>>, Error> {
        Ok(match self {
            Payload::Owned(buffer) | Payload::Lent(Lent { owner: Some(buffer), .. }) => Some(buffer.clone()),
            Payload::Lent(_) | Payload::Ended => match self.pieces() {
                Some(pieces) => Some(Arc::new(Buffer::concat(&pieces.collect::<Vec<_>>())?)),
                None => None,
            },
        })
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
    fn a_length_over_the_limit_is_refused_before_it_is_allocated() {
        assert_eq!(Filling::new(u64::MAX).err().unwrap().kind(), ErrorKind::Exhausted);
    }

    #[test]
    fn what_is_not_filled_is_never_handed_out() {
        let mut filling = Filling::new(4).unwrap();
        filling.push(b"abc");
        assert_eq!(filling.rest().len(), 1);
        assert_eq!(filling.finish().unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_range_is_cut_out_of_whatever_pieces_there_are() {
        let text = b"abcdefghij";
        let whole = Payload::Owned(Arc::new(Buffer::concat(&[text]).unwrap()));
        let pieces: [&[u8]; 6] = [b"", b"abc", b"d", b"", b"efghij", b""];
        // SAFETY: `pieces` outlives the payload.
        let scattered = unsafe { Payload::lend_pieces(&pieces) };
        for payload in [&whole, &scattered] {
            assert_eq!(payload.len(), Some(10));
            for offset in 0..=12 {
                for len in 0..=12 {
                    let parts: Vec<_> = payload.range(offset, len).collect();
                    let right = text.iter().skip(offset as usize).take(len as usize).copied().collect::<Vec<_>>();
                    assert_eq!(parts.concat(), right, "{len} at {offset}");
                    assert!(parts.iter().all(|part| !part.is_empty()));
                }
            }
        }
        assert_eq!(&**scattered.share().unwrap().unwrap(), text);
        assert_eq!(Payload::Ended.range(0, 10).count(), 0);
    }

    #[test]
    fn sharing_copies_only_foreign_memory() {
        let owned = Arc::new(Buffer::concat(&[b"abc"]).unwrap());
        let shared = Payload::lend_buffer(&owned).share().unwrap().unwrap();
        assert!(Arc::ptr_eq(&owned, &shared));
        let foreign = *b"abc";
        // SAFETY: `foreign` outlives the payload.
        let copy = unsafe { Payload::lend(&foreign) }.share().unwrap().unwrap();
        assert_eq!(&**copy, b"abc");
        assert!(!std::ptr::eq(copy.as_ptr(), foreign.as_ptr()));
    }
}
