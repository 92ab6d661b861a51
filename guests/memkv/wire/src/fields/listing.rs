//! Listing, counting and evicting: the same in both versions.

use super::Kind;
use super::reader::{Reader, push_short};
use crate::frame::Fault;
use crate::{MAX_KEY_BYTES, MAX_LISTED_KEYS};

/// List what the namespace has of a kind, in the order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a> {
    pub kind: Kind,
    /// The last key of the answer before; empty at first.
    pub after: &'a [u8],
    /// Entries of the answer, 4096 at most.
    pub limit: u32,
}

/// One entry of the answer. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: Vec<u8>,
    /// The length of the value in bytes.
    pub size: u64,
    pub stored: u64,
    pub used: u64,
}

/// The value of the answer: entries. None: there are no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(pub Vec<Listed>);

/// How much the namespace holds: the fields of the answer to USAGE, whose own fields are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of values.
    pub bytes: u64,
    pub chunks: u64,
    pub manifests: u64,
    /// Bytes that the server may hold, of all namespaces and with what entries cost it.
    pub capacity: u64,
}

/// Remove what was not used, the least recently used first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evict {
    /// At least so many bytes of values.
    pub bytes: u64,
    /// And all that was last used before; 0: nothing for that.
    pub unused_since: u64,
    /// No chunk that was stored or used after this.
    pub keep_since: u64,
}

/// The fields of the answer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    pub bytes: u64,
    pub chunks: u64,
    pub manifests: u64,
    /// Ask again for the rest.
    pub more: bool,
}

impl<'a> List<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        push_short(&mut bytes, self.after);
        bytes.extend(self.limit.to_le_bytes());
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (kind, after) = (reader.kind()?, reader.short(MAX_KEY_BYTES)?);
            let limit = u32::from_le_bytes(reader.array()?);
            (limit > 0).then_some(List { kind, after, limit })
        })
    }
}

impl Listing {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Listed { key, size, stored, used } in &self.0 {
            push_short(&mut bytes, key);
            [size, stored, used].into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes
    }

    pub fn decode(value: &[u8]) -> Result<Self, Fault> {
        Reader(value).whole(|reader| {
            let mut listed = Vec::new();
            while !reader.0.is_empty() {
                let key = reader.key()?.to_vec();
                listed.push(Listed { key, size: reader.u64()?, stored: reader.u64()?, used: reader.u64()? });
            }
            (listed.len() <= MAX_LISTED_KEYS).then_some(Listing(listed))
        })
    }
}

impl Usage {
    pub fn encode(&self) -> Vec<u8> {
        [self.bytes, self.chunks, self.manifests, self.capacity].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub fn decode(fields: &[u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (bytes, chunks, manifests, capacity) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
            Some(Usage { bytes, chunks, manifests, capacity })
        })
    }
}

impl Evict {
    pub fn encode(&self) -> Vec<u8> {
        [self.bytes, self.unused_since, self.keep_since].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub fn decode(fields: &[u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            Some(Evict { bytes: reader.u64()?, unused_since: reader.u64()?, keep_since: reader.u64()? })
        })
    }
}

impl Evicted {
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [self.bytes, self.chunks, self.manifests].into_iter().flat_map(u64::to_le_bytes);
        numbers.chain([u8::from(self.more)]).collect()
    }

    pub fn decode(fields: &[u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (bytes, chunks, manifests) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let more = Some(reader.byte()?).filter(|more| *more < 2)? == 1;
            Some(Evicted { bytes, chunks, manifests, more })
        })
    }
}
