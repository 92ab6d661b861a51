//! `verify`: read all of a store.

use kv_store_wasm::{ErrorKind, Store};
use serde_json::json;

use super::{batches, each_page_of_chunks, each_page_of_manifests, is_hash_of};
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_existing};
use crate::show;

/// Keys that do not match their content and are remembered until it is known what keys are.
const REMEMBERED: usize = 10_000;

/// Read all of a store, and check it for damage
///
/// What cannot be read is damaged, and what does not match the checksum of its envelope. So is a chunk without an envelope whose key
/// of 8 bytes is not the XXH3-64 of its content, if the keys of other chunks are. What else earlier versions wrote is only read.
/// Reading counts as use.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store verify local-fs:///var/cache/kv --repair\n\n\
    Exit codes: 0 all of it is sound, or was repaired; 1 something is damaged; 2 the store does not open, or its backend lists \
    nothing.")]
pub struct VerifyArguments {
    #[command(flatten)]
    place: Place,
    /// Remove what is damaged, so that the next save stores it again
    #[arg(long)]
    repair: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Default)]
struct Found {
    chunks: u64,
    manifests: u64,
    bytes: u64,
    /// Keys that match their content.
    matching: u64,
    /// Chunks that match the checksum of their envelope.
    enveloped: u64,
    /// Those that do not, as long as it is not known whether they must.
    others: Vec<Vec<u8>>,
    damaged: Vec<Vec<u8>>,
    unreadable_manifests: Vec<String>,
    damaged_count: u64,
    repaired: u64,
}

impl Found {
    fn is_damaged(&mut self, hash: Vec<u8>) {
        self.damaged_count += 1;
        eprintln!("kv-store: chunk {} is damaged", hex::encode(&hash));
        self.damaged.push(hash);
    }

    /// Keys are hashes of the content: those that were not are damaged.
    fn settle(&mut self) {
        if self.matching > 0 {
            std::mem::take(&mut self.others).into_iter().for_each(|hash| self.is_damaged(hash));
        }
    }
}

pub fn run(arguments: &VerifyArguments) -> Outcome {
    let uri = &arguments.place.uri()?;
    let store = open_existing(uri)?;
    let total = store.usage().ok().and_then(|usage| usage.chunks);
    let bar = super::bar(total);
    let unread = Failure::unable_of("verify", store.uri());
    let mut found = Found::default();
    each_page_of_chunks(&store, &mut |entries| {
        for batch in batches(&entries) {
            let hashes: Vec<&[u8]> = batch.iter().map(|entry| entry.hash.as_slice()).collect();
            let answers = store.get_unchecked(&hashes).map_err(Failure::unable_of("verify", store.uri()))?;
            for ((entry, hash), answer) in batch.iter().zip(hashes).zip(answers) {
                match answer {
                    Ok(Some(content)) => {
                        found.chunks += 1;
                        found.bytes += content.len() as u64;
                        if entry.layout == 2 {
                            found.enveloped += 1;
                        } else if hash.len() == 8 && is_hash_of(hash, &content) {
                            found.matching += 1;
                        } else if hash.len() == 8 && found.others.len() < REMEMBERED {
                            found.others.push(hash.to_vec());
                        }
                    }
                    // It was removed since it was listed.
                    Ok(None) => {}
                    Err(error) if error.kind() == ErrorKind::Corrupt => found.is_damaged(hash.to_vec()),
                    Err(error) => return Err(unread(format!("chunk {}: {error}", hex::encode(hash)))),
                }
            }
            found.settle();
            if arguments.repair {
                repair(&store, &mut found)?;
            } else {
                found.damaged.clear();
            }
            bar.inc(batch.len() as u64);
            bar.set_message(show::bytes(found.bytes));
        }
        Ok(())
    })?;
    each_page_of_manifests(&store, &mut |entries| {
        for entry in entries {
            match store.examine_manifest(&entry.name) {
                Ok(bytes) => {
                    found.manifests += u64::from(bytes.is_some());
                    found.bytes += bytes.unwrap_or(0);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    eprintln!("kv-store: manifest {:?} is damaged: {error}", entry.name);
                    found.damaged_count += 1;
                    if arguments.repair {
                        store.delete_manifest(&entry.name).map_err(Failure::of("remove from", store.uri()))?;
                        found.repaired += 1;
                    }
                    found.unreadable_manifests.push(entry.name);
                }
                Err(error) => return Err(unread(format!("manifest {:?}: {error}", entry.name))),
            }
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let Found { chunks, manifests, bytes, matching, enveloped, damaged_count: damaged, repaired, .. } = found;
    let checked = matching + enveloped;
    if arguments.json {
        show::json(&json!({
            "uri": uri, "chunks": chunks, "manifests": manifests, "bytes": bytes, "checked": checked, "damaged": damaged,
            "removed": repaired,
        }));
    } else {
        let (chunks, manifests) = (show::count(chunks, "chunk"), show::count(manifests, "manifest"));
        println!(
            "{chunks} and {manifests}, {}: {checked} checked by XXH3, {damaged} damaged, {repaired} removed",
            show::bytes(bytes)
        );
    }
    if damaged > repaired { Err(Failure::Not(None)) } else { Ok(()) }
}

fn repair(store: &Store, found: &mut Found) -> Outcome {
    let damaged = std::mem::take(&mut found.damaged);
    for group in damaged.chunks(super::BATCH_CHUNKS) {
        let hashes: Vec<&[u8]> = group.iter().map(Vec::as_slice).collect();
        for outcome in store.delete_many(&hashes).map_err(Failure::of("remove from", store.uri()))? {
            outcome.map_err(Failure::of("remove from", store.uri()))?;
            found.repaired += 1;
        }
    }
    Ok(())
}
