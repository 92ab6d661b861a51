//! The fields of each frame: what it asks or says, but for the value. Numbers are little-endian; a key is its length in two
//! bytes and then itself.

use crate::frame::Fault;
use crate::{
    MAX_BATCH_KEYS, MAX_KEY_BYTES, MAX_LISTED_KEYS, MAX_MANIFEST_CHUNKS, MAX_NAMESPACE_BYTES, MAX_TEXT_BYTES,
    NONCE_BYTES, Nonce,
};

/// Chunks and manifests are apart: a key of one is never a key of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Chunk = 1,
    Manifest = 2,
}

/// The first frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    pub nonce: Nonce,
    pub namespace: &'a str,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected<'a> {
    pub nonce: Nonce,
    /// What is published survives a restart of the server.
    pub durable: bool,
    /// The longest value that the server takes, in bytes.
    pub max_value: u64,
    /// What the server calls itself.
    pub server: &'a str,
}

/// Store a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    pub kind: Kind,
    /// Also over what is there. Always so for a manifest.
    pub replace: bool,
    pub key: &'a [u8],
    /// Of a manifest: the chunks that must be there when it appears.
    pub chunks: Vec<&'a [u8]>,
}

/// Get or delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
}

/// Which of these chunks are there. The answer's fields are a byte for each, 1 or 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exists<'a> {
    pub keys: Vec<&'a [u8]>,
}

/// Get chunks: an answer for each, from the first on, for as many as do not come to more than `max_bytes`, but at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchGet<'a> {
    pub max_bytes: u64,
    pub keys: Vec<&'a [u8]>,
}

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

const REPLACE: u8 = 1;
const DURABLE: u8 = 1;

impl<'a> Connect<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        push_short(&mut bytes, self.namespace.as_bytes());
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (nonce, namespace) = (reader.nonce()?, reader.text(MAX_NAMESPACE_BYTES)?);
            (!namespace.is_empty()).then_some(Connect { nonce, namespace })
        })
    }
}

impl<'a> Connected<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        bytes.push(if self.durable { DURABLE } else { 0 });
        bytes.extend(self.max_value.to_le_bytes());
        push_short(&mut bytes, self.server.as_bytes());
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (nonce, flags, max_value) = (reader.nonce()?, reader.byte()?, reader.u64()?);
            let server = reader.text(MAX_TEXT_BYTES)?;
            Some(Connected { nonce, durable: flags & DURABLE != 0, max_value, server })
        })
    }
}

impl<'a> Put<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8, if self.replace { REPLACE } else { 0 }];
        push_short(&mut bytes, self.key);
        push_keys(&mut bytes, &self.chunks);
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (kind, flags, key) = (reader.kind()?, reader.byte()?, reader.key()?);
            let chunks = reader.keys(MAX_MANIFEST_CHUNKS)?;
            let sound = flags & !REPLACE == 0 && (kind == Kind::Manifest || chunks.is_empty());
            sound.then_some(Put { kind, replace: flags & REPLACE != 0, key, chunks })
        })
    }
}

impl<'a> Lookup<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        push_short(&mut bytes, self.key);
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| Some(Lookup { kind: reader.kind()?, key: reader.key()? }))
    }
}

impl<'a> Exists<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_keys(&mut bytes, &self.keys);
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| Some(Exists { keys: reader.keys(MAX_BATCH_KEYS)? }))
    }
}

impl<'a> BatchGet<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.max_bytes.to_le_bytes().to_vec();
        push_keys(&mut bytes, &self.keys);
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (max_bytes, keys) = (reader.u64()?, reader.keys(MAX_BATCH_KEYS)?);
            (!keys.is_empty()).then_some(BatchGet { max_bytes, keys })
        })
    }
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

