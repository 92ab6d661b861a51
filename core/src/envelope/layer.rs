//! Envelopes around a backend: each chunk that is meant to lie in one, and every manifest.
//!
//! Invariant: what is answered from layout 2 has held against its checksum. What has not is [`Got::Damaged`], or no manifest.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::generations::Generations;
use super::keys::{is_component_name, reduced_key, reduced_name, stored_key, stored_name};
use super::meanings::Meanings;
use super::names::RecentNames;
use super::tail::{
    Generation, Judged, Kind, Sound, TAIL_BYTES, covering, judge, judge_summed, tail, without_generation,
};
use crate::backend::{
    Answers, Backend, ChunkHash, ChunkSet, ChunkToPut, Committed, Got, Presence, Put, Target, capacity,
};
use crate::backend::{Bytes, Layout};
use crate::counters::{Counters, Event, Unanswered};
use crate::descriptor::{DescriptorDigest, Descriptors};
use crate::error::{Error, ErrorKind, contract_violation};
use crate::log::{self, Level};
use crate::payload::{Buffer, Covering, Damaged, PayloadBytes, ValueMemory};
use crate::process::Clock;
use crate::until::Until;

/// Into less room goes a value that lies in the processor's caches still when it is judged.
const SUMMED_FROM: usize = 32 << 10;

/// A backend whose manifests, and some of whose chunks, lie in envelopes.
pub struct Enveloped {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) setting: Setting,
    generations: Generations,
    /// Under which descriptor values lie.
    pub(super) meanings: Meanings,
    /// The operator was told that values of other descriptors lie here.
    pub(super) told_other: AtomicBool,
    /// The operator was told that a later version writes here.
    told: AtomicBool,
    /// Manifests whose damage was logged.
    damaged: RecentNames,
    /// Manifests of which an older one was answered, and that was logged.
    older: RecentNames,
}

/// A manifest that is what was put.
pub struct Examined {
    pub bytes: u64,
    pub descriptor: Option<DescriptorDigest>,
}

/// What a layer of envelopes needs beside its backend.
pub struct Setting {
    /// A manifest that is not there in layout 2 is asked for in layout 1.
    pub reads_layout1: bool,
    /// For messages.
    pub uri: String,
    pub clock: Clock,
    pub counters: Arc<Counters>,
    /// What the handles of the store say of their values.
    pub descriptors: Descriptors,
    /// A value without a descriptor is a miss for who says one.
    pub requires_descriptor: bool,
}

impl Enveloped {
    pub fn new(inner: Arc<dyn Backend>, setting: Setting) -> Self {
        Enveloped {
            inner,
            setting,
            generations: Generations::default(),
            meanings: Meanings::default(),
            told_other: AtomicBool::new(false),
            told: AtomicBool::new(false),
            damaged: RecentNames::default(),
            older: RecentNames::default(),
        }
    }

    /// The descriptors of the store's handles.
    pub fn descriptors(&self) -> &Descriptors {
        &self.setting.descriptors
    }

