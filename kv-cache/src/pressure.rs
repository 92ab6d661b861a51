//! Eviction when memory runs short.

use std::sync::Arc;

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

/// The memory of the system, as Linux counts it: what is not available to a program that asks.
pub struct SystemMemory;

impl Pressure for SystemMemory {
    fn sample(&self) -> Option<Sample> {
        parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }
}

fn parse_meminfo(text: &str) -> Option<Sample> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let total = field("MemTotal")?;
    Some(Sample { used: total.saturating_sub(field("MemAvailable")?), total })
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
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    300 kB\n";
        assert_eq!(parse_meminfo(text), Some(Sample { used: 700 * 1024, total: 1000 * 1024 }));
        assert_eq!(parse_meminfo("MemTotal: 5 kB\n"), None);
        assert_eq!(parse_meminfo("MemTotal: 5 kB\nMemAvailable: x kB\n"), None);
        let now = SystemMemory.sample().unwrap();
        assert!(now.used > 0 && now.used < now.total);
    }
}
