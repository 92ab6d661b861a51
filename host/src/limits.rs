//! Every bound of the host, with what it guards. `docs/operator-guide.md` lists them for operators; what the config file
//! can change is a field of [`Limits`].

use std::time::Duration;

/// The longest URI. Guards log lines and keys of tables.
pub const MAX_URI_BYTES: usize = 4096;
/// The longest hash, from the ABI.
pub const MAX_HASH_BYTES: usize = 64;
/// The longest name of a manifest, from the ABI.
pub const MAX_NAME_BYTES: usize = 4096;
/// The longest chunk or manifest. Guards against a length that was never written, from a damaged store or a lying guest.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// The largest component file. componentize-py makes 18 MB; this leaves room and keeps a stray disk image out.
pub const MAX_COMPONENT_BYTES: u64 = 128 << 20;
/// Components kept loaded in the process. Guards against URIs that name ever new ones.
pub const MAX_COMPONENTS: usize = 64;
/// Stores without a handle that are kept for the next open. Past it the one unused for longest is dropped.
pub const MAX_IDLE_STORES: usize = 64;

/// Stack of a guest's core code, in bytes; the host's part of the fiber comes on top. Guards against recursion.
pub const WASM_STACK_BYTES: usize = 512 << 10;
/// Stack of the fiber that a call runs on. Room for the guest's stack and the host functions that it calls.
pub const FIBER_STACK_BYTES: usize = 2 << 20;
/// Core instances, memories and tables in one component instance. A composed component has a few of each.
pub const MAX_CORE_INSTANCES: usize = 100;
pub const MAX_MEMORIES: usize = 20;
pub const MAX_TABLES: usize = 40;
/// Elements of all tables together, 8 bytes each. Guards against a table of gigabytes.
pub const MAX_TABLE_ELEMENTS: usize = 200_000;
/// Handles that an instance may hold at once: a backend that keeps its chunks in memory has one for each.
pub const MAX_HANDLES: usize = 1 << 20;
/// Lent payloads that a guest has not dropped when their call is over. Past it the instance is replaced.
pub const MAX_LEAKED_HANDLES: usize = 1024;
/// Bytes that go into guest memory, or out of it, in one host call.
pub const MAX_GUEST_COPY_BYTES: usize = 64 << 20;
/// Bytes that are made in the host out of what a guest passes in one call: lists, strings, records.
pub const HOSTCALL_BYTES: usize = 128 << 20;
/// Entries that one listing of a directory answers.
pub const MAX_DIRECTORY_ENTRIES: usize = 4096;
/// Items in one call of a guest, in either direction.
pub const MAX_BATCH_ITEMS: usize = 4096;
/// Bytes of one batch of chunks to a guest that names no limit of its own.
pub const DEFAULT_BATCH_BYTES: u64 = 64 << 20;
/// Items of one batch of chunks for a guest that names no limit of its own.
pub const DEFAULT_BATCH_ITEMS: usize = 256;
/// Hashes put on one handle since its last manifest, for a durable backend. Guards the list that put-manifest hands over.
pub const MAX_FRESH_CHUNKS: usize = 1 << 18;

/// How often running guest code is looked at. A guest is stopped at most one tick after its deadline.
pub const EPOCH_TICK: Duration = Duration::from_millis(10);
/// How long the ticker goes on without a call before it sleeps. Guards the idle process against wakeups.
pub const TICKER_IDLE: Duration = Duration::from_secs(1);
/// After a call's deadline waits end with `unavailable`; this long the guest then has to answer.
pub const DEADLINE_GRACE: Duration = Duration::from_millis(500);
/// A call's time, and one second more for each so many bytes that it moves.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
pub const DEADLINE_BYTES_PER_SECOND: u64 = 8 << 20;

/// Threads that help with the batches of a call, in the process.
pub const MAX_HELPERS: usize = 4;
/// Bytes that wait in a write buffer before a helper begins to store them, ahead of the manifest.
pub const EARLY_FLUSH_BYTES: usize = 1 << 20;
/// The least bytes of a batch that is stored beside others.
pub const LEAST_BATCH_BYTES: u64 = 1 << 20;
/// The least chunks of a batch that is fetched beside others.
pub const LEAST_BATCH_ITEMS: usize = 4;
/// How long a backend's word holds that it has a chunk, for a chunk that was not copied because of it.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(2);
/// Chunks of which a store remembers what was put after them. Twice so many at most.
pub const FOLLOWED_CHUNKS: usize = 1 << 14;
/// Memory of write buffers that is kept for the next chunks, in the process.
pub const SPARE_BYTES: usize = 32 << 20;

