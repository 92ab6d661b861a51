//! Under which descriptor values lie, as far as this process has read or written it a while ago. A hint: other processes write too, and
//! a backend evicts. A put relies on it for [`MEANING_REMEMBERED_FOR`] at most.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use kv_platform::sync::Mutex;
use twox_hash::XxHash3_128;

use crate::backend::{ChunkHash, Layout};
use crate::descriptor::DescriptorDigest;
use crate::limits::{KNOWN_MEANINGS, MEANING_REMEMBERED_FOR};
use crate::recent::RecentMap;

/// The descriptor of a value; `None`: it has none.
pub type Meaning = Option<DescriptorDigest>;

/// What is known of chunks and manifests.
#[derive(Default)]
pub struct Meanings {
    /// Something was remembered: where nobody says descriptors, no lock is taken.
    used: AtomicBool,
    known: Mutex<KnownMeanings>,
}

#[derive(Default)]
struct KnownMeanings {
    chunks: RecentMeanings<ChunkHash, foldhash::fast::RandomState>,
    /// By the XXH3-128 of the name.
    manifests: RecentMeanings<u128, RandomState>,
}

/// The last [`KNOWN_MEANINGS`] of a kind.
struct RecentMeanings<K, S>(RecentMap<K, (Meaning, Instant), S>);

impl<K: Hash + Eq, S: BuildHasher + Default> Default for RecentMeanings<K, S> {
    fn default() -> Self {
        RecentMeanings(RecentMap::new(KNOWN_MEANINGS))
    }
}

impl<K: Hash + Eq, S: BuildHasher + Default> RecentMeanings<K, S> {
    fn get(&self, key: &K, now: Instant) -> Option<Meaning> {
        let (meaning, since) = self.0.get(key)?;
        (now.saturating_duration_since(*since) < MEANING_REMEMBERED_FOR).then_some(*meaning)
    }

    /// `None`: nothing is known of it.
    fn set(&mut self, key: K, meaning: Option<Meaning>, now: Instant) {
        match meaning {
            Some(meaning) => self.0.insert(key, (meaning, now)),
            None => self.0.remove(&key),
        }
    }
}

impl Meanings {
    /// Whether anything was ever remembered.
    pub fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// What a chunk is.
    pub fn of_chunk(&self, hash: &ChunkHash, now: Instant) -> Option<Meaning> {
        self.is_used().then(|| self.known.lock().chunks.get(&hash.lying(Layout::Plain), now)).flatten()
    }

    /// A chunk is this. `None`: nothing is known of it any more.
    pub fn chunk_is(&self, hash: &ChunkHash, meaning: Option<Meaning>, now: Instant) {
        self.note(meaning.is_some(), |known| known.chunks.set(hash.lying(Layout::Plain), meaning, now));
    }

    /// What a manifest is.
    pub fn of_manifest(&self, name: &str, now: Instant) -> Option<Meaning> {
        let key = XxHash3_128::oneshot(name.as_bytes());
        self.is_used().then(|| self.known.lock().manifests.get(&key, now)).flatten()
    }

    /// A manifest is this. `None`: nothing is known of it any more.
    pub fn manifest_is(&self, name: &str, meaning: Option<Meaning>, now: Instant) {
        let key = XxHash3_128::oneshot(name.as_bytes());
        self.note(meaning.is_some(), |known| known.manifests.set(key, meaning, now));
    }

    fn note(&self, learns: bool, note: impl FnOnce(&mut KnownMeanings)) {
        if learns {
            self.used.store(true, Relaxed);
        }
        if self.is_used() {
            note(&mut self.known.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: usize) -> ChunkHash {
        ChunkHash::new(&n.to_le_bytes()).unwrap()
    }

    #[test]
    fn what_is_known_is_bounded_and_believed_for_a_while() {
        let (meanings, now) = (Meanings::default(), Instant::now());
        let own = DescriptorDigest::read(&[1; 16]);
        assert!(!meanings.is_used() && meanings.of_chunk(&chunk(1), now).is_none());
        meanings.chunk_is(&chunk(1), None, now);
        assert!(!meanings.is_used(), "nothing was learnt");
        meanings.chunk_is(&chunk(1), Some(own), now);
        meanings.manifest_is("m", Some(None), now);
        assert_eq!(meanings.of_chunk(&chunk(1).lying(Layout::Enveloped), now), Some(own));
        assert_eq!((meanings.of_manifest("m", now), meanings.of_manifest("n", now)), (Some(None), None));
        assert_eq!(meanings.of_chunk(&chunk(1), now + MEANING_REMEMBERED_FOR), None);
        meanings.chunk_is(&chunk(1), None, now);
        assert_eq!(meanings.of_chunk(&chunk(1), now), None);
        (0..3 * KNOWN_MEANINGS).for_each(|n| meanings.chunk_is(&chunk(n), Some(own), now));
        assert_eq!(meanings.of_chunk(&chunk(0), now), None);
    }
}
