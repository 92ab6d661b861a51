//! Where chunks and manifests lie, and what becomes of those that are damaged there: whole stores over a backend in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::seal::seal;
use super::tests::Standing;
use super::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Presence, Process, Put, SaveOutcome, Setup, Store};
use crate::backend::ChunkHash;
use crate::backend::fake::Fake;
use crate::error::ErrorKind;
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};

const REMOVED_AFTER: Duration = Duration::from_secs(5);
const URI: &str = "fake://h:1/store";
const KEY: &[u8] = b"a key of thirty-two bytes at all";
const OTHER: &[u8] = b"8 bytes!";

/// A store in a process of its own, whose time stands still.
struct Tested {
    store: Store,
    backend: Arc<Fake>,
    process: Arc<Process>,
    time: Arc<Standing>,
    setup: Setup,
}

impl Tested {
    fn open(config: &str) -> Self {
        Tested::with(Properties { wants_fresh: true, ..Properties::default() }, config)
    }

    /// On a storage system with these properties, beside those that all tests here need.
    fn with(properties: Properties, config: &str) -> Self {
        let (time, process) = Standing::process();
        let properties = Properties { write_through: true, cheap_repeat: true, ..properties };
        let features = Features { properties, max_value_bytes: Some(5000), ..Features::default() };
        let fakes = Arc::new(Fakes::of(features));
        let setup = Setup { process: process.clone(), ..fakes.setup(config) };
        let store = Store::open_with(URI, &setup).unwrap();
        Tested { store, backend: fakes.store(URI), process, time, setup }
    }

    fn new() -> Self {
        Tested::open("")
    }

    fn counted(&self, event: &str) -> u64 {
        self.process.metrics().series[0].events[event]
    }

    fn later(&self, by: Duration) {
        *self.time.0.lock().unwrap() += by;
    }

    fn put(&self, key: &[u8], value: &[u8], options: BatchOptions) -> Put {
        self.store.put_many(&[NewChunk::new(key, &[value])], &options, None).unwrap().remove(0).unwrap()
    }

    /// A value of at most 200 bytes, by memory of the caller's and by memory that is allocated.
    fn get(&self, key: &[u8], options: BatchOptions) -> Option<Vec<u8>> {
        let mut room = [0; 200];
        let mut pieces: [&mut [u8]; 1] = [&mut room];
        let mut items = [Fetch::new(key, Memory::Pieces(&mut pieces))];
        let placed = match self.store.get_many(&mut items, &options).unwrap().remove(0).unwrap() {
            Some(Fetched::Placed(len)) => Some(room[..len].to_vec()),
            None => None,
            Some(other) => panic!("{other:?}"),
        };
        let mut items = [Fetch::new(key, Memory::Allocate)];
        match self.store.get_many(&mut items, &options).unwrap().remove(0).unwrap() {
            Some(Fetched::Buffer(data)) => assert_eq!(Some(&data[..]), placed.as_deref()),
            None => assert_eq!(placed, None),
            Some(other) => panic!("{other:?}"),
        }
        placed
    }

    fn chunk(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.store.get_chunk(key).unwrap().map(|data| data.to_vec())
    }
}

fn options() -> BatchOptions {
    BatchOptions::default()
}

fn hashed(value: &[u8]) -> [u8; 8] {
    xxh3_64(value).to_le_bytes()
}

/// The key in the backend of what lies in an envelope.
fn enveloped(key: &[u8]) -> Vec<u8> {
    [key, b"\x02kv2"].concat()
}

