//! `save` and `restore`: a file as chunks and a manifest, and back.
//!
//! The manifest is JSON, [`Manifest`]; chunks are pieces of one length, the last one excepted, each under the XXH3-64 of its
//! content in little-endian order, so that equal pieces of files are stored once.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use kv_store_wasm::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Put, SaveOutcome, Store};
use serde::{Deserialize, Serialize};
use serde_json::json;
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::failure::{Failure, Outcome};
use crate::place::{PlaceAndFile, open, open_existing};
use crate::{interrupt, show};

/// Bytes that travel in one batch.
const BATCH_BYTES: usize = 32 << 20;
/// Chunks that travel in one batch.
const MOST_PIECES: usize = 256;

/// Store a file as chunks and a manifest
#[derive(clap::Args)]
#[command(
    override_usage = "kv-store save [OPTIONS] [URI] <FILE> --name <NAME>",
    after_help = "Example:\n  kv-store save local-fs:///var/cache/kv slot.bin --name talk\n\n\
    Exit codes: 0 stored; 1 not stored; 2 the store does not open, or the file can not be read."
)]
pub struct SaveArguments {
    #[command(flatten)]
    place: PlaceAndFile,
    /// The manifest's name
    #[arg(long)]
    name: String,
    /// The size of a chunk, up to 1GiB: bytes, or as in 256KiB, 4MiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = chunk_size)]
    chunk: u32,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Fetch a file that `save` stored
///
/// On standard output (`-`) good bytes may have been written before a failure. A file is written whole or not at all: if a chunk is missing or corrupt, the restore fails, and FILE stays as it was.
#[derive(clap::Args)]
#[command(
    override_usage = "kv-store restore [OPTIONS] [URI] <FILE> --name <NAME>",
    after_help = "Example:\n  kv-store restore local-fs:///var/cache/kv slot.bin --name talk\n\n\
    Exit codes: 0 restored; 1 there is no such store or manifest, or a chunk is missing or corrupt; 2 the store does not open, \
    or the file can not be written."
)]
pub struct RestoreArguments {
    #[command(flatten)]
    place: PlaceAndFile,
    /// The manifest's name
    #[arg(long)]
    name: String,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What a saved file is made of.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: String,
    version: u32,
    /// The file's length.
    bytes: u64,
    chunk_bytes: u32,
    /// The XXH3-128 of the whole file, in hex.
    xxh3_128: String,
    /// Each chunk's key, in hex, in order.
    chunks: Vec<String>,
}

fn chunk_size(text: &str) -> Result<u32, String> {
    let bytes = kv_size::Bytes::flag(text)?;
    let within = u32::try_from(bytes).ok().filter(|bytes| (1..=1 << 30).contains(bytes));
    within.ok_or_else(|| format!("{text} is not between 1 byte and 1GiB"))
}

const FORMAT: &str = "kv-store file";
const VERSION: u32 = 1;

/// Where the bytes of a save come from.
struct Input {
    from: Box<dyn Read>,
    shown: String,
    /// None: it is not known before its end.
    len: Option<u64>,
}

impl Input {
    fn open(file: &Path) -> Outcome<Self> {
        if file == Path::new("-") {
            return Ok(Input { from: Box::new(std::io::stdin().lock()), shown: "standard input".into(), len: None });
        }
        let shown = file.display().to_string();
        let unreadable = |error| Failure::unable(format!("{shown}: {error}"));
        let from = File::open(file).map_err(unreadable)?;
        let meta = from.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(Failure::unable(format!("{shown}: not a file; `-` is standard input")));
        }
        Ok(Input { from: Box::new(from), shown, len: Some(meta.len()) })
    }
}

