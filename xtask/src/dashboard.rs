//! `cargo xtask dashboard`: the picture of docs/dashboard.json. A real Prometheus reads the library's own listener while stores are at
//! work, answers the queries of each panel, and what it answers is drawn.

mod load;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use kv_store_tests::consumer::{Running, start};
use kv_store_tests::servers::free_port;
use plotters::prelude::*;
use plotters::style::FontFamily;
use serde::Deserialize;

use crate::place::Place;
use crate::step::{self, Progress};
use crate::{dist, packages, servers};
use load::SECONDS;

/// What Grafana makes of `$__rate_interval` at a scrape each second: five of them.
const RATE_INTERVAL: &str = "5s";
/// Of one panel that is as wide as half of the picture.
const PANEL: (u32, u32) = (600, 300);
/// Below what is drawn in a panel: the names of its lines, in two columns, so that they cover none.
const LEGEND: u32 = 68;
const LEGEND_ROW: i32 = 15;

#[derive(Deserialize)]
struct Dashboard {
    title: String,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    title: String,
    grid_pos: GridPos,
    field_config: FieldConfig,
    targets: Vec<Query>,
}

/// In units of Grafana: 24 across.
#[derive(Deserialize)]
struct GridPos {
    h: u32,
    w: u32,
    x: u32,
    y: u32,
}

#[derive(Deserialize)]
struct FieldConfig {
    defaults: Defaults,
}

#[derive(Deserialize)]
struct Defaults {
    unit: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    expr: String,
    legend_format: String,
}

/// As Prometheus answers a query over a time.
#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

pub fn run(place: &Place) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run(place)?;
    let dashboard: Dashboard = serde_json::from_slice(&std::fs::read(place.root.join("docs/dashboard.json"))?)?;
    let programs = servers::install(place)?;
    let work = std::env::temp_dir().join("kv-dashboard");
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    std::fs::create_dir_all(&work)?;
    let listener = free_address();
    let prometheus = Prometheus::start(&programs, &work, &listener)?;
    let progress = Progress::start(&format!("watching stores at work for {SECONDS} s"));
    let begun = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    load::run(place, &work, &listener)?;
    progress.done();
    let drawn = place.root.join("docs/dashboard.svg");
    let lines: Vec<Vec<Curve>> =
        dashboard.panels.iter().map(|panel| prometheus.lines(panel, begun)).collect::<Result<_>>()?;
    draw(&dashboard, &lines, &drawn)?;
    eprintln!("wrote {}", drawn.display());
    drop(prometheus);
    Ok(std::fs::remove_dir_all(&work)?)
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Stopped with its value.
struct Prometheus {
    _process: Running,
    promtool: PathBuf,
    url: String,
}

