//! What must hold for any bytes: nothing panics, what is encoded is decoded, and a frame with a changed bit is refused.

use memkv_wire::fields::{
    BatchGet, Commit, Connect, Connected, Delete, Evict, Evicted, Exists, Kind, List, Listed, Listing, Lookup, Put,
    Usage, text,
};
use memkv_wire::{
    Fault, HEADER_BYTES, Header, Incoming, Key, MAX_KEY_BYTES, Op, Outgoing, SessionKeys, Status, TAG_BYTES, Version,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=MAX_KEY_BYTES)
}

fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(key(), 1..5)
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Chunk), Just(Kind::Manifest)]
}

fn slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

/// Take a frame as a receiver does. Its fields and value, if it is right.
fn receive(incoming: &mut Incoming, bytes: &[u8]) -> Result<(Header, Vec<u8>), Fault> {
    let short = Fault::Malformed("it ends early");
    let (start, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(short)?;
    let header = incoming.open(start)?;
    let len = header.fields as usize + header.value as usize;
    let (body, tag) = rest.split_at_checked(len).ok_or(short)?;
    if tag.len() != TAG_BYTES {
        return Err(short);
    }
    let mut tagger = incoming.key().tagger();
    tagger.update(start);
    // As they may come.
    body.chunks(7).for_each(|piece| tagger.update(piece));
    if tagger.finish().matches(tag) { Ok((header, body.to_vec())) } else { Err(Fault::NotAuthentic) }
}

fn frame(outgoing: &mut Outgoing, fields: &[u8], value: &[u8]) -> Vec<u8> {
    let header = outgoing.request(Op::Put, fields.len(), value.len() as u64);
    let tag = outgoing.key().tag(&[&header, fields, value]);
    [&header[..], fields, value, &tag.0].concat()
}

fn pair() -> (Outgoing, Incoming, Outgoing, Incoming) {
    let SessionKeys { client, server } = SessionKeys::derive(&Key::new([3; 32]), &[1; 32], &[2; 32]);
    let limits = (1 << 16, 1 << 16);
    (
        Outgoing::new(client.clone(), Version::Two),
        Incoming::new(client, limits.0, limits.1),
        Outgoing::new(server.clone(), Version::Two),
        Incoming::new(server, limits.0, limits.1),
    )
}

proptest! {
    #[test]
    fn listings_and_evictions_are_decoded_again(
        kind in kind(), after in vec(any::<u8>(), 0..=MAX_KEY_BYTES), limit in 1..=u32::MAX,
        keys in keys(), numbers in any::<[u64; 4]>(), more in any::<bool>(),
    ) {
        let list = List { kind, after: &after, limit };
        let encoded = list.encode();
        prop_assert_eq!(List::decode(&encoded), Ok(list));
        let [size, stored, used, last] = numbers;
        let listing = Listing(keys.into_iter().map(|key| Listed { key, size, stored, used }).collect());
        prop_assert_eq!(Listing::decode(&listing.encode()), Ok(listing));
        let usage = Usage { bytes: size, chunks: stored, manifests: used, capacity: last };
        prop_assert_eq!(Usage::decode(&usage.encode()), Ok(usage));
        let evict = Evict { bytes: size, unused_since: stored, keep_since: used };
        prop_assert_eq!(Evict::decode(&evict.encode()), Ok(evict));
        let evicted = Evicted { bytes: size, chunks: stored, manifests: used, more };
        prop_assert_eq!(Evicted::decode(&evicted.encode()), Ok(evicted));
    }

    #[test]
    fn no_bytes_make_a_listing_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = (List::decode(&bytes), Listing::decode(&bytes), Usage::decode(&bytes));
        let _ = (Evict::decode(&bytes), Evicted::decode(&bytes));
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
        for version in Version::ALL {
            let _ = (Connect::decode(&bytes, version), Connected::decode(&bytes, version));
            let _ = (Put::decode(&bytes, version), Delete::decode(&bytes, version));
        }
        let _ = (Lookup::decode(&bytes), Commit::decode(&bytes));
        let _ = (Exists::decode(&bytes), BatchGet::decode(&bytes), text(&bytes));
        let (_, mut incoming, ..) = pair();
        let _ = receive(&mut incoming, &bytes);
    }

    #[test]
    fn no_header_panics(mut bytes in any::<[u8; HEADER_BYTES]>(), version in 1..=2_u8) {
        bytes[..4].copy_from_slice(b"MKVF");
        bytes[4] = version;
        let (_, mut incoming, ..) = pair();
        let _ = incoming.open(&bytes);
    }

    #[test]
    fn fields_come_back(
        kind in kind(), key in key(), others in keys(), flag in any::<bool>(), number in any::<u64>(),
        nonce in any::<[u8; 32]>(), session in any::<[u8; 16]>(), name in "[a-z\u{e9}]{1,100}"
    ) {
        for version in Version::ALL {
            let has_more = version == Version::Two;
            let replaces = Some(session).filter(|_| flag && has_more);
            let connect = Connect { nonce, namespace: &name, replaces };
            prop_assert!(Connect::decode(&connect.encode(version), version) == Ok(connect));
            let (session, time) = if has_more { (session, number) } else { ([0; 16], 0) };
            let connected = Connected { nonce, durable: flag, max_value: number, server: &name, session, time };
            prop_assert!(Connected::decode(&connected.encode(version), version) == Ok(connected));
            let is_manifest = kind == Kind::Manifest;
            let chunks = if is_manifest { slices(&others) } else { Vec::new() };
            let put = Put { kind, replace: flag, generation: is_manifest && has_more, end: time, key: &key, chunks };
            prop_assert!(Put::decode(&put.encode(version), version) == Ok(put));
            let delete = Delete { kind, end: time, key: &key };
            prop_assert!(Delete::decode(&delete.encode(version), version) == Ok(delete));
        }
        let lookup = Lookup { kind, key: &key };
        prop_assert!(Lookup::decode(&lookup.encode()) == Ok(lookup));
        let exists = Exists { keys: slices(&others) };
        prop_assert!(Exists::decode(&exists.encode()) == Ok(exists));
        let commit = Commit { chunks: slices(&others) };
        prop_assert!(Commit::decode(&commit.encode()) == Ok(commit));
        let batch = BatchGet { max_bytes: number, keys: slices(&others) };
        prop_assert!(BatchGet::decode(&batch.encode()) == Ok(batch));
    }

    #[test]
    fn fields_that_are_cut_are_refused(key in key(), others in keys(), cut in any::<prop::sample::Index>()) {
        for version in Version::ALL {
            let chunks = slices(&others);
            let put = Put { kind: Kind::Manifest, replace: true, generation: false, end: 7, key: &key, chunks };
            let bytes = put.encode(version);
            prop_assert!(Put::decode(&bytes[..cut.index(bytes.len())], version).is_err());
            prop_assert!(Put::decode(&[&bytes[..], &[0]].concat(), version).is_err());
        }
    }

    #[test]
    fn a_frame_comes_back_and_one_with_a_changed_bit_does_not(
        fields in vec(any::<u8>(), 0..100), value in vec(any::<u8>(), 0..300), bit in any::<prop::sample::Index>()
    ) {
        let (mut outgoing, mut incoming, ..) = pair();
        let mut bytes = frame(&mut outgoing, &fields, &value);
        let (header, body) = receive(&mut incoming, &bytes).unwrap();
        prop_assert_eq!((header.op(), header.sequence), (Some(Op::Put), 0));
        prop_assert_eq!(body, [&fields[..], &value].concat());

        let (_, mut incoming, ..) = pair();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(receive(&mut incoming, &bytes).is_err());
    }

    #[test]
    fn frames_are_taken_in_order_and_once(count in 1..20_usize, wrong in any::<prop::sample::Index>()) {
        let (mut outgoing, mut incoming, ..) = pair();
        let frames: Vec<_> = (0..count).map(|n| frame(&mut outgoing, &[n as u8], b"value")).collect();
        let wrong = wrong.index(count);
        for (due, next) in frames.iter().enumerate() {
            if wrong != due {
                let came = Fault::OutOfSequence { expected: due as u64, came: wrong as u64 };
                prop_assert_eq!(receive(&mut incoming, &frames[wrong]), Err(came));
            }
            prop_assert!(receive(&mut incoming, next).is_ok());
        }
    }
}

