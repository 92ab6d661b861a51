//! One direction of a session: frames are numbered without gaps, so one that is repeated, left out or moved is noticed.

use crate::frame::{Fault, Header, Op, Status};
use crate::{HEADER_BYTES, Key, TAG_BYTES};

/// What this side sends. A frame is the header that is made here, fields, a value and their tag under [`Outgoing::key`].
pub struct Outgoing {
    key: Key,
    next: u64,
}

impl Outgoing {
    pub fn new(key: Key) -> Self {
        Outgoing { key, next: 0 }
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
        Header::request(op, fields, value, self.number()).encode()
    }

    /// The header of an answer after which `left` more to the same request follow.
    pub fn answer(&mut self, op: Op, status: Status, left: u32, fields: usize, value: u64) -> [u8; HEADER_BYTES] {
        Header::answer(op, status, left, fields, value, self.number()).encode()
    }

    /// The header of the last frame.
    pub fn refusal(&mut self, status: Status, fields: usize) -> [u8; HEADER_BYTES] {
        Header::refusal(status, fields, self.number()).encode()
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

    fn number(&mut self) -> u64 {
        let number = self.next;
        // 2^64 frames are not sent in the life of a connection.
        self.next = number.wrapping_add(1);
        number
    }
}

/// What this side receives.
pub struct Incoming {
    key: Key,
    next: u64,
    /// The longest fields and the longest value that this side takes.
    max_fields: u64,
    max_value: u64,
}

impl Incoming {
    pub fn new(key: Key, max_fields: usize, max_value: u64) -> Self {
        Incoming { key, next: 0, max_fields: max_fields as u64, max_value }
    }

    /// Go on under another key and other bounds, with the next number.
    pub fn rekey(&mut self, key: Key, max_fields: usize, max_value: u64) {
        *self = Incoming { key, next: self.next, max_fields: max_fields as u64, max_value };
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Take the next header, whose number must be the next one and whose lengths must be in bounds. What it says holds only
    /// once the tag over the whole frame is right; until then its lengths say where that tag is.
    pub fn open(&mut self, header: &[u8; HEADER_BYTES]) -> Result<Header, Fault> {
        let header = Header::decode(header)?;
        for (came, limit) in [(header.fields.into(), self.max_fields), (header.value, self.max_value)] {
            if came > limit {
                return Err(Fault::TooLarge { limit, came });
            }
        }
        if header.sequence != self.next {
            return Err(Fault::OutOfSequence { expected: self.next, came: header.sequence });
        }
        self.next = self.next.wrapping_add(1);
        Ok(header)
    }
}
