//! Tiers: budgets, order of use, what a handle keeps, directories and their locks, one tier's trouble being its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use kv_cache::{Cache, Config, ErrorKind, Options, Pressure, Sample, Saved, TierKind};

/// What the tier `ram` counts for a row besides its payload.
const OVERHEAD: u64 = 512;

#[test]
fn the_budget_evicts_what_was_used_least_recently() {
    let cache = open(&ram(3 * (1000 + OVERHEAD)));
    for n in 0..3 {
        assert_eq!(save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap(), Saved::Stored);
    }
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 1000));
    save(&cache, &tokens(3, 8), &payload(3, 1000)).unwrap();
    let there: Vec<bool> = (0..4).map(|n| get(&cache, &tokens(n, 8)).is_some()).collect();
    assert_eq!(there, [true, false, true, true], "1 was used least recently");
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.evicted_bytes), (1, 1000 + OVERHEAD));
    assert_eq!((stats.tiers[0].rows, stats.tiers[0].bytes), (3, 3 * (1000 + OVERHEAD)));
}

#[test]
fn a_row_as_large_as_the_budget_fits_and_one_byte_more_is_refused() {
    let (_folder, path) = folder();
    for config in [ram(5000), disk(&path, 5000)] {
        let cache = open(&config);
        save(&cache, &tokens(0, 8), &payload(0, 100)).unwrap();
        let overhead = cache.stats().tiers[0].bytes - 100;
        let error = save(&cache, &tokens(1, 8), &payload(1, (5001 - overhead) as usize)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert!(error.to_string().contains("larger than the budget"), "{error}");
        assert!(get(&cache, &tokens(0, 8)).is_some(), "nothing was evicted for what cannot fit");
        save(&cache, &tokens(1, 8), &payload(1, (5000 - overhead) as usize)).unwrap();
        assert!(get(&cache, &tokens(0, 8)).is_none() && get(&cache, &tokens(1, 8)).is_some());
    }
}

#[test]
fn a_hit_keeps_its_row() {
    let (_folder, path) = folder();
    for config in [ram(2 * (1000 + OVERHEAD)), disk(&path, 3000)] {
        let cache = open(&config);
        save(&cache, &tokens(0, 8), &payload(0, 1000)).unwrap();
        let hit = lookup(&cache, &tokens(0, 8)).unwrap();
        for n in 1..5 {
            save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap();
        }
        assert_eq!(cache.evict(&hit.key()), 0, "it is in use");
        assert_eq!(load(&hit).unwrap(), payload(0, 1000));
        let other = lookup(&cache, &tokens(4, 8)).unwrap();
        let error = save(&cache, &tokens(9, 8), &payload(9, 1000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        let view = hit.view().unwrap();
        drop(hit);
        assert_eq!(cache.evict(&IDENTITY.key(&tokens(0, 8))), 0, "its view uses it");
        assert_eq!(&*view, payload(0, 1000));
        drop((view, other));
        save(&cache, &tokens(9, 8), &payload(9, 1000)).unwrap();
        assert!(get(&cache, &tokens(0, 8)).is_none(), "it is used no more");
    }
}

#[test]
fn a_view_is_the_payload_with_and_without_the_lock() {
    let (_folder, path) = folder();
    let shared = disk(&path, 1 << 20) + "exclusive = false\n";
    for config in [disk(&path, 1 << 20), shared, ram(1 << 20)] {
        let cache = open(&config);
        save(&cache, &tokens(0, 8), &payload(0, 300_000)).unwrap();
        assert_eq!(&*lookup(&cache, &tokens(0, 8)).unwrap().view().unwrap(), payload(0, 300_000));
    }
}

#[test]
fn a_row_is_loaded_into_memory_that_was_never_written() {
    let (_folder, path) = folder();
    // More than is read at a time.
    for config in [disk(&path, 1 << 20), ram(1 << 20)] {
        let cache = open(&config);
        save(&cache, &tokens(0, 8), &payload(0, 600_000)).unwrap();
        let hit = lookup(&cache, &tokens(0, 8)).unwrap();
        let mut buffer = Box::new_uninit_slice(600_000);
        assert!(hit.load_into_uninit(&mut buffer).unwrap() == payload(0, 600_000));
        assert_eq!(hit.load_into_uninit(&mut buffer[1..]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn tiers_are_asked_in_order_and_a_row_stays_where_it_was_saved() {
    let (_folder, path) = folder();
    let cache = open(&all_tiers(&path));
    let t = tokens(0, 8);
    for tier in [TierKind::Disk, TierKind::RamFile, TierKind::Ram] {
        assert_eq!(save_to(&cache, tier, &t, &payload(0, 100)).unwrap(), Saved::Stored);
        assert_eq!(lookup(&cache, &t).unwrap().tier(), tier, "the faster tier is asked first");
    }
    assert_eq!(cache.stats().tiers.iter().map(|tier| tier.rows).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(cache.evict_bytes(TierKind::Ram, 1), 100 + OVERHEAD);
    assert_eq!(lookup(&cache, &t).unwrap().tier(), TierKind::RamFile);
    assert_eq!(save(&cache, &tokens(1, 8), &payload(1, 9)).unwrap(), Saved::Stored);
    assert_eq!(lookup(&cache, &tokens(1, 8)).unwrap().tier(), TierKind::Disk, "the last tier is the default");
    assert_eq!(cache.evict(&IDENTITY.key(&t)), 2);
    assert!(lookup(&cache, &t).is_none());
}

#[test]
fn rows_and_their_order_survive_a_restart() {
    let (_folder, path) = folder();
    {
        let cache = open(&disk(&path, 1 << 20));
        for n in 0..4 {
            save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap();
        }
        assert!(get(&cache, &tokens(0, 8)).is_some());
    }
    let cache = open(&disk(&path, 1 << 20));
    let used = cache.stats().tiers[0].bytes;
    assert_eq!(cache.stats().tiers[0].rows, 4);
    drop(cache);
    let cache = open(&disk(&path, used - 1));
    let there: Vec<bool> = (0..4).map(|n| get(&cache, &tokens(n, 8)).is_some()).collect();
    assert_eq!(there, [true, false, true, true], "0 was used after all of them were saved");
    assert_eq!(names(&path).len(), 3);
}

#[test]
fn a_directory_belongs_to_one_cache() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 1000));
    let error = Cache::open(Config::parse(&disk(&path, 1000)).unwrap()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let expected = format!("belongs to another cache, of process {}", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    // Also while a handle is all that is left of it.
    save(&cache, &tokens(0, 8), b"x").unwrap();
    let hit = lookup(&cache, &tokens(0, 8)).unwrap();
    drop(cache);
    assert!(Cache::open(Config::parse(&disk(&path, 1000)).unwrap()).is_err());
    drop(hit);
    open(&disk(&path, 1000));
}

#[test]
fn caches_that_share_a_directory_keep_out_the_one_that_wants_it_alone() {
    let (_folder, path) = folder();
    let shared = disk(&path, 10_000) + "exclusive = false\n";
    let (one, other) = (open(&shared), open(&shared));
    save(&one, &tokens(0, 8), b"x").unwrap();
    let busy = |result: kv_cache::Result<()>| {
        let error = result.unwrap_err();
        (error.kind() == ErrorKind::Busy).then(|| error.to_string()).unwrap()
    };
    let alone = || Cache::open(Config::parse(&disk(&path, 1)).unwrap()).map(drop);
    assert!(busy(alone()).contains("caches that share it"));
    assert!(
        busy(kv_cache::tool::gc(&path, kv_cache::tool::GcOptions { budget: Some(0), quick: false }).map(drop))
            .contains("caches that share it")
    );
    assert_eq!(get(&one, &tokens(0, 8)).unwrap(), b"x", "nothing was evicted");
    drop(one);
    busy(alone());
    drop(other);
    let exclusive = open(&disk(&path, 10_000));
    let said = busy(Cache::open(Config::parse(&shared).unwrap()).map(drop));
    assert!(said.contains(&format!("of process {}", std::process::id())), "{said}");
    drop(exclusive);
    open(&shared);
}

#[test]
fn a_save_that_cannot_fit_evicts_nothing() {
    let cache = open(&ram(3 * (1000 + OVERHEAD)));
    for n in 0..3 {
        save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap();
    }
    let hit = lookup(&cache, &tokens(0, 8)).unwrap();
    let two = 2 * (1000 + OVERHEAD) - OVERHEAD;
    let error = save(&cache, &tokens(9, 8), &payload(9, two as usize + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("cannot be evicted"), "{error}");
    assert_eq!((cache.stats().tiers[0].rows, cache.stats().evictions), (3, 0));
    save(&cache, &tokens(9, 8), &payload(9, two as usize)).unwrap();
    assert_eq!((cache.stats().tiers[0].rows, cache.stats().evictions), (2, 2), "as much as the others leave fits");
    assert_eq!(load(&hit).unwrap(), payload(0, 1000));
}

#[test]
fn a_directory_that_cannot_be_used_is_no_other_tiers_trouble() {
    let (_folder, path) = folder();
    std::fs::write(&path, "a file where the directory should be").unwrap();
    let config = format!("{}[ram]\nbudget = 100000\n", disk(&path, 100_000));
    let cache = open(&config);
    let stats = cache.stats();
    assert_eq!((stats.tiers_failed, stats.tiers.len(), stats.tiers[0].tier), (1, 1, TierKind::Ram));
    let error = save(&cache, &tokens(0, 8), b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("tier Disk could not be used when the cache was opened"), "{error}");
    save_to(&cache, TierKind::Ram, &tokens(0, 8), b"in memory").unwrap();
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), b"in memory");
    let error = Cache::open(Config::parse(&disk(&path, 1000)).unwrap()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "with no tier left there is no cache: {error}");
}

#[test]
fn what_is_in_a_row_is_for_its_owner_alone() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 10_000));
    save(&cache, &tokens(0, 8), b"x").unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&row_path(&path, &tokens(0, 8)))), (0o700, 0o600));
}

