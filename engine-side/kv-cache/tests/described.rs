//! Rows say of which descriptor they are: another one's are not served, and left alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use kv_cache::ErrorKind;

const ONE: &str = "[descriptor]\nmodel = 'sha256:1'\nrope = 'theta 10000'\n";
const TWO: &str = "[descriptor]\nmodel = 'sha256:2'\nrope = 'theta 10000'\n";

#[test]
fn a_row_of_another_descriptor_is_missed_refuses_a_save_and_stays() {
    for exclusive in ["", "exclusive = false\n"] {
        let (_folder, path) = folder();
        let config = |said: &str| disk(&path, 1 << 20) + exclusive + said;
        let tokens = tokens(1, 8);
        save(&open(&config(ONE)), &tokens, &payload(1, 100)).unwrap();
        let stored = std::fs::read(row_path(&path, &tokens)).unwrap();

        let other = open(&config(TWO));
        assert!(lookup(&other, &tokens).is_none());
        assert_eq!((other.stats().other_descriptors, other.stats().tiers[0].rows), (1, 0));
        let refused = save(&other, &tokens, &payload(2, 100)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Mismatch);
        assert!(refused.to_string().contains("descriptor"), "{refused}");
        other.gc().unwrap();
        assert_eq!((other.stats().tiers[0].reserved, names(&path).len()), (0, 1));
        drop(other);
        assert_eq!(std::fs::read(row_path(&path, &tokens)).unwrap(), stored, "left alone");

        let own = open(&config(ONE));
        assert_eq!(get(&own, &tokens), Some(payload(1, 100)));
        assert_eq!(own.stats().other_descriptors, 0);
    }
}

#[test]
fn rows_that_nobody_described_are_everybodys_and_who_says_nothing_reads_all() {
    let (_folder, path) = folder();
    let config = |said: &str| disk(&path, 1 << 20) + said;
    save(&open(&config("")), &tokens(1, 8), &payload(1, 100)).unwrap();
    {
        let one = open(&config(ONE));
        assert_eq!(get(&one, &tokens(1, 8)), Some(payload(1, 100)));
        save(&one, &tokens(2, 8), &payload(2, 100)).unwrap();
    }
    let unsaid = open(&config(""));
    assert_eq!(get(&unsaid, &tokens(1, 8)), Some(payload(1, 100)));
    assert_eq!(get(&unsaid, &tokens(2, 8)), Some(payload(2, 100)));
}

/// Put there by another process, after this one has opened the directory.
#[test]
fn a_row_that_came_since_is_not_adopted() {
    let (_folder, path) = folder();
    let config = |said: &str| disk(&path, 1 << 20) + "exclusive = false\n" + said;
    let (one, two) = (open(&config(ONE)), open(&config(TWO)));
    save(&two, &tokens(1, 8), &payload(2, 100)).unwrap();
    assert_eq!(save(&one, &tokens(1, 8), &payload(1, 100)).unwrap_err().kind(), ErrorKind::Mismatch);
    one.gc().unwrap();
    assert!(lookup(&one, &tokens(1, 8)).is_none());
    assert_eq!(get(&two, &tokens(1, 8)), Some(payload(2, 100)));
}
