//! Directories that go both ways: the software that the format comes from reads rows of this cache and rewrites their hit
//! count and time of use in place (`tests/c/original.c` does as it does), and this cache serves them after that; and rows
//! that an earlier version of this crate sealed load whole.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use kv_cache::{Query, tool};
use kv_platform::sync::Mutex;

/// One test at a time: a child has the parent's locks between its fork and its exec, so a directory of one test would be busy
/// while another starts its program.
static ALONE: Mutex<()> = Mutex::new(());

/// The program, compiled.
fn program(folder: &Path) -> PathBuf {
    let program = folder.join("original");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/original.c");
    let built = Command::new("gcc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn rows(directory: &Path) -> Vec<PathBuf> {
    names(directory).into_iter().filter(|name| name.ends_with(".kvc")).map(|name| directory.join(name)).collect()
}

/// Let the program use all rows of a directory; each has to be one for it.
fn use_rows(program: &Path, arguments: &[&str], directory: &Path) {
    let ran = Command::new(program).args(arguments).args(rows(directory)).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn hit_count(path: &Path) -> u32 {
    kv_cache::row::parse_head(&std::fs::read(path).unwrap(), path.metadata().unwrap().len()).unwrap().hit_count
}

/// A row of other software, under its name.
fn put_other_row(directory: &Path) -> kv_cache::row::RowMetadata {
    let bytes = include_bytes!("other-software.kvc");
    let row = kv_cache::row::parse(bytes, bytes.len() as u64).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join(format!("{}.kvc", row.key())), bytes).unwrap();
    row
}

#[test]
fn rows_that_the_original_used_are_served() {
    let _alone = ALONE.lock();
    let (folder, path) = folder();
    let program = program(folder.path());
    for shared in ["", "exclusive = false\n"] {
        let _ = std::fs::remove_dir_all(&path);
        let other = put_other_row(&path);
        let cache = open(&(disk(&path, 1 << 20) + shared));
        for n in 0..3 {
            save(&cache, &tokens(n, 8), &payload(n, 5000)).unwrap();
        }
        let check = |cache: &kv_cache::Cache, when: &str| {
            for n in 0..3 {
                let hit = lookup(cache, &tokens(n, 8)).unwrap_or_else(|| panic!("{when}: row {n} is a miss"));
                assert_eq!(load(&hit).unwrap(), payload(n, 5000), "{when}");
                assert_eq!(*hit.view().unwrap(), payload(n, 5000), "{when}");
            }
            let hit = cache.lookup(&Query::new(&other.identity, &other.tokens)).unwrap().unwrap();
            assert_eq!(
                (load(&hit).unwrap(), &*hit.view().unwrap()),
                (b"payload bytes".to_vec(), &b"payload bytes"[..])
            );
            assert_eq!(cache.stats().corrupt_files, 0, "{when}");
        };
        use_rows(&program, &[], &path);
        check(&cache, "hit counts rewritten while the cache is open");
        use_rows(&program, &["-u"], &path);
        check(&cache, "times of use rewritten while the cache is open");
        assert_eq!(hit_count(&row_path(&path, &tokens(0, 8))), 2);
        assert_eq!(tool::verify(&path).unwrap().bad.len(), 0);
        drop(cache);
        use_rows(&program, &["-u"], &path);
        check(&open(&(disk(&path, 1 << 20) + shared)), "rewritten before the start");
        assert_eq!(names(&path).len(), 4, "nothing was set aside: {:?}", names(&path));
    }
}

/// The rows in `tests/fixtures/rows-0.1.0` were written by version 0.1.0, whose seal covered the hit count and the time of the
/// last use, which it wrote as 0 and as the time of the save.
#[test]
fn rows_that_were_sealed_the_former_way_load_whole() {
    let _alone = ALONE.lock();
    let (folder, path) = folder();
    let program = program(folder.path());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/rows-0.1.0");
    std::fs::create_dir_all(&path).unwrap();
    for row in rows(&fixtures) {
        std::fs::copy(&row, path.join(row.file_name().unwrap())).unwrap();
    }
    let check = |when: &str| {
        let cache = open(&disk(&path, 1 << 20));
        for n in 0..4u32 {
            let payload = payload(n, 40 + n as usize * 100);
            assert_eq!(get(&cache, &tokens(n, 8 << n)), Some(payload), "{when}: row {n}");
        }
        assert_eq!(cache.stats().tiers[0].rows, 4);
        drop(cache);
        assert!(tool::list(&path).unwrap().rows.iter().all(|row| row.sealed));
    };
    check("as they were written");
    use_rows(&program, &["-u"], &path);
    check("after the original used them");
    // The former seal is still one: any other bit is seen.
    let file = row_path(&path, &tokens(1, 16));
    let good = std::fs::read(&file).unwrap();
    let length = good.len() as u64;
    for bit in (0..(good.len() - 140) * 8).filter(|bit| !matches!(bit / 8, 12..16 | 32..40)) {
        let mut changed = good.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(kv_cache::row::parse(&changed, length).is_err(), "bit {bit}");
    }
}
