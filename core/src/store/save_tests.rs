//! Saves that other threads, and other changes of the same process, come in between.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::tests::Standing;
use super::{BatchOptions, NewChunk, SaveOutcome, Setup, Store};
use crate::error::{Error, ErrorKind};
use crate::sandbox::fake::Fakes;

const URI: &str = "fake://h:1/store";
const LONG: Duration = Duration::from_secs(60);

/// A process by a clock that stands, and its store.
fn standing(config: &str) -> (Arc<Standing>, Arc<Fakes>, Store) {
    let (time, process) = Standing::process();
    let fakes: Arc<Fakes> = Arc::default();
    let store = Store::open_with(URI, &Setup { process, ..fakes.setup(config) }).unwrap();
    (time, fakes, store)
}

/// The backend holds up the flush of one thread for longer than another one may wait.
#[test]
fn a_call_ends_in_time_though_another_thread_flushes() {
    let fakes: Arc<Fakes> = Arc::default();
    let uri = "fake://h:1/flushed-by-another";
    let setup = fakes.setup("[backend.fake.limits]\ndeadline_ms = 100\nbreaker_failures = 0\n");
    let store = Store::open_with(uri, &setup).unwrap();
    let (begun, begins) = mpsc::channel();
    let (go, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let is_first = AtomicBool::new(true);
    fakes.store(uri).during_changes(move |_| {
        if is_first.swap(false, Relaxed) {
            begun.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.put_chunk(b"a", b"x").unwrap();
            store.put_manifest("m", b"a")
        });
        begins.recv_timeout(LONG).unwrap();
        let (told, tells) = mpsc::channel();
        let store = &store;
        scope.spawn(move || {
            store.put_chunk(b"b", b"y").unwrap();
            told.send(store.put_manifest("n", b"b")).unwrap();
        });
        let answered = tells.recv_timeout(LONG / 4);
        drop(go);
        let error = answered.expect("it waits for the other one").unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("another call has been storing"), "{error}");
    });
    // What it put is still there for the next manifest.
    store.put_manifest("n", b"b").unwrap();
    assert!(fakes.store(uri).keys().len() == 2);
}

/// What was found there while its removal could still come is not counted on when that is over.
#[test]
fn a_chunk_that_was_there_before_a_late_removal_is_put_again() {
    let config = "[backend.fake]\nlayout1 = \"off\"\nlimits = { deadline_ms = 1000, breaker_failures = 0 }\n";
    let (time, fakes, store) = standing(config);
    let backend = fakes.store(URI);
    backend.during_changes(|until| drop(until.change().map(|change| change.begin(&[0], b"session"))));
    let save = |chunks: &[&[u8]]| {
        chunks.iter().for_each(|hash| assert!(store.put_chunk(hash, hash).is_ok()));
        store.put_manifest("m", b"x").unwrap();
    };
    save(&[b"first", b"second"]);
    backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "gone")));
    assert!(store.delete_many(&[b"second"]).unwrap()[0].is_err());
    backend.fail_calls(None);
    *time.0.lock().unwrap() += Duration::from_millis(1);
    // Asks for what may follow, too.
    store.put_chunk(b"first", b"first").unwrap();
    *time.0.lock().unwrap() += Duration::from_millis(1100);
    backend.keys().iter().filter(|key| key.starts_with(b"second")).for_each(|key| backend.lose(key));
    save(&[b"second"]);
    assert!(store.get_chunk(b"second").unwrap().is_some(), "it was published over what is gone");
}

/// What is put while a commit asks whether what was put before is still there was asked for by nobody: the next commit does.
#[test]
fn what_is_put_while_a_commit_looks_is_looked_for_by_the_next() {
    let (time, fakes, store) = standing("[backend.fake]\nlayout1 = \"off\"\n");
    let (store, backend) = (Arc::new(store), fakes.store(URI));
    let save = store.begin_save().unwrap();
    let put = |store: &Store, save: &super::Save, hash: &'static [u8]| {
        let put = store.put_many(&[NewChunk::new(hash, &[b"x"])], &BatchOptions::default(), Some(save));
        assert!(put.unwrap()[0].is_ok());
    };
    put(&store, &save, b"before");
    // So long ago that it is asked for.
    *time.0.lock().unwrap() += Duration::from_secs(3);
    let (own, of) = (store.clone(), save.clone());
    backend.after_exists(move || {
        put(&own, &of, b"meanwhile");
        assert!(own.delete_many(&[b"meanwhile"]).unwrap()[0].is_ok());
    });
    assert_eq!(save.commit(Some(("first", b"x"))).unwrap(), SaveOutcome::Published);
    assert_eq!(save.commit(Some(("next", b"x"))).unwrap(), SaveOutcome::Lost(vec![b"meanwhile".to_vec()]));
}

/// A chunk is found damaged and put again by another thread while a manifest is being published that is over it: its bytes wait after the flush.
#[test]
fn a_manifest_waits_for_what_is_put_again_while_it_looks() {
    let (time, fakes, store) = standing("");
    let (store, backend) = (Arc::new(store), fakes.store(URI));
    let save = |name: &str| {
        store.put_chunk(b"first", b"value").unwrap();
        store.put_manifest(name, b"x")
    };
    save("m").unwrap();
    store.put_chunk(b"first", b"value").unwrap();
    // So long ago that it is asked for.
    *time.0.lock().unwrap() += Duration::from_secs(3);
    let [key] = backend.keys().try_into().unwrap();
    let sound = backend.stored(&key).unwrap();
    let (other, of) = (store.clone(), backend.clone());
    let (stored, spoilt) = (key.clone(), vec![0; sound.len()]);
    backend.after_exists(move || {
        of.store(&stored, &spoilt);
        assert!(!matches!(other.get_chunk(b"first"), Ok(Some(_))));
        other.put_chunk(b"first", b"value").unwrap();
    });
    store.put_manifest("n", b"x").unwrap();
    assert_eq!(backend.stored(&key).unwrap(), sound, "it is over what waits for the next manifest");
}
