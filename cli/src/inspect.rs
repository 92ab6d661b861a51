//! `inspect`: what a component is, without running any of it.

use std::path::PathBuf;

use kv_store_wasm::Inspection;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::show;

/// Look at a component: digest, imports, wishes, and what this host would not offer it
///
/// Nothing of it is run or compiled. With --uri, its wishes are shown beside what an open of that URI would grant.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store inspect acme.wasm\n  kv-store inspect redis.wasm --uri redis://cache.svc:6379/3\n\n\
    Exit codes: 0 this host would load it; 1 it would not; 2 there is no such file, or it is no component."
)]
pub struct Arguments {
    component: PathBuf,
    /// The store that it would be opened for
    #[arg(long)]
    uri: Option<String>,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let found = kv_store_wasm::inspect(&arguments.component).map_err(Failure::unable)?;
    let diagnosis = arguments.uri.as_deref().map(|uri| kv_store_wasm::doctor(uri, false));
    if arguments.json {
        let grants = diagnosis.as_ref().map(|diagnosis| &diagnosis.reaches);
        show::json(&json!({ "component": arguments.component, "inspection": found, "grants": grants }));
    } else {
        println!("{}", arguments.component.display());
        print(&found);
        if let Some(diagnosis) = &diagnosis {
            println!("grants   for {}", diagnosis.uri);
            crate::doctor::print_grants(&diagnosis.reaches);
        }
    }
    if found.problems.is_empty() { Ok(()) } else { Err(Failure::Not(None)) }
}

/// For people.
pub fn print(found: &Inspection) {
    println!("sha256   {}", found.sha256);
    println!(
        "size     {}, {} functions, the largest {}",
        show::bytes(found.bytes),
        found.functions,
        show::bytes(found.largest_function)
    );
    if found.stamp.is_empty() {
        println!("stamp    none: not built with the SDK");
    }
    for (key, value) in found.stamp.iter().filter(|(key, _)| key != "wish") {
        println!("{key:<8} {value}");
    }
    for import in &found.imports {
        match &import.not_offered {
            None => println!("imports  {}", import.name),
            Some(why) => println!("imports  {}, {why}", import.name),
        }
    }
    for export in &found.exports {
        println!("exports  {export}");
    }
    for (_, wish) in found.stamp.iter().filter(|(key, _)| key == "wish") {
        println!("wishes   {wish}");
    }
    for problem in &found.problems {
        println!("PROBLEM  {problem}");
    }
}
