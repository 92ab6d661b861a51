//! Memory of the caller of a running call, for one value: the bytes that it puts, or room for those that it gets.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Memory in one piece, or in several that make one value. Valid only as long as its maker promised.
pub enum ValueMemory {
    Whole(Piece),
    /// A value and the tail of its envelope, most of the time: nothing is allocated.
    Two([Piece; 2]),
    Scattered(Box<[Piece]>),
}

#[derive(Clone, Copy)]
pub struct Piece {
    data: NonNull<u8>,
    len: usize,
    /// Bytes before it, of the whole value.
    offset: u64,
}

// SAFETY: memory is used only by host functions of the call that it was named for, one at a time, which end before it does.
unsafe impl Send for ValueMemory {}
// SAFETY: as above; it is written through `&mut` only.
unsafe impl Sync for ValueMemory {}

impl Piece {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }

    /// Where in the piece two places of the whole value are.
    fn within(&self, begin: u64, end: u64) -> (usize, usize) {
        let within = |place: u64| place.saturating_sub(self.offset).min(self.len as u64) as usize;
        (within(begin), within(end))
    }
}

impl ValueMemory {
    /// Bytes to be read.
    ///
    /// # Safety
    /// The bytes must stay valid and unchanged until the last use of the result.
    pub unsafe fn of(bytes: &[u8]) -> Self {
        ValueMemory::Whole(Piece { data: NonNull::from(bytes).cast(), len: bytes.len(), offset: 0 })
    }

    /// Bytes to be read, one piece after another.
    ///
    /// # Safety
    /// As [`ValueMemory::of`], for each piece.
    pub unsafe fn of_pieces(pieces: &[&[u8]]) -> Self {
        ValueMemory::collect(pieces.iter().map(|bytes| (NonNull::from(*bytes).cast(), bytes.len())))
    }

    /// Room to be filled, one piece after another.
    ///
    /// # Safety
    /// Each piece must stay valid, and be used by nobody else, until the last use of the result. A piece of length 0 may lie
    /// anywhere.
    pub unsafe fn room(pieces: &[libc::iovec]) -> Self {
        ValueMemory::collect(
            pieces.iter().filter_map(|piece| Some((NonNull::new(piece.iov_base)?.cast(), piece.iov_len))),
        )
    }

    fn collect(pieces: impl Iterator<Item = (NonNull<u8>, usize)>) -> Self {
        let mut offset = 0_u64;
        let mut pieces = pieces.fuse().map(|(data, len)| {
            let piece = Piece { data, len, offset };
            offset = piece.end();
            piece
        });
        match (pieces.next(), pieces.next(), pieces.next()) {
            (Some(only), None, _) => ValueMemory::Whole(only),
            (Some(first), Some(second), None) => ValueMemory::Two([first, second]),
            (first, second, third) => {
                ValueMemory::Scattered([first, second, third].into_iter().flatten().chain(pieces).collect())
            }
        }
    }

    fn pieces(&self) -> &[Piece] {
        match self {
            ValueMemory::Whole(piece) => std::slice::from_ref(piece),
            ValueMemory::Two(pieces) => pieces,
            ValueMemory::Scattered(pieces) => pieces,
        }
    }

    /// How many bytes there are, or are room for.
    #[allow(clippy::len_without_is_empty, reason = "memory for no bytes is as good as any")]
    pub fn len(&self) -> u64 {
        self.pieces().last().map_or(0, Piece::end)
    }

    /// The pieces that hold what lies between two places.
    fn between(&self, begin: u64, end: u64) -> impl Iterator<Item = &Piece> {
        let pieces = self.pieces();
        let first = pieces.partition_point(|piece| piece.end() <= begin);
        pieces.get(first..).unwrap_or_default().iter().take_while(move |piece| piece.offset < end)
    }

    /// The first piece of the room between two places; empty only if there is none.
    pub fn next_room(&mut self, begin: u64, end: u64) -> &mut [MaybeUninit<u8>] {
        match self.iovecs(begin, end).next() {
            // SAFETY: the piece is valid and nobody else's by the promise of whoever made `self`, which is borrowed mutably, and
            // `MaybeUninit` needs no initialisation.
            Some(piece) => unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) },
            None => &mut [],
        }
    }

    /// The room between two places, for the kernel.
    pub fn iovecs(&mut self, begin: u64, end: u64) -> impl Iterator<Item = libc::iovec> {
        self.between(begin, end).filter_map(move |piece| {
            let (from, to) = piece.within(begin, end);
            // SAFETY: `from` is at most the length of the piece.
            let base = unsafe { piece.data.as_ptr().add(from) };
            (to > from).then_some(libc::iovec { iov_base: base.cast(), iov_len: to - from })
        })
    }
}

