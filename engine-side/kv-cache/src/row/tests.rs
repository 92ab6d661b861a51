use super::*;
use crate::fingerprint::{Fingerprint, FingerprintMode};
use crate::key::Identity;

/// A file as other software of this format writes it; made by a few lines of Python from the format's text.
const OTHERS: &[u8] = include_bytes!("../../tests/other-software.kvc");

fn identity() -> Identity {
    let fingerprint = Fingerprint { bytes: [0xaa; 32], mode: FingerprintMode::Safe };
    Identity { fingerprint, quant: 7, context_hash: [0xbb; 32] }
}

fn row(tokens: &[u32]) -> NewRow<'_> {
    NewRow {
        identity: identity(),
        tokens,
        reason: SaveReason::Finish,
        detail: "end of turn",
        quant_bits: 4,
        context_size: 8192,
        created: 1_700_000_000,
        prompt: "Once upon a time",
        host: "gpu-3",
        payload_bytes: 5,
        descriptor: None,
    }
}

fn file(row: &NewRow<'_>) -> Vec<u8> {
    let mut file = row.encode(Crc::of(b"state"));
    file.extend(b"state");
    file
}

#[test]
fn the_checksum_is_castagnoli() {
    // The check value of RFC 3720 and of every catalogue of checksums.
    assert_eq!(Crc::of(b"123456789"), 0xe306_9283);
    let mut pieces = Crc::new();
    pieces.update(b"1234");
    pieces.update(b"");
    pieces.update(b"56789");
    assert_eq!(pieces.value(), 0xe306_9283);
}

#[test]
fn what_other_software_writes_is_read() {
    let row = parse(OTHERS, OTHERS.len() as u64).unwrap();
    assert_eq!(row.tokens, [5, 6, 0xffff_fffe]);
    assert_eq!(row.identity.fingerprint.bytes, std::array::from_fn(|i| i as u8));
    assert_eq!(row.identity.fingerprint.mode, FingerprintMode::GgufChunked);
    assert_eq!(row.identity.quant, 7);
    assert_eq!(row.identity.context_hash, std::array::from_fn(|i| 100 + i as u8));
    assert_eq!((row.prompt.as_str(), row.host.as_str(), row.software.as_str()), ("grüße", "host", "other/1"));
    assert_eq!((row.sealed, row.detail.as_str()), (false, ""));
    let head = row.head;
    assert_eq!((head.quant_bits, head.reason, head.tokens, head.hit_count), (4, SaveReason::Continued, 3, 9));
    assert_eq!((head.context_size, head.created, head.last_used), (4096, 1_700_000_000, 1_700_000_001));
    let payload = &OTHERS[head.payload_offset as usize..];
    assert_eq!((payload, Crc::of(payload)), (&b"payload bytes"[..], head.payload_crc32c));
}

/// The file of a row as 0.2.0 wrote it, with its seal. Made by Python's struct and crc32c from the format's text, not with this code.
#[test]
fn golden_row() {
    const FILE: &str = "\
        4b564301040500000300000000000000002000000000000000f153650000000000f1536500000000050000000000000006010000000000000500\
        000000000000df68db6600000000100000004f6e63652075706f6e20612074696d65a60000008004000000ed5013a40120000000aaaaaaaaaaaa\
        aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0201000000000301000000070420000000bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\
        bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb05050000006770752d33060e0000006b762d63616368652f302e322e30070b000000656e64206f6620\
        7475726e080400000003000000090c0000000100000002000000040302017374617465";
    let tokens = [1, 2, 0x0102_0304];
    let mut file = row(&tokens).layout_by("kv-cache/0.2.0").seal(Crc::of(b"state"));
    file.extend(b"state");
    assert_eq!(hex::encode(&file), FILE);
    let read = parse(&file, file.len() as u64).unwrap();
    assert_eq!((read.software.as_str(), read.sealed), ("kv-cache/0.2.0", true));
    // Numbers that a row has one of at a time.
    assert_eq!(SaveReason::ALL.map(SaveReason::number), [0, 1, 2, 3, 4, 5]);
    assert_eq!(format!("{:?}", SaveReason::ALL), "[Unknown, Cold, Continued, Evict, Shutdown, Finish]");
    let modes = [FingerprintMode::Safe, FingerprintMode::GgufChunked, FingerprintMode::FastUnsafe];
    assert_eq!(modes.map(FingerprintMode::number), [0, 1, 2]);
}

