//! What the index log of a segment store says, what lies in its segments, and what a power loss would leave of both, read as
//! `docs/segments.md` has the formats: nothing of `core` is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use simulated_files::tree::{File, ROOT, Tree};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::STORE;
use crate::hashed::HashMap;

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
pub type Lying = (Arc<Vec<u8>>, bool);

/// What a store holds, of each of the keys that are asked for.
pub struct Holds {
    pub segments: BTreeSet<u32>,
    /// The process that knows of a sync of the log that has failed.
    pub log_unsynced_by: Option<usize>,
    pub of: Vec<Held>,
}

/// What was written after a sync of its file had failed: Linux writes that to the disk, and the simulated disk does not.
const NOBODY: usize = usize::MAX;

#[derive(Default)]
pub struct Held {
    pub visible: Option<Lying>,
    /// The oldest that a power loss may leave.
    pub durable: Option<Lying>,
    /// The process that knows of a sync of the segment in which it lies that has failed, and the log says nothing of it yet.
    pub unsynced_by: Option<usize>,
    /// It lies in a segment whose file is gone.
    pub without_file: bool,
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

/// How far a log was read: most of what is looked at is what was looked at before, with a few frames behind it.
#[derive(Clone, Default)]
struct Read {
    log: Arc<Vec<u8>>,
    said: Said,
    /// Behind the last whole frame. 0: it has no header.
    at: usize,
    /// The sum of that frame.
    behind: u64,
}

impl Read {
    fn of(log: &Arc<Vec<u8>>) -> Self {
        let mut read = Read::default();
        read.go_on(log, &mut |_, _| ());
        read
    }

    /// Read a log, as far as it is not the one that was read before. `each` has what it says before the first frame that was not read before, and
    /// behind each from there on, and where that is.
    fn go_on(&mut self, log: &Arc<Vec<u8>>, each: &mut dyn FnMut(&Said, usize)) {
        if self.at == 0 || log.get(..self.at) != self.log.get(..self.at) {
            *self = Read::default();
            let sum =
                long(log, 32).filter(|sum| XxHash3_64::oneshot(&log[..32]) == *sum && log.starts_with(b"kvslog\0\x01"));
            let Some(sum) = sum else { return };
            (self.at, self.behind) = (LOG_HEADER, sum);
        }
        self.log = log.clone();
        each(&self.said, self.at);
        while let Some((len, sum)) = long(log, self.at).zip(long(log, self.at + 8)) {
            let entries = usize::try_from(len).ok().and_then(|len| log.get(self.at + FRAME_HEADER..)?.get(..len));
            let Some(mut entries) = entries.filter(|entries| {
                let expected = XxHash3_64::oneshot_with_seed(self.behind, entries);
                let expected = expected ^ len.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b76_736c;
                !entries.is_empty() && expected == sum
            }) else {
                break;
            };
            while !entries.is_empty() {
                let taken =
                    self.said.apply(entries).expect("an entry of a whole frame is one of those of docs/segments.md");
                entries = &entries[taken..];
            }
            (self.at, self.behind) = (self.at + FRAME_HEADER + len as usize, sum);
            each(&self.said, self.at);
        }
    }
}

/// Where in a segment a record lies, as far as that has its bytes.
fn record<'a>(segment: &'a [u8], at: At, (_, key): &RecordKey) -> &'a [u8] {
    let begin = at.unit as usize * UNIT;
    segment.get(begin..begin + RECORD_HEADER + key.len() + at.len as usize).unwrap_or_default()
}

/// The value of a record, and whether that does not hold.
fn value(bytes: &[u8], at: At, (space, key): &RecordKey) -> Lying {
    let Some((head, value)) = bytes.split_at_checked(RECORD_HEADER + key.len()) else { return (Arc::default(), true) };
    let mut expected = b"kvsr\x01".to_vec();
    expected.extend([key.len() as u8, *space, 0]);
    expected.extend(at.segment.to_le_bytes().into_iter().chain(at.len.to_le_bytes()).chain([0; 8]));
    let sum = XxHash3_128::oneshot(&[&expected, key.as_slice(), value].concat()).to_le_bytes();
    let holds = head[..24] == expected[..] && head[24..40] == sum && head[40..] == **key;
    (Arc::new(value.to_vec()), !holds)
}

/// A record that was compared with its checksum.
struct Compared {
    bytes: Vec<u8>,
    lying: Lying,
    /// When it was last asked for.
    used: u64,
}

/// What was read when a store was last looked at.
#[derive(Default)]
pub struct Known {
    log: Read,
    /// What is on the disk of each file that the log may be.
    oldest: Vec<Read>,
    /// By the number of its key, and where it lies.
    records: HashMap<(usize, At), Vec<Compared>>,
    looks: u64,
}

impl Known {
    /// What lies at a place of a segment.
    fn value(&mut self, segment: &[u8], at: At, number: usize, key: &RecordKey) -> Lying {
        let bytes = record(segment, at, key);
        let all = self.records.entry((number, at)).or_default();
        if let Some(known) = all.iter_mut().find(|known| known.bytes == bytes) {
            known.used = self.looks;
            return known.lying.clone();
        }
        let lying = value(bytes, at, key);
        all.push(Compared { bytes: bytes.to_vec(), lying: lying.clone(), used: self.looks });
        lying
    }

    /// Forget what was not asked for any more.
    fn looked(&mut self) {
        let looks = self.looks;
        self.records.retain(|_, all| {
            all.retain(|known| known.used == looks);
            !all.is_empty()
        });
        self.looks += 1;
    }
}

fn path_of(segment: u32) -> String {
    format!("{STORE}/s-{segment:08x}")
}

