//! The bytes of a segment store: records in segments, and frames of entries in the index log. `docs/segments.md` has the tables.
//!
//! Invariant: what is decoded has held against its checksum. What has not is nothing, whatever its bytes are.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::limits::MAX_HASH_BYTES;

/// Begins each record.
const RECORD_MAGIC: [u8; 4] = *b"kvsr";
const RECORD_VERSION: u8 = 1;
/// Before the key and the value of a record.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Records begin at multiples of it.
pub const RECORD_ALIGNMENT: u64 = 64;

/// Begins the index log.
const LOG_MAGIC: [u8; 8] = *b"kvslog\0\x01";
pub const LOG_HEADER_BYTES: usize = 32;
/// Before the entries of a frame.
pub const FRAME_HEADER_BYTES: usize = 16;
/// Entries of a frame have no more bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub segment: u32,
    /// In units of [`RECORD_ALIGNMENT`].
    pub unit: u32,
    /// Bytes of the value.
    pub len: u32,
}

impl Place {
    pub fn offset(&self) -> u64 {
        u64::from(self.unit) * RECORD_ALIGNMENT
    }
}

/// Bytes from the beginning of a record to that of the next one.
pub fn record_room(key_len: usize, value_len: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + key_len as u64 + value_len).next_multiple_of(RECORD_ALIGNMENT)
}

/// What lies before the value of a record: its header and its key. The key has 1 to 64 bytes.
///
/// Segments are numbered anew when their files are used again, so what a place held before has another number.
pub fn record_head<'a>(segment: u32, key: &[u8], len: u32, value: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let fields = record_fields(segment, key, len);
    [&fields, &record_sum(&fields, key, value)[..], key].concat()
}

/// What the header says of its record, before the checksum.
fn record_fields(segment: u32, key: &[u8], len: u32) -> [u8; RECORD_HEADER_BYTES - 16] {
    let mut fields = [0; RECORD_HEADER_BYTES - 16];
    let said = RECORD_MAGIC.into_iter().chain([RECORD_VERSION, key.len() as u8, 0, 0]);
    let said = said.chain(segment.to_le_bytes()).chain(len.to_le_bytes());
    fields.iter_mut().zip(said).for_each(|(to, from)| *to = from);
    fields
}

fn record_sum<'a>(fields: &[u8], key: &[u8], value: impl Iterator<Item = &'a [u8]>) -> [u8; 16] {
    let mut sum = Xxh3::new();
    sum.update(fields);
    sum.update(key);
    value.for_each(|piece| sum.update(piece));
    sum.digest128().to_le_bytes()
}

/// Where the value of a record lies in its bytes, if they are the record of this key at this place.
pub fn record_value(bytes: &[u8], place: &Place, key: &[u8]) -> Option<std::ops::Range<usize>> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let (covered, sum) = header.split_last_chunk::<16>()?;
    let found = rest.get(..key.len())?;
    let value = rest.get(key.len()..key.len().checked_add(place.len as usize)?)?;
    // The header says of itself what the index says; then the checksum holds for all of it.
    if covered != record_fields(place.segment, key, place.len) || found != key {
        return None;
    }
    let start = RECORD_HEADER_BYTES + key.len();
    (record_sum(covered, key, std::iter::once(value)) == *sum).then_some(start..start + value.len())
}

/// What an entry of the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A value lies there under this key from now on.
    Put { key: Vec<u8>, place: Place },
    /// Nothing lies under this key.
    Deleted { key: Vec<u8> },
    /// A writer takes a new segment.
    Taken { segment: u32 },
    /// The segment is gone, and each value that lay there.
    Evicted { segment: u32 },
    /// A sync of the segment failed: what lies there from this unit on is nothing.
    Bad { segment: u32, from: u32 },
}

const PUT: u8 = 1;
const DELETED: u8 = 2;
const TAKEN: u8 = 3;
const EVICTED: u8 = 4;
const BAD: u8 = 5;

