//! What the program does to a context beside computing, and which states are stored of it.

use std::sync::Arc;

use super::Tracked;
use crate::auto::batch::mapped;
use crate::auto::keep;
use crate::auto::llama::{Compute, Process};
use crate::auto::policy::{self, Kind};
use crate::auto::sequence::Removal;
use crate::copied::Copied;
use crate::layout::Form;

impl Tracked {
    /// Store the state of a sequence, if it is one to be stored: a batch had so many tokens of it, and its logits were asked for or not.
    pub(super) fn keep_after(&mut self, sequence: i32, tokens: usize, output: bool) {
        let kind = self.kind;
        let known = self.sequence(sequence);
        if !known.is_exact() || known.is_promised() {
            return;
        }
        let (length, kept) = (known.len(), known.kept());
        if self.form.is_none() {
            self.learn(sequence);
        }
        if policy::stores(kind, length, kept, tokens, output) {
            self.keep(sequence);
        }
    }

    /// The program takes a state, to come back to it: other prompts may come there too, where a state is used as long as it is.
    pub fn keep_checkpoint(&mut self, sequence: i32) {
        let Some(known) = self.sequences.get(&sequence).filter(|known| known.is_exact()) else { return };
        let new = known.len().saturating_sub(known.kept());
        if self.kind == Kind::Fixed && !known.is_promised() && policy::stores_turn(known.len(), new) {
            self.keep(sequence);
        }
    }

    /// Learn what this context's states say of its cache.
    fn learn(&mut self, sequence: i32) {
        let made = (self.version, self.key);
        // SAFETY: the slot is of the caller's context.
        if let Ok(copied) = unsafe { Copied::of(&self.slot(sequence), "", |_| String::new(), made, &[]) } {
            self.form = Some(Form::of(copied.state(), self.version).map(|form| form.words));
        }
    }

    /// Store the state of a sequence, if there is room.
    pub(super) fn keep(&mut self, sequence: i32) {
        let left = self.credit.lock().is_left();
        let known = self.sequence(sequence);
        let (tokens, kept) = (known.tokens().to_vec(), known.kept());
        let (slot, made) = (self.slot(sequence), (self.version, self.key));
        // SAFETY: the slot is of the caller's context.
        let size = unsafe { (self.engine.state_size)(self.context, sequence) };
        if !left || !crate::background::has_room(size) || !self.ends_at(sequence, tokens.len()) {
            return;
        }
        // SAFETY: the same.
        if let Some(state) = unsafe { keep::Kept::copy(&slot, made, tokens, kept, Arc::clone(&self.credit)) } {
            self.fresh.add(state.state());
            state.store_later();
            let known = self.sequence(sequence);
            known.keep(known.len());
        }
    }

    /// Positions of a sequence are about to be removed. Answers whether the context is to be asked.
    pub fn before_removal(&mut self, sequence: i32, first: i32, end: i32) -> bool {
        let sequences: Vec<i32> = match sequence {
            ..0 => self.sequences.keys().copied().collect(),
            one => vec![one],
        };
        let mut asked = sequences.is_empty() || sequence < 0;
        for sequence in sequences {
            let known = self.sequence(sequence);
            let (length, lost) = (known.len(), known.loses(first, end));
            if policy::stores_turn(length, lost) {
                self.keep(sequence);
            }
            match self.sequence(sequence).before_removal(first, end) {
                Removal::Promised => {}
                Removal::Asked => asked = true,
                Removal::AfterPromised => {
                    self.fulfil(sequence);
                    asked = true;
                }
            }
        }
        asked
    }

    /// The context has removed positions of a sequence; of all, for a negative one.
    pub fn removed(&mut self, sequence: i32, first: i32, end: i32) {
        let (llama, memory, window) = (self.llama, self.memory, self.window);
        for (number, known) in self.sequences.iter_mut().filter(|(number, _)| sequence < 0 || **number == sequence) {
            let before = known.len();
            known.removed(first, end);
            if window > 0 && known.is_exact() && known.len() < before && known.len() > 0 {
                // SAFETY: the memory is of the caller's context.
                let least = unsafe { (llama.pos_min)(memory, *number) };
                if usize::try_from(least).is_ok_and(|least| known.lacks(window, least)) {
                    known.lose();
                }
            }
        }
    }

    /// The context has forgotten everything.
    pub fn cleared(&mut self) {
        self.sequences.clear();
        self.candidates.clear();
    }

    /// Something was done to a sequence that is not followed; to all, for `None`.
    pub fn changed(&mut self, sequence: Option<i32>) {
        match sequence {
            Some(sequence) => self.lose(sequence),
            None => {
                let all: Vec<i32> = self.sequences.keys().copied().collect();
                all.into_iter().for_each(|sequence| self.lose(sequence));
            }
        }
    }

    /// All sequences but one were emptied.
    pub fn only(&mut self, sequence: i32) {
        self.sequences.retain(|number, _| *number == sequence);
        self.candidates.retain(|number, _| *number == sequence);
    }

    /// The last position of a promised sequence; `None`: the context knows it.
    pub fn promised_end(&mut self, sequence: i32) -> Option<i32> {
        let known = self.sequences.get(&sequence).filter(|known| known.is_promised())?;
        if self.kind == Kind::Shortens && self.candidates.contains_key(&sequence) {
            return i32::try_from(known.len()).ok().map(|len| len - 1);
        }
        self.fulfil(sequence);
        None
    }

    /// The program has taken a state out of the context.
    pub fn taken(&mut self, sequence: i32, state: &[u8]) {
        if let Some(known) = self.sequences.get(&sequence).filter(|known| known.is_exact() && known.len() > 0) {
            self.remembered.add(state, known.tokens());
        }
    }

    /// The program has put a state into the context: all of a sequence, or the part that cannot be shortened.
    pub fn put(&mut self, sequence: i32, state: &[u8], partial: bool) {
        let Some(tokens) = self.remembered.tokens(state) else { return self.lose(sequence) };
        self.candidates.remove(&sequence);
        let known = self.sequence(sequence);
        if !partial {
            known.is(&tokens);
        } else if known.is_exact() && known.tokens().starts_with(&tokens) {
            // The program removes what is behind it next.
            known.truncate(tokens.len());
        } else {
            known.lose();
        }
    }

    /// The index to ask the context for.
    pub fn output(&self, index: i32) -> i32 {
        mapped(self.outputs.as_deref(), index)
    }

    pub fn set_embeddings(&mut self, embeddings: bool) {
        self.embeddings = embeddings;
    }

    /// What was computed is there: how long it took is known.
    pub fn synchronized(&mut self) {
        if let Some((since, _, tokens)) = self.pending.take() {
            self.rates.computed(tokens, since.elapsed());
        }
    }

    /// The context is about to be freed.
    pub fn free(&mut self) {
        if let (Some(scratch), Compute::Process(Process { free, .. })) = (self.scratch.take(), self.llama.compute) {
            // SAFETY: it is a batch of this library's own, which nobody uses any more.
            unsafe { free(scratch) };
        }
    }
}
