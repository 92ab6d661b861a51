//! A backend in memory for the tests of layers: it answers what it is told to, and counts its calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Answers, Backend, Bytes, ChunkHash, ChunkMap, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::error::{Error, ErrorKind};
use crate::payload::Buffer;
use crate::until::Until;

/// What a component does during a change.
type During = dyn Fn(&Until) + Send + Sync;

#[derive(Default)]
pub struct Fake {
    calls: AtomicUsize,
    chunks: Mutex<ChunkMap<Vec<u8>>>,
    manifests: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Every call fails so.
    failure: Mutex<Option<Error>>,
    /// What becomes of the items of a get.
    gets: Mutex<Vec<Result<(), Error>>>,
    /// Items of one call that are answered, and that are too many for one call. 0: all, and none.
    pub most_answered: AtomicUsize,
    pub too_many: AtomicUsize,
    /// What happens during each change, by its time.
    during: Mutex<Option<Arc<During>>>,
    /// What each call takes, in milliseconds.
    pub delay: AtomicU64,
    /// It can be listed and cleaned, and by when it was last to be.
    pub maintained: AtomicBool,
    pub maintained_by: Mutex<Option<Instant>>,
    /// How often what it holds was lost.
    pub lost: AtomicU64,
    /// What happens when the next question was answered which chunks there are.
    after_exists: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// How often connections were dropped.
    pub dropped: AtomicUsize,
}

/// So many hashes.
pub fn hashes(count: usize) -> Vec<ChunkHash> {
    (0..count as u64).map(|n| ChunkHash::new(&n.to_le_bytes()).unwrap()).collect()
}

impl Fake {
    pub fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    pub fn fail_calls(&self, failure: Option<Error>) {
        *self.failure.lock().unwrap() = failure;
    }

    pub fn answer_gets(&self, gets: Vec<Result<(), Error>>) {
        *self.gets.lock().unwrap() = gets;
    }

    /// What is stored under a key, as it lies.
    pub fn stored(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.chunks.lock().unwrap().get(&ChunkHash::new(key).unwrap()).cloned()
    }

    /// The keys of the chunks, as they lie.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.chunks.lock().unwrap().keys().map(|key| key.as_slice().to_vec()).collect()
    }

    /// Store something as it is to lie.
    pub fn store(&self, key: &[u8], data: &[u8]) {
        self.chunks.lock().unwrap().insert(ChunkHash::new(key).unwrap(), data.to_vec());
    }

    /// As [`Fake::stored`], of a manifest.
    /// Lose what is stored under a key.
    pub fn lose(&self, key: &[u8]) {
        self.chunks.lock().unwrap().remove(&ChunkHash::new(key).unwrap());
    }

    /// Lose all chunks, as an instance that is gone does.
    pub fn lose_all(&self) {
        self.chunks.lock().unwrap().clear();
        self.lost.fetch_add(1, Relaxed);
    }

    pub fn stored_manifest(&self, name: &str) -> Option<Vec<u8>> {
        self.manifests.lock().unwrap().get(name).cloned()
    }

    /// As [`Fake::store`], of a manifest.
    pub fn store_manifest(&self, name: &str, data: &[u8]) {
        self.manifests.lock().unwrap().insert(name.to_owned(), data.to_vec());
    }

    pub fn during_changes(&self, what: impl Fn(&Until) + Send + Sync + 'static) {
        *self.during.lock().unwrap() = Some(Arc::new(what));
    }

    pub fn after_exists(&self, what: impl FnOnce() + Send + 'static) {
        *self.after_exists.lock().unwrap() = Some(Box::new(what));
    }

    fn change(&self, until: &Until) {
        let during = self.during.lock().unwrap().clone();
        during.iter().for_each(|during| during(until));
    }

    fn begin(&self, items: usize) -> Result<usize, Error> {
        self.calls.fetch_add(1, Relaxed);
        match self.delay.load(Relaxed) {
            0 => {}
            delay => std::thread::sleep(Duration::from_millis(delay)),
        }
        if let Some(failure) = &*self.failure.lock().unwrap() {
            return Err(failure.clone());
        }
        let too_many = self.too_many.load(Relaxed);
        if too_many > 0 && items >= too_many {
            return Err(Error::new(ErrorKind::Component, "trapped"));
        }
        Ok(match self.most_answered.load(Relaxed) {
            0 => items,
            most => items.min(most),
        })
    }
}

impl Backend for Fake {
    fn exists(&self, hashes: &[ChunkHash], _: &Until) -> Answers<Presence> {
        let answered = self.begin(hashes.len())?;
        let chunks = self.chunks.lock().unwrap();
        let presence =
            |hash| chunks.get(hash).map_or(Presence::Absent, |data| Presence::Present(Some(data.len() as u64)));
        let answers = hashes.iter().take(answered).map(|hash| Ok(presence(hash))).collect();
        drop(chunks);
        let after = self.after_exists.lock().unwrap().take();
        after.into_iter().for_each(|after| after());
        Ok(answers)
    }

    fn put(&self, new: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        self.change(until);
        let answered = self.begin(new.len())?;
        let mut chunks = self.chunks.lock().unwrap();
        let put = |(hash, data): &ChunkToPut<'_>| {
            let data = match data {
                Bytes::Borrowed(data) => data.to_vec(),
                Bytes::Scattered(pieces) => pieces.concat(),
                Bytes::Buffered(data) => data.to_vec(),
            };
            if !replace && chunks.contains_key(hash) {
                return Ok(Put::Existed);
            }
            chunks.insert(*hash, data);
            Ok(Put::New)
        };
        Ok(new.iter().take(answered).map(put).collect())
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], _: &Until) -> Answers<Option<Got>> {
        let answered = self.begin(hashes.len())?;
        let told = self.gets.lock().unwrap().clone();
        if !told.is_empty() {
            return Ok(told.into_iter().map(|told| told.map(|()| None)).collect());
        }
        let chunks = self.chunks.lock().unwrap();
        let mut targets = targets.iter_mut();
        let got = |hash| {
            let target = targets.next();
            let got = |data: &Vec<u8>| match target.and_then(|target| target.place(data)) {
                Some(placed) => Ok(placed),
                None => Buffer::concat(&[data]).map(|data| Got::Buffer(Arc::new(data))),
            };
            chunks.get(hash).map(got).transpose()
        };
        Ok(hashes.iter().take(answered).map(got).collect())
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        self.change(until);
        let answered = self.begin(hashes.len())?;
        let mut chunks = self.chunks.lock().unwrap();
        hashes.iter().take(answered).for_each(|hash| drop(chunks.remove(hash)));
        Ok(hashes.iter().take(answered).map(|_| Ok(())).collect())
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        _: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        self.change(until);
        self.begin(0)?;
        let chunks = self.chunks.lock().unwrap();
        let absent: Vec<ChunkHash> = fresh.iter().filter(|hash| !chunks.contains_key(hash)).copied().collect();
        if !absent.is_empty() {
            return Ok(Committed::Absent(absent));
        }
        if let Some((name, data)) = manifest {
            self.manifests.lock().unwrap().insert(name.to_owned(), data.to_vec());
        }
        Ok(Committed::Published)
    }

    fn get_manifest(&self, name: &str, _: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.begin(0)?;
        let manifests = self.manifests.lock().unwrap();
        manifests.get(name).map(|data| Buffer::concat(&[data]).map(Arc::new)).transpose()
    }

    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.change(until);
        self.begin(0)?;
        self.manifests.lock().unwrap().remove(name);
        Ok(())
    }

    fn drop_connections(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}