pub fn save(arguments: &SaveArguments) -> Outcome {
    let begun = Instant::now();
    let (uri, path) = &arguments.place.both()?;
    let Input { from: mut file, shown, len } = Input::open(path)?;
    let unreadable = |error| Failure::unable(format!("{shown}: {error}"));
    let failed = || Failure::of("save", uri);
    let _interrupt = interrupt::says(
        "the chunks that were stored are kept, no manifest was written; the same save again sends only the rest",
    );
    let store = open(uri)?;

    let bar = show::bytes_bar(len);
    let (mut whole, mut chunks, mut saved) = (XxHash3_128::new(), Vec::new(), Saved::default());
    let saving = store.begin_save().map_err(failed())?;
    let at_once = (BATCH_BYTES / arguments.chunk as usize).clamp(1, MOST_PIECES);
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new(); at_once];
    loop {
        let mut batch = Vec::with_capacity(at_once);
        for piece in &mut pieces {
            piece.clear();
            (&mut file).take(arguments.chunk.into()).read_to_end(piece).map_err(unreadable)?;
            if piece.is_empty() {
                break;
            }
            whole.write(piece);
            batch.push((XxHash3_64::oneshot(piece).to_le_bytes(), [piece.as_slice()]));
        }
        if batch.is_empty() {
            break;
        }
        let items: Vec<_> = batch.iter().map(|(hash, pieces)| NewChunk::new(hash, pieces)).collect();
        let outcomes =
            store.put_many(&items, &BatchOptions::default().with_xxh3_keys(), Some(&saving)).map_err(failed())?;
        for ((key, [piece]), outcome) in batch.iter().zip(outcomes) {
            match outcome.map_err(failed())? {
                Put::Existed => saved.existed += 1,
                Put::New => saved.new_bytes += piece.len() as u64,
            }
            chunks.push(hex::encode(key));
            saved.bytes += piece.len() as u64;
        }
        bar.set_position(saved.bytes);
    }
    saved.chunks = chunks.len();
    let manifest = Manifest {
        format: FORMAT.into(),
        version: VERSION,
        bytes: saved.bytes,
        chunk_bytes: arguments.chunk,
        xxh3_128: format!("{:032x}", whole.finish_128()),
        chunks,
    };
    let manifest = serde_json::to_vec(&manifest).map_err(Failure::not)?;
    match saving.commit(Some((&arguments.name, &manifest))).map_err(failed())? {
        SaveOutcome::Published => {}
        SaveOutcome::Lost(lost) => {
            let (lost, count) = (lost.len(), saved.chunks);
            return Err(Failure::not(format!(
                "save {}: the store has lost {lost} of {count} chunks since they were put; save again",
                uri
            )));
        }
    }
    bar.finish_and_clear();

    let rate = show::rate(saved.bytes, begun);
    match arguments.json {
        true => saved.show_json(uri, &arguments.name, rate),
        false => saved.show(rate),
    }
    Ok(())
}

/// What a save has put.
#[derive(Default)]
struct Saved {
    chunks: usize,
    bytes: u64,
    /// Chunks that the store had already.
    existed: u64,
    new_bytes: u64,
}

impl Saved {
    fn show_json(&self, uri: &str, name: &str, rate: f64) {
        show::json(&json!({
            "uri": uri, "name": name, "bytes": self.bytes, "chunks": self.chunks, "chunks_known": self.existed,
            "bytes_new": self.new_bytes, "bytes_per_second": rate,
        }));
    }

    fn show(&self, rate: f64) {
        println!(
            "saved {} in {}, {} already stored, {} new; {}/s",
            show::bytes(self.bytes),
            show::count(self.chunks as u64, "chunk"),
            self.existed,
            show::bytes(self.new_bytes),
            show::bytes(rate as u64)
        );
    }
}

/// Where the bytes of a restore go.
enum Output<'a> {
    /// It appears when it is whole.
    File(show::Unfinished<'a>),
    Standard(std::io::StdoutLock<'static>),
}

impl<'a> Output<'a> {
    fn open(file: &'a Path) -> std::io::Result<Self> {
        match file == Path::new("-") {
            true => Ok(Output::Standard(std::io::stdout().lock())),
            false => show::Unfinished::new(file).map(Output::File),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Output::File(file) => file.write(bytes),
            Output::Standard(out) => out.write_all(bytes),
        }
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            Output::File(file) => file.finish(),
            Output::Standard(mut out) => out.flush(),
        }
    }
}

