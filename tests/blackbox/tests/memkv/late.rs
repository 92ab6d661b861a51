//! Changes that come late: with a server that stands still between the sending and the reading, as a client of version 2 meets it.
//!
//! `tests/models/src/memkv.rs` has the invariants. What the library itself makes of it is in `tests/torture`.

use std::io::Write;
use std::time::{Duration, Instant};

use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::servers::Server;

use super::raw::*;

const CHUNK: u8 = 1;
const MANIFEST: u8 = 2;
const REPLACE: u8 = 1;
/// Nanoseconds.
const MILLISECOND: u64 = 1_000_000;

fn get(client: &mut Client, kind: u8, key: &[u8]) -> Option<Vec<u8>> {
    let came = client.ask(GET, [&[kind][..], &short(key)].concat(), b"");
    assert!(came.status == OK || came.status == MISSING, "{came:?}");
    (came.status == OK).then_some(came.value)
}

fn connect(server: &MemkvServer, nonce: u8) -> Client {
    Client::connect_2(server.port, [nonce; 32], &[])
}

/// What a client sends to a server that stands still until the end has passed.
fn late(
    server: &mut MemkvServer,
    client: &mut Client,
    code: u8,
    fields: impl Fn(u64) -> Vec<u8>,
    value: &[u8],
) -> Came {
    let begun = Instant::now();
    server.freeze(true);
    let end = client.time + begun.elapsed().as_nanos() as u64 + 200 * MILLISECOND;
    let frame = client.frame(code, fields(end), value).signed(&client.ours);
    client.stream.write_all(&frame).unwrap();
    // Time itself is what is tested: the server's clock goes on while it stands still.
    std::thread::sleep(Duration::from_millis(400));
    server.freeze(false);
    client.answer().expect("an answer")
}

#[test]
fn a_change_that_waited_in_a_stopped_server_is_too_late() {
    let mut server = MemkvServer::start(&[]);
    let mut client = connect(&server, 1);
    for kind in [CHUNK, MANIFEST] {
        let put = |end| put_fields_2(kind, REPLACE, end, b"k");
        assert_eq!(client.ask(PUT, put(0), b"first").status, OK);
        let mut fresh = connect(&server, 2);
        let came = late(&mut server, &mut fresh, PUT, put, b"late");
        assert_eq!((came.status, get(&mut client, kind, b"k").as_deref()), (TOO_LATE, Some(&b"first"[..])));
        assert!(!came.fields.is_empty(), "a text says why");
        let mut fresh = connect(&server, 3);
        let came = late(&mut server, &mut fresh, DELETE, |end| delete_fields_2(kind, end, b"k"), b"");
        assert_eq!((came.status, get(&mut client, kind, b"k").as_deref()), (TOO_LATE, Some(&b"first"[..])));
        // The session goes on, and what is in time is done.
        let end = fresh.time + 3_600_000 * MILLISECOND;
        assert_eq!(fresh.ask(DELETE, delete_fields_2(kind, end, b"k"), b"").status, OK);
        let mut fresh = connect(&server, 4);
        let came = late(&mut server, &mut fresh, PUT, |end| put_fields_2(kind, 0, end, b"k"), b"late");
        assert_eq!((came.status, get(&mut client, kind, b"k")), (TOO_LATE, None));
    }
    assert_eq!(server.metric("memkv_late_total"), 6);
}

#[test]
fn what_is_on_disk_is_not_changed_by_what_is_late() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = MemkvServer::start(&["--data", folder.path().to_str().unwrap()]);
    let mut client = connect(&server, 1);
    assert_eq!(client.ask(PUT, put_fields_2(MANIFEST, REPLACE, 0, b"m"), b"first").status, OK);
    let came = late(&mut server, &mut client, PUT, |end| put_fields_2(MANIFEST, REPLACE, end, b"m"), b"late");
    assert_eq!(came.status, TOO_LATE);
    server.restart();
    assert_eq!(get(&mut connect(&server, 2), MANIFEST, b"m").as_deref(), Some(&b"first"[..]));
}

#[test]
fn what_was_sent_on_a_session_that_is_replaced_is_not_done_after_that() {
    let mut server = MemkvServer::start(&[]);
    let mut lost = connect(&server, 1);
    assert_eq!(lost.ask(PUT, put_fields_2(MANIFEST, REPLACE, 0, b"m"), b"first").status, OK);
    for round in 2..12 {
        server.freeze(true);
        // Many, so that some of them wait behind the one that runs when the other session comes; none has an end.
        let frames: Vec<u8> = (0..200)
            .flat_map(|_| {
                let frame = lost.frame(PUT, put_fields_2(MANIFEST, REPLACE, 0, b"m"), &[b'l'; 1000]);
                frame.signed(&lost.ours)
            })
            .collect();
        lost.stream.write_all(&frames).unwrap();
        let mut stream = dial(server.port);
        let hello = Frame { version: 2, ..Frame::new(CONNECT, 0, connect_fields_2(&[round; 32], &lost.session), b"") };
        stream.write_all(&hello.signed(&derive(&key(), "connect", &[]))).unwrap();
        server.freeze(false);
        let mut next = Client::agreed(stream, 2, [round; 32]);
        // From its answer on, the key is this session's.
        assert_eq!(next.ask(PUT, put_fields_2(MANIFEST, REPLACE, 0, b"m"), b"next").status, OK);
        for _ in 0..200 {
            let there = get(&mut next, MANIFEST, b"m").unwrap_or_default();
            assert_eq!(String::from_utf8_lossy(&there[..4]), "next", "round {round}");
        }
        lost = next;
    }
}

#[test]
fn a_session_that_is_not_known_is_replaced_at_once() {
    let mut server = MemkvServer::start(&[]);
    let former = connect(&server, 1).session;
    server.restart();
    let mut client = Client::connect_2(server.port, [2; 32], &former);
    assert_ne!(client.session, former);
    assert_eq!(client.ask(PUT, put_fields_2(CHUNK, 0, 0, b"k"), b"value").status, OK);
    // It replaces that one, and no other.
    let mut other = Client::connect_2(server.port, [3; 32], &[7; 16]);
    assert_eq!(get(&mut client, CHUNK, b"k"), get(&mut other, CHUNK, b"k"));
}

#[test]
fn a_manifest_gets_a_generation_where_it_has_a_place() {
    let server = MemkvServer::start(&[]);
    let mut client = connect(&server, 1);
    let mut former = 0;
    for _ in 0..3 {
        let value = [&b"manifest"[..], &[0; 16]].concat();
        assert_eq!(client.ask(PUT, put_fields_2(MANIFEST, 3, 0, b"m"), &value).status, OK);
        let came = get(&mut client, MANIFEST, b"m").unwrap();
        let (content, place) = came.split_last_chunk::<16>().unwrap();
        let generation = u64::from_le_bytes(*place.first_chunk().unwrap());
        assert!(content == b"manifest" && generation > former && place[8..] != [0; 8], "{came:?}");
        former = generation;
    }
    let mut short = connect(&server, 2);
    let frame = short.frame(PUT, put_fields_2(MANIFEST, 3, 0, b"m"), &[0; 15]).signed(&short.ours);
    short.stream.write_all(&frame).unwrap();
    assert_eq!(short.answer().map(|came| came.status), Some(MALFORMED), "no place for it");
}
