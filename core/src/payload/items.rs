//! The items of a running call, which its guest addresses by number: the bytes to put, or where the bytes to get belong.
//!
//! Invariant: memory of an item is written at most once for each payload that lies in it. While a payload lies there, or is on
//! its way there, bytes that claim the same item go to memory of the host's own instead; so a guest that confuses items pays
//! with a copy, and what it has a handle to does not change.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::Payload;
use super::buffer::{Buffer, Filling};
use super::memory::{PayloadBytes, ValueMemory};
use super::sum::{Covering, SUMMED_AT_ONCE, Sum, Summing};
use crate::error::{Error, ErrorKind};

#[derive(Default)]
pub struct Items {
    /// Numbers the calls, so that a payload of an earlier one is known.
    call: u64,
    of_call: OfCall,
}

#[derive(Default)]
enum OfCall {
    #[default]
    None,
    Sources(Vec<ItemSource>),
    Rooms(Vec<ItemRoom>),
}

/// The bytes of an item to put.
pub struct ItemSource {
    memory: ValueMemory,
    /// The buffer that the memory belongs to, where it is the host's own, so that keeping it needs no copy.
    owner: Option<Arc<Buffer>>,
}

/// Where an item to get belongs.
struct ItemRoom {
    /// None: the host allocates. Also while something is on its way there.
    memory: Option<ValueMemory>,
    /// How many bytes of a payload lie there.
    placed: Option<usize>,
    /// Of what lies there, where one is wanted. On its way with the memory.
    sum: Option<Box<Summing>>,
}

/// Bytes in the memory of an item, from its start.
pub struct Placed {
    call: u64,
    item: u32,
    len: usize,
}

impl ItemSource {
    /// # Safety
    /// The memory must stay valid and unchanged until [`Items::end`].
    pub unsafe fn borrowed(memory: ValueMemory) -> Self {
        ItemSource { memory, owner: None }
    }

    /// A buffer of the host, which the source keeps alive.
    pub fn buffer(buffer: &Arc<Buffer>) -> Self {
        // SAFETY: the buffer does not change, and lives as long as the owner beside it.
        ItemSource { memory: unsafe { ValueMemory::of(buffer) }, owner: Some(buffer.clone()) }
    }

    fn bytes(&self) -> PayloadBytes<'_> {
        // SAFETY: what is put is initialised, and valid by the promise of `borrowed` or because of the owner.
        unsafe { PayloadBytes::of(&self.memory, self.memory.len()) }
    }
}

impl Items {
    /// Begin a call that puts these.
    pub fn begin_put(&mut self, sources: Vec<ItemSource>) {
        self.of_call = OfCall::Sources(sources);
    }

    /// Begin a call that gets items into these memories, and sums up on the way what is to be summed up; the host allocates for those that
    /// have none.
    ///
    /// # Safety
    /// Each must stay valid, and be used by nobody else, until [`Items::end`].
    pub unsafe fn begin_get(&mut self, rooms: impl Iterator<Item = (Option<ValueMemory>, Option<Covering>)>) {
        let room = |(memory, covering): (_, Option<Covering>)| {
            let sum = covering.map(|covering| Box::new(Summing::new(covering)));
            ItemRoom { memory, placed: None, sum }
        };
        self.of_call = OfCall::Rooms(rooms.map(room).collect());
    }

    /// The checksum of what lies in the memory of an item, where one was wanted and all of it has come.
    pub fn sum(&self, item: u32) -> Option<Sum> {
        let ItemRoom { placed, sum, .. } = self.room(item)?;
        let sum = sum.as_ref()?.sum()?;
        (placed.map(|placed| placed as u64) == Some(sum.stored)).then_some(sum)
    }

    /// The call is over: its items, and what was placed in them, are nobody's any more.
    pub fn end(&mut self) {
        self.of_call = OfCall::None;
        self.call += 1;
    }

    /// Whether the running call puts something.
    pub fn puts(&self) -> bool {
        matches!(self.of_call, OfCall::Sources(_))
    }

    fn source(&self, item: u32) -> Result<&ItemSource, Error> {
        match &self.of_call {
            OfCall::Sources(sources) => sources
                .get(item as usize)
                .ok_or_else(|| Error::invalid(format!("there is no item {item}: the call has {}", sources.len()))),
            _ => Err(Error::invalid(format!("there is no item {item}: this call puts nothing"))),
        }
    }