pub fn restore(arguments: &RestoreArguments) -> Outcome {
    let begun = Instant::now();
    let ((uri, file), name) = (&arguments.place.both()?, &arguments.name);
    let to_standard = file == Path::new("-");
    if to_standard && arguments.json {
        return Err(Failure::unable("restore: standard output is for the bytes or for --json, not for both"));
    }
    let interrupt = interrupt::says("FILE is as it was, and the store is unchanged");
    let store = open_existing(uri)?;
    let found = store.get_manifest(name).map_err(Failure::of("restore", uri))?;
    let failed = Failure::of("restore", uri);
    let found =
        found.ok_or_else(|| failed(format!("there is no manifest {name:?}; kv-store ls lists what there is")))?;
    let unusable = |why| failed(format!("manifest {name:?}: {why}"));
    let manifest = Manifest::parse(&found).map_err(unusable)?;

    let shown = if to_standard { "standard output".into() } else { file.display().to_string() };
    let unwritable = |error: std::io::Error| Failure::unable(format!("{shown}: {error}"));
    // Removed with its value, whatever fails; renamed when it is whole.
    let mut unfinished = Output::open(file).map_err(unwritable)?;
    if let Output::File(file) = &unfinished {
        interrupt.removes(file.temporary());
    }
    let bar = show::bytes_bar(Some(manifest.bytes));
    let keys = manifest.keys().map_err(unusable)?;
    let mut whole = XxHash3_128::new();
    let mut bytes = 0_u64;
    let at_once = (BATCH_BYTES / manifest.chunk_bytes as usize).clamp(1, MOST_PIECES);
    let mut pieces: Vec<Vec<u8>> = vec![Vec::new(); at_once.min(keys.len())];
    for batch in keys.chunks(at_once) {
        for (index, piece) in pieces.iter_mut().enumerate().take(batch.len()) {
            let len = manifest.piece_len(bytes + index as u64 * u64::from(manifest.chunk_bytes));
            piece.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        }
        fetch(&store, uri, batch, &mut pieces)?;
        for piece in pieces.iter().take(batch.len()) {
            whole.write(piece);
            unfinished.write(piece).map_err(unwritable)?;
            bytes += piece.len() as u64;
        }
        bar.set_position(bytes);
    }
    if format!("{:032x}", whole.finish_128()) != manifest.xxh3_128 {
        return Err(failed(format!(
            "the chunks of {name:?} are intact, but together they are not the file that was saved: save it again"
        )));
    }
    unfinished.finish().map_err(unwritable)?;
    bar.finish_and_clear();

    let rate = show::rate(bytes, begun);
    if arguments.json {
        show::json(&json!({
            "uri": uri, "name": arguments.name, "bytes": bytes, "chunks": keys.len(), "bytes_per_second": rate,
        }));
        return Ok(());
    }
    let chunks = show::count(keys.len() as u64, "chunk");
    let said = format!("restored {} from {chunks}; {}/s", show::bytes(bytes), show::bytes(rate as u64));
    if to_standard {
        eprintln!("{said}");
    } else {
        println!("{said}");
    }
    Ok(())
}

/// Fetch chunks into pieces of their lengths.
fn fetch(store: &Store, uri: &str, keys: &[[u8; 8]], pieces: &mut [Vec<u8>]) -> Outcome {
    let mut memory: Vec<[&mut [u8]; 1]> = pieces.iter_mut().map(|piece| [piece.as_mut_slice()]).collect();
    let lens: Vec<usize> = memory.iter().map(|[piece]| piece.len()).collect();
    let mut items: Vec<_> =
        keys.iter().zip(&mut memory).map(|(key, memory)| Fetch::new(key, Memory::Pieces(memory))).collect();
    let options = BatchOptions::default().with_xxh3_keys();
    let outcomes = store.get_many(&mut items, &options).map_err(Failure::of("restore", uri))?;
    let failed = Failure::of("restore", uri);
    for ((key, outcome), len) in keys.iter().zip(outcomes).zip(lens) {
        let shown = hex::encode(key);
        match outcome.map_err(|error| failed(format!("chunk {shown}: {error}")))? {
            Some(Fetched::Placed(found)) if found == len => {}
            None => {
                return Err(failed(format!("chunk {shown} is missing or corrupt: save the file again")));
            }
            Some(Fetched::Placed(found) | Fetched::TooLong(found)) => {
                return Err(failed(format!(
                    "chunk {shown} is corrupt, it has {found} bytes and not {len}: save the file again"
                )));
            }
            Some(Fetched::Buffer(_)) => {
                return Err(failed(format!(
                    "chunk {shown} is in memory of the library: a defect of kv-store, please report it"
                )));
            }
        }
    }
    Ok(())
}

