//! The contract's `payload` interface: handles to bytes in the host, and checksums over them.

use std::hash::Hasher;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;
use wasmtime::component::{Resource, ResourceTable};

use super::{Reserved, State, answered};
use crate::contract::bindings::kv_store::backend::payloads::{Host, HostPayload, ItemRange, Part, Range};
use crate::contract::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Buffer, Bytes, Items, Payload};

type Answer<T> = wasmtime::Result<Result<T, types::Error>>;

/// The bytes of a handle's payload.
fn bytes<'a>(
    table: &'a ResourceTable,
    items: &'a Items,
    handle: &Resource<Payload>,
) -> wasmtime::Result<Result<Bytes<'a>, Error>> {
    Ok(items.bytes_of(table.get(handle)?))
}

/// Slices that one host call works on: bounded, for hashing and writing are not interrupted, and a guest can name the same
/// bytes again and again.
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

    fn add_range(&mut self, bytes: Bytes<'a>, offset: u64, len: u64) -> Result<(), Error> {
        let all = bytes.len();
        if offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(Error::invalid(format!("{len} bytes at {offset} reach past the end, {all}")));
        }
        self.add(bytes.range(offset, len))
    }
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
    fn over<T>(&self, parts: &[Part], digest: impl FnOnce(&[&[u8]]) -> Result<T, Error>) -> Answer<T> {
        answered(slices(&self.table, &self.items, parts)?.and_then(|slices| digest(&slices)))
    }

    fn give_made(&mut self, made: Result<(Buffer, Reserved), Error>) -> Answer<Resource<Payload>> {
        answered(made.and_then(|(buffer, reserved)| self.give(Arc::new(buffer), reserved)))
    }
}

impl Host for State {
    fn crc32c(&mut self, parts: Vec<Part>) -> Answer<u32> {
        self.over(&parts, |slices| Ok(slices.iter().fold(0, |crc, slice| crc32c::crc32c_append(crc, slice))))
    }

    fn xxh3(&mut self, parts: Vec<Part>) -> Answer<u64> {
        self.over(&parts, |slices| {
            if let [slice] = slices {
                return Ok(XxHash3_64::oneshot(slice));
            }
            let mut hasher = XxHash3_64::new();
            slices.iter().for_each(|slice| hasher.write(slice));
            Ok(hasher.finish())
        })
    }

    fn sha256(&mut self, parts: Vec<Part>) -> Answer<Vec<u8>> {
        self.over(&parts, |slices| {
            let mut hasher = Sha256::new();
            slices.iter().for_each(|slice| hasher.update(slice));
            Ok(hasher.finalize().to_vec())
        })
    }

    fn hmac_sha256(&mut self, key: Vec<u8>, parts: Vec<Part>) -> Answer<Vec<u8>> {
        self.over(&parts, |slices| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|error| Error::invalid(error.to_string()))?;
            slices.iter().for_each(|slice| mac.update(slice));
            Ok(mac.finalize().into_bytes().to_vec())
        })
    }
}

impl HostPayload for State {
    fn from_bytes(&mut self, bytes: Vec<u8>) -> Answer<Resource<Payload>> {
        let made = self.reserve(bytes.len() as u64).and_then(|room| Ok((Buffer::concat(&[&bytes])?, room)));
        self.give_made(made)
    }

    fn from_parts(&mut self, parts: Vec<Part>) -> Answer<Resource<Payload>> {
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
            let room = self.reserve(slices.iter().map(|slice| slice.len() as u64).sum())?;
            Ok((Buffer::concat(&slices)?, room))
        });
        self.give_made(made)
    }

    fn len(&mut self, handle: Resource<Payload>) -> wasmtime::Result<u64> {
        // `len` has no error to answer; a payload that has ended has no bytes.
        Ok(bytes(&self.table, &self.items, &handle)?.map_or(0, Bytes::len))
    }

    fn read(&mut self, handle: Resource<Payload>, offset: u64, len: u32) -> Answer<Vec<u8>> {
        if len as usize > limits::MAX_GUEST_COPY_BYTES {
            let message = format!("{len} bytes at once; read at most {}", limits::MAX_GUEST_COPY_BYTES);
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        let mut gathered = Gathered::default();
        let cut =
            bytes(&self.table, &self.items, &handle)?.and_then(|bytes| gathered.add_range(bytes, offset, len.into()));
        answered(cut.map(|()| gathered.slices.concat()))
    }

    fn share(&mut self, handle: Resource<Payload>) -> Answer<Resource<Payload>> {
        self.from_parts(vec![Part::Payload(handle)])
    }

    fn drop(&mut self, handle: Resource<Payload>) -> wasmtime::Result<()> {
        Ok(self.drop_payload(handle)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Memory, Source};

    #[test]
    fn the_same_bytes_again_and_again_are_bounded_in_length_and_number() {
        let value = vec![7; 1 << 20];
        let pieces: Vec<&[u8]> = value.chunks(1 << 10).collect();
        // SAFETY: the pieces outlive the memory.
        let memory = unsafe { Memory::of_pieces(&pieces) };
        let mut items = Items::default();
        // SAFETY: as above.
        items.begin_put(vec![unsafe { Source::borrowed(memory) }]);
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
