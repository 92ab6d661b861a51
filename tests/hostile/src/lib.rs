//! What the tests with hostile guests share: the guests under schemes of their own, a healthy store that goes on beside an
//! attack, and the measure of what an attack leaves behind.
//!
//! The library is linked in, because its errors say there what they say in the log; that it is the same through the C ABI is
//! tested elsewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

pub mod bombs;
pub mod bytes;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_tests::scratch::in_memory;
use kv_store_tests::{dist, root, test_components};
use kv_store_wasm::{Put, Store, metrics};

/// The texts of the guests that are written as text.
pub fn texts() -> PathBuf {
    root().join("tests/guests/hostile")
}

/// A guest that was built out of its text.
pub fn component(name: &str) -> PathBuf {
    let path = test_components().join("hostile").join(format!("{name}.wasm"));
    assert!(path.exists(), "{} is missing: run `cargo xtask guests`, which builds it", path.display());
    path
}

/// The names of the guests that are written as text: each is a scheme.
pub fn names() -> Vec<String> {
    let names = std::fs::read_dir(texts()).expect("the guests are there").flatten();
    let names = names.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".wat").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// What every hostile guest has unless its test says otherwise. Its calls fail, each on purpose, so no breaker opens.
pub const LIMITS: &str = "limits = { memory_bytes = 33554432, payload_bytes = 67108864, breaker_failures = 0 }";

/// The same for the guest that is told what to answer and the one that keeps a handle: another instance would not know, and what the
/// host does beside the calls of a test could be given one. Nor is there a look into layout 1 by another thread, which would be answered as
/// told too.
const TOLD: &str = "layout1 = 'off'\nlimits = { memory_bytes = 33554432, payload_bytes = 67108864, breaker_failures = 0, instances = 1 }";

/// The same for those that never end.
pub const ENDLESS: &str = "limits = { deadline_ms = 250, memory_bytes = 33554432, breaker_failures = 0 }";

/// A scheme in a config file.
pub fn table(scheme: &str, component: &Path, rest: &str) -> String {
    format!("[backend.{scheme}]\ncomponent = '{}'\n{rest}\n", component.display())
}

/// Name to the library a config of all guests and of what `more` adds, once, before anything is opened.
pub fn prepare(more: &str) {
    static PREPARED: OnceLock<tempfile::TempDir> = OnceLock::new();
    PREPARED.get_or_init(|| {
        // The allocator gives back what is free at the end of a thread's heap only above a threshold, which it raises up to the 64 MiB of
        // such a heap after large pieces were freed, and `malloc_trim` leaves it there.
        // SAFETY: has no condition.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10) };
        let folder = tempfile::tempdir().expect("a temporary directory");
        let guests = names().into_iter().map(|name| {
            let endless = ["loop-", "sleep-", "memory-growing"].iter().any(|start| name.starts_with(start));
            let limits = match name.as_str() {
                "parrot" | "anothers-handle" => TOLD,
                _ if endless => ENDLESS,
                _ => LIMITS,
            };
            table(&name, &component(&name), limits)
        });
        let healthy = table("local-fs", &dist().join("components/local-fs.wasm"), "options.durability = 'rename'");
        let memory = table("memory", &dist().join("components/memory.wasm"), "");
        let config = folder.path().join("config.toml");
        let helper = format!("[compile]\nhelper = '{}'\n", dist().join("libexec/kv-store-compile").display());
        let tables = [helper].into_iter().chain(guests).chain([healthy, memory, more.to_owned()]);
        std::fs::write(&config, tables.collect::<String>()).expect("it is ours");
        // SAFETY: nobody reads the environment before this is done: tests open stores only after it.
        unsafe {
            std::env::set_var("KV_STORE_WASM_CONFIG", config);
            std::env::set_var("KV_STORE_WASM_CACHE", folder.path().join("aot"));
        }
        folder
    });
}

/// What the process has at a moment that it may have no more of when an attack is over.
#[derive(Debug)]
pub struct Level {
    /// What its descriptors lead to, in order.
    pub descriptors: Vec<String>,
    pub payload_bytes: u64,
    pub connections: u64,
    /// Resident memory in bytes, after what is free was given back.
    pub resident: u64,
}

