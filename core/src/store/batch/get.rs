//! Gets of a batch: placed straight in the caller's memory, and checked there.

use std::sync::Arc;

use super::super::open_store::OpenStore;
use super::super::seal::{SEAL_BYTES, seal};
use super::super::verify::is_xxh3;
use super::super::{Damage, Opened};
use super::{BatchOptions, Fetched, Memory, distinct, unanswered};
use crate::backend::{Answers, ChunkHash, Target};
use crate::counters::{Event, Operation};
use crate::error::Error;
use crate::payload::{Buffer, Got};
use crate::until::Until;

/// An item of a get.
pub struct Wanted {
    hash: Result<ChunkHash, Error>,
    /// Where its bytes go. `None`: memory is allocated.
    pieces: Option<Vec<libc::iovec>>,
}

impl Wanted {
    /// A chunk to get into the caller's memory.
    pub fn new(hash: &[u8], memory: &mut Memory<'_>) -> Self {
        let pieces = match memory {
            Memory::Pieces(pieces) => {
                Some(pieces.iter_mut().map(|piece| room(piece.as_mut_ptr(), piece.len())).collect())
            }
            Memory::Allocate => None,
        };
        Wanted { hash: ChunkHash::new(hash), pieces }
    }

    /// A value for memory that the caller of [`Opened::get_many`] answers for.
    pub fn placed(hash: &[u8], pieces: Vec<libc::iovec>) -> Self {
        Wanted { hash: ChunkHash::new(hash), pieces: Some(pieces) }
    }

    /// A value for memory that is allocated.
    pub fn allocated(hash: &[u8]) -> Self {
        Wanted { hash: ChunkHash::new(hash), pieces: None }
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

fn capacity(pieces: &[libc::iovec]) -> usize {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.iov_len))
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
enum Found {
    /// So many bytes of value lie in the memory of the item that named it first.
    Placed(usize),
    /// The value is the first so many bytes of a buffer.
    Buffer(Arc<Buffer>, usize),
    TooLong(usize),
    Nothing,
}

/// How what was stored is judged.
#[derive(Clone, Copy)]
struct Judge {
    sealed: bool,
    content_keyed: bool,
}

impl Judge {
    /// The length of the value in what was stored, if it is what was put as far as that can be known.
    fn value_len(self, hash: &ChunkHash, stored: &[&[u8]]) -> Option<usize> {
        let len: usize = stored.iter().map(|part| part.len()).sum();
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
}

impl Opened {
    /// As [`Store::get_many`](super::super::Store::get_many).
    ///
    /// # Safety
    /// The pieces of the items are valid for writes until this returns, and nobody else uses them.
    pub unsafe fn get_many(&self, items: &[Wanted], options: &BatchOptions, until: &Until) -> Answers<Option<Fetched>> {
        let misses = |_| Ok(items.iter().map(|_| Ok(None)).collect());
        // SAFETY: by this function's own condition.
        self.counted_or(Operation::GetMany, misses, || Ok(unsafe { self.get_admitted(items, options, until) }))
    }

    /// # Safety
    /// As [`Opened::get_many`].
    unsafe fn get_admitted(
        &self,
        items: &[Wanted],
        options: &BatchOptions,
        until: &Until,
    ) -> Vec<Result<Option<Fetched>, Error>> {
        let Opened { shared, save, .. } = self;
        let judge = Judge { sealed: options.sealed, content_keyed: options.xxh3_keys || shared.verifier.insists() };
        let (distinct, first_of) = distinct(items.iter().map(|item| item.hash.as_ref().ok()));
        let first = |index: usize| items.get(index).and_then(|item| item.pieces.as_deref());

        let waiting: Vec<Option<Arc<Buffer>>> = distinct.iter().map(|(_, hash)| save.waiting(hash)).collect();
        let absent: Vec<(usize, ChunkHash)> =
            distinct.iter().zip(&waiting).filter(|(_, waits)| waits.is_none()).map(|(item, _)| *item).collect();
        // A seal lies behind its value: it has room behind the caller's.
        let mut seals = vec![[0_u8; SEAL_BYTES]; if options.sealed { absent.len() } else { 0 }];
        let mut seals = seals.iter_mut();
        let mut with_seal = |pieces: &[libc::iovec]| -> Vec<libc::iovec> {
            let seal = seals.next().map(|seal| room(seal.as_mut_ptr(), SEAL_BYTES));
            pieces.iter().copied().chain(seal).collect()
        };
        let rooms: Vec<Option<Vec<libc::iovec>>> =
            absent.iter().map(|(index, _)| first(*index).map(&mut with_seal)).collect();
        // SAFETY: by this function's own condition; the seals are local.
        let target = |room: &Option<Vec<libc::iovec>>| match room {
            // The cast only names the lifetime of `rooms`, which outlives the calls.
            Some(pieces) => unsafe { Target::memory(std::slice::from_raw_parts(pieces.as_ptr(), pieces.len())) },
            None => Target::ALLOCATE,
        };
        let targets: Vec<Target<'_>> = rooms.iter().map(target).collect();
        let hashes: Vec<ChunkHash> = absent.iter().map(|(_, hash)| *hash).collect();
        let most = |room: &Option<Vec<libc::iovec>>| {
            room.as_deref().map_or(shared.max_value_bytes(), |room| capacity(room) as u64)
        };
        until.expect(rooms.iter().map(most).fold(0, u64::saturating_add));
        let value_len = |hash: &ChunkHash, target: &Target<'_>, got: &Got| match got {
            // SAFETY: the call has placed so many bytes, and by this function's own condition nobody else writes there.
            Got::Placed(len) => judge.value_len(hash, &unsafe { filled(target.pieces().unwrap_or_default(), *len) }),
            Got::Buffer(data) => judge.value_len(hash, &[data]),
            Got::TooLong(_) => None,
        };
        let answers = shared.batches().get_all(&hashes, &targets, &value_len, until).each();

