//! The fields of each frame: what it asks or says, but for the value. Numbers are little-endian; a key is its length in two
//! bytes and then itself.

mod listing;
mod reader;

pub use listing::{Evict, Evicted, List, Listed, Listing, Usage};
use reader::{Reader, push_keys, push_short};

use crate::frame::{Fault, Version};
use crate::{
    MAX_BATCH_KEYS, MAX_MANIFEST_CHUNKS, MAX_NAMESPACE_BYTES, MAX_TEXT_BYTES, Nonce, SESSION_BYTES, SessionId,
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
    /// Version 2: the session whose frames are not read any more when this is answered.
    pub replaces: Option<SessionId>,
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
    /// Version 2: of this connection; zeros in version 1.
    pub session: SessionId,
    /// Version 2: nanoseconds of the server's clock, which never goes back; 0 in version 1.
    pub time: u64,
}

/// Store a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    pub kind: Kind,
    /// Also over what is there. Always so for a manifest.
    pub replace: bool,
    /// Version 2, of a manifest: its last bytes are the place of a generation, into which the server writes.
    pub generation: bool,
    /// Version 2: the server changes nothing when its clock is here, in nanoseconds; 0: none.
    pub end: u64,
    pub key: &'a [u8],
    /// Of a manifest: the chunks that must be there when it appears.
    pub chunks: Vec<&'a [u8]>,
}

/// Get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
}

/// Delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete<'a> {
    pub kind: Kind,
    /// As of [`Put`].
    pub end: u64,
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

/// Make chunks last as a manifest that names them would, without one. In version 2 only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit<'a> {
    pub chunks: Vec<&'a [u8]>,
}

const REPLACE: u8 = 1;
const GENERATION: u8 = 2;
const DURABLE: u8 = 1;

impl<'a> Connect<'a> {
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        push_short(&mut bytes, self.namespace.as_bytes());
        if version >= Version::Two {
            push_short(&mut bytes, self.replaces.as_ref().map_or(&[], |session| session));
        }
        bytes
    }

    pub fn decode(fields: &'a [u8], version: Version) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (nonce, namespace) = (reader.nonce()?, reader.text(MAX_NAMESPACE_BYTES)?);
            let replaces = match version {
                Version::One => None,
                Version::Two => match reader.short(SESSION_BYTES)? {
                    [] => None,
                    session => Some(session.try_into().ok()?),
                },
            };
            (!namespace.is_empty()).then_some(Connect { nonce, namespace, replaces })
        })
    }
}

impl<'a> Connected<'a> {
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = self.nonce.to_vec();
        bytes.push(if self.durable { DURABLE } else { 0 });
        bytes.extend(self.max_value.to_le_bytes());
        push_short(&mut bytes, self.server.as_bytes());
        if version >= Version::Two {
            bytes.extend(self.session);
            bytes.extend(self.time.to_le_bytes());
        }
        bytes
    }

    pub fn decode(fields: &'a [u8], version: Version) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (nonce, flags, max_value) = (reader.nonce()?, reader.byte()?, reader.u64()?);
            let server = reader.text(MAX_TEXT_BYTES)?;
            let (session, time) = match version {
                Version::One => ([0; SESSION_BYTES], 0),
                Version::Two => (reader.array()?, reader.u64()?),
            };
            Some(Connected { nonce, durable: flags & DURABLE != 0, max_value, server, session, time })
        })
    }
}

impl<'a> Put<'a> {
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut flags = if self.replace { REPLACE } else { 0 };
        if version >= Version::Two && self.generation {
            flags |= GENERATION;
        }
        let mut bytes = vec![self.kind as u8, flags];
        push_end(&mut bytes, self.end, version);
        push_short(&mut bytes, self.key);
        push_keys(&mut bytes, &self.chunks);
        bytes
    }

    pub fn decode(fields: &'a [u8], version: Version) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| {
            let (kind, flags, end) = (reader.kind()?, reader.byte()?, reader.end(version)?);
            let (key, chunks) = (reader.key()?, reader.keys(MAX_MANIFEST_CHUNKS)?);
            let is_manifest = kind == Kind::Manifest;
            let known = if version >= Version::Two && is_manifest { REPLACE | GENERATION } else { REPLACE };
            let sound = flags & !known == 0 && (is_manifest || chunks.is_empty());
            let (replace, generation) = (flags & REPLACE != 0, flags & GENERATION != 0);
            sound.then_some(Put { kind, replace, generation, end, key, chunks })
        })
    }
}

