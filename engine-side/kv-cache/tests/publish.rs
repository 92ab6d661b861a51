//! The publish protocol: killed, failed and overtaken at each of its steps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use common::*;
use kv_cache::{ErrorKind, Options, Saved, Step};

const CHILD: &str = "KV_CACHE_TEST_DIE_AT";

/// The child: save one row whole, then die in the middle of the next, by SIGKILL.
fn die(path: &Path, at: Step) -> ! {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let hook = move |step| {
        if step == at && count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1 {
            // SAFETY: a signal to this process; nothing is asked of memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        Ok(())
    };
    let cache = open_with(&disk(path, 1 << 20), hooked(hook));
    save(&cache, &tokens(0, 8), &payload(0, 5000)).unwrap();
    let _ = save(&cache, &tokens(1, 8), &payload(1, 600_000));
    std::process::exit(3);
}

#[test]
fn killed_after_each_step() {
    if let Ok(step) = std::env::var(CHILD) {
        let (index, path) = step.split_once(' ').unwrap();
        die(Path::new(path), Step::ALL[index.parse::<usize>().unwrap()]);
    }
    for (index, step) in Step::ALL.into_iter().enumerate() {
        let (_folder, path) = folder();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_after_each_step", "--nocapture"])
            .env(CHILD, format!("{index} {}", path.display()))
            .output()
            .unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.status.signal(), Some(libc::SIGKILL), "{step:?}: {child:?}");

        let temporaries = names(&path).iter().filter(|name| name.contains(".tmp.")).count();
        let linked = row_path(&path, &tokens(1, 8)).exists();
        let (expected_temporaries, expected_linked) = match step {
            Step::Reserved => (0, false),
            Step::Created | Step::Written | Step::Synced | Step::Checked => (1, false),
            Step::Linked => (1, true),
            Step::Published | Step::Durable => (0, true),
        };
        assert_eq!((temporaries, linked), (expected_temporaries, expected_linked), "{step:?}");

        let cache = open(&disk(&path, 1 << 20));
        assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 5000), "{step:?}");
        assert_eq!(get(&cache, &tokens(1, 8)), linked.then(|| payload(1, 600_000)), "{step:?}: whole or not at all");
        let stats = cache.stats();
        assert_eq!((stats.temporaries_reaped, stats.corrupt_files), (temporaries as u64, 0), "{step:?}");
        assert!(names(&path).iter().all(|name| !name.contains(".tmp.")), "{step:?}");
        // The one that was killed is saved as if nothing had been.
        let again = save(&cache, &tokens(1, 8), &payload(1, 600_000)).unwrap();
        assert_eq!(again, if linked { Saved::Known } else { Saved::Stored }, "{step:?}");
        assert_eq!(get(&cache, &tokens(1, 8)).unwrap(), payload(1, 600_000));
    }
}

#[test]
fn failed_at_each_step() {
    for at in Step::ALL {
        let (_folder, path) = folder();
        let failing = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let hook = {
            let failing = failing.clone();
            move |step| match step == at && failing.load(std::sync::atomic::Ordering::SeqCst) {
                true => Err(io::Error::from_raw_os_error(libc::EDQUOT)),
                false => Ok(()),
            }
        };
        let cache = open_with(&disk(&path, 1 << 20), hooked(hook));
        let error = save(&cache, &tokens(0, 8), &payload(0, 5000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{at:?}: {error}");
        assert!(names(&path).iter().all(|name| !name.contains(".tmp.")), "{at:?}");
        let stats = cache.stats();
        assert_eq!((stats.tiers[0].reserved, stats.saves_failed), (0, 1), "{at:?}: the reservation is released");
        failing.store(false, std::sync::atomic::Ordering::SeqCst);
        let again = save(&cache, &tokens(0, 8), &payload(0, 5000)).unwrap();
        let there = matches!(at, Step::Published | Step::Durable);
        assert_eq!(again, if there { Saved::Known } else { Saved::Stored }, "{at:?}");
        // A file without a row, left between 4 and 5, is adopted.
        assert_eq!(cache.stats().adopted, u64::from(at == Step::Linked), "{at:?}");
        assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 5000), "{at:?}");
    }
}

