//! The plots of the page, as SVG.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
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
const SIZE: (u32, u32) = (760, 420);

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
                Some((bytes / 1024.0, bytes / micros * 1e6 / f64::from(1 << 20)))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: format!("{operation}, {}", if ours { "ours" } else { "native" }), ours, points }
    };
    let lines = [line("get", true), line("get", false), line("put", true), line("put", false)];
    draw(path, "local-fs in the page cache", "KiB in a chunk", "MiB/s", true, &lines)
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
            if points.is_empty() {
                points.extend(row.peer.map(|one| (1.0, one)));
            }
            points.push((threads, row.ours));
        }
        Line { name: name.to_owned(), ours, points }
    };
    let lines = [line("", "ours", true), line("-native", "native", false)];
    draw(path, "local-fs gets of 256 KiB on one handle", "threads", "MiB/s", false, &lines)
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
    draw(path, "Single small operations", "microseconds", "% that are done by then", true, &lines)
}

fn bytes(size: &str) -> Option<f64> {
    let (number, scale) = match size.strip_suffix("KiB") {
        Some(number) => (number, 1024.0),
        None => (size.strip_suffix("MiB")?, 1024.0 * 1024.0),
    };
    Some(number.parse::<f64>().ok()? * scale)
}

fn draw(path: &Path, title: &str, across: &str, up: &str, logarithmic: bool, lines: &[Line]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)))
    };
    let ((left, right), (_, top)) = (bounds(|point| point.0), bounds(|point| point.1));
    if !(left < right && top > 0.0) {
        // Nothing was measured that this shows.
        return Ok(());
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let font = (FontFamily::SansSerif, 14);
    let mut chart = ChartBuilder::on(&root);
    chart.caption(title, (FontFamily::SansSerif, 18)).margin(12).x_label_area_size(44).y_label_area_size(70);
    // The two kinds of axes are two types.
    macro_rules! finish {
        ($chart:expr) => {{
            let mut chart = $chart;
            chart.configure_mesh().x_desc(across).y_desc(up).label_style(font).light_line_style(WHITE).draw()?;
            for (index, line) in lines.iter().enumerate() {
                let colour = COLOURS[index / 2 % COLOURS.len()];
                let style = if line.ours { colour.stroke_width(3) } else { colour.mix(0.45).stroke_width(2) };
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                    .label(&line.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .label_font(font)
                .draw()?;
        }};
    }
    let vertical = 0.0..top * 1.05;
    if logarithmic {
        finish!(chart.build_cartesian_2d((left..right).log_scale(), vertical)?);
    } else {
        finish!(chart.build_cartesian_2d(left..right, vertical)?);
    }
    root.present()?;
    Ok(())
}
