//! Every bound of the host, with what it guards. `docs/limits.md` lists them for operators; what the config file
//! can change is a field of [`Limits`].

mod given;
mod settable;

use std::time::Duration;

pub use settable::{GivenLimits, Limits, SETTABLE, time_to_move};

/// Declares the bounds that are fixed, and for the tests the list of them.
macro_rules! fixed {
    ($($(#[$doc:meta])* pub const $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*

        #[cfg(test)]
        const FIXED: &[(&str, &dyn tests::Shown)] = &[$((stringify!($name), &$name),)*];
    };
}

fixed! {
/// The longest URI. Guards log lines and keys of tables.
pub const MAX_URI_BYTES: usize = 4096;
/// The longest hash, from the ABI.
pub const MAX_HASH_BYTES: usize = 64;
/// The longest name of a manifest, from the ABI.
pub const MAX_NAME_BYTES: usize = 4096;
/// The longest chunk or manifest, as a backend has it: with its envelope. Guards against a length that was never written, from a damaged store or a lying guest.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Functions of a component, all its modules together, and the bytes of one. componentize-py makes 13,000 functions and
/// the largest has 430 KB. Guards against compile bombs: time and memory of the compiler grow with both.
pub const MAX_FUNCTIONS: u64 = 100_000;
/// Bytes of the code of one function.
pub const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// Locals of a function times the places where its ways meet. Guards the compiler's memory, which grows with the product: 500 MB
/// here. The most of componentize-js is 480,000.
pub const MAX_FUNCTION_WAYS: u64 = 4_000_000;
/// Loops of a function. Guards the compiler, which needs 12 KB for each and time with the square of their number: 9 s here.
pub const MAX_FUNCTION_LOOPS: u64 = 10_000;
/// Modules and components that a component consists of, and how deep they lie within each other.
pub const MAX_COMPONENT_PARTS: u64 = 1000;
/// How deep parts of a component may lie within each other.
pub const MAX_COMPONENT_DEPTH: usize = 32;
/// Bytes of a component outside of code, data and custom sections: each becomes hundreds of the compiler's. componentize-py has
/// 303,000.
pub const MAX_OUTLINE_BYTES: u64 = 1 << 20;
/// Entries of the sections of all modules together.
pub const MAX_TYPES: u64 = 20_000;
/// Imports of all modules together.
pub const MAX_IMPORTS: u64 = 50_000;
/// Exports of all modules together.
pub const MAX_EXPORTS: u64 = 50_000;
/// Functions, tables and globals of all modules together.
pub const MAX_DEFINITIONS: u64 = 200_000;
/// Elements in segments of all modules together, and the segments.
pub const MAX_ELEMENTS: u64 = 100_000;
/// Data segments of all modules together.
pub const MAX_DATA_SEGMENTS: u64 = 100_000;
/// Imports and exports that a component has at its outside.
pub const MAX_COMPONENT_NAMES: usize = 1000;
/// What a component consists of when each of its parts counts as often as it is instantiated: instances of components, lifted and
/// lowered functions, aliases and arguments, functions and globals of core instances. Guard against a few bytes that double
/// again and again.
pub const MAX_COMPONENT_INSTANCES: u64 = 1000;
/// Lifted and lowered functions, each counted as often as it is instantiated.
pub const MAX_ADAPTERS: u64 = 20_000;
/// Aliases, imports, exports and arguments, each counted as often as it is instantiated.
pub const MAX_COMPONENT_ITEMS: u64 = 200_000;
/// Functions, globals and imports of core instances, each counted as often as it is instantiated.
pub const MAX_INSTANCE_SLOTS: u64 = 1_000_000;
/// Components that are compiled at once, those that missed their deadline and are still being compiled included.
pub const MAX_COMPILATIONS: usize = 2;
/// Threads that compile one component in the compile helper. Each takes some 70 MiB of `compile_bytes`.
pub const MAX_COMPILE_THREADS: usize = 8;
/// Compiled code of one component. componentize-js makes 77 MB of 12 MB.
pub const MAX_CODE_BYTES: u64 = 512 << 20;
/// How long a compilation that ends with its deadline may take to say so.
pub const COMPILE_GRACE: Duration = Duration::from_millis(500);
/// How long a component whose compilation failed is not compiled again, and how many such are remembered.
pub const COMPILE_FAILED_FOR: Duration = Duration::from_secs(600);
/// Components whose failed compilation is remembered.
pub const MAX_COMPILE_FAILURES: usize = 64;
/// Schemes that a component can list in its section.
pub const MAX_DECLARED_SCHEMES: usize = 16;
/// Sections of a component's file that are walked for the one in which it describes itself. componentize-py makes 400.
pub const MAX_SECTIONS_WALKED: usize = 16_384;
/// Components that are looked at for one that lists a scheme whose name none has.
pub const MAX_COMPONENTS_LOOKED_AT: usize = 64;
/// Components of which the process remembers what they say of themselves.
pub const MAX_LOOKS_KEPT: usize = 256;
/// Indexes of tenants that a config has: one for each scheme, and for each port that it has had by itself.
pub const MAX_TENANT_INDEXES: usize = 64;
/// Config files whose text is kept parsed in the process.
pub const MAX_CONFIGS_KEPT: usize = 16;
/// Components kept loaded in the process. Guards against URIs that name ever new ones.
pub const MAX_COMPONENTS: usize = 64;
/// Stores without a handle that are kept for the next open. Past it the one unused for longest is dropped.
pub const MAX_IDLE_STORES: usize = 64;
/// What those cost together, payloads included, and how long one is kept; half as long again at most.
pub const IDLE_STORE_BYTES: u64 = 1 << 30;
/// How long a store without a handle is kept.
pub const IDLE_STORE_FOR: Duration = Duration::from_secs(600);
/// The same of one that keeps a directory open, whose file system cannot be unmounted meanwhile; twice as long at most.
pub const IDLE_DIRECTORY_FOR: Duration = Duration::from_millis(400);

/// Stack of a guest's core code, in bytes; the host's part of the fiber comes on top. Guards against recursion.
pub const WASM_STACK_BYTES: usize = 512 << 10;
/// Stack of the fiber that a call runs on. Room for the guest's stack and the host functions that it calls.
pub const FIBER_STACK_BYTES: usize = 2 << 20;
/// Core instances, memories and tables in one component instance. A composed component has a few of each.
pub const MAX_CORE_INSTANCES: usize = 100;
/// Linear memories of one component.
pub const MAX_MEMORIES: usize = 20;
/// Tables of one component.
pub const MAX_TABLES: usize = 40;
/// Elements of all tables together, 8 bytes each. Guards against a table of gigabytes.
pub const MAX_TABLE_ELEMENTS: usize = 200_000;
/// Handles that an instance may hold at once: a backend that keeps its chunks in memory has one for each.
pub const MAX_HANDLES: usize = 1 << 20;
/// While chunks or a manifest are put, one part in so many of `memory_bytes` and of the handles is kept for reads: an instance that
/// holds the data refuses a put while it can still answer what it has.
pub const READ_FRACTION: u64 = 8;
/// An instance that still holds one part in so many of `payload_bytes`, or handles for one part in so many of `memory_bytes`,
/// when a call is over is replaced, where it is not the store itself. Guards stores against components that do not drop what
/// they are lent.
pub const LEFT_OVER_FRACTION: u64 = 8;
/// What a handle costs the host, with the object behind it. It counts as memory of the instance, as what follows does.
pub const HANDLE_BYTES: usize = 256;
/// What an element of a table costs, and what an entry of a listing through WASI costs beside its name.
pub const TABLE_ELEMENT_BYTES: usize = 16;
/// What a function, global, table, memory or import of a core instance costs, and the core instance beside those.
pub const SLOT_BYTES: usize = 32;
/// What a core instance is counted as.
pub const CORE_INSTANCE_BYTES: usize = 4 << 10;
/// What an entry of a listing is counted as.
pub const LISTED_BYTES: usize = 128;
/// Bytes that go into guest memory, or out of it, in one host call.
pub const MAX_GUEST_COPY_BYTES: usize = 64 << 20;
/// Bytes that one host call hashes, joins or writes between two looks at the deadline.
pub const UNINTERRUPTED_BYTES: usize = 8 << 20;
/// Pieces of memory that one host call works on: parts, and what a part that lies scattered consists of.
pub const MAX_SLICES: usize = 1 << 20;
/// Bytes that are made in the host out of what a guest passes in one call: lists, strings, records.
pub const HOSTCALL_BYTES: usize = 128 << 20;
/// Records of a store in segments. Guards the memory of its index: 352 MB for so many, and half as much again while it grows.
pub const MAX_RECORDS: u64 = 10_000_000;
/// Entries that one listing of a directory answers.
pub const MAX_DIRECTORY_ENTRIES: usize = 4096;
/// How long a write waits for room in a store that evicts. Guards a put against a store that is filled faster than it evicts.
pub const ROOM_AWAITED: Duration = Duration::from_secs(1);
/// How long chunks that were stored or used are kept from eviction, where the backend does not say.
pub const SAVE_GRACE: Duration = Duration::from_secs(60);
/// How often a bounded store is looked after though nobody asks for it.
pub const UPKEEP_PERIOD: Duration = Duration::from_secs(3600);
/// How long a count of the files of a bounded store is relied on.
pub const COUNTED_FOR: Duration = Duration::from_secs(3600);
/// Bytes that the disk tier of a near level leaves free for others.
pub const NEAR_KEEP_FREE_BYTES: u64 = 10 << 30;
/// Bytes that wait to be written to disk tiers, in the process.
pub const NEAR_WRITING_BYTES: usize = 64 << 20;
/// Threads that write to disk tiers, in the process.
pub const MAX_NEAR_WRITERS: usize = 1;
/// Threads that look after bounded stores, in the process.
pub const MAX_UPKEEP_THREADS: usize = 4;
/// Calls of `evict` in a row for one store.
pub const MAX_EVICTIONS: usize = 64;
/// A request for the counters, how long it may take, and how often `metrics_file` is written.
pub const MAX_METRICS_REQUEST: usize = 8192;
/// How long a request for the counters may take.
pub const METRICS_PATIENCE: Duration = Duration::from_secs(10);
/// Connections of requests that are open at once. Of more, the one that has been open for longest is closed.
pub const MAX_METRICS_CONNECTIONS: usize = 32;
/// For how long the file of another process was not written that is removed, where `metrics_file` has `{pid}`.
pub const METRICS_ABANDONED: Duration = Duration::from_secs(300);
/// Files of its directory that are looked at for it.
pub const MAX_METRICS_LOOKED_AT: usize = 4096;
/// How often the file of the counters is written.
pub const METRICS_WRITTEN: Duration = Duration::from_secs(15);
/// Open stores of which metrics tell.
pub const MAX_STORE_GAUGES: usize = 1024;
/// Entries on one page of a listing of a store, and the bytes of what leads to the next page.
pub const MAX_LISTED: usize = 4096;
/// The longest `next` of a page of a listing.
pub const MAX_CURSOR_BYTES: usize = 8192;
/// Pages of one listing: 4 billion entries, 1,024 on each. Guards who lists against a component that lists for ever.
pub const MAX_PAGES: u64 = 1 << 22;
/// Pages in a row on which there is nothing, of one listing. A server of which the store is a small part has many such pages.
pub const MAX_EMPTY_PAGES: u64 = 1 << 18;
/// Calls of `evict` until a store is as small as was asked. One removes some thousand chunks.
pub const MAX_EVICTION_CALLS: u64 = 1 << 16;
/// Calls of `evict` in a row that remove nothing and say that there is more.
pub const MAX_EMPTY_EVICTIONS: u64 = 64;
/// How long a time of use that was noted with a file is good for: a quarter of what chunks are kept for. Guards reads against a write of
/// metadata each.
pub const USE_NOTED: Duration = Duration::from_secs(15);
/// Items in one call of a guest, in either direction.
pub const MAX_BATCH_ITEMS: usize = 4096;
/// Bytes of one batch of chunks to a guest that names no limit of its own.
pub const DEFAULT_BATCH_BYTES: u64 = 64 << 20;
/// Items of one batch of chunks for a guest that names no limit of its own.
pub const DEFAULT_BATCH_ITEMS: usize = 256;
/// Changes of one store that are under way, or that ended unknown and may be carried out until their deadlines. With no place free
/// nothing is changed, and reads go on.
pub const MAX_CHANGES: usize = 4096;
/// Changes of one call of a guest. Guards those places against a single batch.
pub const MAX_CHANGES_OF_A_CALL: usize = 512;
/// The longest token by which a guest settles a change that ended unknown, from the contract.
pub const MAX_CHANGE_TOKEN_BYTES: usize = 64;
/// How often a change that waits for a former one looks whether its caller has cancelled it.
pub const HELD_CHANGE_LOOK: Duration = Duration::from_millis(20);
/// Hashes put on one handle since its last manifest, for a durable backend. Guards the list that `commit` hands over.
pub const MAX_FRESH_CHUNKS: usize = 1 << 18;

/// How often running guest code is looked at. A guest is stopped at most one tick after its deadline.
pub const EPOCH_TICK: Duration = Duration::from_millis(10);
/// How long the ticker goes on without a call before it sleeps. Guards the idle process against wakeups.
pub const TICKER_IDLE: Duration = Duration::from_secs(1);
/// After a call's deadline waits end with `unavailable`; this long the guest then has to answer.
pub const DEADLINE_GRACE: Duration = Duration::from_millis(500);
/// A call has one second more for each so many bytes that it moves, up to a day.
pub const DEADLINE_BYTES_PER_SECOND: u64 = 8 << 20;
/// The most time that bytes can justify.
pub const MAX_MOVING: Duration = Duration::from_secs(86_400);

/// Threads that help with the batches of a call, in the process.
pub const MAX_HELPERS: usize = 4;
/// Threads that a pool has beyond those for a store or tenant of which nothing runs in it: of the helpers, of the queues, of those that look
/// after bounded stores, and of those that write to disk tiers, each.
pub const MAX_EXTRA_THREADS: usize = 8;
/// Threads that read what is not in the page cache, in the process: what a disk is given to do at once.
pub const MAX_READERS: usize = 32;
/// What one tenant or backend has of them at most, so that a disk that does not answer leaves some to the others.
pub const MAX_OWNER_READERS: usize = 24;
/// Reads at once whose bytes are not copied yet, in the process; a call has one in any case. Guards the memory that they are read into.
pub const MAX_READS: usize = 64;
/// Reads beyond [`MAX_READS`], each for a tenant, backend or store that has none.
pub const MAX_EXTRA_READS: usize = 16;
/// What one tenant or backend has of [`MAX_READS`] at most.
pub const MAX_OWNER_READS: usize = 48;
/// Bytes of one read. Longer values are read in parts, side by side; an eighth more is read at once.
pub const READ_PART_BYTES: usize = 1 << 20;
/// How long the memory of reads is kept for the next ones; twice as long at most.
pub const READ_BUFFERS_UNUSED: Duration = Duration::from_secs(1);
/// A shorter value is never read around the page cache.
pub const DIRECT_BYTES: u64 = 256 << 10;
/// Compilations at once beyond [`MAX_COMPILATIONS`], each for a backend or tenant of which none is being compiled.
pub const MAX_EXTRA_COMPILATIONS: usize = 2;
/// Items of one batch of an engine. Guards the memory that their outcomes take.
pub const MAX_ITEMS: usize = 1 << 20;
/// Pieces of memory of one item.
pub const MAX_PIECES: usize = 1 << 16;
/// Threads that carry out the requests of queues, in the process.
pub const MAX_QUEUE_THREADS: usize = 8;
/// Threads beside the callers' that gather and scatter the chunks of paged caches, in the process. There is one for each core, up to
/// this.
pub const MAX_PAGED_THREADS: usize = 64;
/// Requests of one queue that are not drained. Guards the memory of completions that nobody takes.
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;
/// Bytes that wait in a write buffer before a helper begins to store them, ahead of the manifest.
pub const EARLY_FLUSH_BYTES: usize = 1 << 20;
/// The least bytes of a batch that is stored beside others.
pub const LEAST_BATCH_BYTES: u64 = 1 << 20;
/// The least chunks of a batch that is fetched beside others.
pub const LEAST_BATCH_ITEMS: usize = 4;
/// Jobs of one store that wait for a helper. What is over it is left to the caller.
pub const MAX_HELPER_JOBS: usize = 256;
/// How long chunks are taken to be before any was seen, when it is decided how many are asked for at once.
pub const ASSUMED_CHUNK_BYTES: usize = 16 << 20;
/// How long a backend's word holds that it has a chunk, for one that is not copied because of it, or not any more.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(2);
/// Chunks that a store has removed within [`CONFIRMED_FOR`] and remembers, so that no save counts on them. Of more than these it asks again
/// for all.
pub const MAX_REMOVED_CHUNKS: usize = 65_536;
/// How long a lost chunk fails the manifests of its handle, from the moment when the loss was first told; unless it is put again.
pub const LOSS_TOLD_FOR: Duration = Duration::from_secs(5);
/// Chunks of which a store remembers what was put after them. Twice so many at most.
pub const FOLLOWED_CHUNKS: usize = 1 << 14;
/// Memory of write buffers and restored chunks that is kept for the next chunks, in the process.
pub const SPARE_BYTES: usize = 64 << 20;
/// Lengths of chunks for which a store had no memory kept, the last ones: of a length that is twice among them memory is kept from then on.
pub const SPARE_LENGTHS: usize = 128;

/// Payload bytes that all instances of the process hold, and what they cost beside those: linear memory, tables, globals,
/// handles. Guard its memory against many stores at once.
pub const PROCESS_PAYLOAD_BYTES: u64 = 16 << 30;
/// What all instances of the process cost beside their payloads.
pub const PROCESS_MEMORY_BYTES: u64 = 16 << 30;
/// Each of the two is at most one part in so many of the address space, where that is bounded (RLIMIT_AS).
pub const ADDRESS_SPACE_FRACTION: u64 = 4;
/// A store has at most one part in so many of what the process has for all, and all stores of a backend or tenant; or what one
/// instance is allowed, where that is more.
pub const STORE_FRACTION: u64 = 4;
/// All stores of one backend or tenant together may have one part in so many.
pub const OWNER_FRACTION: u64 = 2;
/// Write buffer of one handle and of the process, for backends that are not write-through.
pub const WRITE_BUFFER_BYTES: usize = 64 << 20;
/// Bytes in the write buffers of all handles of the process.
pub const PROCESS_WRITE_BUFFER_BYTES: u64 = 512 << 20;
/// Prefetch cache of one handle, in bytes and in chunks. About as much may be on its way into it.
pub const PREFETCH_BYTES: usize = 256 << 20;
/// Chunks of one prefetch cache.
pub const PREFETCH_CHUNKS: usize = 1 << 16;
/// What is said of one field of a descriptor: longer texts are said by a digest.
pub const MAX_DESCRIPTOR_FIELD_BYTES: usize = 512;
/// Descriptors that the handles of one store may say: each takes 16 bytes for as long as the store is open.
pub const DESCRIPTORS: usize = 4096;
/// Descriptors that one piece of that memory has room for.
pub const DESCRIPTORS_OF_A_PART: usize = 256;
/// Chunks, and manifests, of which a store remembers under which descriptor they lie. Twice so many at most of each.
pub const KNOWN_MEANINGS: usize = 1 << 16;
/// How long that is believed: after it a put reads what lies under its key.
pub const MEANING_REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Bytes that one call reads to learn under which descriptor they lie, unless one value is longer.
pub const MEANINGS_BATCH_BYTES: u64 = 16 << 20;
/// Parts of one bundle.
pub const MAX_BUNDLE_PARTS: usize = 4096;
/// Hashes that a store remembers as present, to answer put_chunk. Twice so many at most.
pub const KNOWN_CHUNKS: usize = 1 << 16;
/// Hashes that a store remembers as damaged, so that the next put replaces them. Twice so many at most.
pub const DAMAGED_CHUNKS: usize = 1 << 12;
/// Names of manifests of which a store remembers the greatest generation that it has read. Twice so many at most.
pub const REMEMBERED_GENERATIONS: usize = 1 << 12;
/// For how long it remembers them.
pub const GENERATION_REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Manifests of which a store remembers that it has removed the name in layout 1, and that it has told of damage. Twice so many at
/// most of each.
pub const REMEMBERED_NAMES: usize = 1 << 12;

/// Descriptors of the process that are open for components: connections, the idle ones included, and files and sockets of
/// WASI. Guards those of the consumer.
pub const PROCESS_DESCRIPTORS: u64 = 1024;
/// They are at most one part in so many of what the process may have open (RLIMIT_NOFILE).
pub const DESCRIPTOR_FRACTION: u64 = 2;
/// Connections that a store keeps for its next calls.
pub const MAX_IDLE_CONNECTIONS: usize = 64;
/// What is received before the guest asks for it, for each connection.
pub const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Headers of a request or response over HTTP, the bytes of its head, and responses that only say that one is under way.
pub const MAX_HTTP_HEADERS: usize = kv_http_wire::MAX_HEADERS;
/// Bytes of the head of one HTTP response.
pub const MAX_HTTP_HEAD_BYTES: usize = kv_http_wire::MAX_HEAD_BYTES;
/// Bytes of the heads of all responses to one batch of HTTP requests.
pub const MAX_HTTP_BATCH_HEAD_BYTES: usize = 16 << 20;
/// Interim responses (1xx) before the final one of an HTTP request.
pub const MAX_INTERIM_RESPONSES: usize = 16;
/// The longest session text.
pub const MAX_SESSION_BYTES: usize = 1024;
/// Connections in one `connect-all`, `send-all` or `ready`.
pub const MAX_SIDE_BY_SIDE: usize = 1024;
/// Servers of which one call notes whether they answered, for the circuit breaker.
pub const MAX_SERVERS_OF_A_CALL: usize = 1024;
/// The longest delimiter of receive-until, from the contract.
pub const MAX_DELIMITER_BYTES: usize = 16;

/// Layers of a sequence, and the longest text that says what its values belong to. Guard the manifest of a sequence.
pub const MAX_KV_LAYERS: usize = 1024;
/// The longest name of a model in a manifest of a paged cache.
pub const MAX_KV_MODEL_BYTES: usize = 256;
/// Tokens of a chunk where the caller does not say.
pub const DEFAULT_KV_CHUNK_TOKENS: u32 = 256;
/// Payload bytes that a restore holds at once where the caller does not say. What is no larger is restored as a whole or
/// not at all.
pub const KV_RESTORE_BYTES: u64 = 256 << 20;
/// Bytes that a restore asks of the backend in one call.
pub const KV_BATCH_BYTES: u64 = 8 << 20;

/// WASI handles that an instance may hold at once: descriptors, streams, sockets, what it waits for. Each may hold
/// [`WASI_STREAM_BYTES`].
pub const MAX_WASI_HANDLES: usize = 256;
/// Listings of directories that an instance holds at once through WASI, and entries of one, which is made whole.
pub const MAX_WASI_LISTINGS: usize = 4;
/// Entries of one listing of a directory by WASI.
pub const MAX_WASI_LISTING_ENTRIES: usize = 1 << 16;
/// Bytes that a WASI stream of ours takes at once, as many as those of wasmtime-wasi.
pub const WASI_STREAM_BYTES: usize = 64 << 10;
/// Addresses of granted names that an instance remembers for WASI, which connects to addresses. Past it they are forgotten.
pub const MAX_RESOLVED: usize = 1024;
/// Random bytes of one call through WASI.
pub const MAX_RANDOM_BYTES: u64 = 1 << 20;
/// Threads that resolve names, all stores together. One name is resolved once at a time, whoever asks.
pub const MAX_BLOCKING_THREADS: usize = 32;
/// Names that are resolved at once for one backend or tenant, those that nobody waits for any more included.
pub const MAX_OWNER_LOOKUPS: usize = 4;

/// Lines and bytes that the component of one store may log in a second, and how many times that all together may. The
/// rest is counted.
pub const LOG_LINES_PER_SECOND: u32 = 50;
/// Bytes that one component may log in a second.
pub const LOG_BYTES_PER_SECOND: u32 = 16 << 10;
/// All components together may log so many times what one may.
pub const LOG_STORES: u32 = 4;
/// The longest line, in bytes.
pub const MAX_LOG_LINE_BYTES: usize = 1024;
/// What warnings and errors of a process have at most in any hour, in bytes: half for the host, half for all components. It
/// keeps an outage from filling the disk of the log.
pub const LOG_BYTES_PER_HOUR: u64 = 1 << 20;
/// How often a failure that lasts is told again.
pub const LOG_REPEATED: Duration = Duration::from_secs(60);
/// Stores and causes of which it is known that they were told.
pub const LOG_CAUSES: usize = 256;
/// The longest code of a storage system's own in an error, in characters. What is over is cut.
pub const MAX_ERROR_CODE_CHARS: usize = 64;
/// The longest name of a secret or of a granted directory.
pub const MAX_SECRET_NAME_BYTES: usize = 64;
/// Files that are open at once to be synced, in the process; beyond that each call has one. Guards the consumer's file
/// descriptors.
pub const MAX_SYNCED: usize = 128;
/// Directories kept open between calls, in the process: those of two stores of files, each with 256 folders. Guards the consumer's file
/// descriptors.
pub const MAX_PARENTS: usize = 512;
/// They are at most one part in so many of what the process may have open (RLIMIT_NOFILE).
pub const PARENT_FRACTION: u64 = 8;
/// How long such a directory is believed to be the one under its name.
pub const PARENT_BELIEVED: Duration = Duration::from_secs(1);
/// How long one may lie unused before it is closed; twice as long at most.
pub const PARENT_UNUSED: Duration = Duration::from_millis(125);
/// The longest config file: 20,000 tenants take 2 MB.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;
/// The longest secret out of a file. Guards against a path that is something else.
pub const MAX_SECRET_BYTES: u64 = 64 << 10;
/// Failures further apart than this are not in a row, for the circuit breaker.
pub const BREAKER_WINDOW: Duration = Duration::from_secs(60);
/// The longest that a circuit breaker stays open between two probes.
pub const BREAKER_MAX_PAUSE: Duration = Duration::from_secs(30);
/// Pairs of backend and tenant that are counted apart. The rest is counted together.
pub const MAX_SERIES: usize = 256;
/// Backends and tenants without an open store of which it is remembered what they have used of their quotas: at least so many, and at
/// most this or as many as have open stores.
pub const KEPT_METERS: usize = 1024;
/// A temporary file of a dead writer is removed when it is older than this.
pub const STALE_TEMPORARY: Duration = Duration::from_secs(3600);

/// Compiled code that no process has loaded for so long is removed from the AOT cache.
pub const AOT_UNUSED: Duration = Duration::from_secs(30 * 86_400);
/// How old a file's note of its last use may be before it is renewed.
pub const AOT_USE_NOTED: Duration = Duration::from_secs(86_400);
/// Files of the AOT cache that are looked at when one is added.
pub const AOT_REAPED: usize = 4096;
}

#[cfg(test)]
mod tests;