/// Rows of another cache, to be put in the way of a save.
fn foreign_row(tokens: &[u32], payload: &[u8]) -> Vec<u8> {
    let (_folder, path) = folder();
    save(&open(&disk(&path, 1 << 24)), tokens, payload).unwrap();
    std::fs::read(row_path(&path, tokens)).unwrap()
}

/// A save that finds `there` in its place just before it links.
fn save_onto(there: &[u8]) -> (tempfile::TempDir, PathBuf, kv_cache::Cache, Saved) {
    let (folder, path) = folder();
    let place = row_path(&path, &tokens(0, 8));
    let bytes = there.to_vec();
    let hook = move |step| match step {
        Step::Checked => std::fs::write(&place, &bytes),
        _ => Ok(()),
    };
    let cache = open_with(&disk(&path, 1 << 20), hooked(hook));
    let saved = save(&cache, &tokens(0, 8), &payload(0, 5000)).unwrap();
    (folder, path, cache, saved)
}

#[test]
fn a_good_row_in_the_place_is_adopted() {
    let there = foreign_row(&tokens(0, 8), &payload(0, 5000));
    let (_folder, path, cache, saved) = save_onto(&there);
    assert_eq!((saved, cache.stats().adopted), (Saved::Stored, 1));
    assert_eq!(std::fs::read(row_path(&path, &tokens(0, 8))).unwrap(), there, "it was not touched");
    assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 5000));
    assert_eq!(names(&path).len(), 1);
}

#[test]
fn a_damaged_payload_in_the_place_is_not_adopted() {
    let good = foreign_row(&tokens(0, 8), &payload(0, 5000));
    for damaged in [good.len() - 1, good.len() - 5000] {
        let mut there = good.clone();
        there[damaged] ^= 1;
        let (_folder, path, cache, saved) = save_onto(&there);
        let stats = cache.stats();
        assert_eq!((saved, stats.adopted, stats.corrupt_files), (Saved::Stored, 0, 1));
        assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 5000), "what STORED promised");
        assert!(path.join("set-aside").exists());
    }
}

#[test]
fn anything_else_in_the_place_is_replaced() {
    let good = foreign_row(&tokens(0, 8), &payload(0, 5000));
    let other_size = foreign_row(&tokens(0, 8), &payload(0, 4000));
    let other_row = foreign_row(&tokens(1, 8), &payload(1, 5000));
    let cases: [(&str, &[u8], bool); 5] = [
        ("empty", b"", true),
        ("garbage", b"not a row at all", true),
        ("cut short", &good[..good.len() - 1], true),
        ("another row", &other_row, true),
        ("of another size", &other_size, false),
    ];
    for (what, there, set_aside) in cases {
        let (_folder, path, cache, saved) = save_onto(there);
        assert_eq!((saved, cache.stats().adopted), (Saved::Stored, 0), "{what}");
        assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), payload(0, 5000), "{what}");
        let stats = cache.stats();
        let counted = stats.corrupt_files + stats.truncated_files + stats.foreign_files + stats.newer_files;
        assert_eq!((counted, path.join("set-aside").exists()), (u64::from(set_aside), set_aside), "{what}");
    }
}

/// A save that stops at a step, in a thread of its own.
struct Stopped {
    cache: kv_cache::Cache,
    clock: Arc<ManualClock>,
    path: PathBuf,
    go_on: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<kv_cache::Result<Saved>>,
    _folder: tempfile::TempDir,
}

