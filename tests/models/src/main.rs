//! Runs every model, and prints what each has found: a table, or with `--json` an object a line. `--steps` adds the sequences, and
//! `--only MODEL` leaves out the others.

use std::process::ExitCode;

use kv_store_models::check::{Case, Outcome};

fn main() -> ExitCode {
    let (mut json, mut steps, mut only) = (false, false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--steps" => steps = true,
            "--only" => only = arguments.next(),
            unknown => return refuse(unknown, "known are --json, --steps and --only MODEL"),
        }
    }
    let cases: Vec<Case> = kv_store_models::cases()
        .into_iter()
        .filter(|case| only.as_ref().is_none_or(|only| only == case.model))
        .collect();
    if cases.is_empty() {
        return refuse(&only.unwrap_or_default(), "there is no such model");
    }
    if !json {
        let [model, variant, changes, states, depth] = ["model", "variant", "changes", "states", "depth"];
        println!("{model:<9} {variant:<34} {changes:<28} {states:>9} {depth:>5} {:>6}  found", "s");
    }
    let mut unexpected = 0;
    for case in cases {
        let outcome = case.run();
        unexpected += usize::from(!outcome.as_expected);
        match json {
            true => println!("{}", serde_json::to_string(&outcome).expect("numbers and texts are JSON")),
            false => print(&outcome, steps),
        }
    }
    if unexpected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(what: &str, why: &str) -> ExitCode {
    eprintln!("{what}: {why}");
    ExitCode::from(2)
}

fn print(outcome: &Outcome, with_steps: bool) {
    let Outcome { model, variant, scenario, states, depth, seconds, breaks, .. } = outcome;
    let found = breaks.map_or("holds".to_owned(), |invariant| format!("broken: {invariant}"));
    let mark = if outcome.as_expected { "" } else { "UNEXPECTED: " };
    println!("{model:<9} {variant:<34} {scenario:<28} {states:>9} {depth:>5} {seconds:>6.1}  {mark}{found}");
    if breaks.is_none() {
        outcome.impossible.iter().for_each(|impossible| println!("          never: {impossible}"));
    }
    if with_steps {
        outcome.steps.iter().for_each(|step| println!("          {step}"));
    }
}
