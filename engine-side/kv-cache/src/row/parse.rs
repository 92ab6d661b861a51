//! Reading: nothing in a file is believed before it was checked, and no length asks for memory that the file does not have.

use super::*;
use crate::fingerprint::{Fingerprint, FingerprintMode};
use crate::key::{Identity, Key};
use crate::limits::{MAX_METADATA_BYTES, MAX_TOKENS};

/// The fixed part of a row file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bits of the model's quantisation.
    pub quant_bits: u8,
    /// Why it was saved.
    pub reason: SaveReason,
    /// Tokens.
    pub tokens: u32,
    /// As other software keeps it; this crate writes 0. No sum covers it.
    pub hit_count: u32,
    /// Tokens that the context had room for.
    pub context_size: u32,
    /// Unix time in seconds.
    pub created: u64,
    /// Unix time in seconds: of the save, or of a later use where other software has rewritten it. No sum covers it.
    pub last_used: u64,
    /// Where the payload begins, and everything else ends.
    pub payload_offset: u64,
    /// Length of the payload.
    pub payload_bytes: u64,
    /// CRC-32C of the payload.
    pub payload_crc32c: u32,
}

/// Everything in a row file but the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMetadata {
    /// The fixed part.
    pub head: Head,
    /// Whose state it is.
    pub identity: Identity,
    /// The tokens that made it.
    pub tokens: Vec<u32>,
    /// The prompt, if it was told; for people, never believed.
    pub prompt: String,
    /// Where it was made.
    pub host: String,
    /// What wrote it.
    pub software: String,
    /// More on the reason.
    pub detail: String,
    /// Whether its seal is there; it is right, then.
    pub sealed: bool,
    /// The digest of what its writer says of it.
    pub descriptor: Option<[u8; 16]>,
}

impl RowMetadata {
    /// The row's key, from what the file says of itself.
    pub fn key(&self) -> Key {
        self.identity.key(&self.tokens)
    }

    /// Whether writer and reader both say what the state is, and not the same.
    pub(crate) fn is_of_another(&self, own: Option<[u8; 16]>) -> bool {
        own.zip(self.descriptor).is_some_and(|(own, of_row)| own != of_row)
    }
}

/// Check the fixed part of a file of `file_bytes` bytes. After it, `payload_offset` bytes are to be read for [`parse`].
pub fn parse_head(bytes: &[u8], file_bytes: u64) -> Result<Head, Flaw> {
    let (magic, rest) = bytes.split_at_checked(3).ok_or(Flaw::Truncated)?;
    if magic != MAGIC {
        return Err(Flaw::Foreign);
    }
    let mut fields = Fields(rest);
    match fields.u8()? {
        VERSION => {}
        0 => return Err(Flaw::Corrupt("its version is 0")),
        newer => return Err(Flaw::Newer(newer)),
    }
    let quant_bits = fields.u8()?;
    let reason = fields.u8()?;
    fields.take(2)?;
    let (tokens, hit_count, context_size) = (fields.u32()?, fields.u32()?, fields.u32()?);
    fields.take(4)?;
    let (created, last_used, payload_byte_count) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (payload_offset, payload_bytes, payload_crc32c) = (fields.u64()?, fields.u64()?, fields.u32()?);
    fields.take(4)?;
    let reason = SaveReason::from_number(reason).ok_or(Flaw::Corrupt("its reason is unknown"))?;
    if payload_bytes != payload_byte_count {
        return Err(Flaw::Corrupt("it gives two lengths for its payload"));
    }
    if payload_offset < (HEAD_BYTES + 8) as u64 || payload_offset > MAX_METADATA_BYTES {
        return Err(Flaw::Corrupt("its payload cannot lie where it says"));
    }
    match payload_offset.checked_add(payload_bytes) {
        Some(end) if end == file_bytes => {}
        Some(end) if end < file_bytes => return Err(Flaw::Corrupt("it is longer than the row")),
        _ => return Err(Flaw::Truncated),
    }
    Ok(Head {
        quant_bits,
        reason,
        tokens,
        hit_count,
        context_size,
        created,
        last_used,
        payload_offset,
        payload_bytes,
        payload_crc32c,
    })
}

/// Check everything before the payload: `bytes` is the file's beginning, as long as [`Head::payload_offset`] says, or longer.
///
/// Reserved fields that are set are refused, whatever else is found: a later writer may give them a meaning. But for a seal that is
/// wrong, which says that they, or others, are damaged.
pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<RowMetadata, Flaw> {
    let parsed = parse_known(bytes, file_bytes);
    let is_set = |field: Range<usize>| bytes.get(field).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    if parsed != Err(SEAL_IS_WRONG) && RESERVED.into_iter().any(is_set) {
        parse_head(bytes, file_bytes)?;
        return Err(Flaw::Reserved);
    }
    parsed
}

const SEAL_IS_WRONG: Flaw = Flaw::Corrupt("its seal is wrong");

