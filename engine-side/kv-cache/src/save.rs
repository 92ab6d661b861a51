//! The way of a save: checked, asked of the policy, then stored in the caller's thread or handed to a lane.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::cache::Cache;
use crate::counters::add;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Identity, Key};
use crate::lane::{Enqueued, Lane, Outcome, OwnedSave};
use crate::limits::MAX_TOKENS;
use crate::log;
use crate::policy::Gate;
use crate::request::{Reason, Save, Saved};
use crate::row::{KNOWN_QUANTS, NewRow};
use crate::tier::Stored;

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
                        return Err(Error::new(
                            ErrorKind::Timeout,
                            format!("another save of row {key} did not end within evict_save_timeout_ms"),
                        ));
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
                let message = format!(
                    "row {key} is not stored after {} ms (evict_save_timeout_ms); the save goes on and may still succeed",
                    timeout.as_millis()
                );
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
            descriptor: self.shared().descriptor,
        }
    }
}

fn too_slow(key: Key) -> Error {
    let message = format!(
        "row {key} is not stored: writing it took longer than reservation_ms, twice; raise reservation_ms, or check the disk"
    );
    Error::new(ErrorKind::Timeout, message)
}
