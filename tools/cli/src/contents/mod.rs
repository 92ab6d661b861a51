//! `ls`, `du`, `gc`, `verify`, `copy`: what a whole store holds. All of them go through it page by page, so that a million chunks take no
//! more memory than a page.

mod copy;
mod du;
mod gc;
mod ls;
mod verify;

pub use copy::{CopyArguments, run as copy};
pub use du::{DuArguments, run as du};
pub use gc::{GcArguments, run as gc};
pub use ls::{LsArguments, run as ls};
pub use verify::{VerifyArguments, run as verify};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kv_store_wasm::{Buffer, ChunkEntry, ManifestEntry, Store};

use crate::failure::{Failure, Outcome};

/// Entries of one page.
const PAGE: usize = 1024;
/// Bytes of chunks that are held at once, and their number.
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_CHUNKS: usize = 256;

/// Hand each page of the chunks on.
fn each_page_of_chunks(store: &Store, see: &mut dyn FnMut(Vec<ChunkEntry>) -> Outcome) -> Outcome {
    store.chunk_pages(PAGE).try_for_each(|page| see(page.map_err(Failure::unable_of("list", store.uri()))?))
}

pub fn each_page_of_manifests(store: &Store, see: &mut dyn FnMut(Vec<ManifestEntry>) -> Outcome) -> Outcome {
    store.manifest_pages(PAGE).try_for_each(|page| see(page.map_err(Failure::unable_of("list", store.uri()))?))
}

/// A page in batches whose bytes fit the memory, as far as their lengths are known.
fn batches(mut entries: &[ChunkEntry]) -> impl Iterator<Item = &[ChunkEntry]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |entry: &&ChunkEntry| {
            bytes += entry.bytes.unwrap_or(BATCH_BYTES / 16);
            bytes <= BATCH_BYTES
        };
        let count = entries.iter().take(BATCH_CHUNKS).take_while(fits).count().max(1).min(entries.len());
        let (batch, rest) = entries.split_at_checked(count).filter(|(batch, _)| !batch.is_empty())?;
        entries = rest;
        Some(batch)
    })
}

/// Whether a key of 8 bytes is the XXH3-64 of the content, in either byte order.
fn is_hash_of(key: &[u8], content: &Buffer) -> bool {
    let hash = xxhash_rust::xxh3::xxh3_64(content);
    key == hash.to_le_bytes() || key == hash.to_be_bytes()
}

/// A bar on standard error that counts chunks; nothing where that is no terminal.
fn bar(total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{bar:30} {pos} of {len} chunks  {msg}  {eta} left",
        None => "{spinner} {pos} chunks  {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn now() -> u64 {
    nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `90s`, `15m`, `2h`, `30d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time: write a number and s, m, h or d, as in 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

/// A moment in UTC, for people: `2026-01-31 23:59:59`.
pub fn moment(nanoseconds: Option<u64>) -> String {
    let Some(nanoseconds) = nanoseconds else { return "-".into() };
    let seconds = nanoseconds / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days of eras of 400 years that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    format!("{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("2h", 7200), ("30d", 2_592_000)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "s", "1", "-1s", "1.5h", "1w", "99999999999999999999s", "é"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_dates() {
        let of = |seconds: u64| moment(Some(seconds * 1_000_000_000));
        assert_eq!(of(0), "1970-01-01 00:00:00");
        assert_eq!(of(951_826_154), "2000-02-29 12:09:14");
        assert_eq!(of(1_798_761_599), "2026-12-31 23:59:59");
        assert_eq!(moment(None), "-");
    }

    #[test]
    fn batches_fit_the_memory_and_leave_nothing_out() {
        let entry = |bytes| {
            let mut entry = ChunkEntry::default();
            (entry.hash, entry.bytes) = (vec![1], bytes);
            entry
        };
        let sizes = [Some(1), Some(BATCH_BYTES), Some(2), None, Some(3 * BATCH_BYTES), Some(5)];
        let entries: Vec<ChunkEntry> = sizes.into_iter().map(entry).collect();
        let counts: Vec<usize> = batches(&entries).map(<[_]>::len).collect();
        assert_eq!(counts, [1, 1, 2, 1, 1]);
        let many: Vec<ChunkEntry> = (0..1000).map(|_| entry(Some(1))).collect();
        assert!(batches(&many).all(|batch| batch.len() <= BATCH_CHUNKS));
        assert_eq!(batches(&many).map(<[_]>::len).sum::<usize>(), 1000);
    }
}