/// The same of a cache that says of its states `model = "m"`. Made as above.
#[test]
fn golden_row_with_a_descriptor() {
    const FILE: &str = "\
        4b564301040500000300000000000000002000000000000000f153650000000000f153650000000005000000000000001b010000000000000500\
        000000000000df68db6600000000100000004f6e63652075706f6e20612074696d65bb00000080040000006184d3570120000000aaaaaaaaaaaa\
        aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0201000000000301000000070420000000bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\
        bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb05050000006770752d33060e0000006b762d63616368652f302e332e30070b000000656e64206f6620\
        7475726e8110000000bbfe34e58fcf3cd96fc78613bd715865080400000003000000090c0000000100000002000000040302017374617465";
    let descriptor = crate::Descriptor([("model".to_owned(), "m".to_owned())].into()).digest();
    let described = NewRow { descriptor, ..row(&[1, 2, 0x0102_0304]) };
    let mut file = described.layout_by("kv-cache/0.3.0").seal(Crc::of(b"state"));
    file.extend(b"state");
    assert_eq!(hex::encode(&file), FILE);
    let read = parse(&file, file.len() as u64).unwrap();
    assert_eq!((read.descriptor, read.sealed), (descriptor, true));
    let described = NewRow { descriptor, ..row(&[1, 2, 3]) };
    assert_eq!(described.encode(0).len(), described.encoded_len());
}

/// The offsets of the format's text, looked at without our parser.
#[test]
fn what_we_write_lies_where_the_format_says() {
    let file = file(&row(&[1, 2, 3]));
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!(&file[..8], b"KVC\x01\x04\x05\0\0");
    assert_eq!((u32_at(8), u32_at(12), u32_at(16), u32_at(20)), (3, 0, 8192, 0));
    assert_eq!((u64_at(24), u64_at(32), u64_at(40)), (1_700_000_000, 1_700_000_000, 5));
    assert_eq!((u64_at(48), u64_at(56)), (file.len() as u64 - 5, 5));
    assert_eq!((u32_at(64), u32_at(68)), (Crc::of(b"state"), 0));
    assert_eq!((u32_at(72), &file[76..92]), (16, &b"Once upon a time"[..]));
    let mut records = &file[96..file.len() - 5];
    assert_eq!(u32_at(92) as usize, records.len());
    let mut tags = Vec::new();
    while let [tag, a, b, c, d, rest @ ..] = records {
        let (value, rest) = rest.split_at(u32::from_le_bytes([*a, *b, *c, *d]) as usize);
        match tag {
            1 => assert_eq!(value, [0xaa; 32]),
            2 => assert_eq!(value, [0]),
            3 => assert_eq!(value, [7]),
            4 => assert_eq!(value, [0xbb; 32]),
            5 => assert_eq!(value, b"gpu-3"),
            7 => assert_eq!(value, b"end of turn"),
            8 => assert_eq!(value, [3, 0, 0, 0]),
            9 => assert_eq!(value, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]),
            _ => {}
        }
        tags.push(*tag);
        records = rest;
    }
    assert_eq!((records, tags.as_slice()), (&[][..], &[0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9][..]));
}

#[test]
fn what_was_written_is_read() {
    let tokens: Vec<u32> = (0..5000).map(|i| i * 77_777).collect();
    let row = row(&tokens);
    let file = file(&row);
    let read = parse(&file, file.len() as u64).unwrap();
    assert_eq!((read.tokens.as_slice(), read.sealed), (tokens.as_slice(), true));
    assert_eq!((read.key(), read.identity), (identity().key(&tokens), identity()));
    assert_eq!((read.prompt.as_str(), read.detail.as_str()), (row.prompt, row.detail));
    assert_eq!(read.software, format!("kv-cache/{}", env!("CARGO_PKG_VERSION")));
}

