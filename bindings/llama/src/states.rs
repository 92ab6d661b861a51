//! States of sequences in a store: cut, checked, whole or not at all.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::background;
use crate::chunks::{ChunkBatch, Whole, batches, hash, name_of, pieces, side_by_side};
use crate::copied::{Copied, file_bytes};
use crate::engine::Token;
use crate::layout::{self, Cut};
use crate::local::{Local, MAX_APPENDIX};
use crate::log;
use crate::memory::StateMemory;
use crate::model;
use crate::record::{ChunkHash, Record, SEAL_BYTES};
use crate::slot::Slot;
use crate::store::{Committed, New, Store, Wanted};

/// How often a save puts again what the store lost meanwhile.
const TRIES: usize = 3;

/// Where states are kept.
pub struct States {
    store: Store,
    /// What names the model, in place of its file.
    model: Option<String>,
}

/// What a load answers.
pub enum Loaded {
    /// How many tokens the state has; nothing was loaded.
    Count(usize),
    /// The state was loaded.
    State {
        tokens: Vec<Token>,
        /// Bytes that the sequence file would have.
        bytes: usize,
        /// What the server appended to the file when it was saved.
        appendix: Vec<u8>,
    },
}

/// A state that is in the store.
pub struct Stored {
    manifest: String,
    fingerprint: [u8; 32],
    version: u32,
    seal: [u8; SEAL_BYTES],
    /// Bytes that the store did not have.
    pub new_bytes: u64,
}

/// What was put of a state.
struct PutState {
    chunks: usize,
    new: usize,
    new_bytes: usize,
    /// Of its record.
    seal: [u8; SEAL_BYTES],
}

/// Why a state was not loaded.
pub enum NotLoaded {
    /// There is no such state. The sequence is as it was, as it is for the next two.
    Missing(String),
    /// The caller has no room for its tokens.
    TooLong(String),
    /// It could not be asked for, or does not fit.
    Untouched(String),
    /// What was found is not whole, or llama.cpp refused it. llama.cpp's own function forgets the sequence then.
    Broken(String),
}

impl States {
    pub fn open(uri: &str, model: Option<&str>) -> Result<States, String> {
        Ok(States { store: Store::open(uri, model)?, model: model.map(str::to_owned) })
    }

    /// Copy the state of a sequence, to be stored under a name.
    ///
    /// # Safety
    /// What `llama_state_seq_save_file` asks for holds for the slot.
    pub unsafe fn copy(&self, slot: &Slot, name: &str, tokens: &[Token]) -> Result<Copied, String> {
        // SAFETY: by this function's own condition.
        let (version, fingerprint) = unsafe { self.fingerprint(slot)? };
        let manifest = |state: &[u8]| manifest_name(name, &fingerprint, layout::streams(state));
        // SAFETY: the same.
        unsafe { Copied::of(slot, name, manifest, (version, fingerprint), tokens) }
    }

    /// Store a state that was copied, when its turn comes. An error is logged: the server has its answer. `local`: the file that the
    /// server writes its checkpoints to. It is removed then.
    pub fn store_later(self: Arc<Self>, copied: Copied, local: Option<Local>) {
        let (bytes, manifest) = (copied.bytes(), copied.manifest_name().to_owned());
        background::save(bytes, manifest, move || {
            let stored = self.store_with_appendix(&copied, local.as_ref());
            if let Err(error) = stored {
                log::line(format_args!("not stored: {}: {error}", copied.name()));
            }
            if let Some(local) = local {
                local.remove();
            }
        });
    }

    /// `local`: has the context checkpoints, once the server has written them.
    fn store_with_appendix(&self, copied: &Copied, local: Option<&Local>) -> Result<(), String> {
        let stored = self.store(copied)?;
        let Some(local) = local else { return Ok(()) };
        local.wait();
        let appendix = local.appendix().map_err(|error| format!("its context checkpoints: {error}"))?;
        if appendix.is_empty() { Ok(()) } else { self.store_appendix(&stored, &appendix) }
    }

    /// Store what was copied.
    ///
    /// # Errors
    /// Why the state is not stored; the one that was under the name before stays.
    pub fn store(&self, copied: &Copied) -> Result<Stored, String> {
        let Copied { name, manifest, fingerprint, version, tokens, said, state, begun } = copied;
        let (fingerprint, version) = (*fingerprint, *version);
        let size = state.len() as u64;
        let cut = Cut::new(state, version);
        let rest = cut.rest(size).ok_or("the state was cut wrongly: a defect of kv-store-llama, please report it")?;
        let rest = rest.into_iter().flat_map(|range| state.get(range).unwrap_or_default()).copied().collect();
        let chunks: Vec<_> = cut.chunks().collect();
        let put = self.put(state, &chunks, manifest, |hashes| Record {
            fingerprint,
            version,
            tokens: tokens.clone(),
            size,
            cut: cut.clone(),
            hashes,
            rest,
        })?;
        log::line(format_args!(
            "saved {name}: {said} tokens, {} in {} chunks, {} of them new ({}), {:.1} ms",
            log::Bytes(size),
            put.chunks,
            put.new,
            log::Bytes(put.new_bytes as u64),
            begun.elapsed().as_secs_f64() * 1e3,
        ));
        Ok(Stored { manifest: manifest.clone(), fingerprint, version, seal: put.seal, new_bytes: put.new_bytes as u64 })
    }

