//! Random operations for a while, held against what was acknowledged. Meant for a backend into whose calls faults are injected: a
//! failure is no violation, a wrong answer is. Half of the threads go through `kv_store_batch.h`, where the library has it.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::abi::Batches;
use crate::cases::bytes;
use crate::{Handle, Subject, Verdict};

/// Threads, each with names of its own, on two handles.
const THREADS: u64 = 4;
/// Different chunks of each thread, and as many that all share, drawn again and again, so that a store stays small; and their greatest
/// length.
const CHUNKS: u64 = 256;
const LONGEST: u64 = 16 << 10;
/// Names of manifests of each thread.
const NAMES: u64 = 8;
/// How long what was acknowledged may be refused, with faults, until it counts as gone.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a soak did.
#[derive(Debug, Default)]
pub struct Soaked {
    pub operations: AtomicU64,
    pub saves: AtomicU64,
    /// Calls that failed, as faults make them.
    pub failures: AtomicU64,
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound.max(1)
    }
}

struct Soaker<'a> {
    subject: &'a Subject<'a>,
    store: &'a Handle<'a>,
    /// This thread puts and gets in batches.
    batches: Option<Batches<'a>>,
    done: &'a Soaked,
    dice: Dice,
    thread: u64,
    /// The save that was acknowledged last under each name, and those tried since, of which one may have been published.
    names: BTreeMap<u64, Vec<u64>>,
    saves: u64,
}

/// Work on the subject for so long. The seed makes the choices of each thread. An error is what was found first: what is wrong for all
/// is seen at once by some calls, and by others as something that never comes back.
pub fn soak(subject: &Subject, length: Duration, seed: u64) -> Result<Soaked, String> {
    let (done, wrong, begun) = (Soaked::default(), OnceLock::new(), Instant::now());
    let uri = subject.uri();
    let open = || with_patience(|| subject.open(&uri));
    let stores = [open()?, open()?];
    std::thread::scope(|scope| {
        let (done, wrong) = (&done, &wrong);
        let threads = (0..THREADS).zip(stores.iter().cycle()).map(|(thread, store)| {
            scope.spawn(move || {
                let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(thread) | 1);
                // Two threads on each handle: the first by chunks, the second by batches.
                let batches = store.batches().filter(|_| thread >= THREADS / 2);
                let mut soaker =
                    Soaker { subject, store, batches, done, dice, thread, names: BTreeMap::new(), saves: 0 };
                let mut work = || {
                    while begun.elapsed() < length && wrong.get().is_none() {
                        soaker.step()?;
                    }
                    soaker.look_at_all()
                };
                work().or_else(|why| wrong.set(why))
            })
        });
        let threads: Vec<_> = threads.collect();
        // That something else was found before is no further violation.
        threads.into_iter().try_for_each(|thread| thread.join().map(drop))
    })
    .map_err(|_| "a thread panicked".to_owned())?;
    if let Some(wrong) = wrong.into_inner() {
        return Err(wrong);
    }
    Ok(done)
}

/// Open a store whose calls fail now and then.
pub fn with_patience<T>(open: impl Fn() -> Result<T, String>) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(why) if begun.elapsed() > PATIENCE => return Err(why),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            Ok(store) => return Ok(store),
        }
    }
}

/// A chunk's content, and the key that consumers give it.
fn chunk(number: u64) -> ([u8; 8], Vec<u8>) {
    let content = bytes(number + 1, (number * 61 % LONGEST + 1) as usize);
    (xxh3_64(&content).to_be_bytes(), content)
}

/// A manifest: the save's number, the chunks, a checksum.
fn manifest(save: u64, chunks: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [save].iter().chain(chunks).flat_map(|number| number.to_be_bytes()).collect();
    bytes.extend_from_slice(&xxh3_64(&bytes).to_be_bytes());
    bytes
}

/// The save and the chunks that a manifest names. None: it is not whole.
fn parse(manifest: &[u8]) -> Option<(u64, Vec<u64>)> {
    let (body, checksum) = manifest.split_last_chunk::<8>()?;
    let (numbers, rest) = body.as_chunks::<8>();
    let (save, chunks) = numbers.split_first()?;
    let whole = rest.is_empty() && xxh3_64(body).to_be_bytes() == *checksum;
    whole.then(|| (u64::from_be_bytes(*save), chunks.iter().map(|chunk| u64::from_be_bytes(*chunk)).collect()))
}

