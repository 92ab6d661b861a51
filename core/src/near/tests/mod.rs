//! The near level around a backend in memory that forgets, fails, lies and answers in parts.

mod disk;
mod layer;
mod oracle;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kv_platform::sync::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64;

use super::NearLevels;
use super::{ContentKeys, NearLayer, NearLevel, Scope};
use crate::backend::{Answers, Backend, Bytes, Changes, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::config::Near;
use crate::counters;
use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::payload::Buffer;
use crate::process::Clock;
use crate::threads::Threads;
use crate::until::Until;

/// A backend in memory, as other processes see it too.
#[derive(Default)]
struct Far {
    chunks: Mutex<HashMap<ChunkHash, Vec<u8>>>,
    gets: AtomicUsize,
    exists: AtomicUsize,
    others: AtomicUsize,
    /// Items of one call that are answered. 0: all.
    most: AtomicUsize,
    /// Calls fail while it is not 0.
    failing: AtomicUsize,
    /// Gets answer other bytes while it is not 0.
    lying: AtomicUsize,
    /// Done in the middle of a get, once.
    during_get: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Far {
    fn chunks(&self) -> MutexGuard<'_, HashMap<ChunkHash, Vec<u8>>> {
        self.chunks.lock()
    }

    fn gets(&self) -> usize {
        self.gets.load(SeqCst)
    }

    fn begin(&self, calls: &AtomicUsize, items: usize) -> Result<usize, Error> {
        calls.fetch_add(1, SeqCst);
        match (self.failing.load(SeqCst), self.most.load(SeqCst)) {
            (0, 0) => Ok(items),
            (0, most) => Ok(items.min(most)),
            _ => Err(Error::new(ErrorKind::Unavailable, "away, on purpose")),
        }
    }
}

impl Backend for Far {
    fn exists(&self, hashes: &[ChunkHash], _: &Until) -> Answers<Presence> {
        let answered = self.begin(&self.exists, hashes.len())?;
        let chunks = self.chunks();
        let presence =
            |hash| chunks.get(hash).map_or(Presence::Absent, |data| Presence::Present(Some(data.len() as u64)));
        Ok(hashes.iter().take(answered).map(|hash| Ok(presence(hash))).collect())
    }

    fn put(&self, new: &[ChunkToPut<'_>], replace: bool, _: &Until) -> Answers<Put> {
        let answered = self.begin(&self.others, new.len())?;
        let mut chunks = self.chunks();
        let put = |(hash, data): &ChunkToPut<'_>| {
            let data = match data {
                Bytes::Borrowed(data) => data.to_vec(),
                Bytes::Scattered(pieces) => pieces.concat(),
                Bytes::Buffered(buffer) => buffer.to_vec(),
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
        let answered = self.begin(&self.gets, hashes.len())?;
        let found: Vec<_> = hashes.iter().take(answered).map(|hash| self.chunks().get(hash).cloned()).collect();
        let during = self.during_get.lock().take();
        during.into_iter().for_each(|during| during());
        let mut targets = targets.iter_mut();
        let got = |data: Option<Vec<u8>>| {
            let target = targets.next();
            let Some(mut data) = data else { return Ok(None) };
            if self.lying.load(SeqCst) != 0 {
                data.push(7);
            }
            Ok(Some(match target.and_then(|target| target.place(&data)) {
                Some(placed) => placed,
                None => Got::Buffer(Arc::new(Buffer::concat(&[&data])?)),
            }))
        };
        Ok(found.into_iter().map(got).collect())
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        // Without a layer that holds changes there is nobody to tell.
        until.change().into_iter().for_each(|change| drop(change.begin(&[0], b"")));
        let answered = self.begin(&self.others, hashes.len())?;
        let mut chunks = self.chunks();
        hashes.iter().take(answered).for_each(|hash| drop(chunks.remove(hash)));
        Ok(hashes.iter().take(answered).map(|_| Ok(())).collect())
    }

    fn commit(&self, _: Option<(&str, &[u8])>, fresh: &[ChunkHash], _: u64, _: &Until) -> Result<Committed, Error> {
        self.begin(&self.others, 0)?;
        let chunks = self.chunks();
        let absent: Vec<ChunkHash> = fresh.iter().filter(|hash| !chunks.contains_key(hash)).copied().collect();
        Ok(if absent.is_empty() { Committed::Published } else { Committed::Absent(absent) })
    }

    fn get_manifest(&self, _: &str, _: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.begin(&self.others, 0).map(|_| None)
    }

    fn delete_manifest(&self, _: &str, _: &Until) -> Result<(), Error> {
        self.begin(&self.others, 0).map(drop)
    }
}

/// Keys are the XXH3-64 of the content, or may not be.
struct FixedKeyScheme(bool);

impl ContentKeys for FixedKeyScheme {
    fn may_be(&self) -> bool {
        self.0
    }

    fn is_key_of(&self, key: &ChunkHash, content: &[&[u8]]) -> bool {
        self.0 && key.as_slice() == xxh3_64(&content.concat()).to_be_bytes()
    }
}

/// A near level around a backend.
struct NearAround {
    far: Arc<Far>,
    level: Arc<NearLevel>,
    near: Arc<NearLayer>,
    until: Until,
}

const TTL: u64 = 60;

fn settings(memory_bytes: u64, disk: Option<(PathBuf, u64)>) -> Near {
    let (disk, disk_bytes) = disk.map_or((None, 0), |(path, bytes)| (Some(path), bytes));
    Near { memory_bytes, disk, disk_bytes, ttl_s: TTL }
}

fn open(settings: &Near) -> Arc<NearLevel> {
    let counters = counters::ProcessCounters::default().of("near-test", None);
    Arc::new(process().open(&Arc::default(), settings, &counters))
}

/// All levels of these tests have one writer.
fn process() -> &'static NearLevels {
    static PROCESS: LazyLock<NearLevels> =
        LazyLock::new(|| NearLevels::new(Clock::default(), Threads::default().near, Arc::default()));
    &PROCESS
}

/// Wait until all is written that was handed to the writer.
fn settle() {
    process().settle();
}

fn around(settings: &Near) -> NearAround {
    layer(&Arc::default(), &open(settings), "a store")
}

/// Those of a store, none of which has ended unknown yet.
fn changes() -> Arc<Changes> {
    Arc::new(Changes::new(Clock::default()))
}

fn layer(far: &Arc<Far>, level: &Arc<NearLevel>, store: &str) -> NearAround {
    let near = NearLayer::new(far.clone(), level.clone(), Scope::of(&store), Arc::new(FixedKeyScheme(true)), changes());
    let until = Until::new(&Limits::default());
    NearAround { far: far.clone(), level: level.clone(), near: Arc::new(near), until }
}

impl NearAround {
    fn put(&self, data: &[u8]) -> ChunkHash {
        let hash = key(data);
        assert!(self.near.put(&[(hash, Bytes::Borrowed(data))], false, &self.until).unwrap()[0].is_ok());
        hash
    }

    fn get(&self, hash: &ChunkHash) -> Option<Vec<u8>> {
        let mut got = self.near.get(&[*hash], &mut [], &self.until).unwrap();
        assert_eq!(got.len(), 1);
        match got.pop().unwrap().unwrap()? {
            Got::Buffer(data) => Some(data.to_vec()),
            placed => panic!("{placed:?} without a place"),
        }
    }

    fn delete(&self, hash: &ChunkHash) {
        assert!(self.near.delete(&[*hash], &self.until).unwrap()[0].is_ok());
    }

    fn pass(&self, time: Duration) {
        self.level.later.fetch_add(time.as_nanos() as u64, SeqCst);
    }
}

fn key(data: &[u8]) -> ChunkHash {
    ChunkHash::new(&xxh3_64(data).to_be_bytes()).unwrap()
}

/// Different bytes for each number, of a length that follows from it.
fn data(number: u64) -> Vec<u8> {
    let len = 100 + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize;
    (0..len as u64).map(|at| (number.wrapping_mul(31).wrapping_add(at * 7) >> (at % 8)) as u8).collect()
}
