//! What an operator is told goes where the consumer wants it. One test: where lines go is a matter of the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use kv_cache::{Identity, Reason, Save, Saved, TierKind};

#[test]
fn lines_go_to_the_callback_and_say_what_other_software_would_delete() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let said = {
        let lines = lines.clone();
        move || std::mem::take(&mut *lines.lock().unwrap())
    };
    kv_cache::set_log(Some(Box::new(move |line| lines.lock().unwrap().push(line.to_owned()))));
    let (_folder, path) = folder();
    let cache = open(&all_tiers(&path));
    let save = |quant, n, tier| {
        let identity = Identity { quant, ..IDENTITY };
        let tokens = tokens(n, 8);
        cache.save(Save::new(&identity, &tokens, b"state").reason(Reason::Evict).tier(tier)).unwrap()
    };
    assert_eq!(save(29, 0, TierKind::Disk), Saved::Stored);
    assert_eq!(save(255, 0, TierKind::Ram), Saved::Stored);
    assert_eq!(said(), [""; 0], "numbers that are known, and rows that nobody else can open");
    assert_eq!(save(30, 0, TierKind::Disk), Saved::Stored);
    let warned = said();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("quantisation 30") && warned[0].contains("0 to 29"), "{warned:?}");
    assert_eq!(save(31, 1, TierKind::RamFile), Saved::Stored);
    assert_eq!(said(), [""; 0], "once for each cache");
    // They are rows like any other here.
    let identity = Identity { quant: 30, ..IDENTITY };
    assert!(cache.lookup(&kv_cache::Query::new(&identity, &tokens(0, 8))).unwrap().is_some());
    // Of a directory with what is not this version's, once when it is opened.
    let (_other, other) = folder();
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("mine.kvc"), "mine").unwrap();
    said();
    drop(open(&disk(&other, 1 << 20)));
    let left = said();
    assert!(
        left.len() == 1
            && left[0]
                .ends_with("left alone: 0 rows of a later version, 0 of another descriptor, 1 files named like no row"),
        "{left:?}"
    );

    // A callback that panics is the consumer's trouble, and ends nothing.
    kv_cache::set_log(Some(Box::new(|_| panic!("on purpose"))));
    std::fs::write(row_path(&path.join("disk"), &tokens(9, 8)), "no row").unwrap();
    cache.gc().unwrap();
    assert_eq!(cache.stats().foreign_files, 1);
    kv_cache::set_log(None);
    assert!(cache.flush(Duration::from_secs(20)));
}
