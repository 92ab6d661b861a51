use super::*;
use std::time::Duration;

use memkv_wire::fields::{Evict, Evicted, Kind};

use crate::names::name;

fn chunk(n: u64) -> Name {
    name("ns", Kind::Chunk, &n.to_le_bytes())
}

fn manifest(n: u64) -> Name {
    name("ns", Kind::Manifest, &n.to_le_bytes())
}

fn store(bound: u64) -> Store {
    Store::open(bound, None).unwrap()
}

/// Room for `n` chunks of 1000 bytes.
fn room_for(n: u64) -> u64 {
    n * cost(&chunk(0), &[0; 1000], &[])
}

fn put(store: &Store, n: u64) -> Put {
    store.put_chunk(chunk(n), vec![n as u8; 1000], false, 0)
}

#[test]
fn a_namespace_is_listed_in_pages_and_counted() {
    let store = store(room_for(100));
    (0..10).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
    let other = name("other", Kind::Chunk, b"k");
    assert_eq!(store.put_chunk(other, vec![0; 1000], false, 0), Put::Stored);
    assert_eq!(store.put_manifest(manifest(1), vec![1; 5], &[chunk(1)], Terms::default()), Put::Stored);
    let mut keys = Vec::new();
    loop {
        let page = store.list("ns", Kind::Chunk, keys.last().map_or(&b""[..], |key: &Vec<u8>| key), 3);
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 3 && page.iter().all(|entry| entry.size == 1000 && entry.used >= entry.stored));
        keys.extend(page.into_iter().map(|entry| entry.key));
    }
    let expected: Vec<Vec<u8>> = (0..10_u64).map(|n| n.to_le_bytes().to_vec()).collect();
    assert_eq!(keys, expected);
    let usage = store.usage("ns");
    assert_eq!((usage.chunks, usage.manifests, usage.bytes), (10, 1, 10_005));
}

#[test]
fn what_was_not_used_is_evicted_and_what_was_stored_lately_stays() {
    let store = store(room_for(100));
    (0..10).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
    assert_eq!(store.put_manifest(manifest(1), vec![1; 5], &[chunk(0), chunk(1)], Terms::default()), Put::Stored);
    let nothing = Evict { bytes: 5000, unused_since: 0, keep_since: 0 };
    assert_eq!(store.evict(Some("ns"), &nothing).chunks, 0, "all of them were stored after that");
    assert_eq!(store.get(&manifest(1)), None, "a manifest may leave at any time");
    let what = Evict { bytes: 2500, unused_since: 0, keep_since: u64::MAX };
    assert_eq!(store.evict(Some("other"), &what), Evicted::default());
    let evicted = store.evict(Some("ns"), &what);
    assert_eq!((evicted.chunks, evicted.bytes, evicted.more), (3, 3000, false));
    // The manifest's chunks were used last.
    assert_eq!(store.exists(&[chunk(0), chunk(1), chunk(2), chunk(5)]), [true, true, false, true]);
    store.expire(Duration::ZERO);
    assert_eq!(store.usage("ns").chunks, 0);
}

#[test]
fn names_of_different_places_are_different() {
    assert_ne!(name("a", Kind::Chunk, b"bc"), name("ab", Kind::Chunk, b"c"));
    assert_ne!(name("a", Kind::Chunk, b"b"), name("a", Kind::Manifest, b"b"));
}

#[test]
fn what_was_used_least_recently_leaves_first() {
    let store = store(room_for(3));
    for n in [1, 2, 3] {
        assert_eq!(put(&store, n), Put::Stored);
    }
    assert_eq!(store.exists(&[chunk(1)]), [true]);
    assert!(store.get(&chunk(2)).is_some());
    assert_eq!(put(&store, 4), Put::Stored);
    assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(3), chunk(4)]), [true, true, false, true]);
    assert_eq!(store.evicted.load(Relaxed), 1);
    assert!(store.size().bytes <= room_for(3));
}