    /// Remove what lies under a manifest's name in layout 1, and not what lies in layout 2. It is looked for first: mostly there is
    /// nothing, and a storage system may keep a trace of each delete.
    pub fn delete_layout1_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        if is_component_name(name) {
            // Its name is the same in both layouts.
            return Ok(());
        }
        match self.inner.get_manifest(name, until)? {
            Some(_) => self.inner.delete_manifest(name, until),
            None => Ok(()),
        }
    }

    /// A manifest, for a caller that looks for damage: `Corrupt` where it is not what was put. Nothing is counted.
    pub fn examine_manifest(&self, name: &str, until: &Until) -> Result<Option<Examined>, Error> {
        let keyed = !is_component_name(name);
        if let (true, Some(data)) = (keyed, self.inner.get_manifest(&stored_name(name), until)?) {
            return match judge(Kind::Manifest, reduced_name(name).as_bytes(), PayloadBytes::Slice(&data)) {
                Judged::Sound(found) => Ok(Some(Examined { bytes: found.len as u64, descriptor: found.descriptor })),
                Judged::Foreign { .. } => Ok(None),
                Judged::Damaged(Damaged { len, .. }) => {
                    let message = format!("its {len} bytes do not match their checksum");
                    Err(Error::new(ErrorKind::Corrupt, message))
                }
            };
        }
        let found = self.inner.get_manifest(name, until)?;
        Ok(found.map(|data| Examined { bytes: data.len() as u64, descriptor: None }))
    }

    /// What was written by a later version is left alone: it is missed, and one line says why.
    fn tell_foreign(&self, what: std::fmt::Arguments<'_>, version: u16, transforms: u16) {
        self.setting.counters.count(Event::ForeignEnvelopes);
        if !self.told.swap(true, Relaxed) {
            let uri = &self.setting.uri;
            log::line(
                Level::Warn,
                format_args!(
                    "{uri}: {what} lies in an envelope of version {version} with transforms {transforms}, which this version does not \
                     read: it is missed and left alone, as are others like it"
                ),
            );
        }
    }

    /// What was answered for a chunk in an envelope, without it.
    fn unwrapped(
        &self,
        hash: &ChunkHash,
        target: Option<&Target<'_>>,
        got: Got,
        until: &Until,
    ) -> Result<Option<Got>, Error> {
        let judged = match &got {
            Got::TooLong(len) => return Ok(Some(Got::TooLong(len.saturating_sub(TAIL_BYTES)))),
            Got::Damaged(_) => return Ok(Some(got)),
            Got::Buffer(data) => judge(Kind::Chunk, reduced_key(hash).as_slice(), PayloadBytes::Slice(data)),
            Got::Placed(len) => {
                let pieces = target.and_then(Target::pieces).unwrap_or_default();
                // SAFETY: the target was promised to be valid and nobody else's, and it is only read here.
                let memory = unsafe { ValueMemory::room(pieces) };
                // SAFETY: the backend has placed so many bytes there.
                let placed = unsafe { PayloadBytes::of(&memory, *len as u64) };
                judge_summed(Kind::Chunk, reduced_key(hash).as_slice(), placed, target.and_then(Target::sum))
            }
        };
        Ok(match (judged, got) {
            (Judged::Sound(found), _) if !self.admits_chunk(hash, found.descriptor, until) => None,
            (Judged::Sound(found), Got::Buffer(data)) => Some(Got::Buffer(shortened(data, found.len)?)),
            (Judged::Sound(found), _) => Some(Got::Placed(found.len)),
            (Judged::Damaged(damaged), _) => Some(Got::Damaged(Box::new(damaged))),
            (Judged::Foreign { version, transforms }, _) => {
                self.tell_foreign(format_args!("chunk {hash}"), version, transforms);
                until.dropped_chunk(hash, Unanswered::Later);
                None
            }
        })
    }

    /// The greatest generation of a manifest that is known before it is read.
    fn known_generation(&self, name: &str) -> Option<Generation> {
        self.generations.known(name, self.setting.clock.now())
    }

    /// A manifest out of its envelope. `Err`: it is not what was put. `known`: of [`Self::known_generation`].
    fn manifest(
        &self,
        name: &str,
        data: Arc<Buffer>,
        known: Option<Generation>,
        until: &Until,
    ) -> Result<Result<Option<Arc<Buffer>>, Damaged>, Error> {
        let setting = &self.setting;
        match judge(Kind::Manifest, reduced_name(name).as_bytes(), PayloadBytes::Slice(&data)) {
            Judged::Damaged(damaged) => Ok(Err(damaged)),
            Judged::Foreign { version, transforms } => {
                self.tell_foreign(format_args!("manifest {name:?}"), version, transforms);
                until.dropped_manifest(Unanswered::Later);
                Ok(Ok(None))
            }
            Judged::Sound(found) if !self.admits_manifest(name, found.descriptor, until) => Ok(Ok(None)),
            Judged::Sound(Sound { len, generation, .. }) => {
                let accepts = |generation| self.generations.accept(name, generation, known, setting.clock.now());
                if generation.is_none_or(accepts) {
                    return Ok(Ok(Some(shortened(data, len)?)));
                }
                setting.counters.count(Event::OlderManifests);
                until.dropped_manifest(Unanswered::Older);
                if self.older.add(name) {
                    let uri = &setting.uri;
                    log::line(
                        Level::Warn,
                        format_args!("{uri}: manifest {name:?} is older than one that was read before: not answered"),
                    );
                }
                Ok(Ok(None))
            }
        }
    }

    /// A manifest that came damaged is read once more, over another connection. It is never removed: the next put replaces it.
    fn damaged_manifest(&self, name: &str, damaged: Damaged, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        let Setting { uri, counters, .. } = &self.setting;
        counters.count(Event::WrongBytes);
        until.dropped_manifest(Unanswered::Damaged);
        self.inner.drop_connections();
        let known = self.known_generation(name);
        let again = self.inner.get_manifest(&stored_name(name), until)?;
        let found = again.map(|again| self.manifest(name, again, known, until)).transpose()?;
        let what = match &found {
            Some(Ok(Some(_))) => "and sound when it was read again",
            Some(Err(_)) => "twice: not answered; the next put_manifest replaces it",
            None | Some(Ok(None)) => "and was not there when it was read again",
        };
        let len = damaged.len;
        if self.damaged.add(name) {
            log::line(Level::Error, format_args!("{uri}: manifest {name:?} came damaged ({len} bytes) {what}"));
        }
        Ok(found.and_then(Result::ok).flatten())
    }

    /// Which chunks there are where each is stored, with the lengths of their values, as `seen` has it.
    fn exist_stored(
        &self,
        hashes: &[ChunkHash],
        until: &Until,
        seen: impl Fn(&ChunkHash, Presence) -> Presence,
    ) -> Answers<Presence> {
        let mut answers = self.inner.exists(&stored_keys(hashes), until)?;
        for (hash, answer) in hashes.iter().zip(&mut answers) {
            if let Ok(found) = answer {
                *found = seen(hash, value_len(hash, *found));
            }
        }
        Ok(answers)
    }
}