    /// The bytes of an item to put.
    pub fn bytes_of_item(&self, item: u32) -> Result<PayloadBytes<'_>, Error> {
        self.source(item).map(ItemSource::bytes)
    }

    /// The host's own buffer that an item to put is, if it is one.
    pub fn buffer_of_item(&self, item: u32) -> Option<&Arc<Buffer>> {
        self.source(item).ok()?.owner.as_ref()
    }

    /// The bytes of a payload. `Invalid` if the call in whose memory they lay is over.
    pub fn bytes_of<'a>(&'a self, payload: &'a Payload) -> Result<PayloadBytes<'a>, Error> {
        let Placed { call, item, len } = match payload {
            Payload::Owned(buffer) => return Ok(PayloadBytes::Slice(buffer)),
            Payload::Placed(placed) => placed,
        };
        match self.room(*item).filter(|_| *call == self.call) {
            // SAFETY: so many bytes were filled, and the memory is valid by the promise of `begin_get`.
            Some(ItemRoom { memory: Some(memory), .. }) => Ok(unsafe { PayloadBytes::of(memory, *len as u64) }),
            _ => Err(Error::invalid("this payload lay in the memory of a call that is over; `share` keeps one")),
        }
    }

    fn room(&self, item: u32) -> Option<&ItemRoom> {
        match &self.of_call {
            OfCall::Rooms(rooms) => rooms.get(item as usize),
            _ => None,
        }
    }

    fn room_mut(&mut self, item: u32) -> Option<&mut ItemRoom> {
        match &mut self.of_call {
            OfCall::Rooms(rooms) => rooms.get_mut(item as usize),
            _ => None,
        }
    }

    /// The memory of an item for so many bytes, if it has memory, nothing lies there, and they fit.
    pub fn claim(&mut self, item: u32, len: u64) -> Option<Placing> {
        let room = self.room_mut(item).filter(|room| room.placed.is_none())?;
        let memory = room.memory.take_if(|memory| len <= memory.len())?;
        let mut sum = room.sum.take();
        sum.iter_mut().for_each(|sum| sum.begin_anew());
        Some(Placing { memory, item, len: usize::try_from(len).ok()?, filled: 0, sum })
    }

    /// All memory of an item, for bytes whose number [`Destination::shorten`] says before they come. To be settled or given back.
    pub fn claim_all(&mut self, item: u32) -> Option<Destination> {
        let len = self.room(item)?.memory.as_ref()?.len();
        self.claim(item, len).map(Destination::Item)
    }

    /// Give the memory of an item back in which nothing lies after all.
    pub fn give_back(&mut self, destination: Option<Destination>) {
        if let Some(Destination::Item(Placing { memory, item, sum, .. })) = destination
            && let Some(room) = self.room_mut(item)
        {
            (room.memory, room.sum) = (Some(memory), sum);
        }
    }

    /// Give the memory of an item back, full or not. `Corrupt` if bytes are missing.
    pub fn settle(&mut self, placing: Placing) -> Result<Placed, Error> {
        let Placing { memory, item, len, filled, sum } = placing;
        let call = self.call;
        let full = filled == len;
        if let Some(room) = self.room_mut(item) {
            (room.memory, room.sum) = (Some(memory), sum);
            room.placed = full.then_some(len);
        }
        if full { Ok(Placed { call, item, len }) } else { Err(missing(filled, len)) }
    }

    /// Nobody has a handle any more to what lies in an item's memory.
    pub fn release(&mut self, placed: &Placed) {
        if placed.call == self.call
            && let Some(room) = self.room_mut(placed.item)
        {
            room.placed = None;
        }
    }

    /// Put a value where its item belongs: see [`Got`]. `data` is what the guest answered for the item.
    pub fn place_buffer(&mut self, item: u32, data: Arc<Buffer>) -> Result<Got, Error> {
        let Some(ItemRoom { memory: Some(memory), .. }) = self.room(item) else { return Ok(Got::Buffer(data)) };
        if data.len() as u64 > memory.len() {
            return Ok(Got::TooLong(data.len()));
        }
        // What lay there was answered for this item and is overwritten, or for another one and has been copied out.
        if let Some(room) = self.room_mut(item) {
            room.placed = None;
        }
        let Some(mut placing) = self.claim(item, data.len() as u64) else { return Ok(Got::Buffer(data)) };
        placing.push(&data);
        self.settle(placing).map(|placed| Got::Placed(placed.len))
    }
}

/// Where the bytes of an item to get are in the end.
#[derive(Debug)]
pub enum Got {
    /// In the memory that the caller named, from its start, so many.
    Placed(usize),
    /// Nowhere: so many bytes do not fit there.
    TooLong(usize),
    /// In memory of the host's own; the caller named none.
    Buffer(Arc<Buffer>),
    /// Something that is not what was put. No instance answers this: the layer of envelopes does. Boxed, for a batch moves its answers about.
    Damaged(Box<Damaged>),
}

/// What tells damaged bytes from other ones, without the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// How many there are in the store.
    pub len: usize,
    /// A digest of them, for comparisons within the process.
    pub digest: u128,
}

