//! The ways of POSIX. What differs between the systems that have no other is here too: macOS, and the rest.

pub mod child;
pub mod event;
pub mod files;
pub mod memory;
pub mod paths;
#[cfg(feature = "roots")]
pub mod roots;
pub mod signals;
pub mod sockets;
pub mod stderr;
pub mod system;

use crate::Lack;

pub const LACKS: &[Lack] = &[
    Lack {
        name: "paths-in-one-step",
        instead: "a path is opened part by part: what is moved out of a granted directory meanwhile may still be opened",
    },
    Lack {
        name: "kernel-file-systems",
        instead: "file systems of the kernel are known by the usual places of them, such as /dev, and not by their type",
    },
    Lack {
        name: "sealed-memory",
        instead: "copies of components and their code are files without a name in TMPDIR, which cannot be sealed",
    },
    Lack {
        name: "compile-sandbox",
        instead: "the compile helper is bounded, and may ask the system for anything that this user may",
    },
    Lack {
        name: "compile-child",
        instead: "the compile helper is a child of the engine, which may be told of its end, and outlives an engine that is killed",
    },
    Lack {
        name: "signals-of-writes",
        instead: "the SIGPIPE or SIGXFSZ of a write may go to another thread of the engine where that does not ignore it",
    },
    Lack {
        name: "lines-without-waiting",
        instead: "a log line can wait for who reads standard error, where another writer takes the last room",
    },
    Lack {
        name: "keychain",
        instead: "the system's file of certificates is trusted, not what was added to a keychain: name that as SSL_CERT_FILE or tls.ca",
    },
    Lack {
        name: "memory-pressure",
        instead: "no memory is given back when the machine runs out of it ([pressure] of the cache)",
    },
    #[cfg(not(target_vendor = "apple"))]
    Lack {
        name: "boot-number",
        instead: "what .kv-usage counts is believed after a power loss, until it is counted anew",
    },
    #[cfg(target_vendor = "apple")]
    Lack { name: "compile-memory", instead: "the compile helper's memory is not bounded, its time and its output are" },
];
