//! hyper's server reads what we write, we read what it writes, and of what neither has written we accept only what hyper's client
//! reads as the same response.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kv_http_wire::{Body, Chunks, Request, Step, parse_head};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// Status, headers and body of a response that has come whole.
type Response = (u16, Vec<(String, String)>, Vec<u8>);

/// Our reading of all that a server sent before it closed.
fn ours(bytes: &[u8], to_head: bool) -> Result<Response, String> {
    let mut at = 0;
    let head = loop {
        match parse_head(&bytes[at..], to_head).map_err(|bad| bad.0)? {
            None => return Err("the head is cut off".to_owned()),
            Some((head, len)) => {
                at += len;
                if !head.interim {
                    break head;
                }
            }
        }
    };
    let rest = &bytes[at..];
    let body = match head.body {
        Body::Length(len) => rest.get(..len as usize).ok_or("the body is cut off")?.to_vec(),
        Body::ToEnd => rest.to_vec(),
        Body::Chunked => {
            let (mut chunks, mut from, mut body) = (Chunks::default(), 0, Vec::new());
            loop {
                match chunks.step(&rest[from..]).map_err(|bad| bad.0)? {
                    Step::Skip(count) => from += count,
                    Step::Data(len) => {
                        let data = &rest[from..rest.len().min(from.saturating_add(len as usize))];
                        if data.is_empty() {
                            return Err("a chunk is cut off".to_owned());
                        }
                        body.extend_from_slice(data);
                        from += data.len();
                        chunks.took(data.len() as u64);
                    }
                    Step::More => return Err("the chunks are cut off".to_owned()),
                    Step::End => break body,
                }
            }
        }
    };
    Ok((head.status, head.headers, body))
}

/// What hyper's client reads of the same bytes.
fn hypers(bytes: Vec<u8>, to_head: bool) -> Result<Response, String> {
    wait(async {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.map_err(|error| error.to_string())?;
        let method = if to_head { "HEAD" } else { "GET" };
        let request = hyper::Request::builder().method(method).uri("/").body(Empty::<Bytes>::new()).unwrap();
        let server = async {
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") && far.read_buf(&mut asked).await.is_ok_and(|count| count > 0) {}
            // The client may have given up.
            let _ = far.write_all(&bytes).await;
            drop(far);
        };
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            let value =
                |value: &hyper::header::HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
            let headers = head.headers.iter().map(|(name, text)| (name.as_str().to_owned(), value(text))).collect();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes().to_vec();
            Ok((head.status.as_u16(), headers, body))
        };
        let (_, _, answer) = tokio::join!(server, connection, answer);
        answer
    })
}

/// What hyper's server sends when its service answers so, and what it was asked.
fn served(
    request: Vec<u8>,
    answer: impl Fn() -> hyper::Response<BoxBody<Bytes, Infallible>> + Send + Sync + 'static,
) -> (Vec<u8>, Vec<(hyper::http::request::Parts, Bytes)>) {
    wait(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let (noted, answer) = (noted.clone(), &answer);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes());
                noted.lock().unwrap().push((head, body.unwrap_or_default()));
                Ok::<_, Infallible>(answer())
            }
        });
        let serving =
            hyper::server::conn::http1::Builder::new().half_close(true).serve_connection(TokioIo::new(far), service);
        let client = async {
            let (mut reading, mut writing) = tokio::io::split(near);
            let mut came = Vec::new();
            writing.write_all(&request).await.unwrap();
            writing.shutdown().await.unwrap();
            reading.read_to_end(&mut came).await.unwrap();
            came
        };
        let (_, came) = tokio::join!(serving, client);
        let asked = asked.lock().unwrap().drain(..).collect();
        (came, asked)
    })
}

fn name() -> impl Strategy<Value = String> {
    "x-[a-z0-9-]{0,12}"
}

