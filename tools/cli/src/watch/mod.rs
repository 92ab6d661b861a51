//! `watch`: the counters of a running engine, again and again.

mod row;
mod samples;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use console::{Term, truncate_str};

use crate::failure::{Failure, Outcome};
use crate::show;
use row::Row;
use samples::Samples;

/// Watch the counters of a running engine
///
/// They are those of the process whose config has `metrics` or `metrics_file`. On a terminal a page shows for each backend and tenant
/// what was found and in which tier, why the rest was not, failed calls, bytes, latencies, what is held, and the circuit breaker;
/// elsewhere it is a line for each.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store watch 127.0.0.1:9464\n  kv-store watch unix:/run/kv-metrics redis://cache.svc:6379/3\n\n\
    Exit codes: 0 watched; 2 the counters can not be read."
)]
pub struct WatchArguments {
    /// The engine's counters: HOST:PORT or unix:/path, as in `metrics` of its config, or the path of its `metrics_file`
    metrics: String,
    /// Only the backend of this URI
    uri: Option<String>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Read the counters this many times, then exit
    #[arg(long, value_name = "NUMBER")]
    times: Option<u64>,
    /// A JSON object on standard output for each reading, backend and tenant
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &WatchArguments) -> Outcome {
    let wanted = arguments.uri.as_deref().map(|uri| {
        let uri = uri.strip_prefix("wasm://").unwrap_or(uri);
        uri.split("://").next().unwrap_or_default().to_owned()
    });
    let as_page = std::io::stdout().is_terminal() && !arguments.json;
    let mut before: Option<(Samples, Instant)> = None;
    for look in 0.. {
        if arguments.times.is_some_and(|times| look >= times) {
            break;
        }
        let text = samples::fetch(&arguments.metrics).map_err(|error| {
            let metrics = &arguments.metrics;
            Failure::unable(format!(
                "watch {metrics}: {error}; does the engine run, with `metrics` or `metrics_file` in its config?"
            ))
        })?;
        let now = (samples::parse(&text), Instant::now());
        let empty = Samples::new();
        let former = before.as_ref().map_or(&empty, |(samples, _)| samples);
        let seconds = before.as_ref().map(|(_, at)| now.1.duration_since(*at).as_secs_f64());
        let own = |backend: &str| wanted.as_ref().is_none_or(|wanted| wanted == backend);
        let rows: Vec<Row> = samples::series(&now.0)
            .into_iter()
            .filter(|(backend, _)| own(backend))
            .map(|(backend, tenant)| Row::new(&now.0, former, &backend, tenant.as_deref(), seconds))
            .collect();
        match as_page {
            true => page(arguments, before.is_none(), &rows),
            false if arguments.json => rows.iter().for_each(|row| show::json(&row.json())),
            false => rows.iter().for_each(|row| println!("{}", row.line())),
        }
        before = Some(now);
        if arguments.times.is_none_or(|times| look + 1 < times) {
            std::thread::sleep(Duration::from_secs(arguments.every));
        }
    }
    Ok(())
}

/// Draw the page over the former one. What does not fit the terminal is named at its end.
fn page(arguments: &WatchArguments, is_first: bool, rows: &[Row]) {
    let terminal = Term::stdout();
    let (height, width) = terminal.size();
    let since = if is_first { "since the engine began".to_owned() } else { format!("the last {} s", arguments.every) };
    let mut lines = vec![format!("{}: {since}. Ctrl-C ends.", arguments.metrics), String::new()];
    if rows.is_empty() {
        lines.push("no store was opened yet".to_owned());
    }
    lines.extend(rows.iter().flat_map(Row::lines));
    let most = usize::from(height).saturating_sub(1).max(2);
    if lines.len() > most {
        let left = lines.len() - (most - 1);
        lines.truncate(most - 1);
        lines.push(format!(
            "... {} more: a larger terminal, or a URI behind the address",
            show::count(left as u64, "line")
        ));
    }
    let _ = terminal.clear_screen();
    for line in lines {
        let _ = terminal.write_line(&truncate_str(&line, usize::from(width), "..."));
    }
}
