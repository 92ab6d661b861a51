//! Put: blocks are copied into memory of the cache's own, and are in the near level when the call returns.

use super::{Cache, Inner};
use crate::config::Ingestion;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Level, Op, Stage};
use crate::slab::Filling;

impl Cache {
    /// Put the blocks of a query, one buffer for each, of a block's length. Returns how many leading tokens were taken; where no
    /// memory is free, and none can be given up, fewer are. A block that is there is replaced: in the near level at once, in the far one when
    /// it is written. Until then, and where that write is dropped or fails, the far level has the former one.
    ///
    /// Without a near level the blocks are written to the far one, whatever `ingestion_type` says.
    pub fn put(&self, prefix: &[i32], query: &[i32], blocks: &[&[u8]]) -> Result<usize> {
        let inner = &self.inner;
        if let Some(wrong) = blocks.iter().find(|block| block.len() != inner.shape.block) {
            let message = format!("a block has {} bytes, but a buffer has {}", inner.shape.block, wrong.len());
            return Err(Error::invalid(message));
        }
        self.put_with(prefix, query, blocks.len(), |index, room| {
            if let Some(block) = blocks.get(index) {
                room.copy_from_slice(block);
            }
        })
    }

    /// As [`Cache::put`], of at most `blocks` blocks that `fill` writes, each by its index: where a block lies in pieces, or
    /// comes from elsewhere, nothing needs to be copied before.
    pub fn put_with(
        &self,
        prefix: &[i32],
        query: &[i32],
        blocks: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Put, prefix, query, blocks)?;
        let mut taken = 0;
        for pass in 0..wanted.keys.len().div_ceil(inner.pass) {
            let first = pass * inner.pass;
            let end = wanted.keys.len().min(first + inner.pass);
            let (pass_timer, stage) = (inner.timer(), inner.stage_timer());
            let epoch = inner.flights.epoch();
            let (mut left, mut fresh, mut stored) = (Vec::new(), Vec::new(), 0);
            for index in first..end {
                let Some(key) = wanted.keys.get(index) else { break };
                let Some(mut slot) = inner.take_slot(key, &mut left) else {
                    inner.metrics.failed(Level::L1, Op::Put, ErrorKind::OutOfMemory, 1);
                    break;
                };
                inner.fill(&mut slot, wanted.proof(index), |room| fill(index, room));
                let block = slot.share();
                // What is near with the same bytes stays, and with it whether the far level has it.
                let there = inner.near.as_ref().and_then(|near| near.peek(key));
                let there = there.filter(|there| there.bytes() == block.bytes());
                let writes = match (&inner.near, inner.config.l2.ingestion_type) {
                    _ if inner.far.is_none() => None,
                    (Some(_), Ingestion::Evicted) => None,
                    _ => Some(there.clone().unwrap_or_else(|| block.to_block(&inner.slab))),
                };
                let used = there.and_then(|_| inner.near.as_ref()?.access(key));
                let hot = match used {
                    Some((_, hot)) => hot,
                    None => inner.keep(*key, block, false, &mut left),
                };
                let written = inner.near.is_none() || hot || inner.config.l2.ingestion_type == Ingestion::All;
                fresh.extend(writes.filter(|_| written).map(|block| (*key, block)));
                stored += 1;
            }
            inner.stage_done(Op::Put, Stage::Near, stage);
            inner.ingest_left(Op::Put, left, epoch, true);
            let fresh_only = inner.near.is_none() || inner.config.l2.ingestion_type == Ingestion::All;
            let written = inner.ingest(Op::Put, fresh, (!fresh_only).then_some(epoch), true);
            if inner.near.is_some() {
                inner.done(Level::L1, Op::Put, end - first, stored, pass_timer);
            } else {
                stored = stored.min(written);
            }
            taken += stored;
            if first + stored < end {
                break;
            }
        }
        inner.done(Level::Cache, Op::Put, wanted.keys.len(), taken, timer);
        Ok(inner.tokens(taken))
    }
}

impl Inner {
    /// Fill a slot with a block and what it is the block of.
    fn fill(&self, slot: &mut Filling<'_>, proof: Option<&[u8]>, fill: impl FnOnce(&mut [u8])) {
        let bytes = slot.bytes_mut();
        let (block, rest) = bytes.split_at_mut_checked(self.shape.block).unwrap_or_default();
        fill(block);
        if let Some(proof) = proof {
            rest.iter_mut().zip(proof).for_each(|(to, from)| *to = *from);
        }
    }
}