fn value() -> impl Strategy<Value = String> {
    "([!-~]([ -~]{0,20}[!-~])?)?"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn its_server_reads_the_request_that_was_asked_for(
        method in "GET|PUT|POST|HEAD|DELETE|PATCH",
        path in "/[!\"$-~]{0,30}",
        headers in vec((name(), value()), 0..6),
        body in vec(any::<u8>(), 0..200),
    ) {
        // hyper refuses a few characters that a URI may not hold.
        prop_assume!(path.parse::<hyper::Uri>().is_ok());
        let request = Request { method: &method, host: "h:1", path: &path, headers: &headers, body_len: body.len() as u64 };
        let bytes = [request.head().unwrap(), body.clone()].concat();
        let (came, asked) = served(bytes, || hyper::Response::new(Empty::new().boxed()));
        let [(head, read)] = asked.as_slice() else { panic!("{} requests", asked.len()) };
        prop_assert_eq!((head.method.as_str(), head.uri.to_string(), &read[..]), (method.as_str(), path, &body[..]));
        prop_assert_eq!(&head.headers["host"], "h:1");
        for (name, _) in &headers {
            let read: Vec<_> = head.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
            let sent: Vec<_> = headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect();
            prop_assert_eq!(read, sent);
        }
        prop_assert_eq!(ours(&came, method == "HEAD").unwrap().0, 200);
    }

    #[test]
    fn we_read_what_its_server_answers(
        status in prop_oneof![Just(200u16), Just(206), Just(204), Just(304), Just(404), Just(503)],
        headers in vec((name(), value()), 0..6),
        body in vec(vec(any::<u8>(), 1..100), 0..5),
        chunked: bool,
        to_head: bool,
    ) {
        let method = if to_head { "HEAD" } else { "GET" };
        let request = Request { method, host: "h", path: "/", headers: &[], body_len: 0 }.head().unwrap();
        let (sent, pieces) = (headers.clone(), body.clone());
        let (came, _) = served(request, move || {
            let pieces: Vec<Bytes> = pieces.iter().cloned().map(Bytes::from).collect();
            let body = if chunked {
                let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
                StreamBody::new(futures_util::stream::iter(frames.collect::<Vec<_>>())).boxed()
            } else {
                Full::new(Bytes::from(pieces.concat())).boxed()
            };
            let builder = hyper::Response::builder().status(status);
            sent.iter().fold(builder, |builder, (name, value)| builder.header(name, value)).body(body).unwrap()
        });
        let (read, fields, bytes) = ours(&came, to_head).unwrap();
        let none = to_head || matches!(status, 204 | 304);
        prop_assert_eq!((read, bytes), (status, if none { Vec::new() } else { body.concat() }));
        for (name, _) in &headers {
            let of = |all: &[(String, String)]| -> Vec<String> {
                all.iter().filter(|(other, _)| other == name).map(|(_, value)| value.clone()).collect()
            };
            prop_assert_eq!(of(&fields), of(&headers));
        }
    }

    #[test]
    fn what_we_accept_hypers_client_reads_alike(
        status in prop_oneof![Just("200 OK"), Just("204 x"), Just("304 x"), Just("404"), Just("100 x\r\n\r\nHTTP/1.1 200 OK")],
        lines in vec(prop_oneof![
            Just("content-length: 5".to_owned()), Just("Content-Length: 3".to_owned()), Just("content-length: +5".to_owned()),
            Just("transfer-encoding: chunked".to_owned()), Just("transfer-encoding: gzip, chunked".to_owned()),
            Just("transfer-encoding:\tchunked".to_owned()), Just("connection: close".to_owned()), Just(" folded".to_owned()),
            Just("a : b".to_owned()), Just("a: \u{fc}".to_owned()), "[ -~]{0,12}",
        ], 0..5),
        body in prop_oneof![Just("hello"), Just("5\r\nhello\r\n0\r\n\r\n"), Just("3;x=y\r\nabc\r\n0\r\nt: u\r\n\r\n"), Just("abc")],
        flips in vec((any::<usize>(), prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b' '), Just(0)]), 0..3),
        to_head: bool,
    ) {
        let head: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let mut bytes = format!("HTTP/1.1 {status}\r\n{head}\r\n").into_bytes();
        bytes.extend_from_slice(body.as_bytes());
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok((status, _, read)) = ours(&bytes, to_head) {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            match hypers(bytes, to_head) {
                Ok((theirs, _, body)) => prop_assert_eq!((status, read), (theirs, body), "{:?}", shown),
                Err(error) => prop_assert!(false, "hyper refuses it ({error}): {shown:?}"),
            }
        }
    }
}
