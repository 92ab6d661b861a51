use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::*;

/// A chunk of one piece.
fn chunk(len: usize) -> Vec<Range<usize>> {
    std::iter::once(0..len).collect()
}

/// The names in the store. Computed with Python's xxhash, not with this code.
#[test]
fn golden_names() {
    let long: Vec<u8> = (0..1000).map(|n| (n * 7) as u8).collect();
    for (content, expected) in
        [(&b"short"[..], "b42ad57460d20d0a5ade052695251792"), (&long, "10ad30264426c830abee229cdadad76d")]
    {
        let hash = hash(&[content]);
        assert_eq!(hex::encode(hash), expected);
        assert_eq!(hex::encode(name_of(&hash)), expected[..16]);
    }
}

#[test]
fn batches_hold_every_chunk_once_in_order() {
    let chunks: Vec<_> = [1, BATCH_BYTES, 5, BATCH_BYTES / 2, BATCH_BYTES / 2, 9].map(chunk).to_vec();
    let batches = batches(&chunks);
    let ranges: Vec<Range<usize>> = batches.iter().map(|(_, range)| range.clone()).collect();
    assert_eq!(ranges, [0..2, 2..5, 5..6]);
    assert!(batches.iter().all(|(chunks, range)| chunks.len() == range.len()));
}

#[test]
fn work_side_by_side_answers_in_order_and_stops_after_a_failure() {
    let chunks: Vec<_> = std::iter::repeat_n(chunk(BATCH_BYTES), 40).collect();
    let batches = batches(&chunks);
    let firsts: Vec<usize> = side_by_side(&batches, |(_, range)| Ok(range.start)).collect::<Result<_, _>>().unwrap();
    assert_eq!(firsts, (0..40).collect::<Vec<_>>());
    let failed = side_by_side(&batches, |(_, range)| if range.start == 3 { Err("no".to_owned()) } else { Ok(()) });
    assert_eq!(failed.collect::<Result<Vec<_>, _>>(), Err("no".to_owned()));
}

#[test]
fn a_chunk_is_named_by_the_hash_of_its_content_whatever_its_pieces() {
    assert_eq!(hash(&[b"one and two"]), hash(&[b"one", b" and ", b"two"]));
    let bytes: Vec<u8> = (0..5000_u32).map(|n| ((n * n) >> 3) as u8).collect();
    for len in [1, 16, 240, 241, 1024, 5000] {
        let (one, (head, tail)) = (&bytes[..len], bytes[..len].split_at(len / 3));
        let found = hash(&[one]);
        assert_eq!(found[..8], xxh3_64(one).to_be_bytes(), "the store checks this name by the content of {len} bytes");
        assert_eq!(found[8..], xxh3_128(one).to_be_bytes()[..8]);
        assert_eq!(found, hash(&[head, tail]));
    }
}
