//! Every bound, with what it guards.

use std::time::Duration;

/// No wait is longer, so that no clock overflows.
pub const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The least step of the longest-prefix walk: each step takes memory and a hash.
pub const MIN_ALIGN_TOKENS: usize = 4;

/// Tokens of a row. A row file lists them, and a reader asks for memory for them.
pub const MAX_TOKENS: usize = 1 << 24;
/// Header, sections and token list of a row file: what is read of a file before its payload is believed.
pub const MAX_METADATA_BYTES: u64 = 80 << 20;
/// The prompt's text in a row file. It is for people, so longer ones are cut.
pub const MAX_PROMPT_BYTES: usize = 64 << 10;
/// Free text of a record (host name, detail of a save); longer ones are cut.
pub const MAX_TEXT_BYTES: usize = 1024;
/// Read at a time, with the checksum taken while the bytes are in the second-level cache.
pub const BLOCK_BYTES: usize = 256 << 10;
/// Written at a time, likewise; each write costs the file system more than each read.
pub const WRITE_BLOCK_BYTES: usize = 1 << 20;
/// Read of each file in a scan at first: header and sections of a row of some thousand tokens.
pub const SCAN_READ_BYTES: usize = 16 << 10;
/// Threads of a scan: more requests at once than a disk serves in turn.
pub const SCAN_THREADS: usize = 8;
/// What a row costs in memory besides its payload; counted in the `ram` tier's budget, so that empty rows are not free.
pub const ROW_OVERHEAD_BYTES: u64 = 512;
/// Damaged files kept for people to look at, in each directory; the oldest go first.
pub const MAX_SET_ASIDE: usize = 16;
/// And their size together, since no budget counts them.
pub const MAX_SET_ASIDE_BYTES: u64 = 256 << 20;
/// A temporary file of a process that may live elsewhere is dead after this time.
pub const STALE_TEMPORARY_SECONDS: u64 = 3600;
/// Metadata of a GGUF file that a fingerprint reads.
pub const MAX_GGUF_METADATA_BYTES: u64 = 256 << 20;
/// Sampled at each end of each tensor of a GGUF file.
pub const GGUF_SAMPLE_BYTES: u64 = 4 << 10;
