//! How fast this process computes prompts and loads states, and how much it may store. Pure: times are handed in.

use std::time::Duration;

/// Weight of a new measurement.
const NEW: f64 = 0.3;
/// A skipped load raises what is believed of the store by so much, so that a store that was slow once is tried again.
const FORGIVEN: f64 = 1.1;
/// A load must take less than this part of the time to compute the same tokens.
const WORTH: f64 = 0.8;
/// The least that sizes of loads must differ, as the square of a part of their mean.
const LEAST_SPREAD: f64 = 0.01;
/// Fewer tokens say little of the rate: a batch has costs of its own.
const FEW: usize = 32;
/// The longest that a load is waited for, where nothing is known of the rate.
const LONGEST: Duration = Duration::from_secs(10);

/// Rates of one context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    tokens_a_second: Option<f64>,
    loads: Loads,
}

/// How long loads take: the line through what was measured of late, by sizes. Small loads alone say nothing of a large one's rate, because
/// each has a time of its own.
#[derive(Clone, Debug, Default, PartialEq)]
struct Loads {
    weight: f64,
    bytes: f64,
    seconds: f64,
    squares: f64,
    products: f64,
}

impl Loads {
    fn add(&mut self, bytes: f64, seconds: f64) {
        let sums = [&mut self.weight, &mut self.bytes, &mut self.seconds, &mut self.squares, &mut self.products];
        for (sum, new) in sums.into_iter().zip([1.0, bytes, seconds, bytes * bytes, bytes * seconds]) {
            *sum = *sum * (1.0 - NEW) + new;
        }
    }

    /// How many seconds so many bytes take; `None`: nothing is known.
    fn seconds(&self, bytes: f64) -> Option<f64> {
        if self.weight == 0.0 {
            return None;
        }
        let (size, time) = (self.bytes / self.weight, self.seconds / self.weight);
        let most = time / size;
        let spread = self.squares / self.weight - size * size;
        // Loads of one size say nothing of a time that each has.
        let slope = match spread > size * size * LEAST_SPREAD {
            true => ((self.products / self.weight - size * time) / spread).clamp(0.0, most),
            false => most,
        };
        Some(time + slope * (bytes - size))
    }

    fn forgive(&mut self) {
        self.seconds /= FORGIVEN;
        self.products /= FORGIVEN;
    }
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
            self.loads.add(bytes as f64, took.as_secs_f64());
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
        let (Some(compute), Some(load)) = (self.tokens_a_second, self.loads.seconds(bytes as f64)) else { return true };
        let worth = load < WORTH * tokens as f64 / compute;
        if !worth {
            self.loads.forgive();
        }
        worth
    }
}

/// When a store is asked again that failed, or did not answer in time. A failure costs as long as it takes to see that a store is down; an
/// answer that does not come in time costs what was waited for it, and the pause is so many times that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    failures: u32,
}

impl Pause {
    const FIRST: Duration = Duration::from_secs(1);
    const MOST_FAILURES: u32 = 6;
    const TIMES_WAITED: u32 = 16;

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to leave the store alone: at most 1 s after the first failure, and up to 32 times that. `waited` without an answer, if it
    /// did not fail.
    pub fn failed(&mut self, waited: Option<Duration>) -> Duration {
        let first = waited.map_or(Pause::FIRST, |waited| (waited * Pause::TIMES_WAITED).min(Pause::FIRST));
        let pause = first * 2_u32.pow(self.failures);
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
    fn small_loads_do_not_make_a_large_one_look_slow() {
        let mut rates = Rates::default();
        rates.computed(1000, SECOND);
        // Each load takes 5 ms, and 1 ms more for each MB.
        let load = |rates: &mut Rates, bytes: u64| rates.loaded(bytes, Duration::from_micros(5000 + bytes / 1000));
        (0..20).for_each(|_| load(&mut rates, 100_000));
        load(&mut rates, 1_000_000);
        (0..3).for_each(|_| load(&mut rates, 100_000));
        let seconds = rates.loads.seconds(100e6).unwrap();
        assert!((0.09..0.12).contains(&seconds), "{seconds}");
        assert!(rates.is_worth(100_000_000, 200) && !rates.is_worth(100_000, 6));
        // What takes longer the smaller it is says nothing of sizes.
        let mut odd = Rates::default();
        odd.loaded(1_000_000, SECOND);
        odd.loaded(2_000_000, SECOND / 10);
        assert!(odd.loads.seconds(1e9).unwrap() < 1.0);
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
        let all: Vec<u64> = (0..8).map(|_| pause.failed(None).as_secs()).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 32, 32, 32]);
        pause.succeeded();
        assert_eq!(pause.failed(Some(SECOND / 100)), SECOND * 16 / 100);
        assert_eq!(pause.failed(Some(SECOND / 100)), SECOND * 32 / 100);
        assert_eq!(pause.failed(Some(SECOND)), SECOND * 4, "no longer than after a failure");
    }
}
