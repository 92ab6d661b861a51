//! `cargo xtask compare`: the same histories for every store of KV state, each as its engine opens it, and the table of docs/proof-compare.md.
//! `bindings/python/engines/compare.py` makes the histories.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::engines::{self, Engines};
use crate::place::Place;
use crate::python::{self, Environment};
use crate::{demo, dist, llama, packages, table};

const PAGE: &str = "docs/proof-compare.md";
const TABLE: [&str; 2] = ["<!-- table: cargo xtask compare -->\n", "<!-- end -->\n"];
const HEAD: &str = "| history | store | acknowledged | asked for | right | wrong | acknowledged and not answered | longest call, s | what the engine saw |\n\
                    | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
/// Shorter calls say how busy the machine was, and little of the store.
const LONG: f64 = 4.0;

#[derive(clap::Args)]
pub struct CompareOptions {
    /// Fewer kills and states of the disk; docs/proof-compare.md stays as it is
    #[arg(long)]
    quick: bool,
    /// Only the histories and stores whose names contain all of these texts; docs/proof-compare.md stays as it is
    parts: Vec<String>,
}

/// As compare.py prints it.
#[derive(Deserialize)]
struct HistoryRow {
    history: String,
    store: String,
    acknowledged: u64,
    asked: u64,
    right: u64,
    wrong: u64,
    lost: u64,
    longest: f64,
    saw: Vec<String>,
    /// What was compared, with its version.
    version: String,
    date: String,
}

pub fn run(place: &Place, options: &CompareOptions) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run_for_long(place)?;
    let engines = Engines::prepare(place, &engines::wheel(place)?)?;
    let mut compare = engines.python(place)?;
    let client = demo::prepare(place)?;
    let of_llama = Environment::kept(place, "llama-cpp-python", python::LLAMA_NEEDS)?.python();
    let (package, library) = client.python_package();
    compare.arg("compare.py").args(options.quick.then_some("--quick")).args(&options.parts);
    compare
        .env("KV_COMPARE_VLLM", engines::VLLM)
        .env("KV_COMPARE_TORTURE", place.target.join("release/kv-store-torture"));
    compare.env("KV_COMPARE_LLAMA_PYTHON", of_llama.get_program()).env("KV_COMPARE_LLAMA_PACKAGE", package);
    compare.env("KV_COMPARE_LLAMA_MODEL", client.model(&llama::SMALL)?).env("LLAMA_CPP_LIB_PATH", library);
    let mut compare = compare.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut rows: Vec<HistoryRow> = Vec::new();
    for line in BufReader::new(compare.stdout.take().context("it has an output")?).lines() {
        let row: HistoryRow = serde_json::from_str(&line?)?;
        eprint!("{}", row.line());
        rows.push(row);
    }
    ensure!(compare.wait()?.success(), "compare.py failed");
    let text = written(&rows);
    println!("{text}");
    if options.quick || !options.parts.is_empty() {
        return Ok(());
    }
    let path = place.root.join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    std::fs::write(&path, with_table(&page, &text)?)?;
    println!("written to {PAGE}");
    Ok(())
}

impl HistoryRow {
    fn line(&self) -> String {
        let HistoryRow { history, store, acknowledged, asked, right, wrong, lost, longest, .. } = self;
        let saw: BTreeSet<String> = self.saw.iter().map(|saw| cell(saw)).collect();
        let saw: Vec<String> = saw.into_iter().collect();
        let wrong = if *wrong > 0 { format!("**{wrong}**") } else { "0".to_owned() };
        let saw = saw.join("; ");
        let longest = if *longest < LONG { format!("< {LONG:.0}") } else { format!("{longest:.1}") };
        format!("| {history} | {store} | {acknowledged} | {asked} | {right} | {wrong} | {lost} | {longest} | {saw} |\n")
    }

