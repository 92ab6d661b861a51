//! Whatever comes, the readers take it the same way however it is cut, never panic, and never take more than came.

#![allow(clippy::indexing_slicing, reason = "of tests")]

use kv_http_wire::{Body, Chunks, Head, MAX_HEADERS, Request, Step, parse_head};
use proptest::collection::vec;
use proptest::prelude::*;

/// A whole response out of bytes that come in pieces: its head, its body and how many bytes it took. None: it goes on.
fn response(pieces: &[&[u8]]) -> Result<Option<(Head, Vec<u8>, usize)>, String> {
    let (mut came, mut at) = (Vec::new(), 0);
    let mut pieces = pieces.iter();
    let (mut head, mut chunks, mut body) = (None, Chunks::default(), Vec::new());
    loop {
        let waiting = &came[at..];
        let more = match &head {
            None => match parse_head(waiting, false).map_err(|bad| bad.0)? {
                Some((found, len)) => {
                    assert!(len <= waiting.len());
                    head = Some(found);
                    at += len;
                    false
                }
                None => true,
            },
            Some(Head { body: Body::Length(len), .. }) => {
                let left = *len as usize - body.len();
                let take = left.min(waiting.len());
                body.extend_from_slice(&waiting[..take]);
                at += take;
                if take == left {
                    return Ok(head.map(|head| (head, body, at)));
                }
                true
            }
            Some(Head { body: Body::ToEnd, .. }) => return Ok(head.map(|head| (head, body, at))),
            Some(_) => match chunks.step(waiting).map_err(|bad| bad.0)? {
                Step::Skip(count) => {
                    assert!(count <= waiting.len());
                    at += count;
                    false
                }
                Step::Data(left) => {
                    let take = left.min(waiting.len() as u64) as usize;
                    body.extend_from_slice(&waiting[..take]);
                    at += take;
                    chunks.took(take as u64);
                    take == 0
                }
                Step::More => true,
                Step::End => return Ok(head.map(|head| (head, body, at))),
            },
        };
        if more {
            match pieces.next() {
                Some(piece) => came.extend_from_slice(piece),
                None => return Ok(None),
            }
        }
    }
}

fn cut(bytes: &[u8], mut at: Vec<usize>) -> Vec<&[u8]> {
    at.iter_mut().for_each(|at| *at %= bytes.len() + 1);
    at.extend([0, bytes.len()]);
    at.sort();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn chunked(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let (mut bytes, mut rest, mut sizes) = (Vec::new(), body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at(sizes.next().copied().unwrap_or(1).clamp(1, rest.len()));
        bytes.extend(format!("{:X}\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
        rest = behind;
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

fn header() -> impl Strategy<Value = (String, String)> {
    // No name is one that frames a message.
    ("x-[A-Za-z0-9-]{0,12}", "[!-~]([ -~]{0,20}[!-~])?")
}

proptest! {
    #[test]
    fn a_response_is_the_same_however_it_is_cut(
        headers in vec(header(), 0..8),
        body in vec(any::<u8>(), 0..300),
        sizes in vec(1usize..80, 0..4),
        chunks: bool,
        behind in vec(any::<u8>(), 0..20),
        cuts in vec(any::<usize>(), 0..12),
    ) {
        let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
        for (name, value) in &headers {
            bytes.extend(format!("{name}: {value}\r\n").bytes());
        }
        let framing = if chunks { "transfer-encoding: chunked".to_owned() } else { format!("content-length: {}", body.len()) };
        bytes.extend(format!("{framing}\r\n\r\n").bytes());
        bytes.extend(if chunks { chunked(&body, &sizes) } else { body.clone() });
        let len = bytes.len();
        bytes.extend(behind);
        let (head, read, took) = response(&cut(&bytes, cuts)).unwrap().unwrap();
        prop_assert_eq!((read, took, head.headers.len()), (body, len, headers.len() + 1));
        for ((name, value), read) in headers.iter().zip(&head.headers) {
            prop_assert_eq!((&name.to_ascii_lowercase(), value), (&read.0, &read.1));
        }
    }

    #[test]
    fn no_bytes_are_too_strange(start in "(HTTP/1\\.[01] [0-9]{3} )?", bytes in vec(any::<u8>(), 0..200), cuts in vec(any::<usize>(), 0..6)) {
        let bytes = [start.as_bytes(), &bytes].concat();
        let whole = response(&[&bytes]);
        let pieces = response(&cut(&bytes, cuts));
        prop_assert_eq!(whole.is_ok(), pieces.is_ok());
        prop_assert_eq!(whole.ok(), pieces.ok());
    }

    #[test]
    fn a_damaged_chunked_body_never_takes_more_than_came(
        body in vec(any::<u8>(), 0..60),
        sizes in vec(1usize..20, 1..4),
        flips in vec((any::<usize>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        bytes.extend(chunked(&body, &sizes));
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(Some((_, _, took))) = response(&[&bytes]) {
            prop_assert!(took <= bytes.len());
        }
    }

    #[test]
    fn a_head_that_is_written_is_one_head(
        method in "\\PC{0,6}",
        path in "/?\\PC{0,20}",
        headers in vec(("\\PC{0,8}", "[\\PC\\r\\n\\x00]{0,10}"), 0..4),
        body_len: u64,
    ) {
        let request = Request { method: &method, host: "h", path: &path, headers: &headers, body_len };
        let Ok(bytes) = request.head() else { return Ok(()) };
        let mut parsed = [httparse::EMPTY_HEADER; MAX_HEADERS + 2];
        let mut read = httparse::Request::new(&mut parsed);
        prop_assert_eq!(read.parse(&bytes), Ok(httparse::Status::Complete(bytes.len())));
        prop_assert_eq!((read.method, read.path), (Some(method.as_str()), Some(path.as_str())));
        let own = read.headers.iter().filter(|header| !["host", "content-length"].contains(&header.name));
        let own: Vec<_> = own.map(|header| (header.name.to_owned(), String::from_utf8(header.value.to_vec()).unwrap())).collect();
        prop_assert_eq!(own, headers);
        prop_assert_eq!(bytes.windows(4).filter(|end| end == b"\r\n\r\n").count(), 1);
    }
}
