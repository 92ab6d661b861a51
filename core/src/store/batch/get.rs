//! Gets of a batch: placed straight in the caller's memory, and checked there.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use super::super::Opened;
use super::super::lookup::Lookup;
use super::super::open_store::{Item, OpenStore};
use super::super::seal::{SEAL_BYTES, seal};
use super::super::suspects::{self, Damage, Judge};
use super::super::verify::is_xxh3;
use super::{BatchOptions, Fetched, Memory, distinct, unanswered};
use crate::backend::{Answers, ChunkHash, Target, capacity};
use crate::counters::{Operation, Unanswered};
use crate::error::Error;
use crate::payload::{Buffer, Got};
use crate::until::Until;

/// An item of a get.
pub struct FetchItem {
    hash: Result<ChunkHash, Error>,
    /// Where its bytes go. `None`: memory is allocated.
    pieces: Option<Pieces>,
}

/// The pieces of memory of one value. Where it is one piece nothing is allocated.
enum Pieces {
    One([libc::iovec; 1]),
    Other(Vec<libc::iovec>),
}

impl FromIterator<libc::iovec> for Pieces {
    fn from_iter<I: IntoIterator<Item = libc::iovec>>(pieces: I) -> Self {
        let mut pieces = pieces.into_iter().fuse();
        match (pieces.next(), pieces.next()) {
            (Some(only), None) => Pieces::One([only]),
            (first, second) => Pieces::Other([first, second].into_iter().flatten().chain(pieces).collect()),
        }
    }
}

impl Deref for Pieces {
    type Target = [libc::iovec];

    fn deref(&self) -> &[libc::iovec] {
        match self {
            Pieces::One(piece) => piece,
            Pieces::Other(pieces) => pieces,
        }
    }
}

impl FetchItem {
    /// A chunk to get into the caller's memory.
    pub fn new(hash: &[u8], memory: &mut Memory<'_>) -> Self {
        let pieces = match memory {
            Memory::Pieces(pieces) => {
                Some(pieces.iter_mut().map(|piece| room(piece.as_mut_ptr(), piece.len())).collect())
            }
            Memory::Allocate => None,
        };
        FetchItem { hash: ChunkHash::new(hash), pieces }
    }

    /// A value for memory that the caller of [`Opened::get_many`] answers for.
    ///
    /// # Errors
    /// That of a piece.
    pub fn placed(hash: &[u8], pieces: impl Iterator<Item = Result<libc::iovec, Error>>) -> Result<Self, Error> {
        Ok(FetchItem { hash: ChunkHash::new(hash), pieces: Some(pieces.collect::<Result<_, _>>()?) })
    }

    /// A value for memory that is allocated.
    pub fn allocated(hash: &[u8]) -> Self {
        FetchItem { hash: ChunkHash::new(hash), pieces: None }
    }

    /// Copy a value to where it belongs.
    ///
    /// # Safety
    /// The pieces are valid for writes, nobody else uses them, and `value` is not in them.
    unsafe fn deliver(&self, value: &[&[u8]]) -> Result<Fetched, Error> {
        let Some(pieces) = &self.pieces else { return Buffer::concat(value).map(Fetched::Buffer) };
        let len = value.iter().map(|part| part.len()).sum();
        if capacity(pieces) < len {
            return Ok(Fetched::TooLong(len));
        }
        let mut rooms = pieces.iter().map(|piece| (piece.iov_base.cast::<u8>(), piece.iov_len));
        let (mut to, mut left) = (std::ptr::null_mut::<u8>(), 0);
        for part in value {
            let mut part = *part;
            while !part.is_empty() {
                if left == 0 {
                    let Some(room) = rooms.next() else { break };
                    (to, left) = room;
                    continue;
                }
                let (now, later) = part.split_at_checked(left).unwrap_or((part, &[]));
                // SAFETY: by this function's own condition; `now` has at most `left` bytes.
                unsafe {
                    std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len());
                    to = to.add(now.len());
                }
                left -= now.len();
                part = later;
            }
        }
        Ok(Fetched::Placed(len))
    }
}

pub fn room(data: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: data.cast(), iov_len: len }
}