impl Prometheus {
    fn start(programs: &Path, work: &Path, watched: &str) -> Result<Self> {
        let (config, address) = (work.join("prometheus.yml"), free_address());
        let jobs = serde_json::json!([{ "job_name": "kv-store", "static_configs": [{ "targets": [watched] }] }]);
        let text = serde_json::json!({ "global": { "scrape_interval": "1s" }, "scrape_configs": jobs });
        std::fs::write(&config, text.to_string())?;
        let mut command = Command::new(programs.join("prometheus"));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", work.join("samples").display()));
        command.arg(format!("--web.listen-address={address}")).stdin(Stdio::null());
        let _process = start(command.stderr(std::fs::File::create(work.join("prometheus.log"))?));
        let started = Prometheus { _process, promtool: programs.join("promtool"), url: format!("http://{address}") };
        let begun = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            if begun.elapsed() > Duration::from_secs(30) {
                bail!("Prometheus does not start: see {}", work.join("prometheus.log").display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(started)
    }

    /// What a panel shows: its targets' answers over the whole time, in seconds since `begun`.
    fn lines(&self, panel: &Panel, begun: u64) -> Result<Vec<Curve>> {
        let mut lines = Vec::new();
        for target in &panel.targets {
            let mut query = Command::new(&self.promtool);
            query.args(["query", "range", "--format=json", "--step=1s"]);
            query.args([format!("--start={begun}"), format!("--end={}", begun + SECONDS)]);
            query.arg(&self.url).arg(target.expr.replace("$__rate_interval", RATE_INTERVAL));
            let answer: Vec<Series> = serde_json::from_str(&step::output(&mut query)?)?;
            for Series { metric, values } in answer {
                let name = legend(&target.legend_format, &metric);
                let points = values.into_iter().map(|(at, value)| Ok((at - begun as f64, value.parse()?)));
                let points: Vec<(f64, f64)> = points.collect::<Result<_>>()?;
                let points = points.into_iter().filter(|(_, value)| value.is_finite()).collect();
                lines.push(Curve { name, points });
            }
        }
        Ok(lines)
    }
}

/// `{{label}}` is the label's value. One that the series does not have is nothing.
fn legend(format: &str, labels: &BTreeMap<String, String>) -> String {
    let mut parts = format.split("{{");
    let mut name = parts.next().unwrap_or_default().to_owned();
    for (label, rest) in parts.filter_map(|part| part.split_once("}}")) {
        name += labels.get(label).map_or("", String::as_str);
        name += rest;
    }
    let mut words: Vec<&str> = name.split_whitespace().collect();
    // A tenant's URI begins with its backend, and there is little room.
    if let [backend, tenant, ..] = words.as_slice()
        && tenant.strip_prefix(backend).is_some_and(|rest| rest.starts_with("://"))
    {
        words.remove(0);
    }
    words.join(" ")
}

fn draw(dashboard: &Dashboard, lines: &[Vec<Curve>], path: &Path) -> Result<()> {
    let scale = |units: u32| (units * PANEL.0 / 12) as i32;
    let top = 30;
    let down = |units: u32| (top + units * PANEL.1 / 8) as i32;
    let height = dashboard.panels.iter().map(|panel| down(panel.grid_pos.y + panel.grid_pos.h)).max().unwrap_or(0);
    let root = SVGBackend::new(path, (PANEL.0 * 2, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = (FontFamily::SansSerif, 12);
    root.draw(&Text::new(dashboard.title.clone(), (12, 10), (FontFamily::SansSerif, 18).into_font()))?;
    for (panel, lines) in dashboard.panels.iter().zip(lines) {
        let GridPos { h, w, x, y } = panel.grid_pos;
        let area = root.clone().shrink((scale(x), down(y)), (scale(w) as u32, h * PANEL.1 / 8));
        let (drawn, named) = area.split_vertically(h * PANEL.1 / 8 - LEGEND);
        let (per_unit, unit) = unit(&panel.field_config.defaults.unit);
        let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1 * per_unit).fold(0.0_f64, f64::max);
        let top = if most > 0.0 { most * 1.1 } else { 1.0 };
        let mut chart = ChartBuilder::on(&drawn)
            .caption(&panel.title, (FontFamily::SansSerif, 15))
            .margin(8)
            // The last label stands over the edge.
            .margin_right(24)
            .x_label_area_size(22)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..SECONDS as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .label_style(font)
            .x_label_formatter(&|seconds| format!("{seconds} s"))
            .y_label_formatter(&|value| format!("{}{unit}", (value * 1e6).round() / 1e6))
            .y_labels(5)
            .draw()?;
        let mut names = 0;
        for (index, line) in lines.iter().enumerate() {
            let style = HSLColor(index as f64 * 0.382 % 1.0, 0.75, 0.4).stroke_width(2);
            let points = line.points.iter().map(|(at, value)| (*at, value * per_unit));
            chart.draw_series(LineSeries::new(points, style))?;
            // A line that is 0 all the time has no name.
            if line.points.iter().any(|(_, value)| *value > 0.0) {
                let (x, y) = (80 + names % 2 * (PANEL.0 as i32 - 80) / 2, names / 2 * LEGEND_ROW + 8);
                named.draw(&PathElement::new([(x, y), (x + 14, y)], style))?;
                named.draw(&Text::new(line.name.clone(), (x + 20, y - 6), font.into_font()))?;
                names += 1;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// Of a unit of Grafana: what its values are multiplied by, and what is written after them.
fn unit(unit: &str) -> (f64, &'static str) {
    match unit {
        "s" => (1e3, " ms"),
        "bytes" => (1.0 / f64::from(1 << 20), " MiB"),
        "Bps" => (1.0 / f64::from(1 << 20), " MiB/s"),
        "ops" => (1.0, "/s"),
        _ => (1.0, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_by_its_labels() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let format = "{{backend}} {{tenant}} p99";
        assert_eq!(legend(format, &labels(&[("backend", "redis")])), "redis p99");
        let tenant = labels(&[("backend", "local-fs"), ("tenant", "local-fs:///srv/chat")]);
        assert_eq!(legend(format, &tenant), "local-fs:///srv/chat p99");
        let other = labels(&[("backend", "redis"), ("tenant", "rediss://cache/3")]);
        assert_eq!(legend(format, &other), "redis rediss://cache/3 p99");
    }
}
