//! `copy`: a store into another one.

use std::time::{Duration, Instant};

use kv_store_wasm::{BatchOptions, NewChunk, Presence, Put, Store};
use serde_json::json;

use super::{batches, each_page_of_chunks, each_page_of_manifests, is_hash_of};
use crate::failure::{Failure, Outcome};
use crate::items::open;
use crate::{interrupt, show};

/// Copy a store to another one, which may have another backend
///
/// Chunks are copied first, then manifests. What the target has is not sent again, so a copy that was interrupted continues when
/// it is run again. Damaged chunks are left out, and named.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store copy local-fs:///var/cache/kv redis://cache.svc:6379/3 --rate 100MB\n\n\
    Exit codes: 0 all of it is there; 1 something was not copied; 2 a store does not open, or the first one lists nothing.")]
pub struct Arguments {
    /// The store to read
    from: String,
    /// The store to write
    to: String,
    /// The most bytes a second: a number, or as in 20MB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = kv_size::Bytes::flag)]
    rate: Option<u64>,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Default)]
struct Copied {
    chunks: u64,
    manifests: u64,
    bytes: u64,
    /// Chunks that were there.
    existed: u64,
    failed: u64,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let _interrupt = interrupt::says(
        "what was copied is kept, and a chunk is never half there; the same copy again goes on from there",
    );
    let (from, to) = (open(&arguments.from)?, open(&arguments.to)?);
    let bar = super::bar(from.usage().ok().and_then(|usage| usage.chunks));
    let pace = Pace { rate: arguments.rate, begun: Instant::now() };
    let mut copied = Copied::default();
    let options = match to.info().durable {
        true => BatchOptions::default().with_durable(),
        false => BatchOptions::default(),
    };
    each_page_of_chunks(&from, &mut |entries| {
        let hashes: Vec<&[u8]> = entries.iter().map(|entry| entry.hash.as_slice()).collect();
        if hashes.is_empty() {
            return Ok(());
        }
        let there =
            to.exists_many(&hashes, &BatchOptions::default()).map_err(Failure::unable_of("copy to", to.uri()))?;
        let there = there.into_iter().map(|presence| matches!(presence, Ok(Presence::Present(_))));
        let missing = entries.iter().zip(there).filter(|(_, there)| !there).map(|(entry, _)| entry.clone());
        let missing: Vec<_> = missing.collect();
        copied.existed += (entries.len() - missing.len()) as u64;
        bar.inc((entries.len() - missing.len()) as u64);
        for batch in batches(&missing) {
            let hashes: Vec<&[u8]> = batch.iter().map(|entry| entry.hash.as_slice()).collect();
            copy_chunks(&from, &to, &hashes, &options, &mut copied)?;
            pace.keep(copied.bytes);
            bar.inc(batch.len() as u64);
            bar.set_message(show::bytes(copied.bytes));
        }
        Ok(())
    })?;
    each_page_of_manifests(&from, &mut |entries| {
        for entry in entries {
            if entry.name.starts_with('\0') {
                copied.failed += 1;
                eprintln!("kv-store: a manifest is not copied: its name is too long for the backend to list");
                continue;
            }
            let content = from.get_manifest(&entry.name).map_err(Failure::unable_of("copy from", from.uri()))?;
            // It was removed since it was listed.
            let Some(content) = content else { continue };
            match to.put_manifest(&entry.name, &content) {
                Ok(()) => {
                    copied.manifests += 1;
                    copied.bytes += content.len() as u64;
                }
                Err(error) => {
                    copied.failed += 1;
                    eprintln!("kv-store: manifest {:?}: {error}", entry.name);
                }
            }
            pace.keep(copied.bytes);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let Copied { chunks, manifests, bytes, existed, failed } = copied;
    if arguments.json {
        let (from, to) = (&arguments.from, &arguments.to);
        show::json(&json!({
            "from": from, "to": to, "chunks": chunks, "manifests": manifests, "bytes": bytes, "existed": existed,
            "failed": failed,
        }));
    } else {
        let bytes = show::bytes(bytes);
        println!(
            "{chunks} chunks and {manifests} manifests copied, {bytes}; {existed} chunks were there; {failed} failed"
        );
    }
    if failed > 0 { Err(Failure::Not(None)) } else { Ok(()) }
}

fn copy_chunks(from: &Store, to: &Store, hashes: &[&[u8]], options: &BatchOptions, copied: &mut Copied) -> Outcome {
    let answers = from.get_unchecked(hashes).map_err(Failure::unable_of("copy from", from.uri()))?;
    let mut contents = Vec::with_capacity(hashes.len());
    for (hash, answer) in hashes.iter().zip(answers) {
        match answer {
            Ok(Some(content)) => contents.push((*hash, content)),
            Ok(None) => {}
            Err(error) => {
                copied.failed += 1;
                eprintln!("kv-store: chunk {}: {error}", show::hex(hash));
            }
        }
    }
    // Where the others of a batch are hashes of their content, one that is not is damaged.
    let keyed = contents.iter().filter(|(hash, content)| hash.len() == 8 && is_hash_of(hash, content)).count();
    if keyed * 2 > contents.len() {
        contents.retain(|(hash, content)| {
            let sound = hash.len() != 8 || is_hash_of(hash, content);
            if !sound {
                copied.failed += 1;
                eprintln!("kv-store: chunk {} is damaged and not copied", show::hex(hash));
            }
            sound
        });
    }
    let pieces: Vec<[&[u8]; 1]> = contents.iter().map(|(_, content)| [&content[..]]).collect();
    let new: Vec<NewChunk> =
        contents.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
    if new.is_empty() {
        return Ok(());
    }
    let outcomes = to.put_many(&new, options, None).map_err(Failure::unable_of("copy to", to.uri()))?;
    for (outcome, chunk) in outcomes.into_iter().zip(&new) {
        match outcome {
            Ok(Put::New) => copied.chunks += 1,
            Ok(Put::Existed) => copied.existed += 1,
            Err(error) => {
                copied.failed += 1;
                eprintln!("kv-store: chunk {}: {error}", show::hex(chunk.hash));
                continue;
            }
        }
        copied.bytes += chunk.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
    }
    Ok(())
}

/// Keeps to a number of bytes a second.
struct Pace {
    rate: Option<u64>,
    begun: Instant,
}

impl Pace {
    /// Wait until so many bytes may have been sent.
    fn keep(&self, bytes: u64) {
        let wait = self.due(bytes).saturating_sub(self.begun.elapsed());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// When so many bytes may have been sent.
    fn due(&self, bytes: u64) -> Duration {
        match self.rate {
            Some(rate) => Duration::try_from_secs_f64(bytes as f64 / rate.max(1) as f64).unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_at_the_rate() {
        let pace = |rate| Pace { rate, begun: Instant::now() };
        assert_eq!(pace(Some(1000)).due(2500), Duration::from_millis(2500));
        assert_eq!(pace(None).due(u64::MAX), Duration::ZERO);
        assert!(pace(Some(0)).due(u64::MAX) > Duration::from_secs(1));
    }
}
