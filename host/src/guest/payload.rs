//! The contract's `payload` interface: handles to bytes in the host, and checksums over them.

use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use wasmtime::component::{Resource, ResourceTable};

use super::{State, answered};
use crate::bindings::kv_store::backend::payload::{Host, HostPayload, Part, Range};
use crate::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Buffer, Payload};

type Answer<T> = wasmtime::Result<Result<T, types::Error>>;

/// The payload of a handle, with bytes: a lent one whose call is over has none.
fn payload<'a>(table: &'a ResourceTable, handle: &Resource<Payload>) -> wasmtime::Result<Result<&'a Payload, Error>> {
    let ended = || Error::invalid("this payload was lent for a call that is over; `share` keeps one");
    let payload = table.get(handle)?;
    Ok(payload.pieces().map(|_| payload).ok_or_else(ended))
}

/// Add a range of a payload to `slices`, piece by piece.
fn cut<'a>(payload: &'a Payload, offset: u64, len: u64, slices: &mut Vec<&'a [u8]>) -> Result<(), Error> {
    let all = payload.len().unwrap_or(0);
    if offset.checked_add(len).is_none_or(|end| end > all) {
        return Err(Error::invalid(format!("{len} bytes at {offset} reach past the end, {all}")));
    }
    let (mut skipped, mut left) = (offset as usize, len as usize);
    for piece in payload.pieces().into_iter().flatten() {
        let skip = skipped.min(piece.len());
        skipped -= skip;
        let rest = piece.get(skip..).unwrap_or_default();
        let wanted = rest.get(..left.min(rest.len())).unwrap_or_default();
        left -= wanted.len();
        slices.extend((!wanted.is_empty()).then_some(wanted));
    }
    Ok(())
}

/// Parts as slices, in order. A handle that is none traps; what a guest could have got wrong is an answer.
pub(super) fn slices<'a>(
    table: &'a ResourceTable,
    parts: &'a [Part],
) -> wasmtime::Result<Result<Vec<&'a [u8]>, Error>> {
    let mut slices = Vec::with_capacity(parts.len());
    for part in parts {
        let added = match part {
            Part::Bytes(bytes) => {
                slices.push(bytes.as_slice());
                Ok(())
            }
            Part::Payload(handle) => {
                payload(table, handle)?.map(|payload| slices.extend(payload.pieces().into_iter().flatten()))
            }
            Part::Range(Range { payload: handle, offset, len }) => {
                payload(table, handle)?.and_then(|payload| cut(payload, *offset, *len, &mut slices))
            }
        };
        if let Err(error) = added {
            return Ok(Err(error));
        }
    }
    // Hashing and writing are not interrupted, and a guest can name the same bytes again and again.
    let bytes: usize = slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.len()));
    if bytes > limits::MAX_VALUE_BYTES {
        let message = format!("the parts come to {bytes} bytes; a value may have {}", limits::MAX_VALUE_BYTES);
        return Ok(Err(Error::new(ErrorKind::Exhausted, message)));
    }
    Ok(Ok(slices))
}

impl State {
    /// Run a checksum over parts.
    fn over<T>(&self, parts: &[Part], digest: impl FnOnce(&[&[u8]]) -> Result<T, Error>) -> Answer<T> {
        answered(slices(&self.table, parts)?.and_then(|slices| digest(&slices)))
    }

    fn give_buffer(&mut self, buffer: Result<Buffer, Error>) -> Answer<Resource<Payload>> {
        answered(buffer.and_then(|buffer| self.give(Payload::Owned(Arc::new(buffer)))))
    }
}

impl Host for State {
    fn crc32c(&mut self, parts: Vec<Part>) -> Answer<u32> {
        self.over(&parts, |slices| Ok(slices.iter().fold(0, |crc, slice| crc32c::crc32c_append(crc, slice))))
    }

    fn xxh3(&mut self, parts: Vec<Part>) -> Answer<u64> {
        self.over(&parts, |slices| {
            if let [slice] = slices {
                return Ok(xxhash_rust::xxh3::xxh3_64(slice));
            }
            let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
            slices.iter().for_each(|slice| hasher.update(slice));
            Ok(hasher.digest())
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
        self.give_buffer(self.check_room(bytes.len() as u64).and_then(|()| Buffer::concat(&[&bytes])))
    }

    fn from_parts(&mut self, parts: Vec<Part>) -> Answer<Resource<Payload>> {
        let buffer = slices(&self.table, &parts)?.and_then(|slices| {
            self.check_room(slices.iter().map(|slice| slice.len() as u64).sum())?;
            Buffer::concat(&slices)
        });
        self.give_buffer(buffer)
    }

    fn len(&mut self, handle: Resource<Payload>) -> wasmtime::Result<u64> {
        // `len` has no error to answer; an ended payload has no bytes.
        Ok(self.table.get(&handle)?.len().unwrap_or(0))
    }

    fn read(&mut self, handle: Resource<Payload>, offset: u64, len: u32) -> Answer<Vec<u8>> {
        if len as usize > limits::MAX_GUEST_COPY_BYTES {
            let message = format!("{len} bytes at once; read at most {}", limits::MAX_GUEST_COPY_BYTES);
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        let mut slices = Vec::new();
        let cut = payload(&self.table, &handle)?.and_then(|payload| cut(payload, offset, len.into(), &mut slices));
        answered(cut.map(|()| slices.concat()))
    }

    fn share(&mut self, handle: Resource<Payload>) -> Answer<Resource<Payload>> {
        let payload = self.table.get(&handle)?;
        let copied = match payload {
            Payload::Lent(_) => payload.len().unwrap_or(0),
            Payload::Owned(_) | Payload::Ended => 0,
        };
        let shared = self.check_room(copied).and_then(|()| payload.share()).and_then(|shared| {
            let buffer = shared.ok_or_else(|| Error::invalid("this payload was lent for a call that is over"))?;
            self.give(Payload::Owned(buffer))
        });
        answered(shared)
    }

    fn drop(&mut self, handle: Resource<Payload>) -> wasmtime::Result<()> {
        Ok(self.drop_payload(handle)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pieces are cut into, a range of them is that range of the whole.
    #[test]
    fn a_range_of_pieces_is_the_range_of_the_value() {
        let whole: Vec<u8> = (0..20).collect();
        let pieces: [&[u8]; 6] = [&whole[..3], &[], &whole[3..4], &whole[4..11], &[], &whole[11..]];
        // SAFETY: the pieces outlive the payload.
        let payload = unsafe { Payload::lend_pieces(&pieces) };
        assert_eq!(payload.len(), Some(20));
        assert_eq!(&**payload.share().unwrap().unwrap(), whole);
        for (offset, len) in (0..=20u64).flat_map(|offset| (0..=20 - offset).map(move |len| (offset, len))) {
            let mut slices = Vec::new();
            cut(&payload, offset, len, &mut slices).unwrap();
            assert_eq!(slices.concat(), whole[offset as usize..][..len as usize], "{len} at {offset}");
            assert!(slices.iter().all(|slice| !slice.is_empty()));
        }
        for (offset, len) in [(21, 0), (0, 21), (20, 1), (1, u64::MAX), (u64::MAX, 1)] {
            assert!(cut(&payload, offset, len, &mut Vec::new()).is_err(), "{len} at {offset}");
        }
    }
}
