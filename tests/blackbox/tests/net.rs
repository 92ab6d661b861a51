//! Connections that the host makes for a guest: to the server that the URI names, and to no other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kv_store_tests::consumer::{consumer, succeed};
use kv_store_tests::{Handle, library};

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

/// A server that does `serve` with each connection. Its port, and how many connections came.
fn server(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let (counted, serve) = (connections.clone(), Arc::new(serve));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    (port, connections)
}

fn echo(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut data = vec![0; line.trim().parse().map_err(std::io::Error::other)?];
        reader.read_exact(&mut data)?;
        stream.write_all(line.as_bytes())?;
        stream.write_all(&data)?;
    }
}

#[test]
fn a_connection_is_made_once_and_used_again() {
    let (port, connections) = server(echo);
    let store = open(&format!("probe://127.0.0.1:{port}/x"));
    let exchange = || store.get_manifest(&format!("echo:127.0.0.1:{port}")).unwrap();
    assert_eq!(exchange(), Ok(b"first".to_vec()));
    for _ in 0..5 {
        assert_eq!(exchange(), Ok(b"again".to_vec()));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    // A trap ends the instance; the parked connection is the store's.
    assert!(store.get_manifest("do:trap").unwrap().is_err());
    assert_eq!(exchange(), Ok(b"again".to_vec()));
}

#[test]
fn a_name_is_resolved() {
    let (port, _) = server(echo);
    let store = open(&format!("probe://localhost:{port}"));
    assert_eq!(store.get_manifest(&format!("echo:localhost:{port}")).unwrap(), Ok(b"first".to_vec()));
}

#[test]
fn another_server_is_denied_before_anything_is_sent() {
    let (granted, _) = server(echo);
    let (other, connections) = server(echo);
    let store = open(&format!("probe://127.0.0.1:{granted}"));
    for authority in
        [format!("127.0.0.1:{other}"), format!("localhost:{granted}"), format!("[::ffff:127.0.0.1]:{granted}")]
    {
        assert!(store.get_manifest(&format!("echo:{authority}")).unwrap().is_err(), "{authority}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

/// In a process of its own: an exchange with the server fails because of its deadline, and the store goes on.
#[track_caller]
fn is_given_up_at_the_deadline(port: u16) {
    let mut calls = consumer("calls");
    calls.args([&format!("probe://127.0.0.1:{port}"), "read", &format!("echo:127.0.0.1:{port}")]);
    let finished = succeed(calls.args(["publish", "after", "y", "read", "after"]));
    assert_eq!(finished.stdout, "open ok\nread -1\npublish 0\nread 0 79\n", "{}", finished.stderr);
    assert!(finished.stderr.contains("the server did not answer by the deadline"), "{}", finished.stderr);
}

#[test]
fn a_silent_server_is_given_up_at_the_deadline() {
    let (port, _) = server(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop));
    is_given_up_at_the_deadline(port);
}

#[test]
fn a_server_that_answers_a_byte_at_a_time_is_given_up_at_the_deadline() {
    // Of the answer, and of the line before it, which may have 20.
    for first in ["1000000\n", ""] {
        let (port, connections) = server(move |mut stream| {
            stream.set_nodelay(true)?;
            stream.write_all(first.as_bytes())?;
            loop {
                stream.write_all(b"0")?;
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        is_given_up_at_the_deadline(port);
        assert_eq!(connections.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_connection_cut_in_the_middle_is_an_error_and_the_next_is_new() {
    let count = AtomicUsize::new(0);
    let (port, connections) = server(move |mut stream| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return echo(stream);
        }
        stream.write_all(b"1000\nonly this")
    });
    let store = open(&format!("probe://127.0.0.1:{port}"));
    let exchange = || store.get_manifest(&format!("echo:127.0.0.1:{port}")).unwrap();
    assert!(exchange().is_err());
    assert_eq!(exchange(), Ok(b"first".to_vec()));
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_length_beyond_every_limit_is_refused() {
    let (port, _) = server(|mut stream| stream.write_all(b"99999999999999\n"));
    let store = open(&format!("probe://127.0.0.1:{port}"));
    assert!(store.get_manifest(&format!("echo:127.0.0.1:{port}")).unwrap().is_err());
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0);
}
