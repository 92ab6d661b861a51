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

impl Backend {
    /// One of ours that keeps what it has when the process ends.
    fn lasting(name: &'static str, fresh_uri: impl Fn() -> String + Sync + 'static) -> Self {
        Backend { name, library: library(), fresh_uri: Box::new(fresh_uri), lasting: true }
    }

    /// One of ours whose stores end with the process.
    fn of_the_process(name: &'static str, fresh_uri: impl Fn() -> String + Sync + 'static) -> Self {
        Backend { lasting: false, ..Backend::lasting(name, fresh_uri) }
    }

    /// Each case of the suite.
    fn trials(&'static self) -> impl Iterator<Item = Trial> {
        CASES.iter().copied().flatten().map(move |case| {
            let name = format!("{}::{}", self.name, case.name);
            // A segment has 256 MiB, its header and a key included.
            let max_value_bytes = if self.name == "segments" { (256 << 20) - 1 } else { u64::MAX };
            let facts = Facts { lasting: self.lasting, shared: self.lasting, max_value_bytes, held: None };
            let subject = move || Subject::new(self.library, facts, Place::Fresh(&*self.fresh_uri), case.name);
            match subject().skips(case.needs) {
                Some(reason) => Trial::test(format!("{name} ({reason})"), || Ok(())).with_ignored_flag(true),
                None => Trial::test(name, move || {
                    (case.run)(&subject()).map_err(|wrong| format!("{}; {wrong}", case.asks).into())
                }),
            }
        })
    }
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
    let valkeys = valkey.as_ref().map(|server| Backend::lasting("valkey", databases("redis", server.port)));
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
        Backend::lasting(name, move || format!("{bucket}{}", count.fetch_add(1, Relaxed)))
    };
    let s3 = seaweed.iter().flat_map(|server| [s3("s3", server.uri("n")), s3("s3-tls", server.tls_uri("n"))]);
    let s3: Vec<Backend> = s3.collect();
    let backends: Vec<&'static Backend> = [
        Backend::lasting("local-fs", directories("local-fs", "wasm")),
        Backend { library: native, ..Backend::lasting("native", directories("local-fs", "native")) },
        Backend::lasting("segments", directories("segments", "segments")),
        Backend::lasting("std-fs", directories("std-fs", "std-fs")),
        Backend::lasting("c-fs", directories("c-fs", "c-fs")),
        Backend::lasting("redis", plain),
        Backend::lasting("rediss", encrypted),
        Backend::lasting("memkv", namespaces),
        Backend::lasting("objects", places),
        Backend::of_the_process("memory", names("memory")),
        Backend::of_the_process("buffered", names("probe-buffered")),
        Backend::of_the_process("batches", names("probe-batches")),
    ]
    .into_iter()
    .chain(s3)
    .chain(valkeys)
    .map(|backend| &*Box::leak(Box::new(backend)))
    .collect();

    let trials = backends.into_iter().flat_map(Backend::trials);
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(scratch);
    drop((redis, valkey, memkv, seaweed));
    conclusion.exit_code()
}