impl Manifest {
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| format!("not the manifest of a saved file: {error}"))?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            return Err(format!(
                "its format is {:?} {}, this program knows {FORMAT:?} {VERSION}",
                manifest.format, manifest.version
            ));
        }
        if manifest.chunk_bytes == 0
            || manifest.bytes.div_ceil(manifest.chunk_bytes.into()) != manifest.chunks.len() as u64
        {
            return Err("its chunks do not add up to its length".into());
        }
        Ok(manifest)
    }

    fn keys(&self) -> Result<Vec<[u8; 8]>, String> {
        let key = |text: &String| {
            show::from_hex(text)?
                .try_into()
                .map_err(|_| format!("the manifest names {text:?}, which is no chunk's key"))
        };
        self.chunks.iter().map(key).collect()
    }

    /// The length of the chunk that begins here.
    fn piece_len(&self, at: u64) -> u64 {
        self.bytes.saturating_sub(at).min(self.chunk_bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: u64, chunk_bytes: u32, chunks: usize) -> Result<Manifest, String> {
        let chunks = vec!["0011223344556677".to_owned(); chunks];
        let manifest =
            Manifest { format: FORMAT.into(), version: VERSION, bytes, chunk_bytes, xxh3_128: String::new(), chunks };
        Manifest::parse(&serde_json::to_vec(&manifest).unwrap())
    }

    /// The manifest of a saved file, as each later version restores it.
    #[test]
    fn golden_manifest() {
        let manifest = Manifest {
            format: FORMAT.into(),
            version: VERSION,
            bytes: 5,
            chunk_bytes: 4,
            xxh3_128: format!("{:032x}", XxHash3_128::oneshot(b"hello")),
            chunks: [&b"hell"[..], b"o"].map(|piece| hex::encode(XxHash3_64::oneshot(piece).to_le_bytes())).to_vec(),
        };
        let text = r#"{"format":"kv-store file","version":1,"bytes":5,"chunk_bytes":4,"xxh3_128":"b5e9c1ad071b3e7fc779cfaa5e523818","chunks":["d186ff547927e7e1","2b01ed725cb645f4"]}"#;
        assert_eq!(serde_json::to_string(&manifest).unwrap(), text);
        assert!(Manifest::parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_manifest_whose_numbers_disagree_is_refused() {
        assert!(parse(10, 4, 3).is_ok() && parse(0, 4, 0).is_ok());
        assert!(parse(10, 4, 2).is_err() && parse(10, 0, 1).is_err() && parse(u64::MAX, 1, 1).is_err());
        let last = parse(10, 4, 3).unwrap();
        assert_eq!([0, 4, 8, 10].map(|at| last.piece_len(at)), [4, 4, 2, 0]);
    }

    #[test]
    fn what_is_no_manifest_is_refused_with_what_it_lacks() {
        for text in ["", "{}", "[]", "llama-kv", r#"{"format":"kv-store file","version":1}"#] {
            assert!(Manifest::parse(text.as_bytes()).is_err(), "{text}");
        }
        let newer = r#"{"format":"kv-store file","version":2,"bytes":0,"chunk_bytes":1,"xxh3_128":"","chunks":[]}"#;
        assert!(Manifest::parse(newer.as_bytes()).is_err_and(|why| why.contains("\"kv-store file\" 2")));
    }
}
