//! `cargo xtask compare`: the same histories for every store of KV state, each as its engine opens it, and the table of docs/proof.md.
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

const PAGE: &str = "docs/proof.md";
const TABLE: [&str; 2] = ["<!-- table: cargo xtask compare -->\n", "<!-- end -->\n"];
const HEAD: &str = "| history | store | acknowledged | asked for | right | wrong | acknowledged and not answered | longest call, s | what the engine saw |\n\
                    | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";

#[derive(clap::Args)]
pub struct CompareOptions {
    /// Fewer kills and states of the disk; docs/proof.md stays as it is
    #[arg(long)]
    quick: bool,
    /// Only the histories and stores whose names contain all of these texts; docs/proof.md stays as it is
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
    compare.env("KV_COMPARE_TORTURE", place.target.join("release/kv-store-torture"));
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
    let table: String = rows.iter().map(HistoryRow::line).collect();
    println!("{HEAD}{table}");
    if options.quick || !options.parts.is_empty() {
        return Ok(());
    }
    let path = place.root.join(PAGE);
    let page = std::fs::read_to_string(&path)?;
    std::fs::write(&path, with_table(&page, &table)?)?;
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
        format!(
            "| {history} | {store} | {acknowledged} | {asked} | {right} | {wrong} | {lost} | {longest:.1} | {saw} |\n"
        )
    }
}

/// A text as a cell of a table: no folder of this run, no bar, nothing that a page would take for more than text.
fn cell(text: &str) -> String {
    let words = text.split(' ').map(|word| if word.contains('/') { "..." } else { word });
    words.collect::<Vec<_>>().join(" ").replace(['|', '<', '>', '*', '`', '_', '['], " ")
}

fn with_table(page: &str, rows: &str) -> Result<String> {
    table::replaced(PAGE, page, TABLE, |_| format!("{HEAD}{rows}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_and_the_table_takes_the_place_of_the_former() {
        let row = r#"{"store": "s", "history": "kill", "acknowledged": 2, "asked": 3, "right": 1, "wrong": 1, "lost": 0, "longest": 0.25,
            "saw": ["get: OSError: /tmp/x/store is | gone", "put: later"]}"#;
        let row: HistoryRow = serde_json::from_str(row).unwrap();
        let line = "| kill | s | 2 | 3 | 1 | **1** | 0 | 0.2 | get: OSError: ... is   gone; put: later |\n";
        assert_eq!(row.line(), line);
        let page = format!("before\n{}old\n{}after\n", TABLE[0], TABLE[1]);
        let page = with_table(&page, line).unwrap();
        assert_eq!(page, format!("before\n{}{HEAD}{line}{}after\n", TABLE[0], TABLE[1]));
        assert!(with_table("no table\n", line).is_err());
    }
}