fn parse_known(bytes: &[u8], file_bytes: u64) -> Result<RowMetadata, Flaw> {
    let head = parse_head(bytes, file_bytes)?;
    let bytes = bytes.get(..head.payload_offset as usize).ok_or(Flaw::Truncated)?;
    let mut sections = Fields(bytes.get(HEAD_BYTES..).ok_or(Flaw::Truncated)?);
    let past = |_| Flaw::Corrupt("a section leads past the payload's beginning");
    let prompt = sections.section().map_err(past)?;
    let records = sections.section().map_err(past)?;
    if !sections.0.is_empty() {
        return Err(Flaw::Corrupt("there are bytes between its sections and its payload"));
    }
    let found = Records::read(records)?;
    let software = String::from_utf8_lossy(found.software.unwrap_or_default()).into_owned();
    let sealed = match found.seal {
        Some((at, seal)) => {
            check_seal(bytes, bytes.len() - records.len() + at, seal)?;
            true
        }
        None if software.starts_with(SOFTWARE) => return Err(Flaw::Corrupt("its seal is missing")),
        None => false,
    };
    let missing = Flaw::Corrupt("a record that every row has is missing");
    let (Some(fingerprint), Some(mode), Some(quant), Some(context_hash), Some(tokens)) =
        (found.fingerprint, found.mode, found.quant, found.context_hash, found.tokens)
    else {
        return Err(missing);
    };
    let (tokens, rest) = tokens.as_chunks::<4>();
    let counted = found.token_count.is_none_or(|count| count as usize == tokens.len());
    if !rest.is_empty() || !counted || head.tokens as usize != tokens.len() || tokens.len() > MAX_TOKENS {
        return Err(Flaw::Corrupt("it does not have the tokens that it counts"));
    }
    let mode = FingerprintMode::from_number(mode).ok_or(Flaw::Corrupt("its fingerprint's mode is unknown"))?;
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    Ok(RowMetadata {
        head,
        identity: Identity { fingerprint: Fingerprint { bytes: fingerprint, mode }, quant, context_hash },
        tokens: tokens.iter().map(|token| u32::from_le_bytes(*token)).collect(),
        prompt: text(Some(prompt)),
        host: text(found.host),
        detail: text(found.detail),
        software,
        sealed,
        descriptor: found.descriptor,
    })
}

/// The seal is the sum of `bytes`, or the one that version 0.1.0 made. `at` is the place of its value.
fn check_seal(bytes: &[u8], at: usize, seal: u32) -> Result<(), Flaw> {
    if metadata_sum(bytes, Some(at)) == seal || former_sum(bytes, at) == seal { Ok(()) } else { Err(SEAL_IS_WRONG) }
}

/// The records of a row, each at most once. Unknown ones are passed over: a later writer of this version may add some.
#[derive(Default)]
struct Records<'a> {
    /// Its place among the records, and its value.
    seal: Option<(usize, u32)>,
    fingerprint: Option<[u8; 32]>,
    mode: Option<u8>,
    quant: Option<u8>,
    context_hash: Option<[u8; 32]>,
    host: Option<&'a [u8]>,
    software: Option<&'a [u8]>,
    detail: Option<&'a [u8]>,
    token_count: Option<u32>,
    tokens: Option<&'a [u8]>,
    descriptor: Option<[u8; 16]>,
}

impl<'a> Records<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Flaw> {
        fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Flaw> {
            match place.replace(value) {
                None => Ok(()),
                Some(_) => Err(Flaw::Corrupt("a record comes twice")),
            }
        }
        fn fixed<const N: usize>(value: &[u8]) -> Result<&[u8; N], Flaw> {
            value.try_into().map_err(|_| Flaw::Corrupt("a record has a wrong length"))
        }
        let mut found = Records::default();
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            let past = |_| Flaw::Corrupt("a record leads past the others' end");
            let tag = fields.u8().map_err(past)?;
            let value = fields.section().map_err(past)?;
            let at = bytes.len() - fields.0.len() - value.len();
            match tag {
                TAG_SEAL => once(&mut found.seal, (at, u32::from_le_bytes(*fixed(value)?)))?,
                TAG_FINGERPRINT => once(&mut found.fingerprint, *fixed(value)?)?,
                TAG_FINGERPRINT_MODE => once(&mut found.mode, fixed::<1>(value)?[0])?,
                TAG_QUANT => once(&mut found.quant, fixed::<1>(value)?[0])?,
                TAG_CONTEXT_HASH => once(&mut found.context_hash, *fixed(value)?)?,
                TAG_HOST => once(&mut found.host, value)?,
                TAG_SOFTWARE => once(&mut found.software, value)?,
                TAG_DETAIL => once(&mut found.detail, value)?,
                TAG_TOKEN_COUNT => once(&mut found.token_count, u32::from_le_bytes(*fixed(value)?))?,
                TAG_DESCRIPTOR => once(&mut found.descriptor, *fixed(value)?)?,
                TAG_TOKENS => once(&mut found.tokens, value)?,
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Little-endian fields, one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Flaw::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        self.take(N)?.try_into().map_err(|_| Flaw::Truncated)
    }

    fn u8(&mut self) -> Result<u8, Flaw> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Flaw> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Flaw> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length, then as many bytes.
    fn section(&mut self) -> Result<&'a [u8], Flaw> {
        let length = self.u32()?;
        self.take(length as usize)
    }
}
