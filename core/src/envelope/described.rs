//! What the layer of envelopes does about descriptors. A value of another descriptor is a miss for its reader, and is left alone; a put
//! over it is refused, and is never answered as one that existed.
//!
//! A backend says that a chunk exists and not what it is. So what a put is told exists is read, once in a while for each chunk
//! ([`Meanings`](super::meanings::Meanings)). Of a value without a descriptor nothing is known: it is answered, and may be put over, as
//! before there were descriptors; under `require_descriptor` it is a miss, and a put replaces it.
//!
//! Between that read and the put another process may store a value of another descriptor: a put that replaces nothing is then told
//! that it exists and reads again; one that replaces, and a manifest, take its place.

use std::fmt::Arguments;
use std::sync::atomic::Ordering::Relaxed;

use super::keys::{reduced_key, reduced_name, stored_key, stored_name};
use super::layer::Enveloped;
use super::meanings::Meaning;
use super::tail::{Judged, Kind, TAIL_BYTES, judge};
use crate::backend::{ChunkHash, ChunkToPut, Got, Presence, Put};
use crate::counters::{Event, Unanswered};
use crate::descriptor::{Described, DescriptorDigest};
use crate::error::{Error, ErrorKind, contract_violation};
use crate::limits::MEANINGS_BATCH_BYTES;
use crate::log::{self, Level};
use crate::payload::PayloadBytes;
use crate::until::Until;

/// What came of a put, and of a chunk to look at: its key, and about how many bytes it has.
type PutResult = Result<Put, Error>;
type ToLookAt = Option<(ChunkHash, u64)>;

/// What lies where a chunk is to be put.
enum Lies {
    /// What the put would store, as far as anybody says.
    Same,
    /// What no reader of this store is answered, and what is not somebody else's: a put takes its place.
    Worthless,
    Nothing,
}

impl Enveloped {
    /// The digest that a descriptor of the store's handles has.
    pub(super) fn digest(&self, described: Described) -> Meaning {
        self.setting.descriptors.digest(described)
    }

    /// Whether what is not there in layout 2 is asked for in layout 1, where nothing has a descriptor.
    pub fn reads_layout1(&self, described: Described) -> bool {
        self.setting.reads_layout1 && !(self.setting.requires_descriptor && described.is_said())
    }

    /// Whether a reader may have a value.
    pub(super) fn may_read(&self, own: Meaning, found: Meaning) -> bool {
        match (own, found) {
            (None, _) => true,
            (Some(own), Some(found)) => own == found,
            (Some(_), None) => !self.setting.requires_descriptor,
        }
    }

    /// Whether a chunk that was read is one that its reader may have. It has held against its checksum.
    pub(super) fn admits_chunk(&self, hash: &ChunkHash, found: Meaning, until: &Until) -> bool {
        let own = self.digest(hash.described());
        until.note_chunk(hash, found);
        if own.is_some() {
            self.meanings.chunk_is(hash, Some(found), self.setting.clock.now());
        }
        let admits = self.may_read(own, found);
        if !admits {
            self.tell_other(format_args!("chunk {hash}"), own, found);
            until.dropped_chunk(hash, Unanswered::Descriptor);
        }
        admits
    }

    /// The same for a manifest.
    pub(super) fn admits_manifest(&self, name: &str, found: Meaning, until: &Until) -> bool {
        let own = self.digest(until.described());
        until.note_manifest(found);
        if own.is_some() {
            self.meanings.manifest_is(name, Some(found), self.setting.clock.now());
        }
        let admits = self.may_read(own, found);
        if !admits {
            self.tell_other(format_args!("manifest {name:?}"), own, found);
            until.dropped_manifest(Unanswered::Descriptor);
        }
        admits
    }

    /// Count a value that is not its reader's; one line says which was the first.
    fn tell_other(&self, what: Arguments<'_>, own: Meaning, found: Meaning) {
        self.setting.counters.count(Event::OtherDescriptors);
        if !self.told_other.swap(true, Relaxed) {
            let (uri, own, found) = (&self.setting.uri, shown(own), shown(found));
            log::line(
                Level::Warn,
                format_args!(
                    "{uri}: {what} was put under descriptor {found}, and this reader's is {own}: it is missed and left alone, as are \
                     others like it"
                ),
            );
        }
    }

    /// What is known of a chunk that the backend has, to its reader: absent where it is known to be another's.
    pub(super) fn seen_by_reader(&self, hash: &ChunkHash, presence: Presence) -> Presence {
        let known = self.known_of(hash);
        match known.is_some_and(|found| !self.may_read(self.digest(hash.described()), found)) {
            true => Presence::Absent,
            false => presence,
        }
    }

