//! What the objects of the backend show, as `guests/mooncake/src/manifest.rs` lays them out: read here anew, so that the rules do not believe
//! the backend.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooncake_server::coro::Id;
use twox_hash::XxHash3_64;

use super::super::server::{Stage, Value};
use crate::hashed::HashMap;
use crate::names::Stored;

/// What the keys of the store begin with, which is the name in its URI.
const NAMESPACE: &str = "one";
const SLOTS: usize = 32;
const MAGIC: &[u8] = b"kvmoon2\n";
const HEAD: usize = 32;
const CHECKSUM_AT: usize = 24;

/// The objects of each place, and the other way round.
pub struct Places {
    stored: Vec<Stored>,
    keys: Vec<Vec<String>>,
    pub by_key: HashMap<String, usize>,
}

impl Places {
    pub fn of(places: &[Stored]) -> Self {
        let keys: Vec<Vec<String>> = places.iter().map(|place| keys_of(place)).collect();
        let of_place =
            |(place, keys): (usize, &Vec<String>)| keys.iter().map(move |key| (key.clone(), place)).collect::<Vec<_>>();
        let by_key = keys.iter().enumerate().flat_map(of_place).collect();
        Places { stored: places.to_vec(), keys, by_key }
    }

    /// The place that an object is of.
    pub fn of_object(&self, key: &str) -> Option<&Stored> {
        self.by_key.get(key).and_then(|place| self.stored.get(*place))
    }

    pub fn keys(&self, place: usize) -> &[String] {
        self.keys.get(place).map_or(&[], Vec::as_slice)
    }
}

pub fn is_chunk(key: &str) -> bool {
    key.strip_prefix(NAMESPACE).is_some_and(|rest| rest.starts_with("/c/"))
}

/// The objects that a place may have: one of a chunk, and the slots of a manifest.
pub fn keys_of(place: &[u8]) -> Vec<String> {
    match place.split_first() {
        Some((b'm', name)) => {
            let name = kv_store_sdk::key::escape_listed(&String::from_utf8_lossy(name));
            (0..SLOTS).map(|slot| format!("{NAMESPACE}/m/{name}/{slot}")).collect()
        }
        Some((_, hash)) => vec![format!("{NAMESPACE}/c/{}", hex::encode(hash))],
        None => Vec::new(),
    }
}

/// Generation and random number: the greatest is the manifest.
type Order = (u64, u64);

/// A count of what was written, and how many replicas the object had: while both are the same, so is what it shows.
type Looked = (u64, usize);

/// What an object shows.
struct Shown {
    of: Id,
    raw: Vec<u8>,
    /// When it was last compared.
    looked: Looked,
    /// None: it is no version of a manifest.
    what: Option<(Order, Value)>,
}

/// What was seen of objects.
#[derive(Default)]
pub struct Seen {
    by_key: BTreeMap<String, Shown>,
    /// What lay under each place, and when that was.
    last: Option<(Stage, Vec<Option<Value>>)>,
}

impl Seen {
    /// Note what an object has. `bytes`: None: nobody can read it now.
    pub fn note(&mut self, key: &str, of: Id, looked: Looked, bytes: impl FnOnce() -> Option<Vec<u8>>) {
        let known = self.by_key.get_mut(key).filter(|known| known.of == of);
        if known.as_ref().is_some_and(|known| known.looked == looked) {
            return;
        }
        // What its node lost before anybody looked is listed, and counts as damaged.
        let Some(raw) = bytes().or_else(|| known.is_none().then(Vec::new)) else { return };
        match known {
            Some(known) if known.raw == raw => known.looked = looked,
            _ => {
                let what = if is_chunk(key) { chunk(&raw) } else { version(key, &raw) };
                self.by_key.insert(key.to_owned(), Shown { of, raw, looked, what });
            }
        }
    }

    /// Keep what is of objects that are there.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.by_key.retain(|key, _| is_there(key));
    }

    /// What lies under each place, where nothing has changed since it was last looked at.
    pub fn at(&self, stage: Stage) -> Option<Vec<Option<Value>>> {
        self.last.as_ref().filter(|(last, _)| *last == stage).map(|(_, values)| values.clone())
    }

    /// The same, after all objects were noted.
    pub fn values(&mut self, places: &Places, stage: Stage) -> Vec<Option<Value>> {
        let mut greatest: Vec<Option<&(Order, Value)>> = vec![None; places.keys.len()];
        for (key, shown) in &self.by_key {
            let place = places.by_key.get(key).and_then(|place| greatest.get_mut(*place));
            let Some((place, what)) = place.zip(shown.what.as_ref()) else { continue };
            if place.is_none_or(|(order, _)| *order <= what.0) {
                *place = Some(what);
            }
        }
        let values: Vec<Option<Value>> = greatest.into_iter().map(|of| of.map(|(_, value)| value.clone())).collect();
        self.last = Some((stage, values.clone()));
        values
    }
}

/// What follows the bytes of a chunk counts for nothing.
fn chunk(raw: &[u8]) -> Option<(Order, Value)> {
    Some(((0, 0), Arc::new(raw.split_last().map_or(Vec::new(), |(_, bytes)| bytes.to_vec()))))
}

fn version(key: &str, raw: &[u8]) -> Option<(Order, Value)> {
    let (head, content) = raw.split_at_checked(HEAD)?;
    let (covered, sum) = head.split_at(CHECKSUM_AT);
    let is_whole = covered.starts_with(MAGIC)
        && XxHash3_64::oneshot(&[covered, key.as_bytes(), content].concat()).to_le_bytes() == *sum;
    let number = |at: usize| u64::from_le_bytes(covered[at..at + 8].try_into().expect("eight bytes"));
    is_whole.then(|| ((number(8), number(16)), Arc::new(content.to_vec())))
}
