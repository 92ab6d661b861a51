//! The bytes of a segment store: records in segments, and frames of entries in the index log. `docs/segments.md` has the tables.
//!
//! Invariant: what is decoded has held against its checksum. What has not is nothing, whatever its bytes are.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::payload::{Xxh3, xxh3};

/// Begins each record.
const RECORD_MAGIC: [u8; 4] = *b"kvsr";
const RECORD_VERSION: u8 = 1;
/// Before the key and the value of a record.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Records begin at multiples of it.
pub const RECORD_ALIGNMENT: u64 = 64;

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 255;
/// Spaces of keys, of which none sees another's.
pub const SPACES: usize = 4;
/// A place in units has so many bits: a segment has 16 GiB at most.
pub const UNIT_BITS: u32 = 28;

/// Begins the index log.
const LOG_MAGIC: [u8; 8] = *b"kvslog\0\x01";
pub const LOG_HEADER_BYTES: usize = 40;
/// Before the entries of a frame.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Entries of a frame have no more bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// What a value lies under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Below [`SPACES`].
    pub space: u8,
    /// One to [`MAX_KEY_BYTES`].
    pub bytes: &'a [u8],
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub segment: u32,
    /// In units of `RECORD_ALIGNMENT`.
    pub unit: u32,
    /// Bytes of the value.
    pub len: u32,
}

impl Place {
    /// In bytes.
    pub fn offset(&self) -> u64 {
        u64::from(self.unit) * RECORD_ALIGNMENT
    }
}

/// Bytes from the beginning of a record to that of the next one.
pub fn record_room(key_len: usize, value_len: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + key_len as u64 + value_len).next_multiple_of(RECORD_ALIGNMENT)
}

/// What lies before the value of a record: its header and its key.
///
/// No number of a segment is used twice, so what another segment held at a place has another number.
pub fn record_head<'a>(segment: u32, key: Key<'_>, len: u32, value: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let fields = record_fields(segment, key, len);
    [&fields, &record_sum(&fields, key, value)[..], key.bytes].concat()
}

/// What the header says of its record, before the checksum.
fn record_fields(segment: u32, key: Key<'_>, len: u32) -> [u8; RECORD_HEADER_BYTES - 16] {
    let mut fields = [0; RECORD_HEADER_BYTES - 16];
    let said = RECORD_MAGIC.into_iter().chain([RECORD_VERSION, key.bytes.len() as u8, key.space, 0]);
    let said = said.chain(segment.to_le_bytes()).chain(len.to_le_bytes());
    fields.iter_mut().zip(said).for_each(|(to, from)| *to = from);
    fields
}

fn record_sum<'a>(fields: &[u8], key: Key<'_>, value: impl Iterator<Item = &'a [u8]>) -> [u8; 16] {
    let mut sum = begin_sum(fields, key);
    value.for_each(|piece| sum.write(piece));
    sum.finish_128().to_le_bytes()
}

fn begin_sum(fields: &[u8], key: Key<'_>) -> Xxh3 {
    let mut sum = xxh3();
    sum.write(fields);
    sum.write(key.bytes);
    sum
}

/// The check of a record whose value comes bit by bit, which is summed while it is still in the processor's cache.
pub struct Checking {
    fields: [u8; RECORD_HEADER_BYTES - 16],
    sum: Xxh3,
    /// Bytes of the value that are in it.
    summed: usize,
}

impl Checking {
    /// Of the record of this key at this place.
    pub fn new(place: &Place, key: Key<'_>) -> Self {
        let fields = record_fields(place.segment, key, place.len);
        Checking { sum: begin_sum(&fields, key), fields, summed: 0 }
    }

