//! `du`: how much a store holds.

use kv_store_wasm::Store;
use serde_json::json;

use super::{each_page_of_chunks, each_page_of_manifests};
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_existing};
use crate::show;

/// Print how much a store holds
///
/// If the backend does not know it, the store is listed.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store du local-fs:///var/cache/kv\n\n\
    Exit codes: 0 said; 2 the store does not open, or its backend lists nothing.")]
pub struct DuArguments {
    #[command(flatten)]
    place: Place,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What a store holds.
pub struct Held {
    pub bytes: u64,
    pub chunks: u64,
    pub manifests: u64,
    pub capacity: Option<u64>,
}

pub fn held(store: &Store) -> Outcome<Held> {
    let usage = store.usage().map_err(Failure::unable_of("du", store.uri()))?;
    if let (Some(bytes), Some(chunks), Some(manifests)) = (usage.bytes, usage.chunks, usage.manifests) {
        let capacity = usage.capacity;
        return Ok(Held { bytes, chunks, manifests, capacity });
    }
    let mut held = Held { bytes: 0, chunks: 0, manifests: 0, capacity: usage.capacity };
    each_page_of_chunks(store, &mut |entries| {
        held.chunks += entries.len() as u64;
        held.bytes += entries.iter().filter_map(|entry| entry.bytes).sum::<u64>();
        Ok(())
    })?;
    each_page_of_manifests(store, &mut |entries| {
        held.manifests += entries.len() as u64;
        held.bytes += entries.iter().filter_map(|entry| entry.bytes).sum::<u64>();
        Ok(())
    })?;
    Ok(held)
}

pub fn run(arguments: &DuArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let store = open_existing(uri)?;
    let Held { bytes, chunks, manifests, capacity } = held(&store)?;
    if arguments.json {
        show::json(
            &json!({ "uri": uri, "bytes": bytes, "chunks": chunks, "manifests": manifests, "capacity": capacity }),
        );
        return Ok(());
    }
    let of = capacity.map(|capacity| format!(" of {}", show::bytes(capacity))).unwrap_or_default();
    let (chunks, manifests) = (show::count(chunks, "chunk"), show::count(manifests, "manifest"));
    println!("{}{of} in {chunks} and {manifests}", show::bytes(bytes));
    Ok(())
}
