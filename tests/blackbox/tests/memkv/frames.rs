//! What the server refuses: with an answer, the end of the connection, and nothing stored.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use kv_store_tests::memkv::MemkvServer;

use super::raw::*;

/// Whether a fresh client finds a chunk.
fn has(server: &MemkvServer, chunk: &[u8]) -> bool {
    let came = Client::connect(server.port, [9; 32]).ask(GET, get_fields(chunk), b"");
    assert!(came.status == OK || came.status == MISSING, "{came:?}");
    came.status == OK
}

/// The server's last word in a session, which must be `status`, and the end.
#[track_caller]
fn refused(client: &mut Client, status: u8) -> String {
    let came = client.answer().expect("an answer");
    assert_eq!((came.code, came.status), (REFUSAL, status), "{came:?}");
    let mut more = Vec::new();
    client.stream.read_to_end(&mut more).expect("the end");
    assert_eq!(more, b"", "it closes");
    String::from_utf8(came.fields).unwrap()
}

/// Send bytes on a new connection; the server's last word, signed with the key for refusals.
#[track_caller]
fn refused_at_once(server: &MemkvServer, bytes: &[u8], status: u8) {
    let mut stream = dial(server.port);
    stream.write_all(bytes).unwrap();
    let came = read_frame(&mut stream).expect("an answer");
    // The newest that it speaks, where it was asked for one that it does not speak.
    let version = if status == UNSUPPORTED_VERSION { 2 } else { 1 };
    assert_eq!((came.version, came.code, came.status, came.sequence), (version, REFUSAL, status, 0), "{came:?}");
    assert!(came.is_signed_with(&derive(&key(), "refusal", &[])));
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0, "it closes");
}

fn connect_frame() -> Frame {
    Frame::new(CONNECT, 0, connect_fields(&[1; 32], "test"), b"")
}

fn connect_key() -> [u8; 32] {
    derive(&key(), "connect", &[])
}

#[test]
fn a_client_that_follows_the_document_is_served() {
    let server = MemkvServer::start(&[]);
    let mut client = Client::connect(server.port, [1; 32]);
    assert_eq!(client.ask(PUT, put_fields(b"k"), b"value").status, OK);
    assert_eq!(client.ask(PUT, put_fields(b"k"), b"other").status, 0x02, "existed");
    let came = client.ask(GET, get_fields(b"k"), b"");
    assert_eq!((came.status, came.value.as_slice()), (OK, &b"value"[..]));
    assert_eq!(client.ask(EXISTS, keys(&[b"k", b"l"]), b"").fields, [1, 0]);
    let batch = [&u64::MAX.to_le_bytes()[..], &keys(&[b"l", b"k"])].concat();
    let came = client.ask(BATCH_GET, batch, b"");
    assert_eq!((came.status, came.left), (MISSING, 1));
    let came = client.answer().unwrap();
    assert_eq!((came.status, came.left, came.value.as_slice()), (OK, 0, &b"value"[..]));
    // A manifest that names a chunk that is not there.
    let manifest = [&[2, 1][..], &short(b"m"), &keys(&[b"k", b"absent"])].concat();
    assert_eq!(client.ask(PUT, manifest, b"x").status, 0x11, "gone");
    assert_eq!(client.ask(GET, [&[2][..], &short(b"m")].concat(), b"").status, MISSING);
}

#[test]
fn a_wrong_key() {
    let server = MemkvServer::start(&[]);
    refused_at_once(&server, &connect_frame().signed(&derive(&[7; 32], "connect", &[])), NOT_AUTHENTIC);
    refused_at_once(&server, &connect_frame().signed(&key()), NOT_AUTHENTIC);
    assert_eq!(server.metric("memkv_refused_total{reason=\"not_authentic\"}"), 2);
}

#[test]
fn a_newer_version() {
    let server = MemkvServer::start(&[]);
    for version in [0, 3, 255] {
        refused_at_once(&server, &Frame { version, ..connect_frame() }.signed(&connect_key()), UNSUPPORTED_VERSION);
    }
    let mut client = Client::connect(server.port, [1; 32]);
    let frame = Frame { version: 2, ..client.frame(PUT, put_fields(b"k"), b"value") };
    client.stream.write_all(&frame.signed(&client.ours)).unwrap();
    assert!(refused(&mut client, UNSUPPORTED_VERSION).contains("version 2"));
    assert!(!has(&server, b"k"));
}

