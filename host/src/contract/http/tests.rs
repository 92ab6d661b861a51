//! Requests to servers of a few lines, which answer what a test tells them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use super::*;
use crate::contract::bindings::kv_store::backend::payloads::{HostPayload, Part};
use crate::contract::tests::{access, budgets, in_call, limited};
use crate::limits::Limits;
use crate::payload::ValueMemory;
use crate::payload::counts::{self, Counts};

mod connections;

/// A server on the loopback interface, one thread for each connection.
struct Server {
    authority: String,
    connections: Arc<AtomicUsize>,
    /// The heads and bodies that came.
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The head and the body of a request.
type Asked = (String, Vec<u8>);

/// The next request on a connection; none: the client has closed it.
fn next(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

impl Server {
    /// `answer` gets the number of the connection, that of the request on it and the request; what it answers is sent. The connection
    /// is closed where that says so, or is none.
    fn start(answer: impl Fn(usize, usize, &str, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = Server { authority, connections: Arc::default(), asked: Arc::default() };
        let (connections, asked, answer) = (server.connections.clone(), server.asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, number) = (stream.unwrap(), connections.fetch_add(1, Relaxed));
                let (asked, answer) = (asked.clone(), answer.clone());
                std::thread::spawn(move || {
                    for count in 0.. {
                        let Some((head, body)) = next(&mut stream) else { return };
                        asked.lock().unwrap().push((head.clone(), body.clone()));
                        match answer(number, count, &head, &body) {
                            Some(bytes) => {
                                let closes = bytes.windows(7).any(|word| word == b": close" || word == b"TP/1.0 ");
                                if stream.write_all(&bytes).is_err() || closes {
                                    return;
                                }
                            }
                            None => return,
                        }
                    }
                });
            }
        });
        server
    }

    /// The same response to whatever is asked.
    fn saying(response: &'static [u8]) -> Self {
        Server::start(move |_, _, _, _| Some(response.to_vec()))
    }

