//! What bounds the files of a directory: the bytes that they may have together, and the space that must stay free for others.
//!
//! Invariants: a write is refused before a byte of it is written; what is refused names the bound and what would help; and nobody
//! waits longer than [`limits::ROOM_AWAITED`]. What is over is removed elsewhere (`store::upkeep`), which is woken from here.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use kv_platform::sync::Mutex;

use super::Directory;
use super::tally::Tally;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::{Clock, Condition};
use crate::until::Until;

/// Bytes that are written between two looks at the space of the file system, at most.
const LOOKED_AFTER: u64 = 64 << 20;

/// The bounds of one directory.
pub struct Guard {
    clock: Clock,
    /// Bytes of the file system that stay free.
    keep_free: u64,
    max_bytes: u64,
    /// What the operator calls that.
    name: &'static str,
    /// Usage from which on the store evicts.
    high: u64,
    /// Bytes that may be written before the space is looked at again.
    headroom: AtomicI64,
    /// Bytes that are being written: the file system may not count them yet.
    writing: AtomicU64,
    /// The longest file that waits for room.
    awaited: AtomicU64,
    /// Of a store that evicts.
    pub tally: Option<Tally>,
    /// The most files, and their count.
    entries: Option<(u64, Tally)>,
    /// What is over is evicted by somebody who is woken.
    evicts: bool,
    /// The file system had no room for a file.
    ran_out: AtomicBool,
    woken: AtomicBool,
    /// Answers whether there is somebody to be woken.
    wake: Box<dyn Fn() -> bool + Send + Sync>,
    /// Nothing could be evicted when that was last tried.
    cannot_free: AtomicBool,
    room: Mutex<()>,
    made: Condition,
    pub refused: AtomicU64,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("keep_free", &self.keep_free).field("max_bytes", &self.max_bytes).finish()
    }
}

