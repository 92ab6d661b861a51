//! `copy`: a store into another one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kv_store_wasm::{BatchOptions, ChunkEntry, DescriptorDigest, ManifestEntry, NewChunk, Presence, Put, Store};
use serde_json::json;

use super::{batches, each_page_of_chunks, each_page_of_manifests, is_hash_of};
use crate::failure::{Failure, Outcome};
use crate::place::{open, open_as_it_lies, open_existing};
use crate::{interrupt, show};

/// Copy a store to another one, which may have another backend
///
/// Chunks are copied first, then manifests. What the target has is not sent again, so a copy that was interrupted continues when
/// it is run again. Damaged chunks are left out, and named. A manifest whose name the backend lists shortened, because it is too
/// long, is copied to a store of the same backend. What lies under a descriptor lies under the same one in the copy.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store copy local-fs:///var/cache/kv redis://cache.svc:6379/3 --rate 100MB\n  \
    kv-store copy local-fs:///var/cache/kv redis://cache.svc:6379/3 --dry-run\n\n\
    Exit codes: 0 all of it is there; 1 something was not copied, or there is no store to read; 2 a store does not open, or the \
    first one lists nothing.")]
pub struct CopyArguments {
    /// The store to read
    from: String,
    /// The store to write
    to: String,
    /// The most bytes a second: a number, or as in 20MB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = kv_size::Bytes::flag)]
    rate: Option<u64>,
    /// Only print what would be copied; nothing is read but the lists, and no store is made
    #[arg(long)]
    dry_run: bool,
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

/// A copy under way.
struct Copy<'a> {
    from: &'a Store,
    /// None: it would be made.
    to: Option<&'a Target>,
    /// Both have the same backend.
    same: bool,
    dry_run: bool,
    pace: Pace,
    bar: ProgressBar,
    copied: Copied,
}

pub fn run(arguments: &CopyArguments) -> Outcome {
    let dry_run = arguments.dry_run;
    let _interrupt = interrupt::says(
        "what was copied is kept, and a chunk is never half there; the same copy again goes on from there",
    );
    let from = open_as_it_lies(&arguments.from)?;
    let to = match dry_run {
        false => Some(Target::open(&arguments.to)?),
        true => match Target::open_existing(&arguments.to) {
            Ok(to) => Some(to),
            // It is not there yet.
            Err(Failure::Not(_)) => None,
            Err(failure) => return Err(failure),
        },
    };
    let scheme = |uri: &str| uri.split_once("://").map(|(scheme, _)| scheme.to_owned());
    let same = match &to {
        Some(to) => to.store.info().component_sha256 == from.info().component_sha256,
        None => scheme(&arguments.from) == scheme(&arguments.to),
    };
    let bar = super::bar(from.usage().ok().and_then(|usage| usage.chunks));
    let pace = Pace { rate: arguments.rate.filter(|_| !dry_run), begun: Instant::now() };
    let mut copy = Copy { from: &from, to: to.as_ref(), same, dry_run, pace, bar, copied: Copied::default() };
    each_page_of_chunks(&from, &mut |entries| copy.chunks(&entries))?;
    each_page_of_manifests(&from, &mut |entries| entries.iter().try_for_each(|entry| copy.manifest(entry)))?;
    copy.bar.finish_and_clear();
    let Copied { chunks, manifests, bytes, existed, failed } = copy.copied;
    if arguments.json {
        let (from, to) = (&arguments.from, &arguments.to);
        show::json(&json!({
            "from": from, "to": to, "dry_run": dry_run, "chunks": chunks, "manifests": manifests, "bytes": bytes,
            "existed": existed, "failed": failed,
        }));
    } else {
        let what = if dry_run { "would be copied" } else { "copied" };
        let (chunks, manifests) = (show::count(chunks, "chunk"), show::count(manifests, "manifest"));
        let there = show::count(existed, "chunk");
        let were = if existed == 1 { "was" } else { "were" };
        println!("{chunks} and {manifests} {what}, {}; {there} {were} there; {failed} failed", show::bytes(bytes));
    }
    if failed > 0 { Err(Failure::Not(None)) } else { Ok(()) }
}

