//! What entries come to.

use super::*;

fn key(bytes: &[u8]) -> Key<'_> {
    Key { space: 0, bytes }
}

fn put(key: &[u8], segment: u32, unit: u32, len: u32) -> LogEntry {
    LogEntry::Put { space: 0, key: key.to_vec(), place: Place { segment, unit, len } }
}

fn index(entries: &[LogEntry]) -> Index {
    let mut index = Index::new(7, 1000);
    entries.iter().for_each(|entry| index.apply(entry));
    index
}

#[test]
fn the_last_entry_of_a_key_counts() {
    let taken = |segment| LogEntry::Taken { segment };
    let all = index(&[taken(1), taken(2), put(b"a", 1, 0, 10), put(b"b", 1, 1, 20), put(b"a", 2, 5, 30)]);
    assert_eq!(all.find(key(b"a")), Some(Place { segment: 2, unit: 5, len: 30 }));
    assert_eq!((all.find(key(b"b")).map(|place| place.segment), all.find(key(b"c")), all.len()), (Some(1), None, 2));
    let of = |index: &Index, number: u32| index.segments().find(|(own, _)| *own == number).map(|(_, segment)| *segment);
    let total = |values, bytes| Total { values, bytes };
    assert_eq!(
        of(&all, 1),
        Some(Segment { total: total(1, 20), end: 2, synced: 0, bad_from: None, old_from: Some(0) })
    );
    assert_eq!((all.next_segment(), all.total(0)), (Some(3), total(2, 50)));

    let mut gone = all;
    gone.apply(&LogEntry::Deleted { space: 0, key: b"a".to_vec() });
    assert_eq!((gone.find(key(b"a")), of(&gone, 2).map(|segment| segment.total.values)), (None, Some(0)));
    gone.apply(&LogEntry::Evicted { segment: 1 });
    assert_eq!((gone.find(key(b"b")), gone.len(), of(&gone, 1), gone.total(0)), (None, 0, None, total(0, 0)));
    // What a writer says of a segment that was taken from it is nothing.
    gone.apply(&put(b"late", 1, 0, 1));
    assert_eq!((gone.find(key(b"late")), gone.next_segment()), (None, Some(3)));
}

#[test]
fn spaces_hold_keys_of_their_own() {
    let mut index = index(&[LogEntry::Taken { segment: 1 }, put(b"a", 1, 0, 10)]);
    let other = Key { space: 3, bytes: b"a" };
    assert_eq!(index.find(other), None);
    let place = Place { segment: 1, unit: UNIT, len: 7 };
    index.apply(&LogEntry::Put { space: 3, key: b"a".to_vec(), place });
    assert_eq!((index.find_to_use(other), index.find(other), index.total(3).bytes), (Some(place), Some(place), 7));
    assert_eq!(index.counted(1), [1, 0, 0, 1]);
    index.apply(&LogEntry::Deleted { space: 0, key: b"a".to_vec() });
    assert_eq!((index.find(key(b"a")), index.find(other)), (None, Some(place)));
}

#[test]
fn what_is_used_is_known_until_most_of_it_is() {
    let mut index = index(&[LogEntry::Taken { segment: 1 }, LogEntry::Taken { segment: 2 }]);
    for n in 0..8 {
        index.apply(&put(&[n], 1 + u32::from(n) / 4, u32::from(n), 1000));
    }
    for used in [0, 1, 5] {
        index.find_to_use(key(&[used])).unwrap();
    }
    assert_eq!(index.used(), HashMap::from([(1, 2 * 1064), (2, 1064)]));
    assert_eq!(index.used_in(1).iter().map(|place| place.unit).collect::<Vec<_>>(), [0, 1]);
    assert!((0..5).all(|n| index.find_to_use(key(&[n])).is_some()));
    assert_eq!(index.used()[&1], 4 * 1064);
    assert!(index.used().is_empty() && index.used_in(1).is_empty());
}

#[test]
fn what_lies_behind_a_sync_that_failed_is_nothing() {
    let mut index = index(&[LogEntry::Taken { segment: 1 }, put(b"before", 1, 3, 1), put(b"behind", 1, 4, 1)]);
    index.apply(&LogEntry::Bad { segment: 1, from: 4 });
    assert_eq!((index.find(key(b"before")).is_some(), index.find(key(b"behind"))), (true, None));
    assert!(index.has(1) && !index.takes(1) && !index.takes(2));
    index.apply(&LogEntry::Bad { segment: 1, from: 9 });
    assert_eq!(index.find(key(b"behind")), None);
    index.apply(&LogEntry::Bad { segment: 1, from: 0 });
    assert_eq!(index.find(key(b"before")), None);
}

#[test]
fn what_a_power_loss_may_have_taken_is_not_sure() {
    let mut index =
        index(&[LogEntry::Taken { segment: 1 }, put(b"a", 1, 0, 1), put(b"b", 1, 3, 1), put(b"c", 1, 9, 1)]);
    index.apply(&LogEntry::Synced { segment: 1, to: 3 });
    index.followed();
    index.apply(&put(b"d", 1, 12, 1));
    let sure = |index: &Index| [&b"a"[..], b"b", b"c", b"d", b"e"].map(|bytes| index.has_for_sure(key(bytes)));
    assert_eq!(sure(&index), [true, false, false, true, false]);
    index.note_sure(key(b"b"), &Place { segment: 1, unit: 3, len: 1 });
    index.note_sure(key(b"c"), &Place { segment: 1, unit: 8, len: 1 });
    assert_eq!(sure(&index), [true, true, false, true, false]);
}

#[test]
fn what_is_put_late_before_what_was_synced_is_not_synced() {
    let mut index = index(&[LogEntry::Taken { segment: 1 }, put(b"a", 1, 3, 1), put(b"b", 1, 9, 1)]);
    let synced = |index: &Index| index.segment(1).unwrap().synced;
    index.apply(&LogEntry::Synced { segment: 1, to: 10 });
    index.apply(&LogEntry::Synced { segment: 1, to: 4 });
    index.apply(&put(b"c", 1, 10, 1));
    assert_eq!(synced(&index), 10);
    assert_eq!(index.synced(), [LogEntry::Synced { segment: 1, to: 10 }]);
    index.apply(&put(b"late", 1, 5, 1));
    assert_eq!(synced(&index), 5);
}

#[test]
fn ten_million_values_have_room_in_400_mb_and_a_log_makes_no_more() {
    assert_eq!(size_of::<Slot>(), 20);
    let mut index = Index::new(7, 100_000);
    index.apply(&LogEntry::Taken { segment: 1 });
    (0..100_100_u32).for_each(|n| index.apply(&put(&n.to_le_bytes(), 1, n, 4096)));
    assert_eq!(index.len(), 100_000);
    // A power of two of buckets, seven eighths of them filled, with a byte beside each.
    assert!(index.slots.capacity() < 2 * 100_000);
    let buckets = (10_000_000_u64 * 8 / 7).next_power_of_two();
    assert!(buckets * (20 + 1) < 400_000_000);
}