    /// Store what the server has appended to the file of a state, bound to this state.
    ///
    /// # Errors
    /// Why it is not stored.
    fn store_appendix(&self, stored: &Stored, appendix: &[u8]) -> Result<(), String> {
        let content = [&stored.seal[..], appendix].concat();
        let cut = Cut::by_content(&content);
        let chunks: Vec<_> = cut.chunks().collect();
        let Stored { fingerprint, version, .. } = *stored;
        let record = |hashes| Record {
            fingerprint,
            version,
            tokens: Vec::new(),
            size: content.len() as u64,
            cut: cut.clone(),
            hashes,
            rest: Vec::new(),
        };
        self.put(&content, &chunks, &appendix_name(&stored.manifest), record)?;
        Ok(())
    }

    /// Put the chunks and publish the manifest over them.
    fn put(
        &self,
        state: &[u8],
        chunks: &[Vec<Range<usize>>],
        manifest: &str,
        record: impl FnOnce(Vec<ChunkHash>) -> Record,
    ) -> Result<PutState, String> {
        let save = self.store.begin_save()?;
        let (new, new_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let put = |chunks: &[Vec<Range<usize>>]| -> Result<Vec<ChunkHash>, String> {
            let pieces: Vec<Vec<&[u8]>> = chunks.iter().map(|chunk| pieces(state, chunk)).collect();
            let hashes: Vec<ChunkHash> = pieces.iter().map(|pieces| hash(pieces)).collect();
            let items: Vec<New<'_>> =
                hashes.iter().zip(&pieces).map(|(hash, pieces)| New { key: name_of(hash), pieces }).collect();
            let outcomes = self.store.put_many(&items, &save)?;
            for item in outcomes.into_iter().zip(&items).filter_map(|(is_new, item)| is_new.then_some(item)) {
                new.fetch_add(1, Relaxed);
                new_bytes.fetch_add(item.pieces.iter().map(|piece| piece.len()).sum(), Relaxed);
            }
            Ok(hashes)
        };
        let hashes: Vec<ChunkHash> =
            side_by_side(&batches(chunks), |(chunks, _)| put(chunks)).collect::<Result<Vec<_>, _>>()?.concat();
        let count = hashes.len();
        let record = record(hashes);
        let bytes = record.encode();
        let seal =
            *bytes.last_chunk().ok_or("a record without a seal: a defect of kv-store-llama, please report it")?;
        for _ in 0..TRIES {
            let lost = match save.commit(manifest, &bytes)? {
                Committed::Published => {
                    let (new, new_bytes) = (new.into_inner(), new_bytes.into_inner());
                    return Ok(PutState { chunks: count, new, new_bytes, seal });
                }
                Committed::Lost(lost) => lost,
            };
            let lost: Vec<_> = chunks
                .iter()
                .zip(&record.hashes)
                .filter(|(_, hash)| lost.iter().any(|lost| lost == name_of(hash)))
                .map(|(chunk, _)| chunk.clone())
                .collect();
            for (chunks, _) in batches(&lost) {
                put(chunks)?;
            }
        }
        Err("the store lost chunks again and again while they were saved: is it too small?".to_owned())
    }

    /// Load a state that was kept under a name. Without room for tokens (`None`) it answers their number alone.
    ///
    /// # Safety
    /// What `llama_state_seq_load_file` asks for holds for the slot.
    pub unsafe fn load(&self, slot: &Slot, name: &str, room: Option<usize>) -> Result<Loaded, NotLoaded> {
        let begun = Instant::now();
        let Slot { engine, context, sequence } = *slot;
        // SAFETY: by this function's own condition.
        let (version, fingerprint) = unsafe { self.fingerprint(slot).map_err(NotLoaded::Untouched)? };
        // SAFETY: the same.
        let streams = unsafe { engine.streams(context, sequence) };
        let (record, manifest, seal) = self.record(name, &fingerprint, streams)?;
        if record.fingerprint != fingerprint || record.version != version {
            return Err(unusable("it is of another model"));
        }
        let count = record.tokens.len();
        let Some(room) = room else { return Ok(Loaded::Count(count)) };
        if count > room {
            return Err(NotLoaded::TooLong(format!(
                "the state has {count} tokens, and the caller has room for {room}"
            )));
        }
        let size = record.size as usize;
        let no_memory = |error| NotLoaded::Untouched(format!("no memory for {size} bytes: {error}"));
        let mut state = StateMemory::new(size).map_err(no_memory)?;
        self.get(&record, &mut state).map_err(NotLoaded::Broken)?;
        // SAFETY: by this function's own condition; the memory has `size` bytes.
        let read = unsafe { (engine.state_set)(context, state.as_ptr(), size, sequence) };
        if read != size {
            return Err(NotLoaded::Broken(
                "llama.cpp refused the state: is the context smaller, or of another type?".to_owned(),
            ));
        }
        // SAFETY: the same.
        let said = unsafe { engine.positions(context, sequence) }.unwrap_or(count).min(count);
        log::line(format_args!(
            "loaded {name}: {said} tokens, {}, {:.1} ms",
            log::Bytes(size as u64),
            begun.elapsed().as_secs_f64() * 1e3,
        ));
        let tokens = record.tokens;
        let bytes = file_bytes(&tokens, size);
        Ok(Loaded::State { tokens, bytes, appendix: self.appendix(&manifest, seal) })
    }

    /// The bytes of a manifest; `None` if there is none.
    pub fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        self.store.manifest(name)
    }

