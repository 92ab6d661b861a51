//! States that are being stored. They are in memory until the store has them, so that a prompt that needs one need not wait for that.

use std::sync::{Arc, Weak};

use super::policy::Kind;
use super::search::{Candidate, shared};
use crate::copied::Copied;
use crate::engine::Token;

/// States of one context; they are held by what stores them.
#[derive(Default)]
pub struct Fresh {
    states: Vec<Weak<Copied>>,
}

impl Fresh {
    pub fn add(&mut self, state: &Arc<Copied>) {
        self.states.retain(|other| other.strong_count() > 0);
        self.states.push(Arc::downgrade(state));
    }

    /// The state that covers most of the tokens, if it covers more than so many.
    pub fn best(&self, kind: Kind, tokens: &[Token], present: usize) -> Option<(usize, Candidate)> {
        let all = self.held().map(Candidate::Held);
        let all = all.map(|candidate| (candidate.covers(kind, tokens), candidate));
        all.filter(|(covers, _)| *covers > present).max_by_key(|(covers, _)| *covers)
    }

    /// How many of the tokens begin a longer state.
    pub fn shares(&self, tokens: &[Token]) -> usize {
        let longer = self.held().map(|state| (shared(&state.tokens, tokens), state.tokens.len()));
        longer.filter(|(same, length)| same < length).map(|(same, _)| same).max().unwrap_or(0)
    }

    fn held(&self) -> impl Iterator<Item = Arc<Copied>> {
        self.states.iter().filter_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(tokens: &[Token]) -> Arc<Copied> {
        Arc::new(Copied::for_tests(tokens))
    }

    #[test]
    fn a_state_is_found_while_it_is_being_stored() {
        let mut fresh = Fresh::default();
        let (short, long) = (state(&[1, 2]), state(&[1, 2, 3, 4]));
        fresh.add(&short);
        fresh.add(&long);
        let covers =
            |fresh: &Fresh, kind, tokens: &[Token], present| fresh.best(kind, tokens, present).map(|best| best.0);
        assert_eq!(covers(&fresh, Kind::Fixed, &[1, 2, 3, 4, 5], 0), Some(4));
        assert_eq!(covers(&fresh, Kind::Fixed, &[1, 2, 3], 0), Some(2));
        assert_eq!(covers(&fresh, Kind::Fixed, &[1, 2, 3], 2), None);
        assert_eq!(covers(&fresh, Kind::Fixed, &[7, 2, 3], 0), None);
        assert_eq!(covers(&fresh, Kind::Shortens, &[1, 2, 3], 0), Some(3));
        assert_eq!((fresh.shares(&[1, 2, 3, 9]), fresh.shares(&[1, 2, 3, 4, 5]), fresh.shares(&[1])), (3, 0, 1));
        drop(long);
        assert_eq!(covers(&fresh, Kind::Fixed, &[1, 2, 3, 4, 5], 0), Some(2), "the store has it");
        drop(short);
        fresh.add(&state(&[5]));
        assert_eq!(fresh.states.len(), 1);
    }
}
