//! How many bytes the files of a directory have together, or how many files there are, shared by the processes that write to it, without a
//! server and without a walk at each open.
//!
//! The count is in the file `.kv-usage`, that of files in `.kv-files`. A process adds to a count of its own and writes it down when it has changed by a 1024th of
//! the bound; so it costs a write no system call, and what processes have not written down is a fraction of a percent. A
//! process that is killed loses that much; the files are counted anew now and then, and after a restart of the machine. Nobody
//! waits for the file's lock: who does not get it writes down later. All threads that share its descriptor share the lock, so a
//! mutex stands before it. While one stands still as it writes down, nobody learns what others put: each then reckons with as much of
//! others as it put itself. On a disk that is full the count is kept in memory until it can be written, so that what has filled
//! the disk can be evicted.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_platform::sync::Mutex;
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::Errno;

use super::{Directory, PRIVATE_FILE};
use crate::limits;
use crate::process::Clock;

/// The count of bytes, and of files.
pub const BYTES: &str = ".kv-usage";
pub const FILES: &str = ".kv-files";
const MAGIC: [u8; 8] = *b"KVUSAGE1";
const RECORD_BYTES: usize = 32;

/// How often the last of a process tries to write down, with a millisecond between two tries.
const LAST_TRIES: usize = 50;

/// How often a thread writes down what others have left to it.
const CAUGHT_UP: usize = 8;

/// Who finds another at it so often in a row has met one that stands still: writing down takes microseconds.
const HELD_UP: u32 = 4;

/// While one stands still, each process takes it that so many write to the directory, each as much as itself.
const WRITERS: i64 = 8;

/// A count of bytes that several processes share.
#[derive(Debug)]
pub struct Tally {
    file: OwnedFd,
    clock: Clock,
    /// Held by the thread of this process that writes down: what could not be written, because the disk is full.
    writing: Mutex<Option<TallyRecord>>,
    /// What was written down when it was last looked at.
    shared: AtomicI64,
    /// What is not written down yet.
    own: AtomicI64,
    /// How often in a row another was found writing down.
    missed: AtomicU32,
    step: i64,
    /// When the files were last counted: nanoseconds since 1970-01-01 UTC; 0: never, as far as is known.
    counted: AtomicU64,
    /// Bytes of files that this process has removed.
    removed: AtomicU64,
}

/// What the file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TallyRecord {
    bytes: i64,
    counted: u64,
    /// Of the run of the machine in which it was written: what is cached is lost in a crash, and the count is then too old.
    boot: u64,
}

impl TallyRecord {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let parts = [MAGIC, self.bytes.to_le_bytes(), self.counted.to_le_bytes(), self.boot.to_le_bytes()];
        for (to, from) in bytes.iter_mut().zip(parts.as_flattened()) {
            *to = *from;
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let parts: [[u8; 8]; 4] = bytes.as_chunks::<8>().0.try_into().ok()?;
        let [magic, bytes, counted, boot] = parts;
        let record = TallyRecord {
            bytes: i64::from_le_bytes(bytes),
            counted: u64::from_le_bytes(counted),
            boot: u64::from_le_bytes(boot),
        };
        (magic == MAGIC && record.bytes >= 0).then_some(record)
    }
}

impl Tally {
    /// The count of the bytes of a directory's files, which may have so many.
    pub fn open(directory: &Directory, max_bytes: u64) -> Result<Self, Errno> {
        Tally::open_as(BYTES, directory, max_bytes)
    }

