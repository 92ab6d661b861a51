//! What is done about a chunk whose bytes are not those that were put.
//!
//! The process that meets it removes it from the backend, so that the next put of it stores it again, in whichever process: a
//! backend that has a chunk of the right length answers `existed`, and without the removal the damage would stay for ever.
//! A chunk is removed only after further reads have brought the same wrong bytes: what a faulty wire or memory spoils
//! differs from read to read, and the stored chunk is sound.
//!
//! Between the last of these reads and the removal another process may store the chunk anew. It is then removed though it is
//! sound: a miss for its readers until the next put, never wrong bytes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::open_store::OpenStore;
use crate::backend::{Backend, ChunkHash};
use crate::counters::Event;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log::{self, Level};
use crate::payload::Buffer;
use crate::until::Until;

/// What became of a damaged chunk.
pub(crate) enum Damage {
    /// It was damaged on the way only: these are its bytes.
    Passing(Arc<Buffer>),
    /// The backend does not have it any more.
    Removed,
    /// It could not be removed, and it is for the next put of this process to replace it. Why.
    Stays(Error),
}

impl OpenStore {
    /// The bytes of a chunk, if they are what was put, as far as that can be known. If not, the chunk is removed, or replaced by
    /// the next put, and none is answered.
    pub(super) fn check(&self, hash: &ChunkHash, data: Arc<Buffer>, until: &Until) -> Option<Arc<Buffer>> {
        // What is near was checked when it came.
        if self.near.as_ref().is_some_and(|near| near.holds(hash, &data)) || self.verifier.accepts(hash, &data) {
            return Some(data);
        }
        match self.remove_damaged(hash, &data, &|again| self.verifier.accepts(hash, again), until) {
            Damage::Passing(sound) => Some(sound),
            Damage::Removed | Damage::Stays(_) => None,
        }
    }

    /// Remove a chunk that was fetched with wrong bytes, unless a further read brings right ones. One log line.
    pub(super) fn remove_damaged(
        &self,
        hash: &ChunkHash,
        damaged: &[u8],
        is_sound: &dyn Fn(&[u8]) -> bool,
        until: &Until,
    ) -> Damage {
        self.counters.count(Event::WrongBytes);
        if let Some(near) = &self.near {
            near.forget(hash);
        }
        // Removed or not: what this process has been told of it, as that it is there, does not hold.
        let is_news = self.mark_damaged(hash);
        let (uri, len) = (&self.uri, damaged.len());
        let damage = self.read_and_remove(hash, damaged, is_sound, until).unwrap_or_else(Damage::Stays);
        match &damage {
            Damage::Passing(_) => {
                self.known().stored(*hash);
                log::line(
                    Level::Warn,
                    format_args!("{uri}: chunk {hash} came damaged ({len} bytes), and sound when it was read again"),
                );
            }
            Damage::Removed if is_news => log::line(
                Level::Error,
                format_args!(
                    "{uri}: chunk {hash} is damaged ({len} bytes): not answered, and removed; the next put stores it again"
                ),
            ),
            Damage::Stays(why) if is_news => log::line(
                Level::Error,
                format_args!(
                    "{uri}: chunk {hash} is damaged ({len} bytes): not answered, and not removed ({why}); the next put of \
                     this process replaces it"
                ),
            ),
            Damage::Removed | Damage::Stays(_) => {}
        }
        damage
    }

    fn read_and_remove(
        &self,
        hash: &ChunkHash,
        damaged: &[u8],
        is_sound: &dyn Fn(&[u8]) -> bool,
        until: &Until,
    ) -> Result<Damage, Error> {
        let keeps_all = || Error::new(ErrorKind::Unsupported, "the backend cannot remove chunks");
        if self.keeps_all.load(Relaxed) {
            return Err(keeps_all());
        }
        for _ in 0..limits::CONFIRMING_READS {
            until.expect(damaged.len() as u64);
            match self.get_far(std::slice::from_ref(hash), until)?.pop().transpose()?.flatten() {
                None => return Ok(Damage::Removed),
                Some(again) if is_sound(&again) => return Ok(Damage::Passing(again)),
                Some(again) if again[..] == *damaged => {}
                Some(_) => {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        "each read returned other bytes: check the network and the disk",
                    ));
                }
            }
        }
        let deleted = self.backend.delete(std::slice::from_ref(hash), until);
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
