//! The manifest of a saved state: what it was made with, where its chunks belong, and the bytes that are in no chunk.
//!
//! Little-endian. A record comes from a store that others write to: every number is checked before it is used, and nothing is
//! allocated that is larger than the record itself.
//!
//! ```text
//! "kvllama\x01"                          8
//! fingerprint of model and context      32
//! version of llama.cpp's sequence file   4    tokens                4
//! bytes of the state                     8    blocks                4
//! for each block: sections 4, groups 4, runs 4,
//!   each section: offset 8, row 8; each group: sections 4; each run: rows 8
//! for each chunk: XXH3-64, its name       8    the upper half of its XXH3-128   8
//! for each token                         4
//! the bytes that are in no chunk
//! XXH3-128 of all before                16
//! ```

use twox_hash::XxHash3_128;

use crate::layout::{Block, Cut, Section};

const MAGIC: &[u8; 8] = b"kvllama\x01";
/// Bytes of the checksum at the end.
pub const SEAL_BYTES: usize = 16;
/// The largest state that is believed.
const MAX_STATE_BYTES: u64 = 1 << 40;

/// What a chunk is known by: its name in the store, which is the XXH3-64 of its bytes, big-endian, and the upper half of their
/// XXH3-128. So chunks of one name but other bytes are told apart, and both come of one pass.
pub type ChunkHash = [u8; 16];

/// How much of a [`ChunkHash`] is the name.
pub const NAME_BYTES: usize = 8;

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of model and context.
    pub fingerprint: [u8; 32],
    /// Of the sequence files that this libllama writes: its states have their layout.
    pub version: u32,
    /// The tokens that the caller gave with the state.
    pub tokens: Vec<i32>,
    /// Bytes of the state.
    pub size: u64,
    /// Where its chunks belong.
    pub cut: Cut,
    /// Their hashes, in the order of [`Cut::chunks`].
    pub hashes: Vec<ChunkHash>,
    /// The bytes that are in no chunk, one after another.
    pub rest: Vec<u8>,
}

impl Record {
    /// The bytes of the manifest.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.fingerprint);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&(self.tokens.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&(self.cut.blocks.len() as u32).to_le_bytes());
        for Block { sections, groups, runs } in &self.cut.blocks {
            for len in [sections.len(), groups.len(), runs.len()] {
                out.extend_from_slice(&(len as u32).to_le_bytes());
            }
            for section in sections {
                out.extend_from_slice(&section.offset.to_le_bytes());
                out.extend_from_slice(&section.row.to_le_bytes());
            }
            groups.iter().for_each(|group| out.extend_from_slice(&group.to_le_bytes()));
            runs.iter().for_each(|run| out.extend_from_slice(&run.to_le_bytes()));
        }
        self.hashes.iter().for_each(|hash| out.extend_from_slice(hash));
        self.tokens.iter().for_each(|token| out.extend_from_slice(&token.to_le_bytes()));
        out.extend_from_slice(&self.rest);
        let seal = XxHash3_128::oneshot(&out);
        out.extend_from_slice(&seal.to_le_bytes());
        out
    }

    /// Read a manifest. The error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Record, &'static str> {
        let Some((body, seal)) = bytes.split_last_chunk::<SEAL_BYTES>() else { return Err("it is too short") };
        let mut rest = body.strip_prefix(MAGIC).ok_or("it is not a state of llama.cpp")?;
        if XxHash3_128::oneshot(body).to_le_bytes() != *seal {
            return Err("its checksum is wrong");
        }
        Self::body(&mut rest).ok_or("its numbers make no sense")
    }

    fn body(rest: &mut &[u8]) -> Option<Record> {
        let fingerprint = take(rest)?;
        let version = take(rest).map(u32::from_le_bytes)?;
        let tokens = take(rest).map(u32::from_le_bytes)?;
        let size = take(rest).map(u64::from_le_bytes).filter(|size| *size <= MAX_STATE_BYTES)?;
        let blocks = take(rest).map(u32::from_le_bytes)?;
        let mut cut = Cut::default();
        for _ in 0..blocks {
            let [sections, groups, runs] = [take(rest)?, take(rest)?, take(rest)?].map(u32::from_le_bytes);
            let section = |bytes: [u8; 16]| {
                let (offset, row) = bytes.split_at(8);
                Some(Section {
                    offset: u64::from_le_bytes(offset.try_into().ok()?),
                    row: u64::from_le_bytes(row.try_into().ok()?),
                })
            };
            cut.blocks.push(Block {
                sections: list(rest, sections)?.into_iter().map(section).collect::<Option<_>>()?,
                groups: list(rest, groups)?.into_iter().map(u32::from_le_bytes).collect(),
                runs: list(rest, runs)?.into_iter().map(u64::from_le_bytes).collect(),
            });
        }
        let hashes = list(rest, u32::try_from(cut.len()?).ok()?)?;
        let tokens = list(rest, tokens)?.into_iter().map(i32::from_le_bytes).collect();
        let left: usize = cut.rest(size)?.iter().map(ExactSizeIterator::len).sum();
        let whole = left == rest.len();
        whole.then(|| Record { fingerprint, version, tokens, size, cut, hashes, rest: rest.to_vec() })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// So many numbers of N bytes, which must be there before room is made for them.
fn list<const N: usize>(rest: &mut &[u8], count: u32) -> Option<Vec<[u8; N]>> {
    let bytes = (count as usize).checked_mul(N)?;
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head.as_chunks::<N>().0.to_vec())
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
