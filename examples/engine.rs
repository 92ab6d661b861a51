//! Saves the blocks of a prompt and restores the leading ones, from Rust.
//!
//! ```text
//! cargo run --release --locked --package kv-store-wasm --example engine -- local-fs:///tmp/kv
//! ```

use std::process::ExitCode;
use std::time::Duration;

use kv_store_wasm::{BatchOptions, Error, Fetch, Fetched, Memory, NewChunk, SaveOutcome, Store};
use sha2::{Digest, Sha256};

const BLOCK_TOKENS: usize = 16;
const BLOCK_BYTES: usize = 32_768;
/// Whatever makes the same tokens mean other bytes belongs into the key.
const SCOPE: &str = "model-7b, bf16, rank 0 of 1";

type Key = [u8; 32];

/// A key for each whole block, over the scope and all tokens up to the block's end.
fn block_keys(tokens: &[u32]) -> Vec<Key> {
    let mut chain = Sha256::new_with_prefix(SCOPE);
    let key = |block: &[u32]| {
        block.iter().for_each(|token| chain.update(token.to_le_bytes()));
        chain.clone().finalize().into()
    };
    tokens.chunks_exact(BLOCK_TOKENS).map(key).collect()
}

/// Seals: these keys are no hashes of the content, so the library checks what it answers.
fn sealed() -> BatchOptions {
    BatchOptions::default().with_sealed()
}

/// Publishes `name` over the blocks. An error: nothing was published.
fn save(store: &Store, name: &str, keys: &[Key], blocks: &[Vec<u8>]) -> Result<bool, Error> {
    let pieces: Vec<[&[u8]; 1]> = blocks.iter().map(|block| [block.as_slice()]).collect();
    let chunks: Vec<NewChunk<'_>> =
        keys.iter().zip(&pieces).map(|(hash, pieces)| NewChunk::new(hash, pieces)).collect();
    let save = store.begin_save()?;
    for outcome in store.put_many(&chunks, &sealed(), Some(&save))? {
        outcome?;
    }
    // Lost: the storage system evicted chunks before the commit.
    Ok(matches!(save.commit(Some((name, b"")))?, SaveOutcome::Published))
}

/// Fills the leading blocks that the store has, and answers how many: the engine prefills the rest.
fn restore(store: &Store, keys: &[Key], blocks: &mut [Vec<u8>]) -> Result<usize, Error> {
    let mut rooms: Vec<[&mut [u8]; 1]> = blocks.iter_mut().map(|block| [block.as_mut_slice()]).collect();
    let mut fetches: Vec<Fetch<'_>> =
        keys.iter().zip(&mut rooms).map(|(hash, room)| Fetch::new(hash, Memory::Pieces(room))).collect();
    let fetched = store.get_many(&mut fetches, &sealed().with_timeout(Duration::from_secs(10)))?;
    let whole = |outcome: &&Result<Option<Fetched>, Error>| matches!(outcome, Ok(Some(Fetched::Placed(BLOCK_BYTES))));
    Ok(fetched.iter().take_while(whole).count())
}

fn run(uri: &str) -> Result<bool, Error> {
    let store = Store::open(uri)?;
    let prompt: Vec<u32> = (0..8 * BLOCK_TOKENS as u32).collect();
    let keys = block_keys(&prompt);
    let blocks: Vec<Vec<u8>> = (1..=keys.len() as u8).map(|number| vec![number; BLOCK_BYTES]).collect();
    if !save(&store, "prompt-3", &keys, &blocks)? {
        return Ok(false);
    }
    // Another prompt, which shares half of its tokens.
    let mut other = prompt;
    other.iter_mut().skip(4 * BLOCK_TOKENS).for_each(|token| *token = 7);
    let keys = block_keys(&other);
    let mut restored = vec![vec![0; BLOCK_BYTES]; keys.len()];
    let found = restore(&store, &keys, &mut restored)?;
    println!("restored {found} of {} blocks", keys.len());
    Ok(found == 4 && restored.iter().zip(&blocks).take(4).all(|(restored, saved)| restored == saved))
}

fn main() -> ExitCode {
    let Some(uri) = std::env::args().nth(1) else {
        eprintln!("usage: engine URI");
        return ExitCode::from(2);
    };
    match run(&uri) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
