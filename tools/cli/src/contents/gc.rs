//! `gc`: remove what was not used.

use std::time::Duration;

use kv_store_wasm::{Evicted, Eviction, Store};
use serde_json::json;

use super::du::held;
use super::{duration, each_page_of_chunks, each_page_of_manifests, now};
use crate::failure::{Failure, Outcome};
use crate::place::{Place, open_existing};
use crate::{interrupt, show};

/// Remove unused chunks and manifests from a store
///
/// The least recently used are removed first, and a manifest before the chunks that it names, as far as the backend knows. Chunks
/// that were stored or used within --grace stay, because an unpublished save may name them.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kv-store gc local-fs:///var/cache/kv --older-than 30d --dry-run\n  \
    kv-store gc local-fs:///var/cache/kv --max-bytes 500GiB\n\n\
    Exit codes: 0 the store is as asked; 1 it is still larger; 2 the store does not open, or its backend evicts nothing.")]
pub struct GcArguments {
    #[command(flatten)]
    place: Place,
    /// Remove what was unused for this long: a number and s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = duration, required_unless_present = "max_bytes")]
    older_than: Option<Duration>,
    /// Remove until the store is at most this large: bytes, or as in 20MB, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = kv_size::Bytes::flag)]
    max_bytes: Option<u64>,
    /// Keep chunks that were stored or used within this time, and 15 s more, because a use is noted so often; 0s keeps none
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
    grace: Duration,
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What went, or would go.
#[derive(Default)]
struct Gone {
    bytes: u64,
    chunks: u64,
    manifests: u64,
}

pub fn run(arguments: &GcArguments) -> Outcome {
    let _interrupt = interrupt::says("what was removed is gone, and the rest is as it was; the same gc again goes on");
    let uri = &arguments.place.uri()?;
    let store = open_existing(uri)?;
    let older = |time: Duration| now().saturating_sub(super::nanoseconds(time));
    // A use is noted now and then: the note of the last one may be older than the use by that much.
    let noted = if arguments.grace.is_zero() { Duration::ZERO } else { kv_store_wasm::limits::USE_NOTED };
    let (unused_since, keep_since) = (arguments.older_than.map(older), older(arguments.grace.saturating_add(noted)));
    let mut excess = match arguments.max_bytes {
        Some(max) => held(&store)?.bytes.saturating_sub(max),
        None => 0,
    };
    let gone = match arguments.dry_run {
        true => would_go(&store, unused_since, keep_since, excess)?,
        false => remove(&store, unused_since, keep_since, excess)?,
    };
    if let (false, Some(max)) = (arguments.dry_run, arguments.max_bytes) {
        excess = held(&store)?.bytes.saturating_sub(max);
    } else {
        excess = excess.saturating_sub(gone.bytes);
    }
    let Gone { bytes, chunks, manifests } = gone;
    if arguments.json {
        let dry_run = arguments.dry_run;
        show::json(&json!({
            "uri": uri, "dry_run": dry_run, "bytes": bytes, "chunks": chunks, "manifests": manifests, "excess": excess
        }));
    } else {
        let verb = if arguments.dry_run { "would remove" } else { "removed" };
        let (chunks, manifests) = (show::count(chunks, "chunk"), show::count(manifests, "manifest"));
        println!("{verb} {chunks} and {manifests}, {}", show::bytes(bytes));
    }
    match excess {
        0 => Ok(()),
        _ => {
            let left = show::bytes(excess);
            Err(Failure::of("gc", uri)(format!(
                "the store is still {left} above --max-bytes, because the rest was stored or used within --grace: shorten \
                 --grace, or run it again later"
            )))
        }
    }
}

fn remove(store: &Store, unused_since: Option<u64>, keep_since: u64, bytes: u64) -> Outcome<Gone> {
    let evicted = store.evict_all(&Eviction::new(bytes, unused_since, keep_since));
    let Evicted { bytes, chunks, manifests, .. } = evicted.map_err(Failure::unable_of("gc", store.uri()))?;
    Ok(Gone { bytes, chunks, manifests })
}

/// The bytes that a value takes: a listing tells those of the consumer.
fn stored_bytes(bytes: Option<u64>, layout: u8) -> u64 {
    let envelope = if layout == 2 { kv_store_wasm::ENVELOPE_BYTES } else { 0 };
    bytes.map_or(0, |bytes| bytes + envelope)
}

/// What `remove` would remove, counted by age: what of it is the least recently used needs no list of it.
fn would_go(store: &Store, unused_since: Option<u64>, keep_since: u64, excess: u64) -> Outcome<Gone> {
    // By how many octaves, in eighths, they are old.
    let mut by_age: Vec<Gone> = std::iter::repeat_with(Gone::default).take(64 * 8).collect();
    let mut gone = Gone::default();
    let now = now();
    let mut see = |used: u64, what: Gone| {
        let of_age = by_age.get_mut(age_class(now.saturating_sub(used)));
        let all = if unused_since.is_some_and(|since| used < since) { Some(&mut gone) } else { of_age };
        if let Some(all) = all {
            all.bytes += what.bytes;
            all.chunks += what.chunks;
            all.manifests += what.manifests;
        }
    };
    each_page_of_chunks(store, &mut |entries| {
        for entry in entries {
            let (bytes, used) = (stored_bytes(entry.bytes, entry.layout), entry.used.max(entry.stored).unwrap_or(0));
            if used <= keep_since {
                see(used, Gone { bytes, chunks: 1, manifests: 0 });
            }
        }
        Ok(())
    })?;
    each_page_of_manifests(store, &mut |entries| {
        for entry in entries {
            // Of one without a time nothing is known.
            if let Some(used) = entry.used.max(entry.stored) {
                see(used, Gone { bytes: stored_bytes(entry.bytes, entry.layout), chunks: 0, manifests: 1 });
            }
        }
        Ok(())
    })?;
    for class in by_age.into_iter().rev().filter(|class| class.bytes > 0) {
        let Some(needed) = excess.checked_sub(gone.bytes).filter(|needed| *needed > 0) else { break };
        // Of the last class a part.
        let part = (needed as f64 / class.bytes as f64).min(1.0);
        gone.bytes += if part < 1.0 { needed } else { class.bytes };
        gone.chunks += (class.chunks as f64 * part).ceil() as u64;
        gone.manifests += (class.manifests as f64 * part).ceil() as u64;
    }
    Ok(gone)
}

fn age_class(age: u64) -> usize {
    let octave = 63 - age.max(1).leading_zeros();
    let eighth = (age >> octave.saturating_sub(3)) & 7;
    octave as usize * 8 + eighth as usize
}

#[cfg(test)]
mod tests {
    use super::age_class;

    #[test]
    fn older_is_never_in_a_lower_class() {
        let ages: Vec<u64> = (0..64).flat_map(|octave| [1_u64 << octave, (1 << octave) + (1 << octave) / 3]).collect();
        assert!(ages.iter().map(|age| age_class(*age)).is_sorted());
        assert!(age_class(u64::MAX) < 64 * 8 && age_class(0) < 64 * 8);
    }
}
