//! How the master is spoken to: frames of coro_rpc, and values of struct_pack, little-endian.
//!
//! A value begins with the hash of its type, a byte that says how wide lengths are and that the type follows, and the type itself, up
//! to a NUL. The types of one version of Mooncake are in [`crate::calls`]; an answer of another type is refused.

use kv_store_sdk::{Error, Result};

const MAGIC: u8 = 0x15;
/// A frame's head, in bytes: of a request and of an answer.
const REQUEST_HEAD: usize = 20;
pub const ANSWER_HEAD: usize = 16;
/// The type follows.
const HAS_TYPE: u8 = 0x04;
/// Where the width of lengths is written: 0 for one byte, 1 for two.
const WIDTH_SHIFT: u8 = 3;

/// The type of a value, as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    pub hash: u32,
    /// In hex.
    pub literal: &'static str,
}

impl Type {
    fn literal(&self) -> impl Iterator<Item = u8> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or_default() as u8;
        let (pairs, _) = self.literal.as_bytes().as_chunks::<2>();
        pairs.iter().map(move |[high, low]| digit(high) << 4 | digit(low))
    }
}

/// A request's body.
pub struct Writer {
    bytes: Vec<u8>,
    /// Lengths take two bytes.
    wide: bool,
}

impl Writer {
    /// A value of this type. `longest`: the greatest length of a list or text in it.
    pub fn new(of: Type, longest: usize) -> Self {
        let wide = longest > usize::from(u8::MAX);
        let mut bytes = of.hash.to_le_bytes().to_vec();
        bytes.push(HAS_TYPE | u8::from(wide) << WIDTH_SHIFT);
        bytes.extend(of.literal());
        bytes.push(0);
        Writer { bytes, wide }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// The length of a list that follows.
    pub fn len(&mut self, len: usize) {
        match self.wide {
            true => self.raw(&(len as u16).to_le_bytes()),
            false => self.bytes.push(len as u8),
        }
    }

    pub fn text(&mut self, text: &str) {
        self.len(text.len());
        self.raw(text.as_bytes());
    }

    pub fn list<T>(&mut self, values: &[T], mut next: impl FnMut(&mut Self, &T)) {
        self.len(values.len());
        values.iter().for_each(|value| next(self, value));
    }

    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A request with this body.
pub fn frame(function: u32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(REQUEST_HEAD + body.len());
    frame.extend_from_slice(&[MAGIC, 0, 0, 0]);
    for number in [sequence, function, body.len() as u32, 0] {
        frame.extend_from_slice(&number.to_le_bytes());
    }
    frame.extend_from_slice(body);
    frame
}

/// What an answer's head says.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// 0: the function was called.
    pub error: u8,
    pub sequence: u32,
    /// Bytes that follow.
    pub len: u32,
}

impl Head {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes, wide: false };
        let [MAGIC, _, error, _] = reader.take::<4>()? else { return None };
        let [sequence, body, attachment] = [reader.u32()?, reader.u32()?, reader.u32()?];
        Some(Head { error, sequence, len: body.checked_add(attachment)? })
    }
}

/// An answer's body, read from its beginning. Whatever reads past its end is `None`.
pub struct Reader<'a> {
    bytes: &'a [u8],
    wide: bool,
}

impl<'a> Reader<'a> {
    /// A value that must be of this type.
    pub fn new(bytes: &'a [u8], of: Type) -> Result<Self> {
        let mut reader = Reader { bytes, wide: false };
        reader.begin(of).ok_or_else(|| {
            Error::unsupported(format!(
                "the master's answer has another type than that of {}: this component speaks no other version",
                crate::calls::VERSIONS
            ))
        })?;
        Ok(reader)
    }

    fn begin(&mut self, of: Type) -> Option<()> {
        let hash = self.u32()?;
        let [flags] = self.take::<1>()?;
        self.wide = match flags ^ HAS_TYPE {
            0 => false,
            wide if wide == 1 << WIDTH_SHIFT => true,
            _ => return None,
        };
        let end = self.bytes.iter().position(|byte| *byte == 0)?;
        let (literal, rest) = (self.bytes.get(..end)?, self.bytes.get(end + 1..)?);
        self.bytes = rest;
        (hash == of.hash && of.literal().eq(literal.iter().copied())).then_some(())
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn bool(&mut self) -> Option<bool> {
        self.take::<1>().map(|[byte]| byte != 0)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn len(&mut self) -> Option<usize> {
        match self.wide {
            true => self.take().map(u16::from_le_bytes).map(usize::from),
            false => self.u8().map(usize::from),
        }
    }

    pub fn text(&mut self) -> Option<String> {
        let len = self.len()?;
        let (text, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A list. It has at most as many values as there are bytes.
    pub fn list<T>(&mut self, mut next: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = self.len()?;
        (0..len).map(|_| next(self)).collect()
    }

    /// A value, or the number of an error.
    pub fn expected<T>(&mut self, value: impl FnOnce(&mut Self) -> Option<T>) -> Option<std::result::Result<T, i32>> {
        if self.bool()? { value(self).map(Ok) } else { self.i32().map(Err) }
    }

    /// Nothing may follow.
    pub fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }
}
