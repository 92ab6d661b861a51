//! Rounds, medians, rows. Ours and the peer take turns within one run, so what else the machine does hits both; a round's
//! value is the mean over its operations, a row's the median over its rounds.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use kv_store_conformance::Library;
use serde_json::json;

use crate::spread::{GOAL, SPREAD, Spreads};

/// One run of the benchmarks.
pub struct Bench {
    pub ours: Library,
    pub native: Library,
    pub library: PathBuf,
    pub native_library: PathBuf,
    /// Where stores are made; on the disk that is measured.
    pub work: PathBuf,
    pub quick: bool,
    pub filter: Option<String>,
    /// The rounds of each row, one JSON object a line, for plots.
    pub samples: Option<RefCell<File>>,
    pub mode: Mode,
}

pub const CONFIG: &str = "bench.toml";

/// What the peer is.
pub enum Mode {
    /// The row's own.
    Peers,
    /// The same library: how far its rounds lie apart is noted, and nothing is reported.
    Itself(RefCell<Spreads>),
    /// A former library. Rows whose spread is too large to tell them apart are noted.
    Former { spreads: Spreads, uncertain: RefCell<Vec<String>> },
}

/// What a row is in, and which way is better.
#[derive(Clone, Copy)]
pub enum Unit {
    /// Microseconds for one operation: lower is better.
    Micros,
    /// Milliseconds for one operation: lower is better.
    Millis,
    /// MiB in a second: higher is better.
    MibPerSecond,
    /// MiB of memory: lower is better.
    Mib,
}

/// The rounds of both sides, in seconds for one operation; in bytes, where the unit is of memory.
pub struct Rounds {
    pub ours: Vec<f64>,
    pub peer: Vec<f64>,
}

impl Bench {
    /// Whether a row was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Whether any of these rows was.
    pub fn wants_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    /// The config of what is opened from now on. Empty, but for what a row writes into it while it opens its stores.
    pub fn config(&self) -> PathBuf {
        self.work.join(CONFIG)
    }

    /// An empty folder for a store.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.work.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Let ours and the peer take turns until the time for a row is used up. Each answers the seconds of one operation.
    pub fn rounds(
        &self,
        mut ours: impl FnMut() -> Result<f64>,
        mut peer: impl FnMut() -> Result<f64>,
    ) -> Result<Rounds> {
        let (least, time) = if self.quick { (9, Duration::from_millis(1500)) } else { (31, Duration::from_secs(8)) };
        let mut rounds = Rounds { ours: Vec::new(), peer: Vec::new() };
        // What is only slow the first time is not what is measured.
        ours()?;
        peer()?;
        let begun = Instant::now();
        while rounds.ours.len() < least || (begun.elapsed() < time && rounds.ours.len() < 2000) {
            if rounds.ours.len().is_multiple_of(2) {
                rounds.ours.push(ours()?);
                rounds.peer.push(peer()?);
            } else {
                rounds.peer.push(peer()?);
                rounds.ours.push(ours()?);
            }
        }
        Ok(rounds)
    }

    /// The times of single operations, for the plot of how they are spread. Blocks of both sides take turns.
    pub fn latencies(
        &self,
        name: &str,
        mut ours: impl FnMut() -> Result<()>,
        mut peer: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some(samples) = self.samples.as_ref().filter(|_| !self.quick) else { return Ok(()) };
        let [mut of_ours, mut of_peer] = [const { Vec::new() }; 2];
        for _ in 0..100 {
            for _ in 0..20 {
                of_ours.push(each(1, |_| ours())? * 1e6);
            }
            for _ in 0..20 {
                of_peer.push(each(1, |_| peer())? * 1e6);
            }
        }
        writeln!(
            samples.borrow_mut(),
            "{}",
            json!({ "name": format!("{name}/latency"), "ours": of_ours, "peer": of_peer })
        )?;
        Ok(())
    }

    /// Report a row. `bytes`: of one operation, where the unit is a rate.
    pub fn report(&self, name: &str, rounds: &Rounds, unit: Unit, bytes: usize, goal: Option<f64>) -> Result<()> {
        let convert = |value: f64| match unit {
            Unit::Micros => value * 1e6,
            Unit::Millis => value * 1e3,
            Unit::MibPerSecond => bytes as f64 / value / f64::from(1 << 20),
            Unit::Mib => value / f64::from(1 << 20),
        };
        let convert_all = |side: &[f64]| side.iter().copied().map(convert).collect::<Vec<_>>();
        let (ours, peer) = (convert_all(&rounds.ours), convert_all(&rounds.peer));
        if let Some(samples) = &self.samples {
            writeln!(samples.borrow_mut(), "{}", json!({ "name": name, "ours": ours, "peer": peer }))?;
        }
        let (unit, better) = match unit {
            Unit::Micros => ("us", "lower"),
            Unit::Millis => ("ms", "lower"),
            Unit::MibPerSecond => ("MiB/s", "higher"),
            Unit::Mib => ("MiB", "lower"),
        };
        let (ours, peer) = (median(ours), median(peer));
        let ratio = if better == "lower" { peer / ours } else { ours / peer };
        let (mut name, mut goal) = (name.to_owned(), goal);
        match &self.mode {
            Mode::Peers => {}
            Mode::Itself(spreads) => {
                spreads.borrow_mut().insert(name, (1.0 - ratio).abs());
                return Ok(());
            }
            Mode::Former { spreads, uncertain } => {
                let spread = spreads.get(&name).copied().unwrap_or(1.0);
                eprintln!("{name}: a library against itself differs by {:.1}%", spread * 100.0);
                goal = (spread <= SPREAD).then_some(GOAL);
                if goal.is_none() {
                    uncertain.borrow_mut().push(name.clone());
                }
                name.insert_str(0, "against/");
            }
        }
        println!(
            "{}",
            json!({
                "name": name, "ours": rounded(ours), "peer": rounded(peer), "ratio": rounded(ratio),
                "unit": unit, "better": better, "goal": goal,
            })
        );
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Four digits: more were not measured.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// The seconds that each of `count` operations took, on the whole.
pub fn each(count: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for index in 0..count {
        work(index)?;
    }
    Ok(begun.elapsed().as_secs_f64() / count as f64)
}

/// The seconds from the first begin to the last end, where each of these has a thread. Each thread looks at the clock for itself: who only
/// started them may be scheduled when they are done.
pub fn side_by_side<T: Send>(of_threads: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<f64> {
    let start = Barrier::new(of_threads.len());
    let run = |of_thread| {
        start.wait();
        let begun = Instant::now();
        work(of_thread).map(|()| (begun, Instant::now()))
    };
    let times: Result<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let running: Vec<_> = of_threads.into_iter().map(|of_thread| scope.spawn(|| run(of_thread))).collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    });
    let times = times?;
    let (first, last) = (times.iter().map(|(begun, _)| *begun).min(), times.iter().map(|(_, ended)| *ended).max());
    Ok(first.zip(last).map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_side_by_side_takes_as_long_as_the_longest() {
        let millis = |millis| std::thread::sleep(Duration::from_millis(millis));
        let seconds = side_by_side(vec![10, 60, 20], |time| {
            millis(time);
            Ok(())
        })
        .unwrap();
        assert!(seconds >= 0.06, "{seconds}");
        let failed = side_by_side(vec![1, 2], |time| if time == 2 { Err(anyhow!("no")) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "no");
    }

    #[test]
    fn medians_and_digits() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(rounded(1234.56), 1235.0);
        assert_eq!(rounded(0.98765), 0.9877);
        assert_eq!(rounded(0.0), 0.0);
    }
}