    /// What a chunk that is asked for under a descriptor is known to be.
    fn known_of(&self, hash: &ChunkHash) -> Option<Meaning> {
        let asks = hash.is_enveloped() && hash.described().is_said() && self.meanings.is_used();
        asks.then(|| self.meanings.of_chunk(hash, self.setting.clock.now())).flatten()
    }

    /// Whether a put need not read what lies under its key.
    fn is_known_same(&self, hash: &ChunkHash) -> bool {
        let own = self.digest(hash.described());
        own.is_none() || !hash.is_enveloped() || self.known_of(hash) == Some(own)
    }

    /// A chunk was put, and took the place of whatever was there.
    pub(super) fn chunk_was_put(&self, hash: &ChunkHash) {
        if !hash.is_enveloped() {
            return;
        }
        match self.digest(hash.described()) {
            Some(own) => self.meanings.chunk_is(hash, Some(Some(own)), self.setting.clock.now()),
            None if self.meanings.is_used() => self.meanings.chunk_is(hash, None, self.setting.clock.now()),
            None => {}
        }
    }

    /// Refuse to publish over a manifest of another descriptor.
    pub(super) fn check_published_over(&self, name: &str, until: &Until) -> Result<(), Error> {
        let Some(own) = self.digest(until.described()) else { return Ok(()) };
        let now = self.setting.clock.now();
        if self.meanings.of_manifest(name, now) == Some(Some(own)) {
            return Ok(());
        }
        let Some(data) = self.inner.get_manifest(&stored_name(name), until)? else { return Ok(()) };
        let Judged::Sound(found) = judge(Kind::Manifest, reduced_name(name).as_bytes(), PayloadBytes::Slice(&data))
        else {
            return Ok(());
        };
        self.meanings.manifest_is(name, Some(found.descriptor), now);
        match found.descriptor {
            Some(other) if other != own => Err(self.refused(format_args!("manifest {name:?}"), own, other)),
            _ => Ok(()),
        }
    }

    /// A manifest was published.
    pub(super) fn manifest_was_published(&self, name: &str, until: &Until) {
        match self.digest(until.described()) {
            Some(own) => self.meanings.manifest_is(name, Some(Some(own)), self.setting.clock.now()),
            None if self.meanings.is_used() => self.meanings.manifest_is(name, None, self.setting.clock.now()),
            None => {}
        }
    }

    fn refused(&self, what: Arguments<'_>, own: DescriptorDigest, other: DescriptorDigest) -> Error {
        self.setting.counters.count(Event::RefusedDescriptors);
        let message = format!(
            "{what} is there under descriptor {other}, and this one's is {own}: give stores of other models, layouts or ranks other URIs, \
             or keys of their own"
        );
        Error::new(ErrorKind::Mismatch, message)
    }

