//! `docs/benchmarks.md`: method, machine, table, plots, and what is behind the figures.

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

`cargo xtask bench` measures, and writes this page; `--quick` takes fewer rounds, leaves out the rows that take longest, and does not write it,
`--json` prints one object a row for machines, `--filter NAME` runs the rows whose name holds that. Nothing here is quoted from elsewhere: a
peer is measured in the same run, in turns: a round of ours, a round of the peer, the next time the other way round. A round is one operation
or more and its value their mean; a figure is the median over the rounds, and the ratio that of the two figures, but in `cache/*` the
median of the rounds' ratios. `growth/memory` is one figure on each side, one after the other; rows without a peer are there to be read. Both
sides are in one process, but for `open/cold`, where each round is a process of its own, and `kvx/numpy/*`, whose peer has its own.
Absolute figures are this machine's; read the ratio. It is always oriented as speed: 1 is as fast as the peer, 2 twice as fast.

The library is loaded with `dlopen` from `target/dist` and called through its C ABI, as an engine calls it, outputs being freed as they come;
`kvx/*` and `cache/*` are measured through the Rust crates, but for `kvx/small/*`, which calls the C functions.
";

/// Write the page and its plots.
pub fn write(place: &Place, rows: &[Row], samples: &Path) -> Result<()> {
    let docs = place.root.join("docs");
    let plots = docs.join("benchmarks");
    std::fs::create_dir_all(&plots)?;
    plot::throughput(rows, &plots.join("throughput.svg"))?;
    plot::threads(rows, &plots.join("threads.svg"))?;
    plot::latency(&read_samples(samples)?, &plots.join("latency.svg"))?;

    let mut page = format!("{METHOD}\n## Machine\n{}\n", machine(place)?);
    page.push_str(
        "\n## Figures\n| row | ours | peer | | ratio | goal | |\n| --- | ---: | ---: | --- | ---: | ---: | --- |\n",
    );
    for row in rows {
        let goal = row.goal.map_or_else(String::new, hundredths);
        let (ours, peer, ratio) = (digits(row.ours), or_dash(row.peer, digits), or_dash(row.ratio, hundredths));
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| `{}` | {ours} | {peer} | {} | **{ratio}** | {goal} | {} |",
            row.name,
            row.unit,
            row.verdict()
        );
    }
    page.push_str(
        "\n![Throughput over size](benchmarks/throughput.svg)\n\n![Scaling over threads](benchmarks/threads.svg)\n",
    );
    page.push_str(
        "\n![Latency of small operations](benchmarks/latency.svg)\n\n## Goals that were missed in this run\n",
    );
    let missed = rows.iter().filter(|row| row.verdict() == "missed");
    let missed: Vec<_> = missed.filter_map(|row| Some((&row.name, row.goal?, row.ratio?))).collect();
    for (name, goal, ratio) in &missed {
        let short = (1.0 - ratio / goal) * 100.0;
        let _ = writeln!(page, "- `{name}`: {ratio:.2} where {goal:.2} was the goal, short by {short:.0}%.");
    }
    if missed.is_empty() {
        page.push_str("None.\n");
    }
    let notes = place.root.join("benches/notes.md");
    let notes = std::fs::read_to_string(&notes).with_context(|| format!("cannot read {}", notes.display()))?;
    let _ = write!(page, "\n{notes}");
    std::fs::write(docs.join("benchmarks.md"), page)?;
    Ok(())
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
