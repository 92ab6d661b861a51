//! `inspect`: what a component is, without running any of it.

use std::path::PathBuf;

use kv_store_wasm::Depth;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::{contract, describe, show};

/// Show a component's digest, imports and wishes, and which imports this host does not offer
///
/// The component is not run or compiled. With --uri, its wishes are shown beside what opening that URI would grant.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store inspect acme.wasm\n  kv-store inspect redis.wasm --uri redis://cache.svc:6379/3\n\n\
    Exit codes: 0 this host would load it; 1 it would not; 2 there is no such file, or it is no component."
)]
pub struct InspectArguments {
    /// The component's file
    component: PathBuf,
    /// The store that it would be opened for
    #[arg(long)]
    uri: Option<String>,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &InspectArguments) -> Outcome {
    let found = kv_store_wasm::inspect(&arguments.component).map_err(Failure::unable)?;
    let diagnosis = arguments.uri.as_deref().map(|uri| kv_store_wasm::doctor(uri, Depth::Offline));
    if arguments.json {
        let grants = diagnosis.as_ref().map(|diagnosis| &diagnosis.reaches);
        let served = json!({ "name": contract::NAME, "sha256": contract::sha256() });
        show::json(
            &json!({ "component": arguments.component, "inspection": found, "grants": grants, "host_contract": served }),
        );
    } else {
        println!("{}", arguments.component.display());
        describe::inspection(&found);
        if let Some(diagnosis) = &diagnosis {
            println!("grants   for {}", diagnosis.uri);
            describe::grants(&diagnosis.reaches);
        }
    }
    if found.problems.is_empty() { Ok(()) } else { Err(Failure::Not(None)) }
}
