//! The contract's `payload` interface: handles to bytes in the host, and checksums over them.

use std::hash::Hasher;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;
use wasmtime::component::{Resource, ResourceTable};

use super::GuestAnswer;
use super::{Reserved, State, answered};
use crate::contract::bindings::kv_store::backend::payloads::{Host, HostPayload, ItemRange, Part, Range};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Buffer, Filling, Items, Payload, PayloadBytes};

/// The bytes of a handle's payload.
fn bytes<'a>(
    table: &'a ResourceTable,
    items: &'a Items,
    handle: &Resource<Payload>,
) -> wasmtime::Result<Result<PayloadBytes<'a>, Error>> {
    Ok(items.bytes_of(table.get(handle)?))
}

/// Slices that one host call works on: bounded, for a guest can name the same bytes again and again.
#[derive(Default)]
struct Gathered<'a> {
    slices: Vec<&'a [u8]>,
    bytes: usize,
}

impl<'a> Gathered<'a> {
    fn add(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        for piece in pieces {
            self.bytes = self.bytes.saturating_add(piece.len());
            let exhausted = |message: String| Err(Error::new(ErrorKind::Exhausted, message));
            if self.bytes > limits::MAX_VALUE_BYTES {
                let (bytes, most) = (self.bytes, limits::MAX_VALUE_BYTES);
                return exhausted(format!("value too long: the parts have {bytes} bytes or more, the limit is {most}"));
            }
            if self.slices.len() >= limits::MAX_SLICES {
                return exhausted(format!("the parts consist of more than {} pieces of memory", limits::MAX_SLICES));
            }
            self.slices.push(piece);
        }
        Ok(())
    }

    fn add_range(&mut self, bytes: PayloadBytes<'a>, offset: u64, len: u64) -> Result<(), Error> {
        let all = bytes.len();
        if offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(Error::invalid(format!("{len} bytes at {offset} reach past the end, {all}")));
        }
        self.add(bytes.range(offset, len))
    }
}

/// What the host holds of parts for as long as they are sent, beyond what a connection counts for: the bytes that the guest passed by value.
pub(super) fn passed_bytes<'a>(parts: impl Iterator<Item = &'a Part>) -> u64 {
    let len = |part: &Part| match part {
        Part::Bytes(bytes) => bytes.len() as u64,
        _ => 0,
    };
    parts.map(len).sum::<u64>().saturating_sub(limits::RECEIVE_BUFFER_BYTES as u64)
}

/// Parts as slices, in order. A handle that is none traps; what a guest could have got wrong is an answer.
pub(super) fn slices<'a>(
    table: &'a ResourceTable,
    items: &'a Items,
    parts: &'a [Part],
) -> wasmtime::Result<Result<Vec<&'a [u8]>, Error>> {
    let mut gathered = Gathered::default();
    for part in parts {
        let added = match part {
            Part::Bytes(bytes) => gathered.add(std::iter::once(bytes.as_slice())),
            Part::Payload(handle) => bytes(table, items, handle)?.and_then(|bytes| gathered.add(bytes.pieces())),
            Part::Range(Range { payload: handle, offset, len }) => {
                bytes(table, items, handle)?.and_then(|bytes| gathered.add_range(bytes, *offset, *len))
            }
            Part::Item(item) => items.bytes_of_item(*item).and_then(|bytes| gathered.add(bytes.pieces())),
            Part::ItemRange(ItemRange { item, offset, len }) => {
                items.bytes_of_item(*item).and_then(|bytes| gathered.add_range(bytes, *offset, *len))
            }
        };
        if let Err(error) = added {
            return Ok(Err(error));
        }
    }
    Ok(Ok(gathered.slices))
}

impl State {
    /// Run a checksum over parts.
    fn over<T>(&self, parts: &[Part], digest: impl FnOnce(&[&[u8]]) -> Result<T, Error>) -> GuestAnswer<T> {
        answered(slices(&self.table, &self.items, parts)?.and_then(|slices| digest(&slices)))
    }