#[test]
fn a_manifest_leaves_before_its_chunks() {
    let store = store(room_for(6));
    for n in [1, 2, 3] {
        put(&store, n);
    }
    assert_eq!(
        store.put_manifest(manifest(1), vec![0; 10], &[chunk(1), chunk(2), chunk(3)], Terms::default()),
        Put::Stored
    );
    // Asked without being used.
    let there = |name: &Name| store.table.lock().entries.contains(name);
    let mut left_alone = 0;
    for n in 10..40 {
        put(&store, n);
        let chunks = [1, 2, 3].iter().filter(|n| there(&chunk(**n))).count();
        assert!(chunks == 3 || !there(&manifest(1)), "{chunks} chunks are left after chunk {n}");
        left_alone += u64::from(chunks == 3 && !there(&manifest(1)));
    }
    assert!(left_alone > 0 && !there(&chunk(3)));
}

#[test]
fn a_manifest_that_is_used_keeps_its_chunks() {
    let store = store(room_for(6));
    for n in [1, 2] {
        put(&store, n);
    }
    store.put_manifest(manifest(1), vec![0; 10], &[chunk(1), chunk(2)], Terms::default());
    for n in 10..40 {
        assert!(store.get(&manifest(1)).is_some());
        put(&store, n);
    }
    assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(10)]), [true, true, false]);
}

#[test]
fn a_manifest_without_all_its_chunks_is_not_published() {
    let store = store(room_for(4));
    put(&store, 1);
    assert_eq!(store.put_manifest(manifest(1), vec![1], &[chunk(1)], Terms::default()), Put::Stored);
    assert_eq!(
        store.put_manifest(manifest(1), vec![2], &[chunk(1), chunk(2), chunk(3)], Terms::default()),
        Put::Gone(2)
    );
    assert_eq!(store.get(&manifest(1)).unwrap().as_slice(), [1]);
    for n in 10..20 {
        put(&store, n);
    }
    assert_eq!(store.exists(&[chunk(1)]), [false], "a failed publication keeps nothing");
}

#[test]
fn a_manifest_that_does_not_fit_beside_its_chunks_is_refused() {
    let store = store(room_for(3));
    for n in [1, 2] {
        put(&store, n);
    }
    assert!(matches!(
        store.put_manifest(manifest(1), vec![0; 2000], &[chunk(1), chunk(2)], Terms::default()),
        Put::Full(_)
    ));
    assert_eq!(store.exists(&[chunk(1), chunk(2)]), [true, true]);
    for n in 10..20 {
        assert_eq!(put(&store, n), Put::Stored, "nothing is kept any more");
    }
    assert!(matches!(store.put_chunk(chunk(1), vec![0; 4000], false, 0), Put::Full(_)));
}

#[test]
fn a_replacement_is_counted_once() {
    let store = store(room_for(3));
    put(&store, 1);
    let before = store.size();
    assert_eq!(put(&store, 1), Put::Existed);
    assert_eq!(store.put_chunk(chunk(1), vec![9; 1000], true, 0), Put::Stored);
    assert_eq!(store.size(), before);
    assert_eq!(store.get(&chunk(1)).unwrap().as_slice(), [9; 1000]);
    assert_eq!([store.delete(&chunk(1), 0), store.delete(&chunk(1), 0)], [Deleted::Gone, Deleted::Missing]);
    assert_eq!(store.size().bytes, 0);
}

#[test]
fn a_manifest_is_missing_while_a_chunk_that_it_names_is_deleted() {
    let store = store(room_for(6));
    for n in [1, 2, 3] {
        put(&store, n);
    }
    assert_eq!(store.put_manifest(manifest(1), vec![7], &[chunk(1), chunk(2)], Terms::default()), Put::Stored);
    assert_eq!(store.put_manifest(manifest(2), vec![8], &[chunk(3)], Terms::default()), Put::Stored);
    assert_eq!(store.delete(&chunk(1), 0), Deleted::Gone);
    assert_eq!(store.exists(&[chunk(1), chunk(2)]), [false, true]);
    assert!(store.get(&manifest(1)).is_none() && store.get(&manifest(2)).is_some());
    assert_eq!(put(&store, 1), Put::Stored, "it is stored again, and not said to be there");
    assert_eq!(store.get(&manifest(1)).unwrap().as_slice(), [7]);
}

