//! Eviction when memory runs short.

use std::sync::Arc;

use kv_platform::memory::{self, MachineMemory};

use crate::config::PressureConfig;

/// How much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes in use.
    pub used: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Something that knows how much memory there is: the system, a GPU, a container.
pub trait Pressure: Send + Sync {
    /// A look at it; `None` where it cannot be told now.
    fn sample(&self) -> Option<Sample>;
}

/// The memory of the system, as Linux counts it: what is not available to a program that asks. Other systems do not tell it.
pub struct SystemMemory;

impl Pressure for SystemMemory {
    fn sample(&self) -> Option<Sample> {
        let MachineMemory { total, available } = memory::of_the_machine()?;
        Some(Sample { used: total.saturating_sub(available), total })
    }
}

/// How many bytes to free: none below the high mark; from there on, until less than the low mark is used.
pub(crate) fn excess(sample: Sample, config: &PressureConfig) -> u64 {
    let Sample { used, total } = sample;
    if total == 0 || (used as f64) < config.high * total as f64 {
        return 0;
    }
    used.saturating_sub((config.low * total as f64) as u64).saturating_add(1)
}

/// Have a thread look at a source from time to time, as long as `wait` says so, and hand on what it sees.
pub(crate) fn watch(
    source: Arc<dyn Pressure>,
    wait: impl Fn() -> bool + Send + 'static,
    seen: impl Fn(Sample) + Send + 'static,
) -> std::io::Result<()> {
    crate::threads::start("kv-cache-memory", move || {
        while wait() {
            if let Some(sample) = source.sample() {
                seen(sample);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_below_the_high_mark_and_then_to_the_low_one() {
        let config = PressureConfig::default();
        let sample = |used| Sample { used, total: 1000 };
        assert_eq!(excess(sample(849), &config), 0);
        assert_eq!(excess(sample(850), &config), 101);
        assert_eq!(excess(sample(1000), &config), 251);
        assert_eq!(excess(Sample { used: 5, total: 0 }, &config), 0);
    }

    #[test]
    fn the_system_is_asked() {
        let Some(now) = SystemMemory.sample() else { return assert!(!kv_platform::promises("memory-pressure")) };
        assert!(now.used > 0 && now.used < now.total);
    }
}
