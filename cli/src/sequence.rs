//! `sequence`: what a fused save of a paged KV cache left under a name.

use kv_store_wasm::paged::{self, Description, Layer};
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::{items, show};

/// Describe a sequence that an engine saved from its paged KV cache, and count its chunks that are there
///
/// That is what kv_store_kvx_save of the C API saves, or paged::Save in Rust. Chunks are looked up, not read.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store sequence --uri local-fs:///var/cache/kv --name conversation-7\n\n\
    Exit codes: 0 it is there with all its chunks; 1 there is none, it is damaged or something else, or chunks are missing; \
    2 the store does not open.")]
pub struct Arguments {
    #[arg(long)]
    uri: String,
    /// The manifest's name
    #[arg(long)]
    name: String,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let Arguments { uri, name, json } = arguments;
    let store = items::open(uri)?;
    let found = paged::describe(&store, name).map_err(|error| Failure::not(format!("{name:?} in {uri}: {error}")))?;
    let found = found.ok_or_else(|| Failure::not(format!("there is no manifest {name:?} in {uri}")))?;
    let present = found.chunks_present(&store).map_err(Failure::not)?;
    let model = String::from_utf8_lossy(&found.model);
    if *json {
        show::json(&json!({
            "uri": uri, "name": name, "model": model, "tokens": found.tokens, "block_size": found.block_size,
            "chunk_tokens": found.chunk_tokens, "chunks": found.chunk_keys.len(), "chunks_present": present,
            "bytes": found.bytes, "layers": found.layers.iter().map(layer_json).collect::<Vec<_>>(),
        }));
    } else {
        print(&found, &model, present);
    }
    if present == found.chunk_keys.len() { Ok(()) } else { Err(Failure::Not(None)) }
}

fn layer_json(layer: &Layer) -> serde_json::Value {
    json!({
        "heads": layer.heads, "head_dim": layer.head_dim, "stored": format!("{:?}", layer.stored),
        "cache": format!("{:?}", layer.cache), "layouts": layer.orders.map(|order| order.to_string()),
    })
}

fn print(found: &Description, model: &str, present: usize) {
    let chunks = found.chunk_keys.len();
    println!("model    {model:?}");
    println!("tokens   {}, of pages of {}", found.tokens, found.block_size);
    println!("layers   {}", found.layers.len());
    let mut first = 0;
    for same in found.layers.chunk_by(|one, next| one == next) {
        let last = first + same.len() - 1;
        if let Some(Layer { heads, head_dim, stored, cache, orders: [k, v] }) = same.first() {
            println!(
                "         {first} to {last}: {heads} heads of {head_dim} as {stored:?}, of {cache:?} pages, K {k}, V {v}"
            );
        }
        first = last + 1;
    }
    println!("chunks   {chunks} of {} tokens, {}", found.chunk_tokens, show::bytes(found.bytes));
    let missing = chunks - present;
    if missing == 0 {
        println!("all chunks are there");
    } else {
        println!("MISSING  {missing} of the chunks: a restore fails, the next save puts them again");
    }
}
