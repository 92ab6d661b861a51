//! What is recorded: a few saves, and a line on standard output before each change and when it was acknowledged.

use std::path::PathBuf;

use kv_cache::{Cache, Config, Fingerprint, FingerprintMode, Identity, Reason, Save};
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::servers::Server;
use kv_store_tests::{Handle, Library, library_path};

use super::Kind;
use crate::oracle::State;
use crate::worker::say;
use crate::workload::{Manifest, Random, content, hash, name};

/// How its lines begin.
pub const MARK: &str = "mark ";
/// Names that it saves under.
pub const NAMES: usize = 2;
/// Why a save ends that a store has no room for.
pub const FULL: &str = "the store is full";
const LOST: &str = "chunks were lost before the manifest came";
/// Saves of one script.
const SAVES: u64 = 5;
/// Rows of one script.
pub const ROWS: u32 = 5;

#[derive(Clone, clap::Args)]
pub struct Script {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    folder: PathBuf,
}

pub fn run(script: &Script) -> bool {
    let done = match script.kind {
        Kind::Memkv => {
            let mut server = MemkvServer::start(&["--data", &script.folder.display().to_string()]);
            let done = saves(&server.uri("states"), script);
            server.stop();
            done
        }
        Kind::Rows => rows(script),
        _ => saves(&script.kind.uri(&script.folder), script),
    };
    done.map_err(|why| eprintln!("{why}")).is_ok()
}

/// A chunk of up to 10 pages, most of them of one.
pub fn chunk(random: &mut Random) -> u64 {
    random.below(6) * 8 + 1 + random.below(5)
}

fn saves(uri: &str, script: &Script) -> Result<(), String> {
    let library = Library::load(&library_path())?;
    let (store, mut random) = (library.open(uri).ok_or("it does not open")?, Random(script.seed));
    for save in 0..SAVES {
        let number = random.below(NAMES as u64) as usize;
        let chunks: Vec<u64> = (0..1 + random.below(3)).map(|_| chunk(&mut random)).collect();
        match publish(&store, number, save, &chunks, true) {
            // A bounded store may be full for a moment, and without a grace what was put may make room for what comes after it. What was
            // recorded so far is as good.
            Err(why) if script.kind.evicts() && [FULL, LOST].contains(&why.as_str()) => return Ok(()),
            published => published?,
        }
        if random.below(4) == 0 {
            mark("try", number, None);
            if store.delete_manifest(&name(number))? != 0 {
                return Err("a manifest cannot be removed".into());
            }
            mark("done", number, None);
        }
    }
    Ok(())
}

/// Bytes of chunks together.
pub fn len(chunks: &[u64]) -> usize {
    chunks.iter().map(|chunk| content(*chunk).len()).sum()
}

/// Save chunks and a manifest that names them.
pub fn publish(store: &Handle<'_>, number: usize, save: u64, chunks: &[u64], marked: bool) -> Result<(), String> {
    for chunk in chunks {
        let content = content(*chunk);
        let put = store.put_chunk(&hash(&content), &content)?;
        if put < 0 {
            return Err(if put == -3 { FULL.to_owned() } else { format!("put_chunk answered {put}") });
        }
    }
    let manifest = Manifest { name: number, save, chunks: chunks.to_vec() }.to_bytes();
    if marked {
        mark("try", number, Some(save));
    }
    match store.put_manifest(&name(number), &manifest)? {
        0 if marked => mark("done", number, Some(save)),
        0 => {}
        -1 => return Err(LOST.to_owned()),
        answer => return Err(format!("put_manifest answered {answer}")),
    }
    Ok(())
}

fn mark(what: &str, number: usize, state: State) {
    let state = state.map_or("-".to_owned(), |save| save.to_string());
    say(format_args!("{MARK}{what} {number} {state}"));
}

pub const IDENTITY: Identity = Identity {
    fingerprint: Fingerprint { bytes: [1; 32], mode: FingerprintMode::Safe },
    quant: 7,
    context_hash: [2; 32],
};

/// The cache in a folder.
pub fn cache(folder: &std::path::Path) -> Result<Cache, String> {
    let policy = "[policy]\nmin_tokens = 4\ncold_min_tokens = 4\ncold_max_tokens = 100\ncontinued_interval = 8\n\
                  boundary_trim_tokens = 2\nboundary_align_tokens = 8\n";
    let text = format!("{policy}[disk]\npath = {folder:?}\nbudget = 10000000\n");
    let config = Config::parse(&text).map_err(|error| error.to_string())?;
    Cache::open(config).map_err(|error| error.to_string())
}

pub fn tokens(row: u32) -> Vec<u32> {
    (0..8).map(|at| row * 1_000_003 + at).collect()
}

/// From a part of a page to several.
pub fn payload(seed: u64, row: u32) -> Vec<u8> {
    let mut random = Random(seed ^ u64::from(row));
    let len = 100 + random.below(20_000);
    (0..len).map(|_| random.next() as u8).collect()
}

fn rows(script: &Script) -> Result<(), String> {
    let cache = cache(&script.folder)?;
    for row in 0..ROWS {
        let (tokens, payload) = (tokens(row), payload(script.seed, row));
        let reason = if row % 2 == 0 { Reason::Evict } else { Reason::Shutdown };
        mark("try", row as usize, Some(0));
        cache.save(Save::new(&IDENTITY, &tokens, &payload).reason(reason)).map_err(|error| error.to_string())?;
        mark("done", row as usize, Some(0));
    }
    Ok(())
}