/// The first bytes of memory that has been filled.
///
/// # Safety
/// So many bytes of the pieces are initialised, and nobody writes them while the slices live.
unsafe fn filled(pieces: &[libc::iovec], mut len: usize) -> Vec<&[u8]> {
    let part = |piece: &libc::iovec| {
        let part = piece.iov_len.min(len);
        len -= part;
        match part {
            0 => &[][..],
            // SAFETY: by this function's own condition.
            part => unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), part) },
        }
    };
    pieces.iter().map(part).filter(|part| !part.is_empty()).collect()
}

/// What was found of one chunk.
enum FoundChunk {
    /// So many bytes of value lie in the memory of the item that was chosen for it.
    Placed(usize),
    /// The value is the first so many bytes of a buffer.
    Buffer(Arc<Buffer>, usize),
    TooLong(usize),
    Nothing,
    /// There is something, and not what was put: it is not looked for elsewhere.
    Wrong,
}

/// How what lay plain is judged. What lay in an envelope has held against its checksum.
#[derive(Clone, Copy)]
struct Plain {
    /// With the seal of earlier versions behind it.
    sealed: bool,
    content_keyed: bool,
}

impl Plain {
    /// The length of the value in what was stored, if it is what was put as far as that can be known.
    fn value_len(self, hash: &ChunkHash, stored: &[&[u8]]) -> Option<usize> {
        let len: usize = stored.iter().map(|part| part.len()).sum();
        if hash.is_enveloped() {
            return Some(len);
        }
        if !self.sealed {
            return (!self.content_keyed || is_xxh3(hash, stored)).then_some(len);
        }
        let value = len.checked_sub(SEAL_BYTES)?;
        let mut left = value;
        let (mut parts, mut trailer) = (Vec::with_capacity(stored.len()), Vec::with_capacity(SEAL_BYTES));
        for part in stored {
            let (head, tail) = part.split_at_checked(left).unwrap_or((part, &[]));
            left -= head.len();
            parts.push(head);
            trailer.extend_from_slice(tail);
        }
        (seal(hash, value, parts.into_iter())[..] == trailer[..]).then_some(value)
    }

    /// What lies behind a value of its own.
    fn seal_bytes(self, hash: &ChunkHash) -> usize {
        if self.sealed && !hash.is_enveloped() { SEAL_BYTES } else { 0 }
    }
}

/// A chunk that is asked for: the item into whose memory it goes, and its hash where it may lie.
type Asked = (usize, ChunkHash);

impl Opened {
    /// As [`Store::get_many`](super::super::Store::get_many).
    ///
    /// # Safety
    /// The pieces of the items are valid for writes until this returns, and nobody else uses them.
    pub unsafe fn get_many(
        &self,
        items: &[FetchItem],
        options: &BatchOptions,
        until: &Until,
    ) -> Answers<Option<Fetched>> {
        let misses = |_| {
            self.shared.refused(items.len());
            Ok(items.iter().map(|_| Ok(None)).collect())
        };
        // SAFETY: by this function's own condition.
        self.counted_or(Operation::GetMany, misses, || Ok(unsafe { self.get_admitted(items, options, until) }))
    }

