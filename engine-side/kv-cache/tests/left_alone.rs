//! What is not this version's business stays where it is: rows of a later version of the format, and names that are no rows'.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::path::Path;

use common::*;
use kv_cache::ErrorKind;

/// A directory with a good row (0), rows of version 2 (1 to 100), and other names that end like rows'.
fn directory_of_others(path: &Path) -> Vec<String> {
    {
        let cache = open(&disk(path, 1 << 20));
        for n in 0..=100 {
            save(&cache, &tokens(n, 8), &payload(n, 100)).unwrap();
        }
    }
    for n in 1..=100 {
        make_later(&row_path(path, &tokens(n, 8)));
    }
    std::fs::write(path.join("notes.kvc"), "of somebody").unwrap();
    std::fs::create_dir(path.join("dir.kvc")).unwrap();
    names(path)
}

fn make_later(row: &Path) {
    let mut bytes = std::fs::read(row).unwrap();
    bytes[3] = 2;
    std::fs::write(row, bytes).unwrap();
}

#[test]
fn rows_of_a_later_version_and_other_names_survive_an_open_and_a_gc() {
    let (_folder, path) = folder();
    let before = directory_of_others(&path);
    for config in [disk(&path, 1 << 20), disk(&path, 1 << 20) + "exclusive = false\n"] {
        let cache = open(&config);
        assert_eq!(names(&path), before, "after the start");
        assert_eq!((cache.stats().newer_files, cache.stats().corrupt_files, cache.stats().foreign_files), (100, 0, 0));
        let gc = cache.gc().unwrap();
        assert_eq!((gc.later_left, gc.misnamed_left, gc.set_aside_removed), (100, 2, 0));
        assert_eq!(names(&path), before, "after gc");
        assert_eq!((cache.stats().tiers[0].rows, cache.stats().misnamed_files), (1, 2));
    }
    kv_cache::tool::gc(&path, kv_cache::tool::GcOptions { budget: Some(0), quick: false }).unwrap();
    let others: Vec<&String> =
        before.iter().filter(|name| !name.starts_with(&IDENTITY.key(&tokens(0, 8)).to_string())).collect();
    assert_eq!(names(&path).iter().collect::<Vec<_>>(), others, "only the good row is of this version's budget");
}

#[test]
fn a_row_of_a_later_version_keeps_its_place() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 1 << 20));
    save(&cache, &tokens(0, 8), &payload(0, 100)).unwrap();
    make_later(&row_path(&path, &tokens(0, 8)));
    let later = std::fs::read(row_path(&path, &tokens(0, 8))).unwrap();
    // Indexed when it was of this version; then put there by other software.
    assert!(get(&cache, &tokens(0, 8)).is_none());
    assert!(lookup(&cache, &tokens(0, 8)).is_none());
    let error = save(&cache, &tokens(0, 8), &payload(0, 100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("version 2") && error.to_string().contains("left alone"), "{error}");
    assert_eq!(std::fs::read(row_path(&path, &tokens(0, 8))).unwrap(), later);
    assert_eq!((names(&path).len(), cache.stats().tiers[0].reserved), (1, 0), "{:?}", names(&path));
}

/// Set reserved bytes of the header of a row's file.
fn reserve(row: &Path, at: usize) {
    let mut bytes = std::fs::read(row).unwrap();
    bytes[at] = 1;
    std::fs::write(row, bytes).unwrap();
}

/// So that they can be given a meaning.
#[test]
fn a_row_whose_reserved_fields_are_set_is_refused() {
    let others = include_bytes!("other-software.kvc");
    let key = kv_cache::row::parse(others, others.len() as u64).unwrap().key();
    for at in [6, 7, 20, 23, 68, 71] {
        let (_folder, path) = folder();
        std::fs::create_dir_all(&path).unwrap();
        let file = path.join(format!("{key}.kvc"));
        std::fs::write(&file, others).unwrap();
        reserve(&file, at);
        let cache = open(&disk(&path, 1 << 20));
        assert_eq!((cache.stats().tiers[0].rows, cache.stats().newer_files), (0, 1), "byte {at}");
        cache.gc().unwrap();
        assert!(file.exists(), "byte {at}: it may be good for others, and stays");
        // In a row of this cache, whose seal covers them, it is damage.
        save(&cache, &tokens(0, 8), &payload(0, 100)).unwrap();
        drop(cache);
        reserve(&row_path(&path, &tokens(0, 8)), at);
        let cache = open(&disk(&path, 1 << 20));
        assert_eq!((cache.stats().corrupt_files, cache.stats().newer_files), (1, 1), "byte {at}");
    }
}

/// Named as the software that the format comes from names its own: `<row>.<writer>.<number>.tmp`.
#[test]
fn temporary_files_of_other_software_go_when_they_are_old() {
    let key = IDENTITY.key(&tokens(0, 8));
    let old = [format!("{key}.kvc.<0.123.0>.45.tmp"), format!("{key}.kvc.x.tmp")];
    let young = format!("{key}.kvc.<0.123.0>.46.tmp");
    let not_theirs = ["notes.tmp".to_owned(), format!("{key}.tmp"), format!("{key}.kvc.tmp")];
    for config in ["", "exclusive = false\n"] {
        let (_folder, path) = folder();
        std::fs::create_dir_all(&path).unwrap();
        let write = |name: &String, hours: u64| {
            std::fs::write(path.join(name), "half a row").unwrap();
            let file = std::fs::File::options().write(true).open(path.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600)).unwrap();
        };
        old.iter().chain(&not_theirs).for_each(|name| write(name, 2));
        write(&young, 0);
        assert_eq!(kv_cache::tool::stats(&path).unwrap().temporaries, 3);
        let cache = open(&(disk(&path, 1 << 20) + config));
        assert_eq!(cache.stats().temporaries_reaped, 2);
        assert_eq!(names(&path).len(), 4, "{:?}", names(&path));
        write(&old[0], 2);
        assert_eq!(cache.gc().unwrap().temporaries, 1);
        assert!(path.join(&young).exists() && not_theirs.iter().all(|name| path.join(name).exists()));
    }
}