    fn request(&self, method: &str, path: &str) -> Request {
        Request {
            method: method.to_owned(),
            authority: self.authority.clone(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            item: None,
            options: None,
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}

fn state_with(limits: Limits) -> State {
    let mut access = Arc::into_inner(access(limits, &budgets(1 << 30, 100))).unwrap();
    access.parked = Arc::new(super::super::IdleConnections::new(&access.reach.limits));
    State::new(Arc::new(access), 0).unwrap()
}

fn state() -> State {
    state_with(Limits::default())
}

fn send(state: &mut State, requests: Vec<Request>) -> Vec<Result<Response, types::Error>> {
    in_call(state, async |state| Host::send(state, requests).await.unwrap())
}

/// The status and the body of the only response.
fn one(state: &mut State, request: Request) -> Result<(u16, Vec<u8>), types::Error> {
    let response = send(state, vec![request]).pop().unwrap()?;
    let body = bytes(state, response.body);
    Ok((response.status, body))
}

fn bytes(state: &mut State, handle: Resource<Payload>) -> Vec<u8> {
    let len = HostPayload::len(state, Resource::new_borrow(handle.rep())).unwrap() as u32;
    let bytes = HostPayload::read(state, Resource::new_borrow(handle.rep()), 0, len).unwrap().unwrap();
    HostPayload::drop(state, handle).unwrap();
    bytes
}

fn refused(state: &mut State, request: Request, kind: types::ErrorKind, said: &str) {
    let error = one(state, request).unwrap_err();
    assert!(error.kind == kind && error.message.contains(said), "{error:?}; expected {said}");
}

fn with_length(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

/// Memory of a caller for one item, in two pieces.
fn rooms(state: &mut State, memory: &mut [Vec<u8>]) {
    state.items().end();
    let rooms: Vec<Option<ValueMemory>> = memory
        .iter_mut()
        .map(|memory| {
            let half = memory.len() / 2;
            let (one, other) = memory.split_at_mut(half);
            let piece = |piece: &mut [u8]| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
            // SAFETY: a test keeps its memory until the items have ended, and looks at it only then.
            Some(unsafe { ValueMemory::room(&[piece(one), piece(other)]) })
        })
        .collect();
    // SAFETY: as above.
    unsafe { state.items().begin_get(rooms.into_iter().map(|memory| (memory, None))) };
    counts::take();
}

#[test]
fn a_request_is_sent_as_it_was_asked_for_and_its_response_answered() {
    let server = Server::saying(b"HTTP/1.1 418 Teapot\r\nX-A: b\r\nx-a: \xe4\r\ncontent-length: 3\r\n\r\nabc");
    let mut state = state();
    let body = HostPayload::from_bytes(&mut state, b"payload".to_vec()).unwrap().unwrap();
    let parts = vec![Part::Bytes(b"a ".to_vec()), Part::Payload(Resource::new_borrow(body.rep()))];
    let headers = vec![("X-Test".to_owned(), "1 2".to_owned())];
    let request = Request { headers, body: parts, ..server.request("PUT", "/b/k%20x?q=1") };
    let response = send(&mut state, vec![request]).pop().unwrap().unwrap();
    assert_eq!(response.status, 418);
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(response.headers, [field("x-a", "b"), field("x-a", "\u{e4}"), field("content-length", "3")]);
    assert_eq!(bytes(&mut state, response.body), b"abc");
    let (head, body) = server.asked.lock().unwrap().pop().unwrap();
    let host = &server.authority;
    assert_eq!(head, format!("PUT /b/k%20x?q=1 HTTP/1.1\r\nhost: {host}\r\nX-Test: 1 2\r\ncontent-length: 9\r\n\r\n"));
    assert_eq!(body, b"a payload");
}

#[test]
fn bodies_are_received_where_they_belong_without_a_copy() {
    let long: Vec<u8> = (0..300_000).map(|n| (n % 251) as u8).collect();
    let sent = long.clone();
    let server = Server::start(move |_, _, head, _| {
        let partial = head.starts_with("GET /part");
        Some(match partial {
            true => [b"HTTP/1.1 206 x\r\ncontent-length: 1000\r\n\r\n", &sent[..1000]].concat(),
            false => with_length(&sent),
        })
    });
    let mut state = state();
    let mut memory = vec![vec![0xee; 300_010], vec![0xee; 2000], vec![0xee; 1000]];
    rooms(&mut state, &mut memory);
    let paths = ["/all", "/part", "/too-long"];
    let requests = (0..).zip(paths).map(|(item, path)| Request { item: Some(item), ..server.request("GET", path) });
    let responses = send(&mut state, requests.collect());
    let Counts { copied, placed } = counts::take();
    // What came in one read with a head is copied, and no more.
    assert!(copied <= 3 * 4096 && placed + copied == 2 * long.len() + 1000, "{copied} copied, {placed} placed");
    let bodies: Vec<Resource<Payload>> = responses.into_iter().map(|response| response.unwrap().body).collect();
    let lies_in_item = |body: &Resource<Payload>| matches!(state.table.get(body).unwrap(), Payload::Placed(placed) if placed.in_call(&state.items).is_some());
    assert_eq!(bodies.iter().map(lies_in_item).collect::<Vec<_>>(), [true, true, false]);
    assert!(bytes(&mut state, bodies.into_iter().nth(2).unwrap()) == long);
    state.items().end();
    assert!(memory[0][..300_000] == long && memory[0][300_000..] == [0xee; 10]);
    assert!(memory[1][..1000] == long[..1000] && memory[1][1000..] == [0xee; 1000] && memory[2] == [0xee; 1000]);
}

#[test]
fn other_statuses_never_reach_the_memory_of_an_item() {
    let server = Server::saying(b"HTTP/1.1 404 x\r\ncontent-length: 5\r\n\r\nNoKey");
    let (mut state, mut memory) = (state(), vec![vec![0xee; 100]]);
    rooms(&mut state, &mut memory);
    assert_eq!(
        one(&mut state, Request { item: Some(0), ..server.request("GET", "/") }).unwrap(),
        (404, b"NoKey".to_vec())
    );
    // Its room is free again.
    assert!(state.items().claim(0, 100).is_some());
    state.items().end();
    assert_eq!(memory[0], [0xee; 100]);
}

#[test]
fn memory_that_was_lent_is_back_when_the_response_has_failed() {
    let server = Server::start(|connection, _, _, _| match connection {
        0 => Some(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nhalf".to_vec()),
        _ => Some(with_length(&[7; 100])),
    });
    let (mut state, mut memory) = (state(), vec![vec![0xee; 100]]);
    rooms(&mut state, &mut memory);
    let get = || Request { item: Some(0), ..server.request("GET", "/") };
    refused(&mut state, get(), types::ErrorKind::Unavailable, "closed");
    counts::take();
    let responses = send(&mut state, vec![get()]);
    let body = responses.into_iter().next().unwrap().unwrap().body;
    assert!(matches!(state.table.get(&body).unwrap(), Payload::Placed(_)));
    assert_eq!(bytes(&mut state, body), [7; 100]);
    state.items().end();
    assert_eq!(memory[0], [7; 100]);
}

/// A server that reads requests and never answers; it ends with the value.
fn silent() -> (Server, std::sync::mpsc::Sender<()>) {
    let (end, waits) = std::sync::mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let server = Server::start(move |_, _, _, _| waits.lock().unwrap().recv().ok().map(|()| Vec::new()));
    (server, end)
}

#[test]
fn a_deadline_ends_all_requests_and_gives_back_what_was_lent() {
    let (silent, _end) = silent();
    let (mut state, mut memory) = (state(), vec![vec![0xee; 100]]);
    rooms(&mut state, &mut memory);
    let later = Instant::now() + Duration::from_millis(50);
    state.start_call(crate::until::Until::with(&Default::default(), &Limits::default(), Some(later), None));
    let requests = vec![Request { item: Some(0), ..silent.request("GET", "/") }, silent.request("PUT", "/")];
    let driver = &crate::engine::runtime().unwrap().driver;
    let late = later + Duration::from_secs(60);
    let responses = driver.block_on(|| late, Host::send(&mut state, requests)).unwrap().unwrap();
    let kinds: Vec<_> = responses.iter().map(|response| response.as_ref().unwrap_err().kind).collect();
    assert_eq!(kinds, [types::ErrorKind::Unavailable; 2]);
    assert!(state.items().claim(0, 100).is_some());
    state.items().end();
}

#[test]
fn a_server_that_hangs_costs_its_own_requests_a_patience_and_no_others() {
    let (silent, _end) = silent();
    let server = Server::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx");
    let mut state = state();
    let options = HostRequestOptions::new(&mut state).unwrap();
    HostRequestOptions::set_patience(&mut state, Resource::new_borrow(options.rep()), 50_000_000).unwrap();
    let begun = Instant::now();
    let hanging = |_| Request { options: Some(Resource::new_borrow(options.rep())), ..silent.request("GET", "/") };
    let requests = (0..8).map(hanging).chain([server.request("GET", "/")]).collect();
    let responses = send(&mut state, requests);
    assert!(begun.elapsed() < Duration::from_secs(30), "not the deadline of the call, which is a minute away");
    // The server's threads may be behind.
    while silent.connections() < 8 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (answered, failed): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.is_ok());
    assert_eq!((answered.len(), failed.len(), silent.connections()), (1, 8, 8), "none is sent again");
    let said =
        |response: &&Result<Response, types::Error>| response.as_ref().unwrap_err().message.contains("patience_ms");
    assert!(failed.iter().all(said), "{:?}", failed[0]);
}

#[test]
fn a_chunked_body_is_copied_once_and_bounded() {
    let server = Server::start(|_, _, _, _| {
        let mut response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for chunk in vec![7u8; 200_000].chunks(70_001) {
            response.extend(format!("{:x}\r\n", chunk.len()).bytes());
            response.extend(chunk);
            response.extend(b"\r\n");
        }
        response.extend(b"0\r\nx-checksum: 1\r\n\r\n");
        Some(response)
    });
    let mut state = state();
    counts::take();
    assert_eq!(one(&mut state, server.request("GET", "/")).unwrap(), (200, vec![7; 200_000]));
    assert_eq!(counts::take(), Counts { copied: 200_000, placed: 0 });
    assert_eq!(one(&mut state, server.request("GET", "/")).unwrap().1.len(), 200_000);
    assert_eq!(server.connections(), 1, "what follows the trailers is the next response");

    let options = HostRequestOptions::new(&mut state).unwrap();
    HostRequestOptions::set_max_body(&mut state, Resource::new_borrow(options.rep()), 199_999).unwrap();
    let bounded = || Request { options: Some(Resource::new_borrow(options.rep())), ..server.request("GET", "/") };
    refused(&mut state, bounded(), types::ErrorKind::Exhausted, "199999 may come");
    assert_eq!(state.access.reach.shares.payload_bytes.used(), 0);
    let mut small = state_with(limited(|limits| limits.payload_bytes = 150_000));
    refused(&mut small, server.request("GET", "/"), types::ErrorKind::Exhausted, "payload_bytes = 150000");
    assert_eq!(small.access.reach.shares.payload_bytes.used(), 0);
}

#[test]
fn what_has_no_body_leaves_the_connection_in_step() {
    let server = Server::start(|_, _, head, _| {
        Some(match head.split(' ').nth(1).unwrap() {
            "/head" => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_vec(),
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            "/304" => b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n".to_vec(),
            "/100" => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx".to_vec(),
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(),
        })
    });
    let mut state = state();
    for (method, path, status, body) in [
        ("HEAD", "/head", 200, ""),
        ("GET", "/204", 204, ""),
        ("GET", "/304", 304, ""),
        ("GET", "/100", 200, "x"),
        ("PUT", "/", 200, ""),
    ] {
        assert_eq!(
            one(&mut state, server.request(method, path)).unwrap(),
            (status, body.as_bytes().to_vec()),
            "{path}"
        );
    }
    assert_eq!(server.connections(), 1);
    let endless = Server::start(|_, _, _, _| Some(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(100)));
    refused(&mut state, endless.request("GET", "/"), types::ErrorKind::Corrupt, "interim");
}

#[test]
fn a_response_that_is_out_of_step_closes_the_connection() {
    for response in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsmuggled!"[..],
        b"HTTP/1.1 204 x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsmuggled!",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsmuggled!",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    ] {
        let server = Server::saying(response);
        let mut state = state();
        for _ in 0..3 {
            let (_, body) = one(&mut state, server.request("GET", "/")).unwrap();
            assert!(body.len() <= 1, "{body:?}");
            // What comes late comes before the next request all the same.
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(server.connections(), 3, "{:?}", String::from_utf8_lossy(response));
    }
}

#[test]
fn what_says_two_things_about_its_length_is_no_response() {
    for (response, said) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"[..], "both"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"HTTP/1.1 200 OK\r\n\r\nas long as it lasts", "how long"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
    ] {
        let server = Server::saying(response);
        refused(&mut state(), server.request("GET", "/"), types::ErrorKind::Corrupt, said);
    }
    let error_page = Server::saying(b"HTTP/1.0 503 x\r\n\r\nbusy");
    assert_eq!(one(&mut state(), error_page.request("GET", "/")).unwrap(), (503, b"busy".to_vec()));
}

#[test]
fn a_kept_connection_that_was_closed_is_replaced_once_for_what_may_be_repeated() {
    let server = Server::start(|_, count, _, _| (count == 0).then(|| with_length(b"x")));
    let mut state = state();
    for _ in 0..3 {
        // The server closes at the second request on a connection, without a word.
        assert_eq!(one(&mut state, server.request("GET", "/")).unwrap(), (200, b"x".to_vec()));
    }
    assert_eq!((server.connections(), server.asked.lock().unwrap().len()), (3, 5));
    refused(&mut state, server.request("POST", "/"), types::ErrorKind::Unavailable, "closed");
    assert_eq!(server.connections(), 3, "nobody knows whether it was carried out");
}

#[test]
fn requests_go_side_by_side_and_share_few_connections() {
    let all_here = Arc::new(Barrier::new(8));
    let server = Server::start(move |_, _, head, _| {
        // None is answered before all have come.
        if head.starts_with("GET /wait") {
            all_here.wait();
        }
        Some(with_length(head.split(' ').nth(1).unwrap().as_bytes()))
    });
    let mut state = state();
    let paths: Vec<String> = (0..8).map(|number| format!("/wait/{number}")).collect();
    let responses = send(&mut state, paths.iter().map(|path| server.request("GET", path)).collect());
    let bodies: Vec<_> = responses.into_iter().map(|response| bytes(&mut state, response.unwrap().body)).collect();
    assert_eq!(bodies, paths.iter().map(|path| path.as_bytes()).collect::<Vec<_>>());
    assert_eq!(server.connections(), 8);

    let few = Server::start(|_, _, _, _| Some(with_length(b"x")));
    let mut state = state_with(limited(|limits| limits.connections = 2));
    let responses = send(&mut state, (0..20).map(|_| few.request("GET", "/")).collect());
    assert!(responses.iter().all(Result::is_ok) && few.connections() <= 2);
    let mut none = state_with(limited(|limits| limits.connections = 0));
    refused(&mut none, few.request("GET", "/"), types::ErrorKind::Exhausted, "(0 per instance)");
    // Descriptors that other stores hold: those that are left do all of it.
    let mut access = Arc::into_inner(access(Limits::default(), &budgets(1 << 30, 12))).unwrap();
    access.parked = Arc::new(super::super::IdleConnections::new(&access.reach.limits));
    let mut crowded = State::new(Arc::new(access), 0).unwrap();
    let responses = send(&mut crowded, (0..40).map(|_| few.request("GET", "/")).collect());
    assert!(responses.iter().all(Result::is_ok), "{:?}", responses.iter().find(|response| response.is_err()));
}

#[test]
fn what_must_not_be_sent_is_refused_and_the_rest_of_the_batch_goes() {
    let server = Server::saying(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx");
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let get = || server.request("GET", "/");
    let requests = vec![
        get(),
        Request { headers: header("Host", "other"), ..get() },
        Request { headers: header("x", "a\r\ncontent-length: 5"), ..get() },
        Request { path: "/ HTTP/1.1\r\nhost: other".to_owned(), ..get() },
        Request { method: "CONNECT".to_owned(), ..get() },
        Request { headers: vec![("x".to_owned(), "y".to_owned()); 200], ..get() },
        Request { authority: "10.0.0.1:80".to_owned(), ..get() },
        Request { body: vec![Part::Item(3)], ..get() },
    ];
    let mut state = state();
    let responses = send(&mut state, requests);
    use types::ErrorKind::{Denied, Invalid};
    let kinds: Vec<_> = responses.iter().map(|response| response.as_ref().err().map(|error| error.kind)).collect();
    let invalid = Some(Invalid);
    assert_eq!(kinds, [None, invalid, invalid, invalid, invalid, invalid, Some(Denied), invalid]);
    assert_eq!(server.asked.lock().unwrap().len(), 1);
}

#[test]
fn what_a_batch_may_ask_for_is_bounded_and_given_back() {
    let server = Server::start(|_, _, _, _| {
        Some(format!("HTTP/1.1 200 OK\r\na: {}\r\ncontent-length: 0\r\n\r\n", "x".repeat(60 << 10)).into_bytes())
    });
    let mut state = state();
    let count = limits::MAX_HTTP_BATCH_HEAD_BYTES / (60 << 10) + 5;
    let responses = send(&mut state, (0..count).map(|_| server.request("GET", "/")).collect());
    let too_much: Vec<&types::Error> = responses.iter().filter_map(|response| response.as_ref().err()).collect();
    assert!((1..10).contains(&too_much.len()), "{}", too_much.len());
    assert!(too_much.iter().all(|error| error.kind == types::ErrorKind::Exhausted && error.message.contains("fewer")));
    let handles = (responses.len() - too_much.len()) * limits::HANDLE_BYTES;
    assert_eq!(state.access.reach.shares.memory_bytes.used(), handles as u64);
    let poor = limited(|limits| limits.memory_bytes = 64 << 10);
    refused(&mut state_with(poor), server.request("GET", "/"), types::ErrorKind::Exhausted, "memory_bytes");
    let many = send(
        &mut state,
        (0..limits::MAX_BATCH_ITEMS + 2)
            .map(|_| Request { path: String::new(), ..server.request("GET", "/") })
            .collect(),
    );
    let kinds: Vec<_> = many.iter().map(|response| response.as_ref().unwrap_err().kind).collect();
    assert!(kinds[..limits::MAX_BATCH_ITEMS].iter().all(|kind| *kind == types::ErrorKind::Invalid));
    assert_eq!(kinds[limits::MAX_BATCH_ITEMS..], [types::ErrorKind::Exhausted; 2]);
}

#[test]
fn a_refusal_that_comes_before_the_whole_request_was_sent_is_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut some = [0; 100];
        stream.read_exact(&mut some).unwrap();
        stream.write_all(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 4\r\nconnection: keep-alive\r\n\r\nbusy").unwrap();
        // It reads no more, and does not close.
        stream
    });
    let mut state = state();
    let body = vec![Part::Bytes(vec![7; 32 << 20])];
    let request = Request { authority, body, ..Server::saying(b"").request("PUT", "/") };
    assert_eq!(one(&mut state, request).unwrap(), (503, b"busy".to_vec()));
    drop(serving.join().unwrap());
}
