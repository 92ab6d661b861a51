//! One guest and several servers, some of which hang: who waits for whom, and for how long.
//!
//! The probe runs a script, and answers a line for each of its steps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use kv_store_tests::library;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::tls::certificates;

/// What the probe answers to each step of a script, under a scheme.
fn run_as(scheme: &str, script: &[String]) -> Vec<String> {
    let store = library().open(&format!("{scheme}://nodes")).expect("the probe opens");
    let said = store.get_manifest(&format!("net:{}", script.join("\n"))).expect("a legal name");
    let said = String::from_utf8(said.expect("it runs")).unwrap();
    said.split_terminator('\n').map(str::to_owned).collect()
}

#[track_caller]
fn answers(script: &[(String, &str)]) {
    let steps: Vec<String> = script.iter().map(|(step, _)| step.clone()).collect();
    let said = run_as("probe-nodes", &steps);
    assert_eq!(said.len(), script.len(), "{said:#?}");
    for ((step, expected), said) in script.iter().zip(&said) {
        let right = if expected.contains("..") {
            expected.split("..").all(|piece| said.contains(piece))
        } else {
            said == expected
        };
        assert!(right, "{step}: expected {expected:?}: {said:?}");
    }
}

/// A server that does `serve` with each connection.
fn server(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = std::sync::Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads, and never answers.
fn silent() -> String {
    server(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop))
}

/// Answers each line with the same line.
fn echo() -> String {
    server(|stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            (&stream).write_all(line.as_bytes())?;
            line.clear();
        }
        Ok(())
    })
}

/// Where nobody accepts, and there is no room for another connection that waits for it: a connect is not answered.
struct Full {
    address: String,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

fn full() -> Full {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a socket that listens, with another number of connections that may wait.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok();
    let waiting: Vec<TcpStream> = (0..16).map_while(connect).collect();
    assert!(waiting.len() < 16, "it takes as many as come");
    Full { address: address.to_string(), _listener: listener, _waiting: waiting }
}

/// Where nobody listens.
fn closed() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_hung_server_costs_its_own_patience_and_not_the_call() {
    let (hung, healthy) = (silent(), echo());
    answers(&[
        (format!("connect {hung}@100,{healthy}"), "ok, ok"),
        ("say 0 hello".into(), "ok"),
        ("exact 0 1".into(), "unavailable: ..no byte for 100 ms"),
        // That wait has cost the connection.
        ("exact 0 1".into(), "unavailable: ..this connection has failed"),
        ("say 1 hello".into(), "ok"),
        ("exact 1 5".into(), "hello"),
    ]);
}

#[test]
fn patience_can_be_changed_and_not_above_the_operators() {
    let hung = silent();
    answers(&[
        (format!("connect {hung}"), "ok"),
        ("patience 0 50".into(), "ok"),
        ("exact 0 1".into(), "unavailable: ..no byte for 50 ms"),
    ]);
    // A longer one has no effect.
    for script in [
        vec![format!("connect {hung}@3600000"), "exact 0 1".into()],
        vec![format!("connect {hung}"), "exact 0 1".into()],
        vec![format!("connect {hung}"), "patience 0 3600000".into(), "exact 0 1".into()],
    ] {
        let said = run_as("probe-hasty", &script);
        assert!(said.last().is_some_and(|said| said.contains("no byte for 100 ms")), "{said:#?}");
    }
}

#[test]
fn a_call_that_waited_in_vain_has_as_much_time_again_whatever_it_meets() {
    let (hung, healthy) = (silent(), echo());
    let mut script = vec![format!("connect {healthy},{hung},{hung},{hung},{hung}")];
    script.extend((1..=4).map(|server| format!("exact {server} 1")));
    script.push("say 0 hello".into());
    let begun = Instant::now();
    let said = run_as("probe-hasty", &script);
    assert!(said[1].contains("no byte for 100 ms"), "{said:#?}");
    assert!(said[3..=4].iter().all(|said| said.contains("waited for in vain before")), "{said:#?}");
    // The deadline of the config is a minute. What needs no wait goes on.
    assert!(begun.elapsed() < Duration::from_secs(20) && said[5] == "ok", "{:?}: {said:#?}", begun.elapsed());
    // Neither the next call nor one that waits for less than it may is held to that.
    let mut script = vec![format!(
        "connect {healthy},{hung}@20,{hung}@20,{hung}@20,{hung}@20,{hung}@20,{hung}@20,{hung}@20,{hung}@20"
    )];
    script.extend((1..=8).map(|server| format!("exact {server} 1")));
    script.extend(["say 0 hello".into(), "exact 0 5".into()]);
    assert_eq!(run_as("probe-hasty", &script).last().map(String::as_str), Some("hello"));
}

#[test]
fn a_byte_now_and_then_is_no_hang() {
    let slow = server(|mut stream| {
        stream.set_nodelay(true)?;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(200));
            stream.write_all(b"x")?;
        }
        stream.read_to_end(&mut Vec::new()).map(drop)
    });
    // Longer than the patience in all.
    answers(&[(format!("connect {slow}@1500"), "ok"), ("exact 0 10".into(), "xxxxxxxxxx")]);
}

