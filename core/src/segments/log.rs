//! The index log: one order of all that the processes of a store do.
//!
//! A frame of entries is appended under a lock on the folder, behind what is already there and read. What is torn at the end, because
//! its writer died or the power went, is overwritten by the next one: nobody has read it. A log that was compacted is another file
//! under the same name; who follows the old one begins anew.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;

use super::folder::{Folder, io_error};
use super::format::{
    Behind, Entry, FRAME_HEADER_BYTES, Framed, LOG_HEADER_BYTES, MAX_FRAME_BYTES, frame, framed, log_header,
    read_log_header,
};
use crate::error::{Error, ErrorKind};
use crate::until::Until;

const NAME: &str = "index";
const NEW: &str = "index.new";

/// What is done with what the log says.
pub trait Follow {
    /// A log begins: what was known is of another one.
    fn begin(&mut self, seed: u64, segment_bytes: u64);
    fn apply(&mut self, entry: &Entry);
}

pub struct Log {
    folder: Arc<Folder>,
    read: Mutex<Read>,
}

/// How far the log was read.
struct Read {
    file: Option<File>,
    inode: u64,
    to: u64,
    behind: Behind,
}

/// The right to append. Nobody else appends meanwhile, and all that the log says is known.
pub struct Locked<'a> {
    log: &'a Log,
    read: MutexGuard<'a, Read>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.log.folder.unlock();
    }
}

impl Log {
    /// The log in a folder, made if it is not there. `segment_bytes`: of one that is made.
    pub fn open(folder: Arc<Folder>, seed: u64, segment_bytes: u64, until: &Until) -> Result<Self, Error> {
        let log = Log { folder, read: Mutex::new(Read { file: None, inode: 0, to: 0, behind: Behind::default() }) };
        if log.folder.at(NAME, OFlags::RDONLY)?.is_none() {
            let _locked = log.locked(until)?;
            if log.folder.at(NAME, OFlags::RDONLY)?.is_none() {
                Anew::begin(&log.folder, seed, segment_bytes)?.finish(&log.folder)?;
            }
        }
        Ok(log)
    }

    fn lock_read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Hand on what the log says that was not handed on before.
    pub fn follow(&self, by: &mut impl Follow) -> Result<(), Error> {
        self.follow_on(&mut self.lock_read(), by)
    }

    fn follow_on(&self, read: &mut Read, by: &mut impl Follow) -> Result<(), Error> {
        let inode = match fs::statat(&self.folder.0, NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found.st_ino,
            Err(errno) => return Err(Error::from(errno).context("the index log")),
        };
        if read.file.is_none() || read.inode != inode {
            let file = self.folder.at(NAME, OFlags::RDWR)?.ok_or_else(|| Error::from(Errno::NOENT))?;
            let mut header = [0; LOG_HEADER_BYTES];
            let known = match file.read_exact_at(&mut header, 0) {
                Ok(()) => read_log_header(&header),
                Err(_) => None,
            };
            let (seed, segment_bytes, behind) = known.ok_or_else(foreign)?;
            read.inode = file.metadata().map_err(|error| io_error(&error, "the index log"))?.ino();
            read.file = Some(file);
            (read.to, read.behind) = (LOG_HEADER_BYTES as u64, behind);
            by.begin(seed, segment_bytes);
        }
        let Read { file: Some(file), to, behind, .. } = read else { return Ok(()) };
        read_frames(file, to, behind, |entry| by.apply(&entry))
    }

    /// Take the right to append, and hand on what was appended meanwhile.
    pub fn lock(&self, by: &mut impl Follow, until: &Until) -> Result<Locked<'_>, Error> {
        let mut locked = self.locked(until)?;
        locked.follow(by)?;
        Ok(locked)
    }

    fn locked(&self, until: &Until) -> Result<Locked<'_>, Error> {
        let read = self.lock_read();
        self.folder.lock(until)?;
        Ok(Locked { log: self, read })
    }

    /// Have all that was appended survive a power loss.
    pub fn sync(&self) -> Result<(), Error> {
        match &self.lock_read().file {
            Some(file) => file.sync_data().map_err(|error| io_error(&error, "syncing the index log")),
            None => Ok(()),
        }
    }
}

