//! Whole stores over components in memory: what the layers, the ledger and the registry do together, without a guest.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::{BatchOptions, NewChunk, Process, ProcessParts, SaveOutcome, Setup, Store};
use crate::backend::{Answers, Backend, BackendLayer, ChunkHash, Committed, Got, Opening, Presence, Put, Target, Wrap};
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_IDLE_STORES;
use crate::payload::Buffer;
use crate::process::{Clock, Random, Spawn, Time};
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};
use crate::until::Until;

const URI: &str = "fake://h:1/store";

fn buffered() -> Arc<Fakes> {
    Arc::default()
}

fn written_through() -> Arc<Fakes> {
    let properties = Properties { write_through: true, ..Properties::default() };
    Arc::new(Fakes::of(Features { properties, ..Features::default() }))
}

#[test]
fn a_manifest_publishes_the_chunks_that_were_buffered_before_it() {
    let fakes = buffered();
    let store = Store::open_with(URI, &fakes.setup("")).unwrap();
    let backend = fakes.store(URI);
    store.put_chunk(b"hash", b"bytes").unwrap();
    assert_eq!(backend.calls(), 0, "it waits for the manifest");
    assert_eq!(&*store.get_chunk(b"hash").unwrap().unwrap(), b"bytes", "and is read meanwhile");
    store.put_manifest("m", b"hash").unwrap();
    let other = Store::open_with(URI, &fakes.setup("")).unwrap();
    assert_eq!(&*other.get_manifest("m").unwrap().unwrap(), b"hash");
    assert_eq!(&*other.get_chunk(b"hash").unwrap().unwrap(), b"bytes");
}

#[test]
fn what_is_not_buffered_is_stored_by_the_put() {
    let fakes = written_through();
    let store = Store::open_with(URI, &fakes.setup("")).unwrap();
    store.put_chunk(b"hash", b"bytes").unwrap();
    let other = Store::open_with(URI, &fakes.setup("")).unwrap();
    assert_eq!(&*other.get_chunk(b"hash").unwrap().unwrap(), b"bytes");
}

#[test]
fn stores_of_other_settings_share_no_breaker() {
    let fakes = written_through();
    let strict = "[backend.fake.limits]\nbreaker_failures = 1\n";
    let (one, other) =
        (Store::open_with(URI, &fakes.setup(strict)).unwrap(), Store::open_with(URI, &fakes.setup("")).unwrap());
    let backend = fakes.store(URI);
    backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "gone")));
    assert!(one.put_chunk(b"a", b"x").is_err());
    backend.fail_calls(None);
    let refused = one.put_chunk(b"a", b"x").unwrap_err().to_string();
    assert!(refused.contains("circuit breaker"), "{refused}");
    other.put_chunk(b"a", b"x").unwrap();
}

/// A time that stands still until it is told to pass.
pub(super) struct Standing(pub(super) Mutex<Duration>, pub(super) Instant);

impl Standing {
    /// A process by such a clock.
    pub(super) fn process() -> (Arc<Self>, Arc<Process>) {
        let time = Arc::new(Standing(Mutex::default(), Instant::now()));
        let process = Process::new(ProcessParts { clock: Clock::of(time.clone()), ..ProcessParts::default() });
        (time, process)
    }
}

impl Time for Standing {
    fn now(&self) -> Instant {
        self.1 + *self.0.lock().unwrap()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + *self.0.lock().unwrap()
    }
}

