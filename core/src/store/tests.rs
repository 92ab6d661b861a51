//! Whole stores over components in memory: what the layers, the ledger and the registry do together, without a guest.

use std::sync::Arc;

use super::Store;
use crate::error::{Error, ErrorKind};
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
