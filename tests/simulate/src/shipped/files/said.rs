//! What the index log of a segment store says, what lies in its segments, and what a power loss would leave of both, read as
//! `docs/segments.md` has the formats: nothing of `core` is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::hashed::HashMap;
use super::STORE;
use super::tree::{Lost, ROOT, Tree};

/// The space of a key, and its bytes.
pub type RecordKey = (u8, Vec<u8>);

const LOG_HEADER: usize = 40;
const FRAME_HEADER: usize = 16;
const RECORD_HEADER: usize = 40;
const UNIT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    pub segment: u32,
    unit: u32,
    len: u32,
}

/// What a log says.
#[derive(Clone, Default)]
pub struct Said {
    pub segments: BTreeSet<u32>,
    records: BTreeMap<RecordKey, At>,
    bad: BTreeMap<u32, u32>,
}

/// A value as it lies, and whether its record does not hold.
pub type Lying = (Vec<u8>, bool);

/// What a store holds.
pub struct Holds {
    pub segments: BTreeSet<u32>,
    /// The process that knows of a sync of the log that has failed.
    pub log_unsynced_by: Option<usize>,
    /// The same of the segments in which values lie, where the log says nothing of it yet.
    pub unsynced_by: BTreeMap<RecordKey, usize>,
    /// What lies in segments whose files are gone.
    pub without_file: BTreeSet<RecordKey>,
    pub visible: BTreeMap<RecordKey, Lying>,
    /// The oldest that a power loss may leave.
    pub durable: BTreeMap<RecordKey, Lying>,
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

impl Said {
    pub fn find(&self, key: &RecordKey) -> Option<At> {
        let at = self.records.get(key)?;
        self.bad.get(&at.segment).is_none_or(|from| at.unit < *from).then_some(*at)
    }

    /// One entry: how many bytes it has.
    fn apply(&mut self, bytes: &[u8]) -> Option<usize> {
        let (first, len) = (*bytes.first()?, usize::from(*bytes.get(1)?));
        let (kind, space) = (first & 15, first >> 4);
        let key = |at: usize| bytes.get(at..at + len).map(|key| (space, key.to_vec()));
        Some(match kind {
            1 => {
                let at = At { segment: number(bytes, 2)?, unit: number(bytes, 6)?, len: number(bytes, 10)? };
                let key = key(14)?;
                self.records.remove(&key);
                // Of a segment that nobody took it says nothing.
                if self.segments.contains(&at.segment) {
                    self.records.insert(key, at);
                }
                14 + len
            }
            2 => {
                self.records.remove(&key(2)?);
                2 + len
            }
            3 => {
                self.segments.insert(number(bytes, 2)?);
                6
            }
            4 => {
                let segment = number(bytes, 2)?;
                self.segments.remove(&segment);
                self.bad.remove(&segment);
                self.records.retain(|_, at| at.segment != segment);
                6
            }
            5 => {
                let (segment, from) = (number(bytes, 2)?, number(bytes, 6)?);
                if self.segments.contains(&segment) {
                    let lowest = self.bad.entry(segment).or_insert(from);
                    *lowest = from.min(*lowest);
                }
                10
            }
            6 => 10,
            _ => return None,
        })
    }
}

/// Read a log: what it says after each of its frames, and where that ends.
fn read(log: &[u8], each: &mut dyn FnMut(&Said, usize)) -> (Said, usize) {
    let mut said = Said::default();
    let sum = long(log, 32).filter(|sum| XxHash3_64::oneshot(&log[..32]) == *sum && log.starts_with(b"kvslog\0\x01"));
    let Some(mut behind) = sum else { return (said, 0) };
    let mut at = LOG_HEADER;
    each(&said, at);
    while let Some((len, sum)) = long(log, at).zip(long(log, at + 8)) {
        let entries = usize::try_from(len).ok().and_then(|len| log.get(at + FRAME_HEADER..)?.get(..len));
        let Some(mut entries) = entries.filter(|entries| {
            let expected = XxHash3_64::oneshot_with_seed(behind, entries) ^ len.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b76_736c;
            !entries.is_empty() && expected == sum
        }) else {
            break;
        };
        while !entries.is_empty() {
            let taken = said.apply(entries).expect("an entry of a whole frame is one of those of docs/segments.md");
            entries = &entries[taken..];
        }
        (at, behind) = (at + FRAME_HEADER + len as usize, sum);
        each(&said, at);
    }
    (said, at)
}

/// The value that lies in a segment at a place, and whether its record does not hold.
fn value(segment: &[u8], at: At, (space, key): &RecordKey) -> Lying {
    let begin = at.unit as usize * UNIT;
    let from = begin + RECORD_HEADER + key.len();
    let bytes = segment.get(begin..from + at.len as usize).unwrap_or_default();
    let Some((head, value)) = bytes.split_at_checked(RECORD_HEADER + key.len()) else { return (Vec::new(), true) };
    let mut expected = b"kvsr\x01".to_vec();
    expected.extend([key.len() as u8, *space, 0]);
    expected.extend(at.segment.to_le_bytes().into_iter().chain(at.len.to_le_bytes()).chain([0; 8]));
    let sum = XxHash3_128::oneshot(&[&expected, key.as_slice(), value].concat()).to_le_bytes();
    let holds = head[..24] == expected[..] && head[24..40] == sum && head[40..] == **key;
    (value.to_vec(), !holds)
}

fn path_of(segment: u32) -> String {
    format!("{STORE}/s-{segment:08x}")
}

/// What is sure of records after a power loss.
struct OnDisk<'a> {
    tree: &'a Tree,
    segments: HashMap<u32, Vec<Arc<Vec<u8>>>>,
}