#[test]
fn a_process_of_its_own_has_its_own_time_threads_and_stores() {
    let time = Arc::new(Standing(Mutex::default(), Instant::now()));
    let process = Process::new(ProcessParts {
        clock: Clock::of(time.clone()),
        // No thread can be had.
        spawn: Spawn::of(|_, _| false),
        random: Random::of(|bytes| {
            bytes.fill(7);
            Ok(())
        }),
        forks: || 3,
    });
    let fakes = written_through();
    let config = "[backend.fake.limits]\nbreaker_failures = 1\nbreaker_ms = 1000\n";
    let setup = Setup { process: process.clone(), ..fakes.setup(config) };
    let store = Store::open_with(URI, &setup).unwrap();
    let backend = fakes.store(URI);
    backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "gone")));
    assert!(store.put_chunk(b"a", b"x").is_err());
    backend.fail_calls(None);
    assert!(store.put_chunk(b"a", b"x").unwrap_err().to_string().contains("next try in 1000 ms"));
    *time.0.lock().unwrap() += Duration::from_millis(1000);
    store.put_chunk(b"a", b"x").unwrap();
    // Batches are carried out by their caller.
    let chunks: Vec<[u8; 8]> = (0..100_u64).map(u64::to_le_bytes).collect();
    let new: Vec<NewChunk> = chunks.iter().map(|hash| NewChunk::new(hash, &[b"value"])).collect();
    assert!(store.put_many(&new, &BatchOptions::default(), None).unwrap().iter().all(Result::is_ok));
    let events = &process.metrics().series[0].events;
    assert!(events["breaker_opened"] == 1 && process.metrics().series.len() == 1);
}

/// A change that may still be carried out is known to every handle, and to a store that was closed and opened again.
#[test]
fn a_change_that_ended_unknown_is_known_to_all_handles_and_after_a_close() {
    let (time, process) = Standing::process();
    let fakes = Arc::new(Fakes::of(Features {
        properties: Properties { settles: true, write_through: true, ..Properties::default() },
        ..Features::default()
    }));
    let setup = Setup { process: process.clone(), ..fakes.setup("[backend.fake.limits]\ndeadline_ms = 1000\n") };
    let open = || Store::open_with(URI, &setup).unwrap();
    let backend = fakes.store(URI);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tokens = told.clone();
    backend.during_changes(move |until| *tokens.lock().unwrap() = until.change().unwrap().begin(&[0], b"session"));
    backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "gone")));
    let (one, other) = (open(), open());
    assert!(one.put_manifest("m", b"1").is_err());
    assert!(other.put_manifest("m", b"2").is_err());
    assert_eq!(told.lock().unwrap().len(), 1);
    drop((one, other));
    backend.fail_calls(None);
    // Others are opened and closed meanwhile, more than stay without a handle.
    for n in 0..=MAX_IDLE_STORES {
        *time.0.lock().unwrap() += Duration::from_millis(1);
        drop(Store::open_with(&format!("fake://h:1/{n}"), &setup).unwrap());
    }
    open().delete_manifest("m").unwrap();
    assert_eq!(told.lock().unwrap().len(), 1, "it is known after a close");
    open().delete_manifest("m").unwrap();
    assert!(told.lock().unwrap().is_empty());
    let events = &process.metrics().series[0].events;
    assert_eq!(events["changes_unknown"], 2);
}

/// Counts the puts that pass, and those of layers around it.
struct CountingLayer(&'static str, Arc<Mutex<Vec<&'static str>>>);

struct Counting(Arc<dyn Backend>, CountingLayer);

impl BackendLayer for CountingLayer {
    fn open(&self, store: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        if store.uri.contains("refused") {
            return Err(Error::invalid("this layer refuses it"));
        }
        let own = CountingLayer(self.0, self.1.clone());
        let wrap: Wrap = Box::new(|inner| Arc::new(Counting(inner, own)));
        Ok(Some(wrap).filter(|_| store.uri.contains("store")))
    }
}

impl Backend for Counting {
    fn put(&self, chunks: &[crate::backend::ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        self.1.1.lock().unwrap().push(self.1.0);
        self.0.put(chunks, replace, until)
    }

    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.0.exists(hashes, until)
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        self.0.get(hashes, targets, until)
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        self.0.delete(hashes, until)
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        self.0.commit(manifest, fresh, bytes, until)
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.0.get_manifest(name, until)
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.0.delete_manifest(name, until)
    }
}