    /// In a few words.
    fn outcome(&self) -> String {
        let HistoryRow { acknowledged, asked, wrong, lost, longest, .. } = self;
        let mut words = Vec::new();
        if *acknowledged == 0 {
            words.push("not possible".to_owned());
        }
        if *wrong > 0 {
            words.push(format!("**{wrong} of {asked} wrong**"));
        }
        if *lost > 0 {
            words.push(format!("{lost} of {acknowledged} not answered"));
        }
        if *longest >= LONG {
            words.push(format!("a call took {longest:.0} s"));
        }
        if words.is_empty() { "held".to_owned() } else { words.join(", ") }
    }
}

/// A text as a cell of a table: no folder of this run, no bar, nothing that a page would take for more than text.
fn cell(text: &str) -> String {
    let words = text.split(' ').map(|word| if word.contains('/') { "..." } else { word });
    words.collect::<Vec<_>>().join(" ").replace(['|', '<', '>', '*', '`', '_', '['], " ")
}

/// What was compared, what came of it in a few words, and each row.
fn written(rows: &[HistoryRow]) -> String {
    let distinct = |of: fn(&HistoryRow) -> &str| {
        let mut texts: Vec<&str> = Vec::new();
        for text in rows.iter().map(of).filter(|text| !text.is_empty()) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts
    };
    let (dates, versions) = (distinct(|row| &row.date), distinct(|row| &row.version));
    let (histories, stores) = (distinct(|row| &row.history), distinct(|row| &row.store));
    let mut text = format!("Made on {}, of {}.\n\n| store |", dates.join(" and "), versions.join(", "));
    text.extend(histories.iter().map(|history| format!(" {history} |")));
    text += "\n| --- |";
    text += &" --- |".repeat(histories.len());
    for store in stores {
        text += &format!("\n| {store} |");
        for history in &histories {
            let row = rows.iter().find(|row| row.store == store && row.history == *history);
            text += &format!(" {} |", row.map_or("–".to_owned(), HistoryRow::outcome));
        }
    }
    text += &format!("\n\n{HEAD}");
    text.extend(rows.iter().map(HistoryRow::line));
    text
}

fn with_table(page: &str, text: &str) -> Result<String> {
    table::replaced(PAGE, page, TABLE, |_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_and_the_table_takes_the_place_of_the_former() {
        let row = r#"{"store": "s", "history": "kill", "acknowledged": 2, "asked": 3, "right": 1, "wrong": 1, "lost": 0, "longest": 0.25,
            "saw": ["get: OSError: /tmp/x/store is | gone", "put: later"], "version": "S 1.0", "date": "2026-11-28"}"#;
        let row: HistoryRow = serde_json::from_str(row).unwrap();
        let line = "| kill | s | 2 | 3 | 1 | **1** | 0 | < 4 | get: OSError: ... is   gone; put: later |\n";
        assert_eq!(row.line(), line);
        let text = written(&[row]);
        let summary = "| store | kill |\n| --- | --- |\n| s | **1 of 3 wrong** |";
        assert_eq!(text, format!("Made on 2026-11-28, of S 1.0.\n\n{summary}\n\n{HEAD}{line}"));
        let page = format!("before\n{}old\n{}after\n", TABLE[0], TABLE[1]);
        let page = with_table(&page, &text).unwrap();
        assert_eq!(page, format!("before\n{}{text}{}after\n", TABLE[0], TABLE[1]));
        assert!(with_table("no table\n", &text).is_err());
    }

    #[test]
    fn what_came_of_a_history_is_said_in_a_few_words() {
        let row = |acknowledged, wrong, lost, longest| HistoryRow {
            history: "kill".to_owned(),
            store: "s".to_owned(),
            acknowledged,
            asked: 16,
            right: 0,
            wrong,
            lost,
            longest,
            saw: Vec::new(),
            version: String::new(),
            date: String::new(),
        };
        assert_eq!(row(16, 0, 0, 3.9).outcome(), "held");
        assert_eq!(row(16, 2, 3, 30.0).outcome(), "**2 of 16 wrong**, 3 of 16 not answered, a call took 30 s");
        assert_eq!(row(0, 0, 0, 0.0).outcome(), "not possible");
    }
}
