//! The ways to misbehave, by name.

use crate::{lies, records};
use kv_store_sdk::payloads::{self, ItemRange, Part};
use kv_store_sdk::{Error, Payload, Result, changes, files, http, net, system};

pub fn act(how: &str) -> Result<()> {
    match how {
        "trap" => core::arch::wasm32::unreachable(),
        "loop" => loop {
            std::hint::black_box(0);
        },
        "sleep" => system::sleep(3_600_000_000_000),
        // Long for another call, and within the deadline.
        "pause" => system::sleep(500_000_000),
        // As long as the host allows, again and again: never answering.
        "nap" => loop {
            let _ = system::sleep(system::remaining() / 2);
        },
        "recurse" => {
            std::hint::black_box(recurse(1));
            Ok(())
        }
        "grow" => grow(),
        "hoard" => hoard(),
        "past-the-end" => Payload::from_bytes(b"abc")?.read(u64::MAX, 2).map(drop),
        // The same bytes again and again: a list of small parts, and no end of work.
        "hash" => hash_8_mib(100_000),
        // A moment of work in the host, and a moment of the guest's own that waits in each tick of the clock.
        "hash-32-mib" => hash_8_mib(4),
        "work-and-wait" => work_and_wait(),
        // There is none in most calls, and one in a commit.
        "item" => payloads::xxh3(&[Part::Item(7)]).map(drop),
        "item-past-the-end" => {
            payloads::xxh3(&[Part::ItemRange(ItemRange { item: 0, offset: 1, len: u64::MAX })]).map(drop)
        }
        "fail" => Err(Error::unavailable("a line\nand \u{1b}[31manother")),
        "directory" => files::open_directory("").map(drop),
        "other-directory" => files::open_directory("elsewhere").map(drop),
        "connect" => net::connect("127.0.0.1:1", None).map(drop),
        "secret" => match system::secret("token")? {
            Some(secret) => Err(Error::other(format!("the secret has {} bytes", secret.len()))),
            None => Err(Error::other("there is no secret")),
        },
        "secret-of-others" => system::secret("PATH").map(drop),
        "log" => {
            for _ in 0..10_000 {
                system::log(system::Level::Error, "a flood\nof lines");
            }
            Ok(())
        }
        "request-options" => {
            // Each is a handle of the host's.
            (0..1_000_000).for_each(|_| std::mem::forget(http::RequestOptions::new()));
            Ok(())
        }
        // Longer than a token may be.
        "long-token" => {
            changes::begin(&[0], &[7; 65]);
            Ok(())
        }
        "write-ro" => write_in("ro"),
        "write-rw" => write_in("rw"),
        "remove-ro" => match files::open_directory("ro")?.remove(&["file".into()], false)?.pop() {
            Some(files::RemoveOutcome::Failed(error)) => Err(error),
            _ => Ok(()),
        },
        "files-names" => lies::names(),
        "files-ranges" => lies::ranges(),
        "files-many" => lies::many(),
        "files-large" => lies::large(),
        "records-names" => records::names(),
        "records-many" => records::many(),
        "records-large" => records::large(),
        "records-flood" => records::flood(),
        "record-options" => records::flood_of_options(),
        "sync-ro" => files::open_directory("ro")?.sync(&["file".into()]),
        _ => match how.split_once(':') {
            Some((how, server)) => act_on(server, how),
            None => Err(unknown(how)),
        },
    }
}

/// The ways that need a server, `HOW:SERVER`.
fn act_on(server: &str, how: &str) -> Result<()> {
    match how {
        "connections" => {
            let mut held = Vec::new();
            while held.len() < 100 {
                held.push(net::connect(server, None)?);
            }
            Ok(())
        }
        "requests" => send((0..5000).map(|_| request("GET", server, "", Vec::new())).collect()),
        _ if how.starts_with("smuggle-") => send(vec![smuggling(&how["smuggle-".len()..], server)]),
        _ if how.starts_with("get") => send(vec![request("GET", server, "/", Vec::new())]),
        // A line as long as its server likes.
        "line" => net::connect(server, None)?.receive_until(b"\n.\n", 64 << 20).map(drop),
        // Bytes that come and are dropped, without end.
        "circle" => {
            let connection = net::connect(server, None)?;
            loop {
                drop(connection.receive_payload(1 << 20, None)?);
            }
        }
        // As many as it may have, and kept when the call is over.
        "keep-connections" => {
            std::iter::from_fn(|| net::connect(server, None).ok()).for_each(std::mem::forget);
            Ok(())
        }
        _ => Err(unknown(how)),
    }
}

fn unknown(how: &str) -> Error {
    Error::invalid(format!("no such misbehaviour: {how}"))
}

fn work_and_wait() -> Result<()> {
    for _ in 0..10 {
        let begun = system::monotonic();
        while system::monotonic() - begun < 8_000_000 {}
        system::sleep(1_500_000)?;
    }
    Ok(())
}

fn grow() -> Result<()> {
    let mut held: Vec<Vec<u8>> = Vec::new();
    while held.len() <= 32 {
        let mut more = Vec::new();
        if more.try_reserve_exact(1 << 20).is_err() {
            return Err(Error::exhausted("no more memory"));
        }
        more.resize(1 << 20, 1);
        held.push(more);
    }
    Err(Error::other("more than 32 MiB"))
}

/// Payloads instead of memory: the host says when it is enough.
fn hoard() -> Result<()> {
    let mut held = Vec::new();
    while held.len() <= 64 {
        held.push(Payload::from_bytes(&vec![0; 1 << 20])?);
    }
    Err(Error::other("more than 64 MiB"))
}

/// The hash of so many times the same 8 MiB.
fn hash_8_mib(times: usize) -> Result<()> {
    let data = Payload::from_bytes(&vec![0; 8 << 20])?;
    let parts: Vec<Part> = (0..times).map(|_| Part::Payload(&data)).collect();
    payloads::sha256(&parts).map(drop)
}

/// Send requests, and answer as the last of them did.
fn send(requests: Vec<http::Request>) -> Result<()> {
    http::send(&requests).pop().unwrap_or_else(|| Err(Error::other("no answer"))).map(drop)
}

/// A request with another one hidden in a part of it.
fn smuggling<'a>(place: &str, server: &str) -> http::Request<'a> {
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    match place {
        "header" => request("GET", server, "/", header("x", "y\r\n\r\nGET /other HTTP/1.1\r\nhost: h")),
        "own" => request("GET", server, "/", header("Transfer-Encoding", "chunked")),
        "path" => request("GET", server, "/ HTTP/1.1\r\nhost: h\r\n\r\nGET /other", Vec::new()),
        _ => request("GET / HTTP/1.1\r\n\r\nGET", server, "/", Vec::new()),
    }
}

fn request<'a>(method: &str, server: &str, path: &str, headers: Vec<(String, String)>) -> http::Request<'a> {
    let (method, authority, path) = (method.to_owned(), server.to_owned(), path.to_owned());
    http::Request { method, authority, path, headers, body: Vec::new(), item: None, options: None }
}

fn write_in(grant: &str) -> Result<()> {
    let content = vec![Part::Bytes(b"written".to_vec())];
    let request = files::WriteRequest { path: "new".into(), content, replace: true };
    match files::open_directory(grant)?.write(&[request], true)?.pop() {
        Some(files::WriteOutcome::Failed(error)) => Err(error),
        _ => Ok(()),
    }
}

fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    frame[0] + recurse(depth + 1)
}
