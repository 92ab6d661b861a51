//! The counters as a snapshot, and as text for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::{BUCKETS_MS, Count, Level, Metrics, Op, Stage, Stripe};
use crate::error::ErrorKind;

/// What happened since the cache was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// By level and operation, those that occurred.
    pub series: Vec<Series>,
    /// By operation and stage, where breakdowns are measured.
    pub stages: Vec<StageTime>,
    /// Blocks that the near level gave up.
    pub evictions: u64,
    /// Blocks that were not written to the far level because too many were on their way.
    pub ingestions_dropped: u64,
    /// Blocks that were not written because the far level has them, or is being given them.
    pub ingestions_spared: u64,
    /// Blocks that came from the far level after those who asked had gone.
    pub late_blocks: u64,
    /// Blocks for which a call waited that another call had asked for.
    pub joined_blocks: u64,
    /// Blocks of the far level that failed their check.
    pub damaged_blocks: u64,
    /// Blocks of another prompt under the same key, where tokens are validated.
    pub key_collisions: u64,
    /// What the levels hold.
    pub used: LevelUse,
}

/// What the levels hold at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LevelUse {
    /// Blocks of the near level.
    pub near_blocks: u64,
    /// Their bytes.
    pub near_bytes: u64,
    /// The most bytes of the near level.
    pub near_capacity_bytes: u64,
    /// Bytes of all blocks in memory: those of the near level, those on their way, and those that are acquired.
    pub memory_bytes: u64,
    /// Blocks that the far level was asked for, and has not answered.
    pub fetching_blocks: u64,
    /// Blocks on their way to the far level.
    pub writing_blocks: u64,
}

/// One operation on one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// `cache`, `l1` or `l2`.
    pub level: &'static str,
    /// `put`, `get`, ...
    pub op: &'static str,
    /// How often.
    pub count: u64,
    /// Tokens that were asked for.
    pub tokens: u64,
    /// Tokens that were found, or taken.
    pub fetched_tokens: u64,
    /// All of it together, in seconds, where times are measured.
    pub seconds: f64,
    /// By upper bound in [`BUCKETS_MS`], and beyond; not cumulated.
    pub buckets: Vec<u64>,
    /// Failures by reason.
    pub errors: Vec<(&'static str, u64)>,
}