impl Guard {
    /// `max_bytes`: none of it. `tally`: of a store that evicts. `wake` has what is over removed, and answers whether
    /// there is somebody who does.
    pub fn new(
        clock: &Clock,
        keep_free: u64,
        max_bytes: Option<(u64, &'static str)>,
        tally: Option<Tally>,
        wake: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let (max_bytes, name) = max_bytes.unwrap_or((u64::MAX, ""));
        Guard {
            clock: clock.clone(),
            keep_free,
            max_bytes,
            name,
            high: max_bytes - max_bytes / 20,
            headroom: AtomicI64::new(0),
            writing: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            tally,
            entries: None,
            evicts: false,
            ran_out: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            wake: Box::new(wake),
            cannot_free: AtomicBool::new(false),
            room: Mutex::new(()),
            made: Condition::new(clock),
            refused: AtomicU64::new(0),
        }
    }

    /// Bounds the number of files, too.
    pub fn with_entries(self, max_entries: u64, entries: Tally) -> Self {
        Guard { entries: Some((max_entries, entries)), ..self }
    }

    /// Who is woken evicts: it is worth waiting for.
    pub fn evicting(self) -> Self {
        Guard { evicts: true, ..self }
    }

    /// The count of the files, where that is bounded.
    pub fn entries(&self) -> Option<&Tally> {
        self.entries.as_ref().map(|(_, entries)| entries)
    }

    /// How many files are to go so that the store is well below what it may have.
    pub fn entries_over(&self) -> u64 {
        let over = |(max, entries): &(u64, Tally)| match entries.reckoned() {
            used if used >= max - max / 20 => (used - (max - max / 10)).max(1),
            _ => 0,
        };
        self.entries.as_ref().map_or(0, over)
    }

    /// The file system had no room for a file: no bytes, no inode, or no quota. Answers whether some was made, so that it is worth
    /// another try.
    pub(super) fn await_after_running_out(&self, until: Option<&Until>) -> bool {
        let Some(tally) = self.tally.as_ref().filter(|_| self.evicts) else { return false };
        let removed = tally.removed();
        self.await_until(until, || {
            let made = tally.removed() != removed;
            // Each look of who evicts is told: one before this wait may have been for another file.
            self.ran_out.fetch_or(!made, Relaxed);
            made
        })
    }

    /// How many bytes are to go so that the longest file fits that has waited for room since this was last asked, of so many that are used. What
    /// is longer than a twentieth of the bound may not fit below the usage from which on the store evicts.
    pub fn take_awaited(&self, used: u64) -> u64 {
        let awaited = self.awaited.swap(0, Relaxed);
        used.saturating_add(awaited).saturating_sub(self.max_bytes).min(used)
    }

    /// Whether the file system had no room since this was last asked.
    pub fn take_ran_out(&self) -> bool {
        self.ran_out.swap(false, Relaxed)
    }

    /// Look at the space before the first write asks for it.
    pub fn look(&self, available: u64) {
        self.leave(available.saturating_sub(self.keep_free));
    }

    /// So many bytes are left: some of them may be written before the space is looked at again.
    fn leave(&self, left: u64) {
        self.headroom.store((left / 4).min(LOOKED_AFTER) as i64, Relaxed);
    }

    /// What is over is about to be removed: who needs that from now on wakes again.
    pub fn begin_upkeep(&self) {
        self.woken.store(false, Relaxed);
    }

    /// Something was removed.
    pub fn made_room(&self) {
        drop(self.room.lock());
        self.made.notify_all();
    }

    /// Whether nothing can be evicted now, so that nobody waits for it.
    pub fn set_cannot_free(&self, cannot_free: bool) {
        self.cannot_free.store(cannot_free, Relaxed);
    }

    /// Whether nothing can be evicted now. If so, writes do not ask for it before it was tried again.
    pub fn hold_if_cannot_free(&self) -> bool {
        let cannot_free = self.cannot_free.load(Relaxed);
        if cannot_free {
            self.woken.store(true, Relaxed);
        }
        cannot_free
    }

    fn wake(&self) {
        if !self.woken.swap(true, Relaxed) && !(self.wake)() {
            self.woken.store(false, Relaxed);
        }
    }

    fn refuse(&self, message: String) -> Error {
        self.refused.fetch_add(1, Relaxed);
        Error::new(ErrorKind::Exhausted, message)
    }

    /// Room for `len` bytes more, of a directory with so much space left. It is theirs until what is answered is dropped.
    fn admit(
        &self,
        len: u64,
        until: Option<&Until>,
        available: impl Fn() -> Result<u64, Error>,
    ) -> Result<Admitted<'_>, Error> {
        let admitted = Admitted { guard: self, len };
        let others = self.writing.fetch_add(len, SeqCst);
        let signed = i64::try_from(len).unwrap_or(i64::MAX);
        if self.keep_free > 0 && self.headroom.fetch_sub(signed, Relaxed) < signed {
            // Looked at after the others were counted: what ends in between counts twice, never not at all.
            let available = available()?.saturating_sub(others);
            let Some(left) = available.checked_sub(self.keep_free).and_then(|left| left.checked_sub(len)) else {
                self.headroom.store(0, Relaxed);
                if self.tally.is_some() {
                    self.wake();
                }
                let keep_free = self.keep_free;
                let help = match self.tally {
                    Some(_) => "what may be evicted does not make up for it, because others fill the disk",
                    None => "free some, or let the store evict: max_bytes, ttl_s or evict in its options",
                };
                let message =
                    format!("the disk is nearly full: {available} bytes are free, keep_free = {keep_free}; {help}");
                return Err(self.refuse(message));
            };
            self.leave(left);
        }
        let Some(tally) = &self.tally else { return Ok(admitted) };
        let used = tally.reckoned().saturating_add(len);
        if used > self.high {
            self.wake();
        }
        if used > self.max_bytes && !self.await_room(tally, len, until) {
            let (name, max_bytes) = (self.name, self.max_bytes);
            let message = format!(
                "the store is full: {name} = {max_bytes}, and {len} bytes more do not fit until some are removed"
            );
            return Err(self.refuse(message));
        }
        let Some((max, entries)) = &self.entries else { return Ok(admitted) };
        if entries.reckoned() >= max - max / 20 {
            self.wake();
        }
        if entries.reckoned() >= *max && !self.await_until(until, || entries.reckoned() < *max) {
            return Err(self.refuse(format!("the store is full: max_entries = {max}, until some files are removed")));
        }
        Ok(admitted)
    }

    /// Wait a moment for the eviction, which others have outrun.
    fn await_room(&self, tally: &Tally, len: u64, until: Option<&Until>) -> bool {
        let fits = || {
            let fits = tally.reckoned().saturating_add(len) <= self.max_bytes;
            if !fits {
                self.awaited.fetch_max(len, Relaxed);
            }
            fits
        };
        len <= self.max_bytes && self.await_until(until, fits)
    }

    /// For no longer than the call has whose write it is.
    fn await_until(&self, until: Option<&Until>, fits: impl Fn() -> bool) -> bool {
        let longest = self.clock.now() + limits::ROOM_AWAITED;
        let end = until.map_or(longest, |until| longest.min(until.deadline()));
        let mut room = self.room.lock();
        while !fits() {
            self.wake();
            let left = end.saturating_duration_since(self.clock.now());
            if left.is_zero() || self.cannot_free.load(Relaxed) {
                return false;
            }
            room = self.made.wait_timeout(&self.room, room, left);
        }
        true
    }
}

/// Room that a write was given.
#[must_use = "the room is another's when this is dropped"]
#[derive(Debug)]
pub struct Admitted<'a> {
    guard: &'a Guard,
    len: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.guard.writing.fetch_sub(self.len, SeqCst);
    }
}

