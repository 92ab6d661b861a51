//! What is done about a chunk whose bytes are not those that were put.
//!
//! Invariant: a read destroys nothing by itself. A damaged chunk is a miss, and the next put of this process replaces it. It is
//! removed, so that the put of another process stores it again too, only when it was found damaged with the same bytes a second
//! time, `damaged_ms` later and over another connection: a gateway or a server that answers wrong bytes for a while, or
//! a wire that spoils them, leaves the stored chunk as it is. What does not match because the caller said what keys are is never
//! removed: the caller may be wrong.
//!
//! Between the last of these reads and the removal another process may store the chunk anew. It is then removed though it is
//! sound: a miss for its readers until the next put, never wrong bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::open_store::OpenStore;
use super::suspects::{Damage, Judge, Suspicion, damaged};
use crate::backend::{Backend, ChunkHash, Got};
use crate::counters::{Event, Unanswered};
use crate::error::{Error, ErrorKind};
use crate::log::{self, Level};
use crate::payload::{Buffer, Damaged};
use crate::until::Until;

impl OpenStore {
    /// The bytes of a chunk, if they are what was put, as far as that can be known. If not, the next put replaces it, and none is
    /// answered.
    pub(super) fn check(&self, hash: &ChunkHash, data: Arc<Buffer>, until: &Until) -> Option<Arc<Buffer>> {
        // What lay in an envelope has held against its checksum, and what is near was checked when it came.
        let checked = hash.is_enveloped() || self.near.as_ref().is_some_and(|near| near.holds(hash, &data));
        if checked || self.verifier.accepts(hash, &data) {
            return Some(data);
        }
        let judge = Judge { is_sound: &|again| self.verifier.accepts(hash, again), removable: true };
        match self.found_damaged(hash, damaged(&data), &judge, until) {
            Damage::Passing(sound) => Some(sound),
            Damage::Removed | Damage::Stays(_) => None,
        }
    }

    /// A chunk that came damaged out of its envelope.
    pub(super) fn found_damaged_envelope(&self, hash: &ChunkHash, damaged: Damaged, until: &Until) -> Damage {
        self.found_damaged(hash, damaged, &Judge { is_sound: &|_| true, removable: true }, until)
    }

    /// A chunk was fetched with wrong bytes. One log line.
    pub(super) fn found_damaged(&self, hash: &ChunkHash, damaged: Damaged, judge: &Judge<'_>, until: &Until) -> Damage {
        self.counters.count(Event::WrongBytes);
        if let Some(near) = &self.near {
            near.forget(hash);
        }
        // Whatever becomes of it: what this process has been told of it, as that it is there, does not hold.
        let is_news = self.mark_damaged(hash);
        let (uri, len) = (&self.uri, damaged.len);
        let damage = self.look_again(hash, damaged, judge, until).unwrap_or_else(Damage::Stays);
        if !matches!(damage, Damage::Passing(_)) {
            let why = if judge.removable { Unanswered::Damaged } else { Unanswered::Flag };
            until.dropped_chunk(hash, why);
        }
        match &damage {
            Damage::Passing(_) => {
                self.known().stored(*hash);
                self.suspects.forget(hash);
                log::line(
                    Level::Warn,
                    format_args!("{uri}: chunk {hash} came damaged ({len} bytes), and sound when it was read again"),
                );
            }
            Damage::Removed => {
                self.suspects.forget(hash);
                log::line(
                    Level::Error,
                    format_args!(
                        "{uri}: chunk {hash} is damaged ({len} bytes): not answered, and removed; the next put stores it again"
                    ),
                );
            }
            Damage::Stays(why) if is_news => log::line(
                Level::Error,
                format_args!(
                    "{uri}: chunk {hash} is damaged ({len} bytes): not answered, and not removed ({why}); the next put of \
                     this process replaces it"
                ),
            ),
            Damage::Stays(_) => {}
        }
        damage
    }

    fn look_again(
        &self,
        hash: &ChunkHash,
        damaged: Damaged,
        judge: &Judge<'_>,
        until: &Until,
    ) -> Result<Damage, Error> {
        let waits = |why: &str| Error::new(ErrorKind::Corrupt, why.to_owned());
        let suspicion = self.suspects.found(hash, damaged, self.now(), self.reach.limits.damaged());
        match suspicion {
            Suspicion::New => {}
            Suspicion::Again => return Err(waits("it was found so a moment ago")),
            Suspicion::Old if !judge.removable => return Err(waits("its caller said what keys are")),
            Suspicion::Old if self.keeps_all.load(Relaxed) => return Err(keeps_all()),
            // What is wrong may be the connection, or what is behind it.
            Suspicion::Old => self.backend.drop_connections(),
        }
        until.expect(damaged.len as u64);
        match self.read_again(hash, judge, until)? {
            None => return Ok(Damage::Removed),
            Some(Ok(sound)) => return Ok(Damage::Passing(sound)),
            Some(Err(again)) if again == damaged => {}
            Some(Err(_)) => {
                self.suspects.forget(hash);
                return Err(waits("each read returned other bytes: check the network and the disk"));
            }
        }
        match suspicion {
            Suspicion::Old => self.remove_damaged(hash, until),
            _ if judge.removable => Err(waits("it is removed if it is found so once more, seconds later")),
            _ => Err(waits("its caller said what keys are")),
        }
    }

    /// What the backend answers for a chunk: sound bytes, or what is wrong.
    #[allow(clippy::type_complexity, reason = "nothing, or bytes that are sound or not")]
    fn read_again(
        &self,
        hash: &ChunkHash,
        judge: &Judge<'_>,
        until: &Until,
    ) -> Result<Option<Result<Arc<Buffer>, Damaged>>, Error> {
        let answer = self.far().get(std::slice::from_ref(hash), &mut [], until)?.pop().transpose()?.flatten();
        Ok(answer.and_then(|got| match got {
            Got::Buffer(data) if (judge.is_sound)(&data) => Some(Ok(data)),
            Got::Buffer(data) => Some(Err(self::damaged(&data))),
            Got::Damaged(damaged) => Some(Err(*damaged)),
            // There is no memory that it could be in, or be too small.
            Got::Placed(_) | Got::TooLong(_) => None,
        }))
    }

    fn remove_damaged(&self, hash: &ChunkHash, until: &Until) -> Result<Damage, Error> {
        // Its saves must not count on what was said of it before, nor on what is said while it goes.
        self.removing([hash]);
        let deleted = self.backend.delete(std::slice::from_ref(hash), until);
        self.removing([hash]);
        match deleted.and_then(|answers| answers.into_iter().collect()) {
            Ok(()) => {
                self.counters.count(Event::Removed);
                Ok(Damage::Removed)
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.keeps_all.store(true, Relaxed);
                Err(keeps_all())
            }
            Err(error) => Err(error),
        }
    }
}

fn keeps_all() -> Error {
    Error::new(ErrorKind::Unsupported, "the backend cannot remove chunks")
}
