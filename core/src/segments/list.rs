//! Listing: keys are in the log and nowhere else, so a listing reads it, a page at a time.

use std::collections::HashMap;

use super::format::{Behind, Key, LogEntry};
use super::log::Cursor;
use super::store::SegmentStore;
use crate::error::Error;
use crate::until::Until;

/// A value that is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Within its space.
    pub key: Vec<u8>,
    /// Bytes.
    pub len: u32,
    /// When a value of its segment was last put or used, in nanoseconds since 1970.
    pub used: u64,
}

impl SegmentStore {
    /// At most so many values of a space, and what leads to the next. `after`: what the page before led to. In a log that was written anew
    /// meanwhile the listing begins anew.
    pub fn list(
        &self,
        space: u8,
        after: Option<&str>,
        most: usize,
        until: &Until,
    ) -> Result<(Vec<Listed>, Option<String>), Error> {
        let from = after.map(parse).transpose()?;
        let mut tail = self.log.tail();
        tail.follow(&mut *self.learning(), until)?;
        let mut keeps = |entry: &LogEntry| match entry {
            LogEntry::Put { space: own, key, place } => {
                *own == space && self.known().index.find(Key { space, bytes: key }) == Some(*place)
            }
            _ => false,
        };
        let (entries, next) = tail.page(from, most, &mut keeps, until)?;
        drop(tail);
        let mut times = HashMap::new();
        let listed = entries.into_iter().filter_map(|entry| match entry {
            LogEntry::Put { key, place, .. } => {
                let used = *times.entry(place.segment).or_insert_with(|| self.last_used(place.segment));
                Some(Listed { key, len: place.len, used })
            }
            _ => None,
        });
        Ok((listed.collect(), next.map(text)))
    }
}

fn text(Cursor { inode, at, behind: Behind(behind), passed }: Cursor) -> String {
    format!("{inode:x}.{at:x}.{behind:x}.{passed:x}")
}

fn parse(text: &str) -> Result<Cursor, Error> {
    let numbers: Option<Vec<u64>> = text.split('.').map(|part| u64::from_str_radix(part, 16).ok()).collect();
    match numbers.as_deref() {
        Some([inode, at, behind, passed]) if u32::try_from(*passed).is_ok() => {
            Ok(Cursor { inode: *inode, at: *at, behind: Behind(*behind), passed: *passed as u32 })
        }
        _ => Err(Error::invalid("no place in a listing of this store")),
    }
}
