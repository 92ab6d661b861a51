//! The plots of the page, as SVG.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::FontFamily;

use super::row::Row;

/// A line: what it is called, whether it is ours, and its points.
struct Line {
    name: String,
    ours: bool,
    points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 95, 167), RGBColor(204, 92, 20), RGBColor(54, 130, 64), RGBColor(126, 70, 140)];
const SIZE: (u32, u32) = (860, 420);
/// Beside what is drawn: the names of the lines, so that they cover none.
const LEGEND: u32 = 170;
const LEGEND_ROW: i32 = 22;

/// What is written along an axis, and where. Empty: at round numbers.
struct Axis<'a> {
    name: &'a str,
    ticks: Vec<f64>,
    label: fn(f64) -> String,
}

/// Throughput of local-fs over the size of a chunk.
pub fn throughput(rows: &[Row], path: &Path) -> Result<()> {
    let line = |operation: &str, ours: bool| {
        let begin = format!("fs/{operation}/");
        let small = format!("fs/small/{operation}");
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|row| {
                let size = if row.name == small { "4KiB" } else { row.name.strip_prefix(&begin)? };
                let bytes = bytes(size)?;
                let micros = if ours { row.ours } else { row.peer? };
                Some((bytes / 1024.0, bytes / micros * 1e6 / f64::from(1 << 30)))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: format!("{operation}, {}", if ours { "ours" } else { "native" }), ours, points }
    };
    let lines = [line("get", true), line("get", false), line("put", true), line("put", false)];
    let across = Axis { name: "size of a chunk", ticks: ticks(&lines), label: size };
    draw(path, "local-fs in the page cache", &across, &up("GiB/s"), true, &lines)
}

/// Throughput over threads.
pub fn threads(rows: &[Row], path: &Path) -> Result<()> {
    let line = |suffix: &str, name: &str, ours: bool| {
        let mut points = Vec::new();
        for row in rows {
            let Some(threads) = row.name.strip_prefix("threads/").and_then(|rest| rest.strip_suffix(suffix)) else {
                continue;
            };
            let Ok(threads) = threads.parse::<f64>() else { continue };
            // MiB a second.
            if points.is_empty() {
                points.extend(row.peer.map(|one| (1.0, one / 1024.0)));
            }
            points.push((threads, row.ours / 1024.0));
        }
        Line { name: name.to_owned(), ours, points }
    };
    let lines = [line("", "ours", true), line("-native", "native", false)];
    let across = Axis { name: "threads", ticks: ticks(&lines), label: number };
    draw(path, "local-fs gets of 256 KiB on one handle", &across, &up("GiB/s"), false, &lines)
}

/// How the times of single operations are spread.
pub fn latency(samples: &BTreeMap<String, [Vec<f64>; 2]>, path: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for (name, sides) in samples {
        let Some(name) = name.strip_suffix("/latency") else { continue };
        for (side, ours) in sides.iter().zip([true, false]) {
            let mut sorted = side.clone();
            sorted.sort_by(f64::total_cmp);
            let count = sorted.len() as f64;
            // The last percent is the machine's.
            let shown = (sorted.len() * 99 / 100).max(1);
            let points = sorted.iter().take(shown).enumerate().map(|(at, micros)| (*micros, at as f64 / count * 100.0));
            let name = format!("{name}, {}", if ours { "ours" } else { "peer" });
            lines.push(Line { name, ours, points: points.collect() });
        }
    }
    let round = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    let across = Axis { name: "microseconds, logarithmic", ticks: round.to_vec(), label: number };
    draw(path, "Single small operations", &across, &up("% that are done by then"), true, &lines)
}

fn up(name: &str) -> Axis<'_> {
    Axis { name, ticks: Vec::new(), label: number }
}

/// Where something was measured: between, as at 1.5 threads, nothing is.
fn ticks(lines: &[Line]) -> Vec<f64> {
    let mut ticks: Vec<f64> = lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    ticks
}

/// Without zeroes behind the point.
fn number(value: f64) -> String {
    format!("{}", (value * 1e3).round() / 1e3)
}

/// Of KiB.
fn size(kib: f64) -> String {
    if kib < 1024.0 { format!("{kib} KiB") } else { format!("{} MiB", kib / 1024.0) }
}

