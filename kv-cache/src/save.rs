//! What is saved, and why.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::cache::Cache;
use crate::counters::{add, add_since};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Identity, Key};
use crate::kind::TierKind;
use crate::lane::{Enqueued, Lane, Outcome, OwnedSave};
use crate::limits::MAX_TOKENS;
use crate::log;
use crate::policy::Gate;
use crate::row::{KNOWN_QUANTS, NewRow, SaveReason};
use crate::tier::Stored;

/// A payload in the memory of this process, where rows of the tier `ram` lie.
pub(crate) type Memory = Arc<Box<[u8]>>;

/// The state of a sequence of tokens, as opaque bytes.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// The caller's memory, for the time of the call. Saves that are queued and those to the tier `ram` copy it.
    Borrowed(&'a [u8]),
    /// Memory that the cache takes over: never copied.
    Owned(Box<[u8]>),
}

impl Payload<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Owned(bytes) => bytes,
        }
    }

    pub(crate) fn into_box(self) -> Box<[u8]> {
        match self {
            Payload::Borrowed(bytes) => bytes.into(),
            Payload::Owned(bytes) => bytes,
        }
    }

    /// The payload, whose place is empty then.
    pub(crate) fn take(&mut self) -> Memory {
        Arc::new(std::mem::replace(self, Payload::Borrowed(&[])).into_box())
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Payload::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Owned(bytes.into())
    }
}

/// Why a row is saved. The first three pass the policy's gates and are queued: the call returns at once. The others are for
/// a holder that goes away: they ask no gate, and the call returns when the row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// After the prefill of a new prompt, at the boundary that [`Policy::cold`](crate::Policy::cold) names.
    Cold {
        /// Tokens of the whole prompt.
        prompt_tokens: usize,
    },
    /// While a sequence grows.
    Continued {
        /// Tokens at the last save of this sequence, 0 for none.
        last_saved: usize,
    },
    /// A sequence is complete.
    Finish,
    /// The holder has to let go.
    Evict,
    /// The engine goes down: written by another thread, from a copy, so that `evict_save_timeout_ms` bounds the call.
    Shutdown,
}

impl Reason {
    /// As it is written into the row.
    pub fn saved_as(self) -> SaveReason {
        match self {
            Reason::Cold { .. } => SaveReason::Cold,
            Reason::Continued { .. } => SaveReason::Continued,
            Reason::Finish => SaveReason::Finish,
            Reason::Evict => SaveReason::Evict,
            Reason::Shutdown => SaveReason::Shutdown,
        }
    }
}

/// A row to save.
#[derive(Clone, Debug)]
pub struct Save<'a> {
    /// Whose state it is.
    pub identity: &'a Identity,
    /// The tokens that made the payload: exactly those. At most 2^24.
    pub tokens: &'a [u32],
    /// The state after those tokens. Not empty.
    pub payload: Payload<'a>,
    /// Why.
    pub reason: Reason,
    /// Where to; `None` for the config's `save_to`.
    pub tier: Option<TierKind>,
    /// Tokens that the context has room for.
    pub context_size: u32,
    /// Bits of the model's quantisation, for people.
    pub quant_bits: u8,
    /// The prompt, for people who look into files. It is stored as it is, so leave it empty where that is not wanted.
    pub prompt: &'a str,
    /// More on the reason, for people.
    pub detail: &'a str,
}

impl<'a> Save<'a> {
    /// A row with nothing for people in it.
    pub fn new(identity: &'a Identity, tokens: &'a [u32], payload: impl Into<Payload<'a>>) -> Self {
        Save {
            identity,
            tokens,
            payload: payload.into(),
            reason: Reason::Evict,
            tier: None,
            context_size: 0,
            quant_bits: 0,
            prompt: "",
            detail: "",
        }
    }

    /// The same, for another reason.
    pub fn reason(self, reason: Reason) -> Self {
        Save { reason, ..self }
    }

    /// The same, to a tier.
    pub fn tier(self, tier: TierKind) -> Self {
        Save { tier: Some(tier), ..self }
    }
}

/// What became of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The row is stored, its bytes and its name are synchronised: a power cut does not take it from `disk`. (Rows that were queued
    /// are not synchronised by name: a power cut may take such a row, and never leaves a part of it.)
    Stored,
    /// It is in the queue.
    Queued,
    /// The row was there, or another save of it is on its way.
    Known,
    /// The queue is full: the row is dropped, and counted.
    Dropped,
    /// The policy does not want it.
    Gated(Gate),
}

impl Cache {
    /// Save a row, as its [`Reason`] says.
    ///
    /// # Errors
    /// `InvalidArgument`: a tier that is not open, no tokens or too many, an empty payload, or a cold save that is not at its
    /// boundary. `Full`: larger than the tier's budget, whatever the reason. `Full`, `Io`: the row could not be stored (those
    /// that are queued count such failures instead), or its name could not be synchronised.
    /// `Timeout`: a save of the reasons evict or shutdown took too long; it may still be stored. `Closed`: after
    /// [`Cache::shutdown`], or in a forked child.
    pub fn save(&self, save: Save<'_>) -> Result<Saved> {
        let lane = self.lane_for_saves(save.tier)?;
        if save.tokens.is_empty() || save.tokens.len() > MAX_TOKENS {
            return Err(Error::invalid(format!("a row has 1 to {MAX_TOKENS} tokens, not {}", save.tokens.len())));
        }
        if save.payload.as_slice().is_empty() {
            return Err(Error::invalid("a row's payload cannot be empty"));
        }
        if let Some(gate) = self.gate(&save)? {
            add(&self.shared().counters.saves_gated, 1);
            return Ok(Saved::Gated(gate));
        }
        // Not copied, and not queued, for nothing.
        if let Err(error) = lane.tier.charge(&self.new_row(&save)) {
            add(&self.shared().counters.saves_failed, 1);
            return Err(error);
        }
        self.warn_of_quant(save.identity, lane);
        let key = save.identity.key(save.tokens);
        match save.reason {
            Reason::Evict => self.save_now(lane, key, save),
            Reason::Shutdown => self.save_by_worker(lane, key, save),
            _ => {
                let counters = &self.shared().counters;
                match lane.enqueue(key, save)? {
                    Enqueued::Queued => Ok(Saved::Queued),
                    Enqueued::Known => {
                        add(&counters.saves_known, 1);
                        Ok(Saved::Known)
                    }
                    Enqueued::Full => {
                        add(&counters.saves_dropped, 1);
                        Ok(Saved::Dropped)
                    }
                }
            }
        }
    }

