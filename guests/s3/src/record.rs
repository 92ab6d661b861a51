//! The record of a manifest: what an object under `r/` holds, so that conditions order the changes of a name.
//!
//! | bytes | |
//! | --- | --- |
//! | 0..8 | magic and version, `kvs3man1` |
//! | 8 | what it is: 1 a manifest, 2 a manifest whose bytes are an object of their own, 3 a tombstone |
//! | 9..16 | zeros |
//! | 16..32 | nonce: anew for each request, so that no two writes of a name have one ETag, and what was true once is never true again |
//! | 32..48 | change: the same for all requests of one change, which knows its own by it; of a long manifest, the id of its bytes |
//! | 48..64 | generation: µs since 1970, 8 random bytes; greater with each change of the name |
//! | 64..72, 72..80 | length and XXH3-64 of the bytes; a tombstone has neither |
//! | 80..88 | zeros, of a manifest alone |
//! | 8 more | check: the first bytes of the SHA-256 of all before |
//!
//! Then come the bytes of the manifest. A tombstone is shorter than a long manifest's record, and that shorter than any other: a listing
//! tells them by their lengths. Numbers are little-endian.

use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"kvs3man1";
const CHECK: usize = 8;
/// The lengths of what comes before the bytes.
pub const TOMBSTONE: u64 = 64 + 8;
pub const ELSEWHERE: u64 = 80 + 8;
pub const HEAD: u64 = 88 + 8;

/// 16 bytes that tell a change or a request from any other.
pub type Id = [u8; 16];

/// When a change of a name was made: ordered, also where clocks are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    /// µs since 1970.
    pub time: u64,
    pub random: u64,
}

impl Generation {
    /// The one after what was seen, at a time in ns.
    pub fn after(seen: Option<Generation>, now: u64, random: u64) -> Self {
        let least = seen.map_or(0, |seen| seen.time.saturating_add(1));
        Generation { time: least.max(now / 1000), random }
    }

    pub fn bytes(self) -> Id {
        let mut bytes = [0; 16];
        let (time, random) = bytes.split_at_mut(8);
        time.copy_from_slice(&self.time.to_le_bytes());
        random.copy_from_slice(&self.random.to_le_bytes());
        bytes
    }
}

/// What a name has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A manifest, whose bytes follow.
    Here(Content),
    /// A manifest, whose bytes are the object of its change.
    Elsewhere(Content),
    /// None: it was deleted.
    Tombstone,
}

/// The bytes of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub len: u64,
    pub xxh3: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub state: State,
    pub nonce: Id,
    pub change: Id,
    pub generation: Generation,
}

impl Record {
    /// What comes before the bytes of the manifest.
    pub fn bytes(&self) -> Vec<u8> {
        let (kind, content) = match self.state {
            State::Here(content) => (1, Some(content)),
            State::Elsewhere(content) => (2, Some(content)),
            State::Tombstone => (3, None),
        };
        let mut bytes = Vec::with_capacity(HEAD as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.change);
        bytes.extend_from_slice(&self.generation.bytes());
        if let Some(Content { len, xxh3 }) = content {
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&xxh3.to_le_bytes());
        }
        if kind == 1 {
            bytes.extend_from_slice(&[0; 8]);
        }
        bytes.extend_from_slice(check(&bytes).as_slice());
        bytes
    }

    /// The record at the begin of an object, of which these are the first [`HEAD`] bytes, or all if it has fewer. None: there is none, or
    /// it is damaged.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = *bytes.get(8)?;
        let len = match kind {
            1 => HEAD,
            2 => ELSEWHERE,
            3 => TOMBSTONE,
            _ => return None,
        };
        // What is longer than it must be is no such record.
        if kind != 1 && bytes.len() as u64 != len {
            return None;
        }
        let (fields, found) = bytes.get(..len as usize)?.split_at_checked(len as usize - CHECK)?;
        if fields.get(..8)? != MAGIC || found != check(fields) {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(fields.get(at..at + 8)?.try_into().ok()?));
        let id = |at: usize| Id::try_from(fields.get(at..at + 16)?).ok();
        let content = || Some(Content { len: number(64)?, xxh3: number(72)? });
        let state = match kind {
            1 => State::Here(content()?),
            2 => State::Elsewhere(content()?),
            _ => State::Tombstone,
        };
        let generation = Generation { time: number(48)?, random: number(56)? };
        Some(Record { state, nonce: id(16)?, change: id(32)?, generation })
    }

    /// Whether an object begins as a record of a later version.
    pub fn is_later(bytes: &[u8]) -> bool {
        bytes
            .strip_prefix(b"kvs3man")
            .and_then(|rest| rest.first())
            .is_some_and(|version| (b'2'..=b'9').contains(version))
    }

    /// The length of the whole object.
    pub fn object_len(&self) -> u64 {
        match self.state {
            State::Here(content) => HEAD.saturating_add(content.len),
            State::Elsewhere(_) => ELSEWHERE,
            State::Tombstone => TOMBSTONE,
        }
    }
}