    /// Publish a manifest that names no chunks.
    pub fn put_manifest(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        self.store.put_manifest(name, bytes)
    }

    /// The state that a record is of, whole and checked.
    pub fn fetch_state(&self, record: &Record) -> Result<StateMemory, String> {
        let size = usize::try_from(record.size).map_err(|_| "it is too large")?;
        let mut state = StateMemory::new(size).map_err(|error| format!("no memory for {size} bytes: {error}"))?;
        self.get(record, &mut state)?;
        Ok(state)
    }

    /// The record of a state, its manifest's name, and its seal.
    fn record(
        &self,
        name: &str,
        fingerprint: &[u8; 32],
        streams: u32,
    ) -> Result<(Record, String, [u8; SEAL_BYTES]), NotLoaded> {
        let found = |manifest: &str| {
            background::wait_for(manifest);
            self.store.manifest(manifest).map_err(NotLoaded::Untouched)
        };
        let manifest = manifest_name(name, fingerprint, streams);
        let (bytes, manifest) = match found(&manifest)? {
            Some(bytes) => (Some(bytes), manifest),
            // Version 0.2 had one name for any number of streams.
            None if streams > 1 => {
                let former = manifest_name(name, fingerprint, 1);
                let is_ours = |record: &Record| layout::streams(&record.rest) == streams;
                let bytes = found(&former)?.filter(|bytes| Record::decode(bytes).as_ref().is_ok_and(is_ours));
                (bytes, former)
            }
            None => (None, manifest),
        };
        let bytes = bytes.ok_or_else(|| NotLoaded::Missing("no state of this model under this name".to_owned()))?;
        let record = Record::decode(&bytes).map_err(unusable)?;
        let seal = *bytes.last_chunk().ok_or_else(|| unusable("it is too short"))?;
        Ok((record, manifest, seal))
    }

    /// What the server had appended to the file of this state; empty if nothing, or if it cannot be had.
    fn appendix(&self, manifest: &str, seal: [u8; SEAL_BYTES]) -> Vec<u8> {
        let name = appendix_name(manifest);
        self.stored_appendix(&name, seal).unwrap_or_else(|why| {
            log::line(format_args!("without its context checkpoints: {name}: {why}"));
            Vec::new()
        })
    }

    fn stored_appendix(&self, name: &str, seal: [u8; SEAL_BYTES]) -> Result<Vec<u8>, String> {
        let Some(bytes) = self.store.manifest(name)? else {
            return Ok(Vec::new());
        };
        let record = Record::decode(&bytes)?;
        if record.size > MAX_APPENDIX + SEAL_BYTES as u64 {
            return Err("they are too long".to_owned());
        }
        let mut content = vec![0; record.size as usize];
        self.get(&record, &mut content)?;
        // Those of another state that was saved under this name are left alone.
        Ok(content.strip_prefix(&seal).unwrap_or_default().to_vec())
    }

