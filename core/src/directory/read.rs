//! Reading files. A file is opened non-blocking and must be regular: a planted FIFO must not hang a call.
//!
//! What lies in memory is read at once, by the thread whose call it is, straight into the caller's memory. All the rest of a batch is under
//! way at the same time, see [`reads`](crate::reads), and the call waits for it until its deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use kv_platform::files::Memory;
use kv_platform::paths;
use rustix::fs::{self, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::{Directory, RelativePath, not_regular, usage};
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_READS;
use crate::payload::Destination;
use crate::reads::{
    Arrived, Buffers, Flight, PROBE_BYTES, Parts, Range, Read, ReadPermit, fill, first_part, parts, read_now,
};
use crate::until::Until;

/// What is left of a file is read ahead by the kernel whole, if it is not longer: the usual bound of readahead.
const READ_AHEAD: u64 = 128 << 10;

/// So many files that are read ahead and have not come are looked at before the others are left for later.
const LATE: usize = 4;

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// Bytes of a file, from `offset`: `len`, or all to the end.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub path: RelativePath,
    pub offset: u64,
    pub len: Option<u64>,
}

/// What became of a read.
pub struct Found {
    /// False: there is no such file.
    pub read: Result<bool, Error>,
    /// The memory that was answered for it. If the file became shorter meanwhile, or the read failed, it is partly empty.
    pub destination: Option<Destination>,
}

/// Memory for so many bytes of the item of a number, or why there is none. It is asked before the bytes are put anywhere.
pub type Room<'a> = dyn FnMut(usize, u64) -> Result<Destination, Error> + 'a;

impl Directory {
    /// Read one file: see [`Directory::read_all`].
    pub fn read(
        self: &Arc<Self>,
        wanted: Wanted,
        until: Option<&Until>,
        room: &mut dyn FnMut(u64) -> Result<Destination, Error>,
    ) -> Found {
        let found = self.read_all([Ok(wanted)], until, &mut |_, len| room(len)).pop();
        found.unwrap_or_else(|| failed(Error::new(ErrorKind::Other, "nothing was read")))
    }

    /// Read files, by the deadline of a call if there is one: an outcome for each, or for the first ones only where the time is over before a
    /// further one was begun, or `room` has answered `Exhausted`. Then what lies behind the first such outcome is nothing but memory to be
    /// given back.
    pub fn read_all(
        self: &Arc<Self>,
        wanted: impl IntoIterator<Item = Result<Wanted, Error>, IntoIter: ExactSizeIterator>,
        until: Option<&Until>,
        room: &mut Room<'_>,
    ) -> Vec<Found> {
        let wanted = wanted.into_iter();
        let mut batch = FileReads {
            directory: self,
            until,
            room,
            found: Vec::with_capacity(wanted.len()),
            flight: Flight::new(&self.shared.readers, &self.whose),
            open: HashMap::default(),
            unopened: BTreeSet::new(),
            opened: BTreeMap::new(),
            ahead: VecDeque::new(),
            waited_for: 1,
            most: wanted.len(),
        };
        for (index, wanted) in wanted.enumerate() {
            if !batch.make_place() || index >= batch.most {
                break;
            }
            let now = self.shared.clock.now();
            if index > 0 && until.is_some_and(|until| until.deadline() <= now) {
                break;
            }
            batch.found.push(None);
            match wanted {
                Ok(wanted) => batch.begin(index, wanted, now),
                Err(error) => batch.settle(index, failed(error)),
            }
        }
        batch.finish()
    }
}

/// What comes back from the threads that read.
enum ReadCompletion {
    Missing,
    Opened(OpenedFile),
    Part(Read),
}

/// A file that another thread has opened.
struct OpenedFile {
    file: Arc<OwnedFd>,
    /// The bytes that are wanted of it.
    begin: u64,
    len: u64,
    /// The first of them.
    first: Read,
    /// It goes around the page cache.
    around: bool,
}

/// An item whose parts are under way.
struct Open {
    destination: Destination,
    parts: Parts,
}

/// A short file of which the kernel reads the rest into the page cache, though nobody waits for it.
struct Ahead {
    index: usize,
    file: OwnedFd,
    destination: Destination,
    begin: u64,
    end: u64,
}