#[test]
fn layers_that_a_host_names_lie_around_the_instances_in_their_order() {
    let fakes = written_through();
    let passed = Arc::new(Mutex::new(Vec::new()));
    let layers: Vec<Arc<dyn BackendLayer>> =
        ["inner", "outer"].map(|name| Arc::new(CountingLayer(name, passed.clone())) as Arc<dyn BackendLayer>).into();
    let setup = Setup { layers, ..fakes.setup("") };
    Store::open_with(URI, &setup).unwrap().put_chunk(b"a", b"x").unwrap();
    assert_eq!(*passed.lock().unwrap(), ["outer", "inner"]);
    // One that a layer leaves alone, one that it refuses, and one that is open without layers.
    Store::open_with("fake://h:1/other", &setup).unwrap().put_chunk(b"a", b"x").unwrap();
    let refused = Store::open_with("fake://h:1/refused", &setup).err().unwrap().to_string();
    assert!(refused.contains("this layer refuses it"), "{refused}");
    Store::open_with(URI, &fakes.setup("")).unwrap().put_chunk(b"b", b"x").unwrap();
    assert_eq!(passed.lock().unwrap().len(), 2);
}

#[test]
fn a_restore_of_what_was_not_saved_says_so_and_which_call_it_was() {
    let store = Store::open_with(URI, &buffered().setup("")).unwrap();
    let slots = kvx::Slots { slots: (&[][..] as &[i64]).into(), invalid_slot: -1 };
    let failed = crate::paged::Restore::new("conversation", slots).run(&store, &mut []).unwrap_err().error;
    assert_eq!((failed.kind(), failed.operation()), (ErrorKind::Missing, Some("kvx_restore")), "{failed}");
    let failed = crate::paged::Save::new("conversation", &[], (&[][..] as &[i32]).into(), 0).run(&store).unwrap_err();
    assert_eq!((failed.kind(), failed.operation()), (ErrorKind::Invalid, Some("kvx_save")), "{failed}");
}

#[test]
fn each_option_of_a_batch_changes_itself_alone() {
    let flags = |options: BatchOptions| [options.durable, options.replace, options.sealed, options.xxh3_keys];
    let options = BatchOptions::default;
    assert_eq!(flags(options()), [false; 4]);
    assert_eq!(flags(options().with_durable()), [true, false, false, false]);
    assert_eq!(flags(options().with_replace()), [false, true, false, false]);
    assert_eq!(flags(options().with_sealed()), [false, false, true, false]);
    assert_eq!(flags(options().with_xxh3_keys()), [false, false, false, true]);
    assert_eq!(flags(options().with_sealed().with_durable()), [true, false, true, false]);
    assert_eq!(options().with_timeout(Duration::from_secs(3)).timeout, Some(Duration::from_secs(3)));
}

/// The backend's word that it has a chunk does not outlast its removal by the same process, on whichever handle.
#[test]
fn a_save_does_not_publish_over_a_chunk_that_this_process_has_removed() {
    for through in [true, false] {
        let fakes = if through { written_through() } else { buffered() };
        let uri = format!("fake://h:1/removes-{through}");
        let (one, other) =
            (Store::open_with(&uri, &fakes.setup("")).unwrap(), Store::open_with(&uri, &fakes.setup("")).unwrap());
        let options = BatchOptions::default();
        let put = |save: &super::Save| {
            let chunks = [NewChunk::new(b"removed", &[b"x"]), NewChunk::new(b"kept", &[b"y"])];
            assert!(one.put_many(&chunks, &options, Some(save)).unwrap().iter().all(Result::is_ok));
        };
        for remover in [&one, &other] {
            let save = one.begin_save().unwrap();
            put(&save);
            assert!(remover.delete_many(&[b"removed"]).unwrap().iter().all(Result::is_ok));
            let lost = SaveOutcome::Lost(vec![b"removed".to_vec()]);
            assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), lost);
            assert!(one.get_manifest("m").unwrap().is_none());
            put(&save);
            assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), SaveOutcome::Published);
            one.delete_manifest("m").unwrap();
        }
        // And the save that each handle has by itself.
        one.put_chunk(b"removed", b"x").unwrap();
        one.put_manifest("m", b"x").unwrap();
        one.put_chunk(b"removed", b"x").unwrap();
        other.delete_many(&[b"removed"]).unwrap();
        if one.put_manifest("n", b"x").is_ok() {
            assert_eq!(&*one.get_chunk(b"removed").unwrap().unwrap(), b"x", "published over a chunk that is gone");
        }
    }
}

