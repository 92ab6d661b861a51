//! The index log: one order of all that the processes of a store do.
//!
//! A frame of entries is appended under a lock on the folder, behind what is already there and read. What is torn at the end, because
//! its writer died or the power went, is overwritten by the next one: nobody has read it. A log that was compacted is another file
//! under the same name; who follows the old one begins anew. Where there is no log any more, there is nothing in the store.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kv_platform::sync::{Mutex, MutexGuard};
use rustix::fs::{self, AtFlags, OFlags};
use rustix::io::Errno;

use super::folder::{SegmentFolder, io_error};
use super::format::{
    Behind, FRAME_HEADER_BYTES, Framed, Header, LOG_HEADER_BYTES, LogEntry, MAX_FRAME_BYTES, frame, framed,
};
use super::frames::{READ_FIRST, read_frames, read_some};
use super::io::{read_exact_at, sync, sync_data, write_all_at};
use crate::error::{Error, ErrorKind};
use crate::one_at_a_time::{Alone, OneAtATime};
use crate::process::Clock;
use crate::until::Until;

pub const NAME: &str = "index";
const NEW: &str = "index.new";

/// What is done with what the log says.
pub trait Follow {
    /// A log begins: what was known is of another one. None: there is no log.
    fn begin(&mut self, header: Option<&Header>);
    fn apply(&mut self, entry: &LogEntry);
    /// That was all that the log says now.
    fn followed(&mut self);
}

pub struct Log {
    folder: Arc<SegmentFolder>,
    clock: Clock,
    /// Who appends: all threads share the descriptor of the folder, and so would share its lock.
    appending: OneAtATime,
    read: Mutex<LogPosition>,
    /// The file and the length that were read, for those who only want to know whether there is more.
    seen_inode: AtomicU64,
    seen: AtomicU64,
}

/// How far the log was read.
struct LogPosition {
    file: Option<Arc<File>>,
    /// Who follows was told to begin with this file, or with none: not where another one could not be opened, or was not yet.
    begun: bool,
    inode: u64,
    to: u64,
    behind: Behind,
    /// This process has synced its name: whoever gave it that may have died before.
    named: bool,
}

/// The right to read on.
pub struct Tail<'a> {
    log: &'a Log,
    read: MutexGuard<'a, LogPosition>,
}

/// The right to append. Nobody else appends meanwhile; before the first entry all that the log says is to be followed.
pub struct Locked<'a> {
    tail: Tail<'a>,
    // Given back last.
    _alone: Alone<'a>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.tail.log.folder.unlock();
    }
}

impl Log {
    pub fn new(folder: Arc<SegmentFolder>, clock: &Clock) -> Self {
        Log {
            folder,
            clock: clock.clone(),
            appending: OneAtATime::new(clock),
            read: Mutex::new(LogPosition {
                file: None,
                begun: true,
                inode: 0,
                to: 0,
                behind: Behind::default(),
                named: false,
            }),
            seen_inode: AtomicU64::new(0),
            seen: AtomicU64::new(u64::MAX),
        }
    }

