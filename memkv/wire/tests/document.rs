//! `docs/memkv-wire.md` shows the bytes of a conversation. They are what this crate makes.

use memkv_wire::fields::{BatchGet, Connect, Connected, Kind, Put};
use memkv_wire::{Key, Op, Outgoing, SessionKeys, Status};

/// The bytes `from`, `from + 1`, ...
fn counting(from: u8) -> [u8; 32] {
    std::array::from_fn(|n| from + n as u8)
}

/// A frame with a value.
fn whole(outgoing: &Outgoing, header: [u8; 32], fields: &[u8], value: &[u8]) -> Vec<u8> {
    let tag = outgoing.key().tag(&[&header, fields, value]);
    [&header[..], fields, value, &tag.0].concat()
}

/// The document's conversation, frame by frame.
fn conversation() -> Vec<(&'static str, Vec<u8>)> {
    let (key, ours, theirs) = (Key::new(counting(0)), counting(0x20), counting(0x40));
    let (mut client, mut server) = (Outgoing::new(key.connect()), Outgoing::new(key.connected(&ours)));
    let mut frames = Vec::new();

    let fields = Connect { nonce: ours, namespace: "llama" }.encode();
    let header = client.request(Op::Connect, fields.len(), 0);
    frames.push(("CONNECT", client.small(header, &fields)));
    let fields =
        Connected { nonce: theirs, durable: false, max_value: 512 << 20, server: "memkv-server 0.1.0" }.encode();
    let header = server.answer(Op::Connect, Status::Ok, 0, fields.len(), 0);
    frames.push(("CONNECT answer", server.small(header, &fields)));

    let keys = SessionKeys::derive(&key, &ours, &theirs);
    client.rekey(keys.client);
    server.rekey(keys.server);
    let fields = Put { kind: Kind::Chunk, replace: false, key: b"k1", chunks: vec![] }.encode();
    let header = client.request(Op::Put, fields.len(), 5);
    frames.push(("PUT chunk", whole(&client, header, &fields, b"hello")));
    let header = server.answer(Op::Put, Status::Ok, 0, 0, 0);
    frames.push(("PUT answer", server.small(header, &[])));

    let fields = Put { kind: Kind::Manifest, replace: true, key: b"nm", chunks: vec![b"k1"] }.encode();
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

    let mut stranger = Outgoing::new(key.refusal());
    let header = stranger.refusal(Status::UnsupportedVersion, 4);
    frames.push(("refusal", stranger.small(header, b"only")));
    frames
}

#[test]
fn the_document_shows_the_bytes_that_are_sent() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memkv-wire.md");
    let document = std::fs::read_to_string(document).unwrap();
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
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let made: Vec<_> = conversation().into_iter().map(|(name, bytes)| (name.to_owned(), hex(&bytes))).collect();
    assert_eq!(shown, made);
}

#[test]
fn the_document_shows_the_keys_that_are_derived() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memkv-wire.md")).unwrap();
    let (key, ours, theirs) = (Key::new(counting(0)), counting(0x20), counting(0x40));
    let keys = SessionKeys::derive(&key, &ours, &theirs);
    for key in [key.connect(), key.connected(&ours), key.refusal(), keys.client, keys.server] {
        let hex: String = key.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(document.contains(&hex), "{hex}");
    }
}
