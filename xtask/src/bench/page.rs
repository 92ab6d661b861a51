//! `docs/benchmarks.md`: method, machine, plots; and a page of figures for each part, in `docs/benchmarks/`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::plot;
use super::row::{Row, digits, hundredths, or_dash};
use crate::place::Place;
use crate::step;

const METHOD: &str = "\
# Benchmarks

`cargo xtask bench` measures, and writes this page and those of the figures. `--quick` takes fewer rounds, leaves out the rows that take longest, and
writes nothing. `--json` prints one object a row for machines. `--filter NAME` runs the rows whose name contains that and writes those, so that rows
may be of several runs; the plot of latencies is of the last whole one.

Every peer is measured in the same run, in turns: a round of ours, a round of the peer, the next time the other way round. A round is one operation or
more, and its value their mean. A figure is the median over the rounds, and the ratio is that of the two figures. In `cache/*` and `blocks/*` it is the
median of the rounds' ratios. `growth/memory` is one figure on each side, one after the other; rows without a peer are there to be read.

Both sides are in one process, except `open/cold`, where each round is a process of its own, and `kvx/numpy/*`, whose peer has its own. Absolute figures
are this machine's; read the ratio. It is always oriented as speed: 1 is as fast as the peer, 2 twice as fast.

`--against LIB` runs the single calls and the opens of a former `libkv_store_wasm.so` (with what was installed beside it) in turns with the new one, after
the former one in turns with itself. Where that differs by more than 3%, the instructions and system calls of both are counted instead:
instructions by perf, or one by one under ptrace where the machine has no counters (x86-64). `--instructions` counts them for a get, a put, an `exists` of 96 keys
and a batch of 64 on files, segments, redis and memkv, by who runs them: the component, wasmtime, the library, the C library; `--json` names the functions that take most.
`hostile/beside/*` is the 99th percentile of a healthy store's save and restore beside a guest that misbehaves, and the peer the same beside as many
threads that only spin. `hostile/CLASS/CALL` is the same of one call of a tenant, beside another's store that takes what the process shares: its compilers, opens,
processors, threads for eviction and for queues, and its network, over HTTP and below. Of `hostile/CLASS/CALL/idle` the peer is the call while nothing else runs.

The library is loaded with `dlopen` from `target/dist` and called through its C ABI, as an engine calls it, and outputs are freed as they come.
`kvx/*`, `cache/*` and `blocks/*` are measured through the Rust crates, except `kvx/small/*`, which calls the C functions.
";

/// The parts of the figures, a page each: its file, its title, and what its rows' names begin with. The first has all others.
const PARTS: [(&str, &str, &[&str]); 5] = [
    ("stores", "Stores: calls, batches, saves, opens, threads", &[]),
    ("engines", "Engines", &["llama/", "engines/"]),
    ("blocks", "The block cache", &["blocks/"]),
    ("cache", "The token-exact cache", &["cache/"]),
    ("kvx", "Kernels for paged caches", &["kvx/"]),
];

/// Write the pages and their plots.
pub fn write(place: &Place, rows: &[Row], samples: &Path) -> Result<()> {
    let docs = place.root.join("docs");
    let folder = docs.join("benchmarks");
    std::fs::create_dir_all(&folder)?;
    plot_rows(rows, &folder)?;
    plot::latency(&read_samples(samples)?, &folder.join("latency.svg"))?;
    write_tables(place, rows, &PARTS.map(|(name, ..)| name))
}

/// The plots that show what tables have.
fn plot_rows(rows: &[Row], folder: &Path) -> Result<()> {
    plot::throughput(rows, &folder.join("throughput.svg"))?;
    plot::threads(rows, &folder.join("threads.svg"))
}

/// The overview, and the pages of these parts.
fn write_tables(place: &Place, rows: &[Row], parts: &[&str]) -> Result<()> {
    let docs = place.root.join("docs");
    std::fs::write(docs.join("benchmarks.md"), overview(rows, &machine(place)?))?;
    for (name, title, _) in PARTS.iter().filter(|(name, ..)| parts.contains(name)) {
        let page = docs.join("benchmarks").join(format!("{name}.md"));
        std::fs::write(page, part(title, &rows_of(rows, name)))?;
    }
    Ok(())
}