/// The text in the fields of an answer, cut to what is worth showing.
pub fn text(fields: &[u8]) -> String {
    let cut = fields.get(..MAX_TEXT_BYTES).unwrap_or(fields);
    String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn push_short(bytes: &mut Vec<u8>, short: &[u8]) {
    // What is longer than any key is cut here and refused by whoever reads it.
    let short = short.get(..u16::MAX.into()).unwrap_or(short);
    bytes.extend((short.len() as u16).to_le_bytes());
    bytes.extend(short);
}

fn push_keys(bytes: &mut Vec<u8>, keys: &[&[u8]]) {
    bytes.extend(u32::try_from(keys.len()).unwrap_or(u32::MAX).to_le_bytes());
    keys.iter().for_each(|key| push_short(bytes, key));
}

/// Fields that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Read all of it, or it is malformed.
    fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, Fault> {
        read(&mut self)
            .filter(|_| self.0.is_empty())
            .ok_or(Fault::Malformed("the fields are not those of this operation"))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn nonce(&mut self) -> Option<Nonce> {
        self.array::<NONCE_BYTES>()
    }

    fn kind(&mut self) -> Option<Kind> {
        match self.byte()? {
            1 => Some(Kind::Chunk),
            2 => Some(Kind::Manifest),
            _ => None,
        }
    }

    fn short(&mut self, limit: usize) -> Option<&'a [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > limit { None } else { self.take(len) }
    }

    fn text(&mut self, limit: usize) -> Option<&'a str> {
        std::str::from_utf8(self.short(limit)?).ok()
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.short(MAX_KEY_BYTES).filter(|key| !key.is_empty())
    }

    fn keys(&mut self, limit: usize) -> Option<Vec<&'a [u8]>> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        // Each has three bytes at least, so a count that lies makes no room.
        if count > limit || count > self.0.len() / 3 {
            return None;
        }
        (0..count).map(|_| self.key()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of every frame, as clients and servers of other versions have them. `docs/memkv-wire.md` describes them; whole frames
    /// are in `tests/document.rs`.
    #[test]
    fn golden_fields() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (chunk, manifest) = (Kind::Chunk, Kind::Manifest);
        let nonce = "ab".repeat(32);
        let listed = Listed { key: b"k".to_vec(), size: 5, stored: 6, used: 0x0102_0304_0506_0708 };
        let usage = Usage { bytes: 1, chunks: 2, manifests: 3, capacity: 4 };
        for (fields, expected) in [
            (Connect { nonce: [0xab; 32], namespace: "ns" }.encode(), nonce.clone() + "02006e73"),
            (
                Connected { nonce: [0xab; 32], durable: true, max_value: 0x0102, server: "s" }.encode(),
                nonce + "0102010000000000000100" + "73",
            ),
            (
                Put { kind: chunk, replace: false, key: b"k", chunks: vec![] }.encode(),
                "01000100".to_owned() + "6b00000000",
            ),
            (
                Put { kind: manifest, replace: true, key: b"k", chunks: vec![b"c1", b"c2"] }.encode(),
                "020101006b02000000".to_owned() + "02006331" + "02006332",
            ),
            (Lookup { kind: manifest, key: b"k" }.encode(), "0201006b".to_owned()),
            (Exists { keys: vec![b"a", b"bc"] }.encode(), "02000000010061".to_owned() + "02006263"),
            (
                BatchGet { max_bytes: 0x0102, keys: vec![b"a"] }.encode(),
                "0201000000000000".to_owned() + "01000000010061",
            ),
            (List { kind: chunk, after: b"k", limit: 0x0102 }.encode(), "0101006b02010000".to_owned()),
            (
                Listing(vec![listed]).encode(),
                "01006b0500000000000000".to_owned() + "0600000000000000" + "0807060504030201",
            ),
            (usage.encode(), (1..5).map(|n| format!("0{n}00000000000000")).collect()),
            (
                Evict { bytes: 1, unused_since: 2, keep_since: 3 }.encode(),
                (1..4).map(|n| format!("0{n}00000000000000")).collect(),
            ),
            (
                Evicted { bytes: 1, chunks: 2, manifests: 3, more: true }.encode(),
                (1..4).map(|n| format!("0{n}00000000000000")).collect::<String>() + "01",
            ),
        ] {
            assert_eq!(hex(fields), expected);
        }
    }
}