    /// Whether all is as it was before there were descriptors.
    pub(super) fn is_undescribed<'a>(&self, mut hashes: impl Iterator<Item = &'a ChunkHash>) -> bool {
        !self.meanings.is_used() && hashes.all(|hash| !hash.described().is_said())
    }

    /// What a put may take for present, of what the backend has: what the put would store again. An outcome for each.
    pub(super) fn present_for_put(
        &self,
        hashes: &[ChunkHash],
        answers: Vec<Result<Presence, Error>>,
        until: &Until,
    ) -> Vec<Result<Presence, Error>> {
        if self.is_undescribed(hashes.iter()) {
            return answers;
        }
        let unknown = |(hash, answer): &(&ChunkHash, &Result<Presence, Error>)| match answer {
            Ok(Presence::Present(len)) if !self.is_known_same(hash) => {
                Some((**hash, len.unwrap_or(MEANINGS_BATCH_BYTES)))
            }
            _ => None,
        };
        let asked: Vec<(ChunkHash, u64)> = hashes.iter().zip(&answers).filter_map(|item| unknown(&item)).collect();
        if asked.is_empty() {
            return answers;
        }
        let mut looked = asked.iter().map(|(hash, _)| *hash).zip(self.look(&asked, until)).peekable();
        let of = |(hash, answer): (&ChunkHash, Result<Presence, Error>)| match looked.next_if(|(next, _)| next == hash)
        {
            Some((_, lies)) => lies
                .map(|lies| if let Lies::Same = lies { answer.unwrap_or(Presence::Absent) } else { Presence::Absent }),
            None => answer,
        };
        hashes.iter().zip(answers).map(of).collect()
    }

    /// Of chunks that are to replace what is there: those that must not, each with why.
    pub(super) fn not_to_replace(&self, chunks: &[ChunkToPut<'_>], until: &Until) -> Vec<Option<Error>> {
        let unknown = |(hash, data): &ChunkToPut<'_>| (!self.is_known_same(hash)).then(|| (*hash, data.len() as u64));
        let asked: Vec<ToLookAt> = chunks.iter().map(unknown).collect();
        let items: Vec<(ChunkHash, u64)> = asked.iter().flatten().copied().collect();
        let mut looked = self.look(&items, until).into_iter();
        asked.iter().map(|asked| asked.and_then(|_| looked.next()?.err())).collect()
    }

    /// The outcomes of puts that replaced nothing: what existed is the same, or takes the put's value, or refuses it.
    pub(super) fn settle_existed(
        &self,
        chunks: &[ChunkToPut<'_>],
        answers: Vec<Result<Put, Error>>,
        put: &dyn Fn(&ChunkToPut<'_>, bool) -> Result<Put, Error>,
        until: &Until,
    ) -> Vec<Result<Put, Error>> {
        if self.is_undescribed(chunks.iter().map(|(hash, _)| hash)) {
            return answers;
        }
        let existed = |(chunk, answer): &(&ChunkToPut<'_>, &Result<Put, Error>)| {
            (matches!(answer, Ok(Put::Existed)) && !self.is_known_same(&chunk.0))
                .then(|| (chunk.0, chunk.1.len() as u64))
        };
        let asked: Vec<ToLookAt> = chunks.iter().zip(&answers).map(|item| existed(&item)).collect();
        let items: Vec<(ChunkHash, u64)> = asked.iter().flatten().copied().collect();
        let mut looked = self.look(&items, until).into_iter();
        let of = |((chunk, answer), asked): ((&ChunkToPut<'_>, PutResult), &ToLookAt)| {
            let Some(lies) = asked.and_then(|_| looked.next()) else {
                if let Ok(Put::New) = answer {
                    self.chunk_was_put(&chunk.0);
                }
                return answer;
            };
            let replace = match lies? {
                Lies::Same => return answer,
                Lies::Worthless => true,
                Lies::Nothing => false,
            };
            match put(chunk, replace)? {
                Put::Existed if !replace => {
                    let message = "another process stored a value under this key at the same time: put it again";
                    Err(Error::new(ErrorKind::Unavailable, message))
                }
                stored => {
                    self.chunk_was_put(&chunk.0);
                    Ok(stored)
                }
            }
        };
        chunks.iter().zip(answers).zip(&asked).map(of).collect()
    }

    /// Read what lies under keys, each about so many bytes. An outcome for each: a value of another descriptor is `Mismatch`.
    fn look(&self, items: &[(ChunkHash, u64)], until: &Until) -> Vec<Result<Lies, Error>> {
        let mut found = Vec::with_capacity(items.len());
        while let Some(rest) = items.get(found.len()..).filter(|rest| !rest.is_empty()) {
            let mut bytes = 0_u64;
            let fits = |(_, len): &&(ChunkHash, u64)| {
                bytes = bytes.saturating_add(len.saturating_add(TAIL_BYTES as u64));
                bytes <= MEANINGS_BATCH_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let batch = rest.get(..count).unwrap_or(rest);
            until.expect(bytes);
            let keys: Vec<ChunkHash> = batch.iter().map(|(hash, _)| stored_key(hash)).collect();
            match self.inner.get(&keys, &mut [], until) {
                Ok(answers) if answers.is_empty() => {
                    found.push(Err(contract_violation("answered nothing to a batch")));
                }
                Ok(answers) => {
                    let lies = batch.iter().zip(answers).map(|((hash, _), answer)| self.lies(hash, answer?));
                    found.extend(lies);
                }
                Err(error) => found.extend(batch.iter().map(|_| Err(error.clone()))),
            }
        }
        found
    }

    fn lies(&self, hash: &ChunkHash, got: Option<Got>) -> Result<Lies, Error> {
        let data = match got {
            None => return Ok(Lies::Nothing),
            Some(Got::Buffer(data)) => data,
            Some(Got::Damaged(_)) => return Ok(Lies::Worthless),
            Some(Got::Placed(_) | Got::TooLong(_)) => {
                return Err(contract_violation("answered bytes that are nowhere"));
            }
        };
        let found = match judge(Kind::Chunk, reduced_key(hash).as_slice(), PayloadBytes::Slice(&data)) {
            Judged::Sound(found) => found.descriptor,
            Judged::Damaged(_) => return Ok(Lies::Worthless),
            // It stays, as it does for who says no descriptor.
            Judged::Foreign { .. } => return Ok(Lies::Same),
        };
        self.meanings.chunk_is(hash, Some(found), self.setting.clock.now());
        match (self.digest(hash.described()), found) {
            (Some(own), Some(other)) if own != other => Err(self.refused(format_args!("chunk {hash}"), own, other)),
            (own, found) if self.may_read(own, found) => Ok(Lies::Same),
            _ => Ok(Lies::Worthless),
        }
    }
}

fn shown(meaning: Meaning) -> String {
    meaning.map_or_else(|| "none".to_owned(), |digest| digest.to_string())
}
