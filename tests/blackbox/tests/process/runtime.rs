//! A consumer that calls from within a tokio runtime: the calls block that thread, as any C function would, and work.

use std::sync::Arc;
use std::time::Duration;

use kv_store_tests::{Handle, library};
use tokio::runtime::{Builder, Runtime};

/// Against hanging; a call takes a thousandth of it.
const BOUND: Duration = Duration::from_secs(60);

fn runtimes() -> [(&'static str, Runtime); 2] {
    let current = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let multi = Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    [("current_thread", current), ("multi_thread", multi)]
}

fn save_and_restore(store: &Handle<'_>, number: u64) {
    let (key, name, chunk) = (number.to_be_bytes(), format!("task-{number}"), vec![number as u8; 10_000]);
    assert_eq!(store.put_chunk(&key, &chunk), Ok(0));
    assert_eq!(store.put_manifest(&name, &key), Ok(0));
    assert_eq!(store.get_manifest(&name), Ok(Ok(key.to_vec())));
    assert_eq!(store.prefetch_chunks(&key, key.len()), Some(0));
    assert_eq!(store.get_chunk(&key), Ok(Ok(chunk)));
    assert_eq!(store.delete_manifest(&name), Ok(0));
}

#[test]
fn open_and_calls_work_inside_tasks_of_either_runtime() {
    for (name, runtime) in runtimes() {
        let directory = super::scratch();
        for uri in [super::local_fs(directory.path()), format!("memory://{name}"), format!("probe-buffered://{name}")] {
            let work = async {
                // Opened in the runtime: what the library starts, it starts from here.
                let store = Arc::new(library().open(&uri).expect("it opens"));
                save_and_restore(&store, 1000);
                let tasks: Vec<_> = (0..8)
                    .map(|number| {
                        let store = store.clone();
                        tokio::spawn(async move {
                            save_and_restore(&store, number);
                            tokio::task::yield_now().await;
                            save_and_restore(&store, 100 + number);
                        })
                    })
                    .collect();
                let blocking = store.clone();
                tokio::task::spawn_blocking(move || save_and_restore(&blocking, 2000)).await.expect("no panic");
                for task in tasks {
                    task.await.expect("no panic");
                }
                drop(store);
            };
            runtime.block_on(async { tokio::time::timeout(BOUND, work).await }).expect("it does not hang");
        }
    }
}

#[test]
fn a_call_that_waits_comes_back_inside_a_runtime_and_leaves_it_working() {
    for (name, runtime) in runtimes() {
        let store = Arc::new(library().open(&format!("probe://waits-{name}")).expect("it opens"));
        let waiting = store.clone();
        let work = async move {
            // The guest sleeps past its deadline; a thread of the library must wake the call.
            let answer = tokio::spawn(async move { waiting.get_manifest("do:nap") }).await.expect("no panic");
            assert!(matches!(answer, Ok(Err(code)) if code < 0), "{answer:?}");
            // The runtime's own timers and tasks are as they were.
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async {}).await.expect("no panic");
        };
        runtime.block_on(async { tokio::time::timeout(BOUND, work).await }).expect("it does not hang");
        assert_eq!(store.put_chunk(b"after", b"x"), Ok(0), "another instance serves the next call");
        // Dropped within the runtime's context: close may not block on it either.
        let _within = runtime.enter();
        drop(store);
    }
}
