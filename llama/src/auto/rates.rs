//! How fast this process computes prompts and loads states, and how much it may store. Pure: times are handed in.

use std::time::Duration;

/// Weight of a new measurement.
const NEW: f64 = 0.3;
/// A skipped load raises what is believed of the store by so much, so that a store that was slow once is tried again.
const FORGIVEN: f64 = 1.1;
/// A load must take less than this part of the time to compute the same tokens.
const WORTH: f64 = 0.8;
/// Fewer tokens say little of the rate: a batch has costs of its own.
const FEW: usize = 32;
/// The longest that a load is waited for, where nothing is known of the rate.
const LONGEST: Duration = Duration::from_secs(10);

/// Rates of one context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    tokens_a_second: Option<f64>,
    bytes_a_second: Option<f64>,
}

fn mean(former: Option<f64>, new: f64) -> f64 {
    former.map_or(new, |former| former + NEW * (new - former))
}

impl Rates {
    /// So many tokens took so long to compute.
    pub fn computed(&mut self, tokens: usize, took: Duration) {
        if tokens >= FEW && !took.is_zero() {
            self.tokens_a_second = Some(mean(self.tokens_a_second, tokens as f64 / took.as_secs_f64()));
        }
    }

    /// So many bytes took so long to load.
    pub fn loaded(&mut self, bytes: u64, took: Duration) {
        if bytes > 0 && !took.is_zero() {
            self.bytes_a_second = Some(mean(self.bytes_a_second, bytes as f64 / took.as_secs_f64()));
        }
    }

    /// How long computing takes.
    pub fn computing(&self, tokens: usize) -> Duration {
        match self.tokens_a_second {
            Some(rate) if rate > 0.0 => {
                Duration::try_from_secs_f64(tokens as f64 / rate).unwrap_or(LONGEST).min(LONGEST)
            }
            _ => LONGEST,
        }
    }

    /// Whether to load so many bytes in place of computing so many tokens. What is not known yet is tried.
    pub fn is_worth(&mut self, bytes: u64, tokens: usize) -> bool {
        let (Some(compute), Some(load)) = (self.tokens_a_second, self.bytes_a_second) else { return true };
        let worth = bytes as f64 / load < WORTH * tokens as f64 / compute;
        if !worth {
            self.bytes_a_second = Some(load * FORGIVEN);
        }
        worth
    }
}

/// When a store is asked again that failed, or did not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    failures: u32,
}

impl Pause {
    const FIRST: Duration = Duration::from_secs(1);
    const MOST_FAILURES: u32 = 6;

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to leave the store alone: 1 s after the first failure, up to 32 s.
    pub fn failed(&mut self) -> Duration {
        let pause = Pause::FIRST * 2_u32.pow(self.failures);
        self.failures = (self.failures + 1).min(Pause::MOST_FAILURES - 1);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_load_that_would_lose_is_skipped_and_tried_again_later() {
        let mut rates = Rates::default();
        assert!(rates.is_worth(1 << 40, 1), "nothing is known");
        rates.computed(1000, SECOND);
        assert!(rates.is_worth(1 << 40, 1), "the store is not known");
        rates.loaded(1_000_000, SECOND);
        assert!(rates.is_worth(700_000, 1000));
        assert!(!rates.is_worth(2_000_000, 1000));
        let skipped = (0..100).take_while(|_| !rates.is_worth(2_000_000, 1000)).count();
        assert!((5..20).contains(&skipped), "{skipped}");
    }

    #[test]
    fn short_batches_say_nothing_of_the_rate() {
        let mut rates = Rates::default();
        rates.computed(1, SECOND);
        assert_eq!(rates.computing(1), LONGEST);
        rates.computed(100, SECOND);
        assert_eq!(rates.computing(50), SECOND / 2);
        rates.computed(200, SECOND);
        assert!(rates.computing(100) < SECOND && rates.computing(200) > SECOND);
        assert_eq!(rates.computing(usize::MAX), LONGEST);
    }

    #[test]
    fn pauses_grow_and_end_with_a_success() {
        let mut pause = Pause::default();
        let all: Vec<u64> = (0..8).map(|_| pause.failed().as_secs()).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 32, 32, 32]);
        pause.succeeded();
        assert_eq!(pause.failed(), SECOND);
    }
}