#[test]
fn a_directory_that_is_gone_is_no_other_tiers_trouble() {
    let (_folder, path) = folder();
    let cache = open(&format!("{}[ram]\nbudget = 100000\n", disk(&path, 100_000)));
    save(&cache, &tokens(0, 8), b"on disk").unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let hit = lookup(&cache, &tokens(0, 8)).unwrap();
    let error = load(&hit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Miss);
    assert!(error.to_string().contains("its file is gone"), "{error}");
    drop(hit);
    assert!(lookup(&cache, &tokens(0, 8)).is_none());
    assert_eq!(save(&cache, &tokens(1, 8), b"nowhere").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(cache.stats().tiers[1].reserved, 0, "the reservation is released");
    assert_eq!(save_to(&cache, TierKind::Ram, &tokens(1, 8), b"in memory").unwrap(), Saved::Stored);
    assert_eq!(get(&cache, &tokens(1, 8)).unwrap(), b"in memory");
}

/// A real one: a tmpfs of 256 KiB in a mount namespace of a child process.
/// Past what the tests' runner keeps of a test that passes.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: a full disk: {why}");
}

#[test]
fn a_full_disk_refuses_and_goes_on() {
    if std::env::var_os("KV_CACHE_TEST_SMALL_DISK").is_some() {
        return on_a_small_disk();
    }
    let (_folder, path) = folder();
    std::fs::create_dir_all(&path).unwrap();
    let script = "mount -t tmpfs -o size=256k none \"$KV_CACHE_TEST_SMALL_DISK\" && exec \"$@\"";
    let child = std::process::Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_refuses_and_goes_on", "--nocapture"])
        .env("KV_CACHE_TEST_SMALL_DISK", &path)
        .output();
    let child = match child {
        Ok(child) => child,
        Err(error) => return skipped(&format!("unshare cannot be run: {error}")),
    };
    let said = String::from_utf8_lossy(&child.stderr);
    if said.contains("unshare:") || said.contains("mount:") {
        return skipped(&format!("no mount namespace here: {said}"));
    }
    assert!(child.status.success(), "{}{said}", String::from_utf8_lossy(&child.stdout));
}

