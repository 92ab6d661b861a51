//! The bytes of a row, in whose memory they are.

use std::sync::Arc;

/// A payload in the memory of this process, where rows of the tier `ram` lie.
pub(crate) type Memory = Arc<Box<[u8]>>;

/// The state of a sequence of tokens, as opaque bytes.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// The caller's memory, for the time of the call. Saves that are queued and those to the tier `ram` copy it.
    Borrowed(&'a [u8]),
    /// Memory that the cache takes over: never copied.
    Owned(Box<[u8]>),
}

impl Payload<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Owned(bytes) => bytes,
        }
    }

    pub(crate) fn into_box(self) -> Box<[u8]> {
        match self {
            Payload::Borrowed(bytes) => bytes.into(),
            Payload::Owned(bytes) => bytes,
        }
    }

    /// The payload, whose place is empty then.
    pub(crate) fn take(&mut self) -> Memory {
        Arc::new(std::mem::replace(self, Payload::Borrowed(&[])).into_box())
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Owned(bytes.into())
    }
}