impl Copy<'_> {
    /// The chunks of a page that are not there.
    fn chunks(&mut self, entries: &[ChunkEntry]) -> Outcome {
        let hashes: Vec<&[u8]> = entries.iter().map(|entry| entry.hash.as_slice()).collect();
        if hashes.is_empty() {
            return Ok(());
        }
        let there = match self.to {
            Some(to) => {
                let there = to.store.exists_many(&hashes, &BatchOptions::default());
                there.map_err(Failure::unable_of("copy to", to.store.uri()))?
            }
            None => vec![Ok(Presence::Absent); hashes.len()],
        };
        let there = there.into_iter().map(|presence| matches!(presence, Ok(Presence::Present(_))));
        let missing = entries.iter().zip(there).filter(|(_, there)| !there).map(|(entry, _)| entry.clone());
        let missing: Vec<_> = missing.collect();
        self.copied.existed += (entries.len() - missing.len()) as u64;
        self.bar.inc((entries.len() - missing.len()) as u64);
        let Some(to) = self.to.filter(|_| !self.dry_run) else {
            self.copied.chunks += missing.len() as u64;
            self.copied.bytes += missing.iter().filter_map(|entry| entry.bytes).sum::<u64>();
            return Ok(());
        };
        let options = match to.store.info().durable {
            true => BatchOptions::default().with_durable(),
            false => BatchOptions::default(),
        };
        for batch in batches(&missing) {
            let hashes: Vec<&[u8]> = batch.iter().map(|entry| entry.hash.as_slice()).collect();
            let plain: Vec<bool> = batch.iter().map(|entry| entry.layout == 1).collect();
            copy_chunks(self.from, to, &hashes, &plain, &options, &mut self.copied)?;
            self.pace.keep(self.copied.bytes);
            self.bar.inc(batch.len() as u64);
            self.bar.set_message(show::bytes(self.copied.bytes));
        }
        Ok(())
    }

    fn manifest(&mut self, entry: &ManifestEntry) -> Outcome {
        let Copy { from, to, same, .. } = *self;
        // Such a name is the key that the backend made of a longer one: another backend would make another.
        if entry.name.starts_with('\0') && !same {
            self.copied.failed += 1;
            eprintln!(
                "kv-store: the manifest {:?} is not copied: its name is too long to be listed whole, and only a store of the same \
                 backend knows it by this",
                entry.name
            );
            return Ok(());
        }
        let Some(to) = to.filter(|_| !self.dry_run) else {
            self.copied.manifests += 1;
            self.copied.bytes += entry.bytes.unwrap_or(0);
            return Ok(());
        };
        let content = from.get_stored_manifest(&entry.name).map_err(Failure::unable_of("copy from", from.uri()))?;
        // It was removed since it was listed.
        let Some(content) = content else { return Ok(()) };
        match to.under(content.descriptor)?.put_manifest(&entry.name, &content.value) {
            Ok(()) => {
                self.copied.manifests += 1;
                self.copied.bytes += content.value.len() as u64;
            }
            Err(error) => {
                self.copied.failed += 1;
                eprintln!("kv-store: manifest {:?}: {error}", entry.name);
            }
        }
        self.pace.keep(self.copied.bytes);
        Ok(())
    }
}

/// `plain`: whether each is without an envelope, so that nothing but its key may tell that it is damaged.
fn copy_chunks(
    from: &Store,
    to: &Target,
    hashes: &[&[u8]],
    plain: &[bool],
    options: &BatchOptions,
    copied: &mut Copied,
) -> Outcome {
    let answers = from.get_stored(hashes).map_err(Failure::unable_of("copy from", from.uri()))?;
    let mut contents = Vec::with_capacity(hashes.len());
    for ((hash, plain), answer) in hashes.iter().zip(plain).zip(answers) {
        match answer {
            Ok(Some(content)) => contents.push((*hash, content, *plain && hash.len() == 8)),
            Ok(None) => {}
            Err(error) => {
                copied.failed += 1;
                eprintln!("kv-store: chunk {}: {error}", hex::encode(hash));
            }
        }
    }
    // Where the others of a batch are hashes of their content, one that is not is damaged.
    let keyed = contents.iter().filter(|(hash, content, may_be)| *may_be && is_hash_of(hash, &content.value)).count();
    if keyed * 2 > contents.len() {
        contents.retain(|(hash, content, may_be)| {
            let sound = !may_be || is_hash_of(hash, &content.value);
            if !sound {
                copied.failed += 1;
                eprintln!("kv-store: chunk {} is damaged and not copied", hex::encode(hash));
            }
            sound
        });
    }
    let mut groups: BTreeMap<Option<DescriptorDigest>, Vec<HashAndValue>> = BTreeMap::new();
    for (hash, content, _) in &contents {
        groups.entry(content.descriptor).or_default().push((hash, &content.value));
    }
    for (descriptor, group) in &groups {
        let store = to.under(*descriptor)?;
        put_chunks(&store, group, options, copied)?;
    }
    Ok(())
}

type HashAndValue<'a> = (&'a [u8], &'a [u8]);

/// Chunks of one descriptor.
fn put_chunks(to: &Store, group: &[HashAndValue], options: &BatchOptions, copied: &mut Copied) -> Outcome {
    let pieces: Vec<[&[u8]; 1]> = group.iter().map(|(_, content)| [*content]).collect();
    let new: Vec<NewChunk> = group.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
    let outcomes = to.put_many(&new, options, None).map_err(Failure::unable_of("copy to", to.uri()))?;
    for (outcome, chunk) in outcomes.into_iter().zip(&new) {
        match outcome {
            Ok(Put::New) => copied.chunks += 1,
            Ok(Put::Existed) => copied.existed += 1,
            Err(error) => {
                copied.failed += 1;
                eprintln!("kv-store: chunk {}: {error}", hex::encode(chunk.hash));
                continue;
            }
        }
        copied.bytes += chunk.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
    }
    Ok(())
}

/// Where a copy goes: a handle for each descriptor, on one store.
struct Target {
    uri: String,
    /// Of what has none.
    store: Rc<Store>,
    described: RefCell<BTreeMap<DescriptorDigest, Rc<Store>>>,
}

impl Target {
    fn open(uri: &str) -> Outcome<Self> {
        Target::of(uri, open(uri)?)
    }

    fn open_existing(uri: &str) -> Outcome<Self> {
        Target::of(uri, open_existing(uri)?)
    }

    fn of(uri: &str, store: Store) -> Outcome<Self> {
        store.as_it_lies(None).map_err(Failure::unable)?;
        Ok(Target { uri: uri.to_owned(), store: Rc::new(store), described: RefCell::default() })
    }

    /// The handle whose values lie under a descriptor.
    fn under(&self, descriptor: Option<DescriptorDigest>) -> Outcome<Rc<Store>> {
        let Some(digest) = descriptor else { return Ok(self.store.clone()) };
        if let Some(there) = self.described.borrow().get(&digest) {
            return Ok(there.clone());
        }
        let store = open(&self.uri)?;
        store.as_it_lies(descriptor).map_err(Failure::unable)?;
        let made = Rc::new(store);
        self.described.borrow_mut().insert(digest, made.clone());
        Ok(made)
    }
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