/// But for those that other software rewrites: the hit count and the time of the last use.
#[test]
fn no_bit_before_the_payload_changes_unseen() {
    let file = file(&row(&[1, 2, 3]));
    for bit in 0..(file.len() - 5) * 8 {
        let mut changed = file.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = parse(&changed, file.len() as u64);
        let rewritten = matches!(bit / 8, 12..16 | 32..40);
        assert_eq!(read.is_ok(), rewritten, "bit {} of byte {} flipped: {read:?}", bit % 8, bit / 8);
    }
}

/// Looked at without our code: the CRC of the published text, with zeros where the text says.
#[test]
fn the_seal_is_the_sum_that_is_published() {
    let file = file(&row(&[1, 2, 3]));
    let seal_at = 72 + 4 + 16 + 4 + 5;
    assert_eq!(&file[seal_at - 5..seal_at], [0x80, 4, 0, 0, 0]);
    let mut bytes = file[..file.len() - 5].to_vec();
    for place in [12..16, 32..40, seal_at..seal_at + 4] {
        bytes[place].fill(0);
    }
    assert_eq!(file[seal_at..seal_at + 4], Crc::of(&bytes).to_le_bytes());
}

#[test]
fn no_length_but_the_right_one_will_do() {
    let file = file(&row(&[1, 2, 3]));
    for length in 0..file.len() {
        let flaw = parse(&file[..length], length as u64).unwrap_err();
        assert_eq!(flaw, Flaw::Truncated, "{length}");
    }
    let mut longer = file.clone();
    longer.push(0);
    assert_eq!(parse(&longer, longer.len() as u64), Err(Flaw::Corrupt("it is longer than the row")));
}

#[test]
fn versions_and_strangers_are_told_apart() {
    let mut file = file(&row(&[1]));
    file[3] = 2;
    assert_eq!(parse(&file, file.len() as u64), Err(Flaw::Newer(2)));
    file[3] = 0;
    assert!(matches!(parse(&file, file.len() as u64), Err(Flaw::Corrupt(_))));
    file[0] = b'k';
    assert_eq!(parse(&file, file.len() as u64), Err(Flaw::Foreign));
}

#[test]
fn long_texts_are_cut_between_characters() {
    let long = "é".repeat(60_000);
    let row = NewRow { prompt: &long, detail: &long, host: &long, ..row(&[1]) };
    let file = file(&row);
    let read = parse(&file, file.len() as u64).unwrap();
    assert_eq!((read.prompt.len(), read.detail.len(), read.host.len()), (65_536, 1024, 1024));
    assert!(read.prompt.chars().all(|c| c == 'é'));
    for row in [row, self::row(&[]), NewRow { detail: "", prompt: "", host: "", ..self::row(&[1; 700]) }] {
        assert_eq!(row.encoded_len(), row.encode(0).len());
    }
}

proptest::proptest! {
    /// Arbitrary damage to real rows, theirs and ours, with lengths that the file may or may not have.
    #[test]
    fn hostile_bytes_are_refused_or_read_never_a_panic(
        ours: bool,
        edits in proptest::collection::vec((0usize..400, proptest::prelude::any::<u32>(), 1usize..5), 0..6),
        cut in 0usize..500,
        claim in proptest::option::of(0u64..1000),
    ) {
        let mut bytes = if ours { file(&row(&[1, 2, 3])) } else { OTHERS.to_vec() };
        for (at, value, width) in edits {
            for (place, byte) in bytes.iter_mut().skip(at).zip(value.to_le_bytes()).take(width) {
                *place = byte;
            }
        }
        bytes.truncate(cut.max(1));
        let _ = parse(&bytes, claim.unwrap_or(bytes.len() as u64));
    }
}
