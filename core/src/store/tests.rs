//! Whole stores over components in memory: what the layers, the ledger and the registry do together, without a guest.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::{BatchOptions, NewChunk, Parts, Process, Setup, Store};
use crate::error::{Error, ErrorKind};
use crate::process::{Clock, Random, Spawn, Time};
use crate::sandbox::fake::Fakes;
use crate::sandbox::{Features, Properties};

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
struct Standing(Mutex<Duration>, Instant);

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
    let process = Process::new(Parts {
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