    /// The file under the name of the log, and its length. None: there is none.
    fn look(&self) -> Result<Option<(u64, u64)>, Error> {
        match fs::statat(&self.folder.root, NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some((found.st_ino, found.st_size as u64))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::from(errno).context("the index log")),
        }
    }

    /// Whether there is a log.
    pub fn is_there(&self) -> Result<bool, Error> {
        Ok(self.look()?.is_some())
    }

    /// Whether all that the log says was read. One call of the kernel, and no lock.
    pub fn is_current(&self) -> bool {
        let inode = self.seen_inode.load(SeqCst);
        self.look().is_ok_and(|found| found == Some((inode, self.seen.load(SeqCst))))
    }

    /// Bytes that are still to be read.
    pub fn left(&self) -> u64 {
        let len = self.look().ok().flatten().map_or(0, |(_, len)| len);
        let seen = self.seen.load(SeqCst);
        if seen == u64::MAX { len } else { len.saturating_sub(seen) }
    }

    pub fn tail(&self) -> Tail<'_> {
        Tail { log: self, read: self.clock.lock(&self.read) }
    }

    /// Take the right to append.
    pub fn lock(&self, until: &Until) -> Result<Locked<'_>, Error> {
        // Nobody waits for another process with what those need who only read.
        let alone = self.appending.enter(until, |late| late.context("another thread holds the index log"))?;
        self.folder.lock(until)?;
        Ok(Locked { tail: self.tail(), _alone: alone })
    }

    /// Have all that was appended survive a power loss.
    pub fn sync(&self) -> Result<(), Error> {
        let (file, inode, named) = {
            let LogPosition { file, inode, named, .. } = &*self.tail().read;
            (file.clone(), *inode, *named)
        };
        let Some(file) = file else { return Ok(()) };
        let failed = |error: std::io::Error| io_error(&error, "syncing the index log");
        sync_data(&*file).map_err(failed)?;
        if !named {
            self.folder.sync().map_err(|errno| failed(errno.into()))?;
            let read = &mut self.tail().read;
            read.named |= read.inode == inode;
        }
        Ok(())
    }
}