#[test]
fn a_chunk_stays_while_a_manifest_that_names_it_is_being_published() {
    let store = store(room_for(3));
    put(&store, 1);
    let pinned = store.table.lock().pin(&[chunk(1)]).unwrap();
    assert!(matches!(store.delete(&chunk(1), 0), Deleted::Failed(text) if text.contains("published")));
    store.table.lock().unpin(&pinned, false);
    assert_eq!(store.delete(&chunk(1), 0), Deleted::Gone);
}

#[test]
fn what_is_being_published_stays_when_room_is_made_and_when_all_is_evicted() {
    let store = store(room_for(3));
    for n in [1, 2, 3] {
        put(&store, n);
    }
    let pinned = store.table.lock().pin(&[chunk(1)]).unwrap();
    for n in 10..16 {
        assert_eq!(put(&store, n), Put::Stored);
    }
    assert!(store.table.lock().entries.contains(&chunk(1)), "room is made of others");
    let all = Evict { bytes: u64::MAX, unused_since: u64::MAX, keep_since: u64::MAX };
    assert_eq!(store.evict(Some("ns"), &all).chunks, 2);
    assert_eq!(store.usage("ns").chunks, 1);
    // Where all that is there is being published, there is no room.
    assert!(matches!(store.put_chunk(chunk(20), vec![0; 2500], false, 0), Put::Full(_)));
    assert!(store.table.lock().entries.contains(&chunk(1)));
    store.table.lock().unpin(&pinned, false);
    assert_eq!(store.evict(Some("ns"), &all).chunks, 1);
}

#[test]
fn a_batch_is_answered_up_to_its_bound_and_never_with_nothing() {
    let store = store(room_for(9));
    for n in [1, 2, 3] {
        put(&store, n);
    }
    let names = [chunk(1), chunk(9), chunk(2), chunk(3)];
    for (max_bytes, answered) in [(0, 1), (1000, 2), (1999, 2), (2000, 3), (u64::MAX, 4)] {
        assert_eq!(store.get_some(&names, max_bytes).len(), answered, "{max_bytes}");
    }
    assert_eq!(store.get_some(&names, 2000)[1], None);
}

#[test]
fn what_comes_after_its_end_changes_nothing() {
    let store = store(room_for(9));
    (1..4).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
    assert_eq!(store.put_manifest(manifest(1), vec![1], &[chunk(1)], Terms::default()), Put::Stored);
    let late = Terms { end: 1, generation: false };
    assert_eq!(store.put_chunk(chunk(1), vec![9; 1000], true, 1), Put::TooLate);
    assert_eq!(store.put_chunk(chunk(9), vec![9; 1000], false, 1), Put::TooLate);
    assert_eq!(store.put_manifest(manifest(1), vec![2], &[chunk(2)], late), Put::TooLate);
    assert_eq!([store.delete(&chunk(1), 1), store.delete(&manifest(1), 1)], [Deleted::TooLate, Deleted::TooLate]);
    assert_eq!(store.exists(&[chunk(1), chunk(9)]), [true, false]);
    assert_eq!(store.get(&chunk(1)).unwrap().as_slice(), [1; 1000]);
    assert_eq!(store.get(&manifest(1)).unwrap().as_slice(), [1]);
    for n in 10..30 {
        assert_eq!(put(&store, n), Put::Stored, "nothing of it is kept from eviction");
    }
    let end = clock::steady() + 3_600_000_000_000;
    assert_eq!(store.put_chunk(chunk(1), vec![9; 1000], true, end), Put::Stored);
    assert_eq!(store.put_manifest(manifest(1), vec![2], &[chunk(1)], Terms { end, ..late }), Put::Stored);
    assert_eq!([store.delete(&chunk(1), end), store.delete(&manifest(1), end)], [Deleted::Gone, Deleted::Gone]);
}

/// Do a change whose end passes while another holds the table.
fn stopped_before_the_lock<T: Send>(store: &Store, change: impl FnOnce(u64) -> T + Send) -> T {
    let end = clock::steady() + 50_000_000;
    let held = store.table.lock();
    std::thread::scope(|scope| {
        let changing = scope.spawn(move || change(end));
        while clock::steady() < end {
            std::thread::yield_now();
        }
        drop(held);
        changing.join().unwrap()
    })
}