#[test]
fn what_is_no_frame() {
    let server = MemkvServer::start(&[]);
    refused_at_once(&server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", MALFORMED);
    for spoilt in [
        Frame { code: 0x77, ..connect_frame() },
        Frame { status: 0x77, ..connect_frame() },
        Frame { status: 1, ..connect_frame() },
        Frame { left: 1, ..connect_frame() },
        Frame { code: CONNECT | 0x80, ..connect_frame() },
        Frame { code: REFUSAL, ..connect_frame() },
        Frame { code: PUT, fields: put_fields(b"k"), ..connect_frame() },
        Frame { fields: connect_fields(&[1; 32], ""), ..connect_frame() },
        Frame { fields: connect_fields(&[1; 32], &"n".repeat(256)), ..connect_frame() },
        Frame { fields: [connect_fields(&[1; 32], "n"), vec![0]].concat(), ..connect_frame() },
        Frame { fields: vec![], ..connect_frame() },
    ] {
        refused_at_once(&server, &spoilt.signed(&connect_key()), MALFORMED);
    }
    refused_at_once(&server, &Frame { sequence: 1, ..connect_frame() }.signed(&connect_key()), OUT_OF_SEQUENCE);
    refused_at_once(&server, &Frame { value: vec![0], ..connect_frame() }.signed(&connect_key()), TOO_LARGE);
    refused_at_once(&server, &Frame { fields: vec![0; 4096], ..connect_frame() }.signed(&connect_key()), TOO_LARGE);
}

#[test]
fn fields_that_make_no_sense() {
    let server = MemkvServer::start(&[]);
    let long = [5; 513];
    for (code, fields, value) in [
        (PUT, vec![], &b"v"[..]),
        (PUT, put_fields(b""), b"v"),
        (PUT, put_fields(&long), b"v"),
        (PUT, [&[3, 0][..], &short(b"k"), &keys(&[])].concat(), b"v"),
        (PUT, [&[1, 2][..], &short(b"k"), &keys(&[])].concat(), b"v"),
        (PUT, [&[1, 0][..], &short(b"k"), &keys(&[b"c"])].concat(), b"v"),
        (PUT, [&[2, 0][..], &short(b"k"), &u32::MAX.to_le_bytes()].concat(), b"v"),
        (PUT, [put_fields(b"k"), vec![0]].concat(), b"v"),
        (GET, get_fields(b"k"), b"a value"),
        (GET, vec![1, 9, 0, 1], b""),
        (DELETE, [&[3][..], &short(b"k")].concat(), b""),
        (DELETE, get_fields(b"k"), b"a value"),
        (EXISTS, (1_u32 << 31).to_le_bytes().to_vec(), b""),
        (BATCH_GET, [&u64::MAX.to_le_bytes()[..], &keys(&[])].concat(), b""),
        (CONNECT, connect_fields(&[1; 32], "test"), b""),
    ] {
        let mut client = Client::connect(server.port, [1; 32]);
        let frame = client.frame(code, fields, value);
        client.stream.write_all(&frame.signed(&client.ours)).unwrap();
        refused(&mut client, MALFORMED);
    }
    assert!(!has(&server, b"k"));
    let mut client = Client::connect(server.port, [1; 32]);
    assert_eq!(client.ask(PUT, put_fields(&long[..512]), b"v").status, OK, "the longest key");
}

#[test]
fn a_frame_that_is_too_large() {
    let server = MemkvServer::start(&["--max-value", "1MiB"]);
    for (fields, value) in [(0, (1 << 20) + 1_u64), (0, u64::MAX), ((32 << 20) + 1_u32, 0), (u32::MAX, u64::MAX)] {
        let mut client = Client::connect(server.port, [1; 32]);
        let mut header = client.frame(PUT, vec![], b"").bytes();
        header[8..12].copy_from_slice(&fields.to_le_bytes());
        header[16..24].copy_from_slice(&value.to_le_bytes());
        client.stream.write_all(&header).unwrap();
        refused(&mut client, TOO_LARGE);
    }
    // A client that does not wait for the answer can still read it.
    let mut client = Client::connect(server.port, [1; 32]);
    let frame = client.frame(PUT, put_fields(b"k"), &vec![0; 4 << 20]).signed(&client.ours);
    client.stream.write_all(&frame).unwrap();
    refused(&mut client, TOO_LARGE);
    assert!(!has(&server, b"k"));
    let mut client = Client::connect(server.port, [1; 32]);
    assert_eq!(client.ask(PUT, put_fields(b"k"), &vec![0; 1 << 20]).status, OK, "the longest value");
}

#[test]
fn a_frame_that_ends_early() {
    let server = MemkvServer::start(&[]);
    let len = Frame::new(PUT, 1, put_fields(b"k"), &[7; 1000]).bytes().len() + 32;
    let cuts = [1, 31, 32, 40, 100, len - 33, len - 32, len - 1];
    for cut in cuts {
        let mut client = Client::connect(server.port, [1; 32]);
        let frame = client.frame(PUT, put_fields(b"k"), &[7; 1000]).signed(&client.ours);
        client.stream.write_all(&frame[..cut]).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert!(client.answer().is_none(), "cut at {cut}");
    }
    assert!(!has(&server, b"k"));
    assert_eq!(server.metric("memkv_truncated_total"), cuts.len() as u64);

    // What came whole before is answered.
    let mut client = Client::connect(server.port, [1; 32]);
    let whole = client.frame(PUT, put_fields(b"whole"), b"value").signed(&client.ours);
    let half = client.frame(PUT, put_fields(b"half"), b"value").signed(&client.ours);
    client.stream.write_all(&[&whole[..], &half[..50]].concat()).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer().map(|came| came.status), Some(OK));
    assert!(client.answer().is_none());
    assert!(has(&server, b"whole") && !has(&server, b"half"));
}

