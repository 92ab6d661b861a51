use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::*;
use crate::layout::tests::{cache, state};

fn record() -> Record {
    let state = state(&[cache(&(0..150).collect::<Vec<_>>(), 2, 64, false)]);
    let cut = Cut::new(&state, 3);
    let rest = cut.rest(state.len() as u64).unwrap().into_iter().flat_map(|range| state[range].to_vec()).collect();
    let hashes = (0..cut.len().unwrap()).map(|n| [n as u8; 16]).collect();
    Record { fingerprint: [3; 32], version: 3, tokens: vec![1, -5, 7], size: state.len() as u64, cut, hashes, rest }
}

/// With a right checksum, so that what lies behind it is tested.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - SEAL_BYTES;
    let seal = xxh3_128(&bytes[..body]).to_le_bytes();
    bytes[body..].copy_from_slice(&seal);
    bytes
}

/// A record as each later version reads it, of a block of two sections in one group and of one of bytes. Made by Python's struct and
/// xxhash, not with this code.
#[test]
fn golden_record() {
    const BYTES: &str = "\
        6b766c6c616d6101030303030303030303030303030303030303030303030303030303030303030303000000030000002800000000000000\
        02000000020000000100000002000000020000000000000004000000000000000e0000000000000002000000000000000200000002000000\
        0000000001000000000000000100000001000000010000001800000000000000010000000000000001000000090000000000000001010101\
        010101010101010101010101020202020202020202020202020202020303030303030303030303030303030301000000fbffffff07000000\
        6465666768696a6b6c6d6e6f7041bf88755a1dbc9d3ad1e791ef0984b6";
    let section = |offset, row| Section { offset, row };
    let blocks = vec![
        Block { sections: vec![section(2, 4), section(14, 2)], groups: vec![2], runs: vec![2, 1] },
        Block { sections: vec![section(24, 1)], groups: vec![1], runs: vec![9] },
    ];
    let record = Record {
        fingerprint: [3; 32],
        version: 3,
        tokens: vec![1, -5, 7],
        size: 40,
        cut: Cut { blocks },
        hashes: vec![[1; 16], [2; 16], [3; 16]],
        rest: (100..113).collect(),
    };
    let bytes = record.encode();
    assert_eq!(hex::encode(&bytes), BYTES);
    assert_eq!(Record::decode(&bytes), Ok(record));
}

#[test]
fn a_record_comes_back() {
    assert_eq!(Record::decode(&record().encode()), Ok(record()));
}

#[test]
fn a_changed_byte_and_every_beginning_is_refused() {
    let bytes = record().encode();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(Record::decode(&changed).is_err(), "byte {at}");
        assert!(Record::decode(&bytes[..at]).is_err(), "{at} bytes");
        if at >= 8 + SEAL_BYTES {
            assert!(Record::decode(&sealed(bytes[..at].to_vec())).is_err(), "{at} bytes with a right checksum");
        }
    }
}

proptest! {
    /// Whatever numbers a record has, it is refused or describes a whole state; and it takes no memory on their word.
    #[test]
    fn every_record_with_a_right_checksum_is_refused_or_whole(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = record().encode();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(record) = Record::decode(&sealed(bytes)) {
            let rest = record.cut.rest(record.size).unwrap();
            let covered: usize = record.cut.chunks().flatten().chain(rest).map(|range| range.len()).sum();
            prop_assert_eq!(covered as u64, record.size);
            prop_assert_eq!(record.hashes.len(), record.cut.chunks().count());
        }
    }
}