impl Entry {
    fn encode(&self, to: &mut Vec<u8>) {
        let mut keyed = |kind, key: &[u8], numbers: &[u32]| {
            to.extend_from_slice(&[kind, key.len() as u8]);
            numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
            to.extend_from_slice(key);
        };
        match self {
            Entry::Put { key, place } => keyed(PUT, key, &[place.segment, place.unit, place.len]),
            Entry::Deleted { key } => keyed(DELETED, key, &[]),
            Entry::Taken { segment } => keyed(TAKEN, &[], &[*segment]),
            Entry::Evicted { segment } => keyed(EVICTED, &[], &[*segment]),
            Entry::Bad { segment, from } => keyed(BAD, &[], &[*segment, *from]),
        }
    }

    /// The first entry, and what lies behind it. None: there is none of this version.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([kind, key_len], rest) = bytes.split_first_chunk::<2>()?;
        let mut rest = rest;
        let mut number = || {
            let (number, behind) = rest.split_first_chunk::<4>()?;
            rest = behind;
            Some(u32::from_le_bytes(*number))
        };
        let key_len = usize::from(*key_len);
        let keyed = match *kind {
            PUT => Some(Some(Place { segment: number()?, unit: number()?, len: number()? })),
            DELETED => Some(None),
            _ => None,
        };
        if let Some(place) = keyed {
            let (key, rest) = rest.split_at_checked(key_len)?;
            if key.is_empty() || key.len() > MAX_HASH_BYTES {
                return None;
            }
            let key = key.to_vec();
            let entry = match place {
                Some(place) => Entry::Put { key, place },
                None => Entry::Deleted { key },
            };
            return Some((entry, rest));
        }
        let entry = match *kind {
            TAKEN => Entry::Taken { segment: number()? },
            EVICTED => Entry::Evicted { segment: number()? },
            BAD => Entry::Bad { segment: number()?, from: number()? },
            _ => return None,
        };
        (key_len == 0).then_some((entry, rest))
    }
}

/// What tells a frame which one it lies behind. A frame that a power loss left behind a hole is none any more when something else is
/// written into the hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behind(u64);

/// The frame of some entries that take effect together, how many of them fit it, and what comes behind it.
pub fn frame(entries: &[Entry], behind: Behind) -> (Vec<u8>, usize, Behind) {
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
    Entries(Vec<Entry>, usize, Behind),
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
        match Entry::decode(rest) {
            Some((entry, behind)) => {
                entries.push(entry);
                rest = behind;
            }
            None => return Framed::Foreign,
        }
    }
    Framed::Entries(entries, taken, Behind(sum))
}

/// The header of a log. `seed`: of the hashes by which an index finds keys, so that nobody can choose keys that meet.
pub fn log_header(seed: u64, segment_bytes: u64) -> [u8; LOG_HEADER_BYTES] {
    let mut header = [0; LOG_HEADER_BYTES];
    let fields = LOG_MAGIC.into_iter().chain(seed.to_le_bytes()).chain(segment_bytes.to_le_bytes());
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    if let Some((covered, sum)) = header.split_last_chunk_mut::<8>() {
        *sum = xxh3_64(covered).to_le_bytes();
    }
    header
}

