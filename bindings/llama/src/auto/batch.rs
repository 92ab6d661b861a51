//! A batch as the program filled it, taken apart by sequence, and what is left of it when beginnings are loaded.

use std::collections::HashMap;

use crate::engine::Token;

/// A token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub token: Token,
    pub sequence: i32,
    /// `None`: behind the last one of its sequence.
    pub position: Option<i32>,
    /// The program asks for its logits.
    pub output: bool,
}

/// What a program put in a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub entries: Vec<Entry>,
    /// It holds something that is not followed: embeddings, or a token of two sequences.
    pub odd: bool,
    /// Sequences of it that no entry names.
    pub others: Vec<i32>,
}

/// The tokens of one sequence in a batch, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub sequence: i32,
    /// The position of the first.
    pub first: usize,
    pub tokens: Vec<Token>,
    /// Which of the tokens is the first whose logits are asked for.
    pub first_output: Option<usize>,
}

impl Part {
    /// The position behind the last.
    pub fn end(&self) -> usize {
        self.first + self.tokens.len()
    }

    /// Positions below this one need not be computed here.
    pub fn limit(&self) -> usize {
        self.first + self.first_output.unwrap_or(self.tokens.len())
    }
}

impl Batch {
    /// The sequences that it touches.
    pub fn sequences(&self) -> Vec<i32> {
        let mut all: Vec<i32> =
            self.entries.iter().map(|entry| entry.sequence).chain(self.others.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The parts, in the order of their first tokens. `None`: not every sequence has one token after another.
    /// `lengths` has where a sequence ends, for tokens that name no position.
    pub fn parts(&self, lengths: impl Fn(i32) -> Option<usize>) -> Option<Vec<Part>> {
        if self.odd {
            return None;
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut places: HashMap<i32, usize> = HashMap::new();
        for entry in &self.entries {
            let place = places.entry(entry.sequence).or_insert(parts.len());
            if *place == parts.len() {
                let first = match entry.position {
                    Some(position) => usize::try_from(position).ok()?,
                    None => lengths(entry.sequence)?,
                };
                parts.push(Part { sequence: entry.sequence, first, tokens: Vec::new(), first_output: None });
            }
            let part = parts.get_mut(*place)?;
            let expected = i32::try_from(part.end()).ok()?;
            if entry.position.is_some_and(|position| position != expected) {
                return None;
            }
            if entry.output && part.first_output.is_none() {
                part.first_output = Some(part.tokens.len());
            }
            part.tokens.push(entry.token);
        }
        Some(parts)
    }

    /// What is left when each sequence begins at its position of `from`.
    pub fn left(&self, parts: &[Part], from: &HashMap<i32, usize>) -> Left {
        let mut next: HashMap<i32, usize> = parts.iter().map(|part| (part.sequence, part.first)).collect();
        let mut left = Left::default();
        for (index, entry) in self.entries.iter().enumerate() {
            let Some(position) = next.get_mut(&entry.sequence) else { continue };
            let skipped = from.get(&entry.sequence).is_some_and(|from| *position < *from);
            if skipped {
                left.outputs.push(None);
            } else {
                left.outputs.push(i32::try_from(left.entries.len()).ok());
                left.entries.push((index, *position));
            }
            *position += 1;
        }
        left
    }
}

/// What is computed of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Indices of the batch, with their positions.
    pub entries: Vec<(usize, usize)>,
    /// For each index of the batch, the one in what is left.
    pub outputs: Vec<Option<i32>>,
}

impl Left {
    pub fn is_all(&self) -> bool {
        self.entries.len() == self.outputs.len()
    }
}

/// The index to ask the context for, where the program asks for `index` of its batch. Negative ones count from the last output, and
/// all outputs are computed.
pub fn mapped(outputs: Option<&[Option<i32>]>, index: i32) -> i32 {
    let Some(outputs) = outputs else { return index };
    match usize::try_from(index) {
        // What is not computed has no output. The answer is llama.cpp's for an index that is not in the batch.
        Ok(at) => outputs.get(at).copied().flatten().unwrap_or(i32::MAX),
        Err(_) => index,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(sequence: i32, position: i32, token: Token, output: bool) -> Entry {
        Entry { token, sequence, position: Some(position), output }
    }

    #[test]
    fn sequences_are_taken_apart() {
        let batch = Batch {
            entries: vec![
                entry(1, 7, 70, false),
                entry(0, 0, 1, false),
                entry(1, 8, 80, true),
                entry(0, 1, 2, false),
                entry(1, 9, 90, true),
            ],
            ..Batch::default()
        };
        let parts = batch.parts(|_| None).unwrap();
        assert_eq!(parts[0], Part { sequence: 1, first: 7, tokens: vec![70, 80, 90], first_output: Some(1) });
        assert_eq!((parts[0].limit(), parts[0].end()), (8, 10));
        assert_eq!((parts[1].sequence, parts[1].limit(), parts[1].end()), (0, 2, 2));
        let left = batch.left(&parts, &HashMap::from([(1, 8), (0, 2)]));
        assert_eq!(left.entries, [(2, 8), (4, 9)]);
        let asked: Vec<i32> = (-1..6).map(|index| mapped(Some(&left.outputs), index)).collect();
        assert_eq!(asked, [-1, i32::MAX, i32::MAX, 0, i32::MAX, 1, i32::MAX]);
        assert_eq!(mapped(None, 4), 4);
        assert!(batch.left(&parts, &HashMap::new()).is_all());
    }

    #[test]
    fn gaps_and_unknown_positions_are_not_followed() {
        let gap = Batch { entries: vec![entry(0, 0, 1, false), entry(0, 2, 1, false)], ..Batch::default() };
        assert!(gap.parts(|_| Some(0)).is_none());
        let below = Batch { entries: vec![entry(0, -1, 1, false)], ..Batch::default() };
        assert!(below.parts(|_| Some(0)).is_none());
        let open = Batch { entries: vec![Entry { position: None, ..entry(3, 0, 1, true) }; 2], ..Batch::default() };
        assert_eq!(open.parts(|_| Some(5)).unwrap()[0].first, 5);
        assert!(open.parts(|_| None).is_none());
        assert!(Batch { odd: true, ..open.clone() }.parts(|_| Some(5)).is_none());
        assert_eq!(Batch { others: vec![9, 3], ..open }.sequences(), [3, 9]);
    }

    proptest! {
        /// Every entry is skipped or computed at its own position, each output keeps its token, and the order stays.
        #[test]
        fn what_is_left_is_what_was_not_loaded(
            order in proptest::collection::vec((0..4_i32, any::<bool>()), 0..60),
            starts in proptest::array::uniform4(0..20_usize),
            cuts in proptest::array::uniform4(0..30_usize),
        ) {
            let mut next = starts;
            let mut batch = Batch::default();
            for (number, (sequence, output)) in order.into_iter().enumerate() {
                let position = &mut next[sequence as usize];
                batch.entries.push(entry(sequence, *position as i32, number as Token, output));
                *position += 1;
            }
            let parts = batch.parts(|_| None).unwrap();
            let from: HashMap<i32, usize> = (0..4).map(|sequence| (sequence, cuts[sequence as usize])).collect();
            let left = batch.left(&parts, &from);
            prop_assert_eq!(left.outputs.len(), batch.entries.len());
            for (index, entry) in batch.entries.iter().enumerate() {
                let position = entry.position.unwrap() as usize;
                let computed = position >= cuts[entry.sequence as usize];
                let at = mapped(Some(&left.outputs), index as i32);
                match computed {
                    true => prop_assert_eq!(left.entries[at as usize], (index, position)),
                    false => prop_assert_eq!(at, i32::MAX),
                }
            }
            prop_assert!(left.entries.is_sorted());
        }
    }
}