#[test]
fn a_value_lies_in_an_envelope_unless_its_key_is_its_hash() {
    let tested = Tested::new();
    let plain = |key: &[u8], value: &[u8]| tested.backend.stored(key).is_some_and(|stored| stored == value);
    let wrapped = |key: &[u8], value: &[u8]| {
        let stored = tested.backend.stored(&enveloped(key)).unwrap_or_default();
        stored.len() == value.len() + 64 && stored.starts_with(value) && tested.backend.stored(key).is_none()
    };
    tested.put(KEY, b"value", options());
    assert!(wrapped(KEY, b"value"));
    tested.put(OTHER, b"opaque", options());
    assert!(wrapped(OTHER, b"opaque"));
    tested.put(&hashed(b"content"), b"content", options());
    assert!(plain(&hashed(b"content"), b"content"));
    tested.put(&hashed(b"sealed"), b"sealed", options().with_sealed());
    assert!(wrapped(&hashed(b"sealed"), b"sealed"));
    tested.put(b"a block's key", b"block", options().with_values_that_check_themselves());
    assert!(plain(b"a block's key", b"block"));
    tested.put(b"claimed!", b"unlooked", options().with_xxh3_keys());
    assert!(plain(b"claimed!", b"unlooked"));
    // All are found by whoever does not say how they were put, except what checks itself.
    for (key, value) in
        [(KEY, &b"value"[..]), (OTHER, b"opaque"), (&hashed(b"content"), b"content"), (&hashed(b"sealed"), b"sealed")]
    {
        // As long as nothing is known of keys of 8 bytes, either layout is looked into. (`get_chunk` settles it below.)
        assert_eq!(tested.get(key, options()).as_deref(), Some(value));
        let presence = tested.store.exists_many(&[key], &options()).unwrap().remove(0).unwrap();
        assert_eq!(presence, Presence::Present(Some(value.len() as u64)));
        assert!(matches!(tested.store.delete_many(&[key]).unwrap()[..], [Ok(())]));
        assert_eq!(tested.get(key, options()), None);
    }
    assert_eq!(
        tested.get(b"a block's key", options().with_values_that_check_themselves()).as_deref(),
        Some(&b"block"[..])
    );
    // The consumer's lengths.
    assert_eq!(tested.store.info().max_value_bytes, 5000 - 64);
    let long = vec![1; 5000];
    let refused = |len: usize, key: &[u8]| {
        let outcome =
            tested.store.put_many(&[NewChunk::new(key, &[&long[..len]])], &options(), None).unwrap().remove(0);
        outcome.is_err_and(|error| error.kind() == ErrorKind::Invalid)
    };
    assert!(refused(4937, KEY) && !refused(4936, KEY) && !refused(5000, &hashed(&long)));
    assert!(tested.store.put_manifest("m", &long[..4937]).is_err());
    let mut short = [0; 100];
    let mut pieces: [&mut [u8]; 1] = [&mut short];
    let found = tested.store.get_many(&mut [Fetch::new(KEY, Memory::Pieces(&mut pieces))], &options()).unwrap();
    assert!(matches!(found[..], [Ok(Some(Fetched::TooLong(4936)))]), "{found:?}");
}

#[test]
fn put_chunk_and_get_chunk_do_as_the_keys_of_the_store_are() {
    let tested = Tested::new();
    tested.store.put_chunk(KEY, b"value").unwrap();
    assert_eq!(tested.backend.stored(&enveloped(KEY)).unwrap().len(), 69);
    tested.store.put_chunk(&hashed(b"content"), b"content").unwrap();
    let before = tested.backend.calls();
    assert_eq!(tested.chunk(&hashed(b"content")).as_deref(), Some(&b"content"[..]));
    assert_eq!(tested.chunk(&hashed(b"missing")), None);
    assert_eq!(tested.backend.calls(), before + 2, "of hashes of the content nothing more is asked");
    let opaque = Tested::new();
    opaque.store.put_chunk(OTHER, b"opaque").unwrap();
    assert_eq!(opaque.backend.stored(&enveloped(OTHER)).unwrap().len(), 70);
    let reader = Store::open_with(URI, &opaque.setup).unwrap();
    assert_eq!(&*reader.get_chunk(OTHER).unwrap().unwrap(), b"opaque");
    reader.prefetch_chunks(OTHER, 8).unwrap();
    let before = opaque.backend.calls();
    assert_eq!(&*reader.get_chunk(OTHER).unwrap().unwrap(), b"opaque");
    assert_eq!(opaque.backend.calls(), before, "it was prefetched");
}