    /// Do something with slices one after another, and look at the deadline on the way.
    fn piecewise(&self, slices: &[&[u8]], mut work: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut left = limits::UNINTERRUPTED_BYTES;
        for piece in slices.iter().flat_map(|slice| slice.chunks(limits::UNINTERRUPTED_BYTES)) {
            if piece.len() > left {
                self.until.check()?;
                left = limits::UNINTERRUPTED_BYTES;
            }
            left -= piece.len();
            work(piece);
        }
        Ok(())
    }

    fn give_made(&mut self, made: Result<(Buffer, Reserved), Error>) -> GuestAnswer<Resource<Payload>> {
        answered(made.and_then(|(buffer, reserved)| self.give(Arc::new(buffer), reserved)))
    }
}

impl Host for State {
    fn crc32c(&mut self, parts: Vec<Part>) -> GuestAnswer<u32> {
        self.over(&parts, |slices| {
            let mut crc = 0;
            self.piecewise(slices, |piece| crc = crc32c::crc32c_append(crc, piece))?;
            Ok(crc)
        })
    }

    fn xxh3(&mut self, parts: Vec<Part>) -> GuestAnswer<u64> {
        self.over(&parts, |slices| {
            if let [slice] = slices
                && slice.len() <= limits::UNINTERRUPTED_BYTES
            {
                return Ok(XxHash3_64::oneshot(slice));
            }
            let mut hasher = XxHash3_64::new();
            self.piecewise(slices, |piece| hasher.write(piece))?;
            Ok(hasher.finish())
        })
    }

    fn sha256(&mut self, parts: Vec<Part>) -> GuestAnswer<Vec<u8>> {
        self.over(&parts, |slices| {
            let mut hasher = Sha256::new();
            self.piecewise(slices, |piece| hasher.update(piece))?;
            Ok(hasher.finalize().to_vec())
        })
    }

    fn hmac_sha256(&mut self, key: Vec<u8>, parts: Vec<Part>) -> GuestAnswer<Vec<u8>> {
        self.over(&parts, |slices| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|error| Error::invalid(error.to_string()))?;
            self.piecewise(slices, |piece| mac.update(piece))?;
            Ok(mac.finalize().into_bytes().to_vec())
        })
    }
}

impl HostPayload for State {
    fn from_bytes(&mut self, bytes: Vec<u8>) -> GuestAnswer<Resource<Payload>> {
        let made = self.reserve(bytes.len() as u64).and_then(|room| Ok((Buffer::concat(&[&bytes])?, room)));
        self.give_made(made)
    }

    fn from_parts(&mut self, parts: Vec<Part>) -> GuestAnswer<Resource<Payload>> {
        // What the host holds already is not copied.
        let whole = match parts.as_slice() {
            [Part::Item(item)] => self.items.buffer_of_item(*item),
            [Part::Payload(handle)] => match self.table.get(handle)? {
                Payload::Owned(buffer) => Some(buffer),
                Payload::Placed(_) => None,
            },
            _ => None,
        };
        if let Some(buffer) = whole.cloned() {
            return answered(self.reserve(0).and_then(|room| self.give(buffer, room)));
        }
        let made = slices(&self.table, &self.items, &parts)?.and_then(|slices| {
            let len = slices.iter().map(|slice| slice.len() as u64).sum();
            let room = self.reserve(len)?;
            let mut filling = Filling::new(len)?;
            self.piecewise(&slices, |piece| filling.push(piece))?;
            Ok((filling.finish()?, room))
        });
        self.give_made(made)
    }

    fn len(&mut self, handle: Resource<Payload>) -> wasmtime::Result<u64> {
        // `len` has no error to answer; a payload that has ended has no bytes.
        Ok(bytes(&self.table, &self.items, &handle)?.map_or(0, PayloadBytes::len))
    }

