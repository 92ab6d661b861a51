//! What the operator allows the store: the options that the host is told, which counts the files and has what is over evicted.

use kv_store_sdk::files::Directory;
use kv_store_sdk::{Options, Result};

/// What stays free where the operator does not say: the smaller of this and a twentieth of the file system.
const KEEP_FREE: u64 = 10 << 30;
/// A number of bytes, or of seconds, that makes sense.
const BYTES: std::ops::RangeInclusive<u64> = 1..=1 << 60;
const SECONDS: std::ops::RangeInclusive<u64> = 1..=u32::MAX as u64;

pub struct Bound {
    pub evicts: bool,
    /// As the host reads it.
    pub facts: Vec<(String, String)>,
}

impl Bound {
    pub fn take(options: &mut Options, directory: &Directory) -> Result<Self> {
        let max_bytes = options.take_bytes("max_bytes", BYTES)?;
        let ttl = options.take_number("ttl_s", SECONDS)?;
        let save_grace = options.take_number("save_grace_s", 0..=*SECONDS.end())?;
        let evict = options.take_choice("evict", &["false", "true"])? == "true";
        let keep_free = match options.take_bytes("keep_free", 0..=*BYTES.end())? {
            Some(bytes) => bytes,
            None => (directory.space()?.total / 20).min(KEEP_FREE),
        };
        let evicts = evict || max_bytes.is_some() || ttl.is_some();
        let facts = [
            ("max-bytes", max_bytes),
            ("ttl-s", ttl),
            ("save-grace-s", save_grace),
            ("evict", evicts.then_some(1)),
            ("keep-free", Some(keep_free)),
        ];
        let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_string())));
        Ok(Bound { evicts, facts: facts.collect() })
    }
}