/// Write the rows of a run with a filter into the pages and the plots of rows, and leave the others.
pub fn update(place: &Place, measured: Vec<Row>) -> Result<()> {
    let folder = place.root.join("docs/benchmarks");
    let mut rows = Vec::new();
    for (name, ..) in PARTS {
        let page = std::fs::read_to_string(folder.join(format!("{name}.md"))).unwrap_or_default();
        rows.extend(page.lines().filter_map(parse));
    }
    let parts: Vec<&str> =
        PARTS.iter().map(|(name, ..)| *name).filter(|name| !rows_of(&measured, name).is_empty()).collect();
    put_in(&mut rows, measured);
    plot_rows(&rows, &folder)?;
    write_tables(place, &rows, &parts)
}

/// Rows in the place of those of their names; new ones behind those that begin alike.
fn put_in(rows: &mut Vec<Row>, measured: Vec<Row>) {
    let beginning = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    for row in measured {
        if let Some(former) = rows.iter_mut().find(|former| former.name == row.name) {
            *former = row;
            continue;
        }
        let alike = rows.iter().rposition(|other| beginning(&other.name) == beginning(&row.name));
        rows.insert(alike.map_or(rows.len(), |last| last + 1), row);
    }
}

/// The row of a line of a table. None: it is another line.
fn parse(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
    let [name, ours, peer, unit, ratio, goal, verdict, ..] = cells.as_slice() else { return None };
    let number = |cell: &str| cell.trim_matches('*').parse::<f64>().ok();
    let (mut ratio, goal) = (number(ratio), number(goal));
    if let (Some(ratio), Some(goal), &"missed") = (&mut ratio, goal, verdict) {
        // It was rounded up to the goal.
        *ratio = ratio.min(goal - 0.001);
    }
    let (name, unit) = (name.trim_end_matches('`').to_owned(), (*unit).to_owned());
    Some(Row { name, ours: number(ours)?, peer: number(peer), ratio, unit, goal })
}

/// The rows of a part.
fn rows_of<'a>(rows: &'a [Row], part: &str) -> Vec<&'a Row> {
    let of = |row: &Row| {
        let mut parts = PARTS.iter().filter(|(_, _, begins)| begins.iter().any(|begins| row.name.starts_with(begins)));
        parts.next().or(PARTS.first()).map_or("", |(name, ..)| name)
    };
    rows.iter().filter(|row| of(row) == part).collect()
}

/// Method, machine, and where the figures are.
fn overview(rows: &[Row], machine: &str) -> String {
    let mut page = format!(
        "{METHOD}\n## Machine\n{machine}\n\n## Figures\n| part | rows | goals | met |\n| --- | ---: | ---: | ---: |\n"
    );
    for (name, title, _) in PARTS {
        let rows = rows_of(rows, name);
        let count = |verdicts: &[&str]| rows.iter().filter(|row| verdicts.contains(&row.verdict())).count();
        let (goals, met) = (count(&["met", "missed"]), count(&["met"]));
        // Writing to a string does not fail.
        let _ = writeln!(page, "| [{title}](benchmarks/{name}.md) | {} | {goals} | {met} |", rows.len());
    }
    page.push_str("\n[What is behind the figures](benchmarks/notes.md), and what would close the gaps.\n");
    for (title, plot) in [
        ("Throughput over size", "throughput"),
        ("Scaling over threads", "threads"),
        ("Latency of small operations", "latency"),
    ] {
        let _ = write!(page, "\n![{title}](benchmarks/{plot}.svg)\n");
    }
    page
}

/// The figures of a part, and the goals that it missed.
fn part(title: &str, rows: &[&Row]) -> String {
    let mut page = format!(
        "# Benchmarks: {title}\n\n[How they are measured](../benchmarks.md), [what is behind them](notes.md). A ratio of 1 is as fast as the peer, 2 twice as \
         fast.\n\n| row | ours | peer | | ratio | goal | |\n| --- | ---: | ---: | --- | ---: | ---: | --- |\n"
    );
    for row in rows {
        let goal = row.goal.map_or_else(String::new, hundredths);
        let (ours, peer, ratio) = (digits(row.ours), or_dash(row.peer, digits), or_dash(row.ratio, hundredths));
        let _ = writeln!(
            page,
            "| `{}` | {ours} | {peer} | {} | **{ratio}** | {goal} | {} |",
            row.name,
            row.unit,
            row.verdict()
        );
    }
    page.push_str("\n## Goals that were missed in this run\n");
    let missed = rows.iter().filter(|row| row.verdict() == "missed");
    let missed: Vec<_> = missed.filter_map(|row| Some((&row.name, row.goal?, row.ratio?))).collect();
    for (name, goal, ratio) in &missed {
        let short = (1.0 - ratio / goal) * 100.0;
        let _ = writeln!(page, "- `{name}`: {ratio:.2} where {goal:.2} was the goal, short by {short:.0}%.");
    }
    if missed.is_empty() {
        page.push_str("None.\n");
    }
    page
}

