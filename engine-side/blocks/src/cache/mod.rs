//! The cache: what its callers do, over the near level and the far one.
//!
//! A call is about a query that follows a prefix, and says how many leading tokens of the query were handled: the first block
//! that was not ends the run. No call takes longer than the time for its tokens in the far level, whatever that does.

mod exchange;
mod flights;
mod ingest;
mod lookup;
mod put;
mod remove;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::config::{Config, Ingestion};
use crate::error::{Error, ErrorKind, Result};
use crate::far::{Far, Features};
use crate::key::{Key, Keys, le_bytes};
use crate::limits;
use crate::metrics::{Count, Level, LevelUse, Metrics, Op, Snapshot, Stage};
use crate::near::{Left, Near};
use crate::slab::{Filling, Pinned, Slab};
use crate::spec::Spec;
use crate::value::Shape;
use flights::Flights;

/// A cache of the blocks of one [`Spec`]. Any number of threads may use it at once.
///
/// ```
/// use kv_blocks::{Cache, Config, Spec};
/// let config = Config::parse("[l1]\ncapacity_gb = 0.01").unwrap();
/// let cache = Cache::open(config, Spec::new("model", 16, 4096), None).unwrap();
/// let tokens: Vec<i32> = (0..40).collect();
/// let blocks = [vec![1; 4096], vec![2; 4096]];
/// // Two blocks of 16 tokens; the 8 tokens behind them are no whole block.
/// assert_eq!(cache.put(&[], &tokens, &[&blocks[0], &blocks[1]]).unwrap(), 32);
/// let mut into = vec![0; 4096];
/// // The second block, which follows the first.
/// assert_eq!(cache.get(&tokens[..16], &tokens[16..32], &mut [&mut into]).unwrap(), 16);
/// assert_eq!(into, blocks[1]);
/// let acquired = cache.acquire(&[], &tokens).unwrap();
/// assert_eq!(acquired.iter().collect::<Vec<_>>(), blocks);
/// ```
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    keys: Keys,
    shape: Shape,
    /// Blocks of one pass.
    pass: usize,
    /// Blocks that may be on their way from the far level.
    most_fetching: usize,
    /// Blocks that may be on their way to it.
    most_writing: usize,
    near: Option<Near>,
    near_capacity: usize,
    slab: Arc<Slab>,
    far: Option<Arc<dyn Far>>,
    features: Features,
    flights: Flights,
    metrics: Metrics,
    closed: AtomicBool,
}

/// The blocks of a call, each with its key and, with validation, what it must be the block of.
struct Wanted {
    keys: Vec<Key>,
    proofs: Vec<Vec<u8>>,
}

impl Wanted {
    fn proof(&self, index: usize) -> Option<&[u8]> {
        self.proofs.get(index).map(Vec::as_slice)
    }
}

impl Cache {
    /// Open a cache. Without a far level it has the near one only.
    pub fn open(config: Config, spec: Spec, far: Option<Arc<dyn Far>>) -> Result<Self> {
        config.check()?;
        spec.check()?;
        let block_tokens = config.block_tokens(spec.engine_block_tokens)?;
        let shape = Shape::new(block_tokens, spec.block_bytes, config.token_validation);
        let pass = (config.chunk_size / block_tokens).max(limits::MIN_PASS_BLOCKS);
        let least = pass.max(config.l2.op_batch) * limits::LEAST_PASSES_UNDER_WAY;
        let most_fetching =
            (limits::BYTES_UNDER_WAY / shape.slot()).min(pass.saturating_mul(limits::MOST_PASSES_UNDER_WAY)).max(least);
        let most_writing = match config.l2.ingestion_max_inflight_tokens {
            0 => most_fetching,
            tokens => (tokens / block_tokens).max(1),
        };
        let near_capacity = match config.l1.enabled {
            true => (config.l1.capacity_bytes() / shape.slot() as u64).min(limits::MAX_BLOCKS) as usize,
            false => 0,
        };
        if config.l1.enabled && near_capacity == 0 {
            let message = format!("l1.capacity_gb is smaller than one block, {} bytes: raise it", shape.slot());
            return Err(Error::invalid(message));
        }
        // What is on its way, or being filled, takes no room of the near level.
        let beside = if far.is_some() { most_fetching + most_writing + pass } else { 0 } + limits::FILLING_BLOCKS;
        let slab = Slab::new(near_capacity + beside, shape.slot())?;
        let near = (near_capacity > 0)
            .then(|| Near::new(slab.clone(), near_capacity, config.l1.eviction_policy, config.l1.s3fifo()));
        let scope = spec.scope(&config, block_tokens);
        let inner = Inner {
            keys: Keys::for_scope(config.l2.key_builder, config.l2.key_hash, scope, block_tokens),
            shape,
            pass,
            most_fetching,
            most_writing,
            near,
            near_capacity,
            slab,
            features: far.as_ref().map(|far| far.features()).unwrap_or_default(),
            far,
            flights: Flights::default(),
            metrics: Metrics::new(),
            closed: AtomicBool::new(false),
            config,
        };
        Ok(Cache { inner: Arc::new(inner) })
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.inner.shape.block_tokens
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.inner.shape.block
    }

