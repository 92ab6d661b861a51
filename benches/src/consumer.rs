//! The C ABI as an engine uses it: outputs are taken as they come and freed, nothing is copied.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use kv_store_abi::store::kv_store_vtable;
use kv_store_conformance::{Handle, Library};

/// An open store that fails loudly: a benchmark of failures would look fast.
pub struct Client<'a> {
    handle: Handle<'a>,
    vtable: &'static kv_store_vtable,
}

/// Memory that the library handed over; freed as a consumer frees it.
pub struct Output {
    data: *mut u8,
    len: usize,
}

impl Output {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the library answered that so many bytes are there, and they are ours.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: memory of malloc that the ABI hands over.
        unsafe { libc::free(self.data.cast()) }
    }
}

impl<'a> Client<'a> {
    pub fn open(library: &'a Library, uri: &str) -> Result<Self> {
        let handle = library.open(uri).with_context(|| format!("cannot open {uri}"))?;
        Ok(Client { handle, vtable: library.vtable() })
    }

    pub fn put(&self, key: &[u8], data: &[u8]) -> Result<i32> {
        let put = self.vtable.put_chunk.context("put_chunk is NULL")?;
        // SAFETY: pointers to as many bytes as said.
        let answer = unsafe { put(self.handle.raw, key.as_ptr(), key.len(), data.as_ptr(), data.len()) };
        if answer < 0 {
            bail!("put_chunk answered {answer}");
        }
        Ok(answer)
    }

    pub fn get(&self, key: &[u8]) -> Result<Output> {
        let get = self.vtable.get_chunk.context("get_chunk is NULL")?;
        let (mut data, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: as above; the outputs are writable.
        let answer = unsafe { get(self.handle.raw, key.as_ptr(), key.len(), &mut data, &mut len) };
        if answer != 0 || data.is_null() {
            bail!("get_chunk answered {answer}");
        }
        Ok(Output { data, len })
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.get(key).is_ok()
    }

    pub fn publish(&self, name: &str, data: &[u8]) -> Result<()> {
        match self.handle.put_manifest(name, data) {
            Ok(0) => Ok(()),
            answer => bail!("put_manifest answered {answer:?}"),
        }
    }

    pub fn unpublish(&self, name: &str) -> Result<()> {
        match self.handle.delete_manifest(name) {
            Ok(0) => Ok(()),
            answer => bail!("delete_manifest answered {answer:?}"),
        }
    }

    pub fn prefetch<const BYTES: usize>(&self, keys: &[[u8; BYTES]]) -> Result<()> {
        match self.handle.prefetch_chunks(keys.as_flattened(), BYTES) {
            Some(0) => Ok(()),
            answer => bail!("prefetch_chunks answered {answer:?}"),
        }
    }
}

/// Keys that say nothing of their content: what lies under them has a checksum (`docs/envelope.md`). Today's llama.cpp consumers use 8 bytes
/// of content hash; see [`Contents`] and `fs/get-checked`.
pub const KEY_BYTES: usize = 16;

/// The key of a chunk. Keys spread over the directories of a store as hashes do.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()).to_be_bytes()
}

/// The key that a consumer makes of the content.
pub fn content_key(data: &[u8]) -> [u8; 8] {
    xxhash_rust::xxh3::xxh3_64(data).to_be_bytes()
}

/// Chunks of one length, by number, under the keys that a consumer makes of their content: every version of the library compares those of
/// a get. They differ in their first 8 bytes, and are made in one place.
pub struct Contents {
    data: Vec<u8>,
    keys: HashMap<u64, [u8; 8]>,
}

impl Contents {
    /// `len`: 8 bytes or more.
    pub fn new(len: usize) -> Self {
        Contents { data: noise(len, 1), keys: HashMap::new() }
    }

    /// Hash what is not to be hashed while something is measured.
    pub fn prepare(&mut self, numbers: Range<u64>) {
        for number in numbers {
            let key = content_key(self.bytes(number));
            self.keys.insert(number, key);
        }
    }

    /// A chunk that is prepared.
    pub fn chunk(&mut self, number: u64) -> Result<([u8; 8], &[u8])> {
        Ok((self.key(number)?, self.bytes(number)))
    }

    /// Its key.
    pub fn key(&self, number: u64) -> Result<[u8; 8]> {
        self.keys.get(&number).copied().with_context(|| format!("chunk {number} was not prepared"))
    }

    fn bytes(&mut self, number: u64) -> &[u8] {
        self.data[..8].copy_from_slice(&number.to_le_bytes());
        &self.data
    }
}

/// Bytes that no storage system could make shorter.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut word).take(len.div_ceil(8)).flatten().collect();
    bytes.truncate(len);
    bytes
}