fn on_a_small_disk() {
    let path = std::path::PathBuf::from(std::env::var_os("KV_CACHE_TEST_SMALL_DISK").unwrap());
    let cache = open(&disk(&path, 1 << 30));
    save(&cache, &tokens(0, 8), &payload(0, 100_000)).unwrap();
    // One that could not fit whatever was evicted evicts nothing.
    let error = save(&cache, &tokens(1, 8), &payload(1, 300_000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!(names(&path).len(), 1, "no temporary file is left: {:?}", names(&path));
    let stats = cache.stats();
    assert_eq!((stats.saves_failed, stats.tiers[0].reserved, stats.evictions), (1, 0, 0));
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 100_000));
    assert_eq!(save(&cache, &tokens(2, 8), &payload(2, 50_000)).unwrap(), Saved::Stored);
    // The oldest goes, and no more than has to.
    assert_eq!(save(&cache, &tokens(3, 8), &payload(3, 150_000)).unwrap(), Saved::Stored);
    let there: Vec<bool> = [0, 2, 3].map(|n| get(&cache, &tokens(n, 8)).is_some()).into();
    assert_eq!(there, [false, true, true]);
    assert_eq!((cache.stats().evictions, cache.stats().saves_failed, cache.stats().tiers[0].reserved), (1, 1, 0));
    // What is in use stays.
    let hits = [2, 3].map(|n| lookup(&cache, &tokens(n, 8)).unwrap());
    assert_eq!(save(&cache, &tokens(4, 8), &payload(4, 150_000)).unwrap_err().kind(), ErrorKind::Full);
    drop(hits);
    assert_eq!(save(&cache, &tokens(4, 8), &payload(4, 150_000)).unwrap(), Saved::Stored);
}

