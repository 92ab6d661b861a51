//! `get`, `put`, `rm`: single chunks and manifests.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use kv_store_wasm::{Put, Store};
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::show;

/// A chunk or a manifest.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// A manifest, by its name
    #[arg(long)]
    name: Option<String>,
    /// A chunk, by its hash in hex: 1 to 64 bytes
    #[arg(long, value_name = "HEX")]
    hash: Option<String>,
}

/// Fetch a manifest or a chunk
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store get --uri local-fs:///var/cache/kv --name talk -o talk.manifest\n\n\
    Exit codes: 0 fetched; 1 there is none, or it is corrupt; 2 the store does not open.")]
pub struct GetArguments {
    /// The store
    #[arg(long)]
    uri: String,
    #[command(flatten)]
    which: Which,
    /// A file for the bytes; standard output without it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON object on standard output; needs --output
    #[arg(long, requires = "output")]
    pub json: bool,
}

/// Store a manifest or a chunk
///
/// With --chunk the key is the XXH3-64 of the content, which is printed.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store put --uri local-fs:///var/cache/kv --name talk talk.manifest\n  \
    kv-store put --uri local-fs:///var/cache/kv --chunk state.bin\n\n\
    Exit codes: 0 stored; 1 not stored; 2 the store does not open, or the file can not be read.")]
pub struct PutArguments {
    /// The store
    #[arg(long)]
    uri: String,
    #[command(flatten)]
    which: PutWhich,
    /// The bytes; `-` is standard input
    file: PathBuf,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct PutWhich {
    /// Store it as the manifest of this name
    #[arg(long)]
    name: Option<String>,
    /// Store it as the chunk of this hash, in hex: 1 to 64 bytes
    #[arg(long, value_name = "HEX")]
    hash: Option<String>,
    /// Store it as a chunk under the hash of its content
    #[arg(long)]
    chunk: bool,
}

/// Remove a manifest, or a chunk
///
/// Removing what does not exist succeeds. The chunks of a removed manifest stay, because other manifests may name them. If a
/// manifest names a removed chunk, its readers find the chunk missing.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store rm --uri local-fs:///var/cache/kv --name talk\n\n\
    Exit codes: 0 removed; 1 not removed; 2 the store does not open.")]
pub struct RmArguments {
    /// The store
    #[arg(long)]
    uri: String,
    #[command(flatten)]
    which: RmWhich,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct RmWhich {
    /// A manifest, by its name
    #[arg(long)]
    name: Option<String>,
    /// A chunk, by its hash in hex: 1 to 64 bytes
    #[arg(long, value_name = "HEX")]
    chunk: Option<String>,
}

pub fn open(uri: &str) -> Outcome<Store> {
    Store::open(uri).map_err(Failure::unable)
}

pub fn get(arguments: &GetArguments) -> Outcome {
    let store = open(&arguments.uri)?;
    let (found, what) = match &arguments.which {
        Which { name: Some(name), .. } => (store.get_manifest(name), format!("manifest {name:?}")),
        which => {
            let hash = which.hash()?;
            (store.get_chunk(&hash), format!("chunk {}", show::hex(&hash)))
        }
    };
    let bytes = found.map_err(Failure::of("get", &arguments.uri))?;
    let bytes = bytes.ok_or_else(|| {
        Failure::of("get", &arguments.uri)(format!("there is no {what}; kv-store ls lists what there is"))
    })?;
    let Some(output) = &arguments.output else {
        return std::io::stdout()
            .write_all(&bytes)
            .map_err(|error| Failure::unable(format!("standard output: {error}")));
    };
    let written = show::Unfinished::new(output).and_then(|mut file| file.write(&bytes).and_then(|()| file.finish()));
    written.map_err(|error| Failure::unable(format!("{}: {error}", output.display())))?;
    if arguments.json {
        show::json(&json!({ "uri": arguments.uri, "bytes": bytes.len(), "output": output }));
    }
    Ok(())
}

pub fn put(arguments: &PutArguments) -> Outcome {
    let bytes = read(&arguments.file)?;
    let store = open(&arguments.uri)?;
    if let Some(name) = &arguments.which.name {
        store.put_manifest(name, &bytes).map_err(Failure::of("put", &arguments.uri))?;
        if arguments.json {
            show::json(&json!({ "uri": arguments.uri, "name": name, "bytes": bytes.len() }));
        }
        return Ok(());
    }
    let hash = match &arguments.which.hash {
        Some(text) => show::from_hex(text).map_err(Failure::unable)?,
        None => xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes().to_vec(),
    };
    let put = store.put_chunk(&hash, &bytes).map_err(Failure::of("put", &arguments.uri))?;
    store.flush().map_err(Failure::of("put", &arguments.uri))?;
    let hash = show::hex(&hash);
    if arguments.json {
        let existed = put == Put::Existed;
        show::json(&json!({ "uri": arguments.uri, "hash": hash, "bytes": bytes.len(), "existed": existed }));
    } else {
        println!("{hash}");
    }
    Ok(())
}

pub fn rm(arguments: &RmArguments) -> Outcome {
    let uri = &arguments.uri;
    if let Some(name) = &arguments.which.name {
        open(uri)?.delete_manifest(name).map_err(Failure::of("rm", uri))?;
        if arguments.json {
            show::json(&json!({ "uri": uri, "name": name }));
        }
        return Ok(());
    }
    let hash = show::from_hex(arguments.which.chunk.as_deref().unwrap_or_default()).map_err(Failure::unable)?;
    let outcomes = open(uri)?.delete_many(&[&hash]).map_err(Failure::of("rm", uri))?;
    outcomes.into_iter().collect::<Result<(), _>>().map_err(Failure::of("rm", uri))?;
    if arguments.json {
        show::json(&json!({ "uri": uri, "hash": show::hex(&hash) }));
    }
    Ok(())
}

impl Which {
    fn hash(&self) -> Outcome<Vec<u8>> {
        show::from_hex(self.hash.as_deref().unwrap_or_default()).map_err(Failure::unable)
    }
}

fn read(file: &Path) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::unable(format!("cannot read {}: {error}", file.display())))?;
    Ok(bytes)
}