/// A removal of many chunks takes several calls: those of the first are gone while the last are under way.
#[test]
fn a_save_does_not_publish_over_a_chunk_of_a_removal_that_is_under_way() {
    let fakes = written_through();
    let uri = "fake://h:1/removes-on";
    let store = Arc::new(Store::open_with(uri, &fakes.setup("[backend.fake]\nlayout1 = \"off\"\n")).unwrap());
    let keys: [&[u8]; 3] = [b"first", b"middle", b"last"];
    let chunks = keys.map(|key| NewChunk::new(key, &[b"x"]));
    assert!(store.put_many(&chunks, &BatchOptions::default(), None).unwrap().iter().all(Result::is_ok));
    let backend = fakes.store(uri);
    backend.most_answered.store(1, Relaxed);
    let (save, outcome) = (store.begin_save().unwrap(), Arc::new(Mutex::new(None)));
    let (other, committed) = (Arc::downgrade(&store), outcome.clone());
    let deletes = AtomicUsize::new(0);
    backend.during_changes(move |_| match deletes.fetch_add(1, Relaxed) {
        // Not gone yet: its put is answered that it is there.
        0 => {
            let put = [NewChunk::new(b"middle", &[b"x"])];
            let store = other.upgrade().unwrap();
            assert!(matches!(
                store.put_many(&put, &BatchOptions::default(), Some(&save)).unwrap()[0],
                Ok(Put::Existed)
            ));
        }
        2 => *committed.lock().unwrap() = Some(save.commit(Some(("m", b"x")))),
        _ => {}
    });
    assert!(store.delete_many(&keys).unwrap().iter().all(Result::is_ok));
    let outcome = outcome.lock().unwrap().take().unwrap();
    assert_eq!(outcome.unwrap(), SaveOutcome::Lost(vec![b"middle".to_vec()]));
    assert!(store.get_manifest("m").unwrap().is_none());
}

/// What this process removes because it is damaged is gone for its saves too.
#[test]
fn a_save_does_not_publish_over_a_damaged_chunk_that_this_process_has_removed() {
    let fakes = written_through();
    let uri = "fake://h:1/removes-damaged";
    let store = Store::open_with(uri, &fakes.setup("[backend.fake.limits]\ndamaged_ms = 0\n")).unwrap();
    let save = store.begin_save().unwrap();
    let put = || store.put_many(&[NewChunk::new(b"damaged", &[b"x"])], &BatchOptions::default(), Some(&save)).unwrap();
    assert!(put()[0].is_ok());
    let backend = fakes.store(uri);
    let [key] = backend.keys().try_into().unwrap();
    let mut bytes = backend.stored(&key).unwrap();
    bytes[0] ^= 1;
    backend.store(&key, &bytes);
    for _ in 0..2 {
        assert!(store.get_chunk(b"damaged").unwrap().is_none());
    }
    assert!(backend.keys().is_empty(), "it is removed when it was found so twice");
    assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), SaveOutcome::Lost(vec![b"damaged".to_vec()]));
    assert!(put()[0].is_ok());
    assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), SaveOutcome::Published);
}

/// A removal that ended unknown may still be carried out: that the chunk is there says nothing until its end.
#[test]
fn a_chunk_whose_removal_ended_unknown_does_not_count_as_there() {
    for (through, cheap_repeat) in [(true, false), (true, true), (false, false)] {
        let (_time, process) = Standing::process();
        let properties = Properties { write_through: through, cheap_repeat, settles: true, ..Properties::default() };
        let fakes = Arc::new(Fakes::of(Features { properties, ..Features::default() }));
        let setup =
            Setup { process, ..fakes.setup("[backend.fake]\nlayout1 = \"off\"\nlimits = { deadline_ms = 1000 }\n") };
        let store = Store::open_with(URI, &setup).unwrap();
        let backend = fakes.store(URI);
        let told = Arc::new(Mutex::new(Vec::new()));
        let tokens = told.clone();
        backend.during_changes(move |until| {
            if let Some(change) = until.change() {
                tokens.lock().unwrap().extend(change.begin(&[0, 1], b"session"));
            }
        });
        let save = store.begin_save().unwrap();
        let chunk = [NewChunk::new(b"unsettled", &[b"x"])];
        let put = || store.put_many(&chunk, &BatchOptions::default(), Some(&save)).unwrap().remove(0).unwrap();
        let removed_unknown = || {
            backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "gone")));
            assert!(store.delete_many(&[b"unsettled"]).unwrap()[0].is_err());
            backend.fail_calls(None);
        };
        put();
        removed_unknown();
        assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), SaveOutcome::Lost(vec![b"unsettled".to_vec()]));
        // The next put settles the removal, and does not only ask whether the chunk is there.
        told.lock().unwrap().clear();
        put();
        assert_eq!(told.lock().unwrap().len(), 1, "{through} {cheap_repeat}");
        assert_eq!(save.commit(Some(("m", b"x"))).unwrap(), SaveOutcome::Published);
        // The same for the save of the handle.
        removed_unknown();
        told.lock().unwrap().clear();
        store.put_chunk(b"unsettled", b"x").unwrap();
        store.put_manifest("n", b"x").unwrap();
        assert_eq!(told.lock().unwrap().len(), 1, "{through} {cheap_repeat}");
        told.lock().unwrap().clear();
        assert!(store.delete_many(&[b"unsettled"]).unwrap()[0].is_ok());
        assert!(told.lock().unwrap().is_empty(), "nothing is left to settle");
    }
}

