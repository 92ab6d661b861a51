//! One context of the program, followed: what its sequences are, which beginnings are loaded in place of computed, and which states
//! are stored.
//!
//! Invariant: what the program is told of a sequence is what computing its tokens gives. A beginning that is promised is loaded or computed
//! before anything reads it; a load that fails leaves an empty sequence, and its tokens are computed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use super::batch::{Batch, Entry, Part};
use super::compute::{FATAL, run_decode, run_process};
use super::fresh::Fresh;
use super::keep;
use super::llama::{BatchExt, Compute, Llama, Memory};
use super::policy::{Credit, Kind};
use super::rates::Rates;
use super::remembered::Remembered;
use super::search::Candidate;
use super::sequence::Sequence;
use crate::engine::{Context, Engine};
use crate::log;
use crate::slot::Slot;

mod changes;
mod cut;
mod find;

/// Fewer tokens are not worth a question to the store.
const FEW: usize = 32;
/// A pause between two batches that is no computing.
const IDLE: Duration = Duration::from_secs(1);
/// A context that is followed.
pub struct Tracked {
    engine: Engine,
    llama: Llama,
    context: Context,
    memory: Memory,
    kind: Kind,
    key: [u8; 32],
    version: u32,
    /// What this context's states say of its cache, once it has written one. The inner `None`: an unknown layout.
    form: Option<Option<Vec<u64>>>,
    /// How many positions a sliding window has; 0 without.
    window: usize,
    sequences: HashMap<i32, Sequence>,
    /// What promised tokens are loaded from.
    candidates: HashMap<i32, Candidate>,
    /// States that are being stored.
    fresh: Fresh,
    /// Sequences whose part is promised whole.
    promising: HashSet<i32>,
    /// Where the prompt of a part leaves an earlier one, until the part is computed.
    branches: HashMap<i32, usize>,
    /// Where the outputs of the last batch are, if it was cut.
    outputs: Option<Vec<Option<i32>>>,
    /// For batches of this library's own.
    scratch: Option<BatchExt>,
    embeddings: bool,
    rates: Rates,
    /// Batches that may still be computed: since when, the end of the last call, their tokens.
    pending: Option<(Instant, Instant, usize)>,
    credit: Arc<Mutex<Credit>>,
    remembered: Remembered,
    off: bool,
}

// SAFETY: its pointers are llama.cpp's, which the program uses from one thread at a time; the cache holds a lock meanwhile.
unsafe impl Send for Tracked {}

impl Tracked {
    /// Follow a context.
    ///
    /// # Errors
    /// Why it cannot be followed.
    ///
    /// # Safety
    /// The context is one of this process's libllama, and no other thread uses it, here and in all methods.
    pub unsafe fn new(context: Context, credit: Arc<Mutex<Credit>>) -> Result<Tracked, String> {
        let (engine, llama) = (Engine::find()?, Llama::find()?);
        let (version, key) = keep::key(&engine, &llama, context)?;
        // SAFETY: by this function's own condition; a context has a model.
        let (memory, kind, window) = unsafe {
            let (memory, model) = ((engine.get_memory)(context), (engine.get_model)(context));
            if memory.is_null() {
                return Err("it has no memory".to_owned());
            }
            if (llama.pooling)(context) > 0 {
                return Err("it computes embeddings".to_owned());
            }
            if (llama.has_encoder)(model) || (llama.is_diffusion)(model) {
                return Err("its model does not compute one token after another".to_owned());
            }
            if llama.other_context.is_some_and(|other| !other(context).is_null()) {
                return Err("it shares with another context".to_owned());
            }
            let window = usize::try_from((llama.n_swa)(model)).unwrap_or(0);
            let fixed = window > 0 || (llama.is_recurrent)(model) || (llama.is_hybrid)(model);
            (memory, if fixed { Kind::Fixed } else { Kind::Shortens }, window)
        };
        Ok(Tracked {
            engine,
            llama,
            context,
            memory,
            kind,
            key,
            version,
            form: None,
            window,
            sequences: HashMap::new(),
            candidates: HashMap::new(),
            fresh: Fresh::default(),
            promising: HashSet::new(),
            branches: HashMap::new(),
            outputs: None,
            scratch: None,
            embeddings: false,
            rates: Rates::default(),
            pending: None,
            credit,
            remembered: Remembered::default(),
            off: false,
        })
    }

    pub fn memory(&self) -> Memory {
        self.memory
    }

    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Follow it no more. What is promised is computed first.
    pub fn turn_off(&mut self, why: &str) {
        self.fulfil_all();
        self.off = true;
        self.sequences.clear();
        self.candidates.clear();
        log::line(format_args!("automatic cache: off for this context: {why}"));
    }

    fn sequence(&mut self, sequence: i32) -> &mut Sequence {
        self.sequences.entry(sequence).or_default()
    }

