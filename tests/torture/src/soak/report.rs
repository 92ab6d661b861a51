//! What a soak came to, for a person and for a program.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};

use super::measure::{Flat, log_budget};
use super::writer::COUNTS;
use super::{BOUND, FILLS, Ground, OVER, SoakSetting, WRITERS};

/// What became of a store.
pub struct Row {
    name: &'static str,
    counts: Map<String, Value>,
    /// Of how many processes, what their logs have and may have, in bytes.
    log: (u64, u64),
    strikes: u64,
    restarts: u64,
    /// Of a bounded store in a directory, the most bytes of its files.
    most: Option<u64>,
    /// By process: memory in KiB, and descriptors.
    flat: Vec<(String, [Flat; 2])>,
}

pub struct Report {
    pub seconds: f64,
    pub rows: Vec<Row>,
    pub wrong: Vec<String>,
}

impl Row {
    /// Sum up, and judge.
    pub fn of(ground: Ground, seconds: f64, wrong: &mut Vec<String>, setting: &SoakSetting) -> Self {
        let Ground { kind, writers, seen, server, folder, most } = ground;
        let sum = |name: &&str| match *name {
            "longest_ms" => writers.iter().map(|writer| writer.count(name)).max().unwrap_or(0),
            name => writers.iter().map(|writer| writer.count(name)).sum(),
        };
        let counts: Map<String, Value> = COUNTS.iter().map(|name| ((*name).to_owned(), json!(sum(name)))).collect();
        for writer in &writers {
            wrong.extend(writer.wrong.iter().cloned());
        }
        let servers = u64::from(seen.server.load(Relaxed) != 0) * (1 + seen.restarts.load(Relaxed));
        let logged = writers.iter().map(super::RunningWriter::logged).sum::<u64>() + seen.said.load(Relaxed);
        let may = log_budget(WRITERS as u64 + servers, seconds, setting.log_bytes_per_hour);
        if logged > may {
            wrong.push(format!(
                "{}: {logged} bytes were logged in {seconds:.0} s, more than the budget of {may}",
                kind.name
            ));
        }
        let is_full = most >= BOUND * 8 / 10 || folder.is_none() && sum(&"gone") > 0;
        if !kind.keeps && setting.time >= FILLS && !is_full {
            wrong.push(format!("{}: the store did not come to its bound: this run shows nothing of it", kind.name));
        }
        let most = folder.filter(|_| !kind.keeps).map(|_| most);
        if most.is_some_and(|most| most * 100 > BOUND * OVER) {
            wrong.push(format!("{}: its files had {most:?} bytes, more than {OVER}% of its bound", kind.name));
        }
        if sum(&"saved") == 0 || sum(&"whole") == 0 {
            wrong.push(format!("{}: nothing was saved and read: this run shows nothing", kind.name));
        }
        let series = writers.iter().map(|writer| &writer.series).chain([&server]);
        let flat: Vec<(String, [Flat; 2])> =
            series.filter_map(|series| Some((series.name.clone(), series.flat(seconds)?))).collect();
        for (name, [memory, files]) in &flat {
            if !memory.holds() {
                let Flat { warm, may, last } = memory;
                wrong.push(format!(
                    "{name}: memory has grown from {warm} to {last} KiB, more than the {may} that it may take"
                ));
            }
            if !files.holds() {
                let Flat { warm, may, last } = files;
                wrong.push(format!(
                    "{name}: open files have grown from {warm} to {last}, more than the {may} that it may have"
                ));
            }
        }
        let (strikes, restarts) = (seen.strikes.load(Relaxed), seen.restarts.load(Relaxed));
        Row { name: kind.name, counts, log: (logged, may), strikes, restarts, most, flat }
    }

    fn json(&self) -> Value {
        let flat = |[memory, files]: &[Flat; 2]| {
            json!({
                "warm_kib": memory.warm, "last_kib": memory.last, "may_kib": memory.may,
                "warm_files": files.warm, "last_files": files.last, "may_files": files.may,
            })
        };
        let processes: Map<String, Value> = self.flat.iter().map(|(name, both)| (name.clone(), flat(both))).collect();
        json!({
            "store": self.name, "counts": self.counts, "strikes": self.strikes, "restarts": self.restarts,
            "most_bytes": self.most, "log_bytes": self.log.0, "log_budget_bytes": self.log.1, "processes": processes,
        })
    }

    fn line(&self) -> String {
        let counts: String = COUNTS.iter().map(|name| format!(" {:>9}", self.counts[*name].to_string())).collect();
        format!("{:<14}{counts} {:>8} {:>8} {:>10}", self.name, self.strikes, self.restarts, self.log.0)
    }
}

impl Report {
    pub fn show(&self, setting: &SoakSetting) -> ExitCode {
        if setting.json {
            let stores: Vec<Value> = self.rows.iter().map(Row::json).collect();
            let seconds = (self.seconds * 10.0).round() / 10.0;
            println!(
                "{}",
                json!({
                    "seed": setting.seed, "seconds": seconds, "bound_bytes": BOUND, "stores": stores, "violations": self.wrong,
                })
            );
        } else {
            self.show_text(setting);
        }
        self.wrong.iter().for_each(|wrong| eprintln!("VIOLATION {wrong}"));
        if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn show_text(&self, setting: &SoakSetting) {
        println!("seed {}, {:.1} minutes, bounds of {} MiB", setting.seed, self.seconds / 60.0, BOUND >> 20);
        let heads: String = COUNTS.iter().map(|name| format!(" {name:>9}")).collect();
        println!("{:<14}{heads} {:>8} {:>8} {:>10}", "store", "strikes", "restarts", "log bytes");
        self.rows.iter().for_each(|row| println!("{}", row.line()));
        for row in &self.rows {
            if let Some(most) = row.most {
                println!("{}: its files had at most {:.1}% of the bound", row.name, most as f64 * 100.0 / BOUND as f64);
            }
        }
        println!("{:<24} {:>10} {:>10} {:>12} {:>12}", "process", "warm KiB", "last KiB", "warm files", "last files");
        for (name, [memory, files]) in self.rows.iter().flat_map(|row| &row.flat) {
            println!("{name:<24} {:>10} {:>10} {:>12} {:>12}", memory.warm, memory.last, files.warm, files.last);
        }
        println!("{} violations", self.wrong.len());
    }
}