impl Tail<'_> {
    /// Hand on what the log says that was not handed on before. What was read when the time ran out is not read again.
    pub fn follow(&mut self, by: &mut impl Follow, until: &Until) -> Result<(), Error> {
        let mut step = |step: Step<'_>| match step {
            Step::Begin(header) => by.begin(header),
            Step::Apply(entries) => entries.iter().for_each(|entry| by.apply(entry)),
        };
        self.follow_by(&mut step, until)?;
        by.followed();
        Ok(())
    }

    /// The same, a piece of the log at a time.
    pub fn follow_by(&mut self, by: &mut dyn FnMut(Step<'_>), until: &Until) -> Result<(), Error> {
        let found = self.log.look()?;
        if !self.read.begun || found.map(|(inode, _)| inode) != self.read.file.as_ref().map(|_| self.read.inode) {
            self.begin(by)?;
        }
        let LogPosition { file, to, behind, .. } = &mut *self.read;
        if let Some(file) = file {
            let mut each = |entries: Vec<LogEntry>| {
                by(Step::Apply(&entries));
                until.check()
            };
            // Most of the time there is nothing.
            if found.is_none_or(|(_, len)| len > *to) {
                read_frames(file, to, behind, &mut each)?;
            }
            self.log.seen.store(*to, SeqCst);
        }
        Ok(())
    }

    /// What was read is another log's: begin anew.
    fn leave(&mut self) {
        self.log.seen.store(u64::MAX, SeqCst);
        (self.read.file, self.read.begun) = (None, false);
    }

    fn begin(&mut self, by: &mut dyn FnMut(Step<'_>)) -> Result<(), Error> {
        self.leave();
        let folder = &self.log.folder;
        let opened = match folder.read_only {
            true => folder.at(NAME, OFlags::RDONLY)?,
            // A file system that takes nothing can be read.
            false => {
                folder.at(NAME, OFlags::RDWR).or_else(|error| folder.at(NAME, OFlags::RDONLY).map_err(|_| error))?
            }
        };
        let Some(file) = opened else {
            self.read.begun = true;
            by(Step::Begin(None));
            return Ok(());
        };
        let mut header = [0; LOG_HEADER_BYTES];
        let known = read_exact_at(&file, &mut header, 0).ok().and_then(|()| Header::read(&header));
        let (header, behind) = known.ok_or_else(foreign)?;
        let inode = fs::fstat(&file).map_err(|errno| Error::from(errno).context("the index log"))?.st_ino;
        let to = LOG_HEADER_BYTES as u64;
        *self.read = LogPosition { file: Some(Arc::new(file)), begun: true, inode, to, behind, named: false };
        self.log.seen_inode.store(inode, SeqCst);
        by(Step::Begin(Some(&header)));
        Ok(())
    }

    /// Some of the entries that `keeps` wants, from a place on, and where to go on; none: that was all.
    pub fn page(
        &mut self,
        from: Option<Cursor>,
        most: usize,
        keeps: &mut dyn FnMut(&LogEntry) -> bool,
        until: &Until,
    ) -> Result<(Vec<LogEntry>, Option<Cursor>), Error> {
        let LogPosition { file: Some(file), inode, to: end, .. } = &*self.read else { return Ok((Vec::new(), None)) };
        let inode = *inode;
        // In a log that was compacted meanwhile it begins anew.
        let mut at = match from.filter(|from| from.inode == inode && from.at <= *end) {
            Some(from) => from,
            None => {
                let mut header = [0; LOG_HEADER_BYTES];
                read_exact_at(&**file, &mut header, 0).map_err(|error| io_error(&error, "the index log"))?;
                let (_, behind) = Header::read(&header).ok_or_else(foreign)?;
                Cursor { inode, at: LOG_HEADER_BYTES as u64, behind, passed: 0 }
            }
        };
        let (mut found, mut bytes) = (Vec::new(), vec![0; READ_FIRST]);
        loop {
            let mut rest = read_some(file, at.at, &mut bytes)?;
            let (before, all_read) = (at.at, rest.len() < READ_FIRST);
            while let Framed::Entries(entries, taken, next) = framed(rest, at.behind) {
                for entry in entries.into_iter().skip(at.passed as usize) {
                    if found.len() == most {
                        return Ok((found, Some(at)));
                    }
                    at.passed += 1;
                    if keeps(&entry) {
                        found.push(entry);
                    }
                }
                at = Cursor { inode, at: at.at + taken as u64, behind: next, passed: 0 };
                rest = rest.get(taken..).unwrap_or_default();
            }
            if at.at == before && (all_read || bytes.len() > READ_FIRST) {
                return Ok((found, None));
            }
            if at.at == before {
                bytes.resize(FRAME_HEADER_BYTES + MAX_FRAME_BYTES, 0);
            }
            if until.check().is_err() {
                return Ok((found, Some(at)));
            }
        }
    }
}

/// What a log says, piece by piece.
pub enum Step<'a> {
    Begin(Option<&'a Header>),
    Apply(&'a [LogEntry]),
}

/// A place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub inode: u64,
    /// Of a frame, and how many of its entries are passed.
    pub at: u64,
    pub behind: Behind,
    pub passed: u32,
}

impl Locked<'_> {
    /// As [`Tail::follow`].
    pub fn follow(&mut self, by: &mut impl Follow, until: &Until) -> Result<(), Error> {
        self.tail.follow(by, until)
    }

    /// Whether there was a log when it was last followed.
    pub fn has_log(&self) -> bool {
        self.tail.read.file.is_some()
    }

    /// Begin a log where there is none.
    pub fn make(&mut self, header: &Header) -> Result<(), Error> {
        match self.tail.log.is_there()? {
            true => Ok(()),
            false => Anew::begin(&self.tail.log.folder, header)?.finish(),
        }
    }

    /// Append entries, and hand them on. Those of one frame take effect together; an error leaves the log as it was, or with the frames
    /// before it.
    pub fn append(&mut self, mut entries: &[LogEntry], by: &mut impl Follow) -> Result<(), Error> {
        while !entries.is_empty() {
            self.writable()?;
            let LogPosition { file: Some(file), to, behind, .. } = &mut *self.tail.read else { return Err(foreign()) };
            let (bytes, taken, next) = frame(entries, *behind);
            let (now, later) = entries.split_at_checked(taken.max(1)).unwrap_or((entries, &[]));
            let folder = &self.tail.log.folder;
            folder
                .writing(|| write_all_at(&**file, &bytes, *to))
                .map_err(|error| io_error(&error, "writing the index log"))?;
            *to += bytes.len() as u64;
            *behind = next;
            self.tail.log.seen.store(*to, SeqCst);
            now.iter().for_each(|entry| by.apply(entry));
            entries = later;
        }
        Ok(())
    }

    /// Open the log to write if it could only be read.
    fn writable(&mut self) -> Result<(), Error> {
        let Some(file) = &self.tail.read.file else { return Err(foreign()) };
        let mode = fs::fcntl_getfl(file).map_err(|errno| Error::from(errno).context("the index log"))?;
        if mode.contains(OFlags::RDWR) {
            return Ok(());
        }
        let again = self.tail.log.folder.at(NAME, OFlags::RDWR)?.ok_or_else(foreign)?;
        self.tail.read.file = Some(Arc::new(again));
        Ok(())
    }

    /// Have room for entries to come, as far as there is some: a full disk is met when a segment is taken, and not in the middle of a save.
    pub fn reserve(&self, bytes: u64) {
        if let Some(file) = &self.tail.read.file {
            let _ = self
                .tail
                .log
                .folder
                .writing(|| Ok(kv_platform::files::set_room_aside(file, self.tail.read.to, bytes)?));
        }
    }

    /// Bytes of the log.
    pub fn len(&self) -> u64 {
        self.tail.read.to
    }

    /// Put a log in its place that says these entries, and those of the former one that are still to be said. Whoever follows the former
    /// one begins anew.
    pub fn compact(
        &mut self,
        header: &Header,
        (first, last): (&[LogEntry], &[LogEntry]),
        keeps: impl Fn(&LogEntry) -> bool,
    ) -> Result<(), Error> {
        let former = self.tail.read.file.clone().ok_or_else(foreign)?;
        let mut bytes = [0; LOG_HEADER_BYTES];
        read_exact_at(&*former, &mut bytes, 0).map_err(|error| io_error(&error, "the index log"))?;
        let (_, mut behind) = Header::read(&bytes).ok_or_else(foreign)?;
        let mut anew = Anew::begin(&self.tail.log.folder, header)?;
        anew.waiting.extend_from_slice(first);
        let mut at = LOG_HEADER_BYTES as u64;
        read_frames(&former, &mut at, &mut behind, &mut |entries| {
            entries.into_iter().filter(&keeps).try_for_each(|entry| anew.push(entry))
        })?;
        last.iter().try_for_each(|entry| anew.push(entry.clone()))?;
        anew.finish()?;
        self.tail.leave();
        Ok(())
    }
}