/// What an instance said that is gone by now does not hold for the next one.
#[test]
fn a_chunk_that_existed_in_an_instance_that_is_gone_is_lost() {
    let properties = Properties { holds_data: true, ..Properties::default() };
    let fakes = Arc::new(Fakes::of(Features { properties, ..Features::default() }));
    let store = Store::open_with(URI, &fakes.setup("")).unwrap();
    let backend = fakes.store(URI);
    store.put_chunk(b"hash", b"bytes").unwrap();
    store.put_manifest("m", b"hash").unwrap();
    let own = backend.clone();
    backend.after_exists(move || own.lose_all());
    assert_eq!(store.put_chunk(b"hash", b"bytes").unwrap(), Put::Existed);
    let error = store.put_manifest("n", b"hash").unwrap_err().to_string();
    assert!(backend.keys().is_empty() && error.contains("the instance that held the chunks is gone"), "{error}");
    store.put_chunk(b"hash", b"bytes").unwrap();
    store.put_manifest("n", b"hash").unwrap();
    assert_eq!(&*store.get_chunk(b"hash").unwrap().unwrap(), b"bytes");
}

#[test]
fn maintenance_has_a_deadline_of_its_own() {
    let begun = Instant::now();
    let process = Process::new(ProcessParts {
        clock: Clock::of(Arc::new(Standing(Mutex::default(), begun))),
        ..ProcessParts::default()
    });
    let fakes = buffered();
    let config = "[backend.fake.limits]\ndeadline_ms = 1000\nmaintenance_ms = 7000\n";
    let store = Store::open_with(URI, &Setup { process, ..fakes.setup(config) }).unwrap();
    let backend = fakes.store(URI);
    assert_eq!(store.usage().unwrap_err().kind(), ErrorKind::Unsupported);
    backend.maintained.store(true, Relaxed);
    store.usage().unwrap();
    assert_eq!(*backend.maintained_by.lock().unwrap(), Some(begun + Duration::from_secs(7)));
}

/// An engine opened a store for each save while its server was away, and each close was a line: a megabyte an hour. What is logged is
/// counted in a process of its own, for others write to the log of this one.
#[test]
fn closes_that_discard_chunks_are_one_line_and_not_one_each() {
    const CLOSES: &str = "KV_STORE_TEST_CLOSES";
    if std::env::var_os(CLOSES).is_some() {
        let fakes = buffered();
        for _ in 0..20 {
            Store::open_with(URI, &fakes.setup("")).unwrap().put_chunk(b"hash", b"bytes").unwrap();
        }
        return;
    }
    let test = "store::tests::closes_that_discard_chunks_are_one_line_and_not_one_each";
    let mut closes = std::process::Command::new(std::env::current_exe().unwrap());
    let closed = closes.args([test, "--exact", "--nocapture"]).env(CLOSES, "1").output().unwrap();
    let said = String::from_utf8_lossy(&closed.stderr);
    assert!(closed.status.success(), "{said}");
    assert_eq!(said.matches("no manifest followed").count(), 1, "{said}");
}
