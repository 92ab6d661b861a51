//! States of sequences in a store: cut, checked, whole or not at all.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use kv_store_wasm::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Put, SaveOutcome, Store};
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::engine::{Context, Engine, FILE_HEADER_BYTES, MEMORY_HEADER_BYTES, Sequence, Token};
use crate::layout::Cut;
use crate::log;
use crate::memory::StateMemory;
use crate::model;
use crate::record::{ChunkHash, NAME_BYTES, Record};

/// Bytes of a batch: what is hashed is still in a cache of the processor when it is copied.
const BATCH_BYTES: usize = 4 << 20;
/// Threads that share the batches of a state, at most; one for each so many bytes.
const MOST_THREADS: usize = 4;
const BYTES_A_THREAD: usize = 16 << 20;
/// How often a save puts again what the store lost meanwhile.
const TRIES: usize = 3;

/// Where states are kept.
pub struct States {
    store: Store,
    /// What names the model, in place of its file.
    model: Option<String>,
}

/// A sequence of a context. Made by the caller of a function that has llama.cpp's own conditions.
#[derive(Clone, Copy)]
pub struct Slot {
    pub engine: Engine,
    pub context: Context,
    pub sequence: Sequence,
}

/// What a load answers.
pub enum Loaded {
    /// How many tokens the state has; nothing was loaded.
    Count(usize),
    /// The tokens, and the bytes that the sequence file would have.
    State(Vec<Token>, usize),
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

/// Chunks of a state that are moved together.
type Batch<'a> = (&'a [Vec<Range<usize>>], Range<usize>);

impl States {
    pub fn open(uri: &str, model: Option<&str>) -> Result<States, String> {
        let store = Store::open(uri).map_err(|error| error.to_string())?;
        Ok(States { store, model: model.map(str::to_owned) })
    }

    /// Keep the state of a sequence under a name. Returns the bytes that the sequence file would have.
    ///
    /// # Safety
    /// What `llama_state_seq_save_file` asks for holds for the slot.
    pub unsafe fn save(&self, slot: &Slot, name: &str, tokens: &[Token]) -> Result<usize, String> {
        let begun = Instant::now();
        let Slot { engine, context, sequence } = *slot;
        // SAFETY: by this function's own condition.
        let (version, fingerprint) = unsafe { self.fingerprint(slot)? };
        // SAFETY: the same.
        let size = unsafe { (engine.state_size)(context, sequence) };
        let state_of_file = size.checked_sub(MEMORY_HEADER_BYTES).ok_or("llama.cpp gives no state")?;
        let mut state = StateMemory::new(size).map_err(|error| format!("no memory for {size} bytes: {error}"))?;
        // SAFETY: the same; the memory has `size` bytes.
        let written = unsafe { (engine.state_get)(context, state.as_mut_ptr(), size, sequence) };
        if written != size {
            return Err(format!("llama.cpp wrote {written} bytes of a state of {size} bytes"));
        }

        let cut = Cut::new(&state);
        let rest =
            cut.rest(size as u64).ok_or("the state was cut wrongly: a defect of kv-store-llama, please report it")?;
        let rest = rest.into_iter().flat_map(|range| state.get(range).unwrap_or_default()).copied().collect();
        let chunks: Vec<_> = cut.chunks().collect();
        let (count, new) = self.put(&state, &chunks, fingerprint, name, |hashes| Record {
            fingerprint,
            version,
            tokens: tokens.to_vec(),
            size: size as u64,
            cut: cut.clone(),
            hashes,
            rest,
        })?;
        log::line(format_args!(
            "saved {name}: {} tokens, {} in {} chunks, {} of them new ({}), {:.1} ms",
            tokens.len(),
            log::Bytes(size as u64),
            count,
            new.0,
            log::Bytes(new.1 as u64),
            begun.elapsed().as_secs_f64() * 1e3,
        ));
        Ok(FILE_HEADER_BYTES + size_of_val(tokens) + state_of_file)
    }