fn stop_at(at: Step) -> Stopped {
    let (folder, path) = folder();
    let (go_on, gate) = mpsc::channel::<()>();
    let (reached, at_gate) = mpsc::channel();
    let gate = Mutex::new(Some(gate));
    let hook = move |step| {
        // Only the first save stops, and does not keep the lock meanwhile.
        let gate = if step == at { gate.lock().unwrap().take() } else { None };
        if let Some(gate) = gate {
            reached.send(()).unwrap();
            let _ = gate.recv();
        }
        Ok(())
    };
    let clock = Arc::new(ManualClock::default());
    let options = Options { clock: Some(clock.clone()), ..hooked(hook) };
    let cache = open_with(&disk(&path, 1 << 20).replace("[policy]", "[policy]\nreservation_ms = 1000"), options);
    let saving = cache.clone();
    let thread = std::thread::spawn(move || save(&saving, &tokens(0, 8), &payload(0, 5000)));
    at_gate.recv_timeout(Duration::from_secs(20)).unwrap();
    Stopped { cache, clock, path, go_on, thread, _folder: folder }
}

#[test]
fn a_reservation_whose_time_is_over_is_anothers_and_the_first_abandons() {
    for at in [Step::Reserved, Step::Created, Step::Written, Step::Synced] {
        let stopped = stop_at(at);
        stopped.clock.advance(Duration::from_millis(1000));
        assert_eq!(save(&stopped.cache, &tokens(0, 8), &payload(0, 5000)).unwrap(), Saved::Stored, "{at:?}");
        stopped.go_on.send(()).unwrap();
        assert_eq!(stopped.thread.join().unwrap().unwrap(), Saved::Known, "{at:?}");
        let stats = stopped.cache.stats();
        assert_eq!((stats.saves_abandoned, stats.tiers[0].rows, stats.tiers[0].reserved), (1, 1, 0), "{at:?}");
        assert_eq!(names(&stopped.path).len(), 1, "{at:?}: its temporary file is gone");
        assert_eq!(get(&stopped.cache, &tokens(0, 8)).unwrap(), payload(0, 5000));
    }
}

/// What happens between the link and the publication, on the cache itself.
fn meanwhile(between: impl Fn(&kv_cache::Cache, &ManualClock) + Send + Sync + 'static) -> (Saved, kv_cache::Cache) {
    let (folder, path) = folder();
    let clock = Arc::new(ManualClock::default());
    let cache: Arc<Mutex<Option<kv_cache::Cache>>> = Arc::default();
    let hook = {
        let (cache, clock) = (cache.clone(), clock.clone());
        move |step| {
            let first = if step == Step::Linked { cache.lock().unwrap().take() } else { None };
            if let Some(cache) = first {
                between(&cache, &clock);
            }
            Ok(())
        }
    };
    let options = Options { clock: Some(clock), ..hooked(hook) };
    let opened = open_with(&disk(&path, 1 << 20).replace("[policy]", "[policy]\nreservation_ms = 1000"), options);
    *cache.lock().unwrap() = Some(opened.clone());
    let saved = save(&opened, &tokens(0, 8), &payload(0, 5000)).unwrap();
    assert_eq!(get(&opened, &tokens(0, 8)).unwrap(), payload(0, 5000), "what was answered is so");
    assert_eq!((opened.stats().tiers[0].rows, opened.stats().tiers[0].reserved, names(&path).len()), (1, 0, 1));
    drop(folder);
    (saved, opened)
}

#[test]
fn a_row_that_is_linked_is_nobody_elses_until_it_is_published() {
    let (saved, cache) = meanwhile(|cache, _| {
        let gc = cache.gc().unwrap();
        assert_eq!((gc.adopted, gc.temporaries), (0, 0), "its writer is about to publish it");
        assert_eq!(cache.evict(&IDENTITY.key(&tokens(0, 8))), 0);
    });
    assert_eq!((saved, cache.stats().adopted, cache.stats().evictions), (Saved::Stored, 0, 0));
}

