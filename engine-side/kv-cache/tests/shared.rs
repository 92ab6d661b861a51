//! Directories that processes share (`exclusive = false`): each evicts rows of the others and saves them anew, and none takes that
//! for damage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::*;
use kv_cache::{Cache, ErrorKind, Save, Saved};

fn shared(path: &Path, budget: u64) -> Cache {
    open(&(disk(path, budget) + "exclusive = false\n"))
}

/// A save whose file is like no other's of the same row.
fn save_as(cache: &Cache, n: u32, bytes: usize, detail: &str) -> kv_cache::Result<Saved> {
    let (tokens, payload) = (tokens(n, 8), payload(n, bytes));
    cache.save(Save { detail, ..Save::new(&IDENTITY, &tokens, &payload) })
}

#[test]
fn a_row_that_another_cache_saved_anew_is_indexed_anew() {
    // As long as before, longer, shorter; and with a longer payload.
    for (detail, bytes) in [("b", 5000), ("longer", 5000), ("", 5000), ("a", 6000)] {
        let (_folder, path) = folder();
        let one = shared(&path, 1 << 20);
        assert_eq!(save_as(&one, 0, 5000, "a").unwrap(), Saved::Stored);
        let other = shared(&path, 1 << 20);
        assert_eq!(one.evict(&IDENTITY.key(&tokens(0, 8))), 1);
        assert_eq!(save_as(&one, 0, bytes, detail).unwrap(), Saved::Stored);

        let hit = lookup(&other, &tokens(0, 8)).unwrap();
        assert_eq!(load(&hit).unwrap_err().kind(), ErrorKind::Miss, "it is another file than the one that was found");
        drop(hit);
        let stats = other.stats();
        assert_eq!((stats.corrupt_files, stats.truncated_files, stats.adopted), (0, 0, 1), "{detail} {bytes}");
        assert_eq!(get(&other, &tokens(0, 8)).unwrap(), payload(0, bytes), "the next lookup finds the new row");
        assert_eq!(get(&one, &tokens(0, 8)).unwrap(), payload(0, bytes));
        assert_eq!(names(&path).len(), 1, "nothing was set aside: {:?}", names(&path));
        assert_eq!(other.stats().tiers[0].bytes, row_path(&path, &tokens(0, 8)).metadata().unwrap().len());
    }
}

/// Rows that others put there are adopted, and the budget is kept all the same.
#[test]
fn a_cache_that_adopts_rows_stays_in_its_budget() {
    const BUDGET: u64 = 12_000;
    let in_budget = |cache: &Cache, path: &Path| {
        let tier = &cache.stats().tiers[0];
        let files: u64 =
            (0..4).filter_map(|n| row_path(path, &tokens(n, 8)).metadata().ok()).map(|file| file.len()).sum();
        assert_eq!(tier.bytes, files, "all rows that are there are in the account");
        assert!(tier.bytes <= BUDGET && tier.rows >= 1, "{} bytes in {} rows", tier.bytes, tier.rows);
    };
    // A row that turns out to be saved anew, and larger.
    let (_folder, path) = folder();
    let one = shared(&path, 1 << 20);
    for n in [0, 1] {
        save_as(&one, n, 5000, "").unwrap();
    }
    let small = shared(&path, BUDGET);
    assert_eq!(small.stats().tiers[0].rows, 2);
    assert_eq!(one.evict(&IDENTITY.key(&tokens(0, 8))), 1);
    save_as(&one, 0, 9000, "").unwrap();
    let hit = lookup(&small, &tokens(0, 8)).unwrap();
    assert_eq!(load(&hit).unwrap_err().kind(), ErrorKind::Miss);
    drop(hit);
    assert_eq!((small.stats().adopted, small.stats().evictions), (1, 1));
    in_budget(&small, &path);

    // Rows that gc finds, and those that are there when the cache is opened.
    let (_folder, path) = folder();
    let (one, small) = (shared(&path, 1 << 20), shared(&path, BUDGET));
    for n in 0..4 {
        save_as(&one, n, 5000, "").unwrap();
    }
    let gc = small.gc().unwrap();
    assert_eq!((gc.adopted, gc.evicted), (4, 2));
    in_budget(&small, &path);
    // Another cache, which knows what was evicted.
    let one = shared(&path, 1 << 20);
    for n in 0..4 {
        save_as(&one, n, 5000, "").unwrap();
    }
    assert_eq!(names(&path).len(), 4);
    in_budget(&shared(&path, BUDGET), &path);
}

#[test]
fn damage_is_set_aside_all_the_same() {
    let (_folder, path) = folder();
    let cache = shared(&path, 1 << 20);
    save_as(&cache, 0, 5000, "a").unwrap();
    let file = row_path(&path, &tokens(0, 8));
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(get(&cache, &tokens(0, 8)).is_none());
    assert_eq!((cache.stats().corrupt_files, file.exists()), (1, false));
    assert!(lookup(&cache, &tokens(0, 8)).is_none());
}

#[test]
fn processes_that_evict_each_others_rows_condemn_none() {
    const ROLE: &str = "KV_CACHE_TEST_EVICTORS";
    if let Some(path) = std::env::var_os(ROLE) {
        // Room for half of the rows.
        let cache = shared(Path::new(&path), 6 * 21_000);
        for round in 0..600u32 {
            let n = (round.wrapping_mul(7) ^ std::process::id()) % 12;
            match lookup(&cache, &tokens(n, 8)).map(|hit| load(&hit)) {
                Some(Ok(bytes)) => assert_eq!(bytes, payload(n, 20_000)),
                Some(Err(error)) => assert_eq!(error.kind(), ErrorKind::Miss, "{error}"),
                None => {
                    save_as(&cache, n, 20_000, &format!("{} {round}", std::process::id())).unwrap();
                }
            }
        }
        let stats = cache.stats();
        let condemned = stats.corrupt_files + stats.truncated_files + stats.foreign_files;
        return println!("condemned {condemned}, evicted {}", stats.evictions);
    }
    let (_folder, path) = folder();
    let children: Vec<_> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "processes_that_evict_each_others_rows_condemn_none", "--nocapture"])
                .env(ROLE, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let line = said.lines().find_map(|line| line.split_once("condemned ")).unwrap().1;
        assert!(line.starts_with("0, evicted ") && !line.ends_with(" 0"), "{line}");
    }
    assert!(!path.join("set-aside").exists());
}
