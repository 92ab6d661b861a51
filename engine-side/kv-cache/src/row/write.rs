//! Writing: everything before the payload.

use super::*;
use crate::key::Identity;
use crate::limits::{MAX_PROMPT_BYTES, MAX_TEXT_BYTES};

/// A row to write. The payload is written apart from it.
#[derive(Clone, Debug)]
pub struct NewRow<'a> {
    /// Whose state it is.
    pub identity: Identity,
    /// The tokens that made it: at most 2^24.
    pub tokens: &'a [u32],
    /// Why it is saved.
    pub reason: SaveReason,
    /// More on that, for people.
    pub detail: &'a str,
    /// Bits of the model's quantisation, for people.
    pub quant_bits: u8,
    /// Tokens that the context has room for.
    pub context_size: u32,
    /// Unix time in seconds.
    pub created: u64,
    /// The prompt, for people; may be empty. It is stored as it is.
    pub prompt: &'a str,
    /// Where it was made, for people.
    pub host: &'a str,
    /// Length of the payload.
    pub payload_bytes: u64,
    /// The digest of what is said of the state, if anything is.
    pub descriptor: Option<[u8; 16]>,
}

/// A row's metadata of the right length, before the payload's checksum is known.
pub(crate) struct Unsealed {
    bytes: Vec<u8>,
    seal_at: usize,
}

impl Unsealed {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    pub fn seal(mut self, payload_crc32c: u32) -> Vec<u8> {
        self.put(64, payload_crc32c);
        let seal = metadata_sum(&self.bytes, Some(self.seal_at));
        self.put(self.seal_at, seal);
        self.bytes
    }

    fn put(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
}

impl NewRow<'_> {
    /// Everything before the payload, whose CRC-32C is given.
    pub fn encode(&self, payload_crc32c: u32) -> Vec<u8> {
        self.layout().seal(payload_crc32c)
    }

    /// How long [`encode`](NewRow::encode) gets.
    pub fn encoded_len(&self) -> usize {
        let record = |value: usize| 5 + value;
        let detail = cut(self.detail, MAX_TEXT_BYTES).len();
        let records = record(4) // the seal
            + record(32)
            + record(1)
            + record(1)
            + record(32)
            + record(cut(self.host, MAX_TEXT_BYTES).len())
            + record(SOFTWARE.len() + env!("CARGO_PKG_VERSION").len())
            + if detail == 0 { 0 } else { record(detail) }
            + self.descriptor.map_or(0, |digest| record(digest.len()))
            + record(4)
            + record(self.tokens.len() * 4);
        HEAD_BYTES + 4 + cut(self.prompt, MAX_PROMPT_BYTES).len() + 4 + records
    }

    pub(crate) fn layout(&self) -> Unsealed {
        self.layout_by(&format!("{SOFTWARE}{}", env!("CARGO_PKG_VERSION")))
    }

    /// The same as written by software of this name.
    pub(super) fn layout_by(&self, software: &str) -> Unsealed {
        let mut records = Vec::with_capacity(256 + self.tokens.len() * 4);
        push(&mut records, TAG_SEAL, &[0; 4]);
        push(&mut records, TAG_FINGERPRINT, &self.identity.fingerprint.bytes);
        push(&mut records, TAG_FINGERPRINT_MODE, &[self.identity.fingerprint.mode.number()]);
        push(&mut records, TAG_QUANT, &[self.identity.quant]);
        push(&mut records, TAG_CONTEXT_HASH, &self.identity.context_hash);
        push(&mut records, TAG_HOST, cut(self.host, MAX_TEXT_BYTES).as_bytes());
        push(&mut records, TAG_SOFTWARE, software.as_bytes());
        if !self.detail.is_empty() {
            push(&mut records, TAG_DETAIL, cut(self.detail, MAX_TEXT_BYTES).as_bytes());
        }
        if let Some(digest) = &self.descriptor {
            push(&mut records, TAG_DESCRIPTOR, digest);
        }
        push(&mut records, TAG_TOKEN_COUNT, &(self.tokens.len() as u32).to_le_bytes());
        records.push(TAG_TOKENS);
        records.extend((self.tokens.len() as u32 * 4).to_le_bytes());
        records.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));

        let prompt = cut(self.prompt, MAX_PROMPT_BYTES);
        let payload_offset = HEAD_BYTES + 4 + prompt.len() + 4 + records.len();
        let mut bytes = Vec::with_capacity(payload_offset);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.quant_bits, self.reason.number(), 0, 0]);
        bytes.extend((self.tokens.len() as u32).to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(self.context_size.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.created.to_le_bytes());
        bytes.extend(self.created.to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend((payload_offset as u64).to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend((prompt.len() as u32).to_le_bytes());
        bytes.extend(prompt.as_bytes());
        bytes.extend((records.len() as u32).to_le_bytes());
        // The value of the first record.
        let seal_at = bytes.len() + 5;
        bytes.extend(records);
        Unsealed { bytes, seal_at }
    }
}

fn push(records: &mut Vec<u8>, tag: u8, value: &[u8]) {
    records.push(tag);
    records.extend((value.len() as u32).to_le_bytes());
    records.extend(value);
}

/// At most `limit` bytes, whole characters.
fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}
