//! What the backend says to a server that is none, or not ours. Nothing that is not signed is believed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::finish;
use kv_store_tests::dist;
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};

use super::raw::*;
use super::{library, refusal, save};

const PATIENCE: Duration = Duration::from_secs(30);

/// A server that does `serve` with each connection. Its URI.
fn impostor(serve: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    format!("memkv://127.0.0.1:{port}/test")
}

/// A server that answers CONNECT with a frame of its own, made of the client's nonce.
fn answering(answer: impl Fn([u8; 32]) -> Vec<u8> + Send + 'static) -> String {
    impostor(move |mut stream| {
        let came = read_frame(&mut stream).expect("CONNECT");
        assert_eq!(came.code, CONNECT);
        let nonce = came.fields[..32].try_into().unwrap();
        let _ = stream.write_all(&answer(nonce));
        // Until the client has gone.
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

fn connected_fields() -> Vec<u8> {
    [&[2; 32][..], &[0], &(1_u64 << 30).to_le_bytes(), &short(b"a server")].concat()
}

fn connected() -> Frame {
    Frame::new(CONNECT | 0x80, 0, connected_fields(), b"")
}

fn signing_key(nonce: [u8; 32]) -> [u8; 32] {
    derive(&key(), "connected", &[&nonce])
}

#[test]
fn a_server_of_another_kind() {
    let uri = impostor(|mut stream| {
        let _ = stream.read(&mut [0; 200]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let said = refusal(&uri, Some(AUTH_KEY));
    assert!(said.contains("is this a memkv-server?"), "{said}");
}

#[test]
fn a_server_that_closes() {
    let said = refusal(&impostor(drop), Some(AUTH_KEY));
    assert!(said.contains("closed") || said.contains("reset"), "{said}");
}

#[test]
fn a_server_of_another_version() {
    let uri = answering(|nonce| Frame { version: 7, ..connected() }.signed(&signing_key(nonce)));
    let said = refusal(&uri, Some(AUTH_KEY));
    assert!(said.contains("UnsupportedVersion: the server speaks version 7"), "{said}");

    let text = b"only version 3 here".to_vec();
    let refused = Frame { status: UNSUPPORTED_VERSION, ..Frame::new(REFUSAL, 0, text, b"") };
    let uri = answering(move |_| refused.signed(&derive(&key(), "refusal", &[])));
    let said = refusal(&uri, Some(AUTH_KEY));
    assert!(said.contains("UnsupportedVersion: only version 3 here"), "{said}");
}

#[test]
fn a_server_that_is_busy_says_so() {
    let refused = Frame { status: BUSY, ..Frame::new(REFUSAL, 0, b"try later".to_vec(), b"") };
    let said = refusal(&answering(move |_| refused.signed(&derive(&key(), "refusal", &[]))), Some(AUTH_KEY));
    assert!(said.contains("busy: try later"), "{said}");
}

#[test]
fn an_answer_that_is_not_signed_for_this_connection() {
    // With the plain key, with that of an answer to somebody else's nonce, and with the client's own.
    let wrong: [fn([u8; 32]) -> [u8; 32]; 3] =
        [|_| key(), |_| signing_key([7; 32]), |_| derive(&key(), "connect", &[])];
    for key in wrong {
        let said = refusal(&answering(move |nonce| connected().signed(&key(nonce))), Some(AUTH_KEY));
        assert!(said.contains("another key"), "{said}");
    }
}

#[test]
fn an_answer_that_makes_no_sense() {
    for spoilt in [
        Frame { code: PUT | 0x80, ..connected() },
        Frame { code: CONNECT, ..connected() },
        Frame { fields: vec![1, 2, 3], ..connected() },
        Frame { sequence: 1, ..connected() },
        Frame { fields: vec![0; 4000], ..connected() },
    ] {
        let said = refusal(&answering(move |nonce| spoilt.signed(&signing_key(nonce))), Some(AUTH_KEY));
        assert!(said.contains("answer"), "{said}");
    }
}

/// Between the client and a real server, a proxy that changes one byte of the `frame`th frame of the server's, `at` bytes
/// before its end.
fn proxy(server: u16, frame: u64, at: usize) -> String {
    impostor(move |client| {
        let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let (mut from, mut to) = (server, client);
        for number in 0.. {
            let Some(Came { mut bytes, .. }) = read_frame(&mut from) else { break };
            if number == frame {
                let len = bytes.len();
                bytes[len - at] ^= 1;
            }
            let _ = to.write_all(&bytes);
        }
    })
}

#[test]
fn a_value_that_was_changed_on_the_way_is_not_answered() {
    let server = MemkvServer::start(&[]);
    // Under a key that nothing can be checked against.
    save(&library().open(&server.uri("test")).unwrap(), "m", &[(b"a key of any kind", &[7; 100])]);
    // The answers: to CONNECT, to the manifest, to the chunk. The last byte of the value is 33 from the end.
    let through = |at: usize| library().open(&proxy(server.port, 2, at)).unwrap();
    for at in [1, 32, 33, 132] {
        let store = through(at);
        assert_eq!(store.get_manifest("m").unwrap(), Ok(b"m".to_vec()));
        assert!(store.get_chunk(b"a key of any kind").unwrap().is_err(), "{at}");
        let connections = server.metric("memkv_accepted_total");
        assert_eq!(store.get_chunk(b"a key of any kind").unwrap(), Ok(vec![7; 100]), "{at}");
        assert_eq!(server.metric("memkv_accepted_total"), connections + 1, "{at}: on a new connection");
    }
}

/// A real server that speaks version 1 only: of 0.1 or 0.2. Connections are counted by version.
fn of_version_1(server: u16, came: [Arc<AtomicUsize>; 2]) -> String {
    impostor(move |mut client| {
        let came = came.clone();
        std::thread::spawn(move || {
            let Some(first) = read_frame(&mut client) else { return };
            came[usize::from(first.version > 1)].fetch_add(1, SeqCst);
            if first.version > 1 {
                let text = b"version 2 is not spoken here".to_vec();
                let refused = Frame { status: UNSUPPORTED_VERSION, ..Frame::new(REFUSAL, 0, text, b"") };
                let _ = client.write_all(&refused.signed(&derive(&key(), "refusal", &[])));
                return;
            }
            let mut server = TcpStream::connect(("127.0.0.1", server)).unwrap();
            server.write_all(&first.bytes).unwrap();
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            let _ = std::io::copy(&mut server, &mut client);
        });
    })
}

#[test]
fn a_server_of_version_1_is_spoken_to_in_its_version_and_doctor_says_what_that_costs() {
    let server = MemkvServer::start(&[]);
    let came: [Arc<AtomicUsize>; 2] = Default::default();
    let uri = of_version_1(server.port, came.clone());
    let store = library().open(&uri).unwrap();
    save(&store, "m", &[(b"a key of any kind", b"chunk"), (b"8 bytes.", b"chunk")]);
    save(&store, "m", &[]);
    assert_eq!(store.get_chunk(b"a key of any kind").unwrap(), Ok(b"chunk".to_vec()));
    assert_eq!(store.delete_manifest("m").unwrap(), 0);
    assert!(store.get_manifest("m").unwrap().is_err());
    // Upkeep may be between its two.
    let begun = Instant::now();
    loop {
        let [one, two] = [0, 1].map(|version| came[version].load(SeqCst));
        if one > 0 && one == two {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{one} connections of version 1, {two} of version 2");
        std::thread::sleep(Duration::from_millis(10));
    }

    let doctor = |uri: &str| {
        let mut command = Command::new(dist().join("bin/kv-store"));
        let said = finish(command.args(["doctor", "--probe", uri]).env("MEMKV_AUTH_KEY", AUTH_KEY));
        said.stdout + &said.stderr
    };
    let said = doctor(&uri);
    assert!(said.contains("version 1: changes that come late are not refused"), "{said}");
    let said = doctor(&server.uri("test"));
    assert!(said.contains("opened   memkv-server") && !said.contains("late"), "{said}");
}
