//! Whose a directory is. A store leaves an empty file `.local-fs` in its directory, the token-exact cache (`kv-cache`) leaves
//! `.token-cache`, a segment store `.segments`, and none opens what another has marked: each would take the other's files for strangers, and never clean up.
//!
//! Directories of former versions have no marker. One without any is taken for a cache where it holds rows, and for a store otherwise.

use kv_store_sdk::files::{Directory, SizeOutcome, WriteRequest};
use kv_store_sdk::{Error, Result};

pub const MARKER: &str = ".local-fs";
const MARKER_OF_CACHES: &str = ".token-cache";
const MARKER_OF_SEGMENTS: &str = ".segments";
/// Names that are looked at in a directory without a marker. A cache has little else than rows.
const LOOKED_AT: u32 = 256;

/// Refuse a directory of the cache, and mark one that has no marker yet.
pub fn claim(directory: &Directory) -> Result<()> {
    let there = directory.sizes(&[MARKER, MARKER_OF_CACHES, MARKER_OF_SEGMENTS].map(str::to_owned))?;
    let is_there = |at: usize| matches!(there.get(at), Some(SizeOutcome::Size(_)));
    if is_there(0) {
        return Ok(());
    }
    if is_there(2) {
        return Err(Error::invalid("the directory holds a segment store: open it as segments://, or name another one"));
    }
    let holds_rows =
        || directory.entries("", None, LOOKED_AT).is_ok_and(|page| page.iter().any(|entry| is_row(&entry.name)));
    if is_there(1) || holds_rows() {
        return Err(Error::invalid(
            "the directory holds rows of the token-exact cache (kv-cache), not a store: give the store a directory of its own (for the \
             rows: kv-store cache ls, gc)",
        ));
    }
    // A store that cannot be written to can still be read.
    let request = WriteRequest { path: MARKER.to_owned(), content: Vec::new(), replace: false };
    let _ = directory.write(&[request], false);
    Ok(())
}

/// `<64 hex digits>.kvc`.
fn is_row(name: &str) -> bool {
    let digits = name.strip_suffix(".kvc");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_known_by_their_names() {
        assert!(is_row(&("ab".repeat(32) + ".kvc")));
        for other in ["a.kvc", "chunks", ".token-cache", &"ab".repeat(32), &("xy".repeat(32) + ".kvc")] {
            assert!(!is_row(other), "{other}");
        }
    }

    #[test]
    fn no_manifest_has_the_name_of_a_marker() {
        for marker in [MARKER, MARKER_OF_CACHES, MARKER_OF_SEGMENTS] {
            assert_ne!(crate::layout::manifest_path(marker), marker);
            assert_eq!(crate::layout::manifest_name(marker), None);
        }
    }
}