    /// One of the counts of a directory, [`BYTES`] or [`FILES`], which may come to so much.
    pub fn open_as(name: &str, directory: &Directory, most: u64) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match fs::openat(&directory.root, name, flags, PRIVATE_FILE) {
            // No file can be made: this process counts for itself, until it opens the directory again.
            Err(Errno::NOSPC | Errno::DQUOT) => memory_file()?,
            opened => opened?,
        };
        if fs::FileType::from_raw_mode(fs::fstat(&file)?.st_mode) != fs::FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let step = i64::try_from(most / 1024).unwrap_or(i64::MAX).clamp(1, 16 << 20);
        let (shared, own, counted) = (AtomicI64::new(0), AtomicI64::new(0), AtomicU64::new(0));
        let (missed, removed) = (AtomicU32::new(0), AtomicU64::new(0));
        let clock = directory.clock().clone();
        let tally = Tally { file, clock, writing: Mutex::new(None), shared, own, missed, step, counted, removed };
        // Nothing need be counted where nothing is: what comes from now on is added.
        if fs::fstat(&tally.file)?.st_size == 0 && is_fresh(directory)? {
            let _ = tally.locked(|record| TallyRecord { counted: tally.clock.wall_ns(), ..record });
        }
        let record = tally.read();
        tally.shared.store(record.bytes, Relaxed);
        tally.counted.store(record.counted, Relaxed);
        Ok(tally)
    }

    /// Whether a process has a directory's files counted: one that evicts, most likely.
    pub fn is_kept(directory: &Directory) -> bool {
        fs::statat(&directory.root, BYTES, fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The bytes of all files, as far as is known.
    pub fn total(&self) -> u64 {
        self.with(self.own.load(Relaxed))
    }

    /// What to hold against the bound: all files, and what others may have put since one of them stands still.
    pub fn reckoned(&self) -> u64 {
        let own = self.own.load(Relaxed);
        let own = match self.missed.load(Relaxed) {
            HELD_UP.. if own > 0 => own.saturating_mul(WRITERS),
            _ => own,
        };
        self.with(own)
    }

    fn with(&self, unwritten: i64) -> u64 {
        self.shared.load(Relaxed).saturating_add(unwritten).try_into().unwrap_or(0)
    }

    /// Whether the files are to be counted anew: the count is too old, or of a clock that was ahead.
    pub fn is_count_due(&self) -> bool {
        let age = self.clock.wall_ns().checked_sub(self.counted());
        age.is_none_or(|age| age > limits::COUNTED_FOR.as_nanos() as u64)
    }

    /// When the files were last counted: nanoseconds since 1970-01-01 UTC.
    pub fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    /// A file of so many bytes was removed.
    pub fn remove(&self, bytes: u64) {
        self.removed.fetch_add(bytes, Relaxed);
        self.add(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Bytes of the files that were removed so far, by this process. A sum that wraps.
    pub fn removed(&self) -> u64 {
        self.removed.load(Relaxed)
    }

    /// Files have come, or gone.
    pub fn add(&self, bytes: i64) {
        let own = self.own.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if own.unsigned_abs() >= self.step.unsigned_abs() {
            self.write_down();
        }
    }

    /// Write down what has changed, and learn what others have written. Where another is at it, nothing is done.
    pub fn write_down(&self) {
        let _ = self.locked(|record| record);
    }

    /// The files were counted, and had so many bytes. `before`: what was known when that began. Where much has come or gone
    /// meanwhile, or another is writing, the next look counts again: what was counted before and added to since is nearer then.
    pub fn set(&self, bytes: u64, before: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let _ = self.locked(|record| {
            let meanwhile = record.bytes.saturating_sub(before);
            let settled = meanwhile.unsigned_abs() <= self.step.unsigned_abs().saturating_mul(4);
            // Of what came meanwhile about half was counted.
            let bytes = bytes.saturating_add(meanwhile / 2).max(0);
            match (settled, record.counted) {
                (true, _) => TallyRecord { bytes, counted: self.clock.wall_ns(), ..record },
                (false, 0) => TallyRecord { bytes, ..record },
                (false, _) => record,
            }
        });
    }

    fn locked(&self, change: impl FnOnce(TallyRecord) -> TallyRecord) -> Result<(), Errno> {
        let locked = self.locked_once(change);
        match locked {
            Err(Errno::AGAIN) => self.missed.fetch_add(1, Relaxed),
            _ => self.missed.swap(0, Relaxed),
        };
        locked?;
        // Threads that found this one at it have left it to this one: nobody else may come for an hour.
        for _ in 0..CAUGHT_UP {
            if self.own.load(Relaxed).unsigned_abs() < self.step.unsigned_abs() {
                break;
            }
            self.locked_once(|record| record)?;
        }
        Ok(())
    }

    fn locked_once(&self, change: impl FnOnce(TallyRecord) -> TallyRecord) -> Result<(), Errno> {
        let mut unwritten = self.writing.try_lock().ok_or(Errno::AGAIN)?;
        fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        let own = self.own.swap(0, Relaxed);
        let record = unwritten.take().unwrap_or_else(|| self.read());
        let record = change(TallyRecord { bytes: record.bytes.saturating_add(own).max(0), ..record });
        let written = rustix::io::pwrite(&self.file, &TallyRecord { boot: boot(), ..record }.encode(), 0);
        if written.is_err() {
            *unwritten = Some(record);
        }
        self.shared.store(record.bytes, Relaxed);
        self.counted.store(record.counted, Relaxed);
        fs::flock(&self.file, FlockOperation::Unlock)?;
        written.map(drop)
    }

    /// What the file holds; a count of 0, which was never made, where it cannot be relied on.
    fn read(&self) -> TallyRecord {
        let mut bytes = [0; RECORD_BYTES];
        let read = rustix::io::pread(&self.file, &mut bytes, 0);
        let record = read.ok().filter(|count| *count == RECORD_BYTES).and_then(|_| TallyRecord::decode(&bytes));
        let record = record.unwrap_or_default();
        // Better a count that may be too old than none; it is made anew soon.
        if record.boot == boot() { record } else { TallyRecord { counted: 0, ..record } }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        for _ in 0..LAST_TRIES {
            match self.locked(|record| record) {
                Err(Errno::AGAIN) => self.clock.sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
    }
}

/// Whether a store in this directory has no files yet. Those that begin with a dot are marks of the host and of backends.
fn is_fresh(directory: &Directory) -> Result<bool, Errno> {
    let mut entries = fs::Dir::read_from(&directory.root)?;
    Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().to_bytes().starts_with(b"."))))
}

fn memory_file() -> Result<OwnedFd, Errno> {
    let made = kv_platform::memory::file(c"kv-usage");
    made.map(OwnedFd::from).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Tells one run of the machine from the next. Threads that ask first find the same; a `OnceLock` could be left half done for ever by a
/// fork in another thread.
fn boot() -> u64 {
    const UNKNOWN: u64 = 0;
    static BOOT: AtomicU64 = AtomicU64::new(UNKNOWN);
    match BOOT.load(Relaxed) {
        UNKNOWN => {
            let boot = xxhash_rust::xxh3::xxh3_64(&kv_platform::system::boot()) | 1;
            BOOT.store(boot, Relaxed);
            boot
        }
        boot => boot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A directory in which there is something, so that it must be counted.
    fn directory() -> (tempfile::TempDir, Directory) {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir(scratch.path().join("chunks")).unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        (scratch, directory)
    }

    /// The file that all processes of a directory share, of this version and of others.
    #[test]
    fn golden_usage_file() {
        let record = TallyRecord { bytes: 123_456_789, counted: 0x0102_0304_0506_0708, boot: 0x1112_1314_1516_1718 };
        let bytes = record.encode();
        let hex = hex::encode(bytes);
        assert_eq!(hex, "4b5655534147453115cd5b070000000008070605040302011817161514131211");
        assert_eq!(TallyRecord::decode(&bytes), Some(record));
        assert_eq!((BYTES, FILES), (".kv-usage", ".kv-files"));
    }

    #[test]
    fn processes_share_the_count_to_a_percent() {
        const MAX: u64 = 1 << 20;
        let (_scratch, directory) = directory();
        let tallies: Vec<Tally> = (0..4).map(|_| Tally::open(&directory, MAX).unwrap()).collect();
        for round in 0..1000 {
            tallies.iter().for_each(|tally| tally.add(100));
            let all = (round + 1) * 400;
            for tally in &tallies {
                // What the others have not written down, and what they wrote down since this one last did.
                assert!(tally.total().abs_diff(all) <= 8 * MAX / 1024 + 400, "{} of {all}", tally.total());
            }
        }
        drop(tallies);
        assert_eq!(Tally::open(&directory, MAX).unwrap().total(), 400_000, "all of it is written down at the end");
    }

    #[test]
    fn threads_and_processes_lose_nothing_of_each_other() {
        let (_scratch, directory) = directory();
        // A descriptor each, as processes have, with threads that share it.
        let tallies: Vec<Tally> = (0..3).map(|_| Tally::open(&directory, 1024).unwrap()).collect();
        std::thread::scope(|scope| {
            for tally in tallies.iter().flat_map(|tally| [tally; 4]) {
                scope.spawn(|| (0..2000).for_each(|_| tally.add(10)));
            }
        });
        drop(tallies);
        assert_eq!(Tally::open(&directory, 1024).unwrap().total(), 3 * 4 * 2000 * 10);
    }

    #[test]
    fn a_count_during_which_much_has_changed_is_made_again() {
        let (_scratch, directory) = directory();
        let tally = Tally::open(&directory, 1 << 20).unwrap();
        tally.add(100_000);
        tally.set(100_000, 0);
        assert_eq!((tally.total(), tally.counted()), (150_000, 0));
        tally.set(100_000, 150_000);
        assert!(tally.total() == 100_000 && tally.counted() > 0);
        // Once it was counted, what has changed since is known better than by a count beside many changes.
        let counted = tally.counted();
        tally.add(900_000);
        tally.set(400_000, 100_000);
        assert_eq!((tally.total(), tally.counted()), (1_000_000, counted));
    }

    #[test]
    fn who_finds_another_thread_at_it_has_it_write_down() {
        let (_scratch, directory) = directory();
        let tally = Tally::open(&directory, 1 << 20).unwrap();
        tally
            .locked(|record| {
                tally.add(900_000);
                record
            })
            .unwrap();
        assert_eq!(Tally::open(&directory, 1 << 20).unwrap().total(), 900_000);
    }

    #[test]
    fn a_count_by_a_clock_that_was_ahead_or_behind_is_made_anew() {
        struct At(u64);
        impl crate::process::Time for At {
            fn now(&self) -> std::time::Instant {
                std::time::Instant::now()
            }
            fn wall(&self) -> std::time::SystemTime {
                std::time::UNIX_EPOCH + Duration::from_secs(self.0)
            }
        }
        let (scratch, _) = directory();
        let at = |seconds| {
            let shared = super::super::Shared::of_test(Clock::of(Arc::new(At(seconds))));
            Tally::open(&Directory::open(scratch.path(), &Arc::new(shared)).unwrap(), 1000).unwrap()
        };
        const DAY: u64 = 86_400;
        let counted = at(10 * DAY);
        assert!(counted.is_count_due());
        counted.set(500, 0);
        assert!(!counted.is_count_due() && !at(10 * DAY + 3000).is_count_due());
        assert!(at(9 * DAY).is_count_due(), "the clock that counted was ahead");
        assert!(at(11 * DAY).is_count_due(), "or behind");
    }

    #[test]
    fn on_a_full_disk_a_count_is_kept_until_it_can_be_written() {
        let (scratch, directory) = directory();
        let mut tally = Tally::open(&directory, 1000).unwrap();
        let file =
            std::fs::File::open("/dev/full").and_then(|_| std::fs::File::options().write(true).open("/dev/full"));
        let written = std::mem::replace(&mut tally.file, file.unwrap().into());
        tally.add(900);
        tally.set(700, 900);
        assert!(tally.total() == 700 && tally.counted() > 0, "{}", tally.total());
        tally.add(50);
        assert_eq!(tally.total(), 750);
        tally.file = written;
        tally.write_down();
        assert_eq!(Tally::open(&directory, 1000).unwrap().total(), 750);
        drop(scratch);
    }

    #[test]
    fn a_directory_without_files_needs_no_count() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join(".local-fs"), "a mark").unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let tally = Tally::open(&directory, 1000).unwrap();
        assert!(tally.total() == 0 && tally.counted() > 0);
        let other = Tally::open(&directory, 1000).unwrap();
        assert_eq!(other.counted(), tally.counted(), "another process knows it too");
    }

    #[test]
    fn a_count_that_is_damaged_or_of_another_run_is_made_anew() {
        let (scratch, directory) = directory();
        let tally = Tally::open(&directory, 1000).unwrap();
        assert_eq!(tally.counted(), 0);
        tally.add(700);
        tally.set(500, 700);
        let counted = tally.counted();
        assert!(tally.total() == 500 && counted > 0);
        let opened = Tally::open(&directory, 1000).unwrap();
        assert_eq!((opened.total(), opened.counted()), (500, counted));
        let file = scratch.path().join(BYTES);
        let other = TallyRecord { bytes: 500, counted: 77, boot: 1 };
        for (content, total) in
            [(other.encode().to_vec(), 500), (vec![7; 32], 0), (vec![], 0), (b"KVUSAGE1".to_vec(), 0)]
        {
            std::fs::write(&file, content).unwrap();
            let opened = Tally::open(&directory, 1000).unwrap();
            assert_eq!((opened.total(), opened.counted()), (total, 0));
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert!(Tally::open(&directory, 1000).is_err());
    }

    #[test]
    fn who_does_not_get_the_lock_writes_down_later() {
        let (scratch, directory) = directory();
        let tally = Tally::open(&directory, 1000).unwrap();
        let other = std::fs::File::open(scratch.path().join(BYTES)).unwrap();
        fs::flock(&other, FlockOperation::LockExclusive).unwrap();
        tally.add(100);
        assert_eq!(tally.total(), 100);
        assert_eq!(Tally::open(&directory, 1000).unwrap().total(), 0);
        fs::flock(&other, FlockOperation::Unlock).unwrap();
        tally.add(1);
        assert_eq!(Tally::open(&directory, 1000).unwrap().total(), 101);
    }

    #[test]
    fn while_one_stands_still_as_it_writes_down_the_others_stay_within_the_bound() {
        const MAX: u64 = 1 << 20;
        const PUT: u64 = 1000;
        let (scratch, directory) = directory();
        Tally::open(&directory, MAX).unwrap().add((MAX / 10 * 9) as i64);
        let tallies: Vec<Tally> = (0..WRITERS).map(|_| Tally::open(&directory, MAX).unwrap()).collect();
        let one = std::fs::File::open(scratch.path().join(BYTES)).unwrap();
        fs::flock(&one, FlockOperation::LockExclusive).unwrap();
        let mut put = MAX / 10 * 9;
        for _ in 0..MAX / PUT {
            for tally in tallies.iter().filter(|tally| tally.reckoned() + PUT <= MAX) {
                tally.add(PUT as i64);
                put += PUT;
            }
        }
        assert!(put <= MAX && put > MAX / 100 * 95, "{put} of {MAX}");
        // Who makes room has it.
        tallies[0].remove(20 * PUT);
        assert!(tallies[0].reckoned() + PUT <= MAX);
        fs::flock(&one, FlockOperation::Unlock).unwrap();
        tallies.iter().for_each(Tally::write_down);
        assert_eq!(tallies[WRITERS as usize - 1].reckoned(), put - 20 * PUT, "nothing is reckoned with that is known");
    }
}