impl Locked<'_> {
    /// Append entries, and hand them on. Those of one frame take effect together; an error leaves the log as it was, or with the frames
    /// before it.
    pub fn append(&mut self, mut entries: &[Entry], by: &mut impl Follow) -> Result<(), Error> {
        while !entries.is_empty() {
            let (file, to, behind) = match &mut *self.read {
                Read { file: Some(file), to, behind, .. } => (file, to, behind),
                _ => return Err(foreign()),
            };
            let (bytes, taken, next) = frame(entries, *behind);
            let (now, later) = entries.split_at_checked(taken.max(1)).unwrap_or((entries, &[]));
            file.write_all_at(&bytes, *to).map_err(|error| io_error(&error, "writing the index log"))?;
            *to += bytes.len() as u64;
            *behind = next;
            now.iter().for_each(|entry| by.apply(entry));
            entries = later;
        }
        Ok(())
    }

    /// Bytes of the log.
    pub fn len(&self) -> u64 {
        self.read.to
    }

    /// Put a log in its place that says these entries, and those of the former one that are still to be said. Whoever follows the former
    /// one begins anew.
    pub fn compact(
        &mut self,
        seed: u64,
        segment_bytes: u64,
        first: &[Entry],
        keeps: impl Fn(&Entry) -> bool,
    ) -> Result<(), Error> {
        let former = self.read.file.as_ref().ok_or_else(foreign)?;
        let mut header = [0; LOG_HEADER_BYTES];
        former.read_exact_at(&mut header, 0).map_err(|error| io_error(&error, "the index log"))?;
        let (_, _, mut behind) = read_log_header(&header).ok_or_else(foreign)?;
        let mut anew = Anew::begin(&self.log.folder, seed, segment_bytes)?;
        first.iter().for_each(|entry| anew.waiting.push(entry.clone()));
        let (mut at, mut written) = (LOG_HEADER_BYTES as u64, Ok(()));
        read_frames(former, &mut at, &mut behind, |entry| {
            if written.is_ok() && keeps(&entry) {
                written = anew.push(entry);
            }
        })?;
        written?;
        anew.finish(&self.log.folder)?;
        self.read.file = None;
        Ok(())
    }

    /// As [`Log::follow`].
    pub fn follow(&mut self, by: &mut impl Follow) -> Result<(), Error> {
        let log = self.log;
        log.follow_on(&mut self.read, by)
    }
}

/// A log that is written beside the one that is there, and then put in its place.
struct Anew {
    file: File,
    at: u64,
    behind: Behind,
    waiting: Vec<Entry>,
}