impl OnDisk<'_> {
    /// All that may be left of a segment. Nothing: perhaps the segment itself is not.
    fn versions(&mut self, segment: u32) -> &[Arc<Vec<u8>>] {
        let tree = self.tree;
        self.segments.entry(segment).or_insert_with(|| {
            let left = tree.left(&path_of(segment));
            let all: Option<Vec<_>> = left.into_iter().map(|left| left.map(|(versions, _)| versions)).collect();
            all.unwrap_or_default().concat()
        })
    }

    fn has(&mut self, at: At, key: &RecordKey) -> Option<Lying> {
        let versions = self.versions(at.segment);
        let first = value(versions.first()?, at, key);
        let all = versions.iter().all(|version| {
            let (_, damaged) = value(version, at, key);
            !damaged
        });
        all.then_some(first)
    }
}

/// What the store holds under these keys.
pub fn holds(tree: &Tree, keys: &[RecordKey]) -> Holds {
    let file = |path: &str| tree.resolve(ROOT, path).and_then(|node| tree.file(node).map(|file| file.bytes())).ok();
    let log = format!("{STORE}/index");
    let now = file(&log).map(|log| read(&log, &mut |_, _| ()).0).unwrap_or_default();
    let (mut visible, mut without_file) = (BTreeMap::new(), BTreeSet::new());
    for key in keys {
        if let Some(at) = now.find(key) {
            let segment = file(&path_of(at.segment));
            if segment.is_none() {
                without_file.insert(key.clone());
            }
            visible.insert(key.clone(), value(&segment.unwrap_or_default(), at, key));
        }
    }
    let mut on_disk = OnDisk { tree, segments: HashMap::default() };
    let mut durable: Option<BTreeMap<RecordKey, Lying>> = None;
    for left in tree.left(&log) {
        let versions = left.map(|(versions, _)| versions).unwrap_or_default();
        let own = sure(&versions, keys, &mut on_disk);
        durable = Some(match durable {
            None => own,
            Some(mut before) => {
                before.retain(|key, _| own.contains_key(key));
                before
            }
        });
    }
    let mut durable = durable.unwrap_or_default();
    // What is damaged is as durable as it is.
    for (key, lying) in visible.iter().filter(|(_, (_, damaged))| *damaged) {
        durable.entry(key.clone()).or_insert_with(|| lying.clone());
    }
    let lost = |path: &str| tree.resolve(ROOT, path).and_then(|node| tree.file(node).map(|file| file.lost)).ok()?;
    let in_segment = |key: &RecordKey| {
        let At { segment, .. } = now.find(key)?;
        let Lost { first, last } = lost(&path_of(segment))?;
        // The last one has had the log say what it did not take for synced. What it did take for that is excused, if another one was told first.
        let is_said = now.bad.contains_key(&segment);
        (!is_said || first != last).then(|| (key.clone(), if is_said { first } else { last }))
    };
    let unsynced_by = keys.iter().filter_map(in_segment).collect();
    Holds {
        log_unsynced_by: lost(&log).map(|lost| lost.last),
        unsynced_by,
        without_file,
        segments: now.segments,
        visible,
        durable,
    }
}

/// What is there whichever part of a log is left: all that lay on the disk before, and of what came later any number of frames, because each
/// frame says behind which one it lies.
fn sure(versions: &[Arc<Vec<u8>>], keys: &[RecordKey], on_disk: &mut OnDisk<'_>) -> BTreeMap<RecordKey, Lying> {
    let (Some(oldest), Some(newest)) = (versions.first(), versions.last()) else { return BTreeMap::new() };
    let (_, least) = read(oldest, &mut |_, _| ());
    let mut sure: Option<BTreeMap<RecordKey, Lying>> = None;
    let mut each = |said: &Said, end: usize| {
        if end < least {
            return;
        }
        let mut has = |key: &RecordKey| on_disk.has(said.find(key)?, key);
        match &mut sure {
            None => sure = Some(keys.iter().filter_map(|key| Some((key.clone(), has(key)?))).collect()),
            Some(sure) => sure.retain(|key, _| has(key).is_some()),
        }
    };
    read(newest, &mut each);
    sure.unwrap_or_default()
}

/// Where in its segment the value of a key lies.
pub fn place_of(tree: &Tree, key: &RecordKey) -> Option<(String, std::ops::Range<usize>)> {
    let log = tree.resolve(ROOT, &format!("{STORE}/index")).and_then(|node| tree.file(node)).ok()?.bytes();
    let at = read(&log, &mut |_, _| ()).0.find(key)?;
    let begin = at.unit as usize * UNIT + RECORD_HEADER + key.1.len();
    Some((path_of(at.segment), begin..begin + at.len as usize))
}