    /// `value`: what is there of it, of which the first bytes may have been seen before.
    pub fn see<'a>(&mut self, value: impl Iterator<Item = &'a [u8]>) {
        let mut seen = self.summed;
        for piece in value {
            let new = piece.get(seen..).unwrap_or_default();
            seen = seen.saturating_sub(piece.len());
            self.sum.write(new);
            self.summed += new.len();
        }
    }

    /// Whether it is the record of this key. `head`: its header and key.
    pub fn holds(&self, head: &[u8], key: Key<'_>) -> bool {
        let Some((header, found)) = head.split_first_chunk::<RECORD_HEADER_BYTES>() else { return false };
        let Some((covered, sum)) = header.split_last_chunk::<16>() else { return false };
        // The header says of itself what the index says; then the checksum holds for all of it.
        covered == self.fields && found == key.bytes && self.sum.finish_128().to_le_bytes() == *sum
    }
}

/// The key of the record at a place, of whose value so many bytes were read too, if it holds.
pub fn record_key<'a>(bytes: &'a [u8], place: &Place) -> Option<(Key<'a>, &'a [u8])> {
    let (key_len, space) = (usize::from(*bytes.get(5)?), *bytes.get(6)?);
    let (head, value) = bytes.split_at_checked(RECORD_HEADER_BYTES + key_len)?;
    let key = Key { space, bytes: head.get(RECORD_HEADER_BYTES..)? };
    let value = value.get(..place.len as usize)?;
    let mut checking = Checking::new(place, key);
    checking.see(std::iter::once(value));
    checking.holds(head, key).then_some((key, value))
}

/// What an entry of the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// A value lies there under this key from now on.
    Put { space: u8, key: Vec<u8>, place: Place },
    /// Nothing lies under this key.
    Deleted { space: u8, key: Vec<u8> },
    /// A writer takes a new segment.
    Taken { segment: u32 },
    /// The segment is gone, and each value that lay there.
    Evicted { segment: u32 },
    /// A sync of the segment failed: what lies there from this unit on is nothing.
    Bad { segment: u32, from: u32 },
    /// What the log names of the segment and lies before this unit is on the disk. A put that follows and lies there is not meant.
    Synced { segment: u32, to: u32 },
}

const PUT: u8 = 1;
const DELETED: u8 = 2;
const TAKEN: u8 = 3;
const EVICTED: u8 = 4;
const BAD: u8 = 5;
const SYNCED: u8 = 6;

/// Of the first byte of an entry; the rest is what it says.
const SPACE_SHIFT: u32 = 4;

impl LogEntry {
    /// Bytes of an entry that puts.
    pub fn put_bytes(key_len: usize) -> u64 {
        2 + 3 * 4 + key_len as u64
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let mut keyed = |kind, space: u8, key: &[u8], numbers: &[u32]| {
            to.extend_from_slice(&[kind | space << SPACE_SHIFT, key.len() as u8]);
            numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
            to.extend_from_slice(key);
        };
        match self {
            LogEntry::Put { space, key, place } => keyed(PUT, *space, key, &[place.segment, place.unit, place.len]),
            LogEntry::Deleted { space, key } => keyed(DELETED, *space, key, &[]),
            LogEntry::Taken { segment } => keyed(TAKEN, 0, &[], &[*segment]),
            LogEntry::Evicted { segment } => keyed(EVICTED, 0, &[], &[*segment]),
            LogEntry::Bad { segment, from } => keyed(BAD, 0, &[], &[*segment, *from]),
            LogEntry::Synced { segment, to } => keyed(SYNCED, 0, &[], &[*segment, *to]),
        }
    }

    /// The first entry, and what lies behind it. None: there is none of this version.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([first, key_len], rest) = bytes.split_first_chunk::<2>()?;
        let (kind, space, key_len) = (first & 15, first >> SPACE_SHIFT, usize::from(*key_len));
        let mut rest = rest;
        let mut number = || {
            let (number, behind) = rest.split_first_chunk::<4>()?;
            rest = behind;
            Some(u32::from_le_bytes(*number))
        };
        let keyed = match kind {
            PUT => Some(Some(Place { segment: number()?, unit: number()?, len: number()? })),
            DELETED => Some(None),
            _ => None,
        };
        if let Some(place) = keyed {
            let (key, rest) = rest.split_at_checked(key_len)?;
            if key.is_empty() || usize::from(space) >= SPACES || place.is_some_and(|place| place.unit >> UNIT_BITS != 0)
            {
                return None;
            }
            let key = key.to_vec();
            let entry = match place {
                Some(place) => LogEntry::Put { space, key, place },
                None => LogEntry::Deleted { space, key },
            };
            return Some((entry, rest));
        }
        let entry = match *first {
            TAKEN => LogEntry::Taken { segment: number()? },
            EVICTED => LogEntry::Evicted { segment: number()? },
            BAD => LogEntry::Bad { segment: number()?, from: number()? },
            SYNCED => LogEntry::Synced { segment: number()?, to: number()? },
            _ => return None,
        };
        (key_len == 0).then_some((entry, rest))
    }
}