impl Anew {
    fn begin(folder: &Folder, seed: u64, segment_bytes: u64) -> Result<Self, Error> {
        let file = folder.at(NEW, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?.ok_or_else(foreign)?;
        let header = log_header(seed, segment_bytes);
        let (_, _, behind) = read_log_header(&header).ok_or_else(foreign)?;
        file.write_all_at(&header, 0).map_err(|error| anew_failed(&error))?;
        Ok(Anew { file, at: LOG_HEADER_BYTES as u64, behind, waiting: Vec::new() })
    }

    fn push(&mut self, entry: Entry) -> Result<(), Error> {
        self.waiting.push(entry);
        if self.waiting.len() < ENTRIES_AT_ONCE { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut rest = &self.waiting[..];
        while !rest.is_empty() {
            let (bytes, taken, next) = frame(rest, self.behind);
            self.file.write_all_at(&bytes, self.at).map_err(|error| anew_failed(&error))?;
            self.behind = next;
            self.at += bytes.len() as u64;
            rest = rest.get(taken.max(1)..).unwrap_or_default();
        }
        self.waiting.clear();
        Ok(())
    }

    fn finish(mut self, folder: &Folder) -> Result<(), Error> {
        self.flush()?;
        self.file.sync_all().map_err(|error| anew_failed(&error))?;
        folder.rename(NEW, NAME).map_err(|errno| anew_failed(&errno.into()))
    }
}

fn anew_failed(error: &std::io::Error) -> Error {
    io_error(error, "writing the index log anew")
}

/// Hand on the entries of all whole frames from a place on.
fn read_frames(file: &File, to: &mut u64, behind: &mut Behind, mut each: impl FnMut(Entry)) -> Result<(), Error> {
    let mut bytes = vec![0; FRAME_HEADER_BYTES + MAX_FRAME_BYTES];
    loop {
        let mut len = 0;
        while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) {
            match file.read_at(room, *to + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(&error, "the index log")),
            }
        }
        let mut rest = bytes.get(..len).unwrap_or_default();
        let before = *to;
        loop {
            match framed(rest, *behind) {
                Framed::Entries(entries, taken, next) => {
                    *behind = next;
                    entries.into_iter().for_each(&mut each);
                    *to += taken as u64;
                    rest = rest.get(taken..).unwrap_or_default();
                }
                Framed::Foreign => return Err(foreign()),
                Framed::Nothing => break,
            }
        }
        if *to == before {
            return Ok(());
        }
    }
}

/// An entry has less than a hundred bytes: so many fit a frame.
const ENTRIES_AT_ONCE: usize = MAX_FRAME_BYTES / 100;

fn foreign() -> Error {
    let message =
        "the index log is of a later version, or is none: it is left alone; name another directory, or update";
    Error::new(ErrorKind::Version, message)
}

#[cfg(test)]
mod tests {
    use rustix::fs::Mode;

    use super::*;
    use crate::limits::Limits;

    #[derive(Default)]
    struct Heard {
        begun: usize,
        header: (u64, u64),
        entries: Vec<Entry>,
    }

    impl Follow for Heard {
        fn begin(&mut self, seed: u64, segment_bytes: u64) {
            self.begun += 1;
            self.header = (seed, segment_bytes);
            self.entries.clear();
        }

        fn apply(&mut self, entry: &Entry) {
            self.entries.push(entry.clone());
        }
    }

    fn open(folder: &tempfile::TempDir) -> Log {
        let folder = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Log::open(Arc::new(Folder(folder)), 5, 1 << 20, &until()).unwrap()
    }

    fn until() -> Until {
        Until::new(&Limits::default())
    }

    fn deleted(n: u32) -> Entry {
        // No zero at its end, or a file that is cut and filled with zeros could be whole.
        Entry::Deleted { key: (n | 0xaa00_0000).to_le_bytes().to_vec() }
    }

