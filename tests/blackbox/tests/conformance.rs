//! The conformance suite against every backend that ships, and against a native library, as proof that it asks nothing
//! that only WebAssembly could do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_conformance::{CASES, Facts, Library, Place, Subject};
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::Seaweed;
use kv_store_tests::tls::certificates;
use kv_store_tests::{library, native_library};
use libtest_mimic::{Arguments, Trial};

struct Backend {
    name: &'static str,
    library: &'static Library,
    fresh_uri: Box<dyn Fn() -> String + Sync>,
    lasting: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let scratch = tempfile::tempdir().expect("a temporary directory");
    // Leaked: the trials run until the process ends.
    let native: &'static Library =
        Box::leak(Box::new(Library::load(&native_library(scratch.path())).expect("the native library loads")));

    let folder = scratch.path().to_owned();
    let directories = move |scheme: &'static str, name: &'static str| {
        let (folder, count) = (folder.clone(), AtomicU64::new(0));
        move || format!("{scheme}://{}/{name}-{}", folder.display(), count.fetch_add(1, Relaxed))
    };
    let names = |scheme: &'static str| {
        let count = AtomicU64::new(0);
        move || format!("{scheme}://{}", count.fetch_add(1, Relaxed))
    };
    let redis = RedisServer::start_tls(&certificates().server, &[]);
    let database = Arc::new(AtomicU64::new(0));
    let databases = |scheme: &'static str, port: u16| {
        let database = database.clone();
        move || format!("{scheme}://127.0.0.1:{port}/{}", database.fetch_add(1, Relaxed))
    };
    let plain = databases("redis", redis.port);
    let encrypted = databases("rediss", redis.tls_port);
    let valkey = RedisServer::start_valkey();
    let valkeys = valkey.as_ref().map(|server| Backend {
        name: "valkey",
        library: library(),
        fresh_uri: Box::new(databases("redis", server.port)),
        lasting: true,
    });
    let memkv = MemkvServer::start(&["--memory", "2GiB"]);
    let (namespace, count) = (memkv.uri("n"), AtomicU64::new(0));
    let namespaces = move || format!("{namespace}{}", count.fetch_add(1, Relaxed));
    let objects = ObjectServer::start();
    let count = AtomicU64::new(0);
    let places = move || format!("objects://127.0.0.1:{}/{}", objects.port, count.fetch_add(1, Relaxed));
    let seaweed = Seaweed::start(1, 1);
    let count = Arc::new(AtomicU64::new(0));
    let s3 = |name: &'static str, bucket: String| {
        let count = count.clone();
        let fresh_uri = move || format!("{bucket}{}", count.fetch_add(1, Relaxed));
        Backend { name, library: library(), fresh_uri: Box::new(fresh_uri), lasting: true }
    };
    let s3 = seaweed.iter().flat_map(|server| [s3("s3", server.uri("n")), s3("s3-tls", server.tls_uri("n"))]);
    let s3: Vec<Backend> = s3.collect();
    let ours = library();
    let backends: Vec<&'static Backend> = [
        Backend {
            name: "local-fs",
            library: ours,
            fresh_uri: Box::new(directories("local-fs", "wasm")),
            lasting: true,
        },
        Backend {
            name: "native",
            library: native,
            fresh_uri: Box::new(directories("local-fs", "native")),
            lasting: true,
        },
        Backend {
            name: "segments",
            library: ours,
            fresh_uri: Box::new(directories("segments", "segments")),
            lasting: true,
        },
        Backend { name: "std-fs", library: ours, fresh_uri: Box::new(directories("std-fs", "std-fs")), lasting: true },
        Backend { name: "c-fs", library: ours, fresh_uri: Box::new(directories("c-fs", "c-fs")), lasting: true },
        Backend { name: "redis", library: ours, fresh_uri: Box::new(plain), lasting: true },
        Backend { name: "rediss", library: ours, fresh_uri: Box::new(encrypted), lasting: true },
        Backend { name: "memkv", library: ours, fresh_uri: Box::new(namespaces), lasting: true },
        Backend { name: "objects", library: ours, fresh_uri: Box::new(places), lasting: true },
        Backend { name: "memory", library: ours, fresh_uri: Box::new(names("memory")), lasting: false },
        Backend { name: "buffered", library: ours, fresh_uri: Box::new(names("probe-buffered")), lasting: false },
        Backend { name: "batches", library: ours, fresh_uri: Box::new(names("probe-batches")), lasting: false },
    ]
    .into_iter()
    .chain(s3)
    .chain(valkeys)
    .map(|backend| &*Box::leak(Box::new(backend)))
    .collect();

    let trials = backends.into_iter().flat_map(|backend| {
        CASES.iter().copied().flatten().map(move |case| {
            let name = format!("{}::{}", backend.name, case.name);
            // A segment has 256 MiB, its header and a key included.
            let max_value_bytes = if backend.name == "segments" { (256 << 20) - 1 } else { u64::MAX };
            let facts = Facts { lasting: backend.lasting, shared: backend.lasting, max_value_bytes, held: None };
            let subject = move || Subject::new(backend.library, facts, Place::Fresh(&*backend.fresh_uri), case.name);
            match subject().skips(case.needs) {
                Some(reason) => Trial::test(format!("{name} ({reason})"), || Ok(())).with_ignored_flag(true),
                None => Trial::test(name, move || {
                    (case.run)(&subject()).map_err(|wrong| format!("{}; {wrong}", case.asks).into())
                }),
            }
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(scratch);
    drop((redis, valkey, memkv, seaweed));
    conclusion.exit_code()
}
