//! `ls`: the manifests of a store, or its chunks.

use std::io::Write;

use serde_json::json;

use super::moment;
use crate::failure::{Failure, Outcome};
use crate::items::open;
use crate::show;

/// List the manifests of a store, or its chunks
///
/// Each with its size, when it was stored and when it was last used, as far as the backend knows. What is stored or removed
/// meanwhile may be listed or not.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store ls local-fs:///var/cache/kv\n  kv-store ls redis://cache.svc:6379/3 --chunks --json\n\n\
    Exit codes: 0 listed; 2 the store does not open, or its backend lists nothing."
)]
pub struct Arguments {
    /// The store
    uri: String,
    /// The chunks, by their hashes in hex
    #[arg(long)]
    chunks: bool,
    /// One page of so many entries at most; what leads to the next one is said at its end
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4096))]
    page: Option<u32>,
    /// Go on after a page: what was said at its end
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// A JSON object on standard output for each entry
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let store = open(&arguments.uri)?;
    let limit = arguments.page.map_or(super::PAGE, |page| page as usize);
    let mut after = arguments.after.clone();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    loop {
        let next = if arguments.chunks {
            let page = store.list_chunks(after.as_deref(), limit).map_err(Failure::unable_of("list", store.uri()))?;
            for entry in page.entries {
                let hash = show::hex(&entry.hash);
                let line = match arguments.json {
                    true => json!({ "hash": hash, "bytes": entry.bytes, "stored": entry.stored, "used": entry.used })
                        .to_string(),
                    false => row(entry.bytes, entry.stored, entry.used, &hash),
                };
                written(writeln!(out, "{line}"))?;
            }
            page.next
        } else {
            let page =
                store.list_manifests(after.as_deref(), limit).map_err(Failure::unable_of("list", store.uri()))?;
            for entry in page.entries {
                let line = match arguments.json {
                    true => {
                        json!({ "name": entry.name, "bytes": entry.bytes, "stored": entry.stored, "used": entry.used })
                            .to_string()
                    }
                    false => row(entry.bytes, entry.stored, entry.used, &format!("{:?}", entry.name)),
                };
                written(writeln!(out, "{line}"))?;
            }
            page.next
        };
        written(out.flush())?;
        match next {
            Some(next) if arguments.page.is_some() => {
                eprintln!("kv-store: there may be more: --after {next:?}");
                return Ok(());
            }
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

fn row(bytes: Option<u64>, stored: Option<u64>, used: Option<u64>, name: &str) -> String {
    let bytes = bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    format!("{bytes:>12}  {:19}  {:19}  {name}", moment(stored), moment(used))
}

fn written(outcome: std::io::Result<()>) -> Outcome {
    outcome.map_err(|error| Failure::unable(format!("standard output: {error}")))
}
