//! Damaged files: whatever bit is wrong, the row is a miss, counted, and its file set aside. Never an answer, never a crash.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::path::Path;

use common::*;
use kv_cache::{Cache, ErrorKind, Stats};

fn flaws(stats: &Stats) -> u64 {
    stats.corrupt_files + stats.truncated_files + stats.foreign_files + stats.newer_files
}

/// Whether a bit is of the hit count or the time of the last use, which other software rewrites in place.
fn rewritten(bit: usize) -> bool {
    matches!(bit / 8, 12..16 | 32..40)
}

fn flip(path: &Path, bit: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

/// A directory with one row of 8 tokens and 40 bytes, and its file's size.
fn one_row(path: &Path) -> usize {
    save(&open(&disk(path, 1 << 20)), &tokens(0, 8), &payload(0, 40)).unwrap();
    std::fs::metadata(row_path(path, &tokens(0, 8))).unwrap().len() as usize
}

#[test]
fn any_bit_that_is_flipped_before_the_start_is_a_miss() {
    let (_folder, path) = folder();
    let size = one_row(&path);
    let file = row_path(&path, &tokens(0, 8));
    let good = std::fs::read(&file).unwrap();
    for bit in (0..size * 8).filter(|bit| !rewritten(*bit)) {
        std::fs::write(&file, &good).unwrap();
        flip(&file, bit);
        let cache = open(&disk(&path, 1 << 20));
        let in_payload = bit / 8 >= size - 40;
        // The payload is not read at the start, so its damage is found by the load.
        assert_eq!(cache.stats().tiers[0].rows, u64::from(in_payload), "bit {bit}");
        assert_eq!(get(&cache, &tokens(0, 8)), None, "bit {bit}");
        // Byte 3 is the version: what may be a row of a later one is left where it is.
        let later = matches!(bit, 25..32);
        assert_eq!((flaws(&cache.stats()), file.exists()), (1, later), "bit {bit}");
        assert!(lookup(&cache, &tokens(0, 8)).is_none(), "bit {bit}");
    }
    std::fs::write(&file, &good).unwrap();
    assert_eq!(get(&open(&disk(&path, 1 << 20)), &tokens(0, 8)).unwrap(), payload(0, 40), "and with none it is there");
}

#[test]
fn any_bit_that_is_flipped_while_the_cache_is_open_is_a_miss() {
    let (_folder, path) = folder();
    let size = one_row(&path);
    let file = row_path(&path, &tokens(0, 8));
    let good = std::fs::read(&file).unwrap();
    let shared = disk(&path, 1 << 20) + "exclusive = false\n";
    for (config, mapped) in [(disk(&path, 1 << 20), false), (disk(&path, 1 << 20), true), (shared, true)] {
        let cache = open(&config);
        for bit in (0..size * 8).filter(|bit| !rewritten(*bit)) {
            let hit = lookup(&cache, &tokens(0, 8)).unwrap();
            flip(&file, bit);
            let error = match mapped {
                true => hit.view().err().unwrap(),
                false => load(&hit).unwrap_err(),
            };
            assert_eq!(error.kind(), ErrorKind::Miss, "bit {bit}");
            assert!(lookup(&cache, &tokens(0, 8)).is_none(), "bit {bit}");
            drop(hit);
            // What the next writer puts there is found again.
            std::fs::write(&file, &good).unwrap();
            assert_eq!(cache.gc().unwrap().adopted, 1);
        }
        let bits = (size as u64 - 12) * 8;
        assert_eq!((flaws(&cache.stats()), cache.stats().load_misses), (bits, bits));
    }
}

#[test]
fn any_length_but_the_right_one_is_a_miss() {
    let (_folder, path) = folder();
    let size = one_row(&path);
    let file = row_path(&path, &tokens(0, 8));
    let good = std::fs::read(&file).unwrap();
    for length in (0..size).chain([size + 1, size + 5000]) {
        let mut other = good.clone();
        other.resize(length, 0);
        std::fs::write(&file, &other).unwrap();
        let cache = open(&disk(&path, 1 << 20));
        let stats = cache.stats();
        assert_eq!(stats.tiers[0].rows, 0, "{length}");
        assert_eq!(
            (stats.truncated_files, stats.corrupt_files),
            if length < size { (1, 0) } else { (0, 1) },
            "{length}"
        );
        drop(cache);
        std::fs::write(&file, &good).unwrap();
        let cache = open(&disk(&path, 1 << 20));
        let hit = lookup(&cache, &tokens(0, 8)).unwrap();
        std::fs::write(&file, &other).unwrap();
        assert_eq!(load(&hit).unwrap_err().kind(), ErrorKind::Miss, "{length}");
    }
}

#[test]
fn what_is_no_row_is_counted_by_kind_and_what_is_not_ours_is_left() {
    let (_folder, path) = folder();
    one_row(&path);
    let good = std::fs::read(row_path(&path, &tokens(0, 8))).unwrap();
    let put = |n: u32, bytes: &[u8]| std::fs::write(row_path(&path, &tokens(n, 8)), bytes).unwrap();
    let mut newer = good.clone();
    newer[3] = 9;
    put(1, b"");
    put(2, b"a text that somebody gave a strange name");
    put(3, &newer);
    put(4, &good);
    put(5, &good[..100]);
    std::fs::write(path.join("copy of a row.kvc"), &good).unwrap();
    std::fs::write(path.join("README"), "hands off").unwrap();
    std::fs::create_dir(row_path(&path, &tokens(6, 8))).unwrap();
    std::os::unix::fs::symlink("README", row_path(&path, &tokens(7, 8))).unwrap();
    let fifo = std::ffi::CString::new(row_path(&path, &tokens(8, 8)).to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let cache = open(&disk(&path, 1 << 20));
    let stats = cache.stats();
    assert_eq!(stats.tiers[0].rows, 1);
    assert_eq!((stats.truncated_files, stats.newer_files), (2, 1), "empty and 100 bytes; version 9");
    assert_eq!(stats.misnamed_files, 1);
    assert_eq!(stats.corrupt_files, 1, "one that is not what its name says");
    assert_eq!(stats.foreign_files, 4, "a text, a folder, a link, a FIFO");
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 40));
    assert_eq!(std::fs::read_to_string(path.join("README")).unwrap(), "hands off");
    let kept = names(&path);
    assert_eq!(kept.len(), 5, "the row, README, the copy, the row of version 9, set-aside: {kept:?}");
    assert!(kept.contains(&"copy of a row.kvc".to_owned()) && row_path(&path, &tokens(3, 8)).exists());
}

