//! Each item that is not answered is counted under one reason.

use super::*;
use crate::envelope::{Kind, of_later_version};
use crate::error::Error;

impl Tested {
    /// What is asked for by `ask` is not answered, for this reason and no other; so many are asked for.
    fn unanswered(&self, reason: &str, items: u64, ask: impl FnOnce(&Store)) {
        let count = |hits: &mut u64| {
            let series = self.process.metrics().series.remove(0);
            *hits = series.events["hits"];
            series.unanswered
        };
        let (mut hits_before, mut hits) = (0, 0);
        let before = count(&mut hits_before);
        ask(&self.store);
        let after = count(&mut hits);
        let risen: Vec<(&str, u64)> =
            after.iter().map(|(name, count)| (*name, count - before[name])).filter(|(_, risen)| *risen > 0).collect();
        assert_eq!((risen, hits), (vec![(reason, items)], hits_before), "{reason}");
    }
}

/// A key that nobody put.
const ABSENT: &[u8] = b"not put by anybody";

/// Ask for some at once, whatever is answered.
fn many(store: &Store, options: BatchOptions, keys: &[&[u8]]) {
    let mut items: Vec<_> = keys.iter().map(|key| Fetch::new(key, Memory::Allocate)).collect();
    let _ = store.get_many(&mut items, &options);
}

#[test]
fn what_is_not_answered_has_one_reason() {
    let tested =
        Tested::open("[backend.fake.limits]\nbreaker_failures = 20\n[backend.fake.quota]\noperations_per_s = 200\n");
    reasons_of_what_is_stored(&tested);
    reasons_of_calls(&tested);
}

fn reasons_of_what_is_stored(tested: &Tested) {
    let backend = &tested.backend;
    let hash = hashed(b"content");
    tested.unanswered("absent", 5, |store| {
        store.get_chunk(ABSENT).unwrap();
        store.get_manifest("m").unwrap();
        // The same twice is asked for twice.
        many(store, options(), &[ABSENT, ABSENT, b"nor this"]);
    });

    tested.store.put_chunk(&hash, b"content").unwrap();
    backend.store(&hash, b"other bytes");
    tested.unanswered("damaged", 1, |store| assert!(store.get_chunk(&hash).unwrap().is_none()));
    tested.store.put_manifest("m", b"bytes").unwrap();
    let mut manifest = backend.stored_manifest("m\u{2}").unwrap();
    manifest[0] ^= 1;
    backend.store_manifest("m\u{2}", &manifest);
    tested.unanswered("damaged", 1, |store| assert!(store.get_manifest("m").unwrap().is_none()));
    tested.put(KEY, b"value", options());
    let sound = backend.stored(&enveloped(KEY)).unwrap();
    backend.store(&enveloped(KEY), &[&sound[..], b"x"].concat());
    tested.unanswered("damaged", 3, |store| {
        many(store, options(), &[KEY, KEY]);
        assert!(store.get_chunk(KEY).unwrap().is_none());
    });

    backend.store(&enveloped(KEY), &of_later_version(Kind::Chunk, KEY, b"value"));
    backend.store_manifest("m\u{2}", &of_later_version(Kind::Manifest, b"m", b"bytes"));
    tested.unanswered("later", 3, |store| {
        many(store, options(), &[KEY]);
        assert!(store.get_chunk(KEY).unwrap().is_none() && store.get_manifest("m").unwrap().is_none());
    });

    tested.store.put_manifest("older", b"bytes").unwrap();
    let stored = backend.stored_manifest("older\u{2}").unwrap();
    let publish = |microseconds: u64| {
        let generation = [microseconds.to_le_bytes(), [9; 8]].concat();
        backend.store_manifest("older\u{2}", &[&stored[..stored.len() - 16], &generation].concat());
    };
    publish(11);
    assert!(tested.store.get_manifest("older").unwrap().is_some());
    publish(10);
    tested.unanswered("older", 1, |store| assert!(store.get_manifest("older").unwrap().is_none()));

    backend.store(OTHER, b"no hash of it");
    backend.store(b"plain", b"never sealed, and longer than a seal");
    tested.unanswered("flag", 2, |store| {
        many(store, options().with_xxh3_keys(), &[OTHER]);
        many(store, options().with_sealed(), &[b"plain"]);
    });
}

fn reasons_of_calls(tested: &Tested) {
    let backend = &tested.backend;
    tested.unanswered("refused", 4, |store| {
        assert!(store.get_chunk(&[7; 65]).is_err() && store.get_manifest("").is_err());
        many(store, options(), &[&[7; 65], b""]);
    });
    backend.fail_calls(Some(Error::busy("it sheds load")));
    tested.unanswered("refused", 2, |store| {
        many(store, options(), &[KEY]);
        assert!(store.get_chunk(KEY).is_err());
    });
    backend.fail_calls(Some(Error::new(ErrorKind::Cancelled, "its caller")));
    tested.unanswered("late", 1, |store| assert!(store.get_manifest("m").is_err()));
    backend.fail_calls(Some(Error::new(ErrorKind::Component, "trapped")));
    tested.unanswered("failed", 2, |store| many(store, options(), &[KEY, ABSENT]));
    backend.fail_calls(Some(Error::new(ErrorKind::Unavailable, "no answer").after_waiting(Duration::from_secs(5))));
    tested.unanswered("late", 1, |store| assert!(store.get_chunk(KEY).is_err()));
    (0..20).for_each(|_| assert!(tested.store.get_chunk(KEY).is_err()));
    backend.fail_calls(None);
    tested.unanswered("breaker", 3, |store| {
        many(store, options(), &[KEY, ABSENT]);
        assert!(store.get_manifest("m").is_err());
    });
    while tested.store.get_manifest("m").is_err() {}
    tested.unanswered("refused", 3, |store| {
        many(store, options(), &[KEY, ABSENT]);
        assert!(store.get_chunk(KEY).unwrap().is_none());
    });
}
