//! What is worth saving: pure decisions over counts of tokens.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::MIN_ALIGN_TOKENS;

/// The gates of saves and the steps of the longest-prefix walk. All are counts of tokens but for the `_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// No row is shorter, but for those of the reasons evict and shutdown. 512.
    pub min_tokens: usize,
    /// Shorter prompts get no cold save. At least `min_tokens`. 512.
    pub cold_min_tokens: usize,
    /// Longer prompts get no cold save. 30,000.
    pub cold_max_tokens: usize,
    /// New tokens between continued saves. 2,048.
    pub continued_interval: usize,
    /// Tokens at a prompt's end that a cold save leaves out: what follows may tokenise them differently. 32.
    pub boundary_trim_tokens: usize,
    /// A cold save keeps a multiple of this, and the longest-prefix walk looks at multiples of it. 2,048.
    pub boundary_align_tokens: usize,
    /// How long a lookup waits for its parent's save that is on its way. 500.
    pub session_resume_wait_ms: u64,
    /// How long a save of the reasons evict and shutdown, and the closing of the cache, may take. 30,000.
    pub evict_save_timeout_ms: u64,
    /// How long a writer may take before its reservation is another's to take; one that takes longer twice fails. Not 0, and
    /// better more than `evict_save_timeout_ms`. 60,000.
    pub reservation_ms: u64,
    /// How often the order of use is noted in the files' times, so that it survives a crash. Not 0. 5,000.
    pub note_uses_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            min_tokens: 512,
            cold_min_tokens: 512,
            cold_max_tokens: 30_000,
            continued_interval: 2048,
            boundary_trim_tokens: 32,
            boundary_align_tokens: 2048,
            session_resume_wait_ms: 500,
            evict_save_timeout_ms: 30_000,
            reservation_ms: 60_000,
            note_uses_ms: 5000,
        }
    }
}

/// Why a save was not made. None of them is a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Fewer tokens than the gate of its reason.
    TooShort,
    /// A cold save of a prompt longer than `cold_max_tokens`.
    TooLong,
    /// A continued save sooner than `continued_interval` after the last one.
    TooSoon,
}

impl Policy {
    /// How many tokens of a cold prompt to save: trimmed, then a multiple of `boundary_align_tokens`. An engine prefills up
    /// to there, saves, and prefills the rest.
    ///
    /// ```
    /// let policy = kv_cache::Policy::default();
    /// assert_eq!(policy.cold(2048 + 32), Ok(2048));
    /// assert_eq!(policy.cold(2048 + 31), Err(kv_cache::Gate::TooShort));
    /// ```
    pub fn cold(&self, prompt_tokens: usize) -> std::result::Result<usize, Gate> {
        if prompt_tokens > self.cold_max_tokens {
            return Err(Gate::TooLong);
        }
        let kept = self.trim(prompt_tokens).ok_or(Gate::TooShort)?;
        if prompt_tokens < self.cold_min_tokens || kept < self.min_tokens { Err(Gate::TooShort) } else { Ok(kept) }
    }

    /// The boundary trim alone: `None` where nothing is left to save.
    pub fn trim(&self, tokens: usize) -> Option<usize> {
        let align = self.boundary_align_tokens.max(1);
        let trimmed = tokens.checked_sub(self.boundary_trim_tokens)?;
        (trimmed >= align).then(|| trimmed / align * align)
    }

    /// Whether a sequence that grows to `tokens` is saved again, after it was last saved at `last_saved`.
    pub fn continued(&self, tokens: usize, last_saved: usize) -> std::result::Result<(), Gate> {
        if tokens < self.min_tokens {
            return Err(Gate::TooShort);
        }
        match tokens.checked_sub(last_saved) {
            Some(new) if new >= self.continued_interval => Ok(()),
            _ => Err(Gate::TooSoon),
        }
    }

    /// Whether a sequence that ends at `tokens` is saved.
    pub fn finish(&self, tokens: usize) -> std::result::Result<(), Gate> {
        if tokens < self.min_tokens { Err(Gate::TooShort) } else { Ok(()) }
    }

