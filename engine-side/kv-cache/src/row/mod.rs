//! The file of a row, byte for byte (KVC version 1, little-endian): no I/O, so that tests can own it.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..48 | header: `KVC`, version 1, quantisation bits, reason, token count, hit count, context size, times, payload size |
//! | 48..72 | where the payload lies, its length and CRC-32C |
//! | 72.. | the prompt's text (length, bytes): for people, never believed |
//! | then | records (length of all; tag, length, value of each): fingerprint, parameters, tokens, ... |
//! | then to the end | payload |
//!
//! A row that this crate wrote also has a **seal**: record 0x80, first of all, with the sum (`metadata_sum`) of everything
//! before the payload. The format has a checksum of the payload only. With the seal the only bits of a file that can change
//! unseen are those of the hit count and the time of the last use, which other software of this format rewrites in place.
//! A row of a cache that says what its states are has a digest of that in record 0x81 (`docs/envelope.md`, "Descriptors").
//! Other readers of the format pass over both, and rows of theirs, which have none, are read by what they repeat (counts,
//! lengths, and the key, which is the file's name).

mod parse;
mod write;

use std::ops::Range;

use serde::Serialize;

pub use parse::{Head, RowMetadata, parse, parse_head};
pub use write::NewRow;
pub(crate) use write::Unsealed;

/// Length of the fixed part of a row file.
pub const HEAD_BYTES: usize = 72;
/// The version that this crate reads and writes.
pub const VERSION: u8 = 1;

/// Quantisations that the software of this format has names for: 0 to 29. It deletes rows of others when it opens a directory (see
/// `docs/cache.md`).
pub const KNOWN_QUANTS: u8 = 30;

const MAGIC: [u8; 3] = *b"KVC";
const TAG_FINGERPRINT: u8 = 0x01;
const TAG_FINGERPRINT_MODE: u8 = 0x02;
const TAG_QUANT: u8 = 0x03;
const TAG_CONTEXT_HASH: u8 = 0x04;
const TAG_HOST: u8 = 0x05;
const TAG_SOFTWARE: u8 = 0x06;
const TAG_DETAIL: u8 = 0x07;
const TAG_TOKEN_COUNT: u8 = 0x08;
const TAG_TOKENS: u8 = 0x09;
const TAG_SEAL: u8 = 0x80;
const TAG_DESCRIPTOR: u8 = 0x81;
/// What the software record of a sealed row begins with: without its seal such a row is damaged.
const SOFTWARE: &str = "kv-cache/";

/// Why a row was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveReason {
    /// Not said.
    Unknown,
    /// After the prefill of a new prompt.
    Cold,
    /// While a sequence grows.
    Continued,
    /// Its holder had to let go.
    Evict,
    /// The engine goes down.
    Shutdown,
    /// A sequence is complete.
    Finish,
}

impl SaveReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [SaveReason; 6] = [
        SaveReason::Unknown,
        SaveReason::Cold,
        SaveReason::Continued,
        SaveReason::Evict,
        SaveReason::Shutdown,
        SaveReason::Finish,
    ];

    /// The number of the row file.
    pub fn number(self) -> u8 {
        self as u8
    }

    fn from_number(number: u8) -> Option<Self> {
        SaveReason::ALL.get(usize::from(number)).copied()
    }
}

/// What is wrong with a row file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind", content = "detail")]
pub enum Flaw {
    /// The file ends before the row does.
    #[error("it is cut short")]
    Truncated,
    /// It does not begin as a row does.
    #[error("it is no row file")]
    Foreign,
    /// A later version of the format.
    #[error("it is of version {0}, and this software reads version {VERSION}")]
    Newer(u8),
    /// Reserved fields of its header are set, which this version gives no meaning.
    #[error("reserved fields of its header are set, which version {VERSION} gives no meaning")]
    Reserved,
    /// A row whose descriptor is another one than the reader's.
    #[error("its state is of another descriptor")]
    OtherDescriptor,
    /// A row that contradicts itself.
    #[error("{0}")]
    Corrupt(&'static str),
}

impl Flaw {
    /// Whether the file is a row that others can read, later software or who says the same of its states: it is not served, and left
    /// alone.
    pub fn is_of_others(&self) -> bool {
        matches!(self, Flaw::Newer(_) | Flaw::Reserved | Flaw::OtherDescriptor)
    }
}

/// The CRC-32C (Castagnoli) of bytes in any number of pieces.
pub(crate) struct Crc(crc_fast::Digest);

impl Crc {
    pub fn new() -> Self {
        Crc(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    pub fn of(bytes: &[u8]) -> u32 {
        let mut crc = Crc::new();
        crc.update(bytes);
        crc.value()
    }
}

/// The reserved fields of the header and the trailer.
const RESERVED: [Range<usize>; 3] = [6..8, 20..24, 68..72];
/// Where the hit count is, which other software rewrites in place at each use of a row.
const HIT_COUNT: Range<usize> = 12..16;
/// Where the time of the save is.
const CREATED: Range<usize> = 24..32;
/// Where the time of the last use is, which other software may rewrite in place.
const LAST_USED: Range<usize> = 32..40;

/// The CRC-32C of everything before a row's payload, with zeros in place of the hit count and the time of the last use, which
/// other software rewrites, and of the seal's value, if its place is given.
pub(crate) fn metadata_sum(bytes: &[u8], seal_at: Option<usize>) -> u32 {
    sum_with(bytes, seal_at, |head| head[LAST_USED].fill(0))
}

/// The sum that version 0.1.0 sealed a row with, whatever became of the hit count and the time of the last use since: it wrote 0
/// and the time of the save there, and its sum covered them.
fn former_sum(bytes: &[u8], seal_at: usize) -> u32 {
    sum_with(bytes, Some(seal_at), |head| head.copy_within(CREATED, LAST_USED.start))
}

fn sum_with(bytes: &[u8], seal_at: Option<usize>, last_used: impl FnOnce(&mut [u8; HEAD_BYTES])) -> u32 {
    let mut crc = Crc::new();
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Crc::of(bytes) };
    let mut head = *head;
    head[HIT_COUNT].fill(0);
    last_used(&mut head);
    crc.update(&head);
    match seal_at.and_then(|at| rest.split_at_checked(at.checked_sub(HEAD_BYTES)?)) {
        Some((before, after)) => {
            let value = after.len().min(4);
            crc.update(before);
            crc.update([0; 4].get(..value).unwrap_or_default());
            crc.update(after.get(value..).unwrap_or_default());
        }
        None => crc.update(rest),
    }
    crc.value()
}

#[cfg(test)]
mod tests;
