//! `docs/memkv-frames.md` shows the bytes of a conversation in each version. They are what this crate makes.

use memkv_wire::fields::{BatchGet, Connect, Connected, Delete, Kind, Put};
use memkv_wire::{Key, Op, Outgoing, SessionKeys, Status, Version};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/memkv-frames.md");

/// The bytes `from`, `from + 1`, ...
fn counting(from: u8) -> [u8; 32] {
    std::array::from_fn(|n| from + n as u8)
}

/// A frame with a value.
fn whole(outgoing: &Outgoing, header: [u8; 32], fields: &[u8], value: &[u8]) -> Vec<u8> {
    let tag = outgoing.key().tag(&[&header, fields, value]);
    [&header[..], fields, value, &tag.0].concat()
}

/// What both sides send, and with which keys.
fn sides(version: Version) -> (Outgoing, Outgoing, SessionKeys) {
    let (key, ours, theirs) = (Key::new(counting(0)), counting(0x20), counting(0x40));
    let client = Outgoing::new(key.connect(), version);
    (client, Outgoing::new(key.connected(&ours), version), SessionKeys::derive(&key, &ours, &theirs))
}

/// The document's conversation in version 1, frame by frame.
fn conversation() -> Vec<(&'static str, Vec<u8>)> {
    let (key, ours, theirs) = (Key::new(counting(0)), counting(0x20), counting(0x40));
    let (mut client, mut server, keys) = sides(Version::One);
    let mut frames = Vec::new();

    let fields = Connect { nonce: ours, namespace: "llama", replaces: None }.encode(Version::One);
    let header = client.request(Op::Connect, fields.len(), 0);
    frames.push(("CONNECT", client.small(header, &fields)));
    let (max_value, server_name) = (512 << 20, "memkv-server 0.1.0");
    let connected =
        Connected { nonce: theirs, durable: false, max_value, server: server_name, session: [0; 16], time: 0 };
    let fields = connected.encode(Version::One);
    let header = server.answer(Op::Connect, Status::Ok, 0, fields.len(), 0);
    frames.push(("CONNECT answer", server.small(header, &fields)));

    client.rekey(keys.client);
    server.rekey(keys.server);
    let chunk = Put { kind: Kind::Chunk, replace: false, generation: false, end: 0, key: b"k1", chunks: vec![] };
    let fields = chunk.encode(Version::One);
    let header = client.request(Op::Put, fields.len(), 5);
    frames.push(("PUT chunk", whole(&client, header, &fields, b"hello")));
    let header = server.answer(Op::Put, Status::Ok, 0, 0, 0);
    frames.push(("PUT answer", server.small(header, &[])));

    let manifest = Put { kind: Kind::Manifest, replace: true, key: b"nm", chunks: vec![b"k1"], ..chunk };
    let fields = manifest.encode(Version::One);
    let header = client.request(Op::Put, fields.len(), 1);
    frames.push(("PUT manifest", whole(&client, header, &fields, b"!")));

    let fields = BatchGet { max_bytes: 1 << 20, keys: vec![b"k1", b"k2"] }.encode();
    let header = client.request(Op::BatchGet, fields.len(), 0);
    frames.push(("BATCH GET", client.small(header, &fields)));
    server.answer(Op::Put, Status::Ok, 0, 0, 0);
    let header = server.answer(Op::BatchGet, Status::Ok, 1, 0, 5);
    frames.push(("BATCH GET answer 1", whole(&server, header, &[], b"hello")));
    let header = server.answer(Op::BatchGet, Status::Missing, 0, 0, 0);
    frames.push(("BATCH GET answer 2", server.small(header, &[])));

    let mut stranger = Outgoing::new(key.refusal(), Version::One);
    let header = stranger.refusal(Status::UnsupportedVersion, 4);
    frames.push(("refusal", stranger.small(header, b"only")));
    frames
}

/// That in version 2.
fn conversation_of_version_2() -> Vec<(&'static str, Vec<u8>)> {
    const TWO: Version = Version::Two;
    let (ours, theirs) = (counting(0x20), counting(0x40));
    let (lost, session) = ([0x60; 16], [0x61; 16]);
    let (mut client, mut server, keys) = sides(TWO);
    let mut frames = Vec::new();

    let fields = Connect { nonce: ours, namespace: "llama", replaces: Some(lost) }.encode(TWO);
    let header = client.request(Op::Connect, fields.len(), 0);
    frames.push(("CONNECT of version 2", client.small(header, &fields)));
    let (max_value, time) = (512 << 20, 1_000_000_000);
    let connected = Connected { nonce: theirs, durable: true, max_value, server: "memkv-server 0.3.0", session, time };
    let fields = connected.encode(TWO);
    let header = server.answer(Op::Connect, Status::Ok, 0, fields.len(), 0);
    frames.push(("CONNECT answer of version 2", server.small(header, &fields)));

    client.rekey(keys.client);
    server.rekey(keys.server);
    let (end, chunks) = (11_000_000_000, vec![&b"k1"[..]]);
    let manifest = Put { kind: Kind::Manifest, replace: true, generation: true, end, key: b"nm", chunks };
    let fields = manifest.encode(TWO);
    let header = client.request(Op::Put, fields.len(), 17);
    frames.push(("PUT manifest of version 2", whole(&client, header, &fields, &[&b"!"[..], &[0; 16]].concat())));
    let fields = Delete { kind: Kind::Chunk, end, key: b"k1" }.encode(TWO);
    let header = client.request(Op::Delete, fields.len(), 0);
    frames.push(("DELETE of version 2", client.small(header, &fields)));
    server.answer(Op::Put, Status::Ok, 0, 0, 0);
    let header = server.answer(Op::Delete, Status::TooLate, 0, 4, 0);
    frames.push(("DELETE answer of version 2", server.small(header, b"late")));
    frames
}

#[test]
fn the_document_shows_the_bytes_that_are_sent() {
    let document = std::fs::read_to_string(PAGE).unwrap();
    let mut shown: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in document.lines() {
        // On the line before the block.
        if let Some(name) = line.strip_prefix("<!-- frame: ").and_then(|rest| rest.strip_suffix(" -->")) {
            shown.push((name.to_owned(), String::new()));
        } else if line == "```text" {
            open = true;
        } else if line == "```" {
            open = false;
        } else if let (true, Some((_, hex))) = (open, shown.last_mut()) {
            let bytes = line.split(';').next().unwrap_or_default();
            hex.extend(bytes.chars().filter(|c| !c.is_whitespace()));
        }
    }
    let both = conversation().into_iter().chain(conversation_of_version_2());
    let made: Vec<_> = both.map(|(name, bytes)| (name.to_owned(), hex::encode(&bytes))).collect();
    assert_eq!(shown, made);
}

#[test]
fn the_document_shows_the_keys_that_are_derived() {
    let document = std::fs::read_to_string(PAGE).unwrap();
    let (key, ours, theirs) = (Key::new(counting(0)), counting(0x20), counting(0x40));
    let keys = SessionKeys::derive(&key, &ours, &theirs);
    for key in [key.connect(), key.connected(&ours), key.refusal(), keys.client, keys.server] {
        let hex = hex::encode(key.bytes());
        assert!(document.contains(&hex), "{hex}");
    }
}