/// What is sure of records after a power loss.
struct OnDisk<'a> {
    tree: &'a Tree,
    known: &'a mut Known,
    segments: HashMap<u32, Vec<Arc<Vec<u8>>>>,
}

impl OnDisk<'_> {
    /// The oldest. None: perhaps another one is left, or none.
    fn has(&mut self, at: At, number: usize, key: &RecordKey) -> Option<Lying> {
        let OnDisk { tree, known, segments } = self;
        // All that may be left of a segment. Nothing: perhaps the segment itself is not.
        let versions = segments.entry(at.segment).or_insert_with(|| {
            let left = tree.left(&path_of(at.segment));
            let all: Option<Vec<_>> = left.into_iter().map(|left| left.map(|(versions, _)| versions)).collect();
            all.unwrap_or_default().concat()
        });
        let first = known.value(versions.first()?, at, number, key);
        let all = versions.iter().all(|version| {
            let (_, damaged) = known.value(version, at, number, key);
            !damaged
        });
        all.then_some(first)
    }
}

/// What the store holds under these keys, which are the same each time.
pub fn holds(tree: &Tree, keys: &[RecordKey], known: &mut Known) -> Holds {
    let file = |path: &str| tree.resolve(ROOT, path).and_then(|node| tree.file(node)).ok();
    let log = format!("{STORE}/index");
    let mut now = std::mem::take(&mut known.log);
    match file(&log) {
        Some(file) => now.go_on(&file.bytes(), &mut |_, _| ()),
        None => now = Read::default(),
    }
    let mut of: Vec<Held> = keys.iter().map(|_| Held::default()).collect();
    let mut files: HashMap<u32, Option<&File>> = HashMap::default();
    for ((number, key), held) in keys.iter().enumerate().zip(&mut of) {
        let Some(at) = now.said.find(key) else { continue };
        let file = *files.entry(at.segment).or_insert_with(|| file(&path_of(at.segment)));
        let bytes = file.map(File::bytes).unwrap_or_default();
        held.without_file = file.is_none();
        held.visible = Some(known.value(&bytes, at, number, key));
        let Some((lost, then)) = file.and_then(File::when_lost) else { continue };
        let is_said = now.said.bad.contains_key(&at.segment);
        let (_, is_later) = known.value(then, at, number, key);
        held.unsynced_by = match is_later {
            true => Some(NOBODY),
            // The last one has had the log say what it did not take for synced. What it did take for that is excused, if another one was told first.
            false if is_said => Some(lost.first).filter(|first| *first != lost.last),
            false => Some(lost.last),
        };
    }
    let mut oldest = std::mem::take(&mut known.oldest);
    let mut on_disk = OnDisk { tree, known, segments: HashMap::default() };
    let left = tree.left(&log);
    oldest.resize_with(left.len(), Read::default);
    let mut durable: Option<Vec<Option<Lying>>> = None;
    for (left, oldest) in left.into_iter().zip(&mut oldest) {
        let versions = left.map(|(versions, _)| versions).unwrap_or_default();
        let own = sure(&versions, oldest, keys, &mut on_disk);
        durable = Some(match durable {
            None => own,
            Some(before) => before.into_iter().zip(own).map(|(before, own)| before.filter(|_| own.is_some())).collect(),
        });
    }
    for (held, durable) in of.iter_mut().zip(durable.unwrap_or_default()) {
        held.durable = durable;
    }
    // What is damaged is as durable as it is.
    for held in &mut of {
        if held.durable.is_none() {
            held.durable = held.visible.clone().filter(|(_, damaged)| *damaged);
        }
    }
    let lost = file(&log).and_then(|file| file.lost);
    let holds = Holds { log_unsynced_by: lost.map(|lost| lost.last), segments: now.said.segments.clone(), of };
    (known.log, known.oldest) = (now, oldest);
    known.looked();
    holds
}

/// What is there whichever part of a log is left: all that lay on the disk before, and of what came later any number of frames, because each
/// frame says behind which one it lies.
fn sure(versions: &[Arc<Vec<u8>>], on: &mut Read, keys: &[RecordKey], on_disk: &mut OnDisk<'_>) -> Vec<Option<Lying>> {
    let nothing = || keys.iter().map(|_| None).collect();
    let (Some(oldest), Some(newest)) = (versions.first(), versions.last()) else { return nothing() };
    on.go_on(oldest, &mut |_, _| ());
    let least = on.at;
    let mut sure: Option<Vec<Option<Lying>>> = None;
    let mut each = |said: &Said, end: usize| {
        if end < least {
            return;
        }
        let mut has = |number: usize, key: &RecordKey| on_disk.has(said.find(key)?, number, key);
        match &mut sure {
            None => sure = Some(keys.iter().enumerate().map(|(number, key)| has(number, key)).collect()),
            Some(sure) => {
                for ((number, key), sure) in keys.iter().enumerate().zip(sure) {
                    if sure.is_some() && has(number, key).is_none() {
                        *sure = None;
                    }
                }
            }
        }
    };
    if Arc::ptr_eq(oldest, newest) {
        if least > 0 {
            each(&on.said, least);
        }
    } else {
        on.clone().go_on(newest, &mut each);
    }
    sure.unwrap_or_else(nothing)
}

/// Where in its segment the value of a key lies.
pub fn place_of(tree: &Tree, key: &RecordKey) -> Option<(String, std::ops::Range<usize>)> {
    let log = tree.resolve(ROOT, &format!("{STORE}/index")).and_then(|node| tree.file(node)).ok()?.bytes();
    let at = Read::of(&log).said.find(key)?;
    let begin = at.unit as usize * UNIT + RECORD_HEADER + key.1.len();
    Some((path_of(at.segment), begin..begin + at.len as usize))
}
