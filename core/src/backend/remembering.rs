//! What is learnt of chunks from the answers about them: which the backend has, which are damaged there, how long they are.

use std::sync::Arc;

use kv_platform::sync::{Mutex, MutexGuard};

pub use super::known::KnownChunks;
use super::lengths::Lengths;
use super::{Answers, Backend, ChunkHash, ChunkToPut, Committed, Got, Presence, Put, Target};
use crate::error::{Error, ErrorKind};
use crate::payload::Buffer;
use crate::until::Until;

pub struct Remembering {
    inner: Arc<dyn Backend>,
    known: Mutex<KnownChunks>,
    lengths: Lengths,
}

impl Remembering {
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Remembering { inner, known: Mutex::default(), lengths: Lengths::default() }
    }

    /// What is known of chunks.
    pub fn known(&self) -> MutexGuard<'_, KnownChunks> {
        self.known.lock()
    }

    /// A chunk has so many bytes.
    pub fn note_len(&self, len: usize) {
        self.lengths.saw(len);
    }

    /// The length of the longest recent chunk. 0: none was seen.
    pub fn longest(&self) -> usize {
        self.lengths.longest()
    }
}

impl Backend for Remembering {
    /// Learns nothing: a chunk that exists may be damaged.
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.inner.exists(hashes, until)
    }

    fn exists_for_put(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.inner.exists_for_put(hashes, until)
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let answers = self.inner.put(chunks, replace, until)?;
        let mut known = self.known();
        for ((hash, _), answer) in chunks.iter().zip(&answers) {
            match answer {
                Ok(_) if replace => known.stored(*hash),
                Ok(_) => known.existed(*hash),
                Err(_) => {}
            }
        }
        drop(known);
        Ok(answers)
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        let answers = self.inner.get(hashes, targets, until)?;
        for (hash, answer) in hashes.iter().zip(&answers) {
            match answer {
                Ok(Some(Got::Placed(len) | Got::TooLong(len))) => self.note_len(*len),
                Ok(Some(Got::Buffer(data))) => self.note_len(data.len()),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.known().found_damaged(*hash);
                }
                Ok(None | Some(Got::Damaged(_))) | Err(_) => {}
            }
        }
        Ok(answers)
    }

    /// Learns nothing: the chunk may have been damaged, and then the next put replaces what another process stored.
    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        self.inner.delete(hashes, until)
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
            let mut known = self.known();
            absent.iter().for_each(|hash| known.absent(hash));
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

#[cfg(test)]
mod tests {
    use super::super::Bytes;
    use super::super::fake::{Fake, hashes};
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn answers_say_what_is_there_what_is_damaged_and_how_long_it_is() {
        let fake = Arc::new(Fake::default());
        let (backend, until) = (Remembering::new(fake.clone()), Until::new(&Limits::default()));
        let chunks = hashes(2);
        backend.put(&[(chunks[0], Bytes::Borrowed(b"12345"))], false, &until).unwrap();
        assert!(backend.known().is_present(&chunks[0]) && !backend.known().is_present(&chunks[1]));
        backend.get(&chunks[..1], &mut [], &until).unwrap();
        assert_eq!(backend.longest(), 5);
        fake.answer_gets(vec![Err(Error::new(ErrorKind::Corrupt, "torn"))]);
        backend.get(&chunks[..1], &mut [], &until).unwrap();
        assert!(backend.known().is_damaged(&chunks[0]));
        backend.put(&[(chunks[0], Bytes::Borrowed(b"12345"))], true, &until).unwrap();
        assert!(!backend.known().is_damaged(&chunks[0]));
        backend.known().stored(chunks[1]);
        assert!(matches!(backend.commit(None, &chunks, 0, &until), Ok(Committed::Absent(gone)) if gone == chunks[1..]));
        assert!(!backend.known().is_present(&chunks[1]));
    }
}