/// Both sides' values by row.
fn read_samples(path: &Path) -> Result<BTreeMap<String, [Vec<f64>; 2]>> {
    #[derive(serde::Deserialize)]
    struct Samples {
        name: String,
        ours: Vec<f64>,
        peer: Vec<f64>,
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = |line: &str| {
        let Samples { name, ours, peer } = serde_json::from_str(line)?;
        Ok((name, [ours, peer]))
    };
    text.lines().map(parse).collect()
}

/// What it was measured on, in a line.
fn machine(place: &Place) -> Result<String> {
    let first = |path: &str, key: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned())).unwrap_or_default()
    };
    let run = |program: &str, arguments: &[&str]| {
        step::output(Command::new(program).args(arguments)).map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let root = place.target.display().to_string();
    Ok(format!(
        "{}, {cores} cores, {} of memory; Linux {}; files on {}; {}; redis-server {}.",
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
        run("uname", &["-r"]),
        run("stat", &["-f", "-c", "%T", &root]),
        run("rustc", &["--version"]),
        run("redis-server", &["--version"]).split_whitespace().nth(2).unwrap_or("of unknown version"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ratio: f64) -> Row {
        Row {
            name: name.to_owned(),
            ours: 1.0,
            peer: Some(ratio),
            ratio: Some(ratio),
            unit: "us".to_owned(),
            goal: Some(0.9),
        }
    }

    #[test]
    fn a_run_with_a_filter_writes_its_rows_and_leaves_the_others() {
        let former = [row("fs/put/1MiB", 1.0), row("kvx/nhd/write", 0.45), row("fs/get/1MiB", 0.5)];
        let text = part("A part", &former.iter().collect::<Vec<_>>());
        let mut rows: Vec<Row> = text.lines().filter_map(parse).collect();
        assert_eq!(
            rows.iter().map(|row| &row.name).collect::<Vec<_>>(),
            ["fs/put/1MiB", "kvx/nhd/write", "fs/get/1MiB"]
        );
        assert_eq!((rows[1].ratio, rows[1].goal, rows[1].unit.as_str()), (Some(0.45), Some(0.9), "us"));
        put_in(&mut rows, vec![row("fs/put/1MiB", 2.0), row("kvx/hnd/write", 3.0), row("s3/put/1MiB", 1.5)]);
        let found: Vec<(&str, Option<f64>)> = rows.iter().map(|row| (row.name.as_str(), row.ratio)).collect();
        assert_eq!(
            found,
            [
                ("fs/put/1MiB", Some(2.0)),
                ("kvx/nhd/write", Some(0.45)),
                ("kvx/hnd/write", Some(3.0)),
                ("fs/get/1MiB", Some(0.5)),
                ("s3/put/1MiB", Some(1.5)),
            ]
        );
        let short = Row { ratio: Some(0.898), ..row("s3/get/1MiB", 1.0) };
        let again = part("A part", &[&short]).lines().find_map(parse).unwrap();
        assert_eq!(again.verdict(), "missed", "0.90 on the page, where 0.9 was the goal");
        assert!(parse("| row | ours | peer | | ratio | goal | |").is_none());
    }

    #[test]
    fn every_row_is_on_one_page() {
        let rows =
            [row("fs/put/1MiB", 1.0), row("kvx/nhd/write", 0.45), row("llama/save", 2.0), row("never/seen", 1.0)];
        let pages: Vec<String> = PARTS.iter().map(|(name, title, _)| part(title, &rows_of(&rows, name))).collect();
        for row in &rows {
            let line = format!("| `{}` |", row.name);
            assert_eq!(pages.iter().filter(|page| page.contains(&line)).count(), 1, "{}", row.name);
        }
        assert!(
            pages
                .last()
                .is_some_and(|kvx| kvx.contains("- `kvx/nhd/write`: 0.45 where 0.90 was the goal, short by 50%."))
        );
        let overview = overview(&rows, "a machine");
        assert!(overview.contains("benchmarks/stores.md) | 2 | 2 | 2 |"), "{overview}");
        assert!(overview.contains("benchmarks/kvx.md) | 1 | 1 | 0 |"), "{overview}");
    }
}
