//! Which states are stored. Pure.
//!
//! A state of a model whose sequences can be shortened serves every beginning of its tokens, so one at the end of a prompt is enough.
//! Others (sliding windows, recurrent models) serve their own length only, so they are stored more often, and batches are cut at lengths
//! that other prompts have too: at multiples of the micro-batch, at branches, and at ends. A branch is where a prompt leaves an earlier one, or
//! where it ends within it. The second prompt that comes there stores the state, and the third one loads it.
//! What is written is bounded by what was computed: each computed token allows [`Credit::per_token`] bytes.

use super::index::{BLOCK, SHORTEST};

/// A prompt of a model that can be shortened is stored before its end when it grows by so many tokens.
const LONG: usize = 8192;
/// The end of a turn is stored when so many of its tokens are in no state.
const TURN: usize = 32;
/// Bytes that each computed token allows, unless set. K and V of a token of a model of 70 billion parameters are 320 KiB.
pub const BYTES_A_TOKEN: u64 = 512 << 10;
/// Credit that is not used is kept up to this.
const MOST_CREDIT: i64 = 4 << 30;

/// What can be done with the states of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A loaded state can be shortened by any number of tokens.
    Shortens,
    /// A state is used as long as it is.
    Fixed,
}

/// Whether to store the state after a batch. `length` tokens, of which `kept` are in a stored state; the batch had `batch` tokens of the
/// sequence, and its logits were asked for or not.
pub fn stores(kind: Kind, length: usize, kept: usize, batch: usize, output: bool) -> bool {
    let new = length.saturating_sub(kept);
    if length < SHORTEST {
        return false;
    }
    match kind {
        Kind::Shortens => (output && batch > 1 && new >= TURN) || new >= LONG,
        Kind::Fixed => new >= BLOCK,
    }
}

/// Whether a branch is worth a state of its own, where a prompt is computed from `from` on.
pub fn is_branch(branch: usize, from: usize) -> bool {
    branch >= SHORTEST && branch.saturating_sub(from) >= TURN
}

/// Where a part of a batch is cut. No cut is behind `limit`, from where on outputs are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// At multiples of this, where states cannot be shortened.
    pub step: Option<usize>,
    pub branch: Option<usize>,
    /// At the limit too: the part ends a prompt.
    pub end: bool,
    pub limit: usize,
}

impl Cuts {
    /// The next one behind `at`.
    pub fn next(&self, at: usize) -> Option<usize> {
        let multiple = self.step.and_then(|step| (at / step + 1).checked_mul(step));
        let end = self.end.then_some(self.limit);
        multiple.into_iter().chain(self.branch).chain(end).filter(|next| *next > at && *next <= self.limit).min()
    }
}

/// Whether the end of a prompt is computed apart from what is below it, where `limit` tokens need no outputs. Whoever loads the prompt
/// later computes the same batch then, and llama.cpp rounds by the sizes of batches. Shorter prompts are not stored.
pub fn cuts_end(limit: usize) -> bool {
    limit >= SHORTEST
}

/// Whether to store the state of a turn whose last tokens are about to go, or of a place that the program comes back to. `lost` of its tokens
/// are in no stored state.
pub fn stores_turn(length: usize, lost: usize) -> bool {
    length >= SHORTEST && lost >= TURN
}

/// Bytes that may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    per_token: u64,
    bytes: i64,
}

impl Credit {
    pub fn new(per_token: u64) -> Credit {
        Credit { per_token, bytes: 0 }
    }

    pub fn computed(&mut self, tokens: usize) {
        let more = i64::try_from((tokens as u64).saturating_mul(self.per_token)).unwrap_or(MOST_CREDIT);
        self.bytes = self.bytes.saturating_add(more).min(MOST_CREDIT);
    }

    /// Whether a state may be stored now. One may go below: what it will write is not known before.
    pub fn is_left(&self) -> bool {
        self.bytes > 0
    }

    pub fn written(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prompt_is_stored_once() {
        let stores = |length, kept, batch, output| stores(Kind::Shortens, length, kept, batch, output);
        assert!(stores(300, 0, 300, true));
        assert!(!stores(300, 0, 300, false), "its end comes");
        assert!(stores(64, 0, 64, true) && !stores(63, 0, 63, true), "too short");
        assert!(!stores(600, 300, 1, true), "generated");
        assert!(!stores(331, 300, 31, true), "nearly all of it is stored");
        assert!(stores(332, 300, 32, true));
        assert!(stores(8192, 0, 2048, false), "a long prompt may never end");
    }

    #[test]
    fn states_that_cannot_be_shortened_are_stored_at_each_block() {
        let stores = |length, kept| stores(Kind::Fixed, length, kept, 1, false);
        assert!(stores(256, 0) && stores(512, 256));
        assert!(!stores(255, 0) && !stores(511, 256));
        assert!(stores_turn(300, 32) && !stores_turn(300, 31) && !stores_turn(63, 63));
    }

    fn all(cuts: Cuts, from: usize) -> Vec<usize> {
        std::iter::successors(cuts.next(from), move |at| cuts.next(*at)).collect()
    }

    #[test]
    fn cuts_are_at_multiples_whatever_the_batches_are() {
        let cuts = |from, limit| all(Cuts { step: Some(512), branch: None, end: false, limit }, from);
        assert_eq!(cuts(0, 1600), [512, 1024, 1536]);
        assert_eq!(cuts(700, 1024), [1024], "behind a load");
        assert_eq!(cuts(512, 1023), [0_usize; 0]);
        assert_eq!(cuts(usize::MAX - 5, usize::MAX), [0_usize; 0]);
    }

    #[test]
    fn cuts_are_at_a_branch_too() {
        let cuts = |from, branch, limit| all(Cuts { step: Some(256), branch: Some(branch), end: false, limit }, from);
        assert_eq!(cuts(0, 300, 600), [256, 300, 512]);
        assert_eq!(cuts(0, 256, 300), [256]);
        assert_eq!(cuts(0, 300, 299), [256], "an output is asked for below it");
        assert_eq!(cuts(300, 300, 600), [512], "it is loaded");
        assert!(is_branch(64, 0) && !is_branch(63, 0), "too short");
        assert!(is_branch(288, 256) && !is_branch(287, 256) && !is_branch(200, 256), "nearly all of it is there");
    }

    #[test]
    fn a_cut_is_at_the_end_of_a_prompt() {
        let cuts = |step, from, end, limit| all(Cuts { step, branch: None, end, limit }, from);
        assert_eq!(cuts(None, 0, true, 300), [300]);
        assert_eq!(cuts(None, 0, false, 300), [0_usize; 0], "the prompt goes on");
        assert_eq!(cuts(None, 300, true, 300), [0_usize; 0], "all of it is loaded");
        assert_eq!(cuts(Some(256), 0, true, 300), [256, 300]);
        assert_eq!(cuts(Some(256), 0, true, 256), [256]);
        assert!(cuts_end(64) && !cuts_end(63), "it is not stored");
    }

    #[test]
    fn what_is_written_is_bounded_by_what_is_computed() {
        let mut credit = Credit::new(1000);
        assert!(!credit.is_left());
        let mut written = 0;
        for _ in 0..100 {
            credit.computed(10);
            if credit.is_left() {
                credit.written(50_000);
                written += 50_000;
            }
        }
        assert_eq!(written, 1_000_000, "100 batches of 10 tokens");
        credit.computed(usize::MAX);
        assert_eq!(credit.bytes, MOST_CREDIT);
        credit.written(u64::MAX);
        assert!(!credit.is_left());
    }
}
