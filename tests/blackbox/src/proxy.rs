//! A proxy before a real S3 server. It holds changes back, so that the server carries them out late, and it changes answers and requests.
//!
//! It passes on whole requests, each on a connection of its own, also when the client that made one has gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kv_platform::sync::{Condvar, Mutex};

/// Longer than the server takes for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// What was held back is passed on within so many milliseconds, in any order.
const SPREAD: u64 = 20;

/// A request, as it came.
#[derive(Clone)]
pub struct Request {
    pub method: String,
    /// With the query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// An answer. Its length goes with the body, but for HEAD, which has a header for it.
#[derive(Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What the server answers to a request; none: nothing.
pub type Ask<'a> = &'a mut dyn FnMut(&Request) -> Option<Response>;

/// What is done in place of passing a request on. None: it is none of those that are lied about.
pub type Lie = fn(&Request, Ask<'_>) -> Option<Response>;

#[derive(Default)]
struct ProxyState {
    holds: bool,
    lie: Option<Lie>,
    /// Makes the order in which held requests are passed on.
    turn: u64,
}

struct ProxyShared {
    server: u16,
    state: Mutex<ProxyState>,
    goes_on: Condvar,
    lies: AtomicUsize,
}

/// A running proxy; its threads end with the process.
pub struct Proxy {
    pub port: u16,
    shared: Arc<ProxyShared>,
}

impl Proxy {
    /// Start one before the server on this port of the loopback interface.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(ProxyShared {
            server,
            state: Mutex::default(),
            goes_on: Condvar::new(),
            lies: AtomicUsize::new(0),
        });
        let of_threads = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = of_threads.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Proxy { port, shared }
    }

    /// From here on requests that change something are kept; reads pass, or a change that begins with one would never be sent.
    pub fn hold(&self) {
        self.shared.state.lock().holds = true;
    }

    /// What was kept is passed on, also if nobody waits for the answer any more.
    pub fn go_on(&self) {
        self.shared.state.lock().holds = false;
        self.shared.goes_on.notify_all();
    }

    /// Tell this lie, or none from here on.
    pub fn lie(&self, lie: Option<Lie>) {
        self.shared.state.lock().lie = lie;
    }

    /// How many lies were told.
    pub fn lies(&self) -> usize {
        self.shared.lies.load(SeqCst)
    }
}

impl ProxyShared {
    /// Wait as long as this request is held back.
    fn wait(&self, request: &Request) {
        let mut state = self.state.lock();
        if !state.holds || matches!(request.method.as_str(), "GET" | "HEAD") {
            return;
        }
        while state.holds {
            state = self.goes_on.wait(state);
        }
        state.turn = state.turn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let pause = Duration::from_millis((state.turn >> 33) % SPREAD);
        drop(state);
        std::thread::sleep(pause);
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let lie = self.state.lock().lie;
        let mut ask = |request: &Request| ask(self.server, request);
        match lie.and_then(|lie| lie(request, &mut ask)) {
            Some(told) => {
                self.lies.fetch_add(1, SeqCst);
                Some(told)
            }
            None => ask(request),
        }
    }
}

fn serve(stream: TcpStream, shared: &ProxyShared) {
    let Ok(mut writing) = stream.try_clone() else { return };
    let mut reading = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reading) {
        shared.wait(&request);
        let Some(response) = shared.answer(&request) else { return };
        if writing.write_all(&response.bytes(request.method == "HEAD")).is_err() {
            return;
        }
    }
}

fn ask(server: u16, request: &Request) -> Option<Response> {
    let mut stream = TcpStream::connect(("127.0.0.1", server)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(&request.bytes()).ok()?;
    Response::read(&mut BufReader::new(stream), request.method == "HEAD")
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// The first line and the headers of a message.
fn head(reading: &mut impl BufRead) -> Option<(String, Vec<(String, String)>)> {
    let mut line = || {
        let mut line = String::new();
        reading.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let (first, mut headers) = (line()?, Vec::new());
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    Some((first, headers))
}

/// So many bytes of a body.
fn exactly(reading: &mut impl Read, len: usize) -> Option<Vec<u8>> {
    let mut body = vec![0; len];
    reading.read_exact(&mut body).ok()?;
    Some(body)
}

impl Request {
    fn read(reading: &mut impl BufRead) -> Option<Self> {
        let (line, headers) = head(reading)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let len = header(&headers, "content-length").map_or(Some(0), |len| len.parse().ok())?;
        Some(Request { method, target, body: exactly(reading, len)?, headers })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in self.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length")) {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", self.body.len());
        [head.into_bytes(), self.body.clone()].concat()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }
}

impl Response {
    /// One without headers.
    pub fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Response { status, headers: Vec::new(), body: body.into() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Say this of a header, and nothing else.
    pub fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }

    fn read(reading: &mut impl BufRead, of_head: bool) -> Option<Self> {
        let (mut line, mut headers) = head(reading)?;
        while line.split(' ').nth(1)?.starts_with('1') {
            (line, headers) = head(reading)?;
        }
        let status: u16 = line.split(' ').nth(1)?.parse().ok()?;
        let body = if of_head || matches!(status, 204 | 304) {
            Vec::new()
        } else if header(&headers, "transfer-encoding").is_some() {
            chunked(reading)?
        } else if let Some(len) = header(&headers, "content-length") {
            exactly(reading, len.parse().ok()?)?
        } else {
            let mut body = Vec::new();
            reading.read_to_end(&mut body).ok()?;
            body
        };
        headers.retain(|(name, _)| {
            let own = ["connection", "keep-alive", "transfer-encoding"];
            !own.iter().any(|own| name.eq_ignore_ascii_case(own))
        });
        Some(Response { status, headers, body })
    }

    fn bytes(&self, of_head: bool) -> Vec<u8> {
        let mut bytes = format!("HTTP/1.1 {} told\r\n", self.status);
        for (name, value) in
            self.headers.iter().filter(|(name, _)| of_head || !name.eq_ignore_ascii_case("content-length"))
        {
            bytes += &format!("{name}: {value}\r\n");
        }
        if !of_head && self.status != 204 {
            bytes += &format!("content-length: {}\r\n", self.body.len());
        }
        bytes += "\r\n";
        let body = if of_head || self.status == 204 { &[] } else { self.body.as_slice() };
        [bytes.as_bytes(), body].concat()
    }
}

/// A body in chunks, without trailers.
fn chunked(reading: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reading.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let len = usize::from_str_radix(line.trim_end().split(';').next()?, 16).ok()?;
        body.extend(exactly(reading, len)?);
        exactly(reading, 2)?;
        if len == 0 {
            return Some(body);
        }
    }
}
