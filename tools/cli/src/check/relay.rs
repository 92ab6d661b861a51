//! A relay between the host and the servers that a URI names: it passes bytes on, holds them back, answers requests by a refusal, closes
//! connections, or changes what the server says.
//!
//! Its threads end with their connections; the process of a case has one relay, and ends soon.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::sync::{Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// No byte goes either way.
    Stall,
    /// Each request over HTTP is answered with this status, but for the first `after`, which pass.
    Refuse {
        status: u16,
        after: u32,
    },
    /// What comes is answered with the refusal that [`Relay::before`] was given, and does not reach the server, but for the first `after` pieces.
    Say {
        after: u32,
    },
    /// Each connection is closed as soon as something comes.
    Close,
    /// What the server answers arrives with other bytes.
    Garble,
}

/// Bytes that are taken from a socket at once.
const PIECE: usize = 64 << 10;
/// The longest head of a request that is waited for.
const HEAD: usize = 128 << 10;
/// How long the rest of a refused request is read, so that its sender meets the answer and not a reset.
const DRAIN: Duration = Duration::from_secs(5);

struct Now {
    mode: Mode,
    /// How many requests pass before the next is refused.
    to_pass: u32,
    /// How often the mode was set.
    set: u64,
}

struct State {
    now: Mutex<Now>,
    changed: Condvar,
    connections: AtomicU64,
    /// A connection began as TLS does.
    tls: AtomicBool,
    /// The server's way to refuse, in its own protocol.
    refusal: Vec<u8>,
}

pub struct Relay {
    state: Arc<State>,
}

impl Relay {
    /// A relay before each server of a URI, and the URI that leads through it. `Err`: why there is none.
    ///
    /// `refusal`: what is said in [`Mode::Say`].
    pub fn before(uri: &str, refusal: &[u8]) -> Result<(String, Self), String> {
        let (scheme, rest) = uri.split_once("://").ok_or("the URI has no scheme")?;
        let (authorities, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, authorities) = match authorities.rsplit_once('@') {
            Some((user, authorities)) => (format!("{user}@"), authorities),
            None => (String::new(), authorities),
        };
        let state = Arc::new(State {
            now: Mutex::new(Now { mode: Mode::Pass, to_pass: 0, set: 0 }),
            changed: Condvar::new(),
            connections: AtomicU64::new(0),
            tls: AtomicBool::new(false),
            refusal: refusal.to_vec(),
        });
        let mut own = Vec::new();
        for authority in authorities.split(',') {
            let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            port.ok_or_else(|| format!("{authority:?} in the URI is not HOST:PORT"))?;
            own.push(serve(authority.to_owned(), state.clone()).map_err(|error| error.to_string())?);
        }
        Ok((format!("{scheme}://{user}{}{path}", own.join(",")), Relay { state }))
    }

    pub fn set(&self, mode: Mode) {
        let mut now = self.state.now.lock();
        let to_pass = match mode {
            Mode::Refuse { after, .. } | Mode::Say { after } => after,
            _ => 0,
        };
        *now = Now { mode, to_pass, set: now.set + 1 };
        self.state.changed.notify_all();
    }

    /// How many connections were made through it.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Relaxed)
    }

    pub fn saw_tls(&self) -> bool {
        self.state.tls.load(Relaxed)
    }
}

impl State {
    /// The mode, as soon as it is not to stall.
    fn wait(&self) -> MutexGuard<'_, Now> {
        let mut now = self.now.lock();
        while now.mode == Mode::Stall {
            now = self.changed.wait(now);
        }
        now
    }

    /// What happens to bytes that have come from a client, and how often the mode was set until now.
    fn meet(&self, bytes: &[u8]) -> (Mode, u64) {
        let mut now = self.wait();
        let mode = match now.mode {
            // The rest of a request whose head has passed.
            Mode::Refuse { .. } if !begins_request(bytes) => Mode::Pass,
            Mode::Refuse { .. } | Mode::Say { .. } if now.to_pass > 0 => {
                now.to_pass -= 1;
                Mode::Pass
            }
            mode => mode,
        };
        (mode, now.set)
    }
}

/// Whether bytes begin as a request over HTTP does: with a method and a space.
fn begins_request(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && bytes.get(method) == Some(&b' ')
}

/// Listen for one server. Answers the address.
fn serve(server: String, state: Arc<State>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            state.connections.fetch_add(1, Relaxed);
            let (server, state) = (server.clone(), state.clone());
            std::thread::spawn(move || relay(client, &server, &state));
        }
    });
    Ok(address)
}

fn relay(client: TcpStream, server: &str, state: &Arc<State>) {
    let done = (|| {
        drop(state.wait());
        let server = TcpStream::connect(server)?;
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (mut to_client, mut from_server) = (client.try_clone()?, server.try_clone()?);
        let own = state.clone();
        std::thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while let Some(count) = read(&mut from_server, &mut piece) {
                let bytes = piece.get_mut(..count).unwrap_or_default();
                if own.wait().mode == Mode::Garble {
                    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                }
                if to_client.write_all(bytes).is_err() {
                    break;
                }
            }
            let _ = to_client.shutdown(Shutdown::Both);
        });
        pass_up(&client, &server, state)
    })();
    if done.is_err() {
        let _ = client.shutdown(Shutdown::Both);
    }
}

