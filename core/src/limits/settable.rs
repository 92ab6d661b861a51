//! The bounds that the config file can change, each with its default and range.

use std::time::Duration;

use super::given::{Bounded, BoundedBytes};
use super::{DEADLINE_BYTES_PER_SECOND, MAX_MOVING};

/// The type of a bound as a config file has it; `bytes` may also be a text with a unit.
macro_rules! given {
    ($least:block, $most:block) => { Bounded<$least, $most> };
    ($least:block, $most:block, bytes) => { BoundedBytes<$least, $most> };
}

/// Declares [`Limits`] and what a config file may say of them, from one table: a name, its default, the least, the most.
macro_rules! settable {
    ($($(#[$doc:meta])* $name:ident $(($unit:ident))? = $default:expr, $least:expr, $most:expr;)*) => {
        /// The bounds that the operator can set for a backend or a tenant.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        #[non_exhaustive]
        pub struct Limits {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// What a `limits` table of the config file says; the rest is left to others.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct GivenLimits {
            $($name: Option<given!({ $least }, { $most } $(, $unit)?)>,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $default,)* }
            }
        }

        impl GivenLimits {
            /// These, and where they say nothing what `below` says.
            pub fn over(self, below: &Self) -> Self {
                GivenLimits { $($name: self.$name.or(below.$name),)* }
            }

            /// These, and the defaults.
            pub fn resolve(&self) -> Limits {
                Limits { $($name: self.$name.map_or($default, |given| given.0),)* }
            }
        }

        /// Every bound that can be set: its name, its default, the least and the most.
        pub const SETTABLE: &[(&str, u64, u64, u64)] = &[$((stringify!($name), $default, $least, $most),)*];
    };
}

settable! {
    /// What one instance costs beside its payloads, in bytes: linear memory, tables, globals, handles.
    memory_bytes (bytes) = 128 << 20, 64 << 10, 4 << 30;
    /// Payload bytes that one instance holds. It is also the size of a store in memory.
    payload_bytes (bytes) = 2 << 30, 1, 1 << 40;
    /// The longest chunk or manifest that is stored or fetched, in bytes, with its envelope.
    max_value_bytes (bytes) = 1 << 30, 4 << 10, 1 << 30;
    /// The longest manifest, in bytes, with its envelope. Guards the host's memory against a body without an end.
    max_manifest_bytes (bytes) = 64 << 20, 4 << 10, 1 << 30;
    /// Instances of one store. 0: four for each core.
    instances = 0, 0, 4096;
    /// Callers that wait for an instance. One more is answered that the store is busy.
    waiting = 1024, 0, 1 << 20;
    /// A call's time in milliseconds, to which a second for each 8 MiB is added.
    deadline_ms = 10_000, 1, 86_400_000;
    /// The most time of one call in milliseconds, whatever it moves; no byte extends it. Where `deadline_ms` is more, that.
    call_ms = 60_000, 1, 86_400_000;
    /// The time of one call that lists, counts or evicts, in milliseconds. It holds up no consumer.
    maintenance_ms = 60_000, 1, 86_400_000;
    /// The component's file, in bytes. componentize-py makes 18 MB; this leaves room and keeps a stray disk image out.
    component_bytes (bytes) = 128 << 20, 8, 1 << 30;
    /// How long an open waits for its component to be compiled, in milliseconds.
    compile_ms = 120_000, 1, 86_400_000;
    /// Memory of the compile helper for one component, in bytes. componentize-js takes 1.2 GB with 8 threads.
    compile_bytes (bytes) = 2 << 30, 64 << 20, 64 << 30;
    /// Connections that one instance may have open at once.
    connections = 64, 0, 65_536;
    /// How long a component's wait for the network may last in which no byte moves, in milliseconds. A component may ask for less.
    patience_ms = 5_000, 1, 86_400_000;
    /// How long an idle connection is kept for the next call, in milliseconds.
    idle_ms = 60_000, 0, 86_400_000;
    /// Failures in a row, of the component or for want of the server, after which calls fail at once for a while. 0: never.
    breaker_failures = 8, 0, 1 << 20;
    /// How long that is the first time, in milliseconds. It doubles with each probe that fails, up to 30 s.
    breaker_ms = 1_000, 1, 30_000;
    /// How long after a chunk was first found damaged it must be found so again to be removed, in milliseconds. Guards sound chunks
    /// from a server, a gateway or a wire that answers wrong bytes for a while.
    damaged_ms = 5_000, 0, 86_400_000;
}

/// The time that it is justified to take for moving so many bytes.
pub fn time_to_move(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / DEADLINE_BYTES_PER_SECOND).min(MAX_MOVING)
}

impl Limits {
    /// The time for a call that moves nothing.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    /// The most time of a call, whatever it moves.
    pub fn longest_call(&self) -> Duration {
        Duration::from_millis(self.call_ms.max(self.deadline_ms))
    }

    /// The longest manifest, as a backend has it.
    pub fn longest_manifest(&self) -> u64 {
        self.max_manifest_bytes.min(self.max_value_bytes)
    }

    /// The longest wait for the network in which no byte moves.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }

    /// How long after a chunk was first found damaged it must be found so again to be removed.
    pub fn damaged(&self) -> Duration {
        Duration::from_millis(self.damaged_ms)
    }

    /// How many instances a store may have at once.
    pub fn max_instances(&self) -> usize {
        match self.instances {
            0 => std::thread::available_parallelism().map_or(4, |cores| cores.get() * 4),
            set => usize::try_from(set).unwrap_or(usize::MAX),
        }
    }
}