/// Bytes that a guest may read now, wherever they lie.
#[derive(Clone, Copy)]
pub enum PayloadBytes<'a> {
    Slice(&'a [u8]),
    /// The first bytes of a memory, so many.
    Memory(&'a ValueMemory, u64),
}

impl<'a> PayloadBytes<'a> {
    /// # Safety
    /// The first `len` bytes of the memory must be initialised, and the memory valid for as long as it is borrowed.
    pub unsafe fn of(memory: &'a ValueMemory, len: u64) -> Self {
        PayloadBytes::Memory(memory, len.min(memory.len()))
    }

    #[allow(clippy::len_without_is_empty, reason = "no bytes are as good as any")]
    pub fn len(self) -> u64 {
        match self {
            PayloadBytes::Slice(bytes) => bytes.len() as u64,
            PayloadBytes::Memory(_, len) => len,
        }
    }

    /// All bytes, piece by piece.
    pub fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        self.range(0, self.len())
    }

    /// Some of the bytes, piece by piece, none of which is empty: those that there are from `offset` on, `len` at most.
    pub fn range(self, offset: u64, len: u64) -> impl Iterator<Item = &'a [u8]> {
        let end = offset.saturating_add(len).min(self.len());
        let (whole, memory) = match self {
            PayloadBytes::Slice(bytes) => {
                (Some(Piece { data: NonNull::from(bytes).cast(), len: bytes.len(), offset: 0 }), None)
            }
            PayloadBytes::Memory(memory, _) => (None, Some(memory)),
        };
        let pieces = memory.into_iter().flat_map(move |memory| memory.between(offset, end));
        whole.into_iter().chain(pieces.copied()).filter_map(move |piece| {
            let (from, to) = piece.within(offset, end);
            // SAFETY: it lies in the piece, and before `self.len()`, up to where bytes are initialised: a slice is, and
            // `PayloadBytes::of` was promised it.
            (to > from).then(|| unsafe { std::slice::from_raw_parts(piece.data.as_ptr().add(from), to - from) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_out_of_whatever_pieces_there_are() {
        let text = b"abcdefghij";
        let pieces: [&[u8]; 6] = [b"", b"abc", b"d", b"", b"efghij", b""];
        // SAFETY: `pieces` and `text` outlive both.
        let (scattered, whole) = unsafe { (ValueMemory::of_pieces(&pieces), ValueMemory::of(text)) };
        // SAFETY: as above.
        let all =
            unsafe { [PayloadBytes::Slice(text), PayloadBytes::of(&scattered, 100), PayloadBytes::of(&whole, 10)] };
        for bytes in all {
            assert_eq!(bytes.len(), 10);
            for offset in 0..=12 {
                for len in 0..=12 {
                    let parts: Vec<_> = bytes.range(offset, len).collect();
                    let right = text.iter().skip(offset as usize).take(len as usize).copied().collect::<Vec<_>>();
                    assert_eq!(parts.concat(), right, "{len} at {offset}");
                    assert!(parts.iter().all(|part| !part.is_empty()));
                }
            }
        }
        // SAFETY: as above.
        assert_eq!(unsafe { PayloadBytes::of(&scattered, 5) }.pieces().collect::<Vec<_>>().concat(), b"abcde");
    }

    #[test]
    fn room_is_filled_piece_by_piece_up_to_the_end_asked_for() {
        let mut space = [[0_u8; 3], [0; 3], [0; 3]];
        let piece = |part: &mut [u8; 3], len| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: len };
        let [a, b, c] = &mut space;
        let pieces =
            [piece(a, 3), piece(b, 0), piece(c, 3), libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        // SAFETY: the space outlives it, and nobody else uses it meanwhile.
        let mut memory = unsafe { ValueMemory::room(&pieces) };
        assert_eq!(memory.len(), 6);
        assert_eq!(memory.iovecs(1, 5).map(|piece| piece.iov_len).collect::<Vec<_>>(), [2, 2]);
        for at in 0..5 {
            let room = memory.next_room(at, 5);
            assert_eq!(room.len() as u64, if at < 3 { 3 - at } else { 5 - at });
            room[0].write(at as u8 + 1);
        }
        assert!(memory.next_room(5, 5).is_empty());
        assert_eq!(space, [[1, 2, 3], [0; 3], [4, 5, 0]]);
    }
}