fn read(from: &mut TcpStream, piece: &mut [u8]) -> Option<usize> {
    from.read(piece).ok().filter(|count| *count > 0)
}

fn pass_up(mut client: &TcpStream, mut server: &TcpStream, state: &State) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut first = true;
    // When this connection was first refused something.
    let mut refused = None;
    loop {
        let count = client.read(&mut piece)?;
        let bytes = piece.get(..count).unwrap_or_default();
        // A record of a handshake.
        if std::mem::take(&mut first) && bytes.first() == Some(&0x16) {
            state.tls.store(true, Relaxed);
        }
        if bytes.is_empty() {
            return server.shutdown(Shutdown::Both);
        }
        let (mode, set) = state.meet(bytes);
        if refused.is_some_and(|when| when != set) {
            // The server may have got a part of a request: what follows would be taken for its rest.
            return server.shutdown(Shutdown::Both).and_then(|()| client.shutdown(Shutdown::Both));
        }
        match mode {
            Mode::Refuse { status, .. } => {
                let answered = refuse(client, bytes.to_vec(), status);
                // Not before the answer is out: the thread that reads from the server ends the client's connection with it.
                let _ = server.shutdown(Shutdown::Both);
                return answered;
            }
            // One request comes in one piece or in several: what is said once too often finds the connection closed.
            Mode::Say { after } => {
                refused = refused.or((after > 0).then_some(set));
                client.write_all(&state.refusal)?;
            }
            Mode::Close => return server.shutdown(Shutdown::Both).and_then(|()| client.shutdown(Shutdown::Both)),
            Mode::Pass | Mode::Stall | Mode::Garble => server.write_all(bytes)?,
        }
    }
}

/// Answer one request, of which `head` has come, and end the connection.
fn refuse(mut client: &TcpStream, mut head: Vec<u8>, status: u16) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < HEAD {
        let count = client.read(&mut piece)?;
        if count == 0 {
            break;
        }
        head.extend_from_slice(piece.get(..count).unwrap_or_default());
    }
    write!(client, "HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    client.shutdown(Shutdown::Write)?;
    let begun = Instant::now();
    client.set_read_timeout(Some(DRAIN))?;
    while begun.elapsed() < DRAIN && client.read(&mut piece)? > 0 {}
    client.shutdown(Shutdown::Both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_passes_stalls_and_refuses() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut client in server.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let mut bytes = [0; 4];
                    while client.read_exact(&mut bytes).is_ok() && client.write_all(&bytes).is_ok() {}
                });
            }
        });
        let (uri, relay) = Relay::before(&format!("acme://me@127.0.0.1:{port}/a/b"), b"-NO\r\n").unwrap();
        let address = uri.strip_prefix("acme://me@").and_then(|rest| rest.strip_suffix("/a/b")).unwrap();
        assert_ne!(address, format!("127.0.0.1:{port}"));
        let mut client = TcpStream::connect(address).unwrap();
        let mut bytes = [0; 4];
        client.write_all(b"ping").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes, relay.connections(), relay.saw_tls()), (b"ping", 1, false));
        relay.set(Mode::Stall);
        client.write_all(b"held").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(client.read(&mut bytes).is_err(), "nothing comes while it stalls");
        client.set_read_timeout(None).unwrap();
        relay.set(Mode::Pass);
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"held");
        relay.set(Mode::Garble);
        client.write_all(b"ping").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_ne!(&bytes, b"ping");
        relay.set(Mode::Say { after: 0 });
        client.write_all(b"ping").unwrap();
        let mut said = [0; 5];
        client.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"-NO\r\n");
        let mut half = TcpStream::connect(address).unwrap();
        relay.set(Mode::Say { after: 1 });
        half.write_all(b"ping").unwrap();
        half.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping", "the first piece passes");
        half.write_all(b"ping").unwrap();
        half.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"-NO\r\n");
        relay.set(Mode::Pass);
        half.write_all(b"ping").unwrap();
        assert_eq!(
            half.read(&mut bytes).unwrap_or(0),
            0,
            "a connection that was refused its second piece is not used again"
        );
        relay.set(Mode::Close);
        let mut other = TcpStream::connect(address).unwrap();
        other.write_all(b"ping").unwrap();
        assert_eq!(other.read(&mut bytes).unwrap_or(0), 0);
        relay.set(Mode::Refuse { status: 503, after: 1 });
        client.write_all(b"GET ").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"GET ", "the first request passes");
        client.write_all(b"body").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"body", "and what belongs to it");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }

    #[test]
    fn several_servers_have_a_relay_each_and_one_without_a_port_has_none() {
        let (uri, _relay) = Relay::before("acme://127.0.0.1:1,127.0.0.1:2/x", b"").unwrap();
        assert_eq!(uri.matches("127.0.0.1:").count(), 2);
        assert!(!uri.contains(":1,") && uri.ends_with("/x"), "{uri}");
        for without in ["acme://host/x", "acme://host:1,host/x", "acme:///directory", "nothing"] {
            assert!(Relay::before(without, b"").is_err(), "{without}");
        }
    }
}