#[test]
fn what_earlier_versions_wrote_is_read_and_counted() {
    let tested = Tested::new();
    tested.backend.store(KEY, b"plain");
    let tail = seal(&ChunkHash::new(b"sealed").unwrap(), 5, [&b"value"[..]].into_iter());
    tested.backend.store(b"sealed", &[&b"value"[..], &tail].concat());
    tested.backend.store_manifest("m", b"old");
    assert_eq!(tested.get(KEY, options()).as_deref(), Some(&b"plain"[..]));
    assert_eq!(tested.chunk(KEY).as_deref(), Some(&b"plain"[..]));
    assert_eq!(tested.counted("layout1_reads"), 3);
    let sealed = options().with_sealed();
    assert_eq!(tested.get(b"sealed", sealed).as_deref(), Some(&b"value"[..]));
    let presence = tested.store.exists_many(&[b"sealed"], &sealed).unwrap().remove(0).unwrap();
    assert_eq!(presence, Presence::Present(Some(5)));
    assert_eq!(&*tested.store.get_manifest("m").unwrap().unwrap(), b"old");
    assert_eq!(tested.counted("layout1_reads"), 6);

    let off = Tested::open("[backend.fake]\nlayout1 = 'off'\n");
    off.backend.store(KEY, b"plain");
    off.backend.store_manifest("m", b"old");
    let before = off.backend.calls();
    assert_eq!((off.chunk(KEY), off.store.get_manifest("m").unwrap().is_none()), (None, true));
    assert_eq!(off.backend.calls(), before + 2, "one question for each");
}

#[test]
fn a_manifest_supersedes_what_an_earlier_version_published() {
    let tested = Tested::new();
    // A component's own word for a name is the same in both layouts: what is published there is no former one.
    tested.store.put_manifest("\0own", b"new").unwrap();
    tested.backend.store_manifest("m", b"old");
    tested.store.put_manifest("m", b"new").unwrap();
    assert_eq!(&*tested.store.get_manifest("m").unwrap().unwrap(), b"new");
    let stored = tested.backend.stored_manifest("m\u{2}").unwrap();
    assert!(stored.len() == 67 && stored.starts_with(b"new") && stored.ends_with(&[0; 16]));
    // By another thread, since this backend may evict the newer one.
    while tested.backend.stored_manifest("m").is_some() {
        std::thread::yield_now();
    }
    assert!(tested.backend.stored_manifest("\0own").is_some());
    tested.backend.store_manifest("m", b"old again");
    tested.store.delete_manifest("m").unwrap();
    assert!(tested.store.get_manifest("m").unwrap().is_none());
    assert_eq!(tested.backend.stored_manifest("m"), None);
    // A damaged one uncovers nothing, and the next put replaces it.
    tested.store.put_manifest("n", b"new").unwrap();
    tested.backend.store_manifest("n", b"old");
    let mut stored = tested.backend.stored_manifest("n\u{2}").unwrap();
    stored[1] ^= 1;
    tested.backend.store_manifest("n\u{2}", &stored);
    for _ in 0..3 {
        assert!(tested.store.get_manifest("n").unwrap().is_none());
        tested.later(REMOVED_AFTER);
    }
    assert!(tested.backend.stored_manifest("n\u{2}").is_some() && tested.counted("wrong_chunks") == 3);
    tested.store.put_manifest("n", b"newer").unwrap();
    assert_eq!(&*tested.store.get_manifest("n").unwrap().unwrap(), b"newer");
}

