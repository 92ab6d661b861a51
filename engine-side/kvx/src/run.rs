//! Runs: tokens that follow each other both in the cache and outside of it.
//!
//! Slot mappings and RAGGED tables speak of single tokens; a kernel is fast on
//! many. [`Runs`] joins what follows up, so that a decoder of a table stays a
//! plain loop.

use crate::error::Result;
use crate::layout::CacheShape;

/// `tokens` tokens from token `offset` of `block` on, and from token `io` on outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// 0, or 1 for the secondary pool of a table of KV offsets.
    pub part: usize,
    pub block: u64,
    pub offset: u64,
    pub io: u64,
    pub tokens: u64,
}

/// Joins runs and hands the joined ones to `sink`.
pub(crate) struct Runs<F> {
    block_size: u64,
    /// Whether a run may go on in the next block; see `Steps::crosses_blocks`.
    crosses: bool,
    pending: Option<Run>,
    sink: F,
}

impl<F: FnMut(Run) -> Result<()>> Runs<F> {
    #[inline(always)]
    pub fn new(shape: &CacheShape, crosses: bool, sink: F) -> Self {
        Runs { block_size: u64::from(shape.block_size), crosses, pending: None, sink }
    }

    #[inline(always)]
    pub fn push(&mut self, run: Run) -> Result<()> {
        if let Some(last) = &mut self.pending {
            // Block, offset and count are bounded by the cache, so these sums fit.
            let end = last.block * self.block_size + last.offset + last.tokens;
            let follows = last.part == run.part
                && end == run.block * self.block_size + run.offset
                && last.io + last.tokens == run.io
                && (self.crosses || run.block == last.block);
            if follows {
                last.tokens += run.tokens;
                return Ok(());
            }
        }
        match self.pending.replace(run) {
            Some(done) => (self.sink)(done),
            None => Ok(()),
        }
    }

    #[inline(always)]
    pub fn finish(mut self) -> Result<()> {
        match self.pending.take() {
            Some(done) => (self.sink)(done),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: CacheShape = CacheShape { num_blocks: 8, block_size: 4, num_kv_heads: 1, head_dim: 1 };

    fn joined(slots: &[u64], crosses: bool) -> Vec<(u64, u64, u64, u64)> {
        let mut out = Vec::new();
        let mut runs = Runs::new(&SHAPE, crosses, |r: Run| {
            out.push((r.block, r.offset, r.io, r.tokens));
            Ok(())
        });
        for (io, slot) in slots.iter().enumerate() {
            let run = Run { part: 0, block: slot / 4, offset: slot % 4, io: io as u64, tokens: 1 };
            runs.push(run).unwrap();
        }
        runs.finish().unwrap();
        out
    }

    #[test]
    fn joins_inside_a_block_and_across_blocks_where_allowed() {
        assert_eq!(joined(&[2, 3, 4, 5], true), [(0, 2, 0, 4)]);
        assert_eq!(joined(&[2, 3, 4, 5], false), [(0, 2, 0, 2), (1, 0, 2, 2)]);
    }

    #[test]
    fn a_repeated_or_descending_slot_starts_a_new_run() {
        assert_eq!(joined(&[3, 3], true), [(0, 3, 0, 1), (0, 3, 1, 1)]);
        assert_eq!(joined(&[3, 2], true), [(0, 3, 0, 1), (0, 2, 1, 1)]);
        assert!(joined(&[], true).is_empty());
    }
}