/// The reads of one call.
struct FileReads<'a> {
    directory: &'a Arc<Directory>,
    until: Option<&'a Until>,
    room: &'a mut Room<'a>,
    /// None: it is under way.
    found: Vec<Option<Found>>,
    flight: Flight<'a, ReadCompletion>,
    open: HashMap<usize, Open, foldhash::fast::RandomState>,
    /// Files that others open, and those of them that are open before an earlier one: memory is asked for in their order, or the first one
    /// could be left without.
    unopened: BTreeSet<usize>,
    opened: BTreeMap<usize, (OpenedFile, ReadPermit)>,
    /// In the order in which they were begun.
    ahead: VecDeque<Ahead>,
    /// How many of those `ahead` others wait for while none has come.
    waited_for: usize,
    /// How many outcomes there will be.
    most: usize,
}

impl FileReads<'_> {
    fn begin(&mut self, index: usize, wanted: Wanted, now: Instant) {
        match self.directory.open_now(&wanted.path, now) {
            Ok(file) => {
                if let Err(error) = self.read_here(index, file, &wanted) {
                    self.settle(index, failed(error));
                }
            }
            Err(Errno::NOENT) => self.settle(index, Found { read: Ok(false), destination: None }),
            Err(Errno::AGAIN) => {
                let directory = self.directory.clone();
                self.unopened.insert(index);
                self.flight.start((index, 0), move |buffers| directory.open_and_read(&wanted, buffers));
            }
            Err(errno) => self.settle(index, failed(errno.into())),
        }
    }

    /// Read what lies in memory of a file, and begin to read the rest.
    fn read_here(&mut self, index: usize, file: OwnedFd, wanted: &Wanted) -> Result<(), Error> {
        let directory = self.directory;
        let (stat, len) = directory.look_at(&file, wanted)?;
        let mut destination = self.room_for(index, len)?;
        let (filled, outcome) = directory.read_now(&file, &mut destination, wanted.offset, len);
        self.moved(filled);
        let (begin, end) = (wanted.offset + filled, wanted.offset + len);
        match outcome {
            Err(Errno::AGAIN) => {
                // A part lies in the cache, and the kernel has begun to read the rest into it.
                let around = filled == 0 && directory.goes_around(&file, &stat, len);
                if !around && end - begin <= READ_AHEAD {
                    self.ahead.push_back(Ahead { index, file, destination, begin, end });
                    return Ok(());
                }
                self.begin_parts(index, destination, &Arc::new(file), (begin, end), around);
            }
            outcome => self.came(index, destination, outcome),
        }
        Ok(())
    }

    /// Memory for an item. Where there is none, what follows is for another call: what was read so far may make room when it is handed on.
    fn room_for(&mut self, index: usize, len: u64) -> Result<Destination, Error> {
        match (self.room)(index, len) {
            Ok(destination) => Ok(destination),
            Err(error) => {
                if error.kind() == ErrorKind::Exhausted && index > 0 {
                    self.most = self.most.min(index);
                }
                Err(error)
            }
        }
    }

    /// Begin to read what is left of a file, from `begin` to `end`.
    fn begin_parts(
        &mut self,
        index: usize,
        destination: Destination,
        file: &Arc<OwnedFd>,
        (begin, end): (u64, u64),
        around: bool,
    ) {
        let mut expected = Parts::default();
        for (at, len) in parts(begin, end) {
            let around = around.then(|| self.directory.around.clone());
            let range = Range { file: file.clone(), at, len, around };
            self.flight
                .start((index, expected.expect(len)), move |buffers| range.read(buffers).map(ReadCompletion::Part));
        }
        self.open.insert(index, Open { destination, parts: expected });
    }

    /// Have fewer reads under way than a call may have, before a further one is begun. False: the time is over.
    fn make_place(&mut self) -> bool {
        while self.flight.is_full() || self.ahead.len() >= MAX_READS {
            match self.go_on() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_late) => return false,
            }
        }
        true
    }

    /// Wait for all that is under way.
    fn finish(mut self) -> Vec<Found> {
        if self.flight.not_come() > 0 || !self.ahead.is_empty() || self.most < self.found.len() {
            self.wait_for_all();
        }
        self.found.into_iter().map_while(|found| found).collect()
    }

    fn wait_for_all(&mut self) {
        let unsettled = loop {
            match self.go_on() {
                Ok(true) => {}
                Ok(false) => {
                    break Error::new(ErrorKind::Exhausted, "there was no room for what is asked for before it");
                }
                Err(late) => break late.context("the disk has not answered"),
            }
        };
        for Ahead { index, destination, .. } in std::mem::take(&mut self.ahead) {
            self.settle(index, Found { read: Err(unsettled.clone()), destination: Some(destination) });
        }
        for index in 0..self.found.len() {
            if self.found.get(index).is_some_and(Option::is_none) {
                self.fail(index, unsettled.clone());
            }
        }
    }

    /// Wait for a read that is under way. False: there is none.
    fn go_on(&mut self) -> Result<bool, Error> {
        self.take_ahead();
        let arrived = self.flight.next(self.until)?;
        let there_was = arrived.is_some();
        arrived.into_iter().for_each(|arrived| self.arrive(arrived));
        Ok(there_was)
    }

    /// Read what has come of what the kernel reads ahead. For one file in the middle of what has not, another thread waits, so that half of
    /// it has come when this one is woken; for ever more of them where nothing comes, because the kernel reads nothing ahead.
    fn take_ahead(&mut self) {
        if self.ahead.is_empty() {
            return;
        }
        let (mut late, mut came) = (Vec::new(), false);
        while late.len() < LATE
            && let Some(ahead) = self.ahead.pop_front()
        {
            match self.read_ahead(ahead) {
                None => came = true,
                Some(ahead) => late.push(ahead),
            }
        }
        late.into_iter().rev().for_each(|ahead| self.ahead.push_front(ahead));
        self.waited_for = if came { 1 } else { (2 * self.waited_for).min(MAX_READS) };
        while self.flight.not_come() < self.waited_for
            && let Some(Ahead { index, file, destination, begin, end }) = self.ahead.remove(self.ahead.len() / 2)
        {
            self.begin_parts(index, destination, &Arc::new(file), (begin, end), false);
        }
    }

    /// Read on in a file that the kernel reads ahead. It is given back if not all has come.
    fn read_ahead(&mut self, ahead: Ahead) -> Option<Ahead> {
        let Ahead { index, file, mut destination, begin, end } = ahead;
        let (filled, outcome) = self.directory.read_now(&file, &mut destination, begin, end - begin);
        self.moved(filled);
        match outcome {
            Err(Errno::AGAIN) => {
                return Some(Ahead { index, file, destination, begin: begin + filled, end });
            }
            outcome => self.came(index, destination, outcome),
        }
        None
    }

    /// Nothing more comes of an item.
    fn came(&mut self, index: usize, destination: Destination, outcome: Result<(), Errno>) {
        let read = outcome.map(|()| true).map_err(Error::from);
        self.settle(index, Found { read, destination: Some(destination) });
    }

    fn arrive(&mut self, arrived: Arrived<ReadCompletion>) {
        let Arrived { tag: (index, number), outcome, permit } = arrived;
        if index >= self.most || self.found.get(index).is_none_or(Option::is_some) {
            // It has failed, or is for another call.
            return;
        }
        match outcome {
            Ok(ReadCompletion::Part(part)) => {
                if let Some(open) = self.open.get_mut(&index) {
                    open.parts.put(number, part, permit);
                    self.place_parts(index);
                }
            }
            Ok(ReadCompletion::Missing) => {
                self.unopened.remove(&index);
                self.settle(index, Found { read: Ok(false), destination: None });
            }
            Ok(ReadCompletion::Opened(opened)) => {
                self.opened.insert(index, (opened, permit));
            }
            Err(error) => {
                self.unopened.remove(&index);
                self.fail(index, error);
            }
        }
        self.take_opened();
    }

    /// Go on with the files that are open, up to the first that is not.
    fn take_opened(&mut self) {
        while let Some(first) = self.unopened.first().copied()
            && let Some((opened, _permit)) = self.opened.remove(&first)
        {
            self.unopened.remove(&first);
            if first < self.most
                && let Err(error) = self.opened(first, opened)
            {
                self.settle(first, failed(error));
            }
        }
    }

    /// Another thread has opened a file and read its beginning.
    fn opened(&mut self, index: usize, opened: OpenedFile) -> Result<(), Error> {
        let OpenedFile { file, begin, len, first, around } = opened;
        let mut destination = self.room_for(index, len)?;
        let (read, wanted) = (first.bytes().len(), first_part(begin, begin + len));
        destination.push(first.bytes());
        self.moved(read as u64);
        if read < wanted || read as u64 == len {
            self.settle(index, Found { read: Ok(true), destination: Some(destination) });
            return Ok(());
        }
        self.begin_parts(index, destination, &file, (begin + read as u64, begin + len), around);
        Ok(())
    }

    /// Put the parts where they belong that are next in order.
    fn place_parts(&mut self, index: usize) {
        let Some(open) = self.open.get_mut(&index) else { return };
        let (mut moved, mut ended) = (0, false);
        while let Some((part, wanted, _permit)) = open.parts.take() {
            open.destination.push(part.bytes());
            moved += part.bytes().len() as u64;
            // The file became shorter.
            ended |= part.bytes().len() < wanted;
        }
        let done = ended || open.parts.is_done();
        self.moved(moved);
        if done && let Some(Open { destination, .. }) = self.open.remove(&index) {
            self.settle(index, Found { read: Ok(true), destination: Some(destination) });
        }
    }

    fn moved(&self, bytes: u64) {
        self.until.into_iter().for_each(|until| until.moved(bytes));
    }

    fn fail(&mut self, index: usize, error: Error) {
        let destination = self.open.remove(&index).map(|open| open.destination);
        self.settle(index, Found { read: Err(error), destination });
    }

    fn settle(&mut self, index: usize, found: Found) {
        if let Some(place) = self.found.get_mut(index) {
            *place = Some(found);
        }
    }
}