    /// # Safety
    /// As [`Opened::get_many`].
    unsafe fn get_admitted(
        &self,
        items: &[FetchItem],
        options: &BatchOptions,
        until: &Until,
    ) -> Vec<Result<Option<Fetched>, Error>> {
        let Opened { shared, save, .. } = self;
        let Some(described) = self.asks_as(items.len()) else { return items.iter().map(|_| Ok(None)).collect() };
        let (mut chunks, first_of) = distinct(items.iter().map(|item| item.hash.as_ref().ok()));
        chunks.iter_mut().for_each(|(_, hash)| *hash = hash.described_as(described));
        choose_memory(&mut chunks, &first_of, items);
        let mut found: Vec<Result<FoundChunk, Error>> = chunks.iter().map(|_| Ok(FoundChunk::Nothing)).collect();
        // What waits is what was put.
        save.each_waiting(chunks.iter().map(|(_, hash)| hash), |at, data| {
            if let Some(found) = found.get_mut(at) {
                *found = Ok(FoundChunk::Buffer(data.clone(), data.len()));
            }
        });
        let lookups: Vec<Lookup> = chunks.iter().map(|(_, hash)| shared.lookup_of(hash, options)).collect();
        for turn in 0..2 {
            let (mut places, mut asked) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
            for (at, ((found, lookup), (item, hash))) in found.iter().zip(&lookups).zip(&chunks).enumerate() {
                if let Ok(FoundChunk::Nothing) = found
                    && let Some(layout) = lookup.layout(turn)
                    && (turn == 0 || !until.is_others(hash))
                {
                    places.push(at);
                    asked.push((*item, hash.lying(layout)));
                }
            }
            if asked.is_empty() {
                continue;
            }
            // SAFETY: by this function's own condition.
            let answers = unsafe { shared.look_up(items, &asked, options, until) };
            for ((at, (_, hash)), answer) in places.into_iter().zip(&asked).zip(answers) {
                let there =
                    matches!(answer, Ok(FoundChunk::Placed(_) | FoundChunk::Buffer(..) | FoundChunk::TooLong(_)));
                shared.saw_layout1(hash, turn > 0 && there);
                if let Some(place) = found.get_mut(at) {
                    *place = answer;
                }
            }
        }

        let deliver = |(index, (item, first_of)): (usize, (&FetchItem, Option<usize>))| {
            let which = first_of.ok_or_else(unanswered)?;
            let (Some(found), Some((chosen, _))) = (found.get(which), chunks.get(which)) else {
                return Err(unanswered());
            };
            let fetched = match found.as_ref().map_err(Clone::clone)? {
                FoundChunk::Nothing | FoundChunk::Wrong => return Ok(None),
                FoundChunk::TooLong(len) => Fetched::TooLong(*len),
                FoundChunk::Placed(len) if index == *chosen => Fetched::Placed(*len),
                FoundChunk::Placed(len) => {
                    let memory = items.get(*chosen).and_then(|item| item.pieces.as_deref()).unwrap_or_default();
                    // SAFETY: the value lies in the memory of the chosen item, and this is another one's.
                    let value = unsafe { filled(memory, *len) };
                    // SAFETY: by this function's own condition.
                    unsafe { item.deliver(&value)? }
                }
                // SAFETY: by this function's own condition; the value is in a buffer of the host.
                FoundChunk::Buffer(data, len) => unsafe { item.deliver(&[data.get(..*len).unwrap_or_default()])? },
            };
            Ok(Some(fetched))
        };
        let counted = |(index, (item, first_of)): (usize, (&FetchItem, Option<usize>))| {
            let hash = item.hash.as_ref().map_err(Clone::clone).inspect_err(|_| shared.refused(1))?;
            let fetched = deliver((index, (item, first_of)));
            let bytes = fetched.as_ref().map(|fetched| fetched.as_ref().map(Fetched::bytes));
            shared.answered(Item::Chunk(hash), bytes, until);
            fetched
        };
        items.iter().zip(first_of).enumerate().map(counted).collect()
    }
}

/// Have each chunk go to the item that has the most memory for it, so that one with too little does not stand for the others.
fn choose_memory(chunks: &mut [Asked], first_of: &[Option<usize>], items: &[FetchItem]) {
    let room = |item: usize| items.get(item).and_then(|item| item.pieces.as_deref()).map_or(usize::MAX, capacity);
    for (index, first_of) in first_of.iter().enumerate() {
        if let Some((chosen, _)) = first_of.and_then(|which| chunks.get_mut(which))
            && room(index) > room(*chosen)
        {
            *chosen = index;
        }
    }
}