/// What tells a frame which one it lies behind. A frame that a power loss left behind a hole is none any more when something else is
/// written into the hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind(pub u64);

/// The frame of some entries that take effect together, how many of them fit it, and what comes behind it.
pub fn frame(entries: &[LogEntry], behind: Behind) -> (Vec<u8>, usize, Behind) {
    let mut bytes = vec![0; FRAME_HEADER_BYTES];
    let mut taken = 0;
    for entry in entries {
        let before = bytes.len();
        entry.encode(&mut bytes);
        if bytes.len() - FRAME_HEADER_BYTES > MAX_FRAME_BYTES {
            bytes.truncate(before);
            break;
        }
        taken += 1;
    }
    let mut sum = 0;
    if let Some((header, entries)) = bytes.split_first_chunk_mut::<FRAME_HEADER_BYTES>() {
        sum = frame_sum(entries, behind);
        header
            .iter_mut()
            .zip((entries.len() as u64).to_le_bytes().into_iter().chain(sum.to_le_bytes()))
            .for_each(|(to, from)| *to = from);
    }
    (bytes, taken, Behind(sum))
}

/// Of the length too: zeros are no frame.
fn frame_sum(entries: &[u8], Behind(behind): Behind) -> u64 {
    xxh3_64_with_seed(entries, behind) ^ (entries.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b76_736c
}

/// What lies at some place of the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Framed {
    /// Entries that take effect together, the bytes that they take, and what comes behind them.
    Entries(Vec<LogEntry>, usize, Behind),
    /// The frame is whole, and a later version has written it: what this log says cannot be known.
    Foreign,
    /// No frame: the log ends here, or its writer has not come further yet, or never did.
    Nothing,
}

pub fn framed(bytes: &[u8], behind: Behind) -> Framed {
    let whole = || {
        let (header, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        let (len, sum) = (header.first_chunk::<8>()?, header.last_chunk::<8>()?);
        let len = usize::try_from(u64::from_le_bytes(*len)).ok().filter(|len| (1..=MAX_FRAME_BYTES).contains(len))?;
        let entries = rest.get(..len)?;
        (frame_sum(entries, behind).to_le_bytes() == *sum).then_some((entries, u64::from_le_bytes(*sum)))
    };
    let Some((mut rest, sum)) = whole() else { return Framed::Nothing };
    let taken = FRAME_HEADER_BYTES + rest.len();
    let mut entries = Vec::new();
    while !rest.is_empty() {
        match LogEntry::decode(rest) {
            Some((entry, behind)) => {
                entries.push(entry);
                rest = behind;
            }
            None => return Framed::Foreign,
        }
    }
    Framed::Entries(entries, taken, Behind(sum))
}

/// What the header of a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the hashes by which an index finds keys, so that nobody can choose keys that meet.
    pub seed: u64,
    pub segment_bytes: u64,
    /// What all segments may take where the operator says nothing.
    pub max_bytes: u64,
}

impl Header {
    pub fn bytes(&self) -> [u8; LOG_HEADER_BYTES] {
        let mut header = [0; LOG_HEADER_BYTES];
        let numbers = [self.seed, self.segment_bytes, self.max_bytes].into_iter().flat_map(u64::to_le_bytes);
        header.iter_mut().zip(LOG_MAGIC.into_iter().chain(numbers)).for_each(|(to, from)| *to = from);
        if let Some((covered, sum)) = header.split_last_chunk_mut::<8>() {
            *sum = xxh3_64(covered).to_le_bytes();
        }
        header
    }