impl Level {
    pub fn now() -> Self {
        let numbers = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
        let mut descriptors: Vec<String> =
            numbers.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string())).collect();
        // The one that reads this list is there too, and is gone again.
        // Code stays loaded: a file for each component that was opened.
        descriptors.retain(|leads_to| !leads_to.starts_with("/proc/") && !leads_to.ends_with(".cwasm"));
        descriptors.sort();
        // SAFETY: has no condition.
        unsafe { libc::malloc_trim(0) };
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("procfs");
        let metrics = metrics().expect("the process has counters");
        let (payload_bytes, connections) = (metrics.payload_bytes, metrics.connections);
        Level { descriptors, payload_bytes, connections, resident: pages * 4096 }
    }

    /// Why the process has more now than it had then; none if it does not. Sockets, and the directories that the host keeps for
    /// a moment, are closed on another thread, so it is given time.
    pub fn left(&self, resident_more: u64) -> Option<String> {
        let begun = Instant::now();
        loop {
            let now = Level::now();
            // It may have less: what others left idle is closed meanwhile.
            let no_more = within(&now.descriptors, &self.descriptors)
                && now.payload_bytes <= self.payload_bytes
                && now.connections <= self.connections
                && now.resident <= self.resident + resident_more;
            if no_more {
                return None;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                return Some(format!("before: {self:?}\nafter:  {now:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a sorted list holds nothing that the other one does not hold as often.
fn within(some: &[String], all: &[String]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

/// The most resident memory that something took beyond what there was before, in bytes. What is measured within it takes the place of what
/// came before that.
pub fn peak_of(attack: impl FnOnce()) -> u64 {
    let status = |field: &str| {
        let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("the kernel tells it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    };
    // The kernel's word for: measure the peak from here on.
    std::fs::write("/proc/self/clear_refs", "5").expect("it is ours");
    let before = status("VmRSS:");
    attack();
    status("VmHWM:").saturating_sub(before)
}

/// The processor time that this thread has used.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A healthy store on files.
pub struct Neighbour {
    store: Store,
    _folder: tempfile::TempDir,
}

/// How long its operations took.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub fn extend(&mut self, others: Times) {
        self.0.extend(others.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// 99 of 100 were no slower.
    pub fn p99(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted.get(sorted.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default()
    }
}

impl Neighbour {
    pub fn open() -> Self {
        let folder = in_memory();
        let store = Store::open(&format!("local-fs://{}", folder.path().display())).expect("a healthy store opens");
        Neighbour { store, _folder: folder }
    }

    /// Save and restore until it is told to stop, and a hundred times in any case.
    fn work(&self, stop: &AtomicBool) -> Times {
        let mut times = Vec::new();
        let mut data = vec![0; 16 << 10];
        while times.len() < 100 || !stop.load(SeqCst) {
            // By its first byte a chunk goes into one of 16 directories.
            let n = (times.len() as u64 % 500 * 31).to_le_bytes();
            data[..8].copy_from_slice(&n);
            let begun = Instant::now();
            let put = self.store.put_chunk(&[&n[..], b"key"].concat(), &data);
            assert!(matches!(put, Ok(Put::New | Put::Existed)), "{put:?}");
            self.store.put_manifest("last", &n).expect("a healthy store publishes");
            let got = self.store.get_chunk(&[&n[..], b"key"].concat()).expect("a healthy store answers");
            assert_eq!(got.as_deref(), Some(&*data), "a healthy store has what was put");
            times.push(begun.elapsed());
        }
        Times(times)
    }

    /// What it takes while nobody attacks.
    pub fn alone(&self) -> Times {
        self.work(&AtomicBool::new(true))
    }

    /// What it takes while something else is done.
    pub fn beside<T>(&self, attack: impl FnOnce() -> T) -> (T, Times) {
        /// So that a failed attack does not leave it working for ever.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| self.work(&stop));
            let outcome = {
                let _stop = Stop(&stop);
                attack()
            };
            (outcome, working.join().expect("the healthy store goes on"))
        })
    }
}