#[test]
fn what_one_side_sends_is_not_taken_from_the_other() {
    let (mut client, _, _, mut from_server) = pair();
    let bytes = frame(&mut client, b"fields", b"value");
    assert_eq!(receive(&mut from_server, &bytes).map(|_| ()), Err(Fault::NotAuthentic));
}

#[test]
fn lengths_are_bounded_before_anything_is_read() {
    let (mut outgoing, mut incoming, ..) = pair();
    let header = outgoing.request(Op::Put, (1 << 16) + 1, 0);
    assert_eq!(incoming.open(&header), Err(Fault::TooLarge { limit: 1 << 16, came: (1 << 16) + 1 }));
    let header = outgoing.request(Op::Put, 0, u64::MAX);
    assert_eq!(incoming.open(&header), Err(Fault::TooLarge { limit: 1 << 16, came: u64::MAX }));
}

#[test]
fn a_count_that_lies_makes_no_room() {
    let many = [&u32::MAX.to_le_bytes()[..], &[1, 0, b'k']].concat();
    assert!(Exists::decode(&many).is_err());
    assert!(Put::decode(&[&[2, 0, 1, 0, b'k'][..], &many].concat(), Version::One).is_err());
    let keys = vec![&b"k"[..]; memkv_wire::MAX_BATCH_KEYS + 1];
    assert!(
        Exists { keys: keys[1..].to_vec() }.encode().len() > 4 && Exists::decode(&Exists { keys }.encode()).is_err()
    );
}

