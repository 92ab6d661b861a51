//! What single calls cost in our own code, for who works on it: `cargo bench -p kv-store-bench`. The peers are in
//! `cargo xtask bench`. It loads the library of `target/dist`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark that fails ends")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kv_store_conformance::{Handle, Library};
use kv_store_tests::library_path;

const KEY: &[u8] = b"a key of sixteen";

fn get(store: &Handle) -> Vec<u8> {
    store.get_chunk(KEY).expect("the ABI is kept").expect("it is there")
}

fn calls(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let library = Library::load(&library_path()).expect("the library loads");
    let memory = library.open("memory://bench").expect("it opens");
    let files = library.open(&format!("local-fs://{}", folder.path().display())).expect("it opens");
    for store in [&memory, &files] {
        assert_eq!(store.put_chunk(KEY, &[7; 16]), Ok(0));
        assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    }
    // Through the sandbox and back, and nothing else.
    criterion.bench_function("get 16 bytes, memory", |bencher| bencher.iter(|| get(&memory)));
    criterion.bench_function("get 16 bytes, local-fs", |bencher| bencher.iter(|| get(&files)));
    criterion.bench_function("put what is there, local-fs", |bencher| {
        bencher.iter(|| assert_eq!(files.put_chunk(KEY, &[7; 16]), Ok(1)))
    });
    criterion.bench_function("take what was prefetched", |bencher| {
        let prefetch = || assert_eq!(files.prefetch_chunks(KEY, KEY.len()), Some(0));
        bencher.iter_batched(prefetch, |()| get(&files), BatchSize::PerIteration)
    });
}

criterion_group!(benches, calls);
criterion_main!(benches);
