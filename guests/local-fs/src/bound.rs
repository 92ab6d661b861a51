//! What the operator allows the store: the options that the host is told, which counts the files and has what is over evicted.

use kv_store_sdk::files::Directory;
use kv_store_sdk::{Options, Result};

/// What stays free where the operator does not say: the smaller of this and a twentieth of the file system.
const KEEP_FREE: u64 = 10 << 30;
/// A number of bytes, or of seconds, that makes sense.
const BYTES: std::ops::RangeInclusive<u64> = 1..=1 << 60;
const SECONDS: std::ops::RangeInclusive<u64> = 1..=u32::MAX as u64;
/// Files of a store that are worth a bound.
const ENTRIES: std::ops::RangeInclusive<u64> = 100..=1 << 40;

/// How often the host notes that a file was used, in nanoseconds (`USE_NOTED`), and how long a save takes from the moment when it renews
/// its chunks to the one when its manifest has its name.
const NOTED: u64 = 15_000_000_000;
const PUBLISHED: u64 = 1_000_000_000;
/// Seconds that chunks of saves are kept for where the operator does not say, as the host has it.
const SAVE_GRACE: u64 = 60;

/// How much later a manifest may have been used, by its time, than a chunk that it names. Who reads a manifest reads its chunks after
/// it, and their use is noted if the last note is older than a quarter of the grace.
fn lag(save_grace: Option<u64>) -> u64 {
    let quarter = save_grace.unwrap_or(SAVE_GRACE).saturating_mul(1_000_000_000) / 4;
    quarter.min(NOTED) + PUBLISHED
}

pub struct Bound {
    pub evicts: bool,
    /// How much later a manifest may have been used than a chunk that it names, in nanoseconds.
    pub lag: u64,
    /// As the host reads it.
    pub facts: Vec<(String, String)>,
}

impl Bound {
    pub fn take(options: &mut Options, directory: &Directory) -> Result<Self> {
        let max_bytes = options.take_bytes("max_bytes", BYTES)?;
        let max_entries = options.take_number("max_entries", ENTRIES)?;
        let ttl = options.take_number("ttl_s", SECONDS)?;
        let save_grace = options.take_number("save_grace_s", 0..=*SECONDS.end())?;
        let evict = options.take_choice("evict", &["false", "true"])? == "true";
        let keep_free = match options.take_bytes("keep_free", 0..=*BYTES.end())? {
            Some(bytes) => bytes,
            None => (directory.space()?.total / 20).min(KEEP_FREE),
        };
        let evicts = evict || max_bytes.is_some() || max_entries.is_some() || ttl.is_some();
        let facts = [
            ("max-bytes", max_bytes),
            ("max-entries", max_entries),
            ("ttl-s", ttl),
            ("save-grace-s", save_grace),
            ("evict", evicts.then_some(1)),
            ("keep-free", Some(keep_free)),
        ];
        let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_string())));
        Ok(Bound { evicts, lag: lag(save_grace), facts: facts.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::lag;

    #[test]
    fn a_manifest_goes_with_chunks_whose_use_was_noted_a_quarter_of_the_grace_before() {
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(lag(None), 16 * SECOND);
        assert_eq!((lag(Some(0)), lag(Some(4)), lag(Some(3600))), (SECOND, 2 * SECOND, 16 * SECOND));
        assert_eq!(lag(Some(u64::MAX)), 16 * SECOND);
    }
}