fn failed(error: Error) -> Found {
    Found { read: Err(error), destination: None }
}

impl Directory {
    /// Open a file if nothing has to be waited for. `AGAIN`: something may have to be.
    fn open_now(&self, path: &RelativePath, now: Instant) -> Result<OwnedFd, Errno> {
        if self.memory == Memory::Unknown {
            return Err(Errno::AGAIN);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let parent = self.parents.get(path.parent(), now, || {
            let path = if path.parent().is_empty() { ".".to_owned() } else { format!("{}/.", path.parent()) };
            paths::open_cached(&self.root, &path, flags)
        })?;
        match paths::open_cached(&**parent, path.name(), FLAGS) {
            // A directory that was removed holds nothing, and another may be in its place.
            Err(Errno::NOENT) if parent.is_removed()? => Err(Errno::AGAIN),
            opened => opened,
        }
    }

    /// What there is about a file that is to be read, and how many bytes of it are wanted.
    fn look_at(&self, file: &OwnedFd, wanted: &Wanted) -> Result<(Stat, u64), Error> {
        let stat = fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_regular());
        }
        self.note_use(&stat, |times| fs::futimens(file, times));
        let behind = (stat.st_size as u64).checked_sub(wanted.offset);
        let len = match (behind, wanted.len) {
            (Some(behind), None) => behind,
            (Some(behind), Some(len)) if len <= behind => len,
            _ => return Err(Error::invalid(format!("the file ends at {}, before the range asked for", stat.st_size))),
        };
        Ok((stat, len))
    }

    /// Read what lies in memory: how many bytes, and why not more. `AGAIN`: the rest must be waited for.
    fn read_now(&self, file: &OwnedFd, destination: &mut Destination, at: u64, len: u64) -> (u64, Result<(), Errno>) {
        let most = if self.memory == Memory::Some && self.around.may_want(len) { PROBE_BYTES } else { usize::MAX };
        // SAFETY: the pieces are memory that is borrowed mutably and may hold anything.
        fill(destination, at, most, |pieces, at| match unsafe { read_now(self.memory(), file, pieces, at) } {
            Err(Errno::OPNOTSUPP) => {
                self.untold.store(true, Relaxed);
                Err(Errno::AGAIN)
            }
            read => read,
        })
    }

    /// On a thread that may wait: open a file, and read the first part of it.
    fn open_and_read(&self, wanted: &Wanted, buffers: &Buffers) -> Result<ReadCompletion, Error> {
        let file = match self.open_file(&wanted.path, FLAGS) {
            Err(Errno::NOENT) => return Ok(ReadCompletion::Missing),
            opened => opened?,
        };
        let (stat, len) = self.look_at(&file, wanted)?;
        let (begin, around) = (wanted.offset, self.goes_around(&file, &stat, len));
        let file = Arc::new(file);
        let around_cache = around.then(|| self.around.clone());
        let range = Range { file: file.clone(), at: begin, len: first_part(begin, begin + len), around: around_cache };
        let first = range.read(buffers)?;
        Ok(ReadCompletion::Opened(OpenedFile { file, begin, len, first, around }))
    }

    /// Whether what is left of a file is read around the page cache from now on.
    fn goes_around(&self, file: &OwnedFd, stat: &Stat, len: u64) -> bool {
        // A name may be given to other bytes, and the number of a file to another.
        let which = stat.st_ino ^ usage::written(stat).rotate_left(32);
        self.memory != Memory::All && self.around.wants(len, which) && self.around.turn(file)
    }
}