/// A log that is written beside the one that is there, and then put in its place.
struct Anew<'a> {
    folder: &'a SegmentFolder,
    file: File,
    at: u64,
    behind: Behind,
    waiting: Vec<LogEntry>,
}

impl<'a> Anew<'a> {
    fn begin(folder: &'a SegmentFolder, header: &Header) -> Result<Self, Error> {
        let file = folder.at(NEW, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?.ok_or_else(foreign)?;
        let header = header.bytes();
        let (_, behind) = Header::read(&header).ok_or_else(foreign)?;
        let mut anew = Anew { folder, file, at: 0, behind, waiting: Vec::new() };
        anew.write(&header)?;
        Ok(anew)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.folder.writing(|| write_all_at(&self.file, bytes, self.at)).map_err(|error| anew_failed(&error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn push(&mut self, entry: LogEntry) -> Result<(), Error> {
        self.waiting.push(entry);
        if self.waiting.len() < ENTRIES_AT_ONCE { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut rest = &waiting[..];
        while !rest.is_empty() {
            let (bytes, taken, next) = frame(rest, self.behind);
            self.write(&bytes)?;
            self.behind = next;
            rest = rest.get(taken.max(1)..).unwrap_or_default();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        self.flush()?;
        sync(&self.file).map_err(|error| anew_failed(&error))?;
        self.folder.rename(NEW, NAME).map_err(|errno| anew_failed(&errno.into()))
    }
}

fn anew_failed(error: &std::io::Error) -> Error {
    io_error(error, "writing the index log anew")
}

/// An entry has less than three hundred bytes: so many fit a frame.
const ENTRIES_AT_ONCE: usize = MAX_FRAME_BYTES / 300;

pub(super) fn foreign() -> Error {
    let message =
        "the index log is of a later version, or is none: it is left alone; name another directory, or update";
    Error::new(ErrorKind::Version, message)
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