#[test]
fn a_writer_whose_reservation_ends_while_it_links_says_what_is_so() {
    // Another takes over, and its row stays.
    let (saved, cache) = meanwhile(|cache, clock| {
        clock.advance(Duration::from_millis(1000));
        assert_eq!(save(cache, &tokens(0, 8), &payload(0, 5000)).unwrap(), Saved::Stored);
    });
    assert_eq!((saved, cache.stats().adopted, cache.stats().saves_abandoned), (Saved::Known, 1, 1));
    // Or is evicted before the first looks again.
    let (saved, cache) = meanwhile(|cache, clock| {
        clock.advance(Duration::from_millis(1000));
        assert_eq!(save(cache, &tokens(0, 8), &payload(0, 5000)).unwrap(), Saved::Stored);
        assert_eq!(cache.evict(&IDENTITY.key(&tokens(0, 8))), 1);
    });
    assert_eq!((saved, cache.stats().evictions), (Saved::Stored, 1));
    // Or nobody does.
    let (saved, cache) = meanwhile(|_, clock| clock.advance(Duration::from_millis(1000)));
    assert_eq!((saved, cache.stats().adopted, cache.stats().saves_abandoned), (Saved::Stored, 1, 1));
}

#[test]
fn before_that_the_second_writer_waits_and_finds_the_row() {
    let stopped = stop_at(Step::Synced);
    stopped.clock.advance(Duration::from_millis(999));
    let second = {
        let cache = stopped.cache.clone();
        std::thread::spawn(move || save(&cache, &tokens(0, 8), &payload(0, 5000)))
    };
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.is_finished());
    stopped.go_on.send(()).unwrap();
    assert_eq!(stopped.thread.join().unwrap().unwrap(), Saved::Stored);
    assert_eq!(second.join().unwrap().unwrap(), Saved::Known);
}

#[test]
fn what_is_being_written_counts_against_the_budget() {
    const BUDGET: u64 = 1 << 20;
    let stopped = stop_at(Step::Synced);
    let cache = &stopped.cache;
    for n in 1..=10 {
        assert_eq!(save(cache, &tokens(n, 8), &payload(n, 100_000)).unwrap(), Saved::Stored);
    }
    let used = cache.stats().tiers[0].bytes;
    // As large as what the rows leave; but the one that is being written needs its place.
    let rest = (BUDGET - used) - (used / 10 - 100_000);
    assert_eq!(save(cache, &tokens(11, 8), &payload(11, rest as usize)).unwrap(), Saved::Stored);
    let tier = &cache.stats().tiers[0];
    assert_eq!((tier.rows, cache.stats().evictions), (10, 1));
    assert!(tier.reserved > 5000 && tier.bytes + tier.reserved <= BUDGET, "{tier:?}");
    stopped.go_on.send(()).unwrap();
    assert_eq!(stopped.thread.join().unwrap().unwrap(), Saved::Stored);
}

/// Processes that share a directory without its lock: each of their saves of one key ends well, and one file is there.
#[test]
fn processes_without_the_lock_agree_on_one_file() {
    const ROLE: &str = "KV_CACHE_TEST_SHARED";
    if let Some(path) = std::env::var_os(ROLE) {
        let cache = open(&(disk(Path::new(&path), 1 << 26) + "exclusive = false\n"));
        for n in 0..40 {
            // Known: another was so far ahead that this one found the row at its start.
            let saved = save(&cache, &tokens(n, 8), &payload(n, 20_000)).unwrap();
            assert!(matches!(saved, Saved::Stored | Saved::Known), "{saved:?}");
            assert_eq!(get(&cache, &tokens(n, 8)).unwrap(), payload(n, 20_000));
        }
        return println!("adopted {}", cache.stats().adopted);
    }
    let (_folder, path) = folder();
    let children: Vec<_> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "processes_without_the_lock_agree_on_one_file", "--nocapture"])
                .env(ROLE, &path)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut adopted = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let line = said.lines().find_map(|line| line.split_once("adopted ")).unwrap();
        adopted += line.1.parse::<u64>().unwrap();
    }
    assert!(adopted <= 80, "each file has one writer that did not adopt it");
    assert_eq!(names(&path).len(), 40);
    let cache = open(&disk(&path, 1 << 26));
    for n in 0..40 {
        assert_eq!(get(&cache, &tokens(n, 8)).unwrap(), payload(n, 20_000));
    }
}