impl Placed {
    /// The item in whose memory the bytes lie, and how many they are, if the call is the running one.
    pub fn in_call(&self, items: &Items) -> Option<(u32, usize)> {
        (self.call == items.call).then_some((self.item, self.len))
    }
}

/// Memory of an item that is being filled.
pub struct Placing {
    memory: ValueMemory,
    item: u32,
    len: usize,
    filled: usize,
    sum: Option<Box<Summing>>,
}

impl Placing {
    /// How far it is filled before what came is looked at.
    fn next_look(&self) -> usize {
        match self.sum {
            Some(_) => self.len.min(self.filled.saturating_add(SUMMED_AT_ONCE)),
            None => self.len,
        }
    }

    fn rest(&mut self) -> &mut [MaybeUninit<u8>] {
        let end = self.next_look() as u64;
        self.memory.next_room(self.filled as u64, end)
    }

    fn rest_in_pieces(&mut self) -> impl Iterator<Item = libc::iovec> {
        let end = self.next_look() as u64;
        self.memory.iovecs(self.filled as u64, end)
    }

    /// # Safety
    /// The first `count` bytes of what is still to be filled have been initialised.
    unsafe fn came(&mut self, count: usize) {
        self.filled = self.filled.saturating_add(count).min(self.len);
        if let Some(sum) = &mut self.sum {
            // SAFETY: so many bytes were filled, and the memory is valid by the promise of `begin_get`.
            sum.take(unsafe { PayloadBytes::of(&self.memory, self.filled as u64) }, self.len as u64);
        }
    }

    /// # Safety
    /// As [`Placing::came`].
    unsafe fn advance(&mut self, count: usize) {
        // SAFETY: by this function's own condition.
        unsafe { self.came(count) };
        super::counts::add(|counts| counts.placed += count);
    }

    fn push(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            let rest = self.rest();
            let count = part.len().min(rest.len());
            let (Some(to), Some((from, behind))) = (rest.get_mut(..count), part.split_at_checked(count)) else {
                return;
            };
            if count == 0 {
                return;
            }
            to.write_copy_of_slice(from);
            part = behind;
            // SAFETY: so many bytes have just been written.
            unsafe { self.came(count) };
            super::counts::add(|counts| counts.copied += count);
        }
    }
}

/// Copy a value to memory that it fits into. Answers its checksum, where one is wanted.
pub fn place(memory: ValueMemory, data: &[u8], covering: Option<Covering>) -> Option<Sum> {
    let sum = covering.map(|covering| Box::new(Summing::new(covering)));
    // It is no item's, and is never settled.
    let mut placing = Placing { memory, item: 0, len: data.len(), filled: 0, sum };
    placing.push(data);
    placing.sum?.sum()
}

/// Where bytes go that a guest receives or reads.
pub enum Destination {
    Buffer(Filling),
    Item(Placing),
}

impl Destination {
    /// Fill no more than the first bytes of an item's memory. False: so many do not fit, or it is no item's memory.
    pub fn shorten(&mut self, len: u64) -> bool {
        match (self, usize::try_from(len)) {
            (Destination::Item(placing), Ok(len)) if len as u64 <= placing.memory.len() => {
                placing.len = len;
                // It begins with the length.
                placing.sum.iter_mut().for_each(|sum| sum.begin_anew());
                true
            }
            _ => false,
        }
    }

    /// How many bytes are still to be filled.
    pub fn left(&mut self) -> u64 {
        match self {
            Destination::Buffer(filling) => filling.rest().len() as u64,
            Destination::Item(placing) => (placing.len - placing.filled) as u64,
        }
    }

    /// Memory that is still to be filled, of which there may be more behind; empty: all is. [`Destination::advance`] says how
    /// much of it was.
    pub fn rest(&mut self) -> &mut [MaybeUninit<u8>] {
        match self {
            Destination::Buffer(filling) => filling.rest(),
            Destination::Item(placing) => placing.rest(),
        }
    }

    /// What was filled so far.
    pub fn filled(&self) -> PayloadBytes<'_> {
        match self {
            Destination::Buffer(filling) => PayloadBytes::Slice(filling.filled()),
            // SAFETY: so many bytes were filled, and the memory is valid by the promise of `begin_get`.
            Destination::Item(Placing { memory, filled, .. }) => unsafe { PayloadBytes::of(memory, *filled as u64) },
        }
    }

    /// Copy bytes behind those that are there. Answers how many there was room for.
    pub fn push(&mut self, part: &[u8]) -> usize {
        match self {
            Destination::Buffer(filling) => {
                let before = filling.rest().len();
                filling.push(part);
                before - filling.rest().len()
            }
            Destination::Item(placing) => {
                let before = placing.filled;
                placing.push(part);
                placing.filled - before
            }
        }
    }
}

