//! The ghost queue: the fingerprints of entries that were given up not long ago.

use std::collections::VecDeque;
use std::hash::BuildHasherDefault;

use hashbrown::HashMap;

/// Fingerprints are hashes already.
#[derive(Default)]
pub(super) struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

/// A queue of fingerprints. It is bounded by the caller, with [`Ghost::shrink`], and gives memory back when it has shrunk.
#[derive(Default)]
pub(super) struct Ghost {
    /// Oldest first. An entry whose number is not the one in `turns` was taken, or has come again since.
    order: VecDeque<(u64, u32)>,
    /// Of each fingerprint the low bits of its turn.
    turns: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    turn: u32,
}

impl Ghost {
    pub fn push(&mut self, fingerprint: u64) {
        self.turn = self.turn.wrapping_add(1);
        self.turns.insert(fingerprint, self.turn);
        self.order.push_back((fingerprint, self.turn));
    }

    /// Whether the fingerprint is there. It is not afterwards.
    pub fn take(&mut self, fingerprint: u64) -> bool {
        self.turns.remove(&fingerprint).is_some()
    }

    /// Keep the `most` newest at most.
    pub fn shrink(&mut self, most: usize) {
        while self.turns.len() > most {
            let Some((fingerprint, turn)) = self.order.pop_front() else { break };
            if self.turns.get(&fingerprint) == Some(&turn) {
                self.turns.remove(&fingerprint);
            }
        }
        // What was taken leaves a place in `order`. They are swept when they are as many as the rest, and more than a few.
        if self.order.len() > 2 * self.turns.len() + 16 {
            self.order.retain(|(fingerprint, turn)| self.turns.get(fingerprint) == Some(turn));
        }
        if self.order.capacity() > 64 && self.order.len() < self.order.capacity() / 4 {
            self.order.shrink_to(self.order.len() * 2);
            self.turns.shrink_to(self.turns.len() * 2);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.order.capacity()
    }
}
