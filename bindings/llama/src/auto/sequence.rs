//! What is known of one sequence of a context: its tokens, and how many of them the context has.
//!
//! Invariant: while `exact`, the sequence is what computing `tokens` from position 0 gives, but for those that are promised. Whatever
//! cannot be followed ends this until the sequence is emptied.

use crate::engine::Token;

/// A sequence, as the program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    tokens: Vec<Token>,
    /// Tokens that the context has. The program takes the rest for computed: they are promised.
    present: usize,
    exact: bool,
    /// Tokens of the longest state of it that was stored or loaded.
    kept: usize,
}

/// What a removal of positions asks of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Only promised tokens go: the context need not be asked.
    Promised,
    /// The context is asked. Promised tokens are gone.
    Asked,
    /// What is promised must be there first.
    AfterPromised,
}

impl Default for Sequence {
    fn default() -> Self {
        Sequence { tokens: Vec::new(), present: 0, exact: true, kept: 0 }
    }
}

impl Sequence {
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn present(&self) -> usize {
        self.present
    }

    pub fn kept(&self) -> usize {
        self.kept
    }

    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether the program takes more tokens for computed than the context has.
    pub fn is_promised(&self) -> bool {
        self.exact && self.present < self.tokens.len()
    }

    /// Tokens that nobody has computed yet.
    pub fn promise(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// The context has so many of the tokens now.
    pub fn has(&mut self, present: usize) {
        self.present = present.min(self.tokens.len());
    }

    /// The context has these tokens and no others.
    pub fn is(&mut self, tokens: &[Token]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.present = tokens.len();
        self.exact = true;
        self.kept = self.kept.min(tokens.len());
    }

    /// Tokens that the context has computed behind the others.
    pub fn computed(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
        self.present = self.tokens.len();
    }

    pub fn keep(&mut self, kept: usize) {
        self.kept = kept.min(self.tokens.len());
    }

    /// Something happened that cannot be followed.
    pub fn lose(&mut self) {
        *self = Sequence { exact: false, ..Sequence::default() };
    }

    pub fn clear(&mut self) {
        *self = Sequence::default();
    }

    /// Forget tokens behind the first so many.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.present = self.present.min(len);
        self.kept = self.kept.min(len);
    }

    /// Tokens that a removal of `[first, end)` takes and that no state of the store has.
    pub fn loses(&self, first: i32, end: i32) -> usize {
        let from = usize::try_from(first).unwrap_or(0);
        match self.exact && !self.is_promised() && self.reaches_the_end(end) {
            true => self.len().saturating_sub(from.max(self.kept)),
            false => 0,
        }
    }

    /// Whether a sliding window lacks what the next token looks at, where the context has the positions from `first` on. A token looks at
    /// itself and at the `window - 1` before it.
    pub fn lacks(&self, window: usize, first: usize) -> bool {
        first > (self.len() + 1).saturating_sub(window)
    }

    fn reaches_the_end(&self, end: i32) -> bool {
        usize::try_from(end).is_ok_and(|end| end >= self.len()) || end < 0
    }

    /// Before positions `[first, end)` are removed; negative numbers are open ends.
    pub fn before_removal(&mut self, first: i32, end: i32) -> Removal {
        if !self.is_promised() {
            return Removal::Asked;
        }
        if !self.reaches_the_end(end) {
            return Removal::AfterPromised;
        }
        let from = usize::try_from(first).unwrap_or(0);
        self.truncate(from.max(self.present));
        if from >= self.present { Removal::Promised } else { Removal::Asked }
    }

    /// After the context has removed positions `[first, end)`.
    pub fn removed(&mut self, first: i32, end: i32) {
        let from = usize::try_from(first).unwrap_or(0);
        if from == 0 && (end < 0 || (self.exact && self.reaches_the_end(end))) {
            self.clear();
        } else if !self.exact || from >= self.len() || usize::try_from(end).is_ok_and(|end| end <= from) {
            // Nothing of what is known has changed.
        } else if self.reaches_the_end(end) {
            self.truncate(from);
        } else {
            self.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tokens: &[Token], promised: &[Token]) -> Sequence {
        let mut sequence = Sequence::default();
        sequence.computed(tokens);
        sequence.promise(promised);
        sequence
    }

    #[test]
    fn a_removal_at_the_end_shortens() {
        let mut sequence = of(&[1, 2, 3, 4], &[]);
        sequence.keep(4);
        assert_eq!(sequence.before_removal(2, -1), Removal::Asked);
        sequence.removed(2, -1);
        assert_eq!((sequence.tokens(), sequence.present(), sequence.kept()), (&[1, 2][..], 2, 2));
        sequence.removed(1, 2);
        assert_eq!(sequence.tokens(), [1]);
        sequence.removed(7, -1);
        sequence.removed(0, 0);
        assert_eq!(sequence.tokens(), [1]);
        sequence.removed(-1, -1);
        assert_eq!(sequence, Sequence::default());
    }

    #[test]
    fn a_hole_cannot_be_followed_until_all_is_gone() {
        let mut sequence = of(&[1, 2, 3, 4], &[]);
        sequence.removed(1, 3);
        assert!(!sequence.is_exact());
        sequence.removed(3, -1);
        assert!(!sequence.is_exact());
        // It is not known whether this was all.
        sequence.removed(0, 4);
        assert!(!sequence.is_exact());
        sequence.removed(0, -1);
        assert!(sequence.is_exact());
    }

    #[test]
    fn a_window_is_whole_after_the_last_token_of_a_checkpoint_went() {
        // The state of 1001 tokens has the last 512 positions of them, and llama-server computes the last one again.
        let mut sequence = of(&[7; 1001], &[]);
        let first = 1001 - 512;
        assert!(!sequence.lacks(512, first));
        sequence.removed(1000, -1);
        assert!(!sequence.lacks(512, first) && sequence.lacks(512, first + 1));
        sequence.removed(999, -1);
        assert!(sequence.lacks(512, first) && !of(&[7; 100], &[]).lacks(512, 0));
    }

    #[test]
    fn promised_tokens_go_without_asking() {
        let mut sequence = of(&[1, 2], &[3, 4, 5]);
        assert!(sequence.is_promised());
        assert_eq!(sequence.before_removal(4, -1), Removal::Promised);
        assert_eq!((sequence.len(), sequence.present()), (4, 2));
        assert_eq!(sequence.before_removal(3, 4), Removal::Promised);
        assert_eq!(sequence.len(), 3);
        assert_eq!(sequence.clone().before_removal(0, 1), Removal::AfterPromised);
        assert_eq!(sequence.before_removal(1, -1), Removal::Asked);
        assert_eq!((sequence.len(), sequence.present()), (2, 2));
        sequence.removed(1, -1);
        assert_eq!(sequence.tokens(), [1]);
    }

    #[test]
    fn what_a_removal_loses_is_what_no_state_has() {
        let mut sequence = of(&[1, 2, 3, 4, 5], &[]);
        assert_eq!((sequence.loses(0, -1), sequence.loses(2, -1), sequence.loses(1, 3)), (5, 3, 0));
        sequence.keep(4);
        assert_eq!((sequence.loses(0, -1), sequence.loses(5, -1)), (1, 0));
        sequence.promise(&[6]);
        assert_eq!(sequence.loses(0, -1), 0);
        sequence.lose();
        assert_eq!(sequence.loses(-1, -1), 0);
    }
}
