//! Who waits for whose disk.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A level whose copies go to the disk at once, in a process of its own, with what tells that a write begins and lets it go on.
struct HeldWriter {
    store: NearAround,
    begins: Receiver<()>,
    go: Option<Sender<()>>,
}

fn held(process: &NearLevels, path: &Path) -> HeldWriter {
    let settings = settings(0, Some((path.to_owned(), 1 << 30)));
    let level =
        Arc::new(process.open(&Arc::default(), &settings, &counters::ProcessCounters::default().of("near", None)));
    let ((begun, begins), (go, wait)) = (channel(), channel::<()>());
    let (begun, wait) = (Mutex::new(begun), Mutex::new(wait));
    let hold = move || {
        let _ = begun.lock().send(());
        let _ = wait.lock().recv();
    };
    *level.held.lock() = Some(Arc::new(hold));
    HeldWriter { store: layer(&Arc::default(), &level, "a store"), begins, go: Some(go) }
}

fn process() -> NearLevels {
    NearLevels::new(Clock::default(), Threads::default().near, Arc::default())
}

fn waiting(held: &HeldWriter) -> usize {
    held.store.level.line.waiting()
}

#[test]
fn a_disk_that_hangs_holds_up_no_other_level() {
    let (scratch, process) = (tempfile::tempdir().unwrap(), process());
    let mut hung = held(&process, &scratch.path().join("hung"));
    let mut sound = held(&process, &scratch.path().join("sound"));
    (0..20).for_each(|number| {
        hung.store.put(&data(number));
    });
    hung.begins.recv_timeout(LONG).expect("it writes");
    (0..5).for_each(|number| {
        sound.store.put(&data(number));
    });
    // Nothing of the other one has ended.
    sound.begins.recv_timeout(LONG).expect("its first write waits for another's");
    assert!(hung.begins.try_recv().is_err(), "one at a time");
    sound.go.take();
    hung.go.take();
    process.settle();
    assert_eq!((waiting(&hung), waiting(&sound)), (0, 0));
}

#[test]
fn what_waits_is_bounded_for_each_level_and_leaves_room_for_others() {
    let (scratch, process) = (tempfile::tempdir().unwrap(), process());
    let mut hung = held(&process, &scratch.path().join("hung"));
    let mut other = held(&process, &scratch.path().join("other"));
    let copy = |number: u8| vec![number; 4 * MIB as usize];
    (0..20).for_each(|number| {
        hung.store.put(&copy(number));
    });
    hung.begins.recv_timeout(LONG).expect("it writes");
    let most = limits::NEAR_WRITING_BYTES / 2 / copy(0).len();
    assert_eq!(waiting(&hung), most - 1, "and one is being written");
    // One copy that is larger than its share, where nothing of it waits.
    other.store.put(&vec![7; limits::NEAR_WRITING_BYTES / 2]);
    other.begins.recv_timeout(LONG).expect("there is room for what is another's");
    other.store.put(b"more");
    assert_eq!(waiting(&other), 0, "that is all there is room for");
    hung.go.take();
    other.go.take();
    process.settle();
    assert_eq!(waiting(&hung), 0);
    other.store.put(b"again");
    process.settle();
    assert!(other.store.level.usage().disk_bytes > Some(limits::NEAR_WRITING_BYTES as u64 / 2));
}