impl Directory {
    /// Bound what is written from now on. The first bounds stay.
    pub fn set_guard(&self, guard: Guard) {
        let _ = self.guard.set(guard);
    }

    pub fn guard(&self) -> Option<&Guard> {
        self.guard.get()
    }

    /// Refuse a file of so many bytes that is over a bound. What is answered is held until it is written.
    pub fn admit(&self, len: u64, until: Option<&Until>) -> Result<Option<Admitted<'_>>, Error> {
        let Some(guard) = self.guard.get() else { return Ok(None) };
        guard.admit(len, until, || Ok(self.space()?.available)).map(Some)
    }

    /// Count of the bytes of the files, where they are bounded.
    pub fn tally(&self) -> Option<&Tally> {
        self.guard.get().and_then(|guard| guard.tally.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_disk_that_is_nearly_full_takes_nothing_more() {
        let guard = Guard::new(&Clock::default(), 1000, None, None, || true);
        let refused = guard.admit(10, None, || Ok(1005)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exhausted);
        assert!(refused.to_string().contains("keep_free = 1000"), "{refused}");
        assert!(guard.admit(10, None, || Ok(1010)).is_ok());
        // A quarter of what is left is written before the space is looked at again.
        guard.look(1400);
        let looks = AtomicU64::new(0);
        let look = || {
            looks.fetch_add(1, Relaxed);
            Ok(1400)
        };
        (0..4).for_each(|_| drop(guard.admit(100, None, look).unwrap()));
        assert_eq!(looks.load(Relaxed), 3, "the first of them fits");
        assert!(Guard::new(&Clock::default(), 0, None, None, || true).admit(10, None, || unreachable!()).is_ok());
    }

    #[test]
    fn what_others_are_writing_is_not_given_twice() {
        let guard = Guard::new(&Clock::default(), 1000, None, None, || true);
        // The file system counts none of it before it is written.
        let look = || Ok(1250);
        let first = guard.admit(100, None, look).unwrap();
        let second = guard.admit(100, None, look).unwrap();
        assert_eq!(guard.admit(100, None, look).unwrap_err().kind(), ErrorKind::Exhausted);
        drop((first, second));
        assert!(guard.admit(100, None, look).is_ok());
    }

    #[test]
    fn files_are_bounded_in_number() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(scratch.path(), &Arc::default()).unwrap());
        let tallies = [(super::super::tally::BYTES, 1000), (super::super::tally::FILES, 3)];
        let [bytes, files] = tallies.map(|(name, most)| Tally::open_as(name, &directory, most).unwrap());
        let woken = Arc::new(AtomicU64::new(0));
        let counted = woken.clone();
        let guard = Guard::new(&Clock::default(), 0, None, Some(bytes), move || {
            counted.fetch_add(1, Relaxed);
            true
        });
        directory.set_guard(guard.with_entries(3, files).evicting());
        let guard = directory.guard().unwrap();
        let write = |name: &str, replace| {
            let path = super::super::RelativePath::parse(name.into()).unwrap();
            directory.write(&path, &[b"x"], replace, false, None).map(drop)
        };
        ["a", "b"].iter().for_each(|name| write(name, false).unwrap());
        write("b", true).unwrap();
        write("c", true).unwrap();
        assert_eq!((guard.entries().unwrap().total(), directory.tally().unwrap().total()), (3, 3));
        guard.set_cannot_free(true);
        let refused = write("d", false).unwrap_err();
        assert!(refused.kind() == ErrorKind::Exhausted && refused.to_string().contains("max_entries = 3"), "{refused}");
        assert!(guard.entries_over() > 0 && woken.load(Relaxed) > 0);
        directory.remove(&super::super::RelativePath::parse("a".into()).unwrap(), false, None).unwrap();
        write("d", false).unwrap();
        assert_eq!(guard.entries().unwrap().total(), 3);
    }

    #[test]
    fn who_finds_the_disk_full_waits_for_the_eviction_and_tries_again() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(scratch.path(), &Arc::default()).unwrap());
        let tally = Tally::open(&directory, 1000).unwrap();
        let evictor = Arc::downgrade(&directory);
        let guard = Guard::new(&Clock::default(), 0, None, Some(tally), move || {
            let directory = evictor.upgrade().unwrap();
            let guard = directory.guard().unwrap();
            assert!(guard.take_ran_out());
            directory.tally().unwrap().remove(10);
            guard.begin_upkeep();
            std::thread::spawn(move || directory.guard().unwrap().made_room());
            true
        });
        directory.set_guard(guard.evicting());
        let guard = directory.guard().unwrap();
        assert!(guard.await_after_running_out(None));
        guard.set_cannot_free(true);
        guard.woken.store(true, Relaxed);
        assert!(!guard.await_after_running_out(None), "nothing may go");
        assert!(!Guard::new(&Clock::default(), 0, None, None, || true).await_after_running_out(None));
    }

    #[test]
    fn who_evicts_nothing_for_a_full_disk_is_not_asked_again_and_again() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(scratch.path(), &Arc::default()).unwrap());
        let (evictor, passes) = (Arc::downgrade(&directory), Arc::<AtomicU64>::default());
        let counted = passes.clone();
        let guard = Guard::new(&Clock::default(), 0, None, Tally::open(&directory, 1000).ok(), move || {
            let directory = evictor.upgrade().unwrap();
            let guard = directory.guard().unwrap();
            guard.begin_upkeep();
            guard.set_cannot_free(guard.take_ran_out() && counted.fetch_add(1, Relaxed) > 0);
            std::thread::spawn(move || directory.guard().unwrap().made_room());
            true
        });
        directory.set_guard(guard.evicting());
        assert!(!directory.guard().unwrap().await_after_running_out(None) && passes.load(Relaxed) == 2);
    }

    #[test]
    fn a_file_that_fits_only_when_others_go_has_them_go_below_the_usual_mark_too() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(scratch.path(), &Arc::default()).unwrap());
        let tally = Tally::open(&directory, 1000).unwrap();
        tally.add(900);
        let evictor = Arc::downgrade(&directory);
        let guard = Guard::new(&Clock::default(), 0, Some((1000, "max_bytes")), Some(tally), move || {
            let directory = evictor.upgrade().unwrap();
            let guard = directory.guard().unwrap();
            guard.begin_upkeep();
            let tally = guard.tally.as_ref().unwrap();
            let over = guard.take_awaited(tally.total());
            assert!(over <= 200);
            tally.remove(over);
            true
        });
        directory.set_guard(guard.evicting());
        let guard = directory.guard().unwrap();
        assert!(guard.admit(300, None, || unreachable!()).is_ok(), "900 of 1000 are used: less than 95 %");
        assert_eq!((directory.tally().unwrap().total(), guard.take_awaited(700)), (700, 0));
    }

    #[test]
    fn where_nobody_was_woken_the_next_who_needs_room_tries_it_again() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let tally = Tally::open(&directory, 1000).unwrap();
        tally.add(960);
        let asked = Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let wake = move || counted.fetch_add(1, Relaxed) >= 2;
        let guard = Guard::new(&Clock::default(), 0, Some((1000, "max_bytes")), Some(tally), wake).evicting();
        (0..6).for_each(|_| drop(guard.admit(10, None, || unreachable!()).unwrap()));
        assert_eq!(asked.load(Relaxed), 3);
    }

    #[test]
    fn nobody_waits_for_room_beyond_the_end_of_the_call() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let tallies = [1000, 1000].map(|most| Tally::open(&directory, most).unwrap());
        let clock = Clock::default();
        let until = || {
            let end = clock.now() + std::time::Duration::from_millis(20);
            Until::with(&clock, &limits::Limits::default(), Some(end), None)
        };
        let begun = clock.now();
        for tally in tallies {
            tally.add(1000);
            let guard = Guard::new(&clock, 0, Some((1000, "max_bytes")), Some(tally), || true).evicting();
            assert!(guard.admit(100, Some(&until()), || unreachable!()).is_err());
            assert!(!guard.await_after_running_out(Some(&until())));
        }
        assert!(clock.since(begun) < limits::ROOM_AWAITED, "{:?}", clock.since(begun));
    }

    #[test]
    fn a_full_store_wakes_the_eviction_waits_a_moment_and_refuses() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let woken = Arc::new(AtomicU64::new(0));
        let counted = woken.clone();
        let tally = Tally::open(&directory, 1000).unwrap();
        let guard = Guard::new(&Clock::default(), 0, Some((1000, "max_bytes")), Some(tally), move || {
            counted.fetch_add(1, Relaxed);
            true
        });
        let tally = guard.tally.as_ref().unwrap();
        assert!(guard.admit(940, None, || unreachable!()).is_ok());
        tally.add(940);
        assert_eq!(woken.load(Relaxed), 0);
        assert!(guard.admit(40, None, || unreachable!()).is_ok());
        assert_eq!(woken.load(Relaxed), 1, "it is over 95%");
        assert!(guard.admit(100, None, || unreachable!()).unwrap_err().to_string().contains("max_bytes = 1000"));
        assert!(guard.admit(2000, None, || unreachable!()).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tally.add(-500);
                guard.made_room();
            });
            // Sooner or later than the room is made.
            let admitted =
                guard.admit(100, None, || unreachable!()).or_else(|_| guard.admit(100, None, || unreachable!()));
            assert!(admitted.is_ok());
        });
    }
}
