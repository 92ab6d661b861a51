//! What a cache leaves in its far level, byte for byte: later versions, and other processes, find blocks by it.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use common::*;

/// Keys and what follows the block in each value, of two blocks with tokens 1000 to 1007. Computed with Python's hashlib and xxhash.
const PLAIN: [(&str, &str); 2] = [
    ("eb87e3e055db3ebb6d3c683e7dab4816dee3ba13e77e91741f720cd2f6e69082", "4b56423104000000ec9285183e45ec15"),
    ("eb87e3e055db3ebb6d3c683e7dab4816b1d2997d85c5d046145f2e378e08dcfe", "4b564231040000006438a34800ceb288"),
];
const VALIDATED: [(&str, &str); 2] = [
    (
        "ae8a3cc7b7ddfd7f782c4b1176157da20bd6e5aafaaf30ea041b1182c916d566",
        "e8030000e9030000ea030000eb0300005d096f31698c453764df3ba840e3f32a4bad2961262e6f18c5dbb74a1a96e418\
         4b56423104000000712da1fe0f303dc0",
    ),
    (
        "ae8a3cc7b7ddfd7f782c4b1176157da24faeae5d3fbb25f442c5d38f1b4eeed0",
        "ec030000ed030000ee030000ef0300006e6e23e40c5a1462a974ea4836f5396b84a303259fbc29da2edd34d255dbf15d\
         4b5642310400000090d21918bf94840d",
    ),
];

#[test]
fn golden_far_entries() {
    let tokens = prompt(1, 2);
    let blocks: Vec<Vec<u8>> = (0..2).map(|n| (0..BYTES).map(|at| (n * BYTES + at) as u8).collect()).collect();
    for (more, entries) in [("", PLAIN), ("token_validation = true\n", VALIDATED)] {
        let far = TestFar::new();
        let cache = open(config(8, &format!("{more}[l2]\ningestion_type = 'ALL'")), &far);
        let taken = cache.put(&[], &tokens, &[&blocks[0], &blocks[1]]).unwrap();
        assert_eq!(taken, tokens.len());
        let mut expected: Vec<(String, String)> = entries
            .iter()
            .zip(&blocks)
            .map(|((key, rest), block)| ((*key).to_owned(), hex::encode(block) + rest))
            .collect();
        expected.sort();
        let values = far.state.lock().unwrap().values.clone();
        let mut found: Vec<(String, String)> =
            values.iter().map(|(key, value)| (hex::encode(key), hex::encode(value))).collect();
        found.sort();
        assert_eq!(found, expected, "{more}");
    }
}