fn check(fields: &[u8]) -> Vec<u8> {
    let mut digest = Sha256::digest(fields).to_vec();
    digest.truncate(CHECK);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_store_sdk::key::hex;

    fn records() -> [Record; 3] {
        let of = |state| Record {
            state,
            nonce: *b"nonce-0123456789",
            change: *b"change-012345678",
            generation: Generation { time: 1_700_000_000_000_000, random: 0x0102_0304_0506_0708 },
        };
        let content = Content { len: 5, xxh3: 0x1122_3344_5566_7788 };
        [of(State::Here(content)), of(State::Elsewhere(content)), of(State::Tombstone)]
    }

    /// Computed with Python's struct and hashlib, not with this code.
    #[test]
    fn golden_records() {
        let golden = [
            "6b7673336d616e3101000000000000006e6f6e63652d303132333435363738396368616e67652d30313233343536373800401e18240a06000807060504030201050000000000000088776655443322110000000000000000745f45f7e92e044b",
            "6b7673336d616e3102000000000000006e6f6e63652d303132333435363738396368616e67652d30313233343536373800401e18240a060008070605040302010500000000000000887766554433221159047e0268458d58",
            "6b7673336d616e3103000000000000006e6f6e63652d303132333435363738396368616e67652d30313233343536373800401e18240a06000807060504030201f3c8e9467784f4e8",
        ];
        for (record, golden) in records().iter().zip(golden) {
            assert_eq!(hex(&record.bytes()), golden);
        }
    }

    #[test]
    fn records_are_read_back_and_told_apart_by_their_lengths() {
        let lengths = records().map(|record| {
            let mut bytes = record.bytes();
            assert_eq!(Record::parse(&bytes), Some(record));
            let len = bytes.len() as u64;
            bytes.push(0);
            assert_eq!(Record::parse(&bytes).is_some(), matches!(record.state, State::Here(_)));
            len
        });
        assert_eq!(lengths, [HEAD, ELSEWHERE, TOMBSTONE]);
        assert_eq!(records().map(|record| record.object_len()), [HEAD + 5, ELSEWHERE, TOMBSTONE]);
    }

    #[test]
    fn no_damaged_record_is_read() {
        for record in records() {
            let bytes = record.bytes();
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                assert_eq!(Record::parse(&damaged), None, "{at}");
                assert_eq!(Record::parse(&bytes[..at]), None, "{at}");
            }
        }
    }

    #[test]
    fn records_of_later_versions_are_known_as_such() {
        assert!(Record::is_later(b"kvs3man2 whatever") && Record::is_later(b"kvs3man9"));
        assert!(![&b"kvs3man1"[..], b"kvs3man", b"KVS3MAN2", b""].into_iter().any(Record::is_later));
    }

    #[test]
    fn generations_grow_though_a_clock_falls_behind() {
        let first = Generation::after(None, 5_000_999, 7);
        assert_eq!(first, Generation { time: 5000, random: 7 });
        assert_eq!(Generation::after(Some(first), 3_000_000, 1).time, 5001);
        assert_eq!(Generation::after(Some(first), 9_000_000, 1).time, 9000);
        let last = Generation { time: u64::MAX, random: 0 };
        assert_eq!(Generation::after(Some(last), 0, 1).time, u64::MAX);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(0u8.., 0..120)) {
            let _ = Record::parse(&bytes);
            let _ = Record::parse(&[MAGIC.as_slice(), &[1], &bytes].concat());
        }
    }
}
