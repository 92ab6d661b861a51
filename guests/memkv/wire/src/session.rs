//! One direction of a session: frames are numbered without gaps, so one that is repeated, left out or moved is noticed.

use crate::frame::{Fault, Header, Op, Status, Version};
use crate::{HEADER_BYTES, Key, TAG_BYTES};

/// What this side sends. A frame is the header that is made here, fields, a value and their tag under [`Outgoing::key`].
pub struct Outgoing {
    key: Key,
    version: Version,
    next: u64,
}

impl Outgoing {
    pub fn new(key: Key, version: Version) -> Self {
        Outgoing { key, version, next: 0 }
    }

    /// Send frames of this version from now on: a server speaks the one that its client began with.
    pub fn speak(&mut self, version: Version) {
        self.version = version;
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Go on under another key, with the next number.
    pub fn rekey(&mut self, key: Key) {
        self.key = key;
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The header of a request, and with it the next number.
    pub fn request(&mut self, op: Op, fields: usize, value: u64) -> [u8; HEADER_BYTES] {
        self.numbered(Header::request(op, fields, value))
    }

    /// The header of an answer after which `left` more to the same request follow.
    pub fn answer(&mut self, op: Op, status: Status, left: u32, fields: usize, value: u64) -> [u8; HEADER_BYTES] {
        self.numbered(Header::answer(op, status, left, fields, value))
    }

    /// The header of the last frame.
    pub fn refusal(&mut self, status: Status, fields: usize) -> [u8; HEADER_BYTES] {
        self.numbered(Header::refusal(status, fields))
    }

    /// A whole frame without a value.
    pub fn small(&self, header: [u8; HEADER_BYTES], fields: &[u8]) -> Vec<u8> {
        let tag = self.key.tag(&[&header, fields]);
        let mut frame = Vec::with_capacity(HEADER_BYTES + fields.len() + TAG_BYTES);
        frame.extend(header);
        frame.extend(fields);
        frame.extend(tag.0);
        frame
    }

    fn numbered(&mut self, header: Header) -> [u8; HEADER_BYTES] {
        let sequence = self.next;
        // 2^64 frames are not sent in the life of a connection.
        self.next = sequence.wrapping_add(1);
        Header { version: self.version, sequence, ..header }.encode()
    }
}

/// What this side receives.
pub struct Incoming {
    key: Key,
    next: u64,
    /// That of the first frame. None: none has come.
    version: Option<Version>,
    /// The longest fields and the longest value that this side takes.
    max_fields: u64,
    max_value: u64,
}

impl Incoming {
    pub fn new(key: Key, max_fields: usize, max_value: u64) -> Self {
        Incoming { key, next: 0, version: None, max_fields: max_fields as u64, max_value }
    }

    /// Go on under another key and other bounds, with the next number.
    pub fn rekey(&mut self, key: Key, max_fields: usize, max_value: u64) {
        *self = Incoming { key, max_fields: max_fields as u64, max_value, ..*self };
    }

    /// The version of the first frame, which all others must have.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Take the next header, whose number must be the next one, whose version that of the first, and whose lengths in bounds. What it says holds only
    /// once the tag over the whole frame is right; until then its lengths say where that tag is.
    pub fn open(&mut self, header: &[u8; HEADER_BYTES]) -> Result<Header, Fault> {
        let header = Header::decode(header)?;
        if let Some(session) = self.version.filter(|version| *version != header.version) {
            return Err(Fault::OtherVersion { session, came: header.version });
        }
        for (came, limit) in [(header.fields.into(), self.max_fields), (header.value, self.max_value)] {
            if came > limit {
                return Err(Fault::TooLarge { limit, came });
            }
        }
        if header.sequence != self.next {
            return Err(Fault::OutOfSequence { expected: self.next, came: header.sequence });
        }
        self.version = Some(header.version);
        self.next = self.next.wrapping_add(1);
        Ok(header)
    }
}
