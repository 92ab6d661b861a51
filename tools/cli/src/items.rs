//! `get`, `put`, `rm`: single chunks and manifests.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use kv_store_wasm::{BatchOptions, ErrorKind, Presence, Put};
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::place::{Place, PlaceAndFile, open, open_as_it_lies, tell_former};
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
    chunk: Option<String>,
    /// The former spelling, which goes with 0.4
    #[arg(long, value_name = "HEX", hide = true)]
    hash: Option<String>,
}

/// Fetch a manifest or a chunk
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store get local-fs:///var/cache/kv --name talk -o talk.manifest\n\n\
    Exit codes: 0 fetched; 1 there is none, or it is corrupt; 2 the store does not open.")]
pub struct GetArguments {
    #[command(flatten)]
    place: Place,
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
/// With --chunk the key is the XXH3-64 of the content, or the hash that it gives; it is printed.
#[derive(clap::Args)]
#[command(
    override_usage = "kv-store put [OPTIONS] [URI] <FILE> <--name <NAME>|--chunk[=<HEX>]>",
    after_help = "Example:\n  kv-store put local-fs:///var/cache/kv talk.manifest --name talk\n  \
    kv-store put local-fs:///var/cache/kv state.bin --chunk\n\n\
    Exit codes: 0 stored; 1 not stored; 2 the store does not open, or the file can not be read."
)]
pub struct PutArguments {
    #[command(flatten)]
    place: PlaceAndFile,
    #[command(flatten)]
    which: PutWhich,
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
    /// Store it as a chunk: under the hash of its content, or with =HEX under that one, of 1 to 64 bytes
    #[arg(long, value_name = "HEX", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    chunk: Option<String>,
    /// The former spelling, which goes with 0.4
    #[arg(long, value_name = "HEX", hide = true)]
    hash: Option<String>,
}

/// Remove a manifest, or a chunk
///
/// What is not there is said, with an exit code of its own. The chunks of a removed manifest stay, because other manifests may name them. If a
/// manifest names a removed chunk, its readers find the chunk missing.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store rm local-fs:///var/cache/kv --name talk\n\n\
    Exit codes: 0 removed; 1 not removed, or there is no such store; 2 the store does not open; 3 there was nothing to remove.")]
pub struct RmArguments {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    which: Which,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

pub fn get(arguments: &GetArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let wanted = arguments.which.wanted()?;
    let store = open_as_it_lies(uri)?;
    let found = match &wanted {
        Wanted::Manifest(name) => store.get_manifest(name),
        Wanted::Chunk(hash) => store.get_chunk(hash),
    };
    let bytes = found.map_err(Failure::of("get", uri))?;
    let bytes = bytes
        .ok_or_else(|| Failure::of("get", uri)(format!("there is no {wanted}; kv-store ls lists what there is")))?;
    let Some(output) = &arguments.output else {
        return std::io::stdout()
            .write_all(&bytes)
            .map_err(|error| Failure::unable(format!("standard output: {error}")));
    };
    let written = show::Unfinished::new(output).and_then(|mut file| file.write(&bytes).and_then(|()| file.finish()));
    written.map_err(|error| Failure::unable(format!("{}: {error}", output.display())))?;
    if arguments.json {
        show::json(&json!({ "uri": uri, "bytes": bytes.len(), "output": output }));
    }
    Ok(())
}

pub fn put(arguments: &PutArguments) -> Outcome {
    let (uri, file) = &arguments.place.both()?;
    let PutWhich { name, chunk, hash } = &arguments.which;
    let given = hash.as_ref().inspect(|_| tell_former("--hash HEX", "--chunk=HEX")).or(chunk.as_ref());
    let given = given.filter(|text| !text.is_empty()).map(|text| show::from_hex(text)).transpose();
    let given = given.map_err(Failure::unable)?;
    let bytes = read(file)?;
    let store = open(uri)?;
    if let Some(name) = name {
        store.put_manifest(name, &bytes).map_err(Failure::of("put", uri))?;
        if arguments.json {
            show::json(&json!({ "uri": uri, "name": name, "bytes": bytes.len() }));
        }
        return Ok(());
    }
    let hash = given.unwrap_or_else(|| xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes().to_vec());
    let put = store.put_chunk(&hash, &bytes).map_err(Failure::of("put", uri))?;
    store.flush().map_err(Failure::of("put", uri))?;
    let hash = hex::encode(&hash);
    if arguments.json {
        let existed = put == Put::Existed;
        show::json(&json!({ "uri": uri, "hash": hash, "bytes": bytes.len(), "existed": existed }));
    } else {
        println!("{hash}");
    }
    Ok(())
}

pub fn rm(arguments: &RmArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let wanted = arguments.which.wanted()?;
    let store = open_as_it_lies(uri)?;
    let failed = || Failure::of("rm", uri);
    // A removal succeeds where there is nothing, so the store is asked first. What cannot be read is there.
    let (was_there, said) = match &wanted {
        Wanted::Manifest(name) => {
            let was_there = match store.get_manifest(name) {
                Ok(found) => found.is_some(),
                Err(error) if error.kind() == ErrorKind::Corrupt => true,
                Err(error) => return Err(failed()(error)),
            };
            store.delete_manifest(name).map_err(failed())?;
            (was_there, json!({ "uri": uri, "name": name, "removed": was_there }))
        }
        Wanted::Chunk(hash) => {
            let there = store.exists_many(&[hash], &BatchOptions::default()).map_err(failed())?;
            let was_there = there.iter().any(|presence| !matches!(presence, Ok(Presence::Absent)));
            let outcomes = store.delete_many(&[hash]).map_err(failed())?;
            outcomes.into_iter().collect::<Result<(), _>>().map_err(failed())?;
            (was_there, json!({ "uri": uri, "hash": hex::encode(hash), "removed": was_there }))
        }
    };
    if !was_there {
        return Err(Failure::Nothing(format!("rm {uri}: there is no {wanted}, so nothing was removed")));
    }
    if arguments.json {
        show::json(&said);
    }
    Ok(())
}

/// What is asked for.
enum Wanted {
    Manifest(String),
    Chunk(Vec<u8>),
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Manifest(name) => write!(formatter, "manifest {name:?}"),
            Wanted::Chunk(hash) => write!(formatter, "chunk {}", hex::encode(hash)),
        }
    }
}

impl Which {
    fn wanted(&self) -> Outcome<Wanted> {
        let Which { name, chunk, hash } = self;
        if let Some(name) = name {
            return Ok(Wanted::Manifest(name.clone()));
        }
        let hash = hash.as_ref().inspect(|_| tell_former("--hash HEX", "--chunk HEX")).or(chunk.as_ref());
        show::from_hex(hash.map_or("", String::as_str)).map(Wanted::Chunk).map_err(Failure::unable)
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
