//! What is saved, why, and what became of it.

use crate::key::Identity;
use crate::kind::TierKind;
use crate::payload::Payload;
use crate::policy::Gate;
use crate::row::SaveReason;

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