    fn read(&mut self, handle: Resource<Payload>, offset: u64, len: u32) -> GuestAnswer<Vec<u8>> {
        if len as usize > limits::MAX_GUEST_COPY_BYTES {
            let message = format!("{len} bytes at once; read at most {}", limits::MAX_GUEST_COPY_BYTES);
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        let mut gathered = Gathered::default();
        let cut =
            bytes(&self.table, &self.items, &handle)?.and_then(|bytes| gathered.add_range(bytes, offset, len.into()));
        answered(cut.map(|()| gathered.slices.concat()))
    }

    fn share(&mut self, handle: Resource<Payload>) -> GuestAnswer<Resource<Payload>> {
        self.from_parts(vec![Part::Payload(handle)])
    }

    fn drop(&mut self, handle: Resource<Payload>) -> wasmtime::Result<()> {
        Ok(self.drop_payload(handle)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{ItemSource, ValueMemory};

    #[test]
    fn hashing_and_joining_end_at_the_deadline() {
        use std::time::{Duration, Instant};

        use crate::contract::tests::{access, budgets};
        let mut state = State::new(access(crate::limits::Limits::default(), &budgets(1 << 30, 0)), 0).unwrap();
        let at = |end| crate::until::Until::with(&Default::default(), &Default::default(), Some(end), None);
        let late = Instant::now();
        let long = || vec![Part::Bytes(vec![7; limits::UNINTERRUPTED_BYTES + 1])];
        let short = || vec![Part::Bytes(vec![7; limits::UNINTERRUPTED_BYTES])];
        let joined =
            |parts: fn() -> Vec<Part>| [parts(), vec![Part::Bytes(Vec::new())]].into_iter().flatten().collect();
        for (end, is_done) in [(late + Duration::from_secs(60), true), (late, false)] {
            state.start_call(at(end));
            assert_eq!(state.crc32c(long()).unwrap().is_ok(), is_done);
            assert_eq!(state.xxh3(long()).unwrap().is_ok(), is_done);
            assert_eq!(state.sha256(long()).unwrap().is_ok(), is_done);
            assert_eq!(state.hmac_sha256(vec![1], long()).unwrap().is_ok(), is_done);
            assert_eq!(state.from_parts(joined(long)).unwrap().is_ok(), is_done);
            assert!(state.xxh3(short()).unwrap().is_ok() && state.from_parts(joined(short)).unwrap().is_ok());
            assert!(state.access.reach.shares.payload_bytes.used() > 0);
        }
        let refused = state.sha256(long()).unwrap().unwrap_err();
        assert!(refused.message.contains("timeout_ms"), "{refused:?}");
    }

    #[test]
    fn the_same_bytes_again_and_again_are_bounded_in_length_and_number() {
        let value = vec![7; 1 << 20];
        let pieces: Vec<&[u8]> = value.chunks(1 << 10).collect();
        // SAFETY: the pieces outlive the memory.
        let memory = unsafe { ValueMemory::of_pieces(&pieces) };
        let mut items = Items::default();
        // SAFETY: as above.
        items.begin_put(vec![unsafe { ItemSource::borrowed(memory) }]);
        let bytes = items.bytes_of_item(0).unwrap();
        let mut gathered = Gathered::default();
        let times = (0..).take_while(|_| gathered.add_range(bytes, 0, 1 << 20).is_ok()).count();
        assert_eq!(times, limits::MAX_VALUE_BYTES >> 20);
        let mut gathered = Gathered::default();
        let times = (0..).take_while(|_| gathered.add_range(bytes, 5, 1).is_ok()).count();
        assert_eq!(times, limits::MAX_SLICES);
        for (offset, len) in [(value.len() as u64 + 1, 0), (0, u64::MAX), (u64::MAX, 1)] {
            assert!(Gathered::default().add_range(bytes, offset, len).is_err(), "{len} at {offset}");
        }
    }
}