impl Soaker<'_> {
    /// A chunk that all put, or one of this thread's own: what is lost of those nobody else puts again before it is missed.
    fn draw(&mut self) -> u64 {
        let own = self.dice.below(2) * (self.thread + 1);
        own * CHUNKS + self.dice.below(CHUNKS)
    }

    fn name(&self, name: u64) -> String {
        self.subject.name(&format!("soak-{}-{name}", self.thread))
    }

    fn count(&self, failed: bool) {
        self.done.operations.fetch_add(1, Relaxed);
        self.done.failures.fetch_add(failed.into(), Relaxed);
    }

    fn step(&mut self) -> Verdict {
        let name = self.dice.below(NAMES);
        match self.dice.below(8) {
            0..4 => self.save(name),
            4..6 => self.look(name, false),
            6 => self.delete(name),
            _ => {
                let number = self.draw();
                self.fetch(number).map(drop)
            }
        }
    }

    fn save(&mut self, name: u64) -> Verdict {
        let chunks: Vec<u64> = (0..self.dice.below(5)).map(|_| self.draw()).collect();
        let save = self.saves + 1;
        let (full, data) = (self.name(name), manifest(save, &chunks));
        let put = match &self.batches {
            Some(batches) => self.save_batch(batches, &full, &data, &chunks)?,
            None => self.save_chunks(&full, &data, &chunks)?,
        };
        let Some(put) = put else { return Ok(()) };
        self.saves = save;
        self.count(put < 0);
        let tried = self.names.entry(name).or_default();
        if put == 0 {
            tried.clear();
            self.done.saves.fetch_add(1, Relaxed);
        } else if tried.is_empty() {
            // Before it there was none.
            tried.push(0);
        }
        tried.push(save);
        if put == 0 && self.subject.facts.lasting { self.look(name, true) } else { Ok(()) }
    }

    /// What the publishing call answered. None: a chunk was not stored, so it was not called.
    fn save_chunks(&self, name: &str, data: &[u8], chunks: &[u64]) -> Result<Option<i32>, String> {
        for number in chunks {
            let (key, content) = chunk(*number);
            let put = self.store.put_chunk(&key, &content)?;
            self.count(put < 0);
            if put > 1 {
                return Err(format!("put_chunk answered {put}"));
            }
            if put < 0 {
                return Ok(None);
            }
        }
        self.store.put_manifest(name, data).map(Some)
    }

    /// The same by a save of `kv_store_batch.h`.
    fn save_batch(
        &self,
        batches: &Batches<'_>,
        name: &str,
        data: &[u8],
        chunks: &[u64],
    ) -> Result<Option<i32>, String> {
        let Some(save) = batches.save() else {
            self.count(true);
            return Ok(None);
        };
        let chunks: Vec<_> = chunks.iter().map(|number| chunk(*number)).collect();
        let items: Vec<(&[u8], &[u8])> = chunks.iter().map(|(key, content)| (&key[..], &content[..])).collect();
        if !items.is_empty() {
            let statuses = save.put_many(&items)?;
            let failed = statuses.iter().any(|status| *status < 0);
            self.count(failed);
            if let Some(wrong) = statuses.iter().find(|status| **status > 1) {
                return Err(format!("put_many answered an item {wrong}"));
            }
            if failed {
                return Ok(None);
            }
        }
        save.commit(name, data).map(Some)
    }

    fn delete(&mut self, name: u64) -> Verdict {
        let deleted = self.store.delete_manifest(&self.name(name))?;
        self.count(deleted < 0);
        if deleted == 0 {
            self.names.insert(name, vec![0]);
        } else {
            self.names.entry(name).or_insert_with(|| vec![0]).insert(0, 0);
        }
        Ok(())
    }

    /// A chunk, if it is answered, is the right one.
    fn fetch(&self, number: u64) -> Result<bool, String> {
        let (key, content) = chunk(number);
        let Some(batches) = &self.batches else {
            let found = self.store.get_chunk(&key)?;
            self.count(false);
            return is_right("get_chunk", found.ok().as_deref(), &content);
        };
        // With another one behind it, so that two answers can be told apart.
        let (other, others) = chunk(number + 1);
        let mut found = batches.get_many(&[&key, &other])?.into_iter().map(Result::ok);
        self.count(false);
        let (found, other) = (found.next().flatten(), found.next().flatten());
        is_right("get_many", other.as_deref(), &others)?;
        is_right("get_many", found.as_deref(), &content)
    }

    /// A manifest, if it is answered, is whole and one of those that may be there. `all`: and it is there, and its chunks are.
    fn look(&self, name: u64, all: bool) -> Verdict {
        let none = vec![0];
        let allowed = self.names.get(&name).unwrap_or(&none);
        let must = all && !allowed.contains(&0);
        let begun = Instant::now();
        loop {
            let found = self.store.get_manifest(&self.name(name))?;
            self.count(false);
            if let Ok(found) = found {
                let (save, chunks) =
                    parse(&found).ok_or_else(|| format!("a manifest is torn: {} bytes", found.len()))?;
                if !allowed.contains(&save) {
                    return Err(format!(
                        "a manifest is that of save {save}; those that may be there are {allowed:?} (0: none)"
                    ));
                }
                return if must { chunks.iter().try_for_each(|number| self.await_chunk(*number)) } else { Ok(()) };
            }
            if !must {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("a manifest that was acknowledged is not there, for {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn await_chunk(&self, number: u64) -> Verdict {
        let begun = Instant::now();
        while !self.fetch(number)? {
            if begun.elapsed() > PATIENCE {
                return Err(format!("a chunk of an acknowledged manifest is not there, for {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn look_at_all(&self) -> Verdict {
        (0..NAMES).try_for_each(|name| self.look(name, self.subject.facts.lasting))
    }
}

/// Whether a chunk was answered, and then the right one.
fn is_right(call: &str, found: Option<&[u8]>, content: &[u8]) -> Result<bool, String> {
    match found {
        Some(found) if found != content => {
            Err(format!("{call} answered other bytes than those put, {} of {}", found.len(), content.len()))
        }
        found => Ok(found.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_tells_whether_it_is_whole() {
        let whole = manifest(7, &[1, 2]);
        assert_eq!(parse(&whole), Some((7, vec![1, 2])));
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "{len}");
        }
        let mut other = whole.clone();
        other[3] ^= 1;
        assert_eq!(parse(&other), None);
    }
}
