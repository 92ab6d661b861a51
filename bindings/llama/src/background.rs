//! Saves are copied while the server waits, and stored while it goes on.
//!
//! One thread stores them, in the order in which they were made, and removes the files of slots when the server is done with them. It
//! holds at most [`HELD_BYTES`] of states; a save that has no room is stored before it returns. A load of a name that waits here, or
//! is being stored, waits until it is stored. A program that ends waits for what is left.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::signals::with_signals_blocked;
use kv_platform::sync::{Condvar, Mutex, MutexGuard};

use crate::local::Local;
use crate::log;

/// States that wait. One is taken whatever its size, when none waits: its memory is there already.
const HELD_BYTES: usize = 1 << 30;
/// How long a program that ends waits for what is not stored yet.
const AT_EXIT: Duration = Duration::from_secs(30);

enum Work {
    /// A state that holds so many bytes, the manifest that it is published by, and what stores it.
    Save(usize, String, Box<dyn FnOnce() + Send>),
    /// The server reads the file of a load.
    Remove(Local),
    /// Something that holds so many bytes, and may be left out.
    Other(usize, Box<dyn FnOnce() + Send>),
}

impl Work {
    fn bytes(&self) -> usize {
        match self {
            Work::Save(bytes, ..) | Work::Other(bytes, _) => *bytes,
            Work::Remove(_) => 0,
        }
    }

    fn manifest(&self) -> Option<&str> {
        match self {
            Work::Save(_, manifest, _) => Some(manifest),
            Work::Remove(_) | Work::Other(..) => None,
        }
    }

    fn run(self) {
        match self {
            Work::Remove(local) => {
                local.wait();
                local.remove();
            }
            Work::Save(.., run) | Work::Other(_, run) => run(),
        }
    }
}

struct Queue {
    waiting: VecDeque<Work>,
    /// What the thread is at: its bytes, and the manifest that it will publish.
    running: Option<(usize, Option<String>)>,
    started: bool,
}

impl Queue {
    fn has_room(&self, bytes: usize) -> bool {
        let waiting: usize = self.waiting.iter().map(Work::bytes).sum();
        let held = waiting + self.running.as_ref().map_or(0, |work| work.0);
        held == 0 || held.saturating_add(bytes) <= HELD_BYTES
    }
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { waiting: VecDeque::new(), running: None, started: false });
/// Something was added, or is done.
static CHANGED: Condvar = Condvar::new();
/// The process whose thread it is: a child that was forked off has none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock()
}

fn is_child() -> bool {
    let owner = PROCESS.load(Relaxed);
    owner != 0 && owner != std::process::id()
}

/// Store a state of so many bytes that will be published by a manifest: on the thread, or at once where there is no room.
pub fn save(bytes: usize, manifest: String, store: impl FnOnce() + Send + 'static) {
    if let Some(work) = add(Work::Save(bytes, manifest, Box::new(store))) {
        work.run();
    }
}

/// Remove the file of a load when the server has read it.
pub fn remove(local: Local) {
    // Without a thread it stays: the next save or load of the name makes it anew.
    drop(add(Work::Remove(local)));
}

/// Whether something that holds so many bytes would be taken by [`later`].
pub fn has_room(bytes: usize) -> bool {
    !is_child() && queue().has_room(bytes)
}

/// Do something on the thread that holds so many bytes. It is left out where there is no room.
pub fn later(bytes: usize, run: impl FnOnce() + Send + 'static) {
    drop(add(Work::Other(bytes, Box::new(run))));
}

/// Hand work to the thread; gives it back where there is no room, or no thread.
fn add(work: Work) -> Option<Work> {
    if is_child() {
        return Some(work);
    }
    let mut queue = queue();
    if !queue.has_room(work.bytes()) {
        return Some(work);
    }
    if !queue.started {
        let thread = std::thread::Builder::new().name("kv-llama-saves".to_owned());
        if with_signals_blocked(|| thread.spawn(run)).is_err() {
            return Some(work);
        }
        PROCESS.store(std::process::id(), Relaxed);
        queue.started = true;
    }
    queue.waiting.push_back(work);
    CHANGED.notify_all();
    None
}

fn run() {
    let mut queue = queue();
    loop {
        let Some(work) = queue.waiting.pop_front() else {
            queue = CHANGED.wait(queue);
            continue;
        };
        queue.running = Some((work.bytes(), work.manifest().map(str::to_owned)));
        drop(queue);
        if catch_unwind(AssertUnwindSafe(|| work.run())).is_err() {
            log::line("a panic in this library: a state is not stored");
        }
        queue = self::queue();
        queue.running = None;
        CHANGED.notify_all();
    }
}

/// Wait until a state that is to be published under this name is stored, or has failed.
pub fn wait_for(manifest: &str) {
    if is_child() {
        return;
    }
    let mut queue = queue();
    while queue.running.as_ref().is_some_and(|running| running.1.as_deref() == Some(manifest))
        || queue.waiting.iter().any(|work| work.manifest() == Some(manifest))
    {
        queue = CHANGED.wait(queue);
    }
}

/// Runs when the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = finish;

extern "C" fn finish() {
    if is_child() {
        return;
    }
    // The lock may be held by a thread that was ended with it.
    let end = Instant::now() + AT_EXIT;
    let Some(mut queue) = QUEUE.try_lock().or_else(|| {
        std::thread::sleep(Duration::from_millis(100));
        QUEUE.try_lock()
    }) else {
        return;
    };
    // The file of a load is removed soon, too: nobody reads it any more.
    while queue.running.is_some() || !queue.waiting.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            log::line("the program ends before all states are stored");
            return;
        }
        queue = CHANGED.wait_timeout(queue, left);
    }
}