/// The time of one stage of one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageTime {
    /// `put`, `get`, ...
    pub op: &'static str,
    /// `keys`, `near`, `far`, `ingest`.
    pub stage: &'static str,
    /// How often.
    pub count: u64,
    /// In seconds.
    pub seconds: f64,
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Metrics {
    fn sum(&self, of: impl Fn(&Stripe) -> Option<&AtomicU64>) -> u64 {
        self.stripes.iter().filter_map(of).map(|counter| counter.load(Relaxed)).sum()
    }

    /// The counters. What the levels hold is the caller's to say.
    pub fn snapshot(&self, used: LevelUse) -> Snapshot {
        let series = Level::ALL.iter().flat_map(|(level, _)| Op::ALL.iter().map(move |(op, _)| (*level, *op)));
        let stages = Op::ALL.iter().flat_map(|(op, _)| Stage::ALL.iter().map(move |(stage, _)| (*op, *stage)));
        let count = |what: Count| self.sum(|stripe| stripe.counts.get(what as usize));
        Snapshot {
            series: series.filter_map(|(level, op)| self.series(level, op)).collect(),
            stages: stages.filter_map(|(op, stage)| self.stage_time(op, stage)).collect(),
            evictions: count(Count::Evictions),
            ingestions_dropped: count(Count::Dropped),
            ingestions_spared: count(Count::Spared),
            late_blocks: count(Count::Late),
            joined_blocks: count(Count::Joined),
            damaged_blocks: count(Count::Damaged),
            key_collisions: count(Count::Collisions),
            used,
        }
    }

    fn series(&self, level: Level, op: Op) -> Option<Series> {
        let sum = |of: &dyn Fn(&super::Cell) -> Option<&AtomicU64>| {
            self.sum(|stripe| of(stripe.cells.get(level as usize)?.get(op as usize)?))
        };
        let errors: Vec<(&'static str, u64)> = ErrorKind::ALL
            .iter()
            .map(|kind| (kind.name(), sum(&|cell| cell.errors.get(*kind as usize - 1))))
            .filter(|(_, count)| *count > 0)
            .collect();
        let count = sum(&|cell| Some(&cell.count));
        (count > 0 || !errors.is_empty()).then(|| Series {
            level: Level::ALL.iter().find(|(of, _)| *of == level).map_or("", |(_, name)| name),
            op: Op::ALL.iter().find(|(of, _)| *of == op).map_or("", |(_, name)| name),
            count,
            tokens: sum(&|cell| Some(&cell.asked)),
            fetched_tokens: sum(&|cell| Some(&cell.found)),
            seconds: seconds(sum(&|cell| Some(&cell.nanos))),
            buckets: (0..=BUCKETS_MS.len()).map(|bucket| sum(&|cell| cell.buckets.get(bucket))).collect(),
            errors,
        })
    }

    fn stage_time(&self, op: Op, stage: Stage) -> Option<StageTime> {
        let count = self.sum(|stripe| Some(&stripe.stages.get(op as usize)?.get(stage as usize)?.count));
        (count > 0).then(|| StageTime {
            op: Op::ALL.iter().find(|(of, _)| *of == op).map_or("", |(_, name)| name),
            stage: Stage::ALL.iter().find(|(of, _)| *of == stage).map_or("", |(_, name)| name),
            count,
            seconds: seconds(self.sum(|stripe| Some(&stripe.stages.get(op as usize)?.get(stage as usize)?.nanos))),
        })
    }
}

impl Snapshot {
    /// One operation on one level, if it occurred.
    pub fn of(&self, level: Level, op: Op) -> Option<&Series> {
        let name = Level::ALL.iter().find(|(of, _)| *of == level).map(|(_, name)| *name)?;
        let op = Op::ALL.iter().find(|(of, _)| *of == op).map(|(_, name)| *name)?;
        self.series.iter().find(|series| series.level == name && series.op == op)
    }

    /// The text format of Prometheus 0.0.4, whose lines of one name stand together, behind its type. `labels` are put with each, such as
    /// `tenant="7"`; they may be empty.
    pub fn to_prometheus(&self, labels: &str) -> String {
        let mut families = Families { labels, all: Vec::new() };
        for series in &self.series {
            let Series { level, op, .. } = series;
            let own = format!("level=\"{level}\",op=\"{op}\"");
            families.line(("num_ops_total", "counter"), "", &own, series.count as f64);
            families.line(("tokens_total", "counter"), "", &own, series.tokens as f64);
            families.line(("fetched_tokens_total", "counter"), "", &own, series.fetched_tokens as f64);
            for (reason, count) in &series.errors {
                let own = format!("{own},reason=\"{reason}\"");
                families.line(("num_errors_total", "counter"), "", &own, *count as f64);
            }
            let measured: u64 = series.buckets.iter().sum();
            if measured > 0 {
                const LATENCY: (&str, &str) = ("op_lat_ms", "histogram");
                let mut below = 0;
                for (count, most) in series.buckets.iter().zip(BUCKETS_MS) {
                    below += count;
                    families.line(LATENCY, "_bucket", &format!("{own},le=\"{most}\""), below as f64);
                }
                families.line(LATENCY, "_bucket", &format!("{own},le=\"+Inf\""), measured as f64);
                families.line(LATENCY, "_sum", &own, series.seconds * 1e3);
                families.line(LATENCY, "_count", &own, measured as f64);
            }
        }
        for StageTime { op, stage, count, seconds } in &self.stages {
            let own = format!("op=\"{op}\",stage=\"{stage}\"");
            families.line(("stage_ms", "summary"), "_sum", &own, seconds * 1e3);
            families.line(("stage_ms", "summary"), "_count", &own, *count as f64);
        }
        for (name, value) in [
            ("evictions_total", self.evictions),
            ("ingestions_dropped_total", self.ingestions_dropped),
            ("ingestions_spared_total", self.ingestions_spared),
            ("late_blocks_total", self.late_blocks),
            ("joined_blocks_total", self.joined_blocks),
            ("damaged_blocks_total", self.damaged_blocks),
            ("key_collisions_total", self.key_collisions),
        ] {
            families.line((name, "counter"), "", "", value as f64);
        }
        for (name, value) in [
            ("near_blocks", self.used.near_blocks),
            ("near_bytes", self.used.near_bytes),
            ("near_capacity_bytes", self.used.near_capacity_bytes),
            ("memory_bytes", self.used.memory_bytes),
            ("fetching_blocks", self.used.fetching_blocks),
            ("writing_blocks", self.used.writing_blocks),
        ] {
            families.line((name, "gauge"), "", "", value as f64);
        }
        families.all.into_iter().map(|(_, lines)| lines).collect()
    }
}

/// Lines for Prometheus, by the name that they are of.
struct Families<'a> {
    /// Those of each line.
    labels: &'a str,
    all: Vec<(&'static str, String)>,
}

impl Families<'_> {
    /// A line of a name and its type. `suffix`: what it is of a histogram or a summary. `own`: its labels.
    fn line(&mut self, (name, kind): (&'static str, &str), suffix: &str, own: &str, value: f64) {
        let comma = if self.labels.is_empty() || own.is_empty() { "" } else { "," };
        let labels = format!("{}{comma}{own}", self.labels);
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let line = format!("kv_blocks_{name}{suffix}{labels} {value}\n");
        match self.all.iter_mut().find(|(of, _)| *of == name) {
            Some((_, lines)) => lines.push_str(&line),
            None => self.all.push((name, format!("# TYPE kv_blocks_{name} {kind}\n{line}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counters_are_told() {
        let metrics = Metrics::new();
        metrics.done(Level::L1, Op::Get, 64, 48, Some(Duration::from_millis(1)));
        metrics.done(Level::L1, Op::Get, 64, 0, Some(Duration::from_millis(3001)));
        metrics.failed(Level::L2, Op::Put, ErrorKind::Timeout, 3);
        metrics.stage(Op::Get, Stage::Keys, Duration::from_micros(10));
        metrics.count(Count::Dropped, 5);
        let snapshot = metrics.snapshot(LevelUse { near_bytes: 77, ..LevelUse::default() });
        let get = snapshot.of(Level::L1, Op::Get).unwrap();
        assert_eq!((get.count, get.tokens, get.fetched_tokens), (2, 128, 48));
        assert_eq!((get.buckets[0], get.buckets[BUCKETS_MS.len()], get.buckets.iter().sum()), (1, 1, 2_u64));
        assert_eq!(snapshot.of(Level::L2, Op::Put).unwrap().errors, [("timeout", 3)]);
        assert!(snapshot.of(Level::L1, Op::Delete).is_none() && snapshot.ingestions_dropped == 5);
        let text = snapshot.to_prometheus("tenant=\"7\"");
        for line in [
            "kv_blocks_num_ops_total{tenant=\"7\",level=\"l1\",op=\"get\"} 2",
            "kv_blocks_op_lat_ms_bucket{tenant=\"7\",level=\"l1\",op=\"get\",le=\"3000\"} 1",
            "kv_blocks_op_lat_ms_bucket{tenant=\"7\",level=\"l1\",op=\"get\",le=\"+Inf\"} 2",
            "kv_blocks_num_errors_total{tenant=\"7\",level=\"l2\",op=\"put\",reason=\"timeout\"} 3",
            "kv_blocks_near_bytes{tenant=\"7\"} 77",
            "kv_blocks_stage_ms_count{tenant=\"7\",op=\"get\",stage=\"keys\"} 1",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn lines_of_one_name_stand_together_behind_its_type() {
        let metrics = Metrics::new();
        metrics.done(Level::L1, Op::Get, 64, 48, Some(Duration::from_millis(1)));
        metrics.done(Level::L2, Op::Put, 64, 0, Some(Duration::from_millis(1)));
        let text = metrics.snapshot(LevelUse::default()).to_prometheus("");
        let mut seen = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((name, _)) => seen.push(name),
                None => assert!(line.starts_with(seen.last().unwrap()), "{line} is not of {:?}", seen.last()),
            }
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "a name stands twice");
    }
}