#[test]
fn the_end_is_looked_at_in_the_step_that_changes() {
    let store = store(room_for(9));
    assert_eq!(put(&store, 1), Put::Stored);
    let name = chunk(1);
    assert_eq!(stopped_before_the_lock(&store, |end| store.put_chunk(chunk(1), vec![9], true, end)), Put::TooLate);
    assert_eq!(stopped_before_the_lock(&store, |end| store.delete(&name, end)), Deleted::TooLate);
    assert_eq!(store.get(&chunk(1)).unwrap().as_slice(), [1; 1000]);
    // A manifest was in time when its chunks were kept, and is not when it has been written.
    let pinned = store.table.lock().pin(&[chunk(1)]).unwrap();
    let mut table = store.table.lock();
    assert_eq!(store.publish(&mut table, &manifest(1), vec![1], &pinned, None, (1, 0)), Put::TooLate);
    assert!(!table.entries.contains(&manifest(1)));
}

fn generation(store: &Store, n: u64) -> u64 {
    let value = store.get(&manifest(n)).unwrap();
    let place = value.last_chunk::<GENERATION_BYTES>().unwrap();
    assert_ne!(place[8..], [0; 8], "the random bytes");
    u64::from_le_bytes(*place.first_chunk().unwrap())
}

#[test]
fn a_manifest_with_a_place_for_it_gets_a_generation() {
    let store = store(room_for(9));
    let terms = Terms { end: 0, generation: true };
    let before = clock::wall() / 1000;
    let mut former = 0;
    for _ in 0..100 {
        let value = [&b"manifest"[..], &[0; GENERATION_BYTES]].concat();
        assert_eq!(store.put_manifest(manifest(1), value, &[], terms), Put::Stored);
        let next = generation(&store, 1);
        assert!(next > former && next >= before, "{next} after {former}");
        assert_eq!(store.get(&manifest(1)).unwrap()[..8], *b"manifest");
        former = next;
    }
    // As of a clock that was ahead: the manifest is deleted, and its generation is not forgotten.
    let ahead = former + 3_600_000_000;
    store.table.lock().publish(manifest(1), Arc::new(vec![0; 16]), &[], ahead);
    assert_eq!(store.delete(&manifest(1), 0), Deleted::Gone);
    assert_eq!(store.put_manifest(manifest(1), vec![0; 16], &[], terms), Put::Stored);
    assert_eq!(generation(&store, 1), ahead + 1);
    let plain = vec![0; 16];
    assert_eq!(store.put_manifest(manifest(1), plain.clone(), &[], Terms::default()), Put::Stored);
    assert_eq!(*store.get(&manifest(1)).unwrap(), plain, "without a place it stays as it is");
}

#[test]
fn what_was_overtaken_while_it_was_written_does_not_take_the_place_of_the_newer_one() {
    let store = store(room_for(9));
    let terms = Terms { end: 0, generation: true };
    let early = store.table.lock().next_generation(&manifest(1));
    assert_eq!(store.put_manifest(manifest(1), vec![7; 20], &[], terms), Put::Stored);
    let newer = generation(&store, 1);
    let publish = |value| store.publish(&mut store.table.lock(), &manifest(1), value, &[], None, (0, early));
    assert_eq!(publish(vec![1; 20]), Put::Stored);
    assert_eq!(generation(&store, 1), newer);
    // Also where the newer one is deleted: a reader remembers it.
    assert_eq!(store.delete(&manifest(1), 0), Deleted::Gone);
    assert_eq!(publish(vec![1; 20]), Put::Stored);
    assert!(store.get(&manifest(1)).is_none());
}

#[test]
fn chunks_are_committed_without_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::open(folder.path()).unwrap();
    let store = Store::open(room_for(3), Some(disk)).unwrap();
    (1..4).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
    assert_eq!(store.commit(&[chunk(1), chunk(2)]), Put::Stored);
    let synced = |n| store.table.lock().entries.peek(&chunk(n)).map(|entry| (entry.synced, entry.pins));
    assert_eq!([synced(1), synced(2), synced(3)], [Some((true, 0)), Some((true, 0)), Some((false, 0))]);
    assert_eq!(store.commit(&[chunk(1), chunk(9)]), Put::Gone(1));
    assert_eq!(put(&store, 4), Put::Stored);
    assert_eq!([synced(1), synced(3)], [Some((true, 0)), None], "they were used");
}