/// In a child process, which may write no file of more than 50 KiB and has the default for the signal of one that does.
#[test]
fn a_bound_on_files_is_an_error_and_no_signal() {
    let Some(path) = std::env::var_os("KV_CACHE_TEST_SMALL_FILES") else {
        let (_folder, path) = folder();
        let child = std::process::Command::new("bash")
            .args(["-c", "ulimit -f 50 && exec \"$@\"", "bash"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "a_bound_on_files_is_an_error_and_no_signal", "--nocapture"])
            .env("KV_CACHE_TEST_SMALL_FILES", &path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{}: {}{said}", child.status, String::from_utf8_lossy(&child.stdout));
        return;
    };
    let path = std::path::PathBuf::from(path);
    let cache = open(&disk(&path, 1 << 30));
    let error = save(&cache, &tokens(0, 8), &payload(0, 100_000)).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("File too large"), "{error}");
    assert_eq!(names(&path).len(), 0, "no temporary file is left: {:?}", names(&path));
    assert_eq!(save(&cache, &tokens(1, 8), &payload(1, 10_000)).unwrap(), Saved::Stored);
}

#[test]
fn a_clock_that_goes_back_changes_no_order_and_loses_no_row() {
    let (_folder, path) = folder();
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(2_000_000_000));
    let options = Options { clock: Some(clock.clone()), ..Options::default() };
    let cache = open_with(&disk(&path, 1 << 20), options);
    for n in 0..3 {
        save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap();
        *clock.wall.lock().unwrap() -= Duration::from_secs(500_000_000);
    }
    let one = cache.stats().tiers[0].bytes / 3;
    assert!(cache.evict_bytes(TierKind::Disk, 1) >= one);
    let there: Vec<bool> = (0..3).map(|n| get(&cache, &tokens(n, 8)).is_some()).collect();
    assert_eq!(there, [false, true, true], "the first saved is the oldest, whatever its time");
    drop(cache);
    assert_eq!(open(&disk(&path, 1 << 20)).stats().tiers[0].rows, 2);
}

struct Source(std::sync::Mutex<Vec<u64>>);

impl Pressure for Source {
    fn sample(&self) -> Option<Sample> {
        self.0.lock().unwrap().pop().map(|used| Sample { used, total: 10_000 })
    }
}

#[test]
fn memory_pressure_evicts_from_memory_tiers_the_oldest_first() {
    let (_folder, path) = folder();
    let cache = open(&all_tiers(&path));
    for n in 0..3 {
        save_to(&cache, TierKind::Ram, &tokens(n, 8), &payload(n, 488)).unwrap();
    }
    save_to(&cache, TierKind::RamFile, &tokens(3, 8), &payload(3, 488)).unwrap();
    save_to(&cache, TierKind::Disk, &tokens(4, 8), &payload(4, 488)).unwrap();
    let there = || (0..5).map(|n| lookup(&cache, &tokens(n, 8)).is_some()).collect::<Vec<_>>();
    assert_eq!(cache.relieve(Sample { used: 8499, total: 10_000 }), 0, "below the high mark");
    // 1,001 bytes too much: a row of 1,000 is not enough.
    assert_eq!(cache.relieve(Sample { used: 8500, total: 10_000 }), 2000);
    assert_eq!(there(), [false, false, true, true, true]);
    assert!(cache.relieve(Sample { used: 10_000, total: 10_000 }) > 1000);
    assert_eq!(there(), [false, false, false, false, true], "ram, then ram_file, never disk");
    assert_eq!(cache.stats().pressure_evictions, 4);
}

