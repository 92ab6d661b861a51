//! Where batches of models whose states cannot be shortened are cut, so that other prompts find a state at the end of what they share.

use std::sync::PoisonError;

use super::Tracked;
use crate::auto::batch::Part;
use crate::auto::index::BLOCK;
use crate::auto::policy::{self, Kind};

impl Tracked {
    /// Compute a part from this position on to the last cut before its outputs, and store the state of each cut. Answers where the rest
    /// begins.
    ///
    /// # Errors
    /// As a batch does.
    pub(super) fn cut(&mut self, part: &Part, from: usize) -> Result<usize, i32> {
        let kind = self.kind;
        let branch = self.branches.remove(&part.sequence).filter(|branch| policy::is_branch(*branch, from));
        let known = self.sequence(part.sequence);
        if kind != Kind::Fixed || !known.is_exact() || known.is_promised() || known.len() != from {
            return Ok(from);
        }
        // llama.cpp takes a batch apart at micro-batches anyway.
        // SAFETY: the context is the caller's.
        let step = BLOCK.max(unsafe { (self.llama.n_ubatch)(self.context) } as usize);
        let mut at = from;
        while let Some(next) = policy::next_cut(at, step, branch, part.limit()) {
            let tokens = part.tokens.get(at - part.first..next - part.first).unwrap_or_default();
            self.sequence(part.sequence).promise(tokens);
            match self.fulfil(part.sequence) {
                0 => {}
                status => return Err(status),
            }
            self.credit.lock().unwrap_or_else(PoisonError::into_inner).computed(next - at);
            match branch {
                Some(branch) if branch == next => self.keep(part.sequence),
                _ => self.keep_after(part.sequence, next - at, false),
            }
            at = next;
        }
        Ok(at)
    }
}
