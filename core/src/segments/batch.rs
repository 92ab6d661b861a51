//! Reads of several records. What lies in memory is read at once, and all the rest is under way at the same time, see
//! [`reads`](crate::reads).

use std::fs::File;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::format::{Key, Place};
use super::segment::{RecordFilling, name_of};
use super::store::SegmentStore;
use crate::directory::{Directory, Found, Room};
use crate::error::{Error, ErrorKind};
use crate::reads::{Arrived, Flight, Parts, Range, Read, parts};
use crate::until::Until;

/// A record that is to be read.
pub type RecordRead<'a> = (Place, Key<'a>);

/// A record whose parts are under way.
struct OpenRecord {
    filling: RecordFilling,
    parts: Parts,
}

/// The reads of one call.
struct RecordReads<'a, 'k> {
    store: &'a SegmentStore,
    directory: &'a Directory,
    wanted: &'a [RecordRead<'k>],
    until: &'a Until,
    room: &'a mut Room<'a>,
    flight: Flight<'a, Read>,
    open: Vec<Option<OpenRecord>>,
    found: Vec<Option<Found>>,
}

impl SegmentStore {
    /// Read records, by the deadline of a call: an outcome for each, or for the first ones only where `room` answers `Exhausted` for a
    /// further one, or the time is over before that was begun. False: it is not there any more, or is not what was put. `directory`: as
    /// which somebody has the store's folder.
    pub fn read_all(
        &self,
        wanted: &[RecordRead<'_>],
        directory: &Directory,
        until: &Until,
        room: &mut Room<'_>,
    ) -> Vec<Found> {
        let flight = Flight::new(directory.readers(), directory.whose());
        let (open, found) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        let mut batch = RecordReads { store: self, directory, wanted, until, room, flight, open, found };
        for (index, (place, key)) in wanted.iter().enumerate() {
            if index > 0 && until.check().is_err() || !batch.make_place() {
                break;
            }
            let begun = batch.begin(index, place, *key);
            match begun {
                Err(error) if error.kind() == ErrorKind::Exhausted && index > 0 => break,
                begun => {
                    batch.open.push(None);
                    batch.found.push(None);
                    match begun {
                        Ok(Begun::Done(found)) => batch.settle(index, found),
                        Ok(Begun::Cold(cold)) => batch.begin_parts(index, *cold),
                        Err(error) => batch.settle(index, Found { read: Err(error), destination: None }),
                    }
                }
            }
        }
        batch.finish()
    }

    /// The file of a segment, to be read around the page cache.
    fn file_around(&self, segment: u32) -> Result<Option<Arc<File>>, Error> {
        Ok(self.folder.at(&name_of(segment), OFlags::RDONLY)?.map(Arc::new))
    }
}

/// What came of what lies in memory.
enum Begun {
    Done(Found),
    Cold(Box<Cold>),
}

/// What does not.
struct Cold {
    filling: RecordFilling,
    file: Arc<File>,
    begin: u64,
    end: u64,
}

impl RecordReads<'_, '_> {
    fn begin(&mut self, index: usize, place: &Place, key: Key<'_>) -> Result<Begun, Error> {
        let Some(file) = self.store.file(place.segment)? else {
            return Ok(Begun::Done(Found { read: Ok(false), destination: None }));
        };
        let mut filling = RecordFilling::new(place, key, (self.room)(index, place.len.into())?);
        let begin = place.offset();
        let end = begin + filling.left();
        let probe = self.directory.around().may_want(end - begin);
        let (filled, outcome) = filling.read_now(&file, begin, self.directory.memory(), probe);
        self.until.moved(filled);
        match outcome {
            Ok(()) => Ok(Begun::Done(judged(filling, key))),
            Err(Errno::AGAIN) => {
                let cold = Cold { filling, file: file.clone(), begin: begin + filled, end };
                Ok(Begun::Cold(Box::new(cold)))
            }
            Err(errno) => {
                let error = Error::from(errno).context("reading a segment");
                Ok(Begun::Done(Found { read: Err(error), destination: Some(filling.destination) }))
            }
        }
    }

