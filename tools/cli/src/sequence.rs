//! `sequence`: what a fused save of a paged KV cache left under a name.

use kv_store_wasm::paged::{self, Checked, Description, Layer};
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_as_it_lies};
use crate::show;

/// Describe a sequence that an engine saved from its paged KV cache, and read its chunks
///
/// Such sequences are saved by kv_store_kvx.h of the C API, or paged::Save in Rust. Each chunk is read and compared with what
/// was saved. A damaged chunk stays; what to do about it is said.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store sequence local-fs:///var/cache/kv --name conversation-7\n\n\
    Exit codes: 0 it is there with all its chunks; 1 there is none, it is damaged or something else, or chunks are missing or \
    damaged; 2 the store does not open.")]
pub struct SequenceArguments {
    #[command(flatten)]
    place: Place,
    /// The manifest's name
    #[arg(long)]
    name: String,
    /// Only look up which chunks are there, and read none
    #[arg(long)]
    quick: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &SequenceArguments) -> Outcome {
    let SequenceArguments { place, name, quick, json } = arguments;
    let uri = &place.uri()?;
    let store = open_as_it_lies(uri)?;
    let failed = Failure::of("sequence", uri);
    let found = paged::describe(&store, name).map_err(|error| failed(format!("{name:?}: {error}")))?;
    let found =
        found.ok_or_else(|| failed(format!("there is no manifest {name:?}; kv-store ls lists what there is")))?;
    let chunks = found.chunk_keys.len();
    let (checked, missing) = if *quick {
        (None, chunks - found.chunks_present(&store).map_err(Failure::of("sequence", store.uri()))?)
    } else {
        let checked = found.check_chunks(&store).map_err(Failure::of("sequence", store.uri()))?;
        let missing = checked.missing.len();
        (Some(checked), missing)
    };
    let checked_or_not = checked.clone().unwrap_or_default();
    let wrong = checked_or_not.damaged.len() + checked_or_not.foreign.len();
    let model = String::from_utf8_lossy(&found.model);
    if *json {
        show::json(&json!({
            "uri": uri, "name": name, "model": model, "tokens": found.tokens, "block_size": found.block_size,
            "chunk_tokens": found.chunk_tokens, "chunks": chunks, "chunks_present": chunks - missing,
            "chunks_sound": checked.map(|checked| checked.sound),
            "chunks_damaged": checked_or_not.damaged.iter().map(|(chunk, _)| chunk).collect::<Vec<_>>(),
            "chunks_of_others": checked_or_not.foreign,
            "bytes": found.bytes, "layers": found.layers.iter().map(layer_json).collect::<Vec<_>>(),
        }));
    } else {
        print(&found, &model);
        print_chunks(missing, checked.as_ref());
    }
    if missing + wrong == 0 { Ok(()) } else { Err(Failure::Not(None)) }
}

fn layer_json(layer: &Layer) -> serde_json::Value {
    json!({
        "heads": layer.heads, "head_dim": layer.head_dim, "stored": format!("{:?}", layer.stored),
        "cache": format!("{:?}", layer.cache), "layouts": layer.orders.map(|order| order.to_string()),
    })
}

fn print(found: &Description, model: &str) {
    let chunks = found.chunk_keys.len();
    println!("model    {model:?}");
    println!("tokens   {}, of pages of {}", found.tokens, found.block_size);
    println!("layers   {}", found.layers.len());
    let mut first = 0;
    for same in found.layers.chunk_by(|one, next| one == next) {
        let last = first + same.len() - 1;
        if let Some(Layer { heads, head_dim, stored, cache, orders: [k, v], .. }) = same.first() {
            println!(
                "         {first} to {last}: {heads} heads of {head_dim} as {stored:?}, of {cache:?} pages, K {k}, V {v}"
            );
        }
        first = last + 1;
    }
    println!("chunks   {chunks} of {} tokens, {}", found.chunk_tokens, show::bytes(found.bytes));
}

/// What was found of the chunks; `checked`: they were read.
fn print_chunks(missing: usize, checked: Option<&Checked>) {
    if missing > 0 {
        println!("MISSING  {missing} of the chunks: a restore fails, the next save puts them again");
    }
    let Some(Checked { damaged, foreign, .. }) = checked else {
        println!("chunks were looked up, and not read");
        return;
    };
    for (chunk, stays) in damaged {
        match stays {
            None => println!("DAMAGED  chunk {chunk}: removed, the next save puts it again"),
            Some(why) => {
                println!("DAMAGED  chunk {chunk}: not removed ({why}); save with KV_STORE_KVX_VERIFY")
            }
        }
    }
    for chunk in foreign {
        println!("DAMAGED  chunk {chunk}: another chunk lies under its key; the sequence cannot be restored");
    }
    if missing + damaged.len() + foreign.len() == 0 {
        println!("all chunks are there, as they were saved");
    }
}
