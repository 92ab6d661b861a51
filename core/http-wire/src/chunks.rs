//! A chunked body (RFC 9112, section 7.1), read piece by piece.

use crate::MAX_HEAD_BYTES;
use crate::response::{BadResponse, bad};

/// The longest line with the size of a chunk, its extensions included.
const MAX_LINE_BYTES: usize = 256;

/// Where in a chunked body its reader is.
#[derive(Clone, Debug)]
pub struct Chunks {
    state: State,
    /// Bytes of trailers so far.
    trailers: usize,
}

#[derive(Clone, Debug)]
enum State {
    Size,
    Data(u64),
    /// The line end behind the data of a chunk.
    Behind,
    Trailer,
    End,
}

/// What to do with the bytes that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first so many are framing: forget them, and look again.
    Skip(usize),
    /// The next so many bytes, those not yet come included, belong to the body. [`Chunks::took`] says how many were taken.
    Data(u64),
    /// Receive more.
    More,
    /// The body is over; what comes next belongs to another message.
    End,
}

impl Default for Chunks {
    fn default() -> Self {
        Chunks { state: State::Size, trailers: 0 }
    }
}

impl Chunks {
    /// Look at the bytes that came and were neither skipped nor taken.
    ///
    /// # Errors
    /// They are no chunked body. The length of lines, and of the trailers, is bounded.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, BadResponse> {
        match self.state {
            State::Data(left) => Ok(Step::Data(left)),
            State::End => Ok(Step::End),
            State::Behind => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Step::Skip(2))
                }
                [] | [b'\r'] => Ok(Step::More),
                _ => bad("a chunk of the response is longer than it says"),
            },
            State::Size => {
                let Some(line) = line(bytes, MAX_LINE_BYTES)? else { return Ok(Step::More) };
                let size = size(line)?;
                self.state = if size == 0 { State::Trailer } else { State::Data(size) };
                Ok(Step::Skip(line.len() + 2))
            }
            State::Trailer => {
                let Some(line) = line(bytes, MAX_HEAD_BYTES - self.trailers)? else { return Ok(Step::More) };
                self.trailers += line.len() + 2;
                if line.is_empty() {
                    self.state = State::End;
                } else if !is_header(line) {
                    return bad("a trailer of a chunked response is no header");
                }
                Ok(Step::Skip(line.len() + 2))
            }
        }
    }

    /// So many bytes of the body were taken, at most as many as [`Step::Data`] said.
    pub fn took(&mut self, count: u64) {
        if let State::Data(left) = self.state {
            self.state = if count < left { State::Data(left - count) } else { State::Behind };
        }
    }
}

/// The bytes before the first line end. None: it has not come.
fn line(bytes: &[u8], limit: usize) -> Result<Option<&[u8]>, BadResponse> {
    let end = bytes.iter().take(limit).position(|byte| matches!(byte, b'\r' | b'\n' | 0));
    match end.map(|at| (at, bytes.get(at..).unwrap_or_default())) {
        Some((at, [b'\r', b'\n', ..])) => Ok(bytes.get(..at)),
        Some((_, [b'\r'])) => Ok(None),
        Some(_) => bad("a line of a chunked response does not end in CR LF"),
        None if bytes.len() >= limit => bad("a line of a chunked response is too long"),
        None => Ok(None),
    }
}

/// Whether a line is a name and a value, as in a head: a body whose end others read differently is not taken.
fn is_header(line: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 1];
    let whole = [line, b"\r\n\r\n"].concat();
    matches!(httparse::parse_headers(&whole, &mut headers), Ok(httparse::Status::Complete((_, [_]))))
}

/// The size of a chunk: hexadecimal digits, and extensions, which nobody needs.
fn size(line: &[u8]) -> Result<u64, BadResponse> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let number = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    // Up to 16 digits never overflow.
    match number.filter(|text| text.len() <= 16).and_then(|text| u64::from_str_radix(text, 16).ok()) {
        Some(size) => Ok(size),
        None => bad("a chunk of the response has no size"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body, and what is left behind it.
    type Read = (Vec<u8>, Vec<u8>);

    fn read(bytes: &[u8], at_once: usize) -> Result<Option<Read>, BadResponse> {
        let (mut chunks, mut body, mut from, mut to) = (Chunks::default(), Vec::new(), 0, 0);
        loop {
            match chunks.step(&bytes[from..to])? {
                Step::Skip(count) => from += count,
                Step::Data(left) if to > from => {
                    let count = left.min((to - from) as u64) as usize;
                    body.extend_from_slice(&bytes[from..from + count]);
                    from += count;
                    chunks.took(count as u64);
                }
                Step::End => return Ok(Some((body, bytes[from..].to_vec()))),
                Step::Data(_) | Step::More if to == bytes.len() => return Ok(None),
                Step::Data(_) | Step::More => to = (to + at_once).min(bytes.len()),
            }
        }
    }

    #[test]
    fn chunks_extensions_and_trailers() {
        let bytes = b"5\r\nhello\r\n00A ;x=\"y\"\r\n, world!!!\r\n0\r\nx-sum: 1\r\n\r\nrest";
        for at_once in 1..=bytes.len() {
            let (body, rest) = read(bytes, at_once).unwrap().unwrap();
            assert_eq!((body.as_slice(), rest.as_slice()), (&b"hello, world!!!"[..], &b"rest"[..]));
        }
        for len in 0..bytes.len() - 4 {
            assert_eq!(read(&bytes[..len], 7).unwrap(), None, "{len}");
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bytes in [
            &b"x\r\n"[..],
            b"\r\n",
            b";x\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b" 1\r\na\r\n0\r\n\r\n",
            b"0x1\r\na\r\n",
            b"1\na\n0\n\n",
            b"1\r\nab\r\n",
            b"1\r\na\n",
            b"11111111111111111\r\n",
            b"0\r\na\0b\r\n\r\n",
            b"0\r\na: b\n\r\n",
        ] {
            assert!(read(bytes, 1).is_err(), "{bytes:?} is {:?}", read(bytes, 1));
        }
    }

    #[test]
    fn lines_and_trailers_are_bounded() {
        assert!(read(&[&b"1;"[..], &[b'x'; MAX_LINE_BYTES]].concat(), 1).is_err());
        let trailers = b"a: b\r\n".repeat(MAX_HEAD_BYTES / 6 + 1);
        assert!(read(&[&b"0\r\n"[..], &trailers].concat(), 100).is_err());
        assert!(read(&[&b"0\r\n"[..], &[b'a'; MAX_HEAD_BYTES]].concat(), 100).is_err());
        let fit = b"a: b\r\n".repeat(MAX_HEAD_BYTES / 6);
        let (body, rest) = read(&[&b"0\r\n"[..], &fit, b"\r\n"].concat(), 100).unwrap().expect("it is whole");
        assert!(body.is_empty() && rest.is_empty());
    }

    #[test]
    fn trailers_are_headers() {
        assert!(read(b"0\r\nt: u\r\nempty:\r\n\r\n", 1).unwrap().is_some());
        for trailer in ["{: u", "no colon", ": u", "a : b", " folded", "a: \u{1}"] {
            assert!(read(format!("0\r\n{trailer}\r\n\r\n").as_bytes(), 1).is_err(), "{trailer:?}");
        }
    }
}
