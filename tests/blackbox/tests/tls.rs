//! TLS that the host makes, `rediss://`, against a real redis-server: what is trusted, and what is said of the rest.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers;
use kv_store_tests::tls::{certificates, config};
use kv_store_tests::{Handle, library};

fn open(server: &RedisServer) -> Handle<'static> {
    library().open(&uri(server)).expect("the store opens")
}

fn uri(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}", server.tls_port)
}

/// What a process says that opens a URI with this config, and reads a manifest.
fn said(uri: &str, text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let finished = finish(consumer("calls").args([uri, "read", "none"]).env("KV_STORE_WASM_CONFIG", file.path()));
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.stdout + &finished.stderr
}

#[test]
fn values_of_any_size_come_back_as_they_were() {
    let server = RedisServer::start_tls(&certificates().server, &[]);
    let store = open(&server);
    let data: Vec<u8> = (0..20_000_000_u32).map(|i| (i ^ (i >> 11)) as u8).collect();
    for (hash, len) in [(&b"empty"[..], 0), (b"small", 5), (b"record", 16384), (b"large", data.len())] {
        assert_eq!(store.put_chunk(hash, &data[..len]).unwrap(), 0);
        assert_eq!(store.put_manifest("m", hash).unwrap(), 0);
        assert_eq!(store.get_chunk(hash).unwrap(), Ok(data[..len].to_vec()), "{len} bytes");
    }
    assert_eq!(store.prefetch_chunks(b"emptysmall", 5), Some(0));
    assert_eq!(store.get_chunk(b"small").unwrap(), Ok(data[..5].to_vec()));
}

#[test]
fn a_connection_is_kept_for_the_next_call_and_apart_from_plain_ones() {
    let server = RedisServer::start_tls(&certificates().server, &[]);
    let store = open(&server);
    let plain = library().open(&format!("redis://127.0.0.1:{}", server.port)).unwrap();
    for round in 0..20 {
        assert_eq!(store.put_manifest("m", &[round]).unwrap(), 0);
        assert_eq!(plain.get_manifest("m").unwrap(), Ok(vec![round]));
    }
    let stats = server.ask("INFO stats");
    let received = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
    // One of each kind, those of the server's start and this one.
    assert!(received.trim().parse::<u32>().unwrap() < 10, "{stats}");
}

#[test]
fn a_restarted_server_is_used_again() {
    let mut server = RedisServer::start_tls(&certificates().server, &[]);
    let uri = uri(&server);
    servers::a_restarted_server_is_used_again(&mut server, &uri);
}

#[test]
fn whom_the_operator_does_not_trust_is_not_talked_to() {
    let made = certificates();
    let ca = Some(made.ca.as_path());
    for (certificate, text, expected) in [
        (&made.server, config(ca, None), "open ok"),
        (&made.server, config(None, None), "set tls.ca in the config"),
        (&made.server, config(Some(&made.stranger.chain), None), "not trusted"),
        (&made.stranger, config(ca, None), "not trusted"),
        (&made.elsewhere, config(ca, None), "certificate is not for 127.0.0.1"),
        (&made.expired, config(ca, None), "certificate has expired"),
        (&made.server, config(Some(&made.server.key), None), "holds no certificate"),
        (&made.server, config(Some(Path::new("/nonexistent")), None), "tls.ca /nonexistent"),
    ] {
        let server = RedisServer::start_tls(certificate, &[]);
        let said = said(&uri(&server), &text);
        assert!(said.contains(expected), "{expected}: {said}");
        assert_eq!(said.contains("open ok"), expected == "open ok", "{said}");
    }
}

#[test]
fn a_client_comes_with_a_certificate_where_the_server_asks_for_one() {
    let made = certificates();
    let server = RedisServer::start_tls(&made.server, &["--tls-auth-clients", "yes"]);
    let without = said(&uri(&server), &config(Some(&made.ca), None));
    assert!(without.contains("open NULL") && without.contains("set tls.certificate"), "{without}");
    let with = said(&uri(&server), &config(Some(&made.ca), Some(&made.server)));
    assert!(with.contains("open ok"), "{with}");
    let strange = said(&uri(&server), &config(Some(&made.ca), Some(&made.stranger)));
    assert!(strange.contains("open NULL") && strange.contains("refused the client's certificate"), "{strange}");
}

#[test]
fn a_server_without_tls_is_named_as_such() {
    let trusting = config(Some(&certificates().ca), None);
    // It waits for the end of a line that never comes.
    let redis = RedisServer::start(&[]);
    let answer = said(&format!("rediss://127.0.0.1:{}", redis.port), &trusting);
    assert!(answer.contains("the TLS handshake: the server did not answer"), "{answer}");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let answer = said(&format!("rediss://127.0.0.1:{port}"), &trusting);
    assert!(answer.contains("does not speak TLS"), "{answer}");
}
