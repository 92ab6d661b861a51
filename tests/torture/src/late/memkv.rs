//! A memkv-server that is stopped and goes on, in memory and with files.

use std::io::{Read, Write, copy};
use std::net::{Shutdown, TcpListener, TcpStream};

use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::servers::Server;
use memkv_wire::{HEADER_BYTES, Header, Key, Outgoing, Status, Version};

use super::{Pair, Target, Way, unfenced};
use crate::process::Story;

/// A server, and the port by which it is reached.
struct Reached {
    server: MemkvServer,
    port: u16,
}

impl Target for Reached {
    fn uri(&self) -> String {
        format!("memkv://127.0.0.1:{}/late", self.port)
    }

    fn hold_up(&mut self) {
        self.server.freeze(true);
    }

    fn go_on(&mut self) {
        self.server.freeze(false);
    }
}

pub fn memory(seed: u64) -> Story {
    round(seed, MemkvServer::start(&[]))
}

pub fn files(seed: u64) -> Story {
    let folder = tempfile::tempdir().expect("a temporary directory");
    round(seed, MemkvServer::start(&["--data", &folder.path().display().to_string()]))
}

fn round(seed: u64, server: MemkvServer) -> Story {
    let port = if unfenced() { of_version_1(server.port) } else { server.port };
    super::round(seed, &mut Reached { server, port }, &Way::of(seed, Pair::ALL))
}

/// A relay before a server that refuses version 2 of the frames, as servers of 0.2 do: in version 1 no change has an end.
fn of_version_1(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || relay(client, server));
        }
    });
    port
}

fn relay(mut client: TcpStream, server: u16) -> std::io::Result<()> {
    let mut first = [0; HEADER_BYTES];
    client.read_exact(&mut first)?;
    if Header::decode(&first).is_ok_and(|header| header.version != Version::One) {
        let (key, text) = (Key::from_hex(AUTH_KEY).expect("a key"), b"version 2 is not spoken here");
        let mut refusal = Outgoing::new(key.refusal(), Version::One);
        let header = refusal.refusal(Status::UnsupportedVersion, text.len());
        return client.write_all(&refusal.small(header, text));
    }
    let mut server = TcpStream::connect(("127.0.0.1", server))?;
    server.write_all(&first)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        // What the client sent arrives, also when it has gone.
        let _ = copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    copy(&mut server, &mut client).map(drop)
}
