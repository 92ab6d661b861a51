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

/// Functions of a component, all its modules together, and the bytes of one. componentize-py makes 13,000 functions and
/// the largest has 430 KB. Guards against compile bombs: time and memory of the compiler grow with both.
pub const MAX_FUNCTIONS: u64 = 100_000;
pub const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// Locals of a function times the places where its ways meet. Guards the compiler's memory, which grows with the product: 500 MB
/// here. The most of componentize-js is 480,000.
pub const MAX_FUNCTION_WAYS: u64 = 4_000_000;
/// Modules and components that a component consists of, and how deep they lie within each other.
pub const MAX_COMPONENT_PARTS: u64 = 1000;
pub const MAX_COMPONENT_DEPTH: usize = 32;
/// Bytes of a component outside of code, data and custom sections: each becomes hundreds of the compiler's. componentize-py has
/// 303,000.
pub const MAX_OUTLINE_BYTES: u64 = 1 << 20;
/// Entries of the sections of all modules together.
pub const MAX_TYPES: u64 = 20_000;
pub const MAX_IMPORTS: u64 = 50_000;
pub const MAX_EXPORTS: u64 = 50_000;
pub const MAX_DEFINITIONS: u64 = 200_000;
pub const MAX_ELEMENTS: u64 = 100_000;
pub const MAX_DATA_SEGMENTS: u64 = 100_000;
/// Imports and exports that a component has at its outside.
pub const MAX_COMPONENT_NAMES: usize = 1000;
/// What a component consists of when each of its parts counts as often as it is instantiated: instances of components, lifted and
/// lowered functions, aliases and arguments, functions and globals of core instances. Guard against a few bytes that double
/// again and again.
pub const MAX_COMPONENT_INSTANCES: u64 = 1000;
pub const MAX_ADAPTERS: u64 = 20_000;
pub const MAX_COMPONENT_ITEMS: u64 = 200_000;
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
pub const MAX_COMPILE_FAILURES: usize = 64;
/// Components kept loaded in the process. Guards against URIs that name ever new ones.
pub const MAX_COMPONENTS: usize = 64;
/// Stores without a handle that are kept for the next open. Past it the one unused for longest is dropped.
pub const MAX_IDLE_STORES: usize = 64;
/// What those cost together, payloads included, and how long one is kept; half as long again at most.
pub const IDLE_STORE_BYTES: u64 = 1 << 30;
pub const IDLE_STORE_FOR: Duration = Duration::from_secs(600);

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
/// What a handle costs the host, with the object behind it. It counts as memory of the instance, as what follows does.
pub const HANDLE_BYTES: usize = 256;
/// What an element of a table costs, and what an entry of a listing through WASI costs beside its name.
pub const TABLE_ELEMENT_BYTES: usize = 16;
/// What a function, global, table, memory or import of a core instance costs, and the core instance beside those.
pub const SLOT_BYTES: usize = 32;
pub const CORE_INSTANCE_BYTES: usize = 4 << 10;
pub const LISTED_BYTES: usize = 128;
/// Bytes that go into guest memory, or out of it, in one host call.
pub const MAX_GUEST_COPY_BYTES: usize = 64 << 20;
/// Pieces of memory that one host call works on: parts, and what a part that lies scattered consists of.
pub const MAX_SLICES: usize = 1 << 20;
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
pub const MAX_MOVING: Duration = Duration::from_secs(86_400);

