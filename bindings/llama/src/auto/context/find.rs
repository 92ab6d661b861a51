//! Which state a part of a batch begins with, and how it is loaded.

use std::time::{Duration, Instant};

use super::{FEW, Tracked};
use crate::auto::batch::Part;
use crate::auto::index;
use crate::auto::keep;
use crate::auto::policy::Kind;
use crate::auto::search::{Candidate, Query};
use crate::engine::Token;
use crate::layout::Form;
use crate::log;

/// The longest that a search is waited for.
const SEARCH: Duration = Duration::from_secs(1);

impl Tracked {
    /// The state that spares the most of the wanted tokens, if that is worth a load. What is of use only if promised tokens must be computed
    /// is held for that.
    pub(super) fn best(&mut self, part: &Part, wanted: &[Token], present: usize) -> Option<(usize, Candidate)> {
        let held = self.candidates.remove(&part.sequence);
        let held = held.map(|held| (held.covers(self.kind, wanted), held));
        let found = match &held {
            Some((covers, _)) if *covers == wanted.len() => None,
            _ if wanted.len() < present + FEW || self.form.is_none() => None,
            _ => self.search(part, wanted, present),
        };
        let best = match (held, found) {
            (Some(held), Some(found)) if found.0 > held.0 => Some(found),
            (Some(held), _) => Some(held),
            (None, found) => found,
        };
        let (covers, candidate) = best?;
        let gain = covers.saturating_sub(present);
        if gain < FEW || !self.is_worth(&candidate, gain) {
            return None;
        }
        let later = self.promising.contains(&part.sequence);
        if later || (self.kind == Kind::Fixed && covers < part.first) {
            self.candidates.insert(part.sequence, candidate);
            return None;
        }
        // What was promised is loaded as well, so a state that has no new tokens is of use then.
        let useful = covers >= part.first && (covers > part.first || present < part.first);
        useful.then_some((covers, candidate))
    }

    fn is_worth(&mut self, candidate: &Candidate, gain: usize) -> bool {
        match candidate {
            Candidate::Held(_) => true,
            Candidate::Stored(record) if self.rates.is_worth(record.size, gain) => true,
            Candidate::Stored(record) => {
                let size = log::Bytes(record.size);
                log::line(format_args!("automatic cache: {gain} tokens are computed: loading {size} takes longer"));
                false
            }
        }
    }

    /// The state that covers the most of the wanted tokens. Notes where the part is to be cut, and whether it is to be promised, because
    /// a state that is used as long as it is may begin with it and with what comes next.
    fn search(&mut self, part: &Part, wanted: &[Token], present: usize) -> Option<(usize, Candidate)> {
        if wanted.len() < index::SHORTEST {
            return None;
        }
        let (key, version, kind, ends) = (self.key, self.version, self.kind, part.first_output.is_some());
        let fresh = self.fresh.best(kind, wanted, present);
        if fresh.as_ref().is_some_and(|(covers, _)| *covers == wanted.len()) {
            return fresh;
        }
        let query = Query { key, version, kind, tokens: wanted.to_vec(), present, ends };
        let patience = SEARCH.min(self.rates.computing(wanted.len() - present.min(wanted.len())));
        let found = keep::ask(patience, move |states| query.search(states)).unwrap_or_default();
        let stored = found.candidate.map(|candidate| (candidate.covers(kind, wanted), candidate));
        let best = fresh.into_iter().chain(stored).max_by_key(|(covers, _)| *covers);
        if kind == Kind::Fixed {
            let shares = self.fresh.shares(wanted);
            if found.goes_on || (shares == wanted.len() && !ends) {
                self.promising.insert(part.sequence);
            }
            let covers = best.as_ref().map_or(0, |(covers, _)| *covers);
            let branch = found.branch.into_iter().chain([shares]).max().filter(|branch| *branch > covers);
            if let Some(branch) = branch {
                self.branches.insert(part.sequence, branch);
            }
        }
        best
    }

    /// Load a state and shorten it to these tokens. When it fails, the sequence may be empty; what is known of it stays.
    pub(super) fn load(&mut self, sequence: i32, candidate: &Candidate, tokens: &[Token], present: usize) -> bool {
        let begun = Instant::now();
        let length = candidate.tokens().len();
        let loaded = match candidate {
            Candidate::Held(state) => self.put_state(sequence, state.state(), length, tokens),
            Candidate::Stored(record) => {
                let record = record.clone();
                let patience = self.rates.computing(tokens.len().saturating_sub(present));
                let Some(state) = keep::ask(patience, move |states| states.fetch_state(&record)) else { return false };
                let loaded = self.put_state(sequence, &state, length, tokens);
                if loaded {
                    self.rates.loaded(candidate.size(), begun.elapsed());
                }
                loaded
            }
        };
        if !loaded {
            return false;
        }
        let known = self.sequence(sequence);
        known.is(tokens);
        known.keep(tokens.len());
        log::line(format_args!(
            "automatic cache: loaded {} tokens of sequence {sequence}, {} of them not computed, {}, {:.1} ms",
            tokens.len(),
            tokens.len().saturating_sub(present),
            log::Bytes(candidate.size()),
            begun.elapsed().as_secs_f64() * 1e3,
        ));
        true
    }

    /// Give a state of so many tokens to llama.cpp, and shorten it to these. When it fails, the sequence is as it was, or empty.
    fn put_state(&mut self, sequence: i32, state: &[u8], length: usize, tokens: &[Token]) -> bool {
        if !self.fits(state, length) {
            log::line("automatic cache: a state of this key is of another cache: it is not loaded");
            return false;
        }
        let (engine, context, memory) = (self.engine, self.context, self.memory);
        self.sequence(sequence).has(0);
        // SAFETY: the context is the caller's; the state has its size in bytes.
        let loaded = unsafe {
            (engine.memory_remove)(memory, sequence, -1, -1)
                && (engine.state_set)(context, state.as_ptr(), state.len(), sequence) == state.len()
                && self.ends_at(sequence, length)
                && (tokens.len() == length
                    || ((engine.memory_remove)(memory, sequence, tokens.len() as i32, -1)
                        && self.ends_at(sequence, tokens.len())))
        };
        if !loaded {
            // SAFETY: the same.
            unsafe { (engine.memory_remove)(memory, sequence, -1, -1) };
            log::line("automatic cache: llama.cpp refused a state: its tokens are computed");
        }
        loaded
    }

    /// Whether a state is one that this context could have written of so many tokens.
    fn fits(&self, state: &[u8], length: usize) -> bool {
        let form = Form::of(state, self.version);
        let positions = form.as_ref().is_none_or(|form| form.has(length, self.kind == Kind::Shortens));
        positions && self.form.as_ref().is_some_and(|own| *own == form.map(|form| form.words))
    }
}