    #[test]
    fn what_one_appends_the_other_reads_in_one_order() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (open(&folder), open(&folder));
        let (mut here, mut there) = (Heard::default(), Heard::default());
        for round in 0..10 {
            let (log, own) = if round % 2 == 0 { (&one, &mut here) } else { (&other, &mut there) };
            let mut locked = log.lock(own, &until()).unwrap();
            locked.append(&[deleted(2 * round), deleted(2 * round + 1)], own).unwrap();
        }
        one.follow(&mut here).unwrap();
        other.follow(&mut there).unwrap();
        let all: Vec<Entry> = (0..20).map(deleted).collect();
        assert_eq!((&here.entries, &there.entries), (&all, &all));
        assert_eq!((here.begun, here.header), (1, (5, 1 << 20)));
        one.sync().unwrap();
    }

    #[test]
    fn a_torn_end_is_written_over_wherever_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let log = open(&folder);
        let mut heard = Heard::default();
        log.lock(&mut heard, &until()).unwrap().append(&[deleted(1)], &mut heard).unwrap();
        let whole = std::fs::read(&path).unwrap();
        log.lock(&mut heard, &until()).unwrap().append(&[deleted(2), deleted(3)], &mut heard).unwrap();
        let longer = std::fs::read(&path).unwrap();
        for cut in whole.len()..longer.len() {
            for zeros in [0, 40] {
                std::fs::write(&path, [&longer[..cut], &vec![0; zeros]].concat()).unwrap();
                let (log, mut heard) = (open(&folder), Heard::default());
                log.follow(&mut heard).unwrap();
                assert_eq!(heard.entries, [deleted(1)], "cut at {cut}");
                log.lock(&mut heard, &until()).unwrap().append(&[deleted(4)], &mut heard).unwrap();
                let (again, mut heard) = (open(&folder), Heard::default());
                again.follow(&mut heard).unwrap();
                assert_eq!(heard.entries, [deleted(1), deleted(4)], "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_frame_behind_a_hole_stays_gone_when_the_hole_is_filled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let log = open(&folder);
        let mut heard = Heard::default();
        for n in 1..4 {
            log.lock(&mut heard, &until()).unwrap().append(&[deleted(n)], &mut heard).unwrap();
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let frame = (bytes.len() - LOG_HEADER_BYTES) / 3;
        bytes[LOG_HEADER_BYTES + frame..][..frame].fill(0);
        std::fs::write(&path, &bytes).unwrap();
        let (log, mut heard) = (open(&folder), Heard::default());
        log.lock(&mut heard, &until()).unwrap().append(&[deleted(9)], &mut heard).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), bytes.len(), "what lay behind it is still there");
        let (again, mut heard) = (open(&folder), Heard::default());
        again.follow(&mut heard).unwrap();
        assert_eq!(heard.entries, [deleted(1), deleted(9)]);
    }

    #[test]
    fn who_follows_a_log_that_was_compacted_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (open(&folder), open(&folder));
        let (mut here, mut there) = (Heard::default(), Heard::default());
        let many: Vec<Entry> = (0..30_000).map(deleted).collect();
        one.lock(&mut here, &until()).unwrap().append(&many, &mut here).unwrap();
        other.follow(&mut there).unwrap();
        assert_eq!(there.entries.len(), 30_000);
        let kept = many[..25_000].to_vec();
        let keeps = |entry: &Entry| matches!(entry, Entry::Deleted { key } if u32::from_le_bytes([key[0], key[1], key[2], 0]) < 25_000);
        let mut locked = one.lock(&mut here, &until()).unwrap();
        locked.compact(6, 1 << 20, &[], keeps).unwrap();
        locked.follow(&mut here).unwrap();
        drop(locked);
        other.lock(&mut there, &until()).unwrap().append(&[deleted(77)], &mut there).unwrap();
        one.follow(&mut here).unwrap();
        let all: Vec<Entry> = kept.into_iter().chain([deleted(77)]).collect();
        assert!(here.entries == all && there.entries == all);
        assert_eq!((there.begun, there.header), (2, (6, 1 << 20)));
    }

    #[test]
    fn what_is_no_log_of_this_version_is_left_alone() {
        for content in [&b""[..], b"kvslog\0\x02 and what a later version may say", &[7; 4096]] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(NAME), content).unwrap();
            let log = open(&folder);
            let refused = log.follow(&mut Heard::default()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Version);
            assert!(log.lock(&mut Heard::default(), &until()).is_err());
            assert_eq!(std::fs::read(folder.path().join(NAME)).unwrap(), content);
        }
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join(NAME)).unwrap();
        let open = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(Log::open(Arc::new(Folder(open)), 5, 1 << 20, &until()).is_err());
    }

    #[test]
    fn who_waits_for_the_lock_waits_no_longer_than_the_call() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (open(&folder), open(&folder));
        let mut heard = Heard::default();
        let locked = one.lock(&mut heard, &until()).unwrap();
        let soon = Until::new(&Limits { deadline_ms: 20, ..Limits::default() });
        let refused = other.lock(&mut Heard::default(), &soon).err().unwrap();
        assert!(refused.to_string().contains("another process holds the index log"), "{refused}");
        drop(locked);
        assert!(other.lock(&mut Heard::default(), &until()).is_ok());
    }
}
