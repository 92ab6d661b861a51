//! Looking into a directory from outside, also while a cache has it open.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use kv_cache::row::{Flaw, SaveReason};
use kv_cache::{ErrorKind, Reason, Save, tool};

#[test]
fn a_directory_with_planted_damage() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 1 << 24));
    for n in 0..6 {
        save(&cache, &tokens(n, 8), &payload(n, 300_000)).unwrap();
    }
    let named =
        Save { prompt: "Once upon a time", detail: "idle", quant_bits: 4, ..Save::new(&IDENTITY, &[1, 2], b"x") };
    cache.save(named.reason(Reason::Shutdown)).unwrap();
    std::fs::write(path.join(format!("{}.kvc.tmp.1.1", IDENTITY.key(&[9]))), "half a row").unwrap();
    std::fs::write(path.join("notes"), "mine").unwrap();
    std::fs::write(path.join("mine.kvc"), "mine").unwrap();
    let damage = |n: u32, change: fn(&mut Vec<u8>)| {
        let file = row_path(&path, &tokens(n, 8));
        let mut bytes = std::fs::read(&file).unwrap();
        change(&mut bytes);
        std::fs::write(file, bytes).unwrap();
    };
    damage(1, |bytes| bytes[200_000] ^= 1);
    damage(2, |bytes| bytes.truncate(1000));
    damage(3, |bytes| bytes[80] ^= 1);
    damage(4, |bytes| bytes[3] = 7);

    let before = names(&path);
    let verified = tool::verify(&path).unwrap();
    assert_eq!((verified.good, verified.good_bytes), (3, 600_001));
    let flaw = |n: u32| {
        let name = format!("{}.kvc", IDENTITY.key(&tokens(n, 8)));
        let mut files = verified.bad.iter().chain(&verified.left);
        files.find(|bad| bad.name == name).and_then(|bad| bad.flaw.clone()).unwrap()
    };
    assert_eq!((verified.bad.len(), verified.left.len()), (3, 2), "version 7, and a name");
    assert_eq!(flaw(1), Flaw::Corrupt("its payload does not have its checksum"));
    assert_eq!((flaw(2), flaw(4)), (Flaw::Truncated, Flaw::Newer(7)));
    assert!(matches!(flaw(3), Flaw::Corrupt(_)));

    let listing = tool::list(&path).unwrap();
    assert_eq!((listing.rows.len(), listing.bad.len()), (4, 2), "payloads are not read");
    let left: Vec<&str> = listing.left.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&"mine.kvc"), "{left:?}");
    let row = listing.rows.iter().find(|row| row.tokens == 2).unwrap();
    assert_eq!(
        (row.prompt.as_str(), row.detail.as_str(), row.reason),
        ("Once upon a time", "idle", SaveReason::Shutdown)
    );
    assert_eq!((row.quant, row.quant_bits, row.sealed, row.payload_bytes), (7, 4, true, 1));
    let stats = tool::stats(&path).unwrap();
    assert_eq!((stats.rows, stats.tokens, stats.bad, stats.temporaries, stats.strangers), (4, 26, 2, 1, 1));
    assert_eq!((stats.newer, stats.misnamed), (1, 1));
    assert_eq!((stats.reasons["evict"], stats.reasons["shutdown"], stats.models[&"01".repeat(32)]), (3, 1, 4));
    assert_eq!(names(&path), before, "nothing was changed");
    serde_json::to_string(&(listing, verified, stats)).unwrap();

    assert_eq!(tool::gc(&path, tool::GcOptions::default()).unwrap_err().kind(), ErrorKind::Busy);
    drop(cache);
    let gc = tool::gc(&path, tool::GcOptions::default()).unwrap();
    assert_eq!((gc.temporaries, gc.set_aside_removed, gc.evicted), (1, 3, 0), "{gc:?}");
    assert_eq!((gc.later_left, gc.misnamed_left), (1, 1), "{gc:?}");
    let gc = tool::gc(&path, tool::GcOptions { budget: Some(310_000), quick: false }).unwrap();
    assert_eq!(gc.evicted, 1, "0: 5 and the small one fit");
    assert_eq!(tool::list(&path).unwrap().rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), [2, 8]);
}

#[test]
fn a_directory_that_is_not_there_is_not_made() {
    let (_folder, path) = folder();
    assert_eq!(tool::list(&path).unwrap_err().kind(), ErrorKind::Io);
    assert!(tool::gc(&path, tool::GcOptions::default()).is_err() && !path.exists());
}

#[test]
fn gc_removes_what_verify_calls_damaged_before_it_evicts_a_good_row() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 1 << 24));
    // The damaged ones are used last, and are more than are kept aside.
    for n in 0..25 {
        save(&cache, &tokens(n, 8), &payload(n, 10_000)).unwrap();
    }
    let budget = cache.stats().tiers[0].bytes / 5;
    drop(cache);
    for n in 5..25 {
        let file = row_path(&path, &tokens(n, 8));
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    let quick = tool::gc(&path, tool::GcOptions { quick: true, ..Default::default() }).unwrap();
    assert_eq!((quick.set_aside_removed, tool::verify(&path).unwrap().bad.len()), (0, 20), "payloads were not read");
    let gc = tool::gc(&path, tool::GcOptions { budget: Some(budget), ..Default::default() }).unwrap();
    assert_eq!((gc.set_aside_removed, gc.evicted, gc.evicted_bytes), (20, 0, 0), "{gc:?}");
    let verified = tool::verify(&path).unwrap();
    assert_eq!((verified.good, verified.bad.len(), names(&path).len()), (5, 0, 6), "five rows and an empty set-aside");
    let gc = tool::gc(&path, tool::GcOptions { budget: Some(budget / 2), quick: true }).unwrap();
    assert_eq!((gc.set_aside_removed, gc.evicted), (0, 3), "{gc:?}");
}

#[test]
fn a_row_is_listed_with_its_last_use() {
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let (_folder, path) = folder();
    save(&open(&disk(&path, 1 << 20)), &tokens(0, 8), b"state").unwrap();
    // As if it had lain there for a while.
    let row = std::fs::File::options().write(true).open(row_path(&path, &tokens(0, 8))).unwrap();
    row.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    let listed = || tool::list(&path).unwrap().rows[0].last_used;
    assert_eq!(listed(), 1_000_000_000);
    let begun = now();
    let cache = open(&disk(&path, 1 << 20));
    assert!(get(&cache, &tokens(0, 8)).is_some());
    drop(cache);
    assert!((begun..=now()).contains(&listed()), "{} is not between {begun} and now", listed());
}

#[test]
fn what_is_no_directory_is_said_to_be_none() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = tool::gc(file.path(), tool::GcOptions { budget: None, quick: true }).err().unwrap();
    assert!(error.to_string().contains("cannot open the directory"), "{error}");
}