#[test]
fn nothing_is_asked_for_what_a_durable_store_without_eviction_has_of_an_earlier_version() {
    let tested = Tested::with(Properties { durable: true, ..Properties::default() }, "");
    tested.backend.store_manifest("m", b"old");
    let before = tested.backend.calls();
    tested.store.put_manifest("m", b"new").unwrap();
    assert_eq!(tested.backend.calls(), before + 1);
    // A helper that asks would be at it by now: this one comes after it.
    let evicts = Tested::with(Properties { durable: true, evicts: true, ..Properties::default() }, "");
    evicts.backend.store_manifest("m", b"old");
    evicts.store.put_manifest("m", b"new").unwrap();
    while evicts.backend.stored_manifest("m").is_some() {
        std::thread::yield_now();
    }
    assert_eq!((tested.backend.calls(), tested.backend.stored_manifest("m").is_some()), (before + 1, true));
    assert_eq!(&*tested.store.get_manifest("m").unwrap().unwrap(), b"new");
}

#[test]
fn a_manifest_that_is_older_than_one_that_was_read_is_a_miss() {
    let tested = Tested::new();
    tested.store.put_manifest("m", b"bytes").unwrap();
    let stored = tested.backend.stored_manifest("m\u{2}").unwrap();
    let (whole, _) = stored.split_at(stored.len() - 16);
    let publish = |microseconds: u64| {
        let generation = [microseconds.to_le_bytes(), [9; 8]].concat();
        tested.backend.store_manifest("m\u{2}", &[whole, &generation].concat());
        tested.store.get_manifest("m").unwrap().is_some()
    };
    assert!(publish(10) && publish(11) && !publish(10) && publish(11));
    assert_eq!(tested.counted("older_manifests"), 1);
}

#[test]
fn a_damaged_chunk_is_a_miss_and_removed_only_when_it_is_found_so_again() {
    for by_key in [KEY, OTHER] {
        let tested = Tested::new();
        tested.put(by_key, b"value", options());
        let key = enveloped(by_key);
        let mut stored = tested.backend.stored(&key).unwrap();
        stored[2] ^= 4;
        tested.backend.store(&key, &stored);
        for _ in 0..3 {
            assert_eq!(tested.get(by_key, options()), None);
            assert_eq!(tested.chunk(by_key), None);
        }
        tested.later(REMOVED_AFTER - Duration::from_millis(1));
        assert_eq!(tested.chunk(by_key), None);
        assert_eq!((tested.backend.stored(&key), tested.backend.dropped.load(Relaxed)), (Some(stored.clone()), 0));
        tested.later(Duration::from_millis(1));
        assert_eq!(tested.chunk(by_key), None);
        assert_eq!((tested.backend.stored(&key), tested.backend.dropped.load(Relaxed)), (None, 1));
        assert_eq!(tested.counted("removed_chunks"), 1);
        // Found once, it is replaced by the next put of this process.
        tested.backend.store(&key, &stored);
        assert_eq!(tested.chunk(by_key), None);
        assert_eq!(tested.put(by_key, b"value", options()), Put::New);
        assert_eq!(tested.chunk(by_key).as_deref(), Some(&b"value"[..]));
    }
}

#[test]
fn a_server_that_answers_other_bytes_for_a_while_costs_no_chunk() {
    let tested = Tested::new();
    tested.store.put_chunk(&hashed(b"content"), b"content").unwrap();
    let key = hashed(b"content");
    for wrong in [&b""[..], b"416", b"a page of a gateway"] {
        tested.backend.store(&key, wrong);
        assert_eq!(tested.chunk(&key), None);
        tested.later(REMOVED_AFTER * 2);
    }
    tested.backend.store(&key, b"content");
    assert_eq!(tested.chunk(&key).as_deref(), Some(&b"content"[..]));
    assert_eq!(tested.counted("removed_chunks"), 0);
}