    /// What the cache was opened with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// How keys are built.
    pub fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    /// What happened since the cache was opened.
    pub fn metrics(&self) -> Snapshot {
        let inner = &self.inner;
        let bytes = inner.shape.slot() as u64;
        let near_blocks = inner.near.as_ref().map_or(0, |near| near.len() as u64);
        let (fetching, writing) = inner.flights.under_way();
        inner.metrics.snapshot(LevelUse {
            near_blocks,
            near_bytes: near_blocks * bytes,
            near_capacity_bytes: inner.near_capacity as u64 * bytes,
            memory_bytes: inner.slab.in_use() as u64 * bytes,
            fetching_blocks: fetching as u64,
            writing_blocks: writing as u64,
        })
    }

    /// Finish the writes that are under way, then refuse further calls and give the near level's memory back. Blocks that are
    /// acquired stay valid. `Timeout`: writes were not finished in the time for their tokens; the cache is closed all the same.
    pub fn close(&self) -> Result<()> {
        let flushed = self.flush();
        self.inner.closed.store(true, Relaxed);
        if let Some(near) = &self.inner.near {
            near.clear();
        }
        match flushed {
            Err(error) if error.kind() == ErrorKind::Cancelled => Ok(()),
            flushed => flushed,
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // What comes back from the far level fills nothing any more.
        self.inner.closed.store(true, Relaxed);
        if let Some(near) = &self.inner.near {
            near.clear();
        }
    }
}

impl Inner {
    fn is_open(&self) -> Result<()> {
        match self.closed.load(Relaxed) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Cancelled, "the cache is closed")),
        }
    }

    /// The blocks of a query, if the call makes sense.
    fn wanted(&self, op: Op, prefix: &[i32], query: &[i32], most: usize) -> Result<Wanted> {
        self.is_open()?;
        let block = self.shape.block_tokens;
        if !prefix.len().is_multiple_of(block) {
            let message = format!("the prefix has {} tokens, no whole number of blocks of {block}", prefix.len());
            return Err(Error::invalid(message));
        }
        let room = self.config.max_tokens().saturating_sub(prefix.len());
        let tokens = (query.len().min(room) / block).min(most) * block;
        let query = query.get(..tokens).unwrap_or_default();
        // A prompt that is too long is not hashed for nothing.
        if query.is_empty() {
            return Ok(Wanted { keys: Vec::new(), proofs: Vec::new() });
        }
        let timer = self.stage_timer();
        let keys = self.keys.of(prefix, query);
        let mut proofs = Vec::new();
        if self.config.token_validation {
            let own = query.chunks_exact(block);
            let histories = self.keys.histories(prefix, query);
            proofs.extend(own.zip(histories).map(|(own, history)| [&le_bytes(own), &history[..]].concat()));
        }
        self.stage_done(op, Stage::Keys, timer);
        Ok(Wanted { keys, proofs })
    }

    fn tokens(&self, blocks: usize) -> usize {
        blocks * self.shape.block_tokens
    }

    /// A slot to fill. Where none is free, the near level gives one up.
    fn take_slot(&self, key: &Key, left: &mut Vec<Left>) -> Option<Filling<'_>> {
        self.slab.fill().or_else(|| {
            let gone = self.near.as_ref()?.evict(key)?;
            self.gave_up(gone, left);
            self.slab.fill()
        })
    }

    /// The near level gave a block up.
    fn gave_up(&self, gone: Left, left: &mut Vec<Left>) {
        self.metrics.count(Count::Evictions, 1);
        // What is to be written stays until it is.
        if self.config.l2.ingestion_type == Ingestion::Evicted && self.far.is_some() {
            left.push(gone);
        }
    }

    /// Put a block into the near level. Returns whether it is to be written now where hot blocks are: this was its hot access, or the far level has
    /// what it replaced.
    fn keep(&self, key: Key, block: Pinned<'_>, in_far: bool, left: &mut Vec<Left>) -> bool {
        let Some(near) = self.near.as_ref().filter(|_| !self.closed.load(Relaxed)) else { return false };
        let stored = near.insert(key, block, in_far);
        if let Some(gone) = stored.evicted {
            self.gave_up(gone, left);
        }
        stored.hot || stored.outdates_far
    }

    fn timer(&self) -> Option<Instant> {
        self.config.time_measurement.then(Instant::now)
    }

    fn stage_timer(&self) -> Option<Instant> {
        (self.config.time_measurement && self.config.breakdown_measurement).then(Instant::now)
    }

    fn stage_done(&self, op: Op, stage: Stage, timer: Option<Instant>) {
        if let Some(begun) = timer {
            self.metrics.stage(op, stage, begun.elapsed());
        }
    }

    /// An operation is done: blocks asked for and handled.
    fn done(&self, level: Level, op: Op, asked: usize, found: usize, timer: Option<Instant>) {
        let took: Option<Duration> = timer.map(|begun| begun.elapsed());
        self.metrics.done(level, op, self.tokens(asked), self.tokens(found), took);
    }
}