#[test]
fn a_manifest_names_no_more_chunks_than_its_bound() {
    let names = vec![&b"k"[..]; memkv_wire::MAX_MANIFEST_CHUNKS + 1];
    let put = |chunks: &[&[u8]]| {
        let (kind, chunks) = (Kind::Manifest, chunks.to_vec());
        let put = Put { kind, replace: true, generation: false, end: 0, key: b"m", chunks };
        Put::decode(&put.encode(Version::Two), Version::Two).map(|put| put.chunks.len())
    };
    assert_eq!(put(&names[1..]), Ok(memkv_wire::MAX_MANIFEST_CHUNKS));
    assert!(matches!(put(&names), Err(Fault::Malformed(_))));
}

#[test]
fn a_text_is_cut_and_clean() {
    assert_eq!(text(b"no\x1b[31m room\n"), "no [31m room ");
    assert_eq!(text(&[b'x'; 5000]).len(), memkv_wire::MAX_TEXT_BYTES);
}

#[test]
fn requests_answers_and_refusals_are_told_apart() {
    let (mut outgoing, ..) = pair();
    let request = Header::decode(&outgoing.request(Op::Get, 1, 0)).unwrap();
    assert_eq!((request.op(), request.answers(), request.is_refusal()), (Some(Op::Get), None, false));
    let answer = Header::decode(&outgoing.answer(Op::Get, Status::Missing, 3, 0, 0)).unwrap();
    assert_eq!((answer.op(), answer.answers(), answer.is_refusal()), (None, Some(Op::Get), false));
    assert_eq!((answer.status, answer.left, answer.sequence), (Status::Missing, 3, 1));
    let refusal = Header::decode(&outgoing.refusal(Status::Busy, 2)).unwrap();
    assert_eq!((refusal.op(), refusal.answers(), refusal.is_refusal()), (None, None, true));
}

#[test]
fn all_frames_of_a_side_are_of_the_version_of_its_first() {
    let (mut outgoing, mut incoming, ..) = pair();
    assert!(receive(&mut incoming, &frame(&mut outgoing, b"fields", b"value")).is_ok());
    outgoing.speak(Version::One);
    let other = Fault::OtherVersion { session: Version::Two, came: Version::One };
    assert_eq!(receive(&mut incoming, &frame(&mut outgoing, b"fields", b"value")).map(|_| ()), Err(other));
    assert_eq!(other.status(), Status::UnsupportedVersion);
}

#[test]
fn what_is_of_version_2_is_not_in_version_1() {
    let put = Put { kind: Kind::Manifest, replace: true, generation: true, end: 7, key: b"m", chunks: vec![] };
    let old = Put::decode(&put.encode(Version::One), Version::One).map(|put| (put.generation, put.end));
    assert_eq!(old, Ok((false, 0)));
    assert!(Put::decode(&[2, 3, 1, 0, b'm', 0, 0, 0, 0], Version::One).is_err(), "a flag that it does not have");
    let chunk = Put { kind: Kind::Chunk, ..put };
    assert!(Put::decode(&chunk.encode(Version::Two), Version::Two).is_err(), "no chunk has a generation");
    let connect = Connect { nonce: [1; 32], namespace: "n", replaces: None }.encode(Version::Two);
    let short = [&connect[..connect.len() - 2], &[3, 0, 1, 2, 3]].concat();
    assert!(Connect::decode(&short, Version::Two).is_err(), "a session has 16 bytes");
}