    /// Where the longest-prefix walk looks, ascending.
    pub(crate) fn boundaries(&self, tokens: usize) -> impl Iterator<Item = usize> + use<> {
        let align = self.boundary_align_tokens.max(1);
        (1..=tokens / align).map(move |n| n * align)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::invalid(format!("policy: {text}")));
        if self.boundary_align_tokens < MIN_ALIGN_TOKENS || self.continued_interval == 0 {
            return wrong("boundary_align_tokens must be at least 4, and continued_interval at least 1");
        }
        if self.cold_min_tokens < self.min_tokens {
            return wrong("cold_min_tokens must be at least min_tokens");
        }
        if self.note_uses_ms == 0 {
            return wrong("note_uses_ms must be at least 1");
        }
        if self.reservation_ms == 0 {
            return wrong("reservation_ms must be at least 1: no save can be written in no time");
        }
        if self.cold_max_tokens < self.cold_min_tokens {
            return wrong("cold_max_tokens must be at least cold_min_tokens");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Policy {
        Policy {
            min_tokens: 10,
            cold_min_tokens: 20,
            cold_max_tokens: 50,
            continued_interval: 8,
            boundary_trim_tokens: 3,
            boundary_align_tokens: 4,
            ..Policy::default()
        }
    }

    #[test]
    fn defaults_are_the_published_ones() {
        let p = Policy::default();
        assert_eq!(
            (p.min_tokens, p.cold_min_tokens, p.cold_max_tokens, p.continued_interval),
            (512, 512, 30_000, 2048)
        );
        assert_eq!((p.boundary_trim_tokens, p.boundary_align_tokens), (32, 2048));
        assert_eq!((p.session_resume_wait_ms, p.evict_save_timeout_ms), (500, 30_000));
    }

    #[test]
    fn cold_at_its_edges() {
        let p = small();
        assert_eq!(p.cold(19), Err(Gate::TooShort));
        assert_eq!(p.cold(20), Ok(16));
        assert_eq!(p.cold(50), Ok(44));
        assert_eq!(p.cold(51), Err(Gate::TooLong));
        // The prompt is long enough for its gate, but not for one aligned piece.
        let wide = Policy { boundary_align_tokens: 30, ..small() };
        assert_eq!(wide.cold(32), Err(Gate::TooShort));
        assert_eq!(wide.cold(33), Ok(30));
        // What is kept is a row too, and has to pass the gate of every row.
        let trimmed = Policy { boundary_trim_tokens: 11, ..small() };
        assert_eq!((trimmed.cold(22), trimmed.cold(23)), (Err(Gate::TooShort), Ok(12)));
    }

    #[test]
    fn trim_at_its_edges() {
        let p = small();
        assert_eq!([0, 2, 3, 6].map(|n| p.trim(n)), [None; 4]);
        assert_eq!([7, 10, 11].map(|n| p.trim(n)), [Some(4), Some(4), Some(8)]);
        assert_eq!(p.trim(usize::MAX), Some((usize::MAX - 3) / 4 * 4));
    }

    #[test]
    fn continued_and_finish_at_their_edges() {
        let p = small();
        assert_eq!(p.continued(9, 0), Err(Gate::TooShort));
        assert_eq!(p.continued(10, 2), Ok(()));
        assert_eq!(p.continued(10, 3), Err(Gate::TooSoon));
        assert_eq!(p.continued(10, 11), Err(Gate::TooSoon));
        assert_eq!(p.finish(9), Err(Gate::TooShort));
        assert_eq!(p.finish(10), Ok(()));
    }

    #[test]
    fn the_walk_looks_at_multiples_up_to_the_end() {
        let p = small();
        assert_eq!(p.boundaries(3).count(), 0);
        assert_eq!(p.boundaries(12).collect::<Vec<_>>(), [4, 8, 12]);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |policy: Policy| policy.check().unwrap_err().to_string();
        assert!(refused(Policy { boundary_align_tokens: 3, ..small() }).contains("boundary_align_tokens"));
        assert!(refused(Policy { continued_interval: 0, ..small() }).contains("continued_interval"));
        assert!(refused(Policy { cold_min_tokens: 9, ..small() }).contains("cold_min_tokens"));
        assert!(refused(Policy { cold_max_tokens: 19, ..small() }).contains("cold_max_tokens"));
        assert!(refused(Policy { reservation_ms: 0, ..small() }).contains("reservation_ms"));
        small().check().unwrap();
    }
}
