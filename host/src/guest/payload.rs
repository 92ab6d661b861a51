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

/// The bytes of a handle. A lent one whose call is over has none.
fn bytes<'a>(table: &'a ResourceTable, handle: &Resource<Payload>) -> wasmtime::Result<Result<&'a [u8], Error>> {
    let ended = || Error::invalid("this payload was lent for a call that is over; `share` keeps one");
    Ok(table.get(handle)?.bytes().ok_or_else(ended))
}

fn cut(bytes: &[u8], offset: u64, len: u64) -> Result<&[u8], Error> {
    let range = usize::try_from(offset)
        .ok()
        .zip(usize::try_from(len).ok())
        .and_then(|(offset, len)| bytes.get(offset..offset.checked_add(len)?));
    range.ok_or_else(|| Error::invalid(format!("{len} bytes at {offset} reach past the end, {}", bytes.len())))
}

/// Parts as slices, in order. A handle that is none traps; what a guest could have got wrong is an answer.
pub(super) fn slices<'a>(
    table: &'a ResourceTable,
    parts: &'a [Part],
) -> wasmtime::Result<Result<Vec<&'a [u8]>, Error>> {
    let mut slices = Vec::with_capacity(parts.len());
    for part in parts {
        let slice = match part {
            Part::Bytes(bytes) => Ok(bytes.as_slice()),
            Part::Payload(handle) => bytes(table, handle)?,
            Part::Range(Range { payload, offset, len }) => {
                bytes(table, payload)?.and_then(|bytes| cut(bytes, *offset, *len))
            }
        };
        match slice {
            Ok(slice) => slices.push(slice),
            Err(error) => return Ok(Err(error)),
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
        Ok(self.table.get(&handle)?.bytes().map_or(0, |bytes| bytes.len() as u64))
    }

    fn read(&mut self, handle: Resource<Payload>, offset: u64, len: u32) -> Answer<Vec<u8>> {
        if len as usize > limits::MAX_GUEST_COPY_BYTES {
            let message = format!("{len} bytes at once; read at most {}", limits::MAX_GUEST_COPY_BYTES);
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        answered(bytes(&self.table, &handle)?.and_then(|bytes| cut(bytes, offset, len.into()).map(<[u8]>::to_vec)))
    }

    fn share(&mut self, handle: Resource<Payload>) -> Answer<Resource<Payload>> {
        let payload = self.table.get(&handle)?;
        let copied = match payload {
            Payload::Lent(_) => payload.bytes().map_or(0, |bytes| bytes.len() as u64),
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
