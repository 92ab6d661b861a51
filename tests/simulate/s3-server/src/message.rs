//! HTTP/1.1 as an S3 server has it: requests that come in pieces, and responses.

use std::collections::BTreeMap;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// As it came, percent-encoded.
    pub path: String,
    /// The query as it came, and its values.
    pub raw_query: String,
    pub query: BTreeMap<String, String>,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Whether it is carried out only where something holds.
    pub fn has_condition(&self) -> bool {
        self.headers.contains_key("if-match") || self.headers.contains_key("if-none-match")
    }

    /// The key of an object, behind the bucket. Empty: the bucket is meant.
    pub fn key(&self) -> String {
        let path = decoded(&self.path);
        let key = path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(_, key)| key.to_owned());
        key.unwrap_or_default()
    }

    pub fn bucket(&self) -> String {
        let path = decoded(&self.path);
        path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned()
    }
}

/// A request whose bytes have come, taken from the front. `Ok(None)`: a part of it is still to come. `Err`: it is none.
pub fn take(came: &mut Vec<u8>) -> Result<Option<Request>, String> {
    let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&came[..end]).map_err(|_| "a head is no text".to_owned())?;
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let [method, target, "HTTP/1.1"] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("{line:?} is no first line of a request"));
    };
    let mut headers = BTreeMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(|| format!("{line:?} is no header"))?;
        if headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()).is_some() {
            return Err(format!("{name} comes twice"));
        }
    }
    let len = headers.get("content-length").map_or(Ok(0), |len| len.parse::<usize>());
    let len = len.map_err(|_| "a length that is no number".to_owned())?;
    if came.len() < end + 4 + len {
        return Ok(None);
    }
    let (path, raw_query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = raw_query.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    let request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        raw_query: raw_query.to_owned(),
        query: pairs.map(pair).collect(),
        headers,
        body: came[end + 4..end + 4 + len].to_vec(),
    };
    came.drain(..end + 4 + len);
    Ok(Some(request))
}

/// Without percent-encoding.
pub fn decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2).unwrap_or(("", piece));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is answered.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The connection takes no more requests.
    pub closes: bool,
}

impl Response {
    pub fn of(status: u16) -> Self {
        Response { status, ..Response::default() }
    }

    pub fn xml(status: u16, text: &str) -> Self {
        let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}").into_bytes();
        Response { headers: vec![("content-type", "application/xml".to_owned())], body, ..Response::of(status) }
    }

    pub fn error(status: u16, code: &str, about: &str) -> Self {
        let about = escaped(about);
        Response::xml(
            status,
            &format!("<Error><Code>{code}</Code><Message>{code}</Message><Resource>{about}</Resource></Error>"),
        )
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// `to_head`: it answers a HEAD, and has no body.
    pub fn bytes(&self, to_head: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            204 => "No Content",
            206 => "Partial Content",
            404 => "Not Found",
            412 => "Precondition Failed",
            503 => "Slow Down",
            _ => "Other",
        };
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", self.status);
        for (name, value) in &self.headers {
            [*name, ": ", value, "\r\n"].iter().for_each(|piece| head.push_str(piece));
        }
        if self.closes {
            head += "connection: close\r\n";
        }
        if self.status != 204 {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        head += "\r\n";
        let body = if to_head { &[][..] } else { &self.body };
        [head.as_bytes(), body].concat()
    }
}

/// Text within XML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_as_they_come() {
        let whole =
            b"PUT /b/c/0%2f?x=a%20b&uploads HTTP/1.1\r\nhost: h\r\nIf-Match: \"t\"\r\ncontent-length: 3\r\n\r\nabc\
                      HEAD /b HTTP/1.1\r\nhost: h\r\n\r\n";
        let (mut came, mut taken) = (Vec::new(), Vec::new());
        for byte in whole {
            came.push(*byte);
            taken.extend(take(&mut came).unwrap());
        }
        let [put, head] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((put.bucket(), put.key(), &put.body[..]), ("b".into(), "c/0/".into(), &b"abc"[..]));
        assert_eq!((put.query["x"].as_str(), put.query["uploads"].as_str()), ("a b", ""));
        assert!(put.has_condition() && put.header("if-match") == Some("\"t\""));
        assert_eq!((head.method.as_str(), head.bucket(), head.key()), ("HEAD", "b".into(), String::new()));
        assert!(came.is_empty() && !head.has_condition());
        for wrong in
            [&b"GET /\r\n\r\n"[..], b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"GET / HTTP/1.1\r\na: b\r\nA: c\r\n\r\n"]
        {
            assert!(take(&mut wrong.to_vec()).is_err(), "{wrong:?}");
        }
    }
}