impl OpenStore {
    /// Ask for chunks where each may lie.
    ///
    /// # Safety
    /// As [`Opened::get_many`].
    unsafe fn look_up(
        &self,
        items: &[FetchItem],
        asked: &[Asked],
        options: &BatchOptions,
        until: &Until,
    ) -> Vec<Result<FoundChunk, Error>> {
        let plain = Plain { sealed: options.sealed, content_keyed: options.xxh3_keys || self.verifier.insists() };
        // A seal of earlier versions lies behind its value: it has room behind the caller's.
        let mut seals = vec![[0_u8; SEAL_BYTES]; if options.sealed { asked.len() } else { 0 }];
        let mut seals = seals.iter_mut();
        let mut memory_of = |(item, hash): &Asked| -> Option<Cow<'_, [libc::iovec]>> {
            let pieces = items.get(*item)?.pieces.as_deref()?;
            let Some(seal) = seals.next().filter(|_| plain.seal_bytes(hash) > 0) else { return Some(pieces.into()) };
            let seal = room(seal.as_mut_ptr(), SEAL_BYTES);
            Some(pieces.iter().copied().chain([seal]).collect())
        };
        let rooms: Vec<Option<Cow<'_, [libc::iovec]>>> = asked.iter().map(&mut memory_of).collect();
        let target = |room: &Option<Cow<'_, [libc::iovec]>>| match room {
            // SAFETY: by this function's own condition; the seals are local. The cast only names the lifetime of `rooms`, which outlives the
            // calls.
            Some(pieces) => unsafe { Target::memory(std::slice::from_raw_parts(pieces.as_ptr(), pieces.len())) },
            None => Target::ALLOCATE,
        };
        let targets: Vec<Target<'_>> = rooms.iter().map(target).collect();
        let hashes: Vec<ChunkHash> = asked.iter().map(|(_, hash)| *hash).collect();
        let most = |room: &Option<Cow<'_, [libc::iovec]>>| {
            room.as_deref().map_or(self.max_value_bytes(), |room| capacity(room) as u64)
        };
        until.expect(rooms.iter().map(most).fold(0, u64::saturating_add));
        let value_len = |hash: &ChunkHash, target: &Target<'_>, got: &Got| match got {
            Got::Placed(len) if hash.is_enveloped() => Some(*len),
            // SAFETY: the call has placed so many bytes, and by this function's own condition nobody else writes there.
            Got::Placed(len) => plain.value_len(hash, &unsafe { filled(target.pieces().unwrap_or_default(), *len) }),
            Got::Buffer(data) => plain.value_len(hash, &[data]),
            Got::TooLong(_) | Got::Damaged(_) => None,
        };
        let answers = self.batches().get_all(&hashes, &targets, &value_len, until).each();
        let found = |(((_, hash), room), answer): ((&Asked, &Option<Cow<'_, [libc::iovec]>>), _)| {
            let (got, len) = match answer? {
                Some(answer) => answer,
                None => return Ok(FoundChunk::Nothing),
            };
            let damaged = match (got, len) {
                (Got::Buffer(data), Some(len)) => return Ok(FoundChunk::Buffer(data, len)),
                (Got::Placed(_), Some(len)) => return Ok(FoundChunk::Placed(len)),
                (Got::TooLong(len), _) => return Ok(FoundChunk::TooLong(len.saturating_sub(plain.seal_bytes(hash)))),
                // It was never sealed, as far as can be known: the next sealed put stores it in an envelope.
                (Got::Buffer(_) | Got::Placed(_), None) if plain.sealed => {
                    until.dropped_chunk(hash, Unanswered::Flag);
                    return Ok(FoundChunk::Wrong);
                }
                (Got::Buffer(data), None) => suspects::damaged(&data),
                (Got::Placed(len), None) => {
                    // SAFETY: the call has placed so many bytes there.
                    suspects::damaged(&unsafe { filled(room.as_deref().unwrap_or_default(), len) }.concat())
                }
                (Got::Damaged(damaged), _) => *damaged,
            };
            let judge = Judge {
                is_sound: &|again| plain.value_len(hash, &[again]).is_some(),
                // What an engine says of keys is not enough for it.
                removable: hash.is_enveloped() || self.verifier.insists() || options.checks_itself,
            };
            match self.found_damaged(hash, damaged, &judge, until) {
                Damage::Passing(sound) => {
                    let len = sound.len();
                    Ok(FoundChunk::Buffer(sound, len))
                }
                Damage::Removed | Damage::Stays(_) => Ok(FoundChunk::Wrong),
            }
        };
        asked.iter().zip(&rooms).zip(answers).map(found).collect()
    }
}