#[test]
fn several_are_connected_side_by_side_and_each_has_its_answer() {
    let (full, healthy) = (full(), echo());
    answers(&[
        (
            format!("connect {}@100,{healthy},{},127.0.0.2:1,no-port,{healthy}", full.address, closed()),
            "unavailable: ..no byte for 100 ms.., ok, unavailable: .., denied: .., invalid: .., ok",
        ),
        ("say 5 on".into(), "ok"),
        ("exact 5 2".into(), "on"),
    ]);
    answers(&[(format!("connect {}@100", full.address), "unavailable: cannot connect..no byte for 100 ms")]);
}

#[test]
fn every_server_of_the_uri_is_granted_and_no_other() {
    let (one, two, other) = (echo(), echo(), echo());
    let store = library().open(&format!("probe://{one},{two}/x")).expect("the probe opens");
    let said = store.get_manifest(&format!("net:connect {one},{two},{other}\nsay 1 on\nexact 1 2")).unwrap().unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with("ok, ok, denied: ") && said.ends_with("\nok\non\n"), "{said}");
    assert!(said.contains(&format!("the URI names {one},{two}; ")), "{said}");
    assert!(said.contains(&format!("connect = [\"{other}\"]")), "{said}");
}

#[test]
fn one_that_does_not_read_holds_up_no_other_send() {
    let deaf = server(|stream| {
        std::thread::park();
        drop(stream);
        Ok(())
    });
    // Reads it all, and then says so.
    let reading = || {
        server(|mut stream| {
            stream.read_exact(&mut vec![0; 32 << 20])?;
            stream.write_all(b"!")?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        })
    };
    answers(&[
        (format!("connect {},{deaf}@100,{}", reading(), reading()), "ok, ok, ok"),
        ("flood 0,1,2,0 32".into(), "ok, unavailable: ..no byte for 100 ms.., ok, invalid: .."),
        ("exact 0 1".into(), "!"),
        ("exact 2 1".into(), "!"),
        ("exact 1 1".into(), "unavailable: ..this connection has failed"),
    ]);
}

#[test]
fn ready_says_which_can_be_read() {
    let closing = server(|stream| {
        drop(stream);
        Ok(())
    });
    answers(&[
        (format!("connect {},{},{closing}", silent(), echo()), "ok, ok, ok"),
        ("ready 0,1,2".into(), "2"),
        ("exact 2 1".into(), "unavailable: .."),
        ("say 1 hello".into(), "ok"),
        ("ready 0,1".into(), "1"),
        ("exact 1 1".into(), "h"),
        // The rest came with it, and lies in the host.
        ("ready 0,1 0".into(), "1"),
        ("exact 1 5".into(), "ello\\n"),
        ("ready 0,1 50".into(), "unavailable: no server answered within 50 ms.."),
        // That costs no connection.
        ("say 1 on".into(), "ok"),
        ("ready 1,0".into(), "1"),
        ("exact 1 2".into(), "on"),
        ("ready 1,1".into(), "invalid: ..twice"),
        ("patience 0 50".into(), "ok"),
        ("exact 0 1".into(), "unavailable: .."),
        // It has failed, so a receive would not wait.
        ("ready 1,0".into(), "1,0"),
    ]);
}

#[test]
fn decrypted_bytes_are_ready_and_a_record_without_any_is_not() {
    let server = RedisServer::start_tls(&certificates().server, &[]);
    let tls = format!("127.0.0.1:{}", server.tls_port);
    server.ask(&format!("SET value {}", "x".repeat(8000)));
    answers(&[
        (format!("connect {tls} tls"), "ok"),
        // The server has sent its session tickets, which are for nobody here.
        ("ready 0 100".into(), "unavailable: no server answered.."),
        ("say 0 GET value".into(), "ok"),
        ("ready 0".into(), "0"),
        // The first half of a record; the other was decrypted with it.
        ("exact 0 4096".into(), "4096"),
        ("ready 0 0".into(), "0"),
        (format!("exact 0 {}", "$8000\r\n\r\n".len() + 8000 - 4096), "3913"),
        ("ready 0 50".into(), "unavailable: no server answered.."),
    ]);
}

#[test]
fn tls_asks_for_another_name_where_that_is_granted() {
    let server = RedisServer::start_tls(&certificates().elsewhere, &[]);
    let tls = format!("127.0.0.1:{}", server.tls_port);
    answers(&[
        (format!("connect {tls} tls"), "unavailable: ..certificate is not for 127.0.0.1.."),
        (format!("connect {tls} tls name=cache.example"), "ok"),
        (format!("connect {tls} tls name=other.example"), "denied: ..other.example.."),
        (format!("connect {tls} tls name=no/name"), "invalid: ..no server's name.."),
        ("say 1 PING".into(), "ok"),
        ("exact 1 5".into(), "+PONG"),
    ]);
}

#[test]
fn a_tls_server_that_hangs_is_given_up_like_any_other() {
    let hung = silent();
    answers(&[(format!("connect {hung}@100 tls"), "unavailable: ..the TLS handshake..no byte for 100 ms")]);
}