/// Threads that help with the batches of a call, in the process.
pub const MAX_HELPERS: usize = 4;
/// Items of one batch of an engine. Guards the memory that their outcomes take.
pub const MAX_ITEMS: usize = 1 << 20;
/// Pieces of memory of one item.
pub const MAX_PIECES: usize = 1 << 16;
/// Threads that carry out the requests of queues, in the process.
pub const MAX_QUEUE_THREADS: usize = 8;
/// Requests of one queue that are not drained. Guards the memory of completions that nobody takes.
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;
/// Bytes that wait in a write buffer before a helper begins to store them, ahead of the manifest.
pub const EARLY_FLUSH_BYTES: usize = 1 << 20;
/// The least bytes of a batch that is stored beside others.
pub const LEAST_BATCH_BYTES: u64 = 1 << 20;
/// The least chunks of a batch that is fetched beside others.
pub const LEAST_BATCH_ITEMS: usize = 4;
/// Jobs that wait for a helper, in the process. What is over it is left to the caller.
pub const MAX_HELPER_JOBS: usize = 256;
/// How long chunks are taken to be before any was seen, when it is decided how many are asked for at once.
pub const ASSUMED_CHUNK_BYTES: usize = 16 << 20;
/// How long a backend's word holds that it has a chunk, for one that is not copied because of it, or not any more.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(2);
/// How long a lost chunk fails the manifests of its handle, from the moment when the loss was first told; unless it is put again.
pub const LOSS_TOLD_FOR: Duration = Duration::from_secs(5);
/// Chunks of which a store remembers what was put after them. Twice so many at most.
pub const FOLLOWED_CHUNKS: usize = 1 << 14;
/// Memory of write buffers and restored chunks that is kept for the next chunks, in the process.
pub const SPARE_BYTES: usize = 64 << 20;

/// Payload bytes that all instances of the process hold, and what they cost beside those: linear memory, tables, globals,
/// handles. Guard its memory against many stores at once.
pub const PROCESS_PAYLOAD_BYTES: u64 = 16 << 30;
pub const PROCESS_MEMORY_BYTES: u64 = 16 << 30;
/// Each of the two is at most one part in so many of the address space, where that is bounded (RLIMIT_AS).
pub const ADDRESS_SPACE_FRACTION: u64 = 4;
/// A store has at most one part in so many of what the process has for all, and all stores of a backend or tenant; or what one
/// instance is allowed, where that is more.
pub const STORE_FRACTION: u64 = 4;
pub const OWNER_FRACTION: u64 = 2;
/// Write buffer of one handle and of the process, for backends that are not write-through.
pub const WRITE_BUFFER_BYTES: usize = 64 << 20;
pub const PROCESS_WRITE_BUFFER_BYTES: usize = 512 << 20;
/// Prefetch cache of one handle, in bytes and in chunks. About as much may be on its way into it.
pub const PREFETCH_BYTES: usize = 256 << 20;
pub const PREFETCH_CHUNKS: usize = 1 << 16;
/// Hashes that a store remembers as present, to answer put_chunk. Twice so many at most.
pub const KNOWN_CHUNKS: usize = 1 << 16;
/// Hashes that a store remembers as damaged, so that the next put replaces them. Twice so many at most.
pub const DAMAGED_CHUNKS: usize = 1 << 12;
/// Further reads that must bring the same wrong bytes before a damaged chunk is removed from the backend. Guards sound chunks
/// from reads that a faulty wire or memory spoils.
pub const CONFIRMING_READS: u32 = 2;

/// Descriptors of the process that are open for components: connections, the idle ones included, and files and sockets of
/// WASI. Guards those of the consumer.
pub const PROCESS_DESCRIPTORS: u64 = 1024;
/// They are at most one part in so many of what the process may have open (RLIMIT_NOFILE).
pub const DESCRIPTOR_FRACTION: u64 = 2;
/// Connections that a store keeps for its next calls.
pub const MAX_PARKED: usize = 64;
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
pub const KV_BATCH_BYTES: u64 = 8 << 20;