    fn begin_parts(&mut self, index: usize, cold: Cold) {
        let Cold { filling, mut file, begin, end } = cold;
        let mut around = None;
        let which =
            self.wanted.get(index).map_or(0, |(place, _)| (u64::from(place.segment) << 32) | u64::from(place.unit));
        // A descriptor of its own: the other one is also read through the cache.
        // Where a part lies in the cache, the kernel has begun to read the rest into it.
        let is_whole = self.wanted.get(index).is_some_and(|(place, _)| place.offset() == begin);
        if is_whole
            && self.directory.around().wants(end - begin, which)
            && let Ok(Some(other)) =
                self.store.file_around(self.wanted.get(index).map_or(0, |(place, _)| place.segment))
            && self.directory.around().turn(&*other)
        {
            (file, around) = (other, Some(self.directory.around().clone()));
        }
        let mut expected = Parts::default();
        for (at, len) in parts(begin, end) {
            let range = Range { file: file.clone(), at, len, around: around.clone() };
            self.flight.start((index, expected.expect(len)), move |buffers| range.read(buffers));
        }
        if let Some(open) = self.open.get_mut(index) {
            *open = Some(OpenRecord { filling, parts: expected });
        }
    }

    fn arrive(&mut self, arrived: Arrived<Read>) {
        let Arrived { tag: (index, number), outcome, permit } = arrived;
        let Some(of_item) = self.open.get_mut(index) else { return };
        let Some(open) = of_item else { return };
        let (mut moved, mut done) = (0, false);
        let mut failed = None;
        match outcome {
            Ok(read) => {
                open.parts.put(number, read, permit);
                while let Some((part, wanted, _permit)) = open.parts.take() {
                    open.filling.push(part.bytes());
                    moved += part.bytes().len() as u64;
                    // The segment became shorter.
                    done |= part.bytes().len() < wanted;
                }
                done |= open.parts.is_done();
            }
            Err(error) => failed = Some(error.context("reading a segment")),
        }
        self.until.moved(moved);
        if (done || failed.is_some())
            && let Some(OpenRecord { filling, .. }) = of_item.take()
            && let Some((_, key)) = self.wanted.get(index)
        {
            let found = match failed {
                Some(error) => Found { read: Err(error), destination: Some(filling.destination) },
                None => judged(filling, *key),
            };
            self.settle(index, found);
        }
    }

    /// Have fewer reads under way than a call may have, before a further one is begun. False: the time is over.
    fn make_place(&mut self) -> bool {
        while self.flight.is_full() {
            match self.flight.next(Some(self.until)) {
                Ok(Some(arrived)) => self.arrive(arrived),
                Ok(None) => break,
                Err(_late) => return false,
            }
        }
        true
    }

    /// Wait for all that is under way.
    fn finish(mut self) -> Vec<Found> {
        loop {
            match self.flight.next(Some(self.until)) {
                Ok(Some(arrived)) => self.arrive(arrived),
                Ok(None) => break,
                Err(late) => {
                    let late = late.context("the disk has not answered");
                    for index in 0..self.open.len() {
                        if let Some(OpenRecord { filling, .. }) = self.open.get_mut(index).and_then(Option::take) {
                            let destination = Some(filling.destination);
                            self.settle(index, Found { read: Err(late.clone()), destination });
                        }
                    }
                    break;
                }
            }
        }
        self.found.into_iter().map_while(|found| found).collect()
    }

    fn settle(&mut self, index: usize, found: Found) {
        if let Some(place) = self.found.get_mut(index) {
            *place = Some(found);
        }
    }
}

/// Whether what was read is what was put there.
fn judged(filling: RecordFilling, key: Key<'_>) -> Found {
    Found { read: Ok(filling.holds(key)), destination: Some(filling.destination) }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
