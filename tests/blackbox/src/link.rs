//! The network between one process and its server: a relay that can be cut, that keeps what is sent and delivers it later, also when the
//! sender has gone or its connection broke meanwhile, and that delivers what the process sends twice.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use kv_platform::sync::Mutex;

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    Passes,
    /// Connections are closed, and none is made.
    Cut,
    /// What is sent arrives when the mode changes; what the process sent, on each connection some time after that, so that a later one overtakes it.
    Holds,
    /// As passing, but that the process finds all connections broken that it has now. What is kept of them still arrives.
    Breaks,
    /// What the process sends arrives twice.
    Repeats,
}

struct LinkShared {
    server: u16,
    mode: AtomicU8,
    /// Both ends of each connection, by its number.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    last: AtomicU64,
    over: AtomicBool,
}

/// A running relay. It ends with its value.
pub struct Link {
    pub port: u16,
    shared: Arc<LinkShared>,
}

/// How much longer than the others a connection may keep what was sent.
const SPREAD_MS: u64 = 400;
/// Between two looks at the mode.
const LOOK: Duration = Duration::from_millis(2);

impl Link {
    /// Start one before the server on this port of the loopback interface.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let mode = AtomicU8::new(Mode::Passes as u8);
        let shared = Arc::new(LinkShared {
            server,
            mode,
            open: Mutex::default(),
            last: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if of_thread.over.load(SeqCst) {
                    return;
                }
                // None: it is cut, or the server does not listen; the client sees its connection closed.
                let _ = of_thread.connect(client);
            }
        });
        Link { port, shared }
    }

    pub fn set(&self, mode: Mode) {
        self.shared.mode.store(mode as u8, SeqCst);
        match mode {
            Mode::Cut => self.shared.close_all(),
            Mode::Breaks => self.shared.close_to_the_process(),
            _ => {}
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        self.set(Mode::Cut);
        // Its listener waits for somebody.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl LinkShared {
    fn close_all(&self) {
        for stream in self.open.lock().drain().flat_map(|(_, ends)| ends) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn close_to_the_process(&self) {
        for [process, _server] in self.open.lock().values() {
            let _ = process.shutdown(Shutdown::Both);
        }
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(SeqCst) == mode as u8
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        if self.is(Mode::Cut) {
            return Ok(());
        }
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let number = self.last.fetch_add(1, SeqCst);
        self.open.lock().insert(number, [client.try_clone()?, server.try_clone()?]);
        for (from, to, is_request) in [(client.try_clone()?, server.try_clone()?, true), (server, client, false)] {
            let (sender, receiver) = channel();
            let shared = self.clone();
            std::thread::spawn(move || read(from, &sender));
            std::thread::spawn(move || {
                // By its number, and so in no order.
                let longer = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % SPREAD_MS;
                shared.write(to, &receiver, is_request, Duration::from_millis(longer));
                // What the process sent may still have to arrive when it has gone; behind the last answer nothing has.
                if !is_request {
                    shared.open.lock().remove(&number);
                }
            });
        }
        Ok(())
    }

    /// `longer`: how long after it may pass on what it has kept.
    fn write(&self, mut to: TcpStream, received: &Receiver<Vec<u8>>, is_request: bool, longer: Duration) {
        for bytes in received {
            let mut kept = false;
            while self.is(Mode::Holds) && !self.over.load(SeqCst) {
                kept = true;
                std::thread::sleep(LOOK);
            }
            if kept && is_request {
                std::thread::sleep(longer);
            }
            let times = if is_request && self.is(Mode::Repeats) { 2 } else { 1 };
            for _ in 0..times {
                if to.write_all(&bytes).is_err() {
                    // Whoever reads on the other side does not wait for it.
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

/// Read at once what comes, so that it is there when the sender has gone.
fn read(mut from: TcpStream, to: &Sender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.send(buffer[..read].to_vec()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that collects what arrives on each connection, and answers nothing.
    fn server() -> (u16, Receiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut bytes = Vec::new();
                    let _ = stream.read_to_end(&mut bytes);
                    let _ = sender.send(bytes);
                });
            }
        });
        (port, receiver)
    }

    fn send(link: &Link, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", link.port)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    #[test]
    fn it_passes_keeps_repeats_and_cuts() {
        let (port, arrived) = server();
        let link = Link::start(port);
        let wait = Duration::from_secs(20);
        drop(send(&link, b"passes"));
        assert_eq!(arrived.recv_timeout(wait).unwrap(), b"passes");

        link.set(Mode::Holds);
        drop(send(&link, b"late"));
        assert!(arrived.recv_timeout(Duration::from_millis(100)).is_err());
        link.set(Mode::Repeats);
        assert_eq!(arrived.recv_timeout(wait).unwrap(), b"latelate", "though its sender has gone");

        link.set(Mode::Passes);
        let mut stream = send(&link, b"cut");
        std::thread::sleep(Duration::from_millis(100));
        link.set(Mode::Cut);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        assert_eq!(arrived.recv_timeout(wait).unwrap(), b"cut");
        // A later connection overtakes what an earlier one has kept.
        link.set(Mode::Passes);
        drop(send(&link, b"first"));
        assert_eq!(arrived.recv_timeout(wait).unwrap(), b"first");
        link.set(Mode::Holds);
        drop((0..9).map(|_| send(&link, b"earlier")).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(100));
        link.set(Mode::Passes);
        drop(send(&link, b"later"));
        let order: Vec<Vec<u8>> = (0..10).map(|_| arrived.recv_timeout(wait).unwrap()).collect();
        assert_ne!(order.last().unwrap(), b"later");
        // A connection that breaks has what was sent on it arrive, though its sender knows that it is broken and sends it again.
        while arrived.recv_timeout(Duration::from_millis(500)).is_ok() {}
        link.set(Mode::Holds);
        let mut stream = send(&link, b"sent");
        std::thread::sleep(Duration::from_millis(100));
        link.set(Mode::Breaks);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        drop(send(&link, b"sent again"));
        let mut both: Vec<Vec<u8>> = (0..2).map(|_| arrived.recv_timeout(wait).unwrap()).collect();
        both.sort();
        assert_eq!(both, [&b"sent"[..], b"sent again"]);

        link.set(Mode::Cut);
        // Nothing arrives any more.
        drop(TcpStream::connect(("127.0.0.1", link.port)));
        assert!(arrived.recv_timeout(Duration::from_millis(100)).is_err());
    }
}
