//! `doctor`: what an open of a URI would do, and what stands in its way.

use kv_store_wasm::{Depth, Diagnosis};

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::{describe, show};

/// Show what opening a URI would load, grant and limit, and what is wrong
///
/// The component checks the URI and its options, without network and without the right to change files. Servers that are granted by
/// name and port are resolved and connected to. "config valid" means that all of this succeeded, "opened" that the store was opened
/// too (--probe). The last line says what was not tried.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store doctor redis://cache.svc:6379/3\n  kv-store doctor --probe local-fs:///var/cache/kv\n\n\
    Exit codes: 0 no problems found; 1 an open would fail."
)]
pub struct DoctorArguments {
    #[command(flatten)]
    place: Place,
    /// Also open it, which logs in to its server, and makes the last part of a directory's path
    #[arg(long)]
    probe: bool,
    /// Connect to nothing
    #[arg(long, conflicts_with = "probe")]
    offline: bool,
    /// Also show what the component is, the limits and where code is compiled
    #[arg(short, long)]
    verbose: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &DoctorArguments) -> Outcome {
    let depth = match (arguments.offline, arguments.probe) {
        (true, _) => Depth::Offline,
        (false, false) => Depth::Connect,
        (false, true) => Depth::Probe,
    };
    let found = kv_store_wasm::doctor(&arguments.place.uri()?, depth);
    if arguments.json {
        show::json(&found);
    } else {
        print(&found, arguments.verbose);
    }
    if found.problems.iter().any(|problem| problem.fatal) { Err(Failure::Not(None)) } else { Ok(()) }
}

/// Problems first, then what an open is of, then how far it was found out.
fn print(found: &Diagnosis, verbose: bool) {
    show::problems(&found.problems);
    let or_none = |path: &Option<std::path::PathBuf>, none: &str| {
        path.as_ref().map_or_else(|| none.to_owned(), |path| path.display().to_string())
    };
    if !found.uri.is_empty() {
        println!("store     {}", found.uri);
    }
    if let Some(prefix) = &found.manifest_prefix {
        println!("manifests begin with {prefix}/");
    }
    println!("config    {}", or_none(&found.config, "none"));
    if let Some(tenant) = &found.tenant {
        println!("tenant    {tenant}");
    }
    let by = match (found.component_by_config, found.component_ships) {
        (true, _) => " (the config names it)",
        (false, true) => " (it ships with the library)",
        (false, false) => "",
    };
    println!("component {}{by}", or_none(&found.component, "none"));
    if found.backend != found.scheme && found.component.is_some() {
        println!("          {0}, which lists {1}://; its table is [backend.{0}]", found.backend, found.scheme);
    }
    if found.component.is_none() {
        found.searched.iter().for_each(|folder| println!("          not in {}", folder.display()));
    }
    println!("reaches");
    describe::grants(&found.reaches);
    if let Some(near) = &found.near {
        describe::near(near);
    }
    describe::descriptor(&found.descriptor);
    if verbose {
        print_rest(found);
    }
    // Of the others there is a problem.
    for server in &found.servers {
        if let Some(address) = &server.reached {
            println!("reached  {} at {address}", server.server);
        }
    }
    if found.config_valid {
        println!("config valid: the component accepts the URI and its options");
    }
    if let Some(label) = &found.label {
        println!("opened   {label}");
    }
    for lack in &found.lacks {
        println!("lacking  {}: {}", lack.name, lack.instead);
    }
    if !found.not_tried.is_empty() {
        println!("not tried: {}", found.not_tried.join("; "));
    } else if found.problems.is_empty() {
        println!("{}: no problems found", show::paint(show::Tone::Good, "ready"));
    }
}

fn print_rest(found: &Diagnosis) {
    if let Some(inspection) = &found.inspection {
        describe::inspection(inspection);
    }
    if let Some(pinned) = &found.pinned_sha256 {
        println!("pinned   {pinned}");
    }
    println!("limits");
    if let Ok(serde_json::Value::Object(limits)) = serde_json::to_value(&found.limits) {
        limits.iter().for_each(|(name, value)| println!("         {name} = {value}"));
    }
    let kept = if found.cached { "this component is in it" } else { "this component is not in it yet" };
    match &found.cache {
        Some(cache) => println!("compile cache {}: {kept}", cache.display()),
        None => println!("no compile cache: components are compiled at each start"),
    }
    match &found.compile_helper {
        Some(helper) => println!("compiler {}", helper.display()),
        None => println!("no compile helper"),
    }
}
