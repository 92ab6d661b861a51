//! Guests that misuse the host's HTTP, and servers that misuse theirs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use kv_store_wasm::ErrorKind::{self, Component, Corrupt, Exhausted, Invalid, Unavailable};

use super::{Case, case, fails, goes_on, open, probing};

/// A server that does something with each connection, on threads that end with its value.
pub struct Server {
    pub address: String,
    is_over: Arc<AtomicBool>,
    accepted: Arc<Mutex<Vec<TcpStream>>>,
    accepting: Option<JoinHandle<()>>,
}

pub fn server(serve: fn(TcpStream) -> std::io::Result<()>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (is_over, accepted) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
    let (until, kept) = (is_over.clone(), accepted.clone());
    let accepting = std::thread::spawn(move || {
        let mut serving = Vec::new();
        for stream in listener.incoming().flatten().take_while(|_| !until.load(Relaxed)) {
            kept.lock().unwrap().push(stream.try_clone().unwrap());
            serving.push(std::thread::spawn(move || serve(stream)));
        }
        serving.into_iter().for_each(|serving| drop(serving.join()));
    });
    Server { address, is_over, accepted, accepting: Some(accepting) }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // Whoever waits for bytes or for a connection is woken.
        let _ = TcpStream::connect(&self.address);
        self.accepted.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.accepting.take().map(JoinHandle::join);
    }
}

/// Bytes without end, to whoever connects.
pub fn flooding(mut stream: TcpStream) -> std::io::Result<()> {
    let bytes = [7; 1 << 16];
    loop {
        stream.write_all(&bytes)?;
    }
}

/// A probe that asks such a server, and fails so.
fn asking(
    how: &'static str,
    scheme: &'static str,
    serve: fn(TcpStream) -> std::io::Result<()>,
    kind: ErrorKind,
    said: &'static str,
) -> Case {
    case(&format!("probe {how}"), move || {
        let server = server(serve);
        let address = &server.address;
        let store = open(&format!("{scheme}://{address}"));
        fails(kind, said, || store.get_manifest(&format!("do:{how}:{address}")));
        goes_on(&store);
    })
}

/// The head of a request, which no test of this file has a body for.
fn read_head(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut last, mut byte) = ([0; 4], [0]);
    while last != *b"\r\n\r\n" {
        stream.read_exact(&mut byte)?;
        last.rotate_left(1);
        last[3] = byte[0];
    }
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let endless_body = |mut stream: TcpStream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let chunk = [&b"10000\r\n"[..], &[7; 0x10000], b"\r\n"].concat();
        loop {
            stream.write_all(&chunk)?;
        }
    };
    let long_body = |mut stream: TcpStream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n")
    };
    let endless_head = |mut stream: TcpStream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            stream.write_all(b"a: b\r\n")?;
        }
    };
    let two_lengths = |mut stream: TcpStream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 0\r\n\r\nhello")
    };
    let silent = |mut stream: TcpStream| stream.read_to_end(&mut Vec::new()).map(drop);
    vec![
        case("probe smuggle", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let server = listener.local_addr().unwrap();
            let store = open(&format!("hostile-probe://{server}"));
            for (how, said) in
                [("header", "header 1"), ("own", "set by the host"), ("path", "path"), ("method", "method")]
            {
                fails(Invalid, said, || store.get_manifest(&format!("do:smuggle-{how}:{server}")));
            }
            assert!(listener.accept().is_err(), "something was sent");
            goes_on(&store);
        }),
        asking("requests", "hostile-probe", |_| Ok(()), Exhausted, "make at most 4096"),
        asking("get", "hostile-probe", endless_body, Exhausted, "and 67108864 may come"),
        asking("get-endless-manifest", "short-manifests", endless_body, Exhausted, "and 1048576 may come"),
        asking("get-long-manifest", "short-manifests", long_body, Exhausted, "1048577 bytes, and 1048576 may come"),
        asking("get-endless-head", "hostile-probe", endless_head, Corrupt, "longer than 65536 bytes"),
        asking("get-two-lengths", "hostile-probe", two_lengths, Corrupt, "no one Content-Length"),
        asking("get-nothing", "endless-probe", silent, Unavailable, "by the deadline"),
        probing("request-options", Component, ""),
    ]
}