/// Seed, length of segments and what comes behind it, from the header of a log. None: it is not one of this version.
pub fn read_log_header(bytes: &[u8]) -> Option<(u64, u64, Behind)> {
    let header = bytes.first_chunk::<LOG_HEADER_BYTES>()?;
    let (seed, rest) = header.get(8..)?.split_first_chunk::<8>()?;
    let (seed, segment_bytes) = (u64::from_le_bytes(*seed), u64::from_le_bytes(*rest.first_chunk::<8>()?));
    let behind = Behind(u64::from_le_bytes(*header.last_chunk::<8>()?));
    (*header == log_header(seed, segment_bytes)).then_some((seed, segment_bytes, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 7, unit: 3, len: 5 };

    fn record() -> Vec<u8> {
        let mut bytes = record_head(7, b"key", 5, [&b"va"[..], b"lue"].into_iter());
        bytes.extend_from_slice(b"value");
        bytes
    }

    fn entries() -> Vec<Entry> {
        vec![
            Entry::Taken { segment: 7 },
            Entry::Put { key: b"key".to_vec(), place: PLACE },
            Entry::Deleted { key: vec![9; 64] },
            Entry::Bad { segment: 7, from: 2 },
            Entry::Evicted { segment: 6 },
        ]
    }

    /// What lies in segments is lost if these change. Computed with Python's xxhash, not with this code.
    #[test]
    fn golden_segments() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&record()),
            "6b76737201030000070000000500000000000000000000006b7ad1b996b41789a867e1d4e22674ca6b657976616c7565"
        );
        let header = log_header(0x1122, 256 << 20);
        assert_eq!(hex(&header), "6b76736c6f67000122110000000000000000001000000000a59c5481f99f89b5");
        let (_, _, first) = read_log_header(&header).unwrap();
        let entries = [
            Entry::Taken { segment: 7 },
            Entry::Put { key: b"key".to_vec(), place: PLACE },
            Entry::Deleted { key: b"d".to_vec() },
            Entry::Bad { segment: 7, from: 2 },
            Entry::Evicted { segment: 6 },
        ];
        assert_eq!(
            hex(&frame(&entries, first).0),
            concat!(
                "2a000000000000005e4826e8f64aab7203000700000001030700000003000000050000006b65790201640500070000000200",
                "0000040006000000",
            )
        );
    }

    #[test]
    fn a_record_is_its_own_at_its_place_and_nothing_else() {
        let record = record();
        assert_eq!(record_value(&record, &PLACE, b"key"), Some(43..48));
        let mut longer = record.clone();
        longer.extend_from_slice(b"the next one");
        assert_eq!(record_value(&longer, &PLACE, b"key"), Some(43..48));
        assert_eq!(record_value(&record, &PLACE, b"kez"), None);
        assert_eq!(record_value(&record, &PLACE, b"keyv"), None);
        assert_eq!(record_value(&record, &Place { segment: 8, ..PLACE }, b"key"), None, "it was used again");
        for len in [4, 6, u32::MAX] {
            assert_eq!(record_value(&record, &Place { len, ..PLACE }, b"key"), None, "{len}");
        }
        for cut in 0..record.len() {
            assert_eq!(record_value(&record[..cut], &PLACE, b"key"), None, "{cut}");
        }
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(record_value(&flipped, &PLACE, b"key"), None, "{bit}");
        }
        assert_eq!((record_room(3, 5), record_room(1, 23), record_room(1, 24)), (64, 64, 128));
    }

    #[test]
    fn a_frame_takes_effect_whole_or_not_at_all() {
        let first = Behind(3);
        let (bytes, taken, next) = frame(&entries(), first);
        assert_eq!((framed(&bytes, first), taken), (Framed::Entries(entries(), bytes.len(), next), 5));
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
        let many: Vec<Entry> = (0..20_000_u32)
            .map(|n| Entry::Put { key: [&n.to_le_bytes()[..], &[0; 60]].concat(), place: PLACE })
            .collect();
        let (bytes, taken, next) = frame(&many, first);
        assert!(taken < many.len() && bytes.len() <= FRAME_HEADER_BYTES + MAX_FRAME_BYTES);
        assert_eq!(framed(&bytes, first), Framed::Entries(many[..taken].to_vec(), bytes.len(), next));
    }

    #[test]
    fn what_a_later_version_wrote_is_told_from_a_torn_end() {
        for strange in
            [&[9, 0][..], &[PUT, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], &[TAKEN, 1, 7, 0, 0, 0], &[DELETED, 65]]
        {
            let mut bytes = vec![0; FRAME_HEADER_BYTES];
            bytes.extend_from_slice(strange);
            bytes[..8].copy_from_slice(&(strange.len() as u64).to_le_bytes());
            bytes[8..16].copy_from_slice(&frame_sum(strange, Behind(0)).to_le_bytes());
            assert_eq!(framed(&bytes, Behind(0)), Framed::Foreign, "{strange:?}");
        }
        let header = log_header(0x1122, 256 << 20);
        let behind = Behind(u64::from_le_bytes(*header.last_chunk().unwrap()));
        assert_eq!(read_log_header(&header), Some((0x1122, 256 << 20, behind)));
        for bit in 0..header.len() * 8 {
            let mut flipped = header;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_log_header(&flipped), None, "{bit}");
        }
    }
}