    /// Put a state together in memory of its size.
    fn get(&self, record: &Record, state: &mut [u8]) -> Result<(), String> {
        let mut rest = record.rest.as_slice();
        for range in record.cut.rest(record.size).unwrap_or_default() {
            let (now, later) = rest.split_at_checked(range.len()).unwrap_or((rest, &[]));
            if let Some(place) = state.get_mut(range).filter(|place| place.len() == now.len()) {
                place.copy_from_slice(now);
            }
            rest = later;
        }
        let chunks: Vec<_> = record.cut.chunks().collect();
        let whole = Whole { start: state.as_mut_ptr(), len: state.len() };
        // All of a state is looked at, also when a part is damaged: so one load finds all that is.
        let get = |(chunks, which): &ChunkBatch<'_>| -> Result<bool, String> {
            let hashes = record.hashes.get(which.clone()).unwrap_or_default();
            // SAFETY: a cut that was decoded has ranges that do not overlap, and each chunk is in one batch.
            let sound = unsafe { self.fetch(&whole, chunks, hashes, false)? };
            let mut whole_batch = true;
            for ((chunk, hash), _) in chunks.iter().zip(hashes).zip(sound).filter(|(_, sound)| !sound) {
                // Asked for by its content, the library reads it again, and the next save replaces it if it stays damaged.
                let chunk = std::slice::from_ref(chunk);
                // SAFETY: the same; the references of the first fetch are gone.
                let again = unsafe { self.fetch(&whole, chunk, std::slice::from_ref(hash), true)? };
                whole_batch &= again == [true];
            }
            Ok(whole_batch)
        };
        let batches = side_by_side(&batches(&chunks), get).collect::<Result<Vec<bool>, String>>()?;
        if batches.contains(&false) { Err("a chunk is missing, or damaged".to_owned()) } else { Ok(()) }
    }

    /// Fetch chunks to their places. Answers of each whether it is there, and what was saved.
    ///
    /// # Safety
    /// The ranges do not overlap, and nobody else uses this part of the memory.
    unsafe fn fetch(
        &self,
        whole: &Whole,
        chunks: &[Vec<Range<usize>>],
        hashes: &[ChunkHash],
        by_content: bool,
    ) -> Result<Vec<bool>, String> {
        let mut pieces: Vec<Vec<&mut [u8]>> = chunks
            .iter()
            // SAFETY: by this function's own condition.
            .map(|chunk| chunk.iter().map(|range| unsafe { whole.part(range) }).collect())
            .collect();
        let mut items: Vec<Wanted<'_, '_>> =
            hashes.iter().zip(&mut pieces).map(|(hash, pieces)| Wanted { key: name_of(hash), pieces }).collect();
        let found = self.store.get_many(&mut items, by_content)?;
        let mut sound = Vec::with_capacity(chunks.len());
        // The memory is theirs no longer.
        drop(items);
        for ((found, chunk), expected) in found.into_iter().zip(chunks).zip(hashes) {
            // SAFETY: by this function's own condition; the references above are gone.
            let pieces: Vec<&[u8]> = chunk.iter().map(|range| unsafe { &*whole.part(range) }).collect();
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            sound.push(found == Some(len) && hash(&pieces) == *expected);
        }
        Ok(sound)
    }

    /// The version of the state's layout and the fingerprint of what made it.
    ///
    /// # Safety
    /// As [`States::save`].
    unsafe fn fingerprint(&self, slot: &Slot) -> Result<(u32, [u8; 32]), String> {
        // SAFETY: by this function's own condition.
        let (version, shape) = unsafe { (slot.engine.version(slot.context), slot.engine.shape(slot.context)) };
        let version = version.ok_or("this libllama writes sequence states of an unknown version")?;
        let named = self.model.as_deref();
        if named.is_none() && crate::adapters::were_loaded() {
            return Err(format!(
                "a LoRA adapter or control vector was loaded, and the library cannot tell which slots used it: name model \
                 and adapters with {}",
                crate::settings::MODEL
            ));
        }
        let build = match version {
            ..=layout::LAST_VERSION => None,
            _ => Some(slot.engine.build()?),
        };
        let fingerprint = model::fingerprint(&shape, version, build, named)
            .map_err(|error| format!("{error}: name the model with {}", crate::settings::MODEL))?;
        Ok((version, fingerprint))
    }
}

fn unusable(what: &str) -> NotLoaded {
    NotLoaded::Untouched(format!("the manifest cannot be used: {what}"))
}

/// The name of a state's manifest: the file's, and what made it. A cache with a stream for each sequence takes no state of one with
/// another number of streams.
fn manifest_name(name: &str, fingerprint: &[u8; 32], streams: u32) -> String {
    let hex = hex::encode(fingerprint.get(..16).unwrap_or_default());
    if streams > 1 { format!("{name}@{hex}-{streams}") } else { format!("{name}@{hex}") }
}

/// The name of the manifest of what the server appended to a state's file.
fn appendix_name(manifest: &str) -> String {
    format!("{manifest}.checkpoints")
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