/// The file of other software (see `src/row/tests.rs`) under its name is a row like any other.
#[test]
fn a_row_of_other_software_is_served() {
    let (_folder, path) = folder();
    let others = include_bytes!("other-software.kvc");
    let row = kv_cache::row::parse(others, others.len() as u64).unwrap();
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join(format!("{}.kvc", row.key())), others).unwrap();
    let cache = open(&disk(&path, 1 << 20));
    let hit = cache.lookup(&kv_cache::Query::new(&row.identity, &row.tokens)).unwrap().unwrap();
    assert_eq!(load(&hit).unwrap(), b"payload bytes");
}

#[test]
fn a_hundred_thousand_rows_are_indexed_without_their_payloads() {
    let (_folder, path) = folder();
    one_row(&path);
    let rows: usize = std::env::var("KV_CACHE_TEST_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(5000);
    for n in 1..=rows as u32 {
        let tokens = tokens(n, 8);
        let row = kv_cache::row::NewRow {
            identity: IDENTITY,
            tokens: &tokens,
            reason: kv_cache::row::SaveReason::Cold,
            detail: "",
            quant_bits: 4,
            context_size: 4096,
            created: 0,
            prompt: "",
            host: "",
            payload_bytes: 1 << 40,
            descriptor: None,
        };
        // A payload of a terabyte, in a file without blocks: whoever reads it does not come back.
        let path = row_path(&path, &tokens);
        let metadata = row.encode(0);
        std::fs::write(&path, &metadata).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(metadata.len() as u64 + (1 << 40)).unwrap();
    }
    let start = std::time::Instant::now();
    let cache: Cache = open(&disk(&path, 1 << 62));
    println!("{rows} rows indexed in {:?}", start.elapsed());
    assert_eq!(cache.stats().tiers[0].rows, rows as u64 + 1);
    assert!(lookup(&cache, &tokens(rows as u32, 8)).is_some());
}
