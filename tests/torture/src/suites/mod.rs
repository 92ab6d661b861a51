//! The ways to torment. Each suite makes a store of its own for each round, which its seed decides.

mod calls;
mod crash;
pub mod far;
mod faults;
mod resources;

use std::path::Path;

use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers::Server;

use crate::process::{Story, config, scratch};

/// One way, and what it is called.
pub struct Suite {
    pub name: &'static str,
    /// What is done, for `--help`.
    pub about: &'static str,
    pub round: fn(u64) -> Story,
}

pub const SUITES: &[Suite] = &[
    Suite { name: "crash-local-fs", about: "kill -9 of a consumer in the midst of saves", round: crash::local_fs },
    Suite { name: "crash-redis", about: "the same, of redis-server too", round: crash::redis },
    Suite { name: "crash-memkv", about: "the same, of memkv-server too", round: crash::memkv },
    Suite {
        name: "server-redis",
        about: "a consumer whose redis-server is frozen and killed",
        round: crash::server_redis,
    },
    Suite { name: "server-memkv", about: "the same with memkv-server", round: crash::server_memkv },
    Suite {
        name: "crash-calls",
        about: "kill -9 at each system call that writes, syncs or renames",
        round: calls::kills,
    },
    Suite {
        name: "error-calls",
        about: "no space, I/O errors and no descriptors, at each such call",
        round: calls::errors,
    },
    Suite {
        name: "fault-local-fs",
        about: "failing, slow, short, damaged and trapping answers",
        round: faults::local_fs,
    },
    Suite { name: "fault-redis", about: "the same over redis", round: faults::redis },
    Suite { name: "fault-memkv", about: "the same over memkv", round: faults::memkv },
    Suite { name: "lies-local-fs", about: "made-up answers too", round: faults::lies_local_fs },
    Suite { name: "lies-redis", about: "the same over redis", round: faults::lies_redis },
    Suite { name: "lies-s3", about: "a proxy before SeaweedFS or moto that lies", round: crate::lies::s3 },
    Suite {
        name: "crash-states",
        about: "every state of the disk that a power loss may leave",
        round: crate::states::round,
    },
    Suite { name: "segments-crash", about: "crash-local-fs over segments", round: crash::segments },
    Suite { name: "segments-calls", about: "crash-calls over segments", round: calls::kills_of_segments },
    Suite { name: "segments-errors", about: "error-calls over segments", round: calls::errors_of_segments },
    Suite { name: "segments-lies", about: "lies-local-fs over segments", round: faults::lies_segments },
    Suite { name: "segments-states", about: "crash-states over segments", round: crate::states::round_of_segments },
    Suite {
        name: "resources",
        about: "a full disk, a read-only one, few descriptors, small files",
        round: resources::round,
    },
];

/// Where a suite's store is.
struct Place {
    uri: String,
    /// None: it is a directory.
    server: Option<Box<dyn Server>>,
}

impl Place {
    fn directory(path: &Path) -> Self {
        Place { uri: format!("local-fs://{}", path.display()), server: None }
    }

    fn segments(path: &Path) -> Self {
        Place { uri: format!("segments://{}", path.display()), server: None }
    }

    fn redis() -> Self {
        // With `everysec` it answers before it has written, where a sync is under way.
        let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        Place { uri: format!("redis://127.0.0.1:{}/0", server.port), server: Some(Box::new(server)) }
    }

    fn memkv(options: &[&str]) -> Self {
        let server = MemkvServer::start(options);
        Place { uri: server.uri("torture"), server: Some(Box::new(server)) }
    }

    fn scheme(&self) -> &str {
        self.uri.split(':').next().unwrap_or_default()
    }
}