/// The first bytes of a buffer: of its own memory where nobody else has it.
fn shortened(mut data: Arc<Buffer>, len: usize) -> Result<Arc<Buffer>, Error> {
    match Arc::get_mut(&mut data) {
        Some(own) => {
            own.truncate(len);
            Ok(data)
        }
        None => Buffer::concat(&[data.get(..len).unwrap_or_default()]).map(Arc::new),
    }
}

fn stored_keys(hashes: &[ChunkHash]) -> Vec<ChunkHash> {
    hashes.iter().map(stored_key).collect()
}

/// The length of a value, from that of what is stored.
fn value_len(hash: &ChunkHash, presence: Presence) -> Presence {
    match presence {
        Presence::Present(Some(len)) if hash.is_enveloped() => Presence::Present(len.checked_sub(TAIL_BYTES as u64)),
        other => other,
    }
}

fn all_plain<'a>(mut hashes: impl Iterator<Item = &'a ChunkHash>) -> bool {
    hashes.all(|hash| hash.layout() == Layout::Plain)
}

impl Enveloped {
    /// Store chunks, each in its envelope where it is meant to lie in one.
    fn put_enveloped(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        let tail_of = |(hash, data): &ChunkToPut<'_>| {
            let pieces = data.pieces();
            hash.is_enveloped().then(|| {
                let (key, descriptor) = (reduced_key(hash), self.digest(hash.described()));
                tail(Kind::Chunk, key.as_slice(), descriptor, data.len(), pieces.iter().copied())
            })
        };
        let tails: Vec<Option<[u8; TAIL_BYTES]>> = chunks.iter().map(tail_of).collect();
        let pieces: Vec<Vec<&[u8]>> = chunks
            .iter()
            .zip(&tails)
            .map(|((_, data), tail)| data.pieces().into_iter().chain(tail.as_ref().map(|tail| &tail[..])).collect())
            .collect();
        let stored: Vec<ChunkToPut<'_>> = chunks
            .iter()
            .zip(&pieces)
            .map(|((hash, data), pieces)| match hash.layout() {
                Layout::Plain => (*hash, *data),
                Layout::Enveloped => (stored_key(hash), Bytes::Scattered(pieces)),
            })
            .collect();
        self.inner.put(&stored, replace, until)
    }
}

