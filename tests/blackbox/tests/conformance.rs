//! The conformance suite against every backend that ships, and against a native library, as proof that it asks nothing
//! that only WebAssembly could do.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_conformance::{CASES, Facts, Library, Place, Subject};
use kv_store_tests::redis::RedisServer;
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
    let directories = move |name: &'static str| {
        let (folder, count) = (folder.clone(), AtomicU64::new(0));
        move || format!("local-fs://{}/{name}-{}", folder.display(), count.fetch_add(1, Relaxed))
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
    let ours = library();
    let backends: Vec<&'static Backend> = [
        Backend { name: "local-fs", library: ours, fresh_uri: Box::new(directories("wasm")), lasting: true },
        Backend { name: "native", library: native, fresh_uri: Box::new(directories("native")), lasting: true },
        Backend { name: "redis", library: ours, fresh_uri: Box::new(plain), lasting: true },
        Backend { name: "rediss", library: ours, fresh_uri: Box::new(encrypted), lasting: true },
        Backend { name: "memory", library: ours, fresh_uri: Box::new(names("memory")), lasting: false },
        Backend { name: "buffered", library: ours, fresh_uri: Box::new(names("probe-buffered")), lasting: false },
        Backend { name: "batches", library: ours, fresh_uri: Box::new(names("probe-batches")), lasting: false },
    ]
    .into_iter()
    .map(|backend| &*Box::leak(Box::new(backend)))
    .collect();

    let trials = backends.into_iter().flat_map(|backend| {
        CASES.iter().copied().flatten().map(move |case| {
            let name = format!("{}::{}", backend.name, case.name);
            let facts = Facts { lasting: backend.lasting, max_value_bytes: u64::MAX };
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
    drop(redis);
    conclusion.exit_code()
}