/// Write buffer of one handle and of the process, for backends that are not write-through.
pub const WRITE_BUFFER_BYTES: usize = 64 << 20;
pub const PROCESS_WRITE_BUFFER_BYTES: usize = 512 << 20;
/// Prefetch cache of one handle, in bytes and in chunks.
pub const PREFETCH_BYTES: usize = 256 << 20;
pub const PREFETCH_CHUNKS: usize = 1 << 16;
/// Hashes that a store remembers as present, to answer put_chunk. Twice so many at most.
pub const KNOWN_CHUNKS: usize = 1 << 16;
/// Hashes that a store remembers as damaged, so that the next put replaces them. Twice so many at most.
pub const DAMAGED_CHUNKS: usize = 1 << 12;

/// Connections that an instance may have open at once.
pub const MAX_CONNECTIONS: usize = 64;
/// Connections that a store keeps for its next calls, and for how long.
pub const MAX_PARKED: usize = 64;
pub const PARKED_FOR: Duration = Duration::from_secs(60);
/// How long one address may take to answer a connect.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What is received before the guest asks for it, for each connection.
pub const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// The longest session text.
pub const MAX_SESSION_BYTES: usize = 1024;
/// The longest delimiter of receive-until, from the contract.
pub const MAX_DELIMITER_BYTES: usize = 16;

/// Layers of a sequence, and the longest text that says what its values belong to. Guard the manifest of a sequence.
pub const MAX_KV_LAYERS: usize = 1024;
pub const MAX_KV_MODEL_BYTES: usize = 256;
/// Tokens of a chunk where the caller does not say.
pub const DEFAULT_KV_CHUNK_TOKENS: u32 = 256;
/// Payload bytes that a restore holds at once where the caller does not say. What is no larger is restored as a whole or
/// not at all.
pub const KV_RESTORE_BYTES: u64 = 256 << 20;
/// Bytes that a restore asks of the backend in one call.
pub const KV_BATCH_BYTES: u64 = 16 << 20;

/// Lines that components may log in a second, all together. The rest is counted.
pub const LOG_LINES_PER_SECOND: u32 = 50;
/// The longest line, in bytes.
pub const MAX_LOG_LINE_BYTES: usize = 1024;
/// The longest secret's name.
pub const MAX_SECRET_NAME_BYTES: usize = 64;
/// Directories kept open between calls, in the process. Guards the consumer's file descriptors.
pub const MAX_PARENTS: usize = 128;
/// How long such a directory is believed to be the one under its name.
pub const PARENT_BELIEVED: Duration = Duration::from_secs(1);
/// A temporary file of a dead writer is removed when it is older than this.
pub const STALE_TEMPORARY: Duration = Duration::from_secs(3600);

/// The bounds that the operator can set for a backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Linear memory of one instance, all memories together, in bytes.
    pub memory_bytes: usize,
    /// Payload bytes that one instance holds. It is also the size of a store in memory.
    pub payload_bytes: usize,
    /// Instances of one store. 0: four for each core.
    pub instances: usize,
    /// A call's time in milliseconds, to which a second for each 8 MiB is added.
    pub deadline_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 128 << 20,
            payload_bytes: 2 << 30,
            instances: 0,
            deadline_ms: DEFAULT_DEADLINE.as_millis() as u64,
        }
    }
}

impl Limits {
    /// The time for a call that moves `bytes`.
    pub(crate) fn deadline(&self, bytes: u64) -> Duration {
        let moving = Duration::from_millis(bytes.saturating_mul(1000) / DEADLINE_BYTES_PER_SECOND);
        Duration::from_millis(self.deadline_ms).saturating_add(moving)
    }

    pub(crate) fn max_instances(&self) -> usize {
        match self.instances {
            0 => std::thread::available_parallelism().map_or(4, |cores| cores.get() * 4),
            set => set,
        }
    }
}