/// Memory that is filled from its beginning.
pub trait Fill {
    /// Memory that is to be filled next, as far as the kernel takes it at once. Answers how many pieces there are; none: all is filled.
    fn rest_in_pieces(&mut self, pieces: &mut [libc::iovec]) -> usize;

    /// # Safety
    /// The first `count` bytes of what is still to be filled have been initialised.
    unsafe fn advance(&mut self, count: usize);
}

impl Fill for Destination {
    fn rest_in_pieces(&mut self, pieces: &mut [libc::iovec]) -> usize {
        match self {
            Destination::Buffer(filling) => {
                let rest = filling.rest();
                let all = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
                pieces.iter_mut().zip((!rest.is_empty()).then_some(all)).map(|(piece, rest)| *piece = rest).count()
            }
            Destination::Item(placing) => {
                pieces.iter_mut().zip(placing.rest_in_pieces()).map(|(piece, rest)| *piece = rest).count()
            }
        }
    }

    unsafe fn advance(&mut self, count: usize) {
        match self {
            // SAFETY: by this function's own condition.
            Destination::Buffer(filling) => unsafe { filling.advance(count) },
            // SAFETY: as above.
            Destination::Item(placing) => unsafe { placing.advance(count) },
        }
    }
}

fn missing(filled: usize, len: usize) -> Error {
    Error::new(ErrorKind::Corrupt, format!("only {filled} of {len} bytes arrived"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is filled into an item is summed up on the way, once for each payload that lies there.
    #[test]
    fn an_item_has_the_checksum_of_what_lies_in_it() {
        let covering = Covering { before: b"key".to_vec(), behind: 4, part: 1..3 };
        let value: Vec<u8> = (0..3 * SUMMED_AT_ONCE).map(|n| (n % 251) as u8).collect();
        let expected = |value: &[u8]| {
            let mut summing = Summing::new(covering.clone());
            summing.take(PayloadBytes::Slice(value), value.len() as u64);
            summing.sum()
        };
        let (mut memory, mut other) = (vec![0_u8; value.len()], vec![0_u8; 10]);
        let room = |memory: &mut Vec<u8>| libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        let (first, second) = (room(&mut memory), room(&mut other));
        let mut items = Items::default();
        // SAFETY: the memory outlives the items, and nobody else uses it meanwhile.
        let rooms = unsafe {
            [
                (Some(ValueMemory::room(&[first])), Some(covering.clone())),
                (Some(ValueMemory::room(&[second])), None),
                (None, Some(covering.clone())),
            ]
        };
        // SAFETY: as above.
        unsafe { items.begin_get(rooms.into_iter()) };

        let mut placing = items.claim(0, value.len() as u64).unwrap();
        assert!(placing.rest().len() <= SUMMED_AT_ONCE, "it is looked at on the way");
        placing.push(&value[..200_000]);
        let mut destination = Destination::Item(placing);
        for part in value[200_000..].chunks(1000) {
            destination.rest()[..part.len()].write_copy_of_slice(part);
            // SAFETY: so many bytes were written.
            unsafe { destination.advance(part.len()) };
        }
        assert_eq!(items.sum(0), None, "it is on its way");
        let Destination::Item(placing) = destination else { unreachable!() };
        let placed = items.settle(placing).unwrap();
        assert_eq!(items.sum(0), expected(&value));
        assert!(items.sum(0).is_some());

        items.release(&placed);
        assert_eq!(items.sum(0), None, "nobody has what lies there");
        assert!(matches!(items.place_buffer(0, Arc::new(Buffer::concat(&[b"others"]).unwrap())), Ok(Got::Placed(6))));
        assert_eq!(items.sum(0), expected(b"others"));
        let mut all = items.claim_all(1).unwrap();
        assert!(!all.shorten(11));
        items.give_back(Some(all));
        items.place_buffer(1, Arc::new(Buffer::concat(&[b"others"]).unwrap())).unwrap();
        assert_eq!([items.sum(1), items.sum(2), items.sum(3)], [None; 3], "none is wanted, or nothing lies there");
        items.end();
        assert_eq!(items.sum(0), None);

        // SAFETY: as above.
        unsafe { items.begin_get([(Some(ValueMemory::room(&[first])), Some(covering.clone()))].into_iter()) };
        let mut all = items.claim_all(0).unwrap();
        all.push(b"ab");
        assert!(all.shorten(6), "so long is it after all");
        all.push(b"cdef");
        let Destination::Item(placing) = all else { unreachable!() };
        items.settle(placing).unwrap();
        assert_eq!(items.sum(0), expected(b"abcdef"));
    }
}