/// WASI handles that an instance may hold at once: descriptors, streams, sockets, what it waits for. Each may hold
/// [`WASI_STREAM_BYTES`].
pub const MAX_WASI_HANDLES: usize = 256;
/// Listings of directories that an instance holds at once through WASI, and entries of one, which is made whole.
pub const MAX_WASI_LISTINGS: usize = 4;
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
pub const LOG_BYTES_PER_SECOND: u32 = 16 << 10;
pub const LOG_STORES: u32 = 4;
/// The longest line, in bytes.
pub const MAX_LOG_LINE_BYTES: usize = 1024;
/// The longest name of a secret or of a granted directory.
pub const MAX_SECRET_NAME_BYTES: usize = 64;
/// Files that are open at once to be synced, in the process; beyond that each call has one. Guards the consumer's file
/// descriptors.
pub const MAX_SYNCED: usize = 128;
/// Directories kept open between calls, in the process. Guards the consumer's file descriptors.
pub const MAX_PARENTS: usize = 128;
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
/// A temporary file of a dead writer is removed when it is older than this.
pub const STALE_TEMPORARY: Duration = Duration::from_secs(3600);

/// Compiled code that no process has loaded for so long is removed from the AOT cache.
pub const AOT_UNUSED: Duration = Duration::from_secs(30 * 86_400);
/// How old a file's note of its last use may be before it is renewed.
pub const AOT_USE_NOTED: Duration = Duration::from_secs(86_400);
/// Files of the AOT cache that are looked at when one is added.
pub const AOT_REAPED: usize = 4096;

/// Declares [`Limits`] and what a config file may say of them, from one table: a name, its default, the least, the most.
macro_rules! settable {
    ($($(#[$doc:meta])* $name:ident = $default:expr, $least:expr, $most:expr;)*) => {
        /// The bounds that the operator can set for a backend or a tenant.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        pub struct Limits {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// What a `limits` table of the config file says; the rest is left to others.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct GivenLimits {
            $($name: Option<Bounded<{ $least }, { $most }>>,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $default,)* }
            }
        }

        impl GivenLimits {
            /// These, and where they say nothing what `below` says.
            pub(crate) fn over(self, below: &Self) -> Self {
                GivenLimits { $($name: self.$name.or(below.$name),)* }
            }

            /// These, and the defaults.
            pub(crate) fn resolve(&self) -> Limits {
                Limits { $($name: self.$name.map_or($default, |given| given.0),)* }
            }
        }

        /// Every bound that can be set: its name, its default, the least and the most.
        pub const SETTABLE: &[(&str, u64, u64, u64)] = &[$((stringify!($name), $default, $least, $most),)*];
    };
}

settable! {
    /// What one instance costs beside its payloads, in bytes: linear memory, tables, globals, handles.
    memory_bytes = 128 << 20, 64 << 10, 4 << 30;
    /// Payload bytes that one instance holds. It is also the size of a store in memory.
    payload_bytes = 2 << 30, 1, 1 << 40;
    /// Instances of one store. 0: four for each core.
    instances = 0, 0, 4096;
    /// Callers that wait for an instance. One more is answered that the store is busy.
    waiting = 1024, 0, 1 << 20;
    /// A call's time in milliseconds, to which a second for each 8 MiB is added.
    deadline_ms = 10_000, 1, 86_400_000;
    /// The component's file, in bytes. componentize-py makes 18 MB; this leaves room and keeps a stray disk image out.
    component_bytes = 128 << 20, 8, 1 << 30;
    /// How long an open waits for its component to be compiled, in milliseconds.
    compile_ms = 120_000, 1, 86_400_000;
    /// Memory of the compile helper for one component, in bytes. componentize-js takes 1.2 GB with 8 threads.
    compile_bytes = 2 << 30, 64 << 20, 64 << 30;
    /// Connections that one instance may have open at once.
    connections = 64, 0, 65_536;
    /// How long one address may take to answer a connect, and to agree on TLS, in milliseconds.
    connect_ms = 5_000, 1, 86_400_000;
    /// How long an idle connection is kept for the next call, in milliseconds.
    idle_ms = 60_000, 0, 86_400_000;
    /// Failures in a row, of the component or for want of the server, after which calls fail at once for a while. 0: never.
    breaker_failures = 8, 0, 1 << 20;
    /// How long that is the first time, in milliseconds. It doubles with each probe that fails, up to 30 s.
    breaker_ms = 1_000, 1, 30_000;
}

