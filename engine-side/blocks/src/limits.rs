//! Every bound of the cache, with what it guards.

/// The name of a model or a namespace, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

/// A block, in bytes.
pub const MAX_BLOCK_BYTES: usize = 1 << 30;

/// Tokens of a block.
pub const MAX_BLOCK_TOKENS: usize = 1 << 16;

/// Tokens of a prompt, prefix and query. Longer ones are cut, as with `MAX_SEQ_LEN`.
pub const MAX_SEQ_TOKENS: usize = 1 << 24;

/// A pass has at least so many blocks, whatever `CHUNK_SIZE` says.
pub const MIN_PASS_BLOCKS: usize = 4;

/// Keys of a batch.
pub const MAX_BATCH: usize = 4096;

/// Threads of a far level that blocks.
pub const MAX_WORKERS: usize = 256;

/// Questions and removals that wait for a far level; past them it is not asked, so that one that hangs takes no memory.
pub const MAX_ASKING: usize = 1024;

/// Requests that wait for a worker; past them a request is denied.
pub const MAX_WAITING: usize = 4096;

/// The text of a config, in bytes.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Blocks beside those of the near level and of the bounds on reads and writes: for puts that are being filled.
pub const FILLING_BLOCKS: usize = 64;

/// Passes of blocks that may be on their way from the far level at once, and to it where writes are synchronous: so many if
/// they are within [`BYTES_UNDER_WAY`], and so many at least.
pub const MOST_PASSES_UNDER_WAY: usize = 16;
/// See [`MOST_PASSES_UNDER_WAY`].
pub const LEAST_PASSES_UNDER_WAY: usize = 2;
/// See [`MOST_PASSES_UNDER_WAY`].
pub const BYTES_UNDER_WAY: usize = 256 << 20;

/// Blocks of a near level.
pub const MAX_BLOCKS: u64 = 1 << 31;