/// Send the header of a PUT that announces so many bytes, and `sent` of them.
fn begin(client: &mut Client, fields: u32, value: u64, sent: usize) {
    let mut frame = client.frame(PUT, vec![], b"").bytes();
    frame[8..12].copy_from_slice(&fields.to_le_bytes());
    frame[16..24].copy_from_slice(&value.to_le_bytes());
    frame.resize(frame.len() + sent, 0);
    client.stream.write_all(&frame).unwrap();
}

#[test]
fn a_header_that_announces_much_keeps_nobody_out() {
    let server = MemkvServer::start(&["--memory", "1GiB"]);
    let mut slow: Vec<Client> = (0..4).map(|n| Client::connect(server.port, [n; 32])).collect();
    slow.iter_mut().for_each(|client| begin(client, 0, 500 << 20, 1));
    let mut client = Client::connect(server.port, [9; 32]);
    assert_eq!(client.ask(PUT, put_fields(b"k"), &vec![0; 4 << 20]).status, OK);
    assert_eq!(server.metric("memkv_truncated_total"), 0, "nobody had to go");
}

#[test]
fn a_frame_that_comes_slowly_goes_when_another_needs_its_room() {
    // By itself the slow frame goes after 52 s: 20 s, and one for each MiB that it announces. It is never silent.
    const ANNOUNCED: u32 = 32 << 20;
    let alone = Duration::from_secs(52);
    let manifest = [&[2, 1][..], &short(b"m"), &keys(&vec![&b"k"[..]; 10_000])].concat();
    let chunk = [&[1, 1][..], &short(b"l"), &keys(&[])].concat();
    for (fields, value) in [(chunk, vec![0; 1 << 20]), (manifest, vec![0])] {
        // Room for 4 MiB, and for one frame, which one client has.
        let server = MemkvServer::start(&["--memory", "8MiB"]);
        let mut slow = Client::connect(server.port, [1; 32]);
        let begun = Instant::now();
        begin(&mut slow, ANNOUNCED, 0, 11 << 19);
        let mut dripping = slow.stream.try_clone().unwrap();
        let drips = std::thread::spawn(move || {
            while dripping.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        // What is small gets through at once.
        let mut client = Client::connect(server.port, [9; 32]);
        assert_eq!(client.ask(PUT, put_fields(b"k"), &[7; 60 << 10]).status, OK);
        assert_eq!(server.metric("memkv_truncated_total"), 0);
        // The first may come before all that the slow one has sent; none is refused, as one is that waits 20 s.
        while server.metric("memkv_truncated_total") == 0 {
            assert!(begun.elapsed() < alone, "nothing waited for its room");
            assert_eq!(client.ask(PUT, fields.clone(), &value).status, OK);
        }
        drips.join().unwrap();
    }
}

#[test]
fn a_manifest_with_too_many_chunks() {
    let server = MemkvServer::start(&[]);
    let names = vec![&b"k"[..]; 262_145];
    let manifest = |names: &[&[u8]]| [&[2, 1][..], &short(b"m"), &keys(names)].concat();
    let mut client = Client::connect(server.port, [1; 32]);
    assert_eq!(client.ask(PUT, put_fields(b"k"), b"v").status, OK);
    assert_eq!(client.ask(PUT, manifest(&names[1..]), b"v").status, OK);
    let frame = client.frame(PUT, manifest(&names), b"v").signed(&client.ours);
    client.stream.write_all(&frame).unwrap();
    refused(&mut client, MALFORMED);
}

#[test]
fn any_changed_bit() {
    let server = MemkvServer::start(&["--max-value", "1MiB"]);
    let whole = Frame::new(PUT, 1, put_fields(b"key"), b"the value").bytes().len() + 32;
    for bit in (0..whole * 8).step_by(5) {
        let mut client = Client::connect(server.port, [bit as u8; 32]);
        let mut frame = client.frame(PUT, put_fields(b"key"), b"the value").signed(&client.ours);
        frame[bit / 8] ^= 1 << (bit % 8);
        client.stream.write_all(&frame).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
        // A changed length makes it end early; anything else is answered.
        if let Some(came) = client.answer() {
            assert_eq!(came.code, REFUSAL, "bit {bit}: {came:?}");
        }
        assert!(client.answer().is_none(), "bit {bit}");
    }
    assert!(!has(&server, b"key"));
}

#[test]
fn a_frame_that_is_sent_again() {
    let server = MemkvServer::start(&[]);
    let mut client = Client::connect(server.port, [1; 32]);
    let put = client.frame(PUT, [&[1, 1][..], &short(b"k"), &keys(&[])].concat(), b"first").signed(&client.ours);
    client.stream.write_all(&put).unwrap();
    assert_eq!(client.answer().unwrap().status, OK);
    assert_eq!(client.ask(PUT, [&[1, 1][..], &short(b"k"), &keys(&[])].concat(), b"second").status, OK);
    client.stream.write_all(&put).unwrap();
    refused(&mut client, OUT_OF_SEQUENCE);

    // In another session, where its number would be right: also with the same nonce of the client's.
    let mut other = Client::connect(server.port, [1; 32]);
    other.stream.write_all(&put).unwrap();
    refused(&mut other, NOT_AUTHENTIC);
    let came = Client::connect(server.port, [2; 32]).ask(GET, get_fields(b"k"), b"");
    assert_eq!(came.value, b"second");
}

#[test]
fn a_frame_that_is_left_out() {
    let server = MemkvServer::start(&[]);
    let mut client = Client::connect(server.port, [1; 32]);
    client.frame(PUT, put_fields(b"lost"), b"value");
    let next = client.frame(PUT, put_fields(b"k"), b"value").signed(&client.ours);
    client.stream.write_all(&next).unwrap();
    refused(&mut client, OUT_OF_SEQUENCE);
    assert!(!has(&server, b"k"));
}

#[test]
fn the_servers_own_frames_sent_back() {
    let server = MemkvServer::start(&[]);
    let mut client = Client::connect(server.port, [1; 32]);
    let batch = [&u64::MAX.to_le_bytes()[..], &keys(&[b"a", b"b"])].concat();
    client.ask(BATCH_GET, batch, b"");
    // The number of the second answer is that of our second frame, so only the key of the direction tells.
    let second = client.answer().unwrap();
    assert_eq!((second.sequence, client.sent), (2, 2));
    client.stream.write_all(&second.bytes).unwrap();
    refused(&mut client, NOT_AUTHENTIC);

    // A request that is signed as the server signs.
    let mut client = Client::connect(server.port, [1; 32]);
    let frame = client.frame(PUT, put_fields(b"k"), b"value").signed(&client.theirs);
    client.stream.write_all(&frame).unwrap();
    refused(&mut client, NOT_AUTHENTIC);
    assert!(!has(&server, b"k"));
}

#[test]
fn more_clients_than_there_is_room_for() {
    let server = MemkvServer::start(&["--connections", "1"]);
    let mut first = Client::connect(server.port, [1; 32]);
    refused_at_once(&server, &connect_frame().signed(&connect_key()), BUSY);
    assert_eq!(first.ask(PUT, put_fields(b"k"), b"value").status, OK);
    drop(first);
    let begun = Instant::now();
    while server.metric("memkv_connections") > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the first client has gone, and is still counted");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(has(&server, b"k"));
}