    fn slot(&self, sequence: i32) -> Slot {
        Slot { engine: self.engine, context: self.context, sequence }
    }

    /// Where a sequence ends, if that is known.
    pub fn end_of(&self, sequence: i32) -> Option<usize> {
        match self.sequences.get(&sequence) {
            None => Some(0),
            Some(known) => known.is_exact().then(|| known.len()),
        }
    }

    /// Compute a batch of the program, but for the beginnings that the store has. `whole` computes all of it.
    pub fn process(&mut self, batch: &Batch, whole: &mut dyn FnMut() -> i32) -> i32 {
        let parts = batch.parts(|sequence| self.end_of(sequence)).filter(|_| !self.embeddings);
        let Some(parts) = parts else { return self.unfollowed(batch, whole) };
        let mut from = HashMap::new();
        for part in &parts {
            match self.begin(part).and_then(|begin| self.cut(part, begin)) {
                Ok(begin) => from.insert(part.sequence, begin),
                // What was promised cannot be computed: the batch cannot be either.
                Err(status) => {
                    parts.iter().for_each(|part| self.go_back(part));
                    return status;
                }
            };
        }
        let left = batch.left(&parts, &from);
        let status = match left.entries.as_slice() {
            [] => 0,
            _ if left.is_all() => self.timed(left.entries.len(), whole),
            some => {
                let entries: Vec<Entry> = some
                    .iter()
                    .filter_map(|(index, position)| {
                        let position = i32::try_from(*position).ok()?;
                        Some(Entry { position: Some(position), ..*batch.entries.get(*index)? })
                    })
                    .collect();
                self.timed_compute(&entries)
            }
        };
        self.outputs = (!left.is_all()).then_some(left.outputs);
        match status {
            0 => parts.iter().for_each(|part| self.computed(part, from.get(&part.sequence).copied())),
            // llama.cpp has put its memory back.
            1 | -1 => parts.iter().for_each(|part| self.go_back(part)),
            _ => parts.iter().for_each(|part| self.lose(part.sequence)),
        }
        if status == 0 {
            for part in &parts {
                self.keep_after(part.sequence, part.tokens.len(), part.first_output.is_some());
            }
        }
        status
    }

    /// A batch with something that is not followed, or in embedding mode: computed as it is.
    fn unfollowed(&mut self, batch: &Batch, whole: &mut dyn FnMut() -> i32) -> i32 {
        let status = self.fulfil_all();
        if status != 0 {
            return status;
        }
        let status = whole();
        self.outputs = None;
        batch.sequences().into_iter().for_each(|sequence| self.lose(sequence));
        status
    }

    fn lose(&mut self, sequence: i32) {
        self.sequence(sequence).lose();
        self.candidates.remove(&sequence);
    }

    /// The position from which a part is computed here. Below it, tokens were loaded, or are promised.
    fn begin(&mut self, part: &Part) -> Result<usize, i32> {
        self.branches.remove(&part.sequence);
        self.promising.remove(&part.sequence);
        let known = self.sequence(part.sequence);
        if !known.is_exact() {
            return Ok(part.first);
        }
        if known.len() != part.first {
            let status = self.fulfil(part.sequence);
            return if status == 0 { Ok(part.first) } else { Err(status) };
        }
        let promised = known.is_promised();
        if part.tokens.len() < FEW && !promised {
            return Ok(part.first);
        }
        let (present, mut all) = (known.present(), known.tokens().to_vec());
        all.extend_from_slice(&part.tokens);
        let wanted = all.get(..part.limit()).unwrap_or_default();
        let best = self.best(part, wanted, present);
        if self.promising.contains(&part.sequence) {
            return Ok(part.end());
        }
        let Some((covers, candidate)) = best else {
            let status = self.fulfil(part.sequence);
            return if status == 0 { Ok(part.first) } else { Err(status) };
        };
        if covers == all.len() && self.kind == Kind::Shortens {
            // The rest of the prompt comes, and one load is enough.
            self.candidates.insert(part.sequence, candidate);
            self.promising.insert(part.sequence);
            return Ok(covers);
        }
        let whole = wanted.get(..covers).unwrap_or_default();
        if self.load(part.sequence, &candidate, whole, present) {
            return Ok(covers);
        }
        let status = self.fulfil(part.sequence);
        if status == 0 { Ok(part.first) } else { Err(status) }
    }

    fn ends_at(&self, sequence: i32, length: usize) -> bool {
        // SAFETY: the memory is of the caller's context.
        let last = unsafe { (self.llama.pos_max)(self.memory, sequence) };
        usize::try_from(last + 1) == Ok(length)
    }

