//! Where batches are cut: those of models whose states cannot be shortened, so that other prompts find a state at the end of what they share,
//! and the end of each prompt, so that it is computed in the same batch whether what is below it was loaded or not.

use super::Tracked;
use crate::auto::batch::Part;
use crate::auto::index::BLOCK;
use crate::auto::policy::{self, Cuts, Kind};

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
        if !known.is_exact() || known.is_promised() || known.len() != from {
            return Ok(from);
        }
        // llama.cpp takes a batch apart at micro-batches anyway.
        // SAFETY: the context is the caller's.
        let step = BLOCK.max(unsafe { (self.llama.n_ubatch)(self.context) } as usize);
        let limit = part.limit();
        let end = part.first_output.is_some() && policy::cuts_end(limit);
        let cuts = Cuts { step: (kind == Kind::Fixed).then_some(step), branch, end, limit };
        let mut at = from;
        while let Some(next) = cuts.next(at) {
            let tokens = part.tokens.get(at - part.first..next - part.first).unwrap_or_default();
            self.sequence(part.sequence).promise(tokens);
            match self.fulfil(part.sequence) {
                0 => {}
                status => return Err(status),
            }
            self.credit.lock().computed(next - at);
            self.keep_cut(part.sequence, next - at, branch == Some(next), end && next == limit);
            at = next;
        }
        Ok(at)
    }

    /// Store the state at a cut, if other prompts may begin there.
    fn keep_cut(&mut self, sequence: i32, tokens: usize, branch: bool, end: bool) {
        let kind = self.kind;
        let known = self.sequence(sequence);
        let new = known.len().saturating_sub(known.kept());
        let end = end && kind == Kind::Fixed && policy::stores_turn(known.len(), new);
        if branch || end { self.keep(sequence) } else { self.keep_after(sequence, tokens, false) }
    }
}
