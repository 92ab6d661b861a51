//! The tokens of states that the program took out of a context. llama-server does so for its own cache in memory (`--cache-ram`) and for its
//! checkpoints, and puts the same bytes back later.

use std::collections::VecDeque;
use std::sync::Arc;

use twox_hash::XxHash3_128;

use crate::engine::Token;

/// Tokens that are remembered, in all.
const MOST_TOKENS: usize = 16 << 20;
/// States that are remembered.
const MOST_STATES: usize = 4096;

/// States, the latest last.
#[derive(Default)]
pub struct Remembered {
    states: VecDeque<(u128, Arc<[Token]>)>,
    tokens: usize,
}

impl Remembered {
    /// These bytes are the state of these tokens.
    pub fn add(&mut self, state: &[u8], tokens: &[Token]) {
        let hash = XxHash3_128::oneshot(state);
        self.states.retain(|(other, tokens)| {
            let stays = *other != hash;
            if !stays {
                self.tokens -= tokens.len();
            }
            stays
        });
        self.states.push_back((hash, tokens.into()));
        self.tokens += tokens.len();
        while self.tokens > MOST_TOKENS || self.states.len() > MOST_STATES {
            let Some((_, tokens)) = self.states.pop_front() else { return };
            self.tokens -= tokens.len();
        }
    }

    /// The tokens that these bytes are the state of.
    pub fn tokens(&self, state: &[u8]) -> Option<Arc<[Token]>> {
        let hash = XxHash3_128::oneshot(state);
        self.states.iter().rev().find(|(other, _)| *other == hash).map(|(_, tokens)| Arc::clone(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_states_are_known_by_their_bytes() {
        let mut remembered = Remembered::default();
        remembered.add(b"one", &[1]);
        remembered.add(b"two", &[1, 2]);
        remembered.add(b"one", &[3]);
        assert_eq!(remembered.tokens(b"one").as_deref(), Some(&[3][..]));
        assert_eq!(remembered.tokens(b"two").as_deref(), Some(&[1, 2][..]));
        assert_eq!(remembered.tokens(b"three"), None);
        assert_eq!(remembered.tokens, 3);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut remembered = Remembered::default();
        for number in 0..MOST_STATES as u32 + 10 {
            remembered.add(&number.to_le_bytes(), &[7; 10]);
        }
        assert_eq!((remembered.states.len(), remembered.tokens), (MOST_STATES, MOST_STATES * 10));
        assert!(remembered.tokens(&0_u32.to_le_bytes()).is_none());
        remembered.add(b"large", &vec![7; MOST_TOKENS]);
        assert_eq!((remembered.states.len(), remembered.tokens), (1, MOST_TOKENS));
    }
}