impl Backend for Enveloped {
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        if all_plain(hashes.iter()) {
            return self.inner.exists(hashes, until);
        }
        self.exist_stored(hashes, until, |hash, found| self.seen_by_reader(hash, found))
    }

    fn exists_for_put(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        if all_plain(hashes.iter()) {
            return self.inner.exists(hashes, until);
        }
        let answers = self.exist_stored(hashes, until, |_, found| found)?;
        Ok(self.present_for_put(hashes, answers, until))
    }

    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put> {
        if all_plain(chunks.iter().map(|(hash, _)| hash)) {
            return self.inner.put(chunks, replace, until);
        }
        if !replace {
            let answers = self.put_enveloped(chunks, false, until)?;
            let again = |chunk: &ChunkToPut<'_>, replace| {
                let answers = self.put_enveloped(std::slice::from_ref(chunk), replace, until)?;
                answers.into_iter().next().unwrap_or_else(|| Err(contract_violation("answered no outcome")))
            };
            return Ok(self.settle_existed(chunks, answers, &again, until));
        }
        if self.is_undescribed(chunks.iter().map(|(hash, _)| hash)) {
            return self.put_enveloped(chunks, true, until);
        }
        let mut refused = self.not_to_replace(chunks, until);
        let allowed = chunks.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let allowed: Vec<ChunkToPut<'_>> = allowed.map(|(chunk, _)| *chunk).collect();
        let answers = if allowed.is_empty() { Vec::new() } else { self.put_enveloped(&allowed, true, until)? };
        for ((hash, _), answer) in allowed.iter().zip(&answers) {
            if answer.is_ok() {
                self.chunk_was_put(hash);
            }
        }
        let mut answers = answers.into_iter();
        // A backend may answer less, and so does this.
        Ok(refused.iter_mut().map_while(|refused| refused.take().map(Err).or_else(|| answers.next())).collect())
    }

    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>> {
        if all_plain(hashes.iter()) {
            return self.inner.get(hashes, targets, until);
        }
        // An envelope's tail lies behind the value: it has room behind the caller's.
        let mut tails = vec![[0_u8; TAIL_BYTES]; hashes.len().min(targets.len())];
        // Those of all items, one after another.
        let all = targets.iter().map(|target| target.pieces().map_or(0, |pieces| pieces.len() + 1)).sum();
        let mut rooms: Vec<libc::iovec> = Vec::with_capacity(all);
        let with_tail = |((hash, target), tail): ((&ChunkHash, &Target<'_>), &mut [u8; TAIL_BYTES])| {
            let (pieces, begin) = (target.pieces().filter(|_| hash.is_enveloped())?, rooms.len());
            rooms.extend_from_slice(pieces);
            rooms.push(libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: TAIL_BYTES });
            Some(begin..rooms.len())
        };
        let ranges: Vec<Option<Range<usize>>> = hashes.iter().zip(&*targets).zip(&mut tails).map(with_tail).collect();
        let room = |range: &Option<Range<usize>>| rooms.get(range.clone()?);
        let covering_of = |(hash, range)| {
            (capacity(room(range)?) >= SUMMED_FROM).then(|| covering(Kind::Chunk, reduced_key(hash).as_slice()))
        };
        let coverings: Vec<Option<Covering>> = hashes.iter().zip(&ranges).map(covering_of).collect();
        let mut places: Vec<Target<'_>> = targets
            .iter()
            .zip(&ranges)
            .zip(&coverings)
            .map(|((target, range), covering)| match room(range) {
                // SAFETY: the pieces are those of the target, which its maker has promised, and a tail of this call.
                Some(pieces) => unsafe { Target::memory(pieces) }.summed(covering.as_ref()),
                None => *target,
            })
            .collect();
        let answers = self.inner.get(&stored_keys(hashes), &mut places, until)?;
        if answers.len() > hashes.len() {
            return Err(contract_violation("answered more items than it was asked for"));
        }
        let mut places = places.iter();
        let unwrap = |(hash, answer): (&ChunkHash, Result<Option<Got>, Error>)| {
            let place = places.next();
            match answer? {
                Some(got) if hash.is_enveloped() => self.unwrapped(hash, place, got, until),
                other => Ok(other),
            }
        };
        Ok(hashes.iter().zip(answers).map(unwrap).collect())
    }

    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()> {
        let deleted = self.inner.delete(&stored_keys(hashes), until);
        if self.meanings.is_used() {
            let now = self.setting.clock.now();
            hashes.iter().filter(|hash| hash.is_enveloped()).for_each(|hash| self.meanings.chunk_is(hash, None, now));
        }
        deleted
    }

    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        // A copy: manifests are small beside their chunks.
        let enveloped = manifest.map(|(name, data)| -> Result<(String, Vec<u8>), Error> {
            if is_component_name(name) {
                return Ok((name.to_owned(), without_generation(data)?));
            }
            self.check_published_over(name, until)?;
            let descriptor = self.digest(until.described());
            let data_once = std::iter::once(data);
            let tail = tail(Kind::Manifest, reduced_name(name).as_bytes(), descriptor, data.len(), data_once);
            Ok((stored_name(name), [data, &tail].concat()))
        });
        let enveloped = enveloped.transpose()?;
        let stored = enveloped.as_ref().map(|(name, data)| (name.as_str(), data.as_slice()));
        let committed = match all_plain(fresh.iter()) {
            true => self.inner.commit(stored, fresh, bytes, until)?,
            false => self.inner.commit(stored, &stored_keys(fresh), bytes, until)?,
        };
        let Committed::Absent(absent) = committed else {
            if let Some((name, _)) = manifest {
                self.damaged.forget(name);
                self.manifest_was_published(name, until);
            }
            return Ok(committed);
        };
        let absent: ChunkSet = absent.into_iter().collect();
        let absent: Vec<ChunkHash> = fresh.iter().filter(|hash| absent.contains(&stored_key(hash))).copied().collect();
        match absent.is_empty() {
            true => Err(contract_violation("answered that chunks are absent which it was not asked for")),
            false => Ok(Committed::Absent(absent)),
        }
    }

    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        if is_component_name(name) {
            return self.inner.get_manifest(name, until);
        }
        let known = self.known_generation(name);
        if let Some(data) = self.inner.get_manifest(&stored_name(name), until)? {
            return match self.manifest(name, data, known, until)? {
                Ok(found) => Ok(found),
                Err(damaged) => self.damaged_manifest(name, damaged, until),
            };
        }
        if !self.reads_layout1(until.described()) {
            return Ok(None);
        }
        let found = self.inner.get_manifest(name, until)?;
        self.setting.counters.add(Event::Layout1Reads, u64::from(found.is_some()));
        Ok(found)
    }

    /// In layout 1 first: what is left after a failure is the newer one.
    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        if self.meanings.is_used() {
            self.meanings.manifest_is(name, None, self.setting.clock.now());
        }
        let stored = stored_name(name);
        if self.setting.reads_layout1 && stored != name {
            // Not looked for: what cannot be read is to be removed all the same.
            self.inner.delete_manifest(name, until)?;
        }
        self.inner.delete_manifest(&stored, until)
    }

    fn retire(&self) {
        self.inner.retire();
    }

    fn drop_connections(&self) {
        self.inner.drop_connections();
    }
}