        let mut answers = absent.iter().zip(&rooms).zip(answers);
        let mut next_answer = || -> Result<Found, Error> {
            let (((index, hash), room), answer) = answers.next().ok_or_else(unanswered)?;
            Ok(match answer? {
                None => Found::Nothing,
                Some((Got::Buffer(data), Some(len))) => Found::Buffer(data, len),
                Some((Got::Buffer(data), None)) => shared.mended(hash, &data, judge, until),
                Some((Got::TooLong(len), _)) => {
                    Found::TooLong(len.saturating_sub(if options.sealed { SEAL_BYTES } else { 0 }))
                }
                Some((Got::Placed(_), Some(len))) => Found::Placed(len),
                Some((Got::Placed(len), None)) => {
                    // SAFETY: the call has placed so many bytes there.
                    let damaged = unsafe { filled(room.as_deref().unwrap_or_default(), len) }.concat();
                    match shared.mended(hash, &damaged, judge, until) {
                        Found::Buffer(sound, len) => {
                            let value = sound.get(..len).unwrap_or_default();
                            let item = items.get(*index).ok_or_else(unanswered)?;
                            // SAFETY: by this function's own condition; the value is in a buffer of the host.
                            match unsafe { item.deliver(&[value])? } {
                                Fetched::Placed(len) => Found::Placed(len),
                                _ => Found::TooLong(len),
                            }
                        }
                        found => found,
                    }
                }
            })
        };
        let found: Vec<Result<Found, Error>> = waiting
            .into_iter()
            .map(|waits| match waits {
                // What waits has no seal, and is what was put.
                Some(data) => {
                    let len = data.len();
                    Ok(Found::Buffer(data, len))
                }
                None => next_answer(),
            })
            .collect();

        let deliver = |(index, (item, first_of)): (usize, (&Wanted, Option<usize>))| {
            item.hash.as_ref().map_err(Clone::clone)?;
            let which = first_of.ok_or_else(unanswered)?;
            let (Some(found), Some((first_item, _))) = (found.get(which), distinct.get(which)) else {
                return Err(unanswered());
            };
            let fetched = match found.as_ref().map_err(Clone::clone)? {
                Found::Nothing => {
                    shared.counters.count(Event::Misses);
                    return Ok(None);
                }
                Found::TooLong(len) => Fetched::TooLong(*len),
                Found::Placed(len) if index == *first_item => Fetched::Placed(*len),
                Found::Placed(len) => {
                    // SAFETY: the value lies in the memory of the first item, and this is another one's.
                    let value = unsafe { filled(first(*first_item).unwrap_or_default(), *len) };
                    // SAFETY: by this function's own condition.
                    unsafe { item.deliver(&value)? }
                }
                // SAFETY: by this function's own condition; the value is in a buffer of the host.
                Found::Buffer(data, len) => unsafe { item.deliver(&[data.get(..*len).unwrap_or_default()])? },
            };
            let len = match &fetched {
                Fetched::Placed(len) => *len,
                Fetched::Buffer(data) => data.len(),
                Fetched::TooLong(_) => 0,
            };
            shared.hit(len as u64);
            Ok(Some(fetched))
        };
        items.iter().zip(first_of).enumerate().map(deliver).collect()
    }
}

impl OpenStore {
    /// What was fetched is not what was put. It is read again, and removed if it stays so: the next put stores it again.
    fn mended(&self, hash: &ChunkHash, damaged: &[u8], judge: Judge, until: &Until) -> Found {
        let sound = |again: &[u8]| judge.value_len(hash, &[again]).is_some();
        match self.remove_damaged(hash, damaged, &sound, until) {
            Damage::Passing(sound) => match judge.value_len(hash, &[&sound]) {
                Some(len) => Found::Buffer(sound, len),
                None => Found::Nothing,
            },
            Damage::Removed | Damage::Stays(_) => Found::Nothing,
        }
    }
}