    /// Load or compute what is promised of all sequences. Answers as a batch does.
    pub fn fulfil_all(&mut self) -> i32 {
        let promised: Vec<i32> =
            self.sequences.iter().filter(|(_, known)| known.is_promised()).map(|(sequence, _)| *sequence).collect();
        promised.into_iter().map(|sequence| self.fulfil(sequence)).find(|status| *status != 0).unwrap_or(0)
    }

    /// Load or compute what is promised of a sequence whose positions move; of all, for a negative one.
    pub fn fulfil_moved(&mut self, sequence: i32) -> i32 {
        if sequence < 0 { self.fulfil_all() } else { self.fulfil(sequence) }
    }

    /// Load or compute what is promised of a sequence. Answers as a batch does. What is computed here takes the outputs of the program's last
    /// batch away, so only what is done to this very sequence may lead here.
    pub fn fulfil(&mut self, sequence: i32) -> i32 {
        let known = self.sequence(sequence);
        if !known.is_promised() {
            return 0;
        }
        let (tokens, present) = (known.tokens().to_vec(), known.present());
        if let Some(candidate) = self.candidates.remove(&sequence) {
            let covers = candidate.covers(self.kind, &tokens);
            if covers > present && self.load(sequence, &candidate, tokens.get(..covers).unwrap_or_default(), present) {
                self.sequence(sequence).promise(tokens.get(covers..).unwrap_or_default());
            }
        }
        // SAFETY: the context is the caller's.
        let most = unsafe { (self.llama.n_batch)(self.context) }.max(1) as usize;
        let mut present = self.sequence(sequence).present();
        while present < tokens.len() {
            let end = tokens.len().min(present + most);
            let entries: Option<Vec<Entry>> = (present..end)
                .map(|at| {
                    let position = i32::try_from(at).ok()?;
                    Some(Entry { token: *tokens.get(at)?, sequence, position: Some(position), output: false })
                })
                .collect();
            let status = entries.map_or(FATAL, |entries| self.timed_compute(&entries));
            if status != 0 {
                if !matches!(status, 1 | -1) {
                    self.lose(sequence);
                }
                return status;
            }
            present = end;
            self.sequence(sequence).has(present);
        }
        0
    }

    /// A part was computed, from a position on.
    fn computed(&mut self, part: &Part, from: Option<usize>) {
        let promised = self.promising.remove(&part.sequence);
        let known = self.sequence(part.sequence);
        if !known.is_exact() || known.len() < part.first {
            self.lose(part.sequence);
            return;
        }
        let from = from.unwrap_or(part.first);
        if known.len() > part.first {
            // It was loaded to there.
            if known.len() != from {
                self.lose(part.sequence);
                return;
            }
            let rest = part.tokens.get(from - part.first..).unwrap_or_default();
            known.computed(rest);
        } else if from == part.end() && promised {
            known.promise(&part.tokens);
            return;
        } else {
            known.computed(&part.tokens);
        }
        let computed = part.end().saturating_sub(from);
        self.credit.lock().computed(computed);
    }

    /// The batch was refused: a sequence that was loaded further than the program knows goes back.
    fn go_back(&mut self, part: &Part) {
        let memory = self.memory;
        let known = self.sequence(part.sequence);
        if !known.is_exact() || known.len() <= part.first {
            return;
        }
        known.truncate(part.first);
        // SAFETY: the memory is of the caller's context.
        let shortened = unsafe { (self.engine.memory_remove)(memory, part.sequence, part.first as i32, -1) };
        if !shortened || !self.ends_at(part.sequence, part.first) {
            // What is known is computed when it is asked for.
            // SAFETY: the same.
            unsafe { (self.engine.memory_remove)(memory, part.sequence, -1, -1) };
            self.sequence(part.sequence).has(0);
        }
    }

    fn timed(&mut self, tokens: usize, compute: &mut dyn FnMut() -> i32) -> i32 {
        let begun = Instant::now();
        let status = compute();
        let (since, more) = match self.pending {
            Some((since, last, more)) if begun.duration_since(last) < IDLE => (since, more),
            _ => (begun, 0),
        };
        self.pending = (status == 0).then(|| (since, Instant::now(), more + tokens));
        status
    }

    fn timed_compute(&mut self, entries: &[Entry]) -> i32 {
        let (compute, context) = (self.llama.compute, self.context);
        let scratch = &mut self.scratch;
        let mut run = match compute {
            Compute::Process(process) => {
                // SAFETY: the context is the caller's.
                let batch = *scratch.get_or_insert_with(|| unsafe { (process.init)(context) });
                // SAFETY: the same; the batch is this library's own.
                Box::new(move || unsafe { run_process(&process, context, batch, entries) }) as Box<dyn FnMut() -> i32>
            }
            // SAFETY: the same.
            Compute::Decode(decode) => Box::new(move || unsafe { run_decode(decode, context, entries) }),
        };
        self.timed(entries.len(), &mut *run)
    }
}
