//! Batches of records that other threads read, as they do what does not lie in memory.

use std::sync::Arc;

use super::super::store::tests::{SETTINGS, key, open_with, until, value};
use super::*;
use crate::config::Direct;
use crate::payload::Destination;
use crate::segments::store::{NewValue, SegmentSettings};
use crate::threads::Whose;

fn room(_: usize, len: u64) -> Result<Destination, Error> {
    Ok(Destination::Buffer(crate::payload::Filling::new(len)?))
}

#[test]
fn records_that_other_threads_read_are_those_that_were_put() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_with(folder.path(), false, &SegmentSettings { segment_bytes: Some(8 << 20), ..SETTINGS }).unwrap();
    let long: Vec<u8> = (0..(2 << 20) + 77_u32).map(|n| (n * 31 + n / 4093) as u8).collect();
    let values: Vec<Vec<u8>> = (0..40).map(|n| value(n * 1700)).chain([long, Vec::new()]).collect();
    let keys: Vec<[u8; 4]> = (0..values.len() as u32).map(u32::to_le_bytes).collect();
    let pieces: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value[..]]).collect();
    let batch: Vec<NewValue<'_>> = keys.iter().zip(&pieces).map(|(bytes, pieces)| (key(bytes), &pieces[..])).collect();
    for stored in store.put(&batch, false, &until()).unwrap() {
        stored.unwrap();
    }
    let mut wanted: Vec<RecordRead<'_>> =
        keys.iter().map(|bytes| (store.find(key(bytes)).unwrap(), key(bytes))).collect();
    // Another record's place, and a segment that is gone.
    wanted.push((wanted[3].0, key(&keys[4])));
    wanted.push((Place { segment: 99, ..wanted[0].0 }, key(&keys[0])));
    for direct in [None, Some(Direct::Off), Some(Direct::On), Some(Direct::Auto)] {
        let directory = Directory::open(folder.path(), &Arc::default()).unwrap();
        let directory = match direct {
            None => directory,
            Some(direct) => directory.of_store(&Whose::default(), direct).untold(),
        };
        let found = store.read_all(&wanted, &directory, &until(), &mut room);
        assert_eq!(found.len(), wanted.len());
        for (found, value) in found.iter().zip(&values) {
            assert!(matches!(found.read, Ok(true)));
            assert!(found.destination.as_ref().unwrap().filled().pieces().collect::<Vec<_>>().concat() == *value);
        }
        assert!(found[values.len()..].iter().all(|found| matches!(found.read, Ok(false))), "{direct:?}");
        let full = |index: usize, len| match index {
            3 => Err(Error::new(ErrorKind::Exhausted, "full")),
            _ => room(index, len),
        };
        let found = store.read_all(&wanted, &directory, &until(), &mut { full });
        assert!(found.len() == 3 && found.iter().all(|found| matches!(found.read, Ok(true))));
    }
}
