//! The ways to misbehave, by name.

use kv_store_sdk::payload::{self, ItemRange, Part};
use kv_store_sdk::{Error, Payload, Result, files, host, net};

pub fn act(how: &str) -> Result<()> {
    match how {
        "trap" => core::arch::wasm32::unreachable(),
        "loop" => loop {
            std::hint::black_box(0);
        },
        "sleep" => host::sleep(3_600_000_000_000),
        // Long for another call, and within the deadline.
        "pause" => host::sleep(500_000_000),
        "nap" => {
            // As long as the host allows, again and again: never answering.
            loop {
                let _ = host::sleep(host::remaining() / 2);
            }
        }
        "recurse" => {
            std::hint::black_box(recurse(1));
            Ok(())
        }
        "grow" => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                let mut more = Vec::new();
                if more.try_reserve_exact(1 << 20).is_err() {
                    return Err(Error::exhausted("no more memory"));
                }
                more.resize(1 << 20, 1);
                held.push(more);
                if held.len() > 32 {
                    return Err(Error::other("more than 32 MiB"));
                }
            }
        }
        "hoard" => {
            // Payloads instead of memory: the host says when it is enough.
            let mut held = Vec::new();
            while held.len() <= 64 {
                held.push(Payload::from_bytes(&vec![0; 1 << 20])?);
            }
            Err(Error::other("more than 64 MiB"))
        }
        "past-the-end" => Payload::from_bytes(b"abc")?.read(u64::MAX, 2).map(drop),
        "hash" => {
            // The same bytes again and again: a list of small parts, and no end of work.
            let data = Payload::from_bytes(&vec![0; 8 << 20])?;
            let parts: Vec<Part> = (0..100_000).map(|_| Part::Payload(&data)).collect();
            payload::sha256(&parts).map(drop)
        }
        // There is none in most calls, and one in a commit.
        "item" => payload::xxh3(&[Part::Item(7)]).map(drop),
        "item-past-the-end" => {
            payload::xxh3(&[Part::ItemRange(ItemRange { item: 0, offset: 1, len: u64::MAX })]).map(drop)
        }
        "fail" => Err(Error::unavailable("a line\nand \u{1b}[31manother")),
        "directory" => files::open_directory("").map(drop),
        "other-directory" => files::open_directory("elsewhere").map(drop),
        "connect" => net::connect("127.0.0.1:1", false, None).map(drop),
        "secret" => match host::secret("token")? {
            Some(secret) => Err(Error::other(format!("the secret has {} bytes", secret.len()))),
            None => Err(Error::other("there is no secret")),
        },
        "secret-of-others" => host::secret("PATH").map(drop),
        "log" => {
            for _ in 0..10_000 {
                host::log(host::Level::Error, "a flood\nof lines");
            }
            Ok(())
        }
        "write-ro" => write_in("ro"),
        "write-rw" => write_in("rw"),
        "remove-ro" => match files::open_directory("ro")?.remove(&["file".into()], false)?.pop() {
            Some(files::RemoveOutcome::Failed(error)) => Err(error),
            _ => Ok(()),
        },
        "sync-ro" => files::open_directory("ro")?.sync(&["file".into()]),
        _ => match how.split_once(':') {
            Some(("connections", server)) => {
                let mut held = Vec::new();
                while held.len() < 100 {
                    held.push(net::connect(server, false, None)?);
                }
                Ok(())
            }
            // As many as it may have, and kept when the call is over.
            Some(("keep-connections", server)) => {
                std::iter::from_fn(|| net::connect(server, false, None).ok()).for_each(std::mem::forget);
                Ok(())
            }
            _ => Err(Error::invalid(format!("no such misbehaviour: {how}"))),
        },
    }
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