    /// Say once that other software of the format would delete such rows.
    fn warn_of_quant(&self, identity: &Identity, lane: &Lane) {
        let quant = identity.quant;
        if quant >= KNOWN_QUANTS && lane.tier.has_files() && !self.shared().warned_of_quant.swap(true, Relaxed) {
            let last = KNOWN_QUANTS - 1;
            log::warn(format_args!(
                "rows of quantisation {quant} are saved: other software of the row format knows 0 to {last}, and deletes such rows \
                 when it opens {}",
                lane.tier.shown()
            ));
        }
    }

    fn gate(&self, save: &Save<'_>) -> Result<Option<Gate>> {
        let (policy, tokens) = (self.policy(), save.tokens.len());
        let gated = match save.reason {
            Reason::Cold { prompt_tokens } => match policy.cold(prompt_tokens) {
                Ok(boundary) if boundary != tokens => {
                    return Err(Error::invalid(format!(
                        "a cold save of a prompt of {prompt_tokens} tokens keeps {boundary} of them, not {tokens}; ask the \
                         policy before the prefill"
                    )));
                }
                gated => gated.map(drop),
            },
            Reason::Continued { last_saved } => policy.continued(tokens, last_saved),
            Reason::Finish => policy.finish(tokens),
            Reason::Evict | Reason::Shutdown => Ok(()),
        };
        Ok(gated.err())
    }

    /// In this thread, with the caller's memory.
    fn save_now(&self, lane: &Arc<Lane>, key: Key, mut save: Save<'_>) -> Result<Saved> {
        let deadline = Instant::now() + self.evict_save_timeout();
        let flight = lane.begin_flight(key, save.tokens.len());
        let row = self.new_row(&save);
        loop {
            match lane.store(key, &row, &mut save.payload) {
                Ok(Stored::Taken) => {
                    // Another writer is at it; when it is done the row is there, or it is our turn.
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !lane.wait_for_other(&key, &flight, left) {
                        return Err(Error::new(ErrorKind::Timeout, format!("another save of row {key} does not end")));
                    }
                }
                Ok(Stored::Present) => {
                    add(&self.shared().counters.saves_known, 1);
                    return Ok(Saved::Known);
                }
                Ok(Stored::Done) => return Ok(Saved::Stored),
                Ok(Stored::Abandoned) => return Err(too_slow(key)),
                Err(error) => return Err(error),
            }
        }
    }

    /// By the lane's thread, from a copy, with a bound on the time.
    fn save_by_worker(&self, lane: &Arc<Lane>, key: Key, save: Save<'_>) -> Result<Saved> {
        let timeout = self.evict_save_timeout();
        match lane.enqueue_first(key, OwnedSave::of(save))?.wait(timeout) {
            Some(Outcome::Stored(Stored::Done)) => Ok(Saved::Stored),
            Some(Outcome::Stored(Stored::Present | Stored::Taken)) => Ok(Saved::Known),
            Some(Outcome::Stored(Stored::Abandoned)) => Err(too_slow(key)),
            Some(Outcome::Failed(kind, message)) => Err(Error::new(kind, message)),
            None => {
                let message = format!("row {key} is not stored after {} ms; it may still be", timeout.as_millis());
                Err(Error::new(ErrorKind::Timeout, message))
            }
        }
    }

    fn new_row<'a>(&'a self, save: &Save<'a>) -> NewRow<'a> {
        NewRow {
            identity: *save.identity,
            tokens: save.tokens,
            reason: save.reason.saved_as(),
            detail: save.detail,
            quant_bits: save.quant_bits,
            context_size: save.context_size,
            created: self.shared().clock.wall().as_secs(),
            prompt: save.prompt,
            host: self.host(),
            payload_bytes: save.payload.as_slice().len() as u64,
        }
    }
}

fn too_slow(key: Key) -> Error {
    let message = format!("row {key} is not stored: writing it took longer than reservation_ms, twice");
    Error::new(ErrorKind::Timeout, message)
}

impl Lane {
    /// Store a row in this thread, and count it. A writer that was overtaken by the time of its reservation tries once more:
    /// it finds the other's row, or has the key to itself.
    pub(crate) fn store(&self, key: Key, row: &NewRow<'_>, payload: &mut Payload<'_>) -> Result<Stored> {
        let counters = &self.shared.counters;
        let start = Instant::now();
        let mut stored = self.tier.store(key, row, payload);
        if let Ok(Stored::Abandoned) = stored {
            stored = self.tier.store(key, row, payload);
        }
        add_since(&counters.pack_nanos, start);
        match &stored {
            Ok(Stored::Done) => counters.saved(row.reason),
            Ok(Stored::Present | Stored::Taken) => {}
            Ok(Stored::Abandoned) | Err(_) => add(&counters.saves_failed, 1),
        }
        stored
    }
}
