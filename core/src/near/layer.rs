//! A near level around a backend.

use std::sync::Arc;

use super::copies::{Copy, Since};
use super::level::{NearLevel, NearUsage};
use super::{CopyKey, Scope};
use crate::backend::{Answers, Backend, Bytes, Changes, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::counters::Event;
use crate::envelope::stored_key;
use crate::error::{Error, contract_violation};
use crate::payload::Buffer;
use crate::until::Until;

/// What is known of a store's keys.
pub trait ContentKeys: Send + Sync {
    /// Whether keys may be hashes of the content.
    fn may_be(&self) -> bool;

    /// Whether this key is the hash of this content, which lies in pieces, as the store's keys are.
    fn is_key_of(&self, key: &ChunkHash, content: &[&[u8]]) -> bool;
}

pub struct NearLayer {
    inner: Arc<dyn Backend>,
    level: Arc<NearLevel>,
    scope: Scope,
    keys: Arc<dyn ContentKeys>,
    changes: Arc<Changes>,
}

/// What is known of an item of a get before the backend is asked.
enum Looked {
    Fresh(Arc<Buffer>),
    /// Too old to be answered unless the backend still has the chunk.
    Old(Arc<Buffer>),
    Nothing,
}

impl NearLayer {
    /// changes: those of the store that may still be carried out.
    pub fn new(
        inner: Arc<dyn Backend>,
        level: Arc<NearLevel>,
        scope: Scope,
        keys: Arc<dyn ContentKeys>,
        changes: Arc<Changes>,
    ) -> Self {
        NearLayer { inner, level, scope, keys, changes }
    }

    /// The backend without the level.
    pub fn far(&self) -> &dyn Backend {
        &*self.inner
    }

    pub fn usage(&self) -> NearUsage {
        self.level.usage()
    }

    /// Remove the copy of a chunk.
    pub fn forget(&self, hash: &ChunkHash) {
        if let Some(key) = self.key(hash) {
            self.level.forget(&key);
        }
    }

    /// Whether these very bytes are the copy of a chunk, which was held against its hash when it came.
    pub fn holds(&self, hash: &ChunkHash, data: &Arc<Buffer>) -> bool {
        self.key(hash).is_some_and(|key| self.level.holds(&key, data))
    }

    /// None: it is no content hash. What lies in an envelope is none.
    fn key(&self, hash: &ChunkHash) -> Option<CopyKey> {
        if hash.is_enveloped() {
            return None;
        }
        Some(CopyKey { scope: self.scope, hash: hash.as_slice().try_into().ok()? })
    }

    /// None: it is not kept. While a removal may still be carried out that ended unknown, a copy would outlive the chunk, and nobody would
    /// be told.
    fn since(&self, hash: &ChunkHash) -> Option<(CopyKey, Since)> {
        let key = self.key(hash).filter(|_| self.keys.may_be())?;
        // Nearly always none may, and then no key is made to look for.
        if self.changes.holds() && self.changes.is_unsettled(&stored_key(hash)) {
            return None;
        }
        Some((key, self.level.since(&key)))
    }

    fn look(&self, hash: &ChunkHash, until: &Until) -> Looked {
        match self.key(hash).filter(|_| self.keys.may_be()).and_then(|key| self.level.find(&key, until)) {
            Some(copy) if self.level.is_fresh(&copy) => Looked::Fresh(copy.data),
            Some(Copy { data, .. }) => Looked::Old(data),
            None => Looked::Nothing,
        }
    }

    /// Ask the backend whether it still has what is near and old. What it has is as good as new, what it has not is forgotten, and
    /// what it does not answer is fetched.
    fn confirm(&self, hashes: &[ChunkHash], looked: &mut [Looked], until: &Until) {
        let old = |item: &(&ChunkHash, &mut Looked)| matches!(item.1, Looked::Old(_));
        let mut old: Vec<(&ChunkHash, &mut Looked)> = hashes.iter().zip(looked).filter(old).collect();
        while !old.is_empty() {
            let asked: Vec<ChunkHash> = old.iter().map(|(hash, _)| **hash).collect();
            let since: Vec<_> = asked.iter().map(|hash| self.since(hash)).collect();
            let Ok(answers) = self.inner.exists(&asked, until) else { break };
            let answered = answers.len().clamp(1, old.len());
            for (((hash, looked), since), answer) in old.drain(..answered).zip(since).zip(answers) {
                let found = std::mem::replace(looked, Looked::Nothing);
                match (answer, since, found) {
                    (Ok(Presence::Present(len)), Some((key, since)), Looked::Old(data))
                        if len.is_none_or(|len| len == data.len() as u64) =>
                    {
                        if !self.level.confirm(&key, since) {
                            self.level.keep(&key, data.clone(), since);
                        }
                        self.level.count(Event::NearConfirmed, 1);
                        *looked = Looked::Fresh(data);
                    }
                    (Ok(_), ..) => self.forget(hash),
                    _ => {}
                }
            }
        }
        old.into_iter().for_each(|(_, looked)| *looked = Looked::Nothing);
    }

    fn forget_absent(&self, hashes: &[ChunkHash], answers: &[Result<Presence, Error>]) {
        let absent = hashes.iter().zip(answers).filter(|(_, answer)| matches!(answer, Ok(Presence::Absent)));
        absent.for_each(|(hash, _)| self.forget(hash));
    }

    /// Keep what a call has brought, where its key is the hash of it.
    fn keep(
        &self,
        hash: &ChunkHash,
        since: Option<(CopyKey, Since)>,
        data: impl FnOnce() -> Result<Arc<Buffer>, Error>,
    ) {
        if let Some((key, since)) = since
            && let Ok(data) = data()
            && self.keys.is_key_of(hash, &[&data])
        {
            self.level.keep(&key, data, since);
        }
    }
}

impl Backend for NearLayer {
    /// The backend alone knows.
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.inner.exists(hashes, until).inspect(|answers| self.forget_absent(hashes, answers))
    }

    fn exists_for_put(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.inner.exists_for_put(hashes, until).inspect(|answers| self.forget_absent(hashes, answers))
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let fits = |data: &Bytes<'_>| self.level.has_room_for(data.len());
        let since: Vec<_> = chunks.iter().map(|(hash, data)| self.since(hash).filter(|_| fits(data))).collect();
        let answers = self.inner.put(chunks, replace, until)?;
        for (((hash, data), since), answer) in chunks.iter().zip(since).zip(&answers) {
            let Some((key, since)) = since.filter(|_| answer.is_ok()) else { continue };
            let pieces: &[&[u8]] = match data {
                Bytes::Borrowed(bytes) => &[bytes],
                Bytes::Scattered(pieces) => pieces,
                Bytes::Buffered(buffer) => &[buffer],
            };
            if !self.keys.is_key_of(hash, pieces) {
                // What is near is what the key said before.
                self.level.forget(&key);
            } else if !self.level.confirm(&key, since) {
                let kept = match data {
                    Bytes::Buffered(buffer) => Ok(Arc::clone(buffer)),
                    _ => Buffer::concat(pieces).map(Arc::new),
                };
                // Without memory for it the chunk is not kept.
                if let Ok(kept) = kept {
                    self.level.keep(&key, kept, since);
                }
            }
        }
        Ok(answers)
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let mut looked: Vec<Looked> = hashes.iter().map(|hash| self.look(hash, until)).collect();
        self.confirm(hashes, &mut looked, until);
        let far: Vec<usize> = looked
            .iter()
            .enumerate()
            .filter(|(_, at)| !matches!(at, Looked::Fresh(_)))
            .map(|(index, _)| index)
            .collect();
        let hits = looked.len() - far.len();
        let (fetched, failure) = match self.fetch(hashes, targets, &far, until) {
            Ok(fetched) => (fetched, None),
            Err(error) if hits == 0 => return Err(error),
            // What is near is answered all the same.
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut fetched = fetched.into_iter();
        let mut answers = Vec::with_capacity(hashes.len());
        for (index, looked) in looked.into_iter().enumerate() {
            answers.push(match looked {
                Looked::Fresh(data) => {
                    self.level.count(Event::NearHits, 1);
                    self.level.count(Event::NearBytes, data.len() as u64);
                    match targets.get_mut(index).and_then(|target| target.place(&data)) {
                        Some(placed) => Ok(Some(placed)),
                        None => Ok(Some(Got::Buffer(data))),
                    }
                }
                _ => match (fetched.next(), &failure) {
                    (Some(answer), _) => answer,
                    (None, Some(error)) => Err(error.clone()),
                    // The backend has answered less, and so does this.
                    (None, None) => break,
                },
            });
        }
        Ok(answers)
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        // Before, so that nobody reads what may be gone; and after, for what was fetched meanwhile.
        hashes.iter().for_each(|hash| self.forget(hash));
        let answers = self.inner.delete(hashes, until);
        hashes.iter().for_each(|hash| self.forget(hash));
        answers
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let committed = self.inner.commit(manifest, fresh, bytes, until)?;
        if let Committed::Absent(absent) = &committed {
            absent.iter().for_each(|hash| self.forget(hash));
        }
        Ok(committed)
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.inner.get_manifest(name, until)
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.inner.delete_manifest(name, until)
    }

    fn retire(&self) {
        self.inner.retire();
    }

    fn drop_connections(&self) {
        self.inner.drop_connections();
    }
}

impl NearLayer {
    /// Fetch these items from the backend, and keep them.
    fn fetch(
        &self,
        hashes: &[ChunkHash],
        targets: &mut [Target<'_>],
        far: &[usize],
        until: &Until,
    ) -> Answers<Option<Got>> {
        let asked: Vec<ChunkHash> = far.iter().filter_map(|index| hashes.get(*index).copied()).collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        self.level.count(Event::NearMisses, asked.len() as u64);
        let since: Vec<_> = asked.iter().map(|hash| self.since(hash)).collect();
        let mut places: Vec<Target<'_>> = match targets.is_empty() {
            true => Vec::new(),
            false => far.iter().map(|index| targets.get(*index).copied().unwrap_or(Target::ALLOCATE)).collect(),
        };
        let answers = self.inner.get(&asked, &mut places, until)?;
        if answers.len() > asked.len() {
            return Err(contract_violation("answered more items than it was asked for"));
        }
        for (index, place) in far.iter().zip(&places) {
            targets.get_mut(*index).into_iter().for_each(|target| target.set_sum(place.sum()));
        }
        let mut places = places.iter_mut();
        for ((hash, since), answer) in asked.iter().zip(since).zip(&answers) {
            let place = places.next();
            match (answer, place) {
                (Ok(Some(Got::Buffer(data))), _) if self.level.has_room_for(data.len()) => {
                    self.keep(hash, since, || Ok(data.clone()));
                }
                (Ok(Some(Got::Placed(len))), Some(place)) if self.level.has_room_for(*len) => {
                    // SAFETY: the backend has placed so many bytes there.
                    self.keep(hash, since, || unsafe { place.copy_of(*len) }.map(Arc::new));
                }
                _ => {}
            }
        }
        Ok(answers)
    }
}
