//! Get, acquire and prefetch: the near level first, then the far one for the rest.

use std::sync::Arc;
use std::time::Instant;

use super::exchange::Coming;
use super::{Cache, Inner, Wanted};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::{Count, Level, Op, Stage};
use crate::slab::{Acquired, Block, Pinned};

impl Cache {
    /// Copy the leading blocks of a query into the caller's memory, one buffer for each, of a block's length. Returns how many
    /// tokens there were; buffers behind them may hold anything.
    pub fn get(&self, prefix: &[i32], query: &[i32], into: &mut [&mut [u8]]) -> Result<usize> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Get, prefix, query, into.len())?;
        if let Some(wrong) = into.iter().take(wanted.keys.len()).find(|buffer| buffer.len() != inner.shape.block) {
            let message = format!("a block has {} bytes, but a buffer has {}", inner.shape.block, wrong.len());
            return Err(Error::invalid(message));
        }
        let mut rooms = into.iter_mut();
        let found = inner.find(Op::Get, &wanted, |inner, block| {
            if let Some(room) = rooms.next() {
                room.copy_from_slice(inner.shape.block(block.bytes()));
            }
        });
        inner.done(Level::Cache, Op::Get, wanted.keys.len(), found, timer);
        Ok(inner.tokens(found))
    }

    /// The leading blocks of a query, as views of the cache's own memory: nothing is copied. They stay in memory, and are not
    /// given up, until what is returned is dropped.
    pub fn acquire(&self, prefix: &[i32], query: &[i32]) -> Result<Acquired> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Acquire, prefix, query, usize::MAX)?;
        let mut acquired = Acquired::new(&inner.slab, wanted.keys.len(), inner.shape.block);
        let found = inner.find(Op::Acquire, &wanted, |_, block| match block {
            Held::Pinned(pinned) => acquired.push(pinned),
            Held::Block(block) => acquired.push_block(block),
        });
        inner.done(Level::Cache, Op::Acquire, wanted.keys.len(), found, timer);
        Ok(acquired)
    }

    /// Have the far level's blocks of a query brought into the near one. Does not wait for them. Returns how many leading tokens
    /// are near or on their way.
    pub fn prefetch(&self, prefix: &[i32], query: &[i32]) -> Result<usize> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Prefetch, prefix, query, usize::MAX)?;
        let blocks = wanted.keys.len();
        let mut begun = match &inner.near {
            Some(near) => wanted.keys.iter().take_while(|key| near.peek(key).is_some()).count(),
            None => 0,
        };
        // Without a near level there is nothing to fill.
        if inner.near.is_some() && inner.far.is_some() && inner.features.prefetches {
            while begun < blocks {
                let end = blocks.min(begun + inner.pass);
                let deadline = Instant::now() + inner.config.l2.time_for(inner.tokens(end - begun));
                let coming = inner.ask_for(Op::Prefetch, &wanted, begun..end, deadline).len();
                let all = coming == end - begun;
                begun += coming;
                if !all {
                    break;
                }
            }
        }
        inner.done(Level::Cache, Op::Prefetch, blocks, begun, timer);
        Ok(inner.tokens(begun))
    }
}

/// A block that was found.
pub(super) enum Held<'a> {
    Pinned(Pinned<'a>),
    Block(Block),
}

impl Held<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Pinned(pinned) => pinned.bytes(),
            Held::Block(block) => block.bytes(),
        }
    }
}

impl Inner {
    /// Hand the leading blocks of a query to `take`, in order. Returns how many there were.
    fn find<'a>(self: &'a Arc<Self>, op: Op, wanted: &Wanted, mut take: impl FnMut(&Inner, Held<'a>)) -> usize {
        let near = self.find_near(op, wanted, &mut take);
        if !self.asks_far(near, wanted.keys.len()) {
            return near;
        }
        near + self.find_far(op, wanted, near, &mut take)
    }

    fn find_near<'a>(self: &'a Arc<Self>, op: Op, wanted: &Wanted, take: &mut impl FnMut(&Inner, Held<'a>)) -> usize {
        let Some(near) = &self.near else { return 0 };
        let (timer, stage) = (self.timer(), self.stage_timer());
        let epoch = if self.ingests_hot() { self.flights.epoch() } else { 0 };
        let (mut found, mut hot) = (0, Vec::new());
        for (index, key) in wanted.keys.iter().enumerate() {
            let Some((pinned, is_hot)) = near.access(key) else { break };
            if !self.shape.proves(pinned.bytes(), wanted.proof(index)) {
                self.metrics.count(Count::Collisions, 1);
                break;
            }
            if is_hot && self.ingests_hot() {
                hot.push((*key, pinned.to_block(&self.slab)));
            }
            take(self, Held::Pinned(pinned));
            found += 1;
        }
        self.stage_done(op, Stage::Near, stage);
        self.done(Level::L1, op, wanted.keys.len(), found, timer);
        self.ingest(op, hot, Some(epoch), true);
        found
    }

    /// Whether the far level is asked for the blocks behind the first `near` of a query.
    fn asks_far(&self, near: usize, blocks: usize) -> bool {
        let missing = blocks - near;
        let (least, fraction) = match &self.near {
            Some(_) => self.config.double_get_threshold,
            None => (1, 0.0),
        };
        self.far.is_some() && missing > 0 && missing >= least && missing as f64 >= fraction * blocks as f64
    }

    fn find_far<'a>(
        self: &'a Arc<Self>,
        op: Op,
        wanted: &Wanted,
        first: usize,
        take: &mut impl FnMut(&Inner, Held<'a>),
    ) -> usize {
        let timer = self.stage_timer();
        let (blocks, mut index) = (wanted.keys.len(), first);
        'passes: while index < blocks {
            let end = blocks.min(index + self.pass);
            let deadline = Instant::now() + self.config.l2.time_for(self.tokens(end - index));
            let coming = self.ask_for(op, wanted, index..end, deadline);
            let asked = coming.len();
            for one in coming {
                let block = match one {
                    Coming::Here(block) => Some(block),
                    Coming::Flight(flight) => match flight.wait(deadline) {
                        Some(landed) => landed,
                        None => {
                            self.metrics.failed(Level::Cache, op, ErrorKind::Timeout, 1);
                            None
                        }
                    },
                };
                // Who joined another's flight may have wanted the block of another prompt.
                let proves = |block: &Block| self.shape.proves(block.bytes(), wanted.proof(index));
                let Some(block) = block.filter(proves) else { break 'passes };
                take(self, Held::Block(block));
                index += 1;
            }
            if asked == 0 || index < end {
                break;
            }
        }
        self.stage_done(op, Stage::Far, timer);
        index - first
    }

    /// The leading blocks of a query that are near. This is no use of them.
    pub(super) fn near_run(&self, wanted: &Wanted) -> usize {
        (0..wanted.keys.len()).take_while(|index| self.is_near(wanted, *index)).count()
    }

    /// Whether a block of a query is near. This is no use of it.
    pub(super) fn is_near(&self, wanted: &Wanted, index: usize) -> bool {
        let block = self.near.as_ref().zip(wanted.keys.get(index)).and_then(|(near, key)| near.peek(key));
        block.is_some_and(|block| self.shape.proves(block.bytes(), wanted.proof(index)))
    }
}
