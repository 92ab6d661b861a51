//! The server as an operator has it: admin endpoints, options, the end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use kv_store_tests::dist;
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::servers::Server;

use super::raw::{Client, GET, OK, PUT, get_fields, put_fields};
use super::{open, save};

#[test]
fn the_admin_endpoints_say_how_the_server_does() {
    let server = MemkvServer::start(&["--memory", "16MiB"]);
    assert_eq!(server.admin("/v1/health"), (200, "ok\n".into()));
    assert_eq!(server.admin("/v1/ready"), (200, "ready\n".into()));
    assert_eq!(server.admin("/v2/ready").0, 404);
    save(&open(&server), "secret-name", &[(b"hash", b"chunk")]);
    let (code, status) = server.admin("/v1/status");
    assert_eq!(code, 200);
    for part in ["\"chunks\":1", "\"manifests\":1", "\"connections\":1", "\"max_bytes\":16777216", "\"durable\":false"]
    {
        assert!(status.contains(part), "{part} in {status}");
    }
    let (_, metrics) = server.admin("/v1/metrics");
    for line in metrics.lines() {
        let sample = line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<u64>().is_ok());
        assert!(line.starts_with("# ") || (line.starts_with("memkv_") && sample), "{line}");
    }
    assert!(server.metric("memkv_bytes") > 0);
    assert!(!status.contains("secret-name") && !metrics.contains("secret-name"));
}

/// Connections that never authenticate, more than there may be clients, keep nobody out.
#[test]
fn strangers_keep_no_client_out() {
    let server = MemkvServer::start(&["--connections", "4"]);
    let strangers: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    let first = open(&server);
    save(&first, "m", &[(b"hash", b"chunk")]);
    // Whom the server knows stays while more come.
    let more: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    let begun = Instant::now();
    while server.metric("memkv_accepted_total") < 601 {
        assert!(begun.elapsed() < Duration::from_secs(60), "not all have come");
        std::thread::sleep(Duration::from_millis(10));
    }
    let accepted = server.metric("memkv_accepted_total");
    assert_eq!(first.get_chunk(b"hash").unwrap(), Ok(b"chunk".to_vec()));
    assert_eq!(server.metric("memkv_accepted_total"), accepted, "on the connection that it had");
    drop((strangers, more));
}

#[test]
fn the_admin_port_bears_nonsense() {
    let server = MemkvServer::start(&[]);
    for (request, code) in [
        (&b"POST /v1/status HTTP/1.1\r\n\r\n"[..], "405"),
        (b"nonsense\r\n\r\n", "400"),
        (b"\0\xff\r\n\r\n", "400"),
        (&[b'x'; 20_000], "400"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port + 1)).unwrap();
        let _ = stream.write_all(request);
        let mut answer = [0; 12];
        // It may close over what it did not read.
        if stream.read_exact(&mut answer).is_ok() {
            assert_eq!(&answer[9..], code.as_bytes());
        }
    }
    assert_eq!(server.admin("/v1/health").0, 200);
}

#[test]
fn a_termination_lets_requests_finish() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = MemkvServer::start(&["--data", folder.path().to_str().unwrap()]);
    let mut client = Client::connect(server.port, [1; 32]);
    assert_eq!(client.ask(PUT, put_fields(b"k"), b"value").status, OK);
    let status = server.terminate();
    assert!(status.success(), "{status}");
    assert!(client.answer().is_none(), "closed without a word");
    server.expect_said("stopping");
    server.restart();
    let came = Client::connect(server.port, [1; 32]).ask(super::raw::GET, super::raw::get_fields(b"k"), b"");
    assert_eq!(came.value, b"value");
}

/// What the server says when it does not start.
fn complaint(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn server() -> Command {
    let mut command = Command::new(dist().join("bin/memkv-server"));
    command.env_clear().env("MEMKV_AUTH_KEY", AUTH_KEY).args(["--listen", "127.0.0.1:0"]);
    command
}

#[test]
fn what_keeps_it_from_starting_is_named() {
    let said = complaint(server().env_remove("MEMKV_AUTH_KEY"));
    assert!(said.contains("MEMKV_AUTH_KEY is not set") && said.contains("64 hex digits"), "{said}");
    let said = complaint(server().env("MEMKV_AUTH_KEY", "hunter2"));
    assert!(said.contains("MEMKV_AUTH_KEY: needs 64 hex digits, got") && !said.contains("hunter2"), "{said}");
    let said = complaint(server().args(["--auth-key-file", "/no/such/file"]));
    assert!(said.contains("/no/such/file"), "{said}");
    let said = complaint(server().args(["--memory", "lots"]));
    assert!(said.contains("512 MiB"), "{said}");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(dist().join("bin/memkv-server"));
    let said = complaint(command.env("MEMKV_AUTH_KEY", AUTH_KEY).args(["--listen", &address]));
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let _first = MemkvServer::start(&["--data", data]);
    let said = complaint(server().args(["--data", data]));
    assert!(said.contains("another server uses this folder"), "{said}");
}

#[test]
fn a_key_may_come_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{AUTH_KEY}\n")).unwrap();
    let server = MemkvServer::start(&["--auth-key-file", file.path().to_str().unwrap()]);
    save(&open(&server), "m", &[]);
}

#[test]
fn the_help_teaches() {
    let output = server().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for part in
        ["MEMKV_AUTH_KEY", "--memory <SIZE>", "--data <DIR>", "/v1/metrics", "Example:", "memkv://127.0.0.1:9900/"]
    {
        assert!(help.contains(part), "{part} in {help}");
    }
}

/// Clients in turn, each with a thread of the server: what one puts evicts what the others have put, but for something small that is asked for
/// again and lies behind it in the memory of its thread.
#[test]
fn the_process_takes_little_more_than_its_bound() {
    const BOUND: u64 = 32 << 20;
    let mut server = MemkvServer::start(&["--memory", &BOUND.to_string()]);
    let mut clients: Vec<Client> = (0..4).map(|number| Client::connect(server.port, [number; 32])).collect();
    let large = vec![1; 64 << 10];
    for (number, client) in clients.iter_mut().enumerate() {
        for put in 0..440_u16 {
            let key = [number as u8, put as u8, (put >> 8) as u8];
            assert_eq!(client.ask(PUT, put_fields(&key), &large).status, OK);
            if put % 100 == 0 {
                let small = (0..number).map(|former| client.ask(GET, get_fields(&[former as u8]), b"").status);
                assert!(small.into_iter().all(|status| status == OK));
            }
        }
        assert_eq!(client.ask(PUT, put_fields(&[number as u8]), b"small").status, OK);
    }
    let held = server.metric("memkv_bytes");
    assert!((BOUND * 3 / 4..=BOUND).contains(&held), "{held}");
    let process = server.process().as_ref().unwrap().0.id();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    // With a heap for each thread it is 113 MiB.
    assert!(resident << 10 <= BOUND * 7 / 4, "{resident} KiB");
}