/// A number that must lie between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "u64")]
pub(crate) struct Bounded<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Bounded<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match number {
            within if (LEAST..=MOST).contains(&within) => Ok(Bounded(within)),
            _ => Err(format!("{number} is not between {LEAST} and {MOST}")),
        }
    }
}

/// The time that it is justified to take for moving so many bytes.
pub(crate) fn time_to_move(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / DEADLINE_BYTES_PER_SECOND).min(MAX_MOVING)
}

impl Limits {
    /// The time for a call that moves nothing.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    pub(crate) fn max_instances(&self) -> usize {
        match self.instances {
            0 => std::thread::available_parallelism().map_or(4, |cores| cores.get() * 4),
            set => usize::try_from(set).unwrap_or(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_guide_lists_what_can_be_set_with_its_default_and_range() {
        let guide = include_str!("../../docs/operator-guide.md");
        for (name, default, least, most) in SETTABLE {
            let row = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/operator-guide.md has no row for `{name}`"));
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!(&cells[2..4], [default.to_string(), format!("{least} to {most}")], "{name}");
        }
    }

    /// How the guide writes a bound.
    trait Shown {
        fn shown(&self, name: &str) -> String;
    }

    impl Shown for u64 {
        fn shown(&self, name: &str) -> String {
            let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")];
            let unit = units.iter().find(|(unit, _)| name.contains("BYTES") && self.is_multiple_of(*unit));
            match (unit, self) {
                (Some((unit, written)), _) => format!("{} {written}", self / unit),
                (None, ..10_000) => self.to_string(),
                (None, 10_000..1_000_000) => format!("{},{:03}", self / 1000, self % 1000),
                (None, _) => format!("{},{:03},{:03}", self / 1_000_000, self / 1000 % 1000, self % 1000),
            }
        }
    }

    impl Shown for usize {
        fn shown(&self, name: &str) -> String {
            (*self as u64).shown(name)
        }
    }

    impl Shown for u32 {
        fn shown(&self, name: &str) -> String {
            u64::from(*self).shown(name)
        }
    }

    impl Shown for Duration {
        fn shown(&self, _name: &str) -> String {
            let units = [(86_400_000, "day"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
            let length = self.as_millis();
            let (unit, written) = units.into_iter().find(|(unit, _)| length.is_multiple_of(*unit)).unwrap();
            let many = if written == "day" && length > unit { "s" } else { "" };
            format!("{} {written}{many}", length / unit)
        }
    }

    macro_rules! shown {
        ($($name:ident)*) => { [$((stringify!($name), $name.shown(stringify!($name))),)*] };
    }

    #[test]
    fn the_operator_guide_lists_what_is_fixed_with_its_value() {
        let guide = include_str!("../../docs/operator-guide.md");
        let bounds = shown![
            MAX_URI_BYTES MAX_HASH_BYTES MAX_NAME_BYTES MAX_VALUE_BYTES MAX_FUNCTIONS MAX_FUNCTION_BYTES
            MAX_FUNCTION_WAYS MAX_COMPONENT_PARTS MAX_COMPONENT_DEPTH MAX_OUTLINE_BYTES MAX_TYPES MAX_IMPORTS
            MAX_EXPORTS MAX_DEFINITIONS MAX_ELEMENTS MAX_DATA_SEGMENTS MAX_COMPONENT_NAMES MAX_COMPONENT_INSTANCES
            MAX_ADAPTERS MAX_COMPONENT_ITEMS MAX_INSTANCE_SLOTS MAX_COMPILE_THREADS MAX_CODE_BYTES COMPILE_GRACE
            COMPILE_FAILED_FOR MAX_COMPILE_FAILURES MAX_COMPILATIONS MAX_COMPONENTS MAX_IDLE_STORES IDLE_STORE_BYTES IDLE_STORE_FOR WASM_STACK_BYTES FIBER_STACK_BYTES MAX_CORE_INSTANCES
            MAX_MEMORIES MAX_TABLES MAX_TABLE_ELEMENTS MAX_HANDLES MAX_GUEST_COPY_BYTES
            HOSTCALL_BYTES MAX_DIRECTORY_ENTRIES MAX_BATCH_ITEMS DEFAULT_BATCH_BYTES DEFAULT_BATCH_ITEMS
            MAX_FRESH_CHUNKS EPOCH_TICK TICKER_IDLE DEADLINE_GRACE DEADLINE_BYTES_PER_SECOND MAX_MOVING MAX_HELPERS
            MAX_HELPER_JOBS MAX_ITEMS MAX_PIECES MAX_QUEUE_THREADS MAX_QUEUE_DEPTH ASSUMED_CHUNK_BYTES LOSS_TOLD_FOR MAX_SLICES
            EARLY_FLUSH_BYTES LEAST_BATCH_BYTES LEAST_BATCH_ITEMS CONFIRMED_FOR FOLLOWED_CHUNKS SPARE_BYTES
            PROCESS_PAYLOAD_BYTES WRITE_BUFFER_BYTES PROCESS_WRITE_BUFFER_BYTES PREFETCH_BYTES PREFETCH_CHUNKS
            KNOWN_CHUNKS DAMAGED_CHUNKS CONFIRMING_READS PROCESS_DESCRIPTORS DESCRIPTOR_FRACTION STORE_FRACTION
            PROCESS_MEMORY_BYTES ADDRESS_SPACE_FRACTION OWNER_FRACTION HANDLE_BYTES TABLE_ELEMENT_BYTES SLOT_BYTES CORE_INSTANCE_BYTES
            LISTED_BYTES MAX_OWNER_LOOKUPS MAX_PARKED RECEIVE_BUFFER_BYTES MAX_SESSION_BYTES
            MAX_DELIMITER_BYTES MAX_KV_LAYERS MAX_KV_MODEL_BYTES DEFAULT_KV_CHUNK_TOKENS KV_RESTORE_BYTES
            KV_BATCH_BYTES MAX_WASI_HANDLES MAX_WASI_LISTINGS MAX_WASI_LISTING_ENTRIES WASI_STREAM_BYTES
            MAX_RESOLVED MAX_RANDOM_BYTES MAX_BLOCKING_THREADS LOG_LINES_PER_SECOND LOG_BYTES_PER_SECOND LOG_STORES
            MAX_LOG_LINE_BYTES MAX_SECRET_NAME_BYTES MAX_SECRET_BYTES MAX_CONFIG_BYTES MAX_SYNCED MAX_PARENTS PARENT_BELIEVED PARENT_UNUSED BREAKER_WINDOW
            BREAKER_MAX_PAUSE MAX_SERIES STALE_TEMPORARY AOT_UNUSED AOT_USE_NOTED AOT_REAPED
        ];
        for (name, value) in &bounds {
            let row = guide.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/operator-guide.md has no row for `{name}`: {value}"));
            assert_eq!(row.split('|').nth(2).unwrap().trim(), value, "{name}");
        }
        let source = include_str!("limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
        let declared = source.filter_map(|line| line.split_once(": ")).filter(|(_, rest)| !rest.starts_with('&'));
        for (name, _) in declared {
            assert!(bounds.iter().any(|(shown, _)| *shown == name), "{name} is not in the list of this test");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        assert!(Bounded::<1, 10>::try_from(0).is_err());
        assert!(Bounded::<1, 10>::try_from(11).is_err());
        assert_eq!(Bounded::<1, 10>::try_from(10).unwrap().0, 10);
    }

    #[test]
    fn no_deadline_overflows() {
        let longest = Limits { deadline_ms: 86_400_000, ..Limits::default() };
        assert!(std::time::Instant::now().checked_add(longest.deadline() + time_to_move(u64::MAX)).is_some());
    }
}