fn bytes(size: &str) -> Option<f64> {
    let (number, scale) = match size.strip_suffix("KiB") {
        Some(number) => (number, 1024.0),
        None => (size.strip_suffix("MiB")?, 1024.0 * 1024.0),
    };
    Some(number.parse::<f64>().ok()? * scale)
}

fn draw(path: &Path, title: &str, across: &Axis, up: &Axis, logarithmic: bool, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)))
    };
    let ((left, right), (_, top)) = (bounds(|point| point.0), bounds(|point| point.1));
    if !(left < right && top > 0.0) {
        // Nothing was measured that this shows.
        return Ok(());
    }
    let ticks: Vec<f64> = across.ticks.iter().copied().filter(|tick| (left..=right).contains(tick)).collect();
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let font = (FontFamily::SansSerif, 14);
    let (drawn, named) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&drawn);
    chart.caption(title, (FontFamily::SansSerif, 18)).margin(12).x_label_area_size(44).y_label_area_size(56);
    // The last label along the axis stands over its end.
    chart.margin_right(28);
    let colour = |index: usize, ours: bool| {
        let colour = COLOURS[index / 2 % COLOURS.len()];
        if ours { colour.stroke_width(3) } else { colour.mix(0.45).stroke_width(2) }
    };
    // The two kinds of axes are two types.
    macro_rules! finish {
        ($chart:expr) => {{
            let mut chart = $chart;
            let mut mesh = chart.configure_mesh();
            let (along, beside) = (|value: &f64| (across.label)(*value), |value: &f64| (up.label)(*value));
            mesh.x_label_formatter(&along).y_label_formatter(&beside).x_desc(across.name).y_desc(up.name);
            mesh.label_style(font).light_line_style(WHITE).draw()?;
            for (index, line) in lines.iter().enumerate() {
                chart.draw_series(LineSeries::new(line.points.iter().copied(), colour(index, line.ours)))?;
            }
        }};
    }
    let vertical = 0.0..top * 1.05;
    if logarithmic {
        finish!(chart.build_cartesian_2d((left..right).log_scale().with_key_points(ticks), vertical)?);
    } else {
        finish!(chart.build_cartesian_2d(Ticked { range: (left..right).into(), ticks }, vertical)?);
    }
    for (row, (index, line)) in (0_i32..).zip(lines.iter().enumerate()) {
        let y = 50 + row * LEGEND_ROW;
        named.draw(&PathElement::new([(0, y), (24, y)], colour(index, line.ours)))?;
        named.draw(&Text::new(line.name.clone(), (30, y - 7), font.into_font()))?;
    }
    root.present()?;
    Ok(())
}

/// A linear axis with ticks where they are wanted.
struct Ticked {
    range: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.range()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_beside_what_is_drawn_and_ticks_where_something_was_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        let line = |name: &str, ours| Line {
            name: name.to_owned(),
            ours,
            points: vec![(1.0, 300.0), (2.0, 500.0), (4.0, 900.0)],
        };
        let lines = [line("ours", true), line("native", false)];
        let across = Axis { name: "threads", ticks: ticks(&lines), label: number };
        draw(&path, "title", &across, &up("GiB/s"), false, &lines).unwrap();
        let drawn = std::fs::read_to_string(&path).unwrap();
        let texts: Vec<&str> = drawn.lines().map(str::trim).filter(|line| !line.starts_with('<')).collect();
        for text in ["threads", "GiB/s", "1", "2", "4", "ours", "native"] {
            assert!(texts.contains(&text), "{text} in {texts:?}");
        }
        assert!(!texts.contains(&"3") && !texts.contains(&"1.5"), "{texts:?}");
        // What is drawn ends before the names begin.
        let right = SIZE.0 - LEGEND;
        let lines: Vec<&str> = drawn.lines().filter(|line| line.starts_with("<polyline")).collect();
        let most = |line: &&str| {
            let points = line.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            points
                .split_whitespace()
                .filter_map(|point| point.split(',').next()?.parse::<u32>().ok())
                .max()
                .unwrap_or(0)
        };
        let begins_beside = lines.iter().filter(|line| most(line) > right).count();
        assert_eq!(begins_beside, 2, "the two lines of the names, and nothing else, in {lines:#?}");
    }
}