#[test]
fn a_pressure_source_of_the_callers_is_asked() {
    let source = Arc::new(Source(std::sync::Mutex::new(vec![10_000])));
    let options = Options { pressure: Some(source), ..Options::default() };
    let cache = open_with(&(ram(100_000) + "[pressure]\ninterval_ms = 20\n"), options);
    save(&cache, &tokens(0, 8), &payload(0, 100)).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while cache.stats().pressure_evictions == 0 {
        assert!(std::time::Instant::now() < deadline, "the source was not asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(lookup(&cache, &tokens(0, 8)).is_none());
}

#[test]
fn gc_brings_a_directory_in_order() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 100_000));
    for n in 0..3 {
        save(&cache, &tokens(n, 8), &payload(n, 100)).unwrap();
    }
    let copy = std::fs::read(row_path(&path, &tokens(0, 8))).unwrap();
    assert_eq!(cache.evict(&IDENTITY.key(&tokens(0, 8))), 1);
    std::fs::write(row_path(&path, &tokens(0, 8)), copy).unwrap();
    std::fs::remove_file(row_path(&path, &tokens(1, 8))).unwrap();
    std::fs::write(path.join(format!("{}.kvc.tmp.1.1", IDENTITY.key(&tokens(7, 8)))), "half").unwrap();
    std::fs::write(row_path(&path, &tokens(8, 8)), "not a row").unwrap();
    std::fs::write(path.join("notes.txt"), "of somebody").unwrap();
    let gc = cache.gc().unwrap();
    assert_eq!((gc.adopted, gc.rows_lost, gc.temporaries, gc.set_aside_removed), (1, 1, 1, 1), "{gc:?}");
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 100));
    assert!(lookup(&cache, &tokens(1, 8)).is_none());
    assert!(names(&path).contains(&"notes.txt".to_owned()), "what is not ours is left alone");
    assert_eq!(cache.stats().foreign_files, 1);
    assert_eq!(cache.gc().unwrap(), kv_cache::Gc::default(), "all is in order");
}

#[test]
fn after_shutdown_the_cache_is_closed_and_its_hits_are_good() {
    let cache = open(&ram(100_000));
    save(&cache, &tokens(0, 8), b"x").unwrap();
    let hit = lookup(&cache, &tokens(0, 8)).unwrap();
    assert_eq!(cache.shutdown(Duration::from_secs(1)), 0);
    let query = kv_cache::Query::new(&IDENTITY, &[1]);
    assert_eq!(cache.lookup(&query).err().unwrap().kind(), ErrorKind::Closed);
    assert_eq!(save(&cache, &tokens(1, 8), b"y").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(load(&hit).unwrap(), b"x");
}

/// As it is after a crash: nobody had the time to note anything.
#[test]
fn the_order_of_use_survives_a_crash() {
    const CHILD: &str = "KV_CACHE_TEST_CRASH";
    if let Some(path) = std::env::var_os(CHILD) {
        let path = std::path::PathBuf::from(path);
        let cache = open(&disk(&path, 1 << 20).replace("[policy]\n", "[policy]\nnote_uses_ms = 20\n"));
        for _ in 0..50 {
            assert!(get(&cache, &tokens(0, 8)).is_some());
        }
        let changed = |n| row_path(&path, &tokens(n, 8)).metadata().unwrap().modified().unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while changed(0) <= changed(3) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a signal to this process; nothing is asked of memory.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let (_folder, path) = folder();
    {
        let cache = open(&disk(&path, 1 << 20));
        for n in 0..4 {
            save(&cache, &tokens(n, 8), &payload(n, 1000)).unwrap();
        }
    }
    for n in 0..4 {
        let file = std::fs::File::options().write(true).open(row_path(&path, &tokens(n, 8))).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(n))).unwrap();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_order_of_use_survives_a_crash", "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.status.signal(), Some(libc::SIGKILL), "{}", String::from_utf8_lossy(&child.stderr));
    let used: u64 = (0..4).map(|n| row_path(&path, &tokens(n, 8)).metadata().unwrap().len()).sum();
    let cache = open(&disk(&path, used - 1));
    let there: Vec<bool> = (0..4).map(|n| get(&cache, &tokens(n, 8)).is_some()).collect();
    assert_eq!(there, [true, false, true, true], "0 was used last of all");
}