impl<'a> Delete<'a> {
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        push_end(&mut bytes, self.end, version);
        push_short(&mut bytes, self.key);
        bytes
    }

    pub fn decode(fields: &'a [u8], version: Version) -> Result<Self, Fault> {
        Reader(fields)
            .whole(|reader| Some(Delete { kind: reader.kind()?, end: reader.end(version)?, key: reader.key()? }))
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

impl<'a> Commit<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_keys(&mut bytes, &self.chunks);
        bytes
    }

    pub fn decode(fields: &'a [u8]) -> Result<Self, Fault> {
        Reader(fields).whole(|reader| Some(Commit { chunks: reader.keys(MAX_MANIFEST_CHUNKS)? }))
    }
}

/// The text in the fields of an answer, cut to what is worth showing.
pub fn text(fields: &[u8]) -> String {
    let cut = fields.get(..MAX_TEXT_BYTES).unwrap_or(fields);
    String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The end of a change, which version 1 does not have.
fn push_end(bytes: &mut Vec<u8>, end: u64, version: Version) {
    if version >= Version::Two {
        bytes.extend(end.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Version::{One, Two};

    /// The fields of every frame, as clients and servers of other versions have them. `docs/memkv-wire.md` describes them; whole frames
    /// are in `tests/document.rs`.
    #[test]
    fn golden_fields() {
        let (chunk, manifest) = (Kind::Chunk, Kind::Manifest);
        let nonce = "ab".repeat(32);
        let listed = Listed { key: b"k".to_vec(), size: 5, stored: 6, used: 0x0102_0304_0506_0708 };
        let usage = Usage { bytes: 1, chunks: 2, manifests: 3, capacity: 4 };
        for (fields, expected) in [
            (Connect { nonce: [0xab; 32], namespace: "ns", replaces: None }.encode(One), nonce.clone() + "02006e73"),
            (
                Connected {
                    nonce: [0xab; 32],
                    durable: true,
                    max_value: 0x0102,
                    server: "s",
                    session: [0; 16],
                    time: 0,
                }
                .encode(One),
                nonce + "0102010000000000000100" + "73",
            ),
            (
                Put { kind: chunk, replace: false, generation: false, end: 0, key: b"k", chunks: vec![] }.encode(One),
                "01000100".to_owned() + "6b00000000",
            ),
            (
                Put { kind: manifest, replace: true, generation: false, end: 0, key: b"k", chunks: vec![b"c1", b"c2"] }
                    .encode(One),
                "020101006b02000000".to_owned() + "02006331" + "02006332",
            ),
            (Lookup { kind: manifest, key: b"k" }.encode(), "0201006b".to_owned()),
            (Delete { kind: manifest, end: 0, key: b"k" }.encode(One), "0201006b".to_owned()),
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
            assert_eq!(hex::encode(fields), expected);
        }
    }
    /// What version 2 has more, as a server or client of another release has it. Made by Python's struct, not with this code.
    #[test]
    fn golden_fields_of_version_2() {
        let (nonce, session) = ("ab".repeat(32), "cd".repeat(16));
        let connect = |replaces| Connect { nonce: [0xab; 32], namespace: "ns", replaces };
        let connected = Connected {
            nonce: [0xab; 32],
            durable: true,
            max_value: 0x0102,
            server: "s",
            session: [0xcd; 16],
            time: 0x0304,
        };
        let (end, chunks) = (0x0506, vec![&b"c1"[..]]);
        let manifest = Put { kind: Kind::Manifest, replace: true, generation: true, end, key: b"k", chunks };
        let chunk = Put { kind: Kind::Chunk, replace: true, generation: false, end, key: b"k", chunks: vec![] };
        for (fields, expected) in [
            (connect(None).encode(Two), nonce.clone() + "02006e73" + "0000"),
            (connect(Some([0xcd; 16])).encode(Two), nonce.clone() + "02006e73" + "1000" + &session),
            (connected.encode(Two), nonce + "0102010000000000000100" + "73" + &session + "0403000000000000"),
            (manifest.encode(Two), "02030605000000000000".to_owned() + "01006b" + "0100000002006331"),
            (chunk.encode(Two), "01010605000000000000".to_owned() + "01006b" + "00000000"),
            (Commit { chunks: vec![b"c1", b"k"] }.encode(), "02000000".to_owned() + "02006331" + "01006b"),
            (Delete { kind: Kind::Manifest, end, key: b"k" }.encode(Two), "02060500000000000001006b".to_owned()),
        ] {
            assert_eq!(hex::encode(fields), expected);
        }
    }
}