    /// Put the chunks and publish the manifest over them. Returns the number of chunks, and of the new ones number and bytes.
    fn put(
        &self,
        state: &[u8],
        chunks: &[Vec<Range<usize>>],
        fingerprint: [u8; 32],
        name: &str,
        record: impl FnOnce(Vec<ChunkHash>) -> Record,
    ) -> Result<(usize, (usize, usize)), String> {
        let said = |error: kv_store_wasm::Error| error.to_string();
        let save = self.store.begin_save().map_err(said)?;
        let (new, new_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let put = |chunks: &[Vec<Range<usize>>]| -> Result<Vec<ChunkHash>, String> {
            let pieces: Vec<Vec<&[u8]>> = chunks.iter().map(|chunk| pieces(state, chunk)).collect();
            let hashes: Vec<ChunkHash> = pieces.iter().map(|pieces| hash(pieces)).collect();
            let items: Vec<NewChunk<'_>> =
                hashes.iter().zip(&pieces).map(|(hash, pieces)| NewChunk::new(name_of(hash), pieces)).collect();
            let outcomes = self.store.put_many(&items, &BatchOptions::default(), Some(&save)).map_err(said)?;
            for (outcome, item) in outcomes.into_iter().zip(&items) {
                if outcome.map_err(said)? == Put::New {
                    new.fetch_add(1, Relaxed);
                    new_bytes.fetch_add(item.pieces.iter().map(|piece| piece.len()).sum(), Relaxed);
                }
            }
            Ok(hashes)
        };
        let hashes: Vec<ChunkHash> =
            side_by_side(&batches(chunks), |(chunks, _)| put(chunks)).collect::<Result<Vec<_>, _>>()?.concat();
        let count = hashes.len();
        let record = record(hashes);
        let manifest = record.encode();
        let name = manifest_name(name, &fingerprint);
        for _ in 0..TRIES {
            let lost = match save.commit(Some((&name, &manifest))).map_err(said)? {
                SaveOutcome::Published => return Ok((count, (new.into_inner(), new_bytes.into_inner()))),
                SaveOutcome::Lost(lost) => lost,
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
        let untouched = |error: kv_store_wasm::Error| NotLoaded::Untouched(error.to_string());
        let manifest = self.store.get_manifest(&manifest_name(name, &fingerprint)).map_err(untouched)?;
        let manifest =
            manifest.ok_or_else(|| NotLoaded::Missing("no state of this model under this name".to_owned()))?;
        let wrong = |what| NotLoaded::Untouched(format!("the manifest cannot be used: {what}"));
        let record = Record::decode(&manifest).map_err(wrong)?;
        if record.fingerprint != fingerprint || record.version != version {
            return Err(wrong("it is of another model"));
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
        log::line(format_args!(
            "loaded {name}: {count} tokens, {}, {:.1} ms",
            log::Bytes(size as u64),
            begun.elapsed().as_secs_f64() * 1e3,
        ));
        let tokens = record.tokens;
        let bytes = FILE_HEADER_BYTES + size_of_val(tokens.as_slice()) + size.saturating_sub(MEMORY_HEADER_BYTES);
        Ok(Loaded::State(tokens, bytes))
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
        // All of a state is looked at, also when a part is damaged: so one load finds, and removes, all that is.
        let get = |(chunks, which): &Batch<'_>| -> Result<bool, String> {
            let hashes = record.hashes.get(which.clone()).unwrap_or_default();
            // SAFETY: a cut that was decoded has ranges that do not overlap, and each chunk is in one batch.
            let sound = unsafe { self.fetch(&whole, chunks, hashes, &BatchOptions::default())? };
            let mut whole_batch = true;
            for ((chunk, hash), _) in chunks.iter().zip(hashes).zip(sound).filter(|(_, sound)| !sound) {
                // Asked for by its content, the library reads it again, and removes it if it stays damaged.
                let (chunk, options) = (std::slice::from_ref(chunk), BatchOptions::default().with_xxh3_keys());
                // SAFETY: the same; the references of the first fetch are gone.
                let again = unsafe { self.fetch(&whole, chunk, std::slice::from_ref(hash), &options)? };
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
        options: &BatchOptions,
    ) -> Result<Vec<bool>, String> {
        // SAFETY: by this function's own condition.
        let mut pieces: Vec<Vec<&mut [u8]>> =
            chunks.iter().map(|chunk| chunk.iter().map(|range| unsafe { whole.part(range) }).collect()).collect();
        let mut items: Vec<Fetch<'_>> = hashes
            .iter()
            .zip(&mut pieces)
            .map(|(hash, pieces)| Fetch::new(name_of(hash), Memory::Pieces(pieces)))
            .collect();
        let outcomes = self.store.get_many(&mut items, options).map_err(|error| error.to_string())?;
        let mut sound = Vec::with_capacity(chunks.len());
        // The memory is theirs no longer.
        drop(items);
        for ((outcome, chunk), expected) in outcomes.into_iter().zip(chunks).zip(hashes) {
            let fetched = outcome.map_err(|error| error.to_string())?;
            // SAFETY: by this function's own condition; the references above are gone.
            let pieces: Vec<&[u8]> = chunk.iter().map(|range| unsafe { &*whole.part(range) }).collect();
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            let placed = matches!(fetched, Some(Fetched::Placed(placed)) if placed == len);
            sound.push(placed && hash(&pieces) == *expected);
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
        if named.is_none() && crate::preload::adapted() {
            return Err(format!(
                "a LoRA adapter or control vector was loaded, and the library cannot tell which slots used it: name model \
                 and adapters with {}",
                crate::settings::MODEL
            ));
        }
        let fingerprint = model::fingerprint(&shape, version, named)
            .map_err(|error| format!("{error}: name the model with {}", crate::settings::MODEL))?;
        Ok((version, fingerprint))
    }
}

/// Memory of which threads fill parts that do not overlap.
#[derive(Clone, Copy)]
struct Whole {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is only an address; the caller of `part` answers for what is done with it.
unsafe impl Sync for Whole {}

impl Whole {
    /// # Safety
    /// No other reference to these bytes is in use, and the memory outlives the answer.
    unsafe fn part<'a>(&self, range: &Range<usize>) -> &'a mut [u8] {
        if range.start > range.end || range.end > self.len {
            return &mut [];
        }
        // SAFETY: it lies in the memory; the rest by this function's own condition.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// The name of a state's manifest: the file's, and what made it.
fn manifest_name(name: &str, fingerprint: &[u8; 32]) -> String {
    let hex: String = fingerprint.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}@{hex}")
}

/// A chunk's name in the store.
fn name_of(hash: &ChunkHash) -> &[u8] {
    hash.get(..NAME_BYTES).unwrap_or_default()
}

fn pieces<'a>(state: &'a [u8], chunk: &[Range<usize>]) -> Vec<&'a [u8]> {
    chunk.iter().filter_map(|range| state.get(range.clone())).collect()
}

fn hash(pieces: &[&[u8]]) -> ChunkHash {
    /// Of more bytes than this the lower half of XXH3-128 is XXH3-64.
    const SHORT: usize = 240;
    let both = match pieces {
        [one] => XxHash3_128::oneshot(one),
        pieces => {
            let mut hash = XxHash3_128::new();
            pieces.iter().for_each(|piece| hash.write(piece));
            hash.finish_128()
        }
    };
    let short = pieces.iter().map(|piece| piece.len()).sum::<usize>() <= SHORT;
    let name = if short { XxHash3_64::oneshot(&pieces.concat()) } else { both as u64 };
    (u128::from(name) << 64 | both >> 64).to_be_bytes()
}

/// Chunks in batches of about [`BATCH_BYTES`], each with the numbers of its chunks.
fn batches(chunks: &[Vec<Range<usize>>]) -> Vec<Batch<'_>> {
    let mut batches = Vec::new();
    let mut begin = 0;
    let mut bytes = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        bytes += chunk.iter().map(ExactSizeIterator::len).sum::<usize>();
        if bytes >= BATCH_BYTES || index + 1 == chunks.len() {
            batches.push((chunks.get(begin..=index).unwrap_or_default(), begin..index + 1));
            (begin, bytes) = (index + 1, 0);
        }
    }
    batches
}

/// Do something with each batch, on more than one thread where there is enough. The answers are in the batches' order.
fn side_by_side<T: Send>(
    batches: &[Batch<'_>],
    work: impl Fn(&Batch<'_>) -> Result<T, String> + Sync,
) -> impl Iterator<Item = Result<T, String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = (batches.len() * BATCH_BYTES).div_ceil(BYTES_A_THREAD);
    let threads = wanted.min(cores).clamp(1, MOST_THREADS);
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(batch) = batches.get(index) else { return done };
            let answer = work(batch);
            if answer.is_err() {
                // The others end after what they are at.
                next.store(batches.len(), Relaxed);
            }
            done.push((index, answer));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // A thread that cannot be had is done without.
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, run).ok()).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, answer)| answer)
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