#[test]
fn a_flag_that_does_not_match_deletes_nothing() {
    let tested = Tested::new();
    tested.backend.store(KEY, b"never sealed, and longer than a seal");
    tested.backend.store(OTHER, b"no hash of it");
    for _ in 0..3 {
        assert_eq!(tested.get(KEY, options().with_sealed()), None);
        assert_eq!(tested.get(OTHER, options().with_xxh3_keys()), None);
        tested.later(REMOVED_AFTER * 2);
    }
    assert_eq!(tested.get(KEY, options()).as_deref(), Some(&b"never sealed, and longer than a seal"[..]));
    assert_eq!(tested.get(OTHER, options()).as_deref(), Some(&b"no hash of it"[..]));
    // The next sealed put replaces it.
    assert_eq!(tested.put(KEY, b"sealed", options().with_sealed()), Put::New);
    assert_eq!(tested.get(KEY, options().with_sealed()).as_deref(), Some(&b"sealed"[..]));
    assert_eq!(tested.get(KEY, options()).as_deref(), Some(&b"sealed"[..]));
}

#[test]
fn what_is_replaced_is_not_answered_from_where_earlier_versions_put_it() {
    for key in [KEY, OTHER] {
        let tested = Tested::new();
        tested.backend.store(key, b"old");
        tested.put(key, b"new", options().with_replace());
        assert_eq!(tested.get(key, options()).as_deref(), Some(&b"new"[..]));
        assert_eq!(tested.backend.stored(key), None);
    }
}

#[test]
fn a_hash_that_is_asked_for_twice_goes_to_who_has_room() {
    let tested = Tested::new();
    tested.put(KEY, &[7; 100], options());
    tested.put(&hashed(&[8; 100]), &[8; 100], options());
    for key in [KEY, &hashed(&[8; 100])] {
        let (mut small, mut large, mut enough) = ([0; 10], [0; 200], [0; 100]);
        let mut a: [&mut [u8]; 1] = [&mut small];
        let mut b: [&mut [u8]; 1] = [&mut large];
        let mut c: [&mut [u8]; 1] = [&mut enough];
        let mut items = [&mut a, &mut b, &mut c].map(|pieces| Fetch::new(key, Memory::Pieces(pieces)));
        let found = tested.store.get_many(&mut items, &options()).unwrap();
        assert!(
            matches!(
                found[..],
                [Ok(Some(Fetched::TooLong(100))), Ok(Some(Fetched::Placed(100))), Ok(Some(Fetched::Placed(100)))]
            ),
            "{found:?}"
        );
        assert_eq!(large[..100], enough);
    }
}

#[test]
fn a_lost_chunk_has_the_name_that_the_consumer_gave_it() {
    let tested = Tested::new();
    let save = tested.store.begin_save().unwrap();
    let long = [9; 64];
    for key in [KEY, &long] {
        let put = tested.store.put_many(&[NewChunk::new(key, &[b"x"])], &options(), Some(&save)).unwrap();
        assert!(matches!(put[..], [Ok(Put::New)]));
    }
    let gone = Store::open_with(URI, &tested.setup).unwrap();
    gone.delete_many(&[KEY, &long]).unwrap();
    let SaveOutcome::Lost(mut lost) = save.commit(Some(("m", b"x"))).unwrap() else { panic!("it is published") };
    lost.sort();
    assert_eq!(lost, [long.to_vec(), KEY.to_vec()]);
}

#[test]
fn a_backend_that_evicts_is_told_which_chunks_a_manifest_names() {
    let evicts = || Properties { evicts: true, ..Properties::default() };
    let durable = || Properties { durable: true, ..Properties::default() };
    for (properties, told) in [(evicts(), true), (durable(), true), (Properties::default(), false)] {
        let tested = Tested::with(properties, "");
        assert_eq!(tested.store.info().wants_fresh, told, "{properties:?}");
        tested.store.put_chunk(KEY, b"value").unwrap();
        tested.backend.lose(&enveloped(KEY));
        // The backend itself answers that a fresh chunk is gone; who is not told publishes.
        assert_eq!(tested.store.put_manifest("m", b"manifest").is_err(), told, "{properties:?}");
    }
}

#[path = "reason_tests.rs"]
mod reasons;
