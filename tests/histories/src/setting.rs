//! What a round is run with: a backend, a nemesis, and how long.

use std::path::PathBuf;
use std::time::Duration;

use Backend::{Cluster, LocalFs, Memkv, Mooncake, Redis, S3, Segments};

/// What rounds run with.
pub struct Setting {
    /// What is installed: the library, its components, memkv-server.
    pub dist: PathBuf,
    /// The server refuses no change for being late: redis without scripts.
    pub unfenced: bool,
    /// In place of the installed component.
    pub component: Option<PathBuf>,
    /// How long the nemesis strikes, and four deadlines at least.
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    LocalFs,
    Segments,
    Redis,
    Cluster,
    Memkv,
    S3,
    Mooncake,
}

/// Their names, and what they are.
pub const BACKENDS: [(Backend, &str, &str); 7] = [
    (Backend::LocalFs, "local-fs", "a directory"),
    (Backend::Segments, "segments", "a directory of segments"),
    (Backend::Redis, "redis", "redis-server with appendfsync always"),
    (Backend::Cluster, "cluster", "a Redis Cluster of three masters"),
    (Backend::Memkv, "memkv", "memkv-server with --data"),
    (Backend::S3, "s3", "SeaweedFS with one gateway"),
    (Backend::Mooncake, "mooncake", "a Mooncake Store of two nodes"),
];

impl Backend {
    pub fn name(self) -> &'static str {
        BACKENDS.iter().find(|(own, ..)| *own == self).map_or("", |(_, name, _)| name)
    }

    pub fn scheme(self) -> &'static str {
        if self == Backend::Cluster { "redis" } else { self.name() }
    }

    /// Of a call: short, so that what is held up is late.
    pub fn deadline(self) -> Duration {
        Duration::from_millis(match self {
            Backend::LocalFs | Backend::Segments | Backend::Redis | Backend::Memkv => 700,
            Backend::Cluster => 1_500,
            Backend::Mooncake => 2_000,
            // SeaweedFS on a busy machine takes half a second for an object.
            Backend::S3 => 4_000,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nemesis {
    Calm,
    Kill,
    Freeze,
    ServerKill,
    ServerFreeze,
    Partition,
    Late,
    Break,
    Repeat,
    Clock,
    Full,
    Inodes,
    Evict,
    Reshard,
}

/// Each with its name, the backends that meet it, and what it is.
pub const NEMESES: &[(Nemesis, &str, &[Backend], &str)] = &[
    (Nemesis::Calm, "calm", &[LocalFs, Segments, Redis, Cluster, Memkv, S3, Mooncake], "nothing"),
    (
        Nemesis::Kill,
        "kill",
        &[LocalFs, Segments, Redis, Cluster, Memkv, S3, Mooncake],
        "SIGKILL of a process, another begins",
    ),
    (
        Nemesis::Freeze,
        "freeze",
        &[LocalFs, Segments, Redis, Cluster, Memkv, S3, Mooncake],
        "SIGSTOP of two processes, past their deadlines",
    ),
    (Nemesis::ServerKill, "server-kill", &[Redis, Memkv, Mooncake], "SIGKILL of the server, and its start"),
    (
        Nemesis::ServerFreeze,
        "server-freeze",
        &[Redis, Cluster, Memkv, S3],
        "SIGSTOP of the server, past the deadlines of calls",
    ),
    (Nemesis::Partition, "partition", &[Redis, Memkv, S3], "the connections of some processes are cut"),
    (Nemesis::Late, "late", &[Redis, Memkv, S3], "what some processes send arrives after they have given up"),
    (
        Nemesis::Break,
        "break",
        &[Redis, Memkv, S3],
        "connections break, and what was sent on them arrives when it was sent again",
    ),
    (Nemesis::Repeat, "repeat", &[Memkv], "what processes send arrives twice"),
    (
        Nemesis::Clock,
        "clock",
        &[LocalFs, Segments, Redis, Memkv, S3],
        "wall clocks jump, those of servers forward only",
    ),
    (Nemesis::Full, "full", &[LocalFs, Segments], "the disk is full"),
    (Nemesis::Inodes, "inodes", &[LocalFs, Segments], "the disk has no inodes left"),
    (
        Nemesis::Evict,
        "evict",
        &[LocalFs, Segments, Redis, Memkv, Mooncake],
        "the store is smaller than what is put into it, and who reads is stopped now and then",
    ),
    (Nemesis::Reshard, "reshard", &[Cluster], "slots move between the masters"),
];

impl Nemesis {
    pub fn name(self) -> &'static str {
        NEMESES.iter().find(|(own, ..)| *own == self).map_or("", |(_, name, ..)| name)
    }

    /// Whether the store may lose what it has acknowledged.
    pub fn loses(self, backend: Backend) -> bool {
        match self {
            Nemesis::Evict => true,
            // A segment is evicted where the disk has no room for another one.
            Nemesis::Full | Nemesis::Inodes => backend == Segments,
            // Its nodes keep all in memory, and so do masters of the cluster.
            Nemesis::ServerKill => backend == Mooncake,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_is_met_and_each_name_is_one() {
        for (backend, name, _) in BACKENDS {
            assert!(NEMESES.iter().any(|(_, _, backends, _)| backends.contains(&backend)), "{name}");
        }
        for (nemesis, name, backends, _) in NEMESES {
            assert_eq!(NEMESES.iter().filter(|(own, other, ..)| own == nemesis || other == name).count(), 1, "{name}");
            assert!(!backends.is_empty());
        }
    }
}