    /// With what comes behind it. None: it is not one of this version.
    pub fn read(bytes: &[u8]) -> Option<(Self, Behind)> {
        let header = bytes.first_chunk::<LOG_HEADER_BYTES>()?;
        let [_, seed, segment_bytes, max_bytes, sum] = header.as_chunks::<8>().0 else { return None };
        let [seed, segment_bytes, max_bytes] = [seed, segment_bytes, max_bytes].map(|bytes| u64::from_le_bytes(*bytes));
        let read = Header { seed, segment_bytes, max_bytes };
        (*header == read.bytes() && makes_sense(segment_bytes)).then_some((read, Behind(u64::from_le_bytes(*sum))))
    }
}

/// Whether segments can have this length.
pub fn makes_sense(segment_bytes: u64) -> bool {
    segment_bytes.is_multiple_of(RECORD_ALIGNMENT) && (1..=1 << UNIT_BITS).contains(&(segment_bytes / RECORD_ALIGNMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 7, unit: 3, len: 5 };
    const KEY: Key<'_> = Key { space: 1, bytes: b"key" };

    fn record() -> Vec<u8> {
        let mut bytes = record_head(7, KEY, 5, [&b"va"[..], b"lue"].into_iter());
        bytes.extend_from_slice(b"value");
        bytes
    }

    fn entries() -> Vec<LogEntry> {
        vec![
            LogEntry::Taken { segment: 7 },
            LogEntry::Put { space: 1, key: b"key".to_vec(), place: PLACE },
            LogEntry::Deleted { space: 3, key: vec![9; 255] },
            LogEntry::Bad { segment: 7, from: 2 },
            LogEntry::Synced { segment: 7, to: 9 },
            LogEntry::Evicted { segment: 6 },
        ]
    }

    /// What lies in segments is lost if these change. Computed with Python's xxhash, not with this code.
    #[test]
    fn golden_segments() {
        assert_eq!(
            hex::encode(record()),
            "6b7673720103010007000000050000000000000000000000c64a1aa146547ece38c5eb30efea0e2a6b657976616c7565"
        );
        let header = Header { seed: 0x1122, segment_bytes: 256 << 20, max_bytes: 1 << 40 };
        assert_eq!(
            hex::encode(header.bytes()),
            "6b76736c6f6700012211000000000000000000100000000000000000000100001c500c16e79de0a4"
        );
        let (read, first) = Header::read(&header.bytes()).unwrap();
        assert_eq!(read, header);
        let entries = [
            LogEntry::Taken { segment: 7 },
            LogEntry::Put { space: 1, key: b"key".to_vec(), place: PLACE },
            LogEntry::Deleted { space: 0, key: b"d".to_vec() },
            LogEntry::Bad { segment: 7, from: 2 },
            LogEntry::Synced { segment: 7, to: 9 },
            LogEntry::Evicted { segment: 6 },
        ];
        assert_eq!(
            hex::encode(frame(&entries, first).0),
            concat!(
                "34000000000000002cba6a19d59c95d203000700000011030700000003000000050000006b65790201640500070000000200",
                "000006000700000009000000040006000000",
            )
        );
    }

    /// The value seen two bytes at a time, each time with what came before.
    fn holds(head: &[u8], place: &Place, key: Key<'_>, value: &[u8]) -> bool {
        let mut checking = Checking::new(place, key);
        (0..=value.len()).for_each(|end| checking.see(value[..end].chunks(2)));
        checking.holds(head, key)
    }

    #[test]
    fn a_record_is_answered_only_whole_under_its_key_at_its_place() {
        let bytes = record();
        let value = |bytes: &[u8], place: &Place, key: Key<'_>| {
            let (head, value) = bytes.split_at_checked(RECORD_HEADER_BYTES + key.bytes.len())?;
            let value = value.get(..place.len as usize)?;
            holds(head, place, key, value).then_some(value.to_vec())
        };
        assert_eq!(value(&bytes, &PLACE, KEY), Some(b"value".to_vec()));
        assert_eq!(value(&[&bytes[..], b"behind it"].concat(), &PLACE, KEY), Some(b"value".to_vec()));
        assert_eq!(record_key(&bytes, &PLACE), Some((KEY, &b"value"[..])));
        for wrong in [Place { segment: 8, ..PLACE }, Place { len: 4, ..PLACE }, Place { len: 6, ..PLACE }] {
            assert_eq!((value(&bytes, &wrong, KEY), record_key(&bytes, &wrong)), (None, None));
        }
        assert_eq!(value(&bytes, &PLACE, Key { space: 1, bytes: b"kex" }), None);
        assert_eq!(value(&bytes, &PLACE, Key { space: 0, bytes: b"key" }), None);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(
                    (value(&damaged, &PLACE, KEY), record_key(&damaged, &PLACE)),
                    (None, None),
                    "byte {at} bit {bit}"
                );
            }
            assert_eq!(value(&bytes[..at], &PLACE, KEY), None);
        }
    }

    #[test]
    fn an_empty_value_is_a_record_too() {
        let (place, key) = (Place { segment: 1, unit: 0, len: 0 }, Key { space: 0, bytes: b"k" });
        let head = record_head(1, key, 0, std::iter::empty());
        assert!(holds(&head, &place, key, &[]));
        assert_eq!(record_room(1, 0), 64);
        assert_eq!(record_room(64, 24), 128);
        assert_eq!(record_room(64, 25), 192);
    }

    #[test]
    fn a_frame_takes_effect_whole_or_not_at_all() {
        let first = Behind(3);
        let (bytes, taken, next) = frame(&entries(), first);
        assert_eq!((framed(&bytes, first), taken), (Framed::Entries(entries(), bytes.len(), next), 6));
        assert_eq!(framed(&bytes, next), Framed::Nothing, "it lies behind another one");
        for cut in 0..bytes.len() {
            assert_eq!(framed(&bytes[..cut], first), Framed::Nothing, "{cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(framed(&flipped, first), Framed::Nothing, "{bit}");
        }
        for zeros in [0, 16, 17, 4096] {
            assert_eq!(framed(&vec![0; zeros], Behind(0)), Framed::Nothing);
        }
        // More than a frame takes goes into several.
        let many: Vec<LogEntry> = (0..20_000_u32)
            .map(|n| LogEntry::Put { space: 0, key: [&n.to_le_bytes()[..], &[0; 60]].concat(), place: PLACE })
            .collect();
        let (bytes, taken, next) = frame(&many, first);
        assert!(taken < many.len() && bytes.len() <= FRAME_HEADER_BYTES + MAX_FRAME_BYTES);
        assert_eq!(framed(&bytes, first), Framed::Entries(many[..taken].to_vec(), bytes.len(), next));
    }

    #[test]
    fn what_a_later_version_wrote_is_told_from_a_torn_end() {
        for strange in [
            &[9, 0][..],
            &[PUT, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0],
            &[TAKEN, 1, 7, 0, 0, 0],
            &[DELETED, 65],
            &[TAKEN | 16, 0, 7, 0, 0, 0],
            &[DELETED | 64, 1, 7],
        ] {
            let mut bytes = vec![0; FRAME_HEADER_BYTES];
            bytes.extend_from_slice(strange);
            bytes[..8].copy_from_slice(&(strange.len() as u64).to_le_bytes());
            bytes[8..16].copy_from_slice(&frame_sum(strange, Behind(0)).to_le_bytes());
            assert_eq!(framed(&bytes, Behind(0)), Framed::Foreign, "{strange:?}");
        }
        let header = Header { seed: 0x1122, segment_bytes: 256 << 20, max_bytes: 5 };
        let bytes = header.bytes();
        let behind = Behind(u64::from_le_bytes(*bytes.last_chunk().unwrap()));
        assert_eq!(Header::read(&bytes), Some((header, behind)));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::read(&flipped), None, "{bit}");
        }
        for segment_bytes in [0, 63, 65, (1 << 35) + 64, u64::MAX] {
            assert_eq!(Header::read(&Header { segment_bytes, ..header }.bytes()), None);
        }
    }
}
