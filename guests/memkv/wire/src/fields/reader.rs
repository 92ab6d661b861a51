//! Fields as bytes.

use super::Kind;
use crate::frame::{Fault, Version};
use crate::{MAX_KEY_BYTES, NONCE_BYTES, Nonce};

pub fn push_short(bytes: &mut Vec<u8>, short: &[u8]) {
    // What is longer than any key is cut here and refused by whoever reads it.
    let short = short.get(..u16::MAX.into()).unwrap_or(short);
    bytes.extend_from_slice(&(short.len() as u16).to_le_bytes());
    bytes.extend_from_slice(short);
}

pub fn push_keys(bytes: &mut Vec<u8>, keys: &[&[u8]]) {
    bytes.reserve(4 + keys.iter().map(|key| 2 + key.len()).sum::<usize>());
    bytes.extend(u32::try_from(keys.len()).unwrap_or(u32::MAX).to_le_bytes());
    keys.iter().for_each(|key| push_short(bytes, key));
}

/// Fields that are not read yet.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Read all of it, or it is malformed.
    pub fn whole<T>(mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, Fault> {
        read(&mut self)
            .filter(|_| self.0.is_empty())
            .ok_or(Fault::Malformed("the fields are not those of this operation"))
    }

    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The end of a change: 0 in version 1, which has none.
    pub fn end(&mut self, version: Version) -> Option<u64> {
        match version {
            Version::One => Some(0),
            Version::Two => self.u64(),
        }
    }

    pub fn nonce(&mut self) -> Option<Nonce> {
        self.array::<NONCE_BYTES>()
    }

    pub fn kind(&mut self) -> Option<Kind> {
        match self.byte()? {
            1 => Some(Kind::Chunk),
            2 => Some(Kind::Manifest),
            _ => None,
        }
    }

    pub fn short(&mut self, limit: usize) -> Option<&'a [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len > limit { None } else { self.take(len) }
    }

    pub fn text(&mut self, limit: usize) -> Option<&'a str> {
        std::str::from_utf8(self.short(limit)?).ok()
    }

    pub fn key(&mut self) -> Option<&'a [u8]> {
        self.short(MAX_KEY_BYTES).filter(|key| !key.is_empty())
    }

    pub fn keys(&mut self, limit: usize) -> Option<Vec<&'a [u8]>> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        // Each has three bytes at least, so a count that lies makes no room.
        if count > limit || count > self.0.len() / 3 {
            return None;
        }
        (0..count).map(|_| self.key()).collect()
    }
}
